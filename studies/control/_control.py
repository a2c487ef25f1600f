"""What the studies of [GPTOC] share: windows of a text, trainings, tables.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow import nets
from wflow.study import networks
from wflow.study.networks import Results

FloatArray = NDArray[np.float64]
Pair = tuple[FloatArray, FloatArray]  # what is said to be more, and what less, by seed


def window_set(text: nets.data.Text, context: int) -> Any:
    """Return windows of the training part that do not overlap, with the next tokens: a data set."""
    from torch.utils.data import TensorDataset

    ((inputs, targets), *_) = nets.data.windows(
        text.train, context=context, batch=len(text.train), vocabulary=text.vocabulary
    )  # all whole windows; what is left over comes behind them
    return TensorDataset(inputs, targets)


def config(steps: int, batch: int, rate: float, seed: int, **given: Any) -> nets.train.TrainConfig:
    """Return settings of a training at a constant rate."""
    schedule = nets.train.Constant(rate)
    return nets.train.TrainConfig(steps=steps, batch=batch, schedule=schedule, seed=seed, **given)


def columns(results: Results, names: Iterable[str]) -> Callable[..., list[str]]:
    """Make columns of a table of some networks, as `networks.column` does of all."""
    return partial(networks.column, Results({name: results.records[name] for name in names}, {}))
