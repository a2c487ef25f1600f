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
from wflow import _clustering_figures, clusters, study, tokens
from wflow._checks import number, positive, whole
from wflow._clustering_laws import edge_text, frontier, growth, meeting_beta, short
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
            figures=figures(flags, table),
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
        longest = [max((p.end - p.start for p in found), default=0.0) for found in all_of]
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


def findings(flags: Clustering, table: "Dataset") -> list[study.Finding]:
    """What the numbers say about each prediction; none where the grid has no cell for it."""
    source = CAUSAL if flags.causal else GLPR
    found = (
        small_beta(table["share"].isel(when=-1), source),
        large_d(flags, table, source),
        first_token(flags, table) if flags.causal else orthogonal(flags, table),
        metastable(flags, table),
    )
    return [finding for finding in found if finding is not None]


def first_token(flags: Clustering, table: "Dataset") -> study.Finding:
    """Causal attention: what the tokens gather at."""
    prediction = "the one cluster is at the first token, which stays where it is"
    moved, near = float(table["first_token_moved"]), float(table["first_token_distance"])
    text = f"the first token moves by {moved:.1g} at most, over all runs"
    if math.isnan(near):
        return study.Finding(
            prediction, CAUSAL, f"{text}; no start is in one cluster at the end", "held in part"
        )
    text += ", so that one cluster of all tokens is one around it; in the mean over the starts "
    text += f"with one cluster at the end the others are within {near:.1e} of it"
    good = moved < 1e-9 and near <= flags.scale
    return study.Finding(prediction, CAUSAL, text, "held" if good else "not held")


def small_beta(share: "DataArray", source: str) -> study.Finding | None:
    prediction = f"one cluster for beta small (beta <= {SMALL_BETA:g}), any d"
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
        return study.Finding(prediction, source, text, "held")
    text += f"; below {ONE:g} for {', '.join(where)}"
    return study.Finding(prediction, source, text, "held in part" if mean >= 0.5 else "not held")


def large_d(flags: Clustering, table: "Dataset", source: str) -> study.Finding | None:
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
        return study.Finding(prediction, source, text, "held")
    if last > 1.5 * first or (math.isnan(first) and not math.isnan(last)):
        text += ": a statement about t to infinity, reached at larger beta later"
        return study.Finding(prediction, source, text, "held in part")
    return study.Finding(prediction, source, text, "not held")


def orthogonal(flags: Clustering, table: "Dataset") -> study.Finding | None:
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
    verdict: Literal["held", "held in part", "not held"] = "not held"
    if with_plateau >= ONE and exponential:
        verdict = "held"
    elif with_plateau >= 0.5 or exponential:
        verdict = "held in part"
    return study.Finding(prediction, CAUSAL if flags.causal else GLPR, text, verdict)


def figures(flags: Clustering, table: "Dataset") -> "dict[str, Figure]":
    """The figures of the study by name."""
    mask = "causal attention, " if flags.causal else ""
    marked = {beta: plateaus(flags, table, beta, 0) for beta in flags.series_betas}
    return {
        "phase_diagram": _clustering_figures.phase_diagram(
            table, f"{mask}$H$ = 1, $n$ = {flags.n}, {flags.paths} starts per cell",
            orthogonal=not flags.causal,
        ),
        "series": _clustering_figures.series(
            table, marked, flags.series_n,
            f"{mask}$H$ = 1, $n$ = {flags.series_n}, $d$ = {flags.series_d}, "
            f"{flags.series_paths} starts",
        ),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(guarded(main))
