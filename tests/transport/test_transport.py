"""Distances between clouds: a metric, exact where it says so, honest where it is not."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import wflow
from wflow import InputError, tokens, transport
from wflow._core import memory
from wflow.transport import distances
from wflow.transport.distances import load_pot

QUICK = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 10**6)
SIZES = st.integers(1, 12)
DIMS = st.integers(2, 5)
POWERS = st.sampled_from([1.0, 1.5, 2.0, 3.0])
COSTS = st.sampled_from(transport.COSTS)


def cloud(n: int, d: int, seed: int) -> np.ndarray:
    return tokens.uniform(n, d, seed=seed)


def weights(n: int, seed: int, zeros: bool = False) -> np.ndarray:
    w = np.random.default_rng(seed).uniform(0.1, 1, n)
    if zeros and n > 1:
        w[seed % n] = 0
    return w / w.sum()


def rotation(d: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


def arc(angles) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def by_simplex(x, y, p, a=None, b=None, cost="geodesic") -> float:
    """Return W_p by POT's network simplex on the distances, as a user of POT would write it."""
    costs = transport.distance(x, y, cost) ** p
    a = np.full(len(x), 1 / len(x)) if a is None else a
    b = np.full(len(y), 1 / len(y)) if b is None else b
    return float(load_pot().emd2(a, b, costs, numItermax=10**7)) ** (1 / p)


@pytest.mark.parametrize("gap", [1e-15, 1e-12, 1e-8, 1e-4, 0.1, 1.0, 3.0])
def test_distance_of_near_and_of_antipodal_tokens_is_accurate(gap):
    x, near, far = arc([0.3]), arc([0.3 + gap]), arc([0.3 + np.pi - gap])
    if gap >= 1e-4:
        assert transport.distance(x, near)[0, 0] == pytest.approx(gap, rel=1e-11)
    else:  # two coordinates hold an angle to 1e-16
        assert transport.distance(x, near)[0, 0] == pytest.approx(gap, abs=2e-16)
    assert transport.distance(x, far)[0, 0] == pytest.approx(np.pi - gap, abs=1e-15)


@given(SEEDS, SIZES, SIZES, SIZES, DIMS, POWERS, COSTS)
@QUICK
def test_symmetric_and_triangle_inequality(seed, n, m, k, d, p, cost):
    x, y, z = cloud(n, d, seed), cloud(m, d, seed + 1), cloud(k, d, seed + 2)

    def w(u, v):
        return transport.wasserstein(u, v, p, cost=cost)

    assert w(x, y) == pytest.approx(w(y, x), rel=1e-10)
    assert w(x, z) <= w(x, y) + w(y, z) + 1e-10


@given(SEEDS, SIZES, DIMS, POWERS, COSTS)
@QUICK
def test_zero_exactly_for_a_cloud_and_its_permutation(seed, n, d, p, cost):
    x = cloud(n, d, seed)
    shuffled = x[np.random.default_rng(seed).permutation(n)]
    assert transport.wasserstein(x, shuffled, p, cost=cost) <= 1e-15
    moved = x.copy()
    moved[0] = cloud(1, d, seed + 1)[0]
    step = transport.distance(x[:1], moved[:1], cost)[0, 0]
    found = transport.wasserstein(x, moved, p, cost=cost)
    assert 0 < found <= step * n ** (-1 / p) * (1 + 1e-12)


@given(SEEDS, SIZES, SIZES, DIMS, POWERS, COSTS)
@QUICK
def test_rotation_and_permutation_change_nothing(seed, n, m, d, p, cost):
    x, y = cloud(n, d, seed), cloud(m, d, seed + 1)
    a, b = weights(n, seed), weights(m, seed + 1, zeros=True)
    turn, rng = rotation(d, seed), np.random.default_rng(seed)
    i, j = rng.permutation(n), rng.permutation(m)
    before = transport.wasserstein(x, y, p, cost=cost, weights_x=a, weights_y=b)
    after = transport.wasserstein(
        (x @ turn)[i], (y @ turn)[j], p, cost=cost, weights_x=a[i], weights_y=b[j]
    )
    assert after == pytest.approx(before, rel=1e-9)


@given(SEEDS, SIZES, SIZES, DIMS)
@QUICK
def test_grows_with_p_and_from_chord_to_angle(seed, n, m, d):
    x, y = cloud(n, d, seed), cloud(m, d, seed + 1)
    values = [transport.wasserstein(x, y, p) for p in (1, 1.5, 2, 4)]
    assert np.all(np.diff(values) >= -1e-12)
    assert values[0] == transport.w1(x, y)
    assert values[2] == transport.w2(x, y)
    chord = transport.w2(x, y, cost="chordal")
    assert chord <= values[2] * (1 + 1e-12)
    assert values[2] <= np.pi / 2 * chord * (1 + 1e-12)


@given(SEEDS, SIZES, st.just(2) | DIMS, POWERS, COSTS)
@settings(QUICK, max_examples=60)
def test_equal_sizes_agree_with_simplex_and_with_linear_assignment(seed, n, d, p, cost):
    x, y = cloud(n, d, seed), cloud(n, d, seed + 1)
    costs = transport.distance(x, y, cost) ** p
    want = costs[linear_sum_assignment(costs)].mean() ** (1 / p)
    assert transport.wasserstein(x, y, p, cost=cost, method="exact") == pytest.approx(want)
    assert by_simplex(x, y, p, cost=cost) == pytest.approx(want)
    s = transport.assignment(x, y, p, cost=cost)
    assert sorted(s) == list(range(n))
    assert costs[np.arange(n), s].mean() ** (1 / p) == pytest.approx(want, rel=1e-12)


@given(SEEDS, SIZES, SIZES, DIMS, POWERS)
@QUICK
def test_plan_has_the_marginals_and_the_cost(seed, n, m, d, p):
    x, y, a, b = cloud(n, d, seed), cloud(m, d, seed + 1), weights(n, seed, True), weights(m, seed)
    pi = transport.plan(x, y, p, weights_x=a, weights_y=b)
    assert pi.min() >= 0
    assert np.allclose(pi.sum(1), a, atol=1e-13)
    assert np.allclose(pi.sum(0), b, atol=1e-13)
    cost = (pi * transport.distance(x, y) ** p).sum() ** (1 / p)
    assert cost == pytest.approx(transport.wasserstein(x, y, p, weights_x=a, weights_y=b))
    uniform = transport.plan(x, y, p)
    assert np.allclose(uniform.sum(0), 1 / m)
    assert np.allclose(uniform.sum(1), 1 / n)


@given(SEEDS, st.integers(2, 8), DIMS, POWERS)
@QUICK
def test_weights_are_worth_as_many_copies_of_a_token(seed, n, d, p):
    copies = np.random.default_rng(seed).integers(1, 4, n)
    x, y = cloud(n, d, seed), cloud(int(copies.sum()), d, seed + 1)
    twice = np.repeat(x, copies, axis=0)
    want = transport.wasserstein(twice, y, p)
    got = transport.wasserstein(x, y, p, weights_x=copies / copies.sum())
    assert got == pytest.approx(want, rel=1e-9)


def test_tokens_of_weight_zero_do_not_count_and_equal_weights_are_uniform():
    x, y = cloud(6, 3, 1), cloud(7, 3, 2)
    a = np.array([0.2, 0.3, 0, 0.5, 0, 0])
    kept = a > 0
    want = transport.w2(x[kept], y, weights_x=a[kept])
    assert transport.w2(x, y, weights_x=a) == pytest.approx(want, rel=1e-12)
    assert transport.w2(x, y, weights_x=np.full(6, 1 / 6)) == transport.w2(x, y)


def test_clouds_a_hundred_millionth_apart_have_their_distance():
    x = cloud(200, 3, 0)
    step = 1e-8 * np.cross(x, [0.0, 0.6, 0.8])
    y = wflow.sphere.as_tokens(x + step)[np.random.default_rng(0).permutation(200)]
    want = np.sqrt(np.mean(np.sum(step**2, axis=1)))
    assert transport.w2(x, y) == pytest.approx(want, rel=1e-6)


@given(SEEDS, SIZES | st.just(300), SIZES, POWERS, st.booleans(), st.booleans())
@settings(QUICK, max_examples=60)
def test_circle_agrees_with_the_simplex(seed, n, m, p, weighted, tight):
    x, y = cloud(n, 2, seed), cloud(m, 2, seed + 1)
    if tight:  # clusters, ties and the seam at -pi
        x, y = arc(np.round(np.arctan2(*x.T), 0)), arc(np.pi + 0.01 * np.arctan2(*y.T))
    a = weights(n, seed, zeros=True) if weighted else None
    b = weights(m, seed + 1) if weighted else None
    got = transport.wasserstein(x, y, p, method="circle", weights_x=a, weights_y=b)
    assert got == pytest.approx(by_simplex(x, y, p, a, b), rel=1e-9, abs=1e-9)


@given(SEEDS, st.integers(1, 300), st.floats(0, 2 * np.pi), POWERS)
@QUICK
def test_regular_polygon_turned_by_t_is_at_distance_t_modulo_its_symmetry(seed, n, t, p):
    corners = 2 * np.pi * np.arange(n) / n
    modulo = t % (2 * np.pi / n)
    want = min(modulo, 2 * np.pi / n - modulo)
    got = transport.wasserstein(arc(corners), arc(corners + t), p)
    assert got == pytest.approx(want, abs=1e-11 if p == 1 else 1e-7)


def test_weighted_cloud_on_the_circle_is_at_distance_zero_from_itself():
    x, a = cloud(1000, 2, 0), weights(1000, 0)
    order = np.random.default_rng(0).permutation(1000)
    assert transport.w2(x, x[order], weights_x=a, weights_y=a[order]) == 0


@pytest.mark.parametrize("seed", range(3))
def test_tokens_of_hardly_any_weight_do_not_mislead_the_circle(seed):
    rng = np.random.default_rng(seed)
    for n, m, p in ((8, 3, 2.0), (4, 4, 3.0), (4, 2, 1.0)):
        x, y = cloud(n, 2, seed), cloud(m, 2, seed + 100)
        a, b = rng.random(n) ** rng.choice([1, 20]), rng.random(m) ** 20
        a[0], b[0], b[-1] = 1e-25, 1e-25, 1e-16
        options = {"weights_x": a / a.sum(), "weights_y": b / b.sum()}
        exact, circle, sliced = (
            transport.wasserstein(x, y, p, method=method, **options) ** p
            for method in ("exact", "circle", "sliced")
        )
        assert circle == pytest.approx(exact, rel=1e-9, abs=1e-12)
        assert sliced == pytest.approx(circle, rel=1e-9, abs=1e-12)


@given(SEEDS, st.integers(2, 40), st.integers(2, 40), DIMS, st.sampled_from([1.0, 2.0]), COSTS)
@settings(QUICK, max_examples=12)
def test_entropic_bounds_hold_the_exact_value_between_them(seed, n, m, d, p, cost):
    x, y, a, b = cloud(n, d, seed), cloud(m, d, seed + 1), weights(n, seed, True), weights(m, seed)
    want = transport.wasserstein(x, y, p, cost=cost, weights_x=a, weights_y=b)
    for reg in (0.1, 1e-3, None):
        found = transport.entropic(
            x, y, p, cost=cost, weights_x=a, weights_y=b, reg=reg, max_iterations=300
        )
        assert found.lower <= want * (1 + 1e-9)
        assert want <= found.value * (1 + 1e-9)
        assert found.iterations <= 300
        if found.converged:
            assert found.value - found.lower <= 0.05 * found.value * (1 + 1e-12)


def test_entropic_closes_in_as_far_as_it_is_asked_to():
    x, y = cloud(150, 4, 0), cloud(100, 4, 1)
    want = transport.w2(x, y)
    for tolerance in (0.1, 0.02, 0.05):
        found = transport.entropic(x, y, tolerance=tolerance)
        assert found.converged
        assert found.value == pytest.approx(want, rel=tolerance)
        assert found.lower == pytest.approx(want, rel=tolerance)
    assert transport.w2(x, y, method="entropic") == found.value


def test_entropic_says_when_the_bounds_stay_apart():
    x, y = cloud(30, 3, 0), cloud(30, 3, 1)
    assert not transport.entropic(x, y, reg=0.5).converged
    with pytest.warns(UserWarning, match="further apart"):
        transport.w2(x, y, method="entropic", reg=0.5)
    assert transport.entropic(x[:1], x[:1]) == (0, 0, 0, True)


def test_sliced_is_the_distance_itself_on_the_circle_and_pots_elsewhere():
    x, y = cloud(60, 2, 0), cloud(45, 2, 1)
    want = transport.w2(x, y)
    assert transport.w2(x, y, method="sliced", projections=3) == pytest.approx(want, rel=1e-12)
    x, y = cloud(60, 4, 0), cloud(45, 4, 1)
    normal = np.random.Generator(np.random.Philox(7)).standard_normal((40, 4, 2))
    circles = np.linalg.qr(normal)[0]  # those of seed 7
    options = {"projections": 40, "seed": 7}
    for p in (1.0, 2.0):
        got = transport.wasserstein(x, y, p, method="sliced", **options)
        pot = load_pot().sliced_wasserstein_sphere(x, y, p=p, n_projections=40, projections=circles)
        assert got == pytest.approx(2 * np.pi * float(pot), rel=1e-5)
    copies = np.arange(45) % 3 + 1
    twice = transport.w2(x, np.repeat(y, copies, axis=0), method="sliced", **options)
    weighted = transport.w2(x, y, method="sliced", weights_y=copies / copies.sum(), **options)
    assert weighted == pytest.approx(twice, rel=1e-9)
    same = [transport.w2(x, y, method="sliced", projections=50, seed=3) for _ in range(2)]
    assert same[0] == same[1] != transport.w2(x, y, method="sliced", projections=50, seed=4)


def test_large_clouds_get_another_method_with_a_warning(monkeypatch):
    x, y = cloud(30, 3, 0), cloud(20, 3, 1)
    exact = transport.w2(x, y)
    monkeypatch.setattr(distances, "EXACT_PAIRS", 599)
    with pytest.warns(UserWarning, match="entropic") as caught:
        upper = transport.w2(x, y, tolerance=0.1)
    assert caught[0].filename == __file__
    assert upper == transport.entropic(x, y, tolerance=0.1).value >= exact
    monkeypatch.setattr(distances, "ENTROPIC_PAIRS", 599)
    with pytest.warns(UserWarning, match="another metric") as caught:
        sliced = transport.wasserstein(x, y)
    assert caught[0].filename == __file__
    assert sliced == transport.w2(x, y, method="sliced")
    circle = cloud(30, 2, 0), cloud(20, 2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert transport.w2(*circle) == transport.w2(*circle, method="circle")


def test_clouds_that_do_not_fit_in_memory_are_refused_with_an_alternative(monkeypatch):
    x, y = cloud(30, 3, 0), cloud(20, 3, 1)
    monkeypatch.setattr(memory, "free_memory", lambda: 4000.0)
    monkeypatch.setattr(memory, "SMALL", 0.0)
    for method in ("auto", "exact", "entropic"):  # auto chooses by sizes, not by what is free
        with pytest.raises(InputError, match="'sliced'"):
            transport.w2(x, y, method=method)
    with pytest.raises(InputError, match="30 and 20 tokens"):
        transport.plan(x, y)
    assert transport.w2(x, y, method="sliced", projections=10) > 0


def test_map_of_equal_sizes_is_the_assignment_and_otherwise_the_mean_of_the_plan():
    x, y = cloud(9, 3, 0), cloud(9, 3, 1)
    assert np.array_equal(transport.transport_map(x, y), y[transport.assignment(x, y)])
    a, y = weights(9, 3, zeros=True), cloud(14, 3, 1)
    moved = transport.transport_map(x, y, weights_x=a)
    mean = transport.plan(x, y, weights_x=a) @ y
    at = a > 0
    assert np.allclose(moved[at], mean[at] / np.linalg.norm(mean[at], axis=1)[:, None])
    assert np.array_equal(moved[~at], x[~at])
    assert np.allclose(np.linalg.norm(moved, axis=1), 1)


def test_assignment_on_the_circle_is_a_permutation_where_best_cuts_fill_an_interval():
    x, y = arc([np.pi / 2, np.pi / 2 + 0.3, 0.0]), arc([-np.pi / 2, -np.pi / 2, 0.0])
    labels = transport.assignment(x, y, 1.0)
    assert sorted(labels) == [0, 1, 2]
    paid = transport.distance(x, y)[np.arange(3), labels].mean()
    assert paid == pytest.approx(transport.w1(x, y), rel=1e-14)


def test_largest_power_keeps_small_distances():
    x = cloud(5, 3, 0)
    y = x + 1e-12 * cloud(5, 3, 1)
    y /= np.linalg.norm(y, axis=1)[:, None]
    assert 1e-13 < transport.wasserstein(x, y, 20.0) < 2e-12


def softmax(rng: np.random.Generator, n: int, dtype: type) -> np.ndarray:
    """In a low precision, with the error of a sum from left to right."""
    e = np.exp(rng.standard_normal(n)).astype(dtype)
    return e / np.cumsum(e, dtype=dtype)[-1]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_sum_to_one_to_the_rounding_of_their_type(dtype):
    rng = np.random.default_rng(0)
    x, y = cloud(7, 3, 0), cloud(5, 3, 1)
    given = softmax(rng, 7, dtype)
    double = given.astype(float) / given.astype(float).sum()
    for call in (transport.w2, transport.plan, transport.transport_map, transport.entropic):
        want = call(x, y, weights_x=double)
        np.testing.assert_allclose(call(x, y, weights_x=given), want, rtol=1e-12)
    for n in (2, 7, 1000, 100_000):
        given = softmax(rng, n, np.float32)
        taken = distances._weights(list(given), n, "weights_x")
        np.testing.assert_allclose(taken, given / given.sum(dtype=float), rtol=1e-15)
    off = np.full(4, 0.25, dtype) * dtype(1 + 100 * np.finfo(dtype).eps)
    for wrong in (off, -off, np.zeros(4, dtype), off * dtype(np.nan)):
        with pytest.raises(InputError, match="weights_x"):
            transport.w2(x[:4], y, weights_x=wrong)


def test_softmax_of_torch_is_taken_as_weights():
    torch = pytest.importorskip("torch")
    logits = torch.randn(30, generator=torch.Generator().manual_seed(0))
    x, y = cloud(30, 3, 0), cloud(4, 3, 1)
    for dtype in (torch.float32, torch.float16):
        given = torch.softmax(logits, 0).to(dtype)
        want = transport.w2(x, y, weights_x=(given.double() / given.double().sum()).numpy())
        for form in (given, list(given)):
            assert transport.w2(x, y, weights_x=form) == pytest.approx(want, rel=1e-12)
    with pytest.raises(InputError, match="bfloat16"):
        transport.w2(x, y, weights_x=given.bfloat16())


def test_pot_comes_without_the_array_libraries_and_leaves_the_environment_alone():
    script = """
import os, sys
import wflow
assert "ot" not in sys.modules and "scipy.optimize" not in sys.modules
os.environ["POT_BACKEND_DISABLE_JAX"] = ""
from wflow import transport
assert "ot" not in sys.modules
transport.w2([[1.0, 0, 0]], [[0, 1.0, 0], [0, 0, 1.0]])
assert "ot" in sys.modules
assert not {"torch", "tensorflow", "cupy"} & set(sys.modules)
# The libraries that are loaded with it, JAX and scikit-learn, set variables of their own.
assert [name for name in os.environ if name.startswith("POT")] == ["POT_BACKEND_DISABLE_JAX"]
assert os.environ["POT_BACKEND_DISABLE_JAX"] == ""
"""
    subprocess.run([sys.executable, "-c", script], check=True)
