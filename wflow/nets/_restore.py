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
_SYSTEM = re.compile(
    rf"ContinuousTransformer\(\s*t_final={_NUMBER}, steps=(\d+), scheme='(\w+)', "
    r"velocity='(\w+)', cost='(\w+)'"
)


def restore_gpt(path: str | Path) -> GPT:
    """The trained GPT of a checkpoint.pt of `wflow.nets.train`, in evaluation mode on the CPU.

    Blocks of N-ODE transformers are made without the skip connection of the feed-forward layer, as
    `studies/shakespeare_gpt.py` trains them.

    Parameters
    ----------
    path : the checkpoint; nothing in it is executed

    Returns
    -------
    GPT, its body wrapped as it was in training

    Raises
    ------
    InputError
        For a file that is missing, damaged, or no checkpoint of a GPT.
    """
    path = Path(path)
    saved = _checkpoint.read(path)
    state, words = saved.get("model"), saved.get("description")
    if not isinstance(state, Mapping) or not isinstance(words, str):
        raise InputError(f"{path} is no checkpoint of a training of wflow.nets")
    heads = re.search(r"Attention\(\s*heads=(\d+)", words)
    if heads is None or not words.startswith("GPT("):
        raise InputError(
            f"{path} does not hold a GPT and how it was built: expected checkpoint.pt of a "
            "training, such as studies/shakespeare_gpt.py writes"
        )
    node = "NodeTransformer(" in words
    try:
        network = _built(state, int(heads[1]), words, skip=not node)
    except KeyError as error:
        raise InputError(f"{path} holds a GPT without {error}: expected all its weights") from None
    system = _SYSTEM.search(words)
    if system is not None:
        options: dict[str, Any] = {
            "t_final": float(system[1]),
            "steps": int(system[2]),
            "scheme": system[3],
            "velocity": system[4],
            "cost": system[5],
        }
        kind = NodeTransformer if node else ContinuousTransformer
        network.body = kind(network.body, **options)
    _checkpoint.load_model(path, network)
    return network.eval()


def _built(state: Mapping[str, Tensor], heads: int, words: str, *, skip: bool) -> GPT:
    """An untrained GPT of these sizes."""
    vocabulary, width = state["embed.token.weight"].shape
    context = state["embed.position.weight"].shape[0]
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
            gelu="tanh" if "approximate='tanh'" in words else "none",
            skip=skip,
        )
