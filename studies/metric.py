"""The metric weighted by the effective mobility: speed of a flow, and two-sided bounds.

Along a flow the metric derivative is the limit of difference quotients of the distance:
W₂(mu_t, mu_{t+delta})/delta goes to [(1/n) sum |v|^2]^{1/2}, and W_b, which weights every path by
the effective mobility b, to [(1/n) sum b |v|^2]^{1/2}: [MHT] Lemma 3.8. And on any pair of clouds
c1 W₂ <= W_b <= c2 W₂ with c1^2 <= b <= c2^2: [MHT] Proposition 3.7.

    python studies/metric.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, fits, metric, study, tokens, transport
from wflow._core.checks import count_steps
from wflow._core.threads import numba_threads
from wflow.analysis.fits import PowerLaw
from wflow.cli import script
from wflow.heads import Oscillating
from wflow.plots.figure import PAGE, grid, style
from wflow.study import Finding, slope_text

FLOWS = ("softmax", "effective", "unnormalised")
SLOPE_TOLERANCE, ERROR_TOLERANCE = 0.15, 0.02
CLOUDS = ("uniform", "clusters", "cross-polytope")
Array = NDArray[np.floating]
Laws = dict[tuple[str, str], PowerLaw]
BOUNDS = ("pair_lower", "pair_upper"), ("pair_path_lower", "pair_path_upper")
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


@dataclass(frozen=True, kw_only=True)
class Metric(study.TokenFlags):
    """Flags of this study."""

    tokens: str = "uniform"
    """Initial tokens of each path: cross-polytope, uniform, clusters, digits, or a FILE."""
    tokens_seed: study.Natural = 0
    """Seed of the initial tokens of path 0; the next paths have the next seeds."""
    n: study.TwoOrMore = 60
    """Number of tokens, in the flows and in the pairs."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    heads: study.Count = 4
    """Number of heads of the flows; they oscillate, with spread phases."""
    paths: study.TwoOrMore = 8
    """Flows from different initial tokens; all share the heads."""
    t_final: study.Positive = 2.08
    """End time of the flows: not before the largest of --times plus the largest of --deltas."""
    dt: study.Positive = 2.5e-3
    """Time step of the flows, by rk4."""
    times: study.Distinct[study.Nonnegative] = (0.0, 1.0, 2.0)
    """Times t at which the flows are differentiated."""
    deltas: study.Compared[study.Positive] = (0.08, 0.04, 0.02, 0.01, 0.005)
    """Increments delta of the difference quotients."""
    segments: study.Count = 16
    """Segments of the paths between the clouds of a random pair; between those of a flow, 4."""
    pairs: study.Count = 200
    """Random pairs of clouds of different kinds, with 1 to 8 heads of different sizes."""
    largest: study.Positive = 8.0
    """Largest norm of the heads of the random pairs."""
    out: study.Folder = Path("results/metric")

    def check(self) -> None:
        super().check()
        if self.largest > 64:
            raise InputError(f"--largest is {self.largest:g}: expected a norm up to 64")
        count_steps(self.t_final, self.dt)
        for name, values in (("--deltas", self.deltas), ("--times", self.times)):
            for value in values:
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


def derivatives(flags: Metric, files: dict[str, Path]) -> "study.Dataset":
    """Return the difference quotients and speeds in both metrics, along every flow."""

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
    table = study.tabulate(
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
        "difference quotients",
    )
    return table.transpose("flow", "metric", "time", "delta", "path")


def random_pairs(flags: Metric) -> "study.Dataset":
    """Return W_b, W₂ and bounds of pairs of clouds of all kinds."""

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
    return study.tabulate(pairs, measure, PAIR, progress="random pairs")


def slope(table: "study.Dataset", flow: str, name: str) -> PowerLaw:
    """Return the power law of the relative error in delta; resampled over the initial tokens."""
    error = table["relative_error"].sel(flow=flow, metric=name).mean("time")
    return fits.power_law(table["delta"].values, error.transpose("delta", "path").values)


def violations(table: "study.Dataset", low: str, high: str) -> NDArray[np.bool_]:
    """Return whether W_b of every pair lies outside W_low <= W_b <= W_high, beyond rounding."""
    w_b = table["pair_wb"].values
    inside = (w_b >= table[low] * (1 - 1e-12)) & (w_b <= table[high] * (1 + 1e-12))
    return np.asarray(~inside)


def findings(table: "study.Dataset", laws: Laws) -> list[Finding]:
    """Return every prediction with its verdict."""
    rows = []
    smallest = table["relative_error"].sel(delta=table["delta"].min())
    for name, symbol in METRICS.items():
        weight = "b " if name == "weighted" else ""
        errors = {flow: float(smallest.sel(flow=flow, metric=name).mean()) for flow in FLOWS}
        rows.append(Finding.decided(
            f"{symbol}(mu_t, mu_(t+delta))/delta -> [(1/n) sum {weight}|v|^2]^(1/2), error "
            "linear in delta", "[MHT] Lemma 3.8" + ("" if name == "weighted" else ", b = 1"),
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
        ).of_theorem())  # fmt: skip
    pairs = table.sizes["pair"]
    ratio = table["pair_wb"] / table["pair_w2"]
    outside = violations(table, *BOUNDS[0])
    any_cloud = Finding.decided(
        "c1 W₂ <= W_b <= c2 W₂ with c1^2 <= b <= c2^2 for every cloud", "[MHT] Prop. 3.7",
        f"{outside.sum()} violations in {pairs} pairs, W_b/W₂ from {float(ratio.min()):.3f} to "
        f"{float(ratio.max()):.3f}; of the discrete action it holds by construction, so that "
        "this checks the code", ~outside,
    ).of_theorem()  # fmt: skip
    outside = violations(table, *BOUNDS[1])
    along_path = Finding.decided(
        "W₂ sqrt(min b) <= W_b <= W₂ sqrt(max b), min along the path found, max along the "
        "W₂ geodesics", "docs/theory, weighted metric",
        f"{outside.sum()} violations in {pairs} pairs; likewise by construction", ~outside,
    )  # fmt: skip
    return [*rows, any_cloud, along_path]


# Tables and figures
# ------------------

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
    labels: tuple[str, str],
    ticks: Sequence[str],
    *,
    headroom: float = 1.0,
    legend: str | None = None,
    title: str = "",
) -> "study.Figure":
    """Draw panels, title -> curves, with power laws in log-log, each with the band of its fit."""
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
            axis.set(xlabel=labels[0], title=name)
            axis.legend(loc="upper left", title=legend, alignment="left")
        axes[0, 0].set_ylim(top=headroom * axes[0, 0].get_ylim()[1])  # for the legends
        axes[0, 0].set_ylabel(labels[1])
        figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    return figure


def bounds_figure(table: "study.Dataset", title: str) -> "study.Figure":
    """Draw W_b over W₂ of the random pairs between their bounds, against the norm of the heads."""
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
        axis.set(xlabel="Largest norm of a head $|D|$", ylabel="Distance over $W_2$", title=title)
        axis.legend(loc="upper left")
    return figure


def derivative_figure(table: "study.Dataset", laws: Laws, facts: str) -> "study.Figure":
    """Draw the relative error of the difference quotients against delta, in both metrics."""
    error = table["relative_error"].mean(("time", "path"))
    panels = {
        f"${symbol}$: {facts}; band: 95 % of the fit": [
            Curve(error.sel(flow=flow, metric=name).values, law, flow,
                  f"{flow}: slope {law.exponent:.2f}")
            for (flow, metric), law in laws.items() if metric == name
        ]
        for name, symbol in METRICS.items()
    }  # fmt: skip
    return power_laws(
        table["delta"].values,
        panels,
        (r"Increment $\delta$", r"Error $|W(\mu_t, \mu_{t+\delta})/(\delta\,|\dot\mu_t|) - 1|$"),
        [f"{delta:g}" for delta in table["delta"].values],
    )


def report(flags: Metric, table: "study.Dataset", laws: Laws) -> str:
    """Return the tables."""
    error = table["relative_error"].mean(("time", "path"))
    rows = []
    for (flow, name), law in laws.items():
        at = error.sel(flow=flow, metric=name)
        row = {"flow": flow, "metric": METRICS[name]}
        row |= {f"delta {d:g}": f"{float(at.sel(delta=d)):.2e}" for d in flags.deltas}
        rows.append(row | {"slope": study.slope_text(law)})
    widths = [float((table[high] / table[low]).median()) for low, high in BOUNDS]
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
                "violations": [str(violations(table, *pair).sum()) for pair in BOUNDS],
                "median ratio upper/lower": [f"{width:.3g}" for width in widths],
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


def main() -> None:
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
            table = derivatives(flags, files).merge(random_pairs(flags))
        laws = {(flow, name): slope(table, flow, name) for flow in FLOWS for name in METRICS}
        facts = f"$n$ = {flags.n}, $d$ = {flags.d}"
        session.finish(
            table, report(flags, table, laws), findings(table, laws),
            {
                "derivative": derivative_figure(
                    table, laws, f"{facts}, $H$ = {flags.heads}, {flags.paths} paths"
                ),
                "bounds": bounds_figure(table, f"{flags.pairs} random pairs, {facts}"),
            },
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
