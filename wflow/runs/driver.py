"""The driver of every solver: the loop over steps, and all that a run does beside computing.

A solver gives a `Runnable`, which says what the run is, and for each group of its paths a `Solver`,
which knows where these paths are and can take a step. Files, checkpoints, signals, progress bars,
paths that blow up, and the extension of a finished run are handled here, once for all.
"""

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import check_choice, file_name, switch
from wflow._core.errors import AccuracyWarning, BlowUpError, InputError, RunFileError, warn
from wflow._core.files import open_hdf5
from wflow._core.identity import check_comparable, warn_changed_itself, warn_not_comparable
from wflow._core.memory import check_memory
from wflow._core.progress import progress as progress_bar
from wflow._core.signals import caught_signals, interrupted
from wflow.runs import digests, disk, read
from wflow.runs.read import differences, final_of, never_started, open_run, partial_of, run_status
from wflow.runs.schema import (
    STATE,
    Layout,
    command_text,
    config_text,
    dataset_attrs,
    history_line,
)
from wflow.runs.store import Index, MemoryStore, RunWriter, Store

if TYPE_CHECKING:
    import xarray

IfExists = Literal["error", "overwrite", "resume"]
State = dict[str, NDArray[Any]]
_log = logging.getLogger("wflow")
_BLOCK = 1 << 22  # bytes copied at a time
_ENDS = {"t_final", "steps", "save.snapshots"}  # settings in which a longer run may differ


class Solver(ABC):
    """Solver of the paths first <= p < last of a run."""

    @abstractmethod
    def state(self) -> State:
        """Return everything needed to continue, arrays with an axis of these paths."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from a saved state."""

    @abstractmethod
    def advance(self, step: int) -> int:
        """Record the start of a step, and take it (the last one is only recorded).

        Returns
        -------
        the step to continue with: `step` itself where it is under way
        """

    def flush(self) -> None:  # noqa: B027
        """Pass records that are still held to the store; by default there are none."""


@dataclass(frozen=True)
class Plan:
    """Sizes and options of a run that the driver needs.

    Attributes
    ----------
    steps, paths, seed : how many steps and paths, and the key of the random numbers
    batch : paths that are computed together
    label : what the progress bar calls the run
    threads : of Numba; None for all
    checkpoint_every : seconds between checkpoints
    stop_at_blow_up : whether a path that blows up ends the run
    in_parts : whether these are some paths of a run, which does not end with them
    attrs : attributes of the Dataset beside those of `dataset_attrs`
    """

    steps: int
    paths: int
    seed: int
    batch: int
    label: str
    threads: int | None = None
    checkpoint_every: float = 15.0
    stop_at_blow_up: bool = False
    in_parts: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)


class Runnable(ABC):
    """Definition of a run, from which the driver computes it."""

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """What the driver needs to know."""

    @abstractmethod
    def layout(self) -> Layout:
        """Sizes of the run's file."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the run as JSON; arrays that the file holds are named by their digest."""

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Return the parts of the configuration that may be custom."""

    @abstractmethod
    def start(self, store: Store) -> None:
        """Write the variables that are known at the start."""

    @abstractmethod
    def solver(self, first: int, last: int, paths: "Paths", total: NDArray | None) -> Solver:
        """Return the paths first <= p < last at time 0.

        paths : where they record, and whether each still lives
        total : sum over the paths before them of what is averaged over paths, to be added to
        """

    def total(self) -> NDArray[Any] | None:
        """Return zeros for that sum; None without an average, or where all paths run at once."""
        return None


def place_of(step: int, steps: NDArray[np.int64]) -> int | None:
    """Return the index of a step in an increasing array of steps; None if it is not there."""
    at = int(np.searchsorted(steps, step))
    return at if at < len(steps) and steps[at] == step else None


class Paths:
    """View of the store for a group of paths, which writes NaN for a path after it blew up.

    Attributes
    ----------
    lost : (last - first,), whether each path has blown up
    warned : kinds of warnings that the run has given
    """

    def __init__(self, run: "Context", first: int, last: int) -> None:
        self._run, self.first, self.last = run, first, last
        self.warned = run.warned
        self.lost = np.zeros(last - first, dtype=bool)
        self._numbers = np.arange(run.plan.paths)

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index, which begins with rows of these paths.

        A mean over all paths is written as it is: its terms are NaN where a path is lost.
        """
        run, lead = self._run, self._run.layout.dims(name)[0]
        if self.lost.any() and lead in ("path", "snapshot_path"):
            paths = run.layout.marks["snapshot_path"] if lead == "snapshot_path" else self._numbers
            values = np.array(values, dtype=float)
            values[self.lost[np.asarray(paths[index[0]]) - self.first]] = np.nan
        assert run.store is not None
        run.store.write(name, index, values)

    def lose(self, path: int, error: BlowUpError) -> None:
        """Record that a path, counted from the first of the group, blew up.

        Raises
        ------
        BlowUpError
            Where no path of the run is left, or the run is to stop.
        """
        run = self._run
        self.lost[path] = True
        run.errors.append(error)
        everything = self.lost.all() and self.last - self.first == run.plan.paths
        if run.plan.stop_at_blow_up:
            raise error
        if everything and not run.plan.in_parts:
            raise run.errors[0]
        if "blow-up" not in self.warned:
            self.warned.add("blow-up")
            warn(
                f"{error.args[0]}. Its values, and means over all paths, are NaN from there on; "
                "paths that have not blown up continue; Compute(stop_at_blow_up=True) ends the run",
                AccuracyWarning,
            )


class Context:
    """State that the groups of a run share; without a store nothing can be recorded."""

    def __init__(self, problem: Runnable, store: Store | None) -> None:
        self.plan, self.store, self.layout = problem.plan, store, problem.layout()
        self.errors: list[BlowUpError] = []
        self.lost_before = 0  # paths that blew up before the run was resumed or extended
        self.warned: set[str] = set()


def integrate(
    problem: Runnable,
    store: Store,
    *,
    state: State | None = None,
    save: Callable[[State], None] | None = None,
    stopping: Callable[[], bool] = lambda: False,
    tick: Callable[[int], None] = lambda steps: None,
    extended: "ExtendedRun | None" = None,
) -> bool:
    """Compute all paths, group by group, from the start or from a saved state.

    Parameters
    ----------
    save : called with everything needed to continue, every `checkpoint_every` seconds, after the
        records up to there are in the store
    stopping : called after every step; True ends the integration after saving
    tick : called with the number of steps that were done
    extended : the finished run that this one extends

    Returns
    -------
    whether the run is complete
    """
    run, plan = Context(problem, store), problem.plan
    batch = plan.batch if state is None else int(state.pop("batch"))
    total, begin, first_step = problem.total() if batch < plan.paths else None, 0, 0
    if state is None:
        problem.start(store)
    else:
        begin, first_step = int(state.pop("first")), int(state.pop("step"))
        total = state.pop("total", None)
        tick(first_step + (begin // batch) * (plan.steps + 1))
    saved = time.monotonic()
    for first in range(begin, plan.paths, batch):
        last = min(first + batch, plan.paths)
        paths = Paths(run, first, last)
        solver = problem.solver(first, last, paths, total)
        step = 0
        if state is not None and first == begin:
            step = first_step
            paths.lost[:] = state.pop("lost")
            solver.restore(state)
        elif extended is not None:
            step = extended.step(run.layout.marks["time"], plan.steps)
            found = extended.group(store, run.layout, first, last, last == plan.paths)
            paths.lost[:] = found.pop("lost")
            solver.restore(found)
            tick(step)
        run.lost_before += int(paths.lost.sum())

        def keep(step: int, solver: Solver = solver, paths: Paths = paths) -> None:
            """Save everything needed to continue at the start of `step`."""
            solver.flush()
            if save is not None:
                sums = {} if total is None else {"total": total}
                numbers = {"batch": batch, "first": paths.first, "step": step}
                place = {name: np.array(value) for name, value in numbers.items()}
                save(place | sums | {"lost": paths.lost} | solver.state())

        if first == 0 and state is None:
            keep(step)  # from now on a run that is killed can be resumed
        while step <= plan.steps:
            if step == plan.steps and isinstance(store, RunWriter):
                solver.flush()
                store.keep_state(first, {"lost": paths.lost} | solver.state())
            try:
                following = solver.advance(step)
            except BaseException:
                solver.flush()  # what was recorded stays readable
                raise
            tick(following - step)
            step = following
            if step > plan.steps:
                break
            stop = stopping()
            if stop or time.monotonic() - saved > plan.checkpoint_every:
                keep(step)
                saved = time.monotonic()
            if stop:
                return False
        solver.flush()
    if begin and isinstance(store, RunWriter):
        run.lost_before += int(store.read(f"{STATE}/lost", (slice(0, begin),)).sum())
    lost = run.lost_before + len(run.errors)
    if lost == plan.paths and not plan.in_parts:
        text = f"all {lost} paths blew up; take a smaller dt, or weaker heads"
        error = BlowUpError(text, time=0.0, path=0, score=float("nan"))
        raise run.errors[0] if run.errors else error
    if lost > 1 or run.lost_before:
        text = f"{lost} of {plan.paths} paths blew up: their values are NaN from then on"
        warn(text, AccuracyWarning)
    return True


# Runs in memory and in files
# ---------------------------


def run(
    problem: Runnable,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    progress: bool = False,
    history: Sequence[str] = (),
) -> "xarray.Dataset":
    """Compute a run in memory or in a file.

    Parameters
    ----------
    problem : the run
    out : name of its file; None keeps it in memory
    if_exists : what happens where `out` exists already: "error", "overwrite", or "resume", which
        continues an unfinished run, opens a finished one, and extends one that ends earlier
    progress : whether to show a bar
    history : lines of the attribute; without them one for the command

    Raises
    ------
    InputError, RunFileError, BlowUpError, Interrupted
        As `wflow.solve` says.
    """
    from wflow._core.threads import numba_threads  # loads Numba, for which --help does not wait

    file = None if out is None else file_name(out, "out")
    check_choice("if_exists", if_exists, get_args(IfExists))
    shows = switch(progress, "progress")
    if file is None and if_exists != "error":
        raise InputError(f"if_exists={if_exists!r} is for runs in a file: give out as well")
    with numba_threads(problem.plan.threads, "compute.threads"):
        if file is None:
            return _in_memory(problem, shows, history)
        return _in_file(problem, file, if_exists, shows, history)


def _bar(problem: Runnable, progress: bool) -> Any:
    plan = problem.plan
    groups = -(-plan.paths // plan.batch)
    return progress_bar(groups * (plan.steps + 1), plan.label, progress)


def _in_memory(problem: Runnable, progress: bool, history: Sequence[str]) -> "xarray.Dataset":
    layout = problem.layout()
    check_memory(layout.bytes, "the run", "record less often, keep fewer snapshots, or give out")
    store = MemoryStore(layout)
    attrs = _attrs(problem, problem.config(), history)
    try:
        with _bar(problem, progress) as tick:
            integrate(problem, store, tick=tick)
    except BlowUpError as error:
        error.run = store.dataset(attrs, complete=False)
        raise
    return store.dataset(attrs)


def _attrs(problem: Runnable, config: Mapping[str, Any], history: Sequence[str]) -> dict[str, Any]:
    return {**dataset_attrs(config, problem.plan.seed, history=history), **problem.plan.attrs}


def _in_file(
    problem: Runnable, out: Path, if_exists: IfExists, progress: bool, history: Sequence[str]
) -> "xarray.Dataset":
    config = problem.config()
    opened = open_writer(out, problem, config, if_exists, progress=progress, history=history)
    if opened is None:
        return open_run(out)
    writer, state = opened
    start = 0 if state is None else int(state["step"])
    _log.info(
        "%s: from step %d of %d, %d paths", out, start, problem.plan.steps, problem.plan.paths
    )

    def save(state: State) -> None:
        writer.checkpoint(state)
        _log.info("%s: saved at step %d, path %d", out, int(state["step"]), int(state["first"]))

    try:
        with caught_signals() as caught, _bar(problem, progress) as tick:
            complete = integrate_into(
                writer, problem, state, save=save, stopping=lambda: bool(caught), tick=tick
            )
    except BlowUpError as error:
        if partial_of(out).exists():
            error.args = (
                f"{error.args[0]}. What was recorded is in {out}.partial; run again with another "
                "output, or replace it (--overwrite)",
            )
        raise
    warn_changed_itself(config, problem.parts())
    if caught:
        where = (
            f"came when the run was done: it is whole, in {out}"
            if complete
            else f"ended the run after a whole step; everything up to there is in {out}.partial"
        )
        again = "Give the same command with --resume (in Python: if_exists='resume') to continue"
        raise interrupted(caught[0], f"{where}. {again}")
    _log.info("%s: complete", out)
    return writer.dataset()


def integrate_into(writer: RunWriter, problem: Runnable, state: State | None, **how: Any) -> bool:
    """Integrate, and leave the run file complete, resumable, or deleted if it is empty.

    Parameters
    ----------
    state : where to continue; None begins
    how : further arguments of `integrate`: save, stopping, tick

    Returns
    -------
    whether the run is complete
    """
    extended = ExtendedRun(writer.path, writer.extends) if writer.extends else None
    done, tick = 0, how.pop("tick", lambda steps: None)

    def count(steps: int) -> None:
        nonlocal done
        done += steps
        tick(steps)

    try:
        complete = integrate(problem, writer, state=state, extended=extended, tick=count, **how)
        if complete:
            writer.finish()
        else:
            writer.abandon()
    except (BlowUpError, InputError) as error:
        begun = state is not None or extended is not None or done or getattr(error, "time", 0)
        if begun:
            writer.abandon()
        else:
            writer.discard()  # nothing was recorded yet
        raise
    except BaseException:
        writer.abandon()
        raise
    finally:
        if extended is not None:
            extended.close()
    return complete


def open_writer(
    out: Path,
    problem: Runnable,
    config: Mapping[str, Any],
    if_exists: IfExists,
    *,
    progress: bool = False,
    history: Sequence[str] = (),
) -> tuple[RunWriter, State | None] | None:
    """Lay out the file of a run, or open it where it was interrupted.

    Returns
    -------
    the writer and the state to continue from, which is None at the start of a run; None for a run
    that is finished
    """
    fresh = if_exists == "resume" and never_started(out, config)
    if fresh and not out.exists():
        if_exists = "overwrite"
    extends = {}
    if if_exists == "resume" and (status := run_status(out)) != "absent":
        check_comparable(config)
        if status == "partial" and out.exists() and not changed_settings(out, config):
            return None  # an extension of it was interrupted, and is not requested
        if status == "partial" and not fresh:
            return RunWriter.resume(out, config_text(config), progress=progress)
        extends = _extension(out, json.loads(config_text(config)), problem)
        if not extends:
            disk.remove_states(out)
            return None
        history = extends.pop("history")
    warn_not_comparable(config)
    attrs = _attrs(problem, config, history) | extends
    return create(out, problem, attrs, overwrite=if_exists == "overwrite"), None


def changed_settings(out: Path, config: Mapping[str, Any]) -> list[str]:
    """List the settings in which the finished run in `out` differs from a configuration."""
    with open_hdf5(out) as file:
        held = json.loads(read.read_attrs(file, out)["config"])
    return differences(held, json.loads(config_text(config)))


def create(out: Path, problem: Runnable, attrs: Mapping[str, Any], *, overwrite: bool) -> RunWriter:
    """Create the file of a run; see `RunWriter.create`."""
    groups = tuple(range(0, problem.plan.paths, problem.plan.batch))
    layout = problem.layout()
    one = problem.solver(0, 1, Paths(Context(problem, None), 0, 1), None)
    room = {
        name: np.broadcast_to(_plain(array[:1]), (problem.plan.paths, *array.shape[1:]))
        for name, array in ({"lost": np.zeros(1, bool)} | one.state()).items()
    }
    return RunWriter.create(out, layout, attrs, overwrite=overwrite, groups=groups, state=room)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Convert an array to a type that netCDF-4 has."""
    return array.astype(np.int8) if array.dtype == bool else array


# A finished run that is extended
# -------------------------------


def _extension(out: Path, config: Mapping[str, Any], problem: Runnable) -> dict[str, Any]:
    """Return the attributes of an extension of the finished run in `out`; none for the same run.

    Raises
    ------
    InputError
        For a finished run of other settings, or one that cannot be extended to this one.
    """
    with open_hdf5(out) as file:
        attrs, history = read.read_attrs(file, out), read.history_of(file)
        held = json.loads(attrs["config"])
        if not differences(held, config):
            return {}
        reason = _not_extensible(file, held, config, problem.layout())
    if reason:
        raise InputError(f"{out} {reason}; choose another output or overwrite it (--overwrite)")
    digests.check(out)
    lines = [history] if history else []
    lines.append(history_line(f"extended by {command_text()}"))
    return {"extends": attrs["created"], "history": lines}


def not_extensible(out: Path, config: Mapping[str, Any], layout: Layout) -> str:
    """Say why a finished run cannot be extended to a longer one; "" where it can."""
    with open_hdf5(out) as file:
        held = json.loads(read.read_attrs(file, out)["config"])
        return _not_extensible(file, held, json.loads(config_text(config)), layout)


def _not_extensible(
    file: h5py.File, held: Mapping[str, Any], config: Mapping[str, Any], layout: Layout
) -> str:
    """Do what `not_extensible` does, for an open file and its configuration."""
    differ = differences(held, config)
    others = [name for name in differ if name not in _ENDS]
    asked, done = (each.get("t_final", each.get("steps")) for each in (config, held))
    if others or not asked > done:
        named = [f"{name}{_values(held, config, name)}" for name in others or differ]
        return f"holds another finished run (differs in {', '.join(named)})"
    reason = ExtendedRun.missing(file, layout)
    return reason and f"cannot be extended: {reason}"


def _values(held: Mapping[str, Any], asked: Mapping[str, Any], name: str) -> str:
    """Return both numbers of a setting with all their digits, which may differ in the last one."""
    numbers = [each.get(name) for each in (held, asked)]
    known = all(isinstance(number, int | float) for number in numbers)
    return f": {numbers[0]!r} there, {numbers[1]!r} here" if known else ""


class ExtendedRun:
    """A finished run that is extended: its records and its final state.

    Parameters
    ----------
    path : its file
    created : when it was begun

    Raises
    ------
    RunFileError
        Where another file has its name.
    """

    def __init__(self, path: Path, created: str) -> None:
        self._open = open_hdf5(final_of(path))
        self.file = self._open.__enter__()
        if self.file.attrs.get("created") != created:
            self.close()
            raise RunFileError(
                f"{path} is not the run that {partial_of(path)} extends; restore it, or run again "
                "with --overwrite"
            )
        self._end = float(self.file["time"][-1])

    def close(self) -> None:
        """Close the file."""
        self._open.__exit__(None, None, None)

    @staticmethod
    def missing(file: h5py.File, layout: Layout) -> str:
        """Return what a finished run lacks to be extended to this layout; "" for nothing.

        Up to its end it must hold what the longer one records. Steps that are chosen by their error
        end at recorded times, so that its end must be one.
        """
        if STATE not in file:
            return "its file holds no state of its end: it was written by an earlier version"
        if absent := [name for name in layout.names if name not in file]:
            return f"it holds no {absent[0]}"
        end, dims = float(file["time"][-1]), ("time", "snapshot")
        held = [file[dim][...] if dim in file else np.array([]) for dim in dims]
        asked = [layout.marks.get(dim, np.array([])) for dim in dims]
        for dim, has, wants in zip(dims, held, asked, strict=True):
            lacks = np.setdiff1d(wants[wants < end], has)
            if lacks.size:
                return f"it holds no {dim} at {lacks[0]:g}"
        if "evaluations" in file:
            marks = np.union1d(*asked)
            apart = np.setxor1d(np.union1d(*held), marks[marks <= end])
            if apart.size:
                return f"one of the two runs records at {apart[0]:g}, where chosen steps end"
        return ""

    def step(self, times: NDArray[np.float64], steps: int) -> int:
        """Return the step at its end, in a run of so many steps with these record times."""
        return round(steps * self._end / float(times[-1]))

    def group(self, store: Store, layout: Layout, first: int, last: int, whole: bool) -> State:
        """Copy the records of a group of paths before the end, and return their state there.

        whole : whether they are the last paths, with which the means over all paths are recorded
        """
        for name in layout.names:
            dims = layout.dims(name)
            axis = next((k for k, dim in enumerate(dims) if dim in ("time", "snapshot")), None)
            if axis is None or (axis == 0 and not whole):
                continue
            ends = (first, last)
            if dims[0] == "snapshot_path":
                ends = np.searchsorted(layout.marks["snapshot_path"], ends).tolist()
            rows = slice(*ends)
            marks, data = layout.marks[dims[axis]], self.file[name]
            places = np.flatnonzero(np.isin(self.file[dims[axis]][...], marks[marks < self._end]))
            if rows.start == rows.stop and axis:
                continue
            for at, stretch in _stretches(places, data.nbytes // data.shape[axis]):
                columns = slice(at, at + stretch.stop - stretch.start)
                if axis == 0:
                    store.write(name, (columns,), data[stretch])
                else:
                    store.write(name, (rows, columns), data[rows, stretch])
        held = {name: data for name, data in self.file[STATE].items() if data.id.get_storage_size()}
        return {name: data[first:last] for name, data in held.items()}


def _stretches(places: NDArray[np.intp], size: int) -> Iterator[tuple[int, slice]]:
    """Yield blocks of consecutive numbers, some MB at a time, with their positions."""
    most, at = max(1, _BLOCK // max(1, size)), 0
    while at < len(places):
        end = at + 1
        while end < len(places) and places[end] == places[end - 1] + 1 and end - at < most:
            end += 1
        yield at, slice(int(places[at]), int(places[end - 1]) + 1)
        at = end
