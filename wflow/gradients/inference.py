"""`wflow.inference`: heads and parameters of their laws from observed tokens.

Least squares between a run and the observations, with derivatives by `wflow.gradient`
(docs/theory/gradients.md). What the observations do not decide is reported, and has no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.adaptive import Dopri5
from wflow._core.checks import (
    Direction,
    FlowName,
    SchemeName,
    number,
    positive,
    reals,
    shown,
    switch,
    times_of,
    whole,
)
from wflow._core.errors import AccuracyWarning, BlowUpError, InputError, warn
from wflow._core.memory import check_memory
from wflow._core.reprs import ShortResult
from wflow._core.rng import INITIAL_HEADS, CounterNormals
from wflow._core.tableaux import Tableau
from wflow.attention.flows import Flow
from wflow.gradients.adjoint import Trajectory, differentiable_problem, gradient
from wflow.gradients.losses import Tokens
from wflow.gradients.search import least
from wflow.heads.laws import QKV, Frozen, HeadLaw, OrnsteinUhlenbeck, Schedule
from wflow.heads.matrices import is_symmetric
from wflow.particles.options import Compute, SaveAt
from wflow.particles.solver import solve
from wflow.sphere.geometry import as_tokens, normalise_unchecked, project_unchecked

__all__ = ["Fit", "Undecided", "fit"]

Array = NDArray[np.floating]

_PARAMETERS: dict[type[HeadLaw], tuple[str, ...]] = {
    Frozen: ("heads",),
    Schedule: ("scores",),
    OrnsteinUhlenbeck: ("heads", "mean", "rate"),
}
_OFF = 1e-6  # by which the norm of an observed token may differ from one
_STEP = 1e-5  # of the central differences
_FLAT = 1e-7  # singular value of the sensitivity, over the largest, that differences resolve
_LEAST = 1e-100  # noise whose square is a number
_ROUNDING = 1e-9  # noise below which differences of tokens are rounding
_FIRST, _NEXT = 0.1, 0.5  # deviation of the entries at the first start, and of later ones from it
_FARTHEST = 2.0  # change of a parameter in one round of L-BFGS
_ROUNDS, _ITERATIONS = 30, 60
_DECREMENT = 1e-4  # squared distance from the minimum in standard errors
_UNSEEN = 1e-5  # part of a combination along flat directions that is rounding
_ALIKE = 0.99  # cosine of a direction and a known one that have one name
_ALIKE_HEADS, _APART = 0.05, 10.0  # level of the test of equal heads; quantiles beyond any doubt
_SHIFT = 0.25  # change of a combination at half the time step, in standard errors, that matters
_UNLIKELY = 1e-4  # probability of larger residuals below which a fit is warned of


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True, eq=False, repr=False)
class Undecided(ShortResult):
    """Directions in the space of parameters along which the observations decide nothing.

    Attributes
    ----------
    name : str
        What the directions change.
    directions : dict of str to ndarray, shape (count, ...)
        Orthonormal directions, each of the shape of its parameter; those of "rate" change its
        logarithm.

    Examples
    --------
    >>> import wflow
    >>> wflow.inference.Undecided("differences of the heads", {})
    Undecided(name='differences of the heads', count=0)
    """

    name: str
    directions: dict[str, Array]

    @property
    def count(self) -> int:
        """Number of the directions."""
        return max(map(len, self.directions.values()), default=0)

    def _parameter_texts(self) -> Mapping[str, str]:
        return {"name": repr(self.name), "count": str(self.count)}


@dataclass(frozen=True, eq=False, repr=False)
class Fit(ShortResult):
    """Parameters that reproduce observed tokens, as `wflow.inference.fit` returns them.

    Attributes
    ----------
    parameters : dict of str to ndarray
        Estimate of each parameter; NaN where the observations do not decide an entry.
    intervals : dict of str to ndarray, shape (..., 2)
        Lower and upper ends of the intervals of every entry; NaN where one is not decided.
    undecided : tuple of Undecided
        What the observations do not decide, in groups by name.
    law : wflow.heads.HeadLaw
        Law with the estimate in it: `wflow.solve` takes it. Entries that are not decided are those
        that the search ended at.
    heads : ndarray, shape (heads, d, d), or None
        Heads at time 0, for `wflow.solve`; None for a schedule.
    x0 : ndarray, shape (n, d) or (trajectories, n, d)
        Tokens at time 0, those given or an estimate.
    noise : float
        Standard deviation of the observations along each tangent direction, given or estimated.
    misfit : float
        Sum of the squared residuals over that expected for the noise; 1 for an estimated noise.
    freedom : int
        Degrees of freedom of the residuals: observed numbers less the initial tokens, where these
        are estimated, and the directions of the parameters that the run depends on.
    level : float
        Coverage of the intervals.
    converged : bool
        Whether the search ended within a hundredth of a standard error of a minimum.

    Examples
    --------
    >>> import wflow
    >>> from wflow.heads import Frozen
    >>> x0, times = wflow.tokens.uniform(20, 3, seed=0), [0.5, 1.0]
    >>> save = wflow.SaveAt(snapshots=times, budget=False)
    >>> run = wflow.solve(x0, Frozen(), heads=1, t_final=1.0, dt=0.1, scheme="rk4", save=save)
    >>> found = wflow.inference.fit(run.tokens, times, Frozen(), heads=1, x0=x0, dt=0.1)
    >>> found.parameters["heads"].shape, found.intervals["heads"].shape, found.undecided
    ((1, 3, 3), (1, 3, 3, 2), ())
    """

    _shown = ("noise", "misfit", "freedom", "level", "converged", "undecided")

    parameters: dict[str, Array]
    intervals: dict[str, Array]
    undecided: tuple[Undecided, ...]
    law: HeadLaw
    heads: Array | None
    x0: Array
    noise: float
    misfit: float
    freedom: int
    level: float
    converged: bool
    _solution: _Solution = field(init=False)

    def combination(self, weights: Mapping[str, ArrayLike]) -> tuple[float, float, float]:
        """Return a linear combination of the parameters, and the ends of its interval.

        Parameters
        ----------
        weights : dict of str to array_like
            Weights of the entries of some parameters, each of the shape of the parameter; the
            weight of "rate" is that of its logarithm.

        Returns
        -------
        tuple of float
            Estimate, lower and upper end; all are NaN where the observations do not decide it.

        Raises
        ------
        InputError
            For a parameter that was not estimated, and weights of another shape.

        Examples
        --------
        >>> import numpy as np, wflow
        >>> from wflow.heads import Frozen
        >>> x0 = wflow.tokens.uniform(20, 3, seed=0)
        >>> run = wflow.solve(x0, Frozen(), heads=1, t_final=1.0, dt=0.1, scheme="rk4")
        >>> found = wflow.inference.fit(run.tokens[:, 1:], [1.0], Frozen(), heads=1, x0=x0, dt=0.1)
        >>> value, low, high = found.combination({"heads": np.eye(3)[None]})  # the trace
        >>> bool(low < value < high)
        True
        """
        if not isinstance(weights, Mapping):
            raise InputError(f"weights are {shown(weights)}: expected a dict, parameter -> weights")
        return self._solution.interval(self._solution.space.weights(weights))


def fit(
    observed: ArrayLike,
    times: Sequence[float] | ArrayLike,
    law: HeadLaw,
    *,
    heads: int | ArrayLike | None = None,
    estimate: Iterable[str] | None = None,
    symmetric: bool = False,
    x0: ArrayLike | None = None,
    noise: float | None = None,
    level: float = 0.95,
    resamples: int = 0,
    resolution: float = 0.5,
    starts: int = 4,
    dt: float,
    seed: int = 0,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    scheme: SchemeName | Tableau = "rk4",
    causal: bool = False,
    compute: Compute = Compute(),
) -> Fit:
    r"""Estimate heads, or parameters of their law, from observed tokens.

    Parameters
    ----------
    observed : array_like, shape (snapshots, n, d) or (trajectories, snapshots, n, d)
        Tokens on the sphere, with noise; trajectories have the same heads. `run.tokens` is one.
    times : array_like of float, shape (snapshots,)
        Increasing times of the snapshots, which are times of steps.
    law : wflow.heads.HeadLaw
        Frozen heads, a schedule, or Ornstein-Uhlenbeck heads without noise, sigma2 = 0. The table
        of a schedule, and the mean and rate of Ornstein-Uhlenbeck heads, are where the search
        starts.
    heads : int or array_like of shape (heads, d, d), optional
        Number of heads at time 0, for a search from small random ones, or heads to start from. Not
        for a schedule.
    estimate : iterable of str, optional
        Parameters to estimate: "heads" (at time 0), "scores" (the table of a schedule), "mean",
        "rate"; the others are held at the values given. None estimates all that the law has.
    symmetric : bool, default False
        Whether heads and scores are symmetric. A mean always is.
    x0 : array_like, shape (n, d) or (trajectories, n, d), optional
        Exact tokens at time 0. None estimates them, too; the first time is 0 then.
    noise : float, optional
        Standard deviation of the observations along each tangent direction. None estimates it from
        the residuals.
    level : float, default 0.95
        Coverage of the intervals, between 0 and 1.
    resamples : int, default 0
        Number of data sets that are drawn at the estimate and fitted again, a parametric bootstrap
        of the intervals: at least 2/(1 - level). 0 makes them from the Hessian.
    resolution : float, default 0.5
        Standard error, of a combination of the parameters of unit length, above which it counts as
        undecided. Entries of heads are logarithms of attention weights.
    starts : int, default 4
        Largest number of searches, from random places about the first one; the best is returned.
        With a given noise the first is taken whose residuals are no larger than it.
    dt : float
        Time step, as in `wflow.solve`.
    seed : int, default 0
        Key of the random starts.
    flow : {"softmax", "unnormalised", "effective"}, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it.
    scheme : str or wflow.Tableau, default "rk4"
        Time stepping, with steps of equal length. Laws with exact=True take "euler".
    causal : bool, default False
        Whether token i attends to tokens j <= i only.
    compute : wflow.Compute, default Compute()
        Threads and paths at a time, as in `wflow.gradient`.

    Returns
    -------
    Fit
        Estimates, their intervals, and what the observations do not decide.

    Raises
    ------
    InputError
        For tokens that are off the sphere, not finite or of other shapes than the times and x0;
        for times that are not times of steps, other laws, (Q, K, V) heads, heads with noise,
        parameters that the law does not have, and observations too few for the parameters and, if
        it is not given, the noise.
    BlowUpError
        If no run from the start of the search stays finite.

    Warns
    -----
    AccuracyWarning
        For a search that did not converge; for residuals too large for the given noise: the search
        ended in a local minimum, or the model is another one; where half the time step moves the
        estimate by more than a quarter of a standard error; and for a chaotic run.

    See Also
    --------
    wflow.gradient : The derivatives.

    Notes
    -----
    With observations y of P trajectories, the estimate minimises

    .. math:: \frac{1}{2 s^2} \sum_{p, k, i} |y_i^{p,k} - x_i^p(t_k; \theta)|^2

    over parameters and, without x0, over initial tokens. L-BFGS-B runs in coordinates in which the
    Gauss-Newton Hessian :math:`F = J^\top J/s^2` at the start of a round is the identity, up to a
    unit matrix that bounds steps where it is flat, until the Newton decrement is below 1e-4: the
    estimate is within a hundredth of a standard error of the minimum. J comes from central
    differences of runs and is projected off the initial tokens where these are estimated. An
    eigenvector of F is undecided if its standard error exceeds `resolution`, or if its eigenvalue
    is rounding; so are differences of heads whose mean fits as well, by a likelihood-ratio test at
    5 %. All else is local. Intervals are Gaussian for a given noise, of Student for an estimated
    one [1]_, and hold for one order of the heads: any other fits as well. With `resamples` they
    reach from the estimate to quantiles of what the estimates from simulated observations are off
    by, the other way round: those of runs that are not linear over a standard error. What is
    undecided is the same.

    In the theory: :ref:`inference <theory-inference>`.

    References
    ----------
    .. [1] Seber and Wild, *Nonlinear Regression*, Wiley (1989), chapters 2 and 5.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x0, truth = wflow.tokens.uniform(20, 3, seed=0), np.diag([1.0, 0.5, -1.0])[None]
    >>> run = wflow.solve(
    ...     x0, wflow.heads.Frozen(), heads=truth, t_final=1.0, dt=0.1, scheme="rk4"
    ... )
    >>> found = wflow.inference.fit(
    ...     run.tokens, [0.0, 1.0], wflow.heads.Frozen(), heads=1, x0=x0, dt=0.1
    ... )
    >>> bool(np.abs(found.parameters["heads"] - truth).max() < 1e-6)
    True
    """
    seed = whole(seed, "seed", least=0)
    known = None if noise is None else number(noise, "noise", least=_LEAST)
    model = _Model(
        observed, times, law, heads, estimate, symmetric, x0, known, dt=dt, seed=seed, flow=flow,
        direction=direction, scheme=scheme, causal=causal, compute=compute,
    )  # fmt: skip
    level = number(level, "level")
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}: expected a number between 0 and 1")
    if (resamples := whole(resamples, "resamples", least=0)) and resamples < round(2 / (1 - level)):
        raise InputError(f"resamples is {resamples}: expected 0, or 2/(1 - level) or more")
    check_memory(8 * resamples * model.size, f"a bootstrap of {resamples} resamples", "take fewer")
    resolution = positive(resolution, "resolution")
    found = []
    for start in model.starts(whole(starts, "starts"), seed):
        try:
            found.append(_search(model, start, known, resolution))
        except BlowUpError as error:
            failure = error
            continue
        last = found[-1]
        if known is not None and last.converged and last.squares <= known**2 * last.freedom:
            break
    if not found:
        raise failure
    best = min(found, key=lambda each: each.squares)
    return _result(model, best, known, level, resamples, seed)


# The parameters
# --------------


class _Space:
    """Parameters as one vector, in coordinates whose lengths are those of the matrices.

    Attributes
    ----------
    index : parameter -> number of the coordinate of each entry; those of symmetric matrices share
    scale : parameter -> what each entry is of its coordinate: the root of 1/2 where two share it
    size : number of coordinates
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], symmetric: Mapping[str, bool]):
        self.index: dict[str, NDArray[np.int64]] = {}
        self.scale: dict[str, Array] = {}
        self.size = 0
        for name, shape in shapes.items():
            numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
            if symmetric[name]:
                numbers = np.minimum(numbers, numbers.swapaxes(-1, -2))
            _, places, shared = np.unique(numbers, return_inverse=True, return_counts=True)
            self.index[name] = self.size + places.reshape(shape)
            self.scale[name] = shared[places].reshape(shape) ** -0.5
            self.size += len(shared)

    def arrays(self, theta: Array) -> dict[str, Array]:
        """Return the entries of vectors (..., size), by parameter."""
        return {name: theta[..., index] * self.scale[name] for name, index in self.index.items()}

    def vector(self, arrays: Mapping[str, Any]) -> Array:
        """Return the coordinates of given parameters."""
        theta = np.zeros(self.size)
        for name, index in self.index.items():
            theta[index] = arrays[name] / self.scale[name]
        return theta

    def cotangent(self, arrays: Mapping[str, Any]) -> Array:
        """Return derivatives by the coordinates, from those by free entries of some parameters."""
        total = np.zeros(self.size)
        for name, values in arrays.items():
            np.add.at(total, self.index[name], values * self.scale[name])
        return total

    def weights(self, given: Mapping[str, ArrayLike]) -> Array:
        checked = {}
        for name, values in given.items():
            if name not in self.index:
                raise InputError(
                    f"{shown(name)} was not estimated: expected some of {', '.join(self.index)}"
                )
            checked[name] = reals(values, f"the weights of {name}")
            if checked[name].shape != self.index[name].shape:
                raise InputError(
                    f"the weights of {name} have shape {checked[name].shape}: expected "
                    f"{self.index[name].shape}"
                )
        return self.cotangent(checked)

    def known_directions(self, columns: Array, tokens: Array) -> Iterable[tuple[str, Array]]:
        """Yield names and bases (size, count) of directions that may well be flat."""
        d = tokens.shape[-1]
        _, sizes, axes = np.linalg.svd(tokens.reshape(-1, d), full_matrices=False)
        off = axes[sizes < 1e-6 * sizes[0]]
        matrices = [name for name, index in self.index.items() if index.ndim]
        for name in matrices:
            what = f"parts of {name} off the span of the tokens"
            yield what, self._kept(name, lambda E: E @ (off.T @ off))
        for name, index in self.index.items():
            own = np.isin(np.arange(self.size), index) & (columns == 0)
            what = f"entries of {name} that no observation depends on" if index.ndim else name
            yield what, np.eye(self.size)[:, own]
        for name in matrices:
            what = f"antisymmetric parts of {name}"
            yield what, self._kept(name, lambda E: (E - E.swapaxes(-1, -2)) / 2)
            what = f"multiples of the identity in {name}"
            yield what, self._kept(name, lambda E: np.einsum("...kk,lm->...lm", E, np.eye(d) / d))

    def differences(self, name: str, heads: Sequence[int]) -> Array:
        """Return an orthonormal basis (size, count) of the differences of some heads."""

        def apart(E: Array) -> Array:
            changed, some = np.zeros_like(E), E[..., heads, :, :]
            changed[..., heads, :, :] = some - some.mean(axis=-3, keepdims=True)
            return changed

        return self._kept(name, apart)

    def _kept(self, name: str, project: Callable[[Array], Array]) -> Array:
        """Return an orthonormal basis (size, count) of what a projection of a parameter keeps."""
        images = project(self.arrays(np.eye(self.size))[name])
        values, vectors = np.linalg.eigh([self.cotangent({name: image}) for image in images])
        return np.asarray(vectors[:, values > 1 - 1e-9])


# The runs
# --------


class _Model:
    """Runs as a function of the coordinates of parameters and initial tokens."""

    def __init__(
        self, observed: Any, times: Any, law: HeadLaw, heads: Any, estimate: Any, symmetric: Any,
        x0: Any, noise: float | None, **how: Any,
    ) -> None:  # fmt: skip
        self.observed, self.times = _observations(observed, times)
        self.law, self.guess, self.space = _parameters(
            law, heads, estimate, switch(symmetric, "symmetric"), self.observed.shape[-1],
            CounterNormals(how["seed"]),
        )  # fmt: skip
        trajectories, snapshots, n, d = self.observed.shape
        self.x0: Array = self.observed[:, 0]
        if x0 is not None:
            self.x0 = as_tokens(x0)
            if self.x0.shape not in ((n, d), (trajectories, n, d)):
                raise InputError(
                    f"x0 has shape {self.x0.shape}: expected {(n, d)} or {(trajectories, n, d)}"
                )
        elif self.times[0] != 0:
            raise InputError(
                f"the first time is {self.times[0]:g}: give x0, or observations at time 0 from "
                "which it is estimated"
            )
        if isinstance(how["scheme"], Dopri5) or how["scheme"] == "dopri5":
            raise InputError("fit takes steps of equal length: scheme is 'dopri5'; take 'rk4'")
        # Two unit vectors that span the tangent space of each initial token, or d - 1 of them.
        self.tangent = np.linalg.svd(self.x0[..., None, :])[2][..., 1:, :]  # (..., n, d - 1, d)
        self.extra = self.tangent.size // d if x0 is None else 0
        self.size = self.space.size + self.extra
        self.numbers = snapshots * trajectories * n * (d - 1)
        if self.numbers < self.size + (noise is None):
            what = "" if noise is not None else " and the noise"
            raise InputError(
                f"{self.numbers} observed numbers do not decide {self.size} parameters{what}: give "
                "more snapshots, trajectories or tokens" + (what and ", or noise")
            )
        self.how = how | {
            "t_final": float(self.times[-1]),
            "paths": trajectories,
            "save": SaveAt(snapshots=self.times, paths=range(trajectories), budget=False),
        }
        law, heads, x0 = self.arguments(self.vector())
        differentiable_problem(x0, law, heads=heads, **self.how)  # what has no gradient

    def vector(self) -> Array:
        """Return the coordinates that the search starts from."""
        return np.append(self.space.vector(self.guess), np.zeros(self.extra))

    def starts(self, count: int, seed: int) -> Iterable[Array]:
        normals = CounterNormals(seed)
        for k in range(count):
            shift = normals.draw((self.size,), path=k, step=1, purpose=INITIAL_HEADS)
            shift[self.space.size :] = 0.0
            yield self.vector() + (_NEXT * shift if k else 0.0)

    def arguments(self, theta: Array) -> tuple[HeadLaw, Array | None, Array]:
        """Return law, initial heads and initial tokens of coordinates."""
        values: dict[str, Any] = self.guess | self.space.arrays(theta[: self.space.size])
        law = self.law
        x0: Array = self.x0
        if isinstance(law, Schedule):
            law = Schedule(law.times.tolist(), values["scores"], law.interpolation)
        elif isinstance(law, OrnsteinUhlenbeck):
            rate = float(np.exp(np.clip(values["rate"], -500, 500)))
            law = OrnsteinUhlenbeck(values["mean"], rate, 0.0, exact=law.exact)
        if self.extra:
            along = theta[self.space.size :].reshape(self.tangent.shape[:-1])
            x0 = normalise_unchecked(x0 + np.einsum("...ia,...iak->...ik", along, self.tangent))
        return law, values.get("heads"), x0

    def run(self, theta: Array, **other: Any) -> Array:
        """Return the tokens at the snapshots, (trajectories, snapshots, n, d)."""
        law, heads, x0 = self.arguments(theta)
        how = self.how | other
        return Trajectory(differentiable_problem(x0, law, heads=heads, **how)).tokens

    def loss(self, theta: Array) -> tuple[float, Array]:
        """Return half of the sum of squared residuals, and its derivatives."""
        law, heads, x0 = self.arguments(theta)
        found = gradient(x0, law, heads=heads, loss=Tokens(self.observed), **self.how)
        half = self.observed.shape[0] * self.observed.shape[2] / 2  # the loss is a mean
        given: dict[str, Any] = dict(found.law)
        if found.initial_heads is not None and heads is not None:
            given["heads"] = found.initial_heads.sum(axis=0)
        if "rate" in given:
            given["rate"] = given["rate"] * law.rate  # type: ignore[attr-defined]
        own = self.space.cotangent({name: given[name] for name in self.space.index})
        extra = np.zeros(0)
        if self.extra:
            along = theta[self.space.size :].reshape(self.tangent.shape[:-1])
            norms = np.sqrt(1 + np.einsum("...ia,...ia->...i", along, along))
            extra = np.einsum(
                "...iak,...ik->...ia", self.tangent, found.x0 / norms[..., None]
            ).ravel()
        return half * found.value, half * np.append(own, extra)

    def sensitivity(self, theta: Array) -> tuple[Array, Array | None]:
        """Return derivatives of the tokens by parameters (rows, size), and by initial tokens.

        The latter are an orthonormal basis of their columns for each trajectory, (trajectories,
        rows of one, count), off which the former are projected; None for given tokens.
        """
        steps = _STEP * np.eye(self.size)[: self.space.size]
        J = np.stack(
            [(self.run(theta + h) - self.run(theta - h)).ravel() for h in steps], axis=1
        ) / (2 * _STEP)
        if not self.extra:
            return J, None
        law, heads, x0 = self.arguments(theta)
        trajectories, _, n, d = self.observed.shape
        count, bases = n * (d - 1), []
        for p in range(trajectories):
            each = _STEP * np.eye(count).reshape(n, d - 1, count)
            shift = np.einsum("iak,iac->cik", self.tangent[p], each)
            moved = normalise_unchecked(np.concatenate([x0[p] + shift, x0[p] - shift]))
            how = self.how | {
                "paths": 2 * count, "save": replace(self.how["save"], paths=range(2 * count)),
            }  # fmt: skip
            tokens = solve(moved, law, heads=heads, **how).tokens.values.reshape(2 * count, -1)
            columns = (tokens[:count] - tokens[count:]).T / (2 * _STEP)
            bases.append(np.linalg.qr(columns)[0])
        Q = np.stack(bases)
        return J - self.along(Q, J), Q

    def along(self, Q: Array, rows: Array) -> Array:
        """Return the parts of (rows, ...) along the bases of the trajectories."""
        each = rows.reshape(len(Q), Q.shape[1], -1)
        return np.asarray((Q @ (Q.swapaxes(1, 2) @ each)).reshape(rows.shape))


def _observations(observed: Any, times: Any) -> tuple[Array, Array]:
    y, t = reals(observed, "observed"), times_of(times, "times")
    if y.ndim == 3:
        y = y[None]
    if y.ndim != 4 or not y.size or y.shape[-1] < 2:
        raise InputError(
            f"observed has shape {y.shape}: expected (snapshots, n, d) or (trajectories, "
            "snapshots, n, d) with d >= 2"
        )
    if t.shape != y.shape[1:2]:
        raise InputError(
            f"times have shape {t.shape}: expected {y.shape[1:2]}, one for each snapshot"
        )
    if t[0] < 0 or np.any(np.diff(t) <= 0) or t[-1] == 0:
        raise InputError("times must be increasing numbers >= 0, the last of them above 0")
    off = np.abs(np.sqrt(np.einsum("...k,...k->...", y, y)) - 1)
    if off.max() > _OFF:
        raise InputError(
            f"observed holds tokens of norm {1 + off.max():.6g} or {1 - off.max():.6g}: expected "
            "tokens on the sphere; divide each by its norm"
        )
    return y, t


def _parameters(
    law: HeadLaw, heads: Any, estimate: Any, symmetric: bool, d: int, normals: CounterNormals
) -> tuple[HeadLaw, dict[str, Any], _Space]:
    """Return the law, where each parameter starts, and the space of those to estimate."""
    names = _PARAMETERS.get(type(law))
    if names is None:
        raise InputError(
            f"law is {shown(law)}: expected Frozen, Schedule or OrnsteinUhlenbeck of wflow.heads"
        )
    guess: dict[str, Any] = {}
    if isinstance(law, Schedule):
        if law.initial()[1] is not None or heads is not None:
            raise InputError("a schedule that is fitted has tied heads, and heads is None")
        guess["scores"] = np.array(law._scores)
    else:
        if heads is None or isinstance(heads, QKV):
            raise InputError(
                f"heads is {shown(heads)}: expected a number of heads, or tied heads (heads, d, d)"
            )
        if np.ndim(heads) == 0:
            count = whole(heads, "heads")
            drawn = normals.draw((count, d, d), path=0, step=0, purpose=INITIAL_HEADS)
            guess["heads"] = _FIRST * drawn
            if symmetric:
                guess["heads"] = guess["heads"] + guess["heads"].swapaxes(1, 2)
        else:
            guess["heads"] = reals(heads, "heads")
    if isinstance(law, OrnsteinUhlenbeck):
        if law.sigma2:
            raise InputError(
                f"sigma2 of the law is {law.sigma2:g}: noise of the heads is not observed; give "
                "sigma2=0 for the mean motion, or a Schedule for the heads of one realisation"
            )
        guess |= {"mean": law.mean, "rate": np.log(law.rate)}
    if estimate is not None:
        one = isinstance(estimate, str) or not np.iterable(estimate)
        given = [estimate] if one else list(estimate)
        for name in given:
            if not isinstance(name, str) or name not in names:
                raise InputError(
                    f"estimate has {shown(name)}: expected some of {', '.join(names)}, what "
                    f"{type(law).__name__} has"
                )
        names = tuple(name for name in names if name in given)
        if not names:
            raise InputError("estimate is empty: expected the names of some parameters")
    same = {name: name == "mean" or (symmetric and name in ("heads", "scores")) for name in names}
    for name in names:
        if same[name] and not is_symmetric(guess[name]):
            raise InputError(f"{name} to start from are not symmetric, and symmetric is True")
    shapes = {name: np.shape(guess[name]) for name in names}
    return law, guess, _Space(shapes, same)


# The search
# ----------


@dataclass(frozen=True)
class _Spectrum:
    """Eigenvalues (size,) of the Gauss-Newton Hessian, its eigenvectors, and what they decide.

    resolved : whether an eigenvalue is more than rounding
    resolution : largest standard error of a combination of unit length that is decided
    equal : orthonormal directions (size, count) between heads that are not told apart
    """

    values: Array
    vectors: Array
    resolved: NDArray[np.bool_]
    resolution: float
    equal: Array

    @property
    def decided(self) -> NDArray[np.bool_]:
        return self.resolved & (self.values >= self.resolution**-2)

    def error(self, weights: Array) -> float:
        """Return the standard error of a combination; NaN if it is not decided."""
        parts, seen = self.vectors.T @ weights, self.resolved
        error = float(np.sqrt(np.sum(parts[seen] ** 2 / self.values[seen])))
        length = float(np.sqrt(np.sum(parts**2)))
        unseen = float(np.sqrt(np.sum(parts[~seen] ** 2)))
        unseen = max(unseen, float(np.linalg.norm(self.equal.T @ weights)))
        decided = error <= self.resolution * length and unseen <= _UNSEEN * length
        return error if decided else float("nan")


@dataclass(frozen=True)
class _Found:
    """Where a search ended."""

    theta: Array
    squares: float
    noise: float
    freedom: int
    spectrum: _Spectrum
    sensitivity: Array
    tokens: Array
    converged: bool


def _search(
    model: _Model,
    theta: Array,
    known: float | None,
    resolution: float,
    within: Array | None = None,
) -> _Found:
    """Search a minimum in rounds of L-BFGS-B, each in coordinates of unit curvature.

    Parameters
    ----------
    within : orthonormal directions (size, count) of the search; the spectrum is in theirs
    """
    within = np.eye(model.space.size) if within is None else within
    for searched in range(_ROUNDS + 1):
        tokens = model.run(theta)
        rest = (model.observed - tokens).ravel()
        squares = float(rest @ rest)
        J, Q = model.sensitivity(theta)
        J = J @ within
        values, V = np.linalg.eigh(J.T @ J)
        resolved = values > _FLAT**2 * values[-1]
        freedom = model.numbers - model.extra - int(resolved.sum())
        noise = max(np.sqrt(squares / max(freedom, 1)), known or _ROUNDING)
        values = np.maximum(values, 0.0) / noise**2
        slopes = V.T @ (J.T @ rest) / noise**2
        decrement = float(np.sum(slopes[resolved] ** 2 / values[resolved]))
        if Q is not None:
            decrement += float(rest @ model.along(Q, rest)) / noise**2
        if decrement < _DECREMENT or searched == _ROUNDS:
            break
        # Coordinates of unit curvature; where it is flat a unit matrix bounds the step.
        scale = 1 / np.sqrt(1 + values)
        theta = _descend(model, theta, within @ V * scale, _FARTHEST / scale, noise)
    if known is not None:
        values, noise = values * (noise / known) ** 2, known
    return _Found(
        theta, squares, noise, freedom,
        _Spectrum(values, V, resolved, resolution, np.zeros((len(values), 0))), J, tokens,
        decrement < _DECREMENT,
    )  # fmt: skip


def _descend(model: _Model, theta: Array, change: Array, farthest: Array, noise: float) -> Array:
    """Return where L-BFGS-B ends from theta, over multiples of the columns (size, count) of change.

    Parameters
    ----------
    farthest : of the multiples
    noise : unit of the coordinates of initial tokens
    """
    size, count = change.shape

    def moved(z: Array) -> Array:
        return theta + np.append(change @ z[:count], noise * z[count:])

    def loss(z: Array) -> tuple[float, Array]:
        value, slope = model.loss(moved(z))
        along = np.append(change.T @ slope[:size], noise * slope[size:])
        return value / noise**2, along / noise**2

    ends = np.append(farthest, np.full(model.extra, _FARTHEST / noise))
    found = least(
        loss, np.zeros(len(ends)), bounds=np.stack([-ends, ends], axis=1), maxiter=_ITERATIONS,
        ftol=1e-15, gtol=1e-4,
    )  # fmt: skip
    return moved(found.x)


def _unlikely(found: _Found) -> bool:
    """Whether the residuals are too large for the noise, which is given."""
    from scipy.special import gammaincc

    return found.freedom > 0 and bool(
        gammaincc(found.freedom / 2, found.squares / found.noise**2 / 2) < _UNLIKELY
    )


def _equal_heads(model: _Model, best: _Found, known: float | None) -> dict[str, Array]:
    """Return groups of heads that are not told apart: names, and bases of their differences.

    The information at the estimate is that of a linear model, and noise hides from it that the
    heads may be equal. Pairs are therefore compared by the likelihood ratio, with a fit in which
    both are the same.
    """
    from scipy.special import chdtrc, chdtri, fdtrc

    groups: dict[str, Array] = {}
    for name in {"heads", "scores"} & set(model.space.index):
        count = model.space.index[name].shape[-3]
        group = np.arange(count)
        for pair in combinations(range(count), 2):
            if group[pair[0]] == group[pair[1]]:
                continue
            apart = model.space.differences(name, pair)
            within = np.linalg.svd(apart.T)[2][apart.shape[1] :].T
            theta = best.theta.copy()
            theta[: len(apart)] -= apart @ (apart.T @ theta[: len(apart)])
            rest = best.sensitivity @ (theta - best.theta)[: len(apart)]
            J = best.sensitivity @ within
            rest -= J @ np.linalg.lstsq(J, rest)[0]
            limit = chdtri(apart.shape[1], _ALIKE_HEADS)
            if rest @ rest > _APART * limit * best.noise**2:
                continue
            try:
                merged = _search(model, theta, known, best.spectrum.resolution, within)
            except BlowUpError:
                continue
            lost = max(int(best.spectrum.resolved.sum() - merged.spectrum.resolved.sum()), 1)
            ratio = max(merged.squares - best.squares, 0.0) / best.noise**2
            likely = chdtrc(lost, ratio) if known else fdtrc(lost, best.freedom, ratio / lost)
            if likely >= _ALIKE_HEADS:
                group[group == group[pair[1]]] = group[pair[0]]
        for first in np.unique(group):
            members = np.flatnonzero(group == first).tolist()
            if len(members) > 1:
                text = f"{', '.join(map(str, members[:-1]))} and {members[-1]}"
                basis = model.space.differences(name, members)
                groups[f"differences of heads {text}"] = basis
    return groups


def _check_run(model: _Model, best: _Found) -> None:
    """Warn of a chaotic run, and of a time step whose error matters beside the noise."""
    try:
        model.loss(best.theta)
        finer = model.run(best.theta, dt=model.how["dt"] / 2)
    except BlowUpError as error:
        warn(f"at the estimate {error}", AccuracyWarning)
        return
    spectrum, seen = best.spectrum, best.spectrum.decided
    along = spectrum.vectors.T @ (best.sensitivity.T @ (finer - best.tokens).ravel())
    shift = np.sqrt(np.sum(along[seen] ** 2 / spectrum.values[seen])) / best.noise**2
    if shift > _SHIFT and best.noise > _ROUNDING:  # else the tokens are those of this scheme
        warn(
            f"half the time step moves the estimate by {shift:.2g} standard errors: the intervals "
            "do not hold the error of the scheme; take a smaller dt",
            AccuracyWarning,
        )


@dataclass(frozen=True)
class _Solution:
    """What intervals are made of: the estimate (size,), and how far estimates are off.

    quantile : of a standard error
    shifts : differences (count, size) of estimates from simulated observations; None without
    """

    space: _Space
    theta: Array
    spectrum: _Spectrum
    level: float
    quantile: float
    shifts: Array | None

    def interval(self, weights: Array) -> tuple[float, float, float]:
        """Return a combination, lower and upper end; NaN where it is not decided."""
        error = self.spectrum.error(weights)
        value = float(weights @ self.theta) + 0 * error
        if self.shifts is None:
            return value, value - self.quantile * error, value + self.quantile * error
        ends = (1 + self.level) / 2, (1 - self.level) / 2
        low, high = value - np.quantile(self.shifts @ weights, ends, method="weibull")
        return value, float(low), float(high)


def _shifts(
    model: _Model, best: _Found, known: float | None, count: int, seed: int
) -> Array | None:
    """Return how far estimates from observations that are drawn at the estimate are off it.

    Where the noise is estimated, each is taken in units of its own estimate.
    """
    again, normals, x = copy(model), CounterNormals(seed), best.tokens
    found, lost = [], 0
    for k in range(count):
        drawn = normals.draw(x.shape, path=k, step=2, purpose=INITIAL_HEADS)
        again.observed = normalise_unchecked(x + best.noise * project_unchecked(x, drawn))
        try:
            each = _search(again, best.theta, known, best.spectrum.resolution)
        except BlowUpError:
            lost += 1
            continue
        lost += not each.converged
        shift = each.theta[: model.space.size] - best.theta[: model.space.size]
        found.append(shift if known is not None else shift * (best.noise / each.noise))
    if lost:
        warn(
            f"{lost} of {count} searches of the bootstrap did not end in a minimum: its intervals "
            "may be too short",
            AccuracyWarning,
        )
    return np.array(found) if found else None


def _result(
    model: _Model, best: _Found, known: float | None, level: float, count: int, seed: int
) -> Fit:
    from scipy.special import ndtri, stdtrit

    _check_run(model, best)
    equal = _equal_heads(model, best, known)
    together = np.hstack([np.zeros((model.space.size, 0)), *equal.values()])
    best = replace(best, spectrum=replace(best.spectrum, equal=together))
    space, spectrum, theta = model.space, best.spectrum, best.theta[: model.space.size]
    expected = best.noise**2 * max(best.freedom, 1)
    if not best.converged:
        warn("the search for the parameters did not converge: take more starts", AccuracyWarning)
    elif known is not None and _unlikely(best):
        warn(
            f"the squares of the residuals are {best.squares / expected:.3g} times those of the "
            "noise: the search ended in a local minimum, or the model is another one; take more "
            "starts",
            AccuracyWarning,
        )
    upper = (1 + level) / 2
    quantile = float(ndtri(upper) if known else stdtrit(best.freedom, upper))
    shifts = _shifts(model, best, known, count, seed) if count else None
    solution = _Solution(space, theta, spectrum, level, quantile, shifts)
    each = np.array([solution.interval(row) for row in np.eye(space.size)])
    values = space.arrays(each[:, 0])
    intervals = {
        name: np.moveaxis(ends, 0, -1) for name, ends in space.arrays(each[:, 1:].T).items()
    }
    if "rate" in values:
        values["rate"], intervals["rate"] = np.exp(values["rate"]), np.exp(intervals["rate"])
    law, heads, x0 = model.arguments(best.theta)
    found = Fit(
        parameters=values,
        intervals=intervals,
        undecided=tuple(_named(space, equal, best)),
        law=law,
        heads=heads,
        x0=as_tokens(x0),
        noise=best.noise,
        misfit=best.squares / expected,
        freedom=best.freedom,
        level=level,
        converged=best.converged,
    )
    object.__setattr__(found, "_solution", solution)  # behind `combination`, not an argument
    return found


def _named(space: _Space, equal: Mapping[str, Array], best: _Found) -> Iterable[Undecided]:
    """Yield the directions that are not decided in groups, known ones first."""
    spectrum = best.spectrum
    for name, basis in equal.items():
        yield Undecided(name, space.arrays(basis.T))
    flat = spectrum.vectors[:, ~spectrum.decided]
    left, sizes, _ = np.linalg.svd(flat - spectrum.equal @ (spectrum.equal.T @ flat))
    flat = left[:, : len(sizes)][:, sizes > np.sqrt(1 - _ALIKE**2)]
    columns = np.linalg.norm(best.sensitivity, axis=0)
    for name, basis in space.known_directions(columns, best.tokens):
        if not flat.shape[1] or not basis.shape[1]:
            continue
        left, cosines, _ = np.linalg.svd(flat.T @ basis)
        count = int(np.sum(cosines > _ALIKE))
        if count:
            yield Undecided(name, space.arrays((flat @ left[:, :count]).T))
        flat = flat @ left[:, count:]
    for vector in flat.T:
        parts = {name: np.sum(vector[np.unique(at)] ** 2) for name, at in space.index.items()}
        names = [name for name in parts if parts[name] > 1 - _ALIKE]
        what = names[0] if names == ["rate"] else f"a combination of {' and '.join(names)}"
        yield Undecided(what, space.arrays(vector[None]))
