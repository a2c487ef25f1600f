"""Settings shared by the suite."""

import os
import sys

import matplotlib
import pytest

matplotlib.use("Agg")
os.environ.setdefault("OMP_NUM_THREADS", "2")


@pytest.fixture(autouse=True)
def same_weights_every_time():
    """Networks that a test makes without a seed are the same in every run."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """Networks this small lose time with more threads, most of all beside other tests."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
