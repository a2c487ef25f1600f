r"""
First flow in five minutes
==========================

Two hundred tokens move on the sphere under sixteen attention heads whose weights fluctuate, as in
section 6 of [MHT]. With :math:`P_x = I - x x^\top` each token follows

.. math::
    \dot x_i = -\frac1H \sum_{h=1}^H P_{x_i} D_h
    \frac{\sum_j e^{\langle x_i, D_h x_j\rangle} x_j}{\sum_j e^{\langle x_i, D_h x_j\rangle}},
    \qquad
    \mathrm dD_h = \theta\,(M - D_h)\,\mathrm dt + \sigma\,\mathrm dW_h,

softmax attention in the direction in which the interaction energy falls.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

# %%
# Three things make a run: tokens, a law of the heads, and the times. The tokens start near the
# vertices :math:`\pm e_k` of the cross-polytope. Each of the four paths draws its noise
# independently; all of them share the initial tokens and heads.

x0 = wflow.tokens.cross_polytope(n=200, d=3, spread=0.05, seed=42)  # (n, d)
law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3), rate=1.0, sigma2=2.0)
save = wflow.SaveAt(every=5, snapshots=[0, 1, 2, 5])
run = wflow.solve(x0, law, heads=16, t_final=5.0, dt=1e-2, paths=4, seed=0, save=save)
run

# %%
# The result is an :class:`xarray.Dataset` with named dimensions: every quantity says what it
# depends on. Here are the tokens of the first path at four times.

tokens = wflow.plots.token_snapshots(run, which=0)

# %%
# The energy :math:`E = \frac{1}{2Hn^2}\sum_{hij} e^{\langle x_i, D_h x_j\rangle}` ([MHT] eq. 4)
# falls from its start and then fluctuates with the heads.

fig, ax = plt.subplots()
paths = ax.plot(run.time, run.energy.transpose("time", "path"), color="0.7", lw=0.8)
paths[0].set_label("single paths")
ax.plot(run.time, run.energy.mean("path"), color="C0", lw=1.8, label="mean of 4 paths")
ax.set(xlabel="time $t$", ylabel="energy $E$")
ax.legend()
plt.show()

# %%
# Every run keeps its books: what the energy changes by is the work of the weights, the Itô
# correction of their noise, the dissipation and a martingale, up to the residual of the time step.

balance = run.isel(time=-1).mean("path")
signs = {"work_weights": 1, "work_ito": 1, "dissipated": -1, "martingale": 1, "edi_residual": 1}
terms = {name: sign * float(balance[name]) for name, sign in signs.items()}
for name, value in terms.items():
    print(f"{name:12} {value:+.4f}")
change = float((run.energy[:, -1] - run.energy[:, 0]).mean())
print(f"E(5) - E(0)  {change:+.4f}")
