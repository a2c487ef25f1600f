"""Effective mobility b of many clouds, and the gradient of sum_i c_i b_i, from compiled pair sums.

With U_hij = exp(<x_i, D_h x_j>), D_h = D_h^T, and m_hi = (1/n) sum_j U_hij,

    b_i = [(1/H) sum_h 1/m_hi]^{-1},   w_hi = c_i db_i/dm_hi = c_i b_i^2 / (H m_hi^2),
    grad_{x_i} sum_l c_l b_l = (1/n) sum_h D_h sum_j (w_hi + w_hj) U_hij x_j:

moving x_i changes its own mobility and, as one of the sources, that of every other token. Two
passes over the pairs, tokens i in the lanes. Cost of a pair, in multiply-adds: d for the score and
16 for the exponential in each pass, 1 for the sum of the first and d + 2 for those of the second.
No shift: callers bound |D_h x| by `sweep.DIRECT_BOUND_DOUBLE`, and b/m_h <= H keeps w in range.
"""

import numpy as np
from numba import prange

from wflow._core.compiler.functions import constant, internal, kernel, value_of
from wflow._core.compiler.vectors import exp2, fma, lanes, load, splat, store
from wflow._core.threads import threads_for
from wflow.kernels.pairs.fused import PAIRS_OF_THREAD
from wflow.kernels.pairs.sweep import TILE, by_lane, head_scores, padded, vectors

_ANY, _TWO, _THREE, _FOUR = map(constant, (0, 2, 3, 4))


@internal(forceinline=True)
def _coordinates(dim, x):
    """Return d = `dim`, a `constant`, so that the loops over coordinates unroll; 0: any d."""
    return value_of(dim) if value_of(dim) > 0 else x.shape[1]


@internal(forceinline=True)
def _kernel_values(dim, x, j, z):
    """Return U_hij of a block of tokens i with the tokens j .. j + 3."""
    width = lanes(z)
    d = _coordinates(dim, x)
    s0 = splat(z.dtype.type(0.0))
    s1 = s0
    s2 = s0
    s3 = s0
    for k in range(d):
        zk = load(z, k * width)
        s0 = fma(zk, splat(x[j, k]), s0)
        s1 = fma(zk, splat(x[j + 1, k]), s1)
        s2 = fma(zk, splat(x[j + 2, k]), s2)
        s3 = fma(zk, splat(x[j + 3, k]), s3)
    return exp2(s0), exp2(s1), exp2(s2), exp2(s3)


@internal(forceinline=True)
def _row_sums(dim, x, weight, z, acc):
    """Write sum_j U_hij of a block to `acc`."""
    m = splat(z.dtype.type(0.0))
    for j in range(0, x.shape[0], 4):
        u0, u1, u2, u3 = _kernel_values(dim, x, j, z)
        m = fma(u0, splat(weight[j]), m)
        m = fma(u1, splat(weight[j + 1]), m)
        m = fma(u2, splat(weight[j + 2]), m)
        m = fma(u3, splat(weight[j + 3]), m)
    store(acc, 0, m)


@internal(forceinline=True)
def _vector_sums(dim, x, w, mine, z, acc):
    """Write sum_j (w_i + w_j) U_hij x_j of a block to `acc`; `mine` holds w_i."""
    width = lanes(z)
    d = _coordinates(dim, x)
    for k in range(d):
        store(acc, k * width, splat(z.dtype.type(0.0)))
    own = load(mine, 0)
    for j in range(0, x.shape[0], 4):
        u0, u1, u2, u3 = _kernel_values(dim, x, j, z)
        u0 = u0 * (own + splat(w[j]))
        u1 = u1 * (own + splat(w[j + 1]))
        u2 = u2 * (own + splat(w[j + 2]))
        u3 = u3 * (own + splat(w[j + 3]))
        for k in range(d):
            a = load(acc, k * width)
            a = fma(u0, splat(x[j, k]), a)
            a = fma(u1, splat(x[j + 1, k]), a)
            a = fma(u2, splat(x[j + 2, k]), a)
            a = fma(u3, splat(x[j + 3, k]), a)  # x_j = 0 for padding
            store(acc, k * width, a)


@internal
def _mobilities(x, n, weight, score, start, c, b, w):
    """Compute b and weights w (heads, rows) of the tokens start <= i < start + lanes."""
    d = x.shape[1]
    heads = score.shape[0]
    width = lanes(x)
    own = vectors(d, x)
    z = vectors(d, x)
    acc = vectors(1, x)
    square = vectors(1, x)
    by_lane(x, n, start, own, 0)
    count = min(width, n - start)
    for lane in range(count):
        b[start + lane] = 0.0
    for h in range(heads):
        head_scores(score, h, own, 0, z, 0, d, square)
        if d == 2:
            _row_sums(_TWO, x, weight, z, acc)
        elif d == 3:
            _row_sums(_THREE, x, weight, z, acc)
        elif d == 4:
            _row_sums(_FOUR, x, weight, z, acc)
        else:
            _row_sums(_ANY, x, weight, z, acc)
        for lane in range(count):
            inverse = n / acc[lane]
            b[start + lane] += inverse
            w[h, start + lane] = inverse
    for lane in range(count):
        i = start + lane
        b[i] = heads / b[i]
        for h in range(heads):
            w[h, i] = c[i] * (b[i] * w[h, i]) ** 2 / heads


@internal
def _gradient(x, n, score, start, w, gradient):
    """Compute (1/n) sum_h D_h sum_j (w_hi + w_hj) U_hij x_j of a block of tokens of one cloud."""
    d = x.shape[1]
    width = lanes(x)
    own = vectors(d, x)
    z = vectors(d, x)
    acc = vectors(d, x)
    total = vectors(d, x)
    square = vectors(1, x)
    mine = vectors(1, x)
    mine[:] = 0.0
    total[:] = 0.0
    by_lane(x, n, start, own, 0)
    count = min(width, n - start)
    for h in range(score.shape[0]):
        head_scores(score, h, own, 0, z, 0, d, square)
        for lane in range(count):
            mine[lane] = w[h, start + lane]
        if d == 2:
            _vector_sums(_TWO, x, w[h], mine, z, acc)
        elif d == 3:
            _vector_sums(_THREE, x, w[h], mine, z, acc)
        elif d == 4:
            _vector_sums(_FOUR, x, w[h], mine, z, acc)
        else:
            _vector_sums(_ANY, x, w[h], mine, z, acc)
        for k in range(d):
            g = load(total, k * width)
            for row in range(d):
                g = fma(splat(score[h, k, row]), load(acc, row * width), g)
            store(total, k * width, g)
    for lane in range(count):
        for k in range(d):
            gradient[start + lane, k] = total[k * width + lane] / n


@kernel(parallel=True)
def _weighted_sums(x, score, c, with_gradient):
    clouds, n, d = x.shape
    heads = score.shape[1]
    width = lanes(x)
    blocks = (n + width - 1) // width
    rows = (n + TILE - 1) // TILE * TILE
    b = np.empty((clouds, n), x.dtype)
    w = np.zeros((clouds, heads, rows), x.dtype)
    for task in prange(clouds * blocks):
        p = task // blocks
        start = (task - p * blocks) * width
        tokens, weight = padded(x[p], TILE)
        D = score[p if score.shape[0] > 1 else 0]
        _mobilities(tokens, n, weight, D, start, c[p], b[p], w[p])
    gradient = np.empty((clouds if with_gradient else 0, n, d), x.dtype)
    if with_gradient:
        for task in prange(clouds * blocks):
            p = task // blocks
            start = (task - p * blocks) * width
            tokens, weight = padded(x[p], TILE)
            D = score[p if score.shape[0] > 1 else 0]
            _gradient(tokens, n, D, start, w[p], gradient[p])
    return b, gradient


def weighted_sums(x, score, c, with_gradient):
    """Return b of every cloud, and the gradient of sum_i c_i b_i by the tokens of each.

    Parameters
    ----------
    x : (clouds, n, d) unit tokens
    score : (clouds, heads, d, d) or (1, heads, d, d), symmetric, |D_h x| at most 64
    c : (clouds, n)
    with_gradient : False leaves the second pass out

    Returns
    -------
    b (clouds, n), gradient (clouds, n, d) in R^d, not projected; empty without
    """
    clouds, n, _ = x.shape
    with threads_for(clouds * score.shape[1] * n * n, PAIRS_OF_THREAD):
        return _weighted_sums(x, score, c, with_gradient)
