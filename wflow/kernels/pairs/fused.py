"""Velocities and energy terms of all paths, in one parallel pass over all pairs of tokens.

Nothing of size heads x n x n exists. With each direction computed apart, a task is one or two
blocks of tokens of one path, which goes through all heads with its running sums in cache: memory is
O(paths n d + heads d) and the workspace of a task. With tied heads, a task is some heads of one
path, or some strips of its pairs; the sums of up to 64 MB of heads are kept until all strips are
done.
Tasks are independent and the order of summation is fixed: threads do not change a bit.
"""

import functools
import threading
from typing import NamedTuple

import numpy as np
from numba import prange, types
from numba.extending import overload
from numpy.typing import NDArray

from wflow._core.compiler.functions import (
    INTERNAL,
    constant,
    constant_type,
    internal,
    kernel,
    loop_body,
    value_of,
)
from wflow._core.compiler.sweeps import SUMS, sweep
from wflow._core.compiler.tasks import address, arrays, call
from wflow._core.compiler.vectors import (
    align_stack,
    fma,
    lane_sums,
    lanes,
    load,
    maximum,
    splat,
    store,
)
from wflow._core.threads import threads_for
from wflow.kernels.pairs.headsums import (
    EXTRA,
    absorb_blocks,
    clear,
    finish_tokens,
    of_path,
    path_terms,
    prepared,
    type_of_heads,
)
from wflow.kernels.pairs.sweep import (
    CHUNK,
    DIMENSIONS,
    DIRECT_BOUND_DOUBLE,
    DIRECT_BOUND_SINGLE,
    TILE,
    block_scores,
    by_lane,
    causal_mask,
    clear_vectors,
    direct_bound,
    images,
    is_moderate,
    masked_sums,
    one_way,
    pair_rows,
    shifted_sums,
    vectors,
)

# Workspace kept from one call to the next
# ----------------------------------------
# A block of memory that is allocated and freed at every step consists of fresh pages each time,
# which the operating system provides slowly.

_ALIGNMENT = 64  # bytes: a vector that straddles two cache lines costs two accesses
_KEPT_BYTES = 1 << 27  # unless the caller says otherwise


class _Kept(threading.local):
    def __init__(self) -> None:
        self.spaces: dict[np.dtype, NDArray[np.floating]] = {}


_kept = _Kept()


def scratch(vectors: int, dtype: np.dtype, kept: int = _KEPT_BYTES) -> NDArray[np.floating]:
    """Return a flat array of at least so many aligned vectors of 64 bytes, with any contents.

    The next call in the same thread may return the same memory, if it is at most `kept` bytes.
    """
    space = _kept.spaces.get(dtype)
    if space is not None and space.nbytes >= vectors * _ALIGNMENT:
        return space
    fresh = np.empty((vectors + 1) * _ALIGNMENT, np.uint8)
    first = -fresh.ctypes.data % _ALIGNMENT
    space = fresh[first : first + vectors * _ALIGNMENT].view(dtype)
    if space.nbytes <= kept:
        _kept.spaces[dtype] = space
    return space


# Each direction of a pair computed separately
# --------------------------------------------
# These loops serve general heads, causal attention, and dimensions without unrolled loops. Cost of
# an ordered pair, in multiply-adds (double precision): d for the score, 13 for the exponential,
# d + 2 for the sums: 21 at d = 3; d + 2 more for r.


@internal
def table_tokens(n, width):
    """Return how many tokens j a table of 1 + <x_i, x_j>^2 has: it fits in the second cache."""
    return min(CHUNK, max(n + TILE, 2 * width))


def space_of_rows(d: int, n: int, heads: int, width: int) -> int:
    """Return the number of vectors of workspace that one worker needs."""
    fixed = 2 * d + 3 + width + 2 * (2 * d + EXTRA)
    return fixed + 2 * heads * (3 * d + 1 + SUMS) + 2 * table_tokens.py_func(n, width)


# Heads whose scores need a shift are rare, and their code is a fifth of all that is compiled: the
# loops exist with it and without, and callers take those without where the matrices are small.


def _absorb_shifted(
    _shifts, h, x, n, own, own_at, diagonal, causal, start, stop, square, square_at, arrays, state,
    state_at,
):  # fmt: skip
    """Add the sums of head h for one block, with scores of any size, to the running sums."""
    align_stack()
    score, _, _, noise, sigma2 = arrays
    rows, d = x.shape
    ito = sigma2.shape[0] > 0
    table = vectors(rows if ito else 0, x)
    z_high = vectors(d, x)
    z_low = vectors(d, x)
    noisy = vectors(d, x)
    acc = vectors(d + SUMS, x)
    shift = vectors(1, x)
    factors = vectors(2, x)
    if ito:
        images(noise, h, own, own_at, noisy, 0, d, 1)
        pair_rows(x, n, d, own, own_at, 0, rows, table, 0)
    shifted_sums(
        x, n, score, h, own, own_at, z_high, z_low, noisy, table, ito, diagonal, causal, start,
        stop, acc, shift,
    )  # fmt: skip
    absorb_blocks(
        h, h == 0, True, True, d, 1, own, own_at, acc, 0, shift, square, square_at, arrays, state,
        state_at, factors,
    )  # fmt: skip


def _absorb_none(
    _shifts, h, x, n, own, own_at, diagonal, causal, start, stop, square, square_at, arrays, state,
    state_at,
):  # fmt: skip
    """Do nothing: replaces `_absorb_shifted` where no head needs it."""


def _absorb_other(
    shifts, h, x, n, own, own_at, diagonal, causal, start, stop, square, square_at, arrays, state,
    state_at,
):  # fmt: skip
    """Call one of the two functions above, as the `constant` shifts says."""
    raise NotImplementedError


@overload(_absorb_other, jit_options=INTERNAL, strict=False)  # type: ignore[arg-type]
def _absorb_if_shifted(shifts, *_):
    return _absorb_shifted if shifts == constant_type(1) else _absorb_none


@internal
def _one_way_loop(
    dim, x, weight, z, at, noisy, pair, pair_at, pair_step, ito, blocks, first, stop, acc, acc_at
):  # fmt: skip
    """Call `one_way` in a form that a task may call; for dim = 0 with the sums in memory."""
    align_stack()
    if value_of(dim) > 0:
        one_way(dim, x, weight, z, at, noisy, pair, pair_at, pair_step, ito, blocks, first, stop,
                acc, acc_at)  # fmt: skip
        return
    d = x.shape[1]
    width = lanes(z)
    for block in range(blocks):
        masked_sums(
            x, weight, z, at + block * d * width, noisy, pair, pair_at + block * pair_step, ito, z,
            -1, first, stop, acc, acc_at + block * (d + SUMS) * width,
        )  # fmt: skip


@loop_body
def _some_rows(
    dim, shifts, task, worker, units, odd, space, tokens, n, weight, heads_of_paths, flow, sign,
    causal, velocity, part, scratch,
):  # fmt: skip
    """Process all heads for one or two blocks of tokens of one path, for d = `dim`, or any d if 0.

    dim, shifts : `constant`s; without shifts (0) no head needs one

    velocity (paths, n, d) and part (paths, blocks, N_TERMS) receive the velocities and the
    shares of the terms; a worker has `space` elements, `space_of_rows` vectors, of `scratch`.
    """
    any_size = value_of(shifts) == 1
    p = task // units
    unit = task - p * units
    blocks = 1 if unit == 0 and odd == 1 else 2
    x = tokens[p]
    arrays = of_path(heads_of_paths, p)
    v = velocity[p]
    score, _, _, noise, sigma2 = arrays
    rows = x.shape[0]
    d = value_of(dim) if value_of(dim) > 0 else x.shape[1]
    heads = score.shape[0]
    width = lanes(x)
    start = (0 if unit == 0 else 2 * unit - odd) * width
    zero = splat(x.dtype.type(0.0))
    ito = sigma2.shape[0] > 0
    free = start if causal else rows  # tokens that all tokens of the blocks attend to
    step = table_tokens(n, width) * width
    # The pieces of the workspace follow, the largest last.
    mine = scratch[worker * space : (worker + 1) * space]
    own = mine[: blocks * d * width]
    at = blocks * d * width
    shift = mine[at : at + width]
    at += width
    factors = mine[at : at + 2 * width]
    at += 2 * width
    diagonal = mine[at : at + width * width]
    at += width * width
    state = mine[at : at + blocks * (2 * d + EXTRA) * width]
    at += blocks * (2 * d + EXTRA) * width
    squares = mine[at : at + heads * blocks * width]
    at += heads * blocks * width
    z = mine[at : at + heads * blocks * d * width]
    at += heads * blocks * d * width
    noisy = mine[at : at + heads * blocks * d * width]
    at += heads * blocks * d * width
    acc = mine[at : at + heads * blocks * (d + SUMS) * width]
    at += heads * blocks * (d + SUMS) * width
    pair = mine[at : at + (blocks * step if ito else 0)]
    moderate = np.empty(heads, np.bool_)
    limit = direct_bound(x)
    clear_vectors(acc, 0, heads * blocks * (d + SUMS))
    store(shift, 0, zero)
    causal_mask(diagonal)
    for block in range(blocks):
        by_lane(x, n, start + block * width, own, block * d * width)
    for h in range(heads):
        at = h * blocks * width
        block_scores(score, h, own, 0, z, at * d, d, blocks, squares, at)
        if ito:
            images(noise, h, own, 0, noisy, at * d, d, blocks)
        moderate[h] = True
        for lane in range(at, at + blocks * width):
            moderate[h] = moderate[h] and squares[lane] <= limit * limit  # false for NaN

    for first in range(0, free, CHUNK):
        last = min(first + CHUNK, free)
        if ito:
            for block in range(blocks):
                pair_rows(x, n, d, own, block * d * width, first, last, pair,
                           block * step - first * width)  # fmt: skip
        for h in range(heads):
            if moderate[h] or not any_size:
                place = h * blocks
                _one_way_loop(
                    dim, x, weight, z, place * d * width, noisy, pair, -first * width, step, ito,
                    blocks, first, last, acc, place * (d + SUMS) * width,
                )  # fmt: skip
    if causal:
        for block in range(blocks):
            begin = start + block * width
            last = min(begin + width, rows)
            if ito:
                pair_rows(x, n, d, own, block * d * width, start, last, pair, -start * width)
            for h in range(heads):
                place = h * blocks + block
                if moderate[h] or not any_size:
                    masked_sums(x, weight, z, place * d * width, noisy, pair, -start * width, ito,
                                diagonal, begin, start, last, acc,
                                place * (d + SUMS) * width)  # fmt: skip

    clear(state, d, blocks)
    for h in range(heads):
        if moderate[h] or not any_size:
            absorb_blocks(
                h, h == 0, any_size, False, d, blocks, own, 0, acc, h * blocks * (d + SUMS) * width,
                shift, squares, h * blocks * width, arrays, state, 0, factors,
            )  # fmt: skip
            continue
        for block in range(blocks):
            begin = start + block * width
            _absorb_other(
                shifts, h, x, n, own, block * d * width, diagonal, causal, begin,
                min(begin + width, rows) if causal else rows, squares,
                (h * blocks + block) * width, arrays, state, block * (2 * d + EXTRA) * width,
            )  # fmt: skip
    for block in range(blocks):
        finish_tokens(
            x, n, d, start + block * width, float(heads), flow, sign, state,
            block * (2 * d + EXTRA) * width, v, part[p, start // width + block],
        )  # fmt: skip


# Each kernel value computed once: D = D^T
# ----------------------------------------
# U_hij = U_hji, so a value serves the sums of token i, which sit in the lanes of a block, and those
# of token j, whose partial sums over lanes are folded at the end of a tile. Cost of a pair of
# tokens, both directions, in multiply-adds (double precision): d for the score, 13 for the
# exponential, 2 (d + 1) for the sums, 1 for the Itô sum: 25 at d = 3, against 42 when each
# direction is computed.
#
# A tile is a chunk of tokens j and up to 32 blocks of tokens i no later than the chunk; its table
# of 1 + <x_i, x_j>^2 serves all heads of the task. Chunks are divided among strips, which are
# summed apart: their number depends on n alone, so that threads do not change a bit. Tokens j per
# chunk: their partial sums, 4 vectors each at d = 3, stay in the nearest cache.

_CHUNK_BYTES = 20480
# Blocks of tokens i per tile: its table, 64 bytes a block and token j, stays in the second cache.
_TILE_BLOCKS = 32
_WITHOUT, _WITH, _TWICE = map(constant, (0, 1, 2))


def strips_for(n: int) -> int:
    """Return the number of parts of the pairs of one path, so that threads can share a path."""
    if n < 512:
        return 1
    if n < 2048:
        return 2
    return 4 if n < 8192 else 8


@internal
def chunk_tokens(n, d, width):
    """Return the number of tokens per chunk: blocks in pairs, chunks of nearly equal size."""
    most = max(_CHUNK_BYTES // (64 * (d + 1)) // (2 * width), 1)
    pairs = (n + 2 * width - 1) // (2 * width)
    chunks = (pairs + most - 1) // most
    return (pairs + chunks - 1) // chunks * 2 * width


def space_of_sums(d: int, n: int, heads: int, width: int) -> int:
    """Return the number of vectors of workspace that the sums of so many heads need per worker."""
    blocks = (n + width - 1) // width
    chunk = chunk_tokens.py_func(n, d, width)
    table = min(blocks, _TILE_BLOCKS) * chunk
    return blocks * (d + 1) + 2 + chunk * (d + 1) + table + 2 * heads * blocks * d


@internal
def _fold_columns(columns, d, blocks, sums, sums_at):
    """Add the sums of some blocks of tokens j, summed over lanes of `columns`; clear `columns`."""
    width = lanes(columns)
    zero = splat(columns.dtype.type(0.0))
    row = (d + 1) * width
    for block in range(blocks):
        for term in range(d + 1):
            first = block * width * row + term * width
            at = sums_at + (block * (d + SUMS) + term) * width
            store(sums, at, load(sums, at) + lane_sums(columns, first, row))
            for k in range(width):
                store(columns, first + k * row, zero)


@internal
def _sweep_tile(
    dim, ito, within, x, weight, own, z, z_at, noisy, pair, pair_at, step, low, high, first, last,
    columns, sums, sums_at,
):  # fmt: skip
    """Sum the blocks low <= block < high of tokens i with the tokens first <= j < last, one head.

    dim, ito, within : `constant`s; the latter two go to `sweep`: within two blocks a pair is met
        twice
    """
    d = value_of(dim)
    width = lanes(x)
    for block in range(low, high, 2):
        start = block * width
        begin = first
        own_at = start * d
        at = z_at + own_at
        acc_at = sums_at + block * (d + SUMS) * width
        place = pair_at + block * step
        if start >= first and high - block > 1:
            # Within two blocks, each direction is computed apart: more arithmetic, but one loop for
            # all.
            begin = start + 2 * width
            sweep(dim, 2, False, within, False, True, x, weight, z, 0, z, at, noisy, pair, place,
                  step, z, 0, start, begin, sums, acc_at)  # fmt: skip
        elif start >= first:
            begin = last
            sweep(dim, 1, False, within, False, True, x, weight, z, 0, z, at, noisy, pair, place, 0,
                  z, 0, start, last, sums, acc_at)  # fmt: skip
        if begin < last:
            sweep(dim, 2, True, ito, False, True, x, weight, own, own_at, z, at, noisy, pair, place,
                  step, columns, (begin - first) * (d + 1) * width, begin, last, sums,
                  acc_at)  # fmt: skip


@internal
def _tile_table(dim, x, n, own, low, high, first, last, pair, pair_at, step):
    """Write 1 + <x_i, x_j>^2 of a tile: half for pairs within two blocks, which come twice.

    Padding gets 0. It is one loop without calls: see `headsums.absorb_blocks`.
    """
    d = value_of(dim)
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
            for k in range(d):
                xk = load(own, start * d + k * width)
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


@loop_body
def _some_sums(
    dim, shifts, task, worker, groups, share, _parts, strips, per_path, space, p0, first_head,
    batch_heads, x_of_paths, tokens, weight, heads_of_paths, _flow, _sign, all_tops, all_sums,
    _all_states, _v, _part, scratch,
):  # fmt: skip
    """Compute (m, S, q, r) of some heads for all blocks of a path and one strip of its pairs.

    dim, shifts : `constant`s; without shifts (0) no head is left out

    The tokens and scores are those of all paths; `all_sums` and `all_tops` those of the paths
    from p0 and the heads from first_head on, `batch_heads` of them.

    all_sums : flat, `per_path` elements a path: (heads, strips, blocks, d + SUMS) vectors, of
        which this strip of these heads is written; q and r are half of what they are to be
    all_tops : (paths, heads), set by the first strip: the largest |D^T x_i|^2, or inf for a
        head whose scores need a shift and whose sums are not computed
    scratch : a worker has `space` elements of it, `space_of_sums` vectors
    """
    d = value_of(dim)
    any_size = value_of(shifts) == 1
    unit = task // strips
    strip = task - unit * strips
    if unit % 2 == 1:  # a worker that had a long strip has a short one
        strip = strips - 1 - strip
    p = unit // groups
    h0 = (unit - p * groups) * share
    heads = min(share, batch_heads - h0)
    head = first_head + h0
    n = x_of_paths.shape[1]
    x = tokens[p0 + p]
    score, noise = heads_of_paths.score[p0 + p], heads_of_paths.noise[p0 + p]
    ito = heads_of_paths.sigma2.shape[1] > 0
    tops = all_tops[p, h0 : h0 + heads]
    rows = x.shape[0]
    width = lanes(x)
    blocks = rows // width
    size = blocks * (d + SUMS) * width
    chunk = chunk_tokens(n, d, width)
    step = chunk * width
    # The pieces of the workspace follow.
    sums = all_sums[p * per_path + h0 * strips * size : (p + 1) * per_path]
    mine = scratch[worker * space : (worker + 1) * space]
    own = mine[: blocks * d * width]
    at = blocks * d * width
    squares = mine[at : at + blocks * width]
    at += blocks * width
    largest = mine[at : at + width]
    total = mine[at + width : at + 2 * width]
    at += 2 * width
    columns = mine[at : at + step * (d + 1)]
    at += step * (d + 1)
    pair = mine[at : at + (min(blocks, _TILE_BLOCKS) * step if ito else 0)]
    at += min(blocks, _TILE_BLOCKS) * step
    z = mine[at : at + heads * blocks * d * width]
    at += heads * blocks * d * width
    noisy = mine[at : at + heads * blocks * d * width]
    good = np.empty(heads, np.bool_)
    clear_vectors(columns, 0, chunk * (d + 1))
    for block in range(blocks):
        by_lane(x, n, block * width, own, block * d * width)
    for h in range(heads):
        block_scores(score, head + h, own, 0, z, h * blocks * d * width, d, blocks, squares,
                     0)  # fmt: skip
        if ito:
            images(noise, head + h, own, 0, noisy, h * blocks * d * width, d, blocks)
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
            top = largest[0] if good[h] else np.inf
            for lane in range(1, width):
                top = max(top, largest[lane])
            tops[h] = top
        clear_vectors(sums, (h * strips + strip) * size, blocks * (d + SUMS))
    chunks = (rows + chunk - 1) // chunk
    # The loop over tiles of tokens i is outside: their data stay in the second cache while the
    # chunks pass. Every sum receives its shares in the same order as with chunks outside.
    for low in range(0, blocks, _TILE_BLOCKS):
        for c in range(low * width // chunk, chunks):
            # Strips are assigned in the order 0 1 .. 1 0 0 1 .. from the last chunk, which meets
            # most blocks, to the first.
            turn = (chunks - 1 - c) % (2 * strips)
            if min(turn, 2 * strips - 1 - turn) != strip:
                continue
            first = c * chunk
            last = min(first + chunk, rows)
            high = min(low + _TILE_BLOCKS, last // width)
            pair_at = -low * step - first * width
            if ito:
                _tile_table(dim, x, n, own, low, high, first, last, pair, pair_at, step)
            for h in range(heads):
                if any_size and not good[h]:
                    continue
                at = h * blocks * d * width
                sums_at = (h * strips + strip) * size
                if ito:
                    _sweep_tile(dim, _WITH, _TWICE, x, weight, own, z, at, noisy, pair, pair_at,
                                step, low, high, first, last, columns, sums, sums_at)  # fmt: skip
                else:
                    _sweep_tile(dim, _WITHOUT, _WITHOUT, x, weight, own, z, at, noisy, pair,
                                pair_at, step, low, high, first, last, columns, sums,
                                sums_at)  # fmt: skip
                _fold_columns(columns, d, (last - first) // width, sums,
                              sums_at + first * (d + SUMS))  # fmt: skip


@loop_body
def _some_blocks(
    dim, shifts, task, _worker, _groups, _share, parts, strips, per_path, _space, p0, head, heads,
    x_of_paths, tokens, _weight, heads_of_paths, flow, sign, all_tops, all_sums, all_states, v,
    part, _scratch,
):  # fmt: skip
    """Add the sums of the heads head <= h < head + heads to the running sums of some blocks.

    A task after `_some_sums`, of the same arguments.
    The last heads complete v (paths, n, d) and part (paths, blocks, N_TERMS).
    """
    d = value_of(dim)
    any_size = value_of(shifts) == 1
    n = x_of_paths.shape[1]
    p = task // parts
    x = tokens[p0 + p]
    arrays = of_path(heads_of_paths, p0 + p)
    tops = all_tops[p]
    sums = all_sums[p * per_path : (p + 1) * per_path]
    rows = x.shape[0]
    width = lanes(x)
    block_size = (d + SUMS) * width
    blocks = rows // width
    size = blocks * block_size
    low = (task - p * parts) * blocks // parts
    high = (task - p * parts + 1) * blocks // parts
    of_state = (2 * d + EXTRA) * width
    state = all_states[p * blocks * of_state : (p + 1) * blocks * of_state]
    state_at = low * of_state
    two = splat(x.dtype.type(2.0))
    zero = splat(x.dtype.type(0.0))
    count = high - low
    mine = vectors((2 if any_size else 1) * count * d + count + 3, x)
    shift, factors = mine[:width], mine[width : 3 * width]
    at = (3 + count) * width
    squares = mine[3 * width : at]
    own = mine[at : at + count * d * width]
    z = mine[at + count * d * width :]
    store(shift, 0, zero)
    if head == 0:
        clear(state[low * of_state : high * of_state], d, count)
    for block in range(low, high):
        by_lane(x, n, block * width, own, (block - low) * d * width)
    # The loop over heads is outside: the sums of one head lie together.
    for h in range(heads):
        if tops[h] < np.inf or not any_size:
            # Only the largest of all tokens counts in the end, so it is taken for every token.
            for block in range(count):
                store(squares, block * width, splat(x.dtype.type(tops[h])))
            # The sums of all strips are added to those of the first.
            here = h * strips * size + low * block_size
            for row in range(count * (d + SUMS) if strips > 1 else 0):
                place = here + row * width
                total = load(sums, place)
                for strip in range(1, strips):
                    total = total + load(sums, place + strip * size)
                store(sums, place, total)
            for block in range(count):
                for more in range(1, SUMS):
                    row = here + block * block_size + (d + more) * width
                    store(sums, row, load(sums, row) * two)
            absorb_blocks(
                head + h, head + h == 0, any_size, False, d, count, own, 0, sums, here, shift,
                squares, 0, arrays, state, state_at, factors,
            )  # fmt: skip
            continue
        block_scores(arrays.score, head + h, own, 0, z, 0, d, count, squares, 0)
        for block in range(count):
            _absorb_other(
                shifts, head + h, x, n, own, block * d * width, z, False, 0, rows, squares,
                block * width, arrays, state, state_at + block * of_state,
            )  # fmt: skip
    all_heads = len(arrays.score)
    if head + heads == all_heads:
        for block in range(low, high):
            finish_tokens(
                x_of_paths[p0 + p], n, d, block * width, float(all_heads), flow, sign, state,
                block * of_state, v[p0 + p], part[p0 + p, block],
            )  # fmt: skip


# For tied heads: bytes of sums per worker that stay in its second cache, and of one path at most;
# heads of a task, which share the table of pairs; blocks of a task that follows; and the number of
# tokens up to which the sums per token are worth their memory.
_NEAR_BYTES, _HEAD_BYTES, _TASK_HEADS, _TASK_BLOCKS = 1 << 18, 1 << 26, 16, 8
SYMMETRIC_TOKENS = 200_000
# A thread with fewer pairs, about 0.05 ms of work, takes longer to wake than it saves.
PAIRS_OF_THREAD = 100_000
_FEW_ENTRIES = 4096  # of matrices, whose sum of squares is one short call


class Plan(NamedTuple):
    """Division of a call: workers, vectors of workspace of each, and for tied heads the strips of
    the pairs, the heads whose sums are kept together, and the paths of a set."""

    workers: int
    space: int
    strips: int
    batch: int
    together: int


@functools.lru_cache(maxsize=64)
def _plan(
    paths: int, n: int, d: int, heads: int, itemsize: int, workers: int, both: bool
) -> tuple[Plan, int]:
    """Return the plan of a call, and the vectors of workspace for all of it.

    Workers, batches and sets do not change a bit; the strips do, and depend on n alone.
    """
    width = 64 // itemsize
    if not both:
        space = space_of_rows(d, n, heads, width)
        return Plan(workers, space, 1, 1, 1), workers * space
    blocks = (n + width - 1) // width
    strips = strips_for(n)
    per_head = strips * blocks * (d + SUMS)
    near = workers * _NEAR_BYTES // 64 // per_head
    most = max(1, min(heads, max(near, _TASK_HEADS), _HEAD_BYTES // 64 // per_head))
    batch = -(-heads // -(-heads // most)) if heads else 1  # of nearly the same size
    together = max(1, min(paths, near // batch))
    space = space_of_sums(d, n, min(batch, _TASK_HEADS), width)
    kept = together * (batch * per_head + blocks * (2 * d + EXTRA))
    return Plan(workers, space, strips, batch, together), workers * space + kept


@internal
def heads_of_task(paths, heads, strips, workers):
    """Return the number of heads per task of tied heads: workers get equally many tasks.

    Strips are not quite equal: where one path has one for each worker, two groups of heads make up
    for it. The table of pairs, which belongs to a task, costs a fifth of the sums of a head.
    """
    groups = (heads + _TASK_HEADS - 1) // _TASK_HEADS
    if paths * groups == 1 and 1 < strips <= workers:
        groups = min(2, heads)
    while True:
        share = (heads + groups - 1) // groups
        tasks = paths * ((heads + share - 1) // share) * strips
        if share == 1 or tasks % workers == 0 or tasks >= 8 * workers:
            return share
        groups += 1


@internal
def _padded_paths(x, unit):
    """Apply `padded` to tokens (paths, n, d)."""
    paths, n, d = x.shape
    rows = (n + unit - 1) // unit * unit
    tokens = np.empty((paths, rows, d), x.dtype)
    weight = np.empty(rows, x.dtype)
    for i in range(rows):
        weight[i] = 1.0 if i < n else 0.0
    for p in range(paths):
        for i in range(rows):
            for k in range(d):
                tokens[p, i, k] = x[p, i, k] if i < n else 0.0
    return tokens, weight


@kernel(parallel=True)
def _one_way(dim, shifts, x, arrays, flow, sign, causal, plan, v, part, scratch, tasks):
    """Compute each direction of a pair apart, for d = `dim`, or for any d if 0.

    dim, shifts : `constant`s; tasks : the addresses of the tasks for these
    """
    paths, n, _ = x.shape
    width = lanes(x)
    tokens, weight = _padded_paths(x, TILE)
    blocks = part.shape[1]
    # A single block, if there is an odd one, comes first, and causal work grows with the token:
    # tasks assigned in turn give all workers tasks of all sizes.
    odd = blocks % 2
    units = (blocks + 1) // 2
    space = plan.space * width
    workers = plan.workers
    for worker in prange(workers):
        for task in range(worker, paths * units, workers):
            call(tasks[0], (
                dim, shifts, np.intp(task), np.intp(worker), units, odd, space, tokens, n, weight,
                arrays, flow, sign, causal, v, part, scratch,
            ))  # fmt: skip
    return path_terms(part, arrays.score.shape[1], n)


@kernel(parallel=True)
def _both_ways(dim, shifts, x, arrays, flow, sign, causal, plan, v, part, scratch, tasks):
    """Compute the sums of tied symmetric heads, 2 <= d <= 8: a value is used for both tokens."""
    paths, n, d = x.shape
    all_heads = arrays.score.shape[1]
    width = lanes(x)
    tokens, weight = _padded_paths(x, width)
    blocks = part.shape[1]
    parts = (blocks + _TASK_BLOCKS - 1) // _TASK_BLOCKS
    workers, strips, batch, together = plan.workers, plan.strips, plan.batch, plan.together
    per_path = batch * strips * blocks * (d + SUMS) * width
    space = plan.space * width
    sums = scratch[workers * space : workers * space + together * per_path]
    state = scratch[workers * space + together * per_path :]
    tops = np.empty((together, batch))
    for p0 in range(0, paths, together):
        count = min(together, paths - p0)
        for head in range(0, all_heads, batch):
            heads = min(batch, all_heads - head)
            # The division of heads among tasks does not change a bit.
            share = heads_of_task(count, heads, strips, workers)
            groups = (heads + share - 1) // share
            # One loop serves both phases: a second would be compiled, too.
            for phase in range(2):
                size = count * (parts if phase else groups * strips)
                for worker in prange(workers):
                    for task in range(worker, size, workers):
                        call(tasks[phase], (
                            dim, shifts, np.intp(task), np.intp(worker), groups, share, parts,
                            strips, per_path, space, p0, head, heads, x, tokens, weight, arrays,
                            flow, sign, tops, sums, state, v, part, scratch,
                        ))  # fmt: skip
    return path_terms(part, all_heads, n)


@functools.cache
def _tasks(both: bool, d: int, shifts: bool, dtype: np.dtype) -> tuple[int, ...]:
    """Return the addresses of the tasks of `_both_ways` or `_one_way` for tokens of that type."""
    flat, _, cube, _ = arrays(dtype)
    _, tops, terms, _ = arrays(np.float64)
    known = constant_type(d), constant_type(shifts)
    heads = type_of_heads(dtype, paths=True)
    flow = types.intp, types.float64  # and the sign
    if both:
        tied = *known, *(types.intp,) * 11, cube, cube, flat, heads, *flow, tops, flat, flat, cube
        return address(_some_sums, (*tied, terms, flat)), address(
            _some_blocks, (*tied, terms, flat)
        )
    rows = *known, *(types.intp,) * 5, cube, types.intp, flat, heads, *flow, types.boolean, cube
    return (address(_some_rows, (*rows, terms, flat)),)


@np.errstate(all="ignore")  # a sum of squares that overflows is above the bound
def _moderate(score: NDArray[np.floating]) -> bool:
    """Return whether |D^T x| of any unit token needs no shift, by the entries; False for NaN."""
    bound = 0.9 * (DIRECT_BOUND_DOUBLE if score.itemsize == 8 else DIRECT_BOUND_SINGLE)
    if score.size <= _FEW_ENTRIES:
        # |D^T x| <= |D|_F is checked by one short call: the passes below are a twentieth of a small
        # step.
        entries = score.reshape(-1)
        if entries.dot(entries) < bound * bound:
            return True
    return bool(score.shape[-1] * max(score.max(initial=0), -score.min(initial=0)) < bound)


def fused_sums(x, score, value, drift, noise, sigma2, flow, sign, causal, symmetric):
    """Compute velocities and energy terms of all paths in one pass over all pairs.

    Parameters
    ----------
    x : (paths, n, d) unit tokens
    score, value, drift, noise, sigma2 : as in `headsums.Heads`
    flow : SOFTMAX, UNNORMALISED or EFFECTIVE; sign : -1.0 descent, 1.0 ascent; causal : bool
    symmetric : whether value is score and D_h = D_h^T for all, so that U_hij = U_hji

    Returns
    -------
    v : (paths, n, d), terms : (paths, N_TERMS) float64 in the order of TERMS
    """
    x, heads, v, part = prepared(x, score, value, drift, noise, sigma2)
    paths, n, d = x.shape
    own_loops = d in DIMENSIONS
    both = bool(symmetric) and own_loops and n <= SYMMETRIC_TOKENS
    count = score.shape[1]
    shifts = not _moderate(heads.score)
    dim = d if own_loops else 0
    tasks = _tasks(both, dim, shifts, x.dtype)
    with threads_for(paths * count * n * n, PAIRS_OF_THREAD) as threads:
        plan, size = _plan(paths, n, d, count, x.itemsize, threads, both)
        space = scratch(size, x.dtype)
        sums = _both_ways if both else _one_way
        return v, sums(
            constant(dim), constant(shifts), x, heads, flow, sign, causal, plan, v, part, space,
            tasks,
        )  # fmt: skip
