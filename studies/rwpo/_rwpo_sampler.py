"""Tables and figures of the study `rwpo_sampler`."""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow import study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

COLOURS = {"brwp": "#0b3c5d", "myula": "#c1440e", "ula": "#5c8a3a"}


def pair(values: Any) -> str:
    """Mean and standard deviation."""
    return f"{float(values.mean()):.3f} ± {float(values.std()):.3f}"


def report(table: "Dataset", chosen: "Dataset", exact: Sequence[float]) -> str:
    """The tables; `exact` is the deficit of infinitely many tokens of a Gaussian at every h."""
    labels = {str(name): at.values.tolist() for name, at in table.coords.items()}
    samplers, budgets, sizes = labels["sampler"], labels["budget"], table.attrs["tokens"]

    def best(at: "Dataset") -> str:
        return (
            f"{float(at['value']):.3f} (h L = {float(at['chosen']):g}, variance "
            f"{float(at['ratio']):.2f})"
        )

    equal = []
    for name, d, budget in product(
        labels["target"], labels["d"], (budgets[2], budgets[-3], budgets[-1])
    ):
        at = chosen.sel(target=name, d=d, budget=budget)
        row = {"target": name, "d": str(d), "gradients": str(budget)}
        row |= {sampler: best(at.sel(sampler=sampler)) for sampler in samplers}
        equal.append(row | {"floor": pair(table["sliced_floor"].sel(target=name, d=d))})
    ends = []
    for name, d, step in product(labels["target"], labels["d"], labels["step"]):
        one = table.sel(target=name, d=d, step=step)
        of = {sampler: one.sel(sampler=sampler) for sampler in samplers}
        brwp = of["brwp"]
        ends.append(
            {"target": name, "d": str(d), "h L": f"{step:g}"}
            | {"beta lambda^2 h": f"{float(brwp['bound']):.3g}"}
            | {f"W2 {sampler}": f"{float(of[sampler]['w2'].mean()):.3f}" for sampler in samplers}
            | {"floor": f"{float(one['w2_floor'].mean()):.3f}"}
            | {
                f"variance {sampler}": f"{float(of[sampler]['variance'].isel(budget=-1)):.3f}"
                for sampler in samplers[:2]
            }
            | {"ESS": f"{float(brwp['ess']):.1f}", "absorbed": f"{float(brwp['absorbed']):.2f}"}
        )
    infinite = dict(zip(labels["h"], exact, strict=True))
    biases = []
    for name, n, h in product(labels["smooth"], labels["n"], labels["h"]):
        one = table.sel(smooth=name, n=n, h=h)
        biases.append({
            "target": name, "n": str(n), "h": f"{h:g}",
            "deficit of the variance": pair(one["deficit"]),
            "infinite n": f"{infinite[h]:.3f}" if name == "gaussian" else "",
            "sliced W2": pair(one["bias_sliced"]),
            "floor": f"{float(one['bias_floor']):.3f}",
            "ESS": f"{float(one['bias_ess'].mean()):.0f}",
        })  # fmt: skip
    scales = [
        {
            "d": str(d), "n": str(n), "h": f"{h:g}", "ESS": f"{float(one['scale_ess']):.1f}",
            "variance": f"{float(one['scale_variance']):.2f}",
        }
        for d, n, h in product(labels["scale"], labels["count"], labels["h_scale"])
        for one in [table.sel(scale=d, count=n, h_scale=h)]
    ]  # fmt: skip
    betas = [
        {
            "beta": f"{beta:g}", "h": f"{0.05 / max(1.0, beta):g}",
            "sliced W2 / standard deviation": f"{float(one['beta_sliced']):.3f}",
            "floor": f"{float(one['beta_floor']):.3f}",
            "variance": f"{float(one['beta_variance']):.3f}",
            "ESS": f"{float(one['beta_ess']):.0f}",
        }
        for beta in labels["beta"]
        for one in [table.sel(beta=beta)]
    ]  # fmt: skip
    times = [
        {"d": str(d), "n": str(n)}
        | {name: f"{1e3 * float(one.sel(cost_sampler=name)):.2f}" for name in samplers}
        for d, n in product(labels["cost_d"], labels["cost_n"])
        for one in [table["seconds"].sel(cost_d=d, cost_n=n)]
    ]
    tables = {
        f"Sliced W2 to the target at equal gradient evaluations of each of n = {sizes} tokens, at "
        "the best of the steps; floor: two independent samples of n:": equal,
        f"W2 after {budgets[-1]} steps, and variance over the exact one:": ends,
        "BRWP against h and n in the plane, from exact samples on, over three samples:": biases,
        "BRWP against the dimension (Gaussian times Laplace):": scales,
        "BRWP against the temperature (Gaussian times Laplace, d = 2):": betas,
        "Milliseconds of a step (lasso):": times,
    }
    return "\n\n".join(
        part for title, rows in tables.items() for part in (title, study.markdown_table(rows))
    )


def against_gradients(table: "Dataset", chosen: "Dataset") -> "Figure":
    """Sliced W2 against gradient evaluations, one panel for each target and dimension."""
    from wflow.plots.figure import PAGE, grid, style

    names, dims = table["target"].values, table["d"].values
    with style():
        figure, axes = grid(len(names), len(dims), PAGE, 5.6)
        for row, name in zip(axes, names, strict=True):
            for axis, d in zip(row, dims, strict=True):
                floors = table["sliced_floor"].sel(target=name, d=d)
                low, high = float(floors.min()), float(floors.max())
                axis.axhspan(low, high, color="0.85", label="two samples of the target")
                for (sampler, colour), mark in zip(
                    COLOURS.items(), ("o-", "s-", "^--"), strict=True
                ):
                    values = chosen["value"].sel(target=name, d=d, sampler=sampler)
                    axis.loglog(table["budget"], values, mark, markersize=3, label=sampler.upper(),
                                color=colour)  # fmt: skip
                axis.set_title(f"{name}, d = {d}")
                plain_ticks(axis, (0.03, 0.05, 0.1, 0.2, 0.5), (0.03, 0.9))
        for axis in axes[-1]:
            axis.set_xlabel("Gradient evaluations of a token")
        for axis in axes[:, 0]:
            axis.set_ylabel("Sliced $W_2$")
        handles, texts = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=len(texts))
    return figure


def plain_ticks(axis: Any, ticks: tuple[float, ...], limits: tuple[float, float]) -> None:
    """Ticks of a logarithmic ordinate as plain numbers."""
    axis.set_yscale("log")
    axis.set_ylim(*limits)
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_yticks([], minor=True)


def bias_figure(table: "Dataset", exact: Sequence[float]) -> "Figure":
    """Deficit of the variance against h, and variance against the effective sample size."""
    from wflow.plots.figure import PAGE, grid, style

    shades = ("#9dbcd4", "#3f7cac", "#0b3c5d")
    with style():
        figure, axes = grid(1, 3, PAGE, 2.6)
        steps = table["h"].values
        for axis, name in zip(axes.flat, table["smooth"].values, strict=False):
            for n, colour in zip(table["n"].values, shades, strict=False):
                values = table["deficit"].sel(smooth=name, n=n)
                axis.errorbar(steps, values.mean("path"), values.std("path"), marker="o",
                              markersize=3, color=colour, label=f"n = {n}")  # fmt: skip
            if name == "gaussian":
                axis.plot(steps, exact, "k--", linewidth=1, label="infinite n")
            axis.set_xscale("log")
            plain_ticks(axis, (0.01, 0.02, 0.05, 0.1, 0.2), (0.009, 0.35))
            axis.set_title(f"{name}, d = 2")
            axis.set_xlabel("Step h")
            axis.set_xticks(steps, [f"{h:g}" for h in steps])
            axis.set_xticks([], minor=True)
            axis.legend(loc="lower right", fontsize=7)
        axes.flat[0].set_ylabel("Deficit of the variance")
        last = axes.flat[2]
        marks = dict(zip(table["scale"].values, "os^vD", strict=False))
        for d, mark in marks.items():
            part = table.sel(scale=d)
            last.semilogx(part["scale_ess"].values.ravel(), part["scale_variance"].values.ravel(),
                          mark, markersize=4, label=f"d = {d}")  # fmt: skip
        last.axvline(30, color="0.6", linewidth=0.8)
        last.set_xlabel("Effective tokens")
        last.set_title("laplace: variance / exact")
        last.set_ylim(0, 1.05)
        last.legend(loc="upper left", fontsize=7)
    return figure


def absorption_figure(table: "Dataset", bound: float, h: float) -> "Figure":
    """Spread of a cloud absorbed at step h, and variance against beta lambda^2 h."""
    from matplotlib.lines import Line2D

    from wflow.plots.figure import PAGE, grid, style

    with style():
        figure, axes = grid(1, 2, PAGE, 2.8)
        left, right = axes.flat
        k, flat = table["k"].values[1:], table["spread"].sel(f="flat")
        for kernel, dash in zip(table["kernel"].values, ("-", "--", ":"), strict=True):
            left.loglog(k, flat.sel(kernel=kernel)[1:], dash, label=f"f = 0, {kernel}")
        first = float(flat.sel(kernel="exact")[0])
        left.loglog(k, (first**-2 + k / (2 * h)) ** -0.5, "k-.", linewidth=0.8,
                    label="theory, f = 0")  # fmt: skip
        left.loglog(k, np.maximum(table["spread"].sel(kernel="exact", f="quadratic")[1:], 1e-6),
                    color="0.5", label="f quadratic, exact")  # fmt: skip
        left.set_ylim(1e-4, 10)
        left.set_xlabel("Step k")
        left.set_ylabel(r"Spread of a cloud in $|x_i| \leq \lambda h$")
        left.legend(loc="upper right", fontsize=7)
        shades = dict(zip(table["d"].values, ("#0b3c5d", "#c1440e", "#999999"), strict=False))
        marks = dict(zip(table["target"].values, "os^", strict=False))
        for name, mark in marks.items():
            for d, shade in shades.items():
                part = table.sel(target=name, d=d, sampler="brwp")
                right.semilogx(part["bound"], part["variance"].isel(budget=-1), mark, color=shade,
                               markersize=4)  # fmt: skip
        right.axvline(bound, color="0.6", linewidth=0.8)
        right.set_ylim(-0.05, 1.5)
        ticks = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
        right.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        right.set_xticks([], minor=True)
        right.set_xlabel(r"$\beta \lambda^2 h$")
        right.set_ylabel("Variance / exact")
        keys = [("k", mark, name) for name, mark in marks.items()]
        keys += [(shade, "o", f"d = {d}") for d, shade in shades.items()]
        handles = [Line2D([], [], color=c, marker=m, ls="", label=text) for c, m, text in keys]
        right.legend(handles=handles, loc="upper right", ncols=2, fontsize=7, columnspacing=1)
    return figure
