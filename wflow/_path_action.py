"""The discrete action of particle paths in the weighted metric, its gradient, and its couplings.

    A = K sum_{k<K} (1/n) sum_i (b_i^k + b_i^{k+1})/2 |x_i^k, x_i^{k+1}|^2

for a broken geodesic with nodes 0..K at equal times in [0, 1], |.,.| the geodesic distance and b
the effective mobility within the cloud of a node: the trapezoidal rule for
int (1/n) sum b |v|^2 dt.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._geodesics import angles, logarithm, squared_distances
from wflow._matrices import as_matrices
from wflow._pairsums import DIRECT_BOUND_DOUBLE
from wflow._weighted import weighted_sums
from wflow.attention import as_unit_tokens
from wflow.errors import InputError
from wflow.heads import QKV
from wflow.sphere import as_tokens

Array = NDArray[np.floating]


class PathAction:
    """A and its gradient by the nodes that move: 1..K-1, or 1..K where the end is free.

    Parameters
    ----------
    D : (heads, d, d)
    start : (n, d), node 0
    end : (n, d), node K; None where it is free
    """

    def __init__(self, D: Array, start: Array, end: Array | None) -> None:
        self.D = D[None]
        self.ends = (start,) if end is None else (start, end)
        n = len(start)
        self.b_ends = weighted_sums(np.stack(self.ends), self.D, np.zeros((2, n)), False)[0]

    def curve(self, nodes: Array) -> Array:
        """All nodes (K + 1, n, d)."""
        return np.concatenate([self.ends[0][None], nodes, *(end[None] for end in self.ends[1:])])

    def mobilities(self, b_nodes: Array) -> Array:
        return np.concatenate([self.b_ends[:1], b_nodes, self.b_ends[1:]])

    def __call__(self, nodes: Array) -> tuple[float, Array]:
        """A and its gradient (nodes, n, d) in R^d; its radial part has no meaning."""
        curve = self.curve(nodes)
        segments, n = len(curve) - 1, len(self.ends[0])
        scale = segments / n
        square = angles(curve[:-1], curve[1:]) ** 2  # (K, n)
        beside = np.zeros((segments + 1, n))
        beside[:-1] = square
        beside[1:] += square
        moving = slice(1, 1 + len(nodes))
        b_nodes, gradient = weighted_sums(nodes, self.D, scale / 2 * beside[moving], True)
        b = self.mobilities(b_nodes)
        spring = scale * (b[:-1] + b[1:])  # twice the weight of a segment
        gradient -= spring[: len(nodes), :, None] * logarithm(nodes, curve[: len(nodes)])
        ahead = curve[2:]
        gradient[: len(ahead)] -= spring[1:, :, None] * logarithm(nodes[: len(ahead)], ahead)
        return float((spring * square).sum() / 2), gradient

    def at(self, nodes: Array) -> Array:
        """b (K + 1, n) at all nodes."""
        if not len(nodes):
            return self.b_ends
        return self.mobilities(weighted_sums(nodes, self.D, np.zeros(nodes.shape[:2]), False)[0])


def discrete_action(curve: Array, b: Array) -> float:
    """A of a curve (K + 1, n, d) with mobilities b (K + 1, n)."""
    segments, n = len(curve) - 1, curve.shape[1]
    square = angles(curve[:-1], curve[1:]) ** 2
    return float(segments / n * ((b[:-1] + b[1:]) / 2 * square).sum())


def recouple(curve: Array, b: Array) -> tuple[Array, Array, NDArray[np.intp] | None]:
    """Relabel the tokens from node to node by optimal matchings of every segment.

    Labels do not matter to b, so the sum over a segment is least for the matching with the cost
    (b_i^k + b_j^{k+1})/2 |x_i^k, x_j^{k+1}|^2, whatever is done elsewhere.

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
        cost *= (new_b[k][:, None] + b_ahead[None, :]) / 2
        better = matching(cost)
        if gains(cost, better):
            now, changed = now[better], True
        new_curve[k + 1], new_b[k + 1] = curve[k + 1][now], b[k + 1][now]
    return new_curve, new_b, now if changed else None


def matching(cost: Array) -> NDArray[np.intp]:
    """Column of every row in an assignment (n, n) of least total cost."""
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(cost)[1]


def gains(cost: Array, labels: NDArray[np.intp]) -> bool:
    """Whether labels cost less than the identity, by more than rounding."""
    same = float(np.trace(cost))
    # Squares of distances of order one carry errors of about 1e-16 times the distance.
    rounding = 1e-12 * same + 1e-15 * float(np.sqrt(max(same, 0.0)))
    return float(cost[np.arange(len(cost)), labels].sum()) < same - rounding


def as_cloud(x: ArrayLike, name: str = "x") -> Array:
    """Unit tokens (n, d) in double precision."""
    try:
        return as_tokens(as_unit_tokens(x), name)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def as_heads(D: ArrayLike | QKV, d: int, name: str = "D") -> Array:
    """Symmetric heads (heads, d, d) for tokens of dimension d, of any size."""
    if isinstance(D, QKV):
        raise InputError(
            "general (Q, K, V) heads are no gradient: they have no energy and no mobility; give "
            "symmetric matrices (heads, d, d)"
        )
    heads = as_matrices(D, name, symmetric=True)
    if heads.ndim != 3 or heads.shape[-1] != d:
        raise InputError(
            f"{name} has shape {heads.shape}, expected (heads, {d}, {d}) for tokens "
            f"of dimension {d}"
        )
    return heads


def spectral_norms(D: Array) -> Array:
    """|D_h| of symmetric heads (..., d, d): largest size of an eigenvalue."""
    return np.abs(np.linalg.eigvalsh(D)).max(axis=-1)


def check_moderate(D: Array) -> None:
    """Raise InputError for heads whose scores can exceed what sums without a shift take."""
    largest = float(spectral_norms(D).max())
    if largest > DIRECT_BOUND_DOUBLE:
        raise InputError(
            f"a head has norm {largest:.4g}: mobilities would range over e^{largest:.0f} and "
            f"beyond, and no distance weighted by them means anything in double precision; "
            f"expected norms up to {DIRECT_BOUND_DOUBLE:g}: scale the heads down"
        )
