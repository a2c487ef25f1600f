"""Run files that were cut: what can still be read of them, for a report."""

import io
import math
import os
import re
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow._core.errors import RunFileError, WflowError
from wflow._core.files import BROKEN, open_regular
from wflow._core.memory import check_memory
from wflow.io.runfile import open_run
from wflow.io.schema import VARIABLES

if TYPE_CHECKING:
    from xarray import Dataset

FAULTS = (WflowError, ArithmeticError, AttributeError, LookupError, MemoryError, *BROKEN)
"""What is raised by a file that claims to be a run and is none, or is damaged."""
LARGEST = 2**27
"""Bytes of a damaged file, or of one variable, that are read."""


class _Padded(io.RawIOBase):
    """A file that was cut, read as if it were whole: NaN where bytes are missing."""

    def __init__(self, path: Path, size: int) -> None:
        self._file, self._size, self._at = open_regular(path), size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        self._file.seek(self._at)
        found = self._file.read(count) or b""
        view[:count] = found + b"\xff" * (count - len(found))  # a double of such bytes is NaN
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _claimed_size(path: Path) -> int:
    """Bytes of an HDF5 file by its superblock; 0 where it has none that can be read."""
    with open_regular(path) as file:
        head = file.read(64) or b""
    if not head.startswith(b"\x89HDF\r\n\x1a\n") or len(head) < 48:
        return 0
    at = {0: 40, 1: 44, 2: 28, 3: 28}.get(head[8])
    size = struct.unpack_from("<Q", head, at)[0] if at else 0
    return size if size < 2**50 else 0


@contextmanager
def opened_in_part(path: Path, notes: list[str]) -> Iterator["Dataset"]:
    """A run file, also an unfinished one, and what can be read of one that was cut.

    Raises
    ------
    RunFileError
        For a file of which nothing can be shown.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the page says that a run is not complete
            ds = open_run(path)
    except RunFileError as error:
        if "truncated" not in str(error) or not path.is_file():
            raise
        yield _cut(path, error, notes)
        return
    with ds:
        yield ds


def _cut(path: Path, reason: RunFileError, notes: list[str]) -> "Dataset":
    """What a run file that was cut still holds; `reason` is raised where that is nothing.

    HDF5 finds variables by a directory, which is among the last bytes of a file. Where it is gone
    each variable still has a head with its type and description, from which it is recognised.
    """
    import h5py
    import xarray

    size, there = _claimed_size(path), path.stat().st_size
    if not 0 < there < size or there > LARGEST:
        raise reason
    found: dict[str, tuple[Any, int]] = {}
    total = 0
    with h5py.File(_Padded(path, size), "r") as file:
        for data in _variables_of(file, [m.start() for m in re.finditer(b"OHDR", _bytes(path))]):
            with suppress(*FAULTS):
                size_of = max(data.size, math.prod(data.chunks or ())) * data.dtype.itemsize
                check_memory(total + size_of, f"{path}: {data.name}", "restore it", stored=there)
                name = _name_of(data)
                start = data.id.get_offset() or 0
                outside = data.external or data.is_virtual or start >= there
                if name and name not in found and not outside:
                    total += size_of
                    found[name] = (data[...], there - start - data.id.get_storage_size())
    if not {"time", "path"} <= set(found) or not np.isfinite(found["time"][0]).all():
        raise reason
    kept: dict[str, tuple[tuple[str, ...], Any]] = {}
    sizes: dict[str, int] = {}
    for name in VARIABLES:  # coordinates first
        dims = VARIABLES[name].dims
        shape = found[name][0].shape if name in found else ()
        if len(shape) == len(dims) and all(
            sizes.setdefault(dim, length) == length for dim, length in zip(dims, shape, strict=True)
        ):
            kept[name] = (dims, found[name][0])
    part = sorted(name for name in kept if found[name][1] < 0)
    text = ", ".join(kept)
    notes.append(
        f"The file is truncated: {there:,} of {size:,} bytes are there, and the configuration of "
        f"the run is not among them. Found: {text}; of these only in part: "
        f"{', '.join(part) or 'none'}. Everything else is missing. Restore the file from a copy, "
        "or run again with --overwrite."
    )
    coords = [name for name in ("time", "path", "snapshot", "snapshot_path") if name in kept]
    ds = xarray.Dataset({name: kept[name] for name in kept if name not in coords})
    ds = ds.assign_coords({name: kept[name] for name in coords})
    return ds.assign_attrs({"complete": 0, "config": "{}"})


def _bytes(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read() or b""


def _variables_of(file: Any, places: Sequence[int]) -> Iterator[Any]:
    """The variables of an HDF5 file whose heads are at these places."""
    import h5py

    with h5py.File("places", "w", driver="core", backing_store=False) as other:
        table = other.create_dataset("places", (len(places),), dtype=h5py.ref_dtype)
        all_of_it = h5py.h5s.ALL
        table.id.write(all_of_it, all_of_it, np.array(places, "<u8"), mtype=h5py.h5t.STD_REF_OBJ)
        for reference in table[...]:
            with suppress(*FAULTS):
                data = file[reference]
                if isinstance(data, h5py.Dataset):
                    yield data


def _name_of(data: Any) -> str:
    """Name of a variable by its description, or for a time of snapshots by its shape."""
    try:
        words = data.attrs["long_name"]
    except KeyError:
        rows = data.ndim == 1 and bool(np.all(np.diff(data[...]) > 0))
        return {"<f8": "snapshot", "<i8": "snapshot_path"}.get(data.dtype.str, "") if rows else ""
    return next((name for name, known in VARIABLES.items() if known.long_name == words), "")
