"""Geodesics between two token clouds, token by token, and piecewise geodesic paths."""

import math

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from wflow._core.compiler.functions import kernel
from wflow._core.compiler.vectors import (
    fma,
    lanes,
    load,
    minimum,
    splat,
    square_root,
    store,
    where_less,
)
from wflow._core.threads import threads_for
from wflow.sphere.geometry import normalise_unchecked

# Distances between all pairs of two clouds
# -----------------------------------------
# The geodesic distance is 2 atan2(|x - y|, |x + y|): arccos<x, y> loses half of the digits where x
# and y nearly agree or nearly oppose each other. By the identity |x - y|^2 + |x + y|^2 = 4, which
# holds to rounding and is divided by, it is 2 arcsin(sqrt z) with z = |x - y|^2 / 4 <= 1/2, or pi
# less that of -y: one polynomial for eight pairs at a time. Cost of a pair: 4 d additions and
# multiply-adds, one root, one division, 22 multiply-adds.

# (arcsin(s)/s - 1) / s^2 in z = s^2, interpolated at Chebyshev nodes of [0, 1/2]: error of the
# arc sine below 2e-17 of it.
_ARCSINE = (
    0.16666666666666669,
    0.07499999999998412,
    0.04464285714665563,
    0.030381944084994415,
    0.0223721770065477,
    0.017352221539201188,
    0.013975730180211136,
    0.01139924601483468,
    0.011310924828955462,
    -0.0032941927380090922,
    0.07377343868679113,
    -0.2809947932275328,
    0.952265420570822,
    -2.3535297860232123,
    4.3847119392409954,
    -5.883233416999023,
    5.436384462318588,
    -3.0948547605199717,
    0.8387674099544927,
)


@njit(error_model="numpy")
def _angles(apart, summed):
    """Return the vector of angles from those of |x - y|^2 and |x + y|^2."""
    z = minimum(apart, summed) / (apart + summed)
    q = splat(_ARCSINE[-1])
    for k in range(len(_ARCSINE) - 2, -1, -1):
        q = fma(q, z, splat(_ARCSINE[k]))
    half = square_root(z)
    angle = fma(half * z, q, half)
    angle = angle + angle
    return where_less(summed, apart, splat(math.pi) - angle, angle)


@njit(error_model="numpy", forceinline=True)
def power(r, p):
    """Return r^p for r >= 0; exact for p = 1, one multiplication for p = 2."""
    if p == 2.0:
        return r * r
    if p == 1.0:
        return r
    return r**p


@kernel(parallel=True)
def _pair_costs(x, y, p, chordal):
    """Return c(x_i, y_j)^p for x (n, d) and y (m, d): (n, m); c chord or geodesic distance."""
    n, d = x.shape
    m = y.shape[0]
    step = lanes(np.empty(0))
    width = (m + step - 1) // step * step
    turned = np.ones(d * width)  # y, coordinate by coordinate
    for j in range(m):
        for k in range(d):
            turned[k * width + j] = y[j, k]
    out = np.empty((n, m))
    for i in prange(n):
        rest = np.empty(step)
        for j in range(0, m, step):
            apart = splat(0.0)
            summed = splat(0.0)
            for k in range(d):
                a = splat(float(x[i, k]))
                b = load(turned, k * width + j)
                minus = a - b
                plus = a + b
                apart = fma(minus, minus, apart)
                summed = fma(plus, plus, summed)
            if not chordal:
                c = _angles(apart, summed)
                c = c * c if p == 2.0 else c
            else:
                c = apart if p == 2.0 else square_root(apart)
            if j + step <= m:
                store(out, i * m + j, c)
            else:
                store(rest, 0, c)
                out[i, j:] = rest[: m - j]
        if p != 1.0 and p != 2.0:
            for j in range(m):
                out[i, j] = power(out[i, j], p)
    return out


Array = NDArray[np.floating]

_ANTIPODAL = 1e-7  # of |x + y|, below which the direction from x to y is rounding


def angles(x: Array, y: Array) -> Array:
    """Return geodesic distances of unit vectors (..., d), accurate near 0 and near pi."""
    return 2 * np.arctan2(_norm(x - y), _norm(x + y))


def pair_costs(x: Array, y: Array, p: float, chordal: bool) -> NDArray[np.float64]:
    """Return c(x_i, y_j)^p for x (n, d) and y (m, d): (n, m); c chord or geodesic distance."""
    with threads_for(len(x) * len(y)):
        return _pair_costs(x, y, p, chordal)


def squared_distances(x: Array, y: Array) -> Array:
    """Return squared geodesic distances (n, m) between all tokens of clouds (n, d) and (m, d)."""
    return pair_costs(np.ascontiguousarray(x), np.ascontiguousarray(y), 2.0, False)


def logarithm(x: Array, y: Array) -> Array:
    """Return the tangent vector at x that leads to y along the shortest geodesic.

    Half the gradient of -angle^2 by x. At antipodal points, where it is not unique, zero.
    """
    chord, sum_ = _norm(x - y), _norm(x + y)
    # |y - <x,y> x| = sin(angle) = chord sum / 2, formed without cancellation.
    tangent = (y - x) + (chord**2 / 2)[..., None] * x
    sine = chord * sum_ / 2
    short = chord < 1e-9
    ratio = np.where(short, 1.0, 2 * np.arctan2(chord, sum_) / np.where(short, 1.0, sine + 1e-300))
    return np.where(sum_ < _ANTIPODAL, 0.0, ratio)[..., None] * tangent


def geodesics(x: Array, y: Array, segments: int) -> Array:
    """Return points of the shortest geodesics from x to y (..., n, d): (segments + 1, ...).

    Between antipodal tokens the one towards the coordinate axis most orthogonal to them.
    """
    angle = angles(x, y)[..., None]
    direction = logarithm(x, y)
    opposite = _norm(x + y) < _ANTIPODAL
    if opposite.any():
        axis = np.eye(x.shape[-1])[np.abs(x).argmin(axis=-1)]
        away = normalise_unchecked(axis - np.einsum("...k,...k->...", axis, x)[..., None] * x)
        direction = np.where(opposite[..., None], away, direction)
    length = _norm(direction)[..., None]
    direction = direction / np.where(length == 0, 1.0, length)
    share = np.linspace(0.0, 1.0, segments + 1).reshape(-1, *[1] * x.ndim)
    points = normalise_unchecked(np.cos(share * angle) * x + np.sin(share * angle) * direction)
    points[0], points[-1] = x, y
    return points


def refined(curve: Array) -> Array:
    """Return a curve (K + 1, n, d) with the midpoint of every segment added: (2K + 1, n, d)."""
    middle = geodesics(curve[:-1], curve[1:], 2)[1]
    fine = np.empty((2 * len(curve) - 1, *curve.shape[1:]))
    fine[::2], fine[1::2] = curve, middle
    return fine


def spring_solver(stiffness: Array, *, free_end: bool):
    """Invert the Hessian of 1/2 sum_k sum_i stiffness_ki |u_i^{k+1} - u_i^k|^2 by the nodes.

    Parameters
    ----------
    stiffness : (K, n), positive: springs between the nodes 0..K of every token
    free_end : whether node K moves too; node 0 never does

    Returns
    -------
    function that solves M u = g for g (nodes, n, d): one tridiagonal system per token
    """
    diagonal = stiffness.copy() if free_end else stiffness[:-1].copy()
    if free_end:
        diagonal[:-1] += stiffness[1:]
    else:
        diagonal += stiffness[1:]
    nodes = len(diagonal)
    beyond = stiffness[1:nodes]  # minus the entries beside the diagonal
    factor = np.empty_like(beyond)
    pivot = diagonal.copy()
    for k in range(1, nodes):
        factor[k - 1] = beyond[k - 1] / pivot[k - 1]
        pivot[k] -= factor[k - 1] * beyond[k - 1]

    def solve(g: Array) -> Array:
        u = g.copy()
        for k in range(1, nodes):
            u[k] += factor[k - 1][:, None] * u[k - 1]
        u[-1] /= pivot[-1][:, None]
        for k in range(nodes - 2, -1, -1):
            u[k] = (u[k] + beyond[k][:, None] * u[k + 1]) / pivot[k][:, None]
        return u

    return solve


def _norm(v: Array) -> Array:
    return np.sqrt(np.einsum("...k,...k->...", v, v))
