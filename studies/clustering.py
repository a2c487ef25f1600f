"""Clusters in self-attention: when all tokens meet in one, and when several live long.

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
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import clusters, study, tokens
from wflow._checks import number, positive, whole
from wflow._problem import count_steps
from wflow._study_flags import Switch
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.heads import Frozen

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

FloatArray = NDArray[np.float64]

SHARES = (0.25, 0.5, 1.0)  # of the time, at which the phase diagram is read
ONE = 0.95  # share of the starts from which on a cell counts as "one cluster"
SMALL_BETA = 1.0
SERIES_TIMES = 160
RESAMPLES = 1000
GLPR = "[GLPR]"
CAUSAL = "Karagodin, Polyanskiy, Rigollet (2024)"


@dataclass(frozen=True, kw_only=True)
class Clustering(study.Flags):
    """Flags of this study."""

    betas: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
    """Inverse temperatures beta of the phase diagram."""
    dims: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
    """Dimensions d of the phase diagram."""
    n: int = 32
    """Number of tokens of the phase diagram."""
    paths: int = 20
    """Random starts of each cell of the phase diagram; the same ones for every beta."""
    t_final: float = 30.0
    """End time of the phase diagram, in units of [GLPR]."""
    dt: float = 0.25
    """Time step, in units of [GLPR]."""
    series_betas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    """Inverse temperatures of the series over time."""
    series_n: int = 64
    """Number of tokens of the series."""
    series_d: int = 3
    """Dimension of the series."""
    series_paths: int = 16
    """Random starts of the series; the same ones for every beta."""
    series_t: float = 2000.0
    """End time of the series, in units of [GLPR]."""
    scale: float = 0.0447
    """Geodesic distance, in radians, up to which two tokens are linked: <x, y> >= 0.999."""
    scheme: Literal["euler", "heun", "rk4"] = "rk4"
    """Time stepping."""
    causal: Switch = False
    """Causal attention: every token attends to itself and to those before it only."""
    out: study.Folder = Path("results/clustering")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        for name, values in (("--betas", self.betas), ("--series-betas", self.series_betas)):
            for beta in values:
                positive(beta, name)
            if not values or len({f"{beta:g}" for beta in values}) < len(values):
                raise InputError(f"{name}: expected one value or more, each once")
        if not self.dims or len(set(self.dims)) < len(self.dims):
            raise InputError("--dims: expected one dimension or more, each once")
        for d in (*self.dims, self.series_d):
            whole(d, "--dims and --series-d", 2, why="tokens live on the sphere S^(d-1)")
        for name in ("n", "series_n"):
            whole(getattr(self, name), f"--{name.replace('_', '-')}", 2, why="one token is alone")
        whole(self.series_paths, "--series-paths")
        if not 0 < number(self.scale, "--scale") < math.pi:
            raise InputError(f"--scale is {self.scale:g}: expected radians, between 0 and pi")
        count_steps(self.t_final, self.dt)
        count_steps(positive(self.series_t, "--series-t"), self.dt)


def problem(
    flags: Clustering, x0: FloatArray, beta: float, steps: int, at: Sequence[int]
) -> dict[str, Any]:
    """Arguments of `wflow.solve` for one beta, with the tokens of all starts kept at some steps."""
    starts, d = len(x0), x0.shape[-1]
    dt = flags.dt / beta
    return {
        "x0": x0, "law": Frozen(), "heads": beta * np.eye(d)[None], "t_final": steps * dt,
        "dt": dt, "paths": starts, "seed": flags.seed, "direction": "ascent",
        "scheme": flags.scheme, "causal": flags.causal, "ledger": False, "record_every": steps,
        "snapshots": [k * dt for k in at], "snapshot_paths": range(starts),
    }  # fmt: skip


def starts(flags: Clustering, paths: int, n: int, d: int) -> FloatArray:
    """Uniform tokens of every start, (paths, n, d)."""
    return tokens.uniform(paths * n, d, seed=flags.seed).reshape(paths, n, d)


def tasks(flags: Clustering) -> dict[str, dict[str, Any]]:
    """All runs of the study: name -> arguments of `wflow.solve`."""
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
    return float(quad(slowness, 0, end, limit=400, points=[0.01, 0.1, 1.0])[0])


def meeting_beta(time: float, n: int, scale: float) -> float:
    """The beta for which orthogonal tokens meet at a time; NaN for a time too short for any."""
    from scipy.optimize import brentq

    if meeting_time(1e-6, n, scale) > time:
        return math.nan
    return float(brentq(lambda beta: meeting_time(beta, n, scale) - time, 1e-6, 60))


def frontier(betas: Sequence[float], share: FloatArray) -> float:
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


def main() -> int:
    flags = study.command_line(Clustering, __doc__)
    with study.session("clustering", flags) as session:
        files = session.solve(tasks(flags))
        with session.progress(len(files), "clusters") as advance:
            counts = {}
            for name, file in files.items():
                counts[name] = clusters.over_time(file, flags.scale, quantities=["count"])["count"]
                advance(1)
        table = collect(flags, counts)
        if flags.causal:
            add_first_token(
                table, [files[cell_name(b, d)] for b in flags.betas for d in flags.dims]
            )
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(flags, table),
            figures={
                "phase_diagram": phase_figure(flags, table),
                "series": series_figure(flags, table),
            },
        )
    return 0


def collect(flags: Clustering, counts: "dict[str, DataArray]") -> "Dataset":
    """Numbers of clusters of all runs, and what follows from them, with times in [GLPR] units."""
    import xarray

    cells = [[counts[cell_name(beta, d)] for d in flags.dims] for beta in flags.betas]
    number_of = np.array(
        [[cell.values.T for cell in row] for row in cells]
    )  # (beta, d, when, start)
    when = cells[0][0]["snapshot"].values * flags.betas[0]
    series = np.array([counts[series_name(beta)].values for beta in flags.series_betas])
    times = counts[series_name(flags.series_betas[0])]["snapshot"].values * flags.series_betas[0]
    reached = np.argmax(series == 1, axis=2)  # the first snapshot
    one = np.where((series == 1).any(axis=2), times[reached], np.nan)
    share = (number_of == 1).mean(axis=3)
    edge = [
        [frontier(flags.betas, share[:, j, k]) for k in range(len(when))]
        for j in range(len(flags.dims))
    ]
    orthogonal = [meeting_beta(t, flags.n, flags.scale) for t in when]

    def named(dims: tuple[str, ...], values: Any, name: str) -> tuple[Any, ...]:
        return dims, np.asarray(values), {"long_name": name, "units": "1"}

    unit = "in units of [GLPR]"
    return xarray.Dataset(
        {
            "count": named(("beta", "d", "when", "start"), number_of, "number of clusters"),
            "share": named(("beta", "d", "when"), share, "share of the starts in one cluster"),
            "frontier": named(("d", "when"), edge, "beta at which that share falls below 1/2"),
            "orthogonal_frontier": named(("when",), orthogonal, "frontier of orthogonal tokens"),
            "series_count": named(
                ("series_beta", "series_start", "time"), series, "number of clusters"
            ),
            "time_to_one": named(
                ("series_beta", "series_start"), one, f"time to one cluster, {unit}; NaN: never"
            ),
        },
        {
            "beta": named(("beta",), flags.betas, "inverse temperature of the phase diagram"),
            "d": named(("d",), flags.dims, "dimension"),
            "when": named(("when",), when, f"time of the phase diagram, {unit}"),
            "series_beta": named(("series_beta",), flags.series_betas, "beta of the series"),
            "time": named(("time",), times, f"time of the series, {unit}"),
        },
    )


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


def plateaus(
    flags: Clustering, table: "Dataset", beta: float, start: int
) -> list[clusters.Plateau]:
    """Metastable plateaus of one series: fewer than n/2 clusters, so that they are of some size."""
    counts = table["series_count"].sel(series_beta=beta).isel(series_start=start).values
    return clusters.plateaus(table["time"].values, counts, below=max(3, flags.series_n // 2))


def report(flags: Clustering, table: "Dataset") -> str:
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
        edges["orthogonal"] = [f"{value:.2f}" for value in table["orthogonal_frontier"].values]
    rows: dict[str, list[str]] = {
        "beta": [], "plateaus of start 0": [], "starts with a plateau": [],
        "longest plateau, median": [], "in one cluster at the end": [], "median time to it": [],
    }  # fmt: skip
    for beta in flags.series_betas:
        all_of = [plateaus(flags, table, beta, s) for s in range(flags.series_paths)]
        shown = [
            f"{p.count} from {p.start:.3g} to {p.end:.3g}" + ("" if p.ended else " (end)")
            for p in all_of[0]
        ]
        longest = [max((p.end - p.start for p in found), default=0.0) for found in all_of]
        one = table["time_to_one"].sel(series_beta=beta).values
        met = np.isfinite(one)
        median = float(np.median(np.where(met, one, np.inf)))
        rows["beta"].append(f"{beta:g}")
        rows["plateaus of start 0"].append("; ".join(shown) or "none")
        rows["starts with a plateau"].append(f"{sum(map(bool, all_of))} of {len(all_of)}")
        rows["longest plateau, median"].append(f"{np.median(longest):.3g}")
        rows["in one cluster at the end"].append(f"{met.sum()} of {len(met)}")
        rows["median time to it"].append("later" if math.isinf(median) else f"{median:.3g}")
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


def edge_text(beta: float) -> str:
    """A frontier in words: NaN lies below all of --betas, inf above."""
    return "below" if math.isnan(beta) else "above" if math.isinf(beta) else f"{beta:.2f}"


def growth(table: "Dataset") -> tuple[float, float, float, list[float]]:
    """Slope of log(time to one cluster) over beta, its 95 % interval, and the beta that count.

    Only those beta count at which every start got there: a median over the others would be cut.
    """
    one = table["time_to_one"].values
    met = np.isfinite(one).all(axis=1)
    betas = table["series_beta"].values[met]
    if len(betas) < 2:
        return math.nan, math.nan, math.nan, list(betas)
    centred = betas - betas.mean()
    log = np.log(one[met])

    def slope(logs: FloatArray) -> float:
        return float(centred @ logs.mean(axis=1) / np.sum(centred**2))

    rng = np.random.Generator(np.random.Philox(0))
    size = log.shape[1]
    drawn = [slope(log[:, rng.integers(size, size=size)]) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return slope(log), float(low), float(high), list(betas)


def findings(flags: Clustering, table: "Dataset") -> list[study.Finding]:
    """What the numbers say about each prediction."""
    share = table["share"].isel(when=-1)
    source = CAUSAL if flags.causal else GLPR
    found = [small_beta(share, source), large_d(flags, table, source), metastable(flags, table)]
    found.insert(2, first_token(table) if flags.causal else orthogonal(flags, table))
    return found


def first_token(table: "Dataset") -> study.Finding:
    """Causal attention: what the tokens gather at."""
    moved = float(table["first_token_moved"])
    text = (
        f"the first token moves by {moved:.1g} at most, over all runs, so that one cluster of all "
    )
    text += "tokens is one around it; in the mean over the starts with one cluster at the end the "
    text += f"others are within {float(table['first_token_distance']):.1e} of it"
    good = moved < 1e-9
    return study.Finding(
        "the one cluster is at the first token, which stays where it is", CAUSAL, text,
        "held" if good else "not held",
    )  # fmt: skip


def small_beta(share: "DataArray", source: str) -> study.Finding:
    prediction = f"one cluster for beta small (beta <= {SMALL_BETA:g}), any d"
    cells = share.where(share["beta"] <= SMALL_BETA, drop=True)
    if not cells.size:
        return study.Finding(prediction, source, "no such beta in --betas", "held in part")
    least, mean = float(cells.min()), float(cells.mean())
    where = [
        f"d = {int(d)} at beta = {float(b):g} ({float(cells.sel(beta=b, d=d)):.2f})"
        for b in cells["beta"].values
        for d in cells["d"].values
        if cells.sel(beta=b, d=d) < ONE
    ]
    text = f"share at the end {least:.2f} at least, {mean:.3f} in the mean"
    if not where:
        return study.Finding(prediction, source, text, "held")
    text += f"; below {ONE:g} for {', '.join(where)}"
    return study.Finding(prediction, source, text, "held in part" if mean >= 0.5 else "not held")


def large_d(flags: Clustering, table: "Dataset", source: str) -> study.Finding:
    prediction = f"one cluster for d large (d >= n = {flags.n}), any beta"
    share = table["share"].isel(when=-1)
    large = share.where(share["d"] >= flags.n, drop=True)
    if not large.size:
        return study.Finding(prediction, source, "no such d in --dims", "held in part")
    edge = table["frontier"].isel(when=-1).sortby("d").values
    all_one = [float(b) for b in large["beta"].values if (large.sel(beta=b) >= ONE).all()]
    text = f"at t = {flags.t_final:g} for beta up to {max(all_one, default=0):g}; the frontier "
    text += (
        f"goes from beta = {edge_text(edge[0])} (d = {min(flags.dims)}) to {edge_text(edge[-1])} "
    )
    text += f"(d = {max(flags.dims)}) at t = {flags.t_final:g}"
    at_last = table["frontier"].sel(d=max(flags.dims)).values
    text += ", and at the largest d it moves with t: " + ", ".join(
        f"{edge_text(b)} at t = {t:g}" for b, t in zip(at_last, table["when"].values, strict=True)
    )
    if len(all_one) == len(flags.betas):
        return study.Finding(prediction, source, text, "held")
    rises = edge[-1] > 1.5 * edge[0] or (math.isnan(edge[0]) and not math.isnan(edge[-1]))
    text += ": a statement about t to infinity, reached at larger beta later"
    return study.Finding(prediction, source, text, "held in part" if rises else "not held")


def orthogonal(flags: Clustering, table: "Dataset") -> study.Finding:
    d = max(flags.dims)
    prediction = "for d large the frontier is that of orthogonal tokens, all of one angle"
    seen, theory = table["frontier"].sel(d=d).values, table["orthogonal_frontier"].values
    usable = np.isfinite(seen) & np.isfinite(theory)
    if not usable.any() or d < flags.n:
        text = "no frontier within --betas at d >= n"
        return study.Finding(prediction, f"{GLPR} section 6", text, "held in part")
    gap = np.abs(seen / theory - 1)[usable]
    text = f"d = {d}: " + ", ".join(
        f"beta = {s:.2f} against {b:.2f} at t = {t:g}"
        for s, b, t in zip(seen, theory, table["when"].values, strict=True)
    )
    worst = float(gap.max())
    verdict: Literal["held", "held in part", "not held"] = "not held"
    if worst <= 0.1:
        verdict = "held"
    elif gap.min() <= 0.1:
        verdict = "held in part"
    return study.Finding(
        prediction, f"{GLPR} section 6", f"{text}; off by at most {100 * worst:.1f} %", verdict
    )


def metastable(flags: Clustering, table: "Dataset") -> study.Finding:
    prediction = "metastable clusters for beta large, living exponentially long in beta"
    beta = max(flags.series_betas)
    with_plateau = np.mean(
        [bool(plateaus(flags, table, beta, s)) for s in range(flags.series_paths)]
    )
    slope, low, high, used = growth(table)
    text = f"at beta = {beta:g} {100 * with_plateau:.0f} % of the starts show a plateau of several "
    text += "clusters; "
    if len(used) < 2:
        text += "too few beta at which every start got to one cluster for a growth rate"
    else:
        text += f"log(time to one cluster) grows by {slope:.2f} per unit of beta ({low:.2f} to "
        text += f"{high:.2f}, beta = {min(used):g} to {max(used):g})"
    verdict: Literal["held", "held in part", "not held"] = "not held"
    if with_plateau >= ONE and low > 0:
        verdict = "held"
    elif with_plateau >= 0.5 or low > 0:
        verdict = "held in part"
    return study.Finding(prediction, CAUSAL if flags.causal else GLPR, text, verdict)


LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#56B4E9", "linestyle": (0, (1, 1.2)), "marker": "^"},
    {"color": "#E69F00", "linestyle": (0, (4, 1.5)), "marker": "s"},
    {"color": "#D55E00", "linestyle": "-", "marker": "o"},
)


def phase_figure(flags: Clustering, table: "Dataset") -> "Figure":
    """The share at the end over (d, beta), and the frontier at every time."""
    from wflow._figure import grid, style

    order_d, order_b = np.argsort(flags.dims), np.argsort(flags.betas)
    dims, betas = np.array(flags.dims)[order_d], np.array(flags.betas)[order_b]
    share = table["share"].isel(when=-1).values[np.ix_(order_b, order_d)]
    with style():
        figure, axes = grid(1, 1, 5.6, 3.5)
        axis = axes[0, 0]
        mesh = axis.imshow(
            share, origin="lower", aspect="auto", cmap="Greys_r", vmin=0, vmax=1,
            interpolation="nearest",
        )  # fmt: skip

        def height(beta: FloatArray) -> FloatArray:  # the rows of the image are equally high
            return np.interp(beta, betas, np.arange(len(betas)), left=np.nan, right=np.nan)

        edge = table["frontier"].values[order_d]
        for k, t in enumerate(table["when"].values):
            look = LOOKS[k % len(LOOKS)]
            inside = np.isfinite(edge[:, k])
            heights = np.full(len(dims), np.nan)
            heights[inside] = height(edge[inside, k])
            where = "" if inside.any() else ": nowhere"
            axis.plot(heights, label=f"$t$ = {t:g}{where}", markeredgecolor="black",
                      markeredgewidth=0.4, **look)  # fmt: skip
            theory = float(table["orthogonal_frontier"].values[k])
            if not flags.causal and math.isfinite(theory):
                place = float(height(np.array([theory]))[0])
                axis.plot([len(dims) - 0.5], [place], color=look["color"], marker="<",
                          markersize=6, markeredgecolor="black", markeredgewidth=0.4,
                          linestyle="none", clip_on=False, zorder=5,
                          label="orthogonal tokens" if k == len(SHARES) - 1 else None)  # fmt: skip
        axis.set_xticks(range(len(dims)), [f"{d}" for d in dims])
        axis.set_yticks(range(len(betas)), [f"{b:g}" for b in betas])
        axis.set_xlabel("dimension $d$")
        axis.set_ylabel(r"inverse temperature $\beta$")
        for side in ("top", "right"):
            axis.spines[side].set_visible(True)
        figure.colorbar(mesh, ax=axis, label=f"share in one cluster at $t$ = {flags.t_final:g}")
        figure.legend(title="frontier: share 1/2 at", loc="outside lower center", ncols=4)
        mask = "causal attention, " if flags.causal else ""
        axis.set_title(f"{mask}$H$ = 1, $n$ = {flags.n}, {flags.paths} starts per cell")
    return figure


def series_figure(flags: Clustering, table: "Dataset") -> "Figure":
    """Number of clusters over time, a panel per beta, plateaus of one start drawn bold."""
    from wflow._figure import PAGE, grid, style

    betas = sorted(flags.series_betas)
    columns = min(3, len(betas))
    rows = -(-len(betas) // columns)
    time = table["time"].values
    with style():
        figure, axes = grid(rows, columns, PAGE, 0.5 + 1.9 * rows, sharex=True, sharey=True)
        for k, beta in enumerate(betas):
            axis = axes.flat[k]
            counts = table["series_count"].sel(series_beta=beta).values
            for s in range(1, len(counts)):
                axis.step(time[1:], counts[s, 1:], where="post", color="#BBBBBB", linewidth=0.5)
            axis.step(time[1:], counts[0, 1:], where="post", color="#0072B2", linewidth=1.1)
            for plateau in plateaus(flags, table, beta, 0):
                axis.plot(
                    [plateau.start, plateau.end], [plateau.count] * 2, color="#D55E00",
                    linewidth=3.2, solid_capstyle="butt", zorder=4,
                    marker="" if plateau.ended else ">", markevery=[1], markersize=5,
                )  # fmt: skip
            axis.set_xscale("log")
            axis.set_yscale("log", base=2)
            axis.set_ylim(0.85, 1.2 * flags.series_n)
            ticks = [2**j for j in range(0, int(math.log2(flags.series_n)) + 1)]
            axis.set_yticks(ticks, [str(tick) for tick in ticks])
            axis.set_title(rf"$\beta$ = {beta:g}")
            if k >= len(betas) - columns:
                axis.set_xlabel("time $t$ (units of [GLPR])")
                axis.tick_params(labelbottom=True)
            if k % columns == 0:
                axis.set_ylabel("clusters")
        for axis in axes.flat[len(betas) :]:
            axis.set_visible(False)
        mask = "causal attention, " if flags.causal else ""
        figure.suptitle(
            f"{mask}$H$ = 1, $n$ = {flags.series_n}, $d$ = {flags.series_d}, {flags.series_paths} "
            "starts (grey); one start (blue) with its plateaus (bold; arrow: lasts to the end)",
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
    return figure


if __name__ == "__main__":
    sys.exit(guarded(main))
