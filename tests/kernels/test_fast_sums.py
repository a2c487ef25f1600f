"""The fast sums on circle and sphere: equal to the exact ones within the error that they report."""

import sys
from pathlib import Path

import numpy as np
import pytest
from harmonic_values import all_harmonics
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import Twin, by_threads, same, symmetric, unit

from wflow.kernels.harmonic import fast, series
from wflow.kernels.harmonic.fast import choose, fast_sums, sources
from wflow.kernels.harmonic.laplacian import fast_laplacian
from wflow.kernels.harmonic.series import (
    LARGEST_DEGREE,
    choose_degrees,
    moments,
    plan,
    relative_tails,
    source_factor,
)
from wflow.kernels.pairs.diffusion import energy_laplacian
from wflow.kernels.pairs.fused import fused_sums
from wflow.kernels.pairs.headsums import EFFECTIVE, SOFTMAX, TERMS, UNNORMALISED
from wflow.sphere.harmonics import count

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import random_clouds

problems = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1), "cloud": st.sampled_from(random_clouds.CLOUDS),
        "head": st.sampled_from(random_clouds.HEADS), "d": st.sampled_from([2, 3]),
        "n": st.integers(1, 300), "heads": st.integers(1, 6),
        "norm": st.sampled_from([0.1, 1.0, 4.0, 9.0, 25.0, 90.0]),
    }
)  # fmt: skip


def problem(seed, cloud, head, d, n, heads, norm):
    """Return x, D, drift, noise, sigma2 with a leading axis of one path."""
    rng = np.random.default_rng(seed)
    x = random_clouds.tokens(rng, cloud, n, d)
    D = random_clouds.heads(rng, head, heads, d, norm)
    drift, noise = symmetric(rng, 2, heads, d, d)
    return tuple(a[None] for a in (x, D, drift, noise, rng.uniform(0.1, 2, heads)))


def absent(D):
    return np.empty((len(D), 0, *D.shape[2:]))


def at_rest(x, D, flow=SOFTMAX, sign=-1.0, *, value=None, sigma2=None):
    """Arguments of the sums for heads that do not move, with the Itô term if sigma2 is given."""
    sigma2 = np.empty((len(D), 0)) if sigma2 is None else np.full(D.shape[:2], sigma2)
    none = absent(D)
    return x, D, D if value is None else value, none, none, sigma2, flow, sign


def exact_sums(arguments):
    return fused_sums(*arguments, False, False)


@settings(max_examples=60, deadline=None)
@given(case=problems, flow=st.sampled_from([SOFTMAX, UNNORMALISED, EFFECTIVE]),
       sign=st.sampled_from([-1.0, 1.0]), tolerance=st.sampled_from([1e-12, 1e-10, 1e-5]),
       law=st.sampled_from(["frozen", "drift", "noise"]))  # fmt: skip
def test_velocities_and_terms_are_the_exact_ones_within_the_estimate(
    case, flow, sign, tolerance, law
):
    x, D, drift, noise, sigma2 = problem(**case)
    if law != "noise":
        noise, sigma2 = absent(D), sigma2[:, :0]
    else:
        drift = np.concatenate([drift, drift[:, ::-1]], axis=1)  # and last moves
    if law == "frozen":
        drift = absent(D)
    v, terms, error = fast_sums(x, D, D, drift, noise, sigma2, flow, sign, tolerance)
    exact, table = fused_sums(x, D, D, drift, noise, sigma2, flow, sign, False, False)
    assert error[0] <= max(tolerance, 1e-13)
    slack = error[0] + 1e-14 * (1 + case["norm"])  # the exact sums round too
    norm = np.linalg.norm(D[0], 2, axis=(1, 2)).mean()
    # gbar is off by |D_h| m_h error in every head, b by error.
    reach = norm if flow == SOFTMAX else _largest_gradient(x[0], D[0], flow)
    far = 4 * reach * slack
    assert np.linalg.norm(v - exact, axis=-1).max() <= far
    found, true = (dict(zip(TERMS, row[0], strict=True)) for row in (terms, table))
    assert found["max_score"] == true["max_score"]
    assert found["energy"] == pytest.approx(true["energy"], rel=slack)
    assert found["ito_power"] == pytest.approx(true["ito_power"], rel=2 * slack)
    pairs = true["energy"] * slack
    largest = np.linalg.norm(noise[0], 2, axis=(1, 2)).max(initial=0.0) if noise.size else 0.0
    gap = abs(found["second_variation"] - true["second_variation"])
    assert gap <= 2 * largest**2 * pairs * case["heads"]
    matrices = {"weight_power": drift, "backward_work": drift, "martingale": noise}
    for name, matrix in matrices.items():
        size = np.linalg.norm(matrix[0], 2, axis=(1, 2)).max(initial=0.0)
        assert abs(found[name] - true[name]) <= size * pairs * case["heads"]
    assert abs(found["max_speed"] - true["max_speed"]) <= far
    gradient = _largest_gradient(x[0], D[0], UNNORMALISED)
    assert abs(found["dissipation"] - true["dissipation"]) <= 2 * gradient * far


def _largest_gradient(x, D, flow):
    """Return the bound of |gbar|, or of |gbar|/b: mean of |D_h| m_h, over the tokens."""
    twin = Twin(x, D)
    m = np.exp(twin.log_m.astype(float))
    bound = (np.linalg.norm(D, 2, axis=(1, 2))[:, None] * m).mean(axis=0)
    if flow == EFFECTIVE:
        bound = bound * np.exp(-twin.log_b.astype(float))
    return float(bound.max())


@settings(max_examples=25, deadline=None)
@given(case=problems, tolerance=st.sampled_from([1e-11, 1e-6]))
def test_general_heads_and_values_move_as_in_the_exact_sums(case, tolerance):
    x, D, value, *_ = problem(**case)
    value = value + np.triu(value)  # no head is tied, none is symmetric
    arguments = at_rest(x, D, SOFTMAX, 1.0, value=value)
    v, _, error = fast_sums(*arguments, tolerance)
    exact, _ = exact_sums(arguments)
    norm = np.linalg.norm(value[0], 2, axis=(1, 2)).mean()
    slack = error[0] + 1e-14 * (1 + case["norm"])
    assert np.linalg.norm(v - exact, axis=-1).max() <= 2 * norm * slack


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("heads", [1, 7])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("law", ["frozen", "noise"])
def test_one_series_of_all_heads_gives_the_unnormalised_velocity(monkeypatch, d, heads, tied, law):
    x, D, *moving = problem(1, "uniform", "symmetric", d, 701, heads, 4.0)
    x[0, 0] = np.eye(d)[-1]  # a pole of the harmonics
    arguments = at_rest(x, D, UNNORMALISED, value=D if tied else D + np.triu(D))
    if law == "noise":
        arguments = (*arguments[:3], *moving, *arguments[6:])
    evaluated = []
    inner = fast.evaluate_tokens

    def spy(*given):
        evaluated.append(len(given[3].score))
        return inner(*given)

    monkeypatch.setattr(fast, "evaluate_tokens", spy)
    exact, table = exact_sums(arguments)
    norms = np.linalg.norm(arguments[2][0], 2, axis=(1, 2)).mean()
    largest = np.exp(Twin(x[0], D[0]).log_m.astype(float)).max()
    for tolerance in (1e-11, 1e-8, 1e-4):
        v, terms, error = fast_sums(*arguments, tolerance)
        assert error[0] <= tolerance
        assert np.linalg.norm(v - exact, axis=-1).max() <= norms * largest * error[0]
        assert terms[0, 0] == pytest.approx(table[0, 0], rel=error[0])
        assert terms == pytest.approx(table, rel=10 * tolerance, abs=tolerance)
    assert evaluated == [1, 1, 1]


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("flow", [SOFTMAX, UNNORMALISED])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_values_that_are_not_finite_end_as_in_the_exact_sums(d, flow, number):
    x, D, *_ = problem(2, "uniform", "symmetric", d, 300, 3, 2.0)
    value = D.copy()
    value[0, 1, 0, 1] = number
    arguments = at_rest(x, D, flow, value=value)
    with np.errstate(invalid="ignore"):
        for v in (fast_sums(*arguments, 1e-10)[0], exact_sums(arguments)[0]):
            assert not np.isfinite(v).all(axis=-1).any()


def test_estimate_is_never_below_the_true_error(cases):
    smallest = np.inf
    for seed in range(cases(50, 300)):
        found = random_clouds.errors(random_clouds.case(seed))
        smallest = min(smallest, *found)
        assert min(found) >= 1.0, (seed, found)
    assert smallest < 10.0  # an estimate that nothing comes near would say little


@pytest.mark.parametrize("d", [2, 3])
def test_nodes_have_the_moments_of_the_tokens(d):
    x = random_clouds.tokens(np.random.default_rng(0), "cross-polytope", 900, d)
    stand = sources(x, 11)
    assert len(stand.points) < 150
    nodes = np.concatenate([stand.points, -stand.points])
    mass = np.concatenate([stand.mass[0] + stand.mass[1], stand.mass[0] - stand.mass[1]]) / 2
    assert stand.mass[2].sum() == pytest.approx(np.abs(mass).sum())
    table = fast.table_of(d)
    theirs = moments(x, np.full(900, 1 / 900), 11, table)
    assert len(theirs) == count(11, d)
    assert moments(nodes, mass, 11, table) == pytest.approx(theirs, abs=1e-13)
    assert mass.sum() == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 10, LARGEST_DEGREE[3] + 2])
def test_moments_are_sums_of_harmonics(d, degree):
    rng = np.random.default_rng(degree)
    x = unit(rng, 200, d)
    x[:2] = np.eye(d)[-1], -np.eye(d)[-1]
    x[2:50, -1] *= 1e-3  # near the equator
    x /= np.linalg.norm(x, axis=1)[:, None]
    mass = rng.normal(size=200)
    expected = mass @ all_harmonics(x, degree)
    found = moments(x, mass, degree, fast.table_of(d))
    assert np.abs(found - expected).max() <= 1e-15 * (degree + 10) * np.abs(mass).sum()


def recorded_redo(monkeypatch):
    """Collects how many (token, head) were summed exactly in every evaluation."""
    counts = []
    evaluate = fast.evaluate_tokens

    def record(*arguments):
        result = evaluate(*arguments)
        counts.append(result[3])
        return result

    monkeypatch.setattr(fast, "evaluate_tokens", record)
    return counts


def test_tokens_that_miss_the_tolerance_are_summed_exactly(monkeypatch):
    counts = recorded_redo(monkeypatch)
    rng = np.random.default_rng(1)
    x = random_clouds.tokens(rng, "uniform", 1500, 3)
    # m is e^9/18 along the first axis and about 1 across it, where rounding is 1e-14 e^9.
    D = np.stack([np.diag([9.0, 0.1, -0.1]), np.eye(3)])
    x, D = x[None], D[None]
    arguments = (x, D, D, D, *at_rest(x, D, sigma2=2.0)[4:])
    v, terms, error = fast_sums(*arguments, 1e-10)
    assert 0 < counts[0] < x.shape[1]
    exact, table = exact_sums(arguments)
    assert error[0] <= 1e-10
    assert np.abs(v - exact).max() <= 2 * 9 * error[0]
    assert terms[0, :3] == pytest.approx(table[0, :3], rel=1e-10)


def test_heads_beyond_any_series_are_summed_exactly(monkeypatch):
    counts = recorded_redo(monkeypatch)
    x = unit(np.random.default_rng(2), 1, 130, 3)
    D = np.stack([np.eye(3), 80.0 * np.eye(3), np.diag([200.0, 1.0, -5.0])])[None]
    arguments = (x, D, D, D, *at_rest(x, D, sigma2=2.0)[4:])
    v, terms, error = fast_sums(*arguments, 1e-10)
    exact, table = exact_sums(arguments)
    assert counts == [2 * 130]
    assert np.abs(v - exact).max() <= 1e-11
    assert terms == pytest.approx(table, rel=1e-11)
    assert error[0] <= 1e-10


@pytest.mark.parametrize("d", [2, 3])
def test_one_token_and_no_interaction_need_no_special_care(d):
    rng = np.random.default_rng(3)
    x = unit(rng, 2, 1, d)
    D = np.stack([np.zeros((2, d, d)), symmetric(rng, 2, d, d)])
    arguments = at_rest(x, D, SOFTMAX, 1.0, sigma2=1.0)
    v, terms, error = fast_sums(*arguments, 1e-12)
    exact, _ = exact_sums(arguments)
    assert np.abs(v - exact).max() <= 1e-11 and np.abs(v[0]).max() == 0
    assert terms[0, 0] == pytest.approx(0.5, rel=1e-14)
    assert np.all(error <= 1e-12)


def test_what_is_not_finite_ends_as_nan():
    x = unit(np.random.default_rng(4), 3, 5000, 3)
    D = np.broadcast_to(np.eye(3), (3, 2, 3, 3)).copy()
    x[0, 17, 1] = np.nan
    D[1, 1, 0, 0] = np.inf
    v, terms, error = fast_sums(*at_rest(x, D), 1e-8)
    for found in (v, terms, error):
        assert np.isnan(found[:2]).all() and np.isfinite(found[2]).all()
    assert error[2] <= 1e-8


@pytest.mark.parametrize("flow", [SOFTMAX, UNNORMALISED])
def test_threads_and_batches_do_not_change_a_bit(flow):
    rng = np.random.default_rng(5)
    x, D, f = unit(rng, 2, 3000, 3), symmetric(rng, 2, 5, 3, 3), symmetric(rng, 2, 5, 3, 3)
    arguments = (x, D, D, f, f, np.full((2, 5), 2.0))
    found, *more = by_threads(lambda: fast_sums(*arguments, flow, -1.0, 1e-10))
    alone = [fast_sums(*(a[p : p + 1] for a in arguments), flow, -1.0, 1e-10) for p in range(2)]
    more.append(tuple(map(np.concatenate, zip(*alone, strict=True))))
    assert all(same(other, found) for other in more)


def test_single_precision_tokens_are_summed_in_double_on_the_sphere():
    rng = np.random.default_rng(6)
    x, D = unit(rng, 1, 700, 3).astype("f4"), symmetric(rng, 1, 3, 3, 3).astype("f4")
    *arrays, flow, sign = at_rest(x, D, sigma2=1.0)
    v, terms, error = fast_sums(*(a.astype("f4") for a in arrays), flow, sign, 1e-10)
    wide = x.astype(float)
    wide /= np.linalg.norm(wide, axis=-1, keepdims=True)
    exact, table = exact_sums(at_rest(wide, D.astype(float), sigma2=1.0))
    assert v.dtype == np.float32 and terms.dtype == np.float64
    assert v == pytest.approx(exact, abs=1e-6)
    assert terms == pytest.approx(table, rel=1e-9, abs=1e-9) and error[0] <= 1e-10


def test_tokens_off_the_sphere_are_not_passed_over():
    """The estimate grows with | |x|^2 - 1 |, so that such tokens are summed exactly."""
    x = unit(np.random.default_rng(7), 1, 60, 3)
    x[0, 5] *= 1 + 1e-7
    arguments = at_rest(x, 2.0 * np.eye(3)[None, None], UNNORMALISED, 1.0)
    v, terms, error = fast_sums(*arguments, 1e-10)
    exact, table = exact_sums(arguments)
    assert error[0] <= 1e-10
    assert v == pytest.approx(exact, rel=1e-9, abs=1e-10)
    assert terms[0, 0] == pytest.approx(table[0, 0], rel=1e-10)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("tolerance", [1e-12, 1e-6, 1e-3])
def test_degree_is_the_smallest_that_meets_the_bound(d, tolerance):
    rho = np.array([0.0, 0.5, 2.0, 6.0])
    low = -rho / 3
    degrees, _, tails = choose_degrees(rho, low, tolerance, d, 40)
    for degree, r, bound, kept in zip(degrees, rho, low, tails, strict=True):
        tail = relative_tails(r, d)
        target = max(0.5 * tolerance * np.exp(bound - r), (40 + 8 * r) * 2.0**-53)
        assert kept == tail[degree] and source_factor(degree, d) * tail[degree] <= target
        assert degree == 0 or source_factor(degree - 1, d) * tail[degree - 1] > target
    assert np.all(np.diff(degrees) >= 0) and degrees[0] == 0


@pytest.mark.parametrize("d", [2, 3])
def test_bounds_of_a_degree_hold_everywhere_and_are_reached_somewhere(d):
    rng = np.random.default_rng(0)
    x = unit(rng, 4000, d)
    for degree in (0, 1, 5):
        number = count(degree, d)
        first = count(degree - 1, d) if degree else 0
        c = np.zeros((1, number, 3))
        c[0, first:] = rng.normal(size=(number - first, 3))
        values = all_harmonics(x, degree) @ c[0]
        bound = series.sizes_by_degree(c, d)[0]
        assert np.all(bound[:-1] == 0)
        assert np.linalg.norm(values, axis=1).max() <= bound[-1] * (1 + 1e-12)
        # A zonal function is as large as the bound at its pole.
        zonal = np.zeros((1, number, 1))
        pole = all_harmonics(x[:1], degree)[0]
        zonal[0, first:, 0] = pole[first:]
        found = pole @ zonal[0, :, 0]
        assert found == pytest.approx(series.sizes_by_degree(zonal, d)[0, -1], rel=1e-12)


def test_bounds_of_a_gradient_hold_everywhere_and_are_reached_somewhere():
    rng = np.random.default_rng(1)
    x = unit(rng, 2000, 3)
    tangent = np.cross(x, unit(rng, 2000, 3))
    tangent /= np.linalg.norm(tangent, axis=1)[:, None]
    step = 1e-5
    ahead, behind = (np.cos(step) * x + s * np.sin(step) * tangent for s in (1, -1))
    for degree in (1, 2, 7):
        first, number = count(degree - 1, 3), count(degree, 3)
        rates = (all_harmonics(ahead, degree) - all_harmonics(behind, degree)).T / (2 * step)
        c = np.zeros((1, number))
        c[0, first:] = rng.normal(size=number - first)
        bound = series.slopes_by_degree(c)[0, -1]
        assert np.abs(c[0] @ rates).max() <= bound * (1 + 1e-6)
        c[0, first:] = rates[first:, 0]
        assert c[0] @ rates[:, 0] == pytest.approx(series.slopes_by_degree(c)[0, -1], rel=1e-6)


@pytest.mark.parametrize("d", [2, 3])
def test_a_series_is_shorter_than_its_bound_and_no_longer_than_it_must_be(d):
    x = random_clouds.tokens(np.random.default_rng(2), "uniform", 3000, d)
    D = symmetric(np.random.default_rng(3), 4, d, d)
    chosen = plan(x, D, 1e-8)
    found = fast.expand_heads(x, D, chosen, 1e-8, 1)
    coefficient = fast.expanded(x, D, chosen, 1e-8, 1).coefficient
    assert 0 < found.degree < chosen.degrees.max()
    room = series.SPENT * 1e-8 * np.exp(chosen.low)
    assert np.all(found.error <= room)
    below = count(found.degree - 1, d)
    longest = found.order[0]
    last = coefficient[longest, below : count(found.degree, d)]
    sizes = np.sqrt(np.square(last).sum(axis=0) * len(last) / series.AREA[d])
    assert found.error[longest] + max(sizes[0], np.linalg.norm(sizes[1:])) > room[longest]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), norm=st.floats(0.05, 8.0), d=st.sampled_from([2, 3]))
def test_sums_at_the_edge_of_the_chosen_degree_keep_the_tolerance(seed, norm, d):
    """One token on the eigenvector of the largest score, where every term of the tail adds up."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.eye(d)[:1], random_clouds.tokens(rng, "uniform", 9, d)])[None]
    D = np.diag([norm, -norm, 0.3 * norm][:d])[None, None]
    arguments = at_rest(x, D, SOFTMAX, 1.0, sigma2=1.0)
    exact, table = exact_sums(arguments)
    for tolerance in (1e-11, 1e-7, 1e-3):
        v, terms, error = fast_sums(*arguments, tolerance)
        assert error[0] <= tolerance
        assert np.linalg.norm(v - exact, axis=-1).max() <= 2 * norm * error[0]
        assert terms[0, 0] == pytest.approx(table[0, 0], rel=error[0])


def test_choice_takes_the_series_for_many_tokens_and_weak_heads():
    rng = np.random.default_rng(9)
    weak, strong = symmetric(rng, 1, 8, 3, 3), np.diag([60.0, 0.0, -60.0]) * np.ones((1, 8, 1, 1))
    for n, taken in ((100, False), (256, False), (20_000, True)):
        x = unit(rng, 1, n, 3)
        assert choose(x, weak, 1e-10, True).tolist() == [taken]
        assert choose(x, strong, 1e-10, True).tolist() == [False]
    both = choose(np.repeat(x, 2, axis=0), np.concatenate([weak, strong]), 1e-10, True)
    assert both.tolist() == [True, False]
    # m is large wherever tokens are, which only the sample can know.
    concentrated = 12.0 * np.eye(3) * np.ones((1, 8, 1, 1))
    assert choose(x, concentrated, 1e-10, True).tolist() == [True]
    assert not choose(unit(rng, 1, 5000, 4), np.zeros((1, 8, 4, 4)), 1e-10, True).any()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cloud=st.sampled_from(random_clouds.CLOUDS),
       d=st.sampled_from([2, 3]), n=st.integers(1, 300), heads=st.integers(1, 5),
       norm=st.sampled_from([0.0, 0.3, 3.0, 8.0, 30.0, 90.0]),
       tolerance=st.sampled_from([1e-11, 1e-6]))  # fmt: skip
def test_the_laplacian_is_the_exact_one(seed, cloud, d, n, heads, norm, tolerance):
    rng = np.random.default_rng(seed)
    x = random_clouds.tokens(rng, cloud, n, d)[None]
    D = random_clouds.heads(rng, "symmetric", heads, d, norm)[None]
    laplacian, error = fast_laplacian(x, D, tolerance)
    true = energy_laplacian(x, D)
    assert error[0] <= tolerance
    slack = error[0] + 2e-14 * (1 + norm)
    norms = np.linalg.norm(D[0], 2, axis=(1, 2))
    U = np.exp(np.einsum("ia,hab,jb->hij", x[0], D[0], x[0]))
    m = U.mean(axis=2)
    # The terms U_ii count too, with weight 1/n, and round in both.
    itself = np.einsum("hii->h", U) / n**2
    reach = 2 * norms**2 + d * norms
    assert abs(laplacian[0] - true[0]) <= slack * float((reach * (m.mean(axis=1) + itself)).mean())


def test_laplacians_of_paths_are_independent_and_nan_where_a_token_is():
    rng = np.random.default_rng(0)
    x, D = unit(rng, 3, 2000, 3), symmetric(rng, 3, 4, 3, 3)
    x[1, 3] = np.nan
    laplacian, error = fast_laplacian(x, D, 1e-10)
    assert np.isnan(laplacian[1]) and np.isnan(error[1])
    for p in (0, 2):
        alone, _ = fast_laplacian(x[p : p + 1], D[p : p + 1], 1e-10)
        assert alone[0] == laplacian[p]
        true = energy_laplacian(x[p : p + 1], D[p : p + 1])
        assert laplacian[p] == pytest.approx(true[0], rel=1e-9)
