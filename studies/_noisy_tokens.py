"""Statistics, tables and figure of the study `noisy_tokens`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import stationary, study

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

STARTS = ("uniform", "cluster")


def order_of(file: Path) -> tuple[NDArray, NDArray]:
    """Times and order parameters (paths, times) of a run, freed of their bias for finite n.

    The mean of <x_i, x_j> over pairs of different tokens is (n |mean token|^2 - 1)/(n - 1), and
    estimates the square of the order parameter.
    """
    with wflow.open(file) as run:
        n = run.sizes["token"]
        mean = run["tokens"].mean("token").values
        square = (n * np.einsum("pta,pta->pt", mean, mean) - 1) / (n - 1)
        return run["snapshot"].values, square


def expected_order(flags: Any, ratio: float) -> float:
    """Order of the stationary law; above the critical diffusion, that of n tokens' fluctuations.

    The mean token m of n tokens in the uniform law follows an Ornstein-Uhlenbeck process of rate
    (d - 1)(kappa - critical) and E |m|^2 = (1/n) kappa/(kappa - critical).
    """
    if ratio <= 1:
        return stationary.stationary_order(flags.beta, flags.d, ratio * flags.critical, flags.flow)
    return float(min(1.0, 1 / np.sqrt((flags.n - 1) * (ratio - 1))))


def uniformity(file: Path) -> tuple[float, float]:
    """Smallest p-value of Kolmogorov-Smirnov tests of every coordinate, times their number."""
    from scipy.stats import beta, kstest

    with wflow.open(file) as run:
        tokens = run["tokens"].values[0, -1]
    d = tokens.shape[1]
    law = beta((d - 1) / 2, (d - 1) / 2)  # of (1 + x_k)/2 for a uniform token
    tests = [kstest((1 + tokens[:, k]) / 2, law.cdf) for k in range(d)]
    return min(1.0, d * min(t.pvalue for t in tests)), max(t.statistic for t in tests)


def listed(values: NDArray, errors: NDArray) -> str:
    """Write values with their errors in a line."""
    return ", ".join(f"{v:.2g} ± {e:.1g}" for v, e in zip(values, errors, strict=True))


def report(flags: Any, budget: "xr.Dataset", order: "xr.Dataset") -> str:
    """Write the two tables."""
    cells = {"dt": [f"{dt:g}" for dt in budget["dt"].values]}
    titles = {"energy_change": "E(T) - E(0)", "work_diffusion": "diffusion of tokens"}
    titles |= {"martingale_tokens": "martingale of tokens", "edi_residual": "residual"}
    for name, title in titles.items():
        pairs = zip(budget[name].values, budget[f"{name}_error"].values, strict=True)
        cells[title] = [f"{mean:.4f} ± {error:.1g}" for mean, error in pairs]
    mean = order["order"].mean("path")
    columns = {"kappa / critical": [f"{r:g}" for r in flags.ratios]}
    for start in STARTS:
        columns[f"from {start}"] = [f"{v:.3f}" for v in mean.sel(start=start).values]
    columns["theory"] = [f"{v:.3f}" for v in order["theory"].values]
    return (
        f"Energy balance, {flags.ledger_heads} Ornstein-Uhlenbeck heads, n = {flags.n // 10}, "
        f"d = {flags.d}, kappa = {flags.ledger_kappa:g}, T = {flags.ledger_t:g}, mean ± standard "
        f"error over {flags.ledger_paths} paths:\n\n{study.markdown_table(cells)}\n\n"
        f"Order parameter, one head D = {flags.beta:g} I, ascent, {flags.flow}, n = {flags.n}, "
        f"d = {flags.d}, mean over t >= T/2 and {flags.paths} paths; critical kappa "
        f"{flags.critical:.4f}:\n\n{study.markdown_table(columns)}"
    )


def order_figure(flags: Any, order: "xr.Dataset", files: dict[str, Path]) -> "Figure":
    """Order parameter against diffusion with the theory's curve, and over time."""
    from matplotlib import colormaps
    from matplotlib.lines import Line2D

    from wflow.plots.figure import PAGE, grid, style, time_axis

    with style():
        figure, axes = grid(1, 2, PAGE, 2.8)
        left, right = axes.flat
        for low, high, dash, label in (
            (min(flags.ratios), min(1.0, max(flags.ratios)), "-", "stationary law"),
            (max(1.05, min(flags.ratios)), max(flags.ratios), "--", "fluctuations of $n$ tokens"),
        ):
            if low < high:
                span = np.linspace(low, high, 60)
                curve = [expected_order(flags, r) for r in span]
                left.plot(span, curve, color="0.4", linestyle=dash, label=label)
        left.axvline(1.0, color="0.7", linewidth=0.8, linestyle=":")
        looks = {"uniform": ("o", "#0072B2", 7.5), "cluster": ("s", "#D55E00", 4.0)}
        for start, (marker, colour, size) in looks.items():
            values = order["order"].sel(start=start)
            error = values.std("path", ddof=1) / np.sqrt(flags.paths) if flags.paths > 1 else None
            left.errorbar(
                flags.ratios, values.mean("path"), yerr=error, fmt=marker, color=colour,
                markerfacecolor="none", markersize=size, capsize=2, label=f"from {start}",
            )  # fmt: skip
        left.set_xlabel(r"Diffusion $\kappa$ / critical $\kappa$")
        left.set_ylabel("Order parameter")
        left.set_ylim(-0.03, 1.03)
        left.legend(loc="upper right", handlelength=2.4)
        left.set_title(
            rf"{flags.flow}, ascent, $D = {flags.beta:g}\, I$, $n$ = {flags.n}, $d$ = {flags.d}"
        )
        for k, ratio in enumerate(flags.ratios):
            shade = colormaps["viridis"](0.85 * k / max(1, len(flags.ratios) - 1))
            for start, line in zip(STARTS, ("-", "--"), strict=True):
                times, square = order_of(files[f"ratio_{ratio:g}_from_{start}"])
                mean = np.sqrt(np.maximum(square.mean(axis=0), 0.0))
                name = f"{ratio:g}" if start == "uniform" else None
                right.plot(times, mean, color=shade, linestyle=line, linewidth=1, label=name)
                if len(square) > 1:
                    error = square.std(axis=0, ddof=1) / np.sqrt(len(square))
                    ends = square.mean(axis=0) + np.outer((-1, 1), error)
                    right.fill_between(times, *np.sqrt(np.maximum(ends, 0.0)), color=shade,
                                       alpha=0.15, linewidth=0)  # fmt: skip
        right.set_ylim(-0.03, 1.03)
        right.set_ylabel("Order parameter")
        time_axis(right)
        right.set_title(f"Mean of {flags.paths} paths; band: ± standard error")
        handles, names = right.get_legend_handles_labels()
        for start, line in zip(STARTS, ("-", "--"), strict=True):
            look: dict[str, Any] = {"color": "0.35", "linestyle": line, "linewidth": 1}
            handles.append(Line2D([], [], **look))
            names.append(f"from {start}")
        figure.legend(handles, names, title=r"$\kappa$ / critical", loc="outside right upper")
    return figure
