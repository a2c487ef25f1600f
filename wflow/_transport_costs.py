"""Distances between all pairs of two token clouds, to rounding for near and antipodal pairs.

The geodesic distance is 2 atan2(|x - y|, |x + y|): arccos<x, y> loses half of the digits where x
and y nearly agree or nearly oppose each other. Cost of a pair: 4 d additions and multiply-adds, two
roots, one arc tangent, one power.
"""

import math

import numpy as np
from numba import njit, prange

from wflow._kernel_cache import compiled


@njit(error_model="numpy", forceinline=True)
def power(r, p):
    """r^p for r >= 0; exact for p = 1, one multiplication for p = 2."""
    if p == 2.0:
        return r * r
    if p == 1.0:
        return r
    return r**p


def _entry_points(source, cache):
    """The compiled function that Python calls."""

    @njit(cache=cache, parallel=True, error_model="numpy")
    def pair_costs(x, y, p, chordal):
        """c(x_i, y_j)^p for x (n, d) and y (m, d): (n, m); c the chord or the geodesic distance."""
        _ = source  # part of the cache key
        n, d = x.shape
        m = y.shape[0]
        out = np.empty((n, m))
        for i in prange(n):
            for j in range(m):
                apart = 0.0
                summed = 0.0
                for k in range(d):
                    minus = x[i, k] - y[j, k]
                    plus = x[i, k] + y[j, k]
                    apart += minus * minus
                    summed += plus * plus
                if chordal and p == 2.0:
                    out[i, j] = apart
                elif chordal:
                    out[i, j] = power(math.sqrt(apart), p)
                else:
                    angle = 2.0 * math.atan2(math.sqrt(apart), math.sqrt(summed))
                    out[i, j] = power(angle, p)
        return out

    return pair_costs


pair_costs = compiled(_entry_points)
