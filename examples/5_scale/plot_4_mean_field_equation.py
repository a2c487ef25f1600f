r"""
The mean-field equation on the sphere
=====================================

For infinitely many tokens there is no cloud but a density, and it follows

.. math:: \partial_t \rho + \operatorname{div}(\rho\,V[\rho]) = \kappa\,\Delta\rho .

`wflow.meanfield.solve` solves this equation without sampling error. Here the density of tokens that
attract each other draws together, from a slight unevenness to clusters.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow
from wflow import meanfield

mesh = meanfield.Sphere(2562)
D = 9.0 * np.eye(3)[None]  # one head, beta = 9
waves = np.random.default_rng(4).normal(size=(12, 3)) * 2.5


def start(x):
    """Almost uniform: a sum of a few long waves."""
    return 1 + 0.04 * np.cos(x @ waves.T + np.arange(12)).sum(axis=1)


run = meanfield.solve(
    start,
    wflow.heads.Frozen(),
    mesh=mesh,
    heads=D,
    t_final=1.2,
    kappa=0.02,
    reconstruct=True,
    direction="ascent",
    save=wflow.SaveAt(snapshots=np.linspace(0, 1.2, 51)),
)
wflow.plots.density_snapshots(run, times=[0.0, 0.384, 0.576, 0.768, 1.2], which=0)

# %%
# The mass is one to rounding and no cell is negative, as the scheme promises. `numerical_diffusion`
# says what upwind fluxes would add to `kappa`; `reconstruct` takes most of it away.

print(f"mass - 1 = {float(mesh.integrate(run.density[0, -1])) - 1:.1e}")
print(f"smallest density: {float(run.density.min()):.2g}")
print(f"numerical diffusion: {float(run.numerical_diffusion[0, -1]):.1e}")

# %%
# Tokens drawn from the initial density follow it. Where they cluster, a cloud amplifies what its
# tokens are by chance: the fewer there are, the sooner it leaves the limit.

fig, ax = plt.subplots()
for n, colour in ((100, "C0"), (2000, "C1")):
    for k in range(3):
        tokens = wflow.solve(
            meanfield.sample(start, mesh, n, seed=k), wflow.heads.Frozen(), heads=D, t_final=1.2,
            dt=0.02, kappa=0.02, direction="ascent", save=wflow.SaveAt(snapshots=[]), seed=k,
        )  # fmt: skip
        label = f"{n:,} tokens, three clouds" if k == 0 else None
        ax.plot(tokens.time, tokens.energy[0], lw=0.8, color=colour, label=label)
ax.plot(run.time, run.energy[0], "k", label=r"$n = \infty$")
ax.set(xlabel="time $t$", ylabel="energy $E$")
ax.legend()
plt.show()

# %%
# As a film, which `wflow.plots.animate` makes of the snapshots:

animation = wflow.plots.animate(run, fps=8)
animation
