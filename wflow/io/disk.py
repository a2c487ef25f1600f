"""Run files on disk: write locks, rules of replacement, and the bytes of a file."""

import contextlib
import errno
import io
import itertools
import json
import math
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import RunFileError
from wflow._core.files import remove_drafts, take_lock
from wflow._core.signals import signals_held
from wflow.io import digests
from wflow.io.digests import Places
from wflow.io.reading import (
    checkpoint_of,
    final_of,
    is_checkpoint,
    lock_of,
    manifest_config,
    manifest_of,
    partial_of,
    parts_of,
)
from wflow.io.schema import FAMILY, HISTORY_BYTES, VARIABLES, Layout

Index = int | slice | Sequence[int] | NDArray[np.integer]
_PAGE = 4096  # bytes
_BLOCK = 1 << 20  # bytes written at a time where a file is filled
_OWNER = b'{"wflow": "lock", '  # start of a lock file
# Files in the folder of the parts of a run: parts, their states, the draft of the whole, jobs.
_PART = re.compile(
    r"((\d+-\d+(\..*)?|whole)\.h5(\.(partial|checkpoint|lock|damaged))*|run\.json|run\.new|lock)"
    r"(\.[0-9a-f]{16}\.new)?|job-[0-9a-f]+\.pkl"
)


# Left by a process that was killed before the folder had its manifest.
_MANIFEST_DRAFT = re.compile(r"run\.json\.[0-9a-f]{16}\.new")


def check_target(path: Path, layout: Layout, overwrite: bool) -> None:
    """Check that a run can be written to a path before anything is.

    Raises
    ------
    RunFileError
        For a path that is taken, or by something that no run may replace, a directory that is
        missing, or a disk without the space.
    """
    folder = path.parent
    if not path.name or path.is_dir():
        raise RunFileError(f"{path} is a directory; give the name of a file in it")
    if not folder.is_dir():
        raise RunFileError(f"the directory {folder} does not exist; make it, or choose another")
    for taken in (path, partial_of(path), checkpoint_of(path)):
        check_replaceable(taken)
    _check_parts(path)
    for taken in (path, partial_of(path)):
        if taken.exists() and not overwrite:
            what = "an unfinished run" if taken != path else "a file"
            raise RunFileError(
                f"{path}: {what} is there already ({taken.name}); replace it with --overwrite "
                "(if_exists='overwrite'), or continue it with --resume (if_exists='resume')"
            )
    if manifest_of(path).exists() and not overwrite:
        raise RunFileError(
            f"{path}: the parts of an unfinished run are there already ({parts_of(path).name}); "
            "continue them with --resume (wflow.distributed.solve(..., if_exists='resume')), or "
            "replace them with --overwrite (if_exists='overwrite')"
        )
    needed = sum(8 * math.prod(layout.shape(name)) for name in layout.names)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RunFileError(
            f"{path} needs {needed / 1e6:.1f} MB and the disk has {free / 1e6:.1f} MB left; free "
            "space, choose another disk, or record less (every, snapshots and paths of SaveAt)"
        )


def _check_parts(path: Path) -> None:
    """Check that the folder of the parts, if there is one, was made by wflow, or holds no parts.

    Raises
    ------
    RunFileError
        For a link or file of that name, and for files named like parts without our manifest.
    """
    folder = parts_of(path)
    if not os.path.lexists(folder):
        return
    advice = "which is not replaced, not even with --overwrite; move it away, or choose another run"
    if folder.is_symlink() or not folder.is_dir():
        raise RunFileError(f"{folder} is no folder of wflow, {advice}")
    if os.path.lexists(manifest_of(path)):
        manifest_config(path, advice=advice)
    elif any(
        _PART.fullmatch(f.name) and not _MANIFEST_DRAFT.fullmatch(f.name) for f in folder.iterdir()
    ):
        raise RunFileError(f"{folder} holds files that wflow did not write, {advice}")


def check_replaceable(path: Path) -> None:
    """Check that a path is free, or that of a file that wflow wrote for a run.

    Raises
    ------
    RunFileError
        For a directory, a link, a device, or a file of another program. Damaged run files count as
        ours where they begin as HDF5 and hold the name of the schema.
    """
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise disk_error(error, "look at", path) from None
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory"}
        what = kinds.get(stat.S_IFMT(mode), "no regular file but a device, pipe or socket")
        raise RunFileError(f"{path} is {what}, which a run never replaces; choose another name")
    try:
        ours = _is_ours(path)
    except OSError as error:
        raise disk_error(error, "read", path) from None
    if not ours:
        raise RunFileError(
            f"{path} was not written by wflow and is not replaced, not even with --overwrite; "
            "remove it yourself, or choose another name"
        )


def _is_ours(path: Path) -> bool:
    """Whether a regular file is a run file or a checkpoint by its first bytes and its marks."""
    with open(path, "rb") as file:
        start = file.read(8)
        if start == b"\x89HDF\r\n\x1a\n":
            try:
                with h5py.File(file, "r") as opened:
                    return str(opened.attrs.get("schema", "")).startswith(FAMILY)
            except Exception:  # too damaged for HDF5
                file.seek(0)
                return FAMILY.encode() in file.read(_BLOCK)
    return start[:4] == b"PK\3\4" and is_checkpoint(path)


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
        """Write the pages that were written, and the size, to the file at `path`, unflushed."""
        with FileIO(path, "xb" if self._base is None else "r+b") as file:
            if self._base is None:
                file.truncate(self._size)
            for number in sorted(self._pages):
                start = number * _PAGE
                if self._base is None or self._from_base(number) != self._pages[number]:
                    file.seek(start)
                    page = np.frombuffer(self._pages[number], dtype=np.uint8)
                    write_all(file, page[: self._size - start])

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


def lay_out(path: Path, layout: Layout, attrs: Mapping[str, Any]) -> Places:
    """Make a netCDF-4 file with every variable in one piece, unfilled, unflushed; complete = 0.

    Returns
    -------
    places of the values of each variable in the file
    """
    coordinates = layout.coordinates()
    used = {dim for name in layout.names for dim in layout.dims(name)}
    sizes = tuple((dim, size) for dim, size in layout.sizes.items() if dim in used)
    variables = tuple((name, layout.dims(name)) for name in layout.names)
    with signals_held():  # h5netcdf does not clean up after half an opening
        empty, places = _empty(sizes, tuple(coordinates), variables)
        with empty.copy() as overlay:
            for name, values in coordinates.items():
                overlay.seek(places[name][0])
                overlay.write(values.view(np.uint8).data)
            with h5py.File(overlay, "r+") as file:
                for name, value in {**attrs, "complete": 0}.items():
                    if name == "history":
                        file.attrs.create(name, _history(value), dtype=_HISTORY)
                    else:  # numbers are arrays, as netCDF writes them
                        file.attrs[name] = value if isinstance(value, str) else np.atleast_1d(value)
            overlay.save(path)
    return places


@lru_cache(maxsize=4)
def _empty(
    sizes: tuple[tuple[str, int], ...],
    coordinates: tuple[str, ...],
    variables: tuple[tuple[str, tuple[str, ...]], ...],
) -> tuple[Overlay, Places]:
    """A file without attributes and values, cached: HDF5 takes 0.1 s for one, and cells are alike.

    Returns
    -------
    the file, and the places of the values of each variable in it
    """
    overlay = Overlay()
    with h5netcdf.File(overlay, "w") as file:
        file.dimensions = dict(sizes)
        for name, dims in (*((name, (name,)) for name in coordinates), *variables):
            variable = file.create_variable(name, dims, VARIABLES[name].dtype)
            variable.attrs.update(VARIABLES[name].attrs)
            # The first value written makes HDF5 give the variable its place in the file.
            variable[(0,) * len(dims)] = 0
    with h5py.File(overlay, "r") as opened:
        names = [*coordinates, *(name for name, _ in variables)]
        places = {name: (opened[name].id.get_offset(), opened[name].shape) for name in names}
    return overlay, places


def fill(path: Path, layout: Layout, places: Places) -> None:
    """Write NaN over all values, block by block, so that the disk allocates the space now."""
    block = np.full(_BLOCK // 8, np.nan, dtype="<f8").view(np.uint8)
    with open(path, "r+b", buffering=0) as file:
        for name in layout.names:
            offset, shape = places[name]
            size = 8 * math.prod(shape)
            file.seek(offset)
            for start in range(0, size, _BLOCK):
                write_all(file, block[: size - start])
        os.fsync(file.fileno())


# Of one length, so that a resume adds its line without moving anything in the file.
_HISTORY = h5py.string_dtype("utf-8", HISTORY_BYTES)


def _history(text: str) -> NDArray[np.bytes_]:
    return np.array(text.encode(), dtype=_HISTORY)


def set_complete(path: Path, value: int, history: str | None = None) -> None:
    """Change the attribute `complete` in place, unflushed, without disturbing readers of the file.

    Parameters
    ----------
    path : Path
        The file.
    value : int
        1 for a finished run, 0 for an unfinished one.
    history : str, optional
        Text of the attribute `history`; by default it stays as it is, and so it does in a file
        that was laid out without room for it.

    Raises
    ------
    OSError
        Where the disk fails.
    """
    with signals_held(), Overlay(path) as overlay:
        with h5py.File(overlay, "r+") as file:
            file.attrs.modify("complete", np.array([value], dtype="i8"))
            if history is not None and _has_room(file):
                file.attrs.modify("history", _history(history))
        overlay.save(path)


def _has_room(file: h5py.File) -> bool:
    """Whether the attribute `history` can be changed in place."""
    return "history" in file.attrs and file.attrs.get_id("history").dtype == _HISTORY


def unseal(path: Path, end: int | None = None, history: str | None = None) -> None:
    """Mark a finished file unfinished again: without digests, and with complete = 0.

    Parameters
    ----------
    path : Path
        The file.
    end : int, optional
        Its length without digests; None where these are whole and hold it.
    history : str, optional
        Text of the attribute `history` that it was laid out with.
    """
    if end is None and (stored := digests.find(path)) is not None:
        end = stored.end
    if end is not None and end < path.stat().st_size:
        os.truncate(path, end)
    set_complete(path, 0, history)


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
    """Take the kernel's lock on an open file, without waiting; it ends with the process.

    Parameters
    ----------
    file : the lock file of the run
    path : run that is written, for the message

    Raises
    ------
    InUse
        Where another process has the lock.
    """
    if not take_lock(file.fileno()):
        raise InUse(
            f"{final_of(path)} is being written by {_holder(file)}; wait for it, stop it, or "
            "choose another file"
        )


class RunLock:
    """The lock for writing a run: a lock of the kernel on `NAME.lock`, until `release`.

    A process that is killed loses the lock, whatever file it leaves behind. The host and the
    process number in the file are for the message to others only.

    Raises
    ------
    InUse
        Where another process, or another call in this one, writes the run.
    RunFileError
        Where the disk fails, or a file of that name was not written by wflow.
    """

    def __init__(self, path: Path) -> None:
        self._path = lock_of(path)
        while True:
            self._file = self._opened()
            try:
                lock(self._file, path)
                # One that was removed between opening and locking is not the lock any more.
                if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                    break
            except FileNotFoundError:
                pass
            except BaseException:
                self._file.close()
                raise
            self._file.close()
        owner = json.dumps({"host": platform.node(), "pid": os.getpid()}).encode()
        with contextlib.suppress(OSError):  # a full disk; the lock itself needs no space
            self._file.truncate(0)
            self._file.write(_OWNER + owner[1:])

    def _opened(self) -> FileIO:
        # Neither through a link nor waiting for the other end of a pipe.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            file = FileIO(os.open(self._path, flags, 0o666), "r+")
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._foreign() from None
            raise disk_error(error, "create", self._path) from None
        if not (stat.S_ISREG(os.fstat(file.fileno()).st_mode) and _owner(file) is not None):
            file.close()
            raise self._foreign()
        return file

    def _foreign(self) -> RunFileError:
        return RunFileError(
            f"{self._path} was not written by wflow, which needs a file of that name while it "
            "writes the run; remove it yourself, or choose another name for the run"
        )

    def release(self) -> None:
        """Let other processes write the run."""
        if not self._file.closed:
            remove(self._path)
            self._file.close()


def _owner(file: FileIO) -> dict[str, Any] | None:
    """The process that a lock file names; None for a file of another program."""
    file.seek(0)
    raw = file.read(_PAGE) or b""
    file.seek(0)
    if not raw or not raw.startswith(_OWNER[: len(raw)]):
        return None if raw else {}
    try:
        owner = json.loads(raw)
    except (ValueError, RecursionError):
        return {}  # cut by a full disk
    return owner if isinstance(owner, dict) else None


def _holder(file: FileIO) -> str:
    """The process that has the lock on a file, in words."""
    for _ in range(20):  # it writes its name just after it has taken the lock
        if owner := _owner(file) or {}:
            break
        time.sleep(0.005)
    if "pid" not in owner:
        return "another process"
    return f"process {owner['pid']} on {owner.get('host') or 'this machine'}"


def remove_drafts_of(path: Path) -> None:
    """Delete the drafts of a run that killed processes left; needs the lock of the run."""
    for target in (partial_of(path), checkpoint_of(path), manifest_of(path)):
        with contextlib.suppress(OSError):
            remove_drafts(target.parent, [target.name])


def place(draft: Path, path: Path) -> None:
    """Give a file its name, where nothing may be replaced.

    Raises
    ------
    FileExistsError
        Where something has that name already.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a disk without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(draft, path)
    else:
        remove(draft)


def remove_run(path: Path) -> None:
    """Delete a run, whole or unfinished: its file, its state and the folder of its parts.

    The lock of the run must be held, and `check_target` have passed.
    """
    remove(path, partial_of(path), checkpoint_of(path))
    if manifest_of(path).exists():
        remove_parts(path)


def set_aside(path: Path) -> None:
    """Rename a damaged part of a run, so that its paths are computed again."""
    os.replace(path, path.with_name(f"{path.name}.damaged"))


def set_aside_damaged(path: Path) -> None:
    """Rename damaged files at the names of a part: all files in that folder belong to the run.

    Raises
    ------
    InUse
        Where another process writes the part.
    """
    lock = RunLock(path)
    try:
        for left in (path, partial_of(path), checkpoint_of(path)):
            try:
                check_replaceable(left)
            except RunFileError:
                set_aside(left)
    finally:
        lock.release()


def remove_parts(path: Path) -> None:
    """Delete the parts of a run, and their folder if nothing else is in it."""
    folder = parts_of(path)
    with contextlib.suppress(FileNotFoundError):
        own = [file for file in folder.iterdir() if _PART.fullmatch(file.name)]
        # The manifest is removed last: as long as it exists, the rest is known to be ours.
        own.sort(key=lambda file: file == manifest_of(path))
        remove(*(file for file in own if stat.S_ISREG(os.lstat(file).st_mode)))
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove(*paths: Path) -> None:
    """Delete files that may be there."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def sync_directory(folder: Path) -> None:
    """Flush a renaming to the disk, where the system offers that."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def disk_error(error: Exception, act: str, path: Path, *, kept: bool = False) -> RunFileError:
    """Error for a failure of the disk, with advice; `kept`: the run can be resumed."""
    code = error.errno if isinstance(error, OSError) else None
    text = (os.strerror(code) if code else str(error)) or type(error).__name__
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "free space or choose another disk"
    elif code in (errno.EROFS, errno.EACCES, errno.EPERM):
        advice = "choose a directory that you may write to"
    elif code in (errno.ENOENT, errno.ENOTDIR):
        advice = "give a path in a directory that exists"
    else:
        advice = "check the disk, or choose another"
    after = "; what was recorded stays and can be resumed" if kept else ""
    return RunFileError(f"cannot {act} {path}: {text}; {advice}{after}")
