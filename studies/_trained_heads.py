"""Figures of the study of trained heads: clouds over time, and heads by layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wflow import study
from wflow.analysis.fits import mean_and_error
from wflow.plots.figure import PAGE, grid, style, time_axis

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def figures(table: study.Dataset, every: int) -> dict[str, study.Figure]:
    """Draw the clouds over time, with `every` snapshots in a pass, and the heads by layer."""
    with style():
        return {"over_time": over_time(table, every), "heads": by_layer(table)}


def looks(table: study.Dataset) -> dict[str, dict[str, Any]]:
    """Return the colour and marker of every network."""
    return {
        str(name): {"color": COLOURS[k % len(COLOURS)], "marker": "os^Dv"[k % 5]}
        for k, name in enumerate(table["network"].values)
    }


def over_time(table: study.Dataset, every: int) -> study.Figure:
    """Draw mean cosine, distance to the start and number of clusters, trained and random."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    panels = {
        "cosine": "Mean cosine",
        "w2_initial": "$W_2$ to the start",
        "count": "Number of clusters",
    }
    time = table["time"].values
    figure, axes = grid(1, 3, PAGE, 3.2)
    for axis, (key, label) in zip(axes[0], panels.items(), strict=True):
        for name, look in looks(table).items():
            colour = look["color"]
            values = table[key].sel(network=name)
            trained, error = mean_and_error(values.sel(heads="trained").values.T, finite=False)
            axis.plot(time, trained, markevery=every, **look)
            axis.fill_between(time, trained - error, trained + error, color=colour, alpha=0.25,
                              linewidth=0)  # fmt: skip
            draws = values.isel(heads=slice(1, None)).mean("path").values
            if len(draws):
                axis.plot(time, draws.mean(axis=0), color=colour, linestyle="--", linewidth=0.9)
                axis.fill_between(time, draws.min(axis=0), draws.max(axis=0), color=colour,
                                  alpha=0.10, linewidth=0)  # fmt: skip
            own = {"cosine": "network_cosine", "w2_initial": "network_moved"}.get(key)
            if own is not None:
                value, bar = mean_and_error(table[own].sel(network=name).values, finite=False)
                axis.errorbar(1.0, value, bar if np.isfinite(bar) else None, fmt="*", color=colour,
                              markersize=8, markeredgecolor="black", markeredgewidth=0.5,
                              capsize=2, zorder=4)  # fmt: skip
        time_axis(axis)
        axis.set_xlabel("Time (passes)")
        axis.set_ylabel(label)
    handles: list[Any] = [Line2D([], [], **look) for look in looks(table).values()]
    paths, count = table.sizes["path"], table.sizes["heads"] - 1
    handles += [
        (Patch(color="0.35", alpha=0.3), Line2D([], [], color="0.35")),
        (Patch(color="0.35", alpha=0.12), Line2D([], [], color="0.35", linestyle="--")),
        Line2D([], [], color="0.35", marker="*", markersize=8, linestyle="none"),
    ]
    texts = [
        *looks(table),
        f"trained heads (mean of {paths} texts ± standard error)",
        f"random heads (mean and range of {count} draw{'s' * (count > 1)})",
        "the network itself after one pass",
    ]
    figure.legend(handles, texts, loc="outside lower center", ncols=2)
    return figure


def by_layer(table: study.Dataset) -> study.Figure:
    """Draw how far every head is from that of a gradient flow."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    figure, axes = grid(1, 2, PAGE, 3.0)
    marks = {"asymmetry": "Asymmetry of $D$", "alignment": "Cosine of $V$ and $(D + D^T)/2$"}
    found = {name: look | {"markerfacecolor": "none", "linestyle": "none"}
             for name, look in looks(table).items()}  # fmt: skip
    for axis, (key, label) in zip(axes[0], marks.items(), strict=True):
        for k, (name, look) in enumerate(found.items()):
            values = table[f"{key}_{name}"].values
            shift = 0.12 * (k - (len(found) - 1) / 2)
            places = np.repeat(np.arange(1, len(values) + 1), values.shape[1]) + shift
            axis.plot(places, values.ravel(), **look)
        axis.set_xlabel("Layer")
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    dotted: dict[str, Any] = {"color": "0.5", "linewidth": 0.9, "linestyle": ":"}
    axes[0, 0].axhline(math.sqrt(0.5), **dotted)
    axes[0, 1].axhline(0.0, **dotted)
    handles = [Line2D([], [], **look) for look in found.values()] + [Line2D([], [], **dotted)]
    texts = [*(f"{name}, one head each" for name in found), "unrelated $Q$, $K$ and $V$"]
    figure.legend(handles, texts, loc="outside lower center", ncols=3)
    return figure
