"""Generative networks: flows along the gradient of a potential, with or without sparse attention.

`potential` has OT-Flow's potential with its derivatives, `runge_kutta` the steps along it, `flows`
OT-Flow and the objective of training, `moments` the attention under the kernels of the proximal
operator, `determinant` an estimate of its log determinant, `sparse` the flow with
sparse-transformer layers, `conditional` flows as posteriors, `autoencoder` the space in which a
flow of images lives. Of other packages it imports `_core` and `sampling`, and of `nets` the
registry, training and checks. Start with `flows`.
"""

from wflow.nets.generative.autoencoder import Autoencoder
from wflow.nets.generative.conditional import ReverseKL
from wflow.nets.generative.flows import Generated, Likelihood, OTFlow, ToBase, log_normal
from wflow.nets.generative.moments import Attended, attention, log_normaliser
from wflow.nets.generative.potential import Derivatives, Potential
from wflow.nets.generative.sparse import SparseTransformerFlow

__all__ = [
    "Attended",
    "Autoencoder",
    "Derivatives",
    "Generated",
    "Likelihood",
    "OTFlow",
    "Potential",
    "ReverseKL",
    "SparseTransformerFlow",
    "ToBase",
    "attention",
    "log_normal",
    "log_normaliser",
]


def __dir__() -> list[str]:
    return __all__
