"""The attention of `wflow.sampling` and that of `wflow.nets.generative` are the same numbers."""

import numpy as np
import pytest

from wflow import sampling

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kernel", ["exact", "laplace", "published"])
@pytest.mark.parametrize("alone", [False, True])
def test_both_give_the_same_moments(kernel, alone):
    from wflow.nets import generative

    rng = np.random.default_rng(0)
    x, context = rng.normal(size=(2, 40, 3))
    given = {"h": 0.1, "beta": 1.5, "kernel": kernel, "exclude_self": alone}
    ours = sampling.attention_mean(x, context, **given, prior=sampling.L1(2.0), covariance=True)
    theirs = generative.attention(
        torch.from_numpy(x), torch.from_numpy(context), **given, lam=2.0,
        moments="covariance",
    )  # fmt: skip
    np.testing.assert_allclose(theirs.mean.numpy(), ours.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(theirs.covariance.numpy(), ours.covariance, rtol=0, atol=1e-12)


def test_normalisers_of_the_l1_norm_agree():
    from wflow.nets import generative

    y = np.linspace(-20, 20, 41)[:, None]
    ours = sampling.L1(2.0).log_normaliser(y, h=0.1, beta=1.5)
    theirs = generative.log_normaliser(torch.from_numpy(y), h=0.1, lam=2.0, beta=1.5)
    np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", ["exact", "laplace", "published"])
def test_trace_is_that_of_autograd(kernel):
    rng = np.random.default_rng(0)
    x, context = rng.normal(size=(2, 40, 3))
    h, beta, lam = 0.3, 1.5, 2.0
    prior = sampling.L1(lam)
    c = torch.from_numpy(context)
    bias = torch.from_numpy({
        "exact": -prior.log_normaliser(context, h=h, beta=beta),
        "laplace": beta / 2 * prior.envelope(context, h),
        "published": beta / 2 * prior.value(prior.prox(context, h)),
    }[kernel])  # fmt: skip

    def mean(point):
        if kernel == "published":
            near = point - torch.clamp(point, -lam * h, lam * h)
            scores = beta / (2 * h) * (c @ (point - near)) + bias
        else:
            scores = bias - beta / (4 * h) * (point - c).square().sum(1)
        return torch.softmax(scores, 0) @ c

    found = sampling.attention_mean(x, context, h=h, beta=beta, prior=prior, kernel=kernel)
    DM = torch.func.vmap(torch.func.jacrev(mean))(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found.trace, np.einsum("nii->n", DM), rtol=0, atol=1e-12)
