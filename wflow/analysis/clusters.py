"""Clusters of a token cloud, and the long-time behaviour of the tokens of a run.

Of one cloud: `labels`, `count` and `sizes` at a stated scale, `persistent_count` without one,
`order_parameter`, `nematic_order`, `entropy`, and `stationarity` under given heads. Of a run:
`over_time`, `time_to_one_cluster`, `time_to_first_cluster`, `plateaus`, `omega_limit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import (
    Direction,
    FlowName,
    number,
    positive,
    reals,
    rounding,
    shown,
    switch,
    whole,
)
from wflow._core.errors import InputError
from wflow._core.progress import progress as progress_bar
from wflow._core.reprs import ShortResult
from wflow.analysis.linkage import components, merge_heights
from wflow.attention.cloud import as_unit_tokens, velocity
from wflow.attention.flows import Flow
from wflow.runs.snapshots import all_clouds, cloud, clouds, dataset_of, require_tokens, token_type

if TYPE_CHECKING:
    from xarray import DataArray, Dataset


__all__ = [
    "QUANTITIES",
    "OmegaLimit",
    "PersistentCount",
    "Plateau",
    "Stationarity",
    "count",
    "entropy",
    "labels",
    "nematic_order",
    "omega_limit",
    "order_parameter",
    "over_time",
    "persistent_count",
    "plateaus",
    "sizes",
    "stationarity",
    "time_to_first_cluster",
    "time_to_one_cluster",
]


def __dir__() -> list[str]:
    return __all__


# Entropy after smoothing by a von Mises-Fisher kernel
# ----------------------------------------------------

FloatArray = NDArray[np.float64]

_FINE = 600  # nodes in the height, from which the rules of few nodes are made
_BYTES = 2**25


def smoothed_entropy(
    x: FloatArray, concentration: float, nodes: int, directions: int, seed: int
) -> float:
    """Return -int f log f over the uniform probability law, f = (1/n) sum_j C exp(kappa <., x_j>).

    The integral is a mean over the tokens of integrals against their own kernel: Gauss quadrature
    in the height t = <y, x_i>, exact for polynomials of degree 2 nodes - 1, and pairs of opposite
    random directions around x_i (both directions there are for d = 2).
    """
    n, d = x.shape
    falls, weights, log_constant = height_rule(concentration, d, nodes)
    along, aside = 1 - falls, np.sqrt(falls * (2 - falls))
    rng = np.random.Generator(np.random.Philox(seed))
    turns = 1 if d == 2 else directions
    block = max(1, _BYTES // (8 * n * nodes * 2))
    total = 0.0
    for _ in range(turns):
        across = _directions(x, rng)
        for start in range(0, n, block):
            part = slice(start, start + block)
            for sign in (1.0, -1.0):
                y = along[:, None, None] * x[part] + (
                    sign * aside[:, None, None] * across[part]
                )  # (nodes, block, d)
                score = concentration * (y.reshape(-1, d) @ x.T - 1)  # <= 0: in range
                density = np.exp(score).mean(axis=1).reshape(len(falls), -1)
                total += float(weights @ np.log(density).sum(axis=1))
    return -(total / (2 * turns * n) + log_constant)


def _directions(x: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return a unit tangent vector at every token, uniformly distributed."""
    if x.shape[1] == 2:
        return np.stack([-x[:, 1], x[:, 0]], axis=1)
    z = rng.standard_normal(x.shape)
    drawn = np.linalg.norm(z, axis=1)
    z -= np.einsum("ik,ik->i", x, z)[:, None] * x
    length = np.linalg.norm(z, axis=1)
    # Tokens drawn with the same seed are these numbers, and leave rounding alone: draw again.
    while np.any(radial := length < 1e-6 * drawn):
        again = rng.standard_normal((int(radial.sum()), x.shape[1]))
        again -= np.einsum("ik,ik->i", x[radial], again)[:, None] * x[radial]
        z[radial], length[radial] = again, np.linalg.norm(again, axis=1)
    return z / length[:, None]


@lru_cache(maxsize=32)
def height_rule(kappa: float, d: int, nodes: int) -> tuple[FloatArray, FloatArray, float]:
    """Return a Gauss rule for u = 1 - t, t the height of a von Mises-Fisher law at its centre.

    The law e^{-kappa u} sin^{d-2}(a) da, u = 1 - cos a, is discretised by a fine rule in log a,
    which follows it wherever it sits; Lanczos on those nodes gives the recurrence, and the
    eigenvectors of its Jacobi matrix the rule of few nodes (Golub and Welsch).

    Returns
    -------
    nodes u, their weights (of sum one), and log C: the density against the uniform probability law
    is C e^{-kappa u}
    """
    from scipy.special import gammaln, roots_legendre

    s, w = roots_legendre(_FINE)
    low, high = math.log(1e-16), math.log(math.pi)
    angle = np.exp(low + (high - low) * (s + 1) / 2)
    fall = 2 * np.sin(angle / 2) ** 2
    log_weight = np.log(w * (high - low) / 2 * angle) - kappa * fall
    log_weight += (d - 2) * np.log(np.sin(angle))
    peak = float(log_weight.max())
    weight = np.exp(log_weight - peak)
    area = float(gammaln(0.5) + gammaln((d - 1) / 2) - gammaln(d / 2))  # over all heights
    log_constant = area - peak - math.log(weight.sum())
    basis = [np.sqrt(weight / weight.sum())]
    diagonal: list[float] = []
    off: list[float] = []
    for k in range(nodes):
        v = fall * basis[k]
        diagonal.append(float(basis[k] @ v))
        for known in basis * 2:  # twice: orthogonal to rounding
            v = v - (known @ v) * known
        norm = float(np.linalg.norm(v))
        if k + 1 == nodes or norm < 1e-13 * diagonal[0]:
            break
        off.append(norm)
        basis.append(v / norm)
    matrix = np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)
    falls, vectors = np.linalg.eigh(matrix)
    return np.clip(falls, 0.0, 2.0), vectors[0] ** 2, log_constant


# One cloud
# ---------


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


def check_bandwidth(bandwidth: float) -> float:
    """Raise InputError unless `bandwidth` is an angle from 0.001 to pi."""
    angle = positive(bandwidth, "bandwidth")
    if not _NARROWEST <= angle <= math.pi:
        raise InputError(
            f"bandwidth is {angle:g}: expected an angle in radians from {_NARROWEST:g} to pi"
        )
    return angle


def _cloud(x: ArrayLike) -> FloatArray:
    return np.ascontiguousarray(as_unit_tokens(x), np.float64)


def _with_unit(x: ArrayLike) -> tuple[FloatArray, float]:
    """Return tokens for distances, and the unit of rounding of their type.

    Norms that are off one by more than rounding become one: distances are between directions.
    """
    given = as_unit_tokens(x)
    unit = rounding(given.dtype)
    tokens = np.ascontiguousarray(given, np.float64)
    norms = np.linalg.norm(tokens, axis=1)
    off = np.abs(norms - 1) > 16 * unit
    tokens[off] /= norms[off, None]
    return tokens, unit


def labels(x: ArrayLike, scale: float) -> NDArray[np.int64]:
    r"""Return the cluster of every token by single linkage at a scale.

    Clusters are the components of the graph dist(x_i, x_j) <= scale, with the geodesic distance
    ``2 arcsin(|x - y| / 2)``, where distances that exceed the scale by rounding alone are ties and
    count as equal to it.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    scale : float
        Geodesic distance in radians, 0 to pi.

    Returns
    -------
    ndarray of int64, shape (n,)
        Labels 0 to count - 1, numbered by the first token of each cluster.

    Raises
    ------
    InputError
        For tokens off the sphere, a wrong shape, or a scale out of range.

    Notes
    -----
    Apart from ties the result is exact. A distance and the scale tie where rounding explains what
    they differ by, be the scale from `wflow.transport.distance`, from a chord or from an arccos:
    with the chord c = 2 sin(scale / 2), tokens are linked where

    .. math:: |x - y| \le c + \min(16\,\epsilon / c,\, c \sqrt\epsilon / 32) + 2\epsilon,

    epsilon = 2.2e-16, and 1.2e-7 for tokens in single precision. The vertices of a regular polytope
    are one cluster at the length of its edges.

    It takes up to n^2 d / 2 multiply-adds, n d for a cloud in few tight clusters; from 2000 tokens
    on a k-d tree searches clouds that are not dense. Memory grows like n.

    In the theory: :ref:`single linkage <theory-linkage>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> wflow.clusters.labels([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]], 0.7)
    array([0, 1, 0])
    >>> wflow.clusters.labels([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]], np.arccos(0.8))  # a tie
    array([0, 1, 0])
    """
    tokens, unit = _with_unit(x)
    return components(tokens, check_scale(scale), unit)


def count(x: ArrayLike, scale: float) -> int:
    """Return the number of clusters by single linkage at a scale.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    scale : float
        Geodesic distance in radians, 0 to pi, as for `labels`.

    Returns
    -------
    int
        Number of clusters.

    Raises
    ------
    InputError
        For tokens off the sphere, a wrong shape, or a scale out of range.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> wflow.clusters.count(np.eye(3), 0.1), wflow.clusters.count(np.eye(3), 1.6)
    (3, 1)
    """
    return int(labels(x, scale).max()) + 1


def sizes(x: ArrayLike, scale: float) -> NDArray[np.int64]:
    """Return the numbers of tokens of the clusters at a scale, largest first.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    scale : float
        Geodesic distance in radians, 0 to pi, as for `labels`.

    Returns
    -------
    ndarray of int64, shape (clusters,)
        Sizes, of sum n.

    Raises
    ------
    InputError
        For tokens off the sphere, a wrong shape, or a scale out of range.

    Examples
    --------
    >>> import wflow
    >>> wflow.clusters.sizes([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]], 0.7)
    array([2, 1])
    """
    return np.sort(np.bincount(labels(x, scale)))[::-1].astype(np.int64)


@dataclass(frozen=True, repr=False)
class PersistentCount(ShortResult):
    """Number of clusters without a stated scale.

    Attributes
    ----------
    count : int
        Number of clusters of the partition that holds over the widest range of scales; n, every
        token by itself, where no partition stands out.
    scale_low : float
        Smallest scale, in radians, at which `labels` finds it.
    scale_high : float
        Scale, in radians, from which on `labels` no longer finds it; below it, ties aside, it does.
    persistence : float
        Ratio of these scales; 1 where no partition stands out.

    Examples
    --------
    >>> import wflow
    >>> x = wflow.tokens.clusters(20, 3, clusters=2, spread=1e-3, seed=0)
    >>> found = wflow.clusters.persistent_count(x)
    >>> found.count, found.scale_low < found.scale_high
    (2, True)
    """

    count: int
    scale_low: float
    scale_high: float
    persistence: float


def persistent_count(
    x: ArrayLike, *, threshold: float = 3.0, level: float = 0.01
) -> PersistentCount:
    """Return the number of clusters of the partition that persists over the widest range of scales.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    threshold : float, default 3.0
        Smallest persistence, > 1.
    level : float, default 0.01
        Probability, up to the approximation, that a uniform cloud has a cluster, in (0, 1).

    Returns
    -------
    PersistentCount
        Number of clusters, with the scales at which it holds.

    Raises
    ------
    InputError
        For tokens off the sphere, a wrong shape, or a threshold or level out of range.

    Notes
    -----
    Single linkage merges clusters at heights h_1 <= .. <= h_{n-1}, the edges of the minimum
    spanning tree; it finds k clusters at the scales h_{n-k} <= scale < h_{n-k+1}. The persistence
    of that partition is the ratio h_{n-k+1} / h_{n-k} for 1 < k < n. For k = 1 it is pi over the
    extent of the cloud, twice the largest distance to the mean direction: a dense cloud all around
    the sphere is connected at small scales too, and is no cluster. Heights and extent are at least
    1e-8, 1e-6 for tokens in single precision, so that tokens that coincide to rounding count as
    one.

    A partition stands out if its persistence reaches `threshold`, and more than chance explains:
    among uniform tokens the ratio after j = n - k merges exceeds r with a probability of about
    r^{-j (d-1)}, which must stay below level / n. The partition of largest persistence among those
    is returned, and count = n where there is none. The n^2 d / 2 multiply-adds take a second for
    some 20 000 tokens in d = 3; memory grows like n.

    In the theory: :ref:`persistence <theory-persistence>`.

    Examples
    --------
    >>> import wflow
    >>> x = wflow.tokens.clusters(30, 3, clusters=3, spread=1e-3, seed=0)
    >>> wflow.clusters.persistent_count(x).count
    3
    """
    tokens, unit = _with_unit(x)
    threshold, level = number(threshold, "threshold"), number(level, "level")
    if not threshold > 1:
        raise InputError(f"threshold is {threshold}: expected a ratio > 1, such as 3")
    if not 0 < level < 1:
        raise InputError(f"level is {level}: expected a probability between 0 and 1, such as 0.01")
    return _persistent(tokens, unit, threshold, level)


def _persistent(
    tokens: FloatArray, unit: float, threshold: float = 3.0, level: float = 0.01
) -> PersistentCount:
    """Compute `persistent_count` of checked tokens with this unit of rounding."""
    n, d = tokens.shape
    least = max(COINCIDENT, 8 * unit)
    if n == 1:
        return PersistentCount(1, 0.0, math.pi, math.pi / least)
    edges = merge_heights(tokens)
    below = np.append(edges[:-1], _extent(tokens))  # of the partitions in n - 1, .., 2, 1 clusters
    above = np.append(edges[1:], math.pi)
    ratio = np.maximum(above, least) / np.maximum(below, least)
    chance = (n / level) ** (1 / (np.arange(1, n) * (d - 1)))
    ratio[ratio < np.maximum(threshold, chance)] = 0.0
    best = int(np.argmax(ratio))
    if ratio[best] == 0:
        return PersistentCount(n, 0.0, float(edges[0]), 1.0)
    return PersistentCount(n - 1 - best, float(edges[best]), float(above[best]), float(ratio[best]))


def _extent(x: FloatArray) -> float:
    """Return twice the largest distance of a token to the mean direction, at most pi."""
    mean = x.mean(axis=0)
    length = float(np.linalg.norm(mean))
    if length < COINCIDENT:
        return math.pi
    chord = float(np.sqrt(np.max(np.sum((x - mean / length) ** 2, axis=1))))
    return min(4 * math.asin(min(chord / 2, 1.0)), math.pi)


def order_parameter(x: ArrayLike) -> float:
    """Return the order parameter ``|(1/n) sum_i x_i|``.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.

    Returns
    -------
    float
        Order: 1 for one point, 0 for a balanced cloud.

    Raises
    ------
    InputError
        For tokens off the sphere or a wrong shape.

    Examples
    --------
    >>> import wflow
    >>> wflow.clusters.order_parameter([[1.0, 0.0], [-1.0, 0.0]])
    0.0
    """
    return min(1.0, float(np.linalg.norm(_cloud(x).mean(axis=0))))


def nematic_order(x: ArrayLike) -> float:
    """Return the largest eigenvalue of (1/n) sum_i x_i x_i^T.

    It sees clouds in pairs +-x, for which the order parameter vanishes.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.

    Returns
    -------
    float
        Order: 1 for one axis, up to sign; 1/d at least.

    Raises
    ------
    InputError
        For tokens off the sphere or a wrong shape.

    Examples
    --------
    >>> import wflow
    >>> wflow.clusters.nematic_order([[1.0, 0.0], [-1.0, 0.0]])
    1.0
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
    r"""Return the entropy of the cloud smoothed by a kernel, relative to the uniform law.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    bandwidth : float, default 0.25
        Width of the kernel in radians, 0.001 to pi.
    nodes : int, default 6
        Nodes of the quadrature in the height around a token.
    directions : int, default 2
        Random directions around a token; both tangent directions for d = 2.
    seed : int, default 0
        Seed of the directions.

    Returns
    -------
    float
        Entropy <= 0: 0 for uniform tokens.

    Raises
    ------
    InputError
        For tokens off the sphere, a wrong shape, or numbers out of range.

    Notes
    -----
    With the von Mises-Fisher kernel K = C e^{kappa <x, y>}, kappa = 1/bandwidth^2, the value is

    .. math:: -\mathrm{KL}(\mu * K \,|\, \text{uniform}) = -\int f \log f, \qquad
        f(x) = \frac1n \sum_j K(x, x_j),

    over the uniform probability law. A Dirac gives the entropy of the kernel, -(log C + kappa
    A(kappa)), A = I_{d/2}/I_{d/2-1}. The smoothing raises the entropy above that of the law the
    tokens come from; that they are finitely many lowers it, for uniform tokens by (int K^2 - 1) /
    (2n) to first order. The integral around every token is done by Gauss quadrature in the height
    and, for d > 2, by random directions in opposite pairs, so that rotating the cloud changes the
    value by a small random error. It takes n^2 d 2 nodes directions multiply-adds.

    In the theory: :ref:`entropy of a cloud <theory-entropy>`.

    Examples
    --------
    >>> import wflow
    >>> dirac = wflow.clusters.entropy([[1.0, 0.0, 0.0]])
    >>> dirac < wflow.clusters.entropy(wflow.tokens.uniform(200, 3, seed=0)) < 0
    True
    """
    tokens = _cloud(x)
    bandwidth = check_bandwidth(bandwidth)
    nodes, directions = whole(nodes, "nodes", most=600), whole(directions, "directions")
    return smoothed_entropy(
        tokens, 1 / bandwidth**2, nodes, directions, whole(seed, "seed", 0, most=math.inf)
    )


class Stationarity(NamedTuple):
    """Speed of the tokens of a cloud.

    Parameters
    ----------
    rms : float
        Root mean square speed, ``sqrt((1/n) sum_i |v_i|^2)``, per unit time.
    largest : float
        Largest speed ``|v_i|``, per unit time.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> wflow.clusters.stationarity([[1.0, 0.0]], np.eye(2)[None]).largest
    0.0
    """

    rms: float
    largest: float


def stationarity(
    x: ArrayLike,
    D: ArrayLike,
    *,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
) -> Stationarity:
    """Return how far tokens are from rest: the size of their velocity, zero at stationary points.

    What is measured is a velocity, and no distance to a stationary point: near a metastable state
    the velocity is as small as at a stationary one, and the cloud leaves it all the same.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Interaction matrices.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Direction of the flow.

    Returns
    -------
    Stationarity
        Root mean square and largest speed, per unit time.

    Raises
    ------
    InputError
        As `wflow.velocity`.

    Notes
    -----
    Stationarity in the sense of [1]_ asks for ``G^2 = (1/n) sum b |v|^2 -> 0``, the same for b > 0.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Definition
       4.15.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> found = wflow.clusters.stationarity([[1.0, 0.0], [0.0, 1.0]], np.eye(2)[None])
    >>> round(found.rms, 4), found.rms == found.largest
    (0.2689, True)
    """
    v = np.asarray(velocity(x, D, flow=flow, direction=direction), np.float64)
    size = float(np.abs(v).max())
    if math.isinf(size):
        return Stationarity(math.inf, math.inf)
    unit = size if size > 1e150 else 1.0  # of speeds whose squares leave the range of doubles
    speed = np.linalg.norm(v / unit, axis=1)
    return Stationarity(float(np.sqrt(np.mean(speed**2))) * unit, float(speed.max()) * unit)


# Snapshots of a run
# ------------------


QUANTITIES = {
    "count": "number of clusters at the scale",
    "largest_share": "share of the tokens in the largest cluster at the scale",
    "persistent_count": "number of clusters of the most persistent partition",
    "persistence": "persistence of that partition",
    "order_parameter": "order parameter |mean token|",
    "nematic_order": "largest eigenvalue of the second moment of the tokens",
    "entropy": "entropy of the smoothed cloud against the uniform law",
}
"""What `over_time` can compute: name -> what it is."""


def over_time(
    run: Dataset | str | Path,
    scale: float,
    *,
    quantities: Sequence[str] | None = None,
    bandwidth: float = 0.25,
    progress: bool = False,
) -> Dataset:
    """Return clusters, order and entropy at every snapshot of a run, read some megabytes at a time.

    Parameters
    ----------
    run : xarray.Dataset, str or pathlib.Path
        A run of `wflow.solve` or `wflow.open`, or its file.
    scale : float
        Scale of `count` and `largest_share`, in radians (`labels`).
    quantities : sequence of str, optional
        Names of `QUANTITIES`. None takes all.
    bandwidth : float, default 0.25
        Width of the kernel of `entropy`, in radians.
    progress : bool, default False
        Whether to show a bar with the time left.

    Returns
    -------
    xarray.Dataset
        A variable (snapshot_path, snapshot) per quantity; NaN where a run that is not complete has
        no tokens.

    Raises
    ------
    InputError
        For a run without tokens, unknown quantities, or a scale or bandwidth out of range.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     wflow.tokens.uniform(5, 3, seed=0), wflow.heads.Frozen(), heads=np.eye(3)[None],
    ...     t_final=10.0, dt=0.1, direction="ascent",
    ... )
    >>> found = wflow.clusters.over_time(run, 0.1, quantities=["count"])
    >>> found["count"].values.tolist()
    [[5.0, 1.0]]
    """
    import xarray

    scale, bandwidth = check_scale(scale), check_bandwidth(bandwidth)
    names, progress = _names(quantities), switch(progress, "progress")
    with dataset_of(run) as ds:
        require_tokens(ds)
        unit = rounding(token_type(ds))
        shape = ds.sizes["snapshot_path"], ds.sizes["snapshot"]
        values = {name: np.full(shape, np.nan) for name in names}
        with progress_bar(shape[0] * shape[1], "clusters", progress) as advance:
            for p, k, x in all_clouds(ds):
                if x is not None:
                    for name, value in _measure(x, unit, scale, names, bandwidth).items():
                        values[name][p, k] = value
                advance(1)
        coords = {name: ds[name].load() for name in ("snapshot_path", "snapshot")}
    dims = ("snapshot_path", "snapshot")
    of = {name: {"long_name": QUANTITIES[name], "units": "1"} for name in names}
    measured = {name: (dims, values[name], of[name]) for name in names}
    table = xarray.Dataset(measured, coords, {"scale": scale})
    if "entropy" in names:
        table["entropy"].attrs["bandwidth"] = bandwidth
    return table


def _names(quantities: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of `QUANTITIES`, all for None; InputError for anything else."""
    if quantities is None:
        return tuple(QUANTITIES)
    given = quantities if isinstance(quantities, list | tuple | set | dict) else None
    if not given or not all(isinstance(name, str) and name in QUANTITIES for name in given):
        raise InputError(
            f"quantities is {shown(quantities)}: expected a list of some of {', '.join(QUANTITIES)}"
        )
    return tuple(given)


def _measure(
    x: FloatArray, unit: float, scale: float, names: Sequence[str], bandwidth: float
) -> dict[str, float]:
    """Compute the quantities of one checked cloud, whose tokens have this unit of rounding."""
    values: dict[str, float] = {}
    if "count" in names or "largest_share" in names:
        found = np.bincount(components(x, scale, unit))
        values |= {"count": len(found), "largest_share": found.max() / len(x)}
    if "persistent_count" in names or "persistence" in names:
        most = _persistent(x, unit)
        values |= {"persistent_count": most.count, "persistence": most.persistence}
    if "order_parameter" in names:
        values["order_parameter"] = order_parameter(x)
    if "nematic_order" in names:
        values["nematic_order"] = nematic_order(x)
    if "entropy" in names:
        values["entropy"] = entropy(x, bandwidth)
    return {name: values[name] for name in names}


def time_to_one_cluster(run: Dataset | str | Path, scale: float) -> DataArray:
    """Return the time of the first snapshot at which all tokens are in one cluster.

    Parameters
    ----------
    run : xarray.Dataset, str or pathlib.Path
        A run of `wflow.solve` or `wflow.open`, or its file.
    scale : float
        Scale of single linkage, in radians (`labels`).

    Returns
    -------
    xarray.DataArray
        Times (snapshot_path,); NaN where no snapshot shows one cluster.

    Raises
    ------
    InputError
        For a run without tokens, or a scale out of range.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     wflow.tokens.uniform(5, 3, seed=0), wflow.heads.Frozen(), heads=np.eye(3)[None],
    ...     t_final=10.0, dt=0.1, direction="ascent", save=wflow.SaveAt(snapshots=[0.0, 5.0, 10.0]),
    ... )
    >>> wflow.clusters.time_to_one_cluster(run, 0.1).values
    array([10.])
    """
    scale = check_scale(scale)
    name = "time at which all tokens are in one cluster"
    return _first_time(run, scale, lambda sizes: len(sizes) == 1, name)


def time_to_first_cluster(
    run: Dataset | str | Path, scale: float, *, share: float = 0.1
) -> DataArray:
    """Return the time of the first snapshot at which some cluster holds a share of the tokens.

    Parameters
    ----------
    run : xarray.Dataset, str or pathlib.Path
        A run of `wflow.solve` or `wflow.open`, or its file.
    scale : float
        Scale of single linkage, in radians (`labels`).
    share : float, default 0.1
        The share, in (0, 1]; the tokens it takes are rounded up, and at least two.

    Returns
    -------
    xarray.DataArray
        Times (snapshot_path,); NaN where no snapshot shows such a cluster.

    Raises
    ------
    InputError
        For a run without tokens, or a scale or share out of range.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     wflow.tokens.uniform(5, 3, seed=0), wflow.heads.Frozen(), heads=np.eye(3)[None],
    ...     t_final=10.0, dt=0.1, direction="ascent", save=wflow.SaveAt(snapshots=[0.0, 5.0, 10.0]),
    ... )
    >>> wflow.clusters.time_to_first_cluster(run, 0.1, share=1.0).values
    array([10.])
    """
    scale, share = check_scale(scale), number(share, "share")
    if not 0 < share <= 1:
        raise InputError(f"share is {share}: expected a share of the tokens, above 0 and up to 1")

    def reached(sizes: NDArray[np.int64]) -> bool:
        return bool(sizes.max() >= max(2, math.ceil(share * sizes.sum() - 1e-9)))

    name = f"time of the first cluster of a share {share:g} of the tokens"
    return _first_time(run, scale, reached, name)


def _first_time(
    run: Dataset | str | Path,
    scale: float,
    reached: Callable[[NDArray[np.int64]], bool],
    name: str,
) -> DataArray:
    """Return the first snapshot time at which `reached(sizes)` holds, else NaN."""
    import xarray

    with dataset_of(run) as ds:
        require_tokens(ds)
        unit = rounding(token_type(ds))
        times = ds["snapshot"].values
        paths = ds["snapshot_path"].load()
        first = np.full(len(paths), np.nan)
        for p in range(len(paths)):
            for time, x in zip(times, clouds(ds, p), strict=True):
                if x is not None and reached(np.bincount(components(x, scale, unit))):
                    first[p] = time
                    break
    attrs = {"long_name": name, "units": "1"}
    return xarray.DataArray(first, {"snapshot_path": paths}, ("snapshot_path",), attrs=attrs)


@dataclass(frozen=True, repr=False)
class Plateau(ShortResult):
    """Interval of time during which the number of clusters stays the same.

    Attributes
    ----------
    start : float
        First time with that count.
    end : float
        First time without it (the last time where it was not seen to end).
    count : int
        Number of clusters, above one.
    ended : bool
        Whether it was seen to end.

    Examples
    --------
    >>> import wflow
    >>> plateau = wflow.clusters.Plateau(start=1.0, end=8.0, count=2, ended=True)
    >>> plateau.end / plateau.start
    8.0
    """

    start: float
    end: float
    count: int
    ended: bool


def plateaus(
    times: ArrayLike, counts: ArrayLike, *, min_length: float = 0.1, below: int | None = None
) -> list[Plateau]:
    """Find metastable plateaus: maximal times of a constant count > 1, long on a log scale of time.

    Parameters
    ----------
    times : array_like, shape (k,)
        Increasing times >= 0; time 0 is left out.
    counts : array_like, shape (k,)
        Numbers of clusters; NaN (not recorded) ends a plateau.
    min_length : float, default 0.1
        Share of the log of time that a plateau must last, in (0, 1).
    below : int, optional
        Counts from here on are no plateau; give n, so that tokens that have not yet met are none.

    Returns
    -------
    list of Plateau
        Plateaus in order of time.

    Raises
    ------
    InputError
        For times that do not increase, counts of another length, or numbers out of range.

    Notes
    -----
    Metastable states of attention live exponentially long in beta [1]_, so that lengths are
    measured as log(end / start), in units of log(t_last / t_first) over the positive times.

    In the theory: :ref:`clusters <theory-clusters>`.

    References
    ----------
    .. [1] Geshkovski, Letrouit, Polyanskiy and Rigollet, *A mathematical perspective on
       transformers* (2025), sections 5 and 7.

    Examples
    --------
    >>> import wflow
    >>> found = wflow.clusters.plateaus([1, 2, 4, 8, 16], [5, 2, 2, 2, 1], below=5)
    >>> [(plateau.start, plateau.end, plateau.count) for plateau in found]
    [(2.0, 16.0, 2)]
    """
    t, c = _series(times, counts)
    min_length = number(min_length, "min_length")
    if not 0 < min_length < 1:
        raise InputError(f"min_length is {min_length}: expected a share between 0 and 1")
    most = math.inf if below is None else whole(below, "below", 2)
    t, c = t[t > 0], c[t > 0]
    if len(t) < 2:
        return []
    least = min_length * math.log(t[-1] / t[0])
    ends = np.append(np.flatnonzero(np.diff(c) != 0) + 1, len(c))  # NaN differs from NaN
    found, start = [], 0
    for end in ends:
        ended = bool(end < len(t) and np.isfinite(c[end]))
        last = t[end] if ended else t[end - 1]
        if 1 < c[start] < most and math.log(last / t[start]) >= least:
            found.append(Plateau(float(t[start]), float(last), int(c[start]), ended))
        start = int(end)
    return found


def _series(times: ArrayLike, counts: ArrayLike) -> tuple[FloatArray, FloatArray]:
    t, c = reals(times, "times"), reals(counts, "counts", finite=False)
    if t.ndim != 1 or t.shape != c.shape:
        raise InputError(
            f"times have shape {t.shape} and counts {c.shape}: expected both (k,), the series of "
            "one path"
        )
    if not (np.all(np.diff(t) > 0) and np.isfinite(t).all() and np.all(t >= 0)):
        raise InputError("times must be finite, >= 0 and increasing; sort them")
    return t, c


# Omega-limits: whether the tokens of a run come to rest
# ------------------------------------------------------

Interval = tuple[float, float]
Verdict = Literal["stationary", "not stationary", "undecided"]
Integrable = Literal["yes", "in expectation", "no", "undecided", "unknown"]

_RESAMPLES, _LEVEL = 1000, 0.95
_BUDGET = {"energy", "upper_gradient_sq", "weight_power", "ito_power"}
_AT_REST = 0.5  # exponents below it count as no decay
# G^2 in the last window over its largest value, below which an exponent counts: a run that is short
# beside the relaxation of its heads has steep slopes at any level, and with noise on the heads G^2
# fell to 1e-2 and rose again in 360 runs of times 0.25 to 4.
_LEAST_DECAY, _LEAST_DECAY_NOISY = 1e-2, 1e-3
# Radians that tokens go along the tail, below which a G^2 that does not fall has had no time to.
_LEAST_MOVED = 0.1
_NOISY, _SIGMAS = 4.0, 3.0  # mean squares over error squares; standard errors


@dataclass(frozen=True, repr=False)
class Decay(ShortResult):
    """Decay of a positive quantity over windows of time, by fits to its logarithm.

    Attributes
    ----------
    times, mean, largest : arrays (windows,), middle, mean and maximum of each window
    exponent, exponent_ci : p of the fit t^-p with its 95 % interval
    rate, rate_ci : lambda of the fit e^{-lambda t}, likewise
    law : which of the two leaves the smaller residual; "none" where the quantity is zero
    """

    times: FloatArray = field(repr=False)
    mean: FloatArray = field(repr=False)
    largest: FloatArray = field(repr=False)
    exponent: float
    exponent_ci: Interval
    rate: float
    rate_ci: Interval
    law: Literal["exponential", "power", "none"]


@dataclass(frozen=True, repr=False)
class OmegaLimit(ShortResult):
    """Result about the omega-limit of a run.

    Attributes
    ----------
    verdict : {"stationary", "not stationary", "undecided"}
        What the test finds.
    reasons : tuple of str
        What decided, with the numbers.
    quantity : str
        "upper_gradient_sq", or "speed_sq" for runs without an energy.
    tail : tuple of float
        First and last time of the tail.
    decay : Decay
        Decay of the quantity along the tail, mean over the paths.
    ratio : float
        Mean of the last window over the largest value in the run.
    integrable : {"yes", "in expectation", "no", "undecided", "unknown"}
        Whether ``int |dE/dt| dt < inf`` by the run, dE/dt the change of the energy by the heads
        alone, weight_power + ito_power: "in expectation" where the mean over the paths vanishes
        within its Monte Carlo error, "unknown" without an energy.
    power_decay : Decay or None
        Decay of the size of the mean of dE/dt over the paths along the tail.
    power_tail : tuple of float
        Mean of dE/dt over the second half of the tail and the paths, and its standard error; in a
        steady state it is what the tokens dissipate. NaN without an energy.
    power_integral : tuple of float
        Integral of ``|mean dE/dt|`` over the whole run, and over the tail.
    power_integral_paths : tuple of float
        The mean over the paths of the integral of ``|dE/dt|``, likewise.
    w2_last : float
        Distance W₂ between the last two snapshots, mean over the snapshot paths; NaN without them.
    w2_interval : float
        Time between those.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     wflow.tokens.uniform(5, 3, seed=0), wflow.heads.Frozen(), heads=np.eye(3)[None],
    ...     t_final=4.0, dt=0.05, direction="ascent",
    ... )
    >>> wflow.clusters.omega_limit(run).quantity
    'upper_gradient_sq'
    """

    _shown = ("verdict", "quantity", "tail", "ratio", "integrable", "w2_last")

    verdict: Verdict
    reasons: tuple[str, ...]
    quantity: str
    tail: Interval
    decay: Decay
    ratio: float
    integrable: Integrable
    power_decay: Decay | None
    power_tail: Interval
    power_integral: Interval
    power_integral_paths: Interval
    w2_last: float
    w2_interval: float


def omega_limit(
    run: Dataset | str | Path,
    *,
    tail: float = 0.5,
    windows: int = 8,
    tolerance: float = 1e-10,
) -> OmegaLimit:
    """Test on a run whether its omega-limit points are stationary, that is whether G^2 vanishes.

    Parameters
    ----------
    run : xarray.Dataset, str or pathlib.Path
        A run of `wflow.solve` or `wflow.open`, or its file.
    tail : float, default 0.5
        Share of the time that counts as its tail, in (0, 1).
    windows : int, default 8
        Number of windows, >= 4.
    tolerance : float, default 1e-10
        Value of G^2 that counts as zero, relative to its largest value.

    Returns
    -------
    OmegaLimit
        The verdict and its reasons.

    Raises
    ------
    InputError
        For a run with too few record times in its tail, or numbers out of range.

    Notes
    -----
    By [1]_, if ``int |dE/dt| dt < inf``, every omega-limit point is stationary. A run ends at a
    finite time, so that the test is about the decay of the squared upper gradient G^2 along the
    tail, in means over `windows` equal times: the energy balance leaves int G^2 dt finite, and t^-p
    is integrable for p > 1. The verdict is

    - "stationary": G^2 has fallen below `tolerance` times its largest value; or it has fallen below
      1e-2 of it (1e-3 for heads with noise), decays with an exponent whose 95 % interval lies above
      1, and ``int |dE/dt| dt`` is not found to diverge;
    - "not stationary": the interval lies below 1/2 (no decay, or one far too slow) along a tail in
      which tokens go 0.1 radians or more;
    - "undecided" otherwise: the run cannot tell.

    The intervals come from the scatter of the windows about the fit and, for two paths or more,
    from a bootstrap over the paths: the wider one counts. A metastable state, which is left after a
    time that the run does not reach, cannot be distinguished from a stationary one.

    In the theory: :ref:`omega-limits <theory-omega-limit>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Definition
       4.15, Theorem 4.16 and eq. 122.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     wflow.tokens.uniform(5, 3, seed=0), wflow.heads.Frozen(), heads=np.eye(3)[None],
    ...     t_final=40.0, dt=0.1, direction="ascent",
    ... )
    >>> wflow.clusters.omega_limit(run).verdict
    'stationary'
    """
    tail, tolerance = number(tail, "tail"), number(tolerance, "tolerance", least=0.0)
    if not 0 < tail < 1:
        raise InputError(f"tail is {tail}: expected a share of the time between 0 and 1")
    windows = whole(windows, "windows", 4, why="a decay is fitted through them")
    with dataset_of(run) as ds:
        quantity = "upper_gradient_sq" if set(ds.variables) >= _BUDGET else "speed_sq"
        if quantity not in ds:
            raise InputError(
                f"the run holds neither {', '.join(sorted(_BUDGET))} nor speed_sq: give a run with "
                "all its series"
            )
        if not ds[quantity].size:
            raise InputError("the run has no record times or no paths; give a run with both")
        time = np.asarray(ds["time"].values, np.float64)
        parts = _parts(time, tail, windows)
        speed = _values(ds, quantity)
        power, energy, least = None, None, _LEAST_DECAY
        if quantity == "upper_gradient_sq":
            ito = _values(ds, "ito_power")
            power = _values(ds, "weight_power") + ito
            energy = np.abs(_values(ds, "energy")).mean(axis=0)
            least = _LEAST_DECAY_NOISY if ito.any() else _LEAST_DECAY
        w2_last, w2_interval = _last_step(ds)
    mean = speed.mean(axis=0)
    first = parts[0][0]
    # How far tokens go along the tail: G^2 is the mean of b |v|^2, and 2 E that of the mobilities.
    weight = 1.0 if energy is None else 2 * energy
    moved = _trapezoid(time[first:], np.sqrt(mean / weight)[first:])
    decay = _decay(time, parts, speed)
    peak = float(mean.max())
    ratio = float(decay.mean[-1] / peak) if peak > 0 else 0.0
    integrable: Integrable = "unknown"
    power_decay = None
    integral = own = power_tail = (math.nan, math.nan)
    why = ""
    if power is not None:
        integrable, power_decay, power_tail, why = _integrable(time, parts, power, tolerance)
        size = np.abs(power.mean(axis=0))
        integral = _trapezoid(time, size), _trapezoid(time[first:], size[first:])
        size = np.abs(power).mean(axis=0)
        own = _trapezoid(time, size), _trapezoid(time[first:], size[first:])
    verdict, reason = _verdict(decay, ratio, tolerance, least, moved, integrable)
    reasons = [reason, why] if why else [reason]
    if math.isfinite(w2_last):
        reasons.append(f"the last two snapshots, {w2_interval:g} apart: W₂ = {w2_last:.3g}")
    return OmegaLimit(
        verdict=verdict,
        reasons=tuple(reasons),
        quantity=quantity,
        tail=(float(time[parts[0][0]]), float(time[-1])),
        decay=decay,
        ratio=ratio,
        integrable=integrable,
        power_decay=power_decay,
        power_tail=power_tail,
        power_integral=integral,
        power_integral_paths=own,
        w2_last=w2_last,
        w2_interval=w2_interval,
    )


def _parts(time: FloatArray, tail: float, windows: int) -> list[NDArray[np.int64]]:
    """Return the record times of each window of the tail."""
    if windows > len(time):
        raise InputError(
            f"the run has {len(time)} record times, too few for {windows} windows; lower "
            "save.every, or take fewer windows"
        )
    edges = time[-1] - tail * (time[-1] - time[0]) * np.linspace(1, 0, windows + 1)
    place = np.clip(np.searchsorted(edges, time, side="right") - 1, -1, windows - 1)
    parts = [np.flatnonzero(place == w) for w in range(windows)]
    if len(time) < 2 or not all(len(part) for part in parts):
        raise InputError(
            f"the tail of the run has {int(np.sum(place >= 0))} record times, too few for "
            f"{windows} windows; lower save.every, or take fewer windows"
        )
    return parts


def _values(ds: Dataset, name: str) -> FloatArray:
    """Return a series (paths, times) of the paths that are recorded to the end."""
    values = np.asarray(ds[name].transpose("path", "time").values, np.float64)
    if not np.isfinite(values).all():
        raise InputError(
            f"{name} is not finite everywhere: finish the run (--resume), or lower the weights"
        )
    return values


def _decay(time: FloatArray, parts: list[NDArray[np.int64]], values: FloatArray) -> Decay:
    """Fit the decay of the window means of a series (paths, times) >= 0."""
    middle = np.array([time[part].mean() for part in parts])
    by_path = np.stack([values[:, part].mean(axis=1) for part in parts], axis=1)
    largest = np.array([values.mean(axis=0)[part].max() for part in parts])
    mean = by_path.mean(axis=0)
    if not np.all(mean > 0):
        nothing = (math.nan, math.nan)
        return Decay(middle, mean, largest, math.nan, nothing, math.nan, nothing, "none")
    exponent, exponent_ci, power_rest = _slope(np.log(middle), by_path)
    rate, rate_ci, exponential_rest = _slope(middle, by_path)
    law: Literal["exponential", "power"] = (
        "exponential" if exponential_rest < power_rest else "power"
    )
    return Decay(middle, mean, largest, exponent, exponent_ci, rate, rate_ci, law)


def _slope(s: FloatArray, by_path: FloatArray) -> tuple[float, Interval, float]:
    """Return the slope of -log(mean over paths) against s (windows,), interval and residual."""
    from scipy.special import stdtrit

    centred = s - s.mean()
    square = float(centred @ centred)

    def fit(means: FloatArray) -> FloatArray:
        return np.asarray(-np.log(means) @ centred / square)

    mean = by_path.mean(axis=0)
    slope = float(fit(mean))
    rest = -np.log(mean) - slope * s
    residual = float(np.sum((rest - rest.mean()) ** 2))
    # Windows of one path scatter about the fit; paths scatter about each other as well.
    error = math.sqrt(residual / (len(s) - 2) / square)
    half = float(stdtrit(len(s) - 2, (1 + _LEVEL) / 2)) * error
    low, high = slope - half, slope + half
    paths = len(by_path)
    if paths > 1:
        rng = np.random.Generator(np.random.Philox(0))
        means = np.stack(
            [by_path[rng.integers(paths, size=paths)].mean(axis=0) for _ in range(_RESAMPLES)]
        )
        slopes = fit(np.maximum(means, np.finfo(float).tiny))
        ends = np.quantile(slopes, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    return slope, (low, high), residual


def _verdict(
    decay: Decay,
    ratio: float,
    tolerance: float,
    least: float,
    moved: float,
    integrable: Integrable,
) -> tuple[Verdict, str]:
    if ratio <= tolerance:
        return "stationary", f"G^2 has fallen to {ratio:.2g} of its largest value"
    low, high = decay.exponent_ci
    text = f"G^2 goes like t^-p with p = {decay.exponent:.3g} ({low:.3g} to {high:.3g}) in the tail"
    text += f", to {ratio:.2g} of its largest value"
    if low > 1:
        if integrable == "no":
            return "undecided", f"{text}, while the heads still change the energy"
        if ratio > least:
            text += f", which may be a transient: from {least:g} on it counts as decay"
            return "undecided", f"{text}; continue for longer"
        return "stationary", f"{text}: it vanishes, integrably"
    if high < _AT_REST:
        if moved < _LEAST_MOVED:
            return (
                "undecided",
                f"{text}, but the tail is too short for a decay; continue for longer",
            )
        return "not stationary", f"{text}: it does not vanish"
    return "undecided", f"{text}: run on for longer, or with more paths"


def _integrable(
    time: FloatArray, parts: list[NDArray[np.int64]], power: FloatArray, tolerance: float
) -> tuple[Integrable, Decay | None, Interval, str]:
    """Return whether dE/dt by the heads alone, averaged over the paths, is integrable in time."""
    paths = len(power)
    mean = power.mean(axis=0)
    peak = float(np.abs(mean).max())
    if peak == 0:
        return "yes", None, (0.0, 0.0), "the heads do not change the energy"
    late = power[:, np.concatenate(parts[len(parts) // 2 :])].mean(axis=1)
    average = float(late.mean())
    error = float(late.std(ddof=1)) / math.sqrt(paths) if paths > 1 else 0.0
    tail = average, error
    decay = _decay(time, parts, np.abs(mean)[None])
    if decay.mean[-1] <= tolerance * peak:
        return "yes", decay, tail, f"|dE/dt| has fallen to {decay.mean[-1] / peak:.2g} of its peak"
    # |mean| never falls below its Monte Carlo error: where that is all there is to see, the
    # average over the late times decides.
    last = parts[-1]
    error_sq = power[:, last].var(axis=0, ddof=1) / paths if paths > 1 else np.zeros(len(last))
    if np.mean(mean[last] ** 2) <= _NOISY * np.mean(error_sq):
        text = f"dE/dt is {average:.2g} ± {error:.2g} in the mean over {paths} paths and late times"
        if abs(average) > _SIGMAS * error:
            return "no", decay, tail, f"{text}: it does not vanish"
        return "in expectation", decay, tail, f"{text}: it vanishes within its error"
    low, high = decay.exponent_ci
    text = f"|dE/dt| goes like t^-p with p = {decay.exponent:.3g} ({low:.3g} to {high:.3g})"
    if low > 1:
        return "yes", decay, tail, f"{text}: integrable"
    if high < 1:
        return "no", decay, tail, f"{text}: not integrable"
    return "undecided", decay, tail, text


def _trapezoid(time: FloatArray, values: FloatArray) -> float:
    return float(np.sum(np.diff(time) * (values[1:] + values[:-1]) / 2))


def _last_step(ds: Dataset) -> Interval:
    """Return W₂ between the last two snapshots, averaged over paths, and the time between them."""
    if "tokens" not in ds.variables or not ds["tokens"].size or ds.sizes["snapshot"] < 2:
        return math.nan, math.nan
    from wflow.transport.distances import w2

    distances = []
    for p in range(ds.sizes["snapshot_path"]):
        before, after = cloud(ds, p, -2), cloud(ds, p, -1)
        if before is not None and after is not None:
            distances.append(w2(before, after))
    times = ds["snapshot"].values[-2:]
    return (float(np.mean(distances)) if distances else math.nan), float(times[1] - times[0])
