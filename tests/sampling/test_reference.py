"""Reference samplers against closed forms, and the diagnostics of chains."""

import hashlib
import inspect

import numpy as np
import pytest
from interpreters import python

from wflow.sampling import reference

MODEL = ((2.0, 0.5, 0.7, 1.0), (1.0, 0.3, -0.2, 2.0))  # lambda, noise, datum, slope


def moments_on_a_grid(lam: float, noise: float, y: float, slope: float) -> tuple[float, float]:
    x = np.linspace(-8, 8, 400_001)
    density = np.exp(-((y - slope * x) ** 2) / (2 * noise**2) - lam * np.abs(x))
    mean = float((density * x).sum() / density.sum())
    return mean, float((density * (x - mean) ** 2).sum() / density.sum())


@pytest.mark.parametrize(("lam", "noise", "y", "slope"), MODEL)
@pytest.mark.parametrize("rows", [1, 2])  # both forms of the Gaussian draw
def test_the_bayesian_lasso_has_the_moments_of_quadrature(lam, noise, y, slope, rows):
    matrix, data = np.zeros((rows, 1)), np.zeros(rows)
    matrix[0], data[0] = slope, y
    found = reference.bayesian_lasso(matrix, data, lam=lam, noise=noise, draws=20_000, chains=2)
    mean, variance = moments_on_a_grid(lam, noise, y, slope)
    x = found["samples"].values
    error = np.sqrt(variance / float(found["ess"].values[0]))
    assert abs(x.mean() - mean) < 5 * error
    assert abs(x.var() - variance) < 15 * variance / np.sqrt(float(found["ess"].values[0]))
    assert float(found["r_hat"].max()) < 1.01


def test_both_forms_of_the_gaussian_draw_have_the_same_posterior():
    rng = np.random.default_rng(1)
    matrix, data = rng.standard_normal((5, 4)), rng.standard_normal(5)
    tall = reference.bayesian_lasso(matrix, data, lam=1.0, noise=0.3, draws=20_000)
    rotation, square = np.linalg.qr(matrix)  # the same likelihood from 4 observations
    wide = reference.bayesian_lasso(square, rotation.T @ data, lam=1.0, noise=0.3, draws=20_000)
    spread = tall["samples"].std(("chain", "draw")).values
    error = spread * np.sqrt(1 / tall["ess"].values + 1 / wide["ess"].values)
    gap = (tall["samples"].mean(("chain", "draw")) - wide["samples"].mean(("chain", "draw"))).values
    assert np.all(np.abs(gap) < 5 * error)


def target(x: np.ndarray) -> np.ndarray:
    return -0.5 * (x[:, 0] ** 2 / 4 + (x[:, 1] - x[:, 0]) ** 2 / 0.04)


@pytest.mark.parametrize("gradient", [False, True])
def test_metropolis_samples_a_narrow_gaussian(gradient):
    def with_slope(x):
        tilt = (x[:, 1] - x[:, 0]) / 0.04
        return target(x), np.stack([-x[:, 0] / 4 + tilt, -tilt], 1)

    start = np.random.default_rng(0).standard_normal((8, 2))
    options = {"gradient": gradient, "draws": 2000, "warmup": 1500}
    found = reference.metropolis(with_slope if gradient else target, start, **options)
    covariance = np.cov(found["samples"].values.reshape(-1, 2).T)
    assert float(found["r_hat"].max()) < 1.02
    assert np.allclose(covariance, [[4, 4], [4, 4.04]], rtol=0.15)
    assert abs(float(found["acceptance"].mean()) - (0.57 if gradient else 0.25)) < 0.12


def test_pcn_has_the_posterior_of_a_laplace_prior():
    lam, noise, y, slope = MODEL[0]
    found = reference.pcn(
        lambda x: -((y - slope * x[:, 0]) ** 2) / (2 * noise**2), 1, draws=4000, chains=8,
        transform=lambda xi: reference.laplace_from_normal(xi, lam)[0],
    )  # fmt: skip
    mean, variance = moments_on_a_grid(lam, noise, y, slope)
    error = np.sqrt(variance / float(found["ess"].values[0]))
    assert abs(float(found["samples"].mean()) - mean) < 5 * error
    assert float(found["r_hat"].max()) < 1.02


def test_the_laplace_map_has_its_derivative_and_quantiles():
    xi = np.linspace(-12, 12, 49)
    x, derivative = reference.laplace_from_normal(xi, 2.0)
    ahead, behind = (reference.laplace_from_normal(xi + e, 2.0)[0] for e in (1e-6, -1e-6))
    assert np.allclose((ahead - behind) / 2e-6, derivative, rtol=1e-5)  # kinked at 0
    from scipy.stats import laplace, norm

    inner = np.abs(xi) < 5
    assert np.allclose(laplace(scale=0.5).cdf(x[inner]), norm.cdf(xi[inner]), atol=1e-14)
    far = np.array([1e3, -1e6, 1e150])  # the derivative is (a + 1/a - ...)/2, a = |xi|
    _, derivative = reference.laplace_from_normal(far, 2.0)
    assert np.allclose(derivative, (np.abs(far) + 1 / np.abs(far)) / 2, rtol=1e-11, atol=0)


def test_tempering_keeps_two_modes_and_knows_the_evidence():
    def log_likelihood(x):
        return -200 * (np.abs(x[:, 0]) - 1) ** 2 + np.where(x[:, 0] > 0, np.log(3), 0)

    start = np.random.default_rng(2).standard_normal((4000, 1))
    found = reference.tempered(log_likelihood, lambda x: -0.5 * (x**2).sum(1), start)
    right = float((found["samples"] > 0).mean())
    assert abs(right - 0.75) < 0.05
    x = np.linspace(-8, 8, 100_001)
    mean = np.exp(log_likelihood(x[:, None]) - x**2 / 2).sum() * (x[1] - x[0]) / np.sqrt(2 * np.pi)
    assert abs(found.attrs["log_evidence"] - np.log(mean)) < 0.1


def autoregressive(rng: np.random.Generator, chains: int, draws: int, rho: float) -> np.ndarray:
    x, noise = np.zeros((chains, draws)), rng.standard_normal((chains, draws))
    for k in range(1, draws):
        x[:, k] = rho * x[:, k - 1] + noise[:, k]
    return x


def test_the_diagnostics_see_what_is_wrong():
    rng = np.random.default_rng(3)
    good = rng.standard_normal((4, 1000, 2))
    assert np.all(reference.r_hat(good) < 1.01)
    assert np.all(np.abs(reference.ess(good) / 4000 - 1) < 0.15)
    shifted = good + np.array([0, 0, 0, 1])[:, None, None]
    wider = good * np.array([1, 1, 1, 3])[:, None, None]
    assert np.all(reference.r_hat(shifted) > 1.05)
    assert np.all(reference.r_hat(wider) > 1.05)  # equal means: seen by the folded part
    assert np.isnan(reference.r_hat(np.ones((2, 8)))) and np.isnan(reference.ess(np.ones((2, 8))))


def long_chains():
    rng = np.random.default_rng(0)
    matrix, start = rng.standard_normal((20, 60)), rng.standard_normal((8, 40))
    data = matrix[:, 0]
    lasso = reference.bayesian_lasso(matrix, data, lam=2.0, noise=0.1, draws=50, warmup=10)
    chains = reference.metropolis(lambda x: -0.5 * (x**2).sum(1), start, draws=50, warmup=200)
    bits = lasso["samples"].values.tobytes() + chains["samples"].values.tobytes()
    return hashlib.sha256(bits).hexdigest()


def test_the_same_seed_gives_the_same_bits_for_any_number_of_threads():
    """The tests run with one thread of BLAS; another process has two."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    code = "import hashlib, numpy as np; from wflow.sampling import reference\n"
    code += inspect.getsource(long_chains) + "print(long_chains())"
    run = python("-c", code, **dict.fromkeys(names, "2"))
    assert run.stdout.strip() == long_chains()


def test_ranks_are_uniform_for_the_right_posterior_alone():
    rng = np.random.default_rng(0)
    y = rng.standard_normal((800, 1))
    truth = y + rng.standard_normal((800, 1))
    right = y[:, None] + rng.standard_normal((800, 63, 1))
    good = reference.rank_test(truth, right)
    assert good.p_value[0] > 0.01 and np.allclose(good.coverage, [[0.5, 0.9]], atol=0.05)
    narrow = reference.rank_test(truth, y[:, None] + 0.5 * (right - y[:, None]))
    assert narrow.p_value[0] < 1e-6 and narrow.counts[0, [0, -1]].min() > 150
    assert reference.rank_test(truth, right + 0.5).p_value[0] < 1e-6
    tied = reference.rank_test(np.zeros((10, 1)), np.zeros((10, 7, 1)), bins=2)
    assert tied.counts.sum() == 10


def test_the_diagnostics_are_those_of_arviz():
    """R-hat and bulk ESS of arviz-stats 0.8.0 for autoregressive chains."""
    rng = np.random.default_rng(0)
    for chains, draws, rho, r_hat, ess in (
        (4, 500, 0.0, 1.000686192220943, 1994.7372034449038),
        (4, 501, 0.7, 1.0135295282840322, 360.22717525670043),
        (2, 1000, 0.95, 1.0182066230004885, 54.80542665289115),
    ):
        x = autoregressive(rng, chains, draws, rho)
        assert abs(float(reference.r_hat(x)) - r_hat) < 1e-12
        assert abs(float(reference.ess(x)) / ess - 1) < 0.005


def test_a_transform_is_called_once_for_each_step():
    calls = []
    transform = lambda xi: calls.append(1) or 2 * xi  # noqa: E731
    reference.pcn(lambda x: -(x.sum(1) ** 2), 2, draws=8, warmup=3, transform=transform)
    assert len(calls) == 1 + 3 + 8
