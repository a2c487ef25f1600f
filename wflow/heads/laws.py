"""Head laws: evolution of the interaction matrices D_h in time (docs/theory/head_laws.md).

A law defines its drift f(D, t), the size sigma of its noise, and the increment of the heads in one
time step. A custom law is a subclass of `HeadLaw` with its own `drift`, or a `HeadLaw` made from
two callables. Run files store its parameters (`to_config`), from which it is restored
(`from_config`); `register` makes a custom class known by its name.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import (
    check_choice,
    made_of,
    number,
    read_only,
    reading,
    reals,
    returned,
    shown,
    switch,
    times_of,
    whole,
)
from wflow._core.errors import InputError, WflowWarning, warn
from wflow._core.identity import Described, Registry, check_comparable, of_bytecode
from wflow._core.reprs import ShortRepr, value_text
from wflow.heads.matrices import Matrices, as_matrices, check_fits, is_symmetric

__all__ = [
    "QKV",
    "CompoundPoisson",
    "Frozen",
    "HeadLaw",
    "OrnsteinUhlenbeck",
    "Oscillating",
    "Schedule",
    "Step",
    "law_config",
    "law_from_config",
    "register",
]


# The contract of a head law: drift, size of noise, one time step
# ---------------------------------------------------------------
# A law of wflow is known by its name and parameters, from which it can be made again. A custom law,
# a `HeadLaw` of functions or an instance of a subclass, is known by its fingerprint as well; what
# it returns is checked wherever a run uses it.


@dataclass(frozen=True)
class Step:
    """Increment of the heads in one time step: drift dt + noise.

    Parameters
    ----------
    drift : ndarray, shape (paths, heads, d, d), or None
        Drift per unit time; None for zero.
    noise : ndarray, shape (paths, heads, d, d), or None
        Noise sigma dW_h of the whole step; None for zero.
    sigma2 : ndarray, shape (paths, heads), or None
        Variance per unit time that belongs to the noise; None for zero.
    mean_noise : ndarray, shape (paths, heads, d, d), or None, default None
        Mean over the step of the noise since its start, for schemes of strong order 1.5.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> step = wflow.heads.Frozen().step(np.eye(2)[None, None], 0.0, 0.1, None)
    >>> step.drift is None and step.noise is None
    True
    """

    drift: Matrices | None
    noise: Matrices | None
    sigma2: NDArray[np.floating] | None
    mean_noise: Matrices | None = None


class HeadLaw(Described):
    r"""A law of the heads: the Itô equation dD_h = f(D, t) dt + sigma(D, t) dW_h.

    A custom law is a `HeadLaw` made from two functions, or a subclass with its own `drift` (and
    `diffusion`, `step`, `jump`, ...), each of which has a default.

    Parameters
    ----------
    drift : callable, optional
        Function f of (D, t), with D of shape (paths, heads, d, d) and read-only, whose value has
        that shape, or is one number or one matrix (d, d) for all. None for zero.
    diffusion : float or callable, optional
        Size sigma, or a function of (D, t) whose value has shape (paths, heads), or is one number.
        None for zero.
    symmetric : bool, default True
        Whether the law keeps symmetric heads symmetric. A law that does not has no energy.

    Raises
    ------
    InputError
        For a drift that is no function, and a diffusion that is neither a number >= 0 nor a
        function.

    Notes
    -----
    With `symmetric` the noise [1]_ is

    .. math:: dW_{\mathrm{sym}} = \sqrt{dt}\,\frac{Z + Z^T}{2},

    with Z iid standard normal: variance dt on the diagonal and dt/2 off it. Otherwise dW = sqrt(dt)
    Z.

    In the theory: :ref:`head laws <theory-head-laws>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 6.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> law = wflow.heads.HeadLaw(lambda D, t: -D, diffusion=0.1)
    >>> law.drift(np.ones((1, 2, 3, 3)), 0.0).shape
    (1, 2, 3, 3)
    >>> law.deterministic
    False
    """

    # Those of a subclass that does not call this constructor.
    _drift: Callable[[Matrices, float], ArrayLike] | None = None
    _diffusion: Callable[[Matrices, float], ArrayLike] | float | None = None
    symmetric: bool = True

    def __init__(
        self,
        drift: Callable[[Matrices, float], ArrayLike] | None = None,
        diffusion: Callable[[Matrices, float], ArrayLike] | float | None = None,
        *,
        symmetric: bool = True,
    ) -> None:
        if drift is not None and not callable(drift):
            raise InputError(f"drift is a {type(drift).__name__}: expected a function (D, t)")
        if diffusion is not None and not callable(diffusion):
            diffusion = number(diffusion, "diffusion", least=0.0)
        self._drift = drift
        self._diffusion = diffusion
        self.symmetric = switch(symmetric, "symmetric")

    @property
    def deterministic(self) -> bool:
        """Whether the law has no noise, so that schemes of higher order apply."""
        if type(self).diffusion is not HeadLaw.diffusion:
            return False
        return self._diffusion is None or (not callable(self._diffusion) and self._diffusion == 0)

    def drift(self, D: Matrices, t: float) -> Matrices | None:
        """Return the drift f(D, t).

        Parameters
        ----------
        D : ndarray, shape (paths, heads, d, d)
            Heads, read-only.
        t : float
            Time.

        Returns
        -------
        ndarray, shape (paths, heads, d, d), or None
            Drift per unit time; None where it is zero.
        """
        if self._drift is None:
            return None
        with _reading(self, "drift"):
            values = self._drift(read_only(D), t)
        return _fitting(values, D.shape, D.dtype, f"{_named(self, 'drift')}(D, {t:g})")

    def diffusion(self, D: Matrices, t: float) -> NDArray[np.floating] | None:
        """Return the size sigma(D, t) of the noise.

        Parameters
        ----------
        D : ndarray, shape (paths, heads, d, d)
            Heads, read-only.
        t : float
            Time.

        Returns
        -------
        ndarray, shape (paths, heads), or None
            Size per square root of unit time; None where it is zero.
        """
        if self.deterministic:
            return None
        values: Any = self._diffusion
        if callable(values):
            with _reading(self, "diffusion"):
                values = values(read_only(D), t)
        return _sigma(self, values, D, t)

    def step(self, D: Matrices, t: float, dt: float, normals: Matrices | None) -> Step:
        """Return what an Euler-Maruyama step adds to the heads.

        Parameters
        ----------
        D : ndarray, shape (paths, heads, d, d)
            Heads at the start of the step.
        t : float
            Start of the step.
        dt : float
            Length of the step.
        normals : ndarray, shape (paths, heads, d, d), or None
            Standard normal numbers; None where the law is deterministic.

        Returns
        -------
        Step
            Drift and noise of the step.
        """
        law = checked(self, D.shape[1:])
        sigma, drift = law.diffusion(D, t), law.drift(D, t)
        if sigma is None or normals is None:
            return Step(drift, None, None)
        noise = (sigma * math.sqrt(dt))[..., None, None] * self._increment(normals)
        return Step(drift, noise.astype(D.dtype, copy=False), sigma**2)

    def additive_step(
        self,
        D: Matrices,
        t: float,
        dt: float,
        normals: Matrices | None,
        mean_normals: Matrices | None,
    ) -> Step:
        r"""Return what a step of strong order 1.5 adds to the heads, under additive noise.

        Parameters
        ----------
        D : ndarray, shape (paths, heads, d, d)
            Heads at the start of the step.
        t : float
            Start of the step.
        dt : float
            Length of the step.
        normals, mean_normals : ndarray, shape (paths, heads, d, d), or None
            Standard normal numbers, independent of each other; None where the law is
            deterministic.

        Returns
        -------
        Step
            Drift, noise and mean noise of the step; its variance is the mean over the step.

        Notes
        -----
        With W the increment of the step, Z an independent copy of it, and sigma and sigma' the
        sizes at its ends, the noise is sigma' W - (sigma' - sigma) J and the mean noise
        sigma' J [1]_, where

        .. math:: J = \frac{1}{dt} \int_t^{t+dt} (W_s - W_t)\,ds
            = \frac{1}{2} \Bigl(W + \frac{Z}{\sqrt 3}\Bigr) .

        References
        ----------
        .. [1] Rössler, *Runge-Kutta methods for the strong approximation of solutions of stochastic
           differential equations*, SIAM J. Numer. Anal. 48 (2010), section 6.3, scheme SRA1.
        """
        law = checked(self, D.shape[1:])
        begin, end, drift = law.diffusion(D, t), law.diffusion(D, t + dt), law.drift(D, t)
        if normals is None or mean_normals is None or (begin is None and end is None):
            return Step(drift, None, None)
        begin, end = (np.zeros(D.shape[:2]) if size is None else size for size in (begin, end))
        W = math.sqrt(dt) * self._increment(normals)
        mean = (W + math.sqrt(dt / 3) * self._increment(mean_normals)) / 2
        noise = end[..., None, None] * W - (end - begin)[..., None, None] * mean
        mean = end[..., None, None] * mean
        return Step(
            drift,
            noise.astype(D.dtype, copy=False),
            (begin**2 + begin * end + end**2) / 3,
            mean.astype(D.dtype, copy=False),
        )

    def drift_within(self, t: float, dt: float) -> Callable[[Matrices, float], Matrices | None]:
        """Return the drift as the stages of one step from t to t + dt see it.

        Parameters
        ----------
        t : float
            Start of the step.
        dt : float
            Length of the step.

        Returns
        -------
        callable
            Function of (D, t) like `drift`.
        """
        return self.drift

    @property
    def jumps(self) -> bool:
        """Whether the heads may jump, so that the energy has parts that no rate shows.

        A run asks `jump` of such laws only.
        """
        return getattr(self.jump, "__func__", None) is not HeadLaw.jump

    def jump(
        self, D: Matrices, t: float, dt: float, generator: np.random.Generator | None
    ) -> Matrices | None:
        """Return the heads of one path right after t + dt if they jump within the step.

        Parameters
        ----------
        D : ndarray, shape (heads, d, d)
            Heads at t + dt without the jump, read-only.
        t : float
            Start of the step.
        dt : float
            Length of the step.
        generator : numpy.random.Generator or None
            Random numbers of this path and step; None where the law is deterministic. A law that
            jumps at random is not deterministic.

        Returns
        -------
        ndarray, shape (heads, d, d), or None
            Heads after the jump; None where they do not jump.
        """
        return None

    def breaks(self) -> NDArray[np.float64]:
        """Return the times at which heads, drift or values jump or bend: adaptive steps end there.

        A law that jumps at other times jumps at the next recorded time of an adaptive run.

        Returns
        -------
        ndarray, shape (times,)
            Increasing times; empty by default.
        """
        return np.empty(0)

    def initial(self) -> tuple[Matrices, Matrices | None] | None:
        """Return where the heads start, if the law prescribes it.

        Returns
        -------
        tuple or None
            Heads (heads, d, d), and value matrices of that shape or None; None, the default, where
            the law prescribes no start.
        """
        return None

    def values(self, t: float) -> Matrices | None:
        """Return the value matrices at a time, if the law prescribes them.

        Parameters
        ----------
        t : float
            Time.

        Returns
        -------
        ndarray, shape (heads, d, d), or None
            Value matrices; None for tied heads.
        """
        return None

    def values_within(self, t: float) -> Callable[[float], Matrices | None]:
        """Return the value matrices as the stages of one step from t see them.

        Parameters
        ----------
        t : float
            Start of the step.

        Returns
        -------
        callable
            Function of a time like `values`.
        """
        return self.values

    def check(self, heads: int, d: int) -> None:
        """Raise InputError if the law does not fit this many heads or this dimension.

        Parameters
        ----------
        heads : int
            Number of heads.
        d : int
            Dimension of the tokens.

        Raises
        ------
        InputError
            By laws with separate matrices; the base class accepts everything.
        """

    def to_config(self) -> dict[str, Any]:
        return {"symmetric": self.symmetric}

    def _parameter_texts(self) -> Mapping[str, str]:
        if type(self) is not HeadLaw:
            return super()._parameter_texts()
        given = {"drift": self._drift, "diffusion": self._diffusion}
        texts = {key: value_text(value) for key, value in given.items() if value is not None}
        return texts if self.symmetric else texts | {"symmetric": "False"}

    def _increment(self, normals: Matrices) -> Matrices:
        if not self.symmetric:
            return normals
        total = normals + normals.swapaxes(-1, -2)
        total /= 2
        return total


def law_config(law: HeadLaw) -> dict[str, Any]:
    """Return name and parameters of a law, as a run file holds them.

    A custom law is identified by its `fingerprint` (None, and the reason as `not_comparable`, where
    the law cannot be compared), and by `jumps` where it jumps.

    Parameters
    ----------
    law : HeadLaw
        A head law.

    Returns
    -------
    dict
        Name and parameters, and what identifies a custom law.

    Raises
    ------
    InputError
        For what is no law, and a `to_config` that returns anything but a dict, or one with a name
        of these.

    Examples
    --------
    >>> import wflow
    >>> wflow.heads.law_config(wflow.heads.Frozen())
    {'name': 'Frozen'}
    """
    if not isinstance(law, HeadLaw):
        raise InputError(f"law is {shown(law)}: expected a wflow.heads law")
    return LAWS.config(law, **({"jumps": True} if law.jumps else {}))


def start_of(law: HeadLaw) -> tuple[Matrices, Matrices | None] | None:
    """Check what `law.initial` returns: heads and value matrices (heads, d, d), or None."""
    start = law.initial()
    if start is None or not LAWS.is_custom(law):
        return start
    if not isinstance(start, tuple) or len(start) != 2:
        raise InputError(
            f"{_named(law, 'initial')}() returned a {type(start).__name__}: expected None, or a "
            "tuple of heads (heads, d, d) and value matrices of that shape or None"
        )
    scores = as_matrices(start[0], f"the heads of {_named(law, 'initial')}()")
    if scores.ndim != 3:
        raise InputError(
            f"{_named(law, 'initial')}() returned heads of shape {scores.shape}: expected "
            "(heads, d, d)"
        )
    if start[1] is None:
        return scores, None
    name = f"{_named(law, 'initial')}(), of value matrices,"
    return scores, _fitting(start[1], scores.shape, np.float64, name)


def checked(law: HeadLaw, shape: tuple[int, ...]) -> HeadLaw:
    """Return the law as a run uses it: a custom one gets D read-only, and its values are checked.

    shape : (heads, d, d)
    """
    # HeadLaw itself checks what its functions return.
    return _Checked(law, shape) if LAWS.is_custom(law) and type(law) is not HeadLaw else law


class _Checked(HeadLaw):
    """A custom law whose arguments and values are checked at every call."""

    def __init__(self, law: HeadLaw, shape: tuple[int, ...]) -> None:
        self._law, self._shape = law, shape

    @property
    def deterministic(self) -> bool:
        return bool(self._law.deterministic)

    def drift(self, D: Matrices, t: float) -> Matrices | None:
        return self._drift_by(self._law.drift, "drift", D, t)

    def diffusion(self, D: Matrices, t: float) -> NDArray[np.floating] | None:
        with _reading(self._law, "diffusion"):
            sigma = self._law.diffusion(read_only(D), t)
        return None if sigma is None else _sigma(self._law, sigma, D, t)

    def step(self, D: Matrices, t: float, dt: float, normals: Matrices | None) -> Step:
        return self._step("step", D, t, dt, normals)

    def additive_step(
        self,
        D: Matrices,
        t: float,
        dt: float,
        normals: Matrices | None,
        mean_normals: Matrices | None,
    ) -> Step:
        return self._step("additive_step", D, t, dt, normals, mean_normals)

    def _step(self, method: str, D: Matrices, t: float, dt: float, *normals: Any) -> Step:
        with _reading(self._law, method):
            step = getattr(self._law, method)(read_only(D), t, dt, *normals)
        name = f"{method}(D, {t:g}, {dt:g}, ...)"
        if not isinstance(step, Step):
            raise InputError(
                f"{_named(self._law, name)} returned a {type(step).__name__}: expected a "
                "wflow.heads.Step"
            )
        sigma2 = self._fitting(step.sigma2, D.shape[:2], np.float64, f"{name}.sigma2")
        if sigma2 is not None and np.any(sigma2 < 0):
            raise InputError(
                f"{_named(self._law, name)}.sigma2 is {sigma2.min():g}: a variance is >= 0"
            )
        return Step(
            self._fitting(step.drift, D.shape, D.dtype, f"{name}.drift"),
            self._fitting(step.noise, D.shape, D.dtype, f"{name}.noise"),
            sigma2,
            self._fitting(step.mean_noise, D.shape, D.dtype, f"{name}.mean_noise"),
        )

    def drift_within(self, t: float, dt: float) -> Callable[[Matrices, float], Matrices | None]:
        name = f"drift_within({t:g}, {dt:g})"
        drift = self._function(self._law.drift_within(t, dt), name)
        name = "drift" if drift == self._law.drift else name
        return lambda D, s: self._drift_by(drift, name, D, s)

    def _drift_by(self, drift: Callable[..., Any], name: str, D: Matrices, t: float) -> Any:
        with _reading(self._law, name):
            values = drift(read_only(D), t)
        return self._fitting(values, D.shape, D.dtype, f"{name}(D, {t:g})")

    def jump(
        self, D: Matrices, t: float, dt: float, generator: np.random.Generator | None
    ) -> Matrices | None:
        with _reading(self._law, "jump"):
            after = self._law.jump(read_only(D), t, dt, generator)
        return self._fitting(after, self._shape, np.float64, f"jump(D, {t:g}, {dt:g}, ...)")

    def breaks(self) -> NDArray[np.float64]:
        times = times_of(self._law.breaks(), f"{_named(self._law, 'breaks')}()")
        if times.ndim != 1 or np.any(np.diff(times) <= 0):
            raise InputError(
                f"{_named(self._law, 'breaks')}() returned {shown(times)}: expected a list of "
                "increasing times"
            )
        return times

    def values_within(self, t: float) -> Callable[[float], Matrices | None]:
        name = f"values_within({t:g})"
        values = self._function(self._law.values_within(t), name)
        return lambda s: self._fitting(values(s), self._shape, np.float64, f"{name}({s:g})")

    def _function(self, value: Any, name: str) -> Callable[..., Any]:
        if not callable(value):
            raise InputError(
                f"{_named(self._law, name)} returned a {type(value).__name__}: expected a function"
            )
        return value

    def _fitting(self, values: Any, shape: tuple[int, ...], kind: Any, name: str) -> Any:
        return None if values is None else _fitting(values, shape, kind, _named(self._law, name))


def _fitting(values: Any, shape: tuple[int, ...], kind: Any, name: str) -> Matrices:
    """Check what a function of a law returned, for all paths and heads."""
    return returned(values, shape, name, kind=kind, repeats=True)


def _sigma(law: HeadLaw, values: Any, D: Matrices, t: float) -> NDArray[np.floating]:
    """Check what `diffusion` of a law returned, as sigma (paths, heads)."""
    name = f"{_named(law, 'diffusion')}(D, {t:g})"
    sigma = _fitting(values, D.shape[:2], np.float64, name)
    if np.any(sigma < 0):
        raise InputError(f"{name} returned {sigma.min():g}: sigma is >= 0")
    return sigma


def _reading(law: HeadLaw, method: str) -> AbstractContextManager[None]:
    return reading("law", _named(law, method), "D")


def _named(law: HeadLaw, method: str) -> str:
    return f"{type(law).__name__}.{method}"


class Frozen(HeadLaw):
    """Heads that stay as they are: dD = 0, autonomous dynamics.

    Examples
    --------
    >>> import wflow
    >>> wflow.heads.Frozen().deterministic
    True
    """

    def __init__(self) -> None:  # a drift would be one that the configuration does not show
        super().__init__()

    def to_config(self) -> dict[str, Any]:
        return {}


class OrnsteinUhlenbeck(HeadLaw):
    r"""Mean reversion with symmetric noise: dD = rate (M - D) dt + sigma dW_sym.

    Parameters
    ----------
    mean : array_like, shape (d, d) or (heads, d, d)
        Symmetric mean M.
    rate : float, default 1.0
        Rate of reversion, > 0, per unit time.
    sigma2 : float, default 2.0
        Variance sigma^2 >= 0 of the noise, per unit time.
    exact : bool, default False
        Whether a step samples the Gaussian transition. With ``scheme="euler"`` `weight_power` is
        then that of the mean drift of the step. For the schemes "euler" and "sra1".

    Raises
    ------
    InputError
        For a negative rate or sigma2, a mean that is not square, finite or symmetric.

    Notes
    -----
    The stationary law [1]_ has mean M and variance sigma^2/(2 rate) on the diagonal and half of
    that off it. The exact transition over a step is

    .. math::

        D(t + dt) = M + e^{-r\,dt} (D(t) - M) + \sigma \sqrt{\frac{1 - e^{-2 r\,dt}}{2 r}}\; N

    with the rate r, and N of unit variance on the diagonal and 1/2 off it. The experiments of [1]_
    take M = I, rate 1 and sigma^2 = 2.

    In the theory: :ref:`Ornstein-Uhlenbeck heads <theory-ornstein-uhlenbeck>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 6 and
       eq. 149.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> law = wflow.heads.OrnsteinUhlenbeck(np.eye(2), rate=2.0)
    >>> law.drift(np.zeros((1, 1, 2, 2)), 0.0)[0, 0]
    array([[2., 0.],
           [0., 2.]])
    """

    def __init__(
        self, mean: ArrayLike, rate: float = 1.0, sigma2: float = 2.0, *, exact: bool = False
    ) -> None:
        super().__init__()
        self.mean = as_matrices(mean, "mean", symmetric=True)
        self.rate = number(rate, "rate")
        if self.rate <= 0:
            raise InputError(f"rate is {rate}: expected a number > 0 (heads that rest: Frozen())")
        self.sigma2 = number(sigma2, "sigma2", least=0.0)
        self.exact = switch(exact, "exact")

    @property
    def deterministic(self) -> bool:
        return self.sigma2 == 0

    def drift(self, D: Matrices, t: float) -> Matrices:
        drift = self.mean - D
        drift *= self.rate
        return drift.astype(D.dtype, copy=False)

    def diffusion(self, D: Matrices, t: float) -> NDArray[np.floating] | None:
        return None if self.deterministic else np.full(D.shape[:2], math.sqrt(self.sigma2))

    def step(self, D: Matrices, t: float, dt: float, normals: Matrices | None) -> Step:
        if not self.exact:
            return super().step(D, t, dt, normals)
        # The drift and the variance per unit time that make one step of length dt exact.
        drift = -math.expm1(-self.rate * dt) / dt * (self.mean - D)
        sigma2 = self.sigma2 * -math.expm1(-2 * self.rate * dt) / (2 * self.rate * dt)
        if normals is None or self.deterministic:
            return Step(drift.astype(D.dtype, copy=False), None, None)
        noise = math.sqrt(sigma2 * dt) * self._increment(normals)
        return Step(
            drift.astype(D.dtype, copy=False),
            noise.astype(D.dtype, copy=False),
            np.full(D.shape[:2], sigma2),
        )

    def additive_step(
        self,
        D: Matrices,
        t: float,
        dt: float,
        normals: Matrices | None,
        mean_normals: Matrices | None,
    ) -> Step:
        step = super().additive_step(D, t, dt, normals, mean_normals)
        if not self.exact:
            return step
        # A scheme of two stages ends at D + dt rate (M - mean of D over the step) + noise, which is
        # exact where its stage stands for that mean: it gets the mean of the transition since
        # t, less the dt f/2 that the scheme has already. In terms of W and Z (phi_k(0) = 1/k!).
        u = self.rate * dt
        mean = -(u**2) * _phi(3, -u) * (self.mean - D)
        if step.noise is not None and mean_normals is not None:
            own = 2 * (2 * _phi(3, -2 * u) - _phi(3, -u)) - _phi(2, -u) ** 2
            mean += _phi(2, -u) * step.noise
            mean += math.sqrt(self.sigma2 * dt * max(own, 0.0)) * self._increment(mean_normals)
        return replace(step, mean_noise=mean.astype(D.dtype, copy=False))

    def check(self, heads: int, d: int) -> None:
        check_fits(self.mean, heads, d, "mean of OrnsteinUhlenbeck")

    def to_config(self) -> dict[str, Any]:
        return {
            "mean": self.mean.tolist(),
            "rate": self.rate,
            "sigma2": self.sigma2,
            "exact": self.exact,
        }


def _phi(k: int, z: float) -> float:
    """Return sum_j z^j/(j + k)!: (e^z - 1)/z for k = 1, ((e^z - 1)/z - 1)/z for k = 2, ..."""
    if abs(z) < 1:
        return sum(z**j / math.factorial(j + k) for j in range(18))
    value = math.exp(z)
    for j in range(k):
        value = (value - 1 / math.factorial(j)) / z
    return value


class Oscillating(HeadLaw):
    r"""Heads that follow a target which oscillates forever: dD_h = (M_h(t) - D_h) dt.

    Parameters
    ----------
    d : int
        Dimension, >= 2.
    phases : {"spread", "common"}, default "spread"
        "spread" for phi_h = 2 pi h/heads, "common" for phi_h = 0.
    sigma2 : float, default 0.0
        Variance sigma^2 >= 0 of symmetric noise, per unit time; 0 in [1]_.

    Raises
    ------
    InputError
        For d < 2, unknown phases, or a negative sigma2.

    Notes
    -----
    With a = t + phi_h, the target for d = 2 has the diagonal (2 + 1.5 cos a, 2 - 1.5 cos a) and off
    it sin 2a; for d = 3 [1]_

    .. math::

        M_h(t) = \begin{pmatrix}
            2 + 1.5 \cos a & \sin 2a & \sin a \\
            \sin 2a & 2 + 1.5 \sin a & \cos 2a \\
            \sin a & \cos 2a & 2 + 1.5 \cos(a + \pi/4)
        \end{pmatrix} .

    For d >= 4 the diagonal is 2 + 1.5 cos(a + 2 pi i/d), and the p-th of the P entries above it
    sin(2a + 2 pi p/P), i and p from 0.

    In the theory: :ref:`oscillating heads <theory-oscillating>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 6,
       oscillating weights.

    Examples
    --------
    >>> import wflow
    >>> wflow.heads.Oscillating(d=2, phases="common").target(0.0, heads=1)[0]
    array([[3.5, 0. ],
           [0. , 0.5]])
    """

    def __init__(self, d: int, phases: str = "spread", sigma2: float = 0.0) -> None:
        self.d, self.sigma2 = whole(d, "d", least=2), number(sigma2, "sigma2", least=0.0)
        super().__init__(diffusion=math.sqrt(self.sigma2))
        check_choice("phases", phases, ("spread", "common"))
        self.phases = phases

    def target(self, t: float, heads: int) -> NDArray[np.float64]:
        """Return the targets M_h(t) of the heads.

        Parameters
        ----------
        t : float
            Time.
        heads : int
            Number of heads.

        Returns
        -------
        ndarray, shape (heads, d, d)
            Symmetric targets.
        """
        a = np.full(heads, float(t))
        if self.phases == "spread":
            a += 2 * np.pi * np.arange(heads) / heads
        if self.d == 2:
            diagonal = [2 + 1.5 * np.cos(a), 2 - 1.5 * np.cos(a)]
            above = [np.sin(2 * a)]
        elif self.d == 3:
            diagonal = [
                2 + 1.5 * np.cos(a),
                2 + 1.5 * np.sin(a),
                2 + 1.5 * np.cos(a + np.pi / 4),
            ]
            above = [np.sin(2 * a), np.sin(a), np.cos(2 * a)]
        else:
            count = self.d * (self.d - 1) // 2
            diagonal = [2 + 1.5 * np.cos(a + 2 * np.pi * i / self.d) for i in range(self.d)]
            above = [np.sin(2 * a + 2 * np.pi * p / count) for p in range(count)]
        target = np.zeros((heads, self.d, self.d))
        for i, entry in enumerate(diagonal):
            target[:, i, i] = entry
        for row, column, entry in zip(*np.triu_indices(self.d, 1), above, strict=True):
            target[:, row, column] = target[:, column, row] = entry
        return target

    def drift(self, D: Matrices, t: float) -> Matrices:
        return (self.target(t, D.shape[1]) - D).astype(D.dtype, copy=False)

    def check(self, heads: int, d: int) -> None:
        if d != self.d:
            raise InputError(f"the law is Oscillating(d={self.d}) but the tokens have d = {d}")

    def to_config(self) -> dict[str, Any]:
        return {"d": self.d, "phases": self.phases, "sigma2": self.sigma2}


@dataclass(frozen=True, repr=False)
class QKV(ShortRepr):
    """General attention heads: score scale <Q_h x, K_h y>, output V_h times the softmax average.

    They run with ``flow="softmax"``, or with a custom flow whose class has general_heads = True,
    and have no energy [1]_.

    Parameters
    ----------
    query : array_like, shape (heads, k, d) or (times, heads, k, d)
        Matrices Q; with an axis of times for a schedule.
    key : array_like, shape (heads, k, d) or (times, heads, k, d)
        Matrices K.
    value : array_like, shape (heads, d, d) or (times, heads, d, d)
        Matrices V.
    scale : float or None, default 1.0
        Factor of the scores. None means 1 / sqrt(k).

    Notes
    -----
    In the theory: :ref:`general heads <theory-general-heads>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 1.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> Q, K, V = np.ones((2, 4, 3)), np.ones((2, 4, 3)), np.stack([np.eye(3)] * 2)
    >>> scores, values = wflow.heads.QKV(Q, K, V, scale=None).matrices()
    >>> scores.shape, float(scores[0, 0, 0])  # 4 / sqrt(4)
    ((2, 3, 3), 2.0)
    """

    query: ArrayLike
    key: ArrayLike
    value: ArrayLike
    scale: float | None = 1.0

    def matrices(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return score matrices D_h = scale Q_h^T K_h and value matrices V_h.

        Returns
        -------
        scores : ndarray of float64, shape (..., heads, d, d)
            Score matrices.
        values : ndarray of float64, shape (..., heads, d, d)
            Value matrices.

        Raises
        ------
        InputError
            For shapes that do not fit each other or values that are not finite.
        """
        query, key, value = (
            reals(array, f"QKV.{name}")
            for name, array in (("query", self.query), ("key", self.key), ("value", self.value))
        )
        if query.ndim < 3 or query.shape != key.shape:
            raise InputError(
                f"query has shape {query.shape} and key {key.shape}: expected (heads, k, d) twice"
            )
        *lead, k, d = query.shape
        if value.shape != (*lead, d, d):
            raise InputError(f"value has shape {value.shape}, expected {(*lead, d, d)}")
        scale = 1 / math.sqrt(k) if self.scale is None else number(self.scale, "scale")
        with np.errstate(over="ignore", invalid="ignore"):
            scores = scale * np.einsum("...ka,...kb->...ab", query, key)
        if not np.isfinite(scores).all():
            raise InputError("scores scale Q^T K leave the range of doubles: scale query or key")
        return scores, value

    @classmethod
    def from_torch(cls, attention: Any, *, biases: str = "error") -> Self:
        r"""Take the heads of a `torch.nn.MultiheadAttention`.

        With W_q^h, W_k^h, W_v^h the rows of head h in its input projection, W_o^h its columns in
        the output projection, and H heads of width k,

        .. math:: Q_h = W_q^h, \quad K_h = W_k^h, \quad V_h = H \, W_o^h W_v^h, \quad
           \text{scale} = 1/\sqrt k.

        The factor H is there because flows take the mean over heads and attention is a sum: the
        velocity of unit tokens x is P_x attention(x), as the module computes it in evaluation mode,
        before a residual connection or a norm. Whether it has `batch_first` makes no difference,
        and a causal mask is `causal=True` of `wflow.solve`.

        Parameters
        ----------
        attention : torch.nn.MultiheadAttention
            Self-attention.
        biases : {"error", "drop"}
            Heads have no biases. "error" refuses an attention whose biases are not zero, as they
            are when it is made; "drop" leaves them out, as `wflow.nets.particles` does, and those
            of a trained one seldom are zero. A bias of the keys changes no softmax and is always
            left out.

        Returns
        -------
        QKV
            The heads, in double precision: query and key (H, k, d), value (H, d, d).

        Raises
        ------
        InputError
            For another module, one on the device meta, keys or values of another width than the
            queries, `add_bias_kv`, `add_zero_attn`, and, by "error", biases that are not zero.

        Examples
        --------
        >>> import torch, wflow
        >>> attention = torch.nn.MultiheadAttention(6, num_heads=2, bias=False)
        >>> heads = wflow.heads.QKV.from_torch(attention)
        >>> heads.query.shape, heads.value.shape
        ((2, 3, 6), (2, 6, 6))
        """
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(attention, torch.nn.MultiheadAttention):
            raise InputError(
                f"attention is {type(attention).__name__}: expected a torch.nn.MultiheadAttention"
            )
        check_choice("biases", biases, ("error", "drop"))
        if attention.out_proj.weight.is_meta:
            raise InputError(
                "the attention is on the device meta, where weights have no values: expected a "
                "trained one, on a CPU or GPU"
            )
        d, heads = attention.embed_dim, attention.num_heads
        if (attention.kdim, attention.vdim) != (d, d):
            raise InputError(
                f"the attention has kdim = {attention.kdim} and vdim = {attention.vdim}: expected "
                f"self-attention, with both embed_dim = {d}, for heads act on tokens of one space"
            )
        if attention.bias_k is not None or attention.add_zero_attn:
            raise InputError(
                "the attention adds a token of its own (add_bias_kv or add_zero_attn): expected "
                "neither, for heads have none"
            )

        def array(parameter: Any) -> NDArray[np.float64]:
            return reals(parameter.detach().cpu().double().numpy(), "a weight of the attention")

        left_out = {"out_proj.bias": attention.out_proj.bias}
        if attention.in_proj_bias is not None:
            queries, _, values = attention.in_proj_bias.chunk(3)
            left_out |= {"in_proj_bias (queries)": queries, "in_proj_bias (values)": values}
        for name, bias in left_out.items() if biases == "error" else ():
            if bias is not None and (largest := float(np.abs(array(bias)).max())):
                raise InputError(
                    f"{name} of the attention is up to {largest:.3g}: expected zeros, for heads "
                    'have no biases; give biases="drop" to have the heads without them'
                )
        rows = attention.in_proj_weight
        parts = [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight]
        query, key, value = (
            array(part).reshape(heads, d // heads, d)
            for part in (parts if rows is None else rows.chunk(3))
        )
        out = array(attention.out_proj.weight).reshape(d, heads, d // heads)
        return cls(query, key, heads * np.einsum("ahk,hkb->hab", out, value), scale=None)


class Schedule(HeadLaw):
    """Heads with given values at given times, such as the layers of a trained network.

    Times that fall on steps keep the order of the scheme; adaptive steps end at them. These are the
    depth-dependent heads of [1]_, layer by layer.

    Parameters
    ----------
    times : sequence of float, length T
        Increasing times.
    values : array_like of shape (T, heads, d, d), or QKV
        Heads at these times; a `QKV` has a leading axis of length T.
    interpolation : {"linear", "constant"}, default "linear"
        "linear" interpolates between the times: drift (D_{i+1} - D_i)/(t_{i+1} - t_i). "constant"
        holds D_i on [t_i, t_{i+1}) and jumps; the budget counts the energy of a jump as work of the
        weights. Before the first and after the last time the heads stand still.

    Raises
    ------
    InputError
        For times that do not increase, or values that do not fit them.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 1.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> layers = np.stack([np.eye(3), 2 * np.eye(3)])[:, None]
    >>> law = wflow.heads.Schedule([0.0, 1.0], layers)
    >>> run = wflow.solve(
    ...     wflow.tokens.uniform(n=5, d=3, seed=0), law, t_final=1.0, dt=0.5,
    ...     save=wflow.SaveAt(heads=True),
    ... )
    >>> run.heads.values[0, -1, 0].diagonal()
    array([2., 2., 2.])
    """

    def __init__(
        self, times: Sequence[float], values: ArrayLike | QKV, interpolation: str = "linear"
    ) -> None:
        self.times = times_of(times, "times")
        if self.times.ndim != 1 or not self.times.size or np.any(np.diff(self.times) <= 0):
            raise InputError("times must be a non-empty list of increasing numbers")
        check_choice("interpolation", interpolation, ("linear", "constant"))
        self.interpolation = interpolation
        self._values: NDArray[np.float64] | None
        if isinstance(values, QKV):
            self._scores, self._values = values.matrices()
        else:
            self._scores, self._values = as_matrices(values, "values"), None
        if self._scores.ndim != 4 or len(self._scores) != len(self.times):
            raise InputError(
                f"values have shape {self._scores.shape}, expected (times, heads, d, d) with "
                f"{len(self.times)} times"
            )
        super().__init__(symmetric=self._values is None and is_symmetric(self._scores))

    def knot_at(self, t: float) -> tuple[int, float | None]:
        """Return the knot of a time, and the share of the next one; None where it has none.

        Parameters
        ----------
        t : float
            Time.

        Returns
        -------
        tuple
            Number of the last knot that is not after t, and the share.
        """
        # A time that rounding left just below a knot belongs to it.
        nudged, last = t + 1e-9 * max(1.0, abs(t)), len(self.times) - 1
        i = int(np.clip(np.searchsorted(self.times, nudged, side="right") - 1, 0, last))
        if self.interpolation == "constant" or i == last:
            return i, None
        return i, max(0.0, (t - self.times[i]) / (self.times[i + 1] - self.times[i]))

    def _at(self, table: NDArray[np.float64], t: float) -> NDArray[np.float64]:
        i, share = self.knot_at(t)
        return table[i] if share is None else table[i] + share * (table[i + 1] - table[i])

    def initial(self) -> tuple[Matrices, Matrices | None]:
        return self._at(self._scores, 0.0), self.values(0.0)

    def values(self, t: float) -> Matrices | None:
        return None if self._values is None else self._at(self._values, t)

    def values_within(self, t: float) -> Callable[[float], Matrices | None]:
        # Constant values keep their value of the start of the step; they jump after it, as scores
        # do.
        return self.values if self.interpolation == "linear" else lambda s: self.values(t)

    def _slope(self, t: float, dt: float) -> Matrices | None:
        if self.interpolation == "constant":
            return None
        return (self._at(self._scores, t + dt) - self._at(self._scores, t)) / dt

    def drift_within(self, t: float, dt: float) -> Callable[[Matrices, float], Matrices | None]:
        slope = self._slope(t, dt)
        if slope is None:
            return lambda D, s: None
        return lambda D, s: np.broadcast_to(slope.astype(D.dtype), D.shape)

    def breaks(self) -> NDArray[np.float64]:
        return self.times

    def step(self, D: Matrices, t: float, dt: float, normals: Matrices | None) -> Step:
        return Step(self.drift_within(t, dt)(D, t), None, None)

    @property
    def jumps(self) -> bool:
        return self.interpolation == "constant" or type(self).jump is not Schedule.jump

    def jump(
        self, D: Matrices, t: float, dt: float, generator: np.random.Generator | None
    ) -> Matrices | None:
        if self.interpolation == "linear":
            return None
        before, after = self._at(self._scores, t), self._at(self._scores, t + dt)
        if np.array_equal(before, after):
            return None
        # Heads that are off the table, by jumps of another law, stay off it by as much.
        return after if np.array_equal(D, before.astype(D.dtype)) else D + (after - before)

    def check(self, heads: int, d: int) -> None:
        if self._scores.shape[1:] != (heads, d, d):
            raise InputError(
                f"the schedule holds heads of shape {self._scores.shape[1:]}, the run asks for "
                f"{(heads, d, d)}"
            )

    def to_config(self) -> dict[str, Any]:
        return {
            "times": self.times.tolist(),
            "interpolation": self.interpolation,
            "scores": self._scores.tolist(),
            "values": None if self._values is None else self._values.tolist(),
        }

    def _parameter_texts(self) -> Mapping[str, str]:
        if type(self) is not Schedule:
            return super()._parameter_texts()
        values = value_text(self._scores)
        values = values if self._values is None else f"QKV of scores {values}"
        times = value_text(self.times)
        return {"times": times, "values": values, "interpolation": repr(self.interpolation)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        settings = dict(config)
        if "scores" not in settings:  # as the arguments of the class
            return made_of(cls, settings, cls.__name__)
        scores, values = settings.pop("scores"), settings.pop("values", None)
        law = cls(values=scores, **settings)
        if values is not None:
            law._values, law.symmetric = reals(values, "values"), False
        return law


_MOST_JUMPS = 1e6  # of a head per unit time: more frequent jumps are better modelled as noise


class CompoundPoisson(HeadLaw):
    r"""A law whose heads jump as well, at random times: dD_h = f dt + sigma dW_h + dJ_h.

    The jumps of each head are a compound Poisson process J_h, independent of the noise and of the
    other heads. For ``scheme="euler"``.

    Parameters
    ----------
    law : HeadLaw
        Law of the heads between the jumps.
    rate : float
        Mean number of jumps of a head per unit time, >= 0.
    size : float or callable, default 1.0
        Standard deviation >= 0 of the diagonal of a jump, or a function that maps standard normal
        numbers Z of shape (jumps, d, d) to the jumps, of that shape.

    Raises
    ------
    InputError
        For what is no law, a negative rate, and a size that is neither a number >= 0 nor a
        function. In a run, for a function that returns jumps of another shape, and asymmetric jumps
        of a law that keeps heads symmetric.

    Notes
    -----
    In a step of length dt a head jumps N times, N being Poisson distributed with mean rate dt. The
    sum of the jumps is added at the end of the step,

    .. math:: D_h(t + dt) = D_h + f\,dt + \sigma\,dW_h + \sum_{k=1}^{N} J_{hk}, \qquad
        J_{hk} = \mathrm{size}\; \frac{Z + Z^T}{2},

    with size Z where the law does not keep heads symmetric. A jump is late by less than dt: the
    tokens have strong order 1 where the noise of the law is additive or none. The energy of the
    jumps, E(x, D + J) - E(x, D), is part of `work_weights`. [1]_ remarks that its arguments extend
    to Lévy processes.

    In the theory: :ref:`heads that jump <theory-jumps>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 2.1.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> law = wflow.heads.CompoundPoisson(wflow.heads.Frozen(), rate=2.0, size=0.5)
    >>> x0 = wflow.tokens.uniform(n=10, d=3, seed=0)
    >>> run = wflow.solve(x0, law, heads=4, t_final=1.0, dt=0.01)
    >>> bool(abs(run.edi_residual[0, -1]) < 0.1 < abs(run.work_weights[0, -1]))
    True
    """

    def __init__(
        self,
        law: HeadLaw,
        rate: float,
        size: float | Callable[[Matrices], ArrayLike] = 1.0,
    ) -> None:
        if not isinstance(law, HeadLaw):
            raise InputError(f"law is {shown(law)}: expected a wflow.heads law")
        super().__init__(symmetric=law.symmetric)
        self.law = law
        self.rate = number(rate, "rate", least=0.0)
        if self.rate > _MOST_JUMPS:
            raise InputError(f"rate is {self.rate:g}: expected a number <= {_MOST_JUMPS:g}")
        self.size = size if callable(size) else number(size, "size", least=0.0)

    @property
    def deterministic(self) -> bool:
        return False

    def drift(self, D: Matrices, t: float) -> Matrices | None:
        return self.law.drift(D, t)

    def diffusion(self, D: Matrices, t: float) -> NDArray[np.floating] | None:
        return self.law.diffusion(D, t)

    def step(self, D: Matrices, t: float, dt: float, normals: Matrices | None) -> Step:
        return self.law.step(D, t, dt, None if self.law.deterministic else normals)

    def drift_within(self, t: float, dt: float) -> Callable[[Matrices, float], Matrices | None]:
        return self.law.drift_within(t, dt)

    @property
    def jumps(self) -> bool:
        return self.rate > 0 or self.law.jumps

    def jump(
        self, D: Matrices, t: float, dt: float, generator: np.random.Generator | None
    ) -> Matrices | None:
        assert generator is not None  # the law is not deterministic
        counts = generator.poisson(self.rate * dt, len(D))
        jumps = self._jumps(generator.standard_normal((counts.sum(), *D.shape[1:])))
        after = self.law.jump(D, t, dt, None if self.law.deterministic else generator)
        if not len(jumps):
            return after
        total = np.array(D if after is None else after, float)
        np.add.at(total, np.repeat(np.arange(len(D)), counts), jumps)
        return total

    def _jumps(self, normals: Matrices) -> Matrices:
        """Return jumps (jumps, d, d) made of standard normal numbers."""
        if not callable(self.size):
            return self.size * self._increment(normals)
        jumps = returned(self.size(read_only(normals)), normals.shape, "size(Z)")
        if self.symmetric and not is_symmetric(jumps):
            raise InputError(
                "size(Z) returned asymmetric jumps, and the law keeps heads symmetric: return "
                "symmetric matrices, such as (Z + Z.swapaxes(-1, -2))/2"
            )
        return jumps

    def breaks(self) -> NDArray[np.float64]:
        return self.law.breaks()

    def initial(self) -> tuple[Matrices, Matrices | None] | None:
        return self.law.initial()

    def values(self, t: float) -> Matrices | None:
        return self.law.values(t)

    def values_within(self, t: float) -> Callable[[float], Matrices | None]:
        return self.law.values_within(t)

    def check(self, heads: int, d: int) -> None:
        self.law.check(heads, d)

    def to_config(self) -> dict[str, Any]:
        # A function is known by the fingerprint of the law.
        size = {} if callable(self.size) else {"size": self.size}
        return {"law": law_config(self.law), "rate": self.rate, **size}

    def _parameter_texts(self) -> Mapping[str, str]:
        given = {"law": self.law, "rate": self.rate, "size": self.size}
        return {name: value_text(value) for name, value in given.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        inner = {"law": law_from_config(config["law"])} if "law" in config else {}
        return made_of(cls, config | inner, cls.__name__)


# Laws from run files
# -------------------

LAWS: Registry[HeadLaw] = Registry(
    HeadLaw, "law", "head law", "wflow.heads",
    HeadLaw, Frozen, OrnsteinUhlenbeck, Oscillating, Schedule, CompoundPoisson,
)  # fmt: skip
_Law = TypeVar("_Law", bound=type[HeadLaw])


def register(cls: _Law) -> _Law:
    """Register a class of head laws under its name; a decorator.

    `wflow.rerun` and `wflow.verify` make such laws again from a run file: by `from_config`, from
    what `to_config` returned when the run began. The code of the class is not in the file: a law
    that differs from that of the run, by its fingerprint, is refused.

    Parameters
    ----------
    cls : type
        Subclass of `HeadLaw`; one that is registered again replaces the earlier one.

    Returns
    -------
    type
        The class itself.

    Raises
    ------
    InputError
        For anything but such a class, and for the name of another law.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> @wflow.heads.register
    ... class Decay(wflow.heads.HeadLaw):
    ...     def __init__(self, rate):
    ...         super().__init__()
    ...         self.rate = rate
    ...
    ...     def drift(self, D, t):
    ...         return -self.rate * D
    ...
    ...     def to_config(self):
    ...         return {"rate": self.rate}
    >>> law = wflow.heads.law_from_config(wflow.heads.law_config(Decay(0.5)))
    >>> law.rate
    0.5
    """
    LAWS.register(cls)
    return cls


def law_from_config(config: str | dict[str, Any]) -> HeadLaw:
    """Make a law again from its `law_config`, the configuration in a run file.

    Parameters
    ----------
    config : str or dict
        What `law_config` returned, or the name of a law without parameters.

    Returns
    -------
    HeadLaw
        The law.

    Raises
    ------
    InputError
        For a custom law whose class is not registered or is another than that of the run, for a
        configuration that does not hold the whole law, and for parameters that do not fit.

    Examples
    --------
    >>> import wflow
    >>> law = wflow.heads.Oscillating(d=3)
    >>> type(wflow.heads.law_from_config(wflow.heads.law_config(law))).__name__
    'Oscillating'
    """
    return LAWS.from_config({"name": config} if isinstance(config, str) else config)


def made_again(config: Any) -> HeadLaw | None:
    """Return the law of a configuration; None where it cannot be made again."""
    try:
        return law_from_config(config)
    except InputError:
        return None


def law_of_run(config: dict[str, Any], law: HeadLaw | None = None) -> HeadLaw:
    """Return the law of a run: made from its configuration, or the given one if it matches.

    One whose fingerprint was made by an earlier version of wflow is taken as given, with a warning.

    Parameters
    ----------
    config : of the run
    law : the law, for runs of a custom one; None makes it from the configuration

    Raises
    ------
    InputError
        For a custom law that is not given, another law than that of the run, and one that cannot
        be compared.
    """
    from wflow.runs.read import differences  # loads h5py
    from wflow.runs.schema import config_text

    if not isinstance(config["law"], dict):
        raise InputError(f"the run names no head law, but {config['law']!r}")
    if law is None:
        return law_from_config(config["law"])
    if not isinstance(law, HeadLaw):
        raise InputError(f"law is {shown(law)}: expected a wflow.heads law, the one of the run")
    asked, stored = law_config(law), config["law"]
    check_comparable({"law": asked})
    old = of_bytecode(stored.get("fingerprint"))
    if old:
        stored = stored | {"fingerprint": asked.get("fingerprint")}
    differ = differences(stored, json.loads(config_text(asked)))
    if differ:
        raise InputError(
            f"the law differs from that of the run in {', '.join(differ)}: give the law that the "
            "run was made with"
        )
    if old:
        warn(
            "an earlier version of wflow made the fingerprint of the law of this run from "
            "bytecode, which cannot be compared: the law given is taken for it",
            WflowWarning,
        )
    return law
