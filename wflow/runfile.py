"""Run files: written as the run goes, resumable after any death of the process, read lazily.

While a run goes its data lies in `NAME.partial` and its resumable state in `NAME.checkpoint`.
The netCDF-4 file is laid out at the start, every variable in one piece and filled with NaN; from
then on only bytes of values change, at places known beforehand. So the file can be read at any
moment, whenever the process dies, and a full disk shows at the start and not after hours.
"""

import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow import _rundisk, _runread
from wflow._rundisk import Index, disk_error
from wflow._runread import checkpoint_of, differences, final_of, manifest_of, partial_of, parts_of
from wflow._store import MemoryStore, Store
from wflow.errors import RunFileError
from wflow.schema import VARIABLES, RunLayout, config_text, dataset_attrs

if TYPE_CHECKING:
    import xarray

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


class RunWriter:
    """A Store on disk: `NAME.partial` while the run goes, `NAME` when it is finished.

    Made by `RunWriter.create` or `RunWriter.resume`.
    """

    def __init__(self, path: Path, created: str, places: _rundisk.Places) -> None:
        self.path = path
        self._created = created
        self._places = dict(places)
        try:
            self._file = open(partial_of(path), "r+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise disk_error(error, "open", partial_of(path)) from None
        try:
            _rundisk.lock(self._file, path)
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        layout: RunLayout,
        attrs: Mapping[str, Any],
        *,
        overwrite: bool = False,
    ) -> "RunWriter":
        """Lay out a new run file, take its space on the disk, and open it for writing.

        Parameters
        ----------
        path : name of the finished file
        layout : sizes of the run
        attrs : of `dataset_attrs`
        overwrite : replace what is there; the old file goes when the new one has its space

        Raises
        ------
        RunFileError
            For a path that exists, or a directory that is missing, read-only or full. Nothing
            is left behind.
        """
        path, created = final_of(path), str(attrs["created"])
        _rundisk.check_target(path, layout, overwrite)
        # A name of its own, so that what is replaced stays whole until its successor is.
        new = path.with_name(path.name + ".partial.new")
        try:
            _rundisk.lay_out(new, layout, attrs)
            with _runread.open_hdf5(new) as file:
                places = _runread.raw_layout(file, new)
            _rundisk.fill(new, layout, places)
            _rundisk.remove_run(path)
            os.replace(new, partial_of(path))
        except (OSError, RuntimeError) as error:  # HDF5 raises either where the disk fails
            _rundisk.remove(new)
            raise disk_error(error, "create", path) from None
        except BaseException:
            _rundisk.remove(new)
            raise
        return cls(path, created, places)

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], config: str | Mapping[str, Any]
    ) -> "tuple[RunWriter, dict[str, NDArray[Any]]]":
        """Open an unfinished run file where its last checkpoint left it.

        Parameters
        ----------
        path : name of the finished file
        config : JSON text (or mapping) of the run asked for; must equal that in the file

        Returns
        -------
        the writer, and the state that was last given to `checkpoint`

        Raises
        ------
        RunFileError
            For a file that is missing, complete, truncated, foreign, in use by another process
            or of another run, or a checkpoint that is missing or damaged.
        """
        path = final_of(path)
        partial = partial_of(path)
        if run_status(path) != "partial":
            raise RunFileError(
                f"{path} is complete: nothing to resume; open it, or run again with --overwrite"
                if path.exists()
                else f"{partial} does not exist: nothing to resume; start without --resume"
            )
        wanted = json.loads(config if isinstance(config, str) else config_text(config))
        with _runread.open_hdf5(partial) as file:
            attrs = _runread.read_attrs(file, partial)
            _runread.check_variables(file, partial)
            places = _runread.raw_layout(file, partial)
        stored = _runread.parse_config(attrs["config"], partial)
        changed = differences(stored, wanted)
        if changed:
            raise RunFileError(
                f"{partial} belongs to another run: {', '.join(changed)} differ; resume with the "
                "settings it was started with (attribute command), or start anew with --overwrite"
            )
        state = load_state(path)
        writer = cls(path, attrs["created"], places)
        try:
            if attrs["complete"]:  # it died between its last two acts
                _rundisk.set_complete(partial, 0)
                _rundisk.lock(writer._file, path)  # closing any view of the file drops a lock
        except BaseException:
            writer.abandon()
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
        spans, result = _rundisk.spans(shape, index)
        dtype = VARIABLES[name].dtype
        flat = np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype), result)).reshape(-1)
        data = flat.view(np.uint8)
        size = data.size // len(spans) if spans else 0
        try:
            for number, start in enumerate(spans):
                self._seek(name, start)
                _rundisk.write_all(self._file, data[number * size : (number + 1) * size])
        except OSError as error:
            raise disk_error(error, "write", partial_of(self.path), kept=True) from None

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Values of a variable at an index; NaN where none was written."""
        _, shape = self._places[name]
        spans, result = _rundisk.spans(shape, index)
        flat = np.empty(math.prod(result), VARIABLES[name].dtype)
        data = flat.view(np.uint8)
        size = data.size // len(spans) if spans else 0
        for number, start in enumerate(spans):
            self._seek(name, start)
            _rundisk.read_all(self._file, data[number * size : (number + 1) * size])
        return flat.reshape(result)

    def checkpoint(self, state: Mapping[str, ArrayLike]) -> None:
        """Save what a resumed run starts from, in one act, after the values recorded so far.

        Parameters
        ----------
        state : names to arrays of numbers or texts

        Raises
        ------
        RunFileError
            Where the disk is full, read-only or failing; the last checkpoint then stays.
        """
        path = checkpoint_of(self.path)
        new = path.with_name(path.name + ".new")
        arrays = {name: np.asarray(value) for name, value in state.items()}
        objects = [name for name, array in arrays.items() if array.dtype.hasobject]
        if objects:
            raise TypeError(f"a checkpoint holds numbers and texts, not objects: {objects}")
        arrays[_runread.MARK] = np.array(self._created)
        try:
            os.fsync(self._file.fileno())
            with open(new, "wb") as raw:
                np.savez(raw, **arrays)  # type: ignore[arg-type]
                raw.flush()
                os.fsync(raw.fileno())
            os.replace(new, path)
            _rundisk.sync_directory(path.parent)
        except OSError as error:
            _rundisk.remove(new)
            raise disk_error(error, "write", path, kept=True) from None
        except BaseException:
            _rundisk.remove(new)
            raise

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
        partial = partial_of(self.path)
        try:
            self._check_own(partial)
            os.fsync(self._file.fileno())
            _rundisk.set_complete(partial, 1)
            os.fsync(self._file.fileno())
            os.replace(partial, self.path)
            _rundisk.sync_directory(self.path.parent)
            _rundisk.remove(checkpoint_of(self.path))
        except (OSError, RuntimeError) as error:
            raise disk_error(error, "finish", partial, kept=True) from None
        finally:
            self._file.close()
        return self.path

    def abandon(self) -> None:
        """Close, and leave data and checkpoint where a later run resumes them."""
        self._file.close()

    def discard(self) -> None:
        """Close, and delete data and checkpoint: for a run that failed before its first record."""
        self._file.close()
        _rundisk.remove(partial_of(self.path), checkpoint_of(self.path))

    def _check_own(self, partial: Path) -> None:
        """Raise RunFileError where the file of that name is no longer the one written here.

        A worker whose run was replaced may live on: it must not call its successor's file whole.
        """
        if not os.path.samestat(os.fstat(self._file.fileno()), os.stat(partial)):
            raise RunFileError(f"{partial} was replaced by another process: this one ends")

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
    with _runread.open_hdf5(path) as file:
        complete = _runread.read_attrs(file, path)["complete"]
    if not complete:
        raise RunFileError(
            f"{path} is unfinished (complete = 0) but bears the name of a finished run; rename it "
            f"to {partial_of(path).name} to resume it, or run again with --overwrite"
        )
    return "complete"


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
    with _runread.open_hdf5(partial_of(path)) as file:
        created = _runread.read_attrs(file, partial_of(path))["created"]
    state = _runread.read_checkpoint(checkpoint_of(path))
    if str(state.pop(_runread.MARK)) != created:
        raise RunFileError(
            f"{checkpoint_of(path)} belongs to another run than {partial_of(path)}; "
            "start the run again with --overwrite"
        )
    return state


def open_run(path: str | os.PathLike[str]) -> "xarray.Dataset":
    """Open a run file as a Dataset that reads values when they are used.

    An unfinished run (`NAME.partial`, given by that name or as NAME) is cut to the times that
    were recorded, has the attribute complete = 0, and comes with a warning.

    Parameters
    ----------
    path : run file

    Returns
    -------
    xarray.Dataset with the names of docs/run_file.md; close it, or use it in a `with`

    Raises
    ------
    RunFileError
        For a file that is missing, truncated, or not a run file.
    """
    import xarray

    path = Path(path)
    if not path.exists() and partial_of(path).exists():
        path = partial_of(path)
    if not path.exists() and manifest_of(path).exists():
        raise RunFileError(
            f"{path} is not complete: what was computed of it is in {parts_of(path)}; finish it "
            "with --resume"
        )
    with _runread.open_hdf5(path) as file:
        attrs = _runread.read_attrs(file, path)
        _runread.check_variables(file, path)
        ends = {dim: _runread.recorded(file, dim) for dim in ("time", "snapshot")}
    source: Any = str(path)
    if not attrs["complete"]:  # a Python file, for the reasons given in open_hdf5
        source = open(path, "rb")  # noqa: SIM115
    try:
        dataset = xarray.open_dataset(source, engine="h5netcdf", decode_times=False)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        if not attrs["complete"]:
            source.close()
        raise RunFileError(f"{path} cannot be read as a run file: {error}") from None
    dataset.attrs["complete"] = attrs["complete"]
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
        f"{path} is not complete: it was recorded up to {reached} "
        f"({ends['time']} of {dataset.sizes['time']} times); finish it with --resume",
        stacklevel=2,
    )
    return cut
