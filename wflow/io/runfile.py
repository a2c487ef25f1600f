"""Run files: written while a run is computed, resumable after a kill, read lazily.

While a run is computed its data is in `NAME.partial` and its resumable state in `NAME.checkpoint`.
The netCDF-4 file is laid out at the start, every variable in one piece and filled with NaN; from
then on only bytes of values change, at places known beforehand. So the file can be read at any
time, also after a kill, and a full disk is reported at the start and not after hours.
"""

import contextlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import path_of
from wflow._core.errors import RunFileError
from wflow._core.files import draft_of, open_hdf5, open_regular, replace_file
from wflow._core.printable import printable
from wflow._core.progress import progress as progress_bar
from wflow._core.signals import signals_held
from wflow.io import disk, reading
from wflow.io.digests import Digests, damaged, metadata_digest
from wflow.io.disk import Index, disk_error
from wflow.io.reading import checkpoint_of, differences, final_of, manifest_of, partial_of, parts_of
from wflow.io.schema import (
    RESUME,
    SCHEMA,
    VARIABLES,
    Layout,
    RunLayout,
    command_text,
    config_text,
    dataset_attrs,
    history_line,
    history_text,
)

if TYPE_CHECKING:
    import xarray

    from wflow.io.lazy import Contents


__all__ = [
    "MemoryStore",
    "RunLayout",
    "RunWriter",
    "Store",
    "checkpoint_of",
    "config_text",
    "dataset_attrs",
    "differences",
    "load_state",
    "open_run",
    "run_status",
]


# Stores of the values of a run
# -----------------------------


class Store(Protocol):
    """Destination of the values of a run.

    `index` has one entry per leading dimension of the variable: an int, a slice of step one, or
    (at most one of them) a sequence of ints; dimensions left out are taken whole.
    """

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index; `values` broadcasts."""

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Values of a variable at an index; NaN where none was written."""


class MemoryStore:
    """A Store of arrays in memory, for runs without a file."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._arrays = {name: np.full(layout.shape(name), np.nan) for name in layout.names}

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index; `values` broadcasts."""
        self._arrays[name][index] = values

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Values of a variable at an index; NaN where none was written."""
        return np.array(self._arrays[name][index])

    def dataset(self, attrs: Mapping[str, Any], *, complete: bool = True) -> "xarray.Dataset":
        """Give the run as a Dataset, equal to that of `open_run` for the same values.

        Parameters
        ----------
        attrs : of `dataset_attrs`
        complete : whether the run reached its end

        Returns
        -------
        xarray.Dataset that shares the arrays of this store
        """
        import xarray

        layout = self.layout
        return xarray.Dataset(
            {
                name: (layout.dims(name), array, VARIABLES[name].attrs)
                for name, array in self._arrays.items()
            },
            coords={
                name: (VARIABLES[name].dims, values, VARIABLES[name].attrs)
                for name, values in layout.coordinates().items()
            },
            attrs={**attrs, "complete": int(complete)},
        )


class RunWriter:
    """A Store on disk: `NAME.partial` while the run is computed, `NAME` when it is finished.

    Made by `RunWriter.create` or `RunWriter.resume`.
    """

    def __init__(
        self,
        path: Path,
        lock: disk.RunLock,
        created: str,
        places: disk.Places,
        digests: Digests | None,
        history: Sequence[str] = (),
        laid_out: tuple[Layout, Mapping[str, Any]] | None = None,
    ) -> None:
        self.path = path
        self._laid_out = laid_out  # layout and attributes; None: the run is resumed
        self._finished: os.stat_result | None = None
        self._lock, self._created, self._places = lock, created, dict(places)
        self._digests = digests  # None: a file of an earlier version, which has none
        # The file has the first text until it is finished; lines of resumes join it then.
        self._history = list(history)
        try:
            self._file = open(partial_of(path), "r+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise disk_error(error, "open", partial_of(path)) from None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        layout: Layout,
        attrs: Mapping[str, Any],
        *,
        overwrite: bool = False,
    ) -> "RunWriter":
        """Lay out a new run file, allocate its space on the disk, and open it for writing.

        Parameters
        ----------
        path : name of the finished file
        layout : sizes of the run
        attrs : of `dataset_attrs`
        overwrite : replace what is there; the old file is removed when the new one has its space

        Raises
        ------
        RunFileError
            For a path that exists, a run that another process writes, or a directory that is
            missing, read-only or full. Nothing is left behind.
        """
        path, created = final_of(path), str(attrs["created"])
        disk.check_target(path, layout, overwrite)
        lock = disk.RunLock(path)
        # A unique name, so that what is replaced stays whole until its successor is.
        new = draft_of(partial_of(path))
        try:
            # Another process may have begun, and ended, between the check and the lock.
            disk.check_target(path, layout, overwrite)
            disk.remove_drafts_of(path)
            places = disk.lay_out(new, layout, attrs)
            disk.fill(new, layout, places)
            with open(new, "rb", buffering=0) as raw:
                digests = Digests(places, metadata_digest(raw, places), raw.seek(0, os.SEEK_END))
                for name, values in layout.coordinates().items():
                    digests.update(name, 0, values.view(np.uint8).data)
            if overwrite:
                disk.remove_run(path)
            disk.remove(checkpoint_of(path))  # of a run that is gone
            disk.place(new, partial_of(path))
            history = [attrs["history"]] if "history" in attrs else []
            return cls(path, lock, created, places, digests, history, (layout, dict(attrs)))
        except BaseException as error:
            disk.remove(new)
            lock.release()
            if isinstance(error, OSError | RuntimeError):  # HDF5 raises either where the disk fails
                raise disk_error(error, "create", path) from None
            raise

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        config: str | Mapping[str, Any],
        *,
        progress: bool = False,
    ) -> "tuple[RunWriter, dict[str, NDArray[Any]]]":
        """Open an unfinished run file where its last checkpoint left it.

        What was recorded before the checkpoint is compared with its digests.

        Parameters
        ----------
        path : name of the finished file
        config : JSON text (or mapping) of the run asked for; must equal that in the file
        progress : show how far the comparison has come

        Returns
        -------
        the writer, and the state that was last given to `checkpoint`

        Raises
        ------
        RunFileError
            For a file that is missing, complete, truncated, damaged, foreign, in use by another
            process or of another run, or a checkpoint that is missing or damaged.
        """
        path = final_of(path)
        unfinished = partial_of(path)
        _check_unfinished(path)
        wanted = json.loads(config if isinstance(config, str) else config_text(config))
        disk.check_replaceable(unfinished)
        lock = disk.RunLock(path)
        writer = None
        try:
            _check_unfinished(path)  # another process may have ended it between check and lock
            disk.remove_drafts_of(path)
            with open_hdf5(unfinished) as file:
                attrs = reading.read_attrs(file, unfinished)
                reading.check_variables(file, unfinished)
                places = reading.raw_layout(file, unfinished)
                shows = reading.history_of(file)
            stored = reading.parse_config(attrs["config"], unfinished)
            changed = differences(stored, wanted)
            if changed:
                raise RunFileError(
                    f"{unfinished} belongs to another run: {', '.join(changed)} differ; resume "
                    "with the settings it was started with (attribute command), or run again with "
                    "--overwrite"
                )
            state, digests = _split(_checked_checkpoint(path, attrs["created"]))
            end = int(digests["end"]) if "end" in digests else None
            history = [str(line) for line in digests.get("history", ())]
            begun = history[0] if history else None
            sealed = attrs["complete"] or (end is not None and unfinished.stat().st_size > end)
            if sealed or (begun is not None and shows != begun):
                try:
                    disk.unseal(unfinished, end, begun)  # killed between its last writes
                except (RuntimeError, KeyError, ValueError, TypeError):  # of HDF5
                    what = "its names and attributes"
                    raise damaged(unfinished, what, "run again with --overwrite") from None
            if not digests and attrs["schema"] == SCHEMA:
                raise RunFileError(
                    f"{checkpoint_of(path)} lacks the digests of the run file; run again with "
                    "--overwrite"
                )
            history += [history_line(f"resumed by {command_text()}")] if history else []
            writer = cls(path, lock, attrs["created"], places, None, history)
            if digests:
                size = Digests.size(digests)
                with progress_bar(size, "checking what was recorded", progress) as tick:
                    writer._digests = Digests.restored(
                        places, digests, writer._file, unfinished, tick
                    )
        except BaseException as error:
            if writer is not None:
                writer._file.close()
            lock.release()
            if isinstance(error, OSError):
                raise disk_error(error, "read", unfinished) from None
            raise
        return writer, state

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index; `values` broadcasts.

        Raises
        ------
        RunFileError
            Where the disk is full, read-only or failing; what was recorded stays.
        """
        _, shape = self._places[name]
        spans, result = disk.spans(shape, index)
        dtype = VARIABLES[name].dtype
        flat = np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype), result)).reshape(-1)
        data = flat.view(np.uint8)
        size = data.size // len(spans) if spans else 0
        try:
            for number, start in enumerate(spans):
                piece = data[number * size : (number + 1) * size]
                self._seek(name, start)
                disk.write_all(self._file, piece)
                if self._digests is not None:
                    at = start * np.dtype(dtype).itemsize
                    self._digests.update(name, at, piece.data)
        except OSError as error:
            raise disk_error(error, "write", partial_of(self.path), kept=True) from None

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Values of a variable at an index; NaN where none was written."""
        _, shape = self._places[name]
        spans, result = disk.spans(shape, index)
        flat = np.empty(math.prod(result), VARIABLES[name].dtype)
        data = flat.view(np.uint8)
        size = data.size // len(spans) if spans else 0
        for number, start in enumerate(spans):
            self._seek(name, start)
            disk.read_all(self._file, data[number * size : (number + 1) * size])
        return flat.reshape(result)

    def checkpoint(self, state: Mapping[str, ArrayLike]) -> None:
        """Save the state of a resumable run atomically, after the values recorded so far.

        Parameters
        ----------
        state : names to arrays of numbers or texts

        Raises
        ------
        RunFileError
            Where the disk is full, read-only or failing; the last checkpoint then stays.
        """
        path = checkpoint_of(self.path)
        arrays = {name: np.asarray(value) for name, value in state.items()}
        objects = [name for name, array in arrays.items() if array.dtype.hasobject]
        if objects:
            raise TypeError(f"a checkpoint holds numbers and texts, not objects: {objects}")
        arrays[reading.MARK] = np.array(self._created)
        self._check_own()
        if self._digests is not None:
            digests = self._digests.state(self._file)
            arrays |= {reading.DIGESTS + name: value for name, value in digests.items()}
            if self._history:
                arrays[reading.DIGESTS + "history"] = np.array(self._history)
        reading.seal_checkpoint(arrays)

        def save(draft: Path) -> None:
            with open(draft, "wb") as raw:  # a path would get the ending .npz
                np.savez(raw, **arrays)  # type: ignore[arg-type]

        try:
            os.fsync(self._file.fileno())
            replace_file(path, save)
            disk.sync_directory(path.parent)
        except OSError as error:
            raise disk_error(error, "write", path, kept=True) from None

    def add_history(self, line: str) -> None:
        """Add a line to the attribute `history`, which the file has when it is finished."""
        self._history += [line] if self._history else []

    def finish(self) -> Path:
        """Mark the run complete, give the file its final name and drop the checkpoint.

        Returns
        -------
        path of the finished file

        Raises
        ------
        RunFileError
            Where the disk fails; the run can then still be resumed. Where another process has
        replaced the run; its file stays as it is.
        """
        unfinished = partial_of(self.path)
        try:
            self._check_own()
            if os.path.lexists(self.path):
                raise RunFileError(
                    f"{self.path} was made by another program while the run was computed; move it, "
                    f"then resume: the run is whole in {unfinished}"
                )
            self._seal(unfinished)
            os.fsync(self._file.fileno())  # where it fails, a resume breaks the seal
            self._finished = os.fstat(self._file.fileno())
            os.replace(unfinished, self.path)
            disk.sync_directory(self.path.parent)
            disk.remove(checkpoint_of(self.path))
        except (OSError, RuntimeError) as error:
            raise disk_error(error, "finish", unfinished, kept=True) from None
        finally:
            self.abandon()
        return self.path

    def dataset(self) -> "xarray.Dataset":
        """Give the finished run as a Dataset, equal to that of `open_run`.

        A run that was not resumed is opened without reading what it holds, which is known: to read
        and check it takes two fifths of a small run's time for its file.

        Raises
        ------
        RunFileError
            Where the file has gone, or cannot be read.
        """
        if self._laid_out is None or not self._in_place():
            return open_run(self.path)
        from wflow.io import lazy

        layout, attrs = self._laid_out
        config = json.dumps(reading.parse_config(attrs["config"], self.path))
        shown = {**attrs, "config": config, "complete": 1}
        if self._history:
            shown["history"] = history_text(self._history)
        dataset = _lazily(self.path, str(self.path), lazy.of_layout(layout, shown))
        dataset.attrs["complete"] = 1  # an int, as `open_run` gives it
        return dataset

    def _in_place(self) -> bool:
        """Whether the file of that name is still the one that was finished here."""
        try:
            return self._finished is not None and os.path.samestat(
                self._finished, os.stat(self.path)
            )
        except OSError:
            return False

    def abandon(self) -> None:
        """Close, and leave data and checkpoint where a later run resumes them."""
        self._file.close()
        self._lock.release()

    def discard(self) -> None:
        """Close, and delete data and checkpoint: for a run that failed before its first record."""
        self._file.close()
        disk.remove(partial_of(self.path), checkpoint_of(self.path))
        self._lock.release()

    def _seal(self, unfinished: Path) -> None:
        """Mark the file complete, and end it with its digests.

        Raises
        ------
        RunFileError
            Where names or attributes have changed while the run was computed.
        """
        digests = self._digests
        if digests and metadata_digest(self._file, self._places) != digests.metadata:
            raise damaged(unfinished, "its names and attributes", "run again with --overwrite")
        disk.set_complete(unfinished, 1, history_text(self._history) if self._history else None)
        if digests is None:
            return
        try:
            line = np.frombuffer(digests.line(self._file), np.uint8)
            self._file.seek(0, os.SEEK_END)
            disk.write_all(self._file, line)
        except OSError:  # a full disk, say: the run can be resumed
            with contextlib.suppress(OSError):
                disk.unseal(unfinished, digests.end, self._history[0] if self._history else None)
            raise

    def _check_own(self) -> None:
        """Raise RunFileError where the file of that name is no longer the one written here.

        A worker whose run was replaced may continue: it must not mark its successor's file whole.
        """
        own, path = os.fstat(self._file.fileno()), partial_of(self.path)
        try:
            replaced = not os.path.samestat(own, os.stat(path))
        except FileNotFoundError:
            disk.remove(checkpoint_of(self.path))
            raise RunFileError(
                f"{path} was removed while the run was writing it: nothing of this run is left, "
                "and it cannot be resumed; run again"
            ) from None
        if replaced:
            raise RunFileError(f"{path} was replaced by another process: this one ends")

    def _seek(self, name: str, start: int) -> None:
        offset, _ = self._places[name]
        self._file.seek(offset + start * np.dtype(VARIABLES[name].dtype).itemsize)


def run_status(path: str | os.PathLike[str]) -> Literal["absent", "partial", "complete"]:
    """How far a run got: `absent`, `partial` (can be resumed or read), or `complete`.

    Parameters
    ----------
    path : name of the finished file, or of its .partial

    Raises
    ------
    RunFileError
        Where a file of that name is not a run file, or is an unfinished one under the name of
        a finished one.
    """
    path = final_of(path)
    if partial_of(path).exists():
        return "partial"
    if not path.exists():
        return "absent"
    with open_hdf5(path) as file:
        complete = reading.read_attrs(file, path)["complete"]
    if not complete:
        raise RunFileError(
            f"{path} is unfinished (complete = 0) but bears the name of a finished run; rename it "
            f"to {partial_of(path).name} to resume it, or run again with --overwrite"
        )
    return "complete"


def _check_unfinished(path: Path) -> None:
    if run_status(path) != "partial":
        raise RunFileError(
            f"{path} is complete: nothing to resume; open it, or run again with --overwrite"
            if path.exists()
            else f"{partial_of(path)} does not exist: nothing to resume; start without --resume"
        )


def never_started(path: Path, config: Mapping[str, Any] | None = None) -> bool:
    """Whether an unfinished run ended before its first checkpoint and recorded nothing.

    Parameters
    ----------
    path : name of the finished file
    config : only a run of this configuration counts; None: any

    Raises
    ------
    RunFileError
        For a file that is no run.
    """
    unfinished = partial_of(path)
    if checkpoint_of(path).exists() or not unfinished.exists():
        return False
    with open_hdf5(unfinished) as file:
        stored = reading.parse_config(reading.read_attrs(file, unfinished)["config"], unfinished)
        reading.check_variables(file, unfinished)
        if any(reading.recorded(file, dim) for dim in ("time", "snapshot")):
            return False
    return config is None or not differences(stored, json.loads(config_text(config)))


def load_state(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read the state in the checkpoint of an unfinished run.

    Parameters
    ----------
    path : name of the finished file, or of its .partial

    Returns
    -------
    dict of arrays, as last given to `RunWriter.checkpoint`

    Raises
    ------
    RunFileError
        For a checkpoint that is missing, damaged, foreign, or of another file.
    """
    path = final_of(path)
    with open_hdf5(partial_of(path)) as file:
        created = reading.read_attrs(file, partial_of(path))["created"]
    return _split(_checked_checkpoint(path, created))[0]


def _checked_checkpoint(path: Path, created: str) -> dict[str, NDArray[Any]]:
    """All arrays of the checkpoint of a run, if it is that of the file made at `created`."""
    arrays = reading.read_checkpoint(checkpoint_of(path))
    if str(arrays.pop(reading.MARK)) != created:
        raise RunFileError(
            f"{checkpoint_of(path)} belongs to another run than {partial_of(path)}; "
            "run again with --overwrite"
        )
    return arrays


State = dict[str, NDArray[Any]]


def _split(arrays: State) -> tuple[State, State]:
    """State of the solver, and of the digests of the run file."""
    key = reading.DIGESTS
    digests = {name[len(key) :]: array for name, array in arrays.items() if name.startswith(key)}
    return {name: array for name, array in arrays.items() if not name.startswith(key)}, digests


def open_run(path: str | os.PathLike[str]) -> "xarray.Dataset":
    """Open a run file as a Dataset that reads values when they are used.

    An unfinished run (`NAME.partial`, given by that name or as NAME) is cut to the times that were
    recorded, has the attribute complete = 0, and comes with a warning.

    Parameters
    ----------
    path : str or pathlib.Path
        Run file.

    Returns
    -------
    xarray.Dataset
        The recorded quantities, by the names of the run file; close it, or use it in a `with`.

    Raises
    ------
    InputError
        For a `path` that is no path.
    RunFileError
        For a file that is missing, truncated, or not a run file.

    Examples
    --------
    >>> import numpy as np, tempfile, wflow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     wflow.solve(
    ...         wflow.tokens.uniform(n=5, d=3, seed=0), wflow.heads.Frozen(),
    ...         heads=np.eye(3)[None], t_final=0.1, dt=0.05, out=f"{folder}/run.h5",
    ...     ).close()
    ...     with wflow.open(f"{folder}/run.h5") as run:
    ...         print(dict(run.energy.sizes))
    {'path': 1, 'time': 3}
    """
    from wflow.io import lazy

    path = path_of(path, "path")
    if not path.exists() and partial_of(path).exists():
        path = partial_of(path)
    if not path.exists() and manifest_of(path).exists():
        raise RunFileError(
            f"{path} is not complete: what was computed of it is in {parts_of(path)}; finish it "
            "with --resume"
        )
    ends: dict[str, int] = {}
    with open_hdf5(path) as file:
        attrs = reading.read_attrs(file, path)
        found = lazy.contents(file, reading.check_variables(file, path))
        if path == partial_of(final_of(path)):  # killed between its last two writes
            attrs["complete"] = 0
        if not attrs["complete"]:
            ends = {dim: reading.recorded(file, dim) for dim in ("time", "snapshot")}
    source: Any = str(path)
    if not attrs["complete"]:  # a Python file, for the reasons given in open_hdf5
        source = open_regular(path)
    try:
        dataset = _lazily(path, source, found)
    except RunFileError:
        if not attrs["complete"]:
            source.close()
        raise
    dataset.attrs |= {name: attrs[name] for name in ("complete", "config")}
    if attrs["complete"]:
        return dataset
    cut = dataset.isel({dim: slice(end) for dim, end in ends.items() if dim in dataset.sizes})

    def close() -> None:
        dataset.close()
        source.close()

    cut.set_close(close)
    cut.encoding["source"] = str(path)  # as xarray sets it where it opens the file itself
    reached = f"t = {float(cut['time'][-1]):g}" if ends["time"] else "its start"
    warnings.warn(
        f"{printable(str(path), lines=False)} is not complete: it was recorded up to {reached} "
        f"({ends['time']} of {dataset.sizes['time']} times); {RESUME}",
        stacklevel=2,
    )
    return cut


def _lazily(path: Path, source: Any, found: "Contents | None") -> "xarray.Dataset":
    """The file `source`, by its name or open, as a Dataset; `found` is what it holds, if known.

    Raises
    ------
    RunFileError
        For a file that cannot be read.
    """
    from wflow.io import lazy

    try:
        with signals_held():  # h5netcdf does not clean up after half an opening
            if found is None:
                return lazy.foreign_dataset(source)
            return lazy.open_dataset(source, found)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise RunFileError(f"{path} cannot be read as a run file: {error}") from None
