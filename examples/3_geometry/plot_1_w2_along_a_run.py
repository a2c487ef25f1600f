r"""
W₂ along a run
==============

The Wasserstein distance between token clouds,

.. math:: W_2(\mu, \nu)^2 = \min_{\pi}\ \frac1n \sum_i \angle(x_i, y_{\pi(i)})^2

for clouds of n tokens each, measures how far a run has moved, how fast, and how straight: the
length of the curve :math:`\int |\dot\mu|\,\mathrm dt` against the distance of its ends.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

x0 = wflow.tokens.cross_polytope(n=150, d=3, spread=0.1, seed=0)
save = wflow.SaveAt(snapshots=np.linspace(0, 4, 41))
options = {"heads": 4, "t_final": 4.0, "dt": 0.02, "scheme": "rk4", "seed": 3, "save": save}
run = wflow.solve(x0, wflow.heads.Frozen(), **options)

# %%
# Distances of all snapshots from the start, from the end, and from the snapshot before.

start, end, steps = (
    wflow.transport.over_time(run, to=to).isel(snapshot_path=0)
    for to in ("initial", "final", "previous")
)
speed = steps / steps.elapsed
length = float(steps.sum())
print(f"length of the curve {length:.4f}, distance of its ends {float(start[-1]):.4f}")

# %%
# No coupling of tokens is cheaper than the optimal one. The one that follows the flow, token by
# token, has the speed :math:`\bigl(\frac1n\sum_i |v_i|^2\bigr)^{1/2}`. For small steps the two
# agree: the metric derivative in W₂ is the root mean square of the velocity.

D = run.initial_heads.values
clouds = run.tokens.isel(snapshot_path=0).values  # (snapshots, n, d)
rms = np.array([np.sqrt((wflow.velocity(x, D) ** 2).sum(axis=1).mean()) for x in clouds])
between = np.sqrt(rms[1:] * rms[:-1])
print(f"W2 speed against velocity: largest difference {abs(speed / between - 1).max().item():.3f}")

fig, axes = plt.subplots(1, 2, figsize=(8, 3.2))
axes[0].plot(run.snapshot, start, label="from the start")
axes[0].plot(run.snapshot, end, "--", label="to the end")
axes[0].plot(run.snapshot, np.append(0, steps.cumsum()), "k:", label="length of the curve")
axes[0].set(xlabel="time $t$", ylabel="$W_2$ (radians)")
axes[1].semilogy(run.snapshot, rms, label=r"$(\frac{1}{n}\sum_i |v_i|^2)^{1/2}$")
axes[1].semilogy(run.snapshot[1:] - 0.05, speed, "o", ms=3, label=r"$W_2$ of snapshots / time")
axes[1].set(xlabel="time $t$", ylabel="speed (radians per unit of time)")
for ax in axes:
    ax.legend()
plt.show()

# %%
# For large clouds there are bounds from both sides by entropic transport, and sliced distances.

x, y = clouds[0], clouds[-1]
exact = wflow.transport.w2(x, y)
bounds = wflow.transport.entropic(x, y)
print(f"exact {exact:.5f}; entropic between {bounds.lower:.5f} and {bounds.value:.5f}")
