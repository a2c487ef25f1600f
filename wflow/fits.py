"""Power laws fitted to Monte Carlo means, with errors from a bootstrap over the paths."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._checks import whole
from wflow.errors import InputError

FloatArray = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class PowerLaw:
    """The fit y = prefactor x^exponent, with bootstrap errors; called, it gives y at x.

    Attributes
    ----------
    prefactor, exponent : a and b of y = a x^b
    pearson : correlation of log x and log mean y; NaN where all means are equal
    prefactor_error, exponent_error : standard errors, the deviation over the resamples
    prefactor_ci, exponent_ci : percentile intervals (lo, hi)
    level : coverage of the intervals and of the band
    resamples, paths, points : numbers of resamples, paths and abscissae
    log_prefactors, exponents : arrays (resamples,), the fits to the resamples

    Errors, intervals and the band are NaN where there is one path only.
    """

    prefactor: float
    exponent: float
    pearson: float
    prefactor_error: float
    exponent_error: float
    prefactor_ci: Interval
    exponent_ci: Interval
    level: float
    resamples: int
    paths: int
    points: int
    log_prefactors: FloatArray = field(repr=False, compare=False)
    exponents: FloatArray = field(repr=False, compare=False)

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Value of the fit: a x^b at x > 0, of any shape."""
        return np.exp(np.log(self.prefactor) + self.exponent * np.log(_positive(x, "x")))

    def band(self, x: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Pointwise percentile band of the fitted curve: quantiles over resamples r of a_r x^b_r.

        Parameters
        ----------
        x : positive numbers (m,)

        Returns
        -------
        lo, hi : arrays (m,), at the quantiles (1 - level)/2 and (1 + level)/2

        Raises
        ------
        InputError
            For x that is not a list of positive finite numbers.
        """
        log_x = np.log(np.atleast_1d(_positive(x, "x")))
        if log_x.ndim != 1:
            raise InputError(f"x has shape {log_x.shape}; expected (m,)")
        if self.paths < 2:
            return np.full(len(log_x), np.nan), np.full(len(log_x), np.nan)
        # One abscissa at a time: a fine curve times all resamples needs no memory of its own.
        bounds = [_interval(self.log_prefactors + self.exponents * t, self.level) for t in log_x]
        lo, hi = np.exp(np.array(bounds).reshape(-1, 2)).T
        return lo, hi

    def as_dict(self) -> dict[str, Any]:
        """The numbers of the fit for JSON, without the resamples; NaN becomes None."""
        names = ("prefactor", "exponent", "pearson", "prefactor_error", "exponent_error", "level")
        numbers: dict[str, Any] = {name: json_number(getattr(self, name)) for name in names}
        for name in ("prefactor_ci", "exponent_ci"):
            numbers[name] = [json_number(bound) for bound in getattr(self, name)]
        for name in ("resamples", "paths", "points"):
            numbers[name] = getattr(self, name)
        return numbers


def power_law(
    x: ArrayLike,
    y_paths: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> PowerLaw:
    """Fit y = a x^b by least squares in log-log through the means over the paths.

    (log a, b) minimises sum_k (log ybar_k - log a - b log x_k)^2, ybar_k = mean over paths of
    y_kp. Each resample draws as many paths with replacement, the same ones for every x: a path
    number stands for the same noise at every x, so its values are dependent and go together.
    Source: percentile bootstrap of Efron and Tibshirani, An Introduction to the Bootstrap (1993),
    chapter 13. With few paths (under about 10) such intervals are somewhat too short.

    Parameters
    ----------
    x : (m,), positive, at least two different values
    y_paths : (m, paths), positive
    level : coverage of the intervals, between 0 and 1
    resamples : number of resamples, >= 1
    seed : integer >= 0; one seed gives the same numbers

    Returns
    -------
    PowerLaw

    Raises
    ------
    InputError
        For wrong shapes, fewer than two different x, values that are not positive and finite, or
        level, resamples, seed out of range.
    """
    x, y = _positive(x, "x"), _positive(y_paths, "y_paths")
    if x.ndim != 1 or y.ndim != 2 or len(x) != len(y) or y.shape[1] < 1:
        raise InputError(
            f"x has shape {x.shape} and y_paths {y.shape}; expected (m,) and (m, paths), one row "
            "per x (y[:, None] for one path)"
        )
    log_x = np.log(x)
    if len(x) < 2 or np.ptp(log_x) == 0:
        raise InputError(f"x = {x.tolist()}: a power law needs at least two different x; add one")
    if not 0 < level < 1:
        raise InputError(f"level = {level}: expected a number between 0 and 1, such as 0.95")
    resamples, seed = whole(resamples, "resamples"), whole(seed, "seed", 0)

    largest = y.max(axis=1)  # scaled by it, no sum of large values overflows
    scaled = y / largest[:, None]
    log_mean = np.log(scaled.mean(axis=1)) + np.log(largest)
    log_prefactor, exponent = _line(log_x, log_mean)
    paths = y.shape[1]
    log_prefactors, exponents = np.full(resamples, np.nan), np.full(resamples, np.nan)
    if paths > 1:
        rng = np.random.Generator(np.random.Philox(seed))
        block = max(1, 2**20 // (paths * len(x)))  # resamples at a time: 8 MB
        for start in range(0, resamples, block):
            part = slice(start, min(start + block, resamples))
            drawn = rng.integers(paths, size=(part.stop - start, paths))
            means = scaled[:, drawn].mean(axis=2).T  # (block, m)
            log_prefactors[part], exponents[part] = _line(log_x, np.log(means) + np.log(largest))
    with np.errstate(over="ignore"):  # a steep law over far-off x: its prefactor is inf
        prefactor, prefactors = float(np.exp(log_prefactor)), np.exp(log_prefactors)
        lo, hi = np.exp(_interval(log_prefactors, level))  # the band at x = 1
    return PowerLaw(
        prefactor=prefactor,
        exponent=float(exponent),
        pearson=_pearson(log_x, log_mean),
        prefactor_error=_deviation(prefactors),
        exponent_error=_deviation(exponents),
        prefactor_ci=(float(lo), float(hi)),
        exponent_ci=_interval(exponents, level),
        level=float(level),
        resamples=resamples,
        paths=paths,
        points=len(x),
        log_prefactors=log_prefactors,
        exponents=exponents,
    )


def mean_and_error(samples: ArrayLike, axis: int = -1) -> tuple[FloatArray, FloatArray]:
    """Mean over independent samples and its standard error: s / sqrt(N), s^2 with N - 1.

    Parameters
    ----------
    samples : array (..., N, ...), real
    axis : the axis of the samples

    Returns
    -------
    mean, error : float64 arrays without that axis; the error is NaN where N = 1

    Raises
    ------
    InputError
        For values that are not real numbers, an axis that does not exist, or no samples.
    """
    values = _real(samples, "samples")
    if not -values.ndim <= axis < values.ndim:
        raise InputError(f"samples have shape {values.shape} and no axis {axis}; choose another")
    count = values.shape[axis]
    if count == 0:
        raise InputError(f"samples have shape {values.shape}; at least one sample is needed")
    mean = values.mean(axis=axis)
    if count == 1:
        return mean, np.full_like(mean, np.nan)
    return mean, values.std(axis=axis, ddof=1) / np.sqrt(count)


def json_number(value: Any) -> float | None:
    """Give a number as JSON has it: NaN and infinity, which it lacks, become None."""
    return float(value) if np.isfinite(value) else None


def _line(x: FloatArray, y: FloatArray) -> tuple[Any, Any]:
    """Intercept and slope of the least-squares line through y (..., m) over x (m,)."""
    centred = x - x.mean()
    slope = np.einsum("...m,m->...", y, centred) / np.sum(centred**2)
    return y.mean(axis=-1) - slope * x.mean(), slope


def _pearson(x: FloatArray, y: FloatArray) -> float:
    # Means that differ by rounding alone have no direction to correlate with.
    if np.ptp(y) <= 16 * np.finfo(np.float64).eps * max(1.0, np.abs(y).max()):
        return float("nan")
    a, b = x - x.mean(), y - y.mean()
    return float(np.clip(np.sum(a * b) / np.sqrt(np.sum(a * a) * np.sum(b * b)), -1, 1))


def _deviation(values: FloatArray) -> float:
    scale = np.abs(values).max()  # without it large values overflow in the sum of squares
    if len(values) < 2 or not np.isfinite(scale):
        return float("nan")
    return float(scale * (values / scale).std(ddof=1)) if scale else 0.0


def _interval(values: FloatArray, level: float) -> Interval:
    lo, hi = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(lo), float(hi)


def _real(values: ArrayLike, name: str) -> FloatArray:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"it holds {array.dtype}")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers: {error}") from None
    return array.astype(np.float64)


def _positive(values: ArrayLike, name: str) -> FloatArray:
    array = _real(values, name)
    bad = np.argwhere(~((array > 0) & np.isfinite(array)))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise InputError(
            f"{name}{list(where)} is {array[where]}: a power law needs positive finite values; "
            "leave out what is not"
        )
    return array
