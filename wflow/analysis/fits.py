"""Lines and power laws fitted to Monte Carlo means, with errors from a bootstrap over the paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import LARGEST_WHOLE, number, reals, shown, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow._core.reprs import ShortResult

__all__ = ["Line", "PowerLaw", "json_number", "line", "mean_and_error", "power_law"]

FloatArray = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True, repr=False)
class Line(ShortResult):
    """The fit y = intercept + slope x through means over paths, with a bootstrap over the paths.

    Attributes
    ----------
    intercept, slope : least-squares line
    residual : sum of squares that the line leaves
    slope_ci : percentile interval (lo, hi); NaN where there is one path only
    means : (m,), what the line is fitted to
    intercepts, slopes : arrays (resamples,), the fits to the resamples
    """

    intercept: float
    slope: float
    residual: float
    slope_ci: Interval
    means: FloatArray = field(repr=False, compare=False)
    intercepts: FloatArray = field(repr=False, compare=False)
    slopes: FloatArray = field(repr=False, compare=False)


@dataclass(frozen=True, repr=False)
class PowerLaw(ShortResult):
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

    _shown = ("prefactor", "exponent", "exponent_ci", "pearson", "paths", "points")

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
        with np.errstate(over="ignore"):
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
        # One abscissa at a time: a fine curve times all resamples needs no further memory.
        bounds = [interval(self.log_prefactors + self.exponents * t, self.level) for t in log_x]
        with np.errstate(over="ignore"):
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
    largest = y.max(axis=1)  # scaled by it, no sum of large values overflows

    def log(means: FloatArray) -> FloatArray:
        return np.log(means) + np.log(largest)

    fit = line(log_x, y / largest[:, None], of=log, level=level, resamples=resamples, seed=seed)
    level, resamples, paths = float(level), len(fit.slopes), y.shape[1]
    log_prefactors, exponents = fit.intercepts, fit.slopes
    with np.errstate(over="ignore"):  # a steep law over far-off x: its prefactor is inf
        prefactor, prefactors = float(np.exp(fit.intercept)), np.exp(log_prefactors)
        lo, hi = np.exp(interval(log_prefactors, level))  # the band at x = 1
    return PowerLaw(
        prefactor=prefactor,
        exponent=fit.slope,
        pearson=_pearson(log_x, fit.means),
        prefactor_error=_deviation(prefactors),
        exponent_error=_deviation(exponents),
        prefactor_ci=(float(lo), float(hi)),
        exponent_ci=fit.slope_ci,
        level=level,
        resamples=resamples,
        paths=paths,
        points=len(x),
        log_prefactors=log_prefactors,
        exponents=exponents,
    )


def line(
    x: ArrayLike,
    y_paths: ArrayLike,
    *,
    of: Callable[[FloatArray], FloatArray] = lambda means: means,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int | np.random.Generator = 0,
) -> Line:
    """Fit y = a + s x by least squares to a function of the means over the paths.

    (a, s) minimises sum_k (of(ybar)_k - a - s x_k)^2, ybar_k = mean over paths of y_kp. Each
    resample draws as many paths with replacement, the same ones for every x, as in `power_law`,
    which is a line in logarithms. Source: Efron and Tibshirani, An Introduction to the Bootstrap
    (1993), chapter 13.

    Parameters
    ----------
    x : (m,), at least two different values
    y_paths : (m, paths)
    of : function of means (..., m), such as `np.log`; resamples where it is not finite make the
        interval NaN
    level : coverage of the interval, between 0 and 1
    resamples : number of resamples, >= 1
    seed : integer >= 0, or a generator that draws the paths

    Returns
    -------
    Line

    Raises
    ------
    InputError
        For wrong shapes, values that are not finite, fewer than two different x, a function that
        does not map means (..., m) to numbers (..., m), or level, resamples, seed out of range.

    Examples
    --------
    >>> from wflow import fits
    >>> fits.line([0, 1, 2], [[1.0, 1.0], [3.0, 3.0], [5.0, 5.0]]).slope
    2.0
    """
    x, y = reals(x, "x"), reals(y_paths, "y_paths")
    if x.ndim != 1 or y.ndim != 2 or len(x) != len(y) or y.shape[1] < 1:
        raise InputError(
            f"x has shape {x.shape} and y_paths {y.shape}; expected (m,) and (m, paths), one row "
            "per x (y[:, None] for one path)"
        )
    if len(x) < 2 or np.ptp(x) == 0:
        raise InputError(f"x = {x.tolist()}: a line needs at least two different x; add one")
    level = number(level, "level")
    if not 0 < level < 1:
        raise InputError(f"level = {level}: expected a number between 0 and 1, such as 0.95")
    resamples = whole(resamples, "resamples")
    if isinstance(seed, np.random.Generator):
        rng = seed
    else:
        rng = np.random.Generator(np.random.Philox(whole(seed, "seed", 0, most=np.inf)))
    check_memory(8 * 6 * resamples, f"a bootstrap of {resamples} resamples", "take fewer")

    intercepts, slopes = np.full((2, resamples), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):  # of means outside the domain of `of`
        means = _applied(of, y.mean(axis=1))
        intercept, slope = _line(x, means)
        if y.shape[1] > 1:
            for part, drawn in resampled_means(y, resamples, rng):
                intercepts[part], slopes[part] = _line(x, _applied(of, drawn))
        rest = means - (intercept + slope * x)
    return Line(
        intercept=float(intercept),
        slope=float(slope),
        residual=float(np.sum(rest**2)),
        slope_ci=interval(slopes, level),
        means=means,
        intercepts=intercepts,
        slopes=slopes,
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
    values = reals(samples, "samples", finite=False)
    axis = whole(axis, "axis", -LARGEST_WHOLE)
    if not -values.ndim <= axis < values.ndim:
        raise InputError(f"samples have shape {values.shape} and no axis {axis}; choose another")
    count = values.shape[axis]
    if count == 0:
        raise InputError(f"samples have shape {values.shape}; at least one sample is needed")
    with np.errstate(over="ignore", invalid="ignore"):  # of what is not finite, or huge
        mean = values.mean(axis=axis)
        if count == 1:
            return mean, np.full_like(mean, np.nan)
        return mean, values.std(axis=axis, ddof=1) / np.sqrt(count)


def json_number(value: Any) -> float | None:
    """Give a number as JSON has it: NaN and infinity, which it lacks, become None."""
    given = reals(value, "value", finite=False)
    if given.ndim:
        raise InputError(f"value has shape {given.shape}: expected one number")
    return float(given) if np.isfinite(given) else None


def _applied(of: Callable[[FloatArray], FloatArray], means: FloatArray) -> FloatArray:
    try:
        found = np.asarray(of(means), np.float64)
    except Exception as error:  # whatever the function does
        raise InputError(
            f"of is {shown(of)}: expected a function of means (..., m), such as np.log; it raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if found.shape != means.shape:
        raise InputError(
            f"of is {shown(of)}: it maps means of shape {means.shape} to {found.shape}, expected "
            "the same shape"
        )
    return found


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


def resampled_means(
    samples: FloatArray, resamples: int, rng: np.random.Generator
) -> Iterator[tuple[slice, FloatArray]]:
    """Means (k, m) of samples (m, paths) over paths drawn with replacement, k resamples at a time.

    All m means of a resample are over the same paths. The numbers do not depend on k; each block
    comes with the place of its resamples among all.
    """
    points, paths = samples.shape
    block = max(1, 2**20 // (paths * points))  # 8 MB
    for start in range(0, resamples, block):
        part = slice(start, min(start + block, resamples))
        drawn = rng.integers(paths, size=(part.stop - start, paths))
        yield part, samples[:, drawn].mean(axis=2).T


def interval(values: FloatArray, level: float) -> Interval:
    """Percentile interval: the quantiles (1 - level)/2 and (1 + level)/2."""
    lo, hi = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(lo), float(hi)


def _positive(values: ArrayLike, name: str) -> FloatArray:
    array = reals(values, name, finite=False)
    bad = np.argwhere(~((array > 0) & np.isfinite(array)))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise InputError(
            f"{name}{list(where)} is {array[where]}: a power law needs positive finite values; "
            "leave out what is not"
        )
    return array
