r"""
The mean-field limit, n to infinity
===================================

Clouds of n independent tokens of one law follow, as n grows, the flow of that law ([MHT] section
2). The energy is a mean over pairs of tokens, so that its deviation from the limit is of the order
:math:`n^{-1/2}` at every time. A cloud of 30,000 tokens, by fast sums, stands for the limit here.
"""

import matplotlib.pyplot as plt
import numpy as np

import wflow

law = wflow.heads.Oscillating(3)
options = {"heads": 4, "t_final": 1.0, "dt": 0.1, "scheme": "rk4", "seed": 1}


def sample(n, seed):
    """Independent tokens around two of the axes, in unequal numbers."""
    rng = np.random.default_rng(seed)
    centres = np.array([[1.0, 0, 0], [0, 1, 0], [0, 1, 0]])
    return wflow.sphere.normalise(
        centres[rng.integers(3, size=n)] + 0.4 * rng.standard_normal((n, 3))
    )


compute = wflow.Compute(method="fast", tolerance=1e-8)
limit = wflow.solve(sample(30_000, seed=0), law, compute=compute, **options).energy[0]

# %%
# Many small clouds at once: `x0` may hold a start for every path, and all paths share the heads.

sizes, paths = np.array([16, 32, 64, 128, 256, 512]), 64
energies = {}
for n in sizes:
    x0 = sample(paths * n, seed=n).reshape(paths, n, 3)
    energies[n] = wflow.solve(x0, law, paths=paths, **options).energy

fig, ax = plt.subplots()
for n, colour in ((16, "C0"), (64, "C1"), (512, "C2")):
    low, high = energies[n].quantile([0.1, 0.9], "path")
    ax.fill_between(limit.time, low, high, color=colour, alpha=0.35, lw=0, label=f"$n$ = {n}")
ax.plot(limit.time, limit, "k", label="$n$ = 30,000")
ax.set(xlabel="time $t$", ylabel="energy $E$, 80 % of the clouds")
ax.legend()
plt.show()

# %%
# The rate, by a fit through the root mean square over the clouds, with a bootstrap over them.

fig, ax = plt.subplots()
for time, marker in ((0.0, "o"), (1.0, "s")):
    squares = np.array(
        [(energies[n] - limit).sel(time=time, method="nearest").values ** 2 for n in sizes]
    )  # (sizes, paths)
    fit = wflow.fits.power_law(sizes, squares)
    low, high = np.array(fit.exponent_ci) / 2
    print(f"t = {time:g}: rms deviation ~ n^{fit.exponent / 2:.3f} (95 %: {low:.3f} to {high:.3f})")
    mean, error = wflow.fits.mean_and_error(squares)
    rms = np.sqrt(mean)
    bars = ax.errorbar(sizes, rms, error / rms, fmt=marker, capsize=2, label=f"$t$ = {time:g}")
    ax.plot(sizes, np.sqrt(fit(sizes)), color=bars[0].get_color(), lw=1)
ax.set(
    xscale="log", yscale="log", xlabel="tokens $n$", ylabel="rms of $E_n - E_\\infty$, ± 2 errors"
)
ax.set_xticks(sizes, map(str, sizes))
ax.minorticks_off()
ax.legend()
plt.show()
