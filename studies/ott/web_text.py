"""Web text with a GPT-2: discrete, and continuous in time with its transport cost.

A causal transformer of 123.7 million parameters learns the next byte pair of OpenWebText, 9 billion
of them, which are read from the disk as they are needed. In the continuous models blocks and final
norm together are the velocity of the hidden states, as in the published code. Losses, both
perplexities, and BLEU, ROUGE and BERTScore of predicted texts: [OTT] section 5.4, Table 13.

The preset paper reads token files that `wflow data prepare openwebtext FOLDER` has made; cpu makes
them of 122 articles of wikitext-2, with the first 3,839 byte pairs of GPT-2.

The published runs weigh the mean square of the velocity without the factor 1/2 of [OTT1] eq. 8:
`--lam` is theirs, twice that of `ContinuousTransformer(cost="mean")`. `--published` follows the
published code where it differs from the paper: lam = 0.1 in place of 1, and gradients that are
summed over the parts of a batch, not averaged.

    python studies/ott/web_text.py
    torchrun --nproc-per-node 8 studies/ott/web_text.py --preset paper \\
        --precision bfloat16 --compile

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from _gpt2 import Gpt2Flags, experiment

from wflow import InputError, nets, study
from wflow._core.command_line import check_folder
from wflow.cli import script
from wflow.study import networks

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


@dataclass(frozen=True, kw_only=True)
class WebText(Gpt2Flags):
    """Flags of this study."""

    indifferent: ClassVar[frozenset[str]] = Gpt2Flags.indifferent | {"tokens"}
    durations: ClassVar = {
        "smoke": "seconds",
        "cpu": "minutes a model on two cores",
        "paper": "3,700 hours of a GPU",
    }
    presets: ClassVar = {
        "paper": {
            "seeds": 1, "iterations": 60_000, "crops": 240, "parts": 5, "evaluate_every": 1000,
        },
        "cpu": {
            "text": "wikitext-2", "vocabulary": 4096, "seeds": 2, "iterations": 2000, "crops": 16,
            "parts": 1, "context": 128, "size": (3, 4, 128), "steps": 5, "rate": 2e-3,
            "evaluate_every": 100, "beginning": 64, "continuation": 64, "checkpointing": False,
        },
        "smoke": {
            "text": "sonnets", "vocabulary": 257, "seeds": 1, "iterations": 6, "crops": 8,
            "parts": 2, "context": 16, "size": (2, 2, 16), "steps": 2, "evaluate_every": 3,
            "passages": 4, "beginning": 8, "continuation": 8, "checkpointing": False,
        },
    }  # fmt: skip
    # Of the README of the published code; 1 in the paper.
    preset_variants: ClassVar = {("paper", "published", True): {"lam": 0.1}}
    table: ClassVar[str] = "Table 13"
    figure: ClassVar[str] = "Figure 9"
    habit: ClassVar[str] = "gradients summed over the parts of a batch"
    compared: ClassVar[tuple[str, ...]] = ("bleu", "rouge1", "rouge2", "rougeL", "bertscore")

    text: Literal["openwebtext", "wikitext-2", "sonnets"] = "openwebtext"
    """OpenWebText, articles of wikitext-2, or the sonnets of the package in bytes."""
    vocabulary: study.Count = 50257
    """Byte pairs, the first ones of GPT-2."""
    tokens: str | None = None
    """Folder of token files; default: openwebtext-tokens in --data for paper, otherwise made in
    --out."""
    out: study.Folder = Path("results/web_text")

    def check(self) -> None:
        super().check()
        check_folder(self.tokens, "--tokens")

    def warm_up(self) -> int:
        return min(WARM_UP, self.iterations // 10)

    def as_published(self) -> bool:
        return self.text == "openwebtext"


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


def load(flags: WebText) -> TokenText:
    """Return the token files of the text, made where the text is small, with checked checksums."""
    folder = flags.out / "tokens" if flags.tokens is None else Path(flags.tokens)
    if flags.tokens is None and flags.text == "openwebtext":
        folder = Path(flags.data or os.environ.get("WFLOW_DATA", "")) / TOKENS
        if not folder.is_dir():
            raise InputError(
                f"{folder} does not exist; prepare the text first: wflow data prepare openwebtext "
                "FOLDER, and give the folder of its token files by --tokens"
            )
    elif flags.tokens is None:
        with tempfile.TemporaryDirectory() as place:
            prepare(flags, folder, Path(place, f"{flags.text}.txt"))
    files = nets.data.TokenFiles(folder, vocabulary=flags.vocabulary)
    files.verify(show=True)
    if len(files.validation) <= flags.context:
        raise InputError(
            f"the validation part has {len(files.validation)} tokens: expected more than the "
            f"context, {flags.context}; prepare the text with a larger --validation"
        )
    return TokenText(files, files.train, files.validation[:], files.tokenizer())


def prepare(flags: WebText, folder: Path, file: Path) -> None:
    """Make token files of a small text, or keep those that an earlier call made."""
    from wflow.nets.data.datasets import gpt2_pairs
    from wflow.nets.data.download import DataFile, obtain
    from wflow.nets.data.token_files import INDEX

    if flags.text == "sonnets":
        text, begins, share = sonnets(), None, 0.1
        pairs = byte_pairs()
    else:
        parts = obtain(
            "wikitext-2",
            [DataFile(f"wikitext-2/{name}", sha256) for name, sha256 in _WIKITEXT.items()],
            flags.data,
        )
        text, begins, share = b"".join(parts).decode(), HEADING, 0.1
        pairs = fewer_pairs(*gpt2_pairs(flags.data), flags.vocabulary)
    file.write_text(text, encoding="utf-8")
    there = (folder / INDEX).exists() and not flags.overwrite
    nets.data.prepare_text(
        file, folder, name=flags.text, begins=begins, validation=share, tokenizer=pairs, workers=1,
        resume=there, overwrite=not there,
    )  # fmt: skip


def sonnets() -> str:
    """Return the sonnets that ship with the package, with marks between them."""
    text = nets.data.embedded_text()
    return "".join(map(text.decode, (text.train, text.test))).replace("\n\n", END)


def byte_pairs() -> tuple[bytes, bytes]:
    """Return a tokenizer of single bytes: no pair is joined."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    numbers = {letter: k for k, letter in enumerate([*letters, END])}
    return json.dumps(numbers).encode(), b"#version: 0.2\n"


def fewer_pairs(encoder: bytes, merges: bytes, vocabulary: int) -> tuple[bytes, bytes]:
    """Return the first byte pairs of GPT-2, whose list has them in the order of their discovery."""
    numbers = json.loads(encoder)
    kept = {token: number for token, number in numbers.items() if number < vocabulary - 1}
    lines = [line for line in merges.decode().splitlines() if line and line[0:9] != "#version:"]
    few = "\n".join(["#version: 0.2", *lines[: vocabulary - 257], ""])
    return json.dumps(kept | {END: vocabulary - 1}).encode(), few.encode()


EXPERIMENT = experiment("web_text", load)


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(WebText, __doc__))


if __name__ == "__main__":
    script(main)
