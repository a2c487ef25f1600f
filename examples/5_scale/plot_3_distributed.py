r"""
Distributed runs with Dask
==========================

The paths of a run are independent: :func:`wflow.distributed.solve` spreads them over processes of
this machine (``workers=2``), or over a cluster (``scheduler="tcp://host:8786"``). The result is
bitwise identical to a run in one process, because random numbers are keyed by seed, path and step.

A script that starts worker processes needs ``if __name__ == "__main__":`` around what it does,
since every worker imports the script. A notebook does not need it, and the lines below work in
both.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import wflow

law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3))
problem = {
    "x0": wflow.tokens.cross_polytope(n=60, d=3, seed=0),
    "law": law,
    "heads": 8,
    "t_final": 2.0,
    "dt": 1e-2,
    "paths": 32,
    "seed": 4,
    "save": wflow.SaveAt(every=5),
}


def compare():
    """The same run in this process and by two workers."""
    serial = wflow.solve(**problem)
    with tempfile.TemporaryDirectory() as folder:
        run = wflow.distributed.solve(**problem, out=Path(folder) / "run.h5", workers=2).load()
    return serial, run


# %%
# The guard stands around the call that starts the workers.

if __name__ == "__main__":
    serial, run = compare()
    print("bitwise identical:", all(np.array_equal(serial[name], run[name]) for name in serial))

    mean, error = wflow.fits.mean_and_error(run.energy.values, axis=0)
    fig, ax = plt.subplots()
    ax.plot(run.time, mean, label="mean of 32 paths, computed by two workers")
    ax.fill_between(
        run.time, mean - 2 * error, mean + 2 * error, alpha=0.3, lw=0, label="± 2 standard errors"
    )
    ax.set(xlabel="time $t$", ylabel="energy $E$")
    ax.legend()
    plt.show()

# %%
# Workers may fail: parts that are done stay in a folder beside the run file, and the same call with
# ``if_exists="resume"`` continues. Studies take the flags ``--workers`` and ``--scheduler``.
