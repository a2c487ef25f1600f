"""One step of the optimiser: the arithmetic of a training, without its books."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import utils

from wflow.errors import InputError
from wflow.nets._objective import Loss, Objective
from wflow.nets._parallel import Team
from wflow.nets._train_config import TrainConfig
from wflow.nets.continuous import ContinuousTransformer

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
        # A graph of all steps of a system would hold its blocks as many times: one serves them all.
        systems = [part for part in model.modules() if isinstance(part, ContinuousTransformer)]
        self._systems = systems if config.compile else []
        self._compiled = [_compiled(system.blocks) for system in self._systems]
        # Gradients are averaged around the compiled network, which so stays one graph.
        whole = config.compile and not systems
        self._module = crew.wrap(_compiled(model) if whole else model)
        self.autocast = partial(
            torch.autocast,
            crew.device.type,
            dtype=torch.bfloat16,
            enabled=config.precision == "bfloat16",
        )
        self.optimizer.zero_grad(set_to_none=True)  # what a caller, or a crash, has left there

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
            more = place < len(pieces)
            with crew.quiet(self._module, more=more), self._compiled_blocks():
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

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over the running means of the optimiser from a checkpoint.

        Parameters
        ----------
        saved : `optimizer.state_dict()` of the same network; rates and the like are taken from the
            configuration

        Raises
        ------
        AttributeError, KeyError, TypeError, ValueError
            For a state that is not of this optimiser; nothing has changed then.
        """
        own = self.optimizer.state_dict()["param_groups"]
        if [group["params"] for group in saved["param_groups"]] != [g["params"] for g in own]:
            raise ValueError("the optimiser had other parameters")
        # State is numbered in the order of the groups, which is not that of the network.
        places = [p for group in self.optimizer.param_groups for p in group["params"]]
        for place, state in saved["state"].items():
            if place not in range(len(places)):
                raise ValueError(f"the optimiser has no parameter {place}")
            shapes = {"exp_avg": places[place].shape, "exp_avg_sq": places[place].shape, "step": ()}
            for name, shape in shapes.items():
                if state[name].shape != shape:
                    raise ValueError(f"{name} of parameter {place} is of another shape")
        self.optimizer.load_state_dict({"state": saved["state"], "param_groups": own})

    def finite(self) -> bool:
        """Whether all weights are finite."""
        return bool(torch.stack([p.isfinite().all() for p in self.parameters]).all())

    @contextmanager
    def _compiled_blocks(self) -> Iterator[None]:
        """Compiled blocks in place of the plain ones for a step, forward and backward.

        Only then: compiled code does not see the hooks by which a network is looked at later.
        """
        plain = [system.blocks for system in self._systems]
        try:
            for system, blocks in zip(self._systems, self._compiled, strict=True):
                system.blocks = blocks
            yield
        finally:
            for system, blocks in zip(self._systems, plain, strict=True):
                system.blocks = blocks

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


def _compiled(module: nn.Module) -> nn.Module:
    found = torch.compile(module)
    assert isinstance(found, nn.Module)
    return found


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
