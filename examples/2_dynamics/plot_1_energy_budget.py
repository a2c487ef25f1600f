r"""
The energy budget, term by term
===============================

For heads :math:`\mathrm dD_h = f_h\,\mathrm dt + \sigma\,\mathrm dW_h` the chain rule and Itô's
formula give, with :math:`U_{hij} = e^{\langle x_i, D_h x_j\rangle}` and the mean gradient
:math:`\bar g = \frac1H\sum_h g_h`,

.. math::
    E(t) - E(0) = \int_0^t \Bigl[
    \underbrace{\frac{1}{2Hn^2}\sum U_{hij}\langle x_i, f_h x_j\rangle}_{\text{weight drift}}
    + \underbrace{\frac{\sigma^2}{8Hn^2}\sum U_{hij}(1 + \langle x_i, x_j\rangle^2)}_{\text{Itô}}
    - \underbrace{\Bigl(-\frac1n\sum_i\langle \bar g(x_i), v_i\rangle\Bigr)}_{\text{dissipation}}
    \Bigr]\mathrm ds + \text{martingale}.

A run records every term, and the residual of their sum (the symmetric noise of [MHT], eq. 148 and
figure 3).
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

x0 = wflow.tokens.cross_polytope(n=100, d=3, spread=0.05, seed=42)
law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3), rate=1.0, sigma2=2.0)
options = {"heads": 16, "t_final": 4.0, "paths": 16, "seed": 0}
run = wflow.solve(x0, law, dt=1e-2, save=wflow.SaveAt(every=4), **options)

# %%
# `wflow.plots` draws the whole balance. The drift of the weights and the Itô correction nearly
# cancel: noise raises the energy as fast as the pull to the mean lowers it.

balance = wflow.plots.energy_balance(run)

# %%
# At the end, the mean over the paths and its standard error:

end = run.isel(time=-1)
for name in ("work_weights", "work_ito", "dissipated", "martingale", "edi_residual"):
    mean = float(end[name].mean())
    error = float(end[name].std(ddof=1)) / np.sqrt(run.sizes["path"])
    print(f"{name:12} {mean:+.4f} ± {error:.4f}   ({end[name].attrs['long_name']})")

# %%
# Is the residual an error of the time step? Its mean and its spread over the paths both fall like
# :math:`\Delta t`.

steps = np.array([0.02, 0.01, 0.005, 0.0025])
options = {"heads": 8, "t_final": 1.0, "paths": 64, "seed": 0, "save": wflow.SaveAt(every=50)}
residuals = np.array(
    [wflow.solve(x0[::2], law, dt=dt, **options).edi_residual.isel(time=-1) for dt in steps]
)  # (steps, paths)
mean, spread = residuals.mean(axis=1), residuals.std(axis=1, ddof=1)

fig, ax = plt.subplots()
ax.loglog(steps, spread, "s", color="C1", label="standard deviation over paths")
ax.loglog(steps, spread[0] * steps / steps[0], "C1:")
ax.errorbar(steps, mean, 2 * spread / 8, fmt="o", color="C0", capsize=3, label="mean, ± 2 errors")
ax.loglog(steps, mean[0] * steps / steps[0], "C0--", label=r"$\propto \Delta t$")
ax.set(xlabel=r"time step $\Delta t$", ylabel="residual of the balance at $t = 1$")
ax.set_xticks(steps, [f"{dt:g}" for dt in steps])
ax.minorticks_off()
ax.legend()
plt.show()
exponent = np.polyfit(np.log(steps), np.log(spread), 1)[0]
print(f"exponent of the standard deviation: {exponent:.2f}")
