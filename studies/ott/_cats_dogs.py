"""Networks, trainings and tables of the study `cats_dogs`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from _ott import (
    Kind,
    claim,
    classified,
    in_continuous_time,
    millions,
    parameters,
    per_epoch,
    percent,
)

from wflow import nets, study
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch

# [OTT] Table 8: test accuracy in per cent after the last epoch, and of the best one.
PUBLISHED = {
    "baseline": "77.6 ± 0.86",
    "node": "75.6 ± 0.48",
    "node with cost": "75.6 ± 0.03",
    "unregularised": "78.2 ± 0.39",
    "continuous": "79.0 ± 0.31",
}
PUBLISHED_BEST = {
    "baseline": "79.3 ± 0.52",
    "node": "76.4 ± 0.37",
    "node with cost": "76.4 ± 0.30",
    "unregularised": "78.8 ± 0.63",
    "continuous": "79.5 ± 0.46",
}
PUBLISHED_SIZE = {name: "1.77M" if name == "baseline" else "1.48M" for name in PUBLISHED}
TASK = 0.72  # test accuracy from which on a baseline has learnt the task
EVALUATION = 250  # pictures at a time
PIXELS = 224  # rows and columns in the published code


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    dataset: Literal["pictures", "digits"] = "pictures"
    seeds: int = 3
    seeds_node: int = 3  # of the N-ODE transformers, at most `seeds`
    epochs: int = 250
    batch: int = 64
    patch: int = 16
    width: int = 128
    heads: int = 8
    head_width: int = 64
    hidden: int = 128
    blocks_baseline: int = 6
    blocks: int = 5
    steps: int = 20
    lam: float = 0.01
    lam_node: float = 0.005
    rate: float = 3e-5
    warm_up: int | None = None  # epochs; then half a cosine wave down to zero. None: constant
    scale: float = 0.08  # least area of a crop
    position_std: float = 1.0


class Model(NamedTuple):
    """One model of the comparison."""

    kind: Kind
    lam: float


def models(setup: Setup) -> dict[str, Model]:
    """The models of [OTT] Table 8 by name."""
    return {
        "baseline": Model("baseline", 0.0),
        "node": Model("node", 0.0),
        "node with cost": Model("node", setup.lam_node),
        "unregularised": Model("continuous", 0.0),
        "continuous": Model("continuous", setup.lam),
    }


def seeds(setup: Setup) -> dict[str, int]:
    """Training runs of every model."""
    return {
        name: min(setup.seeds, setup.seeds_node) if model.kind == "node" else setup.seeds
        for name, model in models(setup).items()
    }


def load(setup: Setup, flags: Any) -> nets.data.Images:
    """The pictures that the set-up asks for."""
    if setup.dataset == "digits":
        return nets.data.digits()
    images = nets.data.cats_and_dogs(folder=flags.data, pixels=PIXELS if flags.published else 96)
    # The published networks see pixels in [0, 1].
    return replace(images, mean=0.0, std=1.0) if flags.published else images


def network(model: Model, setup: Setup, images: nets.data.Images, seed: int) -> nets.ViT:
    """A network with weights drawn from its seed."""
    import torch

    torch.manual_seed(seed)
    shape = images.test_images.shape[1:]
    net = nets.ViT(
        image=(*(1,) * (3 - len(shape)), *shape),  # type: ignore[arg-type]
        patch=setup.patch,
        classes=images.classes,
        width=setup.width,
        depth=setup.blocks_baseline if model.kind == "baseline" else setup.blocks,
        heads=setup.heads,
        head_width=setup.head_width,
        hidden=setup.hidden,
        skip=model.kind != "node",  # [OTT] after eq. 13
        position_std=setup.position_std,
    )
    net.body = in_continuous_time(net.body, model.kind, setup.steps)
    return net


def plan(model: Model, setup: Setup, images: nets.data.Images, flags: Any, seed: int) -> Run:
    """The training run of one model with one seed."""
    batches = nets.data.ImageBatches(
        images.train_images,
        images.train_labels,
        batch=setup.batch,
        seed=seed,
        mean=images.mean,
        std=images.std,
        augment=nets.data.RandomCrops(seed=seed, scale=(setup.scale, 1.0)),
    )
    epoch = batches.per_epoch
    schedule: Any = nets.train.Constant(setup.rate)
    if setup.warm_up is not None:
        rise = min(setup.warm_up, setup.epochs - 1) * epoch
        schedule = nets.train.Cosine(setup.rate, 0.0, warm_up=rise, steps=setup.epochs * epoch)
    team = nets.train.team(flags.device)

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        pictures = tested(setup, images, cropped=seed if flags.published else None)
        return classified(net, pictures, team.device, team)

    return Run(
        network(model, setup, images, seed),
        nets.train.objective(nets.train.cross_entropy, model.lam),
        batches,
        per_epoch(setup, flags, seed, epoch, schedule),
        evaluate,
    )


def tested(
    setup: Setup, images: nets.data.Images, *, cropped: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Test pictures and labels: whole, or cropped and flipped at random by a seed."""
    batches = nets.data.ImageBatches(
        images.test_images, images.test_labels, batch=1, mean=images.mean, std=images.std
    )
    pairs = batches.evaluation(EVALUATION)
    if cropped is None:
        return pairs
    # Another seed than that of the training, whose steps would have the same crops.
    crops = nets.data.RandomCrops(seed=1_000_000 + cropped, scale=(setup.scale, 1.0))
    return ((crops(pictures, step), labels) for step, (pictures, labels) in enumerate(pairs))


def examine(
    name: str, trained: Trained, setup: Setup, images: nets.data.Images, flags: Any, seed: int
) -> Record:
    """All quantities of a trained network, from the file in its folder where it has them."""
    return networks.cached_record(
        networks.folder_of(flags.out, name, seed),
        [images.source, asdict(replace(setup, seeds=0, seeds_node=0)), flags.published],
        trained,
        lambda: measured(trained, setup, images, flags, seed),
    )


def measured(
    training: Trained, setup: Setup, images: nets.data.Images, flags: Any, seed: int
) -> Record:
    """All quantities of a trained network, in single precision."""
    net, device, history = training.model, training.device, training.history
    keys = ("final", "best", "whole", "cropped", "training", *networks.MOTION)
    record: Record = dict.fromkeys(keys, np.nan)
    record["seconds"] = float(history["seconds"].sum())
    if training.diverged:
        return record
    found = {
        "whole": classified(net, tested(setup, images), device),
        "cropped": classified(net, tested(setup, images, cropped=seed), device),
    }
    record |= {key: value["accuracy"] for key, value in found.items()}
    epoch = len(images.train_images) // setup.batch
    record |= {
        "final": record["cropped" if flags.published else "whole"],
        "best": float(np.nanmax(history["accuracy"].values)),
        "training": float(history["data"].values[-epoch:].mean()),
    }
    pictures, _ = next(tested(setup, images))
    assert isinstance(net, nets.ViT)
    return record | networks.motion(net.body, net.embed(pictures.to(device)))


def findings(results: Results) -> list[study.Finding]:
    """Claims of the paper, with their verdicts."""

    def values(name: str, key: str = "final") -> np.ndarray:
        return np.array([record[key] for record in results.records[name]])

    baseline, plain, ours = values("baseline"), values("unregularised"), values("continuous")
    node, node_cost = values("node"), values("node with cost")
    gone = int((~np.isfinite(baseline)).sum())
    learnt = study.Finding.decided(
        f"the baseline learns the task: at least {100 * TASK:.0f} % after the last epoch", "set-up",
        f"diverged in {gone} of {baseline.size} runs" if gone else f"{percent(baseline.mean())} %",
        bool(baseline.mean() >= TASK),
    )  # fmt: skip
    table = "[OTT] Table 8"
    return [
        learnt,
        claim("the continuous model with transport cost ends more accurate than the baseline, "
              "which has a block more", table, (ours, baseline)),
        claim("its best epoch is more accurate, too", table,
              (values("continuous", "best"), values("baseline", "best"))),
        claim("the transport cost makes the continuous model more accurate, at the end and in its "
              "best epoch", table, (ours, plain),
              (values("continuous", "best"), values("unregularised", "best"))),
        claim("the N-ODE transformers, without and with cost, end less accurate than the baseline",
              table, (-node, -baseline), (-node_cost, -baseline)),
        claim("the transport cost raises the accuracy of the continuous model more than that of "
              "the N-ODE transformer", "[OTT] Appendix I", (ours - plain, node_cost - node)),
        steadier(baseline, ours),
        claim("the transport cost lowers the training loss of the continuous model in the last "
              "epoch", "[OTT] Figure 4",
              (-values("continuous", "training"), -values("unregularised", "training")), unit=""),
        claim("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
              (-values("continuous", "straightness"), -values("unregularised", "straightness")),
              unit=""),
    ]  # fmt: skip


def steadier(baseline: np.ndarray, ours: np.ndarray) -> study.Finding:
    """Whether accuracies of the continuous model spread less over seeds: F test of variances.

    Few seeds confirm large ratios alone: the published one, 2.8 of three seeds each, would not do.
    """
    from scipy.stats import f

    statement = "its accuracy spreads less over seeds than that of the baseline"
    if not np.isfinite([*baseline, *ours]).all():
        text, verdict = "a model diverged", "not confirmed"
    elif min(len(ours), len(baseline)) < 2:
        text, verdict = "one seed, spread unknown", "inconclusive"
    else:
        spread = [100 * float(np.std(values, ddof=1)) for values in (ours, baseline)]
        freedom = len(ours) - 1
        ratio = (spread[1] / spread[0]) ** 2 if spread[0] else math.inf
        chance = float(f.sf(ratio, freedom, freedom))
        verdict = "confirmed" if chance < 0.05 else "inconclusive"
        verdict = "not confirmed" if chance > 0.95 else verdict
        least = float(f.isf(0.05, freedom, freedom)) ** 0.5
        text = f"{spread[0]:.2f} against {spread[1]:.2f} points, F test p = {chance:.2g}"
        text += f"; with {len(ours)} seeds a ratio above {least:.1f} confirms"
    return study.Finding(statement, "[OTT] Table 8", text, verdict)  # type: ignore[arg-type]


def report(
    flags: Any,
    setup: Setup,
    images: nets.data.Images,
    listed: Mapping[str, Model],
    results: Results,
) -> str:
    """The tables, beside the published ones."""
    names = list(results.records)

    column = partial(networks.column, results)

    def drop(name: str) -> list[float]:
        return [record["cropped"] - record["whole"] for record in results.records[name]]

    main_table = {
        "model": names,
        "parameters of the blocks": [
            millions(parameters(network(listed[name], setup, images, 0).body)) for name in names
        ],
        "published size": [PUBLISHED_SIZE[name] for name in names],
        "final test accuracy (%)": column("final", percent),
        "published final (%)": [PUBLISHED[name] for name in names],
        "difference": networks.differences(
            results, "final", {k: float(v.split()[0]) for k, v in PUBLISHED.items()}, "+.1f", 100
        ),
        "best epoch (%)": column("best", percent),
        "published best (%)": [PUBLISHED_BEST[name] for name in names],
        "training loss, last epoch": column("training", ".3f"),
        "arc over chord": column("straightness", ".3f"),
        "speed variation": column("speed_variation", ".3f"),
        "transport cost": column("transport", ".3g"),
        "training (s)": column("seconds", ".0f"),
    }
    crops = {
        "model": names,
        "whole test pictures (%)": column("whole", percent),
        "random crops and flips of them (%)": column("cropped", percent),
        "difference (points)": [networks.mean_and_spread(drop(n), percent) for n in names],
    }
    sizes = f"width {setup.width}, {setup.heads} heads of {setup.head_width}, hidden {setup.hidden}"
    rates = f"learning rate {setup.rate:g}"
    if setup.warm_up is not None:
        rates += (
            f", which rises for {setup.warm_up} epoch{'s' * (setup.warm_up != 1)} and falls to "
        )
        rates += "zero by a cosine"
    lead = (
        f"{networks.caption(flags, setup.seeds, results, images.source)} {setup.epochs} epochs of "
        f"batches of {setup.batch}, Adam, {rates}; patches of {setup.patch} x {setup.patch}, "
        f"{sizes}, {setup.blocks_baseline} blocks (baseline) and {setup.blocks}; T = 1, "
        f"{setup.steps} Euler steps, lam = {setup.lam:g} (N-ODE {setup.lam_node:g}) times the mean "
        f"of the squared velocity over 2. Training: random crops of {100 * setup.scale:g} to 100 % "
        f"of the area, flipped at random; tests on {'such crops' if flags.published else 'whole'} "
        f"pictures. Hidden states are those of the first {EVALUATION} test pictures."
    )
    if setup.dataset == "digits":
        main_table = networks.unpublished(main_table)
    else:
        lead += (
            " Published: 250 epochs at 3e-5, width 128, 8 heads of 64, 20 steps, 224 x 224 pixels, "
            "tests on random crops, 3 seeds."
        )
    return "\n\n".join(
        (
            lead,
            study.markdown_table(main_table),
            "The same networks, tested on whole pictures and with the augmentation of training:",
            study.markdown_table(crops),
        )
    )
