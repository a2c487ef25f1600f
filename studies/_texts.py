"""What the studies of GPTs share: objective, test loss, and the final norm as part of the velocity.

Torch is loaded when something is trained: the flags and their `--help` work without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from wflow import nets
from wflow.study.networks import Run

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EVALUATION = 16  # windows at a time


class Size(NamedTuple):
    """Blocks, heads and width of a network."""

    depth: int
    heads: int
    width: int

    def __str__(self) -> str:
        return f"{self.depth} x {self.heads} x {self.width}"


@dataclass(frozen=True)
class NextToken:
    """Mean cross-entropy of the next tokens, without the logits of all of them at a time.

    With a weight the transport cost is added, `weight` times; None neither adds nor records it.
    `scale` multiplies the sum: the habit of published code that does not divide the gradient by
    the number of parts of a batch.
    """

    weight: float | None = None
    scale: float = 1.0

    def __call__(self, model: torch.nn.Module, /, *batch: Tensor) -> nets.train.Loss:
        losses, cost = model(*batch)
        data = losses.mean()
        if self.weight is None:
            return nets.train.Loss(self.scale * data, {"data": data})
        total = data + self.weight * cost if self.weight else data
        return nets.train.Loss(self.scale * total, {"data": data, "transport": cost})


def loss_on(net: torch.nn.Module, tokens: Tensor, context: int, device: torch.device) -> float:
    """Mean loss per token over all of a text, in windows that do not overlap."""
    import torch

    total = 0.0
    with nets.blocks.evaluating(net), torch.no_grad():
        for inputs, targets in nets.data.windows(tokens, context=context, batch=EVALUATION):
            total += float(net(inputs.to(device), targets.to(device)).output.double().sum())
    return total / (len(tokens) - 1)


def with_final_norm(net: nets.GPT, steps: int) -> nets.GPT:
    """Make blocks and final norm together the velocity, as the published code with norms does.

    The hidden states at the end time then go to the logits as they are. The number of parameters
    stays the same.
    """
    import torch

    assert isinstance(net.body, nets.blocks.Stack) and isinstance(net.head, torch.nn.Module)
    velocity = [*net.body, net.head.norm]
    net.head.norm = torch.nn.Identity()
    net.body = nets.ContinuousTransformer(velocity, steps=steps)
    return net


def training(
    net: nets.GPT,
    objective: nets.train.Objective,
    text: nets.data.Text,
    setup: Any,
    flags: Any,
    seed: int,
    *,
    warm_up: int,
    betas: tuple[float, float],
) -> Run:
    """AdamW on random crops at a rate that falls to a tenth, as nanoGPT trains.

    `setup` has the sizes of batches and the rate, by the names of the studies of Shakespeare.
    """
    rows = setup.batch * setup.accumulate
    config = nets.train.TrainConfig(
        steps=setup.iterations,
        batch=rows,
        accumulate=setup.accumulate,
        schedule=nets.train.Cosine(
            rate=setup.rate,
            least=setup.rate / 10,
            warm_up=warm_up,
            steps=max(setup.iterations, warm_up + 1),
        ),
        optimizer="adamw",
        betas=betas,
        weight_decay=0.1,
        clip=1.0,
        evaluate_every=setup.evaluate_every,
        checkpoint_every=setup.evaluate_every,
        seed=seed,
        device=flags.device,
        precision=flags.precision,
        compile=flags.compile,
    )
    part = text.train[: max(setup.context + 1, int(setup.share * len(text.train)))]
    batches = nets.data.CropBatches(
        part, context=setup.context, batch=rows, seed=seed, vocabulary=text.vocabulary
    )
    device = nets.train.device(flags.device)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return {"test_loss": loss_on(model, text.test, setup.context, device)}

    return Run(net, objective, batches, config, evaluate)
