"""Flows, trainings, measurements and figures of the study `rwpo_benchmarks`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import copy
import itertools
import json
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow import InputError, nets, sampling, study
from wflow._core.files import replace_file
from wflow.study import networks
from wflow.study.networks import Record, Run, Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

RESULT = "result.h5"  # of a training: its history, its record, and pictures of seed 0
PAPER = ("moons", "rings", "two_spirals", "eight_gaussians", "checkerboard")
PAIRS = 4000  # points of each sample that the MMD compares
HALF, CELLS = 4.5, 96  # of the square on which densities are drawn

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


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    targets: tuple[str, ...] = PAPER
    eq16_targets: tuple[str, ...] = PAPER  # of them, those with the weights of eq. 16 as well
    seeds: int = 5
    steps: int = 48
    width: int = 48
    iterations: int = 6001
    batch: int = 4096
    rates: tuple[float, float] = (1e-2, 1e-6)
    start: float = 0.05  # of the potential: near the identity
    alpha: tuple[float, float, float] = (1.0, 0.01, 0.1)  # likelihood, transport, HJB
    points: int = 10_000  # of a test set
    curve: int = 2000  # points of an evaluation in training
    evaluations: int = 20  # in a training
    trial_targets: tuple[str, ...] = ("moons", "checkerboard")
    trial_iterations: int = 2000
    trial_seeds: int = 2
    variants: tuple[str, ...] = tuple(VARIANTS)


@dataclass(frozen=True)
class Model:
    """A flow: options of `SparseTransformerFlow` (None is OT-Flow), and the weights of the loss."""

    options: Mapping[str, Any] | None
    alpha: tuple[float, float, float] | None = None  # None: of the set-up
    start: float | None = None


EQ16 = (1.0, 1.0, 0.1)  # weights of the loss as [RWPO] eq. 16 and Table 1 have them
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


def network(model: Model, setup: Setup, target: str, seed: int) -> Any:
    """A flow whose potential has weights of its seed: the same for all models."""
    import torch

    from wflow.nets import generative

    torch.manual_seed(seed)
    phi = generative.Potential(2, width=setup.width, start=model.start or setup.start)
    if model.options is None:
        return generative.OTFlow(phi, steps=setup.steps)
    options = dict(model.options)
    if "attended" in options:
        options["attended"] = tuple(k % (setup.steps + 1) for k in options["attended"])
    flow = generative.SparseTransformerFlow(phi, steps=setup.steps, **options)
    if flow.convention != "published":
        flow.set_context(nets.data.planar(target, flow.tokens, seed, part="train"))
    return flow


def plan(
    model: Model, setup: Setup, target: str, flags: Any, seed: int, iterations: int, part: str
) -> Run:
    """The training of one flow, measured on a part of the data now and then.

    An independent context comes with the batch, before the rows that the loss is a mean of.
    """
    from wflow.nets import generative

    flow = network(model, setup, target, seed)
    rows = setup.batch
    if getattr(flow, "context", "") == "independent":
        rows += flow.tokens
    every = max(1, iterations // setup.evaluations)
    config = nets.train.TrainConfig(
        steps=iterations,
        batch=rows,
        schedule=nets.train.Cosine(*setup.rates, 0, iterations),
        evaluate_every=every,
        checkpoint_every=2 * every,
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
    )
    held_out = nets.data.planar(target, setup.curve, seed=1, part=part)

    def evaluate(trained: Any) -> dict[str, float]:
        points = held_out.to(trained.potential.w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tokens without an inverse are counted in `examine`
            found = trained.sample(setup.curve, seed=1)
            nll = -float(trained.log_density(points).mean())
        return {"held_out_nll": nll, "sliced_w2": distance(sampling.sliced_w2, found, points)}

    return Run(
        flow,
        generative.Likelihood(model.alpha or setup.alpha),
        nets.data.PlanarBatches(target, batch=rows, seed=seed),
        config,
        evaluate,
    )


def distance(metric: Any, found: Any, points: Any) -> float:
    """A distance of samples; NaN where a sample is not finite or too large for it."""
    try:
        return float(metric(found.cpu().numpy(), points.cpu().numpy()))
    except InputError:
        return float("nan")


def examine(
    training: Trained, run: Run, model: Model, setup: Setup, target: str, out: Path, seed: int,
    part: str,
) -> Record:  # fmt: skip
    """All quantities of a trained flow in double precision, kept beside its checkpoint."""
    import torch

    keys = ("nll", "sliced_w2", "mmd", "lam", "beta", "folded", "lost", "step_seconds")
    record: Record = dict.fromkeys(keys, float("nan"))
    flow = training.model
    record |= {"parameters": sum(p.numel() for p in flow.parameters()), "ess": []}
    record |= {"diverged": training.diverged, "options": words(model.options or {})}
    pictures = {}
    if not training.diverged:
        record["step_seconds"] = seconds_of_a_step(copy.deepcopy(flow), run)
        flow = copy.deepcopy(flow).double().eval()
        points = nets.data.planar(target, setup.points, part=part).to(flow.potential.w)  # type: ignore
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            base = flow.draws(setup.points, 0)  # type: ignore[operator]
            found = flow.from_base(base)  # type: ignore[operator]
            if getattr(flow, "convention", "") != "published":
                back = flow.to_base(found).z  # type: ignore[operator]
                record["lost"] = float(((back - base).abs().amax(1) > 1e-3).double().mean())
            there = flow.to_base(points)  # type: ignore[operator]
            record["folded"] = float(there.folded)
            record["nll"] = -float((nets.generative.log_normal(there.z) + there.log_det).mean())
            if hasattr(flow, "ess"):
                record |= {"lam": flow.lam, "beta": flow.beta}
                record["ess"] = flow.ess(points[:1000]).mean(1).tolist()  # type: ignore[operator]
            if seed == 0 and part == "test":
                pictures["density"] = (("across", "up"), density_on_square(flow))
                pictures["samples"] = (("point", "axis"), found.cpu().numpy())
        record["sliced_w2"] = distance(sampling.sliced_w2, found, points)
        record["mmd"] = distance(sampling.mmd, found[:PAIRS], points[:PAIRS])
    kept = training.history.assign(pictures)
    kept.attrs |= {"record": json.dumps(record), "setup": identity(setup)}
    replace_file(out / RESULT, lambda draft: kept.to_netcdf(draft, engine="h5netcdf"))
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


def identity(setup: Setup) -> str:
    """What all trainings of a folder share, as text."""
    given = asdict(setup)
    for name in ("targets", "seeds", "trial_targets", "trial_seeds", "variants"):
        del given[name]
    return json.dumps(given)


# Trials: which variant of the layer is best on validation data
# -------------------------------------------------------------


def trials(setup: Setup) -> dict[str, tuple[str, Model]]:
    """Names of the trainings -> (target, model); OT-Flow beside, the flow without a layer."""
    models = {"OT-Flow": MODELS["OT-Flow"]}
    models |= {name: Model(VARIANTS[name]) for name in setup.variants}
    return {
        f"trial {target} {name}": (target, model)
        for target, (name, model) in itertools.product(setup.trial_targets, models.items())
    }


def scores(out: Path, setup: Setup) -> dict[str, float]:
    """Mean over targets and seeds of the log of the distance over OT-Flow's, on validation data."""

    def logs(name: str) -> np.ndarray:
        found = [
            read(out, f"trial {target} {name}", seed, setup)[0]["sliced_w2"]
            for target in setup.trial_targets
            for seed in range(setup.trial_seeds)
        ]
        return np.log(np.asarray(found, dtype=float))

    base = logs("OT-Flow")
    return {name: float(np.mean(logs(name) - base)) for name in setup.variants}


def chosen(found: Mapping[str, float]) -> str:
    """The variant with the least score; one that failed has none."""
    known = {name: value for name, value in found.items() if np.isfinite(value)}
    return min(known, key=lambda name: known[name]) if known else next(iter(found))


# Results
# -------


def read(out: Path, name: str, seed: int, setup: Setup) -> tuple[Record, Dataset]:
    """Record and history of a finished training.

    Raises
    ------
    InputError
        Where there is none, or one of other settings.
    """
    import xarray

    file = networks.folder_of(out, name, seed) / RESULT
    if not file.is_file():
        raise InputError(f"{file} is missing: train it first, with --part train or --part trials")
    with xarray.open_dataset(file, engine="h5netcdf") as found:
        history = found.load()
    if history.attrs["setup"] != identity(setup):
        raise InputError(
            f"{file} is of other settings: give the preset and the flags it was made with, or "
            "another --out"
        )
    return json.loads(history.attrs["record"]), history


@dataclass
class Found:
    """What came out: (target, model) -> one record and one history per seed."""

    records: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    histories: dict[tuple[str, str], list[Dataset]] = field(default_factory=dict)

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


def collect(out: Path, setup: Setup, models: Iterable[str]) -> Found:
    """All finished trainings of the set-up: the leading seeds of each model."""
    found = Found()
    for target, model in itertools.product(setup.targets, models):
        name = f"{target} {model}"
        for seed in itertools.takewhile(
            lambda seed, name=name: (networks.folder_of(out, name, seed) / RESULT).is_file(),  # type: ignore[misc]
            range(setup.seeds),
        ):
            record, history = read(out, name, seed, setup)
            if model.startswith("chosen"):
                best = chosen(scores(out, setup))
                if record["options"] != words(VARIANTS[best]):
                    folder = networks.folder_of(out, name, seed)
                    raise InputError(
                        f"{folder} is of {record['options']}, and the trials choose {best}: remove "
                        "it, and train again"
                    )
            found.records.setdefault((target, model), []).append(record)
            found.histories.setdefault((target, model), []).append(history)
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


# Figures
# -------

SHOWN = ("OT-Flow", "printed", "corrected", "chosen")
COLOURS = dict(zip(SHOWN, ("#6b6b6b", "#b8860b", "#c1440e", "#0b3c5d"), strict=True))


def title(target: str) -> str:
    return target.replace("_", " ").capitalize().replace("gaussian", "Gaussian")


def samples(found: Found) -> Figure:
    """Held-out data and samples of seed 0, as figures 2 and 3 of the paper have them."""
    from wflow.plots.figure import PAGE, grid, style

    models = [name for name in SHOWN if name in found.models()]
    targets = found.targets(*models)
    with style():
        size = len(models) + 1, len(targets)
        figure, axes = grid(*size, PAGE, 0.3 + 1.45 * size[0], sharex=True, sharey=True)
        for axis, target in zip(axes.T, targets, strict=True):
            clouds = {"target": nets.data.planar(target, 4000).numpy()}
            clouds |= {
                name: found.histories[target, name][0]["samples"].values
                for name in models
                if "samples" in found.histories[target, name][0]
            }
            axis[0].set_title(title(target))
            for place, name in zip(axis, ("target", *models), strict=True):
                if name in clouds:
                    x = clouds[name][:4000]
                    place.plot(*x.T, ",", color="#0b3c5d", alpha=0.5, rasterized=True)
                    outside = float((np.abs(x) > HALF).any(axis=1).mean())
                    if outside > 0.001:
                        place.text(0.03, 0.03, f"{100 * outside:.1f} % outside", fontsize=6,
                                   transform=place.transAxes)  # fmt: skip
                _square(place)
        for row, name in zip(axes, ("target", *models), strict=True):
            row[0].set_ylabel(name)
    return figure


def densities(found: Found) -> Figure:
    """Held-out data as a histogram, and the densities of the flows of seed 0 themselves."""
    from wflow.plots.figure import PAGE, grid, style

    models = [name for name in SHOWN if name in found.models() and name != "printed"]
    targets = found.targets(*models)
    edges = np.linspace(-HALF, HALF, CELLS + 1)
    box = (-HALF, HALF, -HALF, HALF)
    with style():
        size = len(models) + 1, len(targets)
        figure, axes = grid(*size, PAGE, 0.3 + 1.45 * size[0], sharex=True, sharey=True)
        for axis, target in zip(axes.T, targets, strict=True):
            x = nets.data.planar(target, 400_000).numpy()
            drawn = {"target": np.histogram2d(x[:, 0], x[:, 1], edges, density=True)[0]}
            drawn |= {
                name: found.histories[target, name][0]["density"].values
                for name in models
                if "density" in found.histories[target, name][0]
            }
            axis[0].set_title(title(target))
            top = float(np.quantile(drawn["target"], 0.995))
            for place, name in zip(axis, ("target", *models), strict=True):
                if name in drawn:
                    place.imshow(drawn[name].T, origin="lower", extent=box, cmap="magma", vmin=0,
                                 vmax=top, rasterized=True)  # fmt: skip
                _square(place)
        for row, name in zip(axes, ("target", *models), strict=True):
            row[0].set_ylabel(name)
    return figure


def _square(axis: Any) -> None:
    axis.set(xlim=(-HALF, HALF), ylim=(-HALF, HALF), xticks=[], yticks=[], aspect="equal")


def curves(found: Found) -> Figure:
    """Distance to held-out data over the training: mean and range over the seeds."""
    from wflow.plots.figure import PAGE, grid, style
    from wflow.plots.networks import draw_histories

    targets = found.targets()
    columns = min(3, len(targets))
    rows = -(-len(targets) // columns)
    with style():
        figure, axes = grid(rows, columns, PAGE, 0.4 + 2.1 * rows, sharex=True)
        for axis, target in zip(axes.flat, targets, strict=False):
            drawn = {name: found.histories.get((target, name), []) for name in SHOWN}
            draw_histories(axis, drawn, "sliced_w2", COLOURS, log=True)
            axis.set_title(title(target))
        for axis in axes.flat[len(targets) :]:
            axis.set_visible(False)
        for row in axes:
            row[0].set_ylabel("Sliced $W_2$ to held-out data")
        for axis in axes.flat[max(0, len(targets) - columns) : len(targets)]:  # none is below
            axis.set_xlabel("Iteration")
            axis.tick_params(labelbottom=True)
        handles, texts = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=4)
    return figure


# Tables
# ------


def number(value: float) -> str:
    """A distance for a cell: two digits after the point, or three figures of a large one."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def cell(values: Sequence[float] | np.ndarray, style: Any = number) -> str:
    return networks.mean_and_spread(list(values), style)


def main_table(found: Found, setup: Setup) -> str:
    """One row for each target and model."""
    floor = {
        target: sampling.sliced_w2(*(nets.data.planar(target, setup.points, part=part).numpy()
                                     for part in ("validation", "test")))
        for target in found.targets()
    }  # fmt: skip
    rows = []
    for target, model in sorted(
        found.records, key=lambda key: (setup.targets.index(key[0]), list(MODELS).index(key[1]))
    ):
        values = {
            key: found.values(target, model, key)
            for key in ("sliced_w2", "equal_time", "equal_time_base", "mmd", "nll", "step_seconds",
                        "lost", "folded", "lam", "beta")
        }  # fmt: skip
        ess = [np.nanmin(r["ess"]) for r in found.records[target, model] if r["ess"]]
        printed = model.startswith("printed")
        rows.append({
            "target": title(target),
            "floor": number(floor[target]),
            "model": model,
            "seeds": str(len(values["nll"])),
            "sliced $W_2$": cell(values["sliced_w2"]),
            "in equal time": cell(values["equal_time"]),
            "OT-Flow then": cell(values["equal_time_base"]),
            "1000 MMD$^2$": cell(1000 * values["mmd"], lambda v: f"{v:.2f}"),
            "NLL": f"({cell(values['nll'])})" if printed else cell(values["nll"]),
            "not inverted or folded (%)": cell(
                100 * values["folded" if printed else "lost"], lambda v: f"{v:.2g}"
            ),
            "ms per step": cell(1000 * values["step_seconds"], lambda v: f"{v:.0f}"),
            "$\\lambda$": cell(values["lam"], lambda v: f"{v:.2f}"),
            "$\\beta$": cell(values["beta"], lambda v: f"{v:.2f}"),
            "least ESS": cell(ess, lambda v: f"{v:.0f}"),
        })  # fmt: skip
    return study.markdown_table({key: [row[key] for row in rows] for key in rows[0]})


def trial_table(out: Path, setup: Setup) -> str:
    """Validation scores of the variants, the best first."""
    found = scores(out, setup)
    order = sorted(found, key=lambda name: found[name])

    def cells(name: str, target: str, key: str) -> list[float]:
        return [
            read(out, f"trial {target} {name}", seed, setup)[0][key]
            for seed in range(setup.trial_seeds)
        ]

    names = ["OT-Flow", *order]
    table = {
        "variant": names,
        "options": ["", *(words(VARIANTS[name]) for name in order)],
        "ratio": ["1", *(f"{np.exp(found[name]):.2f}" for name in order)],
    }
    for target in setup.trial_targets:
        table[f"sliced $W_2$, {title(target).lower()}"] = [
            cell(cells(name, target, "sliced_w2")) for name in names
        ]
    table["NLL, " + title(setup.trial_targets[0]).lower()] = [
        cell(cells(name, setup.trial_targets[0], "nll")) for name in names
    ]
    return study.markdown_table(table)


def words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())


def report(flags: Any, setup: Setup, found: Found) -> str:
    """The tables."""
    names = {" ".join(key): key for key in found.records}
    results = networks.Results(
        {name: found.records[key] for name, key in names.items()},
        {name: found.histories[key] for name, key in names.items()},
    )
    alpha = ", ".join(f"{weight:g}" for weight in setup.alpha)
    parts = [
        networks.caption(flags, setup.seeds, results, "fresh points of each density")
        + f" $n_t$ = {setup.steps}, width {setup.width}, {setup.iterations} iterations with "
        f"{setup.batch} points, Adam with rates from {setup.rates[0]:g} to {setup.rates[1]:g}; "
        f"weights of likelihood, transport and HJB {alpha}, and with eq. 16 1, 1, 0.1. Measured on "
        f"{setup.points:,} held-out points: sliced $W_2$ by 256 directions, MMD of Gaussian "
        "kernels at 1/4 to 4 times the median distance, negative log likelihood (NLL) in double "
        "precision; that of the printed flow, in brackets, is what (24) sums, which is no "
        "likelihood. The floor is the sliced $W_2$ of two samples of the target. In equal time: "
        "that of the shorter training of the flow and OT-Flow, by the processor time of a step, on "
        f"{setup.curve:,} points; then OT-Flow's at that time.",
        main_table(found, setup),
    ]
    try:
        best = chosen(scores(flags.out, setup))
        table = trial_table(flags.out, setup)
    except InputError:
        return "\n\n".join(parts)
    parts += [
        f"Variants of the layer after {setup.trial_iterations} iterations on validation data, with "
        f"{setup.trial_seeds} other seed{'s' if setup.trial_seeds > 1 else ''}; chosen: {best}. "
        "The ratio is the geometric mean of the distance over OT-Flow's.",
        table,
    ]
    return "\n\n".join(parts)


def tabulated(found: Found, setup: Setup) -> Dataset:
    """All numbers over (target, model, seed); NaN where a training is missing."""
    import xarray

    keys = {
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
    targets, models = found.targets(), found.models()
    shape = len(targets), len(models), setup.seeds
    values = {key: np.full(shape, np.nan) for key in keys}
    for (target, model), records in found.records.items():
        place = targets.index(target), models.index(model)
        for key, table in values.items():
            table[(*place, slice(len(records)))] = [record[key] for record in records]
    dims = ("target", "model", "seed")
    variables = {
        key: (dims, table, {"long_name": keys[key], "units": "s" if "seconds" in key else "1"})
        for key, table in values.items()
    }
    places = {
        "target": ("target", targets, {"long_name": "density"}),
        "model": ("model", models, {"long_name": "model"}),
        "seed": ("seed", range(setup.seeds), {"long_name": "seed"}),
    }
    return xarray.Dataset(variables, places)


FIGURES = {"samples": samples, "densities": densities, "curves": curves}
