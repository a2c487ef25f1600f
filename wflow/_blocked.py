"""The exact sums for many coordinates, as blocked matrix products: the results of `fused_sums`.

For a group of tokens i in the lanes (two vectors: 16 tokens in double precision) and one head,

    z = D^T x_i,   u_j = exp(<z, x_j>),   m = sum_j u_j,   S = sum_j u_j x_j,
    q = sum_j u_j (1 + <x_i, x_j>^2),   then D S, <f^T x_i, S>, <B^T x_i, S>.

All of these but the exponentials are products, made of register tiles; the scores of a block of
tokens j never leave the nearest cache. Cost of a pair, in multiply-adds: 2 d for the products, and
the exponential with its two sums; of a token and head: d^2 for each of D, its values, f and B.
The Gram matrix behind q is the same for all heads: d per pair, once a step, kept for the groups of
one task, rows of n vectors, which costs one load and one multiply-add per pair and head. Memory:
the tokens twice and the matrices once more, in panels, for a few paths at a time, and a room for
each thread; nothing of size n x n or heads x n.

Tasks are independent and every group of tokens has its own fixed order of summation: neither the
threads nor the groups that share a task change a bit.
"""

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from wflow import _blocked_group, _headsums, _pairsums, _products, _simd, _sweep, _tile
from wflow._blocked_group import (
    absorb_products,
    exponentials,
    gather,
    inner,
    scaled_scores,
    shifted_block,
)
from wflow._fused import PAIRS_OF_THREAD
from wflow._headsums import EXTRA, N_TERMS, clear, finish_block, path_terms
from wflow._kernel_cache import compiled
from wflow._pairsums import vectors
from wflow._products import COLUMN_UNIT, pack, pack_transposed, panels, product
from wflow._scratch import scratch
from wflow._simd import fma, lanes, load, splat, store
from wflow._threads import threads_for
from wflow._tile import TILE_COLUMNS

# From this d on these sums beat `fused_sums`, whose loops over coordinates are unrolled up to 8:
# measured at n = 50 to 1000, those take 0.9 to 1.4 times as long at d = 9, 0.6 to 0.9 at d = 8.
BLOCKED_FROM = 9

# Tokens j per block: their scores (12 KB) and a panel of their coordinates (9 KB) share the nearest
# cache. A multiple of TILE_COLUMNS.
_BLOCK = 96
# Groups of one task: they share each panel of tokens and of matrices that the second cache does not
# hold (_NEAR bytes).
_GROUPS, _NEAR = 4, 600_000
# Bytes of packed matrices of several paths at one time, and of room for them kept between calls:
# a fresh page costs several times what it costs to fill.
_PACKED, _KEPT = 24_000_000, 256_000_000


@njit(error_model="numpy", forceinline=True)
def _rounded(count):
    return (count + COLUMN_UNIT - 1) // COLUMN_UNIT * COLUMN_UNIT


@njit(error_model="numpy")
def _room(groups, n, d, ito, like):
    """What a task works in: a row of vectors, or two, for each group and coordinate or token."""
    most = groups * 2
    by_coordinate = most * _rounded(d)
    own = vectors(by_coordinate, like)
    z = vectors(by_coordinate, like)
    S = vectors(by_coordinate, like)
    products = vectors(by_coordinate, like)
    scores = vectors(most * _BLOCK, like)
    pair = vectors(most * _rounded(n) if ito else 0, like)
    state = vectors(most * (2 * d + EXTRA), like)
    diagonal = vectors(4 * lanes(like), like)
    _causal_rows(diagonal)
    few = (
        vectors(most, like), vectors(most, like), vectors(most, like), vectors(most, like),
        vectors(most, like), vectors(most, like), vectors(2, like),
    )  # fmt: skip
    return own, z, S, products, scores, pair, state, diagonal, few


@njit(error_model="numpy")
def _causal_rows(diagonal):
    """1 where the token j of a group comes no later than that of the lane, else 0."""
    step = 2 * lanes(diagonal)
    for j in range(step):
        for lane in range(step):
            diagonal[j * step + lane] = 1.0 if j <= lane else 0.0


@njit(error_model="numpy")
def _task(
    x, by_token, by_coordinate, matrices, score, drift, noise, sigma2, flow, sign, causal, tied,
    first, groups, room, v, out,
):  # fmt: skip
    """All heads for the tokens of `groups` groups of one path, the first being group `first`."""
    n, d = x.shape
    heads = score.shape[0]
    own, z, S, products, scores, pair, state, diagonal, few = room
    m, q, shift, square, power, increment, factors = few
    width = lanes(own)
    two = 2 * width
    of_d = _rounded(d) * two
    of_scores = _BLOCK * two
    of_pair = _rounded(n) * two
    of_state = (2 * d + EXTRA) * width
    panel_d = d * TILE_COLUMNS
    panel_n = n * TILE_COLUMNS
    of_matrix = panels(d) * panel_d
    ito = sigma2.shape[0] > 0
    start = first * two
    full = min(groups, (n - start + width - 1) // two)
    stop = min(start + groups * two, n) if causal else n
    one = splat(x.dtype.type(1.0))
    shifted = np.zeros(2 * groups, np.bool_)

    for g in range(groups):
        gather(x, start + g * two, two if g < full else width, own, g * of_d)
    if ito:
        product(groups, full, own, 0, of_d, by_token, 0, panel_d, d, stop, pair, 0, of_pair, False)
        for g in range(groups):
            at = g * of_pair
            for k in range(at, at + stop * (two if g < full else width), width):
                c = load(pair, k)
                store(pair, k, fma(c, c, one))
    clear(state, d, 2 * groups)
    power[:] = 0.0
    increment[:] = 0.0
    for h in range(heads):
        product(groups, full, own, 0, of_d, matrices[h], 0, panel_d, d, d, z, 0, of_d, False)
        some = False
        for g in range(groups):
            step = two if g < full else width
            scaled_scores(z, g * of_d, step, d, square, g * two, shifted, 2 * g)
            some = some or not (shifted[2 * g] and shifted[2 * g + step // two])
        m[:] = 0.0
        q[:] = 0.0
        shift[:] = 0.0
        for j in range(0, stop if some else 0, _BLOCK):
            count = min(_BLOCK, stop - j)
            product(
                groups, full, z, 0, of_d, by_token, j // TILE_COLUMNS * panel_d, panel_d, d, count,
                scores, 0, of_scores, False,
            )  # fmt: skip
            for g in range(groups):
                step = two if g < full else width
                masked = start - j if causal else count
                exponentials(
                    scores, g * of_scores, step, count, masked, diagonal, ito, pair,
                    g * of_pair + j * step, m, q, g * two,
                )  # fmt: skip
            product(
                groups, full, scores, 0, of_scores, by_coordinate, j * TILE_COLUMNS, panel_n, count,
                d, S, 0, of_d, j > 0,
            )  # fmt: skip
        for g in range(groups):
            step = two if g < full else width
            for k in range(0, step, width):
                if shifted[2 * g + k // width]:
                    shifted_block(
                        x, score, h, start + g * two + k, ito, causal, step, S, g * of_d + k, m, q,
                        shift, g * two + k,
                    )  # fmt: skip
        kind = 1 if tied else 2
        for term in range(2):
            if (drift if term == 0 else noise).shape[0] == 0:
                continue
            total = power if term == 0 else increment
            product(
                groups, full, own, 0, of_d, matrices[h], kind * of_matrix, panel_d, d, d, products,
                0, of_d, False,
            )  # fmt: skip
            kind += 1
            for g in range(groups):
                step = two if g < full else width
                for k in range(0, step, width):
                    at = g * of_d + k
                    store(total, g * two + k, inner(products, at, S, at, step, d))
        product(
            groups, full, S, 0, of_d, matrices[h], 0 if tied else of_matrix, panel_d, d, d,
            products, 0, of_d, False,
        )  # fmt: skip
        for g in range(groups):
            step = two if g < full else width
            for k in range(0, step, width):
                block = 2 * g + k // width
                absorb_products(
                    h, shifted[block], d, products, g * of_d + k, step, m, q, drift, noise, sigma2,
                    power, increment, shift, square, g * two + k, state, block * of_state, factors,
                )  # fmt: skip
    for g in range(groups):
        for k in range(0, two if g < full else width, width):
            block = 2 * g + k // width
            finish_block(
                x, n, start + g * two + k, float(heads), flow, sign, state, block * of_state, v,
                out[2 * first + block],
            )  # fmt: skip


def _entry_points(source, cache):
    """The compiled function that Python calls."""

    @njit(cache=cache, parallel=True, error_model="numpy")
    def sums(x, score, value, drift, noise, sigma2, flow, sign, causal, tied, slots, matrices):
        """See `blocked_sums`; tied: symmetric; slots: loops to share; matrices: room."""
        _ = source  # part of the cache key
        paths, n, d = x.shape
        heads = score.shape[1]
        width = lanes(x)
        blocks = (n + width - 1) // width
        groups = (blocks + 1) // 2
        ito = sigma2.shape[1] > 0
        of_matrix = panels(d) * TILE_COLUMNS * d
        kinds = matrices.shape[2] // of_matrix
        tasks = groups
        if not causal and (2 * n + heads * kinds * d) * d * x.itemsize > _NEAR:
            # As few as _GROUPS allows, and every loop has the same number of them.
            share = max(1, slots // paths)
            tasks = min(groups, (groups + _GROUPS * share - 1) // (_GROUPS * share) * share)
        batch = matrices.shape[0]
        by_token = np.empty((batch, panels(n) * TILE_COLUMNS * d), x.dtype)
        by_coordinate = np.empty((batch, panels(d) * TILE_COLUMNS * n), x.dtype)
        v = np.empty_like(x)
        part = np.zeros((paths, blocks, N_TERMS))
        for first in range(0, paths, batch):
            count = min(batch, paths - first)
            for job in prange(count * (heads + 1)):
                p = job // (heads + 1)
                h = job - p * (heads + 1)
                if h == heads:
                    pack_transposed(x[first + p], by_token[p], 0)
                    pack(x[first + p], by_coordinate[p], 0)
                else:
                    packed = matrices[p, h]
                    pack(score[first + p, h], packed, 0)
                    at = of_matrix
                    if not tied:
                        pack_transposed(value[first + p, h], packed, at)
                        at += of_matrix
                    if drift.shape[1] > 0:
                        pack(drift[first + p, h], packed, at)
                        at += of_matrix
                    if noise.shape[1] > 0:
                        pack(noise[first + p, h], packed, at)
            for slot in prange(slots):
                room = _room((groups + tasks - 1) // tasks, n, d, ito, x)
                for task in range(slot, count * tasks, slots):
                    p = task // tasks
                    begin = (task - p * tasks) * groups // tasks
                    end = (task - p * tasks + 1) * groups // tasks
                    _task(
                        x[first + p], by_token[p], by_coordinate[p], matrices[p],
                        score[first + p], drift[first + p], noise[first + p], sigma2[first + p],
                        flow, sign, causal, tied, begin, end - begin, room,
                        v[first + p], part[first + p],
                    )  # fmt: skip
        return v, path_terms(part, heads, n)

    return sums


_sums = compiled(
    _entry_points, _blocked_group, _headsums, _pairsums, _products, _simd, _sweep, _tile
)


def blocked_sums(
    x: NDArray[np.floating],
    score: NDArray[np.floating],
    value: NDArray[np.floating],
    drift: NDArray[np.floating],
    noise: NDArray[np.floating],
    sigma2: NDArray[np.floating],
    flow: int,
    sign: float,
    causal: bool,
    symmetric: bool,
) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Velocities and ledger terms of all paths, as `_fused.fused_sums`, for many coordinates.

    Parameters
    ----------
    x : (paths, n, d) unit tokens
    score, value : (paths, heads, d, d) D_h of <x, D_h y>, and the matrix applied to S_h (tied
        heads pass the same array twice)
    drift, noise : (paths, heads, d, d) f_h and sigma dW_h, or (paths, 0, d, d) where absent
    sigma2 : (paths, heads), or (paths, 0) for no Ito term
    flow : SOFTMAX, UNNORMALISED or EFFECTIVE; sign : -1.0 descent, 1.0 ascent; causal : bool
    symmetric : whether value is score and D_h = D_h^T for all

    Returns
    -------
    v : (paths, n, d), terms : (paths, N_TERMS) float64 in the order of TERMS
    """
    kinds = 2 - symmetric + (drift.shape[1] > 0) + (noise.shape[1] > 0)
    paths, heads, d = score.shape[:3]
    size = kinds * panels(d) * TILE_COLUMNS * d
    one = heads * size
    batch = max(1, min(paths, _PACKED // (one * x.itemsize)))  # paths that are treated together
    room = scratch(-(-batch * one * x.itemsize // 64), x.dtype, _KEPT)
    matrices = room[: batch * one].reshape(batch, heads, size)
    n = x.shape[1]
    # The number of threads is read here: compiled code that reads it cannot be kept on disk.
    with threads_for(paths * heads * n * n * d // BLOCKED_FROM, PAIRS_OF_THREAD) as slots:
        return _sums(
            x, score, value, drift, noise, sigma2, flow, sign, causal, symmetric, slots, matrices
        )
