"""Forward models: order of convergence, adjoints against finite differences, and bad input."""

import numpy as np
import pytest

from wflow import InputError
from wflow.sampling import forward
from wflow.sampling.forward import Elliptic, ForwardModel, Impedance, Lorenz

MODELS = {
    "elliptic": lambda: Elliptic(6, 4, cells=32),
    "lorenz": lambda: Lorenz(windows=3, spin_up=0.1),
    "lorenz without spin-up": lambda: Lorenz(windows=2, window=0.1, spin_up=0),
    "impedance": lambda: Impedance((2, 3), cells=8, patterns=3, electrodes=8),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_adjoint_is_that_of_finite_differences(name):
    model, rng = MODELS[name](), np.random.default_rng(0)
    x, w = rng.standard_normal((3, model.dim)) / 2, rng.standard_normal((3, model.outputs))
    step = 1e-6 * np.eye(model.dim)
    found = [((model(x + e) - model(x - e)) * w).sum(1) / 2e-6 for e in step]
    gradient = model.vjp(x, w)
    assert np.abs(gradient - np.stack(found, 1)).max() < 3e-8 * np.abs(gradient).max()


@pytest.mark.parametrize("name", MODELS)
def test_rows_do_not_depend_on_the_batch(name):
    model, x = MODELS[name](), np.random.default_rng(1).standard_normal((4, MODELS[name]().dim))
    values, pull = model.linearise(x)
    w = np.random.default_rng(2).standard_normal(values.shape)
    assert np.allclose(model(x[2:3]), values[2], rtol=1e-13)
    assert np.allclose(model.vjp(x[2:3], w[2:3]), pull(w)[2], rtol=1e-12)
    assert np.array_equal(model(x), values)
    assert model(x[:0]).shape == (0, model.outputs)


def order(errors: list[float]) -> float:
    return float(np.log2(errors[-2] / errors[-1]))


def test_the_elliptic_solver_is_of_second_order():
    errors = []
    for cells in (32, 64, 128):
        model = Elliptic(2, 2, cells=cells)
        truth = np.cos(np.pi * model.grid)
        solution = model.solve((model.alpha * np.pi**2 + 1) * truth)
        errors.append(np.abs(solution - truth).max())
    assert order(errors) > 1.95


def test_the_elliptic_model_is_its_matrix_and_conserves_mass():
    model = Elliptic(5, 3, cells=64)
    x = np.random.default_rng(0).standard_normal((2, 5))
    assert np.allclose(model(x), x @ model.matrix.T, rtol=1e-14)
    source = model.basis @ x[0]  # the integral of w is that of u
    assert abs(model.solve(source).sum() - source.sum()) < 1e-10 * np.abs(source).sum()


def test_the_lorenz_averages_are_of_fourth_order():
    x, errors = np.array([[0.3, -0.2, 0.1]]), []
    times = {"windows": 2, "window": 0.4, "spin_up": 0.2}
    truth = Lorenz(dt=0.4 / 1024, **times)(x)
    for steps in (32, 64, 128):
        errors.append(np.abs(Lorenz(dt=0.4 / steps, **times)(x) - truth).max())
    assert order(errors) > 3.6


def test_the_lorenz_averages_are_those_of_scipy():
    from scipy.integrate import solve_ivp

    model = Lorenz(windows=2, window=0.25, spin_up=0.25, dt=0.0025)

    def rate(_, state):
        x, y, z = state[:3]
        return [10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z, x, y, z]

    times = [0.25, 0.5, 0.75]
    path = solve_ivp(rate, (0, 0.75), [1, 1, 20, 0, 0, 0], t_eval=times, rtol=1e-11, atol=1e-12)
    averages = np.diff(path.y[3:], axis=1).T.ravel() / 0.25
    assert np.allclose(model(np.zeros((1, 3)))[0], averages, rtol=1e-5)


K = np.array([-0.3, (-0.5 + np.sqrt(0.25 + 4 * 0.21)) / 2])  # k.k + a.k = 0
A = np.array([1.0, 0.5])


def exponential(s: np.ndarray) -> np.ndarray:
    """div(e^{a.s} grad e^{k.s}) = 0."""
    return np.exp(s @ K)[..., None]


def test_the_currents_are_of_second_order():
    nodes, weights = np.polynomial.legendre.leggauss(12)
    t = 0.5 * (nodes + 1)
    sides = [(np.stack([t, 0 * t], 1), -K[1]), (np.stack([0 * t + 1, t], 1), K[0]),
             (np.stack([t, 0 * t + 1], 1), K[1]), (np.stack([0 * t, t], 1), -K[0])]  # fmt: skip
    truth = np.array([weights / 2 @ (np.exp(s @ A) * k * exponential(s)[:, 0]) for s, k in sides])
    errors = []
    for cells in (16, 32, 64):
        model = Impedance(
            cells=cells, patterns=1, electrodes=4, basis=lambda s: s, voltages=exponential
        )
        errors.append(np.abs(model(A[None])[0] - truth).max())
    assert abs(truth.sum()) < 1e-12
    assert order(errors) > 1.8
    assert errors[-1] < 1e-4 * np.abs(truth).max()


def test_currents_are_reciprocal_and_constant_voltages_drive_none():
    """<f, current(g)> = <g, current(f)>, and the sum of currents is 0."""
    rng = np.random.default_rng(0)
    table = np.repeat(rng.standard_normal((8, 2)), 4, axis=0)  # constant on 8 electrodes
    model = Impedance(
        (2, 2), cells=8, patterns=3, electrodes=8,
        voltages=lambda s: np.hstack([table, np.ones((32, 1))]),
    )  # fmt: skip
    currents = model(rng.standard_normal((1, 4)))[0].reshape(3, 8)
    f, g = table[::4].T
    assert abs(f @ currents[1] - g @ currents[0]) < 1e-12
    assert np.abs(currents[2]).max() < 1e-12 and np.abs(currents.sum(1)).max() < 1e-12


def test_the_conductivity_scales_the_currents():
    model = Impedance(cells=8, patterns=2, electrodes=4, basis=lambda s: np.ones((len(s), 1)))
    currents = model([[0.0], [1.0]])
    assert np.allclose(currents[1], np.e * currents[0], rtol=1e-12)
    assert np.allclose(model.conductivity([[1.0]]), np.e)


class Broken(ForwardModel):
    dim, outputs = 1, 1

    def evaluate(self, x):
        return np.log(x), lambda w: w / x


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Broken(), [[1.0], [-1.0]]),
        (Lorenz(windows=2, spin_up=0.4, dt=0.2), np.full((1, 3), 5.0)),  # the scheme explodes
        (Impedance((2, 2), cells=4, patterns=2, electrodes=4), np.full((1, 4), 1e3)),
        (Elliptic(6, 4, cells=32), np.full((1, 6), np.nan)),
    ],
)
def test_values_that_are_not_finite_are_reported_and_not_returned(model, x):
    with pytest.raises(InputError, match=r"row 1|not finite"):
        model(x)
    with pytest.raises(InputError, match="expected \\(n, "):
        model(np.zeros((2, model.dim + 1)))


def test_the_posterior_has_its_gradient_and_is_zero_where_the_model_has_no_output():
    model = Impedance((2, 2), cells=4, patterns=2, electrodes=4)
    problem = forward.InverseProblem(model, lam=2.0, noise=0.1)
    pairs = problem.simulate(3, seed=4)

    def value_at(x):
        return problem.log_posterior(x, pairs.y)[0]

    value, slope = problem.log_posterior(pairs.x, pairs.y)
    steps = 1e-6 * np.eye(4)
    found = [(value_at(pairs.x + e) - value_at(pairs.x - e)) / 2e-6 for e in steps]
    assert np.allclose(np.stack(found, 1), slope, rtol=1e-5, atol=1e-5)
    likelihood = problem.log_likelihood(pairs.x, pairs.y)
    assert np.allclose(value, likelihood - 2 * np.abs(pairs.x).sum(1), rtol=1e-12)
    far = np.vstack([pairs.x[:1], np.full((1, 4), 1e3)])
    with_far, slope = problem.log_posterior(far, pairs.y[0])
    assert np.isclose(with_far[0], value[0]) and with_far[1] == -np.inf
    assert np.all(np.isfinite(slope))


def test_simulated_pairs_have_the_prior_and_the_noise():
    problem = forward.InverseProblem(Elliptic(4, 3), lam=3.0, noise=[0.1, 0.2, 0.3])
    pairs = problem.simulate(40_000, seed=0)
    assert np.allclose(np.abs(pairs.x).mean(0), 1 / 3, rtol=0.03)
    assert np.allclose((pairs.y - pairs.clean).std(0), [0.1, 0.2, 0.3], rtol=0.03)
    assert np.array_equal(pairs.y, problem.simulate(40_000, seed=0).y)
