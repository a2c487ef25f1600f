"""Extremal token measures of the energy of one head, in closed form.

E(mu) = 1/2 int int exp(<x, D y>) dmu(x) dmu(y) over probability measures on S^(d-1), D symmetric.
Source: [BKKRW] Burger, Kabri, Korolev, Roith, Weigand, *Analysis of mean-field models arising from
self-attention dynamics in transformer architectures with layer normalization*, 2025; what is
derived here is in docs/theory/equilibria.md.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import number, reals, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow.attention.cloud import as_unit_tokens
from wflow.heads.matrices import as_matrices

FloatArray = NDArray[np.float64]

__all__ = [
    "Extremum",
    "dirac_energy",
    "lower_bound",
    "maximum",
    "minimal_cloud_energy",
    "minimum",
    "pair_energy",
    "sampled_energy",
    "uniform_energy",
]


class Extremum(NamedTuple):
    """An extremal energy and the measure that has it.

    energy : E
    kind : "dirac" (one point), "pair" (two antipodal points of equal weight) or "uniform"
    support : (k, d) orthonormal basis of the eigenspace whose unit vectors are such points; None
        for "uniform"
    """

    energy: float
    kind: Literal["dirac", "pair", "uniform"]
    support: FloatArray | None


def uniform_energy(beta: float, d: int) -> float:
    """Energy of the uniform measure for D = beta I: E = (1/2) Gamma(d/2) (2/b)^k I_k(b).

    b = |beta|, k = d/2 - 1, I_k the modified Bessel function. For beta > 0 this is the least
    energy of all measures.

    Parameters
    ----------
    beta : any real number
    d : dimension, tokens on S^(d-1)

    Returns
    -------
    float; inf beyond |beta| of about 700

    Raises
    ------
    InputError
        For d < 2 or a beta that is not finite.

    Source: [BKKRW]; docs/theory/equilibria.md.
    """
    from scipy.special import gammaln, hyp0f1, ive

    b, d = abs(number(beta, "beta")), _dimension(d)
    k = d / 2 - 1
    scaled = float(ive(k, b))
    # The series, which large d makes short, also where I_k leaves the range of doubles.
    if b < 1 or b * b < 8 * d or scaled < 1e-290:
        return 0.5 * float(hyp0f1(d / 2, b * b / 4))
    log = float(gammaln(d / 2)) + k * math.log(2 / b) + math.log(scaled) + b
    return 0.5 * math.exp(log) if log < 709 else math.inf


def dirac_energy(D: ArrayLike, v: ArrayLike | None = None) -> float:
    """Energy of one point: E(delta_v) = exp(<v, D v>) / 2; v the leading eigenvector by default.

    Parameters
    ----------
    D : (d, d) symmetric
    v : (d,) unit vector; None for an eigenvector of the largest eigenvalue

    Raises
    ------
    InputError
        For a D that is no symmetric matrix, or a v that is no unit vector of its dimension.

    Source: [BKKRW].
    """
    matrix = _matrix(D)
    return 0.5 * _exp(_score(matrix, v, leading=True))


def pair_energy(D: ArrayLike, v: ArrayLike | None = None, share: float = 0.5) -> float:
    """Energy of two antipodal points: ((p^2 + q^2) e^s + 2 p q e^-s) / 2, s = <v, D v>, q = 1 - p.

    cosh(s)/2 for equal shares.

    Parameters
    ----------
    D : (d, d) symmetric
    v : (d,) unit vector; None for an eigenvector of the eigenvalue of largest size
    share : weight p of v, from 0 to 1

    Raises
    ------
    InputError
        As for `dirac_energy`, and for a share outside 0 to 1.

    Source: [BKKRW].
    """
    matrix = _matrix(D)
    p = number(share, "share", least=0.0)
    if p > 1:
        raise InputError(f"share is {share}: expected a number from 0 to 1")
    s, same = _score(matrix, v, leading=False), p * p + (1 - p) * (1 - p)
    other = 2 * p * (1 - p)
    return 0.5 * (same * _exp(s) + (other * _exp(-s) if other else 0.0))  # not 0 inf


def maximum(D: ArrayLike) -> Extremum:
    """Largest energy of all measures: max(e^lambda_max, cosh lambda_min) / 2.

    The first by one point at an eigenvector of the largest eigenvalue, the second by an antipodal
    pair of equal weights at one of the smallest.

    Parameters
    ----------
    D : (d, d) symmetric

    Returns
    -------
    Extremum; of two equal energies that of the point

    Raises
    ------
    InputError
        For a D that is no symmetric matrix.

    Source: [BKKRW] for D >= 0; docs/theory/equilibria.md, for every symmetric D.
    """
    values, vectors = np.linalg.eigh(_matrix(D))
    low, high = float(values[0]), float(values[-1])
    dirac, pair = 0.5 * _exp(high), 0.5 * (0.5 * _exp(low) + 0.5 * _exp(-low))
    if dirac >= pair:
        return Extremum(dirac, "dirac", _eigenspace(values, vectors, high))
    return Extremum(pair, "pair", _eigenspace(values, vectors, low))


def minimum(D: ArrayLike) -> Extremum:
    """Least energy of all measures, where it has a closed form.

    e^lambda_min / 2, by one point at an eigenvector of the smallest eigenvalue, if that is <= 0;
    `uniform_energy(beta, d)` for D = beta I, beta > 0.

    Parameters
    ----------
    D : (d, d) symmetric

    Raises
    ------
    InputError
        For a positive definite D with different eigenvalues, which has no closed form, and for a
        D that is no symmetric matrix.

    Source: [BKKRW]; docs/theory/equilibria.md.
    """
    matrix = _matrix(D)
    values, vectors = np.linalg.eigh(matrix)
    low, high = float(values[0]), float(values[-1])
    if low <= 1e-14 * high:  # zero but for rounding: the energies differ by less
        return Extremum(0.5 * _exp(low), "dirac", _eigenspace(values, vectors, low))
    if high - low <= 1e-12 * high:
        return Extremum(uniform_energy((low + high) / 2, len(matrix)), "uniform", None)
    raise InputError(
        f"D is positive definite with eigenvalues {low:g} to {high:g}: its minimiser is spread out "
        "and has no closed form; bound the energy from below by lower_bound(x, D)"
    )


def sampled_energy(n: int, beta: float, d: int) -> float:
    """Mean energy of n independent uniform tokens, D = beta I: (1 - 1/n) E_uniform + e^beta/(2n).

    The second term is the interaction of each token with itself.

    Parameters
    ----------
    n : number of tokens
    beta, d : as for `uniform_energy`

    Source: docs/theory/equilibria.md.
    """
    n = whole(n, "n")
    return (1 - 1 / n) * uniform_energy(beta, d) + _exp(number(beta, "beta")) / (2 * n)


def minimal_cloud_energy(n: int, beta: float, d: int) -> float:
    """Least energy of n tokens for D = beta I, beta >= 0, where the best cloud is known.

    (1/(2n)) sum_j exp(beta <x_1, x_j>) for the regular n-gon (d = 2), the regular simplex
    (n <= d + 1), the cross-polytope (n = 2d) and the icosahedron (d = 3, n = 12): clouds that are
    optimal for every completely monotone function of the squared distance, such as this kernel.

    Parameters
    ----------
    n : number of tokens
    beta : >= 0
    d : dimension

    Raises
    ------
    InputError
        For other n, for which no such cloud is known, and for a negative beta.

    Source: Cohn and Kumar, *Universally optimal distribution of points on spheres*, J. Amer. Math.
    Soc. 20 (2007); docs/theory/equilibria.md.
    """
    n, d = whole(n, "n"), _dimension(d)
    b = number(beta, "beta", least=0.0)
    if d == 2:
        check_memory(8 * 6 * n, f"a polygon of {n} tokens", "take a smaller n")
        products, counts = np.cos(2 * np.pi * np.arange(n) / n), np.ones(n)
    elif n <= d + 1:
        products, counts = np.array([1.0, -1 / max(n - 1, 1)]), np.array([1, n - 1])
    elif n == 2 * d:
        products, counts = np.array([1.0, 0.0, -1.0]), np.array([1, n - 2, 1])
    elif (n, d) == (12, 3):
        c = 1 / math.sqrt(5)
        products, counts = np.array([1.0, c, -c, -1.0]), np.array([1, 5, 5, 1])
    else:
        raise InputError(
            f"no optimal cloud of n = {n} tokens in d = {d} is known here: expected n <= {d + 1}, "
            f"n = {2 * d}" + (", n = 12" if d == 3 else "") + ", or d = 2"
        )
    with np.errstate(over="ignore"):
        return float(counts @ np.exp(b * products)) / (2 * n)


def lower_bound(x: ArrayLike, D: ArrayLike, *, starts: int = 256, seed: int = 0) -> float:
    """Bound from below on the least energy for D >= 0, from a cloud that is nearly a minimiser.

    The kernel is positive definite, so E is convex in the measure, and for every measure nu

        E(nu) >= E(mu) + int phi d(nu - mu) >= min_y phi(y) - E(mu),
        phi(y) = (1/n) sum_j exp(<y, D x_j>);

    the bound is E(mu) itself where mu is a minimiser. The minimum of phi over the sphere is
    searched from the tokens and from random points.

    Parameters
    ----------
    x : (n, d) unit tokens of the cloud mu
    D : (d, d) symmetric, positive semidefinite
    starts : number of random points
    seed : of the random points

    Returns
    -------
    float; -inf where the energy of the cloud leaves the range of doubles

    Raises
    ------
    InputError
        For a D with a negative eigenvalue, for which E is not convex; for bad shapes.

    Source: docs/theory/equilibria.md.
    """
    tokens, matrix = np.asarray(as_unit_tokens(x), np.float64), _matrix(D)
    if tokens.shape[1] != len(matrix):
        raise InputError(f"D has shape {matrix.shape} for tokens of dimension {tokens.shape[1]}")
    values = np.linalg.eigvalsh(matrix)
    if values[0] < -1e-12 * max(1.0, float(np.abs(values).max())):
        raise InputError(
            f"D has the eigenvalue {values[0]:g}: the energy is convex for D >= 0 only; for a "
            "smallest eigenvalue <= 0 the least energy is minimum(D)"
        )
    starts, seed = whole(starts, "starts"), whole(seed, "seed", 0, most=math.inf)
    n, d = tokens.shape
    needed = 8 * (n + starts) * (n + 4 * d)
    check_memory(needed, f"a search from {n} tokens and {starts} points", "take fewer")
    keys = tokens @ matrix
    random = np.random.default_rng(seed).standard_normal((starts, d))
    y = np.concatenate([tokens, random / np.linalg.norm(random, axis=1, keepdims=True)])
    with np.errstate(over="ignore"):
        energy = 0.5 * float(np.exp(tokens @ keys.T).mean())
        if not math.isfinite(energy):
            return -math.inf
        return float(_least_potential(y, keys)) - energy


def _least_potential(y: FloatArray, keys: FloatArray) -> float:
    """Minimum over the sphere of (1/n) sum_j exp(<y, k_j>), searched from the points y (m, d)."""
    from scipy.optimize import minimize

    def potential(point: FloatArray) -> tuple[float, FloatArray]:
        norm = float(np.linalg.norm(point))
        unit = point / norm
        kernel = np.exp(keys @ unit) / len(keys)
        slope = kernel @ keys
        return float(kernel.sum()), (slope - (slope @ unit) * unit) / norm

    level = np.exp(y @ keys.T).mean(axis=1)
    best = math.inf
    for k in np.argsort(level)[:24]:  # the lowest points; others lead to higher minima
        found = minimize(potential, y[k], jac=True, method="BFGS", options={"gtol": 1e-12})
        best = min(best, float(found.fun))
    return best


def _dimension(d: Any) -> int:
    # Beyond 2^31 log Gamma rounds away what is asked for.
    return whole(d, "d", 2, why="tokens live on S^(d-1)", most=2**31)


def _matrix(D: ArrayLike) -> FloatArray:
    matrix = as_matrices(D, "D", symmetric=True)
    if matrix.ndim != 2 or len(matrix) < 2:
        raise InputError(f"D has shape {matrix.shape}, expected one matrix (d, d) with d >= 2")
    return matrix


def _score(matrix: FloatArray, v: ArrayLike | None, *, leading: bool) -> float:
    """<v, D v>; without v the largest eigenvalue, or the one of largest size."""
    if v is None:
        values = np.linalg.eigvalsh(matrix)
        return float(values[-1] if leading or values[-1] >= -values[0] else values[0])
    unit = reals(v, "v")
    with np.errstate(over="ignore"):
        fits = unit.shape == (len(matrix),) and abs(float(unit @ unit) - 1) <= 1e-9
    if not fits:
        raise InputError(f"v must be a unit vector of length {len(matrix)}: divide it by its norm")
    return float(unit @ matrix @ unit)


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def _eigenspace(values: FloatArray, vectors: FloatArray, value: float) -> FloatArray:
    size = max(1.0, float(np.abs(values).max()))
    return np.ascontiguousarray(vectors[:, np.abs(values - value) <= 1e-9 * size].T)
