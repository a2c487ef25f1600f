"""Networks, trainings and tables of the study `shakespeare_words`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from _texts import NextToken, Size, training, with_final_norm

from wflow import nets
from wflow.study.networks import Run

PAPER_SIZE = Size(12, 12, 768)
# [OTT] Table 12: test losses.
PUBLISHED = {"baseline": "5.18 ± 0.032", "continuous": "4.96 ± 0.012"}
PUBLISHED_BEST = {"baseline": "4.91 ± 0.001", "continuous": "4.87 ± 0.035"}
PUBLISHED_PARAMETERS = "123.7M"
PUBLISHED_ITERATIONS = 2000  # of the published code; 500 in the paper


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    text: str = "byte pairs"
    compact: bool = False  # the vocabulary is that of the tokens that occur
    seeds: int = 3
    iterations: int = 500
    batch: int = 30
    accumulate: int = 4
    context: int = 1024
    size: Size = PAPER_SIZE
    steps: int = 10
    lam: float = 1.0
    dropout: float = 0.0
    rate: float = 6e-4
    evaluate_every: int = 25
    share: float = 1.0
    passages: int = 64
    beginning: int = 128  # tokens
    continuation: int = 128
    published: bool = False  # habits of the published code


PRESETS = {
    "paper": Setup(),
    "cpu": Setup(
        compact=True,
        seeds=2,
        iterations=2000,
        batch=16,
        accumulate=1,
        context=64,
        size=Size(4, 4, 128),
        steps=5,
        rate=3e-3,
        evaluate_every=100,
        beginning=32,
        continuation=32,
    ),
    "smoke": Setup(
        text="embedded",
        seeds=1,
        iterations=6,
        batch=4,
        accumulate=2,
        context=16,
        size=Size(2, 2, 16),
        steps=2,
        evaluate_every=3,
        passages=4,
        beginning=8,
        continuation=8,
    ),
}


class Model(NamedTuple):
    """One model of the comparison."""

    name: str
    continuous: bool
    lam: float


def models(setup: Setup) -> dict[str, Model]:
    """The models by name."""
    chosen = [
        Model("baseline", False, 0.0),
        Model("unregularised", True, 0.0),
        Model("continuous", True, setup.lam),
    ]
    return {model.name: model for model in chosen}


def load(setup: Setup, folder: str | None) -> nets.data.Text:
    """The text in byte pairs of GPT-2; for smoke the sonnets in characters."""
    if setup.text == "embedded":
        return nets.data.embedded_text()
    text = nets.data.shakespeare(tokens="gpt2", folder=folder)
    return text.compact() if setup.compact else text


def network(model: Model, setup: Setup, vocabulary: int, seed: int) -> nets.GPT:
    """A network with weights drawn from its seed: biases and layer norms, as published."""
    import torch

    torch.manual_seed(seed)
    net = nets.GPT(
        vocabulary=vocabulary,
        context=setup.context,
        depth=setup.size.depth,
        heads=setup.size.heads,
        width=setup.size.width,
        bias=True,
        dropout=setup.dropout,
    )
    return with_final_norm(net, setup.steps) if model.continuous else net


def plan(model: Model, setup: Setup, text: nets.data.Text, flags: Any, seed: int) -> Run:
    """The training run of one model with one seed."""
    objective = NextToken(
        2 * model.lam,  # the published cost has no 1/2
        scale=setup.accumulate if setup.published else 1.0,
    )
    return training(
        network(model, setup, text.vocabulary, seed),
        objective,
        text,
        setup,
        flags,
        seed,
        warm_up=setup.iterations if setup.published else setup.iterations // 10,
        betas=(0.9, 0.95),
    )
