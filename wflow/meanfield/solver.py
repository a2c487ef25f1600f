"""`solve`: the mean-field equation on a mesh, with heads, options and files as for particles."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import (
    Direction,
    FlowName,
    check_choice,
    number,
    positive,
    shown,
    switch,
)
from wflow._core.errors import BlowUpError, InputError
from wflow._core.memory import check_memory
from wflow.attention.cloud import warn_overflow
from wflow.attention.flows import FLOWS, Flow, as_flow
from wflow.heads.laws import HeadLaw
from wflow.heads.process import HeadProcess, HeadStep, as_law, check_scheme
from wflow.kernels.evaluate import DIRECTIONS
from wflow.meanfield.densities import as_density, as_mesh, as_quadrature, entropy
from wflow.meanfield.fields import DensityStage, Setting, TooLong
from wflow.meanfield.mesh import Circle, Quadrature
from wflow.meanfield.spectral import Modes, Spectral, resolved
from wflow.meanfield.volumes import Volumes
from wflow.particles.budget import Budget, Terms
from wflow.particles.integrate import ParticleRun
from wflow.particles.options import Compute, SaveAt
from wflow.particles.problem import Problem, array_config, problem_of
from wflow.runs import driver
from wflow.runs.driver import IfExists, Paths, Plan, State, place_of, run
from wflow.runs.schema import DensityLayout
from wflow.runs.store import Store

if TYPE_CHECKING:
    import xarray

SchemeName = Literal["euler", "sra1", "ssp2", "ssp3", "imex", "heun", "rk4"]
Floats = NDArray[np.floating]

_RECORDS = 100  # units of time of a run without dt
_SAFETY = 0.9  # share of the bound that a step of chosen length takes, for its later stages
_SHORTEST = 1e-12  # share of a unit of time below which no step is worth it


@dataclass(frozen=True, eq=False)
class MeanField(driver.Runnable):
    """A run of the mean-field equation as it is asked for.

    particles : the run of tokens at the centres of the cells, with the same heads and options; its
        steps are the units of time in which results are recorded
    chosen : whether steps within a unit are chosen by their bound
    """

    particles: Problem
    mesh: Quadrature
    density: Floats
    kappa: float
    scheme: SchemeName
    reconstruct: bool
    chosen: bool

    @property
    def plan(self) -> Plan:
        """What the driver needs to know of the run, whose paths share their steps."""
        return replace(
            ParticleRun(self.particles).plan, label="mean field", batch=self.particles.paths
        )

    def parts(self) -> dict[str, Any]:
        """The parts of the configuration that may be custom."""
        return ParticleRun(self.particles).parts()

    def start(self, store: Store) -> None:
        """Write the mesh and the initial state."""
        store.write("centres", (), self.mesh.centres)
        store.write("areas", (), self.mesh.areas)
        store.write("initial_density", (), self.density)
        if "initial_heads" in self.layout().names:
            store.write("initial_heads", (), self.particles.scores)

    def solver(self, first: int, last: int, paths: Paths, total: Floats | None) -> Densities:
        """The densities of some paths at time 0."""
        return Densities(self, paths)

    def layout(self) -> DensityLayout:
        """Sizes of the run's file."""
        own = {"cells": self.mesh.cells, "errors": self.space.SERIES, "evaluations": self.chosen}
        own |= {"diffusion": self.kappa > 0, "per_path_x0": self.density.ndim == 2, "noisy": False}
        run = self.particles.layout()
        return DensityLayout(**{one.name: getattr(run, one.name) for one in fields(run)} | own)

    @property
    def space(self) -> type[Volumes | Spectral]:
        """How the equation is solved in space."""
        return _space(self.mesh)

    def config(self) -> dict[str, Any]:
        """The run as JSON; arrays that the file holds are named by their digest."""
        config = self.particles.config()
        del config["x0"], config["causal"]
        mesh: dict[str, Any] = {"kind": type(self.mesh).__name__, "cells": self.mesh.cells}
        if isinstance(self.mesh, Modes):
            mesh["degree"] = self.mesh.degree
        elif not (isinstance(self.mesh, Circle) or getattr(self.mesh, "icosahedral", False)):
            mesh["points"] = array_config(self.mesh.centres)
        own = {"mesh": mesh, "density": array_config(self.density), "kappa": self.kappa}
        own |= {"scheme": self.scheme, "reconstruct": self.reconstruct}
        return config | own | ({"steps": "chosen"} if self.chosen else {})


def solve(
    density: Callable[[Floats], Any] | ArrayLike,
    law: HeadLaw,
    *,
    mesh: Quadrature,
    heads: int | ArrayLike | None = None,
    t_final: float,
    dt: float | None = None,
    paths: int = 1,
    seed: int = 0,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    kappa: float = 0.0,
    scheme: SchemeName | None = None,
    reconstruct: bool | None = None,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    progress: bool = False,
    save: SaveAt = SaveAt(),
    compute: Compute = Compute(),
) -> xarray.Dataset:
    r"""Solve the mean-field equation of multi-head attention on the circle or the sphere.

    The equation is the limit of `wflow.solve` for infinitely many tokens. Heads are drawn in the
    same way: a run of particles with the same law, heads, dt and seed has the same heads.

    Parameters
    ----------
    density : callable or array_like
        Initial density: a function of points (cell, axis), which is evaluated at the centres,
        values over the cells, (cell,) or (paths, cell), or tokens, (n, axis) or (paths, n, axis),
        whose masses go to the cells they lie in. It is given unit mass.
    law : wflow.heads.HeadLaw
        How the heads move.
    mesh : Mesh or Modes
        `Circle` or `Sphere` for finite volumes; `Fourier` or `Harmonics` for the spectral method,
        whose densities must be smooth.
    heads : int, array_like of shape (heads, d, d), or wflow.heads.QKV, optional
        Number of heads, or initial matrices, as in `wflow.solve`.
    t_final : float
        End time.
    dt : float, optional
        Time step. None chooses steps below the bound of the scheme, and counts time in units of
        t_final/100; for laws without noise and schemes with a bound.
    paths : int, default 1
        Number of Monte Carlo paths of the heads.
    seed : int, default 0
        Key of all random numbers, together with the numbers of path and step.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it.
    kappa : float, default 0.0
        Diffusion of the tokens per unit time.
    scheme : {"euler", "sra1", "ssp2", "ssp3", "imex", "heun", "rk4"}, optional
        Time stepping. Finite volumes: strong stability preserving schemes "euler", "ssp2" and
        "ssp3", of order 1, 2 and 3, whose steps have a bound, or "imex", of order 1, with
        velocities at the start of the step and densities at its end, without a bound. Spectral:
        "euler", "heun" and "rk4", of order 1, 2 and 4, the first two for kappa > 0. Both: "sra1",
        of strong order 1.5 under additive noise of the heads, with two thirds of the bound of
        "euler" in finite volumes, and for kappa > 0 in spectral ones. None is "ssp2" or "rk4" for
        laws without noise and "euler" for others.
    reconstruct : bool, optional
        Whether limited slopes lower the numerical diffusion of the fluxes. None does so for kappa =
        0; for kappa > 0 the fluxes then keep the free energy and the stationary states of
        "unnormalised", and have second order where ``|v|`` d is small beside kappa. For finite
        volumes with explicit schemes.
    out : str or pathlib.Path, optional
        Run file (HDF5) to write. Without it the result is kept in memory.
    if_exists : {"error", "overwrite", "resume"}, default "error"
        What happens where `out` exists already, as in `wflow.solve`.
    progress : bool, default False
        Whether to show a bar with the time left.
    save : wflow.SaveAt, default SaveAt()
        What is kept, and when; densities take the place of tokens.
    compute : wflow.Compute, default Compute()
        Method, tolerance, backend and device of the sums over the mesh, threads, and seconds
        between checkpoints. What is not such a sum is computed by NumPy.

    Returns
    -------
    xarray.Dataset
        The quantities of `wflow.solve`, with `density` (snapshot_path, snapshot, cell), its
        `entropy`, the `free_energy`, `centres` and `areas` of the cells, and `numerical_diffusion`
        or `spectral_tail`, which tell of the errors in space.

    Raises
    ------
    InputError
        For an argument that cannot be used, a density that modes do not resolve, and a step above
        the bound, which the message states.
    BlowUpError
        For the last two later on, and for heads that leave the range of numbers, in all paths, or
        with ``Compute(stop_at_blow_up=True)`` in one.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM, after the step in progress, if `out` is given.

    See Also
    --------
    wflow.solve : The particles.

    Notes
    -----
    With the velocity V of the flow [1]_,

    .. math:: \partial_t \rho + \operatorname{div}(\rho\,V[\rho]) = \kappa\,\Delta\rho .

    The fluxes through the faces of the mesh are those of Scharfetter and Gummel [2]_, which are
    upwind fluxes for kappa = 0. The mass is kept to rounding, and no density is negative for steps
    up to

    .. math:: \Delta t \le \min_i \frac{a_i}{\sum_j l_{ij} A_{ij}}, \qquad
        A_{ij} = \frac{\kappa}{d_{ij}} B\Bigl(-\frac{v_{ij} d_{ij}}{\kappa}\Bigr),\;
        B(z) = \frac{z}{e^z - 1} .

    With reconstruction the positive drifts count up to twice; "imex" has no bound, "sra1" two
    thirds of it.

    With `Fourier` and `Harmonics` the density is a polynomial of degree L, and Galerkin's equations
    are solved, the diffusion exactly [3]_. No mode grows in a uniform flow for steps up to

    .. math:: \frac{2.8}{L \max|V|} \;\text{(rk4)}, \qquad
        \frac{\sqrt 8\,\kappa}{\max|V|^2} \;\text{(heun)}, \qquad
        \frac{2\kappa}{\max|V|^2} \;\text{(euler)}.

    `spectral_tail` is the share of the highest quarter of the degrees; above 1e-3 the density is
    refused as not resolved.

    In the theory: :ref:`the mean-field equation <theory-mean-field>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 4.
    .. [2] Scharfetter and Gummel, *Large-signal analysis of a silicon Read diode oscillator*, IEEE
       Trans. Electron Devices 16 (1969).
    .. [3] Lawson, *Generalized Runge-Kutta processes for stable systems with large Lipschitz
       constants*, SIAM J. Numer. Anal. 4 (1967).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> from wflow import meanfield
    >>> mesh = meanfield.Circle(64)
    >>> run = meanfield.solve(
    ...     lambda x: 1 + 0.5 * x[:, 0], wflow.heads.Frozen(), mesh=mesh, heads=np.eye(2)[None],
    ...     t_final=0.1, kappa=0.1,
    ... )
    >>> bool(np.allclose(mesh.integrate(run.density[0]), 1))
    True
    """
    problem = _problem(
        density, law, mesh, heads, t_final, dt, paths, seed, flow, direction, kappa, scheme,
        reconstruct, save, compute,
    )  # fmt: skip
    return run(problem, out, if_exists, progress)


def problem_of_task(
    task: Mapping[str, Any], *, unit: float | None = None, as_is: bool = False
) -> MeanField:
    """The problem of a task, the arguments of `solve`; where it is kept is left aside.

    Parameters
    ----------
    task : the arguments
    unit : of time, where dt is None
    as_is : whether the density is that of a run, which is taken to the bit
    """
    bound = inspect.signature(solve).bind(**task)
    bound.apply_defaults()
    where = ("out", "if_exists", "progress")
    given = {name: value for name, value in bound.arguments.items() if name not in where}
    return _problem(**given, unit=unit, as_is=as_is)


def _problem(
    density, law, mesh, heads, t_final, dt, paths, seed, flow, direction, kappa, scheme,
    reconstruct, save, compute, unit=None, as_is=False,
) -> MeanField:  # fmt: skip
    """Check the arguments of `solve`."""
    mesh, law, flow = as_quadrature(mesh), as_law(law), as_flow(flow)
    space = _space(mesh)
    kappa = number(kappa, "kappa", least=0.0)
    if scheme is None:
        scheme = space.DEFAULT if law.deterministic else "euler"
    check_choice("scheme", scheme, space.SCHEMES)
    stepping = space.SCHEMES[scheme]
    may = space is Volumes and not stepping.implicit
    reconstruct = may and kappa == 0 if reconstruct is None else switch(reconstruct, "reconstruct")
    if reconstruct and not may:
        raise InputError(
            "reconstruct=True is for finite volumes with explicit schemes: leave it out with "
            f"{shown(mesh)} and scheme={scheme!r}"
        )
    chosen = dt is None
    if chosen:
        if not law.deterministic or stepping.implicit:
            why = "imex has no bound" if law.deterministic else "noise of the heads has steps of dt"
            raise InputError(f"dt is missing: {why}; give a time step")
        dt = positive(t_final, "t_final") / _RECORDS if unit is None else unit
    check_scheme(stepping.tableau, law, scheme)
    if space is Spectral and not law.deterministic and not kappa:
        raise InputError(
            f"the heads of {type(law).__name__} are noisy and kappa is 0, for which no scheme of "
            f"{shown(mesh)} has a stable step: take kappa > 0, or finite volumes (Circle, Sphere)"
        )
    compute = compute if isinstance(compute, Compute) else _no_options(compute)
    if compute.dtype != "float64" or compute.batch is not None:
        raise InputError(
            "the mean-field equation is solved in double precision, all paths together: leave out "
            "compute.dtype and compute.batch"
        )
    particles = problem_of(
        mesh.centres, law, heads=heads, t_final=t_final, dt=dt, paths=paths, seed=seed, flow=flow,
        direction=direction, scheme=stepping.tableau, save=save, compute=compute,
    )  # fmt: skip
    particles.check_size(in_memory=False)
    if as_is:
        start = np.asarray(density, float)
    else:
        start = as_density(density, mesh, particles.paths)
        start = resolved(start, mesh) if isinstance(mesh, Modes) else start
    faces = 60.0 * 3 * mesh.cells + 8.0 * mesh.cells * particles.heads * 2 * (mesh.dim + 2)
    check_memory(
        faces * particles.paths,
        f"{particles.paths} densities over {mesh.cells} cells with {particles.heads} heads",
        "take fewer paths, cells or heads",
    )
    return MeanField(particles, mesh, start, kappa, scheme, reconstruct, chosen)


def _space(mesh: Quadrature) -> type[Volumes | Spectral]:
    return Spectral if isinstance(mesh, Modes) else Volumes


def _no_options(given: Any) -> Compute:
    raise InputError(f"compute is {shown(given)}: expected a wflow.Compute")


class Densities(driver.Solver):
    """Densities, heads and budget of all paths at one time."""

    def __init__(self, problem: MeanField, paths: Paths) -> None:
        self.problem, self.mesh, self.paths = problem, problem.mesh, paths
        particles = problem.particles
        numbers = range(paths.first, paths.last)
        self.names = set(problem.layout().names)
        self.heads = HeadProcess(
            particles.law, particles.scores, seed=particles.seed, paths=numbers
        )
        self.budgeted = bool(particles.save.budget)
        symmetric = particles.values is None and (
            self.budgeted or (particles.law.symmetric and _symmetric(particles.scores))
        )
        setting = Setting(
            particles.flow, particles.direction, particles.sums, problem.kappa, len(numbers),
            symmetric, self.budgeted,
        )  # fmt: skip
        self.space: Any  # Spectral or Volumes, whose stages differ
        if isinstance(problem.mesh, Modes):
            self.space = Spectral(problem.mesh, setting, problem.scheme)
        else:
            mesh = as_mesh(problem.mesh)
            self.space = Volumes(mesh, setting, problem.scheme, problem.reconstruct)
        shared = problem.density if problem.density.ndim == 1 else problem.density[numbers]
        self.start = np.broadcast_to(shared, (len(numbers), self.mesh.cells))
        self.density = np.array(self.start, order="C")
        sign = DIRECTIONS[particles.direction]
        self.sign = sign
        self.budget = Budget(len(numbers), sign, diffusion=True)
        self.evaluations = np.zeros(len(numbers))
        self.length = math.inf  # of the last step that was chosen

    def state(self) -> State:
        return {
            "density": self.density, "D": self.heads.D, "evaluations": self.evaluations,
            "length": np.full(len(self.density), self.length), **self.budget.state(),
        }  # fmt: skip

    def restore(self, state: State) -> None:
        self.density, self.heads.D = state["density"], state["D"]
        self.evaluations, self.length = state["evaluations"], float(state["length"][0])
        self.budget.restore(state)

    def lose(self, path: int, now: float, text: str) -> None:
        """Give up a path, which rests at its start from now on and records nothing."""
        self.paths.lose(path, self._blow_up(path, now, text))

    def _blow_up(self, path: int, now: float, text: str) -> BlowUpError:
        return BlowUpError(text, time=now, path=path, score=self._score(path))

    def _score(self, path: int) -> float:
        """Norm of the largest head of a path."""
        return float(np.linalg.norm(self.heads.D[path], 2, axis=(1, 2)).max())

    def rest(self) -> None:
        """Put the paths that blew up where everything that they still take part in is finite."""
        lost = self.paths.lost
        self.density[lost] = self.start[lost]
        self.heads.D[lost] = self.problem.particles.scores

    def advance(self, step: int) -> int:
        """Evaluate and record at the start of a unit of time, then pass it (the last is none)."""
        if self.paths.lost.any():
            self.rest()
        particles = self.problem.particles
        unit = particles.dt
        now, end, last = step * unit, (step + 1) * unit, step == particles.steps
        first = True
        while first or (now < end and not last):
            left = end - now
            if self.problem.chosen:
                dt = left if left <= self.length else left / math.ceil(left / self.length)
            else:
                dt = unit
            move = self.heads.begin(step, now, dt, self.space.tableau)
            values = self.heads.values(now)
            stage = self._evaluate(values(now), self.density, move)
            self._check_finite(now, self.density, stage)
            if first:
                self._check(now, stage)
                self._record(step, stage)
                first = False
                if last:
                    break
            now = self._step(now, dt, end, move, values, stage, step)
        return step + 1

    def _step(self, now, dt, end, move, values, first: DensityStage, step: int) -> float:
        """One step from `now`, and the time after it."""
        chosen = self.problem.chosen  # steps of dt are held to the bound by the scheme
        lives = ~self.paths.lost
        limit = float(self.space.bound(first)[lives].min()) if chosen else math.inf
        while True:
            if chosen and dt > limit * _SAFETY:
                left = end - now
                if limit < _SHORTEST * self.problem.particles.dt:
                    bounds = np.where(lives, self.space.bound(first), np.inf)
                    raise self._refusal(now, bounds, step, dt)
                dt = left / math.ceil(left / (_SAFETY * limit))
                move = self.heads.begin(step, now, dt, self.space.tableau)
            try:
                later = functools.partial(self._later, now, dt, move, values)
                with np.errstate(all="ignore"):
                    density, terms = self.space.step(self.density, dt, first, later)
                break
            except TooLong as error:
                if chosen:
                    limit = min(0.7 * limit, float(error.bounds[lives].min()))
                    continue
                path = int(np.argmin(error.bounds))
                refusal = self._refusal(now, error.bounds, step, dt)
                if isinstance(refusal, InputError) or self.paths.lost[path]:
                    raise refusal from None
                self.paths.lose(path, refusal)
                self.rest()
                move, values = (
                    self.heads.begin(step, now, dt, self.space.tableau),
                    self.heads.values(now),
                )
                first = self._evaluate(values(now), self.density, move)
        self.density = density
        self.length = _SAFETY * limit if chosen else math.inf
        weights = self.space.tableau.weights
        self.heads.D = move.end(weights)
        for lost in np.flatnonzero(~np.isfinite(self.heads.D).all(axis=(1, 2, 3)) & lives):
            try:
                self.heads.check_finite(now + dt)
            except BlowUpError as error:
                self.paths.lose(int(lost), error)
        if self.budgeted:
            self.heads.check_symmetric(now + dt, " and run with save=SaveAt(budget=False)")
            self.budget.advance(terms, weights, dt)
        self._jump(step, now, dt)
        # Rounding leaves no step at the end of a unit.
        after = now + dt
        return end if end - after < 1e-9 * dt else after

    def _evaluate(self, values: Any, density: Floats, move: HeadStep) -> Any:
        particles = self.problem.particles
        values = particles.values if values is None else values
        if values is not None:
            values = np.broadcast_to(values, move.D.shape)
        self.evaluations += 1
        with np.errstate(all="ignore"):  # what is not finite is looked for afterwards
            return self.space.evaluate(density, move.D, values, move.drift, move.noise, move.sigma2)

    def _later(
        self, now: float, dt: float, move: HeadStep, values: Any, at: int, density: Floats
    ) -> Any:
        """The stage `at` of the step from `now`."""
        tableau = self.space.tableau
        when = now + tableau.nodes[at] * dt
        with np.errstate(**self.space.errors):
            D, drift = move.stage(*tableau.row(at))
            known = values(when)
        stage = self._evaluate(known, density, _later_heads(move, D, drift))
        self._check_finite(when, density, stage)
        return stage

    def _jump(self, step: int, now: float, dt: float) -> None:
        """Make the jumps of the heads, and add their energy."""
        places, before = self.heads.jump(step, now, dt)
        if places and self.budgeted:
            ends = [self.space.evaluate(self.density, D).terms for D in (before, self.heads.D)]
            self.budget.add_jump(ends[0], ends[1], slice(None))

    def _check_finite(self, now: float, density: Floats, stage: DensityStage) -> None:
        good = stage.finite & np.isfinite(density).all(axis=1)
        for path in np.flatnonzero(~good & ~self.paths.lost).tolist():
            remedy = "take weaker heads, or flow='softmax'"
            if FLOWS.is_custom(self.problem.particles.flow):
                remedy = "take weaker heads, and see what the flow returns"
            elif self.problem.particles.flow.name == "softmax":
                remedy = "take weaker heads"
            text = (
                f"the velocities leave the range of numbers at time {now:g} in path {path}: scores "
                f"reach |D| = {self._score(path):.4g}; {remedy}"
            )
            self.lose(path, now, text)

    def _check(self, now: float, stage: DensityStage) -> None:
        while (refused := self.space.refusal(self.density)) is not None:
            path, text = refused
            self.lose(path, now, f"at time {now:g} in path {path} {text}")
            self.rest()
        if self.budgeted and "overflow" not in self.paths.warned:
            rates = [stage.terms[name][~self.paths.lost] for name in self.budget.rates]
            if not np.isfinite(rates).all():
                self.paths.warned.add("overflow")
                score = float(np.linalg.norm(self.heads.D, 2, axis=(2, 3)).max())
                warn_overflow(f"an energy term of time {now:g}", score)

    def _refusal(
        self, now: float, bounds: Floats, step: int, dt: float
    ) -> InputError | BlowUpError:
        """The error for a step that is too long; at the start it is the caller's."""
        path = int(np.argmin(bounds))
        if self.problem.chosen:
            least = _SHORTEST * self.problem.particles.dt
            text = (
                f"the bound on steps, {bounds[path]:.4g}, is below {least:.3g} at time {now:g} in "
                f"path {path}: the end would never be reached; take weaker heads, or "
                f"{self.space.REMEDY}"
            )
        else:
            text = self._too_long(now, bounds[path], path, dt)
        return InputError(text) if step == 0 else self._blow_up(path, now, text)

    def _too_long(self, now: float, bound: float, path: int, dt: float) -> str:
        chooses = self.problem.particles.law.deterministic
        return (
            f"the step dt = {dt:g} is above the bound {bound:.4g} at time {now:g} in path {path}, "
            f"beyond which {self.space.BEYOND}; "
            f"{'give a smaller dt, ' if bound > 0 else ''}"
            f"{'none (dt=None chooses it), ' if chooses and bound > 0 else ''}"
            f"{'or ' if bound > 0 else 'take '}{self.space.REMEDY}"
        )

    def _record(self, step: int, stage: DensityStage) -> None:
        """Write what is recorded at the start of a unit of time."""
        particles, store = self.problem.particles, self.paths
        at = place_of(step, particles.record_steps)
        if at is not None:
            row = self._row(stage)
            for name in sorted(row.keys() & self.names):
                store.write(name, (slice(store.first, store.last), at), row[name])
        shot = place_of(step, particles.snapshot_steps)
        if shot is not None:
            for place, path in enumerate(particles.save.paths):
                if "density" in self.names:
                    store.write("density", (place, shot), self.density[path])
                if "heads" in self.names:
                    store.write("heads", (place, shot), self.heads.D[path])
            if "density_mean" in self.names:
                density = np.where(store.lost[:, None], np.nan, self.density)
                store.write("density_mean", (shot,), density.mean(axis=0))

    def _row(self, stage: DensityStage) -> Terms:
        row: dict[str, Any] = {
            "entropy": entropy(self.density, self.mesh.areas),
            "evaluations": self.evaluations,
            **self.space.series(stage, self.density),
        }
        if "error" in stage.terms:
            row["sum_error"] = stage.terms["error"]
        if self.budgeted:
            row |= self.budget.row(stage.terms)
            row["free_energy"] = -self.sign * row["energy"] - self.problem.kappa * row["entropy"]
        return row


def _later_heads(move: HeadStep, D: NDArray, drift: NDArray | None) -> HeadStep:
    """What a later stage of a step evaluates: its heads, and their drift without the noise."""
    return HeadStep(D, move.t, move.dt, move.within, drift, sigma2=move.sigma2)


def _symmetric(D: NDArray) -> bool:
    return bool(np.array_equal(D, np.swapaxes(D, -1, -2)))
