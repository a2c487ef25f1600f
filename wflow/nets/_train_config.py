"""The configuration of a training."""

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from wflow._checks import check_choice, number, positive, whole
from wflow.errors import InputError
from wflow.nets._schedules import Constant, Schedule, keep, schedule_dict

_RATE = Constant(1e-3)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train; numbers and names only, so that files can hold it.

    Parameters
    ----------
    steps : number of optimiser steps
    batch : samples in an optimiser step, over all processes and parts; a multiple of processes
        times `accumulate`
    schedule : learning rate as a function of the step: `Constant`, `Cosine`, `StepDecay`
    optimizer : `adam` (weight decay added to the gradient) or `adamw` (decoupled)
    betas : decay of the two running means, in [0, 1)
    weight_decay : >= 0; not applied to vectors, that is biases and norms
    clip : largest norm of the gradient, longer ones are scaled to it; None leaves them
    accumulate : parts in which a process computes its share of a batch, for memory
    precision : `float32`, or `bfloat16` by autocast: weights and optimiser stay as they are
    compile : compile the blocks of continuous-time bodies by `torch.compile`, one graph for all
        steps; the whole network where it has none
    evaluate_every : steps between evaluations; there is one before the first step and one after
        the last in any case
    checkpoint_every : steps between checkpoints; there is one at the end in any case
    seed : of dropout and all that is drawn in a step; data has its own
    device : `auto`, `cpu`, `cuda`, `cuda:1`, ...

    Raises
    ------
    InputError
        For values out of range.
    """

    steps: int
    batch: int
    schedule: Schedule = _RATE
    optimizer: Literal["adam", "adamw"] = "adam"
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
        if not isinstance(self.schedule, Schedule):
            raise InputError(f"schedule is {self.schedule!r}: expected Constant, Cosine, StepDecay")
        check_choice("optimizer", self.optimizer, ("adam", "adamw"))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        if not isinstance(self.compile, bool | np.bool_):
            raise InputError(f"compile is {self.compile!r}: expected True or False")
        keep(self, "compile", bool(self.compile))
        keep(self, "betas", tuple(number(beta, "a beta", 0) for beta in self.betas))
        if len(self.betas) != 2 or max(self.betas) >= 1:
            raise InputError(f"betas are {self.betas}: expected two numbers in [0, 1)")
        keep(self, "weight_decay", number(self.weight_decay, "weight_decay", 0))
        if self.clip is not None:
            keep(self, "clip", positive(self.clip, "clip"))

    def as_dict(self) -> dict[str, Any]:
        """The configuration for JSON."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {"schedule": schedule_dict(self.schedule), "betas": list(self.betas)}
