"""How long a study takes until it steps, with and without compiled code on disk, and its memory.

    python benchmarks/startup.py [--json benchmarks/results/startup.json]

Wall times from the start of the process, by the parent's clock. "first step done": the study
`studies/ou_heads.py --heads 64` (16 paths of 200 tokens) has read its flags, made its run file, and
completed one step of its first batch of paths. A first start finds no compiled code (a fresh
NUMBA_CACHE_DIR) and compiles what the step needs; a second one loads it. What each stage takes is
the difference to the stage before; the stages of one round are started in turn. Peak memory is
that of the process that takes its first steps, by the operating system's account.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numba
from report import RESULTS, goal, machine, spread, write

STUDY = Path(__file__).resolve().parents[1] / "studies" / "ou_heads.py"
SECOND, GOAL_SECONDS = "second start of a study begins stepping (s)", 2.0
FIRST_ROW = "study, first step done, first start (compiles)"
FIRST, FIRST_SECONDS = "first start of a study, with compilation (s)", 12.0
STEPS = 3  # taken before the process ends
SHOWN = 12  # packages in the table of imports

# What the processes run up to: each stage contains the ones before it.
IMPORTS = {
    "interpreter": "pass",
    "import wflow": "import wflow",
    "import numpy": "import numpy",
    "import numba": "import numba",
}

# Runs a study script and ends after its first steps, telling when; in argv: script and flags.
WATCH = """
import json, os, runpy, sys, time
from wflow.particles import integrate  # the study imports it anyway
step, seen = integrate.Batch.advance, []
def advance(batch, *rest, **named):
    if not seen:
        seen.append(time.time())
    following = step(batch, *rest, **named)
    seen.append(time.time())
    if len(seen) > STEPS:
        import resource
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = json.dumps({"seen": seen, "peak": peak})
        os.write(1, ("\\n" + answer + "\\n").encode())
        os._exit(0)
    return following
integrate.Batch.advance = advance
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def stage(code: str) -> float:
    """Seconds until a process that runs `code` has ended."""
    start = time.time()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.time() - start


def study(cache: Path, *options: str) -> tuple[dict[str, float], str]:
    """Seconds until the study begins its first step and until it is done; what stderr said."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, *options, "-c", WATCH.replace("STEPS", str(STEPS)), str(STUDY)]
        start = time.time()
        done = subprocess.run(
            [*command, "--heads", "64", "--out", str(Path(out) / "study")],
            capture_output=True,
            text=True,
            env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"the study ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    began, first, *later = (when - start for when in answer["seen"])
    unit = 1e6 if platform.system() == "Darwin" else 1e6 / 1024  # bytes, or kilobytes of 1024
    return {
        "study begins stepping": began,
        "study, first step done": first,
        "a later step": later[-1] - later[-2],
        "peak_mb": answer["peak"] / unit,
    }, done.stderr


def imports(stderr: str) -> dict[str, float]:
    """Seconds that modules of each package took to import, largest first (-X importtime)."""
    spent: dict[str, float] = {}
    for own, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", stderr):
        package = name.partition(".")[0]
        spent[package] = spent.get(package, 0.0) + int(own) / 1e6
    return dict(sorted(spent.items(), key=lambda entry: -entry[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="rounds of second starts")
    parser.add_argument("--first-starts", type=int, default=2, help="starts without compiled code")
    parser.add_argument("--json", type=Path, default=RESULTS / "startup.json")
    options = parser.parse_args()
    if options.rounds < 1 or options.first_starts < 1:
        parser.error("--rounds and --first-starts: expected 1 or more")

    firsts, peaks = [], []
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for place in range(options.first_starts):
            cache = Path(folder) / str(place)
            figures, _ = study(cache)
            firsts.append(figures["study, first step done"])
        megabytes = sum(f.stat().st_size for f in cache.rglob("*") if f.is_file()) / 1e6
        study(cache)
        for _ in range(options.rounds):
            for name, code in IMPORTS.items():
                taken.setdefault(name, []).append(stage(code))
            figures, _ = study(cache)
            peaks.append(figures.pop("peak_mb"))
            for name, value in figures.items():
                taken.setdefault(name, []).append(value)
        _, stderr = study(cache, "-X", "importtime")
    packages = imports(stderr)

    table: dict[str, Any] = {name: spread(values, "s") for name, values in taken.items()}
    table[FIRST_ROW] = spread(firsts, "s")
    command = "python benchmarks/startup.py"
    goals = [
        goal(SECOND, command, table["study, first step done"], GOAL_SECONDS, least=False),
        goal(FIRST, command, table[FIRST_ROW], FIRST_SECONDS, least=False),
    ]
    threads = numba.get_num_threads()
    print(f"{machine()}, {threads} threads, {options.rounds} rounds")
    print(f"{'seconds from the start of the process':<48}{'median':>9}{'min':>9}{'max':>9}")
    for name, row in table.items():
        print(f"{name:<48}{row['median_s']:>9.3f}{row['min_s']:>9.3f}{row['max_s']:>9.3f}")
    print(f"imports by package, of {sum(packages.values()):.2f} s in all (with -X importtime):")
    for name in list(packages)[:SHOWN]:
        print(f"  {name:<20}{packages[name]:>7.3f} s")
    print(f"peak memory {max(peaks):.0f} MB, compiled code on disk {megabytes:.1f} MB")
    write(
        options.json, command, threads,
        problem={"study": "studies/ou_heads.py --heads 64", "paths": 16, "n": 200, "d": 3},
        times=table,
        imports_s={name: packages[name] for name in list(packages)[:SHOWN]},
        imports_total_s=sum(packages.values()),
        figures={"peak memory (MB)": max(peaks), "compiled code on disk (MB)": megabytes},
        goals=goals,
    )  # fmt: skip


if __name__ == "__main__":
    main()
