"""Time of one minimizing-movement step against plain versions of the same minimisation.

    python benchmarks/jko_step.py [--json benchmarks/results/jko_step.json]

One process, one run, double precision, n = 200 tokens, d = 3, H = 1, 8 and 64 heads, tau = 0.05,
W₂ and the metric weighted by the effective mobility (one segment):

- wflow: `wflow.jko.step`, its check of the coupling by an optimal assignment included;
- torch: the functional written plainly with einsum, gradients by autograd, `torch.optim.LBFGS` with
  strong Wolfe line search over unconstrained vectors that are normalised;
- scipy: the same with NumPy's einsum, gradients by hand (those of b included) and L-BFGS-B.

All start from the explicit step. The plain versions run until their gradient is below 1e-8 times
that at y = x, or their line search gives up; `gradient` is what each left, by one yardstick, and
`gap` how far its tokens are from those of wflow. The variants run in turn, round after round; the
median over rounds is printed with the smallest and largest.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray
from report import write
from scipy.optimize import minimize

from wflow import flows, jko, velocity
from wflow.sphere import normalise
from wflow.study import MetricName
from wflow.study.frame import machine
from wflow.transport.jko import StepProblem
from wflow.transport.metric import as_metric

N, D, TAU, HEADS = 200, 3, 0.05, (1, 8, 64)
METRICS: dict[MetricName, "flows.FlowName"] = {"w2": "unnormalised", "weighted": "effective"}
GRADIENT = 1e-8  # relative, where the plain versions stop
Array = NDArray[np.floating]


def explicit(x: Array, heads: Array, metric: MetricName) -> Array:
    """The start of all variants."""
    return normalise(x + TAU * velocity(x, heads, flow=METRICS[metric]))


def plain_numpy(
    x: Array, heads: Array, metric: MetricName
) -> Callable[[Array], tuple[float, Array]]:
    """n tau times the functional and its gradient by unconstrained vectors p, y = p/|p|."""
    n = len(x)

    def kernel(y: Array) -> tuple[Array, Array]:
        U = np.exp(np.einsum("ia,hab,jb->hij", y, heads, y, optimize=True))
        return U, U.mean(axis=2)

    def mobility(m: Array) -> Array:
        return 1 / (1 / m).mean(axis=0)

    b_x = mobility(kernel(x)[1])

    def functional(flat: Array) -> tuple[float, Array]:
        p = flat.reshape(x.shape)
        norm = np.linalg.norm(p, axis=1)[:, None]
        y = p / norm
        U, m = kernel(y)
        cosine = np.clip((x * y).sum(axis=1), -1, 1)
        angle = np.arccos(cosine)
        weight = np.ones(n)
        # d(angle^2)/dy = -2 angle / sin(angle) x
        slope = -2 * angle / np.maximum(np.sqrt(1 - cosine**2), 1e-300)
        gradient = np.zeros_like(x)
        if metric == "weighted":
            b = mobility(m)
            weight = (b_x + b) / 2
            w = angle**2 / 4 * b**2 / (len(heads) * m**2)
            both = (w[:, :, None] + w[:, None, :]) * U
            inner = np.einsum("hij,jb->hib", both, y, optimize=True)
            gradient += np.einsum("hab,hib->ia", heads, inner, optimize=True) / n
        gradient += (weight * slope / 2)[:, None] * x
        inner = np.einsum("hij,jb->hib", U, y, optimize=True)
        scale = TAU / (len(heads) * n)
        gradient += scale * np.einsum("hab,hib->ia", heads, inner, optimize=True)
        gradient -= (gradient * y).sum(axis=1)[:, None] * y
        value = TAU * U.sum() / (2 * len(heads) * n) + (weight * angle**2).sum() / 2
        return float(value), (gradient / norm).ravel()

    return functional


def by_wflow(x: Array, heads: Array, metric: MetricName) -> Array:
    return jko.step(x, heads, TAU, metric=metric).tokens


def by_scipy(x: Array, heads: Array, metric: MetricName, stop: float) -> Array:
    start = explicit(x, heads, metric).ravel()
    options = {"maxiter": 500, "ftol": 0.0, "gtol": stop / np.sqrt(N * D)}
    found = minimize(
        plain_numpy(x, heads, metric), start, jac=True, method="L-BFGS-B", options=options
    )
    return normalise(found.x.reshape(x.shape))


def by_torch(x: Array, heads: Array, metric: MetricName, stop: float) -> Array:
    import torch

    torch.set_num_threads(numba.get_num_threads())
    xt, ht = torch.from_numpy(x), torch.from_numpy(heads)
    p = torch.from_numpy(explicit(x, heads, metric)).requires_grad_()

    def mobility(U):
        return 1 / (1 / U.mean(dim=2)).mean(dim=0)

    with torch.no_grad():
        b_x = mobility(torch.exp(torch.einsum("ia,hab,jb->hij", xt, ht, xt)))
    optimiser = torch.optim.LBFGS(
        [p], lr=1.0, max_iter=500, tolerance_grad=stop / np.sqrt(N * D), tolerance_change=0.0,
        history_size=12, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure():
        optimiser.zero_grad()
        y = p / p.norm(dim=1, keepdim=True)
        U = torch.exp(torch.einsum("ia,hab,jb->hij", y, ht, y))
        chord, other = (y - xt).norm(dim=1), (y + xt).norm(dim=1)
        square = (2 * torch.atan2(chord, other)) ** 2
        if metric == "weighted":
            square = square * (b_x + mobility(U)) / 2
        value = TAU * U.sum() / (2 * len(ht) * N) + square.sum() / 2
        value.backward()
        return value

    optimiser.step(closure)
    return normalise(p.detach().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all variants")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/jko_step.json"))
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    x = normalise(rng.normal(size=(N, D)))
    rows = []
    print(f"{machine()}, {numba.get_num_threads()} threads, {options.rounds} rounds, n={N} d={D}")
    print(
        f"{'metric':<10}{'H':>4}  {'variant':<8}{'median ms':>11}{'min':>9}{'max':>9}{'speedup':>9}"
        f"{'gradient':>11}{'gap':>10}"
    )
    for metric in METRICS:
        for count in HEADS:
            z = rng.normal(size=(count, D, D))
            heads = (z + z.swapaxes(-1, -2)) / 2
            functional = plain_numpy(x, heads, metric)
            problem = StepProblem(x, heads, as_metric(metric, 1), 1.0)
            first = float(np.linalg.norm(TAU * problem.gradient))
            stop = GRADIENT * first
            variants: dict[str, Callable[[], Array]] = {
                "wflow": partial(by_wflow, x, heads, metric),
                "scipy": partial(by_scipy, x, heads, metric, stop),
            }
            if find_spec("torch") is not None:
                variants["torch"] = partial(by_torch, x, heads, metric, stop)
            ends = {name: call() for name, call in variants.items()}
            times: dict[str, list[float]] = {name: [] for name in variants}
            for _ in range(options.rounds):
                for name, call in variants.items():
                    time.sleep(0.1)  # idle threads of the variant before spin for a while
                    start = time.perf_counter()
                    call()
                    times[name].append((time.perf_counter() - start) * 1e3)
            for name, values in times.items():
                left = float(np.linalg.norm(functional(ends[name].ravel())[1])) / first
                row = {
                    "metric": metric,
                    "heads": count,
                    "variant": name,
                    "median_ms": float(np.median(values)),
                    "min_ms": min(values),
                    "max_ms": max(values),
                    "times_wflow": float(np.median(values) / np.median(times["wflow"])),
                    "relative_gradient": left,
                    "gap_to_wflow": float(np.abs(ends[name] - ends["wflow"]).max()),
                }
                rows.append(row)
                print(
                    f"{metric:<10}{count:>4}  {name:<8}{row['median_ms']:>11.2f}"
                    f"{row['min_ms']:>9.2f}{row['max_ms']:>9.2f}{row['times_wflow']:>9.1f}"
                    f"{left:>11.1e}{row['gap_to_wflow']:>10.1e}"
                )
    write(
        options.json, "python benchmarks/jko_step.py", numba.get_num_threads(),
        problem={"n": N, "d": D, "tau": TAU, "dtype": "float64", "seed": 0},
        rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
