"""Restoring of networks from files: built from the configuration, filled with the weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

# Whoever restores a network need not have imported its class.
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
        cls = registry.class_of(config)
        if not issubclass(cls, kind):
            raise InputError(f"it is a {cls.__name__}: expected a {kind.__name__}")
        # A network registers a parameter that it shares, or replaces, more than once.
        with registry.outline(most=4 * len(state) + 16):
            outline = registry.build(config)
        _check_values(state, outline)
        with torch.random.fork_rng([]), torch.device("cpu"):
            network = registry.build(config)
    except InputError as error:
        raise InputError(f"{path} cannot be restored: {error}") from None
    for name, value in network.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            value.data = value.data.to(state[name].dtype)
    network.load_state_dict(state)
    return network.eval()  # type: ignore[return-value]  # checked above


def _check_values(state: Mapping[str, Any], outline: nn.Module) -> None:
    """Check shapes, kinds of numbers, and that what the network shares is the same in the file."""
    other = checkpoints.other_weight(state, outline)
    if other is not None:
        name, there, here = other
        raise InputError(
            f"{name} is {there} in the file, and the configuration asks for one {here}; it "
            "is damaged, or was edited: take another copy of it"
        )
    firsts: dict[int, str] = {}
    for name, value in outline.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            continue
        stored = state[name]
        if (stored.is_floating_point(), stored.is_complex()) != (
            value.is_floating_point(),
            value.is_complex(),
        ):
            raise InputError(f"{name} is {stored.dtype} in the file: expected {value.dtype}")
        first = firsts.setdefault(id(value), name)
        if first != name and not _same_bits(state[first], stored):
            raise InputError(f"{name} differs from {first}, and the network has one for both")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    raw = [value.contiguous().flatten().view(torch.uint8) for value in (one, other)]
    return one.dtype == other.dtype and torch.equal(*raw)
