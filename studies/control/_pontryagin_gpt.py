"""Figures of the study `pontryagin_gpt`: losses, the Hamiltonian along depth, steps of MSA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wflow import study
from wflow.plots.figure import PAGE, grid, style
from wflow.plots.networks import COLOURS as CYCLE
from wflow.plots.networks import draw_histories
from wflow.study.networks import Results

PLAIN = "back-propagation"  # costates give the same
COLOURS = {PLAIN: "#6b6b6b", "costates": "#0b3c5d", "cost": "#5c8a3a", "MSA": "#c1440e",
           "MSA cost": "#b8860b"}  # fmt: skip


def figures(models: Mapping[str, Any], results: Results) -> dict[str, study.Figure]:
    """Test losses, the Hamiltonian along depth, and the steps of MSA."""
    bodies: dict[str, dict[str, str]] = {}
    for name in results.records:
        body, _, rest = name.partition(" ")
        if not models[name].fixed:
            bodies.setdefault(body, {})[name] = rest or PLAIN
    deep = {body: names for body, names in bodies.items() if body != "S"}
    steps = [name for name in results.records if models[name].method == "MSA"]
    shown: dict[str, tuple[Any, Any]] = {
        "losses": (losses_figure, bodies),
        "hamiltonian": (hamiltonian_figure, deep),
        "steps": (steps_figure, steps),
    }
    return {name: draw(results, given) for name, (draw, given) in shown.items() if given}


@style()
def losses_figure(results: Results, bodies: Mapping[str, Mapping[str, str]]) -> study.Figure:
    """Test loss by batches, and by time, a column for each body."""
    figure, axes = grid(2, len(bodies), PAGE, 4.8, sharey=True)
    for place, (body, names) in enumerate(bodies.items()):
        curves = {
            label: [history.isel(evaluation=slice(1, None)) for history in results.histories[name]]
            for name, label in names.items()
        }
        draw_histories(axes[0, place], curves, "test_loss", COLOURS)
        for label, histories in curves.items():
            times = [each["seconds"].values.cumsum()[each["evaluation"] - 1] for each in histories]
            means = np.mean([each["test_loss"] for each in histories], axis=0)
            axes[1, place].plot(np.mean(times, axis=0), means, color=COLOURS[label], label=label)
        for line in (*axes[0, place].lines, *axes[1, place].lines):
            if line.get_label() == PLAIN:
                line.set(linestyle=(0, (2, 2)), zorder=3)
        for axis, label in zip(axes[:, place], ("Batches", "Seconds"), strict=True):
            axis.set(xscale="log", xlabel=label)
        axes[0, place].set_title(body)
        axes[0, place].legend(fontsize=6.5)
    for axis in axes[:, 0]:
        axis.set_ylabel("Test loss")
    return figure


@style()
def hamiltonian_figure(results: Results, bodies: Mapping[str, Mapping[str, str]]) -> study.Figure:
    """The Hamiltonian along depth before and after the training, mean and range over seeds."""
    figure, axes = grid(1, len(bodies), PAGE, 3.0)
    for axis, (body, names) in zip(axes[0], bodies.items(), strict=True):
        for name, label in names.items():
            if label == PLAIN:
                continue
            for key, line in (("hamiltonian_before", ":"), ("hamiltonian", "-")):
                rows = np.array([record[key] for record in results.records[name]])
                rows = rows[:, np.isfinite(rows).any(axis=0)]
                axis.plot(rows.mean(axis=0), line, marker="o", ms=3, color=COLOURS[label],
                          label=label if line == "-" else None)  # fmt: skip
                if len(rows) > 1:
                    axis.fill_between(range(rows.shape[1]), rows.min(axis=0), rows.max(axis=0),
                                      color=COLOURS[label], alpha=0.15, lw=0)  # fmt: skip
        axis.set(xticks=range(rows.shape[1]), xlabel="State along depth",
                 title=f"{body}: before (dotted) and after")  # fmt: skip
        axis.legend(fontsize=6.5)
    axes[0, 0].set_ylabel("Hamiltonian")
    return figure


@style()
def steps_figure(results: Results, names: list[str]) -> study.Figure:
    """Loss of the batch before each step of MSA, and rho."""
    figure, axes = grid(1, 2, PAGE, 2.8)
    curves = {name: results.histories[name] for name in names}
    colours = dict(zip(names, CYCLE, strict=False))
    labels = {"data": "Loss of the batch before a step", "rho": "rho"}
    for axis, (key, label) in zip(axes[0], labels.items(), strict=True):
        draw_histories(axis, curves, key, colours, log=key == "rho")
        axis.set(xlabel="Step of extended MSA", ylabel=label)
    axes[0, 0].legend(fontsize=6.5)
    return figure
