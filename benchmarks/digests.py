"""Cost of the digests of a run file while a run is computed, and the speed of their check.

    python benchmarks/digests.py [--json benchmarks/results/digests.json]

Two runs: that of the first example (64 heads, 200 tokens, recorded every 5 steps), and one that
records as much as it can (1 head, 50 tokens, every step and every snapshot). *Share* is the time
spent in the functions of the digests over that of the run; it has less spread than the difference
of two runs. The rates are those of `wflow verify` and of a resume, which read a run of random
numbers and hash it, the file being in the cache of the system.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numba
import numpy as np
from report import RESULTS, goal, machine, spread, write

import wflow
from wflow.heads import OrnsteinUhlenbeck
from wflow.runs import digests
from wflow.runs.digests import Running
from wflow.runs.schema import RunLayout, dataset_attrs
from wflow.runs.store import RunWriter

COMMAND = "python benchmarks/digests.py"
RUNS: dict[str, dict[str, Any]] = {
    "front door": {
        "n": 200,
        "heads": 64,
        "paths": 8,
        "t_final": 2.0,
        "save": wflow.SaveAt(every=5),
    },
    "records all": {"n": 50, "heads": 1, "paths": 8, "t_final": 5.0, "every": True},
}
FILE_MB = 800


class Timed:
    """Seconds that are spent in the functions of the digests."""

    def __init__(self) -> None:
        self.spent = 0.0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.spent += time.perf_counter() - begun

        return timed


def compute(out: Path, n: int, every: bool = False, **options: Any) -> tuple[float, float]:
    """Seconds of a run, and those of its digests."""
    x0 = wflow.tokens.cross_polytope(n=n, d=3, spread=0.05, seed=42)
    if every:
        times = (5e-3 * np.arange(1 + round(options["t_final"] / 5e-3))).tolist()
        options["save"] = wflow.SaveAt(snapshots=times, paths=range(options["paths"]))
    timed = Timed()
    with (
        mock.patch.object(Running, "update", timed(Running.update)),
        mock.patch.object(Running, "hexdigest", timed(Running.hexdigest)),
        mock.patch.object(RunWriter, "_digest", timed(RunWriter._digest)),
    ):
        begun = time.perf_counter()
        law = OrnsteinUhlenbeck(np.eye(3))
        wflow.solve(
            x0,
            law,
            dt=5e-3,
            out=out,
            if_exists="overwrite",
            compute=wflow.Compute(method="exact"),
            **options,
        ).close()
        return time.perf_counter() - begun, timed.spent


def large(path: Path, megabytes: int) -> tuple[RunWriter, int]:
    """A run file of random numbers, recorded to its end and not finished; and its bytes."""
    times = np.arange(2000.0)
    paths = max(1, round(megabytes * 1e6 / (13 * 8 * times.size)))
    layout = RunLayout(paths, times, np.zeros(1), np.zeros(1, int), 4, 3, 2)
    writer = RunWriter.create(path, layout, dataset_attrs({"law": {"name": "Frozen"}}, seed=0))
    rng, size = np.random.default_rng(0), 0
    for name in layout.names:
        values = rng.normal(size=layout.shape(name))
        writer.write(name, (), values)
        size += values.nbytes
    writer.checkpoint({})
    return writer, size


def rate(call: Callable[[], int], rounds: int) -> list[float]:
    """MB a second of a call that returns the number of bytes it read."""
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        count = call()
        found.append(count / 1e6 / (time.perf_counter() - begun))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=FILE_MB, help="size of the file read")
    parser.add_argument("--json", type=Path, default=RESULTS / "digests.json")
    options = parser.parse_args()
    times: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.h5"
        for name, run in RUNS.items():
            compute(out, **run)  # compiles
            for _ in range(options.rounds):
                seconds, spent = compute(out, **run)
                times.setdefault(name, []).append(seconds)
                shares.setdefault(name, []).append(spent / seconds)
        path = Path(folder) / "large.h5"
        writer, size = large(path, options.megabytes)

        def resume() -> int:
            resumed, _ = RunWriter.resume(path, {"law": {"name": "Frozen"}})
            resumed.abandon()
            return size

        writer.abandon()
        rates = {"resume": rate(resume, options.rounds)}
        RunWriter.resume(path, {"law": {"name": "Frozen"}})[0].finish()

        def check() -> int:
            digests.check(path)
            return size

        rates["verify"] = rate(check, options.rounds)
    figures = {f"share of {name}": statistics.median(values) for name, values in shares.items()}
    figures |= {f"{name}, MB/s": statistics.median(values) for name, values in rates.items()}
    print(f"{machine()}, {numba.get_num_threads()} threads, {options.rounds} rounds")
    for name, values in times.items():
        print(f"{name:<24}{statistics.median(values):>9.3f} s")
    for name, value in figures.items():
        print(f"{name:<24}{value:>9.4g}")
    goals = [
        goal("digests, share of a run", COMMAND, max(map(statistics.median, shares.values())), 0.02,
             least=False, unit="%"),
        *(goal(f"digests checked by {name}", COMMAND, statistics.median(values), 500.0, least=True,
               unit="MB/s") for name, values in rates.items()),
    ]  # fmt: skip
    write(
        options.json, COMMAND, numba.get_num_threads(),
        problem={"runs": {name: str(run) for name, run in RUNS.items()},
                 "file MB": options.megabytes},
        times={name: spread(values, "s") for name, values in times.items()},
        figures=figures, goals=goals,
    )  # fmt: skip


if __name__ == "__main__":
    main()
