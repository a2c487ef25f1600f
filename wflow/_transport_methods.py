"""The methods of `wflow.transport`: which one applies, whether it fits in memory, what it gives."""

import math
import os
import warnings

import numpy as np
from numpy.typing import NDArray

from wflow._checks import number, whole
from wflow._pot import load_pot
from wflow._threads import threads_for
from wflow._transport_circle import sliced_costs
from wflow._transport_costs import pair_costs
from wflow._transport_input import FloatArray, Pair
from wflow.errors import InputError, WflowError

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
    if exact_kind(given, cost) == "circle":
        return "circle"
    needed = _BYTES[exact_kind(given, cost)] * given.pairs
    if given.pairs <= EXACT_PAIRS and needed <= free_memory():
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
    needed, held = bytes_per_pair * given.pairs, free_memory()
    if needed > held:
        raise InputError(
            f"{what} between {len(given.x)} and {len(given.y)} tokens needs {needed / 1e9:.3g} GB, "
            f"and {held / 1e9:.3g} GB are free; use method='sliced' (for the geodesic cost), or a "
            "random part of the tokens"
        )


def free_memory() -> float:
    """Bytes of memory that are free; inf where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:  # a system without /proc: what is installed
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError, AttributeError):
        return math.inf


def warn_inexact(given: Pair, chosen: str) -> None:
    sizes = f"{len(given.x)} x {len(given.y)} tokens are too many for exact transport"
    what = {
        "entropic": "an upper bound by entropic transport was computed (wflow.transport.entropic "
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


def assign(costs: FloatArray) -> NDArray[np.int64]:
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
    whole(projections, "projections")
    whole(seed, "seed", 0)
    rng = np.random.Generator(np.random.Philox(seed))
    normal = rng.standard_normal((projections, given.x.shape[1], 2))
    frames = np.ascontiguousarray(np.swapaxes(np.linalg.qr(normal)[0], 1, 2))
    a, b = given.masses()
    rows, columns = a > 0, b > 0
    clouds = given.x[rows], a[rows], given.y[columns], b[columns]
    with threads_for(30 * projections * (len(a) + len(b))):
        values = sliced_costs(*clouds, frames, p)
    return root(float(values.mean()), p)
