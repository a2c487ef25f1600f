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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn import functional

from wflow import study
from wflow._checks import number, whole
from wflow.cli import guarded
from wflow.nets import ContinuousTransformer, ViT, _experiment, data, diagnostics, train
from wflow.nets._experiment import Run, Trained, percent

if TYPE_CHECKING:
    from xarray import Dataset

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5)  # of noise
Noise = Callable[[torch.Tensor, float, int], torch.Tensor]
INFERENCE = (1, 2, 4, 8, 16, 20)
EVALUATION = 1000  # images at a time
MODELS = ("baseline", "unregularised", "continuous")
# [OTT] Tables 3 and 7, [OTT1] Table 5: test accuracy in per cent.
PUBLISHED = {"baseline": "93.0 ± 0.69", "unregularised": "96.8 ± 0.23", "continuous": "97.1 ± 0.16"}
PUBLISHED_STEPS = {
    "unregularised": (18.2, 42.0, 85.1, 96.3, 96.7, 96.8),
    "continuous": (17.9, 46.8, 87.1, 96.6, 97.0, 97.1),
}
PUBLISHED_NOISE = {
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
    "cpu": Setup(seeds=3, epochs=15),
    "smoke": Setup(
        dataset="digits", seeds=2, epochs=2, batch=50, patch=2, width_baseline=16, width=8, steps=4
    ),
}


@dataclass(frozen=True, kw_only=True)
class MnistVit(_experiment.NetFlags):
    """Flags of this study."""

    dataset: Literal["mnist", "digits"] | None = None
    """Digits of MNIST, or the small ones of scikit-learn; default: of the preset."""
    epochs: int | None = None
    """Epochs; the learning rate falls after 35/45 and 41/45 of them. Default: of the preset."""
    steps: int | None = None
    """Steps M in training; default: of the preset."""
    lam: float | None = None
    """Weight lam of the transport cost; default: of the preset."""
    cost: Literal["mean", "sum"] = "mean"
    """Transport cost over the entries of the hidden states ([OTT1] eq. 8), or their sum ([OTT])."""
    noise_on: Literal["pixels", "inputs"] = "pixels"
    """Add noise to pixels in [0, 1], or to normalised inputs; [OTT] does not say which."""
    out: study.Folder = Path("results/mnist_vit")
    """Folder for checkpoints, metrics, summary and figures."""

    def check(self) -> None:
        super().check()
        for name in ("epochs", "steps"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"--{name}")
        if self.lam is not None:
            number(self.lam, "--lam", least=0.0)


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
    for logits, targets in _experiment.outputs(model, batches, device):
        right += int((logits.argmax(1) == targets).sum())
        loss += float(functional.cross_entropy(logits.float(), targets, reduction="sum"))
    return {"accuracy": right / len(labels), "test_loss": loss / len(labels)}


def examine(found: Trained, flags: MnistVit, images: data.Images, seed: int) -> dict[str, Any]:
    """Everything that is asked of a trained network."""
    model, device = found.model, found.device
    clean = normalised(images)

    def accuracy(inputs: torch.Tensor) -> float:
        return accuracy_and_loss(model, inputs, images.test_labels, device)["accuracy"]

    def noisy(noise: Noise, level: float) -> float:
        if flags.noise_on == "inputs":
            return accuracy(noise(clean, level, seed))
        return accuracy(normalised(images, noise(data.unit(images.test_images), level, seed)))

    curve = found.history["accuracy"].values
    record: dict[str, Any] = {
        "final": float(curve[-1]),
        "best": float(curve.max()),
        "gaussian": [noisy(data.gaussian_noise, level) for level in LEVELS],
        "uniform": [noisy(data.uniform_noise, level) for level in LEVELS],
        "steps": [np.nan] * len(INFERENCE),
        "straightness": np.nan,
        "speed_variation": np.nan,
        "transport": np.nan,
        "seconds": float(found.history["seconds"].sum()),
        "output_norm": float(diagnostics.operator_norm(model.head.linear.weight)),  # type: ignore
    }
    body = model.body
    if isinstance(body, ContinuousTransformer):
        trained_with = body.steps
        for place, steps in enumerate(INFERENCE):
            body.steps = steps
            record["steps"][place] = accuracy(clean)
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
    setup = _experiment.with_flags(PRESETS[flags.preset], flags)
    names = _experiment.chosen(MODELS, flags)
    images = data.mnist(folder=flags.data) if setup.dataset == "mnist" else data.digits()
    clock = _experiment.Clock()
    with study.session("mnist_vit", flags) as session:
        records: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        curves: dict[str, list[Dataset]] = {name: [] for name in names}
        for seed in range(setup.seeds):
            for name in names:
                run = plan(name, setup, images, flags, seed)
                found = _experiment.trained(session, flags, f"{name}-{seed}", run)
                records[name].append(examine(found, flags, images, seed))
                curves[name].append(found.history)
        session.finish(
            table=tabulated(records),
            text=report(flags, setup, images, records, clock()),
            # What a network of seconds finds is no evidence for or against the paper.
            findings=findings(records) if told(flags, names) else [],
            figures=figures(setup, records, curves),
        )
    return 0


def told(flags: MnistVit, names: Sequence[str]) -> bool:
    """Whether the claims of the paper can be held against what was trained."""
    return flags.preset != "smoke" and len(names) == len(MODELS)


def tabulated(records: Mapping[str, list[dict[str, Any]]]) -> "Dataset":
    """All numbers as a Dataset."""
    import xarray

    one = ("model", "seed")
    names = {
        "final": "test accuracy after the last epoch",
        "best": "best test accuracy of any epoch",
        "straightness": "arc length over chord of hidden states, mean over test images",
        "speed_variation": "standard deviation over mean of the speed of hidden states",
        "transport": "transport cost on test images",
        "output_norm": "2-norm L of the output layer",
    }
    variables: dict[str, Any] = {
        key: (one, _experiment.stacked(records, key), {"long_name": text, "units": "1"})
        for key, text in names.items()
    }
    variables["seconds"] = (
        one,
        _experiment.stacked(records, "seconds"),
        {"long_name": "time of the training steps", "units": "s"},
    )
    for key, along in (("gaussian", "level"), ("uniform", "level"), ("steps", "inference_steps")):
        what = f"under {key} noise" if along == "level" else "with other numbers of steps"
        variables[f"accuracy_{key}"] = (
            (*one, along),
            _experiment.stacked(records, key),
            {"long_name": f"test accuracy {what}", "units": "1"},
        )
    coords = {
        "model": ("model", list(records), {"long_name": "model"}),
        "seed": ("seed", range(len(next(iter(records.values())))), {"long_name": "seed"}),
        "level": ("level", list(LEVELS), {"long_name": "noise level", "units": "1"}),
        "inference_steps": ("inference_steps", list(INFERENCE), {"long_name": "steps M"}),
    }
    return xarray.Dataset(variables, coords)


def spread(records: list[dict[str, Any]], key: str, place: int | None = None) -> str:
    values = [record[key] if place is None else record[key][place] for record in records]
    return _experiment.mean_and_spread(values, percent)


def report(
    flags: MnistVit,
    setup: Setup,
    images: data.Images,
    records: Mapping[str, list[dict[str, Any]]],
    seconds: float,
) -> str:
    """The tables, beside the published ones."""
    names = list(records)
    sizes = [
        str(sum(p.numel() for p in network(name, setup, images, flags.cost, 0).parameters()))
        for name in names
    ]

    def plain(key: str, style: str) -> list[str]:
        return [
            _experiment.mean_and_spread([r[key] for r in records[name]], lambda v: f"{v:{style}}")
            for name in names
        ]

    main_table = {
        "model": names,
        "parameters": sizes,
        "test accuracy (%)": [spread(records[name], "final") for name in names],
        "best epoch (%)": [spread(records[name], "best") for name in names],
        "published (%)": _experiment.versus(PUBLISHED, names),
        "arc over chord": plain("straightness", ".3f"),
        "speed variation": plain("speed_variation", ".3f"),
        "transport cost": plain("transport", ".3g"),
        "training (s)": plain("seconds", ".0f"),
    }
    beside = setup.dataset == "mnist"  # other digits have no published values
    if not beside:
        del main_table["published (%)"]
    continuous = [name for name in names if name != "baseline"]
    parts = [
        f"Data: {images.source}. Device: {_experiment.described(flags.device)}, "
        f"{flags.precision}. {setup.epochs} epochs, batch {setup.batch}, {setup.seeds} "
        f"seed{'s' if setup.seeds > 1 else ''}; T = 1, {setup.steps} Euler steps, lam = "
        f"{setup.lam:g} ({flags.cost} of the squared velocity); noise on {flags.noise_on}; "
        f"{seconds:.0f} s in all. "
        f"{'Published: 60,000 training digits, 5 seeds. ' if beside else ''}"
        "± is the standard deviation over seeds.",
        study.markdown_table(main_table),
    ]
    if continuous:
        by_steps: dict[str, list[str]] = {"steps at inference": [str(m) for m in INFERENCE]}
        for name in continuous:
            by_steps[f"{name} (%)"] = [
                spread(records[name], "steps", k) for k in range(len(INFERENCE))
            ]
            if beside:
                by_steps["published (%)" + " " * len(by_steps)] = [
                    f"{value}" for value in PUBLISHED_STEPS[name]
                ]
        parts += ["Trained with one number of steps, asked with another:"]
        parts += [study.markdown_table(by_steps)]
    for noise in ("gaussian", "uniform"):
        by_level: dict[str, list[str]] = {f"{noise} noise": [f"{s:g}" for s in LEVELS]}
        for name in names:
            by_level[f"{name} (%)"] = [spread(records[name], noise, k) for k in range(len(LEVELS))]
            if beside and name in PUBLISHED_NOISE[noise]:
                by_level["published (%)" + " " * len(by_level)] = [
                    f"{value}" for value in PUBLISHED_NOISE[noise][name]
                ]
        parts.append(study.markdown_table(by_level))
    return "\n\n".join(parts)


def findings(records: Mapping[str, list[dict[str, Any]]]) -> list[study.Finding]:
    """What the paper claims, and what came out."""

    def values(name: str, key: str, place: int | None = None) -> np.ndarray:
        return np.array([r[key] if place is None else r[key][place] for r in records[name]])

    def compared(better: str, worse: str, key: str, place: int | None = None) -> tuple[str, Any]:
        one, other = values(better, key, place), values(worse, key, place)
        gap = one.mean() - other.mean()
        noise = float(np.hypot(one.std(ddof=1), other.std(ddof=1))) if len(one) > 1 else 0.0
        verdict = "held" if gap > noise else "held in part" if gap > 0 else "not held"
        return f"{100 * gap:+.2f} points, spread over seeds {100 * noise:.2f}", verdict

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
        text, verdict = compared(better, worse, key, place)
        found.append(study.Finding(statement, source, text, verdict))
    drop = values("continuous", "final") - values("continuous", "steps", INFERENCE.index(8))
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
    straight, winding = (values(name, "straightness") for name in ("continuous", "unregularised"))
    found.append(
        study.Finding(
            "the transport cost makes hidden states move straighter",
            "[OTT] Prop. 1",
            f"arc over chord {straight.mean():.4f} with it, {winding.mean():.4f} without",
            "held" if straight.mean() < winding.mean() else "not held",
        )
    )
    return found


def figures(
    setup: Setup,
    records: Mapping[str, list[dict[str, Any]]],
    curves: "Mapping[str, list[Dataset]]",
) -> dict[str, Any]:
    """Learning curves; accuracy under noise and against the number of steps."""
    from wflow.nets._experiment_figures import Line, learning_curves, lines

    learning = learning_curves(curves, {"data": "training loss", "accuracy": "test accuracy"})
    levels = [max(level, 0.005) for level in LEVELS]  # the first one is 0
    panels = {}
    for noise in ("gaussian", "uniform"):
        panels[f"{noise} noise"] = (
            "noise level (0 at the left)",
            [Line(name, levels, [r[noise] for r in rows]) for name, rows in records.items()],
        )
    continuous = {name: rows for name, rows in records.items() if name != "baseline"}
    if continuous:
        panels[f"trained with {setup.steps} steps"] = (
            "steps at inference",
            [
                Line(name, list(INFERENCE), [r["steps"] for r in rows])
                for name, rows in continuous.items()
            ],
        )
    return {"learning_curves": learning, "robustness": lines(panels, "test accuracy")}


if __name__ == "__main__":
    sys.exit(guarded(main))
