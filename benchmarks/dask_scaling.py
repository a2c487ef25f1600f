"""Cost and gain of workers: the same run by this process, by one worker and by two.

    python benchmarks/dask_scaling.py [--json benchmarks/results/dask_scaling.json]

The work is that of the study `ou_heads` with 64 heads: n = 200 tokens in d = 3, Ornstein-Uhlenbeck
heads, every energy term recorded each fifth step, snapshots, a run file. One thread each: the
serial run has one as well. Overhead = time of one worker over that of the serial run, less one;
scaling = time of one worker over that of two. The variants run in turn, round after round, on
clusters that have started and have loaded their compiled code; that time is reported apart. The
three run files are compared bit by bit. The times of the tasks are reported as well:
they aim at five seconds, and the last ones are shorter so that no worker waits. The number of paths
(24, 48 or 96) is the least whose serial run takes 35 s, or 96: shorter runs have tasks of one
second.

Two processors of a virtual machine may be one core: what two threads gain on arithmetic in
registers alone (`limits.py`) is the most that workers can gain. It is measured at both ends of each
round, and the scaling is divided by it within the round.
"""

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from goals import OVERHEAD, WORKERS
from report import goal, spread, write

import wflow
from wflow import distributed
from wflow.distributed.client import local_cluster
from wflow.heads import OrnsteinUhlenbeck
from wflow.study.frame import machine

DT = 5e-3
COUNTS = (24, 48, 96)  # paths
LEAST_SECONDS = 35.0  # of the serial run


def problem(heads: int, paths: int, t_final: float) -> dict[str, Any]:
    """Arguments of `wflow.solve`, those of the study."""
    return {
        "x0": wflow.tokens.cross_polytope(n=200, d=3, spread=0.05, seed=42),
        "law": OrnsteinUhlenbeck(np.eye(3)),
        "heads": heads,
        "t_final": t_final,
        "dt": DT,
        "paths": paths,
        "save": wflow.SaveAt(every=5, snapshots=[0, t_final / 4, t_final], heads=True),
        "compute": wflow.Compute(threads=1),
    }


def enough_paths(heads: int, t_final: float, folder: Path) -> int:
    """The least of COUNTS whose serial run takes LEAST_SECONDS, by the time of some steps."""

    def least(steps: int) -> float:
        task = problem(heads, 8, steps * DT)
        return min(timed(task, folder / "some.h5", None)[0] for _ in range(3))

    path = (least(24) - least(4)) / (8 * 20) * t_final / DT
    return next((count for count in COUNTS if count * path >= LEAST_SECONDS), COUNTS[-1])


class Tasks(logging.Handler):
    """Hears how long each task took."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seconds: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if " in %.2f s" in str(record.msg) and isinstance(record.args, tuple):
            self.seconds.append(float(str(record.args[-1])))


def same(one: Path, other: Path) -> bool:
    """Whether two run files hold the same bits."""
    with wflow.open(one) as a, wflow.open(other) as b:
        return set(a.variables) == set(b.variables) and all(
            np.array_equal(a[name].values, b[name].values) for name in a.variables
        )


def timed(task: dict[str, Any], out: Path, client: Client | None) -> tuple[float, float]:
    """Seconds of one run, and those of processor time in this process and the workers."""

    def processor() -> float:
        others = {} if client is None else client.run(time.process_time)
        return time.process_time() + sum(others.values())

    used, start = processor(), time.perf_counter()
    if client is None:
        wflow.solve(**task, out=out, if_exists="overwrite").close()
    else:
        distributed.solve(**task, out=out, if_exists="overwrite", scheduler=client).close()
    return time.perf_counter() - start, processor() - used


def gain_of_the_machine() -> float:
    """Arithmetic in registers that two threads do in a given time, over that of one.

    Measured by a separate process: that of the study has the number of threads of its workers.
    """
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from limits import Kind, register_loop;"
        "from report import seconds; loop = register_loop(Kind(3, True, True, 'float64'), 4);"
        "loop(8, 2); n = 500_000_000;"
        "print(2 * seconds(lambda: loop(n, 1)) / seconds(lambda: loop(2 * n, 2)))"
    )
    folder = str(Path(__file__).resolve().parent)
    said = subprocess.check_output(
        [sys.executable, "-c", code, folder], text=True, env=os.environ | {"NUMBA_NUM_THREADS": "2"}
    )
    return float(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all variants")
    parser.add_argument("--heads", type=int, default=64, help="number of heads")
    parser.add_argument("--paths", type=int, help="Monte Carlo paths; default: for 35 s")
    parser.add_argument("--t-final", type=float, default=4.0, help="end time of the run")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/dask_scaling.json"))
    options = parser.parse_args()

    heads = options.heads
    logger = logging.getLogger("wflow")
    logger.setLevel(logging.INFO)
    rows: list[dict[str, Any]] = []
    starts: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        timed(problem(heads, 8, 4 * DT), folder / "warm.h5", None)
        paths = options.paths or enough_paths(heads, options.t_final, folder)
        task = problem(heads, paths, options.t_final)
        print(f"{machine()}, 1 thread each, {options.rounds} rounds, H={heads} n=200 d=3, "
              f"{paths} paths of {round(options.t_final / DT)} steps")  # fmt: skip
        clients: dict[str, Client | None] = {"serial": None}
        for workers in (1, 2):
            start = time.perf_counter()
            here = stack.enter_context(local_cluster(workers, 1))
            client = stack.enter_context(Client(here, set_as_default=False))
            client.wait_for_workers(workers)
            started = time.perf_counter() - start
            # Two tasks a worker, so that each of them has loaded its compiled code.
            first = problem(heads, 2 * workers, 4 * DT)
            first |= {"out": folder / "warm.h5", "if_exists": "overwrite", "task_seconds": 0.0}
            start = time.perf_counter()
            distributed.solve(**first, scheduler=client).close()
            name = f"{workers} worker{'s' if workers > 1 else ''}"
            clients[name] = client
            loaded = time.perf_counter() - start
            print(f"{name}: started in {started:.2f} s, first tasks {loaded:.2f} s")
            starts.append({"start of": name, "cluster_s": started, "first_tasks_s": loaded})

        taken: dict[str, list[float]] = {name: [] for name in clients}
        used: dict[str, list[float]] = {name: [] for name in clients}
        tasks = {name: Tasks() for name in clients}
        machine_gain = []
        for _ in range(options.rounds):
            before = gain_of_the_machine()
            for name, client in clients.items():
                logger.addHandler(tasks[name])
                wall, processor = timed(task, folder / f"{name}.h5", client)
                taken[name].append(wall)
                used[name].append(processor)
                logger.removeHandler(tasks[name])
            machine_gain.append((before + gain_of_the_machine()) / 2)
        bits = [same(folder / "serial.h5", folder / f"{name}.h5") for name in clients]

    print(f"{'variant':<12}{'median s':>10}{'min':>9}{'max':>9}{'cpu s':>9}", end="")
    print(f"{'tasks':>7}{'median s':>10}")
    for name, values in taken.items():
        lengths = tasks[name].seconds
        length = float(np.median(lengths)) if lengths else None
        count = len(lengths) // options.rounds
        rows.append(
            {"variant": name}
            | spread(values, "s")
            | {
                "cpu_s": float(np.median(used[name])),
                "tasks": count,
                "task_median_s": length,
            }
        )
        row = rows[-1]
        print(f"{name:<12}{row['median_s']:>10.2f}{row['min_s']:>9.2f}{row['max_s']:>9.2f}{row['cpu_s']:>9.2f}"
              + (f"{count:>7}{length:>10.2f}" if length else ""))  # fmt: skip
    # Within a round the machine is the same: the median of ratios, not the ratio of medians.
    serial, one, two = (np.array(taken[name]) for name in clients)
    overhead, scaling = spread(one / serial - 1, "share"), float(np.median(one / two))
    possible = float(np.median(machine_gain))
    share = spread(one / two / np.array(machine_gain), "share")
    print(f"overhead of workers {100 * overhead['median_share']:.1f} %, "
          f"two workers over one {scaling:.2f} times, "
          f"two threads over one in registers {possible:.2f} times, "
          f"share {100 * share['median_share']:.1f} %, same bits: {all(bits)}")  # fmt: skip
    command = "python benchmarks/dask_scaling.py"
    write(
        options.json, command, 1,
        problem={"n": 200, "d": 3, "heads": heads, "paths": paths,
                 "t_final": options.t_final, "dt": DT, "dtype": "float64"},
        rows=rows,
        starts=starts,
        same_bits=all(bits),
        machine_gain=spread(machine_gain, "times"),
        workers_gain=spread(one / two, "times"),
        goals=[
            goal(OVERHEAD, command, overhead, 0.05, least=False, unit="%"),
            goal(WORKERS, command, share, 0.97, least=True, unit="%",
                 why=f"two workers do {scaling:.2f} times the work of one, two threads "
                     f"{possible:.2f} times the arithmetic in registers of one"),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
