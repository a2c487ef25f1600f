"""Readers of arrays (n, d) in files of several formats, for `wflow.tokens.load`.

Pickled objects are refused: nothing in a file is executed. Shape and type are known before values
are read, in blocks of rows where the format allows it, so that memory is taken only for the rows
that are wanted, and after a check. Where the blocks are large, they are compared with the size of
the file, too: it may be packed.
"""

import csv
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import InputError, WflowWarning, warn
from wflow._core.extras import install
from wflow._core.files import array_header, check_stored
from wflow._core.memory import check_memory

# An entry has the shape of an array and its type; None stands for Python objects, which are not
# read.
Entry = tuple[tuple[int, ...], np.dtype[Any] | None]
_NAME_IT = "name one with key=NAME, and the flag of a study with FILE::NAME"
_REAL = "biuf"  # kinds of numpy types that are real numbers
_BLOCK = 2**22  # bytes of rows that are read at once
COPIES = 5  # copies of tokens in memory: they, their source, and workspace of the normalisation

Floats = NDArray[np.float64]
# `Pick` gets the numbers of rows and columns before they are read, and returns the rows that are
# wanted, ascending, or None for all. `Check` gets a block of rows and the number of its first one,
# and raises InputError.
Pick = Callable[[int, int], NDArray[np.integer[Any]] | None]
Check = Callable[[Floats, int], None]


class Source(NamedTuple):
    """An array in an open file.

    shape, dtype : of the array
    blocks : neighbouring rows, from the first to the last, float64 or of that type
    held : bytes of memory that they take while they are read, beside what is kept of them
    stored : bytes of the file
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Iterator[NDArray[Any]]
    held: int = 0
    stored: int | None = None


Take = Callable[[Source], Floats]  # called while the file is open


def read_array(
    file: Path,
    key: str | None = None,
    pick: Pick | None = None,
    check: Check | None = None,
    *,
    flat: bool = True,
) -> Floats:
    """Read the array (n, d) of a file, or some of its rows.

    Parameters
    ----------
    file : path that ends in one of SUFFIXES
    key : name of the array in the file; None: the only array of numbers with two dimensions, or
        at all
    pick : rows that are wanted; None: all
    check : of all rows, where only some are wanted
    flat : whether it has two dimensions; otherwise it has one or more, and all rows are wanted

    Returns
    -------
    float64 array (n, d), n, d >= 1, values not checked where all rows are wanted

    Raises
    ------
    InputError
        For a missing, damaged, empty or unknown kind of file, a key that it lacks or needs, an
        array that is not (n, d) real numbers, and one that memory has no room for.
    """
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        ending = f"files that end in {file.suffix!r}" if file.suffix else "files without a suffix"
        raise InputError(f"{file}: {ending} cannot be read; expected one of {', '.join(SUFFIXES)}")
    if not os.path.isfile(file):  # unlike Path.is_file, false for a name that is too long
        state = "not a file" if os.path.exists(file) else "no such file"
        raise InputError(f"{file}: {state}; give the path of a file with one array (n, d)")
    what = f"{file}" if key is None else f"{file}, {key!r}"
    try:
        return reader(file, key, lambda source: _taken(what, source, pick, check, flat))
    except InputError:
        raise
    # On a damaged or hostile file a parser raises anything, from struct.error to MemoryError.
    except Exception as error:
        raise InputError(
            f"{file}: cannot be read as {file.suffix} ({type(error).__name__}: {error}); expected "
            "a whole file with an array of numbers (n, d); write it again"
        ) from error


def _taken(what: str, source: Source, pick: Pick | None, check: Check | None, flat: bool) -> Floats:
    """Return the rows that are wanted."""
    shape, dtype, blocks, held, stored = source
    if dtype.kind not in _REAL:
        raise InputError(f"{what}: holds {dtype}; expected real numbers; convert it first")
    if flat and len(shape) != 2:
        raise InputError(f"{what}: has shape {shape}; expected (n, d), one row per token")
    if not shape:
        raise InputError(f"{what}: holds one number; expected an array")
    if 0 in shape:
        raise InputError(f"{what}: has shape {shape} and no values; give at least one row")
    rows = None if pick is None else pick(*shape)
    count = shape[0] if rows is None else len(rows)
    if rows is not None:
        check_memory(
            held, f"{what}: {shape}", "write it in C order, or in smaller row groups", stored=stored
        )
    needed = 8 * COPIES * count * math.prod(shape[1:]) + held
    check_memory(needed, f"{what}: {shape}", "take fewer rows, by n or a part")
    kept, first = np.empty((count, *shape[1:])), 0
    for block in blocks:
        with np.errstate(over="ignore"):  # a long double out of range becomes inf
            values = block.astype(np.float64, copy=False)
        last = first + len(values)
        if rows is None:
            kept[first:last] = values
        else:
            if check is not None:
                check(values, first)
            low, high = np.searchsorted(rows, (first, last))
            kept[low:high] = values[rows[low:high] - first]
        first = last
    if first != shape[0]:
        raise ValueError(f"it ends after {first} of {shape[0]} rows")
    return kept


def _of_array(array: NDArray[Any]) -> Source:
    return Source(array.shape, array.dtype, iter([array]))


def _step(row: int) -> int:
    """Return the number of rows of so many bytes that are read at once."""
    return max(1, _BLOCK // max(1, row))


def optional_module(name: str, purpose: str) -> Any:
    """Import a module of the extra `studies`; InputError with the install command if missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{purpose} need a package that cannot be imported ({error}); install it with: "
            f"{install('studies')}"
        ) from None


def _choose(file: Path, entries: dict[str, Entry], key: str | None, hint: str = "") -> str:
    """Return the name of the array to read: the key, or the only 2-d array of numbers."""
    if key is not None and key in entries:
        return key
    real = [name for name, (_, kind) in entries.items() if kind is not None and kind.kind in _REAL]
    flat = [name for name in real if len(entries[name][0]) == 2]
    for names in (flat, real):
        if key is None and len(names) == 1:
            return names[0]
    listing = ", ".join(
        f"{name} {'objects' if kind is None else f'{shape} {kind}'}"
        for name, (shape, kind) in entries.items()
    )
    problem = f"no array {key!r}" if key is not None else f"{len(flat)} arrays (n, d), expected one"
    raise InputError(f"{file}: {problem}; it holds {listing or 'nothing'}; {_NAME_IT}{hint}")


def _read_numpy(file: Path, key: str | None, take: Take) -> Floats:
    with open(file, "rb") as handle:
        packed = handle.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
        handle.seek(0)
        if not packed:
            source = _stored(handle, file)
            if key is not None:
                raise InputError(f"{file}: holds one array and no names; leave out the key {key!r}")
            return take(source)
        with zipfile.ZipFile(handle) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            entries: dict[str, Entry] = {}
            for name, member in members.items():
                try:
                    with archive.open(member) as stream:
                        shape, _, dtype = array_header(stream)
                    entries[name] = (shape, None if dtype.hasobject else dtype)
                except ValueError:  # what is no array beside the numbers is not read
                    entries[name] = ((), None)
            with archive.open(members[_choose(file, entries, key)]) as stream:
                return take(_stored(stream, file))


def _stored(stream: IO[bytes], file: Path) -> Source:
    """Return the array of NumPy in a stream of a file as a `Source`."""
    shape, fortran, dtype = array_header(stream)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
    rows = shape[0] if shape else 1
    row = math.prod(shape[1:]) * dtype.itemsize

    def blocks() -> Iterator[NDArray[Any]]:
        if fortran:
            yield np.frombuffer(_exactly(stream, rows * row), dtype).reshape(shape[::-1]).T
            return
        for first in range(0, rows, _step(row)):
            count = min(_step(row), rows - first)
            yield np.frombuffer(_exactly(stream, count * row), dtype).reshape(count, *shape[1:])

    # Memory holds a block as it is stored, and a copy where it is unpacked or converted.
    held = (row + 8 * math.prod(shape[1:])) * (rows if fortran else min(_step(row), rows))
    return Source(shape, dtype, blocks(), held, os.path.getsize(file))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise ValueError("it ends within its values")
    return data


def _read_hdf5(file: Path, key: str | None, take: Take) -> Floats:
    import h5py

    entries: dict[str, Entry] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            entries[name] = (item.shape, item.dtype)

    with h5py.File(file, "r") as handle:
        handle.visititems(visit)
        run = str(handle.attrs.get("schema", "")).startswith("wflow-run")
        hint = "; in this wflow run file, initial_tokens are the tokens of its start" if run else ""
        name = _choose(file, entries, None if key is None else key.strip("/"), hint)
        check_stored(handle, name, file)
        data = handle[name]
        row = math.prod(data.shape[1:]) * data.dtype.itemsize
        step = _step(row)
        if data.chunks is not None:  # chunks are unpacked as a whole
            step += -step % data.chunks[0]
        blocks = (data[k : k + step] for k in range(0, len(data) if data.shape else 0, step))
        return take(Source(data.shape, data.dtype, blocks, row * step))


def _read_parquet(file: Path, key: str | None, take: Take) -> Floats:
    arrow = optional_module("pyarrow", "parquet files")
    # read_table is not used: it takes a folder of the name a=1 for a column.
    with optional_module("pyarrow.parquet", "parquet files").ParquetFile(file) as source:
        schema, groups = source.schema_arrow, range(source.metadata.num_row_groups)
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        types = {k: schema.field(k).type for k in schema.names if k not in index}
        kind = arrow.types
        lists = [
            k
            for k, t in types.items()
            if kind.is_list(t) or kind.is_large_list(t) or kind.is_fixed_size_list(t)
        ]
        name = lists[0] if key is None and len(lists) == 1 else key
        if lists or key is not None:
            if name not in lists:
                raise InputError(f"{file}: key {key!r}, columns of lists {lists}; {_NAME_IT}")
            types = {str(name): types[str(name)]}
        for k, t in types.items():
            if name is None and not (kind.is_floating(t) or kind.is_integer(t)):
                raise InputError(
                    f"{file}: column {k!r} holds {t}; expected numbers; drop the column"
                )
        counts = [
            sum(
                group.column(i).num_values
                for i in range(group.num_columns)
                if group.column(i).path_in_schema.partition(".")[0] in types
            )
            for group in map(source.metadata.row_group, groups)
        ]
        rows = source.metadata.num_rows
        width = len(types) if name is None else -(-sum(counts) // max(1, rows))

        def blocks() -> Iterator[Floats]:
            for k in groups:
                table = source.read_row_group(k, columns=list(types))
                if name is None:
                    columns = [table.column(k).to_numpy().astype(np.float64) for k in types]
                    yield np.stack(columns, axis=1)
                    continue
                column = table.column(name)
                if any(not row.is_valid or len(row) != width for row in column):
                    raise InputError(
                        f"{file}: the lists of column {name!r} differ in length; repair them"
                    )
                parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
                yield np.concatenate([[], *parts]).reshape(len(column), width)

        held = 3 * 8 * max(counts, default=0)
        shape = rows, width
        return take(Source(shape, np.dtype(np.float64), blocks(), held, os.path.getsize(file)))


def _read_csv(file: Path, key: str | None, take: Take) -> Floats:
    if key is not None:
        raise InputError(f"{file}: csv holds one array and no names; leave out the key {key!r}")
    size = os.path.getsize(file)
    check_memory(4 * size, f"{file} ({size:,} bytes)", "give a part")  # "0," is a number
    with open(file, encoding="utf-8-sig", newline="") as handle:
        start, fields = 0, list[str]()
        while not fields:
            start, line = handle.tell(), handle.readline()
            if not line:
                return take(_of_array(np.empty((0, 0))))
            fields = next(csv.reader([line.strip()]), [])
        header = _is_header(file, fields)
        if not header:
            handle.seek(start)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # for a header alone
                array = np.loadtxt(handle, delimiter=",", ndmin=2, comments=None, quotechar='"')
        except ValueError as error:
            raise InputError(f"{file}: {_first_fault(file, header) or error}") from None
    return take(_of_array(array))


def _is_header(file: Path, fields: list[str]) -> bool:
    """Return whether the first line names columns; a line with numbers is a token, even damaged."""
    names = fields if fields[0] else fields[1:]
    counted = names == [str(i) for i in range(len(names))]  # column numbers, as pandas writes them
    if not any(names) or (not counted and any(_is_number(name) for name in names)):
        return False
    if not fields[0]:
        raise InputError(
            f"{file}: the first column has no name in the header, as where row numbers were "
            "written along; write the file without them (in pandas: index=False)"
        )
    if counted and len(names) > 2:  # two columns "0,1" are an ordinary token
        warn(
            f"{file}: its first line {','.join(names[:3])},... is read as a token; if it numbers "
            "the columns, write the file without it (in pandas: header=False)",
            WflowWarning,
        )
    return not counted


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field


def _first_fault(file: Path, header: bool) -> str:
    """Return line and cause of the first line that is no row of numbers."""
    width = 0
    with open(file, encoding="utf-8-sig", newline="") as handle:
        for number, line in enumerate(handle, start=1):
            fields = next(csv.reader([line.strip()]), [])
            if header and fields:
                header = False
                continue
            wrong = [field for field in fields if not _is_number(field)]
            if wrong:
                return (
                    f"line {number} holds {wrong[0]!r}; expected numbers separated by commas, "
                    "below at most one line of names; repair that line"
                )
            width = width or len(fields)
            if fields and len(fields) != width:
                return f"line {number} has {len(fields)} fields, not {width}; repair that line"
    return ""


_READERS = {
    ".npy": _read_numpy,
    ".npz": _read_numpy,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
    ".nc": _read_hdf5,
}
SUFFIXES = tuple(_READERS)
_READERS[".partial"] = _read_hdf5  # an unfinished run
