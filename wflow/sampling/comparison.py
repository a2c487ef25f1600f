"""Distances between samples in R^d, such as drawn samples and a reference.

`w2` is the metric itself, for some thousand points; `sliced_w2` and `mmd` take larger samples and
any dimension, `frechet` compares mean and covariance alone. Distances of tokens on the sphere are
in `wflow.transport`.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist, pdist

from wflow._core import memory
from wflow._core.checks import reals, shown, whole
from wflow._core.errors import InputError
from wflow.transport.distances import Pair, load_pot, simplex
from wflow.transport.linear_assignment import assign

__all__ = ["frechet", "mmd", "sliced_w2", "w2"]

FloatArray = NDArray[np.float64]

_BLOCK = 2**20  # pairs at a time
_REFERENCE = 1000  # points whose median distance is the unit of the bandwidths
_OCTAVES = np.array([0.25, 0.5, 1.0, 2.0, 4.0])


def _samples(x: ArrayLike, y: ArrayLike, least: int = 1) -> tuple[FloatArray, FloatArray]:
    """Check two samples of one dimension, (n, d) and (m, d)."""
    given = reals(x, "x"), reals(y, "y")
    for values, name in zip(given, ("x", "y"), strict=True):
        if values.ndim != 2 or len(values) < least or values.shape[1] == 0:
            raise InputError(
                f"{name} has shape {values.shape}: expected (n, d), n >= {least} points in R^d"
            )
    if given[0].shape[1] != given[1].shape[1]:
        raise InputError(
            f"x has d = {given[0].shape[1]} and y has d = {given[1].shape[1]}: expected samples of "
            "one space"
        )
    largest = max(float(np.abs(values).max()) for values in given)
    if largest > 1e50:
        raise InputError(
            f"x or y holds {largest:.3g}: expected numbers up to 1e50, whose powers are doubles"
        )
    return given


def w2(x: ArrayLike, y: ArrayLike) -> float:
    r"""Compute the Wasserstein distance of two samples exactly.

    .. math:: W_2(x, y) = \Big( \min_\pi \sum_{ij} \pi_{ij} |x_i - y_j|^2 \Big)^{1/2}

    over plans with uniform marginals, by linear assignment for samples of one size and by the
    network simplex of POT [1]_ otherwise. Time grows like the third power of the size: a second for
    two thousand points.

    Parameters
    ----------
    x, y : array_like, shape (n, d) and (m, d)
        Samples.

    Returns
    -------
    float
        The distance.

    Raises
    ------
    InputError
        For other shapes, values that are not finite, samples that do not fit in memory.

    References
    ----------
    .. [1] Flamary et al., "POT: Python Optimal Transport", JMLR 22 (2021).

    Examples
    --------
    >>> from wflow import sampling
    >>> sampling.w2([[0.0, 0.0], [1.0, 0.0]], [[1.0, 2.0], [0.0, 2.0]])
    2.0
    """
    given = Pair(*_samples(x, y), None, None)
    memory.check_memory(
        (17 if given.assigned else 40) * given.pairs,
        f"exact transport between {len(given.x)} and {len(given.y)} points",
        "use sliced_w2, or a part of the points",
    )
    costs = cdist(given.x, given.y, "sqeuclidean")
    if given.assigned:
        return math.sqrt(costs[np.arange(len(costs)), assign(costs)].mean())
    return math.sqrt(max(simplex(given, costs)[0], 0.0))


def sliced_w2(x: ArrayLike, y: ArrayLike, *, projections: int = 256, seed: int = 0) -> float:
    r"""Compute the sliced Wasserstein distance of two samples.

    .. math:: SW_2(x, y) = \Big( \frac1P \sum_{p=1}^P W_2(\theta_p \cdot x, \theta_p \cdot y)^2
        \Big)^{1/2}

    with directions :math:`\theta_p` uniform on the sphere and the distances on the line in closed
    form, by POT's `sliced_wasserstein_distance` [1]_. It is at most :math:`W_2 / \sqrt d` in the
    limit of many directions. Samples that are compared with each other share the directions of a
    seed.

    Parameters
    ----------
    x, y : array_like, shape (n, d) and (m, d)
        Samples.
    projections : int, default 256
        Number P of directions, >= 1.
    seed : int, default 0
        Of the directions, >= 0.

    Returns
    -------
    float
        The distance.

    Raises
    ------
    InputError
        For other shapes, values that are not finite, numbers out of range, and samples that do not
        fit in memory.

    References
    ----------
    .. [1] Flamary et al., "POT: Python Optimal Transport", JMLR 22 (2021); Bonneel, Rabin, Peyré,
       Pfister, "Sliced and Radon Wasserstein Barycenters of Measures", JMIV 51 (2015).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> x = np.random.default_rng(0).standard_normal((500, 2))
    >>> shift = sampling.sliced_w2(x, x + [3.0, 0.0])
    >>> abs(shift - 3 / 2**0.5) < 0.2
    True
    """
    x, y = _samples(x, y)
    projections, seed = whole(projections, "projections"), whole(seed, "seed", 0)
    memory.check_memory(
        8 * 8 * projections * (len(x) + len(y) + x.shape[1]),
        f"the sliced distance by {projections} projections",
        "take fewer, or a part of the points",
    )
    normal = np.random.Generator(np.random.Philox(seed)).standard_normal((x.shape[1], projections))
    directions = normal / np.linalg.norm(normal, axis=0)
    squared = load_pot().sliced_wasserstein_distance(x, y, projections=directions) ** 2
    return math.sqrt(max(float(squared), 0.0))


def mmd(x: ArrayLike, y: ArrayLike, bandwidths: ArrayLike | None = None) -> float:
    r"""Compute the unbiased estimate of the squared maximum mean discrepancy of two samples [1]_.

    .. math:: \mathrm{MMD}^2 = \frac{1}{n (n-1)} \sum_{i \ne j} k(x_i, x_j)
        + \frac{1}{m (m-1)} \sum_{i \ne j} k(y_i, y_j) - \frac{2}{n m} \sum_{ij} k(x_i, y_j),
        \qquad k(x, y) = \frac1B \sum_{b=1}^B e^{-|x - y|^2 / (2 s_b^2)}

    Its mean is zero where both samples have one law, so that it is negative about as often as
    positive there.

    Parameters
    ----------
    x, y : array_like, shape (n, d) and (m, d)
        Samples, n and m >= 2; y is the reference.
    bandwidths : array_like, shape (B,), optional
        Bandwidths s_b, from 1e-50 to 1e50; None takes 1/4, 1/2, 1, 2 and 4 times the median
        distance of the first 1,000 points of y, so that all samples that are compared with one y
        share a kernel.

    Returns
    -------
    float
        The estimate of MMD^2.

    Raises
    ------
    InputError
        For other shapes, values that are not finite, bandwidths out of range, and a
        reference whose points are all equal where no bandwidths are given.

    References
    ----------
    .. [1] Gretton, Borgwardt, Rasch, Schölkopf, Smola, "A Kernel Two-Sample Test", JMLR 13 (2012),
       Lemma 6.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> x, y, z = np.random.default_rng(0).standard_normal((3, 400, 2))
    >>> sampling.mmd(x, y) < 0.01 < sampling.mmd(x + 1.0, z)
    True
    """
    x, y = _samples(x, y, least=2)
    if bandwidths is None:
        distances = pdist(y[:_REFERENCE])
        median = float(np.median(distances))
        if median == 0:
            raise InputError("the points of y are equal: give bandwidths")
        widths = median * _OCTAVES
    else:
        widths = np.atleast_1d(reals(bandwidths, "bandwidths"))
        if widths.ndim != 1 or not len(widths) or not 1e-50 <= widths.min() <= widths.max() <= 1e50:
            raise InputError(
                f"bandwidths are {shown(bandwidths)}: expected numbers from 1e-50 to 1e50"
            )
    n, m = len(x), len(y)
    within_x = (_kernel_sum(x, x, widths) - n) / (n * (n - 1))
    within_y = (_kernel_sum(y, y, widths) - m) / (m * (m - 1))
    return within_x + within_y - 2 * _kernel_sum(x, y, widths) / (n * m)


def _kernel_sum(x: FloatArray, y: FloatArray, widths: FloatArray) -> float:
    """Return the sum of k over all pairs, without an array of all of them."""
    rows = max(1, _BLOCK // len(y))
    total = 0.0
    with np.errstate(under="ignore", over="ignore"):
        for first in range(0, len(x), rows):
            squares = cdist(x[first : first + rows], y, "sqeuclidean")
            for width in widths:
                total += float(np.exp(squares * (-0.5 / width / width)).sum())
    return total / len(widths)


def frechet(x: ArrayLike, y: ArrayLike) -> float:
    r"""Compute the squared distance of the Gaussians fitted to two samples.

    .. math:: |m_x - m_y|^2 + \mathrm{tr}\big(C_x + C_y - 2 (C_x^{1/2} C_y C_x^{1/2})^{1/2}\big)

    In the features of a network this is the Fréchet distance by which generated images are compared
    [1]_. It grows with 1/n in its mean: compare samples of one size. It is computed from triangular
    factors :math:`C = R^\top R` of the centred samples, in which the last term is twice the sum of
    the singular values of :math:`R_x R_y^\top`; features that are constant, or more than the
    samples, do no harm.

    Parameters
    ----------
    x, y : array_like, shape (n, d) and (m, d)
        Samples, n and m >= 2.

    Returns
    -------
    float
        The squared distance.

    Raises
    ------
    InputError
        For other shapes, and values that are not finite.

    References
    ----------
    .. [1] Heusel, Ramsauer, Unterthiner, Nessler, Hochreiter, "GANs Trained by a Two Time-Scale
       Update Rule Converge to a Local Nash Equilibrium", NeurIPS 2017, eq. 6.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> x = np.random.default_rng(0).standard_normal((50, 3))
    >>> round(sampling.frechet(x, x + [2.0, 0.0, 0.0]), 6)
    4.0
    """
    x, y = _samples(x, y, least=2)
    shift = x.mean(axis=0) - y.mean(axis=0)
    roots = [
        np.linalg.qr(values - values.mean(axis=0)).R / math.sqrt(len(values) - 1)
        for values in (x, y)
    ]
    common = np.linalg.norm(roots[0] @ roots[1].T, "nuc")
    squared = shift @ shift + sum(np.square(root).sum() for root in roots) - 2 * common
    return max(float(squared), 0.0)
