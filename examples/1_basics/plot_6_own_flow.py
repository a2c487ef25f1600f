r"""
Your own flow
=============

A flow is a velocity, written as a subclass of :class:`wflow.Flow`. A cloud offers the mobilities
:math:`m_h` in logarithms, and averages over tokens with a factor of each head,

.. math:: \texttt{attention(l)} = P_x\,\frac1H\sum_h e^{l_h(x)}\,D_h\,
          \frac{\sum_j e^{\langle x, D_h x_j\rangle} x_j}{\sum_j e^{\langle x, D_h x_j\rangle}},

in a form that stays in range for scores of any size. This example interpolates between softmax
attention (α = 1) and attention without a denominator (α = 0): :math:`v = \frac1H \sum_h
g_h\,m_h^{-\alpha}`.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import wflow


@wflow.flows.register
class Power(wflow.Flow):
    """v = (1/H) sum_h g_h / m_h^alpha, in ascent; `direction` gives the sign."""

    def __init__(self, alpha=0.5):
        self.alpha = alpha

    def velocity(self, cloud):
        return cloud.attention(log_factors=(1 - self.alpha) * cloud.log_mobility())  # (paths, n, d)

    def log_metric(self, cloud):  # b = [(1/H) sum_h m_h^-alpha]^-1
        return -np.log(np.exp(-self.alpha * cloud.log_mobility()).mean(axis=1))  # (paths, n)

    def gradient_flow(self, heads):  # in that metric, for one head
        return heads == 1

    def to_config(self):
        return {"alpha": self.alpha}


# %%
# At both ends it is a flow of the package.

x0 = wflow.tokens.cross_polytope(n=100, d=3, spread=0.1, seed=0)
options = {"heads": 4, "t_final": 2.0, "dt": 0.02, "scheme": "rk4", "seed": 2}
still = wflow.heads.Frozen()
alphas = [0, 0.25, 0.5, 0.75, 1]
runs = {alpha: wflow.solve(x0, still, flow=Power(alpha), **options) for alpha in alphas}
for alpha, name in ((0, "unnormalised"), (1, "softmax")):
    gap = abs(wflow.solve(x0, still, flow=name, **options).energy - runs[alpha].energy).max()
    print(f"alpha = {alpha}: energy of `{name}` up to {float(gap):.0e}")

fig, ax = plt.subplots()
for alpha, colour in zip(alphas, plt.cm.viridis(np.linspace(0, 0.9, 5)), strict=True):
    ax.plot(runs[alpha].time, runs[alpha].energy[0], color=colour, label=f"{alpha:g}")
ax.set(xlabel="time $t$", ylabel="energy $E$")
ax.legend(title=r"$\alpha$")
plt.show()

# %%
# What the class states of its metric is checked: with one head the dissipation must be
# :math:`G^2 = \frac1n\sum_i b\,|v_i|^2`, and the file, which holds the class by its name and
# fingerprint, verifies.

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "power.h5"
    run = wflow.solve(x0, still, flow=Power(0.5), out=file, **(options | {"heads": 1})).load()
    report = wflow.verify(file)
print(
    *(check for check in report.checks if "coincide" in check.name or "balance" in check.name),
    sep="\n",
)
