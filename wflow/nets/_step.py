"""One step of the optimiser: the arithmetic of a training, without its books."""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import utils

from wflow.errors import InputError
from wflow.nets._objective import Loss, Objective
from wflow.nets._parallel import Team
from wflow.nets._train_config import TrainConfig

TRAINING, EVALUATION = 0, 1  # purposes of random numbers


class Learner:
    """A network with its optimiser, over all processes.

    Parameters
    ----------
    model : the network, on its device, with the weights to begin with
    objective : loss of the network on the rows of a batch
    config : how to train
    crew : the processes

    Attributes
    ----------
    parameters : those that are trained
    optimizer : torch's Adam or AdamW over them
    parts : names of the parts of the loss, known after the first step

    Raises
    ------
    InputError
        For a network without parameters to train.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, config: TrainConfig, crew: Team
    ) -> None:
        self.objective, self.config, self.crew = objective, config, crew
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = _optimizer(self.parameters, config)
        self.parts: tuple[str, ...] | None = None
        # Gradients are averaged around the compiled network, which so stays one graph.
        called = torch.compile(model) if config.compile else model
        assert isinstance(called, nn.Module)
        self._module = crew.wrap(called)
        self.autocast = partial(
            torch.autocast,
            crew.device.type,
            dtype=torch.bfloat16,
            enabled=config.precision == "bfloat16",
        )

    def step(self, number: int, batch: tuple[Tensor, ...]) -> Tensor:
        """Take a step with a global batch.

        Its random numbers depend on (seed, number, process) alone, so that they are the same
        after a resume and whatever was evaluated before.

        Parameters
        ----------
        number : of the step, from 0
        batch : tensors of `config.batch` rows

        Returns
        -------
        loss, its parts, norm of the gradient before clipping: float64 (1 + parts + 1,), still on
        the device; loss and parts are means over the rows of this process

        Raises
        ------
        InputError
            For an objective that returns anything but a Loss, or other parts than before.
        """
        config, crew = self.config, self.crew
        reseed(config.seed, TRAINING, number, crew.rank)
        for group in self.optimizer.param_groups:
            group["lr"] = config.schedule(number)
        pieces = crew.parts(batch, config.accumulate)
        values = []
        for place, piece in enumerate(pieces, 1):
            with crew.quiet(self._module, more=place < len(pieces)):
                with self.autocast():
                    loss = self.objective(self._module, *piece)
                values.append(self._values(loss))
                (loss.total / len(pieces)).backward()
        norm = utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if config.clip is not None:
            utils.clip_grads_with_norm_(self.parameters, config.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mean = torch.stack(values).mean(dim=0)
        return torch.cat([mean, norm.detach().to(mean).reshape(1)])

    def finite(self) -> bool:
        """Whether all weights are finite."""
        return bool(torch.stack([p.isfinite().all() for p in self.parameters]).all())

    def _values(self, loss: Loss) -> Tensor:
        """The numbers of a loss: (1 + parts,), float64, on the device."""
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


def reseed(*key: int) -> None:
    """Draw torch's random numbers from here on from a key: seed, purpose, step, process."""
    torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1)


def _optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    if not parameters:
        raise InputError("the model has no parameters to train: expected at least one")
    decayed = [p for p in parameters if p.ndim >= 2]
    others = [p for p in parameters if p.ndim < 2]
    groups = [
        {"params": members, "weight_decay": decay}
        for members, decay in ((decayed, config.weight_decay), (others, 0.0))
        if members
    ]
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.schedule(0), betas=config.betas, fused=True)
