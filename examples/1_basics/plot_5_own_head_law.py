r"""
Your own head law
=================

A law is a drift f(D, t) and a size of the noise σ(D, t),

.. math:: \mathrm dD_h = f(D_h, t)\,\mathrm dt + \sigma(D_h, t)\,\mathrm dW_h, \qquad
          \mathrm dW = \sqrt{\mathrm dt}\,(Z + Z^\top)/2,

given for all paths and heads at once. Here heads are Langevin particles in a quadratic well that is
cooled, :math:`f = r\,(M - D)` and :math:`\sigma^2 = 2 r\,e^{-t/\tau}`. From D(0) = M the diagonal
entries have the variance

.. math:: \mathrm{Var}\,D_{kk}(t) = \frac{2r}{2r - 1/\tau}\,\bigl(e^{-t/\tau} - e^{-2rt}\bigr),

and those off the diagonal half of it.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy import asarray, exp, full, sqrt

import wflow

mean, rate, cooling = np.diag([2.0, 1.0, 0.0]), 1.0, 2.0

# %%
# Two functions are enough:

law = wflow.heads.HeadLaw(
    lambda D, t: rate * (mean - D),  # (paths, heads, d, d)
    lambda D, t: np.full(D.shape[:2], np.sqrt(2 * rate * np.exp(-t / cooling))),  # (paths, heads)
)
x0 = wflow.tokens.uniform(n=30, d=3, seed=0)
save = wflow.SaveAt(every=10, heads=True, paths=range(32), snapshots=np.linspace(0, 6, 21))
options = {"heads": [mean] * 16, "t_final": 6.0, "dt": 0.01, "paths": 32, "seed": 1, "save": save}
run = wflow.solve(x0, law, **options)

# %%
# The variance over paths and heads against the formula.

D = run.heads.transpose("snapshot", "snapshot_path", "head", "axis", "axis_out").values
deviation = (D - mean).reshape(D.shape[0], -1, 3, 3)  # (snapshots, samples, d, d)
samples = deviation.shape[1]
t = run.snapshot.values
exact = 2 * rate / (2 * rate - 1 / cooling) * (np.exp(-t / cooling) - np.exp(-2 * rate * t))
on, off = (deviation[..., 0, 0] ** 2).mean(1), (deviation[..., 0, 1] ** 2).mean(1)
error = np.sqrt(2 / samples)  # relative standard error of a Gaussian variance

fig, ax = plt.subplots()
for values, factor, label in ((on, 1, "$D_{11}$"), (off, 0.5, "$D_{12}$")):
    bars = 2 * error * values
    points = ax.errorbar(
        t, values, bars, fmt="o", ms=3, capsize=2, label=f"{label}, ± 2 standard errors"
    )
    ax.plot(t, factor * exact, color=points[0].get_color())
ax.set(xlabel="time $t$", ylabel="variance of an entry of $D$")
ax.legend(title="lines: formula")
plt.show()

# %%
# A registered class can also be made from the run file, for :func:`wflow.rerun` and
# `wflow verify`.


@wflow.heads.register
class Cooled(wflow.heads.HeadLaw):
    """dD = rate (mean - D) dt + sqrt(2 rate exp(-t/cooling)) dW."""

    def __init__(self, mean, rate=1.0, cooling=1.0):
        super().__init__()
        self.mean, self.rate, self.cooling = asarray(mean, dtype=float), rate, cooling

    def drift(self, D, t):
        return self.rate * (self.mean - D)

    def diffusion(self, D, t):
        return full(D.shape[:2], sqrt(2 * self.rate * exp(-t / self.cooling)))

    def to_config(self):
        return {"mean": self.mean.tolist(), "rate": self.rate, "cooling": self.cooling}


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "cooled.h5"
    stored = wflow.solve(x0, Cooled(mean, rate, cooling), out=file, **options).load()
    again = wflow.rerun(file)  # the law is made from the file
    report = wflow.verify(file)
print(f"{sum(check.passed is True for check in report.checks)} checks hold")
