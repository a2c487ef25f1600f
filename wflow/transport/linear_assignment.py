"""Linear assignment: shortest augmenting paths over blocks of columns with lower bounds.

For costs C (n, n) a permutation s with the least sum_i C[i, s(i)], and potentials u, v that prove
it: u_i + v_j <= C_ij for all pairs, with equality for the pairs (i, s(i)), to rounding.

The method is that of Jonker and Volgenant. Given any v, each row takes its column of least
C_ij - v_j, where that is free. Each row that is left starts a search of Dijkstra over the reduced
costs C_ij - u_i - v_j >= 0, whose shortest path to a free column is turned over. The potentials of
the columns that the search has closed fall, no potential rises.

A search that reads whole rows is as fast as can be up to a hundred columns or two. Beyond, the
columns are in an order in which near ones follow each other, in blocks of 32, and for every row
and block a lower bound of C_ij - v_j is kept, which stays one when v falls. The search reads a
block of a row only when it has come as far as its bound: in clouds of tokens two to ten blocks,
and none whose columns are all closed. From 1,000 tokens on this takes a third to a tenth of the
time of whole rows.

Where columns lie in tight clusters, most rows have their least cost in a cluster that is full
already, and each search goes through whole clusters. Then the problem of every fourth row and
column is solved first, and so on down; its potentials have the levels of the clusters right. For
5,000 tokens to six clusters this takes a fifth of the time.

Source: Jonker, Volgenant, A shortest augmenting path algorithm for dense and sparse linear
assignment problems, Computing 38 (1987). The blocks and their bounds are ours.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from wflow._core.compiler.functions import kernel
from wflow._core.compiler.vectors import (
    align_stack,
    first_equal,
    least_lane,
    load,
    minimum,
    splat,
    store,
    where_less,
)
from wflow._core.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BLOCK = 32  # columns, four vectors
_LANES = 8
_INF = np.inf
_LARGEST = 1e300  # of the costs: sums and differences of them are doubles
WHOLE = 128  # columns up to which searches read whole rows
_SAMPLE = 32  # rows by which near columns are recognised
_MANY = 0.5  # share of the rows that are left, from which on a start from a part is faster
_PART = 4  # of the rows and columns one is solved for first
_SMALL = 1e-4  # mean cost over the size of v, below which the rounding of v would be felt
_SEARCHES = 64  # in one call of compiled code: Ctrl-C is heard between calls


# Vectors of flat arrays
# ----------------------


@njit(error_model="numpy")
def _least(values, first, count):
    """Return the smallest of `count` values, a multiple of the lanes, from place `first`."""
    least = load(values, first)
    for k in range(first + _LANES, first + count, _LANES):
        least = minimum(load(values, k), least)
    return least_lane(least)


@njit(error_model="numpy")
def _place(values, first, value):
    """Return the first place of `value`, which must be there."""
    wanted = splat(value)
    while True:
        lane = first_equal(load(values, first), wanted)
        if lane < _LANES:
            return first + lane
        first += _LANES


@njit(error_model="numpy")
def _next_block(unread, first, shut, count):
    """Return the smallest of the bounds of a row over the blocks that are not shut, and its block.

    shut (count,): 0, or infinity for a block whose columns are all closed.
    """
    least = load(unread, first) + load(shut, 0)
    for k in range(_LANES, count, _LANES):
        least = minimum(load(unread, first + k) + load(shut, k), least)
    bound, k = least_lane(least), 0
    wanted = splat(bound)
    while True:
        lane = first_equal(load(unread, first + k) + load(shut, k), wanted)
        if lane < _LANES:
            return bound, k + lane
        k += _LANES


@njit(error_model="numpy")
def _read_block(costs, row, column, v, open_v, base, distance, before, i):
    """Relax the 32 columns from `column` on from row i, which begins at `row` of the costs.

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
    """Insert an item at a place of the heap, or above it."""
    while place > 0:
        up = (place - 1) >> 1
        if keys[up] <= key:
            break
        keys[place], items[place] = keys[up], items[up]
        place = up
    keys[place], items[place] = key, item


@njit(error_model="numpy")
def _sink(keys, items, size, key, item):
    """Replace the first item of the heap by an item, which sinks to its place."""
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


@kernel(nogil=True)
def _begin(costs, v, bounds, count, column_of, row_of):
    """Compute the bounds of all rows and blocks, and assign rows to their best columns.

    costs (n * width,), v (width,), bounds (n * count,); column_of (n,) and row_of (width,)
    are -1 for what is left. Returns the rows that are left.
    """
    n, width = column_of.shape[0], v.shape[0]
    left = np.empty(n, np.int64)
    size = 0
    for i in range(n):
        row, first = i * width, i * count
        for block in range(width // BLOCK):
            least = splat(_INF)
            for k in range(block * BLOCK, block * BLOCK + BLOCK, _LANES):
                least = minimum(load(costs, row + k) - load(v, k), least)
            bounds[first + block] = least_lane(least)
        least_cost = _least(bounds, first, count)
        j = (_place(bounds, first, least_cost) - first) * BLOCK
        while costs[row + j] - v[j] != least_cost:
            j += 1
        if row_of[j] < 0:
            column_of[i], row_of[j] = j, i
        else:
            left[size] = i
            size += 1
    return left[:size]


@kernel(nogil=True)
def _augment(costs, v, bounds, count, column_of, row_of, left, unread):
    """Assign the rows of `left` by shortest augmenting paths.

    The heap holds the rows that a search has reached, by the least distance that their unread
    blocks can offer. Blocks are read until none can offer less than the nearest open column.
    """
    align_stack()
    n, width = column_of.shape[0], v.shape[0]
    distance, before = np.empty(width), np.zeros(width)
    nearest = np.empty(count)  # open column of each block
    shut, still_open = np.empty(count), np.empty(width // BLOCK, np.int64)
    closed, closed_at = np.empty(n, np.int64), np.empty(n)
    keys, rows = np.empty(n), np.empty(n, np.int64)  # the heap
    base, block_of = np.empty(n), np.empty(n, np.int64)
    open_v = v.copy()
    for start in left:
        distance[:], nearest[:], shut[:], still_open[:] = _INF, _INF, 0.0, BLOCK
        still_open[-1] = n - width + BLOCK
        i, passed = start, 0
        base[i] = 0.0
        while True:
            if width <= WHOLE:
                for block in range(width // BLOCK):
                    nearest[block], _bound = _read_block(
                        costs, i * width, block * BLOCK, v, open_v, base[i], distance, before, i
                    )
                to = _least(nearest, 0, count)
            else:
                for k in range(i * count, (i + 1) * count, _LANES):
                    store(unread, k, load(bounds, k))
                bound, block_of[i] = _next_block(unread, i * count, shut, count)
                _rise(keys, rows, passed, bound - base[i], i)
                to = _least(nearest, 0, count)
                while keys[0] < to:
                    r = rows[0]
                    block = block_of[r]
                    if shut[block] == 0.0:
                        at = r * count + block
                        nearest[block], bounds[at] = _read_block(
                            costs, r * width, block * BLOCK, v, open_v, base[r], distance,
                            before, r,
                        )  # fmt: skip
                        to, unread[at] = min(to, nearest[block]), _INF
                    bound, block_of[r] = _next_block(unread, r * count, shut, count)
                    _sink(keys, rows, passed + 1, bound - base[r], r)
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


class _Search:
    """Search for an assignment, from potentials v (width,) and the best columns of the rows."""

    def __init__(self, costs: FloatArray, v: FloatArray) -> None:
        n, width = costs.shape
        count = -(-width // (BLOCK * _LANES)) * _LANES  # of blocks, in whole vectors
        bounds = np.full(n * count, _INF)
        self.columns = np.full(n, -1)
        self.v = v
        self._state = costs.reshape(-1), v, bounds, count, self.columns, np.full(width, -1)
        self.left = _begin(*self._state)

    def run(self) -> tuple[IntArray, FloatArray]:
        """Return the columns of all rows, and the potentials."""
        unread = np.empty_like(self._state[2])
        for first in range(0, self.left.size, _SEARCHES):
            _augment(*self._state, self.left[first : first + _SEARCHES], unread)
        return self.columns, self.v[: len(self.columns)]


def solve_arranged(costs: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the optimal columns (n,) of the rows, and the potentials v (n,) that prove it.

    u_i = C_{i, s(i)} - v_{s(i)} and v are dual feasible to rounding. The costs are (n, width), with
    width n up to a multiple of `BLOCK`; columns beyond n are infinite, and those before in the
    order of `near_order`. The other costs must be finite and at most 1e300 in size: this is not
    checked. Other threads of Python run meanwhile.
    """
    n, _width = costs.shape
    v = costs.min(axis=0)
    v[n:] = 0.0
    search = _Search(costs, v)
    if n > WHOLE and search.left.size > _MANY * n:
        columns, v = _Search(costs, _from_part(costs)).run()
        if costs[np.arange(n), columns].mean() >= _SMALL * np.abs(v).max():
            return columns, v
    return search.run()


def _from_part(costs: FloatArray) -> FloatArray:
    """Return the potentials v (width,) from the solution for every fourth row and column.

    v_j = min_i C_ij - u_i over those rows. As the columns are in an order in which near ones follow
    each other, every fourth has its share of each cluster.
    """
    n, _width = costs.shape
    places = np.arange(0, n, _PART)
    rows = costs[places]
    part = np.take(rows, whole_blocks(places), axis=1)
    part[:, len(places) :] = _INF
    columns, v_part = solve_arranged(part)
    rows -= (rows[np.arange(len(places)), places[columns]] - v_part[columns])[:, None]
    v = rows.min(axis=0)
    v[places] = v_part
    v[n:] = 0.0
    return v


def whole_blocks(order: IntArray) -> IntArray:
    """Return an order of columns, repeated up to whole blocks: columns beyond become infinite."""
    return np.resize(order, -(-len(order) // BLOCK) * BLOCK)


def near_order(points: FloatArray) -> IntArray:
    """Return an order of points (n, k) in which near ones are adjacent, for the columns of `solve`.

    They are halved along one coordinate after the other, the widest first, down to the blocks.
    Costs of a few rows are coordinates of the columns.
    """
    n = len(points)
    order = np.arange(n)
    if n <= WHOLE:
        return order
    widest = np.argsort(-np.ptp(points, axis=0))
    cell = BLOCK << math.ceil(math.log2(n / BLOCK))
    for level in range(int(math.log2(cell / BLOCK))):
        along = points[order, widest[level % len(widest)]]
        order = order[np.lexsort((along, np.arange(n) // cell))]
        cell //= 2
    return order


def assign(costs: ArrayLike) -> IntArray:
    """Return the columns (n,) of the rows in an optimal assignment of finite costs (n, n)."""
    given = np.asarray(costs, np.float64)
    largest = np.maximum(given.max(), -given.min())  # NaN where a cost is
    if not largest <= _LARGEST:
        raise InputError(
            f"the largest cost of the assignment is {largest:g} in size: expected at most "
            f"{_LARGEST:g}; scale the costs"
        )
    order = near_order(given[:: -(-len(given) // _SAMPLE)].T)
    arranged = np.take(given, whole_blocks(order), axis=1)
    arranged[:, len(order) :] = _INF
    return order[solve_arranged(arranged)[0]]
