"""Text, presets and published numbers of the study `shakespeare_words`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from _gpt2 import Experiment, Setup

from wflow import nets
from wflow.study.texts import Size

PAPER = Setup("byte pairs", iterations=500, crops=120, parts=4, seeds=3, evaluate_every=25)
PRESETS = {
    "paper": PAPER,
    # A quarter of the text, 20 times: few enough tokens to overfit, as in the published run, which
    # takes the whole text 200 times.
    "cpu": replace(
        PAPER,
        vocabulary=None,
        seeds=2,
        iterations=1500,
        crops=16,
        parts=1,
        context=64,
        size=Size(4, 4, 128),
        steps=5,
        rate=3e-3,
        evaluate_every=100,
        share=0.25,
        beginning=32,
        continuation=32,
        checkpointing=False,
    ),
    "smoke": replace(
        PAPER,
        text="embedded",
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
        sample=60,
        checkpointing=False,
    ),
}


def load(setup: Setup, flags: Any) -> nets.data.Text:
    """The text in byte pairs of GPT-2; for smoke the sonnets in characters."""
    if setup.text == "embedded":
        return nets.data.embedded_text()
    text = nets.data.shakespeare(tokens="gpt2", folder=flags.data)
    return text.compact() if setup.vocabulary is None else text


EXPERIMENT = Experiment(
    name="shakespeare_words",
    presets=PRESETS,
    load=load,
    warm_up=lambda setup: setup.iterations // (1 if setup.published else 10),
    table="Table 12",
    figure="Figure 8",
    final={"baseline": "5.18 ± 0.032", "continuous": "4.96 ± 0.012"},
    best={"baseline": "4.91 ± 0.001", "continuous": "4.87 ± 0.035"},
    words="10 steps, 500 iterations of 30 x 4 crops of 1024, learning rate 0.0006, 3 seeds",
    beside="byte pairs",
    habits={"iterations": 2000},  # 500 in the paper
    habit="the rate only rises, gradients are summed over the parts of a batch",
)
