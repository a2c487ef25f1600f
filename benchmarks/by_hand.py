"""Our own entropic transport, L-BFGS and single linkage against the libraries that have them.

    python benchmarks/by_hand.py [--json benchmarks/results/by_hand.json]

One process, one run, double precision, seed 0. What `docs/dependencies.md` decides by:

- entropic transport: W₂ of two clouds of 300 uniform tokens on S^2, geodesic cost.
  `wflow.transport.entropic` to a gap of 5 and 1 % between its bounds; POT: `ot.sinkhorn` in the log
  domain at three regularisations (in units of the largest cost), at most 1,000 iterations, and its
  plan brought to the exact marginals. `error` is that of the upper bound, relative to W₂.
- L-BFGS: one minimizing-movement step, n = 200, d = 3. Both minimise the same compiled functional
  over points divided by their norms, from the same start: `wflow.jko.step` with its check of the
  coupling, and SciPy's L-BFGS-B. `gradient` is what is left of it, relative to the start.
- single linkage: the merge heights of n tokens on S^2. wflow: a spanning tree without a matrix;
  SciPy: `pdist` of the chords and `linkage(method="single")`.

The variants run in turn, round after round; the median is printed with smallest and largest, and
the growth of resident memory in one call.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import ot
from numpy.typing import NDArray
from report import in_turn, peak_memory, spread, write
from scipy.cluster.hierarchy import linkage
from scipy.optimize import minimize
from scipy.spatial.distance import pdist

from wflow import flows, jko, tokens, transport, velocity
from wflow.analysis.linkage import merge_heights
from wflow.sphere import normalise
from wflow.study import MetricName
from wflow.study.frame import machine
from wflow.transport.jko import StepProblem
from wflow.transport.metric import as_metric

TOKENS, D, TAU = 300, 3, 0.05
TOLERANCES = (0.05, 0.01)
REGULARISATIONS = (1e-2, 1e-3, 1e-4)  # of the largest cost
SIZES = (200, 2000, 10_000)
FLOWS: dict[MetricName, "flows.FlowName"] = {"w2": "unnormalised", "weighted": "effective"}
Array = NDArray[np.floating]
Calls = dict[str, Callable[[], Any]]


def to_marginals(plan: Array, a: Array, b: Array) -> Array:
    """The plan brought to the marginals a and b (Altschuler, Weed, Rigollet 2017, algorithm 2)."""
    plan = plan * np.minimum(1.0, a / plan.sum(axis=1))[:, None]
    plan = plan * np.minimum(1.0, b / plan.sum(axis=0))
    rows, columns = a - plan.sum(axis=1), b - plan.sum(axis=0)
    lacking = np.abs(rows).sum()
    return plan + np.outer(rows, columns) / lacking if lacking > 0 else plan


def plain_entropic(x: Array, y: Array, reg: float) -> float:
    """Upper bound of W_2 by POT at the regularisation `reg`, in units of the largest cost."""
    a, b = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
    cost = transport.distance(x, y) ** 2
    plan = ot.sinkhorn(
        a, b, cost, reg * cost.max(), method="sinkhorn_log", numItermax=1000,
        stopThr=1e-6, warn=False,
    )  # fmt: skip
    return float(np.sqrt((to_marginals(plan, a, b) * cost).sum()))


def by_wflow(x: Array, y: Array, tolerance: float) -> float:
    return transport.entropic(x, y, tolerance=tolerance).value


def entropic_variants() -> tuple[Calls, float]:
    """The calls, and the exact distance."""
    x, y = tokens.uniform(TOKENS, D, seed=0), tokens.uniform(TOKENS, D, seed=1)
    calls: Calls = {
        f"wflow, gap {tolerance:g}": partial(by_wflow, x, y, tolerance) for tolerance in TOLERANCES
    }
    for reg in REGULARISATIONS:
        calls[f"POT, reg {reg:g}"] = partial(plain_entropic, x, y, reg)
    return calls, transport.w2(x, y, method="exact")


def by_scipy(problem: StepProblem, start: Array) -> Array:
    """The step by L-BFGS-B, over vectors that are divided by their norms."""
    objective = problem._objective(TAU)

    def of_vectors(flat: Array) -> tuple[float, Array]:
        p = flat.reshape(1, *start.shape)
        norm = np.linalg.norm(p, axis=-1)[..., None]
        x = p / norm
        value, gradient = objective(x)
        gradient = gradient - (gradient * x).sum(axis=-1)[..., None] * x
        return value, (gradient / norm).ravel()

    options = {"maxiter": 500, "maxcor": 12, "ftol": 0.0, "gtol": 1e-13}
    found = minimize(of_vectors, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return normalise(found.x.reshape(start.shape))


def gradient_left(problem: StepProblem, y: Array) -> float:
    """Norm of the tangential gradient at y, relative to the one at the start x."""

    def size(points: Array) -> float:
        _, gradient = problem._objective(TAU)(points[None])
        radial = (gradient[0] * points).sum(axis=1)[:, None]
        return float(np.linalg.norm(gradient[0] - radial * points))

    return size(y) / size(problem.x)


def step_variants() -> tuple[dict[str, Calls], dict[str, Callable[[Array], float]]]:
    rng = np.random.default_rng(0)
    x = normalise(rng.normal(size=(200, D)))
    found: dict[str, Calls] = {}
    left: dict[str, Callable[[Array], float]] = {}
    for metric, flow in FLOWS.items():
        for count in (8, 64):
            z = rng.normal(size=(count, D, D))
            heads = (z + z.swapaxes(-1, -2)) / 2
            start = normalise(x + TAU * velocity(x, heads, flow=flow))
            problem = StepProblem(x, heads, as_metric(metric, 1), 1.0)
            name = f"{metric}, H = {count}"
            found[name] = {
                "wflow": partial(jko.step, x, heads, TAU, metric=metric),
                "SciPy L-BFGS-B": partial(by_scipy, problem, start),
            }
            left[name] = partial(gradient_left, problem)
    return found, left


def plain_heights(x: Array) -> Array:
    chords = linkage(pdist(x), method="single")[:, 2]
    return 2 * np.arcsin(np.minimum(chords / 2, 1.0))


def linkage_variants() -> dict[str, Calls]:
    found: dict[str, Calls] = {}
    for n in SIZES:
        x = tokens.uniform(n, D, seed=0)
        found[f"n = {n}"] = {
            "wflow": partial(merge_heights, x),
            "SciPy": partial(plain_heights, x),
        }
    return found


def table(variants: dict[str, Calls], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for problem, calls in variants.items():
        times = in_turn(calls, rounds, least=0.2, pause=0.1)
        for name, call in calls.items():
            with peak_memory() as memory:
                call()
            ratio = float(np.median(times[name]) / np.median(times[next(iter(calls))]))
            rows.append(
                {"problem": problem, "variant": name, **spread(times[name]), "times_wflow": ratio,
                 "memory_mb": memory["mb"]}
            )  # fmt: skip
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    print(f"{'problem':<18}{'variant':<30}{'median ms':>11}{'min':>10}{'max':>10}{'ratio':>7}  MB")
    for row in rows:
        memory = "" if row["memory_mb"] is None else f"{row['memory_mb']:.1f}"
        print(
            f"{row['problem']:<18}{row['variant']:<30}{row['median_ms']:>11.2f}{row['min_ms']:>10.2f}"
            f"{row['max_ms']:>10.2f}{row['times_wflow']:>7.2f}{memory:>8}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all variants")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/by_hand.json"))
    options = parser.parse_args()

    threads = numba.get_num_threads()
    print(f"{machine()}, {threads} threads, {options.rounds} rounds, f64")
    calls, exact = entropic_variants()
    entropic = table({"W2": calls}, options.rounds)
    show(f"Entropic transport, {TOKENS} tokens", entropic)
    for row in entropic:
        row["error"] = abs(calls[row["variant"]]() / exact - 1)
        print(f"{row['variant']}: error {row['error']:.1e}")

    steps, left = step_variants()
    step_rows = table(steps, options.rounds)
    show("L-BFGS, one minimizing-movement step of 200 tokens", step_rows)
    for row in step_rows:
        problem = row["problem"]
        found: Any = steps[problem][row["variant"]]()
        row["gradient"] = left[problem](getattr(found, "tokens", found))
        print(f"{problem}, {row['variant']}: gradient {row['gradient']:.1e}")

    heights = linkage_variants()
    linkage_rows = table(heights, options.rounds)
    show("Single linkage", linkage_rows)
    for problem, calls in heights.items():
        difference = float(np.abs(calls["wflow"]() - calls["SciPy"]()).max())
        print(f"{problem}: largest difference of a height {difference:.1e}")

    write(
        options.json, "python benchmarks/by_hand.py", threads,
        problem={"tokens": TOKENS, "d": D, "tau": TAU, "dtype": "float64", "seed": 0},
        entropic=entropic, steps=step_rows, linkage=linkage_rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
