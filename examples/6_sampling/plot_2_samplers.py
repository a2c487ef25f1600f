r"""
Tokens that sample without noise
================================

Langevin dynamics samples a density :math:`\rho^* \propto \exp(-\beta(f + \lambda|x|_1))` by noise.
The sampler ``brwp`` has none: its tokens attend to each other, and the attention is the score of
their own law,

.. math::

    y_i = x_i - h\nabla f(x_i), \qquad x_i^+ = y_i + \tfrac12\bigl(S(y_i) - M(y_i)\bigr),

with soft thresholding :math:`S` and the mean :math:`M` of the attention. This example samples a
mixture with a sparse prior, follows the diagnostics of the attention, resumes a run from its file,
and shows where the sampler fails: in many dimensions.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import wflow
from wflow import sampling

# %%
# Four Gaussians times a Laplace prior. The target knows exact samples and moments, since each
# component is a product of truncated normal densities.

target = sampling.targets.GaussianMixture(
    [[1.5, 1.5], [1.5, -1.5], [-1.5, 1.5], [-1.5, -1.5]], scale=0.5, lam=1.0
)
x0 = 2 * np.random.default_rng(0).standard_normal((800, 2))
settings = {"h": 0.025, "steps": 400, "save_every": 10}
runs = {
    "BRWP": sampling.brwp(x0, target.grad, target.prior, **settings),
    "MYULA": sampling.myula(x0, target.grad, target.prior, **settings),
}
exact = target.sample(800, seed=1)
floor = sampling.sliced_w2(target.sample(800, seed=2), exact)
for name, run in runs.items():
    distance = sampling.sliced_w2(run["samples"][0, -1].values, exact)
    print(f"{name:<6} sliced W2 {distance:.3f}; two samples of the target: {floor:.3f}")

# %%
# The clouds at the end. That of ``brwp`` is regular, since its tokens repel each other; the
# coordinates that the prior has set close to zero lie on the axes.

figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharex=True, sharey=True)
clouds = {"target": exact} | {name: run["samples"][0, -1].values for name, run in runs.items()}
for axis, (name, cloud) in zip(axes, clouds.items(), strict=True):
    axis.plot(*cloud.T, ".", markersize=2)
    axis.set_title(name)
    axis.set_aspect("equal")

# %%
# Diagnostics over time: the effective number of tokens that a token attends to, the share of
# coordinates that :math:`S` sets to zero, and the variance beside the exact one.

run = runs["BRWP"]
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8))
axes[0].semilogy(run.time, run["ess"][0], label="mean")
axes[0].semilogy(run.time, run["ess_min"][0], label="smallest")
axes[0].set_title("effective tokens")
axes[0].legend()
axes[1].plot(run.time, run["absorbed"][0])
axes[1].set_title("absorbed coordinates")
for name, one in runs.items():
    axes[2].plot(one.time, one["sample_variance"][0].mean("axis"), label=name)
axes[2].axhline(np.diag(target.covariance()).mean(), color="0.5", linewidth=1)
axes[2].set_title("variance")
axes[2].legend()
for axis in axes:
    axis.set_xlabel("time k h")

# %%
# A run in a file is kept like one of ``wflow.solve``: it continues after a kill, has digests, and
# `wflow info` and `wflow verify` know it.

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "run.h5")
    with sampling.brwp(x0, target.grad, target.prior, **settings, out=file) as stored:
        print("bitwise identical:", stored["samples"].identical(run["samples"]))
    print(wflow.verify(file))

# %%
# Where it fails: in the cloud of its own context a token attends to itself, and in many dimensions
# to nobody else. Without interaction there is no score, and the cloud is too narrow. The effective
# sample size says so.

for d in (2, 5, 10, 20):
    wide = sampling.targets.GaussianLaplace(np.zeros(d), lam=0.5)
    found = sampling.brwp(wide.sample(800), wide.grad, wide.prior, h=0.05, steps=80, save_every=80)
    variance = float(found["sample_variance"][0, -1].mean()) / wide.covariance()[0, 0]
    print(f"d = {d:<3} ESS {float(found['ess'][0, -1]):6.1f}, variance over exact {variance:.2f}")
