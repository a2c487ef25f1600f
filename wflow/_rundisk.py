"""Bytes of a run file: laying it out, filling it, and finding the place of a value."""

import contextlib
import errno
import io
import itertools
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
from numpy.typing import NDArray

from wflow._runread import checkpoint_of, final_of, manifest_of, partial_of, parts_of
from wflow.errors import RunFileError
from wflow.schema import VARIABLES, RunLayout

try:
    import fcntl
except ImportError:  # no such locks on this system: a second writer is then not noticed
    fcntl = None  # type: ignore[assignment]

Index = int | slice | Sequence[int] | NDArray[np.integer]
Places = Mapping[str, tuple[int, tuple[int, ...]]]
_PAGE = 4096  # bytes
_BLOCK = 1 << 20  # bytes written at a time where a file is filled


def check_target(path: Path, layout: RunLayout, overwrite: bool) -> None:
    """Check that a run can be written to a path before anything is.

    Raises
    ------
    RunFileError
        For a path that is taken, a directory that is missing, or a disk without the space.
    """
    folder = path.parent
    if not path.name or path.is_dir():
        raise RunFileError(f"{path} is a directory; give the name of a file in it")
    if not folder.is_dir():
        raise RunFileError(f"the directory {folder} does not exist; make it, or choose another")
    for taken in (path, partial_of(path)):
        if taken.exists() and not overwrite:
            what = "an unfinished run" if taken != path else "a file"
            raise RunFileError(
                f"{path}: {what} is there already ({taken.name}); replace it with --overwrite "
                "(overwrite=True), or go on with it by --resume (resume=True)"
            )
    if manifest_of(path).exists() and not overwrite:
        raise RunFileError(
            f"{path}: the parts of an unfinished run are there already ({parts_of(path).name}); go "
            "on with them by --resume (wflow.cluster.solve(..., resume=True)), or replace them "
            "with --overwrite (overwrite=True)"
        )
    needed = sum(8 * math.prod(layout.shape(name)) for name in layout.names)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RunFileError(
            f"{path} needs {needed / 1e6:.1f} MB and the disk has {free / 1e6:.1f} MB free; make "
            "room, choose another disk, or record less (record_every, snapshots, snapshot_paths)"
        )


class Overlay(io.RawIOBase):
    """A file in memory over a file on disk (or over nothing), as pages that were written.

    HDF5 works on it in place of the disk: it does not survive a full one (the process crashes).
    `save` then brings the pages to the disk, where a failure is an ordinary OSError.
    """

    def __init__(self, base: Path | None = None) -> None:
        self._base = None if base is None else open(base, "rb", buffering=0)  # noqa: SIM115
        self._size = 0 if self._base is None else self._base.seek(0, os.SEEK_END)
        self._pages: dict[int, bytearray] = {}
        self._at = 0

    def copy(self) -> "Overlay":
        """The same pages again; of an overlay over nothing."""
        other = Overlay()
        other._size = self._size
        other._pages = {number: bytearray(page) for number, page in self._pages.items()}
        return other

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self._size = self._at if size is None else size
        return self._size

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        for number, begin, end, done in self._pieces(count):
            view[done : done + end - begin] = self._page(number)[begin:end]
        self._at += count
        return count

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for number, begin, end, done in self._pieces(len(view)):
            page = self._pages.setdefault(number, self._page(number))
            page[begin:end] = view[done : done + end - begin]
        self._at += len(view)
        self._size = max(self._size, self._at)
        return len(view)

    def save(self, path: Path) -> None:
        """Write the pages that were written, and the size, to the file on disk."""
        with FileIO(path, "xb" if self._base is None else "r+b") as file:
            if self._base is None:
                file.truncate(self._size)
            for number in sorted(self._pages):
                start = number * _PAGE
                if self._base is None or self._from_base(number) != self._pages[number]:
                    file.seek(start)
                    page = np.frombuffer(self._pages[number], dtype=np.uint8)
                    write_all(file, page[: self._size - start])
            os.fsync(file.fileno())

    def close(self) -> None:
        if self._base is not None:
            self._base.close()
        super().close()

    def _pieces(self, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Pages under the next bytes: number, begin and end in the page, bytes done before."""
        done = 0
        while done < count:
            number, begin = divmod(self._at + done, _PAGE)
            end = min(_PAGE, begin + count - done)
            yield number, begin, end, done
            done += end - begin

    def _page(self, number: int) -> bytearray:
        return self._pages[number] if number in self._pages else self._from_base(number)

    def _from_base(self, number: int) -> bytearray:
        raw = b""
        if self._base is not None:
            self._base.seek(number * _PAGE)
            raw = self._base.read(_PAGE) or b""
        return bytearray(raw.ljust(_PAGE, b"\0"))


def lay_out(path: Path, layout: RunLayout, attrs: Mapping[str, Any]) -> None:
    """Make a netCDF-4 file with every variable in one piece, unfilled, and complete = 0."""
    coordinates = layout.coordinates()
    used = {dim for name in layout.names for dim in layout.dims(name)}
    sizes = tuple((dim, size) for dim, size in layout.sizes.items() if dim in used)
    variables = tuple((name, layout.dims(name)) for name in layout.names)
    times = tuple((name, values.tobytes()) for name, values in coordinates.items())
    with _empty(sizes, times, variables).copy() as overlay:
        with h5netcdf.File(overlay, "r+") as file:
            for name, value in {**attrs, "complete": 0}.items():
                file.attrs[name] = value
        remove(path)  # what a process that died here left
        overlay.save(path)


@lru_cache(maxsize=4)
def _empty(
    sizes: tuple[tuple[str, int], ...],
    coordinates: tuple[tuple[str, bytes], ...],
    variables: tuple[tuple[str, tuple[str, ...]], ...],
) -> Overlay:
    """A file without attributes of its own, kept: HDF5 takes 0.1 s for one, and parts are alike."""
    overlay = Overlay()
    with h5netcdf.File(overlay, "w") as file:
        file.dimensions = dict(sizes)
        for name, raw in coordinates:
            dtype = VARIABLES[name].dtype
            variable = file.create_variable(name, (name,), dtype, data=np.frombuffer(raw, dtype))
            variable.attrs.update(VARIABLES[name].attrs)
        for name, dims in variables:
            variable = file.create_variable(name, dims, VARIABLES[name].dtype)
            variable.attrs.update(VARIABLES[name].attrs)
            # The first value written makes HDF5 give the variable its place in the file.
            variable[(0,) * len(dims)] = np.nan
    return overlay


def fill(path: Path, layout: RunLayout, places: Places) -> None:
    """Write NaN over all values, block by block, so that the disk must give the space now."""
    block = np.full(_BLOCK // 8, np.nan, dtype="<f8").view(np.uint8)
    with open(path, "r+b", buffering=0) as file:
        for name in layout.names:
            offset, shape = places[name]
            size = 8 * math.prod(shape)
            file.seek(offset)
            for start in range(0, size, _BLOCK):
                write_all(file, block[: size - start])
        os.fsync(file.fileno())


def set_complete(path: Path, value: int) -> None:
    """Change the attribute `complete` in place; nobody who reads the file is disturbed.

    Raises
    ------
    OSError
        Where the disk fails.
    """
    with Overlay(path) as overlay:
        with h5py.File(overlay, "r+") as file:
            file.attrs.modify("complete", np.array([value], dtype="i8"))
        overlay.save(path)


def spans(shape: tuple[int, ...], index: tuple[Index, ...]) -> tuple[list[int], tuple[int, ...]]:
    """Find the values of an index in an array stored in C order.

    Parameters
    ----------
    shape : of the array
    index : an int, a slice of step one or a sequence of ints per leading dimension

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
    picks: list[range | list[int]] = []
    result: list[int] = []
    for size, entry in itertools.zip_longest(shape, index, fillvalue=slice(None)):
        assert isinstance(size, int)
        if isinstance(entry, slice):
            chosen = range(*entry.indices(size))
            if chosen.step != 1:
                raise IndexError(f"slices must have step one, got {entry}")
            picks.append(chosen)
            result.append(len(chosen))
        else:
            numbers = np.asarray(entry)
            numbers = numbers if numbers.size else numbers.astype(int)  # [] has no type
            if numbers.dtype.kind not in "iu" or numbers.ndim > 1:
                raise IndexError(f"an index is an int, a slice or a list of ints, got {entry!r}")
            if np.any((numbers < -size) | (numbers >= size)):
                raise IndexError(f"index {entry!r} is out of range for a size of {size}")
            picks.append((numbers.reshape(-1) % size).tolist())
            result += [numbers.size] if numbers.ndim else []
    # Behind the last dimension that is cut, the values of one piece lie side by side.
    inner = len(shape)
    while inner and picks[inner - 1] == range(shape[inner - 1]):
        inner -= 1
    outer = picks[:inner]
    if outer and isinstance(outer[-1], range):
        outer[-1] = outer[-1][:1]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(inner)]
    starts = [
        sum(number * stride for number, stride in zip(numbers, strides, strict=True))
        for numbers in itertools.product(*outer)
    ]
    return (starts if all(result) else []), tuple(result)


def write_all(file: FileIO, data: NDArray[np.uint8]) -> None:
    """Write bytes at the present place, however many calls the system makes of it."""
    done = 0
    while done < data.size:
        done += file.write(data[done:].data) or 0


def read_all(file: FileIO, data: NDArray[np.uint8]) -> None:
    """Read bytes from the present place until `data` is full."""
    done = 0
    while done < data.size:
        count = file.readinto(data[done:].data)
        if not count:
            raise OSError(errno.EIO, "the file is shorter than it was")
        done += count


class InUse(RunFileError):
    """Another process writes to the same run."""


def lock(file: FileIO, path: Path) -> None:
    """Keep a second process from writing to the same run; readers are not hindered.

    Raises
    ------
    InUse
        Where another process writes to this run.
    """
    if fcntl is None:
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network disks know no locks: there the guard is missing and the run goes on.
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise InUse(
                f"{final_of(path)} is being written by another process; wait for it, stop it, or "
                "choose another file"
            ) from None


def refuse_if_running(path: Path) -> None:
    """Raise RunFileError where another process writes to this file."""
    with contextlib.suppress(FileNotFoundError), open(path, "r+b", buffering=0) as file:
        lock(file, path)


def remove_run(path: Path) -> None:
    """Delete a run, whole or unfinished: its file, its state and the folder of its parts.

    Raises
    ------
    InUse
        Where another process writes to it; nothing is deleted then.
    """
    folder = parts_of(path)
    refuse_if_running(partial_of(path))
    with contextlib.suppress(FileNotFoundError), open(folder / "lock", "r+b", buffering=0) as file:
        lock(file, path)
    remove(path, partial_of(path), checkpoint_of(path))
    if manifest_of(path).exists():  # the folder is one that wflow made
        shutil.rmtree(folder, ignore_errors=True)


def remove(*paths: Path) -> None:
    """Delete files that may be there."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def sync_directory(folder: Path) -> None:
    """Put a renaming on the disk, where the system offers that."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def disk_error(error: Exception, act: str, path: Path, *, kept: bool = False) -> RunFileError:
    """Say what a failure of the disk means and what to do; `kept`: the run can be resumed."""
    code = error.errno if isinstance(error, OSError) else None
    text = (os.strerror(code) if code else str(error)) or type(error).__name__
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "make room or choose another disk"
    elif code in (errno.EROFS, errno.EACCES, errno.EPERM):
        advice = "choose a directory that you may write to"
    elif code in (errno.ENOENT, errno.ENOTDIR):
        advice = "give a path in a directory that exists"
    else:
        advice = "check the disk, or choose another"
    after = "; what was recorded stays and can be resumed" if kept else ""
    return RunFileError(f"cannot {act} {path}: {text}; {advice}{after}")
