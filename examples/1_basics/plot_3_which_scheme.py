r"""
Which scheme: euler, heun, rk4, dopri5
======================================

Under noise the schemes are `euler` (Euler-Maruyama) and, for Ornstein-Uhlenbeck heads, `sra1`. For
deterministic heads there are `heun` of order 2, `rk4` of order 4, and `dopri5` of order 5, which
chooses its steps by their error. This example measures the error of the tokens under such heads
against the number of evaluations of the velocity, which is what a run costs.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

x0 = wflow.tokens.uniform(n=40, d=3, seed=0)
law = wflow.heads.Oscillating(3)  # deterministic: dD/dt = M(t) - D


def solve(dt, scheme):
    run = wflow.solve(x0, law, heads=2, t_final=2.0, dt=dt, scheme=scheme, seed=1)
    return run, run.tokens.isel(snapshot_path=0, snapshot=-1).values  # (n, d)


exact = solve(1.0, wflow.Dopri5(rtol=1e-13, atol=1e-13))[1]

# %%
# Fixed steps: an error :math:`C\,\Delta t^p` makes a line of slope p.

steps = np.array([10, 20, 40, 80, 160])
stages = {"euler": 1, "heun": 2, "rk4": 4}
errors = {
    scheme: [np.abs(solve(2.0 / k, scheme)[1] - exact).max() for k in steps] for scheme in stages
}
for scheme in stages:
    slope = -np.polyfit(np.log(steps[2:]), np.log(errors[scheme][2:]), 1)[0]
    print(f"{scheme:5} measured order {slope:.2f}")

# %%
# Adaptive steps: the tolerances decide, and the run counts its evaluations.

adaptive = [solve(2.0, wflow.Dopri5(rtol=10.0**-k, atol=10.0**-k)) for k in range(3, 12)]
evaluations = [int(run.evaluations[0, -1]) for run, _ in adaptive]
adaptive_errors = [np.abs(end - exact).max() for _, end in adaptive]

fig, ax = plt.subplots()
for (scheme, count), marker in zip(stages.items(), "os^", strict=True):
    ax.loglog(count * steps, errors[scheme], marker + "-", label=scheme)
ax.loglog(evaluations, adaptive_errors, "D--", label="dopri5, tolerances $10^{-3}$ to $10^{-11}$")
ax.set(
    xlabel="evaluations of the velocity", ylabel=r"error at $t=2$, $\max_i |x_i - x_i^{\rm exact}|$"
)
ax.legend()
plt.show()

# %%
# The integrals of the energy budget are components of the same scheme, so that the balance closes
# at its order, too.

for scheme, count in stages.items():
    residual = abs(float(solve(0.05, scheme)[0].edi_residual[0, -1]))
    print(
        f"{scheme:5} residual of the balance, dt = 0.05: {residual:.1e} ({40 * count} evaluations)"
    )
run, end = adaptive[5]  # tolerance 1e-8
print(f"dopri5 residual of the balance: {abs(float(run.edi_residual[0, -1])):.1e}")
