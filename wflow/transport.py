"""Wasserstein distances, plans and maps between token clouds on the sphere.

Between clouds x (n, d) with weights a and y (m, d) with weights b,

    W_p(x, y) = ( min over plans pi of sum_ij pi_ij c(x_i, y_j)^p )^(1/p),   p >= 1,

pi >= 0 with row sums a and column sums b; c is the geodesic distance 2 atan2(|x - y|, |x + y|), or
the chord |x - y|. Weights are uniform where none are given. `METHODS` says how it is computed.
"""

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow import _transport_circle as on_circle
from wflow import _transport_entropic, _transport_time
from wflow._checks import check_choice, positive, whole
from wflow._transport_costs import pair_costs
from wflow._transport_input import FloatArray, Pair, pair
from wflow._transport_methods import (
    COSTS,
    EXACT_PAIRS,
    METHODS,
    assign,
    check_memory,
    check_method,
    choose,
    costs_of,
    exact_cost,
    exact_kind,
    power,
    root,
    simplex,
    sliced,
    warn_inexact,
)
from wflow.errors import InputError

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

__all__ = [
    "COSTS",
    "EXACT_PAIRS",
    "METHODS",
    "Entropic",
    "assignment",
    "distance",
    "entropic",
    "over_time",
    "plan",
    "transport_map",
    "w1",
    "w2",
    "wasserstein",
]


class Entropic(NamedTuple):
    """What entropic transport found of W_p.

    Attributes
    ----------
    value : upper bound, the p-th root of the cost of a plan with the exact marginals
    lower : lower bound, the p-th root of a dual value
    iterations : of the entropic potentials, at all temperatures together
    converged : whether value - lower <= tolerance * value, or value is no more than rounding
    """

    value: float
    lower: float
    iterations: int
    converged: bool


def wasserstein(
    x: ArrayLike,
    y: ArrayLike,
    p: float = 2.0,
    *,
    cost: str = "geodesic",
    method: str = "auto",
    weights_x: ArrayLike | None = None,
    weights_y: ArrayLike | None = None,
    reg: float | None = None,
    tolerance: float = 0.05,
    projections: int = 200,
    seed: int = 0,
) -> float:
    """Wasserstein distance W_p = (min over plans of sum_ij pi_ij c(x_i, y_j)^p)^(1/p).

    Parameters
    ----------
    x : (n, d) unit tokens
    y : (m, d) unit tokens
    p : real, 1 to 20
    cost : "geodesic" (angle, at most pi) or "chordal" (|x - y|, at most 2)
    method : a key of `METHODS`:

        "exact": for uniform clouds of one size, linear assignment; otherwise the network simplex,
        whose accuracy in W_p^p is 1e-14 of the largest cost. Memory 8 n m bytes, or 40 n m.

        "circle": for d = 2 and the geodesic cost, exact for any p and weights, O(k log k), k = n+m.

        "entropic": the upper bound of `entropic`, which says more; warns where the bounds differ by
        more than `tolerance`. Memory 8 to 16 n m bytes.

        "sliced": (mean over random great circles of W_p^p of the projections)^(1/p), in radians;
        equal to W_p for d = 2 and to no W_p otherwise. Memory O(n + m).

        "auto": "circle" where it applies; "exact" up to `EXACT_PAIRS` = 10,000 x 10,000 pairs,
        if memory allows; "entropic" up to 2^28 = 16,384 x 16,384 pairs; beyond that "sliced" (for
        the geodesic cost). The last two with a warning, as they are not W_p itself.
    weights_x, weights_y : (n,), (m,), >= 0, of sum one; default uniform
    reg, tolerance : of `entropic`
    projections, seed : number of great circles of "sliced", and of the seed that draws them

    Returns
    -------
    float, in radians for the geodesic cost

    Raises
    ------
    InputError
        For clouds off the sphere, empty, of different d, or too large for the method; weights that
        do not sum to one; p outside of 1 to 20; a method that does not apply.

    Source: [MHT] section 2; Peyre and Cuturi, Computational optimal transport (2019); Bonet et al.,
    Spherical sliced-Wasserstein (2023).
    """
    given = pair(x, y, weights_x, weights_y)
    p = power(p)
    check_choice("cost", cost, COSTS)
    check_choice("method", method, METHODS)
    chosen = choose(given, cost) if method == "auto" else method
    check_method(chosen, given, cost)
    if reg is not None and method not in ("auto", "entropic"):
        raise InputError(f"reg belongs to method='entropic', not {method!r}: leave it out")
    if method == "auto" and chosen in ("entropic", "sliced"):
        warn_inexact(given, chosen)
    if chosen == "circle":
        return root(on_circle.circle(*given, p), p)
    if chosen == "exact":
        return root(exact_cost(given, p, cost), p)
    if chosen == "sliced":
        return sliced(given, p, cost, projections, seed)
    found = _entropic(given, p, cost, reg, tolerance, 2000)
    if not found.converged:
        warnings.warn(
            f"entropic transport found W_{p:g} between {found.lower:.6g} and {found.value:.6g}, "
            f"further apart than the tolerance {tolerance:g}; the upper bound is returned",
            stacklevel=2,
        )
    return found.value


def w1(x: ArrayLike, y: ArrayLike, **options) -> float:
    """W_1 between two clouds; options and errors as for `wasserstein`."""
    return wasserstein(x, y, 1.0, **options)


def w2(x: ArrayLike, y: ArrayLike, **options) -> float:
    """W_2 between two clouds; options and errors as for `wasserstein`."""
    return wasserstein(x, y, 2.0, **options)


def entropic(
    x: ArrayLike,
    y: ArrayLike,
    p: float = 2.0,
    *,
    cost: str = "geodesic",
    weights_x: ArrayLike | None = None,
    weights_y: ArrayLike | None = None,
    reg: float | None = None,
    tolerance: float = 0.05,
    max_iterations: int = 2000,
) -> Entropic:
    """Bounds of W_p from entropic transport: lower <= W_p <= value.

    The temperature eps of min sum_ij pi_ij c_ij^p + eps KL(pi | a x b) is lowered by halves. At
    each, the plan brought to the exact marginals gives an upper bound, and the potentials made
    feasible give a lower one. It is meant for bounds a few per cent apart, and p <= 2. Where W_p is
    far smaller than the typical cost, the upper bound is loose and the lower one stays good.

    Parameters
    ----------
    x, y, p, cost, weights_x, weights_y : as for `wasserstein`
    reg : lowest temperature, in units of the largest c^p; None: as low as the tolerance needs
    tolerance : wanted (value - lower) / value
    max_iterations : in all

    Returns
    -------
    Entropic(value, lower, iterations, converged)

    Raises
    ------
    InputError
        As for `wasserstein`, and for reg, tolerance or max_iterations out of range.

    Source: docs/mathematics.md, transport; Altschuler, Weed, Rigollet (2017).
    """
    given = pair(x, y, weights_x, weights_y)
    p = power(p)
    check_choice("cost", cost, COSTS)
    check_method("entropic", given, cost)
    return _entropic(given, p, cost, reg, tolerance, max_iterations)


def plan(
    x: ArrayLike,
    y: ArrayLike,
    p: float = 2.0,
    *,
    cost: str = "geodesic",
    weights_x: ArrayLike | None = None,
    weights_y: ArrayLike | None = None,
) -> FloatArray:
    """An optimal plan pi: sum_ij pi_ij c(x_i, y_j)^p = W_p^p, row sums a and column sums b.

    Parameters and errors as for `wasserstein`. Returns (n, m); by the closed form on the circle, by
    linear assignment for uniform clouds of one size, else by the network simplex. An optimal plan
    need not be the only one.
    """
    given = pair(x, y, weights_x, weights_y)
    p = power(p)
    check_choice("cost", cost, COSTS)
    check_memory(given, "plan", 16 if exact_kind(given, cost) != "simplex" else 48)
    out = np.zeros((len(given.x), len(given.y)))
    if exact_kind(given, cost) == "circle":
        rows, columns, mass = on_circle.circle_plan(*given, p)
        np.add.at(out, (rows, columns), mass)
        return out
    if given.assigned:
        out[np.arange(len(out)), assign(costs_of(given, p, cost))] = 1 / len(out)
        return out
    return simplex(given, costs_of(given, p, cost))[1]


def assignment(
    x: ArrayLike, y: ArrayLike, p: float = 2.0, *, cost: str = "geodesic"
) -> NDArray[np.int64]:
    """Optimal permutation s of uniform clouds of one size: W_p^p = (1/n) sum_i c(x_i, y_s(i))^p.

    Parameters and errors as for `wasserstein`, with n = m. Returns (n,) numbers of tokens of y.
    Source: the extreme points of the plans are the permutations (Birkhoff).
    """
    given = pair(x, y, None, None)
    p = power(p)
    check_choice("cost", cost, COSTS)
    if not given.assigned:
        raise InputError(
            f"x has {len(given.x)} tokens and y {len(given.y)}: an assignment needs as many; use "
            "wflow.transport.plan"
        )
    if exact_kind(given, cost) == "circle":
        return on_circle.circle_assignment(given.x, given.y, p)
    check_method("exact", given, cost)
    return assign(costs_of(given, p, cost))


def transport_map(
    x: ArrayLike,
    y: ArrayLike,
    p: float = 2.0,
    *,
    cost: str = "geodesic",
    weights_x: ArrayLike | None = None,
    weights_y: ArrayLike | None = None,
) -> FloatArray:
    """Where an optimal plan takes each token of x: T(x_i) on the sphere.

    For uniform clouds of one size, T(x_i) = y_s(i) with s of `assignment`. Otherwise the
    barycentric projection of the plan, T(x_i) = R(sum_j pi_ij y_j) with R the division by the norm.
    A token of weight zero stays where it is.

    Parameters as for `wasserstein`. Returns (n, d) unit tokens.

    Raises
    ------
    InputError
        As for `wasserstein`; and where the plan splits a token between targets whose mean vanishes
        (antipodal ones), so that no direction is left.
    """
    given = pair(x, y, weights_x, weights_y)
    if given.assigned:
        return given.y[assignment(given.x, given.y, p, cost=cost)]
    pi = plan(given.x, given.y, p, cost=cost, weights_x=given.wx, weights_y=given.wy)
    mass = pi.sum(axis=1)
    moved = mass > 0
    mean = pi[moved] @ given.y / mass[moved, None]
    short = np.linalg.norm(mean, axis=1)
    if short.size and short.min() < 1e-9:
        token = int(np.flatnonzero(moved)[np.argmin(short)])
        raise InputError(
            f"the plan splits token {token} of x between targets whose mean vanishes, so that it "
            "has no image on the sphere; use wflow.transport.plan"
        )
    out = given.x.copy()
    out[moved] = mean / short[:, None]
    return out


def distance(x: ArrayLike, y: ArrayLike, cost: str = "geodesic") -> FloatArray:
    """Distances of all pairs of tokens: c(x_i, y_j), (n, m).

    "geodesic": 2 atan2(|x - y|, |x + y|), accurate to rounding for near and antipodal tokens alike;
    "chordal": |x - y|. Parameters and errors as for `wasserstein`.
    """
    given = pair(x, y, None, None)
    check_choice("cost", cost, COSTS)
    check_memory(given, "the matrix of distances", 8)
    return costs_of(given, 1.0, cost)


def over_time(
    run: "str | os.PathLike[str] | Dataset",
    *,
    to: "str | os.PathLike[str] | ArrayLike | Dataset" = "final",
    p: float = 2.0,
    paths: Sequence[int] | None = None,
    progress: bool = False,
    **options: Any,
) -> "DataArray":
    """Distances W_p of the token snapshots of a run, read some megabytes at a time.

    Parameters
    ----------
    run : run file, or a Dataset of `wflow.open` or `wflow.solve`, with snapshots of tokens
    to : from what the distance is taken:

        "final", "initial": the last or first snapshot of the same path

        "previous": the snapshot before; the result is then one shorter, and has the time between
        the two as coordinate `elapsed`

        (m, d): a cloud of unit tokens

        another run, as file or Dataset, with the same snapshot times and paths: its snapshot of the
        same time and path
    p : real, 1 to 20
    paths : numbers of the paths; default all whose tokens were kept
    progress : show a bar with the time left
    options : of `wflow.transport.wasserstein`

    Returns
    -------
    DataArray (snapshot_path, snapshot), named `wasserstein`; NaN where a run that is not complete
    has recorded no tokens

    Raises
    ------
    InputError
        For a run without token snapshots or without one of the paths, another run of other times,
        or what `wasserstein` refuses.
    """
    return _transport_time.distances(wasserstein, run, to, p, paths, progress, options)


def _entropic(
    given: Pair, p: float, cost: str, reg: float | None, tolerance: float, max_iterations: int
) -> Entropic:
    if reg is not None:
        positive(reg, "reg")
    positive(tolerance, "tolerance")
    whole(max_iterations, "max_iterations")
    a, b = given.masses()
    rows, columns = a > 0, b > 0
    costs = pair_costs(given.x[rows], given.y[columns], p, cost == "chordal")
    upper, lower, iterations, converged = _transport_entropic.bounds(
        costs, a[rows], b[columns], p, reg, float(tolerance), max_iterations
    )
    return Entropic(root(upper, p), root(lower, p), iterations, converged)
