r"""
Which method: exact and fast sums
=================================

Every step needs the sums :math:`\sum_j e^{\langle x_i, D_h x_j\rangle} x_j` for all i. `exact`
forms them pair by pair, :math:`O(n^2)`. On the circle and the sphere (d = 2, 3) `fast` expands the
kernel in harmonics,

.. math:: e^{\langle x, D y\rangle} = e^{|z|\,\langle x, z/|z|\rangle}, \qquad z = D y,

whose coefficients decay faster than any exponential: the cost is linear in n, the error is below a
tolerance, and the run states an estimate of it. `auto`, the default, takes whichever is expected to
need less time.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

import wflow

rng = np.random.default_rng(0)
Z = rng.standard_normal((4, 3, 3))
D = Z + Z.transpose(0, 2, 1)  # (heads, d, d), symmetric

# %%
# Errors first: the velocity by series for several tolerances, against the sums over all pairs.

x = wflow.tokens.uniform(n=4000, d=3, seed=0)
exact = wflow.velocity(x, D, method="exact")
tolerances = 10.0 ** -np.arange(3, 13, 3)
errors = [
    np.abs(wflow.velocity(x, D, method="fast", tolerance=tol) - exact).max() / np.abs(exact).max()
    for tol in tolerances
]
for tol, error in zip(tolerances, errors, strict=True):
    print(f"tolerance {tol:.0e}  relative error of the velocity {error:.1e}")

# %%
# Then times of one evaluation, the best of three (the numbers depend on the machine).

sizes = [500, 1000, 2000, 4000, 8000, 16000]


def seconds(method, n):
    cloud = wflow.tokens.uniform(n=n, d=3, seed=1)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        wflow.velocity(cloud, D, method=method)
        times.append(time.perf_counter() - start)
    return min(times)


times = {method: [seconds(method, n) for n in sizes] for method in ("exact", "fast")}

fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.1))
axes[0].loglog(tolerances, errors, "o-", label="measured")
axes[0].loglog(tolerances, tolerances, "k:", label="tolerance")
axes[0].set(xlabel="tolerance", ylabel="relative error of the velocity")
for method, marker in (("exact", "s-"), ("fast", "o-")):
    axes[1].loglog(sizes, times[method], marker, label=method)
axes[1].set(xlabel="tokens $n$", ylabel="time of one evaluation (s)")
for ax in axes:
    ax.legend()
plt.show()

# %%
# In a run the method is an option, and `sum_error` estimates the error at every recorded time.

compute = wflow.Compute(method="fast", tolerance=1e-8)
options = {"heads": D, "t_final": 0.2, "dt": 0.05, "save": wflow.SaveAt(every=1)}
run = wflow.solve(x, wflow.heads.Frozen(), compute=compute, **options)
print("estimated relative error of the sums:", run.sum_error[0].values)
