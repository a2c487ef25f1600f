r"""
Dissipation against G²: the defect
==================================

[MHT] Theorem 4.13 states the energy balance with :math:`G^2 = \frac1n\sum_i b\,|v_i|^2`. By the
chain rule the energy falls at the rate :math:`-\frac1n\sum_i\langle \bar g, v_i\rangle`, the
dissipation. For softmax attention with several heads the two differ by

.. math::
    \text{dissipation} - G^2 = \frac1n\sum_i b\,\Bigl\langle v_i,\;
    \frac1H\sum_h \frac{g_h}{m_h} - \bar g\,\frac1H\sum_h\frac1{m_h}\Bigr\rangle,

b times the covariance over the heads of gradient and inverse mobility. It vanishes for one head,
for heads of equal mobility and for the flow `effective`; no step size makes it vanish for
`softmax`.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

x0 = wflow.tokens.cross_polytope(n=60, d=3, spread=0.05, seed=42)
still = wflow.heads.Frozen()


def solve(heads, flow, dt=0.02):
    return wflow.solve(x0, still, heads=heads, t_final=4.0, dt=dt, flow=flow, scheme="rk4", seed=0)


# %%
# Both balances along two flows with the same five frozen heads:

fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), sharey=True)
for ax, flow in zip(axes, ("softmax", "effective"), strict=True):
    run = solve(5, flow).isel(path=0)
    ax.plot(run.time, run.energy - run.energy[0], "k", lw=2, label="$E(t) - E(0)$")
    ax.plot(run.time, -run.dissipated, "C0--", label=r"$-\int$ dissipation")
    ax.plot(run.time, -run.dissipated_upper_gradient, "C1-.", label=r"$-\int G^2$")
    ax.set(xlabel="time $t$", title=f"{flow}, $H$ = 5")
axes[0].set_ylabel("energy")
axes[0].legend()
plt.show()

# %%
# The residual with the dissipation falls with the step at the order of the scheme, here 4. The one
# with G² stays, and is the integral of the defect.

for heads, flow in ((1, "softmax"), (5, "softmax"), (5, "effective"), (5, "unnormalised")):
    coarse, fine = (solve(heads, flow, dt).isel(path=0) for dt in (0.04, 0.02))
    end = fine.isel(time=-1)
    gap = float(end.dissipated - end.dissipated_upper_gradient)
    print(
        f"{flow:12} H = {heads}  residual {float(coarse.edi_residual[-1]):+.0e},"
        f" {float(end.edi_residual):+.0e};  with G² {float(end.edi_residual_upper_gradient):+.4f};"
        f"  integral of the defect {gap:+.4f}"
    )

# %%
# The identity holds pointwise, at every cloud, to rounding. By hand for a random cloud:

rng = np.random.default_rng(0)
Z = rng.standard_normal((5, 3, 3))
D, x = Z + Z.transpose(0, 2, 1), wflow.tokens.uniform(n=200, d=3, seed=1)
U = np.exp(np.einsum("ia,hab,jb->hij", x, D, x))  # kernel values
m = U.mean(axis=2)[..., None]  # (heads, n, 1)
average = np.einsum("hij,ja->hia", U, x) / len(x)
g = wflow.sphere.project(x, np.einsum("hab,hib->hia", D, average))  # (heads, n, d)
b = 1 / (1 / m).mean(axis=0)  # (n, 1)
v = -(g / m).mean(axis=0)
defect = (b * v * ((g / m).mean(0) - g.mean(0) * (1 / m).mean(0))).sum(axis=1).mean()
print(f"by hand {defect:+.12f}, wflow.edi_defect {wflow.edi_defect(x, D):+.12f}")
difference = wflow.dissipation(x, D) - wflow.upper_gradient_sq(x, D)
