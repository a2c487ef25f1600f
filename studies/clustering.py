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
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _clustering import (
    CAUSAL,
    GLPR,
    ONE,
    add_first_token,
    figures,
    first_token,
    frontier,
    large_d,
    meeting_beta,
    metastable,
    orthogonal,
    report,
)
from numpy.typing import NDArray

from wflow import InputError, SaveAt, clusters, study, tokens
from wflow._core.checks import count_steps, number, positive, whole
from wflow.cli import guarded
from wflow.heads import Frozen
from wflow.study import SchemeName

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

FloatArray = NDArray[np.float64]

SHARES = (0.25, 0.5, 1.0)  # of the time, at which the phase diagram is read
SMALL_BETA = 1.0
SERIES_TIMES = 160


@dataclass(frozen=True, kw_only=True)
class Clustering(study.Flags):
    """Flags of this study."""

    betas: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
    """Inverse temperatures beta of the phase diagram."""
    dims: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
    """Dimensions d of the phase diagram."""
    n: study.Count = 32
    """Number of tokens of the phase diagram."""
    paths: study.Count = 20
    """Random starts of each cell of the phase diagram; the same ones for every beta."""
    t_final: study.Positive = 30.0
    """End time of the phase diagram, in units of [GLPR]."""
    dt: study.Positive = 0.25
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
    scheme: SchemeName = "rk4"
    """Time stepping."""
    causal: study.Switch = False
    """Causal attention: every token attends to itself and to those before it only."""
    out: study.Folder = Path("results/clustering")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        for name, values in (("--betas", self.betas), ("--series-betas", self.series_betas)):
            for beta in values:
                positive(beta, name)
            study.distinct(values, name)
        study.distinct(self.dims, "--dims")
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
    starts, d, dt = len(x0), x0.shape[-1], flags.dt / beta
    times = [k * dt for k in at]
    return {
        "x0": x0, "law": Frozen(), "heads": beta * np.eye(d)[None], "t_final": steps * dt,
        "dt": dt, "paths": starts, "seed": flags.seed, "direction": "ascent",
        "scheme": flags.scheme, "causal": flags.causal,
        "save": SaveAt(every=steps, snapshots=times, paths=range(starts), budget=False),
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


def collect(flags: Clustering, counts: "dict[str, DataArray]") -> "Dataset":
    """Numbers of clusters of all runs, and what follows from them, with times in [GLPR] units."""
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


def findings(flags: Clustering, table: "Dataset") -> list[study.Finding]:
    """What the numbers say about each prediction; none where the grid has no cell for it."""
    source = CAUSAL if flags.causal else GLPR
    candidates = (
        small_beta(table["share"].isel(when=-1), source),
        large_d(flags, table, source),
        first_token(flags, table) if flags.causal else orthogonal(flags, table),
        metastable(flags, table),
    )
    return [finding for finding in candidates if finding is not None]


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
        return study.Finding(prediction, source, text, "confirmed")
    text += f"; below {ONE:g} for {', '.join(where)}"
    return study.Finding(
        prediction, source, text, "confirmed in part" if mean >= 0.5 else "not confirmed"
    )


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
            cells = [files[cell_name(b, d)] for b in flags.betas for d in flags.dims]
            add_first_token(table, cells)
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(flags, table),
            figures=figures(flags, table),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
