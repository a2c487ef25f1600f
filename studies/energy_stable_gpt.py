"""Energy-stable layers in a small GPT: each token moves in a context that is held.

Characters of Shakespeare with one causal attention block without feed-forward layer, repeated as in
`energy_stable_layers.py`. A mask has no energy: a movement keeps that of each token only while what
it sees is held (`wflow.nets.MinimizingMovement`, [MHT] section 7.1). Test loss, also with replaced
characters in the input; mean cosine and effective rank of the tokens by depth, and at four times
the depth of the training; the share of tokens whose energy a layer moves the wrong way, in the
context that it held and in the one that has moved.

    python studies/energy_stable_gpt.py --preset cpu

[MHT] Massucco et al., "Multi-Headed Transformer Architectures as Time-dependent Wasserstein
Gradient Flows", arXiv 2605.18870.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from energy_stable_layers import (
    DEEPER,
    ENDS,
    MODELS,
    ROUNDING,
    MovementFlags,
    body,
    collapse,
    collapse_columns,
    layers,
    one_way,
    percent,
    questions,
    rank_questions,
    ranks_by_depth,
    wrong_ways,
)

from wflow import nets, study
from wflow.cli import script
from wflow.study import networks, texts
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch

REPLACED = (0.0, 0.05, 0.1, 0.2)  # share of the characters of the input
WINDOWS = 256  # windows of the test text at a time


@dataclass(frozen=True, kw_only=True)
class EnergyStableGpt(MovementFlags):
    """Flags of this study."""

    durations: ClassVar = {"smoke": "seconds", "cpu": "20 minutes on a core"}
    presets: ClassVar = {  # nothing is published to compare with
        "cpu": {},
        "smoke": {
            "text": "embedded", "tests": 200, "seeds": 1, "iterations": 4, "crops": 4,
            "context": 8, "width": 8, "depth": 2, "evaluate_every": 2,
        },
    }  # fmt: skip
    text: Literal["characters", "embedded"] = "characters"
    """The works of Shakespeare, or the sonnets that ship with the package; in characters."""
    tests: study.Count = 10_000
    """Number of test characters: the first ones."""
    iterations: study.Count = 600
    """Optimiser steps."""
    crops: study.Count = 16
    """Crops of the text in a batch."""
    context: study.Count = 16
    """Characters of a crop."""
    evaluate_every: study.Count = 100
    """Steps between two evaluations and checkpoints."""
    width: study.Count = 16
    rate: study.Positive = 5e-3
    out: study.Folder = Path("results/energy_stable_gpt")


# Text and trainings
# ------------------


def load(flags: EnergyStableGpt) -> nets.data.Text:
    """Return the text in characters."""
    if flags.text == "embedded":
        return nets.data.embedded_text()
    return nets.data.shakespeare(tokens="characters", folder=flags.data)


def network(flags: EnergyStableGpt, name: str, vocabulary: int, seed: int) -> nets.GPT:
    """Return a model with weights drawn from its seed; embedding and output share none."""
    import torch

    torch.manual_seed(seed)
    net = nets.GPT(
        vocabulary=vocabulary, context=flags.context, width=flags.width, depth=1, heads=flags.heads
    )
    net.head.weight = torch.nn.Parameter(net.head.weight.detach().clone())
    block = nets.blocks.Block(flags.width, flags.heads, causal=True)
    for weight in block.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.02)  # as those of GPT begin
    net.body = body(flags, name, block, causal=True)
    return net


def plan(flags: EnergyStableGpt, text: nets.data.Text, name: str, seed: int) -> Run:
    """Return the training of one model with one seed."""
    source = nets.data.CropBatches(
        text.train, context=flags.context, batch=flags.crops, seed=seed, vocabulary=text.vocabulary
    )
    schedule = nets.train.Cosine(flags.rate, 0.0, warm_up=0, steps=flags.iterations)
    config = nets.train.TrainConfig(
        steps=flags.iterations, batch=flags.crops, schedule=schedule, clip=1.0,
        evaluate_every=flags.evaluate_every, checkpoint_every=flags.evaluate_every, seed=seed,
        device=flags.device, precision=flags.precision, compile=flags.compile,
    )  # fmt: skip
    device = nets.train.device(flags.device)
    return Run(
        network(flags, name, text.vocabulary, seed), texts.NextToken(), source, config,
        lambda net: {"test_loss": answers(flags, net, text, device)[0]},
    )  # fmt: skip


def answers(
    flags: EnergyStableGpt,
    net: torch.nn.Module,
    text: nets.data.Text,
    device: torch.device,
    rate: float = 0.0,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the mean loss and the share of right next characters, some of the input replaced."""
    true = text.test[: flags.tests + 1]
    seen = nets.data.replace_tokens(true, rate, text.vocabulary, seed)
    windows = partial(nets.data.windows, context=flags.context, batch=WINDOWS)
    pairs = zip(windows(seen), windows(true), strict=True)
    batches = ((inputs, wanted) for (inputs, _), (_, wanted) in pairs)
    found = networks.classified(net, batches, device)
    return found["test_loss"], found["accuracy"]


# What was learnt
# ---------------

NUMBERS = {
    "final": ("test loss after the last iteration", "1"),
    "right": ("share of right next characters", "1"),
    **ENDS,
    "wrong_way": ("share of layers and tokens whose energy moves the wrong way, context held", "1"),
    "wrong_way_moved": ("the same in the context that has moved", "1"),
    "seconds": ("time of the training steps", "s"),
}
ALONG = {
    "replaced": ("loss_replaced", "rate", "test loss with characters of the input replaced"),
    "cosines": ("mean_cosine", "layer", "mean cosine of two tokens"),
    "ranks": ("effective_rank", "layer", "effective rank of the tokens of a window"),
}


def measure(
    flags: EnergyStableGpt, text: nets.data.Text, name: str, training: Trained, seed: int
) -> Record:
    """Return all quantities of a trained network."""
    if training.diverged:
        return {}
    net, device = training.model, training.device
    assert isinstance(net, nets.GPT)
    inputs, _ = next(nets.data.windows(text.test, context=flags.context, batch=WINDOWS))
    states = layers(net.body, net.embed(inputs.to(device)))
    found = [answers(flags, net, text, device, rate, seed) for rate in REPLACED]
    record = collapse(flags, states) | {
        "replaced": [loss for loss, _ in found], "final": found[0][0], "right": found[0][1],
    }  # fmt: skip
    if isinstance(net.body, nets.MinimizingMovement):
        record["wrong_way"] = wrong_ways(net.body, states, held=True)
        record["wrong_way_moved"] = wrong_ways(net.body, states)
    return record


def findings(flags: EnergyStableGpt, text: nets.data.Text, results: Results) -> list[study.Finding]:
    """Return claims about the layer, with their verdicts."""
    claim = "no layer moves the energy of a token the wrong way in the context that it holds"
    return [
        one_way(results, claim, "tokens"),
        *rank_questions(results),
        *questions("{} predicts characters with a lower loss than {}",
                   lambda name: -results.values(name, "final")),
        *questions(f"with {100 * REPLACED[-1]:g} % of its input replaced {{}} predicts characters "
                   "with a lower loss than {}", lambda name: -results.values(name, "replaced", -1)),
    ]  # fmt: skip


# Tables and figures
# ------------------


def report(flags: EnergyStableGpt, text: nets.data.Text, results: Results) -> str:
    """Return the tables."""
    column = partial(networks.column, results)
    models = list(results.records)
    main = {
        "model": models,
        "parameters": [
            str(network(flags, name, text.vocabulary, 0).count(positions=True)) for name in models
        ],
        "test loss": column("final", ".3f"),
        "right characters (%)": column("right", percent),
        **collapse_columns(results),
        "energy the wrong way, context held (%)": column("wrong_way", percent),
        "context moved (%)": column("wrong_way_moved", percent),
        "training (s)": column("seconds", ".0f"),
    }
    replaced = {"replaced": [f"{rate:g}" for rate in REPLACED]} | {
        name: [
            networks.mean_and_spread(results.values(name, "replaced", k), "{:.3f}".format)
            for k in range(len(REPLACED))
        ]
        for name in models
    }
    return "\n\n".join((
        f"{networks.caption(flags, flags.seeds, results, text.source)} Depth is the number of "
        f"applications of one block. Losses are those of the first {flags.tests:,} characters of "
        f"the test text, tokens those of its first {WINDOWS} windows. An energy moves the wrong "
        f"way where it does so by more than {ROUNDING:g} of it; it is that of a token in the "
        "hidden states before the layer, which the layer holds, and in those after it.",
        study.markdown_table(main),
        "Test loss with characters of the input replaced at random:",
        study.markdown_table(replaced),
    ))  # fmt: skip


EXPERIMENT = networks.Experiment(
    name="energy_stable_gpt", models=lambda _: {name: name for name in MODELS}, load=load,
    plan=plan, measure=measure, numbers=NUMBERS, along=ALONG,
    coords=lambda flags: {
        "rate": (REPLACED, "share of characters replaced"),
        "layer": (range(DEEPER * flags.depth + 1), "applications of the block"),
    },
    text=report, findings=findings,
    figures=lambda flags, results: {"collapse": ranks_by_depth(flags, results)},
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(EnergyStableGpt, __doc__))


if __name__ == "__main__":
    script(main)
