"""Closed forms of extremal energies, against quadrature, known clouds and random measures."""

import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wflow
from wflow.analysis.equilibria import (
    dirac_energy,
    lower_bound,
    maximum,
    minimal_cloud_energy,
    minimum,
    pair_energy,
    sampled_energy,
    uniform_energy,
)
from wflow.sphere import normalise

QUICK = settings(max_examples=60, deadline=None)


def random_symmetric(seed: int, d: int, size: float) -> np.ndarray:
    z = np.random.default_rng(seed).standard_normal((d, d))
    return size * (z + z.T) / 2


def cloud(seed: int, n: int, d: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = seed % 3
    x = rng.standard_normal((n, d))
    if kind == 1:
        x = rng.standard_normal((1, d)) + 0.2 * x
    if kind == 2:
        x = rng.standard_normal((1, d)) * rng.choice([-1, 1], (n, 1)) + 0.1 * x
    return normalise(x)


@pytest.mark.parametrize("d", [2, 3, 5, 64, 768])
@pytest.mark.parametrize("beta", [0.0, 1e-6, 0.3, 9.0, 400.0, -5.0])
def test_uniform_energy_is_the_bessel_formula(beta, d):
    with mpmath.workdps(50):
        b = mpmath.mpf(abs(beta))
        exact = mpmath.hyp0f1(mpmath.mpf(d) / 2, b * b / 4) / 2
        if b:
            k = mpmath.mpf(d) / 2 - 1
            bessel = mpmath.gamma(mpmath.mpf(d) / 2) * (2 / b) ** k * mpmath.besseli(k, b) / 2
            assert abs(bessel / exact - 1) < 1e-20
    assert uniform_energy(beta, d) == pytest.approx(float(exact), rel=1e-12)


@given(
    seed=st.integers(0, 10_000), n=st.integers(1, 12), d=st.sampled_from([2, 3, 5]),
    size=st.floats(0.05, 3), sign=st.sampled_from(["any", "positive", "negative"]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_no_cloud_has_an_energy_outside_of_the_extrema(seed, n, d, size, sign):
    D = random_symmetric(seed, d, size)
    if sign != "any":
        D = (D @ D) * (1 if sign == "positive" else -1)
    energy = wflow.energy(cloud(seed, n, d), D[None])
    assert energy <= maximum(D).energy * (1 + 1e-12)
    if np.linalg.eigvalsh(D)[0] <= 0:
        assert energy >= minimum(D).energy * (1 - 1e-12)


@given(seed=st.integers(0, 10_000), d=st.sampled_from([2, 3, 5]), size=st.floats(0.05, 2))
@QUICK
def test_extrema_are_reached_by_the_clouds_they_name(seed, d, size):
    D = random_symmetric(seed, d, size)
    for extremum in (maximum(D), minimum(D) if np.linalg.eigvalsh(D)[0] <= 0 else maximum(D)):
        v = extremum.support[0]
        x = v[None] if extremum.kind == "dirac" else np.stack([v, -v])
        assert wflow.energy(x, D[None]) == pytest.approx(extremum.energy, rel=1e-12)


def test_kind_of_the_maximum_changes_where_the_two_energies_cross():
    crossing = np.log(np.cosh(2.0))
    assert maximum(np.diag([crossing + 1e-6, 0.1, -2.0])).kind == "dirac"
    found = maximum(np.diag([crossing - 1e-6, 0.1, -2.0]))
    assert found.kind == "pair" and abs(found.support[0, 2]) == pytest.approx(1)
    assert found.energy == pytest.approx(np.cosh(2.0) / 2)


def test_ascent_of_indefinite_heads_finds_nothing_above_the_maximum():
    # Several starts each; the stronger of both branches of the formula must be reached.
    for D in (np.diag([1.0, 0.2, -3.0]), np.diag([2.5, 0.3, -1.0])):
        x0 = np.stack([cloud(3 * s, 24, 3) for s in range(12)])
        run = wflow.solve(
            x0, wflow.heads.Frozen(), heads=D[None], paths=12, t_final=30.0, dt=0.05,
            direction="ascent", scheme="heun", save=wflow.SaveAt(every=100),
        )  # fmt: skip
        best = float(run.energy[:, -1].max())
        assert best <= maximum(D).energy * (1 + 1e-9)
        expected = maximum(D).energy if D[2, 2] == -3 else pair_energy(D, [1, 0, 0])
        assert best >= expected * (1 - 1e-6)


@given(seed=st.integers(0, 1000), d=st.sampled_from([2, 3, 5]), share=st.floats(0, 1))
@QUICK
def test_point_and_pair_energies_are_those_of_clouds(seed, d, share):
    D = random_symmetric(seed, d, 1.0)
    v = normalise(np.random.default_rng(seed).standard_normal(d))
    assert dirac_energy(D, v) == pytest.approx(wflow.energy(v[None], D[None]))
    some = round(share * 20)
    x = np.concatenate([np.tile(v, (some, 1)), np.tile(-v, (20 - some, 1))])
    assert pair_energy(D, v, some / 20) == pytest.approx(wflow.energy(x, D[None]))
    assert pair_energy(D, v, 1.0) == pytest.approx(dirac_energy(D, v))


def test_default_directions_are_leading_eigenvectors():
    D = np.diag([0.5, -2.0, 1.0])
    assert dirac_energy(D) == pytest.approx(np.exp(1) / 2)
    assert pair_energy(D) == pytest.approx(np.cosh(2) / 2)
    assert maximum(2 * np.eye(3)).support.shape == (3, 3)
    assert minimum(2 * np.eye(3)) == (uniform_energy(2, 3), "uniform", None)


def test_mean_energy_of_uniform_samples():
    clouds = np.random.default_rng(0).standard_normal((20_000, 20, 3))
    clouds /= np.linalg.norm(clouds, axis=-1, keepdims=True)
    energies = np.exp(1.5 * clouds @ clouds.swapaxes(1, 2)).mean(axis=(1, 2)) / 2
    error = np.std(energies) / np.sqrt(len(energies))
    assert energies[0] == pytest.approx(wflow.energy(clouds[0], 1.5 * np.eye(3)[None]), rel=1e-12)
    assert abs(np.mean(energies) - sampled_energy(20, 1.5, 3)) < 4 * error
    assert sampled_energy(20, 1.5, 3) - uniform_energy(1.5, 3) > 20 * error


@pytest.mark.parametrize(("n", "d"), [(1, 2), (2, 2), (5, 2), (3, 3), (4, 3), (6, 3), (12, 3),
                                      (5, 4), (8, 4)])  # fmt: skip
def test_descent_reaches_the_optimal_cloud_and_not_less(n, d):
    beta = 2.0
    x0 = np.stack([wflow.tokens.uniform(n, d, seed=s) for s in range(6)])
    run = wflow.solve(
        x0, wflow.heads.Frozen(), heads=beta * np.eye(d)[None], paths=6, t_final=80.0, dt=0.1,
        scheme="heun", save=wflow.SaveAt(every=100),
    )  # fmt: skip
    least = minimal_cloud_energy(n, beta, d)
    final = run.energy[:, -1].values
    assert np.all(final >= least * (1 - 1e-12))
    assert final.min() == pytest.approx(least, rel=1e-6)
    assert least >= uniform_energy(beta, d)


def test_polygons_approach_the_uniform_measure_by_one_bessel_function():
    from scipy.special import iv

    for n in (3, 6, 10):
        excess = minimal_cloud_energy(n, 2.0, 2) - uniform_energy(2.0, 2)
        assert excess == pytest.approx(sum(iv(k * n, 2.0) for k in (1, 2, 3)), rel=1e-7, abs=1e-15)


@given(seed=st.integers(0, 1000), d=st.integers(2, 4), beta=st.floats(0.1, 4))
@settings(max_examples=10, deadline=None)
def test_lower_bound_is_below_every_energy_and_sharp_at_the_minimiser(seed, d, beta):
    bound = lower_bound(cloud(3 * seed, 60, d), beta * np.eye(d))
    assert bound <= uniform_energy(beta, d) * (1 + 1e-12)
    a = 2 * np.pi * np.arange(40) / 40
    ring = np.stack([np.cos(a), np.sin(a)], axis=1)
    assert lower_bound(ring, beta * np.eye(2)) == pytest.approx(uniform_energy(beta, 2))


@pytest.mark.filterwarnings("ignore:the energy leaves")
def test_energies_far_out_of_range_are_inf_and_never_nan():
    D = 800 * np.eye(3)
    assert pair_energy(-D, share=1.0) == 0.0 and pair_energy(D) == np.inf
    assert lower_bound(np.eye(3), D) == -np.inf
    # (1/2) 0F1(; d/2; beta^2/4) with d >> beta, where the Bessel function underflows.
    assert uniform_energy(300.0, 5000) == pytest.approx(0.5 * np.exp(9.0), rel=0.02)


def test_eigenvalue_that_is_zero_but_for_rounding_counts_as_zero():
    least = minimum(np.diag([1.0, 1.0, 1e-17]))
    assert least.kind == "dirac" and least.energy == 0.5
    assert minimum(1e-13 * np.eye(3)).kind == "uniform"


def growth_of_pair(D: np.ndarray, at_v: int, n: int) -> float:
    """Fastest growth, in ascent by softmax, of what disturbs a pair at the first axis (d = 2)."""
    angle = np.where(np.arange(n) < at_v, 0.0, np.pi)

    def turn(p: np.ndarray) -> np.ndarray:
        x = np.stack([np.cos(p), np.sin(p)], axis=1)
        across = np.stack([-np.sin(p), np.cos(p)], axis=1)
        return np.sum(wflow.velocity(x, D[None], direction="ascent") * across, axis=1)

    h = 1e-5
    steps = h * np.eye(n)
    jacobian = np.array([(turn(angle + s) - turn(angle - s)) / (2 * h) for s in steps]).T
    return float(np.linalg.eigvals(jacobian).real.max())


@pytest.mark.parametrize("top", [0.3, 1.0, 2.0, -1.0])
def test_pair_is_stable_in_ascent_below_the_eigenvalue_that_the_docs_say(top):
    # docs/theory/equilibria.md: equal shares need other eigenvalues < |l| tanh |l|.
    limit = abs(top) * np.tanh(abs(top))
    assert growth_of_pair(np.diag([top, limit - 0.01]), 4, 8) < 0
    assert growth_of_pair(np.diag([top, limit + 0.01]), 4, 8) > 0
    # and any shares |log(p/q)| < 2 |l|: one token of n at v holds for n - 1 < e^(2 |l|) only.
    most = int(np.exp(2 * abs(top)))
    assert growth_of_pair(np.diag([top, 0.0]), 1, most + 2) > 0
    assert growth_of_pair(np.diag([top, 0.0]), 1, most + 1) < 1e-9


NEAR = 709.6  # exp is in the range of doubles up to 709.78; the energies are, up to 710


@pytest.mark.parametrize(
    ("energy", "log"),
    [
        (lambda b: dirac_energy(b * np.eye(3)), lambda b: b - np.log(2)),
        (lambda b: pair_energy(b * np.eye(3)), lambda b: b - np.log(4)),
        (lambda b: pair_energy(-b * np.eye(3)), lambda b: b - np.log(4)),
        (lambda b: maximum(b * np.eye(3)).energy, lambda b: b - np.log(2)),
        (lambda b: maximum(-b * np.eye(3)).energy, lambda b: b - np.log(4)),
        (lambda b: uniform_energy(b, 3), lambda b: b - np.log(4 * b)),
        (lambda b: minimum(b * np.eye(3)).energy, lambda b: b - np.log(4 * b)),
        (lambda b: sampled_energy(1, b, 3), lambda b: b - np.log(2)),
        (lambda b: sampled_energy(8, b, 3), lambda b: b + np.log(7 / 32 / b + 1 / 16)),
        (lambda b: minimal_cloud_energy(6, b, 3), lambda b: b - np.log(12)),
        (lambda b: -lower_bound(np.eye(3), b * np.eye(3)), lambda b: b - np.log(6)),
    ],
)
def test_energies_are_finite_where_they_are_in_range_and_beyond_it_inf_with_a_warning(energy, log):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.log(energy(NEAR)) == pytest.approx(log(NEAR), abs=1e-9)
        assert np.log(energy(300.0)) == pytest.approx(log(300.0), abs=1e-9)
    with pytest.warns(RuntimeWarning, match="reported as -?inf") as caught:
        assert energy(800.0) == np.inf
    assert len(caught) == 1 and caught[0].filename == __file__


def test_the_larger_of_two_energies_out_of_range_is_known_by_its_logarithm():
    with pytest.warns(RuntimeWarning, match="reported as inf"):
        assert maximum(np.diag([800.0, -900.0])).kind == "pair"
        assert maximum(np.diag([900.0, -800.0])).kind == "dirac"
