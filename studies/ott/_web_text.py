"""Texts, trainings and tables of the study `web_text`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _gpt2 import Experiment, Setup

from wflow import InputError, nets
from wflow.study.texts import SCORES, Size

if TYPE_CHECKING:
    from torch import Tensor

WARM_UP = 2000  # iterations of nanoGPT on this text
TOKENS = "openwebtext-tokens"  # name of the folder of token files
HEADING = "^ = [^=].* = $"  # the line that begins an article of wikitext
END = "<|endoftext|>"
_WIKITEXT = {
    "valid.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test.txt": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}
PAPER = Setup("openwebtext", iterations=60_000, crops=240, parts=5, seeds=1, evaluate_every=1000)
PRESETS = {
    "paper": PAPER,
    "cpu": replace(
        PAPER,
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
    "smoke": replace(
        PAPER,
        text="sonnets",
        vocabulary=257,
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
class TokenText:
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


def load(setup: Setup, flags: Any) -> TokenText:
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
    return TokenText(files, files.train, files.validation[:], files.tokenizer())


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
        assert setup.vocabulary is not None
        pairs = fewer_pairs(*gpt2_pairs(flags.data), setup.vocabulary)
    file.write_text(text, encoding="utf-8")
    there = (folder / INDEX).exists() and not flags.overwrite
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


def scores(*values: float) -> dict[str, float]:
    """Published scores by name."""
    return dict(zip(SCORES, values, strict=True))


EXPERIMENT = Experiment(
    name="web_text",
    presets=PRESETS,
    load=load,
    warm_up=lambda setup: min(WARM_UP, setup.iterations // 10),
    table="Table 13",
    figure="Figure 9",
    final={"baseline": "3.21", "continuous": "2.91"},
    best={"baseline": "3.20", "continuous": "2.90"},
    perplexity={"baseline": "26.09", "continuous": "19.56"},  # the mean over sequences
    scores={
        "baseline": scores(12.22, 57.30, 17.07, 35.17, 80.77, 83.31, 82.02),
        "continuous": scores(14.07, 59.46, 18.99, 38.05, 81.91, 84.27, 83.07),
    },
    compared=("bleu", "rouge1", "rouge2", "rougeL", "bertscore"),
    words="10 steps, 60,000 iterations of 240 crops of 1024, learning rate 0.0006, one seed",
    beside="openwebtext",
    habits={"lam": 0.1},  # of the README of the published code; 1 in the paper
    habit="gradients summed over the parts of a batch",
)
