"""Distances between samples: closed forms, invariances, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg
from scipy.stats import ortho_group

from wflow.sampling import comparison


def normal(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def test_w2_of_a_shift_and_of_samples_of_different_sizes():
    x = normal(60, 3)
    assert comparison.w2(x, x + np.array([3.0, 4.0, 0.0])) == pytest.approx(5.0, rel=1e-12)
    twice = np.concatenate([x, x])
    assert comparison.w2(x, twice) == pytest.approx(0.0, abs=1e-7)
    assert comparison.w2(twice + 1.0, x) == pytest.approx(np.sqrt(3), rel=1e-9)


def test_sliced_w2_of_a_shift_tends_to_its_length_over_the_root_of_d():
    x = normal(200, 4)
    shift = np.array([1.0, 2.0, 2.0, 0.0])
    assert comparison.sliced_w2(x, x + shift, projections=4000) == pytest.approx(1.5, rel=0.02)
    assert comparison.sliced_w2(x, x[::-1]) == 0.0
    assert comparison.sliced_w2(x, x + shift, seed=1) != comparison.sliced_w2(x, x + shift, seed=2)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(2, 30), m=st.integers(2, 30))
def test_slices_are_closer_than_the_plane(seed, n, m):
    x, y = normal(n, 2, seed), 2 * normal(m, 2, seed + 1)
    assert comparison.sliced_w2(x, y) <= comparison.w2(x, y) * (1 + 1e-9)
    assert comparison.sliced_w2(x, y) == pytest.approx(comparison.sliced_w2(y, x), rel=1e-12)


def test_mmd_is_the_double_sum_of_its_definition(monkeypatch):
    monkeypatch.setattr(comparison, "_BLOCK", 50)  # several blocks, the last one shorter
    x, y, widths = normal(17, 2), normal(13, 2, 1) + 0.5, [0.5, 2.0]

    def k(a, b):
        squares = ((a[:, None] - b[None]) ** 2).sum(-1)
        return np.mean([np.exp(-squares / (2 * s**2)) for s in widths], axis=0)

    pairs = [k(z, z)[~np.eye(len(z), dtype=bool)].mean() for z in (x, y)]
    expected = sum(pairs) - 2 * k(x, y).mean()
    assert comparison.mmd(x, y, widths) == pytest.approx(expected, rel=1e-12)


def test_mmd_is_unbiased_and_its_kernel_is_that_of_the_reference():
    values = [comparison.mmd(normal(20, 2, k), normal(20, 2, 1000 + k)) for k in range(400)]
    assert abs(np.mean(values)) < 4 * np.std(values) / 20
    assert min(values) < 0
    x, y = normal(30, 2), normal(40, 2, 1)
    distances = [np.linalg.norm(y[i] - y[j]) for i in range(40) for j in range(i)]
    octaves = np.median(distances) * np.array([0.25, 0.5, 1, 2, 4])
    assert comparison.mmd(x, y) == pytest.approx(comparison.mmd(x, y, octaves), rel=1e-12)


def test_frechet_of_scaled_samples_is_that_of_gaussians():
    x = normal(500, 3)
    # Covariance 4 C against C, which commute: |m|^2 + tr(C).
    mean, covariance = x.mean(axis=0), np.cov(x, rowvar=False)
    expected = mean @ mean + np.trace(covariance)
    assert comparison.frechet(x, 2 * x) == pytest.approx(expected, rel=1e-6)
    turn = ortho_group.rvs(3, random_state=1)
    y = 0.3 * normal(400, 3, 2) + 1.0
    assert comparison.frechet(x @ turn, y @ turn) == pytest.approx(
        comparison.frechet(x, y), rel=1e-6
    )
    assert comparison.frechet(x[:, :1], x[:, :1] + 2.0) == pytest.approx(4.0, rel=1e-6)


def test_frechet_takes_features_that_are_dead_equal_or_more_than_the_samples():
    x, y = normal(100, 6), 2 * normal(90, 6, 1) + 0.5
    x[:, 3], y[:, 4], x[:, 0] = 0.0, 0.0, x[:, 1]
    roots = [linalg.sqrtm(np.cov(z, rowvar=False) + 1e-12 * np.eye(6)) for z in (x, y)]
    cross = linalg.sqrtm(roots[0] @ roots[1] @ roots[1] @ roots[0]).real
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() - 2 * np.trace(cross)
    expected += sum(np.trace(root @ root).real for root in roots)
    assert comparison.frechet(x, y) == pytest.approx(expected, rel=1e-5)
    assert comparison.frechet(x, x) == pytest.approx(0.0, abs=1e-12)
    few = normal(4, 6, 3)
    assert comparison.frechet(few, few + 2.0) == pytest.approx(24.0, rel=1e-12)
