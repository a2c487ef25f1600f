r"""
G² against the number of heads
==============================

[MHT] eq. 151 predicts that the squared upper gradient :math:`G^2 = \frac1n\sum_i b(x_i)\,|v_i|^2`
of heads that fluctuate independently decays like 1/H: the velocity is a mean over heads, whose
fluctuations average out. Few heads and few paths are enough to see the slope and to say how well it
is known.
"""

import numpy as np

import wflow

x0 = wflow.tokens.cross_polytope(n=40, d=3, spread=0.05, seed=42)
law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3), rate=1.0, sigma2=2.0)
heads = [1, 2, 4, 8, 16, 32, 64]
options = {"t_final": 10.0, "dt": 2e-2, "paths": 16, "seed": 0, "save": wflow.SaveAt(every=5)}
runs = {H: wflow.solve(x0, law, heads=H, **options) for H in heads}

# %%
# After the start G² fluctuates about a level that depends on H.

over_time = wflow.plots.gradient_over_time(runs)

# %%
# The mean over the second half of the time, for each path, and a power law through the means over
# the paths. The interval is a bootstrap over paths.

G2 = [runs[H].upper_gradient_sq.sel(time=slice(5, None)).mean("time").values for H in heads]
fit = wflow.fits.power_law(heads, G2)
low, high = fit.exponent_ci
print(f"G² = {fit.prefactor:.2f} H^b, b = {fit.exponent:.3f} (95 %: {low:.3f} to {high:.3f})")

against_heads = wflow.plots.gradient_against_heads(heads, G2, fit)

# %%
# The study `ou_heads` does the same with 64 heads, 200 tokens and T = 20:
#
# .. code-block:: sh
#
#    wflow study ou_heads --heads 1 2 4 8 16 32 64
