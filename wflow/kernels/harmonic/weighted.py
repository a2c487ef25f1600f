"""Sums of every head at targets over weighted sources by the fast sums: linear in both.

The sums are those of `pairs.weighted`. Sources of a total |weight| of one are replaced by nodes of
equal moments and expanded once per head (once per head for the moments, too, where each head
has separate weights); the series are evaluated at the targets. The bound of
docs/theory/fast_sums.md holds for weights of any sign with the masses divided by their L1 norm,

    |delta m_h(x)|, |delta S_h(x)| <= delta_h sum_j |w_hj|,

and a target where delta_h sum_j |w_hj| exceeds the tolerance times |m_h(x)| is summed exactly.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from wflow._core.compiler.functions import kernel
from wflow._core.compiler.vectors import lanes
from wflow.kernels.blocked.products import TILE_COLUMNS, tile_product
from wflow.kernels.harmonic import series as passes
from wflow.kernels.harmonic.fast import (
    EXACT,
    FEWEST_TOKENS,
    FIXED,
    GROUP,
    Floats,
    as_doubles,
    by_degree,
    expansion,
    load_group,
    panels_of,
    plain,
    predicted_cost,
    table_of,
)
from wflow.kernels.harmonic.series import (
    EPSILON,
    LARGEST_DEGREE,
    Plan,
    check_tolerance,
    ends,
    plan_heads,
    task_count,
)
from wflow.kernels.pairs.sweep import vectors
from wflow.kernels.pairs.weighted import pair_head_sums
from wflow.sphere.harmonics import PAIR, count


@njit(error_model="numpy")
def _task(x, order, panels, sizes, columns, degree, table, first, last, m, S):
    """Write values of the series at the targets first <= i < last: m, and S where columns > 1."""
    n, d = x.shape
    width = lanes(x)
    number = count(degree, d)
    per_panel = TILE_COLUMNS // columns
    own = vectors(GROUP * d, x)
    basis = vectors(GROUP * number, x)
    tile = vectors(PAIR * TILE_COLUMNS, x)
    for group in range(first, last, GROUP * width):
        blocks = min(GROUP, (last - group + width - 1) // width)
        load_group(x, n, group, blocks, True, degree, table, own, basis)
        for panel in range(sizes.shape[0]):
            for start in range(0, blocks, PAIR):
                tile_product(
                    basis, start * number * width, PAIR * width, panels[panel], 0, TILE_COLUMNS,
                    sizes[panel], tile, 0, width, TILE_COLUMNS * width, False,
                )  # fmt: skip
                for block in range(start, min(start + PAIR, blocks)):
                    begin = group + block * width
                    place = (block - start) * TILE_COLUMNS * width
                    for s in range(panel * per_panel, min((panel + 1) * per_panel, order.shape[0])):
                        h = order[s]
                        at = place + (s - panel * per_panel) * columns * width
                        for lane in range(min(width, n - begin)):
                            m[h, begin + lane] = tile[at + lane]
                            for k in range(columns - 1):
                                S[h, begin + lane, k] = tile[at + (1 + k) * width + lane]


@kernel(parallel=True)
def evaluate_targets(x, order, panels, sizes, columns, degree, table, m, S):
    """Write m (heads, targets) and S (heads, targets, d) of the heads `order`; x (n, d)."""
    n = x.shape[0]
    unit = GROUP * lanes(x)
    units = (n + unit - 1) // unit
    tasks = task_count(units, 1)
    for task in prange(tasks):
        _task(
            x, order, panels, sizes, columns, degree, table, task * units // tasks * unit,
            min((task + 1) * units // tasks * unit, n), m, S,
        )  # fmt: skip


def fast_head_sums(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    sources: NDArray[np.floating],
    weights: NDArray[np.floating] | None,
    vectors: bool,
    tolerance: float,
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating], Floats]:
    """Compute (shift, m, S, error) of every head at every target by truncated series.

    Parameters
    ----------
    x : (paths, targets, d), sources : (paths, n, d) on the circle or the sphere, d = 2 or 3
    D, weights, vectors : as for `pairs.weighted.pair_head_sums`
    tolerance : relative error allowed in m_h(x_i) of any head at any target

    Returns
    -------
    shift, m : (paths, heads, targets); S : (paths, heads, targets, d) or (paths, heads, 0, d)
    error : (paths,) bound of |delta m| / |m| at every target that is taken from the series; S errs
        by at most `error` |m|. NaN, as are the sums, for a path that is not finite

    Raises
    ------
    InputError
        For d > 3, and a tolerance out of range.
    """
    tolerance = check_tolerance(tolerance, x.shape[-1])
    paths, heads, targets = len(x), D.shape[1], x.shape[1]
    shift, m = (np.empty((paths, heads, targets), x.dtype) for _ in range(2))
    S = np.empty((paths, heads, targets if vectors else 0, x.shape[2]), x.dtype)
    error = np.empty(paths)
    points, clouds, matrices = as_doubles(x), as_doubles(sources), plain(D)
    masses = None if weights is None else plain(weights)
    for p in range(paths):
        shift[p], m[p], S[p], error[p] = _one_path(
            points[p], matrices[p], clouds[p], None if masses is None else masses[p], vectors,
            tolerance,
        )  # fmt: skip
    return shift, m, S, error


def _one_path(
    x: Floats, D: Floats, cloud: Floats, weights: Floats | None, vectors: bool, tolerance: float
) -> tuple[Floats, Floats, Floats, float]:
    (targets, d), heads = x.shape, len(D)
    masses, norms = masses_of(weights)
    chosen, signed = plan_weighted(x, D, cloud, masses, tolerance)
    shift, m = np.zeros((heads, targets)), np.empty((heads, targets))
    S = np.empty((heads, targets if vectors else 0, d))
    if not chosen.finite:
        m[:], S[:] = np.nan, np.nan
        return shift, m, S, math.nan
    order = np.flatnonzero(chosen.degrees >= 0)
    bound = np.full(heads, np.inf)  # of a head without a series
    norm = np.broadcast_to(norms, heads)
    if len(order):
        sets = [order] if masses is None or len(masses) == 1 else order[:, None]
        pieces = []
        for k, some in enumerate(sets):
            mass = None if masses is None else masses[0 if len(masses) == 1 else order[k]]
            coefficient, _, bound[some] = expansion(cloud, D, chosen, some, int(vectors), mass)
            pieces.append(coefficient)
        size = count(int(chosen.degrees.max()), d)
        coefficient = np.zeros((len(order), size, pieces[0].shape[2]))
        for k, piece in enumerate(pieces):
            rows = slice(None) if len(pieces) == 1 else slice(k, k + 1)
            coefficient[rows, : piece.shape[1]] = piece
        # Weights of both signs cancel; no bound of a head's sums predicts how much.
        low = np.where(signed[order], -np.inf, chosen.low[order])
        degrees, missing = ends(coefficient, d, bound[order], low, tolerance)
        bound[order] += missing
        ranks = by_degree(degrees)
        order, coefficient = order[ranks], coefficient[ranks]
        panels, sizes, degree = panels_of(coefficient, degrees[ranks], d, norm[order])
        columns = coefficient.shape[2]
        evaluate_targets(x, order, panels, sizes, columns, degree, table_of(d), m, S)
    exact = partial(pair_head_sums, causal=False, vectors=vectors)
    worst = sum_exactly(x, D, cloud, weights, chosen, bound, norm, tolerance, shift, m, S, exact)
    return shift, m, S, worst


def sum_exactly(
    x: NDArray, D: NDArray, cloud: NDArray, weights: NDArray | None, chosen: Plan, bound: Floats,
    norm: Floats, tolerance: float, shift: NDArray, m: NDArray, S: NDArray, exact: Callable,
) -> float:  # fmt: skip
    """Replace what series of one path give beyond the tolerance; the estimated error of the others.

    Parameters
    ----------
    bound : (heads,) of a head's error, in units of its norm (heads,); inf for a head without series
    shift, m, S : of all heads and targets
    exact : as `pairs.weighted.pair_head_sums`, for the targets, heads and sources of one path
    """
    bound = np.multiply(bound, norm, out=bound.copy(), where=np.isfinite(bound))  # norms may be 0
    worst = 8 * EPSILON * (1 + min(float(chosen.rho.max(initial=0)), 64.0))  # of the exact sums
    for h in range(len(D)):
        size = np.abs(m[h])
        good = size >= bound[h] * (1 + 1 / tolerance)  # false for NaN
        if not math.isfinite(bound[h]):
            good[:] = False
        if good.any() and bound[h] > 0:
            worst = max(worst, float(bound[h] / (size[good].min() - bound[h])))
        if not good.all():
            own = None if weights is None else weights[None, h if len(weights) > 1 else 0][None]
            redone = exact(
                np.ascontiguousarray(x[~good])[None], D[None, h : h + 1], cloud[None], own
            )
            shift[h, ~good], m[h, ~good] = redone[0][0, 0], redone[1][0, 0]
            if S.size:
                S[h, ~good] = redone[2][0, 0]
    return worst


def masses_of(weights: Floats | None) -> tuple[Floats | None, Floats]:
    """Return weights (sets, n) divided by their L1 norms, and these norms (sets,)."""
    if weights is None:
        return None, np.ones(1)
    norms = np.abs(weights).sum(axis=1)
    return np.ascontiguousarray(weights / np.where(norms == 0, 1.0, norms)[:, None]), norms


def plan_weighted(
    x: Floats, D: Floats, cloud: Floats, masses: Floats | None, tolerance: float
) -> tuple[Plan, NDArray[np.bool_]]:  # fmt: skip
    """Return norms, bounds and degrees of the heads of one path, and which have mixed signs."""
    mean, off = passes.survey(cloud)
    mean, signed = mean[None], np.zeros(1, bool)
    if masses is not None:
        mean = np.abs(masses) @ cloud
        signed = (masses.min(axis=1) < 0) & (masses.max(axis=1) > 0)
        off += 0.0 * float(masses.sum())
    signed = np.broadcast_to(signed, len(D))
    chosen = plan_heads(
        x, D, tolerance, np.broadcast_to(mean, (len(D), x.shape[1])),
        max(off, float(passes.survey(x)[1])) + 0.0 * off, signed,
    )  # fmt: skip
    return chosen, signed


def choose_weighted(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    sources: NDArray[np.floating],
    weights: NDArray[np.floating] | None,
    tolerance: float,
) -> NDArray[np.bool_]:
    """Return for every path whether the fast sums are predicted to be faster, from data alone."""
    (paths, targets, d), heads, n = x.shape, D.shape[1], sources.shape[1]
    result = np.zeros(paths, bool)
    if d not in LARGEST_DEGREE or min(n, targets) < FEWEST_TOKENS:
        return result
    exact = heads * targets * n * EXACT[d] / (2 if x.dtype == np.float32 else 1)
    if exact <= FIXED:
        return result
    points, clouds, matrices = as_doubles(x), as_doubles(sources), plain(D)
    sets = 1 if weights is None else weights.shape[1]
    for p in range(paths):
        masses = None if weights is None else masses_of(plain(weights[p]))[0]
        chosen, _ = plan_weighted(points[p], matrices[p], clouds[p], masses, tolerance)
        # Values that are not finite end as NaN at once there.
        result[p] = not chosen.finite or exact > predicted_cost(
            points[p], matrices[p], chosen, tolerance, clouds[p], sets
        )
    return result
