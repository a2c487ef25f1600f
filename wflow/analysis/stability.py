r"""Growth of the W₂ distance between two token clouds under the same heads: bound and measurement.

.. math:: W_2(\mu_t, \nu_t) \le C \exp\Bigl( \int_0^t L(s)\,ds \Bigr)\, W_2(\mu_0, \nu_0)

with L a function of the heads alone (Massucco et al., arXiv:2605.18870, Theorem 5.1, Remark 5.2). C
is 1 for the chordal W₂ and pi/2 for the geodesic one. In the theory:
:ref:`stability <theory-stability>`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.adaptive import as_scheme, scheme_from_config
from wflow._core.checks import (
    Direction,
    FlowName,
    check_choice,
    number,
    reals,
    shown,
    switch,
    whole,
)
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow._core.reprs import ShortResult
from wflow.analysis.fits import interval, resampled_means
from wflow.attention.cloud import safe_exp
from wflow.attention.flows import Flow, as_flow, flow_from_config
from wflow.heads.laws import HeadLaw, law_of_run, made_again
from wflow.heads.matrices import as_matrices
from wflow.heads.process import head_path
from wflow.kernels.evaluate import DIRECTIONS
from wflow.runs import snapshots
from wflow.runs.schema import flow_name

if TYPE_CHECKING:
    import xarray


__all__ = ["GrowthRate", "bound", "compare", "exponent", "growth_constant", "growth_rate"]


def __dir__() -> list[str]:
    return __all__


# Growth constants from the norms of the heads
# --------------------------------------------
# Two clouds that move with the same heads, tokens paired by any coupling, R^2 the mean of |x - y|^2
# over the pairs: d/dt R <= L R. A flow gives the parts of L (`Flow.growth`); they come from
#
#     <x - y, P_x a - P_y b> = <x - y, a - b> - (|x - y|^2 / 2) (<x, a> + <y, b>)
#
# for x, y of norm one and a, b in R^d (docs/theory/stability.md).

FloatArray = NDArray[np.float64]


def spectral_norms(heads: NDArray[np.floating]) -> FloatArray:
    """Return spectral norms (..., heads) of matrices (..., heads, d, d)."""
    return np.asarray(np.linalg.norm(heads, 2, axis=(-2, -1)), np.float64)


# What two runs under one bound must share
# ----------------------------------------

Config = dict[str, Any]

# What two runs may differ in and still have the same heads at the same times.
# How the sums over pairs are formed is one of them: the tokens differ by an error that `sum_error`
# bounds. "auto" is another method for n below and above a size, so that runs of different n differ.
_FREE = {"x0", "t_final", "paths", "save", "compute"}

_NEEDED = {"law", "heads", "dt", "seed", "flow", "direction", "scheme", "causal", "compute"}


@contextmanager
def run_and_config(run: xarray.Dataset | str | Path) -> Iterator[tuple[xarray.Dataset, Config]]:
    """Yield a run and its configuration; a file is closed at the end, a Dataset stays open.

    Raises
    ------
    InputError
        For a run without tokens, or one that the bound is not about.
    """
    with snapshots.dataset_of(run) as ds:
        if "config" not in ds.attrs:
            raise InputError(
                f"the {type(ds).__name__} is no run of wflow: it has no attribute config; give a "
                "run file, or a Dataset from wflow.solve or wflow.open"
            )
        try:
            config = json.loads(ds.attrs["config"])
            missing = _NEEDED - set(config)
        except (TypeError, ValueError):
            config, missing = {}, _NEEDED
        if missing:
            raise InputError(
                f"the configuration of the run lacks {', '.join(sorted(missing))}: give a run "
                "file, or a Dataset from wflow.solve or wflow.open"
            )
        snapshots.require_tokens(ds)
        _refuse(config)
        yield ds, config


def _refuse(config: Config) -> None:
    heads = config["heads"]
    if isinstance(heads, dict) and "values_sha256" in heads:
        what = "general (Q, K, V) heads"
    elif config["causal"]:
        what = "the causal mask, under which tokens are not exchangeable"
    elif config.get("kappa"):
        what = "noise on the tokens"
    else:
        return
    raise InputError(f"the bound on W₂ is not about {what}: give runs of tied heads without it")


def check_same_weights(config: Config, other: Config) -> None:
    """Raise InputError unless both runs have the same heads at the same times, and one flow."""
    from wflow.runs.read import differences

    differ = {key.split(".")[0].split(" ")[0] for key in differences(config, other)} - _FREE
    law = made_again(config["law"])
    if law is not None and law.deterministic and not isinstance(config["heads"], int):
        differ.discard("seed")  # it draws neither heads nor noise
    if differ:
        raise InputError(
            f"the runs differ in {', '.join(sorted(differ))}: the bound compares tokens under the "
            "same heads; give runs that differ in x0 alone"
        )


def sum_error(config: Config) -> float:
    """Return the relative error of the velocities of a run, from that of its sums.

    A velocity is a sum D S over a sum m, each within the tolerance of m: both errors add up.
    """
    compute = config["compute"]
    return 2 * float(compute["tolerance"]) if compute.get("method", "exact") != "exact" else 0.0


def check_same_axes(first: xarray.Dataset, second: xarray.Dataset) -> None:
    """Raise InputError unless the tokens of both runs have the same dimension d."""
    if first.sizes["axis"] != second.sizes["axis"]:
        raise InputError(
            f"the runs have tokens of dimension {first.sizes['axis']} and {second.sizes['axis']}: "
            "expected the same d"
        )


def shared(
    first: xarray.Dataset, second: xarray.Dataset, name: str, tolerance: float
) -> tuple[tuple[list[int], list[int]], NDArray[Any]]:
    """Return the values of a coordinate that both runs have, and their places in each run."""
    here, there = first[name].values, second[name].values
    nearest = [int(np.argmin(np.abs(there - value))) for value in here]
    pairs = [(i, j) for i, j in enumerate(nearest) if abs(there[j] - here[i]) < tolerance]
    places = [i for i, _ in pairs], [j for _, j in pairs]
    return places, here[places[0]]


def over_snapshots(ds: xarray.Dataset, config: Config) -> FloatArray:
    """Return the trapezoidal sum of L over the snapshots, from the heads that the run holds."""
    if "heads" not in ds:
        raise InputError(
            "the run holds no heads at its snapshots: run it again with save=SaveAt(heads=True), "
            "or take weights='path'"
        )
    norms = spectral_norms(ds["heads"].values)
    constant = flow_from_config(config["flow"]).growth(norms).one_sided(config["direction"])
    total = np.zeros_like(constant)
    pieces = np.diff(ds["snapshot"].values) * (constant[:, 1:] + constant[:, :-1]) / 2
    total[:, 1:] = np.cumsum(pieces, axis=1)
    return total


def over_path(
    ds: xarray.Dataset,
    config: Config,
    law: HeadLaw | None,
    times: NDArray[Any],
    paths: NDArray[Any],
) -> tuple[FloatArray, FloatArray]:
    """Compute exponent and growth constant, each (paths, times), with the heads recomputed."""
    law = law_of_run(config, law)
    if not law.deterministic and as_scheme(scheme_from_config(config["scheme"]))[0].stages > 1:
        raise InputError(
            f"the run has noisy heads and scheme {config['scheme']!r}, whose stages no bound "
            "knows: run it with scheme='euler', or take weights='snapshots'"
        )
    heads = config["heads"]
    if law.initial() is not None:
        heads = None
    elif not isinstance(heads, int):
        heads = ds["initial_heads"].values
    dt = config["dt"]
    places = np.rint(times / dt).astype(np.int64)
    total, constant = np.zeros((2, len(paths), len(places)))
    rows = [0] if law.deterministic else range(len(paths))
    for row in rows:
        steps = int(places[-1])
        walk = head_path(
            law,
            heads=heads,
            d=ds.sizes["axis"],
            t_final=max(steps, 1) * dt,
            dt=dt,
            seed=config["seed"],
            path=int(paths[row]),
            scheme=scheme_from_config(config["scheme"]),
        )
        norms = np.array([spectral_norms(D) for _, D in walk])  # (steps + 1, heads)
        rates, added = _rates(norms, config, dt)
        summed = np.concatenate([[0.0], np.cumsum(added)])
        total[row], constant[row] = summed[places], rates[places]
    if law.deterministic:
        total[1:], constant[1:] = total[0], constant[0]
    return total, constant


def _rates(norms: FloatArray, config: Config, dt: float) -> tuple[FloatArray, FloatArray]:
    """Return L at every step (steps + 1,), and what each step adds to the exponent (steps,)."""
    flow = flow_from_config(config["flow"])
    parts = flow.growth(norms)
    rate, lipschitz = parts.one_sided(config["direction"]), parts.lipschitz()
    if as_scheme(scheme_from_config(config["scheme"]))[0].stages > 1:
        # Each norm is convex along heads that move on a line, and L grows with each; L itself need
        # not be convex (`effective`: one head grows as another shrinks).
        largest = flow.growth(np.maximum(norms[1:], norms[:-1]))
        return rate, dt * largest.one_sided(config["direction"])
    with np.errstate(over="ignore"):
        return rate, np.log1p(2 * dt * rate + (dt * lipschitz) ** 2)[:-1] / 2


Cost = Literal["chordal", "geodesic"]


PREFACTOR: dict[str, float] = {"chordal": 1.0, "geodesic": math.pi / 2}
"""C of the bound for each cost of W₂."""

# A W₂ that is zero but for rounding, and what summing a bound rounds away.
_ROUNDING = {"float64": 1e-12, "float32": 1e-5}
_RELATIVE = 1e-9
_EXPONENT = {
    "long_name": "exponent of the bound, integral of L",
    "units": "1",
    "source": "[MHT] Remark 5.2",
}


def growth_constant(
    D: ArrayLike, *, flow: FlowName | Flow = "softmax", direction: Direction = "descent"
) -> float | FloatArray:
    r"""Return the growth constant L of the bound on W₂ between two clouds under the same heads.

    Parameters
    ----------
    D : array_like, shape (..., heads, d, d)
        Heads, symmetric or not.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        Flow; one that is custom states a `growth`.
    direction : {"descent", "ascent"}, default "descent"
        Direction of the flow.

    Returns
    -------
    float or ndarray, shape (...)
        Constant per unit time, a float for (heads, d, d); inf where the exponential overflows,
        beyond norms of about 700.

    Raises
    ------
    InputError
        For wrong names or shapes, values that are not finite, or a flow without a known bound.

    Notes
    -----
    With a_h the largest singular value of D_h, for "softmax"

    .. math:: L = \frac1H \sum_h a_h + [\text{ascent}]\, a_h^2 + a_h \sqrt{1 + a_h^2}\; e^{a_h},

    for "unnormalised"

    .. math:: L = \frac1H \sum_h e^{a_h} \bigl(a_h + [\text{ascent}]\, a_h^2 + a_h (1 + a_h)\bigr),

    and for "effective" the mean over all pairs of heads (h, k) of the softmax term for h = k and of

    .. math:: e^{a_h + a_k} \bigl(a_h + [\text{ascent}]\, a_h^2 + a_h a_k + a_h (1 + a_h)
        + a_h a_k e^{a_k}\bigr)

    for h != k. The terms in [ascent] belong to that direction only. The constants of [1]_ are not
    given there.

    In the theory: :ref:`growth of distances <theory-growth>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Theorem 5.1
       and Remark 5.2.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> found = wflow.stability.growth_constant(np.eye(3)[None])
    >>> bool(np.isclose(found, 1 + np.sqrt(2) * np.e))
    True
    """
    check_choice("direction", direction, DIRECTIONS)
    heads = as_matrices(D, "D")
    if heads.ndim < 3:
        raise InputError(f"D has shape {heads.shape}, expected (..., heads, d, d)")
    constant = as_flow(flow).growth(spectral_norms(heads)).one_sided(direction)
    return float(constant) if constant.ndim == 0 else constant


def bound(distance: ArrayLike, exponent: ArrayLike, *, cost: Cost = "chordal") -> FloatArray:
    """Return the bound C e^Lambda W₂(mu_0, nu_0) on a later W₂.

    The constant C is 1 for the chordal cost and pi/2 for the geodesic one [1]_.

    Parameters
    ----------
    distance : array_like
        Distance W₂ of the two clouds at the start, in the same cost, >= 0.
    exponent : array_like
        Exponent Lambda = int L ds of `exponent`, of any shape that broadcasts with it.
    cost : {"chordal", "geodesic"}, default "chordal"
        Cost of W₂.

    Returns
    -------
    ndarray of float64
        Bounds; inf where they overflow, and 0 for clouds that are equal.

    Raises
    ------
    InputError
        For a wrong cost, a distance that is negative or NaN, an exponent that is NaN, or shapes
        that do not broadcast.

    Notes
    -----
    In the theory: :ref:`stability <theory-stability>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Theorem 5.1.

    Examples
    --------
    >>> import wflow
    >>> wflow.stability.bound(0.1, [0.0, 1.0]).round(4)
    array([0.1   , 0.2718])
    """
    check_choice("cost", cost, PREFACTOR)
    start = reals(distance, "distance", finite=False)
    growth = reals(exponent, "exponent", finite=False)
    try:
        np.broadcast_shapes(start.shape, growth.shape)
    except ValueError as error:
        raise InputError(f"distance and exponent must be numbers that broadcast: {error}") from None
    if not np.all(start >= 0):
        raise InputError("distance must be numbers >= 0: the W₂ of two clouds")
    if np.any(np.isnan(growth)):
        raise InputError("exponent holds NaN: expected the integral of a growth constant")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # log 0 = -inf against an exponent of inf: equal clouds stay equal.
        scaled = np.log(PREFACTOR[cost] * start)
        return np.where(start == 0, 0.0, np.exp(np.where(start == 0, 0.0, scaled) + growth))


def exponent(
    run: xarray.Dataset | str | Path,
    *,
    law: HeadLaw | None = None,
    weights: Literal["path", "snapshots"] = "path",
) -> xarray.DataArray:
    r"""Return the exponent Lambda(t) = int_0^t L(D(s)) ds along the heads of a run.

    Parameters
    ----------
    run : xarray.Dataset, str or pathlib.Path
        A run of `wflow.solve` or `wflow.open`, or its file.
    law : wflow.heads.HeadLaw, optional
        The head law, where it is made of Python functions, which a run file does not hold.
    weights : {"path", "snapshots"}, default "path"
        Whether the heads are recomputed from the seed, or taken at the snapshots.

    Returns
    -------
    xarray.DataArray
        Exponents at the snapshots (snapshot_path, snapshot), zero at the first snapshot only if
        that is time 0.

    Raises
    ------
    InputError
        For runs that the bound is not about: (Q, K, V) heads, a causal mask, noise on the tokens;
        for a law that is not that of the run.

    Notes
    -----
    With ``weights="path"`` the heads are recomputed from the seed, step by step, and Lambda bounds
    what the run itself computes [1]_: for "euler"

    .. math:: \Lambda = \sum_{\text{steps}} \tfrac12 \log(1 + 2\,dt\,L + dt^2 M^2),

    M the Lipschitz constant of the velocity (L of "ascent"), because x + dt v is outside of the
    sphere, and from there the division by the norm brings no two tokens further apart; for "heun"
    and "rk4" the sum of dt times L of the larger norms of both ends of the step, which bounds the
    flow that they follow up to the error of the scheme. Noisy heads need "euler".

    With ``weights="snapshots"`` Lambda is the trapezoidal sum of L over the snapshots of a run with
    ``SaveAt(heads=True)``: an estimate, exact for frozen heads.

    In the theory: :ref:`the exponent <theory-exponent>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Remark 5.2.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     wflow.tokens.uniform(5, 3, seed=0), wflow.heads.Frozen(), heads=np.eye(3)[None],
    ...     t_final=0.2, dt=0.1, scheme="heun",
    ... )
    >>> rate = wflow.stability.growth_constant(np.eye(3)[None])
    >>> bool(np.allclose(wflow.stability.exponent(run), [0.0, 0.2 * rate]))
    True
    """
    import xarray

    check_choice("weights", weights, ("path", "snapshots"))
    with run_and_config(run) as (ds, config):
        times = ds["snapshot"].values
        paths = ds["snapshot_path"].values
        if weights == "snapshots":
            values = over_snapshots(ds, config)
        else:
            values = over_path(ds, config, law, times, paths)[0]
        return xarray.DataArray(
            values,
            dims=("snapshot_path", "snapshot"),
            coords={"snapshot_path": paths, "snapshot": times},
            name="exponent",
            attrs=_EXPONENT,
        )


@dataclass(frozen=True, repr=False)
class GrowthRate(ShortResult):
    """Growth of a distance: log d(t) = log d_0 + rate (t - t_0), fitted to the mean of replicates.

    Attributes
    ----------
    rate : float
        Least-squares slope of the mean over replicates of log distance, per unit time.
    ci : tuple of float
        Percentile interval (lo, hi) of the bootstrap over replicates; NaN for one replicate.
    prefactor : float
        Value e^intercept over the geometric mean of the distances at t_0: 1 for pure growth.
    largest : float
        Maximum over replicates and times of log(d(t) / d(t_0)) / (t - t_0).
    largest_at : float
        The time at which it is reached.
    level : float
        Coverage of the interval.
    replicates : int
        Number of replicates.
    points : int
        Number of times.
    resamples : int
        Number of resamples.
    log_prefactor : float
        Logarithm of the prefactor, in range where the prefactor is 0 or inf.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> t = np.linspace(0.0, 1.0, 5)
    >>> fit = wflow.stability.growth_rate(t, 3 * np.exp(2 * t), resamples=10)
    >>> round(fit.largest, 6), fit.replicates
    (2.0, 1)
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
    log_prefactor: float = field(repr=False, compare=False)

    def __call__(self, t: ArrayLike) -> FloatArray:
        """Return the factor prefactor e^{rate t} of the fit, t counted from the first time."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_prefactor + self.rate * reals(t, "t"))


def growth_rate(
    times: ArrayLike,
    distances: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> GrowthRate:
    """Fit the rate at which distances grow in time, with a confidence interval over replicates.

    Parameters
    ----------
    times : array_like, shape (k,)
        Increasing times, k >= 2.
    distances : array_like, shape (replicates, k) or (k,)
        Positive distances.
    level : float, default 0.95
        Coverage of the interval.
    resamples : int, default 2000
        Number of bootstrap resamples of the replicates.
    seed : int, default 0
        Seed of the resampling.

    Returns
    -------
    GrowthRate
        The fit.

    Raises
    ------
    InputError
        For fewer than two times, shapes that do not fit, or distances that are not positive.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> t = np.linspace(0.0, 1.0, 5)
    >>> round(wflow.stability.growth_rate(t, 3 * np.exp(2 * t)).rate, 6)
    2.0
    """
    resamples, seed = whole(resamples, "resamples"), whole(seed, "seed", 0, most=math.inf)
    level = number(level, "level", least=0.0)
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}: expected a number between 0 and 1")
    t = reals(times, "times")
    values = np.atleast_2d(reals(distances, "distances", finite=False))
    if t.ndim != 1 or len(t) < 2 or not np.all(np.diff(t) > 0) or not np.isfinite(t).all():
        raise InputError("times must be two or more increasing numbers")
    if values.ndim != 2 or values.shape[1] != len(t) or not len(values):
        raise InputError(
            f"distances have shape {values.shape}, expected (replicates, {len(t)}) for "
            f"{len(t)} times"
        )
    if not np.all((values > 0) & np.isfinite(values)):
        raise InputError(
            "distances must be positive and finite: clouds that are equal have no rate; leave out "
            "those replicates or times"
        )
    check_memory(8 * 6 * resamples, f"a bootstrap of {resamples} resamples", "take fewer")
    log = np.log(values)
    since = t - t[0]
    centred = since - since.mean()
    with np.errstate(over="ignore", under="ignore"):
        square = float(np.sum(centred**2))
    if not 0 < square < math.inf:
        raise InputError(
            f"times span {since[-1]:.3g}: squares of it leave the range of doubles; scale them"
        )
    slopes = log @ centred / square  # (replicates,)
    rate = float(slopes.mean())
    gained = log - log[:, :1]
    log_prefactor = float(gained.mean()) - rate * float(since.mean())
    mean_rates = gained[:, 1:] / since[1:]
    top = np.unravel_index(np.argmax(mean_rates), mean_rates.shape)
    ci = (math.nan, math.nan)
    if len(slopes) > 1:
        drawn = resampled_means(slopes[None], resamples, np.random.default_rng(seed))
        ci = interval(np.concatenate([means[:, 0] for _, means in drawn]), level)
    return GrowthRate(
        rate=rate,
        ci=ci,
        prefactor=safe_exp(log_prefactor),
        largest=float(mean_rates[top]),
        largest_at=float(t[top[1] + 1]),
        level=level,
        replicates=len(slopes),
        points=len(t),
        resamples=resamples,
        log_prefactor=log_prefactor,
    )


def compare(
    run: xarray.Dataset | str | Path,
    other: xarray.Dataset | str | Path,
    *,
    law: HeadLaw | None = None,
    costs: tuple[Cost, ...] = ("chordal", "geodesic"),
    progress: bool = False,
) -> xarray.Dataset:
    """Compare two runs of the same heads: W₂ over time, and whether the bound holds at each time.

    The runs may differ in their tokens (also in how many they are), in what they record, and in how
    their sums are formed (method, tolerance, backend): the error that series of a tolerance ε add
    to the distance, 2 ε (e^Lambda - 1) for each run, is allowed for in holds_<cost>. The bound [1]_
    starts at the first snapshot that they share. W₂ is that of `wflow.transport.w2`, exact up to
    several thousand tokens.

    Parameters
    ----------
    run : xarray.Dataset, str or pathlib.Path
        A run of `wflow.solve` or `wflow.open`, or its file.
    other : xarray.Dataset, str or pathlib.Path
        The other run.
    law : wflow.heads.HeadLaw, optional
        The head law, where it is made of Python functions, which a run file does not hold.
    costs : tuple of {"chordal", "geodesic"}, default both
        Costs of W₂.
    progress : bool, default False
        Whether to show a bar with the time left.

    Returns
    -------
    xarray.Dataset
        Variables (snapshot_path, snapshot): growth_constant and exponent, and for each cost
        w2_<cost>, bound_<cost> and holds_<cost>.

    Raises
    ------
    InputError
        For runs of different heads, steps, flows or dimensions; runs that share fewer than two
        snapshot times, or no path; and as for `exponent`.

    Notes
    -----
    In the theory: :ref:`stability <theory-stability>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Theorem 5.1.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> def run(seed):
    ...     return wflow.solve(
    ...         wflow.tokens.uniform(5, 3, seed=seed), wflow.heads.Frozen(), heads=np.eye(3)[None],
    ...         t_final=0.2, dt=0.1,
    ...     )
    >>> found = wflow.stability.compare(run(0), run(1), costs=("chordal",))
    >>> bool(found.holds_chordal.all())
    True
    """
    import xarray

    from wflow._core.progress import progress as progress_bar
    from wflow.transport.distances import w2

    if not isinstance(costs, tuple | list) or not costs:
        raise InputError(
            f"costs is {shown(costs)}: expected a tuple of names, such as ('chordal',)"
        )
    progress = switch(progress, "progress")
    for cost in costs:
        check_choice("cost", cost, PREFACTOR)
    with (
        run_and_config(run) as (first, config),
        run_and_config(other) as (second, other_config),
    ):
        check_same_weights(config, other_config)
        check_same_axes(first, second)
        at, times = shared(first, second, "snapshot", config["dt"] / 2)
        rows, paths = shared(first, second, "snapshot_path", 0.5)
        if len(times) < 2 or not len(paths):
            raise InputError(
                f"the runs share {len(times)} snapshot times and {len(paths)} paths: expected two "
                "times and one path or more; give both the same snapshots and paths in SaveAt"
            )
        growth, constant = over_path(first, config, law, times, paths)
        growth = growth - growth[:, :1]
        kind, other_kind = (c["compute"]["dtype"] for c in (config, other_config))
        rounding = max(_ROUNDING[kind], _ROUNDING[other_kind])
        series = sum(sum_error(c) for c in (config, other_config))
        distances: dict[str, FloatArray] = {c: np.empty(growth.shape) for c in costs}
        with progress_bar(growth.size, "W₂", progress) as tick:
            for p, (row, other_row) in enumerate(zip(*rows, strict=True)):
                for k, (here, there) in enumerate(zip(*at, strict=True)):
                    # In the precision of each run: a run file holds all tokens in double.
                    x = first["tokens"][row, here].values.astype(kind)
                    y = second["tokens"][other_row, there].values.astype(other_kind)
                    for cost in costs:
                        distances[cost][p, k] = w2(x, y, cost=cost)
                    tick(1)
    # Velocities off by `series` times L part tokens by int e^(Lambda(t) - Lambda(s)) series L ds.
    with np.errstate(over="ignore"):
        grown = np.expm1(growth) if series else np.zeros(growth.shape)
    dims = ("snapshot_path", "snapshot")
    variables: dict[str, Any] = {
        "growth_constant": (dims, constant, {"long_name": "growth constant L", "units": "1"}),
        "exponent": (dims, growth, _EXPONENT),
    }
    for cost in costs:
        table = distances[cost]
        limit = bound(table[:, :1], growth, cost=cost)
        holds = table <= limit * (1 + _RELATIVE) + rounding + PREFACTOR[cost] * series * grown
        name = f"{cost} Wasserstein distance W_2"
        source = {"units": "1", "source": "[MHT] Theorem 5.1"}
        variables[f"w2_{cost}"] = (dims, table, {"long_name": name, "units": "1"})
        variables[f"bound_{cost}"] = (dims, limit, {"long_name": f"bound on the {name}"} | source)
        variables[f"holds_{cost}"] = (dims, holds, {"long_name": f"whether the {name} is within"})
    coords = {
        "snapshot_path": ("snapshot_path", paths, {"long_name": "path"}),
        "snapshot": ("snapshot", times, {"long_name": "time", "units": "1"}),
    }
    attrs = {"flow": flow_name(config)} | {key: config[key] for key in ("direction", "dt", "seed")}
    attrs["scheme"] = as_scheme(scheme_from_config(config["scheme"]))[0].name
    return xarray.Dataset(variables, coords, attrs)
