"""Byte pairs of Shakespeare with a GPT-2: discrete, continuous, and with its transport cost.

A causal transformer learns the next byte pair of GPT-2. The baseline applies its blocks once; in
the continuous models blocks and final norm together are the velocity of the hidden states, as in
the published code, so that all models have the same parameters. Best and final test loss, both
perplexities, and scores of predicted texts: [OTT] section 5.4, Table 12.

The published runs weigh the mean square of the velocity without the factor 1/2 of [OTT1] eq. 8:
`--lam` is theirs, twice that of `ContinuousTransformer(cost="mean")`. The published code differs
from the paper, and `--published` follows it: 2,000 iterations in place of 500, over which the
learning rate only rises, and gradients that are summed over the parts of a batch, not averaged.

    python studies/ott/shakespeare_words.py --preset cpu
    torchrun --nproc-per-node 2 studies/ott/shakespeare_words.py --preset paper --precision bfloat16

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from _gpt2 import Gpt2Flags, run
from _shakespeare_words import EXPERIMENT

from wflow import study
from wflow.cli import guarded


@dataclass(frozen=True, kw_only=True)
class ShakespeareWords(Gpt2Flags):
    """Flags of this study."""

    out: study.Folder = Path("results/shakespeare_words")
    """Folder for checkpoints, metrics, summary, samples and figures."""


def main() -> int:
    return run(EXPERIMENT, study.command_line(ShakespeareWords, __doc__))


if __name__ == "__main__":
    sys.exit(guarded(main))
