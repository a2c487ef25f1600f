"""Data, networks, trainings, measurements, tables and figures of the study `pontryagin_resnet`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from wflow import nets, study
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

FloatArray = NDArray[np.float64]
DataName = Literal["linear", "donut", "cross", "squares", "spiral"]

STAGES = {"euler": 1, "heun": 2, "rk4": 4}  # evaluations of f in a step
CLASSIC = "classic"
METHODS = {"gradient": "gradient", "adam": "Adam", "msa": "MSA", "emsa": "extended MSA"}
SIDE, SHOWN = 60, 150  # points of a decision region in each direction; trajectories that are drawn
COLOURS = ("#0b3c5d", "#c1440e")  # of the two classes
LOOKS = {CLASSIC: "0.1", "gradient": "#b8860b", "adam": "#0b3c5d", "msa": "#8c5fa8",
         "emsa": "#c1440e"}  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    samples: int = 1000
    tests: int = 5000
    layers: int = 15
    width: int = 3
    seeds: int = 5
    iterations: int = 4000  # of gradient descent and Adam
    maximisations: int = 200  # iterations of the two methods of successive approximations
    rate: float = 0.5  # of gradient descent
    adam: float = 0.01  # rate of Adam
    rho: float = 0.1
    inner: int = 10  # L-BFGS steps of a maximisation


PRESETS = {
    "paper": Setup(),
    "cpu": Setup(samples=500, tests=2000, layers=8, iterations=500, maximisations=25),
    "smoke": Setup(
        samples=40, tests=60, layers=3, seeds=1, iterations=8, maximisations=2, inner=3
    ),
}  # fmt: skip


def models(chosen: Sequence[str]) -> list[str]:
    """Names of all networks: data, scheme and method, the classic one by itself."""
    return [
        f"{data} {model}"
        for data in chosen
        for model in (CLASSIC, *(f"{scheme} {method}" for scheme in STAGES for method in METHODS))
    ]


def split(name: str) -> tuple[str, str, str]:
    """Data, scheme and method of a network."""
    data, *rest = name.split()
    return (data, "euler", CLASSIC) if rest == [CLASSIC] else (data, rest[0], rest[1])


# Data
# ----
# Red points are the second class. The report has pictures and no numbers: the halves of a square by
# a line, a ring in a square, a cross in a square. Squares and spiral are those of Benning et al.
# Rings, crosses and squares hold half of the points. Densities of `nets.data` have no classes.


def _linear(x: FloatArray, generator: np.random.Generator) -> tuple[FloatArray, NDArray[Any]]:
    return x, x[:, 0] + x[:, 1] / 2 > 0.1


def _donut(x: FloatArray, generator: np.random.Generator) -> tuple[FloatArray, NDArray[Any]]:
    radius, inner = np.hypot(*x.T), 0.4
    return x, (radius > inner) & (radius < math.sqrt(inner**2 + 2 / math.pi))


def _cross(x: FloatArray, generator: np.random.Generator) -> tuple[FloatArray, NDArray[Any]]:
    return x, np.abs(x).min(axis=1) < 1 - math.sqrt(0.5)


def _squares(x: FloatArray, generator: np.random.Generator) -> tuple[FloatArray, NDArray[Any]]:
    return x, x.prod(axis=1) > 0


def _spiral(x: FloatArray, generator: np.random.Generator) -> tuple[FloatArray, NDArray[Any]]:
    along, label = np.sqrt(0.5 + 0.5 * x[:, 0]), x[:, 1] > 0  # as dense outside as inside
    angle = 1.25 * 2 * math.pi * along + math.pi * label
    arms = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return arms + 0.03 * generator.standard_normal(x.shape), label


DATA: dict[str, Callable[..., tuple[FloatArray, NDArray[Any]]]] = {
    "linear": _linear, "donut": _donut, "cross": _cross, "squares": _squares, "spiral": _spiral,
}  # fmt: skip


def points(name: str, count: int, *seed: int) -> tuple[Tensor, Tensor]:
    """Points (count, 2) of a data set in [-1, 1]^2, float32, and their classes."""
    import torch

    generator = np.random.default_rng([16, *seed])
    x, label = DATA[name](generator.uniform(-1, 1, (count, 2)), generator)
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(label.astype(np.int64))


# Networks and trainings
# ----------------------


def network(name: str, setup: Setup, seed: int) -> nets.ControlledResNet:
    """A network of steps of length 1, as the classic one has; equal weights for equal seeds."""
    import torch

    _, scheme, _ = split(name)
    torch.manual_seed(seed)
    return nets.ControlledResNet(
        2, layers=setup.layers, t_final=setup.layers, scheme=scheme, width=setup.width
    )


def plan(name: str, setup: Setup, flags: Any, seed: int) -> Run:
    """The training of one network with one seed, on the whole data set in every iteration."""
    from torch.nn import functional

    from wflow.nets import control, train

    data, _, method = split(name)
    x, y = points(data, setup.samples, seed, 0)
    held, labels = points(data, setup.tests, seed, 1)
    objective = train.objective(functional.cross_entropy, 1.0)
    if method in ("gradient", "adam"):
        objective = control.by_costates(objective)
    optimizer: Any = "sgd" if method == "gradient" else "adam"
    steps, rate = setup.iterations, setup.rate if method == "gradient" else setup.adam
    if method in ("msa", "emsa"):
        rho = setup.rho if method == "emsa" else 0.0
        optimizer = control.MSA(rho=rho, iterations=setup.inner)
        steps = setup.maximisations
    config = train.TrainConfig(
        steps=steps,
        batch=setup.samples,
        schedule=train.Constant(rate),
        optimizer=optimizer,
        evaluate_every=max(1, steps // 25),
        checkpoint_every=max(1, steps // 2),
        seed=seed,
        device=flags.device,
    )

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        """Loss and accuracy of points that were not trained on."""
        output = net(held.to(next(net.parameters()).device)).output.cpu()
        return {
            "test_loss": float(functional.cross_entropy(output, labels)),
            "accuracy": float((output.argmax(1) == labels).float().mean()),
        }

    return Run(network(name, setup, seed), objective, lambda step: (x, y), config, evaluate)


# Measurements
# ------------

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


def measured(name: str, setup: Setup, flags: Any, training: Trained, seed: int) -> Record:
    """All quantities of a trained network, kept beside its checkpoint."""
    setting = asdict(replace(setup, seeds=0))
    folder = networks.folder_of(flags.out, name, seed)
    return networks.cached_record(
        folder, setting, training, lambda: examine(name, setup, flags, training, seed)
    )


def passes(name: str, history: Any) -> tuple[FloatArray, FloatArray]:
    """Evaluations and vector-Jacobian products of f, per layer, in each iteration.

    The sweep of costates evaluates each layer twice; see `nets.control.MSA` for the others.
    """
    _, scheme, method = split(name)
    if method in ("msa", "emsa"):
        found = [history[key].values.astype(float) for key in ("forward", "backward")]
    else:
        ones = np.ones(history.sizes["step"])
        found = [ones if method == CLASSIC else 2 * ones, ones]
    return STAGES[scheme] * found[0], STAGES[scheme] * found[1]


def losses(record: Record, history: Any) -> FloatArray:
    """Training loss before each iteration, and after the last."""
    return np.append(history["loss"].values.astype(float), record["loss"])


def examine(name: str, setup: Setup, flags: Any, training: Trained, seed: int) -> Record:
    """Losses, passes, errors of the gradients, and for seed 0 what figures show."""
    import torch
    from torch.nn import functional

    history, net, data = training.history, training.model, split(name)[0]
    record: Record = dict.fromkeys(SCALARS, math.nan)
    forward, backward = passes(name, history)
    record |= {
        "iterations": history.sizes["step"],
        "forward": float(forward.mean()),
        "backward": float(backward.mean()),
        "seconds": float(history["seconds"].sum()),
        "milliseconds": 1e3 * float(np.median(history["seconds"].values)),
        "region": None,
        "states": None,
    }
    if training.diverged:
        return record
    assert isinstance(net, nets.ControlledResNet)
    x, y = (each.to(training.device) for each in points(data, setup.samples, seed, 0))
    with torch.no_grad():
        record["loss"] = float(functional.cross_entropy(net(x).output, y))
    record |= {
        "accuracy": float(history["accuracy"][-1]),
        "test_loss": float(history["test_loss"][-1]),
        "mismatch": mismatch([network(name, setup, seed), net], x, y),
        "rises": float((np.diff(losses(record, history)) > 0).mean()),
    }
    if "failed" in history:
        record["failed"] = float(history["failed"].sum())
    if seed == 0:
        record["kilobytes"] = kilobytes(name, setup, flags, training.device)
        record |= pictured(net, x)
    return record


def mismatch(found: Sequence[torch.nn.Module], x: Tensor, y: Tensor) -> float:
    """Largest error of costate gradients over the largest of autograd, in double precision."""
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


def kilobytes(name: str, setup: Setup, flags: Any, device: torch.device) -> float:
    """Peak of the tensors of an iteration, the optimiser's and the gradients among them."""
    run = plan(name, setup, flags, 0)
    optimizer = run.config.optimizer
    if isinstance(optimizer, nets.control.MSA):
        optimizer = replace(optimizer, doublings=0)  # others repeat the same
    config = replace(run.config, steps=1, optimizer=optimizer)

    def call() -> None:
        nets.train.train(run.model, run.objective, run.batches, config)

    return 1e3 * networks.memory(call, device)


def pictured(net: nets.ControlledResNet, x: Tensor) -> Record:
    """Probabilities of the second class on a square, and states along the layers."""
    import torch

    line = torch.linspace(-1.1, 1.1, SIDE, device=x.device)
    square = torch.cartesian_prod(line, line)
    with torch.no_grad():
        region = net(square).output.softmax(1)[:, 1].view(SIDE, SIDE)
    # In the plane of the classifier's direction and of what varies most across it.
    states = nets.control.states(net, x[:SHOWN]).double()
    weight, bias = net.head.weight.detach().double(), net.head.bias.detach().double()
    normal, offset = weight[1] - weight[0], bias[1] - bias[0]
    size = torch.linalg.vector_norm(normal)
    along = (states @ normal + offset) / size
    rest = states - (states @ normal / size)[..., None] * normal / size
    across = torch.linalg.svd(rest[-1] - rest[-1].mean(0)).Vh[0]
    plane = torch.stack([along, rest @ across], dim=-1)
    return {
        "region": np.round(region.cpu().numpy().astype(float), 3).tolist(),
        "states": np.round(plane.cpu().numpy(), 3).tolist(),
    }


# Comparisons
# -----------


def work(name: str, history: Any) -> FloatArray:
    """Passes through the layers, forward and backward, before each iteration and after the last."""
    forward, backward = passes(name, history)
    return np.append(0.0, np.cumsum(forward + backward))


def at_equal_work(results: Results, name: str, other: str) -> tuple[FloatArray, FloatArray]:
    """Training losses of two networks after the passes that the cheaper training had, by seed."""
    pairs = []
    for seed in range(len(results.records[name])):
        found = []
        for each in (name, other):
            history = results.histories[each][seed]
            found.append((work(each, history), losses(results.records[each][seed], history)))
        budget = min(passed[-1] for passed, _ in found)
        pairs.append([_after(passed, loss, budget) for passed, loss in found])
    one, two = np.transpose(pairs)
    return one, two


def _after(passed: FloatArray, loss: FloatArray, budget: float) -> float:
    """The loss after the last iteration that the budget pays for."""
    return float(loss[np.searchsorted(passed, budget, side="right") - 1])


def after_iterations(results: Results, name: str, count: int) -> FloatArray:
    """Training losses after so many iterations, or after the last, by seed."""
    return np.array([
        losses(record, history)[min(count, history.sizes["step"])]
        for record, history in zip(results.records[name], results.histories[name], strict=True)
    ])  # fmt: skip


# Tables and figures
# ------------------


def tabulated(results: Results) -> Any:
    """All numbers as a Dataset."""
    return networks.dataset(results, SCALARS, {}, {})


def data_of(results: Results) -> list[str]:
    """Data sets of the networks that are there, in order."""
    return list(dict.fromkeys(split(name)[0] for name in results.records))


def report(flags: Any, setup: Setup, results: Results) -> str:
    """What was done, and a table for each data set."""
    count = sum(p.numel() for p in network("linear classic", setup, 0).parameters())
    source = f"drawn, {', '.join(data_of(results))}"
    text = (
        f"{networks.caption(flags, setup.seeds, results, source)} {setup.samples} points to train "
        f"on, all in every iteration, and {setup.tests:,} to test; {setup.layers} steps of length "
        f"1 and width {setup.width}, tanh, {count} parameters. Rates: gradient descent "
        f"{setup.rate:g}, Adam {setup.adam:g}; rho = {setup.rho:g} and {setup.inner} L-BFGS steps. "
        "Forward and backward: evaluations and vector-Jacobian products of f per layer in an "
        "iteration, with those of L-BFGS and of all trials of rho. Loss at equal work: the "
        "training loss after as many of them as the training with the fewest has in the table. "
        "Memory: peak of the tensors of one iteration, seed 0."
    )
    return "\n\n".join([text, *(_table(results, data) for data in data_of(results))])


def _table(results: Results, data: str) -> str:
    """The table of one data set."""
    records = {k: v for k, v in results.records.items() if split(k)[0] == data}
    histories = {name: results.histories[name] for name in records}
    chosen = Results(records, histories)
    budget = min(work(name, each)[-1] for name, found in histories.items() for each in found)

    def column(key: str, style: str, scale: float = 1.0) -> list[str]:
        return networks.column(chosen, key, lambda value: f"{scale * value:{style}}")

    table = {
        "network": [name.partition(" ")[2] for name in records],
        "training loss": column("loss", ".3g"),
        "test accuracy, %": column("accuracy", ".1f", 100),
        f"loss at equal work ({budget:,.0f} passes)": [
            networks.mean_and_spread(
                [_after(work(name, history), losses(record, history), budget)
                 for record, history in zip(records[name], histories[name], strict=True)],
                "{:.3g}".format)
            for name in records
        ],
        "loss rises, % of iterations": column("rises", ".1f", 100),
        "iterations": [f"{records[name][0]['iterations']:,}" for name in records],
        "forward": column("forward", ".3g"),
        "backward": column("backward", ".3g"),
        "ms per iteration": column("milliseconds", ".3g"),
        "peak memory, kB": [f"{records[name][0]['kilobytes']:,.0f}" for name in records],
        "gradient error": [f"{max(r['mismatch'] for r in records[name]):.1e}" for name in records],
    }  # fmt: skip
    return f"{data.capitalize()}:\n\n{study.markdown_table(table)}"


def figures(setup: Setup, results: Results) -> dict[str, Figure]:
    """Curves, decision regions and trajectories of each data set."""
    drawn = {}
    for data in data_of(results):
        names = [name for name in results.records if split(name)[0] == data]
        drawn[f"{data}_curves"] = curves(results, names)
        shown = [name for name in names if results.records[name][0]["region"] is not None]
        if shown:
            drawn[f"{data}_regions"] = regions(setup, results, shown)
            drawn[f"{data}_trajectories"] = trajectories(setup, results, shown)
    return drawn


def curves(results: Results, names: Sequence[str]) -> Figure:
    """Training loss by iterations and by passes, test accuracy by passes; a row for each scheme."""
    from matplotlib.ticker import LogLocator, NullFormatter

    from wflow.plots.figure import PAGE, grid, style

    schemes = list(dict.fromkeys(split(name)[1] for name in names))
    with style():
        figure, axes = grid(len(schemes), 3, PAGE, 0.6 + 1.9 * len(schemes), sharex="col")
        for row, scheme in zip(axes, schemes, strict=True):
            for name in names:
                if split(name)[1] == scheme:
                    _curve(row, results, name)
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


def _curve(row: Sequence[Axes], results: Results, name: str) -> None:
    """Geometric mean and range of the losses, mean and range of the accuracy, over the seeds."""
    method = split(name)[2]
    look: dict[str, Any] = {
        "color": LOOKS[method],
        "label": METHODS.get(method, "classic ResNet"),
        "linewidth": 1.0,
    }
    if method == CLASSIC:
        look |= {"linestyle": "--", "zorder": 3}
    runs = [
        (history, losses(record, history), work(name, history))
        for history, record in zip(results.histories[name], results.records[name], strict=True)
        if not record["diverged"]
    ]
    if not runs:
        return
    loss = np.array([found for _, found, _ in runs])
    passed = np.mean([found for _, _, found in runs], axis=0)
    steps = np.arange(loss.shape[1])
    accuracy = np.array([history["accuracy"].values for history, *_ in runs])
    at = runs[0][0]["evaluation"].values.astype(int)
    for axis, x, values in ((row[0], steps, loss), (row[1], passed, loss),
                            (row[2], passed[at], accuracy)):  # fmt: skip
        middle = values.mean(0) if axis is row[2] else np.exp(np.log(values).mean(0))
        axis.plot(x[1:], middle[1:], **look)
        if len(values) > 1:
            low, high = values.min(0)[1:], values.max(0)[1:]
            axis.fill_between(x[1:], low, high, color=LOOKS[method], alpha=0.15, linewidth=0)


def regions(setup: Setup, results: Results, names: Sequence[str]) -> Figure:
    """Probability of the second class on a square with the training points, seed 0."""
    from matplotlib.colors import LinearSegmentedColormap

    from wflow.plots.figure import PAGE, grid, style

    shades = LinearSegmentedColormap.from_list("classes", ["#8fb0c6", "#ffffff", "#e6a98d"])
    data = split(names[0])[0]
    x, y = (each.numpy() for each in points(data, setup.samples, 0, 0))
    few = slice(None, 300)
    with style():
        columns, place = _places(names)
        rows = len({split(name)[1] for name in names})
        figure, axes = grid(rows, columns, PAGE, 0.3 + PAGE / columns * rows)
        for axis in axes.flat:
            axis.set_axis_off()
        for name in names:
            axis, record = axes[place(name)], results.records[name][0]
            axis.set_axis_on()
            axis.imshow(np.transpose(record["region"]), origin="lower", vmin=0, vmax=1,
                        extent=(-1.1, 1.1, -1.1, 1.1), cmap=shades)  # fmt: skip
            axis.contour(np.transpose(record["region"]), [0.5], colors="0.1", linewidths=0.8,
                         origin="lower", extent=(-1.1, 1.1, -1.1, 1.1))  # fmt: skip
            axis.scatter(*x[few].T, c=[COLOURS[k] for k in y[few]], s=1.5, linewidths=0)
            axis.set_xticks([])
            axis.set_yticks([])
            _title(axis, name, record)
    return figure


def _places(names: Sequence[str]) -> tuple[int, Callable[[str], tuple[int, int]]]:
    """Number of columns, and row and column of a network: schemes and methods."""
    schemes = list(dict.fromkeys(split(name)[1] for name in names))
    methods = list(dict.fromkeys(split(name)[2] for name in names))
    return len(methods), lambda name: (
        schemes.index(split(name)[1]), methods.index(split(name)[2]),
    )  # fmt: skip


def _title(axis: Axes, name: str, record: Mapping[str, Any]) -> None:
    _, scheme, method = split(name)
    text = CLASSIC if method == CLASSIC else f"{scheme}, {METHODS[method]}"
    axis.set_title(f"{text}\n{100 * record['accuracy']:.1f} %", fontsize=7)


def trajectories(setup: Setup, results: Results, names: Sequence[str]) -> Figure:
    """Paths of training points to the classifier, seed 0, in a plane across its boundary."""
    from wflow.plots.figure import PAGE, grid, style

    data = split(names[0])[0]
    y = points(data, setup.samples, 0, 0)[1].numpy()[:SHOWN]
    with style():
        columns, place = _places(names)
        rows = len({split(name)[1] for name in names})
        figure, axes = grid(rows, columns, PAGE, 0.3 + PAGE / columns * rows)
        for axis in axes.flat:
            axis.set_axis_off()
        for name in names:
            axis, record = axes[place(name)], results.records[name][0]
            axis.set_axis_on()
            states = np.array(record["states"])
            for k in range(states.shape[1]):
                axis.plot(*states[:, k].T, color=COLOURS[y[k]], linewidth=0.3, alpha=0.35)
            axis.scatter(*states[-1].T, c=[COLOURS[k] for k in y], s=2.5, linewidths=0, zorder=3)
            axis.axvline(0.0, color="0.1", linewidth=0.8)
            axis.tick_params(labelsize=5)
            _title(axis, name, record)
        figure.supxlabel("Distance from the boundary of the classifier", fontsize=8)
    return figure
