"""Conditional flows: differentiable samples, and training with and without posterior samples."""

import math

import numpy as np
import pytest
import torch
from slopes import assert_slopes

from wflow import InputError
from wflow.nets import generative, train
from wflow.nets.generative.conditional import _LogPosterior
from wflow.sampling import forward

pytestmark = pytest.mark.usefixtures("one_thread")


def potential(dim: int, condition: int, scale: float = 1.0) -> generative.Potential:
    phi = generative.Potential(dim, width=8, rank=2, condition=condition).double()
    with torch.no_grad():
        for parameter in phi.parameters():
            parameter.copy_(scale * 0.3 * torch.randn_like(parameter))
    return phi


SPARSE = {"steps": 3, "lam": 0.5, "beta": 0.7, "trainable": ("lam", "beta")}
FLOWS = {
    "OT-Flow": {"steps": 8},
    "sparse": SPARSE,
    "sparse, Euler": SPARSE | {"drift": "euler"},
    "attracting": {"steps": 2, "lam": 0.5, "beta": 2.0, "convention": "attracting",
                   "drift": "euler", "trainable": ("lam", "beta")},
    "laplace": {"steps": 2, "lam": 0.5, "kernel": "laplace", "attended": (2,)},
}  # fmt: skip


def flow_of(name: str, condition: int):
    """Return a flow of a name, with its context."""
    phi = potential(2, condition)
    if name == "OT-Flow":
        return generative.OTFlow(phi, **FLOWS[name]), {}
    context = torch.randn(12, 2).double(), torch.randn(12, condition).double()
    flow = generative.SparseTransformerFlow(phi, tokens=12, **FLOWS[name]).double()
    return flow, {"context": context}


@pytest.mark.parametrize("name", FLOWS)
def test_generated_samples_have_the_density_of_the_flow(name):
    flow, given = flow_of(name, 3)
    z, y = torch.randn(6, 2).double(), torch.randn(6, 3).double()
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
def test_samples_and_densities_have_the_gradients_of_finite_differences(name):
    flow, given = flow_of(name, 1)
    z, y, w = (torch.randn(4, width).double() for width in (2, 1, 2))
    inputs = [z.requires_grad_(), y.requires_grad_(), *flow.parameters()]

    def generated() -> torch.Tensor:
        found = flow.generate(z, y, **given)
        return (found.x * w).sum() + found.log_density.sum() + found.transport.sum()

    for value in (generated, lambda: flow.log_density(z, y, **given).sum()):
        assert_slopes(value, inputs, tolerance=1e-5)


def test_the_published_flow_generates_what_it_samples():
    flow = generative.SparseTransformerFlow(potential(2, 1), steps=2, convention="published")
    z, y = torch.randn(6, 2).double(), torch.randn(6, 1).double()
    found = flow.double().generate(z, y)
    torch.testing.assert_close(found.x.detach(), flow.from_base(z, y))


def test_euler_steps_without_an_inverse_are_reported():
    phi = potential(2, 0, scale=20.0)
    flow = generative.SparseTransformerFlow(phi, steps=2, drift="euler").double()
    with pytest.warns(UserWarning, match=r"h Hess phi exceeds 1 .*%"):
        flow.generate(torch.randn(6, 2).double(), context=torch.randn(9, 2).double())


class Shift(forward.ForwardModel):
    """F(x) = x + 1, with a datum so precise that the Laplace prior is a constant near it."""

    dim = outputs = 1

    def evaluate(self, x):
        return x + 1.0, lambda w: w


GAUSSIAN = forward.InverseProblem(Shift(), lam=1e-3, noise=0.5)


def trained(objective, batches, steps: int = 100, flow=None):
    torch.manual_seed(0)
    flow = flow or generative.OTFlow(generative.Potential(1, width=8, condition=1), steps=2)
    with torch.no_grad():  # near the identity
        flow.potential.A.mul_(0.1)
        flow.potential.w.mul_(0.1)
    schedule = train.StepDecay((0.03, 0.01), (60,))
    config = train.TrainConfig(steps=steps, batch=64, schedule=schedule, device="cpu")
    return flow, train.train(flow, objective, batches, config)


def pairs(step: int):
    """Return the data y in a range; x, where it is used, of the posterior."""
    rng = np.random.default_rng(step)
    y = rng.uniform(-1, 1, (64, 1))
    x = y - 1 + 0.5 * rng.standard_normal((64, 1))
    return tuple(torch.as_tensor(a, dtype=torch.float32) for a in (x, y, y))


def moments(flow, y: float) -> tuple[float, float]:
    with torch.no_grad():  # forwards, as in the training: two steps differ from their inverse
        x = flow.generate(torch.randn(2000, 1), torch.tensor([y])).x
    return float(x.mean()), float(x.std())


def test_the_divergence_finds_a_gaussian_posterior_and_is_minus_the_evidence():
    flow, history = trained(generative.ReverseKL(GAUSSIAN, alpha=(1.0, 0.0, 0.0)), pairs)
    for y in (-0.5, 0.5):
        mean, spread = moments(flow, y)
        assert abs(mean - (y - 1)) < 0.15 and abs(spread - 0.5) < 0.1
    # With a flat prior: log rho + |y - F|^2 / (2 sigma^2) has the mean -log(sigma sqrt(2 pi)).
    late = float(history["kl"][-30:].mean())
    assert abs(late + math.log(0.5 * math.sqrt(2 * math.pi))) < 0.08


def test_the_likelihood_finds_a_gaussian_posterior_from_its_samples():
    objective = generative.Likelihood(alpha=(1.0, 0.0, 0.0))
    flow, _ = trained(objective, lambda step: pairs(step)[:2])
    for y in (-0.5, 0.5):
        x = flow.sample(2000, 3, torch.tensor([y]))
        assert abs(x.mean() - (y - 1)) < 0.15 and abs(x.std() - 0.5) < 0.1


def test_the_supervised_term_pulls_samples_to_the_posterior_mean():
    objective = generative.ReverseKL(GAUSSIAN, alpha=(1.0, 0.0, 0.0), supervised=10.0)
    mean, spread = moments(trained(objective, pairs)[0], 0.0)
    # 10 E|x - x_true|^2 adds a precision of 20 to the 4 of the likelihood.
    assert abs(mean + 1) < 0.1 and abs(spread - 1 / math.sqrt(24)) < 0.06


def test_a_sparse_flow_trains_by_the_divergence():
    problem = forward.InverseProblem(forward.Elliptic(2, 3, cells=16), lam=2.0, noise=0.3)
    known = problem.simulate(200, seed=0)
    summary = problem.summary(100)

    def batches(step):
        rows = np.random.default_rng(step).integers(0, 200, 64)
        arrays = known.x[rows], summary(known.y[rows]), known.y[rows]
        return tuple(torch.as_tensor(a, dtype=torch.float32) for a in arrays)

    phi = generative.Potential(2, width=8, condition=summary.size)
    flow = generative.SparseTransformerFlow(phi, steps=2, lam=0.5, beta=0.5, tokens=32)
    _, history = trained(generative.ReverseKL(problem), batches, steps=16, flow=flow)
    assert float(history["kl"][-10:].mean()) < float(history["kl"][:5].mean()) - 1
    assert float(history["lost"].max()) == 0


class Log(forward.ForwardModel):
    """F(x) = factor log x, without a value where x < 0."""

    dim = outputs = 1

    def __init__(self, factor=1.0):
        self.factor = factor

    def evaluate(self, x):
        return self.factor * np.log(x), lambda w: w / x


def test_samples_without_an_output_are_left_out_and_counted():
    flow = generative.OTFlow(generative.Potential(1, width=4, condition=1), steps=2)
    data = torch.zeros(200, 1)

    def loss(factor):
        problem = forward.InverseProblem(Log(factor), lam=1.0, noise=1.0)
        return generative.ReverseKL(problem)(flow, data, data, data)

    found = loss(1.0)
    found.total.backward()
    assert 0.2 < float(found.parts["lost"]) < 0.8 and torch.isfinite(found.total)
    assert all(torch.isfinite(p.grad).all() for p in flow.parameters() if p.grad is not None)
    with pytest.raises(InputError, match="no finite output"):
        loss(np.nan)


@pytest.mark.parametrize("model", [forward.Elliptic(3, 4, cells=8), Log()], ids=["torch", "NumPy"])
def test_the_log_posterior_and_its_gradient_are_those_of_the_problem(model):
    problem = forward.InverseProblem(model, lam=2.0, noise=0.3)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, model.dim)), rng.standard_normal((9, model.outputs))
    value, slope = problem.log_posterior(x, y)
    at = torch.tensor(x, requires_grad=True)
    found = _LogPosterior.apply(at, torch.tensor(y), problem)
    np.testing.assert_allclose(found.detach(), value, rtol=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(found.sum(), at)[0], slope, rtol=1e-12)
    single = _LogPosterior.apply(at.float(), torch.tensor(y).float(), problem)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.detach(), value, rtol=1e-5)


def test_batches_and_outputs_of_other_shapes_are_refused():
    flow = generative.OTFlow(generative.Potential(1, width=4, condition=1), steps=2)
    x = torch.zeros(8, 1)
    with pytest.raises(InputError, match=r"y has shape \(8, 2\): expected \(n, 1\)"):
        generative.ReverseKL(GAUSSIAN)(flow, x, x, torch.zeros(8, 2))
    with pytest.raises(InputError, match="y is not finite"):
        generative.ReverseKL(GAUSSIAN)(flow, x, x, x / 0)
    narrow = type("Narrow", (Shift,), {"evaluate_torch": lambda self, x: (x[:, 0], lambda w: w)})()
    with pytest.raises(InputError, match="Narrow: evaluate_torch returns"):
        problem = forward.InverseProblem(narrow, lam=1.0, noise=1.0)
        generative.ReverseKL(problem)(flow, x, x, x)


def test_arguments_that_do_not_fit_are_refused():
    flow = generative.SparseTransformerFlow(generative.Potential(1, width=4, condition=1), tokens=8)
    x, objective = torch.zeros(8, 1), generative.ReverseKL(GAUSSIAN)
    with pytest.raises(InputError, match="context"):
        objective(flow, x, x, x)
    with pytest.raises(InputError, match="expected an OTFlow"):
        objective(flow.potential, x, x, x)
