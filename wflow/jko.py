"""Minimizing movements of the time-dependent energy, in W_2 and in the weighted metric.

    x^k = argmin_y E(t_k, y) + W^2(y, x^{k-1}) / (2 tau)

(for ascent, of -E + W^2/(2 tau)). As tau -> 0 the steps in W_2 converge to the flow `unnormalised`,
v = s gbar, those in W_b to `effective`, v = s gbar/b: the gradient flows of E in either metric
([MHT] Theorems 3.11 and 4.7). docs/mathematics.md has the derivations.
"""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._checks import check_choice, positive, whole
from wflow._head_path import head_path
from wflow._jko_record import dataset
from wflow._jko_step import METRICS, Step, StepProblem
from wflow._path_action import as_cloud, as_heads
from wflow._problem import count_steps
from wflow._sums import DIRECTIONS
from wflow.errors import InputError
from wflow.heads import QKV, HeadLaw
from wflow.progress import progress as progress_bar
from wflow.sphere import as_tokens

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

TOLERANCE, MAX_ITERATIONS = 1e-9, 500
Array = NDArray[np.floating]


@dataclass(frozen=True)
class EnergyInequality:
    """Terms of the discrete energy identity of one step, E for ascent being -E.

    energy_before - energy_after = distance_term + interpolation_term + gap

    Attributes
    ----------
    energy_before, energy_after : E(x) and E(y_tau)
    distance_term : W^2(y_tau, x) / (2 tau)
    interpolation_term : int_0^tau W^2(y_r, x) / (2 r^2) dr, y_r the variational interpolation
    slope_term : int_0^tau G^2(y_r)/2 dr, G^2 = (1/n) sum |gbar|^2 / b the squared slope of E: equal
        to interpolation_term in W_2; in W_b, where the metric changes along the way, up to O(tau^2)
    gap : what is left, zero but for the quadrature where y_r depends smoothly on r
    plain_gap : energy_before - energy_after - distance_term, never negative
    converged : whether all minimisations did
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
    metric: str = "w2",
    direction: str = "descent",
    segments: int = 1,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Step:
    """One minimizing-movement step: y = argmin E(y) + W^2(y, x)/(2 tau), -E for ascent.

    In W_2 token y_i is matched with x_i; after the minimisation an optimal assignment checks that
    no other matching is cheaper, and goes on from the better one if there is one. In W_b the
    distance is the discrete action of `wflow.metric.weighted_distance` with `segments` segments,
    minimised over y and the nodes together. The minimum is the local one that the explicit step, or
    x, leads to; it is never above x. For large tau there may be others.

    Parameters
    ----------
    x : (n, d) unit tokens
    D : (heads, d, d) symmetric
    tau : step > 0
    metric : "w2", or "weighted" by the effective mobility b of the heads D (norms up to 64)
    direction : "descent" or "ascent"
    segments : of a path from x to y in W_b; one is enough for first order in tau
    tolerance : on the norm of the gradient, relative to that of E at y = x, and to the distance
        over tau, to which that of E at y is equal; never below rounding
    max_iterations : of L-BFGS

    Returns
    -------
    Step; with a RuntimeWarning where it did not converge

    Raises
    ------
    InputError
        For wrong shapes or names, tokens off the sphere, asymmetric or too large heads, tau <= 0.

    Source: [MHT] eq. 58 (W_2) and 69 (W_b).
    """
    problem = _problem(x, D, metric, direction, segments)
    options = _options(tolerance, max_iterations)
    found = problem.solve(positive(tau, "tau"), **options)
    if not found.converged:
        _warn("the step of minimizing movements did not converge", found.gradient_norm)
    return found


def variational_interpolation(
    x: ArrayLike,
    D: ArrayLike,
    tau: float,
    r: float,
    *,
    metric: str = "w2",
    direction: str = "descent",
    segments: int = 1,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Step:
    """De Giorgi's interpolation within a step: y_r = argmin E(y) + W^2(y, x)/(2 r), 0 < r <= tau.

    Parameters, returns and errors as for `step`; r outside (0, tau] is refused.
    Source: [MHT] section 3.3; Ambrosio, Gigli, Savaré, Gradient Flows (2008), Definition 3.2.1.
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
    metric: str = "w2",
    direction: str = "descent",
    segments: int = 1,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> EnergyInequality:
    """Terms of the identity E(x) = E(y_tau) + W^2/(2 tau) + int_0^tau W^2(y_r, x)/(2 r^2) dr.

    It holds because d/dr min_y [E + W^2/(2r)] = -W^2(y_r, x)/(2 r^2); the integral is taken by
    Gauss-Legendre quadrature.

    Parameters
    ----------
    x, D, tau, metric, direction, segments, tolerance, max_iterations : as for `step`
    nodes : of the quadrature in r

    Returns
    -------
    EnergyInequality; with a RuntimeWarning where a minimisation did not converge

    Raises
    ------
    InputError
        As `step`; for nodes < 1.

    Source: [MHT] Theorem 3.11; Ambrosio, Gigli, Savaré, Gradient Flows (2008), Theorem 3.1.4.
    """
    problem = _problem(x, D, metric, direction, segments)
    options = _options(tolerance, max_iterations)
    tau = positive(tau, "tau")
    points, weights = np.polynomial.legendre.leggauss(whole(nodes, "nodes"))
    last = whole_step = problem.solve(tau, **options)
    converged = last.converged
    interpolation = slope = 0.0
    previous = tau
    # From tau down, each start being the point before, pulled back towards x.
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
    metric: str = "w2",
    direction: str = "descent",
    seed: int = 0,
    path: int = 0,
    scheme: str = "euler",
    segments: int = 1,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
    progress: bool = False,
) -> "xarray.Dataset":
    """Minimizing movements x^k = argmin E(t_k, .) + W^2(., x^{k-1})/(2 tau) up to t_final.

    The heads are those of `wflow.solve` with the same law, heads, seed, path, scheme and dt, bit
    for bit, known in advance: a step from t_{k-1} to t_k uses D(t_k) in E and in W_b.

    Parameters
    ----------
    x0 : (n, d); tokens are put on the unit sphere
    law, heads, seed, path, scheme : the heads, as in `wflow.solve`; any law that keeps them
        symmetric
    t_final, tau : end and step; t_final is a whole number of steps
    dt : step of the heads, a whole fraction of tau; default tau
    metric, direction, segments, tolerance, max_iterations : as for `step`
    progress : show a bar with the time left

    Returns
    -------
    xarray.Dataset with tokens (time, token, axis) and, per time: energy E(t_k, x^k), energy_before
    E(t_k, x^{k-1}), distance_sq, inequality_gap, iterations, gradient_norm, converged,
    recouplings. The first time is the start, where energy_before is E itself and all else zero.
    A RuntimeWarning says how many steps did not converge, `converged` which.

    Raises
    ------
    InputError
        For an argument that cannot be used: times that do not divide, (Q, K, V) heads, a law that
        does not keep heads symmetric, and what `step` refuses.

    Source: [MHT] eq. 58, 59 and 69, Theorems 3.11 and 4.7.
    """
    tokens = as_tokens(x0)
    if tokens.ndim != 2:
        raise InputError(f"x0 has shape {tokens.shape}, expected (n, d): minimizing movements of "
                         "one path; call it once per path")  # fmt: skip
    tau = positive(tau, "tau")
    steps = count_steps(t_final, tau, "tau")
    every = 1 if dt is None else _fraction(tau, positive(dt, "dt"))
    check_choice("metric", metric, METRICS)
    check_choice("direction", direction, DIRECTIONS)
    options = _options(tolerance, max_iterations)
    path_of_heads = head_path(
        law,
        heads=heads,
        d=tokens.shape[1],
        t_final=t_final,
        dt=tau / every,
        seed=seed,
        path=path,
        scheme=scheme,
        every=every,
    )
    if not law.symmetric:
        raise InputError(
            f"the law {type(law).__name__} does not keep heads symmetric, and minimizing movements "
            "need an energy, D = D^T; simulate it by wflow.solve with ledger=False"
        )
    clouds = np.empty((steps + 1, *tokens.shape))
    done: list[Step] = []
    _, D = next(path_of_heads)
    first = _problem(tokens, D, metric, direction, segments)
    clouds[0] = first.x
    with progress_bar(steps, f"minimizing movements, tau = {tau:g}", enabled=progress) as advance:
        for k, (_, D) in enumerate(path_of_heads, 1):
            problem = _problem(clouds[k - 1], D, metric, direction, segments)
            done.append(problem.solve(tau, **options))
            clouds[k] = done[-1].tokens
            advance(1)
    failed = [k for k, one in enumerate(done, 1) if not one.converged]
    if failed:
        times = ", ".join(f"{k * tau:g}" for k in failed[:5]) + (", ..." if failed[5:] else "")
        _warn(
            f"{len(failed)} of {steps} steps of minimizing movements did not converge (to time "
            f"{times})",
            max(done[k - 1].gradient_norm for k in failed),
        )
    settings = {
        "law": law.config(),
        "heads": len(D),
        "t_final": steps * tau,
        "tau": tau,
        "dt": tau / every,
        "metric": metric,
        "direction": direction,
        "seed": seed,
        "path": path,
        "scheme": scheme,
        "segments": segments,
        "tolerance": tolerance,
    }
    return dataset(clouds, tau, first.energy, done, settings)


def _problem(x: ArrayLike, D: ArrayLike, metric: str, direction: str, segments: int) -> StepProblem:
    check_choice("metric", metric, METRICS)
    check_choice("direction", direction, DIRECTIONS)
    cloud = as_cloud(x)
    heads = as_heads(D, cloud.shape[1])
    sign = -DIRECTIONS[direction]
    return StepProblem(cloud, heads, metric, sign, whole(segments, "segments"))


def _options(tolerance: float, max_iterations: int) -> dict:
    return {
        "tolerance": positive(tolerance, "tolerance"),
        "max_iterations": whole(max_iterations, "max_iterations"),
    }


def _fraction(tau: float, dt: float) -> int:
    every = round(tau / dt)
    if every < 1 or abs(every * dt - tau) > 1e-9 * tau:
        raise InputError(
            f"tau = {tau:g} is not a whole number of steps of dt = {dt:g}; take for example "
            f"dt = {tau / max(every, 1):.12g}"
        )
    return every


def _towards(x: Array, y: Array, share: float) -> Array:
    """The point at this share of the way from x to y, token by token, for shares up to one."""
    chord = x + share * (y - x)
    length = np.sqrt(np.einsum("ik,ik->i", chord, chord))[:, None]
    return np.where(length > 0.1, chord / np.maximum(length, 0.1), x)


def _warn(what: str, gradient_norm: float) -> None:
    warnings.warn(
        f"{what}: a gradient of {gradient_norm:.3g} is left; take a smaller tau, more iterations, "
        "or a larger tolerance",
        RuntimeWarning,
        stacklevel=3,
    )
