r"""
Transport cost straightens trajectories
=======================================

Of all velocities that lead to the same result, the transport cost :math:`\frac12\int |\dot
X|^2\,\mathrm dt` is least for straight lines at constant speed ([OTT] section 3). This example
trains one continuous transformer with several weights λ of the cost to tell clouds of two kinds of
points apart, and measures how straight the hidden trajectories are:

.. math:: \text{straightness} = \frac{\sum_m |X_{m+1} - X_m|}{|X_M - X_0|} \ge 1 .
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from wflow import nets


def rings(batch, seed, points=12):
    """Points on a ring of radius 1 (class 0) or of radius 1/2 (class 1), with noise."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (batch,), generator=draws)
    angle = 2 * np.pi * torch.rand(batch, points, generator=draws)
    radius = 1 - 0.5 * labels[:, None] + 0.15 * torch.randn(batch, points, generator=draws)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1), labels


class Rings(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.body = nets.ContinuousTransformer(layer, t_final=1.0, steps=5, velocity="residual")
        self.head = nn.Linear(width, 2)

    def forward(self, points):
        state, cost = self.body(self.embed(points))
        return nets.Output(self.head(state.mean(1)), cost)


# %%
# Training with three weights of the cost, three seeds each.

test, labels = rings(256, seed=10**6)
weights, seeds = [0.0, 0.3, 3.0], range(3)
straight, accurate, pictures = [], [], {}
for lam in weights:
    values = []
    for seed in seeds:
        torch.manual_seed(seed)
        net = Rings()
        optimiser = torch.optim.Adam(net.parameters(), 5e-3)
        for step in range(80):
            points, target = rings(32, seed=1000 * seed + step)
            output, cost = net(points)
            loss = nn.functional.cross_entropy(output, target) + lam * cost
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            path = net.body.trajectory(net.embed(test))
            right = (net(test).output.argmax(1) == labels).float().mean()
        values.append((float(nets.diagnostics.straightness(path).mean() - 1), float(right)))
        if seed == 0:
            pictures[lam] = path.states.numpy()  # (steps + 1, batch, points, width)
    straight.append([s for s, _ in values])
    accurate.append([a for _, a in values])
    print(
        f"lambda = {lam:<4}  straightness - 1: {np.mean(straight[-1]):.4f}"
        f" ± {np.std(straight[-1], ddof=1):.4f}  accuracy {100 * np.mean(accurate[-1]):.1f} %"
    )

# %%
# Trajectories in the plane of the largest motion, and the measure with its spread over seeds.

fig, axes = plt.subplots(1, 3, figsize=(9.6, 3.2))
for ax, lam in zip(axes, (0.0, 3.0), strict=False):
    states = pictures[lam]
    motion = (states - states[:1]).reshape(-1, states.shape[-1])
    plane = np.linalg.svd(motion, full_matrices=False)[2][:2]  # (2, width)
    flat = states @ plane.T  # (steps + 1, batch, points, 2)
    for sample in range(40):
        colour = "C3" if labels[sample] else "C0"
        ax.plot(*flat[:, sample, 0].T, color=colour, lw=0.8)
        ax.plot(*flat[-1, sample, 0], "o", color=colour, ms=2.5)
    ax.set(xlabel="first direction of motion", title=rf"$\lambda$ = {lam:g}")
axes[0].set_ylabel("second direction")
axes[2].errorbar(
    range(len(weights)),
    np.mean(straight, axis=1),
    np.std(straight, axis=1, ddof=1),
    fmt="o-",
    capsize=3,
)
axes[2].set_xticks(range(len(weights)), [f"{lam:g}" for lam in weights])
axes[2].set(xlabel=r"weight of the cost $\lambda$", ylabel="straightness − 1", yscale="log")
axes[2].set_title("mean ± deviation, three seeds", fontsize=9)
plt.show()
