"""Velocities and ledger terms of all paths, in one parallel pass over all pairs of tokens.

Nothing of size heads x n x n exists. With each direction computed apart, a task is one or two
blocks of tokens of one path, which goes through all heads with its running sums in cache: memory is
O(paths n d + heads d) and the room of a task. With tied heads, a task is some heads of one path, or
some strips of its pairs; the sums of up to 64 MB of heads are kept until all strips are done.
Tasks are independent and the order of summation is fixed: threads do not change a bit.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numba.extending import overload

from wflow import _headsums, _oneway, _pairsums, _simd, _sweep, _symmetric
from wflow._headsums import EXTRA, N_TERMS, clear, finish_tokens, path_terms
from wflow._kernel_cache import compiled, variant
from wflow._oneway import make_rows, room_of_rows
from wflow._pairsums import (
    TILE,
    by_lane,
    head_sums,
    padded,
    vectors,
)
from wflow._scratch import scratch
from wflow._simd import lanes
from wflow._sweep import DIMENSIONS
from wflow._symmetric import make_absorb, make_symmetric, room_of_sums, strips_for
from wflow._threads import threads_for

# Tied heads: bytes of sums per worker that stay in its second cache, and of one path at most; heads
# of a task, which share the table of pairs; blocks of a task that follows; up to which n the sums
# per token are worth their room.
_NEAR_BYTES, _HEAD_BYTES, _TASK_HEADS, _TASK_BLOCKS = 1 << 18, 1 << 26, 16, 8
SYMMETRIC_TOKENS, _SYMMETRIC_DIMENSION = 200_000, 6
# A thread that has fewer pairs, some 0.05 ms of work, takes longer to wake than it helps.
PAIRS_OF_THREAD = 100_000


class Plan(NamedTuple):
    """How a call is dealt out: workers, vectors of room of each, and for tied heads the strips of
    the pairs, the heads whose sums are kept together, and the paths of a set."""

    workers: int
    room: int
    strips: int
    batch: int
    together: int


@functools.lru_cache(maxsize=64)
def _plan(
    paths: int, n: int, d: int, heads: int, itemsize: int, workers: int, both: bool
) -> tuple[Plan, int]:
    """The plan of a call, and the vectors of room for all of it.

    Workers, batches and sets do not change a bit; the strips do, and depend on n alone.
    """
    width = 64 // itemsize
    if not both:
        room = room_of_rows(d, n, heads, width)
        return Plan(workers, room, 1, 1, 1), workers * room
    blocks = (n + width - 1) // width
    strips = strips_for(n)
    per_head = strips * blocks * (d + 2)
    near = workers * _NEAR_BYTES // 64 // per_head
    batch = max(1, min(heads, max(near, _TASK_HEADS), _HEAD_BYTES // 64 // per_head))
    together = max(1, min(paths, near // batch))
    room = room_of_sums(d, n, min(batch, _TASK_HEADS), width)
    kept = together * (batch * per_head + blocks * (2 * d + EXTRA))
    return Plan(workers, room, strips, batch, together), workers * room + kept


@njit(error_model="numpy")
def _padded_paths(x, unit):
    """`padded` for (paths, n, d)."""
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


def _make_one_way(dim):
    """Velocities and terms, each direction of a pair computed apart."""
    rows_of_blocks = make_rows(dim)

    @njit(parallel=True, error_model="numpy")
    @variant(dim)
    def one_way(x, score, value, drift, noise, sigma2, flow, sign, causal, plan, scratch, v, part):
        paths, n, _ = x.shape
        width = lanes(x)
        tokens, weight = _padded_paths(x, TILE)
        blocks = (n + width - 1) // width
        # A single block, if there is an odd one, comes first, and causal work grows with the token:
        # dealt out in turn, tasks of all sizes come to all workers.
        odd = blocks % 2
        units = (blocks + 1) // 2
        room = plan.room * width
        for worker in prange(plan.workers):
            mine = scratch[worker * room : (worker + 1) * room]
            for task in range(worker, paths * units, plan.workers):
                p = task // units
                unit = task - p * units
                first = 0 if unit == 0 else 2 * unit - odd
                count = 1 if unit == 0 and odd == 1 else 2
                rows_of_blocks(
                    tokens[p], n, weight, score[p], value[p], drift[p], noise[p], sigma2[p], flow,
                    sign, causal, first * width, count, v[p], part[p, first : first + count], mine,
                )  # fmt: skip

    return one_way


def _make_both_ways(dim):
    """Velocities and terms for tied symmetric heads, each kernel value used for both tokens."""
    symmetric_sums, absorb_heads = make_symmetric(dim), make_absorb(dim)

    @njit(parallel=True, error_model="numpy")
    @variant(dim)
    def both_ways(x, score, drift, noise, sigma2, flow, sign, plan, scratch, v, part):
        paths, n, _ = x.shape
        all_heads = score.shape[1]
        width = lanes(x)
        tokens, weight = _padded_paths(x, width)
        blocks = tokens.shape[1] // width
        parts = (blocks + _TASK_BLOCKS - 1) // _TASK_BLOCKS
        workers, strips, batch, together = plan.workers, plan.strips, plan.batch, plan.together
        size = blocks * (dim + 2) * width
        per_path = batch * strips * size
        row = (2 * dim + EXTRA) * width
        room = plan.room * width
        sums = scratch[workers * room : workers * room + together * per_path]
        state = scratch[workers * room + together * per_path :]
        tops = np.empty((together, batch))
        for p0 in range(0, paths, together):
            count = min(together, paths - p0)
            for head in range(0, all_heads, batch):
                heads = min(batch, all_heads - head)
                # How heads are dealt out to tasks does not change a bit.
                share = max(1, min(count * heads * strips // workers, _TASK_HEADS))
                groups = (heads + share - 1) // share
                tasks = count * groups * strips
                for worker in prange(workers):
                    mine = scratch[worker * room : (worker + 1) * room]
                    for task in range(worker, tasks, workers):
                        p = task // (groups * strips)
                        strip = task % strips
                        low = (task // strips - p * groups) * share
                        some = min(share, heads - low)
                        here = p * per_path + low * strips * size
                        symmetric_sums(
                            tokens[p0 + p], n, weight, score[p0 + p], head + low, some, strip,
                            strips, sigma2.shape[1] > 0, tops[p, low : low + some],
                            sums[here : here + some * strips * size], mine,
                        )  # fmt: skip
                for task in prange(count * parts):
                    p = task // parts
                    q = p0 + p
                    low = (task - p * parts) * blocks // parts
                    high = (task - p * parts + 1) * blocks // parts
                    its = state[p * blocks * row : (p + 1) * blocks * row]
                    if head == 0:
                        clear(its[low * row : high * row], dim, high - low)
                    absorb_heads(
                        tokens[q], n, score[q], drift[q], noise[q], sigma2[q], head, heads, strips,
                        low, high, tops[p], sums[p * per_path : (p + 1) * per_path], its,
                    )  # fmt: skip
                    if head + heads == all_heads:
                        for block in range(low, high):
                            finish_tokens(
                                x[q], n, dim, block * width, float(all_heads), flow, sign, its,
                                block * row, v[q], part[q, block],
                            )  # fmt: skip

    return both_ways


def _pass(
    dim, both, x, score, value, drift, noise, sigma2, flow, sign, causal, plan, room, v, part
):
    """The pass over all pairs for d = `dim` (0: any d), one way or `both`: see `_pass_of`."""
    raise NotImplementedError


@overload(_pass, prefer_literal=True)
def _pass_of(
    dim, both, x, score, value, drift, noise, sigma2, flow, sign, causal, plan, room, v, part
):  # fmt: skip
    """`dim` and `both` are constants of the caller, so that only their code is compiled."""
    make = _make_both_ways if both.literal_value else _make_one_way
    run = make(dim.literal_value)

    @variant(dim.literal_value)
    def tied(
        dim, both, x, score, value, drift, noise, sigma2, flow, sign, causal, plan, room, v, part
    ):  # fmt: skip
        run(x, score, drift, noise, sigma2, flow, sign, plan, room, v, part)

    @variant(dim.literal_value)
    def general(
        dim, both, x, score, value, drift, noise, sigma2, flow, sign, causal, plan, room, v, part
    ):  # fmt: skip
        run(x, score, value, drift, noise, sigma2, flow, sign, causal, plan, room, v, part)

    return tied if both.literal_value else general


@functools.cache
def _sums_of_dimension(dim: int, both: bool):
    """The compiled function for d = `dim` (0: any d), one way or `both`."""

    def entry_points(source, cache):
        @njit(cache=cache, error_model="numpy")
        @variant(dim, "both" if both else "one")
        def sums(x, score, value, drift, noise, sigma2, flow, sign, causal, plan, room):
            _ = source  # part of the cache key
            paths, n, _ = x.shape
            blocks = (n + lanes(x) - 1) // lanes(x)
            v = np.empty_like(x)
            part = np.zeros((paths, blocks, N_TERMS))
            _pass(
                dim, both, x, score, value, drift, noise, sigma2, flow, sign, causal, plan, room,
                v, part,
            )  # fmt: skip
            return v, path_terms(part, score.shape[1], n)

        return sums

    return compiled(entry_points, *_KERNELS)


_KERNELS = (_headsums, _oneway, _pairsums, _simd, _sweep, _symmetric)


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
    paths, n, d = x.shape
    own_loops = d in DIMENSIONS
    both = bool(symmetric) and 2 <= d <= _SYMMETRIC_DIMENSION and n <= SYMMETRIC_TOKENS
    heads = score.shape[1]
    sums = _sums_of_dimension(d if own_loops else 0, both)
    with threads_for(paths * heads * n * n, PAIRS_OF_THREAD) as threads:
        plan, size = _plan(paths, n, d, heads, x.itemsize, threads, both)
        return sums(
            x, score, value, drift, noise, sigma2, flow, sign, causal, plan,
            scratch(size, x.dtype),
        )  # fmt: skip


def _mobility_entry(source, cache):
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
        tokens, weight = padded(x, TILE)
        for b in prange(blocks):
            start = b * width
            own = vectors(d, x)
            z = vectors(d, x)
            z_low = vectors(d, x)
            acc = vectors(d + 2, x)
            none = vectors(0, x)
            shift = vectors(1, x)
            square = vectors(1, x)
            by_lane(tokens, n, start, own, 0)
            for h in range(heads):
                head_sums(
                    tokens, n, weight, score, h, own, 0, z, z_low, none, False, none, False, start,
                    tokens.shape[0], acc, shift, square,
                )  # fmt: skip
                for lane in range(min(width, n - start)):
                    shifts[h, start + lane] = shift[lane]
                    totals[h, start + lane] = acc[lane]
        return shifts, totals

    return head_mobilities


head_mobilities = compiled(_mobility_entry, *_KERNELS)
