"""Training as optimal control: costates, the Hamiltonian, and the maximum principle.

    net = nets.ControlledResNet(2, layers=20, scheme="rk4", transport=0.01)
    found = control.gradients(net, x, lambda out: functional.cross_entropy(out, y))

`sweep` has the costates of a body of layers as one operation of torch's graph, `principle` what
users ask of them. It imports the rooms of `nets` below it. Start with `principle`.
"""

from wflow.nets.control.principle import (
    Extremal,
    costates,
    extremal,
    gradients,
    hamiltonian,
    states,
)
from wflow.nets.control.sweep import NonFiniteCostateError
from wflow.nets.dynamics import Dynamics

__all__ = [
    "Dynamics",
    "Extremal",
    "NonFiniteCostateError",
    "costates",
    "extremal",
    "gradients",
    "hamiltonian",
    "states",
]
