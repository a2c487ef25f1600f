"""Training of networks: any module, any objective, batches that are a function of the step.

    history = train.train(
        model,
        train.objective(functional.cross_entropy, weight=0.01),
        batches,
        train.TrainConfig(steps=10_000, batch=100, schedule=train.Constant(5e-4)),
        out="results/run",
        evaluate=lambda model: {"accuracy": accuracy(model)},
    )

Everything random in a step is drawn anew from (seed, step, process), so a run that was cut off and
resumed has the loss curve of an unbroken one, bit for bit, wherever torch's own operations are
reproducible (they are on a CPU), and evaluation changes nothing. Under `torchrun` the processes
share each batch; the result is that of one process, to rounding.
"""

import json
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wflow._signals import caught_signals
from wflow.errors import InputError, Interrupted, WflowError
from wflow.nets import _checkpoint
from wflow.nets._checkpoint import CHECKPOINT, load_model, save_model
from wflow.nets._metrics import (
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
from wflow.nets._modes import evaluating, kept_modes
from wflow.nets._objective import Batches, Loss, Objective, cross_entropy, objective
from wflow.nets._parallel import device, team
from wflow.nets._schedules import Constant, Cosine, Schedule, StepDecay
from wflow.nets._step import EVALUATION, Learner, reseed
from wflow.nets._train_config import TrainConfig
from wflow.progress import progress

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
    "save_model",
    "train",
]

_READ_EVERY = 10  # steps between readings on a GPU: each one waits for it to finish its work


class NonFiniteLossError(WflowError, ArithmeticError):
    """A loss, a gradient or a weight was infinite or NaN; the checkpoint was left as it was.

    Attributes
    ----------
    step : number of the step that failed
    loss, gradient_norm : its numbers, the norm before clipping
    history : xarray.Dataset or None, what was recorded up to that step
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
) -> "Dataset":
    """Train a network in place.

    Parameters
    ----------
    model : the network; it is moved to the device and left there
    objective : objective(model, *batch) -> Loss, a mean over the rows of a batch
    batches : batches(step) -> tensors of `config.batch` rows
    config : how to train
    out : folder for checkpoint.pt, metrics.h5 and metrics.json; None writes nothing
    evaluate : evaluate(model) -> numbers by name, called in evaluation mode, without gradients and
        in the precision of the training; under torchrun in every process, and that of process 0
        is recorded
    resume : go on from the checkpoint in `out`, where there is one. It must be of the same
        configuration, network, objective and batches (those two are known by name and by their
        public attributes); device and number of processes may be others
    overwrite : replace what `out` holds, as soon as there is something new
    label : name for the progress bar and the metrics
    tensorboard : write the numbers to `out`/tensorboard, too

    Returns
    -------
    Dataset: over `step` loss, its parts, gradient_norm (before clipping), rate and seconds (means
    over the steps since the last reading, one in 10 steps on a GPU; the first hold compilation);
    over `evaluation` (steps done) what `evaluate` returned

    Raises
    ------
    InputError
        For arguments or files that cannot be used; nothing has been overwritten then.
    NonFiniteLossError
        Where loss, gradient or weights stop being finite.
    Interrupted
        On SIGINT or SIGTERM, after the step in progress and a checkpoint, if `out` is given.
    """
    folder = None if out is None else Path(out)
    if folder is None and (resume or overwrite or tensorboard):
        raise InputError("resume, overwrite and tensorboard need a folder: give out")
    if tensorboard:
        check_tensorboard()
    crew = team(config.device)
    crew.check_batch(config.batch, config.accumulate)
    on_gpu = crew.device.type == "cuda"
    if config.precision == "bfloat16" and on_gpu:
        with torch.cuda.device(crew.device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                raise InputError("this GPU has no bfloat16: choose precision float32")
    identity = _checkpoint.identity(config.as_dict(), objective, batches)
    saved = None
    if folder is not None:
        look = partial(_checkpoint.open_folder, folder, identity, model)
        saved = crew.share(partial(look, resume=resume, overwrite=overwrite))

    with ExitStack() as stack:
        stack.enter_context(kept_modes(model))
        stack.enter_context(torch.random.fork_rng([crew.device] if on_gpu else []))
        learner = Learner(model.to(crew.device), objective, config, crew)
        run = _Run(learner, model, evaluate, folder, identity, label)
        if saved is not None:
            run.restore(saved)
        caught = stack.enter_context(_caught(folder))
        first = crew.rank == 0
        board = folder / "tensorboard" if tensorboard and folder and first else None
        log = stack.enter_context(tensorboard_log(board, run.done))
        advance = stack.enter_context(progress(config.steps, label, enabled=first))
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(crew.device)
        run.go(batches, caught, advance, log)
        signum = crew.agree(caught)
    if signum:
        where = (
            f"came when the training was done: it is whole, in {folder}"
            if run.done == config.steps
            else f"ended the training after step {run.done} of {config.steps}; all of it is in "
            f"{folder}"
        )
        raise Interrupted(
            f"{signal.Signals(signum).name} {where}. "
            "Give the same command with --resume (in Python: resume=True) to go on",
            signum,
        )
    return run.dataset()


class _Run:
    """The books of a training: how far it has come, what it measured, what it wrote."""

    def __init__(
        self,
        learner: Learner,
        model: nn.Module,
        evaluate: Callable[[nn.Module], Mapping[str, float]] | None,
        folder: Path | None,
        identity: Mapping[str, Any],
        label: str,
    ) -> None:
        self.learner, self.model, self.evaluate = learner, model, evaluate
        self.folder, self.identity, self.label = folder, identity, label
        self.config, self.crew = learner.config, learner.crew
        self.history = History()
        self.done = 0  # steps
        self.changed = False  # since the last checkpoint
        self.waiting: list[Tensor] = []  # what steps measured, not read yet
        self.clock = time.perf_counter()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; where it is damaged, the network stays as it is."""
        try:
            history = _recorded(saved, self.config.steps)
            self.learner.restore(saved["optimizer"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            assert self.folder is not None
            raise InputError(
                f"{self.folder / CHECKPOINT} is damaged ({type(error).__name__}: {error}): take "
                "another copy of it, or train anew with overwrite=True"
            ) from None
        self.model.load_state_dict(saved["model"])
        self.history, self.done = history, saved["step"]
        # A kill may have come between the checkpoint and the metrics.
        self.crew.share(self._write_metrics)

    def go(
        self, batches: Batches, caught: list[int], advance: Callable[[int], None], log: Log
    ) -> None:
        """Train to the end, or until a signal came."""
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
            measured = self.learner.step(self.done, _batch(batches, self.done, config.batch))
            self.waiting.append(measured)
            self.done += 1
            self.changed = True
            stopped = self._reading_due(caught) and self._read(caught, advance, log)
            if stopped and self.done < config.steps:
                self._save()
                return

    def dataset(self) -> "Dataset":
        """What was recorded."""
        found = {
            "label": self.label,
            "config": json.dumps(self.identity),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "complete": int(self.done == self.config.steps),
        }
        return self.history.dataset(found)

    def _due(self, every: int | None) -> bool:
        ends = self.done in (0, self.config.steps)
        return ends or (every is not None and self.done % every == 0)

    def _reading_due(self, caught: list[int]) -> bool:
        every = _READ_EVERY if self.crew.device.type == "cuda" else 1
        marks = (every, self.config.evaluate_every, self.config.checkpoint_every)
        # With several processes all must read at the same step, and a signal waits for it.
        return any(map(self._due, marks)) or (self.crew.count == 1 and bool(caught))

    def _read(self, caught: list[int], advance: Callable[[int], None], log: Log) -> int:
        """Take over what the steps since the last reading measured; the signal that came, or 0."""
        table, signum = self.crew.gather(torch.stack(self.waiting), max(caught, default=0))
        seconds = (time.perf_counter() - self.clock) / len(table)
        self.waiting.clear()
        assert self.learner.parts is not None
        self.history.begin(self.learner.parts)
        self.history.at(machine(self.crew.device, self.crew.count))
        for step, row in enumerate(table.tolist(), self.done - len(table)):
            numbers = (*row, self.config.schedule(step), seconds)
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
        reseed(self.config.seed, EVALUATION, self.done, self.crew.rank)
        with evaluating(self.model), torch.no_grad(), self.learner.autocast():
            found = self.evaluate(self.model)
        log(self.done, self.history.evaluated(self.done, found))
        self.changed = True
        self.clock = time.perf_counter()

    def _save(self) -> None:
        """Write checkpoint and metrics; never weights that mean nothing."""
        if not self.learner.finite():
            raise self._not_finite("weights", self.done - 1)
        device = self.crew.device
        self.history.peak_memory = max(self.history.peak_memory, peak_memory(device))
        if self.folder is not None:
            self.crew.share(self._write)
        self.changed = False
        self.clock = time.perf_counter()

    def _write(self) -> None:
        assert self.folder is not None
        _checkpoint.write(
            self.folder / CHECKPOINT,
            config=self.identity,
            step=self.done,
            model=self.model,
            optimizer=self.learner.optimizer,
            history=self.history.state(),
        )
        self._write_metrics()

    def _write_metrics(self) -> None:
        assert self.folder is not None
        dataset = self.dataset()
        arrays, text = partial(dataset.to_netcdf, engine="h5netcdf"), metrics_json(dataset)
        _checkpoint.replace(self.folder / METRICS, arrays)
        _checkpoint.replace(self.folder / METRICS_JSON, lambda draft: draft.write_text(text))

    def _not_finite(self, what: str, step: int) -> NonFiniteLossError:
        """The error for a step whose numbers are recorded."""
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


def _recorded(saved: Mapping[str, Any], steps: int) -> History:
    """What a checkpoint recorded, if it is one row of numbers for each step that was done."""
    history, done = History.from_state(saved["history"]), saved["step"]
    if len(history.rows) != done or done > steps:
        raise ValueError(f"{len(history.rows)} rows of history and {done} steps of {steps}")
    history.peak_memory = int(history.peak_memory)
    history.dataset({})  # a table of another form fails here, before anything is changed
    return history


def _batch(batches: Batches, step: int, rows: int) -> tuple[Tensor, ...]:
    """The batch of a step, its rows counted."""
    batch = tuple(batches(step))
    shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in batch]
    if not batch or any(not isinstance(shape, tuple) or shape[:1] != (rows,) for shape in shapes):
        raise InputError(
            f"batches({step}) holds {shapes}: expected tensors of {rows} rows, which is the batch "
            "of the configuration"
        )
    return batch


@contextmanager
def _caught(folder: Path | None) -> Iterator[list[int]]:
    """Catch SIGINT and SIGTERM where there is a folder to go on from."""
    if folder is None:
        yield []
        return
    with caught_signals() as caught:
        yield caught
