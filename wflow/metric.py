"""The transport metric weighted by the effective mobility: action, metric derivative, distance W_b.

    W_b(mu, nu)^2 = min int_0^1 (1/n) sum_i b(x_i; mu_t) |v_i|^2 dt,   b = [(1/H) sum_h 1/m_h]^{-1},

over curves of clouds from mu to nu, the heads D_h being frozen: [MHT] Definition 3.5 after the
reduction of Lemma 3.8 to one velocity per token. docs/mathematics.md has the derivations.
"""

import math
import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._checks import positive, whole
from wflow._geodesics import angles, geodesics, refined, spring_solver, squared_distances
from wflow._matrices import as_matrices, finite
from wflow._minimise import minimise
from wflow._path_action import (
    PathAction,
    as_cloud,
    as_heads,
    check_moderate,
    discrete_action,
    matching,
    recouple,
    spectral_norms,
)
from wflow._threads import threads_for
from wflow._weighted import weighted_sums
from wflow.errors import InputError
from wflow.heads import QKV

__all__ = ["Bounds", "Distance", "action", "bounds", "metric_derivative", "weighted_distance"]

_ROUNDING = 4e-15
_ROUNDS = 50  # of minimisation and matching in turn
Array = NDArray[np.floating]


class Bounds(NamedTuple):
    """Two-sided bound c1 W_2 <= W_b <= c2 W_2.

    lower, upper : c1 W_2 and c2 W_2
    w2 : W_2, geodesic cost
    c1, c2 : with c1^2 <= b <= c2^2 for every cloud and every token
    """

    lower: float
    upper: float
    w2: float
    c1: float
    c2: float


@dataclass(frozen=True)
class Distance:
    """W_b of two clouds as `weighted_distance` found it.

    Attributes
    ----------
    value : sqrt(action)
    action : discrete action of `curve`
    curve : (K + 1, n, d), from x to the tokens of y in the order of `coupling`
    coupling : (n,), token i of x goes to token coupling[i] of y
    mobility : (K + 1, n), b at the nodes
    extrapolated : sqrt((4 A_K - A_{K/2})/3), Richardson; NaN where no A_{K/2} was computed on the
        way: K odd or 2, or the search began again from the geodesics with K segments
    bounds : the rigorous two-sided bound; `value` and W_b itself lie within it
    path_lower, path_upper : W_2 sqrt(min b) along `curve`, and W_2 sqrt(max b) along the W_2
        geodesics: sharper; the first holds if `curve` is optimal, both up to the discretisation
    iterations, evaluations : of the minimiser, over all rounds
    gradient_norm : relative, sqrt(g M^{-1} g / A), at the end
    converged : whether the gradient met the tolerance and no matching could be improved
    """

    value: float
    action: float
    curve: Array = field(repr=False)
    coupling: NDArray[np.intp] = field(repr=False)
    mobility: Array = field(repr=False)
    extrapolated: float
    bounds: Bounds
    path_lower: float
    path_upper: float
    iterations: int
    evaluations: int
    gradient_norm: float
    converged: bool


def action(curve: ArrayLike, times: ArrayLike, D: ArrayLike | None = None) -> float:
    """Action int (1/n) sum_i b(x_i) |v_i|^2 dt of a curve of clouds, by the trapezoidal rule.

    sum_k (1/dt_k) (1/n) sum_i (b_i^k + b_i^{k+1})/2 |x_i^k, x_i^{k+1}|^2, second order in dt.

    Parameters
    ----------
    curve : (K + 1, n, d) unit tokens; token i keeps its label
    times : (K + 1,), increasing
    D : (heads, d, d), or (K + 1, heads, d, d) for heads that move; symmetric. None: b = 1

    Returns
    -------
    float

    Raises
    ------
    InputError
        For wrong shapes, tokens off the sphere, times that do not increase, asymmetric heads.

    Source: [MHT] eq. 30 and 38.
    """
    clouds = _curve(curve)
    t = _times(times, len(clouds))
    b = _mobilities(clouds, D)
    square = angles(clouds[:-1], clouds[1:]) ** 2
    return float((((b[:-1] + b[1:]) / 2 * square).mean(axis=1) / np.diff(t)).sum())


def metric_derivative(x: ArrayLike, v: ArrayLike, D: ArrayLike | None = None) -> float:
    """Speed of a moving cloud in the weighted metric: sqrt((1/n) sum_i b(x_i) |v_i|^2).

    Exact where v is the velocity field of least action for its curve, as it is for a function of
    the token on a cloud of distinct tokens: [MHT] Lemma 3.8.

    Parameters
    ----------
    x : (n, d) unit tokens
    v : (n, d) velocities; their radial part does not count
    D : (heads, d, d) symmetric; None for the classical metric, b = 1

    Returns
    -------
    float

    Raises
    ------
    InputError
        For wrong shapes, tokens off the sphere, velocities that are not finite, asymmetric heads.

    Source: [MHT] eq. 38 and 41.
    """
    cloud = as_cloud(x)
    velocity = finite(v, "v")
    if velocity.shape != cloud.shape:
        raise InputError(f"v has shape {velocity.shape}, expected that of x, {cloud.shape}")
    b = _mobilities(cloud[None], D)[0]
    tangential = velocity - np.einsum("ik,ik->i", velocity, cloud)[:, None] * cloud
    return math.sqrt(float((b * (tangential**2).sum(axis=1)).mean()))


def bounds(x: ArrayLike, y: ArrayLike, D: ArrayLike) -> Bounds:
    """Two-sided bound c1 W_2(x, y) <= W_b(x, y) <= c2 W_2(x, y) that holds for every pair.

    c1^2 = [(1/H) sum_h e^{|D_h|}]^{-1} and c2^2 = [(1/H) sum_h e^{-|D_h|}]^{-1}, |D_h| the spectral
    norm: e^{-|D_h|} <= m_h <= e^{|D_h|} for any cloud.

    Parameters
    ----------
    x, y : (n, d) unit tokens, as many in both
    D : (heads, d, d) symmetric

    Returns
    -------
    Bounds

    Raises
    ------
    InputError
        For wrong shapes, different numbers of tokens, tokens off the sphere, asymmetric heads.

    Source: [MHT] Proposition 3.7, eq. 33.
    """
    a, c = _pair(x, y)
    heads = as_heads(D, a.shape[1])
    return _bounds(_w2(a, c)[0], heads)


def weighted_distance(
    x: ArrayLike,
    y: ArrayLike,
    D: ArrayLike,
    *,
    segments: int = 16,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Distance:
    """Distance W_b of two clouds in the metric weighted by b, by minimising the discrete action.

    W_b^2 ~ min K sum_k (1/n) sum_i (b_i^k + b_i^{k+1})/2 |x_i^k, x_i^{k+1}|^2 over the nodes
    0 < k < K of n particle paths on the sphere. From the W_2 geodesics, with ever more segments:
    L-BFGS with exact gradients (b depends on the whole cloud), in turn with the optimal matching
    of every segment, until neither lowers the action.

    The value is an upper bound of W_b up to the error of the discretisation, O(1/K^2): the tokens
    of a particle move together (no mass is split), and the minimum is a local one: on the circle,
    for instance, a token does not try the way round the other side. It lies within `bounds`.

    Parameters
    ----------
    x, y : (n, d) unit tokens, as many in both
    D : (heads, d, d) symmetric, norms up to 64
    segments : K
    tolerance : on sqrt(g M^{-1} g / A), g the gradient of the action A and M the Hessian of the
        springs between the nodes; the error of the action is of the order tolerance^2 A
    max_iterations : of L-BFGS, per level of refinement and round of matching

    Returns
    -------
    Distance; with a RuntimeWarning where it did not converge

    Raises
    ------
    InputError
        For wrong shapes, different numbers of tokens, tokens off the sphere, asymmetric or too
        large heads, segments < 1, tolerance <= 0.

    Source: [MHT] Definition 3.5, eq. 30, and Lemma 3.8.
    """
    start, end = _pair(x, y)
    heads = as_heads(D, start.shape[1])
    check_moderate(heads)
    segments = whole(segments, "segments")
    positive(tolerance, "tolerance")
    whole(max_iterations, "max_iterations")

    pairs = len(start) ** 2 * len(heads) * segments
    with threads_for(pairs):
        return _distance(start, end, heads, segments, tolerance, max_iterations)


def _distance(
    start: Array, end: Array, heads: Array, segments: int, tolerance: float, max_iterations: int
) -> Distance:
    w2, labels = _w2(start, end)
    straight = geodesics(start, end[labels], segments)
    b_straight = weighted_sums(straight, heads[None], np.zeros(straight.shape[:2]), False)[0]
    coarsest = segments
    while coarsest % 2 == 0:
        coarsest //= 2
    if coarsest == 1 and segments > 1:
        coarsest = 2  # with one segment there is nothing to minimise
    levels = [coarsest]
    while levels[-1] < segments:
        levels.append(2 * levels[-1])
    search = _Search(heads, tolerance, max_iterations)
    curve = geodesics(start, end[labels], coarsest)
    found = search.descend(curve, labels)
    actions = [found.action]
    for _ in levels[1:]:
        found = search.descend(refined(found.curve), found.labels)
        actions.append(found.action)
    if found.action > discrete_action(straight, b_straight) * (1 + 1e-12):
        # The coarse levels led to a worse valley than the geodesics themselves lie in.
        found = search.descend(straight, labels)
        actions = [found.action]
    if not found.converged:
        warnings.warn(
            f"the weighted distance did not converge: relative gradient {found.gradient_norm:.3g} "
            f"against a tolerance of {tolerance:g} after {search.iterations} iterations; the value "
            "is that of the best path found. Allow more iterations, or fewer segments",
            RuntimeWarning,
            stacklevel=3,
        )
    extrapolated = math.nan
    if len(actions) > 1:
        extrapolated = math.sqrt(max(0.0, (4 * actions[-1] - actions[-2]) / 3))
    return Distance(
        value=math.sqrt(found.action),
        action=found.action,
        curve=found.curve,
        coupling=found.labels,
        mobility=found.b,
        extrapolated=extrapolated,
        bounds=_bounds(w2, heads),
        path_lower=w2 * math.sqrt(float(found.b.min())),
        path_upper=w2 * math.sqrt(float(b_straight.max())),
        iterations=search.iterations,
        evaluations=search.evaluations,
        gradient_norm=found.gradient_norm,
        converged=found.converged,
    )


class _Found(NamedTuple):
    curve: Array
    b: Array
    labels: NDArray[np.intp]
    action: float
    gradient_norm: float
    converged: bool


class _Search:
    """Descent in the nodes and matching of the segments, in turn."""

    def __init__(self, D: Array, tolerance: float, max_iterations: int) -> None:
        self.D, self.tolerance, self.max_iterations = D, tolerance, max_iterations
        self.iterations = self.evaluations = 0

    def descend(self, curve: Array, labels: NDArray[np.intp]) -> _Found:
        """The local minimum that a curve leads to; `labels` are those of its last node."""
        for _ in range(_ROUNDS):
            objective = PathAction(self.D, curve[0], curve[-1])
            nodes, size, converged = curve[1:-1], 0.0, True
            b = objective.at(nodes)
            scale = discrete_action(curve, b)
            if len(nodes) and scale > 0:
                # Positions are known to rounding only, and the springs are K times as stiff.
                floor = _ROUNDING * (len(curve) - 1) * math.sqrt(curve.shape[2] * float(b.max()))
                stiffness = 2 * (len(curve) - 1) / curve.shape[1] * (b[:-1] + b[1:]) / 2
                found = minimise(
                    objective,
                    nodes,
                    tolerance=self.tolerance * math.sqrt(scale) + floor,
                    rounding=1e-14 * scale,
                    precondition=spring_solver(stiffness, free_end=False),
                    max_iterations=self.max_iterations,
                )
                self.iterations += found.iterations
                self.evaluations += found.evaluations
                nodes, size = found.x, found.gradient_norm / math.sqrt(scale)
                converged = found.converged
            curve = objective.curve(nodes)
            b = objective.at(nodes)
            curve, b, changed = recouple(curve, b)
            if changed is None:
                break
            labels = labels[changed]
        else:
            converged = False
        return _Found(curve, b, labels, discrete_action(curve, b), size, converged)


def _bounds(w2: float, D: Array) -> Bounds:
    norms = spectral_norms(D)
    largest = float(norms.max())
    # Scaled by the largest term: e^{|D|} itself may be out of range.
    c1 = math.exp(-largest / 2) / math.sqrt(float(np.exp(norms - largest).mean()))
    least = float(norms.min())
    with np.errstate(over="ignore"):
        c2 = float(np.exp(least / 2)) / math.sqrt(float(np.exp(least - norms).mean()))
    return Bounds(c1 * w2, c2 * w2 if w2 > 0 else 0.0, w2, c1, c2)  # c2 may be inf


def _w2(x: Array, y: Array) -> tuple[float, NDArray[np.intp]]:
    cost = squared_distances(x, y)
    labels = matching(cost)
    return math.sqrt(float(cost[np.arange(len(x)), labels].mean())), labels


def _pair(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    a, b = as_cloud(x, "x"), as_cloud(y, "y")
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"x has dimension {a.shape[1]} and y {b.shape[1]}: clouds on the same sphere are needed"
        )
    if len(a) != len(b):
        raise InputError(
            f"x has {len(a)} tokens and y {len(b)}: the paths are those of particles of equal "
            "mass; take as many tokens from both, for instance a random subset of the larger"
        )
    return a, b


def _mobilities(clouds: Array, D: ArrayLike | None) -> Array:
    """b (clouds, n), for heads that are None, constant, or one set per cloud."""
    if D is None:
        return np.ones(clouds.shape[:2])
    moving = None if isinstance(D, QKV) else as_matrices(D, "D", symmetric=True)
    if moving is None or moving.ndim != 4:
        heads = as_heads(D, clouds.shape[-1])[None]
    elif len(moving) != len(clouds):
        raise InputError(
            f"D has shape {moving.shape}, expected (heads, d, d), or ({len(clouds)}, heads, d, d) "
            "with the heads at every time of the curve"
        )
    else:
        heads = moving
        as_heads(heads[0], clouds.shape[-1])
    check_moderate(heads)
    return weighted_sums(clouds, np.ascontiguousarray(heads), np.zeros(clouds.shape[:2]), False)[0]


def _curve(curve: ArrayLike) -> Array:
    clouds = finite(curve, "curve")
    if clouds.ndim != 3 or len(clouds) < 2:
        raise InputError(
            f"curve has shape {clouds.shape}, expected (times, n, d) with at least two times"
        )
    return np.stack([as_cloud(cloud, f"curve[{k}]") for k, cloud in enumerate(clouds)])


def _times(times: ArrayLike, count: int) -> Array:
    t = finite(times, "times")
    if t.shape != (count,) or np.any(np.diff(t) <= 0):
        raise InputError(
            f"times have shape {t.shape}, expected {count} increasing numbers, one per cloud"
        )
    return t
