r"""
A continuous transformer around your own model
==============================================

:class:`wflow.nets.ContinuousTransformer` takes any blocks that map hidden states to hidden states,
as the velocity of these states in time, and returns their transport cost beside the result ([OTT]
eqs. 7 to 9),

.. math:: X_{m+1} = X_m + \Delta t\,f(X_m), \qquad
          \text{loss} = G(X_M, y) + \lambda\,\frac{\Delta t}{2}\sum_m \overline{|f(X_m)|^2} .

The model here is plain torch: two encoder layers over the rows of 8 x 8 digits.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from wflow import nets


class RowClassifier(nn.Module):
    """A transformer of your own: rows of an image as tokens."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.1 * torch.randn(8, width))
        layers = [nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True) for _ in range(2)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, 10)

    def forward(self, images):  # (batch, 1, 8, 8) or (batch, 8, 8)
        body = self.body(self.embed(images.reshape(-1, 8, 8)) + self.position)
        state, cost = body if isinstance(body, tuple) else (body, images.new_zeros(()))
        return nets.Output(self.head(state.mean(1)), cost)


# %%
# One line puts the body into continuous time: one layer's weights, used five times.


def make(continuous):
    torch.manual_seed(0)
    model = RowClassifier()
    if continuous:
        model.body = nets.ContinuousTransformer(model.body[0], t_final=1.0, steps=5)
    return model


digits = nets.data.digits()


def accuracy(model):
    images = (nets.data.unit(digits.test_images) - digits.mean) / digits.std
    with torch.no_grad():
        guess = model.eval()(images).output.argmax(1)
    return float((guess == digits.test_labels).float().mean())


# %%
# Training, by the trainer of wflow (or by your own loop: `loss + lam * cost`).

rows = {}
for name, continuous, lam in (("discrete", False, 0.0), ("continuous", True, 0.1)):
    model = make(continuous)
    batches = nets.data.ImageBatches(
        digits.train_images, digits.train_labels, batch=64, seed=0, mean=digits.mean, std=digits.std
    )
    objective = nets.train.objective(nn.functional.cross_entropy, weight=lam)
    schedule = nets.train.Constant(2e-3)
    config = nets.train.TrainConfig(steps=200, batch=64, schedule=schedule, device="cpu")
    rows[name] = model, nets.train.train(model, objective, batches, config)
    weights = sum(p.numel() for p in model.body.parameters())
    print(f"{name:10} {weights:6} weights in the body, test accuracy {100 * accuracy(model):.1f} %")

# %%
# The number of steps is a setting of the solver, not of the weights: it may be changed afterwards.

model = rows["continuous"][0]
counts = [1, 2, 3, 5, 8, 12, 20]
percent = []
for steps in counts:
    model.body.steps = steps
    percent.append(100 * accuracy(model))

fig, axes = plt.subplots(1, 2, figsize=(8, 3.2))
for name, (_, history) in rows.items():
    smooth = np.convolve(history.loss, np.ones(10) / 10, "valid")
    axes[0].semilogy(np.arange(10, 10 + len(smooth)), smooth, label=name)
axes[0].set(xlabel="training step", ylabel="training loss (mean of 10 steps)")
axes[0].legend()
axes[1].plot(counts, percent, "o-", color="C1")
axes[1].axvline(5, color="0.6", lw=0.8, ls="--", label="steps in training")
axes[1].set(xlabel="steps of the solver", ylabel="test accuracy (%)", ylim=(None, 101))
axes[1].legend()
plt.show()
