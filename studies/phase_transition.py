"""Phase transition of tokens that diffuse: critical diffusion, order of the transition, hysteresis.

One head D = beta I in ascent. In closed form the uniform law loses its stability at a critical
diffusion, which is measured from particles and from the mean-field equation too, and a coefficient
of the amplitude equation says whether order grows from zero or by a jump. Branches of stationary
densities show the same far from the uniform law, with their folds; particles, and the equation,
from a uniform and from an ordered start show whether the state depends on the past.

    python studies/phase_transition.py

The equation is that which [MHT] proposes: Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv
2605.18870, section 7.1. What is tested is derived in docs/theory/stationary.md.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import _phase_transition as parts
import numpy as np
import tyro
from _phase_transition import FLOWS, STARTS, Setup

import wflow
from wflow import InputError, study
from wflow._core.checks import positive, whole
from wflow.cli import guarded
from wflow.study import Finding

if TYPE_CHECKING:
    import xarray as xr

PRESETS = {
    "smoke": Setup(n=60, paths=2, t_final=5.0, dt=0.05, nodes=32, step=0.3, cells=42,
                   ratios=(0.8, 1.1, 2.0)),
    "cpu": Setup(),
    "paper": Setup(n=4000, paths=16, t_final=200.0, nodes=96, step=0.05, cells=2562),
}  # fmt: skip
BEND = 1e-3  # error of the cubic coefficient by a point at a small amplitude
RESOLVED = 0.1  # relative distance of a critical diffusion of particles that counts as none
ON_MESH = 0.01  # the same of the equation
CLOSE = 0.05  # distance of an order parameter from that of the branch
THEORY = "docs/theory/stationary.md"


@dataclass(frozen=True, kw_only=True)
class PhaseTransition(study.Flags):
    """Flags of this study."""

    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, whose findings mean nothing; cpu: about 40 minutes; paper: many hours."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1); the equation is solved for 2 and 3."""
    beta: float = 4.0
    """The head of the runs is D = beta I."""
    betas: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    """Factors of the heads whose branches are followed."""
    n: study.Count | None = None
    """Number of tokens; default: of the preset."""
    equation: bool = True
    """Whether the mean-field equation is solved beside the particles."""
    paths: tyro.conf.Suppress[int] = 1
    t_final: tyro.conf.Suppress[float] = 1.0
    dt: tyro.conf.Suppress[float] = 1.0
    out: study.Folder = Path("results/phase_transition")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.d, "--d", 2, why="tokens live on the sphere S^(d-1)", most=20)
        if self.equation and self.d > 3:
            raise InputError(
                f"--d is {self.d}: the equation is solved for 2 and 3; give --no-equation as well"
            )
        if self.n is not None:
            whole(self.n, "--n", 20)
        study.distinct(self.betas, "--betas")
        for beta in (self.beta, *self.betas):
            if positive(beta, "--beta and --betas") > 6:
                raise InputError(
                    f"--beta and --betas: {beta:g} is above 6, which the nodes resolve"
                )

    @property
    def setup(self) -> Setup:
        """Sizes of the preset, with those of the flags."""
        setup = PRESETS[self.preset]
        return setup if self.n is None else replace(setup, n=self.n)


def of_branches(shapes: "xr.Dataset") -> list[Finding]:
    """Closed form and continuation beside each other."""
    cubic, bend = shapes["cubic"].values, shapes["bend"].values
    error = np.abs(bend - cubic)
    first = Finding.decided(
        "branches leave the uniform law with the curvature of the amplitude equation",
        THEORY,
        f"difference at most {error.max():.2g} over {error.size} branches",
        error.ravel() < BEND,
    )
    jumps = shapes["fold"].values > 1 + 1e-9
    second = Finding.decided(
        "a branch has a fold above the critical diffusion exactly where the cubic coefficient is "
        "negative",
        THEORY,
        "; ".join(
            f"{flow}: folds for beta = {', '.join(f'{b:g}' for b in shapes['beta'].values[row])}"
            if row.any()
            else f"{flow}: no folds"
            for flow, row in zip(FLOWS, jumps, strict=True)
        ),
        (jumps == (cubic < 0)).ravel(),
    )
    softmax = shapes["cubic"].sel(flow="softmax").values
    third = Finding.decided(
        "with the softmax the transition of one head is continuous, for beta = "
        f"{', '.join(f'{b:g}' for b in shapes['beta'].values)}: a positive cubic coefficient, and "
        "no fold",
        "question of this study",
        f"cubic coefficients {softmax.min():.4f} to {softmax.max():.4f}, folds at most "
        f"{shapes['fold'].sel(flow='softmax').values.max():.6f} of the critical diffusion",
        (softmax > 0) & ~jumps[FLOWS.index("softmax")],
    )
    return [first, second, third]


def of_runs(setup: Setup, table: "xr.Dataset") -> list[Finding]:
    """Critical diffusion and hysteresis of particles, and of the equation where it was solved."""
    found = {flow: parts.critical_of(table, flow, setup.n) for flow in FLOWS}
    off, width = np.array([(mean - 1, 2 * error) for mean, error in found.values()]).T
    first = Finding.within(
        "fluctuations of particles above the critical diffusion give its closed form, to "
        f"{100 * RESOLVED:g} % with two standard errors",
        THEORY,
        "; ".join(f"{flow}: {m:.3f} ± {e:.2g} of it" for flow, (m, e) in found.items()),
        off - width,
        off + width,
        RESOLVED,
    )
    order, theory = parts.mean_order(table), table["theory"].values
    # At the critical diffusion and above it particles fluctuate by n^(-1/2) and more.
    ratios = table["ratio"].values
    noise = np.minimum(1.5 / np.sqrt(setup.n * np.maximum(np.abs(ratios - 1), 0.05)), 0.2)
    gap, known = np.abs(order - theory), np.isfinite(theory)  # where the branch was followed to
    second = Finding.decided(
        "particles end on the stable branch that their start leads to: with hysteresis between "
        "the critical diffusion and the fold, and without where there is none",
        THEORY,
        "; ".join(
            f"{flow} from {start}: within {np.nanmax(gap[i, j]):.2g}"
            for i, flow in enumerate(FLOWS)
            for j, start in enumerate(STARTS)
        ),
        (gap < CLOSE + noise)[known],
    )
    apart = np.abs(order[:, 1] - order[:, 0]).max(axis=1)
    expected = np.nanmax(np.abs(theory[:, 1] - theory[:, 0]), axis=1)
    third = Finding.decided(
        "the state depends on the past for the flows whose branches do at this beta, only",
        "question of this study",
        "; ".join(
            f"{flow}: starts end up to {a:.2f} apart (branches {e:.2f})"
            for flow, a, e in zip(FLOWS, apart, expected, strict=True)
        ),
        (apart > 0.3) == (expected > 0.3),
    )
    findings = [first, second, third]
    equation = table["equation"].values
    if np.isfinite(equation).any():
        off = np.abs(equation - theory)
        steady = table["equation_change"].values < parts.STEADY
        counted = steady & known
        claim = "the mean-field equation ends on the branches, from both starts"
        text = f"largest distance {off[counted].max(initial=0.0):.2g}"
        if not steady.all():
            text += f"; {(~steady).sum()} of {steady.size} runs had not come to rest"
        ends = Finding.decided(claim, THEORY, text, off[counted] < CLOSE)
        if not steady.all() and ends.verdict == "confirmed":
            ends = Finding(claim, THEORY, text, "inconclusive")
        findings.append(ends)
    return findings


def of_growth(table: "xr.Dataset") -> Finding:
    """The critical diffusion of the equation, measured."""
    off, error = table["critical_equation"].values - 1, table["critical_error"].values
    return Finding.within(
        "a small mode of the mean-field equation stops growing at the closed form of the critical "
        f"diffusion, to {100 * ON_MESH:g} % with the error of the mesh",
        THEORY,
        "; ".join(
            f"{flow}: {1 + o:.5f} ± {e:.1g} of it"
            for flow, o, e in zip(FLOWS, off, error, strict=True)
        ),
        off - error,
        off + error,
        ON_MESH,
    )


def main() -> int:
    flags = study.command_line(PhaseTransition, __doc__)
    setup = flags.setup
    with study.session("phase_transition", flags) as session:
        runs = parts.particle_runs(flags, setup)
        if flags.equation:
            runs |= parts.equation_runs(flags, setup) | parts.growth_runs(flags, setup)
        files = session.solve(runs)
        with session.progress(len(FLOWS) * len(flags.betas), "branches") as advance:
            shapes = parts.diagrams(flags.d, flags.betas, setup, advance)
        cases = len(FLOWS) * len(STARTS) * len(setup.ratios)
        with session.progress(cases, "orders") as advance:
            table = parts.orders(flags, setup, files, advance)
        found = [*of_branches(shapes), *of_runs(setup, table)]
        figures = {
            "branches": parts.diagram_figure(flags, setup, flags.betas),
            "hysteresis": parts.hysteresis_figure(flags, setup, table),
        }
        if flags.equation:
            table = table.merge(parts.criticals(flags, files))
            found.append(of_growth(table))
            with wflow.open(
                files[f"equation_{FLOWS[0]}_{min(setup.ratios):g}_from_uniform"]
            ) as run:
                figures["density"] = wflow.plots.density_snapshots(run)
        session.finish(
            shapes.merge(table),
            parts.report(flags, setup, shapes, table),
            found,
            figures,
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
