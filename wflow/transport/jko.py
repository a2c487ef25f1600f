r"""Minimizing movements of the time-dependent energy, in W₂, in W_b or in a custom metric.

.. math:: x^k = \arg\min_y\; E(t_k, y) + \frac{W^2(y, x^{k-1})}{2\tau}

(for ascent, of -E + W^2/(2 tau)). As tau -> 0 the steps in W₂ converge to the flow `unnormalised`,
v = s gbar, those in W_b to `effective`, v = s gbar/b: the gradient flows of E in either metric
(Massucco et al., arXiv:2605.18870, Theorems 3.11 and 4.7). What a step needs of its metric is a
`wflow.transport.Metric`. In the theory: :ref:`minimizing movements <theory-minimizing-movements>`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.adaptive import Dopri5
from wflow._core.checks import (
    Direction,
    MetricName,
    SchemeName,
    check_choice,
    count_steps,
    number,
    positive,
    whole,
)
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow._core.memory import check_memory
from wflow._core.reprs import ShortResult
from wflow._core.tableaux import Tableau
from wflow._core.threads import threads_for
from wflow.attention.cloud import evaluate, on_sphere
from wflow.heads.laws import QKV, HeadLaw, law_config
from wflow.heads.process import HeadWalk
from wflow.kernels.evaluate import DIRECTIONS
from wflow.particles.problem import array_config
from wflow.runs.driver import IfExists, Paths, Plan, Runnable, Solver, State, run
from wflow.runs.schema import MOVEMENTS, MovementLayout
from wflow.runs.store import Store
from wflow.sphere.geodesics import geodesics
from wflow.sphere.geometry import normalise_unchecked
from wflow.transport.distances import as_cloud
from wflow.transport.metric import (
    Metric,
    as_heads,
    as_metric,
    metric_config,
    mobilities,
    spectral_norms,
)
from wflow.transport.minimise import Minimum, Objective, minimise

if TYPE_CHECKING:
    import xarray


__all__ = [
    "EnergyInequality",
    "Step",
    "energy_inequality",
    "minimizing_movements",
    "step",
    "variational_interpolation",
]


def __dir__() -> list[str]:
    return __all__


# One step as a minimisation over token positions
# -----------------------------------------------
# With s = +1 for descent and -1 for ascent, multiplied by n tau so that the Hessian is of order
# one,
#
#     F(y) = s n tau (E(y) - E(x)) + (n/2) W^2(y, x),
#
# minimised over y and the nodes between x and y of the metric's path together. Label i follows
# token i.

Array = NDArray[np.floating]

_ROUNDS = 20  # of minimisation and matching in turn
_ROUNDING = 1e-15
# Variables of a run that are numbers of a step.
_NUMBERS = [name for name, held in MOVEMENTS.items() if held.dims == ("time",) and name != "time"]


@dataclass(frozen=True, repr=False)
class Step(ShortResult):
    """One step of minimizing movements.

    Attributes
    ----------
    tokens : ndarray, shape (n, d)
        The minimiser y; token i came from token i of x.
    energy_before : float
        Energy E(x), with the heads of the step.
    energy_after : float
        Energy E(y), with the heads of the step.
    distance_sq : float
        Squared distance W^2(y, x) in the metric of the step.
    iterations : int
        Iterations of the minimiser.
    evaluations : int
        Evaluations of energy and distance.
    gradient_norm : float
        Norm in that metric of the gradient of E + W^2/(2 tau) at y, in the units of a velocity
        times the root of a mobility: ``sqrt((1/n) sum_i |gradient|^2 / b)``.
    converged : bool
        Whether it met the tolerance.
    coupling_optimal : bool
        Whether no other matching of x and y has a smaller cost.
    recouplings : int
        How often a better matching was found and the minimisation continued from it.
    inequality_gap : float
        Value of s (E(x) - E(y)) - W^2/(2 tau), never below zero but for rounding.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(5, 3, seed=0), np.eye(3)[None]
    >>> step = wflow.jko.step(x, D, 0.1)
    >>> step.converged, step.energy_after < step.energy_before
    (True, True)
    """

    tokens: Array
    energy_before: float
    energy_after: float
    distance_sq: float
    iterations: int
    evaluations: int
    gradient_norm: float
    converged: bool
    coupling_optimal: bool
    recouplings: int
    inequality_gap: float


class StepProblem:
    """Problem of a step: E(y) + W^2(y, x)/(2 tau) for one cloud x and any tau.

    Parameters
    ----------
    x : (n, d); D : (heads, d, d) symmetric
    sign : 1.0 descent, -1.0 ascent
    """

    def __init__(self, x: Array, D: Array, metric: Metric, sign: float) -> None:
        self.x, self.sign, self.metric = x, sign, metric
        self.D = np.ascontiguousarray((D + np.swapaxes(D, -1, -2)) / 2)
        metric.check(self.D)
        # One thread or more for all that a step computes.
        self.pairs = len(x) ** 2 * len(self.D)
        with threads_for(self.pairs):
            self.energy, self.gradient = self.energy_and_gradient(x)
            self.b = metric.mobility(x[None], self.D)[0]
        if not math.isfinite(self.energy):
            raise InputError(
                "the energy leaves the range of doubles (scores beyond 709), so there is nothing "
                f"to minimise; the largest head has norm {spectral_norms(self.D).max():.4g}: "
                "scale the heads down"
            )

    def energy_and_gradient(self, y: Array) -> tuple[float, Array]:
        """Return E and gbar (n, d): the gradient of E by y_i is gbar_i / n."""
        found = evaluate(
            y[None], self.D[None], flow="unnormalised", direction="ascent", symmetric=True
        )
        return float(found.terms["energy"][0]), found.velocity[0]

    def slope_sq(self, y: Array) -> float:
        """Return the squared slope of E in the metric: (1/n) sum_i |gbar_i|^2 / b_i."""
        gradient = self.energy_and_gradient(y)[1]
        b = self.metric.mobility(y[None], self.D)[0]
        return float(((gradient**2).sum(axis=1) / b).mean())

    def solve(
        self, tau: float, *, tolerance: float, max_iterations: int, guess: Array | None = None
    ) -> Step:
        """Return the step of length tau; `guess` (n, d) is a start besides the explicit step."""
        with threads_for(self.pairs * self.metric.segments):
            return self._solve(tau, tolerance, max_iterations, guess)

    def _solve(
        self, tau: float, tolerance: float, max_iterations: int, guess: Array | None
    ) -> Step:
        n = len(self.x)
        velocity = -self.sign * self.gradient / self.b[:, None]
        starts = [] if guess is None else [guess]
        # An explicit step of more than a radian is no good start.
        if tau * np.abs(velocity).max() < 1.0:
            starts.append(normalise_unchecked(self.x + tau * velocity))
        segments = self.metric.segments
        paths = [geodesics(self.x, y, segments)[1:] for y in starts]
        paths.append(np.repeat(self.x[None], segments, axis=0))  # F = 0 there
        objective = self._objective(tau)
        nodes = min(paths, key=lambda path: objective(path)[0])
        start_size = math.sqrt(float(((self.gradient**2).sum(axis=1) / self.b).sum())) * tau
        target = tolerance * start_size + self._rounding(tau, self.energy)
        iterations = evaluations = recouplings = 0
        for _ in range(_ROUNDS):
            found = self._descend(objective, nodes, tau, target, max_iterations)
            iterations += found.iterations
            evaluations += found.evaluations
            curve = self._curve(found.x)
            curve, improved = self.metric.reassign(curve, self._mobilities(curve))
            nodes = curve[1:]
            recouplings += improved
            energy = self.energy_and_gradient(nodes[-1])[0]
            distance_sq = self.metric.distance_sq(curve, self.D, self.b)
            # At y both terms of the gradient have the size of the distance: where E fell by many
            # orders of magnitude, a target that was set at x means nothing.
            there = tolerance * math.sqrt(n * distance_sq) + self._rounding(tau, energy)
            target = min(target, there)
            if not improved and (found.gradient_norm <= target or not found.converged):
                break
        y, converged = nodes[-1], not improved and found.gradient_norm <= target
        return Step(
            tokens=y,
            energy_before=self.energy,
            energy_after=energy,
            distance_sq=distance_sq,
            iterations=iterations,
            evaluations=evaluations,
            gradient_norm=found.gradient_norm / (tau * math.sqrt(n)),
            converged=converged,
            coupling_optimal=not improved,
            recouplings=recouplings,
            inequality_gap=self.sign * (self.energy - energy) - distance_sq / (2 * tau),
        )

    def _curve(self, nodes: Array) -> Array:
        """Return all nodes (segments + 1, n, d) of a path from x."""
        return np.concatenate([self.x[None], nodes])

    def _mobilities(self, curve: Array) -> Array:
        """Return b (segments + 1, n) at all nodes of a path from x."""
        return mobilities(self.metric, curve[1:], self.D, self.b[None])

    def _objective(self, tau: float) -> Objective:
        """Return F of the nodes (segments, n, d), with its gradient, as a function."""
        n, scale = len(self.x), self.sign * tau

        def objective(nodes: Array) -> tuple[float, Array]:
            energy, gbar = self.energy_and_gradient(nodes[-1])
            value, gradient = self.metric.cost(self._curve(nodes), self.D, self.b)
            gradient[-1] += scale * gbar
            return n * scale * (energy - self.energy) + value, gradient

        return objective

    def _descend(
        self,
        objective: Objective,
        nodes: Array,
        tau: float,
        tolerance: float,
        max_iterations: int,
    ) -> Minimum:
        curve = self._curve(nodes)
        return minimise(
            objective,
            nodes,
            tolerance=tolerance,
            rounding=_ROUNDING * len(self.x) * tau * self.energy,
            precondition=self.metric.preconditioner(curve, self._mobilities(curve)),
            max_iterations=max_iterations,
        )

    def _rounding(self, tau: float, energy: float) -> float:
        """Return the size of rounding in a gradient: of positions, and of the sums of E."""
        n, d = self.x.shape
        positions = self.metric.segments * math.sqrt(d * float(self.b.max()))
        sums = tau * 2 * energy * float(spectral_norms(self.D).max())
        return _ROUNDING * math.sqrt(n) * (positions + sums / math.sqrt(float(self.b.min())))


TOLERANCE, MAX_ITERATIONS = 1e-9, 500


@dataclass(frozen=True, repr=False)
class EnergyInequality(ShortResult):
    """Terms of the discrete energy identity of one step, E for ascent being -E.

    They satisfy energy_before - energy_after = distance_term + interpolation_term + gap.

    Attributes
    ----------
    energy_before : float
        Energy E(x).
    energy_after : float
        Energy E(y_tau).
    distance_term : float
        Value of W^2(y_tau, x) / (2 tau).
    interpolation_term : float
        Integral of W^2(y_r, x) / (2 r^2) over r from 0 to tau, y_r the variational interpolation.
    slope_term : float
        Integral of G^2(y_r)/2 over r from 0 to tau, ``G^2 = (1/n) sum |gbar|^2 / b`` the squared
        slope of E: equal to interpolation_term in W₂; up to O(tau^2) where b changes along the
        path, as in W_b.
    gap : float
        What is left, zero but for the quadrature where y_r depends smoothly on r.
    plain_gap : float
        Value of energy_before - energy_after - distance_term, never negative.
    converged : bool
        Whether all minimisations did.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(5, 3, seed=0), np.eye(3)[None]
    >>> terms = wflow.jko.energy_inequality(x, D, 0.1, nodes=4)
    >>> abs(terms.gap) < 1e-6 < terms.plain_gap
    True
    """

    energy_before: float
    energy_after: float
    distance_term: float
    interpolation_term: float
    slope_term: float
    gap: float
    plain_gap: float
    converged: bool


def step(
    x: ArrayLike,
    D: ArrayLike,
    tau: float,
    *,
    metric: MetricName | Metric = "w2",
    direction: Direction = "descent",
    segments: int | None = None,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Step:
    r"""Compute one step of minimizing movements.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices.
    tau : float
        Length of the step, > 0, in units of time of the flow.
    metric : {"w2", "weighted"} or wflow.transport.Metric, default "w2"
        Metric of the distance: W₂, W_b weighted by the effective mobility b of the heads D (norms
        up to 64), or an object such as ``W2()``, ``Weighted(segments=8)`` or a custom one.
    direction : {"descent", "ascent"}, default "descent"
        Whether E or -E is minimised.
    segments : int, optional
        Segments of a path from x to y in the metric "weighted", by default 1, which is enough for
        first order in tau. Metric objects have their number themselves.
    tolerance : float, default 1e-9
        Bound on the norm of the gradient, relative to that of E at y = x, and to the distance over
        tau, to which that of E at y is equal; never below rounding.
    max_iterations : int, default 500
        Largest number of iterations of L-BFGS.

    Returns
    -------
    Step
        The minimiser and its numbers; with a RuntimeWarning where it did not converge.

    Raises
    ------
    InputError
        For wrong shapes or names, tokens off the sphere, asymmetric or too large heads, tau <= 0.

    Notes
    -----
    The step [1]_ is

    .. math:: y = \arg\min_y\; E(y) + \frac{W^2(y, x)}{2\tau},

    with -E for ascent. In W₂ token y_i is matched with x_i; after the minimisation an optimal
    assignment checks that no other matching is cheaper, and the minimisation continues from the
    better one if there is one. In W_b and in custom metrics the distance is the discrete action of
    a path, as in `wflow.transport.weighted_distance`, minimised over y and the nodes together. The
    minimum is the local one that the explicit step, or x, leads to; it is never above x. For large
    tau there may be others.

    In the theory: :ref:`minimizing movements <theory-minimizing-movements>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 58 (W₂)
       and 69 (W_b).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(5, 3, seed=0), np.eye(3)[None]
    >>> step = wflow.jko.step(x, D, 1e-4)
    >>> v = wflow.velocity(x, D, flow="unnormalised")
    >>> bool(np.allclose((step.tokens - x) / 1e-4, v, atol=1e-3))
    True
    """
    problem = _problem(x, D, as_metric(metric, segments), direction)
    options = _options(tolerance, max_iterations)
    found = problem.solve(_length(tau), **options)
    if not found.converged:
        _warn("the step of minimizing movements did not converge", found.gradient_norm)
    return found


def variational_interpolation(
    x: ArrayLike,
    D: ArrayLike,
    tau: float,
    r: float,
    *,
    metric: MetricName | Metric = "w2",
    direction: Direction = "descent",
    segments: int | None = None,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Step:
    r"""Return De Giorgi's interpolation within a step.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices.
    tau : float
        Length of the step, > 0, in units of time of the flow.
    r : float
        Time within the step, 0 < r <= tau.
    metric : {"w2", "weighted"} or wflow.transport.Metric, default "w2"
        Metric of the distance: W₂, W_b weighted by the effective mobility b of the heads D (norms
        up to 64), or an object such as ``W2()``, ``Weighted(segments=8)`` or a custom one.
    direction : {"descent", "ascent"}, default "descent"
        Whether E or -E is minimised.
    segments : int, optional
        Segments of a path from x to y in the metric "weighted", by default 1, which is enough for
        first order in tau. Metric objects have their number themselves.
    tolerance : float, default 1e-9
        Bound on the norm of the gradient, relative to that of E at y = x, and to the distance over
        tau, to which that of E at y is equal; never below rounding.
    max_iterations : int, default 500
        Largest number of iterations of L-BFGS.

    Returns
    -------
    Step
        The minimiser y_r and its numbers; with a RuntimeWarning where it did not converge.

    Raises
    ------
    InputError
        As for `step`, and for r outside (0, tau].

    Notes
    -----
    The interpolation [1]_ [2]_ is

    .. math:: y_r = \arg\min_y\; E(y) + \frac{W^2(y, x)}{2 r} .

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 3.3.
    .. [2] Ambrosio, Gigli and Savaré, *Gradient Flows*, Birkhäuser (2008), Definition 3.2.1.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(5, 3, seed=0), np.eye(3)[None]
    >>> half = wflow.jko.variational_interpolation(x, D, 0.2, 0.1)
    >>> np.array_equal(half.tokens, wflow.jko.step(x, D, 0.1).tokens)
    True
    """
    tau, r = positive(tau, "tau"), positive(r, "r")
    if r > tau:
        raise InputError(f"r is {r:g}: expected 0 < r <= tau = {tau:g}")
    return step(
        x,
        D,
        r,
        metric=metric,
        direction=direction,
        segments=segments,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )


def energy_inequality(
    x: ArrayLike,
    D: ArrayLike,
    tau: float,
    *,
    nodes: int = 8,
    metric: MetricName | Metric = "w2",
    direction: Direction = "descent",
    segments: int | None = None,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> EnergyInequality:
    r"""Return the terms of the discrete energy identity of one step.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices.
    tau : float
        Length of the step, > 0, in units of time of the flow.
    nodes : int, default 8
        Nodes of the quadrature in r.
    metric : {"w2", "weighted"} or wflow.transport.Metric, default "w2"
        Metric of the distance: W₂, W_b weighted by the effective mobility b of the heads D (norms
        up to 64), or an object such as ``W2()``, ``Weighted(segments=8)`` or a custom one.
    direction : {"descent", "ascent"}, default "descent"
        Whether E or -E is minimised.
    segments : int, optional
        Segments of a path from x to y in the metric "weighted", by default 1, which is enough for
        first order in tau. Metric objects have their number themselves.
    tolerance : float, default 1e-9
        Bound on the norm of the gradient, relative to that of E at y = x, and to the distance over
        tau, to which that of E at y is equal; never below rounding.
    max_iterations : int, default 500
        Largest number of iterations of L-BFGS.

    Returns
    -------
    EnergyInequality
        The terms; with a RuntimeWarning where a minimisation did not converge.

    Raises
    ------
    InputError
        As `step`; for nodes < 1.

    Notes
    -----
    The identity [1]_ [2]_ is

    .. math:: E(x) = E(y_\tau) + \frac{W^2(y_\tau, x)}{2\tau}
        + \int_0^\tau \frac{W^2(y_r, x)}{2 r^2}\,dr .

    It holds because d/dr min_y [E + W^2/(2r)] = -W^2(y_r, x)/(2 r^2); the integral is taken by
    Gauss-Legendre quadrature.

    In the theory: :ref:`the energy identity of a step <theory-energy-inequality>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Theorem 3.11.
    .. [2] Ambrosio, Gigli and Savaré, *Gradient Flows*, Birkhäuser (2008), Theorem 3.1.4.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(5, 3, seed=0), np.eye(3)[None]
    >>> terms = wflow.jko.energy_inequality(x, D, 0.1, nodes=4)
    >>> left = terms.energy_before - terms.energy_after
    >>> bool(np.isclose(left, terms.distance_term + terms.interpolation_term, rtol=1e-4))
    True
    """
    problem = _problem(x, D, as_metric(metric, segments), direction)
    options = _options(tolerance, max_iterations)
    tau, nodes = _length(tau), whole(nodes, "nodes")
    if tau < 1e-140:
        raise InputError(f"tau is {tau:g}: squares of it leave the range of doubles; take more")
    check_memory(8 * 4 * nodes * nodes, f"a quadrature of {nodes} nodes", "take fewer")
    points, weights = np.polynomial.legendre.leggauss(nodes)
    last = whole_step = problem.solve(tau, **options)
    converged = last.converged
    interpolation = slope = 0.0
    previous = tau
    # From tau down, each start being the point before, moved towards x.
    for point, weight in sorted(zip(points, weights, strict=True), reverse=True):
        r = tau * (1 + point) / 2
        guess = _towards(problem.x, last.tokens, r / previous)
        last = problem.solve(r, guess=guess, **options)
        interpolation += tau / 2 * weight * last.distance_sq / (2 * r**2)
        slope += tau / 2 * weight * problem.slope_sq(last.tokens) / 2
        converged, previous = converged and last.converged, r
    if not converged:
        _warn("a minimisation within the step did not converge", whole_step.gradient_norm)
    before, after = whole_step.energy_before, whole_step.energy_after
    plain = whole_step.inequality_gap
    return EnergyInequality(
        energy_before=problem.sign * before,
        energy_after=problem.sign * after,
        distance_term=whole_step.distance_sq / (2 * tau),
        interpolation_term=float(interpolation),
        slope_term=float(slope),
        gap=float(plain - interpolation),
        plain_gap=plain,
        converged=converged,
    )


def minimizing_movements(
    x0: ArrayLike,
    law: HeadLaw,
    *,
    heads: int | ArrayLike | QKV | None = None,
    t_final: float,
    tau: float,
    dt: float | None = None,
    metric: MetricName | Metric = "w2",
    direction: Direction = "descent",
    seed: int = 0,
    path: int = 0,
    scheme: SchemeName | Dopri5 | Tableau = "euler",
    segments: int | None = None,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    progress: bool = False,
    checkpoint_every: float = 15.0,
) -> xarray.Dataset:
    r"""Compute minimizing movements of the energy up to a final time.

    The heads are those of `wflow.solve` with the same law, heads, seed, path, scheme and dt, bit
    for bit (with "dopri5" up to its tolerances), known in advance: a step from t_{k-1} to t_k uses
    D(t_k) in E and in W_b.

    Parameters
    ----------
    x0 : array_like, shape (n, d)
        Initial tokens; they are put on the unit sphere.
    law : wflow.heads.HeadLaw
        How the heads move; any law that keeps them symmetric.
    heads : int or array_like of shape (heads, d, d), optional
        Number of heads or initial matrices, as in `wflow.solve`.
    t_final : float
        End time, a whole number of steps.
    tau : float
        Length of a step, > 0.
    dt : float, optional
        Step of the heads, a whole fraction of tau, by default tau.
    metric : {"w2", "weighted"} or wflow.transport.Metric, default "w2"
        Metric of the distance, as for `step`.
    direction : {"descent", "ascent"}, default "descent"
        Whether E or -E is minimised.
    seed : int, default 0
        Key of the random numbers of the heads, as in `wflow.solve`.
    path : int, default 0
        Number of the Monte Carlo path of the heads.
    scheme : str, wflow.Dopri5 or wflow.Tableau, default "euler"
        Time stepping of the heads, as in `wflow.solve`.
    segments : int, optional
        Segments of a path in the metric "weighted", by default 1.
    tolerance : float, default 1e-9
        Bound on the gradient, as for `step`.
    max_iterations : int, default 500
        Largest number of iterations of L-BFGS in a step.
    out : str or pathlib.Path, optional
        Run file (HDF5) to write. Without it the result is kept in memory.
    if_exists : {"error", "overwrite", "resume"}, default "error"
        What happens where `out` exists already, as in `wflow.solve`.
    progress : bool, default False
        Whether to show a bar with the time left.
    checkpoint_every : float, default 15.0
        Seconds between the states from which a killed run resumes.

    Returns
    -------
    xarray.Dataset
        Tokens (time, token, axis) and, per time: energy E(t_k, x^k), energy_before E(t_k, x^{k-1}),
        distance_sq, inequality_gap, iterations, gradient_norm, converged, recouplings. The first
        time is the start, where energy_before is E itself and all else zero. A RuntimeWarning says
        how many steps did not converge, `converged` which. Also initial_heads (head, axis,
        axis_out).

    Raises
    ------
    InputError
        For an argument that cannot be used: times that do not divide, (Q, K, V) heads, a law that
        does not keep heads symmetric, and what `step` refuses.
    BlowUpError
        For heads that leave the range of numbers.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM, after the step in progress, if `out` is given.

    Notes
    -----
    The steps [1]_ are

    .. math:: x^k = \arg\min_y\; E(t_k, y) + \frac{W^2(y, x^{k-1})}{2\tau} .

    In the theory: :ref:`minimizing movements <theory-minimizing-movements>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 58, 59 and
       69, Theorems 3.11 and 4.7.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x0 = wflow.tokens.uniform(5, 3, seed=0)
    >>> run = wflow.jko.minimizing_movements(
    ...     x0, wflow.heads.Frozen(), heads=np.eye(3)[None], t_final=0.2, tau=0.1
    ... )
    >>> run.sizes["time"], bool((np.diff(run.energy) < 0).all())
    (3, True)
    """
    tokens = on_sphere(x0)
    if tokens.ndim != 2:
        raise InputError(f"x0 has shape {tokens.shape}, expected (n, d): minimizing movements of "
                         "one path; call it once per path")  # fmt: skip
    tau = _length(tau)
    steps = count_steps(t_final, tau, "tau")
    every = 1 if dt is None else _fraction(tau, positive(dt, "dt"))
    used = as_metric(metric, segments)
    check_choice("direction", direction, DIRECTIONS)
    kept = 1 if out is not None else tokens.size
    size = f"a run of {steps} steps of {len(tokens)} tokens"
    check_memory(8 * (steps + 1) * kept, size, "raise tau, or give out")
    walk = partial(
        HeadWalk, law, heads=heads, d=tokens.shape[1], dt=tau / every, seed=seed, path=path,
        scheme=scheme, every=every,
    )  # fmt: skip
    problem = Movements(
        x0=as_cloud(tokens),
        heads=walk(),
        walk=walk,
        steps=steps,
        tau=tau,
        metric=used,
        direction=direction,
        options=_options(tolerance, max_iterations),
        checkpoint_every=number(checkpoint_every, "checkpoint_every", least=0.0),
    )
    if not law.symmetric:
        raise InputError(
            f"the law {type(law).__name__} does not keep heads symmetric, and minimizing movements "
            "need an energy, D = D^T; simulate it by wflow.solve with SaveAt(budget=False)"
        )
    found = run(problem, out, if_exists, progress)
    failed = np.flatnonzero(~found["converged"].values)
    if failed.size:
        times = ", ".join(f"{k * tau:g}" for k in failed[:5]) + (", ..." if failed[5:].size else "")
        _warn(
            f"{failed.size} of {steps} steps of minimizing movements did not converge (to time "
            f"{times})",
            float(found["gradient_norm"].values[failed].max()),
        )
    return found


# A run
# -----


@dataclass(frozen=True, eq=False)
class Movements(Runnable):
    """Definition of a run of minimizing movements.

    x0 : (n, d)
    heads : at time 0; their strides are the steps of the run
    walk : makes them
    options : tolerance and max_iterations of a step
    """

    x0: Array
    heads: HeadWalk
    walk: Callable[[], HeadWalk]
    steps: int
    tau: float
    metric: Metric
    direction: Direction
    options: dict[str, Any]
    checkpoint_every: float

    @property
    def plan(self) -> Plan:
        """Sizes and options of the run for the driver."""
        metric = metric_config(self.metric)
        attrs = {
            "metric": metric if isinstance(metric, str) else metric["name"],
            "direction": self.direction,
            "tau": self.tau,
            "gradient_flow": self.metric.limit,
        }
        return Plan(
            steps=self.steps,
            paths=1,
            seed=self.heads.seed,
            batch=1,
            label=f"minimizing movements, tau = {self.tau:g}",
            checkpoint_every=self.checkpoint_every,
            attrs=attrs,
        )

    def layout(self) -> MovementLayout:
        """Return the sizes of the run's file."""
        n, d = self.x0.shape
        times = np.arange(self.steps + 1) * self.tau
        return MovementLayout(times=times, tokens=n, axes=d, heads=len(self.heads.start))

    def config(self) -> dict[str, Any]:
        """Return the run as JSON; arrays that the file holds are named by their digest."""
        heads = self.heads
        return {
            "x0": array_config(self.x0),
            **self.parts(),
            "heads": len(heads.start) if heads.sampled else array_config(heads.start),
            "t_final": self.steps * self.tau,
            "tau": self.tau,
            "dt": heads.dt,
            "direction": self.direction,
            "seed": heads.seed,
            "path": heads.path,
            "scheme": heads.scheme,
            "segments": self.metric.segments,
            **self.options,
        }

    def parts(self) -> dict[str, Any]:
        """Return the parts of the configuration that may be custom."""
        return {"law": law_config(self.heads.law), "metric": metric_config(self.metric)}

    def start(self, store: Store) -> None:
        """Write the initial heads."""
        store.write("initial_heads", (), self.heads.start)

    def solver(self, first: int, last: int, paths: Paths, total: Array | None) -> Movement:
        """Return the solver, with the cloud at time 0."""
        return Movement(self, paths)


class Movement(Solver):
    """The cloud and its heads at one time, and the numbers of the last step."""

    def __init__(self, problem: Movements, paths: Paths) -> None:
        self.problem, self.paths = problem, paths
        self.x, self.heads = problem.x0, problem.walk()
        energy = self._before(self.heads.D).energy
        self.numbers = dict.fromkeys(_NUMBERS, 0.0)
        self.numbers |= {"energy": energy, "energy_before": energy, "converged": 1.0}

    def state(self) -> State:
        numbers = np.array([list(self.numbers.values())])
        return {"x": self.x[None], "numbers": numbers, **self.heads.state()}

    def restore(self, state: State) -> None:
        self.x = state["x"][0]
        self.numbers = dict(zip(self.numbers, state["numbers"][0].tolist(), strict=True))
        self.heads.restore(state)

    def advance(self, step: int) -> int:
        """Record the cloud, and take a step with the heads at its end."""
        self.paths.write("tokens", (step,), self.x)
        for name, value in self.numbers.items():
            self.paths.write(name, (step,), value)
        if step < self.problem.steps:
            before = self._before(self.heads.advance(step))
            taken = before.solve(self.problem.tau, **self.problem.options)
            self.x = taken.tokens
            found = vars(taken) | {"energy": taken.energy_after}
            self.numbers = {name: float(found[name]) for name in _NUMBERS}
        return step + 1

    def _before(self, D: Array) -> StepProblem:
        """Return the problem of the step from here, with heads D."""
        return _problem(self.x, D, self.problem.metric, self.problem.direction)


def _problem(x: ArrayLike, D: ArrayLike, metric: Metric, direction: Direction) -> StepProblem:
    check_choice("direction", direction, DIRECTIONS)
    cloud = as_cloud(x)
    heads = as_heads(D, cloud.shape[1])
    sign, segments = -DIRECTIONS[direction], metric.segments
    check_memory(8 * 40 * segments * cloud.size, f"a path of {segments} segments", "take fewer")
    return StepProblem(cloud, heads, metric, sign)


def _options(tolerance: float, max_iterations: int) -> dict:
    return {
        "tolerance": positive(tolerance, "tolerance"),
        "max_iterations": whole(max_iterations, "max_iterations"),
    }


def _length(tau: float) -> float:
    given = positive(tau, "tau")
    if given > 1e140:
        raise InputError(f"tau is {given:g}: squares of it leave the range of doubles; take less")
    return given


def _fraction(tau: float, dt: float) -> int:
    every = round(tau / dt) if tau < 2**53 * dt else 0
    if every < 1 or abs(every * dt - tau) > 1e-9 * tau:
        raise InputError(
            f"tau = {tau:g} is not a whole number of steps of dt = {dt:g}; take for example "
            f"dt = {tau / max(every, 1):.12g}"
        )
    return every


def _towards(x: Array, y: Array, share: float) -> Array:
    """Return the point that divides the chord from x to y by a share up to one, per token."""
    chord = x + share * (y - x)
    length = np.sqrt(np.einsum("ik,ik->i", chord, chord))[:, None]
    return np.where(length > 0.1, chord / np.maximum(length, 0.1), x)


def _warn(what: str, gradient_norm: float) -> None:
    warn(
        f"{what}: a gradient of {gradient_norm:.3g} is left; take a smaller tau, more iterations, "
        "or a larger tolerance",
        AccuracyWarning,
    )
