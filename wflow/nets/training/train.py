"""Training of networks: any module, any objective, batches as functions of the step::

    history = train.train(
        model,
        train.objective(functional.cross_entropy, weight=0.01),
        batches,
        train.TrainConfig(steps=10_000, batch=100, schedule=train.Constant(5e-4)),
        out="results/run",
        evaluate=lambda model: {"accuracy": accuracy(model)},
    )

Everything random in a step is drawn from (seed, step, process), so a run that was cut off and
resumed has the loss curve of an unbroken one, bit for bit, wherever torch's own operations are
reproducible (they are on a CPU), and evaluation does not affect it. Under `torchrun` the processes
share each batch; the result is that of one process, to rounding.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import utils

from wflow._core.checks import check_choice, function, number, path_of, positive, switch, whole
from wflow._core.errors import InputError, WflowError
from wflow._core.processes import check_main_guard
from wflow._core.progress import progress
from wflow._core.signals import caught_signals, interrupted
from wflow.nets.blocks import evaluating, kept_modes
from wflow.nets.checks import listed, module, tensor, text
from wflow.nets.continuous import ContinuousTransformer
from wflow.nets.files import replace
from wflow.nets.training import checkpoint as checkpoints
from wflow.nets.training.checkpoint import (
    CHECKPOINT,
    KINDS,
    TENSORBOARD,
    load_model,
    open_folder,
    restore,
    save_model,
)
from wflow.nets.training.history import (
    METRICS,
    METRICS_JSON,
    History,
    Log,
    check_tensorboard,
    machine,
    metrics_json,
    peak_memory,
    tensorboard_log,
)
from wflow.nets.training.identity import identity
from wflow.nets.training.loaders import Loaded, Source, redraw, rows_of, source_of
from wflow.nets.training.parallel import Processes, device, process_group
from wflow.nets.training.schedules import (
    Constant,
    Cosine,
    Schedule,
    StepDecay,
    Unrolled,
    keep,
    schedule_dict,
    unrolled,
)

if TYPE_CHECKING:
    from xarray import Dataset


__all__ = [
    "CHECKPOINT",
    "METRICS",
    "METRICS_JSON",
    "Batches",
    "Constant",
    "Cosine",
    "Loss",
    "NonFiniteLossError",
    "Objective",
    "Schedule",
    "StepDecay",
    "TrainConfig",
    "cross_entropy",
    "device",
    "load_model",
    "objective",
    "restore",
    "save_model",
    "train",
]


def __dir__() -> list[str]:
    return __all__


# Configuration
# -------------

_RATE = Constant(1e-3)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training; numbers and names only, so that files can hold them.

    Parameters
    ----------
    steps : int
        Number of optimiser steps.
    batch : int
        Samples in an optimiser step, over all processes and parts; a multiple of processes times
        `accumulate`.
    schedule : Constant, Cosine, StepDecay or torch.optim.lr_scheduler.LRScheduler
        Learning rate as a function of the step. A scheduler of torch is that of an Adam or AdamW
        with the settings of this configuration; it is stepped once for each step here, and left as
        it was. `ReduceLROnPlateau`, which follows measurements, is refused.
    optimizer : {"adam", "adamw", "sgd"} or Method
        `adam` (weight decay added to the gradient), `adamw` (decoupled), `sgd` (gradient descent
        with the rate as its step), or a method with steps of another kind, such as
        `wflow.nets.control.MSA`.
    betas : tuple of float, default (0.9, 0.999)
        Decay of the two running means, in [0, 1).
    weight_decay : float, default 0.0
        Weight decay >= 0; not applied to vectors, that is biases and norms.
    clip : float, optional
        Largest norm of the gradient, longer ones are scaled to it; None leaves them.
    accumulate : int, default 1
        Parts in which a process computes its share of a batch, for memory.
    precision : {"float32", "bfloat16"}
        `float32`, or `bfloat16` by autocast: weights and optimiser stay as they are.
    compile : bool, default False
        Compile the blocks of continuous-time bodies by `torch.compile`, one graph for all steps;
        the whole network where it has none.
    evaluate_every : int, optional
        Steps between evaluations; there is one before the first step and one after the last in any
        case.
    checkpoint_every : int, default 1000
        Steps between checkpoints; there is one at the end in any case.
    seed : int, default 0
        Of dropout and all that is drawn in a step; data has its own.
    device : str, default "auto"
        `auto`, `cpu`, `cuda`, `cuda:1`, ...

    Raises
    ------
    InputError
        For values out of range.

    Examples
    --------
    >>> from wflow import nets
    >>> config = nets.train.TrainConfig(steps=100, batch=50, schedule=nets.train.Constant(1e-3))
    >>> config.optimizer
    'adam'
    """

    steps: int
    batch: int
    schedule: Schedule | torch.optim.lr_scheduler.LRScheduler = _RATE
    optimizer: "Literal['adam', 'adamw', 'sgd'] | Method" = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float | None = None
    accumulate: int = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    evaluate_every: int | None = None
    checkpoint_every: int = 1000
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "checkpoint_every"):
            keep(self, name, whole(getattr(self, name), name))
        keep(self, "seed", whole(self.seed, "seed", 0))
        if self.evaluate_every is not None:
            keep(self, "evaluate_every", whole(self.evaluate_every, "evaluate_every"))
        if not isinstance(self.optimizer, Method):
            check_choice("optimizer", self.optimizer, ("adam", "adamw", "sgd"))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        keep(self, "compile", switch(self.compile, "compile"))
        betas = listed(self.betas, "betas")
        keep(self, "betas", tuple(number(beta, "a beta", 0) for beta in betas))
        if len(self.betas) != 2 or max(self.betas) >= 1:
            raise InputError(f"betas are {self.betas}: expected two numbers in [0, 1)")
        keep(self, "weight_decay", number(self.weight_decay, "weight_decay", 0))
        if self.clip is not None:
            keep(self, "clip", positive(self.clip, "clip"))
        if isinstance(self.schedule, torch.optim.lr_scheduler.LRScheduler):
            if self.optimizer not in ("adam", "adamw"):
                raise InputError(
                    "schedule is a scheduler of torch, which is made for an Adam or AdamW: "
                    "expected Constant, Cosine or StepDecay for another optimizer"
                )
            numbers = (self.steps, str(self.optimizer), self.betas, self.weight_decay)
            keep(self, "schedule", unrolled(self.schedule, *numbers))
        if not isinstance(self.schedule, Schedule):
            raise InputError(
                f"schedule is {self.schedule!r:.80}: expected Constant, Cosine, StepDecay, or a "
                "scheduler of torch.optim.lr_scheduler"
            )
        text(self.device, "device")
        if isinstance(self.optimizer, Method):
            self.optimizer.check(self)

    @property
    def rule(self) -> Schedule:
        """The learning rate as a function of the step: the schedule, unrolled where torch's."""
        assert isinstance(self.schedule, Schedule)
        return self.schedule

    def as_dict(self) -> dict[str, Any]:
        """Convert the configuration for JSON.

        Returns
        -------
        dict
            Settings by name.
        """
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.optimizer, Method):
            plain["optimizer"] = self.optimizer.as_dict()
        return plain | {"schedule": schedule_dict(self.rule), "betas": list(self.betas)}


class Method:
    """Training method whose steps are not those of an optimiser along a gradient.

    `TrainConfig` takes one as its optimizer; checkpoints, history and progress stay as they are.
    """

    workers = 1
    """Processes that take the steps; more than one import the script that starts them."""

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON, with the name of the method."""
        raise NotImplementedError

    def check(self, config: TrainConfig) -> None:
        """Raise InputError for a configuration that does not fit."""

    def learner(
        self, model: nn.Module, objective: "Objective", config: TrainConfig, processes: Processes
    ) -> "Learner":
        """Return the learner, which computes the steps; parameters as for `Learner`."""
        raise NotImplementedError


# Objective: where batches come from, and the loss of a network on one
# --------------------------------------------------------------------
# [OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
# arXiv 2505.13499.


class Batches(Protocol):
    """Source of data: the whole batch of a step, tensors with one row for each sample.

    A pure function of a seed and the step: every process asks for the whole batch and takes its
    rows, and a resumed run asks for the same again.

    Parameters
    ----------
    *args, **kwargs : object
        Not used: any function of the step is such a source.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import train
    >>> def batches(step):
    ...     x = torch.rand(8, 3, generator=torch.Generator().manual_seed(step))
    ...     return x, x.argmax(1)
    >>> source: train.Batches = batches
    >>> source(0)[1].shape
    torch.Size([8])
    """

    def __call__(self, step: int, /) -> tuple[Tensor, ...]: ...


class Loss(NamedTuple):
    """Loss that an objective returns.

    Parameters
    ----------
    total : Tensor, shape ()
        Mean over the rows of the batch: its gradient is followed.
    parts : dict
        Numbers to record with it, by name.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import train
    >>> train.Loss(torch.tensor(1.5), {"data": torch.tensor(1.0)}).parts
    {'data': tensor(1.)}
    """

    total: Tensor  # one number, the mean over the rows of the batch: its gradient is followed
    parts: dict[str, Tensor]  # numbers to record with it


class Objective(Protocol):
    """Loss of a model on the rows of a batch: a mean over rows, so that parts of a batch average.

    Parameters
    ----------
    *args, **kwargs : object
        Not used: any function ``objective(model, *batch) -> Loss`` is an objective.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import train
    >>> def squares(model, x, y):
    ...     return train.Loss((model(x) - y).square().mean(), {})
    >>> objective: train.Objective = squares
    >>> objective(torch.nn.Identity(), torch.ones(2), torch.zeros(2)).total
    tensor(1.)
    """

    def __call__(self, model: nn.Module, /, *batch: Tensor) -> Loss: ...


@dataclass(frozen=True)
class TransportObjective:
    """loss(output, targets) + weight * cost: [OTT] eq. 8 with lambda = weight."""

    loss: Callable[[Tensor, Tensor], Tensor]
    weight: float

    def __call__(self, model: nn.Module, /, *batch: Tensor) -> Loss:
        *inputs, targets = batch
        result = model(*inputs)
        output, cost = result if isinstance(result, tuple) else (result, result.new_zeros(()))
        if output.dtype in (torch.bfloat16, torch.float16):
            output = output.float()  # a sum of many terms needs the digits
        data = self.loss(output, targets)
        # A weight of 0 is the model without the cost, whose gradient is then not computed either.
        total = data + self.weight * cost if self.weight else data
        return Loss(total, {"data": data, "transport": cost})


def objective(loss_fn: Callable[[Tensor, Tensor], Tensor], weight: float = 0.0) -> Objective:
    """Return the objective loss_fn(output, targets) + weight * cost [1]_.

    Parameters
    ----------
    loss_fn : callable
        Mean loss of outputs and targets, such as `torch.nn.functional.cross_entropy`.
    weight : float, default 0.0
        Weight lambda >= 0 of the transport cost.

    Returns
    -------
    callable
        Function ``objective(model, *inputs, targets) -> Loss``, with the parts `data` and
        `transport`; the model returns (output, cost), or its output alone (cost 0).

    Raises
    ------
    InputError
        For a weight that is negative or not finite.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eq. 8.

    Examples
    --------
    >>> import torch
    >>> from torch.nn import functional
    >>> from wflow import nets
    >>> net = nets.ViT(image=(1, 8, 8), patch=4, width=8)
    >>> net.body = nets.ContinuousTransformer(net.body, steps=2)
    >>> objective = nets.train.objective(functional.cross_entropy, weight=0.01)
    >>> loss = objective(net, torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2]))
    >>> list(loss.parts)
    ['data', 'transport']
    """
    return TransportObjective(function(loss_fn, "loss_fn"), number(weight, "weight", 0))


def cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all samples and tokens.

    Parameters
    ----------
    output : Tensor, shape (..., classes)
        Logits.
    targets : Tensor, shape (...)
        Class numbers.

    Returns
    -------
    Tensor, shape ()
        Mean of the cross-entropies.

    Raises
    ------
    InputError
        For other shapes or types, and class numbers out of range (on the CPU: a GPU is not asked).

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import train
    >>> logits, classes = torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.int64)
    >>> round(float(train.cross_entropy(logits, classes)), 4)
    1.3863
    """
    tensor(output, "output", "real", meta=True)
    tensor(targets, "targets", "whole", meta=True)
    if output.ndim < 2 or targets.shape != output.shape[:-1]:
        raise InputError(
            f"output is of shape {tuple(output.shape)} and targets are {tuple(targets.shape)}: "
            "expected (..., classes) and (...)"
        )
    try:
        return _cross_entropy(output, targets)
    except IndexError as error:
        raise InputError(
            f"targets for {output.shape[-1]} classes: {error}; expected 0 .. classes - 1"
        ) from None


def _cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten().long())


# One step of the optimiser
# -------------------------

TRAINING, EVALUATION = 0, 1  # purposes of random numbers


class Learner:
    """A network and the rule that computes its steps, over all processes.

    Parameters
    ----------
    model : torch.nn.Module
        The network, on its device, with the weights to begin with.
    objective : callable
        Loss of the network on the rows of a batch.
    config : TrainConfig
        How to train.
    processes : Processes
        The processes that share a step.

    Attributes
    ----------
    parameters : object
        Those that are trained.
    parts : object
        Names of the parts of the loss, known after the first step.

    Raises
    ------
    InputError
        For a network without parameters to train.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, config: TrainConfig, processes: Processes
    ) -> None:
        self.objective, self.config, self.processes = objective, config, processes
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("the model has no parameters to train: expected at least one")
        self.parts: tuple[str, ...] | None = None
        self.autocast = partial(
            torch.autocast,
            processes.device.type,
            dtype=torch.bfloat16,
            enabled=config.precision == "bfloat16",
        )

    def step(self, number: int, batch: tuple[Tensor, ...], *, local: bool = False) -> Tensor:
        """Compute a step with a global batch.

        Its random numbers depend on (seed, number, process) alone, so that they are the same
        after a resume and whatever was evaluated before.

        Parameters
        ----------
        number : int
            Of the step, from 0.
        batch : tuple of Tensor
            Tensors of `config.batch` rows, or fewer at the end of an epoch.
        local : bool, default False
            Whether they are the rows of this process alone.

        Returns
        -------
        Tensor
            Loss, its parts, norm of the gradient before clipping: float64 (1 + parts + 1,), still
            on the device; loss and parts are means over the rows of this process.

        Raises
        ------
        InputError
            For an objective that returns anything but a Loss, or other parts than before.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return the state of a checkpoint beside the weights."""
        raise NotImplementedError

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint.

        Parameters
        ----------
        saved : mapping
            `state` of the same training; rates and the like are taken from the configuration.

        Raises
        ------
        InputError
            For a network of which other parameters are trained.
        """
        raise NotImplementedError

    def notes(self) -> dict[str, str]:
        """Return further attributes of the history."""
        return {}

    def close(self) -> None:
        """Release resources at the end of a training."""

    def finite(self) -> bool:
        """Return whether all weights are finite."""
        return bool(torch.stack([p.isfinite().all() for p in self.parameters]).all())

    def values(self, loss: Loss) -> Tensor:
        """Return the numbers of a loss: (1 + parts,), float64, on the device."""
        if not isinstance(loss, Loss) or loss.total.ndim:
            raise InputError(
                "the objective returned no Loss(total, parts) with a total of one number: return "
                "the mean over the rows"
            )
        parts = tuple(loss.parts)
        if self.parts not in (None, parts):
            raise InputError(
                f"the loss has the parts {parts} and had {self.parts}: expected the same each time"
            )
        self.parts = parts
        return torch.stack(
            [value.detach().double() for value in (loss.total, *loss.parts.values())]
        )


class GradientLearner(Learner):
    """Steps of an optimiser along the gradient; parameters as for `Learner`.

    Attributes
    ----------
    optimizer : object
        Torch's Adam, AdamW or SGD over the parameters.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, config: TrainConfig, processes: Processes
    ) -> None:
        super().__init__(model, objective, config, processes)
        self.optimizer = _optimizer(self.parameters, config)
        # A graph of all steps of a system would hold its blocks as many times: one serves them all.
        systems = [part for part in model.modules() if isinstance(part, ContinuousTransformer)]
        self._systems = systems if config.compile else []
        self._compiled = [_compiled(system.blocks) for system in self._systems]
        # Gradients are averaged around the compiled network, which so stays one graph.
        whole = config.compile and not systems
        self._module = processes.wrap(_compiled(model) if whole else model)
        self.optimizer.zero_grad(set_to_none=True)  # left by a caller, or by a crash

    def step(self, number: int, batch: tuple[Tensor, ...], *, local: bool = False) -> Tensor:
        """Compute a step as `Learner` does."""
        config, processes = self.config, self.processes
        redraw(config.seed, TRAINING, number, processes.rank)
        for group in self.optimizer.param_groups:
            group["lr"] = config.rule(number)
            if isinstance(config.rule, Unrolled):
                group["betas"] = config.rule.betas(number)
        pieces = processes.parts(batch, config.accumulate, local=local)
        equal = len({len(piece[0]) for piece in pieces}) == 1
        shares = [len(piece[0]) / sum(len(one[0]) for one in pieces) for piece in pieces]
        values = []
        for place, piece in enumerate(pieces, 1):
            more = place < len(pieces)
            with processes.no_sync(self._module, more=more), self._compiled_blocks():
                with self.autocast():
                    loss = self.objective(self._module, *piece)
                values.append(self.values(loss))
                part = loss.total / len(pieces) if equal else loss.total * shares[place - 1]
                part.backward()
        norm = utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if config.clip is not None:
            utils.clip_grads_with_norm_(self.parameters, config.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        table = torch.stack(values)  # (parts of the batch, quantities)
        mean = table.mean(dim=0) if equal else table.new_tensor(shares) @ table
        return torch.cat([mean, norm.detach().to(mean).reshape(1)])

    def state(self) -> dict[str, Any]:
        """Return the state of the optimiser: its running means, by the number of the parameter."""
        return self.optimizer.state_dict()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the running means of the optimiser, as `Learner` does."""
        own = self.optimizer.state_dict()["param_groups"]
        places = [p for group in self.optimizer.param_groups for p in group["params"]]
        states = saved["state"]
        if [group["params"] for group in saved["param_groups"]] != [
            g["params"] for g in own
        ] or any(state["exp_avg"].shape != places[k].shape for k, state in states.items()):
            raise InputError(
                "the training had other parameters to train: set requires_grad as it was then"
            )
        self.optimizer.load_state_dict({"state": states, "param_groups": own})

    @contextmanager
    def _compiled_blocks(self) -> Iterator[None]:
        """Replace blocks by compiled ones in a step, forward and backward.

        Only then: compiled code does not see the hooks by which a network is inspected later.
        """
        plain = [system.blocks for system in self._systems]
        try:
            for system, blocks in zip(self._systems, self._compiled, strict=True):
                system.blocks = blocks
            yield
        finally:
            for system, blocks in zip(self._systems, plain, strict=True):
                system.blocks = blocks


def _compiled(module: nn.Module) -> nn.Module:
    result = torch.compile(module)
    assert isinstance(result, nn.Module)
    return result


def _optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    decayed = [p for p in parameters if p.ndim >= 2]
    others = [p for p in parameters if p.ndim < 2]
    groups = [
        {"params": members, "weight_decay": decay}
        for members, decay in ((decayed, config.weight_decay), (others, 0.0))
        if members
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.rule(0), fused=True)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.rule(0), betas=config.betas, fused=True)


_READ_EVERY = 10  # steps between readings on a GPU: each waits for the GPU


class NonFiniteLossError(WflowError, ArithmeticError):
    """Error: a loss, a gradient or a weight was infinite or NaN; the checkpoint is unchanged.

    Attributes
    ----------
    step : int
        Number of the step that failed.
    loss, gradient_norm : float
        Its numbers, the norm before clipping.
    history : object
        Xarray.Dataset or None, what was recorded up to that step.

    Examples
    --------
    >>> from wflow.nets import train
    >>> numbers = {"loss": float("nan"), "gradient_norm": 1.0}
    >>> error = train.NonFiniteLossError("loss not finite", step=7, **numbers)
    >>> error.step
    7
    """

    def __init__(self, message: str, *, step: int, loss: float, gradient_norm: float) -> None:
        super().__init__(message)
        self.step, self.loss, self.gradient_norm = step, loss, gradient_norm
        self.history: Any = None

    def __reduce__(self) -> tuple:
        details: dict[str, Any] = {
            "step": self.step,
            "loss": self.loss,
            "gradient_norm": self.gradient_norm,
        }
        return partial(type(self), self.args[0], **details), ()


def train(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    config: TrainConfig,
    *,
    out: str | Path | None = None,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    label: str = "",
    tensorboard: bool = False,
    log: Callable[[int, Mapping[str, float]], object] | None = None,
) -> "Dataset":
    """Train a network in place.

    Parameters
    ----------
    model : torch.nn.Module
        The network; it is moved to the device and left there.
    objective : callable
        Function ``objective(model, *batch) -> Loss``, a mean over the rows of a batch.
    batches : callable, torch.utils.data.Dataset or torch.utils.data.DataLoader
        ``batches(step)`` gives tensors of `config.batch` rows. A data set with a length is read in
        a random order, drawn from (seed, epoch). A DataLoader is read as it is, epoch after epoch;
        its last batch may be shorter. Under torchrun it gives the share of one process, by a
        `DistributedSampler`, and `config.batch` is that of all together.
    config : TrainConfig
        How to train.
    out : str or Path, optional
        Folder for checkpoint.pt, metrics.h5 and metrics.json; None writes nothing.
    evaluate : callable, optional
        Function ``evaluate(model)`` that returns numbers by name, called in evaluation mode,
        without gradients and in the precision of the training; under torchrun in every process, and
        that of process 0 is recorded.
    resume : bool, default False
        Continue from the checkpoint in `out`, where there is one. It must be of the same
        configuration, network, objective and batches (those two are known by name and by their
        public attributes); device and number of processes may be others.
    overwrite : bool, default False
        Replace what `out` holds, as soon as there is something new.
    label : str, default ""
        Name for the progress bar and the metrics.
    tensorboard : bool, default False
        Write the numbers to `out`/tensorboard, too.
    log : callable, optional
        Function ``log(step, numbers)`` for another logger, called in process 0 with the loss, its
        parts, gradient_norm, rate and seconds of every step, and with what `evaluate` returned and
        the number of steps done. The steps never decrease; a resumed training begins with those
        after its checkpoint. What it raises ends the training.

    Returns
    -------
    xarray.Dataset
        Over `step` loss, its parts, gradient_norm (before clipping), rate and seconds (means over
        the steps since the last reading, one in 10 steps on a GPU; the first hold compilation);
        over `evaluation` (steps done) what `evaluate` returned.

    Raises
    ------
    InputError
        For arguments or files that cannot be used; nothing has been overwritten then.
    NonFiniteLossError
        Where loss, gradient or weights stop being finite.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM, after the step in progress and a checkpoint, if
        `out` is given.

    Notes
    -----
    A training that was interrupted and resumed is bitwise identical to an uninterrupted one where
    the operations of torch are reproducible. With a DataLoader this holds for its order (sampler
    with or without a generator, `set_epoch`), for what a data set draws from torch in this process
    or in workers that are not persistent, and for NumPy's global numbers in such workers. The
    batches of the epoch that were taken before are read again for it. It does not hold for a data
    set that draws from NumPy or `random` in this process, for persistent workers, and for samplers
    with another state of their own.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from wflow.nets import train
    >>> net = torch.nn.Linear(3, 1)
    >>> x = torch.rand(20, 3)
    >>> loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=5, shuffle=True)
    >>> objective = train.objective(torch.nn.functional.mse_loss)
    >>> config = train.TrainConfig(steps=8, batch=5, device="cpu")
    >>> train.train(net, objective, loader, config).sizes["step"]
    8
    """
    flags = {"resume": resume, "overwrite": overwrite, "tensorboard": tensorboard}
    resume, overwrite, tensorboard = (switch(value, name) for name, value in flags.items())
    _check_given(model, objective, config, evaluate, label)
    if log is not None:
        function(log, "log", "step and numbers")
    if isinstance(config.optimizer, Method) and config.optimizer.workers > 1:
        check_main_guard()
    folder = None if out is None else path_of(out, "out")
    if folder is None and (resume or overwrite or tensorboard):
        raise InputError("resume, overwrite and tensorboard need a folder: give out")
    if resume and overwrite:
        raise InputError("resume and overwrite are both given: choose one of them")
    board = folder / TENSORBOARD if tensorboard and folder is not None else None
    if board is not None:
        check_tensorboard()
        if board.is_symlink() or (board.exists() and not board.is_dir()):
            raise InputError(
                f"{board} is no folder: expected one for the files of TensorBoard, or nothing; "
                "move it away, or choose another folder"
            )
    processes = process_group(config.device)
    processes.check_batch(config.batch, config.accumulate)
    on_gpu = processes.device.type == "cuda"
    if config.precision == "bfloat16" and on_gpu:
        with torch.cuda.device(processes.device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                raise InputError("this GPU has no bfloat16: choose precision float32")
    source = source_of(batches, batch=config.batch, seed=config.seed, processes=processes)
    known = identity(config.as_dict(), objective, source.identity())
    saved = None

    with ExitStack() as stack:
        if folder is not None:
            look = partial(open_folder, stack, folder, known, model)
            saved = processes.on_rank_zero(partial(look, resume=resume, overwrite=overwrite))
        stack.enter_context(kept_modes(model))
        stack.enter_context(torch.random.fork_rng([processes.device] if on_gpu else []))
        method = config.optimizer
        make = method.learner if isinstance(method, Method) else GradientLearner
        learner = make(model.to(processes.device), objective, config, processes)
        run = _Run(learner, model, source, evaluate, folder, known, label)
        stack.callback(source.close)
        stack.callback(learner.close)
        if saved is not None:
            run.restore(saved)
            saved = None  # as large as three networks
        caught = stack.enter_context(_caught(folder))
        first = processes.rank == 0
        written = stack.enter_context(tensorboard_log(board if first else None, run.done))

        def tell(step: int, numbers: Mapping[str, float]) -> None:
            written(step, numbers)
            if log is not None and first:
                log(step, dict(numbers))

        shown = progress(config.steps, label, enabled=first, bar=not processes.others)
        advance = stack.enter_context(shown)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(processes.device)
        run.go(caught, advance, tell)
        signum = processes.any_signal(caught)
    if signum:
        where = (
            f"came when the training was done: it is whole, in {folder}"
            if run.done == config.steps
            else f"ended the training after step {run.done} of {config.steps}; all of it is in "
            f"{folder}"
        )
        raise interrupted(
            signum,
            f"{where}. Give the same command with --resume (in Python: resume=True) to continue",
        )
    return run.dataset()


class _Run:
    """State of a training: its progress, measurements and files."""

    def __init__(
        self,
        learner: Learner,
        model: nn.Module,
        source: Source,
        evaluate: Callable[[nn.Module], Mapping[str, float]] | None,
        folder: Path | None,
        identity: Mapping[str, Any],
        label: str,
    ) -> None:
        self.learner, self.model, self.evaluate = learner, model, evaluate
        self.source = source
        self.folder, self.identity, self.label = folder, identity, label
        self.config, self.processes = learner.config, learner.processes
        self.history = History()
        self.done = 0  # steps
        self.changed = False  # since the last checkpoint
        self.waiting: list[Tensor] = []  # measurements of steps, not read yet
        self.clock = time.perf_counter()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; where its data or optimiser do not fit, the network stays."""
        self.source.restore(saved.get("data"), saved["step"])
        self.learner.restore(saved["optimizer"])
        self.model.load_state_dict(saved["model"])
        self.history, self.done = History.from_state(saved["history"]), saved["step"]
        # A kill may have come between the checkpoint and the metrics.
        self.processes.on_rank_zero(self._write_metrics)

    def go(self, caught: list[int], advance: Callable[[int], None], log: Log) -> None:
        """Train to the end, or until a signal."""
        config = self.config
        if self.done:
            advance(self.done)
        self.model.train()
        self.clock = time.perf_counter()
        while True:
            if self._due(config.evaluate_every):
                self._evaluate(log)
            if self.changed and self.done and self._due(config.checkpoint_every):
                self._save()
            if self.done == config.steps:
                return
            self.waiting.append(self._step())
            self.done += 1
            self.changed = True
            stopped = self._reading_due(caught) and self._read(caught, advance, log)
            if stopped and self.done < config.steps:
                self._save()
                return

    def dataset(self) -> "Dataset":
        """Return the recorded history."""
        attrs = {
            "label": self.label,
            "config": json.dumps(self.identity),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "complete": int(self.done == self.config.steps),
        }
        return self.history.dataset(attrs | self.learner.notes())

    def _step(self) -> Tensor:
        """Compute a step with the next batch."""
        source, processes = self.source, self.processes
        share = self.config.batch // (processes.count if source.local else 1)
        loaded = isinstance(source, Loaded)
        name = "a batch" if loaded else f"batches({self.done})"
        batch = rows_of(source(self.done), name, share, exact=not loaded)
        try:
            return self.learner.step(self.done, batch, local=source.local)
        except NonFiniteLossError as error:  # of a layer, found within the step
            kept = "" if self.folder is None else f"; what {self.folder} held is kept"
            error.args = (f"in step {self.done}, {error.args[0]}{kept}",)
            error.step, error.history = self.done, self.dataset()
            raise

    def _due(self, every: int | None) -> bool:
        ends = self.done in (0, self.config.steps)
        return ends or (every is not None and self.done % every == 0)

    def _reading_due(self, caught: list[int]) -> bool:
        every = _READ_EVERY if self.processes.device.type == "cuda" else 1
        marks = (every, self.config.evaluate_every, self.config.checkpoint_every)
        # With several processes all must read at the same step, and a signal waits for it.
        return any(map(self._due, marks)) or (self.processes.count == 1 and bool(caught))

    def _read(self, caught: list[int], advance: Callable[[int], None], log: Log) -> int:
        """Read the measurements of the steps since the last reading; return a signal, or 0."""
        table, signum = self.processes.gather(torch.stack(self.waiting), max(caught, default=0))
        seconds = (time.perf_counter() - self.clock) / len(table)
        self.waiting.clear()
        assert self.learner.parts is not None
        self.history.begin(self.learner.parts)
        self.history.at(machine(self.processes.device, self.processes.count))
        for step, row in enumerate(table.tolist(), self.done - len(table)):
            numbers = (*row, self.config.rule(step), seconds)
            self.history.rows.append(numbers)
            if not (math.isfinite(row[0]) and math.isfinite(row[-1])):
                raise self._not_finite("loss or gradient", step)
            log(step, dict(zip(self.history.columns, numbers, strict=True)))
        advance(len(table))
        self.clock = time.perf_counter()
        return signum

    def _evaluate(self, log: Log) -> None:
        before = self.history.evaluations
        if before and before[-1][0] == self.done:  # a resumed run may begin where it was evaluated
            log(*before[-1])  # TensorBoard has dropped it
            return
        if self.evaluate is None:
            return
        redraw(self.config.seed, EVALUATION, self.done, self.processes.rank)
        with evaluating(self.model), torch.no_grad(), self.learner.autocast():
            numbers = self.evaluate(self.model)
        log(self.done, self.history.evaluated(self.done, numbers))
        self.changed = True
        self.clock = time.perf_counter()

    def _save(self) -> None:
        """Write checkpoint and metrics; never weights that are not finite."""
        if not self.learner.finite():
            raise self._not_finite("weights", self.done - 1)
        device = self.processes.device
        self.history.peak_memory = max(self.history.peak_memory, peak_memory(device))
        if self.folder is not None:
            self.processes.on_rank_zero(partial(self._write, self.source.state()))
        self.changed = False
        self.clock = time.perf_counter()

    def _write(self, data: dict[str, Any] | None) -> None:
        assert self.folder is not None
        checkpoints.write(
            self.folder / CHECKPOINT,
            self.model,
            config=json.dumps(self.identity),
            step=self.done,
            optimizer=self.learner.state(),
            history=self.history.state(),
            data=data,
        )
        self._write_metrics()

    def _write_metrics(self) -> None:
        assert self.folder is not None
        dataset = self.dataset()
        arrays, text = partial(dataset.to_netcdf, engine="h5netcdf"), metrics_json(dataset)
        replace(self.folder / METRICS, KINDS[METRICS], arrays)
        write = partial(Path.write_text, data=text, encoding="utf-8")
        replace(self.folder / METRICS_JSON, KINDS[METRICS_JSON], write)

    def _not_finite(self, what: str, step: int) -> NonFiniteLossError:
        """Return the error for a step whose numbers are recorded."""
        numbers = dict(zip(self.history.columns, self.history.rows[step], strict=True))
        loss, norm = numbers["loss"], numbers["gradient_norm"]
        kept = "" if self.folder is None else f"; what {self.folder} held is kept"
        error = NonFiniteLossError(
            f"{what} not finite in step {step}: loss {loss:g}, norm of the gradient {norm:g} "
            f"before clipping{kept}. Lower the rate, clip the gradient, or train in float32",
            step=step,
            loss=loss,
            gradient_norm=norm,
        )
        error.history = self.dataset()
        return error


def _check_given(model: Any, objective: Any, config: Any, evaluate: Any, label: Any) -> None:
    """Raise InputError for arguments of other kinds."""
    module(model, "model")
    if not isinstance(config, TrainConfig):
        raise InputError(f"config is {type(config).__name__}: expected a TrainConfig")
    function(objective, "objective")
    if evaluate is not None:
        if isinstance(evaluate, nn.Module):
            raise InputError(
                f"evaluate is a network ({type(evaluate).__name__}): expected a function of the "
                "network that returns numbers by name"
            )
        function(evaluate, "evaluate")
    text(label, "label")


@contextmanager
def _caught(folder: Path | None) -> Iterator[list[int]]:
    """Catch SIGINT and SIGTERM where there is a folder to continue from."""
    if folder is None:
        yield []
        return
    with caught_signals() as caught:
        yield caught
