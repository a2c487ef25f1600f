"""Energy, mobilities and velocities of one cloud: identities of docs/theory."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import Twin, symmetric, unit

import wflow
from wflow.attention import cloud as attention

FLOWS = ("softmax", "unnormalised", "effective")
cases = st.builds(
    dict, seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), d=st.sampled_from([2, 3, 5]),
    heads=st.integers(1, 6),
)  # fmt: skip


def cloud(seed, n, d, heads):
    rng = np.random.default_rng(seed)
    return unit(rng, n, d), symmetric(rng, heads, d, d) / np.sqrt(d)


@settings(max_examples=50, deadline=None)
@given(case=cases)
def test_effective_mobility_lies_between_those_of_the_heads(case):
    x, D = cloud(**case)
    m, b = wflow.mobility(x, D), wflow.effective_mobility(x, D)
    assert m.shape == (len(D), len(x)) and b.shape == (len(x),)
    assert np.all(m.min(0) <= b * (1 + 1e-14)) and np.all(b <= m.max(0) * (1 + 1e-14))
    assert b == pytest.approx(1 / np.mean(1 / m, axis=0), rel=1e-13)


@settings(max_examples=50, deadline=None)
@given(case=cases, flow=st.sampled_from(FLOWS), direction=st.sampled_from(["descent", "ascent"]))
def test_velocities_are_tangential_and_ascent_reverses_descent(case, flow, direction):
    x, D = cloud(**case)
    v = wflow.velocity(x, D, flow=flow, direction=direction)
    assert np.abs((v * x).sum(1)).max() <= 1e-14 * (1 + np.abs(v).max())
    other = {"descent": "ascent", "ascent": "descent"}[direction]
    assert np.array_equal(wflow.velocity(x, D, flow=flow, direction=other), -v)


@settings(max_examples=50, deadline=None)
@given(case=cases, direction=st.sampled_from(["descent", "ascent"]))
def test_defect_is_minus_the_covariance_of_gradient_and_inverse_mobility(case, direction):
    """docs/theory/energy.md, from per-head quantities put together here."""
    x, D = cloud(**case)
    sign = attention.DIRECTIONS[direction]
    m = wflow.mobility(x, D)  # (heads, n)
    g = np.stack([wflow.velocity(x, D[h : h + 1], direction="ascent") * m[h][:, None]
                  for h in range(len(D))])  # fmt: skip
    v = wflow.velocity(x, D, direction=direction)
    covariance = np.mean(g / m[..., None], 0) - g.mean(0) * np.mean(1 / m, 0)[:, None]
    b = wflow.effective_mobility(x, D)
    expected = np.mean(b * np.einsum("ik,ik->i", v, covariance))
    rate = wflow.dissipation(x, D, direction=direction)
    gradient = wflow.upper_gradient_sq(x, D, direction=direction)
    scale = 1e-13 * (1 + abs(rate) + gradient)
    assert wflow.edi_defect(x, D, direction=direction) == pytest.approx(expected, abs=scale)
    assert rate + sign * gradient == pytest.approx(expected, abs=scale)


@settings(max_examples=30, deadline=None)
@given(case=cases)
def test_defect_vanishes_where_the_published_balance_holds(case):
    x, D = cloud(**case)
    same = np.repeat(D[:1], len(D), axis=0)
    for matrices, flow in ((D[:1], "softmax"), (same, "softmax"), (D, "effective")):
        rate = wflow.dissipation(x, matrices, flow=flow)
        defect = wflow.edi_defect(x, matrices, flow=flow)
        assert abs(defect) <= 1e-13 * (1 + abs(rate))


@pytest.mark.parametrize("beta", [0.5, 5.0, 200.0])
def test_a_single_point_is_stationary_exactly_at_eigenvectors(beta):
    D = beta * symmetric(np.random.default_rng(0), 1, 3, 3)
    _, vectors = np.linalg.eigh(D[0])
    point = np.repeat(vectors[:, 1:2].T, 5, axis=0)
    assert np.abs(wflow.velocity(point, D)).max() <= 1e-13 * beta * 10
    elsewhere = np.repeat(unit(np.random.default_rng(1), 1, 3), 5, axis=0)
    assert np.abs(wflow.velocity(elsewhere, D)).max() > 0.1 * beta


def test_gradient_is_the_derivative_of_the_energy():
    x, D = cloud(4, 12, 3, 3)
    direction = unit(np.random.default_rng(9), 12, 3)
    direction -= (direction * x).sum(1)[:, None] * x
    eps = 1e-5

    def moved(t):
        y = x + t * direction
        return wflow.energy(y / np.linalg.norm(y, axis=1)[:, None], D)

    slope = (moved(eps) - moved(-eps)) / (2 * eps)
    gbar = wflow.velocity(x, D, flow="unnormalised", direction="ascent")
    assert slope == pytest.approx((gbar * direction).sum() / 12, rel=1e-8)


def test_scores_beyond_the_range_of_doubles_give_inf_once_with_beta_and_right_velocities():
    x, D = cloud(6, 30, 3, 2)
    D *= 5000
    with pytest.warns(RuntimeWarning, match="beta = "):
        assert wflow.energy(x, D) == np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        v = wflow.velocity(x, D)
    assert np.abs(v - Twin(x, D).velocity).max() <= 1e-13 * np.abs(D).max() * 3


def test_effective_velocity_is_right_where_every_kernel_value_underflows():
    """Mobilities of e^-2000 leave the range, their ratio does not."""
    x = unit(np.random.default_rng(0), 20, 3)
    x[:, 0] = np.abs(x[:, 0]) + 2
    x /= np.linalg.norm(x, axis=1)[:, None]
    D = np.stack([-2500 * np.eye(3), -2500.5 * np.eye(3)])
    v = wflow.velocity(x, D, flow="effective")
    twin = Twin(x, D, flow="effective")
    assert np.isfinite(v).all()
    assert np.abs(v - twin.velocity).max() <= 1e-11 * np.abs(twin.velocity).max()


@pytest.mark.parametrize(
    ("x", "D", "said"),
    [
        (np.ones((4, 3)), np.eye(3)[None], "unit sphere"), (np.ones((4, 1)), [[[1.0]]], "d >= 2"),
        (np.eye(3), np.eye(2)[None], "expected"), (np.eye(3), np.eye(3), "expected"),
        (np.eye(3), np.triu(np.ones((1, 3, 3))), "not symmetric"),
    ],
)  # fmt: skip
def test_bad_input_is_named(x, D, said):
    with pytest.raises(wflow.InputError, match=said):
        wflow.energy(x, D)
