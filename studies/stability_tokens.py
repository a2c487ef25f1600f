"""Distance between two token clouds under the same heads, against [MHT] Theorem 5.1.

A cloud and clouds perturbed by ε move under the same heads: frozen, or Ornstein-Uhlenbeck with
the same noise, each at several sizes of the weights, up and down the energy. Their W₂ over time is
compared with C exp(int_0^t L ds) W₂(0), L from the norms of the heads
(docs/theory/stability.md), and the rates of growth with the size of the weights.

    python studies/stability_tokens.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, Theorem 5.1, Remark 5.2.
"""

import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro
from _stability import COSTS, DIRECTIONS, WEIGHTS, growth_figure, mean_constant, rate_figure
from _stability import report as tokens_report
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, fits, stability, study
from wflow._core.checks import count_steps, number, positive, whole
from wflow.cli import guarded
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck
from wflow.sphere import normalise, project
from wflow.study import Finding, FlowName

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]

SMALLEST = 1e-7  # perturbation of which rounding leaves the digits that rates need


@dataclass(frozen=True, kw_only=True)
class StabilityTokens(study.TokenFlags):
    """Flags of this study."""

    tokens: Annotated[
        str,
        tyro.conf.arg(
            help="Initial tokens: cross-polytope, uniform, clusters, digits, or a FILE with one "
            "row of numbers per token. Clouds that are balanced about the centre, such as "
            "cross-polytope, part slowly."
        ),
    ] = "clusters"
    n: study.Count | None = 100
    """Number of tokens; of digits or a FILE a random subset of that size."""
    heads: int = 8
    """Number of heads H."""
    sizes: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)
    """Sizes of the weights: factors of all heads, 1 for those of [MHT] section 6."""
    eps: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    """Sizes of the perturbation: root mean square distance by which the tokens are moved."""
    paths: study.Count = 8
    """Perturbations of each size; odd ones turn the whole cloud, even ones move each token by
    itself. Each has its own noise of the heads."""
    sigma2: study.Nonnegative = 2.0
    """Variance sigma^2 of the noise of the Ornstein-Uhlenbeck heads per unit time, at size 1."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    t_final: study.Positive = 4.0
    """End time T."""
    dt: study.Positive = 0.02
    """Time step."""
    times: int = 20
    """Number of times, after the start, at which W₂ is computed."""
    out: study.Folder = Path("results/stability_tokens")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.heads, "--heads")
        whole(self.paths, "--paths", 2, why="an interval needs two")
        number(self.sigma2, "--sigma2", least=0.0)
        for name, values, least in (("--sizes", self.sizes, 2), ("--eps", self.eps, 1)):
            study.distinct(values, name, least)
            for value in values:
                positive(value, name)
        if min(self.eps) < SMALLEST:
            raise InputError(f"--eps has {min(self.eps):g}: expected {SMALLEST:g} or more")
        steps = count_steps(self.t_final, self.dt)
        if whole(self.times, "--times") > steps:
            raise InputError(f"--times is {self.times}: expected at most the {steps} steps")

    def snapshots(self) -> FloatArray:
        return np.linspace(0, self.t_final, self.times + 1)


def perturbed(x: FloatArray, flags: StabilityTokens, eps: float) -> FloatArray:
    """Clouds (paths, n, d): the tokens moved by ε along random fields of mean square one."""
    moved = []
    for path in range(flags.paths):
        rng = np.random.default_rng([flags.seed, path])
        skew = rng.standard_normal((x.shape[1], x.shape[1]))
        turn, each = x @ (skew - skew.T), project(x, rng.standard_normal(x.shape))
        field = turn if path % 2 else each
        moved.append(normalise(x + eps * field / np.sqrt(np.mean(np.sum(field**2, axis=1)))))
    return np.array(moved)


def tasks(flags: StabilityTokens, x0: FloatArray) -> dict[str, dict[str, Any]]:
    """All runs: name -> arguments of `wflow.solve`."""
    d = x0.shape[1]
    first = study.initial_heads(flags.seed, flags.heads, d)
    clouds = {"reference": x0}
    clouds |= {f"eps{e}": perturbed(x0, flags, eps) for e, eps in enumerate(flags.eps)}
    save = SaveAt(every=10**9, snapshots=flags.snapshots(), paths=range(flags.paths), budget=False)
    runs = {}
    for weights, direction, size in product(WEIGHTS, DIRECTIONS, flags.sizes):
        ou = OrnsteinUhlenbeck(size * np.eye(d), rate=1.0, sigma2=size**2 * flags.sigma2)
        law: HeadLaw = Frozen() if weights == "frozen" else ou
        for cloud, tokens in clouds.items():
            runs[f"{case_name(flags, weights, direction, size)}_{cloud}"] = {
                "x0": tokens, "law": law, "heads": size * first, "t_final": flags.t_final,
                "dt": flags.dt, "paths": flags.paths, "seed": flags.seed, "flow": flags.flow,
                "direction": direction, "save": save,
            }  # fmt: skip
    return runs


def case_name(flags: StabilityTokens, weights: str, direction: str, size: float) -> str:
    return f"{weights.split('-')[0]}_{direction}_size{flags.sizes.index(size)}"


def collect(flags: StabilityTokens, files: dict[str, Path], session: study.Session) -> "Dataset":
    """W₂, bound, exponent and rates of every problem, size of perturbation and path."""
    with wflow.open(next(iter(files.values()))) as run:
        time = run["snapshot"].values

    def measure(weights: str, direction: str, size: float) -> dict[str, Any]:
        name = case_name(flags, weights, direction, size)
        pairs = [
            stability.compare(files[f"{name}_reference"], files[f"{name}_eps{e}"])
            for e in range(len(flags.eps))
        ]
        logs = np.log([pair["w2_chordal"].values for pair in pairs])  # (eps, path, time)
        changes = np.abs(logs[..., 1:] - logs[..., :1]) / time[1:]
        laws = [stability.growth_rate(time, pair["w2_chordal"].values) for pair in pairs]
        values = {
            "growth_constant": pairs[-1]["growth_constant"].values,
            "exponent": pairs[-1]["exponent"].values,
            "largest_rate": [law.largest for law in laws],
            "fastest_change": changes.max(axis=(1, 2)),
            "rate": [law.rate for law in laws],
            "rate_ci": [law.ci for law in laws],
        }
        for key in (f"{kind}_{cost}" for cost in COSTS for kind in ("w2", "holds")):
            values[key] = [pair[key].values for pair in pairs]
        return values

    one, each = ("path", "time"), ("eps", "path", "time")
    texts: dict[str, Any] = {
        "growth_constant": (one, "growth constant L of the heads"),
        "exponent": (one, "exponent of the bound, integral of L"),
        "largest_rate": (("eps",), "largest log(W_2(t) / W_2(0)) / t over times and paths"),
        "fastest_change": (("eps",), "largest |log(W_2(t) / W_2(0))| / t over times and paths"),
        "rate": (("eps",), "slope of the mean over paths of log W_2 in time"),
        "rate_ci": (("eps", "bound"), "bootstrap interval of the rate over paths, 95 %"),
    }
    for cost in COSTS:
        name = f"{cost} W_2 between the cloud and the perturbed one"
        texts |= {f"w2_{cost}": (each, name), f"holds_{cost}": (each, f"bound holds for {name}")}
    problems: dict[str, Any] = {
        "weights": (WEIGHTS, "head law"),
        "direction": (DIRECTIONS, "up or down the energy"),
        "size": (flags.sizes, "factor of all heads"),
    }
    along: dict[str, Any] = {
        "eps": (flags.eps, "size of the perturbation"),
        "path": (np.arange(flags.paths), "perturbation"),
        "time": (time, "time"),
        "bound": (["low", "high"], "end of the interval"),
    }
    total = len(WEIGHTS) * len(DIRECTIONS) * len(flags.sizes)
    with session.progress(total, "W₂") as advance:
        return study.sweep(problems, measure, texts, along, advance)


def findings(table: "Dataset") -> list[Finding]:
    """Every prediction with its verdict."""
    rows = []
    for cost, factor in (("chordal", "1"), ("geodesic", "pi/2")):
        holds = table[f"holds_{cost}"].values[..., 1:]
        rows.append(
            Finding.decided(
                f"W₂(t) <= {factor} exp(int L ds) W₂(0) at every recorded time, {cost} W₂",
                "[MHT] Thm 5.1",
                f"at {holds.sum()} of {holds.size} recorded times",
                bool(holds.all()),
            )
        )
    fastest = table["fastest_change"].max("eps")
    rising = np.diff(fastest.values, axis=-1) > 0
    numbers = [f"{rising.sum()} of {rising.size} steps in size raise it"]
    for weights, direction in product(WEIGHTS, DIRECTIONS):
        y = fastest.sel(weights=weights, direction=direction).values
        slope = fits.line(np.log(table["size"].values), y[:, None], of=np.log).slope
        numbers.append(f"{weights}, {direction}: {y[0]:.3g} to {y[-1]:.3g}, like size^{slope:.2f}")
    controlled = Finding.decided(
        "the exponent is controlled by the size of the weights: the fastest change, "
        "max |log(W₂(t)/W₂(0))|/t, grows with it and vanishes with it",
        "[MHT] Rem. 5.2", "; ".join(numbers), rising,
    )  # fmt: skip
    share = table["largest_rate"].max("eps").values / mean_constant(table)
    low, high = share[..., 0].max(), share[..., -1].max()
    bounded = Finding.decided(
        "the largest growth rate, max log(W₂(t)/W₂(0))/t, stays below the mean growth constant "
        "(1/T) int L ds",
        "[MHT] Thm 5.1, Rem. 5.2",
        f"in {(share <= 1).sum()} of {share.size} cases; at most {low:.2g} of it for the smallest "
        f"weights, {high:.1g} for the largest",
        share <= 1,
    )
    return [*rows, controlled, bounded]


def main() -> int:
    flags = study.command_line(StabilityTokens, __doc__)
    with study.session("stability_tokens", flags) as session:
        x0 = flags.cloud()
        # The summary records them; sizes in order, for steps between them.
        flags = session.flags = replace(
            flags, n=x0.shape[0], d=x0.shape[1], sizes=tuple(sorted(flags.sizes)),
            eps=tuple(sorted(flags.eps)),
        )  # fmt: skip
        table = collect(flags, session.solve(tasks(flags, x0)), session)
        session.finish(
            table=table,
            text=tokens_report(flags, table),
            findings=findings(table),
            figures={"growth": growth_figure(flags, table), "rates": rate_figure(flags, table)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
