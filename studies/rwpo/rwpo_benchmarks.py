"""Flows with and without a sparse transformer on densities in the plane: [RWPO] section 4.1.

OT-Flow, the printed algorithm and the corrected flow with the same potential, the same batches and
the same initial weights, compared on held-out data: after equal numbers of iterations and in equal
time. Variants of the layer are tried first, on validation data; the best of them is trained with
other seeds and enters the comparison on test data.

    python studies/rwpo/rwpo_benchmarks.py --preset cpu

Trainings may be spread over processes that share --out, each with some of the targets:

    python studies/rwpo/rwpo_benchmarks.py --part trials
    python studies/rwpo/rwpo_benchmarks.py --part train --targets moons rings
    python studies/rwpo/rwpo_benchmarks.py --part tables --resume

[RWPO] Han, Osher, Li, Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior, 2025.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from _rwpo_benchmarks import (
    FIGURES,
    MODELS,
    RESULT,
    VARIANTS,
    Found,
    Model,
    Setup,
    add_equal_time,
    chosen,
    collect,
    examine,
    plan,
    report,
    scores,
    steps_to,
    tabulated,
    title,
    trials,
)

from wflow import InputError, study
from wflow._core.checks import whole
from wflow.cli import guarded
from wflow.study import Finding, networks
from wflow.study.networks import Record, Trained

NAME = "rwpo_benchmarks"
TRIALS = 1000  # seeds of the trials begin here: the comparison has fresh ones
TARGETS = ("moons", "rings", "two_spirals", "eight_gaussians", "checkerboard", "swiss_roll",
           "pinwheel", "cross")  # fmt: skip
LEVEL = 1.5  # of OT-Flow's last distance: what counts as converged

PRESETS = {
    "paper": Setup(targets=TARGETS),
    "cpu": Setup(
        targets=TARGETS[:-1], eq16_targets=("moons",), steps=8, batch=512, iterations=1500,
        points=4000, curve=1000, evaluations=10, trial_iterations=400,
    ),
    "smoke": Setup(
        targets=("moons",), seeds=2, steps=4, width=4, iterations=2, batch=80, points=50, curve=50,
        evaluations=1, trial_targets=("moons",), trial_iterations=1, trial_seeds=1,
        variants=("attracting, last two layers",),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RwpoBenchmarks(networks.NetFlags):
    """Flags of this study."""

    part: Literal["all", "trials", "train", "tables"] = "all"
    """trials: train the variants of the layer; train: train what is compared, on --targets; tables:
    read what is finished and make tables and figures; all: one after the other. Calls of trials and
    train may share --out."""
    targets: tuple[str, ...] | None = None
    """Densities, of wflow.nets.data.planar; default: of the preset."""
    iterations: int | None = None
    """Optimiser steps of the comparison; default: of the preset."""
    steps: int | None = None
    """Steps n_t of the flows; default: of the preset."""
    lam: tyro.conf.Suppress[float | None] = None
    data: Annotated[str | None, tyro.conf.Suppress] = None
    out: study.Folder = Path("results/rwpo_benchmarks")
    """Folder for checkpoints, results, summary and figures."""

    def check(self) -> None:
        super().check()
        asked = TARGETS if self.targets is None else self.targets
        if not asked or not set(asked) <= set(TARGETS) or len(set(asked)) < len(asked):
            raise InputError(
                f"--targets {' '.join(asked)}: expected some of {', '.join(TARGETS)}, each once"
            )
        if self.iterations is not None:
            whole(self.iterations, "--iterations")


def train(session: study.Session, flags: Any, setup: Setup, name: str, model: Model, target: str,
          *, seeds: int, trial: bool) -> None:  # fmt: skip
    """Train and measure one flow with all seeds; what is finished is kept."""
    iterations = setup.trial_iterations if trial else setup.iterations
    part = "validation" if trial else "test"

    def planned(_: str, seed: int) -> networks.Run:
        own = seed + TRIALS if trial else seed
        return plan(model, setup, target, flags, own, iterations, part)

    def examined(_: str, seed: int, trained: Trained) -> Record:
        folder = networks.folder_of(flags.out, name, seed)
        run = planned(name, seed)
        return examine(trained, run, model, setup, target, folder, seed, part)

    networks.train_all(session, flags, [name], seeds, planned, examined)


def finished(flags: Any, name: str, seeds: int) -> bool:
    return flags.resume and all(
        (networks.folder_of(flags.out, name, seed) / RESULT).is_file() for seed in range(seeds)
    )


def train_trials(session: study.Session, flags: Any, setup: Setup) -> None:
    for name, (target, model) in trials(setup).items():
        if not finished(flags, name, setup.trial_seeds):
            train(session, flags, setup, name, model, target, seeds=setup.trial_seeds, trial=True)


def train_models(session: study.Session, flags: Any, setup: Setup, names: Sequence[str]) -> None:
    for target in setup.targets:
        for name in names:
            run, model = f"{target} {name}", MODELS[name]
            if name.endswith("eq.16") and target not in setup.eq16_targets:
                continue
            if model.options == {}:
                model = replace(model, options=VARIANTS[chosen(scores(flags.out, setup))])
            if not finished(flags, run, setup.seeds):
                train(session, flags, setup, run, model, target, seeds=setup.seeds, trial=False)


def closer(found: Found, model: str, base: str, key: str, statement: str, source: str) -> Finding:
    """Whether a model has smaller values than another: for every target, and for all together."""
    ratio = key != "nll"
    texts, verdicts, gaps = [], [], []
    for target in found.targets(model, base):
        plain, own = found.pair(target, base, model, key)
        if key == "equal_time":  # of both when the shorter training has ended
            plain = found.values(target, model, "equal_time_base")
        text, verdict = networks.paired(plain, own, ratio=ratio)
        texts.append(f"{title(target)} {text}, {verdict}")
        verdicts.append(verdict)
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps.append(np.log(plain) - np.log(own) if ratio else plain - own)
    seeds = min(map(len, gaps))
    mean = np.mean([gap[:seeds] for gap in gaps], axis=0)
    text, overall = networks.paired(np.exp(mean) if ratio else mean, np.full(seeds, float(ratio)),
                                    ratio=ratio)  # fmt: skip
    if "confirmed" in verdicts and set(verdicts) != {"confirmed"}:
        overall = "confirmed in part"
    what = f"sliced $W_2$ of {base} over its own" if ratio else f"NLL of {base} less its own"
    return Finding(statement, source, f"{what}: all targets {text}; {'; '.join(texts)}", overall)


def faster(found: Found, model: str, statement: str, source: str) -> Finding:
    """Whether a model needs fewer iterations, and less time, to come as close as OT-Flow does."""
    ratios, never = [], 0
    for target in found.targets(model, "OT-Flow"):
        level = LEVEL * float(np.mean(found.values(target, "OT-Flow", "sliced_w2")))
        pair = zip(found.histories[target, "OT-Flow"], found.histories[target, model], strict=False)
        for plain, own in pair:
            whole = own.sizes["step"]
            steps = [min(steps_to(history, level), 2 * whole) for history in (plain, own)]
            never += steps[1] == 2 * whole
            ratios.append(steps[0] / steps[1])
    text, verdict = networks.paired(ratios, np.ones(len(ratios)), ratio=True)
    late = f"; {never} of {len(ratios)} runs do not get there, and count as twice the training"
    where = f"iterations to {LEVEL:g} times OT-Flow's last distance: its number over the model's "
    return Finding(statement, source, where + text + (late if never else ""), verdict)


def findings(found: Found) -> list[Finding]:
    """Claims of the paper, with their verdicts."""
    claim = "the flow with the sparse transformer is closer to the target than OT-Flow"
    source = "[RWPO] section 4.1, Fig. 3"
    kinds = {"printed": "as printed", "corrected": "corrected", "chosen": "best variant"}
    verdicts = []
    for model, text in kinds.items():
        if found.targets(model, "OT-Flow"):
            for key, when in (("sliced_w2", "iterations"), ("equal_time", "time")):
                statement = f"{claim}: {text}, equal {when}"
                verdicts.append(closer(found, model, "OT-Flow", key, statement, source))
            if model != "printed":
                statement = f"it gives held-out points a higher likelihood: {text}"
                verdicts.append(closer(found, model, "OT-Flow", "nll", statement, source))
    for model in kinds:
        if found.targets(f"{model} eq.16", "OT-Flow eq.16"):
            statement = f"{claim}: {kinds[model]}, with the weights of eq. 16"
            verdicts.append(closer(found, f"{model} eq.16", "OT-Flow eq.16", "sliced_w2",
                                   statement, "[RWPO] eq. 16, Fig. 3"))  # fmt: skip
    for model, text in kinds.items():
        if found.targets(model, "OT-Flow"):
            statement = f"it converges faster than OT-Flow: {text}"
            verdicts.append(faster(found, model, statement, "[RWPO] section 5"))
    return verdicts


def main() -> int:
    flags = study.command_line(RwpoBenchmarks, __doc__)
    setup = networks.with_flags(
        PRESETS[flags.preset], replace(flags, targets=flags.targets or None)
    )
    names = networks.chosen(MODELS, setup.seeds, replace(flags, resume=False))
    if flags.part in ("trials", "train"):  # without a session, so that others may share the folder
        alone = study.Session(NAME, flags)
        if flags.part == "trials":
            train_trials(alone, flags, setup)
        else:
            train_models(alone, flags, setup, names)
        return 0
    with study.session(NAME, flags) as session:
        if flags.part == "all":
            train_trials(session, flags, setup)
            train_models(session, flags, setup, names)
        found = collect(flags.out, setup, MODELS)
        if not found.records:
            raise InputError(f"{flags.out} holds no finished training: give --part train first")
        add_equal_time(found)
        whole = networks.is_preset(
            replace(setup, targets=PRESETS[flags.preset].targets), flags, PRESETS
        )
        session.finish(
            table=tabulated(found, setup),
            text=report(flags, setup, found),
            findings=findings(found) if whole else [],
            figures={name: draw(found) for name, draw in FIGURES.items()},
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
