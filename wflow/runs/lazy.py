"""Datasets of run files whose values are read when they are used.

A backend as xarray documents them ("How to add a new backend"). Of `xarray.core.indexing`, which is
private by its name, `LazilyIndexedArray` and `explicit_indexing_adapter` have pages in xarray's
reference, as backends need them; the other two names are the types of their arguments. h5netcdf,
which reads any netCDF-4 file, takes four times as long to open one.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import h5py
import numpy as np
import xarray
from numpy.typing import NDArray
from xarray.backends import BackendArray, BackendEntrypoint, CachingFileManager, DummyFileManager
from xarray.core.indexing import (
    ExplicitIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    explicit_indexing_adapter,
)

from wflow._core.files import values_of
from wflow._core.memory import check_memory
from wflow._core.printable import printable
from wflow.runs.schema import COORDINATES, DIGESTS, HIDDEN, Layout, variables_of


class Variable(NamedTuple):
    """Description of a variable in a file; `values` are those of a coordinate."""

    stored: str  # name in the file, which may not be printable
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attrs: dict[str, Any]
    values: NDArray[Any] | None


Contents = tuple[dict[str, Variable], dict[str, Any]]  # variables and attributes of a file


def of_file(
    file: h5py.File, checked: Mapping[str, tuple[tuple[str, ...], h5py.Dataset]]
) -> Contents:
    """Describe an open file; `checked` are its variables, from `read.check_variables`."""
    variables, known = {}, variables_of(checked)
    for name, (dims, data) in checked.items():
        values = values_of(data, file.filename) if name in COORDINATES else None
        shown = printable(name, lines=False)
        names = tuple(printable(dim, lines=False) for dim in dims)
        dtype = np.dtype(known[name].dtype) if name in known else data.dtype
        variables[shown] = Variable(name, names, data.shape, dtype, _attributes(data), values)
    return variables, _attributes(file)


def of_layout(layout: Layout, attrs: Mapping[str, Any]) -> Contents:
    """Describe a file of that layout with these attributes, without reading it."""
    held = layout.coordinates()
    variables = {}
    for name in (*held, *layout.names):
        dims, shape, known = layout.dims(name), layout.shape(name), layout.variables[name]
        dtype = np.dtype(known.dtype)
        variables[name] = Variable(name, dims, shape, dtype, known.attrs, held.get(name))
    return variables, {
        name: value if isinstance(value, str) else np.atleast_1d(value)[0]
        for name, value in attrs.items()
    }


def _attributes(thing: Any) -> dict[str, Any]:
    """Read attributes of a file or a variable: texts, numbers, arrays; names are printable."""
    found = {}
    for name in thing.attrs:
        if name in HIDDEN or name in (DIGESTS, "groups", "dtype"):
            continue
        value = thing.attrs[name]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iuf":
            value = value.reshape(-1)[0]
        if isinstance(value, str):
            value = printable(value)
        if isinstance(value, str | np.number) or getattr(value, "dtype", None) is not None:
            found[printable(name, lines=False)] = value
    return found


def foreign_dataset(source: Any) -> xarray.Dataset:
    """Open a netCDF-4 file of any contents, by its name or as a Python file; names are printable.

    Raises
    ------
    OSError, KeyError, ValueError, RuntimeError
        For what cannot be read.
    """
    ds = xarray.open_dataset(source, engine="h5netcdf", decode_times=False)
    holders: list[Any] = [ds, *ds.variables.values()]
    for holder in holders:
        holder.attrs = {
            printable(str(name), lines=False): printable(value) if isinstance(value, str) else value
            for name, value in holder.attrs.items()
        }
    names = {name: printable(str(name), lines=False) for name in (*ds.variables, *ds.sizes)}
    changed = {name: text for name, text in names.items() if name != text}
    if not changed:
        return ds
    renamed = ds.rename(changed)
    renamed.set_close(ds.close)
    return renamed


class Values(BackendArray):
    """Lazily read values of a variable in a file."""

    def __init__(self, files: Any, name: str, variable: Variable) -> None:
        self._files, self.name, self._stored = files, name, variable.stored
        self.shape, self.dtype = variable.shape, variable.dtype

    def __getitem__(self, key: ExplicitIndexer) -> NDArray[Any]:
        support = IndexingSupport.OUTER_1VECTOR
        return explicit_indexing_adapter(key, self.shape, support, self.read)

    def read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        """Read values at an index of slices, numbers and at most one increasing list of numbers."""
        sizes = (
            len(range(*k.indices(n))) if isinstance(k, slice) else np.size(k)
            for k, n in zip(key, self.shape, strict=True)
        )
        needed = math.prod(sizes) * self.dtype.itemsize
        check_memory(needed, f"{self.name} of a run file", "read a part of it")
        with self._files.acquire_context() as file:
            return np.asarray(file[self._stored][key], self.dtype)


class RunFile(BackendEntrypoint):
    """Engine of `xarray.open_dataset` for a file of known contents."""

    open_dataset_parameters = ("filename_or_obj", "drop_variables", "contents")

    def open_dataset(  # type: ignore[override]
        self, filename_or_obj: Any, *, drop_variables: Any = None, contents: Contents
    ) -> xarray.Dataset:
        """Open a file as a Dataset, by its name, or as a Python file, which is left open."""
        files: Any
        if isinstance(filename_or_obj, str):
            # It can be pickled, and closes the files used longest ago where too many are open.
            files = CachingFileManager(h5py.File, filename_or_obj, mode="r")
            files.acquire()
        else:
            files = DummyFileManager(h5py.File(filename_or_obj, "r"))
        source = str(getattr(filename_or_obj, "name", filename_or_obj))
        variables, attrs = contents
        data: dict[str, xarray.Variable] = {}
        coords: dict[str, xarray.Variable] = {}
        for name, variable in variables.items():
            encoding = {"dtype": variable.dtype, "source": source, "original_shape": variable.shape}
            if variable.values is not None:
                coords[name] = xarray.Variable(
                    variable.dims, variable.values, variable.attrs, encoding
                )
            else:
                unread = LazilyIndexedArray(Values(files, name, variable))
                data[name] = xarray.Variable(variable.dims, unread, variable.attrs, encoding)
        dataset = xarray.Dataset(data, coords, attrs)
        dataset.set_close(files.close)
        return dataset


def open_dataset(source: str | Any, contents: Contents, chunks: Any = None) -> xarray.Dataset:
    """Open a file, by its name or as a Python file, as a Dataset, in chunks of Dask if given."""
    return xarray.open_dataset(source, engine=RunFile, contents=contents, chunks=chunks)
