"""The problem that a run solves: all arguments of `wflow.solve`, checked, in one frozen object."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.adaptive import Dopri5, as_scheme
from wflow._core.checks import (
    Direction,
    FlowName,
    SchemeName,
    check_choice,
    count_steps,
    number,
    positive,
    shown,
    switch,
    whole,
)
from wflow._core.errors import InputError, RunFileError
from wflow._core.memory import check_memory
from wflow._core.tableaux import Tableau
from wflow.attention.cloud import on_sphere
from wflow.attention.flows import Flow, as_flow, flow_config
from wflow.heads.laws import QKV, HeadLaw, law_config
from wflow.heads.matrices import Matrices, as_matrices, is_symmetric
from wflow.heads.process import as_law, check_scheme, initial_heads
from wflow.kernels.evaluate import DIRECTIONS, Sums
from wflow.particles.options import Compute, SaveAt, option
from wflow.runs.schema import RunLayout

_ROUNDING = 1e-6  # of times in single precision, in units of t_final
_RECORDS = 100  # units of time of a run without dt
_GENERAL = "flow='softmax', or a wflow.Flow whose class has general_heads = True"


@dataclass(frozen=True, eq=False)
class Problem:
    """Definition of a run: what is computed, what is saved, and how.

    x0 (n, d) or (paths, n, d); scores and values (heads, d, d), values None for tied heads. In
    `save`, snapshots are times of steps, paths are distinct and in order, and budget is a bool; in
    `sums`, method and device are resolved for these tokens.
    """

    x0: NDArray[np.float64]
    law: HeadLaw
    scores: Matrices
    values: Matrices | None
    sampled_heads: bool
    steps: int
    dt: float
    paths: int
    seed: int
    flow: Flow
    direction: Direction
    scheme: Tableau
    control: Dopri5 | None  # of the lengths of steps; None: steps of dt
    causal: bool
    kappa: float
    save: SaveAt
    compute: Compute
    sums: Sums
    first_path: int = 0  # number of the first path: above 0 in a part of a run
    in_parts: bool = False  # whether this is a part of a run

    @property
    def heads(self) -> int:
        return len(self.scores)

    @property
    def record_steps(self) -> NDArray[np.int64]:
        """Steps at whose start the energy budget is recorded; the end of the run is always one."""
        regular = np.arange(0, self.steps + 1, self.save.every)
        return regular if regular[-1] == self.steps else np.append(regular, self.steps)

    @property
    def snapshot_steps(self) -> NDArray[np.int64]:
        """Steps at whose start tokens are kept."""
        assert self.save.snapshots is not None
        return np.rint(np.array(self.save.snapshots) / self.dt).astype(np.int64)

    def check_size(self, in_memory: bool) -> None:
        """Raise InputError for a run that holds more than fits into memory.

        In memory are its tables of times and paths, and the series and snapshots as well where no
        file takes them.
        """
        save = self.save
        records = self.steps // save.every + 2
        values = 4 * (self.steps // save.every + self.paths)
        if in_memory:
            series = (18 if save.budget else 2) * self.paths * records
            n, d = self.x0.shape[-2:]
            kept = (len(save.paths) + 1) * n * d
            kept += len(save.paths) * save.heads * self.heads * d * d
            values += series + len(self.snapshot_steps) * kept
        check_memory(
            8 * values,
            f"the run, {records:.3g} record times over {self.paths} paths of "
            f"{self.x0.shape[-2]} tokens with {self.heads} heads,",
            "raise save.every or dt, or take fewer paths, snapshots or tokens",
        )

    def part(self, first: int, last: int) -> Problem:
        """Return the problem of the paths first <= p < last, with the tokens of all of them kept.

        The sum over paths in `tokens_mean` is bitwise identical to that of the whole run only if
        it is computed from the tokens of single paths, in their order.
        """
        count = last - first
        heads = self.save.heads and any(first <= path < last for path in self.save.paths)
        return replace(
            self,
            x0=self.x0 if self.x0.ndim == 2 else self.x0[first:last],
            paths=count,
            save=replace(self.save, paths=tuple(range(count)), heads=heads),
            first_path=self.first_path + first,
            in_parts=True,
        )

    @property
    def noisy(self) -> bool:
        """Whether the Stratonovich integral of the work of the heads belongs to the budget."""
        return bool(self.save.budget) and not (self.law.deterministic or self.kappa)

    def layout(self) -> RunLayout:
        """Return the sizes of the run's file."""
        return RunLayout(
            paths=self.paths,
            times=self.record_steps * self.dt,
            snapshots=self.snapshot_steps * self.dt,
            snapshot_paths=np.array(self.save.paths, dtype=np.int64),
            tokens=self.x0.shape[-2],
            axes=self.x0.shape[-1],
            heads=self.heads,
            save_heads=self.save.heads,
            budget=bool(self.save.budget),
            per_path_x0=self.x0.ndim == 3,
            initial_heads=self.values is None,
            diffusion=self.kappa > 0,
            noisy=self.noisy,
            sum_error=self.sums.have_error,
            evaluations=self.control is not None,
        )

    def config(self) -> dict[str, Any]:
        """Return the run as JSON; arrays that the file holds are named by their digest."""
        heads: Any = self.heads
        if not self.sampled_heads:
            heads = array_config(self.scores)
            if self.values is not None:
                heads["values_sha256"] = _digest(self.values)
        return {
            "x0": array_config(self.x0),
            "law": law_config(self.law),
            "heads": heads,
            "t_final": self.steps * self.dt,
            "dt": self.dt,
            "paths": self.paths,
            "seed": self.seed,
            "flow": flow_config(self.flow),
            "direction": self.direction,
            "scheme": (self.control or self.scheme).config(),
            "causal": self.causal,
            **({"kappa": self.kappa} if self.kappa else {}),
            "save": asdict(self.save),
            # What decides on the bits.
            "compute": {"dtype": self.compute.dtype, **self.sums.config()},
        }


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options save and compute of the run that a configuration describes.

    Raises
    ------
    RunFileError
        For settings that `SaveAt` and `Compute` do not have.
    """
    given = as_given(config)
    try:
        return {"save": SaveAt(**given["save"]), "compute": Compute(**given["compute"])}
    except TypeError as error:
        raise RunFileError(f"the options of the run cannot be read: {error}") from None


def as_given(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run as arguments that make it again.

    It names no method where the sums were exact, and the start and the end where no snapshots were
    asked for, which belong to another end as well.
    """
    given = {"save": {}, "compute": {}, **config}
    save, compute = given["save"], given["compute"]
    if isinstance(save, dict) and save.get("snapshots") == [0.0, given.get("t_final")]:
        given["save"] = {key: save[key] for key in save if key != "snapshots"}
    if isinstance(compute, dict):
        given["compute"] = {"method": "exact"} | compute
    return given


def problem_of(
    x0: ArrayLike,
    law: HeadLaw,
    *,
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
) -> Problem:
    """Check the arguments of `wflow.solve` (documented there), and return their problem."""
    swapped = "; the arguments are swapped: give wflow.solve(x0, law, ...)"
    law = as_law(law, swapped if isinstance(x0, HeadLaw) else "")
    flow = as_flow(flow)
    check_choice("direction", direction, DIRECTIONS)
    tableau, control = as_scheme(scheme)
    causal = switch(causal, "causal")
    paths = whole(paths, "paths")
    seed = whole(seed, "seed", least=0)
    kappa = number(kappa, "kappa", least=0.0)
    dt = _unit_of_time(t_final, tableau, control) if dt is None else number(dt, "dt")
    steps = count_steps(t_final, dt)
    save, compute = option(save, SaveAt, "save"), option(compute, Compute, "compute")

    tokens = on_sphere(x0)
    if tokens.ndim not in (2, 3) or (tokens.ndim == 3 and len(tokens) != paths):
        raise InputError(
            f"x0 has shape {tokens.shape}, expected (n, d), or (paths, n, d) with paths = {paths}"
        )
    d = tokens.shape[-1]
    scores, values, sampled = initial_heads(heads, law, d, seed)
    check_scheme(tableau, law)
    _check_diffusion(kappa, tableau, dt, d)
    sums = Sums(compute.method, compute.tolerance, compute.backend, compute.device)
    sums = sums.resolved(tokens.shape[-2], d, causal)
    if control is not None:
        _check_tolerance(control, compute.dtype, sums)
    if values is not None and not flow.general_heads:
        raise InputError(f"general (Q, K, V) heads follow {_GENERAL}, not {flow.name!r}")
    if causal and not flow.general_heads:
        raise InputError(f"the causal mask belongs to {_GENERAL}, not {flow.name!r}")
    return Problem(
        x0=tokens,
        law=law,
        scores=scores,
        values=values,
        sampled_heads=sampled,
        steps=steps,
        dt=dt,
        paths=paths,
        seed=seed,
        flow=flow,
        direction=direction,
        scheme=tableau,
        control=control,
        causal=causal,
        kappa=kappa,
        save=replace(
            save,
            snapshots=_snapshots(save, steps, dt),
            paths=_snapshot_paths(save, paths),
            budget=_has_budget(save, scores, values, law, causal),
        ),
        compute=compute,
        sums=sums,
    )


def problem_of_task(task: Mapping[str, Any]) -> Problem:
    """Return the problem of a task, the arguments of `wflow.solve`; `out` is ignored."""
    where = ("out", "if_exists", "progress")
    return problem_of(**{name: value for name, value in task.items() if name not in where})


def _unit_of_time(t_final: float, scheme: Tableau, control: Dopri5 | None) -> float:
    """Return the unit of recorded times of a run without dt, whose scheme chooses its steps."""
    if control is None:
        raise InputError(
            f"dt is missing: scheme {scheme.name!r} takes steps of dt; give a time step, or "
            "scheme='dopri5', which chooses its steps"
        )
    return positive(t_final, "t_final") / _RECORDS


def _check_diffusion(kappa: float, scheme: Tableau, dt: float, d: int) -> None:
    """Refuse noise on the tokens that the scheme or the step cannot carry."""
    if kappa and scheme.noise != "ito":
        raise InputError(
            f"scheme {scheme.name!r} needs tokens without noise; with kappa = {kappa:g} use "
            "scheme='euler' (Euler-Maruyama)"
        )
    spread = 2 * kappa * dt * (d - 1)
    if spread > 1:
        raise InputError(
            f"with kappa = {kappa:g} a step of dt = {dt:g} would scatter tokens by "
            f"{math.sqrt(spread):.3g} radians; take dt <= {0.1 * dt / spread:.3g}"
        )


def _check_tolerance(control: Dopri5, dtype: str, sums: Sums) -> None:
    """Refuse tolerances below the rounding of the tokens or the error of the sums."""
    control.check_rounding(dtype)
    if sums.have_error and control.rtol < 10 * sums.tolerance:
        raise InputError(
            f"rtol of Dopri5 is {control.rtol:g}, and sums by series are off by up to tolerance = "
            f"{sums.tolerance:g}: expected at least ten times that; take a smaller tolerance, "
            "method='exact' or a larger rtol"
        )


def _has_budget(
    save: SaveAt, scores: Matrices, values: Matrices | None, law: HeadLaw, causal: bool
) -> bool:
    """Return whether the run keeps the energy budget; refuse one that does not exist."""
    reason = None
    if values is not None:
        reason = "general (Q, K, V) heads are no gradient: they have no energy"
    elif causal:
        reason = "the causal mask makes the pair interaction one-sided: there is no energy"
    if reason is not None:
        if save.budget:
            raise InputError(
                f"{reason}; give save=SaveAt(budget=False) to record speeds and tokens"
            )
        return False
    if save.budget is False:
        return False
    if not is_symmetric(scores):
        as_matrices(scores, "heads", symmetric=True)
    if not law.symmetric:
        raise InputError(
            f"the law {type(law).__name__} does not keep heads symmetric, and the energy needs "
            "D = D^T; give save=SaveAt(budget=False) to simulate without an energy"
        )
    return True


def _snapshots(save: SaveAt, steps: int, dt: float) -> tuple[float, ...]:
    """Return the times of the steps nearest to the requested snapshots, once each and in order."""
    if save.snapshots is None:
        return (0.0, steps * dt)
    times, end = np.array(save.snapshots), steps * dt
    if np.any(times < -_ROUNDING * end) or np.any(times > (1 + _ROUNDING) * end):
        raise InputError(
            f"save.snapshots {shown(list(save.snapshots))} must lie between 0 and {end:g}"
        )
    nearest = np.clip(np.rint(times / dt), 0, steps).astype(np.int64)
    return tuple((np.unique(nearest) * dt).tolist())


def _snapshot_paths(save: SaveAt, paths: int) -> tuple[int, ...]:
    if any(path >= paths for path in save.paths):
        raise InputError(
            f"save.paths {shown(list(save.paths))} must be numbers from 0 to {paths - 1}"
        )
    return tuple(sorted(set(save.paths)))


def array_config(array: NDArray[Any]) -> dict[str, Any]:
    """Return the entry of an array in a configuration; the file holds its values."""
    return {"shape": list(array.shape), "sha256": _digest(array)}


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
