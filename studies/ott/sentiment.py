"""Sentiment of film reviews with a text classifier: discrete, continuous in time, with its cost.

An encoder with layer norms behind its layers reads a review and says whether it is positive. The
baseline applies its blocks once; the continuous models let half as many blocks be the velocity of
the hidden states: all of them one system, or one system per block (`node`, the N-ODE transformer),
with three weights lam of the transport cost. Best and final test accuracy, and whether training
without the cost blows up: [OTT] section 5.3, Appendix I and Table 9.

    python studies/ott/sentiment.py --preset cpu
    torchrun --nproc-per-node 2 studies/ott/sentiment.py --preset paper --published

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, arXiv 2505.13499.
"""

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from _ott import claim, largest, no_better, with_habits
from _sentiment import FREE, Data, Setup, examine, load, models, plan, report, seeds

from wflow import study
from wflow._core.checks import positive, whole
from wflow.cli import guarded
from wflow.study import networks
from wflow.study.frame import Verdict
from wflow.study.networks import Results

TASK = 0.82  # test accuracy from which on a baseline has learnt the task


PRESETS = {
    "paper": Setup(),
    # Narrower, shorter and faster: an embedding that starts ten times smaller learns at once.
    "cpu": Setup(
        seeds=3,
        seeds_free=1,
        epochs=5,
        context=192,
        keep="end",
        vocabulary=8000,
        width=32,
        heads=2,
        depth_baseline=4,
        depth=2,
        steps=4,
        rate=2e-3,
        embedding_std=0.1,
    ),
    "smoke": Setup(
        dataset="invented",
        seeds=1,
        epochs=2,
        batch=20,
        context=24,
        vocabulary=300,
        width=8,
        heads=2,
        depth_baseline=2,
        depth=2,
        steps=2,
        rate=1e-2,
        embedding_std=0.1,
        dropout=0.0,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Sentiment(networks.NetFlags):
    """Flags of this study."""

    torchrun: ClassVar[bool] = True
    published: study.Switch = False
    """The habits of the published code: both halves of the data joined and split at random, with
    the reviews that are there twice; maximum over padding, too; softmax twice; all batches filled
    up to the context."""
    epochs: int | None = None
    """Epochs; the learning rate falls to a tenth after 12/15 of them. Default: of the preset."""
    context: int | None = None
    """Tokens of a review that are read; default: of the preset."""
    rate: float | None = None
    """Learning rate; default: of the preset."""
    out: study.Folder = Path("results/sentiment")
    """Folder for checkpoints, metrics, summary and figures."""

    def check(self) -> None:
        super().check()
        for name in ("epochs", "context"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"--{name}")
        if self.rate is not None:
            positive(self.rate, "--rate")


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return networks.dataset(
        results,
        {
            "best": ("best test accuracy of any epoch", "1"),
            "final": ("test accuracy after the last epoch", "1"),
            "training": ("training loss of the last epoch", "1"),
            "test_loss": ("test loss after the last epoch", "1"),
            "largest": ("largest norm of the gradient in any step", "1"),
            "taken": ("optimiser steps taken", "1"),
            "straightness": ("arc length over chord of hidden states", "1"),
            "speed_variation": ("variation of their speed", "1"),
            "transport": ("transport cost with the factor 1/2", "1"),
            "seconds": ("time of all steps", "s"),
        },
        {},
        {},
    )


def findings(setup: Setup, results: Results) -> list[study.Finding]:
    """Claims of the paper, with their verdicts."""
    small, lam = "lam=0.001", f"lam={setup.lam:g}"

    def values(name: str, key: str = "best") -> np.ndarray:
        return np.array([record[key] for record in results.records[name]], dtype=float)

    def gain(kind: str) -> np.ndarray:
        return values(f"{kind} {lam}") - values(f"{kind} {small}")

    reached = values("baseline", "final")
    verdicts = [
        study.Finding.decided(
            f"the baseline learns the task: at least {100 * TASK:.0f} % after the last epoch",
            "set-up", f"{100 * reached.mean():.2f} %", bool(reached.mean() >= TASK),
        )
    ]  # fmt: skip
    ours, weak = f"continuous {lam}", f"continuous {small}"
    table = "[OTT] Table 9"
    nodes = [f"node {small}", f"node {lam}"]
    return [
        *verdicts,
        claim("the continuous model with transport cost is more accurate in its best epoch than "
              "the baseline, with half as many blocks", table, (values(ours), values("baseline"))),
        claim("and than the N-ODE transformer with transport cost", table,
              (values(ours), values(f"node {lam}"))),
        claim(f"lam = {setup.lam:g} makes the continuous model more accurate than lam = 0.001, in "
              "its best epoch and at the end", table, (values(ours), values(weak)),
              (values(ours, "final"), values(weak, "final"))),
        claim("by more than the N-ODE transformer", table, (gain("continuous"), gain("node"))),
        no_better("the N-ODE transformers, with little cost and with much, are no more accurate "
                  "than the baseline, in their best epoch and at the end", table,
                  *((values(name, key), values("baseline", key)) for key in ("best", "final")
                    for name in nodes)),
        no_better("after the last epoch the continuous model with transport cost is no more "
                  "accurate than the baseline", table,
                  (values(ours, "final"), values("baseline", "final"))),
        claim("the transport cost raises the training loss and lowers the test loss",
              "[OTT] Figure 5", (values(ours, "training"), values(weak, "training")),
              (-values(ours, "test_loss"), -values(weak, "test_loss")), unit="",
              labels=("training", "test, lower by")),
        claim("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
              (-values(ours, "straightness"), -values(weak, "straightness")), unit=""),
        *stability(results),
    ]  # fmt: skip


def stability(results: Results) -> list[study.Finding]:
    """Whether training without transport cost blows up, and with it does not.

    With layer norms the last one bounds the velocity, whatever the weights are; [OTT] does not say
    where its continuous models have them. Both arrangements are decided.
    """
    found = []
    continuous = {name: runs for name, runs in results.records.items() if name != "baseline"}

    def count(free: bool, cost: bool) -> tuple[int, int, float]:
        runs = [
            record
            for name, records in continuous.items()
            if name.endswith(FREE) == free and ("lam=0" not in name.split()) == cost
            for record in records
        ]
        gone = sum(bool(record["diverged"]) for record in runs)
        return gone, len(runs), largest(record["largest"] for record in runs)

    for free, words in ((False, "with layer norms"), (True, "without layer norms")):
        gone, of, steepest = count(free, cost=False)
        lost, others, most = count(free, cost=True)
        blown: Verdict = "confirmed" if gone == of else "confirmed in part"
        safe: Verdict = "not confirmed" if lost else "confirmed"
        if not (gone or lost):
            safe = "inconclusive"  # where nothing blows up nothing is prevented
        found += [
            study.Finding(
                f"{words}: without transport cost the continuous models blow up in every trial",
                "[OTT] Appendix I, Table 9",
                f"{gone} of {of} trainings ended in a loss that is not finite; largest gradient "
                f"{steepest:.3g}",
                blown if gone else "not confirmed",
            ),
            study.Finding(
                f"{words}: with transport cost none does", "[OTT] Appendix I",
                f"{lost} of {others} trainings; largest gradient {most:.3g}", safe,
            ),
        ]  # fmt: skip
    return found


def figures(results: Results) -> dict[str, Any]:
    """Learning curves: accuracy, and both losses."""
    from wflow.plots.networks import learning_curves

    curves = {"data": "training loss", "test_loss": "test loss", "accuracy": "test accuracy"}
    return {"learning_curves": learning_curves(results.histories, curves)}


def main() -> int:
    flags = study.command_line(Sentiment, __doc__)
    setup = networks.with_flags(PRESETS[flags.preset], flags)
    listed = models(setup)
    names = networks.chosen(listed, seeds(setup), flags)
    with study.session("sentiment", flags) as session:

        @lru_cache(maxsize=1)
        def loaded(split: int) -> Data:
            return networks.on_rank_zero(flags, lambda: load(setup, flags, split))

        def of(seed: int) -> Data:  # the published split is another one for each seed
            return loaded(seed if flags.published else 0)

        results = networks.train_all(
            session,
            flags,
            names,
            seeds(setup),
            lambda name, seed: plan(listed[name], setup, of(seed), flags, seed),
            lambda name, seed, trained: examine(name, trained, setup, of(seed), flags, seed),
        )
        whole_preset = networks.is_preset(setup, flags, PRESETS) and len(names) == len(listed)
        session.finish(
            table=tabulated(results),
            text=report(flags, setup, of(0), listed, results),
            findings=with_habits(findings(setup, results) if whole_preset else [], flags),
            figures=figures(results),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
