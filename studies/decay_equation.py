"""Decay of G^2 with the number of heads at n = infinity, and with the same heads for n tokens.

Ornstein-Uhlenbeck heads fluctuate about the identity, as in the study ou_heads, and move the
density of infinitely many tokens, uniform at the start, on the circle and on the sphere. Two
methods solve its mean-field equation: characteristics, which are evenly spread tokens, and finite
volumes. Clouds of n random tokens under the same heads stand beside them. If the law G^2 ~ 1/H is
one of the heads alone, it holds in the limit, and for every n with the same exponent.

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
    FEWER,
    LIMIT,
    collect,
    decay_figure,
    even,
    fit,
    gap,
    gradients,
    off_by_cells,
    ratio_fit,
    report,
    series_figure,
    tasks,
)
from _mean_field import check_meshed, check_rising

from wflow import InputError, fits, study
from wflow._core.checks import count_steps, positive, whole
from wflow.cli import guarded
from wflow.study import Finding

if TYPE_CHECKING:
    from xarray import Dataset

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"heads": (1, 4), "n": (6, 12), "points": 40, "arcs": 16, "cells": 42, "paths": 2,
              "finer_paths": 2, "t_final": 0.2, "dt": 0.01},
    "cpu": {},
    "paper": {"heads": (1, 2, 4, 8, 16, 32, 64), "n": (50, 200, 800), "points": 2000,
              "cells": 642, "paths": 32, "finer_paths": 8},
}  # fmt: skip
BAND = (-1.05, -0.90)  # of the exponent, as in the study ou_heads
PEARSON = -0.99
SAME = 0.05  # difference of exponents, with its interval, that counts as none
POINTS = 0.02  # the same between all characteristics and a quarter of them
CHANGE = 0.05  # relative change of G^2 between them that counts as none
FEW = 3.2  # standard errors of four paths that hold the mean in 95 %, by Student's t
CLOSE = 0.01  # relative distance of cells from the limit that need not get smaller
SOURCE = "[MHT] eq. 151, fig. 2"
QUESTION = "question of this study"
METHOD = "docs/theory/mean_field.md"


@dataclass(frozen=True, kw_only=True)
class DecayEquation(study.Flags):
    """Flags of this study."""

    presets: ClassVar = PRESETS
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, whose findings mean nothing; cpu: about an hour; paper: many hours. A
    preset is the default of the flags below."""
    d: tuple[int, ...] = (2, 3)
    """Dimensions: 2 for the circle, 3 for the sphere."""
    heads: tuple[study.Count, ...] = (1, 2, 4, 8, 16, 32)
    """Numbers of heads H."""
    n: tuple[int, ...] = (20, 50, 200)
    """Numbers of random tokens beside the limit."""
    points: int = 400
    """Characteristics, evenly spread tokens; a quarter of them shows their error."""
    arcs: int = 64
    """Cells of the circle."""
    cells: int = 162
    """Cells of the sphere: 12, 42, 162, 642, 2562 and so on."""
    paths: study.Count = 16
    """Monte Carlo paths of the heads, the same for every cloud and mesh."""
    finer_paths: int = 4
    """How many of the paths are repeated on cells of half the width."""
    t_final: study.Positive = 20.0
    """End time T; averages are over its second half."""
    dt: study.Positive = 0.005
    """Time step."""
    rate: float = 1.0
    """Rate at which the heads return to their mean, the identity."""
    sigma2: study.Nonnegative = 2.0
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
        whole(self.points, "--points", 16, why="a quarter of them shows the error")
        count_steps(self.t_final, self.dt)


def findings(flags: DecayEquation, table: "Dataset") -> list[Finding]:
    """Every claim with its verdict."""
    laws = {f"d = {d}:": fit(table, d, LIMIT) for d in flags.d}
    clouds = [f"n = {n}" for n in flags.n]
    low, high = BAND
    decays = Finding.slope(
        f"at n = infinity G^2 falls like 1/H: interval of the exponent within [{low:g}, {high:g}]",
        SOURCE, laws, (low + high) / 2, (high - low) / 2, whole=True,
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
    methods = [of_points(flags, table, laws), of_cells(flags, table)]
    return [decays, straight, alone, vanishes, of_symmetry(flags, table), *methods]


def of_symmetry(flags: DecayEquation, table: "Dataset") -> Finding:
    """Whether the tokens in antipodal pairs are nearer to the limit, for the fewest heads."""
    text, gain = [], []
    for d in flags.d:
        drawn, paired, limit = (
            values[0] for values in gradients(table, d, f"n = {flags.n[-1]}", even(flags), LIMIT)
        )
        gain.append(fits.mean_and_error(abs(drawn / limit - 1) - abs(paired / limit - 1)))
        off = [
            study.mean_text(100 * (values / limit - 1), ".2g", ".2g") for values in (drawn, paired)
        ]
        text.append(f"d = {d}: {off[0]} % for n = {flags.n[-1]}, {off[1]} % in antipodal pairs")
    mean, error = np.array(gain).T
    return Finding.decided(
        "in antipodal pairs, which keep the symmetry of the limit, random tokens are nearer to its "
        f"G^2 for H = {flags.heads[0]}, by more than two standard errors", QUESTION,
        "; ".join(text), mean > 0, known=abs(mean) > 2 * error,
    )  # fmt: skip


def of_points(flags: DecayEquation, table: "Dataset", laws: dict[str, fits.PowerLaw]) -> Finding:
    """Whether there are enough characteristics for the exponents."""
    text, low, high = [], [], []
    for (name, law), d in zip(laws.items(), flags.d, strict=True):
        shift = ratio_fit(table, d, FEWER)
        fewer, all_ = gradients(table, d, FEWER, LIMIT)
        change = float(abs(fewer / all_ - 1).max())
        text.append(
            f"{name} exponent by {study.slope_text(shift)}, its own interval is "
            f"{law.exponent_ci[0]:.3f} to {law.exponent_ci[1]:.3f}; G^2 by at most "
            f"{100 * change:.2g} %"
        )
        low += [shift.exponent_ci[0] / POINTS, change / CHANGE]
        high += [shift.exponent_ci[1] / POINTS, change / CHANGE]
    return Finding.within(
        f"the characteristics are enough: under the same heads a quarter of them changes the "
        f"exponent by at most {POINTS:g} and G^2 by at most {100 * CHANGE:g} %", METHOD,
        "; ".join(text), low, high, 1.0,
    )  # fmt: skip


def of_cells(flags: DecayEquation, table: "Dataset") -> Finding:
    """Whether finite volumes come nearer to the characteristics as their cells get smaller."""
    text, nearer, known = [], [], []
    for d in flags.d:
        wide, narrow = off_by_cells(table, d)
        gain, error = fits.mean_and_error(wide - narrow)
        near = (narrow < CLOSE).all(axis=1)
        nearer += [*(near | (gain > 0))]
        known += [*(near | (abs(gain) > FEW * error))]
        text.append(
            f"d = {d}: off by up to {100 * wide.max():.2g} %, on cells of half the width by up to "
            f"{100 * narrow.max():.2g} %"
        )
    return Finding.decided(
        f"the G^2 of finite volumes is nearer to that of the characteristics on cells of half the "
        f"width, or within {100 * CLOSE:g} % of it, for every H", METHOD, "; ".join(text), nearer,
        known=known,
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
