"""Time of Wasserstein distances against plain POT, as a user of POT would write them.

    python benchmarks/transport.py [--json benchmarks/results/transport.json]

One process, one run, double precision. W₂ of two clouds of 2,000 uniform tokens:

- sphere: S^2, geodesic cost; POT: arccos of the products, squared, and `ot.emd2`;
- sphere, chordal: the chord as cost; POT: `ot.dist` (squared Euclidean) and `ot.emd2`;
- sphere, weighted: geodesic, random weights on one cloud: both by POT's network simplex;
- circle: S^1, geodesic cost; POT: as on the sphere, and `ot.wasserstein_circle`;

and the time series of a run of 4,000 steps (n = 200 tokens, d = 3, 4 Ornstein-Uhlenbeck heads) at
50 snapshot times: the distances to the last snapshot, by `wflow.transport.over_time` from the run
file, and by a loop over POT with the snapshots in memory. The run itself is timed for comparison.

W₂ with the geodesic cost for 50 to 5,000 tokens, against `ot.emd2` as above:

- uniform, d = 3 and d = 8;
- clusters: six of width 0.01 on S^2 in both clouds, with different numbers of tokens;
- to clusters: a uniform cloud and one in six clusters of width 0.001;

and the 50 distances to the last snapshot of a run of 200 or 2,000 tokens, by `over_time` and by 50
calls of `transport.w2`; the file is open already, both read the tokens from it.

The variants run in turn, round after round, so that a drift of the machine's speed hits all; the
median over rounds is printed with the smallest and largest. POT runs with enough iterations to end.
Goals: W₂ no slower than POT at any number of tokens; `over_time` in half the time of the calls.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import ot
from goals import W2
from report import goal, median_times, quotient, spread, write

import wflow
from wflow import tokens, transport
from wflow.heads import OrnsteinUhlenbeck
from wflow.study.frame import machine

COMMAND = "python benchmarks/transport.py"
N, SMALL, STEPS, TIMES, HEADS = 2000, 200, 4000, 50, 4
SIZES = (50, 100, 200, 500, 1000, 2000, 5000)
SHORT = 200  # tokens up to which a call lasts a millisecond or two, and more rounds are taken
SERIES = {200: 4000, 2000: 200}  # tokens and steps of the runs for `over_time`
ITERATIONS = 10**9


def plain_geodesic(x, y, a=None):
    """W₂ by POT, the angle from the product of the tokens."""
    costs = np.arccos(np.clip(x @ y.T, -1, 1)) ** 2
    return ot.emd2([] if a is None else a, [], costs, numItermax=ITERATIONS) ** 0.5


def plain_chordal(x, y):
    """W₂ by POT with its own squared Euclidean distance."""
    return ot.emd2([], [], ot.dist(x, y), numItermax=ITERATIONS) ** 0.5


def plain_circle(x, y):
    """W₂ by POT's search on the circle, from turns to radians."""
    u, v = (ot.utils.get_coordinate_circle(cloud) for cloud in (x, y))
    return 2 * np.pi * ot.wasserstein_circle(u, v, p=2)[0] ** 0.5


def clusters(n: int, width: float, seed: int):
    """A cloud in six clusters on S^2, whose places are the same for every seed."""
    rng = np.random.default_rng(seed)
    places = tokens.uniform(6, 3, seed=9)[rng.integers(0, 6, n)]
    return wflow.sphere.as_tokens(places + width * rng.standard_normal((n, 3)))


CLOUDS: dict[str, Callable] = {
    "uniform, d = 3": lambda n: (tokens.uniform(n, 3, seed=0), tokens.uniform(n, 3, seed=1)),
    "uniform, d = 8": lambda n: (tokens.uniform(n, 8, seed=0), tokens.uniform(n, 8, seed=1)),
    "clusters": lambda n: (clusters(n, 1e-2, 0), clusters(n, 1e-2, 1)),
    "to clusters": lambda n: (tokens.uniform(n, 3, seed=0), clusters(n, 1e-3, 1)),
}


def make_run(file: Path, n: int = SMALL, steps: int = STEPS) -> float:
    """Write the run file; returns the seconds it took."""
    start = time.perf_counter()
    wflow.solve(
        tokens.cross_polytope(n, 3, seed=42), OrnsteinUhlenbeck(np.eye(3), sigma2=2.0),
        heads=HEADS, t_final=20.0, dt=20.0 / steps, out=file,
        save=wflow.SaveAt(every=5, snapshots=np.linspace(0, 20, TIMES)),
    ).close()  # fmt: skip
    return time.perf_counter() - start


def plain_series(file: Path):
    with wflow.open(file) as run:
        clouds = run["tokens"].values[0]
    return np.array([plain_geodesic(cloud, clouds[-1]) for cloud in clouds])


def timed(call: Callable) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def by_size(rounds: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """W₂ and POT's for every kind of clouds and number of tokens, in turn."""
    rows = []
    for kind, make in CLOUDS.items():
        for n in sizes:
            x, y = make(n)
            calls = {"wflow": lambda: transport.w2(x, y), "POT": lambda: plain_geodesic(x, y)}  # noqa: B023
            difference = abs(calls["wflow"]() - calls["POT"]())
            some = rounds if n <= N else min(rounds, 3)
            taken = alternated(calls, 6 * some if n <= SHORT else some)
            ratio = float(np.median(taken["wflow"]) / np.median(taken["POT"]))
            rows.append(
                {"clouds": kind, "n": n, "times POT": ratio, "difference": difference}
                | {name: spread(values) for name, values in taken.items()}
            )
            print_pair(f"{kind}, n = {n}", rows[-1], ("wflow", "POT"), ratio)
    return rows


def series(rounds: int, folder: Path) -> list[dict[str, Any]]:
    """`over_time` against calls of `w2`, for runs of several sizes."""
    rows = []
    for n, steps in SERIES.items():
        file = folder / f"series_{n}.h5"
        make_run(file, n, steps)
        with wflow.open(file) as run:

            def cold(run=run):
                clouds = run["tokens"].values[0]
                return np.array([transport.w2(cloud, clouds[-1]) for cloud in clouds])

            calls = {"over_time": lambda: transport.over_time(run).values[0], "w2": cold}
            difference = float(np.abs(calls["over_time"]() - calls["w2"]()).max())
            taken = alternated(calls, rounds if n < N else min(rounds, 3))
        ratio = float(np.median(taken["over_time"]) / np.median(taken["w2"]))
        rows.append(
            {"n": n, "times w2": ratio, "difference": difference}
            | {name: spread(values) for name, values in taken.items()}
        )
        print_pair(f"{TIMES} times, n = {n}", rows[-1], ("over_time", "w2"), ratio)
    return rows


def alternated(calls: Mapping[str, Callable], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(timed(call))
    return taken


def print_pair(what: str, row: Mapping[str, Any], names: Sequence[str], ratio: float) -> None:
    times = ", ".join(
        f"{name} {row[name]['median_ms']:.4g} ({row[name]['min_ms']:.4g} to "
        f"{row[name]['max_ms']:.4g})"
        for name in names
    )
    print(f"{what:<26}{times} ms, ratio {ratio:.3g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="rounds of all variants")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="tokens of the clouds")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/transport.json"))
    options = parser.parse_args()

    x, y = tokens.uniform(N, 3, seed=0), tokens.uniform(N, 3, seed=1)
    u, v = tokens.uniform(N, 2, seed=0), tokens.uniform(N, 2, seed=1)
    a = np.random.default_rng(0).uniform(0.5, 1.5, N)
    a /= a.sum()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.h5"
        make_run(Path(folder) / "first.h5")  # compiles
        solving = make_run(file)
        variants: dict[str, dict[str, Callable]] = {
            "sphere": {
                "wflow": lambda: transport.w2(x, y),
                "POT emd2": lambda: plain_geodesic(x, y),
            },
            "sphere, chordal": {
                "wflow": lambda: transport.w2(x, y, cost="chordal"),
                "POT emd2": lambda: plain_chordal(x, y),
            },
            "sphere, weighted": {
                "wflow": lambda: transport.w2(x, y, weights_x=a),
                "POT emd2": lambda: plain_geodesic(x, y, a),
            },
            "circle": {
                "wflow": lambda: transport.w2(u, v),
                "POT emd2": lambda: plain_geodesic(u, v),
                "POT wasserstein_circle": lambda: plain_circle(u, v),
            },
            "time series": {
                "wflow": lambda: transport.over_time(file).values[0],
                "POT emd2": lambda: plain_series(file),
            },
        }
        differences = {
            f"{problem}: {name}": float(np.max(np.abs(np.asarray(call()) - calls["wflow"]())))
            for problem, calls in variants.items()
            for name, call in calls.items()
            if name != "wflow"
        }
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.rounds):
            for problem, calls in variants.items():
                for name, call in calls.items():
                    times.setdefault((problem, name), []).append(timed(call))
        sizes = by_size(options.rounds, options.sizes)
        warm = series(options.rounds, Path(folder))

    goals = [
        goal(W2, COMMAND,
             max((quotient(row["wflow"], row["POT"]) for row in sizes), key=median_times), 1.0,
             least=False, unit="times"),
        *(goal(f"50 distances along a run over 50 single ones, n = {row['n']:,}", COMMAND,
               row["times w2"], 0.5, least=False, unit="times") for row in warm),
    ]  # fmt: skip
    table = {
        f"{problem}: {name}": {
            "median_ms": float(np.median(values)) * 1e3,
            "min_ms": min(values) * 1e3,
            "max_ms": max(values) * 1e3,
            "times wflow": float(np.median(values) / np.median(times[problem, "wflow"])),
        }
        for (problem, name), values in times.items()
    }
    threads = numba.get_num_threads()
    print(f"{machine()}, {threads} threads, {options.rounds} rounds, n = {N}, f64")
    print(f"{'variant':<32}{'median ms':>11}{'min':>10}{'max':>10}{'times wflow':>13}")
    for row, numbers in table.items():
        print(
            f"{row:<32}{numbers['median_ms']:>11.2f}{numbers['min_ms']:>10.2f}"
            f"{numbers['max_ms']:>10.2f}{numbers['times wflow']:>13.3g}"
        )
    for row, value in differences.items():
        print(f"largest difference, {row}: {value:.3g}")
    print(f"the run of {STEPS} steps itself: {solving:.3g} s")
    write(
        options.json, COMMAND, threads,
        problem={"n": N, "series": {"n": SMALL, "d": 3, "heads": HEADS, "steps": STEPS,
                                       "times": TIMES}, "dtype": "float64", "seed": 0},
        times=table,
        differences=differences,
        run_s=solving,
        sizes=sizes,
        series=warm,
        goals=goals,
    )  # fmt: skip


if __name__ == "__main__":
    main()
