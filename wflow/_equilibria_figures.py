"""Figures of the study `equilibria`, from its table."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._figure import PAGE, grid, style
from wflow.fits import mean_and_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]

_LOOKS: dict[str, dict[str, Any]] = {
    "sphere": {"color": "#0072B2", "marker": "o"},
    "hemisphere": {"color": "#E69F00", "marker": "^"},
}


def energies(table: "Dataset", facts: str) -> "Figure":
    """Energies of the limit clouds in increasing order, with the extremal energy."""
    with style():
        figure, axes = grid(2, len(table["problem"]), PAGE, 4.0, sharex=True)
        for k, problem in enumerate(table["problem"].values):
            for s, direction in enumerate(table["direction"].values):
                axis = axes[s, k]
                at = table.sel(problem=problem, direction=direction)
                for start, look in _LOOKS.items():
                    share = (np.arange(table.sizes["path"]) + 0.5) / table.sizes["path"]
                    values = np.sort(at["energy"].sel(start=start).values)
                    axis.plot(share, values, linestyle="none", markersize=3, label=start,
                              markerfacecolor="none", **look)  # fmt: skip
                best = float(at["extremum"])
                label = "closed form"
                if not math.isfinite(best):
                    best, label = float(at["lower_bound"]), "closed form or lower bound"
                axis.axhline(
                    best, color="#000000", linestyle=(0, (4, 2)), linewidth=0.9, label=label
                )
                low, high = axis.get_ylim()
                room = max(high - low, 0.06 * abs(best))
                axis.set_ylim((low + high - 1.3 * room) / 2, (low + high + 1.3 * room) / 2)
                if s == 0:
                    axis.set_title(str(problem))
                else:
                    axis.set_xlabel("share of starts")
                if k == 0:
                    axis.set_ylabel(f"energy after {direction}")
        handles, labels = axes[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        figure.suptitle(facts, fontsize=8.5, x=0.01, ha="left")
    return figure


def sizes(table: "Dataset", title: str) -> "Figure":
    """Energy above that of the uniform measure against the number of tokens."""
    uniform = table.attrs["uniform_energy"]
    n = table["size"].values
    with style():
        figure, axes = grid(1, 1, 5.2, 3.0)
        axis = axes[0, 0]
        mean, error = mean_and_error(table["size_start_energy"].values)
        axis.errorbar(n, mean - uniform, 2 * error, color="#0072B2", marker="o", linestyle="none",
                      capsize=2, label="random tokens, ± 2 standard errors")  # fmt: skip
        axis.plot(n, table["size_sampled"].values - uniform, color="#0072B2",
                  label=r"$(e^\beta - 2 E_{\mathrm{uniform}})/(2n)$")  # fmt: skip
        final = np.maximum(table["size_limit_energy"].values - uniform, 1e-16)
        axis.plot(n, final.mean(axis=1), color="#D55E00", marker="s", linestyle=(0, (4, 2)),
                  label="after descent, mean")  # fmt: skip
        least = table["size_minimal"].values - uniform
        known = np.isfinite(least) & (least > 0)
        axis.plot(n[known], least[known], color="#000000", marker="x", markersize=6,
                  linestyle="none", label="least possible, where known")  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(n, [str(k) for k in n])
        axis.set_xlabel("tokens $n$")
        axis.set_ylabel(r"$E - E_{\mathrm{uniform}}$")
        axis.set_title(title)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def limit_clouds(
    matrices: dict[str, FloatArray],
    table: "Dataset",
    clouds: dict[tuple[str, str], FloatArray],
    facts: str,
) -> "Figure":
    """The limit cloud of the best start of each problem, in the axes of D."""
    with style():
        figure, axes = grid(2, len(matrices), PAGE, 3.6, subplot_kw={"projection": "3d"})
        t = np.linspace(0, 2 * np.pi, 100)
        for k, (name, D) in enumerate(matrices.items()):
            values, vectors = np.linalg.eigh(D)
            for s, direction in enumerate(table["direction"].values):
                axis = axes[s, k]
                energy = table["energy"].values[k, s].ravel()
                best = int(np.argmax(energy) if direction == "ascent" else np.argmin(energy))
                x = clouds[name, direction][best] @ vectors
                for circle in np.eye(3):
                    a, b = np.eye(3)[circle == 0]
                    ring = np.outer(np.cos(t), a) + np.outer(np.sin(t), b)
                    axis.plot(*ring.T, color="#bbbbbb", linewidth=0.5, zorder=0)
                if np.ptp(values) > 1e-9:  # a multiple of the identity has no axes
                    axis.plot([-1.25, 1.25], [0, 0], [0, 0], color="#555555", linewidth=0.8)
                    axis.plot([0, 0], [0, 0], [-1.25, 1.25], color="#D55E00", linewidth=0.8,
                              linestyle=(0, (3, 2)))  # fmt: skip
                axis.scatter(*x.T, s=7, color="#0072B2", depthshade=True, linewidths=0)
                axis.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), zlim=(-1.1, 1.1))
                axis.set_axis_off()
                axis.set_box_aspect((1, 1, 1), zoom=1.7)
                axis.view_init(18, 35)
                title = name if s == 0 else ""
                axis.set_title(f"{title}\n{direction}" if title else direction, loc="center", pad=0)
        figure.suptitle(
            facts + "; axes of D: smallest eigenvalue solid, largest dashed",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return figure
