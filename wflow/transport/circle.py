"""Optimal transport on the circle, exactly: the best cut of two sorted lists of angles.

With A and B the quantile functions of two measures of mass one on the circle, continued by
A(q + 1) = A(q) + 2 pi,

    W_p^p = min over theta of C(theta) = int_0^1 |A(q) - B(q + theta)|^p dq,   p >= 1,

and C is convex and piecewise linear with corners where an atom of one ends with an atom of the
other. The slopes on both sides of theta come with C(theta) in one merge of the lists, so that a
bisection ends at the corner itself. Cost: 50 (n + m) steps or so, after sorting.
Source: Delon, Salomon, Sobolevski, Fast transport optimization for Monge costs on the circle, SIAM
J. Appl. Math. 70 (2010).
"""

import math

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from wflow._core.compiler.functions import kernel
from wflow.sphere.geodesics import power

_TURN = 2 * math.pi
_TIE = 1e-14  # masses that differ by less are equal: sums of weights are no more accurate
_LIGHT = 4 * _TIE  # an atom of less mass could tie at both of its ends: a neighbour takes it


@njit(error_model="numpy")
def _distinct(total):
    """Return places of the atoms whose ends differ by more than ties; others' mass joins the next.

    total (n,): cumulative masses, ending with 1. Returns places (k,), cumulative masses (k,)
    """
    places = np.empty(total.shape[0], np.int64)
    count = 0
    before = 0.0
    for i in range(total.shape[0]):
        if total[i] - before > _LIGHT:
            places[count] = i
            count += 1
            before = total[i]
    places = places[:count]
    sums = total[places]
    sums[count - 1] = 1.0
    return places, sums


@njit(error_model="numpy")
def _first_beyond(cb, theta):
    """Return the first atom of B that ends beyond theta in (-1, 1], counted over all turns."""
    turn = math.floor(theta)
    rest = theta - turn
    j = np.searchsorted(cb, rest + _TIE, side="right")
    return j + int(turn) * cb.shape[0]


@njit(error_model="numpy")
def _merge(a, ca, b, cb, theta, p, i_of, j_of, mass):
    """Return C(theta), its left and right slope, and the number of pairs; fill the pairs if asked.

    a (n,), b (m,): sorted angles; ca, cb: their cumulative masses, ending with 1.
    """
    n = a.shape[0]
    m = b.shape[0]
    keep = mass.shape[0] > 0
    j = _first_beyond(cb, theta)
    i = 0
    q = 0.0
    cost = 0.0
    left = 0.0
    right = 0.0
    pairs = 0
    while i < n:
        lap = j // m
        at = j - lap * m
        here = b[at] + lap * _TURN
        ends = cb[at] + lap - theta
        gap = ends - ca[i]
        reached = ca[i] if gap > -_TIE else ends
        distance = power(abs(a[i] - here), p)
        if reached > q:
            cost += (reached - q) * distance
            if keep:
                i_of[pairs] = i
                j_of[pairs] = at
                mass[pairs] = reached - q
            pairs += 1
            q = reached
        after_a = a[i + 1] if i + 1 < n else a[0] + _TURN
        if gap < _TIE:  # an atom of B ends: what more of the cut does to the masses around it
            after_b = b[at + 1] if at + 1 < m else b[0] + _TURN
            after_b += lap * _TURN
            slope = power(abs(a[i] - after_b), p) - distance
            right += slope
            if gap > -_TIE:
                left += power(abs(after_a - after_b), p) - power(abs(after_a - here), p)
            else:
                left += slope
            j += 1
        if gap > -_TIE:
            i += 1
    return cost, left, right, pairs


@njit(error_model="numpy")
def _best_cut(a, ca, b, cb, p):
    """Return cost and theta at the corner where C is least."""
    none = np.empty(0, np.int64)
    no_mass = np.empty(0)
    low = -1.0
    high = 1.0
    best = math.inf
    cut = 0.0
    middle = 0.0  # most often next to the answer, and exact for a cloud and itself
    for _ in range(64):
        cost, left, right, _ = _merge(a, ca, b, cb, middle, p, none, none, no_mass)
        if cost < best:
            best = cost
            cut = middle
        if left <= 0.0 <= right:
            break
        if right < 0.0:
            low = middle
        else:
            high = middle
        middle = 0.5 * (low + high)
    return best, cut


@kernel
def _circle_cost(a, ca, b, cb, p):
    """Return W_p^p of two measures on the circle, and the cut theta that attains it."""
    return _best_cut(a, ca, b, cb, p)


@kernel
def _circle_pairs(a, ca, b, cb, theta, p):
    """Return the plan at a cut: places in a, places in b, masses."""
    most = a.shape[0] + b.shape[0] + 2
    i_of = np.empty(most, np.int64)
    j_of = np.empty(most, np.int64)
    mass = np.empty(most)
    pairs = _merge(a, ca, b, cb, theta, p, i_of, j_of, mass)[3]
    return i_of[:pairs], j_of[:pairs], mass[:pairs]


@kernel(parallel=True)
def sliced_costs(x, wx, y, wy, frames, p):
    """Return W_p^p of two clouds projected on great circles: frames (k, 2, d), result (k,)."""
    count = frames.shape[0]
    out = np.empty(count)
    for k in prange(count):
        angles = []
        sums = []
        for cloud, weights in ((x, wx), (y, wy)):
            size, d = cloud.shape
            angle = np.empty(size)
            for i in range(size):
                u = 0.0
                v = 0.0
                for axis in range(d):
                    u += frames[k, 0, axis] * cloud[i, axis]
                    v += frames[k, 1, axis] * cloud[i, axis]
                angle[i] = math.atan2(v, u)
            order = np.argsort(angle)
            total = np.cumsum(weights[order])
            total /= total[-1]
            places, total = _distinct(total)
            angles.append(angle[order][places])
            sums.append(total)
        out[k] = _best_cut(angles[0], sums[0], angles[1], sums[1], p)[0]
    return out


def _sorted(x: NDArray, weights: NDArray | None) -> tuple[NDArray, NDArray, NDArray]:
    """Sort the places with mass by angle; return them, the angles, and the cumulative masses."""
    angle = np.arctan2(x[:, 1], x[:, 0])
    if weights is None:
        order = np.argsort(angle, kind="stable")
        return order, angle[order], np.arange(1, len(x) + 1) / len(x)
    order = np.argsort(angle, kind="stable")
    order = order[weights[order] > 0]
    total = np.cumsum(weights[order].astype(np.longdouble))
    kept, sums = _distinct(np.asarray(total / total[-1], np.float64))
    return order[kept], angle[order[kept]], sums


def circle(x: NDArray, y: NDArray, wx: NDArray | None, wy: NDArray | None, p: float) -> float:
    """Return W_p^p of two clouds on S^1 with the geodesic cost; weights None are uniform."""
    _, a, ca = _sorted(x, wx)
    _, b, cb = _sorted(y, wy)
    return float(_circle_cost(a, ca, b, cb, p)[0])


def circle_plan(
    x: NDArray, y: NDArray, wx: NDArray | None, wy: NDArray | None, p: float
) -> tuple[NDArray, NDArray, NDArray]:
    """Return an optimal plan on S^1 as tokens of x, tokens of y, masses: at most n + m pairs."""
    places_x, a, ca = _sorted(x, wx)
    places_y, b, cb = _sorted(y, wy)
    theta = _circle_cost(a, ca, b, cb, p)[1]
    i, j, mass = _circle_pairs(a, ca, b, cb, theta, p)
    return places_x[i], places_y[j], mass


def circle_assignment(x: NDArray, y: NDArray, p: float) -> NDArray[np.int64]:
    """Return an optimal permutation (n,) on S^1: a turn of one sorted list against the other."""
    places_x, a, ca = _sorted(x, None)
    places_y, b, cb = _sorted(y, None)
    # The best cut may lie within a piece where the cost is constant: its end is as good, and is
    # a whole number of tokens.
    turn = round(_circle_cost(a, ca, b, cb, p)[1] * len(x))
    out = np.empty(len(x), np.int64)
    out[places_x] = np.roll(places_y, -turn)
    return out
