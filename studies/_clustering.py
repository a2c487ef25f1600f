"""Predictions, findings, tables and figures of the study `clustering`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import clusters, study
from wflow.analysis.fits import line
from wflow.plots.figure import PAGE, grid, style
from wflow.study.frame import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

    from wflow.analysis.clusters import Plateau


# Predictions: frontiers, and growth of lifetimes
# -----------------------------------------------

FloatArray = NDArray[np.float64]

_LEAST, _LARGEST = 1e-6, 60.0  # beta between which a frontier is looked for
_RESAMPLES = 1000
ONE = 0.95  # share of the starts from which on a cell counts as "one cluster"


def meeting_time(beta: float, n: int, scale: float) -> float:
    """Time, in units of [GLPR], at which n orthogonal tokens come within `scale` of each other.

    Their inner products stay equal, gamma' = 2 e^{beta gamma} (1 - gamma) ((n - 1) gamma + 1) /
    (e^beta + (n - 1) e^{beta gamma}), gamma(0) = 0: random tokens in high dimension do the same.
    Source: [GLPR] section 6.
    """
    from scipy.integrate import quad

    def slowness(s: float) -> float:  # dt/ds with 1 - gamma = e^-s
        gamma = -math.expm1(-s)
        return (math.exp(beta * math.exp(-s)) + n - 1) / (2 * ((n - 1) * gamma + 1))

    end = -math.log(2 * math.sin(scale / 2) ** 2)
    if end <= 0:
        return 0.0
    return float(quad(slowness, 0, end, limit=400, points=[0.01, 0.1, 1.0])[0])


def meeting_beta(time: float, n: int, scale: float) -> float:
    """The beta for which orthogonal tokens meet at a time.

    NaN for a time too short for any; inf where they are within the scale from the start, or the
    beta is beyond 60.
    """
    from scipy.optimize import brentq

    if meeting_time(_LARGEST, n, scale) < time:
        return math.inf
    if meeting_time(_LEAST, n, scale) > time:
        return math.nan
    return float(brentq(lambda beta: meeting_time(beta, n, scale) - time, _LEAST, _LARGEST))


def frontier(betas: Sequence[float] | FloatArray, share: FloatArray) -> float:
    """The beta at which the share of starts in one cluster falls below one half.

    Linear between the last beta with a share of a half or more and the next; inf where the share
    never falls, NaN where it is below at every beta.
    """
    order = np.argsort(betas)
    beta, share = np.asarray(betas)[order], share[order]
    above = np.flatnonzero(share >= 0.5)
    if not len(above):
        return math.nan
    k = int(above[-1])
    if k + 1 == len(beta):
        return math.inf
    return float(beta[k] + (beta[k + 1] - beta[k]) * (share[k] - 0.5) / (share[k] - share[k + 1]))


def edge_text(beta: float) -> str:
    """A frontier in words: NaN lies below all of --betas, inf above."""
    return "below" if math.isnan(beta) else "above" if math.isinf(beta) else f"{beta:.2f}"


def short(time: float) -> str:
    """A time to three figures, without an exponent up to a million."""
    return f"{float(f'{time:.3g}'):g}"


@dataclass(frozen=True)
class Growth:
    """How the log of a lifetime grows with beta.

    Attributes
    ----------
    slope, low, high : of the line through the means over the starts, with its 95 % interval
    exponential : whether a line in beta leaves a smaller residual than one in log beta, a power
    betas : the beta that count
    """

    slope: float
    low: float
    high: float
    exponential: bool
    betas: tuple[float, ...]


def growth(betas: FloatArray, times: FloatArray) -> Growth | None:
    """Fit log(time) = a + slope beta to times (beta, start); NaN: not reached.

    Only those beta count at which every start got there: a mean over the others would be cut.
    None for fewer than three such beta.
    """
    met = np.isfinite(times).all(axis=1)
    if met.sum() < 3:
        return None
    beta, log = betas[met], np.log(times[met])
    law = line(beta, log, resamples=_RESAMPLES)
    power = line(np.log(beta), log, resamples=1)
    low, high = law.slope_ci
    return Growth(law.slope, low, high, law.residual < power.residual, tuple(beta.tolist()))


_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#56B4E9", "linestyle": (0, (1, 1.2)), "marker": "^"},
    {"color": "#E69F00", "linestyle": (0, (4, 1.5)), "marker": "s"},
    {"color": "#D55E00", "linestyle": "-", "marker": "o"},
)
_EDGE: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.4}


def _edges(values: FloatArray) -> FloatArray:
    """Edges of the cells around rising values: midpoints, and as far again beyond the ends."""
    if len(values) == 1:
        return np.array([values[0] - 0.5, values[0] + 0.5])
    middle = (values[1:] + values[:-1]) / 2
    first, last = 2 * values[0] - middle[0], 2 * values[-1] - middle[-1]
    return np.concatenate([[first], middle, [last]])


def _frontier_errors(table: "Dataset", resamples: int = 200) -> FloatArray:
    """Distances (d, when, 2) from the frontiers to the ends of their 95 % intervals.

    Bootstrap over the starts of every cell; outside of the betas a resampled frontier counts as at
    the nearest one.
    """
    betas, edge = table["beta"].values, table["frontier"].values
    met = (table["count"].transpose("d", "when", "beta", "start") == 1).values
    rng = np.random.default_rng(0)
    found = np.zeros((*edge.shape, 2))
    for place in np.ndindex(*edge.shape):
        if np.isfinite(edge[place]):
            share = met[place].mean(axis=1)
            draws = rng.binomial(met.shape[-1], share, (resamples, len(betas))) / met.shape[-1]
            drawn = np.array([frontier(betas, draw) for draw in draws])
            drawn = np.nan_to_num(drawn, nan=betas[0], posinf=betas[-1])
            low, high = np.percentile(drawn, (2.5, 97.5))
            found[place] = max(0.0, edge[place] - low), max(0.0, high - edge[place])
    return found


def phase_diagram(table: "Dataset", title: str, *, orthogonal: bool) -> "Figure":
    """The share at the end over (d, beta), and the frontier at every time.

    With `orthogonal`, where that of orthogonal tokens is, at the right edge.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, NullLocator

    table = table.sortby(["beta", "d"])
    dims, betas, times = (table[name].values for name in ("d", "beta", "when"))
    across, up = 2 ** _edges(np.log2(dims)), _edges(betas)
    with style():
        figure, axes = grid(1, 1, 5.8, 3.9)
        axis = axes[0, 0]
        axis.set_xscale("log", base=2)
        mesh = axis.pcolormesh(
            across, up, table["share"].isel(when=-1).transpose("beta", "d").values,
            cmap="Greys_r", vmin=0, vmax=1, rasterized=True,
        )  # fmt: skip
        edge, errors = (
            table["frontier"].transpose("d", "when").values,
            _frontier_errors(table.assign(frontier=table["frontier"].transpose("d", "when"))),
        )
        for k, t in enumerate(times):
            look = _LOOKS[k % len(_LOOKS)]
            inside = np.isfinite(edge[:, k])
            where = "" if inside.any() else " (nowhere)"
            drawn = np.where(inside, edge[:, k], np.nan)
            shift = 1.03 ** (k - (len(times) - 1) / 2)  # apart, where their bars meet
            axis.errorbar(dims * shift, drawn, errors[:, k].T, label=f"$t$ = {t:g}{where}",
                          capsize=2, elinewidth=1.0, **_EDGE, **look)  # fmt: skip
            theory = float(table["orthogonal_frontier"].values[k])
            if orthogonal and up[0] <= theory <= up[-1]:
                axis.plot([across[-1]], [theory], color=look["color"], marker="<", markersize=6,
                          linestyle="none", clip_on=False, zorder=5, **_EDGE)  # fmt: skip
        axis.xaxis.set_major_locator(FixedLocator(dims.tolist()))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticklabels([f"{d}" for d in dims])
        axis.set_yticks(betas, [f"{b:g}" for b in betas])
        axis.set(xlim=(across[0], across[-1]), ylim=(up[0], up[-1]))
        axis.set_xlabel("Dimension $d$")
        axis.set_ylabel(r"Inverse temperature $\beta$")
        for side in ("top", "right"):
            axis.spines[side].set_visible(True)
        starts = table.sizes["start"]
        figure.colorbar(mesh, ax=axis, label=f"Share of {starts} starts in one cluster at "
                        f"$t$ = {times[-1]:g}")  # fmt: skip
        handles, texts = axis.get_legend_handles_labels()
        if orthogonal:
            look = {"marker": "<", "markersize": 6, "linestyle": "none", "color": "0.6"}
            handles.append(Line2D([], [], **look, **_EDGE))
            texts.append("orthogonal tokens")
        figure.legend(handles, texts, loc="outside lower center", ncols=4,
                      title="Frontier, where the share is 1/2 (bars: 95 % intervals)")  # fmt: skip
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
    from matplotlib.lines import Line2D

    grey: dict[str, Any] = {"color": "#BBBBBB", "linewidth": 0.5}
    blue: dict[str, Any] = {"color": "#0072B2", "linewidth": 1.1}
    bold: dict[str, Any] = {"color": "#D55E00", "linewidth": 3.2}
    with style():
        figure, axes = grid(rows, columns, PAGE, 0.9 + 1.9 * rows, sharex=True, sharey=True)
        for k, beta in enumerate(betas):
            axis = axes.flat[k]
            counts = table["series_count"].sel(series_beta=beta).values
            for s in range(1, len(counts)):
                axis.step(time[1:], counts[s, 1:], where="post", **grey)
            axis.step(time[1:], counts[0, 1:], where="post", **blue)
            for plateau in plateaus[beta]:
                axis.plot(
                    [plateau.start, plateau.end], [plateau.count] * 2, **bold,
                    solid_capstyle="butt", zorder=4,
                    marker="" if plateau.ended else ">", markevery=[1], markersize=5,
                )  # fmt: skip
            axis.set_xscale("log")
            axis.set_yscale("log", base=2)
            axis.set_ylim(0.85, 1.2 * n)
            axis.set_yticks(ticks, [str(tick) for tick in ticks])
            axis.set_title(rf"$\beta$ = {beta:g}")
            if k >= len(betas) - columns:
                axis.set_xlabel("Time $t$ (units of [GLPR])")
                axis.tick_params(labelbottom=True)
            if k % columns == 0:
                axis.set_ylabel("Number of clusters")
        for axis in axes.flat[len(betas) :]:
            axis.set_visible(False)
        handles = [Line2D([], [], **look) for look in (blue, bold, grey)]
        handles.insert(2, Line2D([], [], **bold, marker=">", markersize=5, markevery=[1]))
        texts = ["one start", "its plateaus", "plateau that lasts to the end", "the other starts"]
        figure.legend(handles, texts, loc="outside lower center", ncols=4)
        figure.suptitle(facts, fontsize=8.5, x=0.01, ha="left")
    return figure


GLPR = "[GLPR]"


CAUSAL = "Karagodin, Polyanskiy, Rigollet (2024)"


def plateaus(flags: Any, table: "Dataset", beta: float, start: int) -> list[clusters.Plateau]:
    """Metastable plateaus of one series: fewer than n/2 clusters, so that they are of some size."""
    counts = table["series_count"].sel(series_beta=beta).isel(series_start=start).values
    return clusters.plateaus(table["time"].values, counts, below=max(3, flags.series_n // 2))


def report(flags: Any, table: "Dataset") -> str:
    """Tables of the phase diagram and of the series."""
    last = table.isel(when=-1)
    columns = {"beta \\ d": [f"{beta:g}" for beta in flags.betas]}
    for d in flags.dims:
        shares, counts = last["share"].sel(d=d).values, last["count"].sel(d=d).mean("start").values
        columns[f"{d}"] = [f"{s:.2f} ({c:.1f})" for s, c in zip(shares, counts, strict=True)]
    edges = {"t": [f"{t:g}" for t in table["when"].values]}
    for j, d in enumerate(flags.dims):
        edges[f"{d}"] = [edge_text(value) for value in table["frontier"].values[j]]
    if not flags.causal:
        edges["orthogonal"] = [edge_text(b) for b in table["orthogonal_frontier"].values]
    rows: dict[str, list[str]] = {
        "beta": [], "plateaus of start 0": [], "starts with a plateau": [],
        "longest plateau, median": [], "in one cluster at the end": [], "median time to it": [],
    }  # fmt: skip
    for beta in flags.series_betas:
        all_of = [plateaus(flags, table, beta, s) for s in range(flags.series_paths)]
        shown = [
            f"{p.count} from {short(p.start)} to {short(p.end)}" + ("" if p.ended else " (end)")
            for p in all_of[0]
        ]
        longest = [max((p.end - p.start for p in one), default=0.0) for one in all_of]
        one = table["time_to_one"].sel(series_beta=beta).values
        last_count = table["series_count"].sel(series_beta=beta).values[:, -1]
        median = float(np.median(np.where(np.isfinite(one), one, np.inf)))
        rows["beta"].append(f"{beta:g}")
        rows["plateaus of start 0"].append("; ".join(shown) or "none")
        rows["starts with a plateau"].append(f"{sum(map(bool, all_of))} of {len(all_of)}")
        rows["longest plateau, median"].append(short(float(np.median(longest))))
        rows["in one cluster at the end"].append(f"{np.sum(last_count == 1)} of {len(one)}")
        rows["median time to it"].append("later" if math.isinf(median) else short(median))
    kind = "Causal attention" if flags.causal else "Attention"
    return (
        f"{kind}, D = beta I, ascent, times in units of [GLPR] (beta times those of the runs).\n\n"
        f"Share of {flags.paths} starts in one cluster at t = {flags.t_final:g}, and in brackets "
        f"the mean number of clusters; n = {flags.n}, linked up to {flags.scale:g} rad:\n\n"
        f"{study.markdown_table(columns)}\n\n"
        'beta at which that share falls below 1/2; "below" and "above": outside of the range:'
        f"\n\n{study.markdown_table(edges)}\n\n"
        f"Number of clusters over time, n = {flags.series_n}, d = {flags.series_d}, up to "
        f"t = {flags.series_t:g}:\n\n{study.markdown_table(rows)}"
    )


def figures(flags: Any, table: "Dataset") -> "dict[str, Figure]":
    """The figures of the study by name."""
    mask = "Causal attention, " if flags.causal else ""
    marked = {beta: plateaus(flags, table, beta, 0) for beta in flags.series_betas}
    return {
        "phase_diagram": phase_diagram(
            table, f"{mask}$H$ = 1, $n$ = {flags.n}, {flags.paths} starts per cell",
            orthogonal=not flags.causal,
        ),
        "series": series(
            table, marked, flags.series_n,
            f"{mask}$H$ = 1, $n$ = {flags.series_n}, $d$ = {flags.series_d}, "
            f"{flags.series_paths} starts",
        ),
    }  # fmt: skip


def orthogonal(flags: Any, table: "Dataset") -> study.Finding | None:
    d = max(flags.dims)
    prediction = "for d large the frontier is that of orthogonal tokens, all of one angle"
    seen, theory = table["frontier"].sel(d=d).values, table["orthogonal_frontier"].values
    usable = np.isfinite(seen) & np.isfinite(theory)
    if not usable.any() or d < flags.n:
        return None
    gap = np.abs(seen / theory - 1)[usable]
    text = f"d = {d}: " + ", ".join(
        f"beta = {edge_text(s)} against {edge_text(b)} at t = {t:g}"
        for s, b, t in zip(seen, theory, table["when"].values, strict=True)
    )
    worst = float(gap.max())
    verdict: Verdict = "not confirmed"
    if worst <= 0.1:
        verdict = "confirmed"
    elif gap.min() <= 0.1:
        verdict = "confirmed in part"
    return study.Finding(
        prediction, f"{GLPR} section 6", f"{text}; off by at most {100 * worst:.1f} %", verdict
    )


def first_token(flags: Any, table: "Dataset") -> study.Finding:
    """Causal attention: the points at which the tokens gather."""
    prediction = "the one cluster is at the first token, which stays where it is"
    moved, near = float(table["first_token_moved"]), float(table["first_token_distance"])
    text = f"the first token moves by {moved:.1g} at most, over all runs"
    if math.isnan(near):
        return study.Finding(
            prediction,
            CAUSAL,
            f"{text}; no start is in one cluster at the end",
            "inconclusive",
        )
    text += ", so that one cluster of all tokens is one around it; in the mean over the starts "
    text += f"with one cluster at the end the others are within {near:.1e} of it"
    good = moved < 1e-9 and near <= flags.scale
    return study.Finding(prediction, CAUSAL, text, "confirmed" if good else "not confirmed")


def add_first_token(table: "Dataset", files: list[Path]) -> None:
    """How far first tokens went, and how near the others are to them in the end."""
    moved, near = 0.0, []
    one = (table["count"].isel(when=-1).values == 1).reshape(len(files), -1)
    for file, met in zip(files, one, strict=True):
        with wflow.open(file) as run:
            end = run["tokens"].isel(snapshot=-1).values  # (start, token, axis)
            first = run["initial_tokens"].values[:, :1]
        moved = max(moved, float(np.linalg.norm(end[:, :1] - first, axis=-1).max()))
        near += np.linalg.norm(end - first, axis=-1).max(axis=1)[met].tolist()
    table["first_token_moved"] = ((), moved, {"long_name": "largest chord a first token moved"})
    distance = float(np.mean(near)) if near else math.nan
    name = "largest chord to the first token, mean over starts in one cluster"
    table["first_token_distance"] = ((), distance, {"long_name": name})


def large_d(flags: Any, table: "Dataset", source: str) -> study.Finding | None:
    prediction = f"one cluster for d large (d >= n = {flags.n}), any beta"
    share = table["share"].isel(when=-1)
    large = share.where(share["d"] >= flags.n, drop=True)
    if not large.size:
        return None
    edge = table["frontier"].sortby("d")
    first, last = edge.values[[0, -1], -1]
    full = (large >= ONE).all("d").sortby("beta")
    up_to = full["beta"].values[np.logical_and.accumulate(full.values)]
    at = "none" if not up_to.size else f"beta up to {up_to[-1]:g}"
    text = f"at t = {flags.t_final:g} for {at}; the frontier goes from beta = {edge_text(first)} "
    text += f"(d = {min(flags.dims)}) to {edge_text(last)} (d = {max(flags.dims)}) at "
    text += f"t = {flags.t_final:g}, and at the largest d it moves with t: "
    text += ", ".join(
        f"{edge_text(b)} at t = {t:g}"
        for b, t in zip(edge.values[-1], table["when"].values, strict=True)
    )
    if full.all():
        return study.Finding(prediction, source, text, "confirmed")
    if last > 1.5 * first or (math.isnan(first) and not math.isnan(last)):
        text += ": a statement about t to infinity, reached at larger beta later"
        return study.Finding(prediction, source, text, "confirmed in part")
    return study.Finding(prediction, source, text, "not confirmed")


def metastable(flags: Any, table: "Dataset") -> study.Finding:
    prediction = "metastable clusters for beta large, living exponentially long in beta"
    beta = max(flags.series_betas)
    with_plateau = np.mean(
        [bool(plateaus(flags, table, beta, s)) for s in range(flags.series_paths)]
    )
    grown = growth(table["series_beta"].values, table["time_to_one"].values)
    text = f"at beta = {beta:g} {100 * with_plateau:.0f} % of the starts show a plateau of several "
    text += "clusters; "
    if grown is None:
        text += "too few beta at which every start got to one cluster for a growth rate"
    else:
        text += f"log(time to one cluster) grows by {grown.slope:.2f} per unit of beta "
        text += f"({grown.low:.2f} to {grown.high:.2f}, beta = {min(grown.betas):g} to "
        text += f"{max(grown.betas):g}), and a power of beta fits it "
        text += "worse" if grown.exponential else "better"
    exponential = grown is not None and grown.low > 0 and grown.exponential
    verdict: Verdict = "not confirmed"
    if with_plateau >= ONE and exponential:
        verdict = "confirmed"
    elif with_plateau >= 0.5 or exponential:
        verdict = "confirmed in part"
    return study.Finding(prediction, CAUSAL if flags.causal else GLPR, text, verdict)
