"""Forward models in torch: values and adjoints of the NumPy form, rows, precision, and NaN."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wflow.sampling.forward import Elliptic, ForwardModel, Lorenz  # noqa: E402

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
    """A model, parameters and weights of outputs."""
    model, rng = MODELS[name](), np.random.default_rng(0)
    x = rng.standard_normal((rows, model.dim)) / 2
    return model, x, rng.standard_normal((rows, model.outputs))


@pytest.mark.parametrize("name", MODELS)
def test_values_and_adjoints_are_those_of_numpy(name):
    model, x, w = made(name)
    values, pullback = model.evaluate_torch(torch.tensor(x))
    assert values.dtype == torch.float64
    np.testing.assert_allclose(values, model(x), rtol=1e-12, atol=1e-13)
    expected = model.vjp(x, w)
    np.testing.assert_allclose(pullback(torch.tensor(w)), expected, rtol=1e-12, atol=1e-12)


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
