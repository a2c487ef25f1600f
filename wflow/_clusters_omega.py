"""Whether the tokens of a run come to rest: the omega-limit of [MHT] Theorem 4.16 on a run file."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from wflow._checks import number, whole
from wflow._snapshots import cloud, opened
from wflow.errors import InputError

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]
Interval = tuple[float, float]
Verdict = Literal["stationary", "not stationary", "undecided"]
Integrable = Literal["yes", "in expectation", "no", "undecided", "unknown"]

_RESAMPLES, _LEVEL = 1000, 0.95
_LEDGER = {"upper_gradient_sq", "weight_power", "ito_power"}
_AT_REST = 0.5  # exponents below it count as no decay
_NOISY, _SIGMAS = 4.0, 3.0  # mean squares over error squares; standard errors


@dataclass(frozen=True)
class Decay:
    """How a positive quantity falls over windows of time, by fits to its logarithm.

    Attributes
    ----------
    times, mean, largest : arrays (windows,), middle, mean and maximum of each window
    exponent, exponent_ci : p of the fit t^-p with its 95 % interval
    rate, rate_ci : lambda of the fit e^{-lambda t}, likewise
    law : which of the two leaves the smaller residual; "none" where the quantity is zero
    """

    times: FloatArray = field(repr=False)
    mean: FloatArray = field(repr=False)
    largest: FloatArray = field(repr=False)
    exponent: float
    exponent_ci: Interval
    rate: float
    rate_ci: Interval
    law: Literal["exponential", "power", "none"]


@dataclass(frozen=True)
class OmegaLimit:
    """What a run says about its omega-limit.

    Attributes
    ----------
    verdict : "stationary", "not stationary" or "undecided"
    reasons : what decided, with the numbers
    quantity : "upper_gradient_sq", or "speed_sq" for runs without an energy
    tail : first and last time of the tail
    decay : of the quantity along the tail, mean over the paths
    ratio : mean of the last window over the largest value in the run
    integrable : whether int |dE/dt| dt < inf by the run, dE/dt the change of the energy by the
        heads alone, weight_power + ito_power: "yes", "in expectation" (the mean over the paths
        vanishes within its Monte Carlo error), "no", "undecided", "unknown" (no energy)
    power_decay : of the size of its mean over the paths along the tail, or None
    power_tail : dE/dt averaged over the second half of the tail and the paths, and its standard
        error; in a steady state it is what the tokens dissipate. NaN without an energy
    power_integral : int |mean dE/dt| dt over the whole run, and over the tail
    power_integral_paths : the mean over the paths of int |dE/dt| dt, likewise
    w2_last : W2 between the last two snapshots, mean over the snapshot paths; NaN without them
    w2_interval : time between those
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    quantity: str
    tail: Interval
    decay: Decay
    ratio: float
    integrable: Integrable
    power_decay: Decay | None
    power_tail: Interval
    power_integral: Interval
    power_integral_paths: Interval
    w2_last: float
    w2_interval: float


def omega_limit(
    run: "Dataset | str | Path",
    *,
    tail: float = 0.5,
    windows: int = 8,
    tolerance: float = 1e-10,
) -> OmegaLimit:
    """Test on a run whether its omega-limit points are stationary: does G^2 vanish?

    [MHT] Theorem 4.16: if int |dE/dt| dt < inf (eq. 122), every omega-limit point is stationary in
    the sense of Definition 4.15. A run ends at a finite time, so that the test is about the decay
    of the squared upper gradient G^2 along the tail, in means over `windows` equal times: the
    energy balance leaves int G^2 dt finite, and t^-p is integrable for p > 1. The verdict is

    - "stationary": G^2 has fallen below `tolerance` times its largest value; or it decays with an
      exponent whose 95 % interval lies above 1, and int |dE/dt| dt is not found to diverge;
    - "not stationary": the interval lies below 1/2: no decay, or one far too slow;
    - "undecided" otherwise.

    The intervals come from the scatter of the windows about the fit and, for two paths or more,
    from a bootstrap over the paths: the wider one counts. A metastable state, which is left after
    a time that the run does not reach, cannot be told from a stationary one.

    Parameters
    ----------
    run : run file, or Dataset of `wflow.solve` or `wflow.open`
    tail : share of the time that counts as its tail, in (0, 1)
    windows : number of windows, >= 4
    tolerance : G^2 that counts as zero, relative to its largest value

    Returns
    -------
    OmegaLimit

    Raises
    ------
    InputError
        For a run with too few record times in its tail, or numbers out of range.

    Source: [MHT] Definition 4.15, Theorem 4.16, eq. 122; docs/mathematics.md, clusters.
    """
    if not 0 < number(tail, "tail") < 1:
        raise InputError(f"tail is {tail}: expected a share of the time between 0 and 1")
    whole(windows, "windows", 4, why="a decay is fitted through them")
    number(tolerance, "tolerance", least=0.0)
    with opened(run) as ds:
        quantity = "upper_gradient_sq" if set(ds.variables) >= _LEDGER else "speed_sq"
        if quantity not in ds:
            raise InputError(
                f"the run holds neither {', '.join(sorted(_LEDGER))} nor speed_sq: give a run with "
                "all its series"
            )
        time = np.asarray(ds["time"].values, np.float64)
        parts = _parts(time, tail, windows)
        speed = _values(ds, quantity)
        power = None
        if quantity == "upper_gradient_sq":
            power = _values(ds, "weight_power") + _values(ds, "ito_power")
        w2_last, w2_interval = _last_step(ds)
    mean = speed.mean(axis=0)
    decay = _decay(time, parts, speed)
    peak = float(mean.max())
    ratio = float(decay.mean[-1] / peak) if peak > 0 else 0.0
    integrable: Integrable = "unknown"
    power_decay = None
    integral = own = power_tail = (math.nan, math.nan)
    why = ""
    if power is not None:
        integrable, power_decay, power_tail, why = _integrable(time, parts, power, tolerance)
        first = parts[0][0]
        size = np.abs(power.mean(axis=0))
        integral = _trapezoid(time, size), _trapezoid(time[first:], size[first:])
        size = np.abs(power).mean(axis=0)
        own = _trapezoid(time, size), _trapezoid(time[first:], size[first:])
    verdict, reason = _verdict(decay, ratio, tolerance, integrable)
    reasons = [reason, why] if why else [reason]
    if math.isfinite(w2_last):
        reasons.append(f"the last two snapshots, {w2_interval:g} apart: W2 = {w2_last:.3g}")
    return OmegaLimit(
        verdict=verdict,
        reasons=tuple(reasons),
        quantity=quantity,
        tail=(float(time[parts[0][0]]), float(time[-1])),
        decay=decay,
        ratio=ratio,
        integrable=integrable,
        power_decay=power_decay,
        power_tail=power_tail,
        power_integral=integral,
        power_integral_paths=own,
        w2_last=w2_last,
        w2_interval=w2_interval,
    )


def _parts(time: FloatArray, tail: float, windows: int) -> list[NDArray[np.int64]]:
    """Record times of each window of the tail."""
    if not len(time):
        raise InputError("the run has no record times; give a run, or a longer part of it")
    edges = time[-1] - tail * (time[-1] - time[0]) * np.linspace(1, 0, windows + 1)
    place = np.clip(np.searchsorted(edges, time, side="right") - 1, -1, windows - 1)
    parts = [np.flatnonzero(place == w) for w in range(windows)]
    if len(time) < 2 or not all(len(part) for part in parts):
        raise InputError(
            f"the tail of the run has {int(np.sum(place >= 0))} record times, too few for "
            f"{windows} windows; lower record_every, or take fewer windows"
        )
    return parts


def _values(ds: "Dataset", name: str) -> FloatArray:
    """A series (paths, times), of paths that are recorded to the end."""
    values = np.asarray(ds[name].transpose("path", "time").values, np.float64)
    if not np.isfinite(values).all():
        raise InputError(
            f"{name} is not finite everywhere: finish the run (--resume), or lower the weights"
        )
    return values


def _decay(time: FloatArray, parts: list[NDArray[np.int64]], values: FloatArray) -> Decay:
    """Fits to the window means of a series (paths, times) >= 0."""
    middle = np.array([time[part].mean() for part in parts])
    by_path = np.stack([values[:, part].mean(axis=1) for part in parts], axis=1)
    largest = np.array([values.mean(axis=0)[part].max() for part in parts])
    mean = by_path.mean(axis=0)
    if not np.all(mean > 0):
        nothing = (math.nan, math.nan)
        return Decay(middle, mean, largest, math.nan, nothing, math.nan, nothing, "none")
    exponent, exponent_ci, power_rest = _slope(np.log(middle), by_path)
    rate, rate_ci, exponential_rest = _slope(middle, by_path)
    law: Literal["exponential", "power"] = (
        "exponential" if exponential_rest < power_rest else "power"
    )
    return Decay(middle, mean, largest, exponent, exponent_ci, rate, rate_ci, law)


def _slope(s: FloatArray, by_path: FloatArray) -> tuple[float, Interval, float]:
    """Slope of -log(mean over paths) against s (windows,), its interval, the residual."""
    from scipy.special import stdtrit

    centred = s - s.mean()
    square = float(centred @ centred)

    def fit(means: FloatArray) -> FloatArray:
        return np.asarray(-np.log(means) @ centred / square)

    mean = by_path.mean(axis=0)
    slope = float(fit(mean))
    rest = -np.log(mean) - slope * s
    residual = float(np.sum((rest - rest.mean()) ** 2))
    # Windows of one path scatter about the fit; paths scatter about each other as well.
    error = math.sqrt(residual / (len(s) - 2) / square)
    half = float(stdtrit(len(s) - 2, (1 + _LEVEL) / 2)) * error
    low, high = slope - half, slope + half
    paths = len(by_path)
    if paths > 1:
        rng = np.random.Generator(np.random.Philox(0))
        means = np.stack(
            [by_path[rng.integers(paths, size=paths)].mean(axis=0) for _ in range(_RESAMPLES)]
        )
        slopes = fit(np.maximum(means, np.finfo(float).tiny))
        ends = np.quantile(slopes, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    return slope, (low, high), residual


def _verdict(
    decay: Decay, ratio: float, tolerance: float, integrable: Integrable
) -> tuple[Verdict, str]:
    if ratio <= tolerance:
        return "stationary", f"G^2 has fallen to {ratio:.2g} of its largest value"
    low, high = decay.exponent_ci
    text = f"G^2 goes like t^-p with p = {decay.exponent:.3g} ({low:.3g} to {high:.3g}) in the tail"
    text += f", to {ratio:.2g} of its largest value"
    if low > 1:
        if integrable == "no":
            return "undecided", f"{text}, while the heads go on changing the energy"
        return "stationary", f"{text}: it vanishes, integrably"
    if high < _AT_REST:
        return "not stationary", f"{text}: it does not vanish"
    return "undecided", f"{text}: run on for longer, or with more paths"


def _integrable(
    time: FloatArray, parts: list[NDArray[np.int64]], power: FloatArray, tolerance: float
) -> tuple[Integrable, Decay | None, Interval, str]:
    """Whether the mean over the paths of dE/dt, by the heads alone, is integrable over time."""
    paths = len(power)
    mean = power.mean(axis=0)
    peak = float(np.abs(mean).max())
    if peak == 0:
        return "yes", None, (0.0, 0.0), "the heads do not change the energy"
    late = power[:, np.concatenate(parts[len(parts) // 2 :])].mean(axis=1)
    average = float(late.mean())
    error = float(late.std(ddof=1)) / math.sqrt(paths) if paths > 1 else 0.0
    tail = average, error
    decay = _decay(time, parts, np.abs(mean)[None])
    if decay.mean[-1] <= tolerance * peak:
        return "yes", decay, tail, f"|dE/dt| has fallen to {decay.mean[-1] / peak:.2g} of its peak"
    # |mean| never falls below its Monte Carlo error: where that is all there is to see, the
    # average over the late times decides.
    last = parts[-1]
    error_sq = power[:, last].var(axis=0, ddof=1) / paths if paths > 1 else np.zeros(len(last))
    if np.mean(mean[last] ** 2) <= _NOISY * np.mean(error_sq):
        text = f"dE/dt is {average:.2g} ± {error:.2g} in the mean over {paths} paths and late times"
        if abs(average) > _SIGMAS * error:
            return "no", decay, tail, f"{text}: it does not vanish"
        return "in expectation", decay, tail, f"{text}: it vanishes within its error"
    low, high = decay.exponent_ci
    text = f"|dE/dt| goes like t^-p with p = {decay.exponent:.3g} ({low:.3g} to {high:.3g})"
    if low > 1:
        return "yes", decay, tail, f"{text}: integrable"
    if high < 1:
        return "no", decay, tail, f"{text}: not integrable"
    return "undecided", decay, tail, text


def _trapezoid(time: FloatArray, values: FloatArray) -> float:
    return float(np.sum(np.diff(time) * (values[1:] + values[:-1]) / 2))


def _last_step(ds: "Dataset") -> Interval:
    """W2 between the last two snapshots, mean over their paths, and the time between them."""
    if "tokens" not in ds.variables or not ds["tokens"].size or ds.sizes["snapshot"] < 2:
        return math.nan, math.nan
    from wflow.transport import w2

    distances = []
    for p in range(ds.sizes["snapshot_path"]):
        before, after = cloud(ds, p, -2), cloud(ds, p, -1)
        if before is not None and after is not None:
            distances.append(w2(before, after))
    times = ds["snapshot"].values[-2:]
    return (float(np.mean(distances)) if distances else math.nan), float(times[1] - times[0])
