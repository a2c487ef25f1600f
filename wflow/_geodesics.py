"""Geodesics between two clouds of tokens, token by token, and broken geodesics through time."""

import numpy as np
from numpy.typing import NDArray

from wflow._transport_costs import pair_costs
from wflow.sphere import normalise

Array = NDArray[np.floating]

_ANTIPODAL = 1e-7  # of |x + y|, below which the direction from x to y is rounding


def angles(x: Array, y: Array) -> Array:
    """Geodesic distances of unit vectors (..., d), accurate near 0 and near pi."""
    return 2 * np.arctan2(_norm(x - y), _norm(x + y))


def squared_distances(x: Array, y: Array) -> Array:
    """Squared geodesic distances (n, m) between all tokens of two clouds (n, d) and (m, d)."""
    return pair_costs(np.ascontiguousarray(x), np.ascontiguousarray(y), 2.0, False)


def logarithm(x: Array, y: Array) -> Array:
    """Tangent vector at x that leads to y along the shortest geodesic, of length its angle.

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
    """Points of the shortest geodesics from x to y (..., n, d) at equal steps: (segments + 1, ...).

    Between antipodal tokens the one towards the coordinate axis most orthogonal to them.
    """
    angle = angles(x, y)[..., None]
    direction = logarithm(x, y)
    opposite = _norm(x + y) < _ANTIPODAL
    if opposite.any():
        axis = np.eye(x.shape[-1])[np.abs(x).argmin(axis=-1)]
        away = normalise(axis - np.einsum("...k,...k->...", axis, x)[..., None] * x)
        direction = np.where(opposite[..., None], away, direction)
    length = _norm(direction)[..., None]
    direction = direction / np.where(length == 0, 1.0, length)
    share = np.linspace(0.0, 1.0, segments + 1).reshape(-1, *[1] * x.ndim)
    points = normalise(np.cos(share * angle) * x + np.sin(share * angle) * direction)
    points[0], points[-1] = x, y
    return points


def refined(curve: Array) -> Array:
    """A curve (K + 1, n, d) with the midpoint of every geodesic segment added: (2K + 1, n, d)."""
    middle = geodesics(curve[:-1], curve[1:], 2)[1]
    fine = np.empty((2 * len(curve) - 1, *curve.shape[1:]))
    fine[::2], fine[1::2] = curve, middle
    return fine


def spring_solver(stiffness: Array, *, free_end: bool):
    """Inverse of the Hessian of 1/2 sum_k sum_i stiffness_ki |u_i^{k+1} - u_i^k|^2 by the nodes.

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
