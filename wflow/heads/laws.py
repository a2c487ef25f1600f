"""Head laws: evolution of the interaction matrices D_h in time (docs/theory/head_laws.md).

A law defines its drift f(D, t), the size sigma of its noise, and the increment of the heads in one
time step. A custom law is a subclass of `HeadLaw` with its own `drift`, or a `HeadLaw` made from
two callables. Run files store its parameters (`to_config`), from which it is restored
(`from_config`); `register` makes a custom class known by its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import check_choice, number, reals, shown, switch, whole
from wflow._core.errors import InputError
from wflow._core.identity import Described, Registry, check_comparable, read_only, reading
from wflow.heads.matrices import Matrices, as_matrices, check_fits, fitting, is_symmetric

__all__ = [
    "QKV",
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
    """What one time step adds to the heads: drift dt + noise.

    drift : (paths, heads, d, d) per unit time, or None for zero
    noise : (paths, heads, d, d) sigma dW_h of the whole step, or None
    sigma2 : (paths, heads) variance per unit time that belongs to the noise, or None
    """

    drift: Matrices | None
    noise: Matrices | None
    sigma2: NDArray[np.floating] | None


class HeadLaw(Described):
    """Itô SDE dD_h = f(D, t) dt + sigma(D, t) dW_h for the heads.

    With `symmetric` the noise is dW_sym = sqrt(dt) (Z + Z^T)/2, Z iid standard normal: variance dt
    on the diagonal and dt/2 off it. Otherwise dW = sqrt(dt) Z.

    Parameters
    ----------
    drift : callable (D, t) -> array that broadcasts to D, with D of shape (paths, heads, d, d) and
        read-only; None for zero
    diffusion : sigma, a number, or callable (D, t) -> array that broadcasts to (paths, heads);
        None for zero
    symmetric : whether the law keeps symmetric heads symmetric; a law that does not has no energy

    Source: docs/theory/head_laws.md; [MHT] section 6 for the symmetric noise.
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
        """f(D, t), of the shape of D (paths, heads, d, d); None where it is zero."""
        if self._drift is None:
            return None
        with _reading(self, "drift"):
            values = self._drift(read_only(D), t)
        return fitting(values, D.shape, D.dtype, f"{_named(self, 'drift')}(D, {t:g})")

    def diffusion(self, D: Matrices, t: float) -> NDArray[np.floating] | None:
        """sigma(D, t) of shape (paths, heads); None where it is zero."""
        if self.deterministic:
            return None
        values: Any = self._diffusion
        if callable(values):
            with _reading(self, "diffusion"):
                values = values(read_only(D), t)
        return _sigma(self, values, D, t)

    def step(self, D: Matrices, t: float, dt: float, normals: Matrices | None) -> Step:
        """Euler-Maruyama step; `normals` holds standard normal numbers of the shape of D."""
        law = checked(self, D.shape[1:])
        sigma, drift = law.diffusion(D, t), law.drift(D, t)
        if sigma is None or normals is None:
            return Step(drift, None, None)
        noise = (sigma * math.sqrt(dt))[..., None, None] * self._increment(normals)
        return Step(drift, noise.astype(D.dtype, copy=False), sigma**2)

    def drift_within(self, t: float, dt: float) -> Callable[[Matrices, float], Matrices | None]:
        """The drift as the stages of one step from t to t + dt see it."""
        return self.drift

    @property
    def jumps(self) -> bool:
        """Whether the heads may jump, so that the energy has parts that no rate shows.

        A run asks `jump` of such laws only.
        """
        return getattr(self.jump, "__func__", None) is not HeadLaw.jump

    def jump(self, t: float, dt: float) -> Matrices | None:
        """Heads (heads, d, d) right after t + dt if they jump within the step, else None."""
        return None

    def breaks(self) -> NDArray[np.float64]:
        """Increasing times at which heads, drift or values jump or bend: adaptive steps end there.

        A law that jumps at other times jumps at the next recorded time of an adaptive run.
        """
        return np.empty(0)

    def initial(self) -> tuple[Matrices, Matrices | None] | None:
        """Heads (heads, d, d), and value matrices, if the law prescribes where they start."""
        return None

    def values(self, t: float) -> Matrices | None:
        """Value matrices (heads, d, d) at time t if the law prescribes them."""
        return None

    def values_within(self, t: float) -> Callable[[float], Matrices | None]:
        """The value matrices as the stages of one step from t see them."""
        return self.values

    def check(self, heads: int, d: int) -> None:
        """Raise InputError if the law does not fit this many heads or this dimension."""

    def to_config(self) -> dict[str, Any]:
        return {"symmetric": self.symmetric}

    def _increment(self, normals: Matrices) -> Matrices:
        if not self.symmetric:
            return normals
        return (normals + np.swapaxes(normals, -1, -2)) / 2


def law_config(law: HeadLaw) -> dict[str, Any]:
    """Name and parameters of a law, as a run file holds them; of a custom one, what identifies it.

    That is its `fingerprint` (None, and the reason as `not_comparable`, where the law cannot be
    compared), and `jumps` where it jumps.

    Raises
    ------
    InputError
        For a `to_config` that returns anything but a dict, or one with a name of these.
    """
    if not isinstance(law, HeadLaw):
        raise InputError(f"law is {shown(law)}: expected a wflow.heads law")
    return LAWS.config(law, **({"jumps": True} if law.jumps else {}))


def start_of(law: HeadLaw) -> tuple[Matrices, Matrices | None] | None:
    """What `law.initial` returns, checked: heads and value matrices (heads, d, d), or None."""
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
    return scores, fitting(start[1], scores.shape, np.float64, name)


def checked(law: HeadLaw, shape: tuple[int, ...]) -> HeadLaw:
    """The law as a run uses it: a custom one gets D read-only, and what it returns is checked.

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
        with _reading(self._law, "step"):
            step = self._law.step(read_only(D), t, dt, normals)
        name = f"step(D, {t:g}, {dt:g}, normals)"
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

    def jump(self, t: float, dt: float) -> Matrices | None:
        after = self._law.jump(t, dt)
        return self._fitting(after, self._shape, np.float64, f"jump({t:g}, {dt:g})")

    def breaks(self) -> NDArray[np.float64]:
        times = reals(self._law.breaks(), f"{_named(self._law, 'breaks')}()")
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
        return None if values is None else fitting(values, shape, kind, _named(self._law, name))


def _sigma(law: HeadLaw, values: Any, D: Matrices, t: float) -> NDArray[np.floating]:
    """What `diffusion` of a law returned, as sigma (paths, heads)."""
    name = f"{_named(law, 'diffusion')}(D, {t:g})"
    sigma = fitting(values, D.shape[:2], np.float64, name)
    if np.any(sigma < 0):
        raise InputError(f"{name} returned {sigma.min():g}: sigma is >= 0")
    return sigma


def _reading(law: HeadLaw, method: str) -> AbstractContextManager[None]:
    return reading("law", _named(law, method), "D")


def _named(law: HeadLaw, method: str) -> str:
    return f"{type(law).__name__}.{method}"


class Frozen(HeadLaw):
    """Heads that stay as they are: dD = 0, autonomous dynamics."""

    def __init__(self) -> None:  # a drift would be one that the configuration does not show
        super().__init__()

    def to_config(self) -> dict[str, Any]:
        return {}


class OrnsteinUhlenbeck(HeadLaw):
    """dD = rate (M - D) dt + sigma dW_sym, mean reversion with symmetric noise.

    Stationary law: mean M, variance sigma^2/(2 rate) on the diagonal and half of that off it.
    `exact` samples the Gaussian transition of a step in place of Euler-Maruyama:
    D(t+dt) = M + e^{-rate dt} (D - M) + sigma sqrt((1 - e^{-2 rate dt})/(2 rate)) N, with N of
    unit variance on the diagonal and 1/2 off it. `weight_power` is then that of the mean drift of
    the step. Only for scheme="euler".

    Parameters
    ----------
    mean : (d, d) or (heads, d, d), symmetric M
    rate : > 0, per unit time
    sigma2 : sigma^2 >= 0, per unit time
    exact : transition of one step

    Raises
    ------
    InputError
        For a negative rate or sigma2, a mean that is not square, finite or symmetric.

    Source: [MHT] section 6 (M = I, rate 1, sigma^2 = 2), eq. 149.
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
        return (self.rate * (self.mean - D)).astype(D.dtype, copy=False)

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

    def check(self, heads: int, d: int) -> None:
        check_fits(self.mean, heads, d, "mean of OrnsteinUhlenbeck")

    def to_config(self) -> dict[str, Any]:
        return {
            "mean": self.mean.tolist(),
            "rate": self.rate,
            "sigma2": self.sigma2,
            "exact": self.exact,
        }


class Oscillating(HeadLaw):
    """dD_h = (M_h(t) - D_h) dt towards a target that oscillates forever.

    With a = t + phi_h. d = 2: M has diagonal (2 + 1.5 cos a, 2 - 1.5 cos a), off it sin 2a.
    d = 3: diagonal (2 + 1.5 cos a, 2 + 1.5 sin a, 2 + 1.5 cos(a + pi/4)), entries (1,2) = sin 2a,
    (1,3) = sin a, (2,3) = cos 2a. d >= 4: diagonal 2 + 1.5 cos(a + 2 pi i/d), the p-th of the P
    entries above it sin(2a + 2 pi p/P), i and p from 0.

    Parameters
    ----------
    d : dimension, >= 2
    phases : "spread" for phi_h = 2 pi h/heads, "common" for phi_h = 0
    sigma2 : sigma^2 >= 0 of symmetric noise, per unit time; 0 in [MHT]

    Source: [MHT] section 6, oscillating weights; docs/theory/head_laws.md.
    """

    def __init__(self, d: int, phases: str = "spread", sigma2: float = 0.0) -> None:
        self.d, self.sigma2 = whole(d, "d", least=2), number(sigma2, "sigma2", least=0.0)
        super().__init__(diffusion=math.sqrt(self.sigma2))
        check_choice("phases", phases, ("spread", "common"))
        self.phases = phases

    def target(self, t: float, heads: int) -> NDArray[np.float64]:
        """M_h(t), (heads, d, d)."""
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


@dataclass(frozen=True)
class QKV:
    """General attention heads: score scale <Q_h x, K_h y>, output V_h times the softmax average.

    They run with flow="softmax", or with a custom flow whose class has general_heads = True, and
    have no energy. `scale` None is 1 / sqrt(key dimension).

    Parameters
    ----------
    query, key : (heads, k, d); for a schedule (times, heads, k, d)
    value : (heads, d, d); for a schedule (times, heads, d, d)
    scale : factor of the scores

    Source: multi-head attention, [MHT] eq. 1; docs/theory/setting.md.
    """

    query: ArrayLike
    key: ArrayLike
    value: ArrayLike
    scale: float | None = 1.0

    def matrices(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Score matrices D_h = scale Q_h^T K_h and value matrices V_h, both (..., heads, d, d).

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


class Schedule(HeadLaw):
    """Heads with given values at given times, such as the layers of a trained network.

    "linear" interpolates between the times: drift (D_{i+1} - D_i)/(t_{i+1} - t_i). "constant"
    holds D_i on [t_i, t_{i+1}) and jumps; the budget counts the energy of a jump as work of the
    weights. Before the first and after the last time the heads stand still.
    Times that fall on steps keep the order of the scheme; adaptive steps end at them.

    Parameters
    ----------
    times : (T,) increasing
    values : (T, heads, d, d), or a `QKV` with a leading axis of length T
    interpolation : "linear" or "constant"

    Raises
    ------
    InputError
        For times that do not increase, or values that do not fit them.

    Source: the depth-dependent heads of [MHT] section 1, layer by layer.
    """

    def __init__(
        self, times: Sequence[float], values: ArrayLike | QKV, interpolation: str = "linear"
    ) -> None:
        self.times = reals(times, "times")
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

    def _at(self, table: NDArray[np.float64], t: float) -> NDArray[np.float64]:
        # A time that rounding left just below a knot belongs to it.
        nudged = t + 1e-9 * max(1.0, abs(t))
        i = int(np.clip(np.searchsorted(self.times, nudged, side="right") - 1, 0, len(table) - 1))
        if self.interpolation == "constant" or i == len(table) - 1:
            return table[i]
        share = (t - self.times[i]) / (self.times[i + 1] - self.times[i])
        return table[i] + max(0.0, share) * (table[i + 1] - table[i])

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

    def jump(self, t: float, dt: float) -> Matrices | None:
        if self.interpolation == "linear":
            return None
        before, after = self._at(self._scores, t), self._at(self._scores, t + dt)
        return None if np.array_equal(before, after) else after

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

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        settings = dict(config)
        scores, values = settings.pop("scores"), settings.pop("values")
        law = cls(values=scores, **settings)
        if values is not None:
            law._values, law.symmetric = reals(values, "values"), False
        return law


# Laws from run files
# -------------------

LAWS: Registry[HeadLaw] = Registry(
    HeadLaw, "law", "head law", "wflow.heads",
    HeadLaw, Frozen, OrnsteinUhlenbeck, Oscillating, Schedule,
)  # fmt: skip
_Law = TypeVar("_Law", bound=type[HeadLaw])


def register(cls: _Law) -> _Law:
    """Make a class of head laws known by its name; a decorator.

    `wflow.rerun` and `wflow.verify` make such laws again from a run file: by `from_config`, from
    what `to_config` returned when the run began. The code of the class is not in the file: a law
    that differs from that of the run, by its fingerprint, is refused.

    Parameters
    ----------
    cls : subclass of `HeadLaw`; one that is registered again replaces the earlier one

    Returns
    -------
    cls

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


def law_from_config(config: dict[str, Any]) -> HeadLaw:
    """Make a law again from its `law_config`, the configuration in a run file.

    Raises
    ------
    InputError
        For a custom law whose class is not registered or is another than that of the run, for a
        configuration that does not hold the whole law, and for parameters that do not fit.
    """
    return LAWS.from_config(config)


def made_again(config: Any) -> HeadLaw | None:
    """The law of a configuration where it can be made again, None elsewhere."""
    try:
        return law_from_config(config)
    except InputError:
        return None


def law_of_run(config: dict[str, Any], law: HeadLaw | None = None) -> HeadLaw:
    """The law of a run: made from its configuration, or the one given, if it is the law of the run.

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
    from wflow.io.reading import differences  # loads h5py
    from wflow.io.schema import config_text

    if not isinstance(config["law"], dict):
        raise InputError(f"the run names no head law, but {config['law']!r}")
    if law is None:
        return law_from_config(config["law"])
    if not isinstance(law, HeadLaw):
        raise InputError(f"law is {shown(law)}: expected a wflow.heads law, the one of the run")
    asked = law_config(law)
    check_comparable({"law": asked})
    differ = differences(config["law"], json.loads(config_text(asked)))
    if differ:
        raise InputError(
            f"the law differs from that of the run in {', '.join(differ)}: give the law that the "
            "run was made with"
        )
    return law
