"""Common parts of the studies of GPTs: flags, objective, training, test loss, scores of texts.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wflow import nets
from wflow._core.errors import InputError
from wflow._core.extras import install, missing
from wflow.study import networks
from wflow.study.flags import Count, Nonnegative, Positive, Share, Switch
from wflow.study.frame import markdown_table
from wflow.study.networks import Record, Results, Run, Trained, motion

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EVALUATION = 16  # windows that are evaluated at a time
WINDOWS = 8  # windows of the test text whose hidden states are followed
TEMPERATURE, TOP_K = 0.8, 200  # the values of sample.py of nanoGPT
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


@dataclass(frozen=True, kw_only=True)
class TextFlags(networks.NetFlags):
    """Flags of the studies that train GPTs and score texts."""

    torchrun: ClassVar = "batches"
    needs: ClassVar[dict[str, str]] = networks.NEEDS | dict.fromkeys(
        ("sacrebleu", "sacremoses", "rouge_score"), "metrics"
    )
    # The number of parts of a batch affects memory alone: it does not change the preset.
    indifferent: ClassVar[frozenset[str]] = frozenset({"parts", "published", "encoder"})
    seeds: Count = 3
    iterations: Count = 500
    """Optimiser steps."""
    crops: Count = 120
    """Crops of the text in a batch."""
    parts: Count = 4
    """Parts in which a process computes its share of a batch, for memory."""
    context: Count = 1024
    """Tokens of a crop."""
    steps: Count = 10
    """Steps M of the continuous models in training."""
    lam: Nonnegative = 1.0
    """Weight lam of the transport cost."""
    dropout: Nonnegative = 0.0
    """Share of the hidden states that are dropped in training."""
    rate: Positive = 6e-4
    """Learning rate after the warm-up; it falls to a tenth."""
    share: Share = 1.0
    """Share of the training text that is used, from its beginning."""
    evaluate_every: Count = 25
    """Steps between two evaluations and checkpoints."""
    passages: Count = 64
    """Passages of the test text that are continued and scored."""
    beginning: Count = 128
    """Tokens of a passage that are given."""
    continuation: Count = 128
    """Tokens that continue it."""
    sample: Count = 150
    """Tokens of the text that each network generates."""
    published: Switch = False
    """Follow the habits of the published code, where they differ from the paper."""
    encoder: str | None = None
    """Encoder of BERTScore: its folder, or its name in the cache of Hugging Face; default: no
    BERTScore."""

    def check(self) -> None:
        super().check()
        if self.crops % self.parts:
            raise InputError(
                f"--parts is {self.parts}: expected a divisor of the {self.crops} crops of a batch"
            )
        if self.encoder is not None:  # refused now, not after hours of training
            nets.metrics.check_encoder(self.encoder)


@dataclass(frozen=True)
class NextToken:
    """Mean cross-entropy of the next tokens, computed without holding all logits at once.

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
    processes: nets.train.Processes | None = None,
) -> float:
    """Return the mean loss per token over all of a text, in windows that do not overlap.

    The processes take turns with the windows, and all get the result.
    """
    import torch

    total = 0.0
    windows = nets.data.windows(tokens, context=context, batch=EVALUATION)
    if processes is not None:
        windows = islice(windows, processes.rank, None, processes.count)
    with nets.blocks.evaluating(net), torch.no_grad():
        for inputs, targets in windows:
            total += float(net(inputs.to(device), targets.to(device)).output.double().sum())
    return (total if processes is None else sum(processes.collect(total))) / (len(tokens) - 1)


def with_final_norm(net: nets.GPT, steps: int) -> nets.GPT:
    """Combine blocks and final norm into the velocity, as the published code with norms does.

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
    flags: TextFlags,
    net: nets.GPT,
    text: nets.data.Text,
    seed: int,
    *,
    lam: float,
    warm_up: int,
    betas: tuple[float, float],
) -> Run:
    """AdamW on random crops at a rate that falls to a tenth, as nanoGPT trains."""
    longest = len(text.test)
    if flags.beginning + flags.continuation > longest:  # refused now, not after the training
        raise InputError(
            f"--beginning {flags.beginning} --continuation {flags.continuation} are a passage of "
            f"{flags.beginning + flags.continuation} tokens: expected at most {longest}, those of "
            "the test text"
        )
    objective = NextToken(
        2 * lam,  # the published cost has no 1/2
        scale=flags.parts if flags.published else 1.0,
    )
    config = nets.train.TrainConfig(
        steps=flags.iterations,
        batch=flags.crops,
        accumulate=flags.parts,
        schedule=nets.train.Cosine(
            rate=flags.rate,
            least=flags.rate / 10,
            warm_up=warm_up,
            steps=max(flags.iterations, warm_up + 1),
        ),
        optimizer="adamw",
        betas=betas,
        weight_decay=0.1,
        clip=1.0,
        evaluate_every=flags.evaluate_every,
        checkpoint_every=flags.evaluate_every,
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
    )
    part: torch.Tensor | nets.data.TokenFile = text.train
    if flags.share < 1:  # part of a token file is loaded; otherwise it stays on the disk
        count = max(flags.context + 1, int(flags.share * len(part)))
        part = part.first(count) if isinstance(part, nets.data.TokenFile) else part[:count]
    batches = nets.data.CropBatches(
        part, context=flags.context, batch=flags.crops, seed=seed, vocabulary=text.vocabulary
    )
    processes = nets.train.process_group(flags.device)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return {"test_loss": loss_on(model, text.test, flags.context, processes.device, processes)}

    return Run(net, objective, batches, config, evaluate)


# Measurements and samples
# ------------------------

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


def measured(flags: TextFlags, text: nets.data.Text, trained: Trained, seed: int) -> Record:
    """Measure losses, perplexities, motion, times, and scores of predicted texts (float32)."""
    import torch

    net, device, history = trained.model, trained.device, trained.history
    training = float(history["data"].values[-50:].mean())
    record: Record = {"training": training, "skipped": 0, "sample": ""}
    if trained.diverged:
        return record
    assert isinstance(net, nets.GPT)

    def windows(batch: int) -> Any:
        return nets.data.windows(text.test, context=flags.context, batch=batch)

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
    record["sample"] = sample(net, text, flags.sample, device, seed)
    if missing(flags.needs):
        return record
    begun, rest = nets.metrics.passages(
        text.test, beginning=flags.beginning, continuation=flags.continuation, most=flags.passages
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
            encoder=flags.encoder,
            device=str(device),
        )
        record |= {f"{kind}_{name}": getattr(scores, name) for name in SCORES}
        record["skipped"] += scores.skipped
    return record


def sample(net: nets.GPT, text: nets.data.Text, new: int, device: torch.device, seed: int) -> str:
    """Return text that the network generates after a line break."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    start = text.encode("\n")[None].to(device)
    return text.decode(net.generate(start, new, generator=generator)[0])


def samples(results: Results) -> dict[str, str]:
    """Return the texts that the first network of each model generates, as a file."""
    pieces = [f"## {name}\n{runs[0]['sample']}\n" for name, runs in results.records.items()]
    return {"samples.txt": "\n".join(pieces)}


def overfits(results: Results) -> bool:
    """Return whether the test loss of the baseline rises again after its best value."""
    return bool(np.mean(rise(results, "baseline")) > 0.02)


def rise(results: Results, name: str) -> np.ndarray:
    """Return how much the test loss of a model rises after its best value."""
    return results.values(name, "final") - results.values(name, "best")


def used(flags: TextFlags, text: nets.data.Text) -> str:
    """Return the name of the text, and how much of it is used."""
    if flags.share == 1:
        return str(text.source)
    return f"{text.source}, the first {100 * flags.share:g} % of the training part"


def scored(flags: TextFlags, results: Results, published: Published) -> str:
    """Return a table of the scores of texts and how they are measured, with published rows."""
    if missing(flags.needs):
        return (
            "No scores of texts: the packages of the extra metrics are not installed "
            f"({install('metrics')}; then give the same command with --resume)."
        )
    encoder = flags.encoder
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
        f"windows of {flags.context} tokens of the whole test part, which [OTT] scores (of random "
        f"windows). Generated: continuations of {flags.continuation} tokens of "
        f"{flags.passages} held-out beginnings of {flags.beginning}, at temperature "
        f"{TEMPERATURE:g} among the {TOP_K} likeliest. BLEU: "
        f"{nets.metrics.signature()}; ROUGE: F-measures with stemming; "
    )
    if encoder is None:
        lead += "BERTScore: not measured, it needs an encoder (--encoder)."
    else:  # of a folder two parts: more than `model`, and nothing of the machine
        parts = Path(encoder).parts
        shown = parts[-1:] if Path(encoder).is_absolute() and len(parts) < 4 else parts[-2:]
        lead += f"BERTScore: with {'/'.join(shown)}."
        if published:
            lead += (
                " [OTT] does not name its encoder: compare the order of the models, not the "
                "numbers of different encoders."
            )
    lead += f" Pairs with an empty text, skipped: {skipped}."
    return f"{lead}\n\n{markdown_table(table)}"
