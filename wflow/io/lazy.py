"""Datasets of run files whose values are read when they are used.

A backend of xarray for the files that wflow writes. Names, sizes and attributes are read by h5py,
once; h5netcdf, which reads any netCDF-4 file, asks HDF5 for them again and again, which takes ten
times as long. `contents` finds out whether a file holds what wflow writes and nothing else;
`of_layout` knows it of a file that was just written.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import h5py
import numpy as np
import xarray
from numpy.typing import NDArray
from xarray.backends import BackendArray, BackendEntrypoint, CachingFileManager, DummyFileManager
from xarray.core import indexing

from wflow._core.files import values_of
from wflow._core.memory import check_memory
from wflow._core.printable import printable
from wflow.io import reading
from wflow.io.schema import COORDINATES, VARIABLES, Layout

# Attributes of HDF5 and netCDF-4 themselves, which are none of a Dataset.
_HIDDEN = {
    "CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates",
    "_NCProperties",
}  # fmt: skip
_KNOWN = _HIDDEN | {"long_name", "units", "source"}  # of variables


class _Variable(NamedTuple):
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attrs: dict[str, Any]
    values: NDArray[Any] | None  # of a coordinate


class Contents(NamedTuple):
    """Variables and attributes of a run file."""

    variables: dict[str, _Variable]
    attrs: dict[str, Any]


def contents(file: h5py.File, checked: reading.Checked) -> Contents | None:
    """What a file holds; None where h5netcdf has to look at it, as another program changed it.

    Parameters
    ----------
    file : a run file
    checked : its variables, of `reading.check_variables`
    """
    attrs = _attributes(file)
    if attrs is None or checked.others:
        return None
    variables = {}
    for name, (dims, data) in checked.variables.items():
        own = _attributes(data, _KNOWN)
        if own is None:
            return None
        values = values_of(data, file.filename) if name in COORDINATES else None
        variables[name] = _Variable(dims, data.shape, data.dtype, own, values)
    return Contents(variables, attrs)


def of_layout(layout: Layout, attrs: Mapping[str, Any]) -> Contents:
    """What a file of that layout with these attributes holds, without reading it."""
    held = layout.coordinates()
    variables = {}
    for name in (*held, *layout.names):
        dims, shape, dtype = layout.dims(name), layout.shape(name), VARIABLES[name].dtype
        own = VARIABLES[name].attrs
        variables[name] = _Variable(dims, shape, np.dtype(dtype), own, held.get(name))
    texts_and_numbers = {
        name: value if isinstance(value, str) else np.atleast_1d(value)[0]
        for name, value in attrs.items()
    }
    return Contents(variables, texts_and_numbers)


def _attributes(thing: Any, known: set[str] | None = None) -> dict[str, Any] | None:
    """Attributes that are texts and numbers; None where there are others."""
    found = {}
    for name in thing.attrs:
        if name in _HIDDEN:
            continue
        if known is not None and name not in known:
            return None
        value = thing.attrs[name]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        elif isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iuf":
            value = value.reshape(-1)[0]
        if not isinstance(value, str | np.number):
            return None
        found[name] = value
    return _printable(found)


def _printable(attrs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Attributes, of which a repr prints names and texts as they are."""
    return {
        printable(name, lines=False): printable(value) if isinstance(value, str) else value
        for name, value in attrs.items()
    }


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
        holder.attrs = _printable(holder.attrs)
    names = {name: printable(str(name), lines=False) for name in (*ds.variables, *ds.sizes)}
    changed = {name: text for name, text in names.items() if name != text}
    if not changed:
        return ds
    renamed = ds.rename(changed)
    renamed.set_close(ds.close)
    return renamed


class Values(BackendArray):
    """Values of a variable in a file."""

    def __init__(self, files: Any, name: str, variable: _Variable) -> None:
        self._files, self.name = files, name
        self.shape, self.dtype = variable.shape, variable.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> NDArray[Any]:
        way = indexing.IndexingSupport.OUTER_1VECTOR
        return indexing.explicit_indexing_adapter(key, self.shape, way, self.read)

    def read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        """Values at an index of slices, numbers and at most one increasing list of numbers."""
        sizes = (
            len(range(*k.indices(n))) if isinstance(k, slice) else np.size(k)
            for k, n in zip(key, self.shape, strict=True)
        )
        needed = math.prod(sizes) * self.dtype.itemsize
        check_memory(needed, f"{self.name} of a run file", "read a part of it")
        with self._files.acquire_context() as file:
            return file[self.name][key]


class RunFile(BackendEntrypoint):
    """Engine of `xarray.open_dataset` for a file of known contents."""

    open_dataset_parameters = ("filename_or_obj", "drop_variables", "contents")

    def open_dataset(  # type: ignore[override]
        self, filename_or_obj: Any, *, drop_variables: Any = None, contents: Contents
    ) -> xarray.Dataset:
        """Dataset of a file, by its name, or open as a Python file, which is left open."""
        files: Any
        if isinstance(filename_or_obj, str):
            # It can be pickled, and closes the files used longest ago where too many are open.
            files = CachingFileManager(h5py.File, filename_or_obj, mode="r")
            files.acquire()
        else:
            files = DummyFileManager(h5py.File(filename_or_obj, "r"))
        source = str(getattr(filename_or_obj, "name", filename_or_obj))
        data: dict[str, xarray.Variable] = {}
        coords: dict[str, xarray.Variable] = {}
        for name, variable in contents.variables.items():
            dims, shape, dtype, attrs, values = variable
            encoding = {"dtype": dtype, "source": source, "original_shape": shape}
            if values is not None:
                coords[name] = xarray.Variable(dims, values, attrs, encoding)
            else:
                unread = indexing.LazilyIndexedArray(Values(files, name, variable))
                data[name] = xarray.Variable(dims, unread, attrs, encoding)
        dataset = xarray.Dataset(data, coords, contents.attrs)
        dataset.set_close(files.close)
        return dataset


def open_dataset(source: str | Any, found: Contents) -> xarray.Dataset:
    """Open a file, by its name or as a Python file, as a Dataset."""
    return xarray.open_dataset(source, engine=RunFile, contents=found)
