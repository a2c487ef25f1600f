"""L-BFGS for smooth functions of many points on the unit sphere, down to rounding.

It minimises f(p/|p|) over p in R^d (Liu and Nocedal 1989), whose gradient P_x grad f / |p| is
tangential, so that |p| hardly changes. The line search accepts by the Wolfe conditions or, where
differences of f are lost in rounding, by the approximate Wolfe conditions of Hager and Zhang (SIAM
J. Optim. 16, 2005, eq. 4.1), which compare slopes: so gradients become as small as their own
rounding allows, not the square root of that of f.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Objective = Callable[[Array], tuple[float, Array]]
Solver = Callable[[Array], Array]

# Constants of the line search (Hager and Zhang), number of stored pairs, of trials.
_DELTA, _SIGMA, _MEMORY, _TRIALS = 0.1, 0.9, 12, 30
# Without a smaller gradient for so many iterations, rounding is reached.
_PATIENCE = 25
_NORMS = (0.7, 1.5)  # of p, beyond which p is normalised
_NOISE = 1e-15  # relative rounding of a value


@dataclass(frozen=True)
class Minimum:
    """Result of a minimisation.

    x : the points; value : f there; gradient_norm : sqrt(g . M^{-1} g), g the tangential gradient
    """

    x: Array
    value: float
    gradient_norm: float
    iterations: int
    evaluations: int
    converged: bool


class _Point:
    """p, x = p/|p|, and f with its gradient by p."""

    def __init__(self, objective: Objective, p: Array) -> None:
        self.p = p
        self.norm = np.sqrt(np.einsum("...k,...k->...", p, p))[..., None]
        self.x = p / self.norm
        self.value, gradient = objective(self.x)
        radial = np.einsum("...k,...k->...", gradient, self.x)[..., None]
        self.tangential = gradient - radial * self.x
        self.gradient = self.tangential / self.norm


def minimise(
    objective: Objective,
    x: Array,
    *,
    tolerance: float,
    rounding: float,
    precondition: Solver = lambda g: g,
    max_iterations: int = 500,
) -> Minimum:
    """Minimise f locally over points on the sphere, from the start x (..., d).

    Parameters
    ----------
    objective : x (..., d) of norm one -> f(x), gradient in R^d (its radial part does not matter)
    tolerance : on sqrt(g . M^{-1} g), g the tangential gradient
    rounding : absolute error of f by rounding
    precondition : g -> M^{-1} g, M a positive definite guess of the Hessian
    """
    here = best = _Point(objective, x)
    size = best_size = _size(here.tangential, precondition)
    memory: deque[tuple[Array, Array]] = deque(maxlen=_MEMORY)
    iterations, evaluations, idle = 0, 1, 0
    while size > tolerance and iterations < max_iterations and idle < _PATIENCE:
        direction = -_inverse_hessian(here.gradient, memory, precondition)
        slope = float(np.vdot(direction, here.gradient))
        there, used = None, 0
        if slope < 0:
            noise = rounding + _NOISE * abs(here.value)
            there, used = _search(objective, here, direction, slope, noise)
        evaluations += used
        iterations += 1
        if there is None:
            if not memory:
                break
            memory.clear()  # once more, along the preconditioned gradient
            continue
        s, y = there.p - here.p, there.gradient - here.gradient
        if np.vdot(s, y) > 1e-14 * np.sqrt(np.vdot(s, s) * np.vdot(y, y)):
            memory.append((s, y))
        here = there
        if here.norm.min() < _NORMS[0] or here.norm.max() > _NORMS[1]:
            here.p, here.gradient, here.norm = here.x, here.tangential, np.ones_like(here.norm)
            memory.clear()
        size = _size(here.tangential, precondition)
        # Once f changes by rounding only, the point with the smaller gradient is the better one.
        idle = 0 if size < best_size or here.value < best.value - rounding else idle + 1
        if size < best_size or here.value < best.value - rounding:
            best, best_size = here, size
    return Minimum(
        best.x, best.value, best_size, iterations, evaluations, bool(best_size <= tolerance)
    )


def _size(gradient: Array, precondition: Solver) -> float:
    return math.sqrt(max(0.0, float(np.vdot(gradient, precondition(gradient)))))


def _inverse_hessian(
    gradient: Array, memory: deque[tuple[Array, Array]], precondition: Solver
) -> Array:
    """Apply the inverse Hessian by the two-loop recursion."""
    q = gradient.copy()
    shares = []
    for s, y in reversed(memory):
        share = float(np.vdot(s, q) / np.vdot(s, y))
        q -= share * y
        shares.append(share)
    q = precondition(q)
    if memory:
        s, y = memory[-1]
        q = q * float(np.vdot(s, y) / np.vdot(y, precondition(y)))
    for (s, y), share in zip(memory, reversed(shares), strict=True):
        q = q + (share - float(np.vdot(y, q) / np.vdot(s, y))) * s
    return q


def _search(
    objective: Objective, here: _Point, direction: Array, slope: float, rounding: float
) -> tuple[_Point | None, int]:
    """Return a point along `direction` with the (approximate) Wolfe conditions, and its cost."""
    low, low_slope, high, high_slope = 0.0, slope, np.inf, np.inf
    # Longer than a radian, a step says little about the sphere.
    longest = math.sqrt(float((direction**2).sum(axis=-1).max()))
    alpha = min(1.0, 1.0 / longest)
    for trial in range(1, _TRIALS + 1):
        there = _Point(objective, here.p + alpha * direction)
        fall = there.value - here.value
        now = float(np.vdot(direction, there.gradient))
        if np.isfinite(fall) and now >= _SIGMA * slope:
            decrease = fall <= _DELTA * alpha * slope
            if decrease or (now <= (2 * _DELTA - 1) * slope and fall <= rounding):
                return there, trial
        if not np.isfinite(fall) or (now < 0 and fall > rounding):
            high, high_slope = alpha, np.inf
        elif now < 0:
            low, low_slope = alpha, now
        else:
            high, high_slope = alpha, now
        if np.isinf(high):
            alpha *= 3.0
            continue
        width = high - low
        alpha = low + width / 2
        if np.isfinite(high_slope) and high_slope > low_slope:
            secant = low - low_slope * width / (high_slope - low_slope)
            alpha = float(np.clip(secant, low + 0.1 * width, high - 0.1 * width))
        if width <= 1e-15 * max(1.0, high):
            break
    return None, trial
