"""Networks, trainings and tables of the study `shakespeare_words`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from _texts import (
    WINDOWS,
    NextToken,
    Size,
    absent,
    measured,
    scored,
    training,
    with_final_norm,
)

from wflow import nets, study
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

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
    crops: int = 120
    parts: int = 4
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
    sample: int = 150
    checkpointing: bool = True  # a step of the continuous model in memory at a time
    published: bool = False  # habits of the published code

    @property
    def batch(self) -> int:
        """Crops in a part of a batch."""
        return self.crops // self.parts

    @property
    def accumulate(self) -> int:
        """Parts of a batch."""
        return self.parts


PRESETS = {
    "paper": Setup(),
    # A quarter of the text, 20 times: few enough tokens to overfit, as in the published run, which
    # takes the whole text 200 times.
    "cpu": Setup(
        compact=True,
        seeds=2,
        iterations=1500,
        crops=16,
        parts=1,
        context=64,
        size=Size(4, 4, 128),
        steps=5,
        rate=3e-3,
        evaluate_every=100,
        share=0.25,
        beginning=32,
        continuation=32,
        checkpointing=False,
    ),
    "smoke": Setup(
        text="embedded",
        seeds=1,
        iterations=6,
        crops=8,
        parts=2,
        context=16,
        size=Size(2, 2, 16),
        steps=2,
        evaluate_every=3,
        passages=4,
        beginning=8,
        continuation=8,
        sample=60,
        checkpointing=False,
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


def examine(
    name: str, trained: Trained, setup: Setup, text: nets.data.Text, flags: Any, seed: int
) -> Record:
    """All quantities of a trained network, from the file in its folder where it has them."""
    return networks.kept(
        networks.folder_of(flags.out, name, seed),
        [text.source, asdict(replace(setup, seeds=0)), flags.encoder, absent()],
        trained,
        lambda: measured(trained, text, setup, seed, flags.encoder),
    )


def report(
    flags: Any,
    setup: Setup,
    text: nets.data.Text,
    listed: Mapping[str, Model],
    results: Results,
) -> str:
    """The tables, beside the published ones."""
    names = list(results.records)

    def column(key: str, style: str) -> list[str]:
        return networks.column(results, key, lambda value: f"{value:{style}}")

    sizes = [network(listed[name], setup, text.vocabulary, 0).count() for name in names]
    published = {name: float(value.split()[0]) for name, value in PUBLISHED.items()}
    table = {
        "model": names,
        "parameters": [f"{size / 1e6:.4g}M" for size in sizes],
        "best test loss": column("best", ".3f"),
        "published best": [PUBLISHED_BEST.get(name, "–") for name in names],
        "final test loss": column("final", ".3f"),
        "published final": [PUBLISHED.get(name, "–") for name in names],
        "difference": networks.differences(results, "final", published, "+.2f"),
        "perplexity": column("perplexity", ".1f"),
        "mean over windows": column("perplexity_windows", ".1f"),
        "training loss": column("training", ".3f"),
        "arc over chord": column("straightness", ".3f"),
        "transport cost": column("transport", ".3g"),
        "ms per iteration": column("milliseconds", ".0f"),
    }
    used = "" if setup.share == 1 else f", the first {100 * setup.share:g} % of the training part"
    habits = (
        ", habits of the published code: the rate only rises, gradients are summed over the parts "
        "of a batch"
        if setup.published
        else ""
    )
    lead = (
        f"{networks.caption(flags, setup.seeds, results, text.source + used)} "
        f"{setup.iterations:,} iterations of {setup.batch} x {setup.accumulate} crops of "
        f"{setup.context} tokens{habits}; blocks x heads x width: {setup.size}, with biases and "
        f"layer norms, the final one within the velocity; T = 1, {setup.steps} Euler steps, lam = "
        f"{setup.lam:g} (of the cost without the 1/2; the column has it), dropout "
        f"{setup.dropout:g}, learning rate {setup.rate:g} to a tenth of it. Parameters without "
        f"those of the positions. Perplexity is the exponential of the final test loss; the mean "
        f"over windows of {setup.context} tokens is that of the published code. Hidden states are "
        f"those of {WINDOWS} windows of the test text."
    )
    if setup.text == "embedded":
        table = networks.unpublished(table)
    else:
        lead += (
            f" Published: 12 x 12 x 768, {PUBLISHED_PARAMETERS} parameters each, 10 steps, 500 "
            "iterations of 30 x 4 crops of 1024, learning rate 0.0006, 3 seeds."
        )
    return "\n\n".join(
        (lead, study.markdown_table(table), scored(results, setup, flags.encoder, {}))
    )
