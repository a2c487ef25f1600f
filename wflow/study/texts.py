"""What the studies of GPTs share: flags, objective, training, test loss, scores of texts.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from wflow import nets
from wflow._core.checks import number, positive, whole
from wflow._core.errors import InputError
from wflow._core.extras import install, missing
from wflow.study import networks
from wflow.study.flags import Switch
from wflow.study.frame import markdown_table
from wflow.study.networks import Record, Results, Run, Trained, motion

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EVALUATION = 16  # windows at a time
WINDOWS = 8  # of the test text, whose hidden states are followed
TEMPERATURE, TOP_K = 0.8, 200  # as sample.py of nanoGPT has them
KINDS = {"forced": "next tokens", "generated": "generated"}
SCORES = {
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "bert_precision": "BERT-P",
    "bert_recall": "BERT-R",
    "bertscore": "BERT-F1",
}
Published = Mapping[str, Mapping[str, float]]  # model -> score by name


class Size(NamedTuple):
    """Blocks, heads and width of a network."""

    depth: int
    heads: int
    width: int

    def __str__(self) -> str:
        return f"{self.depth} x {self.heads} x {self.width}"


@dataclass(frozen=True)
class NextToken:
    """Mean cross-entropy of the next tokens, without the logits of all of them at a time.

    With a weight the transport cost is added, `weight` times; None neither adds nor records it.
    `scale` multiplies the sum: the habit of published code that does not divide the gradient by
    the number of parts of a batch.
    """

    weight: float | None = None
    scale: float = 1.0

    def __call__(self, model: torch.nn.Module, /, *batch: Tensor) -> nets.train.Loss:
        losses, cost = model(*batch)
        data = losses.mean()
        if self.weight is None:
            return nets.train.Loss(self.scale * data, {"data": data})
        total = data + self.weight * cost if self.weight else data
        return nets.train.Loss(self.scale * total, {"data": data, "transport": cost})


def loss_on(
    net: torch.nn.Module,
    tokens: Tensor,
    context: int,
    device: torch.device,
    team: nets.train.Team | None = None,
) -> float:
    """Mean loss per token over all of a text, in windows that do not overlap.

    The processes of a team take turns with the windows, and all get the result.
    """
    import torch

    total = 0.0
    windows = nets.data.windows(tokens, context=context, batch=EVALUATION)
    if team is not None:
        windows = islice(windows, team.rank, None, team.count)
    with nets.blocks.evaluating(net), torch.no_grad():
        for inputs, targets in windows:
            total += float(net(inputs.to(device), targets.to(device)).output.double().sum())
    return (total if team is None else sum(team.collect(total))) / (len(tokens) - 1)


def with_final_norm(net: nets.GPT, steps: int) -> nets.GPT:
    """Make blocks and final norm together the velocity, as the published code with norms does.

    The hidden states at the end time then go to the logits as they are. The number of parameters
    stays the same.
    """
    import torch

    assert isinstance(net.body, nets.blocks.Stack) and isinstance(net.head, torch.nn.Module)
    velocity = [*net.body, net.head.norm]
    net.head.norm = torch.nn.Identity()
    net.body = nets.ContinuousTransformer(velocity, steps=steps)
    return net


def training(
    net: nets.GPT,
    objective: nets.train.Objective,
    text: nets.data.Text,
    setup: Any,
    flags: Any,
    seed: int,
    *,
    warm_up: int,
    betas: tuple[float, float],
) -> Run:
    """AdamW on random crops at a rate that falls to a tenth, as nanoGPT trains.

    `setup` has the sizes of batches and the rate, by the names of the studies of Shakespeare.
    """
    rows = setup.batch * setup.accumulate
    config = nets.train.TrainConfig(
        steps=setup.iterations,
        batch=rows,
        accumulate=setup.accumulate,
        schedule=nets.train.Cosine(
            rate=setup.rate,
            least=setup.rate / 10,
            warm_up=warm_up,
            steps=max(setup.iterations, warm_up + 1),
        ),
        optimizer="adamw",
        betas=betas,
        weight_decay=0.1,
        clip=1.0,
        evaluate_every=setup.evaluate_every,
        checkpoint_every=setup.evaluate_every,
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
    )
    part: torch.Tensor | nets.data.TokenFile = text.train
    if setup.share < 1:  # of a token file, which stays on the disk otherwise
        count = max(setup.context + 1, int(setup.share * len(part)))
        part = part.first(count) if isinstance(part, nets.data.TokenFile) else part[:count]
    batches = nets.data.CropBatches(
        part, context=setup.context, batch=rows, seed=seed, vocabulary=text.vocabulary
    )
    team = nets.train.team(flags.device)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return {"test_loss": loss_on(model, text.test, setup.context, team.device, team)}

    return Run(net, objective, batches, config, evaluate)


# What was learnt, and what is written
# ------------------------------------

SCALARS = {
    "final": ("test loss after the last iteration", "1"),
    "best": ("least test loss of any evaluation", "1"),
    "training": ("training loss, mean of the last 50 iterations", "1"),
    "perplexity": ("exponential of the test loss", "1"),
    "perplexity_windows": ("mean over windows of the exponential of their test loss", "1"),
    "straightness": ("arc length over chord of hidden states, first windows", "1"),
    "speed_variation": ("variation of the speed of hidden states, likewise", "1"),
    "transport": ("transport cost with the factor 1/2, likewise", "1"),
    "milliseconds": ("median time of an iteration", "ms"),
    "seconds": ("time of all iterations", "s"),
} | {
    f"{kind}_{name}": (f"{title}, {words}", "%")
    for kind, words in KINDS.items()
    for name, title in SCORES.items()
}


def measured(
    trained: Trained, text: nets.data.Text, setup: Any, seed: int, encoder: str | None
) -> Record:
    """Losses, perplexities, motion, times, and scores of predicted texts, in single precision."""
    import torch

    net, device, history = trained.model, trained.device, trained.history
    record: Record = dict.fromkeys(SCALARS, math.nan)
    record |= {
        "training": float(history["data"].values[-50:].mean()),
        "milliseconds": 1e3 * float(np.median(history["seconds"].values)),
        "seconds": float(history["seconds"].sum()),
        "skipped": 0,
        "sample": "",
    }
    if trained.diverged:
        return record
    assert isinstance(net, nets.GPT)

    def windows(batch: int) -> Any:
        return nets.data.windows(text.test, context=setup.context, batch=batch)

    losses = nets.metrics.losses(net, windows(EVALUATION))
    found = nets.metrics.perplexities(losses)
    final = float(torch.cat(losses).mean())
    best = float(np.nanmin(history["test_loss"].values))
    record |= {
        "final": final,
        "best": min(best, final),
        "perplexity": found.of_mean,
        "perplexity_windows": found.mean_of_sequences,
    }
    inputs, _ = next(iter(windows(WINDOWS)))
    record |= motion(net.body, net.embed(inputs.to(device)))
    record["sample"] = sample(net, text, setup.sample, device, seed)
    if absent():
        return record
    begun, rest = nets.metrics.passages(
        text.test, beginning=setup.beginning, continuation=setup.continuation, most=setup.passages
    )
    pairs = {
        "forced": nets.metrics.teacher_forced(net, windows(EVALUATION)),
        "generated": nets.metrics.generated(
            net, begun, rest, temperature=TEMPERATURE, top_k=TOP_K, seed=seed
        ),
    }
    for kind, (predictions, targets) in pairs.items():
        scores = nets.metrics.scores(
            map(text.decode, predictions),
            map(text.decode, targets),
            encoder=encoder,
            device=str(device),
        )
        record |= {f"{kind}_{name}": getattr(scores, name) for name in SCORES}
        record["skipped"] += scores.skipped
    return record


def sample(net: nets.GPT, text: nets.data.Text, new: int, device: torch.device, seed: int) -> str:
    """Text that the network generates after a line break."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    start = text.encode("\n")[None].to(device)
    return text.decode(net.generate(start, new, generator=generator)[0])


def samples(results: Results) -> str:
    """What the first network of each model generates."""
    pieces = [f"## {name}\n{runs[0]['sample']}\n" for name, runs in results.records.items()]
    return "\n".join(pieces)


def absent() -> list[str]:
    """Packages of the metrics that are not installed, each with the command that installs it."""
    packages = ("sacrebleu", "sacremoses", "rouge_score")
    return missing(dict.fromkeys(packages, "metrics"))


def overfits(results: Results) -> bool:
    """Whether the test loss of the baseline rises again after its best value."""
    rises = [record["final"] - record["best"] for record in results.records["baseline"]]
    return bool(np.mean(rises) > 0.02)


def scored(results: Results, setup: Any, encoder: str | None, published: Published) -> str:
    """Table of the scores of texts, with how they are measured; published ones as rows."""
    if absent():
        return (
            "No scores of texts: the packages of the extra metrics are not installed "
            f"({install('metrics')}; then give the same command with --resume)."
        )
    titles = {n: title for n, title in SCORES.items() if encoder or not n.startswith("bert")}
    table: dict[str, list[str]] = {title: [] for title in ("model", "text", *titles.values())}

    def add(model: str, kind: str, cells: Iterable[str]) -> None:
        for column, cell in zip(table.values(), (model, kind, *cells), strict=True):
            column.append(cell)

    for kind, words in KINDS.items():
        columns = [networks.column(results, f"{kind}_{name}", ".2f") for name in titles]
        for place, model in enumerate(results.records):
            add(model, words, [column[place] for column in columns])
    for model, values in published.items():
        if encoder or set(values) & set(titles):
            add(
                f"published, {model}",
                KINDS["forced"],
                [f"{values[name]:g}" if name in values else "–" for name in titles],
            )
    skipped = sum(record["skipped"] for runs in results.records.values() for record in runs)
    lead = (
        f"Scores of texts in per cent. Next tokens: the likeliest token after each true one, in "
        f"windows of {setup.context} tokens of the whole test part, which [OTT] scores (of random "
        f"windows). Generated: continuations of {setup.continuation} tokens of "
        f"{setup.passages} held-out beginnings of {setup.beginning}, at temperature "
        f"{TEMPERATURE:g} among the {TOP_K} likeliest. BLEU: "
        f"{nets.metrics.signature()}; ROUGE: F-measures with stemming; "
    )
    lead += (
        f"BERTScore: {encoder}."
        if encoder
        else "BERTScore: not measured, it needs an encoder (--encoder roberta-large)."
    )
    lead += f" Pairs with an empty text, skipped: {skipped}."
    return f"{lead}\n\n{markdown_table(table)}"


@dataclass(frozen=True, kw_only=True)
class TextFlags(networks.NetFlags):
    """Flags of the studies that score texts."""

    torchrun: ClassVar[bool] = True
    needs: ClassVar[dict[str, str]] = networks.NEEDS | dict.fromkeys(
        ("sacrebleu", "sacremoses", "rouge_score"), "metrics"
    )
    iterations: int | None = None
    """Optimiser steps; default: of the preset."""
    rate: float | None = None
    """Learning rate after the warm-up; it falls to a tenth. Default: of the preset."""
    share: float | None = None
    """Share of the training text that is used, from its beginning; default: of the preset."""
    published: Switch = False
    """Follow the habits of the published code, where they differ from the paper."""
    encoder: str | None = None
    """Encoder of BERTScore: its folder, or its name in the cache of Hugging Face; default: no
    BERTScore."""

    def check(self) -> None:
        super().check()
        if self.iterations is not None:
            whole(self.iterations, "--iterations")
        if self.rate is not None:
            positive(self.rate, "--rate")
        if self.share is not None and not 0 < number(self.share, "--share") <= 1:
            raise InputError(f"--share is {self.share}: expected a number in (0, 1]")
        if self.encoder is not None:  # refused now, not after hours of training
            nets.metrics.check_encoder(self.encoder)
