r"""
Equilibria: what maximises the energy
=====================================

For one symmetric head with eigenvalues :math:`\lambda_1 \ge \dots \ge \lambda_d` the largest energy
over all measures is

.. math:: \max_\mu E(\mu) = \tfrac12 \max\bigl(e^{\lambda_1}, \cosh\lambda_d\bigr),

reached by a Dirac at an eigenvector of :math:`\lambda_1`, or by a pair :math:`\tfrac12(\delta_v +
\delta_{-v})` along an eigenvector of :math:`\lambda_d` ([BKKRW] for definite D). Ascent from random
tokens finds it, or stops at a local maximum; descent spreads the tokens.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

n, starts = 32, 16
x0 = wflow.tokens.uniform(n=n * starts, d=3, seed=0).reshape(starts, n, 3)
cases = {
    r"$\mathrm{diag}(1, 0.5, -0.5)$": np.diag([1.0, 0.5, -0.5]),
    r"$\mathrm{diag}(0.5, 0, -2)$": np.diag([0.5, 0.0, -2.0]),
}


def solve(D, direction, t_final):
    save = wflow.SaveAt(every=5, paths=range(starts))
    return wflow.solve(
        x0, wflow.heads.Frozen(), heads=D[None], t_final=t_final, dt=0.05, paths=starts,
        direction=direction, scheme="rk4", save=save,
    )  # fmt: skip


# %%
# One curve for each start. Some reach the bound. The others stop at pairs as well, with shares p
# and 1 - p of the tokens at v and -v, which are stable within limits on p: softmax attention gives
# a token at v mostly the tokens of its own side.

fig, axes = plt.subplots(1, 2, figsize=(8, 3.2))
for ax, (name, D) in zip(axes, cases.items(), strict=True):
    best = wflow.equilibria.maximum(D)
    run = solve(D, "ascent", 40.0)
    ends = run.energy.isel(time=-1).values
    ax.plot(run.time, run.energy.T, color="C0", lw=0.7, alpha=0.6)
    ax.axhline(best.energy, color="k", ls="--", label=f"maximum: {best.kind.capitalize()}")
    ax.set(xlabel="time $t$", title=f"$D$ = {name}")
    reached = np.isclose(ends, best.energy, rtol=1e-3)
    print(f"{best.kind:5} maximum {best.energy:.6f}, reached by {reached.sum()} of {starts} starts")
    off = []
    for cloud, energy in zip(run.tokens.isel(snapshot=-1).values, ends, strict=True):
        v = np.linalg.eigh(cloud.T @ cloud)[1][:, -1]  # the axis of the pair
        share = (cloud @ v > 0).mean()
        off.append(abs(energy / wflow.equilibria.pair_energy(D, v, share) - 1))
    print(f"      energies are those of pairs up to {max(off):.0e} (relative)")
    ax.legend(loc="lower right")
axes[0].set_ylabel("energy $E$")
plt.show()

# %%
# Descent with :math:`D = \beta I`, β = 2: the minimiser of the mean field is the uniform measure,
# with :math:`E = \frac12\,\sinh(\beta)/\beta` for d = 3. A cloud of n tokens comes close: its
# points arrange themselves like a spherical design, far better than random ones.

beta = 2.0
uniform = wflow.equilibria.uniform_energy(beta, 3)
run = solve(beta * np.eye(3), "descent", 40.0)
excess = run.energy - uniform
print(f"E - E_uniform: random tokens {float(excess[:, 0].mean()):.4f}", end="")
print(f" (theory {wflow.equilibria.sampled_energy(n, beta, 3) - uniform:.4f}),", end="")
print(f" after descent {float(excess[:, -1].mean()):.2e}")

fig, ax = plt.subplots()
ax.semilogy(run.time, excess.T, color="C2", lw=0.7, alpha=0.6)
ax.set(
    xlabel="time $t$",
    ylabel=r"$E - E_{\rm uniform}$",
    title=rf"descent, $D = {beta:g}\,I$, $n$ = {n}",
)
plt.show()
