r"""
Reading a run in Julia, MATLAB or R
===================================

Run files are netCDF-4, that is HDF5: no part of wflow is needed to read them. This example writes
one, and shows the code of other languages (not executed here). Python and C store the last
dimension contiguously, Julia, MATLAB and R the first: **there the dimensions appear in reverse
order**, `energy` as (time, path).
"""

import tempfile
from pathlib import Path

import h5py
import matplotlib.pyplot as plt

import wflow

folder = tempfile.TemporaryDirectory()
file = Path(folder.name) / "run.h5"
law = wflow.heads.Oscillating(3)
save = wflow.SaveAt(snapshots=[0, 1, 2], heads=True)
options = {"heads": 4, "t_final": 2.0, "dt": 0.05, "scheme": "rk4", "save": save}
run = wflow.solve(wflow.tokens.uniform(n=50, d=3, seed=0), law, out=file, **options)

# %%
# What such a program sees:

with h5py.File(file) as plain:
    for name, variable in plain.items():
        if "long_name" in variable.attrs:  # the others are dimensions without values
            print(f"{name:28} {variable.shape!s:15} {variable.attrs['long_name']}")

# %%
# **Julia**, with NCDatasets (`] add NCDatasets`):
#
# .. code-block:: julia
#
#    using NCDatasets, Statistics
#    ds = NCDataset("run.h5")
#    energy = ds["energy"][:, :]                  # (time, path)
#    tokens = ds["tokens"][:, :, end, 1]          # (axis, token): last snapshot, first path
#    println(mean(energy[end, :]), "  ", ds["energy"].attrib["long_name"])
#    config = ds.attrib["config"]                 # JSON: JSON.parse(config)["dt"]
#
# **MATLAB**, whose netCDF functions take the file as it is:
#
# .. code-block:: matlab
#
#    energy = ncread("run.h5", "energy");         % (time, path)
#    time   = ncread("run.h5", "time");
#    x      = ncread("run.h5", "tokens");         % (axis, token, snapshot, path)
#    scatter3(x(1, :, end), x(2, :, end), x(3, :, end), 12, "filled"); axis equal
#    config = jsondecode(ncreadatt("run.h5", "/", "config"));
#
# **R**, with ncdf4:
#
# .. code-block:: r
#
#    library(ncdf4)
#    run <- nc_open("run.h5")
#    energy <- ncvar_get(run, "energy")           # (time, path)
#    plot(ncvar_get(run, "time"), energy, type = "l", xlab = "t", ylab = "E")
#
# On the command line, ``ncdump -h run.h5`` or ``h5dump -H run.h5`` list the contents. Open the file
# for reading only: what another program writes into it is detected by ``wflow verify``.
#
# The order of the dimensions, shown with NumPy: the same bytes, read with the first index fastest.

with h5py.File(file) as plain:
    stored = plain["tokens"][...]  # (snapshot_path, snapshot, token, axis)
reverse = stored.reshape(-1).reshape(stored.shape[::-1], order="F")  # as in Julia or MATLAB
print("Python ", stored.shape)
print("reverse", reverse.shape)

fig, ax = plt.subplots(figsize=(3.6, 3.6), subplot_kw={"projection": "3d"})
ax.scatter(*reverse[:, :, -1, 0], s=12)
ax.set(xlabel="$x_1$", ylabel="$x_2$", zlabel="$x_3$", aspect="equal")
ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[-1, 0, 1])
plt.show()
run.close()
folder.cleanup()
