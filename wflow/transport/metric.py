"""Metrics of token clouds: W₂, the metric W_b weighted by the effective mobility, and custom ones.

    W_b(mu, nu)^2 = min int_0^1 (1/n) sum_i b(x_i; mu_t) |v_i|^2 dt,   b = [(1/H) sum_h 1/m_h]^{-1},

over curves of clouds from mu to nu, the heads D_h being frozen: [MHT] Definition 3.5 after the
reduction of Lemma 3.8 to one velocity per token. With b = 1 it is W₂. `Metric` is what minimizing
movements (`wflow.transport.jko`) need of any such metric; `weighted_distance` computes W_b of two
clouds. docs/theory/weighted_metric.md has the derivations.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import MetricName, positive, reals, shown, whole
from wflow._core.errors import InputError
from wflow._core.identity import Described, Registry
from wflow._core.memory import check_memory
from wflow._core.threads import threads_for
from wflow.attention import flows
from wflow.heads.laws import QKV
from wflow.heads.matrices import as_matrices
from wflow.kernels.pairs.mobility import weighted_sums
from wflow.kernels.pairs.sweep import DIRECT_BOUND_DOUBLE
from wflow.sphere.geodesics import (
    angles,
    geodesics,
    logarithm,
    refined,
    spring_solver,
    squared_distances,
)
from wflow.transport.distances import as_cloud, assign, pair
from wflow.transport.minimise import Objective, Solver, minimise

__all__ = ["Bounds", "Distance", "action", "bounds", "metric_derivative", "weighted_distance"]

Array = NDArray[np.floating]

# The discrete action of a path of clouds, and its couplings
# ----------------------------------------------------------
#
#     A = K sum_{k<K} (1/n) sum_i (b_i^k + b_i^{k+1})/2 |x_i^k, x_i^{k+1}|^2
#
# for a broken geodesic with nodes 0..K at equal times in [0, 1], |.,.| the geodesic distance and b
# the mobility within the cloud of a node: the trapezoidal rule for int (1/n) sum b |v|^2 dt.


def discrete_action(curve: Array, b: Array) -> float:
    """A of a curve (K + 1, n, d) with mobilities b (K + 1, n)."""
    segments, n = len(curve) - 1, curve.shape[1]
    square = angles(curve[:-1], curve[1:]) ** 2
    return float(segments / n * ((b[:-1] + b[1:]) / 2 * square).sum())


def action_and_gradient(
    metric: Metric, curve: Array, D: Array, b_ends: Array
) -> tuple[float, Array]:
    """A of a curve (K + 1, n, d), and its gradient by the nodes that move.

    Parameters
    ----------
    metric : gives b
    b_ends : (1, n), b of node 0, where node K moves; (2, n), b of both ends, where it is fixed

    Returns
    -------
    A, gradient (nodes, n, d) in R^d, whose radial part has no meaning
    """
    segments, n = len(curve) - 1, curve.shape[1]
    nodes = curve[1 : len(curve) + 1 - len(b_ends)]
    scale = segments / n
    square = angles(curve[:-1], curve[1:]) ** 2  # (K, n)
    beside = np.zeros((segments + 1, n))
    beside[:-1] = square
    beside[1:] += square
    weights = scale / 2 * beside[1 : 1 + len(nodes)]
    b_nodes, of_b = metric.mobility_and_gradient(nodes, D, weights)
    b = np.concatenate([b_ends[:1], b_nodes, b_ends[1:]])
    spring = scale * (b[:-1] + b[1:])  # twice the weight of a segment
    gradient = of_b - spring[: len(nodes), :, None] * logarithm(nodes, curve[: len(nodes)])
    ahead = curve[2:]
    gradient[: len(ahead)] -= spring[1:, :, None] * logarithm(nodes[: len(ahead)], ahead)
    return float((spring * square).sum() / 2), gradient


def mobilities(metric: Metric, nodes: Array, D: Array, b_ends: Array) -> Array:
    """b (K + 1, n) at all nodes of a path, from those that move and b_ends (1 or 2, n)."""
    if not len(nodes):
        return b_ends
    return np.concatenate([b_ends[:1], metric.mobility(nodes, D), b_ends[1:]])


def recouple(curve: Array, b: Array) -> tuple[Array, Array, NDArray[np.int64] | None]:
    """Relabel the tokens from node to node by optimal matchings of every segment.

    Where b does not depend on labels, the sum over a segment is least for the matching with the
    cost (b_i^k + b_j^{k+1})/2 |x_i^k, x_j^{k+1}|^2, whatever the matchings of the other segments.

    Returns
    -------
    curve, b : relabelled; labels (n,) of the last node, None where nothing was gained
    """
    labels = np.arange(curve.shape[1])
    now = labels
    changed = False
    new_curve, new_b = curve.copy(), b.copy()
    for k in range(len(curve) - 1):
        ahead, b_ahead = curve[k + 1][now], b[k + 1][now]
        cost = squared_distances(new_curve[k], ahead)
        cost *= (new_b[k] / 2)[:, None] + b_ahead / 2
        better = assign(cost)
        if gains(cost, better):
            now, changed = now[better], True
        new_curve[k + 1], new_b[k + 1] = curve[k + 1][now], b[k + 1][now]
    return new_curve, new_b, now if changed else None


def gains(cost: Array, labels: NDArray[np.int64]) -> bool:
    """Whether labels cost less than the identity, by more than rounding."""
    same = float(np.trace(cost))
    # Squares of distances of order one carry errors of about 1e-16 times the distance.
    rounding = 1e-12 * same + 1e-15 * float(np.sqrt(max(same, 0.0)))
    return float(cost[np.arange(len(cost)), labels].sum()) < same - rounding


# Metrics as objects
# ------------------


class Metric(Described):
    """Metric of clouds, |v|^2 = (1/n) sum_i b_i |v_i|^2, for minimizing movements.

    The squared distance of two clouds is the least action of the paths between them,

        W^2 = min K sum_{k<K} (1/n) sum_i (b_i^k + b_i^{k+1})/2 |x_i^k, x_i^{k+1}|^2

    over the K - 1 nodes between its ends. A custom metric is a subclass with the method
    `mobility_and_gradient`, from which all else follows. It replaces `cost` and `reassign` where
    the distance has another form, `preconditioner` where that has a Hessian of another size, and
    `reassign` alone where tokens cannot be exchanged. Its gradient flow of E is v = s gbar/b.

    Attributes
    ----------
    segments : K
    limit : flow that minimizing movements tend to, as the results of `wflow.jko` name it

    Examples
    --------
    >>> import numpy as np, wflow
    >>> class Scaled(wflow.transport.Metric):  # W^2 = 4 W₂^2
    ...     def mobility_and_gradient(self, clouds, D, weights):
    ...         return np.full(clouds.shape[:2], 4.0), np.zeros(clouds.shape)
    >>> x, D = wflow.tokens.uniform(6, 3, seed=0), np.eye(3)[None]
    >>> scaled = wflow.jko.step(x, D, 0.4, metric=Scaled())
    >>> bool(np.allclose(scaled.tokens, wflow.jko.step(x, D, 0.1).tokens, atol=1e-7))
    True

    Source: [MHT] Definition 3.5 and Lemma 3.8, with the mobility b left open.
    """

    segments: int = 1
    limit: ClassVar[str] = "s gbar/b"

    def mobility_and_gradient(self, clouds: Array, D: Array, weights: Array) -> tuple[Array, Array]:
        """Mobilities b > 0, (k, n), of clouds (k, n, d), and the gradient of sum_i weights_i b_i.

        Parameters
        ----------
        clouds : (k, n, d) unit tokens
        D : (heads, d, d) symmetric
        weights : (k, n)

        Returns
        -------
        b (k, n); gradient (k, n, d) in R^d by the tokens of each cloud, its radial part of no
        meaning; zeros where b does not depend on them
        """
        raise InputError(
            f"{type(self).__name__} has no method mobility_and_gradient(clouds, D, weights): "
            "define it, or take wflow.transport.W2() or Weighted()"
        )

    def mobility(self, clouds: Array, D: Array) -> Array:
        """Mobilities b (k, n) of clouds (k, n, d) alone."""
        shape = clouds.shape[:2]
        b, gradient = map(np.asarray, self.mobility_and_gradient(clouds, D, np.zeros(shape)))
        shapes = b.shape, gradient.shape
        if shapes != (shape, clouds.shape):
            raise InputError(
                f"{type(self).__name__}.mobility_and_gradient returned shapes {shapes[0]} and "
                f"{shapes[1]} for clouds of shape {clouds.shape}: expected {shape} and "
                f"{clouds.shape}"
            )
        if not (np.isfinite(b) & (b > 0)).all():
            raise InputError(
                f"{type(self).__name__}.mobility_and_gradient returned a mobility of "
                f"{b.min():g}: expected positive numbers"
            )
        return b

    def cost(self, curve: Array, D: Array, b: Array) -> tuple[float, Array]:
        """(n/2) W^2 along a path, half the sum over its tokens, with the gradient.

        Parameters
        ----------
        curve : (K + 1, n, d), the start, which is fixed, and the nodes up to the end
        D : (heads, d, d) symmetric
        b : (n,), the mobilities at the start

        Returns
        -------
        value; gradient (K, n, d) by curve[1:] in R^d, a new array, its radial part of no meaning
        """
        value, gradient = action_and_gradient(self, curve, D, b[None])
        half = curve.shape[1] / 2
        return half * value, half * gradient

    def distance_sq(self, curve: Array, D: Array, b: Array) -> float:
        """W^2 along a path; arguments as for `cost`."""
        return 2 * self.cost(curve, D, b)[0] / curve.shape[1]

    def preconditioner(self, curve: Array, b: Array) -> Solver:
        """g -> M^{-1} g for g (K, n, d), M positive definite and near the Hessian of `cost`.

        curve : as for `cost`; b : (K + 1, n), the mobilities at all its nodes
        """
        return spring_solver(self.segments * (b[:-1] + b[1:]) / 2, free_end=True)

    def reassign(self, curve: Array, b: Array) -> tuple[Array, bool]:
        """The path with the tokens of its nodes relabelled, and whether that makes W^2 smaller.

        curve, b : as for `preconditioner`
        """
        curve, _, labels = recouple(curve, b)
        return curve, labels is not None

    def check(self, D: Array) -> None:
        """Raise InputError for heads (heads, d, d) that the metric cannot take."""


@dataclass(frozen=True)
class W2(Metric):
    """The Wasserstein metric W₂ of geodesic cost, b = 1.

        W^2 = min over permutations p of (1/n) sum_i |x_i, y_p(i)|^2

    for clouds x and y (n, d). Its methods are closed forms of those of `Metric`, which take less
    time.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(6, 3, seed=0), np.eye(3)[None]
    >>> step = wflow.jko.step(x, D, 1e-4, metric=wflow.transport.W2())
    >>> v = wflow.velocity(x, D, flow=wflow.transport.W2.limit)
    >>> bool(np.allclose((step.tokens - x) / 1e-4, v, atol=1e-3))
    True

    Source: [MHT] eq. 58.
    """

    limit: ClassVar[str] = flows.unnormalised.name

    def mobility_and_gradient(self, clouds: Array, D: Array, weights: Array) -> tuple[Array, Array]:
        return self.mobility(clouds, D), np.zeros(clouds.shape)

    def mobility(self, clouds: Array, D: Array) -> Array:
        return np.ones(clouds.shape[:2])

    def cost(self, curve: Array, D: Array, b: Array) -> tuple[float, Array]:
        x, y = curve
        return float((angles(y, x) ** 2).sum()) / 2, -logarithm(y, x)[None]

    def distance_sq(self, curve: Array, D: Array, b: Array) -> float:
        x, y = curve
        return float((angles(y, x) ** 2).mean())

    def preconditioner(self, curve: Array, b: Array) -> Solver:
        return lambda g: g

    def reassign(self, curve: Array, b: Array) -> tuple[Array, bool]:
        x, y = curve
        cost = squared_distances(x, y)
        labels = assign(cost)
        better = gains(cost, labels)
        return (np.stack([x, y[labels]]) if better else curve), better


@dataclass(frozen=True)
class Weighted(Metric):
    """The metric W_b weighted by the effective mobility b of the heads, of norms up to 64.

        W_b^2 = min K sum_{k<K} (1/n) sum_i (b_i^k + b_i^{k+1})/2 |x_i^k, x_i^{k+1}|^2

    over the nodes of the path from x to y (n, d), with b(x_i) = [(1/H) sum_h 1/m_h(x_i)]^{-1}.

    Parameters
    ----------
    segments : K; one is enough for minimizing movements of first order in tau

    Raises
    ------
    InputError
        For segments < 1.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(6, 3, seed=0), np.stack([np.eye(3), 2 * np.eye(3)])
    >>> step = wflow.jko.step(x, D, 1e-4, metric=wflow.transport.Weighted())
    >>> v = wflow.velocity(x, D, flow=wflow.transport.Weighted.limit)
    >>> bool(np.allclose((step.tokens - x) / 1e-4, v, atol=1e-3))
    True

    Source: [MHT] Definition 3.5, Lemma 3.8 and eq. 69.
    """

    segments: int = 1
    limit: ClassVar[str] = flows.effective.name

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", whole(self.segments, "segments"))

    def mobility_and_gradient(self, clouds: Array, D: Array, weights: Array) -> tuple[Array, Array]:
        return weighted_sums(clouds, D[None], weights, True)

    def mobility(self, clouds: Array, D: Array) -> Array:
        """b of clouds (k, n, d), for heads (heads, d, d) or a set of heads for every cloud."""
        heads = D if D.ndim == 4 else D[None]
        return weighted_sums(clouds, heads, np.zeros(clouds.shape[:2]), False)[0]

    def distance_sq(self, curve: Array, D: Array, b: Array) -> float:
        return discrete_action(curve, mobilities(self, curve[1:], D, b[None]))

    def check(self, D: Array) -> None:
        largest = float(spectral_norms(D).max())
        if largest > DIRECT_BOUND_DOUBLE:
            raise InputError(
                f"a head has norm {largest:.4g}: mobilities would range over e^{largest:.4g} and "
                f"beyond, and no distance weighted by them means anything in double precision; "
                f"expected norms up to {DIRECT_BOUND_DOUBLE:g}: scale the heads down"
            )


_BY_NAME: dict[str, type[Metric]] = {"w2": W2, "weighted": Weighted}
METRICS: Registry[Metric] = Registry(Metric, "metric", "metric", None, W2, Weighted)


def as_metric(metric: MetricName | Metric, segments: int | None) -> Metric:
    """The metric given, or that of a name; `segments` (None: 1) are for the name "weighted"."""
    if isinstance(metric, Metric):
        if segments is not None:
            raise InputError(
                f"segments is {shown(segments)}, beside a metric object, to which they belong: "
                "leave it out, and take for example metric=wflow.transport.Weighted(segments=8)"
            )
        whole(metric.segments, f"{type(metric).__name__}.segments")
        return metric
    if not isinstance(metric, str) or metric not in _BY_NAME:
        raise InputError(
            f"metric is {shown(metric)}: expected one of {', '.join(_BY_NAME)}, or an object of a "
            "class of metrics, such as wflow.transport.Weighted(segments=8)"
        )
    count = 1 if segments is None else whole(segments, "segments")
    cls = _BY_NAME[metric]
    return Weighted(count) if cls is Weighted else cls()


def metric_config(metric: Metric) -> str | dict[str, Any]:
    """What a configuration holds of a metric: its name; of a custom one, what identifies it.

    That is the name of its class, its parameters and its `fingerprint` (None, and the reason as
    `not_comparable`, where it cannot be compared).

    Raises
    ------
    InputError
        For a `to_config` that does not return a dict.
    """
    for name, cls in _BY_NAME.items():
        if type(metric) is cls and not METRICS.is_custom(metric):
            return name
    return METRICS.config(metric)


# The distance W_b of two clouds
# ------------------------------

_ROUNDING = 4e-15
_ROUNDS = 50  # of minimisation and matching in turn
_WEIGHTED = Weighted()


class Bounds(NamedTuple):
    """Two-sided bound c1 W₂ <= W_b <= c2 W₂.

    lower, upper : c1 W₂ and c2 W₂
    w2 : W₂, geodesic cost
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
    extrapolated : sqrt((4 A_K - A_{K/2})/3), Richardson; NaN where there is no A_{K/2}: K odd or 2,
        or the search was repeated from the geodesics with K segments
    bounds : the rigorous two-sided bound; `value` and W_b itself lie within it
    path_lower, path_upper : W₂ sqrt(min b) along `curve`, and W₂ sqrt(max b) along the W₂
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
    with np.errstate(over="ignore"):  # inf: the speed of times too near each other
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
    velocity = reals(v, "v")
    if velocity.shape != cloud.shape:
        raise InputError(f"v has shape {velocity.shape}, expected that of x, {cloud.shape}")
    b = _mobilities(cloud[None], D)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        tangential = velocity - np.einsum("ik,ik->i", velocity, cloud)[:, None] * cloud
        square = float((b * (tangential**2).sum(axis=1)).mean())
    if not math.isfinite(square):
        raise InputError("v is too large: its square leaves the range of doubles; scale it down")
    return math.sqrt(square)


def bounds(x: ArrayLike, y: ArrayLike, D: ArrayLike) -> Bounds:
    """Two-sided bound c1 W₂(x, y) <= W_b(x, y) <= c2 W₂(x, y) that holds for every pair.

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
    a, c = _equal_clouds(x, y)
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
    0 < k < K of n particle paths on the sphere. From the W₂ geodesics, with ever more segments:
    L-BFGS with exact gradients (b depends on the whole cloud), in turn with the optimal matching
    of every segment, until neither lowers the action.

    The value is an upper bound of W_b up to the error of the discretisation, O(1/K^2): the tokens
    of a particle move together (no mass is split), and the minimum is a local one: on the circle,
    for instance, a token does not try the longer arc. It lies within `bounds`.

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
    start, end = _equal_clouds(x, y)
    heads = as_heads(D, start.shape[1])
    _WEIGHTED.check(heads)
    segments, tolerance = whole(segments, "segments"), positive(tolerance, "tolerance")
    max_iterations = whole(max_iterations, "max_iterations")
    # The nodes, their gradients, and what the minimiser remembers of both.
    check_memory(8 * 40 * segments * start.size, f"a path of {segments} segments", "take fewer")

    pairs = len(start) ** 2 * len(heads) * segments
    with threads_for(pairs):
        return _distance(start, end, heads, segments, tolerance, max_iterations)


def _distance(
    start: Array, end: Array, heads: Array, segments: int, tolerance: float, max_iterations: int
) -> Distance:
    w2, labels = _w2(start, end)
    straight = geodesics(start, end[labels], segments)
    b_straight = _WEIGHTED.mobility(straight, heads)
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
        # The coarse levels led to a worse local minimum than the geodesics themselves do.
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
            start, end = curve[:1], curve[-1:]
            b_ends = _WEIGHTED.mobility(np.concatenate([start, end]), self.D)
            nodes, size, converged = curve[1:-1], 0.0, True
            b = mobilities(_WEIGHTED, nodes, self.D, b_ends)
            scale = discrete_action(curve, b)
            if len(nodes) and scale > 0:
                # Positions are known to rounding only, and the springs are K times as stiff.
                floor = _ROUNDING * (len(curve) - 1) * math.sqrt(curve.shape[2] * float(b.max()))
                stiffness = 2 * (len(curve) - 1) / curve.shape[1] * (b[:-1] + b[1:]) / 2
                found = minimise(
                    self._objective(start, end, b_ends),
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
            curve = np.concatenate([start, nodes, end])
            b = mobilities(_WEIGHTED, nodes, self.D, b_ends)
            curve, b, changed = recouple(curve, b)
            if changed is None:
                break
            labels = labels[changed]
        else:
            converged = False
        return _Found(curve, b, labels, discrete_action(curve, b), size, converged)

    def _objective(self, start: Array, end: Array, b_ends: Array) -> Objective:
        def action_of(nodes: Array) -> tuple[float, Array]:
            curve = np.concatenate([start, nodes, end])
            return action_and_gradient(_WEIGHTED, curve, self.D, b_ends)

        return action_of


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
    labels = assign(cost)
    return math.sqrt(float(cost[np.arange(len(x)), labels].mean())), labels


def _equal_clouds(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    given = pair(x, y, None, None)
    if not given.assigned:
        raise InputError(
            f"x has {len(given.x)} tokens and y {len(given.y)}: the paths are those of particles "
            "of equal mass; take as many tokens from both, for instance a random subset of the "
            "larger"
        )
    return given.x, given.y


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
    _WEIGHTED.check(heads)
    return _WEIGHTED.mobility(clouds, np.ascontiguousarray(heads))


def as_heads(D: ArrayLike | QKV, d: int) -> Array:
    """Symmetric heads (heads, d, d) for tokens of dimension d, of any size."""
    if isinstance(D, QKV):
        raise InputError(
            "general (Q, K, V) heads are no gradient: they have no energy and no mobility; give "
            "symmetric matrices (heads, d, d)"
        )
    heads = as_matrices(D, "D", symmetric=True)
    if heads.ndim != 3 or heads.shape[-1] != d:
        raise InputError(
            f"D has shape {heads.shape}, expected (heads, {d}, {d}) for tokens of dimension {d}"
        )
    return heads


def spectral_norms(D: Array) -> Array:
    """|D_h| of symmetric heads (..., d, d): largest size of an eigenvalue."""
    return np.abs(np.linalg.eigvalsh(D)).max(axis=-1)


def _curve(curve: ArrayLike) -> Array:
    clouds = reals(curve, "curve")
    if clouds.ndim != 3 or len(clouds) < 2:
        raise InputError(
            f"curve has shape {clouds.shape}, expected (times, n, d) with at least two times"
        )
    return np.stack([as_cloud(cloud, f"curve[{k}]") for k, cloud in enumerate(clouds)])


def _times(times: ArrayLike, count: int) -> Array:
    t = reals(times, "times")
    if t.shape != (count,) or np.any(np.diff(t) <= 0):
        raise InputError(
            f"times have shape {t.shape}, expected {count} increasing numbers, one per cloud"
        )
    return t
