"""Texts, trainings and tables of the study `web_text`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _shakespeare_words import PAPER_SIZE, Model, network
from _texts import WINDOWS, NextToken, Size, scored, training

from wflow import InputError, nets, study
from wflow.study import networks
from wflow.study.networks import Results, Run

if TYPE_CHECKING:
    from torch import Tensor

# [OTT] Table 13, and the perplexity as its code computes it: the mean over sequences.
PUBLISHED = {"baseline": "3.21", "continuous": "2.91"}
PUBLISHED_BEST = {"baseline": "3.20", "continuous": "2.90"}
PUBLISHED_PERPLEXITY = {"baseline": "26.09", "continuous": "19.56"}
PUBLISHED_SCORES = {
    name: dict(
        zip(
            ("bleu", "rouge1", "rouge2", "rougeL", "bert_precision", "bert_recall", "bertscore"),
            values,
            strict=True,
        )
    )
    for name, values in {
        "baseline": (12.22, 57.30, 17.07, 35.17, 80.77, 83.31, 82.02),
        "continuous": (14.07, 59.46, 18.99, 38.05, 81.91, 84.27, 83.07),
    }.items()
}
PUBLISHED_PARAMETERS = "123.7M"
PUBLISHED_LAM = 0.1  # in the README of the published code; 1 in the paper
WARM_UP = 2000  # iterations of nanoGPT on this text
TOKENS = "openwebtext-tokens"  # name of the folder of token files
HEADING = "^ = [^=].* = $"  # the line that begins an article of wikitext
END = "<|endoftext|>"
_WIKITEXT = {
    "valid.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test.txt": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    text: str = "openwebtext"
    vocabulary: int = 50257
    seeds: int = 1
    iterations: int = 60_000
    crops: int = 240
    parts: int = 5
    context: int = 1024
    size: Size = PAPER_SIZE
    steps: int = 10
    lam: float = 1.0
    dropout: float = 0.0
    rate: float = 6e-4
    evaluate_every: int = 1000
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
    "cpu": Setup(
        text="wikitext-2",
        vocabulary=4096,
        seeds=2,
        iterations=2000,
        crops=16,
        parts=1,
        context=128,
        size=Size(3, 4, 128),
        steps=5,
        rate=2e-3,
        evaluate_every=100,
        beginning=64,
        continuation=64,
        checkpointing=False,
    ),
    "smoke": Setup(
        text="sonnets",
        vocabulary=257,
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
        checkpointing=False,
    ),
}


@dataclass(frozen=True, eq=False)
class WebText:
    """A text as the studies of GPTs read one: the training part stays on the disk."""

    files: nets.data.TokenFiles
    train: Any = field(repr=False)  # a TokenFile
    test: Tensor = field(repr=False)
    tokenizer: nets.data.Tokenizer = field(repr=False)

    @property
    def source(self) -> str:
        return self.files.source

    @property
    def vocabulary(self) -> int:
        return self.files.vocabulary

    def encode(self, text: str) -> Tensor:
        return self.tokenizer.encode(text)

    def decode(self, tokens: Tensor) -> str:
        return self.tokenizer.decode(tokens)


def load(setup: Setup, flags: Any) -> WebText:
    """The token files of a preset, made where the text is small, and their checksums compared."""
    folder = flags.out / "tokens" if flags.tokens is None else Path(flags.tokens)
    if flags.tokens is None and setup.text == "openwebtext":
        folder = Path(flags.data or os.environ.get("WFLOW_DATA", "")) / TOKENS
        if not folder.is_dir():
            raise InputError(
                f"{folder} does not exist; prepare the text first: wflow data prepare openwebtext "
                "FOLDER, and give the folder of its token files by --tokens"
            )
    elif flags.tokens is None:
        with tempfile.TemporaryDirectory() as place:
            prepare(setup, flags, folder, Path(place, f"{setup.text}.txt"))
    files = nets.data.TokenFiles(folder, vocabulary=setup.vocabulary)
    files.verify(show=True)
    if len(files.validation) <= setup.context:
        raise InputError(
            f"the validation part has {len(files.validation)} tokens: expected more than the "
            f"context, {setup.context}; prepare the text with a larger --validation"
        )
    return WebText(files, files.train, files.validation[:], files.tokenizer())


def prepare(setup: Setup, flags: Any, folder: Path, file: Path) -> None:
    """Make token files of a small text, or keep those that an earlier call made."""
    from wflow.nets.data.datasets import gpt2_pairs
    from wflow.nets.data.download import DataFile, obtain
    from wflow.nets.data.token_files import INDEX

    if setup.text == "sonnets":
        text, begins, share = sonnets(), None, 0.1
        pairs = byte_pairs()
    else:
        parts = obtain(
            "wikitext-2",
            [DataFile(f"wikitext-2/{name}", sha256) for name, sha256 in _WIKITEXT.items()],
            flags.data,
        )
        text, begins, share = b"".join(parts.contents).decode(), HEADING, 0.1
        pairs = fewer_pairs(*gpt2_pairs(flags.data), setup.vocabulary)
    file.write_text(text, encoding="utf-8")
    there = (folder / INDEX).exists()
    nets.data.prepare_text(
        file,
        folder,
        name=setup.text,
        begins=begins,
        validation=share,
        tokenizer=pairs,
        workers=1,
        resume=there,
        overwrite=not there,
    )


def sonnets() -> str:
    """The sonnets that ship with the package, with marks between them."""
    text = nets.data.embedded_text()
    return "".join(map(text.decode, (text.train, text.test))).replace("\n\n", END)


def byte_pairs() -> tuple[bytes, bytes]:
    """A tokenizer of single bytes: no pair is joined."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    numbers = {letter: k for k, letter in enumerate([*letters, END])}
    return json.dumps(numbers).encode(), b"#version: 0.2\n"


def fewer_pairs(encoder: bytes, merges: bytes, vocabulary: int) -> tuple[bytes, bytes]:
    """The first byte pairs of GPT-2, which its list has in the order in which they were found."""
    numbers = json.loads(encoder)
    kept = {token: number for token, number in numbers.items() if number < vocabulary - 1}
    lines = [line for line in merges.decode().splitlines() if line and line[0:9] != "#version:"]
    few = "\n".join(["#version: 0.2", *lines[: vocabulary - 257], ""])
    return json.dumps(kept | {END: vocabulary - 1}).encode(), few.encode()


def plan(model: Model, setup: Setup, text: Any, flags: Any, seed: int) -> Run:
    """The training run of one model with one seed."""
    net = network(model, setup, text.vocabulary, seed)  # type: ignore[arg-type]
    if model.continuous:
        net.body.checkpointing = setup.checkpointing  # type: ignore[assignment]
    objective = NextToken(
        2 * model.lam,  # the published cost has no 1/2
        scale=setup.parts if setup.published else 1.0,
    )
    warm_up = min(WARM_UP, setup.iterations // 10)
    return training(
        net, objective, text, setup, flags, seed, warm_up=warm_up, betas=(0.9, 0.95)
    )  # fmt: skip


def with_parts(setup: Setup, flags: Any) -> Setup:
    """The set-up with the flags that are no settings of it; parts leave the batch as it is."""
    if setup.crops % setup.parts:
        raise InputError(
            f"--parts is {setup.parts}: expected a divisor of the {setup.crops} crops of a batch"
        )
    if flags.published and flags.lam is None:
        setup = replace(setup, lam=PUBLISHED_LAM)
    return setup


def report(
    flags: Any, setup: Setup, text: Any, listed: Mapping[str, Model], results: Results
) -> str:
    """The tables, beside the published ones."""
    names = list(results.records)

    def column(key: str, style: str) -> list[str]:
        return networks.column(results, key, lambda value: f"{value:{style}}")

    def published(values: Mapping[str, str]) -> list[str]:
        return [values.get(name, "–") for name in names]

    sizes = [network(listed[name], setup, text.vocabulary, 0).count() for name in names]  # type: ignore[arg-type]
    numbers = {name: float(value) for name, value in PUBLISHED.items()}
    table = {
        "model": names,
        "parameters": [f"{size / 1e6:.4g}M" for size in sizes],
        "best test loss": column("best", ".3f"),
        "published best": published(PUBLISHED_BEST),
        "final test loss": column("final", ".3f"),
        "published final": published(PUBLISHED),
        "difference": networks.differences(results, "final", numbers, "+.2f"),
        "perplexity": column("perplexity", ".1f"),
        "mean over windows": column("perplexity_windows", ".1f"),
        "published perplexity": published(PUBLISHED_PERPLEXITY),
        "training loss": column("training", ".3f"),
        "arc over chord": column("straightness", ".3f"),
        "speed variation": column("speed_variation", ".3f"),
        "transport cost": column("transport", ".3g"),
        "ms per iteration": column("milliseconds", ".0f"),
    }
    used = "" if setup.share == 1 else f", the first {100 * setup.share:g} % of the training part"
    habits = ", gradients summed over the parts of a batch" if setup.published else ""
    lead = (
        f"{networks.caption(flags, setup.seeds, results, text.source + used)} "
        f"{setup.iterations:,} iterations of {setup.crops} crops of {setup.context} tokens in "
        f"{setup.parts} parts{habits}; blocks x heads x width: {setup.size}, with biases and layer "
        f"norms, the final one within the velocity; T = 1, {setup.steps} Euler steps, lam = "
        f"{setup.lam:g} (of the cost without the 1/2; the column has it), dropout "
        f"{setup.dropout:g}, learning rate {setup.rate:g} to a tenth of it. Parameters without "
        f"those of the positions. Perplexity is the exponential of the final test loss; the mean "
        f"over windows of {setup.context} tokens is that of the published code. Test losses are "
        f"those of the whole validation part; hidden states those of {WINDOWS} windows of it."
    )
    scores = {}
    if setup.text == "openwebtext":
        scores = PUBLISHED_SCORES
        lead += (
            f" Published: 12 x 12 x 768, {PUBLISHED_PARAMETERS} parameters each, 10 steps, 60,000 "
            "iterations of 240 crops of 1024, learning rate 0.0006, one seed."
        )
    else:
        table = networks.unpublished(table)
    return "\n\n".join(
        (lead, study.markdown_table(table), scored(results, setup, flags.encoder, scores))
    )
