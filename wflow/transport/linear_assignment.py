"""Linear assignment: shortest augmenting paths over blocks of columns with lower bounds.

For costs C (n, n) a permutation s with the least sum_i C[i, s(i)], and potentials u, v that prove
it: u_i + v_j <= C_ij for all pairs, with equality for the pairs (i, s(i)), to rounding.

The method is that of Jonker and Volgenant. Given any v, each row takes its column of least
C_ij - v_j, where that is free. Each row that is left starts a search of Dijkstra over the reduced
costs C_ij - u_i - v_j >= 0, whose shortest path to a free column is turned over. The potentials of
the columns that the search has closed fall, no potential rises. A search in a dense matrix reads
whole rows, which is as fast as can be up to a hundred columns or two. Beyond, the columns are in an
order in which near ones follow each other, in blocks of 32, and for every row and block a lower
bound of C_ij - v_j is kept, which stays one when v falls. The search reads a block of a row only
when it has come as far as its bound: in clouds of tokens two to ten blocks, and none whose columns
are all closed. Cost: n^2 to begin with; then four vectors for a block that is read, and n / 256 to
find the next block of a row.

A start from the potentials and the permutation of a similar problem (the snapshot before) lowers
the potentials by

    v_j <- min(v_j, min_i C_ij - u_i),   u_i = C_{i, s(i)} - v_{s(i)},

which makes pairs of the old permutation equalities again as far as it is still optimal; rows whose
pair is one keep it. Any start leads to an optimal permutation; where several are optimal, not
always to the same one. Where tokens have moved by more than their spacing since that problem, most
rows are left, and the problem is solved as if it were the first.

Where columns lie in tight clusters, nearly every row has its least cost in a cluster that is full
already, and each search goes through whole clusters. Then the problem of every fourth row and
column is solved first, and so on down; its potentials have the levels of the clusters right. For
5,000 tokens to six clusters: a fifth of the time.

Source: Jonker, Volgenant, A shortest augmenting path algorithm for dense and sparse linear
assignment problems, Computing 38 (1987). The blocks and their bounds are ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from wflow._core.compiled import compiled
from wflow._core.errors import InputError, WflowError
from wflow._core.simd import (
    align_stack,
    first_equal,
    least_lane,
    load,
    minimum,
    splat,
    store,
    where_less,
)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BLOCK = 32  # columns, four vectors
_LANES = 8
_INF = np.inf
_LARGEST = 1e300  # of the costs: sums and differences of them are doubles
WHOLE = 128  # columns up to which searches read whole rows
_SAMPLE = 32  # rows by which near columns are recognised
_ROUNDS = 4  # of lowered potentials, for a start from another solution
_MANY = 0.75  # share of the rows that are left, from which on a start from a part is faster
_MOVED = 0.6  # share that a start from another solution leaves, up to which it is kept
_PART = 4  # of the rows and columns one is solved for first
_SMALL = 1e-4  # mean cost over the size of v, below which the rounding of v would be felt
_BATCH = 1 << 28  # columns that searches may read before Ctrl-C is heard: a second or so


# Vectors of flat arrays
# ----------------------


@njit(error_model="numpy")
def _least(values, first, count):
    """Smallest of `count` values, a multiple of the lanes, from place `first`."""
    least = load(values, first)
    for k in range(first + _LANES, first + count, _LANES):
        least = minimum(load(values, k), least)
    return least_lane(least)


@njit(error_model="numpy")
def _place(values, first, value):
    """First place of `value`, which must be there."""
    wanted = splat(value)
    while True:
        lane = first_equal(load(values, first), wanted)
        if lane < _LANES:
            return first + lane
        first += _LANES


@njit(error_model="numpy")
def _least_open(bounds, first, shut, count):
    """Smallest of the bounds of a row over the blocks that are not shut (0, shut: infinity)."""
    least = load(bounds, first) + load(shut, 0)
    for k in range(_LANES, count, _LANES):
        least = minimum(load(bounds, first + k) + load(shut, k), least)
    return least_lane(least)


@njit(error_model="numpy")
def _place_open(bounds, first, shut, value):
    """First block whose bound is `value` and that is not shut."""
    wanted, k = splat(value), 0
    while True:
        lane = first_equal(load(bounds, first + k) + load(shut, k), wanted)
        if lane < _LANES:
            return k + lane
        k += _LANES


@njit(error_model="numpy")
def _read_block(costs, row, column, v, open_v, base, distance, before, i):
    """Let the 32 columns from `column` be reached from row i, which begins at `row` of the costs.

    distance_j <- min(distance_j, C_ij - v_j - base), before_j <- i where that is less; closed
    columns have open_v = -infinity. Returns the smallest distance and the smallest C_ij - v_j.
    """
    base, origin = splat(base), splat(float(i))
    nearest, least = splat(_INF), splat(_INF)
    for k in range(column, column + BLOCK, _LANES):
        c = load(costs, row + k)
        least = minimum(c - load(v, k), least)
        reached = c - load(open_v, k) - base
        old = load(distance, k)
        new = minimum(reached, old)
        store(distance, k, new)
        store(before, k, where_less(reached, old, origin, load(before, k)))
        nearest = minimum(new, nearest)
    return least_lane(nearest), least_lane(least)


# Heap of rows
# ------------


@njit(error_model="numpy")
def _rise(keys, items, place, key, item):
    """Put an item at a place of the heap, or above it."""
    while place > 0:
        up = (place - 1) >> 1
        if keys[up] <= key:
            break
        keys[place], items[place] = keys[up], items[up]
        place = up
    keys[place], items[place] = key, item


@njit(error_model="numpy")
def _sink(keys, items, size, key, item):
    """Put an item in place of the first one, or below it."""
    place = 0
    while True:
        down = 2 * place + 1
        if down >= size:
            break
        if down + 1 < size and keys[down + 1] < keys[down]:
            down += 1
        if keys[down] >= key:
            break
        keys[place], items[place] = keys[down], items[down]
        place = down
    keys[place], items[place] = key, item


# One step of a search: a row is reached
# ---------------------------------------


@njit(error_model="numpy")
def _read_row(costs, width, v, open_v, base, distance, before, nearest, shut, i):
    """Read all blocks of row i that are not shut, into the nearest open column of each."""
    align_stack()
    for block in range(width // BLOCK):
        if shut[block] == 0.0:
            nearest[block], _bound = _read_block(
                costs, i * width, block * BLOCK, v, open_v, base[i], distance, before, i
            )


@njit(error_model="numpy")
def _read_bounded(
    costs, width, v, open_v, base, distance, before, nearest, shut,
    i, bounds, unread, count, keys, rows, size,
):  # fmt: skip
    """Add row i to the rows that the search has reached, and read blocks of them by their bounds.

    keys, rows: heap of `size` rows by the least distance that their unread blocks can offer. Blocks
    are read until none can offer less than the nearest open column.

    Returns the size of the heap, and the number of blocks read.
    """
    for k in range(0, count, _LANES):
        store(unread, i * count + k, load(bounds, i * count + k))
    _rise(keys, rows, size, _least_open(unread, i * count, shut, count) - base[i], i)
    size += 1
    to, reads = _least(nearest, 0, count), 0
    while size > 0 and keys[0] < to:
        r = rows[0]
        least = _least_open(unread, r * count, shut, count)
        if least - base[r] < to:  # blocks may have been shut since the row was put in
            block = _place_open(unread, r * count, shut, least)
            near, bound = _read_block(
                costs, r * width, block * BLOCK, v, open_v, base[r], distance, before, r
            )
            nearest[block] = near
            to = min(to, near)
            bounds[r * count + block], unread[r * count + block] = bound, _INF
            reads += 1
            least = _least_open(unread, r * count, shut, count)
        if least < _INF:
            _sink(keys, rows, size, least - base[r], r)
        else:
            size -= 1
            _sink(keys, rows, size, keys[size], rows[size])
    return size, reads


def _entry_points(source, cache):
    """The compiled functions that Python calls."""

    @njit(cache=cache, error_model="numpy", nogil=True)
    def near_order(sample):
        """Columns of some rows of costs (k, m), in an order in which near ones follow each other.

        The columns are halved by the row that tells them apart most, again and again down to the
        blocks. Near columns have near costs in every row.
        """
        _ = source  # part of the cache key
        rows, m = sample.shape
        order = np.arange(m)
        parts = [(0, m)]
        while len(parts) > 0:
            first, end = parts.pop()
            if end - first <= BLOCK:
                continue
            widest, row = -1.0, 0
            for r in range(rows):
                low, high = _INF, -_INF
                for k in range(first, end):
                    c = sample[r, order[k]]
                    low, high = min(low, c), max(high, c)
                if high - low > widest:
                    widest, row = high - low, r
            part = order[first:end].copy()
            order[first:end] = part[np.argsort(sample[row][part])]
            blocks = (end - first + BLOCK - 1) // BLOCK
            middle = first + (blocks + 1) // 2 * BLOCK
            parts.append((first, middle))
            parts.append((middle, end))
        return order

    @njit(cache=cache, error_model="numpy", nogil=True)
    def arranged(costs, order):
        """Costs (n, m) with columns in `order`, filled up by infinity: (n, width).

        And the largest of them in size, infinity for NaN.
        """
        _ = source
        n, m = costs.shape
        out = np.empty((n, (m + BLOCK - 1) // BLOCK * BLOCK))
        largest = 0.0
        for i in range(n):
            for k in range(m):
                c = costs[i, order[k]]
                out[i, k] = c
                size = abs(c)
                if not size <= largest:
                    largest = size if size == size else _INF
            out[i, m:] = _INF
        return out, largest

    @njit(cache=cache, error_model="numpy", nogil=True)
    def least_by_column(costs, n, width, v):
        """v_j <- min_i C_ij."""
        _ = source
        v[:] = _INF
        for i in range(n):
            for k in range(0, width, _LANES):
                store(v, k, minimum(load(costs, i * width + k), load(v, k)))
        v[n:] = 0.0

    @njit(cache=cache, error_model="numpy", nogil=True)
    def lower(costs, n, width, v, column_of, rounds):
        """v_j <- min(v_j, min_i C_ij - u_i) with u_i = C_is - v_s at s = column_of[i]; `rounds`."""
        _ = source
        old = v.copy()
        for _round in range(rounds):
            for i in range(n):
                u = splat(costs[i * width + column_of[i]] - old[column_of[i]])
                for k in range(0, width, _LANES):
                    store(v, k, minimum(load(costs, i * width + k) - u, load(v, k)))
            if np.all(v == old):
                break
            old[:] = v

    @njit(cache=cache, error_model="numpy", nogil=True)
    def begin(costs, n, width, v, bounds, count, column_of, row_of):
        """Bounds of all rows and blocks; rows take their best column, first those that have it.

        column_of (n,): a permutation to begin with, or -1; then columns of the rows, -1 for those
        that are left. Returns the rows that are left.
        """
        _ = source
        best = np.empty(n, np.int64)
        for i in range(n):
            row, first = i * width, i * count
            for block in range(width // BLOCK):
                least = splat(_INF)
                for k in range(block * BLOCK, block * BLOCK + BLOCK, _LANES):
                    least = minimum(load(costs, row + k) - load(v, k), least)
                bounds[first + block] = least_lane(least)
            least_cost = _least(bounds, first, count)
            j = column_of[i]
            if j < 0 or costs[row + j] - v[j] != least_cost:
                column_of[i] = -1
                j = (_place(bounds, first, least_cost) - first) * BLOCK
                while costs[row + j] - v[j] != least_cost:
                    j += 1
            else:
                row_of[j] = i
            best[i] = j
        left = np.empty(n, np.int64)
        size = 0
        for i in range(n):
            if column_of[i] >= 0:
                continue
            if row_of[best[i]] < 0:
                column_of[i], row_of[best[i]] = best[i], i
            else:
                left[size] = i
                size += 1
        return left[:size]

    @njit(cache=cache, error_model="numpy", nogil=True)
    def augment(costs, n, width, v, bounds, count, column_of, row_of, left, unread, budget):
        """Assign rows of `left` by shortest augmenting paths, until all are or `budget` is spent.

        Returns their number, or -1 where a path is of no finite length.
        """
        _ = source
        align_stack()
        distance, before = np.empty(width), np.zeros(width)
        nearest = np.full(count, _INF)  # open column of each block
        shut, still_open = np.empty(count), np.empty(width // BLOCK, np.int64)
        closed, closed_at = np.empty(n, np.int64), np.empty(n)
        keys, rows, base = np.empty(n), np.empty(n, np.int64), np.empty(n)
        open_v = v.copy()
        for done in range(left.shape[0]):
            if budget <= 0:
                return done
            i = left[done]
            distance[:], nearest[:], shut[:], still_open[:] = _INF, _INF, 0.0, BLOCK
            still_open[-1] = n - width + BLOCK
            size, passed, base[i] = 0, 0, 0.0
            while True:
                if width <= WHOLE:
                    _read_row(costs, width, v, open_v, base, distance, before, nearest, shut, i)
                    budget -= width
                else:
                    size, reads = _read_bounded(
                        costs, width, v, open_v, base, distance, before, nearest, shut,
                        i, bounds, unread, count, keys, rows, size,
                    )  # fmt: skip
                    budget -= reads * BLOCK + count
                to = _least(nearest, 0, count)
                if not to < _INF:
                    return -1
                block = _place(nearest, 0, to)
                j = _place(distance, block * BLOCK, to)
                if row_of[j] < 0:
                    break
                closed[passed], closed_at[passed] = j, to
                passed += 1
                distance[j], open_v[j] = _INF, -_INF
                nearest[block] = _least(distance, block * BLOCK, BLOCK)
                still_open[block] -= 1
                if still_open[block] == 0:
                    shut[block] = _INF
                i = row_of[j]
                base[i] = costs[i * width + j] - v[j] - to
            for k in range(passed):
                v[closed[k]] -= max(to - closed_at[k], 0.0)
                open_v[closed[k]] = v[closed[k]]
            while j >= 0:
                i = int(before[j])
                row_of[j] = i
                column_of[i], j = j, column_of[i]
        return left.shape[0]

    return near_order, arranged, least_by_column, lower, begin, augment


_near_order, _arranged, _least_by_column, _lower, _begin, _augment = compiled(_entry_points)


class Solution(NamedTuple):
    """Columns of the rows (n,), and potentials v (n,) of the columns.

    u_i = C_{i, s(i)} - v_{s(i)} and v are dual feasible to rounding, and prove that s is optimal.
    """

    columns: IntArray
    v: FloatArray


class Stopped(WflowError):
    """The event that ends an assignment was set."""


def solve(
    costs: FloatArray, start: Solution | None = None, stop: threading.Event | None = None
) -> Solution:
    """An optimal assignment of costs (n, width) whose columns beyond n are infinite.

    width is n up to a multiple of `BLOCK`, and the columns are in the order of `near_order`.
    `start` is the solution of a similar problem with its columns in the same order. The other costs
    must be finite and at most 1e300 in size: this is not checked. Other threads of Python run
    meanwhile; a second or so after one of them sets `stop`, `Stopped` is raised.
    """
    n, width = costs.shape
    flat, v = costs.reshape(-1), np.zeros(width)
    if start is not None:
        column_of = start.columns.copy()
        v[:n] = start.v
        _lower(flat, n, width, v, column_of, _ROUNDS)
        v[:n] -= v[:n].max()  # along a series they would fall for ever
        begun = _begun(costs, v, column_of)
        if n <= WHOLE or begun.left.size <= _MOVED * n:
            found = _searched(costs, begun, stop)
            if _precise(costs, found):
                return found
        v = np.zeros(width)
    _least_by_column(flat, n, width, v)
    begun = _begun(costs, v, np.full(n, -1))
    if n > WHOLE and begun.left.size > _MANY * n:
        found = _searched(costs, _begun(costs, _from_part(costs), np.full(n, -1)), stop)
        if _precise(costs, found):
            return found
    return _searched(costs, begun, stop)


class _Begun(NamedTuple):
    """Arrays of the searches, and the rows that are left for them."""

    v: FloatArray
    column_of: IntArray
    row_of: IntArray
    bounds: FloatArray
    unread: FloatArray
    left: IntArray


def _begun(costs: FloatArray, v: FloatArray, column_of: IntArray) -> _Begun:
    """Begin with potentials, and a permutation or -1 for each row."""
    n, width = costs.shape
    count = (width // BLOCK + _LANES - 1) // _LANES * _LANES  # of blocks, in whole vectors
    bounds, row_of = np.full(n * count, _INF), np.full(width, -1)
    left = _begin(costs.reshape(-1), n, width, v, bounds, count, column_of, row_of)
    return _Begun(v, column_of, row_of, bounds, np.empty(n * count), left)


def _searched(costs: FloatArray, begun: _Begun, stop: threading.Event | None) -> Solution:
    """Assign the rows that are left."""
    n, width = costs.shape
    v, column_of, row_of, bounds, unread, left = begun
    count = bounds.size // n
    while left.size:
        if stop is not None and stop.is_set():
            raise Stopped("the assignment was stopped")
        done = _augment(
            costs.reshape(-1), n, width, v, bounds, count, column_of, row_of, left, unread, _BATCH
        )
        if done < 0:
            raise InputError("the costs have no finite assignment: expected finite costs")
        left = left[done:]
    return Solution(column_of, v[:n])


def _precise(costs: FloatArray, found: Solution) -> bool:
    """Whether the rounding of potentials that a start brought with it is not felt."""
    mean = costs[np.arange(len(costs)), found.columns].mean()
    return bool(mean >= _SMALL * np.abs(found.v).max())


def _from_part(costs: FloatArray) -> FloatArray:
    """Potentials v (width,) from the solution for every fourth row and column.

    v_j = min_i C_ij - u_i over those rows. As the columns are in an order in which near ones follow
    each other, every fourth has its share of each cluster.
    """
    n, width = costs.shape
    places = np.arange(0, n, _PART)
    rows = costs[places]
    part = np.full((len(places), -(-len(places) // BLOCK) * BLOCK), _INF)
    part[:, : len(places)] = rows[:, places]
    found = solve(part)
    v = np.full(width, _INF)
    v[places] = found.v
    _lower(rows.reshape(-1), len(places), width, v, places[found.columns], 1)
    v[n:] = 0.0
    return v


def near_order(n: int, rows_of: Callable[[slice], FloatArray]) -> IntArray:
    """An order of n columns for `solve`; `rows_of` returns the costs of some rows."""
    if n <= WHOLE:
        return np.arange(n)
    return _near_order(rows_of(slice(None, None, n // _SAMPLE)))


def assign(costs: ArrayLike) -> IntArray:
    """Columns (n,) of the rows in an optimal assignment of finite costs (n, n)."""
    given = np.asarray(costs, np.float64)
    order = near_order(len(given), given.__getitem__)
    columns, largest = _arranged(given, order)
    if not largest <= _LARGEST:
        raise InputError(
            f"the largest cost of the assignment is {largest:g} in size: expected at most "
            f"{_LARGEST:g}; scale the costs"
        )
    return order[solve(columns).columns]
