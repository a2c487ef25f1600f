"""Laplacian of the energy, for tokens that diffuse: one pass over all pairs of tokens.

With z_hi = D_h x_i, s_hij = <x_i, D_h x_j> and U_hij = exp(s_hij), D_h symmetric,

    M_hi = sum_j U_hij,   S_hi = sum_j U_hij x_j,   Q_hi = sum_j U_hij s_hij^2

give the Laplacian of the energy, summed over the tokens (docs/theory/energy.md):

    1/(H n^2) sum_hi [ |z_hi|^2 M_hi - Q_hi - (d - 1) <z_hi, S_hi>
                       + U_hii (|z_hi|^2 - s_hii^2 + tr D_h - s_hii) ].

Cost of a pair: d multiply-adds for the score, 16 for the exponential, d + 3 for the sums. A
separate pass, because only runs with noise on the tokens need Q.
"""

import math

import numpy as np
from numba import prange

from wflow._core.compiler.functions import internal, kernel
from wflow._core.compiler.vectors import exp2, fma, lanes, load, maximum, splat, store
from wflow._core.threads import threads_for
from wflow.kernels.pairs.fused import PAIRS_OF_THREAD
from wflow.kernels.pairs.sweep import (
    LOG2E,
    TILE,
    by_lane,
    direct_bound,
    exponent_floor,
    head_scores,
    padded,
    vectors,
)


@internal(forceinline=True)
def pair_sweep(x, weight, z, shift, acc):
    """Compute (M, S, Q) exp(-shift) of one head for one block; Q in units of log2(e)^2."""
    rows, d = x.shape
    width = lanes(z)
    kind = z.dtype.type
    zero = splat(kind(0.0))
    low = load(shift, 0) * splat(kind(LOG2E))
    bottom = splat(kind(exponent_floor(x)))
    at_q = (d + 1) * width
    for row in range(d + 2):
        store(acc, row * width, zero)
    for j in range(0, rows, 2):
        s0 = zero
        s1 = zero
        for k in range(d):
            zk = load(z, k * width)
            s0 = fma(zk, splat(x[j, k]), s0)
            s1 = fma(zk, splat(x[j + 1, k]), s1)
        u0 = exp2(maximum(bottom, s0 - low)) * splat(weight[j])
        u1 = exp2(maximum(bottom, s1 - low)) * splat(weight[j + 1])
        store(acc, 0, (load(acc, 0) + u0) + u1)
        for k in range(d):
            row = (1 + k) * width
            part = fma(u0, splat(x[j, k]), load(acc, row))
            store(acc, row, fma(u1, splat(x[j + 1, k]), part))
        part = fma(u0 * s0, s0, load(acc, at_q))
        store(acc, at_q, fma(u1 * s1, s1, part))


@internal
def _block(x, n, weight, score, start):
    """Return the share of the tokens of one block in the Laplacian, times H n^2."""
    d = x.shape[1]
    width = lanes(x)
    own = vectors(d, x)
    z = vectors(d, x)
    acc = vectors(d + 2, x)
    square = vectors(1, x)
    shift = vectors(1, x)
    limit = direct_bound(x)
    total = 0.0
    by_lane(x, n, start, own, 0)
    for h in range(score.shape[0]):
        trace = 0.0
        for k in range(d):
            trace += score[h, k, k]
        head_scores(score, h, own, 0, z, 0, d, square)
        moderate = True
        for lane in range(width):
            moderate = moderate and square[lane] <= limit * limit  # false for NaN
        for lane in range(width):
            shift[lane] = 0.0 if moderate else math.sqrt(square[lane])
        pair_sweep(x, weight, z, shift, acc)
        for lane in range(min(width, n - start)):
            grow = math.exp(float(shift[lane]))
            itself = 0.0
            along = 0.0
            for k in range(d):
                zk = float(z[k * width + lane]) / LOG2E
                itself += zk * float(own[k * width + lane])
                along += zk * float(acc[(1 + k) * width + lane])
            norm_sq = float(square[lane])
            share = norm_sq * float(acc[lane]) - (d - 1) * along
            share -= float(acc[(d + 1) * width + lane]) / (LOG2E * LOG2E)
            share *= grow
            total += share + math.exp(itself) * (norm_sq - itself * itself + trace - itself)
    return total


@kernel(parallel=True)
def _energy_laplacian(x, score):
    paths, n, _ = x.shape
    heads = score.shape[1]
    width = lanes(x)
    blocks = (n + width - 1) // width
    part = np.zeros((paths, blocks))
    for task in prange(paths * blocks):
        p = task // blocks
        b = task - p * blocks
        tokens, weight = padded(x[p], TILE)
        part[p, b] = _block(tokens, n, weight, score[p], b * width)
    laplacian = np.zeros(paths)
    for p in range(paths):
        for b in range(blocks):
            laplacian[p] += part[p, b]
        laplacian[p] /= heads * float(n) * n
    return laplacian


def energy_laplacian(x, score):
    """Compute the Laplacian of the energy summed over the tokens (paths,).

    Parameters
    ----------
    x : (paths, n, d) unit tokens
    score : (paths, heads, d, d) symmetric D_h
    """
    paths, n, _ = x.shape
    with threads_for(paths * score.shape[1] * n * n, PAIRS_OF_THREAD):
        return _energy_laplacian(x, score)
