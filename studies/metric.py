"""The metric weighted by the effective mobility: speed of a flow, and two-sided bounds.

Along a flow the metric derivative is the limit of difference quotients of the distance:
W_2(mu_t, mu_{t+delta})/delta goes to [(1/n) sum |v|^2]^{1/2}, and W_b, which weights every path by
the effective mobility b, to [(1/n) sum b |v|^2]^{1/2}: [MHT] Lemma 3.8. And on any pair of clouds
c1 W_2 <= W_b <= c2 W_2 with c1^2 <= b <= c2^2: [MHT] Proposition 3.7.

    python studies/metric.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import metric, study, tokens, transport
from wflow._checks import positive, whole
from wflow._metric_figures import Curve, bounds_figure, power_laws
from wflow._problem import count_steps
from wflow._threads import numba_threads
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.fits import PowerLaw, power_law
from wflow.heads import Oscillating

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

FLOWS = ("softmax", "effective", "unnormalised")
METRICS = {"w2": "W_2", "weighted": "W_b"}
SLOPE_TOLERANCE, ERROR_TOLERANCE = 0.15, 0.02
CLOUDS = ("uniform", "clusters", "cross-polytope")
Array = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class Metric(study.TokenFlags):
    """Flags of this study."""

    tokens: str = "uniform"
    """Initial tokens of each path: cross-polytope, uniform, clusters, digits, or a FILE."""
    tokens_seed: int = 0
    """Seed of the initial tokens of path 0; the next paths have the next seeds."""
    n: int = 60
    """Number of tokens, in the flows and in the pairs."""
    d: int = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    heads: int = 4
    """Number of heads of the flows; they oscillate, with spread phases."""
    paths: int = 8
    """Flows from different initial tokens; all share the heads."""
    t_final: float = 2.08
    """End time of the flows: not before the largest of --times plus the largest of --deltas."""
    dt: float = 2.5e-3
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
        if len(set(self.deltas)) < max(2, len(self.deltas)):
            raise InputError("--deltas: expected two or more increments, each once")
        if not self.times or len(set(self.times)) < len(self.times):
            raise InputError("--times: expected one or more times, each once")
        count_steps(self.t_final, self.dt)
        for name, values in (("--deltas", self.deltas), ("--times", self.times)):
            for value in values:
                if name == "--deltas" or value != 0:
                    positive(value, name)
                    if abs(round(value / self.dt) * self.dt - value) > 1e-9 * value:
                        raise InputError(
                            f"{name} {value:g} is not a whole number of steps --dt {self.dt:g}"
                        )
        last = max(self.times) + max(self.deltas)
        if last > self.t_final * (1 + 1e-12):
            raise InputError(
                f"--t-final is {self.t_final:g}: the last of --times plus the largest of --deltas "
                f"is {last:g}; give --t-final {last:g} or more"
            )


def main() -> int:
    flags = study.command_line(Metric, __doc__)
    x0 = flags.clouds(flags.paths)
    common = {
        "x0": x0,
        "law": Oscillating(flags.d),
        "heads": flags.heads,
        "t_final": flags.t_final,
        "dt": flags.dt,
        "paths": flags.paths,
        "seed": flags.seed,
        "scheme": "rk4",
        "snapshots": sorted({t + s for t in flags.times for s in (0.0, *flags.deltas)}),
        "snapshot_paths": range(flags.paths),
        "save_heads": True,
    }
    with study.session("metric", flags) as session:
        files = session.solve({flow: common | {"flow": flow} for flow in FLOWS})
        with numba_threads(flags.threads):
            table = derivatives(flags, files, session).merge(random_pairs(flags, session))
        fits = {
            (flow, name): slope(table, flow, name) for flow in FLOWS for name in METRICS
        }  # fmt: skip
        session.finish(
            table=table,
            text=report(flags, table, fits),
            findings=findings(table, fits),
            figures={
                "derivative": derivative_figure(flags, table, fits),
                "bounds": bounds_figure(
                    table, f"{flags.pairs} random pairs, $n$ = {flags.n}, $d$ = {flags.d}"
                ),
            },
        )
    return 0


def derivatives(flags: Metric, files: dict[str, Path], session: study.Session) -> "Dataset":
    """Difference quotients and speeds in both metrics, along every flow."""
    import xarray

    shape = (len(FLOWS), len(METRICS), len(flags.times), len(flags.deltas), flags.paths)
    quotient = np.empty(shape)
    speed = np.empty((*shape[:3], flags.paths))
    converged = np.ones(shape[:1] + shape[2:], bool)
    with session.progress(converged.size, "difference quotients") as advance:
        for f, flow in enumerate(FLOWS):
            with wflow.open(files[flow]) as run:
                for i, t in enumerate(flags.times):
                    for p in range(flags.paths):
                        here = run.isel(snapshot_path=p)
                        now = here.sel(snapshot=t, method="nearest")
                        x, D = now["tokens"].values, now["heads"].values
                        v = wflow.velocity(x, D, flow=flow)
                        for m, heads in enumerate((None, D)):
                            speed[f, m, i, p] = metric.metric_derivative(x, v, heads)
                        for k, delta in enumerate(flags.deltas):
                            ahead = here["tokens"].sel(snapshot=t + delta, method="nearest").values
                            found = metric.weighted_distance(x, ahead, D, segments=4)
                            quotient[f, 0, i, k, p] = transport.w2(x, ahead) / delta
                            quotient[f, 1, i, k, p] = found.value / delta
                            converged[f, i, k, p] = found.converged
                            advance(1)
    error = np.abs(quotient / speed[:, :, :, None] - 1)
    dims = ("flow", "metric", "time", "delta", "path")
    variables = {
        "quotient": (dims, quotient, "distance of mu_t and mu_{t+delta} over delta"),
        "speed": ((*dims[:3], "path"), speed, "metric derivative [(1/n) sum b |v|^2]^(1/2)"),
        "relative_error": (dims, error, "|quotient / speed - 1|"),
        "quotient_converged": (
            ("flow", "time", "delta", "path"),
            converged,
            "whether the minimisation of W_b converged",
        ),
    }
    return xarray.Dataset(
        {name: (d, values, {"long_name": text}) for name, (d, values, text) in variables.items()},
        {
            "flow": ("flow", list(FLOWS), {"long_name": "flow of the tokens"}),
            "metric": ("metric", list(METRICS), {"long_name": "metric"}),
            "time": ("time", list(flags.times), {"long_name": "time t"}),
            "delta": ("delta", list(flags.deltas), {"long_name": "increment of time"}),
            "path": ("path", np.arange(flags.paths), {"long_name": "initial tokens"}),
        },
    )


def random_pairs(flags: Metric, session: study.Session) -> "Dataset":
    """W_b, W_2 and bounds of pairs of clouds of all kinds."""
    import xarray

    names = {
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
    rows: dict[str, list[Any]] = {name: [] for name in names}
    with session.progress(flags.pairs, "random pairs") as advance:
        for pair in range(flags.pairs):
            rng = np.random.default_rng([flags.seed, pair])
            seeds = rng.integers(2**31, size=2)
            x, y = (tokens.make(str(rng.choice(CLOUDS)), flags.n, flags.d, int(s)) for s in seeds)
            z = rng.normal(size=(int(rng.integers(1, 9)), flags.d, flags.d))
            D = z + z.swapaxes(-1, -2)
            norm = flags.largest * rng.random()
            D *= norm / np.abs(np.linalg.eigvalsh(D)).max()
            found = metric.weighted_distance(x, y, D, segments=flags.segments)
            values = (
                found.bounds.w2, found.value, found.extrapolated, found.bounds.lower,
                found.bounds.upper, found.path_lower, found.path_upper, norm, len(D),
                found.converged,
            )  # fmt: skip
            for name, value in zip(names, values, strict=True):
                rows[name].append(value)
            advance(1)
    return xarray.Dataset(
        {name: ("pair", np.array(rows[name]), {"long_name": text}) for name, text in names.items()},
        {"pair": ("pair", np.arange(flags.pairs), {"long_name": "pair of clouds"})},
    )


def slope(table: "Dataset", flow: str, name: str) -> PowerLaw:
    """Power law of the relative error in delta; resampled over the initial tokens."""
    error = table["relative_error"].sel(flow=flow, metric=name).mean("time")
    return power_law(table["delta"].values, error.transpose("delta", "path").values)


def violations(table: "Dataset", low: str, high: str) -> int:
    """Pairs whose W_b lies outside W_low <= W_b <= W_high, beyond rounding."""
    inside = (table["pair_wb"] >= table[low] * (1 - 1e-12)) & (
        table["pair_wb"] <= table[high] * (1 + 1e-12)
    )
    return int((~inside).sum())


def findings(table: "Dataset", fits: dict[tuple[str, str], PowerLaw]) -> list[study.Finding]:
    """Every prediction, and what came out."""
    rows = []
    smallest = table["relative_error"].sel(delta=table["delta"].min())
    for name, symbol in METRICS.items():
        weight = "b " if name == "weighted" else ""
        errors = {flow: float(smallest.sel(flow=flow, metric=name).mean()) for flow in FLOWS}
        good = [
            abs(fits[flow, name].exponent - 1) <= SLOPE_TOLERANCE and error <= ERROR_TOLERANCE
            for flow, error in errors.items()
        ]
        told = "; ".join(
            f"{flow}: slope {fits[flow, name].exponent:.3f} (95 % "
            f"{fits[flow, name].exponent_ci[0]:.3f} to {fits[flow, name].exponent_ci[1]:.3f}), "
            f"error {error:.1e} at the smallest delta"
            for flow, error in errors.items()
        )
        rows.append(
            study.Finding(
                f"{symbol}(mu_t, mu_(t+delta))/delta -> [(1/n) sum {weight}|v|^2]^(1/2), error "
                "linear in delta",
                "[MHT] Lemma 3.8" + ("" if name == "weighted" else ", b = 1"),
                told,
                "held" if all(good) else "held in part" if any(good) else "not held",
            )
        )
    pairs = table.sizes["pair"]
    outside = violations(table, "pair_lower", "pair_upper")
    ratio = table["pair_wb"] / table["pair_w2"]
    rows.append(
        study.Finding(
            "c1 W_2 <= W_b <= c2 W_2 with c1^2 <= b <= c2^2 for every cloud",
            "[MHT] Prop. 3.7",
            f"{outside} violations in {pairs} pairs, W_b/W_2 from {float(ratio.min()):.3f} to "
            f"{float(ratio.max()):.3f}; of the discrete action it holds by construction, so that "
            "this checks the code",
            "held" if not outside else "held in part" if outside < pairs else "not held",
        )
    )
    outside = violations(table, "pair_path_lower", "pair_path_upper")
    rows.append(
        study.Finding(
            "W_2 sqrt(min b) <= W_b <= W_2 sqrt(max b), min along the path found, max along the "
            "W_2 geodesics",
            "docs/mathematics.md, weighted metric",
            f"{outside} violations in {pairs} pairs; likewise by construction",
            "held" if not outside else "held in part" if outside < pairs else "not held",
        )
    )
    return rows


def report(flags: Metric, table: "Dataset", fits: dict[tuple[str, str], PowerLaw]) -> str:
    """The tables."""
    error = table["relative_error"].mean(("time", "path"))
    columns: dict[str, list[str]] = {"flow": [], "metric": []}
    columns |= {f"delta {d:g}": [] for d in flags.deltas}
    columns |= {"slope": [], "95 %": []}
    for flow in FLOWS:
        for name, symbol in METRICS.items():
            columns["flow"].append(flow)
            columns["metric"].append(symbol)
            for delta in flags.deltas:
                value = float(error.sel(flow=flow, metric=name, delta=delta))
                columns[f"delta {delta:g}"].append(f"{value:.2e}")
            low, high = fits[flow, name].exponent_ci
            columns["slope"].append(f"{fits[flow, name].exponent:.3f}")
            columns["95 %"].append(f"{low:.3f} to {high:.3f}")
    width = (table["pair_upper"] / table["pair_lower"]).values
    narrow = (table["pair_path_upper"] / table["pair_path_lower"]).values
    rough = np.abs((table["pair_extrapolated"] / table["pair_wb"]).values - 1)
    lines = [
        f"Relative error of the difference quotients, H = {flags.heads} oscillating heads, n = "
        f"{flags.n}, d = {flags.d}, mean over {flags.paths} initial clouds and t = "
        f"{', '.join(f'{t:g}' for t in flags.times)}:",
        study.markdown_table(columns),
        f"{flags.pairs} random pairs, n = {flags.n}, d = {flags.d}, {flags.segments} segments:",
        study.markdown_table(
            {
                "bound": ["c1 W_2, c2 W_2 (any cloud)", "min b, max b along the paths"],
                "violations": [
                    str(violations(table, "pair_lower", "pair_upper")),
                    str(violations(table, "pair_path_lower", "pair_path_upper")),
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


def derivative_figure(
    flags: Metric, table: "Dataset", fits: dict[tuple[str, str], PowerLaw]
) -> "Figure":
    """Relative error of the difference quotients against delta, in both metrics."""
    error = table["relative_error"].mean(("time", "path"))
    facts = f"$n$ = {flags.n}, $d$ = {flags.d}, $H$ = {flags.heads}, {flags.paths} paths"
    panels = {
        f"${symbol}$: {facts}; band: 95 %": [
            Curve(
                error.sel(flow=flow, metric=name).values,
                fits[flow, name],
                flow,
                f"{flow}: slope {fits[flow, name].exponent:.2f}",
            )
            for flow in FLOWS
        ]
        for name, symbol in METRICS.items()
    }
    return power_laws(
        table["delta"].values,
        panels,
        xlabel=r"increment $\delta$",
        ylabel=r"$|W(\mu_t, \mu_{t+\delta})/(\delta\,|\dot\mu_t|) - 1|$",
        ticks=[f"{delta:g}" for delta in flags.deltas],
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
