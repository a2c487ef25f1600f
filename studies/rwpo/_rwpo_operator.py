"""Figures of the study `rwpo_operator`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from _rwpo import plain_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

COLOURS = ("#0b3c5d", "#c1440e", "#5c8a3a", "#8e6c8a", "0.5")
NAMES = {"abs x": "$|x|$", "log(2 cosh x)": r"$\log(2\,\cosh\,x)$", "x^2/2": "$x^2/2$", "0": "0"}


def operator_figure(table: Dataset) -> Figure:
    """Error of the score in x, and the distance of the operator to a JKO step."""
    from wflow.plots.figure import PAGE, grid

    figure, axes = grid(1, 2, PAGE, 2.9)
    left, right = axes.flat
    for kernel, dash in (("published", "--"), ("laplace", "-")):
        for h, colour in zip(table["h"].values, COLOURS, strict=False):
            error = np.maximum(table["score_error"].sel(kernel=kernel, h=h), 1e-12)
            label = f"h = {h:g}" if kernel == "laplace" else None
            left.semilogy(table["x"], error, dash, color=colour, linewidth=0.9, label=label)
    left.set(xlabel="x", ylabel="Error of the score", ylim=(1e-6, 1e6),
             title=r"$\lambda = 2$; solid: $S(y)$ in $U$, dashed: $S(x)$ as printed")  # fmt: skip
    left.legend(loc="upper center", ncols=2)
    for name, colour in zip(table["psi"].values, COLOURS, strict=False):
        for norm, words, mark in (("L1", "density", "o-"), ("score", "score", "s:")):
            values = table["jko_error"].sel(psi=name, norm=norm)
            right.loglog(table["step"], values, mark, color=colour, markersize=3,
                         label=f"{NAMES[name]}, {words}")  # fmt: skip
    plain_ticks(right.xaxis, table["step"].values)
    right.set(xlabel="Step h", title="Operator minus JKO step: $L^1$, largest score")
    right.set_ylim(bottom=1e-6)
    right.legend(loc="lower right")
    return figure


def layer_figure(table: Dataset) -> Figure:
    """Error of the scheme against h, and self-weights against the dimension."""
    from wflow.plots.figure import PAGE, grid

    figure, axes = grid(1, 2, PAGE, 2.9)
    left, right = axes.flat
    looks = zip(table["scheme"].values, ("s--", "^-", "o-", "v-", "d-"), COLOURS, strict=True)
    for name, mark, colour in looks:
        potential, kernel = name.split(", ")
        values = table["scheme_error"].sel(scheme=name, quantity="W1")
        left.loglog(1 / table["steps"], values, mark, color=colour, markersize=3,
                    label=f"{NAMES[potential]}, {kernel}")  # fmt: skip
    plain_ticks(left.xaxis, 1 / table["steps"].values, [f"1/{n}" for n in table["steps"].values])
    left.set(xlabel="Step h", ylabel="$W_1$ to Fokker-Planck at t = 1")
    left.set_ylim(top=500)
    left.legend(loc="upper left", title=r"$\psi$, interaction", alignment="left")
    for h, mark, colour in zip(table["h_layer"].values, ("o-", "s-"), COLOURS, strict=False):
        right.semilogx(table["d"], table["self_weight"].sel(h_layer=h), mark, color=colour,
                       markersize=3, label=f"h = 1/{1 / h:.0f}")  # fmt: skip
    plain_ticks(right.xaxis, table["d"].values)
    right.set(xlabel="Dimension d", ylabel="Weight of a token in its own attention")
    right.legend(loc="lower right")
    return figure


def convergence_figure(table: Dataset) -> Figure:
    """KL divergence over time with the bounds of Proposition 4."""
    from wflow.plots.figure import PAGE, grid, time_axis

    looks = {"KL": ("-", "black", 1.1, 1.0), "printed": ("--", COLOURS[1], 1.1, 1.0),
             "corrected": ("-", COLOURS[0], 2.0, 0.6)}  # fmt: skip
    figure, axes = grid(1, 3, PAGE, 2.6)
    for axis, place in zip(axes.flat, (0, 1, 3), strict=True):
        part = table["kl"].isel(case=place)
        for curve, (dash, colour, width, alpha) in looks.items():
            axis.semilogy(table["time"], np.maximum(part.sel(curve=curve), 1e-12), dash,
                          color=colour, linewidth=width, alpha=alpha,
                          label="KL" if curve == "KL" else f"(28) {curve}")  # fmt: skip
        title = str(part["case"].values).replace("beta", r"$\beta$ =")
        axis.set(ylim=(1e-3, 10), title=title.replace("lambda", r"$\lambda$ ="))
        time_axis(axis)
    axes.flat[0].set_ylabel(r"$\mathrm{KL}(\rho_t\,|\,\rho^*)$")
    axes.flat[2].legend(loc="lower left")
    return figure


def figures(table: Dataset) -> dict[str, Figure]:
    """Those whose numbers have been computed."""
    from wflow.plots.figure import style

    needed = {
        "operator": (operator_figure, {"score_error", "jko_error"}),
        "layer": (layer_figure, {"scheme_error", "self_weight"}),
        "convergence": (convergence_figure, {"kl"}),
    }
    with style():
        return {name: draw(table) for name, (draw, keys) in needed.items() if keys <= set(table)}
