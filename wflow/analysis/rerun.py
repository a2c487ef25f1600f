"""Recomputation of stored runs: `wflow.rerun`, and the first step for `verify`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.adaptive import scheme_from_config
from wflow._core.checks import FlowName, path_of, shown
from wflow._core.errors import InputError, RunFileError
from wflow.attention.flows import Flow, flow_from_config
from wflow.heads.laws import HeadLaw, law_of_run
from wflow.meanfield import solver as equation
from wflow.meanfield.mesh import Circle, Quadrature, Sphere
from wflow.meanfield.spectral import Fourier, Harmonics
from wflow.particles import solver
from wflow.particles.integrate import ParticleRun
from wflow.particles.problem import options_of, problem_of
from wflow.runs import digests
from wflow.runs.driver import integrate, run
from wflow.runs.read import open_run
from wflow.runs.schema import EVALUATIONS, VARIABLES, command_text, history_line, is_movement
from wflow.runs.store import MemoryStore

if TYPE_CHECKING:
    import xarray

Floats = NDArray[np.float64]

_INITIAL = ("initial_tokens", "initial_density", "initial_heads", "centres", "areas")
_SAME = 1e-12  # distance of centres that are the same to the rounding of another machine
_SERIES_COST = 3000.0  # tokens to which sums by series compare


def rerun(
    path: str | Path,
    *,
    out: str | Path | None = None,
    law: HeadLaw | None = None,
    **changes: Any,
) -> xarray.Dataset:
    """Run again what a run file holds, from its configuration and initial state.

    Parameters
    ----------
    path : str or pathlib.Path
        A run file, of `wflow.solve` or `wflow.meanfield.solve`.
    out : str or pathlib.Path, optional
        File of the new run. Without it the result is kept in memory.
    law : wflow.heads.HeadLaw, optional
        The head law of the run, needed where it is custom: its code is not in the file. One whose
        fingerprint an earlier version of wflow made from bytecode is taken as given, with a
        warning.
    **changes
        Arguments of `wflow.solve` that differ, such as ``dt=0.01``, or of `wflow.meanfield.solve`
        for its files; another `mesh` needs a `density` over it. A `save` or `compute` replaces that
        of the run as a whole; threads, batch and checkpoint_every are not in the file. A custom
        flow is given again where its class is not registered.

    Returns
    -------
    xarray.Dataset
        As from `wflow.solve` or `wflow.meanfield.solve`; without changes bitwise identical to the
        run of the file.

    Raises
    ------
    InputError
        For a custom law, flow or mesh that is not given, a law given that differs from that of the
        run, and (Q, K, V) heads, which a run file does not hold.
    RunFileError
        For a part of a run, and a file whose configuration or initial state is not what was
        written.

    See Also
    --------
    wflow.solve : Simulate the particle system.
    wflow.meanfield.solve : Solve the mean-field equation.

    Examples
    --------
    >>> import numpy as np, tempfile, wflow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = wflow.solve(
    ...         wflow.tokens.uniform(n=5, d=3, seed=0), wflow.heads.Frozen(),
    ...         heads=np.eye(3)[None], t_final=0.1, dt=0.05, out=f"{folder}/run.h5",
    ...     )
    ...     finer = wflow.rerun(f"{folder}/run.h5", dt=0.025)
    ...     run.close()
    >>> finer.sizes["time"]
    5
    """
    path = path_of(path, "path")
    digests.check(path, _INITIAL, "restore it from a copy")
    with open_run(path) as ds:
        config = json.loads(ds.attrs["config"])
        densities = of_equation(path, config)
        own = {"mesh": changes["mesh"]} if densities and "mesh" in changes else {}
        arguments = stored_arguments(ds, law, changes.get("flow"), **own)
        former = ds.attrs.get("history")
    solve = equation.solve if densities else solver.solve
    inspect.signature(solve).bind(**(arguments | changes))  # names an argument that solve lacks
    how = {key: changes.pop(key) for key in ("if_exists", "progress") if key in changes}
    altered = f" with other {', '.join(sorted(changes))}" if changes else ""
    history = [former] if isinstance(former, str) else []
    history.append(history_line(f"{path.name} run again{altered} by {command_text()}"))
    if densities:
        problem = _equation_of(config, arguments, changes)
        return run(problem, out, **how, history=history)
    return solver.solve_problem(problem_of(**(arguments | changes)), out, **how, history=history)


def of_equation(path: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a run is of `wflow.meanfield.solve`, and not of `wflow.solve`.

    Raises
    ------
    RunFileError
        For a run of another solver, and a part of a run.
    """
    if "sampler" in config:
        raise RunFileError(
            f"{path} is a run of wflow.sampling.{config['sampler']}: call that with its "
            "initial_tokens and the settings in its attribute config"
        )
    if is_movement(config):
        raise RunFileError(
            f"{path} is a run of wflow.jko.minimizing_movements: call that with its first "
            "tokens, its initial_heads and the settings in its attribute config"
        )
    densities = "mesh" in config
    needed = ("density" if densities else "x0", "law", "heads", "t_final", "dt")
    known = inspect.signature(equation.solve if densities else problem_of).parameters.keys()
    missing = [key for key in needed if key not in config]
    unknown = sorted(config.keys() - known - ({"steps"} if densities else set()))
    if missing or unknown:
        said = f"lacks {', '.join(missing)}" if missing else f"holds {', '.join(unknown)}"
        raise RunFileError(
            f"{path} cannot be run again: its configuration {said}; give a whole run"
        )
    return densities


def stored_arguments(
    ds: xarray.Dataset,
    law: HeadLaw | None = None,
    flow: FlowName | Flow | None = None,
    mesh: Quadrature | None = None,
) -> dict[str, Any]:
    """Return arguments of `solve`, or `meanfield.solve`, that compute the run of a file again.

    Parameters
    ----------
    ds : the run
    law : the law of the run, where it is custom
    flow : in place of that of the run
    mesh : in place of that of the run

    Raises
    ------
    InputError
        For a custom law, flow or mesh that is not given, a law given that differs from that of the
        run, and (Q, K, V) heads, which a run file does not hold.
    RunFileError
        For a mesh that is not that of the cells in the file.
    """
    config = json.loads(ds.attrs["config"])
    config["law"] = law = law_of_run(config, law)
    if "flow" in config:
        config["flow"] = flow_from_config(config["flow"]) if flow is None else flow
    if law.initial() is not None:
        config["heads"] = None
    elif not isinstance(config["heads"], int):
        if "initial_heads" not in ds:
            raise InputError("the run has (Q, K, V) heads, which a run file does not hold")
        config["heads"] = ds["initial_heads"].values
    if "mesh" not in config:
        config["x0"] = ds["initial_tokens"].values
        return config | options_of(config) | {"scheme": scheme_from_config(config["scheme"])}
    config["density"] = ds["initial_density"].values
    config["mesh"] = _same_mesh(ds) if mesh is None else mesh
    if config.pop("steps", None) == "chosen":
        config["dt"] = None
    return config | options_of(config)


def mesh_of(config: Mapping[str, Any], centres: Floats) -> Quadrature | None:
    """Return the mesh of a configuration, made of points (cell, axis) where it has their digest.

    None for a mesh of a custom class.

    Raises
    ------
    InputError
        For what describes none.
    """
    given = config.get("mesh")
    mesh = given if isinstance(given, dict) else {}
    kind = mesh.get("kind")
    size = {"Circle": "cells", "Sphere": "cells", "Fourier": "degree", "Harmonics": "degree"}
    if kind in size and not isinstance(mesh.get(size[kind]), int):
        raise InputError(f"the configuration names no mesh: mesh is {shown(given)}")
    match kind:
        case "Sphere" if "points" in mesh:
            return Sphere(centres)
        case "Circle":
            return Circle(mesh["cells"])
        case "Sphere":
            return Sphere(mesh["cells"])
        case "Fourier":
            return Fourier(mesh["degree"])
        case "Harmonics":
            return Harmonics(mesh["degree"])
    return None


def _same_mesh(ds: xarray.Dataset) -> Quadrature:
    centres = ds["centres"].values
    config = json.loads(ds.attrs["config"])
    try:
        mesh = mesh_of(config, centres)
    except InputError as error:
        raise RunFileError(f"the mesh of the run cannot be made again: {error}") from None
    if mesh is None:
        raise InputError(
            f"the run has a mesh of its own, {shown(config['mesh'])}, which a run file does not "
            "hold: give mesh="
        )
    if mesh_difference(mesh, ds) > _SAME:
        raise RunFileError(
            f"the mesh of the configuration, {mesh!r}, has other cells than the file: it was "
            "changed; restore it from a copy"
        )
    return mesh


def mesh_difference(mesh: Quadrature, ds: xarray.Dataset) -> float:
    """Return the largest difference of a mesh from that of a run, inf for other cells."""
    stored = {name: ds[name].values for name in ("centres", "areas") if name in ds}
    if len(stored) < 2 or any(v.shape != getattr(mesh, name).shape for name, v in stored.items()):
        return np.inf
    gaps = [float(np.max(np.abs(getattr(mesh, name) - v))) for name, v in stored.items()]
    return float(np.max(np.nan_to_num(gaps, nan=np.inf)))


def _equation_of(
    config: Mapping[str, Any], arguments: dict[str, Any], changes: dict[str, Any]
) -> equation.MeanField:
    """Return the run of the equation with some arguments changed, otherwise bitwise identical."""
    unit = None if {"t_final", "dt"} & changes.keys() else config["dt"]
    mesh = changes.get("mesh")
    if "density" not in changes and mesh is not None:
        cells = np.shape(arguments["density"])[-1]
        if getattr(mesh, "cells", cells) != cells:
            raise InputError(
                f"mesh is {shown(mesh)}, and the run has a density over {cells} cells: give the "
                "density over this mesh as well"
            )
    as_is = not {"density", "mesh"} & changes.keys()
    return equation.problem_of_task(arguments | changes, unit=unit, as_is=as_is)


def replayed(ds: xarray.Dataset, pairs: float, nudge: float = 0.0) -> dict[str, Floats] | None:
    """Compute the first path of a stored run again, up to its second record time.

    Parameters
    ----------
    ds : a run with its initial state
    pairs : number of kernel values that it may take
    nudge : by how much the initial tokens or densities are moved, to see how far rounding grows

    Returns
    -------
    the quantities recorded at the first two record times; None where it would take more

    Raises
    ------
    WflowError
        For a configuration that cannot be computed.
    """
    arguments, dt = _arguments(ds)
    first = int(arguments.pop("first_path", 0))
    save = arguments["save"]
    end = min(save.every * dt, arguments["t_final"])
    # Adaptive steps end at the snapshots.
    times = [t for t in save.snapshots or () if t <= end] or [0.0]
    save = replace(save, snapshots=times, paths=(0,), heads=False)
    short = arguments | {"t_final": end, "paths": 1, "save": save}
    if "mesh" in arguments:
        return _replayed_densities(ds, short, dt, pairs, nudge)
    x0 = short.pop("x0")
    x0 = x0 + nudge * np.roll(x0, 1, axis=-1)
    problem = problem_of(_first_cloud(x0), **short)
    problem = replace(problem, first_path=first)
    evaluations = problem.steps * problem.scheme.stages
    if problem.control is not None:
        evaluations = int(np.nanmax(ds["evaluations"][0, :2].values, initial=0))
    if evaluations * problem.heads * float(problem.x0.shape[-2]) ** 2 > pairs:
        return None
    store = MemoryStore(problem.layout())
    integrate(ParticleRun(problem), store)
    return _first_series(store)


def residuals(
    ds: xarray.Dataset, pairs: float, halvings: int, paths: int
) -> tuple[Floats, float] | None:
    """Compute the residual of the energy balance after the first step of a run, in finer steps.

    Parameters
    ----------
    ds : a run with its initial state
    pairs : number of kernel values that it may take
    halvings : row k of the result has steps of dt / 2^k, k = 0, ..., halvings
    paths : number of paths, each with its own noise

    Returns
    -------
    residuals (halvings + 1, paths), and the energy at time 0; None where they would take more

    Raises
    ------
    WflowError
        For a configuration that cannot be computed.
    """
    arguments, dt = _arguments(ds)
    arguments.pop("first_path", None)
    found = np.empty((halvings + 1, paths))
    for level in range(halvings + 1):
        save = replace(arguments["save"], every=2**level, snapshots=[0.0], paths=(), heads=False)
        finer = {"t_final": dt, "dt": dt / 2**level, "paths": paths, "save": save}
        run = _first_path(arguments | finer, finer["dt"])
        problem = run.particles if isinstance(run, equation.MeanField) else run.problem
        evaluations = (2 ** (halvings + 1) - 1) * problem.scheme.stages * paths
        if evaluations * problem.heads * float(problem.x0.shape[-2]) ** 2 > pairs:
            return None
        store = MemoryStore(run.layout())
        integrate(run, store)
        found[level] = store.read("edi_residual")[:, -1]
    return found, float(store.read("energy")[0, 0])


def _first_path(arguments: dict[str, Any], unit: float) -> ParticleRun | equation.MeanField:
    """Return the run of arguments from the initial tokens or density of the first path."""
    if "mesh" in arguments:
        density = np.atleast_2d(arguments["density"])[0]
        return equation.problem_of_task(arguments | {"density": density}, unit=unit, as_is=True)
    return ParticleRun(problem_of(**arguments | {"x0": _first_cloud(arguments["x0"])}))


def _first_cloud(x0: Floats) -> Floats:
    """Return initial tokens (n, d) of the first path."""
    return x0 if x0.ndim == 2 else x0[0]


def _arguments(ds: xarray.Dataset) -> tuple[dict[str, Any], float]:
    """Return arguments that compute a run again on this processor, and its step."""
    arguments = stored_arguments(ds)
    compute = replace(arguments["compute"], backend="numba", device=None)
    return arguments | {"compute": compute}, float(json.loads(ds.attrs["config"])["dt"])


def _replayed_densities(
    ds: xarray.Dataset, short: dict[str, Any], unit: float, pairs: float, nudge: float
) -> dict[str, Floats] | None:
    density = short["density"]
    density = density + nudge * np.roll(density, 1, axis=-1)
    if density.ndim == 2 and short["dt"] is None:
        short["paths"] = len(density)  # steps are chosen for all of them together
    elif density.ndim == 2:
        density = density[0]
    problem = equation.problem_of_task(short | {"density": density}, unit=unit, as_is=True)
    run = problem.particles
    evaluations = run.steps * run.scheme.stages
    if problem.chosen:
        evaluations = int(np.nanmax(ds["evaluations"][0, :2].values, initial=0))
    cells = float(problem.mesh.cells)
    width = cells if run.sums.method == "exact" else min(cells, _SERIES_COST)
    if evaluations * run.paths * run.heads * cells * width > pairs:
        return None
    store = MemoryStore(problem.layout())
    integrate(problem, store)
    return _first_series(store)


def _first_series(store: MemoryStore) -> dict[str, Floats]:
    """Return the series of the first path."""
    # Rounding may accept a step that another processor rejects.
    kept = [name for name in store.layout.names if name not in EVALUATIONS]
    names = [name for name in kept if VARIABLES[name].dims == ("path", "time")]
    return {name: store.read(name, (0,)) for name in names}
