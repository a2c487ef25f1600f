"""Time and memory of the study behind figure 2 of [MHT]: 1, 10 and 100 heads, 100 paths each.

    python benchmarks/figure_two.py [--json benchmarks/results/figure_two.json] [--paths 100]

The whole command `studies/ou_heads.py --heads 1 10 100 --paths 100` in a process of its own, from
its start to its report: the runs of 4,000 steps of 200 tokens with every energy term, run files,
fits and figures. Code that the machine has compiled before is loaded from disk. Rounds follow each
other: there is nothing to take turns with.
"""

import argparse
from pathlib import Path

import numba
from goals import FIGURE
from processes import study_memory_mb
from report import RESULTS, goal, spread, write

COMMAND = "python benchmarks/figure_two.py"
HEADS = ("1", "10", "100")
GOAL_SECONDS = 330.0


def main() -> None:
    """Run the study, print and write what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--paths", type=int, default=100)
    parser.add_argument("--json", type=Path, default=RESULTS / "figure_two.json")
    options = parser.parse_args()
    study = ["--heads", *HEADS, "--paths", str(options.paths)]
    study_memory_mb(["--heads", *HEADS, "--paths", "1"])  # compiles
    peaks, times = zip(*(study_memory_mb(study) for _ in range(options.rounds)), strict=True)
    row = spread(times, "s") | {"memory_mb": max(peaks)}
    print(f"ou_heads {' '.join(study)}: {row['median_s']:.1f} s ({row['min_s']:.1f} to "
          f"{row['max_s']:.1f}), {row['memory_mb']:.0f} MB")  # fmt: skip
    goals = [goal(FIGURE, COMMAND, row["median_s"], GOAL_SECONDS, least=False, unit="s")]
    write(
        options.json, COMMAND, numba.get_num_threads(), problem={"study": study, "seed": 0},
        times={"the study": row}, goals=goals if options.paths == 100 else [],
    )  # fmt: skip


if __name__ == "__main__":
    main()
