"""Training as optimal control: costates, the Hamiltonian, and the maximum principle.

    net = nets.ControlledResNet(2, layers=20, scheme="rk4", transport=0.01)
    found = control.gradients(net, x, lambda out: functional.cross_entropy(out, y))
    train.train(net, objective, batches, TrainConfig(..., optimizer=control.MSA(rho=1.0)))

`sweep` has the costates of a body of layers as one operation of torch's graph, `principle` what
users ask of them, `maximise` the Hamiltonians of layers, `training` the methods built on these,
`diagnostics` how far weights are from the maximum principle. It imports the rooms of `nets` below
it. Start with `principle`.
"""

from wflow.nets.control.diagnostics import Optimality, Violation, optimality
from wflow.nets.control.principle import (
    Extremal,
    costates,
    extremal,
    gradients,
    hamiltonian,
    states,
)
from wflow.nets.control.sweep import NonFiniteCostateError
from wflow.nets.control.training import MSA, by_costates
from wflow.nets.dynamics import Dynamics

__all__ = [
    "MSA",
    "Dynamics",
    "Extremal",
    "NonFiniteCostateError",
    "Optimality",
    "Violation",
    "by_costates",
    "costates",
    "extremal",
    "gradients",
    "hamiltonian",
    "optimality",
    "states",
]


def __dir__() -> list[str]:
    return __all__
