"""Velocities and terms of one or two blocks of tokens, each direction of a pair computed apart.

For general heads, causal attention, and dimensions without a symmetric loop. Cost of an ordered
pair, in multiply-adds (double precision): d for the score, 13 for the exponential, d + 2 for the
sums: 21 at d = 3.
"""

import numpy as np
from numba import njit

from wflow._headsums import EXTRA, absorb_blocks, clear, finish_tokens
from wflow._kernel_cache import variant
from wflow._pairsums import (
    CHUNK,
    TILE,
    block_scores,
    by_lane,
    causal_mask,
    direct_bound,
    masked_sums,
    pair_rows,
    shifted_sums,
)
from wflow._simd import lanes, splat, store
from wflow._sweep import clear_vectors, one_way_loops, vectors


@njit(error_model="numpy")
def table_tokens(n, width):
    """Tokens j of a table of 1 + <x_i, x_j>^2: not more than the second cache holds."""
    return min(CHUNK, max(n + TILE, 2 * width))


def room_of_rows(d: int, n: int, heads: int, width: int) -> int:
    """Vectors of room that one worker needs."""
    fixed = 2 * d + 3 + width + 2 * (2 * d + EXTRA)
    return fixed + 2 * heads * (2 * d + 3) + 2 * table_tokens.py_func(n, width)


def make_rows(dim: int):
    """The function for d = `dim`, or for any d if 0."""
    one_way = one_way_loops(dim)

    @njit(error_model="numpy")
    @variant(dim)
    def head_by_head(
        x, n, weight, score, value, drift, noise, sigma2, flow, sign, causal, start, blocks, v, out,
        room,
    ):  # fmt: skip
        """All heads for `blocks` blocks of one path from token `start` on.

        v (n, d) and out (blocks, N_TERMS) receive the velocities and the shares of the terms; room
        is of `room_of_rows` vectors.
        """
        rows = x.shape[0]
        d = dim if dim > 0 else x.shape[1]
        heads = score.shape[0]
        width = lanes(x)
        zero = splat(x.dtype.type(0.0))
        ito = sigma2.shape[0] > 0
        free = start if causal else rows  # tokens that all tokens of the blocks attend to
        step = table_tokens(n, width) * width
        # Pieces of the room, the largest last.
        own = room[: blocks * d * width]
        at = blocks * d * width
        shift = room[at : at + width]
        at += width
        factors = room[at : at + 2 * width]
        at += 2 * width
        diagonal = room[at : at + width * width]
        at += width * width
        state = room[at : at + blocks * (2 * d + EXTRA) * width]
        at += blocks * (2 * d + EXTRA) * width
        squares = room[at : at + heads * blocks * width]
        at += heads * blocks * width
        z = room[at : at + heads * blocks * d * width]
        at += heads * blocks * d * width
        acc = room[at : at + heads * blocks * (d + 2) * width]
        at += heads * blocks * (d + 2) * width
        pair = room[at : at + (blocks * step if ito else 0)]
        moderate = np.empty(heads, np.bool_)
        all_moderate = True
        limit = direct_bound(x)
        clear_vectors(acc, 0, heads * blocks * (d + 2))
        store(shift, 0, zero)
        causal_mask(diagonal)
        for block in range(blocks):
            by_lane(x, n, start + block * width, own, block * d * width)
        for h in range(heads):
            at = h * blocks * width
            block_scores(score, h, own, 0, z, at * d, d, blocks, squares, at)
            moderate[h] = True
            for lane in range(at, at + blocks * width):
                moderate[h] = moderate[h] and squares[lane] <= limit * limit  # false for NaN
            all_moderate = all_moderate and moderate[h]

        for first in range(0, free, CHUNK):
            last = min(first + CHUNK, free)
            if ito:
                for block in range(blocks):
                    pair_rows(x, n, d, own, block * d * width, first, last, pair,
                               block * step - first * width)  # fmt: skip
            for h in range(heads):
                if moderate[h]:
                    place = h * blocks
                    one_way(x, weight, z, place * d * width, pair, -first * width, step, ito,
                            blocks, first, last, acc, place * (d + 2) * width)  # fmt: skip
        if causal:
            for block in range(blocks):
                begin = start + block * width
                last = min(begin + width, rows)
                if ito:
                    pair_rows(x, n, d, own, block * d * width, start, last, pair, -start * width)
                for h in range(heads):
                    place = h * blocks + block
                    if moderate[h]:
                        masked_sums(x, weight, z, place * d * width, pair, -start * width, ito,
                                    diagonal, begin, start, last, acc,
                                    place * (d + 2) * width)  # fmt: skip

        table = vectors(0 if all_moderate or not ito else rows, x)
        z_high = vectors(0 if all_moderate else d, x)
        z_low = vectors(0 if all_moderate else d, x)
        clear(state, d, blocks)
        for h in range(heads):
            acc_at = h * blocks * (d + 2) * width
            if moderate[h]:
                absorb_blocks(
                    h, h == 0, False, d, blocks, own, 0, acc, acc_at, shift, squares,
                    h * blocks * width, value, drift, noise, sigma2, state, 0, factors,
                )  # fmt: skip
                continue
            for block in range(blocks):
                begin = start + block * width
                last = min(begin + width, rows) if causal else rows
                own_at = block * d * width
                if ito:
                    pair_rows(x, n, d, own, own_at, 0, rows, table, 0)
                sums = acc[acc_at : acc_at + (d + 2) * width]
                shifted_sums(x, n, score, h, own, own_at, z_high, z_low, table, ito, diagonal,
                             causal, begin, last, sums, shift)  # fmt: skip
                absorb_blocks(
                    h, h == 0, True, d, 1, own, own_at, sums, 0, shift, squares,
                    (h * blocks + block) * width, value, drift, noise, sigma2, state,
                    block * (2 * d + EXTRA) * width, factors,
                )  # fmt: skip
            store(shift, 0, zero)
        for block in range(blocks):
            finish_tokens(
                x, n, d, start + block * width, float(heads), flow, sign, state,
                block * (2 * d + EXTRA) * width, v, out[block],
            )  # fmt: skip

    return head_by_head
