"""Forks, and threads of Python: what compiled functions compute there."""

import os
import tempfile
from pathlib import Path

import pytest
from interpreters import python

from wflow._core.threads import available

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")

# One function for each module of parallel functions, and clouds that are worth two threads.
ROOT = Path(__file__).parents[2]

_CALLS = """
import multiprocessing, os, signal, sys
import numpy as np
import wflow
from wflow._core.forks import threads_started
from wflow._core.threads import numba_threads, threads_for
from wflow.kernels.evaluate import energy_laplacian
from wflow.sphere.geodesics import squared_distances
from wflow.transport.circle import sliced_costs

x, y = (wflow.tokens.uniform(1500, 3, seed=seed) for seed in (0, 1))
D = np.eye(3)[None] + np.diag([0.1, 0.2, 0.3])
law = wflow.heads.OrnsteinUhlenbeck(np.eye(3))
calls = [
    lambda: wflow.energy(x, D),
    lambda: wflow.velocity(x, D + np.triu(np.ones((3, 3)), 1)),
    lambda: energy_laplacian(x[None], D[None]),
    lambda: wflow.metric.Weighted().mobility(x[None], D),
    lambda: squared_distances(x, y),
    lambda: wflow.transport.entropic(x[:1100], y[:1100], max_iterations=60),
    lambda: wflow.transport.wasserstein(x, y, method="sliced", projections=500),
    lambda: wflow.solve(x, law, heads=2, t_final=0.02, dt=0.01, kappa=0.1).energy.values,
]

def bits(number):
    return repr([np.asarray(part).tobytes() for part in as_tuple(calls[number]())])

def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)
"""


def run(code: str, **environment: str) -> str:
    """Return what a script prints, which two threads are offered to; it may take a minute."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")  # a file: a law is known by its source
        script.write_text(_CALLS + code)
        environment |= {"NUMBA_NUM_THREADS": "2", "PYTHONPATH": str(ROOT)}
        return python(script, **environment).stdout.strip()


@pytest.mark.skipif(available() < 2, reason="one thread: none is started")
def test_forks_compute_the_bits_of_their_parent() -> None:
    code = """
here = [bits(number) for number in range(len(calls))]
assert threads_started()
with multiprocessing.get_context("fork").Pool(2) as pool:
    there = pool.map_async(bits, range(len(calls))).get(800)
print([a == b for a, b in zip(here, there)])
"""
    assert set(run(code)) <= set("[True, ]")


def test_one_thread_and_few_tokens_start_no_threads_and_a_fork_may_start_them() -> None:
    code = """
few = x[:10]
wflow.energy(few, D), wflow.velocity(few, D), wflow.transport.w2(few, y[:10])
wflow.metric.metric_derivative(few, y[:10], D), squared_distances(few, few)
wflow.solve(few, law, heads=2, t_final=0.02, dt=0.01, kappa=0.1)
assert not threads_started()
wflow.solve(x, law, heads=2, t_final=0.02, dt=0.01, compute=wflow.Compute(threads=1))
with numba_threads(1):
    wflow.energy(x, D)
print(threads_started())
with multiprocessing.get_context("fork").Pool(1) as pool:
    there = pool.map_async(bits, [0]).get(800)
print(there == [bits(0)])
"""
    assert run(code).split() == ["False", "True"]


@pytest.mark.skipif(available() < 2, reason="one thread: no layer is asked")
def test_threads_of_python_share_a_layer_that_takes_one_at_a_time() -> None:
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor

begin = threading.Barrier(4)
many = wflow.tokens.uniform(4000, 3, seed=2)

def first(number):
    begin.wait()
    return [wflow.energy(many, D) for _ in range(2)]

with ThreadPoolExecutor(4) as pool:
    energies = list(pool.map(first, range(4)))
    there = list(pool.map(bits, (1, 4, 7) * 2))
print(energies == [[wflow.energy(many, D)] * 2] * 4, there == 2 * [bits(n) for n in (1, 4, 7)])
"""
    assert run(code, NUMBA_THREADING_LAYER="workqueue") == "True True"
