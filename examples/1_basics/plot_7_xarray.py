r"""
Reading a run in xarray
=======================

A run file is netCDF-4. :func:`wflow.open` gives an :class:`xarray.Dataset` that reads from disk
only what is used, with named dimensions (`path`, `time`, `snapshot`, `token`, `axis`, ...), so that
selections and averages are written with names instead of numbers of axes.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import wflow

folder = tempfile.TemporaryDirectory()
file = Path(folder.name) / "run.h5"

x0 = wflow.tokens.cross_polytope(n=60, d=3, seed=0)
law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3))
save = wflow.SaveAt(every=4, snapshots=np.linspace(0, 4, 17), paths=range(24), heads=True)
wflow.solve(x0, law, heads=8, t_final=4.0, dt=1e-2, paths=24, seed=1, save=save, out=file)

run = wflow.open(file)
run

# %%
# Every variable says what it is, and from which equation.

print(run.upper_gradient_sq.attrs)

# %%
# Selections by value, statistics along named dimensions.

late = run.sel(time=slice(2, None))
print(late[["energy", "upper_gradient_sq"]].mean(["path", "time"]).to_array().values)
print(run.energy.sel(time=1.0, method="nearest").quantile([0.1, 0.5, 0.9], "path").values)

# %%
# A band of paths takes three lines.

low, middle, high = run.energy.quantile([0.1, 0.5, 0.9], "path").transpose("quantile", "time")
fig, ax = plt.subplots()
ax.fill_between(run.time, low, high, alpha=0.3, lw=0, label="80 % of the paths")
ax.plot(run.time, middle, label="median")
ax.set(xlabel="time $t$", ylabel="energy $E$")
ax.legend()
plt.show()

# %%
# Derived quantities keep their names. The second moment of the tokens,
# :math:`Q = \frac1n \sum_i x_i x_i^\top`, at each snapshot and path, tells how far from uniform
# (Q = I/3) a cloud is.

x = run.tokens
Q = x.dot(x.rename(axis="axis2"), dim="token") / x.sizes["token"]
distance = np.sqrt(((Q - np.eye(3) / 3) ** 2).sum(["axis", "axis2"]))
fig, ax = plt.subplots()
for values in distance.transpose("snapshot_path", "snapshot").values:
    ax.plot(distance.snapshot, values, color="0.75", lw=0.7)
ax.errorbar(
    distance.snapshot,
    distance.mean("snapshot_path"),
    2 * distance.std("snapshot_path", ddof=1) / np.sqrt(24),
    capsize=2,
    label="mean over paths, ± 2 standard errors",
)
ax.set(xlabel="time $t$", ylabel=r"anisotropy $\|Q - I/3\|_F$")
ax.legend()
plt.show()

# %%
# The energy of a snapshot follows from its tokens and heads, and the configuration repeats the run.

at = {"snapshot_path": 3, "snapshot": -1}
again = wflow.energy(x.isel(at).values, run.heads.isel(at).values)
config = json.loads(run.attrs["config"])
print({key: config[key] for key in ("t_final", "dt", "flow", "direction", "scheme", "seed")})

# %%
# To pandas, or to another file of the same kind:

table = run[["energy", "dissipation"]].mean("path").to_dataframe()
print(table.iloc[::25].round(4))
run.close()
folder.cleanup()
