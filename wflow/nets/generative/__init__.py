"""Generative networks: flows along the gradient of a potential, with or without sparse attention.

`potential` has OT-Flow's potential with its derivatives, `flows` OT-Flow and the objective of
training. It imports the package `nets` below it. Start with `flows`.
"""

from wflow.nets.generative.flows import Likelihood, OTFlow, ToBase, log_normal
from wflow.nets.generative.potential import Derivatives, Potential

__all__ = ["Derivatives", "Likelihood", "OTFlow", "Potential", "ToBase", "log_normal"]
