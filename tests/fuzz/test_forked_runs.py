"""Runs in forks of a process with threads or without, ended at random moments and resumed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from interpreters import python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")

# Arguments: a folder, the first seed, the number of cases.
DRIVER = """
import os, random, signal, sys, time
from pathlib import Path

import numpy as np
import wflow
from wflow._core.threads import available

x = wflow.tokens.uniform(400, 3, seed=0)  # a step of eight heads is worth two threads

def compute(rng_of_run, **out):
    threads = rng_of_run.choice([None, 1, available()])
    options = {"threads": threads, "checkpoint_every": 0.0}
    run = wflow.solve(
        x, wflow.heads.OrnsteinUhlenbeck(np.eye(3)), heads=8, t_final=0.3, dt=0.01,
        kappa=0.01, seed=1, compute=wflow.Compute(**options), **out,
    )
    return {name: run[name].values.tobytes() for name in run.data_vars}

folder, first, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
expected = None
for seed in range(first, first + number):
    rng = random.Random(seed)
    if seed and expected is None:  # the first fork has a parent without threads
        expected = compute(rng)
    file = folder / f"{seed}.h5"
    child = os.fork()
    if child == 0:
        compute(rng, out=file)
        os._exit(0)
    begun = time.monotonic()
    if rng.random() < 0.7:
        time.sleep(rng.uniform(0.0, 0.3))
        os.kill(child, rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL]))
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert time.monotonic() < begun + 200, f"case {seed} hangs"
        time.sleep(0.01)
    found = compute(rng, out=file, if_exists="resume")
    expected = expected or compute(rng)
    assert found == expected, f"case {seed}"
print("done")
"""


def test_a_run_in_a_fork_is_resumed_to_the_bit(
    tmp_path: Path, cases: Callable[[int, int], int]
) -> None:
    words = "-c", DRIVER, tmp_path, 0, cases(2, 60)
    assert python(*words, NUMBA_NUM_THREADS="2").stdout == "done\n"
