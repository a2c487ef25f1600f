"""Restoring of networks from files: built from the configuration, filled with the weights."""

from pathlib import Path
from typing import TypeVar

from torch import nn

# Whoever restores a network need not have imported its class.
import wflow.nets.models.controlled
import wflow.nets.models.gpt
import wflow.nets.models.set_transformer
import wflow.nets.models.text
import wflow.nets.models.vit  # noqa: F401
from wflow._core.checks import path_of
from wflow._core.errors import InputError
from wflow.nets import registry
from wflow.nets.training import checkpoint as checkpoints

N = TypeVar("N", bound=nn.Module)


def restore(path: str | Path, kind: type[N] = nn.Module) -> N:  # type: ignore[assignment]
    """The network of a training's checkpoint.pt, or of a file of `save_model`.

    Parameters
    ----------
    path : str or Path
        The file; nothing in it is executed, and nothing is made of it before the shapes of its
        weights have been compared with those that its configuration asks for.
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
        unknown network or argument or does not fit the weights, and for a network of another kind.

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
    saved = checkpoints.read(path)
    state, config = saved["model"], checkpoints.network_of(path, saved)
    if isinstance(config, str):
        raise InputError(
            f"{path} does not say how its network is made: {' '.join(config.split())}; make "
            "the network, and fill it by nets.train.load_model(path, network)"
        )
    try:
        return registry.filled(config, state, kind)
    except InputError as error:
        raise InputError(f"{path} cannot be restored: {error}") from None
