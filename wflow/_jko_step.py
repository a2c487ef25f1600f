"""One minimizing-movement step as a minimisation over token positions.

With s = +1 for descent and -1 for ascent, multiplied by n tau so that the Hessian is of order one,

    F(y) = s n tau (E(y) - E(x)) + (n/2) W^2(y, x),

W^2 = (1/n) sum_i |y_i, x_i|^2 in W_2, where label i follows token i, and the discrete action of
`_path_action` in W_b, over y and the nodes between x and y together.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wflow._geodesics import angles, geodesics, logarithm, spring_solver, squared_distances
from wflow._minimise import Minimum, minimise
from wflow._path_action import (
    PathAction,
    check_moderate,
    discrete_action,
    gains,
    matching,
    recouple,
    spectral_norms,
)
from wflow._threads import threads_for
from wflow._weighted import weighted_sums
from wflow.attention import evaluate
from wflow.errors import InputError
from wflow.sphere import normalise

Array = NDArray[np.floating]

METRICS = ("w2", "weighted")
_ROUNDS = 20  # of minimisation and matching in turn
_ROUNDING = 1e-15


@dataclass(frozen=True)
class Step:
    """One step of minimizing movements.

    Attributes
    ----------
    tokens : (n, d), the minimiser y; token i came from token i of x
    energy_before, energy_after : E(x) and E(y), with the heads of the step
    distance_sq : W^2(y, x) in the metric of the step
    iterations, evaluations : of the minimiser
    gradient_norm : norm in that metric of the gradient of E + W^2/(2 tau) at y, in the units of a
        velocity times the root of a mobility: sqrt((1/n) sum_i |gradient|^2 / b), b = 1 in W_2
    converged : whether it met the tolerance
    coupling_optimal : whether no other matching of x and y has a smaller cost
    recouplings : how often a better matching was found and the minimisation went on from it
    inequality_gap : s (E(x) - E(y)) - W^2/(2 tau), never below zero but for rounding
    """

    tokens: Array = field(repr=False)
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
    """E(y) + W^2(y, x)/(2 tau) for one cloud x and any tau.

    Parameters
    ----------
    x : (n, d); D : (heads, d, d) symmetric
    metric : "w2" or "weighted"; sign : 1.0 descent, -1.0 ascent; segments : of the paths in W_b
    """

    def __init__(self, x: Array, D: Array, metric: str, sign: float, segments: int) -> None:
        self.x, self.sign = x, sign
        self.D = np.ascontiguousarray((D + np.swapaxes(D, -1, -2)) / 2)
        self.segments = 1 if metric == "w2" else segments
        if metric == "weighted":
            check_moderate(self.D)
        # One thread or more for all that a step computes.
        self.pairs = len(x) ** 2 * len(self.D)
        with threads_for(self.pairs):
            self.energy, self.gradient = self.energy_and_gradient(x)
            self.action = None if metric == "w2" else PathAction(self.D, x, None)
            self.b = np.ones(len(x)) if self.action is None else self.action.b_ends[0]
        if not math.isfinite(self.energy):
            raise InputError(
                "the energy leaves the range of doubles (scores beyond 709), so there is nothing "
                f"to minimise; the largest head has norm {spectral_norms(self.D).max():.4g}: "
                "scale the heads down"
            )

    def energy_and_gradient(self, y: Array) -> tuple[float, Array]:
        """E and gbar (n, d): the gradient of E by y_i is gbar_i / n."""
        found = evaluate(
            y[None], self.D[None], flow="unnormalised", direction="ascent", symmetric=True
        )
        return float(found.terms["energy"][0]), found.velocity[0]

    def mobility(self, y: Array) -> Array:
        """b (n,) of the metric."""
        if self.action is None:
            return np.ones(len(y))
        return weighted_sums(y[None], self.D[None], np.zeros((1, len(y))), False)[0][0]

    def slope_sq(self, y: Array) -> float:
        """Squared slope of E in the metric: (1/n) sum_i |gbar_i|^2 / b_i."""
        gradient = self.energy_and_gradient(y)[1]
        return float(((gradient**2).sum(axis=1) / self.mobility(y)).mean())

    def solve(
        self, tau: float, *, tolerance: float, max_iterations: int, guess: Array | None = None
    ) -> Step:
        """The step of length tau; `guess` (n, d) is tried as a start beside the explicit step."""
        with threads_for(self.pairs * self.segments):
            return self._solve(tau, tolerance, max_iterations, guess)

    def _solve(
        self, tau: float, tolerance: float, max_iterations: int, guess: Array | None
    ) -> Step:
        n = len(self.x)
        velocity = -self.sign * self.gradient / self.b[:, None]
        starts = [] if guess is None else [guess]
        # An explicit step of more than a radian is no help.
        if tau * np.abs(velocity).max() < 1.0:
            starts.append(normalise(self.x + tau * velocity))
        paths = [geodesics(self.x, y, self.segments)[1:] for y in starts]
        paths.append(np.repeat(self.x[None], self.segments, axis=0))  # F = 0 there
        objective = self._objective(tau)
        nodes = min(paths, key=lambda path: objective(path)[0])
        start_size = math.sqrt(float(((self.gradient**2).sum(axis=1) / self.b).sum())) * tau
        target = tolerance * start_size + self._rounding(tau, self.energy)
        iterations = evaluations = recouplings = 0
        for _ in range(_ROUNDS):
            found = self._descend(objective, nodes, tau, target, max_iterations)
            iterations += found.iterations
            evaluations += found.evaluations
            nodes, improved = self._recouple(found.x)
            recouplings += improved
            energy = self.energy_and_gradient(nodes[-1])[0]
            distance_sq = self._distance_sq(nodes)
            # At y both terms of the gradient have the size of the distance: where E fell by many
            # orders of magnitude, a target that was set at x says nothing.
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

    def _objective(self, tau: float):
        n, scale = len(self.x), self.sign * tau

        def objective(nodes: Array) -> tuple[float, Array]:
            energy, gbar = self.energy_and_gradient(nodes[-1])
            if self.action is None:
                value = float((angles(nodes[0], self.x) ** 2).sum()) / 2
                gradient = -logarithm(nodes[0], self.x)[None]
            else:
                value, gradient = self.action(nodes)
                value, gradient = n / 2 * value, n / 2 * gradient
            gradient[-1] += scale * gbar
            return n * scale * (energy - self.energy) + value, gradient

        return objective

    def _descend(
        self, objective, nodes: Array, tau: float, tolerance: float, max_iterations: int
    ) -> Minimum:
        solver = lambda g: g  # noqa: E731
        if self.action is not None:
            b = self.action.at(nodes)
            solver = spring_solver(self.segments * (b[:-1] + b[1:]) / 2, free_end=True)
        return minimise(
            objective,
            nodes,
            tolerance=tolerance,
            rounding=_ROUNDING * len(self.x) * tau * self.energy,
            precondition=solver,
            max_iterations=max_iterations,
        )

    def _rounding(self, tau: float, energy: float) -> float:
        """Size of a gradient that is rounding alone: of positions, and of the sums of E."""
        n, d = self.x.shape
        positions = self.segments * math.sqrt(d * float(self.b.max()))
        sums = tau * 2 * energy * float(spectral_norms(self.D).max())
        return _ROUNDING * math.sqrt(n) * (positions + sums / math.sqrt(float(self.b.min())))

    def _recouple(self, nodes: Array) -> tuple[Array, bool]:
        if self.action is None:
            cost = squared_distances(self.x, nodes[0])
            labels = matching(cost)
            better = gains(cost, labels)
            return (nodes[:, labels] if better else nodes), better
        curve, _, labels_or_none = recouple(self.action.curve(nodes), self.action.at(nodes))
        return curve[1:], labels_or_none is not None

    def _distance_sq(self, nodes: Array) -> float:
        if self.action is None:
            return float((angles(nodes[0], self.x) ** 2).mean())
        return discrete_action(self.action.curve(nodes), self.action.at(nodes))
