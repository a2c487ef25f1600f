"""Forward models in torch: values and adjoints of the NumPy form, rows, precision, and NaN."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wflow.sampling.forward import Elliptic, ForwardModel, Impedance, Lorenz  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Square(ForwardModel):
    """A model without a form in torch."""

    dim = outputs = 3

    def evaluate(self, x):
        return x**2, lambda w: 2 * x * w


MODELS = {
    "custom": Square,
    "elliptic": lambda: Elliptic(6, 4, cells=32),
    "lorenz": lambda: Lorenz(windows=3, spin_up=0.1),
    "lorenz without spin-up": lambda: Lorenz(windows=2, window=0.1, spin_up=0),
    "impedance": lambda: Impedance((2, 3), cells=8, patterns=3, electrodes=8),
    "impedance of four cells": lambda: Impedance((1, 2), cells=2, patterns=2, electrodes=4),
}


class Outputs(torch.autograd.Function):
    """The outputs of a model, with its pullback as their derivative."""

    @staticmethod
    def forward(ctx, x, model):
        values, ctx.pullback = model.evaluate_torch(x.detach())
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, w):
        return ctx.pullback(w), None


def made(name, rows=3):
    """Return a model, parameters and weights of outputs."""
    model, rng = MODELS[name](), np.random.default_rng(0)
    x = rng.standard_normal((rows, model.dim)) / 2
    return model, x, rng.standard_normal((rows, model.outputs))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device", ["cpu", *["cuda"] * torch.cuda.is_available()])
def test_values_and_adjoints_are_those_of_numpy(name, device):
    model, x, w = made(name)
    values, pullback = model.evaluate_torch(torch.tensor(x, device=device))
    slope = pullback(torch.tensor(w, device=device))
    assert values.device.type == slope.device.type == device and values.dtype == torch.float64
    np.testing.assert_allclose(values.cpu(), model(x), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(slope.cpu(), model.vjp(x, w), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_adjoints_are_those_of_finite_differences(name):
    model, x, _ = made(name, 2)
    at = torch.tensor(x, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: Outputs.apply(x, model), at)


@pytest.mark.parametrize("name", MODELS)
def test_rows_do_not_depend_on_the_batch(name):
    model, x, w = made(name, 5)
    at, weights = torch.tensor(x), torch.tensor(w)
    values, pullback = model.evaluate_torch(at)
    one, pull = model.evaluate_torch(at[2:3])
    torch.testing.assert_close(one[0], values[2], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(pull(weights[2:3])[0], pullback(weights)[2], rtol=1e-12, atol=1e-13)
    assert model.evaluate_torch(at[:0])[0].shape == (0, model.outputs)


@pytest.mark.parametrize("name", MODELS)
def test_single_precision_is_kept(name):
    model, x, w = made(name)
    values, pullback = model.evaluate_torch(torch.tensor(x, dtype=torch.float32))
    slope = pullback(torch.tensor(w, dtype=torch.float32))
    assert values.dtype == slope.dtype == torch.float32
    for found, expected in ((values, model(x)), (slope, model.vjp(x, w))):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("model", "far"),
    [(Lorenz(windows=2, spin_up=0.4, dt=0.2), 5.0), (Impedance((1, 3), cells=4), 1e3)],
    ids=["lorenz", "impedance"],
)
def test_a_row_without_an_output_leaves_the_others_as_they_are(model, far):
    x = torch.zeros(3, 3, dtype=torch.float64)
    expected, pull = model.evaluate_torch(x)
    w = torch.ones_like(expected)
    x[1] = far
    values, pullback = model.evaluate_torch(x)
    for found, right in ((values, expected), (pullback(w), pull(w))):
        assert not torch.isfinite(found[1]).all()
        torch.testing.assert_close(found[::2], right[::2], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "custom"])
def test_shapes_are_known_without_values(name):
    """On the device meta: nothing is computed on the CPU, and nothing waits for a value."""
    model, x, w = made(name)
    values, pullback = model.evaluate_torch(torch.tensor(x, device="meta"))
    assert values.shape == w.shape and values.is_meta
    slope = pullback(torch.tensor(w, device="meta"))
    assert slope.shape == x.shape and slope.is_meta


def test_an_array_is_copied_to_a_device_once_and_again_where_it_is_another():
    model, at = Elliptic(3, 4, cells=8), torch.ones(1, 3)
    one, single = model.evaluate_torch(at.double())[0], model._on_device("matrix", at)
    assert single.dtype == torch.float32 and model._on_device("matrix", at) is single
    model.matrix = 2 * model.matrix
    assert torch.equal(model.evaluate_torch(at.double())[0], 2 * one)
    assert model._on_device("matrix", at) is not single
