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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, pairwise
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
    rounding,
    shown,
    sum_tolerance,
    switch,
    whole,
    wholes,
)
from wflow._core.errors import AccuracyWarning, InputError, WflowError, warn
from wflow._core.progress import progress as progress_bar
from wflow._core.threads import current, one_thread, threads_for
from wflow.attention.cloud import as_unit_tokens
from wflow.runs.snapshots import Tokens, cloud, clouds, dataset_of, require_tokens, same_times
from wflow.sphere.geodesics import pair_costs
from wflow.sphere.geometry import as_tokens
from wflow.transport import circle as on_circle
from wflow.transport import sinkhorn
from wflow.transport.circle import sliced_costs
from wflow.transport.linear_assignment import near_order, solve_arranged, whole_blocks

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
    """Pair of clouds of one dimension, and their weights; weights None are uniform."""

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
    """Return unit tokens (n, d) in double precision.

    Norms that are one within the tolerance become one: c(x, x) is then zero to rounding.
    """
    return as_tokens(as_unit_tokens(x, name), name)


def pair(
    x: ArrayLike, y: ArrayLike, weights_x: ArrayLike | None, weights_y: ArrayLike | None
) -> Pair:
    return _pair(as_cloud(x, "x"), as_cloud(y, "y"), weights_x, weights_y)


def _pair(
    x: FloatArray, y: FloatArray, weights_x: ArrayLike | None, weights_y: ArrayLike | None
) -> Pair:
    """Return the pair of two clouds that have been checked one by one."""
    if x.shape[1] != y.shape[1]:
        raise InputError(
            f"x has d = {x.shape[1]} and y has d = {y.shape[1]}: distances need "
            "clouds on one sphere; reduce both to one dimension"
        )
    return Pair(
        x, y, _weights(weights_x, len(x), "weights_x"), _weights(weights_y, len(y), "weights_y")
    )


def _weights(weights: ArrayLike | None, count: int, name: str) -> FloatArray | None:
    """Return unequal weights as (count,) of sum one; None for uniform ones.

    Their sum is one to the rounding of the type in which they are given; in double precision it
    becomes one.
    """
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
    if abs(total - 1) > sum_tolerance(rounding(np.asarray(weights).dtype), count):
        raise InputError(
            f"{name} sum to {total:.10g}, expected 1: divide by their sum, in double precision"
        )
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
# Bytes per pair: the costs, with bounds of their blocks for an assignment; the simplex keeps flows
# and a copy as well, entropic transport a copy whose columns fill vectors.
_BYTES = {"assignment": 9, "simplex": 40, "entropic": 16}
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
    return pair_costs(given.x, given.y, p, cost == "chordal")


def exact_kind(given: Pair, cost: str) -> str:
    if given.x.shape[1] == 2 and cost == "geodesic":
        return "circle"
    return "assignment" if given.assigned else "simplex"


def choose(given: Pair, cost: str) -> str:
    """Return the method of "auto", by sizes alone: one call gives the same digits anywhere."""
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
        check_pairs(given, "entropic transport", _BYTES["entropic"])
    if method == "exact":
        kind = "assignment" if given.assigned else "simplex"
        check_pairs(given, "exact transport", _BYTES[kind])


def check_pairs(given: Pair, what: str, bytes_per_pair: int) -> None:
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
    warn(
        f"{sizes}: {what}; choose with method='exact', 'entropic' or 'sliced', or take a part of "
        "the tokens",
        AccuracyWarning,
    )


def exact_cost(given: Pair, p: float, cost: str) -> float:
    if given.assigned:
        return float(match(given, p, cost)[1].mean())
    return simplex(given, costs_of(given, p, cost))[0]


def match(given: Pair, p: float, cost: str) -> tuple[NDArray[np.int64], FloatArray]:
    """Return labels (n,) of an optimal matching of uniform clouds of one size, and its costs."""
    n = len(given.x)
    order = near_order(given.y)
    costs = pair_costs(given.x, given.y[whole_blocks(order)], p, cost == "chordal")
    costs[:, n:] = np.inf
    columns = solve_arranged(costs)[0]
    return order[columns], costs[np.arange(n), columns]


def simplex(given: Pair, costs: FloatArray) -> tuple[float, FloatArray]:
    """Return cost and plan by POT's network simplex, which must report that it is optimal."""
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
    """Open a run with snapshots, which are not read yet."""
    ds = stack.enter_context(dataset_of(run, what))
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
    snapshots: Iterator[Tokens | None], reference: Iterator[Tokens | None] | None
) -> Iterator[tuple[Tokens | None, Tokens | None]]:
    """Yield snapshots with the clouds of a reference; None: each with the previous snapshot."""
    if reference is None:
        yield from ((x, before) for before, x in pairwise(snapshots))
    else:
        yield from zip(snapshots, reference, strict=False)


_AT_ONCE = 2**31  # bytes of the costs of all assignments that are solved at once
_WORTH = 2**18  # pairs of tokens below which threads cost more time than they save


def _values(
    pairs: Iterator[tuple[Tokens | None, Tokens | None]], p: float, options: dict[str, Any]
) -> Iterator[float]:
    """Yield distances of pairs of clouds in their order, NaN where a cloud is missing."""

    def value(x: Tokens | None, y: Tokens | None) -> float:
        return math.nan if x is None or y is None else _wasserstein(x, y, p, **options)

    first = next(pairs)
    pairs, workers = chain([first], pairs), _workers(*first, options)
    if workers == 1:
        yield from (value(x, y) for x, y in pairs)
        return
    waiting: deque[Future[float]] = deque()
    with ThreadPoolExecutor(workers, initializer=one_thread) as pool:
        try:
            for x, y in pairs:
                waiting.append(pool.submit(value, x, y))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # on an error, or Ctrl-C, the pool waits for what runs
            pool.shutdown(wait=False, cancel_futures=True)


def _workers(x: Tokens | None, y: Tokens | None, options: dict[str, Any]) -> int:
    """Return how many such pairs are solved at once: large assignments, which release the GIL."""
    if x is None or y is None:
        return 1
    given = _pair(x, y, options.get("weights_x"), options.get("weights_y"))
    method = options.get("method", "auto")
    if method == "auto":
        method = choose(given, options.get("cost", "geodesic"))
    if method != "exact" or not given.assigned or given.pairs < _WORTH:
        return 1
    return max(1, min(current(), _AT_ONCE // (_BYTES["assignment"] * given.pairs)))


def _reference(
    to: Any, ds: Dataset, chosen: NDArray[np.int64], times: NDArray, stack: ExitStack
) -> Callable[[int], Iterator[Tokens | None]]:
    """Return a function of a path that yields the clouds with which its snapshots are compared."""

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
        ours, others = same_times(times, theirs)
        if not np.array_equal(ours, others):
            raise InputError(
                f"the runs have snapshots at {_listed(times)} and at {_listed(theirs)}; run one of "
                "them again with the snapshots of the other"
            )
        _paths(other, chosen.tolist())
        return lambda path: clouds(other, _place(other, path))
    return lambda path: always(as_cloud(to, "y"))


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
    """Bounds of W_p by entropic transport.

    Attributes
    ----------
    value : float
        Upper bound, the p-th root of the cost of a plan with the exact marginals.
    lower : float
        Lower bound, the p-th root of a dual value.
    iterations : int
        Iterations of the entropic potentials, at all temperatures together.
    converged : bool
        Whether value - lower <= tolerance * value, or value is no more than rounding.

    Examples
    --------
    >>> import wflow
    >>> x, y = wflow.tokens.uniform(8, 3, seed=0), wflow.tokens.uniform(8, 3, seed=1)
    >>> found = wflow.transport.entropic(x, y)
    >>> found.lower < wflow.transport.w2(x, y) + 1e-12 < found.value
    True
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
    r"""Return the Wasserstein distance W_p of two clouds.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens of the first cloud, on the unit sphere.
    y : array_like, shape (m, d)
        Tokens of the second cloud, on the unit sphere.
    p : float, default 2.0
        Exponent of the cost, 1 to 20.
    cost : {"geodesic", "chordal"}, default "geodesic"
        Distance of two tokens: the angle (at most pi) or ``|x - y|`` (at most 2).
    method : {"auto", "exact", "circle", "entropic", "sliced"}, default "auto"
        How it is computed; a key of `METHODS`, see Notes.
    weights_x : array_like, shape (n,), optional
        Weights of the tokens of x, >= 0, of sum one to the rounding of their type.
        Uniform by default.
    weights_y : array_like, shape (m,), optional
        Weights of the tokens of y, >= 0, of sum one to the rounding of their type.
        Uniform by default.
    reg : float, optional
        Lowest temperature of `entropic`.
    tolerance : float, default 0.05
        Wanted relative distance of the bounds of `entropic`.
    projections : int, default 200
        Number of great circles of "sliced".
    seed : int, default 0
        Seed that draws the great circles.

    Returns
    -------
    float
        Distance, in radians for the geodesic cost.

    Raises
    ------
    InputError
        For clouds off the sphere, empty, of different d, or too large for the method; weights that
        do not sum to one; p outside of 1 to 20; a method that does not apply.

    Notes
    -----
    The distance [1]_ is

    .. math:: W_p = \Bigl( \min_\pi \sum_{ij} \pi_{ij}\, c(x_i, y_j)^p \Bigr)^{1/p}

    over the plans with the weights of the clouds as marginals. The methods are [2]_ [3]_

    "exact"
        For uniform clouds of one size, linear assignment; otherwise the network simplex, whose
        accuracy in W_p^p is 1e-14 of the largest cost. Memory 9 n m bytes, or 40 n m.
    "circle"
        For d = 2 and the geodesic cost, exact for any p and weights, O(k log k), k = n + m.
    "entropic"
        The upper bound of `entropic`, which says more; warns where the bounds differ by more than
        `tolerance`. Memory 8 to 16 n m bytes.
    "sliced"
        (mean over random great circles of W_p^p of the projections)^(1/p), in radians; equal to W_p
        for d = 2 and to no W_p otherwise. Memory O(n + m).
    "auto"
        "circle" where it applies; "exact" up to `EXACT_PAIRS` = 10,000 x 10,000 pairs; "entropic"
        up to 2^28 = 16,384 x 16,384 pairs; beyond that "sliced" (for the geodesic cost). The last
        two with a warning, as they are not W_p itself. Free memory does not count: what does not
        fit is an error.

    Weights are divided by their sum, in double precision. It may be off one by 1e-8, and for n
    weights of an array in single or half precision by 8 + 2 sqrt(n) units of its rounding, though
    not by more than 1 %: a softmax in single precision is taken as it is.

    In the theory: :ref:`Wasserstein distances <theory-wasserstein>`, :ref:`distances on the circle
    <theory-circle>`, :ref:`sliced distances <theory-sliced>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 2.
    .. [2] Peyré and Cuturi, *Computational optimal transport*, Foundations and Trends in Machine
       Learning 11 (2019).
    .. [3] Bonet et al., *Spherical sliced-Wasserstein*, ICLR (2023).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, y = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    >>> bool(np.isclose(wflow.transport.wasserstein(x, y, p=1), np.pi / 2))
    True
    """
    return _wasserstein(
        as_cloud(x, "x"), as_cloud(y, "y"), p, cost=cost, method=method, weights_x=weights_x,
        weights_y=weights_y, reg=reg, tolerance=tolerance, projections=projections, seed=seed,
    )  # fmt: skip


def _wasserstein(
    x: FloatArray,
    y: FloatArray,
    p: float,
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
    """Compute `wasserstein` of clouds that `as_cloud` returned."""
    given = _pair(x, y, weights_x, weights_y)
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
        warn(
            f"entropic transport found W_{p:g} between {found.lower:.6g} and {found.value:.6g}, "
            f"further apart than the tolerance {tolerance:g}; the upper bound is returned",
            AccuracyWarning,
        )
    return found.value


def w1(x: ArrayLike, y: ArrayLike, **options) -> float:
    """Return W_1 between two clouds.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens of the first cloud, on the unit sphere.
    y : array_like, shape (m, d)
        Tokens of the second cloud, on the unit sphere.
    **options
        Options of `wasserstein`.

    Returns
    -------
    float
        Distance, in radians for the geodesic cost.

    Raises
    ------
    InputError
        As for `wasserstein`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, y = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    >>> bool(np.isclose(wflow.transport.w1(x, y), np.pi / 2))
    True
    """
    return wasserstein(x, y, 1.0, **options)


def w2(x: ArrayLike, y: ArrayLike, **options) -> float:
    """Return W₂ between two clouds.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens of the first cloud, on the unit sphere.
    y : array_like, shape (m, d)
        Tokens of the second cloud, on the unit sphere.
    **options
        Options of `wasserstein`.

    Returns
    -------
    float
        Distance, in radians for the geodesic cost.

    Raises
    ------
    InputError
        As for `wasserstein`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, y = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    >>> bool(np.isclose(wflow.transport.w2(x, y, cost="chordal"), np.sqrt(2)))
    True
    """
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
    r"""Return bounds of W_p from entropic transport: lower <= W_p <= value.

    It is meant for bounds a few per cent apart, and p <= 2. Where W_p is far smaller than the
    typical cost, the upper bound is loose and the lower one stays good.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens of the first cloud, on the unit sphere.
    y : array_like, shape (m, d)
        Tokens of the second cloud, on the unit sphere.
    p : float, default 2.0
        Exponent of the cost, 1 to 20.
    cost : {"geodesic", "chordal"}, default "geodesic"
        Distance of two tokens: the angle (at most pi) or ``|x - y|`` (at most 2).
    weights_x : array_like, shape (n,), optional
        Weights of the tokens of x, >= 0, of sum one to the rounding of their type.
        Uniform by default.
    weights_y : array_like, shape (m,), optional
        Weights of the tokens of y, >= 0, of sum one to the rounding of their type.
        Uniform by default.
    reg : float, optional
        Lowest temperature, in units of the largest c^p. None: as low as the tolerance needs.
    tolerance : float, default 0.05
        Wanted (value - lower) / value.
    max_iterations : int, default 2000
        Largest number of iterations, in all.

    Returns
    -------
    Entropic
        The bounds, with the number of iterations and whether they converged.

    Raises
    ------
    InputError
        As for `wasserstein`, and for reg, tolerance or max_iterations out of range.

    Notes
    -----
    The temperature ε of

    .. math:: \min_\pi \sum_{ij} \pi_{ij} c_{ij}^p + \varepsilon\, \mathrm{KL}(\pi\,|\,a \otimes b)

    is lowered by halves. At each, the plan brought to the exact marginals [1]_ gives an upper
    bound, and the potentials made feasible give a lower one.

    In the theory: :ref:`entropic transport <theory-entropic>`.

    References
    ----------
    .. [1] Altschuler, Weed and Rigollet, *Near-linear time approximation algorithms for optimal
       transport via Sinkhorn iteration*, NeurIPS (2017).

    Examples
    --------
    >>> import wflow
    >>> x, y = wflow.tokens.uniform(8, 3, seed=0), wflow.tokens.uniform(8, 3, seed=1)
    >>> found = wflow.transport.entropic(x, y, tolerance=0.02)
    >>> found.converged, (found.value - found.lower) / found.value <= 0.02
    (True, True)
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
    """Return an optimal plan between two clouds.

    It is computed by the closed form on the circle, by linear assignment for uniform clouds of one
    size, else by the network simplex. An optimal plan need not be the only one.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens of the first cloud, on the unit sphere.
    y : array_like, shape (m, d)
        Tokens of the second cloud, on the unit sphere.
    p : float, default 2.0
        Exponent of the cost, 1 to 20.
    cost : {"geodesic", "chordal"}, default "geodesic"
        Distance of two tokens: the angle (at most pi) or ``|x - y|`` (at most 2).
    weights_x : array_like, shape (n,), optional
        Weights of the tokens of x, >= 0, of sum one to the rounding of their type.
        Uniform by default.
    weights_y : array_like, shape (m,), optional
        Weights of the tokens of y, >= 0, of sum one to the rounding of their type.
        Uniform by default.

    Returns
    -------
    ndarray, shape (n, m)
        Plan pi with row sums a and column sums b, and sum_ij pi_ij c(x_i, y_j)^p = W_p^p.

    Raises
    ------
    InputError
        For clouds off the sphere, empty or of different d; weights that do not sum to one; p
        outside 1 to 20.

    Examples
    --------
    >>> import wflow
    >>> x = wflow.tokens.uniform(3, 3, seed=0)
    >>> wflow.transport.plan(x, x[:1])
    array([[0.33333333],
           [0.33333333],
           [0.33333333]])
    """
    given = pair(x, y, weights_x, weights_y)
    p = power(p)
    check_choice("cost", cost, COSTS)
    check_pairs(given, "plan", 17 if exact_kind(given, cost) != "simplex" else 48)
    out = np.zeros((len(given.x), len(given.y)))
    if exact_kind(given, cost) == "circle":
        rows, columns, mass = on_circle.circle_plan(*given, p)
        np.add.at(out, (rows, columns), mass)
        return out
    if given.assigned:
        out[np.arange(len(out)), match(given, p, cost)[0]] = 1 / len(out)
        return out
    return simplex(given, costs_of(given, p, cost))[1]


def assignment(
    x: ArrayLike, y: ArrayLike, p: float = 2.0, *, cost: str = "geodesic"
) -> NDArray[np.int64]:
    r"""Return the optimal matching of two uniform clouds of one size.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens of the first cloud, on the unit sphere.
    y : array_like, shape (n, d)
        Tokens of the second cloud, on the unit sphere.
    p : float, default 2.0
        Exponent of the cost, 1 to 20.
    cost : {"geodesic", "chordal"}, default "geodesic"
        Distance of two tokens: the angle (at most pi) or ``|x - y|`` (at most 2).

    Returns
    -------
    ndarray of int64, shape (n,)
        Permutation s, numbers of tokens of y.

    Raises
    ------
    InputError
        For clouds off the sphere, empty, or of different shapes; p outside 1 to 20.

    Notes
    -----
    The extreme points of the plans are the permutations (Birkhoff), so that

    .. math:: W_p^p = \frac1n \sum_i c(x_i, y_{s(i)})^p .

    Examples
    --------
    >>> import wflow
    >>> x = wflow.tokens.uniform(4, 3, seed=0)
    >>> wflow.transport.assignment(x, x[[2, 0, 1, 3]])
    array([1, 2, 0, 3])
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
    return match(given, p, cost)[0]


def transport_map(
    x: ArrayLike,
    y: ArrayLike,
    p: float = 2.0,
    *,
    cost: str = "geodesic",
    weights_x: ArrayLike | None = None,
    weights_y: ArrayLike | None = None,
) -> FloatArray:
    """Return where an optimal plan takes each token of x.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens of the first cloud, on the unit sphere.
    y : array_like, shape (m, d)
        Tokens of the second cloud, on the unit sphere.
    p : float, default 2.0
        Exponent of the cost, 1 to 20.
    cost : {"geodesic", "chordal"}, default "geodesic"
        Distance of two tokens: the angle (at most pi) or ``|x - y|`` (at most 2).
    weights_x : array_like, shape (n,), optional
        Weights of the tokens of x, >= 0, of sum one to the rounding of their type.
        Uniform by default.
    weights_y : array_like, shape (m,), optional
        Weights of the tokens of y, >= 0, of sum one to the rounding of their type.
        Uniform by default.

    Returns
    -------
    ndarray, shape (n, d)
        Targets T(x_i), unit tokens.

    Raises
    ------
    InputError
        As for `wasserstein`; and where the plan splits a token between targets whose mean vanishes
        (antipodal ones), so that no direction is left.

    Notes
    -----
    For uniform clouds of one size, T(x_i) = y_s(i) with s of `assignment`. Otherwise the
    barycentric projection of the plan, T(x_i) = R(sum_j pi_ij y_j) with R the division by the norm.
    A token of weight zero stays where it is.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = wflow.tokens.uniform(4, 3, seed=0)
    >>> np.array_equal(wflow.transport.transport_map(x, x[::-1]), x)
    True
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
    """Return the distances of all pairs of tokens.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens of the first cloud, on the unit sphere.
    y : array_like, shape (m, d)
        Tokens of the second cloud, on the unit sphere.
    cost : {"geodesic", "chordal"}, default "geodesic"
        Distance of two tokens: the angle (at most pi) or ``|x - y|`` (at most 2).

    Returns
    -------
    ndarray, shape (n, m)
        Distances c(x_i, y_j). The angle is ``2 atan2(|x - y|, |x + y|)``, accurate to rounding for
        near and antipodal tokens alike.

    Raises
    ------
    InputError
        For clouds off the sphere, empty or of different d, or an unknown cost.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> wflow.transport.distance(x, -x, cost="chordal").round(4)
    array([[2.    , 1.4142],
           [1.4142, 2.    ]])
    """
    given = pair(x, y, None, None)
    check_choice("cost", cost, COSTS)
    check_pairs(given, "the matrix of distances", 8)
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
    """Return the distances W_p of the token snapshots of a run, read some megabytes at a time.

    Parameters
    ----------
    run : str, pathlib.Path or xarray.Dataset
        Run file, or a Dataset of `wflow.open` or `wflow.solve`, with snapshots of tokens.
    to : str, array_like, pathlib.Path or xarray.Dataset, default "final"
        From what the distance is taken: "final", "initial", "previous", a cloud or a run. "final"
        and "initial" are the last and first snapshot of the same path. "previous" is the snapshot
        before; the result is then one shorter, and has the time between the two as coordinate
        `elapsed`. An array (m, d) is a cloud of unit tokens. Another run, as file or Dataset, has
        the same snapshot times and paths: its snapshot of the same time and path is taken.
    p : float, default 2.0
        Exponent of the cost, 1 to 20.
    paths : sequence of int, optional
        Numbers of the paths, by default all whose tokens were kept.
    progress : bool, default False
        Whether to show a bar with the time left.
    **options
        Options of `wflow.transport.wasserstein`.

    Returns
    -------
    xarray.DataArray
        Distances (snapshot_path, snapshot), named `wasserstein`; NaN where a run that is not
        complete has recorded no tokens.

    Raises
    ------
    InputError
        For a run without token snapshots or without one of the paths, another run of other times,
        or what `wasserstein` refuses.

    Notes
    -----
    From 512 tokens on, assignments run at once on as many threads as compiled functions have, as
    far as their costs fit into 2 GiB. The distances do not depend on the number of threads.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     wflow.tokens.uniform(8, 3, seed=0), wflow.heads.Frozen(), heads=np.eye(3)[None],
    ...     t_final=1.0, dt=0.1, save=wflow.SaveAt(snapshots=[0.0, 0.5, 1.0]),
    ... )
    >>> distances = wflow.transport.over_time(run)
    >>> distances.dims, float(distances[0, -1])
    (('snapshot_path', 'snapshot'), 0.0)
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
        pairs = chain.from_iterable(
            _pairs(clouds(ds, _place(ds, path)), None if previous else reference(path))
            for path in chosen
        )
        with progress_bar(values.size, "distances", progress) as advance:
            for place, value in enumerate(_values(pairs, p, options)):
                values.flat[place] = value
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
