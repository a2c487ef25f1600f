"""Harmonics and radial factors against scipy and mpmath; quadrature on circle and sphere."""

import math

import mpmath
import numpy as np
import pytest
from harmonic_values import all_harmonics
from numba import njit
from scipy.special import sph_harm_y
from twin import unit

from wflow._core.compiler.vectors import lanes
from wflow.kernels.harmonic.fast import table_of
from wflow.kernels.harmonic.series import LARGEST_DEGREE, expand, relative_tails
from wflow.sphere.harmonics import count, half_quadrature, quadrature, radial_factors

TOP = {d: degree + 2 for d, degree in LARGEST_DEGREE.items()}


def nasty_points(d):
    """Return random points, the axes, and points within 1e-9 of a pole; an odd number of them."""
    rng = np.random.default_rng(0)
    near = np.eye(d)[-1] + 1e-9 * rng.normal(size=(3, d))
    x = np.concatenate([unit(rng, 24, d), np.eye(d), -np.eye(d), near])
    return x / np.linalg.norm(x, axis=1)[:, None]


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 8, 21, 40, TOP[3]])
def test_spherical_harmonics_are_those_of_scipy(degree):
    """Any combination of the harmonics of one degree, at points that include the poles."""
    x = nasty_points(3)
    polar, azimuth = np.arctan2(np.hypot(x[:, 0], x[:, 1]), x[:, 2]), np.arctan2(x[:, 1], x[:, 0])
    weights = np.random.default_rng(degree).normal(size=2 * degree + 1)
    moment = np.concatenate([np.zeros(degree * degree), weights])
    true = np.zeros(len(x))
    for m in range(degree + 1):
        plain = (-1) ** m * sph_harm_y(degree, m, polar, azimuth)
        if m == 0:
            true += weights[degree] * plain.real
        else:
            both = weights[degree + m] * plain.real + weights[degree - m] * plain.imag
            true += math.sqrt(2) * both
    assert expand(x, moment, degree, table_of(3)) == pytest.approx(true, abs=2e-12)


def test_circular_harmonics_are_sines_and_cosines():
    x = nasty_points(2)
    angle = np.arctan2(x[:, 1], x[:, 0])
    found = all_harmonics(x, TOP[2])
    assert found[:, 0] == pytest.approx(1 / math.sqrt(2 * math.pi))
    for k in range(1, TOP[2] + 1):
        assert found[:, 2 * k - 1] == pytest.approx(
            np.cos(k * angle) / math.sqrt(math.pi), abs=1e-13
        )
        assert found[:, 2 * k] == pytest.approx(np.sin(k * angle) / math.sqrt(math.pi), abs=1e-13)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("degree", [2, 9, 17])
def test_quadrature_keeps_harmonics_orthonormal(d, degree):
    half, some = half_quadrature(d, degree)
    with_antipodes = np.concatenate([half, -half]), np.concatenate([some, some])
    for nodes, weights in (quadrature(d, degree), with_antipodes):
        Y = all_harmonics(nodes, degree)
        gram = (weights[:, None] * Y).T @ Y
        assert np.abs(gram - np.eye(count(degree, d))).max() <= 1e-13


@njit(error_model="numpy")
def _factors(r, growth, d, degree, top):
    out = np.empty((degree + 1) * lanes(r))
    radial_factors(r, 0, growth, d, degree, top, out, 1, 0)
    return out


@pytest.mark.parametrize("d", [2, 3])
def test_radial_factors_are_modified_bessel_functions(d):
    r = np.array([0.0, 1e-200, 1e-5, 0.3, 2.0, 7.0, 23.0, 64.0])
    degree = 40
    found = _factors(r, np.exp(r), d, degree, 120).reshape(degree + 1, len(r))
    for place, value in enumerate(r):
        for k in range(degree + 1):
            true = float(_bessel(k, mpmath.mpf(float(value)), d))
            assert found[k, place] == pytest.approx(true, rel=1e-14, abs=1e-290)


def _bessel(k, r, d):
    """Return 2 pi I_k(r), or 4 pi i_k(r)."""
    if r == 0:
        return 2 * (d - 1) * mpmath.pi * (k == 0)
    if d == 2:
        return 2 * mpmath.pi * mpmath.besseli(k, r)
    return 4 * mpmath.pi * mpmath.sqrt(mpmath.pi / (2 * r)) * mpmath.besseli(k + 0.5, r)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("r", [0.0, 0.2, 3.0, 20.0, 64.0])
def test_tails_are_what_a_truncated_series_leaves(d, r):
    """The series at x = zhat, where every term is positive: kernel minus partial sum."""
    tails = relative_tails(r, d)
    partial = mpmath.mpf(0)
    with mpmath.workdps(60):
        for k in range(60):
            weight = (2 * k + 1) if d == 3 else (2 if k else 1)
            norm = 4 * mpmath.pi if d == 3 else 2 * mpmath.pi
            partial += weight * _bessel(k, mpmath.mpf(r), d) / norm
            left = float((mpmath.exp(r) - partial) / mpmath.exp(r))
            assert tails[k] == pytest.approx(left, rel=1e-11, abs=1e-50)
