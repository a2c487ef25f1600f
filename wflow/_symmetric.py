"""Sums of some heads over all pairs of one path, each kernel value computed once: for D = D^T.

U_hij = U_hji, so a value serves the sums of token i, which sit in the lanes of a block, and those
of token j, whose partial sums over lanes are folded at the end of a tile. Cost of a pair of tokens,
both directions, in multiply-adds (double precision): d for the score, 13 for the exponential,
2 (d + 1) for the sums, 1 for the Ito sum: 25 at d = 3, against 42 when each direction is computed.

A tile is a chunk of tokens j and up to 32 blocks of tokens i no later than the chunk; its table of
1 + <x_i, x_j>^2 serves all heads of the task. Chunks are dealt out to strips, which are summed
apart: their number depends on n alone, so that threads do not change a bit.
"""

import numpy as np
from numba import njit

from wflow._headsums import EXTRA, absorb_blocks
from wflow._kernel_cache import variant
from wflow._pairsums import block_scores, by_lane, is_moderate, pair_rows, shifted_sums
from wflow._simd import fma, lane_sums, lanes, load, maximum, splat, store
from wflow._sweep import clear_vectors, make_sweep, vectors

# Tokens j per chunk: their partial sums, 4 vectors each at d = 3, stay in the nearest cache.
_CHUNK_BYTES = 20480
# Blocks of tokens i per tile: its table, 64 bytes a block and token j, stays in the second cache.
_TILE_BLOCKS = 32


def strips_for(n: int) -> int:
    """Parts in which the pairs of one path are summed, so that one path has work for threads."""
    if n < 512:
        return 1
    if n < 2048:
        return 2
    return 4 if n < 8192 else 8


@njit(error_model="numpy")
def chunk_tokens(n, d, width):
    """Tokens per chunk: an even number of blocks, all chunks of nearly the same size."""
    most = max(_CHUNK_BYTES // (64 * (d + 1)) // (2 * width), 1)
    pairs = (n + 2 * width - 1) // (2 * width)
    chunks = (pairs + most - 1) // most
    return (pairs + chunks - 1) // chunks * 2 * width


def room_of_sums(d: int, n: int, heads: int, width: int) -> int:
    """Vectors of room that one worker needs for the sums of so many heads."""
    blocks = (n + width - 1) // width
    chunk = chunk_tokens.py_func(n, d, width)
    table = min(blocks, _TILE_BLOCKS) * chunk
    return blocks * (d + 1) + 2 + chunk * (d + 1) + table + heads * blocks * d


@njit(error_model="numpy")
def _fold_columns(columns, d, blocks, sums, sums_at):
    """Add the sums of some blocks of tokens j, sums over lanes of `columns`, and clear those."""
    width = lanes(columns)
    zero = splat(columns.dtype.type(0.0))
    row = (d + 1) * width
    for block in range(blocks):
        for term in range(d + 1):
            first = block * width * row + term * width
            at = sums_at + (block * (d + 2) + term) * width
            store(sums, at, load(sums, at) + lane_sums(columns, first, row))
            for k in range(width):
                store(columns, first + k * row, zero)


def _make_tile(dim: int, ito: bool):
    """One head in one tile, with or without the Ito sum."""
    alone = make_sweep(dim, 1, both=False, ito=ito)
    within = make_sweep(dim, 2, both=False, ito=ito)
    others = make_sweep(dim, 2, both=True, ito=ito)

    @njit(error_model="numpy")
    @variant(dim, "ito" if ito else "plain")
    def sweep_tile(
        x, weight, own, z, z_at, pair, pair_at, step, low, high, first, last, columns, sums, sums_at
    ):  # fmt: skip
        """The blocks low <= block < high of tokens i against the tokens first <= j < last."""
        width = lanes(x)
        for block in range(low, high, 2):
            start = block * width
            begin = first
            own_at = start * dim
            at = z_at + own_at
            acc_at = sums_at + block * (dim + 2) * width
            place = pair_at + block * step
            if start >= first and high - block > 1:
                # Among themselves each direction apart: more arithmetic, but one loop for all.
                begin = start + 2 * width
                within(x, weight, z, 0, z, at, pair, place, step, z, 0, start, begin, sums,
                       acc_at)  # fmt: skip
            elif start >= first:
                begin = last
                alone(x, weight, z, 0, z, at, pair, place, 0, z, 0, start, last, sums,
                      acc_at)  # fmt: skip
            if begin < last:
                others(x, weight, own, own_at, z, at, pair, place, step, columns,
                       (begin - first) * (dim + 1) * width, begin, last, sums,
                       acc_at)  # fmt: skip

    return sweep_tile


def _make_table(dim: int):
    """1 + <x_i, x_j>^2 of a tile, one loop without calls: see `_headsums.absorb_blocks`."""

    @njit(error_model="numpy")
    @variant(dim)
    def tile_table(x, n, own, low, high, first, last, pair, pair_at, step):
        """Half of it for pairs within two blocks, which come twice; 0 for padding."""
        width = lanes(x)
        one = splat(x.dtype.type(1.0))
        half = splat(x.dtype.type(0.5))
        zero = splat(x.dtype.type(0.0))
        for block in range(low, high):
            start = block * width
            both = block // 2 * 2 * width  # first token of the two blocks
            place = pair_at + block * step
            for j in range(max(first, both), last, 4):
                c0 = zero
                c1 = zero
                c2 = zero
                c3 = zero
                for k in range(dim):
                    xk = load(own, start * dim + k * width)
                    c0 = fma(xk, splat(x[j, k]), c0)
                    c1 = fma(xk, splat(x[j + 1, k]), c1)
                    c2 = fma(xk, splat(x[j + 2, k]), c2)
                    c3 = fma(xk, splat(x[j + 3, k]), c3)
                at = place + j * width
                store(pair, at, fma(c0, c0, one))
                store(pair, at + width, fma(c1, c1, one))
                store(pair, at + 2 * width, fma(c2, c2, one))
                store(pair, at + 3 * width, fma(c3, c3, one))
            if start >= first:
                for j in range(both, min(both + 2 * width, last)):
                    store(pair, place + j * width, load(pair, place + j * width) * half)
            for j in range(max(first, n), last):
                store(pair, place + j * width, zero)

    return tile_table


def make_symmetric(dim: int):
    """The sums for d = `dim`."""
    tile_table = _make_table(dim)
    plain_tile, ito_tile = _make_tile(dim, False), _make_tile(dim, True)

    @njit(error_model="numpy")
    @variant(dim)
    def symmetric_sums(
        x, n, weight, score, head, heads, strip, strips, ito, tops, sums, room
    ):  # fmt: skip
        """(m, S, q) of the heads head <= h < head + heads for all blocks, one strip of the pairs.

        sums : flat, (heads, strips, blocks, d + 2) vectors, of which this strip is written; the q
        are half of what they are to be
        tops : (heads,), set by the first strip: the largest |D^T x_i|^2, or inf for a head whose
            scores need a shift and whose sums are not computed
        room : `room_of_sums` vectors
        """
        rows = x.shape[0]
        width = lanes(x)
        blocks = rows // width
        size = blocks * (dim + 2) * width
        chunk = chunk_tokens(n, dim, width)
        step = chunk * width
        # Pieces of the room.
        own = room[: blocks * dim * width]
        at = blocks * dim * width
        squares = room[at : at + blocks * width]
        at += blocks * width
        largest = room[at : at + width]
        total = room[at + width : at + 2 * width]
        at += 2 * width
        columns = room[at : at + step * (dim + 1)]
        at += step * (dim + 1)
        pair = room[at : at + (min(blocks, _TILE_BLOCKS) * step if ito else 0)]
        at += min(blocks, _TILE_BLOCKS) * step
        z = room[at : at + heads * blocks * dim * width]
        good = np.empty(heads, np.bool_)
        clear_vectors(columns, 0, chunk * (dim + 1))
        for block in range(blocks):
            by_lane(x, n, block * width, own, block * dim * width)
        for h in range(heads):
            block_scores(score, head + h, own, 0, z, h * blocks * dim * width, dim, blocks, squares,
                         0)  # fmt: skip
            most = load(squares, 0)
            all_of = most
            for block in range(1, blocks):
                square = load(squares, block * width)
                most = maximum(square, most)
                all_of = all_of + square
            store(largest, 0, most)
            store(total, 0, all_of)
            good[h] = is_moderate(largest, total, x)
            if strip == 0:
                tops[h] = np.max(largest) if good[h] else np.inf
            clear_vectors(sums, (h * strips + strip) * size, blocks * (dim + 2))
        chunks = (rows + chunk - 1) // chunk
        for c in range(chunks):
            # 0 1 .. 1 0 0 1 .. from the last chunk, which meets most blocks, to the first.
            turn = (chunks - 1 - c) % (2 * strips)
            if min(turn, 2 * strips - 1 - turn) != strip:
                continue
            first = c * chunk
            last = min(first + chunk, rows)
            for low in range(0, last // width, _TILE_BLOCKS):
                high = min(low + _TILE_BLOCKS, last // width)
                pair_at = -low * step - first * width
                if ito:
                    tile_table(x, n, own, low, high, first, last, pair, pair_at, step)
                for h in range(heads):
                    if not good[h]:
                        continue
                    at = h * blocks * dim * width
                    sums_at = (h * strips + strip) * size
                    if ito:
                        ito_tile(x, weight, own, z, at, pair, pair_at, step, low, high, first,
                                 last, columns, sums, sums_at)  # fmt: skip
                    else:
                        plain_tile(x, weight, own, z, at, pair, pair_at, step, low, high, first,
                                   last, columns, sums, sums_at)  # fmt: skip
                    _fold_columns(columns, dim, (last - first) // width, sums,
                                  sums_at + first * (dim + 2))  # fmt: skip

    return symmetric_sums


def make_absorb(dim: int):
    """What follows from the sums of some heads, block by block, for d = `dim`."""

    @njit(error_model="numpy")
    @variant(dim)
    def absorb_heads(
        x, n, score, drift, noise, sigma2, head, heads, strips, low, high, tops, sums, state
    ):  # fmt: skip
        """Add the sums of the heads head <= h < head + heads to the running sums of some blocks."""
        rows = x.shape[0]
        width = lanes(x)
        ito = sigma2.shape[0] > 0
        block_size = (dim + 2) * width
        size = rows // width * block_size
        two = splat(x.dtype.type(2.0))
        zero = splat(x.dtype.type(0.0))
        all_moderate = True
        for h in range(heads):
            all_moderate = all_moderate and tops[h] < np.inf
        table = vectors(0 if all_moderate or not ito else rows, x)
        count = high - low
        own = vectors(count * dim, x)
        z = vectors(count * dim, x)
        z_low = vectors(dim, x)
        acc = vectors(dim + 2, x)
        squares = vectors(count, x)
        shift = vectors(1, x)
        factors = vectors(2, x)
        state_at = low * (2 * dim + EXTRA) * width
        for block in range(low, high):
            by_lane(x, n, block * width, own, (block - low) * dim * width)
        # Heads outside: the sums of one head lie together.
        for h in range(heads):
            store(shift, 0, zero)
            if tops[h] < np.inf:
                # Only the largest of all tokens counts in the end: it stands for every token here.
                for block in range(count):
                    store(squares, block * width, splat(x.dtype.type(tops[h])))
                # The sums of all strips go to those of the first.
                here = h * strips * size + low * block_size
                for row in range(count * (dim + 2) if strips > 1 else 0):
                    place = here + row * width
                    total = load(sums, place)
                    for strip in range(1, strips):
                        total = total + load(sums, place + strip * size)
                    store(sums, place, total)
                for block in range(count):
                    row = here + block * block_size + (dim + 1) * width
                    store(sums, row, load(sums, row) * two)
                absorb_blocks(
                    head + h, head + h == 0, False, dim, count, own, 0, sums, here, shift, squares,
                    0, score, drift, noise, sigma2, state, state_at, factors,
                )  # fmt: skip
                continue
            block_scores(score, head + h, own, 0, z, 0, dim, count, squares, 0)
            for block in range(count):
                own_at = block * dim * width
                if ito:
                    pair_rows(x, n, dim, own, own_at, 0, rows, table, 0)
                shifted_sums(
                    x, n, score, head + h, own, own_at, z, z_low, table, ito, z, False, 0, rows,
                    acc, shift,
                )  # fmt: skip
                absorb_blocks(
                    head + h, head + h == 0, True, dim, 1, own, own_at, acc, 0, shift, squares,
                    block * width, score, drift, noise, sigma2, state,
                    state_at + block * (2 * dim + EXTRA) * width, factors,
                )  # fmt: skip

    return absorb_heads
