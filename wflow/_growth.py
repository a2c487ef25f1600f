"""Growth constants of docs/mathematics.md, stability, from the norms of the heads alone.

Two clouds that move with the same heads, tokens paired by any coupling, R^2 the mean of
|x - y|^2 over the pairs: d/dt R <= L R. For x, y of norm one and a, b in R^d

    <x - y, P_x a - P_y b> = <x - y, a - b> - (|x - y|^2 / 2) (<x, a> + <y, b>),

so that L is the sum of three parts: `turning`, a bound on |a|, from the projections; `own`, how a
changes with the token itself; `others`, how it changes with the cloud. For softmax `own` is
D Cov D^T times the direction's sign, positive semidefinite: it pulls tokens apart in ascent, and
together in descent, where it drops out.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Parts(NamedTuple):
    """The parts of a growth constant, each (...)."""

    turning: FloatArray
    own_ascent: FloatArray
    own_descent: FloatArray
    others: FloatArray

    def one_sided(self, direction: str) -> FloatArray:
        """L with <x - y, v - w> <= L |x - y|^2 in the mean over pairs."""
        own = self.own_ascent if direction == "ascent" else self.own_descent
        return self.turning + own + self.others

    def lipschitz(self) -> FloatArray:
        """L with |v - w| <= L |x - y| in the mean square over pairs, in either direction."""
        return self.one_sided("ascent")


def norms(heads: NDArray[np.floating]) -> FloatArray:
    """Spectral norms (..., heads) of matrices (..., heads, d, d)."""
    return np.asarray(np.linalg.norm(heads, 2, axis=(-2, -1)), np.float64)


def parts(norms: FloatArray, flow: str) -> Parts:
    """Parts of the growth constant of heads with spectral norms a_h = |D_h|, (..., heads)."""
    a = np.asarray(norms, np.float64)
    with np.errstate(over="ignore"):
        e = np.exp(a)
        zero = np.zeros(a.shape[:-1])
        if flow == "unnormalised":
            return Parts(_mean(a * e), _mean(a * a * e), zero, _mean(a * (1 + a) * e))
        softmax = Parts(_mean(a), _mean(a * a), zero, _mean(a * np.hypot(1.0, a) * e))
        if flow == "softmax":
            return softmax
        # Effective mobility: sum over pairs of heads; a pair of one head with itself is softmax.
        heads = a.shape[-1]
        ae = a * e
        mixed = _pairs(ae, ae)
        return Parts(
            softmax.turning / heads + _pairs(ae, e),
            softmax.own_ascent / heads + _pairs(a * ae, e) + mixed,
            mixed,
            softmax.others / heads + _pairs((1 + a) * ae, e) + _pairs(ae, ae * e),
        )


def _mean(values: FloatArray) -> FloatArray:
    return np.asarray(values.mean(axis=-1))


def _pairs(f: FloatArray, g: FloatArray) -> FloatArray:
    """(1/H^2) sum over h != k of f_h g_k, without taking a large sum from another."""
    others = _exclusive(g) + _exclusive(g[..., ::-1])[..., ::-1]
    # 0 * inf: a head of norm zero adds nothing, however large the others are.
    zero = (f == 0) | (others == 0)
    terms = np.where(zero, 0.0, np.where(zero, 1.0, f) * np.where(zero, 1.0, others))
    return np.asarray(terms.sum(axis=-1) / g.shape[-1] ** 2)


def _exclusive(g: FloatArray) -> FloatArray:
    """Sum of the entries before each one."""
    total = np.zeros_like(g)
    total[..., 1:] = np.cumsum(g[..., :-1], axis=-1)
    return total
