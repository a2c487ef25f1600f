"""Laplacian of the energy by the fast sums: as `pairs.diffusion`, linear in n.

With D_h symmetric, z_hi = D_h x_i and (M, S)_hi = sum_j U_hij (1, x_j) from the series, a token has

    |z|^2 M - (d - 1) <z, S> + U_ii (|z|^2 - s_ii^2 + tr D - s_ii),    s_ii = <x_i, z_hi>,

and sum_ij U_hij <x_i, D_h x_j>^2, which is needed summed over tokens only, comes from coefficients
with weights (D y)_a (D y)_b against the moments of x_a x_b (docs/theory/fast_sums.md).
"""

import math
from functools import cache

import numpy as np
from numba import prange, types
from numpy.typing import NDArray

from wflow._core.compiler.functions import internal, kernel, loop_body
from wflow._core.compiler.tasks import address, arrays, call
from wflow._core.compiler.vectors import lanes
from wflow.kernels.blocked.products import TILE_COLUMNS, tile_product
from wflow.kernels.harmonic.fast import (
    GROUP,
    Floats,
    as_doubles,
    expand_heads,
    load_group,
    lowest_sum,
    plain,
    relative_error,
    table_of,
)
from wflow.kernels.harmonic.series import check_tolerance, plan, task_count
from wflow.kernels.pairs.diffusion import pair_sweep
from wflow.kernels.pairs.sweep import LOG2E, TILE, direct_bound, head_scores, padded, vectors
from wflow.sphere.harmonics import PAIR, count


@internal
def _share(score, h, n, start, own, at, z, square, acc, acc_at, shift, whole):
    """Return the share of a block in the Laplacian, with Q if `whole`."""
    d = score.shape[1]
    width = lanes(own)
    trace = 0.0
    for k in range(d):
        trace += score[h, k, k]
    total = 0.0
    for lane in range(min(width, n - start)):
        grow = math.exp(shift[lane])
        itself = 0.0
        along = 0.0
        for k in range(d):
            zk = z[k * width + lane] / LOG2E
            itself += zk * own[at + k * width + lane]
            along += zk * acc[acc_at + (1 + k) * width + lane]
        share = square[lane] * acc[acc_at + lane] - (d - 1) * along
        if whole:
            share -= acc[acc_at + (d + 1) * width + lane] / (LOG2E * LOG2E)
        total += grow * share
        total += math.exp(itself) * (square[lane] - itself * itself + trace - itself)
    return total


@internal
def _exactly(x, weight, score, h, own, at, z, square, shift, acc):
    """Compute (M, S, Q) exp(-shift) of one head for one block, over all tokens."""
    width = lanes(x)
    limit = direct_bound(x)
    moderate = True
    for lane in range(width):
        moderate = moderate and square[lane] <= limit * limit  # false for NaN
    for lane in range(width):
        shift[lane] = 0.0 if moderate else math.sqrt(square[lane])
    pair_sweep(x, weight, z, shift, acc)


@loop_body
def _tokens_task(
    x, n, weight, score, order, alone, panels, sizes, limit, degree, table, first, last, lowest,
    share,
):  # fmt: skip
    """Compute the share (1,) of the tokens first <= i < last in the Laplacian."""
    d = x.shape[1]
    width = lanes(x)
    number = count(degree, d)
    per_panel = TILE_COLUMNS // (d + 1)
    own = vectors(GROUP * d, x)
    basis = vectors(GROUP * number, x)
    tile = vectors(PAIR * TILE_COLUMNS, x)
    z = vectors(d, x)
    acc = vectors(d + 2, x)
    square = vectors(1, x)
    shift = vectors(1, x)
    lowest[:] = np.inf
    total = 0.0
    for group in range(first, last, GROUP * width):
        blocks = min(GROUP, (last - group + width - 1) // width)
        load_group(x, n, group, blocks, order.shape[0] > 0, degree, table, own, basis)
        for panel in range(sizes.shape[0]):
            for start in range(0, blocks, PAIR):
                tile_product(
                    basis, start * number * width, PAIR * width, panels[panel], 0, TILE_COLUMNS,
                    sizes[panel], tile, 0, width, TILE_COLUMNS * width, False,
                )  # fmt: skip
                for block in range(start, min(start + PAIR, blocks)):
                    begin = group + block * width
                    mine = block * d * width
                    place = (block - start) * TILE_COLUMNS * width
                    end = min((panel + 1) * per_panel, order.shape[0])
                    for s in range(panel * per_panel, end):
                        h = order[s]
                        at = place + (s - panel * per_panel) * (d + 1) * width
                        low, good = lowest_sum(tile, at, min(width, n - begin), limit[h])
                        head_scores(score, h, own, mine, z, 0, d, square)
                        shift[:] = 0.0
                        if good:
                            lowest[h] = min(lowest[h], low)
                        else:
                            _exactly(x, weight, score, h, own, mine, z, square, shift, acc)
                            tile[at : at + (d + 1) * width] = acc[: (d + 1) * width]
                        total += _share(
                            score, h, n, begin, own, mine, z, square, tile, at, shift, False
                        )
        for block in range(blocks):
            begin = group + block * width
            mine = block * d * width
            for s in range(alone.shape[0]):
                h = alone[s]
                head_scores(score, h, own, mine, z, 0, d, square)
                _exactly(x, weight, score, h, own, mine, z, square, shift, acc)
                total += _share(score, h, n, begin, own, mine, z, square, acc, 0, shift, True)
    share[0] = total


@kernel(parallel=True)
def _laplacian_tokens(
    x, n, weight, score, order, alone, panels, sizes, limit, degree, table, task_at
):  # fmt: skip
    """Return the sum over tokens without the series' Q, and the lowest series values (heads,)."""
    unit = GROUP * lanes(x)
    units = (n + unit - 1) // unit
    tasks = task_count(units, 1)
    heads = score.shape[0]
    parts = np.empty(tasks)
    lows = np.empty((tasks, heads))
    for task in prange(tasks):
        call(task_at, (
            x, n, weight, score, order, alone, panels, sizes, limit, degree, table,
            np.intp(task * units // tasks * unit),
            min(np.intp((task + 1) * units // tasks * unit), n), lows[task], parts[task : task + 1],
        ))  # fmt: skip
    total = 0.0
    lowest = np.full(heads, np.inf)
    for task in range(tasks):
        total += parts[task]
        for h in range(heads):
            lowest[h] = min(lowest[h], lows[task, h])
    return total, lowest


@cache
def _task_address() -> int:
    flat, matrix, cube, _ = arrays(np.float64)
    size, ints = types.intp, arrays(np.int64)[0]
    given = matrix, size, flat, cube, ints, ints, matrix, ints, flat, size, flat, size, size
    return address(_tokens_task, (*given, flat, flat))


def fast_laplacian(
    x: NDArray[np.floating], score: NDArray[np.floating], tolerance: float
) -> tuple[Floats, Floats]:
    """Compute the Laplacian of the energy summed over the tokens, by truncated series, per path.

    Parameters
    ----------
    x : (paths, n, d) unit tokens, d = 2 or 3
    score : (paths, heads, d, d) symmetric D_h
    tolerance : relative error allowed in the mobility m_h(x_i) of any head at any token

    Returns
    -------
    laplacian : (paths,)
    error : (paths,) bound of the relative error of every m_h(x_i); the Laplacian is off by at most
        (1/H) sum_h (2 |D_h|^2 + (d - 1) |D_h|) times the mean mobility of h times error. NaN for a
        path with a token or head that is not finite.

    Raises
    ------
    InputError
        For d > 3, and a tolerance out of range.
    """
    tolerance = check_tolerance(tolerance, x.shape[-1])
    paths, n, d = x.shape
    laplacian = np.full(paths, np.nan)
    error = np.full(paths, np.nan)
    tokens = as_doubles(x)
    matrices = plain(score)
    heads = matrices.shape[1]
    for p in range(paths):
        chosen = plan(tokens[p], matrices[p], tolerance)
        if not chosen.finite:
            continue
        series = expand_heads(tokens[p], matrices[p], chosen, tolerance, 3)
        rows, weight = padded(tokens[p], TILE)
        total, lowest = _laplacian_tokens(
            rows, n, weight, matrices[p], series.order, series.alone, series.panels,
            series.sizes, series.limit, series.degree, table_of(d),
            _task_address(),
        )  # fmt: skip
        laplacian[p] = (total / n / n - float(series.squares[series.order].sum())) / heads
        error[p] = relative_error(series, chosen, lowest, n)
    return laplacian, error
