"""Tables and figures of the studies `stability_weights` and `stability_tokens`."""

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow import stability, study
from wflow.analysis.fits import PowerLaw, mean_and_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset


FloatArray = NDArray[np.float64]
Fits = dict[tuple[str, str], PowerLaw]


def weights_report(flags: Any, table: "Dataset", fits: Fits) -> str:
    """The tables."""
    parts = [
        f"n = {flags.n}, d = {flags.d}, {flags.flow}, {flags.direction}, T = {flags.t_final:g}; "
        f"chordal W₂, mean ± standard error over {flags.paths} samples."
    ]
    heads = {
        "sampled": f"H heads sampled from a law of {flags.law_heads}:",
        "frozen": f"{flags.base_heads} frozen heads D_h + ε Z_h:",
        "ornstein-uhlenbeck": f"{flags.base_heads} Ornstein-Uhlenbeck heads D_h(t) + ε Z_h:",
    }
    for name, title in heads.items():
        x, _ = reduced(table, name, "end")
        columns = {"H" if name == "sampled" else "eps": [f"{value:g}" for value in x]}
        lines = []
        for when, label in zip(WHEN, ("W_2 at T", "largest W_2 over time"), strict=True):
            mean, error = mean_and_error(reduced(table, name, when)[1])
            columns[label] = [f"{m:.3e} ± {e:.0e}" for m, e in zip(mean, error, strict=True)]
            fit = fits[name, when]
            low, high = fit.exponent_ci
            lines.append(
                f"{label}: slope {fit.exponent:.4f} (95 % {low:.4f} to {high:.4f}), prefactor "
                f"{fit.prefactor:.4g}, Pearson {fit.pearson:.5f}"
            )
        parts += [title, study.markdown_table(columns), "\n".join(lines)]
    return "\n\n".join(parts)


def weights_figure(flags: Any, table: "Dataset", fits: Fits) -> "Figure":
    """W₂ against H and against ε, with the fits and the predicted slopes."""
    from wflow.plots.figure import PAGE, grid, log_axis, minus, style

    panels = [
        (["sampled"], "Number of heads $H$", f"Heads sampled from {flags.law_heads}"),
        (["frozen", "ornstein-uhlenbeck"], r"Size of the perturbation $\varepsilon$",
         f"{flags.base_heads} heads $D_h + \\varepsilon Z_h$"),
    ]  # fmt: skip
    looks: dict[str, dict[str, Any]] = {
        "sampled": {"color": "#0072B2", "marker": "o"},
        "frozen": {"color": "#D55E00", "marker": "s"},
        "ornstein-uhlenbeck": {"color": "#009E73", "marker": "D"},
    }
    with style():
        figure, axes = grid(1, 2, PAGE, 3.0)
        for axis, (names, label, title) in zip(axes.flat, panels, strict=True):
            for name in names:
                x, y = reduced(table, name, "end")
                fit, (mean, error) = fits[name, "end"], mean_and_error(y)
                line = np.geomspace(x.min(), x.max(), 50)
                known = {"frozen": "frozen", "ornstein-uhlenbeck": "Ornstein-Uhlenbeck"}
                text = minus(f"slope {fit.exponent:.3f}")
                text = f"{known[name]}: {text}" if name in known else text
                axis.fill_between(line, *fit.band(line), color=looks[name]["color"], alpha=0.2,
                                  linewidth=0)  # fmt: skip
                axis.plot(line, fit(line), color=looks[name]["color"], linewidth=0.9)
                axis.errorbar(x, mean, 2 * error, linestyle="none", capsize=2, label=text,
                              **looks[name])  # fmt: skip
            slope = PREDICTED[names[0]]
            lowest = reduced(table, names[-1], "end")[1].mean(axis=1)[0] * 0.4
            axis.plot(x, lowest * (x / x[0]) ** slope, color="#333333", linewidth=0.9,
                      linestyle=(0, (4, 2)), label=minus(f"predicted slope {slope:g}"))  # fmt: skip
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel(label)
            axis.set_title(title)
            axis.legend(loc="upper right" if slope < 0 else "upper left")
            log_axis(axis)
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (1.5 if slope < 0 else 6))  # space for the legend
        axes[0, 0].set_xticks(flags.heads, [str(h) for h in flags.heads])
        axes[0, 0].minorticks_off()
        axes[0, 0].set_ylabel("$W_2$ between the flows at $T$")
        figure.suptitle(
            f"$n$ = {flags.n}, $d$ = {flags.d}, {flags.flow}, {flags.direction}, $T$ = "
            f"{flags.t_final:g}, {flags.paths} samples; bars: ± 2 standard errors",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return figure


PREDICTED = {"sampled": -0.5, "frozen": 1.0, "ornstein-uhlenbeck": 1.0}


WHEN = ("end", "largest")


def reduced(table: "Dataset", name: str, when: str) -> tuple[FloatArray, FloatArray]:
    """Abscissae, and W₂ (abscissae, paths) at the end or the largest over time."""
    values = table[f"w2_{name}"]
    values = values.isel(time=-1) if when == "end" else values.max("time")
    return table[values.dims[0]].values.astype(float), values.values


def report(flags: Any, table: "Dataset") -> str:
    """The table."""
    titles = ("heads", "direction", "size", "mean L", "largest rate", "fastest change",
              "rate (95 % interval)", "max W_2(t)/W_2(0)", "bound at T", "holds")  # fmt: skip
    rows: dict[str, list[str]] = {title: [] for title in titles}
    allowed = mean_constant(table)
    for (w, weights), (s, direction), (k, size) in product(
        enumerate(WEIGHTS), enumerate(DIRECTIONS), enumerate(flags.sizes)
    ):
        at = table.isel(weights=w, direction=s, size=k)
        ratio = at["w2_chordal"] / at["w2_chordal"].isel(time=0)
        log_bound = float(at["exponent"].isel(time=-1).max()) / math.log(10)
        low, high = at["rate_ci"].isel(eps=0).values
        holds = np.stack([at[f"holds_{cost}"].values[..., 1:] for cost in COSTS])
        cells = (
            weights, direction, f"{size:g}", f"{allowed[w, s, k]:.3g}",
            f"{float(at['largest_rate'].max()):.3g}", f"{float(at['fastest_change'].max()):.3g}",
            f"{float(at['rate'].isel(eps=0)):.3g} ({low:.3g} to {high:.3g})",
            f"{float(ratio.max()):.3f}",
            f"{10**log_bound:.3g}" if log_bound < 6 else f"10^{log_bound:.0f}",
            f"{holds.sum()} of {holds.size}",
        )  # fmt: skip
        for title, cell in zip(titles, cells, strict=True):
            rows[title].append(cell)
    return "\n\n".join(
        (
            f"n = {flags.n}, d = {flags.d}, H = {flags.heads}, {flags.flow}, T = "
            f"{flags.t_final:g}, {flags.paths} perturbations of each size "
            f"{', '.join(f'{e:g}' for e in flags.eps)}:",
            study.markdown_table(rows),
            "Mean L: (1/T) int L ds, mean over paths. Largest rate: max over times, paths and ε "
            "of log(W₂(t)/W₂(0))/t, chordal; fastest change: of its size. Rate: slope of the "
            "mean over paths of log W₂, smallest ε. Bound: exp of the exponent. Holds: at "
            f"{flags.times} times, for each path, ε, and both costs.",
        )
    )


def growth_figure(flags: Any, table: "Dataset") -> "Figure":
    """W₂(t)/W₂(0) of each size of the weights, with the bound."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from wflow.plots.figure import PAGE, grid, log_axis, spaced, style, time_axis

    time = table["time"].values
    count = len(flags.sizes)
    dashed: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (4, 2))}
    with style():
        figure, axes = grid(2, 2, PAGE, 5.2, sharex=True, sharey="row")
        for w, weights in enumerate(WEIGHTS):
            bottom = top = 1.0
            for s, direction in enumerate(DIRECTIONS):
                axis = axes[w, s]
                for k, size in enumerate(flags.sizes):
                    at = table.isel(weights=w, direction=s, size=k)
                    ratio = at["w2_chordal"].values
                    log = np.log(ratio / ratio[..., :1])  # (eps, path, time)
                    log = log.reshape(-1, len(time))
                    middle, low, high = log.mean(axis=0), log.min(axis=0), log.max(axis=0)
                    bottom, top = min(bottom, np.exp(low).min()), max(top, np.exp(high).max())
                    colour = _colour(k, count)
                    axis.plot(time, np.exp(middle), color=colour, marker="osD^v"[k % 5],
                              markevery=spaced(len(time), 4, k, count), label=f"{size:g}",
                              zorder=3)  # fmt: skip
                    axis.fill_between(time, np.exp(low), np.exp(high), color=colour, alpha=0.15,
                                      linewidth=0)  # fmt: skip
                    growth = at["exponent"].values.mean(axis=0)
                    axis.plot(time, np.exp(np.minimum(growth, 50)), color=colour, **dashed)
                axis.set_yscale("log")
                axis.set_title(f"{NAMES[weights]} heads, {direction}")
                if w == 1:
                    time_axis(axis)
            # Most of the bounds leave the panel soon: the curves would be flat beside all of them.
            axes[w, 0].set_ylim(bottom / 1.3, 3 * top)
            log_axis(axes[w, 0])
            axes[w, 0].set_ylabel(r"$W_2(t)\,/\,W_2(0)$")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        handles += [Line2D([], [], color="0.35", **dashed), Patch(color="0.35", alpha=0.2)]
        labels += ["bound", "range of all perturbations"]
        figure.legend(handles, labels, title="Size of the weights (lines: geometric means)",
                      ncols=count + 2, loc="outside lower center", handlelength=2.4,
                      columnspacing=1.2)  # fmt: skip
        figure.suptitle(_facts(flags), fontsize=8.5, x=0.01, ha="left")
    return figure


def rate_figure(flags: Any, table: "Dataset") -> "Figure":
    """Fastest changes of W₂ and growth constants against the size of the weights."""
    from wflow.plots.figure import grid, style

    allowed = mean_constant(table)
    fastest = table["fastest_change"].max("eps").values
    with style():
        figure, axes = grid(1, 1, 5.2, 3.2)
        axis = axes[0, 0]
        for (w, weights), (s, direction) in product(enumerate(WEIGHTS), enumerate(DIRECTIONS)):
            colour = ("#0072B2", "#D55E00")[w]
            dash: Any = "-" if s == 0 else (0, (1.5, 1))
            axis.plot(flags.sizes, fastest[w, s], color=colour, marker="o^"[s], linestyle=dash,
                      label=f"{NAMES[weights]}, {direction}")  # fmt: skip
            axis.plot(flags.sizes, allowed[w, s], color=colour, linewidth=0.9,
                      linestyle=(0, (5, 2)) if s == 0 else (0, (5, 1.5, 1, 1.5)),
                      label=f"mean $L$: {NAMES[weights]}, {direction}")  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(flags.sizes, [f"{size:g}" for size in flags.sizes])
        axis.minorticks_off()
        axis.set_xlabel("Size of the weights")
        axis.set_ylabel("Rate of change per unit time")
        axis.set_title(_facts(flags))
        figure.legend(
            loc="outside lower center", ncols=2, fontsize=7,
            title=r"Markers: $\max_t\ |\log(W_2(t)/W_2(0))|\,/\,t$, largest of all perturbations; "
            "thin: constant $L$ of the bound",
        )  # fmt: skip
    return figure


def _colour(k: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.84 * k / max(count - 1, 1))


def _facts(flags: Any) -> str:
    return (
        f"$n$ = {flags.n}, $d$ = {flags.d}, $H$ = {flags.heads}, {flags.flow}, "
        f"{flags.paths * len(flags.eps)} perturbations"
    )


def mean_constant(table: "Dataset") -> FloatArray:
    """(1/T) int L ds by the trapezoidal rule, mean over paths: (weights, direction, size)."""
    L, t = table["growth_constant"].values, table["time"].values
    mean = (np.diff(t) * (L[..., 1:] + L[..., :-1]) / 2).sum(axis=-1) / (t[-1] - t[0])
    return np.asarray(mean.mean(axis=-1))


WEIGHTS = ("frozen", "ornstein-uhlenbeck")
NAMES = {"frozen": "Frozen", "ornstein-uhlenbeck": "Ornstein-Uhlenbeck"}


DIRECTIONS = ("ascent", "descent")


COSTS: tuple[stability.Cost, ...] = ("chordal", "geodesic")
