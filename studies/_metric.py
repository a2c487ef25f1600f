"""Tables and figures of the studies of the weighted metric and of minimizing movements."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow import study
from wflow.analysis.fits import PowerLaw
from wflow.plots.figure import PAGE, grid, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

Array = NDArray[np.floating]

METRICS = {"w2": "W_2", "weighted": "W_b"}
PAIR = {
    "pair_w2": "W_2 of the pair",
    "pair_wb": "W_b of the pair, by the discrete action",
    "pair_extrapolated": "W_b of the pair, extrapolated in the number of segments",
    "pair_lower": "c1 W_2, for any cloud",
    "pair_upper": "c2 W_2, for any cloud",
    "pair_path_lower": "W_2 times the root of the smallest b along the path",
    "pair_path_upper": "W_2 times the root of the largest b along the geodesics",
    "pair_norm": "largest norm of a head",
    "pair_heads": "number of heads",
    "pair_converged": "whether the minimisation converged",
}
LOOKS = {
    "unnormalised": {"color": "#5c8a3a", "marker": "^", "linestyle": ":"},
    "effective": {"color": "#c1440e", "marker": "s", "linestyle": "--"},
    "softmax": {"color": "#0b3c5d", "marker": "o", "linestyle": "-"},
}


class Curve(NamedTuple):
    """Means (m,) over the paths at m abscissae, their fit, the flow they belong to, and a label."""

    mean: Array
    fit: PowerLaw
    flow: str
    label: str


def power_laws(
    x: Array,
    panels: Mapping[str, Sequence[Curve]],
    *,
    xlabel: str,
    ylabel: str,
    headroom: float = 1.0,
    legend: str | None = None,
    ticks: Sequence[str],
    title: str = "",
) -> "Figure":
    """Panels with power laws in log-log, each with the band of its fit.

    Parameters
    ----------
    panels : title -> curves
    headroom : factor by which the upper limit is raised, for the legends
    """
    with style():
        figure, axes = grid(1, len(panels), PAGE, 2.9, sharey=True)
        along = np.sort(x)
        for axis, (name, curves) in zip(axes[0], panels.items(), strict=True):
            for curve in curves:
                look = LOOKS[curve.flow]
                axis.loglog(x, curve.mean, label=curve.label.replace("-", "\N{MINUS SIGN}"), **look)
                axis.fill_between(
                    along, *curve.fit.band(along), color=look["color"], alpha=0.15, linewidth=0
                )
            axis.set_xticks(x, ticks)
            axis.set_xticks([], minor=True)
            axis.set_xlabel(xlabel)
            axis.set_title(name)
        axes[0, 0].set_ylim(top=headroom * axes[0, 0].get_ylim()[1])
        for axis in axes[0]:
            axis.legend(loc="upper left", title=legend, alignment="left")
        axes[0, 0].set_ylabel(ylabel)
        if title:
            figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    return figure


def bounds_figure(table: "Dataset", title: str) -> "Figure":
    """W_b over W₂ of the random pairs between their bounds, against the norm of the heads."""
    order = np.argsort(table["pair_norm"].values)
    part = table.isel(pair=order)
    norm, w2 = part["pair_norm"].values, part["pair_w2"].values
    one = part["pair_heads"].values == 1
    with style():
        figure, axes = grid(1, 1, PAGE, 3.4)
        axis = axes[0, 0]
        at = np.linspace(0, norm.max(), 100)
        axis.fill_between(
            at, np.exp(-at / 2), np.exp(at / 2), color="0.93", label=r"$e^{\pm|D|/2}$", linewidth=0
        )
        axis.vlines(
            norm, part["pair_path_lower"] / w2, part["pair_path_upper"] / w2,
            color="#8fb0cc", linewidth=0.9, label="bounds by $b$ along the paths",
        )  # fmt: skip
        for low, mark in (("pair_lower", "v"), ("pair_upper", "^")):
            name = "rigorous $c_1$, $c_2$" if low == "pair_lower" else None
            axis.plot(norm, part[low] / w2, mark, color="0.55", markersize=2.4, label=name)
        ratio = part["pair_wb"].values / w2
        axis.plot(norm[one], ratio[one], "o", color="#c1440e", label="$W_b/W_2$, one head")
        axis.plot(norm[~one], ratio[~one], "s", color="#0b3c5d", label="$W_b/W_2$, 2 to 8 heads")
        axis.set_yscale("log")
        axis.margins(x=0.01)
        axis.set_xlabel("Largest norm of a head $|D|$")
        axis.set_ylabel("Distance over $W_2$")
        axis.set_title(title)
        axis.legend(loc="upper left")
    return figure


def derivative_figure(
    table: "Dataset", laws: Mapping[tuple[str, str], PowerLaw], facts: str
) -> "Figure":
    """Relative error of the difference quotients against delta, in both metrics."""
    error = table["relative_error"].mean(("time", "path"))
    panels = {
        f"${symbol}$: {facts}; band: 95 % of the fit": [
            Curve(
                error.sel(flow=flow, metric=name).values,
                laws[flow, name],
                flow,
                f"{flow}: slope {laws[flow, name].exponent:.2f}",
            )
            for flow in table["flow"].values
        ]
        for name, symbol in METRICS.items()
    }
    return power_laws(
        table["delta"].values,
        panels,
        xlabel=r"Increment $\delta$",
        ylabel=r"Error $|W(\mu_t, \mu_{t+\delta})/(\delta\,|\dot\mu_t|) - 1|$",
        ticks=[f"{delta:g}" for delta in table["delta"].values],
    )


def violations(table: "Dataset", low: str, high: str) -> NDArray[np.bool_]:
    """Whether W_b of every pair lies outside W_low <= W_b <= W_high, beyond rounding."""
    inside = (table["pair_wb"] >= table[low] * (1 - 1e-12)) & (
        table["pair_wb"] <= table[high] * (1 + 1e-12)
    )
    return np.asarray(~inside)


def metric_report(flags: Any, table: "Dataset", laws: Mapping[tuple[str, str], PowerLaw]) -> str:
    """The tables of `metric`."""
    error = table["relative_error"].mean(("time", "path"))
    rows = []
    for (flow, name), law in laws.items():
        at = error.sel(flow=flow, metric=name)
        row = {"flow": flow, "metric": METRICS[name]}
        row |= {f"delta {d:g}": f"{float(at.sel(delta=d)):.2e}" for d in flags.deltas}
        rows.append(row | {"slope": study.slope_text(law)})
    width = (table["pair_upper"] / table["pair_lower"]).values
    narrow = (table["pair_path_upper"] / table["pair_path_lower"]).values
    rough = np.abs((table["pair_extrapolated"] / table["pair_wb"]).values - 1)
    lines = [
        f"Relative error of the difference quotients, H = {flags.heads} oscillating heads, n = "
        f"{flags.n}, d = {flags.d}, mean over {flags.paths} initial clouds and t = "
        f"{', '.join(f'{t:g}' for t in flags.times)}:",
        study.markdown_table(rows),
        f"{flags.pairs} random pairs, n = {flags.n}, d = {flags.d}, {flags.segments} segments:",
        study.markdown_table(
            {
                "bound": ["c1 W_2, c2 W_2 (any cloud)", "min b, max b along the paths"],
                "violations": [
                    str(violations(table, "pair_lower", "pair_upper").sum()),
                    str(violations(table, "pair_path_lower", "pair_path_upper").sum()),
                ],
                "median ratio upper/lower": [
                    f"{np.median(width):.3g}",
                    f"{np.median(narrow):.3g}",
                ],
            }
        ),
        f"Minimisations that did not converge: "
        f"{int((~table['pair_converged']).sum())} of the pairs, "
        f"{int((~table['quotient_converged']).sum())} of the quotients.",
    ]
    if np.isfinite(rough).any():
        lines.append(
            f"Discretisation, |extrapolated/value - 1|: median {np.median(rough):.1e}, "
            f"largest {float(rough.max()):.1e}."
        )
    return "\n\n".join(lines)
