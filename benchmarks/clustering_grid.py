"""Time of the clustering phase diagram, 10 x 10 cells of 20 runs each, against plain torch.

    python benchmarks/clustering_grid.py [--json benchmarks/results/clustering_grid.json]

The cells are those of `studies/clustering.py` at its defaults: n = 32 tokens, beta from 0.5 to 10,
d from 2 to 128, 20 random starts, 120 steps of rk4, and the number of clusters at three times.

- wflow: `wflow.solve` into one run file per cell, and `wflow.clusters.over_time` on the file, as
  the study does it; the goal is 5 minutes on two cores for all of it. "in memory": without the
  run file, as torch does it.
- torch, where it is installed: the same cells as batched matrix products in double precision
  without autograd, in memory, and the same count of clusters. What it does in a cell does not
  depend on beta, so it is timed for --torch-betas of the ten, spread over their range, and scaled.

Both run in turn in the same process, dimension by dimension. Compilation is not counted: a first
cell of every dimension goes before.
"""

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from report import write

import wflow
from wflow import clusters
from wflow.study.frame import machine

GOAL_SECONDS = 300.0


def study() -> ModuleType:
    """The study script as a module."""
    sys.path.append(str(Path(__file__).parents[1] / "studies"))
    return importlib.import_module("clustering")


def by_wflow(task: dict[str, Any], scale: float, folder: Path | None) -> NDArray[np.float64]:
    """Numbers of clusters (start, when) of a cell, by way of a run file or in memory."""
    run: Any = wflow.solve(**task) if folder is None else folder / "cell.h5"
    if folder is not None:
        wflow.solve(**task, out=run, if_exists="overwrite").close()
    return np.asarray(clusters.over_time(run, scale, quantities=["count"])["count"].values)


def torch_cell() -> Callable[[dict[str, Any], float], NDArray[np.float64]] | None:
    """The same with torch, if it is installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(numba.get_num_threads())

    def unit(x):
        return x / x.norm(dim=-1, keepdim=True)

    def cell(task: dict[str, Any], scale: float) -> NDArray[np.float64]:
        x = torch.from_numpy(task["x0"])  # (start, token, axis)
        D = torch.from_numpy(task["heads"][0])
        dt = task["dt"]
        at = {round(t / dt) for t in task["save"].snapshots}

        def velocity(x):
            y = x @ D
            v = torch.softmax(y @ x.transpose(-1, -2), dim=-1) @ y
            return v - (v * x).sum(-1, keepdim=True) * x

        counts = []
        with torch.no_grad():
            for step in range(1, round(task["t_final"] / dt) + 1):
                k1 = velocity(x)
                k2 = velocity(unit(x + dt / 2 * k1))
                k3 = velocity(unit(x + dt / 2 * k2))
                k4 = velocity(unit(x + dt * k3))
                x = unit(x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
                if step in at:
                    counts.append([clusters.count(cloud, scale) for cloud in x.numpy()])
        return np.array(counts, float).T

    return cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--json", type=Path, default=Path("benchmarks/results/clustering_grid.json")
    )
    parser.add_argument("--torch-betas", type=int, default=3, help="betas that torch is timed for")
    options = parser.parse_args()
    if options.torch_betas < 1:
        parser.error(f"--torch-betas is {options.torch_betas}: expected one or more")

    module = study()
    flags = module.Clustering()
    runs = module.tasks(flags)
    cell = torch_cell()
    places = np.unique(np.linspace(0, len(flags.betas) - 1, options.torch_betas).round())
    shared = {flags.betas[int(place)] for place in places}
    table: dict[int, dict[str, float]] = {}
    differ = compared = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for d in flags.dims:
            first = runs[module.cell_name(flags.betas[0], d)]
            by_wflow(first, flags.scale, folder)
            if cell is not None:
                cell(first, flags.scale)
            spent = {"wflow_s": 0.0, "memory_shared_s": 0.0, "torch_shared_s": 0.0}
            for beta in flags.betas:
                task = runs[module.cell_name(beta, d)]
                start = time.perf_counter()
                counts = by_wflow(task, flags.scale, folder)
                spent["wflow_s"] += time.perf_counter() - start
                if cell is None or beta not in shared:
                    continue
                start = time.perf_counter()
                by_wflow(task, flags.scale, None)
                spent["memory_shared_s"] += time.perf_counter() - start
                time.sleep(0.3)  # the idle threads of the other spin for a while
                start = time.perf_counter()
                other = cell(task, flags.scale)
                spent["torch_shared_s"] += time.perf_counter() - start
                time.sleep(0.3)
                differ += int(np.sum(counts != other))
                compared += counts.size
            table[d] = spent

    whole = sum(row["wflow_s"] for row in table.values())
    figures = {"wflow, all cells (s)": whole, "goal (s)": GOAL_SECONDS}
    share = len(flags.betas) / len(shared)
    if cell is not None:
        scaled = share * sum(row["torch_shared_s"] for row in table.values())
        mine = share * sum(row["memory_shared_s"] for row in table.values())
        part = f"scaled from {len(shared)} of {len(flags.betas)} betas (s)"
        figures |= {
            f"wflow in memory, {part}": mine,
            f"torch in memory, {part}": scaled,
            "torch over wflow, both in memory": scaled / mine,
            "counts compared": compared,
            "counts that differ": differ,
        }
    threads = numba.get_num_threads()
    cells = len(flags.betas) * len(flags.dims)
    print(f"{machine()}, {threads} threads; {cells} cells of {flags.paths} runs, n = {flags.n}")
    print(f"{'d':>5}{'wflow s':>10}{'in memory':>11}{'torch s':>10}   (both scaled to all betas)")
    for d, row in table.items():
        scaled_row = (
            f"{share * row['memory_shared_s']:>11.2f}{share * row['torch_shared_s']:>10.2f}"
            if cell is not None
            else ""
        )
        print(f"{d:>5}{row['wflow_s']:>10.2f}{scaled_row}")
    for title, value in figures.items():
        print(f"{title}: {value:.4g}")
    write(
        options.json, "python benchmarks/clustering_grid.py", threads,
        problem={
            "betas": flags.betas, "dims": flags.dims, "n": flags.n, "starts": flags.paths,
            "t_final": flags.t_final, "dt": flags.dt, "scheme": flags.scheme, "seed": flags.seed,
        },
        seconds_by_dimension=table,
        figures=figures,
    )  # fmt: skip


if __name__ == "__main__":
    main()
