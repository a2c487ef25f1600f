"""The fast sums by torch: the series of Numba to rounding, the exact sums to the tolerance."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_torch_sums import make
from twin import same, unit

import wflow
from wflow import InputError
from wflow.kernels.evaluate import Sums, head_sums
from wflow.kernels.harmonic.fast import fast_sums
from wflow.kernels.harmonic.laplacian import fast_laplacian
from wflow.kernels.pairs.headsums import EFFECTIVE, SOFTMAX, TERMS, UNNORMALISED

torch = pytest.importorskip("torch")
from wflow.kernels.torch import series, sums, tiles  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import random_clouds  # noqa: E402

FAST = Sums("fast", 1e-10, "torch", "cpu")
# Sizes of heads of which some have series of several degrees, and some none.
SIZES = [[[0.5, 3.0, 8.0]], [[0.5, 30.0, 90.0]], [[1.0, 2.0, 1e4]]]


def close(found, expected, tolerance):
    """Velocities and terms agree relative to their largest entries and to the energy."""
    (v, terms), (u, table) = found[:2], expected[:2]
    assert v.dtype == u.dtype and np.abs(v - u).max() <= tolerance * np.abs(u).max()
    scale = np.maximum(np.abs(table), 10 * table[:, :1])
    wrong = np.abs(terms - table) > tolerance * scale
    assert not wrong.any(), [TERMS[k] for k in np.unique(np.nonzero(wrong)[1])]


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("n", [60, 1300])  # as sources the tokens themselves, and nodes
@pytest.mark.parametrize("flow", [SOFTMAX, EFFECTIVE])
def test_series_equal_those_of_numba_to_rounding(d, n, flow):
    arguments = make(n, 3, n, d, 3, [[0.1, 2.0, 4.0], [1.0, 2.0, 3.0], [4.0, 2.0, 0.1]])
    expected = fast_sums(*arguments, flow, -1.0, 1e-10)
    found = series.series_sums(*arguments, flow, -1.0, 1e-10, "cpu")
    close(found, expected, 1e-12)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), d=st.sampled_from([2, 3]), n=st.sampled_from([1, 40, 700]),
    size=st.sampled_from(SIZES), flow=st.sampled_from([SOFTMAX, UNNORMALISED, EFFECTIVE]),
    general=st.booleans(), ledger=st.booleans(), tolerance=st.sampled_from([1e-12, 1e-10, 1e-5]),
)  # fmt: skip
def test_velocities_and_terms_are_the_exact_ones_to_the_tolerance(
    seed, d, n, size, flow, general, ledger, tolerance
):
    if flow != SOFTMAX:
        size, general = [[0.5, 3.0, 8.0]], False  # no term overflows
    arguments = make(seed, 2, n, d, 3, size, general=general, ledger=ledger)
    v, terms, error = series.series_sums(*arguments, flow, 1.0, tolerance, "cpu")
    exact, table = sums.torch_sums(*arguments, flow, 1.0, False, "cpu")
    assert (error <= tolerance).all()
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(table)
        terms, table = (np.where(finite, a, 0.0) for a in (terms, table))
    reach = np.linalg.norm(arguments[2], 2, (-2, -1)).max()
    assert np.abs(v - exact).max() <= (4 * tolerance + 1e-13) * max(reach, np.abs(exact).max())
    energy, work = TERMS.index("energy"), TERMS.index("ito_power")
    for at in (energy, work):
        np.testing.assert_allclose(terms[:, at], table[:, at], rtol=2 * tolerance + 1e-12)


def test_tokens_in_single_precision_are_summed_in_double_on_the_sphere():
    arguments = make(6, 1, 700, 3, 3, 2.0, "f4")
    v, terms, error = series.series_sums(*arguments, SOFTMAX, -1.0, 1e-10, "cpu")
    expected = fast_sums(*arguments, SOFTMAX, -1.0, 1e-10)
    assert v.dtype == np.float32 and error[0] <= 1e-10
    assert np.abs(v - expected[0]).max() <= 1e-6
    close((v.astype(float), terms), (expected[0].astype(float), expected[1]), 1e-6)


@pytest.mark.parametrize("values", [2**12, 2**19])
def test_other_paths_do_not_change_a_bit(monkeypatch, values):
    monkeypatch.setattr(tiles, "_TILE_CPU", values)  # many tiles of tokens, or one
    arguments = make(5, 3, 900, 3, 3, [[0.5, 3.0, 8.0], [2.0, 3.0, 8.0], [0.5, 70.0, 8.0]])
    found = series.series_sums(*arguments, SOFTMAX, -1.0, 1e-10, "cpu")
    assert same(found, series.series_sums(*arguments, SOFTMAX, -1.0, 1e-10, "cpu"))
    for p in range(3):
        alone = series.series_sums(*(a[p : p + 1] for a in arguments), SOFTMAX, -1.0, 1e-10, "cpu")
        assert same(alone, tuple(a[p : p + 1] for a in found))


def test_tokens_that_miss_the_tolerance_are_summed_exactly(monkeypatch):
    redone = []
    inner = series.blocks

    def spy(own, *others):
        redone.append(own.shape[1])
        return inner(own, *others)

    monkeypatch.setattr(series, "blocks", spy)
    x = random_clouds.tokens(np.random.default_rng(1), "uniform", 1500, 3)[None]
    # m is e^9/18 along the first axis and about 1 across it, where rounding is 1e-14 e^9.
    D = np.stack([np.diag([9.0, 0.1, -0.1]), np.eye(3)])[None]
    none = np.empty((1, 0, 3, 3))
    arguments = (x, D, D, none, none, np.full((1, 2), 2.0), SOFTMAX, -1.0)
    v, terms, error = series.series_sums(*arguments, 1e-10, "cpu")
    exact, table = sums.torch_sums(*arguments, False, "cpu")
    assert 0 < np.sum(redone) < 1500 and error[0] <= 1e-10
    assert np.abs(v - exact).max() <= 2 * 9 * error[0]
    assert terms[0, :3] == pytest.approx(table[0, :3], rel=1e-10)


@pytest.mark.parametrize("d", [2, 3])
def test_the_laplacian_is_that_of_numba_and_the_exact_one(d):
    x, D, *_ = make(3, 3, 700, d, 3, [[0.5, 2.0, 4.0], [1.0, 3.0, 4.0], [2.0, 5.0, 80.0]])
    found, error = series.series_laplacian(x, D, 1e-10, "cpu")
    expected, estimate = fast_laplacian(x, D, 1e-10)
    exact = sums.torch_laplacian(x, D, "cpu")
    np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-12)
    np.testing.assert_allclose(error[:2], estimate[:2], rtol=1e-6)
    np.testing.assert_allclose(found, exact, rtol=1e-9)


def test_what_is_not_finite_ends_as_nan():
    arguments = make(4, 3, 600, 3, 2, 1.0)
    arguments[0][0, 17, 1] = np.nan
    arguments[1][1, 1, 0, 0] = np.inf
    for found in series.series_sums(*arguments, SOFTMAX, -1.0, 1e-8, "cpu"):
        assert np.isnan(found[:2]).all() and np.isfinite(found[2]).all()
    found = head_sums(arguments[0], arguments[1], sums=FAST)
    assert np.isnan(found.m[:2]).all() and np.isfinite(found.m[2]).all()


@pytest.mark.parametrize("weights", [None, "one set", "of both signs", "of each head"])
def test_sums_of_heads_over_weighted_sources_are_those_of_numba(weights):
    rng = np.random.default_rng(2)
    x, y = unit(rng, 2, 300, 3), unit(rng, 2, 1200, 3)
    D = make(0, 2, 1, 3, 3, [[0.5, 2.0, 4.0], [3.0, 2.0, 70.0]])[1]
    w = {
        None: None, "one set": rng.uniform(size=(2, 1200)), "of both signs": rng.normal(
        size=(2, 1200)), "of each head": rng.uniform(size=(2, 3, 1200)),
    }[weights]  # fmt: skip
    for vectors in (True, False):
        found, expected = (
            head_sums(x, D, sources=y, weights=w, vectors=vectors, sums=how)
            for how in (FAST, Sums("fast"))
        )
        # Heads with weights of their own are expanded to the degree of the longest one.
        rtol = 1e-10 if weights in ("of each head", "of both signs") else 1e-12
        grow, other = np.exp(found.shift), np.exp(expected.shift)
        np.testing.assert_allclose(grow * found.m, other * expected.m, rtol=rtol)
        size = (other * np.abs(expected.m))[..., None] if vectors else 1.0
        gap = np.abs(grow[..., None] * found.S - other[..., None] * expected.S) if vectors else 0
        assert np.all(gap <= rtol * size)
        assert (found.error <= 1e-10).all()


def test_runs_by_torch_and_numba_agree_and_resume(tmp_path):
    x0 = wflow.tokens.uniform(500, 3, seed=0)
    law = wflow.heads.OrnsteinUhlenbeck(np.eye(3), sigma2=0.5)
    options = {"heads": 2, "dt": 0.01, "paths": 3, "kappa": 0.01, "seed": 1}
    by_torch = wflow.Compute(method="fast", backend="torch", device="cpu")
    out = tmp_path / "run.h5"
    run = wflow.solve(x0, law, **options, t_final=0.04, compute=by_torch)
    numba = wflow.solve(x0, law, **options, t_final=0.04, compute=wflow.Compute(method="fast"))
    assert 0 < float(run.sum_error.max()) <= 1e-10
    for name in ("energy", "edi_residual", "tokens"):
        np.testing.assert_allclose(run[name], numba[name], rtol=1e-8, atol=1e-9)
    wflow.solve(x0, law, **options, t_final=0.02, compute=by_torch, out=out)
    again = wflow.solve(
        x0, law, **options, t_final=0.04, compute=by_torch, out=out, if_exists="resume"
    )
    assert np.array_equal(again.tokens[:, -1], run.tokens[:, -1])
    assert '"backend": "torch"' in again.attrs["config"] and "1e-10" in again.attrs["config"]


@pytest.mark.parametrize(
    ("d", "compute", "message"),
    [
        (4, {}, "d = 2 and 3"),
        (3, {"tolerance": 1e-15}, "doubles allow no less"),
        (3, {"device": "cuda:7"}, "is absent"),
    ],
)
def test_what_no_series_can_do_is_refused(d, compute, message):
    asked = wflow.Compute(**{"method": "fast", "backend": "torch", "device": "cpu"} | compute)
    x0 = wflow.tokens.uniform(9, d, seed=0)
    with pytest.raises(InputError, match=message):
        wflow.solve(x0, wflow.heads.Frozen(), heads=1, t_final=0.1, dt=0.1, compute=asked)
