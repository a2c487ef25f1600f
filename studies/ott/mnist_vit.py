"""Digits with a vision transformer: discrete, continuous in time, and with its transport cost.

The baseline applies one block with one head and a feed-forward layer once: 92,938 parameters, as
the 93k of [OTT] Table 7. The continuous model lets a block of half the width without that layer be
the velocity of the hidden states (17,546 parameters, 18k there), and the loss adds lam times the
transport cost. "attention alone" is the baseline without its feed-forward layer. Test accuracy,
accuracy under noise and with fewer steps than in training, and how straight the hidden states move:
[OTT] section 5.2, Tables 2, 3 and 7; [OTT1] Table 5.

With one block the N-ODE transformer is the same system as the continuous one ([OTT] Appendix I).

    python studies/ott/mnist_vit.py --preset cpu

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import _ott as ott
from _ott import claim, less, more

from wflow import nets, study
from wflow.cli import script
from wflow.study import networks
from wflow.study.frame import Verdict
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch

DISCRETE, CONTINUOUS = ("baseline", "attention alone"), ("unregularised", "continuous")
LEVELS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5)  # of noise
INFERENCE = (1, 2, 4, 8, 16, 20)  # steps
EVALUATION = 1000  # images at a time
MNIST = 60_000  # training digits


@dataclass(frozen=True, kw_only=True)
class MnistVit(networks.NetFlags):
    """Flags of this study."""

    torchrun: ClassVar = "batches"
    durations: ClassVar = {
        "smoke": "seconds",
        "cpu": "minutes a model on two cores",
        "paper": "a minute of a GPU",
    }
    presets: ClassVar = {
        "paper": {},
        "cpu": {"digits": 10_000, "seeds": 2, "epochs": 15},
        "smoke": {
            "dataset": "digits", "seeds": 2, "epochs": 2, "batch": 50, "patch": 2,
            "width_baseline": 16, "hidden_baseline": 16, "width": 8, "steps": 4,
        },
    }  # fmt: skip
    dataset: Literal["mnist", "digits"] = "mnist"
    """Digits of MNIST, or the small ones of scikit-learn."""
    digits: study.Count = MNIST
    """Number of training digits, of the 60,000 of MNIST."""
    seeds: study.Count = 5
    epochs: study.Count = 45
    """Epochs; the learning rate falls after 35/45 and 41/45 of them."""
    batch: study.Count = 100
    """Images in a batch."""
    patch: study.Count = 7
    """Side of a patch, in pixels."""
    width_baseline: study.Count = 128
    """Width of the hidden states of the baseline."""
    hidden_baseline: study.Count = 128
    """Width of its feed-forward layer."""
    width: study.Count = 64
    """Width of those of the continuous models."""
    steps: networks.Steps = 20
    """Steps M of the continuous models in training."""
    lam: study.Nonnegative = 0.01
    """Weight lam of the transport cost."""
    cost: Literal["mean", "sum"] = "mean"
    """Transport cost over the entries of the hidden states ([OTT1] eq. 8), or their sum ([OTT])."""
    noise_on: Literal["inputs", "pixels"] = "inputs"
    """Add noise to normalised inputs, or to pixels in [0, 1]. [OTT] does not say which; the losses
    of accuracy that it reports are those of the former."""
    out: study.Folder = Path("results/mnist_vit")


# Data and trainings
# ------------------


def load(flags: MnistVit) -> nets.data.Images:
    """Return the digits that the flags ask for."""
    if flags.dataset == "mnist":
        part = None if flags.digits == MNIST else flags.digits
        return nets.data.mnist(folder=flags.data, digits=part)
    images = nets.data.digits()
    if flags.digits >= len(images.train_images):
        return images
    return replace(
        images,
        train_images=images.train_images[: flags.digits],
        train_labels=images.train_labels[: flags.digits],
        source=f"the first {flags.digits:,} of {images.source}",
    )


def network(flags: MnistVit, name: str, images: nets.data.Images, seed: int) -> nets.ViT:
    """Return a model with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    size = images.train_images.shape[1:]
    discrete = name in DISCRETE
    model = nets.ViT(
        image=(1, *size),
        patch=flags.patch,
        classes=10,
        width=flags.width_baseline if discrete else flags.width,
        hidden=flags.hidden_baseline if name == "baseline" else None,
    )
    if not discrete:
        model.body = nets.ContinuousTransformer(model.body, steps=flags.steps, cost=flags.cost)
    return model


def plan(flags: MnistVit, images: nets.data.Images, name: str, seed: int) -> Run:
    """Return the training run of one model with one seed."""
    import torch

    source = nets.data.ImageBatches(
        images.train_images, images.train_labels, batch=flags.batch, seed=seed, mean=images.mean,
        std=images.std,
    )  # fmt: skip
    epoch = source.per_epoch
    boundaries = tuple(epoch * round(flags.epochs * k / 45) for k in (35, 41))
    schedule = nets.train.StepDecay((5e-4, 5e-5, 5e-6), boundaries)
    lam = flags.lam if name == "continuous" else 0.0
    return ott.training(
        flags, seed, network(flags, name, images, seed),
        nets.train.objective(torch.nn.functional.cross_entropy, lam), source, schedule,
        lambda: batches(normalised(images), images.test_labels), checkpoints=5,
    )  # fmt: skip


def normalised(images: nets.data.Images, pixels: torch.Tensor | None = None) -> torch.Tensor:
    """Return inputs (n, 1, height, width) of the network: test images, or `pixels` in [0, 1]."""
    values = nets.data.unit(images.test_images) if pixels is None else pixels
    return ((values - images.mean) / images.std).unsqueeze(1)


def batches(
    inputs: torch.Tensor, labels: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pieces of the test data."""
    return zip(inputs.split(EVALUATION), labels.long().split(EVALUATION), strict=True)


# What was learnt
# ---------------

NUMBERS = ott.trained_texts("the first test images") | {
    "output_norm": ("2-norm L of the output layer", "1")
}
ALONG = {
    "gaussian": ("accuracy_gaussian", "level", "test accuracy under Gaussian noise"),
    "uniform": ("accuracy_uniform", "level", "test accuracy under uniform noise"),
    "steps": ("accuracy_steps", "inference_steps", "test accuracy with other steps"),
}
COORDS = {
    "level": (LEVELS, "noise level"),
    "inference_steps": (INFERENCE, "steps M at inference"),
}


def measure(
    flags: MnistVit, images: nets.data.Images, name: str, training: Trained, seed: int
) -> Record:
    """Return all quantities of a trained network, in single precision."""
    model, device = training.model, training.device
    if training.diverged:
        return {}
    clean = normalised(images)

    def accuracy(inputs: torch.Tensor) -> float:
        return networks.classified(model, batches(inputs, images.test_labels), device)["accuracy"]

    final = accuracy(clean)  # also without noise, and with the steps of the training

    def noisy(noise: Callable[..., torch.Tensor], level: float) -> float:
        if level == 0:
            return final
        if flags.noise_on == "inputs":
            return accuracy(noise(clean, level, seed))
        return accuracy(normalised(images, noise(nets.data.unit(images.test_images), level, seed)))

    record: Record = {
        "final": final,
        "best": float(training.history["accuracy"].max()),
        "gaussian": [noisy(nets.data.gaussian_noise, level) for level in LEVELS],
        "uniform": [noisy(nets.data.uniform_noise, level) for level in LEVELS],
        "output_norm": float(nets.diagnostics.operator_norm(model.head.linear.weight)),  # type: ignore
    }
    body = model.body
    if isinstance(body, nets.ContinuousTransformer):
        trained_with, record["steps"] = body.steps, []
        for steps in INFERENCE:
            body.steps = steps
            record["steps"].append(final if steps == trained_with else accuracy(clean))
        body.steps = trained_with
        hidden = model.embed(clean[:EVALUATION].to(device))  # type: ignore[operator]
        record |= networks.motion(body, hidden)
    return record


def findings(flags: MnistVit, images: nets.data.Images, results: Results) -> list[study.Finding]:
    """Return claims of the paper, with their verdicts."""
    table, robust = "[OTT] Table 7", "[OTT] Table 3"
    levels = range(1, len(LEVELS))
    labels = [f"{level:g}" for level in LEVELS[1:]]
    verdicts = [
        claim("the continuous model with transport cost is more accurate than the baseline twice "
              "as wide", table, more(results, "final")),
        claim("the continuous model with transport cost is more accurate than attention alone, "
              "twice as wide", table, more(results, "final", "attention alone")),
        claim("the transport cost makes the continuous model more accurate", table,
              more(results, "final", "unregularised")),
    ]  # fmt: skip
    verdicts += [
        claim(f"under {title} noise the continuous model stays more accurate than the baseline, "
              "at every level", robust,
              *(more(results, key, place=k) for k in levels), labels=labels)
        for key, title in (("gaussian", "Gaussian"), ("uniform", "uniform"))
    ]  # fmt: skip
    few, many = (results.values("continuous", "steps", INFERENCE.index(k)) for k in (8, 20))
    drop = many - few
    verdict: Verdict = "confirmed" if drop.mean() <= 0.01 else "not confirmed"
    verdict = "confirmed in part" if 0.01 < drop.mean() <= 0.03 else verdict
    steps = study.Finding(
        "8 steps at inference cost the continuous model about half a point against 20",
        "[OTT1] Appendix A", f"{100 * drop.mean():.2f} points", verdict,
    )  # fmt: skip
    straight = claim(
        "the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
        less(results, "straightness", "unregularised"), unit="",
    )  # fmt: skip
    return [*verdicts, steps, straight]


# Tables and figures
# ------------------


def report(flags: MnistVit, images: nets.data.Images, results: Results) -> str:
    """Return the tables, beside the published ones."""
    names = list(results.records)
    sizes = [str(ott.parameters(network(flags, name, images, 0))) for name in names]
    column = partial(networks.column, results)
    main_table = {
        "model": names,
        "parameters": sizes,
        **ott.accuracies(results, ott.PUBLISHED["Table 7"]),
        **ott.motions(results),
        "norm of the output layer": column("output_norm", ".2f"),
        "training (s)": column("seconds", ".0f"),
    }
    under, with_steps = ott.PUBLISHED["Table 3, digits"], ott.PUBLISHED["[OTT1] Table 5"]
    if flags.dataset != "mnist":  # other digits have no published values
        main_table = networks.unpublished(main_table)
        under, with_steps = {"gaussian": {}, "uniform": {}}, {"steps": {}}
    parts = [
        f"{networks.caption(flags, flags.seeds, results, images.source)} T = 1, Euler steps; lam "
        "times the cost, of the squared velocity over 2. Hidden states are those of the first "
        f"{EVALUATION} test images.",
        study.markdown_table(main_table),
    ]
    continuous = {name: runs for name, runs in results.records.items() if name in CONTINUOUS}
    if continuous:
        parts += [
            "Trained with one number of steps, asked with another; then under noise:",
            ott.by_level(Results(continuous, {}), "steps", "steps at inference", INFERENCE,
                     with_steps["steps"]),
        ]  # fmt: skip
    parts += [
        ott.by_level(results, noise, f"{noise} noise", LEVELS, under[noise])
        for noise in ("gaussian", "uniform")
    ]
    return "\n\n".join(parts)


def figures(flags: MnistVit, results: Results) -> dict[str, study.Figure]:
    """Draw the learning curves; accuracy under noise and against the number of steps."""
    from wflow.plots.networks import lines

    panels = {
        f"{noise} noise": ("noise level", ott.at_levels(results, noise, LEVELS))
        for noise in ("gaussian", "uniform")
    }
    continuous = [name for name in results.records if name in CONTINUOUS]
    if continuous:
        title = f"trained with {flags.steps} steps"
        drawn = ott.at_levels(results, "steps", INFERENCE, continuous)
        panels[title] = ("steps at inference", drawn)
    return ott.learning_curves(results, "accuracy") | {"robustness": lines(panels, "Test accuracy")}


EXPERIMENT = networks.Experiment(
    name="mnist_vit", models=lambda _: {name: name for name in DISCRETE + CONTINUOUS}, load=load,
    plan=plan, measure=measure, numbers=NUMBERS, along=ALONG, coords=lambda _: COORDS, text=report,
    findings=findings, figures=figures,
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(MnistVit, __doc__))


if __name__ == "__main__":
    script(main)
