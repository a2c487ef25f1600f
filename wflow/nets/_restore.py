"""A GPT from the checkpoint of its training: sizes from the weights, the rest from its words."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wflow.errors import InputError
from wflow.nets import _checkpoint
from wflow.nets.continuous import ContinuousTransformer, NodeTransformer
from wflow.nets.gpt import GPT

_NUMBER = r"([-+.\deE]+)"
_ATTENTION = re.compile(
    rf"Attention\(\s*heads=(\d+), head_width=\d+, causal=\w+, dropout={_NUMBER}"
)
_SYSTEM = re.compile(
    rf"ContinuousTransformer\(\s*t_final={_NUMBER}, steps=(\d+), scheme='(\w+)', "
    r"velocity='(\w+)', cost='(\w+)', checkpointing=(\w+), batch_dim=(-?\d+)"
)


def restore_gpt(path: str | Path) -> GPT:
    """The trained GPT of a checkpoint.pt of `wflow.nets.train`, in evaluation mode on the CPU.

    Parameters
    ----------
    path : the checkpoint; nothing in it is executed

    Returns
    -------
    GPT with the options that it was trained with, its body wrapped as it was

    Raises
    ------
    InputError
        For a file that is missing, damaged, or no checkpoint of a GPT, and for a GPT that was
        changed by hand: what is built must describe itself in the words of the file.
    """
    path = Path(path)
    saved = _checkpoint.read(path)
    _checkpoint.check_fields(path, saved, ("model", "description"))
    state, words = saved["model"], saved["description"]
    attention = _ATTENTION.search(words)
    if attention is None or not words.startswith("GPT("):
        raise InputError(
            f"{path} does not hold a GPT and how it was built: expected checkpoint.pt of a "
            "training, such as studies/shakespeare_gpt.py writes"
        )
    try:
        network = _built(state, words, int(attention[1]), float(attention[2]))
        _wrap(network, words)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} does not hold the weights and words of one GPT ({error}): it is damaged, or "
            "was edited; take another copy of it"
        ) from None
    lines = _checkpoint.first_difference(words, _checkpoint.described(network))
    if lines is not None:
        raise InputError(
            f"{path} holds a GPT that cannot be built from its words: '{lines[0]}' in the file, "
            f"'{lines[1]}' in what was built; it was changed by hand, or written by another "
            "version of wflow or torch"
        )
    _checkpoint.load_model(path, network)
    return network.eval()


def _built(state: Mapping[str, Tensor], words: str, heads: int, dropout: float) -> GPT:
    """An untrained GPT of these sizes."""
    vocabulary, width = state["embed.token.weight"].shape
    context, _ = state["embed.position.weight"].shape
    depth = sum(name.endswith("attention.qkv.weight") for name in state)
    with torch.random.fork_rng([]):
        return GPT(
            vocabulary=vocabulary,
            context=context,
            width=width,
            depth=depth,
            heads=heads,
            norm=any("norm_attention" in name for name in state),
            bias=any(name.endswith("attention.qkv.bias") for name in state),
            skip="skip=False" not in words,
            gelu="tanh" if "approximate='tanh'" in words else "none",
            dropout=dropout,
        )


def _wrap(network: GPT, words: str) -> None:
    """Make the body of a GPT the continuous-time one that the words tell of, if they do."""
    system = _SYSTEM.search(words)
    if system is None:
        return
    options: dict[str, Any] = {
        "t_final": float(system[1]),
        "steps": int(system[2]),
        "scheme": system[3],
        "velocity": system[4],
        "cost": system[5],
        "checkpointing": system[6] == "True",
        "batch_dim": int(system[7]),
    }
    kind = NodeTransformer if "NodeTransformer(" in words else ContinuousTransformer
    network.body = kind(network.body, **options)
