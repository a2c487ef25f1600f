"""Figures from the Dataset of a run: upper gradient, energy balance, clusters, heads.

Every function takes data and returns a figure that a notebook displays once; no global state of
Matplotlib is touched, pyplot is not used, and Matplotlib is imported when the first figure is made.
Curves differ by line style, marker and lightness, not by hue alone, so that they survive a
greyscale print.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import reals, shown, whole, wholes
from wflow._core.errors import InputError, WflowWarning, warn
from wflow.plots.densities import density_snapshots, free_energy_over_time
from wflow.plots.figure import (
    COLUMN,
    PAGE,
    Style,
    at_end,
    band_note,
    budget_advice,
    check_run,
    config,
    curve,
    evenly,
    facts,
    grid,
    head_count,
    last_mean,
    legend_below,
    log_axis,
    mean_label,
    minus,
    panel,
    require,
    save,
    series,
    shade,
    spaced,
    step_error,
    stored_path,
    time_axis,
    width_in,
)
from wflow.plots.style import style as apply
from wflow.plots.tokens import token_snapshots
from wflow.runs.schema import solve_with

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

    from wflow.analysis.fits import PowerLaw

__all__ = [
    "clusters_over_time",
    "energy_balance",
    "gradient_against_heads",
    "gradient_over_time",
    "heads_over_time",
    "plot_run",
    "token_snapshots",
]

# Okabe and Ito's palette, ordered so that neighbours in a plot differ in lightness as well.
_LOOKS: dict[str, dict[str, Any]] = {
    "energy": {"color": "#000000", "linestyle": "-", "linewidth": 1.9},
    "weights": {"color": "#0072B2", "linestyle": (0, (6, 2))},
    "drift": {"color": "#0072B2", "linestyle": (0, (6, 2))},
    "ito": {"color": "#56B4E9", "linestyle": (0, (6, 1.5, 1, 1.5)), "marker": "s"},
    "diffusion": {"color": "#009E73", "linestyle": (0, (4, 1, 1, 1)), "marker": "v"},
    "martingale": {"color": "#A0527F", "linestyle": (0, (2.5, 1.2)), "marker": "D"},
    "dissipated": {"color": "#D55E00", "linestyle": "-", "marker": "o"},
    "gradient": {"color": "#E69F00", "linestyle": (0, (1, 1.2)), "marker": "^"},
}
_MARKERS = "osD^vP*X<>"
_BALANCE = (
    "energy", "work_weights", "work_ito", "martingale", "dissipated",
    "dissipated_upper_gradient", "edi_residual", "edi_residual_upper_gradient",
)  # fmt: skip


def gradient_over_time(
    datasets: Dataset | Mapping[int, Dataset],
    name: str = "upper_gradient_sq",
    *,
    style: Style = "screen",
    ax: Axes | None = None,
) -> Figure:
    r"""Draw the squared upper gradient over time on a log scale, one curve per head count.

    Parameters
    ----------
    datasets : xarray.Dataset or dict of int to xarray.Dataset
        A run, or runs by their head counts. The curve is the mean over the paths. The band of a
        single run holds the middle 80 % of its paths; several runs have bands of ± one standard
        error of the mean, which overlap less.
    name : str, default: "upper_gradient_sq"
        Variable (path, time) to draw. Runs without an energy have ``"speed_sq"``.
    style : {"screen", "paper"}, default: "screen"
        "paper" is 3.3 inches wide, one column of a journal page. "screen" is as wide for one run,
        and 6.9 inches for several.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw in, in its own style. Default: a new figure in the style of wflow.

    Returns
    -------
    matplotlib.figure.Figure
        The new figure, or the one of `ax`.

    Raises
    ------
    InputError
        For a run that did not record the variable, and for arguments of other types.

    See Also
    --------
    gradient_against_heads : Averages over time against the number of heads.

    Notes
    -----
    The squared upper gradient of the energy is

    .. math:: G^2(t) = \frac{1}{n} \sum_i b(x_i) |v_i|^2,

    with the effective mobility :math:`b` and the velocities :math:`v_i` of the tokens; figure 2,
    left, of [1]_.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv 2605.18870, eq. 113.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(n=20, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.2, dt=0.05)
    >>> wflow.plots.gradient_over_time(run).axes[0].get_yscale()
    'log'
    """
    runs = _by_heads(datasets)
    if not isinstance(name, str):
        raise InputError(f"name is {shown(name)}: expected the name of a series of the run")
    label = {
        "upper_gradient_sq": "Squared upper gradient $G^2$",
        "speed_sq": r"Mean squared speed $\Sigma_i |v_i|^2 / n$",
    }.get(name, name)
    several = len(runs) > 1
    width = width_in(style, PAGE if several else COLUMN)
    curves = [(heads, *series(runs[heads], name)) for heads in sorted(runs)]
    bands = any(values.shape[0] > 1 for _, _, values in curves)
    with panel(ax, width, 2.8) as (figure, axis):
        for k, (heads, time, values) in enumerate(curves):
            # Zero, and what a run cut short did not record, have no place on a log scale.
            values = np.where(values > 0, values, np.nan)
            colour = shade(k, len(runs))
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
                markevery=spaced(len(time), 6, k, len(runs)),
                linewidth=0.9,
                band="error" if several else "percentiles",
                band_alpha=0.25,
            )
        axis.set_yscale("log")
        log_axis(axis)
        axis.set_ylabel(label)
        time_axis(axis)
        one = next(iter(runs.values()))
        title = facts(one, heads=not several)
        if bands:
            title += band_note("error" if several else "percentiles")
        # A figure of one column is too narrow for all of it in a line.
        axis.set_title(title if width > COLUMN else title.replace("; ", "\n"))
        if several and ax is None and width > COLUMN:
            figure.legend(title="Heads $H$", loc="outside right upper", labelspacing=0.55)
        elif several and ax is None:
            legend_below(figure, axis, 4, title="Heads $H$")
        elif several:
            axis.legend(title="Heads $H$")
    return figure


def _by_heads(given: Any) -> dict[int, Dataset]:
    """Return runs by their head counts, of one run or of a dict of runs."""
    if hasattr(given, "data_vars"):  # a Dataset is a Mapping, too
        check_run(given)
        return {head_count(given): given}
    if not isinstance(given, Mapping) or not given:
        raise InputError(
            f"datasets is {shown(given)}: expected a run, or a dict from head counts to runs"
        )
    for heads, ds in given.items():
        check_run(ds, f"datasets[{whole(heads, 'head count')}]")
    return dict(given)


def gradient_against_heads(
    heads: Sequence[int],
    values: ArrayLike,
    fit: PowerLaw | None = None,
    fit_from: int = 1,
    *,
    style: Style = "screen",
    ax: Axes | None = None,
) -> Figure:
    r"""Draw the time-averaged squared upper gradient against the number of heads, with a fit.

    Parameters
    ----------
    heads : sequence of int, shape (runs,)
        Head counts.
    values : array_like, shape (runs, paths)
        Averages of the squared upper gradient over time, per path. Each path is a grey dot, the
        mean over the paths a black one with its standard error.
    fit : wflow.fits.PowerLaw, optional
        Power law through the means over the paths, of `wflow.fits.power_law`. Default: no line.
    fit_from : int, default: 1
        Smallest head count that took part in the fit; the others are drawn hollow.
    style : {"screen", "paper"}, default: "screen"
        Size of a new figure: either one is 3.3 inches wide, one column of a journal page.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw in, in its own style. Default: a new figure in the style of wflow.

    Returns
    -------
    matplotlib.figure.Figure
        The new figure, or the one of `ax`.

    Raises
    ------
    InputError
        For values that do not fit the head counts or leave the range of doubles.

    See Also
    --------
    gradient_over_time : The curves that are averaged here.

    Notes
    -----
    For Ornstein-Uhlenbeck heads theory predicts a decay like :math:`H^{-1}`, eq. 151 and figure 2,
    right, of [1]_. The line is :math:`a H^b`; its band is that of `fit.band`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv 2605.18870.

    Examples
    --------
    >>> import wflow
    >>> heads, values = [1, 2, 4, 8], [[0.41, 0.40], [0.19, 0.21], [0.10, 0.11], [0.05, 0.05]]
    >>> fit = wflow.fits.power_law(heads, values)
    >>> figure = wflow.plots.gradient_against_heads(heads, values, fit)
    >>> figure.axes[0].get_xlabel()
    'Number of heads $H$'
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
    with panel(ax, width_in(style, COLUMN), 2.8) as (figure, axis):
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
        axis.set_xlabel("Number of heads $H$")
        axis.set_ylabel("Time-averaged $G^2$")
        log_axis(axis)
        axis.legend(loc="best", handlelength=2.2)
    return figure


def energy_balance(ds: Dataset, *, style: Style = "screen", ax: Axes | None = None) -> Figure:
    r"""Draw the terms of the energy balance over time, and below them the residuals.

    The drift of the weights and the Itô correction nearly cancel and dwarf the rest: their sum is
    drawn with the other terms, and each of them in a panel below. The residuals have a separate
    panel and scale, so that one a hundred times smaller is visible, and its title says which error
    of the steps they show. Terms that are zero throughout, or below 1 % of the largest one, are
    named and not drawn.

    Parameters
    ----------
    ds : xarray.Dataset
        Run with the variables (path, time) of the energy budget. Curves are means over the paths,
        bands hold the middle 80 % of the paths.
    style : {"screen", "paper"}, default: "screen"
        "screen" is 6.9 inches wide, both columns of a journal page, with the legends beside the
        panels; "paper" is 3.3 inches wide, one column, with the legends in them.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw in, in its own style: the terms, with drift and correction summed, and
        the residuals in one panel, small ones too. Default: a new figure in the style of wflow.

    Returns
    -------
    matplotlib.figure.Figure
        Two or three panels, or the figure of `ax`.

    Raises
    ------
    InputError
        For a run that did not record the budget, ``save=wflow.SaveAt(budget=True)``.

    Notes
    -----
    The terms are those of

    .. math::

        E(t) - E(0) = \int_0^t \text{weight power} + \int_0^t \text{Itô power}
        - \int_0^t \text{dissipation} + \text{martingale} + \text{residual}.

    The second residual has :math:`\pm G^2` in place of the dissipation, as in Theorem 4.13 and
    figure 3 of [1]_. The two differ for softmax with more than one head.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv 2605.18870, eq. 148.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(n=20, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.2, dt=0.05)
    >>> [axis.get_ylabel() for axis in wflow.plots.energy_balance(run).axes]
    ['Energy', 'Residual']
    """
    check_run(ds)
    require(ds, _BALANCE, budget_advice(ds))
    width = width_in(style)
    page = width > COLUMN
    recorded = [name for name in TERMS if name in ds]
    time = series(ds, "energy")[0]
    parts, zero = balance_terms(
        {name: series(ds, name)[1] for name in recorded}, config(ds).get("direction") == "ascent"
    )
    weights = [term for term in parts if term[0] in ("drift", "ito")]
    terms = [term for term in parts if term[0] not in ("drift", "ito") or len(weights) < 2]
    terms.sort(key=lambda term: -last_mean(term[2]))  # the legend in the order of the curves
    residuals = [(k, words, series(ds, name)[1]) for name, (k, words) in RESIDUALS.items()]
    title = facts(ds) + (band_note("percentiles") if ds.sizes["path"] > 1 else "")
    if ax is not None:
        grey = [{"color": "0.5", "linestyle": line} for line in ("-", ":")]
        drawn = [(words, values, _LOOKS[k]) for k, words, values in terms]
        drawn += [
            (f"residual {words}", values, look)
            for (_, words, values), look in zip(residuals, grey, strict=True)
        ]
        with panel(ax, width_in(style, COLUMN), 2.8) as (figure, axis):
            _curves(axis, time, drawn)
            axis.set_ylabel("Energy")
            axis.legend()
            time_axis(axis)
            axis.set_title(title)
        return figure
    terms, small = _visible(terms)
    title += f"\nZero throughout: {', '.join(zero)}" if zero else ""
    title += f"\nBelow 1 % of the largest, at the end: {', '.join(small)}" if small else ""
    note = "\n".join(residual_notes(ds))
    end = "\n" if page else ": "
    residuals = [(k, f"{words}{end}{mean_label(at_end(v))}", v) for k, words, v in residuals]
    panels = [("Energy", title, terms, 1.7), ("Residual", note, residuals, 1.0)]
    if len(weights) == 2:
        title = "Weight drift and Itô correction, which are summed above"
        panels.insert(1, ("Energy", title, weights, 0.9))
    shares = [share for *_, share in panels]
    with apply():
        figure, axes = grid(
            len(panels), 1, width, (1.35 if page else 1.8) * sum(shares) + 0.8,
            height_ratios=shares, sharex=True,
        )  # fmt: skip
        for axis, (name, title, curves, share) in zip(axes.flat, panels, strict=True):
            axis.axhline(0, color="0.6", linewidth=0.5, zorder=0)
            _curves(axis, time, [(words, values, _LOOKS[key]) for key, words, values in curves])
            under = (-0.15, -(0.4 if axis is axes.flat[-1] else 0.05) / share)
            axis.legend(
                loc="upper left", bbox_to_anchor=(1.0, 1.05) if page else under,
                ncols=1 if page or curves is residuals else 2, handlelength=2.0, columnspacing=1.2,
            )  # fmt: skip
            axis.set_ylabel(name)
            lines = [textwrap.fill(line, 85 if page else 42) for line in title.splitlines()]
            axis.set_title("\n".join(lines))
        time_axis(axes.flat[-1])
        figure.align_ylabels()
        figure.draw_without_rendering()  # the first layout changes the ticks, and they the layout
    return figure


def _visible(
    terms: list[tuple[str, str, NDArray]],
) -> tuple[list[tuple[str, str, NDArray]], list[str]]:
    """Return the terms above 1 % of the largest, with the energy, and what to say of the others."""
    sizes = [float(np.nanmax(np.abs(values), initial=0.0)) for _, _, values in terms]
    kept, small = [], []
    for (key, words, values), size in zip(terms, sizes, strict=True):
        if key == "energy" or size >= 0.01 * max(sizes):
            kept.append((key, words, values))
        else:
            small.append(f"{words} {mean_label(at_end(values))}")
    return kept, small


def _curves(
    axis: Axes, time: NDArray, drawn: Sequence[tuple[str, NDArray, dict[str, Any]]]
) -> None:
    """Draw curves (label, values, look) with bands, and markers of which none meet."""
    for k, (label, values, look) in enumerate(drawn):
        places = spaced(len(time), 7, k, len(drawn))
        curve(axis, time, values, label=label, band_alpha=0.13, markevery=places, **look)


TERMS = (
    "energy", "work_weights", "work_ito", "work_diffusion", "martingale", "martingale_tokens",
    "dissipated", "dissipated_upper_gradient",
)  # fmt: skip
RESIDUALS = {  # variable -> colour, words
    "edi_residual": ("dissipated", "with dissipation"),
    "edi_residual_upper_gradient": ("gradient", "with G²"),
}


def residual_notes(ds: Dataset) -> list[str]:
    """Say in sentences what the residual of the energy balance is, and what G² adds to it."""
    notes = [step_error(ds)]
    if set(RESIDUALS) <= set(ds):
        first, second = (series(ds, name)[1] for name in RESIDUALS)
        if np.nanmax(np.abs(first - second), initial=0.0) > 1e-9:
            notes.append(
                "The residual with G² (squared upper gradient) also has what G² and the "
                "dissipation differ by, which is zero for heads of equal mobility"
            )
    return notes


def balance_terms(
    recorded: Mapping[str, NDArray], ascent: bool
) -> tuple[list[tuple[str, str, NDArray]], list[str]]:
    """Return the terms of the energy balance (colour, words, values), and those that are zero.

    Drift of the weights and Itô correction nearly cancel and dwarf the rest: where neither is zero
    throughout, their sum is a term besides.

    Parameters
    ----------
    recorded : variables `TERMS` of a run, or some of them, (paths, k)
    ascent : whether the energy rises
    """
    energy = recorded["energy"]
    # Ascent: the dissipation is negative, so that minus its integral is what the energy gains.
    sign, symbol = (1, "∫ G²") if ascent else (-1, "−∫ G²")
    named = {
        "work_weights": ("drift", "weight drift", 1),
        "work_ito": ("ito", "Itô correction", 1),
        "work_diffusion": ("diffusion", "diffusion", 1),
        "martingale": ("martingale", "martingale", 1),
        "dissipated": ("dissipated", "−∫ dissipation", -1),
        "dissipated_upper_gradient": ("gradient", symbol, sign),
    }
    values = {name: recorded[name] for name in named if name in recorded}
    if "martingale_tokens" in recorded:
        values["martingale"] = values["martingale"] + recorded["martingale_tokens"]
    zero = [name for name, each in values.items() if not np.nanmax(np.abs(each), initial=0.0)]
    terms = [("energy", "E(t) − E(0)", energy - energy[:, :1])]
    if {"work_weights", "work_ito"} <= values.keys() - set(zero):
        net = values["work_weights"] + values["work_ito"]
        terms.append(("weights", "drift + Itô", net))
    for name, each in values.items():
        if name not in zero:
            colour, words, factor = named[name]
            terms.append((colour, words, factor * each))
    return terms, [named[name][1] for name in zero]


def clusters_over_time(
    ds: Dataset, scale: float, *, style: Style = "screen", ax: Axes | None = None
) -> Figure:
    """Draw the number of clusters of the tokens at the snapshots of a run.

    Parameters
    ----------
    ds : xarray.Dataset
        Run with the tokens of one path or several at its snapshots. Several paths are thin grey
        steps, and their mean a bold line.
    scale : float
        Angle in radians up to which two tokens are linked to one cluster.
    style : {"screen", "paper"}, default: "screen"
        Size of a new figure: either one is 3.3 inches wide, one column of a journal page.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw in, in its own style. Default: a new figure in the style of wflow.

    Returns
    -------
    matplotlib.figure.Figure
        The new figure, or the one of `ax`.

    Raises
    ------
    InputError
        For a run without tokens at two times or more,
        ``save=wflow.SaveAt(snapshots=[...], paths=[...])``, and for a scale out of range.

    See Also
    --------
    wflow.clusters.over_time : The numbers, and other quantities of the clusters.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x0 = wflow.tokens.uniform(n=20, d=3, seed=0)
    >>> save = wflow.SaveAt(snapshots=np.linspace(0.0, 1.0, 5))
    >>> law = wflow.heads.Frozen()
    >>> run = wflow.solve(
    ...     x0, law, heads=[4.0 * np.eye(3)], t_final=1.0, dt=0.25, direction="ascent", save=save
    ... )
    >>> wflow.plots.clusters_over_time(run, 0.2).axes[0].get_ylabel()
    'Number of clusters'
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    from wflow.analysis import clusters

    check_run(ds)
    advice = solve_with("snapshots=[times], paths=[0]")
    require(ds, ["snapshot", "snapshot_path", "tokens"], advice)
    if ds.sizes["snapshot"] < 2 or not ds["tokens"].size:
        raise InputError(
            f"the run holds tokens at {ds.sizes['snapshot'] if ds['tokens'].size else 0} times; "
            f"two or more are needed. {advice}"
        )
    table = clusters.over_time(ds, scale, quantities=["count"])
    counts = table["count"].transpose("snapshot_path", "snapshot").values
    time = np.asarray(table["snapshot"].values, dtype=float)
    counts, time = counts[:, reached := np.isfinite(counts).all(axis=0)], time[reached]
    if len(time) < 2:
        raise InputError("the run reached fewer than two snapshots; continue it with --resume")
    paths, n, title = len(counts), ds.sizes["token"], facts(ds, paths=False)
    with panel(ax, width_in(style, COLUMN), 2.8) as (figure, axis):
        if paths == 1:
            axis.step(time, counts[0], where="post", color="#0072B2")
            title += f", path {int(ds['snapshot_path'].values.flat[0])}"
        else:
            for k, one in enumerate(counts):
                label = "one path each" if k == 0 else None
                axis.step(time, one, where="post", color="0.75", linewidth=0.6, label=label)
            axis.plot(time, counts.mean(axis=0), color="#0072B2", label=f"mean of {paths} paths")
            axis.legend(loc="best")
        if counts.max() > 10:
            axis.set_yscale("log", base=2)
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_ylim(0.85, 1.2 * n)
        else:
            axis.yaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set_ylim(0, None)
        time_axis(axis)
        axis.set_ylabel("Number of clusters")
        axis.set_title(f"{title}\ntokens linked up to {float(scale):g} rad")
    return figure


def heads_over_time(
    ds: Dataset, path: int = 0, *, style: Style = "screen", ax: Axes | None = None
) -> Figure:
    r"""Draw the eigenvalues of the heads of one path at the snapshots of a run.

    Parameters
    ----------
    ds : xarray.Dataset
        Run that kept its heads.
    path : int, default: 0
        Number of the path.
    style : {"screen", "paper"}, default: "screen"
        Size of a new figure: either one is 3.3 inches wide, one column of a journal page.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw in, in its own style. Default: a new figure in the style of wflow.

    Returns
    -------
    matplotlib.figure.Figure
        The new figure, or the one of `ax`.

    Raises
    ------
    InputError
        For a run without heads at two times or more,
        ``save=wflow.SaveAt(snapshots=[...], heads=True)``, and for a path that is not stored.

    Notes
    -----
    Of every head the eigenvalues of the symmetric part :math:`(D_h + D_h^T)/2` are taken in order,
    :math:`\lambda_1 \ge \dots \ge \lambda_d`. A line is the mean of one of them over the heads,
    its band holds the middle 80 % of the heads. For more than six dimensions, six of the
    eigenvalues are drawn, among them the largest and the smallest.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x0 = wflow.tokens.uniform(n=20, d=3, seed=0)
    >>> save = wflow.SaveAt(snapshots=np.linspace(0.0, 1.0, 5), heads=True)
    >>> law = wflow.heads.Oscillating(d=3, phases="spread")
    >>> run = wflow.solve(x0, law, heads=4, t_final=1.0, dt=0.25, save=save)
    >>> len(wflow.plots.heads_over_time(run).axes[0].lines)
    3
    """
    check_run(ds)
    advice = solve_with("snapshots=[times], heads=True")
    require(ds, ["snapshot", "snapshot_path", "heads"], advice)
    place = stored_path(ds, path, "heads")
    stored = ds["heads"].isel(snapshot_path=place).transpose("snapshot", "head", ...)
    time = np.asarray(ds["snapshot"].values, dtype=float)
    heads = np.asarray(stored.values, dtype=float)
    heads, time = heads[reached := np.isfinite(heads).all(axis=(1, 2, 3))], time[reached]
    if len(time) < 2:
        raise InputError(
            f"the run holds heads at {len(time)} times; two or more are needed. {advice}"
        )
    values = np.linalg.eigvalsh((heads + heads.swapaxes(-1, -2)) / 2)[..., ::-1]
    d = values.shape[-1]
    ranks = evenly(d, 6)
    with panel(ax, width_in(style, COLUMN), 2.8) as (figure, axis):
        for k, rank in enumerate(ranks):
            curve(
                axis,
                time,
                values[..., rank].T,
                label=rf"$\lambda_{{{rank + 1}}}$",
                color=shade(k, len(ranks)),
                marker=_MARKERS[k],
                markevery=spaced(len(time), 5, k, len(ranks)),
                band_alpha=0.18,
            )
        time_axis(axis)
        axis.set_ylabel(r"Eigenvalues of $(D_h + D_h^T)/2$")
        title = f"{facts(ds, paths=False)}, path {path}"
        if values.shape[1] > 1:
            title += "\nlines: mean over heads; band: 10\N{EN DASH}90 % of heads"
        axis.set_title(title)
        axis.legend(loc="best", ncols=min(len(ranks), 3))
    return figure


def plot_run(ds: Dataset, out_dir: str | Path, *, style: Style = "screen") -> list[Path]:
    """Write every figure that one run allows, as PNG and PDF, and return where they are.

    Parameters
    ----------
    ds : xarray.Dataset
        Run. With an energy: tokens, squared upper gradient over time, energy balance. Without one
        (general heads): tokens and mean squared speed. Of a run of `wflow.meanfield.solve`:
        densities in place of tokens, and the free energy.
    out_dir : str or pathlib.Path
        Folder of the figures, made if it is missing.
    style : {"screen", "paper"}, default: "screen"
        "screen" is up to 6.9 inches wide, both columns of a journal page; "paper" is 3.3 inches
        wide, one column.

    Returns
    -------
    list of pathlib.Path
        The files, named by the run's file, or ``run_...`` for a run in memory.

    Raises
    ------
    InputError
        For an object that is no run, and for a folder that cannot be written.

    Warns
    -----
    UserWarning
        For a figure that is left out because its values are missing or infinite.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(n=20, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.2, dt=0.05)
    >>> [file.name for file in wflow.plots.plot_run(run, "figures") if file.suffix == ".png"]
    ['run_tokens_path0.png', 'run_gradient_over_time.png', 'run_energy_balance.png']
    """
    check_run(ds)
    return [file for stem, figure in run_figures(ds, style) for file in save(figure, out_dir, stem)]


def run_figures(ds: Dataset, style: Style = "screen") -> Iterator[tuple[str, Figure]]:
    """Yield the figures of `plot_run`, each with the name of its files."""
    prefix = f"{_stem(ds)}_"
    if "tokens" in ds and ds["tokens"].size:
        path = int(ds["snapshot_path"].values[0])
        yield f"{prefix}tokens_path{path}", token_snapshots(ds, which=path, style=style)
    if "density_mean" in ds and ds["density_mean"].size:
        yield prefix + "density_mean", density_snapshots(ds, style=style)
    heads = {head_count(ds): ds}
    gradient = "upper_gradient_sq" if "upper_gradient_sq" in ds else "speed_sq"
    stem = "gradient_over_time" if gradient != "speed_sq" else "speed"
    if gradient in ds and _finite(ds, [gradient], stem):
        yield prefix + stem, gradient_over_time(heads, gradient, style=style)
    if set(_BALANCE) & set(ds) and _finite(ds, _BALANCE, "energy_balance"):
        yield prefix + "energy_balance", energy_balance(ds, style=style)
    if "entropy" in ds and _finite(ds, ["entropy"], "free_energy"):
        yield prefix + "free_energy", free_energy_over_time(ds, style=style)


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
        warn(f"the figure of the {what} is not drawn: {reason}", WflowWarning)
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
