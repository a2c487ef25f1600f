"""Two checkouts of wflow side by side, in alternating rounds: start, steps, sums and memory.

    python benchmarks/side_by_side.py --before PATH --after PATH [--rounds 6] [--only 'fused*']

Every measurement is a fresh process with PYTHONPATH set to the checkout, which is one of the other
in turn; one round before those that count fills the caches of compiled code. Wall time of a whole
process for what starts ("import wflow", "first energy"); the mean over repeated calls, after
one that is not counted, for the rest; the operating system's account of the peak for memory. The
smallest, the median and the largest over the rounds are printed. The verdict is "slower" or
"faster" (of memory, "larger" or "smaller") where the two ranges do not overlap. What a checkout
does not have is left out.

The script itself uses public names alone, those of the older of the two.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from wflow._core.checks import Method, MetricName

LEAST = 0.5  # seconds of repeated calls
FIRST_ENERGY = """
import numpy, wflow
wflow.energy(numpy.eye(3), numpy.eye(3)[None])
"""
MEMORY = ["--heads", "64", "--paths", "16", "--t-final", "0.1"]
Call = Callable[[], Any]


# What a child measures
# ---------------------


def cloud(n: int, heads: int) -> tuple[Any, Any]:
    """Uniform tokens (n, 3) and symmetric matrices (heads, 3, 3)."""
    import wflow

    z = np.random.default_rng(3).standard_normal((heads, 3, 3)) / 3
    return wflow.tokens.uniform(n, 3, seed=0), z + z.swapaxes(-1, -2)


def solve(x0: Any, law: Any, **options: Any) -> Any:
    """`wflow.solve` on one path that records only both ends, in either spelling of its options."""
    import wflow

    every: dict[str, Any]
    if hasattr(wflow, "SaveAt"):
        every = {"save": wflow.SaveAt(every=10**6)}
    else:
        every = {"record_every": 10**6}
    return wflow.solve(x0, law, **options, **every)


def fused_step() -> tuple[Call, int]:
    import wflow

    x, law, steps = cloud(200, 1)[0], wflow.heads.OrnsteinUhlenbeck(np.eye(3)), 40
    return lambda: solve(x, law, heads=64, t_final=steps * 0.001, dt=0.001), steps


def sums(n: int, method: "Method") -> tuple[Call, int]:
    import wflow

    x, D = cloud(n, 8)
    return lambda: wflow.velocity(x, D, method=method), 1


def jko_step(metric: "MetricName") -> tuple[Call, int]:
    from wflow import jko

    x, D = cloud(50, 4)
    return lambda: jko.step(x, D, 0.05, metric=metric), 1


def adaptive_run() -> tuple[Call, int]:
    import wflow

    x, law = cloud(20, 1)[0], wflow.heads.Oscillating(3)
    return lambda: solve(x, law, heads=2, t_final=5.0, dt=0.5, scheme="dopri5"), 1


CALLS: dict[str, Callable[[], tuple[Call, int]]] = {
    "fused step (200 tokens, 64 heads)": fused_step,
    "exact sums (n = 2000, 8 heads)": lambda: sums(2000, "exact"),
    "fast sums (n = 100000, 8 heads)": lambda: sums(100_000, "fast"),
    "JKO step in W_2 (n = 50)": lambda: jko_step("w2"),
    "JKO step in W_b (n = 50)": lambda: jko_step("weighted"),
    "adaptive run (20 tokens, 2 heads)": adaptive_run,
}


def timed(name: str) -> float | None:
    """Milliseconds of a call (of a step), or None where this wflow does not have it."""
    from wflow import InputError

    call, parts = CALLS[name]()
    try:
        call()
    except InputError:
        return None
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < LEAST:
        call()
        count += 1
    return (time.perf_counter() - start) / (count * parts) * 1e3


# What the parent does
# --------------------


def started(checkout: Path, *command: str) -> str:
    """Run Python with the modules of a checkout; what it prints."""
    env = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, *command], env=env, cwd=checkout, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{checkout}: {' '.join(command)[:60]}:\n{done.stderr[-2000:]}")
    return done.stdout


def whole_process(code: str) -> Callable[[Path], float]:
    def measure(checkout: Path) -> float:
        start = time.perf_counter()
        started(checkout, "-c", code)
        return (time.perf_counter() - start) * 1e3

    return measure


def called(name: str) -> Callable[[Path], float | None]:
    return lambda checkout: json.loads(started(checkout, str(Path(__file__).resolve()), name))


def peak_memory(checkout: Path) -> float:
    """Peak of the study in MB; a small process starts it, whose own peak a child inherits."""
    between = (
        "import resource, subprocess, sys;"
        "subprocess.run(sys.argv[1:], check=True, stdout=2);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    with tempfile.TemporaryDirectory() as folder:
        study = [sys.executable, "studies/ou_heads.py", *MEMORY, "--out", f"{folder}/run"]
        kilobytes = float(started(checkout, "-c", between, *study))
    return kilobytes / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


MEASURED: dict[str, tuple[str, Callable[[Path], float | None]]] = {
    "import wflow": ("ms", whole_process("import wflow")),
    "first energy": ("ms", whole_process(FIRST_ENERGY)),
    **{name: ("ms", called(name)) for name in CALLS},
    f"ou_heads {' '.join(MEMORY)}": ("MB", peak_memory),
}


def verdict(before: list[float], after: list[float], unit: str) -> str:
    if len(before) < 4:
        return "too few rounds"
    worse, better = ("larger", "smaller") if unit == "MB" else ("slower", "faster")
    if min(after) > max(before):
        return worse
    return better if max(after) < min(before) else "within the spread"


def row(name: str, unit: str, found: dict[str, list[float | None]]) -> str:
    cells, ranges = [f"{f'{name} [{unit}]':<60}"], []
    for values in found.values():
        numbers = [value for value in values if value is not None]
        if numbers:
            ranges.append(numbers)
            three = (min(numbers), statistics.median(numbers), max(numbers))
            cells.append("".join(f"{number:>10.4g}" for number in three) + " ")
        else:
            cells.append(f"{'-':>30} ")
    return "|".join(cells) + (
        f"| {verdict(ranges[0], ranges[1], unit)}" if len(ranges) == 2 else "|"
    )


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1] in CALLS:
        print(json.dumps(timed(sys.argv[1])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="checkout to compare with")
    parser.add_argument("--after", type=Path, required=True, help="checkout that is judged")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", default="*", help="pattern of the names of measurements")
    parser.add_argument("--json", type=Path, help="also write every value here")
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "after": options.after.resolve()}
    for path in checkouts.values():
        if not (path / "wflow" / "__init__.py").exists():
            parser.error(f"{path} is no checkout of wflow")
    if options.rounds < 1:
        parser.error("--rounds: expected 1 or more")
    chosen = {name: how for name, how in MEASURED.items() if fnmatch(name, options.only)}
    if not chosen:
        parser.error(f"--only: expected a pattern of {', '.join(MEASURED)}")

    found: dict[str, dict[str, list[float | None]]] = {
        name: {which: [] for which in checkouts} for name in chosen
    }
    for turn in range(options.rounds + 1):
        for name, (_, measure) in chosen.items():
            # The one that goes first changes, so that neither always follows the other.
            for which in list(checkouts)[:: 1 if turn % 2 else -1]:
                value = measure(checkouts[which])
                if turn:
                    found[name][which].append(value)
        if sys.stderr.isatty():
            print(f"round {turn} of {options.rounds}", file=sys.stderr)

    print(f"{'':<60}|{'before: min':>11}{'median':>10}{'max':>10}|{'after: min':>11}{'median':>10}"
          f"{'max':>10}|")  # fmt: skip
    for name, (unit, _) in chosen.items():
        print(row(name, unit, found[name]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
