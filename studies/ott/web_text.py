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

import sys
from dataclasses import dataclass
from pathlib import Path

from _gpt2 import Gpt2Flags, run
from _web_text import EXPERIMENT

from wflow import study
from wflow._core.command_line import check_folder
from wflow.cli import guarded


@dataclass(frozen=True, kw_only=True)
class WebText(Gpt2Flags):
    """Flags of this study."""

    tokens: str | None = None
    """Folder of token files; default: openwebtext-tokens in --data for paper, otherwise made in
    --out."""
    out: study.Folder = Path("results/web_text")
    """Folder for checkpoints, metrics, summary, samples and figures."""

    def check(self) -> None:
        super().check()
        check_folder(self.tokens, "--tokens")


def main() -> int:
    return run(EXPERIMENT, study.command_line(WebText, __doc__))


if __name__ == "__main__":
    sys.exit(guarded(main))
