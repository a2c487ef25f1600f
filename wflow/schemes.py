"""Time stepping on the sphere by explicit Runge-Kutta schemes (docs/mathematics.md section 3).

Tokens move by R(x + dt v), R = division by the norm. The velocity is extended off the sphere by
v(x) = v(x/|x|), which leaves the sphere invariant, so a Runge-Kutta scheme of order p for the
extended field, brought back to the sphere after each step, keeps order p. Stages are evaluated at
R(x + dt sum_j a_j k_j).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wflow.ledger import Terms
from wflow.sphere import exponential, normalise

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Scheme:
    """An explicit Runge-Kutta tableau whose stages depend on the stage before them only.

    order : order of convergence for deterministic laws; with noise `euler` is Euler-Maruyama,
        strong order 1 for the additive noise of the heads, and the only one allowed
    nodes : stage i is evaluated at t + nodes[i] dt, from nodes[i] times the slope of stage i - 1
    weights : of the stage slopes in the step
    """

    name: str
    order: int
    nodes: tuple[float, ...]
    weights: tuple[float, ...]


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("euler", 1, (0.0,), (1.0,)),
        Scheme("heun", 2, (0.0, 1.0), (0.5, 0.5)),
        Scheme("rk4", 4, (0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
    )
}


@dataclass(frozen=True)
class Stage:
    """Slopes at one stage: velocity (paths, n, d), drift (paths, heads, d, d) or None, terms."""

    velocity: Array
    drift: Array | None
    terms: Terms


def advance(
    scheme: Scheme,
    x: Array,
    D: Array,
    dt: float,
    first: Stage,
    noise: Array | None,
    stage_at: Callable[[float, Array, Array], Stage],
    token_noise: Array | None = None,
) -> tuple[Array, Array, list[Terms]]:
    """One step of tokens x (paths, n, d) and heads D (paths, heads, d, d).

    Parameters
    ----------
    first : the stage at the left end, already evaluated
    noise : increment of the heads, added whole (Euler-Maruyama)
    stage_at : (node, x, D) -> Stage at t + node dt
    token_noise : tangential increment of the tokens (paths, n, d), likewise: a geodesic of that
        length, whose curvature supplies the drift -kappa (d - 1) x of Brownian motion

    Returns
    -------
    x, D after the step, and the terms of every stage, for the ledger
    """
    stages = [first]
    for node in scheme.nodes[1:]:
        last = stages[-1]
        inner_x = normalise(x + (node * dt) * last.velocity)
        inner_d = D if last.drift is None else D + (node * dt) * last.drift
        stages.append(stage_at(node, inner_x, inner_d))
    move = _combine(dt, scheme.weights, [stage.velocity for stage in stages])
    x = normalise((x if token_noise is None else exponential(x, token_noise)) + move)
    drifts = [stage.drift for stage in stages if stage.drift is not None]
    if drifts:
        D = D + _combine(dt, scheme.weights, drifts)
    if noise is not None:
        D = D + noise
    return x, D, [stage.terms for stage in stages]


def _combine(dt: float, weights: tuple[float, ...], slopes: list[Array]) -> Array:
    total = (dt * weights[0]) * slopes[0]
    for weight, slope in zip(weights[1:], slopes[1:], strict=True):
        total += (dt * weight) * slope
    return total
