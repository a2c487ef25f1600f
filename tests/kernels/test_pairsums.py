"""The compiled pair sums against plain NumPy in extended precision and against mpmath."""

import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import Twin, by_threads, same, symmetric, unit

from wflow.attention import cloud
from wflow.kernels.evaluate import head_sums

DIMENSIONS = (2, 3, 16, 64)  # with specialised loops, and without


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), d=st.sampled_from(DIMENSIONS), n=st.integers(1, 70),
    heads=st.integers(1, 4), size=st.sampled_from([0.0, 1.0, 20.0, 100.0, 600.0]),
    flow=st.sampled_from(["softmax", "unnormalised", "effective"]),
    direction=st.sampled_from(["descent", "ascent"]), symmetric_pass=st.booleans(),
)  # fmt: skip
def test_every_term_equals_the_numpy_twin(seed, d, n, heads, size, flow, direction, symmetric_pass):
    rng = np.random.default_rng(seed)
    x = unit(rng, n, d)
    D, drift, noise, moved = (symmetric(rng, heads, d, d) for _ in range(4))
    largest = np.abs(np.linalg.eigvalsh(D)).max()
    D *= size / largest
    if flow != "softmax":
        D *= min(1.0, 100 / max(size, 1.0))  # their velocities grow like exp(size)
    sigma2 = rng.uniform(0, 2, heads)
    twin = Twin(x, D, flow=flow, sign=cloud.DIRECTIONS[direction])
    velocity, terms = cloud.evaluate(
        x[None], D[None], drift=drift[None], moved=moved[None], noise=noise[None],
        sigma2=sigma2[None], flow=flow, direction=direction, symmetric=symmetric_pass,
    )  # fmt: skip
    # Sums of both signs are judged against the sum of their sizes.
    scale = np.abs(twin.velocity).max() + max(size, 1e-300) * (flow == "softmax")
    if flow != "softmax":
        scale = max(scale, size * float(np.exp((twin.log_gradient - twin.log_b).max())))
    assert np.abs(velocity[0] - twin.velocity).max() <= 1e-13 * max(scale, 1e-30)
    expected = twin.terms(drift, noise, sigma2, moved)
    energy = float(expected["energy"])
    sizes = {
        "energy": energy,
        "ito_power": energy,
        "weight_power": energy * np.abs(np.linalg.eigvalsh(drift)).max(),
        "backward_work": energy * np.abs(np.linalg.eigvalsh(moved)).max(),
        "martingale": energy * np.abs(np.linalg.eigvalsh(noise)).max(),
        "second_variation": energy * np.abs(np.linalg.eigvalsh(noise)).max() ** 2,
        "dissipation": float(np.exp(twin.log_gradient.max())) * size * float(scale),
        "upper_gradient_sq": float(np.exp(twin.log_b.max())) * float(scale) ** 2,
        "speed_sq": float(scale) ** 2,
    }
    for name, value in expected.items():
        assert abs(terms[name][0] - value) <= 1e-13 * sizes[name], name


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), d=st.sampled_from(DIMENSIONS), n=st.integers(1, 40),
    size=st.sampled_from([1.0, 63.0, 65.0, 500.0, 1e3, 1e4]),
)  # fmt: skip
def test_row_sums_hold_thirteen_digits_for_scores_up_to_1e4(seed, d, n, size):
    rng = np.random.default_rng(seed)
    x, D = unit(rng, n, d), symmetric(rng, 2, d, d)
    D *= size / np.abs(np.linalg.eigvalsh(D)).max()
    sums = head_sums(x[None], D[None], vectors=False)
    log_m = sums.shift[0].astype(np.longdouble) + np.log(sums.m[0].astype(np.longdouble))
    assert np.abs(log_m - Twin(x, D).log_m).max() <= 1e-13
    velocity, _ = cloud.evaluate(x[None], D[None])
    assert np.abs(velocity[0] - Twin(x, D).velocity).max() <= 1e-13 * size


def test_row_sums_agree_with_mpmath_at_scores_of_ten_thousand():
    rng = np.random.default_rng(5)
    x, D = unit(rng, 4, 3), symmetric(rng, 1, 3, 3)
    D *= 1e4 / np.abs(np.linalg.eigvalsh(D)).max()
    sums = head_sums(x[None], D[None], vectors=False)
    with mpmath.workdps(60):
        X, M = mpmath.matrix(x.tolist()), mpmath.matrix(D[0].tolist())
        for i in range(4):
            scores = [(X[i, :] * M * X[j, :].T)[0] for j in range(4)]
            exact = mpmath.log(sum(mpmath.exp(s) for s in scores) / 4)
            found = mpmath.mpf(sums.shift[0, 0, i]) + mpmath.log(mpmath.mpf(sums.m[0, 0, i]))
            assert abs(found - exact) <= 1e-13


def test_masked_scores_beyond_the_range_of_the_exponential_leave_no_trace():
    s = 1024 / np.log2(np.e)
    D = np.array([[[0.0, s], [0.0, 0.0]]])
    velocity, _ = cloud.evaluate(np.eye(2)[None], D[None], causal=True)
    assert np.array_equal(velocity[0, 0], [0.0, 0.0])


@pytest.mark.parametrize("sizes", [(63, 400), (-63, -400), (60, -600), (1, 690), (650, 5)])
@pytest.mark.parametrize("flow", ["softmax", "effective", "unnormalised"])
def test_heads_of_very_different_size_keep_their_digits_together(sizes, flow):
    rng = np.random.default_rng(0)
    x = unit(rng, 30, 3)
    x[:, 0] = np.abs(x[:, 0]) + 1
    x /= np.linalg.norm(x, axis=1)[:, None]
    D = np.array([size * np.eye(3) for size in sizes])
    for symmetric_pass in (False, True):
        velocity, terms = cloud.evaluate(x[None], D[None], flow=flow, symmetric=symmetric_pass)
        twin = Twin(x, D, flow=flow)
        largest = np.abs(twin.velocity).max()
        if largest < 1e300:
            assert np.abs(velocity[0] - twin.velocity).max() <= 1e-11 * largest
        for name, value in twin.terms().items():
            if abs(value) < 1e300:
                assert terms[name][0] == pytest.approx(float(value), rel=1e-11), name


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), d=st.sampled_from((2, 3, 16)), n=st.integers(1, 40),
    size=st.sampled_from([1.0, 300.0, 3000.0]), causal=st.booleans(),
)  # fmt: skip
def test_general_heads_and_causal_mask_equal_the_numpy_twin(seed, d, n, size, causal):
    rng = np.random.default_rng(seed)
    x, D, V = unit(rng, n, d), size * rng.normal(size=(3, d, d)), rng.normal(size=(3, d, d))
    velocity, _ = cloud.evaluate(x[None], D[None], values=V[None], causal=causal)
    twin = Twin(x, D, values=V, sign=1.0, causal=causal)
    assert np.abs(velocity[0] - twin.velocity).max() <= 1e-13 * 10 * d


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), d=st.sampled_from(DIMENSIONS), n=st.integers(1, 70),
    size=st.sampled_from([1.0, 8.0, 200.0]),
)  # fmt: skip
def test_single_precision_is_within_1e_5_of_double(seed, d, n, size):
    rng = np.random.default_rng(seed)
    x = unit(rng, n, d).astype(np.float32).astype(float)
    D = symmetric(rng, 3, d, d)
    D = (D * size / np.abs(np.linalg.eigvalsh(D)).max()).astype(np.float32).astype(float)
    double, exact = cloud.evaluate(x[None], D[None])
    single, rough = cloud.evaluate(x[None].astype("f4"), D[None].astype("f4"))
    assert single.dtype == np.float32
    assert np.abs(single - double).max() <= 1e-5 * size
    if size < 80:
        for name in ("energy", "upper_gradient_sq", "dissipation"):
            scale = abs(exact["energy"][0]) * max(1.0, size**2)
            assert abs(rough[name][0] - exact[name][0]) <= 1e-5 * scale, name


@pytest.mark.parametrize(("n", "heads"), [(129, 1), (200, 9), (321, 3), (611, 19)])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_using_each_kernel_value_twice_changes_nothing(n, heads, dtype, cases):
    """Several chunks, strips, groups of heads, with and without a stored table of pairs."""
    rng = np.random.default_rng(n)
    for d in cases((2, 3) if dtype == "f8" else (3,), range(2, 10)):  # compiled for each d
        x = unit(rng, 2, n, d).astype(dtype)
        D, drift, noise = symmetric(rng, 3, 2, heads, d, d).astype(dtype)
        D[1, heads // 2] *= 200  # this head needs a shift
        options = {"drift": drift, "noise": noise, "sigma2": np.ones((2, heads), dtype)}
        plain, terms = cloud.evaluate(x, D, **options)
        twice, same = cloud.evaluate(x, D, **options, symmetric=True)
        eps = float(np.finfo(dtype).eps)
        twin = Twin(x[0], D[0]).velocity if n == 129 else plain[0]
        assert np.abs(plain[0] - twin).max() <= 200 * eps * np.abs(plain).max()
        assert np.abs(twice - plain).max() <= 200 * eps * np.abs(plain).max()
        for name in ("energy", "ito_power", "upper_gradient_sq", "max_score"):
            assert same[name][0] == pytest.approx(terms[name][0], rel=100 * eps), name
            assert same[name][1] == pytest.approx(terms[name][1], rel=1e4 * eps), name


def test_heads_in_several_batches_and_pairs_in_strips_change_nothing():
    """9,000 tokens make eight strips, whose sums of 26 heads are more than is kept at a time."""
    rng = np.random.default_rng(1)
    x, D = unit(rng, 1, 9000, 3), symmetric(rng, 1, 26, 3, 3)
    D[0, 3] *= 100 / np.abs(np.linalg.eigvalsh(D[0, 3])).max()  # needs a shift
    options = {"drift": D, "sigma2": np.ones((1, 26))}
    one_way, terms = cloud.evaluate(x, D, **options)
    both_ways, same = cloud.evaluate(x, D, **options, symmetric=True)
    assert np.abs(both_ways - one_way).max() <= 1e-13 * np.abs(one_way).max()
    for name in ("energy", "ito_power", "weight_power", "upper_gradient_sq", "max_score"):
        assert same[name][0] == pytest.approx(terms[name][0], rel=1e-12), name


@pytest.mark.parametrize("n", [1, 7, 8, 9, 200, 2049, 4100])
def test_any_number_of_tokens_fills_its_blocks_and_chunks(n):
    rng = np.random.default_rng(n)
    x, D = unit(rng, n, 3), symmetric(rng, 1, 3, 3)
    velocity, terms = cloud.evaluate(x[None], D[None])
    U = np.exp(x @ D[0] @ x.T)
    assert terms["energy"][0] == pytest.approx(U.sum() / (2 * n * n), rel=1e-13)
    mean = U @ x / U.sum(1)[:, None] @ D[0]
    mean -= (mean * x).sum(1)[:, None] * x
    assert np.allclose(velocity[0], -mean, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("paths", "n"), [(3, 61), (1, 700)])  # the second has two strips of pairs
@pytest.mark.parametrize("symmetric_pass", [False, True])
def test_number_of_threads_does_not_change_a_bit(paths, n, symmetric_pass):
    rng = np.random.default_rng(1)
    x, D = unit(rng, paths, n, 3), symmetric(rng, paths, 5, 3, 3)
    options = {"drift": D, "sigma2": np.ones(D.shape[:2]), "symmetric": symmetric_pass}
    (v, terms), *more = by_threads(lambda: cloud.evaluate(x, D, **options))
    for other, table in more:
        assert np.array_equal(other, v) and same(table.values(), terms.values())


def test_paths_do_not_influence_each_other():
    rng = np.random.default_rng(2)
    x, D = unit(rng, 4, 30, 3), symmetric(rng, 4, 2, 3, 3)
    for symmetric_pass in (False, True):
        together, _ = cloud.evaluate(x, D, symmetric=symmetric_pass)
        for p in range(4):
            alone, _ = cloud.evaluate(x[p : p + 1], D[p : p + 1], symmetric=symmetric_pass)
            assert np.array_equal(alone[0], together[p])


@pytest.mark.parametrize(("dtype", "size"), [("f8", 20.0), ("f4", 8.0)])
@pytest.mark.parametrize("symmetric_pass", [True, False])
def test_loops_with_and_without_shifts_give_the_same_bits(dtype, size, symmetric_pass):
    """Small by the sum of squares of all entries, not by the largest: the loops without."""
    x = unit(np.random.default_rng(0), 2, 40, 3).astype(dtype)
    D = np.stack([size * np.eye(3), 1e3 * np.eye(3)])[:, None].astype(dtype)
    alone, terms = cloud.evaluate(x[:1], D[:1], symmetric=symmetric_pass)
    together, all_terms = cloud.evaluate(x, D, symmetric=symmetric_pass)  # one path needs shifts
    assert alone.tobytes() == together[:1].tobytes()
    for name, values in terms.items():
        assert values[0] == all_terms[name][0], name
    D[0, 0, 0, 0] = np.nan
    assert np.isnan(cloud.evaluate(x[:1], D[:1], symmetric=symmetric_pass)[0]).all()


def test_three_threads_give_the_bits_of_one():
    """In a process of its own: the number of threads there can be is fixed at the start."""
    script = """
import hashlib, sys
import numba, numpy as np
from wflow import tokens
from wflow.kernels.evaluate import evaluate
for d, n in ((3, 150), (3, 700), (12, 60)):
    x = tokens.uniform(n, d, seed=0)[None].repeat(3, 0)
    D = np.random.default_rng(0).normal(size=(3, 7, d, d)); D = D + D.swapaxes(2, 3)
    found = set()
    for threads in (1, 2, 3):
        numba.set_num_threads(threads)
        v, terms = evaluate(x, D, symmetric=True)
        found.add(hashlib.sha256(v.tobytes() + terms["energy"].tobytes()).hexdigest())
    assert len(found) == 1, (d, n)
"""
    environment = os.environ | {"NUMBA_NUM_THREADS": "3"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


@pytest.mark.parametrize("d", [3, 12])
@pytest.mark.parametrize("form", ["any", "symmetric"])
def test_heads_held_once_give_the_bits_of_copies(d, form):
    """As the heads of `Frozen` are held for all paths, with values of their own and without."""
    rng = np.random.default_rng(d)
    x, D = unit(rng, 5, 40, d), symmetric(rng, 1, 3, d, d)
    D = D if form == "symmetric" else rng.normal(size=D.shape)
    once = np.lib.stride_tricks.as_strided(D, (5, *D.shape[1:]), (0, *D.strides[1:]))
    for more in ({}, {"values": np.repeat(rng.normal(size=D.shape), 5, axis=0)}):
        how = more | {"symmetric": form == "symmetric"}
        v, terms = cloud.evaluate(x, once, **how)
        expected, others = cloud.evaluate(x, np.repeat(D, 5, axis=0), **how)
        assert np.array_equal(v, expected) and same(terms.values(), others.values())
