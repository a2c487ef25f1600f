"""Time integration of batches of paths, and what is recorded of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.adaptive import AdaptiveSteps, legs
from wflow._core.errors import BlowUpError
from wflow._core.rng import TOKEN_NOISE, CounterNormals
from wflow._core.tableaux import Times
from wflow.attention.cloud import warn_overflow
from wflow.attention.flows import evaluator, flow_config
from wflow.heads.laws import law_config
from wflow.heads.process import Drift, HeadProcess, HeadStep
from wflow.kernels.evaluate import DIRECTIONS, Evaluation, energy_laplacian, mark_overflow
from wflow.particles.budget import Budget, Terms
from wflow.particles.problem import Problem
from wflow.particles.schemes import Stage, StageAt, advance, attempt
from wflow.runs import driver
from wflow.runs.driver import Paths, Plan
from wflow.runs.schema import RunLayout
from wflow.runs.store import Store
from wflow.sphere.geometry import exponential_unchecked, project_unchecked

State = dict[str, NDArray]
Taken = Callable[[int, Times, Times, NDArray, HeadStep, list[Stage]], None]

# A step that turns a token by more than atan(10), or a score that no exponential can tell from
# its neighbours, means that the step size or the heads have run away.
MAX_STEP, MAX_SCORE = 10.0, 1e6
# The energy and the pass that uses each kernel value twice need D = D^T.
_ASYMMETRIC = " and run with save=SaveAt(budget=False)"
_BATCH_BYTES = {"numba": 2**26, "torch": 2**30}  # a GPU is full with a thousand paths at a time
_BUFFER = 512  # record times held in memory before they go to the store


class Recorder:
    """Recorder of a batch of paths, which passes its records to the store in blocks.

    Parameters
    ----------
    problem : the run
    sink : where the records of these paths go
    total : sum of the tokens of the paths before them, which is added to; None: there are none
    """

    def __init__(self, problem: Problem, sink: Paths, total: NDArray | None) -> None:
        self.problem, self.sink, self._total = problem, sink, total
        first, last = sink.first, sink.last
        self.rows = slice(first, last)
        held = [(at, p - first) for at, p in enumerate(problem.save.paths) if first <= p < last]
        # Places of the snapshots of these paths in the store, and the paths, counted from `first`.
        self._places = slice(held[0][0], held[-1][0] + 1) if held else slice(0)
        self._chosen = [path for _, path in held]
        self.records = len(problem.record_steps)
        steps = problem.snapshot_steps.tolist()
        self._snapshot_at = {step: at for at, step in reversed(list(enumerate(steps)))}
        self._table: dict[str, NDArray[np.float64]] = {}
        self._start = self._filled = 0

    def wants(self, step: int) -> bool:
        """Return whether the start of a step is a record time."""
        return step % self.problem.save.every == 0 or step == self.problem.steps

    def series(self, step: int, row: Terms) -> None:
        """Record the (path, time) quantities of a record time."""
        record = -(-step // self.problem.save.every)
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
        """Write the records that are still held to the store."""
        if self._filled:
            columns = slice(self._start, self._start + self._filled)
            for name, values in self._table.items():
                self.sink.write(name, (self.rows, columns), values[:, : self._filled])
            self._filled = 0

    def snapshot(self, step: int, x: NDArray, D: NDArray) -> None:
        """Record tokens and heads of the chosen paths, and the mean over all paths."""
        problem = self.problem
        at = self._snapshot_at.get(step)
        if at is None:
            return
        if self._chosen:
            every = len(self._chosen) == len(x)  # in order, and not to be copied
            self.sink.write("tokens", (self._places, at), x if every else x[self._chosen])
            if problem.save.heads:  # one by one: heads at rest are in memory once for all paths
                for place, path in enumerate(self._chosen, start=self._places.start):
                    self.sink.write("heads", (place, at), D[path])
        # Summed path by path: the same bits for any batching.
        mean = np.zeros(x.shape[1:]) if self._total is None else self._total[at]
        for tokens, lost in zip(x, self.sink.lost, strict=True):
            mean += np.nan if lost else tokens
        if self.rows.stop == problem.paths:
            self.sink.write("tokens_mean", (at,), mean / problem.paths)


class Batch(driver.Solver):
    """A group of paths: their tokens, heads and energy budget at one time.

    Parameters
    ----------
    problem : the run
    paths : where the records of these paths go
    total : as in `Recorder`
    symmetric : whether the sums use D = D^T; by default where there is a budget, which needs it
    taken : called with each step that is taken: number, start, length, tokens (k, n, d) and heads
        at its start, and stages; of adaptive steps, which it gets where all paths take theirs,
        start and length are arrays (k,)
    """

    def __init__(
        self,
        problem: Problem,
        paths: Paths,
        total: NDArray | None,
        *,
        symmetric: bool | None = None,
        taken: Taken | None = None,
    ) -> None:
        self.problem, self.paths, self._taken = problem, paths, taken
        self.symmetric = bool(problem.save.budget) if symmetric is None else symmetric
        self.recorder = Recorder(problem, paths, total)
        first, last = paths.first, paths.last
        self.scheme = problem.scheme
        self.numbers = range(problem.first_path + first, problem.first_path + last)
        self.heads = HeadProcess(
            problem.law,
            problem.scores,
            seed=problem.seed,
            paths=self.numbers,
            dtype=problem.compute.dtype,
        )
        self.normals = CounterNormals(problem.seed)
        kind = np.dtype(problem.compute.dtype)
        shared = problem.x0 if problem.x0.ndim == 2 else problem.x0[first:last]
        count = last - first
        # In C order whatever the number of paths: sums over the layout have the same bits.
        self.start = np.broadcast_to(np.asarray(shared, kind), (count, *shared.shape[-2:]))
        self.x = np.array(self.start, order="C")
        sign = DIRECTIONS[problem.direction]
        self.budget = Budget(count, sign, problem.kappa > 0, problem.noisy)
        # What noisy heads moved in the step before, for the backward integral of their work.
        self.moved = np.zeros_like(self.heads.D) if problem.noisy else None
        self._sums_of = evaluator(
            problem.flow,
            direction=problem.direction,
            causal=problem.causal,
            symmetric=self.symmetric,
            sums=problem.sums,
        )
        # Sizes of terms up to which nothing is wrong with a step, whatever its other terms are; a
        # little less than the limits, for their rounding.
        largest = float(np.finfo(np.float64).max)
        limits = {name: largest for name in self.budget.rates if problem.save.budget}
        limits |= {"speed_sq": largest, "max_score": MAX_SCORE}
        limits["max_speed"] = (1 - 1e-9) * MAX_STEP / problem.dt
        self._watched, self._limits = tuple(limits), np.array(list(limits.values()))[:, None]

    def state(self) -> State:
        moved = {} if self.moved is None else {"moved": self.moved}
        return {"x": self.x, "D": self.heads.D, **moved, **self.budget.state()}

    def restore(self, state: State) -> None:
        self.x = state["x"]
        self.heads.restore(state["D"])
        self.moved = state.get("moved")
        self.budget.restore(state)

    def flush(self) -> None:
        self.recorder.flush()

    def lose(self, path: int, error: BlowUpError) -> None:
        """Stop a path, which rests at its start from now on and records nothing."""
        self.flush()
        self.paths.lose(path, error)

    def rest(self) -> None:
        """Reset the paths that blew up, so that all sums they still take part in are finite."""
        lost = self.paths.lost
        self.x[lost] = self.start[lost]
        if not np.isfinite(self.heads.D[lost]).all():
            self.heads.D[lost] = self.problem.scores

    def advance(self, step: int) -> int:
        """Evaluate and record at the start of a step, then take it (the last one is no step)."""
        if self.paths.lost.any():
            self.rest()
        problem, t, dt = self.problem, step * self.problem.dt, self.problem.dt
        move = self.heads.begin(step, t, dt, self.scheme)
        values = self.heads.values(t)
        first = self._evaluate(
            values(t), self.x, move.D, move.drift, move.noise, move.sigma2, self.moved
        )
        diffused = self._diffuse(step, first.terms, move.noise)
        self._check(t, first.terms)
        if self.recorder.wants(step):
            self.recorder.series(step, self._row(first.terms))
        self.recorder.snapshot(step, self.x, move.D)
        if step == problem.steps:
            return step + 1

        def stage_at(node: float, x: NDArray, D: NDArray, drift: NDArray | None) -> Stage:
            velocity, terms = self._evaluate(values(t + node * dt), x, D, drift, None, move.sigma2)
            return Stage(velocity, terms)

        start, here = self.x, Stage(first.velocity, first.terms)
        self.x, stages = advance(self.scheme, start, move, dt, here, stage_at, diffused)
        self.heads.D = move.end(self.scheme.weights)
        if self._taken is not None:
            self._taken(step, t, dt, start, move, stages)
        if self.moved is not None:
            self.moved = self.heads.D - move.D
        if self.symmetric:
            self.heads.check_symmetric(t + dt, _ASYMMETRIC)
        if problem.save.budget:
            self.budget.advance([stage.terms for stage in stages], self.scheme.weights, dt)
        self._jump(step, t, dt)
        return step + 1

    def _jump(self, step: int, t: float, dt: float) -> None:
        """Apply the jumps of the heads from t to t + dt, and add the energy of those paths."""
        places, before = self.heads.jump(step, t, dt)
        if not places or not self.problem.save.budget:
            return
        moved = None if self.moved is None else self.moved[places]
        ends = [
            self._evaluate(None, self.x[places], D[places], None, None, None, moved).terms
            for D in (before, self.heads.D)
        ]
        self.budget.add_jump(ends[0], ends[1], places)
        if self.moved is not None:
            self.moved[places] = 0.0

    def token_noise(self, step: int) -> NDArray | None:
        """Return the noise sqrt(2 kappa dt) xi of a step, of the tokens' shape; None without."""
        kappa, dt = self.problem.kappa, self.problem.dt
        if not kappa:
            return None
        xi = self.normals.draw_paths(
            self.x.shape[1:], paths=self.numbers, step=step, purpose=TOKEN_NOISE
        )
        return (math.sqrt(2 * kappa * dt) * xi).astype(self.x.dtype)

    def _diffuse(self, step: int, terms: Terms, of_heads: NDArray | None) -> NDArray | None:
        """Return tokens after the noise sqrt(2 kappa dt) P_x xi of this step; add its terms.

        diffusion_power = kappa sum_i Laplacian_i E, and martingale_tokens is what the noise does
        to the energy beyond its mean, and to the slope along the noise of the heads
        (docs/theory/energy.md).
        """
        kappa, dt = self.problem.kappa, self.problem.dt
        noise = self.token_noise(step)
        if noise is None:
            return None
        after = exponential_unchecked(self.x, project_unchecked(self.x, noise))
        if self.problem.save.budget:
            laplacian, error = energy_laplacian(self.x, self.heads.D, self.problem.sums)
            terms["diffusion_power"] = kappa * laplacian
            found = self._evaluate(None, after, self.heads.D, None, of_heads, None).terms
            with np.errstate(invalid="ignore"):
                change = found["energy"] - terms["energy"]
                change += found["martingale"] - terms["martingale"]
                terms["martingale_tokens"] = change - dt * terms["diffusion_power"]
            mark_overflow(terms, ("diffusion_power", "martingale_tokens"), self.x.dtype)
            if "sum_error" in terms:
                terms["sum_error"] = np.max([terms["sum_error"], found["sum_error"], error], axis=0)
        return after

    def _evaluate(self, values, x, D, drift, noise, sigma2, moved=None) -> Evaluation:
        problem = self.problem
        if not problem.save.budget:
            drift = noise = sigma2 = moved = None
        values = problem.values if values is None else values
        return self._sums_of(
            x, D, values=values, drift=drift, moved=moved, noise=noise, sigma2=sigma2
        )

    def _row(self, terms: Terms) -> Terms:
        row = (
            self.budget.row(terms) if self.problem.save.budget else {"speed_sq": terms["speed_sq"]}
        )
        return row | ({"sum_error": terms["sum_error"]} if "sum_error" in terms else {})

    def _check(self, t: float, terms: Terms) -> None:
        """Mark the paths as lost that have left the range in which their numbers are meaningful."""
        within = np.abs([terms[name] for name in self._watched]) <= self._limits
        if np.count_nonzero(within) == within.size:  # mostly; false for NaN
            return
        turn = self.problem.dt * terms["max_speed"]
        good = np.isfinite(terms["speed_sq"]) & (turn <= MAX_STEP)
        good &= terms["max_score"] <= MAX_SCORE
        for bad in np.flatnonzero(~good & ~self.paths.lost).tolist():
            path, D = self.numbers[bad], self.heads.D[bad]
            score = float(np.linalg.norm(D, axis=(1, 2)).max())
            if np.isfinite(D).all():
                score = float(terms["max_score"][bad])
            text = (
                f"the step dt = {self.problem.dt:g} blows up at time {t:g} in path {path}: scores "
                f"reach |D^T x| = {score:.4g} and the fastest token would move by "
                f"{float(turn[bad]):.4g} in one step; take a smaller dt, or weaker heads"
            )
            self.lose(bad, BlowUpError(text, time=t, path=path, score=score))
        self._warn_overflow(t, terms)

    def _warn_overflow(self, t: float, terms: Terms) -> None:
        if not self.problem.save.budget or "overflow" in self.paths.warned:
            return
        lives = ~self.paths.lost
        if not np.isfinite([terms[name][lives] for name in self.budget.rates]).all():
            self.paths.warned.add("overflow")
            warn_overflow(f"an energy term of time {t:g}", float(terms["max_score"][lives].max()))


class AdaptiveBatch(Batch):
    """Batch of paths whose steps are chosen by their errors, separately for each path.

    Between two recorded times, of the budget or of tokens, the times at which the law breaks
    divide the time into legs. Steps end at the end of a leg, where the paths wait for each other.
    """

    def __init__(self, problem: Problem, paths: Paths, total: NDArray | None, **how: Any) -> None:
        assert problem.control is not None
        super().__init__(problem, paths, total, **how)
        self.steps = AdaptiveSteps(problem.control, len(self.x))
        self._marks = np.union1d(problem.record_steps, problem.snapshot_steps)
        self._breaks = self.heads.breaks()
        self._leg = -1  # number of the leg under way; -1 at a recorded time, before the record
        self._stage: Stage | None = None  # where each path is; None in a restored state

    def state(self) -> State:
        return super().state() | self.steps.state() | {"leg": np.full(len(self.x), self._leg)}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.steps.restore(state)
        self._leg, self._stage = int(state["leg"][0]), None

    def advance(self, step: int) -> int:
        """Record at a recorded time, then try one step of every path towards the next.

        The last stage of a step serves as the first of the next. At the start of a leg, where
        heads or drift may have jumped, the velocity is evaluated again.
        """
        problem, recorder = self.problem, self.recorder
        spans = self._spans(step)
        if self.paths.lost.any():
            self.rest()
        if self._leg < 0:
            self._begin(0, spans[0])
            assert self._stage is not None
            if recorder.wants(step):
                row = self._row(self._stage.terms)
                recorder.series(step, row | {"evaluations": self.steps.evaluations.astype(float)})
            recorder.snapshot(step, self.x, self.heads.D)
            if step == problem.steps:
                return step + 1
        start, end = spans[self._leg]
        self.steps.time[self.paths.lost] = end
        if not self.paths.lost.all():
            self._try(start, end)
            if ((self.steps.time < end) & ~self.paths.lost).any():
                return step
        self._jump(step, start, end - start)
        if self._leg + 1 < len(spans):
            self._begin(self._leg + 1, spans[self._leg + 1])
            return step
        self._leg = -1
        return int(self._marks[np.searchsorted(self._marks, step, side="right")])

    def _try(self, start: float, end: float) -> None:
        """Try one step of every path in a leg."""
        within, stage_at = self._slopes(start, end)
        if self._stage is None:  # counted before the state was saved
            self._stage = self._here(within, stage_at)
        tried, good, x, move, stages = attempt(
            self.steps, self.x, self.heads.D, end, self._stage, within, stage_at
        )
        for path in self.steps.stuck:
            self._stop(path, "no step is short enough for the tolerances of Dopri5")
        self._check_at(self._stage.terms)
        if self._taken is not None and good.all():
            self._taken(0, tried.t, tried.dt, x, move, stages)
        if self.symmetric:
            self.heads.check_symmetric(float(self.steps.time.max()), _ASYMMETRIC)
        if self.problem.save.budget:
            terms = [{name: of[good] for name, of in stage.terms.items()} for stage in stages]
            self.budget.advance(terms, self.scheme.weights, tried.dt[good], tried.rows[good])

    def _spans(self, step: int) -> list[tuple[float, float]]:
        """Return the legs from a recorded step to the next; beyond the end to one more step."""
        after = self._marks[self._marks > step]
        following = int(after[0]) if after.size else step + 1
        return legs(step * self.problem.dt, following * self.problem.dt, self._breaks)

    def _begin(self, leg: int, span: tuple[float, float]) -> None:
        self._leg = leg
        self._stage = self._here(*self._slopes(*span))
        self.steps.evaluations += 1
        self._check_at(self._stage.terms)

    def _slopes(self, start: float, end: float) -> tuple[Drift, StageAt]:
        """Return the drift of the heads, and stages of some paths at separate times, in a leg."""
        values_at = self.heads.values(start)

        def stage_at(
            times: NDArray[np.float64], x: NDArray, D: NDArray, drift: NDArray | None
        ) -> Stage:
            tables = [values_at(float(t)) for t in times]
            values = None if tables[0] is None else np.array(tables)
            velocity, terms = self._evaluate(values, x, D, drift, None, None)
            return Stage(velocity, {name: of.copy() for name, of in terms.items()}, drift)

        return self.heads.within(start, end - start), stage_at

    def _here(self, within: Drift, stage_at: StageAt) -> Stage:
        """Return the stage where each path is."""
        D, times = self.heads.D, self.steps.time
        return stage_at(times, self.x, D, within(D, times))

    def _check_at(self, terms: Terms) -> None:
        """Mark the paths as lost that have left the range in which their numbers are meaningful."""
        good = np.isfinite(terms["speed_sq"]) & (terms["max_score"] <= MAX_SCORE)
        for bad in np.flatnonzero(~good & ~self.paths.lost).tolist():
            self._stop(bad, "the run blows up", float(terms["max_score"][bad]))
        self._warn_overflow(float(self.steps.time.max()), terms)

    def _stop(self, place: int, what: str, score: float | None = None) -> None:
        path, time = self.numbers[place], float(self.steps.time[place])
        D = self.heads.D[place]
        if score is None or not np.isfinite(D).all():
            score = float(np.linalg.norm(D, axis=(1, 2)).max())
        text = (
            f"{what} at time {time:g} in path {path}: scores reach |D^T x| = {score:.4g}; take "
            "weaker heads or an earlier t_final, a larger rtol, or a scheme of steps dt such as "
            "'rk4'; a law whose drift jumps must list the times in its breaks()"
        )
        self.lose(place, BlowUpError(text, time=time, path=path, score=score))


@dataclass(frozen=True, eq=False)
class ParticleRun(driver.Runnable):
    """Run of a problem, as the driver of all solvers computes it."""

    problem: Problem

    @property
    def plan(self) -> Plan:
        """Sizes and options of the run for the driver."""
        problem, compute = self.problem, self.problem.compute
        return Plan(
            steps=problem.steps,
            paths=problem.paths,
            seed=problem.seed,
            batch=self._batch(),
            label=f"{problem.heads} head{'s' if problem.heads > 1 else ''}",
            threads=compute.threads,
            checkpoint_every=compute.checkpoint_every,
            stop_at_blow_up=compute.stop_at_blow_up,
            in_parts=problem.in_parts,
        )

    def _batch(self) -> int:
        """Return how many paths are computed together: as asked for, or as fit in memory."""
        problem = self.problem
        if problem.compute.batch is not None:
            return min(problem.compute.batch, problem.paths)
        n, d = problem.x0.shape[-2:]
        running_sums = min(problem.heads, 8) * n * (2 * d + 10)
        stages = 0 if problem.control is None else problem.scheme.stages
        per_path = 8 * ((6 + stages) * n * d + (8 + stages) * problem.heads * d * d)
        per_path += 8 * (running_sums + 8 * 1024)
        return max(1, min(problem.paths, _BATCH_BYTES[problem.compute.backend] // per_path))

    def layout(self) -> RunLayout:
        """Return the sizes of the run."""
        return self.problem.layout()

    def config(self) -> dict[str, Any]:
        """Return the run as JSON."""
        return self.problem.config()

    def parts(self) -> dict[str, Any]:
        """Return the parts of the configuration that may be custom."""
        return {"law": law_config(self.problem.law), "flow": flow_config(self.problem.flow)}

    def start(self, store: Store) -> None:
        """Write the initial state."""
        names = self.layout().names
        if "initial_tokens" in names:
            store.write("initial_tokens", (), self.problem.x0)
        if "initial_heads" in names:
            store.write("initial_heads", (), self.problem.scores)

    def total(self) -> NDArray[np.float64]:
        """Return zeros for the sum of the tokens over the paths, at every snapshot."""
        return np.zeros((len(self.problem.snapshot_steps), *self.problem.x0.shape[-2:]))

    def solver(self, first: int, last: int, paths: Paths, total: NDArray | None) -> Batch:
        """Return the solver of the paths first <= p < last at time 0."""
        kind = Batch if self.problem.control is None else AdaptiveBatch
        return kind(self.problem, paths, total)
