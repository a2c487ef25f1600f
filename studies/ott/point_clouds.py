"""Clouds of points with a Set Transformer: discrete, continuous in time, and with transport cost.

Two induced blocks and pooling by attention classify clouds. The baseline applies its blocks once;
the continuous models let narrower ones be the velocity of the points: both one system, or one
system per block (`node`, the N-ODE transformer). Test accuracy, accuracy with points removed and
with clouds rotated, and whether the training stays finite without the transport cost, or with a
slight one: [OTT] section 5.1, Tables 3 and 6.

    python studies/ott/point_clouds.py --preset cpu --dataset solids
    python studies/ott/point_clouds.py --preset paper --device cuda --data FOLDER

The `paper` preset needs ModelNet40; `cpu` takes MNIST as sets of pixels, or solids.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import _ott as ott
import numpy as np
from _ott import claim, less, more, no_better

from wflow import nets, study
from wflow.cli import script
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch

DROPPED = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5)  # share of the points
ROTATED = (0, 10, 20, 40, 80)  # degrees
DEFAULT_OUT = Path("results/point_clouds")
SMALL = {
    "seeds": 3, "batch": 32, "rate": 2e-3, "width_baseline": 40, "width": 32, "inducing": 8,
    "dropout": 0.0,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PointClouds(networks.NetFlags):
    """Flags of this study."""

    torchrun: ClassVar = "batches"
    indifferent: ClassVar[frozenset[str]] = frozenset({"dataset", "published", "checkpointing"})
    durations: ClassVar = {
        "smoke": "seconds",
        "cpu": "minutes a model on two cores",
        "paper": "48 hours of a GPU",
    }
    presets: ClassVar = {
        "paper": {},
        "cpu": SMALL
        | {"dataset": "mnist", "train": 10_000, "test": 2_000, "points": 96, "epochs": 5},
        "smoke": SMALL
        | {
            "dataset": "solids", "train": 48, "test": 24, "stored": 32, "points": 16, "seeds": 2,
            "epochs": 2, "batch": 8, "width_baseline": 16, "width": 8, "heads": 2, "inducing": 4,
            "steps": 2,
        },
    }  # fmt: skip
    preset_variants: ClassVar = {  # the sizes of the preset, with other clouds
        ("cpu", "dataset", "solids"): {"train": 2_400, "test": 600, "points": 64, "epochs": 20},
        ("cpu", "dataset", "modelnet40"): {"train": 0, "test": 0},
        ("smoke", "dataset", "mnist"): {"train": 10_000, "test": 2_000},
        ("smoke", "dataset", "modelnet40"): {"train": 0, "test": 0},
    }
    dataset: Literal["modelnet40", "mnist", "solids"] = "modelnet40"
    """ModelNet40, digits of MNIST as sets of pixels, or solids."""
    train: study.Natural = 0
    """Clouds of MNIST or solids for training; 0: all, and 2,400 solids."""
    test: study.Natural = 0
    """Clouds of the test half that are used, the first ones; 0: all, and 600 solids."""
    stored: study.Count = 128
    """Points of a solid, of which --points are taken."""
    points: study.Count = 5_000
    """Points that are taken of each cloud, at most."""
    seeds: study.Count = 5
    epochs: study.Count = 200
    """Epochs; the rate falls to a tenth after three quarters of them."""
    batch: study.Count = 64
    """Clouds in a batch."""
    rate: study.Positive = 1e-3
    """Learning rate of the first three quarters."""
    width_baseline: study.Count = 256
    """Width of the hidden states of the baseline."""
    width: study.Count = 200
    """Width of those of the other models."""
    heads: study.Count = 4
    """Number of heads."""
    inducing: study.Count = 16
    """Inducing points of a block."""
    dropout: study.Nonnegative = 0.5
    """Share of the features that are dropped in training."""
    steps: networks.Steps = 8
    """Steps M of the continuous models in training."""
    lam: study.Nonnegative = 1.0
    """Weight lam of the transport cost."""
    lam_node: study.Nonnegative = 0.1
    """Weight of the transport cost of the N-ODE transformer."""
    lam_slight: study.Nonnegative = 0.01
    """Slight weight of the transport cost."""
    cost: Literal["mean", "sum"] = "mean"
    """Transport cost over the entries of the hidden states ([OTT1] eq. 8), or their sum ([OTT])."""
    published: study.Switch = False
    """Habits of the code that the published experiment builds on: the same points of a cloud at
    every visit, ModelNet40 moved by the mean of all coordinates in place of its centre, and the
    test clouds left out that make no whole batch."""
    checkpointing: study.Switch = False
    """Compute the steps of continuous models again for their gradient: less memory, more time."""
    out: study.Folder = DEFAULT_OUT
    """Folder for checkpoints, metrics, summary and figures; the name of the data set is added to
    the default."""


def models(flags: PointClouds) -> dict[str, ott.Model]:
    """Return the models by name."""
    return {
        "baseline": ott.Model("baseline"),
        "node": ott.Model("node", flags.lam_node),
        "unregularised": ott.Model("continuous"),
        "slight": ott.Model("continuous", flags.lam_slight),
        "continuous": ott.Model("continuous", flags.lam),
    }


# Data and trainings
# ------------------


class Data(NamedTuple):
    """Clouds, and those of the tests with the points that a network sees."""

    clouds: nets.data.PointClouds
    points: torch.Tensor
    mask: torch.Tensor | None  # None where all are full
    labels: torch.Tensor
    batch: int

    @property
    def source(self) -> str:
        return self.clouds.source

    def tests(
        self, points: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield pieces of the test clouds, or of what a perturbation has made of them."""
        if points is None:
            points, mask = self.points, self.mask
        given = (points, self.labels) if mask is None else (points, mask, self.labels)
        return zip(*(each.split(self.batch) for each in given), strict=True)


def load(flags: PointClouds) -> Data:
    """Return the clouds that the flags ask for."""
    data = nets.data
    if flags.dataset == "mnist":
        clouds = data.mnist_clouds(folder=flags.data, digits=flags.train or None)
    elif flags.dataset == "solids":
        clouds = data.solids(train=flags.train or 2400, test=flags.test or 600, points=flags.stored)
    else:
        clouds = data.modelnet40(folder=flags.data)
        train, test = (
            data.standardised(points, centre="scalar" if flags.published else "centroid")
            for points in (clouds.train_points, clouds.test_points)
        )
        clouds = replace(clouds, train_points=train, test_points=test)
    return with_tests(flags, clouds)


def with_tests(flags: PointClouds, clouds: nets.data.PointClouds) -> Data:
    """Return clouds with the test clouds that every model and seed sees."""
    import torch

    count = len(clouds.test_points)
    count = min(flags.test or count, count)
    if flags.published and count > flags.batch:  # what is no whole batch is left out
        count -= count % flags.batch
    source = nets.data.CloudBatches(
        clouds.test_points[:count],
        clouds.test_counts[:count],
        clouds.test_labels[:count],
        batch=min(flags.batch, count),
        points=flags.points,
        fixed_subset=flags.published,
    )
    parts = [torch.cat(each) for each in zip(*source.evaluation(), strict=True)]
    mask = parts[1] if source.padded else None
    return Data(clouds, parts[0], mask, parts[-1], 4 * flags.batch)


def network(
    flags: PointClouds, model: ott.Model, clouds: nets.data.PointClouds, seed: int
) -> nets.SetTransformer:
    """Return a model with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    baseline = model.kind == "baseline"
    net = nets.SetTransformer(
        features=clouds.train_points.shape[2], classes=len(clouds.names),
        width=flags.width_baseline if baseline else flags.width, heads=flags.heads,
        inducing=flags.inducing, dropout=flags.dropout, skip=model.kind != "node", form="published",
        embedding="block" if baseline else "linear",
    )  # fmt: skip
    net.body = ott.in_continuous_time(
        net.body, model.kind, flags.steps, cost=flags.cost, checkpointing=flags.checkpointing
    )
    return net


def size_of_blocks(net: nets.SetTransformer) -> tuple[int, int]:
    """Return parameters of the induced blocks: all of them, and without biases.

    The blocks are the body and, in the baseline, what embeds points; the linear map in front of a
    continuous model is none of them. Without biases, and rounded, these are the numbers of [OTT].
    """
    import torch

    blocks = [net.body]
    if not isinstance(net.embed, torch.nn.Linear):
        blocks.append(net.embed)
    return ott.parameters(*blocks), ott.parameters(*blocks, biases=False)


def plan(flags: PointClouds, data: Data, model: ott.Model, seed: int) -> Run:
    """Return the training run of one model with one seed."""
    import torch

    source = nets.data.CloudBatches(
        data.clouds.train_points, data.clouds.train_counts, data.clouds.train_labels,
        batch=flags.batch, points=flags.points, seed=seed, fixed_subset=flags.published,
        augment=nets.data.RandomPoses(seed=seed) if flags.dataset == "modelnet40" else None,
    )  # fmt: skip
    falls = 3 * flags.epochs // 4 * source.per_epoch
    schedule = nets.train.StepDecay((flags.rate, flags.rate / 10), (falls,))
    return ott.training(
        flags, seed, network(flags, model, data.clouds, seed),
        nets.train.objective(torch.nn.functional.cross_entropy, model.lam), source, schedule,
        data.tests,
    )  # fmt: skip


# What was learnt
# ---------------

NUMBERS = ott.trained_texts("the first test clouds") | {
    "training": ("training loss without the cost, mean of the last epoch", "1"),
    "gradient": ("largest norm of a gradient in training", "1"),
    "diverged": ("whether the loss stopped being finite", "1"),
}
ALONG = {
    "dropped": ("accuracy_dropped", "share", "test accuracy with points removed"),
    "rotated": ("accuracy_rotated", "angle", "test accuracy with clouds rotated"),
}
COORDS = {
    "share": (DROPPED, "share of the points removed"),
    "angle": (ROTATED, "angle of the rotation in degrees"),
}


def measure(
    flags: PointClouds, data: Data, model: ott.Model, training: Trained, seed: int
) -> Record:
    """Return all quantities of a trained network, in single precision."""
    history = training.history
    record: Record = {"gradient": ott.steepest(history)}
    if training.diverged:
        return record
    net, device = training.model, training.device

    def accuracy(points: torch.Tensor, mask: torch.Tensor | None) -> float:
        return networks.classified(net, data.tests(points, mask), device)["accuracy"]

    def dropped(rate: float) -> float:
        if data.mask is None:
            return accuracy(nets.data.drop_points(data.points, rate, seed), None)
        return accuracy(*nets.data.drop_points(data.points, rate, seed, mask=data.mask))

    def rotated(angle: int) -> float:
        about: Any = "third" if flags.dataset == "mnist" else "random"
        turned = nets.data.rotate_points(data.points, math.radians(angle), seed, about=about)
        return accuracy(turned, data.mask)

    final = accuracy(data.points, data.mask)
    record |= {
        "final": final,
        "best": float(history["accuracy"].max()),
        "training": float(history["data"].values[-(history["loss"].size // flags.epochs) :].mean()),
        "dropped": [final if rate == 0 else dropped(rate) for rate in DROPPED],
        "rotated": [final if angle == 0 else rotated(angle) for angle in ROTATED],
    }
    return record | moving(net, data, device)


def moving(net: Any, data: Data, device: torch.device) -> Record:
    """Return how straight the points of the first test clouds move; blocks receive the mask."""
    import torch

    points, *masks, _ = (each.to(device) for each in next(data.tests()))
    mask = {"mask": masks[0]} if masks else {}
    valid = {"valid": masks[0]} if masks else {}
    linear = isinstance(net.embed, torch.nn.Linear)
    with torch.no_grad():
        hidden = net.embed(points) if linear else net.embed(points, **mask)
    return networks.motion(net.body, hidden, **valid, **mask)


def findings(flags: PointClouds, data: Data, results: Results) -> list[study.Finding]:
    """Return claims of the paper, with their verdicts."""

    def kept(name: str, level: int) -> np.ndarray:
        return results.values(name, "dropped", level) - results.values(name, "dropped", 0)

    table, robust = "[OTT] Table 6", "[OTT] Table 3"
    model = "the continuous model with transport cost"
    levels = range(1, len(DROPPED))
    shares = [f"{100 * share:g} %" for share in DROPPED[1:]]
    found = [
        claim(f"{model} is more accurate than the larger baseline, at the end and in its best "
              "epoch", table, more(results, "final"), more(results, "best")),
        claim(f"{model} is more accurate than the N-ODE transformer", table,
              more(results, "final", "node"), more(results, "best", "node")),
        no_better("the N-ODE transformer is not more accurate than the baseline by more than the "
                  "spread over seeds", table,
                  more(results, "final", model="node"), more(results, "best", model="node")),
        claim(f"the training loss of {model} is below that of the baseline", "[OTT] Figure 2",
              less(results, "training"), unit=""),
        claim(f"with points removed {model} stays more accurate than the baseline, for every "
              "share", robust, *(more(results, "dropped", place=k) for k in levels), labels=shares),
        claim(f"with points removed {model} loses less than the baseline, for every share", robust,
              *((kept("continuous", k), kept("baseline", k)) for k in levels), labels=shares),
        claim("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
              less(results, "straightness", "unregularised"), unit=""),
        *explosions(results),
    ]  # fmt: skip
    return ott.with_published_conventions(found, flags)


def explosions(results: Results) -> list[study.Finding]:
    """Decide whether trainings blow up without, with slight, and with sufficient regularisation."""

    def gone(name: str) -> tuple[int, int, float]:
        runs = results.records[name]
        return sum(r["diverged"] for r in runs), len(runs), ott.largest(r["gradient"] for r in runs)

    found = []
    source = "[OTT] Appendix I, point clouds"
    for name, words in (
        ("unregularised", "without transport cost the training of the continuous model blows up"),
        ("slight", "with a slight transport cost the training of the continuous model blows up"),
    ):
        count, runs, norm = gone(name)
        verdict: Any = "confirmed" if count == runs else "confirmed in part"
        text = f"{count} of {runs} runs, largest gradient {norm:.3g}"
        found.append(study.Finding(words, source, text, verdict if count else "not confirmed"))
    kept = [gone(name) for name in ("continuous", "node")]
    count, runs = sum(k for k, _, _ in kept), sum(n for _, n, _ in kept)
    norm = ott.largest(g for _, _, g in kept)
    text = f"{count} of {runs} runs diverged, largest gradient {norm:.3g}"
    verdict = "not confirmed"
    if not count:
        verdict = "confirmed" if gone("unregularised")[0] else "inconclusive"
        text += "" if verdict == "confirmed" else "; without the cost none did either"
    words = (
        "with sufficient transport cost the training of the continuous model and of the N-ODE "
        "transformer never blows up"
    )
    return [*found, study.Finding(words, source, text, verdict)]


# Tables and figures
# ------------------


def report(flags: PointClouds, data: Data, results: Results) -> str:
    """Return the tables, beside the published ones."""
    names, published = list(results.records), ott.PUBLISHED["Table 6"]
    column, listed = partial(networks.column, results), models(flags)
    sizes = [size_of_blocks(network(flags, listed[name], data.clouds, 0)) for name in names]
    main_table = {
        "model": names,
        "lam": [f"{listed[name].lam:g}" for name in names],
        "parameters of the blocks": [f"{every:,}" for every, _ in sizes],
        "without biases": [f"{weights:,}" for _, weights in sizes],
        "published size": ott.beside(results, published["parameters"]),
        **ott.accuracies(results, published),
        "training loss": column("training", ".3f"),
        **ott.motions(results),
        "largest gradient": column("gradient", ".3g"),
        "diverged": [f"{sum(r['diverged'] for r in results.records[name])}" for name in names],
        "training (s)": column("seconds", ".0f"),
    }
    text = networks.caption(flags, flags.seeds, results, data.source) + (
        " T = 1, Euler steps, the rate falls to a tenth after three quarters of the epochs; lam "
        "weighs the cost, of the squared velocity over 2."
    )
    removed = ott.PUBLISHED["Table 3, points"]["accuracy"]
    if flags.dataset != "modelnet40":  # other clouds have no published values
        main_table, removed = networks.unpublished(main_table), {}
    return "\n\n".join((
        text,
        study.markdown_table(main_table),
        ott.by_level(results, "dropped", "share of points removed", DROPPED, removed),
        ott.by_level(results, "rotated", "rotated by (degrees)", ROTATED, {}),
    ))  # fmt: skip


def figures(flags: PointClouds, results: Results) -> dict[str, study.Figure]:
    """Draw the learning curves; accuracy with points removed and with clouds rotated."""
    from wflow.plots.networks import lines

    panels = {
        "Points removed": ("share of the points", ott.at_levels(results, "dropped", DROPPED)),
        "Clouds rotated": ("angle (degrees)", ott.at_levels(results, "rotated", ROTATED)),
    }
    return ott.learning_curves(results, "accuracy") | {"robustness": lines(panels, "Test accuracy")}


EXPERIMENT = networks.Experiment(
    name="point_clouds", models=models, load=load, plan=plan, measure=measure, numbers=NUMBERS,
    along=ALONG, coords=lambda _: COORDS, text=report, findings=findings, figures=figures,
)  # fmt: skip


def main() -> None:
    flags = study.command_line(PointClouds, __doc__)
    if flags.out == DEFAULT_OUT:
        flags = replace(flags, out=DEFAULT_OUT.with_name(f"{DEFAULT_OUT.name}_{flags.dataset}"))
    networks.run(EXPERIMENT, flags)


if __name__ == "__main__":
    script(main)
