"""SHA-256 digests of a run file: one of each variable, and one of all attributes.

A variable is hashed in the order in which it is recorded: group of paths after group of paths
(attribute `groups`: the first path of each) and, within a group, time after time. A variable that
does not grow in time is hashed as it is stored. So the digest of what was recorded so far is at
hand at every checkpoint, from memory, and that of the whole at the end.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import RunFileError
from wflow._core.files import open_hdf5
from wflow.runs import read
from wflow.runs.schema import DIGESTS, HIDDEN, SCHEMA, STATE, variables_of

Tick = Callable[[int], None]
_BLOCK = 1 << 25  # bytes read at a time; rows are strided, and reading short pieces of them is slow
_ADVICE = "restore it from a copy, or run again with --overwrite"


def grows(dims: Sequence[str]) -> bool:
    """Return whether a variable has a row for each path that grows in time."""
    return dims[0] in ("path", "snapshot_path") and tuple(dims[1:2]) in (("time",), ("snapshot",))


@dataclass(frozen=True)
class Order:
    """The order in which the values of one variable are recorded and hashed.

    Attributes
    ----------
    shape : sizes of the variable
    bounds : first rows of the groups, and the number of rows; of a variable that does not grow
        none but one group, and its values count as rows
    item : bytes of a value
    """

    shape: tuple[int, ...]
    bounds: tuple[int, ...] | None
    item: int

    @property
    def size(self) -> int:
        """Number of bytes in all."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.item

    @property
    def _inner(self) -> int:
        return int(np.prod(self.shape[2:], dtype=np.int64)) * self.item

    def place(self, index: tuple[Any, ...]) -> tuple[int, bool] | None:
        """Find where the bytes of an index begin, and whether its first axes are swapped.

        None where they do not lie side by side.
        """
        if self.bounds is None:
            if not index:
                return 0, False
            first = range(self.shape[0])[index[0]]  # type: ignore[index]
            if len(index) > 1 or (isinstance(first, range) and not first):
                return None
            start = first.start if isinstance(first, range) else first
            return start * (self.size // self.shape[0]), False
        picks = [*index, *[slice(None)] * (2 - len(index))]
        if len(index) > 2 or not all(isinstance(pick, int | slice) for pick in picks):
            return None
        spans = [range(n)[pick] for n, pick in zip(self.shape[:2], picks, strict=False)]
        rows, times = (span if isinstance(span, range) else range(span, span + 1) for span in spans)
        if not rows or not times:
            return None
        group = bisect_right(self.bounds, rows[0]) - 1
        first, last = self.bounds[group : group + 2]
        if rows[-1] >= last or (len(rows) < last - first and len(times) > 1):
            return None
        start = first * self.shape[1] + times[0] * (last - first) + rows[0] - first
        return start * self._inner, all(isinstance(span, range) for span in spans)

    def blocks(self, count: int) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield indices of the first `count` bytes, block by block, and how much of each counts.

        The first two axes of what such an index of a growing variable selects are to be swapped.
        """
        if self.bounds is None:
            row = max(1, self.size // max(1, self.shape[0])) if self.shape else self.item
            step = max(1, _BLOCK // row)
            for start in range(0, self.shape[0] if self.shape else 1, step):
                if count <= 0:
                    return
                yield (slice(start, start + step),), min(count, step * row)
                count -= step * row
            return
        for first, last in zip(self.bounds, self.bounds[1:], strict=False):
            column = (last - first) * self._inner
            step = max(1, _BLOCK // max(1, column))
            for start in range(0, self.shape[1], step):
                if count <= 0:
                    return
                times = slice(start, min(start + step, self.shape[1]))
                size = (times.stop - times.start) * column
                yield (slice(first, last), times), min(count, size)
                count -= size


def orders(
    variables: Mapping[str, tuple[Sequence[str], tuple[int, ...], np.dtype[Any]]],
    groups: Sequence[int],
    snapshot_paths: Sequence[int],
) -> dict[str, Order]:
    """Return the order of every variable.

    Parameters
    ----------
    variables : name -> dimensions, sizes, type
    groups : first path of each group
    snapshot_paths : paths of the rows of snapshots
    """
    found = {}
    rows_of = np.searchsorted(np.asarray(snapshot_paths, np.int64), groups).tolist()
    for name, (dims, shape, dtype) in variables.items():
        bounds = None
        if grows(dims):
            firsts = list(groups) if dims[0] == "path" else rows_of
            bounds = tuple(dict.fromkeys([0, *firsts, shape[0]]))
        found[name] = Order(shape, bounds, dtype.itemsize)
    return found


class Running:
    """Digest of one variable, of the values recorded so far.

    Attributes
    ----------
    count : bytes hashed so far; None once the values came in another order
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.count: int | None = 0
        self._hash = hashlib.sha256()

    def update(self, index: tuple[Any, ...], values: NDArray[Any]) -> None:
        """Hash the values that were written at an index."""
        if self.count is None:
            return
        place = self.order.place(index)
        if place is None or place[0] != self.count:
            self.count = None
            return
        self._take(values, place[1])

    def _take(self, values: NDArray[Any], swapped: bool, count: int | None = None) -> None:
        ordered = np.ascontiguousarray(np.swapaxes(values, 0, 1) if swapped else values)
        data = ordered.reshape(-1).view(np.uint8)[:count].data
        self._hash.update(data)
        self.count = (self.count or 0) + len(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    @property
    def whole(self) -> bool:
        """Whether all values were recorded, in their order."""
        return self.count == self.order.size

    @classmethod
    def read(
        cls, order: Order, count: int, values: Callable[[tuple[Any, ...]], NDArray[Any]], tick: Tick
    ) -> "Running":
        """Return the digest of the first `count` bytes, read by `values(index)`."""
        running = cls(order)
        for index, length in order.blocks(count):
            running._take(values(index), order.bounds is not None, length)
            tick(length)
        return running


def of_attributes(described: Mapping[str, Any], history: str) -> str:
    """Return the SHA-256 of all names, types, sizes and attributes.

    Parameters
    ----------
    described : of `description`
    history : the attribute of that name, which changes when the run is finished
    """
    return hashlib.sha256(json.dumps([described, history], sort_keys=True).encode()).hexdigest()


def description(file: h5py.File) -> dict[str, Any]:
    """Describe a file and its variables, except for what changes when the run is finished."""
    found = {name: describe(file[name], read.dims_of(file[name])) for name in _datasets(file)}
    late = ("complete", "history", DIGESTS)
    own = {key: plain(file.attrs[key]) for key in file.attrs if key not in HIDDEN | {*late}}
    return {"": own, **found}


def describe(data: h5py.Dataset, dims: Sequence[str]) -> list[Any]:
    """Describe one variable."""
    attrs = {key: plain(data.attrs[key]) for key in data.attrs if key not in HIDDEN}
    return [data.dtype.str, list(data.shape or ()), list(dims), attrs]


def plain(value: Any) -> str:
    """Return an attribute as a text."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return value if isinstance(value, str) else str(np.atleast_1d(value).tolist())


def _datasets(file: h5py.File) -> list[str]:
    """Return the names of all variables, those of the state included."""
    names: list[str] = []
    file.visititems(lambda name, thing: names.append(name) if hasattr(thing, "dtype") else None)
    return names


@dataclass(frozen=True)
class Mismatch:
    """Result of comparing a file with its digests.

    Attributes
    ----------
    attributes : whether names, types, sizes and attributes are as they were written
    changed : variables whose values are not
    """

    attributes: bool
    changed: tuple[str, ...]


def compare(
    file: h5py.File, names: Sequence[str] | None = None, tick: Tick = lambda count: None
) -> Mismatch | None:
    """Compare a finished file with its digests; None for a file of an earlier schema.

    Parameters
    ----------
    file : an open run file
    names : variables to read; None for all of them
    tick : receives the number of bytes read
    """
    if file.attrs.get("schema") != SCHEMA and DIGESTS not in file.attrs:  # one bit between both
        return None
    try:
        known = json.loads(plain(file.attrs[DIGESTS]))
        history = plain(file.attrs.get("history", ""))
        if of_attributes(description(file), history) != known[""]:
            return Mismatch(False, ())
    except (KeyError, ValueError, TypeError):
        return Mismatch(False, ())
    changed = []
    for name, order in orders_of(file).items():
        if names is not None and name not in names:
            continue
        running = Running.read(order, order.size, file[name].__getitem__, tick)
        if running.hexdigest() != known.get(name):
            changed.append(name)
    return Mismatch(True, tuple(changed))


def orders_of(file: h5py.File) -> dict[str, Order]:
    """Return the order of every variable of an open run file, those of its state included."""
    variables, known = {}, variables_of(file)
    for name in _datasets(file):
        data = file[name]
        if (
            (name in known or name.startswith(f"{STATE}/"))
            and data.ndim
            and data.id.get_storage_size()
        ):
            variables[name] = read.dims_of(data), data.shape, data.dtype
    paths = file["snapshot_path"][...] if "snapshot_path" in variables else ()
    groups = np.asarray(file.attrs.get("groups", [0])).reshape(-1).tolist()
    return orders(variables, groups, paths)


def check(path: Path, names: tuple[str, ...] | None = None, advice: str = "") -> None:
    """Raise RunFileError where a finished file is not what was written; old schemas pass.

    Parameters
    ----------
    path : finished run file
    names : variables to read; None for all of them
    advice : what to do, for the message
    """
    with open_hdf5(path) as file:
        if not read.read_attrs(file, path)["complete"]:
            return
        read.check_variables(file, path)
        finding = compare(file, names)
    if finding is not None and not (finding.attributes and not finding.changed):
        what = ", ".join(finding.changed) or "its names and attributes"
        raise damaged(path, what, advice or _ADVICE)


def damaged(path: Path, what: str, advice: str) -> RunFileError:
    """Return the error for a file that does not hold what was written."""
    return RunFileError(
        f"{path} is damaged: {what} changed since it was written (SHA-256 differs); {advice}"
    )
