"""Decay of G^2 with the number of heads at n = infinity, and with the same heads for n tokens.

Ornstein-Uhlenbeck heads fluctuate about the identity, as in the study ou_heads, and move the
density of infinitely many tokens: the mean-field equation on the circle and on the sphere. Clouds
of n tokens under the same heads stand beside it. If the law G^2 ~ 1/H is one of the heads alone, it
holds in the limit, and for every n with the same exponent.

    python studies/decay_equation.py
    python studies/decay_equation.py --d 2 --heads 1 4 16

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 6.
"""

import math
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from _decay_equation import (
    FINER,
    LIMIT,
    collect,
    decay_figure,
    fit,
    gap,
    gradients,
    ratio_fit,
    report,
    series_figure,
    tasks,
)
from _mean_field import check_meshed, check_rising

from wflow import InputError, fits, study
from wflow.cli import guarded
from wflow.study import Finding, positive, whole

if TYPE_CHECKING:
    from xarray import Dataset

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"heads": (1, 4), "n": (6, 12), "arcs": 16, "cells": 42, "paths": 2, "finer_paths": 2,
              "t_final": 0.2, "dt": 0.01},
    "cpu": {},
    "paper": {"heads": (1, 2, 4, 8, 16, 32, 64), "n": (50, 200, 800), "paths": 32,
              "finer_paths": 8},
}  # fmt: skip
BAND = (-1.05, -0.90)  # of the exponent, as in the study ou_heads
PEARSON = -0.99
SAME = 0.05  # difference of exponents, with its interval, that counts as none
CELLS = 0.02  # the same by cells of half the width
CHANGE = 0.05  # relative change of G^2 by them that counts as none
SOURCE = "[MHT] eq. 151, fig. 2"
QUESTION = "question of this study"


@dataclass(frozen=True, kw_only=True)
class DecayEquation(study.Flags):
    """Flags of this study."""

    presets: ClassVar = PRESETS
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, whose findings mean nothing; cpu: about half an hour; paper: many hours. A
    preset is the default of the flags below."""
    d: tuple[int, ...] = (2, 3)
    """Dimensions: 2 for the circle, 3 for the sphere."""
    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Numbers of heads H."""
    n: tuple[int, ...] = (20, 50, 200)
    """Numbers of tokens beside the limit."""
    arcs: int = 64
    """Cells of the circle."""
    cells: int = 162
    """Cells of the sphere: 12, 42, 162, 642, 2562 and so on."""
    paths: int = 12
    """Monte Carlo paths of the heads, the same for every cloud and mesh."""
    finer_paths: int = 4
    """How many of the paths are repeated on cells of half the width."""
    t_final: float = 20.0
    """End time T; averages are over its second half."""
    dt: float = 0.005
    """Time step."""
    rate: float = 1.0
    """Rate at which the heads return to their mean, the identity."""
    sigma2: float = 2.0
    """Variance sigma^2 of the noise of the heads per unit time."""
    out: study.Folder = Path("results/decay_equation")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        check_meshed(self.d)
        study.distinct(self.heads, "--heads", 2)
        for value in self.heads:
            whole(value, "--heads")
        check_rising(self.n, "--n")
        if len(self.n) < 2:
            raise InputError(f"--n is {self.n[0]}: what n tokens add is compared with a smaller n")
        whole(self.paths, "--paths", 2, why="an interval needs two")
        whole(self.finer_paths, "--finer-paths", 2, why="an interval needs two", most=self.paths)
        positive(self.rate, "--rate")
        positive(self.sigma2, "--sigma2")
        study.count_steps(self.t_final, self.dt)


def findings(flags: DecayEquation, table: "Dataset") -> list[Finding]:
    """Every claim with its verdict."""
    laws = {f"d = {d}:": fit(table, d, LIMIT) for d in flags.d}
    clouds = [f"n = {n}" for n in flags.n]
    low, high = BAND
    decays = Finding.slope(
        f"at n = infinity G^2 falls like 1/H: exponent within [{low:g}, {high:g}]", SOURCE, laws,
        (low + high) / 2, (high - low) / 2,
    )  # fmt: skip
    straight = Finding.decided(
        f"at n = infinity log G^2 is linear in log H: Pearson at most {PEARSON:g}", SOURCE,
        "; ".join(f"{name} {law.pearson:.5f}" for name, law in laws.items()),
        [law.pearson <= PEARSON for law in laws.values()],
    )  # fmt: skip
    ratios = {f"d = {d}, {source}:": ratio_fit(table, d, source) for d in flags.d
              for source in clouds}  # fmt: skip
    alone = Finding.slope(
        "the law is one of the heads alone: under the same heads n tokens have the exponent of the "
        f"limit, the interval of the difference within {SAME:g}", QUESTION, ratios, 0.0, SAME,
        whole=True, note=" of the ratio of both in H",
    )  # fmt: skip
    gaps = {d: [gap(table, d, source) for source in clouds] for d in flags.d}
    steps = np.array([
        (abs(earlier[0]) - abs(later[0]), 2 * math.hypot(earlier[1], later[1]))
        for row in gaps.values()
        for earlier, later in pairwise(row)
    ])  # fmt: skip
    vanishes = Finding.decided(
        "what finitely many tokens add to G^2 gets smaller from each n to the next, by more than "
        "two standard errors", QUESTION,
        "; ".join(
            f"d = {d}: " + ", ".join(
                f"{100 * mean:.2g} ± {100 * error:.1g} % for {source}"
                for source, (mean, error) in zip(clouds, gaps[d], strict=True)
            )
            for d in flags.d
        ),
        steps[:, 0] > steps[:, 1], known=np.abs(steps[:, 0]) > steps[:, 1],
    )  # fmt: skip
    return [decays, straight, alone, vanishes, of_cells(flags, table, laws)]


def of_cells(flags: DecayEquation, table: "Dataset", laws: dict[str, fits.PowerLaw]) -> Finding:
    """Whether the cells are fine enough for the exponents."""
    text, low, high = [], [], []
    for (name, law), d in zip(laws.items(), flags.d, strict=True):
        shift = ratio_fit(table, d, FINER)
        fine, coarse = gradients(table, d, FINER, LIMIT)
        change = float(abs(fine / coarse - 1).max())
        text.append(
            f"{name} exponent by {study.slope_text(shift)}, its own interval is "
            f"{law.exponent_ci[0]:.3f} to {law.exponent_ci[1]:.3f}; G^2 by at most "
            f"{100 * change:.2g} %"
        )
        low += [shift.exponent_ci[0] / CELLS, change / CHANGE]
        high += [shift.exponent_ci[1] / CELLS, change / CHANGE]
    return Finding.within(
        f"the cells are fine enough: under the same heads cells of half the width change the "
        f"exponent by at most {CELLS:g} and G^2 by at most {100 * CHANGE:g} %",
        "docs/theory/mean_field.md", "; ".join(text), low, high, 1.0,
    )  # fmt: skip


def main() -> int:
    flags = study.command_line(DecayEquation, __doc__)
    with study.session("decay_equation", flags) as session:
        files = session.solve(tasks(flags))
        with session.progress(len(files), "G^2") as advance:
            table = collect(flags, files, advance)
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(flags, table),
            figures={
                "decay": decay_figure(flags, table),
                "series": series_figure(flags, files),
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
