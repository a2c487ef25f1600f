"""Stores of the values of a run: in memory, or in a run file.

While a run is computed its data is in `NAME.partial` and its resumable state in `NAME.checkpoint`
(the state before that in `NAME.checkpoint.old`). HDF5 lays the file out at the start: every
variable in one piece, filled with NaN, with room for the attributes of the end. From then on values
are written at their places, without HDF5. So the file can be read at any time, also after a kill,
and a full disk is reported at the start and not after hours.
"""

import errno
import io
import itertools
import json
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.errors import RunFileError
from wflow._core.files import draft_of, drafts, open_hdf5
from wflow._core.progress import progress as progress_bar
from wflow._core.signals import signals_held
from wflow.runs import digests, disk, read
from wflow.runs.digests import Running, damaged
from wflow.runs.disk import disk_error
from wflow.runs.read import checkpoint_of, final_of, former_of, partial_of
from wflow.runs.schema import (
    COORDINATES,
    DIGESTS,
    HISTORY_BYTES,
    SCHEMA,
    STATE,
    Layout,
    command_text,
    config_text,
    history_line,
    history_text,
)

if TYPE_CHECKING:
    import xarray

Index = int | slice
State = Mapping[str, ArrayLike]
_RENEW = "run again with --overwrite"


class Store(Protocol):
    """Destination of the values of a run.

    `index` has one entry per leading dimension of the variable, an int or a slice of step one;
    dimensions left out are taken whole.
    """

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index; `values` broadcasts."""

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Read values of a variable at an index; NaN where none was written."""


class MemoryStore:
    """A Store of arrays in memory, for runs without a file."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._arrays = {
            name: np.full(
                layout.shape(name), layout.variables[name].fill, layout.variables[name].dtype
            )
            for name in layout.names
        }

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index; `values` broadcasts."""
        self._arrays[name][index] = values

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Read values of a variable at an index; NaN where none was written."""
        return np.array(self._arrays[name][index])

    def dataset(self, attrs: Mapping[str, Any], *, complete: bool = True) -> "xarray.Dataset":
        """Return the run as a Dataset, equal to that of `open_run` for the same values.

        Parameters
        ----------
        attrs : of `dataset_attrs`
        complete : whether the run reached its end

        Returns
        -------
        xarray.Dataset that shares the arrays of this store
        """
        import xarray

        layout, variables = self.layout, self.layout.variables
        return xarray.Dataset(
            {
                name: (layout.dims(name), array, variables[name].attrs)
                for name, array in self._arrays.items()
            },
            coords={
                name: (variables[name].dims, values, variables[name].attrs)
                for name, values in layout.coordinates().items()
            },
            attrs={**attrs, "complete": int(complete)},
        )


# HDF5 ends the process where a disk fails
# ----------------------------------------


class _Guarded(FileIO):
    """A file for HDF5, which no error may interrupt: the first error is raised at the end."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            write_all(super().write, np.frombuffer(data, np.uint8))
        except OSError as error:
            self.failure = self.failure or error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        if self.failure:  # what could not be written cannot be read
            memoryview(buffer).cast("B")[count:] = bytes(len(buffer) - count)
            return len(buffer)
        return count

    def check(self) -> None:
        """Raise the first error, if there was one."""
        if self.failure is not None:
            raise self.failure from None

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.check()  # also where HDF5 could not read what was not written


_HISTORY = h5py.string_dtype("utf-8", HISTORY_BYTES)  # changed in place at the end
_UNNAMED = "This is a netCDF dimension but not a netCDF variable."
Places = dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]]  # offset in bytes, shape, type


class _Variable(NamedTuple):
    """A variable in the layout of a file; `fill` is its initial value, NaN or 0."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    fill: float
    attrs: tuple[tuple[str, str], ...]


Structure = tuple[dict[str, Any], Places]  # from `digests.description`, and places of values
_SMALL = 1 << 20  # structures with at most so many bytes of values are cached


def lay_out(
    path: Path, layout: Layout, attrs: Mapping[str, Any], groups: Sequence[int], state: State
) -> Structure:
    """Create a netCDF-4 file with every variable in one piece, filled with NaN; complete = 0.

    Parameters
    ----------
    path : of the new file
    layout : sizes of the run
    attrs : attributes of the file
    groups : first path of each group of paths
    state : arrays (paths, ...) like those of the state of all paths at the end

    Returns
    -------
    what it holds, as `digests.description` reads it, and where the values of its variables lie

    Raises
    ------
    OSError
        Where the disk fails.
    """
    coordinates = layout.coordinates()
    variables = [_of_schema(name, layout) for name in (*coordinates, *layout.names)]
    for name, value in state.items():
        array = np.asarray(value)
        inner = (f"{STATE}/{name}_{axis}" for axis in range(1, array.ndim))
        dims = ("path", *inner)
        variables.append(_Variable(f"{STATE}/{name}", dims, array.shape, array.dtype.str, 0.0, ()))
    shown = {name: value for name, value in attrs.items() if name != "history"}
    shown["groups"] = np.asarray(groups)
    with signals_held(), _Guarded(path, "x+b") as raw:
        if layout.bytes <= _SMALL:
            image, described, places = _image(tuple(variables))
            raw.write(image)
        else:
            described, places = _structure(raw, variables)
        for name, values in coordinates.items():
            raw.seek(places[name][0])
            raw.write(values.view(np.uint8))
        raw.check()
        with h5py.File(raw, "r+") as file:
            for name, value in shown.items():  # numbers are arrays, as netCDF writes them
                file.attrs[name] = value if isinstance(value, str) else np.atleast_1d(value)
            file.attrs["complete"] = np.array([0])
            if "history" in attrs:
                history = np.array(attrs["history"].encode(), _HISTORY)
                file.attrs.create("history", history, dtype=_HISTORY)
            # The attribute gets its final length.
            room = len(json.dumps(dict.fromkeys(["", *described], "0" * 64)))
            file.attrs.create(DIGESTS, np.array(b"{}", f"S{room}"))
        os.fsync(raw.fileno())
    texts = {name: digests.plain(value) for name, value in shown.items()}
    return {"": texts, **described}, places


def _of_schema(name: str, layout: Layout) -> _Variable:
    variable = layout.variables[name]
    dims, attrs = layout.dims(name), tuple(variable.attrs.items())
    if variable.dtype == "|b1":
        attrs += (("dtype", "bool"),)  # as xarray stores it
    fill = 0.0 if name in COORDINATES else variable.fill
    return _Variable(name, dims, layout.shape(name), variable.stored, fill, attrs)


@lru_cache(maxsize=4)
def _image(variables: tuple[_Variable, ...]) -> tuple[bytes, dict[str, Any], Places]:
    """Return the bytes of a small structure; cached, since many runs of a study have the same."""
    raw = io.BytesIO()
    described, places = _structure(raw, variables)
    return raw.getvalue(), described, places


def _structure(raw: Any, variables: Sequence[_Variable]) -> Structure:
    """Create variables, and the dimensions that they name, in an empty file."""
    described: dict[str, Any] = {}
    places: Places = {}
    scales: dict[str, h5py.Dataset] = {}

    def scale(name: str, data: h5py.Dataset, title: str) -> None:
        data.make_scale(title)
        data.attrs["_Netcdf4Dimid"] = np.int32(len(scales))
        scales[name] = data

    with h5py.File(raw, "w", track_order=True) as file:
        for name, dims, shape, dtype, fill, attrs in variables:
            data = file.create_dataset(name, shape, dtype, fillvalue=fill, track_order=True)
            data[(0,) * len(shape)] = fill  # writing the first value makes HDF5 fill all others
            data.attrs.update(dict(attrs))
            if dims == (name,):
                scale(name, data, name)
            for dim, size in zip(dims, shape, strict=True):
                if dim not in scales:  # for it, netCDF-4 has a variable without values
                    empty = file.create_dataset(dim, (size,), ">f4", track_order=True)
                    scale(dim, empty, f"{_UNNAMED}{size:10}")
                    described[dim] = [empty.dtype.str, [size], [""], {}]
            for axis, dim in enumerate(dims):
                if dim != name:
                    data.dims[axis].attach_scale(scales[dim])
            numbers = [list(scales).index(dim) for dim in dims]
            data.attrs["_Netcdf4Coordinates"] = np.array(numbers, np.int32)
            shown = ["" if dim == name else dim.rpartition("/")[2] for dim in dims]
            described[name] = [data.dtype.str, list(shape), shown, dict(attrs)]
            places[name] = (int(data.id.get_offset()), shape, data.dtype)
    return described, places


def set_late(path: Path, complete: int, history: str | None, found: Mapping[str, str]) -> None:
    """Change the final attributes in place, unflushed, without disturbing readers of the file.

    Parameters
    ----------
    path : the file
    complete : 1 for a finished run, 0 for an unfinished one
    history : text of the attribute `history`; None where the file has none
    found : digests of the variables, and of the attributes

    Raises
    ------
    OSError
        Where the disk fails.
    """
    with signals_held(), _Guarded(path, "r+b") as raw, h5py.File(raw, "r+") as file:
        if history is not None:
            file.attrs.modify("history", np.array(history.encode(), _HISTORY))
        room = file.attrs.get_id(DIGESTS).dtype
        file.attrs.modify(DIGESTS, np.array(json.dumps(dict(found)).encode(), room))
        file.attrs.modify("complete", np.array([complete]))


# The run file
# ------------


class RunWriter:
    """A Store on disk: `NAME.partial` while the run is computed, `NAME` when it is finished.

    Made by `RunWriter.create` or `RunWriter.resume`.

    Attributes
    ----------
    path : name of the finished file
    extends : the moment at which the finished run was begun that this one extends, or ""
    """

    def __init__(
        self,
        path: Path,
        lock: disk.RunLock,
        attrs: Mapping[str, Any],
        described: Mapping[str, Any],
        places: Places,
        orders: Mapping[str, digests.Order],
        history: Sequence[str] = (),
        layout: Layout | None = None,
    ) -> None:
        self.path, self.extends = path, str(attrs.get("extends", ""))
        self._lock, self._created, self._attrs = lock, str(attrs["created"]), dict(attrs)
        self._layout = layout  # None if the run is resumed
        self._finished: os.stat_result | None = None
        # Until it is finished, the file has the first line only; lines of resumed runs are added
        # then.
        self._history = list(history)
        self._described, self._places = described, places
        self._running = {name: Running(order) for name, order in orders.items()}
        unfinished = partial_of(path)
        try:
            self._file = open(unfinished, "r+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise disk_error(error, "open", unfinished) from None
        self._gaps, self._around = self._read_around()

    @property
    def names(self) -> frozenset[str]:
        """Variables of the file, those of the state included."""
        return frozenset(self._places)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        layout: Layout,
        attrs: Mapping[str, Any],
        *,
        overwrite: bool = False,
        groups: Sequence[int] = (0,),
        state: State | None = None,
    ) -> "RunWriter":
        """Lay out a new run file, allocate its space on the disk, and open it for writing.

        Parameters
        ----------
        path : name of the finished file
        layout : sizes of the run
        attrs : of `dataset_attrs`; with `extends`, the finished run stays until this one is
        overwrite : replace what is there; the old file is removed when the new one has its space
        groups : first path of each group of paths that is computed together
        state : arrays (paths, ...) like those of the state of all paths at the end

        Raises
        ------
        RunFileError
            For a path that exists, a run that another process writes, or a directory that is
            missing, read-only or full. Nothing is left behind.
        """
        path, extends = final_of(path), "extends" in attrs
        disk.check_target(path, layout, overwrite or extends)
        lock = disk.RunLock(path)
        # The draft has a unique name, so that a file that is replaced stays whole until the new one
        # is.
        new = draft_of(partial_of(path))
        try:
            # Another process may have started and finished between the check and the lock.
            disk.check_target(path, layout, overwrite or extends)
            disk.remove_drafts_of(path)
            described, places = lay_out(new, layout, attrs, groups, state or {})
            if overwrite and not extends:
                disk.remove_run(path)
            elif extends and read.never_started(path):
                disk.remove(partial_of(path))
            disk.remove(checkpoint_of(path), former_of(path))  # of a run that no longer exists
            disk.place(new, partial_of(path))
            disk.sync_directory(path.parent)
            history = [attrs["history"]] if "history" in attrs else []
            coordinates = layout.coordinates()
            orders = digests.orders(
                {name: (described[name][2], *place[1:]) for name, place in places.items()},
                groups,
                coordinates.get("snapshot_path", np.array([], int)).tolist(),
            )
            writer = cls(path, lock, attrs, described, places, orders, history, layout)
            for name, values in coordinates.items():
                writer._running[name].update((), values)
            return writer
        except BaseException as error:
            disk.remove(new)
            lock.release()
            if isinstance(error, OSError | RuntimeError):
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
        """Open an unfinished run file at its last checkpoint.

        What was recorded before the checkpoint is compared with its digests. Where the last
        checkpoint is damaged, the one before it counts, with a warning.

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
            process or of another run, or checkpoints that are missing or damaged.
        """
        path = final_of(path)
        unfinished = partial_of(path)
        _check_unfinished(path)
        wanted = json.loads(config if isinstance(config, str) else config_text(config))
        disk.check_replaceable(unfinished)
        lock = disk.RunLock(path)
        writer = None
        try:
            _check_unfinished(path)  # another process may have finished it between check and lock
            disk.remove_drafts_of(path)
            try:
                attrs = _attributes(unfinished)
            except RunFileError:
                if not _restored(path):
                    raise
                attrs = _attributes(unfinished)
            _check_resumable(attrs, wanted, unfinished)
            with open_hdf5(unfinished) as file:
                read.check_variables(file, unfinished)
                described, places = digests.description(file), _places(file, unfinished)
                orders = digests.orders_of(file)
            state = read.last_checkpoint(path, attrs["created"])
            known = _recorded(state, path)
            history = known["history"]
            if attrs["complete"]:  # the process was killed between its last writes
                set_late(unfinished, 0, history[0] if history else None, {})
            history += [history_line(f"resumed by {command_text()}")] if history else []
            if digests.of_attributes(described, "") != known["attributes"]:
                raise damaged(unfinished, "its names and attributes", _RENEW)
            writer = cls(path, lock, attrs, described, places, orders, history)
            writer._check_recorded(known["digests"], progress)
        except BaseException as error:
            if writer is not None:
                writer._file.close()
            lock.release()
            if isinstance(error, OSError):
                raise disk_error(error, "read", unfinished) from None
            raise
        return writer, state

    def _check_recorded(self, known: Mapping[str, list[Any]], progress: bool) -> None:
        """Compare what was recorded before the checkpoint with its digests, and continue these."""
        total = sum(int(count or 0) for count, _ in known.values())
        with progress_bar(total, "checking what was recorded", progress) as tick:
            for name, (count, digest) in known.items():
                running = self._running[name]
                if count is None:
                    running.count = None
                    continue
                try:
                    values = lambda index, name=name: self.read(name, index)  # noqa: E731
                    found = Running.read(running.order, int(count), values, tick)
                except EOFError:
                    raise RunFileError(f"{partial_of(self.path)} is truncated; {_RENEW}") from None
                if found.hexdigest() != digest:
                    what = f"{name} as it was recorded before the checkpoint"
                    raise damaged(partial_of(self.path), what, _RENEW)
                self._running[name] = found

    def write(self, name: str, index: tuple[Index, ...], values: ArrayLike) -> None:
        """Set the values of a variable at an index; `values` broadcasts.

        Raises
        ------
        RunFileError
            Where the disk is full, read-only or failing; what was recorded stays.
        """
        _, shape, dtype = self._places[name]
        starts, result = spans(shape, index)
        block = np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype), result))
        try:
            for piece in self._pieces(name, starts, block):
                write_all(self._file.write, piece)
        except OSError as error:
            raise disk_error(error, "write", partial_of(self.path), kept=True) from None
        self._running[name].update(index, block)

    def read(self, name: str, index: tuple[Index, ...] = ()) -> NDArray[Any]:
        """Read values of a variable at an index; NaN where none was written."""
        _, shape, dtype = self._places[name]
        starts, result = spans(shape, index)
        block = np.empty(result, dtype)
        for piece in self._pieces(name, starts, block):
            read_all(self._file, piece)
        return block

    def _pieces(
        self, name: str, starts: Sequence[int], block: NDArray[Any]
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of each piece of a block, with the file at its position."""
        offset, _, dtype = self._places[name]
        data = block.reshape(-1).view(np.uint8)
        for start, piece in zip(starts, np.split(data, max(1, len(starts))), strict=False):
            self._file.seek(offset + start * dtype.itemsize)
            yield piece

    def keep_state(self, first: int, state: State) -> None:
        """Write the final state of a group of paths, arrays (group, ...)."""
        for name, value in state.items():
            array = np.asarray(value)
            self.write(f"{STATE}/{name}", (slice(first, first + len(array)),), array)

    def checkpoint(self, state: State) -> None:
        """Save the state of a resumable run atomically, after the values recorded so far.

        The checkpoint before it is kept.

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
        self._check_own()
        arrays[read.MARK] = np.array(self._created)
        arrays[read.RECORDED] = np.array(json.dumps(self._known()))
        arrays[read.AROUND], arrays[read.GAPS] = self._around, self._gaps
        read.seal(arrays)

        try:
            os.fsync(self._file.fileno())
            with drafts(path) as (draft,):
                with open(draft, "xb") as raw:  # numpy would add the ending .npz to a path
                    np.savez(raw, **arrays)  # type: ignore[arg-type]
                    raw.flush()
                    os.fsync(raw.fileno())
                if path.exists():
                    os.replace(path, former_of(self.path))
                os.replace(draft, path)
            disk.sync_directory(path.parent)
        except OSError as error:
            raise disk_error(error, "write", path, kept=True) from None

    def _read_around(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Read the bytes outside the values, which do not change until the end, and their places.

        A checkpoint keeps them: HDF5 cannot read what a power failure may leave of the last writes.
        """
        gaps, at = [], 0
        for offset, shape, dtype in sorted(self._places.values(), key=lambda place: place[0]):
            gaps.append((at, offset - at))
            at = offset + math.prod(shape) * dtype.itemsize
        gaps.append((at, os.fstat(self._file.fileno()).st_size - at))
        around = np.empty(sum(size for _, size in gaps), np.uint8)
        for part in _at_gaps(self._file, np.array(gaps), around):
            read_all(self._file, part)
        return np.array(gaps), around

    def _known(self) -> dict[str, Any]:
        """Describe the file for a checkpoint: digests of what was recorded, and the history."""
        found = {
            name: [r.count, r.hexdigest()] for name, r in self._running.items() if r.count != 0
        }
        attributes = digests.of_attributes(self._described, "")
        return {"attributes": attributes, "digests": found, "history": self._history}

    def add_history(self, line: str) -> None:
        """Add a line to the attribute `history`, which the file has when it is finished."""
        self._history += [line] if self._history else []

    def finish(self) -> Path:
        """Mark the run complete, give the file its final name and drop the checkpoints.

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
            if os.path.lexists(self.path) and not self.extends:
                raise RunFileError(
                    f"{self.path} was made by another program while the run was computed; move it, "
                    f"then resume: the run is whole in {unfinished}"
                )
            history = history_text(self._history) if self._history else None
            found = {name: self._digest(name) for name in self._running}
            set_late(
                unfinished,
                1,
                history,
                {"": digests.of_attributes(self._described, history or ""), **found},
            )
            os.fsync(self._file.fileno())
            self._finished = os.fstat(self._file.fileno())
            os.replace(unfinished, self.path)
            disk.sync_directory(self.path.parent)
            disk.remove(checkpoint_of(self.path), former_of(self.path))
        except (OSError, RuntimeError) as error:
            raise disk_error(error, "finish", unfinished, kept=True) from None
        finally:
            self.abandon()
        return self.path

    def _digest(self, name: str) -> str:
        """Return the final digest of a variable; read the file where it was written in pieces."""
        running = self._running[name]
        if not running.whole:
            order = running.order
            running = Running.read(
                order, order.size, lambda index: self.read(name, index), lambda count: None
            )
        return running.hexdigest()

    def dataset(self) -> "xarray.Dataset":
        """Return the finished run as a Dataset, equal to that of `open_run`.

        A run that was not resumed is opened without reading what it holds, which is known: to read
        and check it takes two fifths of a small run's time for its file.

        Raises
        ------
        RunFileError
            Where the file has gone, or cannot be read.
        """
        if self._layout is None or not self._in_place():
            return read.open_run(self.path)
        from wflow.runs import lazy

        config = json.dumps(read.parse_config(self._attrs["config"], self.path))
        shown = {**self._attrs, "config": config, "complete": 1}
        if self._history:
            shown["history"] = history_text(self._history)
        dataset = read.lazily(self.path, str(self.path), lazy.of_layout(self._layout, shown))
        dataset.attrs["complete"] = 1  # an int, as `open_run` gives it
        return dataset

    def _in_place(self) -> bool:
        """Return whether the file of that name is still the one that was finished here."""
        try:
            return self._finished is not None and os.path.samestat(
                self._finished, os.stat(self.path)
            )
        except OSError:
            return False

    def abandon(self) -> None:
        """Close the file, and leave data and checkpoint to be resumed later."""
        self._file.close()
        self._lock.release()

    def discard(self) -> None:
        """Close the file, and delete data and checkpoint: for a run without any record."""
        self._file.close()
        _, *rest = disk.files_of(self.path)
        disk.remove(*rest)
        self._lock.release()

    def _check_own(self) -> None:
        """Raise RunFileError where the file of that name is no longer the one written here.

        A worker whose run was replaced may continue: it must not mark its successor's file whole.
        """
        own, path = os.fstat(self._file.fileno()), partial_of(self.path)
        try:
            replaced = not os.path.samestat(own, os.stat(path))
        except FileNotFoundError:
            disk.remove(checkpoint_of(self.path), former_of(self.path))
            raise RunFileError(
                f"{path} was removed while the run was writing it: nothing of this run is left, "
                "and it cannot be resumed; run again"
            ) from None
        if replaced:
            raise RunFileError(f"{path} was replaced by another process: this one ends")


def _places(file: h5py.File, path: Path) -> Places:
    """Find the places of the values of each variable: name -> offset in bytes, shape, type.

    Raises
    ------
    RunFileError
        For a variable that is not stored in one piece.
    """
    places = {}
    for name in digests.orders_of(file):
        data = file[name]
        offset = data.id.get_offset()
        if offset is None or data.chunks is not None or data.compression is not None:
            raise RunFileError(
                f"{path}: {name} is not stored in one piece, so that the run cannot continue in "
                f"this file; it was rewritten by another program; {_RENEW}"
            )
        if offset + data.dtype.itemsize * math.prod(data.shape) > path.stat().st_size:
            raise RunFileError(f"{path} is truncated; {_RENEW}")
        places[name] = (int(offset), data.shape, data.dtype)
    return places


def _attributes(path: Path) -> dict[str, Any]:
    """Read the attributes of an unfinished file that decide how it is resumed.

    Raises
    ------
    RunFileError
        For a file of another program, and one that HDF5 cannot read.
    """
    with open_hdf5(path) as file:
        digests.description(file)  # reads them all
        attrs = read.read_attrs(file, path)
        return attrs | {"extends": str(file.attrs.get("extends", ""))}


def _at_gaps(
    file: FileIO, gaps: NDArray[np.int64], around: NDArray[np.uint8]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of each gap (offset, size), with the file at its position."""
    for offset, part in zip(gaps[:, 0], np.split(around, np.cumsum(gaps[:-1, 1])), strict=True):
        file.seek(offset)
        yield part


def _restored(path: Path) -> bool:
    """Restore the bytes around the values from the last checkpoint; return False without one."""
    try:
        state = read.last_checkpoint(path, None)
        around, gaps = state[read.AROUND], state[read.GAPS]
    except (RunFileError, KeyError):
        return False
    with open(partial_of(path), "r+b", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != sum(gaps[-1]):
            return False
        for part in _at_gaps(file, gaps, around):
            write_all(file.write, part)
        os.fsync(file.fileno())
    return True


def _check_unfinished(path: Path) -> None:
    if read.run_status(path) != "partial":
        raise RunFileError(
            f"{path} is complete: nothing to resume; open it, or run again with --overwrite"
            if path.exists()
            else f"{partial_of(path)} does not exist: nothing to resume; start without --resume"
        )


def _check_resumable(attrs: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise RunFileError for an unfinished file of an earlier version, or of another run."""
    if attrs["schema"] != SCHEMA:
        raise RunFileError(
            f"{path} was begun by an earlier version of wflow (schema {attrs['schema']}), which "
            f"can finish it; {_RENEW}"
        )
    changed = read.differences(read.parse_config(attrs["config"], path), wanted)
    if changed:
        raise RunFileError(
            f"{path} belongs to another run: {', '.join(changed)} differ; resume with the settings "
            f"it was started with (attribute command), or {_RENEW}"
        )


def _recorded(state: dict[str, NDArray[Any]], path: Path) -> dict[str, Any]:
    """Remove from the state what a checkpoint says of its file, and return it."""
    try:
        del state[read.AROUND], state[read.GAPS]
        known = json.loads(str(state.pop(read.RECORDED)))
        return {key: known[key] for key in ("attributes", "digests", "history")}
    except (KeyError, ValueError, TypeError) as error:
        raise RunFileError(
            f"{checkpoint_of(path)} lacks the digests of the run file ({error}); {_RENEW}"
        ) from None


# Bytes
# -----


def spans(shape: tuple[int, ...], index: tuple[Index, ...]) -> tuple[list[int], tuple[int, ...]]:
    """Locate the values of an index in an array stored in C order.

    Parameters
    ----------
    shape : of the array
    index : an int or a slice of step one per leading dimension

    Returns
    -------
    starts of pieces without gaps, all of one size, counted in values; and the shape of the result

    Raises
    ------
    IndexError
        For too many entries, a step other than one, or a number out of range.
    """
    if len(index) > len(shape):
        raise IndexError(f"{len(index)} indices for the dimensions {shape}")
    whole = [range(size) for size in shape]
    entries = [*index, *[slice(None)] * (len(shape) - len(index))]
    picks = [numbers[entry] for numbers, entry in zip(whole, entries, strict=True)]
    cut = [pick if isinstance(pick, range) else range(pick, pick + 1) for pick in picks]
    if any(pick.step != 1 for pick in cut):
        raise IndexError(f"slices must have step one, got {index}")
    result = tuple(len(pick) for pick in picks if isinstance(pick, range))
    if not all(result):
        return [], result
    # Behind the last dimension that is cut, the values of one piece lie side by side.
    while cut and cut[-1] == whole[len(cut) - 1]:
        cut.pop()
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(cut))]
    firsts = [*cut[:-1], *(pick[:1] for pick in cut[-1:])]
    starts = [sum(map(operator.mul, numbers, strides)) for numbers in itertools.product(*firsts)]
    return starts, result


def write_all(write: Callable[[Any], int | None], data: NDArray[np.uint8]) -> None:
    """Write bytes at the current position, in as many calls as the system needs."""
    done = 0
    while done < data.size:
        done += write(data[done:].data) or 0


def read_all(file: FileIO, data: NDArray[np.uint8]) -> None:
    """Read bytes from the current position until `data` is full."""
    done = 0
    while done < data.size:
        count = file.readinto(data[done:].data)
        if not count:
            raise OSError(errno.EIO, "the file is shorter than it was")
        done += count
