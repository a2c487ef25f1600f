r"""
The weighted metric
===================

The metric in which attention is a gradient flow charges each token by the effective mobility,

.. math:: W_b(\mu, \nu)^2 = \min \int_0^1 \frac1n\sum_i b(x_i; \mu_t)\,|v_i|^2\,\mathrm dt, \qquad
          b(x) = \Bigl[\frac1H\sum_h \frac1{m_h(x)}\Bigr]^{-1},

([MHT] Definition 3.5 and Lemma 3.8). It lies between multiples of W₂, :math:`c_1 W_2 \le W_b \le
c_2 W_2` (Proposition 3.7), and along the flow its metric derivative is the root of :math:`G^2 =
\frac1n\sum_i b\,|v_i|^2`. Both are measured here.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

rng = np.random.default_rng(0)
Z = 0.5 * rng.standard_normal((3, 3, 3))
D = Z + Z.transpose(0, 2, 1)  # three heads

# %%
# Pairs of clouds, and the ratio :math:`W_b/W_2` with its bounds. :math:`c_1, c_2` need no more than
# the norms of the heads.

ratios, bounds = [], []
for seed in range(12):
    x = wflow.tokens.cross_polytope(n=16, d=3, spread=0.3, seed=seed)
    y = wflow.tokens.uniform(n=16, d=3, seed=100 + seed)
    distance = wflow.transport.weighted_distance(x, y, D, segments=8)
    bounds.append(distance.bounds)
    ratios.append(distance.value / distance.bounds.w2)
c1, c2 = bounds[0].c1, bounds[0].c2
print(f"c1 = {c1:.3f} <= W_b/W_2 = {min(ratios):.3f} to {max(ratios):.3f} <= c2 = {c2:.3f}")

# %%
# The metric derivative: :math:`W_b(\mu_t, \mu_{t+h})/h \to G` as h falls, linearly in h, along the
# softmax flow.

x0 = wflow.tokens.cross_polytope(n=16, d=3, spread=0.3, seed=0)
h = np.array([0.32, 0.16, 0.08, 0.04, 0.02])
save = wflow.SaveAt(snapshots=[0, *h[::-1]])
still = wflow.heads.Frozen()
run = wflow.solve(x0, still, heads=D, t_final=0.32, dt=0.01, scheme="rk4", save=save)
G = float(np.sqrt(run.upper_gradient_sq[0, 0]))
clouds = [run.tokens.isel(snapshot_path=0).sel(snapshot=t, method="nearest").values for t in h]
speeds = [
    wflow.transport.weighted_distance(x0, cloud, D, segments=8).value / t
    for cloud, t in zip(clouds, h, strict=True)
]
errors = np.abs(np.array(speeds) / G - 1)
order = np.polyfit(np.log(h), np.log(errors), 1)[0]
print(f"relative errors {errors.round(5)}, order {order:.2f}")

fig, axes = plt.subplots(1, 2, figsize=(8, 3.2))
axes[0].plot(range(1, 13), ratios, "o", label="$W_b/W_2$")
for value, name in ((c1, "$c_1$"), (c2, "$c_2$")):
    axes[0].axhline(value, ls="--", color="k", lw=1)
    axes[0].annotate(name, (12.4, value), va="bottom", ha="right")
axes[0].set(xlabel="pair of clouds", ylabel="ratio", ylim=(0, 1.1 * c2), xticks=range(1, 13))
axes[0].legend()
axes[1].loglog(h, errors, "o", label=r"$|W_b(\mu_0, \mu_h)/(h\,G) - 1|$")
axes[1].loglog(h, errors[-1] * h / h[-1], "k:", label="$\\propto h$")
axes[1].set(xlabel="time $h$", ylabel="relative error")
axes[1].set_xticks(h, [f"{value:g}" for value in h])
axes[1].minorticks_off()
axes[1].legend()
plt.show()
