"""`wflow.control`: heads that carry tokens where they should go.

Optimal control over piecewise-constant heads, with derivatives by `wflow.gradient` and the
Hamiltonian of the maximum principle (docs/theory/gradients.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    whole,
)
from wflow._core.errors import InputError
from wflow._core.reprs import ShortResult
from wflow._core.rng import INITIAL_HEADS, CounterNormals
from wflow._core.tableaux import Tableau
from wflow.attention.flows import Flow, evaluator
from wflow.gradients.adjoint import differentiable_problem, gradient
from wflow.gradients.losses import W2, Energy
from wflow.gradients.search import least
from wflow.heads.laws import Schedule
from wflow.heads.matrices import is_symmetric
from wflow.particles.options import Compute, SaveAt
from wflow.particles.solver import solve
from wflow.sphere.geometry import as_tokens

__all__ = ["Steering", "steer"]

Array = NDArray[np.floating]

_FIRST = 0.1  # deviation of the entries of heads that are drawn


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True, eq=False, repr=False)
class Steering(ShortResult):
    """Heads that carry tokens where they should go, as `wflow.control.steer` returns them.

    Attributes
    ----------
    law : wflow.heads.Schedule
        Heads of the pieces: `wflow.solve` takes it.
    heads : ndarray, shape (pieces, heads, d, d)
        The same, as an array.
    cost : ndarray, shape (iterations + 1,)
        Terminal cost plus penalty at the start of the search and after each iteration.
    terminal : float
        Terminal cost at the end of the search.
    effort : float
        Penalty at the end of the search.
    tokens : ndarray, shape (n, d)
        Tokens at t_final.
    times : ndarray, shape (pieces,)
        Start of each piece.
    hamiltonian : ndarray, shape (pieces,)
        Hamiltonian at the start of each piece. Within a piece it is constant up to the error of the
        scheme; from piece to piece, at an optimum, up to the square of their length where the heads
        change smoothly. Where heads jump it jumps, with short pieces, too.
    slope : float
        Norm of the derivative of the cost by the heads, in L2 over depth.
    converged : bool
        Whether `slope` is at most the tolerance.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(8, 3, seed=0)
    >>> found = wflow.control.steer(
    ...     x0, wflow.losses.MeanCosine(), pieces=2, t_final=1.0, dt=0.25, iterations=5
    ... )
    >>> found.hamiltonian.shape, bool(found.cost[-1] < found.cost[0])
    ((2,), True)
    """

    _shown = ("terminal", "effort", "slope", "converged")

    law: Schedule
    heads: Array
    cost: Array
    terminal: float
    effort: float
    tokens: Array
    times: Array
    hamiltonian: Array
    slope: float
    converged: bool


def steer(
    x0: ArrayLike,
    target: ArrayLike | Callable[[Array], tuple[float, ArrayLike]],
    *,
    heads: int | ArrayLike = 1,
    pieces: int = 10,
    penalty: float = 1e-3,
    symmetric: bool = False,
    t_final: float,
    dt: float,
    seed: int = 0,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    scheme: SchemeName | Tableau = "rk4",
    causal: bool = False,
    iterations: int = 200,
    tolerance: float = 1e-5,
    compute: Compute = Compute(),
) -> Steering:
    r"""Find piecewise-constant heads that carry tokens to a target at the least cost.

    Parameters
    ----------
    x0 : array_like, shape (n, d)
        Initial tokens.
    target : array_like of shape (m, d), or a loss
        Cloud to reach in W₂, of any number of tokens; or the terminal cost: one of `wflow.losses`,
        or a function of the tokens (1, 1, n, d) at the end that returns a number and its
        derivatives. `MeanCosine()` drives tokens away from collapse, `Tokens(y)` each to its place.
    heads : int or array_like of shape (heads, d, d) or (pieces, heads, d, d), default 1
        Number of heads, for a search from small random ones, or heads to start from.
    pieces : int, default 10
        Number of pieces, of equal length, in each of which the heads are constant.
    penalty : float, default 1e-3
        Weight of the squared norm of the heads.
    symmetric : bool, default False
        Whether the heads are symmetric.
    t_final : float
        End time.
    dt : float
        Time step; a piece is a whole number of steps.
    seed : int, default 0
        Key of the random heads of the start.
    flow : {"softmax", "unnormalised", "effective"}, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy of the heads or raise it.
    scheme : str or wflow.Tableau, default "rk4"
        Time stepping, with steps of equal length.
    causal : bool, default False
        Whether token i attends to tokens j <= i only.
    iterations : int, default 200
        Largest number of iterations of L-BFGS-B.
    tolerance : float, default 1e-5
        Norm of the derivative, in L2 over depth, at which the search ends.
    compute : wflow.Compute, default Compute()
        Threads, as in `wflow.gradient`.

    Returns
    -------
    Steering
        The heads as a law, the cost by iteration, and the Hamiltonian along depth.

    Raises
    ------
    InputError
        For pieces that are not whole numbers of steps, heads of other shapes, a target of another
        dimension, and what `wflow.gradient` does not take.
    BlowUpError
        If the run from the start of the search leaves the finite numbers.

    See Also
    --------
    wflow.losses : Terminal costs.
    wflow.nets.control : Training of networks as optimal control.

    Notes
    -----
    The problem of [1]_, section 7.1, is

    .. math:: \min_D\; \Phi(x(T)) + \frac{\lambda}{2H} \int_0^T \sum_h |D_h(t)|^2\, dt

    with the penalty :math:`\lambda`. With costates :math:`p = -\partial J/\partial x`, the
    Hamiltonian

    .. math:: \mathcal{H} = \sum_i \langle p_i, v_i(x, D) \rangle
        - \frac{\lambda}{2H} \sum_h |D_h|^2

    is constant along an optimum over all controls. The search finds a local minimum over pieces,
    whose heads need not maximise the Hamiltonian: other seeds may find others.

    In the theory: :ref:`steering <theory-steering>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(12, 3, seed=0)
    >>> target = wflow.tokens.clusters(12, 3, clusters=2, seed=1)
    >>> found = wflow.control.steer(x0, target, heads=2, pieces=5, t_final=2.0, dt=0.2)
    >>> bool(found.terminal < 0.5 * found.cost[0])
    True
    """
    x = as_tokens(x0)
    if x.ndim != 2:
        raise InputError(f"x0 has shape {x.shape}: expected (n, d)")
    if isinstance(scheme, Dopri5) or scheme == "dopri5":
        raise InputError("steer takes steps of equal length: scheme is 'dopri5'; take 'rk4'")
    if isinstance(target, Energy):
        raise InputError("Energy depends on the heads, which are sought: take MeanCosine()")
    loss: Any = target if callable(target) else W2(target)
    t_final = positive(t_final, "t_final")
    pieces, penalty = whole(pieces, "pieces"), number(penalty, "penalty", least=0.0)
    seed = whole(seed, "seed", least=0)
    tolerance = number(tolerance, "tolerance", least=0.0)
    table = _table(heads, pieces, x.shape[1], switch(symmetric, "symmetric"), seed)
    how: dict[str, Any] = {
        "dt": dt, "flow": flow, "direction": direction, "scheme": scheme, "causal": causal,
        "compute": compute,
    }  # fmt: skip
    end: dict[str, Any] = {"t_final": t_final, "save": SaveAt(snapshots=[t_final], budget=False)}
    first = Schedule([0.0], table[:1], "constant")
    problem = differentiable_problem(x, first, **how, **end)
    if problem.steps % pieces:
        raise InputError(
            f"{problem.steps} steps are no whole number for each of {pieces} pieces: give a dt "
            f"that divides t_final/pieces = {t_final / pieces:g}"
        )
    length = t_final / pieces
    times = length * np.arange(pieces)
    # In these coordinates the penalty is lambda/2 times the square of the norm.
    unit = np.sqrt(table.shape[1] / length)

    def found_at(z: Array) -> tuple[float, float, Array]:
        law = Schedule(times.tolist(), unit * z.reshape(table.shape), "constant")
        found = gradient(x, law, loss=loss, **how, **end)
        slope = unit * found.law["scores"]
        if symmetric:
            slope = (slope + slope.swapaxes(-1, -2)) / 2
        return found.value, penalty / 2 * float(z @ z), slope.ravel() + penalty * z

    def cost(z: Array) -> tuple[float, Array]:
        value, effort, slope = found_at(z)
        return value + effort, slope

    z = table.ravel() / unit
    costs = [sum(found_at(z)[:2])]
    search = least(
        cost, z, accepted=costs.append, maxiter=whole(iterations, "iterations"), ftol=0.0,
        maxcor=20, gtol=tolerance / np.sqrt(z.size),
    )  # fmt: skip
    terminal, effort, slope = found_at(search.x)
    table = unit * search.x.reshape(table.shape)
    law = Schedule(times.tolist(), table, "constant")
    starts = SaveAt(snapshots=[*times, t_final], budget=False)
    tokens = solve(x, law, t_final=t_final, save=starts, **how).tokens.values[0]
    velocity = evaluator(
        problem.flow, direction=direction, causal=causal, symmetric=False, sums=problem.sums
    )
    values = []
    for k, (y, D) in enumerate(zip(tokens[:-1], table, strict=True)):
        # The costate at the start of a piece is that of a run from there.
        rest = Schedule(times[: pieces - k].tolist(), table[k:], "constant")
        left = t_final - times[k]
        costate = -gradient(
            y, rest, loss=loss, **how, t_final=left, save=SaveAt(snapshots=[left], budget=False)
        ).x0
        running = penalty / (2 * len(D)) * np.sum(D * D)
        v = velocity(y[None], D[None], values=None).velocity[0]
        values.append(float(np.sum(costate * v) - running))
    return Steering(
        law=law,
        heads=table,
        cost=np.array(costs),
        terminal=terminal,
        effort=effort,
        tokens=tokens[-1],
        times=times,
        hamiltonian=np.array(values),
        slope=float(np.linalg.norm(slope)),
        converged=bool(np.linalg.norm(slope) <= tolerance),
    )


def _table(heads: Any, pieces: int, d: int, symmetric: bool, seed: int) -> Array:
    """Return the heads that the search starts from, (pieces, heads, d, d)."""
    table = reals(heads, "heads")
    if table.ndim == 0:
        shape = (whole(heads, "heads"), d, d)
        normals = CounterNormals(seed)
        table = _FIRST * normals.draw(shape, path=0, step=0, purpose=INITIAL_HEADS)
        if symmetric:
            table = (table + table.swapaxes(-1, -2)) / 2
    if table.ndim == 3:
        table = np.repeat(table[None], pieces, axis=0)
    if table.ndim != 4 or len(table) != pieces or table.shape[2:] != (d, d) or not table.size:
        raise InputError(
            f"heads have shape {np.shape(heads)}: expected a number, (heads, {d}, {d}) or "
            f"({pieces}, heads, {d}, {d})"
        )
    if symmetric and not is_symmetric(table):
        raise InputError(f"heads is {shown(heads)}, not symmetric, and symmetric is True")
    return table
