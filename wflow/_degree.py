"""How many terms of the series a head needs, what they cost, and what error is left.

Bounds and their proofs are in docs/mathematics.md section 13.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wflow import _pairsums, _series
from wflow._checks import number
from wflow._harmonics import DEGREE_CIRCLE, DEGREE_SPHERE
from wflow._kernel_cache import compiled
from wflow._pairsums import DIRECT_BOUND_DOUBLE
from wflow.errors import InputError

Floats = NDArray[np.float64]

# Below the first, rounding alone (some 1e-14 for weak heads) leaves no room for the series;
# above the second, the velocity would be off by a visible share.
SMALLEST_TOLERANCE, LARGEST_TOLERANCE = 1e-13, 1e-2
LARGEST_DEGREE = {2: DEGREE_CIRCLE, 3: DEGREE_SPHERE}
# Rounding of a sum of the series is taken to be below
#   eps [(ROUNDING + ROUNDING_SCORE rho) sum_q |w_q| exp|z_q| + ROUNDING_NODES N e^rho],
# N = sum_q W_q sum_k |mu_k Y_k(y_q)| for nodes and 0 for tokens. The factors were measured, against
# sums in extended precision, and doubled at least: benchmarks/fast_sums.py --check repeats that.
ROUNDING, ROUNDING_SCORE, ROUNDING_NODES = 40.0, 8.0, 6.0
EPSILON = 2.0**-53
# Tails are followed up to here: at |z| = 64 nothing of the series is left beyond.
_TOP = 200


def check_tolerance(tolerance: float, d: int) -> float:
    """Check the relative error asked of the fast sums, and that they exist for this d.

    Parameters
    ----------
    tolerance : relative error allowed in the mobility of any head at any token
    d : dimension of the tokens

    Returns
    -------
    tolerance as float

    Raises
    ------
    InputError
        For d > 3, a tolerance that is no number, below 1e-13 (rounding) or not below 1e-2.
    """
    if d not in LARGEST_DEGREE:
        raise InputError(
            "the fast sums exist on the circle and the sphere, d = 2 and 3: these tokens have "
            f"d = {d}; use method='exact'"
        )
    value = number(tolerance, "tolerance")
    if not SMALLEST_TOLERANCE <= value < LARGEST_TOLERANCE:
        why = "doubles allow no less" if value < SMALLEST_TOLERANCE else "the sums would be wrong"
        raise InputError(
            f"tolerance is {value:g}: expected {SMALLEST_TOLERANCE:g} <= tolerance < "
            f"{LARGEST_TOLERANCE:g} ({why}); for sums without truncation use method='exact'"
        )
    return value


@njit(error_model="numpy")
def relative_tails(r, d):
    """e^-r T_l(r) for l = 0.._TOP - 1, T_l = sum_(k > l) (2k + 1) i_k(r) (d = 2: 2 sum I_k)."""
    ratio = np.zeros(_TOP + 2)
    odd = 1.0 if d == 3 else 0.0
    for l in range(_TOP + 1, 0, -1):  # noqa: E741
        after = ratio[l + 1] if l <= _TOP else 0.0
        ratio[l] = r / (2.0 * l + odd + r * after)
    terms = np.empty(_TOP + 2)
    factor = 1.0
    total = 0.0
    for l in range(_TOP + 2):  # noqa: E741
        factor *= ratio[l] if l > 0 else 1.0
        weight = 2.0 * l + 1.0 if d == 3 else (2.0 if l > 0 else 1.0)
        terms[l] = weight * factor
    for l in range(_TOP + 1, -1, -1):  # noqa: E741
        total += terms[l]
    tails = np.zeros(_TOP)
    rest = terms[_TOP + 1]
    for l in range(_TOP, 0, -1):  # noqa: E741
        rest += terms[l]
        tails[l - 1] = rest / total
    return tails


@njit(error_model="numpy")
def source_factor(degree, d):
    """1 + 2 A with the bound A <= sqrt(number of harmonics of the sources)."""
    last = degree + 2
    return 1.0 + 2.0 * (last + 1.0 if d == 3 else math.sqrt(2.0 * last + 1.0))


def _entry_points(source, cache):
    """The compiled function that Python calls."""

    @njit(cache=cache, error_model="numpy")
    def choose_degrees(rho, low, tolerance, d, largest):
        """Degree of each head, -1 where no series will do; start of its recursion; relative tail.

        rho (heads,) : norms |D_h|; low (heads,) : lower bounds of log m_h over the tokens
        """
        _ = source  # part of the cache key
        heads = rho.shape[0]
        degrees = np.full(heads, -1, np.int64)
        tops = np.zeros(heads, np.int64)
        tails = np.zeros(heads)
        for h in range(heads):
            if not rho[h] <= DIRECT_BOUND_DOUBLE:
                continue
            tail = relative_tails(rho[h], d)
            # The mobilities times tolerance/2, but no less than what rounding leaves anyway.
            target = max(
                0.5 * tolerance * math.exp(low[h] - rho[h]),
                (ROUNDING + ROUNDING_SCORE * rho[h]) * EPSILON,
            )
            degree = 0
            while degree < largest and source_factor(degree, d) * tail[degree] > target:
                degree += 1
            if source_factor(degree, d) * tail[degree] > tolerance:
                continue
            top = degree
            while top < _TOP - 1 and tail[top] > 1e-18:
                top += 1
            degrees[h] = degree
            tops[h] = top + 2
            tails[h] = tail[degree]
        return degrees, tops, tails

    return choose_degrees


choose_degrees = compiled(_entry_points, _pairsums)


class Plan(NamedTuple):
    """What the fast sums of one path need to know beforehand.

    finite : whether all tokens and heads are
    off : largest | |x|^2 - 1 | over the tokens
    rho (heads,) : norms |D_h|, rounded up
    low (heads,) : lower bounds of log m_h over the tokens, min_i <x_i, D_h mean(x)> (Jensen)
    degrees, tops, tails (heads,) : as from `choose_degrees`
    """

    finite: bool
    off: float
    rho: Floats
    low: Floats
    degrees: NDArray[np.int64]
    tops: NDArray[np.int64]
    tails: Floats


def plan(x: Floats, D: Floats, tolerance: float) -> Plan:
    """Norms, bounds and degrees of one path; x (n, d) and D (heads, d, d) in double precision.

    Cost: n heads d multiply-adds.
    """
    heads, d = D.shape[:2]
    mean, off = _series.survey(x)
    nothing = np.zeros(heads)
    if not (math.isfinite(off) and np.isfinite(D).all()):
        whole = np.zeros(heads, np.int64)
        return Plan(False, off, nothing, nothing, whole - 1, whole, nothing)
    with np.errstate(over="ignore", invalid="ignore"):
        rho = np.linalg.norm(D, 2, axis=(1, 2)) * (1 + 1e-14)
        directions = np.ascontiguousarray(D @ mean)
    low = _series.lowest_along(x, directions)
    found = choose_degrees(rho, low, tolerance, d, LARGEST_DEGREE[d])
    return Plan(True, off, rho, low, *found)


def node_count(degree: int, d: int) -> int:
    """Nodes of the quadrature that stands for many tokens, for heads up to `degree`."""
    last = degree + 2
    return 2 * last + 1 if d == 2 else (last + 1) * (2 * last + 1)
