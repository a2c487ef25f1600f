"""Sums of every head at targets over weighted sources, exactly, for small dimensions.

With U_hij = exp(<x_i, D_h y_j>) for targets x_i, sources y_j and weights w_j (or w_hj),

    m_hi = sum_j w_j U_hij,   S_hi = sum_j w_j U_hij y_j.

The loops are those of `sweep`; a task is one or two blocks of targets of one path and some heads.
Cost of a pair, in multiply-adds (double precision): d for the score, 13 for the exponential, d + 1
for the sums (1 without the vectors S), 1 for the weight unless all are equal: 20 or 21 at d = 3.
Memory: the result, and the sources once more. The order of summation depends on the sources alone:
neither threads nor other targets change a bit.
"""

import functools

import numpy as np
from numba import prange, types
from numpy.typing import NDArray

from wflow._core.compiler.functions import (
    constant,
    constant_type,
    internal,
    kernel,
    loop_body,
    value_of,
)
from wflow._core.compiler.sweeps import SUMS, sweep
from wflow._core.compiler.tasks import address, arrays, call
from wflow._core.compiler.vectors import lanes, splat, store
from wflow._core.threads import threads_for
from wflow.kernels.pairs.fused import PAIRS_OF_THREAD
from wflow.kernels.pairs.sweep import (
    CHUNK,
    DIRECT_BOUND_DOUBLE,
    DIRECT_BOUND_SINGLE,
    TILE,
    block_scores,
    by_lane,
    causal_mask,
    clear_vectors,
    masked_sums,
    vectors,
    weighted_shifted_sums,
)

# Range of weights whose products with exp(+-bound) stay in the range of the type; for weights
# outside it the sums are shifted.
_WEIGHT_RANGE = {8: (1e-200, 1e200), 4: (1e-20, 1e20)}


@internal
def workspace(d, like):
    """Allocate the vectors of one worker: own, z, (z, z_low), acc, squares, shift, masks."""
    width = lanes(like)
    diagonal = vectors(width, like)
    causal_mask(diagonal)
    return (
        vectors(2 * d, like), vectors(2 * d, like), vectors(d, like), vectors(d, like),
        vectors(2 * (d + SUMS), like), vectors(2, like), vectors(1, like), diagonal,
        vectors(2 * width, like),
    )  # fmt: skip


@internal
def _weight_mask(weight, start, begin, stop, mask):
    """Write w_j [j <= i] for the tokens start <= j < stop and token i of each lane from `begin`."""
    width = lanes(mask)
    for j in range(start, stop):
        for lane in range(width):
            mask[(j - start) * width + lane] = weight[j] if j <= begin + lane else 0.0


_ONE, _TWO = map(constant, (1, 2))


@internal
def _loop(dim, blocks, weighted, with_vectors, y, w, z, at, first, last, acc, acc_at):
    """Call `sweep` without q for one or two blocks of targets; the first four are `constant`s."""
    sweep(dim, blocks, False, 0, weighted, with_vectors, y, w, z, 0, z, at, z, z, 0, 0, z, 0,
          first, last, acc, acc_at)  # fmt: skip


@loop_body
def _blocks_of_targets(
    dim, weighted, with_vectors, x, y, n, unit, weight, bound, score, causal, divisor, start,
    blocks, head, last_head, space, shift, m, S,
):  # fmt: skip
    """Process the heads head <= h < last_head for `blocks` blocks of targets of one path.

    dim, weighted, with_vectors : `constant`s, the latter two 0 or 1
    """
    d = value_of(dim)
    own, z, z_high, z_low, acc, squares, one_shift, diagonal, mask = space
    width = lanes(x)
    rows = y.shape[0]
    targets = x.shape[0]
    of_acc = (d + SUMS) * width
    zero = splat(x.dtype.type(0.0))
    free = start if causal else rows
    for block in range(blocks):
        by_lane(x, targets, start + block * width, own, block * d * width)
    for h in range(head, last_head):
        chosen = h if weight.shape[0] > 1 else 0
        w = weight[chosen]
        block_scores(score, h, own, 0, z, 0, d, blocks, squares, 0)
        direct = 0
        for block in range(blocks):
            moderate = True
            for lane in range(block * width, (block + 1) * width):
                moderate = moderate and squares[lane] <= bound[chosen]  # false for NaN
            direct += (1 << block) if moderate else 0
        clear_vectors(acc, 0, blocks * (d + SUMS))
        for first in range(0, free, CHUNK):
            last = min(first + CHUNK, free)
            if direct == 3:
                _loop(dim, _TWO, weighted, with_vectors, y, w, z, 0, first, last, acc, 0)
                continue
            for block in range(blocks):
                if direct >> block & 1:
                    _loop(dim, _ONE, weighted, with_vectors, y, w, z, block * d * width, first,
                          last, acc, block * of_acc)  # fmt: skip
        for block in range(blocks):
            begin = start + block * width
            last = min(begin + width, rows) if causal else rows
            sums = acc[block * of_acc : (block + 1) * of_acc]
            store(one_shift, 0, zero)
            if not direct >> block & 1:
                weights = w if value_of(weighted) == 1 else w[:0]
                weighted_shifted_sums(
                    y, n, score, h, own, block * d * width, z_high, z_low, z, z, False, diagonal,
                    causal, begin, last, sums, one_shift, weights,
                )  # fmt: skip
            elif causal:
                _weight_mask(w, start, begin, last, mask)
                masked_sums(y, unit, z, block * d * width, z, z, 0, False, mask, start, start,
                            last, sums, 0)  # fmt: skip
            for lane in range(min(width, targets - begin)):
                i = begin + lane
                # No source of this target has a weight, so nothing was shifted.
                shift[h, i] = one_shift[lane] if one_shift[lane] > -1e29 else 0.0
                m[h, i] = sums[lane] / divisor
                if value_of(with_vectors) == 1:
                    for k in range(d):
                        S[h, i, k] = sums[(1 + k) * width + lane] / divisor


@kernel(parallel=True)
def _sums(
    dim, weighted, with_vectors, x, y, n, unit, weight, bound, score, causal, divisor, workers,
    groups, shift, m, S, at,
):  # fmt: skip
    """Run the task at address `at` for all blocks of targets and groups of heads."""
    paths, targets, _ = x.shape
    heads = score.shape[1]
    width = lanes(x)
    blocks = (targets + width - 1) // width
    # As in `fused`, all workers receive tasks of all sizes.
    odd = blocks % 2
    units = (blocks + 1) // 2
    for worker in prange(workers):
        space = workspace(value_of(dim), x)
        for task in range(worker, paths * units * groups, workers):
            p = task // (units * groups)
            group = task % groups
            place = task // groups - p * units
            first = 0 if place == 0 else 2 * place - odd
            count = 1 if place == 0 and odd == 1 else 2
            q = p if weight.shape[0] > 1 else 0
            call(at, (
                dim, weighted, with_vectors, x[p], y[p], n, unit, weight[q], bound[p], score[p],
                causal, divisor, first * width, count, np.intp(group * heads // groups),
                np.intp((group + 1) * heads // groups), space, shift[p], m[p], S[p],
            ))  # fmt: skip


@functools.cache
def _address(d: int, weighted: bool, with_vectors: bool, dtype: np.dtype) -> int:
    """Return the address of the task for one d, with or without weights, with or without S."""
    flat, matrix, cube, _ = arrays(dtype)
    size, bounds = types.intp, arrays(np.float64)[0]
    given = *map(constant_type, (d, weighted, with_vectors)), matrix, matrix, size, flat, matrix
    given += bounds, cube, types.boolean, types.float64, *(size,) * 4
    return address(_blocks_of_targets, (*given, types.UniTuple(flat, 9), matrix, matrix, cube))


def largest_squares(cloud: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the largest |y|^2 per path of a cloud (paths, n, d); 1 for tokens in the unit ball."""
    squares = np.einsum("pja,pja->pj", cloud, cloud, dtype=np.float64).max(axis=1, initial=0.0)
    squares[squares < 1 + 1e-5] = 1.0  # rounding
    return squares


def direct_bounds(
    sources: NDArray[np.floating], weights: NDArray[np.floating] | None
) -> NDArray[np.float64]:
    """Return the largest |D^T x|^2 for which sums need no shift, (paths, 1) or (paths, heads).

    The score of a pair is at most |D^T x| |y|; -1 where the weights are too large or too small.
    """
    size = sources.itemsize
    bound = DIRECT_BOUND_DOUBLE if size == 8 else DIRECT_BOUND_SINGLE
    bounds = (bound * bound / largest_squares(sources))[:, None]
    if weights is None:
        return bounds
    low, high = _WEIGHT_RANGE[size]
    largest = np.abs(weights).max(axis=-1)
    return np.where((largest == 0) | ((largest >= low) & (largest <= high)), bounds, -1.0)


def pair_head_sums(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    sources: NDArray[np.floating],
    weights: NDArray[np.floating] | None,
    causal: bool,
    vectors: bool,
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """Compute (shift, m, S) of every head at every target, as `kernels.evaluate.head_sums`.

    Parameters
    ----------
    x : (paths, targets, d), 2 <= d <= 8; D : (paths, heads, d, d); contiguous, of one dtype
    sources : (paths, n, d); with `causal` the targets themselves
    weights : (paths, 1, n) or (paths, heads, n), finite, or None for 1/n
    vectors : False leaves S out, (paths, heads, 0, d)

    Returns
    -------
    shift, m : (paths, heads, targets); S : (paths, heads, targets, d)
    """
    paths, targets, d = x.shape
    heads, n = D.shape[1], sources.shape[1]
    rows = -(-n // TILE) * TILE
    y = np.zeros((paths, rows, d), x.dtype)
    y[:, :n] = sources
    unit = np.zeros(rows, x.dtype)
    unit[:n] = 1.0
    if weights is None:
        weight = unit[None, None]
    else:
        weight = np.zeros((*weights.shape[:2], rows), x.dtype)
        weight[..., :n] = weights
    shift, m = (np.empty((paths, heads, targets), x.dtype) for _ in range(2))
    S = np.empty((paths, heads, targets if vectors else 0, d), x.dtype)
    known = d, weights is not None, bool(vectors)
    task = _address(*known, x.dtype)
    units = -(-targets * x.itemsize // 128)
    with threads_for(paths * heads * targets * n, PAIRS_OF_THREAD) as workers:
        groups = min(heads, -(-4 * workers // (paths * units)) if workers > 1 else 1)
        _sums(
            *map(constant, known), x, y, n, unit, weight, direct_bounds(sources, weights), D,
            causal, float(n) if weights is None else 1.0, workers, groups, shift, m, S, task,
        )  # fmt: skip
    return shift, m, S
