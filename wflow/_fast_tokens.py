"""Evaluation of the heads' series at the tokens: velocities and terms, one small matrix product.

The harmonics of a group of tokens stay in cache and are shared by all heads; a panel of
coefficients serves several heads at once. A block of tokens that misses the tolerance in a head is
summed exactly in that head.
"""

import numpy as np
from numba import njit, prange

from wflow import _harmonics, _headsums, _pairsums, _series, _simd, _sweep, _tile
from wflow._harmonics import PAIR, count, harmonics
from wflow._headsums import EXTRA, N_TERMS, absorb, clear, finish_block
from wflow._kernel_cache import compiled
from wflow._pairsums import by_lane, head_scores, head_sums, pair_table, vectors
from wflow._series import task_count
from wflow._simd import lanes
from wflow._tile import TILE_COLUMNS, tile_product

# Vectors of tokens whose harmonics are in cache together while panels pass by.
GROUP = 8


@njit(error_model="numpy")
def _exactly(
    x, n, weight, score, h, own, at, z, z_low, pair, ito, mask, start, acc, shift, square
):  # fmt: skip
    """`head_sums` over all tokens, compiled once for its two places below."""
    return head_sums(
        x, n, weight, score, h, own, at, z, z_low, pair, ito, mask, False, start, x.shape[0], acc,
        shift, square,
    )  # fmt: skip


@njit(error_model="numpy")
def _add(
    h, fresh, shifted, d, own, own_at, acc, acc_at, shift, square, value, drift, noise, sigma2,
    state, at, factors,
):  # fmt: skip
    """`absorb`, compiled once for its two places below."""
    absorb(
        h, fresh, shifted, d, own, own_at, acc, acc_at, shift, square, value, drift, noise, sigma2,
        state, at, factors,
    )  # fmt: skip


@njit(error_model="numpy")
def load_group(x, n, group, blocks, expanded, degree, table, own, basis):
    """Coordinates of a group of blocks, and if any head is `expanded` the harmonics there."""
    d = x.shape[1]
    width = lanes(x)
    for block in range(GROUP):
        by_lane(x, n, group + block * width, own, block * d * width)
    if expanded:
        for start in range(0, blocks, PAIR):
            at = start * count(degree, d) * width
            harmonics(own[start * d * width :], d, degree, table, basis, at)


@njit(error_model="numpy", forceinline=True)
def lowest_sum(tile, at, real, limit):
    """Smallest value of the first `real` lanes, and whether none is below `limit` or NaN."""
    low = np.inf
    good = True
    for lane in range(real):
        good = good and tile[at + lane] >= limit  # false for NaN
        low = min(low, tile[at + lane])
    return low, good


@njit(error_model="numpy")
def _tokens_task(
    x, n, weight, score, value, drift, noise, sigma2, none, flow, sign, order, alone, panels, sizes,
    limit, degree, table, first, last, v, terms, lowest, redone,
):  # fmt: skip
    """Velocities and terms of the tokens first <= i < last, from panels of coefficients.

    order : heads in the order of the panels; alone : heads that are summed exactly
    sizes : harmonics of each panel; limit : sum below which a head's value is summed exactly
    lowest (heads,) : smallest sum of each head that was taken from the series
    """
    rows, d = x.shape
    width = lanes(x)
    ito = sigma2.shape[0] > 0 and alone.shape[0] > 0
    room = 2 * d + EXTRA
    number = count(degree, d)
    per_panel = TILE_COLUMNS // (d + 1)
    own = vectors(GROUP * d, x)
    basis = vectors(GROUP * number, x)
    tile = vectors(PAIR * TILE_COLUMNS, x)
    state = vectors(GROUP * room, x)
    z = vectors(d, x)
    z_low = vectors(d, x)
    again = vectors(d + 2, x)
    pair = vectors(rows if ito else 0, x)
    mask = vectors(width, x)
    shift = vectors(1, x)
    square = vectors(1, x)
    factors = vectors(2, x)
    heads = float(score.shape[0])
    lowest[:] = np.inf
    for group in range(first, last, GROUP * width):
        blocks = min(GROUP, (last - group + width - 1) // width)
        clear(state, d, GROUP)
        load_group(x, n, group, blocks, order.shape[0] > 0, degree, table, own, basis)
        for panel in range(sizes.shape[0]):
            for start in range(0, blocks, PAIR):
                tile_product(
                    basis, start * number * width, PAIR * width, panels[panel], 0, TILE_COLUMNS,
                    sizes[panel], tile, 0, width, TILE_COLUMNS * width,
                )  # fmt: skip
                for block in range(start, min(start + PAIR, blocks)):
                    begin = group + block * width
                    real = min(width, n - begin)
                    place = (block - start) * TILE_COLUMNS * width
                    for s in range(panel * per_panel, min((panel + 1) * per_panel, order.shape[0])):
                        h = order[s]
                        at = place + (s - panel * per_panel) * (d + 1) * width
                        low, good = lowest_sum(tile, at, real, limit[h])
                        shifted = False
                        if good:
                            lowest[h] = min(lowest[h], low)
                            head_scores(score, h, own, block * d * width, z, 0, d, square)
                            shift[:] = 0.0
                        else:
                            redone[0] += real
                            shifted = _exactly(
                                x, n, weight, score, h, own, block * d * width, z, z_low, pair,
                                False, mask, begin, again, shift, square,
                            )  # fmt: skip
                            tile[at : at + (d + 1) * width] = again[: (d + 1) * width]
                        _add(
                            h, s == 0, shifted, d, own, block * d * width, tile, at, shift, square,
                            value, drift, noise, none, state, block * room * width, factors,
                        )  # fmt: skip
        for block in range(blocks):
            begin = group + block * width
            mine = block * d * width
            if ito:
                pair_table(x, n, own[mine:], 0, 0, rows, pair, 0)
            for s in range(alone.shape[0]):
                h = alone[s]
                redone[0] += min(width, n - begin)
                shifted = _exactly(
                    x, n, weight, score, h, own, mine, z, z_low, pair, ito, mask, begin, again,
                    shift, square,
                )  # fmt: skip
                _add(
                    h, order.shape[0] == 0 and s == 0, shifted, d, own, mine, again, 0, shift,
                    square, value, drift, noise, sigma2 if ito else none, state,
                    block * room * width, factors,
                )  # fmt: skip
            finish_block(x, n, begin, heads, flow, sign, state, block * room * width, v, terms)


def _entry_points(source, cache):
    """The compiled function that Python calls."""

    @njit(cache=cache, parallel=True, error_model="numpy")
    def evaluate_tokens(
        x, n, weight, score, value, drift, noise, sigma2, flow, sign, order, alone, panels, sizes,
        limit, degree, table,
    ):  # fmt: skip
        """Velocities (n, d), sums of the terms, smallest series value per head, tokens redone.

        x : (rows, d) padded tokens, weight (rows,); the rest as in `_tokens_task`.
        """
        _ = source  # part of the cache key
        d = x.shape[1]
        heads = score.shape[0]
        unit = GROUP * lanes(x)
        units = (n + unit - 1) // unit
        tasks = task_count(units, 1)
        v = np.empty((n, d))
        parts = np.zeros((tasks, N_TERMS))
        lows = np.empty((tasks, heads))
        again = np.zeros((tasks, 1), np.int64)
        none = sigma2[:0]
        for task in prange(tasks):
            _tokens_task(
                x, n, weight, score, value, drift, noise, sigma2, none, flow, sign, order, alone,
                panels, sizes, limit, degree, table, task * units // tasks * unit,
                min((task + 1) * units // tasks * unit, n), v, parts[task], lows[task], again[task],
            )  # fmt: skip
        terms = np.zeros(N_TERMS)
        lowest = np.full(heads, np.inf)
        redone = 0
        for task in range(tasks):
            for term in range(8):
                terms[term] += parts[task, term]
            for term in range(8, N_TERMS):
                terms[term] = max(terms[term], parts[task, term])
            for h in range(heads):
                lowest[h] = min(lowest[h], lows[task, h])
            redone += again[task, 0]
        return v, terms, lowest, redone

    return evaluate_tokens


evaluate_tokens = compiled(
    _entry_points, _harmonics, _headsums, _pairsums, _series, _simd, _sweep, _tile
)
