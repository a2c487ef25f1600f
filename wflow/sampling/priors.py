r"""Priors: convex potentials with a proximal map and the normaliser of their proximal kernel.

A prior :math:`\psi` acts on clouds of any shape (..., d). The regularised Wasserstein proximal
operator of step h and inverse temperature beta needs three things of it: the proximal map, its
derivative, and the normaliser of its kernel. A custom prior is a subclass of `Prior` with `value`
and `prox`, or a sum of functions of one coordinate made by `separable`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from wflow._core.checks import check_choice, function, number, positive, reals, returned, shown
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow._core.reprs import ShortRepr, Shown, value_text

__all__ = ["L1", "NoPrior", "Prior", "SmoothL1", "separable"]

FloatArray = NDArray[np.float64]

ABSORBED = 0.05
"""Largest beta lambda^2 h for which soft thresholding takes no spread from a cloud."""


class Prior(ABC):
    r"""A convex potential :math:`\psi` with its proximal map; the base class of all priors.

    A subclass defines `value`, `prox` and `prox_derivative`. The normaliser of the kernel [1]_ is
    by default its Laplace approximation, for which the kernels "exact" and "laplace" agree.

    Notes
    -----
    The proximal map and the Moreau envelope of step h are

    .. math::

        S(x) = \operatorname{argmin}_z \Big\{\psi(z) + \frac{|x - z|^2}{2h}\Big\}, \qquad
        e_h(x) = \min_z \Big\{\psi(z) + \frac{|x - z|^2}{2h}\Big\},

    and the normaliser is

    .. math::

        Z(y) = \int \exp\Big(-\frac{\beta}{2}\Big(\psi(z) + \frac{|z - y|^2}{2h}\Big)\Big)\,dz.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, equation (13).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> class Halfspace(sampling.Prior):
    ...     "The indicator of x >= 0."
    ...     def value(self, x):
    ...         return np.where(np.all(x >= 0, axis=-1), 0.0, np.inf)
    ...     def prox(self, x, h):
    ...         return np.maximum(x, 0.0)
    ...     def prox_derivative(self, x, h):
    ...         return np.where(x > 0, 1.0, 0.0)
    ...     def envelope(self, x, h):
    ...         return np.sum(np.minimum(x, 0.0) ** 2, axis=-1) / (2 * h)
    >>> Halfspace().prox(np.array([[1.0, -2.0]]), 0.1)
    array([[1., 0.]])
    """

    @abstractmethod
    def value(self, x: ArrayLike) -> FloatArray:
        r"""Return the potential :math:`\psi(x)`.

        Parameters
        ----------
        x : array_like, shape (..., d)
            Points.

        Returns
        -------
        ndarray, shape (...)
            Values.
        """

    @abstractmethod
    def prox(self, x: ArrayLike, h: float) -> FloatArray:
        """Return the proximal map S(x) of step h.

        Parameters
        ----------
        x : array_like, shape (..., d)
            Points.
        h : float
            Step, > 0.

        Returns
        -------
        ndarray, shape (..., d)
            Images.
        """

    @abstractmethod
    def prox_derivative(self, x: ArrayLike, h: float) -> FloatArray:
        """Return the derivative of the proximal map at x; at a kink, one of its one-sided values.

        Parameters
        ----------
        x : array_like, shape (..., d)
            Points.
        h : float
            Step, > 0.

        Returns
        -------
        ndarray, shape (..., d) or (..., d, d)
            The diagonal of the derivative, or the whole of it for a prior whose coordinates are
            coupled; between 0 and the identity for a convex prior.
        """

    def envelope(self, x: ArrayLike, h: float) -> FloatArray:
        r"""Return the Moreau envelope :math:`e_h(x) = \psi(S(x)) + |x - S(x)|^2/(2h)`.

        Parameters
        ----------
        x : array_like, shape (..., d)
            Points.
        h : float
            Step, > 0.

        Returns
        -------
        ndarray, shape (...)
            Values.
        """
        x = _points(x)
        image = self.prox(x, h)
        return self.value(image) + np.sum((x - image) ** 2, axis=-1) / (2 * h)

    def log_normaliser(self, y: ArrayLike, *, h: float, beta: float) -> FloatArray:
        r"""Return the logarithm of the normaliser Z(y): here its Laplace approximation.

        Parameters
        ----------
        y : array_like, shape (..., d)
            Points.
        h : float
            Step, > 0.
        beta : float
            Inverse temperature, > 0.

        Returns
        -------
        ndarray, shape (...)
            :math:`\tfrac{d}{2}\log(4\pi h/\beta) - \tfrac{\beta}{2} e_h(y)`.
        """
        y, (h, beta) = _points(y), step_of(h, beta)
        width = 0.5 * y.shape[-1] * math.log(4 * math.pi * h / beta)
        return width - 0.5 * beta * self.envelope(y, h)

    def largest_step(self, beta: float) -> float:
        r"""Return the largest step for which the proximal map takes no spread from a cloud.

        Parameters
        ----------
        beta : float
            Inverse temperature, > 0.

        Returns
        -------
        float
            For the L1 norm :math:`0.05/(\beta\lambda^2)`; infinite where nothing is known.
        """
        return math.inf


@dataclass(frozen=True, repr=False)
class NoPrior(ShortRepr, Prior):
    r"""The prior :math:`\psi = 0`: the interaction is attention with a Gaussian kernel.

    Examples
    --------
    >>> from wflow import sampling
    >>> sampling.NoPrior().prox([[1.0, 2.0]], 0.1)
    array([[1., 2.]])
    """

    def value(self, x: ArrayLike) -> FloatArray:
        return np.zeros(_points(x).shape[:-1])

    def prox(self, x: ArrayLike, h: float) -> FloatArray:
        positive(h, "h")
        return _points(x)

    def prox_derivative(self, x: ArrayLike, h: float) -> FloatArray:
        positive(h, "h")
        return np.ones_like(_points(x))


@dataclass(frozen=True, repr=False)
class L1(ShortRepr, Prior):
    r"""The prior :math:`\psi(x) = \lambda|x|_1`, whose proximal map is soft thresholding.

    Parameters
    ----------
    lam : float
        Weight lambda, >= 0.

    Raises
    ------
    InputError
        For a weight that is no finite number >= 0.

    Notes
    -----
    .. math:: S(x) = \operatorname{sign}(x)\max(|x| - \lambda h, 0);

    the paper [1]_ leaves the sign out. The normaliser is a product over the coordinates. With
    :math:`a = \beta/(4h)`, :math:`c = \beta\lambda/2` and :math:`\mu = \lambda h`,

    .. math::

        Z(y) = \frac{1}{2}\sqrt{\frac{\pi}{a}}\, e^{-a y^2}\big[
            \operatorname{erfcx}(\sqrt{a}(\mu - y)) + \operatorname{erfcx}(\sqrt{a}(\mu + y))\big]

    with :math:`\operatorname{erfcx}(s) = e^{s^2}\operatorname{erfc}(s)`, evaluated without overflow
    or cancellation for any y.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, section 2.3.

    Examples
    --------
    >>> from wflow import sampling
    >>> prior = sampling.L1(2.0)
    >>> prior.prox([[1.0, -0.1, -3.0]], 0.25)
    array([[ 0.5, -0. , -2.5]])
    >>> prior.log_normaliser([[0.3, 50.0]], h=0.1, beta=1.0).round(6)
    array([-50.059602])
    """

    lam: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lam", number(self.lam, "lam", least=0.0))

    def value(self, x: ArrayLike) -> FloatArray:
        return self.lam * np.sum(np.abs(_points(x)), axis=-1)

    def prox(self, x: ArrayLike, h: float) -> FloatArray:
        x, h = _points(x), positive(h, "h")
        return np.sign(x) * np.maximum(np.abs(x) - self.lam * h, 0.0)

    def prox_derivative(self, x: ArrayLike, h: float) -> FloatArray:
        x, h = _points(x), positive(h, "h")
        threshold = self.lam * h
        return np.where((np.abs(x) > threshold) | (threshold == 0), 1.0, 0.0)

    def log_normaliser(self, y: ArrayLike, *, h: float, beta: float) -> FloatArray:
        y = np.abs(_points(y))
        h, beta = step_of(h, beta)
        a, c, mu = beta / (4 * h), beta * self.lam / 2, self.lam * h
        # For y >= mu the integral over z > 0 is nearly that over the line, and the rest is small.
        root = math.sqrt(a)
        near, far = (special.erfcx(root * np.abs(part)) for part in (y - mu, y + mu))
        with np.errstate(all="ignore"):
            tail = 0.5 * np.exp(-a * (y - mu) ** 2) * (far - near)
            inside = np.log(0.5 * (near + far)) - a * y * y
        logs = np.where(y < mu, inside, np.log1p(tail) - c * (y - mu / 2))
        return np.sum(logs + 0.5 * math.log(math.pi / a), axis=-1)

    def largest_step(self, beta: float) -> float:
        beta = positive(beta, "beta")
        return ABSORBED / (beta * self.lam**2) if self.lam > 1e-100 else math.inf


@dataclass(frozen=True, repr=False)
class SmoothL1(ShortRepr, Prior):
    r"""A smooth form of the L1 norm, whose proximal map has a derivative everywhere.

    Parameters
    ----------
    lam : float
        Weight lambda, >= 0.

    Raises
    ------
    InputError
        For a weight that is no finite number >= 0.

    Notes
    -----
    The prior is defined by its Moreau envelope, a smooth form of Huber's function:

    .. math::

        e_h(x) = \lambda^2 h \sum_i \log\cosh\frac{x_i}{\lambda h}, \qquad
        S(x) = x - \lambda h \tanh\frac{x}{\lambda h},

    so that :math:`\psi` depends on h, and tends to :math:`\lambda|x|_1` as h tends to 0; `value`
    returns this limit. The normaliser is computed by quadrature.

    Examples
    --------
    >>> from wflow import sampling
    >>> sampling.SmoothL1(2.0).prox([[1.0, -0.5, -3.0]], 0.25).round(4)
    array([[ 0.518 , -0.1192, -2.5   ]])
    """

    lam: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lam", number(self.lam, "lam", least=0.0))

    def value(self, x: ArrayLike) -> FloatArray:
        return self.lam * np.sum(np.abs(_points(x)), axis=-1)

    def prox(self, x: ArrayLike, h: float) -> FloatArray:
        x, width = _points(x), self.lam * positive(h, "h")
        return width * _minus_tanh(x / width) if width > 0 else x

    def prox_derivative(self, x: ArrayLike, h: float) -> FloatArray:
        x, width = _points(x), self.lam * positive(h, "h")
        return np.tanh(x / width) ** 2 if width > 0 else np.ones_like(x)

    def envelope(self, x: ArrayLike, h: float) -> FloatArray:
        x, width = _points(x), self.lam * positive(h, "h")
        if width == 0:
            return np.zeros(x.shape[:-1])
        return self.lam * width * np.sum(_log_cosh(x / width), axis=-1)

    def log_normaliser(self, y: ArrayLike, *, h: float, beta: float) -> FloatArray:
        y, (h, beta) = _points(y), step_of(h, beta)
        width = self.lam * h
        if width == 0:
            return np.full(y.shape[:-1], 0.5 * y.shape[-1] * math.log(4 * math.pi * h / beta))

        def log_integral(y: FloatArray) -> FloatArray:
            # With z = S(width u): the exponent is smooth in u, and dz = width tanh(u)^2 du.
            image = self.prox(y, h)
            ends = [np.sign(s) * (np.abs(s) / width + 1) for s in (image - reach, image + reach)]
            breaks = [ends[0], y / width, np.clip(np.zeros_like(y), *ends), ends[1]]
            return _log_integral(log_integrand, y, breaks)

        def log_integrand(u: FloatArray, y: FloatArray) -> FloatArray:
            square = np.tanh(u) ** 2
            potential = self.lam * width * (_log_cosh(u) - square / 2)
            away = (width * _minus_tanh(u) - y) ** 2 / (2 * h)
            with np.errstate(divide="ignore"):
                return np.log(width * square) - 0.5 * beta * (potential + away)

        reach = _REACH * math.sqrt(4 * h / beta)
        return np.sum(_from_table(log_integral, y, math.sqrt(4 * h / beta)), axis=-1)

    def largest_step(self, beta: float) -> float:
        return L1(self.lam).largest_step(beta)


class _Separable(Shown, Prior):
    """A sum of one convex function over the coordinates: see `separable`."""

    def __init__(
        self,
        value: Callable[[FloatArray], ArrayLike],
        derivative: Callable[[FloatArray], ArrayLike],
        prox: Callable[[FloatArray, float], ArrayLike] | None,
        kinks: FloatArray,
        normaliser: str,
    ) -> None:
        self._value, self._derivative, self._prox = value, derivative, prox
        self._kinks, self._normaliser = kinks, normaliser

    def _title(self) -> str:
        return "separable"

    def _parameter_texts(self) -> Mapping[str, str]:
        given: dict[str, Any] = {"value": self._value, "derivative": self._derivative}
        given |= {} if self._prox is None else {"prox": self._prox}
        return {name: value_text(function) for name, function in given.items()}

    def value(self, x: ArrayLike) -> FloatArray:
        return np.sum(self._of(self._value, "value", _points(x)), axis=-1)

    def prox(self, x: ArrayLike, h: float) -> FloatArray:
        x, h = _points(x), positive(h, "h")
        if self._prox is not None:
            return self._of(lambda z: self._prox(z, h), "prox", x)  # type: ignore[misc]
        # z + h psi'(z) increases, and the slope at S(x) is no larger than the one at x.
        slope = self._of(self._derivative, "derivative", x)
        low, high = np.minimum(x, x - h * slope), np.maximum(x, x - h * slope)
        ends = [self._of(self._derivative, "derivative", end) for end in (low, high)]
        if np.any(ends[1] < ends[0] - 1e-9 * (1 + np.abs(ends[0]))):
            raise InputError("derivative decreases: expected the derivative of a convex function")
        for _ in range(_BISECTIONS):
            middle = low + (high - low) / 2
            above = middle + h * self._of(self._derivative, "derivative", middle) > x
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return low + (high - low) / 2

    def prox_derivative(self, x: ArrayLike, h: float) -> FloatArray:
        x = _points(x)
        step = 1e-5 * np.maximum(np.abs(x), math.sqrt(positive(h, "h")))
        return np.clip((self.prox(x + step, h) - self.prox(x - step, h)) / (2 * step), 0.0, 1.0)

    def log_normaliser(self, y: ArrayLike, *, h: float, beta: float) -> FloatArray:
        y, (h, beta) = _points(y), step_of(h, beta)
        if self._normaliser == "laplace":
            return super().log_normaliser(y, h=h, beta=beta)

        def log_integrand(z: FloatArray, y: FloatArray) -> FloatArray:
            return -0.5 * beta * (self._of(self._value, "value", z) + (z - y) ** 2 / (2 * h))

        def log_integral(y: FloatArray) -> FloatArray:
            image = self.prox(y, h)
            low, high = image - reach, image + reach
            inner = [np.clip(np.full_like(y, kink), low, high) for kink in self._kinks]
            return _log_integral(log_integrand, y, [low, image, *inner, high])

        reach = _REACH * math.sqrt(4 * h / beta)
        return np.sum(_from_table(log_integral, y, math.sqrt(4 * h / beta)), axis=-1)

    @staticmethod
    def _of(function: Callable[..., ArrayLike], name: str, x: FloatArray) -> FloatArray:
        result = np.asarray(function(x), dtype=np.float64)
        if result.shape != x.shape:
            raise InputError(
                f"{name} of an array of shape {x.shape} has shape {result.shape}: expected a "
                "function of one coordinate that acts on every entry of an array"
            )
        if not np.all(np.isfinite(result)):
            raise InputError(f"{name} is not finite everywhere: expected finite values")
        return result


def separable(
    value: Callable[[FloatArray], ArrayLike],
    derivative: Callable[[FloatArray], ArrayLike],
    *,
    prox: Callable[[FloatArray, float], ArrayLike] | None = None,
    kinks: Sequence[float] = (),
    normaliser: str = "quadrature",
) -> Prior:
    r"""Return the prior :math:`\psi(x) = \sum_i g(x_i)` of a convex function g of one coordinate.

    Parameters
    ----------
    value : callable
        The function g, on arrays of any shape, entry by entry; finite and convex.
    derivative : callable
        Its derivative, at a kink any number between the one-sided ones.
    prox : callable, optional
        Proximal map (x, h), entry by entry. None finds it by bisection, to rounding.
    kinks : sequence of float, default ()
        Points where g has no derivative, at which integrals are split.
    normaliser : {"quadrature", "laplace"}, default "quadrature"
        Whether the normaliser is integrated, or approximated.

    Returns
    -------
    Prior
        The prior.

    Raises
    ------
    InputError
        For arguments that are no functions, kinks that are not finite, another normaliser, and, in
        use, for functions that do not act entry by entry, are not finite, or not convex.

    Notes
    -----
    Quadrature is the double exponential rule on the pieces between S(y), the kinks, and the points
    beyond which the integrand is below 1e-18 of its maximum: 1e-12 for a piecewise analytic g.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> prior = sampling.separable(np.abs, np.sign, kinks=[0.0])
    >>> prior.prox([[1.0, 0.05, -2.0]], 0.25).round(12) + 0.0
    array([[ 0.75,  0.  , -1.75]])
    >>> y = [[0.3, -2.0]]
    >>> exact = sampling.L1(1.0).log_normaliser(y, h=0.1, beta=1.0)
    >>> bool(np.allclose(prior.log_normaliser(y, h=0.1, beta=1.0), exact, rtol=0, atol=1e-12))
    True
    """
    for name, given in (("value", value), ("derivative", derivative)):
        function(given, name, "one coordinate")
    if prox is not None:
        function(prox, "prox", "(x, h), or None")
    check_choice("normaliser", normaliser, ("quadrature", "laplace"))
    points = np.sort(np.atleast_1d(reals(kinks, "kinks")))
    if points.ndim != 1:
        raise InputError(f"kinks are {shown(kinks)}: expected a list of numbers")
    return _Separable(value, derivative, prox, points, normaliser)


def step_of(h: Any, beta: Any) -> tuple[float, float]:
    """Check a step h and an inverse temperature beta, and return them as floats."""
    h, beta = positive(h, "h"), positive(beta, "beta")
    for name, value in (("h", h), ("beta", beta)):
        if not 1e-100 <= value <= 1e100:
            raise InputError(f"{name} is {value:.3g}: expected a number from 1e-100 to 1e100")
    return h, beta


def too_long(prior: Prior, *, h: float, beta: float) -> bool:
    """Return whether a step is longer than `Prior.largest_step`, up to rounding."""
    return h > prior.largest_step(beta) * (1 + 1e-9)


def warn_of_absorption(prior: Prior, *, h: float, beta: float, share: float | None = None) -> None:
    """Warn of a step after which coordinates near zero have lost their spread."""
    largest = prior.largest_step(beta)
    many = "coordinates near zero" if share is None else f"{100 * share:.3g} % of the coordinates"
    warn(
        f"h is {h:.3g}, above {largest:.3g}: the step absorbs {many}, since the proximal map takes "
        f"their spread; take h <= {largest:.3g}, for which beta lambda^2 h <= {ABSORBED} "
        "with the L1 norm",
        AccuracyWarning,
    )


def as_prior(value: Any) -> Prior:
    """Check that an argument is a prior."""
    if not isinstance(value, Prior):
        raise InputError(
            f"prior is {shown(value)}: expected a prior, such as sampling.L1(2.0), "
            "sampling.NoPrior(), or a subclass of sampling.Prior"
        )
    return value if type(value).__module__ == __name__ else _Checked(value)


class _Checked(Prior):
    """A custom prior, whose results are checked for their shapes and to be finite.

    Its value may be infinite: the potential of a constraint is.
    """

    def __init__(self, prior: Prior) -> None:
        self._prior = prior

    def value(self, x: ArrayLike) -> FloatArray:
        return self._of("value", self._prior.value(x), np.shape(x)[:-1], finite=False)

    def prox(self, x: ArrayLike, h: float) -> FloatArray:
        return self._of("prox", self._prior.prox(x, h), np.shape(x))

    def prox_derivative(self, x: ArrayLike, h: float) -> FloatArray:
        shape = np.shape(x)
        found = self._prior.prox_derivative(x, h)
        return self._of("prox_derivative", found, shape, other=(*shape, shape[-1]))

    def envelope(self, x: ArrayLike, h: float) -> FloatArray:
        return self._of("envelope", self._prior.envelope(x, h), np.shape(x)[:-1])

    def log_normaliser(self, y: ArrayLike, *, h: float, beta: float) -> FloatArray:
        found = self._prior.log_normaliser(y, h=h, beta=beta)
        return self._of("log_normaliser", found, np.shape(y)[:-1])

    def largest_step(self, beta: float) -> float:
        return self._prior.largest_step(beta)

    def _of(
        self, what: str, found: ArrayLike, shape: tuple[int, ...], **options: Any
    ) -> FloatArray:
        return returned(found, shape, f"{type(self._prior).__name__}.{what}", **options)


# Functions of one coordinate
# ---------------------------

_REACH = 6.5  # the integrand is below exp(-6.5^2) = 4e-19 of its maximum beyond
_BISECTIONS = 64


def _points(x: ArrayLike) -> FloatArray:
    points = reals(x, "x")
    if points.ndim == 0:
        raise InputError(f"x is {shown(x)}: expected points of shape (..., d)")
    return points


def _log_cosh(u: FloatArray) -> FloatArray:
    """Return log cosh u without overflow."""
    size = np.abs(u)
    near = np.sinh(np.minimum(size, 1.0) / 2) ** 2  # (cosh u - 1)/2
    return np.where(size < 1, np.log1p(2 * near), size + np.log1p(np.exp(-2 * size)) - math.log(2))


def _minus_tanh(u: FloatArray) -> FloatArray:
    """Return u - tanh u, by its series near zero where the difference cancels."""
    square = np.minimum(u * u, 0.01)
    series = np.zeros_like(square)
    for coefficient in (-929569 / 638512875, 21844 / 6081075, -1382 / 155925, 62 / 2835, -17 / 315,
                        2 / 15, -1 / 3):  # fmt: skip
        series = series * square - coefficient
    return np.where(np.abs(u) < 0.1, u * square * series, u - np.tanh(u))


def _double_exponential(step: float = 0.035, limit: float = 3.2) -> tuple[FloatArray, FloatArray]:
    """Return nodes on (0, 1) and logarithms of the weights of the double exponential rule."""
    t = np.arange(-limit, limit + step / 2, step)
    half = 0.5 * math.pi * np.sinh(t)
    log_weights = np.log(step * 0.25 * math.pi * np.cosh(t)) - 2 * _log_cosh(half)
    return special.expit(2 * half), log_weights


_NODES, _LOG_WEIGHTS = _double_exponential()


def _log_integral(
    log_integrand: Callable[[FloatArray, FloatArray], FloatArray],
    y: FloatArray,
    breaks: list[FloatArray],
) -> FloatArray:
    """Return the log of the integral of exp(log_integrand(z, y)) over z, for every entry of y.

    `breaks` are the ends and the points between at which the integrand is not smooth, or largest;
    they need not be in order.
    """
    edges = np.sort(np.stack(breaks), axis=0)
    result = np.full(y.shape, -np.inf)
    for low, high in itertools.pairwise(edges):
        length = high - low
        z = low[..., None] + length[..., None] * _NODES
        logs = log_integrand(z, np.broadcast_to(y[..., None], z.shape)) + _LOG_WEIGHTS
        with np.errstate(divide="ignore"):
            piece = special.logsumexp(logs, axis=-1) + np.log(length)
        result = np.logaddexp(result, piece)
    return result


_NODES_OF_PANEL = 16


def _from_table(
    function: Callable[[FloatArray], FloatArray], y: FloatArray, width: float
) -> FloatArray:
    """Return values of a log normaliser at y, interpolated where that takes fewer of them.

    Z(y + i eta)/Z(y) is up to a phase the characteristic function of a strongly log-concave
    density, whose variance is at most width^2/2: it has no zero for ``|eta| < width``, so that the
    interpolation on panels of half the width converges like 8^-k in the number of nodes.
    """
    flat = y.reshape(-1)
    panel = np.floor(2 * flat / width)
    panels, place = np.unique(panel, return_inverse=True)
    if _NODES_OF_PANEL * panels.size >= flat.size:
        return function(y)
    k = np.arange(_NODES_OF_PANEL)
    angle = np.pi * (k + 0.5) / _NODES_OF_PANEL
    values = function(0.5 * width * (panels[:, None] + 0.5 * (1 + np.cos(angle))))
    coefficients = 2 / _NODES_OF_PANEL * values @ np.cos(angle[:, None] * k)
    coefficients[:, 0] /= 2
    at = 2 * (2 * flat / width - panel) - 1
    # Clenshaw's recursion for the Chebyshev series of each panel.
    ahead = after = np.zeros_like(flat)
    for c in coefficients.T[:0:-1]:
        ahead, after = c[place] + 2 * at * ahead - after, ahead
    return (coefficients[place, 0] + at * ahead - after).reshape(y.shape)
