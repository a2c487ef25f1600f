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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wflow import study
from wflow._checks import number, whole
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.nets import GPT, ContinuousTransformer, NodeTransformer, _experiment, data, diagnostics
from wflow.nets import train as training
from wflow.nets._experiment import Run, Trained

if TYPE_CHECKING:
    from xarray import Dataset

REPLACED = (0.0, 0.005, 0.01, 0.05, 0.1)
LAMS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
STEPS = (1, 5, 10, 15, 20)
EVALUATION = 64  # windows at a time
SAMPLE = 500  # characters
# [OTT] Tables 3, 5 and 10: final test loss.
PUBLISHED = {"baseline": "2.68 ± 0.006", "continuous": "1.44 ± 0.005"}
PUBLISHED |= dict(
    zip((f"lam={v:g}" for v in LAMS), ("2.68", "2.29", "2.05", "1.52", "1.44", "1.48"), strict=True)
)
PUBLISHED |= dict(
    zip((f"steps={v}" for v in STEPS), ("1.46", "1.43", "1.44", "1.46", "1.49"), strict=True)
)
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
    evaluate_every: int = 250
    share: float = 1.0


PRESETS = {
    "paper": Setup(),
    "cpu": Setup(
        seeds=2,
        iterations=1000,
        batch=16,
        accumulate=1,
        context=64,
        baseline=Size(4, 4, 64),
        continuous=Size(3, 4, 56),
        steps=5,
        evaluate_every=100,
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
class ShakespeareGpt(_experiment.NetFlags):
    """Flags of this study."""

    ablation: Literal["none", "lam", "steps"] = "none"
    """Compare weights lam of the transport cost, or numbers of steps, in place of the models."""
    iterations: int | None = None
    """Optimiser steps; default: of the preset."""
    steps: int | None = None
    """Steps M of the continuous models; default: of the preset."""
    lam: float | None = None
    """Weight lam of the transport cost as published, without the 1/2; default: of the preset."""
    share: float | None = None
    """Share of the training text that is used, from its beginning; default: all of it."""
    out: study.Folder = Path("results/shakespeare_gpt")
    """Folder for checkpoints, metrics, summary, samples and figures."""

    def check(self) -> None:
        super().check()
        for name in ("iterations", "steps"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"--{name}")
        if self.lam is not None:
            number(self.lam, "--lam", least=0.0)
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
            rate=1e-3, least=1e-4, warm_up=min(100, setup.iterations // 2), steps=setup.iterations
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
    batches = data.CropBatches(part, context=setup.context, batch=rows, seed=seed)
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
    for logits, targets in _experiment.outputs(net, windows, device):
        total += float(training.cross_entropy(logits.float(), targets)) * targets.numel()
        count += targets.numel()
    return total / count


def examine(found: Trained, setup: Setup, text: data.Text, seed: int) -> dict[str, Any]:
    """Everything that is asked of a trained network."""
    net, device = found.model, found.device
    assert isinstance(net, GPT)
    curve = found.history["test_loss"].values
    record: dict[str, Any] = {
        "final": float(curve[-1]),
        "best": float(np.nanmin(curve)),
        "training": float(found.history["data"].values[-50:].mean()),
        "replaced": [
            loss_on(
                net,
                data.replace_tokens(text.test, rate, text.vocabulary, seed),
                setup.context,
                device,
            )
            for rate in REPLACED
        ],
        "milliseconds": 1e3 * float(np.median(found.history["seconds"].values)),
        "seconds": float(found.history["seconds"].sum()),
        "straightness": math.nan,
        "transport": math.nan,
    }
    if isinstance(net.body, ContinuousTransformer | NodeTransformer):
        inputs, _ = next(iter(data.windows(text.test, context=setup.context, batch=8)))
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
    setup = _experiment.with_flags(PRESETS[flags.preset], flags)
    listed = models(setup, flags.ablation)
    names = _experiment.chosen(listed, flags)
    text = (
        data.embedded_text()
        if setup.text == "embedded"
        else data.shakespeare(tokens="characters", folder=flags.data)
    )
    if setup.context >= len(text.test):
        setup = replace(setup, context=len(text.test) - 1)
    clock = _experiment.Clock()
    with study.session("shakespeare_gpt", flags) as session:
        records: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        curves: dict[str, list[Dataset]] = {name: [] for name in names}
        samples: dict[str, str] = {}
        for seed in range(setup.seeds):
            for name in names:
                run = plan(listed[name], setup, text, flags, seed)
                folder = f"{name.replace(' ', '-')}-{seed}"
                found = _experiment.trained(session, flags, folder, run)
                records[name].append(examine(found, setup, text, seed))
                curves[name].append(found.history)
                if seed == 0:
                    assert isinstance(found.model, GPT)
                    samples[name] = sample(found.model, text, found.device, seed)
        pieces = [f"## {name}\n{written}\n" for name, written in samples.items()]
        (flags.out / "samples.txt").write_text("\n".join(pieces), encoding="utf-8")
        # What a network of seconds finds is no evidence for or against the paper.
        complete = (
            flags.ablation == "none" and len(names) == len(listed) and flags.preset != "smoke"
        )
        session.finish(
            table=tabulated(records),
            text=report(flags, setup, text, listed, records, clock()),
            findings=findings(records) if complete else [],
            figures=figures(records, curves),
        )
    return 0


def tabulated(records: Mapping[str, list[dict[str, Any]]]) -> "Dataset":
    """All numbers as a Dataset."""
    import xarray

    one = ("model", "seed")
    names = {
        "final": ("test loss after the last iteration", "1"),
        "best": ("least test loss of any evaluation", "1"),
        "training": ("training loss, mean of the last 50 iterations", "1"),
        "straightness": ("arc length over chord of hidden states", "1"),
        "transport": ("transport cost on test text", "1"),
        "milliseconds": ("median time of an iteration", "ms"),
        "seconds": ("time of all iterations", "s"),
    }
    variables: dict[str, Any] = {
        key: (one, _experiment.stacked(records, key), {"long_name": text, "units": unit})
        for key, (text, unit) in names.items()
    }
    variables["loss_replaced"] = (
        (*one, "rate"),
        _experiment.stacked(records, "replaced"),
        {"long_name": "test loss with characters replaced at random", "units": "1"},
    )
    coords = {
        "model": ("model", list(records), {"long_name": "model"}),
        "seed": ("seed", range(len(next(iter(records.values())))), {"long_name": "seed"}),
        "rate": ("rate", list(REPLACED), {"long_name": "share of characters replaced"}),
    }
    return xarray.Dataset(variables, coords)


def report(
    flags: ShakespeareGpt,
    setup: Setup,
    text: data.Text,
    listed: Mapping[str, Model],
    records: Mapping[str, list[dict[str, Any]]],
    seconds: float,
) -> str:
    """The tables, beside the published ones."""
    names = list(records)

    def column(key: str, style: str, of: Any = lambda value: value) -> list[str]:
        return [
            _experiment.mean_and_spread(
                [of(record[key]) for record in records[name]], lambda value: f"{value:{style}}"
            )
            for name in names
        ]

    sizes = [network(listed[name], setup, text.vocabulary, 0).count() for name in names]
    times = [np.mean([record["milliseconds"] for record in records[name]]) for name in names]
    main_table = {
        "model": names,
        "parameters": [f"{size / 1e6:.3g}M" for size in sizes],
        "final test loss": column("final", ".3f"),
        "best": column("best", ".3f"),
        "published final": _experiment.versus(PUBLISHED, names),
        "perplexity": column("final", ".2f", math.exp),
        "training loss": column("training", ".3f"),
        "arc over chord": column("straightness", ".3f"),
        "transport cost": column("transport", ".3g"),
        "ms per iteration": [f"{value:.0f}" for value in times],
    }
    if "baseline" in names:
        main_table["times baseline"] = [
            f"{value / times[names.index('baseline')]:.2f}" for value in times
        ]
    by_rate: dict[str, list[str]] = {"replaced": [f"{rate:g}" for rate in REPLACED]}
    for name in names:
        by_rate[name] = [
            _experiment.mean_and_spread(
                [record["replaced"][k] for record in records[name]], lambda value: f"{value:.3f}"
            )
            for k in range(len(REPLACED))
        ]
        if name in PUBLISHED_REPLACED:
            by_rate["published" + " " * len(by_rate)] = [
                f"{value:.2f}" for value in PUBLISHED_REPLACED[name]
            ]
    used = "" if setup.share == 1 else f", the first {100 * setup.share:g} % of the training part"
    return "\n\n".join(
        (
            f"Data: {text.source}{used}. Device: {_experiment.described(flags.device)}, "
            f"{flags.precision}. {setup.iterations} iterations of {setup.batch} x "
            f"{setup.accumulate} crops of {setup.context} characters; baseline "
            f"{shown(setup.baseline)}, continuous models "
            f"{shown(setup.continuous)} without layer norms, T = 1, "
            f"{setup.steps} Euler steps, lam = {setup.lam:g}, dropout {setup.dropout:g}; "
            f"{setup.seeds} seed{'s' if setup.seeds > 1 else ''}; {seconds:.0f} s in all. "
            "± is the standard deviation over seeds. Published: blocks x heads x width 6 x 6 x 384 "
            "and 5 x 5 x 320, 5,000 iterations of 64 x 4 crops of 256, 3 seeds; one iteration of "
            "the continuous model took 2.7 times that of the baseline (A100).",
            study.markdown_table(main_table),
            "Test loss with characters of the test text replaced at random:",
            study.markdown_table(by_rate),
        )
    )


def shown(size: Size) -> str:
    return f"{size.depth} x {size.heads} x {size.width}"


def findings(records: Mapping[str, list[dict[str, Any]]]) -> list[study.Finding]:
    """What the paper claims, and what came out."""

    def values(name: str, of: Any) -> np.ndarray:
        return np.array([of(record) for record in records[name]])

    def better(one: str, other: str, of: Any) -> tuple[str, Any]:
        low, high = values(one, of), values(other, of)
        gap = high.mean() - low.mean()
        noise = float(np.hypot(low.std(ddof=1), high.std(ddof=1))) if len(low) > 1 else 0.0
        verdict = "held" if gap > noise else "held in part" if gap > 0 else "not held"
        return f"{gap:+.3f}, spread over seeds {noise:.3f}", verdict

    def final(record: Mapping[str, Any]) -> float:
        return float(record["final"])

    def rise(record: Mapping[str, Any]) -> float:
        return float(record["final"] - record["best"])

    def replaced(record: Mapping[str, Any]) -> float:
        return float(record["replaced"][-1])

    claims: Sequence[tuple[str, str, str, str, Any]] = (
        ("the continuous model with transport cost ends with a lower test loss than the larger "
         "baseline", "[OTT] Table 10", "continuous", "baseline", final),
        ("the transport cost lowers the test loss of the continuous model", "[OTT] Table 5",
         "continuous", "unregularised", final),
        ("it lowers it more than that of the N-ODE transformer", "[OTT] Appendix I",
         "continuous", "node with cost", final),
        ("the test loss of the continuous model rises less after its best value", "[OTT] Figure 6",
         "continuous", "baseline", rise),
        ("with a tenth of the characters replaced the continuous model loses less",
         "[OTT] Table 3", "continuous", "baseline", replaced),
    )  # fmt: skip
    found = []
    for statement, source, one, other, of in claims:
        text, verdict = better(one, other, of)
        found.append(study.Finding(statement, source, text, verdict))
    return found


def figures(
    records: Mapping[str, list[dict[str, Any]]], curves: "Mapping[str, list[Dataset]]"
) -> dict[str, Any]:
    """Learning curves, and the loss with characters replaced."""
    from wflow.nets._experiment_figures import Line, learning_curves, lines

    rates = [max(rate, 0.0025) for rate in REPLACED]  # the first one is 0
    drawn = [
        Line(name, rates, [record["replaced"] for record in rows]) for name, rows in records.items()
    ]
    return {
        "learning_curves": learning_curves(
            curves, {"data": "training loss", "test_loss": "test loss"}
        ),
        "robustness": lines(
            {"characters replaced": ("share replaced (0 at the left)", drawn)}, "test loss"
        ),
    }


if __name__ == "__main__":
    sys.exit(guarded(main))
