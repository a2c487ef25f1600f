"""Training by costates, and by the maximum principle itself, through the trainer of `nets.train`.

[LCTE] Li, Chen, Tai, E, "Maximum principle based algorithms for deep learning", J. Mach. Learn.
Res. 18 (2018).
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wflow._core.checks import function, number, positive, whole
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow.nets.checks import listed, text
from wflow.nets.control.maximise import EndsPart, Group, Maximised, Workers, groups_of
from wflow.nets.control.principle import recorded
from wflow.nets.control.sweep import Generators, Keep, bodies_of, body_of, check_keep, swept
from wflow.nets.dynamics import Dynamics
from wflow.nets.training.loaders import redraw
from wflow.nets.training.parallel import Processes, device
from wflow.nets.training.train import (
    TRAINING,
    Learner,
    Loss,
    Method,
    Objective,
    TrainConfig,
)


@dataclass(frozen=True)
class CostateObjective:
    """An objective whose gradients come from costates."""

    objective: Objective
    keep: Keep = 1

    def __call__(self, model: nn.Module, /, *batch: Tensor) -> Loss:
        if hasattr(getattr(model, "module", model), "_orig_mod"):
            raise InputError(
                "the network is compiled as a whole, and a sweep of costates is no part of a "
                "compiled graph: expected compile=False, or a ContinuousTransformer, whose blocks "
                "are compiled"
            )
        if not bodies_of(model):
            body_of(model)  # raises
        with swept(model, self.keep):
            return self.objective(model, *batch)


def by_costates(objective: Objective, keep: Keep = 1) -> Objective:
    """Return an objective whose gradients come from sweeps of costates.

    Parameters
    ----------
    objective : callable
        An objective, such as that of `wflow.nets.train.objective`.
    keep : int or "sqrt", default 1
        As for `gradients`.

    Returns
    -------
    callable
        An objective with the same values and gradients, for any optimiser of
        `wflow.nets.train.TrainConfig`: with "sgd" it is gradient descent by the maximum principle
        [1]_.

    Raises
    ------
    InputError
        For what is no function, `keep` < 1, and in a training for a network without a body of
        layers.

    References
    ----------
    .. [1] Croizet et al., "GPT Project Part 1 Report" (2025), algorithm 2, with the sign of its
       costates corrected.

    Examples
    --------
    >>> import torch
    >>> from torch.nn import functional
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=4, scheme="heun")
    >>> x, labels = torch.randn(16, 2), torch.arange(16) % 2
    >>> objective = nets.control.by_costates(nets.train.objective(functional.cross_entropy, 1.0))
    >>> config = nets.train.TrainConfig(steps=3, batch=16, optimizer="sgd", device="cpu")
    >>> nets.train.train(net, objective, lambda step: (x, labels), config).sizes["step"]
    3
    """
    return CostateObjective(function(objective, "objective"), check_keep(keep))


@dataclass(frozen=True, kw_only=True)
class MSA(Method):
    r"""Method of successive approximations: each layer maximises its Hamiltonian [1]_.

    It is an `optimizer` of `wflow.nets.train.TrainConfig`. A step computes states and costates of
    the batch, and lets each layer maximise its augmented Hamiltonian with these fixed, by a few
    L-BFGS steps; layers that share weights maximise the sum, and opening and classifier are
    separate layers. The learning rate is not used.

    Parameters
    ----------
    rho : float, default 1.0
        Weight of the augmentation; 0 is the plain method, whose steps are always taken.
    iterations : int, default 10
        L-BFGS steps of a layer.
    tolerance : float, default 1e-3
        Share of the first gradient at which a layer has converged.
    doublings : int, default 20
        How often rho doubles within a step until the objective falls. Where it never does, the
        weights stay as they were, the step counts as a failure, and rho returns to the value
        given. After a step that needed none, rho is halved, down to that value.
    workers : int, default 1
        Processes that maximise layers; the result is the same on one kind of device. They import
        the script that trains: there the call stands below ``if __name__ == "__main__":``.
    devices : tuple of str, optional
        Devices on which the processes work, in turn, such as ("cuda:0", "cuda:1").

    Raises
    ------
    InputError
        For numbers out of range; in a training for a configuration with parts of a batch, several
        processes, clipping, weight decay, compilation or bfloat16, a network with trained lengths
        of steps or without a body of layers, for dropout with devices of another kind, and for a
        plain method (rho = 0) whose Hamiltonian has no maximum, as that of the weights before the
        layers, such as the embedding of a GPT, never has; for a process that was killed, and a
        script without the guard.

    Notes
    -----
    .. math:: u_l \leftarrow \arg\max_w \; H(x_l, p_{l+1}, w)
       - \frac{\rho}{2 s m} |f(x_l, w) - \dot x_l|^2
       - \frac{\rho s m}{2} |\nabla_x H(x_l, p_{l+1}, w) + \dot p_l|^2,

    with :math:`\dot x_l, \dot p_l` of the iterate, summed over the s stages of a scheme and the m
    samples of the batch, over which the loss is taken to be a mean: so rho means the same for all
    sizes of a batch. The history
    has, beside the loss before the step, `loss_after` it, `rho` at which it was taken, `trials`,
    `failed` (1 for a failure), the number of `unconverged` layers, and their `gain`; its attribute
    `unconverged` has the number of such steps by layer. What the step cost is in
    `forward`, evaluations of a layer (at all stages, on the whole batch), and `backward`,
    vector-Jacobian products of one, both as means over the layers, with sweep, L-BFGS and all
    trials; the derivative of a product, which the augmentation needs, counts as two. A step of
    gradient descent has forward 1 and backward 1 by back-propagation, forward 2 by costates.

    References
    ----------
    .. [1] Li, Chen, Tai and E, "Maximum principle based algorithms for deep learning", J. Mach.
       Learn. Res. 18 (2018), algorithms 1 and 2.

    Examples
    --------
    >>> import torch
    >>> from torch.nn import functional
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=4)
    >>> x, labels = torch.randn(16, 2), torch.arange(16) % 2
    >>> objective = nets.train.objective(functional.cross_entropy, 1.0)
    >>> method = nets.control.MSA(rho=1.0, iterations=5)
    >>> config = nets.train.TrainConfig(steps=2, batch=16, optimizer=method, device="cpu")
    >>> found = nets.train.train(net, objective, lambda step: (x, labels), config)
    >>> bool((found.loss_after < found.loss).all())
    True
    """

    rho: float = 1.0
    iterations: int = 10
    tolerance: float = 1e-3
    doublings: int = 20
    workers: int = 1
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kept = {
            "rho": number(self.rho, "rho", 0),
            "iterations": whole(self.iterations, "iterations"),
            "tolerance": positive(self.tolerance, "tolerance"),
            "doublings": whole(self.doublings, "doublings", 0),
            "workers": whole(self.workers, "workers"),
            "devices": tuple(text(each, "a device") for each in listed(self.devices, "devices")),
        }
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        if self.devices and self.workers == 1:
            raise InputError("devices are given, and workers is 1: expected one worker for each")

    def as_dict(self) -> dict[str, Any]:
        """Convert the settings for JSON; workers and devices change no number.

        Returns
        -------
        dict
            Settings by name.
        """
        settings = asdict(self)
        for name in ("workers", "devices"):
            del settings[name]
        return {"kind": "MSA"} | settings

    def check(self, config: TrainConfig) -> None:
        """Check that a configuration fits.

        Parameters
        ----------
        config : TrainConfig
            The configuration.

        Raises
        ------
        InputError
            For one with parts of a batch, clipping, weight decay, compilation or bfloat16.
        """
        expected = {
            "accumulate": 1, "clip": None, "weight_decay": 0.0, "compile": False,
            "precision": "float32",
        }  # fmt: skip
        for name, value in expected.items():
            if getattr(config, name) != value:
                raise InputError(
                    f"{name} is {getattr(config, name)!r}, and the optimizer is MSA, which "
                    f"maximises Hamiltonians of whole batches in one process: expected {value!r}"
                    + ("; a penalty of the weights is penalty=" if name == "weight_decay" else "")
                )

    def learner(
        self, model: nn.Module, objective: Objective, config: TrainConfig, processes: Processes
    ) -> "MaximumPrinciple":
        """Return the learner, which computes the steps.

        Parameters
        ----------
        model : torch.nn.Module
            The network.
        objective : callable
            Loss of the network on the rows of a batch.
        config : TrainConfig
            How to train.
        processes : Processes
            This process alone.

        Returns
        -------
        MaximumPrinciple
            It.

        Raises
        ------
        InputError
            For several processes, trained lengths of steps, and a network without a body of layers.
        """
        return MaximumPrinciple(self, model, objective, config, processes)


_NUMBERS = (
    "loss_after", "rho", "trials", "failed", "unconverged", "gain", "forward", "backward",
)  # fmt: skip


class MaximumPrinciple(Learner):
    """Steps of the method of successive approximations; parameters as for `Learner`."""

    def __init__(
        self,
        method: MSA,
        model: nn.Module,
        objective: Objective,
        config: TrainConfig,
        processes: Processes,
    ) -> None:
        super().__init__(model, objective, config, processes)
        if processes.count > 1:
            raise InputError(
                "several processes share the batch, and MSA takes whole ones: start one process, "
                "and give MSA workers"
            )
        self.body = body_of(model)
        if isinstance(self.body, Dynamics) and self.body.learn_lengths:
            raise InputError(
                "the lengths of the steps are trained, and the Hamiltonian is linear in them: "
                "expected learn_lengths=False with MSA, or an optimizer along by_costates gradients"
            )
        for name in method.devices:
            device(name)
        if isinstance(objective, CostateObjective):  # the steps are made of sweeps in any case
            self.objective = objective.objective
        self.method, self.model = method, model
        self.workers = Workers(method.workers, method.devices)
        self.rho = method.rho
        self.unconverged: Counter[str] = Counter()  # steps by group
        self.risen = False  # whether a plain step raised the loss

    def step(self, number: int, batch: tuple[Tensor, ...], *, local: bool = False) -> Tensor:
        """Compute a step as `Learner` does."""
        method, processes = self.method, self.processes
        redraw(self.config.seed, TRAINING, number, processes.rank)
        (piece,) = processes.parts(batch, 1, local=local)
        generators = Generators(processes.device)
        random = generators.state()
        seen: list[Loss] = []

        def objective() -> Tensor:
            loss = self.objective(self.model, *piece)
            if not isinstance(loss, Loss):
                self.values(loss)  # raises
            if not seen:
                seen.append(loss)
            return loss.total

        def repeated() -> float:
            generators.restore(random)
            with torch.no_grad():
                return float(objective())

        record, before, gradients = recorded(self.model, objective)
        noted, loss = generators.state(), seen[0]
        norm = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(g.double()) for g in gradients.values()])
        )
        start = [p.detach().clone() for p in self.parameters]
        ends = EndsPart(self.body, objective, record, random)
        groups = groups_of(self.model, record, ends)
        rho, after, trials = self.rho, before, 0
        layers = len(record.plan.steps)
        forward, backward = 2.0, 1.0  # the sweep
        while trials <= method.doublings:
            trials += 1
            found = self.workers.maximise(groups, rho, method.iterations, method.tolerance)
            forward += 1 + sum(one.forward for one in found) / layers
            backward += sum(one.backward for one in found) / layers
            bounded = not any(one.unbounded for one in found)
            after = repeated() if bounded else before
            if bounded and (not method.rho or after < before):
                break
            with torch.no_grad():
                for p, value in zip(self.parameters, start, strict=True):
                    p.copy_(value)
            self._check_bounded(groups, found, number, record.gamma)
            if all(one.residual == 0 for one in found):
                break  # a stationary point, which no step leaves
            rho = 2 * rho if trials <= method.doublings else rho
        generators.restore(noted)
        failed = bool(method.rho) and not after < before
        if failed:
            after = before
        self.rho = method.rho if failed else max(method.rho, rho / 2 if trials == 1 else rho)
        missed = [
            group.label for group, one in zip(groups, found, strict=True) if not one.converged
        ]
        self.unconverged.update(missed)
        if not method.rho and not after <= before and not self.risen:
            self.risen = True
            warn(
                "a step of the plain method of successive approximations raised the loss, which "
                "need not converge: see loss_after of the history, or give rho > 0",
                AccuracyWarning,
            )
        values = {
            "loss_after": after,
            "rho": rho,
            "trials": trials,
            "failed": failed and any(one.residual > 0 for one in found),
            "unconverged": len(missed),
            "gain": 0.0 if failed else math.fsum(one.gain for one in found),
            "forward": forward,
            "backward": backward,
        }
        parts = {name: norm.new_tensor(float(values[name])) for name in _NUMBERS}
        row = self.values(Loss(loss.total, loss.parts | parts))
        return torch.cat([row, norm.detach().to(row).reshape(1)])

    def _check_bounded(
        self, groups: list[Group], found: list[Maximised], number: int, gamma: float
    ) -> None:
        """Raise InputError for a Hamiltonian without a maximum."""
        for group, one in zip(groups, found, strict=True):
            if not one.unbounded:
                continue
            cure = "give rho > 0, the extended method"
            if not group.inside:
                cure += ", for no running cost is on the weights outside of the layers"
            elif isinstance(self.body, Dynamics) and not gamma:
                cure = (
                    f"give the running cost a weight > 0 in the objective, where it is 0, or {cure}"
                )
            else:
                cure = (
                    "give a running cost (transport > 0 or penalty > 0 of control.Dynamics or "
                    f"ControlledResNet), or {cure}"
                )
            raise InputError(
                f"the Hamiltonian of {group.label} has no maximum in step {number}: it grows "
                f"without bound along {one.unbounded}, in which it is linear far out: {cure}"
            )

    def state(self) -> dict[str, Any]:
        """Return the state as `Learner` does."""
        return {"rho": self.rho, "unconverged": dict(self.unconverged)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the state as `Learner` does."""
        self.rho, self.unconverged = saved["rho"], Counter(saved["unconverged"])

    def notes(self) -> dict[str, str]:
        """Return attributes as `Learner` does."""
        return {"unconverged": json.dumps(self.unconverged)}

    def close(self) -> None:
        """End the processes."""
        self.workers.close()
