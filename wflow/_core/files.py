"""Safe opening of untrusted files, atomic replacement of files, and kernel file locks.

Only regular files are opened, HDF5 files without locks and with their values stored inside. What
they hold is read after `check_memory` has compared its size with the free memory, and with the size
of the file where it is packed: `read_whole`, `read_json`, `check_zip`, `array_header`, `values_of`.
A file is written as a draft beside its name and moved into place, so that a process killed at any
time leaves the old file or the new one.
"""

import errno
import io
import json
import math
import os
import re
import secrets
import stat
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from wflow._core.errors import InputError, RunFileError
from wflow._core.memory import check_memory, most_unpacked

if TYPE_CHECKING:
    import h5py
    import numpy as np
    from numpy.typing import NDArray

try:
    import fcntl
except ImportError:  # no such locks on this system: a second writer is then not noticed
    fcntl = None  # type: ignore[assignment]

# Start of the attribute NAME of a dimension without a variable, by the rules of netCDF-4.
_BARE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
BROKEN = (OSError, KeyError, ValueError, RuntimeError, TypeError, EOFError)
"""What reading a file raises that is damaged or of another kind."""


@contextmanager
def open_hdf5(path: Path) -> Iterator["h5py.File"]:
    """Open a file for reading, without an HDF5 lock on it, or say what is wrong with it.

    Raises
    ------
    RunFileError
        For a file that is missing, cannot be read, is truncated, or is not HDF5.
    """
    import h5py

    try:
        # A Python file keeps HDF5 from locking, or sharing its cache with, a file being written.
        with open_regular(path) as raw, h5py.File(raw, "r") as file:
            yield file
    except RunFileError:
        raise
    except InputError as error:
        raise RunFileError(str(error)) from None
    except FileNotFoundError:
        raise RunFileError(f"{path} does not exist; give the path of a run file") from None
    except (PermissionError, IsADirectoryError) as error:
        hint = "give a run file"
        if isinstance(error, IsADirectoryError) and (files := sorted(Path(path).glob("*.h5"))):
            hint = f"it holds {len(files)}, such as {files[0]}: give one of them"
        raise RunFileError(f"{path} cannot be read: {error.strerror}; {hint}") from None
    except BROKEN as error:
        raise RunFileError(_diagnosis(path, error)) from None


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, without waiting for the other end of a pipe.

    Raises
    ------
    OSError
        For a file that is missing or cannot be read.
    RunFileError
        For a pipe, a device or a socket.
    """
    file = FileIO(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "r")
    kind = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(kind):
        return file
    file.close()
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise RunFileError(f"{path} is no regular file but a device, a pipe or a socket; give a file")


@contextmanager
def opened(path: Path, expected: str) -> Iterator[BufferedReader]:
    """Open a regular file for reading; pipes and devices are refused without waiting.

    Parameters
    ----------
    path : the file
    expected : what it should be, for the message

    Raises
    ------
    InputError
        For a file that is missing, is not a regular one, or cannot be opened.
    """
    try:
        raw = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} does not exist; expected {expected}") from None
    except (IsADirectoryError, RunFileError):
        kind = kind_of_file(path.stat().st_mode)
        raise InputError(f"{path} is {kind}: expected {expected}") from None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); expected {expected}"
        ) from None
    with BufferedReader(raw) as file:
        yield file  # type: ignore[misc]  # of the raw stream, which is not used


def read_whole(file: IO[bytes], path: Path | str, *, factor: float = 1.0) -> bytes:
    """Read the contents of an open file, which must fit into memory.

    Parameters
    ----------
    file : the file, open for reading
    path : its name, for messages
    factor : bytes of memory for each byte of the file

    Raises
    ------
    InputError
        For a file that is too large.
    OSError
        For one that cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    check_memory(factor * size, f"{path} ({size:,} bytes)", "is it the right file?")
    data = file.read(size + 1)
    if len(data) > size:
        raise InputError(f"{path} grew while it was read; read it again when it is whole")
    return data


LARGEST_JSON = 2**26
"""Bytes of a JSON document; those of wflow and of Hugging Face have some kB, or few MB."""


def read_file(path: Path, expected: str) -> bytes:
    """Return the contents of a regular file; `expected` describes it in messages.

    Raises
    ------
    InputError
        As `opened` and `read_whole`, and for a file that cannot be read.
    """
    with opened(path, expected) as file:
        try:
            return read_whole(file, path)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror or error}); expected {expected}"
            ) from None


def read_json(file: IO[bytes], path: Path | str, *, most: int = LARGEST_JSON) -> Any:
    """Read a JSON document.

    Parameters
    ----------
    file : the file, open for reading
    path : its name, for messages
    most : bytes that the document may have

    Raises
    ------
    InputError
        For a larger document, or one that memory has no room for.
    ValueError, RecursionError
        For what is no JSON.
    """
    size = os.fstat(file.fileno()).st_size
    if size > most:
        raise InputError(f"{path} has {size:,} bytes: expected a JSON document of at most {most:,}")
    return json.loads(read_whole(file, path, factor=33))  # [] has 3 bytes, and takes 64


def read_object(path: Path, expected: str) -> dict[str, Any]:
    """Return the JSON object in a file; `expected` describes it in messages.

    Raises
    ------
    InputError
        As `opened` and `read_json`, and for what is no JSON object.
    """
    with opened(path, expected) as file:
        try:
            found = read_json(file, path)
        except InputError:
            raise
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged, for it is no JSON object: expected {expected}")
    return found


def check_zip(file: IO[bytes], path: Path | str) -> None:
    """Raise InputError for a zip archive with packed files, or with more bytes than are stored.

    torch and `numpy.savez` write archives of stored files, whose sizes are those of the memory that
    they take.

    Raises
    ------
    zipfile.BadZipFile, NotImplementedError, ValueError, OSError
        For a damaged archive.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise InputError(
            f"{path} is an archive of packed files: expected stored ones, as torch and NumPy write "
            "them; unpack it, and write it again without compression"
        )
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise InputError(
            f"{path} claims files of {total:,} bytes, and has {size:,}: expected each to be "
            "stored; it is damaged or hostile: get it again"
        )
    check_memory(total, f"{path}", "is it the right file?")
    file.seek(0)


def array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Read shape, Fortran order and type of an array of NumPy; its values follow in the stream.

    Raises
    ------
    ValueError
        For another format, or a damaged header.
    """
    from numpy.lib import format as npy

    first = npy.read_magic(stream) == (1, 0)
    length = stream.read(2 if first else 4)
    size = int.from_bytes(length, "little")
    if size > 2**16:  # NumPy would read it first
        raise ValueError(f"its header has {size:,} bytes, expected some hundred")
    head = io.BytesIO(length + stream.read(size))
    found = npy.read_array_header_1_0(head) if first else npy.read_array_header_2_0(head)
    if min(found[0], default=0) < 0:
        raise ValueError(f"its header has the shape {found[0]}, expected sizes >= 0")
    return found


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a fifo",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def kind_of_file(mode: int) -> str:
    """Describe the kind of what is at a path."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def draft_of(path: Path) -> Path:
    """Return a unique temporary name in the same folder."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")


def replace_file(path: Path, writer: Callable[[Path], Any]) -> None:
    """Write a file by `writer(draft)`, and rename it when it is complete and on the disk.

    Parameters
    ----------
    path : the file; whether it may be replaced is for the caller to check
    writer : writes the whole file to the path that it is given, which is empty

    Raises
    ------
    OSError
        Where the disk fails; as with an error of the writer, an earlier file stays, and no draft.
    """
    with drafts(path) as (draft,):
        with open(draft, "xb"):
            pass
        writer(draft)
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)


@contextmanager
def drafts(*paths: Path) -> Iterator[list[Path]]:
    """Yield a draft of each file, and move them into place; none is left where that fails."""
    made = [draft_of(path) for path in paths]  # two processes that write at once have one each
    try:
        yield made
    except BaseException:
        for draft in made:
            with suppress(OSError):
                draft.unlink()
        raise


def remove_drafts(folder: Path, names: Iterable[str]) -> None:
    """Remove drafts of these files that killed processes left; the caller holds their lock.

    Drafts of drafts are removed, too.
    """
    stems = "|".join(map(re.escape, names))
    # Those of schema wflow-run/1 have 8 digits, and a dash in the drafts of studies.
    pattern = re.compile(rf"({stems})([.-]([0-9a-f]{{8}}|[0-9a-f]{{16}})\.new)+")
    for file in folder.iterdir():
        if pattern.fullmatch(file.name) and stat.S_ISREG(file.lstat().st_mode):
            file.unlink(missing_ok=True)


def take_lock(number: int) -> bool:
    """Take the kernel's lock on an open file or folder without waiting; it ends with the process.

    Parameters
    ----------
    number : of the open file

    Returns
    -------
    False where another process has the lock. Some disks and systems know no locks: there the guard
    is missing, and the answer is True
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


@contextmanager
def own_folder(
    folder: Path, act: str, drafts: Iterable[str] = (), *, option: str = ""
) -> Iterator[None]:
    """Make a folder, and lock it against other writers of this kind until the end of the block.

    Drafts that killed processes left are removed. Where the block fails before anything is written,
    the folder is taken away again.

    Parameters
    ----------
    folder : the folder
    act : what is done there, such as "training"
    drafts : names of files whose drafts are removed
    option : flag that names the folder, for messages

    Raises
    ------
    InputError
        For a folder that cannot be made or written, or that another process has.
    """
    named = f"{option} {folder}".lstrip()
    another = f"choose another {option or 'folder'}"
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except BlockingIOError:
            raise InputError(
                f"another {act} writes to {named}: wait for it, stop it, or {another}"
            ) from None
        except OSError as error:
            raise InputError(f"cannot make {named}: {error.strerror}; {another}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"cannot write into {named}: {another}")
        remove_drafts(folder, drafts)
        yield


@contextmanager
def locked(folder: Path, file: str = "", *, patience: float = 0.0) -> Iterator[None]:
    """Make a folder and lock it, or a file in it, until the end of the block.

    The lock is one of the kernel, which ends with the process. A lock file is for writers of a few
    seconds beside a process that has the folder; it is removed at the end. Folders that were made
    are removed where the block fails and leaves them empty.

    Parameters
    ----------
    folder : the folder
    file : name of the lock file; the folder itself without one
    patience : seconds to wait for the lock

    Raises
    ------
    BlockingIOError
        Where another process has the lock for longer.
    OSError
        For a folder that cannot be made or opened.
    """
    if fcntl is None:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    end, target = time.monotonic() + patience, folder / file
    made = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    while (number := _lock(folder, target)) is None:
        if time.monotonic() > end:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(target))
        time.sleep(0.01)
    failed = True
    try:
        yield
        failed = False
    finally:
        if file:
            target.unlink(missing_ok=True)
        with suppress(OSError):  # another process has begun to write there
            for place in made if failed else ():  # innermost first
                place.rmdir()
        os.close(number)


def _lock(folder: Path, target: Path) -> int | None:
    """Open a folder or a lock file in it and lock it; None where another process has the lock."""
    flags = os.O_RDONLY if target == folder else os.O_RDWR | os.O_CREAT
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        # Who had the lock may have taken folder or file away, also since it was opened here.
        with suppress(FileNotFoundError):
            number = os.open(target, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
            if not take_lock(number):
                os.close(number)
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(number), os.stat(target)):
                    return number
            os.close(number)


def check_stored(file: "h5py.File", name: str, path: Path) -> "h5py.Dataset | h5py.Group | None":
    """Raise RunFileError for a variable that is not, with all its values, in this file.

    Returns
    -------
    the variable; None for a dimension without coordinate values
    """
    import h5py

    link = file.get(name, getlink=True)
    data = file.get(name) if isinstance(link, h5py.HardLink) else None
    if isinstance(data, h5py.Dataset) and not (data.external or data.is_virtual):
        stored = data.id.get_storage_size()
        if data.chunks is not None and data.size:
            # HDF5 unpacks a whole chunk for each value of it.
            size = math.prod(data.chunks) * data.dtype.itemsize
            check_memory(size, f"{path}: a chunk of {name}", _ELSEWHERE, stored=_bytes_of(file))
            grid = math.prod(-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True))
            whole = data.id.get_num_chunks() == grid
        else:
            whole = data.shape is None or stored >= data.size * data.dtype.itemsize
        if whole:
            return data
        scale = data.attrs.get("NAME", b"")
        if isinstance(scale, bytes) and scale.startswith(_BARE_DIMENSION):
            return None
        raise RunFileError(f"{path}: {name} claims {data.size} values, which are not stored")
    if not isinstance(data, h5py.Group):
        raise RunFileError(f"{path}: {name} keeps its values in another file; refused")
    return data


_ELSEWHERE = "restore the file from a copy, or write it again in smaller parts"


def _bytes_of(file: "h5py.File") -> int:
    return int(file.id.get_filesize())


def check_claims(file: "h5py.File", variables: Iterable[Any], path: Path) -> None:
    """Raise RunFileError where the variables of a file claim more bytes than it can hold.

    They are added up, since one that is zero throughout packs far better than all of them. They
    need not fit into memory: a part of them is read at a time.
    """
    total = sum(data.size * data.dtype.itemsize for data in variables if data.shape is not None)
    size = _bytes_of(file)
    if total > most_unpacked(size):
        raise RunFileError(
            f"{path} claims {total:,} bytes of values, and has {size:,}; expected at most "
            f"{most_unpacked(size):,.0f} of so few: {_ELSEWHERE}"
        )


def values_of(data: "h5py.Dataset", path: Path | str) -> "NDArray[Any]":
    """Read all values of a variable that `check_stored` admitted.

    Raises
    ------
    InputError
        For more of them than the file can hold, or than fit into memory.
    """
    what = f"{path}: {(data.name or '').strip('/')} {data.shape}"
    needed = data.size * data.dtype.itemsize
    check_memory(needed, what, _ELSEWHERE, stored=_bytes_of(data.file))
    return data[...]  # type: ignore[no-any-return]


def _diagnosis(path: Path, error: BaseException) -> str:
    text = str(error)
    if path.exists() and path.stat().st_size == 0:
        return f"{path} is empty; restore it from a copy, or remove it and run again"
    if "truncated file" in text:
        return truncated(path)
    if "signature not found" in text:
        return f"{path} is not an HDF5 file; a run file written by wflow was expected"
    return f"{path} is damaged ({text}); restore it from a copy, or run again with --overwrite"


def truncated(path: Path) -> str:
    """Return the message on a file that ends too early."""
    return (
        f"{path} is truncated: it is shorter than it was written; copy it again from its "
        "source, or run again with --overwrite"
    )
