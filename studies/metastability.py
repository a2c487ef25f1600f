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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import tyro

import wflow
from wflow import InputError, SaveAt, clusters, fits, meanfield, study
from wflow._core.checks import whole
from wflow.cli import script
from wflow.heads import Frozen
from wflow.plots.figure import PAGE, grid, log_axis, shade, style
from wflow.study import Finding, FloatArray

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
SPREAD = 0.02  # of the tokens of a pair about their centres, in radians
SCALE = 0.0447  # geodesic distance up to which tokens are linked, as in the study `clustering`
WHOLE = 0.99  # share of the energy of one cluster from which on there is one


def _even(value: int, name: str) -> None:
    if value % 2:
        raise InputError(f"{name} is {value}: expected an even number, two halves")


Betas = Annotated[
    tuple[study.Positive, ...], study.Checked(partial(study.distinct, least=3), together=True)
]
"""Type of a flag of inverse temperatures, three or more for a rate of growth."""


@dataclass(frozen=True, kw_only=True)
class Metastability(study.Flags):
    """Flags of this study."""

    durations: ClassVar = {
        "smoke": "seconds",
        "cpu": "three quarters of an hour",
        "paper": "many hours",
    }
    presets: ClassVar = {
        "smoke": {
            "betas": (2.0, 2.5, 3.0), "pair_n": 4, "start_betas": (1.0, 1.5, 2.0), "n": 6,
            "starts": 2, "factor": 30.0, "equation_betas": (1.5, 2.0, 2.5), "kappas": (0.04, 0.02),
            "arcs": 32, "records": 400,
        },
        "cpu": {},
        "paper": {
            "start_betas": (2.0, 3.0, 4.0, 5.0, 6.0, 7.0), "starts": 64, "factor": 30.0,
            "arcs": 1024, "kappas": (0.008, 0.004, 0.002, 0.001), "records": 20000,
        },
    }  # fmt: skip
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """Defaults of the flags below. The findings of smoke mean nothing."""
    angle: study.Angle = 2.0
    """Angle between the two clusters of a pair, in radians."""
    betas: Betas = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
    """Inverse temperatures of the pairs of tokens."""
    pair_n: Annotated[study.TwoOrMore, study.Checked(_even)] = 16
    """Tokens of a pair, half in each cluster."""
    start_betas: Betas = (2.0, 3.0, 4.0, 5.0, 6.0)
    """Inverse temperatures of the random starts."""
    n: study.TwoOrMore = 64
    """Tokens of a random start, on the sphere."""
    starts: study.TwoOrMore = 16
    """Random starts, the same ones for every beta."""
    factor: study.Positive = 10.0
    """The random starts run until factor exp(growth beta), in units of [GLPR]."""
    growth: study.Positive = 1.6
    """Growth of that time with beta."""
    equation_betas: Betas = (3.0, 4.0, 5.0, 6.0, 6.7)
    """Inverse temperatures of the mean-field equation."""
    kappas: study.Distinct[study.Positive] = (0.008, 0.004, 0.002)
    """Diffusions of the mean-field equation."""
    arcs: int = 512
    """Cells of the circle."""
    records: Annotated[int, study.Checked(partial(whole, least=100))] = 4000
    """Times at which the energy of a run is recorded, evenly: they bound the error of lifetimes."""
    paths: tyro.conf.Suppress[int] = 1
    t_final: tyro.conf.Suppress[float] = 1.0
    dt: tyro.conf.Suppress[float] = 1.0
    out: study.Folder = Path("results/metastability")

    def check(self) -> None:
        super().check()
        last = 1 - math.cos(self.angle)
        for name, rate in (("betas", last), ("start_betas", self.growth), ("equation_betas", last)):
            flag, most = f"--{name.replace('_', '-')}", LONGEST / rate
            if max(getattr(self, name)) > most:
                raise InputError(f"{flag} asks for longer than any run: expected at most {most:g}")


def closing_speed(angle: float, beta: float, mass: float = 0.5) -> float:
    """Return -d(angle)/dt of two clusters in units of [GLPR], for softmax in ascent.

    A token of the first puts m e^beta on its own cluster and (1 - m) e^(beta cos angle) on the
    other, and moves towards it at sin(angle) times the share of the latter.
    """
    gap = math.exp(beta * (1 - math.cos(angle)))
    shares = (1 - mass) / (mass * gap + 1 - mass) + mass / ((1 - mass) * gap + mass)
    return math.sin(angle) * shares


def lifetime(angle: float, beta: float, mass: float = 0.5, end: float | None = None) -> float:
    """Return the time in [GLPR] units from an angle until half of the energy has risen."""
    from scipy.integrate import quad

    end = meeting_angle(beta) if end is None else end
    if angle <= end:
        return 0.0
    value, _ = quad(
        lambda a: 1 / closing_speed(a, beta, mass), end, angle, limit=500, epsabs=0, epsrel=1e-10
    )
    return float(value)


def meeting_angle(beta: float, share: float = 0.5) -> float:
    """Return the angle at which the energy of a pair has risen by a share of its total rise.

    E = e^beta (1 - 2 m (1 - m) (1 - e^(beta (cos angle - 1))))/2 for any masses.
    """
    return math.acos(max(-1.0, 1 + math.log(share) / beta))


def arc(angle: float, d: int) -> FloatArray:
    """Return centres (2, d) of two clusters at an angle."""
    centres = np.zeros((2, d))
    centres[0, 0] = 1.0
    centres[1, :2] = math.cos(angle), math.sin(angle)
    return centres


def pair(n: int, d: int, angle: float, seed: int) -> FloatArray:
    """Return n tokens (n, d) in two equal clusters at an angle, which lie about their centres."""
    rng = np.random.Generator(np.random.Philox(seed))
    spread = SPREAD * rng.standard_normal((2, n // 2, d))
    spread -= spread.mean(axis=1, keepdims=True)
    x = np.repeat(arc(angle, d), n // 2, axis=0) + spread.reshape(n, d)
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def bumps(angle: float, width: float) -> Callable[[FloatArray], FloatArray]:
    """Return the density of two equal bumps at an angle, of a width in radians."""
    centres = arc(angle, 2)

    def density(x: FloatArray) -> FloatArray:
        return np.asarray(np.exp((x @ centres.T - 1) / width**2).sum(axis=1))

    return density


def start_time(flags: Metastability, beta: float) -> float:
    """Return the end of the random starts of a beta, in units of [GLPR]."""
    return float(flags.factor * math.exp(flags.growth * beta))


def equation_time(flags: Metastability, beta: float) -> float:
    """Return the end of the runs of the equation, in units of [GLPR]; they have 100 records."""
    return 1.6 * lifetime(flags.angle, beta) + 30


def tasks(flags: Metastability) -> dict[str, dict[str, Any]]:
    """Return all runs: name -> arguments of `wflow.solve` or `wflow.meanfield.solve`."""
    found: dict[str, dict[str, Any]] = {}

    def task(beta: float, d: int, t_final: float) -> dict[str, Any]:
        return {
            "law": Frozen(), "heads": beta * np.eye(d)[None], "direction": "ascent",
            "t_final": t_final / beta, "seed": flags.seed,
        }  # fmt: skip

    for beta in flags.betas:
        t_final = 1.3 * lifetime(flags.angle, beta) + 20
        found[f"pair_beta_{beta:g}"] = task(beta, 3, t_final) | {
            "x0": pair(flags.pair_n, 3, flags.angle, flags.seed), "scheme": "dopri5",
            "dt": t_final / beta / flags.records,
        }  # fmt: skip
    x0 = wflow.tokens.uniform(flags.starts * flags.n, 3, seed=flags.seed)
    for beta in flags.start_betas:
        t_final = start_time(flags, beta)
        shots = np.unique(np.rint(np.geomspace(1, flags.records, 120))) * (
            t_final / beta / flags.records
        )
        found[f"starts_beta_{beta:g}"] = task(beta, 3, t_final) | {
            "x0": x0.reshape(flags.starts, flags.n, 3), "paths": flags.starts, "scheme": "dopri5",
            "dt": t_final / beta / flags.records,
            "save": SaveAt(snapshots=shots.tolist(), paths=range(flags.starts)),
        }  # fmt: skip
    mesh = meanfield.Circle(flags.arcs)
    for kappa in flags.kappas:
        for beta in flags.equation_betas:
            t_final = equation_time(flags, beta)
            width = max(math.sqrt(kappa / beta), 2 * mesh.width)
            found[f"equation_kappa_{kappa:g}_beta_{beta:g}"] = task(beta, 2, t_final) | {
                "density": bumps(flags.angle, width), "mesh": mesh, "kappa": kappa,
                "reconstruct": True,
            }  # fmt: skip
    return found


def crossing(times: FloatArray, values: FloatArray, level: float) -> float:
    """Return the first time at which values, interpolated, reach a level for good; NaN if never."""
    above = values >= level
    if not above[-1]:
        return math.nan
    first = len(above) - int(np.argmin(above[::-1])) if not above.all() else 0
    if first == 0:
        return float(times[0])
    low, high = values[first - 1], values[first]
    return float(
        times[first - 1] + (times[first] - times[first - 1]) * (level - low) / (high - low)
    )


def pair_lifetime(file: Path, beta: float) -> float:
    """Return the lifetime of a pair in units of [GLPR]: until half of the energy has risen."""
    with wflow.open(file) as run:
        level = math.exp(beta) / 2 * 0.75  # between 1/2, of two clusters, and 1
        return beta * crossing(run["time"].values, run["energy"].values[0], level)


class Last(NamedTuple):
    """The last pair of clusters of a start: its lifetime, and what its law says from then on."""

    one: float
    one_known: float
    angle: float
    mass: float
    begun: float


def last_pair(run: "study.Dataset", place: int, beta: float) -> Last:
    """Return when all tokens are in one cluster, and the last pair before, in units of [GLPR]."""
    level = WHOLE * math.exp(beta) / 2
    one = beta * crossing(run["time"].values, run["energy"].values[place], level)
    shots = beta * run["snapshot"].values
    nothing = Last(one, math.nan, math.nan, math.nan, math.nan)
    if not math.isfinite(one):
        return nothing
    clouds = run["tokens"].isel(snapshot_path=place).values
    begun = None
    for shot, time in enumerate(shots):
        if time >= one:
            break
        if clusters.count(clouds[shot], SCALE) != 2:
            begun = None
        elif begun is None:
            begun = shot
    if begun is None:
        return nothing
    x = clouds[begun]
    group = clusters.labels(x, SCALE) == 0
    centres = [part.mean(axis=0) for part in (x[group], x[~group])]
    a, b = (centre / np.linalg.norm(centre) for centre in centres)
    angle, mass = float(np.arccos(np.clip(a @ b, -1, 1))), float(group.mean())
    # The energy of this pair has risen to the level at the angle where what is missing is 1 %.
    missing = min((1 - WHOLE) / (2 * mass * (1 - mass)), 1.0)
    end = meeting_angle(beta, 1 - missing) if missing < 1 else angle
    since = float(shots[begun])
    return Last(one, since + lifetime(angle, beta, mass, end), angle, mass, since)


def growth(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return slopes of the least-squares lines of the rows of y; NaN where a value is."""
    off = x - x.mean()
    return np.asarray(y @ off / (off @ off))


def exponential_share(betas: FloatArray, times: FloatArray) -> float:
    """Return the share of resampled starts by which log(time) is closer to a line in beta.

    times : (beta, start); the other law is a power, a line in log(beta)
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(times.shape[1], size=(2000, times.shape[1]))
    means = np.log(times)[:, drawn].mean(axis=2).T  # (resample, beta)
    means -= means.mean(axis=1, keepdims=True)

    def left(x: FloatArray) -> FloatArray:
        line = growth(x, means)[:, None] * (x - x.mean())
        return np.asarray(np.sum((means - line) ** 2, axis=1))

    return float((left(betas) < left(np.log(betas))).mean())


def equation_lifetime(file: Path, beta: float) -> tuple[float, float]:
    """Return the lifetime of a pair of bumps, and the largest numerical diffusion until then.

    The lifetime ends when half of the energy has risen that the run gains after the bumps have
    their shape.
    """
    with wflow.open(file) as run:
        times, energy = beta * run["time"].values, run["energy"].values[0]
        numerical = run["numerical_diffusion"].values[0]
    shaped = int(np.searchsorted(times, 0.05 * times[-1]))
    gained = energy[-1] - energy[shaped]
    life = math.nan
    if gained > 0.2 * energy[-1]:
        life = crossing(times, energy, energy[shaped] + gained / 2)
    begin, end = times[shaped], times[-1]
    if math.isfinite(life):
        begin, end = min(begin, life / 4), life / 2
    apart = (times >= begin) & (times <= end)
    return life, float(numerical[apart].max()) if apart.any() else math.nan


def collect(
    flags: Metastability, files: dict[str, Path], advance: Callable[[int], None]
) -> "study.Dataset":
    """Return lifetimes in units of [GLPR], of pairs, of random starts and of the equation."""
    pairs, starts = [], []
    for beta in flags.betas:
        pairs.append(pair_lifetime(files[f"pair_beta_{beta:g}"], beta))
        advance(1)
    for beta in flags.start_betas:
        with wflow.open(files[f"starts_beta_{beta:g}"]) as run:
            starts.append([last_pair(run, place, beta) for place in range(flags.starts)])
        advance(1)
    seen = np.array(starts, dtype=float)  # (beta, start, field)
    equation = np.full((len(flags.kappas), len(flags.equation_betas), 2), np.nan)
    for i, kappa in enumerate(flags.kappas):
        for j, beta in enumerate(flags.equation_betas):
            equation[i, j] = equation_lifetime(
                files[f"equation_kappa_{kappa:g}_beta_{beta:g}"], beta
            )
            advance(1)
    unit = "in units of [GLPR]"
    each, cell = ("start_beta", "start"), ("kappa", "equation_beta")
    known = [lifetime(flags.angle, beta) for beta in flags.betas]
    points = [lifetime(flags.angle, beta) for beta in flags.equation_betas]
    spacing = [start_time(flags, beta) / flags.records for beta in flags.start_betas]
    spaces = [equation_time(flags, beta) / 100 for beta in flags.equation_betas]
    return study.dataset(
        {
            "pair": ("beta", pairs, f"lifetime of a pair of tokens, {unit}; NaN: not reached"),
            "pair_known": ("beta", known, f"lifetime of two points, by quadrature, {unit}"),
            "one": (each, seen[..., 0], f"time to one cluster of a random start, {unit}"),
            "one_known": (each, seen[..., 1], f"that time by the law of its last pair, {unit}"),
            "spacing": ("start_beta", spacing, f"time between two records, {unit}"),
            "begun": (each, seen[..., 4], f"when its last pair was alone, {unit}"),
            "angle": (each, seen[..., 2], "angle of the last pair when it is alone, radians"),
            "mass": (each, seen[..., 3], "mass of one cluster of it"),
            "equation": (cell, equation[..., 0], f"lifetime of a pair of bumps, {unit}"),
            "equation_known": ("equation_beta", points, "lifetime of two points, by quadrature"),
            "equation_spacing": ("equation_beta", spaces, f"time between two records, {unit}"),
            "numerical_diffusion": (cell, equation[..., 1], "largest numerical diffusion"),
        },
        {
            "beta": (flags.betas, "inverse temperature of the pairs"),
            "start_beta": (flags.start_betas, "inverse temperature of the random starts"),
            "equation_beta": (flags.equation_betas, "inverse temperature of the equation"),
            "kappa": (flags.kappas, "diffusion of the equation"),
        },
    )  # fmt: skip


def largest(values: np.ndarray) -> float:
    """Return the largest of the numbers that were measured, NaN if there is none."""
    return float(np.nanmax(values)) if np.isfinite(values).any() else math.nan


def reaches(times: np.ndarray, known: np.ndarray, least: float) -> tuple[bool, bool]:
    """Return whether a time beyond the least was measured, and whether the runs can tell."""
    seen = bool((times > least).any())
    return seen, seen or bool(np.isfinite(times).all() and known.max() > least)


def of_pairs(flags: Metastability, table: "study.Dataset") -> list[Finding]:
    """Return what the pairs of tokens say."""
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
        r"lifetimes of two clusters grow like $e^{(1 - \cos a) \beta} / \beta$: the four largest "
        r"$\beta$ give this rate within 2 %", THEORY, f"{slope:.4f}, known {wanted:.4f}",
        abs(slope / wanted - 1) < 0.02, known=math.isfinite(slope),
    )  # fmt: skip
    long, tried = reaches(times, known, LONG)
    reach = Finding.decided(
        f"lifetimes of two clusters beyond {LONG:g} are reached", "question of this study",
        f"{(times > LONG).sum()} of {times.size} values of $\\beta$", long, known=tried,
    )  # fmt: skip
    return [exact, constant, reach]


def of_starts(table: "study.Dataset") -> list[Finding]:
    """Return what the random starts say."""
    betas, one = table["start_beta"].values, table["one"].values
    met = np.isfinite(one).all(axis=0)  # the same starts for every beta
    claim = r"times to one cluster of random starts grow exponentially in $\beta$, not like a power"
    text = f"{met.sum()} of {met.size} starts merged for every $\\beta$"
    if met.sum() < LEAST:
        first = Finding(claim, GLPR, text, "inconclusive")
    else:
        law = fits.line(betas, np.log(one[:, met]))
        low, high = law.slope_ci
        share = exponential_share(betas, one[:, met])
        first = Finding.decided(
            claim, GLPR,
            f"{text}; $\\log$ time grows by {law.slope:.2f} per unit of $\\beta$ (95 % {low:.2f} "
            f"to {high:.2f}); a line is closer than a power in {100 * share:.3g} % of the "
            "resamples",
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


def of_equation(flags: Metastability, table: "study.Dataset") -> list[Finding]:
    """Return what the mean-field equation says."""
    betas, kappas = table["equation_beta"].values, table["kappa"].values
    times, known = table["equation"].values, table["equation_known"].values
    share = table["numerical_diffusion"].values / kappas[:, None]
    own = Finding.decided(
        f"the numerical diffusion is at most {NUMERICAL:g} of the diffusion $\\kappa$",
        "docs/theory/mean_field.md",
        "; ".join(f"$\\kappa = {k:g}$: {largest(row):.2g}"
                  for k, row in zip(kappas, share, strict=True)),
        share <= NUMERICAL, known=np.isfinite(share),
    )  # fmt: skip
    resolved = np.where(share <= NUMERICAL, times, np.nan)
    long, tried = reaches(resolved, known, LONG_EQUATION)
    reach = Finding.decided(
        f"lifetimes of two bumps beyond {LONG_EQUATION:g} are reached, where the diffusion "
        f"$\\kappa$ is at least {1 / NUMERICAL:g} times the numerical one",
        "question of this study",
        f"{np.isfinite(resolved).sum()} of {resolved.size} lifetimes were reached there, the "
        f"longest is {largest(resolved):.4g}", long, known=tried,
    )  # fmt: skip
    wanted = float(growth(betas, np.log(known)))
    slopes = growth(betas, np.log(times))  # NaN where a lifetime was not reached
    grows = Finding.decided(
        r"with a small diffusion lifetimes of two bumps grow in $\beta$ at the rate of two points, "
        f"within {100 * SLOPE:g} %", "question of this study",
        "; ".join(f"$\\kappa = {k:g}$: {slope:.3f}"
                  for k, slope in zip(kappas, slopes, strict=True))
        + f"; two points {wanted:.3f}",
        abs(slopes / wanted - 1) < SLOPE, known=np.isfinite(slopes),
    )  # fmt: skip
    order = np.argsort(kappas)[::-1]
    off = np.abs(times / known - 1)[order]
    gain, error = off[:-1] - off[1:], table["equation_spacing"].values / known
    tends = Finding.decided(
        "lifetimes of two bumps tend to those of two points as the diffusion falls",
        "question of this study",
        "; ".join(f"$\\kappa = {kappas[k]:g}$: off by up to {largest(row):.2g}"
                  for k, row in zip(order, off, strict=True))
        + f"; the spacing of the records is up to {error.max():.2g}",
        gain > error, known=np.abs(gain) > error,
    )  # fmt: skip
    return [own, reach, grows, tends]


# Tables and figures
# ------------------


def short(time: float) -> str:
    """Return a time to four figures, without an exponent up to a million."""
    return f"{float(f'{time:.4g}'):g}" if math.isfinite(time) else "later"


def report(flags: Metastability, table: "study.Dataset") -> str:
    """Return the three tables."""
    pairs = {
        "beta": [f"{beta:g}" for beta in flags.betas],
        "tokens": [short(value) for value in table["pair"].values],
        "two points": [short(value) for value in table["pair_known"].values],
        "ratio - 1": [f"{v:.1e}" for v in (table["pair"] / table["pair_known"] - 1).values],
    }
    rows = []
    for i, beta in enumerate(flags.start_betas):
        part = table.isel(start_beta=i)
        one, ratio = part["one"].values, (part["one_known"] / part["one"]).values
        met = np.isfinite(one)
        known = np.isfinite(ratio)
        rows.append({
            "beta": f"{beta:g}", "in one cluster": f"{met.sum()} of {met.size}",
            "median time": short(float(np.median(np.where(met, one, np.inf)))),
            "longest": short(float(one[met].max())) if met.any() else "",
            "angle of the last pair": study.mean_text(part["angle"].values[known])
            if known.sum() > 1 else "",
            "time by its law over time": f"{np.median(ratio[known]):.3f}, "
            f"{ratio[known].min():.3f} to {ratio[known].max():.3f}" if known.any() else "",
        })  # fmt: skip
    columns = {"beta": [f"{beta:g}" for beta in flags.equation_betas]}
    for i, kappa in enumerate(flags.kappas):
        part = table.isel(kappa=i)
        columns[f"kappa = {kappa:g}"] = [short(value) for value in part["equation"].values]
        share = part["numerical_diffusion"].values.max() / kappa
        columns[f"kappa = {kappa:g}"][-1] += f" (numerical diffusion {100 * share:.2g} % of it)"
    columns["two points"] = [short(value) for value in table["equation_known"].values]
    return "\n\n".join((
        f"Lifetimes in units of [GLPR]. Pairs of clusters of {flags.pair_n} tokens on the sphere "
        f"at an angle of {flags.angle:g}:",
        study.markdown_table(pairs),
        f"Random starts, n = {flags.n}, d = 3, {flags.starts} of them:",
        study.markdown_table(rows),
        f"The mean-field equation on the circle, {flags.arcs} cells, two bumps at that angle:",
        study.markdown_table(columns),
    ))  # fmt: skip


def figure(flags: Metastability, table: "study.Dataset") -> "study.Figure":
    """Draw lifetimes against beta: pairs and the equation on the left, random starts right."""
    fine = np.linspace(min(flags.equation_betas + flags.betas), max(flags.betas), 100)
    with style():
        drawn, axes = grid(1, 2, PAGE, 3.2)
        left, right = axes.flat
        left.plot(fine, [lifetime(flags.angle, beta) for beta in fine], color="black",
                  linewidth=0.9, label="two points, by quadrature")  # fmt: skip
        left.plot(flags.betas, table["pair"], "o", color="#D55E00", markersize=4,
                  label=f"{flags.pair_n} tokens on the sphere")  # fmt: skip
        for i, kappa in enumerate(flags.kappas):
            left.plot(
                flags.equation_betas, table["equation"].isel(kappa=i), "sD^v<>"[i % 6],
                markerfacecolor="none", linestyle="none", markersize=6,
                color=shade(i, len(flags.kappas)),
                label=f"$n = \\infty$, circle, $\\kappa$ = {kappa:g}",
            )  # fmt: skip
        left.set_title(f"Two clusters at an angle of {flags.angle:g}")
        betas = np.repeat(np.array(flags.start_betas), flags.starts)
        right.plot(betas, table["one"].values.ravel(), "o", color="#0072B2", markersize=3.5,
                   label="time to one cluster")  # fmt: skip
        right.plot(betas, table["one_known"].values.ravel(), "x", color="#E69F00", markersize=5,
                   label="by the law of the last pair")  # fmt: skip
        right.set_title(f"{flags.starts} random starts, $n$ = {flags.n}, $d$ = 3")
        for axis in (left, right):
            axis.set_yscale("log")
            log_axis(axis)
            axis.set(xlabel="Inverse temperature $\\beta$", ylabel="Lifetime, in units of [GLPR]")
            axis.legend(loc="upper left", fontsize=7)
    return drawn


def main() -> None:
    flags = study.command_line(Metastability, __doc__)
    with study.session("metastability", flags) as session:
        files = session.solve(tasks(flags))
        with session.progress(len(files), "lifetimes") as advance:
            table = collect(flags, files, advance)
        found = [*of_pairs(flags, table), *of_starts(table), *of_equation(flags, table)]
        session.finish(table, report(flags, table), found, {"lifetimes": figure(flags, table)})


if __name__ == "__main__":
    script(main)
