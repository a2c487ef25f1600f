"""Clusters, order and entropy of one cloud of tokens."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._checks import number, positive, whole
from wflow._clusters_entropy import smoothed_entropy
from wflow._clusters_linkage import components, merge_heights
from wflow.attention import as_unit_tokens, velocity
from wflow.errors import InputError

FloatArray = NDArray[np.float64]

COINCIDENT = 1e-8
"""Distance below which two tokens count as one: what rounding leaves of equal tokens."""

_NARROWEST = 1e-3  # bandwidth, in radians


def check_scale(scale: float) -> float:
    """Raise InputError unless `scale` is an angle from 0 to pi."""
    angle = number(scale, "scale", least=0.0)
    if angle > math.pi:
        raise InputError(
            f"scale is {scale:g}: expected a geodesic distance in radians, from 0 to pi; degrees "
            "are turned into radians by numpy.deg2rad"
        )
    return angle


def _cloud(x: ArrayLike) -> FloatArray:
    return np.ascontiguousarray(as_unit_tokens(x), np.float64)


def labels(x: ArrayLike, scale: float) -> NDArray[np.int64]:
    """Cluster of every token by single linkage: components of the graph dist(x_i, x_j) <= scale.

    dist is the geodesic distance, 2 arcsin(|x - y| / 2). The result is exact. Up to n^2 d / 2
    multiply-adds, n d for a cloud in few tight clusters; from 2000 tokens on a k-d tree searches
    clouds that are not dense. Memory grows like n.

    Parameters
    ----------
    x : (n, d) unit tokens
    scale : geodesic distance in radians, 0 to pi

    Returns
    -------
    (n,) int64, 0 to count - 1, numbered by the first token of each cluster

    Raises
    ------
    InputError
        For tokens off the sphere, a wrong shape, or a scale out of range.
    """
    return components(_cloud(x), check_scale(scale))


def count(x: ArrayLike, scale: float) -> int:
    """Number of clusters by single linkage at a scale; parameters and errors as for `labels`."""
    return int(labels(x, scale).max()) + 1


def sizes(x: ArrayLike, scale: float) -> NDArray[np.int64]:
    """Numbers of tokens of the clusters at a scale, largest first; as for `labels`."""
    return np.sort(np.bincount(labels(x, scale)))[::-1].astype(np.int64)


@dataclass(frozen=True)
class PersistentCount:
    """Number of clusters without a stated scale.

    Attributes
    ----------
    count : number of clusters of the partition that holds over the widest range of scales; n,
        every token by itself, where no partition stands out
    scale_low, scale_high : the scales, in radians, between which single linkage finds it
    persistence : how widely; 1 where no partition stands out
    """

    count: int
    scale_low: float
    scale_high: float
    persistence: float


def persistent_count(
    x: ArrayLike, *, threshold: float = 3.0, level: float = 0.01
) -> PersistentCount:
    """Number of clusters of the partition that persists over the widest range of scales.

    Single linkage merges clusters at heights h_1 <= .. <= h_{n-1}, the edges of the minimum
    spanning tree; it finds k clusters at the scales h_{n-k} <= scale < h_{n-k+1}. The persistence
    of that partition is the ratio h_{n-k+1} / h_{n-k} for 1 < k < n. For k = 1 it is pi over the
    extent of the cloud, twice the largest distance to the mean direction: a dense cloud all around
    the sphere is connected at small scales too, and is no cluster. Heights and extent are at least
    1e-8, so that tokens that coincide to rounding count as one.

    A partition stands out if its persistence reaches `threshold`, and more than chance
    explains: among uniform tokens the ratio after j = n - k merges exceeds r with a probability of
    about r^{-j (d-1)}, which must stay below level / n. The partition of largest persistence among
    those is returned, and count = n where there is none. The n^2 d / 2 multiply-adds take a second
    for some 20 000 tokens in d = 3; memory grows like n.

    Parameters
    ----------
    x : (n, d) unit tokens
    threshold : smallest persistence, > 1
    level : probability, up to the approximation, that a uniform cloud has a cluster, in (0, 1)

    Returns
    -------
    PersistentCount

    Raises
    ------
    InputError
        For tokens off the sphere, a wrong shape, or a threshold or level out of range.

    Source: docs/mathematics.md, clusters.
    """
    tokens = _cloud(x)
    if not number(threshold, "threshold") > 1:
        raise InputError(f"threshold is {threshold}: expected a ratio > 1, such as 3")
    if not 0 < number(level, "level") < 1:
        raise InputError(f"level is {level}: expected a probability between 0 and 1, such as 0.01")
    n, d = tokens.shape
    if n == 1:
        return PersistentCount(1, 0.0, math.pi, math.pi / COINCIDENT)
    edges = merge_heights(tokens)
    below = np.append(edges[:-1], _extent(tokens))  # of the partitions in n - 1, .., 2, 1 clusters
    above = np.append(edges[1:], math.pi)
    ratio = np.maximum(above, COINCIDENT) / np.maximum(below, COINCIDENT)
    chance = (n / level) ** (1 / (np.arange(1, n) * (d - 1)))
    ratio[ratio < np.maximum(threshold, chance)] = 0.0
    best = int(np.argmax(ratio))
    if ratio[best] == 0:
        return PersistentCount(n, 0.0, float(edges[0]), 1.0)
    return PersistentCount(n - 1 - best, float(edges[best]), float(above[best]), float(ratio[best]))


def _extent(x: FloatArray) -> float:
    """Twice the largest distance of a token to the mean direction, at most pi."""
    mean = x.mean(axis=0)
    length = float(np.linalg.norm(mean))
    if length < COINCIDENT:
        return math.pi
    chord = float(np.sqrt(np.max(np.sum((x - mean / length) ** 2, axis=1))))
    return min(4 * math.asin(min(chord / 2, 1.0)), math.pi)


def order_parameter(x: ArrayLike) -> float:
    """Order parameter |(1/n) sum_i x_i|: 1 for one point, 0 for a balanced cloud.

    Parameters
    ----------
    x : (n, d) unit tokens

    Raises
    ------
    InputError
        For tokens off the sphere or a wrong shape.
    """
    return min(1.0, float(np.linalg.norm(_cloud(x).mean(axis=0))))


def nematic_order(x: ArrayLike) -> float:
    """Largest eigenvalue of (1/n) sum_i x_i x_i^T: 1 for one axis, up to sign; 1/d at least.

    It sees clouds in pairs +-x, for which the order parameter vanishes. Parameters and errors as
    for `order_parameter`.
    """
    tokens = _cloud(x)
    return min(1.0, float(np.linalg.eigvalsh(tokens.T @ tokens / len(tokens))[-1]))


def entropy(
    x: ArrayLike,
    bandwidth: float = 0.25,
    *,
    nodes: int = 6,
    directions: int = 2,
    seed: int = 0,
) -> float:
    """Entropy of the cloud smoothed by a kernel, -KL(mu * K | uniform) <= 0: 0 for uniform tokens.

    K is the von Mises-Fisher kernel C e^{kappa <x, y>}, kappa = 1/bandwidth^2, and the value
    -int f log f over the uniform probability law with f(x) = (1/n) sum_j K(x, x_j). A Dirac gives
    the entropy of the kernel, -(log C + kappa A(kappa)), A = I_{d/2}/I_{d/2-1}. The smoothing
    raises the entropy above that of the law the tokens come from; that they are finitely many
    lowers it, for uniform tokens by (int K^2 - 1) / (2n) to first order. The integral around every
    token is done by Gauss quadrature in the height and, for d > 2, by random directions in
    opposite pairs, so that rotating the cloud changes the value by a small random error.
    n^2 d 2 nodes directions multiply-adds.

    Parameters
    ----------
    x : (n, d) unit tokens
    bandwidth : width of the kernel in radians, 0.001 to pi
    nodes, directions : of the quadrature around a token; both tangent directions for d = 2
    seed : of the directions

    Returns
    -------
    float

    Raises
    ------
    InputError
        For tokens off the sphere, a wrong shape, or numbers out of range.

    Source: docs/mathematics.md, clusters.
    """
    tokens = _cloud(x)
    if not _NARROWEST <= positive(bandwidth, "bandwidth") <= math.pi:
        raise InputError(
            f"bandwidth is {bandwidth:g}: expected an angle in radians from {_NARROWEST:g} to pi"
        )
    return smoothed_entropy(
        tokens,
        1 / bandwidth**2,
        whole(nodes, "nodes"),
        whole(directions, "directions"),
        whole(seed, "seed", 0),
    )


class Stationarity(NamedTuple):
    """How fast tokens move: rms = sqrt((1/n) sum_i |v_i|^2) and the largest |v_i|."""

    rms: float
    largest: float


def stationarity(
    x: ArrayLike, D: ArrayLike, *, flow: str = "softmax", direction: str = "descent"
) -> Stationarity:
    """How far tokens are from rest: the norm of their velocity, zero exactly at stationary points.

    What is measured is a velocity, and no distance to a stationary point: near a metastable state
    the velocity is as small as at a stationary one, and the cloud leaves it all the same.

    Parameters
    ----------
    x : (n, d) unit tokens
    D : (heads, d, d)
    flow, direction : as for `wflow.velocity`

    Returns
    -------
    Stationarity : rms and largest speed, per unit time

    Raises
    ------
    InputError
        As `wflow.velocity`.

    Source: [MHT] Definition 4.15 asks for G^2 = (1/n) sum b |v|^2 -> 0, the same for b > 0.
    """
    v = np.asarray(velocity(x, D, flow=flow, direction=direction), np.float64)
    speed = np.linalg.norm(v, axis=1)
    return Stationarity(float(np.sqrt(np.mean(speed**2))), float(speed.max()))
