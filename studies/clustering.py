"""Clustering in self-attention: collapse to one cluster, and lifetimes of several clusters.

One head D = beta I, values V = D, ascent: the dynamics of [GLPR], from tokens drawn uniformly on
the sphere. Two experiments: the phase diagram over (beta, d) of the share of random starts that are
in one cluster at time t; and the number of clusters over a long time for several beta, with its
metastable plateaus.

[GLPR] has V = I, which is slower by the factor beta. Times here (--t-final, --dt, --series-t) are
in units of [GLPR], t = beta times the time of wflow.solve and of the run files.

    python studies/clustering.py
    python studies/clustering.py --causal --out results/clustering_causal

[GLPR] Geshkovski, Letrouit, Polyanskiy, Rigollet, A mathematical perspective on transformers, 2025.
With --causal: Karagodin, Polyanskiy, Rigollet, Clustering in causal attention masking, 2024.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import wflow
from wflow import SaveAt, clusters, study, tokens
from wflow._core.checks import count_steps
from wflow.analysis.fits import Line, line
from wflow.cli import script
from wflow.heads import Frozen
from wflow.plots.figure import PAGE, caption, grid, style
from wflow.study import Finding, FloatArray, SchemeName
from wflow.study.frame import Verdict

if TYPE_CHECKING:
    from xarray import DataArray, Dataset


SHARES = (0.25, 0.5, 1.0)  # of the time, at which the phase diagram is read
SMALL_BETA = 1.0
SERIES_TIMES = 160
LEAST, LARGEST = 1e-6, 60.0  # beta between which a frontier is looked for
ONE = 0.95  # share of the starts from which on a cell counts as "one cluster"
GLPR = "[GLPR]"
CAUSAL = "Karagodin, Polyanskiy, Rigollet (2024)"


@dataclass(frozen=True, kw_only=True)
class Clustering(study.Flags):
    """Flags of this study."""

    betas: study.Distinct[study.Positive] = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
    """Inverse temperatures beta of the phase diagram."""
    dims: study.Distinct[study.Dimension] = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
    """Dimensions d of the phase diagram."""
    n: study.TwoOrMore = 32
    """Number of tokens of the phase diagram."""
    paths: study.Count = 20
    """Random starts of each cell of the phase diagram; the same ones for every beta."""
    t_final: study.Positive = 30.0
    """End time of the phase diagram, in units of [GLPR]."""
    dt: study.Positive = 0.25
    """Time step, in units of [GLPR]."""
    series_betas: study.Distinct[study.Positive] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    """Inverse temperatures of the series over time."""
    series_n: study.TwoOrMore = 64
    """Number of tokens of the series."""
    series_d: study.Dimension = 3
    """Dimension of the series."""
    series_paths: study.Count = 16
    """Random starts of the series; the same ones for every beta."""
    series_t: study.Positive = 2000.0
    """End time of the series, in units of [GLPR]."""
    scale: study.Angle = 0.0447
    """Geodesic distance, in radians, up to which two tokens are linked: <x, y> >= 0.999."""
    scheme: SchemeName = "rk4"
    """Time stepping."""
    causal: study.Switch = False
    """Causal attention: every token attends to itself and to those before it only."""
    out: study.Folder = Path("results/clustering")

    def check(self) -> None:
        super().check()
        count_steps(self.series_t, self.dt)

    @property
    def source(self) -> str:
        return CAUSAL if self.causal else GLPR


def problem(
    flags: Clustering, x0: FloatArray, beta: float, steps: int, at: Sequence[int]
) -> dict[str, Any]:
    """Return arguments of `wflow.solve` for one beta, with tokens of all starts at some steps."""
    starts, d, dt = len(x0), x0.shape[-1], flags.dt / beta
    times = [k * dt for k in at]
    return {
        "x0": x0, "law": Frozen(), "heads": beta * np.eye(d)[None], "t_final": steps * dt,
        "dt": dt, "paths": starts, "seed": flags.seed, "direction": "ascent",
        "scheme": flags.scheme, "causal": flags.causal,
        "save": SaveAt(every=steps, snapshots=times, paths=range(starts), budget=False),
    }  # fmt: skip


def starts(flags: Clustering, paths: int, n: int, d: int) -> FloatArray:
    """Return the uniform tokens of every start, (paths, n, d)."""
    return tokens.uniform(paths * n, d, seed=flags.seed).reshape(paths, n, d)


def tasks(flags: Clustering) -> dict[str, dict[str, Any]]:
    """Return all runs of the study: name -> arguments of `wflow.solve`."""
    steps = count_steps(flags.t_final, flags.dt)
    at = sorted({max(1, round(share * steps)) for share in SHARES})
    runs = {}
    for d in flags.dims:
        x0 = starts(flags, flags.paths, flags.n, d)
        for beta in flags.betas:
            runs[cell_name(beta, d)] = problem(flags, x0, beta, steps, at)
    steps = count_steps(flags.series_t, flags.dt)
    log = np.geomspace(max(1.0, 0.5 / flags.dt), steps, SERIES_TIMES)
    at = sorted({0, *(round(k) for k in log)})
    x0 = starts(flags, flags.series_paths, flags.series_n, flags.series_d)
    for beta in flags.series_betas:
        runs[series_name(beta)] = problem(flags, x0, beta, steps, at)
    return runs


def cell_name(beta: float, d: int) -> str:
    return f"beta_{beta:g}_d_{d:03d}"


def series_name(beta: float) -> str:
    return f"series_beta_{beta:g}"


def collect(flags: Clustering, files: dict[str, Path], advance: Callable[[int], None]) -> "Dataset":
    """Return numbers of clusters of all runs, and derived quantities, in units of [GLPR]."""

    def counted(name: str) -> "DataArray":
        advance(1)
        return clusters.over_time(files[name], flags.scale, quantities=["count"])["count"]

    cells = [[counted(cell_name(beta, d)) for d in flags.dims] for beta in flags.betas]
    over_time = [counted(series_name(beta)) for beta in flags.series_betas]
    number_of = np.array([[cell.values.T for cell in row] for row in cells])
    when = cells[0][0]["snapshot"].values * flags.betas[0]
    series = np.array([counts.values for counts in over_time])
    times = over_time[0]["snapshot"].values * flags.series_betas[0]
    reached = np.argmax(series == 1, axis=2)  # the first snapshot
    one = np.where((series == 1).any(axis=2), times[reached], np.nan)
    share = (number_of == 1).mean(axis=3)
    edge = [
        [frontier(flags.betas, share[:, j, k]) for k in range(len(when))]
        for j in range(len(flags.dims))
    ]
    orthogonal = [meeting_beta(t, flags.n, flags.scale) for t in when]

    unit = "in units of [GLPR]"
    each = ("series_beta", "series_start")
    return study.dataset(
        {
            "count": (("beta", "d", "when", "start"), number_of, "number of clusters"),
            "share": (("beta", "d", "when"), share, "share of the starts in one cluster"),
            "frontier": (("d", "when"), edge, "beta at which that share falls below 1/2"),
            "orthogonal_frontier": ("when", orthogonal, "frontier of orthogonal tokens"),
            "series_count": ((*each, "time"), series, "number of clusters"),
            "time_to_one": (each, one, f"time to one cluster, {unit}; NaN: never"),
        },
        {
            "beta": (flags.betas, "inverse temperature of the phase diagram"),
            "d": (flags.dims, "dimension"),
            "when": (when, f"time of the phase diagram, {unit}"),
            "series_beta": (flags.series_betas, "beta of the series"),
            "time": (times, f"time of the series, {unit}"),
        },
    )


def add_first_token(table: "Dataset", files: list[Path]) -> None:
    """Add how far first tokens went, and how near the others are to them in the end."""
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


def meeting_time(beta: float, n: int, scale: float) -> float:
    """Return the time, in [GLPR] units, at which n orthogonal tokens come within `scale`.

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
    """Return the beta for which orthogonal tokens meet at a time.

    NaN for a time too short for any; inf where they are within the scale from the start, or the
    beta is beyond 60.
    """
    from scipy.optimize import brentq

    if meeting_time(LARGEST, n, scale) < time:
        return math.inf
    if meeting_time(LEAST, n, scale) > time:
        return math.nan
    return float(brentq(lambda beta: meeting_time(beta, n, scale) - time, LEAST, LARGEST))


def frontier(betas: Sequence[float] | FloatArray, share: FloatArray) -> float:
    """Return the beta at which the share of starts in one cluster falls below one half.

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
    """Return a frontier in words: NaN lies below all of --betas, inf above."""
    return "below" if math.isnan(beta) else "above" if math.isinf(beta) else f"{beta:.2f}"


class Growth(NamedTuple):
    """How log(lifetime) grows with the beta that count; whether a power of beta fits it worse."""

    law: Line
    exponential: bool
    betas: FloatArray


def growth(betas: FloatArray, times: FloatArray) -> Growth | None:
    """Fit log(time) = a + slope beta to times (beta, start); NaN: not reached.

    Only those beta count at which every start got there: a mean over the others would be cut.
    None for fewer than three such beta.
    """
    met = np.isfinite(times).all(axis=1)
    if met.sum() < 3:
        return None
    beta, log = betas[met], np.log(times[met])
    law, power = line(beta, log, resamples=1000), line(np.log(beta), log, resamples=1)
    return Growth(law, law.residual < power.residual, beta)


def plateaus(flags: Clustering, table: "Dataset", beta: float) -> list[list[clusters.Plateau]]:
    """Return metastable plateaus of every start, of fewer than n/2 clusters."""
    times, below = table["time"].values, max(3, flags.series_n // 2)
    counts = table["series_count"].sel(series_beta=beta).values
    return [clusters.plateaus(times, row, below=below) for row in counts]


def small_beta(flags: Clustering, share: "DataArray") -> Finding | None:
    prediction = f"tokens end in one cluster for beta small (beta <= {SMALL_BETA:g}), any d"
    cells = share.where(share["beta"] <= SMALL_BETA, drop=True)
    if not cells.size:
        return None
    least, mean = float(cells.min()), float(cells.mean())
    where = [
        f"d = {int(d)} at beta = {float(b):g} ({float(cells.sel(beta=b, d=d)):.2f})"
        for b in cells["beta"].values
        for d in cells["d"].values
        if cells.sel(beta=b, d=d) < ONE
    ]
    text = f"share at the end {least:.2f} at least, {mean:.3f} in the mean"
    if not where:
        return Finding(prediction, flags.source, text, "confirmed").of_theorem()
    text += f"; below {ONE:g} for {', '.join(where)}"
    verdict: Verdict = "confirmed in part" if mean >= 0.5 else "not confirmed"
    return Finding(prediction, flags.source, text, verdict)


def large_d(flags: Clustering, table: "Dataset") -> Finding | None:
    prediction = f"tokens end in one cluster for d large (d >= n = {flags.n}), any beta"
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
        return Finding(prediction, flags.source, text, "confirmed")
    if last > 1.5 * first or (math.isnan(first) and not math.isnan(last)):
        text += ": a statement about t to infinity, reached at larger beta later"
        return Finding(prediction, flags.source, text, "confirmed in part")
    return Finding(prediction, flags.source, text, "not confirmed")


def orthogonal(flags: Clustering, table: "Dataset") -> Finding | None:
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
    return Finding(
        prediction, f"{GLPR} section 6", f"{text}; off by at most {100 * worst:.1f} %", verdict
    )


def first_token(flags: Clustering, table: "Dataset") -> Finding:
    """Return the finding about causal attention: the points at which the tokens gather."""
    prediction = "the one cluster is at the first token, which stays where it is"
    moved, near = float(table["first_token_moved"]), float(table["first_token_distance"])
    text = f"the first token moves by {moved:.1g} at most, over all runs"
    if math.isnan(near):
        text += "; no start is in one cluster at the end"
        return Finding(prediction, CAUSAL, text, "inconclusive")
    text += ", so that one cluster of all tokens is one around it; in the mean over the starts "
    text += f"with one cluster at the end the others are within {near:.1e} of it"
    good = moved < 1e-9 and near <= flags.scale
    return Finding(prediction, CAUSAL, text, "confirmed" if good else "not confirmed")


def metastable(flags: Clustering, table: "Dataset") -> Finding:
    prediction = "tokens form metastable clusters for beta large, living exponentially long in beta"
    beta = max(flags.series_betas)
    with_plateau = np.mean([bool(found) for found in plateaus(flags, table, beta)])
    grown = growth(table["series_beta"].values, table["time_to_one"].values)
    text = f"at beta = {beta:g} {100 * with_plateau:.0f} % of the starts show a plateau of several "
    text += "clusters; "
    if grown is None:
        text += "too few beta at which every start got to one cluster for a growth rate"
    else:
        low, high = grown.law.slope_ci
        text += f"log(time to one cluster) grows by {grown.law.slope:.2f} per unit of beta "
        text += f"({low:.2f} to {high:.2f}, beta = {min(grown.betas):g} to "
        text += f"{max(grown.betas):g}), and a power of beta fits it "
        text += "worse" if grown.exponential else "better"
    exponential = grown is not None and grown.law.slope_ci[0] > 0 and grown.exponential
    verdict: Verdict = "not confirmed"
    if with_plateau >= ONE and exponential:
        verdict = "confirmed"
    elif with_plateau >= 0.5 or exponential:
        verdict = "confirmed in part"
    return Finding(prediction, flags.source, text, verdict)


def findings(flags: Clustering, table: "Dataset") -> list[Finding]:
    """Return what the numbers say about each prediction; none where the grid has no cell for it."""
    candidates = (
        small_beta(flags, table["share"].isel(when=-1)),
        large_d(flags, table),
        first_token(flags, table) if flags.causal else orthogonal(flags, table),
        metastable(flags, table),
    )
    return [finding for finding in candidates if finding is not None]


# Tables and figures
# ------------------

MASK = "Causal attention, "
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#56B4E9", "linestyle": (0, (1, 1.2)), "marker": "^"},
    {"color": "#E69F00", "linestyle": (0, (4, 1.5)), "marker": "s"},
    {"color": "#D55E00", "linestyle": "-", "marker": "o"},
)
EDGE: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.4}


def short(time: float) -> str:
    """Return a time to three figures, without an exponent up to a million."""
    return f"{float(f'{time:.3g}'):g}"


def report(flags: Clustering, table: "Dataset") -> str:
    """Return tables of the phase diagram and of the series."""
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
    rows = []
    for beta in flags.series_betas:
        all_of = plateaus(flags, table, beta)
        shown = [
            f"{p.count} from {short(p.start)} to {short(p.end)}" + ("" if p.ended else " (end)")
            for p in all_of[0]
        ]
        longest = [max((p.end - p.start for p in one), default=0.0) for one in all_of]
        one = table["time_to_one"].sel(series_beta=beta).values
        last_count = table["series_count"].sel(series_beta=beta).values[:, -1]
        median = float(np.median(np.where(np.isfinite(one), one, np.inf)))
        rows.append({
            "beta": f"{beta:g}",
            "plateaus of start 0": "; ".join(shown) or "none",
            "starts with a plateau": f"{sum(map(bool, all_of))} of {len(all_of)}",
            "longest plateau, median": short(float(np.median(longest))),
            "in one cluster at the end": f"{np.sum(last_count == 1)} of {len(one)}",
            "median time to it": "later" if math.isinf(median) else short(median),
        })  # fmt: skip
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


def edges_of(values: FloatArray) -> FloatArray:
    """Return edges of cells around rising values: midpoints, and as far again beyond the ends."""
    if len(values) == 1:
        return np.array([values[0] - 0.5, values[0] + 0.5])
    middle = (values[1:] + values[:-1]) / 2
    first, last = 2 * values[0] - middle[0], 2 * values[-1] - middle[-1]
    return np.concatenate([[first], middle, [last]])


def frontier_errors(table: "Dataset", resamples: int = 200) -> FloatArray:
    """Return distances (d, when, 2) from the frontiers to the ends of their 95 % intervals.

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


def phase_diagram(flags: Clustering, table: "Dataset") -> "study.Figure":
    """Draw the share at the end over (d, beta), and the frontier at every time.

    Unless attention is causal, that of orthogonal tokens is at the right edge.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, NullLocator

    table = table.sortby(["beta", "d"])
    dims, betas, times = (table[name].values for name in ("d", "beta", "when"))
    across, up = 2 ** edges_of(np.log2(dims)), edges_of(betas)
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
            frontier_errors(table.assign(frontier=table["frontier"].transpose("d", "when"))),
        )
        for k, t in enumerate(times):
            look = LOOKS[k % len(LOOKS)]
            inside = np.isfinite(edge[:, k])
            where = "" if inside.any() else " (nowhere)"
            drawn = np.where(inside, edge[:, k], np.nan)
            shift = 1.03 ** (k - (len(times) - 1) / 2)  # apart, where their bars meet
            axis.errorbar(dims * shift, drawn, errors[:, k].T, label=f"$t$ = {t:g}{where}",
                          capsize=2, elinewidth=1.0, **EDGE, **look)  # fmt: skip
            theory = float(table["orthogonal_frontier"].values[k])
            if not flags.causal and up[0] <= theory <= up[-1]:
                axis.plot([across[-1]], [theory], color=look["color"], marker="<", markersize=6,
                          linestyle="none", clip_on=False, zorder=5, **EDGE)  # fmt: skip
        axis.xaxis.set_major_locator(FixedLocator(dims.tolist()))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticklabels([f"{d}" for d in dims])
        axis.set_yticks(betas, [f"{b:g}" for b in betas])
        axis.set(xlim=(across[0], across[-1]), ylim=(up[0], up[-1]))
        axis.set(xlabel="Dimension $d$", ylabel=r"Inverse temperature $\beta$")
        for side in ("top", "right"):
            axis.spines[side].set_visible(True)
        starts = table.sizes["start"]
        figure.colorbar(mesh, ax=axis, label=f"Share of {starts} starts in one cluster at "
                        f"$t$ = {times[-1]:g}")  # fmt: skip
        handles, texts = axis.get_legend_handles_labels()
        if not flags.causal:
            look = {"marker": "<", "markersize": 6, "linestyle": "none", "color": "0.6"}
            handles.append(Line2D([], [], **look, **EDGE))
            texts.append("orthogonal tokens")
        figure.legend(handles, texts, loc="outside lower center", ncols=4,
                      title="Frontier, where the share is 1/2 (bars: 95 % intervals)")  # fmt: skip
        axis.set_title(
            f"{MASK * flags.causal}$H$ = 1, $n$ = {flags.n}, {flags.paths} starts per cell"
        )
    return figure


def series(flags: Clustering, table: "Dataset") -> "study.Figure":
    """Draw numbers of clusters over time, a panel per beta, plateaus of the first start in bold."""
    betas, n = sorted(flags.series_betas), flags.series_n
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
            for plateau in plateaus(flags, table, beta)[0]:
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
        caption(
            figure,
            f"{MASK * flags.causal}$H$ = 1, $n$ = {n}, $d$ = {flags.series_d}, "
            f"{flags.series_paths} starts",
        )
    return figure


def main() -> None:
    flags = study.command_line(Clustering, __doc__)
    with study.session("clustering", flags) as session:
        files = session.solve(tasks(flags))
        with session.progress(len(files), "clusters") as advance:
            table = collect(flags, files, advance)
        if flags.causal:
            cells = [files[cell_name(b, d)] for b in flags.betas for d in flags.dims]
            add_first_token(table, cells)
        session.finish(
            table, report(flags, table), findings(flags, table),
            {"phase_diagram": phase_diagram(flags, table), "series": series(flags, table)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
