"""Wasserstein distances, plans and maps between token clouds on the sphere.

Between clouds x (n, d) with weights a and y (m, d) with weights b,

    W_p(x, y) = ( min over plans pi of sum_ij pi_ij c(x_i, y_j)^p )^(1/p),   p >= 1,

pi >= 0 with row sums a and column sums b; c is the geodesic distance 2 atan2(|x - y|, |x + y|), or
the chord |x - y|. Weights are uniform where none are given. `METHODS` says how it is computed.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core import memory
from wflow._core.checks import (
    check_choice,
    number,
    path_of,
    positive,
    reals,
    shown,
    switch,
    whole,
    wholes,
)
from wflow._core.errors import InputError, WflowError
from wflow._core.progress import progress as progress_bar
from wflow._core.threads import threads_for
from wflow.attention.cloud import as_unit_tokens
from wflow.io.snapshots import Cloud, cloud, clouds, opened, require_tokens
from wflow.sphere.geodesics import pair_costs
from wflow.sphere.geometry import as_tokens
from wflow.transport import circle as on_circle
from wflow.transport import sinkhorn
from wflow.transport.circle import sliced_costs

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

# Arguments
# ---------

FloatArray = NDArray[np.float64]


class Pair(NamedTuple):
    """Two clouds of one dimension and their weights; weights None are uniform."""

    x: FloatArray
    y: FloatArray
    wx: FloatArray | None
    wy: FloatArray | None

    @property
    def pairs(self) -> int:
        return len(self.x) * len(self.y)

    @property
    def assigned(self) -> bool:
        """Whether the best plan is a permutation."""
        return self.wx is None and self.wy is None and len(self.x) == len(self.y)

    def masses(self) -> tuple[FloatArray, FloatArray]:
        n, m = len(self.x), len(self.y)
        return (
            np.full(n, 1 / n) if self.wx is None else self.wx,
            np.full(m, 1 / m) if self.wy is None else self.wy,
        )


def as_cloud(x: ArrayLike, name: str = "x") -> FloatArray:
    """Unit tokens (n, d) in double precision.

    Norms that are one within the tolerance become one: c(x, x) is then zero to rounding.
    """
    return as_tokens(as_unit_tokens(x, name), name)


def pair(
    x: ArrayLike, y: ArrayLike, weights_x: ArrayLike | None, weights_y: ArrayLike | None
) -> Pair:
    clouds = [as_cloud(cloud, name) for name, cloud in (("x", x), ("y", y))]
    if clouds[0].shape[1] != clouds[1].shape[1]:
        raise InputError(
            f"x has d = {clouds[0].shape[1]} and y has d = {clouds[1].shape[1]}: distances need "
            "clouds on one sphere; reduce both to one dimension"
        )
    return Pair(
        clouds[0],
        clouds[1],
        _weights(weights_x, len(clouds[0]), "weights_x"),
        _weights(weights_y, len(clouds[1]), "weights_y"),
    )


def _weights(weights: ArrayLike | None, count: int, name: str) -> FloatArray | None:
    """Weights that are not all equal, as (count,) of sum one; None for uniform ones."""
    if weights is None:
        return None
    given = reals(weights, name, finite=False)
    if given.shape != (count,):
        raise InputError(
            f"{name} has shape {given.shape}, expected ({count},): one weight per token"
        )
    if not np.isfinite(given).all() or (given < 0).any():
        bad = int(np.argmin(np.isfinite(given) & (given >= 0)))
        raise InputError(f"{name}[{bad}] is {given[bad]}: expected finite weights >= 0")
    total = math.fsum(given)
    if abs(total - 1) > 1e-8:
        raise InputError(f"{name} sum to {total:.10g}, expected 1: divide by their sum")
    return None if np.all(given == given[0]) else given / total


# POT, without the array libraries that it would load
# ---------------------------------------------------
# POT imports every array library it finds, of which torch alone takes seconds and 200 MB.

_OPTIONAL = {
    "POT_BACKEND_DISABLE_PYTORCH": "torch",
    "POT_BACKEND_DISABLE_JAX": "jax",
    "POT_BACKEND_DISABLE_CUPY": "cupy",
    "POT_BACKEND_DISABLE_TENSORFLOW": "tensorflow",
}


def load_pot() -> ModuleType:
    """Import POT as `ot`, with the array libraries that are loaded already and no others.

    A setting of the user's in the environment stays as it is. A program that wants POT for tensors
    of torch too imports torch, or POT, before its first call of `wflow.transport`.
    """
    if "ot" in sys.modules:
        return sys.modules["ot"]
    switched_off = [
        key
        for key, module in _OPTIONAL.items()
        if key not in os.environ and module not in sys.modules
    ]
    os.environ.update(dict.fromkeys(switched_off, "1"))
    try:
        return importlib.import_module("ot")
    finally:
        for key in switched_off:  # a child process decides for itself
            os.environ.pop(key, None)


# Methods: which one applies, whether it fits in memory
# -----------------------------------------------------

COSTS = ("geodesic", "chordal")
METHODS = {
    "auto": "circle where it applies, else exact, entropic or sliced by the number of pairs",
    "exact": "linear assignment for uniform clouds of one size, else POT's network simplex",
    "circle": "closed form on S^1, for the geodesic cost",
    "entropic": "entropic transport: an upper bound of W_p with a lower bound beside it",
    "sliced": "mean over great circles: another metric, for clouds of any size",
}
EXACT_PAIRS = 10_000 * 10_000  # of tokens, up to which `auto` is exact: half a minute on one core
# Bytes per pair: the costs; the simplex keeps flows and a copy as well, entropic transport a copy
# whose columns fill vectors.
_BYTES = {"assignment": 8, "simplex": 40, "entropic": 16}
ENTROPIC_PAIRS = 2**28  # up to which `auto` is entropic: 2 GiB of costs
LARGEST_POWER = 20.0  # the least distance that is no rounding, 1e-15, to this power is a double


def power(p: float) -> float:
    p = number(p, "p", least=1.0)
    if p > LARGEST_POWER:
        raise InputError(
            f"p is {p:g}: expected 1 <= p <= {LARGEST_POWER:g}; beyond that the powers c^p of "
            "small distances leave the range of doubles"
        )
    return p


def root(value: float, p: float) -> float:
    return float(max(value, 0.0) ** (1 / p))


def costs_of(given: Pair, p: float, cost: str) -> FloatArray:
    with threads_for(given.pairs):
        return pair_costs(given.x, given.y, p, cost == "chordal")


def exact_kind(given: Pair, cost: str) -> str:
    if given.x.shape[1] == 2 and cost == "geodesic":
        return "circle"
    return "assignment" if given.assigned else "simplex"


def choose(given: Pair, cost: str) -> str:
    """The method of "auto", by sizes alone: the same call gives the same digits on any machine."""
    if exact_kind(given, cost) == "circle":
        return "circle"
    if given.pairs <= EXACT_PAIRS:
        return "exact"
    if cost == "chordal" or given.pairs <= ENTROPIC_PAIRS:
        return "entropic"
    return "sliced"


def check_method(method: str, given: Pair, cost: str) -> None:
    """Refuse a method that does not apply to the clouds, or does not fit in memory."""
    d = given.x.shape[1]
    if method in ("circle", "sliced") and cost != "geodesic":
        raise InputError(
            f"method={method!r} has the geodesic cost, not the chordal one; use method='exact' or "
            "'entropic'"
        )
    if method == "circle" and d != 2:
        raise InputError(f"method='circle' is for tokens on S^1 (d = 2), and d = {d}: use 'exact'")
    if method == "entropic":
        check_memory(given, "entropic transport", _BYTES["entropic"])
    if method == "exact":
        kind = "assignment" if given.assigned else "simplex"
        check_memory(given, "exact transport", _BYTES[kind])


def check_memory(given: Pair, what: str, bytes_per_pair: int) -> None:
    memory.check_memory(
        bytes_per_pair * given.pairs,
        f"{what} between {len(given.x)} and {len(given.y)} tokens",
        "use method='entropic' or 'sliced' (the latter for the geodesic cost), or a random part of "
        "the tokens",
    )


def warn_inexact(given: Pair, chosen: str) -> None:
    sizes = f"{len(given.x)} x {len(given.y)} tokens are too many for exact transport"
    what = {
        "entropic": "an upper bound by entropic transport was computed (wflow.transport.sinkhorn "
        "gives the lower one)",
        "sliced": "the sliced distance was computed, which is another metric than W_p",
    }[chosen]
    warnings.warn(
        f"{sizes}: {what}; choose with method='exact', 'entropic' or 'sliced', or take a part of "
        "the tokens",
        stacklevel=3,
    )


def exact_cost(given: Pair, p: float, cost: str) -> float:
    costs = costs_of(given, p, cost)
    if given.assigned:
        return float(costs[np.arange(len(costs)), assign(costs)].mean())
    return simplex(given, costs)[0]


def assign(costs: NDArray[np.floating]) -> NDArray[np.int64]:
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(costs)[1].astype(np.int64)


def simplex(given: Pair, costs: FloatArray) -> tuple[float, FloatArray]:
    """Cost and plan by POT's network simplex, which must say that it is optimal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its message comes with the log, and is raised below
        flow, log = load_pot().emd(*given.masses(), costs, numItermax=2**62, log=True)
    if log["warning"] is not None:
        raise WflowError(
            f"the network simplex did not reach an optimal plan ({log['warning']}); use "
            "method='entropic', and report the clouds"
        )
    return float(np.sum(flow * costs)), flow


def sliced(given: Pair, p: float, cost: str, projections: int, seed: int) -> float:
    memory.check_memory(
        8 * 8 * projections * given.x.shape[1],
        f"the sliced distance by {projections} projections",
        "take fewer",
    )
    rng = np.random.Generator(np.random.Philox(seed))
    normal = rng.standard_normal((projections, given.x.shape[1], 2))
    frames = np.ascontiguousarray(np.swapaxes(np.linalg.qr(normal)[0], 1, 2))
    a, b = given.masses()
    rows, columns = a > 0, b > 0
    clouds = given.x[rows], a[rows], given.y[columns], b[columns]
    with threads_for(30 * projections * (len(a) + len(b))):
        values = sliced_costs(*clouds, frames, p)
    return root(float(values.mean()), p)


# Distances over the snapshots of a run
# -------------------------------------

_RELATIVE = ("final", "initial", "previous")


def _run(run: Any, stack: ExitStack, what: str) -> Dataset:
    """A run with snapshots, which are not read yet."""
    ds = stack.enter_context(opened(run, what))
    require_tokens(ds, str(run) if isinstance(run, str | os.PathLike) else what)
    return ds


def _paths(ds: Dataset, paths: Sequence[int] | None) -> NDArray[np.int64]:
    kept = np.asarray(ds["snapshot_path"].values, np.int64)
    if paths is None:
        return kept
    chosen = wholes(paths, "paths")
    if not chosen.size or not np.isin(chosen, kept).all():
        raise InputError(
            f"paths are {chosen.tolist()}, and the run kept the tokens of {kept.tolist()}; choose "
            "from those, or run again with save=SaveAt(paths=...)"
        )
    return chosen


def _place(ds: Dataset, path: int) -> int:
    return int(np.flatnonzero(ds["snapshot_path"].values == path)[0])


def _pairs(
    snapshots: Iterator[Cloud | None], reference: Iterator[Cloud | None] | None
) -> Iterator[tuple[Cloud | None, Cloud | None]]:
    """Snapshots with the clouds of a reference, in turn; None: each with the one before it."""
    if reference is None:
        yield from ((x, before) for before, x in pairwise(snapshots))
    else:
        yield from zip(snapshots, reference, strict=False)


def _reference(
    to: Any, ds: Dataset, chosen: NDArray[np.int64], times: NDArray, stack: ExitStack
) -> Callable[[int], Iterator[Cloud | None]]:
    """For a path, the clouds that its snapshots are compared with, in turn."""

    def always(cloud: Any) -> Iterator[Any]:
        while True:
            yield cloud

    if isinstance(to, str) and to in _RELATIVE:
        end = len(times) - 1 if to == "final" else 0
        return lambda path: always(cloud(ds, _place(ds, path), end))
    if isinstance(to, str | os.PathLike):
        file = path_of(to, "to")
        nowhere = not file.exists() and not file.with_name(f"{file.name}.partial").exists()
    else:
        nowhere = to is None
    if nowhere:
        raise InputError(
            f"to is {shown(to)}: expected {', '.join(_RELATIVE)}, a run file, or a cloud (m, d)"
        )
    if isinstance(to, str | os.PathLike) or hasattr(to, "data_vars"):
        other = _run(to, stack, "the other run")
        theirs = np.asarray(other["snapshot"].values, float)
        span = max(1.0, float(np.abs(times).max()))
        if theirs.shape != times.shape or not np.allclose(theirs, times, rtol=0, atol=1e-9 * span):
            raise InputError(
                f"the runs have snapshots at {_listed(times)} and at {_listed(theirs)}; run one of "
                "them again with the snapshots of the other"
            )
        _paths(other, chosen.tolist())
        return lambda path: clouds(other, _place(other, path))
    return lambda path: always(to)


def _listed(times: NDArray) -> str:
    first = ", ".join(f"{t:g}" for t in times[:6])
    return f"t = {first}{', ...' if len(times) > 6 else ''} ({len(times)} times)"


def _named(to: Any) -> str:
    if isinstance(to, str) and to in _RELATIVE:
        return f"the {to} snapshot"
    if isinstance(to, str | os.PathLike):
        return f"the same snapshot of {Path(to).name}"
    return "the same snapshot of another run" if hasattr(to, "data_vars") else "a given cloud"


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

        "auto": "circle" where it applies; "exact" up to `EXACT_PAIRS` = 10,000 x 10,000 pairs;
        "entropic" up to 2^28 = 16,384 x 16,384 pairs; beyond that "sliced" (for the geodesic cost).
        The last two with a warning, as they are not W_p itself. Free memory does not count: what
        does not fit is an error.
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
    tolerance, projections = positive(tolerance, "tolerance"), whole(projections, "projections")
    seed = whole(seed, "seed", 0, most=math.inf)
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
    """W₂ between two clouds; options and errors as for `wasserstein`."""
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

    The temperature ε of min sum_ij pi_ij c_ij^p + ε KL(pi | a x b) is lowered by
    halves. At each, the plan brought to the exact marginals gives an upper bound, and the
    potentials made feasible give a lower one. It is meant for bounds a few per cent apart, and
    p <= 2. Where W_p is far smaller than the typical cost, the upper bound is loose and the lower
    one stays good.

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

    Source: docs/theory/transport.md; Altschuler, Weed, Rigollet (2017).
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
    run: str | os.PathLike[str] | Dataset,
    *,
    to: str | os.PathLike[str] | ArrayLike | Dataset = "final",
    p: float = 2.0,
    paths: Sequence[int] | None = None,
    progress: bool = False,
    **options: Any,
) -> DataArray:
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
    import xarray

    p, progress = power(p), switch(progress, "progress")
    with ExitStack() as stack:
        ds = _run(run, stack, "the run")
        chosen = _paths(ds, paths)
        times = np.asarray(ds["snapshot"].values, float)
        previous = isinstance(to, str) and to == "previous"
        if previous and len(times) < 2:
            raise InputError("the run has one snapshot; distances to the previous one need two")
        reference = _reference(to, ds, chosen, times, stack)
        values = np.full((len(chosen), len(times) - previous), np.nan)
        with progress_bar(values.size, "distances", progress) as advance:
            for row, path in enumerate(chosen):
                pairs = _pairs(clouds(ds, _place(ds, path)), None if previous else reference(path))
                for column, (x, y) in enumerate(pairs):
                    if x is not None and y is not None:
                        values[row, column] = wasserstein(x, y, p, **options)
                    advance(1)
    attrs: dict[str, Any] = {
        "long_name": f"distance W_{p:g} to {_named(to)}",
        "units": "1",
        "cost": options.get("cost", "geodesic"),
        "method": options.get("method", "auto"),
    }
    at = times[1:] if previous else times
    coords: dict[str, Any] = {
        "snapshot_path": ("snapshot_path", chosen, {"long_name": "Monte Carlo path"}),
        "snapshot": ("snapshot", at, {"long_name": "time of the snapshot", "units": "1"}),
    }
    if previous:
        since = {"long_name": "time since the previous snapshot", "units": "1"}
        coords["elapsed"] = ("snapshot", np.diff(times), since)
    dims = ("snapshot_path", "snapshot")
    return xarray.DataArray(values, coords, dims, name="wasserstein", attrs=attrs)


def _entropic(
    given: Pair, p: float, cost: str, reg: float | None, tolerance: float, max_iterations: int
) -> Entropic:
    reg = None if reg is None else positive(reg, "reg")
    tolerance = positive(tolerance, "tolerance")
    max_iterations = whole(max_iterations, "max_iterations")
    a, b = given.masses()
    rows, columns = a > 0, b > 0
    costs = pair_costs(given.x[rows], given.y[columns], p, cost == "chordal")
    upper, lower, iterations, converged = sinkhorn.bounds(
        costs, a[rows], b[columns], p, reg, tolerance, max_iterations
    )
    return Entropic(root(upper, p), root(lower, p), iterations, converged)
