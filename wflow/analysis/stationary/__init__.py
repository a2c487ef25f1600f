r"""Stationary laws of tokens that diffuse: the uniform law, densities, branches.

`uniform` has closed forms for heads D_h = beta_h I, `nodes` quadratures and harmonics, `states`
densities and their stability, `branches` their continuation in the diffusion. It imports `_core`,
`heads` and `attention`; `plots` and `study` may import it. Start with `uniform`.
"""

from wflow.analysis.stationary.branches import branch
from wflow.analysis.stationary.nodes import Nodes
from wflow.analysis.stationary.states import State, density, stationary_order
from wflow.analysis.stationary.uniform import (
    Transition,
    critical_diffusion,
    growth_rate,
    kernel_eigenvalue,
    transition,
)

__all__ = [
    "Nodes",
    "State",
    "Transition",
    "branch",
    "critical_diffusion",
    "density",
    "growth_rate",
    "kernel_eigenvalue",
    "stationary_order",
    "transition",
]


def __dir__() -> list[str]:
    return __all__
