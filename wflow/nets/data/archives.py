"""Data sets of many files, in a folder or a zip archive that is read in place."""

import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from wflow._core import files
from wflow._core.errors import InputError, WflowWarning, warn
from wflow.nets.data.download import missing, places

# What damaged archives and files in them raise; an InputError is a ValueError.
BROKEN = (
    *(*files.BROKEN, struct.error, zlib.error, lzma.LZMAError),
    *(tarfile.TarError, zipfile.BadZipFile),
)
LOST = 0.01  # largest share of a data set that may be missing or broken


def found(
    what: str, names: Sequence[str], folder: str | os.PathLike[str] | None, advice: str
) -> list[Path]:
    """Return the archives and folders that exist: in `folder`, or in the known places.

    Raises
    ------
    InputError
        Where there is none; the advice says where to get one.
    """
    paths = [place / name for place in places(folder) for name in names]
    if there := [path for path in paths if path.exists()]:
        return there
    raise missing(what, " or ".join(names), folder, advice)


class ArchiveFile(NamedTuple):
    """A file of an archive or a folder.

    name : with the folders before it, joined by slashes
    mark : its size, and its checksum or, in a folder, the time of its last change
    read : its contents; raises one of `BROKEN`
    """

    name: str
    mark: tuple[int, int]
    read: Callable[[], bytes]


@contextmanager
def files_of(source: Path, *, inner: str | None = None) -> Iterator[list[ArchiveFile]]:
    """Yield the files of a zip archive, in its order, or those below a folder, sorted by name.

    What macOS adds and hidden files are left out.

    Parameters
    ----------
    source : Path
        The archive or the folder.
    inner : str, optional
        Name of an archive in the archive, which is read in its place if it is there.

    Raises
    ------
    InputError
        For what is no whole zip archive.
    """
    with ExitStack() as stack:
        if source.is_dir():
            paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
            yield [
                ArchiveFile(name, (state.st_size, state.st_mtime_ns), path.read_bytes)
                for path in paths
                if _wanted(name := path.relative_to(source.parent).as_posix())
                if (state := path.stat())
            ]
            return
        try:
            packed = stack.enter_context(zipfile.ZipFile(source))
            if inner is not None and inner in packed.namelist():
                within = stack.enter_context(packed.open(inner))
                packed = stack.enter_context(zipfile.ZipFile(within))
        except BROKEN as error:
            raise InputError(f"{source}: is no whole zip archive ({error}); get it again") from None
        yield [
            ArchiveFile(info.filename, (info.file_size, info.CRC), partial(packed.read, info))
            for info in packed.infolist()
            if not info.is_dir() and _wanted(info.filename)
        ]


def _wanted(name: str) -> bool:
    return "__MACOSX" not in name and not name.rsplit("/", 1)[-1].startswith(".")


def check_lost(
    source: Path, what: str, total: int, broken: Sequence[str], missing: int = 0
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
    warn(f"{text}; they are left out", WflowWarning)
