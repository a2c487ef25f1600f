"""Time stepping of heads, for one path or many (docs/theory/discretisation.md).

    D <- D + f dt + sigma dW_sym,

a step of strong order 1.5 for a law with additive noise, or a Runge-Kutta step for a law without
noise, whose length may be chosen by its error; after the step the heads may jump. No head law
depends on the tokens, so that the heads of a run can be computed in advance (`HeadWalk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.adaptive import AdaptiveSteps, Dopri5, Sizes, as_scheme, legs
from wflow._core.checks import SchemeName, count_steps, positive, shown, whole
from wflow._core.errors import BlowUpError, InputError
from wflow._core.memory import check_memory
from wflow._core.rng import INITIAL_HEADS, JUMPS, NOISE, NOISE_MEAN, CounterNormals
from wflow._core.tableaux import Tableau, Times, moved, with_rows
from wflow.heads.laws import QKV, Frozen, HeadLaw, checked, start_of
from wflow.heads.matrices import Matrices, as_matrices, is_symmetric

# One step of the heads
# ---------------------


Drift = Callable[[Matrices, Any], Matrices | None]  # of heads at a time, or at times (paths,)


@dataclass
class HeadStep:
    """Increment of the heads in a step from t to t + dt; the heads themselves are not changed.

    Attributes
    ----------
    D : heads at t, (paths, heads, d, d)
    t, dt : start and length, numbers, or arrays (paths,) where they differ between paths
    within : (D, time) -> drift at a time within the step
    drift : f at t, per unit time, (paths, heads, d, d); None for zero
    noise : sigma dW of the whole step, (paths, heads, d, d); None for zero
    sigma2 : variance of the noise per unit time, (paths, heads); None without noise
    mean_noise : mean over the step of the noise since t, (paths, heads, d, d); None for zero
    slopes : drifts of the stages so far, `drift` first
    """

    D: Matrices
    t: Times
    dt: Times
    within: Drift
    drift: Matrices | None
    noise: Matrices | None = None
    sigma2: NDArray[np.floating] | None = None
    mean_noise: Matrices | None = None
    slopes: list[Matrices | None] = field(init=False)

    def __post_init__(self) -> None:
        self.slopes = [self.drift]

    def stage(
        self, node: float, row: Sequence[float], share: float = 0.0
    ) -> tuple[Matrices, Matrices | None]:
        """Return heads D + dt sum_j row[j] f_j + share mean_noise of a stage, and their drift.

        The drift is that at t + node dt.
        """
        D = self.inner(row, share)
        self.slopes.append(self.within(D, self.t + node * self.dt))
        return D, self.slopes[-1]

    def inner(self, row: Sequence[float], share: float = 0.0) -> Matrices:
        """Return the heads of a stage, of the slopes of the stages before it."""
        D = moved(self.D, self.dt, row, self.slopes[: len(row)])
        return D if self.mean_noise is None or not share else D + share * self.mean_noise

    def end(self, weights: Sequence[float]) -> Matrices:
        """Return the heads D + dt sum_i weights[i] f_i + noise at the end of the step."""
        D = moved(self.D, self.dt, weights, self.slopes)
        return D if self.noise is None else D + self.noise

    def errors(self, control: Dopri5, end: Matrices) -> Sizes:
        """Return the errors (paths,) of heads `end`, in units of what the tolerances allow."""
        weights = control.tableau.error_weights
        off = moved(np.zeros_like(self.D), self.dt, weights, self.slopes)
        return control.sizes(off, self.D, end)

    def bend(self) -> Matrices:
        """Return the change of the drift from the first stage to the second."""
        return moved(np.zeros_like(self.D), 1.0, (-1.0, 1.0), self.slopes)


class HeadProcess:
    """Heads D (paths, heads, d, d) of a batch of paths, moved by their law.

    The random numbers are those of (seed, path, step): the heads of a path do not depend on the
    other paths of the batch.

    Parameters
    ----------
    law : the law of the heads
    start : heads at time 0, (heads, d, d) for all paths
    seed : key of the random numbers
    paths : numbers of the paths
    dtype : "float64" or "float32"

    Source: docs/theory/head_laws.md; [MHT] section 6.
    """

    def __init__(
        self,
        law: HeadLaw,
        start: Matrices,
        *,
        seed: int,
        paths: Sequence[int],
        dtype: str = "float64",
    ) -> None:
        self.law, self.paths = law, paths
        self._checked = checked(law, start.shape)
        self._symmetric = law.symmetric and is_symmetric(start)
        self._normals = CounterNormals(seed)
        self.D: Matrices = self._copied(
            np.broadcast_to(np.asarray(start, dtype), (len(paths), *start.shape))
        )

    def _copied(self, D: Matrices) -> Matrices:
        """Copy the heads of all paths, heads at rest only once: nothing may write into these.

        Others are in C order whatever the number of paths, so that sums are bitwise identical.
        """
        if not isinstance(self.law, Frozen) or len(D) == 0:
            return np.array(D, order="C")
        one = np.array(D[0], order="C")
        # A view that is not writeable would be copied for the compiled code at every evaluation.
        return np.lib.stride_tricks.as_strided(one, D.shape, (0, *one.strides))

    def restore(self, D: Matrices) -> None:
        """Continue with the heads of a checkpoint."""
        self.D = self._copied(D)

    def begin(self, step: int, t: float, dt: float, scheme: Tableau) -> HeadStep:
        """Return the step from t to t + dt, at its left end.

        Parameters
        ----------
        step : its number, by which its random numbers are drawn
        scheme : one of several stages sees the drift as the law gives it within the step, one of
            a single stage the drift of the law's own step
        """
        law, within = self._checked, self._checked.drift_within(t, dt)
        normals = None if law.deterministic else self._draw(step, NOISE)
        drift: Matrices | None
        if scheme.additive:
            others = None if law.deterministic else self._draw(step, NOISE_MEAN)
            move = law.additive_step(self.D, t, dt, normals, others)
            if not law.deterministic:
                within = self._additive(within, t)
        else:
            move = law.step(self.D, t, dt, normals)
        own = scheme.stages == 1 or (scheme.additive and not law.deterministic)
        drift = move.drift if own else within(self.D, t)
        return HeadStep(self.D, t, dt, within, drift, move.noise, move.sigma2, move.mean_noise)

    def _draw(self, step: int, purpose: int) -> Matrices:
        return self._normals.draw_paths(
            self.D.shape[1:], paths=self.paths, step=step, purpose=purpose
        )

    def _additive(self, within: Drift, t: float) -> Drift:
        """Return the drift within a step from t, refused where the noise depends on D."""

        def size(D: Matrices) -> NDArray[Any]:
            found = self._checked.diffusion(D, t)
            return np.zeros(D.shape[:2]) if found is None else found

        here = size(self.D)

        def drift(D: Matrices, time: Any) -> Matrices | None:
            if not np.array_equal(size(D), here, equal_nan=True):
                raise InputError(
                    f"the diffusion of {type(self.law).__name__} depends on the heads, and a "
                    "scheme of strong order 1.5 needs additive noise: use scheme='euler'"
                )
            return within(D, time)

        return drift

    def breaks(self) -> NDArray[np.float64]:
        """Return the increasing times at which adaptive steps end."""
        return self._checked.breaks()

    def within(self, t: float, dt: float) -> Drift:
        """Return the drift without noise from t to t + dt: a function of D and times (paths,)."""
        drift = self._checked.drift_within(t, dt)

        def at(D: Matrices, times: NDArray[np.float64]) -> Matrices | None:
            drifts = [drift(D[k : k + 1], float(time)) for k, time in enumerate(times)]
            if all(f is None for f in drifts):
                return None
            return np.concatenate(
                [np.zeros_like(D[:1]) if f is None else f for f in drifts], dtype=D.dtype
            )

        return at

    def values(self, t: float) -> Callable[[float], Matrices | None]:
        """Return the value matrices as the stages of a step from t see them; None for none."""
        return self._checked.values_within(t)

    def jump(self, step: int, t: float, dt: float) -> tuple[list[int], Matrices]:
        """Apply the jumps within the step from t to t + dt, right after it.

        Returns the places in the batch of the paths that jump, and the heads of all paths before.
        """
        before = self.D
        if not self.law.jumps:
            return [], before
        after = {}
        for place in np.flatnonzero(np.isfinite(before).all(axis=(1, 2, 3))).tolist():
            generator = None
            if not self.law.deterministic:
                generator = self._normals.generator(self.paths[place], step, JUMPS)
            heads = self._checked.jump(before[place], t, dt, generator)
            if heads is not None:
                after[place] = heads
        if after:
            self.D = before.copy()
            self.D[list(after)] = list(after.values())
        return list(after), before

    def advance(self, step: int, t: float, dt: float, scheme: Tableau) -> None:
        """Compute a whole step without tokens."""
        move = self.begin(step, t, dt, scheme)
        for stage in range(1, scheme.stages):
            move.stage(*scheme.row(stage))
        self.D = move.end(scheme.weights)
        self._check(t + dt)
        self.jump(step, t, dt)

    def advance_adaptively(self, steps: AdaptiveSteps, start: float, end: float) -> None:
        """Move without tokens from start to end, by steps chosen by their error."""
        within = self.within(start, end - start)
        drift = within(self.D, steps.time)
        if not steps.begun:
            self._choose_first(steps, end, within, drift)
        while (steps.time < end).any():
            drift = self._attempt(steps, end, within, drift)
            self.D[steps.stuck] = np.nan
            self._check(float(steps.time.max()))
        self.jump(0, start, end - start)  # of a law without random numbers

    def _attempt(
        self, steps: AdaptiveSteps, end: float, within: Drift, drift: Matrices | None
    ) -> Matrices | None:
        """Try one step of every path, whose drift is `drift`; return the drift at its end."""
        tableau, tried = steps.control.tableau, steps.propose(end)
        before = self.D[tried.rows]
        with np.errstate(over="ignore", invalid="ignore"):
            first = None if drift is None else drift[tried.rows]
            move = HeadStep(before, tried.t, tried.dt, within, first)
            for stage in range(1, tableau.stages):
                move.stage(*tableau.row(stage))
            after = move.end(tableau.weights)
            good = steps.judge(tried, move.errors(steps.control, after))
        if after is not before:
            self.D[tried.rows[good]] = after[good]
        last = move.slopes[-1]
        return with_rows(drift, tried.rows[good], None if last is None else last[good], len(self.D))

    def _choose_first(
        self, steps: AdaptiveSteps, end: float, within: Drift, drift: Matrices | None
    ) -> None:
        sizes = steps.control.sizes

        def bend(h: Sizes) -> Sizes:
            move = HeadStep(self.D, steps.time, h, within, drift)
            move.stage(1.0, (1.0,))
            return sizes(move.bend(), self.D)

        moving = np.broadcast_to(sizes(drift, self.D), len(self.D))
        steps.choose_first(end, sizes(self.D, self.D), moving, bend)

    def _check(self, t: float) -> None:
        self.check_finite(t)
        if self._symmetric:
            self.check_symmetric(t)

    def check_finite(self, t: float) -> None:
        """Raise BlowUpError for heads that have left the finite numbers before time t."""
        if not np.isfinite(self.D).all():
            good = np.isfinite(self.D).all(axis=(1, 2, 3))
            path = int(self.paths[int(np.argmin(good))])
            raise BlowUpError(
                f"the heads leave the finite numbers before time {t:g} in path {path}; take "
                "a smaller dt, or a weaker drift",
                time=t,
                path=path,
                score=float("inf"),
            )

    def check_symmetric(self, t: float, remedy: str = "") -> None:
        """Raise InputError for heads that a law has made asymmetric before time t.

        remedy : what else to do, for the message
        """
        if not is_symmetric(self.D) and np.isfinite(self.D).all():
            raise InputError(
                f"the law {type(self.law).__name__} made heads asymmetric before time {t:g}, but "
                "says that it keeps them symmetric; mend its drift, or give it "
                f"symmetric=False{remedy}"
            )


# Initial heads, and the schemes that fit a law
# ---------------------------------------------


def as_law(law: Any, advice: str = "") -> HeadLaw:
    """Check that an argument is a head law.

    Parameters
    ----------
    law : what was given
    advice : what to do where it is none, for the message
    """
    if not isinstance(law, HeadLaw):
        if not advice and isinstance(law, type) and issubclass(law, HeadLaw):
            advice = f"; this is the class: make a law of it, {law.__name__}(...)"
        raise InputError(
            f"law is {shown(law)}: expected a wflow.heads law such as OrnsteinUhlenbeck{advice}"
        )
    return law


def check_scheme(scheme: Tableau, law: HeadLaw, name: str = "") -> None:
    """Raise InputError for a scheme that cannot move the heads of a law.

    name : what the caller calls the scheme, if not by its own name
    """
    name = name or scheme.name
    if law.jumps and not law.deterministic and scheme.stages > 1:
        raise InputError(
            f"scheme {name!r} needs heads without random jumps, whose times within a step it does "
            "not know; use scheme='euler' (Euler-Maruyama)"
        )
    if not (law.deterministic or scheme.admits_noise):
        raise InputError(
            f"scheme {name!r} needs a deterministic head law: its order holds for smooth "
            "heads alone; with noise use scheme='euler' (Euler-Maruyama), or scheme='sra1' where "
            "the noise is additive, or set sigma2 to 0"
        )
    steps_exactly = scheme.stages == 1 or (scheme.additive and scheme.stages == 2)
    if not steps_exactly and getattr(law, "exact", False):
        raise InputError(
            f"exact=True replaces the step of the heads: use 'euler' or 'sra1', not {name!r}"
        )
    kind = type(law)
    own, additive = (
        next(place for place, cls in enumerate(kind.__mro__) if method in vars(cls))
        for method in ("step", "additive_step")
    )
    if scheme.additive and not law.deterministic and own < additive:
        raise InputError(
            f"the law {kind.__name__} has a step of its own, and {name!r} does not take it: "
            "use scheme='euler', or give the law an additive_step"
        )


def initial_heads(
    heads: int | ArrayLike | QKV | None, law: HeadLaw, d: int, seed: int
) -> tuple[Matrices, Matrices | None, bool]:
    """Return scores and values (heads, d, d) at time 0, and whether the seed drew them.

    Raises
    ------
    InputError
        For heads that do not fit the law or tokens of dimension d.
    """
    scores, values, sampled = _given(heads, law, d, seed)
    law.check(len(scores), d)
    if scores.shape[1:] != (d, d):
        raise InputError(
            f"the law {type(law).__name__} prescribes heads of shape {scores.shape}, expected "
            f"(heads, {d}, {d}) for tokens of dimension {d}"
        )
    return scores, values, sampled


def _given(
    heads: int | ArrayLike | QKV | None, law: HeadLaw, d: int, seed: int
) -> tuple[Matrices, Matrices | None, bool]:
    prescribed = start_of(law)
    if prescribed is not None:
        scores, values = prescribed
        count = len(scores)
        if heads is not None and not (_is_count(heads) and whole(heads, "heads") == count):
            raise InputError(f"the law prescribes its {count} heads; leave heads out")
        return scores, values, False
    if heads is None:
        raise InputError("heads is missing: give their number or an array (heads, d, d)")
    if isinstance(heads, QKV):
        scores, values = heads.matrices()
    elif _is_count(heads):
        count = whole(heads, "heads")
        check_memory(8 * 8 * count * d * d, f"{count} heads in R^{d}", "take fewer")
        return draw_heads(count, d, seed), None, True
    else:
        scores, values = as_matrices(heads, "heads"), None
    if scores.ndim != 3 or scores.shape[-1] != d:
        raise InputError(
            f"heads have shape {scores.shape}, expected (heads, {d}, {d}) for tokens of "
            f"dimension {d}"
        )
    return scores, values, False


def _is_count(heads: Any) -> bool:
    try:
        return np.ndim(heads) == 0
    except Exception:  # lists of different lengths, and whatever an object does
        return False


def draw_heads(heads: int, d: int, seed: int) -> Matrices:
    """Return the initial heads D_h(0) = Z + Z^T, (heads, d, d), of a seed."""
    z = CounterNormals(seed).draw((heads, d, d), path=0, step=0, purpose=INITIAL_HEADS)
    return z + np.swapaxes(z, -1, -2)


# Heads in advance
# ----------------


class HeadWalk:
    """Heads of one path without tokens, in blocks of `every` steps: those of `wflow.solve`.

    Parameters
    ----------
    law, heads, dt, seed, scheme : as in `wflow.solve`. The adaptive steps of "dopri5" follow the
        heads alone, so that they are those of `wflow.solve` up to the tolerances
    d : dimension of the tokens
    path : number of the Monte Carlo path
    every : steps of a stride

    Attributes
    ----------
    start, sampled : initial heads (heads, d, d), and whether they were drawn from the seed
    law, dt, seed, path, every : as given
    scheme : its name or its configuration

    Raises
    ------
    InputError
        For an argument that cannot be used; for (Q, K, V) heads.

    Source: docs/theory/head_laws.md; [MHT] section 6.
    """

    def __init__(
        self,
        law: HeadLaw,
        *,
        heads: int | ArrayLike | QKV | None = None,
        d: int,
        dt: float,
        seed: int = 0,
        path: int = 0,
        scheme: SchemeName | Dopri5 | Tableau = "euler",
        every: int = 1,
    ) -> None:
        self.law, self.path = as_law(law), whole(path, "path", 0)
        self.dt, self.every = positive(dt, "dt"), whole(every, "every")
        self.seed = whole(seed, "seed", least=0)
        self._tableau, control = as_scheme(scheme)
        self.scheme = (control or self._tableau).config()
        d = whole(d, "d", 2, why="tokens live on the sphere S^(d-1)")
        self.start, values, self.sampled = initial_heads(heads, self.law, d, self.seed)
        check_scheme(self._tableau, self.law)
        if control is not None:
            control.check_rounding("float64")
        if values is not None:
            raise InputError(
                "general (Q, K, V) heads have separate score and value matrices and no energy: "
                "expected heads (heads, d, d)"
            )
        self._process = HeadProcess(self.law, self.start, seed=self.seed, paths=(self.path,))
        self._lengths = None if control is None else AdaptiveSteps(control, 1)

    @property
    def D(self) -> Matrices:
        """The heads (heads, d, d) now: a new array."""
        return self._process.D[0].copy()

    def advance(self, stride: int) -> Matrices:
        """Compute the block of steps of that number, counted from 0; return the heads at its end.

        Raises
        ------
        InputError
            For a law that makes heads asymmetric though its attribute `symmetric` is True.
        BlowUpError
            For heads that leave the finite numbers.
        """
        first, last, dt = stride * self.every, (stride + 1) * self.every, self.dt
        if self._lengths is None:
            for step in range(first, last):
                self._process.advance(step, step * dt, dt, self._tableau)
        else:
            for start, end in legs(first * dt, last * dt, self._process.breaks()):
                self._process.advance_adaptively(self._lengths, start, end)
        return self.D

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything needed to continue, arrays with an axis of one path."""
        return {"D": self._process.D} | (self._lengths.state() if self._lengths else {})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved state."""
        self._process.restore(state["D"])
        if self._lengths is not None:
            self._lengths.restore(state)


def head_path(
    law: HeadLaw, *, t_final: float, dt: float, every: int = 1, **how: Any
) -> Iterator[tuple[float, Matrices]]:
    """Yield times from 0 to t_final and the heads (heads, d, d) of one path at these times.

    Parameters
    ----------
    t_final : the end, a whole number of strides
    law, dt, every, how : arguments of `HeadWalk`

    Raises
    ------
    InputError
        For an argument that cannot be used, before anything is yielded.
    """
    walk = HeadWalk(law, dt=dt, every=every, **how)
    steps = count_steps(t_final, walk.dt)
    if steps % walk.every:
        raise InputError(
            f"every is {every}: expected a divisor of the {steps} steps of dt = {dt:g}"
        )
    strides = range(steps // walk.every)

    def path() -> Iterator[tuple[float, Matrices]]:
        yield 0.0, walk.D
        for stride in strides:
            yield (stride + 1) * walk.every * walk.dt, walk.advance(stride)

    return path()
