"""Archives of data sets: where they are, their files read in place, what may be missing of them.

Nothing is unpacked onto the disk. `files_of` lists a zip archive or a folder, whose files are read
when they are asked for; `tar_files` reads a tar archive once, in a stream.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import re
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from wflow._core.errors import InputError
from wflow._core.files import Unpacked, opened
from wflow._core.memory import check_memory
from wflow._core.printable import printable
from wflow.nets.data.download import VARIABLE, DataFile, download, places

# What damaged archives and files in them raise; an InputError is a ValueError.
BROKEN = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, NotImplementedError),
    *(struct.error, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
)
LOST = 0.01  # largest share of a data set that may be missing or broken


# Where they are
# --------------


def found(names: Sequence[str], folder: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Those of these files and folders that are there: in `folder`, or in the known places."""
    return (path for place in places(folder) for name in names if (path := place / name).exists())


def missing(
    what: str, names: Sequence[str], folder: str | os.PathLike[str] | None, advice: str
) -> InputError:
    """The error of a data set that is nowhere; the advice says where to get it."""
    searched = ", ".join(map(str, places(folder))) or "none is given"
    return InputError(
        f"{what} is in no local folder ({searched}); expected {' or '.join(names)}: {advice}, put "
        f"it into a folder and set {VARIABLE} to that folder"
    )


def archive(what: str, file: DataFile, folder: str | os.PathLike[str] | None = None) -> Path:
    """Where an archive is that is read in a stream; downloaded into the cache if it is nowhere.

    Its checksum is compared after a download only: who reads the archive checks what is in it,
    which may have been packed otherwise.

    Parameters
    ----------
    what : str
        Name of the data set, for messages.
    file : DataFile
        The archive, with `packed`.
    folder : str or path-like, optional
        Folder that holds it, the only one that is searched; by default as for `obtain`.

    Returns
    -------
    Path
        The archive.

    Raises
    ------
    InputError
        For a folder that does not exist or lacks the archive, a download that fails, or a missing
        pooch.
    """
    names = tuple(dict.fromkeys((file.path, file.name, *file.others)))
    path = next((path for path in found(names, folder) if path.is_file()), None)
    if path is None and folder is not None:
        raise missing(what, names, folder, f"get {' or '.join(file.addresses)}")
    return download(file) if path is None else path


# What is in them
# ---------------


class ArchiveFile(NamedTuple):
    """A file of an archive or a folder.

    name : with the folders before it, joined by slashes
    mark : its size, and its checksum or, in a folder, the time of its last change
    read : its contents for the number of bytes that it may have; raises one of `BROKEN`
    """

    name: str
    mark: tuple[int, int]
    read: Callable[[int], bytes]


@contextmanager
def files_of(
    source: Path, *, inner: str | None = None, sha256: str | None = None
) -> Iterator[list[ArchiveFile]]:
    """The files of a zip archive, in its order, or those below a folder, in that of their names.

    What macOS adds and hidden files are left out.

    Parameters
    ----------
    source : Path
        The archive or the folder.
    inner : str, optional
        Name of an archive in the archive, which is read in its place if it is there.
    sha256 : str, optional
        Checksum of the archive.

    Raises
    ------
    InputError
        For what is no whole zip archive, or has another checksum.
    """
    with ExitStack() as stack:
        if source.is_dir():
            paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
            yield [
                ArchiveFile(name, (state.st_size, state.st_mtime_ns), partial(_contents, path))
                for path in paths
                if _wanted(name := path.relative_to(source.parent).as_posix())
                if (state := path.stat())
            ]
            return
        file = stack.enter_context(opened(source, "a zip archive"))
        if sha256 is not None:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != sha256:
                raise InputError(
                    f"{source}: its SHA-256 is {digest}, expected {sha256}; the file is damaged or "
                    "another one, and was left as it is: move it away and get it again"
                )
            file.seek(0)
        try:
            packed = stack.enter_context(zipfile.ZipFile(file))
            if inner is not None and inner in packed.namelist():
                _check_unpacked(packed.getinfo(inner))  # its directory is read at once
                within = stack.enter_context(packed.open(inner))
                packed = stack.enter_context(zipfile.ZipFile(within))
        except BROKEN as error:
            raise InputError(f"{source}: is no whole zip archive ({error}); get it again") from None
        yield [
            ArchiveFile(info.filename, (info.file_size, info.CRC), partial(_member, packed, info))
            for info in packed.infolist()
            if not info.is_dir() and _wanted(info.filename)
        ]


def _wanted(name: str) -> bool:
    return "__MACOSX" not in name and not name.rsplit("/", 1)[-1].startswith(".")


def _member(packed: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    """A file of an archive; its length and checksum are those of the directory."""
    if info.file_size > most:
        raise ValueError(f"{info.file_size} bytes, expected at most {most}")
    _check_unpacked(info)
    with packed.open(info) as file:
        return file.read(info.file_size)  # read() unpacks more than that, where there is more


def _check_unpacked(info: zipfile.ZipInfo) -> None:
    check_memory(info.file_size, info.filename, "get it again", stored=info.compress_size)


def _contents(path: Path, most: int) -> bytes:
    with opened(path, "a file of a data set") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"more than {most} bytes")
    return data


def tar_files(source: Path, wanted: re.Pattern[str], most: int) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files of a tar archive whose whole name is wanted, in its order.

    Names are taken without ``./`` before them.

    Raises
    ------
    InputError
        For what is no tar archive or is cut off, and for a file of more than `most` bytes.
    """
    try:
        with opened(source, "a tar archive") as file, _unpacking(file) as stream:
            unpacked = Unpacked(stream, source, os.fstat(file.fileno()).st_size)
            unpacked.left = _HEADERS
            with tarfile.open(fileobj=unpacked, mode="r:") as members:
                while (member := members.next()) is not None:
                    # What it keeps of each member, in memory, is not needed any more.
                    members.members.clear()  # type: ignore[attr-defined]
                    members.pax_headers.clear()  # type: ignore[attr-defined]
                    name = member.name.removeprefix("./")
                    if member.isfile() and wanted.fullmatch(name):
                        if member.size > most:
                            raise InputError(
                                f"{source}: {name} has {member.size:,} bytes; expected at most "
                                f"{most:,}: get the archive again"
                            )
                        contents = members.extractfile(member)
                        assert contents is not None  # a regular file
                        unpacked.left = most
                        yield name, contents.read()
                    unpacked.left = _HEADERS
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(
            f"{source}: cannot be read as a tar archive ({error}); it is cut off, damaged or "
            "another file: get it again"
        ) from None


_HEADERS = 2**20  # bytes of the headers before one member of a tar archive; most have 512


def _unpacking(file: IO[bytes]) -> IO[bytes]:
    """The stream of a file that may be packed."""
    begin = file.read(6)
    file.seek(0)
    if begin.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if begin.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if begin.startswith((b"\xfd7zXZ\0", b"\x5d\0\0\x80")):
        return lzma.LZMAFile(file)
    return file


# What may be missing
# -------------------


def check_lost(
    source: Path, what: str, total: int, broken: Sequence[str], missing: int = 0, *, stacklevel: int
) -> None:
    """Refuse a data set of which too much is missing or broken, and warn of a little.

    Parameters
    ----------
    source : Path
        Where it is.
    what : str
        Name of its members.
    total : int
        How many it has.
    broken : sequence of str
        Names and faults of those that cannot be used.
    missing : int
        How many are not there.
    stacklevel : int
        Of the warning, counted from the function that calls this one.

    Raises
    ------
    InputError
        For more than `LOST` of them.
    """
    if not broken and not missing:
        return
    problems = [f"{missing:,} are missing"] * (missing > 0)
    if broken:
        more = f" and {len(broken) - 5:,} more" if len(broken) > 5 else ""
        problems.append(f"{len(broken):,} cannot be used: {', '.join(broken[:5])}{more}")
    text = f"{source}: of {total:,} {what} {'; '.join(problems)}"
    if len(broken) + missing > LOST * total:
        raise InputError(f"{text}; expected at most {100 * LOST:g} % of them: get it again")
    warnings.warn(printable(f"{text}; they are left out", lines=False), stacklevel=stacklevel + 1)
