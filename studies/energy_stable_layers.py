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
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
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
class MovementFlags(networks.NetFlags):
    """Flags of a block that is repeated, and of its training."""

    seeds: study.Count = 2
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


@dataclass(frozen=True, kw_only=True)
class EnergyStableLayers(MovementFlags):
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
    epochs: study.Count = 4
    """Epochs."""
    batch: study.Count = 100
    """Images in a batch."""
    patch: study.Count = 7
    """Side of a patch, in pixels."""
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
    net.body = body(flags, name, net.body)
    return net


def body(flags: MovementFlags, name: str, block: nn.Module, causal: bool = False) -> nn.Module:
    """Return what moves the hidden states: repetitions of the block, or of a movement."""
    if name in ("ascent", "descent"):
        return nets.MinimizingMovement(
            flags.width, flags.heads, tau=flags.tau, steps=flags.depth, causal=causal,
            direction=name, tolerance=flags.tolerance,  # type: ignore[arg-type]
        )  # fmt: skip
    # Steps of length 1 of the residual are the block applied again and again.
    velocity: Any = "residual" if name == "plain" else "block"
    length = float(flags.depth) if name == "plain" else 1.0
    return nets.ContinuousTransformer(block, t_final=length, steps=flags.depth, velocity=velocity)


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
    return networks.classified(net, pieces, device)["accuracy"]


# What was learnt
# ---------------

ENDS = {
    "cosine": ("mean cosine of two tokens at the end", "1"),
    "cosine_deeper": ("the same at four times the depth", "1"),
    "rank": ("effective rank of the tokens of a sample at the end", "1"),
    "rank_deeper": ("the same at four times the depth", "1"),
}
NUMBERS = {
    "final": ("test accuracy after the last epoch", "1"),
    **ENDS,
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
    if training.diverged:
        return {}
    net, device = training.model, training.device
    clean, labels = normalised(images), images.test_labels
    assert isinstance(net, nets.ViT)
    states = layers(net.body, net.embed(clean[:EVALUATION].to(device)))
    record = collapse(flags, states)
    record["noisy"] = [
        accuracy(net, nets.data.gaussian_noise(clean, level, seed) if level else clean, labels,
                 device)
        for level in LEVELS
    ]  # fmt: skip
    record["final"] = record["noisy"][0]
    if isinstance(net.body, nets.MinimizingMovement):
        record["wrong_way"] = wrong_ways(net.body, states)
    return record


def layers(body: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return hidden states, and those after each application of the block, at DEEPER the depth."""
    import torch

    assert isinstance(body, nets.ContinuousTransformer | nets.MinimizingMovement)
    once = copy.deepcopy(body)
    once.steps = 1
    if isinstance(once, nets.ContinuousTransformer):
        once.t_final /= body.steps
    states = [x.detach()]
    with torch.no_grad():
        for _ in range(DEEPER * body.steps):
            states.append(nets.blocks.as_flow(once(states[-1])).state)
    return states


def collapse(flags: MovementFlags, states: list[torch.Tensor]) -> Record:
    """Return mean cosine and effective rank by depth, and at the two ends."""
    record: Record = {
        "cosines": [mean_cosine(x) for x in states], "ranks": [effective_rank(x) for x in states],
    }  # fmt: skip
    for key in ("cosine", "rank"):
        by_depth = record[f"{key}s"]
        record |= {key: by_depth[flags.depth], f"{key}_deeper": by_depth[-1]}
    return record


def wrong_ways(
    body: nets.MinimizingMovement, states: list[torch.Tensor], held: bool = False
) -> float:
    """Return the share of energies that a layer moves the wrong way.

    They are those of samples, or of tokens under a mask, in the context of the layer if `held`.
    """
    import torch

    wide = copy.deepcopy(body).double()
    with torch.no_grad():
        pairs = [(x.double(), y.double()) for x, y in pairwise(states)]
        before = torch.stack([wide.energy(x) for x, _ in pairs])
        after = torch.stack([wide.energy(y, x if held else None) for x, y in pairs])
    wrong = (after - before) * (-1 if body.direction == "ascent" else 1)
    return float((wrong > ROUNDING * after).double().mean())


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

    def right(name: str) -> np.ndarray:
        return results.values(name, "final")

    def right_in_noise(name: str) -> np.ndarray:
        return results.values(name, "noisy", -1)

    claim = "no layer of minimizing movements moves the energy of an image the wrong way"
    return [
        one_way(results, claim, "images"),
        *rank_questions(results),
        *questions("{} classifies more digits than {}", right, "points"),
        *questions(
            f"under noise of {LEVELS[-1]:g} {{}} classifies more digits than {{}}", right_in_noise,
            "points",
        ),
    ]  # fmt: skip


def one_way(results: Results, claim: str, samples: str) -> study.Finding:
    """Return the verdict on the energies that no layer moves the wrong way."""
    wrong = np.concatenate([results.values(name, "wrong_way") for name in ("ascent", "descent")])
    return study.Finding.decided(
        claim, "[theory](#theory-movement)", f"{100 * wrong.mean():.3g} % of layers and {samples}",
        bool((wrong == 0).all()),
    ).of_theorem()  # fmt: skip


def rank_questions(results: Results) -> list[study.Finding]:
    """Return verdicts on effective ranks.

    Mean cosines do not tell: that of tokens at two opposite points is about zero, their rank one.
    """
    return [
        finding
        for place, key in (("the end", "rank"), ("four times the depth", "rank_deeper"))
        for finding in questions(
            f"tokens have a higher effective rank at {place} of {{}} than of {{}}",
            partial(results.values, key=key),
        )
    ]


def questions(
    statement: str, of: Callable[[str], np.ndarray], unit: str = ""
) -> list[study.Finding]:
    """Return verdicts on the movements against the other models; more is better."""
    found = []
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
    models = list(results.records)
    main = {
        "model": models,
        "parameters": [
            str(sum(p.numel() for p in network(flags, name, images, 0).parameters()))
            for name in models
        ],
        "test accuracy (%)": column("final", percent),
        **collapse_columns(results),
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
    from wflow.plots.networks import learning_curves

    curves = {"data": "training loss", "accuracy": "test accuracy"}
    return {
        "collapse": ranks_by_depth(flags, results),
        "learning_curves": learning_curves(results.histories, curves),
    }


def collapse_columns(results: Results) -> dict[str, list[str]]:
    """Return the columns of a table about what `collapse` measures."""
    column = partial(networks.column, results)
    return {
        "mean cosine": column("cosine", ".3f"),
        "at 4 times the depth": column("cosine_deeper", ".3f"),
        "effective rank": column("rank", ".2f"),
        "at 4 times the depth ": column("rank_deeper", ".2f"),
    }


def percent(value: float) -> str:
    """Return a share in per cent."""
    return f"{100 * value:.2f}"


def ranks_by_depth(flags: MovementFlags, results: Results) -> study.Figure:
    """Draw the effective rank by depth."""
    from wflow.plots.networks import Line, lines

    depth = range(DEEPER * flags.depth + 1)
    drawn = [
        Line(name, depth, [r["ranks"] for r in records])
        for name, records in results.records.items()
    ]
    panel = {f"trained with {flags.depth}": ("applications of the block", drawn)}
    return lines(panel, "Effective rank of tokens")


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
