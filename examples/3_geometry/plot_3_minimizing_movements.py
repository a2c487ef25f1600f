r"""
Minimizing movements converge to the flow
=========================================

The scheme of Jordan, Kinderlehrer and Otto descends the energy in steps of length τ,

.. math:: \mu^{k} = \operatorname*{arg\,min}_\mu\ E(\mu) + \frac{1}{2\tau} W(\mu, \mu^{k-1})^2 .

With :math:`W = W_b` it converges to the gradient flow of the energy in that metric ([MHT] Theorems
3.11 and 4.7). That is the flow `effective`, :math:`v = -\bar g/b`. For several heads it is not
softmax attention: the distance to that flow does not fall with τ.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

x0 = wflow.tokens.cross_polytope(n=24, d=3, spread=0.2, seed=0)
law, heads, T = wflow.heads.Frozen(), 3, 0.4
taus = np.array([0.1, 0.05, 0.025, 0.0125])

# %%
# Trajectories of the flows, nearly exact, and the end points of minimizing movements.


def end_of_flow(flow):
    scheme = wflow.Dopri5(rtol=1e-11, atol=1e-12)
    run = wflow.solve(x0, law, heads=heads, t_final=T, dt=T, flow=flow, scheme=scheme, seed=0)
    return run.tokens.isel(snapshot_path=0, snapshot=-1).values


flows = {flow: end_of_flow(flow) for flow in ("effective", "softmax", "unnormalised")}
movements = {}
for metric in ("weighted", "w2"):
    for tau in taus:
        steps = wflow.jko.minimizing_movements(
            x0, law, heads=heads, t_final=T, tau=tau, metric=metric, seed=0
        )
        movements[metric, tau] = steps

# %%
# First order in τ for the flow that belongs to the metric.

fig, ax = plt.subplots()
for metric, flow, style in (
    ("weighted", "effective", "C0o-"),
    ("weighted", "softmax", "C3s--"),
    ("w2", "unnormalised", "C2^-"),
):
    distances = [
        wflow.transport.w2(movements[metric, tau].tokens[-1].values, flows[flow]) for tau in taus
    ]
    slope = np.polyfit(np.log(taus), np.log(distances), 1)[0]
    label = {"weighted": "$W_b$", "w2": "$W_2$"}[metric]
    ax.loglog(taus, distances, style, label=f"{label} against {flow}")
    print(f"{metric:8} against {flow:12} slope {slope:+.2f}, smallest distance {distances[-1]:.1e}")
ax.set(xlabel=r"step $\tau$", ylabel=rf"$W_2$ to the flow, $t = {T:g}$ (radians)")
ax.set_xticks(taus, [f"{tau:g}" for tau in taus])
ax.minorticks_off()
ax.legend(loc="center left", bbox_to_anchor=(0, 0.7))
plt.show()

# %%
# Each step lowers the energy by at least :math:`W^2/(2\tau)`; the gap of that inequality is what
# the variational interpolation of De Giorgi accounts for.

steps = movements["weighted", 0.05]
fig, ax = plt.subplots()
ax.plot(steps.time, steps.energy, "o", label=r"minimizing movements, $\tau$ = 0.05")
flow = wflow.solve(x0, law, heads=heads, t_final=T, dt=0.01, flow="effective", scheme="rk4", seed=0)
ax.plot(flow.time, flow.energy[0], "k:", label="flow effective")
ax.set(xlabel="time $t$", ylabel="energy $E$")
ax.legend()
plt.show()
