"""Figures of the study `rwpo_inverse`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from _rwpo import learning_curves

from wflow import study
from wflow.plots.figure import PAGE, grid, style
from wflow.study.networks import Results

if TYPE_CHECKING:
    from rwpo_inverse import Data

COLOURS = {
    "ot-flow": "#0072B2",
    "sparse": "#D55E00",
    "itself": "#8B4000",
    "first": "#CC79A7",
    "attracting": "#882255",
    "ot-flow-kl": "#56B4E9",
    "sparse-kl": "#E69F00",
    "itself-kl": "#B8860B",
    "printed-kl": "0.3",
    "printed-exact-kl": "0.5",
    "printed-laplace-kl": "0.7",
    "supervised": "#009E73",
    "printed-exact-supervised": "#66A61E",
    "itself-supervised": "#1B9E77",
}


def curves(problems: Mapping[str, Results]) -> study.Figure:
    """Held-out negative log likelihood over the training, one panel for each problem."""
    shown = [m for m in COLOURS if not m.startswith("printed") and "supervised" not in m]
    panels = {
        problem: {model: results.histories.get(model, []) for model in shown}
        for problem, results in problems.items()
    }
    figure = learning_curves(panels, "validation", "Held-out NLL", COLOURS)
    for axis, drawn in zip(figure.axes, panels.values(), strict=False):
        values = [run["validation"].values for runs in drawn.values() for run in runs]
        least = min((float(np.nanmin(v)) for v in values), default=np.inf)
        most = max((float(np.nanmax(v[:1])) for v in values), default=-np.inf)
        if np.isfinite(least) and np.isfinite(most):
            axis.set_ylim(least - 0.05 * (most - least), most + 0.3 * (most - least))
    return figure


@style()
def histograms(problems: Mapping[str, Results]) -> study.Figure:
    """Rank histograms of the informed directions, first seed; cut bars say their height."""
    ranks = {
        problem: {
            model: np.sum(runs[0]["ranks"], axis=0)
            for model, runs in results.records.items()
            if runs[0]["ranks"] is not None
        }
        for problem, results in problems.items()
    }
    columns = max(map(len, ranks.values()))
    figure, axes = grid(len(ranks), columns, PAGE, 1.3 * len(ranks) + 0.5)
    for row, (problem, own) in zip(axes, ranks.items(), strict=True):
        for axis, (model, counts) in zip(row, own.items(), strict=False):
            share = counts / counts.sum() * len(counts)
            axis.bar(range(len(share)), share, width=0.9, color=COLOURS[model])
            for place in np.flatnonzero(share > 3):
                axis.text(place, 2.95, f"{share[place]:.1f}", ha="center", va="top", fontsize=5)
            axis.axhline(1.0, color="0.3", linewidth=0.8)
            axis.set(ylim=(0, 3), xticks=[])
            axis.set_title(model, fontsize=7)
        row[0].set_ylabel(problem)
        for axis in row[len(own) :]:
            axis.set_visible(False)
    return figure


@style()
def fields(problem: str, known: Data, reference: np.ndarray, results: Results) -> study.Figure:
    """Posterior of one data set: the reference beside flows without and with attention."""
    wanted = ("ot-flow", "sparse", "itself", "ot-flow-kl", "printed-exact-kl")
    first = {name: results.records[name][0]["draws"] for name in wanted if name in results.records}
    shown = {"reference": reference}
    shown |= {name: np.array(draws) for name, draws in first.items() if draws is not None}
    truth = known.field(known.check.x[:1])[0]
    model: Any = known.problem.model
    if problem == "impedance":
        n = model.cells
        figure, axes = grid(2, len(shown) + 1, PAGE, 3.0)
        span = {"vmin": truth.min(), "vmax": truth.max()}

        def image(axis: Any, values: np.ndarray, title: str, **look: Any) -> None:
            axis.imshow(values.reshape(n, n).T, origin="lower", extent=(0, 1, 0, 1), **look)
            axis.set_title(title, fontsize=7)
            axis.set(xticks=[], yticks=[])

        image(axes[0, 0], truth, "truth", **span)
        axes[1, 0].set_visible(False)
        for k, (name, x) in enumerate(shown.items(), 1):
            mean = known.field(x).mean(0)
            error = np.abs(mean - truth).sum() / np.abs(truth).sum()
            image(axes[0, k], mean, name, **span)
            image(axes[1, k], np.abs(mean - truth), f"error {100 * error:.3g} %",
                  vmin=0, vmax=0.2 * truth.max(), cmap="magma")  # fmt: skip
        return figure
    figure, axes = grid(1, len(shown), PAGE, 2.2)
    for axis, (name, x) in zip(axes.flat, shown.items(), strict=True):
        values = known.field(x)
        if problem == "elliptic":
            axis.plot(model.grid, values[:40].T, color="#E69F00", linewidth=0.3, alpha=0.5)
            axis.plot(model.grid, values.mean(0), color="#B22222")
            axis.plot(model.grid, truth, color="0.1", linestyle=":")
            room = 0.4 * np.ptp(truth)
            axis.set(xlabel="s", ylim=(truth.min() - room, truth.max() + room))
        else:
            looks = {r"$\sigma$": "#0072B2", "$r$": "#E69F00", r"$\beta$": "#009E73"}
            for k, (label, colour) in enumerate(looks.items()):
                ratio = values[:, k] / model.centre[k]
                axis.hist(ratio, bins=np.linspace(0.5, 1.6, 56), density=True, color=colour,
                          alpha=0.6, label=label)  # fmt: skip
                axis.axvline(truth[k] / model.centre[k], color=colour, linestyle="--", linewidth=1)
            axis.set_xlabel("Parameter / centre")
        axis.set_title(name, fontsize=8)
    if problem == "lorenz":
        handles, texts = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=len(texts))
    return figure
