"""Files of networks and of trainings: written whole, checked when they are read, never executed.

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
from functools import partial
from pathlib import Path
from pickle import PicklingError
from typing import IO, Any, TypeVar

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
from wflow._core.files import check_zip, opened
from wflow.nets import registry
from wflow.nets.checks import load_tensors, module
from wflow.nets.files import Kind, marked, replace

N = TypeVar("N", bound=nn.Module)

TRAINING = Kind("checkpoint of a training", marked(b"PK\3\4", b"wflow-training/"))
MODEL = Kind("file of save_model", marked(b"PK\3\4", b"wflow-model/"))
_VERSION = 4  # 1 to 3 had no digest of the file, 1 and 2 no configuration of the network
_FORMATS = {
    f"{name}/{version}": kind
    for name, kind in (("wflow-training", TRAINING), ("wflow-model", MODEL))
    for version in range(1, _VERSION + 1)
}
_DIGEST = 64  # hexadecimal digits
_AGAIN = "take another copy of it, or train again with overwrite=True"


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
        else is.
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
    replace(path, MODEL, partial(_save, _content("wflow-model", model, words), path))


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
    """The network of a training's checkpoint.pt, or of a file of `save_model`.

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
    content = _content("wflow-training", model, registry.described(model)) | training
    replace(path, TRAINING, partial(_save, content, path))


def _content(form: str, model: nn.Module, description: str) -> dict[str, Any]:
    """What every file holds."""
    return {
        "format": f"{form}/{_VERSION}",
        "description": description,
        "network": config_text(model),
        "model": model.state_dict(),
    }


def config_text(model: nn.Module) -> str:
    """The configuration of a network as JSON; where it has none, the reason, as JSON text."""
    try:
        return json.dumps(registry.config(model))
    except InputError as error:
        return json.dumps(" ".join(str(error).split()))


def _save(content: dict[str, Any], path: Path, draft: Path) -> None:
    """Write a dictionary that `_load` reads, and the digest of the file behind it."""
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


def read(path: Path, kind: Kind | None = None) -> dict[str, Any]:
    """Contents of a file, compared with its digest.

    Parameters
    ----------
    path : Path
        The file.
    kind : Kind, optional
        What it must be; None takes a checkpoint of a training and a file of `save_model`.

    Raises
    ------
    InputError
        For a file that is missing or damaged, of another kind, or of another program.
    """
    with opened(path, "a file written by wflow.nets.train") as file:
        content, whole = _load(path, file)
    form = str(content.get("format") if isinstance(content, dict) else type(content).__name__)
    if form not in _FORMATS or kind not in (None, _FORMATS[form]):
        words = f"{TRAINING.words} or {MODEL.words}" if kind is None else kind.words
        raise InputError(
            f"{path} has the format {form:.40}: expected a {words}; take another file, or update "
            "wflow where a newer one wrote it"
        )
    if form.endswith(f"/{_VERSION}") and not whole:
        raise InputError(f"{path} is damaged: its SHA-256 is another than when written; {_AGAIN}")
    content.setdefault("network", json.dumps("an earlier version of wflow wrote it"))
    return content


def _load(path: Path, file: IO[bytes]) -> tuple[Any, bool]:
    """What an archive holds, read by torch, and whether it has the digest that it was given."""
    try:
        check_zip(file, path)
        digest, end = hashlib.sha256(), os.fstat(file.fileno()).st_size - _DIGEST
        while chunk := file.read(min(2**20, max(0, end - file.tell()))):
            digest.update(chunk)
        whole = file.read() == digest.hexdigest().encode()
        if not whole:
            with zipfile.ZipFile(file) as archive:
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile
        file.seek(0)
        return load_tensors(file), whole
    except InputError:
        raise
    except Exception as error:  # a damaged or hostile file can fail in any way
        named = re.search(r"GLOBAL (\S+)", str(error))  # torch advises to disable checks
        reason = f"it asks for {named[1]}" if named else type(error).__name__
        raise InputError(
            f"{path} cannot be read ({reason}): it is damaged, or holds other things than tensors "
            f"and numbers; nothing in it was executed. {_AGAIN.capitalize()}"
        ) from None
