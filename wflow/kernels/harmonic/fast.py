"""Fast sums on the circle and the sphere: velocities and energy terms in time linear in n.

exp<x, D y> is expanded in harmonics of x (`sphere.harmonics`). Many tokens y are first replaced by
a few nodes with weights that have the same moments, so that the coefficients of a head cost the
same for any n; what is left per token are the harmonics, shared by all heads, and one small matrix
product.
Formulas, error bounds and costs: docs/theory/fast_sums.md.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from wflow._core.compiled import compiled
from wflow._core.simd import lanes
from wflow.kernels.blocked.products import TILE_COLUMNS, tile_product
from wflow.kernels.harmonic import series as passes
from wflow.kernels.harmonic.series import (
    EPSILON,
    LARGEST_DEGREE,
    ROUNDING,
    ROUNDING_NODES,
    ROUNDING_SCORE,
    Plan,
    check_tolerance,
    node_count,
    plan,
    task_count,
)
from wflow.kernels.pairs.fused import SYMMETRIC_TOKENS
from wflow.kernels.pairs.headsums import (
    DISSIPATION,
    EXTRA,
    ITO_POWER,
    MAX_SPEED,
    N_TERMS,
    Heads,
    absorb,
    add_share,
    clear,
    finish_block,
)
from wflow.kernels.pairs.sweep import (
    TILE,
    block_sums,
    by_lane,
    head_scores,
    padded,
    pair_table,
    vectors,
)
from wflow.sphere.harmonics import PAIR, count, harmonics, quadrature, recursion_table

# Evaluation of the heads' series at the tokens
# ---------------------------------------------
# The harmonics of a group of tokens stay in cache and are shared by all heads; a panel of
# coefficients serves several heads at once. A block of tokens that misses the tolerance in a head
# is summed exactly in that head. Vectors of tokens whose harmonics are in cache together while
# panels are used.

GROUP = 8


@njit(error_model="numpy")
def _exactly(
    x, n, weight, score, h, own, at, z, z_low, pair, ito, mask, start, acc, shift, square
):  # fmt: skip
    """`block_sums` over all tokens, compiled once for its two places below."""
    return block_sums(
        x, n, weight, score, h, own, at, z, z_low, pair, ito, mask, False, start, x.shape[0], acc,
        shift, square,
    )  # fmt: skip


@njit(error_model="numpy")
def _add(
    h, fresh, shifted, d, own, own_at, acc, acc_at, shift, square, arrays, state, at, factors
):  # fmt: skip
    """`absorb`, compiled once for its two places below."""
    absorb(
        h, fresh, shifted, d, own, own_at, acc, acc_at, shift, square, arrays, state, at, factors
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
    x, n, weight, arrays, flow, sign, order, alone, panels, sizes, limit, degree, table, first,
    last, v, terms, lowest, redone,
):  # fmt: skip
    """Velocities and terms of the tokens first <= i < last, from panels of coefficients.

    order : heads in the order of the panels; alone : heads that are summed exactly
    sizes : harmonics of each panel; limit : sum below which a head's value is summed exactly
    lowest (heads,) : smallest sum of each head that was taken from the series
    """
    score, value, drift, noise, sigma2 = arrays
    no_ito = Heads(score, value, drift, noise, sigma2[:0])
    rows, d = x.shape
    width = lanes(x)
    ito = sigma2.shape[0] > 0 and alone.shape[0] > 0
    per_state = 2 * d + EXTRA
    number = count(degree, d)
    per_panel = TILE_COLUMNS // (d + 1)
    own = vectors(GROUP * d, x)
    basis = vectors(GROUP * number, x)
    tile = vectors(PAIR * TILE_COLUMNS, x)
    state = vectors(GROUP * per_state, x)
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
                            no_ito, state, block * per_state * width, factors,
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
                    square, arrays if ito else no_ito, state,
                    block * per_state * width, factors,
                )  # fmt: skip
            finish_block(x, n, begin, heads, flow, sign, state, block * per_state * width, v, terms)


def _entry_points(source, cache):
    """The compiled function that Python calls."""

    @njit(cache=cache, parallel=True, error_model="numpy")
    def evaluate_tokens(
        x, n, weight, arrays, flow, sign, order, alone, panels, sizes, limit, degree, table
    ):  # fmt: skip
        """Velocities (n, d), sums of the terms, smallest series value per head, tokens redone.

        x : (rows, d) padded tokens, weight (rows,); the rest as in `_tokens_task`.
        """
        _ = source  # part of the cache key
        d = x.shape[1]
        heads = arrays.score.shape[0]
        unit = GROUP * lanes(x)
        units = (n + unit - 1) // unit
        tasks = task_count(units, 1)
        v = np.empty((n, d))
        parts = np.zeros((tasks, N_TERMS))
        lows = np.empty((tasks, heads))
        again = np.zeros((tasks, 1), np.int64)
        for task in prange(tasks):
            _tokens_task(
                x, n, weight, arrays, flow, sign, order, alone, panels, sizes, limit, degree, table,
                task * units // tasks * unit,
                min((task + 1) * units // tasks * unit, n), v, parts[task], lows[task], again[task],
            )  # fmt: skip
        terms = np.zeros(N_TERMS)
        lowest = np.full(heads, np.inf)
        redone = 0
        for task in range(tasks):
            add_share(terms, parts[task])
            for h in range(heads):
                lowest[h] = min(lowest[h], lows[task, h])
            redone += again[task, 0]
        return v, terms, lowest, redone

    return evaluate_tokens


evaluate_tokens = compiled(_entry_points)


Floats = NDArray[np.float64]

# Times in ns of one core that `choose` compares, so set that it takes the fast sums from where they
# are faster in benchmarks/fast_sums.py: a pair of tokens and head of the exact sums, each value
# used for both tokens or for one; what a path costs in any case; and per multiply-add or so of the
# passes.
EXACT_BOTH, EXACT = {2: 0.14, 3: 0.21}, {2: 0.20, 3: 0.31}
FIXED, MOMENTS, COEFFICIENTS, EVALUATION, PER_HEAD = 6e5, 0.5, 0.06, 0.03, 20.0
FEWEST_TOKENS = 256  # below, the series never pays


class Series(NamedTuple):
    """The series of the heads of one path, ready to be evaluated at its tokens.

    order, alone : heads in the order of their panels, and heads that are to be summed exactly
    panels (panels, K * 12), sizes (panels,) : coefficients, times n, and how many count
    error (heads,) : bound of what is missing in a head's mean kernel value, anywhere
    mean (heads,) : mean mobility, the integral of m_h over the tokens
    squares (heads,) : integral over pairs of U <x, y>^2 or U <x, D y>^2, if asked for
    limit (heads,) : sum over tokens below which the tolerance is missed
    degree : highest degree of all heads
    """

    order: NDArray[np.int64]
    alone: NDArray[np.int64]
    panels: Floats
    sizes: NDArray[np.int64]
    error: Floats
    mean: Floats
    squares: Floats
    limit: Floats
    degree: int


@lru_cache(maxsize=2)
def table_of(d: int) -> Floats:
    """Constants of the recursion of the harmonics, up to the highest degree in use."""
    return recursion_table(d, LARGEST_DEGREE[d] + 2)


class Sources(NamedTuple):
    """Points that replace the tokens: the tokens themselves, or fewer nodes.

    points (q, d), mass (q,) : the same moments as the tokens, up to two degrees above the heads'
    factor : 1 + 2 sum |mass| for nodes, 1 for tokens: what a tail is multiplied by
    noise : N of `series.ROUNDING_NODES`
    """

    points: Floats
    mass: Floats
    factor: float
    noise: float


def sources(x: Floats, degree: int, mass: Floats | None = None) -> Sources:
    """Points and weights that replace the tokens (n, d) in heads up to a degree.

    mass : (n,) of any sign, sum |mass| = 1; None for 1/n
    """
    n, d = x.shape
    if n <= node_count(degree, d):
        return Sources(x, np.full(n, 1 / n) if mass is None else mass, 1.0, 0.0)
    table = table_of(d)
    last = degree + 2
    if mass is None:
        moment = passes.moments(x, np.full(n, 1.0), last, table) / n
    else:
        moment = passes.moments(x, mass, last, table)
    nodes, weights = quadrature(d, last)
    node_mass = weights * passes.expand(nodes, moment, last, table)
    below = np.array([0] + [count(degree, d) for degree in range(last)])
    norms = np.sqrt(np.add.reduceat(moment * moment, below))
    # |mu_l| max_y |Y_l(y)| for every degree, over the whole sphere.
    sizes = np.diff(below, append=len(moment))
    noise = float(norms @ np.sqrt(sizes * weights.sum()))
    if mass is not None:
        # Moments of weights of both signs cancel, their rounding errors do not.
        noise = max(noise, 1.0)
    return Sources(nodes, node_mass, 1 + 2 * float(np.abs(node_mass).sum()), noise)


class Expansion(NamedTuple):
    """Coefficients of some heads of one path and what bounds their error.

    coefficient (heads, K, columns) : of 1, the coordinates y_a and their products
    moment (K, columns) : of the sources themselves
    error (heads,) : bound of what is missing in a head's sum with sum |mass| = 1, anywhere
    """

    coefficient: Floats
    moment: Floats
    error: Floats


def expansion(
    x: Floats, D: Floats, chosen: Plan, inside: NDArray[np.int64], products: int,
    mass: Floats | None = None,
) -> Expansion:  # fmt: skip
    """The series of the heads `inside`, in this order, for sources x (n, d) with these masses.

    products : 0 for sums of U, 1 for those of U y too, 2 and 3 as in `series.coefficients`
    """
    degrees = chosen.degrees[inside]
    degree = int(degrees.max())
    points, masses, factor, noise = sources(x, degree, mass)
    coefficient, strength = passes.coefficients(
        points, masses, D[inside], degrees, chosen.tops[inside], table_of(x.shape[1]), products
    )
    rho = chosen.rho[inside]
    off = max(0.0, chosen.off - 8 * EPSILON)
    rounding = (ROUNDING + ROUNDING_SCORE * rho) * EPSILON + (degree + 3 + rho) * off
    tails = factor * chosen.tails[inside]
    nodes = ROUNDING_NODES * EPSILON * noise
    error = (tails + nodes) * np.exp(rho) + rounding * strength
    return Expansion(coefficient[:-1], coefficient[-1], error)


def by_degree(chosen: Plan) -> NDArray[np.int64]:
    """Heads that a series serves; those of similar degree, which share a panel, lie together."""
    inside = np.flatnonzero(chosen.degrees >= 0)
    # Ties by number, so that the order is one.
    return inside[np.lexsort((inside, -chosen.degrees[inside]))]


def panels_of(
    coefficient: Floats, degrees: NDArray[np.int64], d: int, scale: Floats
) -> tuple[Floats, NDArray[np.int64], int]:
    """Panels of coefficients (heads, K, columns), times `scale` (heads,), heads by falling degree.

    Returns the panels (panels, K * 12), the harmonics of each that count, and the highest degree.
    """
    heads, _, columns = coefficient.shape
    per_panel = TILE_COLUMNS // columns
    panels = -(-heads // per_panel)
    degree = int(degrees[0]) if heads else 0
    size = count(degree, d)
    table = np.zeros((panels, size, TILE_COLUMNS))
    for place in range(heads):
        at = place % per_panel * columns
        table[place // per_panel, :, at : at + columns] = scale[place] * coefficient[place, :size]
    sizes = np.array([count(int(top), d) for top in degrees[::per_panel]], np.int64)
    return table.reshape(panels, size * TILE_COLUMNS), sizes, degree


def expand_heads(x: Floats, D: Floats, chosen: Plan, tolerance: float, products: int) -> Series:
    """Coefficients of all heads of one path and the bounds of their errors.

    Parameters
    ----------
    x : (n, d); D : (heads, d, d)
    products : 1 for sums of U and U y, 2 for the integral of U <x, y>^2 too, 3 for U <x, D y>^2
    """
    n, d = x.shape
    heads = len(D)
    inside = by_degree(chosen)
    nothing = np.zeros(heads)
    if not len(inside):
        none = np.empty(0, np.int64)
        empty = np.empty((0, TILE_COLUMNS))
        return Series(
            none, np.arange(heads), empty, none, nothing, nothing, nothing, nothing, 0
        )  # fmt: skip
    degrees = chosen.degrees[inside]
    coefficient, moment, bound = expansion(x, D, chosen, inside, products)
    error, mean, squares, limit = (np.zeros(heads) for _ in range(4))
    error[inside] = bound
    mean[inside] = coefficient[:, :, 0] @ moment[:, 0]
    if products > 1:
        twice = np.array([1.0 if a == b else 2.0 for a in range(d) for b in range(a, d)])
        squares[inside] = np.einsum(
            "hkc,kc,c->h", coefficient[:, :, 1 + d :], moment[:, 1 + d :], twice
        )
    # A head whose mean mobility misses the tolerance misses it at most tokens.
    with np.errstate(invalid="ignore"):
        kept = error[inside] * (1 + 1 / tolerance) <= mean[inside]
    order = inside[kept]
    alone = np.setdiff1d(np.arange(heads), order)
    panels, sizes, degree = panels_of(
        coefficient[kept, :, : 1 + d], degrees[kept], d, np.full(len(order), float(n))
    )
    limit[order] = n * error[order] * (1 + 1 / tolerance)
    return Series(order, alone, panels, sizes, error, mean, squares, limit, degree)


def relative_error(series: Series, chosen: Plan, lowest: Floats, n: int) -> float:
    """Bound of the relative error of the mobilities, from each head's smallest series value."""
    rounding = 8 * EPSILON * (1 + min(float(chosen.rho.max()), 64.0))  # of the exact sums
    worst = rounding
    for h in series.order:
        for least in (lowest[h] / n, series.mean[h]):
            if math.isfinite(least):
                worst = max(worst, float(series.error[h] / (least - series.error[h])))
    return worst


def plain(array: NDArray[np.floating]) -> Floats:
    """`array` as the one type that the compiled code knows: doubles, contiguous, writable."""
    return np.require(array, np.float64, ["C", "W"])


def as_doubles(x: NDArray[np.floating]) -> Floats:
    """Tokens in double precision; tokens in single precision are put on the sphere first."""
    if x.dtype == np.float64:
        return plain(x)
    tokens = np.array(x, np.float64, order="C")
    with np.errstate(invalid="ignore", divide="ignore"):
        tokens /= np.sqrt(np.einsum("...k,...k->...", tokens, tokens))[..., None]
    return tokens


def fast_sums(
    x: NDArray[np.floating],
    score: NDArray[np.floating],
    value: NDArray[np.floating],
    drift: NDArray[np.floating],
    noise: NDArray[np.floating],
    sigma2: NDArray[np.floating],
    flow: int,
    sign: float,
    tolerance: float,
) -> tuple[NDArray[np.floating], Floats, Floats]:
    """Velocities and energy terms of all paths by truncated series, in time linear in n.

    Parameters
    ----------
    x : (paths, n, d) unit tokens, d = 2 or 3
    score, value, drift, noise, sigma2 : as in `headsums.Heads`
    flow : `headsums.SOFTMAX`, ...; sign : -1.0 descent, 1.0 ascent
    tolerance : relative error allowed in the mobility m_h(x_i) of any head at any token; where a
        block of tokens would miss it, the block is summed exactly

    Returns
    -------
    v : (paths, n, d) of the type of x; terms : (paths, N_TERMS) in the order of `headsums.TERMS`
    error : (paths,) bound of the relative error of every m_h(x_i) and of the energy; that of the
        Itô term is within twice as much, that of a softmax velocity within 2 max |V_h| error.
        A path with a token or head that is not finite gives NaN throughout.

    Raises
    ------
    InputError
        For d > 3, and a tolerance out of range.
    """
    tolerance = check_tolerance(tolerance, x.shape[-1])
    paths = len(x)
    v = np.empty_like(x)
    terms = np.empty((paths, N_TERMS))
    error = np.empty(paths)
    tokens = as_doubles(x)
    arrays = [plain(a) for a in (score, value, drift, noise, sigma2)]
    for p in range(paths):
        v[p], terms[p], error[p] = _one_path(
            tokens[p], Heads(*(a[p] for a in arrays)), flow, sign, tolerance
        )
    return v, terms, error


def _one_path(
    x: Floats,
    arrays: Heads,
    flow: int,
    sign: float,
    tolerance: float,
) -> tuple[Floats, Floats, float]:
    n, d = x.shape
    score, sigma2 = plain(arrays.score), plain(arrays.sigma2)
    heads = len(score)
    chosen = plan(x, score, tolerance)
    if not chosen.finite:
        return np.full_like(x, np.nan), np.full(N_TERMS, np.nan), math.nan
    ito = len(sigma2) > 0
    series = expand_heads(x, score, chosen, tolerance, 2 if ito else 1)
    tokens, weight = padded(x, TILE)
    v, total, lowest, _ = evaluate_tokens(
        tokens, n, weight, arrays, flow, sign, series.order,
        series.alone, series.panels, series.sizes, series.limit, series.degree, table_of(d),
    )  # fmt: skip
    pairs = 2.0 * heads * n * n
    if ito:
        for h in series.order:
            total[ITO_POWER] += sigma2[h] * (series.mean[h] + series.squares[h]) * n * n
    total[:DISSIPATION] /= pairs
    total[ITO_POWER] /= 4.0
    total[DISSIPATION:MAX_SPEED] /= n
    return v, total, relative_error(series, chosen, lowest, n)


def choose(
    x: NDArray[np.floating], D: NDArray[np.floating], tolerance: float, symmetric: bool
) -> NDArray[np.bool_]:
    """Whether the fast sums take less time, for every path; x (paths, n, d).

    A decision from data and constants alone, so that a run is the same wherever it runs. Where the
    bounds say that tokens may miss the tolerance, the share that will is estimated from a sample.

    Parameters
    ----------
    D : (paths, heads, d, d); symmetric : whether the exact sums may use U_hij = U_hji
    """
    paths, n, d = x.shape
    result = np.zeros(paths, bool)
    if d not in LARGEST_DEGREE or n < FEWEST_TOKENS:
        return result
    exact = exact_cost(n, D.shape[1], d, symmetric)
    if x.dtype == np.float32:  # twice the lanes; the series is always in double precision
        exact /= 2
    if exact <= FIXED:
        return result
    tokens = as_doubles(x)
    matrices = plain(D)
    for p in range(paths):
        chosen = plan(tokens[p], matrices[p], tolerance)
        # What is not finite ends as NaN at once there.
        result[p] = (
            not chosen.finite or predicted_cost(tokens[p], matrices[p], chosen, tolerance) < exact
        )
    return result


def exact_cost(n: int, heads: int, d: int, symmetric: bool) -> float:
    """Predicted time of the exact sums, in ns of one core."""
    both = symmetric and n <= SYMMETRIC_TOKENS
    return heads * n * n * (EXACT_BOTH[d] if both else EXACT[d])


def predicted_cost(
    x: Floats, D: Floats, chosen: Plan, tolerance: float, cloud: Floats | None = None, sets: int = 1
) -> float:
    """Predicted time of the fast sums at the targets x, in ns of one core.

    cloud : the sources, by default x; sets : how many sets of weights they have
    """
    d = x.shape[1]
    cloud = x if cloud is None else cloud
    n = len(cloud)
    inside = chosen.degrees >= 0
    degrees = np.sort(chosen.degrees[inside])[::-1]
    exactly = len(x) * n * EXACT[d]
    cost = FIXED + exactly * np.count_nonzero(~inside)
    if not len(degrees):
        return cost
    top = int(degrees[0])
    nodes = node_count(top, d)
    if n > nodes:
        cost += sets * MOMENTS * (n + nodes) * count(top + 2, d)
    columns = 4 + d + d * (d + 1) // 2
    numbers = [count(int(degree), d) for degree in degrees]
    cost += COEFFICIENTS * columns * min(n, nodes) * sum(numbers)
    panels = sum(numbers[:: TILE_COLUMNS // (1 + d)])
    cost += len(x) * (EVALUATION * TILE_COLUMNS * panels + PER_HEAD * len(degrees))
    rho = chosen.rho[inside]
    error = chosen.tails[inside] + (ROUNDING + ROUNDING_SCORE * rho) * EPSILON
    for place in np.flatnonzero(error > 0.9 * tolerance * np.exp(chosen.low[inside] - rho)):
        wanted = math.log(error[place] / tolerance) + float(rho[place])
        cost += exactly * _share_below(x, D[inside][place], wanted, cloud)
    return cost


def _share_below(x: Floats, D: Floats, log_mobility: float, cloud: Floats) -> float:
    """Share of blocks of tokens whose mobility is below a bound somewhere, from a sample."""
    some = x[:: max(1, len(x) // 64)][:64]
    many = cloud[:: max(1, len(cloud) // 256)][:256]
    scores = some @ D @ many.T
    highest = scores.max(axis=1)
    found = highest + np.log(np.exp(scores - highest[:, None]).mean(axis=1))
    return float(1 - np.mean(found >= log_mobility) ** 8)
