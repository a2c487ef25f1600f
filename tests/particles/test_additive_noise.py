"""The scheme of strong order 1.5 for additive noise, against refined runs on one Brownian path."""

import numpy as np
import pytest
from brownian import Brownian, on
from run_layouts import same_bits

import wflow
from wflow._core.errors import InputError
from wflow._core.rng import CounterNormals
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating

D, HEADS, TOKENS, PATHS, T = 3, 2, 8, 100, 1.0
FINE = 512  # steps of the finest run
START = HEADS * [np.eye(D) / 2]


@pytest.fixture(scope="module")
def brownian():
    return Brownian(FINE, PATHS, HEADS, D, T)


@pytest.fixture(scope="module")
def x0():
    return wflow.tokens.uniform(TOKENS, D, seed=1)


def run(x0, law, steps, scheme, **options):
    return wflow.solve(
        x0, law, heads=START, t_final=T, dt=T / steps, paths=PATHS, seed=2, scheme=scheme,
        save=wflow.SaveAt(paths=range(PATHS), heads=True), compute=wflow.Compute(batch=PATHS),
        **options,
    )  # fmt: skip


def strong_orders(x0, law, *schemes, coarse=(16, 32, 64), **options):
    """Yield the strong order of the tokens, fitted over the steps, and their errors; by scheme."""
    last = run(x0, law, FINE, "sra1", **options).tokens.values[:, -1]
    for scheme in schemes:
        found = [run(x0, law, k, scheme, **options).tokens.values[:, -1] for k in coarse]
        errors = [np.sqrt(((tokens - last) ** 2).mean()) for tokens in found]
        yield -np.polyfit(np.log(coarse), np.log(errors), 1)[0], errors


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("flow", ["softmax", "effective"])
def test_tokens_have_strong_order_three_halves_and_those_of_euler_one(brownian, x0, exact, flow):
    law = on(brownian, OrnsteinUhlenbeck)(np.eye(D), rate=1.0, sigma2=2.0, exact=exact)
    (order, errors), (slow, larger) = strong_orders(x0, law, "sra1", "euler", flow=flow)
    assert order == pytest.approx(1.5, abs=0.15)
    assert slow == pytest.approx(1.0, abs=0.1)
    assert errors[-1] < larger[-1] / 8


def test_a_size_that_changes_in_time_keeps_the_order(brownian, x0):
    law = on(brownian, HeadLaw)(lambda D, t: np.sin(t) - D, lambda D, t: 1 + np.sin(3 * t))
    ((order, _),) = strong_orders(x0, law, "sra1")
    assert order == pytest.approx(1.5, abs=0.15)


def test_noise_of_a_size_linear_in_time_is_exact(brownian):
    """int (1 + s) dW = (1 + t) W - int W ds, which the increments and areas of a step give."""
    law = on(brownian, HeadLaw)(None, lambda D, t: 1 + t)
    ends = []
    for steps in (4, 32):
        ds = run(np.eye(D), law, steps, "sra1")
        ends.append(ds.heads.values[:, -1] - ds.heads.values[:, 0])
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-12)


def test_one_exact_step_has_the_transition_of_ornstein_uhlenbeck_and_its_mean():
    """Mean and covariance of D(t + dt) and of the mean of D over the step, by their formulas."""
    rate, sigma2, dt, count = 1.7, 0.8, 0.9, 40_000
    law = OrnsteinUhlenbeck(np.eye(2), rate, sigma2, exact=True)
    start = np.zeros((1, count, 2, 2))
    normals = CounterNormals(3)
    first, second = (normals.draw(start.shape, path=0, step=k) for k in (0, 1))
    step = law.additive_step(start, 0.0, dt, first, second)
    inner = start + 0.75 * dt * step.drift + 1.5 * step.mean_noise
    end = start + dt * (step.drift + 2 * law.drift(inner, 0.0)) / 3 + step.noise
    mean = start + (inner - start) * 2 / 3
    grid = np.linspace(0, dt, 4001)

    def integral(values):
        return float(((values[1:] + values[:-1]) / 2).sum() * grid[1])

    decayed = np.exp(-rate * grid)
    weight = (1 - decayed) / rate / dt  # of dW_s, at dt - s from the end, in the mean
    expected = {
        "variance of the end": sigma2 * integral(decayed**2),
        "variance of the mean": sigma2 * integral(weight**2),
        "covariance": sigma2 * integral(weight * decayed),
    }
    a, b = end[0, :, 0, 0], mean[0, :, 0, 0]
    found = {
        "variance of the end": a.var(), "variance of the mean": b.var(),
        "covariance": np.mean((a - a.mean()) * (b - b.mean())),
    }  # fmt: skip
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=0.03), name
    error = 4 / np.sqrt(count)
    assert a.mean() == pytest.approx(1 - decayed[-1], abs=error * a.std())
    assert b.mean() == pytest.approx(1 - integral(decayed) / dt, abs=error * b.std())


@pytest.mark.parametrize(
    "law", [OrnsteinUhlenbeck(np.eye(D), sigma2=0.0), Oscillating(D), Frozen()]
)
def test_without_noise_it_is_the_scheme_of_order_two_with_its_coefficients(x0, law):
    same = wflow.Tableau("same", 2, (0, 3 / 4), ((), (3 / 4,)), (1 / 3, 2 / 3))
    one, other = run(x0, law, 16, "sra1"), run(x0, law, 16, same)
    for name in ("tokens", "energy", "edi_residual"):
        np.testing.assert_array_equal(one[name].values, other[name].values)


def test_exact_without_noise_follows_the_mean_reversion(x0):
    law = OrnsteinUhlenbeck(np.eye(D), rate=2.0, sigma2=0.0, exact=True)
    ds = run(x0, law, 4, "sra1")
    start, end = ds.heads.values[:, 0], ds.heads.values[:, -1]
    np.testing.assert_allclose(
        end, np.eye(D) + np.exp(-2.0 * T) * (start - np.eye(D)), rtol=0, atol=1e-14
    )


def test_a_run_is_extended_to_the_same_bits(x0, tmp_path):
    law, out = OrnsteinUhlenbeck(np.eye(D)), tmp_path / "run.h5"
    options = {"heads": HEADS, "dt": 0.05, "paths": 5, "seed": 3, "scheme": "sra1"}
    whole = wflow.solve(x0, law, t_final=1.0, **options)
    wflow.solve(x0, law, t_final=0.5, out=out, **options)
    same_bits(wflow.solve(x0, law, t_final=1.0, out=out, if_exists="resume", **options), whole)
    assert wflow.verify(out).passed


class Damped(OrnsteinUhlenbeck):
    """A law of wflow with a step of its own."""

    def step(self, D, t, dt, normals):
        return super().step(D, t, dt / 2, normals)


def test_what_has_no_strong_order_is_refused_with_the_reason(x0):
    with pytest.raises(InputError, match="additive_step"):
        run(x0, Damped(np.eye(D)), 4, "sra1")


def test_noise_may_begin_in_a_run(x0):
    """A size of None is zero."""

    class Late(HeadLaw):
        def diffusion(self, D, t):
            return None if t < T / 2 else np.full(D.shape[:2], 1.0)

    ds = wflow.solve(
        x0, Late(), heads=START, t_final=T, dt=T / 8, scheme="sra1",
        save=wflow.SaveAt(snapshots=[0, 3 * T / 8, T], heads=True),
    )  # fmt: skip
    start, before, end = (ds.heads.values[0, k] for k in range(3))
    np.testing.assert_array_equal(before, start)
    assert np.abs(end - before).min() > 0
