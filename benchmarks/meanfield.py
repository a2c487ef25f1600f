"""Speed and memory of the mean-field solver, and tokens that reach its accuracy.

    python benchmarks/meanfield.py [--json benchmarks/results/meanfield.json] [--until 998562]

One process, double precision, softmax descent, kappa = 0.02, tolerance 1e-10. Eight heads
D = I + W, W symmetric noise, that move (D' = I - D), with the budget. A step is one of "ssp2" by
finite volumes, of two stages; on S^2 the meshes are icosahedral. Times are the smallest of three
runs of several steps, less one of a single step. Peak memory is that of a process of its own that
takes one step on 163,842 cells.

Tokens or cells: the moments of first and second degree at t = 0.5 of the flow with frozen heads,
kappa = 0.1, in ascent, against harmonics of a high degree. "error" is the largest error of a
moment; for tokens drawn from the initial density, by Euler's scheme with fast sums, the root mean
square over eight seeds. "tokens of the same time" is what the fit of their times gives, "their
error" what the fit C/sqrt(n) of their errors gives for this number.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
from processes import code_memory_gb
from report import goal, write

import wflow
from wflow import meanfield
from wflow.analysis.fits import power_law
from wflow.cli import script

COMMAND = "python benchmarks/meanfield.py"
SPHERES = (1002, 2562, 10242, 40962, 163842, 998562)
LARGE = 163842
# Names as in benchmarks/goals.py.
GOALS = {
    "S^1, 512 cells": ("mean field, steps on S^1, 512 cells, 8 moving heads", 500.0),
    "S^2, 10242 cells": ("mean field, steps on S^2, 10,242 cells, 8 moving heads", 25.0),
}
EXPONENT = "exponent of the time of a step in the cells, S^2"
MEMORY = "mean field, peak memory, 163,842 cells (GB)"
TOKENS = (100, 400, 1600, 6400)


def run_time(mesh: Any, steps: int) -> float:
    """Seconds of a run."""
    d = mesh.dim + 1
    noise = np.random.default_rng(0).normal(size=(8, d, d)) / 2
    law = wflow.heads.HeadLaw(lambda D, t: np.eye(d) - D)
    begin = time.perf_counter()
    meanfield.solve(
        lambda x: np.exp(x[:, 0]), law, mesh=mesh,
        heads=np.eye(d) + noise + noise.swapaxes(1, 2), t_final=1e-7 * steps, dt=1e-7,
        kappa=0.02, scheme="ssp2" if isinstance(mesh, meanfield.Mesh) else "heun",
        save=wflow.SaveAt(every=steps, snapshots=[]),
    )  # fmt: skip
    return time.perf_counter() - begin


def step_time(mesh: Any, steps: int) -> float:
    """Seconds a step, without what a run takes in any case."""
    run_time(mesh, 1)
    whole, first = (min(run_time(mesh, count) for _ in range(3)) for count in (steps + 1, 1))
    return (whole - first) / steps


def peak_memory(cells: int) -> float:
    """GB that a process needs for a run of one step."""
    return code_memory_gb(f"import meanfield as b; b.run_time(b.meanfield.Sphere({cells}), 1)")


# Tokens or cells
# ---------------


def start(x: np.ndarray) -> np.ndarray:
    return np.exp(x[:, 0] - 0.5 * x[:, 1] * x[:, -1])


def moments(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Those of first and second degree, with weights of sum one."""
    rows, columns = np.triu_indices(x.shape[1])
    return weights @ np.concatenate([x, x[:, rows] * x[:, columns]], axis=1)


def who_wins(d: int, tokens: tuple[int, ...], meshes: list[Any]) -> list[dict[str, Any]]:
    """Rows of the table for one dimension."""
    noise = np.random.default_rng(1).normal(size=(4, d, d)) / 4
    D = np.eye(d) + noise + noise.swapaxes(1, 2)
    law, kappa, t = wflow.heads.Frozen(), 0.1, 0.5
    # Flows of densities and of tokens with the same heads; no budget is asked of either.
    options: dict[str, Any] = {
        "heads": D, "t_final": t, "kappa": kappa, "direction": "ascent",
        "save": wflow.SaveAt(budget=False, every=10**6),
    }  # fmt: skip

    def of_density(mesh: Any) -> tuple[np.ndarray, float]:
        begin = time.perf_counter()
        run = meanfield.solve(start, law, mesh=mesh, **options)
        return moments(mesh.centres, mesh.areas * run.density[0, -1].values), (
            time.perf_counter() - begin
        )

    exact, _ = of_density(meanfield.Fourier(48) if d == 2 else meanfield.Harmonics(28))
    fine = meanfield.Circle(4096) if d == 2 else meanfield.Sphere(40962)
    errors, times = np.empty((len(tokens), 8)), np.empty(len(tokens))
    for place, n in enumerate(tokens):
        for seed in range(errors.shape[1]):
            x0 = meanfield.sample(start, fine, n, seed=seed)
            begin = time.perf_counter()
            run = wflow.solve(x0, law, dt=0.01, seed=seed, **options)
            times[place] = time.perf_counter() - begin
            found = moments(run.tokens[0, -1].values, np.full(n, 1 / n))
            errors[place, seed] = np.abs(found - exact).max()
    spread = np.sqrt((errors**2).mean(axis=1))
    constant = float(np.exp(np.mean(np.log(spread) + 0.5 * np.log(tokens))))
    cost = power_law(tokens[1:], times[1:, None])
    rows = []
    for mesh in meshes:
        of_density(mesh)  # tables, and compilation
        found, seconds = of_density(mesh)
        count = float((seconds / cost.prefactor) ** (1 / cost.exponent))
        error = float(np.abs(found - exact).max())
        rows.append(
            {
                "d": d, "mesh": repr(mesh), "seconds": seconds, "error": error,
                "tokens of the same time": count, "their error": constant / count**0.5,
                "tokens of the same error": (constant / error) ** 2,
            }
        )  # fmt: skip
        print("  ".join(f"{key} {value:.3g}" if key not in ("d", "mesh") else f"{key} {value}"
                        for key, value in rows[-1].items()))  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--until", type=int, default=SPHERES[-1], help="cells of the largest mesh")
    flags = parser.parse_args()
    sizes = [cells for cells in SPHERES if cells <= flags.until]
    cases: list[tuple[str, Any, int]] = [("S^1, 512 cells", meanfield.Circle(512), 200)]
    cases += [("S^1, degree 64", meanfield.Fourier(64), 100)]
    cases += [("S^2, degree 20", meanfield.Harmonics(20), 50)]
    rows: dict[str, dict[str, float]] = {}
    goals, times = [], []
    for name, mesh, steps in cases:
        rows[name] = {"steps a second": 1 / step_time(mesh, steps)}
    for cells in sizes:
        times.append(step_time(meanfield.Sphere(cells), max(4, 40_000 // cells)))
        rows[f"S^2, {cells} cells"] = {"steps a second": 1 / times[-1]}
    for name, row in rows.items():
        print(f"{name:20} {row['steps a second']:10.2f} steps a second")
        if name in GOALS:
            what, target = GOALS[name]
            goals.append(
                goal(what, COMMAND, row["steps a second"], target, least=True, unit="a second")
            )
    if len(sizes) > 2:
        exponent = power_law(sizes, np.array(times)[:, None]).exponent
        goals.append(goal(EXPONENT, COMMAND, exponent, 1.1, least=False))
    if flags.until >= LARGE:
        goals.append(goal(MEMORY, COMMAND, peak_memory(LARGE), 2.0, least=False))
    small = flags.until < 10242
    table = who_wins(
        2, TOKENS[:3] if small else TOKENS,
        [meanfield.Circle(32), meanfield.Circle(128), meanfield.Circle(512), meanfield.Fourier(16)],
    )  # fmt: skip
    meshes = [meanfield.Sphere(cells) for cells in (642, 2562, 10242)[: 2 if small else 3]]
    table += who_wins(
        3, TOKENS[:3] if small else TOKENS, [*meshes, meanfield.Harmonics(14)]
    )  # fmt: skip
    if flags.json:
        body: dict[str, Any] = {"steps": rows, "tokens_or_cells": table, "goals": goals}
        write(flags.json, COMMAND, numba.get_num_threads(), **body)
    return 0


if __name__ == "__main__":
    script(main)
