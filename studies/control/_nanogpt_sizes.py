"""Networks, trainings, measurements and tables of the study `nanogpt_sizes`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from _small_gpts import SIZES, Scale, gpt, window_set

from wflow import InputError, nets, study
from wflow._core.extras import install, missing
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained
from wflow.study.texts import EVALUATION, NextToken, loss_on

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

EARLY = 500  # iterations: [GPTOC] section 5.1
SHIFTS = 5  # passages of the text itself that are scored in place of generated ones
SHOWN = 3  # passages of each network in samples.txt
# [GPTOC] Table 1, of one size that the report does not name: BLEU in per cent, seconds.
PUBLISHED = {"Python": (12.0, 116.2), "Julia": (2.9, 542.5)}
PUBLISHED_LINES = 167_205  # [GPTOC] section 2.1.1
PUBLISHED_CHARACTERS = 70  # [GPTOC] section 2.1.2
METHODS = {
    "bleu": "continuation",
    "bleu_any": "any passage",
    "bleu_next": "next tokens",
}


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    text: str = "shakespeare"
    tokens: tuple[str, ...] = ("characters", "byte pairs")
    sizes: Mapping[str, Scale] = field(default_factory=lambda: SIZES)
    dropout: float = 0.2
    rate: float = 0.01
    epochs: int = 20
    seeds: int = 5
    passages: int = 100
    beginning: int = 20  # words
    words: int = 40
    temperature: float = 0.8  # this and top_k as sample.py of nanoGPT has them
    top_k: int = 200


PRESETS = {
    "paper": Setup(),
    "cpu": Setup(seeds=2),  # the published sizes are of a size for two cores
    "smoke": Setup(
        text="embedded", tokens=("characters",), epochs=1, seeds=1, passages=4, beginning=8,
        words=6, top_k=20, sizes={"S": Scale(4, 16, 32, 1, 1, 10), "M": Scale(8, 32, 32, 1, 2, 10),
                                  "L": Scale(12, 32, 32, 2, 2, 10)},
    ),
}  # fmt: skip


def models(setup: Setup) -> dict[str, tuple[Scale, str]]:
    """Size and tokens of every model by its name."""
    return {
        f"{name} {kind}": (size, kind)
        for kind in setup.tokens
        for name, size in setup.sizes.items()
    }


# Texts
# -----


class Corpus(NamedTuple):
    """A text, and passages of its test part that networks continue."""

    text: nets.data.Text
    characters: int  # of the test part
    lines: int  # of the whole text
    frequencies: float  # test loss of the frequencies of tokens alone
    beginnings: Tensor  # (passages, tokens)
    continuations: list[str]  # words with one space between them
    new: int  # tokens to generate, some more than the longest continuation has


def load(setup: Setup, kind: str, folder: str | None) -> Corpus:
    """The text in tokens of a kind; byte pairs with the vocabulary of those that occur."""
    if setup.text == "embedded":
        text = nets.data.embedded_text()
    elif kind == "characters":
        text = nets.data.shakespeare(tokens="characters", folder=folder)
    else:
        text = nets.data.shakespeare(tokens="gpt2", folder=folder).compact()
    test = text.decode(text.test)
    beginnings, longest, continuations = passages(text, test, setup)
    return Corpus(
        text=text,
        characters=len(test),
        lines=text.decode(text.train).count("\n") + test.count("\n"),
        frequencies=frequency_loss(text),
        beginnings=beginnings,
        continuations=continuations,
        new=math.ceil(1.25 * longest),
    )


def passages(text: nets.data.Text, test: str, setup: Setup) -> tuple[Tensor, int, list[str]]:
    """Beginnings (passages, tokens), tokens of the longest continuation, continuations.

    Passages do not overlap and are spread evenly over the test part. Beginnings end with a whole
    word, and are cut on the left to the number of tokens of the shortest.
    """
    import torch

    # White space before a word belongs to it, so that it has the byte pairs that it has in place.
    pieces = re.findall(r"\s*\S+", test)
    each = setup.beginning + setup.words
    found = len(pieces) // each
    if found < 2:
        raise InputError(
            f"the test part has {len(pieces)} words: expected at least {2 * each}, two passages of "
            f"{setup.beginning} + {setup.words}"
        )
    places = np.linspace(0, found - 1, min(found, setup.passages)).astype(int) * each
    begun = [text.encode("".join(pieces[k : k + setup.beginning])) for k in places]
    rest = ["".join(pieces[k + setup.beginning : k + each]) for k in places]
    shortest = min(len(tokens) for tokens in begun)
    longest = max(len(text.encode(words)) for words in rest)
    beginnings = torch.stack([tokens[-shortest:] for tokens in begun])
    return beginnings, longest, [plain(words) for words in rest]


def frequency_loss(text: nets.data.Text) -> float:
    """Test loss of the frequencies of the training part, each token counted once more."""
    counts = text.train.bincount(minlength=text.vocabulary).double() + 1
    return float(-(counts / counts.sum()).log()[text.test].mean())


# Networks
# --------


def network(size: Scale, setup: Setup, vocabulary: int, seed: int) -> nets.GPT:
    """A network with weights drawn from its seed."""
    return gpt(size, setup.dropout, vocabulary, seed)


def iterations(size: Scale, setup: Setup, text: nets.data.Text) -> int:
    """Steps of the training: whole batches of windows that do not overlap, in every epoch."""
    return setup.epochs * ((len(text.train) - 1) // size.context // size.batch)


def plan(size: Scale, setup: Setup, text: nets.data.Text, flags: Any, seed: int) -> Run:
    """The training of one network with one seed: Adam at a constant rate."""
    steps = iterations(size, setup, text)
    config = nets.train.TrainConfig(
        steps=steps,
        batch=size.batch,
        schedule=nets.train.Constant(setup.rate),
        evaluate_every=size.evaluate_every,
        checkpoint_every=max(size.evaluate_every, steps // 20),
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
    )
    device = nets.train.device(flags.device)

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        return {"test_loss": loss_on(net, text.test, size.context, device)}

    net, data = network(size, setup, text.vocabulary, seed), window_set(text, size.context)
    return Run(net, NextToken(), data, config, evaluate)


# Measurements
# ------------


def examine(
    name: str, training: Trained, setup: Setup, corpus: Corpus, out: Path, seed: int
) -> Record:
    """All quantities of a trained network, kept beside its checkpoint."""
    size, _ = models(setup)[name]
    setting = [asdict(setup) | {"seeds": None}, corpus.text.source, metric()]
    folder = networks.folder_of(out, name, seed)
    return networks.cached_record(
        folder, setting, training, lambda: measured(training, size, setup, corpus, seed)
    )


SCALARS = {
    "test": ("test loss per token after the last iteration", "1"),
    "best": ("least test loss of any evaluation", "1"),
    "train": ("loss of the first training tokens, as many as test tokens, without dropout", "1"),
    "bits": ("bits per character of the test part", "1"),
    "bleu": ("BLEU of continuations against the held-out continuation", "%"),
    "bleu_any": ("BLEU of continuations against all other held-out passages", "%"),
    "bleu_next": ("BLEU of the likeliest next tokens, given the true ones before", "%"),
    "early_train": (f"share of the fall of the training loss in {EARLY} iterations", "1"),
    "early_test": (f"share of the fall of the test loss in {EARLY} iterations", "1"),
    "late": ("change of the test loss in the last quarter over its whole fall", "1"),
    "seconds": ("time of all iterations", "s"),
    "milliseconds": ("median time of an iteration", "ms"),
    "iterations": ("iterations", "1"),
}  # fmt: skip


def measured(training: Trained, size: Scale, setup: Setup, corpus: Corpus, seed: int) -> Record:
    """Losses, BLEU and times of one training."""
    net, device, history, text = training.model, training.device, training.history, corpus.text
    record: Record = dict.fromkeys(SCALARS, math.nan)
    record |= {
        "seconds": float(history["seconds"].sum()),
        "milliseconds": 1e3 * float(np.median(history["seconds"].values)),
        "iterations": history.sizes["step"],
        "device": str(history.attrs["devices"]),
        "samples": [],
    }
    if training.diverged:
        return record
    assert isinstance(net, nets.GPT)
    test = loss_on(net, text.test, size.context, device)
    targets = len(text.test) - 1
    record |= {
        "test": test,
        "best": min(test, float(history["test_loss"].min())),
        "train": loss_on(net, text.train[: len(text.test)], size.context, device),
        "bits": test * targets / corpus.characters / math.log(2),
    }
    record |= falls(history["data"].values, history["evaluation"].values,
                    history["test_loss"].values)  # fmt: skip
    written = continued(net, corpus, setup, device, seed)
    record["samples"] = written[:SHOWN]
    if metric():
        others = corpus.continuations
        record |= {
            "bleu": bleu(written, [others]),
            "bleu_any": bleu(written, without_own(others)),
            "bleu_next": bleu(*likeliest(net, text, size.context)),
        }
    return record


def falls(losses: np.ndarray, places: np.ndarray, tests: np.ndarray) -> Record:
    """How much of the fall of a loss comes early, and how much in the last quarter."""
    steps = len(losses)
    late = tests[np.searchsorted(places, 0.75 * steps)] - tests[-1]
    found: Record = {"late": abs(late) / (tests[0] - tests[-1])}
    if steps > EARLY:
        window = slice(EARLY - 25, EARLY + 25)
        early = losses[0] - losses[window].mean(), losses[0] - losses[-50:].mean()
        found["early_train"] = early[0] / early[1]
        at = tests[np.searchsorted(places, EARLY)]
        found["early_test"] = (tests[0] - at) / (tests[0] - tests[-1])
    return {key: float(value) for key, value in found.items()}


def continued(
    net: nets.GPT, corpus: Corpus, setup: Setup, device: torch.device, seed: int
) -> list[str]:
    """Continuations of all beginnings, of as many words as the held-out ones have."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    start = corpus.beginnings.to(device)
    tokens = net.generate(
        start, corpus.new, temperature=setup.temperature, top_k=setup.top_k, generator=generator
    )[:, start.shape[1] :]
    return [plain(corpus.text.decode(row.cpu()), setup.words) for row in tokens]


def likeliest(
    net: nets.GPT, text: nets.data.Text, context: int
) -> tuple[list[str], list[list[str]]]:
    """The likeliest token after each token of the test part, and the tokens that came, as text."""
    windows = nets.data.windows(text.test, context=context, batch=EVALUATION)
    found, came = (
        [plain(text.decode(row)) for row in rows]
        for rows in nets.metrics.teacher_forced(net, windows)
    )
    return found, [came]


def plain(text: str, most: int | None = None) -> str:
    """The first words of a text, with one space between them."""
    return " ".join(text.split()[:most])


# BLEU
# ----


def metric() -> str | None:
    """What sacrebleu measures, and its version; None where it is not installed."""
    if missing({"sacrebleu": "metrics"}):
        return None
    return nets.metrics.signature("13a")


def bleu(written: list[str], references: list[list[str]]) -> float:
    """BLEU of a corpus in per cent; each list of references has one text for each that is written.

    Tokens are those of `13a`, case counts, and orders without a match are smoothed: the defaults of
    sacrebleu (Post 2018).
    """
    return nets.metrics.bleu(written, *references, words="13a")


def without_own(texts: list[str]) -> list[list[str]]:
    """For each text all others, as lists of references."""
    count = len(texts)
    return [[texts[(k + shift) % count] for k in range(count)] for shift in range(1, count)]


def floor(texts: list[str]) -> dict[str, list[float]]:
    """BLEU of held-out passages themselves, each in the place of another's continuation."""
    if not metric():
        return {"bleu": [math.nan], "bleu_any": [math.nan]}
    others = without_own(texts)
    return {
        "bleu": [bleu(shifted, [texts]) for shifted in others[:SHIFTS]],
        "bleu_any": [bleu(texts, others)],
    }


# Tables and figures
# ------------------


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return networks.dataset(results, SCALARS, {}, {})


def report(
    flags: Any,
    setup: Setup,
    corpora: Mapping[str, Corpus],
    results: Results,
    real: Mapping[str, list[float]],
) -> str:
    """What was done, and the table beside `real` (of `floor`) and the published numbers."""
    names, listed = list(results.records), models(setup)

    column = partial(networks.column, results)

    def counted(name: str) -> str:
        size, kind = listed[name]
        count = network(size, setup, corpora[kind].text.vocabulary, 0).count(positions=True)
        return f"{count:,}"

    table = {
        "model": names,
        "parameters": [counted(name) for name in names],
        "iterations": [f"{results.records[name][0]['iterations']:,}" for name in names],
        "train loss": column("train", ".3f"),
        "test loss": column("test", ".3f"),
        "best test loss": column("best", ".3f"),
        "bits per character": column("bits", ".3f"),
        "BLEU, %": column("bleu", ".2f"),
        "against any passage": column("bleu_any", ".2f"),
        "of next tokens": column("bleu_next", ".2f"),
        "seconds": column("seconds", ".0f"),
        "ms per iteration": column("milliseconds", ".1f"),
        "device": ["; ".join(dict.fromkeys(r["device"] for r in results.records[name]))
                   for name in names],
    }  # fmt: skip

    def add(name: str, **cells: str) -> None:
        for title, values in table.items():
            values.append(name if title == "model" else cells.get(title, "–"))

    scores = {key: networks.mean_and_spread(found, "{:.2f}".format) for key, found in real.items()}
    add(
        "Shakespeare, another passage",
        **{"BLEU, %": scores["bleu"], "against any passage": scores["bleu_any"]},
    )
    if setup.text == "shakespeare":
        for name, (score, seconds) in PUBLISHED.items():
            add(f"published, {name}", **{"BLEU, %": f"{score:g}", "seconds": f"{seconds:g}"})
    return "\n\n".join([lead(flags, setup, corpora, results), study.markdown_table(table)])


def lead(flags: Any, setup: Setup, corpora: Mapping[str, Corpus], results: Results) -> str:
    """Data, settings and methods, in words."""
    first = next(iter(corpora.values()))
    sources = "; ".join(corpus.text.source for corpus in corpora.values())
    sizes = ", ".join(
        f"{name} {size.width} / {size.context} / {size.batch} / {size.depth} / {size.heads}"
        for name, size in setup.sizes.items()
    )
    alone = ", ".join(f"{corpus.frequencies:.3f} ({kind})" for kind, corpus in corpora.items())
    taken = " and ".join(f"{corpus.beginnings.shape[1]} {kind}" for kind, corpus in corpora.items())
    parts = [
        networks.caption(flags, setup.seeds, results, sources),
        f"Width / context / batch / blocks / heads: {sizes}; feed-forward layers four times as "
        f"wide, dropout {setup.dropout:g}, Adam at a constant rate of {setup.rate:g}, "
        f"{setup.epochs} epoch{'s' if setup.epochs > 1 else ''} of windows that do not overlap. "
        "The train loss is that of the first training tokens, as many as there are test tokens, "
        f"without dropout. Frequencies of tokens alone have the test loss {alone}. Seconds are "
        "those of the iterations, without evaluations.",
        f"BLEU: {len(first.continuations)} passages of the test part, evenly spread; the network "
        f"sees {setup.beginning} words (their last {taken}) and continues them at temperature "
        f"{setup.temperature:g} among the {setup.top_k} likeliest tokens, as sample.py of nanoGPT "
        f"does; its first {setup.words} words are compared with the {setup.words} that follow in "
        "the text, or with those of all other passages (any passage). Next tokens: the likeliest "
        "token after each of the true ones, window by window. Another passage: words of "
        "Shakespeare in the place of generated ones, against a continuation that is not theirs.",
    ]
    signature = metric()
    parts.append(
        f"Sacrebleu: {signature}."
        if signature
        else f"No BLEU: sacrebleu is not installed ({install('metrics')}; then give the same "
        "command with --resume)."
    )
    if setup.text == "shakespeare":
        parts.append(
            "The report does not say of which size, tokens and machine its numbers are, nor how "
            "BLEU was measured."
        )
    return " ".join(parts)


def samples(corpora: Mapping[str, Corpus], setup: Setup, results: Results) -> str:
    """Beginnings, what was generated with seed 0, and what follows in the text."""
    pieces = []
    for name, runs in results.records.items():
        corpus = corpora[models(setup)[name][1]]
        pieces.append(f"## {name}\n")
        for k, written in enumerate(runs[0]["samples"]):
            begun = plain(corpus.text.decode(corpus.beginnings[k]))
            pieces.append(
                f"begins: {begun}\ngenerated: {written}\nheld out: {corpus.continuations[k]}\n"
            )
    return "\n".join(pieces)


def figures(setup: Setup, results: Results) -> dict[str, Figure]:
    """Losses by epochs for each kind of tokens, and BLEU by size."""
    from wflow.plots.networks import Line, learning_curves, lines

    listed, drawn = models(setup), {}
    for kind in setup.tokens:
        curves = {
            name.split()[0]: [
                history.assign_coords(
                    {
                        dim: history[dim] * setup.epochs / max(1, history.sizes["step"])
                        for dim in ("step", "evaluation")
                    }
                )
                for history in histories
            ]
            for name, histories in results.histories.items()
            if listed[name][1] == kind
        }
        if not curves:
            continue
        labels = {"data": "training loss, with dropout", "test_loss": "test loss"}
        figure = learning_curves(curves, labels)
        for axis in figure.axes:
            axis.set_xlabel("Epoch")
        drawn[f"losses_{kind.replace(' ', '_')}"] = figure
    panels = {}
    for kind in setup.tokens:
        names = [name for name in results.records if listed[name][1] == kind]
        widths = [listed[name][0].width for name in names]
        found = []
        for key, label in METHODS.items():
            scores = [[record[key] for record in results.records[name]] for name in names]
            found.append(Line(label, widths, np.transpose(scores).tolist()))
        if len(names) > 1 and np.isfinite([line.y for line in found]).all():
            panels[kind] = ("Width of the network", found)
    if panels:
        drawn["bleu"] = lines(panels, "BLEU (%)")
    return drawn
