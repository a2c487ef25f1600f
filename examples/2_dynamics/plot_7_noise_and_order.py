r"""
Noise on the tokens: order below a critical κ
=============================================

With diffusion κ the law of the tokens follows :math:`\partial_t\mu + \mathrm{div}(\mu v) =
\kappa\,\Delta\mu` ([MHT] section 7). In ascent with one head :math:`D = \beta I` the uniform law
competes with a concentrated one. A perturbation of degree 1 of the uniform law grows below the
critical diffusion

.. math:: \kappa_c = \frac{a_1}{a_0}, \qquad
          a_l = \Gamma(\tfrac d2)\,(\tfrac2\beta)^{d/2-1}\,I_{d/2-1+l}(\beta)

(softmax; by the Funk-Hecke formula). The order parameter is :math:`r = |\int x\,\mu(\mathrm dx)|`.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

beta, d, n = 2.0, 3, 400
critical = wflow.stationary.critical_diffusion(beta, d)
print(f"critical diffusion {critical:.4f}")

# %%
# Theory: the most concentrated stationary law, a fixed point of :math:`\mu \propto u^{1/\kappa}`,
# :math:`u(x) = \int e^{\beta\langle x, y\rangle}\mu(\mathrm dy)`.

ratios = np.linspace(0.1, 1.6, 61)
theory = [wflow.stationary.stationary_order(beta, d, ratio * critical) for ratio in ratios]

# %%
# Particles: order of the clouds in the second half of the run, mean over time and paths. Finite
# clouds have :math:`r = O(n^{-1/2})` where the law has none.

measured = np.array([0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2, 1.5])
T, paths = 20.0, 4
x0 = wflow.tokens.clusters(n, d, clusters=1, spread=0.5, seed=0)
save = wflow.SaveAt(
    every=400, snapshots=np.linspace(T / 2, T, 21), paths=range(paths), budget=False
)
order, spread = [], []
for ratio in measured:
    run = wflow.solve(
        x0, wflow.heads.Frozen(), heads=beta * np.eye(d)[None], t_final=T, dt=0.05, paths=paths,
        direction="ascent", kappa=ratio * critical, seed=1, save=save,
    )  # fmt: skip
    r = np.sqrt((run.tokens.mean("token") ** 2).sum("axis"))  # (path, snapshot)
    order.append(float(r.mean()))
    spread.append(float(r.std()))

fig, ax = plt.subplots()
ax.plot(ratios, theory, "k", label="stationary law")
ax.errorbar(
    measured,
    order,
    spread,
    fmt="o",
    color="C0",
    capsize=3,
    label=f"$n$ = {n} tokens, mean ± deviation in time",
)
ax.axhline(n**-0.5, color="0.6", ls=":", label="$n^{-1/2}$")
ax.axvline(1, color="0.6", lw=0.8)
ax.set(xlabel=r"diffusion $\kappa/\kappa_c$", ylabel="order parameter $r$", ylim=(0, 1))
ax.legend()
plt.show()
for ratio, r, s in zip(measured, order, spread, strict=True):
    exact = wflow.stationary.stationary_order(beta, d, ratio * critical)
    print(f"kappa/kappa_c = {ratio:.1f}: r = {r:.3f} ± {s:.3f}, stationary law {exact:.3f}")
