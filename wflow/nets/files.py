"""Files that networks and trainings write: replaced whole, and only where wflow wrote them."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from wflow._core.errors import InputError
from wflow._core.files import kind_of_file, locked, opened, remove_drafts, replace_file

LOCK = ".lock.new"  # ending; a training locks its folder, and saves into it do not wait for it
PATIENCE = 600.0  # seconds; a save takes some


class Kind(NamedTuple):
    """A kind of file that wflow writes.

    Attributes
    ----------
    words : str
        What messages call it.
    ours : callable
        Whether the regular file at a path is one, as far as its beginning shows.
    """

    words: str
    ours: Callable[[Path], bool]


def marked(start: bytes, mark: bytes) -> Callable[[Path], bool]:
    """Return a test for files that begin with `start` and have a mark soon after it."""

    def ours(path: Path) -> bool:
        with opened(path, "a file written by wflow") as file:
            head = file.read(4096)
        return head.startswith(start) and mark in head

    return ours


def check_replaceable(path: Path, kind: Kind) -> None:
    """Raise InputError unless a path is free, or that of a regular file of that kind."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isfile(path):
        what = f"{kind_of_file(path.lstat().st_mode)}, and only regular files are replaced"
    elif not kind.ours(path):
        what = f"no {kind.words} that wflow wrote"
    else:
        return
    raise InputError(f"{path} is {what}; it stays as it is: move it away, or choose another path")


def replace(path: Path, kind: Kind, writer: Callable[[Path], Any]) -> None:
    """Write a file by `writer(draft)` and move it into place when it is whole and on the disk.

    Parameters
    ----------
    path : Path
        The file; an earlier one is replaced where it is a regular file of this kind.
    kind : Kind
        What it is.
    writer : callable
        Writes the whole file to the path that it is given.

    Raises
    ------
    InputError
        Where it cannot be written; an earlier file is kept.
    """
    check_replaceable(path, kind)
    try:
        replace_file(path, writer)
    except (OSError, RuntimeError) as error:
        # On a full disk torch raises a RuntimeError behind the error of the disk, and HDF5 an
        # OSError with a report of several lines.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        number = getattr(cause, "errno", None)
        reason = os.strerror(number) if number else str(error).splitlines()[0]
        raise InputError(
            f"cannot write {path}: {reason}; the earlier file is kept: free space or choose "
            "another path, and resume a training by resume=True"
        ) from None


@contextmanager
def in_turn(path: Path, names: Iterable[str]) -> Iterator[None]:
    """Let processes that save to a path do so in turn, and remove what killed ones left.

    Parameters
    ----------
    path : Path
        The file; its folder is made where it is missing.
    names : iterable of str
        Files in its folder whose drafts are removed in the end.

    Raises
    ------
    InputError
        Where the folder cannot be written, and where another process does not end its save.
    """
    folder = path.parent
    try:
        with locked(folder, f"{path.name}{LOCK}", patience=PATIENCE):
            yield
            remove_drafts(folder, names)
    except OSError as error:
        busy = isinstance(error, BlockingIOError)
        reason = "another process has been saving to it" if busy else error.strerror
        raise InputError(f"cannot write into {folder}: {reason}; choose another") from None
