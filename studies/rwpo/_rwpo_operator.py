"""Figures of the study `rwpo_operator`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

COLOURS = ("#0b3c5d", "#c1440e", "#5c8a3a", "#8e6c8a")


def operator_figure(table: Dataset) -> Figure:
    """Error of the score in x, and the distance of the operator to a JKO step."""
    from wflow.plots.figure import PAGE, grid, style

    with style():
        figure, axes = grid(1, 2, PAGE, 2.9)
        left, right = axes.flat
        looks = {"published": "--", "laplace": "-"}
        for kernel, dash in looks.items():
            for h, colour in zip(table["h"].values, COLOURS, strict=True):
                error = table["score_error"].sel(kernel=kernel, h=h)
                name = f"h = {h:g}" if kernel == "laplace" else None
                left.semilogy(table["x"], np.maximum(error, 1e-12), dash, color=colour,
                              linewidth=0.9, label=name)  # fmt: skip
        left.set_ylim(1e-6, 1e6)
        left.set_xlabel("x")
        left.set_ylabel("Error of the score")
        left.set_title(r"$\lambda = 2$; solid: $S(y)$ in $U$, dashed: $S(x)$ as printed")
        left.legend(loc="upper center", ncols=2)
        names = {"abs x": "$|x|$", "log(2 cosh x)": r"$\log(2\,\cosh\,x)$", "x^2/2": "$x^2/2$"}
        for name, colour in zip(table["psi"].values, COLOURS, strict=False):
            for norm, mark in (("L1", "o-"), ("score", "s:")):
                values = table["jko_error"].sel(psi=name, norm=norm)
                label = f"{names[name]}, {'density' if norm == 'L1' else 'score'}"
                right.loglog(table["step"], values, mark, color=colour, markersize=3, label=label)
        right.set_xticks(table["step"].values, [f"{h:g}" for h in table["step"].values])
        right.set_xticks([], minor=True)
        right.set_xlabel("Step h")
        right.set_title("Operator minus JKO step: $L^1$, largest score")
        right.set_ylim(bottom=1e-6)
        right.legend(loc="lower right")
    return figure


def layer_figure(table: Dataset) -> Figure:
    """Error of the scheme against h, and self-weights against the dimension."""
    from wflow.plots.figure import PAGE, grid, style

    names = {"abs x": "$|x|$", "log(2 cosh x)": r"$\log(2\,\cosh\,x)$", "0": "0"}
    with style():
        figure, axes = grid(1, 2, PAGE, 2.9)
        left, right = axes.flat
        marks = ("s--", "^-", "o-", "v-", "d-")
        for name, mark, colour in zip(
            table["scheme"].values, marks, (*COLOURS, "0.5"), strict=True
        ):
            potential, kernel = name.split(", ")
            values = table["scheme_error"].sel(scheme=name, quantity="W1")
            left.loglog(1 / table["steps"], values, mark, color=colour, markersize=3,
                        label=f"{names[potential]}, {kernel}")  # fmt: skip
        ticks = 1 / table["steps"].values
        left.set_xticks(ticks, [f"1/{n}" for n in table["steps"].values])
        left.set_xticks([], minor=True)
        left.set_xlabel("Step h")
        left.set_ylabel("$W_1$ to Fokker-Planck at t = 1")
        left.set_ylim(top=500)
        left.legend(loc="upper left", title=r"$\psi$, interaction", alignment="left")
        for h, mark, colour in zip(table["h_layer"].values, ("o-", "s-"), COLOURS, strict=False):
            right.semilogx(table["d"], table["self_weight"].sel(h_layer=h), mark, color=colour,
                           markersize=3, label=f"h = 1/{1 / h:.0f}")  # fmt: skip
        right.set_xticks(table["d"].values, [str(d) for d in table["d"].values])
        right.set_xticks([], minor=True)
        right.set_xlabel("Dimension d")
        right.set_ylabel("Weight of a token in its own attention")
        right.legend(loc="lower right")
    return figure


def convergence_figure(table: Dataset) -> Figure:
    """KL divergence over time with the bounds of Proposition 4."""
    from wflow.plots.figure import PAGE, grid, style, time_axis

    with style():
        figure, axes = grid(1, 3, PAGE, 2.6)
        for axis, place in zip(axes.flat, (0, 1, 3), strict=True):
            part = table["kl"].isel(case=place)
            for curve, dash, colour in (
                ("KL", "-", "black"), ("printed", "--", COLOURS[1]), ("corrected", "-", COLOURS[0]),
            ):  # fmt: skip
                width = 2.0 if curve == "corrected" else 1.1
                label = "KL" if curve == "KL" else f"(28) {curve}"
                axis.semilogy(table["time"], np.maximum(part.sel(curve=curve), 1e-12), dash,
                              color=colour, linewidth=width, label=label,
                              alpha=0.6 if curve == "corrected" else 1.0)  # fmt: skip
            axis.set_ylim(1e-3, 10)
            time_axis(axis)
            title = str(part["case"].values).replace("beta", r"$\beta$ =")
            axis.set_title(title.replace("lambda", r"$\lambda$ ="))
        axes.flat[0].set_ylabel(r"$\mathrm{KL}(\rho_t\,|\,\rho^*)$")
        axes.flat[2].legend(loc="lower left")
    return figure


def figures(table: Dataset) -> dict[str, Figure]:
    """Those whose numbers have been computed."""
    drawn = {}
    if {"score_error", "jko_error"} <= set(table):
        drawn["operator"] = operator_figure(table)
    if {"scheme_error", "self_weight"} <= set(table):
        drawn["layer"] = layer_figure(table)
    if "kl" in table:
        drawn["convergence"] = convergence_figure(table)
    return drawn
