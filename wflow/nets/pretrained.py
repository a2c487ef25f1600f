"""Networks in folders: weights in `model.safetensors`, configuration in `config.json`.

Nothing in such a folder can be executed. The configuration holds the SHA-256 of the file of the
weights, so that a damaged file, or one of another save, is noticed. `Pretrained` gives the methods
to the networks of `models` and to custom ones; GPT-2 folders are read in `models.gpt`.

A save has three steps, and the second decides: the new weights are written beside the old ones
under a name with their digest, the new configuration replaces the old one, and the new weights
replace the old ones. The configuration names its weights by their digest, whichever of the two
names they have, so that a process killed at any time leaves the old network or the new one.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from wflow._core.checks import path_of
from wflow._core.errors import InputError
from wflow._core.extras import install
from wflow._core.files import (
    LARGEST_JSON,
    in_turn,
    kind_of_file,
    opened,
    parse_json,
    read_json,
    read_whole,
    remove_drafts,
    replace_file,
)
from wflow._version import __version__
from wflow.nets import registry

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FORMAT = "wflow-network"
_VERSION = 1
_CONFIG_BYTES = 2**22  # most of a configuration; usual ones have a thousandth of that
_SAVED = "a folder of save_pretrained"


class Pretrained(nn.Module):
    """Base class of networks that are saved to folders and made again from them.

    A custom class derives from it in place of `torch.nn.Module`, and is registered by
    `wflow.nets.register`.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> from wflow import nets
    >>> @nets.register
    ... class Doubled(nets.Pretrained):
    ...     def __init__(self, width=4):
    ...         super().__init__()
    ...         self.map = torch.nn.Linear(width, 2 * width)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Doubled(3).save_pretrained(folder)
    ...     Doubled.from_pretrained(folder).map
    Linear(in_features=3, out_features=6, bias=True)
    """

    def __init__(self) -> None:
        super().__init__()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights and configuration to a folder.

        Parameters
        ----------
        folder : str or Path
            Folder for `model.safetensors` and `config.json`; it is made where it is missing.
            Earlier files of this function are replaced, and nothing else is. A process that is
            killed leaves the old network or the new one, and its drafts (`*.new`) are removed by
            the next save. Processes that save to one folder at once do so in turn.

        Raises
        ------
        InputError
            For a network without a configuration (`wflow.nets.config`), files of other programs
            in the folder, a folder that cannot be written, or a missing safetensors.

        Notes
        -----
        A matrix that two layers share is written once. A body in continuous time is part of the
        configuration.

        Examples
        --------
        >>> import tempfile
        >>> from wflow import nets
        >>> net = nets.ViT(image=(1, 8, 8), patch=2, width=8)
        >>> net.body = nets.ContinuousTransformer(net.body, steps=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save_pretrained(folder)
        ...     again = nets.ViT.from_pretrained(folder)
        >>> again.body.steps
        5
        """
        _write(self, path_of(folder, "folder"))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Make a network from a folder of `save_pretrained`.

        Parameters
        ----------
        folder : str or Path
            The folder. Nothing in it is executed.

        Returns
        -------
        Pretrained
            A network of this class with the weights in their precision, in evaluation mode on the
            CPU.

        Raises
        ------
        InputError
            For a folder that is missing, incomplete, damaged or of another program, a network of
            another class, or a missing safetensors.

        Examples
        --------
        >>> import tempfile
        >>> from wflow import nets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nets.ViT(image=(1, 8, 8), patch=2, width=8).save_pretrained(folder)
        ...     nets.ViT.from_pretrained(folder).training
        False
        """
        folder = path_of(folder, "folder")
        return _read(folder, read_config(folder), cls)


def read_config(folder: Path) -> dict[str, Any]:
    """Configuration in a folder: of `save_pretrained`, or of another program.

    Raises
    ------
    InputError
        For a folder without one, or one that is no JSON object.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: expected {_SAVED}")
    path = folder / CONFIG
    try:
        with opened(path, f"the configuration in {_SAVED}") as file:
            found = read_json(file, path, most=_CONFIG_BYTES)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged, for it is no JSON ({error}): {_AGAIN}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds {type(found).__name__}: expected an object, as {_SAVED}")
    return found


def read_weights(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """Tensors of a safetensors file by name.

    Parameters
    ----------
    path : Path
        The file; it is read once.
    sha256 : str, optional
        Checksum that it must have, in hexadecimal digits.

    Returns
    -------
    dict
        Tensors on the CPU.

    Raises
    ------
    InputError
        For a file that is missing or damaged, or has another checksum.
    """
    library = safetensors()
    with opened(path, "weights of a network") as file:
        data = read_whole(file, path, factor=2.0)  # the bytes, and the tensors made of them
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(
            f"{path} is damaged, or of another save than {CONFIG} beside it: its SHA-256 is not "
            f"the one there; {_AGAIN}"
        )
    try:
        return dict(library.load(data))
    except Exception as error:  # its errors are of several kinds, one of them from Rust
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is no whole safetensors file ({reason}): {_AGAIN}") from None


_AGAIN = "get the folder again, or save the network again"


def safetensors() -> Any:
    """The module `safetensors.torch`; InputError where the package is missing."""
    try:
        import safetensors.torch as library
    except ImportError as error:
        raise InputError(
            "folders of networks need the package safetensors, which cannot be imported "
            f"({error}); install it with: {install('nets')}"
        ) from None
    return library


def _write(network: nn.Module, folder: Path) -> None:
    config = registry.config(network)
    library = safetensors()
    firsts = registry.shared(network)
    state = {
        name: value.detach().cpu().contiguous()
        for name, value in network.state_dict().items()
        if firsts[name] == name
    }
    try:
        data = library.save(state, {"format": "pt", _FORMAT: __version__})
    except Exception as error:  # of tensors that the format does not know
        raise InputError(f"the weights cannot be written as safetensors: {error}") from None
    whole = {
        "format": f"{_FORMAT}/{_VERSION}",
        "wflow": __version__,
        **config,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    text = json.dumps(whole, indent=2) + "\n"
    try:
        with in_turn(folder / _LOCK, _PATIENCE):
            _check_replaceable(folder / WEIGHTS, _own_weights)
            _check_replaceable(folder / CONFIG, _own_config)
            _settle(folder)  # the last step of a save that was killed before it
            remove_drafts(folder, [CONFIG, WEIGHTS])
            _replace(_fresh(folder, whole["sha256"]), data)
            _replace(folder / CONFIG, text.encode())
            _settle(folder)
    except BlockingIOError:
        raise InputError(
            f"another process has been saving to {folder} for {_PATIENCE:g} s; stop it, or choose "
            "another folder"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot write into the folder {folder}: {error.strerror}; choose another"
        ) from None


_LOCK = f"{WEIGHTS}.lock.new"  # a training has the lock of its folder, and saves do not wait for it
_PATIENCE = 600.0  # seconds; a save takes some


def _fresh(folder: Path, sha256: Any) -> Path:
    """Name of weights with that digest until they replace the old ones; of none, the final name."""
    digits = re.match("[0-9a-f]{16}", sha256) if isinstance(sha256, str) else None
    return folder / (f"{WEIGHTS}.{digits[0]}.new" if digits else WEIGHTS)


def _settle(folder: Path) -> None:
    """Give the weights that the configuration names by their digest their final name."""
    if _own_config(folder / CONFIG):
        fresh = _fresh(folder, read_config(folder).get("sha256"))
        with suppress(FileNotFoundError):  # they have it
            os.replace(fresh, folder / WEIGHTS)


def _read(folder: Path, config: Mapping[str, Any], cls: type[Any]) -> Any:
    path = folder / CONFIG
    form = config.get("format")
    if not (isinstance(form, str) and form.startswith(f"{_FORMAT}/")):
        kind = config.get("model_type")
        what = f"of a {kind!s:.40} of another library" if kind else "of another program"
        raise InputError(f"{path} is {what}: expected {_SAVED}, of a {cls.__name__}")
    if form != f"{_FORMAT}/{_VERSION}":
        raise InputError(f"{path} has the format {form:.40}: a newer wflow wrote it; update wflow")
    sha256 = config.get("sha256")
    if not isinstance(sha256, str):
        raise InputError(f"{path} is damaged, or was edited: it has no sha256; {_AGAIN}")
    network = {key: config[key] for key in ("network", "arguments", "body") if key in config}
    fresh = _fresh(folder, sha256)
    state = read_weights(fresh if fresh.is_file() else folder / WEIGHTS, sha256)
    try:
        return registry.filled(network, state, cls, complete=False)
    except InputError as error:
        raise InputError(f"{folder} cannot be read: {error}") from None


def _check_replaceable(path: Path, own: Callable[[Path], bool]) -> None:
    """Check that a path is free, or that of a regular file that `save_pretrained` wrote."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder") from None
    advice = "it stays as it is: move it away, or choose another folder"
    if path.is_symlink() or not path.is_file():
        raise InputError(
            f"{path} is {kind_of_file(mode)}, and regular files are replaced; {advice}"
        )
    if not own(path):
        raise InputError(f"{path} is no file of save_pretrained; {advice}")


def _own_config(path: Path) -> bool:
    try:
        with opened(path, "a configuration") as file:
            found = read_json(file, path, most=_CONFIG_BYTES)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and str(found.get("format")).startswith(f"{_FORMAT}/")


def _own_weights(path: Path) -> bool:
    """Whether the head of a safetensors file, JSON behind its length, has the mark of wflow."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            head = parse_json(file.read(min(size, LARGEST_JSON)), path)
    except (OSError, ValueError, RecursionError):
        return False
    marks = head.get("__metadata__") if isinstance(head, dict) else None
    return isinstance(marks, dict) and _FORMAT in marks


def _replace(path: Path, data: bytes) -> None:
    try:
        replace_file(path, lambda draft: draft.write_bytes(data))
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}; free space, or choose another folder"
        ) from None
