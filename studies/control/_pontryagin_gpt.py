"""Figures of the study `pontryagin_gpt`: losses, the Hamiltonian along depth, steps of MSA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wflow import study
from wflow.study.networks import Results

COLOURS = {"": "#6b6b6b", "costates": "#0b3c5d", "cost": "#5c8a3a", "MSA": "#c1440e",
           "MSA cost": "#b8860b"}  # fmt: skip


def figures(models: Mapping[str, Any], results: Results) -> dict[str, study.Figure]:
    """Test losses, the Hamiltonian along depth, and the steps of MSA."""
    found = {}
    bodies: dict[str, dict[str, str]] = {}
    for name in results.records:
        body, _, rest = name.partition(" ")
        if not models[name].fixed:
            bodies.setdefault(body, {})[name] = rest
    if bodies:
        found["losses"] = losses_figure(results, bodies)
    deep = {body: names for body, names in bodies.items() if body != "S"}
    if deep:
        found["hamiltonian"] = hamiltonian_figure(results, deep)
    steps = [name for name in results.records if models[name].method == "MSA"]
    if steps:
        found["steps"] = steps_figure(results, steps)
    return found


def losses_figure(results: Results, bodies: Mapping[str, Mapping[str, str]]) -> study.Figure:
    """Test loss by batches, and by time, a column for each body."""
    from wflow.plots.figure import PAGE, grid, style
    from wflow.plots.networks import draw_histories

    with style():
        figure, axes = grid(2, len(bodies), PAGE, 4.8, sharey=True)
        for place, (body, names) in enumerate(bodies.items()):
            curves = {rest or "back-propagation": [
                history.isel(evaluation=slice(1, None)) for history in results.histories[name]
            ] for name, rest in names.items()}  # fmt: skip
            colours = {rest or "back-propagation": COLOURS[rest] for rest in names.values()}
            draw_histories(axes[0, place], curves, "test_loss", colours)
            for label, histories in curves.items():
                times = [each["seconds"].values.cumsum()[each["evaluation"] - 1]
                         for each in histories]  # fmt: skip
                means = np.mean([each["test_loss"] for each in histories], axis=0)
                axes[1, place].plot(np.mean(times, axis=0), means, color=colours[label],
                                    label=label)  # fmt: skip
            for line in (*axes[0, place].lines, *axes[1, place].lines):
                if line.get_label() == "back-propagation":  # costates give the same
                    line.set(linestyle=(0, (2, 2)), zorder=3)
            for axis, label in zip(axes[:, place], ("Batches", "Seconds"), strict=True):
                axis.set_xscale("log")
                axis.set_xlabel(label)
            axes[0, place].set_title(body)
            axes[0, place].legend(fontsize=6.5)
        for axis in axes[:, 0]:
            axis.set_ylabel("Test loss")
    return figure


def hamiltonian_figure(results: Results, bodies: Mapping[str, Mapping[str, str]]) -> study.Figure:
    """The Hamiltonian along depth before and after the training, mean and range over seeds."""
    from wflow.plots.figure import PAGE, grid, style

    with style():
        figure, axes = grid(1, len(bodies), PAGE, 3.0)
        for axis, (body, names) in zip(axes[0], bodies.items(), strict=True):
            for name, rest in names.items():
                if not rest:  # costates give the same
                    continue
                for key, line in (("hamiltonian_before", ":"), ("hamiltonian", "-")):
                    rows = np.array([record[key] for record in results.records[name]])
                    rows = rows[:, np.isfinite(rows).any(axis=0)]
                    label = rest if line == "-" else None
                    axis.plot(rows.mean(axis=0), line, marker="o", ms=3, color=COLOURS[rest],
                              label=label)  # fmt: skip
                    if len(rows) > 1:
                        axis.fill_between(range(rows.shape[1]), rows.min(axis=0), rows.max(axis=0),
                                          color=COLOURS[rest], alpha=0.15, lw=0)  # fmt: skip
            axis.set_xticks(range(rows.shape[1]))
            axis.set_xlabel("State along depth")
            axis.set_title(f"{body}: before (dotted) and after")
            axis.legend(fontsize=6.5)
        axes[0, 0].set_ylabel("Hamiltonian")
    return figure


def steps_figure(results: Results, names: list[str]) -> study.Figure:
    """Loss of the batch before each step of MSA, and rho."""
    from wflow.plots.figure import PAGE, grid, style
    from wflow.plots.networks import COLOURS as CYCLE
    from wflow.plots.networks import draw_histories

    with style():
        figure, axes = grid(1, 2, PAGE, 2.8)
        curves = {name: results.histories[name] for name in names}
        colours = dict(zip(names, CYCLE, strict=False))
        for axis, key, label in zip(
            axes[0], ("data", "rho"), ("Loss of the batch before a step", "rho"), strict=True
        ):
            draw_histories(axis, curves, key, colours, log=key == "rho")
            axis.set_xlabel("Step of extended MSA")
            axis.set_ylabel(label)
        axes[0, 0].legend(fontsize=6.5)
    return figure
