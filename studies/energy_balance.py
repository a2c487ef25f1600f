"""Where the energy balance with the squared upper gradient holds, and where it does not.

[MHT] Theorem 4.13 states the balance with G^2. By the chain rule the energy falls at the rate
`dissipation`; the two rates are equal for one head, for heads of equal mobility and for the
effective flow, and differ by `edi_defect` for softmax attention with unequal heads.

    python studies/energy_balance.py

prints the tables of docs/energy_balance.md.
"""

import sys
from dataclasses import dataclass

import numpy as np
import tyro

import wflow
from wflow.cli import guarded
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.rng import INITIAL_HEADS, CounterNormals


@dataclass
class Settings:
    """Residuals of both energy balances for frozen and for Ornstein-Uhlenbeck heads."""

    n: int = 60
    """Number of tokens."""
    t_final: float = 4.0
    """End of the runs with frozen heads; the noisy ones end at a quarter of it."""
    paths: int = 256
    """Monte Carlo paths of the noisy runs."""
    seed: int = 0
    """Seed of tokens, heads and noise."""


def below(gap: float) -> str:
    """Rounding is told by its size: its digits differ from machine to machine."""
    return "< 1e-14" if gap < 1e-14 else f"{gap:.0e}"


def frozen_rows(settings: Settings) -> list[str]:
    """One row per problem and step size: drop of the energy, both residuals, their gap."""
    x0 = wflow.tokens.cross_polytope(settings.n, 3, spread=0.05, seed=settings.seed)
    z = CounterNormals(settings.seed).draw((5, 3, 3), path=0, step=0, purpose=INITIAL_HEADS)
    unequal = z + z.swapaxes(-1, -2)
    cases = (
        ("softmax, 1 head", unequal[:1], "softmax"),
        ("softmax, 5 equal heads", np.repeat(unequal[:1], 5, axis=0), "softmax"),
        ("softmax, 5 unequal heads", unequal, "softmax"),
        ("effective, 5 unequal heads", unequal, "effective"),
        ("unnormalised, 5 unequal heads", unequal, "unnormalised"),
    )
    rows = []
    for name, heads, flow in cases:
        for dt in (5e-3, 2.5e-3, 1.25e-3):
            run = wflow.solve(x0, Frozen(), heads=heads, t_final=settings.t_final, dt=dt, flow=flow)
            path = run.isel(path=0)
            drop = float(path.energy[-1] - path.energy[0])
            residual, upper = (
                float(path[key][-1]) for key in ("edi_residual", "edi_residual_upper_gradient")
            )
            defect = dt * float(path.edi_defect[:-1].sum())
            rows.append(
                f"| {name} | {dt:g} | {drop:.4f} | {residual:.2e} | {upper:.2e} "
                f"| {round(defect, 4) + 0.0:.4f} | {below(abs(residual - upper - defect))} |"
            )
    return rows


def noisy_rows(settings: Settings) -> list[str]:
    """One row per step size: mean residuals over paths with their standard errors."""
    x0 = wflow.tokens.cross_polytope(settings.n, 3, spread=0.05, seed=settings.seed)
    law = OrnsteinUhlenbeck(np.eye(3), rate=1.0, sigma2=2.0)
    rows = []
    for dt in (1e-2, 5e-3, 2.5e-3):
        run = wflow.solve(
            x0,
            law,
            heads=8,
            t_final=settings.t_final / 4,
            dt=dt,
            paths=settings.paths,
            seed=settings.seed,
            snapshots=[0],
        )
        cells = []
        for key in ("edi_residual", "edi_residual_upper_gradient"):
            mean, error = wflow.fits.mean_and_error(run[key][:, -1].values)
            cells.append(f"{float(mean):.4f} ± {float(error):.4f}")
        rows.append(f"| {dt:g} | {' | '.join(cells)} |")
    return rows


def main() -> int:
    settings = tyro.cli(Settings)
    if settings.paths < 2:
        raise wflow.InputError(f"--paths is {settings.paths}: a standard error needs 2 or more")
    if (
        settings.t_final <= 0
        or abs(settings.t_final / 0.04 - round(settings.t_final / 0.04)) > 1e-9
    ):
        raise wflow.InputError(f"--t-final is {settings.t_final}: expected a multiple of 0.04")
    frozen, noisy = frozen_rows(settings), noisy_rows(settings)
    print(f"Frozen heads, n = {settings.n}, d = 3, T = {settings.t_final:g}, Euler:\n")
    print("| problem | dt | E(T) - E(0) | edi_residual | edi_residual_upper_gradient "
          "| integral of edi_defect | gap - integral |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(frozen))
    print(
        f"\nOrnstein-Uhlenbeck heads, softmax, 8 heads, T = {settings.t_final / 4:g}, "
        f"{settings.paths} paths, mean ± standard error:\n"
    )
    print("| dt | edi_residual | edi_residual_upper_gradient |\n| --- | --- | --- |")
    print("\n".join(noisy))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
