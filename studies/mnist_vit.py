"""Digits with a vision transformer: discrete, continuous in time, and with its transport cost.

One block with one head and no feed-forward layer. The baseline applies it once; the continuous
model lets it be the velocity of the hidden states, with half the width, and the loss adds lam times
the transport cost. Test accuracy, accuracy under noise and with fewer steps than in training, and
how straight the hidden states move: [OTT] section 5.2, Tables 2, 3 and 7; [OTT1] Table 5.

With one block the N-ODE transformer is the same system as the continuous one ([OTT] Appendix I).

    python studies/mnist_vit.py --preset cpu

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional

from wflow import _net_study, study
from wflow._checks import whole
from wflow._net_study import Record, Results, Run, Trained
from wflow.cli import guarded
from wflow.nets import ContinuousTransformer, ViT, data, diagnostics, train

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5)  # of noise
Noise = Callable[[torch.Tensor, float, int], torch.Tensor]
INFERENCE = (1, 2, 4, 8, 16, 20)
EVALUATION = 1000  # images at a time
MODELS = ("baseline", "unregularised", "continuous")
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


@dataclass(frozen=True)
class Setup:
    """What a preset decides, and flags may decide otherwise."""

    dataset: str = "mnist"
    digits: int | None = None  # the first so many of the training digits; None: all
    seeds: int = 5
    epochs: int = 45
    batch: int = 100
    patch: int = 7
    width_baseline: int = 128
    width: int = 64
    steps: int = 20
    lam: float = 0.01


PRESETS = {
    "paper": Setup(),
    "cpu": Setup(digits=10_000, seeds=2, epochs=15),
    "smoke": Setup(
        dataset="digits", seeds=2, epochs=2, batch=50, patch=2, width_baseline=16, width=8, steps=4
    ),
}


@dataclass(frozen=True, kw_only=True)
class MnistVit(_net_study.NetFlags):
    """Flags of this study."""

    dataset: Literal["mnist", "digits"] | None = None
    """Digits of MNIST, or the small ones of scikit-learn; default: of the preset."""
    epochs: int | None = None
    """Epochs; the learning rate falls after 35/45 and 41/45 of them. Default: of the preset."""
    digits: int | None = None
    """Number of training digits, from the beginning of the file; default: of the preset."""
    cost: Literal["mean", "sum"] = "mean"
    """Transport cost over the entries of the hidden states ([OTT1] eq. 8), or their sum ([OTT])."""
    noise_on: Literal["inputs", "pixels"] = "inputs"
    """Add noise to normalised inputs, or to pixels in [0, 1]. [OTT] does not say which; the losses
    of accuracy that it reports are those of the former."""
    out: study.Folder = Path("results/mnist_vit")
    """Folder for checkpoints, metrics, summary and figures."""

    def check(self) -> None:
        super().check()
        for name in ("epochs", "digits"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"--{name}")


def load(setup: Setup, flags: MnistVit) -> data.Images:
    """The digits; the published set-up takes nothing but all of them."""
    images = (
        data.digits()
        if setup.dataset == "digits"
        else data.mnist(folder=flags.data, full=flags.preset == "paper")
    )
    if setup.digits is None or setup.digits >= len(images.train_images):
        return images
    return replace(
        images,
        train_images=images.train_images[: setup.digits],
        train_labels=images.train_labels[: setup.digits],
        source=f"the first {setup.digits:,} of {images.source}",
    )


def network(name: str, setup: Setup, images: data.Images, cost: str, seed: int) -> ViT:
    """A model with weights drawn from its seed."""
    torch.manual_seed(seed)
    size = images.train_images.shape[1:]
    baseline = name == "baseline"
    model = ViT(
        image=(1, *size),
        patch=setup.patch,
        classes=10,
        width=setup.width_baseline if baseline else setup.width,
    )
    if not baseline:
        model.body = ContinuousTransformer(model.body, steps=setup.steps, cost=cost)  # type: ignore[arg-type]
    return model


def plan(name: str, setup: Setup, images: data.Images, flags: MnistVit, seed: int) -> Run:
    """The training run of one model with one seed."""
    batches = data.ImageBatches(
        images.train_images,
        images.train_labels,
        batch=setup.batch,
        seed=seed,
        mean=images.mean,
        std=images.std,
    )
    epoch = batches.per_epoch
    boundaries = tuple(epoch * round(setup.epochs * k / 45) for k in (35, 41))
    config = train.TrainConfig(
        steps=setup.epochs * epoch,
        batch=setup.batch,
        schedule=train.StepDecay((5e-4, 5e-5, 5e-6), boundaries),
        evaluate_every=epoch,
        checkpoint_every=5 * epoch,
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
    )
    lam = setup.lam if name == "continuous" else 0.0
    device = train.device(flags.device)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return accuracy_and_loss(model, normalised(images), images.test_labels, device)

    return Run(
        network(name, setup, images, flags.cost, seed),
        train.objective(functional.cross_entropy, lam),
        batches,
        config,
        evaluate,
    )


def normalised(images: data.Images, pixels: torch.Tensor | None = None) -> torch.Tensor:
    """Inputs of the network (n, 1, height, width): the test images, or `pixels` in [0, 1]."""
    values = data.unit(images.test_images) if pixels is None else pixels
    return ((values - images.mean) / images.std).unsqueeze(1)


def accuracy_and_loss(
    model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor, device: torch.device
) -> dict[str, float]:
    """Share of right answers and mean cross-entropy."""
    batches = zip(inputs.split(EVALUATION), labels.long().split(EVALUATION), strict=True)
    right, loss = 0, 0.0
    for logits, targets in _net_study.outputs(model, batches, device):
        right += int((logits.argmax(1) == targets).sum())
        loss += float(functional.cross_entropy(logits.float(), targets, reduction="sum"))
    return {"accuracy": right / len(labels), "test_loss": loss / len(labels)}


def examine(found: Trained, flags: MnistVit, images: data.Images, seed: int) -> Record:
    """Everything that is asked of a trained network, in single precision."""
    model, device = found.model, found.device
    record: Record = dict.fromkeys(("final", "best", "output_norm"), np.nan)
    record |= dict.fromkeys(("straightness", "speed_variation", "transport"), np.nan)
    record |= {key: [np.nan] * len(LEVELS) for key in ("gaussian", "uniform")}
    record |= {"steps": [np.nan] * len(INFERENCE), "seconds": float(found.history["seconds"].sum())}
    if found.diverged:
        return record
    clean = normalised(images)

    def accuracy(inputs: torch.Tensor) -> float:
        return accuracy_and_loss(model, inputs, images.test_labels, device)["accuracy"]

    final = accuracy(clean)  # also without noise, and with the steps of the training

    def noisy(noise: Noise, level: float) -> float:
        if level == 0:
            return final
        if flags.noise_on == "inputs":
            return accuracy(noise(clean, level, seed))
        return accuracy(normalised(images, noise(data.unit(images.test_images), level, seed)))

    record |= {
        "final": final,
        "best": float(found.history["accuracy"].max()),
        "gaussian": [noisy(data.gaussian_noise, level) for level in LEVELS],
        "uniform": [noisy(data.uniform_noise, level) for level in LEVELS],
        "output_norm": float(diagnostics.operator_norm(model.head.linear.weight)),  # type: ignore
    }
    body = model.body
    if isinstance(body, ContinuousTransformer):
        trained_with = body.steps
        for place, steps in enumerate(INFERENCE):
            body.steps = steps
            record["steps"][place] = final if steps == trained_with else accuracy(clean)
        body.steps = trained_with
        with torch.no_grad():
            hidden = model.embed(clean[:EVALUATION].to(device))  # type: ignore[operator]
            way = body.trajectory(hidden)
        record["straightness"] = float(diagnostics.straightness(way).mean())
        record["speed_variation"] = float(diagnostics.speed_variation(way).mean())
        record["transport"] = float(way.costs.sum())
    return record


def main() -> int:
    flags = study.command_line(MnistVit, __doc__)
    setup = _net_study.with_flags(PRESETS[flags.preset], flags)
    names = _net_study.chosen(MODELS, setup.seeds, flags)
    images = load(setup, flags)
    with study.session("mnist_vit", flags) as session:
        results = _net_study.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(name, setup, images, flags, seed),
            lambda name, seed, found: examine(found, flags, images, seed),
        )
        as_published = flags.cost == "mean" and flags.noise_on == "inputs"
        whole_preset = _net_study.is_preset(setup, flags, PRESETS) and len(names) == len(MODELS)
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, images, results),
            findings=findings(results) if as_published and whole_preset else [],
            figures=figures(setup, results),
        )
    return 0


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return _net_study.dataset(
        results,
        {
            "final": ("test accuracy after the last epoch", "1"),
            "best": ("best test accuracy of any epoch", "1"),
            "straightness": ("arc length over chord of hidden states, first test images", "1"),
            "speed_variation": ("standard deviation over mean of the speed, likewise", "1"),
            "transport": ("transport cost, likewise", "1"),
            "output_norm": ("2-norm L of the output layer", "1"),
            "seconds": ("time of the training steps", "s"),
        },
        {
            "gaussian": ("accuracy_gaussian", "level", "test accuracy under Gaussian noise"),
            "uniform": ("accuracy_uniform", "level", "test accuracy under uniform noise"),
            "steps": ("accuracy_steps", "inference_steps", "test accuracy with other steps"),
        },
        {
            "level": (LEVELS, "noise level"),
            "inference_steps": (INFERENCE, "steps M at inference"),
        },
    )


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def report(flags: MnistVit, setup: Setup, images: data.Images, results: Results) -> str:
    """The tables, beside the published ones."""
    names = list(results.records)
    beside = setup.dataset == "mnist"  # other digits have no published values
    sizes = [
        str(sum(p.numel() for p in network(name, setup, images, flags.cost, 0).parameters()))
        for name in names
    ]

    def column(key: str, style: str) -> list[str]:
        return _net_study.column(results, key, lambda value: f"{value:{style}}")

    main_table = {
        "model": names,
        "parameters": sizes,
        "test accuracy (%)": _net_study.column(results, "final", percent),
        "published (%)": [PUBLISHED[name] for name in names],
        "difference": _net_study.differences(
            results, "final", {k: float(v.split()[0]) for k, v in PUBLISHED.items()}, "+.1f", 100
        ),
        "best epoch (%)": _net_study.column(results, "best", percent),
        "published best (%)": [PUBLISHED_BEST[name] for name in names],
        "arc over chord": column("straightness", ".3f"),
        "speed variation": column("speed_variation", ".3f"),
        "transport cost": column("transport", ".3g"),
        "norm of the output layer": column("output_norm", ".2f"),
        "training (s)": column("seconds", ".0f"),
    }
    parts = [
        _net_study.caption(flags, setup.seeds, results, images.source)
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
        main_table = _net_study.unpublished(main_table)
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
        by_setting = [_net_study.column(shown, key, percent, k) for k in range(len(settings))]
        for place, name in enumerate(shown.records):
            table[f"{name} (%)"] = [cells[place] for cells in by_setting]
            if beside and name in published:
                table[f"published, {name}"] = [f"{value}" for value in published[name]]
        parts.append(study.markdown_table(table))
    return "\n\n".join(parts)


def findings(results: Results) -> list[study.Finding]:
    """What the paper claims, and what came out."""

    def values(name: str, key: str, place: int | None = None) -> np.ndarray:
        found = [r[key] if place is None else r[key][place] for r in results.records[name]]
        return np.array(found)

    claims = [
        ("the continuous model with transport cost is more accurate than the baseline twice as "
         "wide", "[OTT] Table 7", ("continuous", "baseline", "final", None)),
        ("the transport cost makes the continuous model more accurate", "[OTT] Table 7",
         ("continuous", "unregularised", "final", None)),
        ("under Gaussian noise of level 0.5 the continuous model stays more accurate than the "
         "baseline", "[OTT] Table 3", ("continuous", "baseline", "gaussian", -1)),
        ("under uniform noise of level 0.5 the continuous model stays more accurate than the "
         "baseline", "[OTT] Table 3", ("continuous", "baseline", "uniform", -1)),
    ]  # fmt: skip
    found = []
    for statement, source, (better, worse, key, place) in claims:
        pair = values(better, key, place), values(worse, key, place)
        text, verdict = _net_study.compared(*pair, unit="points")
        found.append(study.Finding(statement, source, text, verdict))
    drop = values("continuous", "steps", -1) - values("continuous", "steps", INFERENCE.index(8))
    found.append(
        study.Finding(
            "8 steps at inference cost about half a point against 20",
            "[OTT1] Appendix A",
            f"{100 * drop.mean():.2f} points",
            "held"
            if drop.mean() <= 0.01
            else "held in part"
            if drop.mean() <= 0.03
            else "not held",
        )
    )
    winding, straight = (values(name, "straightness") for name in ("unregularised", "continuous"))
    text, verdict = _net_study.compared(winding, straight)
    found.append(
        study.Finding(
            "the transport cost makes hidden states move straighter",
            "[OTT] Prop. 1",
            f"arc over chord {winding.mean():.4f} without, {straight.mean():.4f} with it: {text}",
            verdict,
        )
    )
    return found


def figures(setup: Setup, results: Results) -> dict[str, Any]:
    """Learning curves; accuracy under noise and against the number of steps."""
    from wflow._net_figures import Line, learning_curves, lines

    def drawn(key: str, settings: Any, names: list[str]) -> list[Line]:
        return [Line(name, settings, [r[key] for r in results.records[name]]) for name in names]

    names = list(results.records)
    panels = {
        f"{noise} noise": ("noise level", drawn(noise, LEVELS, names))
        for noise in ("gaussian", "uniform")
    }
    continuous = [name for name in names if name != "baseline"]
    if continuous:
        title = f"trained with {setup.steps} steps"
        panels[title] = ("steps at inference", drawn("steps", INFERENCE, continuous))
    curves = {"data": "training loss", "accuracy": "test accuracy"}
    return {
        "learning_curves": learning_curves(results.histories, curves),
        "robustness": lines(panels, "test accuracy"),
    }


if __name__ == "__main__":
    sys.exit(guarded(main))
