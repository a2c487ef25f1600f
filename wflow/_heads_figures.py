"""Figures of the study of trained heads."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from wflow._figure import PAGE, grid, style, time_axis
from wflow._heads_table import Layers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def figures(table: xr.Dataset, layers: Mapping[str, Layers]) -> dict[str, "Figure"]:
    """The clouds over time, and the heads by layer."""
    with style():
        return {"over_time": over_time(table), "heads": by_layer(layers)}


def over_time(table: xr.Dataset) -> "Figure":
    """Mean cosine, distance to the start and number of clusters, under trained and random heads."""
    panels = {
        "cosine": "mean cosine",
        "w2_initial": "$W_2$ to the start",
        "count": "number of clusters",
    }
    figure, axes = grid(1, 3, PAGE, 2.7)
    for axis, (key, label) in zip(axes[0], panels.items(), strict=True):
        for k, name in enumerate(table["network"].values):
            colour = COLOURS[k % len(COLOURS)]
            mean = table[key].sel(network=name).mean("path")
            axis.plot(table["time"], mean.sel(heads="trained"), color=colour, label=str(name))
            for kind in table["heads"].values[1:]:
                dashed = {"linestyle": "--", "linewidth": 0.8}
                axis.plot(table["time"], mean.sel(heads=kind), color=colour, **dashed)
            own = {"cosine": "network_cosine", "w2_initial": "network_moved"}.get(key)
            if own is not None:
                value = float(table[own].sel(network=name).mean())
                axis.plot(1.0, value, "o", color=colour, markerfacecolor="none")
        time_axis(axis)
        axis.set_xlabel("time (passes)")
        axis.set_ylabel(label)
    axes[0, 0].legend()
    axes[0, 0].set_title("solid: trained heads")
    axes[0, 1].set_title("dashed: random heads")
    axes[0, 2].set_title("circle: the network itself")
    return figure


def by_layer(layers: Mapping[str, Layers]) -> "Figure":
    """How far every head is from that of a gradient flow."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = grid(1, 2, PAGE, 2.7)
    marks = {"asymmetry": "asymmetry of $D$", "alignment": "cosine of $V$ and $(D + D^T)/2$"}
    for axis, (key, label) in zip(axes[0], marks.items(), strict=True):
        for k, (name, layer) in enumerate(layers.items()):
            values = getattr(layer.tied, key)
            places = np.repeat(np.arange(len(values)), values.shape[1]) + 0.08 * k
            look = {"color": COLOURS[k % len(COLOURS)], "markerfacecolor": "none"}
            axis.plot(places, values.ravel(), "o", label=name, **look)
        axis.set_xlabel("layer")
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].axhline(math.sqrt(0.5), color="0.6", linewidth=0.8, linestyle=":")
    axes[0, 0].set_title("dotted: unrelated $Q$ and $K$")
    axes[0, 1].axhline(0.0, color="0.6", linewidth=0.8, linestyle=":")
    axes[0, 0].legend()
    return figure
