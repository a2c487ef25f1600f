r"""
Training by the maximum principle
=================================

The layers of a residual network are a control, and Pontryagin's principle trains them without a
learning rate. In each step of the extended method of successive approximations the states
:math:`x_l` and costates :math:`p_l` of the network are held fast, and every layer by itself takes
the weights that maximise its Hamiltonian,

.. math:: H(x_l, p_{l+1}, w) = \langle p_{l+1}, f(x_l, w)\rangle - L(x_l, w),

less a penalty of weight ρ for leaving the states and costates that it was given. Gradient descent,
by the same costates, makes one small step along :math:`\nabla_w H`.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn import functional

from wflow import nets

# %%
# Points in a disc, and in the rest of a square.

draws = torch.Generator().manual_seed(0)
points = 4 * torch.rand(150, 2, generator=draws) - 2
labels = (points.norm(dim=1) < 1.5).long()

# %%
# One network, trained in two ways. Passes are counted as what a layer evaluates: once for the
# states and once for its gradient in gradient descent, and in the other method also for every step
# of the maximisations: it takes few steps, each of many passes.


def trained(optimizer, steps):
    torch.manual_seed(1)
    net = nets.ControlledResNet(2, layers=6, t_final=3.0, width=4, transport=0.01)
    count, before = 0, []

    def counted(*_):
        nonlocal count
        count += 1

    def batches(step):
        before.append(count)
        return points, labels

    objective = nets.control.by_costates(nets.train.objective(functional.cross_entropy, 1.0))
    schedule = nets.train.Constant(0.5)
    config = nets.train.TrainConfig(
        steps=steps, batch=150, optimizer=optimizer, schedule=schedule, device="cpu"
    )
    hook = net.body.layers[0].register_forward_hook(counted)
    history = nets.train.train(net, objective, batches, config)
    hook.remove()
    return net, history, before


runs = {
    "extended MSA": trained(nets.control.MSA(rho=0.1), 15),
    "gradient descent": trained("sgd", 200),
}
for name, (net, history, before) in runs.items():
    with torch.no_grad():
        right = float((net(points).output.argmax(1) == labels).float().mean())
    print(
        f"{name:17}{len(before):4} steps {before[-1]:5} passes  loss {float(history.loss[-1]):.3f}"
        f"  accuracy {100 * right:.1f} %"
    )
msa = runs["extended MSA"][1]

# %%
# Where weights change with depth, the Hamiltonian of the trained networks says how near they are to
# an optimal control, along which it is constant.


def hamiltonian(net):
    found = nets.control.extremal(net, points, lambda out: functional.cross_entropy(out, labels))
    return found.times, found.hamiltonian


torch.manual_seed(1)
untrained = nets.ControlledResNet(2, layers=6, t_final=3.0, width=4, transport=0.01)
fig, axes = plt.subplots(1, 3, figsize=(9.6, 3.2))
for place, (name, (_, history, before)) in enumerate(runs.items()):
    axes[0].semilogx(np.maximum(1, before), history.loss, color=f"C{place}", label=name)
axes[0].set(xlabel="passes through a layer", ylabel="loss and running cost")
axes[0].legend()
axes[1].plot(*hamiltonian(untrained), "o:", ms=3, color="0.5", label="before")
for place, (name, (net, _, _)) in enumerate(runs.items()):
    axes[1].plot(*hamiltonian(net), "o-", ms=3, color=f"C{place}", label=name)
axes[1].set(xlabel="depth (time)", ylabel="Hamiltonian")
axes[1].legend(fontsize=8)
line = torch.linspace(-2, 2, 121)
plane = torch.cartesian_prod(line, line)
with torch.no_grad():
    share = runs["extended MSA"][0](plane).output.softmax(1)[:, 1].reshape(121, 121)
axes[2].contourf(line, line, share.T, levels=[0, 0.5, 1], colors=["#dbe6f4", "#f7dfd3"])
for kind, colour in ((0, "C0"), (1, "C3")):
    axes[2].plot(*points[labels == kind].T, ".", ms=3, color=colour)
axes[2].set(xlabel="first feature", ylabel="second feature", title="extended MSA", aspect="equal")
plt.show()
