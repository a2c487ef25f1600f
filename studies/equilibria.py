"""Limits of ascent and descent for one frozen head, against the extremal energies of [BKKRW].

For D positive definite, D = beta I, D negative definite, and two indefinite D, the eigenvalue of
largest size positive in one ("indefinite +") and negative in the other, tokens start from many
random clouds, half of them uniform on the sphere and half on a random hemisphere, and move
for a long time up or down the energy. The limit clouds are compared with the measures of largest
and least energy, and clouds of n tokens with the uniform measure as n grows.

    python studies/equilibria.py

[BKKRW] Burger, Kabri, Korolev, Roith, Weigand, *Analysis of mean-field models arising from
self-attention dynamics in transformer architectures with layer normalization*, 2025.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from _equilibria import (
    DIRECTIONS,
    LIMITS,
    SIZES,
    STARTS,
    limit_clouds,
    limits_of,
    of_problem,
    of_sizes,
    report,
)
from _equilibria import energies as energies_figure
from _equilibria import sizes as sizes_figure
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, equilibria, study
from wflow._core.checks import count_steps, positive, whole
from wflow.cli import guarded
from wflow.heads import Frozen
from wflow.sphere import normalise
from wflow.study import Finding, SchemeName

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Equilibria(study.Flags):
    """Flags of this study."""

    n: study.Count = 64
    """Number of tokens."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    beta: float = 2.0
    """Largest size of an eigenvalue of D."""
    paths: study.Count = 32
    """Random starts of each kind: uniform on the sphere, and on a random hemisphere."""
    sizes: tuple[int, ...] = (4, 6, 12, 24, 48, 96)
    """Numbers of tokens that descend with D = beta I, against the uniform measure."""
    flow: Literal["softmax", "unnormalised"] = "softmax"
    """Attention with softmax (for one head the effective flow too), or without denominator."""
    scheme: SchemeName = "heun"
    """Time stepping."""
    t_final: study.Positive = 200.0
    """End time T, long enough to come to rest."""
    dt: study.Positive = 0.1
    """Time step."""
    out: study.Folder = Path("results/equilibria")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.n, "--n", 2)
        whole(self.d, "--d", 2, why="tokens live on the sphere S^(d-1)")
        whole(self.paths, "--paths", 2, why="a standard error needs two")
        positive(self.beta, "--beta")
        count_steps(self.t_final, self.dt)
        study.distinct(self.sizes, "--sizes")
        for size in self.sizes:
            whole(size, "--sizes", 2)


def problems(flags: Equilibria) -> dict[str, FloatArray]:
    """The matrices: name -> D (d, d), in axes turned at random."""
    b, d = flags.beta, flags.d
    turn = np.linalg.qr(np.random.default_rng(flags.seed).standard_normal((d, d)))[0]
    spectra = {
        "positive": np.linspace(b, b / 4, d),
        "isotropic": np.full(d, b),
        "negative": -np.linspace(b, b / 4, d),
        "indefinite +": np.linspace(b, -b / 2, d),
        "indefinite -": np.linspace(b / 2, -b, d),
    }
    matrices = {name: turn @ np.diag(values) @ turn.T for name, values in spectra.items()}
    return {name: (D + D.T) / 2 for name, D in matrices.items()}


def starts(flags: Equilibria, n: int) -> FloatArray:
    """Random clouds (2 paths, n, d): first those uniform on the sphere, then on hemispheres."""
    rng = np.random.default_rng([flags.seed, n])
    x = normalise(rng.standard_normal((2 * flags.paths, n, flags.d)))
    pole = rng.standard_normal((2 * flags.paths, 1, flags.d))
    pole[: flags.paths] = 0
    return np.where((x * pole).sum(axis=-1, keepdims=True) < 0, -x, x)


def tasks(flags: Equilibria, matrices: dict[str, FloatArray]) -> dict[str, dict[str, Any]]:
    """All runs: name -> arguments of `wflow.solve`."""
    common = {
        "law": Frozen(), "t_final": flags.t_final, "dt": flags.dt, "seed": flags.seed,
        "flow": flags.flow, "scheme": flags.scheme,
    }  # fmt: skip
    every = count_steps(flags.t_final, flags.dt)
    x0 = starts(flags, flags.n)
    runs = {
        f"problem{k}_{direction}": common | {
            "x0": x0, "heads": D[None], "direction": direction, "paths": len(x0),
            "save": SaveAt(every=every, paths=range(len(x0))),
        }
        for k, D in enumerate(matrices.values())
        for direction in DIRECTIONS
    }  # fmt: skip
    return runs | {
        f"isotropic_n{n:05d}": common | {
            "x0": starts(flags, n)[: flags.paths], "heads": matrices["isotropic"][None],
            "paths": flags.paths, "save": SaveAt(every=every, paths=range(flags.paths)),
        }
        for n in flags.sizes
    }  # fmt: skip


def collect(
    flags: Equilibria,
    matrices: dict[str, FloatArray],
    files: dict[str, Path],
    advance: Callable[[int], None],
) -> tuple["Dataset", dict[tuple[str, str], FloatArray]]:
    """Energies, forms and distances of all limit clouds, and the clouds of every problem."""
    clouds: dict[tuple[str, str], FloatArray] = {}

    def limits(problem: str, direction: str) -> dict[str, Any]:
        file = files[f"problem{list(matrices).index(problem)}_{direction}"]
        with wflow.open(file) as run:
            clouds[problem, direction] = run["tokens"].values[:, -1]
            energy = run["energy"].values[:, -1]
        known = direction == "ascent" or problem != "positive"
        return limits_of(
            matrices[problem], clouds[problem, direction], energy, direction, flags.flow, known
        )

    def certificate(problem: str) -> dict[str, float]:
        D, together = matrices[problem], np.concatenate(clouds[problem, "descent"])
        if np.linalg.eigvalsh(D)[0] <= 0:
            return {"lower_bound": np.nan}
        # All limit clouds together: their common potential is the flattest.
        return {"lower_bound": equilibria.lower_bound(together, D, seed=flags.seed)}

    def sizes(n: int) -> dict[str, Any]:
        with wflow.open(files[f"isotropic_n{n:05d}"]) as run:
            begun, ended = (run["energy"].values[:, k] for k in (0, -1))
        try:
            known = equilibria.minimal_cloud_energy(n, flags.beta, flags.d)
        except InputError:
            known = math.nan
        sampled = equilibria.sampled_energy(n, flags.beta, flags.d)
        return dict(zip(SIZES, (begun, ended, sampled, known), strict=True))

    problem: dict[str, Any] = {"problem": (list(matrices), "interaction matrix D")}
    cell = problem | {"direction": (DIRECTIONS, "up or down the energy")}
    along: dict[str, Any] = {"start": (STARTS, "where the tokens start")}
    along["path"] = (np.arange(flags.paths), "random start")
    table = study.sweep(cell, limits, LIMITS, along, advance)
    text = "bound from below, from all limit clouds"
    table = table.merge(study.sweep(problem, certificate, {"lower_bound": text}))
    size = {"size": (flags.sizes, "number of tokens n")}
    table = table.merge(study.sweep(size, sizes, SIZES, {"path": along["path"]}, advance))
    uniform = equilibria.uniform_energy(flags.beta, flags.d)
    return table.assign_attrs(uniform_energy=uniform), clouds


def findings(flags: Equilibria, table: "Dataset") -> list[Finding]:
    """Every prediction with its verdict."""
    rows = []
    for problem in table["problem"].values:
        for direction in DIRECTIONS:
            at = table.sel(problem=problem, direction=direction)
            rows.append(of_problem(flags, str(problem), direction, at))
    forms = table["form"].values
    gathered = int((forms < 2).sum())
    if gathered:
        gap = float(np.max(table["closed_form_gap"].values[forms < 2]))
        rows.append(
            Finding.decided(
                "limit clouds that are points or antipodal pairs have the energy "
                "((p^2 + q^2) e^s + 2 p q e^-s)/2, s = <v, D v>",
                "docs/theory/equilibria.md",
                f"{gathered} limit clouds, largest relative gap {gap:.0e}", gap < 1e-4,
            )
        )  # fmt: skip
    return rows + of_sizes(flags, table)


def main() -> int:
    flags = study.command_line(Equilibria, __doc__)
    with study.session("equilibria", flags) as session:
        flags = session.flags = replace(flags, sizes=tuple(sorted(flags.sizes)))
        matrices = problems(flags)
        files = session.solve(tasks(flags, matrices))
        with session.progress(len(files), "limit clouds") as advance:
            table, clouds = collect(flags, matrices, files, advance)
        facts = (
            f"$n$ = {flags.n}, $d$ = {flags.d}, $H$ = 1, {2 * flags.paths} starts, {flags.flow}, "
            f"$T$ = {flags.t_final:g}"
        )
        title = (
            f"$D = {flags.beta:g}\\,I$, $d$ = {flags.d}, {flags.paths} starts, "
            f"$T$ = {flags.t_final:g}"
        )
        figures = {
            "energies": energies_figure(table, facts),
            "sizes": sizes_figure(table, title),
        }
        if flags.d == 3:
            figures["limit_clouds"] = limit_clouds(matrices, table, clouds, facts)
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(flags, table),
            figures=figures,
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
