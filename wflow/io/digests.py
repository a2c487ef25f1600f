"""SHA-256 digests of a run file: of every variable and of all other bytes.

After the bytes of HDF5, a finished file ends in a line of JSON:

    {"wflow-digests": "sha256", "metadata": HEX, "variables": {NAME: [OFFSET, BYTES, ROWS, HEX]}}

A variable is stored contiguously from byte OFFSET on and has ROWS rows of equal length: one for
each path or snapshot path, or a single one. Its digest is the SHA-256 of the SHA-256 digests of its
rows, in order. `metadata` is the SHA-256 of all other bytes before the line, in order, which hold
names, types, shapes and attributes, followed by the rest of the line from "variables" on.

Rows grow in the order of time. So each has a digest of what was written so far, taken from memory
as values are written; a checkpoint keeps these, and a resumed run compares them with the file.
Nothing here needs HDF5: a damaged file is recognised before that library interprets it.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import RunFileError
from wflow._core.files import open_hdf5
from wflow.io import reading
from wflow.io.schema import SCHEMA, VARIABLES

_MARK = b'\n{"wflow-digests": "sha256", "metadata": "'
_LONGEST = 1 << 16  # bytes of the line
_BLOCK = 1 << 22  # bytes read at a time
_LENGTH = 32  # bytes of a digest
_MOST = 1 << 28  # bytes of names and attributes that are taken for those of a run file

Places = Mapping[str, tuple[int, tuple[int, ...]]]  # offset in bytes and shape of each variable
Tick = Callable[[int], None]


def rows_of(name: str, shape: tuple[int, ...]) -> int:
    """Number of rows of a variable: pieces that each grow in the order of time.

    Parameters
    ----------
    name : variable of the schema
    shape : its sizes
    """
    lead = VARIABLES[name].dims[0]
    grows = {"time", "snapshot"} & set(VARIABLES[name].dims)
    return shape[0] if lead in ("path", "snapshot_path") and grows else 1


_ADVICE = "restore it from a copy, or run again with --overwrite"
_EMPTY = hashlib.sha256().digest()


class _Rows:
    """What was written of the rows of one variable.

    size : bytes of a row
    extent : bytes of each row up to the furthest one written
    digest : SHA-256 of each row whose hash is not `open`
    open : hashes of rows that grow
    scattered : rows that were not written in order; they are read again
    """

    def __init__(self, rows: int, size: int) -> None:
        self.size = size
        self.extent, self.digest = [0] * rows, [_EMPTY] * rows
        self.open: dict[int, Any] = {}
        self.scattered: set[int] = set()

    def update(self, start: int, data: memoryview) -> None:
        """Take bytes that were written from byte `start` of the variable on."""
        size, extent = self.size, self.extent
        done, count = 0, len(data)
        row, at = divmod(start, size)
        running = self.open.get(row)
        if running is not None and at == extent[row] and at + count < size:  # mostly
            running.update(data)
            extent[row] = at + count
            return
        while done < count:
            row, at = divmod(start + done, size)
            end = min(size, at + count - done)
            piece = data if end - at == count else data[done : done + end - at]
            done += end - at
            if at != extent[row] or row in self.scattered:
                self.scattered.add(row)
                self.open.pop(row, None)
                extent[row] = max(extent[row], end)
                continue
            running = self.open.get(row)
            if running is None:
                running = self.open[row] = hashlib.sha256()
            running.update(piece)
            extent[row] = end
            if end == size:
                self.digest[row] = self.open.pop(row).digest()

    def missing(self) -> list[int]:
        """Rows that were not written to their end."""
        return [row for row, end in enumerate(self.extent) if end < self.size]


class Digests:
    """Digests of a run file that is being written.

    Parameters
    ----------
    places : offset in bytes and shape of every variable
    metadata : digest of the bytes around them while the file is unfinished
    end : length of the file in bytes, without the line at its end
    """

    def __init__(self, places: Places, metadata: str, end: int) -> None:
        self._places = dict(places)
        self.metadata, self.end = metadata, end
        self._rows = {}
        for name, (_, shape) in self._places.items():
            rows = rows_of(name, shape)
            self._rows[name] = _Rows(rows, _bytes(name, shape) // rows)

    def update(self, name: str, start: int, data: memoryview) -> None:
        """Take bytes that were written to a variable from its byte `start` on."""
        self._rows[name].update(start, data)

    def state(self, file: FileIO) -> dict[str, NDArray[Any]]:
        """Arrays from which `restored` resumes; rows written out of order are read from `file`."""
        state: dict[str, NDArray[Any]] = {
            "metadata": np.array(self.metadata),
            "end": np.array(self.end),
        }
        for name, rows in self._rows.items():
            state[f"extent {name}"] = np.array(rows.extent, dtype=np.int64)
            digests = b"".join(self._of_rows(name, file))
            state[f"digest {name}"] = np.frombuffer(digests, np.uint8).reshape(-1, _LENGTH)
        return state

    @classmethod
    def restored(
        cls,
        places: Places,
        state: Mapping[str, NDArray[Any]],
        file: FileIO,
        path: Path,
        tick: Tick = lambda count: None,
    ) -> "Digests":
        """Digests as `state` left them, compared with what the file holds.

        Parameters
        ----------
        places : offset in bytes and shape of every variable
        state : of `state`, from the checkpoint
        file : the unfinished run file
        path : its name, for messages
        tick : receives the number of bytes read

        Raises
        ------
        RunFileError
            For a file in which something recorded before the checkpoint has changed.
        """
        try:
            digests = cls(places, str(state["metadata"]), int(state["end"]))
            for name, rows in digests._rows.items():
                extent, digest = state[f"extent {name}"], state[f"digest {name}"]
                count = len(rows.extent)
                if extent.shape != (count,) or digest.shape != (count, _LENGTH):
                    raise ValueError(f"{name} has other rows")
                if np.any((extent < 0) | (extent > rows.size)):
                    raise ValueError(f"{name} is recorded beyond its end")
                rows.extent = [int(end) for end in extent]
                rows.digest = [row.astype(np.uint8).tobytes() for row in digest]
        except (KeyError, ValueError) as error:
            raise RunFileError(
                f"the checkpoint of {path} is damaged ({error}); run again with --overwrite"
            ) from None
        try:
            same = metadata_digest(file, places) == digests.metadata
        except (ValueError, EOFError):
            same = False
        if not same:
            raise damaged(path, "its names and attributes", "run again with --overwrite")
        often = _seldom(tick)
        for name, rows in digests._rows.items():
            for row, end, running in digests._read_all(name, file, often):
                if running.digest() != rows.digest[row]:
                    what = f"{name} as it was recorded before the checkpoint"
                    raise damaged(path, what, "run again with --overwrite")
                if 0 < end < rows.size:
                    rows.open[row] = running
        return digests

    @staticmethod
    def size(state: Mapping[str, NDArray[Any]]) -> int:
        """Number of bytes that `restored` reads."""
        return sum(int(np.sum(a)) for name, a in state.items() if name.startswith("extent "))

    def line(self, file: FileIO) -> bytes:
        """The last line of the finished file; rows that were not written in order are read.

        Parameters
        ----------
        file : the run file, complete but for this line
        """
        entries = {}
        for name, (offset, shape) in self._places.items():
            rows = b"".join(self._of_rows(name, file, whole=True))
            combined = hashlib.sha256(rows).hexdigest()
            entries[name] = [offset, _bytes(name, shape), len(rows) // _LENGTH, combined]
        rest = f'", "variables": {json.dumps(entries)}}}\n'.encode()
        end = file.seek(0, os.SEEK_END)
        return _MARK + _around(file, _spans(self._places), end, rest).encode() + rest

    def _of_rows(self, name: str, file: FileIO, whole: bool = False) -> list[bytes]:
        """Digests of the rows as far as they were written, or (`whole`) to their end."""
        rows = self._rows[name]
        digests = rows.digest.copy()
        for row, running in rows.open.items():
            digests[row] = running.digest()
        for row in {*rows.scattered, *(rows.missing() if whole else ())}:
            end = rows.size if whole else rows.extent[row]
            digests[row] = self._read(name, row, end, file, lambda count: None).digest()
        return digests

    def _read_all(self, name: str, file: FileIO, tick: Tick) -> Iterator[tuple[int, int, Any]]:
        """Each row, how far it was written, and the hash of that in the file."""
        rows, offset = self._rows[name], self._places[name][0]
        together = max(1, _BLOCK // rows.size) if rows.size else 1
        for first in range(0, len(rows.extent), together):
            ends = rows.extent[first : first + together]
            if together == 1 or not any(ends):
                for row, end in enumerate(ends, start=first):
                    yield row, end, self._read(name, row, end, file, tick)
                continue
            start = offset + first * rows.size
            block = bytearray().join(
                map(bytes, _blocks(file, start, start + len(ends) * rows.size))
            )
            for place, end in enumerate(ends):
                at = place * rows.size
                yield first + place, end, hashlib.sha256(memoryview(block)[at : at + end])
            tick(sum(ends))

    def _read(self, name: str, row: int, end: int, file: FileIO, tick: Tick) -> Any:
        """Hash of the first bytes of a row in the file."""
        running = hashlib.sha256()
        start = self._places[name][0] + row * self._rows[name].size
        for block in _blocks(file, start, start + end):
            running.update(block)
            tick(len(block))
        return running


@dataclass(frozen=True)
class Finding:
    """Result of comparing a file with its digests.

    Attributes
    ----------
    metadata : whether all bytes outside the values are as they were written
    changed : variables whose values are not
    """

    metadata: bool
    changed: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.metadata and not self.changed


def find(path: Path) -> "Stored | None":
    """The digests at the end of a finished file; None where there are none.

    Raises
    ------
    OSError
        Where the file cannot be read.
    """
    with FileIO(path) as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _LONGEST)
        end = b"".join(map(bytes, _blocks(file, start, size)))
    at = end.rfind(_MARK)
    if at < 0:
        return None
    try:
        content = json.loads(end[at:])
        variables = {
            str(name): (int(offset), int(length), int(rows), str(digest))
            for name, (offset, length, rows, digest) in content["variables"].items()
        }
        rest = end[at + len(_MARK) + len(content["metadata"]) :]
        return Stored(path, start + at, str(content["metadata"]), variables, rest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


@dataclass(frozen=True)
class Stored:
    """The digests at the end of a file.

    Attributes
    ----------
    path : the file
    end : where the line begins
    metadata : digest of the bytes around the variables
    variables : name -> offset, bytes, rows and digest
    rest : the line behind `metadata`
    """

    path: Path
    end: int
    metadata: str
    variables: Mapping[str, tuple[int, int, int, str]]
    rest: bytes

    @property
    def bytes(self) -> int:
        """Number of bytes that `check` reads."""
        return sum(size for _, size, _, _ in self.variables.values())

    def check(
        self, names: tuple[str, ...] | None = None, tick: Tick = lambda count: None
    ) -> Finding:
        """Compare the file with its digests.

        Parameters
        ----------
        names : variables to read; None for all of them
        tick : receives the number of bytes read

        Raises
        ------
        OSError
            Where the file cannot be read.
        """
        changed = []
        with FileIO(self.path) as file:
            spans = [(offset, size) for offset, size, _, _ in self.variables.values()]
            try:
                metadata = _around(file, spans, self.end, self.rest) == self.metadata
            except (ValueError, EOFError):
                metadata = False
            if not metadata:  # where the variables lie cannot be relied on
                return Finding(False, ())
            for name, (offset, size, rows, digest) in self.variables.items():
                if names is None or name in names:
                    digest_of_file = _combined(file, offset, size, rows, tick)
                    changed += [name] if digest_of_file != digest else []
        return Finding(metadata, tuple(changed))


def check(path: Path, names: tuple[str, ...] | None = None, advice: str = "") -> None:
    """Raise RunFileError where a file is not what was written; those of version 1 pass.

    Parameters
    ----------
    path : finished run file
    names : variables to read; None for all of them
    advice : what to do, for the message
    """
    try:
        stored = find(path)
        finding = stored.check(names) if stored is not None else None
    except OSError as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror}; check the disk") from None
    if stored is None:
        with open_hdf5(path) as file:
            attrs = reading.read_attrs(file, path)
        if attrs["complete"] and attrs["schema"] == SCHEMA:
            raise RunFileError(
                f"{path} has no digests at its end: it was cut, or opened for writing by another "
                f"program; {advice or _ADVICE}"
            )
    if finding is not None and not finding.passed:
        what = ", ".join(finding.changed) or "its names and attributes"
        raise damaged(path, what, advice or _ADVICE)


def damaged(path: Path, what: str, advice: str) -> RunFileError:
    """The error for a file that does not hold what was written."""
    return RunFileError(
        f"{path} is damaged: {what} changed since it was written (SHA-256 differs); {advice}"
    )


def metadata_digest(file: FileIO, places: Places) -> str:
    """SHA-256 of all bytes of an unfinished file outside its variables.

    Raises
    ------
    ValueError
        For a file that is not laid out as a run file.
    """
    return _around(file, _spans(places), file.seek(0, os.SEEK_END), b"")


def _spans(places: Places) -> list[tuple[int, int]]:
    return [(offset, _bytes(name, shape)) for name, (offset, shape) in places.items()]


def _around(file: FileIO, spans: list[tuple[int, int]], end: int, more: bytes) -> str:
    """SHA-256 of the bytes before `end` outside the variables, and of `more`.

    Raises
    ------
    ValueError
        For variables that overlap or end outside the file, or too many bytes between them.
    """
    at, digest = 0, hashlib.sha256()
    if not 0 <= end - sum(size for _, size in spans) <= _MOST:
        raise ValueError("this is not the layout of a run file")
    for offset, size in [*sorted(spans), (end, 0)]:
        if size < 0 or offset < at or offset + size > end:
            raise ValueError("variables overlap, or end outside the file")
        for block in _blocks(file, at, offset):
            digest.update(block)
        at = offset + size
    digest.update(more)
    return digest.hexdigest()


def _seldom(tick: Tick) -> Tick:
    """Call `tick` for many rows at a time: drawing a bar takes longer than hashing a short row."""
    waiting = 0

    def add(count: int) -> None:
        nonlocal waiting
        waiting += count
        if waiting >= _BLOCK:
            tick(waiting)
            waiting = 0

    return add


def _blocks(file: FileIO, start: int, stop: int) -> Iterator[memoryview]:
    """Bytes start <= b < stop of a file, some at a time.

    Raises
    ------
    EOFError
        Where the file ends before.
    """
    buffer = bytearray(min(_BLOCK, max(0, stop - start)))
    while start < stop:
        file.seek(start)
        wanted = memoryview(buffer)[: min(len(buffer), stop - start)]
        count = file.readinto(wanted)
        if not count:
            raise EOFError("the file is shorter than it was")
        yield wanted[:count]
        start += count


def _combined(file: FileIO, offset: int, size: int, rows: int, tick: Tick) -> str:
    """Digest of a variable: of the digests of its rows."""
    if not rows or size % rows:
        raise ValueError("the rows do not divide the variable")
    length = size // rows
    combined, running, left = hashlib.sha256(), hashlib.sha256(), length
    for block in _blocks(file, offset, offset + size):
        tick(len(block))
        while block:
            piece, block = block[:left], block[left:]
            running.update(piece)
            left -= len(piece)
            if not left:
                combined.update(running.digest())
                running, left = hashlib.sha256(), length
    return combined.hexdigest()


def _bytes(name: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * np.dtype(VARIABLES[name].dtype).itemsize
