r"""Extremal token measures of the energy of one head, in closed form.

.. math:: E(\mu) = \frac12 \iint e^{\langle x, D y \rangle}\, \mu(dx)\, \mu(dy)

over probability measures on the sphere, D symmetric: Burger, Kabri, Korolev, Roith, Weigand,
*Analysis of mean-field models arising from self-attention dynamics in transformer architectures
with layer normalization*, 2025. In the theory: :ref:`equilibria <theory-equilibria>`.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import number, reals, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow._core.reprs import value_text
from wflow.attention.cloud import LARGEST_LOG, as_unit_tokens, safe_exp, warn_overflow
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


def __dir__() -> list[str]:
    return __all__


class Extremum(NamedTuple):
    """An extremal energy and the measure that has it.

    Parameters
    ----------
    energy : float
        Energy E.
    kind : {"dirac", "pair", "uniform"}
        One point, two antipodal points of equal weight, or the uniform measure.
    support : ndarray, shape (k, d), or None
        Orthonormal basis of the eigenspace whose unit vectors are such points; None for "uniform".

    Examples
    --------
    >>> import numpy as np, wflow
    >>> found = wflow.equilibria.maximum(np.diag([1.0, 3.0]))
    >>> found.kind, np.abs(found.support)
    ('dirac', array([[0., 1.]]))
    """

    energy: float
    kind: Literal["dirac", "pair", "uniform"]
    support: FloatArray | None

    def __repr__(self) -> str:
        support = value_text(self.support, 6)
        return f"Extremum(energy={self.energy:.6g}, kind={self.kind!r}, support={support})"


def uniform_energy(beta: float, d: int) -> float:
    r"""Return the energy of the uniform measure for D = beta I.

    Parameters
    ----------
    beta : float
        Factor of the head, any real number.
    d : int
        Dimension, >= 2.

    Returns
    -------
    float
        Energy; inf, with a warning, beyond the range of doubles, abs(beta) of about 710.

    Raises
    ------
    InputError
        For d < 2 or a beta that is not finite.

    Notes
    -----
    With the modified Bessel function of order k = d/2 - 1 and b = abs(beta) [1]_,

    .. math:: E = \tfrac12\, \Gamma(d/2) \Bigl(\frac{2}{b}\Bigr)^k I_k(b) .

    For beta > 0 this is the least energy of all measures.

    In the theory: :ref:`equilibria <theory-equilibria>`.

    References
    ----------
    .. [1] Burger, Kabri, Korolev, Roith and Weigand, *Analysis of mean-field models arising from
       self-attention dynamics in transformer architectures with layer normalization* (2025).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> bool(np.isclose(wflow.equilibria.uniform_energy(2.0, 3), np.sinh(2.0) / 4))
    True
    """
    b, d = abs(number(beta, "beta")), _dimension(d)
    return _reported(_uniform_energy(b, d), b)


def _uniform_energy(b: float, d: int) -> float:
    from scipy.special import gammaln, hyp0f1, ive

    k = d / 2 - 1
    scaled = float(ive(k, b))
    # The series, which large d makes short, also where I_k leaves the range of doubles.
    if b < 1 or b * b < 8 * d or scaled < 1e-290:
        return 0.5 * float(hyp0f1(d / 2, b * b / 4))
    log = float(gammaln(d / 2)) + k * math.log(2 / b) + math.log(scaled) + b
    return _half_exp(log)


def dirac_energy(D: ArrayLike, v: ArrayLike | None = None) -> float:
    """Return the energy of one point: E(delta_v) = exp(<v, D v>) / 2.

    Parameters
    ----------
    D : array_like, shape (d, d)
        Symmetric interaction matrix.
    v : array_like, shape (d,), optional
        Unit vector. None for an eigenvector of the largest eigenvalue.

    Returns
    -------
    float
        Energy [1]_; inf, with a warning, beyond the range of doubles.

    Raises
    ------
    InputError
        For a D that is no symmetric matrix, or a v that is no unit vector of its dimension.

    References
    ----------
    .. [1] Burger, Kabri, Korolev, Roith and Weigand, *Analysis of mean-field models arising from
       self-attention dynamics in transformer architectures with layer normalization* (2025).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> round(wflow.equilibria.dirac_energy(np.eye(3)), 6)  # e / 2
    1.359141
    """
    score = _score(_matrix(D), v, leading=True)
    return _reported(_half_exp(score), score)


def pair_energy(D: ArrayLike, v: ArrayLike | None = None, share: float = 0.5) -> float:
    """Return the energy of two antipodal points.

    Parameters
    ----------
    D : array_like, shape (d, d)
        Symmetric interaction matrix.
    v : array_like, shape (d,), optional
        Unit vector. None for an eigenvector of the eigenvalue of largest size.
    share : float, default 0.5
        Weight p of v, from 0 to 1.

    Returns
    -------
    float
        Energy ((p^2 + q^2) e^s + 2 p q e^-s) / 2 with s = <v, D v> and q = 1 - p [1]_: cosh(s)/2
        for equal shares.

    Raises
    ------
    InputError
        As for `dirac_energy`, and for a share outside 0 to 1.

    Notes
    -----
    In the theory: :ref:`points and pairs <theory-pairs>`.

    References
    ----------
    .. [1] Burger, Kabri, Korolev, Roith and Weigand, *Analysis of mean-field models arising from
       self-attention dynamics in transformer architectures with layer normalization* (2025).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> bool(np.isclose(wflow.equilibria.pair_energy(2 * np.eye(3)), np.cosh(2.0) / 2))
    True
    """
    matrix = _matrix(D)
    p = number(share, "share", least=0.0)
    if p > 1:
        raise InputError(f"share is {share}: expected a number from 0 to 1")
    s, same = _score(matrix, v, leading=False), p * p + (1 - p) * (1 - p)
    other = 2 * p * (1 - p)
    return _reported(_half_exp(s, same) + _half_exp(-s, other), abs(s))


def maximum(D: ArrayLike) -> Extremum:
    """Return the largest energy of all measures: max(e^lambda_max, cosh lambda_min) / 2.

    The first is that of one point at an eigenvector of the largest eigenvalue, the second of an
    antipodal pair of equal weights at one of the smallest. [1]_ has it for D >= 0; it holds for
    every symmetric D.

    Parameters
    ----------
    D : array_like, shape (d, d)
        Symmetric interaction matrix.

    Returns
    -------
    Extremum
        Energy and measure; of two equal energies that of the point.

    Raises
    ------
    InputError
        For a D that is no symmetric matrix.

    Notes
    -----
    In the theory: :ref:`the largest energy <theory-largest-energy>`.

    References
    ----------
    .. [1] Burger, Kabri, Korolev, Roith and Weigand, *Analysis of mean-field models arising from
       self-attention dynamics in transformer architectures with layer normalization* (2025).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> wflow.equilibria.maximum(np.diag([1.0, -2.0])).kind
    'pair'
    """
    values, vectors = np.linalg.eigh(_matrix(D))
    low, high = float(values[0]), float(values[-1])
    dirac, pair = _half_exp(high), _half_exp(low, 0.5) + _half_exp(-low, 0.5)
    if dirac == pair == math.inf:
        point = high >= float(np.logaddexp(low, -low)) - _LOG_2
    else:
        point = dirac >= pair
    if point:
        return Extremum(_reported(dirac, high), "dirac", _eigenspace(values, vectors, high))
    return Extremum(_reported(pair, -low), "pair", _eigenspace(values, vectors, low))


def minimum(D: ArrayLike) -> Extremum:
    """Return the least energy of all measures, where it has a closed form.

    It is e^lambda_min / 2, by one point at an eigenvector of the smallest eigenvalue, if that is <=
    0, and ``uniform_energy(beta, d)`` for D = beta I, beta > 0 [1]_.

    Parameters
    ----------
    D : array_like, shape (d, d)
        Symmetric interaction matrix.

    Returns
    -------
    Extremum
        Energy and measure.

    Raises
    ------
    InputError
        For a positive definite D with different eigenvalues, which has no closed form, and for a D
        that is no symmetric matrix.

    Notes
    -----
    In the theory: :ref:`the least energy <theory-least-energy>`.

    References
    ----------
    .. [1] Burger, Kabri, Korolev, Roith and Weigand, *Analysis of mean-field models arising from
       self-attention dynamics in transformer architectures with layer normalization* (2025).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> wflow.equilibria.minimum(np.eye(3)).kind
    'uniform'
    """
    matrix = _matrix(D)
    values, vectors = np.linalg.eigh(matrix)
    low, high = float(values[0]), float(values[-1])
    if low <= 1e-14 * high:  # zero but for rounding: the energies differ by less
        return Extremum(_half_exp(low), "dirac", _eigenspace(values, vectors, low))
    if high - low <= 1e-12 * high:
        beta = (low + high) / 2
        energy = _reported(_uniform_energy(beta, len(matrix)), beta)
        return Extremum(energy, "uniform", None)
    raise InputError(
        f"D is positive definite with eigenvalues {low:g} to {high:g}: its minimiser is spread out "
        "and has no closed form; bound the energy from below by lower_bound(x, D)"
    )


def sampled_energy(n: int, beta: float, d: int) -> float:
    """Return the mean energy of n independent uniform tokens for D = beta I.

    Parameters
    ----------
    n : int
        Number of tokens.
    beta : float
        Factor of the head, any real number.
    d : int
        Dimension, >= 2.

    Returns
    -------
    float
        Energy (1 - 1/n) E_uniform + e^beta/(2n). The second term is the interaction of each token
        with itself.

    Raises
    ------
    InputError
        As for `uniform_energy`, and for n < 1.

    Notes
    -----
    In the theory: :ref:`clouds of many tokens <theory-many-tokens>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> bool(np.isclose(wflow.equilibria.sampled_energy(1, 2.0, 3), np.exp(2.0) / 2))
    True
    """
    n, beta, d = whole(n, "n"), number(beta, "beta"), _dimension(d)
    uniform = _uniform_energy(abs(beta), d)
    own = _half_exp(beta, 1 / n)
    return _reported((1 - 1 / n) * uniform + own if n > 1 else own, abs(beta))


def minimal_cloud_energy(n: int, beta: float, d: int) -> float:
    """Return the least energy of n tokens for D = beta I, beta >= 0, where the best cloud is known.

    Parameters
    ----------
    n : int
        Number of tokens.
    beta : float
        Factor of the head, >= 0.
    d : int
        Dimension, >= 2.

    Returns
    -------
    float
        Energy.

    Raises
    ------
    InputError
        For other n, for which no such cloud is known, and for a negative beta.

    Notes
    -----
    The value is (1/(2n)) sum_j exp(beta <x_1, x_j>) for the regular n-gon (d = 2), the regular
    simplex (n <= d + 1), the cross-polytope (n = 2d) and the icosahedron (d = 3, n = 12): clouds
    that are optimal for every completely monotone function of the squared distance [1]_, such as
    this kernel.

    In the theory: :ref:`clouds of many tokens <theory-many-tokens>`.

    References
    ----------
    .. [1] Cohn and Kumar, *Universally optimal distribution of points on spheres*, J. Amer. Math.
       Soc. 20 (2007).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> square = np.concatenate([np.eye(2), -np.eye(2)])
    >>> found = wflow.equilibria.minimal_cloud_energy(4, 1.0, 2)
    >>> bool(np.isclose(found, wflow.energy(square, np.eye(2)[None])))
    True
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
        energy = float(counts @ np.exp(b * products)) / (2 * n)
        if math.isinf(energy):  # the sum may be out of range, and the mean in it
            energy = float(counts @ np.exp(b * products - math.log(2 * n)))
    return _reported(energy, b)


def lower_bound(x: ArrayLike, D: ArrayLike, *, starts: int = 256, seed: int = 0) -> float:
    r"""Return a bound from below on the least energy for D >= 0.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Unit tokens of a cloud mu that is nearly a minimiser.
    D : array_like, shape (d, d)
        Symmetric, positive semidefinite interaction matrix.
    starts : int, default 256
        Number of random points.
    seed : int, default 0
        Seed of the random points.

    Returns
    -------
    float
        Bound; -inf, with a warning, where it leaves the range of doubles.

    Raises
    ------
    InputError
        For a D with a negative eigenvalue, for which E is not convex; for bad shapes.

    Notes
    -----
    The kernel is positive definite, so E is convex in the measure, and for every measure nu

    .. math::

        E(\nu) \ge E(\mu) + \int \varphi\, d(\nu - \mu) \ge \min_y \varphi(y) - E(\mu), \qquad
        \varphi(y) = \frac1n \sum_j e^{\langle y, D x_j \rangle} ;

    the bound is E(mu) itself where mu is a minimiser. The minimum of phi over the sphere is
    searched from the tokens and from random points.

    In the theory: :ref:`the least energy <theory-least-energy>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = np.concatenate([np.eye(2), -np.eye(2)])
    >>> bound = wflow.equilibria.lower_bound(x, np.eye(2))
    >>> bound <= wflow.equilibria.uniform_energy(1.0, 2) <= wflow.energy(x, np.eye(2)[None])
    True
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
    scores = tokens @ keys.T
    top, shift = float(scores.max()), 0.0
    with np.errstate(over="ignore"):
        energy = 0.5 * float(np.exp(scores).mean())
        if math.isinf(energy):
            shift = top
            energy = 0.5 * float(np.exp(scores - shift).mean())
        found = float(_least_potential(y, keys, shift)) - energy
    if shift and found:
        found = math.copysign(2 * _half_exp(math.log(abs(found)) + shift), found)
    return _reported(found, top)


def _least_potential(y: FloatArray, keys: FloatArray, shift: float) -> float:
    """Minimise e^-shift (1/n) sum_j exp(<y, k_j>) on the sphere, from points y (m, d)."""
    from scipy.optimize import minimize

    def potential(point: FloatArray) -> tuple[float, FloatArray]:
        norm = float(np.linalg.norm(point))
        unit = point / norm
        kernel = np.exp(keys @ unit - shift) / len(keys)
        slope = kernel @ keys
        return float(kernel.sum()), (slope - (slope @ unit) * unit) / norm

    level = np.exp(y @ keys.T - shift).mean(axis=1)
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
    """Return <v, D v>; without v, the largest eigenvalue or the one of largest size."""
    if v is None:
        values = np.linalg.eigvalsh(matrix)
        return float(values[-1] if leading or values[-1] >= -values[0] else values[0])
    unit = reals(v, "v")
    with np.errstate(over="ignore"):
        fits = unit.shape == (len(matrix),) and abs(float(unit @ unit) - 1) <= 1e-9
    if not fits:
        raise InputError(f"v must be a unit vector of length {len(matrix)}: divide it by its norm")
    return float(unit @ matrix @ unit)


_LOG_2 = math.log(2)


def _half_exp(log: float, factor: float = 1.0) -> float:
    """Return factor e^log / 2, with a factor <= 1; inf beyond the range of doubles."""
    if log <= LARGEST_LOG:
        return 0.5 * (factor * math.exp(log))
    log += math.log(factor) - _LOG_2 if factor else -math.inf
    return safe_exp(log)


def _reported(value: float, beta: float) -> float:
    """Return a result of this module, with a warning where it is infinite."""
    if math.isinf(value):
        warn_overflow("the energy", beta, value=value, closed=True)
    return value


def _eigenspace(values: FloatArray, vectors: FloatArray, value: float) -> FloatArray:
    size = max(1.0, float(np.abs(values).max()))
    return np.ascontiguousarray(vectors[:, np.abs(values - value) <= 1e-9 * size].T)
