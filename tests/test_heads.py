"""Head laws: drift, noise, stationary law, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import symmetric

from wflow.errors import InputError
from wflow.heads import (
    QKV,
    Frozen,
    HeadLaw,
    OrnsteinUhlenbeck,
    Oscillating,
    Schedule,
    law_from_config,
)
from wflow.rng import CounterNormals

HEADS, D = 20_000, 3
DIAGONAL = np.eye(D, dtype=bool)


def march_heads(law, dt, steps, seed=0):
    """A large sample of heads after some steps, all of one path."""
    normals = CounterNormals(seed)
    heads = np.broadcast_to(law.mean, (1, HEADS, D, D)).copy()
    for step in range(steps):
        move = law.step(heads, step * dt, dt, normals.draw(heads.shape, path=0, step=step))
        heads = heads + dt * move.drift + move.noise
    return heads[0]


@pytest.mark.parametrize("exact", [True, False])
def test_stationary_law_of_ornstein_uhlenbeck_within_monte_carlo_error(exact):
    """Mean and variance of 20 000 heads at t = 12.5 against the law of the scheme itself.

    Standard errors: sqrt(var / N) for the mean, var sqrt(2 / N) for the variance; the bound is
    five of them for 9 entries (chance of a false alarm below 1e-5 each).
    """
    rate, sigma2, dt = 1.0, 2.0, 0.05
    mean = symmetric(np.random.default_rng(1), D, D)
    heads = march_heads(OrnsteinUhlenbeck(mean, rate, sigma2, exact=exact), dt, 250)
    variance = sigma2 / (2 * rate) if exact else sigma2 / (rate * (2 - rate * dt))
    variances = np.where(DIAGONAL, variance, variance / 2)
    assert np.all(np.abs(heads.mean(0) - mean) <= 5 * np.sqrt(variances / HEADS))
    assert np.all(np.abs(heads.var(0) - variances) <= 5 * variances * np.sqrt(2 / HEADS))
    assert np.array_equal(heads, heads.swapaxes(-1, -2))


def test_euler_maruyama_approaches_the_exact_transition_at_first_order():
    """Same normal numbers: the gap after one step falls like dt^{3/2}, so over t = 1 like dt."""
    gaps = []
    for dt in (0.1, 0.05, 0.025):
        pair = [
            march_heads(OrnsteinUhlenbeck(np.eye(D), exact=exact), dt, round(1 / dt))
            for exact in (True, False)
        ]
        gaps.append(np.sqrt(np.mean((pair[0] - pair[1]) ** 2)))
    slopes = np.log2(np.array(gaps[:-1]) / gaps[1:])
    assert np.all(np.abs(slopes - 1) < 0.15)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), dt=st.floats(1e-4, 0.5))
def test_symmetric_noise_has_the_variance_of_its_ito_term(seed, dt):
    """E[(x^T dW y)^2] = (|x|^2 |y|^2 + <x,y>^2) dt / 2, within five standard errors."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, D))
    law = HeadLaw(None, 1.0)
    heads = np.zeros((1, 4000, D, D))
    noise = law.step(heads, 0.0, dt, rng.normal(size=heads.shape)).noise[0]
    samples = np.einsum("a,hab,b->h", x, noise, y) ** 2
    expected = (x @ x * (y @ y) + (x @ y) ** 2) * dt / 2
    assert abs(samples.mean() - expected) <= 5 * expected * np.sqrt(2 / 4000)


def test_oscillating_target_in_three_dimensions_is_the_published_one():
    target = Oscillating(3, "common").target(0.7, 2)
    a = 0.7
    expected = [
        [2 + 1.5 * np.cos(a), np.sin(2 * a), np.sin(a)],
        [np.sin(2 * a), 2 + 1.5 * np.sin(a), np.cos(2 * a)],
        [np.sin(a), np.cos(2 * a), 2 + 1.5 * np.cos(a + np.pi / 4)],
    ]
    assert np.allclose(target, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("d", [2, 3, 4, 6])
def test_oscillating_targets_are_symmetric_periodic_and_spread_over_the_phases(d):
    spread = Oscillating(d, "spread").target(0.3, 4)
    assert np.array_equal(spread, spread.swapaxes(-1, -2))
    assert np.allclose(Oscillating(d, "spread").target(0.3 + 2 * np.pi, 4), spread, atol=1e-14)
    shifted = Oscillating(d, "common").target(0.3 + np.pi / 2, 1)
    assert np.allclose(spread[1], shifted[0], atol=1e-14)
    if d == 2:
        assert spread[0] == pytest.approx(
            np.array([[2 + 1.5 * np.cos(0.3), np.sin(0.6)], [np.sin(0.6), 2 - 1.5 * np.cos(0.3)]])
        )


def test_linear_schedule_passes_through_its_values_and_constant_one_jumps():
    rng = np.random.default_rng(0)
    values = symmetric(rng, 3, 2, 2, 2)
    linear = Schedule([0.0, 1.0, 3.0], values)
    start = linear.initial()[0]
    slope = linear.step(start[None], 0.25, 0.5, None).drift[0]
    assert np.allclose(slope, values[1] - values[0])
    assert linear.step(start[None], 3.0, 0.5, None).drift == pytest.approx(0.0)
    constant = Schedule([0.0, 1.0, 3.0], values, "constant")
    assert constant.jump(0.0, 0.5) is None
    assert np.array_equal(constant.jump(0.75, 0.25), values[1])


def test_a_law_of_ones_own_is_two_callables():
    law = HeadLaw(lambda D, t: -t * D, lambda D, t: 0.5)
    heads = np.ones((2, 3, 2, 2))
    move = law.step(heads, 2.0, 0.01, np.ones_like(heads))
    assert np.array_equal(move.drift, -2 * heads)
    assert move.noise == pytest.approx(0.5 * 0.1)
    assert move.sigma2.shape == (2, 3) and np.all(move.sigma2 == 0.25)
    assert not law.deterministic and HeadLaw().deterministic


@pytest.mark.parametrize(
    ("drift", "diffusion", "said"),
    [
        (lambda D, t: np.ones((4, 4)), None, "broadcast to"),
        (lambda D, t: "up", None, "broadcast to"),
        (lambda D, t: None, None, "broadcast to"),
        (lambda D, t: 1j * D, None, "real numbers"),
        (lambda D, t: np.nan * D, None, "not finite"),
        (lambda D, t: D.fill(0), None, "read-only"),
        (None, lambda D, t: np.ones(7), "broadcast to"),
        (None, lambda D, t: -1.0, "sigma is >= 0"),
    ],
)
def test_a_law_of_ones_own_that_misbehaves_is_named(drift, diffusion, said):
    heads = np.ones((2, 3, 2, 2))
    with pytest.raises((InputError, ValueError), match=said):
        HeadLaw(drift, diffusion).step(heads, 0.0, 0.01, np.ones_like(heads))


def test_general_heads_form_the_score_matrix_from_query_and_key():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 3, 3))
    score, value = QKV(q, k, v, scale=None).matrices()
    x, y = rng.normal(size=(2, 3))
    assert x @ score[1] @ y == pytest.approx((q[1] @ x) @ (k[1] @ y) / np.sqrt(5))
    assert np.array_equal(value, v)


@pytest.mark.parametrize(
    "law",
    [
        Frozen(),
        OrnsteinUhlenbeck(np.eye(2), 0.7, 1.3, exact=True),
        Oscillating(2, "common"),
        Schedule([0.0, 1.0], np.zeros((2, 1, 2, 2)), "constant"),
    ],
    ids=lambda law: type(law).__name__,
)
def test_a_law_comes_back_from_its_configuration(law):
    assert law_from_config(law.config()).config() == law.config()


def test_a_law_is_told_from_another_by_what_its_function_closes_over():
    def law(c, power=1):
        table = np.arange(3) * c
        return HeadLaw(lambda D, t: -c * D**power + table[0])

    assert law(1).config() == law(1).config()
    assert law(1).config() != law(50).config()
    assert law(1).config() != law(1, power=2).config()

    class Mine(HeadLaw):
        def __init__(self, c):
            super().__init__()
            self.c = c

    assert Mine(1).config() == Mine(1).config() != Mine(2).config()
    hidden = np.random.default_rng()
    assert HeadLaw(lambda D, t: hidden.normal() * D).config()["fingerprint"] is None


def test_a_subclass_that_only_adds_noise_is_not_taken_for_deterministic():
    class Noisy(HeadLaw):
        def diffusion(self, D, t):
            return np.ones(D.shape[:2])

    assert not Noisy().deterministic
    assert Noisy().step(np.zeros((1, 2, 2, 2)), 0.0, 0.1, np.ones((1, 2, 2, 2))).noise.all()


def test_linear_schedule_gives_its_values_to_the_bit():
    values = np.stack([np.eye(2), 3 * np.eye(2)])[:, None]
    law = Schedule([0.0, 1.0], values)
    assert np.array_equal(law.initial()[0], values[0])
    assert np.array_equal(law.step(values[:1], 0.0, 0.5, None).drift[0], 2 * values[0])


def test_callables_are_not_read_back_from_a_file():
    with pytest.raises(InputError, match="Python functions"):
        law_from_config(HeadLaw(lambda D, t: D).config())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: OrnsteinUhlenbeck(np.eye(3), sigma2=-1), "sigma2"),
        (lambda: OrnsteinUhlenbeck(np.eye(3), rate=0), "rate"),
        (lambda: OrnsteinUhlenbeck(np.triu(np.ones((3, 3)))), "not symmetric"),
        (lambda: OrnsteinUhlenbeck(np.ones((2, 3))), "square"),
        (lambda: Oscillating(1), "d is 1"),
        (lambda: Oscillating(3, "wild"), "spread"),
        (lambda: Schedule([1.0, 0.0], np.zeros((2, 1, 2, 2))), "increasing"),
        (lambda: Schedule([0.0, 1.0], np.zeros((3, 1, 2, 2))), "2 times"),
        (lambda: Schedule([0.0], np.zeros((1, 1, 2, 2)), "cubic"), "linear"),
        (lambda: HeadLaw(None, -1.0), "diffusion"),
        (lambda: HeadLaw(None, np.float32(-1)), "diffusion"),
        (lambda: HeadLaw(None, np.ones(2)), "expected a number"),
        (lambda: HeadLaw(np.eye(3)), "expected a function"),
        (lambda: OrnsteinUhlenbeck(np.eye(3), sigma2="a"), "expected a number"),
        (lambda: OrnsteinUhlenbeck(1j * np.eye(3)), "real numbers"),
        (lambda: Oscillating("3"), "whole number"),
        (lambda: Oscillating(3, sigma2=-1.0), "sigma2"),
        (
            lambda: QKV(np.ones((1, 2, 3)), np.ones((1, 3, 3)), np.ones((1, 3, 3))).matrices(),
            "quer",
        ),
    ],
)
def test_bad_parameters_are_named(make, said):
    with pytest.raises(InputError, match=said):
        make()
