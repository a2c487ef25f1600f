"""Flows with and without a sparse transformer on densities in the plane: [RWPO] section 4.1.

OT-Flow, the printed algorithm and the corrected flow with the same potential, the same batches and
the same initial weights, compared on held-out data: after equal numbers of iterations and in equal
time. Variants of the layer are tried first, on validation data; the best of them is trained with
other seeds and enters the comparison on test data.

    python studies/rwpo/rwpo_benchmarks.py --preset cpu
    torchrun --nproc-per-node 8 studies/rwpo/rwpo_benchmarks.py --preset paper

[RWPO] Han, Osher, Li, Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior, 2025.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import tyro
from _rwpo import FlowFlags, check_names, check_near, config, learning_curves, make_flow, too_far

from wflow import InputError, nets, sampling, study
from wflow.cli import script
from wflow.plots.figure import PAGE, grid, style
from wflow.study import Finding, networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    from torch import Tensor

NAME = "rwpo_benchmarks"
TRIALS = 1000  # seeds of the trials begin here: the comparison has fresh ones
PAPER = ("moons", "rings", "two_spirals", "eight_gaussians", "checkerboard")
TARGETS = (*PAPER, "swiss_roll", "pinwheel", "cross")
LEVEL = 1.5  # of OT-Flow's last distance: what counts as converged
SPLITS: tuple[Any, ...] = ("test", "validation")  # of the data, for what is compared, and trials
PAIRS = 4000  # points of each sample that the MMD compares
EQ16 = (1.0, 1.0, 0.1)  # weights of the loss as [RWPO] eq. 16 and Table 1 have them

BOTH = ("lam", "beta")
CORRECTED = {"lam": 2.0, "beta": 1.0, "trainable": BOTH}
PRINTED = {**CORRECTED, "convention": "published"}  # with the misprinted kernel
WITH_ITSELF = {**CORRECTED, "itself": True}

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
    "with itself, all layers": WITH_ITSELF,
    "corrected, all layers": CORRECTED,
    "corrected, all layers, Euler steps": {**CORRECTED, "drift": "euler"},
    "corrected, all layers, narrow kernel": {**CORRECTED, "lam": 0.1, "beta": 20.0},
    "corrected, last layer": LAST,
    "corrected, last layer, masked batch": {**LAST, "context": "masked"},
}  # fmt: skip
NEAR = tuple(name for name in VARIANTS if "all layers" not in name or "itself" in name)


@dataclass(frozen=True, kw_only=True)
class RwpoBenchmarks(FlowFlags):
    """Flags of this study."""

    indifferent: ClassVar[frozenset[str]] = frozenset({"targets"})
    durations: ClassVar = {"smoke": "seconds", "cpu": "minutes a model on two cores"}
    presets: ClassVar = {
        "paper": {"variants": NEAR},
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
    targets: tuple[str, ...] = TARGETS
    """Densities, of wflow.nets.data.planar."""
    eq16_targets: tuple[str, ...] = PAPER
    """Those of them on which flows are trained with the weights of eq. 16 as well."""
    dim: Literal[2, 4] = 2
    """2: the plane; 4: two independent points of the density side by side, for the d = 4 of [RWPO]
    Table 1, which does not say which densities it means."""
    start: study.Positive = 0.05
    """Initial output weights of the potential: near the identity."""
    points: study.Count = 10_000
    """Points of a test set."""
    curve: study.Count = 2000
    """Points of an evaluation in training."""
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
        check_near({name: VARIANTS[name] for name in self.variants}, self.steps, "--variants")


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
    "printed exact": Model({**PRINTED, "kernel": "exact"}),
    "printed Laplace": Model({**PRINTED, "kernel": "laplace"}),
    "corrected": Model(CORRECTED),
    "with itself": Model(WITH_ITSELF),
    "chosen": Model({}),  # the variant that the trials choose
    "OT-Flow eq.16": Model(None, EQ16),
    "printed eq.16": Model(PRINTED, EQ16, start=1.0),  # and the initial weights of OT-Flow's code
    "printed exact eq.16": Model({**PRINTED, "kernel": "exact"}, EQ16),
    "corrected eq.16": Model(CORRECTED, EQ16),
    "with itself eq.16": Model(WITH_ITSELF, EQ16),
    "chosen eq.16": Model({}, EQ16),
}
Name = tuple[str, str]  # density and model


def names(flags: RwpoBenchmarks) -> dict[str, Name]:
    """Return densities and the models that are compared on them, without unusable ones."""
    near = [  # so are all variants, of which the trials choose
        name for name, model in MODELS.items()
        if model.options == {} or not too_far(model.options, flags.steps)
    ]  # fmt: skip
    return {
        f"{target} {model}": (target, model) for target, model in product(flags.targets, near)
        if not model.endswith("eq.16") or target in flags.eq16_targets
    }  # fmt: skip


def drawn(flags: RwpoBenchmarks, target: str, n: int, seed: int = 0, part: Any = "test") -> Tensor:
    """Return points (n, dim) of a density."""
    return nets.data.planar(target, n * flags.dim // 2, seed, part).view(n, flags.dim)


def network(flags: RwpoBenchmarks, model: Model, target: str, seed: int) -> Any:
    """Return a flow whose potential has weights of its seed: the same for all models."""
    import torch

    torch.manual_seed(seed)
    start = model.start or flags.start
    phi = nets.generative.Potential(flags.dim, width=flags.width, start=start)
    made = make_flow(phi, flags.steps, model.options)
    if model.options is not None and made.convention != "published":
        made.set_context(drawn(flags, target, made.tokens, seed, "train"))
    return made


def training(
    flags: RwpoBenchmarks, target: str, model: Model, seed: int, trial: bool = False
) -> Run:
    """Return the training of one flow; a trial has fewer steps, and validation data."""
    flow = network(flags, model, target, seed)
    iterations = flags.trial_iterations if trial else flags.iterations
    settings = config(flags, flow, iterations, seed)
    held_out = drawn(flags, target, flags.curve, 1, SPLITS[trial])
    points = nets.data.PlanarBatches(target, batch=settings.batch * flags.dim // 2, seed=seed)

    def evaluate(trained: Any) -> dict[str, float]:
        points = held_out.to(trained.potential.w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tokens without an inverse are counted in `examined`
            found = trained.sample(flags.curve, seed=1)
            nll = -float(trained.log_density(points).mean())
        return {"held_out_nll": nll, "sliced_w2": distance(sampling.sliced_w2, found, points)}

    return Run(
        flow,
        nets.generative.Likelihood(model.alpha or flags.alpha),
        lambda step: (points(step)[0].view(-1, flags.dim),),
        settings,
        evaluate,
    )


@dataclass
class Trials:
    """What the variants of the layer reach on validation data."""

    results: Results
    scores: dict[str, float]  # of the variants: mean log of the distance over OT-Flow's
    source: str = "fresh points of each density"

    @property
    def best(self) -> str:
        """The variant with the least score; one that failed has none."""
        known = {name: value for name, value in self.scores.items() if np.isfinite(value)}
        return min(known, key=lambda name: known[name]) if known else next(iter(self.scores), "")


@functools.cache
def load(flags: RwpoBenchmarks) -> Trials:
    """Train the variants, and OT-Flow beside, where one of them is to be chosen."""
    if not any("chosen" in name for name in networks.chosen(names(flags), flags.seeds, flags)):
        return Trials(Results({}, {}), {})
    models = {"OT-Flow": Model(None)} | {name: Model(VARIANTS[name]) for name in flags.variants}
    tried = {
        f"trial {target} {name}": (target, model)
        for target, (name, model) in product(flags.trial_targets, models.items())
    }

    def examine(name: str, seed: int, trained: Trained) -> Record:
        folder = networks.folder_of(flags.out, name, seed)
        setting = [networks.settings(flags), networks.code_of(examined)]
        measured = functools.partial(examined, flags, tried[name][0], trained, trial=True)
        return networks.cached_record(folder, setting, trained, measured, resume=flags.resume)

    def plan_trial(name: str, seed: int) -> Run:
        return training(flags, *tried[name], TRIALS + seed, trial=True)

    results = networks.train_all(flags, list(tried), flags.trial_seeds, plan_trial, examine)

    def logs(variant: str) -> np.ndarray:
        every = [results.values(f"trial {t} {variant}", "sliced_w2") for t in flags.trial_targets]
        return np.log(np.concatenate(every))

    base = logs("OT-Flow")
    return Trials(results, {name: float(np.mean(logs(name) - base)) for name in flags.variants})


def plan(flags: RwpoBenchmarks, trials: Trials, name: Name, seed: int) -> Run:
    """Return the training of what is compared."""
    target, model = name[0], MODELS[name[1]]
    if model.options == {}:
        model = replace(model, options=VARIANTS[trials.best])
    return training(flags, target, model, seed)


# What is measured
# ----------------


def distance(metric: Any, found: Any, points: Any) -> float:
    """Return a distance of samples; NaN where a sample is not finite or too large for it."""
    try:
        return float(metric(found.cpu().numpy(), points.cpu().numpy()))
    except InputError:
        return float("nan")


def examined(
    flags: RwpoBenchmarks, target: str, training: Trained, *, trial: bool = False,
    pictured: bool = False,
) -> Record:  # fmt: skip
    """Return all quantities of a trained flow in double precision, with data for figures."""
    import torch

    keys = ("nll", "sliced_w2", "mmd", "lam", "beta", "folded", "lost", "step_seconds")
    record: Record = dict.fromkeys(keys, float("nan")) | {"ess": []}
    if training.diverged:
        return record
    record["step_seconds"] = float(training.history["seconds"].min())
    flow: Any = copy.deepcopy(training.model).double().eval()
    points = drawn(flags, target, flags.points, part=SPLITS[trial]).to(flow.potential.w)
    published = getattr(flow, "convention", "") == "published"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = flow.draws(flags.points, 0)
        found = flow.from_base(base)
        if not published:
            back = flow.to_base(found).z
            record["lost"] = float(((back - base).abs().amax(1) > 1e-3).double().mean())
        there = flow.to_base(points)
        record["folded"] = float(there.folded)
        record["nll"] = -float(there.log_density.mean())
        if hasattr(flow, "ess"):
            record |= {"lam": flow.lam, "beta": flow.beta}
            record["ess"] = flow.ess(points[:1000]).mean(1).tolist()
        if pictured:
            record["samples"] = found[:POINTS, :2].cpu().numpy().round(4).tolist()
            if flags.dim == 2 and not published:  # which has no density
                record["density"] = density_on_square(flow).round(6).tolist()
    record["sliced_w2"] = distance(sampling.sliced_w2, found, points)
    record["mmd"] = distance(sampling.mmd, found[:PAIRS], points[:PAIRS])
    return record


def measure(flags: RwpoBenchmarks, _: Trials, name: Name, trained: Trained, seed: int) -> Record:
    """Return quantities on test data, with pictures of the first seed."""
    return examined(flags, name[0], trained, pictured=seed == 0)


def density_on_square(flow: Any) -> np.ndarray:
    """Return the density at the centres of cells of the square."""
    import torch

    middle = (torch.arange(CELLS) + 0.5) * (2 * HALF / CELLS) - HALF
    grid = torch.cartesian_prod(middle, middle).to(flow.potential.w)
    return flow.log_density(grid).exp().reshape(CELLS, CELLS).cpu().numpy()


# Comparisons
# -----------


def targets(results: Results, *models: str) -> list[str]:
    """Return densities on which all of these models were trained."""
    every = dict.fromkeys(name.partition(" ")[0] for name in results.records)
    return [t for t in every if all(f"{t} {model}" in results.records for model in models)]


def numbers(results: Results, target: str, model: str, key: str) -> np.ndarray:
    """Return one quantity of a model for each seed."""
    if key.startswith("equal_time"):
        return equal_time(results, target, model)[key.endswith("base")]
    return results.values(f"{target} {model}", key)


def equal_time(results: Results, target: str, model: str) -> tuple[np.ndarray, np.ndarray]:
    """Return distances of a model and of OT-Flow after the time of the shorter training.

    The time is steps times the least time of a step. Distances between evaluations are interpolated
    on a log scale.
    """
    pair = f"{target} {model}", f"{target} OT-Flow{' eq.16' * model.endswith('eq.16')}"
    if pair[1] not in results.records:
        missing = np.full(len(results.records[pair[0]]), np.nan)
        return missing, missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of models all of whose runs diverged
        times = [float(np.nanmedian(results.values(name, "step_seconds"))) for name in pair]

    def after(seconds: float, history: study.Dataset, time: float) -> float:
        if not history.attrs["complete"]:
            return float("nan")
        at = history["evaluation"].values * time
        return float(np.exp(np.interp(seconds, at, np.log(history["sliced_w2"].values))))

    found = []
    for runs in zip(*(results.histories[name] for name in pair), strict=True):
        ends = [time * run.sizes["step"] for time, run in zip(times, runs, strict=True)]
        found.append([after(min(ends), run, t) for run, t in zip(runs, times, strict=True)])
    own, base = np.transpose(found)
    return own, base


def steps_to(history: study.Dataset, level: float) -> float:
    """Return the first step at which the distance has fallen to a level, else inf."""
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


def closer(
    results: Results, model: str, base: str, key: str, statement: str, source: str
) -> Finding:
    """Decide whether a model has smaller values than another, for every target and together."""
    ratio = key != "nll"
    texts, verdicts, gaps = [], [], []
    for target in targets(results, model, base):
        own = numbers(results, target, model, key)
        at_end = key == "equal_time"  # of both when the shorter training has ended
        plain = numbers(results, target, *((model, f"{key}_base") if at_end else (base, key)))
        text, verdict = networks.paired(plain, own, ratio=ratio)
        texts.append(f"{title(target)} {text}, {verdict}")
        verdicts.append(verdict)
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps.append(np.log(plain) - np.log(own) if ratio else plain - own)
    mean = np.mean(gaps, axis=0)
    text, overall = networks.paired(
        np.exp(mean) if ratio else mean, np.full_like(mean, float(ratio)), ratio=ratio
    )
    if "confirmed" in verdicts and set(verdicts) != {"confirmed"}:
        overall = "confirmed in part"
    what = f"sliced W_2 of {base} over its own" if ratio else f"NLL of {base} less its own"
    return Finding(statement, source, f"{what}: all targets {text}; {'; '.join(texts)}", overall)


def faster(results: Results, model: str, statement: str, source: str) -> Finding:
    """Decide whether a model needs fewer iterations to come as close as OT-Flow does."""
    ratios, never = [], 0
    for target in targets(results, model, "OT-Flow"):
        pair = [f"{target} {name}" for name in ("OT-Flow", model)]
        level = LEVEL * float(np.mean(results.values(pair[0], "sliced_w2")))
        for runs in zip(*(results.histories[name] for name in pair), strict=True):
            whole = runs[1].sizes["step"]
            plain, own = (np.clip(steps_to(run, level), 1, 2 * whole) for run in runs)
            never += own == 2 * whole
            ratios.append(plain / own)
    text, verdict = networks.paired(ratios, np.ones(len(ratios)), ratio=True)
    late = f"; {never} of {len(ratios)} runs do not get there, and count as twice the training"
    where = f"iterations to {LEVEL:g} times OT-Flow's last distance: its number over the model's "
    return Finding(statement, source, where + text + (late if never else ""), verdict)


def findings(_: RwpoBenchmarks, trials: Trials, results: Results) -> list[Finding]:
    """Return claims of the paper, with their verdicts."""
    flow = "the flow with the sparse transformer"
    claim = f"{flow} is closer to the target than OT-Flow"
    source = "[RWPO] section 4.1, Fig. 3"
    kinds = {
        "printed": "as printed, with its misprinted kernel",
        "printed exact": "as printed, with the exact kernel",
        "printed Laplace": "as printed, with Laplace's kernel",
        "corrected": "corrected",
        "with itself": "corrected, tokens attend to themselves",
        "chosen": "best variant",
    }
    asked = []
    for model, text in kinds.items():
        keys = {"sliced_w2": f"{claim}: {text}, equal iterations",
                "equal_time": f"{claim}: {text}, equal time"}  # fmt: skip
        if not model.startswith("printed"):
            keys["nll"] = f"{flow} gives held-out points a higher likelihood than OT-Flow: {text}"
        asked += [(model, "OT-Flow", key, words, source) for key, words in keys.items()]
    asked += [
        (f"{model} eq.16", "OT-Flow eq.16", "sliced_w2",
         f"{claim}: {text}, with the weights of eq. 16", "[RWPO] eq. 16, Fig. 3")
        for model, text in kinds.items()
    ]  # fmt: skip
    return [
        *(closer(results, *each) for each in asked if targets(results, *each[:2])),
        *(faster(results, model, f"{flow} converges faster than OT-Flow: {text}",
                 "[RWPO] section 5")
          for model, text in kinds.items() if targets(results, model, "OT-Flow")),
    ]  # fmt: skip


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


def tabulated(flags: RwpoBenchmarks, results: Results) -> study.Dataset:
    """Return all numbers over (target, model, seed); NaN where a model was not trained."""
    rows, models = targets(results), [m for m in MODELS if targets(results, m)]
    values = {key: np.full((len(rows), len(models), flags.seeds), np.nan) for key in KEYS}
    for (i, target), (j, model) in product(enumerate(rows), enumerate(models)):
        if f"{target} {model}" in results.records:
            for key, array in values.items():
                array[i, j] = numbers(results, target, model, key)
    table = study.dataset(
        {key: (("target", "model", "seed"), values[key], text) for key, text in KEYS.items()},
        {"target": (rows, "density"), "model": (models, "model"),
         "seed": (range(flags.seeds), "seed")},
    )  # fmt: skip
    table["step_seconds"].attrs["units"] = "s"
    return table


def floors(flags: RwpoBenchmarks) -> dict[str, float]:
    """Return the distance of two samples of each density."""

    def two(target: str) -> list[np.ndarray]:
        return [drawn(flags, target, flags.points, part=part).numpy() for part in SPLITS]

    return {target: float(sampling.sliced_w2(*two(target))) for target in flags.targets}


HALF, CELLS = 4.5, 96  # of the square on which densities are drawn
POINTS = 4000  # of a sample that is drawn
SHOWN = ("OT-Flow", "printed exact", "corrected", "with itself", "chosen")
COLOURS = dict(zip(SHOWN, ("#6b6b6b", "#b8860b", "#c1440e", "#2e7d32", "#0b3c5d"), strict=True))


def title(target: str) -> str:
    return target.replace("_", " ").capitalize().replace("gaussian", "Gaussian")


# Figures
# -------


def figures(_: RwpoBenchmarks, results: Results) -> dict[str, study.Figure]:
    """Draw samples and densities of seed 0, as in figures 2 and 3 of the paper, and curves."""
    edges = np.linspace(-HALF, HALF, CELLS + 1)

    def sample(target: str) -> np.ndarray:
        return nets.data.planar(target, POINTS).numpy()

    def histogram(target: str) -> np.ndarray:
        x = nets.data.planar(target, 400_000).numpy()
        return np.histogram2d(x[:, 0], x[:, 1], edges, density=True)[0]

    def points(axis: Any, x: np.ndarray, _: np.ndarray) -> None:
        axis.plot(*x.T, ",", color="#0b3c5d", alpha=0.5, rasterized=True)
        outside = float((np.abs(x) > HALF).any(axis=1).mean())
        if outside > 0.001:
            axis.text(0.03, 0.03, f"{100 * outside:.1f} % outside", fontsize=6,
                      transform=axis.transAxes)  # fmt: skip

    def image(axis: Any, values: np.ndarray, target: np.ndarray) -> None:
        axis.imshow(values.T, origin="lower", extent=(-HALF, HALF, -HALF, HALF), cmap="magma",
                    vmin=0, vmax=float(np.quantile(target, 0.995)), rasterized=True)  # fmt: skip

    panels = {
        title(target): {m: results.histories.get(f"{target} {m}", []) for m in SHOWN}
        for target in targets(results)
    }
    label = "Sliced $W_2$ to held-out data"
    return {
        "samples": squares(results, "samples", sample, points),
        "densities": squares(results, "density", histogram, image),
        "curves": learning_curves(panels, "sliced_w2", label, COLOURS, log=True),
    }


@style()
def squares(
    results: Results,
    key: str,
    truth: Callable[[str], np.ndarray],
    draw: Callable[[Any, np.ndarray, np.ndarray], None],
) -> study.Figure:
    """Draw a column for each density, a row for the target and each model."""
    every = targets(results)
    first = {name: runs[0] for name, runs in results.records.items()}
    rows = ["target", *(m for m in SHOWN if any(key in first.get(f"{t} {m}", {}) for t in every))]
    figure, axes = grid(len(rows), len(every), PAGE, 0.3 + 1.45 * len(rows), sharex=True,
                        sharey=True)  # fmt: skip
    for column, target in zip(axes.T, every, strict=True):
        column[0].set_title(title(target))
        exact = truth(target)
        for axis, name in zip(column, rows, strict=True):
            record = {key: exact} if name == "target" else first.get(f"{target} {name}", {})
            if key in record:
                draw(axis, np.array(record[key]), exact)
            axis.set(xlim=(-HALF, HALF), ylim=(-HALF, HALF), xticks=[], yticks=[], aspect="equal")
    for axis, name in zip(axes[:, 0], rows, strict=True):
        axis.set_ylabel(name)
    return figure


# Tables
# ------


def number(value: float) -> str:
    """Return a distance for a cell: two decimals, or three figures of a large one."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def cell(values: Sequence[float] | np.ndarray, style: str = "") -> str:
    write = (lambda value: f"{value:{style}}") if style else number
    return networks.mean_and_spread(list(values), write)


def main_table(flags: RwpoBenchmarks, results: Results) -> str:
    """Return one row for each density and model."""
    rows, floor = [], floors(flags)
    for name, (target, model) in names(flags).items():
        if name not in results.records:
            continue
        values = {key: numbers(results, target, model, key) for key in KEYS}
        sizes = [np.nanmin(r["ess"]) for r in results.records[name] if r["ess"]]
        printed = model.startswith("printed")
        nll, lost = cell(values["nll"]), values["folded" if printed else "lost"]
        rows.append({
            "target": title(target),
            "floor": number(floor[target]),
            "model": model,
            "sliced $W_2$": cell(values["sliced_w2"]),
            "in equal time": cell(values["equal_time"]),
            "OT-Flow then": cell(values["equal_time_base"]),
            "1000 MMD$^2$": cell(1000 * values["mmd"], ".2f"),
            "NLL": f"({nll})" if printed else nll,
            "not inverted or folded (%)": cell(100 * lost, ".3g"),
            "ms per step": cell(1000 * values["step_seconds"], ".0f"),
            "$\\lambda$": cell(values["lam"], ".2f"),
            "$\\beta$": cell(values["beta"], ".2f"),
            "least ESS": cell(sizes, ".0f"),
        })  # fmt: skip
    return study.markdown_table(rows)


def trial_table(flags: RwpoBenchmarks, trials: Trials) -> str:
    """Return the validation scores of the variants, the best first."""
    names = ["OT-Flow", *sorted(trials.scores, key=lambda name: trials.scores[name])]
    scores = {"OT-Flow": 0.0} | trials.scores

    def column(target: str, key: str) -> list[str]:
        return [cell(trials.results.values(f"trial {target} {name}", key)) for name in names]

    first = flags.trial_targets[0]
    return study.markdown_table({
        "variant": names,
        "ratio": [f"{np.exp(scores[name]):.2f}" for name in names],
        **{f"sliced $W_2$, {title(t).lower()}": column(t, "sliced_w2")
           for t in flags.trial_targets},
        f"NLL, {title(first).lower()}": column(first, "nll"),
    })  # fmt: skip


def report(flags: RwpoBenchmarks, trials: Trials, results: Results) -> str:
    """Return the tables."""
    alpha = ", ".join(f"{weight:g}" for weight in flags.alpha)
    parts = [
        f"{networks.caption(flags, flags.seeds, results, trials.source)} d = {flags.dim}, "
        f"$n_t$ = {flags.steps}, width {flags.width}, {flags.iterations} iterations with "
        f"{flags.batch} points, Adam with rates from {flags.rates[0]:g} to {flags.rates[1]:g}; "
        f"weights of likelihood, transport and HJB {alpha}, and with eq. 16 1, 1, 0.1. Measured on "
        f"{flags.points:,} held-out points: sliced $W_2$ by 256 directions, MMD of Gaussian "
        "kernels at 1/4 to 4 times the median distance, negative log likelihood (NLL) in double "
        "precision; that of the printed flow, in brackets, is what (24) sums, which is no "
        "likelihood. The floor is the sliced $W_2$ of two samples of the target. In equal time: "
        "that of the shorter training of the flow and OT-Flow, by the least time of a step, on "
        f"{flags.curve:,} points; then OT-Flow's at that time.",
        main_table(flags, results),
    ]
    if trials.scores:
        parts += [
            f"Variants of the layer after {flags.trial_iterations} iterations on validation data, "
            f"with {flags.trial_seeds} other seed{'s' if flags.trial_seeds > 1 else ''}; chosen: "
            f"{trials.best}. The ratio is the geometric mean of the distance over OT-Flow's.",
            trial_table(flags, trials),
        ]
    return "\n\n".join(parts)


EXPERIMENT = networks.Experiment(
    name=NAME, models=names, load=load, plan=plan, measure=measure,
    table=tabulated, text=report, findings=findings, figures=figures,
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(RwpoBenchmarks, __doc__))


if __name__ == "__main__":
    script(main)
