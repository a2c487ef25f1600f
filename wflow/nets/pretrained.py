"""Networks in folders: weights in `model.safetensors`, configuration in `config.json`.

Nothing in such a folder can be executed. The configuration holds the SHA-256 of the file of the
weights, so that a damaged file, or one of another save, is noticed. `Pretrained` gives the methods
to the networks of `models` and to custom ones. Folders are read by transformers, too, where it has
the network (`models.gpt`); where it has not, their configuration and the format in the header of
the weights make it refuse them, for it would return a network with random weights.

A save has three steps, and the second decides: the new weights are written beside the old ones
under a name with their digest, the new configuration replaces the old one, and the new weights
replace the old ones. The configuration names its weights by their digest, whichever of the two
names they have, so that a process killed at any time leaves the old network or the new one.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from torch import Tensor, nn

from wflow._core.checks import path_of
from wflow._core.errors import InputError
from wflow._core.extras import required
from wflow._core.files import opened, read_object, read_whole
from wflow._version import __version__
from wflow.nets import registry
from wflow.nets.files import Kind, check_replaceable, in_turn, marked, replace

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FORM = "wflow-network/1"
_KINDS = {
    CONFIG: Kind("configuration of save_pretrained", marked(b"{", b'"wflow-network/')),
    WEIGHTS: Kind("file of save_pretrained", marked(b"", b'"wflow-network":')),
}
_SAVED = "a folder of save_pretrained"
_AGAIN = "get the folder again, or save the network again"
P = TypeVar("P", bound="Pretrained")

_LIBRARY = "safetensors.torch", "nets", "folders of networks"


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
        configuration. A `GPT` that is a GPT-2 is written under the names of Hugging Face, so that
        `transformers.GPT2LMHeadModel.from_pretrained` reads the folder; transformers refuses the
        folders of all others.

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
        folder = path_of(folder, "folder")
        config, values = registry.config(self), self.state_dict()
        firsts = dict.fromkeys(registry.shared(self).values())
        settings, state = self._to_transformers(
            config, {name: values[name].detach() for name in firsts}
        )
        state = {name: value.cpu().contiguous() for name, value in state.items()}
        library = required(*_LIBRARY)
        # Versions of transformers before 5 ignore `transformers_weights`, and refuse other formats.
        form = "wflow" if "transformers_weights" in settings else "pt"
        try:
            data = library.save(state, {"format": form, "wflow-network": __version__})
        except Exception as error:  # of tensors that the format does not know
            raise InputError(f"the weights cannot be written as safetensors: {error}") from None
        digest = hashlib.sha256(data).hexdigest()
        whole = {"format": _FORM, "wflow": __version__, **config, "sha256": digest, **settings}
        text = json.dumps(whole, indent=2) + "\n"
        # Drafts are removed last: the weights of a killed save are among them.
        with in_turn(folder / WEIGHTS, _KINDS):
            for name, kind in _KINDS.items():
                check_replaceable(folder / name, kind)
            fresh = _fresh(folder, digest)
            replace(fresh, _KINDS[WEIGHTS], lambda draft: draft.write_bytes(data))
            replace(folder / CONFIG, _KINDS[CONFIG], lambda draft: draft.write_text(text))
            os.replace(fresh, folder / WEIGHTS)

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
        before = _versions(folder)
        try:
            return _read(folder, cls)
        except InputError:
            if _versions(folder) == before:
                raise
        return _read(folder, cls)  # again, for a save replaced the files meanwhile

    def _to_transformers(
        self, config: dict[str, Any], state: dict[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return settings for transformers, and the weights under its names where it has them."""
        words = f"none; {type(self).__name__}.from_pretrained of wflow reads this network"
        return {"model_type": "wflow", "transformers_weights": words}, state

    def _from_transformers(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a file under our names, which may be those of transformers."""
        return state


def _versions(folder: Path) -> list[tuple[int, int] | None]:
    """What is another after a save to a folder, of each file; None for a missing one."""
    found: list[tuple[int, int] | None] = [None] * len(_KINDS)
    for k, name in enumerate(_KINDS):
        with suppress(OSError):
            file = os.stat(folder / name)
            found[k] = file.st_ino, file.st_mtime_ns
    return found


def _read(folder: Path, cls: type[P]) -> P:
    """Read the network of a folder once."""
    config = read_config(folder)
    form = config.get("format", config.get("model_type"))
    if form != _FORM:
        raise InputError(
            f"{folder / CONFIG} is of another program, or of a newer wflow ({form!s:.40}): "
            f"expected {_SAVED}, with a {cls.__name__}"
        )
    digest = str(config.get("sha256"))
    fresh = _fresh(folder, digest)
    state = read_weights(fresh if fresh.is_file() else folder / WEIGHTS, digest)
    return registry.filled(
        folder, config, state, cls, lambda net, state: net._from_transformers(state)
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration in a folder: of `save_pretrained`, or of another program.

    Raises
    ------
    InputError
        For a folder without one, or one that is no JSON object.
    """
    return read_object(folder / CONFIG, f"the configuration in {_SAVED}")


def read_weights(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file by name.

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
    library = required(*_LIBRARY)
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


def _fresh(folder: Path, sha256: str) -> Path:
    """Return a name for the weights with that digest until they replace the old ones."""
    return folder / f"{WEIGHTS}.{sha256[:16]}.new"
