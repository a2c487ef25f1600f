"""What the studies of small GPTs share: published sizes and training windows.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from wflow import nets


class Scale(NamedTuple):
    """Sizes of a network, and of its batches."""

    width: int
    context: int
    batch: int
    depth: int
    heads: int
    evaluate_every: int  # divides `EARLY` of the study of sizes


# [GPTOC] section 3.2.4; its feed-forward layers are four times as wide, those of GPT too.
SIZES = {
    "S": Scale(16, 64, 16, 1, 2, 250),
    "M": Scale(32, 128, 32, 2, 4, 100),
    "L": Scale(64, 256, 64, 4, 8, 50),
}


def gpt(size: Scale, dropout: float, vocabulary: int, seed: int) -> nets.GPT:
    """A network with weights drawn from its seed: no biases, as the default of nanoGPT."""
    import torch

    torch.manual_seed(seed)
    return nets.GPT(
        vocabulary=vocabulary,
        context=size.context,
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        dropout=dropout,
    )


def window_set(text: nets.data.Text, context: int) -> Any:
    """Windows of the training part that do not overlap, with the next tokens: a data set."""
    from torch.utils.data import TensorDataset

    ((inputs, targets), *_) = nets.data.windows(
        text.train, context=context, batch=len(text.train), vocabulary=text.vocabulary
    )  # all whole windows; what is left over comes behind them
    return TensorDataset(inputs, targets)
