"""Configurations of `wflow solve`: the arguments of `wflow.solve` in a file of TOML or JSON.

They are those of the attribute `config` of a run file, with three additions: arrays may be named by
a file, tokens also by a recipe, and a law by its name alone. Paths are relative to the folder of
the configuration. `--set` changes single values.
"""

import inspect
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.adaptive import scheme_from_config
from wflow._core.checks import did_you_mean, made_of, path_of, shown
from wflow._core.errors import InputError, RunFileError
from wflow._core.files import LARGEST_JSON, open_hdf5, opened, read_file
from wflow.analysis.rerun import of_equation, stored_arguments
from wflow.attention.flows import flow_from_config
from wflow.heads.laws import QKV, law_from_config
from wflow.particles.options import Compute, SaveAt
from wflow.particles.problem import Problem, array_config, as_given, problem_of
from wflow.particles.solver import solve
from wflow.runs.read import open_run
from wflow.sphere import tokens
from wflow.sphere.embeddings import read_array

_PROBLEM = tuple(inspect.signature(problem_of).parameters)
_KEYS = ("tokens", *inspect.signature(solve).parameters)
_HDF5 = (".h5", ".hdf5", ".nc", ".partial")
_REFERENCE = {"file", "key", "sha256", "shape"}
_FILES = (".npy", ".npz", ".csv", ".parquet", ".h5")  # suffixes of arrays
_CLOUDS = {name.replace("_", "-"): getattr(tokens, name) for name in (
    "cross_polytope", "uniform", "clusters", "digits",
)}  # fmt: skip


# From a file to the arguments of `wflow.solve`
# ---------------------------------------------


def read(path: Path, changes: Sequence[str] = ()) -> tuple[Problem, dict[str, Any]]:
    """Return the problem of a configuration, and its other arguments of `wflow.solve`.

    Parameters
    ----------
    path : file that ends in .toml or .json, or a run file, whose configuration is taken
    changes : texts KEY=VALUE; keys are joined by dots, paths relative to the current folder

    Raises
    ------
    InputError
        For what cannot be used; the message names the file and the key.
    """
    if path.suffix in _HDF5:
        tree = configuration(path)
    else:
        with _naming(f"{path}"):
            tree = _placed(_parsed(path), path.parent)
            tree = as_given(tree) if _is_digest(tree.get("x0")) else tree  # of a run
    for change in changes:
        with _naming(f"--set {change}"):
            _change(tree, change)
    with _naming(f"{path}"):
        missing = [_shown(key) for key in ("x0", "law", "t_final") if key not in tree]
        if missing:
            raise InputError(f"it lacks {', '.join(missing)}")
        made = {key: _made(key, value) for key, value in tree.items()}
        problem = problem_of(**{key: made.pop(key) for key in _PROBLEM if key in made})
        return problem, made


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the place of a mistake before its message."""
    try:
        yield
    except RunFileError:
        raise
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(where) else f"{where}: {text}") from None


def _parsed(path: Path) -> dict[str, Any]:
    """Return what a file of TOML or JSON holds."""
    readers = {".toml": tomllib.loads, ".json": json.loads}
    reader = readers.get(path.suffix)
    if reader is None:
        raise InputError("expected a file that ends in .toml or .json, or a run file .h5")
    with opened(path, "a configuration of wflow.solve") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_JSON:
            raise InputError(f"it has {size:,} bytes: expected a configuration, of some kB")
    try:
        text = read_file(path, "a configuration of wflow.solve").decode()
        found = reader(text)  # type: ignore[operator]
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"it cannot be read as {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(found, dict):
        raise InputError("it holds no settings: expected keys and values, such as dt = 0.01")
    return found


def _placed(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Check the names of the settings, and give all files their path."""
    if "tokens" in tree and "x0" in tree:
        raise InputError("it holds tokens and x0, which are the same: leave out one of them")
    found = {}
    for key, value in tree.items():
        _check_key(key, _KEYS)
        key = "x0" if key == "tokens" else key
        place = key == "out" and isinstance(value, str)
        found[key] = (
            os.path.join(folder, value) if place else _with_paths(_named(key, value), folder)
        )
    return found


def _named(key: str, value: Any) -> Any:
    """Return a setting that is given by a word as a table."""
    if value == "" and key in ("x0", "heads", "out"):
        raise InputError(f"{_shown(key)} is an empty text: expected the name of a file")
    if key not in ("x0", "heads") or not isinstance(value, str):
        return value
    return {"kind": value} if key == "x0" and value in _CLOUDS else {"file": value}


def _with_paths(value: Any, folder: Path) -> Any:
    """Return a setting whose files have their path; a text such as m.npy is a file."""
    if isinstance(value, str) and Path(value).suffix.lower() in _FILES:
        value = {"file": value}
    if not isinstance(value, dict):
        return value
    found = {k: each if k == "file" else _with_paths(each, folder) for k, each in value.items()}
    if isinstance(found.get("file"), str):
        found["file"] = os.path.join(folder, found["file"])
    return found


def _change(tree: dict[str, Any], change: str) -> None:
    """Set one value in a configuration: `law.rate=2`."""
    key, given, text = change.partition("=")
    first, *rest = (part.strip() for part in key.split("."))
    if not given or not all((first, *rest)):
        raise InputError("expected KEY=VALUE, such as dt=0.01, law.rate=2 or tokens=cloud.npy")
    _check_key(first, _KEYS)
    first = "x0" if first == "tokens" else first
    value = _value(text)
    if not rest or rest[-1] != "file":
        value = _with_paths(value if rest else _named(first, value), Path())
    table = tree
    for part, inner in zip((first, *rest), rest, strict=False):
        held = table.get(part, {})
        if isinstance(held, str):  # the name of a law or scheme
            held = {"name": held}
        if not isinstance(held, dict):
            raise InputError(f"{part} is {shown(held)} and has no {inner}: set it as a whole")
        table[part] = held
        table = held
    table[(first, *rest)[-1]] = value


def _value(text: str) -> Any:
    """Return a value in the notation of TOML or Python; what is none is a text."""
    if text.strip() in ("True", "False"):
        return text.strip() == "True"
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text.strip()[:1] in ("[", "{", '"', "'"):
            raise InputError(f"the value cannot be read as TOML: {error}") from None
        with suppress(ValueError):  # .1 and 2., which TOML refuses
            return float(text)
        return text.strip()
    return found["value"] if found.keys() == {"value"} else text


def _check_key(key: str, known: Collection[str]) -> None:
    if key not in known:
        hint = did_you_mean(key, known) or f": expected one of {', '.join(known)}"
        raise InputError(f"there is no setting {key}{hint}")


# Objects from their settings
# ---------------------------


def _made(key: str, value: Any) -> Any:
    """Return an argument of `wflow.solve`."""
    try:
        if key == "x0":
            return _tokens(value)
        if key == "heads" and isinstance(value, dict):
            if not value.keys() & {"query", "value"}:
                return _array(value, "initial_heads")
            return made_of(QKV, _filled(value), key)
        value = _filled(value)
        match key:
            case "law":
                return law_from_config(value)
            case "flow":
                return flow_from_config(value)
            case "scheme":
                return scheme_from_config(value)
            case "save" | "compute" if not isinstance(value, dict):
                raise InputError(f"{key} is {shown(value)}: expected a table, {key} = {{...}}")
            case "save":
                return made_of(SaveAt, value, key)
            case "compute":
                return made_of(Compute, value, key)
    except InputError as error:
        text = str(error)
        raise InputError(text if _shown(key) in text else f"{_shown(key)}: {text}") from None
    return value


def _shown(key: str) -> str:
    return "tokens" if key == "x0" else key


def _tokens(value: Any) -> Any:
    if not isinstance(value, dict):
        return value  # numbers
    settings = dict(value)
    if "kind" in value:
        kind = str(settings.pop("kind")).replace("_", "-")
        if kind not in _CLOUDS:
            hint = did_you_mean(kind, _CLOUDS) or f": expected one of {', '.join(_CLOUDS)}"
            raise InputError(f"there is no tokens.kind {shown(kind)}{hint}")
        return made_of(_CLOUDS[kind], settings, "tokens")
    if value.keys() <= _REFERENCE:
        return _array(value, "initial_tokens")
    settings["path"] = settings.pop("file", None)
    return made_of(tokens.load, settings, "tokens")


def _filled(value: Any) -> Any:
    """Return a setting with its arrays in the place of their files."""
    if not isinstance(value, dict):
        return value
    if "file" in value and value.keys() <= _REFERENCE:
        return _array(value)
    return {key: _filled(each) for key, each in value.items()}


def _is_digest(value: Any) -> bool:
    return isinstance(value, dict) and "sha256" in value and "file" not in value


def _array(value: Mapping[str, Any], default: str | None = None) -> NDArray[np.float64]:
    """Return the array that a table {file, key, sha256} names.

    default : its name in a run file, where the table has no key
    """
    if _is_digest(value):
        raise InputError(
            "the array is given by its digest alone: name its file, by --set KEY=FILE "
            "(`wflow info --config run.h5` writes a configuration that does)"
        )
    for key in value:
        _check_key(key, _REFERENCE)
    if "file" not in value:
        raise InputError("expected numbers, a file, or a table with its name as `file`")
    path, name = path_of(value["file"], "file"), value.get("key")
    if name is not None and not isinstance(name, str):
        raise InputError(f"key is {shown(name)}: expected the name of an array")
    if name is None and default and path.suffix in _HDF5:
        with open_hdf5(path) as file:
            name = default if default in file else None
    found = read_array(path, name, flat=False)
    if "sha256" in value and array_config(found)["sha256"] != value["sha256"]:
        raise InputError(f"{path} holds other values than were recorded (SHA-256 differs)")
    return found


# From a run file to a configuration
# ----------------------------------


def configuration(path: Path) -> dict[str, Any]:
    """Return the arguments of `wflow.solve` that compute the run of a file again.

    Arrays that the file holds are named by file and key.

    Raises
    ------
    InputError
        For a run of another solver, and what `wflow.rerun` refuses: a custom law or flow, and (Q,
        K, V) heads, which are in no run file.
    RunFileError
        For what is no run file, or a part of a run.
    """
    with open_run(path) as ds:
        config = json.loads(ds.attrs["config"])
        if of_equation(path, config):
            raise InputError(
                f"{path} is a run of wflow.meanfield.solve, which `wflow solve` does not compute: "
                "run it again by wflow.rerun"
            )
        arguments = stored_arguments(ds)
    for key, name in (("x0", "initial_tokens"), ("heads", "initial_heads")):
        if arguments[key] is None:  # the law prescribes the heads
            del config[key]
        elif isinstance(config[key], dict):
            digest = config[key]["sha256"]
            config[key] = {"file": os.path.abspath(path), "key": name, "sha256": digest}
    return as_given(config)


def toml(config: Mapping[str, Any]) -> str:
    """Write a configuration as TOML; a setting that is None, which TOML lacks, is left out.

    Parameters
    ----------
    config : names to texts, numbers, bools, None, and lists and mappings of them

    Raises
    ------
    InputError
        For None in a list.
    """
    lines = [
        f"{_toml_key('tokens' if key == 'x0' else key)} = {_toml_value(value)}"
        for key, value in config.items()
        if value is not None
    ]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_toml_value, value))}]"
        case dict():
            pairs = (
                f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None
            )
            return "{ " + ", ".join(pairs) + " }" if value else "{}"
    raise InputError(f"{shown(value)} has no form in TOML")


def _toml_key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _toml_value(key)
