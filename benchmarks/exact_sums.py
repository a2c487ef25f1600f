"""Exact sums against the machine's limit: d = 2 to 64, n = 200 to 20,000, both precisions.

    python benchmarks/exact_sums.py [--json benchmarks/results/exact_sums.json] [--quick]

One evaluation of the velocity and every energy term (drift, noise, Itô term) of one path, on all
threads. Tied heads: each kernel value serves both tokens of a pair; general heads: each direction
is computed. The limit for d <= 8 is `limits.py`: the same multiply-adds and exponentials with every
operand in a register, for as many pairs, on as many threads, in the same rounds. For d = 64 it is
the flops of a step's products (`matrix_rate.py`) at the rate of NumPy's product of two large
matrices, and the exponentials at their register limit, in the same rounds. Variants run in turn,
round after round; medians with the smallest and largest. *Over double* is the median of the ratios
within rounds. A share is that of the medians, or where it says so of the fastest rounds: what other
programs on the same cores take comes on top, and more from loads and stores than from arithmetic in
registers.

The plain loop of `wflow/kernels/pairs/plain.py`, the reference for all kernels, runs beside the
vector kernel on one thread, for general heads in double precision without a drift.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import limits
import numba
import numpy as np
from goals import PRODUCTS, SHORT, SINGLE, TIED
from limits import Kind
from report import goal, in_turn, spread, write

from wflow._core.threads import numba_threads
from wflow.kernels.pairs import fused
from wflow.kernels.pairs.headsums import SOFTMAX
from wflow.kernels.pairs.plain import plain_sums

DIMENSIONS = (2, 3, 4, 8)
SIZES = ((200, 64), (200, 8), (1000, 8), (4000, 8), (20_000, 8))  # n, heads
PLAIN_TOKENS = 1000  # the most that the plain loop is timed with
LARGE = 64
LARGE_SIZES = ((200, 12), (1000, 8), (4000, 4))
DTYPES = ("float64", "float32")
LASTS_MS = 0.3  # a step in double precision, for which single precision has a goal
COMMAND = "python benchmarks/exact_sums.py"
_PAIRS = 4_000_000  # of a call of the limit
Row = dict[str, Any]


def problem(n: int, heads: int, d: int, dtype: str) -> tuple[Any, ...]:
    """Arguments of `fused_sums` but the last: random tokens and symmetric heads of size about 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    z = rng.normal(size=(3, 1, heads, d, d)) / np.sqrt(2 * d)
    score, drift, noise = (z + z.swapaxes(-1, -2)).astype(dtype)
    sigma2 = np.full((1, heads), 2.0, dtype)
    return x.astype(dtype), score, score, drift, noise, sigma2, SOFTMAX, -1.0, False


def measure(d: int, n: int, heads: int, rounds: int, threads: int) -> list[Row]:
    """Rows of one problem: both precisions, tied and general heads."""
    kinds = [Kind(d, both, True, dtype) for dtype in DTYPES for both in (True, False)]
    sums: Callable[..., Any] = fused.fused_sums
    step: dict[Any, Callable[[], Any]] = {}
    for dtype in DTYPES:
        arguments = problem(n, heads, d, dtype)
        for tied in (True, False):
            step[dtype, tied] = functools.partial(sums, *arguments, tied)
    taken = in_turn(
        step | limits.calls(kinds, _PAIRS, threads), rounds, least=0.05, pause=0.05
    )  # fmt: skip
    rows = []
    for dtype, tied in step:
        each = {
            both: limits.per_pair(taken, Kind(d, both, True, dtype), _PAIRS)
            for both in (True, False)
        }
        limit, least = (
            limits.of_step({k: float(of(v)) for k, v in each.items()}, n, heads, dtype, tied)
            for of in (np.median, np.min)
        )
        seconds = float(np.median(taken[dtype, tied]))
        ratio = spread(
            (np.array(taken["float64", tied]) / np.array(taken[dtype, tied])).tolist(), "times"
        )
        rows.append(
            {
                "d": d,
                "n": n,
                "heads": heads,
                "precision": dtype,
                "sums": "tied" if tied else "general",
            }
            | spread(taken[dtype, tied])
            | {
                "ns_per_pair": seconds / (heads * n * n) * 1e9,
                "limit_ms": limit * 1e3,
                "share_of_limit": limit / seconds,
                "share_of_fastest": least / min(taken[dtype, tied]),
                "over_double": ratio["median_times"],
                "over_double_in_rounds": ratio,
            }
        )
    return rows


def measure_large(n: int, heads: int, rounds: int, threads: int) -> list[Row]:
    """Rows of d = 64."""
    from matrix_rate import ORDER, flops, matrix_product
    from threadpoolctl import threadpool_limits

    from wflow.kernels.blocked.sums import blocked_sums

    sums: Callable[..., Any] = blocked_sums
    calls: dict[Any, Callable[[], Any]] = {
        dtype: functools.partial(sums, *problem(n, heads, LARGE, dtype), True) for dtype in DTYPES
    }
    kinds = [Kind(3, False, True, dtype) for dtype in DTYPES]
    rates = {("matrix", dtype): matrix_product(dtype) for dtype in DTYPES}
    with threadpool_limits(threads, user_api="blas"):
        taken = in_turn(calls | limits.calls(kinds, _PAIRS, threads) | rates, rounds, least=0.05)
    rows = []
    for dtype, kind in zip(DTYPES, kinds, strict=True):
        pairs = heads * n * n
        rate = 2.0 * ORDER**3 / float(np.median(taken["matrix", dtype]))
        products = flops(LARGE, n, heads) / rate
        exponential = 13 if dtype == "float64" else 10
        each = float(np.median(limits.per_pair(taken, kind, _PAIRS)))
        powers = pairs * each * exponential / kind.multiply_adds()
        seconds = float(np.median(taken[dtype]))
        rows.append(
            {"d": LARGE, "n": n, "heads": heads, "precision": dtype, "sums": "blocked"}
            | spread(taken[dtype])
            | {
                "ns_per_pair": seconds / pairs * 1e9,
                "limit_ms": (products + powers) * 1e3,
                "share_of_limit": (products + powers) / seconds,
                "share_without_exponential": products / seconds,
                "over_double": float(np.median(taken["float64"])) / seconds,
            }
        )
    return rows


def measure_plain(d: int, n: int, heads: int, rounds: int) -> Row:
    """Row of the plain loop on one thread, and how many times longer it takes than vectors."""
    x, score, *_ = arguments = problem(n, heads, d, DTYPES[0])
    weight = np.full(n, 1 / n)
    sums: Callable[..., Any] = fused.fused_sums
    calls = {
        "plain": functools.partial(plain_sums, x[0], score[0], x[0], weight),
        "vectors": functools.partial(sums, *arguments, False),
    }
    with numba_threads(1):
        taken = in_turn(calls, rounds, least=0.05, pause=0.05)
    ratios = (np.array(taken["plain"]) / np.array(taken["vectors"])).tolist()
    seconds = float(np.median(taken["plain"]))
    return (
        {"d": d, "n": n, "heads": heads}
        | spread(taken["plain"])
        | {"ns_per_pair": seconds / (heads * n * n) * 1e9}
        | {"vectors_ms": float(np.median(taken["vectors"])) * 1e3}
        | spread(ratios, "times")
    )


def measure_call(rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of a call for two tokens and one head, on one thread: the start of a step."""
    arguments = problem(2, 1, 3, DTYPES[0])
    sums: Callable[..., Any] = fused.fused_sums
    calls = {
        name: functools.partial(sums, *arguments, name == "tied") for name in ("tied", "general")
    }
    with numba_threads(1):
        taken = in_turn(calls, rounds, least=0.05, pause=0.05)
    return {name: spread([1e6 * v for v in values], "us") for name, values in taken.items()}


def _where(row: Row) -> str:
    return f"d = {row['d']}, n = {row['n']:,}, H = {row['heads']}, {row['sums']}"


def goals(rows: list[Row]) -> list[dict[str, Any]]:
    """The smallest share or ratio of each kind against its goal, and where it was found."""
    double = [row for row in rows if row["precision"] == "float64"]
    large = [row for row in double if row["d"] == LARGE]
    short = [row for row in double if row["d"] <= 4 and row["n"] == SIZES[0][0]]
    tied = [row for row in double if row["n"] > SIZES[0][0] and row["sums"] == "tied"]
    lasting = {_where(row) for row in double if row["median_ms"] > LASTS_MS}
    single = [row for row in rows if row["precision"] == "float32" and _where(row) in lasting]
    entries = (
        (SHORT, short, "share_of_limit", 0.75, "%"),
        (TIED, tied, "share_of_limit", 0.8, "%"),
        (PRODUCTS, large, "share_of_limit", 0.7, "%"),
        (SINGLE, single, "over_double", 1.8, "times"),
    )
    found = []
    for what, candidates, key, target, unit in entries:
        value: Any = None
        why = ""
        if candidates:
            worst = min(candidates, key=lambda row: row[key])
            value = worst.get(f"{key}_in_rounds", float(worst[key]))
            below = sum(row[key] < target for row in candidates)
            if below:
                why = f"{below} of {len(candidates)} below, least at {_where(worst)}"
            if below and (candidates is short or candidates is tied):
                shares = [row["share_of_fastest"] for row in candidates]
                below = sum(share < target for share in shares)
                why += f"; by the fastest rounds {below} below, least {100 * min(shares):.0f} %"
        found.append(goal(what, COMMAND, value, target, least=True, why=why, unit=unit))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all variants")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/exact_sums.json"))
    parser.add_argument("--quick", action="store_true", help="small problems, three rounds")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[*DIMENSIONS, LARGE])
    options = parser.parse_args()
    threads = numba.get_num_threads()
    rounds = 3 if options.quick else options.rounds
    rows: list[Row] = []
    plain: list[Row] = []
    print(f"{'d':>3}{'n':>7}{'H':>4} {'precision':<9} {'sums':<8}{'median ms':>11}{'min':>9}"
          f"{'max':>9}{'ns/pair':>9}{'of limit':>9}{'/double':>9}")  # fmt: skip
    for d in options.dimensions:
        for n, heads in LARGE_SIZES if d == LARGE else SIZES:
            if options.quick and n > 1000:
                continue
            few = min(rounds, 3) if n > 4000 else rounds
            measured = (
                measure_large(n, heads, few, threads)
                if d == LARGE
                else measure(d, n, heads, few, threads)
            )
            for row in measured:
                print(f"{d:>3}{n:>7}{heads:>4} {row['precision']:<9} {row['sums']:<8}"
                      f"{row['median_ms']:>11.3f}{row['min_ms']:>9.3f}{row['max_ms']:>9.3f}"
                      f"{row['ns_per_pair']:>9.4f}{row['share_of_limit']:>9.3f}"
                      f"{row['over_double']:>9.2f}", flush=True)  # fmt: skip
            rows += measured
            if d != LARGE and n <= PLAIN_TOKENS:
                plain.append(measure_plain(d, n, heads, few))
    for row in plain:
        print(
            f"plain loop, one thread, d = {row['d']}, n = {row['n']:,}, H = {row['heads']}: "
            f"{row['median_ms']:.3f} ms, {row['median_times']:.2f} times the vector kernel"
        )
    call = measure_call(rounds)
    reached = goals(rows)
    for name, row in call.items():
        print(f"a call for two tokens and one head, {name}: {row['median_us']:.1f} us")
    for entry in reached:
        print(f"{entry['goal']}: {entry['found']}, goal {entry['target']} {entry['why']}")
    write(
        options.json, COMMAND, threads, problem={"paths": 1, "seed": 0}, results=rows, plain=plain,
        call=call, goals=reached,
    )  # fmt: skip


if __name__ == "__main__":
    main()
