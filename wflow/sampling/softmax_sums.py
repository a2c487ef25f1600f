"""Softmax averages over all pairs of tokens, fused: no array of targets by sources is formed.

For a target i with query q_i and sources j with keys k_j, values v_j and scores s_ij = <q_i, k_j>,

    top_i = max_j s_ij,   S_i = sum_j 2^(s_ij - top_i) v_j,   E_i = sum_j 2^(2 (s_ij - top_i)).

A bias of a source is one more coordinate of its key, with a query of 1; the sum of the weights is
the value of a constant. A vector register holds one coordinate of several targets, two registers to
a group (16 tokens in double precision); scores of a block of sources and sums over it are products
of register tiles (`kernels.blocked.products`), and the maximum is that of the sources so far: where
a block raises it, the sums of before are scaled. Cost of a pair, in multiply-adds (double
precision): the coordinates of a key, those of a value (rounded up to 4), 13 for the exponential,
and 6. Memory: queries, keys and values twice. Every group of targets has its own fixed order of
summation, so that threads change no bit.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from wflow._core.compiler.functions import kernel
from wflow._core.compiler.vectors import exp2, fma, lanes, load, maximum, splat, store
from wflow._core.threads import threads_for
from wflow.kernels.blocked.products import TILE_COLUMNS, pack, pack_transposed, panels, product
from wflow.kernels.blocked.sums import BLOCK, BLOCKED_FROM, gather, rounded
from wflow.kernels.pairs.fused import PAIRS_OF_THREAD
from wflow.kernels.pairs.sweep import vectors

# Groups of targets of one task, which share the panels of keys and values.
_GROUPS = 4
# Score of a pair that is left out, below every other one.
_LOWEST = -1e30


@njit(error_model="numpy")
def _weights(s, at, step, count, low, top, squares, few_at, sums, sums_at, columns):
    """Compute 2^(s - top) in place for the `count` sources of a block, with the new maximum.

    `step` is 1 or 2 vectors in elements; exponents below `low` are taken as `low`. The sums of the
    blocks before are scaled to the new maximum.
    """
    width = lanes(s)
    kind = s.dtype.type
    floor = splat(kind(low))
    for v in range(0, step, width):
        before = load(top, few_at + v)
        m0 = before
        m1 = before
        pairs = count // 2 * 2
        for j in range(0, pairs, 2):
            here = at + j * step + v
            m0 = maximum(load(s, here), m0)
            m1 = maximum(load(s, here + step), m1)
        if pairs < count:
            m0 = maximum(load(s, at + pairs * step + v), m0)
        now = maximum(m0, m1)
        store(top, few_at + v, now)
        scale = exp2(maximum(before - now, floor))
        for k in range(columns):
            place = sums_at + k * step + v
            store(sums, place, load(sums, place) * scale)
        e0 = splat(kind(0.0))
        e1 = e0
        plain = count // 4 * 4
        for j in range(0, plain, 4):
            j0 = at + j * step + v
            j1 = j0 + step
            j2 = j1 + step
            j3 = j2 + step
            u0 = exp2(maximum(load(s, j0) - now, floor))
            u1 = exp2(maximum(load(s, j1) - now, floor))
            u2 = exp2(maximum(load(s, j2) - now, floor))
            u3 = exp2(maximum(load(s, j3) - now, floor))
            store(s, j0, u0)
            store(s, j1, u1)
            store(s, j2, u2)
            store(s, j3, u3)
            e0 = fma(u0, u0, e0)
            e1 = fma(u1, u1, e1)
            e0 = fma(u2, u2, e0)
            e1 = fma(u3, u3, e1)
        for j in range(plain, count):
            here = at + j * step + v
            u = exp2(maximum(load(s, here) - now, floor))
            store(s, here, u)
            e0 = fma(u, u, e0)
        store(squares, few_at + v, load(squares, few_at + v) * (scale * scale) + (e0 + e1))


@njit(error_model="numpy")
def _workspace(groups, r, p, like):
    """Allocate the vectors of one worker: queries, scores, sums, maxima, sums of squares."""
    most = groups * 2
    return (
        vectors(most * r, like), vectors(most * BLOCK, like), vectors(most * rounded(p), like),
        vectors(most, like), vectors(most, like),
    )  # fmt: skip


@njit(error_model="numpy")
def _task(
    q,
    m,
    p,
    by_source,
    by_value,
    left_out,
    low,
    first,
    groups,
    space,
    top_out,
    squares_out,
    sums_out,
):
    """Process `groups` groups of targets of one chain, starting at group `first`."""
    targets, r = q.shape
    own, scores, sums, top, squares = space
    width = lanes(own)
    two = 2 * width
    of_q = r * two
    of_scores = BLOCK * two
    of_sums = rounded(p) * two
    start = first * two
    full = min(groups, (targets - start + width - 1) // two)
    for g in range(groups):
        gather(q, start + g * two, two if g < full else width, own, g * of_q)
    top[:] = _LOWEST
    squares[:] = 0.0
    sums[:] = 0.0
    for j in range(0, m, BLOCK):
        count = min(BLOCK, m - j)
        product(
            groups, full, own, 0, of_q, by_source, j * r, TILE_COLUMNS * r, r, count, scores, 0,
            of_scores, False,
        )  # fmt: skip
        for g in range(groups):
            step = two if g < full else width
            begin = start + g * two
            for lane in range(min(step, left_out.shape[0] - begin)):
                left = left_out[begin + lane] - j
                if 0 <= left < count:
                    scores[g * of_scores + left * step + lane] = _LOWEST
            _weights(
                scores, g * of_scores, step, count, low, top, squares, g * two, sums, g * of_sums, p
            )
        product(
            groups, full, scores, 0, of_scores, by_value, j * TILE_COLUMNS, TILE_COLUMNS * m, count,
            p, sums, 0, of_sums, True,
        )  # fmt: skip
    for g in range(groups):
        step = two if g < full else width
        for lane in range(min(step, targets - start - g * two)):
            i = start + g * two + lane
            top_out[i] = top[g * two + lane]
            squares_out[i] = squares[g * two + lane]
            for k in range(p):
                sums_out[i, k] = sums[g * of_sums + k * step + lane]


@kernel(parallel=True)
def _sums(q, keys, values, left_out, low, workers, top, squares, out):
    chains, targets, r = q.shape
    m, p = values.shape[1:]
    groups = ((targets + lanes(q) - 1) // lanes(q) + 1) // 2
    share = max(1, min(_GROUPS, groups // workers))
    tasks = (groups + share - 1) // share
    by_source = np.empty(panels(m) * TILE_COLUMNS * r, q.dtype)
    by_value = np.empty(panels(p) * TILE_COLUMNS * m, q.dtype)
    for c in range(chains):
        pack_transposed(keys[c], by_source, 0)
        pack(values[c], by_value, 0)
        for worker in prange(workers):
            space = _workspace(share, r, p, q)
            for task in range(worker, tasks, workers):
                begin = task * groups // tasks
                end = (task + 1) * groups // tasks
                _task(
                    q[c], m, p, by_source, by_value, left_out, low, begin, end - begin, space,
                    top[c], squares[c], out[c],
                )  # fmt: skip


Floats = NDArray[np.floating]


class SoftmaxMeans(NamedTuple):
    """Averages under the weights w_ij = softmax_j(<q_i, k_j> + b_j).

    mean : (chains, n, p) averages of the values
    ess : (chains, n) effective sample size 1 / sum_j w_ij^2
    log_sum : (chains, n) log sum_j exp(<q_i, k_j> + b_j)
    """

    mean: Floats
    ess: Floats
    log_sum: Floats


def softmax_means(
    queries: Floats,
    keys: Floats,
    bias: Floats,
    values: Floats,
    left_out: NDArray[np.int64] | None = None,
) -> SoftmaxMeans:
    """Average values under the softmax of scaled products and a bias of each source.

    Parameters
    ----------
    queries : (chains, n, d); keys : (chains, m, d); bias : (chains, m); values : (chains, m, p);
        of one dtype, finite
    left_out : (n,) the source that is left out of the sums of each target, or None
    """
    dtype = queries.dtype
    chains, n, d = queries.shape
    m, p = values.shape[1:]
    q = np.empty((chains, n, d + 1), dtype)
    np.multiply(queries, math.log2(math.e), out=q[..., :d])
    q[..., d] = math.log2(math.e)
    k = np.concatenate([keys, bias[..., None]], axis=-1)
    v = np.concatenate([np.ones((chains, m, 1), dtype), values], axis=-1)
    top, squares = (np.empty((chains, n), dtype) for _ in range(2))
    out = np.empty((chains, n, p + 1), dtype)
    low = -500.0 if dtype == np.float64 else -60.0  # squares of weights are normal numbers, too
    left = np.empty(0, np.int64) if left_out is None else left_out
    pairs = chains * n * m * (d + p + 20) // (4 * BLOCKED_FROM)
    with threads_for(pairs, PAIRS_OF_THREAD) as workers:
        _sums(q, k, v, left, low, workers, top, squares, out)
    mass = out[..., 0]
    return SoftmaxMeans(
        out[..., 1:] / mass[..., None], mass * mass / squares, math.log(2) * top + np.log(mass)
    )
