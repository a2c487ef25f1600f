"""GPT-2 as [OTT] trains it: what the studies `shakespeare_words` and `web_text` share.

Baseline and continuous models have the same parameters: in the latter blocks and final norm
together are the velocity of the hidden states. A study adds its text, its presets, and what of
[OTT] it is compared with: a class of flags.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import _ott as ott
import numpy as np
from _ott import claim, less, more

from wflow import nets, study
from wflow.study import networks, texts
from wflow.study.networks import Results, Run

PARAMETERS = "123.7M"  # published, of all models


@dataclass(frozen=True, kw_only=True)
class Gpt2Flags(texts.TextFlags):
    """Flags of the studies of GPT-2."""

    table: ClassVar[str]
    """Table of [OTT] with the published numbers."""
    figure: ClassVar[str]
    """Its learning curves."""
    habit: ClassVar[str]
    """What --published does beside other defaults."""
    compared: ClassVar[tuple[str, ...]]
    """Scores of texts that are decided on."""

    indifferent: ClassVar = texts.TextFlags.indifferent | {"checkpointing"}
    size: tuple[study.Count, study.Count, study.Count] = (12, 12, 768)
    """Blocks, heads and width of all networks."""
    checkpointing: bool = True
    """Whether one step of a continuous model at a time is kept for the gradient, for memory."""

    def warm_up(self) -> int:
        """Return the number of iterations in which the rate rises."""
        raise NotImplementedError

    def as_published(self) -> bool:
        """Return whether the text is the published one."""
        raise NotImplementedError


def models(flags: Gpt2Flags) -> dict[str, ott.Model]:
    """Return the models by name."""
    return {
        "baseline": ott.Model("baseline"),
        "unregularised": ott.Model("continuous"),
        "continuous": ott.Model("continuous", flags.lam),
    }


def network(flags: Gpt2Flags, model: ott.Model, vocabulary: int, seed: int) -> nets.GPT:
    """Return a network with weights drawn from its seed: biases and layer norms, as published."""
    import torch

    torch.manual_seed(seed)
    depth, heads, width = flags.size
    net = nets.GPT(
        vocabulary=vocabulary, context=flags.context, depth=depth, heads=heads, width=width,
        bias=True, dropout=flags.dropout,
    )  # fmt: skip
    if model.kind == "continuous":
        net = texts.with_final_norm(net, flags.steps)
        net.body.checkpointing = flags.checkpointing  # type: ignore[assignment]
    return net


def plan(flags: Gpt2Flags, text: Any, model: ott.Model, seed: int) -> Run:
    """Return the training run of one model with one seed."""
    net = network(flags, model, text.vocabulary, seed)
    warm_up = flags.warm_up()
    return texts.training(flags, net, text, seed, lam=model.lam, warm_up=warm_up, betas=(0.9, 0.95))


def findings(flags: Gpt2Flags, text: Any, results: Results) -> list[study.Finding]:
    """Return claims of the paper, with their verdicts."""
    table = f"[OTT] {flags.table}"
    made = partial(claim, unit="")
    verdicts = [
        made("the continuous model with transport cost ends with a lower test loss than the "
             "baseline of the same size", table, less(results, "final")),
        made("the best test loss of the continuous model with transport cost is lower than that of "
             "the baseline", table, less(results, "best")),
        made("the transport cost lowers the final test loss of the continuous model",
             "[OTT] section 5.5", less(results, "final", "unregularised")),
        made("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
             less(results, "straightness", "unregularised")),
    ]  # fmt: skip
    if "perplexity" in ott.PUBLISHED[flags.table]:
        verdicts.append(
            made("the perplexity of the continuous model with transport cost, the mean over "
                 "windows, is lower than that of the baseline", table,
                 less(results, "perplexity_windows"))
        )  # fmt: skip
    if texts.overfits(results):
        verdicts.append(
            made("after its best value the test loss of the continuous model rises less than that "
                 "of the baseline", f"[OTT] {flags.figure}",
                 (-texts.rise(results, "continuous"), -texts.rise(results, "baseline")))
        )  # fmt: skip
    for kind, words in (("forced", "next tokens"), ("generated", "generated texts")):
        for key in flags.compared:
            pair = more(results, f"{kind}_{key}")
            if np.isfinite(pair).any():  # else none was measured
                verdicts.append(
                    made(f"the continuous model has a higher {texts.SCORES[key]} of {words} than "
                         "the baseline", "[OTT] Table 13", pair)
                )  # fmt: skip
    return ott.with_published_conventions(verdicts, flags)


def report(flags: Gpt2Flags, text: Any, results: Results) -> str:
    """Return the tables, beside the published ones."""
    names, listed, published = list(results.records), models(flags), ott.PUBLISHED[flags.table]
    column = partial(networks.column, results)
    sizes = [network(flags, listed[name], text.vocabulary, 0).count() for name in names]
    final = networks.means(published["final"])
    table = {
        "model": names,
        "parameters": [f"{size / 1e6:.4g}M" for size in sizes],
        "best test loss": column("best", ".3f"),
        "published best": ott.beside(results, published["best"]),
        "final test loss": column("final", ".3f"),
        "published final": ott.beside(results, published["final"]),
        "difference": networks.differences(results, "final", final, "+.2f"),
        "perplexity": column("perplexity", ".1f"),
        "mean over windows": column("perplexity_windows", ".1f"),
        "published perplexity": ott.beside(results, published.get("perplexity", {})),
        "training loss": column("training", ".3f"),
        **ott.motions(results),
        "ms per iteration": column("milliseconds", ".0f"),
    }
    if "perplexity" not in published:
        del table["published perplexity"]
    lead = (
        f"{networks.caption(flags, flags.seeds, results, texts.used(flags, text))} The size is "
        "blocks x heads x width, with biases and layer norms, the final one within the velocity; "
        "T = 1, Euler steps; lam weighs the cost without the 1/2, which the column has; the rate "
        f"falls to a tenth of it{', ' + flags.habit if flags.published else ''}. Parameters are "
        "without those of the positions. Perplexity is the exponential of the final test loss, "
        "the mean over windows that of the published code. Test losses are those of the whole "
        f"test part; hidden states those of {texts.WINDOWS} windows of it."
    )
    scores = published.get("scores", {})
    if flags.as_published():
        lead += f" Published: {PARAMETERS} parameters each."
    else:
        table, scores = networks.unpublished(table), {}
    if {"baseline", "continuous"} <= set(names) and not texts.overfits(results):
        lead += " The baseline does not overfit here: its test loss is lowest at the end."
    return "\n\n".join((lead, study.markdown_table(table), texts.scored(flags, results, scores)))


def experiment(name: str, load: Callable[[Any], Any]) -> networks.Experiment[Any, Any]:
    """Return the study of a text that `load` makes of the flags."""
    return networks.Experiment(
        name=name, models=models, load=load, plan=plan,
        measure=lambda flags, text, _, trained, seed: texts.measured(flags, text, trained, seed),
        numbers=texts.SCALARS, text=report, findings=findings,
        figures=lambda _, results: ott.learning_curves(results, "test_loss"),
        texts=lambda _, results: texts.samples(results),
    )  # fmt: skip
