"""Sentiment of film reviews with a text classifier: discrete, continuous in time, with its cost.

An encoder with layer norms behind its layers reads a review and says whether it is positive. The
baseline applies its blocks once; the continuous models let half as many blocks be the velocity of
the hidden states: all of them one system, or one system per block (`node`, the N-ODE transformer),
with four weights lam of the transport cost. Best and final test accuracy, and whether training
without the cost blows up: [OTT] section 5.3, Appendix I and Table 9.

    python studies/ott/sentiment.py --preset cpu
    torchrun --nproc-per-node 2 studies/ott/sentiment.py --preset paper --published

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import _ott as ott
import numpy as np
from _ott import claim, less, more, no_better

from wflow import nets, study
from wflow.cli import script
from wflow.study import networks
from wflow.study.frame import Verdict
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch

LAMS = (0.0, 0.001, 0.01)  # beside --lam; of [OTT] Table 9, and of [OTT1] Tables 4 and 9
FREE = "without norms"  # what the names of models end with that have no layer norms
TASK = 0.82  # test accuracy from which on a baseline has learnt the task
EVALUATION = 250  # reviews at a time
FOLLOWED = 64  # test reviews whose hidden states are followed, the longest
SHORT, LONG = 3, 24  # words of an invented review
GOOD = ("great", "moving", "funny", "superb", "charming", "brilliant", "touching", "lovely")
BAD = ("dull", "awful", "boring", "clumsy", "tedious", "weak", "painful", "silly")
OTHER = ("the", "film", "plot", "and", "actor", "scene", "was", "with", "music", "a", "story")


@dataclass(frozen=True, kw_only=True)
class Sentiment(networks.NetFlags):
    """Flags of this study."""

    torchrun: ClassVar = "batches"
    indifferent: ClassVar[frozenset[str]] = frozenset({"published", "seeds_free"})
    durations: ClassVar = {
        "smoke": "seconds",
        "cpu": "minutes a model on two cores",
        "paper": "25 hours of a GPU, 39 with --published",
    }
    presets: ClassVar = {
        "paper": {},
        # Narrower, shorter and faster: an embedding that starts ten times smaller learns at once.
        "cpu": {
            "seeds": 3, "seeds_free": 1, "epochs": 5, "context": 192, "keep": "end",
            "vocabulary": 8000, "width": 32, "heads": 2, "depth_baseline": 4, "depth": 2,
            "steps": 4, "rate": 2e-3, "embedding_std": 0.1,
        },
        "smoke": {
            "dataset": "invented", "seeds": 1, "epochs": 2, "batch": 20, "context": 24,
            "vocabulary": 300, "width": 8, "heads": 2, "depth_baseline": 2, "depth": 2, "steps": 2,
            "rate": 1e-2, "embedding_std": 0.1, "dropout": 0.0,
        },
    }  # fmt: skip
    dataset: Literal["imdb", "invented"] = "imdb"
    """Film reviews of IMDb, or short invented ones."""
    seeds: study.Count = 5
    seeds_free: study.Count = 5
    """Those of the models without layer norms, at most --seeds."""
    published: study.Switch = False
    """The habits of the published code: both halves of the data joined and split at random, with
    the reviews that are there twice; maximum over padding, too; softmax twice; all batches filled
    up to the context."""
    epochs: study.Count = 15
    """Epochs; the learning rate falls to a tenth after 12/15 of them."""
    batch: study.Count = 64
    """Reviews in a batch."""
    context: study.Count = 512
    """Tokens of a review that are read."""
    keep: Literal["beginning", "end"] = "beginning"
    """Which of them are read in a longer review."""
    vocabulary: study.Count = 16_000
    """Byte pairs that are learnt from the training reviews."""
    width: study.Count = 256
    """Width of the hidden states."""
    heads: study.Count = 8
    """Number of heads."""
    depth_baseline: study.Count = 6
    """Blocks of the baseline."""
    depth: study.Count = 3
    """Blocks of the other models."""
    steps: networks.Steps = 8
    """Steps M of the continuous models in training."""
    lam: study.Nonnegative = 0.5
    """Largest weight lam of the transport cost."""
    rate: study.Positive = 1e-4
    """Learning rate."""
    embedding_std: study.Positive = 1.0
    """Standard deviation of the embedding at the start."""
    dropout: study.Nonnegative = 0.1
    """Share of the hidden states that are dropped in training."""
    out: study.Folder = Path("results/sentiment")


class Model(NamedTuple):
    """One model of the comparison."""

    kind: ott.Kind
    lam: float = 0.0
    norms: bool = True


def models(flags: Sentiment) -> dict[str, Model]:
    """Return the models by name."""
    kinds: tuple[ott.Kind, ...] = ("node", "continuous")
    chosen = {"baseline": Model("baseline")}
    for norms, weights in ((True, (*LAMS, flags.lam)), (False, (0.0, flags.lam))):
        chosen |= {
            f"{kind} lam={lam:g}{'' if norms else f' {FREE}'}": Model(kind, lam, norms)
            for kind in kinds
            for lam in dict.fromkeys(weights)
        }
    return chosen


def seeds(flags: Sentiment) -> dict[str, int]:
    """Return the number of training runs of every model."""
    return {
        name: flags.seeds if model.norms else min(flags.seeds, flags.seeds_free)
        for name, model in models(flags).items()
    }


# Data and trainings
# ------------------


class Data(NamedTuple):
    """Reviews as token ids."""

    reviews: nets.data.Reviews
    vocabulary: int
    train: list[torch.Tensor]
    test: list[torch.Tensor]


@dataclass
class Splits:
    """The data of every seed: one split, or as published a random one for each of them."""

    flags: Sentiment
    last: dict[int, Data] = field(default_factory=dict)

    def of(self, seed: int) -> Data:
        split = seed if self.flags.published else 0
        if split not in self.last:
            self.last = {split: networks.on_rank_zero(self.flags, lambda: read(self.flags, split))}
        return self.last[split]


def read(flags: Sentiment, seed: int) -> Data:
    """Return the reviews of a seed: a random split is drawn for each, as published."""
    if flags.dataset == "invented":
        reviews = invented()
    elif flags.published:
        reviews = nets.data.imdb(folder=flags.data, split="joined", seed=seed, keep_duplicates=True)
    else:
        reviews = nets.data.imdb(folder=flags.data)
    pairs = nets.data.TrainedBytePairs(
        reviews.train_texts, flags.vocabulary, cached=flags.dataset == "imdb"
    )
    encoded = [pairs.encode_all(texts) for texts in (reviews.train_texts, reviews.test_texts)]
    return Data(reviews, pairs.vocabulary, *encoded)


def invented(count: int = 240) -> nets.data.Reviews:
    """Return short reviews of random words, some of praise or of blame: data without a file."""
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


def network(flags: Sentiment, model: Model, vocabulary: int, seed: int) -> nets.TextClassifier:
    """Return a network with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    baseline = model.kind == "baseline"
    net = nets.TextClassifier(
        vocabulary=vocabulary,
        context=flags.context,
        classes=2,
        width=flags.width,
        depth=flags.depth_baseline if baseline else flags.depth,
        heads=flags.heads,
        pooling="max with padding" if flags.published else "max",
        norm=model.norms,
        skip=model.kind != "node",  # [OTT] after eq. 13
        dropout=flags.dropout,
        form="published",
        embedding_std=flags.embedding_std,
    )
    net.body = ott.in_continuous_time(net.body, model.kind, flags.steps)
    return net


def twice(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute the cross-entropy that takes probabilities for logits, as the published code does."""
    from torch.nn import functional

    return functional.cross_entropy(logits.softmax(1), labels)


def batches(
    flags: Sentiment, data: Data, seed: int, *, test: bool = False
) -> nets.data.TextBatches:
    """Return batches for training, of about one length; or those of the test reviews."""
    return nets.data.TextBatches(
        data.test if test else data.train,
        data.reviews.test_labels if test else data.reviews.train_labels,
        batch=EVALUATION if test and len(data.test) > EVALUATION else flags.batch,
        context=flags.context, truncate="end" if flags.keep == "beginning" else "beginning",
        bucket=1 if flags.published else 32, pad_to_context=flags.published, seed=seed,
    )  # fmt: skip


def plan(flags: Sentiment, splits: Splits, model: Model, seed: int) -> Run:
    """Return the training run of one model with one seed."""
    import torch

    data = splits.of(seed)
    source = batches(flags, data, seed)
    falls = source.per_epoch * round(flags.epochs * 12 / 15)
    schedule = nets.train.StepDecay((flags.rate, flags.rate / 10), (falls,))
    loss = twice if flags.published else torch.nn.functional.cross_entropy
    return ott.training(
        flags, seed, network(flags, model, data.vocabulary, seed),
        nets.train.objective(loss, model.lam), source, schedule,
        batches(flags, data, seed, test=True).evaluation,
    )  # fmt: skip


# What was learnt
# ---------------

NUMBERS = ott.trained_texts("the longest test reviews") | {
    "training": ("training loss of the last epoch", "1"),
    "test_loss": ("test loss after the last epoch", "1"),
    "largest": ("largest norm of the gradient in any step", "1"),
    "taken": ("optimiser steps taken", "1"),
}


def measure(flags: Sentiment, splits: Splits, model: Model, training: Trained, seed: int) -> Record:
    """Return all quantities of a trained network; accuracies are those during the training."""
    history = training.history
    record: Record = {"largest": ott.steepest(history), "taken": int(history["loss"].size)}
    if training.diverged:
        return record
    epoch = len(history["loss"]) // flags.epochs
    accuracy = history["accuracy"].values
    record |= {
        "final": float(accuracy[-1]),
        "best": float(np.nanmax(accuracy)),
        "test_loss": float(history["test_loss"].values[-1]),
        "training": float(history["data"].values[-epoch:].mean()),
    }
    net, device = training.model, training.device
    *_, (tokens, _) = batches(flags, splits.of(seed), seed, test=True).evaluation()  # longest last
    tokens = tokens[-FOLLOWED:].to(device)
    there = tokens != 0
    return record | networks.motion(net.body, net.embed(tokens), valid=there, mask=there)  # type: ignore


def findings(flags: Sentiment, splits: Splits, results: Results) -> list[study.Finding]:
    """Return claims of the paper, with their verdicts."""
    weak, ours = "continuous lam=0.001", f"continuous lam={flags.lam:g}"
    node_weak, node = "node lam=0.001", f"node lam={flags.lam:g}"

    def gain(strong: str, weak: str) -> np.ndarray:
        return results.values(strong, "best") - results.values(weak, "best")

    reached, table = results.values("baseline", "final"), "[OTT] Table 9"
    found = [
        study.Finding.decided(
            f"the baseline learns the task: at least {100 * TASK:.0f} % after the last epoch",
            "set-up", f"{100 * reached.mean():.2f} %", bool(reached.mean() >= TASK),
        ),
        claim("the continuous model with transport cost is more accurate in its best epoch than "
              "the baseline, with half as many blocks", table, more(results, "best", model=ours)),
        claim("the continuous model with transport cost is more accurate in its best epoch than "
              "the N-ODE transformer with transport cost", table,
              more(results, "best", node, model=ours)),
        claim(f"lam = {flags.lam:g} makes the continuous model more accurate than lam = 0.001, in "
              "its best epoch and at the end", table,
              *(more(results, key, weak, model=ours) for key in ("best", "final"))),
        claim(f"lam = {flags.lam:g} in place of 0.001 raises the accuracy of the continuous model "
              "by more than that of the N-ODE transformer, in the best epoch", table,
              (gain(ours, weak), gain(node, node_weak))),
        no_better("the N-ODE transformers, with little cost and with much, are not more accurate "
                  "than the baseline by more than the spread over seeds, in their best epoch and "
                  "at the end", table,
                  *(more(results, key, model=name) for key in ("best", "final")
                    for name in (node_weak, node))),
        no_better("after the last epoch the continuous model with transport cost is not more "
                  "accurate than the baseline by more than the spread over seeds", table,
                  more(results, "final", model=ours)),
        claim("the transport cost raises the training loss and lowers the test loss",
              "[OTT] Figure 5", more(results, "training", weak, model=ours),
              less(results, "test_loss", weak, model=ours), unit="",
              labels=("training", "test, lower by")),
        claim("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
              less(results, "straightness", weak, model=ours), unit=""),
        *stability(results),
    ]  # fmt: skip
    return ott.with_published_conventions(found, flags)


def stability(results: Results) -> list[study.Finding]:
    """Decide whether training blows up without transport cost, and does not with it.

    With layer norms the last one bounds the velocity, whatever the weights are; [OTT] does not say
    where its continuous models have them. Both arrangements are decided.
    """
    found = []
    continuous = {name: runs for name, runs in results.records.items() if name != "baseline"}

    def count(free: bool, cost: bool) -> tuple[int, int, float]:
        runs = [
            record
            for name, records in continuous.items()
            if name.endswith(FREE) == free and ("lam=0" not in name.split()) == cost
            for record in records
        ]
        gone = sum(bool(record["diverged"]) for record in runs)
        return gone, len(runs), ott.largest(record["largest"] for record in runs)

    for free, words in ((False, "with layer norms"), (True, "without layer norms")):
        gone, of, steepest = count(free, cost=False)
        lost, others, most = count(free, cost=True)
        blown: Verdict = "confirmed" if gone == of else "confirmed in part"
        safe: Verdict = "not confirmed" if lost else "confirmed"
        if not (gone or lost):
            safe = "inconclusive"  # where nothing blows up nothing is prevented
        found += [
            study.Finding(
                f"{words}: without transport cost the continuous models blow up in every trial",
                "[OTT] Appendix I, Table 9",
                f"{gone} of {of} trainings ended in a loss that is not finite; largest gradient "
                f"{steepest:.3g}",
                blown if gone else "not confirmed",
            ),
            study.Finding(
                f"{words}: with transport cost no continuous model blows up", "[OTT] Appendix I",
                f"{lost} of {others} trainings; largest gradient {most:.3g}", safe,
            ),
        ]  # fmt: skip
    return found


# Tables and figures
# ------------------


def report(flags: Sentiment, splits: Splits, results: Results) -> str:
    """Return the table, beside the published one."""
    names, published = list(results.records), ott.PUBLISHED["Table 9"]
    column, listed, data = partial(networks.column, results), models(flags), splits.of(0)
    sizes = [
        ott.parameters(network(flags, listed[name], data.vocabulary, 0).body) for name in names
    ]
    runs = results.records.values()
    table = {
        "model": names,
        "parameters of the blocks": [ott.millions(size) for size in sizes],
        **ott.accuracies(results, published),
        "training loss": column("training", ".3f"),
        "test loss": column("test_loss", ".3f"),
        "largest gradient": [f"{max(record['largest'] for record in found):.3g}" for found in runs],
        "diverged": [
            f"{sum(record['diverged'] for record in found)} of {len(found)}" for found in runs
        ],
        **ott.motions(results),
        "training (s)": column("seconds", ".0f"),
    }
    lead = (
        f"{networks.caption(flags, flags.seeds, results, data.reviews.source)} Adam, a tenth of "
        "the rate in the last fifth of the epochs; T = 1, Euler steps; the vocabulary was learnt "
        "from the training reviews. Accuracies are those after each epoch, losses those of the "
        "last; the largest gradient is that of all steps and seeds. Hidden states are those of the "
        f"{FOLLOWED} longest test reviews. Models {FREE} have no layer norms in their blocks: "
        "nothing bounds their velocity."
    )
    if flags.dataset != "imdb":  # other reviews have no published values
        table = networks.unpublished(table)
    return "\n\n".join((lead, study.markdown_table(table)))


EXPERIMENT = networks.Experiment(
    name="sentiment", models=models, seeds=seeds, load=Splits, plan=plan, measure=measure,
    numbers=NUMBERS, text=report, findings=findings,
    figures=lambda _, results: ott.learning_curves(results, "test_loss", "accuracy"),
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(Sentiment, __doc__))


if __name__ == "__main__":
    script(main)
