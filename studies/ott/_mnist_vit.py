"""Networks, trainings and tables of the study `mnist_vit`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from _ott import (
    Kind,
    classified,
    in_continuous_time,
    parameters,
    per_epoch,
    percent,
)

from wflow import nets, study
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch

    Noise = Callable[[torch.Tensor, float, int], torch.Tensor]

# [OTT] Table 7: test accuracy in per cent after the last epoch, and of the best one.
PUBLISHED = {"baseline": "93.0 ± 0.67", "unregularised": "96.8 ± 0.25", "continuous": "97.1 ± 0.15"}
PUBLISHED_BEST = {
    "baseline": "93.0 ± 0.69",
    "unregularised": "96.8 ± 0.23",
    "continuous": "97.1 ± 0.16",
}
# [OTT1] Table 5 and [OTT] Table 3.
PUBLISHED_STEPS: dict[str, tuple[float, ...]] = {
    "unregularised": (18.2, 42.0, 85.1, 96.3, 96.7, 96.8),
    "continuous": (17.9, 46.8, 87.1, 96.6, 97.0, 97.1),
}
PUBLISHED_NOISE: dict[str, dict[str, tuple[float, ...]]] = {
    "gaussian": {
        "baseline": (92.97, 92.99, 92.96, 92.76, 91.70, 80.64),
        "continuous": (97.05, 97.05, 96.99, 96.89, 96.39, 90.10),
    },
    "uniform": {
        "baseline": (92.97, 92.99, 92.98, 92.90, 92.64, 90.02),
        "continuous": (97.05, 97.03, 97.00, 96.97, 96.79, 95.57),
    },
}
LEVELS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5)  # of noise
INFERENCE = (1, 2, 4, 8, 16, 20)
EVALUATION = 1000  # images at a time
MNIST = 60_000  # training digits


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    dataset: str = "mnist"
    digits: int | None = None  # so many of the training digits (nets.data.mnist); None: all
    seeds: int = 5
    epochs: int = 45
    batch: int = 100
    patch: int = 7
    width_baseline: int = 128
    width: int = 64
    steps: int = 20
    lam: float = 0.01


def network(name: str, setup: Setup, images: nets.data.Images, cost: str, seed: int) -> nets.ViT:
    """A model with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    size = images.train_images.shape[1:]
    baseline = name == "baseline"
    model = nets.ViT(
        image=(1, *size),
        patch=setup.patch,
        classes=10,
        width=setup.width_baseline if baseline else setup.width,
    )
    kind: Kind = "baseline" if baseline else "continuous"
    model.body = in_continuous_time(model.body, kind, setup.steps, cost=cost)
    return model


def plan(name: str, setup: Setup, images: nets.data.Images, flags: Any, seed: int) -> Run:
    """The training run of one model with one seed."""
    import torch

    source = nets.data.ImageBatches(
        images.train_images,
        images.train_labels,
        batch=setup.batch,
        seed=seed,
        mean=images.mean,
        std=images.std,
    )
    epoch = source.per_epoch
    boundaries = tuple(epoch * round(setup.epochs * k / 45) for k in (35, 41))
    schedule = nets.train.StepDecay((5e-4, 5e-5, 5e-6), boundaries)
    lam = setup.lam if name == "continuous" else 0.0
    team = nets.train.team(flags.device)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        tests = batches(normalised(images), images.test_labels)
        return classified(model, tests, team.device, team)

    return Run(
        network(name, setup, images, flags.cost, seed),
        nets.train.objective(torch.nn.functional.cross_entropy, lam),
        source,
        per_epoch(setup, flags, seed, epoch, schedule, checkpoints=5),
        evaluate,
    )


def normalised(images: nets.data.Images, pixels: torch.Tensor | None = None) -> torch.Tensor:
    """Inputs of the network (n, 1, height, width): the test images, or `pixels` in [0, 1]."""
    values = nets.data.unit(images.test_images) if pixels is None else pixels
    return ((values - images.mean) / images.std).unsqueeze(1)


def batches(
    inputs: torch.Tensor, labels: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of the test data."""
    return zip(inputs.split(EVALUATION), labels.long().split(EVALUATION), strict=True)


def examine(
    name: str, trained: Trained, setup: Setup, flags: Any, images: nets.data.Images, seed: int
) -> Record:
    """All quantities of a trained network, from the file in its folder where it has them."""
    return networks.cached_record(
        networks.folder_of(flags.out, name, seed),
        [images.source, asdict(replace(setup, seeds=0)), flags.cost, flags.noise_on],
        trained,
        lambda: measured(trained, flags, images, seed),
    )


def measured(training: Trained, flags: Any, images: nets.data.Images, seed: int) -> Record:
    """All quantities of a trained network, in single precision."""
    model, device = training.model, training.device
    record: Record = dict.fromkeys(("final", "best", "output_norm"), np.nan)
    record |= dict.fromkeys(networks.MOTION, np.nan)
    record |= {key: [np.nan] * len(LEVELS) for key in ("gaussian", "uniform")}
    record |= {
        "steps": [np.nan] * len(INFERENCE),
        "seconds": float(training.history["seconds"].sum()),
    }
    if training.diverged:
        return record
    clean = normalised(images)

    def accuracy(inputs: torch.Tensor) -> float:
        return classified(model, batches(inputs, images.test_labels), device)["accuracy"]

    final = accuracy(clean)  # also without noise, and with the steps of the training

    def noisy(noise: Noise, level: float) -> float:
        if level == 0:
            return final
        if flags.noise_on == "inputs":
            return accuracy(noise(clean, level, seed))
        return accuracy(normalised(images, noise(nets.data.unit(images.test_images), level, seed)))

    record |= {
        "final": final,
        "best": float(training.history["accuracy"].max()),
        "gaussian": [noisy(nets.data.gaussian_noise, level) for level in LEVELS],
        "uniform": [noisy(nets.data.uniform_noise, level) for level in LEVELS],
        "output_norm": float(nets.diagnostics.operator_norm(model.head.linear.weight)),  # type: ignore
    }
    body = model.body
    if isinstance(body, nets.ContinuousTransformer):
        trained_with = body.steps
        for place, steps in enumerate(INFERENCE):
            body.steps = steps
            record["steps"][place] = final if steps == trained_with else accuracy(clean)
        body.steps = trained_with
        hidden = model.embed(clean[:EVALUATION].to(device))  # type: ignore[operator]
        record |= networks.motion(body, hidden)
    return record


def load(setup: Setup, flags: Any) -> nets.data.Images:
    """The digits that the set-up asks for."""
    if setup.dataset == "mnist":
        part = None if setup.digits == MNIST else setup.digits
        return nets.data.mnist(folder=flags.data, digits=part)
    images = nets.data.digits()
    if setup.digits is None or setup.digits >= len(images.train_images):
        return images
    return replace(
        images,
        train_images=images.train_images[: setup.digits],
        train_labels=images.train_labels[: setup.digits],
        source=f"the first {setup.digits:,} of {images.source}",
    )


def report(flags: Any, setup: Setup, images: nets.data.Images, results: Results) -> str:
    """The tables, beside the published ones."""
    names = list(results.records)
    beside = setup.dataset == "mnist"  # other digits have no published values
    sizes = [str(parameters(network(name, setup, images, flags.cost, 0))) for name in names]

    column = partial(networks.column, results)

    main_table = {
        "model": names,
        "parameters": sizes,
        "test accuracy (%)": column("final", percent),
        "published (%)": [PUBLISHED[name] for name in names],
        "difference": networks.differences(
            results, "final", {k: float(v.split()[0]) for k, v in PUBLISHED.items()}, "+.1f", 100
        ),
        "best epoch (%)": column("best", percent),
        "published best (%)": [PUBLISHED_BEST[name] for name in names],
        "arc over chord": column("straightness", ".3f"),
        "speed variation": column("speed_variation", ".3f"),
        "transport cost": column("transport", ".3g"),
        "norm of the output layer": column("output_norm", ".2f"),
        "training (s)": column("seconds", ".0f"),
    }
    parts = [
        networks.caption(flags, setup.seeds, results, images.source)
        + f" {setup.epochs} epochs, batch {setup.batch}; T = 1, {setup.steps} Euler steps, lam = "
        f"{setup.lam:g} times the {flags.cost} of the squared velocity over 2; noise on "
        f"{flags.noise_on}. Hidden states are those of the first {EVALUATION} test images. With "
        "one block the N-ODE transformer is the same system as the continuous one."
    ]
    if beside:
        parts[0] += (
            " Published: 60,000 training digits (50,000 by section 5.2 of [OTT]), 45 epochs, 5 "
            "seeds."
        )
    else:
        main_table = networks.unpublished(main_table)
    parts.append(study.markdown_table(main_table))
    continuous = {name: runs for name, runs in results.records.items() if name != "baseline"}
    tables: list[tuple[str, str, Any, dict[str, tuple[float, ...]]]] = [
        (f"{noise} noise", noise, LEVELS, PUBLISHED_NOISE[noise])
        for noise in ("gaussian", "uniform")
    ]
    if continuous:
        parts.append("Trained with one number of steps, asked with another; then under noise:")
        tables.insert(0, ("steps at inference", "steps", INFERENCE, PUBLISHED_STEPS))
    for title, key, settings, published in tables:
        shown = Results(continuous, {}) if key == "steps" else results
        table = {title: [f"{value:g}" for value in settings]}
        by_setting = [networks.column(shown, key, percent, k) for k in range(len(settings))]
        for place, name in enumerate(shown.records):
            table[f"{name} (%)"] = [cells[place] for cells in by_setting]
            if beside and name in published:
                table[f"published, {name}"] = [f"{value}" for value in published[name]]
        parts.append(study.markdown_table(table))
    return "\n\n".join(parts)
