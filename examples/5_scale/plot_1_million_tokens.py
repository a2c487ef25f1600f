r"""
A million tokens
================

On the circle and the sphere the sums over pairs cost O(n) by fast sums. A run with a million tokens
is then a matter of seconds for each step, with the whole energy budget and an estimate of the
error; all pairs would be :math:`10^{12}` kernel values for each head and step.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

import wflow

n, heads = 1_000_000, 2
x0 = wflow.tokens.cross_polytope(n=n, d=3, spread=0.3, seed=0)
law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3))
compute = wflow.Compute(method="fast", tolerance=1e-8)

start = time.perf_counter()
run = wflow.solve(x0, law, heads=heads, t_final=0.1, dt=0.05, seed=0, compute=compute)
print(f"{time.perf_counter() - start:.1f} s for two steps with their budget")
print(f"estimated relative error of the sums: {float(run.sum_error.max()):.1e}")
print(f"residual of the energy balance: {float(run.edi_residual[0, -1]):+.3e}")

# %%
# A check against all pairs, at fifty of the million tokens: their velocity by fast sums, and by
# direct sums over a million others.

D = run.initial_heads.values
some = slice(None, None, n // 50)
fast = wflow.velocity(x0, D, method="fast", tolerance=1e-8)[some]
direct = np.zeros_like(fast)
for row, x in zip(direct, x0[some], strict=True):
    for D_h in D:
        weights = np.exp(x0 @ (D_h.T @ x))
        row -= wflow.sphere.project(x, D_h @ (weights @ x0) / weights.sum()) / heads
error = np.abs(fast - direct).max() / np.abs(direct).max()
print(f"relative error of the velocity at {len(direct)} tokens: {error:.1e}")

# %%
# Densities instead of points: a million tokens fill a histogram over the sphere (equal areas).

fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
for ax, k, title in zip(axes, (0, -1), ("$t$ = 0", "$t$ = 0.1"), strict=True):
    x = run.tokens.isel(snapshot_path=0, snapshot=k).values
    longitude = np.degrees(np.arctan2(x[:, 1], x[:, 0]))
    counts = ax.hist2d(
        longitude, x[:, 2], bins=(180, 90), density=True, cmap="magma", rasterized=True
    )
    ax.set(xlabel="longitude (degrees)", title=title)
axes[0].set_ylabel("height $x_3$")
fig.colorbar(counts[3], ax=axes, label="density (per degree and height)")
plt.show()
