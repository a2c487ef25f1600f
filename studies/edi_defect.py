"""Energy balance with the squared upper gradient G^2: where it holds, and its defect elsewhere.

[MHT] Theorem 4.13 states the balance with G^2. By the chain rule the energy falls at the rate
`dissipation`; the two rates are equal for one head, for heads of equal mobility, for the effective
and for the unnormalised flow, and differ by `edi_defect` for softmax attention with unequal heads.

    python studies/edi_defect.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _edi_defect import (
    LONG_NAMES,
    SCHEMES,
    add_limits,
    add_orders,
    balance,
    closes,
    of_noise,
    orders_text,
    report,
    residuals,
)
from _edi_defect import noise as noise_figure
from numpy.typing import NDArray

from wflow import InputError, SaveAt, study
from wflow._core.checks import count_steps, number, whole
from wflow.cli import guarded
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.study import Finding

if TYPE_CHECKING:
    from xarray import Dataset


FloatArray = NDArray[np.float64]

UNEQUAL = "softmax, unequal heads"


@dataclass(frozen=True, kw_only=True)
class EdiDefect(study.TokenFlags):
    """Flags of this study."""

    n: study.Count | None = 60
    """Number of tokens; of digits or a FILE a random subset of that size."""
    t_final: study.Positive = 4.0
    """End time of the runs with frozen heads; those with noise end at half of it."""
    dt: study.Positive = 0.02
    """Largest time step; it is halved --halvings times."""
    halvings: int = 3
    """How often the step is halved."""
    heads: int = 5
    """Number of unequal (and of equal) frozen heads."""
    noisy_heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Head counts of the runs with Ornstein-Uhlenbeck heads."""
    paths: study.Count = 64
    """Monte Carlo paths of the runs with noise; all share the initial tokens and heads."""
    sigma2: study.Nonnegative = 2.0
    """Variance sigma^2 of the noise of the Ornstein-Uhlenbeck heads per unit time."""
    out: study.Folder = Path("results/edi_defect")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.heads, "--heads", 2, why="one head cannot be unequal")
        whole(self.halvings, "--halvings", 1, why="an order needs two steps")
        whole(self.paths, "--paths", 2, why="a standard error needs two")
        number(self.sigma2, "--sigma2", least=0.0)
        if self.sigma2 == 0:
            raise InputError("--sigma2 is 0: expected noise; frozen heads are there anyway")
        study.distinct(self.noisy_heads, "--noisy-heads", 2)
        for count in self.noisy_heads:
            whole(count, "--noisy-heads")
        count_steps(self.t_final, self.dt)
        # The runs with noise end at T/2, and their late defect begins at T/4.
        if abs(self.t_final / 4 / self.noisy_steps[0] % 1 - 0.5) < 0.49:
            raise InputError(
                f"--t-final is {self.t_final:g}: expected a multiple of 2 --dt, {2 * self.dt:g}, "
                "so that the runs with noise have a step at a quarter of it"
            )

    @property
    def steps(self) -> list[float]:
        """Time steps of the frozen runs, from the largest."""
        return [self.dt / 2**k for k in range(self.halvings + 1)]

    @property
    def noisy_steps(self) -> list[float]:
        """Time steps of the runs with noise."""
        return [self.dt / 2, self.dt / 4, self.dt / 8]


def problems(unequal: FloatArray) -> dict[str, dict[str, Any]]:
    """Frozen heads and flows to compare: name -> arguments of `wflow.solve`."""
    equal = np.repeat(unequal[:1], len(unequal), axis=0)
    return {
        "softmax, one head": {"heads": unequal[:1], "flow": "softmax"},
        "softmax, equal heads": {"heads": equal, "flow": "softmax"},
        UNEQUAL: {"heads": unequal, "flow": "softmax"},
        "effective, unequal heads": {"heads": unequal, "flow": "effective"},
        "unnormalised, unequal heads": {"heads": unequal, "flow": "unnormalised"},
    }


def tasks(flags: EdiDefect, x0: FloatArray) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The problems with frozen heads, and all runs: name -> arguments of `wflow.solve`."""
    d = x0.shape[1]
    cases = problems(study.initial_heads(flags.seed, flags.heads, d))
    common = {"x0": x0, "seed": flags.seed, "save": SaveAt(budget=True)}
    runs: dict[str, dict[str, Any]] = {}
    for (p, case), scheme in product(enumerate(cases.values()), SCHEMES):
        for k, dt in enumerate(flags.steps):
            runs[f"frozen{p}_{scheme}_step{k}"] = common | case | {
                "law": Frozen(), "t_final": flags.t_final, "dt": dt, "scheme": scheme,
            }  # fmt: skip
    law = OrnsteinUhlenbeck(np.eye(d), rate=1.0, sigma2=flags.sigma2)
    noisy = common | {"law": law, "t_final": flags.t_final / 2, "paths": flags.paths}
    for heads, (k, dt) in product(flags.noisy_heads, enumerate(flags.noisy_steps)):
        runs[f"ou_H{heads:05d}_step{k}"] = noisy | {"heads": heads, "dt": dt}
    return list(cases), runs


def collect(flags: EdiDefect, cases: list[str], files: dict[str, Path]) -> "Dataset":
    """All numbers of the runs, with names."""

    def frozen(problem: str, scheme: str, dt: float) -> dict[str, float]:
        name = f"frozen{cases.index(problem)}_{scheme}_step{flags.steps.index(dt)}"
        return {key: value[0] for key, value in balance(files[name], dt).items()}

    def random(heads: int, dt: float) -> dict[str, FloatArray]:
        name = f"ou_H{heads:05d}_step{flags.noisy_steps.index(dt)}"
        return {f"ou_{key}": value for key, value in balance(files[name], dt).items()}

    still = study.sweep(
        {
            "problem": (cases, "flow and frozen heads"),
            "scheme": (list(SCHEMES), "time stepping"),
            "step": (flags.steps, "time step"),
        },
        frozen,
        {name: f"{text}, frozen heads" for name, text in LONG_NAMES.items()},
    )
    noisy = study.sweep(
        {
            "heads": (flags.noisy_heads, "number of heads H"),
            "ou_step": (flags.noisy_steps, "time step, with noise"),
        },
        random,
        {
            f"ou_{name}": (("path",), f"{text}, Ornstein-Uhlenbeck heads")
            for name, text in LONG_NAMES.items()
        },
        {"path": (np.arange(flags.paths), "Monte Carlo path")},
    )
    return still.merge(noisy)


def findings(flags: EdiDefect, table: "Dataset") -> list[Finding]:
    """Every prediction with its verdict."""
    names = [str(problem) for problem in table["problem"].values]
    upper, plain = "edi_residual_upper_gradient", "edi_residual"
    chain = {closes(table, plain, problem) for problem in names}
    rows = [
        Finding(
            "E(t) falls by the integral of `dissipation`: the residual vanishes at the order of "
            "the scheme (1, 2, 4), for every flow and any heads",
            "chain rule",
            "; ".join(f"{problem}: {orders_text(table, plain, problem)}" for problem in names),
            chain.pop() if len(chain) == 1 else "confirmed in part",
        )
    ]
    for problem in names:
        verdict = closes(table, upper, problem)
        last = table.sel(problem=problem, scheme="rk4").isel(step=-1)
        numbers = f"orders {orders_text(table, upper, problem)}"
        if verdict == "not confirmed":
            numbers = (
                f"residual {float(last[upper]):.4f} against a change of the energy of "
                f"{float(last['energy_change']):.4f} (rk4, smallest step), whatever the step: "
                + numbers
            )
        source = "[MHT] Thm 4.13" + (", classical metric" if "unnormalised" in problem else "")
        rows.append(
            Finding(
                f"the balance with G^2 holds: {problem}",
                source,
                numbers,
                verdict,
            )
        )
    gap = max(
        float(table["gap"].sel(scheme="euler").max()),
        float((table["ou_gap"] / np.maximum(1, np.abs(table["ou_energy_change"]))).max()),
    )
    rows.append(
        Finding.decided(
            "the two residuals differ by the integral of `edi_defect`, the covariance over heads "
            "of gradient and inverse mobility, and by nothing else",
            "docs/theory/energy.md",
            f"largest gap over all runs by euler: {gap:.0e}",
            gap < 1e-11,
        )
    )
    return rows + of_noise(flags, table)


def main() -> int:
    flags = study.command_line(EdiDefect, __doc__)
    with study.session("edi_defect", flags) as session:
        x0 = flags.cloud()
        # The summary records them.
        flags = session.flags = replace(flags, n=x0.shape[0], d=x0.shape[1])
        cases, runs = tasks(flags, x0)
        table = collect(flags, cases, session.solve(runs))
        add_orders(table)
        add_limits(table)
        sizes = f"$n$ = {flags.n}, $d$ = {flags.d}"
        facts = (
            f"Energy balance at $T$ = {flags.t_final:g}, frozen heads: {sizes}, "
            f"$H$ = {flags.heads} or 1"
        )
        noisy_facts = (
            f"Ornstein-Uhlenbeck heads, softmax: {sizes}, {flags.paths} paths, "
            f"$T$ = {flags.t_final / 2:g}"
        )
        shown = [UNEQUAL, "effective, unequal heads", "softmax, one head"]
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(flags, table),
            figures={
                "residuals": residuals(table, shown, facts),
                "noise": noise_figure(table, noisy_facts),
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
