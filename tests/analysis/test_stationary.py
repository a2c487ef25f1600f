"""Stationary laws of diffusing tokens: eigenvalues, critical diffusion, order."""

import numpy as np
import pytest
from scipy import integrate, special

from wflow import stationary


@pytest.mark.parametrize("d", [2, 3, 4, 9])
def test_kernel_eigenvalues_equal_the_integral_over_the_sphere(d) -> None:
    beta = 1.7

    def weighted(value):
        return integrate.quad(lambda t: value(np.cos(t)) * np.sin(t) ** (d - 2), 0, np.pi)[0]

    total = weighted(lambda z: 1.0)
    for degree, polynomial in ((0, lambda z: 1.0), (1, lambda z: z)):
        expected = weighted(lambda z, p=polynomial: np.exp(beta * z) * p(z)) / total
        assert stationary.kernel_eigenvalue(beta, d, degree) == pytest.approx(expected, rel=1e-9)


def test_large_beta_stays_in_range_or_says_infinite() -> None:
    assert np.isfinite(stationary.kernel_eigenvalue(600.0, 3, 1))
    with pytest.warns(RuntimeWarning, match="eigenvalue leaves the range .* beta = 2000") as said:
        assert stationary.kernel_eigenvalue(2000.0, 3, 0) == np.inf
    assert "velocities" not in str(said[0].message)  # there are none
    assert stationary.critical_diffusion(2000.0, 3) == pytest.approx(1 - 1 / 2000, rel=1e-12)


def test_many_dimensions_stay_in_range() -> None:
    # a_l by its series: 1 + beta^2/(2 d) + ... and beta/d + ..., where Bessel functions underflow.
    assert stationary.kernel_eigenvalue(2.0, 3000, 0) == pytest.approx(1 + 4 / 6000, rel=1e-6)
    assert stationary.kernel_eigenvalue(2.0, 3000, 1) == pytest.approx(2 / 3000, rel=1e-3)
    assert stationary.critical_diffusion(2.0, 3000) == pytest.approx(2 / 3000, rel=1e-3)


def test_critical_diffusion_in_three_dimensions_is_the_langevin_function() -> None:
    for beta in (0.3, 2.0, 9.0):
        langevin = 1 / np.tanh(beta) - 1 / beta
        assert stationary.critical_diffusion(beta, 3) == pytest.approx(langevin, rel=1e-12)
        assert stationary.critical_diffusion(beta, 3, "unnormalised") == pytest.approx(
            langevin * np.sinh(beta) / beta, rel=1e-12
        )


@pytest.mark.parametrize("flow", ["softmax", "effective", "unnormalised"])
@pytest.mark.parametrize("d", [2, 3, 6])
def test_order_is_lost_at_the_critical_diffusion(flow, d) -> None:
    critical = stationary.critical_diffusion(2.0, d, flow)
    orders = [
        stationary.stationary_order(2.0, d, ratio * critical, flow) for ratio in (0.3, 0.6, 0.9)
    ]
    assert 1 > orders[0] > orders[1] > orders[2] > 0.2
    assert stationary.stationary_order(2.0, d, 1.2 * critical, flow) == 0.0


def test_stationary_order_solves_its_equation_on_the_circle() -> None:
    # d = 2 by another way: the density on a grid of angles, mu ~ u^(1/kappa).
    beta, kappa = 3.0, 0.5 * stationary.critical_diffusion(3.0, 2)
    angle = np.linspace(-np.pi, np.pi, 200, endpoint=False)
    kernel = np.exp(beta * np.cos(angle[:, None] - angle))
    law = special.softmax(20 * np.cos(angle))
    for _ in range(2000):
        law = (kernel @ law) ** (1 / kappa)
        law /= law.sum()
    expected = law @ np.cos(angle)
    assert stationary.stationary_order(beta, 2, kappa) == pytest.approx(expected, abs=1e-8)


def test_order_at_large_beta_is_close_to_one_and_finite() -> None:
    # A Gaussian of variance s with s = kappa (s + 1/beta): s = kappa/(beta (1 - kappa)) = 0.004.
    assert stationary.stationary_order(1000.0, 2, 0.8) == pytest.approx(np.exp(-0.002), abs=1e-5)
    orders = [stationary.stationary_order(beta, 2, 0.8) for beta in (300.0, 600.0, 900.0)]
    assert orders == sorted(orders)
