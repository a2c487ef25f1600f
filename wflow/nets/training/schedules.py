"""Learning-rate schedules: functions of the step, immutable and stored as JSON."""

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

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
    """

    rate: float

    def __post_init__(self) -> None:
        keep(self, "rate", positive(self.rate, "rate"))

    def __call__(self, step: int) -> float:
        whole(step, "step", 0)
        return self.rate


@dataclass(frozen=True)
class Cosine:
    """A linear rise, then half a cosine wave down, then the least rate.

        rate (s + 1) / (W + 1)                                         for s < W
        least + (rate - least) (1 + cos(pi (s - W) / (S - W))) / 2     for W <= s < S
        least                                                          for s >= S

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


Schedule = Constant | Cosine | StepDecay


def schedule_dict(schedule: Schedule) -> dict[str, Any]:
    """A schedule for JSON: its kind and its numbers."""
    return {"kind": type(schedule).__name__, **asdict(schedule)}
