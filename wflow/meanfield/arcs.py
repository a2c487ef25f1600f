"""Sums between equal arcs of the circle, for all heads and paths in a few matrix products.

The kernel exp<x, D y> is a trigonometric polynomial of degree L in x and in y, up to its tail. With
2 L + 1 equal angles as nodes and the matrix T (nodes, cells) of trigonometric interpolation,

    m_h = T' exp(X D_h X') T w,

so that a head costs (2 L + 1)^2 exponentials instead of one for every pair of cells: the fixed
places of the cells make this faster than the series of `kernels`.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow.kernels.evaluate import HeadSums
from wflow.kernels.harmonic.series import EPSILON, choose_degrees

Floats = NDArray[np.floating]

_STEP = 0.5  # of the norms for which degrees and tables are kept
_LARGEST = 94  # degree
_ENTRIES = 2**22  # of the kernels that are in memory together
_ROUNDING = 64 * EPSILON  # of a sum, relative to e^|D|


class _Table(NamedTuple):
    """Nodes (q, 2), matrix T (q, cells), and the bound of the tail relative to e^|D|."""

    nodes: Floats
    interpolation: Floats
    tail: float


class ArcSums:
    """Sums of every head at the centres of equal arcs, over masses of the arcs.

    Parameters
    ----------
    cells : number of arcs
    tolerance : relative error of the mobilities
    """

    def __init__(self, cells: int, tolerance: float) -> None:
        self.cells, self.tolerance = cells, tolerance
        self._tables = lru_cache(maxsize=32)(self._table)

    def __call__(self, D: Floats, masses: Floats, vectors: bool) -> HeadSums | None:
        """As `head_sums` with masses (paths, cells) >= 0; None where the tolerance is missed."""
        a, b, c, d = D[..., 0, 0], D[..., 0, 1], D[..., 1, 0], D[..., 1, 1]
        norm = float((np.hypot(a + d, c - b) + np.hypot(a - d, b + c)).max()) / 2
        if not norm <= 60.0:
            return None
        table = self._tables(math.ceil(norm / _STEP + 1e-9) * _STEP)
        if table is None:
            return None
        paths, heads = D.shape[:2]
        nodes, across, tail = table
        u = masses @ across.T
        m = np.empty((paths, heads, self.cells))
        S = np.empty((paths, heads, self.cells if vectors else 0, 2))
        together = max(1, _ENTRIES // (heads * len(nodes) ** 2))
        for first in range(0, paths, together):
            part = slice(first, first + together)
            kernel = np.exp(nodes @ D[part] @ nodes.T)
            m[part] = (kernel @ u[part, None, :, None])[..., 0] @ across
            if vectors:
                S[part] = across.T @ (kernel @ (u[part, :, None] * nodes)[:, None])
        least = m.min(axis=(1, 2), initial=math.inf)
        if not (least > 0).all():
            return None  # rounding has the size of the sums
        error = (tail + _ROUNDING) * math.exp(norm) / least
        if not (error <= self.tolerance).all():
            return None
        return HeadSums(np.zeros((paths, heads, self.cells)), m, S, error)

    def _table(self, norm: float) -> _Table | None:
        low = np.array([-norm])
        degrees, _, tails = choose_degrees(-low, low, self.tolerance, 2, _LARGEST)
        if degrees[0] < 0:
            return None
        degree = int(degrees[0]) + 2  # two more for the vectors
        count = 2 * degree + 1
        if count >= self.cells:
            return None
        orders = np.arange(1, degree + 1)
        angles = 2 * math.pi * np.arange(count) / count
        here, there = (
            np.concatenate([np.cos(turns), np.sin(turns)], axis=1)
            for turns in (
                np.outer(angles, orders),
                np.outer(2 * math.pi * np.arange(self.cells) / self.cells, orders),
            )
        )
        return _Table(
            np.stack([np.cos(angles), np.sin(angles)], axis=1),
            (1 + 2 * here @ there.T) / count,
            # Interpolation in both arguments multiplies a tail by at most this.
            float(tails[0]) * (1 + 2 * math.sqrt(count)),
        )
