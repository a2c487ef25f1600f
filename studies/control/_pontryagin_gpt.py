"""Networks, trainings, measurements, tables and figures of the study `pontryagin_gpt`.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from _small_gpts import SIZES, Scale, gpt, window_set
from numpy.typing import NDArray

from wflow import nets, study
from wflow.study import networks
from wflow.study.networks import Record, Results, Run, Trained
from wflow.study.texts import EVALUATION, loss_on

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

FloatArray = NDArray[np.float64]
NUDGE = 1e-15  # relative change of the weights of the training to compare with
FINER = (4, 8, 16)  # times the steps, for the order of the Hamiltonian's variation
VARIANTS = {
    "back_propagation": "back-propagation",
    "checkpoint": "checkpointing",
    "costates": "costates",
    "sqrt": "costates, sqrt",
}


@dataclass(frozen=True)
class Setup:
    """Settings of a preset, which flags may change."""

    text: str = "shakespeare"
    size: Scale = SIZES["S"]
    blocks: int = 4
    steps: int = 5
    lam: float = 2.0  # published, as the study shakespeare_gpt weighs it: 1 without the 1/2
    dropout: float = 0.2
    rate: float = 0.01
    rho: float = 0.1
    iterations: int = 19_600  # 20 epochs of size S
    maximised: int = 1000
    rows: int = 64
    every: int = 100
    tested: int = 1_000_000
    compared: int = 50
    seeds: int = 5


PRESETS = {
    "paper": Setup(),
    # An epoch. Iterations of MSA take some thirty times as long as those of Adam.
    "cpu": Setup(iterations=1000, maximised=120, rows=32, every=20, tested=20_001, seeds=3),
    "smoke": Setup(
        text="embedded", size=Scale(4, 16, 8, 1, 1, 10), blocks=2, steps=2, iterations=8,
        maximised=2, rows=8, every=2, tested=401, compared=3, seeds=1,
    ),
}  # fmt: skip

Body = Literal["S", "continuous", "deep"]


class Model(NamedTuple):
    """A network and how it is trained."""

    body: Body
    method: Literal["back-propagation", "costates", "MSA"]
    cost: bool = False  # transport cost
    fixed: bool = False  # one batch for all steps, without dropout


MODELS = {
    "S": Model("S", "back-propagation"),
    "S costates": Model("S", "costates"),
    "S MSA": Model("S", "MSA"),
    "S MSA fixed": Model("S", "MSA", fixed=True),
    "continuous": Model("continuous", "back-propagation"),
    "continuous costates": Model("continuous", "costates"),
    "continuous cost": Model("continuous", "costates", cost=True),
    "continuous MSA": Model("continuous", "MSA"),
    "continuous MSA cost": Model("continuous", "MSA", cost=True),
    "deep": Model("deep", "back-propagation"),
    "deep costates": Model("deep", "costates"),
    "deep cost": Model("deep", "costates", cost=True),
    "deep MSA": Model("deep", "MSA"),
}


def load(setup: Setup, folder: str | None) -> nets.data.Text:
    """The text in characters; its test part as long as the preset has it."""
    if setup.text == "embedded":
        text = nets.data.embedded_text()
    else:
        text = nets.data.shakespeare(tokens="characters", folder=folder)
    return replace(text, test=text.test[: setup.tested])


# Networks and trainings
# ----------------------


def network(
    model: Model, setup: Setup, vocabulary: int, seed: int, *, checkpointing: bool | None = None
) -> nets.GPT:
    """A network with weights drawn from its seed.

    `deep` has blocks of one step each, which make a discrete GPT with transport cost. Size S is the
    discrete GPT itself, or one step of the continuous one, the same function, where `checkpointing`
    is given.
    """
    size = setup.size._replace(depth=setup.blocks if model.body == "deep" else 1)
    net = gpt(size, 0.0 if model.fixed else setup.dropout, vocabulary, seed)
    options: dict[str, Any] = {"velocity": "residual", "checkpointing": bool(checkpointing)}
    if model.body == "deep":
        net.body = nets.NodeTransformer(net.body, **options)
    elif model.body == "continuous":
        net.body = nets.ContinuousTransformer(net.body, steps=setup.steps, **options)
    elif checkpointing is not None:
        net.body = nets.ContinuousTransformer(net.body, **options)
    return net


def weight(model: Model, setup: Setup) -> float:
    """Weight of the transport cost in the loss."""
    return setup.lam if model.cost else 0.0


def objective(model: Model, setup: Setup) -> Any:
    """Mean cross-entropy and transport cost, with gradients by costates where it is so trained."""
    plain = nets.train.objective(nets.train.cross_entropy, weight(model, setup))
    return nets.control.by_costates(plain) if model.method == "costates" else plain


@dataclass(frozen=True)
class OneBatch:
    """The same windows at every step, spread evenly over the text."""

    inputs: Tensor
    targets: Tensor

    def __call__(self, step: int, /) -> tuple[Tensor, ...]:
        return self.inputs, self.targets


def batches(model: Model, setup: Setup, text: nets.data.Text) -> Any:
    """Windows in random order, or one batch of them."""
    found = window_set(text, setup.size.context)
    if not model.fixed:
        return found
    inputs, targets = found.tensors
    places = np.linspace(0, len(inputs) - 1, min(setup.rows, len(inputs))).astype(int)
    return OneBatch(inputs[places], targets[places])


def plan(model: Model, setup: Setup, text: nets.data.Text, flags: Any, seed: int) -> Run:
    """The training of one network with one seed: Adam at a constant rate, or MSA."""
    given = batches(model, setup, text)
    of_msa = model.method == "MSA"
    config = nets.train.TrainConfig(
        steps=setup.maximised if of_msa else setup.iterations,
        batch=len(given.inputs) if model.fixed else setup.size.batch,
        schedule=nets.train.Constant(setup.rate),
        optimizer=nets.control.MSA(rho=setup.rho) if of_msa else "adam",
        evaluate_every=setup.every,
        checkpoint_every=setup.every,
        seed=seed,
        device=flags.device,
        precision="float32" if of_msa else flags.precision,
        compile=flags.compile and not of_msa,
    )
    device = nets.train.device(flags.device)

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        return {"test_loss": loss_on(net, text.test, setup.size.context, device)}

    net = network(model, setup, text.vocabulary, seed)
    return Run(net, objective(model, setup), given, config, evaluate)


# Measurements
# ------------

SCALARS = {
    "test": ("test loss per token after the last iteration", "1"),
    "train": ("training loss, mean of the last 20 iterations", "1"),
    "straightness": ("arc length over chord of hidden states, first test windows", "1"),
    "speed": ("variation of their speed", "1"),
    "transport": ("transport cost, likewise", "1"),
    "range_before": ("range of the Hamiltonian along depth before the training", "1"),
    "range": ("the same after it", "1"),
    "variation_before": ("this range before the training over the mean of |p| |f| + L", "1"),
    "variation": ("the same after it", "1"),
    "order": ("order in the step at which the range falls", "1"),
    "gradients": ("largest relative difference of gradients by costates, in double", "1"),
    "apart": ("largest relative difference of losses by costates, in double", "1"),
    "nudged": (f"the same of back-propagation from weights changed by {NUDGE:g}", "1"),
    "failed": ("steps in which no rho was large enough", "1"),
    "doubled": ("share of steps in which rho was doubled", "1"),
    "unconverged": ("share of maximisations stopped at their last iteration", "1"),
    "rose": ("steps whose objective was higher after them", "1"),
    "loss_rises": ("share of steps after which the next batch had a higher loss", "1"),
    "test_rises": ("share of evaluations at which the test loss was higher than before", "1"),
    "seconds": ("time of all iterations", "s"),
    "milliseconds": ("median time of an iteration", "ms"),
    "iterations": ("iterations", "1"),
} | {f"memory_{key}": (f"memory of an iteration by {name}", "MB") for key, name in VARIANTS.items()}
ALONG = {
    "hamiltonian_before": ("hamiltonian_before", "state", "Hamiltonian before the training"),
    "hamiltonian": ("hamiltonian", "state", "Hamiltonian after the training"),
}


def examine(
    name: str, training: Trained, setup: Setup, text: nets.data.Text, out: Path, seed: int
) -> Record:
    """All quantities of a trained network, kept beside its checkpoint."""
    setting = [asdict(setup) | {"seeds": None}, text.source]
    folder = networks.folder_of(out, name, seed)
    model = MODELS[name]
    return networks.cached_record(
        folder, setting, training, lambda: measured(model, training, setup, text, seed)
    )


def measured(
    model: Model, training: Trained, setup: Setup, text: nets.data.Text, seed: int
) -> Record:
    """Losses, Hamiltonian, trajectories, and what is asked of the method."""
    net, history = training.model, training.history
    states = max(setup.steps, setup.blocks) + 1
    record: Record = dict.fromkeys(SCALARS, math.nan) | dict.fromkeys(ALONG, [math.nan] * states)
    record |= {
        "seconds": float(history["seconds"].sum()),
        "milliseconds": 1e3 * float(np.median(history["seconds"].values)),
        "iterations": history.sizes["step"],
    }
    if training.diverged:
        return record
    assert isinstance(net, nets.GPT)
    begun = network(model, setup, text.vocabulary, seed)
    record |= {
        "test": float(history["test_loss"][-1]),
        "train": float(history["data"].values[-20:].mean()),
        "gradients": max(difference(each, setup, text, seed) for each in (begun, net)),
    }
    for key, each in (("_before", begun), ("", net)):
        found = along(each, model, setup, text)
        record[f"range{key}"], record[f"variation{key}"] = found.range, found.range / found.scale
        record[f"hamiltonian{key}"] = [*found.values, *[math.nan] * (states - len(found.values))]
    record |= motion(net, setup, text)
    if model.body == "continuous":
        record["order"] = order(net, model, setup, text)
    if model.method == "costates" and not model.cost:
        record |= agreement(model, setup, text, seed) | memories(model, setup, text)
    if model.method == "MSA":
        record |= steps_of(history)
    return record


def probe(setup: Setup, text: nets.data.Text) -> tuple[Tensor, Tensor]:
    """The first test windows, and their next tokens."""
    return next(  # type: ignore[no-any-return]
        iter(nets.data.windows(text.test, context=setup.size.context, batch=EVALUATION))
    )


def in_double(net: torch.nn.Module) -> Any:
    """A copy in double precision on the CPU, in evaluation mode."""
    return copy.deepcopy(net).cpu().double().eval()


def difference(net: torch.nn.Module, setup: Setup, text: nets.data.Text, seed: int) -> float:
    """Relative difference of the gradients of back-propagation and costates, with dropout."""
    import torch

    inputs, targets = probe(setup, text)
    copied = in_double(net).train()
    named = {name: p for name, p in copied.named_parameters() if p.requires_grad}

    def loss(output: Tensor) -> Tensor:
        return nets.train.cross_entropy(output, targets)

    torch.manual_seed(seed)
    found = nets.control.gradients(copied, inputs, loss, weight=setup.lam)
    torch.manual_seed(seed)
    result = copied(inputs)
    total = loss(result.output) + setup.lam * result.cost
    want = dict(zip(named, torch.autograd.grad(total, list(named.values())), strict=True))
    return max(float((found[name] - g).norm() / g.norm()) for name, g in want.items())


class Along(NamedTuple):
    """The Hamiltonian along depth, and what it is measured by."""

    values: list[float]
    scale: float  # mean of |p| |f| + L, of which neither can vanish by cancellation

    @property
    def range(self) -> float:
        return float(np.ptp(self.values))


def along(net: torch.nn.Module, model: Model, setup: Setup, text: nets.data.Text) -> Along:
    """The Hamiltonian on the first test windows, without dropout."""
    inputs, targets = probe(setup, text)
    loss = partial(nets.train.cross_entropy, targets=targets)
    found = nets.control.extremal(in_double(net), inputs, loss, weight=weight(model, setup))
    # Steps are those of Euler, so that differences are velocities at the left ends.
    f = found.states.diff(dim=0).flatten(1) / found.times.diff()[:, None]
    p = found.costates[:-1].flatten(1)
    cost = (p * f).sum(1) - found.hamiltonian[:-1]
    scale = (p.norm(dim=1) * f.norm(dim=1) + cost).mean()
    return Along([float(value) for value in found.hamiltonian], float(scale))


def order(net: torch.nn.Module, model: Model, setup: Setup, text: nets.data.Text) -> float:
    """Order in the length of the steps at which the range of the Hamiltonian falls."""
    copied, found = in_double(net), []
    for factor in FINER:
        copied.body.steps = factor * setup.steps
        found.append(along(copied, model, setup, text).range)
    return float(-np.polyfit(np.log(FINER), np.log(found), 1)[0])


def motion(net: nets.GPT, setup: Setup, text: nets.data.Text) -> Record:
    """How straight hidden states move, and at which cost; nothing for a discrete network."""
    import torch

    if not isinstance(net.body, nets.ContinuousTransformer | nets.NodeTransformer):
        return {}
    copied = in_double(net)
    with torch.no_grad():
        path = copied.body.trajectory(copied.embed(probe(setup, text)[0]))
    return {
        "straightness": float(nets.diagnostics.straightness(path).mean()),
        "speed": float(nets.diagnostics.speed_variation(path).mean()),
        "transport": float(path.costs.sum()),
    }


def agreement(model: Model, setup: Setup, text: nets.data.Text, seed: int) -> Record:
    """Losses of short trainings in double: costates, and weights that begin a rounding apart."""
    import torch

    config = nets.train.TrainConfig(
        steps=setup.compared,
        batch=setup.size.batch,
        schedule=nets.train.Constant(setup.rate),
        seed=seed,
        device="cpu",
    )
    data, plain = batches(model, setup, text), model._replace(method="back-propagation")

    def losses(by: Model, nudge: float = 0.0) -> np.ndarray:
        net = network(by, setup, text.vocabulary, seed).double()
        draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1 + nudge * torch.randn(p.shape, generator=draws, dtype=p.dtype))
        found = nets.train.train(net, objective(by, setup), data, config)["loss"].values
        return np.asarray(found)

    want = losses(plain)
    return {
        "apart": float((np.abs(losses(model) - want) / want).max()),
        "nudged": float((np.abs(losses(plain, NUDGE) - want) / want).max()),
    }


def memories(model: Model, setup: Setup, text: nets.data.Text) -> Record:
    """Memory of an iteration (MB) by each way to gradients, beyond weights and their gradients."""
    inputs, targets = (
        tensor[: setup.size.batch] for tensor in window_set(text, setup.size.context)[:]
    )
    plain = objective(model._replace(method="back-propagation"), setup)
    ways: dict[str, tuple[Any, bool | None]] = {
        "back_propagation": (plain, None),
        "checkpoint": (plain, True),
        "costates": (nets.control.by_costates(plain), None),
        "sqrt": (nets.control.by_costates(plain, keep="sqrt"), None),
    }

    def iteration(net: torch.nn.Module, by: Any) -> None:
        by(net, inputs, targets).total.backward()
        for p in net.parameters():
            p.grad = None

    found = {}
    for key, (by, checkpointing) in ways.items():
        net = network(model, setup, text.vocabulary, 0, checkpointing=checkpointing)
        found[f"memory_{key}"] = networks.memory(
            partial(iteration, net, by), net.head.weight.device
        )
    return found


def steps_of(history: Any) -> Record:
    """What became of the steps of the maximum principle."""
    before, after = history["loss"].values, history["loss_after"].values
    groups = np.maximum(1, history["unconverged"].values.max())
    return {
        "failed": float(history["failed"].sum()),
        "doubled": float((history["trials"] > 1).mean()),
        "unconverged": float(history["unconverged"].mean() / groups),
        "rose": float((after > before).sum()),
        "loss_rises": float((np.diff(before) > 0).mean()),
        "test_rises": float((np.diff(history["test_loss"].values) > 0).mean()),
    }


def adam_beside(results: Results, name: str) -> dict[str, np.ndarray]:
    """Test losses of Adam after as many batches as MSA took, and of both after as much time.

    Adam is that of the same body and cost. Of two trainings the shorter one says how much time;
    `own` is the test loss of MSA then.
    """
    found: dict[str, list[float]] = {"batches": [], "time": [], "own": []}
    for mine, adam in zip(results.histories[name], results.histories[beside(name)], strict=True):
        time = min(float(one["seconds"].sum()) for one in (mine, adam))
        found["batches"].append(last_test(adam, adam["evaluation"].values, mine.sizes["step"]))
        found["time"].append(last_test(adam, spent(adam), time))
        found["own"].append(last_test(mine, spent(mine), time))
    return {key: np.array(values) for key, values in found.items()}


def spent(history: Any) -> FloatArray:
    """Seconds of training before each evaluation."""
    passed: FloatArray = np.concatenate([[0.0], history["seconds"].values.cumsum()])
    return passed[history["evaluation"].values]


def last_test(history: Any, at: FloatArray, limit: float) -> float:
    """The last test loss at or before a limit."""
    return float(history["test_loss"].values[np.flatnonzero(at <= limit)[-1]])


def beside(name: str) -> str:
    """The model that Adam trains by costates, with the same body and cost."""
    asked = MODELS[name]._replace(method="costates", fixed=False)
    return next(other for other, model in MODELS.items() if model == asked)


# Tables and figures
# ------------------


def tabulated(setup: Setup, results: Results) -> Any:
    """All numbers as a Dataset."""
    states = range(max(setup.steps, setup.blocks) + 1)
    return networks.dataset(
        results, SCALARS, ALONG, {"state": (states, "number of the state along depth")}
    )


def report(flags: Any, setup: Setup, text: nets.data.Text, results: Results) -> str:
    """What was done, and the tables."""
    names = list(results.records)

    def of(chosen: list[str]) -> Callable[[str, str], list[str]]:
        part = Results({name: results.records[name] for name in chosen}, {})
        return partial(networks.column, part)

    column = of(names)
    pieces = [
        lead(flags, setup, text, results),
        study.markdown_table({
            "model": names,
            "parameters": [f"{network(MODELS[name], setup, text.vocabulary, 0).count(True):,}"
                           for name in names],
            "iterations": [f"{results.records[name][0]['iterations']:,}" for name in names],
            "test loss": column("test", ".3f"),
            "training loss": column("train", ".3f"),
            "ms per iteration": column("milliseconds", ".0f"),
            "range of H before": column("range_before", ".1e"),
            "range of H after": column("range", ".1e"),
            "variation before": column("variation_before", ".2g"),
            "variation after": column("variation", ".2g"),
            "order": column("order", ".2f"),
            "arc over chord": column("straightness", ".3f"),
            "speed variation": column("speed", ".3f"),
            "transport cost": column("transport", ".3g"),
        }),
    ]  # fmt: skip
    swept = [
        name for name in names if MODELS[name] == (MODELS[name].body, "costates", False, False)
    ]
    if swept:
        column = of(swept)
        pieces += [
            "Memory of an iteration beyond weights and their gradients, and gradients by costates "
            f"beside those of back-propagation; losses of {setup.compared} iterations in double "
            f"precision, by costates, and from weights changed by a factor 1 + {NUDGE:g} N(0, 1):",
            study.markdown_table(
                {"model": swept}
                | {f"{name}, MB": column(f"memory_{key}", ".2f") for key, name in VARIANTS.items()}
                | {
                    "gradients differ": column("gradients", ".1e"),
                    "losses differ": column("apart", ".1e"),
                    "changed weights": column("nudged", ".1e"),
                }
            ),
        ]
    maximised = [name for name in names if MODELS[name].method == "MSA"]
    if maximised:
        column = of(maximised)
        table = {
            "model": maximised,
            "batches": [f"{results.records[name][0]['iterations']:,}" for name in maximised],
            "failed steps": column("failed", ".1f"),
            "rho doubled, share": column("doubled", ".3f"),
            "loss rose in its step": column("rose", ".1f"),
            "next loss higher, share": column("loss_rises", ".3f"),
            "test loss rose, share": column("test_rises", ".3f"),
            "test loss": column("test", ".3f"),
        }
        adam = {name: adam_beside(results, name) for name in maximised
                if not MODELS[name].fixed and beside(name) in names}  # fmt: skip
        titles = {"batches": "Adam, as many batches", "own": "own, at equal time",
                  "time": "Adam, at equal time"}  # fmt: skip
        for key, title in titles.items():
            table[title] = [
                networks.mean_and_spread(list(adam[name][key]), "{:.3f}".format)
                if name in adam else "–" for name in maximised
            ]  # fmt: skip
        pieces += ["Extended MSA:", study.markdown_table(table)]
    return "\n\n".join(pieces)


def lead(flags: Any, setup: Setup, text: nets.data.Text, results: Results) -> str:
    """Data, settings and methods, in words."""
    size = setup.size
    return (
        f"{networks.caption(flags, setup.seeds, results, text.source)} Test loss on the first "
        f"{len(text.test):,} characters of the test part. Width {size.width}, context "
        f"{size.context}, batch {size.batch}, {size.heads} heads, dropout {setup.dropout:g}: S has "
        f"one block, continuous takes it as the velocity of {setup.steps} Euler steps, T = 1, deep "
        f"has {setup.blocks} blocks of one step each. Adam at a constant rate of {setup.rate:g}; "
        f"extended MSA with rho = {setup.rho:g}, fixed: one batch of {setup.rows} windows without "
        f"dropout. Cost: lam = {setup.lam:g} times the mean of the squared velocity over 2. "
        f"The Hamiltonian H is that of {EVALUATION} test windows without dropout, in double "
        "precision; its variation is its range along depth over the mean of |p| |f| + L, and the "
        "order is that of the range in the length of the steps, from "
        f"{' to '.join(str(FINER[k] * setup.steps) for k in (0, -1))} steps."
    )


COLOURS = {"": "#6b6b6b", "costates": "#0b3c5d", "cost": "#5c8a3a", "MSA": "#c1440e",
           "MSA cost": "#b8860b"}  # fmt: skip


def figures(results: Results) -> dict[str, Figure]:
    """Test losses, the Hamiltonian along depth, and the steps of MSA."""
    drawn = {}
    bodies: dict[str, dict[str, str]] = {}
    for name in results.records:
        body, _, rest = name.partition(" ")
        if not MODELS[name].fixed:
            bodies.setdefault(body, {})[name] = rest
    if bodies:
        drawn["losses"] = losses_figure(results, bodies)
    deep = {body: names for body, names in bodies.items() if body != "S"}
    if deep:
        drawn["hamiltonian"] = hamiltonian_figure(results, deep)
    steps = [name for name in results.records if MODELS[name].method == "MSA"]
    if steps:
        drawn["steps"] = steps_figure(results, steps)
    return drawn


def losses_figure(results: Results, bodies: Mapping[str, Mapping[str, str]]) -> Figure:
    """Test loss by batches, and by time, a column for each body."""
    from wflow.plots.figure import PAGE, grid, style
    from wflow.plots.networks import draw_histories

    with style():
        figure, axes = grid(2, len(bodies), PAGE, 4.8, sharey=True)
        for place, (body, names) in enumerate(bodies.items()):
            curves = {rest or "back-propagation": [
                history.isel(evaluation=slice(1, None)) for history in results.histories[name]
            ] for name, rest in names.items()}  # fmt: skip
            colours = {rest or "back-propagation": COLOURS[rest] for rest in names.values()}
            draw_histories(axes[0, place], curves, "test_loss", colours)
            for line in axes[0, place].lines:
                if line.get_label() == "back-propagation":  # costates give the same
                    line.set(linestyle=(0, (2, 2)), zorder=3)
            timed = {
                label: [
                    history.assign_coords(
                        evaluation=history["seconds"].values.cumsum()[history["evaluation"] - 1]
                    )
                    for history in histories
                ]
                for label, histories in curves.items()
            }
            for label, histories in timed.items():
                times = np.mean([history["evaluation"] for history in histories], axis=0)
                means = np.mean([history["test_loss"] for history in histories], axis=0)
                line = (0, (2, 2)) if label == "back-propagation" else "-"
                axes[1, place].plot(times, means, color=colours[label], linestyle=line)
            for axis, label in zip(axes[:, place], ("Batches", "Seconds"), strict=True):
                axis.set_xscale("log")
                axis.set_xlabel(label)
            axes[0, place].set_title(body)
            axes[0, place].legend(fontsize=6.5)
        for axis in axes[:, 0]:
            axis.set_ylabel("Test loss")
    return figure


def hamiltonian_figure(results: Results, bodies: Mapping[str, Mapping[str, str]]) -> Figure:
    """The Hamiltonian along depth before and after the training, mean and range over seeds."""
    from wflow.plots.figure import PAGE, grid, style

    with style():
        figure, axes = grid(1, len(bodies), PAGE, 3.0)
        for axis, (body, names) in zip(axes[0], bodies.items(), strict=True):
            for name, rest in names.items():
                if not rest:  # costates give the same
                    continue
                for key, line in (("hamiltonian_before", ":"), ("hamiltonian", "-")):
                    rows = np.array([record[key] for record in results.records[name]])
                    rows = rows[:, np.isfinite(rows).any(axis=0)]
                    label = rest if line == "-" else None
                    axis.plot(rows.mean(axis=0), line, marker="o", ms=3, color=COLOURS[rest],
                              label=label)  # fmt: skip
                    if len(rows) > 1:
                        axis.fill_between(range(rows.shape[1]), rows.min(axis=0), rows.max(axis=0),
                                          color=COLOURS[rest], alpha=0.15, lw=0)  # fmt: skip
            axis.set_xticks(range(rows.shape[1]))
            axis.set_xlabel("State along depth")
            axis.set_title(f"{body}: before (dotted) and after")
            axis.legend(fontsize=6.5)
        axes[0, 0].set_ylabel("Hamiltonian")
    return figure


def steps_figure(results: Results, names: list[str]) -> Figure:
    """Loss of the batch before each step of MSA, and rho."""
    from wflow.plots.figure import PAGE, grid, style
    from wflow.plots.networks import COLOURS as CYCLE
    from wflow.plots.networks import draw_histories

    with style():
        figure, axes = grid(1, 2, PAGE, 2.8)
        curves = {name: results.histories[name] for name in names}
        colours = dict(zip(names, CYCLE, strict=False))
        for axis, key, label in zip(
            axes[0], ("data", "rho"), ("Loss of the batch before a step", "rho"), strict=True
        ):
            draw_histories(axis, curves, key, colours, log=key == "rho")
            axis.set_xlabel("Step of extended MSA")
            axis.set_ylabel(label)
        axes[0, 0].legend(fontsize=6.5)
    return figure
