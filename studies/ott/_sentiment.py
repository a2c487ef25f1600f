"""Networks, trainings and tables of the study `sentiment`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from _ott import (
    Kind,
    classified,
    in_continuous_time,
    millions,
    parameters,
    per_epoch,
    percent,
    steepest,
)

from wflow import nets, study
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch

LAMS = (0.0, 0.001)  # beside that of the set-up
FREE = "without norms"  # what the names of models end with that have no layer norms
# [OTT] Table 9: best and final test accuracy in per cent; those of lam = 0 are NaN there.
PUBLISHED = {
    "baseline": ("83.9 ± 0.26", "83.7 ± 0.21"),
    "node lam=0.001": ("83.6 ± 0.40", "83.4 ± 0.40"),
    "node lam=0.5": ("83.9 ± 0.48", "83.5 ± 0.84"),
    "continuous lam=0.001": ("82.7 ± 0.38", "82.1 ± 0.89"),
    "continuous lam=0.5": ("84.6 ± 0.55", "83.7 ± 0.86"),
}
PUBLISHED |= dict.fromkeys(("node lam=0", "continuous lam=0"), ("NaN", "NaN"))
EVALUATION = 250  # reviews at a time
FOLLOWED = 64  # test reviews whose hidden states are followed, the longest
SHORT, LONG = 3, 24  # words of an invented review
GOOD = ("great", "moving", "funny", "superb", "charming", "brilliant", "touching", "lovely")
BAD = ("dull", "awful", "boring", "clumsy", "tedious", "weak", "painful", "silly")
OTHER = ("the", "film", "plot", "and", "actor", "scene", "was", "with", "music", "a", "story")


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    dataset: str = "imdb"
    seeds: int = 5
    seeds_free: int = 5  # of the models without layer norms, at most `seeds`
    epochs: int = 15
    batch: int = 64
    context: int = 512
    keep: Literal["beginning", "end"] = "beginning"
    vocabulary: int = 16_000
    width: int = 256
    heads: int = 8
    depth_baseline: int = 6
    depth: int = 3
    steps: int = 8
    lam: float = 0.5
    rate: float = 1e-4
    embedding_std: float = 1.0
    dropout: float = 0.1


class Model(NamedTuple):
    """One model of the comparison."""

    kind: Kind
    lam: float
    norms: bool = True


class Data(NamedTuple):
    """Reviews as token ids."""

    reviews: nets.data.Reviews
    vocabulary: int
    train: list[torch.Tensor]
    test: list[torch.Tensor]


def models(setup: Setup) -> dict[str, Model]:
    """The models by name."""
    kinds: tuple[Kind, ...] = ("node", "continuous")
    chosen = {"baseline": Model("baseline", 0.0)}
    for norms, weights in ((True, (*LAMS, setup.lam)), (False, (0.0, setup.lam))):
        chosen |= {
            f"{kind} lam={lam:g}{'' if norms else f' {FREE}'}": Model(kind, lam, norms)
            for kind in kinds
            for lam in dict.fromkeys(weights)
        }
    return chosen


def seeds(setup: Setup) -> dict[str, int]:
    """Training runs of every model."""
    return {
        name: setup.seeds if model.norms else min(setup.seeds, setup.seeds_free)
        for name, model in models(setup).items()
    }


def network(model: Model, setup: Setup, vocabulary: int, published: bool, seed: int) -> Any:
    """A network with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    baseline = model.kind == "baseline"
    net = nets.TextClassifier(
        vocabulary=vocabulary,
        context=setup.context,
        classes=2,
        width=setup.width,
        depth=setup.depth_baseline if baseline else setup.depth,
        heads=setup.heads,
        pooling="max with padding" if published else "max",
        norm=model.norms,
        skip=model.kind != "node",  # [OTT] after eq. 13
        dropout=setup.dropout,
        form="published",
        embedding_std=setup.embedding_std,
    )
    net.body = in_continuous_time(net.body, model.kind, setup.steps)
    return net


def twice(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy that takes probabilities for logits, as the published code does."""
    from torch.nn import functional

    return functional.cross_entropy(logits.softmax(1), labels)


def load(setup: Setup, flags: Any, seed: int) -> Data:
    """The reviews of a seed: a random split is drawn for each, as published."""
    if setup.dataset == "invented":
        reviews = invented()
    elif flags.published:
        reviews = nets.data.imdb(folder=flags.data, split="joined", seed=seed, keep_duplicates=True)
    else:
        reviews = nets.data.imdb(folder=flags.data)
    pairs = nets.data.TrainedBytePairs(
        reviews.train_texts, setup.vocabulary, cached=setup.dataset == "imdb"
    )
    encoded = [pairs.encode_all(texts) for texts in (reviews.train_texts, reviews.test_texts)]
    return Data(reviews, pairs.vocabulary, *encoded)


def invented(count: int = 240) -> nets.data.Reviews:
    """Short reviews of random words, some of praise or of blame: data that needs no file."""
    import torch

    draw = np.random.default_rng(0)

    def one(label: int) -> str:
        size = int(draw.integers(SHORT, LONG))
        words = draw.choice(OTHER, size).tolist()
        for place in draw.choice(size, 2, replace=False):
            words[place] = str(draw.choice(GOOD if label else BAD))
        return " ".join(words)

    labels = draw.integers(0, 2, count)
    texts = tuple(one(int(label)) for label in labels)
    half, kinds = count // 2, torch.from_numpy(labels)
    source = f"invented reviews: {half} for training, {count - half} for tests"
    return nets.data.Reviews(texts[:half], kinds[:half], texts[half:], kinds[half:], source)


def batches(setup: Setup, data: Data, published: bool, seed: int, *, test: bool = False) -> Any:
    """Batches for training, of about one length; or those of the test reviews."""
    return nets.data.TextBatches(
        data.test if test else data.train,
        data.reviews.test_labels if test else data.reviews.train_labels,
        batch=EVALUATION if test and len(data.test) > EVALUATION else setup.batch,
        context=setup.context,
        truncate="end" if setup.keep == "beginning" else "beginning",
        bucket=1 if published else 32,
        pad_to_context=published,
        seed=seed,
    )


def plan(model: Model, setup: Setup, data: Data, flags: Any, seed: int) -> Run:
    """The training run of one model with one seed."""
    import torch

    source = batches(setup, data, flags.published, seed)
    epoch = source.per_epoch
    schedule = nets.train.StepDecay(
        (setup.rate, setup.rate / 10), (epoch * round(setup.epochs * 12 / 15),)
    )
    team = nets.train.team(flags.device)
    tests = batches(setup, data, flags.published, seed, test=True)

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        return classified(net, tests.evaluation(), team.device, team)

    return Run(
        network(model, setup, data.vocabulary, flags.published, seed),
        nets.train.objective(
            twice if flags.published else torch.nn.functional.cross_entropy, model.lam
        ),
        source,
        per_epoch(setup, flags, seed, epoch, schedule),
        evaluate,
    )


def examine(name: str, trained: Trained, setup: Setup, data: Data, flags: Any, seed: int) -> Record:
    """All quantities of a trained network, from the file in its folder where it has them."""
    return networks.cached_record(
        networks.folder_of(flags.out, name, seed),
        [data.reviews.source, asdict(replace(setup, seeds=0, seeds_free=0)), flags.published],
        trained,
        lambda: measured(trained, setup, data, flags, seed),
    )


def measured(training: Trained, setup: Setup, data: Data, flags: Any, seed: int) -> Record:
    """All quantities of a trained network; accuracies are those of the evaluations on the way."""
    history = training.history
    record: Record = dict.fromkeys(
        ("final", "best", "test_loss", "training", *networks.MOTION), math.nan
    )
    record |= {
        "seconds": float(history["seconds"].sum()),
        "largest": steepest(history),
        "taken": int(history["loss"].size),
    }
    if training.diverged:
        return record
    epoch = len(history["loss"]) // setup.epochs
    accuracy = history["accuracy"].values
    record |= {
        "final": float(accuracy[-1]),
        "best": float(np.nanmax(accuracy)),
        "test_loss": float(history["test_loss"].values[-1]),
        "training": float(history["data"].values[-epoch:].mean()),
    }
    net, device = training.model, training.device
    *_, (tokens, _) = longest(setup, data, flags, seed)
    tokens = tokens[-FOLLOWED:].to(device)
    there = tokens != 0
    return record | networks.motion(net.body, net.embed(tokens), valid=there, mask=there)  # type: ignore


def longest(setup: Setup, data: Data, flags: Any, seed: int) -> Iterator[tuple[Any, Any]]:
    """Test reviews, the longest last: those that fill the context have no padding."""
    return batches(setup, data, flags.published, seed, test=True).evaluation()  # type: ignore


def report(
    flags: Any, setup: Setup, data: Data, listed: Mapping[str, Model], results: Results
) -> str:
    """The table, beside the published one."""
    names = list(results.records)
    nothing = ("–", "–")

    column = partial(networks.column, results)

    sizes = [
        parameters(network(listed[name], setup, data.vocabulary, flags.published, 0).body)
        for name in names
    ]
    published = {
        name: float(values[0].split()[0])
        for name, values in PUBLISHED.items()
        if values[0] != "NaN"
    }
    runs = results.records.values()
    table = {
        "model": names,
        "parameters of the blocks": [millions(size) for size in sizes],
        "best test accuracy (%)": column("best", percent),
        "published best (%)": [PUBLISHED.get(name, nothing)[0] for name in names],
        "difference": networks.differences(results, "best", published, "+.1f", 100),
        "final test accuracy (%)": column("final", percent),
        "published final (%)": [PUBLISHED.get(name, nothing)[1] for name in names],
        "training loss": column("training", ".3f"),
        "test loss": column("test_loss", ".3f"),
        "largest gradient": [f"{max(record['largest'] for record in found):.3g}" for found in runs],
        "diverged": [
            f"{sum(record['diverged'] for record in found)} of {len(found)}" for found in runs
        ],
        "arc over chord": column("straightness", ".3f"),
        "transport cost": column("transport", ".3g"),
        "training (s)": column("seconds", ".0f"),
    }
    lead = (
        f"{networks.caption(flags, setup.seeds, results, data.reviews.source)} {setup.epochs} "
        f"epochs, batch {setup.batch}, Adam with the rate {setup.rate:g}, a tenth of it in the "
        f"last fifth; width {setup.width}, {setup.heads} heads, {setup.depth_baseline} blocks "
        f"(baseline) or {setup.depth}, T = 1, {setup.steps} Euler steps; {setup.context} byte "
        f"pairs at the {setup.keep} of a review, of {data.vocabulary:,} that were learnt from the "
        f"training reviews. Accuracies are those after each epoch, losses those of the last; the "
        f"largest gradient is that of all steps and seeds. Hidden states are those of the "
        f"{FOLLOWED} longest test reviews."
    )
    if any(name.endswith(FREE) for name in names):
        lead += (
            f" Models {FREE} have no layer norms in their blocks: nothing bounds their velocity."
        )
    if flags.published:
        lead += (
            " As in the published code: both halves joined and split at random for each seed, "
            "maximum over padding too, softmax twice."
        )
    if setup.dataset == "imdb":
        lead += (
            " Published: width 256, 8 heads, 6 blocks or 3, 8 steps, 512 tokens, 15 epochs, rate "
            "1e-4, 5 seeds, on a random 40,000 and 10,000 of all reviews."
        )
    else:
        table = networks.unpublished(table)
    return "\n\n".join((lead, study.markdown_table(table)))
