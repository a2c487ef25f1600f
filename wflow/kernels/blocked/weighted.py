"""Sums of every head at targets over weighted sources, exactly, for many coordinates.

The sums are those of `pairs.weighted`, formed as in `blocked.sums`: for a group of targets x_i in
the lanes and one head, z = D^T x_i, u_j = w_j exp(<z, y_j>), m = sum_j u_j and S = sum_j u_j y_j
are products of register tiles but for the exponentials. Cost of a pair, in multiply-adds: 2 d for
the products (d without the vectors S), the exponential and two more; of a target and head: d^2.
"""

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from wflow._core.compiler.functions import kernel
from wflow._core.compiler.sweeps import SUMS
from wflow._core.compiler.vectors import exp2, fma, lanes, load, splat, store
from wflow._core.threads import threads_for
from wflow.kernels.blocked.products import TILE_COLUMNS, pack, pack_transposed, panels, product
from wflow.kernels.blocked.sums import BLOCK, BLOCKED_FROM, gather, group_mask, rounded
from wflow.kernels.pairs.fused import PAIRS_OF_THREAD
from wflow.kernels.pairs.sweep import (
    LOG2E,
    TILE,
    by_lane,
    causal_mask,
    padded,
    vectors,
    weighted_shifted_sums,
)
from wflow.kernels.pairs.weighted import direct_bounds

# Number of groups of targets in one task, which share the panels of sources and matrices; number of
# blocks of sources after which partial sums are closed, so that rounding does not grow with n.
_GROUPS, _CLOSED = 4, 21


@njit(error_model="numpy")
def _weighted_exponentials(s, at, step, weight, first, count, masked, mask, total, total_at):
    """Compute u = w 2^s in place for the sources first <= j < first + count, and their sum.

    `step` is 1 or 2 vectors in elements. From source `masked` of them on, u is multiplied by the
    rows of `mask`.
    """
    width = lanes(s)
    for v in range(0, step, width):
        m = load(total, total_at + v)
        plain = min(count, masked) // 4 * 4
        for j in range(0, plain, 4):
            j0 = at + j * step + v
            j1 = j0 + step
            j2 = j1 + step
            j3 = j2 + step
            u0 = exp2(load(s, j0)) * splat(weight[first + j])
            u1 = exp2(load(s, j1)) * splat(weight[first + j + 1])
            u2 = exp2(load(s, j2)) * splat(weight[first + j + 2])
            u3 = exp2(load(s, j3)) * splat(weight[first + j + 3])
            store(s, j0, u0)
            store(s, j1, u1)
            store(s, j2, u2)
            store(s, j3, u3)
            m = (((m + u0) + u1) + u2) + u3
        for j in range(plain, count):
            here = at + j * step + v
            u = exp2(load(s, here)) * splat(weight[first + j])
            if j >= masked:
                u = u * load(mask, (j - masked) * 2 * width + v)
            store(s, here, u)
            m = m + u
        store(total, total_at + v, m)


@njit(error_model="numpy")
def _scale(z, at, step, d, bound, shifted, block):
    """Multiply z = D^T x of a group by log2(e); write to `shifted`, for each vector from `block`
    on, whether its scores need a shift."""
    width = lanes(z)
    kind = z.dtype.type
    log2e = splat(kind(LOG2E))
    square = vectors(1, z)
    for v in range(0, step, width):
        total = splat(kind(0.0))
        for k in range(at + v, at + v + d * step, step):
            zk = load(z, k)
            total = fma(zk, zk, total)
            store(z, k, zk * log2e)
        store(square, 0, total)
        direct = True
        for lane in range(width):
            direct = direct and square[lane] <= bound  # false for NaN
        shifted[block + v // width] = not direct


@njit(error_model="numpy")
def _shifted_vector(
    x, tokens, n, weight, weighted, score, h, start, causal, step, S, S_at, m, m_at, shift
):  # fmt: skip
    """Compute (m, S) exp(-shift) of one vector of targets, for scores of any size."""
    d = x.shape[1]
    rows = tokens.shape[0]
    width = lanes(S)
    own = vectors(d, S)
    z = vectors(d, S)
    z_low = vectors(d, S)
    acc = vectors(d + SUMS, S)
    diagonal = vectors(width, S)
    one_shift = vectors(1, S)
    by_lane(x, x.shape[0], start, own, 0)
    causal_mask(diagonal)
    stop = min(start + width, rows) if causal else rows
    weighted_shifted_sums(
        tokens, n, score, h, own, 0, z, z_low, z, z, False, diagonal, causal, start, stop, acc,
        one_shift, weight if weighted else weight[:0],
    )  # fmt: skip
    store(m, m_at, load(acc, 0))
    store(shift, m_at, load(one_shift, 0))
    for k in range(d):
        store(S, S_at + k * step, load(acc, (1 + k) * width))


@njit(error_model="numpy")
def _workspace(groups, d, like):
    """Allocate the vectors of one worker: own, z, S, scores, m and its part, shift, mask."""
    most = groups * 2
    by_coordinate = most * rounded(d)
    mask = vectors(4 * lanes(like), like)
    group_mask(mask)
    return (
        vectors(by_coordinate, like), vectors(by_coordinate, like), vectors(by_coordinate, like),
        vectors(most * BLOCK, like), vectors(most, like), vectors(most, like), vectors(most, like),
        mask,
    )  # fmt: skip


@njit(error_model="numpy")
def _task(
    x, tokens, n, by_token, by_coordinate, matrices, score, weight, weighted, bound, causal,
    divisor, first, groups, with_vectors, space, shift_out, m_out, S_out,
):  # fmt: skip
    """Process all heads for `groups` groups of targets of one path, starting at group `first`."""
    targets, d = x.shape
    own, z, S, scores, m, part, shift, mask = space
    width = lanes(own)
    two = 2 * width
    of_d = rounded(d) * two
    of_scores = BLOCK * two
    panel_d = d * TILE_COLUMNS
    panel_n = n * TILE_COLUMNS
    start = first * two
    full = min(groups, (targets - start + width - 1) // two)
    stop = min(start + groups * two, n) if causal else n
    shifted = np.zeros(2 * groups, np.bool_)
    for g in range(groups):
        gather(x, start + g * two, two if g < full else width, own, g * of_d)
    for h in range(score.shape[0]):
        chosen = h if weight.shape[0] > 1 else 0
        product(groups, full, own, 0, of_d, matrices[h], 0, panel_d, d, d, z, 0, of_d, False)
        some = False
        for g in range(groups):
            step = two if g < full else width
            _scale(z, g * of_d, step, d, bound[chosen], shifted, 2 * g)
            some = some or not (shifted[2 * g] and shifted[2 * g + step // two])
        m[:] = 0.0
        part[:] = 0.0
        shift[:] = 0.0
        for j in range(0, stop if some else 0, BLOCK):
            count = min(BLOCK, stop - j)
            product(
                groups, full, z, 0, of_d, by_token, j // TILE_COLUMNS * panel_d, panel_d, d, count,
                scores, 0, of_scores, False,
            )  # fmt: skip
            if j // BLOCK % _CLOSED == 0 and j > 0:
                m += part
                part[:] = 0.0
            for g in range(groups):
                # A group attends to the sources up to its own tokens, which begin at masked.
                masked = start + g * two - j if causal else count
                _weighted_exponentials(
                    scores, g * of_scores, two if g < full else width, weight[chosen], j, count,
                    masked, mask, part, g * two,
                )  # fmt: skip
            if with_vectors:
                product(
                    groups, full, scores, 0, of_scores, by_coordinate, j * TILE_COLUMNS, panel_n,
                    count, d, S, 0, of_d, j > 0,
                )  # fmt: skip
        m += part
        for g in range(groups):
            step = two if g < full else width
            for v in range(0, step, width):
                at = g * of_d + v
                begin = start + g * two + v
                if shifted[2 * g + v // width]:
                    _shifted_vector(
                        x, tokens, n, weight[chosen], weighted, score, h, begin, causal, step, S,
                        at, m, g * two + v, shift,
                    )  # fmt: skip
                for lane in range(min(width, targets - begin)):
                    mine = g * two + v + lane
                    i = begin + lane
                    # No source of this target has a weight, so nothing was shifted.
                    shift_out[h, i] = shift[mine] if shift[mine] > -1e29 else 0.0
                    m_out[h, i] = m[mine] / divisor
                    if with_vectors:
                        for k in range(d):
                            S_out[h, i, k] = S[at + k * step + lane] / divisor


@kernel(parallel=True)
def _sums(
    x, y, weight, weighted, bound, score, causal, divisor, workers, with_vectors, shift, m, S
):  # fmt: skip
    paths, targets, d = x.shape
    n = y.shape[1]
    heads = score.shape[1]
    blocks = (targets + lanes(x) - 1) // lanes(x)
    groups = (blocks + 1) // 2
    # Causal groups end at different sources and are treated one at a time.
    share = 1 if causal else max(1, min(_GROUPS, groups * paths // workers))
    tasks = (groups + share - 1) // share
    of_matrix = panels(d) * TILE_COLUMNS * d
    by_token = np.empty((1, panels(n) * TILE_COLUMNS * d), x.dtype)
    by_coordinate = np.empty((1, panels(d) * TILE_COLUMNS * n), x.dtype)
    matrices = np.empty((heads, of_matrix), x.dtype)
    for p in range(paths):
        q = p if weight.shape[0] > 1 else 0
        tokens, _unit = padded(y[p], TILE)
        for job in prange(heads + 1):
            if job == heads:
                pack_transposed(y[p], by_token[0], 0)
                pack(y[p], by_coordinate[0], 0)
            else:
                pack(score[p, job], matrices[job], 0)
        for worker in prange(workers):
            space = _workspace(share, d, x)
            for task in range(worker, tasks, workers):
                begin = task * groups // tasks
                end = (task + 1) * groups // tasks
                _task(
                    x[p], tokens, n, by_token[0], by_coordinate[0], matrices, score[p],
                    weight[q], weighted, bound[p], causal, divisor, begin, end - begin,
                    with_vectors, space, shift[p], m[p], S[p],
                )  # fmt: skip


def blocked_head_sums(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    sources: NDArray[np.floating],
    weights: NDArray[np.floating] | None,
    causal: bool,
    vectors: bool,
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """Compute (shift, m, S) of every head at every target: `pairs.weighted.pair_head_sums`."""
    paths, targets, d = x.shape
    heads, n = D.shape[1], sources.shape[1]
    weight = np.ones((1, 1, n), x.dtype) if weights is None else weights
    shift, m = (np.empty((paths, heads, targets), x.dtype) for _ in range(2))
    S = np.empty((paths, heads, targets if vectors else 0, d), x.dtype)
    # The number of threads is read here: compiled code that reads it cannot be kept on disk.
    pairs = paths * heads * targets * n * d // BLOCKED_FROM
    with threads_for(pairs, PAIRS_OF_THREAD) as workers:
        _sums(
            x, sources, weight, weights is not None, direct_bounds(sources, weights), D, causal,
            float(n) if weights is None else 1.0, workers, bool(vectors), shift, m, S,
        )  # fmt: skip
    return shift, m, S
