"""GPT-2 as [OTT] trains it: what the studies `shakespeare_words` and `web_text` share.

Baseline and continuous models have the same parameters: in the latter blocks and final norm
together are the velocity of the hidden states. A study adds its text, its presets and its published
numbers, an `Experiment`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from _ott import claim, with_habits

from wflow import InputError, nets, study
from wflow._core.checks import whole
from wflow.study import Finding, networks
from wflow.study.networks import Record, Results, Run, Trained
from wflow.study.texts import (
    KINDS,
    SCALARS,
    SCORES,
    WINDOWS,
    NextToken,
    Published,
    Size,
    TextFlags,
    absent,
    measured,
    overfits,
    samples,
    scored,
    training,
    with_final_norm,
)

PARAMETERS = "123.7M"  # published, of all models
SIZE = Size(12, 12, 768)


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change; those of the published network."""

    text: str
    iterations: int
    crops: int
    parts: int
    seeds: int
    evaluate_every: int
    vocabulary: int | None = 50257  # None: of the tokens that occur
    context: int = 1024
    size: Size = SIZE
    steps: int = 10
    lam: float = 1.0
    dropout: float = 0.0
    rate: float = 6e-4
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


class Model(NamedTuple):
    """One model of the comparison."""

    name: str
    continuous: bool
    lam: float


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What a study of GPT-2 has of its own."""

    name: str
    presets: Mapping[str, Setup]
    load: Callable[[Setup, Any], Any]
    warm_up: Callable[[Setup], int]
    table: str  # of [OTT]
    figure: str  # its learning curves
    final: Mapping[str, str]  # published test losses by model
    best: Mapping[str, str]
    words: str  # how the published networks were trained
    beside: str  # text whose numbers stand beside the published ones
    habits: Mapping[str, Any]  # what --published changes in the preset `paper`
    habit: str  # and what else it does
    perplexity: Mapping[str, str] = field(default_factory=dict)
    scores: Published = field(default_factory=dict)
    compared: Sequence[str] = ("rougeL",)  # scores of texts that are decided on

    def asked(self, flags: Any) -> Setup:
        """The set-up of the preset, with the habits of the published code if asked for."""
        setup = self.presets[flags.preset]
        if not flags.published:
            return setup
        return replace(setup, published=True, **(self.habits if flags.preset == "paper" else {}))


@dataclass(frozen=True, kw_only=True)
class Gpt2Flags(TextFlags):
    """Flags of the studies of GPT-2."""

    parts: int | None = None
    """Parts in which a process computes its share of a batch, for memory; default: of the
    preset."""

    def check(self) -> None:
        super().check()
        if self.parts is not None:
            whole(self.parts, "--parts")


def models(setup: Setup) -> dict[str, Model]:
    """The models by name."""
    chosen = [
        Model("baseline", False, 0.0),
        Model("unregularised", True, 0.0),
        Model("continuous", True, setup.lam),
    ]
    return {model.name: model for model in chosen}


def network(model: Model, setup: Setup, vocabulary: int, seed: int) -> nets.GPT:
    """A network with weights drawn from its seed: biases and layer norms, as published."""
    import torch

    torch.manual_seed(seed)
    net = nets.GPT(
        vocabulary=vocabulary,
        context=setup.context,
        depth=setup.size.depth,
        heads=setup.size.heads,
        width=setup.size.width,
        bias=True,
        dropout=setup.dropout,
    )
    if model.continuous:
        net = with_final_norm(net, setup.steps)
        net.body.checkpointing = setup.checkpointing  # type: ignore[assignment]
    return net


def plan(
    experiment: Experiment, model: Model, setup: Setup, text: Any, flags: Any, seed: int
) -> Run:
    """The training run of one model with one seed."""
    objective = NextToken(
        2 * model.lam,  # the published cost has no 1/2
        scale=setup.parts if setup.published else 1.0,
    )
    return training(
        network(model, setup, text.vocabulary, seed),
        objective,
        text,
        setup,
        flags,
        seed,
        warm_up=experiment.warm_up(setup),
        betas=(0.9, 0.95),
    )


def examine(name: str, trained: Trained, setup: Setup, text: Any, flags: Any, seed: int) -> Record:
    """All quantities of a trained network, from the file in its folder where it has them."""
    return networks.cached_record(
        networks.folder_of(flags.out, name, seed),
        [text.source, asdict(replace(setup, seeds=0)), flags.encoder, absent()],
        trained,
        lambda: measured(trained, text, setup, seed, flags.encoder),
    )


def report(experiment: Experiment, flags: Any, setup: Setup, text: Any, results: Results) -> str:
    """The tables, beside the published ones."""
    names = list(results.records)
    column = partial(networks.column, results)

    def published(values: Mapping[str, str]) -> list[str]:
        return [values.get(name, "–") for name in names]

    listed = models(setup)
    sizes = [network(listed[name], setup, text.vocabulary, 0).count() for name in names]
    numbers = {name: float(value.split()[0]) for name, value in experiment.final.items()}
    table = {
        "model": names,
        "parameters": [f"{size / 1e6:.4g}M" for size in sizes],
        "best test loss": column("best", ".3f"),
        "published best": published(experiment.best),
        "final test loss": column("final", ".3f"),
        "published final": published(experiment.final),
        "difference": networks.differences(results, "final", numbers, "+.2f"),
        "perplexity": column("perplexity", ".1f"),
        "mean over windows": column("perplexity_windows", ".1f"),
        "published perplexity": published(experiment.perplexity),
        "training loss": column("training", ".3f"),
        "arc over chord": column("straightness", ".3f"),
        "speed variation": column("speed_variation", ".3f"),
        "transport cost": column("transport", ".3g"),
        "ms per iteration": column("milliseconds", ".0f"),
    }
    if not experiment.perplexity:
        del table["published perplexity"]
    used = "" if setup.share == 1 else f", the first {100 * setup.share:g} % of the training part"
    lead = (
        f"{networks.caption(flags, setup.seeds, results, text.source + used)} "
        f"{setup.iterations:,} iterations of {setup.crops} crops of {setup.context} tokens in "
        f"{setup.parts} part{'s' * (setup.parts > 1)}"
        f"{', ' + experiment.habit if setup.published else ''}; blocks x heads x width: "
        f"{setup.size}, with biases and layer norms, the final one within the velocity; T = 1, "
        f"{setup.steps} Euler steps, lam = {setup.lam:g} (of the cost without the 1/2; the column "
        f"has it), dropout {setup.dropout:g}, learning rate {setup.rate:g} to a tenth of it. "
        f"Parameters without those of the positions. Perplexity is the exponential of the final "
        f"test loss; the mean over windows of {setup.context} tokens is that of the published "
        f"code. Test losses are those of the whole test part; hidden states those of {WINDOWS} "
        "windows of it."
    )
    beside = setup.text == experiment.beside
    if beside:
        lead += f" Published: 12 x 12 x 768, {PARAMETERS} parameters each, {experiment.words}."
    else:
        table = networks.unpublished(table)
    if {"baseline", "continuous"} <= set(names) and not overfits(results):
        lead += " The baseline does not overfit here: its test loss is lowest at the end."
    scores = scored(results, setup, flags.encoder, experiment.scores if beside else {})
    return "\n\n".join((lead, study.markdown_table(table), scores))


def findings(experiment: Experiment, results: Results) -> list[Finding]:
    """Claims of the paper, with their verdicts."""

    def values(name: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[name]])

    def rise(name: str) -> np.ndarray:
        return values(name, "final") - values(name, "best")

    def less(key: str, than: str = "baseline") -> tuple[np.ndarray, np.ndarray]:
        return -values("continuous", key), -values(than, key)

    table = f"[OTT] {experiment.table}"
    made = partial(claim, unit="")
    verdicts = [
        made("the continuous model with transport cost ends with a lower test loss than the "
             "baseline of the same size", table, less("final")),
        made("its best test loss is lower, too", table, less("best")),
        made("the transport cost lowers the final test loss of the continuous model",
             "[OTT] section 5.5", less("final", "unregularised")),
        made("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
             less("straightness", "unregularised")),
    ]  # fmt: skip
    if experiment.perplexity:
        verdicts.append(
            made("its perplexity, the mean over windows, is lower", table,
                 less("perplexity_windows"))
        )  # fmt: skip
    if overfits(results):
        verdicts.append(
            made("the test loss of the continuous model rises less after its best value",
                 f"[OTT] {experiment.figure}", (-rise("continuous"), -rise("baseline")))
        )  # fmt: skip
    for kind, words in KINDS.items():
        for key in experiment.compared:
            pair = values("continuous", f"{kind}_{key}"), values("baseline", f"{kind}_{key}")
            if np.isfinite(pair).any():  # else none was measured
                verdicts.append(
                    made(f"the continuous model has the higher {SCORES[key]} of {words}",
                         "[OTT] Table 13", pair)
                )  # fmt: skip
    return verdicts


def run(experiment: Experiment, flags: Any) -> int:
    """The study: train, measure, decide, write."""
    asked = experiment.asked(flags)
    setup = networks.with_flags(asked, flags)
    if setup.crops % setup.parts:
        raise InputError(
            f"--parts is {setup.parts}: expected a divisor of the {setup.crops} crops of a batch"
        )
    listed = models(setup)
    names = networks.chosen(listed, setup.seeds, flags)
    with study.session(experiment.name, flags) as session:
        text: Any = networks.on_rank_zero(flags, lambda: experiment.load(setup, flags))
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(experiment, listed[name], setup, text, flags, seed),
            lambda name, seed, trained: examine(name, trained, setup, text, flags, seed),
        )
        # Parts of a batch are a matter of memory: the same batch in others is the same preset.
        same = replace(setup, parts=asked.parts)
        whole = networks.is_preset(same, flags, {flags.preset: asked})
        decided = findings(experiment, results) if whole and len(names) == len(listed) else []
        session.finish(
            table=networks.dataset(results, SCALARS, {}, {}),
            text=report(experiment, flags, setup, text, results),
            findings=with_habits(decided, flags),
            figures=figures(results),
            texts={"samples.txt": samples(results)},
        )
    return 0


def figures(results: Results) -> dict[str, Any]:
    """Learning curves."""
    from wflow.plots.networks import learning_curves

    curves = {"data": "training loss", "test_loss": "test loss"}
    return {"learning_curves": learning_curves(results.histories, curves)}
