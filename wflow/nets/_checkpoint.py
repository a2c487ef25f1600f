"""Weights and checkpoints on disk: written whole or not at all, read as tensors and numbers only.

A file is written beside its name and moved into place, so that a process killed at any time leaves
the old one or the new one. Reading is `torch.load(weights_only=True)`: a pickle that would execute
anything is refused.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wflow._runread import differences
from wflow.errors import InputError
from wflow.nets._metrics import METRICS, METRICS_JSON

CHECKPOINT = "checkpoint.pt"
_RUN, _MODEL = "wflow-training/1", "wflow-model/1"
_FIELDS: dict[str, type] = {
    "config": str,
    "description": str,
    "step": int,
    "model": dict,
    "optimizer": dict,
    "history": dict,
}
# What says how a run goes on, and not what comes out of it.
_FREE = ("device", "checkpoint_every")
_DEPTH = 4  # of objects within objects, whose settings are part of what a run computes


def save_model(
    path: str | Path, model: nn.Module, description: Mapping[str, Any] | str = ""
) -> None:
    """Write the weights of a network, and words about it, to a file.

    Parameters
    ----------
    path : file; an earlier one is replaced when the new one is whole
    model : the network; its `state_dict` is written
    description : text, or anything that JSON can hold, for whoever reads the file

    Raises
    ------
    InputError
        Where the file cannot be written, or the description is not for JSON.
    """
    try:
        words = json.dumps(description)
    except (TypeError, ValueError) as error:
        raise InputError(f"the description cannot be written as JSON: {error}") from None
    content = {"format": _MODEL, "description": words, "model": dict(model.state_dict())}
    replace(Path(path), lambda draft: torch.save(content, draft))


def load_model(path: str | Path, model: nn.Module) -> Any:
    """Fill a network with the weights of a file of `save_model`, or of a training's checkpoint.

    Parameters
    ----------
    path : the file; nothing in it is executed
    model : network of the same parameters; unchanged where the file does not fit

    Returns
    -------
    the description in the file: what `save_model` was given, or the text of the trained network

    Raises
    ------
    InputError
        For a file that is missing, damaged, or holds other than tensors and numbers, and for
        parameters of other names or shapes.
    """
    path = Path(path)
    saved = read(path)
    if saved.get("format") not in (_MODEL, _RUN):
        raise InputError(f"{path} is no file of wflow.nets.train.save_model, and no checkpoint")
    check_fields(path, saved, ("model", "description"))
    words = saved["description"]
    if saved["format"] == _MODEL:
        words = _parsed(path, "description", words)
    check_weights(path, saved["model"], model)
    model.load_state_dict(saved["model"])
    return words


def read(path: Path) -> dict[str, Any]:
    """What a file holds: a dictionary of tensors, numbers and text; nothing in it is executed.

    Raises
    ------
    InputError
        For a file that is missing or damaged, or holds anything else.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected a file written by wflow.nets.train")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file can fail in any way
        named = re.search(r"GLOBAL (\S+)", str(error))  # torch then advises to trust the file
        reason = f"it asks for {named[1]}" if named else type(error).__name__
        if isinstance(error, OSError | RuntimeError) and not named:
            reason = (str(error).splitlines() or [reason])[0]
        raise InputError(
            f"{path} cannot be read as weights ({reason}): it is damaged, or holds other things "
            "than tensors and numbers; nothing in it was executed. Take another file, or train "
            "anew with overwrite=True"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}: expected a file of wflow.nets")
    return content


def write(
    path: Path,
    *,
    config: Mapping[str, Any],
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    history: Mapping[str, Any],
) -> None:
    """Write a checkpoint, atomically.

    Parameters
    ----------
    path : file
    config : what the run computes (`identity`)
    step : number of steps done
    model, optimizer : their states are written
    history : what was recorded (`History.state`)
    """
    content = {
        "format": _RUN,
        "config": json.dumps(config),
        "description": described(model),
        "step": step,
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "history": dict(history),
    }
    replace(path, lambda draft: torch.save(content, draft))


def replace(path: Path, writer: Callable[[Path], Any]) -> None:
    """Write a file by `writer(draft)` and move it into place when it is whole and on the disk.

    Raises
    ------
    InputError
        Where it cannot be written; an earlier file stays.
    """
    draft = path.with_name(path.name + ".new")
    try:
        writer(draft)
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except (OSError, RuntimeError) as error:  # torch's writer reports a full disk as RuntimeError
        draft.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(
            f"cannot write {path}: {reason}; what stood there is kept: make room, and go on with "
            "resume"
        ) from None


def open_folder(
    folder: Path, config: Mapping[str, Any], model: nn.Module, *, resume: bool, overwrite: bool
) -> dict[str, Any] | None:
    """Look at the folder of a run before anything is computed or written.

    Parameters
    ----------
    folder : folder of the run
    config : what the run computes (`identity`)
    model : the network
    resume, overwrite : what may become of earlier results

    Returns
    -------
    the checkpoint to go on from; None begins

    Raises
    ------
    InputError
        For results that are there and neither resumed nor overwritten, a folder that cannot be
        written, a damaged checkpoint, or one of another run.
    """
    if resume and overwrite:
        raise InputError("resume and overwrite are both given: choose one of them")
    there = [name for name in (CHECKPOINT, METRICS, METRICS_JSON) if (folder / name).exists()]
    if there and not (resume or overwrite):
        raise InputError(
            f"{folder / there[0]} exists: give resume=True to go on with it, overwrite=True to "
            "replace it, or choose another folder"
        )
    saved = None
    if there and resume:
        saved = _checked(folder / CHECKPOINT, config, model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write into {folder}: choose a folder that can be written")
    return saved  # with overwrite, what is there stays until there is something in its place


def identity(config: Mapping[str, Any], objective: Any, batches: Any) -> dict[str, Any]:
    """What a training computes, for JSON: the same for a run and for its continuation.

    Parameters
    ----------
    config : `TrainConfig.as_dict`
    objective, batches : named by what they are, with their public attributes (numbers, text,
        digests of arrays, and objects in the same way); functions by their name alone, with what
        `functools.partial` has given them

    Returns
    -------
    dictionary
    """
    kept = {key: value for key, value in config.items() if key not in _FREE}
    return kept | {"objective": _named(objective), "batches": _named(batches)}


def described(model: nn.Module) -> str:
    """The network in words, as it prints itself, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(model))


def check_fields(path: Path, saved: Mapping[str, Any], names: Iterable[str] = _FIELDS) -> None:
    """Check that a file holds what a checkpoint holds under these names.

    Raises
    ------
    InputError
        For a name that is missing, or something of another type under it.
    """
    for name in names:
        kind, found = _FIELDS[name], saved.get(name)
        if not isinstance(found, kind) or isinstance(found, bool):
            raise InputError(
                f"{path} is damaged, or no checkpoint of a training of wflow.nets: its {name} is "
                f"{type(found).__name__}, expected {kind.__name__}; take another copy of it"
            )


def first_difference(before: str, now: str) -> tuple[str, str] | None:
    """The first lines in which two networks in words differ, or None."""
    pairs = zip_longest(before.splitlines(), now.splitlines(), fillvalue="nothing")
    return next(((old.strip(), new.strip()) for old, new in pairs if old != new), None)


def check_weights(
    path: Path, saved: Mapping[str, Tensor], model: nn.Module, *, types: bool = False
) -> None:
    """Check that the parameters of a file are those of a model.

    Parameters
    ----------
    path : the file, for the message
    saved : its parameters
    model : the network
    types : whether they must be of the same type (float32, ...), too

    Raises
    ------
    InputError
        For other names, shapes or types; it names the first parameter that differs.
    """
    own = model.state_dict()
    for name in [*own, *(name for name in saved if name not in own)]:
        there, here = (_kind(state.get(name), types) for state in (saved, own))
        if there != here:
            raise InputError(
                f"{path} holds another network: {name} is {there} in the file and {here} in the "
                "model; make the model that the file was written for, or take another file"
            )


def _checked(path: Path, config: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The checkpoint, if it is one of the run asked for."""
    saved = read(path)
    if saved.get("format") != _RUN:
        raise InputError(f"{path} is no checkpoint of a training of wflow.nets")
    check_fields(path, saved)
    held, asked = _parsed(path, "config", saved["config"]), json.loads(json.dumps(config))
    if not isinstance(held, dict):
        raise InputError(f"{path} is damaged: its config is no configuration; take another copy")
    different = differences(held, asked)
    if different:
        words = (f"{k} ({_inner(held, k)} there, {_inner(asked, k)} here)" for k in different)
        raise InputError(
            f"{path} belongs to a run that differs in {', '.join(words)}: give what it was made "
            "with, choose another folder, or replace it with overwrite=True"
        )
    check_weights(path, saved["model"], model, types=True)
    lines = first_difference(saved["description"], described(model))
    if lines is not None:
        raise InputError(
            f"{path} holds another network: '{lines[0]}' in the file, '{lines[1]}' in the model; "
            "make the model that the file was written for, choose another folder, or "
            "overwrite=True"
        )
    return saved


def _parsed(path: Path, name: str, text: str) -> Any:
    """What JSON text in a file says."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(
            f"{path} is damaged: its {name} is no JSON ({error}); take another copy of it"
        ) from None


def _inner(config: Any, name: str) -> Any:
    """The setting of a dotted name."""
    for key in name.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _kind(value: Any, types: bool) -> str:
    if not isinstance(value, Tensor):
        return "absent" if value is None else f"no tensor but {type(value).__name__}"
    return f"{value.dtype} {tuple(value.shape)}" if types else f"of shape {tuple(value.shape)}"


def _named(thing: Any, depth: int = 0) -> dict[str, Any]:
    """Name and public attributes of a function or an object."""
    if isinstance(thing, partial):
        inside = {"of": thing.func, "arguments": thing.args, "keywords": thing.keywords}
        return {"kind": "partial"} | {k: _attribute(v, depth) for k, v in inside.items()}
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    public = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("_")}
    if isinstance(thing, nn.Module):  # weights of classes and the like are kept apart by torch
        public |= thing.named_buffers(recurse=False)
    return {"kind": name} | {k: _attribute(v, depth) for k, v in public.items()}


def _attribute(value: Any, depth: int) -> Any:
    """An attribute for JSON; of what cannot be told apart by its contents, the type."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]
        return f"{value.dtype} {tuple(value.shape)} sha256 {digest}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == _DEPTH:
        return type(value).__qualname__
    if isinstance(value, list | tuple):
        return [_attribute(entry, depth + 1) for entry in value]
    if isinstance(value, dict):
        return {str(k): _attribute(entry, depth + 1) for k, entry in value.items()}
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return value.__qualname__
    return _named(value, depth + 1)
