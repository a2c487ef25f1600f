"""Weights and checkpoints on disk: their contents, verified whenever they are read.

Reading is `torch.load(weights_only=True)`: a pickle that would execute anything is refused. Every
tensor and every field has a SHA-256 (section Digests), and apart from that what a file holds
must fit together: a checkpoint whose digests were computed again is still one of a training.
"""

import hashlib
import itertools
import json
import os
import re
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wflow._core.checks import path_of
from wflow._core.errors import InputError
from wflow._core.files import (
    check_zip,
    claim_folder,
    kind_of_file,
    opened,
    remove_drafts,
    replace_file,
)
from wflow._core.printable import printable
from wflow.nets.checks import check_torch, dense, load_tensors, module
from wflow.nets.registry import config as config_of
from wflow.nets.registry import described, first_difference, other_weight
from wflow.nets.training.history import METRICS, METRICS_JSON, History
from wflow.runs.read import differences, open_hdf5

# Digests: one for every tensor and one for every field
# -----------------------------------------------------
# A file holds a dictionary of fields, such as `step` and `model`, each a tree of dictionaries,
# lists, tuples, tensors, numbers and text. The digest of a tensor is taken over its path in the
# tree (`model/0.weight`, `optimizer/state/3/exp_avg`), its type, its shape and its bytes in C
# order, so that NaN and -0.0 are compared bitwise. The digest of a field is taken over its tree in
# a canonical form, in which each entry has its type and each tensor is its digest. Dictionaries are
# sorted by key, since their order has no meaning here; lists and tuples keep their order.

DIGESTS = "digests"  # field that holds them
_DEPTH = 16  # of a tree; those of wflow have a depth of 4


class UnknownContent(ValueError):
    """A tree with something in it that has no canonical form; the message says what and where."""


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with their digests, as they are written."""
    return {**content, DIGESTS: digests(content)}


def broken(content: Mapping[str, Any], size: int) -> str | None:
    """Name of a field or tensor that differs from its digest; None where all agree.

    Parameters
    ----------
    content : mapping
        Fields with their digests.
    size : int
        Bytes of the file; a tree of more entries than that is none that wflow wrote.

    Raises
    ------
    UnknownContent
        For entries that no file of wflow holds.
    """
    written = content.get(DIGESTS)
    computed = digests({k: v for k, v in content.items() if k != DIGESTS}, size)
    if not isinstance(written, dict):
        return "the table of digests"
    names = [name for name in {**computed, **written} if computed.get(name) != written.get(name)]
    # A damaged tensor changes the digest of its field too: the tensor is what is named.
    return min(names, key=lambda name: (name not in computed, "/" not in str(name)), default=None)


def digests(content: Mapping[str, Any], most: int | None = None) -> dict[str, str]:
    """Digests of all tensors, by path, and of all fields, by name.

    Parameters
    ----------
    content : mapping
        Fields.
    most : int, optional
        Number of entries in all, None for any.

    Raises
    ------
    UnknownContent
        For entries other than dictionaries, lists, tuples, tensors, numbers and text.
    """
    counter = itertools.count()
    tensors: dict[str, Tensor] = {}
    for name, value in content.items():
        for path, tensor in _tensors(str(name), value, 0, counter, most):
            if path in tensors:
                raise UnknownContent(f"it has two entries {path}")
            tensors[path] = tensor
    large = sum(tensor.nbytes for tensor in tensors.values()) > 2**20
    with ThreadPoolExecutor((os.cpu_count() or 1) if large else 1) as pool:
        hashed = dict(zip(tensors, pool.map(_of_tensor, tensors.items()), strict=True))
    fields = {}
    for name, value in content.items():
        field = hashlib.sha256()
        for piece in _canonical(str(name), value, hashed):
            field.update(piece)
        fields[str(name)] = field.hexdigest()
    return hashed | fields


def _tensors(
    path: str, value: Any, depth: int, counter: Iterator[int], most: int | None
) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a tree with their paths; everything in it is looked at."""
    if most is not None and next(counter) > most:
        raise UnknownContent("it has more entries than bytes")
    if isinstance(value, Tensor):
        if not dense(value) or value.is_meta:
            raise UnknownContent(f"{path} is no tensor of plain numbers")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UnknownContent(f"{path} has more entries than are stored")
        yield path, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            if type(key) not in (str, int):
                raise UnknownContent(f"{path} has a name that is {type(key).__name__}")
            yield from _tensors(f"{path}/{key}", entry, _deeper(path, depth), counter, most)
    elif isinstance(value, list | tuple):
        for place, entry in enumerate(value):
            yield from _tensors(f"{path}/{place}", entry, _deeper(path, depth), counter, most)
    elif value is not None and type(value) not in (bool, int, float, str):
        raise UnknownContent(f"{path} is {type(value).__name__}")


def _deeper(path: str, depth: int) -> int:
    if depth == _DEPTH:
        raise UnknownContent(f"{path[:40]} has too many levels")
    return depth + 1


def _of_tensor(named: tuple[str, Tensor]) -> str:
    path, tensor = named
    head = json.dumps([path, str(tensor.dtype), list(tensor.shape)]) + "\n"
    digest = hashlib.sha256(head.encode())
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)  # not copied
    return digest.hexdigest()


def _canonical(path: str, value: Any, hashed: Mapping[str, str]) -> Iterator[bytes]:
    """A tree as bytes: kind and length before each entry, so that no two trees have the same."""
    if isinstance(value, dict):
        yield b"dict %d\n" % len(value)
        for key in sorted(value, key=lambda key: (type(key).__name__, key)):
            yield from _canonical("", key, {})
            yield from _canonical(f"{path}/{key}", value[key], hashed)
    elif isinstance(value, list | tuple):
        yield b"%s %d\n" % (b"list" if isinstance(value, list) else b"tuple", len(value))
        for place, entry in enumerate(value):
            yield from _canonical(f"{path}/{place}", entry, hashed)
    else:
        if isinstance(value, Tensor):
            raw = hashed[path].encode()
        elif isinstance(value, float):
            raw = struct.pack("<d", value)
        elif isinstance(value, str):
            raw = value.encode("utf-8", "surrogatepass")
        else:
            raw = f"{value:x}".encode() if isinstance(value, int) else b""
        kind = "Tensor" if isinstance(value, Tensor) else type(value).__name__
        yield b"%s %d\n%s" % (kind.encode(), len(raw), raw)


# Files and folders of trainings
# ------------------------------
# Only regular files that wflow wrote are ever replaced or removed.

CHECKPOINT = "checkpoint.pt"
TENSORBOARD = "tensorboard"
WRITTEN = "a file written by wflow.nets.train"
RUN, MODEL = "wflow-training", "wflow-model"  # formats, without their number


def check_replaceable(path: Path, kind: str) -> None:
    """Check that a path is free, or that of a regular file of a kind that wflow wrote.

    Parameters
    ----------
    path : Path
        Where a file is to be written.
    kind : str
        RUN, MODEL, METRICS or METRICS_JSON.

    Raises
    ------
    InputError
        For anything else; it stays as it is.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another path") from None
    advice = "it stays as it is: move it away, or choose another path"
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{path} is {kind_of_file(mode)}, and only regular files are replaced; {advice}"
        )
    if not _written_by_wflow(path, kind):
        raise InputError(f"{path} is no {_WORDS[kind]} that wflow wrote; {advice}")


_WORDS = {
    RUN: "checkpoint of a training",
    MODEL: "file of save_model",
    METRICS: "metrics file",
    METRICS_JSON: "metrics file",
}


def _written_by_wflow(path: Path, kind: str) -> bool:
    """Whether a file carries the mark of its kind; a damaged one does where the mark is whole."""
    with opened(path, WRITTEN) as file:
        head = file.read(4096)
    if kind in (RUN, MODEL):  # the format is the first entry of the first record
        return head.startswith(b"PK\x03\x04") and f"{kind}/".encode() in head
    if kind == METRICS_JSON:
        return head.startswith(b'{\n"label": ') and b'\n"config": {' in head
    try:
        with open_hdf5(path) as content:
            return {"label", "config", "steps_done", "wflow"} <= set(content.attrs)
    except InputError:
        return False


def replace(path: Path, kind: str, writer: Callable[[Path], Any]) -> None:
    """Write a file by `writer(draft)` and move it into place when it is whole and on the disk.

    Parameters
    ----------
    path : Path
        The file; an earlier one is replaced where it is a regular file of this kind.
    kind : str
        As for `check_replaceable`.
    writer : callable
        Writes the whole file to the path that it is given.

    Raises
    ------
    InputError
        Where it cannot be written; an earlier file is kept.
    """
    check_replaceable(path, kind)
    try:
        replace_file(path, writer)
    except (OSError, RuntimeError) as error:  # torch's writer reports a full disk as RuntimeError
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(
            f"cannot write {path}: {reason}; the earlier file is kept: free space or choose "
            "another path, and resume a training by resume=True"
        ) from None


def save(content: dict[str, Any], draft: Path) -> None:
    """Write a dictionary of tensors, numbers and text by torch."""
    with open(draft, "wb") as file:  # of a path torch would write the name into the file
        torch.save(content, file)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder of a training and keep other trainings out of it.

    The lock is one of the kernel: it ends with the process, however that ends.

    Raises
    ------
    InputError
        For a folder that cannot be made or written, or that another training writes to.
    """
    try:
        _, number = claim_folder(folder)
    except BlockingIOError:
        raise InputError(
            f"another training writes to {folder}: wait for it, stop it, or choose another folder"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot make the folder {folder}: {error.strerror}; choose another"
        ) from None
    try:
        if not os.access(folder, os.W_OK):
            raise InputError(f"cannot write into {folder}: choose a folder that can be written")
        remove_drafts(folder, _KINDS)
        yield
    finally:
        if number is not None:
            os.close(number)


def check_board(folder: Path) -> None:
    """Check that TensorBoard's files can go to a folder: it is a folder, or there is nothing."""
    try:
        mode = folder.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISDIR(mode):
        raise InputError(
            f"{folder} is {kind_of_file(mode)}: expected a folder for the files of TensorBoard, or "
            "nothing; move it away, or choose another folder"
        )


_VERSION = 3  # 1 had no digests, 2 no configuration of the network
_FORMATS = {f"{kind}/{k}": (kind, k) for kind in (RUN, MODEL) for k in range(1, _VERSION + 1)}
_KINDS = {CHECKPOINT: RUN, METRICS: METRICS, METRICS_JSON: METRICS_JSON}
_FIELDS: dict[str, type] = {
    "config": str,
    "description": str,
    "step": int,
    "model": dict,
    "optimizer": dict,
    "history": dict,
}
NETWORK = "network"  # field with the configuration
DATA = "data"  # field with the state of a DataLoader; without one there is none
_OTHER = "take another copy of it, or train again with overwrite=True"
# Settings that may change when a run is continued: they do not affect its results.
_FREE = ("device", "checkpoint_every")
_CONFIG_DEPTH = 4  # of objects within objects, whose settings are part of what a run computes


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
        The network; its `state_dict` is written, with a SHA-256 of every tensor.
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
    content = {
        "format": f"{MODEL}/{_VERSION}",
        "description": words,
        NETWORK: _network(model),
        "model": _weights(model),
    }
    _write(path, MODEL, content)


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

    Warns
    -----
    UserWarning
        For a file without digests: an earlier version wrote it, and damage may go unseen.

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
    words = saved["description"]
    if _FORMATS[saved["format"]][0] == MODEL:
        words = _parsed(path, "description", words)
    check_weights(path, saved["model"], model)
    model.load_state_dict(saved["model"])
    return words


def read(path: Path) -> dict[str, Any]:
    """Contents of a file, checked: a dictionary of tensors, numbers and text.

    Raises
    ------
    InputError
        For a file that is missing or damaged, or holds anything else than a training or a model.
    """
    with opened(path, WRITTEN) as file:
        size = os.fstat(file.fileno()).st_size
        content = _loaded(path, file)
    form = content.get("format") if isinstance(content, dict) else None
    if not isinstance(form, str) or form not in _FORMATS:
        raise InputError(
            f"{path} is no file of wflow.nets.train.save_model, and no checkpoint of a training: "
            "take another file"
        )
    try:
        damaged = broken(content, size)
    except UnknownContent as error:
        raise InputError(f"{path} is damaged, or was edited ({_line(error)}): {_OTHER}") from None
    kind, version = _FORMATS[form]
    if version == 1 and DIGESTS not in content:
        warnings.warn(
            f"{printable(str(path), lines=False)} has no digests: written by an earlier version, "
            "its contents cannot be checked; to have them, write it again (save_model, or resume "
            "the training)",
            stacklevel=3,
        )
    elif damaged is not None:
        raise InputError(
            f"{path} is damaged, or was edited: {_line(damaged)} does not have the SHA-256 that it "
            f"was written with; {_OTHER}"
        )
    if kind == RUN:
        _check_training(path, content)
    else:
        check_fields(path, content, ("model", "description"))
    return content


def _loaded(path: Path, file: BufferedReader) -> Any:
    """Contents of a file, read by torch; nothing in it is executed."""
    check_torch()
    try:
        check_zip(file, path)
        return load_tensors(file)
    except InputError:
        raise
    except Exception as error:  # a damaged or hostile file can fail in any way
        named = re.search(r"GLOBAL (\S+)", str(error))  # torch advises to disable checks
        reason = f"it asks for {named[1]}" if named else type(error).__name__
        if isinstance(error, OSError | RuntimeError | zipfile.BadZipFile) and not named:
            reason = (str(error).splitlines() or [reason])[0]
        raise InputError(
            f"{path} cannot be read as weights ({reason}): it is damaged, or holds other things "
            "than tensors and numbers; nothing in it was executed. Take another copy of it, or "
            "train again with overwrite=True"
        ) from None


def write(
    path: Path,
    *,
    config: Mapping[str, Any],
    step: int,
    model: nn.Module,
    optimizer: Mapping[str, Any],
    history: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint, atomically.

    Parameters
    ----------
    path : Path
        File.
    config : mapping
        What the run computes (`identity`).
    step : int
        Number of steps done.
    model : torch.nn.Module
        Its weights are written.
    optimizer : mapping
        Its state (`Learner.state`).
    history : mapping
        What was recorded (`History.state`).
    data : mapping, optional
        State of the source of the batches, where it has one (`Source.state`).
    """
    content: dict[str, Any] = {
        "format": f"{RUN}/{_VERSION}",
        "config": json.dumps(config),
        "description": described(model),
        NETWORK: _network(model),
        "step": step,
        "model": _weights(model),
        "optimizer": dict(optimizer),
        "history": dict(history),
    }
    if data is not None:
        content[DATA] = dict(data)
    _write(path, RUN, content)


def _network(model: nn.Module) -> str:
    """The configuration of a network as JSON; where it has none, the reason, as JSON text."""
    try:
        return json.dumps(config_of(model))
    except InputError as error:
        return json.dumps(str(error))


def _write(path: Path, kind: str, content: dict[str, Any]) -> None:
    try:
        whole = sealed(content)
    except UnknownContent as error:
        raise InputError(
            f"cannot write {path}: {error}, and files hold tensors, numbers and text only"
        ) from None
    replace(path, kind, partial(save, whole))


def _weights(model: nn.Module) -> dict[str, Any]:
    """Parameters and buffers of a network; one that repeats its memory is written in full."""
    return {
        name: value.contiguous()
        if isinstance(value, Tensor) and 0 in value.stride() and value.numel()
        else value
        for name, value in model.state_dict().items()
    }


def open_folder(
    stack: ExitStack,
    folder: Path,
    config: Mapping[str, Any],
    model: nn.Module,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any] | None:
    """Lock and check the folder of a run before anything is computed or written.

    Parameters
    ----------
    stack : ExitStack
        Holds the lock on the folder until it is closed.
    folder : Path
        Folder of the run.
    config : mapping
        What the run computes (`identity`).
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
        written or that another training writes to, a damaged checkpoint, one of another run, and
        foreign files at the names of those of the training.
    """
    stack.enter_context(locked(folder))
    there = [name for name in _KINDS if os.path.lexists(folder / name)]
    if there and not (resume or overwrite):
        raise InputError(
            f"{folder / there[0]} exists: give resume=True to resume it, overwrite=True to "
            "replace it, or choose another folder"
        )
    saved = None
    if there and resume:
        saved = _checked(folder / CHECKPOINT, config, model)
    for name in there:
        check_replaceable(folder / name, _KINDS[name])
    return saved  # with overwrite, what is there stays until there is something in its place


def identity(config: Mapping[str, Any], objective: Any, batches: dict[str, Any]) -> dict[str, Any]:
    """Settings that identify a training, for JSON: the same for a run and its continuation.

    Parameters
    ----------
    config : mapping
        `TrainConfig.as_dict`.
    objective : object
        Named by what it is, with its public attributes (`named`).
    batches : dict
        What identifies the source of the batches (`Source.identity`).

    Returns
    -------
    dict
        Dictionary.
    """
    kept = {key: value for key, value in config.items() if key not in _FREE}
    return kept | {"objective": named(objective), "batches": batches}


def network_of(path: Path, saved: Mapping[str, Any]) -> Any:
    """The configuration of the network in a file, not checked yet; text says why it has none."""
    if _FORMATS[saved["format"]][1] < 3:
        return "it was written before wflow stored the configurations of networks"
    return _parsed(path, "network", saved[NETWORK])


def check_fields(path: Path, saved: Mapping[str, Any], names: Iterable[str] = _FIELDS) -> None:
    """Check that a file holds what a checkpoint holds under these names.

    Raises
    ------
    InputError
        For a name that is missing, or something of another type under it.
    """
    fields = {name: _FIELDS[name] for name in names}
    if _FORMATS[saved["format"]][1] >= 3:
        fields[NETWORK] = str
    for name, kind in fields.items():
        value = saved.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(
                f"{path} is damaged, or was edited: its {name} is {type(value).__name__}, expected "
                f"{kind.__name__}; {_OTHER}"
            )


def check_weights(
    path: Path, saved: Mapping[str, Tensor], model: nn.Module, *, types: bool = False
) -> None:
    """Check that the parameters of a file are those of a model.

    Parameters
    ----------
    path : Path
        The file, for the message.
    saved : mapping
        Its parameters.
    model : torch.nn.Module
        The network.
    types : bool, default False
        Whether they must be of the same type (float32, ...), too.

    Raises
    ------
    InputError
        For other names, shapes or types; it names the first parameter that differs.
    """
    other = other_weight(saved, model, types=types)
    if other is not None:
        name, there, here = other
        raise InputError(
            f"{path} holds another network: {name} is {there} in the file and {here} in the "
            "model; make the model that the file was written for, or take another file"
        )


def _checked(path: Path, config: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The checkpoint, if it is one of the run given for."""
    saved = read(path)
    kind, _ = _FORMATS[saved["format"]]
    if kind != RUN:
        raise InputError(f"{path} is no checkpoint of a training: move it away, or choose another")
    stored, given = json.loads(saved["config"]), json.loads(json.dumps(config))
    different = differences(stored, given)
    if different:
        words = (f"{k} ({_inner(stored, k)} there, {_inner(given, k)} here)" for k in different)
        raise InputError(
            f"{path} belongs to a run that differs in {', '.join(words)}: give what it was made "
            "with, choose another folder, or replace it with overwrite=True"
        )
    check_weights(path, saved["model"], model, types=True)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not saved["model"][name].isfinite().all():
            raise InputError(
                f"{path} is damaged, or was edited: {name} holds numbers that are not finite, "
                f"which no training saves; {_OTHER}"
            )
    lines = first_difference(saved["description"], described(model))
    # Versions of torch may print the same network in other words.
    if lines is not None and not _same_network(network_of(path, saved), _network(model)):
        raise InputError(
            f"{path} holds another network: '{lines[0]}' in the file, '{lines[1]}' in the model; "
            "make the model that the file was written for, choose another folder, or "
            "overwrite=True"
        )
    return saved


def _same_network(stored: Any, own: str) -> bool:
    """Whether a file and a model have configurations, and the same."""
    return isinstance(stored, dict) and stored == json.loads(own)


def _check_training(path: Path, saved: Mapping[str, Any]) -> None:
    """Check that step, configuration and history are of one training."""
    check_fields(path, saved)
    config = _parsed(path, "config", saved["config"])
    if not isinstance(config, dict):
        raise InputError(f"{path} is damaged: its config is no configuration; {_OTHER}")
    _, version = _FORMATS[saved["format"]]
    if version > 1 and not isinstance(saved["optimizer"].get("idle"), list):
        raise InputError(f"{path} is damaged, or was edited: its optimizer has no idle; {_OTHER}")
    step, steps = saved["step"], config.get("steps")
    if type(steps) is not int or not 1 <= step <= steps:
        raise InputError(
            f"{path} is damaged, or was edited: its step is {step} of {steps!r}, expected a number "
            f"from 1 to the steps of its config; {_OTHER}"
        )
    try:
        _check_history(saved["history"], step)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{path} is damaged, or was edited ({type(error).__name__}: {error}): {_OTHER}"
        ) from None


def _check_history(state: Mapping[str, Any], step: int) -> None:
    """Raise a ValueError or the like unless there is a row for each step, and no more."""
    rows, values = state["rows"], state["values"]
    columns, names, evaluated = state["columns"], state["names"], state["evaluated"]
    lists = (columns, names, evaluated, state["places"])
    if not all(isinstance(entry, list) for entry in lists) or type(state["peak_memory"]) is not int:
        raise TypeError("its history is none of a training")
    if any(not isinstance(name, str) for name in (*columns, *names, *state["places"])):
        raise TypeError("the history has names that are no text")
    if len({*columns, *names}) < len(columns) + len(names):
        raise ValueError("the history has one name twice")
    if rows.shape != (step, len(columns)) or rows.dtype != torch.float64:
        raise ValueError(
            f"the rows of history are {rows.dtype} {tuple(rows.shape)}, and {step} steps were done"
        )
    inside = all(type(when) is int and 0 <= when <= step for when in evaluated)
    if not inside or any(one >= two for one, two in pairwise(evaluated)):
        raise ValueError(f"evaluations after {evaluated!s:.80} of {step} steps")
    if evaluated and (values.shape != (len(evaluated), len(names)) or values.dtype != rows.dtype):
        raise ValueError(f"the evaluations are {values.dtype} {tuple(values.shape)}")
    History.from_state(state).dataset({})  # a table of another form fails here


def _parsed(path: Path, name: str, text: str) -> Any:
    """Parse JSON text of a file."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: its {name} is no JSON ({error}); {_OTHER}") from None


def _line(words: object) -> str:
    """Text from a damaged file, in one line."""
    return " ".join(str(words).splitlines())


def _inner(config: Any, name: str) -> Any:
    """The setting of a dotted name."""
    for key in name.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config


def named(thing: Any, depth: int = 0) -> dict[str, Any]:
    """Name and public attributes of a function or an object, for JSON.

    Attributes are numbers, text, digests of arrays, and objects in the same way; functions have
    their name alone, with what `functools.partial` has given them.
    """
    if isinstance(thing, partial):
        inside = {"of": thing.func, "arguments": thing.args, "keywords": thing.keywords}
        return {"kind": "partial"} | {k: _attribute(v, depth) for k, v in inside.items()}
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    public = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("_")}
    if isinstance(thing, nn.Module):  # weights of classes and the like are kept apart by torch
        public |= thing.named_buffers(recurse=False)
    return {"kind": name} | {k: _attribute(v, depth) for k, v in public.items()}


def _attribute(value: Any, depth: int) -> Any:
    """An attribute for JSON; the type of what cannot be compared by its contents."""
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
    if depth == _CONFIG_DEPTH:
        return type(value).__qualname__
    if isinstance(value, list | tuple):
        return [_attribute(entry, depth + 1) for entry in value]
    if isinstance(value, dict):
        return {str(k): _attribute(entry, depth + 1) for k, entry in value.items()}
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return value.__qualname__
    return named(value, depth + 1)
