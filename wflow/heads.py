"""Head laws: how the interaction matrices D_h move in time (docs/mathematics.md section 2).

A law answers three questions for the solver: its drift f(D, t), the size sigma of its noise, and
what one time step adds to the heads. A new law is a subclass of `HeadLaw` with its own `drift`,
or a `HeadLaw` made from two callables.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._checks import number, whole
from wflow._law import HeadLaw, Step
from wflow._matrices import Matrices, as_matrices, check_fits, finite, is_symmetric
from wflow.errors import InputError

__all__ = [
    "QKV",
    "Frozen",
    "HeadLaw",
    "OrnsteinUhlenbeck",
    "Oscillating",
    "Schedule",
    "Step",
    "law_from_config",
]


class Frozen(HeadLaw):
    """Heads that stay as they are: dD = 0, autonomous dynamics."""

    def config(self) -> dict[str, Any]:
        return {"name": "Frozen"}


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
        self.sigma2, self.exact = number(sigma2, "sigma2", least=0.0), bool(exact)

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

    def config(self) -> dict[str, Any]:
        return {
            "name": "OrnsteinUhlenbeck",
            "mean": self.mean.tolist(),
            "rate": self.rate,
            "sigma2": self.sigma2,
            "exact": self.exact,
        }


class Oscillating(HeadLaw):
    """dD_h = (M_h(t) - D_h) dt towards a target that oscillates and never settles.

    With a = t + phi_h. d = 2: M has diagonal (2 + 1.5 cos a, 2 - 1.5 cos a), off it sin 2a.
    d = 3: diagonal (2 + 1.5 cos a, 2 + 1.5 sin a, 2 + 1.5 cos(a + pi/4)), entries (1,2) = sin 2a,
    (1,3) = sin a, (2,3) = cos 2a. d >= 4: diagonal 2 + 1.5 cos(a + 2 pi i/d), the p-th of the P
    entries above it sin(2a + 2 pi p/P), i and p from 0.

    Parameters
    ----------
    d : dimension, >= 2
    phases : "spread" for phi_h = 2 pi h/heads, "common" for phi_h = 0
    sigma2 : sigma^2 >= 0 of symmetric noise, per unit time; 0 in [MHT]

    Source: [MHT] section 6, oscillating weights; docs/mathematics.md section 2.
    """

    def __init__(self, d: int, phases: str = "spread", sigma2: float = 0.0) -> None:
        self.d, self.sigma2 = whole(d, "d", least=2), number(sigma2, "sigma2", least=0.0)
        super().__init__(diffusion=math.sqrt(self.sigma2))
        if phases not in ("spread", "common"):
            raise InputError(f"phases is {phases!r}: expected 'spread' or 'common'")
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

    def config(self) -> dict[str, Any]:
        return {
            "name": "Oscillating",
            "d": self.d,
            "phases": self.phases,
            "sigma2": self.sigma2,
        }


@dataclass(frozen=True)
class QKV:
    """General attention heads: score scale <Q_h x, K_h y>, output V_h times the softmax average.

    They run with flow="softmax" and have no energy. `scale` None is 1 / sqrt(key dimension).

    Parameters
    ----------
    query, key : (heads, k, d); for a schedule (times, heads, k, d)
    value : (heads, d, d); for a schedule (times, heads, d, d)
    scale : factor of the scores

    Source: multi-head attention, [MHT] eq. 1; docs/mathematics.md section 1.
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
            finite(array, f"QKV.{name}")
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
        return scale * np.einsum("...ka,...kb->...ab", query, key), value


class Schedule(HeadLaw):
    """Heads with given values at given times, such as the layers of a trained network.

    "linear" interpolates between the times: drift (D_{i+1} - D_i)/(t_{i+1} - t_i). "constant"
    holds D_i on [t_i, t_{i+1}) and jumps; the ledger books the energy of a jump as work of the
    weights. Before the first and after the last time the heads stand still.
    Times that fall on steps keep the order of the scheme.

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
        self.times = finite(times, "times")
        if self.times.ndim != 1 or not self.times.size or np.any(np.diff(self.times) <= 0):
            raise InputError("times must be a non-empty list of increasing numbers")
        if interpolation not in ("linear", "constant"):
            raise InputError(f"interpolation is {interpolation!r}: expected 'linear' or 'constant'")
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
        # Constant values stay those of the start of the step; they jump after it, like the scores.
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

    def step(self, D: Matrices, t: float, dt: float, normals: Matrices | None) -> Step:
        return Step(self.drift_within(t, dt)(D, t), None, None)

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

    def config(self) -> dict[str, Any]:
        return {
            "name": "Schedule",
            "times": self.times.tolist(),
            "interpolation": self.interpolation,
            "scores": self._scores.tolist(),
            "values": None if self._values is None else self._values.tolist(),
        }


def law_from_config(config: dict[str, Any]) -> HeadLaw:
    """Make a law again from what its `config` wrote into a run file.

    Raises
    ------
    InputError
        For a law made of callables, which are not data.
    """
    settings = dict(config)
    name = settings.pop("name", None)
    if name == "Frozen":
        return Frozen()
    if name == "OrnsteinUhlenbeck":
        return OrnsteinUhlenbeck(**settings)
    if name == "Oscillating":
        return Oscillating(**settings)
    if name == "Schedule":
        law = Schedule(settings["times"], settings["scores"], settings["interpolation"])
        if settings["values"] is not None:
            law._values, law.symmetric = np.array(settings["values"]), False
        return law
    raise InputError(
        f"the law {name!r} was made of Python functions, which a run file does not hold; call "
        "wflow.solve with that law"
    )
