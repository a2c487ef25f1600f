"""Look into run files without trusting them: what they hold and how far they were recorded."""

import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from wflow.errors import RunFileError
from wflow.schema import COORDINATES, SCHEMA, VARIABLES

# Keys of the checkpoint that belong to the file and not to the solver's state.
MARK = "__created__"
PARTS = "wflow-parts/1"  # schema of the manifest of parts
_BROKEN = (OSError, KeyError, ValueError, RuntimeError, TypeError, EOFError)


def partial_of(path: Path) -> Path:
    """Name of the data while the run goes."""
    return path.with_name(path.name + ".partial")


def checkpoint_of(path: Path) -> Path:
    """Name of the resumable state while the run goes."""
    return path.with_name(path.name + ".checkpoint")


def parts_of(path: Path) -> Path:
    """Name of the folder of the parts of a run that is computed by several processes."""
    return path.with_name(path.name + ".parts")


def manifest_of(path: Path) -> Path:
    """Name of the file that says of which run the parts are; without it there are none."""
    return parts_of(path) / "run.json"


def final_of(path: str | os.PathLike[str]) -> Path:
    """Name of the run file, whether it or its .partial was named."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(".partial"))


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading, without an HDF5 lock on it, or say what is wrong with it.

    Raises
    ------
    RunFileError
        For a file that is missing, cannot be read, is truncated, or is not HDF5.
    """
    try:
        # A Python file keeps HDF5 from locking, or sharing its cache with, a file being written.
        with open(path, "rb") as raw, h5py.File(raw, "r") as file:
            yield file
    except RunFileError:
        raise
    except FileNotFoundError:
        raise RunFileError(f"{path} does not exist; give the path of a run file") from None
    except (PermissionError, IsADirectoryError) as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror}; give a run file") from None
    except _BROKEN as error:
        raise RunFileError(_diagnosis(path, error)) from None


def _diagnosis(path: Path, error: BaseException) -> str:
    text = str(error)
    if path.exists() and path.stat().st_size == 0:
        return f"{path} is empty; restore it from a copy, or run again with --overwrite"
    if "truncated file" in text:
        return (
            f"{path} is truncated: it is shorter than it was written; copy it again from its "
            "source, or run again with --overwrite"
        )
    if "signature not found" in text:
        return f"{path} is not an HDF5 file; a run file written by wflow was expected"
    return f"{path} is damaged ({text}); restore it from a copy, or run again with --overwrite"


def read_attrs(file: h5py.File, path: Path) -> dict[str, Any]:
    """Attributes of a run file, checked: schema, config (JSON), created, complete.

    Raises
    ------
    RunFileError
        For a file of another program or of another version of the format.
    """
    attrs: dict[str, Any] = {}
    if str(file.attrs.get("schema", "")).startswith("wflow-study/"):
        raise RunFileError(
            f"{path} is the summary of a study, not a run; give one of its run files, such as "
            f"{path.with_name('H00064.h5')}"
        )
    for name in ("schema", "config", "created", "complete"):
        if name not in file.attrs:
            raise RunFileError(
                f"{path} has no attribute {name!r}: it was not written by wflow; "
                f"a run file of schema {SCHEMA} was expected"
            )
        value = file.attrs[name]
        attrs[name] = value.decode() if isinstance(value, bytes) else value
    if attrs["schema"] != SCHEMA:
        raise RunFileError(
            f"{path} has the schema {attrs['schema']!r}, expected {SCHEMA!r}; "
            "read it with the version of wflow named in its attribute wflow_version"
        )
    attrs["complete"] = int(np.asarray(attrs["complete"]).reshape(-1)[0])
    parse_config(attrs["config"], path)
    return attrs


def parse_config(text: Any, path: Path) -> dict[str, Any]:
    """Configuration of a run from its JSON text; RunFileError where it is none."""
    try:
        config = json.loads(text)
    except (TypeError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise RunFileError(
            f"{path}: the attribute config is not a JSON object; the file is damaged"
        )
    return config


def manifest_config(out: Path) -> dict[str, Any]:
    """Configuration of the run whose parts lie beside `out`.

    Raises
    ------
    RunFileError
        For a manifest that cannot be read.
    """
    file = manifest_of(out)
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        if held["schema"] != PARTS:
            raise ValueError(f"schema {held['schema']!r}, expected {PARTS!r}")
        return parse_config(held["config"], file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFileError(
            f"{file} cannot be read ({error}): the parts cannot be resumed; start the run again "
            "with --overwrite"
        ) from None


def check_variables(file: h5py.File, path: Path) -> None:
    """Check the types and dimensions of the variables of a run.

    Raises
    ------
    RunFileError
        For a variable that is missing, has other dimensions or another type than the schema
        says, or keeps its values outside the file.
    """
    missing = [name for name in ("time", "path") if name not in file]
    missing += [] if {"energy", "speed_sq"} & set(file) else ["energy"]
    if missing:
        raise RunFileError(f"{path} lacks {', '.join(missing)}: it is not a run file; is it cut?")
    for name in VARIABLES.keys() & set(file):
        data = file[name]
        if not isinstance(data, h5py.Dataset) or data.dtype != np.dtype(VARIABLES[name].dtype):
            raise RunFileError(f"{path}: {name} is not an array of {VARIABLES[name].dtype}")
        # A file may point at others; a run file never does.
        if data.external or data.is_virtual or data.file.id != file.id:
            raise RunFileError(f"{path}: {name} keeps its values in another file; refused")
        expected = VARIABLES[name].dims
        dims = expected if name in COORDINATES else dims_of(data)
        if dims != expected and not (name == "initial_tokens" and dims == ("path", *expected)):
            raise RunFileError(f"{path}: {name} has dimensions {dims}, expected {expected}")
        if data.ndim != len(dims):
            raise RunFileError(f"{path}: {name} has {data.ndim} dimensions, expected {len(dims)}")


def dims_of(data: h5py.Dataset) -> tuple[str, ...]:
    """Names of the dimensions of a variable; "" where one has no scale."""
    return tuple(str(dim[0].name).rpartition("/")[2] if len(dim) else "" for dim in data.dims)


def recorded(file: h5py.File, dim: str) -> int:
    """Number of leading entries of `time` or `snapshot` that were recorded, for at least one path.

    Values are written in the order of time over NaN, so that a bisection finds the end. Of the
    series, the one that got least far counts; of the snapshots the one that got furthest, as the
    mean over the paths comes only with the last of them.
    """
    ends = []
    for name in VARIABLES.keys() & set(file):
        dims = VARIABLES[name].dims
        if dim not in dims or name in COORDINATES:
            continue
        data, axis = file[name], dims.index(dim)
        low, high = 0, data.shape[axis]
        while low < high:
            middle = (low + high) // 2
            place = (slice(None),) * axis + (middle,) + (0,) * (data.ndim - axis - 1)
            low, high = (low, middle) if np.isnan(data[place]).all() else (middle + 1, high)
        ends.append(low)
    return (min if dim == "time" else max)(ends, default=0)


def raw_layout(file: h5py.File, path: Path) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Where the values of each variable lie: name -> (offset in bytes, shape).

    Raises
    ------
    RunFileError
        For a variable that is not stored in one piece.
    """
    places = {}
    for name in VARIABLES.keys() & set(file):
        data = file[name]
        offset = data.id.get_offset()
        if offset is None or data.chunks is not None or data.compression is not None:
            raise RunFileError(
                f"{path}: {name} is not stored in one piece, so that the run cannot go on in this "
                "file; it was rewritten by another program; run again with --overwrite"
            )
        if offset + data.dtype.itemsize * math.prod(data.shape) > path.stat().st_size:
            raise RunFileError(_diagnosis(path, OSError("truncated file")))
        places[name] = (int(offset), data.shape)
    return places


def read_checkpoint(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of a checkpoint; never a pickle.

    Raises
    ------
    RunFileError
        For a checkpoint that is missing, damaged, or of another program.
    """
    advice = "start the run again with --overwrite"
    try:
        with open(path, "rb") as raw:
            loaded = np.load(raw, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            state = {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise RunFileError(f"{path} is missing: the run cannot be resumed; {advice}") from None
    except (*_BROKEN, zipfile.BadZipFile) as error:
        raise RunFileError(f"{path} is damaged ({error}): {advice}") from None
    if MARK not in state:
        raise RunFileError(f"{path} was not written by wflow; {advice}")
    return state


def differences(held: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Names of the settings in which two configurations of a run differ.

    Parameters
    ----------
    held, asked : configurations, as read from JSON

    Returns
    -------
    list of names, nested ones joined by dots (`law.sigma2`); empty for equal configurations.
    Arrays, of which a configuration holds a digest, are named by what they are: `x0 (the initial
    tokens)`, `heads (the initial matrices)`
    """
    arrays = {"x0": "x0 (the initial tokens)", "heads": "heads (the initial matrices)"}
    names = []
    for key in [*held, *(key for key in asked if key not in held)]:
        if key in held and key in asked and held[key] == asked[key]:
            continue
        before, after = held.get(key), asked.get(key)
        if not (isinstance(before, dict) and isinstance(after, dict)):
            names.append(key)
        elif key in arrays and "sha256" in before and "sha256" in after:
            names.append(arrays[key])
        else:
            names += [f"{key}.{inner}" for inner in differences(before, after)]
    return names
