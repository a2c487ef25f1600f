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

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import tyro
from _rwpo import check_names, check_rates, config, make_flow
from _rwpo_benchmarks import CELLS, HALF, figures, report, title

from wflow import InputError, nets, sampling, study
from wflow._core.files import replace_file
from wflow.cli import guarded
from wflow.study import Finding, networks
from wflow.study.networks import Record, Run, Trained

if TYPE_CHECKING:
    from xarray import Dataset

NAME = "rwpo_benchmarks"
RESULT = "result.h5"  # of a training: its history, its record, and pictures of seed 0
TRIALS = 1000  # seeds of the trials begin here: the comparison has fresh ones
PAPER = ("moons", "rings", "two_spirals", "eight_gaussians", "checkerboard")
TARGETS = (*PAPER, "swiss_roll", "pinwheel", "cross")
LEVEL = 1.5  # of OT-Flow's last distance: what counts as converged
PAIRS = 4000  # points of each sample that the MMD compares
EQ16 = (1.0, 1.0, 0.1)  # weights of the loss as [RWPO] eq. 16 and Table 1 have them

BOTH = ("lam", "beta")
CORRECTED = {"lam": 2.0, "beta": 1.0, "trainable": BOTH}
PRINTED = {**CORRECTED, "convention": "published"}

# What might make the layer help: chosen among on validation data. Steps are counted from the base.
ATTRACTING = {**CORRECTED, "convention": "attracting"}
LAST = {"lam": 0.1, "beta": 1.0, "attended": (-1,)}
TWO = {"attended": (-1, -2)}
VARIANTS: dict[str, dict[str, Any]] = {
    "attracting, last two layers": {**ATTRACTING, **TWO},
    "attracting, last two layers, no prior": {**ATTRACTING, **TWO, "lam": 0.0,
                                              "trainable": ("beta",)},
    "attracting, last two layers, 64 tokens": {**ATTRACTING, **TWO, "tokens": 64},
    "attracting, all layers": ATTRACTING,
    "corrected, all layers": CORRECTED,
    "corrected, all layers, Euler steps": {**CORRECTED, "drift": "euler"},
    "corrected, all layers, narrow kernel": {**CORRECTED, "lam": 0.1, "beta": 20.0},
    "corrected, last layer": LAST,
    "corrected, last layer, masked batch": {**LAST, "context": "masked"},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RwpoBenchmarks(networks.NetFlags):
    """Flags of this study."""

    indifferent: ClassVar[frozenset[str]] = frozenset({"part", "targets"})
    presets: ClassVar = {
        "paper": {},
        "cpu": {
            "targets": TARGETS[:-1], "eq16_targets": ("moons",), "steps": 8, "batch": 512,
            "iterations": 1500, "points": 4000, "curve": 1000, "evaluations": 10,
            "trial_iterations": 400,
        },
        "smoke": {
            "targets": ("moons",), "seeds": 2, "steps": 4, "width": 4, "iterations": 2,
            "batch": 80, "points": 50, "curve": 50, "evaluations": 1, "trial_targets": ("moons",),
            "trial_iterations": 1, "trial_seeds": 1, "variants": ("attracting, last two layers",),
        },
    }  # fmt: skip
    part: Literal["all", "trials", "train", "tables"] = "all"
    """trials: train the variants of the layer; train: train what is compared, on --targets; tables:
    read what is finished and make tables and figures; all: one after the other. Calls of trials and
    train may share --out."""
    targets: tuple[str, ...] = TARGETS
    """Densities, of wflow.nets.data.planar."""
    eq16_targets: tuple[str, ...] = PAPER
    """Those of them on which flows are trained with the weights of eq. 16 as well."""
    seeds: study.Count = 5
    """Number of training runs of each model, with seeds 0, 1, ..."""
    steps: networks.Steps = 48
    """Steps n_t of the flows."""
    width: study.Count = 48
    """Width of the potential."""
    iterations: study.Count = 6001
    """Optimiser steps of the comparison."""
    batch: study.Count = 4096
    """Points of a batch."""
    rates: tuple[study.Positive, study.Positive] = (1e-2, 1e-6)
    """Learning rates at the beginning and at the end."""
    start: study.Positive = 0.05
    """Initial output weights of the potential: near the identity."""
    alpha: tuple[study.Nonnegative, study.Nonnegative, study.Nonnegative] = (1.0, 0.01, 0.1)
    """Weights of likelihood, transport and HJB penalty."""
    points: study.Count = 10_000
    """Points of a test set."""
    curve: study.Count = 2000
    """Points of an evaluation in training."""
    evaluations: study.Count = 20
    """Evaluations in a training."""
    trial_targets: tuple[str, ...] = ("moons", "checkerboard")
    """Densities of the trials."""
    trial_iterations: study.Count = 2000
    """Optimiser steps of a trial."""
    trial_seeds: study.Count = 2
    """Number of runs of each trial."""
    variants: tuple[str, ...] = tuple(VARIANTS)
    """Variants of the layer that are tried."""
    data: Annotated[str | None, tyro.conf.Suppress] = None
    out: study.Folder = Path("results/rwpo_benchmarks")
    """Folder for checkpoints, results, summary and figures."""

    def check(self) -> None:
        super().check()
        for name in ("targets", "eq16_targets", "trial_targets"):
            check_names(getattr(self, name), TARGETS, f"--{name.replace('_', '-')}")
        check_names(self.variants, VARIANTS, "--variants")
        check_rates(self.rates)


# Flows and their trainings
# -------------------------


@dataclass(frozen=True)
class Model:
    """A flow: options of `SparseTransformerFlow` (None is OT-Flow), and the weights of the loss."""

    options: Mapping[str, Any] | None
    alpha: tuple[float, float, float] | None = None  # None: of the flags
    start: float | None = None


MODELS = {
    "OT-Flow": Model(None),
    "printed": Model(PRINTED),
    "corrected": Model(CORRECTED),
    "chosen": Model({}),  # the variant that the trials choose
    "OT-Flow eq.16": Model(None, EQ16),
    "printed eq.16": Model(PRINTED, EQ16, start=1.0),  # and the initial weights of OT-Flow's code
    "corrected eq.16": Model(CORRECTED, EQ16),
    "chosen eq.16": Model({}, EQ16),
}


class Task(NamedTuple):
    """A flow to be trained on a density; for trials with fewer steps, and on validation data."""

    name: str
    target: str
    model: Model
    trial: bool = False

    @property
    def part(self) -> Literal["validation", "test"]:
        """The part of the data that it is measured on."""
        return "validation" if self.trial else "test"


def trials(flags: RwpoBenchmarks) -> list[Task]:
    """The variants of the layer, and OT-Flow beside, the flow without one."""
    models = {"OT-Flow": MODELS["OT-Flow"]}
    models |= {name: Model(VARIANTS[name]) for name in flags.variants}
    return [
        Task(f"trial {target} {name}", target, model, trial=True)
        for target, (name, model) in itertools.product(flags.trial_targets, models.items())
    ]


def comparison(flags: RwpoBenchmarks, names: Sequence[str]) -> Iterator[Task]:
    """What is compared; the trials, which choose a variant, must have ended where it is needed."""
    for target, name in itertools.product(flags.targets, names):
        model = MODELS[name]
        if name.endswith("eq.16") and target not in flags.eq16_targets:
            continue
        if model.options == {}:
            model = replace(model, options=VARIANTS[best_variant(flags)])
        yield Task(f"{target} {name}", target, model)


def network(flags: RwpoBenchmarks, model: Model, target: str, seed: int) -> Any:
    """A flow whose potential has weights of its seed: the same for all models."""
    import torch

    torch.manual_seed(seed)
    start = model.start or flags.start
    phi = nets.generative.Potential(2, width=flags.width, start=start)
    made = make_flow(phi, flags.steps, model.options)
    if model.options is not None and made.convention != "published":
        made.set_context(nets.data.planar(target, made.tokens, seed, part="train"))
    return made


def plan(flags: RwpoBenchmarks, task: Task, seed: int) -> Run:
    """The training of one flow, measured on a part of the data now and then."""
    seed += TRIALS if task.trial else 0
    model = network(flags, task.model, task.target, seed)
    iterations = flags.trial_iterations if task.trial else flags.iterations
    settings = config(flags, model, iterations, seed)
    held_out = nets.data.planar(task.target, flags.curve, seed=1, part=task.part)

    def evaluate(trained: Any) -> dict[str, float]:
        points = held_out.to(trained.potential.w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tokens without an inverse are counted in `examine`
            found = trained.sample(flags.curve, seed=1)
            nll = -float(trained.log_density(points).mean())
        return {"held_out_nll": nll, "sliced_w2": distance(sampling.sliced_w2, found, points)}

    return Run(
        model,
        nets.generative.Likelihood(task.model.alpha or flags.alpha),
        nets.data.PlanarBatches(task.target, batch=settings.batch, seed=seed),
        settings,
        evaluate,
    )


def train(session: study.Session, flags: RwpoBenchmarks, task: Task) -> None:
    """Train and measure one flow with all seeds; with --resume finished ones are kept."""
    seeds = range(flags.trial_seeds if task.trial else flags.seeds)
    if not (flags.resume and all(result(flags, task.name, seed).is_file() for seed in seeds)):
        networks.train_all(
            session,
            flags,
            [task.name],
            len(seeds),
            lambda _, seed: plan(flags, task, seed),
            lambda _, seed, trained: examine(flags, task, trained, seed),
        )


# What is measured
# ----------------


def distance(metric: Any, found: Any, points: Any) -> float:
    """A distance of samples; NaN where a sample is not finite or too large for it."""
    try:
        return float(metric(found.cpu().numpy(), points.cpu().numpy()))
    except InputError:
        return float("nan")


def examine(flags: RwpoBenchmarks, task: Task, training: Trained, seed: int) -> Record:
    """All quantities of a trained flow in double precision, kept beside its checkpoint."""
    import torch

    keys = ("nll", "sliced_w2", "mmd", "lam", "beta", "folded", "lost", "step_seconds")
    record: Record = dict.fromkeys(keys, float("nan"))
    flow: Any = training.model
    record |= {"parameters": sum(p.numel() for p in flow.parameters()), "ess": []}
    record |= {"diverged": training.diverged, "options": words(task.model.options or {})}
    pictures = {}
    if not training.diverged:
        record["step_seconds"] = seconds_of_a_step(copy.deepcopy(flow), plan(flags, task, seed))
        flow = copy.deepcopy(flow).double().eval()
        points = nets.data.planar(task.target, flags.points, part=task.part).to(flow.potential.w)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            base = flow.draws(flags.points, 0)
            found = flow.from_base(base)
            if getattr(flow, "convention", "") != "published":
                back = flow.to_base(found).z
                record["lost"] = float(((back - base).abs().amax(1) > 1e-3).double().mean())
            there = flow.to_base(points)
            record["folded"] = float(there.folded)
            record["nll"] = -float(there.log_density.mean())
            if hasattr(flow, "ess"):
                record |= {"lam": flow.lam, "beta": flow.beta}
                record["ess"] = flow.ess(points[:1000]).mean(1).tolist()
            if seed == 0 and not task.trial:
                pictures["density"] = (("across", "up"), density_on_square(flow))
                pictures["samples"] = (("point", "axis"), found.cpu().numpy())
        record["sliced_w2"] = distance(sampling.sliced_w2, found, points)
        record["mmd"] = distance(sampling.mmd, found[:PAIRS], points[:PAIRS])
    kept = training.history.assign(pictures)
    kept.attrs |= {"record": json.dumps(record), "setup": identity(flags)}
    file = result(flags, task.name, seed)
    replace_file(file, lambda draft: kept.to_netcdf(draft, engine="h5netcdf"))
    return record


def density_on_square(flow: Any) -> np.ndarray:
    """The density at the centres of cells of the square; the printed flow has none."""
    import torch

    if getattr(flow, "convention", "inverse") == "published":
        return np.full((CELLS, CELLS), np.nan)

    middle = (torch.arange(CELLS) + 0.5) * (2 * HALF / CELLS) - HALF
    grid = torch.cartesian_prod(middle, middle).to(flow.potential.w)
    return flow.log_density(grid).exp().reshape(CELLS, CELLS).cpu().numpy()


def seconds_of_a_step(flow: Any, run: Run, repeats: int = 8) -> float:
    """Least time of a step of the training: of the processor, where the flow is there."""
    import torch

    flow.train()
    optimizer = torch.optim.Adam(flow.parameters(), 1e-6)
    on_cpu = flow.potential.w.device.type == "cpu"
    clock = time.process_time if on_cpu and torch.get_num_threads() == 1 else time.perf_counter
    took = []
    for step in range(repeats + 1):
        batch = [rows.to(flow.potential.w) for rows in run.batches(step)]
        began = clock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = run.objective(flow, *batch)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        if not on_cpu:
            torch.cuda.synchronize()
        took.append(clock() - began)
    return min(took[1:])


IDENTITY = ("eq16_targets", "steps", "width", "iterations", "batch", "rates", "start", "alpha",
            "points", "curve", "evaluations", "trial_iterations")  # fmt: skip


def identity(flags: RwpoBenchmarks) -> str:
    """What all trainings of a folder share, as text."""
    return json.dumps({name: getattr(flags, name) for name in IDENTITY})


def words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())


# Results
# -------


def result(flags: RwpoBenchmarks, name: str, seed: int) -> Path:
    """File of a training."""
    return networks.folder_of(flags.out, name, seed) / RESULT


def read(flags: RwpoBenchmarks, name: str, seed: int) -> tuple[Record, Dataset]:
    """Record and history of a finished training.

    Raises
    ------
    InputError
        Where there is none, or one of other settings.
    """
    import xarray

    file = result(flags, name, seed)
    if not file.is_file():
        raise InputError(f"{file} is missing: train it first, with --part train or --part trials")
    with xarray.open_dataset(file, engine="h5netcdf") as found:
        history = found.load()
    if history.attrs["setup"] != identity(flags):
        raise InputError(
            f"{file} is of other settings: give the preset and the flags it was made with, or "
            "another --out"
        )
    return json.loads(history.attrs["record"]), history


Trials = Mapping[str, list[Record]]  # by name, one record per seed


def read_trials(flags: RwpoBenchmarks) -> Trials:
    return {
        task.name: [read(flags, task.name, seed)[0] for seed in range(flags.trial_seeds)]
        for task in trials(flags)
    }


def scores(flags: RwpoBenchmarks, found: Trials) -> dict[str, float]:
    """Mean over targets and seeds of the log of the distance over OT-Flow's, on validation data."""

    def logs(name: str) -> np.ndarray:
        runs = [found[f"trial {target} {name}"] for target in flags.trial_targets]
        return np.log(np.array([record["sliced_w2"] for run in runs for record in run], float))

    return {name: float(np.mean(logs(name) - logs("OT-Flow"))) for name in flags.variants}


def best_variant(flags: RwpoBenchmarks) -> str:
    return chosen(scores(flags, read_trials(flags)))


def chosen(found: Mapping[str, float]) -> str:
    """The variant with the least score; one that failed has none."""
    known = {name: value for name, value in found.items() if np.isfinite(value)}
    return min(known, key=lambda name: known[name]) if known else next(iter(found))


@dataclass
class Found:
    """What came out: (target, model) -> one record and one history per seed; and the trials."""

    records: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    histories: dict[tuple[str, str], list[Dataset]] = field(default_factory=dict)
    floors: dict[str, float] = field(default_factory=dict)  # distance of two samples of a target
    trials: Trials = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)  # of the variants
    best: str = ""  # variant

    def targets(self, *models: str) -> list[str]:
        """Targets on which all of these models were trained."""
        every = dict.fromkeys(target for target, _ in self.records)
        return [t for t in every if all((t, model) in self.records for model in models)]

    def models(self) -> list[str]:
        return list(dict.fromkeys(model for _, model in self.records))

    def values(self, target: str, model: str, key: str) -> np.ndarray:
        return np.array([record[key] for record in self.records[target, model]], dtype=float)

    def pair(self, target: str, one: str, two: str, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Values of the seeds that both models have."""
        values = self.values(target, one, key), self.values(target, two, key)
        seeds = min(map(len, values))
        return values[0][:seeds], values[1][:seeds]


def collect(flags: RwpoBenchmarks) -> Found:
    """All finished trainings of the flags: the leading seeds of each model."""
    found = Found()
    with contextlib.suppress(InputError):  # of trainings that need no trial
        found.trials = read_trials(flags)
        found.scores = scores(flags, found.trials)
        found.best = chosen(found.scores)
    for target, model in itertools.product(flags.targets, MODELS):
        for seed in range(flags.seeds):
            file = result(flags, f"{target} {model}", seed)
            if not file.is_file():
                break
            record, history = read(flags, f"{target} {model}", seed)
            if model.startswith("chosen"):
                best = best_variant(flags)
                if record["options"] != words(VARIANTS[best]):
                    raise InputError(
                        f"{file.parent} is of {record['options']}, and the trials choose {best}: "
                        "remove it, and train again"
                    )
            found.records.setdefault((target, model), []).append(record)
            found.histories.setdefault((target, model), []).append(history)
    for target in found.targets():
        pair = (nets.data.planar(target, flags.points, part=part).numpy()
                for part in ("validation", "test"))  # fmt: skip
        found.floors[target] = sampling.sliced_w2(*pair)
    return found


def add_equal_time(found: Found) -> None:
    """Put into the records the distance in equal time, and that of OT-Flow at the same time.

    The time is that of the shorter training of the two: steps times the least time of a step, of
    the processor, which other work does not change. Distances between evaluations are interpolated
    on a log scale.
    """
    times: dict[tuple[str, str], float] = {}
    for key, records in found.records.items():
        known = [r["step_seconds"] for r in records if np.isfinite(r["step_seconds"])]
        times[key] = float(np.median(known)) if known else float("nan")

    def after(seconds: float, key: tuple[str, str], seed: int) -> float:
        history = found.histories[key][seed]
        if not history.attrs["complete"]:
            return float("nan")
        at = history["evaluation"].values * times[key]
        return float(np.exp(np.interp(seconds, at, np.log(history["sliced_w2"].values))))

    for key, records in found.records.items():
        base = key[0], "OT-Flow eq.16" if key[1].endswith("eq.16") else "OT-Flow"
        for seed, record in enumerate(records):
            record["equal_time"] = record["equal_time_base"] = float("nan")
            if seed < len(found.records.get(base, [])):
                ends = [times[k] * found.histories[k][seed].sizes["step"] for k in (key, base)]
                record["equal_time"] = after(min(ends), key, seed)
                record["equal_time_base"] = after(min(ends), base, seed)


def steps_to(history: Dataset, level: float) -> float:
    """First step at which the distance has fallen to a level, interpolated; inf for never."""
    steps, values = history["evaluation"].values, np.log(history["sliced_w2"].values)
    level = np.log(level)
    below = np.flatnonzero(values <= level)
    if not below.size:
        return float("inf")
    k = int(below[0])
    if k == 0:
        return float(steps[0])
    share = (values[k - 1] - level) / (values[k - 1] - values[k])
    return float(steps[k - 1] + share * (steps[k] - steps[k - 1]))


# What was found
# --------------


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


KEYS = {
    "sliced_w2": "sliced W_2 to held-out points",
    "equal_time": "the same in the time of the shorter training of it and OT-Flow",
    "equal_time_base": "that of OT-Flow in that time",
    "mmd": "squared maximum mean discrepancy",
    "nll": "negative log likelihood of held-out points",
    "step_seconds": "time of a step",
    "lost": "share of samples that are not inverted",
    "folded": "share of held-out points at which a layer folds",
    "lam": "lambda after the training",
    "beta": "beta after the training",
}


def tabulated(flags: RwpoBenchmarks, found: Found) -> Dataset:
    """All numbers over (target, model, seed); NaN where a training is missing."""
    targets, models = found.targets(), found.models()
    shape = len(targets), len(models), flags.seeds
    values = {key: np.full(shape, np.nan) for key in KEYS}
    for (target, model), records in found.records.items():
        place = targets.index(target), models.index(model)
        for key, numbers in values.items():
            numbers[(*place, slice(len(records)))] = [record[key] for record in records]
    table = study.dataset(
        {key: (("target", "model", "seed"), values[key], text) for key, text in KEYS.items()},
        {
            "target": (targets, "density"),
            "model": (models, "model"),
            "seed": (range(flags.seeds), "seed"),
        },
    )
    table["step_seconds"].attrs["units"] = "s"
    return table


def main() -> int:
    flags = study.command_line(RwpoBenchmarks, __doc__)
    names = networks.chosen(MODELS, flags.seeds, replace(flags, resume=False))
    if flags.part in ("trials", "train"):  # without a session, so that others may share the folder
        alone = study.Session(NAME, flags)
        for task in trials(flags) if flags.part == "trials" else comparison(flags, names):
            train(alone, flags, task)
        return 0
    with study.session(NAME, flags) as session:
        if flags.part == "all":
            for task in itertools.chain(trials(flags), comparison(flags, names)):
                train(session, flags, task)
        found = collect(flags)
        if not found.records:
            raise InputError(f"{flags.out} holds no finished training: give --part train first")
        add_equal_time(found)
        session.finish(
            table=tabulated(flags, found),
            text=report(flags, found),
            findings=findings(found) if networks.is_published(flags) else [],
            figures=figures(found),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
