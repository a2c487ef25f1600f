"""Reading of run files, of whatever origin: names, attributes, variables, Datasets."""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import path_of, shown, whole
from wflow._core.errors import InputError, RunFileError, WflowWarning, warn
from wflow._core.extras import required
from wflow._core.files import (
    BROKEN,
    check_claims,
    check_stored,
    check_zip,
    open_hdf5,
    open_regular,
    read_json,
)
from wflow._core.fingerprint import why_different
from wflow._core.printable import printable
from wflow._core.signals import signals_held
from wflow.runs.schema import (
    COORDINATES,
    MOVEMENTS,
    READABLE,
    RESUME,
    SCHEMA,
    VARIABLES,
    config_text,
    is_movement,
    variables_of,
)

if TYPE_CHECKING:
    import xarray

    from wflow.runs import lazy

# These keys of the checkpoint belong to the file and not to the solver's state.
MARK = "__created__"
SEALED = "__sha256__"
RECORDED = "__recorded__"  # JSON: digests of what was recorded, history
AROUND, GAPS = "__around__", "__gaps__"  # bytes of the file outside the values, and their places
PARTS = "wflow-parts/1"  # schema of the manifest of parts
# Types of the settings of a run in its configuration; any of them may be missing.
_NUMBER = (int, float)
_SETTINGS: dict[str, tuple[type, ...]] = {
    "law": (dict,),
    "heads": (int, dict),
    **dict.fromkeys(("x0", "save", "compute"), (dict,)),
    **dict.fromkeys(("save.snapshots", "save.paths"), (list,)),
    **dict.fromkeys(("t_final", "dt", "tau", "kappa", "compute.tolerance"), _NUMBER),
    **dict.fromkeys(("paths", "seed", "first_path", "save.every"), (int,)),
    "direction": (str,),
    **dict.fromkeys(("compute.dtype", "compute.method", "compute.backend"), (str,)),
    **dict.fromkeys(("flow", "scheme", "metric"), (str, dict)),
    **dict.fromkeys(("causal", "save.heads", "save.budget"), (bool,)),
}
# Names of options in configurations that were written before the options were objects.
_FLAT = {
    "record_every": ("save", "every"),
    "snapshots": ("save", "snapshots"),
    "snapshot_paths": ("save", "paths"),
    "save_heads": ("save", "heads"),
    "ledger": ("save", "budget"),
    **{key: ("compute", key) for key in ("dtype", "method", "tolerance", "backend", "device")},
}


def partial_of(path: Path) -> Path:
    """Return the name of the data of a run that is being computed."""
    return path.with_name(path.name + ".partial")


def checkpoint_of(path: Path) -> Path:
    """Return the name of the state from which a run resumes."""
    return path.with_name(path.name + ".checkpoint")


def former_of(path: Path) -> Path:
    """Return the name of the state before the last one."""
    return path.with_name(path.name + ".checkpoint.old")


def has_checkpoint(path: Path) -> bool:
    """Return whether an unfinished run has a state from which it resumes."""
    return checkpoint_of(path).exists() or former_of(path).exists()


def lock_of(path: Path) -> Path:
    """Return the name of the file that the process that writes a run locks."""
    return path.with_name(path.name + ".lock")


def parts_of(path: Path) -> Path:
    """Return the name of the folder of the parts of a run that several processes compute."""
    return path.with_name(path.name + ".parts")


def manifest_of(path: Path) -> Path:
    """Return the name of the manifest of the parts; without the file there are no parts."""
    return parts_of(path) / "run.json"


def final_of(path: str | os.PathLike[str]) -> Path:
    """Return the name of the run file, given that name or the one of its .partial."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(".partial"))


def read_attrs(file: h5py.File, path: Path) -> dict[str, Any]:
    """Read and check attributes of a run file: schema, config (JSON), created, complete.

    Raises
    ------
    RunFileError
        For a file of another program or of another version of the format.
    """
    attrs: dict[str, Any] = {}
    if str(file.attrs.get("schema", "")).startswith("wflow-study/"):
        raise RunFileError(
            f"{path} is the summary of a study, not a run; give one of its run files"
            + _such_as(path)
        )
    for name in ("schema", "config", "created", "complete"):
        if name not in file.attrs:
            raise RunFileError(
                f"{path} has no attribute {name!r}: it was not written by wflow; "
                f"a run file of schema {SCHEMA} was expected"
            )
        value = file.attrs[name]
        attrs[name] = value.decode() if isinstance(value, bytes) else value
    if not isinstance(attrs["schema"], str) or attrs["schema"] not in READABLE:
        raise RunFileError(
            f"{path} has the schema {attrs['schema']!r}, expected {SCHEMA!r}; "
            "read it with the version of wflow named in its attribute wflow_version"
        )
    complete = np.asarray(attrs["complete"])
    if complete.size != 1 or complete.dtype.kind not in "iu" or complete.item() not in (0, 1):
        raise RunFileError(f"{path}: the attribute complete is {complete}, expected 0 or 1")
    attrs["complete"] = int(complete.item())
    if not isinstance(attrs["created"], str):
        raise RunFileError(f"{path}: the attribute created is not a text; the file is damaged")
    attrs["config"] = json.dumps(parse_config(attrs["config"], path))
    return attrs


def history_of(file: h5py.File) -> str | None:
    """Return the attribute `history` of a file; None where it is missing or no text."""
    value = file.attrs.get("history")
    if isinstance(value, bytes):
        return printable(value.decode(errors="replace"))
    return printable(value) if isinstance(value, str) else None


def _such_as(summary: Path) -> str:
    """Return text that names a run file beside the summary of a study, or ""."""
    for path in sorted(summary.parent.glob("*.h5")):
        with suppress(RunFileError), open_hdf5(path) as file:
            if file.attrs.get("schema") in READABLE:
                return f", such as {path}"
    return ""


def config_of(ds: "xarray.Dataset", what: str) -> dict[str, Any]:
    """Return the configuration of a Dataset, which is a run.

    Raises
    ------
    InputError
        For one that is no run of wflow, or lost its attributes.
    """
    try:
        config = parse_config(ds.attrs["config"], what)
        int(ds.attrs["complete"])
    except (RunFileError, KeyError, TypeError, ValueError):
        config = {}
    if not (config and "time" in ds.sizes and ("path" in ds.sizes or is_movement(config))):
        raise InputError(
            f"{what} is a Dataset that is no run: expected a run file, or the Dataset of "
            "wflow.solve or wflow.open with its attributes (arithmetic on a Dataset drops them)"
        )
    return config


def parse_config(text: Any, path: Path | str) -> dict[str, Any]:
    """Read the configuration of a run from its JSON text, with options as objects.

    Raises
    ------
    RunFileError
        Where it is no JSON object, or a setting is not of the type that `wflow.solve` writes.
    """
    try:
        config = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise RunFileError(
            f"{path}: the attribute config is not a JSON object; the file is damaged"
        )
    config = nested(config)
    for name, kinds in _SETTINGS.items():
        group, _, key = name.rpartition(".")
        held = config.get(group, {}) if group else config
        value = held.get(key)
        right = key not in held or isinstance(value, kinds)
        if not right or (isinstance(value, bool) and bool not in kinds):
            words = " or ".join(kind.__name__ for kind in kinds)
            raise RunFileError(f"{path}: config.{name} is {value!r}, expected {words}")
    return config


def nested(config: dict[str, Any]) -> dict[str, Any]:
    """Move the options of an old configuration into the objects save and compute.

    Before `save` and `compute` were objects, the options of `wflow.SaveAt` and `wflow.Compute`
    stood beside the others, some under other names: {"record_every": 5} is now
    {"save": {"every": 5}}.
    """
    if {"save", "compute", "tau"} & config.keys() or not _FLAT.keys() & config.keys():
        return config  # that of minimizing movements has a tolerance too
    found = {key: value for key, value in config.items() if key not in _FLAT}
    for group in ("save", "compute"):
        names = {flat: key for flat, (home, key) in _FLAT.items() if home == group}
        found[group] = {names[flat]: config[flat] for flat in config if flat in names}
    return found


def manifest_config(out: Path, *, advice: str = "") -> dict[str, Any]:
    """Read the configuration of the run whose parts lie beside `out`.

    Parameters
    ----------
    out : name of the finished run file
    advice : end of the message, where the parts are not to be resumed

    Raises
    ------
    RunFileError
        For a manifest that cannot be read.
    """
    file = manifest_of(out)
    try:
        with open_regular(file) as raw:
            manifest = read_json(raw, file)
        if manifest["schema"] != PARTS:
            raise ValueError(f"schema {manifest['schema']!r}, expected {PARTS!r}")
        return parse_config(manifest["config"], file)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        advice = advice or "the parts cannot be resumed; move their folder away and run again"
        raise RunFileError(f"{file} is no manifest of wflow ({error}): {advice}") from None


def check_variables(file: h5py.File, path: Path) -> dict[str, tuple[tuple[str, ...], h5py.Dataset]]:
    """Check the types and dimensions of the variables of a run; each with its dimensions.

    Variables that wflow does not know, added by others, are checked for their storage alone.

    Raises
    ------
    RunFileError
        For a variable that is missing, has other dimensions or another type than the schema
        says, or keeps its values outside the file.
    """
    known = variables_of(file)
    needed = ("time", "path") if known is VARIABLES else known
    missing = [name for name in needed if name not in file]
    missing += [] if any(name in file for name in ("energy", "speed_sq", "entropy")) else ["energy"]
    if missing:
        raise RunFileError(f"{path} lacks {', '.join(missing)}: it is not a run file; is it cut?")
    sizes: dict[str, int] = {}
    checked: dict[str, tuple[tuple[str, ...], h5py.Dataset]] = {}
    for name in file:
        data = check_stored(file, name, path)
        if name not in known:
            if isinstance(data, h5py.Dataset) and data.shape is not None:
                checked[name] = tuple(d or f"{name}_{k}" for k, d in enumerate(dims_of(data))), data
            continue
        variable = known[name]
        if data is None:
            data = file[name]
        if not isinstance(data, h5py.Dataset) or data.dtype != np.dtype(variable.stored):
            raise RunFileError(f"{path}: {name} is not an array of {variable.stored}")
        expected = variable.dims
        dims = expected if name in COORDINATES else dims_of(data)
        may_vary = name in ("initial_tokens", "initial_density")
        if dims != expected and not (may_vary and dims == ("path", *expected)):
            raise RunFileError(f"{path}: {name} has dimensions {dims}, expected {expected}")
        if data.ndim != len(dims):
            raise RunFileError(f"{path}: {name} has {data.ndim} dimensions, expected {len(dims)}")
        for dim, size in zip(dims, data.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise RunFileError(
                    f"{path}: {name} has {size} entries along {dim}, others have {sizes[dim]}"
                )
        checked[name] = dims, data
    check_claims(file, (data for _, data in checked.values()), path)
    return checked


def dims_of(data: h5py.Dataset) -> tuple[str, ...]:
    """Return the names of the dimensions of a variable; "" where one has no scale."""
    scales = data.attrs.get("DIMENSION_LIST", [()] * data.ndim)  # faster than data.dims
    names = [h5py.h5r.get_name(of_dim[0], data.id) if len(of_dim) else None for of_dim in scales]
    return tuple((name or b"").decode(errors="replace").rpartition("/")[2] for name in names)


def recorded(file: h5py.File, dim: str) -> int:
    """Count the leading entries of `time` or `snapshot` recorded for at least one path.

    Values are written in the order of time over NaN, so that a bisection finds the end. Of the
    series, the shortest counts; of the snapshots the longest, as the mean over the paths is
    written only with the last of them.
    """
    ends = []
    variables = variables_of(file)
    for name in variables.keys() & set(file):
        dims = variables[name].dims
        if dim not in dims or name in COORDINATES or variables[name].fill == 0:
            continue
        data, axis = file[name], dims.index(dim)
        low, high = 0, data.shape[axis]
        while low < high:
            middle = (low + high) // 2
            place = (slice(None),) * axis + (middle,) + (0,) * (data.ndim - axis - 1)
            low, high = (low, middle) if np.isnan(data[place]).all() else (middle + 1, high)
        ends.append(low)
    return (min if dim == "time" else max)(ends, default=0)


def seal(arrays: dict[str, NDArray[Any]]) -> None:
    """Add the digest of all arrays to a checkpoint."""
    arrays[SEALED] = np.array(_digest(arrays))


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {arrays[name].shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def read_checkpoint(path: Path, created: str | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of a checkpoint; pickles are never loaded.

    Parameters
    ----------
    path : the checkpoint
    created : the moment at which its run file was laid out; None: any

    Raises
    ------
    RunFileError
        For a checkpoint that is missing, damaged, of another program or of another run.
    """
    advice = "run again with --overwrite"
    try:
        with open_regular(path) as raw:
            check_zip(raw, path)
            loaded = np.load(raw, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            state = {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise RunFileError(f"{path} is missing: the run cannot be resumed; {advice}") from None
    except RunFileError:
        raise
    except (*BROKEN, zipfile.BadZipFile, zlib.error, MemoryError, NotImplementedError) as error:
        raise RunFileError(f"{path} is damaged ({error}): {advice}") from None
    if MARK not in state:
        raise RunFileError(f"{path} was not written by wflow; {advice}")
    if str(state.pop(SEALED, None)) != _digest(state):
        raise RunFileError(f"{path} is damaged: its SHA-256 digest differs; {advice}")
    if str(state.pop(MARK)) != created and created is not None:
        raise RunFileError(f"{path} belongs to another run; {advice}")
    return state


def last_checkpoint(path: Path, created: str | None) -> dict[str, NDArray[Any]]:
    """Read the arrays of the last readable checkpoint of a run.

    Raises
    ------
    RunFileError
        Where neither the last one nor the one before it can be read.
    """
    try:
        return read_checkpoint(checkpoint_of(path), created)
    except RunFileError as error:
        if not former_of(path).exists():
            raise
        try:
            state = read_checkpoint(former_of(path), created)
        except RunFileError:
            raise error from None
        what = str(error).partition(": run again")[0].removesuffix("; run again with --overwrite")
        warn(f"{what}; the run is resumed from the checkpoint before it", WflowWarning)
        return state


def is_checkpoint(path: Path) -> bool:
    """Return whether a file is an archive of arrays with the mark of a checkpoint."""
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{MARK}.npy" in archive.namelist()
    except (*BROKEN, zipfile.BadZipFile, NotImplementedError):
        return False


def differences(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """List the settings in which two configurations of a run differ.

    Parameters
    ----------
    stored, asked : configurations, as read from JSON

    Returns
    -------
    list of names, nested ones joined by dots (`law.sigma2`); empty for equal configurations.
    Arrays, of which a configuration holds a digest, are described: `x0 (the initial
    tokens)`, `heads (the initial matrices)`
    """
    arrays = {"x0": "x0 (the initial tokens)", "heads": "heads (the initial matrices)"}
    names = []
    for key in [*stored, *(key for key in asked if key not in stored)]:
        if key in stored and key in asked and stored[key] == asked[key]:
            continue
        before, after = stored.get(key), asked.get(key)
        if key == "fingerprint":  # of a custom law or flow
            names.append(f"{key} ({why_different(before, after)})")
        elif not (isinstance(before, dict) and isinstance(after, dict)):
            names.append(key)
        elif key in arrays and "sha256" in before and "sha256" in after:
            names.append(arrays[key])
        else:
            names += [f"{key}.{inner}" for inner in differences(before, after)]
    return names


def run_status(path: str | os.PathLike[str]) -> Literal["absent", "partial", "complete"]:
    """Return how far a run got: `absent`, `partial` (can be resumed or read), or `complete`.

    Parameters
    ----------
    path : name of the finished file, or of its .partial

    Raises
    ------
    RunFileError
        Where a file of that name is not a run file, or is an unfinished one under the name of
        a finished one.
    """
    path = final_of(path)
    if partial_of(path).exists():
        return "partial"
    if not path.exists():
        return "absent"
    with open_hdf5(path) as file:
        complete = read_attrs(file, path)["complete"]
    if not complete:
        raise RunFileError(
            f"{path} is unfinished (complete = 0) but bears the name of a finished run; rename it "
            f"to {partial_of(path).name} to resume it, or run again with --overwrite"
        )
    return "complete"


def never_started(path: Path, config: Mapping[str, Any] | None = None) -> bool:
    """Return whether an unfinished run ended before its first checkpoint.

    What the extension of a finished run has recorded by then is copied from that run.

    Parameters
    ----------
    path : name of the finished file
    config : only a run of this configuration counts; None: any

    Raises
    ------
    RunFileError
        For a file that is no run.
    """
    unfinished = partial_of(path)
    if has_checkpoint(path) or not unfinished.exists():
        return False
    with open_hdf5(unfinished) as file:
        stored = parse_config(read_attrs(file, unfinished)["config"], unfinished)
        check_variables(file, unfinished)
        copied = bool(file.attrs.get("extends", ""))
        if not copied and any(recorded(file, dim) for dim in ("time", "snapshot")):
            return False
    return config is None or not differences(stored, json.loads(config_text(config)))


def load_state(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read the state in the checkpoint of an unfinished run.

    Parameters
    ----------
    path : name of the finished file, or of its .partial

    Returns
    -------
    dict of arrays, as last given to `RunWriter.checkpoint`

    Raises
    ------
    RunFileError
        For a checkpoint that is missing, damaged, foreign, or of another file.
    """
    path = final_of(path)
    with open_hdf5(partial_of(path)) as file:
        created = read_attrs(file, partial_of(path))["created"]
    state = last_checkpoint(path, created)
    return {name: array for name, array in state.items() if name not in (RECORDED, AROUND, GAPS)}


def open_run(path: str | os.PathLike[str], *, chunks: Any = None) -> "xarray.Dataset":
    """Open a run file as a Dataset that reads values when they are used.

    An unfinished run (`NAME.partial`, given by that name or as NAME) is cut to the times that were
    recorded, has the attribute complete = 0, and comes with a warning.

    Parameters
    ----------
    path : str or pathlib.Path
        Run file.
    chunks : int, "auto", or dict of str to int or "auto", optional
        Values are arrays of Dask in chunks of this size along each dimension, -1 for all of it; by
        default arrays of NumPy, which are read in one piece. Needs Dask (extra `dask`).

    Returns
    -------
    xarray.Dataset
        The recorded quantities, by the names of the run file; close it, or use it in a `with`.

    Raises
    ------
    InputError
        For a `path` that is no path, chunks that are no sizes of dimensions of the run, and where
        Dask is missing.
    RunFileError
        For a file that is missing, truncated, or not a run file.

    Examples
    --------
    >>> import numpy as np, tempfile, wflow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     wflow.solve(
    ...         wflow.tokens.uniform(n=5, d=3, seed=0), wflow.heads.Frozen(),
    ...         heads=np.eye(3)[None], t_final=0.1, dt=0.05, out=f"{folder}/run.h5",
    ...     ).close()
    ...     with wflow.open(f"{folder}/run.h5") as run:
    ...         print(dict(run.energy.sizes))
    {'path': 1, 'time': 3}
    """
    from wflow.runs import lazy

    path = path_of(path, "path")
    if not path.exists() and partial_of(path).exists():
        path = partial_of(path)
    if not path.exists() and manifest_of(path).exists():
        raise RunFileError(
            f"{path} is not complete: what was computed of it is in {parts_of(path)}; finish it "
            "with --resume"
        )
    ends: dict[str, int] = {}
    with open_hdf5(path) as file:
        attrs = read_attrs(file, path)
        found = lazy.of_file(file, check_variables(file, path))
        if is_movement(json.loads(attrs["config"])) != (variables_of(file) is MOVEMENTS):
            raise RunFileError(f"{path}: its configuration is that of another kind of run")
        if path == partial_of(final_of(path)):  # the process was killed between its last two writes
            attrs["complete"] = 0
        if not attrs["complete"]:
            ends = {dim: recorded(file, dim) for dim in ("time", "snapshot")}
    if chunks is not None:
        chunks = as_chunks(chunks, {dim for variable in found[0].values() for dim in variable.dims})
    source: Any = str(path)
    if not attrs["complete"]:  # a Python file is used for the reasons given in open_hdf5
        source = open_regular(path)
    try:
        dataset = lazily(path, source, found, chunks)
    except RunFileError:
        if not attrs["complete"]:
            source.close()
        raise
    dataset.attrs |= {name: attrs[name] for name in ("complete", "config")}
    if attrs["complete"]:
        return dataset
    cut = dataset.isel({dim: slice(end) for dim, end in ends.items() if dim in dataset.sizes})

    def close() -> None:
        dataset.close()
        source.close()

    cut.set_close(close)
    cut.encoding["source"] = str(path)  # as xarray sets it where it opens the file itself
    reached = f"t = {float(cut['time'][-1]):g}" if ends["time"] else "its start"
    warn(
        f"{path} is not complete: it was recorded up to {reached} "
        f"({ends['time']} of {dataset.sizes['time']} times); {RESUME}",
        WflowWarning,
    )
    return cut


def as_chunks(chunks: Any, dims: set[str]) -> Any:
    """Return sizes of chunks along these dimensions, checked; refuse any where Dask is missing."""

    def checked(size: Any) -> int | str:
        if isinstance(size, str) and size == "auto":
            return "auto"
        with suppress(InputError):
            if found := whole(size, "chunks", least=-1):
                return found
        raise InputError(
            f"chunks is {shown(chunks)}: expected whole numbers > 0, -1 for a whole dimension, or "
            "'auto', for all dimensions or as a dict by their names"
        )

    if not isinstance(chunks, Mapping):
        found: Any = checked(chunks)
    else:
        found = {dim: checked(size) for dim, size in chunks.items()}
        if unknown := [dim for dim in found if dim not in dims]:
            raise InputError(
                f"chunks has {shown(unknown[0])}: expected dimensions of the run, which are "
                f"{', '.join(sorted(dims))}"
            )
    required("dask.array", "dask", "chunks")
    return found


def lazily(path: Path, source: Any, found: "lazy.Contents", chunks: Any = None) -> "xarray.Dataset":
    """Open the file `source` as a Dataset; `found` are its contents, if known.

    Raises
    ------
    RunFileError
        For a file that cannot be read.
    """
    from wflow.runs import lazy

    try:
        with signals_held():  # h5netcdf does not clean up after a failed opening
            return lazy.open_dataset(source, found, chunks)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise RunFileError(f"{path} cannot be read as a run file: {error}") from None


def config_differences(file: Path, asked: Mapping[str, Any]) -> list[str]:
    """Return the keys in which the configuration of a run file differs from the requested one."""
    status, wanted = run_status(file), json.loads(config_text(asked))
    if status == "absent":
        return differences(manifest_config(file), wanted)
    path = partial_of(file) if status == "partial" else file
    with open_hdf5(path) as opened:
        return differences(parse_config(read_attrs(opened, path)["config"], path), wanted)
