"""Figures of the studies of the weighted metric and of minimizing movements."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow._figure import PAGE, grid, style
from wflow.fits import PowerLaw

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

Array = NDArray[np.floating]

LOOKS = {
    "unnormalised": {"color": "#5c8a3a", "marker": "^", "linestyle": ":"},
    "effective": {"color": "#c1440e", "marker": "s", "linestyle": "--"},
    "softmax": {"color": "#0b3c5d", "marker": "o", "linestyle": "-"},
}


class Curve(NamedTuple):
    """Means (m,) over the paths at m abscissae, their fit, the flow they belong to, and a label."""

    mean: Array
    fit: PowerLaw
    flow: str
    label: str


def fraction(value: float) -> str:
    """1/k for a number that is one, else the number."""
    k = round(1 / value)
    return f"1/{k}" if k > 1 and abs(k * value - 1) < 1e-9 else f"{value:g}"


def power_laws(
    x: Array,
    panels: Mapping[str, Sequence[Curve]],
    *,
    xlabel: str,
    ylabel: str,
    room: float = 1.0,
    legend: str | None = None,
    ticks: Sequence[str],
    title: str = "",
) -> "Figure":
    """Panels with power laws in log-log, each with the band of its fit.

    Parameters
    ----------
    panels : title -> curves
    room : factor by which the upper limit is raised, for the legends
    """
    with style():
        figure, axes = grid(1, len(panels), PAGE, 2.9, sharey=True)
        along = np.sort(x)
        for axis, (name, curves) in zip(axes[0], panels.items(), strict=True):
            for curve in curves:
                look = LOOKS[curve.flow]
                axis.loglog(x, curve.mean, label=curve.label, **look)
                axis.fill_between(
                    along, *curve.fit.band(along), color=look["color"], alpha=0.15, linewidth=0
                )
            axis.set_xticks(x, ticks)
            axis.set_xticks([], minor=True)
            axis.set_xlabel(xlabel)
            axis.set_title(name)
        axes[0, 0].set_ylim(top=room * axes[0, 0].get_ylim()[1])
        for axis in axes[0]:
            axis.legend(loc="upper left", title=legend, alignment="left")
        axes[0, 0].set_ylabel(ylabel)
        if title:
            figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    return figure


def bounds_figure(table: "Dataset", title: str) -> "Figure":
    """W_b over W_2 of the random pairs between their bounds, against the norm of the heads."""
    order = np.argsort(table["pair_norm"].values)
    part = table.isel(pair=order)
    norm, w2 = part["pair_norm"].values, part["pair_w2"].values
    one = part["pair_heads"].values == 1
    with style():
        figure, axes = grid(1, 1, PAGE, 3.4)
        axis = axes[0, 0]
        at = np.linspace(0, norm.max(), 100)
        axis.fill_between(
            at, np.exp(-at / 2), np.exp(at / 2), color="0.93", label=r"$e^{\pm|D|/2}$", linewidth=0
        )
        axis.vlines(
            norm, part["pair_path_lower"] / w2, part["pair_path_upper"] / w2,
            color="#8fb0cc", linewidth=0.9, label="bounds by $b$ along the paths",
        )  # fmt: skip
        for low, mark in (("pair_lower", "v"), ("pair_upper", "^")):
            name = "rigorous $c_1$, $c_2$" if low == "pair_lower" else None
            axis.plot(norm, part[low] / w2, mark, color="0.55", markersize=2.4, label=name)
        ratio = part["pair_wb"].values / w2
        axis.plot(norm[one], ratio[one], "o", color="#c1440e", label="$W_b/W_2$, one head")
        axis.plot(norm[~one], ratio[~one], "s", color="#0b3c5d", label="$W_b/W_2$, 2 to 8 heads")
        axis.set_yscale("log")
        axis.margins(x=0.01)
        axis.set_xlabel("largest norm of a head $|D|$")
        axis.set_ylabel("distance over $W_2$")
        axis.set_title(title)
        axis.legend(loc="upper left")
    return figure
