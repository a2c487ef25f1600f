r"""
Verify, resume and rerun a run file
===================================

A run file is written as the run goes. A run that is interrupted resumes from its last checkpoint
with bitwise identical results, a finished file is checked by :func:`wflow.verify`, and
:func:`wflow.rerun` computes it again from its configuration alone.
"""

import os
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

import wflow

folder = tempfile.TemporaryDirectory()
file = Path(folder.name) / "run.h5"
x0 = wflow.tokens.cross_polytope(n=100, d=3, seed=0)
law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3))
options = {"heads": 16, "t_final": 6.0, "dt": 2e-3, "paths": 4, "seed": 7}
options |= {"save": wflow.SaveAt(every=50, heads=True)}

# %%
# Interruption
# ------------
# A thread stands in for the user who presses Ctrl-C shortly after the start. The step in progress
# ends, what there is goes to disk, and the message says how to continue.


def press_ctrl_c():
    partial = file.with_name("run.h5.partial")
    while not partial.exists():
        time.sleep(0.01)
    time.sleep(0.3)
    if partial.exists():
        os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=press_ctrl_c).start()
try:
    wflow.solve(x0, law, out=file, **options)
except wflow.Interrupted as error:
    print("interrupted:", str(error).replace(folder.name, "FOLDER"))
print("on disk:", sorted(path.name for path in Path(folder.name).iterdir()))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # says that the run is not complete
    with wflow.open(file.with_name("run.h5.partial")) as partial:
        reached = float(partial.time[-1])

# %%
# Resume
# ------
# The same call with ``if_exists="resume"`` computes the rest.

run = wflow.solve(x0, law, out=file, if_exists="resume", **options).load()
print("on disk:", sorted(path.name for path in Path(folder.name).iterdir()))

# %%
# Rerun
# -----
# The configuration in the file is enough to compute everything again, this time without an
# interruption. Random numbers are keyed by seed, path and step: the results are the same bit for
# bit.

direct = wflow.rerun(file)
print("bitwise identical:", np.array_equal(run.energy, direct.energy))

fig, ax = plt.subplots()
ax.plot(run.time, run.energy.mean("path"), lw=2.5, alpha=0.5, label="interrupted and resumed")
ax.plot(direct.time, direct.energy.mean("path"), "k:", label="without interruption")
ax.axvline(reached, color="0.6", lw=0.8, label="interruption")
ax.set(xlabel="time $t$", ylabel="energy $E$, mean of 4 paths")
ax.legend()
plt.show()

# %%
# Verify
# ------
# Digests of every value, the first step computed again, energies from the stored tokens and heads,
# and the energy balance:

report = wflow.verify(file)
print(*report.checks, sep="\n")

# %%
# One changed bit is found.

damaged = Path(folder.name) / "damaged.h5"
data = bytearray(file.read_bytes())
with h5py.File(file) as plain:
    data[plain["energy"].id.get_offset()] ^= 1
damaged.write_bytes(data)
bad = wflow.verify(damaged)
print(*(check for check in bad.checks if check.passed is False), sep="\n")
folder.cleanup()
