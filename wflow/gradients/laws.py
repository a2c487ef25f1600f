"""Adjoints of the head laws: from cotangents of the heads in a step to those of the parameters.

A law of wflow is a few linear maps of its parameters and the noise, so that each of its steps is
transposed by hand. The noise is held fast. Cotangents of parameters are kept for each path, and
added up in the order of the paths.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow.heads.laws import Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating, Schedule
from wflow.heads.process import HeadStep

Array = NDArray[np.floating]


class LawAdjoint:
    """Adjoint of a law: this one of heads at rest; those of other laws are subclasses.

    Attributes
    ----------
    sums : name of a parameter -> its cotangents, (paths, *shape)
    """

    def __init__(self, law: HeadLaw, paths: int) -> None:
        self.law: Any = law
        self.sums: dict[str, Array] = {}

    def drift(self, f: Array, D: Array, t: float, dt: float) -> Array | float:
        """Take the cotangent f of a drift at D in the step from t to t + dt; return that of D."""
        return 0.0

    def noise(self, end: Array, mean: Array, step: HeadStep) -> None:
        """Take the cotangents of the noise of a step and of its mean."""

    def jump(self, D: Array, t: float, dt: float) -> None:
        """Take the cotangent of the heads after the jumps of a step."""

    def values(self, V: Array, t: float, start: float) -> None:
        """Take the cotangent of the value matrices at a time of a step from `start`."""

    def initial(self, D: Array) -> None:
        """Take the cotangent of the heads at time 0."""

    def _add(self, name: str, cotangents: Array) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + cotangents

    def _add_variance(self, end: Array, mean: Array, step: HeadStep) -> None:
        """Add the cotangent of sigma^2, to the root of which both noises are proportional."""
        for cotangent, noise in ((end, step.noise), (mean, step.mean_noise)):
            if noise is not None:
                self._add("sigma2", _inner(cotangent, noise) / (2 * self.law.sigma2))


class _OrnsteinUhlenbeck(LawAdjoint):
    def drift(self, f: Array, D: Array, t: float, dt: float) -> Array:
        rate, slope = self.law.rate, 1.0
        if self.law.exact:  # the drift is (1 - e^(-rate dt))/dt (M - D)
            rate, slope = -math.expm1(-rate * dt) / dt, math.exp(-rate * dt)
        self._add("mean", rate * (f if self.law.mean.ndim == 3 else f.sum(axis=1)))
        self._add("rate", slope * _inner(f, self.law.mean - D))
        return -rate * f

    def noise(self, end: Array, mean: Array, step: HeadStep) -> None:
        self._add_variance(end, mean, step)
        if self.law.exact and step.noise is not None:
            # The noise is proportional to the root of (1 - e^(-u))/rate, u = 2 rate dt.
            u = 2 * self.law.rate * float(step.dt)
            change = (_bernoulli(u) - 1) / (2 * self.law.rate)
            if u < 0.1:  # where the difference cancels: by its series
                terms = -1 / 2, u / 12, -(u**3) / 720, u**5 / 30240, -(u**7) / 1209600
                change = float(step.dt) * sum(terms)
            self._add("rate", change * _inner(end, step.noise))


class _Oscillating(LawAdjoint):
    def drift(self, f: Array, D: Array, t: float, dt: float) -> Array:
        return -f

    def noise(self, end: Array, mean: Array, step: HeadStep) -> None:
        self._add_variance(end, mean, step)


class _Schedule(LawAdjoint):
    def __init__(self, law: Schedule, paths: int) -> None:
        super().__init__(law, paths)
        shape = (paths, len(law.times), *law.initial()[0].shape)
        self.sums["scores"] = np.zeros(shape)
        if law.values(0.0) is not None:
            self.sums["values"] = np.zeros(shape)

    def _at(self, name: str, cotangent: Array, t: float) -> None:
        """Add the cotangent of the table at a time to those of the knots beside it."""
        knot, share = self.law.knot_at(t)
        self.sums[name][:, knot] += (1 - (share or 0.0)) * cotangent
        if share:
            self.sums[name][:, knot + 1] += share * cotangent

    def drift(self, f: Array, D: Array, t: float, dt: float) -> float:
        if self.law.interpolation == "linear":
            self._at("scores", f / dt, t + dt)
            self._at("scores", -f / dt, t)
        return 0.0

    def jump(self, D: Array, t: float, dt: float) -> None:
        if self.law.interpolation == "constant":
            self._at("scores", D, t + dt)
            self._at("scores", -D, t)

    def values(self, V: Array, t: float, start: float) -> None:
        if "values" in self.sums:
            self._at("values", V, t if self.law.interpolation == "linear" else start)

    def initial(self, D: Array) -> None:
        self._at("scores", D, 0.0)


def _bernoulli(u: float) -> float:
    """Return u/(e^u - 1) for u > 0, without leaving the range of floats."""
    return -u * math.exp(-u) / math.expm1(-u)


def _inner(a: Array, b: Array) -> Array:
    """Return <a, b> of each path."""
    return np.einsum("phkl,phkl->p", a, b)


ADJOINTS: dict[type[HeadLaw], type[LawAdjoint]] = {
    Frozen: LawAdjoint,
    OrnsteinUhlenbeck: _OrnsteinUhlenbeck,
    Oscillating: _Oscillating,
    Schedule: _Schedule,
}
