r"""
The proximal operator as attention
==================================

The regularised Wasserstein proximal operator of step :math:`h` with the prior
:math:`\psi = \lambda|x|_1` maps the empirical measure of a cloud to a density

.. math::

    K\rho(x) = \frac{1}{N}\sum_j e^{-\frac{\beta}{2}\lambda|x|_1 + U(x, x_j)}, \qquad
    U(x, y) = -\frac{\beta}{4h}|x - y|^2 - \log Z(y),

whose score is attention: :math:`\nabla\log K\rho = -\frac{\beta}{2}\nabla\psi
-\frac{\beta}{2h}(x - M(x))`, where :math:`M(x)` is the average of the tokens under the softmax of
:math:`U(x, \cdot)`. This example compares three kernels: with the normaliser :math:`Z` in closed
form (``exact``), with its Laplace approximation (``laplace``), and as the paper prints it
(``published``), where the proximal map of :math:`x` stands in the place of that of :math:`y`.
"""

import matplotlib.pyplot as plt
import numpy as np

from wflow import sampling

LAM, BETA = 2.0, 1.0
KERNELS = ("exact", "laplace", "published")
rng = np.random.default_rng(0)
prior = sampling.L1(LAM)

# %%
# Tokens on a line, and the density that the operator makes of them. The kernel ``exact`` is a
# probability density in :math:`x`: the integral over a grid is 1.

tokens = np.concatenate([rng.normal(-1.2, 0.5, 200), rng.normal(0.8, 0.3, 100)])[:, None]
x = np.linspace(-4, 4, 4001)[:, None]
spacing = x[1, 0] - x[0, 0]


def log_density(h):
    found = sampling.attention_mean(x, tokens, h=h, beta=BETA, prior=prior)
    return found.log_sum - BETA / 2 * prior.value(x) - np.log(len(tokens))


for h in (0.4, 0.1, 0.025):
    print(f"h = {h:<6} integral of the density: {np.exp(log_density(h)).sum() * spacing:.6f}")

# %%
# The attention of the three kernels beside the integral, here a sum over the tokens with a
# normaliser by quadrature on a grid. Only the exact kernel agrees at every step; the Laplace
# approximation has an error within a distance :math:`\sqrt{h}` of the kinks
# :math:`|y| = \lambda h`; the printed kernel is far off.

z = np.linspace(-8, 8, 8001)


def reference(h):
    gauss = (z - tokens) ** 2 / (2 * h)
    log_z = np.log(np.exp(-BETA / 2 * (LAM * np.abs(z) + gauss)).sum(1) * (z[1] - z[0]))
    scores = -BETA * (x - tokens.T) ** 2 / (4 * h) - log_z
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights @ tokens / weights.sum(1, keepdims=True)


steps = np.array([0.4, 0.2, 0.1, 0.05, 0.025])
errors = {kernel: [] for kernel in KERNELS}
bulk = np.abs(x[:, 0]) < 2
for h in steps:
    truth = reference(h)
    for kernel in KERNELS:
        mean = sampling.attention_mean(x, tokens, h=h, beta=BETA, prior=prior, kernel=kernel).mean
        errors[kernel].append(np.sqrt(np.mean((mean - truth)[bulk] ** 2)))
for kernel in KERNELS:
    print(f"{kernel:<10} error of M: " + "  ".join(f"{error:.1e}" for error in errors[kernel]))

# %%
# How many tokens a query attends to. A cloud of 1,000 Gaussian tokens attends to itself; its
# effective sample size falls with the dimension, until every token sees only itself and the layer
# has no interaction left. A smaller :math:`\beta` widens the kernel.

dimensions = (1, 2, 4, 8, 16, 32)
sizes = {}
for beta in (1.0, 0.1):
    sizes[beta] = []
    for d in dimensions:
        cloud = rng.normal(size=(1000, d))
        found = sampling.attention_mean(cloud, cloud, h=1 / 24, beta=beta, prior=prior)
        sizes[beta].append(np.median(found.ess))
    print(f"beta = {beta:<4} effective tokens: " + "  ".join(f"{s:.1f}" for s in sizes[beta]))

# %%
# The layer of the paper, :math:`G(x) = x + \frac12[S(x) - M(x)]`, and the backward map
# :math:`B(x) = x - \frac12[S(x) - M(x)]`, whose inverse always exists: Newton's method finds the
# tokens again to rounding.

cloud, context = rng.normal(size=(2, 500, 2))
options = {"h": 0.1, "beta": BETA, "prior": prior}
moved = sampling.backward(cloud, context, **options)
back = sampling.backward_inverse(moved, context, **options)
print(f"recovered to {np.abs(back - cloud).max():.1e}")

# %%
# Density, errors of the kernels, effective sample sizes.

fig, axes = plt.subplots(1, 3, figsize=(10.2, 3.2))
axes[0].hist(tokens[:, 0], 40, density=True, color="0.85", label="tokens")
for h in (0.4, 0.1, 0.025):
    axes[0].plot(x[:, 0], np.exp(log_density(h)), lw=1.2, label=f"h = {h:g}")
axes[0].set(xlabel="x", ylabel=r"density $K\rho$", xlim=(-3, 3))
axes[0].legend(fontsize=8)
for kernel, marker in zip(KERNELS[1:], "os", strict=True):
    axes[1].loglog(steps, errors[kernel], marker + "-", label=kernel)
axes[1].set(xlabel="step h", ylabel="error of M(x), |x| < 2", title="beside quadrature")
axes[1].set_xticks(steps, [f"{h:g}" for h in steps])
axes[1].set_xticks([], minor=True)
axes[1].legend(fontsize=8)
for beta, found in sizes.items():
    axes[2].loglog(dimensions, found, "o-", label=rf"$\beta$ = {beta:g}")
axes[2].axhline(1, color="0.6", lw=0.8)
axes[2].set(xlabel="dimension d", ylabel="effective tokens", title="1,000 tokens, h = 1/24")
axes[2].legend(fontsize=8)
plt.show()
