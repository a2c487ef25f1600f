r"""Metrics of token clouds: W₂, the metric W_b weighted by the effective mobility, and custom ones.

.. math::

    W_b(\mu, \nu)^2 = \min \int_0^1 \frac1n \sum_i b(x_i; \mu_t)\,|v_i|^2\,dt, \qquad
    b = \Bigl[ \frac1H \sum_h \frac{1}{m_h} \Bigr]^{-1},

over curves of clouds from mu to nu, the heads D_h being frozen: Massucco et al., arXiv:2605.18870,
Definition 3.5 after the reduction of Lemma 3.8 to one velocity per token. With b = 1 it is W₂.
`Metric` is what minimizing movements (`wflow.jko`) need of any such metric; `weighted_distance`
computes W_b of two clouds. In the theory: :ref:`the weighted metric <theory-weighted-metric>`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import MetricName, positive, reals, shown, whole
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow._core.identity import Described, Registry
from wflow._core.memory import check_memory
from wflow._core.reprs import ShortRepr, ShortResult
from wflow._core.threads import threads_for
from wflow.attention import flows
from wflow.heads.laws import QKV
from wflow.heads.matrices import as_matrices
from wflow.kernels.pairs.sweep import DIRECT_BOUND_DOUBLE
from wflow.sphere.geodesics import (
    angles,
    geodesics,
    logarithm,
    refined,
    spring_solver,
    squared_distances,
)
from wflow.transport.distances import Pair, as_cloud, exact_cost, match, pair
from wflow.transport.linear_assignment import assign
from wflow.transport.minimise import Objective, Solver, minimise
from wflow.transport.mobility import weighted_sums

__all__ = ["Bounds", "Distance", "action", "bounds", "metric_derivative", "weighted_distance"]


def __dir__() -> list[str]:
    return __all__


Array = NDArray[np.floating]

# The discrete action of a path of clouds, and its couplings
# ----------------------------------------------------------
#
#     A = K sum_{k<K} (1/n) sum_i (b_i^k + b_i^{k+1})/2 |x_i^k, x_i^{k+1}|^2
#
# for a broken geodesic with nodes 0..K at equal times in [0, 1], |.,.| the geodesic distance and b
# the mobility within the cloud of a node: the trapezoidal rule for int (1/n) sum b |v|^2 dt.


def discrete_action(curve: Array, b: Array) -> float:
    """Return the action A of a curve (K + 1, n, d) with mobilities b (K + 1, n)."""
    segments, n = len(curve) - 1, curve.shape[1]
    square = angles(curve[:-1], curve[1:]) ** 2
    return float(segments / n * ((b[:-1] + b[1:]) / 2 * square).sum())


def action_and_gradient(
    metric: Metric, curve: Array, D: Array, b_ends: Array
) -> tuple[float, Array]:
    """Return the action A of a curve (K + 1, n, d), and its gradient by the nodes that move.

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
    """Return b (K + 1, n) at all nodes of a path, from free nodes and b_ends (1 or 2, n)."""
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
    """Return whether labels cost less than the identity, by more than rounding."""
    same = float(np.trace(cost))
    # Squares of distances of order one carry errors of about 1e-16 times the distance.
    rounding = 1e-12 * same + 1e-15 * float(np.sqrt(max(same, 0.0)))
    return float(cost[np.arange(len(cost)), labels].sum()) < same - rounding


# Metrics as objects
# ------------------


class Metric(Described):
    r"""Metric of clouds, ``|v|^2 = (1/n) sum_i b_i |v_i|^2``, for minimizing movements.

    A custom metric is a subclass with the method `mobility_and_gradient`, from which all else
    follows. It replaces `cost` and `reassign` where the distance has another form, `preconditioner`
    where that has a Hessian of another size, and `reassign` alone where tokens cannot be exchanged.
    Its gradient flow of E is v = s gbar/b.

    Attributes
    ----------
    segments : int
        Number K of segments of a path.
    limit : str
        Flow that minimizing movements tend to, as the results of `wflow.jko` name it.

    Notes
    -----
    The squared distance of two clouds is the least action of the paths between them [1]_, with the
    mobility b left open,

    .. math:: W^2 = \min K \sum_{k<K} \frac1n \sum_i
        \frac{b_i^k + b_i^{k+1}}{2}\; |x_i^k, x_i^{k+1}|^2

    over the K - 1 nodes between its ends.

    In the theory: :ref:`the weighted metric <theory-weighted-metric>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Definition 3.5
       and Lemma 3.8.

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
    """

    segments: int = 1
    limit: ClassVar[str] = "s gbar/b"

    def mobility_and_gradient(self, clouds: Array, D: Array, weights: Array) -> tuple[Array, Array]:
        """Return the mobilities of clouds, and the gradient of sum_i weights_i b_i.

        Parameters
        ----------
        clouds : ndarray, shape (k, n, d)
            Clouds of unit tokens.
        D : ndarray, shape (heads, d, d)
            Symmetric heads.
        weights : ndarray, shape (k, n)
            Weights of the mobilities.

        Returns
        -------
        b : ndarray, shape (k, n)
            Mobilities, > 0.
        gradient : ndarray, shape (k, n, d)
            Gradient in R^d by the tokens of each cloud, its radial part of no meaning; zeros where
            b does not depend on them.

        Raises
        ------
        InputError
            By the base class.
        """
        raise InputError(
            f"{type(self).__name__} has no method mobility_and_gradient(clouds, D, weights): "
            "define it, or take wflow.transport.W2() or Weighted()"
        )

    def mobility(self, clouds: Array, D: Array) -> Array:
        """Return the mobilities of clouds alone.

        Parameters
        ----------
        clouds : ndarray, shape (k, n, d)
            Clouds of unit tokens.
        D : ndarray, shape (heads, d, d)
            Symmetric heads.

        Returns
        -------
        ndarray, shape (k, n)
            Mobilities b.

        Raises
        ------
        InputError
            As `mobility_and_gradient`.
        """
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
        """Return (n/2) W^2 along a path, half the sum over its tokens, with the gradient.

        Parameters
        ----------
        curve : ndarray, shape (K + 1, n, d)
            The start, which is fixed, and the nodes up to the end.
        D : ndarray, shape (heads, d, d)
            Symmetric heads.
        b : ndarray, shape (n,)
            Mobilities at the start.

        Returns
        -------
        value : float
            Cost of the path.
        gradient : ndarray, shape (K, n, d)
            Gradient by curve[1:] in R^d, a new array, its radial part of no meaning.
        """
        value, gradient = action_and_gradient(self, curve, D, b[None])
        half = curve.shape[1] / 2
        return half * value, half * gradient

    def distance_sq(self, curve: Array, D: Array, b: Array) -> float:
        """Return W^2 along a path.

        Parameters
        ----------
        curve : ndarray, shape (K + 1, n, d)
            The start and the nodes up to the end.
        D : ndarray, shape (heads, d, d)
            Symmetric heads.
        b : ndarray, shape (n,)
            Mobilities at the start.

        Returns
        -------
        float
            Squared distance.
        """
        return 2 * self.cost(curve, D, b)[0] / curve.shape[1]

    def preconditioner(self, curve: Array, b: Array) -> Solver:
        """Return a function g -> M^{-1} g with M positive definite and near the Hessian of `cost`.

        Parameters
        ----------
        curve : ndarray, shape (K + 1, n, d)
            The start and the nodes up to the end.
        b : ndarray, shape (K + 1, n)
            Mobilities at all nodes of the path.

        Returns
        -------
        callable
            Function of g (K, n, d).
        """
        return spring_solver(self.segments * (b[:-1] + b[1:]) / 2, free_end=True)

    def reassign(self, curve: Array, b: Array) -> tuple[Array, bool]:
        """Return the path with the tokens of its nodes relabelled, and whether W^2 is smaller.

        Parameters
        ----------
        curve : ndarray, shape (K + 1, n, d)
            The start and the nodes up to the end.
        b : ndarray, shape (K + 1, n)
            Mobilities at all nodes of the path.

        Returns
        -------
        curve : ndarray, shape (K + 1, n, d)
            The path with other labels.
        better : bool
            Whether W^2 is smaller along it.
        """
        curve, _, labels = recouple(curve, b)
        return curve, labels is not None

    def check(self, D: Array) -> None:
        """Raise InputError for heads that the metric cannot take.

        Parameters
        ----------
        D : ndarray, shape (heads, d, d)
            Symmetric heads.

        Raises
        ------
        InputError
            For such heads; the base class takes all.
        """


@dataclass(frozen=True, repr=False)
class W2(ShortRepr, Metric):
    r"""The Wasserstein metric W₂ of geodesic cost, b = 1.

    Its methods are closed forms of those of `Metric`, which take less time.

    Notes
    -----
    For clouds x and y (n, d) [1]_

    .. math:: W_2^2 = \min_p \frac1n \sum_i |x_i, y_{p(i)}|^2

    over the permutations p.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 58.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(6, 3, seed=0), np.eye(3)[None]
    >>> step = wflow.jko.step(x, D, 1e-4, metric=wflow.transport.W2())
    >>> v = wflow.velocity(x, D, flow=wflow.transport.W2.limit)
    >>> bool(np.allclose((step.tokens - x) / 1e-4, v, atol=1e-3))
    True
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


@dataclass(frozen=True, repr=False)
class Weighted(ShortRepr, Metric):
    r"""The metric W_b weighted by the effective mobility b of the heads, of norms up to 64.

    Parameters
    ----------
    segments : int, default 1
        Number K of segments of a path; one is enough for minimizing movements of first order in
        tau.

    Raises
    ------
    InputError
        For segments < 1.

    Notes
    -----
    Over the nodes of the path from x to y (n, d) [1]_

    .. math:: W_b^2 = \min K \sum_{k<K} \frac1n \sum_i
        \frac{b_i^k + b_i^{k+1}}{2}\; |x_i^k, x_i^{k+1}|^2

    with b the effective mobility, the harmonic mean of the mobilities over the heads.

    In the theory: :ref:`the weighted metric <theory-weighted-metric>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Definition
       3.5, Lemma 3.8 and eq. 69.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(6, 3, seed=0), np.stack([np.eye(3), 2 * np.eye(3)])
    >>> step = wflow.jko.step(x, D, 1e-4, metric=wflow.transport.Weighted())
    >>> v = wflow.velocity(x, D, flow=wflow.transport.Weighted.limit)
    >>> bool(np.allclose((step.tokens - x) / 1e-4, v, atol=1e-3))
    True
    """

    segments: int = 1
    limit: ClassVar[str] = flows.effective.name

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", whole(self.segments, "segments"))

    def mobility_and_gradient(self, clouds: Array, D: Array, weights: Array) -> tuple[Array, Array]:
        return weighted_sums(clouds, D[None], weights, True)

    def mobility(self, clouds: Array, D: Array) -> Array:
        """Return the effective mobilities of clouds.

        Parameters
        ----------
        clouds : ndarray, shape (k, n, d)
            Clouds of unit tokens.
        D : ndarray, shape (heads, d, d) or (k, heads, d, d)
            Symmetric heads, or a set of heads for every cloud.

        Returns
        -------
        ndarray, shape (k, n)
            Effective mobilities b.
        """
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
    """Return the given metric, or the metric of a name; `segments` (None: 1) are for "weighted"."""
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
    """Return the entry of a metric in a configuration: its name; of a custom one, its identity.

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

    Parameters
    ----------
    lower : float
        Lower bound c1 W₂.
    upper : float
        Upper bound c2 W₂.
    w2 : float
        Distance W₂, of geodesic cost.
    c1 : float
        Root of a number below b for every cloud and every token: c1^2 <= b.
    c2 : float
        Root of a number above b for every cloud and every token: b <= c2^2.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, y = wflow.tokens.uniform(6, 3, seed=0), wflow.tokens.uniform(6, 3, seed=1)
    >>> found = wflow.metric.bounds(x, y, np.zeros((1, 3, 3)))  # b = 1
    >>> found.lower == found.w2 == found.upper
    True
    """

    lower: float
    upper: float
    w2: float
    c1: float
    c2: float


@dataclass(frozen=True, repr=False)
class Distance(ShortResult):
    """Distance W_b of two clouds, as `weighted_distance` computed it.

    Attributes
    ----------
    value : float
        Distance, sqrt(action).
    action : float
        Discrete action of `curve`.
    curve : ndarray, shape (K + 1, n, d)
        Path from x to the tokens of y in the order of `coupling`.
    coupling : ndarray of int, shape (n,)
        Token i of x goes to token coupling[i] of y.
    mobility : ndarray, shape (K + 1, n)
        Effective mobility b at the nodes.
    extrapolated : float or None
        Richardson's sqrt((4 A_K - A_{K/2})/3), for even K >= 4. None where no minimum of K/2
        segments is known: K odd or 2, or the search was repeated from the geodesics with K
        segments.
    bounds : Bounds
        The rigorous two-sided bound; `value` and W_b itself lie within it.
    path_lower : float
        Sharper lower bound W₂ sqrt(min b) along `curve`, if `curve` is optimal and up to the
        discretisation.
    path_upper : float
        Sharper upper bound W₂ sqrt(max b) along the W₂ geodesics, up to the discretisation.
    iterations : int
        Iterations of the minimiser, over all rounds.
    evaluations : int
        Evaluations of the action, over all rounds.
    gradient_norm : float
        Relative norm sqrt(g M^{-1} g / A) of the gradient at the end.
    converged : bool
        Whether the gradient met the tolerance and no matching could be improved.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, y = wflow.tokens.uniform(4, 3, seed=0), wflow.tokens.uniform(4, 3, seed=1)
    >>> found = wflow.transport.weighted_distance(x, y, np.eye(3)[None], segments=4)
    >>> found.bounds.lower <= found.value <= found.bounds.upper
    True
    """

    value: float
    action: float
    curve: Array = field(repr=False)
    coupling: NDArray[np.intp] = field(repr=False)
    mobility: Array = field(repr=False)
    extrapolated: float | None
    bounds: Bounds
    path_lower: float
    path_upper: float
    iterations: int
    evaluations: int
    gradient_norm: float
    converged: bool


def action(curve: ArrayLike, times: ArrayLike, D: ArrayLike | None = None) -> float:
    r"""Return the action of a curve of clouds, by the trapezoidal rule.

    Parameters
    ----------
    curve : array_like, shape (K + 1, n, d)
        Tokens on the unit sphere; token i keeps its label.
    times : array_like, shape (K + 1,)
        Increasing times.
    D : array_like, shape (heads, d, d) or (K + 1, heads, d, d), optional
        Symmetric heads, with a leading axis where they move. None for b = 1.

    Returns
    -------
    float
        Action, a squared distance per unit time.

    Raises
    ------
    InputError
        For wrong shapes, tokens off the sphere, times that do not increase, asymmetric heads.

    Notes
    -----
    The action [1]_ and its discretisation, of second order in dt, are

    .. math::

        \int \frac1n \sum_i b(x_i)\,|v_i|^2\,dt \;\approx\;
        \sum_k \frac{1}{dt_k} \frac1n \sum_i \frac{b_i^k + b_i^{k+1}}{2}\; |x_i^k, x_i^{k+1}|^2

    with ``|x, y|`` the geodesic distance.

    In the theory: :ref:`the discrete action <theory-discrete-action>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 30 and 38.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> curve = [[[1.0, 0.0]], [[0.0, 1.0]]]  # a quarter of a circle in unit time
    >>> bool(np.isclose(wflow.metric.action(curve, [0.0, 1.0]), (np.pi / 2) ** 2))
    True
    """
    clouds = _curve(curve)
    t = _times(times, len(clouds))
    b = _mobilities(clouds, D)
    square = angles(clouds[:-1], clouds[1:]) ** 2
    with np.errstate(over="ignore"):  # inf: the speed of times too near each other
        return float((((b[:-1] + b[1:]) / 2 * square).mean(axis=1) / np.diff(t)).sum())


def metric_derivative(x: ArrayLike, v: ArrayLike, D: ArrayLike | None = None) -> float:
    r"""Return the speed of a moving cloud in the weighted metric.

    It is exact where v is the velocity field of least action for its curve, as it is for a function
    of the token on a cloud of distinct tokens [1]_.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    v : array_like, shape (n, d)
        Velocities; their radial part does not count.
    D : array_like, shape (heads, d, d), optional
        Symmetric interaction matrices. None for the classical metric, b = 1.

    Returns
    -------
    float
        Speed, distance per unit time.

    Raises
    ------
    InputError
        For wrong shapes, tokens off the sphere, velocities that are not finite, asymmetric heads.

    Notes
    -----
    The metric derivative is

    .. math:: |\mu'| = \Bigl( \frac1n \sum_i b(x_i)\,|v_i|^2 \Bigr)^{1/2} .

    In the theory: :ref:`the weighted metric <theory-weighted-metric>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Lemma 3.8, eq.
       38 and 41.

    Examples
    --------
    >>> import wflow
    >>> wflow.metric.metric_derivative([[1.0, 0.0]], [[5.0, 2.0]])
    2.0
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
    r"""Return a two-sided bound of W_b by W₂ that holds for every pair of clouds.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    y : array_like, shape (n, d)
        Tokens on the unit sphere, as many as in x.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices.

    Returns
    -------
    Bounds
        The bounds, W₂ and the constants c1 and c2.

    Raises
    ------
    InputError
        For wrong shapes, different numbers of tokens, tokens off the sphere, asymmetric heads.

    Notes
    -----
    The bound [1]_ is c1 W₂(x, y) <= W_b(x, y) <= c2 W₂(x, y) with

    .. math::

        c_1^2 = \Bigl[ \frac1H \sum_h e^{|D_h|} \Bigr]^{-1}, \qquad
        c_2^2 = \Bigl[ \frac1H \sum_h e^{-|D_h|} \Bigr]^{-1},

    and the spectral norms of the heads, since the mobility of a head of norm a lies between e^{-a}
    and e^a for any cloud.

    In the theory: :ref:`bounds of the metric <theory-metric-bounds>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Proposition
       3.7, eq. 33.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, y = wflow.tokens.uniform(6, 3, seed=0), wflow.tokens.uniform(6, 3, seed=1)
    >>> found = wflow.metric.bounds(x, y, 2 * np.eye(3)[None])
    >>> bool(np.isclose(found.c1, np.exp(-1)) and np.isclose(found.c2, np.exp(1)))
    True
    """
    given = _equal_clouds(x, y)
    heads = as_heads(D, given.x.shape[1])
    return _bounds(math.sqrt(exact_cost(given, 2.0, "geodesic")), heads)


def weighted_distance(
    x: ArrayLike,
    y: ArrayLike,
    D: ArrayLike,
    *,
    segments: int = 16,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Distance:
    r"""Return the distance W_b of two clouds in the metric weighted by b.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    y : array_like, shape (n, d)
        Tokens on the unit sphere, as many as in x.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices, of norms up to 64.
    segments : int, default 16
        Number K of segments of the paths; an even one >= 4 gives `Distance.extrapolated`.
    tolerance : float, default 1e-6
        Bound on sqrt(g M^{-1} g / A), g the gradient of the action A and M the Hessian of the
        springs between the nodes; the error of the action is of the order tolerance^2 A.
    max_iterations : int, default 1000
        Iterations of L-BFGS, per level of refinement and round of matching.

    Returns
    -------
    Distance
        The distance, the path and the bounds; with a RuntimeWarning where it did not converge.

    Raises
    ------
    InputError
        For wrong shapes, different numbers of tokens, tokens off the sphere, asymmetric or too
        large heads, segments < 1, tolerance <= 0.

    Notes
    -----
    The discrete action of n particle paths [1]_,

    .. math:: W_b^2 \approx \min K \sum_{k<K} \frac1n \sum_i
        \frac{b_i^k + b_i^{k+1}}{2}\; |x_i^k, x_i^{k+1}|^2,

    is minimised over the nodes 0 < k < K. From the W₂ geodesics, with ever more segments: L-BFGS
    with exact gradients (b depends on the whole cloud), in turn with the optimal matching of every
    segment, until neither lowers the action.

    The value is an upper bound of W_b up to the error of the discretisation, O(1/K^2): the tokens
    of a particle move together (no mass is split), and the minimum is a local one: on the circle,
    for instance, a token does not try the longer arc. It lies within `bounds`.

    In the theory: :ref:`the weighted metric <theory-weighted-metric>`, :ref:`its discrete action
    <theory-discrete-action>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Definition
       3.5, eq. 30, and Lemma 3.8.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, y = wflow.tokens.uniform(4, 3, seed=0), wflow.tokens.uniform(4, 3, seed=1)
    >>> found = wflow.transport.weighted_distance(x, y, np.zeros((1, 3, 3)), segments=2)  # b = 1
    >>> bool(np.isclose(found.value, wflow.transport.w2(x, y)))
    True
    """
    given = _equal_clouds(x, y)
    start = given.x
    heads = as_heads(D, start.shape[1])
    _WEIGHTED.check(heads)
    segments, tolerance = whole(segments, "segments"), positive(tolerance, "tolerance")
    max_iterations = whole(max_iterations, "max_iterations")
    # The nodes, their gradients, and what the minimiser remembers of both.
    check_memory(8 * 40 * segments * start.size, f"a path of {segments} segments", "take fewer")

    pairs = len(start) ** 2 * len(heads) * segments
    with threads_for(pairs):
        return _distance(given, heads, segments, tolerance, max_iterations)


def _distance(
    given: Pair, heads: Array, segments: int, tolerance: float, max_iterations: int
) -> Distance:
    start, end = given.x, given.y
    labels, costs = match(given, 2.0, "geodesic")
    w2 = math.sqrt(float(costs.mean()))
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
        warn(
            f"the weighted distance did not converge: relative gradient {found.gradient_norm:.3g} "
            f"against a tolerance of {tolerance:g} after {search.iterations} iterations; the value "
            "is that of the best path found. Allow more iterations, or fewer segments",
            AccuracyWarning,
        )
    extrapolated = None  # not NaN, which would spread in silence
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
    """Alternating descent in the nodes and in the matching of the segments."""

    def __init__(self, D: Array, tolerance: float, max_iterations: int) -> None:
        self.D, self.tolerance, self.max_iterations = D, tolerance, max_iterations
        self.iterations = self.evaluations = 0

    def descend(self, curve: Array, labels: NDArray[np.intp]) -> _Found:
        """Return the local minimum reached from a curve; `labels` are those of its last node."""
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


def _equal_clouds(x: ArrayLike, y: ArrayLike) -> Pair:
    given = pair(x, y, None, None)
    if not given.assigned:
        raise InputError(
            f"x has {len(given.x)} tokens and y {len(given.y)}: the paths are those of particles "
            "of equal mass; take as many tokens from both, for instance a random subset of the "
            "larger"
        )
    return given


def _mobilities(clouds: Array, D: ArrayLike | None) -> Array:
    """Return b (clouds, n), for heads that are None, constant, or one set per cloud."""
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
    """Return symmetric heads (heads, d, d) for tokens of dimension d, of any size."""
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
    """Return |D_h| of symmetric heads (..., d, d): the largest size of an eigenvalue."""
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
