"""Configurations of `wflow solve`: the arguments of `wflow.solve` in a file of TOML or JSON.

They are those of the attribute `config` of a run file, with three additions: arrays may be named by
a file, tokens also by a recipe, and a law by its name alone. Paths are relative to the folder of
the configuration. `--set` changes single values.
"""

import inspect
import json
import math
import os
import re
import tomllib
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.adaptive import scheme_from_config
from wflow._core.checks import did_you_mean, path_of, shown
from wflow._core.errors import InputError, RunFileError
from wflow._core.files import (
    LARGEST_JSON,
    array_header,
    check_stored,
    check_zip,
    open_hdf5,
    opened,
    read_file,
    values_of,
)
from wflow._core.memory import check_memory
from wflow.analysis.rerun import of_equation
from wflow.attention.flows import flow_from_config
from wflow.heads.laws import LAWS, QKV, law_from_config, made_again
from wflow.particles.options import Compute, SaveAt
from wflow.particles.problem import Problem, array_config, problem_of
from wflow.particles.solver import solve
from wflow.runs.read import open_run, parse_config
from wflow.sphere import tokens

_LARGEST = 2000  # characters of a list that is written out
_PROBLEM = tuple(inspect.signature(problem_of).parameters)
_KEYS = ("tokens", *inspect.signature(solve).parameters)
_HDF5 = (".h5", ".hdf5", ".nc", ".partial")
_REFERENCE = {"file", "key", "sha256", "shape"}
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
    stored = _is_digest(tree.get("x0"))
    for change in changes:
        with _naming(f"--set {change}"):
            _change(tree, change)
    with _naming(f"{path}"):
        missing = [_shown(key) for key in ("x0", "law", "t_final") if key not in tree]
        if missing:
            raise InputError(f"it lacks {', '.join(missing)}")
        made = {key: _made(key, value, stored) for key, value in tree.items()}
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
    if not isinstance(value, str):
        return value
    if key == "law":
        return {"name": value}
    if key == "x0" and value in _CLOUDS:
        return {"kind": value}
    if key in ("x0", "heads"):
        file, _, name = value.partition("::")
        return {"file": file} | ({"key": name} if name else {})
    return value


def _with_paths(value: Any, folder: Path) -> Any:
    if not isinstance(value, dict):
        return value
    found = {key: _with_paths(each, folder) for key, each in value.items()}
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
    value = _with_paths(_named(first, _value(text)) if not rest else _value(text), Path())
    table = tree
    for part, inner in zip((first, *rest), rest, strict=False):
        held = table.get(part, {})
        if isinstance(held, str):  # the name of a scheme
            held = {"name": held}
        if not isinstance(held, dict):
            raise InputError(f"{part} is {shown(held)} and has no {inner}: set it as a whole")
        table[part] = held
        table = held
    table[(first, *rest)[-1]] = value


def _value(text: str) -> Any:
    """Return a value in the notation of TOML; what is none is a text."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text.strip()[:1] in ("[", "{", '"', "'"):
            raise InputError(f"the value cannot be read as TOML: {error}") from None
        return text.strip()
    return found["value"] if found.keys() == {"value"} else text


def _check_key(key: str, known: Collection[str], what: str = "") -> None:
    if key not in known:
        hint = did_you_mean(key, known) or f": expected one of {', '.join(known)}"
        raise InputError(f"there is no setting {what}{key}{hint}")


# Objects from their settings
# ---------------------------


def _made(key: str, value: Any, stored: bool) -> Any:
    """Return an argument of `wflow.solve`.

    key, value : of the configuration
    stored : whether this is that of a run file, which names no method of exact sums
    """
    try:
        if key == "x0":
            return _tokens(value)
        if key == "heads":
            return _heads(value)
        value = _filled(value)
        match key:
            case "law":
                return _law(value)
            case "flow":
                return flow_from_config(value)
            case "scheme":
                return scheme_from_config(value)
            case "save":
                return _options(SaveAt, value, key)
            case "compute":
                exact = {"method": "exact"} if stored and isinstance(value, dict) else {}
                return _options(Compute, exact | value if exact else value, key)
    except RunFileError as error:
        raise InputError(f"{_shown(key)}: {error}") from None
    except InputError as error:
        text = str(error)
        raise InputError(text if _shown(key) in text else f"{_shown(key)}: {text}") from None
    return value


def _shown(key: str) -> str:
    return "tokens" if key == "x0" else key


def _options(kind: Callable[..., Any], value: Any, key: str) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{key} is {shown(value)}: expected a table, such as {key} = {{...}}")
    for name in value:
        _check_key(name, [each.name for each in fields(kind)], f"{key}.")  # type: ignore[arg-type]
    return kind(**value)


def _law(value: Any) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"law is {shown(value)}: expected a name, or a table with one")
    laws = [name for name in LAWS.classes if name != "HeadLaw"]
    name, law = value.get("name"), dict(value)
    if isinstance(name, str) and name in laws and "fingerprint" not in value:
        known = inspect.signature(LAWS.classes[name]).parameters
        for inner in value:
            if inner != "scores":  # of a Schedule, in run files
                _check_key(inner, ("name", *known), "law.")
    elif "fingerprint" not in value:
        hint = did_you_mean(str(name), laws) or f": expected one of {', '.join(laws)}"
        raise InputError(f"there is no law {shown(name)}{hint}")
    if isinstance(law.get("law"), str):
        law["law"] = {"name": law["law"]}
    return law_from_config(law)


def _tokens(value: Any) -> Any:
    if not isinstance(value, dict):
        return value  # numbers
    if "kind" not in value:
        source = {key: value[key] for key in value if key not in ("n", "d", "seed")}
        file = source.get("file")
        plain = not isinstance(file, str) or Path(file).suffix in (".npy", ".npz", *_HDF5)
        if plain and source == value:
            return _array(value, "initial_tokens")
        for key in value:
            _check_key(key, ("file", "key", "n", "d", "seed"), "tokens.")
        return tokens.load(**{"path" if key == "file" else key: value[key] for key in value})
    settings = dict(value)
    kind = str(settings.pop("kind")).replace("_", "-")
    if kind not in _CLOUDS:
        hint = did_you_mean(kind, _CLOUDS) or f": expected one of {', '.join(_CLOUDS)}"
        raise InputError(f"there is no tokens.kind {shown(kind)}{hint}")
    known = inspect.signature(_CLOUDS[kind]).parameters
    for key in settings:
        _check_key(key, known, "tokens.")
    missing = [
        k for k in known if known[k].default is inspect.Parameter.empty and k not in settings
    ]
    if missing:
        raise InputError(f"tokens lack {', '.join(missing)}: give tokens.{missing[0]}")
    return _CLOUDS[kind](**settings)


def _heads(value: Any) -> Any:
    if not isinstance(value, dict):
        return value  # their number, or numbers
    if "query" not in value:
        return _array(value, "initial_heads")
    for key in value:
        _check_key(key, ("query", "key", "value", "scale"), "heads.")
    missing = [key for key in ("key", "value") if key not in value]
    if missing:
        raise InputError(f"heads lack {', '.join(missing)}: expected query, key and value")
    return QKV(**{key: _filled(value[key]) for key in value})


def _filled(value: Any) -> Any:
    """Return a setting with its arrays in the place of their files."""
    if not isinstance(value, dict):
        return value
    if "file" in value and value.keys() <= _REFERENCE:
        return _array(value)
    return {key: _filled(each) for key, each in value.items()}


# Arrays in files
# ---------------


def _is_digest(value: Any) -> bool:
    return isinstance(value, dict) and "sha256" in value and "file" not in value


def _array(value: Mapping[str, Any], default: str = "") -> Any:
    """Return the array that a table {file, key, sha256} names.

    default : its name in a run file, where the table has no key
    """
    if _is_digest(value):
        raise InputError(
            "the array is given by its digest alone: name its file, by --set KEY=FILE "
            "(`wflow info --config run.h5` writes a configuration that does)"
        )
    for key in value:
        _check_key(key, ("file", "key", "sha256", "shape"))
    if "file" not in value:
        raise InputError("expected numbers, a file, or a table with its name as `file`")
    path = path_of(value["file"], "file")
    name = value.get("key")
    if name is not None and not isinstance(name, str):
        raise InputError(f"key is {shown(name)}: expected the name of an array")
    found = _in_hdf5(path, name or default) if path.suffix in _HDF5 else _of_numpy(path, name)
    if "sha256" in value and array_config(np.asarray(found, float))["sha256"] != value["sha256"]:
        raise InputError(f"{path} holds other values than were recorded (SHA-256 differs)")
    return found


def _in_hdf5(path: Path, key: str) -> Any:
    """Return an array of an HDF5 file; `config.law.scores` is in the configuration of a run."""
    with open_hdf5(path) as file:
        if key.startswith("config.") and "config" in file.attrs:
            found: Any = parse_config(file.attrs["config"], path)
            for part in key.split(".")[1:]:
                found = found.get(part) if isinstance(found, dict) else None
            if not isinstance(found, list):
                raise InputError(f"{path} has no array {shown(key)}")
            return found
        names = [name for name, thing in file.items() if hasattr(thing, "shape")]
        if key not in names:
            if key and key not in ("initial_tokens", "initial_heads"):
                raise InputError(f"{path} has no array {shown(key)}{did_you_mean(key, names)}")
            if len(names) != 1:
                raise InputError(f"{path} holds {', '.join(names)[:200]}: name one by FILE::KEY")
            (key,) = names
        check_stored(file, key, path)
        return values_of(file[key], path)


def _of_numpy(path: Path, key: str | None) -> NDArray[Any]:
    """Return an array of a file .npy or .npz; pickled objects are refused."""
    if path.suffix not in (".npy", ".npz"):
        raise InputError(f"{path}: expected a file .npy, .npz or .h5")
    with opened(path, "an array of NumPy") as file:
        try:
            if path.suffix == ".npz":
                check_zip(file, path)
                with np.load(file, allow_pickle=False) as archive:
                    names = archive.files
                    if key not in names and (key is not None or len(names) != 1):
                        raise InputError(
                            f"{path} holds {', '.join(names)[:200]}: name one by FILE::KEY"
                        )
                    return np.asarray(archive[names[0] if key is None else key])
            if key is not None:
                raise InputError(f"{path} holds one array without a name: leave out {key!r}")
            shape, _, kind = array_header(file)
            size = os.fstat(file.fileno()).st_size
            check_memory(kind.itemsize * math.prod(shape), f"{path}: {shape}", "", stored=size)
            file.seek(0)
            return np.asarray(np.load(file, allow_pickle=False))
        except InputError:
            raise
        except (ValueError, EOFError, OSError, NotImplementedError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} cannot be read as an array: {error}") from None


# From a run file to a configuration
# ----------------------------------


def configuration(path: Path) -> dict[str, Any]:
    """Return the arguments of `wflow.solve` that compute the run of a file again.

    Arrays that the file holds, and large ones of its configuration, are named by file and key.

    Raises
    ------
    InputError
        For a run of another solver.
    RunFileError
        For what is no run file, or a part of a run.
    """
    with open_run(path) as ds:
        config = json.loads(ds.attrs["config"])
        held = set(ds.variables)
    if of_equation(path, config):
        raise InputError(
            f"{path} is a run of wflow.meanfield.solve, which `wflow solve` does not compute: run "
            "it again by wflow.rerun"
        )
    file = os.path.abspath(path)
    for key, name in (("x0", "initial_tokens"), ("heads", "initial_heads")):
        if isinstance(config[key], dict) and name in held:
            config[key] = {"file": file, "key": name, "sha256": config[key].get("sha256")}
    law = made_again(config["law"])
    if law is not None and law.initial() is not None:  # it prescribes the heads
        del config["heads"]
    config["compute"] = {"method": "exact"} | config.get("compute", {})
    return {key: _shortened(value, file, f"config.{key}") for key, value in config.items()}


def _shortened(value: Any, file: str, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _shortened(each, file, f"{key}.{name}") for name, each in value.items()}
    if isinstance(value, list) and len(json.dumps(value)) > _LARGEST:
        return {"file": file, "key": key}
    return value


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
