"""Two-cluster law, runs, lifetimes, tables and figures of the study `metastability`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import SaveAt, clusters, meanfield, study
from wflow.heads import Frozen
from wflow.plots.figure import PAGE, grid, log_axis, style

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure
    from xarray import Dataset

FloatArray = NDArray[np.float64]
SPREAD = 0.02  # of the tokens of a pair about their centres, in radians
SCALE = 0.0447  # geodesic distance up to which tokens are linked, as in the study `clustering`
WHOLE = 0.99  # share of the energy of one cluster from which on there is one


# Two clusters of masses m and 1 - m
# ----------------------------------


def closing_speed(angle: float, beta: float, mass: float = 0.5) -> float:
    """-d(angle)/dt of two clusters in units of [GLPR], for softmax in ascent.

    A token of the first puts m e^beta on its own cluster and (1 - m) e^(beta cos angle) on the
    other, and moves towards it at sin(angle) times the share of the latter.
    """
    gap = math.exp(beta * (1 - math.cos(angle)))
    shares = (1 - mass) / (mass * gap + 1 - mass) + mass / ((1 - mass) * gap + mass)
    return math.sin(angle) * shares


def lifetime(angle: float, beta: float, mass: float = 0.5, end: float | None = None) -> float:
    """Time in units of [GLPR] from an angle to the one at which half of the energy has risen."""
    from scipy.integrate import quad

    end = meeting_angle(beta) if end is None else end
    if angle <= end:
        return 0.0
    value, _ = quad(
        lambda a: 1 / closing_speed(a, beta, mass), end, angle, limit=500, epsabs=0, epsrel=1e-10
    )
    return float(value)


def meeting_angle(beta: float, share: float = 0.5) -> float:
    """Angle at which the energy of a pair has risen by a share of the way to that of one cluster.

    E = e^beta (1 - 2 m (1 - m) (1 - e^(beta (cos angle - 1))))/2 for any masses.
    """
    return math.acos(max(-1.0, 1 + math.log(share) / beta))


# Runs
# ----


def arc(angle: float, d: int) -> FloatArray:
    """Centres (2, d) of two clusters at an angle."""
    centres = np.zeros((2, d))
    centres[0, 0] = 1.0
    centres[1, :2] = math.cos(angle), math.sin(angle)
    return centres


def pair(n: int, d: int, angle: float, seed: int) -> FloatArray:
    """n tokens (n, d) in two equal clusters at an angle, which lie about their centres."""
    rng = np.random.Generator(np.random.Philox(seed))
    spread = SPREAD * rng.standard_normal((2, n // 2, d))
    spread -= spread.mean(axis=1, keepdims=True)
    x = np.repeat(arc(angle, d), n // 2, axis=0) + spread.reshape(n, d)
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def bumps(angle: float, width: float) -> "Callable[[FloatArray], FloatArray]":
    """Density of two equal bumps at an angle, of a width in radians."""
    centres = arc(angle, 2)

    def density(x: FloatArray) -> FloatArray:
        return np.asarray(np.exp((x @ centres.T - 1) / width**2).sum(axis=1))

    return density


def start_time(flags: Any, beta: float) -> float:
    """End of the random starts of a beta, in units of [GLPR]."""
    return float(flags.factor * math.exp(flags.growth * beta))


def equation_time(flags: Any, beta: float) -> float:
    """End of the runs of the equation, in units of [GLPR]; they have 100 records."""
    return 1.6 * lifetime(flags.angle, beta) + 30


def tasks(flags: Any) -> dict[str, dict[str, Any]]:
    """All runs: name -> arguments of `wflow.solve` or `wflow.meanfield.solve`."""
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


# Lifetimes
# ---------


def crossing(times: FloatArray, values: FloatArray, level: float) -> float:
    """First time at which values, linear in between, reach a level for good; NaN if never."""
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


def of_pair(file: Path, beta: float) -> float:
    """Lifetime of a pair in units of [GLPR]: until half of the energy has risen."""
    with wflow.open(file) as run:
        level = math.exp(beta) / 2 * 0.75  # between 1/2, of two clusters, and 1
        return beta * crossing(run["time"].values, run["energy"].values[0], level)


class Last(NamedTuple):
    """The last pair of clusters of a start: its lifetime, and what its law says from then on."""

    one: float
    known: float
    angle: float
    mass: float
    begun: float


def of_start(run: "Dataset", place: int, beta: float) -> Last:
    """When all tokens are in one cluster, and the last pair before, in units of [GLPR]."""
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
    """Slopes of the least-squares lines of the rows of y; NaN where a value is."""
    off = x - x.mean()
    return np.asarray(y @ off / (off @ off))


def exponential_share(betas: FloatArray, times: FloatArray) -> float:
    """Share of the resamples of the starts by which log(time) is closer to a line in beta.

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


def of_equation(file: Path, beta: float) -> tuple[float, float]:
    """Lifetime of a pair of bumps, and the largest numerical diffusion while they are apart.

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


# Tables and figures
# ------------------


def collect(flags: Any, files: dict[str, Path], advance: "Callable[[int], None]") -> "Dataset":
    """Lifetimes in units of [GLPR], of pairs, of random starts and of the equation."""
    pairs, starts = [], []
    for beta in flags.betas:
        pairs.append(of_pair(files[f"pair_beta_{beta:g}"], beta))
        advance(1)
    for beta in flags.start_betas:
        with wflow.open(files[f"starts_beta_{beta:g}"]) as run:
            starts.append([of_start(run, place, beta) for place in range(flags.starts)])
        advance(1)
    seen = np.array(starts, dtype=float)  # (beta, start, field)
    equation = np.full((len(flags.kappas), len(flags.equation_betas), 2), np.nan)
    for i, kappa in enumerate(flags.kappas):
        for j, beta in enumerate(flags.equation_betas):
            equation[i, j] = of_equation(files[f"equation_kappa_{kappa:g}_beta_{beta:g}"], beta)
            advance(1)
    unit = "in units of [GLPR]"
    each = ("start_beta", "start")
    known = [lifetime(flags.angle, beta) for beta in flags.betas]
    of_known = [lifetime(flags.angle, beta) for beta in flags.equation_betas]
    return study.dataset(
        {
            "pair": ("beta", pairs, f"lifetime of a pair of tokens, {unit}; NaN: not reached"),
            "pair_known": ("beta", known, f"lifetime of two points, by quadrature, {unit}"),
            "one": (each, seen[..., 0], f"time to one cluster of a random start, {unit}"),
            "one_known": (each, seen[..., 1], f"that time by the law of its last pair, {unit}"),
            "spacing": (
                "start_beta", [start_time(flags, beta) / flags.records for beta in
                               flags.start_betas], f"time between two records, {unit}"
            ),
            "begun": (each, seen[..., 4], f"when its last pair was alone, {unit}"),
            "angle": (each, seen[..., 2], "angle of the last pair when it is alone, radians"),
            "mass": (each, seen[..., 3], "mass of one cluster of it"),
            "equation": (
                ("kappa", "equation_beta"), equation[..., 0], f"lifetime of a pair of bumps, {unit}"
            ),
            "equation_known": ("equation_beta", of_known, "lifetime of two points, by quadrature"),
            "equation_spacing": (
                "equation_beta", [equation_time(flags, beta) / 100 for beta in
                                  flags.equation_betas], f"time between two records, {unit}"
            ),
            "numerical_diffusion": (
                ("kappa", "equation_beta"), equation[..., 1], "largest numerical diffusion"
            ),
        },
        {
            "beta": (flags.betas, "inverse temperature of the pairs"),
            "start_beta": (flags.start_betas, "inverse temperature of the random starts"),
            "equation_beta": (flags.equation_betas, "inverse temperature of the equation"),
            "kappa": (flags.kappas, "diffusion of the equation"),
        },
    )  # fmt: skip


def short(time: float) -> str:
    """A time to four figures, without an exponent up to a million."""
    return f"{float(f'{time:.4g}'):g}" if math.isfinite(time) else "later"


def report(flags: Any, table: "Dataset") -> str:
    """The three tables."""
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
            "angle of the last pair": study.mean_text(part["angle"].values[known], ".3g")
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


def figure(flags: Any, table: "Dataset") -> "Figure":
    """Lifetimes against beta: pairs and the equation on the left, random starts on the right."""
    from matplotlib import colormaps

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
                color=colormaps["viridis"](0.84 * i / max(len(flags.kappas) - 1, 1)),
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
            axis.set_xlabel("Inverse temperature $\\beta$")
            axis.set_ylabel("Lifetime, in units of [GLPR]")
            axis.legend(loc="upper left", fontsize=7)
    return drawn
