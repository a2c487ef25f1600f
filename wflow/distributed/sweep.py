"""`wflow.sweep`, which computes runs over a grid of arguments and reduces them to one table.

`points` makes the arguments of every point, `table` puts what is known of every point side by side.
Studies use both: `Session.sweep`, and `study.tabulate` for cases that are measured without a run.
"""

from __future__ import annotations  # the signature of `sweep` shows short names

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import check_choice, did_you_mean, function, path_of, shown, switch, whole
from wflow._core.errors import AccuracyWarning, BlowUpError, InputError, Interrupted, warn
from wflow._core.files import own_folder
from wflow._core.identity import check_comparable
from wflow._core.invocation import command_text
from wflow._core.memory import check_memory
from wflow._core.processes import check_main_guard
from wflow._core.progress import progress as shown_progress
from wflow._core.reprs import value_text
from wflow._core.signals import interrupted, signals_as_errors
from wflow.distributed.client import Pool, default_threads, pool
from wflow.heads.laws import HeadLaw
from wflow.particles.options import Compute, option
from wflow.runs.disk import check_target
from wflow.runs.driver import not_extensible
from wflow.runs.read import config_differences, manifest_of, open_run, run_status
from wflow.runs.schema import CONVENTIONS, VARIABLES, history_line, version_of
from wflow.runs.snapshots import same_times

if TYPE_CHECKING:
    from distributed import Client, Security
    from xarray import Dataset

OnError = Literal["nan", "raise"]
AXES = "sweep"
"""Attribute of the table that names the axes of the grid, separated by spaces."""
FAILURE = "failure"
_OWN = {"out", "if_exists", "progress"}  # arguments of `solve` that a sweep gives
_POINT_BYTES = 4096  # what a point takes in this process, arrays aside
_LONGEST = 120  # characters of the name of a file


# The grid
# --------


@dataclass(frozen=True)
class Point:
    """One point of a grid.

    Attributes
    ----------
    labels : label of every axis
    marks : what names every axis in files: its label, or the place of an object without one
    values : value of every axis
    arguments : of `solve`, functions of the axes among them
    """

    labels: dict[str, Any]
    marks: dict[str, Any]
    values: dict[str, Any]
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        """Name of the point for people."""
        return ", ".join(f"{name} = {value_text(label)}" for name, label in self.labels.items())

    @property
    def name(self) -> str:
        """Name of the point for files, which later versions must find: no text for people."""
        text = ",".join(f"{name}={_mark_text(mark)}" for name, mark in self.marks.items())
        clean = re.sub(r"[^\w.+=,-]", "_", text, flags=re.ASCII)
        if clean == text and len(text) <= _LONGEST:
            return text
        return f"{clean[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def task(self) -> dict[str, Any]:
        """Return the arguments of `solve`, with functions of the axes evaluated."""
        return {
            name: value(**self._given(value)) if _is_function(value) else value
            for name, value in self.arguments.items()
        }

    def reduced(self, reduce: Callable[..., Any], run: Dataset) -> Any:
        """Return what a function makes of the run of this point, and of its axes."""
        return reduce(run, **self._given(reduce))

    def _given(self, asking: Callable[..., Any]) -> dict[str, Any]:
        return {name: self.values[name] for name in _parameters(asking) if name in self.values}


def _mark_text(mark: Any) -> str:
    """Write a text, or a number in the shortest digits: 4.0 is `4`, as in a list of integers."""
    plain = mark.item() if isinstance(mark, np.generic) else mark
    return plain if isinstance(plain, str) else repr(plain).removesuffix(".0")


def points(
    grid: Mapping[str, Any],
    arguments: Mapping[str, Any],
    reduce: Callable[..., Any] | None = None,
) -> tuple[dict[str, NDArray[Any]], list[Point]]:
    """Check a grid, and return the labels of its axes and its points, the last axis fastest.

    Parameters
    ----------
    grid : axis -> sequence of values, or label -> value
    arguments : of `wflow.solve` at every point, values or functions of axes
    reduce : function of a run and of axes

    Raises
    ------
    InputError
        For an axis that is empty, repeats a value or is used by nothing, an argument that is given
        twice or that `solve` does not have, a function of what is no axis, and a grid that is too
        large.
    """
    from wflow.particles.solver import solve

    known = [name for name in inspect.signature(solve).parameters if name not in _OWN]
    if not isinstance(grid, Mapping) or not grid:
        raise InputError(
            f"grid is {shown(grid)}: expected axis -> values, such as {{'kappa': [0.1, 0.2]}}"
        )
    grid = {name: _plain(name, values) for name, values in grid.items()}
    sized: list[Any] = [v for v in grid.values() if isinstance(v, Sequence | Mapping | np.ndarray)]
    count = math.prod(map(len, sized))
    check_memory(_POINT_BYTES * count, f"a grid of {count} points", "take fewer values of an axis")
    axes = {name: _axis(name, values) for name, values in grid.items()}
    for name, given in arguments.items():
        if name not in known:
            raise InputError(
                f"solve has no argument {name!r}{did_you_mean(name, known) or ': leave it out'}"
            )
        if name in axes and name not in (_parameters(given) if _is_function(given) else ()):
            raise InputError(
                f"{name} is an axis of the grid and an argument: give one of them, or as argument "
                "a function of the axis"
            )
    entries = {f"{name}[{k}]": v for name, axis in axes.items() for k, v in enumerate(axis[1])}
    functions = {name: v for name, v in {**arguments, **entries}.items() if _is_function(v)}
    used = {axis for name, value in functions.items() for axis in _axes_of(value, axes, name)}
    for name in axes:
        if name not in known and name not in used:
            asked = {name for each in functions.values() for name in _parameters(each)}
            raise InputError(
                f"the axis {name!r} is no argument of solve, and no argument is a function of it"
                + (
                    did_you_mean(name, {*known, *asked})
                    or f": give such as heads=lambda {name}: ..."
                )
            )
    if reduce is not None:
        _axes_of(function(reduce, "reduce"), axes, "reduce", of_a_run=True)
    found = []
    for places in product(*(range(len(values)) for _, values, _ in axes.values())):
        at = dict(zip(axes, places, strict=True))
        chosen = {name: axes[name][1][k] for name, k in at.items()}
        labels = {name: axes[name][0][k] for name, k in at.items()}
        marks = {name: label if axes[name][2] else at[name] for name, label in labels.items()}
        own = {name: value for name, value in chosen.items() if name in known}
        found.append(Point(labels, marks, chosen, own | dict(arguments)))
    return {name: labels for name, (labels, _, _) in axes.items()}, found


def _plain(name: Any, values: Any) -> Any:
    """Return what NumPy reads as an array, such as a Series, as one; a scalar as a number."""
    if not hasattr(values, "__array__"):
        return values
    try:
        array = np.asarray(values)
    except Exception as error:  # of a tensor on a device, say
        raise InputError(f"the axis {shown(name)} is no array: {error}") from None
    return array if array.ndim else array.item()


def _axis(name: Any, given: Any) -> tuple[NDArray[Any], list[Any], bool]:
    """Return labels and values of an axis, and whether the labels are not texts for people."""
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"the axis {shown(name)} of the grid: expected a name such as 'kappa'")
    if name in _OWN:
        raise InputError(f"{name} cannot be an axis: the sweep itself gives it to solve")
    if name == FAILURE:
        raise InputError(f"{name} cannot be an axis: the table has messages under this name")
    names: list[Any] | None = None
    if isinstance(given, Mapping):
        names, values = list(given), list(given.values())
    elif isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes):
        values = list(given)
    else:
        raise InputError(
            f"the axis {name} is {shown(given)}: expected a list of values, or a dict label -> "
            "value"
        )
    if not values:
        raise InputError(f"the axis {name} is empty: give it a value, or leave it out")
    labels = values if names is None else names
    plain = all(isinstance(label, str) for label in labels) or _are_numbers(labels)
    if not plain and names is not None:
        raise InputError(f"the labels of {name} are {shown(names)}: expected texts or numbers")
    if not plain:
        labels = [value_text(value) for value in values]
        if len(set(labels)) < len(labels) or any(" at 0x" in text for text in labels):
            labels = list(range(len(values)))  # which value it is: its repr does not say
    array = np.array(labels)
    if np.unique(array).size < array.size:
        raise InputError(f"the axis {name} repeats a value: {shown(list(labels))}")
    return array, values, plain


def _are_numbers(values: Sequence[Any]) -> bool:
    kinds = {np.asarray(value).dtype.kind for value in values if np.ndim(value) == 0}
    return all(np.ndim(value) == 0 for value in values) and (kinds <= set("iuf") or kinds == {"b"})


def _is_function(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, partial)


def _parameters(value: Any) -> dict[str, bool]:
    """Return the parameters of a function, and whether each must be given."""
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: each.default is each.empty for each in found if each.kind in named}


def _axes_of(
    value: Any, axes: Mapping[str, Any], name: str, *, of_a_run: bool = False
) -> list[str]:
    """Return the axes on which a function depends, whose first parameter may be a run."""
    parameters = _parameters(value)
    if of_a_run:
        try:
            inspect.signature(value).bind_partial(None)
        except TypeError:
            raise InputError(
                f"{name} takes no run: expected a function of a run, and of axes of the grid"
            ) from None
        except ValueError:  # a builtin whose parameters are not known
            pass
    if of_a_run and parameters:
        first = next(iter(inspect.signature(value).parameters))
        if first in axes:
            raise InputError(
                f"{first} is an axis of the grid and the first parameter of {name}, which is the "
                "run: give one of them another name"
            )
        parameters.pop(first, None)
    lacking = [each for each, needed in parameters.items() if needed and each not in axes]
    if lacking or not (of_a_run or set(parameters) & set(axes)):
        what = f"of {lacking[0]!r}, which is no axis" if lacking else "of no axis"
        close = did_you_mean(lacking[0], axes) if lacking else ""
        raise InputError(
            f"{name} is a function {what} of the grid"
            + (close or f": expected parameters among {', '.join(axes)}")
        )
    return [each for each in parameters if each in axes]


# The table
# ---------


def table(labels: Mapping[str, ArrayLike], rows: Sequence[Dataset | None]) -> Dataset:
    """Put the numbers of every point side by side, over the axes of the grid.

    Rows with other coordinates, such as more paths, are aligned by them, times up to rounding. What
    a row lacks is NaN, or "" for text.

    Parameters
    ----------
    labels : of every axis
    rows : numbers of every point, the last axis fastest; None for a point without

    Raises
    ------
    InputError
        For names that are axes as well.
    """
    import xarray

    shape = tuple(len(np.asarray(each)) for each in labels.values())
    places = [k for k, row in enumerate(rows) if row is not None]
    kept = [row for row in rows if row is not None]
    if kept:
        _check_names(labels, kept[0])
    kept = _at_common_times(kept)
    found = list(xarray.align(*kept, join="outer", copy=False))
    variables = {}
    for name in dict.fromkeys(name for row in found for name in row.data_vars):
        have = [k for k, row in enumerate(found) if name in row]
        like = found[have[0]][name]
        values = np.stack([found[k][name].values for k in have])
        if values.dtype == object and kept[have[0]][name].dtype == bool:
            values = values.astype(float)  # aligned, with NaN
        if len(have) < len(rows):
            kind = object if values.dtype.kind in "USO" else np.result_type(values, np.float64)
            held = np.full((len(rows), *like.shape), "" if kind is object else np.nan, kind)
            held[[places[k] for k in have]] = values
            values = held
        variables[name] = ((*labels, *like.dims), values.reshape(shape + like.shape), like.attrs)
    coords = {name: at for row in reversed(found) for name, at in row.coords.items()}
    return xarray.Dataset(variables, coords | {name: np.asarray(x) for name, x in labels.items()})


def _check_names(axes: Mapping[str, Any], row: Dataset) -> None:
    """Raise InputError where an axis has the name of something in a row."""
    if taken := set(axes) & {*row.variables, *row.dims}:
        raise InputError(
            f"{', '.join(sorted(map(str, taken)))} is an axis of the grid, and a quantity or a "
            "dimension of the runs: give one of them another name"
        )


def _at_common_times(rows: list[Dataset]) -> list[Dataset]:
    """Return rows whose times are equal where they differ by rounding alone."""
    for dim in ("time", "snapshot"):
        places = [k for k, row in enumerate(rows) if dim in row.indexes]
        if places and all(rows[k][dim].dtype.kind in "iuf" for k in places):
            times = same_times(*(rows[k][dim].values for k in places))
            rows = list(rows)
            for k, t in zip(places, times, strict=True):
                rows[k] = rows[k].assign_coords({dim: (dim, t)})
    return rows


def _form(row: Dataset) -> dict[str, str]:
    """Return the dimensions of every variable, with their sizes where no coordinate aligns them."""

    def text(dim: Any) -> str:
        return str(dim) if dim in row.coords else f"{dim}: {row.sizes[dim]}"

    return {str(name): ", ".join(map(text, row[name].dims)) for name in row.data_vars}


def at_end(run: Dataset) -> Dataset:
    """Return what a sweep keeps of a run by default; see `sweep`."""
    import xarray

    def described(values: Any, text: str) -> tuple[Any, Any, dict[str, str]]:
        return values.dims, values.values, {"long_name": text, "units": "1"}

    series = [name for name in run if run[name].dims == ("path", "time")]
    last = run.isel(time=-1)
    found = {"blew_up": described(last[series[0]].isnull(), "whether the path blew up")}
    if "energy" in run:
        change = last["energy"] - run["energy"].isel(time=0)
        found["energy"] = described(last["energy"], "energy E at the end")
        found["energy_change"] = described(change, "change of the energy E")
        text = f"{VARIABLES['dissipated'].long_name} over the run"
        found["dissipated"] = described(last["dissipated"], text)
        largest = abs(run["edi_residual"]).max("time", skipna=False)
        text = "largest residual of the energy balance in size"
        found["edi_residual"] = described(largest, text)
    else:
        found["speed_sq"] = described(last["speed_sq"], "mean squared speed at the end")
    coords = {"path": run["path"].values}
    if "tokens" in run and run.sizes["token"] > 1:
        n, tokens = run.sizes["token"], run["tokens"].isel(snapshot=-1)
        square = (tokens.mean("token") ** 2).sum("axis", skipna=False)
        cosine = np.full(len(coords["path"]), np.nan)
        cosine[np.searchsorted(coords["path"], tokens["snapshot_path"].values)] = (
            n * square.values - 1
        ) / (n - 1)
        attrs = {"long_name": "mean cosine of pairs of tokens at the last snapshot", "units": "1"}
        found["mean_cosine"] = (("path",), cosine, attrs)
    return xarray.Dataset(found, coords)


def _reduced(run: Dataset, reduce: Callable[..., Any] | None, point: Point) -> Dataset:
    """Return the quantities of a run, those of the user among them."""
    import xarray

    kept = at_end(run)
    if reduce is None:
        return kept
    try:
        given = point.reduced(reduce, run)
    except Exception as error:
        error.add_note(f"in reduce, at the point {point.text}")
        raise
    try:
        if not isinstance(given, Mapping | xarray.Dataset):
            raise TypeError(f"reduce returned {shown(given)}")
        own = given if isinstance(given, xarray.Dataset) else xarray.Dataset(given)
        if lists := [name for name in given if name in own.dims]:
            raise TypeError(f"{lists[0]!r} has no dimensions of its own")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{' '.join(str(error).split())}, at the point {point.text}: expected a dict of "
            "numbers, of DataArrays or of (dimensions, array) by name, or a Dataset"
        ) from None
    own = own.drop_vars([name for name in own.coords if name not in own.dims]).load()
    if FAILURE in {*own.variables, *own.dims}:
        raise InputError(
            f"reduce returns {FAILURE}, under which the table has messages: give it another name"
        )
    both = [name for name in own.data_vars if name in kept]
    try:
        return kept.drop_vars(both).merge(own).drop_attrs(deep=False)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise InputError(f"what reduce returns at the point {point.text}: {text}") from None


# The sweep
# ---------


def sweep(
    grid: Mapping[str, Any],
    x0: ArrayLike | Callable[..., ArrayLike] | None = None,
    law: HeadLaw | Callable[..., HeadLaw] | None = None,
    *,
    reduce: Callable[..., Any] | None = None,
    on_error: OnError = "nan",
    out: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | Client | None = None,
    security: Security | None = None,
    progress: bool = False,
    **solve: Any,
) -> Dataset:
    r"""Compute a run at every point of a grid of arguments, and return one table of their results.

    An axis of the grid is an argument of `wflow.solve`, such as ``kappa``, or a name of your own on
    which arguments depend, such as ``heads=lambda beta: [beta * np.eye(3)]``.

    Parameters
    ----------
    grid : dict of str to sequence, array_like or dict
        Axis -> values. Numbers and texts label themselves, other objects have their repr or their
        place as label, and their place in the names of files; a dict label -> value gives other
        labels.
    x0 : array_like, shape (n, d) or (paths, n, d), or callable, optional
        Initial tokens, as for `wflow.solve`. This and every other argument may be a function, whose
        parameters are names of axes.
    law : wflow.heads.HeadLaw or callable, optional
        How the heads move.
    reduce : callable, optional
        Function of the Dataset of a run that returns more quantities of it: a dict of numbers, of
        DataArrays or of (dimensions, array) by name, or a Dataset. Every point returns the same
        names and dimensions; series are aligned at common times. Further parameters are names of
        axes.
    on_error : {"nan", "raise"}, default "nan"
        What happens where all paths of a run blow up: NaN, with the message in `failure` and one
        AccuracyWarning, or the error.
    out : str or pathlib.Path, optional
        Folder for the run files, which is made. A sweep that is called again continues what was
        interrupted, and computes only the points that are missing; `reduce` is applied again. A
        longer `t_final` extends finished runs, unless workers or a scheduler compute them.
        Without it the runs are dropped when they are reduced.
    workers : int, optional
        Worker processes started on this machine for this call, with `out`; None computes one point
        after the other in this process, on the threads of ``compute=wflow.Compute(threads=)``.
    scheduler : str or distributed.Client, optional
        Address of a dask scheduler, or a client of it, with `out`.
    security : distributed.Security, optional
        Certificates for an address such as "tls://host:8786".
    progress : bool, default False
        Whether to show a bar with the time left.
    **solve
        Further arguments of `wflow.solve`, the same at every point or functions of axes. All points
        have the same `seed`, unless it is an axis.

    Returns
    -------
    xarray.Dataset
        Variables over the axes of the grid and (path,): `energy`, `energy_change` and `dissipated`
        at the end, `edi_residual`, the largest in size, or without an energy `speed_sq`;
        `mean_cosine` of pairs of tokens at the last snapshot, for the paths that have one;
        `blew_up`; and what `reduce` returns. The coordinate `failure` is the message of a point
        that failed, or "".

    Raises
    ------
    InputError
        For a grid, arguments or parameters of `reduce` that cannot be used at some point, and for a
        folder whose files are of other runs: before anything is computed. For what `reduce`
        returns: at the first point.
    BlowUpError
        Where all paths of a run blow up, with ``on_error="raise"``.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM, with `out`.

    See Also
    --------
    wflow.plots.sweep : Curves and phase diagrams of the table.
    wflow.solve : One run.

    Notes
    -----
    Mean cosine of n tokens: :math:`(n\,|\frac1n\sum_i x_i|^2 - 1)/(n - 1)`.

    The numbers are bitwise identical for any number of threads or workers, interrupted or not. The
    run of a point is a file such as ``kappa=0.1,seed=2.h5`` in `out`; a new value of an axis adds
    files. A point that blew up is tried again from its last checkpoint.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> table = wflow.sweep(
    ...     {"beta": [1.0, 4.0], "seed": range(3)},
    ...     lambda seed: wflow.tokens.uniform(n=20, d=3, seed=seed),
    ...     wflow.heads.Frozen(), heads=lambda beta: [beta * np.eye(3)], direction="ascent",
    ...     t_final=0.5, dt=0.05, reduce=lambda run: {"records": run.sizes["time"]},
    ... )
    >>> table["energy"].dims, table["records"].values.tolist()
    (('beta', 'seed', 'path'), [[11, 11, 11], [11, 11, 11]])
    >>> table["energy_change"].mean(["seed", "path"]).values.round(3).tolist()
    [0.02, 1.917]
    >>> list(table.to_dataframe().index.names)
    ['beta', 'seed', 'path']
    """
    given = {"x0": x0, "law": law}
    if own := _OWN & set(solve):
        raise InputError(f"{', '.join(sorted(own))}: the sweep itself gives it to each run")
    arguments = {name: value for name, value in given.items() if value is not None} | solve
    labels, all_points = points(grid, arguments, reduce)
    for name in ("x0", "law", "t_final"):
        if name not in arguments and name not in labels:
            raise InputError(f"{name} is missing: give it as an argument, or as an axis")
    check_choice("on_error", on_error, get_args(OnError))
    workers = 0 if workers is None else whole(workers, "workers", 0)
    bar = switch(progress, "progress")
    folder = None if out is None else path_of(out, "out")
    if folder is None and (workers or scheduler is not None):
        raise InputError("workers and scheduler exchange files: give out, a folder, as well")
    if workers and scheduler is not None:
        raise InputError("workers starts a cluster and scheduler joins one: give one of them")
    if workers:
        check_main_guard()
    here = not workers and scheduler is None

    def task_of(point: Point) -> dict[str, Any]:
        task = point.task()
        compute = option(task.get("compute", Compute()), Compute, "compute")
        threads = compute.threads or default_threads(workers)
        task["compute"] = replace(compute, threads=threads)
        if folder is None:
            return task
        return task | {"out": folder / f"{point.name}.h5", "if_exists": "resume", "progress": bar}

    failures: dict[str, str] = {}
    rows: list[Dataset | None] = []
    forms: dict[str, str] = {}
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(_continuable(folder))
            stack.enter_context(own_folder(folder, "sweep", option="out"))
        done = {point.name for point in all_points if _is_done(point, task_of, here)}
        runs = _in_memory(all_points, task_of, failures, on_error)
        if folder is not None:
            shared = solve.get("compute")
            each = shared.threads if isinstance(shared, Compute) else None
            compute = stack.enter_context(pool(workers, scheduler, security=security, threads=each))
            runs = _in_files(all_points, folder, done, task_of, failures, on_error, compute, here)
        advance = stack.enter_context(shown_progress(len(all_points), "points", bar and here))
        for point, run in zip(all_points, runs, strict=True):
            if run is None:
                rows.append(None)
            else:
                with run:
                    row = _reduced(run, reduce, point)
                if not forms:
                    size = 2 * row.nbytes * len(all_points)
                    check_memory(size, f"a table of {len(all_points)} points", "reduce to less")
                _check_names(labels, row)
                form = _form(row)
                if differ := [name for name in form if forms.get(name, form[name]) != form[name]]:
                    raise InputError(
                        f"at the point {point.text} {', '.join(differ)} has other dimensions or "
                        "sizes than at the points before: give a dimension whose size differs a "
                        "coordinate"
                    )
                forms |= form
                rows.append(row)
            advance(1)
    return _finished(labels, all_points, rows, failures, on_error)


def _is_done(point: Point, task_of: Callable[[Point], dict[str, Any]], here: bool) -> bool:
    """Check the arguments of a point and its file; return whether that holds the whole run."""
    from wflow.particles.problem import problem_of_task

    try:
        task = task_of(point)
        problem = problem_of_task(task)
        if (file := task.get("out")) is None:
            return False
        status = run_status(file)
        if status == "absent" and not manifest_of(file).exists():
            check_target(file, problem.layout(), overwrite=False)
            return False
        asked = problem.config()
        check_comparable(asked)
        differ = config_differences(file, asked)
        if not differ:
            return status == "complete"
        if status != "complete":
            reason = f"holds a run of another sweep (differs in {', '.join(differ)})"
        elif not (reason := not_extensible(file, asked, problem.layout())) and not here:
            reason = "would be extended, which needs a sweep without workers and scheduler"
        if reason:
            raise InputError(
                f"{file} {reason}: give another out, or the arguments that it was made with"
            )
        return False
    except InputError as error:
        raise InputError(f"at the point {point.text}: {error}") from None
    except Exception as error:  # of a function of the user
        error.add_note(f"at the point {point.text}")
        raise


def _in_memory(
    found: Sequence[Point],
    task_of: Callable[[Point], dict[str, Any]],
    failures: dict[str, str],
    on_error: OnError,
) -> Iterator[Dataset | None]:
    """Yield the run of every point; None where it failed."""
    from wflow.particles.solver import solve

    for point in found:
        try:
            yield solve(**task_of(point))
        except BlowUpError as error:
            _fail(point, error, failures, on_error)
            yield None


def _in_files(
    found: Sequence[Point],
    folder: Path,
    done: Container[str],
    task_of: Callable[[Point], dict[str, Any]],
    failures: dict[str, str],
    on_error: OnError,
    compute: Pool,
    here: bool,
) -> Iterator[Dataset | None]:
    """Yield the run of every point from its file; workers compute all of them first."""
    by_stem = {point.name: point for point in found}

    def failed(file: Path, error: BlowUpError) -> None:
        _fail(by_stem[file.stem], error, failures, on_error)

    if not here:
        compute([task_of(point) for point in found if point.name not in done], failed)
    for point in found:
        if here and point.name not in done:
            compute([task_of(point) | {"progress": False}], failed)
        yield None if point.name in failures else open_run(folder / f"{point.name}.h5")


def _fail(point: Point, error: BlowUpError, failures: dict[str, str], on_error: OnError) -> None:
    if on_error == "raise":
        error.args = (f"at the point {point.text}: {error.args[0]}",)
        raise error
    failures.setdefault(point.name, str(error.args[0]))


@contextmanager
def _continuable(folder: Path) -> Iterator[None]:
    """Say how a sweep is continued that a signal ended."""
    text = f"ended the sweep; what was computed is kept in {folder}: call it again to continue"
    try:
        with signals_as_errors(text):
            yield
    except Interrupted as error:  # of a run, which knows nothing of the sweep
        raise interrupted(error.signum, text) from None


def _finished(
    labels: Mapping[str, NDArray[Any]],
    found: Sequence[Point],
    rows: Sequence[Dataset | None],
    failures: Mapping[str, str],
    on_error: OnError,
) -> Dataset:
    """Return the table of all points with its attributes and messages."""
    result = table(labels, rows)
    if on_error == "nan":
        messages = np.array([failures.get(point.name, "") for point in found])
        shape = tuple(map(len, labels.values()))
        attrs = {"long_name": "message of a point that failed"}
        # A coordinate, which arithmetic with the table passes over.
        result.coords[FAILURE] = (tuple(labels), messages.reshape(shape), attrs)
    if failures:
        if "blew_up" in result:
            blew_up = result["blew_up"].where(result[FAILURE] == "", 1.0)
            result["blew_up"] = blew_up if blew_up.isnull().any() else blew_up.astype(bool)
        place = next(point for point in found if point.name in failures)
        warn(
            f"{len(failures)} of {len(found)} points failed, the first at {place.text}: their "
            f"values are NaN, and `{FAILURE}` says why (on_error='raise' ends the sweep)",
            AccuracyWarning,
        )
    return result.assign_attrs(
        {
            AXES: " ".join(labels),
            "Conventions": CONVENTIONS,
            "source": f"wflow {version_of('wflow')}",
            "history": history_line(command_text()),
        }
    )
