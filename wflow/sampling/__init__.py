"""Sampling by the regularised Wasserstein proximal operator, and Bayesian inverse problems.

`priors` has the potentials with a proximal map, `proximal` the interaction of tokens, its attention
and the layer made of it (`softmax_sums`: the sums over all pairs); `samplers` the samplers built on
them and `targets` what these sample from; `fokker_planck` the equation of densities in one
dimension, as a reference, and `comparison` distances between samples. `forward` has forward models
of inverse problems, `reference` samplers of their posteriors and diagnostics of chains. It imports
the packages from `_core` to `analysis`, and no torch. Start with `proximal`.
"""

from wflow.sampling import (
    forward,
    reference,
    targets,
)
from wflow.sampling.comparison import (
    frechet,
    mmd,
    sliced_w2,
    w2,
)
from wflow.sampling.fokker_planck import (
    evolve_density,
)
from wflow.sampling.priors import (
    L1,
    NoPrior,
    Prior,
    SmoothL1,
    separable,
)
from wflow.sampling.proximal import (
    AttentionMean,
    attention_mean,
    backward,
    backward_inverse,
    folded,
    interaction,
    layer,
    score,
)
from wflow.sampling.samplers import (
    brwp,
    myula,
    to_arviz,
    ula,
)

__all__ = [
    "L1",
    "AttentionMean",
    "NoPrior",
    "Prior",
    "SmoothL1",
    "attention_mean",
    "backward",
    "backward_inverse",
    "brwp",
    "evolve_density",
    "folded",
    "forward",
    "frechet",
    "interaction",
    "layer",
    "mmd",
    "myula",
    "reference",
    "score",
    "separable",
    "sliced_w2",
    "targets",
    "to_arviz",
    "ula",
    "w2",
]


def __dir__() -> list[str]:
    return __all__
