"""Learning-rate schedules: functions of the step, immutable and stored as JSON.

A scheduler of torch is stepped through the whole training in advance (`unrolled`).
"""

import copy
import hashlib
import math
from array import array
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.optim import lr_scheduler

from wflow._core.checks import number, positive, whole
from wflow._core.errors import InputError
from wflow.nets.checks import listed


def keep(frozen: Any, name: str, value: Any) -> None:
    """Set a field of a frozen dataclass while it is made: the plain number that a check returned.

    NumPy's numbers pass the checks too, and neither JSON nor a checkpoint takes them.
    """
    object.__setattr__(frozen, name, value)


@dataclass(frozen=True)
class Constant:
    """The same rate at every step.

    Parameters
    ----------
    rate : float
        Learning rate > 0.

    Raises
    ------
    InputError
        For a rate that is no number > 0.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.train.Constant(1e-3)(100)
    0.001
    """

    rate: float

    def __post_init__(self) -> None:
        keep(self, "rate", positive(self.rate, "rate"))

    def __call__(self, step: int) -> float:
        whole(step, "step", 0)
        return self.rate


@dataclass(frozen=True)
class Cosine:
    r"""A linear rise, then half a cosine wave down, then the least rate.

    Parameters
    ----------
    rate : float
        Largest learning rate > 0.
    least : float
        Rate at the end, 0 <= least <= rate.
    warm_up : int
        Number W of steps of the rise.
    steps : int
        Step S at which the wave ends, > W.

    Raises
    ------
    InputError
        For numbers out of range.

    Notes
    -----
    With the rise :math:`W` = `warm_up` and the end :math:`S` = `steps`, the rate in step :math:`s`
    is

    .. math::
       \begin{cases}
       \mathrm{rate} \, (s + 1)/(W + 1), & s < W, \\
       \mathrm{least} + (\mathrm{rate} - \mathrm{least})
       \big(1 + \cos(\pi (s - W)/(S - W))\big)/2, & W \le s < S, \\
       \mathrm{least}, & s \ge S.
       \end{cases}

    Examples
    --------
    >>> from wflow import nets
    >>> rate = nets.train.Cosine(1.0, 0.1, warm_up=9, steps=100)
    >>> rate(0), rate(9), rate(100)
    (0.1, 1.0, 0.1)
    """

    rate: float
    least: float
    warm_up: int
    steps: int

    def __post_init__(self) -> None:
        keep(self, "rate", positive(self.rate, "rate"))
        keep(self, "least", number(self.least, "least", 0))
        if self.least > self.rate:
            raise InputError(f"least is {self.least}: expected at most the rate, {self.rate}")
        keep(self, "warm_up", whole(self.warm_up, "warm_up", 0))
        ends = whole(self.steps, "steps", self.warm_up + 1, "the wave ends after the warm-up")
        keep(self, "steps", ends)

    def __call__(self, step: int) -> float:
        step = whole(step, "step", 0)
        if step < self.warm_up:
            return self.rate * (step + 1) / (self.warm_up + 1)
        done = min(1.0, (step - self.warm_up) / (self.steps - self.warm_up))
        return self.least + (self.rate - self.least) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class StepDecay:
    """Rate k from boundary k - 1 on (from 0 for the first), up to and without boundary k.

    Parameters
    ----------
    rates : tuple of float
        Learning rates > 0.
    boundaries : tuple of int
        Steps, one fewer than rates, none below the one before it.

    Raises
    ------
    InputError
        For numbers out of range, or boundaries that do not fit the rates.

    Examples
    --------
    >>> from wflow import nets
    >>> rate = nets.train.StepDecay((1e-2, 1e-3), (100,))
    >>> rate(99), rate(100)
    (0.01, 0.001)
    """

    rates: tuple[float, ...]
    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        rates, boundaries = listed(self.rates, "rates"), listed(self.boundaries, "boundaries")
        keep(self, "rates", tuple(positive(rate, "a rate") for rate in rates))
        keep(self, "boundaries", tuple(whole(step, "a boundary", 0) for step in boundaries))
        if len(self.rates) != len(self.boundaries) + 1:
            raise InputError(
                f"{len(self.rates)} rates with {len(self.boundaries)} boundaries: expected one "
                "boundary between each rate and the next"
            )
        for before, boundary in pairwise(self.boundaries):
            whole(boundary, "a boundary", before, "boundaries do not go back")

    def __call__(self, step: int) -> float:
        step = whole(step, "step", 0)
        return self.rates[sum(step >= boundary for boundary in self.boundaries)]


@dataclass(frozen=True)
class Unrolled:
    """The rates of a scheduler of torch, step by step: made by `unrolled`.

    Parameters
    ----------
    kind : str
        Class of the scheduler.
    rates : tuple of float
        Learning rate of each step.
    pairs : tuple of tuple of float
        Decay of Adam's two running means in each step; one pair where they stay.
    """

    kind: str
    rates: tuple[float, ...]
    pairs: tuple[tuple[float, float], ...]

    def __call__(self, step: int) -> float:
        return self.rates[whole(step, "step", 0)]

    def betas(self, step: int) -> tuple[float, float]:
        """Return the decay of Adam's two running means in a step."""
        return self.pairs[step if len(self.pairs) > 1 else 0]


Schedule = Constant | Cosine | StepDecay | Unrolled


def schedule_dict(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule for JSON: kind and numbers; of an unrolled one the digest of its rates."""
    kind = {"kind": type(schedule).__name__}
    if not isinstance(schedule, Unrolled):
        return kind | asdict(schedule)
    numbers = array("d", [*schedule.rates, *(beta for pair in schedule.pairs for beta in pair)])
    ends = {"first": schedule.rates[0], "last": schedule.rates[-1]}
    return {"kind": schedule.kind} | ends | {"sha256": hashlib.sha256(numbers).hexdigest()[:16]}


def unrolled(
    scheduler: Any, steps: int, optimizer: str, betas: tuple[float, float], weight_decay: float
) -> Unrolled:
    """Return the rates of a scheduler of torch in the steps of a training.

    The scheduler is stepped once for each step, and put back with its optimiser as it was. So
    it becomes a function of the step like any other schedule, which a resumed training repeats.

    Parameters
    ----------
    scheduler : torch.optim.lr_scheduler.LRScheduler
        Any but `ReduceLROnPlateau`, of an optimiser that agrees with the configuration.
    steps : int
        Number of optimiser steps.
    optimizer, betas, weight_decay : str, tuple of float or float
        Those of the configuration.

    Returns
    -------
    Unrolled
        Rates, and decays where the scheduler changes them too, as `OneCycleLR` does.

    Raises
    ------
    InputError
        For a scheduler that follows measurements, that has ended before, whose optimiser differs
        from that of the configuration, and for rates that differ between groups of parameters or
        are negative or not finite.
    """
    kind = type(scheduler).__name__
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        raise InputError(
            "schedule is ReduceLROnPlateau, which follows measurements: expected a schedule that "
            "depends on the step alone, such as CosineAnnealingLR"
        )
    own: Any = scheduler.optimizer
    expected: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    if type(own) is not expected:
        raise InputError(
            f"the {kind} is of the optimiser {type(own).__name__}, and optimizer is {optimizer!r} "
            f"in the configuration: expected {expected.__name__}"
        )
    # `betas` may be cycled by the scheduler: what the optimiser was made with counts.
    settings = {
        "betas": betas,
        "weight_decay": weight_decay,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    }
    for name, value in settings.items():
        if own.defaults[name] != value:
            raise InputError(
                f"the optimiser of the {kind} has {name} = {own.defaults[name]!r}, and the "
                f"training has {value!r}: give the same; TrainConfig sets betas and weight_decay"
            )
    before = [dict(group) for group in own.param_groups]
    state, called = copy.deepcopy(scheduler.state_dict()), getattr(own, "_opt_called", None)
    rates: list[float] = []
    pairs: list[tuple[float, float]] = []
    try:
        own._opt_called = True  # no warning that the optimiser takes no steps here
        for step in range(steps):
            rates.append(_one_rate(kind, own))
            first, second = own.param_groups[0]["betas"]
            pairs.append((float(first), float(second)))
            if step < steps - 1:
                scheduler.step()
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the {kind} ends after {len(rates)} of {steps} steps ({error}): make it for {steps}"
        ) from None
    finally:
        for group, kept in zip(own.param_groups, before, strict=True):
            group.update(kept)
        scheduler.load_state_dict(state)
        if called is None:
            del own._opt_called
        else:
            own._opt_called = called
    one = len(set(pairs)) == 1
    return Unrolled(kind, tuple(rates), tuple(pairs[:1] if one else pairs))


def _one_rate(kind: str, optimizer: Any) -> float:
    """Return the learning rate of an optimiser, the same in all its groups."""
    found = {float(group["lr"]) for group in optimizer.param_groups}
    if len(found) > 1:
        raise InputError(
            f"the {kind} gives groups of parameters different rates, {sorted(found)}: expected one"
        )
    return number(found.pop(), f"a rate of the {kind}", 0)
