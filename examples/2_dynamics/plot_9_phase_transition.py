r"""
When do tokens that diffuse order, and how?
===========================================

With one head :math:`D = \beta I` the uniform density is stable above a critical diffusion
:math:`\kappa_c`. Below it tokens order. Whether the order grows from zero or by a jump is decided
by the sign of one coefficient of the amplitude equation; the branches of stationary densities,
followed through their folds, show what happens far from the uniform density.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import brentq

import wflow
from wflow import stationary

for flow in ("softmax", "unnormalised"):
    for beta in (1.0, 3.0, 6.0):
        found = stationary.transition(beta, 3, flow)
        print(f"{flow}, beta = {beta}: kappa_c = {found.kappa:.4f}, {found.order}")

# %%
# With the softmax the transition is continuous; without its denominator it is so only for
# :math:`a_2/a_1 < 1/d`, where the cubic coefficient is positive.

for d in (2, 3):
    change = brentq(lambda beta, d=d: stationary.transition(beta, d, "unnormalised").cubic, 0.5, 6)
    print(f"d = {d}: discontinuous beyond beta = {change:.4f}")

# %%
# Branches on the sphere. Solid lines are stable, dashed ones unstable, circles folds: between the
# fold and :math:`\kappa_c` both the uniform and the ordered density are stable, and the state
# depends on the past.

nodes = stationary.Nodes.axial(3, 48)
branches = {}
for beta in (1.0, 3.0, 4.0):
    critical = stationary.critical_diffusion(beta, 3, "unnormalised")
    branches[rf"$\beta$ = {beta:g}"] = stationary.branch(
        beta * np.eye(3),
        nodes,
        1,
        kappa=(critical / 2, 3 * critical),
        flow="unnormalised",
        step=0.2,
    )
fig, axes = plt.subplots(1, 2, figsize=(9, 3.4))
wflow.plots.bifurcation(branches, relative=True, ax=axes[0])
wflow.plots.bifurcation(branches, "free_energy_difference", relative=True, ax=axes[1])
axes[1].set(ylim=(-0.6, 0.1), xlim=(0.6, 1.4))
plt.show()
for label, branch in branches.items():
    folds = branch.kappa[branch.fold].values / branch.attrs["critical_diffusion"]
    print(label, "folds at kappa/kappa_c =", folds.round(4))

# %%
# The density on the branch, at its smallest diffusion, is evaluated anywhere by the formula that it
# solves.

state = stationary.density(3 * np.eye(3), 1.5, nodes, flow="unnormalised")
angle = np.linspace(-np.pi, np.pi, 201)
points = np.stack([np.sin(angle), np.zeros_like(angle), np.cos(angle)], axis=1)
fig, ax = plt.subplots(figsize=(4.6, 2.8))
ax.plot(angle, state.at(points), "k")
ax.set(xlabel="angle from the axis", ylabel=r"$\rho$")
plt.show()
print(state, "stable" if state.stable else "unstable")
