"""Flags of the studies of stability, which compare flows at the same times."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from wflow import InputError, study
from wflow._core.checks import count_steps, positive
from wflow.study import FlowName


def _perturbation(value: float, name: str) -> None:
    if positive(value, name) < 1e-7:  # rounding leaves the digits that rates and slopes need
        raise InputError(f"{name} has {value:g}: expected 1e-07 or more")


Perturbation = Annotated[float, study.Checked(_perturbation)]
"""Type of a flag that is the size of a perturbation of tokens or heads."""


@dataclass(frozen=True, kw_only=True)
class ComparedFlows(study.TokenFlags):
    """Flags of both studies."""

    n: study.Count | None = 100
    """Number of tokens; of digits or a FILE a random subset of that size."""
    sigma2: study.Nonnegative = 2.0
    """Variance sigma^2 of the noise of the Ornstein-Uhlenbeck heads per unit time, at size 1."""
    flow: FlowName = "softmax"
    """Softmax attention, attention without denominator, or flow of the effective mobility."""
    times: study.Count = 20
    """Number of times, after the start, at which W₂ is computed."""

    def check(self) -> None:
        super().check()
        steps = count_steps(self.t_final, self.dt)
        if self.times > steps:
            raise InputError(f"--times is {self.times}: expected at most the {steps} steps")

    def snapshots(self) -> NDArray[np.float64]:
        return np.linspace(0, self.t_final, self.times + 1)
