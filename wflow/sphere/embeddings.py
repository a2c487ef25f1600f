"""Readers of arrays (n, d) in files of several formats, for `wflow.tokens.load`.

Pickled objects are refused: nothing in a file is executed.
"""

import csv
import os
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import InputError
from wflow._core.extras import install
from wflow._core.memory import check_memory

# Shape of an array and its type; None: Python objects, which are not read.
Entry = tuple[tuple[int, ...], np.dtype[Any] | None]
_NAME_IT = "name one with key=NAME, or as FILE::NAME on the command line"
_REAL = "biuf"  # kinds of numpy types that are real numbers


def read_array(file: Path, key: str | None = None) -> NDArray[np.float64]:
    """Read the array (n, d) of a file.

    Parameters
    ----------
    file : path that ends in one of SUFFIXES
    key : name of the array in the file; None: the only array of numbers with two dimensions

    Returns
    -------
    float64 array (n, d), n, d >= 1, values not checked

    Raises
    ------
    InputError
        For a missing, damaged, empty or unknown kind of file, a key that it lacks or needs, and
        an array that is not (n, d) real numbers.
    """
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        ending = f"files that end in {file.suffix!r}" if file.suffix else "files without a suffix"
        raise InputError(f"{file}: {ending} cannot be read; expected one of {', '.join(SUFFIXES)}")
    if not os.path.isfile(file):  # unlike Path.is_file, false for a name that is too long
        state = "not a file" if os.path.exists(file) else "no such file"
        raise InputError(f"{file}: {state}; give the path of a file with one array (n, d)")
    try:
        array = reader(file, key)
    except InputError:
        raise
    # On a damaged or hostile file a parser raises anything, from struct.error to MemoryError.
    except Exception as error:
        raise InputError(
            f"{file}: cannot be read as {file.suffix} ({type(error).__name__}: {error}); expected "
            "a whole file with an array of numbers (n, d); write it again"
        ) from error
    what = f"{file}" if key is None else f"{file}, {key!r}"
    if array.dtype.kind not in _REAL:
        raise InputError(f"{what}: holds {array.dtype}; expected real numbers; convert it first")
    if array.ndim != 2:
        raise InputError(f"{what}: has shape {array.shape}; expected (n, d), one row per token")
    if array.size == 0:
        raise InputError(f"{what}: has shape {array.shape} and no values; give at least one row")
    with np.errstate(over="ignore"):  # a long double out of range becomes inf
        return array.astype(np.float64)


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
    """Name of the array to read: the key, or the only array of numbers with two dimensions."""
    if key is not None and key in entries:
        return key
    flat = [
        name
        for name, (shape, kind) in entries.items()
        if len(shape) == 2 and kind is not None and kind.kind in _REAL
    ]
    if key is None and len(flat) == 1:
        return flat[0]
    listing = ", ".join(
        f"{name} {'objects' if kind is None else f'{shape} {kind}'}"
        for name, (shape, kind) in entries.items()
    )
    problem = f"no array {key!r}" if key is not None else f"{len(flat)} arrays (n, d), expected one"
    raise InputError(f"{file}: {problem}; it holds {listing or 'nothing'}; {_NAME_IT}{hint}")


def _read_numpy(file: Path, key: str | None) -> NDArray[Any]:
    with open(file, "rb") as handle:  # np.load leaves a damaged archive open that it opened itself
        loaded = np.load(handle, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if key is not None:
                raise InputError(f"{file}: holds one array and no names; leave out the key {key!r}")
            return loaded
        if key is not None and key in loaded.files:
            return loaded[key]
        entries: dict[str, Entry] = {}
        for name in loaded.files:
            try:
                array = loaded[name]
                entries[name] = (array.shape, array.dtype)
            except ValueError:  # pickled objects beside the numbers are not read
                entries[name] = ((), None)
        return loaded[_choose(file, entries, key)]


def _read_hdf5(file: Path, key: str | None) -> NDArray[Any]:
    import h5py

    from wflow._core.files import check_stored

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
        needed = data.size * (8 + data.dtype.itemsize)
        check_memory(needed, f"{file}: {name} {data.shape}", "give a part")
        return np.asarray(data)


def _read_parquet(file: Path, key: str | None) -> NDArray[Any]:
    arrow = optional_module("pyarrow", "parquet files")
    # Not read_table, which takes a folder of the name a=1 for a column.
    with optional_module("pyarrow.parquet", "parquet files").ParquetFile(file) as source:
        table = source.read()
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    types = {k: table.schema.field(k).type for k in table.column_names if k not in index}
    kind = arrow.types
    lists = [
        k
        for k, t in types.items()
        if kind.is_list(t) or kind.is_large_list(t) or kind.is_fixed_size_list(t)
    ]
    if lists or key is not None:
        name = lists[0] if key is None and len(lists) == 1 else key
        if name not in lists:
            raise InputError(f"{file}: key {key!r}, columns of lists {lists}; {_NAME_IT}")
        column = table.column(name)
        width = np.unique([len(row) if row.is_valid else -1 for row in column])
        if len(width) > 1 or -1 in width:
            raise InputError(f"{file}: the lists of column {name!r} differ in length; repair them")
        values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
        return np.concatenate([[], *values]).reshape(len(column), width[0] if len(width) else 0)
    for k, t in types.items():
        if not (kind.is_floating(t) or kind.is_integer(t)):
            raise InputError(f"{file}: column {k!r} holds {t}; expected numbers; drop the column")
    columns = [table.column(k).to_numpy().astype(np.float64) for k in types]
    return np.stack(columns, axis=1) if columns else np.empty((len(table), 0))


def _read_csv(file: Path, key: str | None) -> NDArray[Any]:
    if key is not None:
        raise InputError(f"{file}: csv holds one array and no names; leave out the key {key!r}")
    with open(file, encoding="utf-8-sig", newline="") as handle:
        start, fields = 0, list[str]()
        while not fields:
            start, line = handle.tell(), handle.readline()
            if not line:
                return np.empty((0, 0))
            fields = next(csv.reader([line.strip()]), [])
        header = _is_header(file, fields)
        if not header:
            handle.seek(start)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # for a header alone
                return np.loadtxt(handle, delimiter=",", ndmin=2, comments=None, quotechar='"')
        except ValueError as error:
            raise InputError(f"{file}: {_first_fault(file, header) or error}") from None


def _is_header(file: Path, fields: list[str]) -> bool:
    """Whether the first line names columns; a line with numbers is a token, whole or damaged."""
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
        warnings.warn(
            f"{file}: its first line {','.join(names[:3])},... is read as a token; if it numbers "
            "the columns, write the file without it (in pandas: header=False)",
            stacklevel=2,
        )
    return not counted


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field


def _first_fault(file: Path, header: bool) -> str:
    """Line and cause of the first line that is no row of numbers: numpy counts rows two ways."""
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
