"""Particles against the mean-field equation: energy, budget, moments and W_2, with rates in n.

Tokens are drawn from a density, and n of them move under the same oscillating heads as the density
itself, which the mean-field equation moves. Energy, terms of the budget and moments at the end
deviate from the equation like n^(-1/2), the distance W_2 at the rate of independent samples. The
equation is solved on two meshes, whose difference is its error.

    python studies/mean_field_equation.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 5: Theorem 5.1
bounds W_2 at the end by W_2 at the start. The rate of the others is that of the central limit
theorem (docs/theory/transport.md).
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from _mean_field import check_meshed, check_rising
from _mean_field_equation import (
    QUANTITIES,
    budget_figure,
    collect,
    fit,
    rates_figure,
    report,
    run_name,
    tasks,
    w2_up_to,
)

import wflow
from wflow import InputError, study
from wflow._core.checks import count_steps, whole
from wflow.cli import guarded
from wflow.study import Direction, Finding, FlowName

if TYPE_CHECKING:
    from xarray import Dataset

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"n": (8, 16, 32), "w2_circle": 16, "w2_sphere": 32, "arcs": 32, "cells": 42,
              "heads": 2, "paths": 2, "t_final": 0.2},
    "cpu": {},
    "paper": {"w2_circle": 1000000, "w2_sphere": 3000, "arcs": 8192, "cells": 40962, "paths": 32},
}  # fmt: skip
MARGIN = 0.1  # of a slope: the root mean square of a few draws is itself random
CLOSES = 0.01  # residual of the energy balance over what was dissipated
# Theorem 5.1 bounds W_2 at T by that at 0, which is that of independent samples.
SOURCE_OF_W2 = "[MHT] Thm 5.1 (upper bound), docs/theory/transport.md"
SOURCE_OF_MOMENTS = "central limit theorem and propagation of chaos, docs/theory/transport.md"
RATES = {2: "$n^{-1/2}$", 3: r"$(\log n / n)^{1/2}$"}


@dataclass(frozen=True, kw_only=True)
class MeanFieldEquation(study.Flags):
    """Flags of this study."""

    presets: ClassVar = PRESETS
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, whose findings mean nothing; cpu: about half an hour; paper: many hours. A
    preset is the default of the flags below."""
    d: tuple[int, ...] = (2, 3)
    """Dimensions: 2 for the circle, 3 for the sphere."""
    n: tuple[int, ...] = (100, 300, 1000, 3000, 10000, 100000, 1000000)
    """Numbers of tokens n."""
    w2_circle: int = 10000
    """Largest n whose W_2 is measured on the circle."""
    w2_sphere: int = 1000
    """Largest n whose W_2 is measured on the sphere."""
    arcs: int = 2048
    """Cells of the coarse mesh of the circle; the other has twice as many."""
    cells: int = 10242
    """Cells of the coarse mesh of the sphere: 12, 42, 162 and so on; the other has four times as
    many."""
    heads: int = 4
    """Number of heads H."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    direction: Direction = "descent"
    """Whether the tokens move down or up the energy."""
    paths: study.Count = 8
    """Independent draws of the tokens for each n."""
    t_final: study.Positive = 1.0
    """End time T."""
    dt: study.Positive = 0.05
    """Time step of the tokens, rk4; the equation chooses its own."""
    out: study.Folder = Path("results/mean_field_equation")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        check_meshed(self.d)
        check_rising(self.n, "--n")
        if len(self.n) < 2:
            raise InputError(f"--n is {self.n[0]}: a rate needs two numbers of tokens or more")
        for name in ("w2_circle", "w2_sphere"):
            if (most := getattr(self, name)) < self.n[1]:
                raise InputError(
                    f"--{name.replace('_', '-')} is {most}: expected at least the second of --n, "
                    f"{self.n[1]}, as a rate needs two"
                )
        whole(self.paths, "--paths", 2, why="an interval needs two")
        whole(self.heads, "--heads")
        count_steps(self.t_final, self.dt)


def findings(flags: MeanFieldEquation, table: "Dataset") -> list[Finding]:
    """Every claim with its verdict."""
    found = [
        Finding.slope(
            f"the {text} of n tokens deviates from the equation like n^(-1/2): slope -0.5 within "
            f"{MARGIN:g}",
            SOURCE_OF_MOMENTS,
            {f"d = {d}:": fit(table, d, name) for d in flags.d}, -0.5, MARGIN, root=True,
        )
        for name, text in QUANTITIES.items()
    ]  # fmt: skip
    laws = {f"d = {d}:": fit(table, d, "w2") for d in flags.d}
    known = {}
    for name, d in zip(laws, flags.d, strict=True):
        n = np.array([n for n in flags.n if n <= w2_up_to(flags, d)], dtype=float)
        rate = n**-0.5 if d == 2 else np.sqrt(np.log(n) / n)
        known[name] = float(np.polyfit(np.log(n), np.log(rate), 1)[0])
    found.append(
        Finding.slope(
            "W_2 between n tokens and the equation falls like that of independent samples, "
            f"n^(-1/2) on the circle and (log n/n)^(1/2) on the sphere: slope within {MARGIN:g}",
            SOURCE_OF_W2, laws, known, MARGIN,
            note="; known " + ", ".join(f"{slope:.3f}" for slope in known.values()),
        )
    )  # fmt: skip
    residual = table["residual"].max(("n", "path")).values
    limit = table["limit_residual"].values
    found.append(
        Finding.decided(
            "the balance of the energy closes, for n tokens and for the equation: to "
            f"{100 * CLOSES:g} % of what is dissipated", "chain rule, docs/theory/energy.md",
            "; ".join(
                f"d = {d}: largest residual {of_tokens:.1e} and {of_equation:.1e} of "
                f"{dissipated:.2g}"
                for d, of_tokens, of_equation, dissipated in zip(
                    flags.d, residual, limit, table["dissipated"].values, strict=True
                )
            ),
            np.maximum(residual, limit) < CLOSES * table["dissipated"].values,
            known=np.isfinite(residual + limit),
        )
    )  # fmt: skip
    return found


def main() -> int:
    flags = study.command_line(MeanFieldEquation, __doc__)
    with study.session("mean_field_equation", flags) as session:
        files = session.solve(tasks(flags))
        with session.progress(len(flags.d) * len(flags.n), "deviations") as advance:
            table = collect(flags, files, advance)
        figures = {
            "rates": rates_figure(flags, table, RATES),
            "budget": budget_figure(flags, files),
        }
        for d in flags.d:
            with wflow.open(files[run_name(d, "equation")]) as run:
                figures[f"density_d{d}"] = wflow.plots.density_snapshots(run)
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(flags, table),
            figures=figures,
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
