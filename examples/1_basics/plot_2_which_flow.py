r"""
Which flow: softmax, unnormalised, effective
============================================

Three velocities lower the same energy. With the mobility :math:`m_h(x) = \frac1n \sum_j e^{\langle
x, D_h x_j\rangle}`, the gradient :math:`g_h(x) = P_x D_h \frac1n\sum_j e^{\langle x, D_h
x_j\rangle} x_j` of head h and the effective mobility :math:`b(x) = \bigl[\frac1H\sum_h
1/m_h(x)\bigr]^{-1}` ([MHT] eq. 37) they are

.. math::
    v_\text{softmax} = -\frac1H\sum_h \frac{g_h}{m_h},\qquad
    v_\text{unnormalised} = -\frac1H\sum_h g_h,\qquad
    v_\text{effective} = -\frac1b\,\frac1H\sum_h g_h.

`softmax` is attention as transformers compute it. `unnormalised` is the gradient flow of the energy
in the Wasserstein metric W₂, `effective` that in the metric weighted by b.
"""

import matplotlib.pyplot as plt

import wflow

x0 = wflow.tokens.cross_polytope(n=100, d=3, spread=0.05, seed=1)
flows = ["softmax", "unnormalised", "effective"]


def solve(flow, heads):
    options = {"t_final": 3.0, "dt": 0.02, "scheme": "rk4", "seed": 3}
    return wflow.solve(x0, wflow.heads.Frozen(), heads=heads, flow=flow, **options)


runs = {(flow, heads): solve(flow, heads) for heads in (1, 8) for flow in flows}

# %%
# For one head b is the mobility of that head, so that softmax attention is the gradient flow of the
# energy in the weighted metric. For several heads it is not: the two velocities differ by a
# covariance over the heads.

fig, axes = plt.subplots(1, 2, figsize=(7.2, 3))
for ax, heads in zip(axes, (1, 8), strict=True):
    for flow, style in zip(flows, ["-", "--", ":"], strict=True):
        run = runs[flow, heads]
        ax.plot(run.time, run.energy[0], style, lw=2, label=flow)
    ax.set(xlabel="time $t$", title=f"$H$ = {heads} frozen heads")
axes[0].set_ylabel("energy $E$")
axes[0].legend()
plt.show()

# %%
# What theory says of each flow is visible in the rates: the dissipation equals the squared upper
# gradient :math:`G^2 = \frac1n\sum_i b\,|v_i|^2` exactly where the flow is a gradient flow.


def tokens_at_end(flow, heads):
    return runs[flow, heads].tokens.isel(snapshot_path=0, snapshot=-1).values


for (flow, heads), run in runs.items():
    gap = abs(run.dissipation - run.upper_gradient_sq).max() / run.dissipation.max()
    print(f"H = {heads}  {flow:13} largest |dissipation - G²| / dissipation: {float(gap):.1e}")
