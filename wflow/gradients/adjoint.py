"""`wflow.gradient`: the discrete adjoint of `wflow.solve` (docs/theory/gradients.md).

A run is computed forward, and states are kept at some steps; from the last segment between two of
them to the first, its steps are computed again with their stages and transposed one by one. The
noise is that of the run, drawn again from its key, and held fast, as the lengths of the steps are.
"""

from __future__ import annotations  # the signature of `gradient` shows short names

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.adaptive import AdaptiveSteps, Dopri5, legs
from wflow._core.checks import (
    Direction,
    FlowName,
    SchemeName,
    read_only,
    reading,
    reals,
    shown,
    switch,
)
from wflow._core.errors import BlowUpError, InputError, warn
from wflow._core.memory import check_memory
from wflow._core.rng import TOKEN_NOISE, CounterNormals
from wflow._core.tableaux import Tableau, moved
from wflow._core.threads import numba_threads
from wflow.attention.flows import FLOWS, Flow, evaluator
from wflow.gradients.laws import ADJOINTS, LawAdjoint
from wflow.gradients.losses import Energy
from wflow.heads.laws import QKV, HeadLaw
from wflow.heads.matrices import Matrices
from wflow.heads.process import HeadProcess, HeadStep
from wflow.kernels.evaluate import EXACT, velocity_adjoint
from wflow.particles.integrate import MAX_SCORE, MAX_STEP
from wflow.particles.options import Compute, SaveAt
from wflow.particles.problem import Problem, problem_of
from wflow.particles.schemes import Stage, StageAt, attempt
from wflow.sphere.geometry import exponential_unchecked, normalise_unchecked, project_unchecked

Array = NDArray[np.floating]

_GROWTH = 1e8  # of a cotangent beyond which a gradient says nothing about finite changes
_BYTES = 2**27  # of stages that are held at a time
_ROUNDING = 1e-6  # of the times of snapshots, in units of dt


@dataclass(frozen=True, eq=False)
class Gradient:
    """Value of a loss and its derivatives, as `wflow.gradient` returns them.

    Cotangents of matrices are those of free entries: symmetric matrices are no exception.

    Attributes
    ----------
    value : float
        The loss.
    x0 : ndarray, of the shape of x0
        Derivatives by the initial tokens as they were given; they have no part along a token, which
        is put on the sphere.
    initial_heads : ndarray, shape (paths, heads, d, d), or None
        Derivatives by the initial heads of each path, through the law. None for custom laws and
        `wflow.heads.CompoundPoisson`.
    initial_values : ndarray, shape (paths, heads, d, d), or None
        Derivatives by the value matrices of (Q, K, V) heads. None for tied heads, and for values
        that the law prescribes.
    heads : ndarray, shape (paths, evaluations, heads, d, d), or None
        Derivatives by the matrices of each evaluation of the velocity, stage after stage, as if
        they were free; only with ``every_evaluation=True``. For "dopri5", paths of fewer steps are
        filled up with zeros.
    law : dict of str to float or ndarray
        Derivatives by the parameters of the law, with the noise held fast: "mean", "rate" and, if
        it is not zero, "sigma2" of `wflow.heads.OrnsteinUhlenbeck`; "sigma2" of
        `wflow.heads.Oscillating`; "scores" and "values" of `wflow.heads.Schedule`. Empty for
        others.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> found = wflow.gradient(
    ...     np.eye(3), wflow.heads.Frozen(), heads=2, t_final=0.1, dt=0.1,
    ...     loss=wflow.losses.MeanCosine(),
    ... )
    >>> found.initial_heads.shape
    (1, 2, 3, 3)
    """

    value: float
    x0: Array
    initial_heads: Array | None
    initial_values: Array | None
    heads: Array | None
    law: dict[str, Any]


def gradient(
    x0: ArrayLike,
    law: HeadLaw,
    *,
    loss: Callable[[Array], tuple[float, ArrayLike]],
    heads: int | ArrayLike | QKV | None = None,
    t_final: float,
    dt: float | None = None,
    paths: int = 1,
    seed: int = 0,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    scheme: SchemeName | Dopri5 | Tableau = "euler",
    kappa: float = 0.0,
    causal: bool = False,
    save: SaveAt = SaveAt(),
    compute: Compute = Compute(),
    every_evaluation: bool = False,
) -> Gradient:
    r"""Return what a loss of the tokens of a run depends on: exact derivatives of `wflow.solve`.

    Parameters
    ----------
    x0 : array_like, shape (n, d) or (paths, n, d)
        Initial tokens, as in `wflow.solve`.
    law : wflow.heads.HeadLaw
        How the heads move.
    loss : callable or a loss of `wflow.losses`
        Function of the tokens of all paths at the snapshots, (paths, snapshots, n, d) and
        read-only, that returns a number and its derivatives by the tokens, of that shape.
    heads : int, array_like of shape (heads, d, d), or wflow.heads.QKV, optional
        Number of heads, or initial matrices, as in `wflow.solve`.
    t_final : float
        End time.
    dt : float, optional
        Time step, as in `wflow.solve`.
    paths : int, default 1
        Number of Monte Carlo paths.
    seed : int, default 0
        Key of all random numbers: those of `wflow.solve`.
    flow : {"softmax", "unnormalised", "effective"}, default "softmax"
        How the heads move the tokens: a flow of wflow.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it.
    scheme : str, wflow.Dopri5 or wflow.Tableau, default "euler"
        Time stepping, as in `wflow.solve`; the steps of "dopri5" are those of the run.
    kappa : float, default 0.0
        Diffusion of the tokens per unit time.
    causal : bool, default False
        Whether token i attends to tokens j <= i only.
    save : wflow.SaveAt, default SaveAt()
        Its `snapshots` are the times that the loss sees, by default the start and the end. They are
        times of steps.
    compute : wflow.Compute, default Compute()
        Threads and paths at a time. Sums are exact and in double precision, by Numba.
    every_evaluation : bool, default False
        Whether to return derivatives by the heads of every evaluation, an array that grows with
        the number of steps.

    Returns
    -------
    Gradient
        The value, and derivatives by tokens, heads and parameters of the law.

    Raises
    ------
    InputError
        For an argument that `wflow.solve` does not take, a custom flow, single precision, sums by
        series or by torch, the exact step of Ornstein-Uhlenbeck heads with "sra1", snapshots that
        are not times of steps, and a loss that does not return a number and an array.
    BlowUpError
        If a path leaves the finite numbers.

    Warns
    -----
    RuntimeWarning
        For derivatives that grow by more than 1e8 on the way back: the run is chaotic, and its
        gradient says nothing about finite changes.

    See Also
    --------
    wflow.losses : Losses that come with their derivatives.
    wflow.interop : Runs as functions of torch and JAX.

    Notes
    -----
    This is the discrete adjoint [1]_: the steps of the scheme are transposed one by one, from the
    last to the first, so that the result is the derivative of the computed run itself, exact to
    rounding. An evaluation costs about three velocities beyond those of the run, which is computed
    twice where its stages do not fit into memory; about sqrt(steps) states are kept then.

    In the theory: :ref:`gradients <theory-gradients>`.

    References
    ----------
    .. [1] Hager, *Runge-Kutta methods in optimal control and the transformed adjoint system*,
       Numer. Math. 87 (2000).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x0 = wflow.tokens.uniform(n=10, d=3, seed=0)
    >>> found = wflow.gradient(
    ...     x0, wflow.heads.OrnsteinUhlenbeck(np.eye(3)), heads=4, t_final=0.5, dt=0.05,
    ...     loss=wflow.losses.MeanCosine(),
    ... )
    >>> found.x0.shape, found.law["mean"].shape
    ((10, 3), (3, 3))
    """
    problem = differentiable_problem(
        x0, law, heads=heads, t_final=t_final, dt=dt, paths=paths, seed=seed, flow=flow,
        direction=direction, scheme=scheme, kappa=kappa, causal=causal, save=save, compute=compute,
    )  # fmt: skip
    if not callable(loss) or isinstance(loss, type):
        raise InputError(
            f"loss is {shown(loss)}: expected a function of tokens (paths, snapshots, n, d) that "
            "returns (value, derivatives), or one of wflow.losses"
        )
    run = Trajectory(problem, switch(every_evaluation, "every_evaluation"))
    of_heads = None
    if isinstance(loss, Energy):
        value, of_tokens, of_heads = loss.of_run(run.tokens, run.heads, problem.values)
    else:
        value, of_tokens = _lost(loss, run.tokens)
    return run.backward(value, of_tokens, of_heads, x0)


vars(gradient).update(Gradient=Gradient)


def differentiable_problem(x0: ArrayLike, law: HeadLaw, **arguments: Any) -> Problem:
    """Return the problem of these arguments of `wflow.solve`, if its run has a gradient."""
    problem = problem_of(x0, law, **arguments)
    compute, given = problem.compute, arguments.get("save", SaveAt()).snapshots
    what = None
    if FLOWS.is_custom(problem.flow):
        what = f"the flow {problem.flow.name!r} has no adjoint: expected a flow of wflow"
    elif compute.dtype != "float64":
        what = f"gradients are in double precision: dtype is {compute.dtype!r}"
    elif compute.backend != "numba" or compute.method == "fast":
        what = "gradients take exact sums by Numba: give method='exact' and backend='numba'"
    elif problem.scheme.additive and getattr(problem.law, "exact", False):
        what = "the exact step of Ornstein-Uhlenbeck heads with 'sra1' has no adjoint: use 'euler'"
    elif given is not None:
        times = np.asarray(given, np.float64).reshape(-1)
        off = np.abs(times / problem.dt - np.rint(times / problem.dt)) > _ROUNDING
        if off.any():
            what = (
                f"the snapshot at {times[off][0]:g} is not a time of a step: the loss sees tokens "
                f"at multiples of dt = {problem.dt:g}"
            )
    if what is not None:
        raise InputError(what)
    return replace(problem, sums=EXACT)


def _lost(loss: Callable[[Array], Any], tokens: Array) -> tuple[float, Array]:
    """Check what a loss returned: its value and derivatives of the shape of the tokens."""
    with reading("loss", "the loss", "the tokens"):
        found = loss(read_only(tokens))
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(
            f"the loss returned a {type(found).__name__}: expected a tuple (value, derivatives by "
            f"the tokens, of shape {tokens.shape}); for a function of torch or JAX see "
            "wflow.interop"
        )
    value = reals(found[0], "the value of the loss")
    if value.ndim:
        raise InputError(f"the value of the loss has shape {value.shape}: expected a number")
    of_tokens = reals(found[1], "the derivatives of the loss")
    if of_tokens.shape != tokens.shape:
        raise InputError(
            f"the derivatives of the loss have shape {of_tokens.shape}: expected that of the "
            f"tokens, {tokens.shape}"
        )
    return float(value), of_tokens


# A run that can be computed again
# --------------------------------


class Step(NamedTuple):
    """Step of a plan: its number, by which random numbers are drawn, start and length."""

    number: int
    t: float
    dt: float


class Record(NamedTuple):
    """A step with all that its adjoint reads.

    points, D, values : tokens (paths, n, d) and matrices of each stage
    norms : (paths, n, 1) of what became the points; one for the first, which is where it starts
    after, norm : tokens at its end, and the norms of what became these
    noise : (paths, n, d), of the tokens before it is made tangent; None without
    """

    step: Step
    move: HeadStep
    points: list[Array]
    norms: list[Array]
    D: list[Matrices]
    values: list[Matrices | None]
    after: Array
    norm: Array
    noise: Array | None


class Batch:
    """Some paths of a run: their steps forward and back.

    Attributes
    ----------
    steps : their number
    places : number of steps before a snapshot -> its place
    tokens, heads : at the snapshots, (paths, snapshots, n, d) and (paths, snapshots, heads, d, d)
    """

    def __init__(self, problem: Problem, first: int, last: int) -> None:
        self.problem, self.scheme = problem, problem.scheme
        self.rows = slice(first, last)
        self.numbers = range(problem.first_path + first, problem.first_path + last)
        self.process = HeadProcess(
            problem.law, problem.scores, seed=problem.seed, paths=self.numbers
        )
        self.normals = CounterNormals(problem.seed)
        self._velocity = evaluator(
            problem.flow,
            direction=problem.direction,
            causal=problem.causal,
            symmetric=bool(problem.save.budget),
            sums=problem.sums,
        )
        x0 = problem.x0 if problem.x0.ndim == 2 else problem.x0[first:last]
        self.x0 = np.array(np.broadcast_to(x0, (last - first, *x0.shape[-2:])), order="C")
        self.D0 = self.process.D
        if problem.control is None:
            self._plan, places = None, problem.snapshot_steps.tolist()
        else:
            self._plan, places = self._adaptive_plan(problem.control)
        self.steps = problem.steps if self._plan is None else len(self._plan)
        self.places = {place: at for at, place in enumerate(places)}
        # All stages are kept if they fit, else those of one segment and the states between them.
        steps = self.steps
        fit = steps * (last - first) * _step_bytes(problem) <= _BYTES
        self.every = steps if fit else math.isqrt(steps - 1) + 1

    def _at(self, k: int) -> Step:
        dt = self.problem.dt
        return Step(k, k * dt, dt) if self._plan is None else self._plan[k]

    def forward(self) -> None:
        """Compute the run; keep the states at the start of each segment, and the last segment."""
        x: Array = self.x0
        D = self.D0
        self._states: list[tuple[Array, Matrices]] = []
        tokens, heads = {0: x}, {0: D}
        self._held = (self.steps - 1) // self.every  # the segment whose records are in memory
        self._records: list[Record] = []
        for k in range(self.steps):
            if k % self.every == 0:
                self._states.append((x, D))
            record, D = self._step(self._at(k), x, D)
            x = record.after
            if k // self.every == self._held:
                self._records.append(record)
            if k + 1 in self.places:
                tokens[k + 1], heads[k + 1] = x, D
        self.tokens = np.stack([tokens[place] for place in self.places], axis=1)
        self.heads = np.stack([heads[place] for place in self.places], axis=1)

    def _check(self, step: Step, terms: Mapping[str, Array], D: Matrices) -> None:
        """Raise BlowUpError for a path that `wflow.solve` would give up."""
        turn, score = step.dt * terms["max_speed"], terms["max_score"]
        good = (turn <= MAX_STEP) & (score <= MAX_SCORE)  # false for NaN
        if not good.all():
            self._blow_up(
                f"the step dt = {step.dt:g} blows up", int(np.argmin(good)), step.t, D,
                "a smaller dt, or weaker heads",
            )  # fmt: skip

    def _blow_up(self, what: str, place: int, t: float, D: Matrices, remedy: str) -> NoReturn:
        path = self.numbers[place]
        raise BlowUpError(
            f"{what} at time {t:g} in path {path}: there is no gradient; take {remedy}",
            time=t,
            path=path,
            score=float(np.linalg.norm(D[place], axis=(1, 2)).max()),
        )

    def segments(self) -> Iterator[list[Record]]:
        """Yield the records of the segments, the last first."""
        for segment in reversed(range(len(self._states))):
            if segment != self._held:
                x, D = self._states[segment]
                self._held, self._records = segment, []
                first = segment * self.every
                for k in range(first, min(first + self.every, self.steps)):
                    record, D = self._step(self._at(k), x, D)
                    x = record.after
                    self._records.append(record)
            yield self._records

    def _step(self, step: Step, x: Array, D: Matrices) -> tuple[Record, Matrices]:
        """Return a step, as `particles.schemes.advance` takes it, and the heads at its end."""
        number, t, dt = step
        self.process.D = D
        move = self.process.begin(number, t, dt, self.scheme)
        values_at = self.process.values(t)
        points, norms, heads = [x], [np.ones((*x.shape[:2], 1))], [D]
        values: list[Matrices | None] = []
        slopes: list[Array] = []
        for at in range(self.scheme.stages):
            node, row, share = self.scheme.row(at)
            if at:
                inner = moved(x, dt, row, slopes)
                norms.append(_norms(inner))
                points.append(normalise_unchecked(inner))
                heads.append(move.stage(node, row, share)[0])
            found = values_at(t + node * dt)
            values.append(self.problem.values if found is None else found)
            evaluation = self._velocity(points[-1], heads[-1], values=values[-1])
            if not at and self.problem.control is None:
                self._check(step, evaluation.terms, D)
            slopes.append(evaluation.velocity)
        start, noise = x, None
        if self.problem.kappa:
            size = math.sqrt(2 * self.problem.kappa * dt)
            noise = size * self.normals.draw_paths(
                x.shape[1:], paths=self.numbers, step=number, purpose=TOKEN_NOISE
            )
            start = exponential_unchecked(x, project_unchecked(x, noise))
        end = moved(start, dt, self.scheme.weights, slopes)
        self.process.D = move.end(self.scheme.weights)
        self.process.jump(number, t, dt)
        record = Record(
            step, move, points, norms, heads, values, normalise_unchecked(end), _norms(end), noise
        )
        return record, self.process.D

    def _stage_at(self, start: float) -> StageAt:
        """Return a function that evaluates stages of adaptive steps, in a leg from `start` on."""
        values_at = self.process.values(start)

        def stage_at(times: Array, x: Array, D: Matrices, drift: Matrices | None) -> Stage:
            found = values_at(float(times[0]))
            values = self.problem.values if found is None else found
            return Stage(self._velocity(x, D, values=values).velocity, {}, drift)

        return stage_at

    def _adaptive_plan(self, control: Dopri5) -> tuple[list[Step], list[int]]:
        """Return the steps that "dopri5" takes for this path, and those before each snapshot."""
        problem, process, steps = self.problem, self.process, AdaptiveSteps(control, 1)
        process.restore(self.D0)
        x, plan, places = self.x0.copy(), list[Step](), {0: 0}
        marks = np.union1d(problem.record_steps, problem.snapshot_steps).tolist()
        for mark, following in pairwise(marks):
            dt = problem.dt
            for start, end in legs(mark * dt, following * dt, process.breaks()):
                within, stage_at = process.within(start, end - start), self._stage_at(start)
                drift = within(process.D, steps.time)
                first = stage_at(steps.time, x, process.D, drift)
                while steps.time[0] < end:
                    t, number = float(steps.time[0]), len(plan)
                    _, lengths, _ = attempt(steps, x, process.D, end, first, within, stage_at)
                    plan += [Step(number, t, float(length)) for length in lengths]
                    if steps.stuck or not np.isfinite(x).all():
                        self._blow_up(
                            "no step is short enough for the tolerances of Dopri5", 0, t,
                            process.D, "weaker heads, an earlier t_final or a larger rtol",
                        )  # fmt: skip
                process.jump(mark, start, end - start)
            places[following] = len(plan)
        return plan, [places[step] for step in problem.snapshot_steps.tolist()]


def _step_bytes(problem: Problem) -> int:
    """Return the bytes of the stages of one step of a path."""
    n, d = problem.x0.shape[-2:]
    return 8 * problem.scheme.stages * (2 * n * d + 2 * problem.heads * d * d)


def _norms(x: Array) -> Array:
    return np.sqrt(np.einsum("...k,...k->...", x, x))[..., None]


# And back
# --------


class Pullback:
    """The way back along a batch: cotangents of tokens and heads, and of what they depend on."""

    def __init__(self, batch: Batch, every_evaluation: bool) -> None:
        self.batch, self.problem, self.scheme = batch, batch.problem, batch.scheme
        shape = batch.D0.shape
        adjoint = ADJOINTS.get(type(self.problem.law))
        self.law: LawAdjoint | None = (
            None if adjoint is None else adjoint(self.problem.law, shape[0])
        )
        self.x: Array = np.zeros_like(batch.x0)
        self.D: Array = np.zeros(shape)
        self.values = None if self.problem.values is None else np.zeros(shape)
        self.heads: Array | None = None
        if every_evaluation:
            count = batch.steps * self.scheme.stages
            self.heads = np.zeros((shape[0], count, *shape[1:]))

    def run(self, of_tokens: Array, of_heads: Array | None) -> None:
        """Go back to the start, from cotangents at the snapshots (paths, snapshots, ...)."""
        batch, k = self.batch, self.batch.steps
        self._add(k, of_tokens, of_heads)
        for records in batch.segments():
            for record in reversed(records):
                k -= 1
                self._step(k, record)
                self._add(k, of_tokens, of_heads)
        if self.law is not None:
            self.law.initial(self.D)

    def _add(self, k: int, of_tokens: Array, of_heads: Array | None) -> None:
        at = self.batch.places.get(k)
        if at is not None:
            self.x = self.x + of_tokens[:, at]
            if of_heads is not None:
                self.D = self.D + of_heads[:, at]

    def _step(self, k: int, record: Record) -> None:
        """Transpose a step: x and D become the cotangents at its start."""
        t, dt = record.step.t, record.step.dt
        scheme, points = self.scheme, record.points
        end = project_unchecked(record.after, self.x) / record.norm
        slopes = [dt * weight * end for weight in scheme.weights]
        x: Array = end if record.noise is None else _geodesic_adjoint(points[0], record.noise, end)
        of_heads: list[Array] = []
        for at in reversed(range(scheme.stages)):
            found = self._velocity(record, at, slopes[at])
            of_heads.insert(0, found.D)
            if self.heads is not None:
                self.heads[:, k * scheme.stages + at] = found.D
            self._take_values(found.values, t + scheme.nodes[at] * dt, t)
            if at == 0:
                x = x + found.x
                continue
            inner = project_unchecked(points[at], found.x) / record.norms[at]
            x = x + inner
            for j, entry in enumerate(scheme.matrix[at]):
                if entry:
                    slopes[j] += (dt * entry) * inner
        self.x = x
        if self.law is not None:
            self._heads(self.law, record, of_heads)

    def _velocity(self, record: Record, at: int, cotangent: Array) -> Any:
        return velocity_adjoint(
            record.points[at],
            record.D[at],
            cotangent,
            values=record.values[at],
            flow=self.problem.flow.name,
            direction=self.problem.direction,
            causal=self.problem.causal,
        )

    def _take_values(self, cotangent: Array | None, t: float, start: float) -> None:
        if cotangent is None:
            return
        if self.values is not None:
            self.values += cotangent
        if self.law is not None:
            self.law.values(cotangent, t, start)

    def _heads(self, law: LawAdjoint, record: Record, of_heads: list[Array]) -> None:
        """Transpose the step of the heads, D cotangents of the heads of its stages added."""
        (_, t, dt), scheme, end = record.step, self.scheme, self.D
        law.jump(end, t, dt)
        slopes = [dt * weight * end for weight in scheme.weights]
        mean = np.zeros_like(end)
        total = end
        for at in reversed(range(scheme.stages)):
            D = of_heads[at] + law.drift(slopes[at], record.D[at], t, dt)
            total = total + D
            if at:
                _, row, share = scheme.row(at)
                mean += share * D
                for j, entry in enumerate(row):
                    slopes[j] = slopes[j] + (dt * entry) * D
        law.noise(end, mean, record.move)
        self.D = total


def _geodesic_adjoint(x: Array, noise: Array, end: Array) -> Array:
    """Return the cotangent of x, where cos|u| x + sin|u|/|u| u with u = P_x noise has `end`."""
    u = project_unchecked(x, noise)
    angle = _norms(u)
    sinc = np.sinc(angle / np.pi)
    small = angle < 1e-4  # the derivative of sinc over the angle, by its series
    safe = np.where(small, 1.0, angle)
    bend = np.where(small, -1 / 3 + angle**2 / 30, (np.cos(angle) - sinc) / safe**2)
    along = bend * np.einsum("pik,pik->pi", u, end)[..., None]
    along -= sinc * np.einsum("pik,pik->pi", x, end)[..., None]
    of_u = sinc * end + along * u
    radial = np.einsum("pik,pik->pi", x, of_u)[..., None]
    return (
        np.cos(angle) * end - np.einsum("pik,pik->pi", x, noise)[..., None] * of_u - radial * noise
    )


class Trajectory:
    """A run of all paths, in batches.

    Attributes
    ----------
    tokens, heads : at the snapshots, (paths, snapshots, n, d) and (paths, snapshots, heads, d, d)
    """

    def __init__(self, problem: Problem, every_evaluation: bool = False) -> None:
        problem.check_size(in_memory=True)  # what `wflow.solve` refuses, too
        self.problem, self.every_evaluation = problem, every_evaluation
        step, every = _step_bytes(problem), problem.steps
        if every * step > _BYTES:
            every = math.isqrt(every - 1) + 1
        # What the adjoint of a velocity takes, for each path.
        own = 8 * problem.heads * problem.x0.shape[-2] * (4 * problem.x0.shape[-1] + 2)
        most = max(1, _BYTES // max(every * step, own))
        if problem.control is not None:
            most = 1  # paths have steps of their own
        elif problem.compute.batch is not None:
            most = min(most, problem.compute.batch)
        states = problem.steps / every + 2 * len(problem.snapshot_steps)
        states += every_evaluation * problem.steps
        check_memory(
            problem.paths * states * step, "the gradient", "take fewer paths, steps or snapshots"
        )
        firsts = range(0, problem.paths, most)
        self.batches = []
        with numba_threads(problem.compute.threads, "compute.threads"):
            for first in firsts:
                batch = Batch(problem, first, min(first + most, problem.paths))
                batch.forward()
                self.batches.append(batch)
        self.tokens = np.concatenate([batch.tokens for batch in self.batches])
        self.heads = np.concatenate([batch.heads for batch in self.batches])

    def backward(
        self, value: float, of_tokens: Array, of_heads: Array | None, x0: ArrayLike
    ) -> Gradient:
        """Return the derivatives of a loss with these derivatives at the snapshots.

        Parameters
        ----------
        x0 : the initial tokens as they were given
        """
        problem = self.problem
        ways = []
        with numba_threads(problem.compute.threads, "compute.threads"):
            for batch in self.batches:
                way = Pullback(batch, self.every_evaluation)
                rows = batch.rows
                way.run(of_tokens[rows], None if of_heads is None else of_heads[rows])
                ways.append(way)
        x = np.concatenate([way.x for way in ways])
        self._warn_growth(x, of_tokens)
        given = np.asarray(x0, np.float64)
        if given.ndim == 2:
            x = _added(x)
        largest = np.abs(given).max(axis=-1, keepdims=True)  # squares may leave the range
        x = project_unchecked(problem.x0, x) / _norms(given / largest) / largest
        law: dict[str, Any] = {}
        if ways[0].law is not None:
            for name in ways[0].law.sums:
                total = _added(np.concatenate([way.law.sums[name] for way in ways if way.law]))
                law[name] = total if total.ndim else float(total)
        own = ways[0].law is not None
        per_path = lambda name: np.concatenate([getattr(way, name) for way in ways])  # noqa: E731
        return Gradient(
            value=value,
            x0=x,
            initial_heads=per_path("D") if own else None,
            initial_values=per_path("values") if ways[0].values is not None else None,
            heads=_filled([way.heads for way in ways if way.heads is not None]),
            law=law,
        )

    def _warn_growth(self, x: Array, of_tokens: Array) -> None:
        given = np.sqrt(np.einsum("psik,psik->ps", of_tokens, of_tokens)).sum(axis=1)
        found = np.sqrt(np.einsum("pik,pik->p", x, x))
        growth = float(np.max(found[given > 0] / given[given > 0], initial=0.0))
        if growth > _GROWTH:
            end = self.problem.steps * self.problem.dt
            warn(
                f"the derivatives grow by a factor of {growth:.2g} over the run, by about "
                f"exp({math.log(growth) / end:.3g} t): the run is chaotic, and its gradient says "
                "nothing about finite changes; take an earlier t_final, or weaker heads"
            )


def _added(values: Array) -> Array:
    """Return the sum over paths, in their order: bitwise independent of batches."""
    total = np.zeros(values.shape[1:])
    for one in values:
        total = total + one
    return total


def _filled(parts: Sequence[Array]) -> Array | None:
    """Return arrays (paths, evaluations, ...) as one, zero where a path has fewer evaluations."""
    if not parts:
        return None
    whole = np.zeros((sum(map(len, parts)), max(p.shape[1] for p in parts), *parts[0].shape[2:]))
    first = 0
    for part in parts:
        whole[first : first + len(part), : part.shape[1]] = part
        first += len(part)
    return whole
