"""Networks, trainings and tables of the study `point_clouds`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
    steepest,
)

from wflow import nets, study
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

# [OTT] Table 6: test accuracy in per cent after the last epoch, of the best one, and the millions
# of parameters of the blocks.
PUBLISHED = {"baseline": "86.6 ± 0.67", "node": "86.7 ± 0.43", "continuous": "89.3 ± 0.69"}
PUBLISHED_BEST = {"baseline": "87.4 ± 0.45", "node": "87.5 ± 0.51", "continuous": "89.9 ± 0.42"}
PUBLISHED_SIZE = {"baseline": "0.86M", "node": "0.65M", "continuous": "0.65M"}
# [OTT] Table 3: with points removed, for these two alone.
PUBLISHED_DROP: dict[str, tuple[float, ...]] = {
    "baseline": (86.6, 86.6, 85.8, 84.3, 76.9, 34.5),
    "continuous": (89.3, 89.3, 88.8, 87.6, 83.9, 55.4),
}
DROPPED = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5)  # share of the points
ROTATED = (0, 10, 20, 40, 80)  # degrees
MODELNET = "modelnet40"


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    dataset: str = MODELNET
    train: int | None = None  # clouds, where the data set lets choose; None: all
    test: int | None = None  # clouds of the test half, the first ones; None: all
    stored: int = 128  # points of a solid, of which `points` are taken
    points: int = 5_000
    seeds: int = 5
    epochs: int = 200
    batch: int = 64
    rate: float = 1e-3
    width_baseline: int = 256
    width: int = 200
    heads: int = 4
    inducing: int = 16
    dropout: float = 0.5
    steps: int = 8
    lam: float = 1.0
    lam_node: float = 0.1
    lam_slight: float = 0.01


@dataclass(frozen=True)
class Model:
    """A model of the comparison: its kind, and the weight of the transport cost."""

    kind: Kind
    lam: float


def models(setup: Setup) -> dict[str, Model]:
    """The models by name."""
    return {
        "baseline": Model("baseline", 0.0),
        "node": Model("node", setup.lam_node),
        "unregularised": Model("continuous", 0.0),
        "slight": Model("continuous", setup.lam_slight),
        "continuous": Model("continuous", setup.lam),
    }


def load(setup: Setup, flags: Any) -> nets.data.PointClouds:
    """The clouds that the set-up asks for."""
    data = nets.data
    if setup.dataset == "mnist":
        return data.mnist_clouds(folder=flags.data, digits=setup.train)
    if setup.dataset == "solids":
        return data.solids(train=setup.train or 2400, test=setup.test or 600, points=setup.stored)
    clouds = data.modelnet40(folder=flags.data)
    train, test = (
        data.standardised(points, centre="scalar" if flags.published else "centroid")
        for points in (clouds.train_points, clouds.test_points)
    )
    return replace(clouds, train_points=train, test_points=test)


def network(
    name: str, setup: Setup, clouds: nets.data.PointClouds, flags: Any, seed: int
) -> nets.SetTransformer:
    """A model with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    kind = models(setup)[name].kind
    baseline = kind == "baseline"
    model = nets.SetTransformer(
        features=clouds.train_points.shape[2],
        classes=len(clouds.names),
        width=setup.width_baseline if baseline else setup.width,
        heads=setup.heads,
        inducing=setup.inducing,
        dropout=setup.dropout,
        skip=kind != "node",
        form="published",
        embedding="block" if baseline else "linear",
    )
    model.body = in_continuous_time(
        model.body, kind, setup.steps, cost=flags.cost, checkpointing=flags.checkpointing
    )
    return model


def size_of_blocks(model: nets.SetTransformer) -> tuple[int, int]:
    """Parameters of the induced blocks: all of them, and without biases.

    The blocks are the body and, in the baseline, what embeds points; the linear map in front of a
    continuous model is none of them. Without biases, and rounded, these are the numbers of [OTT].
    """
    import torch

    blocks = [model.body]
    if not isinstance(model.embed, torch.nn.Linear):
        blocks.append(model.embed)
    return parameters(*blocks), parameters(*blocks, biases=False)


@dataclass(frozen=True)
class TestSet:
    """Test clouds as tensors: points, mask (None where all are full), labels."""

    points: torch.Tensor
    mask: torch.Tensor | None
    labels: torch.Tensor
    batch: int

    def batches(
        self, points: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ) -> Iterator[tuple[torch.Tensor, ...]]:
        """Pieces of the clouds, or of what a perturbation has made of them."""
        if points is None:
            points, mask = self.points, self.mask
        given = (points, self.labels) if mask is None else (points, mask, self.labels)
        return zip(*(each.split(self.batch) for each in given), strict=True)


def test_set(setup: Setup, clouds: nets.data.PointClouds, flags: Any) -> TestSet:
    """Test clouds with the points that a network sees, the same for every model and seed."""
    import torch

    count = len(clouds.test_points) if setup.test is None else setup.test
    count = min(count, len(clouds.test_points))
    if flags.published and count > setup.batch:  # what is no whole batch is left out
        count -= count % setup.batch
    source = nets.data.CloudBatches(
        clouds.test_points[:count],
        clouds.test_counts[:count],
        clouds.test_labels[:count],
        batch=min(setup.batch, count),
        points=setup.points,
        fixed_subset=flags.published,
    )
    parts = [torch.cat(each) for each in zip(*source.evaluation(), strict=True)]
    return TestSet(parts[0], parts[1] if source.padded else None, parts[-1], 4 * setup.batch)


def plan(
    name: str,
    setup: Setup,
    clouds: nets.data.PointClouds,
    test: TestSet,
    flags: Any,
    seed: int,
) -> Run:
    """The training run of one model with one seed."""
    import torch

    source = nets.data.CloudBatches(
        clouds.train_points,
        clouds.train_counts,
        clouds.train_labels,
        batch=setup.batch,
        points=setup.points,
        seed=seed,
        fixed_subset=flags.published,
        augment=nets.data.RandomPoses(seed=seed) if setup.dataset == MODELNET else None,
    )
    epoch = source.per_epoch
    schedule = nets.train.StepDecay((setup.rate, setup.rate / 10), (3 * setup.epochs // 4 * epoch,))
    team = nets.train.team(flags.device)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return classified(model, test.batches(), team.device, team)

    return Run(
        network(name, setup, clouds, flags, seed),
        nets.train.objective(torch.nn.functional.cross_entropy, models(setup)[name].lam),
        source,
        per_epoch(setup, flags, seed, epoch, schedule),
        evaluate,
    )


def examine(training: Trained, setup: Setup, test: TestSet, seed: int) -> Record:
    """All quantities of a trained network, in single precision."""
    history = training.history
    record: Record = dict.fromkeys(("final", "best", "training", *networks.MOTION), np.nan)
    record |= {
        "dropped": [np.nan] * len(DROPPED),
        "rotated": [np.nan] * len(ROTATED),
        "gradient": steepest(history),
        "seconds": float(history["seconds"].sum()),
    }
    if training.diverged:
        return record
    model, device = training.model, training.device

    def accuracy(points: torch.Tensor, mask: torch.Tensor | None) -> float:
        return classified(model, test.batches(points, mask), device)["accuracy"]

    def dropped(rate: float) -> float:
        if test.mask is None:
            return accuracy(nets.data.drop_points(test.points, rate, seed), None)
        return accuracy(*nets.data.drop_points(test.points, rate, seed, mask=test.mask))

    about: Any = "third" if setup.dataset == "mnist" else "random"
    final = accuracy(test.points, test.mask)
    record |= {
        "final": final,
        "best": float(history["accuracy"].max()),
        "training": float(history["data"].values[-(history["loss"].size // setup.epochs) :].mean()),
        "dropped": [final if rate == 0 else dropped(rate) for rate in DROPPED],
        "rotated": [
            final
            if angle == 0
            else accuracy(
                nets.data.rotate_points(test.points, math.radians(angle), seed, about=about),
                test.mask,
            )
            for angle in ROTATED
        ],
    }
    return record | moving(model, test, device)


def moving(model: Any, test: TestSet, device: torch.device) -> Record:
    """How straight the points of the first test clouds move; the mask goes to the blocks."""
    import torch

    points, *masks, _ = (each.to(device) for each in next(test.batches()))
    mask = {"mask": masks[0]} if masks else {}
    valid = {"valid": masks[0]} if masks else {}
    linear = isinstance(model.embed, torch.nn.Linear)
    with torch.no_grad():
        hidden = model.embed(points) if linear else model.embed(points, **mask)
    return networks.motion(model.body, hidden, **valid, **mask)


def report(flags: Any, setup: Setup, clouds: nets.data.PointClouds, results: Results) -> str:
    """The tables, beside the published ones."""
    names = list(results.records)
    beside = setup.dataset == MODELNET  # other clouds have no published values
    sizes = [size_of_blocks(network(name, setup, clouds, flags, 0)) for name in names]
    listed = models(setup)

    column = partial(networks.column, results)

    main_table = {
        "model": names,
        "lam": [f"{listed[name].lam:g}" for name in names],
        "parameters of the blocks": [f"{every:,}" for every, _ in sizes],
        "without biases": [f"{weights:,}" for _, weights in sizes],
        "published size": [PUBLISHED_SIZE.get(name, "–") for name in names],
        "test accuracy (%)": column("final", percent),
        "published (%)": [PUBLISHED.get(name, "–") for name in names],
        "difference": networks.differences(
            results, "final", {k: float(v.split()[0]) for k, v in PUBLISHED.items()}, "+.1f", 100
        ),
        "best epoch (%)": column("best", percent),
        "published best (%)": [PUBLISHED_BEST.get(name, "–") for name in names],
        "training loss": column("training", ".3f"),
        "arc over chord": column("straightness", ".3f"),
        "speed variation": column("speed_variation", ".3f"),
        "transport cost": column("transport", ".3g"),
        "largest gradient": column("gradient", ".3g"),
        "diverged": [f"{sum(r['diverged'] for r in results.records[name])}" for name in names],
        "training (s)": column("seconds", ".0f"),
    }
    text = networks.caption(flags, setup.seeds, results, clouds.source) + (
        f" {setup.points:,} points of each cloud at most, {setup.epochs} epochs, batch "
        f"{setup.batch}, rate {setup.rate:g} and a tenth of it after three quarters; T = 1, "
        f"{setup.steps} Euler steps; lam weighs the {flags.cost} of the squared velocity over 2."
    )
    if setup.test is not None:
        text += f" The first {setup.test:,} test clouds."
    if beside:
        text += " Published: 5,000 points, 200 epochs, 5 seeds."
    else:
        main_table = networks.unpublished(main_table)
    parts = [text, study.markdown_table(main_table)]
    tables: list[tuple[str, str, Any, dict[str, tuple[float, ...]]]] = [
        ("share of points removed", "dropped", DROPPED, PUBLISHED_DROP),
        ("rotated by (degrees)", "rotated", ROTATED, {}),
    ]
    for title, key, settings, published in tables:
        table = {title: [f"{value:g}" for value in settings]}
        rows = [column(key, percent, k) for k in range(len(settings))]
        for place, name in enumerate(names):
            table[f"{name} (%)"] = [cells[place] for cells in rows]
            if beside and name in published:
                table[f"published, {name}"] = [f"{value}" for value in published[name]]
        parts.append(study.markdown_table(table))
    return "\n\n".join(parts)
