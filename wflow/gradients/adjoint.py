"""`wflow.gradient`: the discrete adjoint of `wflow.solve` (docs/theory/gradients.md).

A run is computed forward, and states are kept at some steps; from the last segment between two of
them to the first, its steps are computed again with their stages and transposed one by one. The
noise is that of the run, drawn again from its key, and held fast, as the lengths of the steps are.
"""

from __future__ import annotations  # the signature of `gradient` shows short names

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.adaptive import Dopri5
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
from wflow._core.errors import AccuracyWarning, BlowUpError, InputError, warn
from wflow._core.memory import check_memory
from wflow._core.tableaux import Tableau, Times, moved
from wflow._core.threads import numba_threads
from wflow.attention.flows import FLOWS, Flow
from wflow.gradients.laws import ADJOINTS, LawAdjoint
from wflow.gradients.losses import Energy
from wflow.heads.laws import QKV, HeadLaw
from wflow.heads.matrices import Matrices
from wflow.heads.process import HeadStep
from wflow.kernels.evaluate import velocity_adjoint
from wflow.particles.integrate import AdaptiveBatch
from wflow.particles.integrate import Batch as ParticleBatch
from wflow.particles.options import Compute, SaveAt
from wflow.particles.problem import Problem, problem_of
from wflow.particles.schemes import Stage
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
        Derivatives by the initial heads of each path, through the law; for (Q, K, V) heads by the
        score matrices scale Q^T K. None for custom laws and `wflow.heads.CompoundPoisson`.
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
    sum_error : float
        Largest estimated error of the fast sums on the way back, relative to them; 0 for exact
        sums. Derivatives are differences of such sums, which vanish where tokens are clusters.

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
    sum_error: float


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
        times of steps, in increasing order.
    compute : wflow.Compute, default Compute()
        As in `wflow.solve`, in double precision and by Numba. The fast sums keep their tolerance
        on the way back, too: `sum_error`.
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
        torch, the exact step of Ornstein-Uhlenbeck heads with "sra1", snapshots that
        are not times of steps in increasing order, and a loss that does not return a number and an
        array.
    BlowUpError
        If a path blows up, or its derivatives leave the finite numbers.

    Warns
    -----
    AccuracyWarning
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
    rounding or to the tolerance of the fast sums. An evaluation costs several velocities beyond
    those of the run, which is computed twice where its stages do not fit into memory; about
    sqrt(steps) states are kept then. Of many paths, the stages of some are in memory at a time.

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
    if isinstance(loss, Energy) and problem.causal:
        raise InputError("there is no energy under a causal mask: take another loss")
    run = Trajectory(problem, switch(every_evaluation, "every_evaluation"))
    of_heads = None
    if isinstance(loss, Energy):
        value, of_tokens, of_heads = loss.of_run(run.tokens, run.heads, problem.values)
    else:
        value, of_tokens = _lost(loss, run.tokens)
    return run.backward(value, of_tokens, of_heads, x0)


def differentiable_problem(x0: ArrayLike, law: HeadLaw, **arguments: Any) -> Problem:
    """Return the problem of these arguments of `wflow.solve`, if its run has a gradient."""
    problem = problem_of(x0, law, **arguments)
    compute, given = problem.compute, arguments.get("save", SaveAt()).snapshots
    what = None
    if FLOWS.is_custom(problem.flow):
        what = f"the flow {problem.flow.name!r} has no adjoint: expected a flow of wflow"
    elif compute.dtype != "float64":
        what = f"gradients are in double precision: dtype is {compute.dtype!r}"
    elif compute.backend != "numba":
        what = "gradients take sums by Numba: give backend='numba'"
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
        elif len(times) != len(problem.snapshot_steps) or np.any(np.diff(times) < 0):
            what = (
                f"the snapshots {shown(times.tolist())} are not in increasing order, each of them "
                "once: the loss sees them like that"
            )
    if what is not None:
        raise InputError(what)
    return problem


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


class Record(NamedTuple):
    """A step, from which its adjoint forms its stages again.

    number, t, dt : number, by which random numbers are drawn, start and length
    x : tokens at its start, (paths, n, d)
    move : the step of the heads
    velocities : of each stage, (paths, n, d)
    """

    number: int
    t: float
    dt: float
    x: Array
    move: HeadStep
    velocities: list[Array]


class Sink:
    """Where a batch of `particles.integrate` leaves tokens and heads at the snapshots.

    It stands for `runs.driver.Paths`; a path that blows up ends the run.
    """

    def __init__(self, problem: Problem, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.lost, self.warned = np.zeros(last - first, bool), set[str]()
        shape, count = problem.x0.shape[-2:], len(problem.snapshot_steps)
        self.tokens = np.empty((last - first, count, *shape))
        self.heads = np.empty((last - first, count, *problem.scores.shape))
        self.places: dict[int, int] = {}  # number of steps before a snapshot -> its place
        self.steps = 0  # so far

    def write(self, name: str, index: tuple[Any, ...], values: ArrayLike) -> None:
        if name == "tokens":
            self.tokens[:, index[1]] = values
            self.places[self.steps] = index[1]
        elif name == "heads":
            self.heads[index[0] - self.first, index[1]] = values

    def lose(self, path: int, error: BlowUpError) -> NoReturn:
        raise error


class Batch:
    """Some paths of a run: their steps forward, and again from states at some of them."""

    def __init__(self, problem: Problem, first: int, last: int) -> None:
        self.rows = slice(first, last)
        self.sink = Sink(problem, first, last)
        # Sums of both tokens of a pair at once as in the run, without the terms of its budget.
        save = replace(problem.save, budget=False, paths=tuple(range(problem.paths)), heads=True)
        kind = ParticleBatch if problem.control is None else AdaptiveBatch
        self.solver = kind(
            replace(problem, save=save), self.sink, None,  # type: ignore[arg-type]
            symmetric=bool(problem.save.budget), taken=self._take,
        )  # fmt: skip
        self._start = 0, _copied(self.solver.state())
        # Steps of a segment, whose records are in memory together: as many as fit.
        self._every = max(1, int(_BYTES // ((last - first) * _record_bytes(problem))))

    def forward(self, keep: bool) -> None:
        """Compute the run; keep states at the start of each segment, and the last segment.

        There are at most as many segments as steps in each of them: both grow like the root of the
        number of steps, which adaptive steps do not know before.
        """
        self._states = list[tuple[int, dict[str, Array]]]()
        self._records = list[Record]()
        self._keep, self.sink.steps, end = keep, 0, self.solver.problem.steps
        step = self._restore(self._start)
        while step <= end:
            number, place = divmod(self.sink.steps, self._every)
            if keep and step < end and not place and number == len(self._states):
                self._states.append((step, _copied(self.solver.state())))
                self._records = []
                if number % 2 == 0 and number >= self._every:
                    self._states, self._every = self._states[::2], 2 * self._every
            step = self.solver.advance(step)
        self.steps, self._held = self.sink.steps, len(self._states) - 1

    def forget(self) -> None:
        """Free the records and states."""
        self._states, self._records = [], []

    def _restore(self, start: tuple[int, dict[str, Array]]) -> int:
        step, state = start
        self.solver.restore(_copied(state))
        return step

    def _take(
        self, number: int, t: Times, dt: Times, x: Array, move: HeadStep, stages: list[Stage]
    ) -> None:
        self.sink.steps += 1
        if self._keep:
            t, dt = (float(np.ravel(of)[0]) for of in (t, dt))
            velocities = [stage.velocity for stage in stages]
            self._records.append(Record(number, t, dt, x, move, velocities))

    def records(self) -> Iterator[Record]:
        """Yield the steps of the run, the first first, when a snapshot at its end is known."""
        self._keep, self.sink.steps = True, 0
        step, before = self._restore(self._start), list[Record]()
        while step <= self.solver.problem.steps:
            self._records = []
            step = self.solver.advance(step)
            yield from before
            before = self._records
        yield from before

    def segments(self) -> Iterator[list[Record]]:
        """Yield the records of the segments, the last first."""
        for segment in range(len(self._states) - 1, -1, -1):
            if segment != self._held:
                self._held, self._records = segment, []
                self.sink.steps = segment * self._every
                step = self._restore(self._states[segment])
                while self.sink.steps < min(self.steps, (segment + 1) * self._every):
                    step = self.solver.advance(step)
            yield self._records


def _copied(state: dict[str, Array]) -> dict[str, Array]:
    """Return a copy, except of heads at rest, which are in memory once for all paths."""
    return {name: of if of.strides[0] == 0 else of.copy() for name, of in state.items()}


def _record_bytes(problem: Problem) -> int:
    """Return the bytes of a record of a step of a path."""
    n, d = problem.x0.shape[-2:]
    stages, heads = problem.scheme.stages, problem.heads * d * d
    return 8 * ((1 + stages) * n * d + (3 + stages) * heads)


def norms(x: Array) -> Array:
    """Return |x| along the last axis, of size 1 there."""
    return np.sqrt(np.einsum("...k,...k->...", x, x))[..., None]


# And back
# --------


class Pullback:
    """The way back along a batch: cotangents of tokens and heads, and of what they depend on."""

    def __init__(self, batch: Batch, every_evaluation: bool) -> None:
        self.batch, self.problem = batch, batch.solver.problem
        self.scheme, law = self.problem.scheme, self.problem.law
        self.shape = (batch.sink.last - batch.sink.first, *self.problem.scores.shape)
        adjoint = ADJOINTS.get(type(law))
        self.law: LawAdjoint | None = None if adjoint is None else adjoint(law, self.shape[0])
        self.x: Array = np.zeros_like(batch.solver.x)
        self.largest = np.zeros(self.shape[0])  # norms of x on the way back, and their times
        self.times = np.zeros(self.shape[0])
        self.sum_error = 0.0
        self.D: Array = np.zeros(self.shape)
        given = self.problem.values is not None and law.values(0.0) is None
        self.values = np.zeros(self.shape) if given else None
        self.heads: Array | None = None
        if every_evaluation:
            count = batch.steps * self.scheme.stages
            self.heads = np.zeros((self.shape[0], count, *self.shape[1:]))

    def run(self, of_tokens: Array, of_heads: Array | None) -> None:
        """Go back to the start, from cotangents at the snapshots (paths, snapshots, ...)."""
        k = self.batch.steps
        self._add(k, of_tokens, of_heads)
        for records in self.batch.segments():
            for record in reversed(records):
                k -= 1
                with np.errstate(over="ignore", invalid="ignore"):
                    self._step(k, record)
                if not np.isfinite(self.x).all():
                    self._overflow(record.t)
                size = np.sqrt(np.einsum("pik,pik->p", self.x, self.x))
                self.times = np.where(size > self.largest, record.t, self.times)
                self.largest = np.maximum(size, self.largest)
                self._add(k, of_tokens, of_heads)
        if self.law is not None:
            self.law.initial(self.D)

    def _add(self, k: int, of_tokens: Array, of_heads: Array | None) -> None:
        at = self.batch.sink.places.get(k)
        if at is not None:
            self.x = self.x + of_tokens[:, at]
            if of_heads is not None:
                self.D = self.D + of_heads[:, at]

    def _step(self, k: int, record: Record) -> None:
        """Transpose a step: x and D become the cotangents at its start."""
        number, t, dt, start, move, velocities = record
        scheme, solver = self.scheme, self.batch.solver
        noise = solver.token_noise(number)
        diffused = start
        if noise is not None:
            diffused = exponential_unchecked(start, project_unchecked(start, noise))
        end = _normalised_adjoint(moved(diffused, dt, scheme.weights, velocities), self.x)
        slopes = [dt * weight * end for weight in scheme.weights]
        x: Array = end if noise is None else _geodesic_adjoint(start, noise, end)
        of_heads: list[Array] = []
        D = [move.inner(*scheme.row(at)[1:]) for at in range(scheme.stages)]
        values_at = solver.heads.values(t)
        for at in reversed(range(scheme.stages)):
            inner = moved(start, dt, scheme.matrix[at], velocities[:at])
            time = t + scheme.nodes[at] * dt
            law_values = values_at(time)
            found = velocity_adjoint(
                normalise_unchecked(inner) if at else start,
                D[at],
                slopes[at],
                values=self.problem.values if law_values is None else law_values,
                flow=self.problem.flow.name,
                direction=self.problem.direction,
                causal=self.problem.causal,
                sums=self.problem.sums,
            )
            of_heads.insert(0, found.D)
            self.sum_error = max(self.sum_error, float(found.error.max()))
            if self.heads is not None:
                self.heads[:, k * scheme.stages + at] = found.D
            if found.values is not None:
                if self.values is not None:
                    self.values += found.values
                elif self.law is not None:
                    self.law.values(found.values, time, t)
            of_inner = _normalised_adjoint(inner, found.x) if at else found.x
            x = x + of_inner
            for j, entry in enumerate(scheme.matrix[at]):
                if entry:
                    slopes[j] += (dt * entry) * of_inner
        self.x = x
        if self.law is not None:
            self._heads(self.law, record, D, of_heads)

    def _overflow(self, t: float) -> NoReturn:
        path = int(np.argmin(np.isfinite(self.x).all(axis=(1, 2))))
        raise BlowUpError(
            f"the derivatives leave the finite numbers on the way back to time {t:g} in path "
            f"{self.batch.solver.numbers[path]}: the run is chaotic, or its flow too steep; take "
            "an earlier t_final, or weaker heads",
            time=t,
            path=self.batch.solver.numbers[path],
            score=float("inf"),
        )

    def _heads(
        self, law: LawAdjoint, record: Record, D: list[Matrices], of_heads: list[Array]
    ) -> None:
        """Transpose the step of the heads, D cotangents of the heads of its stages added."""
        _, t, dt, _, move, _ = record
        scheme, end = self.scheme, self.D
        law.jump(end, t, dt)
        slopes = [dt * weight * end for weight in scheme.weights]
        mean = np.zeros_like(end)
        total = end
        for at in reversed(range(scheme.stages)):
            of_stage = of_heads[at] + law.drift(slopes[at], D[at], t, dt)
            total = total + of_stage
            if at:
                _, row, share = scheme.row(at)
                mean += share * of_stage
                for j, entry in enumerate(row):
                    slopes[j] = slopes[j] + (dt * entry) * of_stage
        law.noise(end, mean, move)
        self.D = total


def _normalised_adjoint(y: Array, cotangent: Array) -> Array:
    """Return the cotangent of y, where y/|y| has `cotangent`."""
    norm = norms(y)
    return project_unchecked(y / norm, cotangent) / norm


def _geodesic_adjoint(x: Array, noise: Array, end: Array) -> Array:
    """Return the cotangent of x, where cos|u| x + sin|u|/|u| u with u = P_x noise has `end`."""
    u = project_unchecked(x, noise)
    angle = norms(u)
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
        record = _record_bytes(problem)
        fit = problem.steps * record <= _BYTES
        records = problem.steps if fit else 4 * (math.isqrt(problem.steps) + 1)
        # What the adjoint of a velocity takes, for each path.
        n, d = problem.x0.shape[-2:]
        pairs = 8 * n * (problem.heads * (4 * d + 2) + d * (d + 1))
        if problem.sums.have_error:
            pairs = 8 * n * problem.heads * d * (d + 18)
        batch = max(1, _BYTES // max(records * record, pairs))
        if problem.control is not None:
            batch = 1  # paths have steps of their own
        elif problem.compute.batch is not None:
            batch = min(batch, problem.compute.batch)
        batch = min(batch, problem.paths)
        kept = 2 * len(problem.snapshot_steps)
        kept += every_evaluation * problem.steps * problem.scheme.stages
        needed = batch * (records * record + pairs) + problem.paths * kept * record
        check_memory(needed, "the gradient", "take fewer paths, steps or snapshots")
        self._batches = [
            Batch(problem, first, min(first + batch, problem.paths))
            for first in range(0, problem.paths, batch)
        ]
        with numba_threads(problem.compute.threads, "compute.threads"):
            for one in self._batches:
                one.forward(keep=len(self._batches) == 1)
        self.tokens = np.concatenate([one.sink.tokens for one in self._batches])
        self.heads = np.concatenate([one.sink.heads for one in self._batches])

    def backward(
        self, value: float, of_tokens: Array, of_heads: Array | None, x0: ArrayLike
    ) -> Gradient:
        """Return the derivatives of a loss with these derivatives at the snapshots.

        Parameters
        ----------
        x0 : the initial tokens as they were given
        """
        problem, pullbacks = self.problem, list[Pullback]()
        with numba_threads(problem.compute.threads, "compute.threads"):
            for batch in self._batches:
                if len(self._batches) > 1:  # whose records are in memory one after the other
                    batch.forward(keep=True)
                found = Pullback(batch, self.every_evaluation)
                rows = batch.rows
                found.run(of_tokens[rows], None if of_heads is None else of_heads[rows])
                if len(self._batches) > 1:
                    batch.forget()
                pullbacks.append(found)
        x = np.concatenate([found.x for found in pullbacks])
        self._warn_growth(pullbacks, of_tokens)
        given = np.ascontiguousarray(x0, np.float64)  # sums in one order
        if given.ndim == 2:
            x = _added(x)
        largest = np.abs(given).max(axis=-1, keepdims=True)  # squares may leave the range
        x = project_unchecked(problem.x0, x) / norms(given / largest) / largest
        laws = [found.law for found in pullbacks if found.law is not None]
        law: dict[str, Any] = {}
        for name in laws[0].sums if laws else ():
            total = _added(np.concatenate([one.sums[name] for one in laws]))
            law[name] = total if total.ndim else float(total)
        D = np.concatenate([found.D for found in pullbacks])
        values = [found.values for found in pullbacks if found.values is not None]
        return Gradient(
            value=value,
            x0=x,
            initial_heads=D if laws else None,
            initial_values=np.concatenate(values) if values else None,
            heads=_filled([found.heads for found in pullbacks if found.heads is not None]),
            law=law,
            sum_error=max(found.sum_error for found in pullbacks),
        )

    def _warn_growth(self, pullbacks: Sequence[Pullback], of_tokens: Array) -> None:
        given = np.sqrt(np.einsum("psik,psik->ps", of_tokens, of_tokens)).sum(axis=1)
        largest = np.concatenate([found.largest for found in pullbacks])
        growth = np.divide(largest, given, out=np.zeros_like(given), where=given > 0)
        worst = int(np.argmax(growth))
        if not growth[worst] <= _GROWTH:
            back = float(np.concatenate([found.times for found in pullbacks])[worst])
            rate = math.log(growth[worst]) / (self.problem.steps * self.problem.dt - back)
            warn(
                f"the derivatives grow by a factor of {growth[worst]:.2g} on the way back to t = "
                f"{back:.3g}, by about exp({rate:.3g} t): the run is chaotic, and its gradient "
                "says nothing about finite changes; take an earlier t_final, or weaker heads",
                AccuracyWarning,
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
