"""Residual networks trained by Pontryagin's maximum principle, beside the classic one.

Points in the plane of two classes: the linear problem, the ring and the cross of the report,
squares and spiral of Benning et al. A classic residual network (Euler, back-propagation, Adam) and
controlled ones of as many parameters by Euler, Heun and RK4, trained along the gradients of
costates (the report's Algorithm 2, its signs corrected; Adam), by the method of successive
approximations and by the extended one: [GPTOC] section 5.2.

    python studies/control/pontryagin_resnet.py
    python studies/control/pontryagin_resnet.py --datasets donut --out results/pontryagin_donut
    torchrun --nproc-per-node 8 studies/control/pontryagin_resnet.py --preset paper

[GPTOC] Croizet, De Vos, Hajem, Basso, Guerafi, Wu, "GPT Project Part 1 Report", 2025.
[BCEOS2019] Benning, Celledoni, Ehrhardt, Owren, Schönlieb, J. Comput. Dyn. 6, 2019.
[LCTE2018] Li, Chen, Tai, E, J. Mach. Learn. Res. 18, 2018.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import tyro
from _control import FloatArray, Pair, columns, config

from wflow import nets, study
from wflow.cli import script
from wflow.plots.figure import PAGE, grid, style
from wflow.study import Finding, networks
from wflow.study.networks import Record, Results, Run, Trained, claim

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from torch import Tensor

DataName = Literal["linear", "donut", "cross", "squares", "spiral"]
DATA: tuple[DataName, ...] = get_args(DataName)
STAGES = {"euler": 1, "heun": 2, "rk4": 4}  # evaluations of f in a step
METHODS = ("gradient", "adam", "msa", "emsa")
ROUNDING = 1e-12  # error of a gradient over the largest one
SIMILAR = 0.01  # of the test accuracy
SIDE = 60  # points of a decision region in each direction
SHOWN, FOLLOWED = 300, 150  # points that are drawn, and those whose trajectories are
PLAIN = "a step of the plain method"  # the warning of plain MSA


class Model(NamedTuple):
    """A network, the data that it learns, and how."""

    data: str
    scheme: str = "euler"
    method: str = "classic"  # or one of METHODS


MODELS = {
    name: model for data in get_args(DataName) for name, model in (
        (f"{data} classic", Model(data)),
        *((f"{data} {scheme} {method}", Model(data, scheme, method))
          for scheme in STAGES for method in METHODS),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PontryaginResnet(networks.NetFlags):
    """Flags of this study."""

    indifferent: ClassVar[frozenset[str]] = frozenset({"datasets"})
    durations: ClassVar = {"smoke": "seconds", "cpu": "minutes a model on two cores"}
    presets: ClassVar = {
        "paper": {},
        "cpu": {
            "samples": 500, "tests": 2000, "layers": 8, "iterations": 500, "maximisations": 25,
        },
        "smoke": {
            "samples": 40, "tests": 60, "layers": 3, "seeds": 1, "iterations": 8,
            "maximisations": 2, "inner": 3,
        },
    }  # fmt: skip
    datasets: study.Distinct[DataName] = DATA
    """Data sets."""
    samples: study.Count = 1000
    """Points to train on, all in every iteration."""
    tests: study.Count = 5000
    """Points to test."""
    layers: study.Count = 15
    """Layers, steps of length 1."""
    width: study.TwoOrMore = 3
    """Width of the states, at least 2: points are filled up with zeros."""
    seeds: study.Count = 5
    iterations: study.Count = 4000
    """Iterations of gradient descent and Adam."""
    maximisations: study.Count = 200
    """Iterations of the methods of successive approximations."""
    rate: study.Positive = 0.5
    """Rate of gradient descent."""
    adam: study.Positive = 0.01
    """Rate of Adam."""
    rho: study.Positive = 0.1
    """Weight of the augmentation of extended MSA."""
    inner: study.Count = 10
    """L-BFGS steps of a maximisation."""
    precision: tyro.conf.Suppress[Literal["float32"]] = "float32"
    compile: tyro.conf.Suppress[study.Switch] = False  # sweeps of costates are not compiled
    data: tyro.conf.Suppress[str | None] = None
    out: study.Folder = Path("results/pontryagin_resnet")


def models(flags: PontryaginResnet) -> dict[str, Model]:
    """Return the networks of the data sets, set by set."""
    return {
        name: model for data in flags.datasets for name, model in MODELS.items()
        if model.data == data
    }  # fmt: skip


# Data
# ----
# Red points are the second class. The report has pictures and no numbers: the halves of a square by
# a line, a ring in a square, a cross in a square. Squares and spiral are those of Benning et al.
# Rings, crosses and squares hold half of the points. Densities of `nets.data` have no classes.

INNER = 0.4  # radius of the ring
OUTER = math.sqrt(INNER**2 + 2 / math.pi)
RED: dict[str, Callable[[FloatArray], NDArray[np.bool_]]] = {
    "linear": lambda x: x[:, 0] + x[:, 1] / 2 > 0.1,
    "donut": lambda x: (np.hypot(*x.T) > INNER) & (np.hypot(*x.T) < OUTER),
    "cross": lambda x: np.abs(x).min(axis=1) < 1 - math.sqrt(0.5),
    "squares": lambda x: x.prod(axis=1) > 0,
    "spiral": lambda x: x[:, 1] > 0,
}


def spiral(x: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Return two arms, of the points of the upper and of the lower half of the square."""
    along = np.sqrt(0.5 + 0.5 * x[:, 0])  # as dense outside as inside
    angle = 1.25 * 2 * math.pi * along + math.pi * (x[:, 1] > 0)
    arms = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return np.asarray(arms + 0.03 * generator.standard_normal(x.shape))


def points(data: str, count: int, *seed: int) -> tuple[Tensor, Tensor]:
    """Return points (count, 2) of a data set in [-1, 1]^2, float32, and their classes."""
    import torch

    generator = np.random.default_rng([16, *seed])
    x = generator.uniform(-1, 1, (count, 2))
    red = RED[data](x)
    if data == "spiral":
        x = spiral(x, generator)
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(red.astype(np.int64))


# Networks and trainings
# ----------------------


def network(flags: PontryaginResnet, model: Model, seed: int) -> nets.ControlledResNet:
    """Return a network of steps of length 1, as the classic one; equal seeds, equal weights."""
    import torch

    torch.manual_seed(seed)
    return nets.ControlledResNet(
        2, layers=flags.layers, t_final=flags.layers, scheme=model.scheme, width=flags.width
    )


def plan(flags: PontryaginResnet, _: None, model: Model, seed: int) -> Run:
    """Return the training of one network with one seed, by the whole data set in each step."""
    from torch.nn import functional

    from wflow.nets import control, train

    x, y = points(model.data, flags.samples, seed, 0)
    held, labels = points(model.data, flags.tests, seed, 1)
    objective = train.objective(functional.cross_entropy, 1.0)
    optimizer: Any = "sgd" if model.method == "gradient" else "adam"
    steps = flags.iterations
    if model.method in ("gradient", "adam"):
        objective = control.by_costates(objective)
    if model.method in ("msa", "emsa"):
        rho = flags.rho if model.method == "emsa" else 0.0
        optimizer, steps = control.MSA(rho=rho, iterations=flags.inner), flags.maximisations
    rate = flags.rate if model.method == "gradient" else flags.adam
    settings = config(
        steps, flags.samples, rate, seed, optimizer=optimizer, device=flags.device,
        evaluate_every=max(1, steps // 25), checkpoint_every=max(1, steps // 2),
    )  # fmt: skip

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        """Return loss and accuracy of points that were not trained on."""
        output = net(held.to(next(net.parameters()).device)).output.cpu()
        return {
            "test_loss": float(functional.cross_entropy(output, labels)),
            "accuracy": float((output.argmax(1) == labels).float().mean()),
        }

    return Run(network(flags, model, seed), objective, lambda step: (x, y), settings, evaluate)


# What was learnt
# ---------------

SCALARS = {
    "loss": ("training loss after the last iteration", "1"),
    "accuracy": ("test accuracy after the last iteration", "1"),
    "test_loss": ("test loss after the last iteration", "1"),
    "mismatch": ("largest error of costate gradients over the largest of autograd, double", "1"),
    "rises": ("share of the iterations after which the training loss was higher", "1"),
    "failed": ("iterations of extended MSA that found no lower loss", "1"),
    "iterations": ("iterations", "1"),
    "forward": ("evaluations of f per layer and iteration", "1"),
    "backward": ("vector-Jacobian products of f per layer and iteration", "1"),
    "milliseconds": ("median time of an iteration", "ms"),
    "kilobytes": ("peak of the tensors of an iteration, seed 0", "kB"),
    "seconds": ("time of all iterations", "s"),
}


def measure(flags: PontryaginResnet, _: None, model: Model, training: Trained, seed: int) -> Record:
    """Return losses, passes, errors of the gradients, and for seed 0 what figures show."""
    import torch
    from torch.nn import functional

    history, net = training.history, training.model
    forward, backward = passes(model, history)
    record: Record = {"forward": float(forward.mean()), "backward": float(backward.mean())}
    if training.diverged:
        return record
    assert isinstance(net, nets.ControlledResNet)
    x, y = (each.to(training.device) for each in points(model.data, flags.samples, seed, 0))
    with torch.no_grad():
        record["loss"] = float(functional.cross_entropy(net(x).output, y))
    record |= {key: float(history[key][-1]) for key in ("accuracy", "test_loss")}
    record |= {
        "mismatch": mismatch([network(flags, model, seed), net], x, y),
        "rises": float((np.diff(losses(record, history)) > 0).mean()),
    }
    if "failed" in history:
        record["failed"] = float(history["failed"].sum())
    if seed == 0:
        record["kilobytes"] = kilobytes(flags, model, training.device)
        record |= pictured(net, x, y)
    return record


def passes(model: Model, history: study.Dataset) -> tuple[FloatArray, FloatArray]:
    """Return evaluations and vector-Jacobian products of f, per layer, in each iteration.

    The sweep of costates evaluates each layer twice; see `nets.control.MSA` for the others.
    """
    if model.method in ("msa", "emsa"):
        found = [history[key].values.astype(float) for key in ("forward", "backward")]
    else:
        ones = np.ones(history.sizes["step"])
        found = [ones if model.method == "classic" else 2 * ones, ones]
    return STAGES[model.scheme] * found[0], STAGES[model.scheme] * found[1]


def losses(record: Record, history: study.Dataset) -> FloatArray:
    """Return the training loss before each iteration, and after the last."""
    return np.append(history["loss"].values.astype(float), record["loss"])


def mismatch(found: Sequence[torch.nn.Module], x: Tensor, y: Tensor) -> float:
    """Return the largest error of costate gradients over the largest of autograd, in double."""
    import torch
    from torch.nn import functional

    x, worst = x.double(), 0.0
    for net in found:
        double = copy.deepcopy(net).to(x.device).double()
        costates = nets.control.gradients(double, x, lambda out: functional.cross_entropy(out, y))
        loss = functional.cross_entropy(double(x).output, y)
        exact = torch.autograd.grad(loss, list(double.parameters()))
        scale = max(float(each.abs().max()) for each in exact)
        for one, other in zip(costates.values(), exact, strict=True):
            worst = max(worst, float((one - other).abs().max()) / scale)
    return worst


def kilobytes(flags: PontryaginResnet, model: Model, device: torch.device) -> float:
    """Return the peak of the tensors of an iteration, with those of optimiser and gradients."""
    run = plan(flags, None, model, 0)
    optimizer = run.config.optimizer
    if isinstance(optimizer, nets.control.MSA):
        optimizer = replace(optimizer, doublings=0)  # others repeat the same
    settings = replace(run.config, steps=1, optimizer=optimizer)

    def call() -> None:
        nets.train.train(run.model, run.objective, run.batches, settings)

    return 1e3 * networks.memory(call, device)


def pictured(net: nets.ControlledResNet, x: Tensor, y: Tensor) -> Record:
    """Return points, probabilities of the second class on a square, and states along the layers."""
    import torch

    line = torch.linspace(-1.1, 1.1, SIDE, device=x.device)
    square = torch.cartesian_prod(line, line)
    with torch.no_grad():
        region = net(square).output.softmax(1)[:, 1].view(SIDE, SIDE)
    # In the plane of the classifier's direction and of what varies most across it.
    states = nets.control.states(net, x[:FOLLOWED]).double()
    weight, bias = net.head.weight.detach().double(), net.head.bias.detach().double()
    normal, offset = weight[1] - weight[0], bias[1] - bias[0]
    size = torch.linalg.vector_norm(normal)
    along = (states @ normal + offset) / size
    rest = states - (states @ normal / size)[..., None] * normal / size
    across = torch.linalg.svd(rest[-1] - rest[-1].mean(0)).Vh[0]
    plane = torch.stack([along, rest @ across], dim=-1)
    return {
        "points": np.round(x[:SHOWN].cpu().numpy().astype(float), 4).tolist(),
        "classes": y[:SHOWN].tolist(),
        "region": np.round(region.cpu().numpy().astype(float), 3).tolist(),
        "states": np.round(plane.cpu().numpy(), 3).tolist(),
    }


# Comparisons
# -----------


class Course(NamedTuple):
    """The course of a training, before each iteration and after the last."""

    loss: FloatArray
    passed: FloatArray  # passes through the layers, forward and backward

    def after(self, budget: float) -> float:
        """Return the loss after the last iteration that the budget of passes pays for."""
        return float(self.loss[np.searchsorted(self.passed, budget, side="right") - 1])


def courses(results: Results, name: str) -> list[Course]:
    """Return the trainings of a network, by seed."""
    return [
        Course(
            losses(record, history),
            np.append(0.0, np.cumsum(np.add(*passes(MODELS[name], history)))),
        )
        for record, history in zip(results.records[name], results.histories[name], strict=True)
    ]


def at_equal_work(results: Results, name: str, other: str) -> Pair:
    """Return training losses of two networks after the passes of the cheaper training, by seed."""
    pairs = []
    for runs in zip(courses(results, name), courses(results, other), strict=True):
        budget = min(run.passed[-1] for run in runs)
        pairs.append([run.after(budget) for run in runs])
    one, two = np.transpose(pairs)
    return one, two


def after_iterations(results: Results, name: str, count: int) -> FloatArray:
    """Return the training losses after so many iterations, or after the last, by seed."""
    return np.array([run.loss[: count + 1][-1] for run in courses(results, name)])


# Tables and figures
# ------------------


def by_data(results: Results) -> dict[str, list[str]]:
    """Return names of the networks of each data set."""
    found: dict[str, list[str]] = {}
    for name in results.records:
        found.setdefault(MODELS[name].data, []).append(name)
    return found


def report(flags: PontryaginResnet, _: None, results: Results) -> str:
    """Return what was done, and a table for each data set."""
    count = sum(p.numel() for p in network(flags, Model("linear"), 0).parameters())
    names = by_data(results)
    caption = networks.caption(flags, flags.seeds, results, f"drawn, {', '.join(names)}")
    text = (
        f"{caption} All points are in every "
        f"iteration; steps have the length 1; tanh, {count} parameters. Forward and backward: "
        "evaluations and vector-Jacobian products of f per layer in an iteration, with those of "
        "L-BFGS and of all trials of rho. Loss at equal work: the training loss after as many of "
        "them as the training with the fewest has in the table. Memory: peak of the tensors of "
        "one iteration, seed 0."
    )
    return "\n\n".join(
        [text, *(f"{data.capitalize()}:\n\n{table_of(results, of)}" for data, of in names.items())]
    )


def table_of(results: Results, names: Sequence[str]) -> str:
    """Return the table of some networks."""
    runs = {name: courses(results, name) for name in names}
    budget = min(run.passed[-1] for found in runs.values() for run in found)
    first, column = [results.records[name][0] for name in names], columns(results, names)
    return study.markdown_table({
        "network": [name.partition(" ")[2] for name in names],
        "training loss": column("loss", ".3g"),
        "test accuracy, %": column("accuracy", lambda value: f"{100 * value:.1f}"),
        f"loss at equal work ({budget:,.0f} passes)": [
            networks.mean_and_spread([run.after(budget) for run in found], "{:.3g}".format)
            for found in runs.values()
        ],
        "loss rises, % of iterations": column("rises", lambda value: f"{100 * value:.1f}"),
        "iterations": [f"{record['iterations']:,}" for record in first],
        "forward": column("forward", ".3g"),
        "backward": column("backward", ".3g"),
        "ms per iteration": column("milliseconds", ".3g"),
        "peak memory, kB": [f"{record['kilobytes']:,.0f}" for record in first],
        "gradient error": [f"{results.values(name, 'mismatch').max():.1e}" for name in names],
    })  # fmt: skip


COLOURS = ("#0b3c5d", "#c1440e")  # of the two classes
LOOKS: dict[str, dict[str, Any]] = {
    "classic": {"label": "classic ResNet", "color": "0.1", "linestyle": "--", "zorder": 3},
    "gradient": {"label": "gradient", "color": "#b8860b"},
    "adam": {"label": "Adam", "color": "#0b3c5d"},
    "msa": {"label": "MSA", "color": "#8c5fa8"},
    "emsa": {"label": "extended MSA", "color": "#c1440e"},
}


@style()
def curves(models: Mapping[str, Model], results: Results) -> study.Figure:
    """Draw the training loss by iterations and by passes, and test accuracy; a row per scheme."""
    from matplotlib.ticker import LogLocator, NullFormatter

    schemes = list(dict.fromkeys(model.scheme for model in models.values()))
    figure, axes = grid(len(schemes), 3, PAGE, 0.6 + 1.9 * len(schemes), sharex="col")
    for row, scheme in zip(axes, schemes, strict=True):
        for name, model in models.items():
            if model.scheme == scheme:
                _curve(row, results, name, LOOKS[model.method])
        row[0].set_ylabel(f"{scheme}\nTraining loss")
        row[2].set_ylabel("Test accuracy")
        for axis in row[:2]:
            axis.set_yscale("log")
            axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
                formatter("{x:g}")
        for axis in row:
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(NullFormatter())
    titles = ("Iterations", "Passes through the layers", "Passes through the layers")
    for axis, title in zip(axes[-1], titles, strict=True):
        axis.set_xlabel(title)
    found: dict[str, Any] = {}
    for axis in axes[:, 0]:
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(text, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=len(found))
    return figure


def _curve(row: Sequence[Axes], results: Results, name: str, look: Mapping[str, Any]) -> None:
    """Plot geometric mean and range of the losses, mean and range of the accuracy, over seeds."""
    every = zip(results.histories[name], results.records[name], courses(results, name), strict=True)
    runs = [(history, course) for history, record, course in every if not record["diverged"]]
    if not runs:
        return
    loss = np.array([course.loss for _, course in runs])
    passed = np.mean([course.passed for _, course in runs], axis=0)
    accuracy = np.array([history["accuracy"].values for history, _ in runs])
    at = runs[0][0]["evaluation"].values.astype(int)
    for axis, x, values in ((row[0], np.arange(loss.shape[1]), loss), (row[1], passed, loss),
                            (row[2], passed[at], accuracy)):  # fmt: skip
        middle = values.mean(0) if axis is row[2] else np.exp(np.log(values).mean(0))
        axis.plot(x[1:], middle[1:], linewidth=1.0, **look)
        if len(values) > 1:
            low, high = values.min(0)[1:], values.max(0)[1:]
            axis.fill_between(x[1:], low, high, color=look["color"], alpha=0.15, linewidth=0)


@style()
def panels(
    results: Results, names: Sequence[str], draw: Callable[[Axes, Record], None]
) -> study.Figure:
    """Draw seed 0 of each network: a row for each scheme, a column for each method."""
    schemes = list(dict.fromkeys(MODELS[name].scheme for name in names))
    methods = list(dict.fromkeys(MODELS[name].method for name in names))
    side = PAGE / len(methods)
    figure, axes = grid(len(schemes), len(methods), PAGE, 0.3 + side * len(schemes))
    for axis in axes.flat:
        axis.set_axis_off()
    for name in names:
        model, record = MODELS[name], results.records[name][0]
        axis = axes[schemes.index(model.scheme), methods.index(model.method)]
        axis.set_axis_on()
        draw(axis, record)
        method = LOOKS[model.method]["label"]
        text = "classic" if model.method == "classic" else f"{model.scheme}, {method}"
        axis.set_title(f"{text}\n{100 * record['accuracy']:.1f} %", fontsize=7)
    return figure


def region(axis: Axes, record: Record) -> None:
    """Plot the probability of the second class on a square, and training points."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("classes", ["#8fb0c6", "#ffffff", "#e6a98d"])
    square: dict[str, Any] = {"origin": "lower", "extent": (-1.1, 1.1, -1.1, 1.1)}
    found = np.transpose(record["region"])
    axis.imshow(found, vmin=0, vmax=1, cmap=shades, **square)
    axis.contour(found, [0.5], colors="0.1", linewidths=0.8, **square)
    colours = [COLOURS[k] for k in record["classes"]]
    x, y = np.transpose(record["points"])
    axis.scatter(x, y, c=colours, s=1.5, linewidths=0)
    axis.set(xticks=[], yticks=[])


def trajectories(axis: Axes, record: Record) -> None:
    """Plot paths of training points to the classifier, in a plane across its boundary."""
    states = np.array(record["states"])
    colours = [COLOURS[k] for k in record["classes"][: states.shape[1]]]
    for path, colour in zip(states.swapaxes(0, 1), colours, strict=True):
        axis.plot(*path.T, color=colour, linewidth=0.3, alpha=0.35)
    x, y = states[-1].T
    axis.scatter(x, y, c=colours, s=2.5, linewidths=0, zorder=3)
    axis.axvline(0.0, color="0.1", linewidth=0.8)
    axis.tick_params(labelsize=5)


def figures(flags: PontryaginResnet, results: Results) -> dict[str, study.Figure]:
    """Draw curves, decision regions and trajectories of each data set."""
    found: dict[str, study.Figure] = {}
    for data, names in by_data(results).items():
        models = {name: MODELS[name] for name in names}
        found[f"{data}_curves"] = curves(models, results)
        shown = [name for name in models if "region" in results.records[name][0]]
        if shown:
            found[f"{data}_regions"] = panels(results, shown, region)
            figure = panels(results, shown, trajectories)
            figure.supxlabel("Distance from the boundary of the classifier", fontsize=8)
            found[f"{data}_trajectories"] = figure
    return found


# Findings
# --------


def findings(flags: PontryaginResnet, _: None, results: Results) -> list[Finding]:
    """Return claims of the report and of the papers on which it builds, with their verdicts."""
    known, of = list(by_data(results)), results.values
    ratios = partial(claim, compare=partial(networks.paired, ratio=True))

    def pairs(compare: Callable[..., Pair], more: str, less: str) -> dict[str, Pair]:
        return {data: compare(f"{data} {more}", f"{data} {less}") for data in known}

    def both(numbers: Callable[[str], FloatArray]) -> Callable[..., Pair]:
        return lambda more, less: (numbers(more), numbers(less))

    scores = both(lambda name: 100 * of(name, "accuracy"))
    rises_of = both(lambda name: of(name, "rises"))
    at_first = both(lambda name: after_iterations(results, name, flags.maximisations))
    equal_work = partial(at_equal_work, results)
    errors = {
        scheme: max(of(f"{data} {scheme} adam", "mismatch").max() for data in known)
        for scheme in STAGES
    }
    gaps, accuracies = [], []
    for data in known:
        alike = f"{data} classic", f"{data} euler adam"
        accuracies.append(np.abs(np.subtract(*(of(name, "accuracy") for name in alike))).max())
        runs = zip(*(courses(results, name) for name in alike), strict=True)
        gaps.append(max(np.abs(one.loss / other.loss - 1).max() for one, other in runs))
    section = "[GPTOC] section 5.2"
    found = [
        Finding.decided(
            "gradients by costates are those of back-propagation, to rounding", section,
            "largest error over the largest gradient, double precision: "
            + ", ".join(f"{scheme} {error:.1e}" for scheme, error in errors.items())
            .replace("0.0e+00", "none"),
            [error <= ROUNDING for error in errors.values()],
        ),
        Finding.decided(
            "the network trained by the maximum principle with Euler's scheme and the classic one "
            "behave alike, both by Adam: test accuracies within a point of each other in every run",
            section,
            "; ".join(f"{data}: largest difference of accuracies {100 * a:.2g} points, of losses "
                      f"along the training {100 * g:.2g} %"
                      for data, a, g in zip(known, accuracies, gaps, strict=True)),
            [a <= SIMILAR for a in accuracies],
        ),
    ]  # fmt: skip
    for scheme in ("heun", "rk4"):
        better = f"{scheme} has better results than Euler: test accuracy (points)"
        found += [
            *(claim(f"{better}, {words}", section,
                    pairs(scores, f"{scheme} {method}", f"euler {method}"))
              for method, words in (("adam", "Adam"), ("gradient", "gradient descent"))),
            ratios(f"{scheme} has a lower training loss than Euler after equal work (loss of Euler "
                   "over its), Adam", section, pairs(equal_work, "euler adam", f"{scheme} adam")),
            claim(f"{scheme} makes training more stable than Euler: gradient descent raises the "
                  "loss in fewer iterations (share)", "[GPTOC] section 6",
                  pairs(rises_of, "euler gradient", f"{scheme} gradient")),
        ]  # fmt: skip
    for scheme in STAGES:
        found += [
            ratios("extended MSA learns faster than Adam at first, by iterations, "
                   f"{scheme}: loss of Adam after {flags.maximisations} over its",
                   "[LCTE2018] abstract", pairs(at_first, f"{scheme} adam", f"{scheme} emsa")),
            *(ratios(f"extended MSA needs fewer passes than {title}, {scheme}: loss of {title} "
                     "over its after equal work", "question",
                     pairs(equal_work, f"{scheme} {method}", f"{scheme} emsa"))
              for method, title in (("adam", "Adam"), ("gradient", "gradient descent"))),
        ]  # fmt: skip
    own = [f"{data} {scheme} emsa" for data in known for scheme in STAGES]
    plain = {data: [f"{data} {scheme} msa" for scheme in STAGES] for data in known}
    rises = {data: [of(name, "rises") for name in names] for data, names in plain.items()}
    failed = sum(of(name, "failed").sum() for name in own)
    found += [
        Finding.decided(
            "extended MSA never raises the loss of the full batch, and always finds a rho that "
            "lowers it", "[LCTE2018], by doubling rho",
            "largest share of iterations with a rise "
            f"{max(of(name, 'rises').max() for name in own):g}; {failed:.0f} iterations found "
            "no lower loss for any rho",
            [not (of(name, "rises").any() or of(name, "failed").any()) for name in own],
        ),
        Finding.decided(
            "the basic MSA need not converge: its loss rises in some iterations",
            "[LCTE2018] abstract",
            "share of iterations with a rise, by data set: "
            + ", ".join(f"{data} {np.mean(shares):.2f}" for data, shares in rises.items()),
            any(np.any(shares) for shares in rises.values()),
        ),
    ]  # fmt: skip
    return found


EXPERIMENT = networks.Experiment(
    name="pontryagin_resnet", models=models, load=lambda _: None, plan=plan, measure=measure,
    numbers=SCALARS, text=report, findings=findings, figures=figures,
)  # fmt: skip


def main() -> None:
    flags = study.command_line(PontryaginResnet, __doc__)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PLAIN)  # the tables have a column of it
        networks.run(EXPERIMENT, flags)


if __name__ == "__main__":
    script(main)
