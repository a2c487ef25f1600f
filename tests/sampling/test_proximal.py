"""The operator's kernels, attention, layer and backward map: against quadrature and plain sums."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from wflow import sampling
from wflow._core.threads import numba_threads

KERNELS = ("exact", "laplace", "published")
L1 = sampling.L1(2.0)
H, BETA = 0.1, 1.5
GIVEN = {"h": H, "beta": BETA, "prior": L1}


class Group(sampling.Prior):
    """The norm |x|, whose coordinates are coupled."""

    def value(self, x):
        return np.linalg.norm(x, axis=-1)

    def prox(self, x, h):
        length = np.linalg.norm(x, axis=-1, keepdims=True)
        return x * np.maximum(1 - h / length, 0.0)

    def prox_derivative(self, x, h):
        length = np.linalg.norm(x, axis=-1)[..., None, None]
        along = x[..., :, None] * x[..., None, :] / length**2
        eye = np.eye(x.shape[-1])
        return np.where(length > h, (1 - h / length) * (eye - along) + along, 0.0)


PRIORS = (L1, sampling.L1(20.0), sampling.NoPrior(), sampling.SmoothL1(1.0), Group())


def clouds(n=12, m=30, d=3, seed=0, chains=()):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(*chains, n, d)), rng.normal(size=(*chains, m, d))


def plain(x, c, kernel, h=H, beta=BETA, prior=L1):
    """Return the matrix U as the formulas of the paper have it."""
    square = np.sum((x[:, None] - c) ** 2, axis=-1)
    near = prior.prox(c, h)
    if kernel == "exact":
        return -beta / (4 * h) * square - prior.log_normaliser(c, h=h, beta=beta)
    if kernel == "laplace":
        away = np.sum((near - c) ** 2, axis=-1)
    else:
        away = np.sum((prior.prox(x, h)[:, None] - c) ** 2, axis=-1)
    return -beta / 2 * ((square - away) / (2 * h) - prior.value(near))


def jacobian(function, x, step=1e-6):
    """Return the central differences (n, d, d) of a map that acts on every token by itself."""
    columns = [(function(x + v) - function(x - v)) / (2 * step) for v in step * np.eye(x.shape[-1])]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_interaction_is_that_of_the_formulas(kernel):
    x, c = clouds()
    found = sampling.interaction(x + 5, c + 5, **GIVEN, kernel=kernel)
    np.testing.assert_allclose(found, plain(x + 5, c + 5, kernel), rtol=0, atol=1e-12)


def test_exact_kernel_is_a_density_whose_score_is_that_of_quadrature():
    tokens, h, beta = np.array([[-0.9], [0.05], [0.1], [1.3]]), 0.2, 1.0
    kinks = (-8.0, -2.0, -1.0, -0.4, 0.0, 0.4, 1.0, 2.0, 8.0)
    nodes, weights = np.polynomial.legendre.leggauss(40)

    def attention(x):
        return sampling.attention_mean(np.reshape(x, (-1, 1)), tokens, h=h, beta=beta, prior=L1)

    def kernel(x, y):
        return np.exp(-beta * abs(x) - beta / (4 * h) * (x - y) ** 2)

    def integral(function):
        return sum(
            (high - low) / 2 * weights @ function(low + (high - low) * (nodes + 1) / 2)
            for low, high in itertools.pairwise(kinks)
        )

    norms = [integral(lambda z, y=y: kernel(z, y)) for (y,) in tokens]
    for x in (-1.1, 0.3, 0.9):
        each, found = kernel(x, tokens[:, 0]) / norms, attention(x)
        log_density = found.log_sum[0] - beta * abs(x) - np.log(4)
        assert log_density == pytest.approx(np.log(np.mean(each)), abs=1e-10)
        mean = np.sum(each * tokens[:, 0]) / np.sum(each)
        assert found.mean[0, 0] == pytest.approx(mean, abs=1e-10)
    mass = integral(lambda x: np.exp(attention(x).log_sum - beta * abs(x)))
    assert mass / 4 == pytest.approx(1.0, abs=1e-10)


def test_score_without_a_prior_is_that_of_a_gaussian_mixture():
    x, c = clouds()
    variance = 2 * H / BETA
    given = {"h": H, "beta": BETA, "prior": sampling.NoPrior()}
    weights = special.softmax(-np.sum((x[:, None] - c) ** 2, axis=-1) / (2 * variance), axis=1)
    expected = (weights @ c - x) / variance
    np.testing.assert_allclose(sampling.score(x, c, **given), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("prior", [sampling.L1, sampling.SmoothL1])
@pytest.mark.parametrize("kernel", ["exact", "laplace"])
def test_small_weights_give_attention_with_a_gaussian_kernel(prior, kernel):
    x, c = clouds()
    none = sampling.attention_mean(x, c, h=H, beta=BETA, prior=sampling.NoPrior())
    found = sampling.attention_mean(x, c, h=H, beta=BETA, prior=prior(1e-7), kernel=kernel)
    np.testing.assert_allclose(found.mean, none.mean, rtol=0, atol=1e-6)
    # As printed, without a prior all tokens weigh the same.
    printed = sampling.attention_mean(x, c, h=H, beta=BETA, prior=prior(0.0), kernel="published")
    np.testing.assert_allclose(printed.mean, np.broadcast_to(c.mean(0), x.shape), atol=1e-13)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 300, 2), (130, 130, 5), (40, 97, 33)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_attention_is_the_plain_softmax(shape, dtype):
    n, m, d = shape
    x, c = (cloud.astype(dtype) for cloud in clouds(n, m, d))
    tolerance = 2e-13 if dtype == np.float64 else 2e-4
    for kernel in KERNELS:
        found = sampling.attention_mean(x, c, **GIVEN, kernel=kernel, covariance=True)
        scores = plain(x.astype(float), c.astype(float), kernel)
        weights = special.softmax(scores, axis=1)
        mean = weights @ c
        second = np.einsum("nm,mi,mj->nij", weights, c, c)
        covariance = second - mean[:, :, None] * mean[:, None, :]
        assert found.mean.dtype == found.trace.dtype == found.log_sum.dtype == dtype
        np.testing.assert_allclose(found.mean, mean, rtol=0, atol=tolerance)
        np.testing.assert_allclose(found.covariance, covariance, rtol=0, atol=tolerance)
        np.testing.assert_allclose(found.ess, 1 / np.sum(weights**2, axis=1), rtol=tolerance)
        total = special.logsumexp(scores, axis=1)
        np.testing.assert_allclose(found.log_sum, total, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("prior", [L1, sampling.SmoothL1(2.0), Group()])
@pytest.mark.parametrize("kernel", KERNELS)
def test_trace_is_that_of_the_jacobian(prior, kernel):
    x, c = clouds()
    arguments = {"h": 0.3, "beta": BETA, "prior": prior, "kernel": kernel}
    found = sampling.attention_mean(x, c, **arguments)
    DM = jacobian(lambda x: sampling.attention_mean(x, c, **arguments).mean, x)
    np.testing.assert_allclose(found.trace, np.einsum("nii->n", DM), rtol=0, atol=1e-7)
    # Beside the differences, the covariance of the weights gives it to rounding.
    full = sampling.attention_mean(x, c, **arguments, covariance=True)
    slope = np.broadcast_to(BETA / 0.6 * np.eye(3), (len(x), 3, 3))
    if kernel == "published":
        derivative = prior.prox_derivative(x, 0.3)
        matrices = derivative if derivative.ndim == 3 else derivative[..., None] * np.eye(3)
        slope = slope @ (np.eye(3) - matrices)
    trace = np.einsum("nij,nji->n", full.covariance, slope)
    np.testing.assert_allclose(found.trace, trace, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:the layer folds")
@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_does_not_depend_on_the_order_of_tokens(kernel):
    x, c = clouds(d=2)
    rng = np.random.default_rng(0)
    of_x, of_c = rng.permutation(len(x)), rng.permutation(len(c))
    one = sampling.attention_mean(x, c, **GIVEN, kernel=kernel)
    other = sampling.attention_mean(x[of_x], c[of_c], **GIVEN, kernel=kernel)
    np.testing.assert_allclose(other.mean, one.mean[of_x], rtol=0, atol=1e-12)
    np.testing.assert_allclose(other.trace, one.trace[of_x], rtol=0, atol=1e-11)
    given = {"h": 0.01, "beta": 0.1, "prior": L1, "kernel": kernel}
    moved = sampling.layer(x[of_x], **given)
    np.testing.assert_allclose(moved, sampling.layer(x, **given)[of_x], rtol=0, atol=1e-11)


def test_excluded_tokens_have_no_weight():
    x = clouds(n=150, d=2)[0]
    found = sampling.attention_mean(x, x, **GIVEN, exclude_self=True)
    scores = plain(x, x, "exact")
    np.fill_diagonal(scores, -np.inf)
    np.testing.assert_allclose(found.mean, special.softmax(scores, axis=1) @ x, atol=1e-13)
    total = special.logsumexp(scores, axis=1)
    np.testing.assert_allclose(found.log_sum, total, rtol=0, atol=1e-12)


def test_chains_are_those_of_separate_calls():
    x, c = clouds(chains=(2, 2), d=2)
    for contexts in (c, np.broadcast_to(c[0, 0], c.shape)):
        found = sampling.attention_mean(x, contexts if contexts is c else c[0, 0], **GIVEN)
        for at in np.ndindex(2, 2):
            alone = sampling.attention_mean(x[at], contexts[at], **GIVEN)
            np.testing.assert_array_equal(found.mean[at], alone.mean)
            np.testing.assert_array_equal(found.trace[at], alone.trace)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_number_of_threads_and_other_queries_change_no_bit(dtype):
    x, c = (cloud.astype(dtype) for cloud in clouds(1000, 500, 3))
    with numba_threads(1):
        one = sampling.attention_mean(x, c, **GIVEN)
    every = sampling.attention_mean(x, c, **GIVEN)
    part = sampling.attention_mean(x[:333], c, **GIVEN)
    for name in ("mean", "trace", "ess", "log_sum"):
        np.testing.assert_array_equal(getattr(one, name), getattr(every, name))
        np.testing.assert_array_equal(getattr(part, name), getattr(every, name)[:333])


def test_far_and_narrow_clouds_keep_their_digits():
    x, c = clouds(d=2)
    given = {"h": 1e-7, "beta": BETA, "prior": sampling.NoPrior()}
    near = sampling.attention_mean(1e-3 * x, 1e-3 * c, **given)
    far = sampling.attention_mean(1e-3 * x + 1024, 1e-3 * c + 1024, **given)
    np.testing.assert_allclose(far.mean - 1024, near.mean, rtol=0, atol=1e-11)
    assert np.all(np.isfinite(near.log_sum)) and np.all(near.ess >= 1 - 1e-12)


@pytest.mark.filterwarnings("ignore:the layer folds")
@pytest.mark.parametrize("kernel", KERNELS)
def test_layer_is_a_step_along_the_score(kernel):
    x, c = clouds()
    given = {"h": 0.01, "beta": 0.1, "prior": L1, "kernel": kernel}
    score = sampling.score(x, c, **given)
    expected = L1.prox(x, 0.01) - 0.01 / 0.1 * score
    np.testing.assert_allclose(sampling.layer(x, **given, context=c), expected, atol=1e-13)
    both = sampling.layer(x, **given, context=c) + sampling.backward(x, c, **given)
    np.testing.assert_allclose(both, 2 * x, rtol=0, atol=1e-14)


@given(
    seed=st.integers(0, 10**6), kernel=st.sampled_from(["exact", "laplace"]),
    prior=st.sampled_from(PRIORS), h=st.floats(1e-3, 2.0), beta=st.floats(0.1, 20.0),
    d=st.integers(1, 4), exclude=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_backward_map_has_an_inverse(seed, kernel, prior, h, beta, d, exclude):
    x, c = clouds(10, 10 if exclude else 25, d, seed)
    given = {"h": h, "beta": beta, "prior": prior, "kernel": kernel, "exclude_self": exclude}
    y = sampling.backward(2 * x, c, **given)
    found = sampling.backward_inverse(y, c, **given)
    np.testing.assert_allclose(found, 2 * x, rtol=0, atol=1e-12)


def test_inverse_of_single_precision_and_of_many_coordinates():
    x, c = clouds(5, 60, 40, chains=(2,))
    y = sampling.backward(x, c, **GIVEN)
    np.testing.assert_allclose(sampling.backward_inverse(y, c, **GIVEN), x, rtol=0, atol=1e-12)
    x, c = (cloud.astype(np.float32) for cloud in clouds())
    y = sampling.backward(x, c, **GIVEN)
    found = sampling.backward_inverse(y, c, **GIVEN)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, x, rtol=0, atol=2e-4)


@pytest.mark.filterwarnings("ignore:h is .* absorbs")
@pytest.mark.parametrize("kernel", KERNELS)
def test_layer_reports_the_tokens_it_folds(kernel):
    # Between two far clusters the attention turns so fast that the map runs backwards.
    x = np.concatenate([np.full((4, 1), -0.9), np.full((4, 1), 0.9), np.zeros((2, 1))])
    given = {"h": 0.1, "beta": BETA, "prior": sampling.L1(6.0), "kernel": kernel}
    found = sampling.folded(x, x, **given)
    DM = jacobian(lambda z: sampling.attention_mean(z, x, **given).mean, x)[..., 0]
    DG = 1 + 0.5 * given["prior"].prox_derivative(x, 0.1) - 0.5 * DM
    np.testing.assert_array_equal(found, DG[:, 0] <= 0)
    assert 0 < found.sum() < 10
    with pytest.warns(RuntimeWarning, match=rf"folds {10 * found.sum()} % of the tokens"):
        sampling.layer(x, **given)


def test_layer_warns_of_absorbed_coordinates():
    x = clouds(100, d=2)[0]
    with pytest.warns(UserWarning, match=r"take h <= 0\.0125"):
        sampling.layer(x, h=0.05, beta=1.0, prior=L1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampling.layer(x, h=0.0125, beta=0.1, prior=L1)
        sampling.layer(np.abs(x) + 1, h=0.05, beta=0.1, prior=L1)  # no coordinate is absorbed
