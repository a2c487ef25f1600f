"""A GPT trained by Pontryagin's principle: costates, transport cost, and extended MSA.

What [GPTOC] proposes for nanoGPT. A GPT of its size S, one whose block is the velocity of a
dynamical system (`continuous`), and one of several blocks (`deep`) learn the characters of
Shakespeare: by back-propagation and by costates, which give the same gradients with less memory;
with the transport cost of [OTT] as running cost; and by the maximum principle itself, the extended
method of successive approximations of [LCTE2018], with small batches and with one batch. The
Hamiltonian along depth is measured before and after.

    python studies/control/pontryagin_gpt.py
    python studies/control/pontryagin_gpt.py --only "S" "S costates" "S MSA" --seeds 1
    torchrun --nproc-per-node 8 studies/control/pontryagin_gpt.py --preset paper

[GPTOC] Croizet, De Vos, Hajem, Basso, Guerafi, Wu, "GPT Project Part 1 Report", 2025. [LCTE2018]
Li, Chen, Tai, E, J. Mach. Learn. Res. 18. [OTT] Kan et al., arXiv 2505.13499.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import tyro
from _control import FloatArray, Pair, columns, config, window_set
from numpy.typing import NDArray

from wflow import nets, study
from wflow.cli import script
from wflow.plots.figure import PAGE, grid, style
from wflow.plots.networks import COLOURS as CYCLE
from wflow.plots.networks import draw_histories
from wflow.study import Finding, networks
from wflow.study.networks import Record, Results, Run, Trained, claim
from wflow.study.texts import EVALUATION, loss_on

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NUDGE = 1e-15  # relative change of the weights of the training to compare with
FINER = (4, 8, 16)  # times the steps, for the order of the Hamiltonian's variation
ROUNDING = 1e-12  # relative difference of gradients in double precision
CHANCE = 30.0  # times by which two differences that grow from rounding may differ
ORDER, SPREAD = 1.0, 0.25  # of Euler's scheme, and what counts as it
VARIANTS = {
    "back_propagation": "back-propagation",
    "checkpoint": "checkpointing",
    "costates": "costates",
    "sqrt": "costates, sqrt",
}


class Model(NamedTuple):
    """A network and how it is trained."""

    body: Literal["S", "continuous", "deep"]
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
SWEPT = {
    name: model for name, model in MODELS.items() if model.method == "costates" and not model.cost
}


@dataclass(frozen=True, kw_only=True)
class PontryaginGpt(networks.NetFlags):
    """Flags of this study."""

    durations: ClassVar = {"smoke": "seconds", "cpu": "minutes a model on two cores"}
    presets: ClassVar = {
        "paper": {},
        # An epoch. Iterations of MSA take some thirty times as long as those of Adam.
        "cpu": {
            "iterations": 1000, "maximised": 120, "rows": 32, "every": 20, "tested": 20_001,
            "seeds": 3,
        },
        "smoke": {
            "text": "embedded", "width": 4, "context": 16, "batch": 8, "heads": 1, "blocks": 2,
            "steps": 2, "iterations": 8, "maximised": 2, "rows": 8, "every": 2, "tested": 401,
            "compared": 3, "seeds": 1,
        },
    }  # fmt: skip
    text: Literal["shakespeare", "embedded"] = "shakespeare"
    """Tiny Shakespeare, or the text that ships with wflow."""
    width: study.Count = 16
    """Width of the hidden states; this and the next three are those of size S of the report."""
    context: study.Count = 64
    """Characters in a window."""
    batch: study.Count = 16
    """Windows in a batch."""
    heads: study.Count = 2
    """Heads of a block."""
    blocks: study.Count = 4
    """Blocks of the deep network, a step each."""
    steps: networks.Steps = 5
    """Steps M of the continuous network."""
    lam: study.Nonnegative = 2.0
    """Weight lam of the transport cost; the published one is 1 of a cost without the factor 1/2."""
    dropout: study.Nonnegative = 0.2
    """Rate of dropout, below 1."""
    rate: study.Positive = 0.01
    """Learning rate of Adam, constant."""
    rho: study.Positive = 0.1
    """Weight of the augmentation of the Hamiltonian, from which it doubles."""
    iterations: study.Count = 19_600
    """Iterations of Adam; 19,600 are 20 epochs."""
    maximised: study.Count = 1000
    """Iterations of extended MSA."""
    rows: study.Count = 64
    """Windows of the batch of the models that have one for all steps."""
    every: study.Count = 100
    """Iterations from one evaluation to the next."""
    tested: study.Count = 1_000_000
    """Characters of the test part that are used, at most."""
    compared: study.Count = 50
    """Iterations whose losses by costates and by back-propagation are compared."""
    seeds: study.Count = 5
    # Sweeps of costates are in single precision, and not compiled.
    precision: tyro.conf.Suppress[Literal["float32"]] = "float32"
    compile: tyro.conf.Suppress[study.Switch] = False
    out: study.Folder = Path("results/pontryagin_gpt")


def load(flags: PontryaginGpt) -> nets.data.Text:
    """Return the text in characters, with as much of its test part as the flags ask for."""
    if flags.text == "embedded":
        text = nets.data.embedded_text()
    else:
        text = nets.data.shakespeare(tokens="characters", folder=flags.data)
    return replace(text, test=text.test[: flags.tested])


# Networks and trainings
# ----------------------


def network(
    flags: PontryaginGpt, model: Model, vocabulary: int, seed: int, checkpointing: bool = False
) -> nets.GPT:
    """Return a network with weights drawn from its seed.

    `deep` has blocks of one step each, which make a discrete GPT with transport cost. Size S is the
    discrete GPT itself, and with checkpointing one step of the continuous one, the same function.
    """
    import torch

    torch.manual_seed(seed)
    net = nets.GPT(
        vocabulary=vocabulary, context=flags.context, width=flags.width, heads=flags.heads,
        depth=flags.blocks if model.body == "deep" else 1,
        dropout=0.0 if model.fixed else flags.dropout,
    )  # fmt: skip
    options: dict[str, Any] = {"velocity": "residual", "checkpointing": checkpointing}
    if model.body == "deep":
        net.body = nets.NodeTransformer(net.body, **options)
    elif model.body == "continuous":
        net.body = nets.ContinuousTransformer(net.body, steps=flags.steps, **options)
    elif checkpointing:
        net.body = nets.ContinuousTransformer(net.body, **options)
    return net


def objective(flags: PontryaginGpt, model: Model) -> Any:
    """Return mean cross-entropy and transport cost, by costates where the model is so trained."""
    plain = nets.train.objective(nets.train.cross_entropy, flags.lam * model.cost)
    return nets.control.by_costates(plain) if model.method == "costates" else plain


def batches(flags: PontryaginGpt, model: Model, text: nets.data.Text) -> tuple[Any, int]:
    """Return windows in random order, or one batch spread over the text; and rows of a batch."""
    found = window_set(text, flags.context)
    if not model.fixed:
        return found, flags.batch
    places = np.linspace(0, len(found) - 1, min(flags.rows, len(found))).astype(int)
    batch = found[places]
    return lambda step: batch, len(places)


def plan(flags: PontryaginGpt, text: nets.data.Text, model: Model, seed: int) -> Run:
    """Return the training of one network with one seed: Adam at a constant rate, or MSA."""
    given, rows = batches(flags, model, text)
    of_msa = model.method == "MSA"
    settings = config(
        flags.maximised if of_msa else flags.iterations, rows, flags.rate, seed,
        optimizer=nets.control.MSA(rho=flags.rho) if of_msa else "adam",
        evaluate_every=flags.every, checkpoint_every=flags.every,
        device=flags.device,
    )  # fmt: skip
    device = nets.train.device(flags.device)

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        return {"test_loss": loss_on(net, text.test, flags.context, device)}

    net = network(flags, model, text.vocabulary, seed)
    return Run(net, objective(flags, model), given, settings, evaluate)


# What was learnt
# ---------------

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


def measure(
    flags: PontryaginGpt, text: nets.data.Text, model: Model, training: Trained, seed: int
) -> Record:
    """Return losses, Hamiltonian, trajectories, and what is asked of the method."""
    net, history = training.model, training.history
    if training.diverged:
        return {}
    assert isinstance(net, nets.GPT)
    begun = network(flags, model, text.vocabulary, seed)
    record: Record = {
        "test": float(history["test_loss"][-1]),
        "train": float(history["data"].values[-20:].mean()),
        "gradients": max(difference(flags, text, each, seed) for each in (begun, net)),
    }
    states = max(flags.steps, flags.blocks) + 1
    for key, each in (("_before", begun), ("", net)):
        found = along(flags, text, model, each)
        record[f"range{key}"], record[f"variation{key}"] = found.range, found.range / found.scale
        record[f"hamiltonian{key}"] = [*found.values, *[math.nan] * (states - len(found.values))]
    copied = in_double(net)
    record |= networks.motion(copied.body, copied.embed(probe(flags, text)[0]))
    record["speed"] = record.pop("speed_variation")
    if model.body == "continuous":
        record["order"] = order(flags, text, model, net)
    if model in SWEPT.values():
        record |= agreement(flags, text, model, seed) | memories(flags, text, model)
    if model.method == "MSA":
        record |= steps_of(history)
    return record


def probe(flags: PontryaginGpt, text: nets.data.Text) -> tuple[Tensor, Tensor]:
    """Return the first test windows, and their next tokens."""
    return next(  # type: ignore[no-any-return]
        iter(nets.data.windows(text.test, context=flags.context, batch=EVALUATION))
    )


def in_double(net: torch.nn.Module) -> Any:
    """Return a copy in double precision on the CPU, in evaluation mode."""
    return copy.deepcopy(net).cpu().double().eval()


def difference(
    flags: PontryaginGpt, text: nets.data.Text, net: torch.nn.Module, seed: int
) -> float:
    """Return the relative difference of gradients by back-propagation and costates (dropout)."""
    import torch

    inputs, targets = probe(flags, text)
    copied = in_double(net).train()
    named = {name: p for name, p in copied.named_parameters() if p.requires_grad}
    loss = partial(nets.train.cross_entropy, targets=targets)
    torch.manual_seed(seed)
    found = nets.control.gradients(copied, inputs, loss, weight=flags.lam)
    torch.manual_seed(seed)
    result = copied(inputs)
    total = loss(result.output) + flags.lam * result.cost
    want = dict(zip(named, torch.autograd.grad(total, list(named.values())), strict=True))
    return max(float((found[name] - g).norm() / g.norm()) for name, g in want.items())


class Along(NamedTuple):
    """The Hamiltonian along depth, and what it is measured by."""

    values: list[float]
    scale: float  # mean of |p| |f| + L, of which neither can vanish by cancellation

    @property
    def range(self) -> float:
        return float(np.ptp(self.values))


def along(flags: PontryaginGpt, text: nets.data.Text, model: Model, net: torch.nn.Module) -> Along:
    """Return the Hamiltonian on the first test windows, without dropout."""
    inputs, targets = probe(flags, text)
    loss = partial(nets.train.cross_entropy, targets=targets)
    found = nets.control.extremal(in_double(net), inputs, loss, weight=flags.lam * model.cost)
    # Steps are those of Euler, so that differences are velocities at the left ends.
    f = found.states.diff(dim=0).flatten(1) / found.times.diff()[:, None]
    p = found.costates[:-1].flatten(1)
    cost = (p * f).sum(1) - found.hamiltonian[:-1]
    scale = (p.norm(dim=1) * f.norm(dim=1) + cost).mean()
    return Along([float(value) for value in found.hamiltonian], float(scale))


def order(flags: PontryaginGpt, text: nets.data.Text, model: Model, net: torch.nn.Module) -> float:
    """Return the order in the length of the steps at which the range of the Hamiltonian falls."""
    copied, found = in_double(net), []
    for factor in FINER:
        copied.body.steps = factor * flags.steps
        found.append(along(flags, text, model, copied).range)
    return float(-np.polyfit(np.log(FINER), np.log(found), 1)[0])


def agreement(flags: PontryaginGpt, text: nets.data.Text, model: Model, seed: int) -> Record:
    """Return losses of short trainings in double: by costates, and from perturbed weights."""
    import torch

    settings = config(flags.compared, flags.batch, flags.rate, seed, device="cpu")
    data, plain = window_set(text, flags.context), model._replace(method="back-propagation")

    def losses(by: Model, nudge: float = 0.0) -> FloatArray:
        net = network(flags, by, text.vocabulary, seed).double()
        draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1 + nudge * torch.randn(p.shape, generator=draws, dtype=p.dtype))
        found = nets.train.train(net, objective(flags, by), data, settings)["loss"].values
        return np.asarray(found)

    want = losses(plain)
    return {
        "apart": float((np.abs(losses(model) - want) / want).max()),
        "nudged": float((np.abs(losses(plain, NUDGE) - want) / want).max()),
    }


def memories(flags: PontryaginGpt, text: nets.data.Text, model: Model) -> Record:
    """Return the memory of an iteration (MB) by each method, beyond weights and gradients."""
    inputs, targets = window_set(text, flags.context)[: flags.batch]
    plain = objective(flags, model._replace(method="back-propagation"))
    ways: dict[str, tuple[Any, bool]] = {
        "back_propagation": (plain, False),
        "checkpoint": (plain, True),
        "costates": (nets.control.by_costates(plain), False),
        "sqrt": (nets.control.by_costates(plain, keep="sqrt"), False),
    }

    def iteration(net: torch.nn.Module, by: Any) -> None:
        by(net, inputs, targets).total.backward()
        for p in net.parameters():
            p.grad = None

    found = {}
    for key, (by, checkpointing) in ways.items():
        net = network(flags, model, text.vocabulary, 0, checkpointing)
        call = partial(iteration, net, by)
        found[f"memory_{key}"] = networks.memory(call, net.head.weight.device)
    return found


def steps_of(history: Any) -> Record:
    """Return what became of the steps of the maximum principle."""
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


def adam_beside(results: Results, name: str) -> dict[str, FloatArray]:
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
    """Return seconds of training before each evaluation."""
    passed: FloatArray = np.concatenate([[0.0], history["seconds"].values.cumsum()])
    return passed[history["evaluation"].values]


def last_test(history: Any, at: FloatArray, limit: float) -> float:
    """Return the last test loss at or before a limit."""
    return float(history["test_loss"].values[np.flatnonzero(at <= limit)[-1]])


def beside(name: str) -> str:
    """Return the model that Adam trains by costates, with the same body and cost."""
    asked = MODELS[name]._replace(method="costates", fixed=False)
    return next(other for other, model in MODELS.items() if model == asked)


# Tables and figures
# ------------------


def report(flags: PontryaginGpt, text: nets.data.Text, results: Results) -> str:
    """Return what was done, and the tables."""
    names = list(results.records)
    column = columns(results, names)
    pieces = [
        lead(flags, text, results),
        study.markdown_table({
            "model": names,
            "parameters": [f"{network(flags, MODELS[name], text.vocabulary, 0).count(True):,}"
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
    swept = [name for name in names if name in SWEPT]
    if swept:
        column = columns(results, swept)
        pieces += [
            "Memory of an iteration beyond weights and their gradients, and gradients by costates "
            f"beside those of back-propagation; losses of {flags.compared} iterations in double "
            f"precision, by costates, and from weights changed by a factor 1 + {NUDGE:g} N(0, 1):",
            study.markdown_table({
                "model": swept,
                **{f"{words}, MB": column(f"memory_{key}", ".2f")
                   for key, words in VARIANTS.items()},
                "gradients differ": column("gradients", ".1e"),
                "losses differ": column("apart", ".1e"),
                "changed weights": column("nudged", ".1e"),
            }),
        ]  # fmt: skip
    maximised = [name for name in names if MODELS[name].method == "MSA"]
    if maximised:
        column = columns(results, maximised)
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
        none: dict[str, FloatArray] = dict.fromkeys(titles, np.empty(0))
        for key, title in titles.items():
            table[title] = [
                networks.mean_and_spread(adam.get(name, none)[key], "{:.3f}".format)
                for name in maximised
            ]
        pieces += ["Extended MSA:", study.markdown_table(table)]
    return "\n\n".join(pieces)


def lead(flags: PontryaginGpt, text: nets.data.Text, results: Results) -> str:
    """Return the data, settings and methods, in words."""
    return (
        f"{networks.caption(flags, flags.seeds, results, text.source)} S has one block, continuous "
        "takes it as the velocity of Euler steps, T = 1, deep has blocks of one step each; fixed: "
        "one batch of --rows windows without dropout. Cost: lam times the mean of the squared "
        f"velocity over 2. The Hamiltonian H is that of {EVALUATION} test windows without dropout, "
        "in double precision; its variation is its range along depth over the mean of |p| |f| + L, "
        "and the order is that of the range in the length of the steps, from "
        f"{' to '.join(str(FINER[k] * flags.steps) for k in (0, -1))} steps."
    )


PLAIN = "back-propagation"  # costates give the same
COLOURS = {PLAIN: "#6b6b6b", "costates": "#0b3c5d", "cost": "#5c8a3a", "MSA": "#c1440e",
           "MSA cost": "#b8860b"}  # fmt: skip


def figures(flags: PontryaginGpt, results: Results) -> dict[str, study.Figure]:
    """Test losses, the Hamiltonian along depth, and the steps of MSA."""
    bodies: dict[str, dict[str, str]] = {}
    for name in results.records:
        body, _, rest = name.partition(" ")
        if not MODELS[name].fixed:
            bodies.setdefault(body, {})[name] = rest or PLAIN
    deep = {body: names for body, names in bodies.items() if body != "S"}
    steps = [name for name in results.records if MODELS[name].method == "MSA"]
    shown: dict[str, tuple[Any, Any]] = {
        "losses": (losses_figure, bodies),
        "hamiltonian": (hamiltonian_figure, deep),
        "steps": (steps_figure, steps),
    }
    return {name: draw(results, given) for name, (draw, given) in shown.items() if given}


@style()
def losses_figure(results: Results, bodies: Mapping[str, Mapping[str, str]]) -> study.Figure:
    """Test loss by batches, and by time, a column for each body."""
    figure, axes = grid(2, len(bodies), PAGE, 4.8, sharey=True)
    for place, (body, names) in enumerate(bodies.items()):
        curves = {
            label: [history.isel(evaluation=slice(1, None)) for history in results.histories[name]]
            for name, label in names.items()
        }
        draw_histories(axes[0, place], curves, "test_loss", COLOURS)
        for label, histories in curves.items():
            times = [each["seconds"].values.cumsum()[each["evaluation"] - 1] for each in histories]
            means = np.mean([each["test_loss"] for each in histories], axis=0)
            axes[1, place].plot(np.mean(times, axis=0), means, color=COLOURS[label], label=label)
        for line in (*axes[0, place].lines, *axes[1, place].lines):
            if line.get_label() == PLAIN:
                line.set(linestyle=(0, (2, 2)), zorder=3)
        for axis, label in zip(axes[:, place], ("Batches", "Seconds"), strict=True):
            axis.set(xscale="log", xlabel=label)
        axes[0, place].set_title(body)
        axes[0, place].legend(fontsize=6.5)
    for axis in axes[:, 0]:
        axis.set_ylabel("Test loss")
    return figure


@style()
def hamiltonian_figure(results: Results, bodies: Mapping[str, Mapping[str, str]]) -> study.Figure:
    """Draw the Hamiltonian along depth before and after the training, mean and range over seeds."""
    figure, axes = grid(1, len(bodies), PAGE, 3.0)
    for axis, (body, names) in zip(axes[0], bodies.items(), strict=True):
        for name, label in names.items():
            if label == PLAIN:
                continue
            for key, line in (("hamiltonian_before", ":"), ("hamiltonian", "-")):
                rows = np.array([record[key] for record in results.records[name]])
                rows = rows[:, np.isfinite(rows).any(axis=0)]
                axis.plot(rows.mean(axis=0), line, marker="o", ms=3, color=COLOURS[label],
                          label=label if line == "-" else None)  # fmt: skip
                if len(rows) > 1:
                    axis.fill_between(range(rows.shape[1]), rows.min(axis=0), rows.max(axis=0),
                                      color=COLOURS[label], alpha=0.15, lw=0)  # fmt: skip
        axis.set(xticks=range(rows.shape[1]), xlabel="State along depth",
                 title=f"{body}: before (dotted) and after")  # fmt: skip
        axis.legend(fontsize=6.5)
    axes[0, 0].set_ylabel("Hamiltonian")
    return figure


@style()
def steps_figure(results: Results, names: list[str]) -> study.Figure:
    """Draw loss of the batch before each step of MSA, and rho."""
    figure, axes = grid(1, 2, PAGE, 2.8)
    curves = {name: results.histories[name] for name in names}
    colours = dict(zip(names, CYCLE, strict=False))
    labels = {"data": "Loss of the batch before a step", "rho": "rho"}
    for axis, (key, label) in zip(axes[0], labels.items(), strict=True):
        draw_histories(axis, curves, key, colours, log=key == "rho")
        axis.set(xlabel="Step of extended MSA", ylabel=label)
    axes[0, 0].legend(fontsize=6.5)
    return figure


# Findings
# --------


def findings(flags: PontryaginGpt, text: nets.data.Text, results: Results) -> list[Finding]:
    """Return what theory and report say, with verdicts."""
    of = results.values
    ratios = partial(claim, compare=partial(networks.paired, ratio=True))

    def decided(
        statement: str,
        source: str,
        names: Iterable[str],
        text: Callable[[str], str],
        holds: Callable[[str], NDArray[np.bool_]],
    ) -> Finding:
        found = "; ".join(f"{name}: {text(name)}" for name in names)
        return Finding.decided(statement, source, found, [holds(name).all() for name in names])

    def largest(text: str, *keys: str) -> Callable[[str], str]:
        def said(name: str) -> str:
            return text.format(*(of(name, key).max() for key in keys)).replace("0.0e+00", "none")

        return said

    long = [name for name, model in SWEPT.items() if model.body != "S"]
    small = [name for name, model in MODELS.items() if model.method == "MSA" and not model.fixed]
    fixed = [name for name, model in MODELS.items() if model.fixed]
    costs = {
        "continuous, Adam": ("continuous cost", "continuous costates"),
        "continuous, MSA": ("continuous MSA cost", "continuous MSA"),
        "deep, Adam": ("deep cost", "deep costates"),
    }
    adam = {name: adam_beside(results, name) for name in small}

    def names_of(body: str) -> list[str]:
        return [name for name, model in MODELS.items() if model.body == body]

    def pairs(key: str) -> dict[str, Pair]:
        """Return pairs without and with the transport cost."""
        return {label: (of(b, key), of(a, key)) for label, (a, b) in costs.items()}

    def memory(key: str, words: str) -> Finding:
        key = f"memory_{key}"
        return decided(
            f"costates need less memory than {words}", "theory: costates", long,
            largest("{:.2f} MB against {:.2f}", "memory_costates", key),
            lambda name: of(name, "memory_costates") < of(name, key),
        )  # fmt: skip

    def total(name: str, key: str) -> str:
        return f"{of(name, key).sum():.0f} of {of(name, 'iterations').sum():.0f} steps"

    return [
        decided("gradients by costates are those of back-propagation to rounding",
                "[BCEOS2019]", SWEPT, largest("largest relative difference {:.1e}", "gradients"),
                lambda name: of(name, "gradients") < ROUNDING),
        decided("losses of a training by costates are those of back-propagation: they differ by "
                f"what a change of the first weights by {NUDGE:g} grows to, within a factor of "
                f"{CHANCE:g}", "question", SWEPT,
                largest("relative difference {:.1e}, of changed weights {:.1e}", "apart", "nudged"),
                lambda name: of(name, "apart") <= CHANCE * of(name, "nudged")),
        memory("back_propagation", "back-propagation"),
        memory("checkpoint", "checkpointing of each step"),
        decided("with one batch and no dropout no step of extended MSA raises the loss, and none "
                "fails", "[LCTE2018], by doubling rho", fixed,
                lambda name: f"raised in {total(name, 'rose')}, failed in {total(name, 'failed')}",
                lambda name: (of(name, "rose") == 0) & (of(name, "failed") == 0)),
        decided("with small batches and dropout no step of extended MSA fails to lower the loss of "
                "its batch", "question", small, lambda name: f"failed in {total(name, 'failed')}",
                lambda name: of(name, "failed") == 0),
        decided("with small batches and dropout the test loss of extended MSA falls from each "
                "evaluation to the next", "question", small,
                largest("rose in up to {:.0%} of them", "test_rises"),
                lambda name: of(name, "test_rises") == 0),
        claim("optimal control improves the performance of nanoGPT: after as many batches extended "
              "MSA has a lower test loss than Adam", "[GPTOC] section 6",
              {name: (adam[name]["batches"], of(name, "test")) for name in small}),
        claim("optimal control improves the efficiency of nanoGPT: after as much time extended MSA "
              "has a lower test loss than Adam", "[GPTOC] section 6",
              {name: (adam[name]["time"], adam[name]["own"]) for name in small}),
        claim("the transport cost makes hidden states move straighter", "[OTT] Prop. 1",
              pairs("straightness")),
        claim("the transport cost makes hidden states move at a more constant speed",
              "[OTT] Prop. 1", pairs("speed")),
        ratios("the transport cost makes the Hamiltonian more constant along depth, relative to "
               r"$\lvert p \rvert\, \lvert f \rvert + L$", "question", pairs("variation")),
        decided("with shared weights the range of the Hamiltonian falls with the length of the "
                "steps at the order of Euler's scheme, 1", "theory: Hamiltonian",
                names_of("continuous"),
                lambda name: f"order {of(name, 'order').min():.2f} to "
                             f"{of(name, 'order').max():.2f}",
                lambda name: abs(of(name, "order") - ORDER) < SPREAD),
        ratios("training makes the Hamiltonian of separate weights more constant, as that of an "
               "optimal control is", "theory: maximum principle",
               {name: (of(name, "variation_before"), of(name, "variation"))
                for name in names_of("deep")}),
    ]  # fmt: skip


EXPERIMENT = networks.Experiment(
    name="pontryagin_gpt", models=lambda _: MODELS, load=load, plan=plan, measure=measure,
    numbers=SCALARS, along=ALONG,
    coords=lambda flags: {
        "state": (range(max(flags.steps, flags.blocks) + 1), "number of the state along depth")
    },
    text=report, findings=findings, figures=figures,
)  # fmt: skip


def main() -> None:
    networks.run(EXPERIMENT, study.command_line(PontryaginGpt, __doc__))


if __name__ == "__main__":
    script(main)
