"""Forward models of Bayesian inverse problems, vectorised, with adjoints exact for the scheme.

`model` has their contract, for arrays and for tensors, which custom ones extend, `problem` the
noise and the prior around one; `elliptic`, `lorenz` and `impedance` are the three problems of
[RWPO] section 4.2. The package imports `_core`, and torch only where it is given tensors. Start
with `model`.

[RWPO] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior".
"""

from wflow.sampling.forward.elliptic import Elliptic
from wflow.sampling.forward.impedance import Impedance
from wflow.sampling.forward.lorenz import Lorenz
from wflow.sampling.forward.model import ForwardModel
from wflow.sampling.forward.problem import InverseProblem, Pairs, Summary

__all__ = [
    "Elliptic",
    "ForwardModel",
    "Impedance",
    "InverseProblem",
    "Lorenz",
    "Pairs",
    "Summary",
]


def __dir__() -> list[str]:
    return __all__
