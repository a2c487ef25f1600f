r"""
Flows with and without a sparse transformer
===========================================

OT-Flow moves samples of a Gaussian along the gradient of a potential :math:`\phi`,

.. math::

    \dot x = \nabla\phi(x, t), \qquad
    \phi(s) = w^\top N(s) + \tfrac12 s^\top A^\top A s + b^\top s + c, \quad s = (x, t),

where :math:`N` is a residual network, so that gradient, Laplacian and Hessian have closed forms.
The sparse transformer adds a layer of attention after each step. Here the flow is defined by its
way back from the data, :math:`x \leftarrow x - \frac12(S(x) - M(x; C_k))` and a step of OT-Flow,
whose Jacobians are known, so that it has a density. This example trains both in the plane.
"""

import matplotlib.pyplot as plt
import torch

from wflow import nets, sampling

STEPS, BATCH, TOKENS = 150, 256, 128
objective = nets.generative.Likelihood(alpha=(1.0, 0.01, 0.01))
torch.set_num_threads(1)


def train(flow, batch):
    def batches(step):
        return (nets.data.planar("moons", batch, seed=step + 1),)

    rate = nets.train.Cosine(2e-2, least=1e-4, warm_up=10, steps=STEPS)
    config = nets.train.TrainConfig(steps=STEPS, batch=batch, schedule=rate, device="cpu")
    return nets.train.train(flow, objective, batches, config)


# %%
# The plain flow. `Likelihood` is the negative log likelihood with the transport cost and the
# penalty of the Hamilton-Jacobi-Bellman equation; the trainer is that of all networks here, with
# checkpoints and histories.

torch.manual_seed(0)
plain = nets.generative.OTFlow(nets.generative.Potential(2, width=16), steps=6)
histories = {"OT-Flow": train(plain, BATCH)}

# %%
# The flow with attention. The first 128 rows of each batch are the context and have no part in the
# loss; the others are queries. The potential begins with the same numbers. With
# :math:`\beta = 20` a token attends to its neighbours and not to the whole cloud; only the step
# next to the data has the layer.

torch.manual_seed(0)
sparse = nets.generative.SparseTransformerFlow(
    nets.generative.Potential(2, width=16), steps=6, lam=0.1, beta=20.0, tokens=TOKENS, attended=[6]
)
histories["sparse"] = train(sparse, BATCH + TOKENS)
sparse.set_context(nets.data.planar("moons", TOKENS, seed=7, part="validation"))

# %%
# Held-out points: the log likelihood of both, the effective number of tokens that a query
# attends to, and the sliced Wasserstein distance of samples from them.

plain.eval()
sparse.eval()
held_out = nets.data.planar("moons", 1000, seed=1, part="validation")
samples = {"OT-Flow": plain.sample(1000, seed=2), "sparse": sparse.sample(1000, seed=2)}
with torch.no_grad():
    for name, flow in (("OT-Flow", plain), ("sparse", sparse)):
        nll = -float(flow.log_density(held_out).mean())
        gap = float(sampling.sliced_w2(samples[name].numpy(), held_out.numpy(), seed=0))
        print(f"{name:8} negative log likelihood {nll:.3f}, sliced W2 of samples {gap:.3f}")
print(f"effective tokens of a query: {float(sparse.ess(held_out)[-1].mean()):.1f} of {TOKENS}")

# %%
# Both flows are invertible: samples are the inverse of the map whose determinant the density has,
# by corrections of each Runge-Kutta step, and by Newton's method for the layers of the other.

for name, flow in (("OT-Flow", plain.double()), ("sparse", sparse.double())):
    z = flow.draws(200, seed=3)
    with torch.no_grad():
        error = float((flow.to_base(flow.from_base(z)).z - z).abs().max())
    print(f"{name:8} round trip {error:.1e}")

# %%
# Densities on a grid and samples. Far from the tokens of its context the layer contracts by a
# factor of two towards the base, so that samples have heavier tails. In this short training it
# does not help; with a layer after each step it hurts more. The study ``rwpo_benchmarks`` measures
# where it does.

side = torch.linspace(-2.5, 2.5, 80, dtype=torch.float64)
grid = torch.cartesian_prod(side, side)
figure, axes = plt.subplots(1, 3, figsize=(9, 3.1))
for axis, (name, flow) in zip(axes, (("OT-Flow", plain), ("sparse", sparse)), strict=False):
    with torch.no_grad():
        density = flow.log_density(grid).exp().reshape(80, 80)
    axis.contourf(side, side, density.T, levels=12, cmap="Blues")
    axis.plot(*samples[name][:300].T, ".", color="tab:orange", markersize=2)
    axis.set(title=name, xlim=(-2.5, 2.5), ylim=(-2.5, 2.5))
for name, history in histories.items():
    axes[2].plot(history.step, history.nll, label=name)
axes[2].set(title="negative log likelihood", xlabel="step", ylim=(0, 6))
axes[2].legend()
