"""Sampling by the regularised Wasserstein proximal operator, and Bayesian inverse problems.

`priors` has the potentials with a proximal map, `proximal` the interaction of tokens, its attention
and the layer made of it. It imports the packages from `_core` to `analysis`, and no torch. Start
with `proximal`.
"""
