r"""
Heads of a trained GPT as particles
===================================

The attention layers of a network become a schedule of heads, the embeddings of a text become tokens
on the sphere, and :func:`wflow.solve` moves them. A layer norm sees only the direction :math:`u =
Cx/|Cx|` of a token, with the mean over the entries removed by C, so that a block acts on it as a
flow on the sphere,

.. math:: \dot u = \frac1r\,P_u\,C\,\mathrm{attention}(\mathrm{norm}(u)), \qquad r = |Cx|.

Scores :math:`\langle W_Q x, W_K y\rangle/\sqrt k`, values and the causal mask are those of the
network. A control with random heads of the same singular values shows what training has chosen.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import wflow
from wflow import nets

# %%
# A small GPT, trained for some seconds on the text that ships with wflow.

torch.manual_seed(0)
text = nets.data.embedded_text()
gpt = nets.GPT(vocabulary=text.vocabulary, context=32, width=32, depth=2, heads=4)
batches = nets.data.CropBatches(text.train, context=32, batch=16, seed=1)
objective = nets.train.objective(nets.train.cross_entropy)
schedule = nets.train.Constant(2e-3)
config = nets.train.TrainConfig(steps=120, batch=16, schedule=schedule, device="cpu")
history = nets.train.train(gpt, objective, batches, config)
print(f"loss {float(history.loss[0]):.2f} -> {float(history.loss[-10:].mean()):.2f}")

# %%
# Four windows of the test text, a path each, pass four times through the layers. General heads
# (Q, K, V) have no energy, and the problem says so.

windows = torch.stack([text.test[k : k + 32] for k in range(0, 800, 200)])  # (paths, tokens)
problem = nets.particles.problem(gpt, windows, steps=20, passes=4)
print({name: value for name, value in problem.items() if name in ("t_final", "paths", "causal")})
law = problem["law"]
kinds = {"trained": law} | {
    f"random {k}": nets.particles.randomised(law, seed=k) for k in range(1, 4)
}
runs = {name: wflow.solve(**(problem | {"law": law})) for name, law in kinds.items()}

# %%
# The mean cosine of pairs of tokens, :math:`\frac1{n^2}\sum_{ij}\langle x_i, x_j\rangle`, grows
# where tokens gather.


def cosine(run):
    return (run.tokens.mean("token") ** 2).sum("axis")  # (path, snapshot)


fig, axes = plt.subplots(1, 2, figsize=(8, 3.2))
passes = runs["trained"].snapshot / (problem["t_final"] / 4)
for name, run in runs.items():
    values = cosine(run)
    trained = name == "trained"
    axes[0].errorbar(
        passes,
        values.mean("snapshot_path"),
        values.std("snapshot_path", ddof=1) / 2,
        color="C3" if trained else "0.6",
        marker="o" if trained else "s",
        ms=3,
        capsize=2,
        label="trained heads" if trained else "random heads, same singular values",
    )
handles, labels = axes[0].get_legend_handles_labels()
axes[0].legend(handles[:2], labels[:2])
axes[0].set(xlabel="passes through the layers")
axes[0].set(ylabel="mean cosine of pairs, ± standard error")
for name, values in (("scores", law.layer_scores), ("values", law.layer_values)):
    norms = np.linalg.norm(values, ord=2, axis=(2, 3))  # (layers, heads)
    axes[1].plot(np.sort(norms.ravel())[::-1], "o-", label=f"{name} of {norms.size} heads")
axes[1].set(xlabel="head, sorted", ylabel="largest singular value", ylim=(0, None))
axes[1].legend()
plt.show()

# %%
# How far are these heads from those of a gradient flow, which are symmetric with values
# proportional to the scores?

tied = nets.particles.tied(law)
print(f"asymmetry of the scores, 0 to 1: {tied.asymmetry.mean():.2f}")
print(f"|alignment| of values and scores, 0 to 1: {abs(tied.alignment).mean():.2f}")
