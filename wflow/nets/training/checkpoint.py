"""Files of networks and trainings: written whole, checked when they are read, never executed.

A file is what `torch.save` writes of a dictionary, and is read by `torch.load(weights_only=True)`:

    format        "wflow-model/4", or "wflow-training/4" of a checkpoint
    model         weights by name
    network       configuration of the network as JSON, or text that says why it has none
    description   what `save_model` was given, as JSON; the printed network in a checkpoint
    config, step, optimizer, history, and data of a DataLoader: in a checkpoint only

The comment of the zip archive, its last 64 bytes, is the SHA-256 of all bytes before it. Files of
versions 1 to 3 have none and are checked by the checksums of the archive's records.
"""

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from mmap import ACCESS_READ, mmap
from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint

# Whoever restores a network need not have imported its class.
import wflow.nets.models.controlled
import wflow.nets.models.gpt
import wflow.nets.models.set_transformer
import wflow.nets.models.text
import wflow.nets.models.vit  # noqa: F401
from wflow._core.checks import path_of
from wflow._core.errors import InputError
from wflow._core.files import check_zip, open_hdf5, opened, own_folder
from wflow.nets import registry
from wflow.nets.checks import load_tensors, module
from wflow.nets.files import Kind, check_replaceable, in_turn, marked, replace
from wflow.nets.registry import N
from wflow.nets.training.history import METRICS, METRICS_JSON
from wflow.runs.read import differences

TRAINING = Kind("checkpoint of a training", marked(b"PK\3\4", b"wflow-training/"))
MODEL = Kind("file of save_model", marked(b"PK\3\4", b"wflow-model/"))
CHECKPOINT, TENSORBOARD = "checkpoint.pt", "tensorboard"  # in the folder of a training
# Versions 1 to 3 had no digest of the file, 1 and 2 no configuration of the network.
_FORMATS = re.compile("wflow-(training|model)/[1-4]")
_DIGEST = 64  # hexadecimal digits
_AGAIN = "take another copy of it, or move it away and train again"


def save_model(
    path: str | Path, model: nn.Module, description: Mapping[str, Any] | str = ""
) -> None:
    """Write the weights of a network, its configuration, and words about it, to a file.

    `restore` makes the network again from the file alone, if it is of a class that `nets.register`
    knows; `load_model` fills any network of the same parameters.

    Parameters
    ----------
    path : str or Path
        File; an earlier one of this function is replaced when the new one is whole, and nothing
        else is. Drafts of it that a killed process left are removed.
    model : torch.nn.Module
        The network; its `state_dict` is written, and the SHA-256 of the file.
    description : mapping or str, default ""
        Text, or anything that JSON can hold, for whoever reads the file.

    Raises
    ------
    InputError
        Where the file cannot be written, or the description is not for JSON.

    Examples
    --------
    >>> import tempfile
    >>> from wflow import nets
    >>> net = nets.ViT(image=(1, 8, 8), patch=4, width=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nets.train.save_model(f"{folder}/net.pt", net, "untrained")
    ...     nets.train.load_model(f"{folder}/net.pt", net)
    'untrained'
    """
    path = path_of(path, "path")
    module(model, "model")
    try:
        words = json.dumps(description)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the description cannot be written as JSON: {error}") from None
    if not path.parent.is_dir():  # which the lock would make
        raise InputError(
            f"cannot write {path}: {path.parent} is no folder; make it, or choose another"
        )
    with in_turn(path, [path.name]):
        _write(path, MODEL, _content("wflow-model/4", model, words))


def load_model(path: str | Path, model: nn.Module) -> Any:
    """Fill a network with the weights of a file of `save_model`, or of a training's checkpoint.

    Parameters
    ----------
    path : str or Path
        The file; nothing in it is executed.
    model : torch.nn.Module
        Network of the same parameters; unchanged where the file does not fit.

    Returns
    -------
    object
        The description in the file: what `save_model` was given, or the text of the trained
        network.

    Raises
    ------
    InputError
        For a file that is missing, damaged, or holds other than tensors and numbers, and for
        parameters of other names or shapes.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> from wflow import nets
    >>> one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nets.train.save_model(f"{folder}/net.pt", one)
    ...     words = nets.train.load_model(f"{folder}/net.pt", other)
    >>> torch.equal(one.weight, other.weight)
    True
    """
    path = path_of(path, "path")
    module(model, "model")
    saved = read(path)
    registry.check_weights(path, saved["model"], model)
    model.load_state_dict(saved["model"])
    return saved["description"] if "config" in saved else json.loads(saved["description"])


def restore(path: str | Path, kind: type[N] = nn.Module) -> N:  # type: ignore[assignment]
    """Restore the network of a training's checkpoint.pt, or of a file of `save_model`.

    Parameters
    ----------
    path : str or Path
        The file; nothing in it is executed.
    kind : type
        Class of the network that is expected; the default takes any that is registered.

    Returns
    -------
    torch.nn.Module
        The network with its weights, in their precision, in evaluation mode on the CPU.

    Raises
    ------
    InputError
        For a file that is missing or damaged, that has no configuration (written by an earlier
        version, or of a network that `nets.register` does not know), whose configuration names an
        unknown network or does not fit the weights, and for a network of another kind.

    Examples
    --------
    >>> import tempfile
    >>> from wflow import nets
    >>> net = nets.SetTransformer(features=3, classes=2, width=8, heads=2, inducing=4)
    >>> net.body = nets.ContinuousTransformer(net.body, steps=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nets.train.save_model(f"{folder}/net.pt", net)
    ...     again = nets.train.restore(f"{folder}/net.pt")
    >>> nets.config(again) == nets.config(net)
    True
    """
    path = path_of(path, "path")
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise InputError(f"kind is {kind!r:.80}: expected a class of networks, such as nets.GPT")
    saved = read(path)
    config = json.loads(saved["network"])
    if isinstance(config, str):
        raise InputError(
            f"{path} does not say how its network is made: {config}; make the network, and fill it "
            "by nets.train.load_model(path, network)"
        )
    return registry.filled(path, config, saved["model"], kind)


def write(path: Path, model: nn.Module, **training: Any) -> None:
    """Write a checkpoint, atomically.

    Parameters
    ----------
    path : Path
        File.
    model : torch.nn.Module
        The network; its weights are written.
    **training : object
        The configuration (config, as JSON), the number of steps done (step), the states of
        optimizer, history and, where it has one, the source of the batches (data).
    """
    content = _content("wflow-training/4", model, registry.described(model))
    _write(path, TRAINING, content | training)


def _content(form: str, model: nn.Module, description: str) -> dict[str, Any]:
    """Return the content of every file: a configuration, or the reason why there is none."""
    try:
        network: Any = registry.config(model)
    except InputError as error:
        network = " ".join(str(error).split())
    content = {"format": form, "description": description, "network": json.dumps(network)}
    return content | {"model": model.state_dict()}


def _write(path: Path, kind: Kind, content: dict[str, Any]) -> None:
    """Write a dictionary that `read` returns, and the digest of the file behind it."""

    def save(draft: Path) -> None:
        with open(draft, "wb+") as file:  # of a path torch would write the name into the file
            try:
                torch.save(content, file)
                file.seek(0)
                others = get_unsafe_globals_in_checkpoint(file)
            except (AttributeError, PicklingError, TypeError) as error:
                others = [str(error)]
            if others:
                raise InputError(
                    f"cannot write {path}: the state of the network or of its training holds "
                    f"{', '.join(others)}, and files hold tensors, numbers and text only"
                )
            file.seek(-2, os.SEEK_END)  # a zip archive ends with the length of its comment
            file.write(_DIGEST.to_bytes(2, "little"))
            file.seek(0)
            file.write(hashlib.file_digest(file, "sha256").hexdigest().encode())

    replace(path, kind, save)


def read(path: Path) -> dict[str, Any]:
    """Read the contents of a file, and compare them with its digest.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    InputError
        For a file that is missing or damaged, or of another program.
    """
    try:
        with opened(path, "a file written by wflow.nets.train") as file:
            check_zip(file, path)
            with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                digest = hashlib.sha256(memoryview(data)[:-_DIGEST]).hexdigest()
                whole = data[-_DIGEST:] == digest.encode()
            if not whole and zipfile.ZipFile(file).testzip() is not None:
                raise zipfile.BadZipFile
            file.seek(0)
            content = load_tensors(file)
    except InputError:
        raise
    except Exception as error:  # a damaged or hostile file can fail in any way
        named = re.search(r"GLOBAL (\S+)", str(error))  # torch advises to disable checks
        reason = f"it asks for {named[1]}" if named else type(error).__name__
        raise InputError(
            f"{path} cannot be read ({reason}): it is damaged, or holds other things than tensors "
            f"and numbers; nothing in it was executed; {_AGAIN}"
        ) from None
    form = str(content.get("format") if isinstance(content, dict) else type(content).__name__)
    if not _FORMATS.fullmatch(form):
        raise InputError(
            f"{path} has the format {form:.40}: expected a {TRAINING.words} or {MODEL.words}; "
            "take another file, or update wflow where a newer one wrote it"
        )
    if form.endswith("/4") and not whole:
        raise InputError(f"{path} is damaged: its SHA-256 is another than when written; {_AGAIN}")
    return {"network": json.dumps("an earlier version of wflow wrote it")} | content


# --- the folder of a training ------------------------------------------------------------------


def _is_metrics(path: Path) -> bool:
    try:
        with open_hdf5(path) as content:
            return {"label", "config", "steps_done", "wflow"} <= set(content.attrs)
    except InputError:
        return False


KINDS = {
    CHECKPOINT: TRAINING,
    METRICS: Kind("metrics file", _is_metrics),
    METRICS_JSON: Kind("metrics file", marked(b'{\n"label": ', b'\n"config": {')),
}
"""The files of a training."""


def open_folder(
    stack: ExitStack,
    folder: Path,
    config: Mapping[str, Any],
    model: nn.Module,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any] | None:
    """Lock and check the folder of a training before anything is computed or written.

    Parameters
    ----------
    stack : ExitStack
        Holds the lock on the folder until it is closed.
    folder : Path
        Folder of the training.
    config : mapping
        What the training is (`identity`).
    model : torch.nn.Module
        The network.
    resume, overwrite : bool
        Whether earlier results are continued or replaced.

    Returns
    -------
    dict
        The checkpoint to resume from; None begins.

    Raises
    ------
    InputError
        For results that are there and neither resumed nor overwritten, a folder that cannot be
        written or that another training writes to, a damaged checkpoint, one of another training,
        and foreign files at the names of those of the training.
    """
    stack.enter_context(own_folder(folder, "training", KINDS))
    there = [name for name in KINDS if os.path.lexists(folder / name)]
    if there and not (resume or overwrite):
        raise InputError(
            f"{folder / there[0]} exists: give resume=True to resume it, overwrite=True to "
            "replace it, or choose another folder"
        )
    saved = _same_training(folder / CHECKPOINT, config, model) if there and resume else None
    for name in there:
        check_replaceable(folder / name, KINDS[name])
    return saved  # with overwrite, what is there stays until there is something in its place


def _same_training(path: Path, config: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return the checkpoint at a path; refuse one that differs from the training given."""
    saved = read(path)
    if "config" not in saved:
        raise InputError(f"{path} is a {MODEL.words}: expected a {TRAINING.words}")
    stored, given = json.loads(saved["config"]), json.loads(json.dumps(config))
    different = differences(stored, given)
    if different:
        words = (f"{k} ({_setting(stored, k)} there, {_setting(given, k)} here)" for k in different)
        raise InputError(
            f"{path} belongs to a run that differs in {', '.join(words)}: give what it was made "
            "with, choose another folder, or replace it with overwrite=True"
        )
    registry.check_weights(path, saved["model"], model, types=True)
    here = _content("", model, registry.described(model))
    lines = registry.first_difference(saved["description"], here["description"])
    # Versions of torch may print the same network in other words.
    known = here["network"].startswith("{") and here["network"] == saved["network"]
    if lines is not None and not known:
        raise InputError(
            f"{path} holds another network: '{lines[0]}' in the file, '{lines[1]}' in the model; "
            "make the model that the file was written for, choose another folder, or "
            "overwrite=True"
        )
    return saved


def _setting(config: Any, name: str) -> Any:
    """Return the setting of a dotted name."""
    for key in name.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config
