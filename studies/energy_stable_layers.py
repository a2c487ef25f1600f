"""Energy-stable layers: does attention by minimizing movements resist collapse, and does it learn?

Digits with a vision transformer of one attention block without feed-forward layer, which is
repeated: "plain" applies it as a residual block, "continuous" as the velocity of a dynamical
system, "ascent" and "descent" as implicit Euler steps of the flow of its energy
(`wflow.nets.MinimizingMovement`, [MHT] section 7.1). Test accuracy, also under noise; mean cosine
and effective rank of the tokens by depth, and at four times the depth of the training; the share of
images whose energy a layer moves the wrong way.

    python studies/energy_stable_layers.py --preset cpu

[MHT] Massucco et al., "Multi-Headed Transformer Architectures as Time-dependent Wasserstein
Gradient Flows", arXiv 2605.18870.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from wflow import nets, study
from wflow.cli import script
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch
    from torch import nn

MODELS = ("plain", "continuous", "ascent", "descent")
DEEPER = 4  # times the depth of the training
LEVELS = (0.0, 0.1, 0.2, 0.5)  # of Gaussian noise on normalised images
EVALUATION = 500  # images at a time
ROUNDING = 1e-5  # of an energy, in single precision


@dataclass(frozen=True, kw_only=True)
class EnergyStableLayers(networks.NetFlags):
    """Flags of this study."""

    durations: ClassVar = {"smoke": "seconds", "cpu": "an hour on a core"}
    presets: ClassVar = {  # nothing is published to compare with
        "cpu": {},
        "smoke": {
            "dataset": "digits", "tests": 100, "seeds": 1, "epochs": 1, "batch": 100, "patch": 2,
            "width": 8, "depth": 2,
        },
    }  # fmt: skip
    dataset: Literal["mnist", "digits"] = "mnist"
    """Digits of MNIST, or the small ones of scikit-learn."""
    digits: study.Count = 10_000
    """Number of training digits, of the 60,000 of MNIST."""
    tests: study.Count = 2_000
    """Number of test digits: the first ones."""
    seeds: study.Count = 2
    epochs: study.Count = 4
    """Epochs."""
    batch: study.Count = 100
    """Images in a batch."""
    patch: study.Count = 7
    """Side of a patch, in pixels."""
    width: study.Count = 32
    """Width of the hidden states."""
    heads: study.Count = 2
    """Number of heads."""
    depth: study.Count = 4
    """Applications of the block."""
    tau: study.Positive = 0.1
    """Step of the minimizing movements."""
    tolerance: study.Positive = 1e-2
    """Length of the mean step that Newton's method leaves, on the unit sphere."""
    rate: study.Positive = 2e-3
    """Learning rate at the start; it falls by a cosine."""
    out: study.Folder = Path("results/energy_stable_layers")


# Data and trainings
# ------------------


def load(flags: EnergyStableLayers) -> nets.data.Images:
    """Return the digits that the flags ask for."""
    if flags.dataset == "digits":
        images = nets.data.digits()
    else:
        part = None if flags.digits == 60_000 else flags.digits
        images = nets.data.mnist(folder=flags.data, digits=part)
    some = images.test_images[: flags.tests]
    source = f"{images.source}, of which {len(some):,}"
    labels = images.test_labels[: flags.tests]
    return replace(images, test_images=some, test_labels=labels, source=source)


def network(flags: EnergyStableLayers, name: str, images: nets.data.Images, seed: int) -> nets.ViT:
    """Return a model with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    size = images.train_images.shape[1:]
    net = nets.ViT(image=(1, *size), patch=flags.patch, width=flags.width, heads=flags.heads)
    if name in ("ascent", "descent"):
        net.body = nets.MinimizingMovement(
            flags.width, flags.heads, tau=flags.tau, steps=flags.depth,
            direction=name, tolerance=flags.tolerance,  # type: ignore[arg-type]
        )  # fmt: skip
        return net
    # Steps of length 1 of the residual are the block applied again and again.
    velocity: Any = "residual" if name == "plain" else "block"
    length = float(flags.depth) if name == "plain" else 1.0
    net.body = nets.ContinuousTransformer(
        net.body, t_final=length, steps=flags.depth, velocity=velocity
    )
    return net


def plan(flags: EnergyStableLayers, images: nets.data.Images, name: str, seed: int) -> Run:
    """Return the training of one model with one seed."""
    import torch

    source = nets.data.ImageBatches(
        images.train_images, images.train_labels, batch=flags.batch, seed=seed, mean=images.mean,
        std=images.std,
    )  # fmt: skip
    steps = flags.epochs * source.per_epoch
    schedule = nets.train.Cosine(flags.rate, 0.0, warm_up=0, steps=steps)
    config = nets.train.TrainConfig(
        steps=steps, batch=flags.batch, schedule=schedule, clip=1.0,
        evaluate_every=source.per_epoch, checkpoint_every=source.per_epoch, seed=seed,
        device=flags.device, precision=flags.precision, compile=flags.compile,
    )  # fmt: skip
    objective = nets.train.objective(torch.nn.functional.cross_entropy, 0.0)
    device = nets.train.device(flags.device)
    return Run(
        network(flags, name, images, seed), objective, source, config,
        lambda net: {"accuracy": accuracy(net, normalised(images), images.test_labels, device)},
    )  # fmt: skip


def normalised(images: nets.data.Images) -> torch.Tensor:
    """Return the test images as the network sees them, (n, 1, height, width)."""
    return ((nets.data.unit(images.test_images) - images.mean) / images.std).unsqueeze(1)


def accuracy(
    net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, device: torch.device
) -> float:
    """Return the share of right answers."""
    pieces = zip(inputs.split(EVALUATION), labels.long().split(EVALUATION), strict=True)
    right = sum(
        int((logits.argmax(1) == wanted).sum())
        for logits, wanted in networks.outputs(net, pieces, device)
    )
    return right / len(labels)


# What was learnt
# ---------------

NUMBERS = {
    "final": ("test accuracy after the last epoch", "1"),
    "cosine": ("mean cosine of two tokens at the end", "1"),
    "cosine_deeper": ("the same at four times the depth", "1"),
    "rank": ("effective rank of the tokens of an image at the end", "1"),
    "rank_deeper": ("the same at four times the depth", "1"),
    "wrong_way": ("share of layers and images whose energy moves the wrong way", "1"),
    "seconds": ("time of the training steps", "s"),
}
ALONG = {
    "noisy": ("accuracy_noisy", "level", "test accuracy under Gaussian noise"),
    "cosines": ("mean_cosine", "layer", "mean cosine of two tokens"),
    "ranks": ("effective_rank", "layer", "effective rank of the tokens of an image"),
}


def measure(
    flags: EnergyStableLayers, images: nets.data.Images, name: str, training: Trained, seed: int
) -> Record:
    """Return all quantities of a trained network."""
    import torch

    if training.diverged:
        return {}
    net, device = training.model, training.device
    clean, labels = normalised(images), images.test_labels
    assert isinstance(net, nets.ViT)
    with torch.no_grad():
        states = [net.embed(clean[:EVALUATION].to(device)), *layers(net.body, clean, net, device)]
    ends = [np.array([measured(x) for x in states]) for measured in (mean_cosine, effective_rank)]
    record: Record = {
        "noisy": [
            accuracy(net, nets.data.gaussian_noise(clean, level, seed) if level else clean, labels,
                     device)
            for level in LEVELS
        ],
        "cosines": ends[0].tolist(), "ranks": ends[1].tolist(),
        "cosine": ends[0][flags.depth], "cosine_deeper": ends[0][-1],
        "rank": ends[1][flags.depth], "rank_deeper": ends[1][-1],
    }  # fmt: skip
    record["final"] = record["noisy"][0]
    if isinstance(net.body, nets.MinimizingMovement):
        with torch.no_grad():
            body = copy.deepcopy(net.body).double()
            energies = torch.stack([body.energy(x.double()) for x in states])
        wrong = energies.diff(dim=0) * (-1 if name == "ascent" else 1)
        record["wrong_way"] = float((wrong > ROUNDING * energies[1:]).double().mean())
    return record


def layers(
    body: nn.Module, clean: torch.Tensor, net: nets.ViT, device: torch.device
) -> Iterator[torch.Tensor]:
    """Yield the hidden states after each application of the block, at DEEPER times the depth."""
    x = net.embed(clean[:EVALUATION].to(device))
    assert isinstance(body, nets.ContinuousTransformer | nets.MinimizingMovement)
    depth, body.steps = body.steps, 1
    length: Any = getattr(body, "t_final", None)
    if isinstance(body, nets.ContinuousTransformer):
        body.t_final = body.t_final / depth
    for _ in range(DEEPER * depth):
        x = nets.blocks.as_flow(body(x)).state
        yield x
    body.steps = depth
    if isinstance(body, nets.ContinuousTransformer):
        body.t_final = length


def mean_cosine(x: torch.Tensor) -> float:
    """Return the mean cosine of two different tokens of an image."""
    u = x / x.norm(dim=2, keepdim=True)
    n = u.shape[1]
    return float(((n * u.mean(1)).square().sum(1) - n).mean() / (n * (n - 1)))


def effective_rank(x: torch.Tensor) -> float:
    """Return exp of the entropy of the squared singular values of the directions of an image."""
    import torch

    share = torch.linalg.svdvals(x / x.norm(dim=2, keepdim=True)).square()
    share = share / share.sum(1, keepdim=True)
    return float(torch.special.entr(share).sum(1).exp().mean())


def findings(
    flags: EnergyStableLayers, images: nets.data.Images, results: Results
) -> list[study.Finding]:
    """Return claims about the layer, with their verdicts."""
    wrong = np.concatenate([results.values(name, "wrong_way") for name in ("ascent", "descent")])
    found = [study.Finding.decided(
        "no layer of minimizing movements moves the energy of an image the wrong way",
        "[theory](#theory-movement)", f"{100 * wrong.mean():.3g} % of layers and images",
        bool((wrong == 0).all()),
    ).of_theorem()]  # fmt: skip

    # Not by cosines: tokens at two opposite points have a mean cosine of about zero, and rank one.
    def rank(name: str) -> np.ndarray:
        return results.values(name, "rank")

    def rank_deeper(name: str) -> np.ndarray:
        return results.values(name, "rank_deeper")

    def right(name: str) -> np.ndarray:
        return results.values(name, "final")

    def right_in_noise(name: str) -> np.ndarray:
        return results.values(name, "noisy", -1)

    questions = (
        ("tokens have a higher effective rank at the end of {} than of {}", rank, ""),
        ("tokens have a higher effective rank at four times the depth of {} than of {}",
         rank_deeper, ""),
        ("{} classifies more digits than {}", right, "points"),
        (f"under noise of {LEVELS[-1]:g} {{}} classifies more digits than {{}}", right_in_noise,
         "points"),
    )  # fmt: skip
    for statement, of, unit in questions:
        for ours in ("ascent", "descent"):
            for theirs in ("plain", "continuous"):
                text, verdict = networks.compared(of(ours), of(theirs), unit)
                said = statement.format(ours, theirs)
                found.append(study.Finding(said, "question of this study", text, verdict))
    return found


# Tables and figures
# ------------------


def report(flags: EnergyStableLayers, images: nets.data.Images, results: Results) -> str:
    """Return the tables."""
    column = partial(networks.column, results)
    percent: Any = lambda value: f"{100 * value:.2f}"  # noqa: E731
    models = list(results.records)
    main = {
        "model": models,
        "parameters": [
            str(sum(p.numel() for p in network(flags, name, images, 0).parameters()))
            for name in models
        ],
        "test accuracy (%)": column("final", percent),
        "mean cosine": column("cosine", ".3f"),
        "at 4 times the depth": column("cosine_deeper", ".3f"),
        "effective rank": column("rank", ".2f"),
        "at 4 times the depth ": column("rank_deeper", ".2f"),
        "energy the wrong way (%)": column("wrong_way", percent),
        "training (s)": column("seconds", ".0f"),
    }
    noisy = {"noise": [f"{level:g}" for level in LEVELS]} | {
        f"{name} (%)": [
            networks.mean_and_spread(results.values(name, "noisy", k), percent)
            for k in range(len(LEVELS))
        ]
        for name in models
    }
    return "\n\n".join((
        f"{networks.caption(flags, flags.seeds, results, images.source)} Depth is the number of "
        f"applications of one block. Tokens are those of the first {EVALUATION} test images. The "
        f"energy moves the wrong way where it does so by more than {ROUNDING:g} of it.",
        study.markdown_table(main),
        "Test accuracy under Gaussian noise on normalised images:",
        study.markdown_table(noisy),
    ))  # fmt: skip


def figures(flags: EnergyStableLayers, results: Results) -> dict[str, study.Figure]:
    """Draw the effective rank by depth, and the learning curves."""
    from wflow.plots import networks as plots

    depth = range(DEEPER * flags.depth + 1)
    drawn = [
        plots.Line(name, depth, [r["ranks"] for r in records])
        for name, records in results.records.items()
    ]
    curves = {"data": "training loss", "accuracy": "test accuracy"}
    panel = {f"trained with {flags.depth}": ("applications of the block", drawn)}
    return {
        "collapse": plots.lines(panel, "Effective rank of tokens"),
        "learning_curves": plots.learning_curves(results.histories, curves),
    }


EXPERIMENT = networks.Experiment(
    name="energy_stable_layers", models=lambda _: {name: name for name in MODELS}, load=load,
    plan=plan, measure=measure, numbers=NUMBERS, along=ALONG,
    coords=lambda flags: {
        "level": (LEVELS, "noise level"),
        "layer": (range(DEEPER * flags.depth + 1), "applications of the block"),
    },
    text=report, findings=findings, figures=figures,
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(EnergyStableLayers, __doc__))


if __name__ == "__main__":
    script(main)
