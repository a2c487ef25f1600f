"""GPTs of three small sizes on tiny Shakespeare: losses, BLEU of generated text, and times.

The sizes S, M and L of the report (width 16, 32, 64; 1, 2, 4 blocks) learn characters, and the byte
pairs of GPT-2, in 20 epochs at the published learning rate. Generated continuations of held-out
beginnings are compared with the held-out text by BLEU, in three ways, beside the published 12 %
(Python) and 2.9 % (Julia), 116 s and 542 s: [GPTOC] sections 3.2.4 and 5.1.

The published sizes fit two cores, so the preset cpu has them too: it differs from paper in the
number of seeds, 2 in place of 5. BLEU needs the package sacrebleu; without it everything else is
measured.

    python studies/control/nanogpt_sizes.py
    python studies/control/nanogpt_sizes.py --only "S characters" "S byte pairs" --seeds 1
    torchrun --nproc-per-node 2 studies/control/nanogpt_sizes.py --preset paper

[GPTOC] Croizet, De Vos, Hajem, Basso, Guerafi, Wu, "GPT Project Part 1 Report", 2025.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from _control import FloatArray, Pair, config, window_set

from wflow import InputError, nets, study
from wflow._core.extras import install, missing
from wflow.cli import script
from wflow.study import Finding, networks
from wflow.study.networks import Record, Results, Run, Trained, claim
from wflow.study.texts import EVALUATION, NextToken, loss_on

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PRINTED = Path(__file__).parents[1] / "published" / "gptoc.json"
PUBLISHED: dict[str, Any] = json.loads(PRINTED.read_text(encoding="utf-8"))
EARLY = 500  # iterations: [GPTOC] section 5.1
SHIFTS = 5  # passages of the text itself that are scored in place of generated ones
SHOWN = 3  # passages of each network in samples.txt
NEGLIGIBLE = 0.02  # rise of a test loss that is no overfitting
SETTLED = 0.05  # of the whole fall, in the last quarter
AROUND = 0.1  # relative difference from a number said to be about another
METHODS = {"bleu": "continuation", "bleu_any": "any passage", "bleu_next": "next tokens"}


class Scale(NamedTuple):
    """Sizes of a network, and of its batches."""

    width: int
    context: int
    batch: int
    depth: int
    heads: int
    evaluate_every: int  # divides EARLY


SIZES = {
    "published": {  # [GPTOC] section 3.2.4; feed-forward layers are four times as wide, as in GPT
        "S": Scale(16, 64, 16, 1, 2, 250),
        "M": Scale(32, 128, 32, 2, 4, 100),
        "L": Scale(64, 256, 64, 4, 8, 50),
    },
    "tiny": {
        "S": Scale(4, 16, 32, 1, 1, 10),
        "M": Scale(8, 32, 32, 1, 2, 10),
        "L": Scale(12, 32, 32, 2, 2, 10),
    },
}
TOKENS = {"shakespeare": ("characters", "byte pairs"), "embedded": ("characters",)}
Model = tuple[Scale, str]  # size, and kind of tokens


@dataclass(frozen=True, kw_only=True)
class NanogptSizes(networks.NetFlags):
    """Flags of this study."""

    torchrun: ClassVar = "batches"
    needs: ClassVar[dict[str, str]] = networks.NEEDS | {"sacrebleu": "metrics"}
    durations: ClassVar = {
        "smoke": "seconds",
        "cpu": "up to two hours a training on a core",
        "paper": "half a minute of a GPU",
    }
    presets: ClassVar = {
        "paper": {},
        "cpu": {"seeds": 2},  # the published sizes are of a size for two cores
        "smoke": {
            "text": "embedded", "sizes": "tiny", "epochs": 1, "seeds": 1, "passages": 4,
            "beginning": 8, "words": 6, "top_k": 20,
        },
    }  # fmt: skip
    text: Literal["shakespeare", "embedded"] = "shakespeare"
    """Tiny Shakespeare in characters and byte pairs, or characters of the text of wflow."""
    sizes: Literal["published", "tiny"] = "published"
    """Sizes S, M and L of the report, or tiny ones."""
    dropout: study.Nonnegative = 0.2
    """Rate of dropout, below 1."""
    rate: study.Positive = 0.01
    """Learning rate, constant."""
    epochs: study.Count = 20
    """Passes through the training text."""
    seeds: study.Count = 5
    passages: study.Count = 100
    """Passages of the test part whose beginnings the networks continue."""
    beginning: study.Count = 20
    """Words of a beginning."""
    words: study.Count = 40
    """Words of a continuation."""
    temperature: study.Nonnegative = 0.8
    """Temperature at which text is generated, as in sample.py of nanoGPT; 0 takes the likeliest
    tokens."""
    top_k: study.Count = 200
    """Likeliest tokens among which the next one is drawn, as in sample.py of nanoGPT."""
    out: study.Folder = Path("results/nanogpt_sizes")


def models(flags: NanogptSizes) -> dict[str, Model]:
    """Return the size and tokens of every model by its name."""
    sizes = SIZES[flags.sizes].items()
    return {f"{name} {kind}": (size, kind) for kind in TOKENS[flags.text] for name, size in sizes}


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


class Corpora(NamedTuple):
    """The text in each kind of tokens, and BLEU of its passages themselves."""

    of: dict[str, Corpus]
    floor: dict[str, list[float]]

    @property
    def first(self) -> Corpus:
        """The text in the first kind of tokens."""
        return next(iter(self.of.values()))

    @property
    def source(self) -> str | None:
        """How BLEU is measured: what was missing is measured when the study is resumed."""
        return metric()


def load(flags: NanogptSizes) -> Corpora:
    """Return the text in the kinds of tokens of the networks that are trained."""
    every = models(flags)
    kinds = dict.fromkeys(every[name][1] for name in networks.chosen(every, flags.seeds, flags))
    found = {kind: corpus(flags, kind) for kind in kinds}
    return Corpora(found, floor(next(iter(found.values())).continuations))


def corpus(flags: NanogptSizes, kind: str) -> Corpus:
    """Return the text in tokens of a kind; byte pairs with the vocabulary of those that occur."""
    if flags.text == "embedded":
        text = nets.data.embedded_text()
    elif kind == "characters":
        text = nets.data.shakespeare(tokens="characters", folder=flags.data)
    else:
        text = nets.data.shakespeare(tokens="gpt2", folder=flags.data).compact()
    test = text.decode(text.test)
    beginnings, longest, continuations = passages(flags, text, test)
    return Corpus(
        text=text, characters=len(test),
        lines=text.decode(text.train).count("\n") + test.count("\n"),
        frequencies=frequency_loss(text),
        beginnings=beginnings, continuations=continuations, new=math.ceil(1.25 * longest),
    )  # fmt: skip


def passages(flags: NanogptSizes, text: nets.data.Text, test: str) -> tuple[Tensor, int, list[str]]:
    """Return beginnings (passages, tokens), tokens of the longest continuation, continuations.

    Passages do not overlap and are spread evenly over the test part. Beginnings end with a whole
    word, and are cut on the left to the number of tokens of the shortest.
    """
    import torch

    # White space before a word belongs to it, so that it has the byte pairs that it has in place.
    pieces = re.findall(r"\s*\S+", test)
    each = flags.beginning + flags.words
    found = len(pieces) // each
    if found < 2:
        raise InputError(
            f"the test part has {len(pieces)} words: expected at least {2 * each}, two passages of "
            f"{flags.beginning} + {flags.words}"
        )
    places = np.linspace(0, found - 1, min(found, flags.passages)).astype(int) * each
    begun = [text.encode("".join(pieces[k : k + flags.beginning])) for k in places]
    rest = ["".join(pieces[k + flags.beginning : k + each]) for k in places]
    shortest = min(len(tokens) for tokens in begun)
    longest = max(len(text.encode(words)) for words in rest)
    beginnings = torch.stack([tokens[-shortest:] for tokens in begun])
    return beginnings, longest, [plain(words) for words in rest]


def frequency_loss(text: nets.data.Text) -> float:
    """Test loss of the frequencies of the training part, each token counted once more."""
    counts = text.train.bincount(minlength=text.vocabulary).double() + 1
    return float(-(counts / counts.sum()).log()[text.test].mean())


# Trainings
# ---------


def network(flags: NanogptSizes, size: Scale, vocabulary: int, seed: int) -> nets.GPT:
    """Return a network with weights drawn from its seed: no biases, as the default of nanoGPT."""
    import torch

    torch.manual_seed(seed)
    sizes = {key: getattr(size, key) for key in ("context", "width", "depth", "heads")}
    return nets.GPT(vocabulary=vocabulary, dropout=flags.dropout, **sizes)


def plan(flags: NanogptSizes, corpora: Corpora, model: Model, seed: int) -> Run:
    """Return the training of one network with one seed: Adam at a constant rate."""
    size, kind = model
    text = corpora.of[kind].text
    data = window_set(text, size.context)
    steps = flags.epochs * (len(data) // size.batch)  # whole batches
    every = size.evaluate_every
    settings = config(
        steps, size.batch, flags.rate, seed,
        evaluate_every=every, checkpoint_every=max(every, steps // 20),
        device=flags.device, precision=flags.precision, compile=flags.compile,
    )  # fmt: skip
    processes = nets.train.process_group(flags.device)

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        return {"test_loss": loss_on(net, text.test, size.context, processes.device, processes)}

    net = network(flags, size, text.vocabulary, seed)
    return Run(net, NextToken(), data, settings, evaluate)


# What was learnt
# ---------------

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
}


def measure(
    flags: NanogptSizes, corpora: Corpora, model: Model, training: Trained, seed: int
) -> Record:
    """Return losses, BLEU and times of one training."""
    size, kind = model
    net, device, history = training.model, training.device, training.history
    corpus = corpora.of[kind]
    text = corpus.text
    record: Record = {"device": str(history.attrs["devices"]), "samples": []}
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
    record |= falls(*(history[key].values for key in ("data", "evaluation", "test_loss")))
    written = continued(flags, corpus, net, device, seed)
    record["samples"] = [
        f"begins: {plain(text.decode(begun))}\ngenerated: {own}\nheld out: {rest}\n"
        for begun, own, rest, _ in zip(
            corpus.beginnings, written, corpus.continuations, range(SHOWN), strict=False
        )
    ]
    if metric():
        others = corpus.continuations
        record |= {
            "bleu": bleu(written, [others]),
            "bleu_any": bleu(written, without_own(others)),
            "bleu_next": bleu(*likeliest(net, text, size.context)),
        }
    return record


def falls(losses: FloatArray, places: FloatArray, tests: FloatArray) -> Record:
    """Return how much of the fall of a loss comes early, and how much in the last quarter."""
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
    flags: NanogptSizes, corpus: Corpus, net: nets.GPT, device: torch.device, seed: int
) -> list[str]:
    """Return continuations of all beginnings, of as many words as the held-out ones have."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    start = corpus.beginnings.to(device)
    how: dict[str, Any] = {"temperature": flags.temperature, "top_k": flags.top_k}
    tokens = net.generate(start, corpus.new, generator=generator, **how)[:, start.shape[1] :]
    return [plain(corpus.text.decode(row.cpu()), flags.words) for row in tokens]


def likeliest(
    net: nets.GPT, text: nets.data.Text, context: int
) -> tuple[list[str], list[list[str]]]:
    """Return the likeliest token after each token of the test part, and the true next tokens."""
    windows = nets.data.windows(text.test, context=context, batch=EVALUATION)
    pair = nets.metrics.teacher_forced(net, windows)
    found, came = ([plain(text.decode(row)) for row in rows] for rows in pair)
    return found, [came]


def plain(text: str, most: int | None = None) -> str:
    """Return the first words of a text, with one space between them."""
    return " ".join(text.split()[:most])


# BLEU
# ----


def metric() -> str | None:
    """Return what sacrebleu measures, and its version; None where it is not installed."""
    if missing({"sacrebleu": "metrics"}):
        return None
    return nets.metrics.signature("13a")


def bleu(written: list[str], references: list[list[str]]) -> float:
    """Return BLEU of a corpus in per cent; each list of references has one text per prediction.

    Tokens are those of `13a`, case counts, and orders without a match are smoothed: the defaults of
    sacrebleu (Post 2018).
    """
    return nets.metrics.bleu(written, *references, words="13a")


def without_own(texts: list[str]) -> list[list[str]]:
    """Return for each text all others, as lists of references."""
    count = len(texts)
    return [[texts[(k + shift) % count] for k in range(count)] for shift in range(1, count)]


def floor(texts: list[str]) -> dict[str, list[float]]:
    """Return BLEU of held-out passages themselves, each in the place of another's continuation."""
    if not metric():
        return {"bleu": [math.nan], "bleu_any": [math.nan]}
    others = without_own(texts)
    return {
        "bleu": [bleu(shifted, [texts]) for shifted in others[:SHIFTS]],
        "bleu_any": [bleu(texts, others)],
    }


# Findings
# --------


def findings(flags: NanogptSizes, corpora: Corpora, results: Results) -> list[Finding]:
    """Return claims of the report, with their verdicts."""
    every, kinds, sizes = models(flags), TOKENS[flags.text], SIZES[flags.sizes]
    of = results.values
    above = partial(claim, compare=networks.compared)
    nexts = {  # case -> larger and smaller network
        f"{larger} over {smaller}, {kind}": (f"{larger} {kind}", f"{smaller} {kind}")
        for kind in kinds for smaller, larger in (("S", "M"), ("M", "L"))
    }  # fmt: skip
    long = [name for name in every if results.records[name][0]["iterations"] > EARLY]

    def at_least(key: str, level: float, names: Iterable[str] = every) -> dict[str, Pair]:
        return {name: (of(name, key), np.full(flags.seeds, level)) for name in names}

    def at_most(level: float, numbers: Callable[[str], FloatArray]) -> dict[str, Pair]:
        return {name: (np.full(flags.seeds, level), numbers(name)) for name in every}

    section = "[GPTOC] section 5.1"
    verdicts = [
        above("a larger network learns more: its test loss is lower", "[GPTOC] section 3.2.4",
              {case: (of(smaller, "test"), of(larger, "test"))
               for case, (larger, smaller) in nexts.items()}),
        *(above(f"more than half of the fall of the {part} loss comes in the first {EARLY} "
                "iterations", section, at_least(key, 0.5, long))
          for part, key in (("training", "early_train"), ("validation", "early_test"))),
        above("the loss stabilises: in the last quarter of the training the test loss changes by "
              f"less than {100 * SETTLED:g} % of its fall", section,
              at_most(SETTLED, lambda name: of(name, "late"))),
        above("20 epochs are a balance between learning and overfitting: the test loss ends less "
              f"than {NEGLIGIBLE:g} above its least value", "[GPTOC] section 3.2.4",
              at_most(NEGLIGIBLE, lambda name: of(name, "test") - of(name, "best"))),
        Finding.decided(
            "a learning rate of 0.01 trains every size: no run diverges, or ends above the loss of "
            "token frequencies", "[GPTOC] section 3.2.4",
            results.diverged() or "no run diverged; largest test loss "
            + ", ".join(f"{name} {of(name, 'test').max():.2f}" for name in every),
            [bool((of(name, "test") < corpora.of[kind].frequencies).all())
             for name, (_, kind) in every.items()],
        ),
        Finding.decided(
            f"tiny Shakespeare has {PUBLISHED['section 2.1']['lines']:,} lines",
            "[GPTOC] section 2.1.1", f"{corpora.first.lines:,} lines",
            corpora.first.lines == PUBLISHED["section 2.1"]["lines"],
        ),
    ]  # fmt: skip
    if len(kinds) > 1:

        def against(key: str, *, more: str, less: str) -> dict[str, Pair]:
            return {size: (of(f"{size} {more}", key), of(f"{size} {less}", key)) for size in sizes}

        longer = partial(against, more="byte pairs", less="characters")
        section, around = "[GPTOC] section 2.1.2", PUBLISHED["section 2.1"]["characters"]
        found = corpora.of["characters"].text.vocabulary
        verdicts += [
            Finding.decided(f"tiny Shakespeare has around {around} different characters", section,
                            f"{found}", abs(found / around - 1) <= AROUND),
            above("characters give worse results than pieces of words: more bits per character",
                  section, against("bits", more="characters", less="byte pairs")),
            above("more tokens can increase the training time: all epochs take longer with byte "
                  "pairs than with characters (s)", section, longer("seconds")),
            above("an iteration takes longer with byte pairs than with characters (ms)", section,
                  longer("milliseconds")),
        ]  # fmt: skip
    if metric() is None:
        return verdicts
    table, score = "[GPTOC] Table 1", PUBLISHED["Table 1"]["Python"]["bleu"]
    verdicts += [
        above(f"generated text has a BLEU of at least {score:g} % ({method})", table,
              at_least(key, score))
        for key, method in METHODS.items()
    ]  # fmt: skip
    quality = "BLEU reflects the quality of the text"
    return [
        *verdicts,
        above(f"{quality}: it is higher for a larger network", table,
              {case: (of(larger, "bleu"), of(smaller, "bleu"))
               for case, (larger, smaller) in nexts.items()}),
        above(f"{quality}: another passage of Shakespeare scores higher than the network", table,
              {name: (np.array(corpora.floor["bleu"]), of(name, "bleu")) for name in every}),
    ]  # fmt: skip


# Tables and figures
# ------------------


def report(flags: NanogptSizes, corpora: Corpora, results: Results) -> str:
    """Return what was done, and the table beside other passages and the published numbers."""
    every = models(flags)
    column = partial(networks.column, results)

    def counted(name: str) -> str:
        size, kind = every[name]
        net = network(flags, size, corpora.of[kind].text.vocabulary, 0)
        return f"{net.count(positions=True):,}"

    table = {
        "model": list(results.records),
        "parameters": [counted(name) for name in results.records],
        "iterations": [f"{runs[0]['iterations']:,}" for runs in results.records.values()],
        "train loss": column("train", ".3f"),
        "test loss": column("test", ".3f"),
        "best test loss": column("best", ".3f"),
        "bits per character": column("bits", ".3f"),
        "BLEU, %": column("bleu", ".2f"),
        "against any passage": column("bleu_any", ".2f"),
        "of next tokens": column("bleu_next", ".2f"),
        "seconds": column("seconds", ".0f"),
        "ms per iteration": column("milliseconds", ".1f"),
        "device": ["; ".join(dict.fromkeys(record["device"] for record in runs))
                   for runs in results.records.values()],
    }  # fmt: skip

    def add(name: str, **cells: str) -> None:
        for title, column in table.items():
            column.append(name if title == "model" else cells.get(title, "–"))

    own, every_other = (networks.mean_and_spread(corpora.floor[key], "{:.2f}".format)
                        for key in ("bleu", "bleu_any"))  # fmt: skip
    add("Shakespeare, another passage", **{"BLEU, %": own, "against any passage": every_other})
    if flags.text == "shakespeare":
        for name in ("Python", "Julia"):
            printed = {key: f"{value:g}" for key, value in PUBLISHED["Table 1"][name].items()}
            add(f"published, {name}", **{"BLEU, %": printed["bleu"], "seconds": printed["seconds"]})
    return "\n\n".join([lead(flags, corpora, results), study.markdown_table(table)])


def lead(flags: NanogptSizes, corpora: Corpora, results: Results) -> str:
    """Return the data, settings and methods, in words."""
    found = corpora.of
    sources = "; ".join(corpus.text.source for corpus in found.values())
    sizes = ", ".join(
        f"{name} {size.width} / {size.context} / {size.batch} / {size.depth} / {size.heads}"
        for name, size in SIZES[flags.sizes].items()
    )
    alone = ", ".join(f"{corpus.frequencies:.3f} ({kind})" for kind, corpus in found.items())
    taken = " and ".join(f"{corpus.beginnings.shape[1]} {kind}" for kind, corpus in found.items())
    parts = [
        networks.caption(flags, flags.seeds, results, sources),
        f"Width / context / batch / blocks / heads: {sizes}; feed-forward layers four times as "
        "wide, Adam at a constant rate, windows that do not overlap. The train loss is that of the "
        "first training tokens, as many as there are test tokens, without dropout. Frequencies of "
        f"tokens alone have the test loss {alone}. Seconds are those of the iterations, without "
        "evaluations.",
        f"BLEU: {len(corpora.first.continuations)} passages of the test part, evenly spread; the "
        f"network sees the words of a beginning (their last {taken}) and continues them; its "
        "first words are compared with those that follow in the text, or with those of all other "
        "passages (any passage). Next tokens: the likeliest token after each of the true ones, "
        "window by window. Another passage: words of Shakespeare in the place of generated ones, "
        "against a continuation that is not theirs.",
    ]
    signature = metric()
    parts.append(
        f"Sacrebleu: {signature}."
        if signature
        else f"No BLEU: sacrebleu is not installed ({install('metrics')}; then give the same "
        "command with --resume)."
    )
    if flags.text == "shakespeare":
        parts.append(
            "The report does not say of which size, tokens and machine its numbers are, nor how "
            "BLEU was measured."
        )
    return " ".join(parts)


def samples(flags: NanogptSizes, results: Results) -> dict[str, str]:
    """Return beginnings, what was generated with seed 0, and what follows in the text."""
    found = (["## " + name + "\n", *runs[0]["samples"]] for name, runs in results.records.items())
    return {"samples.txt": "\n".join(piece for pieces in found for piece in pieces)}


def figures(flags: NanogptSizes, results: Results) -> dict[str, study.Figure]:
    """Draw losses by epochs for each kind of tokens, and BLEU by size."""
    from wflow.plots.networks import Line, learning_curves, lines

    drawn, panels = {}, {}
    for kind in TOKENS[flags.text]:
        of_kind = {name: size for name, (size, tokens) in models(flags).items() if tokens == kind}
        sizes = {name: size for name, size in of_kind.items() if name in results.records}
        if not sizes:
            continue
        curves = {
            name.split()[0]: [by_epochs(flags, each) for each in results.histories[name]]
            for name in sizes
        }
        labels = {"data": "training loss, with dropout", "test_loss": "test loss"}
        figure = learning_curves(curves, labels)
        for axis in figure.axes:
            axis.set_xlabel("Epoch")
        drawn[f"losses_{kind.replace(' ', '_')}"] = figure
        found = []
        for key, label in METHODS.items():
            scores = np.transpose([results.values(name, key) for name in sizes])
            found.append(Line(label, [size.width for size in sizes.values()], scores.tolist()))
        if len(sizes) > 1 and np.isfinite([line.y for line in found]).all():
            panels[kind] = ("Width of the network", found)
    if panels:
        drawn["bleu"] = lines(panels, "BLEU (%)")
    return drawn


def by_epochs(flags: NanogptSizes, history: study.Dataset) -> study.Dataset:
    """Return a history whose steps are counted in epochs."""
    share = flags.epochs / max(1, history.sizes["step"])
    return history.assign_coords({dim: history[dim] * share for dim in ("step", "evaluation")})


EXPERIMENT = networks.Experiment(
    name="nanogpt_sizes", models=models, load=load, plan=plan, measure=measure, numbers=SCALARS,
    text=report, findings=findings, figures=figures, texts=samples,
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(NanogptSizes, __doc__))


if __name__ == "__main__":
    script(main)
