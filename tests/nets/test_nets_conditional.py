"""Conditional flows: differentiable samples, and training with and without posterior samples."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from slopes import assert_slopes

from wflow import InputError
from wflow.nets import generative, train
from wflow.sampling import forward

pytestmark = pytest.mark.usefixtures("one_thread")


def potential(dim: int, condition: int, scale: float = 1.0) -> generative.Potential:
    phi = generative.Potential(dim, width=8, rank=2, condition=condition).double()
    with torch.no_grad():
        for parameter in phi.parameters():
            parameter.copy_(scale * 0.3 * torch.randn_like(parameter))
    return phi


FLOWS = {
    "OT-Flow": lambda phi: generative.OTFlow(phi, steps=8),
    "sparse": lambda phi: generative.SparseTransformerFlow(
        phi, steps=3, lam=0.5, beta=0.7, trainable=("lam", "beta"), tokens=12
    ).double(),
    "sparse, Euler": lambda phi: generative.SparseTransformerFlow(
        phi, steps=3, lam=0.5, beta=0.7, trainable=("lam", "beta"), tokens=12, drift="euler"
    ).double(),
    "attracting": lambda phi: generative.SparseTransformerFlow(
        phi, steps=2, lam=0.5, beta=2.0, convention="attracting", drift="euler", tokens=12
    ).double(),
    "laplace": lambda phi: generative.SparseTransformerFlow(
        phi, steps=2, lam=0.5, kernel="laplace", attended=(2,), tokens=12
    ).double(),
}


def context_of(flow: torch.nn.Module, condition: int) -> dict:
    if isinstance(flow, generative.OTFlow):
        return {}
    return {"context": (torch.randn(12, flow.dim).double(), torch.randn(12, condition).double())}


@pytest.mark.parametrize("name", FLOWS)
def test_generated_samples_have_the_density_of_the_flow(name):
    flow = FLOWS[name](potential(2, 3))
    z, y = torch.randn(6, 2).double(), torch.randn(6, 3).double()
    given = context_of(flow, 3)
    found = flow.generate(z, y, **given)
    with torch.no_grad():
        base = flow.to_base(found.x, y, **given)
    exact = name in ("sparse, Euler", "attracting")  # the others: up to the error of the scheme
    tolerance = {"rtol": 0, "atol": 1e-11 if exact else 1e-4}
    torch.testing.assert_close(base.z, z, **tolerance)
    density = generative.log_normal(base.z) + base.log_det
    torch.testing.assert_close(found.log_density.detach(), density, **tolerance)
    torch.testing.assert_close(found.transport.detach(), base.transport, **tolerance)
    if name != "OT-Flow":
        torch.testing.assert_close(found.x.detach(), flow.from_base(z, y, **given), **tolerance)


@pytest.mark.parametrize("name", FLOWS)
def test_generated_samples_have_the_gradients_of_finite_differences(name):
    flow = FLOWS[name](potential(2, 1))
    z, y = torch.randn(4, 2).double(), torch.randn(4, 1).double()
    given = context_of(flow, 1)
    w = torch.randn(4, 2).double()

    def value() -> torch.Tensor:
        found = flow.generate(z, y, **given)
        return (found.x * w).sum() + found.log_density.sum() + found.transport.sum()

    assert_slopes(value, list(flow.parameters()), tolerance=1e-5)


def test_the_published_flow_generates_what_it_samples():
    flow = generative.SparseTransformerFlow(potential(2, 1), steps=2, convention="published")
    flow = flow.double()
    z, y = torch.randn(6, 2).double(), torch.randn(6, 1).double()
    found = flow.generate(z, y)
    torch.testing.assert_close(found.x.detach(), flow.from_base(z, y))


def test_euler_steps_without_an_inverse_are_reported():
    phi = potential(2, 0)
    with torch.no_grad():
        for parameter in phi.parameters():
            parameter.mul_(20)
    flow = generative.SparseTransformerFlow(phi, steps=2, drift="euler").double()
    with pytest.warns(UserWarning, match=r"h Hess phi exceeds 1 .*%"):
        flow.generate(torch.randn(6, 2).double(), context=torch.randn(9, 2).double())


def gaussian_problem() -> forward.InverseProblem:
    """A linear model so precise that the Laplace prior is a constant near the datum."""

    class Linear(forward.ForwardModel):
        dim = outputs = 1

        def evaluate(self, x):
            return x + 1.0, lambda w: w

    return forward.InverseProblem(Linear(), lam=1e-3, noise=0.5)


def trained(objective, batches, dim: int = 1, steps: int = 100, flow=None):
    torch.manual_seed(0)
    phi = generative.Potential(dim, width=8, condition=1)
    flow = generative.OTFlow(phi, steps=2) if flow is None else flow
    with torch.no_grad():  # near the identity
        flow.potential.A.mul_(0.1)
        flow.potential.w.mul_(0.1)
    config = train.TrainConfig(
        steps=steps, batch=64, schedule=train.StepDecay((0.03, 0.01), (60,)), device="cpu"
    )
    history = train.train(flow, objective, batches, config)
    return flow, history


def batches_of(problem, step: int):
    """Data y in a range; x, where it is used, of the posterior."""
    rng = np.random.default_rng(step)
    y = rng.uniform(-1, 1, (64, 1))
    x = y - 1 + 0.5 * rng.standard_normal((64, 1))
    return tuple(torch.as_tensor(a, dtype=torch.float32) for a in (x, y, y))


def moments(flow, y: float) -> tuple[float, float]:
    with torch.no_grad():  # forwards, as in the training: two steps differ from their inverse
        x = flow.generate(torch.randn(2000, 1), torch.tensor([y])).x
    return statistics(x)


def statistics(x: torch.Tensor) -> tuple[float, float]:
    return float(x.mean()), float(x.std())


def test_both_objectives_find_a_gaussian_posterior_and_the_divergence_is_minus_the_evidence():
    problem = gaussian_problem()
    batches = partial(batches_of, problem)
    reverse, history = trained(generative.ReverseKL(problem, alpha=(1.0, 0.0, 0.0)), batches)
    likelihood = generative.Likelihood(alpha=(1.0, 0.0, 0.0))
    direct, _ = trained(likelihood, lambda step: batches(step)[:2])
    for y in (-0.5, 0.5):
        for x in (moments(reverse, y), statistics(direct.sample(2000, 3, torch.tensor([y])))):
            assert abs(x[0] - (y - 1)) < 0.15 and abs(x[1] - 0.5) < 0.1
    # With a flat prior: log rho + |y - F|^2 / (2 sigma^2) has the mean -log(sigma sqrt(2 pi)).
    late = float(history["kl"][-30:].mean())
    assert abs(late + math.log(0.5 * math.sqrt(2 * math.pi))) < 0.08


def test_the_supervised_term_pulls_samples_to_the_posterior_mean():
    problem = gaussian_problem()
    objective = generative.ReverseKL(problem, alpha=(1.0, 0.0, 0.0), supervised=10.0)
    flow, _ = trained(objective, partial(batches_of, problem))
    mean, spread = moments(flow, 0.0)
    # 10 E|x - x_true|^2 adds a precision of 20 to the 4 of the likelihood.
    assert abs(mean + 1) < 0.1 and abs(spread - 1 / math.sqrt(24)) < 0.06


def test_a_sparse_flow_trains_by_the_divergence():
    problem = forward.InverseProblem(forward.Elliptic(2, 3, cells=16), lam=2.0, noise=0.3)
    pairs = problem.simulate(400, seed=0)
    summary = problem.summary(200)

    def batches(step):
        rows = np.random.default_rng(step).integers(0, 400, 64)
        arrays = pairs.x[rows], summary(pairs.y[rows]), pairs.y[rows]
        return tuple(torch.as_tensor(a, dtype=torch.float32) for a in arrays)

    phi = generative.Potential(2, width=8, condition=summary.size)
    flow = generative.SparseTransformerFlow(phi, steps=2, lam=0.5, beta=0.5, tokens=32)
    _, history = trained(generative.ReverseKL(problem), batches, steps=60, flow=flow)
    assert float(history["kl"][-10:].mean()) < float(history["kl"][:5].mean()) - 1
    assert float(history["lost"].max()) == 0


class Half(forward.ForwardModel):
    dim = outputs = 1

    def evaluate(self, x):
        return np.log(x), lambda w: w / x


def test_samples_without_an_output_are_left_out_and_counted():
    problem = forward.InverseProblem(Half(), lam=1.0, noise=1.0)
    flow = generative.OTFlow(generative.Potential(1, width=4, condition=1), steps=2)
    data = torch.zeros(200, 1)
    loss = generative.ReverseKL(problem)(flow, data, data, data)
    loss.total.backward()
    assert 0.2 < float(loss.parts["lost"]) < 0.8 and torch.isfinite(loss.total)
    assert all(torch.isfinite(p.grad).all() for p in flow.parameters() if p.grad is not None)

    class Never(Half):
        def evaluate(self, x):
            return x * np.nan, lambda w: w * np.nan

    never = forward.InverseProblem(Never(), lam=1.0, noise=1.0)
    with pytest.raises(InputError, match="no finite output"):
        generative.ReverseKL(never)(flow, data, data, data)


def test_arguments_that_do_not_fit_are_refused():
    problem = gaussian_problem()
    flow = generative.SparseTransformerFlow(generative.Potential(1, width=4, condition=1), tokens=8)
    x = torch.zeros(8, 1)
    with pytest.raises(InputError, match="context"):
        generative.ReverseKL(problem)(flow, x, x, x)
    with pytest.raises(InputError, match="expected an OTFlow"):
        generative.ReverseKL(problem)(flow.potential, x, x, x)
    with pytest.raises(InputError, match="2 tensors"):
        generative.ReverseKL(problem)(flow, x, x)
