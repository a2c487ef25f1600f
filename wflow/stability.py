"""How fast two token clouds under the same heads may part, and how fast they do.

W2(mu_t, nu_t) <= C exp(int_0^t L(s) ds) W2(mu_0, nu_0) with L a function of the heads alone
([MHT] Theorem 5.1, Remark 5.2; derived in docs/mathematics.md, stability). C is 1 for the chordal
W2 and pi/2 for the geodesic one.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow import _growth, _paired_runs
from wflow._checks import check_choice, number, whole
from wflow._matrices import as_matrices
from wflow._sums import DIRECTIONS, FLOWS
from wflow.errors import InputError
from wflow.heads import HeadLaw

if TYPE_CHECKING:
    import xarray

FloatArray = NDArray[np.float64]
Cost = Literal["chordal", "geodesic"]

__all__ = ["GrowthRate", "bound", "compare", "exponent", "growth_constant", "growth_rate"]

PREFACTOR: dict[str, float] = {"chordal": 1.0, "geodesic": math.pi / 2}
"""C of the bound for each cost of W2."""

# A W2 that is zero but for rounding, and what summing a bound rounds away.
_ROUNDING = {"float64": 1e-12, "float32": 1e-5}
_RELATIVE = 1e-9
_EXPONENT = {
    "long_name": "exponent of the bound, integral of L",
    "units": "1",
    "source": "[MHT] Remark 5.2",
}


def growth_constant(
    D: ArrayLike, *, flow: str = "softmax", direction: str = "descent"
) -> float | FloatArray:
    """Growth constant L of the bound on W2 between two clouds under the same heads.

    With a_h = |D_h| (largest singular value), for `softmax`

        L = (1/H) sum_h a_h + [ascent] a_h^2 + a_h sqrt(1 + a_h^2) e^{a_h},

    for `unnormalised` L = (1/H) sum_h e^{a_h} (a_h + [ascent] a_h^2 + a_h (1 + a_h)), and for
    `effective` the mean over all pairs of heads (h, k) of the softmax term for h = k and of
    e^{a_h + a_k} (a_h + [ascent] a_h^2 + a_h a_k + a_h (1 + a_h) + a_h a_k e^{a_k}) for h != k.
    The terms in [ascent] belong to that direction only.

    Parameters
    ----------
    D : (..., heads, d, d), symmetric or not
    flow : "softmax", "unnormalised" or "effective"
    direction : "descent" or "ascent"

    Returns
    -------
    per unit time: float for (heads, d, d), else array (...); inf where the exponential overflows,
    beyond norms of about 700

    Raises
    ------
    InputError
        For wrong names or shapes, or values that are not finite.

    Source: [MHT] Theorem 5.1 and Remark 5.2, whose constants are not given; docs/mathematics.md,
    stability.
    """
    check_choice("flow", flow, FLOWS)
    check_choice("direction", direction, DIRECTIONS)
    heads = as_matrices(D, "D")
    if heads.ndim < 3:
        raise InputError(f"D has shape {heads.shape}, expected (..., heads, d, d)")
    constant = _growth.parts(_growth.norms(heads), flow).one_sided(direction)
    return float(constant) if constant.ndim == 0 else constant


def bound(distance: ArrayLike, exponent: ArrayLike, *, cost: Cost = "chordal") -> FloatArray:
    """Bound C e^Lambda W2(mu_0, nu_0) on a later W2, C = 1 (chordal) or pi/2 (geodesic).

    Parameters
    ----------
    distance : W2 of the two clouds at the start, in the same cost, >= 0
    exponent : Lambda = int L ds (`exponent`), of any shape that broadcasts with it
    cost : "chordal" or "geodesic"

    Returns
    -------
    float64 array; inf where it overflows, and 0 for clouds that are equal

    Raises
    ------
    InputError
        For a wrong cost, a distance that is negative or NaN, an exponent that is NaN, or shapes
        that do not broadcast.

    Source: [MHT] Theorem 5.1; docs/mathematics.md, stability.
    """
    check_choice("cost", cost, PREFACTOR)
    try:
        start, growth = np.asarray(distance, np.float64), np.asarray(exponent, np.float64)
        np.broadcast_shapes(start.shape, growth.shape)
    except (TypeError, ValueError) as error:
        raise InputError(f"distance and exponent must be numbers that broadcast: {error}") from None
    if not np.all(start >= 0):
        raise InputError("distance must be numbers >= 0: the W2 of two clouds")
    if np.any(np.isnan(growth)):
        raise InputError("exponent holds NaN: expected the integral of a growth constant")
    with np.errstate(over="ignore", divide="ignore"):
        # log 0 = -inf against an exponent of inf: equal clouds stay equal.
        scaled = np.log(PREFACTOR[cost] * start)
        return np.where(start == 0, 0.0, np.exp(np.where(start == 0, 0.0, scaled) + growth))


def exponent(
    run: "xarray.Dataset | str | Path",
    *,
    law: HeadLaw | None = None,
    weights: Literal["path", "snapshots"] = "path",
) -> "xarray.DataArray":
    """Exponent Lambda(t) = int_0^t L(D(s)) ds along the heads of a run, at its snapshots.

    With `weights="path"` the heads are made again from the seed, step by step, and Lambda bounds
    what the run itself computes: for `euler` the sum over steps of
    log(1 + 2 dt L + dt^2 M^2) / 2, M the Lipschitz constant of the velocity (L of `ascent`),
    because x + dt v is outside of the sphere, and from there the division by the norm brings no
    two tokens further apart; for `heun` and `rk4` the sum of dt times L of the larger norms of both
    ends of the step, which bounds the flow that they follow up to the error of the scheme.

    With `weights="snapshots"` Lambda is the trapezoidal sum of L over the snapshots of a run with
    save_heads: an estimate, exact for frozen heads.

    Parameters
    ----------
    run : run file, or Dataset from `wflow.solve` or `wflow.open`
    law : the head law, where it is made of Python functions, which a run file does not hold
    weights : "path" or "snapshots"

    Returns
    -------
    DataArray (snapshot_path, snapshot), zero at the first snapshot only if that is time 0

    Raises
    ------
    InputError
        For runs that the bound is not about: (Q, K, V) heads, a causal mask, noise on the tokens;
        for a law that is not that of the run.

    Source: [MHT] Remark 5.2; docs/mathematics.md, stability.
    """
    import xarray

    check_choice("weights", weights, ("path", "snapshots"))
    with _paired_runs.opened(run) as (ds, config):
        times = ds["snapshot"].values
        paths = ds["snapshot_path"].values
        if weights == "snapshots":
            values = _paired_runs.over_snapshots(ds, config)
        else:
            values = _paired_runs.over_path(ds, config, law, times, paths)[0]
        return xarray.DataArray(
            values,
            dims=("snapshot_path", "snapshot"),
            coords={"snapshot_path": paths, "snapshot": times},
            name="exponent",
            attrs=_EXPONENT,
        )


@dataclass(frozen=True)
class GrowthRate:
    """Growth of a distance: log d(t) = log d_0 + rate (t - t_0), fitted to the mean of replicates.

    Attributes
    ----------
    rate : least-squares slope of the mean over replicates of log distance, per unit time
    ci : percentile interval (lo, hi) of the bootstrap over replicates; NaN for one replicate
    prefactor : e^intercept over the geometric mean of the distances at t_0: 1 for pure growth
    largest : max over replicates and times of log(d(t) / d(t_0)) / (t - t_0)
    largest_at : the time at which it is reached
    level : coverage of the interval
    replicates, points, resamples : numbers of replicates, times and resamples
    """

    rate: float
    ci: tuple[float, float]
    prefactor: float
    largest: float
    largest_at: float
    level: float
    replicates: int
    points: int
    resamples: int

    def __call__(self, t: ArrayLike) -> FloatArray:
        """Growth factor prefactor e^{rate t} of the fit, t counted from the first time."""
        return self.prefactor * np.exp(self.rate * np.asarray(t, np.float64))


def growth_rate(
    times: ArrayLike,
    distances: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> GrowthRate:
    """Rate at which distances grow in time, with a confidence interval over replicates.

    Parameters
    ----------
    times : (k,) increasing, k >= 2
    distances : (replicates, k) or (k,), positive
    level : coverage of the interval
    resamples : bootstrap resamples of the replicates
    seed : of the resampling

    Returns
    -------
    GrowthRate

    Raises
    ------
    InputError
        For fewer than two times, shapes that do not fit, or distances that are not positive.

    Source: docs/mathematics.md, stability.
    """
    resamples, seed = whole(resamples, "resamples"), whole(seed, "seed", 0)
    level = number(level, "level", least=0.0)
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}: expected a number between 0 and 1")
    try:
        t = np.asarray(times, np.float64)
        values = np.atleast_2d(np.asarray(distances, np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"times and distances must be real numbers: {error}") from None
    if t.ndim != 1 or len(t) < 2 or not np.all(np.diff(t) > 0) or not np.isfinite(t).all():
        raise InputError("times must be two or more increasing numbers")
    if values.ndim != 2 or values.shape[1] != len(t) or not len(values):
        raise InputError(
            f"distances have shape {np.shape(distances)}, expected (replicates, {len(t)}) for "
            f"{len(t)} times"
        )
    if not np.all((values > 0) & np.isfinite(values)):
        raise InputError(
            "distances must be positive and finite: clouds that are equal have no rate; leave out "
            "those replicates or times"
        )
    log = np.log(values)
    since = t - t[0]
    centred = since - since.mean()
    slopes = log @ centred / np.sum(centred**2)  # (replicates,)
    rate = float(slopes.mean())
    gained = log - log[:, :1]
    prefactor = math.exp(float(gained.mean()) - rate * float(since.mean()))
    mean_rates = gained[:, 1:] / since[1:]
    top = np.unravel_index(np.argmax(mean_rates), mean_rates.shape)
    ci = (math.nan, math.nan)
    if len(slopes) > 1:
        draws = np.random.default_rng(seed).integers(len(slopes), size=(resamples, len(slopes)))
        lo, hi = np.quantile(slopes[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
        ci = (float(lo), float(hi))
    return GrowthRate(
        rate=rate,
        ci=ci,
        prefactor=prefactor,
        largest=float(mean_rates[top]),
        largest_at=float(t[top[1] + 1]),
        level=level,
        replicates=len(slopes),
        points=len(t),
        resamples=resamples,
    )


def compare(
    run: "xarray.Dataset | str | Path",
    other: "xarray.Dataset | str | Path",
    *,
    law: HeadLaw | None = None,
    costs: tuple[Cost, ...] = ("chordal", "geodesic"),
    progress: bool = False,
) -> "xarray.Dataset":
    """W2 between two runs of the same heads over time, and whether the bound holds at each time.

    The runs may differ in their tokens (also in how many they are), and in what they record. The
    bound starts at the first snapshot that they share. W2 is that of `wflow.transport.w2`, exact up
    to several thousand tokens.

    Parameters
    ----------
    run, other : run files, or Datasets from `wflow.solve` or `wflow.open`
    law : the head law, where it is made of Python functions, which a run file does not hold
    costs : costs of W2, "chordal" and "geodesic"
    progress : show a bar with the time left

    Returns
    -------
    Dataset (snapshot_path, snapshot): growth_constant and exponent, and for each cost
    w2_<cost>, bound_<cost> and holds_<cost>

    Raises
    ------
    InputError
        For runs of different heads, steps, flows or dimensions; runs that share fewer than two
        snapshot times, or no path; and as for `exponent`.

    Source: [MHT] Theorem 5.1; docs/mathematics.md, stability.
    """
    import xarray

    from wflow import transport
    from wflow.progress import progress as progress_bar

    if isinstance(costs, str) or not costs:
        raise InputError(f"costs is {costs!r}: expected a tuple of names, such as ('chordal',)")
    for cost in costs:
        check_choice("cost", cost, PREFACTOR)
    with (
        _paired_runs.opened(run) as (first, config),
        _paired_runs.opened(other) as (second, other_config),
    ):
        _paired_runs.check_same_weights(config, other_config)
        _paired_runs.check_same_axes(first, second)
        at, times = _paired_runs.shared(first, second, "snapshot", config["dt"] / 2)
        rows, paths = _paired_runs.shared(first, second, "snapshot_path", 0.5)
        if len(times) < 2 or not len(paths):
            raise InputError(
                f"the runs share {len(times)} snapshot times and {len(paths)} paths: expected two "
                "times and one path or more; give both the same snapshots and snapshot_paths"
            )
        growth, constant = _paired_runs.over_path(first, config, law, times, paths)
        growth = growth - growth[:, :1]
        rounding = max(_ROUNDING[c["dtype"]] for c in (config, other_config))
        distances: dict[str, FloatArray] = {c: np.empty(growth.shape) for c in costs}
        with progress_bar(growth.size, "W2", progress) as tick:
            for p, (row, other_row) in enumerate(zip(*rows, strict=True)):
                for k, (here, there) in enumerate(zip(*at, strict=True)):
                    # Of their own precision: a run file holds all tokens in double.
                    x = first["tokens"][row, here].values.astype(config["dtype"])
                    y = second["tokens"][other_row, there].values.astype(other_config["dtype"])
                    for cost in costs:
                        distances[cost][p, k] = transport.w2(x, y, cost=cost)
                    tick(1)
    dims = ("snapshot_path", "snapshot")
    variables: dict[str, Any] = {
        "growth_constant": (dims, constant, {"long_name": "growth constant L", "units": "1"}),
        "exponent": (dims, growth, _EXPONENT),
    }
    for cost in costs:
        table = distances[cost]
        limit = bound(table[:, :1], growth, cost=cost)
        holds = table <= limit * (1 + _RELATIVE) + rounding
        name = f"{cost} Wasserstein distance W2"
        source = {"units": "1", "source": "[MHT] Theorem 5.1"}
        variables[f"w2_{cost}"] = (dims, table, {"long_name": name, "units": "1"})
        variables[f"bound_{cost}"] = (dims, limit, {"long_name": f"bound on the {name}"} | source)
        variables[f"holds_{cost}"] = (dims, holds, {"long_name": f"whether the {name} is within"})
    coords = {
        "snapshot_path": ("snapshot_path", paths, {"long_name": "path"}),
        "snapshot": ("snapshot", times, {"long_name": "time", "units": "1"}),
    }
    attrs = {key: config[key] for key in ("flow", "direction", "scheme", "dt", "seed")}
    return xarray.Dataset(variables, coords, attrs)
