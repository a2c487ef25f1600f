"""Metastability: how long several clusters live before they merge, of tokens and of the equation.

One head D = beta I, values V = D, ascent. Two clusters attract each other with a share of the
attention that is exponentially small in beta: their lifetime grows like exp((1 - cos a) beta) with
the angle a between them. The study measures it for pairs of clusters of tokens by the adaptive
scheme, for random starts, whose last two clusters decide, and for two bumps of the mean-field
equation on the circle with a small diffusion.

Times are in units of [GLPR], t = beta times the time of the run files, as in the study clustering.

    python studies/metastability.py

[GLPR] Geshkovski, Letrouit, Polyanskiy, Rigollet, A mathematical perspective on transformers, 2025.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import tyro
from _metastability import collect, exponential_share, figure, growth, report, tasks

from wflow import InputError, fits, study
from wflow._core.checks import number, positive, whole
from wflow.cli import guarded
from wflow.study import Finding

if TYPE_CHECKING:
    from xarray import Dataset

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "betas": (2.0, 2.5, 3.0), "pair_n": 4, "start_betas": (1.0, 1.5, 2.0), "n": 6, "starts": 2,
        "factor": 30.0, "equation_betas": (1.5, 2.0, 2.5), "kappas": (0.04, 0.02), "arcs": 32,
        "records": 400,
    },
    "cpu": {},
    "paper": {
        "start_betas": (2.0, 3.0, 4.0, 5.0, 6.0, 7.0), "starts": 64, "factor": 30.0, "arcs": 1024,
        "kappas": (0.008, 0.004, 0.002, 0.001), "records": 20000,
    },
}  # fmt: skip
GLPR = "[GLPR]"
THEORY = "docs/theory/clusters.md"
LONG = 1e4  # lifetime, in units of [GLPR], beyond which it counts as long
LONG_EQUATION = 1e3  # the same of the mean-field equation
LONGEST = 60.0  # logarithm of a time, in units of [GLPR], that no run comes near
LEAST = 5  # starts without which nothing is said of their times
SURE = 0.975  # share of the resamples that decides between two laws
EARLY = 0.5  # share of the time to one cluster at which the last pair is there
CLOSE = 0.01  # relative difference of lifetimes of a pair of tokens and of two points
LAST = 0.05  # relative difference of the time of a start and of the law of its last pair
SLOPE = 0.1  # relative difference of the growth of lifetimes of the equation and of two points
NUMERICAL = 0.1  # share of the diffusion that may be numerical


@dataclass(frozen=True, kw_only=True)
class Metastability(study.Flags):
    """Flags of this study."""

    presets: ClassVar = PRESETS
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, whose findings mean nothing; cpu: three quarters of an hour; paper: many
    hours. A preset is the default of the flags below."""
    angle: float = 2.0
    """Angle between the two clusters of a pair, in radians."""
    betas: tuple[float, ...] = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
    """Inverse temperatures of the pairs of tokens."""
    pair_n: int = 16
    """Tokens of a pair, half in each cluster."""
    start_betas: tuple[float, ...] = (2.0, 3.0, 4.0, 5.0, 6.0)
    """Inverse temperatures of the random starts."""
    n: study.Count = 64
    """Tokens of a random start, on the sphere."""
    starts: int = 16
    """Random starts, the same ones for every beta."""
    factor: float = 10.0
    """The random starts run until factor exp(growth beta), in units of [GLPR]."""
    growth: float = 1.6
    """Growth of that time with beta."""
    equation_betas: tuple[float, ...] = (3.0, 4.0, 5.0, 6.0, 6.7)
    """Inverse temperatures of the mean-field equation."""
    kappas: tuple[float, ...] = (0.008, 0.004, 0.002)
    """Diffusions of the mean-field equation."""
    arcs: int = 512
    """Cells of the circle."""
    records: int = 4000
    """Times at which the energy of a run is recorded, evenly: they bound the error of lifetimes."""
    paths: tyro.conf.Suppress[int] = 1
    t_final: tyro.conf.Suppress[float] = 1.0
    dt: tyro.conf.Suppress[float] = 1.0
    out: study.Folder = Path("results/metastability")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        if not 0 < number(self.angle, "--angle") < math.pi:
            raise InputError(f"--angle is {self.angle:g}: expected radians, between 0 and pi")
        for name in ("betas", "start_betas", "equation_betas", "kappas"):
            flag, values = f"--{name.replace('_', '-')}", getattr(self, name)
            study.distinct(values, flag, 3 if name.endswith("betas") else 1)
            for value in values:
                positive(value, flag)
        for name in ("pair_n", "n"):
            whole(getattr(self, name), f"--{name.replace('_', '-')}", 2, why="one token is alone")
        if self.pair_n % 2:
            raise InputError(f"--pair-n is {self.pair_n}: expected an even number, two halves")
        whole(self.starts, "--starts", 2, why="an interval needs two")
        whole(self.records, "--records", 100)
        positive(self.factor, "--factor")
        positive(self.growth, "--growth")
        last = 1 - math.cos(self.angle)
        for name, rate in (("betas", last), ("start_betas", self.growth), ("equation_betas", last)):
            flag, most = f"--{name.replace('_', '-')}", LONGEST / rate
            if max(getattr(self, name)) > most:
                raise InputError(f"{flag} asks for longer than any run: expected at most {most:g}")


def largest(values: np.ndarray) -> float:
    """Largest of the numbers that were measured, NaN if there is none."""
    return float(np.nanmax(values)) if np.isfinite(values).any() else math.nan


def reaches(times: np.ndarray, known: np.ndarray, least: float) -> tuple[bool, bool]:
    """Whether a time beyond the least was measured, and whether the runs can tell."""
    seen = bool((times > least).any())
    return seen, seen or bool(np.isfinite(times).all() and known.max() > least)


def of_pairs(flags: Metastability, table: "Dataset") -> list[Finding]:
    """What the pairs of tokens say."""
    betas, times = table["beta"].values, table["pair"].values
    known = table["pair_known"].values
    off = np.abs(times / known - 1)
    exact = Finding.decided(
        f"two clusters of tokens live as long as two points, to {100 * CLOSE:g} %", THEORY,
        f"off by {largest(off):.2g} at most; lifetimes up to {largest(times):.4g}", off < CLOSE,
        known=np.isfinite(times),
    )  # fmt: skip
    # The lifetime has the prefactor 1/(2 beta sin^2 a) for large beta.
    wanted = 1 - math.cos(flags.angle)
    slope = float(growth(betas[-4:], np.log(times * betas)[-4:]))
    constant = Finding.decided(
        "lifetimes grow like exp((1 - cos a) beta)/beta: the rate within 2 %, by the four largest "
        "beta", THEORY, f"{slope:.4f}, known {wanted:.4f}", abs(slope / wanted - 1) < 0.02,
        known=math.isfinite(slope),
    )  # fmt: skip
    long, tried = reaches(times, known, LONG)
    reach = Finding.decided(
        f"lifetimes beyond {LONG:g} are reached", "question of this study",
        f"{(times > LONG).sum()} of {times.size} beta", long, known=tried,
    )  # fmt: skip
    return [exact, constant, reach]


def of_starts(table: "Dataset") -> list[Finding]:
    """What the random starts say."""
    betas, one = table["start_beta"].values, table["one"].values
    met = np.isfinite(one).all(axis=0)  # the same starts for every beta
    claim = "times to one cluster of random starts grow exponentially in beta, not like a power"
    text = f"{met.sum()} of {met.size} starts merged for every beta"
    if met.sum() < LEAST:
        first = Finding(claim, GLPR, text, "inconclusive")
    else:
        law = fits.line(betas, np.log(one[:, met]))
        low, high = law.slope_ci
        share = exponential_share(betas, one[:, met])
        first = Finding.decided(
            claim, GLPR,
            f"{text}; log(time) grows by {law.slope:.2f} per unit of beta (95 % {low:.2f} to "
            f"{high:.2f}); a line is closer than a power in {100 * share:.3g} % of the resamples",
            share > SURE and low > 0, known=not 1 - SURE <= share <= SURE,
        )  # fmt: skip
    ratio = (table["one_known"] / table["one"]).values
    # Times are read from records, whose spacing is much of a short one.
    limit = LAST + table["spacing"].values[:, None] / one
    early = (table["begun"] / table["one"]).values <= EARLY
    counted = np.isfinite(ratio) & early
    holds = np.abs(ratio - 1)[counted] < limit[counted]
    middle = float(np.median(ratio[counted])) if counted.any() else math.nan
    second = Finding.decided(
        "the time to one cluster is that of the last two clusters, by their angle and masses: to "
        f"{100 * LAST:g} % and the spacing of the records", THEORY,
        f"{holds.sum()} of {holds.size} starts, median ratio {middle:.4f}; left out: "
        f"{(np.isfinite(ratio) & ~early).sum()} whose last pair took less than half of the time, "
        f"and {np.isnan(ratio).sum()} without a pair that was seen, or not in one cluster", holds,
    )  # fmt: skip
    return [first, second]


def of_equation(flags: Metastability, table: "Dataset") -> list[Finding]:
    """What the mean-field equation says."""
    betas, kappas = table["equation_beta"].values, table["kappa"].values
    times, known = table["equation"].values, table["equation_known"].values
    share = table["numerical_diffusion"].values / kappas[:, None]
    own = Finding.decided(
        f"the numerical diffusion is at most {NUMERICAL:g} of kappa", "docs/theory/mean_field.md",
        "; ".join(f"kappa = {k:g}: {largest(row):.2g}"
                  for k, row in zip(kappas, share, strict=True)),
        share <= NUMERICAL, known=np.isfinite(share),
    )  # fmt: skip
    resolved = np.where(share <= NUMERICAL, times, np.nan)
    long, tried = reaches(resolved, known, LONG_EQUATION)
    reach = Finding.decided(
        f"lifetimes of the equation beyond {LONG_EQUATION:g} are reached, where kappa is at least "
        f"{1 / NUMERICAL:g} times the numerical diffusion", "question of this study",
        f"{np.isfinite(resolved).sum()} of {resolved.size} lifetimes were reached there, the "
        f"longest is {largest(resolved):.4g}", long, known=tried,
    )  # fmt: skip
    wanted = float(growth(betas, np.log(known)))
    slopes = growth(betas, np.log(times))  # NaN where a lifetime was not reached
    grows = Finding.decided(
        "with a small diffusion lifetimes of two bumps grow in beta at the rate of two points, "
        f"within {100 * SLOPE:g} %", "question of this study",
        "; ".join(f"kappa = {k:g}: {slope:.3f}" for k, slope in zip(kappas, slopes, strict=True))
        + f"; two points {wanted:.3f}",
        abs(slopes / wanted - 1) < SLOPE, known=np.isfinite(slopes),
    )  # fmt: skip
    order = np.argsort(kappas)[::-1]
    off = np.abs(times / known - 1)[order]
    gain, error = off[:-1] - off[1:], table["equation_spacing"].values / known
    tends = Finding.decided(
        "lifetimes tend to those of two points as the diffusion falls", "question of this study",
        "; ".join(f"kappa = {kappas[k]:g}: off by up to {largest(row):.2g}"
                  for k, row in zip(order, off, strict=True))
        + f"; the spacing of the records is up to {error.max():.2g}",
        gain > error, known=np.abs(gain) > error,
    )  # fmt: skip
    return [own, reach, grows, tends]


def main() -> int:
    flags = study.command_line(Metastability, __doc__)
    with study.session("metastability", flags) as session:
        files = session.solve(tasks(flags))
        with session.progress(len(files), "lifetimes") as advance:
            table = collect(flags, files, advance)
        session.finish(
            table=table,
            text=report(flags, table),
            findings=[*of_pairs(flags, table), *of_starts(table), *of_equation(flags, table)],
            figures={"lifetimes": figure(flags, table)},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
