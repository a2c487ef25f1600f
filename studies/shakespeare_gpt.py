"""Characters of Shakespeare with a GPT: discrete, continuous in time, and with its transport cost.

A causal transformer learns the next character. The baseline applies its blocks once; the continuous
models let fewer and narrower blocks be the velocity of the hidden states: all of them one system,
or one system per block (`node`, the N-ODE transformer). Test loss and perplexity on the last tenth
of the text, with characters replaced at random too, and samples: [OTT] section 5.4, Tables 3, 4, 5
and 10.

The published runs weigh the mean square of the velocity without the factor 1/2 of [OTT1] eq. 8:
`--lam` is theirs, twice that of `ContinuousTransformer(cost="mean")`.

    python studies/shakespeare_gpt.py --preset cpu
    python studies/shakespeare_gpt.py --preset paper --ablation lam

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wflow import _net_study, study
from wflow._checks import positive, whole
from wflow._net_study import Record, Results, Run, Trained
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.nets import GPT, ContinuousTransformer, NodeTransformer, data, diagnostics
from wflow.nets import train as training

REPLACED = (0.0, 0.005, 0.01, 0.05, 0.1)
LAMS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
STEPS = (1, 5, 10, 15, 20)
EVALUATION = 64  # windows at a time
SAMPLE = 500  # characters
WINDOWS = 8  # of the test text, whose hidden states are followed
DEFAULT_OUT = Path("results/shakespeare_gpt")
# [OTT] Tables 10, 5 and 3: test loss and perplexity.
PUBLISHED = {"baseline": "2.68 ± 0.006", "continuous": "1.44 ± 0.005"}
PUBLISHED |= dict(
    zip((f"lam={v:g}" for v in LAMS), ("2.68", "2.29", "2.05", "1.52", "1.44", "1.48"), strict=True)
)
PUBLISHED |= dict(
    zip((f"steps={v}" for v in STEPS), ("1.46", "1.43", "1.44", "1.46", "1.49"), strict=True)
)
PUBLISHED_BEST = {"baseline": "1.47 ± 0.005", "continuous": "1.44 ± 0.004"}
PUBLISHED_PERPLEXITY = {"baseline": "17.26", "continuous": "4.40"}
PUBLISHED_REPLACED = {
    "baseline": (2.68, 2.78, 2.88, 3.65, 4.60),
    "continuous": (1.44, 1.49, 1.55, 1.95, 2.42),
}


class Size(NamedTuple):
    """Blocks, heads and width of a network."""

    depth: int
    heads: int
    width: int


PAPER_BASELINE, PAPER_CONTINUOUS = Size(6, 6, 384), Size(5, 5, 320)


@dataclass(frozen=True)
class Setup:
    """What a preset decides, and flags may decide otherwise."""

    text: str = "characters"
    seeds: int = 3
    iterations: int = 5000
    batch: int = 64
    accumulate: int = 4
    context: int = 256
    baseline: Size = PAPER_BASELINE
    continuous: Size = PAPER_CONTINUOUS
    steps: int = 10
    lam: float = 1.0
    dropout: float = 0.2
    rate: float = 1e-3
    evaluate_every: int = 250
    share: float = 1.0


PRESETS = {
    "paper": Setup(),
    # 5,019 characters, which can be learnt by heart as the whole text is in the published run; a
    # network four times narrower learns with four times the rate.
    "cpu": Setup(
        seeds=2,
        iterations=1000,
        batch=16,
        accumulate=1,
        context=64,
        baseline=Size(4, 4, 96),
        continuous=Size(3, 4, 80),
        steps=5,
        rate=4e-3,
        evaluate_every=125,
        share=0.005,
    ),
    "smoke": Setup(
        text="embedded",
        seeds=1,
        iterations=6,
        batch=4,
        accumulate=2,
        context=16,
        baseline=Size(2, 2, 16),
        continuous=Size(1, 2, 12),
        steps=2,
        evaluate_every=3,
    ),
}


class Model(NamedTuple):
    """One model of the comparison."""

    name: str
    kind: Literal["baseline", "continuous", "node"]
    lam: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class ShakespeareGpt(_net_study.NetFlags):
    """Flags of this study."""

    ablation: Literal["none", "lam", "steps"] = "none"
    """Compare weights lam of the transport cost, or numbers of steps, in place of the models; by
    default in a folder of its own, results/shakespeare_gpt_lam or _steps."""
    iterations: int | None = None
    """Optimiser steps; default: of the preset."""
    rate: float | None = None
    """Learning rate after the warm-up; it falls to a tenth. Default: of the preset."""
    share: float | None = None
    """Share of the training text that is used, from its beginning; default: of the preset."""
    out: study.Folder = DEFAULT_OUT
    """Folder for checkpoints, metrics, summary, samples and figures."""

    def check(self) -> None:
        super().check()
        if self.iterations is not None:
            whole(self.iterations, "--iterations")
        if self.rate is not None:
            positive(self.rate, "--rate")
        if self.share is not None and not 0 < self.share <= 1:
            raise InputError(f"--share is {self.share}: expected a number in (0, 1]")


def models(setup: Setup, ablation: str) -> dict[str, Model]:
    """The models of a comparison by name."""
    lam, steps = setup.lam, setup.steps
    found = [
        Model("baseline", "baseline", 0.0, 1),
        Model("unregularised", "continuous", 0.0, steps),
        Model("node", "node", 0.0, steps),
        Model("node with cost", "node", lam, steps),
        Model("continuous", "continuous", lam, steps),
    ]
    if ablation == "lam":
        found = [Model(f"lam={value:g}", "continuous", value, steps) for value in LAMS]
    elif ablation == "steps":
        found = [Model(f"steps={value}", "continuous", lam, value) for value in STEPS]
    return {model.name: model for model in found}


def network(model: Model, setup: Setup, vocabulary: int, seed: int) -> GPT:
    """A network with weights drawn from its seed."""
    torch.manual_seed(seed)
    size = setup.baseline if model.kind == "baseline" else setup.continuous
    net = GPT(
        vocabulary=vocabulary,
        context=setup.context,
        depth=size.depth,
        heads=size.heads,
        width=size.width,
        dropout=setup.dropout,
        norm=model.kind == "baseline",  # the published continuous models have no layer norms
        skip=model.kind != "node",  # [OTT] after eq. 13
    )
    if model.kind == "continuous":
        net.body = ContinuousTransformer(net.body, steps=model.steps)
    elif model.kind == "node":
        net.body = NodeTransformer(net.body, steps=model.steps)
    return net


def plan(model: Model, setup: Setup, text: data.Text, flags: ShakespeareGpt, seed: int) -> Run:
    """The training run of one model with one seed."""
    rows = setup.batch * setup.accumulate
    config = training.TrainConfig(
        steps=setup.iterations,
        batch=rows,
        accumulate=setup.accumulate,
        schedule=training.Cosine(
            rate=setup.rate,
            least=setup.rate / 10,
            warm_up=min(100, setup.iterations // 2),
            steps=setup.iterations,
        ),
        optimizer="adamw",
        betas=(0.9, 0.99),
        weight_decay=0.1,
        clip=1.0,
        evaluate_every=setup.evaluate_every,
        checkpoint_every=setup.evaluate_every,
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
    )
    part = text.train[: max(setup.context + 1, int(setup.share * len(text.train)))]
    batches = data.CropBatches(
        part, context=setup.context, batch=rows, seed=seed, vocabulary=text.vocabulary
    )
    device = training.device(flags.device)

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        return {"test_loss": loss_on(net, text.test, setup.context, device)}

    return Run(
        network(model, setup, text.vocabulary, seed),
        training.objective(training.cross_entropy, 2 * model.lam),  # theirs has no 1/2 in the cost
        batches,
        config,
        evaluate,
    )


def loss_on(net: torch.nn.Module, tokens: Tensor, context: int, device: torch.device) -> float:
    """Mean loss per token over all of a text, in windows that do not overlap."""
    total, count = 0.0, 0
    windows = data.windows(tokens, context=context, batch=EVALUATION)
    for logits, targets in _net_study.outputs(net, windows, device):
        total += float(training.cross_entropy(logits.float(), targets)) * targets.numel()
        count += targets.numel()
    return total / count


def examine(found: Trained, setup: Setup, text: data.Text, seed: int) -> Record:
    """Everything that is asked of a trained network, in single precision."""
    net, device = found.model, found.device
    record: Record = dict.fromkeys(("final", "best", "straightness", "transport"), math.nan)
    record |= {
        "training": float(found.history["data"].values[-50:].mean()),
        "replaced": [math.nan] * len(REPLACED),
        "milliseconds": 1e3 * float(np.median(found.history["seconds"].values)),
        "seconds": float(found.history["seconds"].sum()),
        "sample": "",
    }
    if found.diverged:
        return record
    assert isinstance(net, GPT)

    def loss_with(rate: float) -> float:
        tokens = data.replace_tokens(text.test, rate, text.vocabulary, seed)
        return loss_on(net, tokens, setup.context, device)

    losses = [loss_with(rate) for rate in REPLACED]
    best = float(np.nanmin(found.history["test_loss"].values))
    record |= {"final": losses[0], "best": min(best, losses[0]), "replaced": losses}
    record["sample"] = sample(net, text, device, seed)
    if isinstance(net.body, ContinuousTransformer | NodeTransformer):
        inputs, _ = next(iter(data.windows(text.test, context=setup.context, batch=WINDOWS)))
        with torch.no_grad():
            way = net.body.trajectory(net.embed(inputs.to(device)))
        record["straightness"] = float(diagnostics.straightness(way).mean())
        record["transport"] = float(way.costs.sum())
    return record


def sample(net: GPT, text: data.Text, device: torch.device, seed: int) -> str:
    """What the network writes after a line break."""
    generator = torch.Generator(device=device).manual_seed(seed)
    start = text.encode("\n")[None].to(device)
    return text.decode(net.generate(start, SAMPLE, generator=generator)[0])


def main() -> int:
    flags = study.command_line(ShakespeareGpt, __doc__)
    if flags.ablation != "none" and flags.out == DEFAULT_OUT:
        flags = replace(flags, out=DEFAULT_OUT.with_name(f"{DEFAULT_OUT.name}_{flags.ablation}"))
    setup = _net_study.with_flags(PRESETS[flags.preset], flags)
    listed = models(setup, flags.ablation)
    names = _net_study.chosen(listed, setup.seeds, flags)
    text = (
        data.embedded_text()
        if setup.text == "embedded"
        else data.shakespeare(tokens="characters", folder=flags.data)
    )
    with study.session("shakespeare_gpt", flags) as session:
        results = _net_study.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(listed[name], setup, text, flags, seed),
            lambda name, seed, found: examine(found, setup, text, seed),
        )
        pieces = [f"## {name}\n{runs[0]['sample']}\n" for name, runs in results.records.items()]
        (flags.out / "samples.txt").write_text("\n".join(pieces), encoding="utf-8")
        told = _net_study.is_preset(setup, flags, PRESETS) and flags.ablation == "none"
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, text, listed, results),
            findings=findings(results) if told and len(names) == len(listed) else [],
            figures=figures(results),
        )
    return 0


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return _net_study.dataset(
        results,
        {
            "final": ("test loss after the last iteration", "1"),
            "best": ("least test loss of any evaluation", "1"),
            "training": ("training loss, mean of the last 50 iterations", "1"),
            "straightness": ("arc length over chord of hidden states, first windows", "1"),
            "transport": ("transport cost with the factor 1/2, likewise", "1"),
            "milliseconds": ("median time of an iteration", "ms"),
            "seconds": ("time of all iterations", "s"),
        },
        {"replaced": ("loss_replaced", "rate", "test loss with characters replaced at random")},
        {"rate": (REPLACED, "share of characters replaced")},
    )


def report(
    flags: ShakespeareGpt,
    setup: Setup,
    text: data.Text,
    listed: Mapping[str, Model],
    results: Results,
) -> str:
    """The tables, beside the published ones."""
    names = list(results.records)
    beside = setup.text == "characters"  # another text has no published values

    def column(key: str, style: str) -> list[str]:
        return _net_study.column(results, key, lambda value: f"{value:{style}}")

    sizes = [network(listed[name], setup, text.vocabulary, 0).count() for name in names]
    published = {name: float(value.split()[0]) for name, value in PUBLISHED.items()}
    final = {
        name: np.array([record["final"] for record in results.records[name]]) for name in names
    }
    main_table = {
        "model": names,
        "parameters": [f"{size / 1e6:.3g}M" for size in sizes],
        "final test loss": column("final", ".3f"),
        "published final": [PUBLISHED.get(name, "–") for name in names],
        "difference": _net_study.differences(results, "final", published, "+.2f"),
        "best": column("best", ".3f"),
        "published best": [PUBLISHED_BEST.get(name, "–") for name in names],
        "perplexity": [
            _net_study.mean_and_spread(np.exp(final[name]).tolist(), lambda value: f"{value:.2f}")
            for name in names
        ],
        "published perplexity": [PUBLISHED_PERPLEXITY.get(name, "–") for name in names],
        "training loss": column("training", ".3f"),
        "arc over chord": column("straightness", ".3f"),
        "transport cost": column("transport", ".3g"),
        "ms per iteration": column("milliseconds", ".0f"),
    }
    if "; " not in results.devices and "baseline" in names:  # times of one machine
        times = {
            name: np.mean([r["milliseconds"] for r in results.records[name]]) for name in names
        }
        main_table["times baseline"] = [f"{times[name] / times['baseline']:.2f}" for name in names]
    by_rate: dict[str, list[str]] = {"replaced": [f"{rate:g}" for rate in REPLACED]}
    cells = [
        _net_study.column(results, "replaced", lambda value: f"{value:.3f}", k)
        for k in range(len(REPLACED))
    ]
    for place, name in enumerate(names):
        by_rate[name] = [row[place] for row in cells]
        if beside and name in PUBLISHED_REPLACED:
            by_rate[f"published, {name}"] = [f"{value:.2f}" for value in PUBLISHED_REPLACED[name]]
    used = "" if setup.share == 1 else f", the first {100 * setup.share:g} % of the training part"
    lead = (
        f"{_net_study.caption(flags, setup.seeds, results, text.source + used)} "
        f"{setup.iterations} iterations of {setup.batch} x {setup.accumulate} crops of "
        f"{setup.context} characters; blocks x heads x width: baseline {shown(setup.baseline)}, "
        f"continuous models {shown(setup.continuous)} without layer norms, T = 1, {setup.steps} "
        f"Euler steps, lam = {setup.lam:g} (of the cost without the 1/2; the column has it), "
        f"dropout {setup.dropout:g}, learning rate {setup.rate:g} to a tenth of it. Hidden states "
        f"are those of {WINDOWS} windows of the test text."
    )
    if beside:
        lead += (
            " Published: 6 x 6 x 384 and 5 x 5 x 320, 10 steps, 5,000 iterations of 64 x 4 crops "
            "of 256, learning rate 0.001, 3 seeds; an iteration of the continuous model took 2.7 "
            "times that of the baseline (A100). Table 11 of [OTT] has perplexities 14.59 and 4.22, "
            "the exponentials of its losses."
        )
    else:
        main_table = _net_study.unpublished(main_table)
    if {"baseline", "continuous"} <= set(names) and not overfits(results):
        lead += (
            " The baseline does not overfit here: its test loss is lowest at the end. The "
            "published gain is one of avoided overfitting, which this set-up cannot show."
        )
    return "\n\n".join(
        (
            lead,
            study.markdown_table(main_table),
            "Test loss with characters of the test text replaced at random, inputs and targets:",
            study.markdown_table(by_rate),
        )
    )


def shown(size: Size) -> str:
    return f"{size.depth} x {size.heads} x {size.width}"


def overfits(results: Results) -> bool:
    """Whether the test loss of the baseline rises again after its best value."""
    rises = [record["final"] - record["best"] for record in results.records["baseline"]]
    return bool(np.mean(rises) > 0.02)


def findings(results: Results) -> list[study.Finding]:
    """What the paper claims, and what came out."""

    def values(name: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[name]])

    def gain(of: str, over: str) -> np.ndarray:
        return values(over, "final") - values(of, "final")

    def rise(name: str) -> np.ndarray:
        return values(name, "final") - values(name, "best")

    def loss(name: str) -> np.ndarray:
        replaced = values(name, "replaced")
        return replaced[:, -1] - replaced[:, 0]

    nothing = np.zeros(len(results.records["baseline"]))
    claims = [
        ("the continuous model with transport cost ends with a lower test loss than the larger "
         "baseline", "[OTT] Table 10", gain("continuous", "baseline"), nothing),
        ("the transport cost lowers the test loss of the continuous model", "[OTT] Table 5",
         gain("continuous", "unregularised"), nothing),
        ("it lowers it more than that of the N-ODE transformer",
         "[OTT] Appendix I, of sentiments and cats and dogs",
         gain("continuous", "unregularised"), gain("node with cost", "node")),
        ("with a tenth of the characters replaced the test loss of the continuous model rises less",
         "[OTT] Table 3", loss("baseline"), loss("continuous")),
        ("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
         values("unregularised", "straightness"), values("continuous", "straightness")),
    ]  # fmt: skip
    if overfits(results):
        claims.append(
            ("the test loss of the continuous model rises less after its best value",
             "[OTT] Figure 6", rise("baseline"), rise("continuous"))
        )  # fmt: skip
    found = []
    for statement, source, high, low in claims:
        text, verdict = _net_study.compared(high, low)
        found.append(study.Finding(statement, source, f"difference {text}", verdict))
    return found


def figures(results: Results) -> dict[str, Any]:
    """Learning curves, and the loss with characters replaced."""
    from wflow._net_figures import Line, learning_curves, lines

    drawn = [
        Line(name, REPLACED, [record["replaced"] for record in runs])
        for name, runs in results.records.items()
    ]
    curves = {"data": "training loss", "test_loss": "test loss"}
    return {
        "learning_curves": learning_curves(results.histories, curves),
        "robustness": lines({"characters replaced": ("share replaced", drawn)}, "test loss"),
    }


if __name__ == "__main__":
    sys.exit(guarded(main))
