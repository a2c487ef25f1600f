"""How the cost of a step grows with tokens, heads, dimension and paths.

    python benchmarks/scaling.py [--json benchmarks/results/scaling.json]

A step is one evaluation of the velocity and every energy term in double precision (softmax descent,
drift, noise, Itô term), as in `compare.py`. One of n, H, d, paths varies at a time; the points of
all series are taken in turn, round after round. The exponent b of time = a x^b is fitted by
`wflow.fits.power_law` to all points of a series and to its larger half, where what does not grow
has less weight; the standard error is that of a bootstrap over the rounds, and the largest factor
by which a point departs from the fit says how far the power law holds.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import variants
from report import RESULTS, in_turn, machine, spread, write

from wflow import fits

EXACT_TOKENS = (200, 500, 1000, 2000, 5000, 10_000, 20_000)
FAST_TOKENS = (1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
HEADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DIMENSIONS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
PATHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Series:
    """Points x of one variable; the rest of the problem stands still."""

    method: str  # "exact" or "fast"
    over: str  # "n", "H", "d" or "paths"
    points: tuple[int, ...]
    fixed: dict[str, int]

    @property
    def name(self) -> str:
        rest = ", ".join(f"{key} = {value}" for key, value in self.fixed.items())
        return f"{self.method} sums over {self.over}, {rest}"

    def call(self, point: int) -> Callable[[], Any]:
        """The step at one point."""
        at = {"paths": 1} | self.fixed | {self.over: point}
        problem = variants.make(at["n"], at["H"], at["d"])
        if self.method == "fast":
            return variants.wflow_fast(problem)
        return variants.wflow_exact(problem, at["paths"])


ALL = (
    Series("exact", "n", EXACT_TOKENS, {"H": 8, "d": 3}),
    Series("exact", "H", HEADS, {"n": 1000, "d": 3}),
    Series("exact", "d", DIMENSIONS, {"n": 1000, "H": 8}),
    Series("exact", "paths", PATHS, {"n": 200, "H": 8, "d": 3}),
    Series("fast", "n", FAST_TOKENS, {"H": 8, "d": 3}),
    Series("fast", "n", FAST_TOKENS, {"H": 8, "d": 2}),
    Series("fast", "H", HEADS, {"n": 20_000, "d": 3}),
)


def fit(points: tuple[int, ...], samples: list[list[float]]) -> dict[str, Any]:
    """Exponent with its standard error, and the largest factor between a point and the fit."""
    means = np.mean(samples, axis=1)
    law = fits.power_law(points, np.array(samples))
    away = np.abs(np.log(means / law(points))).max()
    return {
        "from": points[0],
        "to": points[-1],
        "exponent": law.exponent,
        "exponent_error": fits.json_number(law.exponent_error),
        "largest_factor": float(np.exp(away)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all points")
    parser.add_argument("--least", type=float, default=0.1, help="seconds behind one number")
    parser.add_argument("--largest", type=int, default=10**6, help="leave out points beyond it")
    parser.add_argument("--json", type=Path, default=RESULTS / "scaling.json")
    options = parser.parse_args()
    if options.rounds < 1 or options.largest < 4:
        parser.error("--rounds must be 1 or more, and --largest 4 or more")

    fast = variants.missing("wflow, fast") is None
    chosen = [series for series in ALL if fast or series.method == "exact"]
    points = {s.name: tuple(x for x in s.points if x <= options.largest) for s in chosen}
    chosen = [s for s in chosen if len(points[s.name]) > 1]
    calls = {(s.name, x): s.call(x) for s in chosen for x in points[s.name]}
    taken = in_turn(calls, options.rounds, options.least, pause=0.1)

    count = variants.threads()
    print(f"{machine()}, {count} threads, {options.rounds} rounds, float64")
    table: dict[str, dict[str, Any]] = {}
    for series in chosen:
        name, xs = series.name, points[series.name]
        samples = [taken[name, x] for x in xs]
        half = min(len(xs) // 2, len(xs) - 2)
        table[name] = {
            "method": series.method,
            "over": series.over,
            "fixed": series.fixed,
            "points": list(xs),
            "times": [spread(values) for values in samples],
            "fit": fit(xs, samples),
            "fit_larger_half": fit(xs[half:], samples[half:]),
        }
        print(f"\n{name}")
        for x, row in zip(xs, table[name]["times"], strict=True):
            print(
                f"{series.over:>7} = {x:<9}{row['median_ms']:>12.3f} ms"
                f"   ({row['min_ms']:.3f} to {row['max_ms']:.3f})"
            )
        for law in (table[name]["fit"], table[name]["fit_larger_half"]):
            print(
                f"  {law['from']} to {law['to']}: exponent {law['exponent']:.3f} +- "
                f"{law['exponent_error'] or float('nan'):.3f}, points within a factor "
                f"{law['largest_factor']:.2f}"
            )
    write(
        options.json, "python benchmarks/scaling.py", count,
        problem={"dtype": "float64", "seed": 0, "fast_tolerance": variants.FAST_TOLERANCE},
        series=table,
    )  # fmt: skip


if __name__ == "__main__":
    main()
