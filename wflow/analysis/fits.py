"""Lines and power laws fitted to Monte Carlo means, with errors from a bootstrap over the paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import LARGEST_WHOLE, number, reals, returned, shown, switch, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow._core.reprs import ShortResult

__all__ = ["Line", "PowerLaw", "json_number", "line", "mean_and_error", "power_law"]


def __dir__() -> list[str]:
    return __all__


FloatArray = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True, repr=False)
class Line(ShortResult):
    """The fit y = intercept + slope x through means over paths, with a bootstrap over the paths.

    Attributes
    ----------
    intercept : float
        Value of the line at x = 0.
    slope : float
        Slope of the least-squares line.
    residual : float
        Sum of squares that the line leaves.
    slope_ci : tuple of float
        Percentile interval (lo, hi); NaN where there is one path only.
    means : ndarray, shape (m,)
        What the line is fitted to.
    intercepts : ndarray, shape (resamples,)
        Intercepts of the fits to the resamples.
    slopes : ndarray, shape (resamples,)
        Slopes of the fits to the resamples.

    Examples
    --------
    >>> from wflow import fits
    >>> fit = fits.line([0, 1, 2], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], resamples=10)
    >>> fit.intercept, fit.means
    (1.5, array([1.5, 3.5, 5.5]))
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

    Errors, intervals and the band are NaN where there is one path only.

    Attributes
    ----------
    prefactor : float
        Factor a of y = a x^b.
    exponent : float
        Exponent b of y = a x^b.
    pearson : float
        Correlation of log x and log mean y; NaN where all means are equal.
    prefactor_error : float
        Standard error of the prefactor, the deviation over the resamples.
    exponent_error : float
        Standard error of the exponent, the deviation over the resamples.
    prefactor_ci : tuple of float
        Percentile interval (lo, hi) of the prefactor.
    exponent_ci : tuple of float
        Percentile interval (lo, hi) of the exponent.
    level : float
        Coverage of the intervals and of the band.
    resamples : int
        Number of resamples.
    paths : int
        Number of paths.
    points : int
        Number of abscissae.
    log_prefactor : float
        Logarithm of the prefactor, in range where the prefactor is 0 or inf.
    log_prefactors : ndarray, shape (resamples,)
        Logarithms of the prefactors of the fits to the resamples.
    exponents : ndarray, shape (resamples,)
        Exponents of the fits to the resamples.

    Examples
    --------
    >>> from wflow import fits
    >>> fit = fits.power_law([1, 2, 4], [[3.0], [6.0], [12.0]])
    >>> round(float(fit(8)), 6)
    24.0
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
    log_prefactor: float = field(repr=False, compare=False)
    log_prefactors: FloatArray = field(repr=False, compare=False)
    exponents: FloatArray = field(repr=False, compare=False)

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Return the value of the fit: a x^b at x > 0, of any shape."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_prefactor + self.exponent * np.log(_positive(x, "x")))

    def band(self, x: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the pointwise percentile band of the fitted curve.

        Parameters
        ----------
        x : array_like, shape (m,)
            Positive numbers.

        Returns
        -------
        lo : ndarray, shape (m,)
            Quantile (1 - level)/2 over the resamples r of a_r x^b_r.
        hi : ndarray, shape (m,)
            Quantile (1 + level)/2.

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
        """Return the numbers of the fit for JSON, without the resamples; NaN becomes None.

        Returns
        -------
        dict
            Numbers by name.
        """
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
    r"""Fit y = a x^b by least squares in log-log through the means over the paths.

    Parameters
    ----------
    x : array_like, shape (m,)
        Positive abscissae, at least two different values.
    y_paths : array_like, shape (m, paths)
        Positive values of every path.
    level : float, default 0.95
        Coverage of the intervals, between 0 and 1.
    resamples : int, default 2000
        Number of resamples, >= 1.
    seed : int, default 0
        Number >= 0; one seed gives the same numbers.

    Returns
    -------
    PowerLaw
        The fit.

    Raises
    ------
    InputError
        For wrong shapes, fewer than two different x, values that are not positive and finite, or
        level, resamples, seed out of range.

    Notes
    -----
    (log a, b) minimises

    .. math:: \sum_k \bigl( \log \bar y_k - \log a - b \log x_k \bigr)^2

    with the means over the paths. Each resample of the percentile bootstrap [1]_ draws as many
    paths with replacement, the same ones for every x: a path number stands for the same noise at
    every x, so its values are dependent and go together. With few paths (under about 10) such
    intervals are somewhat too short.

    References
    ----------
    .. [1] Efron and Tibshirani, *An Introduction to the Bootstrap*, Chapman and Hall (1993),
       chapter 13.

    Examples
    --------
    >>> from wflow import fits
    >>> fit = fits.power_law([1, 2, 4], [[3.0, 3.0], [1.5, 1.5], [0.75, 0.75]])
    >>> round(fit.prefactor, 6), round(fit.exponent, 6)
    (3.0, -1.0)
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
    level, resamples, paths = number(level, "level"), len(fit.slopes), y.shape[1]
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
        log_prefactor=fit.intercept,
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
    r"""Fit y = a + s x by least squares to a function of the means over the paths.

    Parameters
    ----------
    x : array_like, shape (m,)
        Abscissae, at least two different values.
    y_paths : array_like, shape (m, paths)
        Values of every path.
    of : callable, default the means themselves
        Function of means (..., m), such as `np.log`; resamples where it is not finite make the
        interval NaN.
    level : float, default 0.95
        Coverage of the interval, between 0 and 1.
    resamples : int, default 2000
        Number of resamples, >= 1.
    seed : int or numpy.random.Generator, default 0
        Number >= 0, or a generator that draws the paths.

    Returns
    -------
    Line
        The fit.

    Raises
    ------
    InputError
        For wrong shapes, values that are not finite, fewer than two different x, a function that
        does not map means (..., m) to numbers (..., m), or level, resamples, seed out of range.

    Notes
    -----
    (a, s) minimises

    .. math:: \sum_k \bigl( f(\bar y)_k - a - s x_k \bigr)^2

    with the means over the paths and the function `of`. Each resample of the bootstrap [1]_ draws
    as many paths with replacement, the same ones for every x, as in `power_law`, which is a line in
    logarithms.

    References
    ----------
    .. [1] Efron and Tibshirani, *An Introduction to the Bootstrap*, Chapman and Hall (1993),
       chapter 13.

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
    # Means may lie outside the domain of `of`, and squares beyond the range of floats.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        means = _applied(of, y.mean(axis=1))
        intercept, slope = _line(x, means)
        if y.shape[1] > 1:
            for part, drawn in resampled_means(y, resamples, rng):
                intercepts[part], slopes[part] = _line(x, _applied(of, drawn))
        residual = np.sum((means - (intercept + slope * x)) ** 2)
    return Line(
        intercept=float(intercept),
        slope=float(slope),
        residual=float(residual),
        slope_ci=interval(slopes, level),
        means=means,
        intercepts=intercepts,
        slopes=slopes,
    )


def mean_and_error(
    samples: ArrayLike, axis: int = -1, *, finite: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Return the mean over independent samples and its standard error.

    Parameters
    ----------
    samples : array_like, shape (..., N, ...)
        Real samples.
    axis : int, default -1
        The axis of the samples.
    finite : bool, default True
        Whether samples that are not finite are refused. False passes them on, for tables.

    Returns
    -------
    mean : ndarray of float64
        Means, without that axis.
    error : ndarray of float64
        Errors s / sqrt(N), with s^2 formed with N - 1; NaN where N = 1.

    Raises
    ------
    InputError
        For values that are not real finite numbers, an axis that does not exist, or no samples.

    Examples
    --------
    >>> from wflow import fits
    >>> mean, error = fits.mean_and_error([1.0, 3.0])
    >>> float(mean), float(error)
    (2.0, 1.0)
    """
    values = reals(samples, "samples", finite=switch(finite, "finite"))
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
        error = values.std(axis=axis, ddof=1) / np.sqrt(count)
        if not np.isfinite(error).all() and np.isfinite(values).all():  # squares, or the sum
            largest = np.abs(values).max()
            scaled = values / largest
            mean = np.where(np.isfinite(mean), mean, largest * scaled.mean(axis=axis))
            others = largest * (scaled.std(axis=axis, ddof=1) / np.sqrt(count))
            error = np.where(np.isfinite(error), error, others)
        return mean, error


def json_number(value: Any) -> float | None:
    """Return a number as JSON has it: NaN and infinity, which it lacks, become None.

    Parameters
    ----------
    value : float
        A number.

    Returns
    -------
    float or None
        The number; None where it is not finite.

    Raises
    ------
    InputError
        For anything but one real number.

    Examples
    --------
    >>> from wflow import fits
    >>> fits.json_number(1.5), fits.json_number(float("nan"))
    (1.5, None)
    """
    given = reals(value, "value", finite=False)
    if given.ndim:
        raise InputError(f"value has shape {given.shape}: expected one number")
    return float(given) if np.isfinite(given) else None


def _applied(of: Callable[[FloatArray], FloatArray], means: FloatArray) -> FloatArray:
    try:
        found = of(means)
    except Exception as error:  # whatever the function does
        raise InputError(
            f"of is {shown(of)}: expected a function of means (..., m), such as np.log; it raised "
            f"{type(error).__name__}: {error}"
        ) from error
    return returned(found, means.shape, f"of, of means {means.shape},", finite=False)


def _line(x: FloatArray, y: FloatArray) -> tuple[Any, Any]:
    """Return intercept and slope of the least-squares line through y (..., m) over x (m,)."""
    centred = x - x.mean()
    exponent = np.frexp(np.abs(centred).max())[1]  # squares of large x overflow
    centred = np.ldexp(centred, -exponent)  # which rounds nothing
    slope = np.ldexp(np.einsum("...m,m->...", y, centred) / np.sum(centred**2), -exponent)
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
    """Yield means (k, m) of samples (m, paths) over paths drawn with replacement, in blocks.

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
    """Return the percentile interval: the quantiles (1 - level)/2 and (1 + level)/2."""
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
