"""What is trained: where batches come from, and the loss of a network on one.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from wflow._checks import number


class Batches(Protocol):
    """Source of data: the whole batch of a step, tensors with one row for each sample.

    A pure function of its own seed and the step: every process asks for the whole batch and takes
    its rows, and a resumed run asks for the same again.
    """

    def __call__(self, step: int, /) -> tuple[Tensor, ...]: ...


class Loss(NamedTuple):
    """What an objective returns."""

    total: Tensor  # one number, the mean over the rows of the batch: its gradient is followed
    parts: dict[str, Tensor]  # numbers to record with it


class Objective(Protocol):
    """The loss of a model on the rows of a batch; a mean over rows, so that parts average."""

    def __call__(self, model: nn.Module, /, *batch: Tensor) -> Loss: ...


@dataclass(frozen=True)
class TransportObjective:
    """loss(output, targets) + weight * cost: [OTT] eq. 8 with lambda = weight."""

    loss: Callable[[Tensor, Tensor], Tensor]
    weight: float

    def __call__(self, model: nn.Module, /, *batch: Tensor) -> Loss:
        *inputs, targets = batch
        found = model(*inputs)
        output, cost = found if isinstance(found, tuple) else (found, found.new_zeros(()))
        if output.dtype in (torch.bfloat16, torch.float16):
            output = output.float()  # a sum of many terms needs the digits
        data = self.loss(output, targets)
        # A weight of 0 is the model without the cost, whose gradient is then not computed either.
        total = data + self.weight * cost if self.weight else data
        return Loss(total, {"data": data, "transport": cost})


def objective(loss_fn: Callable[[Tensor, Tensor], Tensor], weight: float = 0.0) -> Objective:
    """The objective loss_fn(output, targets) + weight * cost ([OTT] eq. 8, lambda = weight).

    Parameters
    ----------
    loss_fn : mean loss of outputs and targets, such as `torch.nn.functional.cross_entropy`
    weight : weight lambda >= 0 of the transport cost

    Returns
    -------
    objective(model, *inputs, targets) -> Loss, with the parts `data` and `transport`; the model
    returns (output, cost), or its output alone (cost 0)

    Raises
    ------
    InputError
        For a weight that is negative or not finite.
    """
    return TransportObjective(loss_fn, number(weight, "weight", 0))


def cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all samples and tokens.

    Parameters
    ----------
    output : logits (..., classes)
    targets : class numbers (...)
    """
    return nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten())
