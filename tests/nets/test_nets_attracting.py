"""Flows whose sparse-transformer layers attract samples to the context."""

import pytest
import torch
from slopes import assert_slopes

from wflow.nets import data, generative


def flow(steps=3, **options):
    torch.manual_seed(1)
    phi = generative.Potential(2, width=6)
    options = {
        "lam": 0.5,
        "beta": 2.0,
        "convention": "attracting",
        "prox": "smooth",
        "drift": "euler",
    } | options
    found = generative.SparseTransformerFlow(phi, steps=steps, **options).double()
    with torch.no_grad():
        for weight in phi.parameters():
            weight.mul_(0.5)
    found.set_context(data.planar("moons", 20, part="train").double())
    return found


@pytest.mark.parametrize("options", [{}, {"lam": 0.0, "beta": 8.0}, {"attended": (2,)}])
def test_samples_invert_the_way_to_the_base_and_the_determinant_is_that_of_the_map(options):
    model, x = flow(**options), data.planar("moons", 6).double()
    base = model.to_base(x)
    assert (model.from_base(base.z) - x).abs().max() < 1e-12
    jacobians = [
        torch.autograd.functional.jacobian(lambda at: model.to_base(at[None]).z[0], row)
        for row in x
    ]
    exact = torch.linalg.slogdet(torch.stack(jacobians)).logabsdet
    assert (base.log_det - exact).abs().max() < 1e-11


def test_gradients_go_through_the_implicit_function():
    model, x = flow(trainable=("lam", "beta")), data.planar("rings", 5).double()

    def loss():
        return generative.Likelihood()(model, x).total

    model.eval()
    weights = [model.log_lam, model.log_beta, model.potential.w]
    assert_slopes(loss, weights, step=1e-5, tolerance=1e-7)


def test_the_density_integrates_to_one():
    axis = torch.arange(-7, 7, 0.1, dtype=torch.float64)
    with torch.no_grad():
        mass = flow().log_density(torch.cartesian_prod(axis, axis)).exp().sum() * 0.1**2
    assert abs(float(mass) - 1) < 1e-3


def test_samples_lie_closer_to_the_context_than_those_of_the_other_convention():
    away, near = (flow(convention=name, beta=8.0).sample(200, seed=2) for name in
                  ("inverse", "attracting"))  # fmt: skip
    context = flow().context_x
    distances = [torch.cdist(x, context).amin(1).mean() for x in (away, near)]
    assert distances[1] < distances[0]


def test_a_flow_without_layers_is_ot_flow() -> None:
    torch.manual_seed(0)
    phi = generative.Potential(2, width=8).double()
    x = torch.randn(20, 2).double()
    bare = generative.SparseTransformerFlow(phi, steps=3, attended=(), context="batch").eval()
    found, expected = bare.to_base(x), generative.OTFlow(phi, steps=3).to_base(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    z = bare.draws(5, seed=0)
    torch.testing.assert_close(
        bare.from_base(z, context=x), generative.OTFlow(phi, steps=3).from_base(z)
    )
