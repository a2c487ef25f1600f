"""Figures of the study `clustering`, from its table."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._figure import PAGE, grid, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

    from wflow.clusters import Plateau

FloatArray = NDArray[np.float64]

_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#56B4E9", "linestyle": (0, (1, 1.2)), "marker": "^"},
    {"color": "#E69F00", "linestyle": (0, (4, 1.5)), "marker": "s"},
    {"color": "#D55E00", "linestyle": "-", "marker": "o"},
)
_EDGE: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.4}


def phase_diagram(table: "Dataset", title: str, *, orthogonal: bool) -> "Figure":
    """The share at the end over (d, beta), and the frontier at every time.

    With `orthogonal`, where that of orthogonal tokens is, at the right edge.
    """
    table = table.sortby(["beta", "d"])
    dims, betas, times = (table[name].values for name in ("d", "beta", "when"))

    def height(beta: FloatArray) -> FloatArray:  # the rows of the image are equally high
        return np.interp(beta, betas, np.arange(len(betas)), left=np.nan, right=np.nan)

    with style():
        figure, axes = grid(1, 1, 5.6, 3.5)
        axis = axes[0, 0]
        mesh = axis.imshow(
            table["share"].isel(when=-1).values, origin="lower", aspect="auto", cmap="Greys_r",
            vmin=0, vmax=1, interpolation="nearest",
        )  # fmt: skip
        edge = table["frontier"].values
        for k, t in enumerate(times):
            look = _LOOKS[k % len(_LOOKS)]
            inside = np.isfinite(edge[:, k])
            heights = np.full(len(dims), np.nan)
            heights[inside] = height(edge[inside, k])
            where = "" if inside.any() else ": nowhere"
            axis.plot(heights, label=f"$t$ = {t:g}{where}", **_EDGE, **look)
            theory = float(table["orthogonal_frontier"].values[k])
            if orthogonal and math.isfinite(theory):
                axis.plot([len(dims) - 0.5], height(np.array([theory])), color=look["color"],
                          marker="<", markersize=6, linestyle="none", clip_on=False, zorder=5,
                          label="orthogonal tokens" if k == len(times) - 1 else None,
                          **_EDGE)  # fmt: skip
        axis.set_xticks(range(len(dims)), [f"{d}" for d in dims])
        axis.set_yticks(range(len(betas)), [f"{b:g}" for b in betas])
        axis.set_xlabel("dimension $d$")
        axis.set_ylabel(r"inverse temperature $\beta$")
        for side in ("top", "right"):
            axis.spines[side].set_visible(True)
        figure.colorbar(mesh, ax=axis, label=f"share in one cluster at $t$ = {times[-1]:g}")
        figure.legend(title="frontier: share 1/2 at", loc="outside lower center", ncols=4)
        axis.set_title(title)
    return figure


def series(
    table: "Dataset", plateaus: "dict[float, list[Plateau]]", n: int, facts: str
) -> "Figure":
    """Number of clusters over time, a panel per beta, plateaus of the first start drawn bold."""
    betas = sorted(plateaus)
    columns = min(3, len(betas))
    rows = -(-len(betas) // columns)
    time = table["time"].values
    ticks = [2**j for j in range(int(math.log2(n)) + 1)]
    with style():
        figure, axes = grid(rows, columns, PAGE, 0.5 + 1.9 * rows, sharex=True, sharey=True)
        for k, beta in enumerate(betas):
            axis = axes.flat[k]
            counts = table["series_count"].sel(series_beta=beta).values
            for s in range(1, len(counts)):
                axis.step(time[1:], counts[s, 1:], where="post", color="#BBBBBB", linewidth=0.5)
            axis.step(time[1:], counts[0, 1:], where="post", color="#0072B2", linewidth=1.1)
            for plateau in plateaus[beta]:
                axis.plot(
                    [plateau.start, plateau.end], [plateau.count] * 2, color="#D55E00",
                    linewidth=3.2, solid_capstyle="butt", zorder=4,
                    marker="" if plateau.ended else ">", markevery=[1], markersize=5,
                )  # fmt: skip
            axis.set_xscale("log")
            axis.set_yscale("log", base=2)
            axis.set_ylim(0.85, 1.2 * n)
            axis.set_yticks(ticks, [str(tick) for tick in ticks])
            axis.set_title(rf"$\beta$ = {beta:g}")
            if k >= len(betas) - columns:
                axis.set_xlabel("time $t$ (units of [GLPR])")
                axis.tick_params(labelbottom=True)
            if k % columns == 0:
                axis.set_ylabel("clusters")
        for axis in axes.flat[len(betas) :]:
            axis.set_visible(False)
        figure.suptitle(
            f"{facts} (grey); one start (blue) with its plateaus (bold; arrow: lasts to the end)",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return figure
