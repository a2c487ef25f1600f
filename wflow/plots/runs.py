"""Figures from the Dataset of a run: tokens, upper gradient, energy balance.

Every function takes data and returns a `matplotlib.figure.Figure`; nothing is drawn on a screen,
no global state of matplotlib is touched, and matplotlib is imported when the first figure is made.
Curves differ by line style, marker and lightness, not by hue alone, so that they survive a
greyscale print.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import reals, shown, whole, wholes
from wflow._core.errors import InputError
from wflow.plots.figure import (
    COLUMN,
    at_end,
    band_note,
    check_run,
    config,
    curve,
    facts,
    grid,
    head_count,
    last_mean,
    log_axis,
    mean_text,
    minus,
    save,
    series,
    spaced,
    style,
    time_axis,
)
from wflow.plots.tokens import token_snapshots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

    from wflow.analysis.fits import PowerLaw

__all__ = [
    "energy_balance",
    "gradient_against_heads",
    "gradient_over_time",
    "plot_run",
    "token_snapshots",
]

# Okabe and Ito's palette, ordered so that neighbours in a plot differ in lightness as well.
_TERMS: dict[str, dict[str, Any]] = {
    "energy": {"color": "#000000", "linestyle": "-", "linewidth": 1.9},
    "work_weights": {"color": "#0072B2", "linestyle": (0, (6, 2))},
    "work_ito": {"color": "#56B4E9", "linestyle": (0, (6, 1.5, 1, 1.5)), "marker": "s"},
    "work_diffusion": {"color": "#009E73", "linestyle": (0, (4, 1, 1, 1)), "marker": "v"},
    "martingale": {"color": "#A0527F", "linestyle": (0, (2.5, 1.2)), "marker": "D"},
    "dissipated": {"color": "#D55E00", "linestyle": "-", "marker": "o"},
    "upper_gradient": {"color": "#E69F00", "linestyle": (0, (1, 1.2)), "marker": "^"},
}
_MARKERS = "osD^vP*X<>"
_BALANCE = (
    "energy",
    "work_weights",
    "work_ito",
    "martingale",
    "dissipated",
    "dissipated_upper_gradient",
    "edi_residual",
    "edi_residual_upper_gradient",
)


def gradient_over_time(datasets: Mapping[int, Dataset], name: str = "upper_gradient_sq") -> Figure:
    """Draw G^2(t) = (1/n) sum_i b(x_i) |v_i|^2 on a log scale, one curve per head count.

    Parameters
    ----------
    datasets : head count -> run; mean over its paths. The band of a single run holds the middle
        80 % of its paths; several runs have bands of ± one standard error, which overlap less
    name : variable (path, time) to draw; `speed_sq` for runs without an energy

    Source: [MHT] figure 2, left.
    """
    from matplotlib import colormaps

    if not isinstance(datasets, Mapping) or not datasets:
        raise InputError(f"datasets is {shown(datasets)}: expected a dict from head counts to runs")
    for heads, ds in datasets.items():
        check_run(ds, f"datasets[{whole(heads, 'head count')}]")
    if not isinstance(name, str):
        raise InputError(f"name is {shown(name)}: expected the name of a series of the run")
    label = {
        "upper_gradient_sq": "squared upper gradient $G^2$",
        "speed_sq": r"mean squared speed $\Sigma_i |v_i|^2 / n$",
    }.get(name, name)
    with style():
        figure, axes = grid(1, 1, 5.0 if len(datasets) > 1 else COLUMN, 2.8)
        axis = axes.flat[0]
        several, bands = len(datasets) > 1, False
        for k, (heads, ds) in enumerate(sorted(datasets.items())):
            time, values = series(ds, name)
            # Zero, and what a run cut short did not record, have no place on a log scale.
            values = np.where(values > 0, values, np.nan)
            colour = colormaps["viridis"](0.84 * k / max(len(datasets) - 1, 1))
            bands |= values.shape[0] > 1
            curve(
                axis,
                time,
                values,
                label=f"{heads}",
                color=colour,
                # Dashes are lost in noisy curves: lightness and markers distinguish them.
                marker=_MARKERS[k % len(_MARKERS)] if several else "",
                markersize=5.5,
                markeredgecolor="white",
                markeredgewidth=0.6,
                markevery=spaced(len(time), 6, k, len(datasets)),
                linewidth=0.9,
                band="error" if several else "percentiles",
                band_alpha=0.25,
            )
        axis.set_yscale("log")
        log_axis(axis)
        axis.set_ylabel(label)
        time_axis(axis)
        one = next(iter(datasets.values()))
        title = facts(one, heads=not several)
        if bands:
            title += band_note("error" if several else "percentiles")
        # A figure of one column is too narrow for all of it in a line.
        axis.set_title(title if several else title.replace("; ", "\n"))
        if several:
            figure.legend(title="heads $H$", loc="outside right upper", labelspacing=0.55)
    return figure


def gradient_against_heads(
    heads: Sequence[int],
    values: ArrayLike,
    fit: PowerLaw | None = None,
    fit_from: int = 1,
) -> Figure:
    """Draw the time-averaged G^2 against the head count H, with the fit a H^b.

    Parameters
    ----------
    heads : (runs,) head counts
    values : (runs, paths) averages of G^2 over time, per path
    fit : power law through the means over the paths (`wflow.fits.power_law`), None for no line
    fit_from : smallest head count that took part in the fit; the others are drawn hollow

    Source: [MHT] eq. 151 and figure 2, right.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    x, y = wholes(heads, "heads", least=1).astype(float), reals(values, "values", finite=False)
    if y.ndim != 2 or y.shape[0] != len(x) or not y.size:
        raise InputError(f"values has shape {y.shape}, expected (runs, paths) = ({len(x)}, ...)")
    fit_from = whole(fit_from, "fit_from")
    if fit is not None and not callable(getattr(fit, "band", None)):
        raise InputError(f"fit is {shown(fit)}: expected a wflow.fits.power_law, or None")
    if fit is not None and fit_from > x.max():
        raise InputError(f"fit_from is {shown(fit_from)}, above all head counts: no fit is drawn")
    if np.abs(y).max(initial=0.0) > 1e150:
        raise InputError("values are beyond 1e150: their spread leaves the range of doubles")
    paths = y.shape[1]
    mean = y.mean(axis=1)
    with style():
        figure, axes = grid(1, 1, COLUMN, 2.8)
        axis = axes.flat[0]
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        if fit is not None:
            _fit_line(axis, x[x >= fit_from], fit)
            axis.set_title(_fit_text(fit, fit_from), linespacing=1.3)
        if paths > 1:
            axis.plot(np.repeat(x, paths), y.ravel(), ".", color="0.72", markersize=2.5, zorder=1.5)
            axis.plot([], [], ".", color="0.6", markersize=4, label="one path each")
        error = y.std(axis=1, ddof=1) / math.sqrt(paths) if paths > 1 else None
        label = "mean ± standard error" if paths > 1 else "one path"
        for part, fill in ((x >= fit_from, "#000000"), (x < fit_from, "white")):
            if part.any():
                axis.errorbar(
                    x[part],
                    mean[part],
                    yerr=None if error is None else error[part],
                    fmt="o",
                    color="#000000",
                    markerfacecolor=fill,
                    markersize=4,
                    capsize=2.5,
                    elinewidth=0.9,
                    zorder=3,
                    label=label if fill != "white" else "left out of the fit",
                )
        axis.set_xlim(x.min() / 1.35, x.max() * 1.35)
        ticks = x if len(x) <= 9 else x[:: math.ceil(len(x) / 8)]
        axis.xaxis.set_major_locator(FixedLocator(list(ticks)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_xlabel("number of heads $H$")
        axis.set_ylabel("time-averaged $G^2$")
        log_axis(axis)
        axis.legend(loc="best", handlelength=2.2)
    return figure


def energy_balance(ds: Dataset) -> Figure:
    """Draw every term of the energy balance, and below it the residuals.

    E(t) - E(0) = int weight_power + int ito_power - int dissipation + martingale + residual; the
    second residual has +-G^2 in place of the dissipation (docs/theory/energy.md). Where
    the drift of the weights and the Itô correction dwarf the rest, a panel shows them summed. The
    residuals have a separate panel and scale, so that one a hundred times smaller is visible.

    Parameters
    ----------
    ds : run with the variables of the energy budget (path, time)

    Source: [MHT] eq. 148 and figure 3.
    """
    check_run(ds)
    s = 1 if config(ds).get("direction") == "ascent" else -1
    time, energy = series(ds, "energy")
    martingale, diffusion = series(ds, "martingale")[1], []
    if "work_diffusion" in ds:
        martingale = martingale + series(ds, "martingale_tokens")[1]
        diffusion = [("work_diffusion", "diffusion of tokens", series(ds, "work_diffusion")[1])]
    # Ascent: the dissipation is negative, so that minus its integral is what the energy gains.
    terms = [
        ("energy", "energy change $E(t) - E(0)$", energy - energy[:, :1]),
        ("work_weights", "weight drift", series(ds, "work_weights")[1]),
        ("work_ito", "Itô correction", series(ds, "work_ito")[1]),
        *diffusion,
        ("martingale", "martingale", martingale),
        ("dissipated", r"$-\int$ dissipation", -series(ds, "dissipated")[1]),
        (
            "upper_gradient",
            rf"${'+' if s > 0 else '-'}\int G^2$",
            s * series(ds, "dissipated_upper_gradient")[1],
        ),
    ]
    # Terms that vanish identically (frozen or deterministic heads) would only crowd the legend.
    terms = [t for t in terms if t[0] == "energy" or np.nanmax(np.abs(t[2]), initial=0.0) > 0]
    panels = [("energy", "terms", terms)]
    weights = [t for t in terms if t[0] in ("work_weights", "work_ito")]
    if len(weights) == 2:
        # Drift and Itô correction nearly cancel and dwarf the rest: their sum beside the others.
        net = ("work_weights", "weight drift + Itô", weights[0][2] + weights[1][2])
        rest = [t for t in terms if t[0] not in ("work_weights", "work_ito")]
        panels.append(("energy", "the same, weights summed", [net, *rest]))
    for _, _, curves in panels:
        curves.sort(key=lambda term: -last_mean(term[2]))  # the legend in the order of the curves
    residuals = [
        ("dissipated", "with dissipation", series(ds, "edi_residual")[1]),
        ("upper_gradient", "with $G^2$", series(ds, "edi_residual_upper_gradient")[1]),
    ]
    panels.append(("residual", "residual at the end", residuals))
    count = len(panels)
    with style():
        ratios = [1.7, 1] if count == 2 else [1.3, 1.3, 1]
        figure, axes = grid(count, 1, 6.0, 1.2 + 1.55 * count, height_ratios=ratios, sharex=True)
        for axis, (name, title, curves) in zip(axes.flat, panels, strict=True):
            axis.axhline(0, color="0.6", linewidth=0.5, zorder=0)
            for k, (key, label, values) in enumerate(curves):
                if name == "residual":
                    label += f"\n{mean_text(at_end(values))}"
                curve(
                    axis,
                    time,
                    values,
                    label=label,
                    band_alpha=0.13,
                    markevery=spaced(len(time), 7, k, len(curves)),
                    **_TERMS[key],
                )
            axis.legend(
                title=title, loc="upper left", bbox_to_anchor=(1.01, 1.04), alignment="left"
            )
            axis.set_ylabel(name)
        time_axis(axes.flat[-1])
        note = band_note("percentiles") if energy.shape[0] > 1 else ""
        axes.flat[0].set_title(facts(ds) + note)
        figure.align_ylabels()
    return figure


def plot_run(ds: Dataset, out_dir: str | Path) -> list[Path]:
    """Write every figure that one run allows, as PNG and PDF, and return where they are.

    A run with an energy: tokens, G^2 over time, energy balance. A run without one (general heads):
    tokens and the mean squared speed.
    """
    check_run(ds)
    return [file for stem, figure in run_figures(ds) for file in save(figure, out_dir, stem)]


def run_figures(ds: Dataset) -> Iterator[tuple[str, Figure]]:
    """The figures of `plot_run`, each with the name of its files."""
    prefix = f"{_stem(ds)}_"
    if "tokens_mean" in ds and ds.sizes.get("path", 1) > 1:
        yield prefix + "tokens_mean", token_snapshots(ds)
    if "tokens" in ds and ds["tokens"].size:
        path = int(ds["snapshot_path"].values[0])
        yield f"{prefix}tokens_path{path}", token_snapshots(ds, which=path)
    heads = {head_count(ds): ds}
    gradient = "upper_gradient_sq" if "upper_gradient_sq" in ds else "speed_sq"
    stem = "gradient_over_time" if gradient != "speed_sq" else "speed"
    if gradient in ds and _finite(ds, [gradient], stem):
        yield prefix + stem, gradient_over_time(heads, gradient)
    if set(_BALANCE) & set(ds) and _finite(ds, _BALANCE, "energy_balance"):
        yield prefix + "energy_balance", energy_balance(ds)


def _stem(ds: Dataset) -> str:
    """Name of the run's file without its ending, `run` for a run in memory."""
    source = ds.encoding.get("source")
    if not source:
        return "run"
    name = Path(Path(source).name.removesuffix(".partial"))
    # dt0.01, without an ending, must not become dt0.
    return name.name if name.suffix[1:].isdigit() else name.stem


def _finite(ds: Dataset, names: Sequence[str], figure: str) -> bool:
    """Whether the variables of a figure are there and not all infinite; warns where not."""
    missing = [name for name in names if name not in ds]
    reason = f"the run lacks {', '.join(missing)}" if missing else ""
    if not missing and not any(np.isfinite(series(ds, name)[1]).any() for name in names):
        reason = f"no value of {', '.join(names)} is finite"
    if reason:
        what = figure.replace("_", " ")
        warnings.warn(f"the figure of the {what} is not drawn: {reason}", stacklevel=3)
    return not reason


def _fit_line(axis: Axes, x: NDArray, fit: PowerLaw) -> None:
    span = np.geomspace(x.min() / 1.2, x.max() * 1.2, 100)
    axis.plot(
        span,
        fit.prefactor * span**fit.exponent,
        color="#0072B2",
        linestyle=(0, (6, 1.5)),
        linewidth=1.1,
        zorder=2,
        label=r"fit $a\,H^{\,b}$",
    )
    below, above = fit.band(span)
    if np.isfinite(below).all():
        axis.fill_between(span, below, above, color="#56B4E9", alpha=0.35, linewidth=0, zorder=1)


def _fit_text(fit: PowerLaw, fit_from: int) -> str:
    start = f", $H$ ≥ {fit_from}" if fit_from > 1 else ""
    lines = [f"$a\\,H^{{\\,b}}${start}: $a$ = {fit.prefactor:.3g}, $b$ = {fit.exponent:.3f}"]
    # Two points are always in line: a correlation would only look like evidence.
    if fit.points > 2 and math.isfinite(fit.pearson):
        lines[0] += f", Pearson {fit.pearson:.4f}"
    if math.isfinite(fit.exponent_ci[0]):
        percent = f"{100 * fit.level:.0f} % interval of"
        low, high = fit.prefactor_ci
        lines.append(f"{percent} $a$: {low:.3g} to {high:.3g}")
        low, high = fit.exponent_ci
        lines.append(f"{percent} $b$: {low:.3f} to {high:.3f}")
    return minus("\n".join(lines))
