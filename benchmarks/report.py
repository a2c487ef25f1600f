"""Rounds of timings taken in turn, their spread, and the JSON reports of all benchmarks."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from wflow.runs.schema import version_of
from wflow.study.frame import machine

PACKAGES = (
    "wflow",
    "numpy",
    "scipy",
    "numba",
    "pot",
    "torch",
    "jax",
    "diffrax",
    "pykeops",
    "triton",
)
RESULTS = Path("benchmarks/results")


def write(file: Path, command: str, threads: int, **body: Any) -> None:
    """Write command, date, machine, threads and versions, then the body, as JSON."""
    versions = {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES}
    head = {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "versions": versions,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(head | body, indent=2) + "\n")
    print(f"wrote {file}")


def seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """Mean wall time of a call over so many in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def steady(call: Callable[[], Any], least: float) -> float:
    """Mean wall time of a call, over as many as take `least` seconds, after half as many.

    The first calls find threads asleep and caches cold; a long one is warm by itself.
    """
    one = seconds(call)
    if one > 2 * least:
        return one
    repeats = max(1, round(least / max(one, 1e-7)))
    if repeats > 1:  # the first was slow, more will fit
        repeats = max(1, round(least / max(seconds(call, repeats // 2), 1e-7)))
    return seconds(call, repeats)


def in_turn(
    calls: Mapping[Any, Callable[[], Any]], rounds: int, least: float = 0.3, pause: float = 0.3
) -> dict[Any, list[float]]:
    """Seconds of every call in every round; a drift of the machine's speed hits all of them.

    `pause` lets the idle threads of the call before, which spin for a while, fall asleep: those of
    OpenBLAS after 2^28 cycles of the time stamp counter, 0.11 s at 2.4 GHz.
    """
    taken: dict[Any, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # compiles
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(pause)
            taken[name].append(steady(call, least))
    return taken


def spread(values: Sequence[float], unit: str = "ms") -> dict[str, float]:
    """Median, smallest and largest over the rounds, in "ms" (from seconds) or as they are in "s"...

    The keys are median_UNIT, min_UNIT, max_UNIT and rounds: what `performance.py` prints, and by
    which it says whether two runs agree.
    """
    scale = 1e3 if unit == "ms" else 1.0
    array = np.asarray(values, float) * scale
    return {
        f"median_{unit}": float(np.median(array)),
        f"min_{unit}": float(array.min()),
        f"max_{unit}": float(array.max()),
        "rounds": len(array),
    }


def quotient(above: Mapping[str, float], below: Mapping[str, float]) -> dict[str, float]:
    """Return the ratio of two sides' medians in ms, and how far their spreads let it lie."""
    return {
        "median_times": above["median_ms"] / below["median_ms"],
        "min_times": above["min_ms"] / below["max_ms"],
        "max_times": above["max_ms"] / below["min_ms"],
    }


def median_times(ratio: Mapping[str, float]) -> float:
    """Return the median of a `quotient`, by which the worst of several is found."""
    return ratio["median_times"]


def unit_of(found: Any) -> str | None:
    """The unit of a `spread`, None for anything else."""
    names = found if isinstance(found, Mapping) else ()
    return next((key.removeprefix("median_") for key in names if key.startswith("median_")), None)


def goal(
    what: str, command: str, found: float | Mapping[str, float] | None, target: float, *,
    least: bool, why: str = "", unit: str = "",
) -> dict[str, Any]:  # fmt: skip
    """One goal as JSON: `found` is to be at least (`least`) or at most the target.

    `found` is None where nothing was measured, or a `spread` in any unit: where its ends lie on
    both sides of the target, the page calls the goal inconclusive. `why` says why a goal was
    missed; `unit` is printed after the numbers, and "%" makes percent of shares.
    """
    ends = None
    if isinstance(found, Mapping):
        own = unit_of(found)
        ends = [float(found[f"{end}_{own}"]) for end in ("min", "max")]
        found = float(found[f"median_{own}"])
    met = None if found is None else bool(found >= target if least else found <= target)
    return {
        "goal": what,
        "command": command,
        "found": found,
        "target": target,
        "least": least,
        "unit": unit,
        "met": met,
        "why": why,
        "ends": ends,
    }


@contextmanager
def peak_memory() -> Iterator[dict[str, float | None]]:
    """Growth of this process's resident memory at its peak within, as ["mb"] (1e6 bytes).

    None where the operating system cannot tell (it can on Linux).
    """
    found: dict[str, float | None] = {"mb": None}
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident now
        before = _resident("VmRSS")
    except (OSError, KeyError):
        yield found
        return
    yield found
    found["mb"] = max(0.0, (_resident("VmHWM") - before) / 1e6)


def _resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    table = {key: value for key, _, value in (line.partition(":") for line in lines)}
    return float(table[name].split()[0]) * 1024
