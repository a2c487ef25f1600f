"""Names of a run on disk: which may be written, by which process, and how they are removed."""

import contextlib
import errno
import json
import os
import platform
import re
import shutil
import stat
import time
from io import FileIO
from pathlib import Path
from typing import Any

import h5py

from wflow._core.errors import RunFileError
from wflow._core.files import kind_of_file, remove_drafts, take_lock
from wflow.runs.read import (
    checkpoint_of,
    final_of,
    former_of,
    is_checkpoint,
    lock_of,
    manifest_config,
    manifest_of,
    partial_of,
    parts_of,
)
from wflow.runs.schema import FAMILY, Layout

_OWNER = b'{"wflow": "lock", '  # start of a lock file
# The folder of the parts of a run holds parts, their states, the draft of the whole, and jobs.
_PART = re.compile(
    r"((\d+-\d+(\..*)?|whole)\.h5(\.(partial|checkpoint|old|lock|damaged))*|run\.json|run\.new|lock)"
    r"(\.[0-9a-f]{16}\.new)?|job-[0-9a-f]+\.pkl"
)


# A process that was killed before the folder had its manifest leaves such a draft.
_MANIFEST_DRAFT = re.compile(r"run\.json\.[0-9a-f]{16}\.new")


def files_of(path: Path) -> tuple[Path, Path, Path, Path]:
    """Name all files in which a run keeps data: whole, unfinished, its last two states."""
    return path, partial_of(path), checkpoint_of(path), former_of(path)


def check_target(path: Path, layout: Layout, overwrite: bool) -> None:
    """Check that a run can be written to a path, before anything is written.

    Parameters
    ----------
    path : name of the finished file
    layout : sizes of the run
    overwrite : whether a run that is there is replaced

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
    for taken in files_of(path):
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
    needed, free = layout.bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise RunFileError(
            f"{path} needs {needed / 1e6:.1f} MB and the disk has {free / 1e6:.1f} MB left; free "
            "space, choose another disk, or record less (every, snapshots and paths of SaveAt)"
        )


def _check_parts(path: Path) -> None:
    """Check that the folder of the parts, if it exists, was made by wflow or holds no parts.

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
    """Check that a path is free, or holds a file that wflow wrote for a run.

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
        what = kind_of_file(mode)
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
    """Return whether a file is a run file or a checkpoint, by its first bytes and its marks."""
    with open(path, "rb") as file:
        start = file.read(8)
        if start == b"\x89HDF\r\n\x1a\n":
            try:
                with h5py.File(file, "r") as opened:
                    attrs = dict(opened.attrs)  # all, since damaged ones are not just missing
                    return str(attrs.get("schema", "")).startswith(FAMILY)
            except Exception:  # too damaged for HDF5
                file.seek(0)
                return FAMILY.encode() in file.read(1 << 20)
    return start[:4] == b"PK\3\4" and is_checkpoint(path)


class InUse(RunFileError):
    """Error: another process writes to the same run."""


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
            self._file = self._open()
            try:
                lock(self._file, path)
                # A lock file that was removed between opening and locking does not lock the run any
                # more.
                if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                    break
            except FileNotFoundError:
                pass
            except BaseException:
                self._file.close()
                raise
            self._file.close()
        owner = json.dumps({"host": platform.node(), "pid": os.getpid()}).encode()
        with contextlib.suppress(OSError):  # the disk may be full; the lock itself needs no space
            self._file.truncate(0)
            self._file.write(_OWNER + owner[1:])

    def _open(self) -> FileIO:
        # The file is opened neither through a link nor waiting for the other end of a pipe.
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
        """Release the lock, so that other processes can write the run."""
        if not self._file.closed:
            remove(self._path)
            self._file.close()


def _owner(file: FileIO) -> dict[str, Any] | None:
    """Return the process that a lock file names; None for a file of another program."""
    file.seek(0)
    raw = file.read(4096) or b""
    file.seek(0)
    if not raw or not raw.startswith(_OWNER[: len(raw)]):
        return None if raw else {}
    try:
        owner = json.loads(raw)
    except (ValueError, RecursionError):
        return {}  # cut by a full disk
    return owner if isinstance(owner, dict) else None


def _holder(file: FileIO) -> str:
    """Describe the process that has the lock on a file."""
    for _ in range(20):  # it writes its name just after it has taken the lock
        if owner := _owner(file) or {}:
            break
        time.sleep(0.005)
    if "pid" not in owner:
        return "another process"
    return f"process {owner['pid']} on {owner.get('host') or 'this machine'}"


def remove_drafts_of(path: Path) -> None:
    """Delete the drafts of a run that killed processes left; the lock of the run must be held."""
    for target in (partial_of(path), checkpoint_of(path), manifest_of(path)):
        with contextlib.suppress(OSError):
            remove_drafts(target.parent, [target.name])


def remove_states(path: Path) -> None:
    """Delete the states of a finished run that a process left which was killed at its end."""
    states = (checkpoint_of(path), former_of(path))
    if any(os.path.lexists(left) for left in (*states, lock_of(path))):
        with contextlib.suppress(RunFileError):  # another process has it, or nothing can be deleted
            lock = RunLock(path)
            try:
                if not os.path.lexists(partial_of(path)):  # else they are those of an extension
                    for left in states:
                        check_replaceable(left)
                    remove(*states)
                    remove_drafts_of(path)
            finally:
                lock.release()


def place(draft: Path, path: Path) -> None:
    """Rename a draft to its final name, unless something has that name.

    Raises
    ------
    FileExistsError
        Where something has that name already.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # the disk has no hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(draft, path)
    else:
        remove(draft)


def remove_run(path: Path) -> None:
    """Delete a run, whole or unfinished: its file, its state and the folder of its parts.

    The lock of the run must be held, and `check_target` have passed.
    """
    remove(*files_of(path))
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
        for left in files_of(path):
            try:
                check_replaceable(left)
            except RunFileError:
                set_aside(left)
    finally:
        lock.release()


def remove_parts(path: Path) -> None:
    """Delete the parts of a run, and their folder if it is then empty."""
    folder = parts_of(path)
    with contextlib.suppress(FileNotFoundError):
        own = [file for file in folder.iterdir() if _PART.fullmatch(file.name)]
        # The manifest is removed last: as long as it exists, the rest is known to be ours.
        own.sort(key=lambda file: file == manifest_of(path))
        remove(*(file for file in own if stat.S_ISREG(os.lstat(file).st_mode)))
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove(*paths: Path) -> None:
    """Delete files, some of which may be missing."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def sync_directory(folder: Path) -> None:
    """Flush a renaming to the disk, where the operating system supports that."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def disk_error(error: Exception, act: str, path: Path, *, kept: bool = False) -> RunFileError:
    """Return the error for a failure of the disk; `kept` means that the run can be resumed."""
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
