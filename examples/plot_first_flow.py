"""
First flow
==========

Two hundred tokens move on the sphere under eight heads with Ornstein-Uhlenbeck weights.
"""

import numpy as np

import wflow

x0 = wflow.tokens.cross_polytope(n=200, d=3, spread=0.05, seed=42)
law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3), rate=1.0, sigma2=2.0)
run = wflow.solve(x0, law, heads=8, t_final=1.0, dt=5e-3, paths=2, seed=0)

# %%
# The energy budget closes up to the error of the scheme.

float(abs(run.edi_residual).max())
