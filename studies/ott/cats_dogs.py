"""Cats and dogs with a vision transformer: discrete, N-ODE, and continuous in time.

Six blocks one after another are the baseline. In the continuous model five blocks are the velocity
of the hidden states, in the N-ODE transformer each of them is a dynamical system; the loss adds lam
times the transport cost. Best and final test accuracy beside [OTT] Table 8, how straight the hidden
states move, and what the published habit changes, tests on random crops of the test pictures.

    python studies/ott/cats_dogs.py --preset cpu
    torchrun --nproc-per-node 8 studies/ott/cats_dogs.py --preset paper

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from _cats_dogs import Setup, examine, findings, load, models, plan, report, seeds
from _ott import with_habits

from wflow import study
from wflow._core.checks import number, positive, whole
from wflow.cli import guarded
from wflow.study import networks
from wflow.study.networks import Results

PRESETS = {
    "paper": Setup(),
    "cpu": Setup(
        seeds=2,
        seeds_node=1,
        epochs=32,
        width=64,
        heads=4,
        head_width=16,
        hidden=64,
        steps=4,
        rate=1e-3,
        warm_up=1,
        scale=0.4,
        position_std=0.02,
    ),
    "smoke": Setup(
        dataset="digits",
        seeds=1,
        epochs=2,
        batch=50,
        patch=2,
        width=8,
        heads=2,
        head_width=4,
        hidden=8,
        blocks_baseline=2,
        blocks=1,
        steps=2,
        rate=1e-3,
        warm_up=1,
        scale=0.3,
    ),
}


@dataclass(frozen=True, kw_only=True)
class CatsDogs(networks.NetFlags):
    """Flags of this study."""

    torchrun: ClassVar[bool] = True
    epochs: int | None = None
    """Epochs; default: of the preset."""
    rate: float | None = None
    """Learning rate, the largest one where it changes; default: of the preset."""
    lam_node: float | None = None
    """Weight of the transport cost of the N-ODE transformer; default: of the preset."""
    published: study.Switch = False
    """Follow the published code: pictures of 224 x 224 with pixels in [0, 1], random crops and
    flips of the test pictures, too."""
    out: study.Folder = Path("results/cats_dogs")
    """Folder for checkpoints, metrics, summary and figures."""

    def check(self) -> None:
        super().check()
        if self.epochs is not None:
            whole(self.epochs, "--epochs")
        if self.rate is not None:
            positive(self.rate, "--rate")
        if self.lam_node is not None:
            number(self.lam_node, "--lam-node", least=0.0)


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return networks.dataset(
        results,
        {
            "final": ("test accuracy after the last epoch", "1"),
            "best": ("best test accuracy of any epoch", "1"),
            "whole": ("final test accuracy on whole pictures", "1"),
            "cropped": ("final test accuracy on random crops and flips of the pictures", "1"),
            "training": ("training loss, mean of the last epoch", "1"),
            "straightness": ("arc length over chord of hidden states, first test pictures", "1"),
            "speed_variation": ("standard deviation over mean of the speed, likewise", "1"),
            "transport": ("transport cost, likewise", "1"),
            "seconds": ("time of the training steps", "s"),
        },
        {},
        {},
    )


def figures(results: Results) -> dict[str, Any]:
    """Learning curves."""
    from wflow.plots.networks import learning_curves

    curves = {"data": "training loss", "test_loss": "test loss", "accuracy": "test accuracy"}
    return {"learning_curves": learning_curves(results.histories, curves)}


def main() -> int:
    flags = study.command_line(CatsDogs, __doc__)
    setup = networks.with_flags(PRESETS[flags.preset], flags)
    listed = models(setup)
    names = networks.chosen(listed, seeds(setup), flags)
    with study.session("cats_dogs", flags) as session:
        images = networks.on_rank_zero(flags, lambda: load(setup, flags))
        results = networks.train_all(
            session,
            flags,
            names,
            seeds(setup),
            lambda name, seed: plan(listed[name], setup, images, flags, seed),
            lambda name, seed, trained: examine(name, trained, setup, images, flags, seed),
        )
        whole_preset = networks.is_preset(setup, flags, PRESETS) and len(names) == len(listed)
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, images, listed, results),
            findings=with_habits(findings(results) if whole_preset else [], flags),
            figures=figures(results),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
