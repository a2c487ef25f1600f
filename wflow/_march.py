"""Marching batches of paths through time, recording as they go."""

import math
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wflow._matrices import is_symmetric
from wflow._problem import Problem
from wflow._sums import DIRECTIONS, Evaluation, energy_laplacian, evaluate, mark_overflow
from wflow.attention import warn_overflow
from wflow.errors import BlowUpError, InputError
from wflow.ledger import Ledger, Terms
from wflow.rng import NOISE, TOKEN_NOISE, CounterNormals
from wflow.schemes import SCHEMES, Stage, advance
from wflow.sphere import project

State = dict[str, NDArray]

# A step that turns a token by more than atan(10), or a score that no exponential can tell from
# its neighbours, means that the step size or the heads have run away.
_MAX_STEP, _MAX_SCORE = 10.0, 1e6
_BUFFER = 512  # record times held in memory before they go to the store


class Sink(Protocol):
    """Where records go: memory or a run file."""

    def write(self, name: str, index: tuple, values: NDArray) -> None: ...


class Recorder:
    """Collects what a batch of paths records and hands it to the store in blocks."""

    def __init__(self, problem: Problem, sink: Sink, first: int, last: int) -> None:
        self.problem, self.sink = problem, sink
        self.rows = slice(first, last)
        self.records = len(problem.record_steps)
        steps = problem.snapshot_steps.tolist()
        self._snapshot_at = {step: at for at, step in reversed(list(enumerate(steps)))}
        self._table: dict[str, NDArray[np.float64]] = {}
        self._start = self._filled = 0

    def wants(self, step: int) -> bool:
        """Whether the start of a step is a record time."""
        return step % self.problem.record_every == 0 or step == self.problem.steps

    def series(self, step: int, row: Terms) -> None:
        """Keep the (path, time) quantities of a record time."""
        record = -(-step // self.problem.record_every)
        if self._filled == 0:
            self._start = record
        for name, values in row.items():
            if name not in self._table:
                self._table[name] = np.empty((len(values), _BUFFER))
            self._table[name][:, self._filled] = values
        self._filled += 1
        if self._filled == _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Hand over what is held."""
        if self._filled:
            columns = slice(self._start, self._start + self._filled)
            for name, values in self._table.items():
                self.sink.write(name, (self.rows, columns), values[:, : self._filled])
            self._filled = 0

    def snapshot(self, step: int, x: NDArray, D: NDArray, total: NDArray | None) -> None:
        """Keep tokens and heads of the chosen paths, and the mean over all paths."""
        problem = self.problem
        at = self._snapshot_at.get(step)
        if at is None:
            return
        for place, path in enumerate(problem.snapshot_paths):
            if self.rows.start <= path < self.rows.stop:
                local = int(path) - self.rows.start
                self.sink.write("tokens", (place, at), x[local])
                if problem.save_heads:
                    self.sink.write("heads", (place, at), D[local])
        # Summed path by path: the same bits for any batching.
        mean = np.zeros(x.shape[1:]) if total is None else total[at]
        for tokens in x:
            mean += tokens
        if self.rows.stop == problem.paths:
            self.sink.write("tokens_mean", (at,), mean / problem.paths)


class Batch:
    """Paths first <= p < last: their tokens, heads and ledger at one time."""

    def __init__(self, problem: Problem, first: int, last: int, told: set[str]) -> None:
        self.problem, self.first, self.last = problem, first, last
        self.told = told  # warnings that the run has given
        self.scheme = SCHEMES[problem.scheme]
        self.normals = CounterNormals(problem.seed)
        kind = np.dtype(problem.dtype)
        shared = problem.x0 if problem.x0.ndim == 2 else problem.x0[first:last]
        count = last - first
        # In C order whatever the number of paths: sums over the layout have the same bits.
        self.x = np.array(np.broadcast_to(shared, (count, *shared.shape[-2:])), kind, order="C")
        scores = np.broadcast_to(problem.scores, (count, *problem.scores.shape))
        self.D = np.array(scores, kind, order="C")
        self.ledger = Ledger(count, DIRECTIONS[problem.direction], problem.kappa > 0)

    def state(self) -> State:
        return {"x": self.x, "D": self.D, **self.ledger.state()}

    def restore(self, state: State) -> None:
        self.x, self.D = state["x"], state["D"]
        self.ledger.restore(state)

    def advance(self, step: int, recorder: Recorder, total: NDArray | None) -> None:
        """Evaluate and record at the start of a step, then take it (the last one is no step)."""
        problem, t, dt = self.problem, step * self.problem.dt, self.problem.dt
        shape, silent = self.D.shape[1:], problem.law.deterministic
        normals = None if silent else self._draw(shape, step, NOISE)
        law_step = problem.law.step(self.D, t, dt, normals)
        drift = law_step.drift
        if self.scheme.order > 1:
            drift = problem.law.drift_within(t, dt)(self.D, t)
        noise, sigma2 = law_step.noise, law_step.sigma2
        values = problem.law.values_within(t)
        first = self._evaluate(values(t), self.x, self.D, drift, noise, sigma2)
        token_noise = self._diffuse(step, first.terms)
        self._check(t, first.terms)
        if recorder.wants(step):
            recorder.series(step, self._row(first.terms))
        recorder.snapshot(step, self.x, self.D, total)
        if step == problem.steps:
            return

        within = problem.law.drift_within(t, dt)

        def stage_at(node: float, x: NDArray, D: NDArray) -> Stage:
            f = within(D, t + node * dt)
            velocity, terms = self._evaluate(values(t + node * dt), x, D, f, None, None)
            return Stage(velocity, f, terms)

        self.x, self.D, stages = advance(
            self.scheme, self.x, self.D, dt, Stage(first.velocity, drift, first.terms), noise,
            stage_at, token_noise,
        )  # fmt: skip
        jumped = problem.law.jump(t, dt)
        if problem.ledger:
            self._check_symmetry(t + dt)
            self.ledger.advance(stages, self.scheme.weights, dt)
        if jumped is not None:
            self._jump(jumped)

    def _check_symmetry(self, t: float) -> None:
        """The energy and the pass that uses each kernel value twice need D = D^T."""
        if np.isfinite(self.D).all() and not is_symmetric(self.D):
            raise InputError(
                f"the law {type(self.problem.law).__name__} made heads asymmetric before time "
                f"{t:g}, but says that it keeps them symmetric; mend its drift, or give it "
                "symmetric=False and run with ledger=False"
            )

    def _jump(self, heads: NDArray) -> None:
        after = np.array(np.broadcast_to(heads, self.D.shape), self.D.dtype)
        if self.problem.ledger:
            energies = [
                self._evaluate(None, self.x, D, None, None, None).terms["energy"]
                for D in (self.D, after)
            ]
            self.ledger.book_jump(*energies)
        self.D = after

    def _draw(self, shape: tuple[int, ...], step: int, purpose: int) -> NDArray:
        draw = self.normals.draw
        begin = self.problem.first_path
        paths = range(begin + self.first, begin + self.last)
        return np.stack([draw(shape, path=p, step=step, purpose=purpose) for p in paths])

    def _diffuse(self, step: int, terms: Terms) -> NDArray | None:
        """Noise of the tokens in this step, sqrt(2 kappa dt) P_x xi; its terms join the others.

        diffusion_power = kappa sum_i Laplacian_i E, martingale_tokens = (1/n) sum_i <gbar_i, noise>
        (docs/mathematics.md section 4).
        """
        kappa, dt = self.problem.kappa, self.problem.dt
        if not kappa:
            return None
        xi = self._draw(self.x.shape[1:], step, TOKEN_NOISE)
        noise = project(self.x, (math.sqrt(2 * kappa * dt) * xi).astype(self.x.dtype))
        if self.problem.ledger:
            with np.errstate(invalid="ignore"):
                gbar, laplacian, error = energy_laplacian(self.x, self.D, self.problem.sums)
                terms["diffusion_power"] = kappa * laplacian
                along = np.einsum("pik,pik->p", gbar, noise.astype(np.float64))
                terms["martingale_tokens"] = along / self.x.shape[1]
            mark_overflow(terms, ("diffusion_power", "martingale_tokens"), self.x.dtype)
            if "sum_error" in terms:
                terms["sum_error"] = np.maximum(terms["sum_error"], error)
        return noise

    def _evaluate(self, values, x, D, drift, noise, sigma2) -> Evaluation:
        problem = self.problem
        if not problem.ledger:
            drift = noise = sigma2 = None
        return evaluate(
            x,
            D,
            values=problem.values if values is None else values,
            drift=drift,
            noise=noise,
            sigma2=sigma2,
            flow=problem.flow,
            direction=problem.direction,
            causal=problem.causal,
            symmetric=problem.ledger,
            sums=problem.sums,
        )

    def _row(self, terms: Terms) -> Terms:
        row = self.ledger.row(terms) if self.problem.ledger else {"speed_sq": terms["speed_sq"]}
        return row | ({"sum_error": terms["sum_error"]} if "sum_error" in terms else {})

    def _check(self, t: float, terms: Terms) -> None:
        """Stop a run that has left the range in which its numbers mean anything."""
        turn = self.problem.dt * terms["max_speed"]
        good = np.isfinite(terms["speed_sq"]) & (turn <= _MAX_STEP)
        good &= terms["max_score"] <= _MAX_SCORE
        if not good.all():
            bad = int(np.argmin(good))
            path = self.problem.first_path + self.first + bad
            score = float(np.linalg.norm(self.D[bad], axis=(1, 2)).max())
            if np.isfinite(self.D[bad]).all():
                score = float(terms["max_score"][bad])
            raise BlowUpError(
                f"the step dt = {self.problem.dt:g} blows up at time {t:g} in path {path}: scores "
                f"reach |D^T x| = {score:.4g} and the fastest token would move by "
                f"{float(turn[bad]):.4g} in one step; take a smaller dt, or weaker heads",
                time=t,
                path=path,
                score=score,
            )
        if not self.problem.ledger or "overflow" in self.told:
            return
        if not np.isfinite([terms[name] for name in self.ledger.rates]).all():
            self.told.add("overflow")
            warn_overflow(f"an energy term of time {t:g}", float(terms["max_score"].max()))


def march(
    problem: Problem,
    sink: Sink,
    *,
    batch: int,
    state: State | None = None,
    save: Callable[[State], None] | None = None,
    save_every: float = 15.0,
    stopping: Callable[[], bool] = lambda: False,
    tick: Callable[[int], None] = lambda steps: None,
) -> bool:
    """Run all paths, `batch` at a time, from the start or from a saved state.

    Parameters
    ----------
    save : called with everything needed to go on, every `save_every` seconds, after the records up
        to there are in the sink
    stopping : asked after every step; True ends the march after saving
    tick : told how many steps were done

    Returns
    -------
    whether the run is complete
    """
    batch = batch if state is None else int(state["batch"])
    starts = range(0, problem.paths, batch)
    total = None
    if len(starts) > 1:
        total = np.zeros((len(problem.snapshot_steps), *problem.x0.shape[-2:]))
    begin, first_step = 0, 0
    if state is not None:
        begin, first_step = int(state["first"]), int(state["step"])
        if total is not None:
            total = state["total"]
        tick(first_step + (begin // batch) * (problem.steps + 1))

    saved = time.monotonic()
    told: set[str] = set()
    for first in starts:
        if first < begin:
            continue
        paths = Batch(problem, first, min(first + batch, problem.paths), told)
        recorder = Recorder(problem, sink, paths.first, paths.last)
        if state is not None and first == begin:
            paths.restore(state)
        else:
            first_step = 0

        def keep(step: int, paths: Batch = paths, recorder: Recorder = recorder) -> None:
            """Save everything needed to go on at the start of `step`."""
            recorder.flush()
            if save is not None:
                done = {"batch": batch, "first": paths.first, "step": step}
                sums = {} if total is None else {"total": total}
                save({k: np.array(v) for k, v in done.items()} | sums | paths.state())

        if first == begin and state is None:
            keep(0)  # a run killed at any later moment can be resumed
        for step in range(first_step, problem.steps + 1):
            try:
                paths.advance(step, recorder, total)
            except BaseException:
                recorder.flush()  # what was recorded stays readable
                raise
            tick(1)
            if step == problem.steps:
                break
            stop = stopping()
            if stop or time.monotonic() - saved > save_every:
                keep(step + 1)
                saved = time.monotonic()
            if stop:
                return False
        recorder.flush()
    return True
