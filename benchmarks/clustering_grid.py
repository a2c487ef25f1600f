"""Time of the clustering phase diagram, 10 x 10 cells of 20 runs each, against plain torch.

    python benchmarks/clustering_grid.py [--json benchmarks/results/clustering_grid.json]

The cells are those of `studies/clustering.py` at its defaults: n = 32 tokens, beta from 0.5 to 10,
d from 2 to 128, 20 random starts, 120 steps of rk4, and the number of clusters at three times.

- wflow: `wflow.solve` into one run file per cell, and `wflow.clusters.over_time` on the run that it
  returns, which reads the file. "in memory": without the run file, as torch does it.
- torch, where it is installed: the same cells as batched matrix products in double precision
  without autograd, in memory, and the same count of clusters. What it does in a cell does not
  depend on beta, so it is timed for --torch-betas of the ten, spread over their range, and scaled.
  D = beta I is a matrix to it, as any other head would be; wflow sees that it is diagonal. "torch,
  beta x": the tokens are multiplied by the number beta in its place.

All run in turn in the same process, cell by cell, and the grid as a whole --rounds times: medians
over the rounds are printed with the smallest and largest. Compilation is not counted: a first cell
of every dimension goes before.
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
from goals import FILES, OVER_TORCH
from numpy.typing import NDArray
from report import goal, spread, write

import wflow
from wflow import clusters
from wflow.study.frame import machine

COMMAND = "python benchmarks/clustering_grid.py"
SIDES = ("wflow", "wflow in memory", "torch in memory", "torch, beta x")


def study() -> ModuleType:
    """The study script as a module."""
    sys.path.append(str(Path(__file__).parents[1] / "studies"))
    return importlib.import_module("clustering")


def by_wflow(task: dict[str, Any], scale: float, folder: Path | None) -> NDArray[np.float64]:
    """Numbers of clusters (start, when) of a cell, by way of a run file or in memory."""
    to: dict[str, Any] = (
        {} if folder is None else {"out": folder / "cell.h5", "if_exists": "overwrite"}
    )
    with wflow.solve(**task, **to) as run:
        return np.asarray(clusters.over_time(run, scale, quantities=["count"])["count"].values)


def torch_cell() -> Callable[[dict[str, Any], float, bool], NDArray[np.float64]] | None:
    """The same with torch, if it is installed; `scaled` for heads beta I as a number."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(numba.get_num_threads())

    def unit(x):
        return x / x.norm(dim=-1, keepdim=True)

    def cell(task: dict[str, Any], scale: float, scaled: bool) -> NDArray[np.float64]:
        x = torch.from_numpy(task["x0"])  # (start, token, axis)
        D = torch.from_numpy(task["heads"][0])
        dt = task["dt"]
        at = {round(t / dt) for t in task["save"].snapshots}

        beta = float(D[0, 0])

        def velocity(x):
            y = beta * x if scaled else x @ D
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


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that a call takes, and what it returns."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--json", type=Path, default=Path("benchmarks/results/clustering_grid.json")
    )
    parser.add_argument("--rounds", type=int, default=3, help="times that all cells are computed")
    parser.add_argument("--torch-betas", type=int, default=3, help="betas that torch is timed for")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions, by default the study's")
    options = parser.parse_args()
    for name in ("rounds", "torch_betas"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}: expected >= 1")

    module = study()
    flags = module.Clustering(**({"dims": tuple(options.dims)} if options.dims else {}))
    runs = module.tasks(flags)
    cell = torch_cell()
    places = np.unique(np.linspace(0, len(flags.betas) - 1, options.torch_betas).round())
    shared = {flags.betas[int(place)] for place in places}
    share = len(flags.betas) / len(shared)
    # Seconds of each side for all betas, (round, dimension).
    spent = {side: np.zeros((options.rounds, len(flags.dims))) for side in SIDES}
    differ = compared = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for d in flags.dims:
            first = runs[module.cell_name(flags.betas[0], d)]
            by_wflow(first, flags.scale, folder)  # the last one has the largest scores
            by_wflow(runs[module.cell_name(flags.betas[-1], d)], flags.scale, folder)
            if cell is not None:
                for scaled in (False, True):
                    cell(first, flags.scale, scaled)
        for at in np.ndindex(options.rounds, len(flags.dims)):
            for beta in flags.betas:
                task = runs[module.cell_name(beta, flags.dims[at[1]])]
                took, counts = timed(lambda: by_wflow(task, flags.scale, folder))  # noqa: B023
                spent["wflow"][at] += took
                if cell is None or beta not in shared:
                    continue
                took, _ = timed(lambda: by_wflow(task, flags.scale, None))  # noqa: B023
                spent["wflow in memory"][at] += share * took
                time.sleep(0.3)  # the idle threads of the other spin for a while
                for side, scaled in (("torch in memory", False), ("torch, beta x", True)):
                    took, other = timed(lambda: cell(task, flags.scale, scaled))  # noqa: B023
                    spent[side][at] += share * took
                    time.sleep(0.3)
                    differ += int(np.sum(counts != other))
                    compared += counts.size

    sides = SIDES if cell is not None else SIDES[:1]
    totals = {side: spread(spent[side].sum(axis=1), "s") for side in sides}
    table = {
        d: {side: float(np.median(spent[side][:, k])) for side in sides}
        for k, d in enumerate(flags.dims)
    }
    ratios = {
        side: spread(spent[side].sum(axis=1) / spent["wflow in memory"].sum(axis=1), "times")
        for side in sides[2:]
    }
    threads = numba.get_num_threads()
    cells = len(flags.betas) * len(flags.dims)
    print(
        f"{machine()}, {threads} threads; {cells} cells of {flags.paths} runs, n = {flags.n}; "
        f"{options.rounds} rounds; in memory: {len(shared)} of {len(flags.betas)} betas, scaled"
    )
    print("".join(f"{title:>18}" for title in ("seconds, d =", *sides)))
    for d, row in table.items():
        print(f"{d:>18}" + "".join(f"{row[side]:>18.2f}" for side in sides))
    for side, row in totals.items():
        low, high = row["min_s"], row["max_s"]
        print(f"{side}, all cells: {row['median_s']:.4g} s ({low:.4g} to {high:.4g})")
    for side, row in ratios.items():
        low, high = row["min_times"], row["max_times"]
        print(
            f"{side} over wflow in memory: {row['median_times']:.3g} times ({low:.3g} to "
            f"{high:.3g})"
        )
    print(f"{differ} of {compared} counts differ")
    over_torch = ratios[SIDES[2]] if ratios else None
    write(
        options.json, COMMAND, threads,
        problem={
            "betas": flags.betas, "dims": flags.dims, "n": flags.n, "starts": flags.paths,
            "t_final": flags.t_final, "dt": flags.dt, "scheme": flags.scheme, "seed": flags.seed,
            "torch_betas": sorted(shared),
        },
        seconds=totals,
        seconds_by_dimension=table,
        over_wflow=ratios,
        counts={"compared": compared, "differ": differ},
        goals=[
            goal(OVER_TORCH, COMMAND, over_torch, 1.0, least=True, unit="times"),
            goal(FILES, COMMAND, totals["wflow"], 20.0, least=False, unit="s"),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
