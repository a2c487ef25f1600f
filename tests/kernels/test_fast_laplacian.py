"""Mean gradients and the Laplacian of the energy by the fast sums, against the exact pass."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import symmetric, unit

from wflow.kernels.harmonic.laplacian import fast_laplacian
from wflow.kernels.pairs.diffusion import energy_laplacian

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import random_clouds


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cloud=st.sampled_from(random_clouds.CLOUDS),
       d=st.sampled_from([2, 3]), n=st.integers(1, 300), heads=st.integers(1, 5),
       norm=st.sampled_from([0.0, 0.3, 3.0, 8.0, 30.0, 90.0]),
       tolerance=st.sampled_from([1e-11, 1e-6]))  # fmt: skip
def test_the_laplacian_is_the_exact_one(seed, cloud, d, n, heads, norm, tolerance):
    rng = np.random.default_rng(seed)
    x = random_clouds.tokens(rng, cloud, n, d)[None]
    D = random_clouds.heads(rng, "symmetric", heads, d, norm)[None]
    laplacian, error = fast_laplacian(x, D, tolerance)
    true = energy_laplacian(x, D)
    assert error[0] <= tolerance
    slack = error[0] + 2e-14 * (1 + norm)
    norms = np.linalg.norm(D[0], 2, axis=(1, 2))
    U = np.exp(np.einsum("ia,hab,jb->hij", x[0], D[0], x[0]))
    m = U.mean(axis=2)
    # The terms U_ii count too, with weight 1/n, and round in both.
    itself = np.einsum("hii->h", U) / n**2
    reach = 2 * norms**2 + d * norms
    assert abs(laplacian[0] - true[0]) <= slack * float((reach * (m.mean(axis=1) + itself)).mean())


def test_paths_are_independent_and_what_is_not_finite_is_nan():
    rng = np.random.default_rng(0)
    x, D = unit(rng, 3, 2000, 3), symmetric(rng, 3, 4, 3, 3)
    x[1, 3] = np.nan
    laplacian, error = fast_laplacian(x, D, 1e-10)
    assert np.isnan(laplacian[1]) and np.isnan(error[1])
    for p in (0, 2):
        alone, _ = fast_laplacian(x[p : p + 1], D[p : p + 1], 1e-10)
        assert alone[0] == laplacian[p]
        true = energy_laplacian(x[p : p + 1], D[p : p + 1])
        assert laplacian[p] == pytest.approx(true[0], rel=1e-9)
