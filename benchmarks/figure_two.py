"""Time and memory of the study behind figure 2 of [MHT]: 1, 10 and 100 heads, 100 paths each.

    python benchmarks/figure_two.py [--json benchmarks/results/figure_two.json] [--paths 100]

The whole command `studies/ou_heads.py --heads 1 10 100 --paths 100 --scheme euler --dt 0.005` in a
process of its own, from its start to its report: the runs of 4,000 steps of 200 tokens with every
energy term, run files, fits and figures. Code that the machine has compiled before is loaded from
disk. Before and after each run of it `limits.py` measures the arithmetic of the exact sums alone,
with every operand in a register, on the same threads: what the pairs of all steps take at that rate
is the limit of the round. Beside it the whole command with one path, whose steps cost little:
start, fits and figures.
"""

import argparse
from pathlib import Path

import limits
import numba
import numpy as np
from goals import FIGURE
from processes import study_memory_mb
from report import RESULTS, goal, spread, write

COMMAND = "python benchmarks/figure_two.py"
HEADS = ("1", "10", "100")
GOAL_SECONDS = 330.0
N, STEPS = 200, 4000  # of the study, in three dimensions
SUMS = {both: limits.Kind(3, both, True, "float64") for both in (True, False)}


def limit(paths: int, threads: int) -> float:
    """Seconds of the pairs of all steps by arithmetic in registers, measured now."""
    rates = limits.seconds_per_pair(SUMS.values(), threads)
    each = {both: float(np.median(rates[kind])) for both, kind in SUMS.items()}
    return paths * STEPS * sum(limits.of_step(each, N, int(h), "float64") for h in HEADS)


def main() -> None:
    """Run the study, print and write what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--paths", type=int, default=100)
    parser.add_argument("--json", type=Path, default=RESULTS / "figure_two.json")
    options = parser.parse_args()
    threads = numba.get_num_threads()
    flags = ["--heads", *HEADS, "--scheme", "euler", "--dt", "0.005", "--paths"]
    study, alone = ([*flags, str(n)] for n in (options.paths, 1))
    study_memory_mb(alone)  # compiles
    taken: dict[str, list[float]] = {"the study": [], "limit": [], "the study, one path": []}
    peaks = []
    for _ in range(options.rounds):
        before = limit(options.paths, threads)
        peak, seconds = study_memory_mb(study)
        taken["the study"].append(seconds)
        taken["limit"].append((before + limit(options.paths, threads)) / 2)
        taken["the study, one path"].append(study_memory_mb(alone)[1])
        peaks.append(peak)
    times = {name: spread(values, "s") for name, values in taken.items()}
    times["the study"]["memory_mb"] = max(peaks)
    for name, row in times.items():
        print(f"{name}: {row['median_s']:.1f} s ({row['min_s']:.1f} to {row['max_s']:.1f})")
    row = times["the study"]
    goals = [goal(FIGURE, COMMAND, row, GOAL_SECONDS, least=False, unit="s")]
    write(
        options.json, COMMAND, threads, problem={"study": study, "n": N, "steps": STEPS, "seed": 0},
        times=times, goals=goals if options.paths == 100 else [],
    )  # fmt: skip


if __name__ == "__main__":
    main()
