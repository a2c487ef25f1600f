"""Time stepping on the sphere by explicit Runge-Kutta schemes (docs/theory/discretisation.md).

Tokens move by R(x + dt v), R = division by the norm. The velocity is extended off the sphere by
v(x) = v(x/|x|), which leaves the sphere invariant, so a Runge-Kutta scheme of order p for the
extended field, brought back to the sphere after each step, keeps order p. Stages are evaluated at
R(x + dt sum_j a_j k_j). The last stage of the Dormand-Prince pair lies at the end of the step, so
that it is the first stage of the next one on the sphere too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow._core.adaptive import AdaptiveSteps, Attempt, Sizes
from wflow._core.tableaux import Tableau, Times, moved, with_rows
from wflow.heads.matrices import Matrices
from wflow.heads.process import Drift, HeadStep
from wflow.particles.budget import Terms
from wflow.sphere.geometry import normalise_unchecked

Array = NDArray[np.floating]


@dataclass
class Stage:
    """Result of a stage: the velocity (paths, n, d), and the terms of the energy budget.

    Adaptive steps also keep the drift of the heads there, (paths, heads, d, d) or None for zero.
    """

    velocity: Array
    terms: Terms
    drift: Matrices | None = None

    def of(self, rows: NDArray[Any]) -> "Stage":
        """Return the stage of some of the paths."""
        drift = None if self.drift is None else self.drift[rows]
        return Stage(self.velocity[rows], _of(self.terms, rows), drift)

    def put(self, rows: NDArray[Any], other: "Stage") -> None:
        """Replace the stage of some of the paths."""
        self.velocity[rows] = other.velocity
        for name, values in other.terms.items():
            self.terms[name][rows] = values
        self.drift = with_rows(self.drift, rows, other.drift, len(self.velocity))


def _of(terms: Terms, rows: NDArray[Any]) -> Terms:
    return {name: values[rows] for name, values in terms.items()}


def advance(
    scheme: Tableau,
    x: Array,
    heads: HeadStep,
    dt: float,
    first: Stage,
    stage_at: Callable[[float, Array, Array, Array | None], Stage],
    diffused: Array | None = None,
) -> tuple[Array, list[Stage]]:
    """Compute one step of tokens x (paths, n, d), whose heads make the step `heads`.

    Parameters
    ----------
    first : the stage at the left end, already evaluated
    stage_at : (node, x, D, drift of D) -> Stage at t + node dt
    diffused : tokens after their noise, from which the step starts (Euler-Maruyama): geodesics,
        whose curvature supplies the drift -kappa (d - 1) x of Brownian motion; by default x

    Returns
    -------
    x after the step, and its stages
    """
    stages = _stages(scheme, x, heads, dt, first, stage_at)
    start = x if diffused is None else diffused
    end = moved(start, dt, scheme.weights, [stage.velocity for stage in stages])
    return normalise_unchecked(end), stages


def _stages(
    scheme: Tableau,
    x: Array,
    heads: HeadStep,
    dt: Times,
    first: Stage,
    stage_at: Callable[[float, Array, Array, Array | None], Stage],
) -> list[Stage]:
    stages = [first]
    for at in range(1, scheme.stages):
        node, row, share = scheme.row(at)
        inner = normalise_unchecked(moved(x, dt, row, [stage.velocity for stage in stages]))
        stages.append(stage_at(node, inner, *heads.stage(node, row, share)))
    return stages


# Steps chosen by their error
# ---------------------------

# (times (k,), x (k, n, d), D (k, heads, d, d), drift of D) -> Stage of k of the paths
StageAt = Callable[[NDArray[np.float64], Array, Array, Array | None], Stage]


class Attempted(NamedTuple):
    """A step that k of the paths tried: those of `good` (k,) made it.

    tried : the paths, start and length
    x, heads : tokens (k, n, d) where it starts, and the step of the heads
    stages : of all k paths
    """

    tried: Attempt
    good: NDArray[np.bool_]
    x: Array
    heads: HeadStep
    stages: list[Stage]


def attempt(
    steps: AdaptiveSteps,
    x: Array,
    D: Array,
    end: float,
    first: Stage,
    within: Drift,
    stage_at: StageAt,
) -> Attempted:
    """Try one step of every path that is before `end`; x, D and first change in place.

    Parameters
    ----------
    steps : times, lengths and controllers of the paths
    x, D : (paths, n, d) and (paths, heads, d, d)
    end : time that no step crosses
    first : the stage where each path is
    within : drift of the heads up to `end`
    stage_at : evaluates a stage of k of the paths
    """
    control, tableau = steps.control, steps.control.tableau
    if not steps.begun:
        _choose_first(steps, x, D, end, first, within, stage_at)
    tried = steps.propose(end)
    rows, dt = tried.rows, tried.dt
    before = x[rows]
    with np.errstate(over="ignore", invalid="ignore"):
        start = first.of(rows)
        heads = HeadStep(D[rows], tried.t, dt, within, start.drift)
        stages = _stages(
            tableau, before, heads, dt, start,
            lambda node, x, D, drift: stage_at(tried.t + node * dt, x, D, drift),
        )  # fmt: skip
        velocities = [stage.velocity for stage in stages]
        after = normalise_unchecked(moved(before, dt, tableau.weights, velocities))
        after_d = heads.end(tableau.weights)
        off = moved(np.zeros_like(before), dt, tableau.error_weights, velocities)
        errors = np.maximum(control.sizes(off), heads.errors(control, after_d))
    good = steps.judge(tried, errors)
    x[rows[good]] = after[good]
    if after_d is not heads.D:
        D[rows[good]] = after_d[good]
    first.put(rows[good], stages[-1].of(good))
    return Attempted(tried, good, before, heads, stages)


def _choose_first(
    steps: AdaptiveSteps,
    x: Array,
    D: Array,
    end: float,
    first: Stage,
    within: Drift,
    stage_at: StageAt,
) -> None:
    sizes, drift = steps.control.sizes, first.drift

    def bend(h: Sizes) -> Sizes:
        heads = HeadStep(D, steps.time, h, within, drift)
        inner = normalise_unchecked(moved(x, h, (1.0,), [first.velocity]))
        after = stage_at(steps.time + h, inner, *heads.stage(1.0, (1.0,)))
        return np.maximum(sizes(after.velocity - first.velocity), sizes(heads.bend(), D))

    still = np.maximum(sizes(x), sizes(D, D))
    steps.choose_first(end, still, np.maximum(sizes(first.velocity), sizes(drift, D)), bend)
