"""Fast sums on the circle and the sphere: velocities and ledger terms in time linear in n.

exp<x, D y> is expanded in harmonics of x (`_harmonics`). Many tokens y are first replaced by a few
nodes with weights that have the same moments, so that the coefficients of a head cost the same for
any n; what is left per token are the harmonics, shared by all heads, and one small matrix product.
Formulas, error bounds and costs: docs/mathematics.md section 13.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow import _series
from wflow._degree import (
    EPSILON,
    LARGEST_DEGREE,
    ROUNDING,
    ROUNDING_NODES,
    ROUNDING_SCORE,
    Plan,
    check_tolerance,
    node_count,
    plan,
)
from wflow._fast_tokens import evaluate_tokens
from wflow._fused import SYMMETRIC_TOKENS
from wflow._harmonics import count, quadrature, recursion_table
from wflow._headsums import N_TERMS
from wflow._pairsums import TILE, padded
from wflow._tile import TILE_COLUMNS

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
    """Points that stand for the tokens: the tokens themselves, or fewer nodes.

    points (q, d), mass (q,) : the same moments as the tokens, up to two degrees above the heads'
    factor : 1 + 2 sum |mass| for nodes, 1 for tokens: what a tail is multiplied by
    noise : N of `_degree.ROUNDING_NODES`
    """

    points: Floats
    mass: Floats
    factor: float
    noise: float


def sources(x: Floats, degree: int) -> Sources:
    """Points and weights that stand for the tokens (n, d) in heads up to a degree."""
    n, d = x.shape
    if n <= node_count(degree, d):
        return Sources(x, np.full(n, 1 / n), 1.0, 0.0)
    table = table_of(d)
    last = degree + 2
    moment = _series.moments(x, np.full(n, 1.0), last, table) / n
    nodes, weights = quadrature(d, last)
    mass = weights * _series.expand(nodes, moment, last, table)
    below = np.array([0] + [count(degree, d) for degree in range(last)])
    norms = np.sqrt(np.add.reduceat(moment * moment, below))
    # |mu_l| max_y |Y_l(y)| for every degree, over the whole sphere.
    sizes = np.diff(below, append=len(moment))
    noise = float(norms @ np.sqrt(sizes * weights.sum()))
    return Sources(nodes, mass, 1 + 2 * float(np.abs(mass).sum()), noise)


def expand_heads(x: Floats, D: Floats, chosen: Plan, tolerance: float, products: int) -> Series:
    """Coefficients of all heads of one path and the bounds of their errors.

    Parameters
    ----------
    x : (n, d); D : (heads, d, d)
    products : 1 for sums of U and U y, 2 for the integral of U <x, y>^2 too, 3 for U <x, D y>^2
    """
    n, d = x.shape
    heads = len(D)
    inside = np.flatnonzero(chosen.degrees >= 0)
    # Heads of similar degree share a panel; ties by number, so that the order is one.
    inside = inside[np.lexsort((inside, -chosen.degrees[inside]))]
    nothing = np.zeros(heads)
    if not len(inside):
        none = np.empty(0, np.int64)
        empty = np.empty((0, TILE_COLUMNS))
        return Series(
            none, np.arange(heads), empty, none, nothing, nothing, nothing, nothing, 0
        )  # fmt: skip
    degrees = chosen.degrees[inside]
    degree = int(degrees[0])
    stand = sources(x, degree)
    coefficient, strength = _series.coefficients(
        stand.points, stand.mass, D[inside], degrees, chosen.tops[inside],
        table_of(d), products,
    )  # fmt: skip
    moment = coefficient[-1]
    coefficient = coefficient[:-1]
    rho = chosen.rho[inside]
    off = max(0.0, chosen.off - 8 * EPSILON)
    rounding = (ROUNDING + ROUNDING_SCORE * rho) * EPSILON + (degree + 3 + rho) * off
    nodes = ROUNDING_NODES * EPSILON * stand.noise
    error, mean, squares, limit = (np.zeros(heads) for _ in range(4))
    tails = stand.factor * chosen.tails[inside]
    error[inside] = (tails + nodes) * np.exp(rho) + rounding * strength
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
    coefficient, degrees = coefficient[kept, :, : 1 + d], degrees[kept]
    per_panel = TILE_COLUMNS // (1 + d)
    panels = -(-len(order) // per_panel)
    degree = int(degrees[0]) if len(order) else 0
    size = count(degree, d)
    table = np.zeros((panels, size, TILE_COLUMNS))
    for place in range(len(order)):
        at = place % per_panel * (1 + d)
        table[place // per_panel, :, at : at + 1 + d] = n * coefficient[place, :size]
    sizes = np.array([count(int(top), d) for top in degrees[::per_panel]], np.int64)
    limit[order] = n * error[order] * (1 + 1 / tolerance)
    flat = table.reshape(panels, size * TILE_COLUMNS)
    return Series(order, alone, flat, sizes, error, mean, squares, limit, degree)


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
    """Velocities and ledger terms of all paths by truncated series, in time linear in n.

    Parameters
    ----------
    x : (paths, n, d) unit tokens, d = 2 or 3
    score, value : (paths, heads, d, d) D_h of <x, D_h y>, and the matrix applied to S_h
    drift, noise : (paths, heads, d, d) f_h and sigma dW_h, or (paths, 0, d, d) where absent
    sigma2 : (paths, heads), or (paths, 0) for no Ito term
    flow : `_headsums.SOFTMAX`, ...; sign : -1.0 descent, 1.0 ascent
    tolerance : relative error allowed in the mobility m_h(x_i) of any head at any token; where a
        block of tokens would miss it, the block is summed exactly

    Returns
    -------
    v : (paths, n, d) of the type of x; terms : (paths, N_TERMS) in the order of `_headsums.TERMS`
    error : (paths,) bound of the relative error of every m_h(x_i) and of the energy; that of the
        Ito term is within twice as much, that of a softmax velocity within 2 max |V_h| error.
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
    score, value, drift, noise, sigma2 = (plain(a) for a in (score, value, drift, noise, sigma2))
    for p in range(paths):
        v[p], terms[p], error[p] = _one_path(
            tokens[p], score[p], value[p], drift[p], noise[p], sigma2[p], flow, sign, tolerance
        )
    return v, terms, error


def _one_path(
    x: Floats,
    score: Floats,
    value: Floats,
    drift: Floats,
    noise: Floats,
    sigma2: Floats,
    flow: int,
    sign: float,
    tolerance: float,
) -> tuple[Floats, Floats, float]:
    n, d = x.shape
    heads = len(score)
    chosen = plan(x, score, tolerance)
    if not chosen.finite:
        return np.full_like(x, np.nan), np.full(N_TERMS, np.nan), math.nan
    ito = len(sigma2) > 0
    series = expand_heads(x, score, chosen, tolerance, 2 if ito else 1)
    tokens, weight = padded(x, TILE)
    v, total, lowest, _ = evaluate_tokens(
        tokens, n, weight, score, value, drift, noise, sigma2, flow, sign, series.order,
        series.alone, series.panels, series.sizes, series.limit, series.degree, table_of(d),
    )  # fmt: skip
    pairs = 2.0 * heads * n * n
    if ito:
        for h in series.order:
            total[2] += sigma2[h] * (series.mean[h] + series.squares[h]) * n * n
    total[:4] /= pairs
    total[2] /= 4.0
    total[4:8] /= n
    return v, total, relative_error(series, chosen, lowest, n)


def choose(
    x: NDArray[np.floating], D: NDArray[np.floating], tolerance: float, symmetric: bool
) -> NDArray[np.bool_]:
    """Whether the fast sums are the faster way, for every path; x (paths, n, d).

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


def predicted_cost(x: Floats, D: Floats, chosen: Plan, tolerance: float) -> float:
    """Predicted time of the fast sums, in ns of one core."""
    n, d = x.shape
    inside = chosen.degrees >= 0
    degrees = np.sort(chosen.degrees[inside])[::-1]
    exactly = n * n * EXACT[d]
    cost = FIXED + exactly * np.count_nonzero(~inside)
    if not len(degrees):
        return cost
    top = int(degrees[0])
    nodes = node_count(top, d)
    if n > nodes:
        cost += MOMENTS * (n + nodes) * count(top + 2, d)
    columns = 4 + d + d * (d + 1) // 2
    numbers = [count(int(degree), d) for degree in degrees]
    cost += COEFFICIENTS * columns * min(n, nodes) * sum(numbers)
    panels = sum(numbers[:: TILE_COLUMNS // (1 + d)])
    cost += n * (EVALUATION * TILE_COLUMNS * panels + PER_HEAD * len(degrees))
    rho = chosen.rho[inside]
    error = chosen.tails[inside] + (ROUNDING + ROUNDING_SCORE * rho) * EPSILON
    for place in np.flatnonzero(error > 0.9 * tolerance * np.exp(chosen.low[inside] - rho)):
        wanted = math.log(error[place] / tolerance) + float(rho[place])
        cost += exactly * _share_below(x, D[inside][place], wanted)
    return cost


def _share_below(x: Floats, D: Floats, log_mobility: float) -> float:
    """Share of blocks of tokens whose mobility is below a bound somewhere, from a sample."""
    some = x[:: max(1, len(x) // 64)][:64]
    many = x[:: max(1, len(x) // 256)][:256]
    scores = some @ D @ many.T
    highest = scores.max(axis=1)
    found = highest + np.log(np.exp(scores - highest[:, None]).mean(axis=1))
    return float(1 - np.mean(found >= log_mobility) ** 8)
