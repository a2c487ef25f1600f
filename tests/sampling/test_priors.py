"""Priors: proximal maps, envelopes, and normalisers against quadrature in many digits."""

import mpmath
import numpy as np
import pytest

from wflow import sampling
from wflow.sampling import priors

PRIORS = (
    sampling.NoPrior(), sampling.L1(0.7), sampling.SmoothL1(0.7),
    sampling.separable(lambda x: x**2 + np.abs(x), lambda x: 2 * x + np.sign(x), kinks=[0.0]),
)  # fmt: skip
NAMES = ("none", "L1", "smooth L1", "separable")


def log_normaliser(potential, y, h, beta):
    """Return log Z(y) for one coordinate, in twenty digits."""
    with mpmath.workdps(20):
        width = mpmath.sqrt(2 * mpmath.mpf(h) / beta)

        def exponent(z):
            return -mpmath.mpf(beta) / 2 * (potential(z) + (z - y) ** 2 / (2 * mpmath.mpf(h)))

        # The integrand is largest near the proximal map of y, within a few widths of a node.
        mode = max((y * k / 40 for k in range(41)), key=exponent)
        near = (-60, -20, -8, -3, -1, 0, 1, 3, 8, 20, 60)
        nodes = {mode + width * k for k in near} | {width * k for k in near[2:-2]}
        top = exponent(mode)
        total = mpmath.quad(lambda z: mpmath.exp(exponent(z) - top), sorted(nodes))
        return float(top + mpmath.log(total))


@pytest.mark.parametrize("lam, h, beta", [(2.0, 0.1, 1.0), (0.5, 0.4, 1.0), (2.0, 0.01, 20.0)])
def test_normaliser_of_the_l1_norm_is_the_integral(lam, h, beta):
    for y in (0.3, -4.0):
        expected = log_normaliser(lambda z: lam * abs(z), y, h, beta)
        found = sampling.L1(lam).log_normaliser([y], h=h, beta=beta)
        assert found == pytest.approx(expected, rel=0, abs=1e-10 * max(1, abs(expected)))


def test_normaliser_of_the_l1_norm_for_extreme_arguments():
    prior = sampling.L1(2.0)
    a, c, mu = 0.25 / 1e-3, 1.0, 2e-3
    # Far from zero one of the two terms is left: -c |y| + c^2/(4a), and the Gaussian integral.
    far = np.array([[1e3], [-1e8], [1e150]])
    expected = -c * np.abs(far[:, 0]) + c * mu / 2 + 0.5 * np.log(np.pi / a)
    np.testing.assert_allclose(prior.log_normaliser(far, h=1e-3, beta=1.0), expected, rtol=1e-13)
    # Under a huge weight the Laplace distribution alone is left: Z(0) = 2/c (1 - 2a/c^2 + ...).
    huge = sampling.L1(1e12).log_normaliser([0.0], h=1e-3, beta=1.0)
    assert huge == pytest.approx(np.log(2 / 0.5e12), rel=1e-14)
    tiny = sampling.L1(1e-300).log_normaliser([0.4], h=1e-3, beta=1.0)
    assert tiny == pytest.approx(0.5 * np.log(np.pi / a), rel=1e-14)


@pytest.mark.parametrize("y", [0.0, 0.25, -2.0])
def test_normaliser_of_the_smooth_l1_norm_is_the_integral(y):
    lam, h, beta = 2.0, 0.1, 1.5
    width = lam * h

    def integrand(u):
        t = mpmath.tanh(u)
        potential = lam * width * (mpmath.log(mpmath.cosh(u)) - t * t / 2)
        away = (width * (u - t) - y) ** 2 / (2 * h)
        return width * t * t * mpmath.exp(-beta / 2 * (potential + away))

    ends = sorted({y / width + k for k in (-40, -12, -4, 4, 12, 40)} | {-1, 0, 1})
    with mpmath.workdps(25):
        expected = float(mpmath.log(mpmath.quad(integrand, ends)))
    found = sampling.SmoothL1(lam).log_normaliser([y], h=h, beta=beta)
    assert found == pytest.approx(expected, rel=0, abs=1e-10)


def test_quadrature_reproduces_closed_normalisers():
    y = np.linspace(-3, 3, 15)[:, None]
    given = {"h": 0.1, "beta": 2.0}
    norm = sampling.separable(lambda x: 3 * np.abs(x), lambda x: 3 * np.sign(x), kinks=[0.0])
    expected = sampling.L1(3.0).log_normaliser(y, **given)
    np.testing.assert_allclose(norm.log_normaliser(y, **given), expected, rtol=0, atol=1e-12)
    square = sampling.separable(lambda x: x**2, lambda x: 2 * x)
    precision = 0.5 * 2.0 * (1 + 1 / 0.2)  # of the product of two Gaussians
    expected = 0.5 * np.log(np.pi / precision) - 2.0 / 2 * y[:, 0] ** 2 / 1.2
    np.testing.assert_allclose(square.log_normaliser(y, **given), expected, rtol=0, atol=1e-12)
    # For a quadratic potential the Laplace approximation lacks the determinant alone.
    laplace = sampling.separable(lambda x: x**2, lambda x: 2 * x, normaliser="laplace")
    difference = laplace.log_normaliser(y, **given) - expected
    np.testing.assert_allclose(difference, 0.5 * np.log(1.2), rtol=0, atol=1e-12)


QUARTIC = sampling.separable(
    lambda x: 3 * x**4 + np.abs(x), lambda x: 12 * x**3 + np.sign(x), kinks=[0.0]
)


def test_quadrature_is_accurate_for_a_steep_potential():
    for y in (-2.5, 0.1):
        expected = log_normaliser(lambda z: 3 * z**4 + abs(z), y, 0.1, 1.0)
        found = QUARTIC.log_normaliser([y], h=0.1, beta=1.0)
        assert found == pytest.approx(expected, rel=0, abs=1e-10)


@pytest.mark.parametrize("prior", [QUARTIC, sampling.SmoothL1(2.0)], ids=["quartic", "smooth"])
def test_normalisers_of_many_points_are_those_of_few(prior):
    y = np.random.default_rng(2).normal(size=(3000, 1))
    many = prior.log_normaliser(y, h=0.05, beta=2.0)  # interpolated
    few = prior.log_normaliser(y[:40], h=0.05, beta=2.0)
    np.testing.assert_allclose(many[:40], few, rtol=1e-13, atol=1e-12)
    assert np.any(many[:40] != few)


@pytest.mark.parametrize("prior", PRIORS, ids=NAMES)
def test_proximal_map_is_the_gradient_of_the_envelope(prior):
    x = np.random.default_rng(0).normal(size=(40, 1))
    h, step = 0.3, 1e-6
    x = x[np.abs(np.abs(x) - 0.21) > 1e-3][:, None]  # the kinks of soft thresholding
    slope = (prior.envelope(x + step, h) - prior.envelope(x - step, h)) / (2 * step)
    np.testing.assert_allclose(prior.prox(x, h)[:, 0], x[:, 0] - h * slope, rtol=0, atol=1e-8)
    slope = (prior.prox(x + step, h) - prior.prox(x - step, h)) / (2 * step)
    np.testing.assert_allclose(prior.prox_derivative(x, h), slope, rtol=0, atol=1e-5)
    assert np.all((prior.prox_derivative(x, h) >= 0) & (prior.prox_derivative(x, h) <= 1))


def test_smooth_prox_is_accurate_near_zero_and_far_away():
    prior, h = sampling.SmoothL1(1.0), 1.0
    for x in (1e-8, 1e-3, 0.0999, 0.1001, 2.0, 1e10):
        with mpmath.workdps(40):
            expected = float(mpmath.mpf(x) - mpmath.tanh(mpmath.mpf(x)))
        assert prior.prox([x], h)[0] == pytest.approx(expected, rel=1e-13)


def test_priors_without_weight_are_no_prior():
    x, given = np.random.default_rng(1).normal(size=(5, 3)), {"h": 0.1, "beta": 2.0}
    for kind in (sampling.L1, sampling.SmoothL1):
        prior = kind(0.0)
        np.testing.assert_array_equal(prior.prox(x, 0.1), x)
        np.testing.assert_array_equal(prior.prox_derivative(x, 0.1), 1.0)
        expected = sampling.NoPrior().log_normaliser(x, **given)
        np.testing.assert_allclose(prior.log_normaliser(x, **given), expected, rtol=0, atol=1e-14)
        assert prior.largest_step(1.0) == np.inf
        assert kind(2.0).largest_step(1.0) == pytest.approx(0.0125)


def test_the_potential_of_a_constraint_is_infinite_outside():
    class Halfspace(sampling.Prior):
        def value(self, x):
            return np.where(np.all(x >= 0, axis=-1), 0.0, np.inf)

        def prox(self, x, h):
            return np.maximum(x, 0.0)

        def prox_derivative(self, x, h):
            return np.where(x > 0, 1.0, 0.0)

    x = np.array([[1.0, 2.0], [1.0, -2.0]])
    assert priors.as_prior(Halfspace()).value(x).tolist() == [0.0, np.inf]
    assert np.isfinite(sampling.myula(x, np.copy, Halfspace(), h=0.01, steps=2).sample_mean).all()
