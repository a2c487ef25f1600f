"""Tables and figures of the study `rwpo_sampler`."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow import study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

COLOURS = {"brwp": "#0b3c5d", "myula": "#c1440e", "ula": "#5c8a3a"}


def rows(
    table: "Dataset", dims: dict[str, str], cells: dict[str, Callable[["Dataset"], str]]
) -> list[dict[str, str]]:
    """A row for all labels of some dimensions, title -> dimension, and cells made of its part."""
    found = []
    for labels in product(*(table[dim].values.tolist() for dim in dims.values())):
        part = table.sel(dict(zip(dims.values(), labels, strict=True)))
        row = {t: v if isinstance(v, str) else f"{v:g}" for t, v in zip(dims, labels, strict=True)}
        found.append(row | {title: cell(part) for title, cell in cells.items()})
    return found


def mean(name: str, style: str = ".3f", **places: Any) -> Callable[["Dataset"], str]:
    """A cell with the mean of a variable, at some labels."""
    return lambda part: f"{float(part[name].sel(places).mean()):{style}}"


def pair(name: str) -> Callable[["Dataset"], str]:
    """A cell with mean and standard deviation."""
    return lambda part: f"{float(part[name].mean()):.3f} ± {float(part[name].std()):.3f}"


def report(table: "Dataset", chosen: "Dataset", exact: Sequence[float]) -> str:
    """The tables; `exact` is the deficit of infinitely many tokens of a Gaussian at every h."""
    samplers, budgets = table["sampler"].values.tolist(), table["budget"].values
    infinite = dict(zip(table["h"].values.tolist(), exact, strict=True))

    def best(sampler: str) -> Callable[["Dataset"], str]:
        def cell(part: "Dataset") -> str:
            value, step, ratio = (float(part[key].sel(sampler=sampler))
                                  for key in ("value", "chosen", "ratio"))  # fmt: skip
            return f"{value:.3f} (h L = {step:g}, variance {ratio:.2f})"

        return cell

    shown = chosen.sel(budget=np.unique(budgets[[2, -3, -1]])).assign(floors=table["sliced_floor"])
    end = table.assign(last=table["variance"].isel(budget=-1))
    tables = {
        f"Sliced W2 to the target at equal gradient evaluations of each of n = "
        f"{table.attrs['tokens']} tokens, at the best of the steps; floor: two independent samples "
        "of n:": rows(
            shown, {"target": "target", "d": "d", "gradients": "budget"},
            {sampler: best(sampler) for sampler in samplers} | {"floor": pair("floors")},
        ),
        f"W2 after {budgets[-1]} steps, and variance over the exact one:": rows(
            end, {"target": "target", "d": "d", "h L": "step"},
            {"beta lambda^2 h": mean("bound", ".3g", sampler="brwp")}
            | {f"W2 {sampler}": mean("w2", sampler=sampler) for sampler in samplers}
            | {"floor": mean("w2_floor")}
            | {f"variance {sampler}": mean("last", sampler=sampler) for sampler in samplers[:2]}
            | {"ESS": mean("ess", ".1f", sampler="brwp"),
               "absorbed": mean("absorbed", ".2f", sampler="brwp")},
        ),
        "BRWP against h and n in the plane, from exact samples on, over three samples:": rows(
            table, {"target": "smooth", "n": "n", "h": "h"},
            {"deficit of the variance": pair("deficit"),
             "infinite n": lambda part: (
                 f"{infinite[float(part['h'])]:.3f}" if part["smooth"] == "gaussian" else ""
             ),
             "sliced W2": pair("bias_sliced"), "floor": mean("bias_floor"),
             "ESS": mean("bias_ess", ".0f")},
        ),
        "BRWP against the dimension (Gaussian times Laplace):": rows(
            table, {"d": "scale", "n": "count", "h": "h_scale"},
            {"ESS": mean("scale_ess", ".1f"), "variance": mean("scale_variance", ".2f")},
        ),
        "BRWP against the temperature (Gaussian times Laplace, d = 2):": rows(
            table, {"beta": "beta"},
            {"h": lambda part: f"{0.05 / max(1.0, float(part['beta'])):g}",
             "sliced W2 / standard deviation": mean("beta_sliced"), "floor": mean("beta_floor"),
             "variance": mean("beta_variance"), "ESS": mean("beta_ess", ".0f")},
        ),
        "Milliseconds of a step (lasso):": rows(
            1e3 * table[["seconds"]], {"d": "cost_d", "n": "cost_n"},
            {sampler: mean("seconds", ".2f", cost_sampler=sampler) for sampler in samplers},
        ),
    }  # fmt: skip
    return "\n\n".join(
        part for title, found in tables.items() for part in (title, study.markdown_table(found))
    )


def against_gradients(table: "Dataset", chosen: "Dataset") -> "Figure":
    """Sliced W2 against gradient evaluations, one panel for each target and dimension."""
    from wflow.plots.figure import PAGE, grid, legend_below, style

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
                axis.set_ylim(0.03, 0.9)
                plain_ticks(axis.yaxis, (0.03, 0.05, 0.1, 0.2, 0.5))
        for axis in axes[-1]:
            axis.set_xlabel("Gradient evaluations of a token")
        for axis in axes[:, 0]:
            axis.set_ylabel("Sliced $W_2$")
        legend_below(figure, axes[0, 0], ncols=4)
    return figure


def plain_ticks(axis: Any, ticks: Any) -> None:
    """Ticks of a logarithmic axis of Matplotlib, an `XAxis` or `YAxis`, as plain numbers."""
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


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
            axis.set(xscale="log", yscale="log", ylim=(0.009, 0.35), title=f"{name}, d = 2",
                     xlabel="Step h")  # fmt: skip
            plain_ticks(axis.xaxis, steps)
            plain_ticks(axis.yaxis, (0.01, 0.02, 0.05, 0.1, 0.2))
            axis.legend(loc="lower right", fontsize=7)
        axes.flat[0].set_ylabel("Deficit of the variance")
        last = axes.flat[2]
        marks = dict(zip(table["scale"].values, "os^vD", strict=False))
        for d, mark in marks.items():
            part = table.sel(scale=d)
            last.semilogx(part["scale_ess"].values.ravel(), part["scale_variance"].values.ravel(),
                          mark, markersize=4, label=f"d = {d}")  # fmt: skip
        last.axvline(30, color="0.6", linewidth=0.8)
        last.set(xlabel="Effective tokens", title="laplace: variance / exact", ylim=(0, 1.05))
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
        left.set(xlabel="Step k", ylabel=r"Spread of a cloud in $|x_i| \leq \lambda h$",
                 ylim=(1e-4, 10))  # fmt: skip
        left.legend(loc="upper right", fontsize=7)
        shades = dict(zip(table["d"].values, ("#0b3c5d", "#c1440e", "#999999"), strict=False))
        marks = dict(zip(table["target"].values, "os^", strict=False))
        for name, mark in marks.items():
            for d, shade in shades.items():
                part = table.sel(target=name, d=d, sampler="brwp")
                right.semilogx(part["bound"], part["variance"].isel(budget=-1), mark, color=shade,
                               markersize=4)  # fmt: skip
        right.axvline(bound, color="0.6", linewidth=0.8)
        right.set(xlabel=r"$\beta \lambda^2 h$", ylabel="Variance / exact", ylim=(-0.05, 1.5))
        plain_ticks(right.xaxis, (0.01, 0.02, 0.05, 0.1, 0.2, 0.4))
        keys = [("k", mark, name) for name, mark in marks.items()]
        keys += [(shade, "o", f"d = {d}") for d, shade in shades.items()]
        handles = [Line2D([], [], color=c, marker=m, ls="", label=text) for c, m, text in keys]
        right.legend(handles=handles, loc="upper right", ncols=2, fontsize=7, columnspacing=1)
    return figure
