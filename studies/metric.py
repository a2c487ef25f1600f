"""The metric weighted by the effective mobility: speed of a flow, and two-sided bounds.

Along a flow the metric derivative is the limit of difference quotients of the distance:
W₂(mu_t, mu_{t+delta})/delta goes to [(1/n) sum |v|^2]^{1/2}, and W_b, which weights every path by
the effective mobility b, to [(1/n) sum b |v|^2]^{1/2}: [MHT] Lemma 3.8. And on any pair of clouds
c1 W₂ <= W_b <= c2 W₂ with c1^2 <= b <= c2^2: [MHT] Proposition 3.7.

    python studies/metric.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _metric import METRICS, PAIR, bounds_figure, derivative_figure, metric_report, violations
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, fits, metric, study, tokens, transport
from wflow._core.checks import count_steps, positive, whole
from wflow._core.threads import numba_threads
from wflow.cli import guarded
from wflow.heads import Oscillating
from wflow.study import Finding, slope_text

if TYPE_CHECKING:
    from xarray import Dataset

FLOWS = ("softmax", "effective", "unnormalised")
SLOPE_TOLERANCE, ERROR_TOLERANCE = 0.15, 0.02
CLOUDS = ("uniform", "clusters", "cross-polytope")
Array = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class Metric(study.TokenFlags):
    """Flags of this study."""

    tokens: str = "uniform"
    """Initial tokens of each path: cross-polytope, uniform, clusters, digits, or a FILE."""
    tokens_seed: study.Natural = 0
    """Seed of the initial tokens of path 0; the next paths have the next seeds."""
    n: study.Count = 60
    """Number of tokens, in the flows and in the pairs."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    heads: int = 4
    """Number of heads of the flows; they oscillate, with spread phases."""
    paths: study.Count = 8
    """Flows from different initial tokens; all share the heads."""
    t_final: study.Positive = 2.08
    """End time of the flows: not before the largest of --times plus the largest of --deltas."""
    dt: study.Positive = 2.5e-3
    """Time step of the flows, by rk4."""
    times: tuple[float, ...] = (0.0, 1.0, 2.0)
    """Times t at which the flows are differentiated."""
    deltas: tuple[float, ...] = (0.08, 0.04, 0.02, 0.01, 0.005)
    """Increments delta of the difference quotients."""
    segments: int = 16
    """Segments of the paths between the clouds of a random pair; between those of a flow, 4."""
    pairs: int = 200
    """Random pairs of clouds of different kinds, with 1 to 8 heads of different sizes."""
    largest: float = 8.0
    """Largest norm of the heads of the random pairs."""
    out: study.Folder = Path("results/metric")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.n, "--n", 2)
        whole(self.d, "--d", 2, why="tokens live on the sphere S^(d-1)")
        whole(self.paths, "--paths", 2, why="an interval needs two")
        for name in ("heads", "segments", "pairs"):
            whole(getattr(self, name), f"--{name}")
        positive(self.largest, "--largest")
        if self.largest > 64:
            raise InputError(f"--largest is {self.largest:g}: expected a norm up to 64")
        study.distinct(self.deltas, "--deltas", 2)
        study.distinct(self.times, "--times")
        count_steps(self.t_final, self.dt)
        for name, values in (("--deltas", self.deltas), ("--times", self.times)):
            for value in values:
                if name == "--deltas" or value != 0:
                    positive(value, name)
                    if abs(np.rint(value / self.dt) * self.dt - value) > 1e-9 * value:
                        raise InputError(
                            f"{name} {value:g} is not a whole number of steps --dt {self.dt:g}"
                        )
        last = max(self.times) + max(self.deltas)
        if last > self.t_final * (1 + 1e-12):
            raise InputError(
                f"--t-final is {self.t_final:g}: the last of --times plus the largest of --deltas "
                f"is {last:g}; give --t-final {last:g} or more"
            )


def derivatives(flags: Metric, files: dict[str, Path], session: study.Session) -> "Dataset":
    """Difference quotients and speeds in both metrics, along every flow."""

    def measure(flow: "wflow.flows.FlowName", t: float, path: int) -> dict[str, Any]:
        with wflow.open(files[flow]) as run:
            here = run.isel(snapshot_path=path)
            now = here.sel(snapshot=t, method="nearest")
            x, D = now["tokens"].values, now["heads"].values
            ahead = [
                here["tokens"].sel(snapshot=t + delta, method="nearest").values
                for delta in flags.deltas
            ]
        v = wflow.velocity(x, D, flow=flow)
        speed = np.array([metric.metric_derivative(x, v, heads) for heads in (None, D)])
        results = [metric.weighted_distance(x, y, D, segments=4) for y in ahead]
        distance = [[transport.w2(x, y) for y in ahead], [one.value for one in results]]
        quotient = np.array(distance) / np.array(flags.deltas)
        return {
            "quotient": quotient,
            "speed": speed,
            "relative_error": np.abs(quotient / speed[:, None] - 1),
            "quotient_converged": [one.converged for one in results],
        }

    each = ("metric", "delta")
    total = len(FLOWS) * len(flags.times) * flags.paths
    with session.progress(total, "difference quotients") as advance:
        table = study.sweep(
            {
                "flow": (FLOWS, "flow of the tokens"),
                "time": (flags.times, "time t"),
                "path": (np.arange(flags.paths), "initial tokens"),
            },
            measure,
            {
                "quotient": (each, "distance of mu_t and mu_{t+delta} over delta"),
                "speed": (("metric",), "metric derivative [(1/n) sum b |v|^2]^(1/2)"),
                "relative_error": (each, "|quotient / speed - 1|"),
                "quotient_converged": (("delta",), "whether the minimisation of W_b converged"),
            },
            {"metric": (list(METRICS), "metric"), "delta": (flags.deltas, "increment of time")},
            advance,
        )
    return table.transpose("flow", "metric", "time", "delta", "path")


def random_pairs(flags: Metric, session: study.Session) -> "Dataset":
    """W_b, W₂ and bounds of pairs of clouds of all kinds."""

    def measure(pair: int) -> dict[str, Any]:
        rng = np.random.default_rng([flags.seed, pair])
        seeds = rng.integers(2**31, size=2)
        x, y = (tokens.make(str(rng.choice(CLOUDS)), flags.n, flags.d, int(s)) for s in seeds)
        z = rng.normal(size=(int(rng.integers(1, 9)), flags.d, flags.d))
        D = z + z.swapaxes(-1, -2)
        norm = flags.largest * rng.random()
        D *= norm / np.abs(np.linalg.eigvalsh(D)).max()
        result = metric.weighted_distance(x, y, D, segments=flags.segments)
        bounds, finer = result.bounds, np.array(result.extrapolated, float)  # None is NaN
        values = (bounds.w2, result.value, finer, bounds.lower, bounds.upper,
                  result.path_lower, result.path_upper, norm, len(D), result.converged)  # fmt: skip
        return dict(zip(PAIR, values, strict=True))

    pairs = {"pair": (np.arange(flags.pairs), "pair of clouds")}
    with session.progress(flags.pairs, "random pairs") as advance:
        return study.sweep(pairs, measure, PAIR, advance=advance)


def slope(table: "Dataset", flow: str, name: str) -> fits.PowerLaw:
    """Power law of the relative error in delta; resampled over the initial tokens."""
    error = table["relative_error"].sel(flow=flow, metric=name).mean("time")
    return fits.power_law(table["delta"].values, error.transpose("delta", "path").values)


def findings(table: "Dataset", laws: dict[tuple[str, str], fits.PowerLaw]) -> list[Finding]:
    """Every prediction with its verdict."""
    rows = []
    smallest = table["relative_error"].sel(delta=table["delta"].min())
    for name, symbol in METRICS.items():
        weight = "b " if name == "weighted" else ""
        errors = {flow: float(smallest.sel(flow=flow, metric=name).mean()) for flow in FLOWS}
        rows.append(
            Finding.decided(
                f"{symbol}(mu_t, mu_(t+delta))/delta -> [(1/n) sum {weight}|v|^2]^(1/2), error "
                "linear in delta",
                "[MHT] Lemma 3.8" + ("" if name == "weighted" else ", b = 1"),
                "; ".join(
                    f"{flow}: slope {slope_text(laws[flow, name])}, error {error:.1e} at the "
                    "smallest delta"
                    for flow, error in errors.items()
                ),
                [
                    abs(laws[flow, name].exponent - 1) <= SLOPE_TOLERANCE
                    and error <= ERROR_TOLERANCE
                    for flow, error in errors.items()
                ],
            )
        )
    pairs = table.sizes["pair"]
    ratio = table["pair_wb"] / table["pair_w2"]
    outside = violations(table, "pair_lower", "pair_upper")
    any_cloud = Finding.decided(
        "c1 W₂ <= W_b <= c2 W₂ with c1^2 <= b <= c2^2 for every cloud",
        "[MHT] Prop. 3.7",
        f"{outside.sum()} violations in {pairs} pairs, W_b/W₂ from {float(ratio.min()):.3f} to "
        f"{float(ratio.max()):.3f}; of the discrete action it holds by construction, so that "
        "this checks the code",
        ~outside,
    )
    outside = violations(table, "pair_path_lower", "pair_path_upper")
    along_path = Finding.decided(
        "W₂ sqrt(min b) <= W_b <= W₂ sqrt(max b), min along the path found, max along the "
        "W₂ geodesics",
        "docs/theory, weighted metric",
        f"{outside.sum()} violations in {pairs} pairs; likewise by construction",
        ~outside,
    )
    return [*rows, any_cloud, along_path]


def main() -> int:
    flags = study.command_line(Metric, __doc__)
    with study.session("metric", flags) as session:
        times = sorted({t + s for t in flags.times for s in (0.0, *flags.deltas)})
        common = {
            "x0": flags.clouds(flags.paths), "law": Oscillating(flags.d), "heads": flags.heads,
            "t_final": flags.t_final, "dt": flags.dt, "paths": flags.paths, "seed": flags.seed,
            "scheme": "rk4",
            "save": SaveAt(snapshots=times, paths=range(flags.paths), heads=True),
        }  # fmt: skip
        files = session.solve({flow: common | {"flow": flow} for flow in FLOWS})
        with numba_threads(flags.compute.threads):
            table = derivatives(flags, files, session).merge(random_pairs(flags, session))
        laws = {(flow, name): slope(table, flow, name) for flow in FLOWS for name in METRICS}
        facts = f"$n$ = {flags.n}, $d$ = {flags.d}"
        session.finish(
            table=table,
            text=metric_report(flags, table, laws),
            findings=findings(table, laws),
            figures={
                "derivative": derivative_figure(
                    table, laws, f"{facts}, $H$ = {flags.heads}, {flags.paths} paths"
                ),
                "bounds": bounds_figure(table, f"{flags.pairs} random pairs, {facts}"),
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
