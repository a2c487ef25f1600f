"""Velocities and ledger terms of all paths, in one parallel pass over all pairs of tokens.

Nothing is stored per head and nothing of size heads x n x n exists: a task is one block of tokens
of one path, which goes through all heads with its running sums in cache, so memory is
O(paths (n d + heads d^2)). Tasks are independent and their order of summation is fixed: threads do
not change a bit.
"""

import os

import numpy as np
from numba import njit, prange

from wflow import _headsums, _pairsums, _simd, _symmetric
from wflow._headsums import EXTRA, N_TERMS, absorb, clear, finish_block, merge
from wflow._kernel_cache import compiled
from wflow._pairsums import (
    TILE,
    by_lane,
    causal_mask,
    direct_bound,
    head_scores,
    head_sums,
    padded,
    pair_table,
    vectors,
)
from wflow._simd import lanes, load, store
from wflow._symmetric import chunk_vectors, symmetric_sums

# A thread of GNU OpenMP that waits spins for milliseconds before it sleeps; where other programs
# share the cores, the spinning takes the time of the thread it waits for: beside one busy process
# a step took up to 50 times longer. Read when the first parallel function starts.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Groups of heads that are summed apart, so that one path has work for several threads, and up to
# which n and d a kernel value is worth using in both directions.
_GROUPS, _SYMMETRIC_TOKENS, _SYMMETRIC_DIMENSION, _TABLED_TOKENS = 8, 4096, 8, 320


@njit(error_model="numpy")
def _block(x, n, weight, score, value, drift, noise, sigma2, flow, sign, causal, start, v, out):
    """All heads for the tokens start <= i < start + lanes of one path."""
    rows, d = x.shape
    width = lanes(x)
    ito = sigma2.shape[0] > 0
    stop = min(start + width, rows) if causal else rows
    own = vectors(d, x)
    z = vectors(d, x)
    z_low = vectors(d, x)
    acc = vectors(d + 2, x)
    part = vectors(d + 2, x)
    pair = vectors(rows if ito else 0, x)
    diagonal = vectors(width, x)
    shift = vectors(1, x)
    square = vectors(1, x)
    factors = vectors(2, x)
    state = vectors(2 * d + EXTRA, x)
    by_lane(x, n, start, own, 0)
    causal_mask(diagonal)
    if ito:
        pair_table(x, n, own, 0, 0, rows, pair, 0)
    clear(state, d, 1)
    for h in range(score.shape[0]):
        shifted = head_sums(
            x, n, weight, score, h, own, 0, z, z_low, pair, ito, diagonal, causal, start, stop,
            acc, part, shift, square,
        )  # fmt: skip
        absorb(
            h, h == 0, shifted, d, own, 0, acc, 0, shift, square, value, drift, noise, sigma2,
            state, 0, factors,
        )  # fmt: skip
    finish_block(x, n, start, float(score.shape[0]), flow, sign, state, 0, v, out)


@njit(error_model="numpy")
def _group(x, n, weight, score, drift, noise, sigma2, first, last, state):
    """Heads first <= h < last with D = D^T for all tokens of one path."""
    rows, d = x.shape
    width = lanes(x)
    blocks = rows // width
    ito = sigma2.shape[0] > 0
    tabled = n <= _TABLED_TOKENS
    own = vectors(blocks * d, x)
    z = vectors(blocks * d, x)
    z_low = vectors(d, x)
    squares = vectors(blocks, x)
    square = vectors(1, x)
    sums = vectors(blocks * (d + 2), x)
    columns = vectors(chunk_vectors(d), x)
    room = vectors(width, x)
    acc = vectors(d + 2, x)
    part = vectors(d + 3, x)
    pair = vectors((rows * blocks if tabled else rows) if ito else 0, x)
    shift = vectors(1, x)
    factors = vectors(2, x)
    for block in range(blocks):
        by_lane(x, n, block * width, own, block * d * width)
        if ito and tabled:
            pair_table(
                x, n, own, block * d * width, block * width, rows, pair, block * rows * width
            )
    clear(state, d, blocks)
    limit = direct_bound(x)
    for h in range(first, last):
        for block in range(blocks):
            at = block * d * width
            head_scores(score, h, own, at, z, at, d, square)
            store(squares, block * width, load(square, 0))
        moderate = True
        for i in range(blocks * width):
            moderate = moderate and squares[i] <= limit * limit  # false for NaN
        if moderate:
            symmetric_sums(x, n, weight, own, z, pair, tabled, ito, columns, room, part, sums)
            shift[:] = 0.0
        for block in range(blocks):
            at = block * d * width
            state_at = block * (2 * d + EXTRA) * width
            if moderate:
                store(square, 0, load(squares, block * width))
                absorb(
                    h, h == first, False, d, own, at, sums, block * (d + 2) * width, shift, square,
                    score, drift, noise, sigma2, state, state_at, factors,
                )  # fmt: skip
                continue
            table = pair[: rows * width]
            if ito:
                table = vectors(rows, x)
                pair_table(x, n, own, at, 0, rows, table, 0)
            shifted = head_sums(
                x, n, weight, score, h, own, at, room, z_low, table, ito, room, False, 0, rows,
                acc, part, shift, square,
            )  # fmt: skip
            absorb(
                h, h == first, shifted, d, own, at, acc, 0, shift, square, score, drift, noise,
                sigma2, state, state_at, factors,
            )  # fmt: skip


def _entry_points(source, cache):
    """The two compiled functions that Python calls."""

    @njit(cache=cache, parallel=True, error_model="numpy")
    def fused_sums(x, score, value, drift, noise, sigma2, flow, sign, causal, symmetric):
        """Velocities and ledger terms of all paths in one pass over all pairs.

        Parameters
        ----------
        x : (paths, n, d) unit tokens
        score, value : (paths, heads, d, d) D_h of <x, D_h y>, and the matrix applied
            to S_h (tied heads pass the same array twice)
        drift, noise : (paths, heads, d, d) f_h and sigma dW_h, or (paths, 0, d, d) where absent
        sigma2 : (paths, heads), or (paths, 0) for no Ito term
        flow : SOFTMAX, UNNORMALISED or EFFECTIVE; sign : -1.0 descent, 1.0 ascent; causal : bool
        symmetric : whether value is score and D_h = D_h^T for all, so that U_hij = U_hji

        Returns
        -------
        v : (paths, n, d), terms : (paths, N_TERMS) float64 in the order of TERMS
        """
        _ = source  # part of the cache key
        paths, n, d = x.shape
        heads = score.shape[1]
        width = lanes(x)
        blocks = (n + width - 1) // width
        v = np.empty_like(x)
        part = np.zeros((paths, blocks, N_TERMS))
        if symmetric and n <= _SYMMETRIC_TOKENS and d <= _SYMMETRIC_DIMENSION:
            groups = min(heads, _GROUPS)
            state = np.empty((paths, groups, blocks * (2 * d + EXTRA) * width), x.dtype)
            for task in prange(paths * groups):
                p = task // groups
                g = task - p * groups
                tokens, weight = padded(x[p], width)
                _group(
                    tokens, n, weight, score[p], drift[p], noise[p], sigma2[p],
                    g * heads // groups, (g + 1) * heads // groups, state[p, g],
                )  # fmt: skip
            for task in prange(paths * blocks):
                p = task // blocks
                b = task - p * blocks
                at = b * (2 * d + EXTRA) * width
                factors = vectors(2, x)
                for g in range(1, groups):
                    merge(state[p, 0], state[p, g], at, d, factors)
                finish_block(
                    x[p], n, b * width, float(heads), flow, sign, state[p, 0], at, v[p], part[p, b]
                )
        else:
            for task in prange(paths * blocks):
                p = task // blocks
                b = task - p * blocks
                tokens, weight = padded(x[p], TILE)
                _block(
                    tokens, n, weight, score[p], value[p], drift[p], noise[p], sigma2[p], flow,
                    sign, causal, b * width, v[p], part[p, b],
                )  # fmt: skip
        terms = np.zeros((paths, N_TERMS))
        for p in range(paths):
            for b in range(blocks):
                for term in range(8):
                    terms[p, term] += part[p, b, term]
                for term in range(8, N_TERMS):
                    terms[p, term] = max(terms[p, term], part[p, b, term])
            pairs = 2.0 * heads * n * n
            terms[p, 0] /= pairs
            terms[p, 1] /= pairs
            terms[p, 2] /= 4.0 * pairs
            terms[p, 3] /= pairs
            for term in range(4, 8):
                terms[p, term] /= n
        return v, terms

    @njit(cache=cache, parallel=True, error_model="numpy")
    def head_mobilities(x, score):
        """Row sums of every head: m_h(x_i) = exp(shift) total / n.

        x (n, d), score (heads, d, d); returns shift and total, both (heads, n).
        """
        _ = source  # part of the cache key
        n, d = x.shape
        heads = score.shape[0]
        width = lanes(x)
        blocks = (n + width - 1) // width
        shifts = np.empty((heads, n), x.dtype)
        totals = np.empty((heads, n), x.dtype)
        for b in prange(blocks):
            tokens, weight = padded(x, TILE)
            start = b * width
            own = vectors(d, x)
            z = vectors(d, x)
            z_low = vectors(d, x)
            acc = vectors(d + 2, x)
            part = vectors(d + 2, x)
            none = vectors(0, x)
            shift = vectors(1, x)
            square = vectors(1, x)
            by_lane(tokens, n, start, own, 0)
            for h in range(heads):
                head_sums(
                    tokens, n, weight, score, h, own, 0, z, z_low, none, False, none, False, start,
                    tokens.shape[0], acc, part, shift, square,
                )  # fmt: skip
                for lane in range(min(width, n - start)):
                    shifts[h, start + lane] = shift[lane]
                    totals[h, start + lane] = acc[lane]
        return shifts, totals

    return fused_sums, head_mobilities


fused_sums, head_mobilities = compiled(_entry_points, _headsums, _pairsums, _simd, _symmetric)
