"""The exact sums for many coordinates against the rate of matrix products on this machine.

    python benchmarks/matrix_rate.py [--quick] [--json benchmarks/results/matrix_rate.json]

`wflow.kernels.blocked` with every energy term (drift, noise, Itô term), tied heads, one path. Its
products count 2 flops per multiply-add: 4 d per head and pair of tokens for scores and sums, 2 d^2
per head and token for each of D, its values, drift and noise, and 2 d per pair for the Gram matrix.
"share" is these flops over time over the rate of NumPy's own product of two 2000 x 2000 matrices on
the same threads: the exponentials and whatever else a step does count for nothing. Beside it the
sums in loops (`wflow.kernels.pairs.fused`), and, where torch is installed, batched products and
exponentials in torch, heads x n x n numbers in memory. The variants run in turn, round after round;
a ratio is the median over the rounds of the ratio within a round.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from goals import BLOCKED, DEEP
from numpy.typing import NDArray
from report import RESULTS, goal, in_turn, median_times, quotient, spread, write
from threadpoolctl import threadpool_limits

from wflow.kernels.blocked.sums import blocked_sums
from wflow.kernels.pairs.fused import fused_sums
from wflow.kernels.pairs.headsums import SOFTMAX

CASES = (
    (64, 200, 12),
    (64, 2000, 8),
    (64, 20_000, 1),
    (128, 1000, 4),
    (768, 128, 1),
    (768, 256, 1),
    (768, 512, 1),
    (16, 1000, 8),
)
QUICK = ((64, 200, 12), (16, 200, 4))
ORDER = 2000  # of the matrices whose product gives the rate
PRECISIONS = ("float64", "float32")
COMMAND = "python benchmarks/matrix_rate.py"
DEEPEST = 768, 256  # dimension and tokens of the goal
SIDES = ("loops", "torch")
LARGEST_TORCH = 50_000_000  # numbers in its array of kernel values


def matrix_product(dtype: str, order: int = ORDER) -> Callable[[], Any]:
    """The product of two square matrices by NumPy, as a call."""
    a = np.random.default_rng(0).random((order, order)).astype(dtype)
    out = np.empty_like(a)
    return lambda: np.matmul(a, a, out=out)


def matrix_rate(threads: int, dtype: str, rounds: int = 5, order: int = ORDER) -> float:
    """Flops per second of a matrix product: the best of a few by NumPy, 2 flops a multiply-add.

    Parameters
    ----------
    threads : of the linear algebra library under NumPy, set by threadpoolctl for the time of the
        call, whatever OMP_NUM_THREADS and its like say
    dtype : "float64" or "float32"
    order : of the two square matrices
    """
    with threadpool_limits(threads, user_api="blas"):
        (taken,) = in_turn(
            {"": matrix_product(dtype, order)}, rounds, least=0.0, pause=0.0
        ).values()
    return 2.0 * order**3 / min(taken)


def flops(d: int, n: int, heads: int, matrices: int = 4) -> int:
    """Of the products of one step with all energy terms (tied heads: D serves twice)."""
    return heads * (4 * n * n * d + 2 * matrices * n * d * d) + 2 * n * n * d


def arguments(d: int, n: int, heads: int, dtype: str) -> tuple[Any, ...]:
    """What both ways of summing take: uniform tokens, scores of size one or so."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    z = rng.normal(size=(3, 1, heads, d, d)) / np.sqrt(d)
    D, drift, noise = (z + z.swapaxes(-1, -2)).astype(dtype)
    sigma2 = np.full((1, heads), 2.0, dtype)
    return x.astype(dtype), D, D, drift, noise, sigma2, SOFTMAX, -1.0, False, True


def torch_step(x: NDArray, D: NDArray, drift: NDArray, noise: NDArray, threads: int) -> Any:
    """The same step by batched products in torch, as a call; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    tokens, heads, f, B = (torch.from_numpy(a[0]) for a in (x, D, drift, noise))
    n = len(tokens)

    def step() -> Any:
        U = torch.matmul(tokens @ heads, tokens.T).exp_()
        m = U.sum(-1)
        S = U @ tokens
        DS = S @ heads
        v = (DS / m[..., None]).mean(0)
        v -= (v * tokens).sum(-1, keepdim=True) * tokens
        gram = 1 + (tokens @ tokens.T) ** 2
        ito = U.reshape(len(U), n * n) @ gram.reshape(n * n)
        power, increment = ((tokens @ a) * S for a in (f, B))
        return v, DS.mean(0), ito.sum(), power.sum(), increment.sum()

    return step


def row(d: int, n: int, heads: int, dtype: str, rounds: int, order: int) -> dict[str, Any]:
    """One line of the table."""
    args = arguments(d, n, heads, dtype)
    threads = numba.get_num_threads()
    calls: dict[str, Callable[[], Any]] = {
        "blocked": lambda: blocked_sums(*args),
        "loops": lambda: fused_sums(*args),
        "product": matrix_product(dtype, order),
    }
    if heads * n * n <= LARGEST_TORCH:
        step = torch_step(args[0], args[1], args[3], args[4], threads)
        if step is not None:
            calls["torch"] = step
    with threadpool_limits(threads, user_api="blas"):
        taken = in_turn(calls, rounds, least=0.1)
    count = flops(d, n, heads)
    blocked, product = np.array(taken["blocked"]), np.array(taken["product"])
    found: dict[str, Any] = {
        "d": d,
        "n": n,
        "heads": heads,
        "precision": dtype,
        **spread(taken["blocked"]),
    }
    found |= {
        "gflops": count / float(np.median(blocked)) / 1e9,
        "rate_gflops": 2.0 * order**3 / float(np.median(product)) / 1e9,
        "share": float(np.median(product / blocked)) * count / (2.0 * order**3),
    }
    for name in [side for side in SIDES if side in taken]:
        found[name] = spread(taken[name]) | {
            "times_blocked": spread((np.array(taken[name]) / blocked).tolist(), "times")
        }
    return found


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS / "matrix_rate.json")
    parser.add_argument("--quick", action="store_true", help="two small cases, two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds, order = (2, 400) if options.quick else (options.rounds, ORDER)
    rows = []
    for d, n, heads in QUICK if options.quick else CASES:
        for dtype in PRECISIONS:
            found = row(d, n, heads, dtype, rounds, order)
            rows.append(found)
            print(
                f"d {d:4} n {n:6} H {heads:3} {dtype}: {found['median_ms']:9.2f} ms, "
                f"{found['gflops']:6.1f} of {found['rate_gflops']:6.1f} Gflop/s: "
                f"{100 * found['share']:5.1f} %; "
                + ", ".join(
                    f"{side} {found[side]['times_blocked']['median_times']:.2f} times"
                    for side in SIDES
                    if side in found
                )
            )
    command = COMMAND + " --quick" * options.quick
    deep = [one["torch"]["times_blocked"] for one in rows
            if (one["d"], one["n"]) == DEEPEST and "torch" in one]  # fmt: skip
    least = min(deep, key=median_times, default=None)
    goals = [goal(DEEP, command, least, 1.0, least=True, unit="times")]
    times = {(one["d"], one["n"], one["precision"]): one for one in rows}
    gains = [
        quotient(times[d, n, "float64"], times[d, n, "float32"]) for d, n, _ in times if d >= 64
    ]
    gain = min(gains, key=median_times)
    goals.append(goal(BLOCKED, command, gain, 1.8, least=True, unit="times"))
    for one in goals:
        print(f"{one['goal']}: {one['found']}, goal {one['target']:g}: "
              f"{'met' if one['met'] else 'missed'}")  # fmt: skip
    write(options.json, command, numba.get_num_threads(), rows=rows, goals=goals)


if __name__ == "__main__":
    main()
