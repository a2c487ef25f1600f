"""Power-law fits: exact on exact laws, honest about their errors, strict about input."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wflow import fits
from wflow.analysis.fits import mean_and_error, power_law

HEADS = np.array([1, 2, 4, 8, 16, 32, 64])
QUICK = settings(max_examples=40, deadline=None)


def noisy(rng: np.random.Generator, paths: int, *, shared: float = 0.0) -> np.ndarray:
    """Samples of 0.4 H^-1 with noise of mean one; the share `shared` of it is common to all H."""
    own = rng.standard_normal((len(HEADS), paths))
    z = np.sqrt(shared) * rng.standard_normal(paths) + np.sqrt(1 - shared) * own
    return 0.4 / HEADS[:, None] * np.exp(0.3 * z - 0.045)


@given(
    a=st.floats(1e-12, 1e12), b=st.floats(-5, 5),
    x=st.lists(st.integers(1, 1000), min_size=2, max_size=8, unique=True), paths=st.integers(1, 5),
)  # fmt: skip
@QUICK
def test_exact_law_is_recovered_with_intervals_of_no_width(a, b, x, paths):
    y = np.repeat((a * np.array(x, dtype=float) ** b)[:, None], paths, axis=1)
    fit = power_law(x, y, resamples=20)
    assert fit.exponent == pytest.approx(b, abs=1e-9)
    assert fit.prefactor == pytest.approx(a, rel=1e-8)
    assert np.allclose(fit(x), y[:, 0], rtol=1e-9)
    if abs(b) > 1e-3:
        assert fit.pearson == pytest.approx(np.sign(b), abs=1e-6)
    if paths > 1:
        assert fit.exponent_ci == pytest.approx((b, b), abs=1e-9)
        assert fit.exponent_error == pytest.approx(0, abs=1e-9)
        assert fit.prefactor_ci == pytest.approx((a, a), rel=1e-8)


@given(seed=st.integers(0, 1000), c=st.floats(0.01, 100), s=st.floats(0.01, 100))
@QUICK
def test_fit_agrees_with_polyfit_and_scales_with_its_data(seed, c, s):
    y = noisy(np.random.default_rng(seed), 6)
    fit = power_law(HEADS, y, resamples=50)
    slope, intercept = np.polyfit(np.log(HEADS), np.log(y.mean(axis=1)), 1)
    assert fit.exponent == pytest.approx(slope, rel=1e-10)
    assert fit.prefactor == pytest.approx(np.exp(intercept), rel=1e-10)
    want = np.corrcoef(np.log(HEADS), np.log(y.mean(axis=1)))[0, 1]
    assert fit.pearson == pytest.approx(want, abs=1e-12)
    scaled = power_law(s * HEADS, c * y, resamples=50)
    assert scaled.exponent_ci == pytest.approx(fit.exponent_ci, abs=1e-9)
    assert scaled.prefactor == pytest.approx(c * fit.prefactor * s**-fit.exponent, rel=1e-9)


def test_bootstrap_is_that_of_a_plain_loop_over_resamples():
    y = noisy(np.random.default_rng(2), 4)
    fit = power_law(HEADS, y, resamples=200, seed=7)
    rng = np.random.Generator(np.random.Philox(7))
    slopes = []
    for drawn in rng.integers(4, size=(200, 4)):
        slopes.append(np.polyfit(np.log(HEADS), np.log(y[:, drawn].mean(axis=1)), 1)[0])
    assert np.allclose(fit.exponents, slopes, rtol=1e-10)
    assert fit.exponent_ci == pytest.approx(np.quantile(slopes, [0.025, 0.975]), rel=1e-10)
    assert fit.exponent_error == pytest.approx(np.std(slopes, ddof=1), rel=1e-9)


def test_blocks_of_resamples_do_not_change_a_number():
    y = noisy(np.random.default_rng(2), 400)  # 2800 values a resample: six blocks
    fit = power_law(HEADS, y, resamples=2000, seed=7)
    few = power_law(HEADS, y, resamples=100, seed=7)
    assert np.array_equal(fit.exponents[:100], few.exponents)
    assert np.isfinite(fit.exponents).all()


def test_interval_covers_the_true_exponent_about_as_often_as_it_says():
    rng = np.random.default_rng(11)
    hits = sum(
        lo <= -1 <= hi
        for lo, hi in (
            power_law(HEADS, noisy(rng, 30), resamples=300, seed=i).exponent_ci for i in range(200)
        )
    )
    assert 178 <= hits <= 199  # of 200, at 95 %: four deviations below, and not always


def test_noise_shared_over_x_moves_the_prefactor_and_not_the_exponent():
    rng = np.random.default_rng(4)
    own = power_law(HEADS, noisy(rng, 40))
    shared = power_law(HEADS, noisy(rng, 40, shared=0.98))
    assert shared.exponent_error < 0.3 * own.exponent_error
    assert 0.02 < shared.prefactor_error / shared.prefactor < 0.1  # 0.3 / sqrt(40) = 0.047


@given(level=st.floats(0.5, 0.9))
@QUICK
def test_intervals_and_band_widen_with_the_level_and_hold_the_fit(level):
    y = noisy(np.random.default_rng(3), 12)
    narrow, wide = (power_law(HEADS, y, level=p, resamples=300) for p in (level, 0.99))
    assert wide.exponent_ci[0] <= narrow.exponent_ci[0] < narrow.exponent_ci[1]
    assert narrow.exponent_ci[1] <= wide.exponent_ci[1]
    x = np.geomspace(0.5, 100, 30)
    (inner_lo, inner_hi), (lo, hi) = narrow.band(x), wide.band(x)
    assert lo.shape == hi.shape == (30,)
    assert np.all(lo <= inner_lo) and np.all(inner_hi <= hi)
    assert np.all(lo < wide(x)) and np.all(wide(x) < hi)
    at_one = wide.band(1.0)
    assert [bound[0] for bound in at_one] == pytest.approx(wide.prefactor_ci)


def test_one_path_gives_the_fit_and_no_errors_without_a_warning():
    fit = power_law(HEADS, noisy(np.random.default_rng(1), 1))
    assert np.isfinite([fit.prefactor, fit.exponent, fit.pearson]).all()
    assert np.isnan([*fit.exponent_ci, *fit.prefactor_ci]).all()
    assert np.isnan([fit.exponent_error, fit.prefactor_error]).all()
    assert np.isnan(fit.band([1, 2])).all()


def test_extreme_values_stay_in_range():
    y = np.array([[1.5e308, 1.6e308, 1.7e308], [2e-308, 3e-308, 4e-308]])
    fit = power_law([1, 2], y, resamples=50)
    assert np.isfinite([fit.exponent, *fit.exponent_ci]).all()


def test_as_dict_is_strict_json_with_null_for_what_is_undefined():
    fit = power_law(HEADS, noisy(np.random.default_rng(1), 3), resamples=100)
    back = json.loads(json.dumps(fit.as_dict(), allow_nan=False))
    assert back["exponent"] == fit.exponent and tuple(back["exponent_ci"]) == fit.exponent_ci
    assert back["paths"] == 3 and back["points"] == 7 and back["resamples"] == 100
    one = power_law(HEADS, np.ones((7, 1))).as_dict()
    assert json.loads(json.dumps(one, allow_nan=False))["exponent_ci"] == [None, None]
    assert one["pearson"] is None


@given(count=st.integers(2, 30), seed=st.integers(0, 1000))
@QUICK
def test_mean_and_error_are_the_textbook_ones_along_the_axis(count, seed):
    samples = np.random.default_rng(seed).standard_normal((3, count, 2))
    mean, error = mean_and_error(samples, axis=1)
    assert mean.shape == error.shape == (3, 2)
    assert np.allclose(mean, samples.sum(axis=1) / count)
    square = ((samples - mean[:, None]) ** 2).sum(axis=1) / (count - 1) / count
    assert np.allclose(error**2, square)


def test_mean_and_error_of_one_sample_is_that_sample_with_unknown_error():
    mean, error = mean_and_error([[3], [4]])
    assert mean.tolist() == [3.0, 4.0] and np.isnan(error).all()
    alone, error = mean_and_error([1, 2, 3])
    assert float(alone) == 2.0 and float(error) == pytest.approx(1 / np.sqrt(3))


def test_a_power_law_is_a_line_in_logarithms():
    rng = np.random.default_rng(5)
    x, y = np.array([1.0, 2.0, 5.0]), rng.uniform(1, 2, (3, 6))
    law, line = fits.power_law(x, y, seed=4), fits.line(np.log(x), y, of=np.log, seed=4)
    assert line.slope == pytest.approx(law.exponent, rel=1e-12)
    assert line.slope_ci == pytest.approx(law.exponent_ci, rel=1e-12)
    assert np.exp(line.intercept) == pytest.approx(law.prefactor, rel=1e-12)


def test_a_line_through_signed_samples_is_that_of_their_means():
    x, y = np.array([0.0, 1.0, 3.0]), np.array([[-3.0, 1.0], [0.0, 2.0], [4.0, 6.5]])
    line = fits.line(x, y, resamples=50, seed=np.random.default_rng(2))
    slope, intercept = np.polyfit(x, y.mean(axis=1), 1)
    assert (line.slope, line.intercept) == pytest.approx((slope, intercept))
    rest = y.mean(axis=1) - slope * x - intercept
    assert line.residual == pytest.approx(np.sum(rest**2))
    drawn = np.random.default_rng(2).integers(2, size=(50, 2))
    again = [np.polyfit(x, y[:, draw].mean(axis=1), 1)[0] for draw in drawn]
    assert line.slopes == pytest.approx(again)


def test_a_line_over_x_whose_squares_overflow_has_its_slope():
    x, y = np.array([0.0, 1.0, 2.0]), np.array([[1.0, 1.0], [3.0, 3.0], [5.0, 5.0]])
    assert fits.line(1e200 * x, y).slope == pytest.approx(2e-200, rel=1e-14)


def test_the_interval_is_undefined_where_a_resample_leaves_the_domain():
    line = fits.line([0.0, 1.0], [[3.0, -1.0], [2.0, 2.0]], of=np.log)
    assert np.isfinite(line.slope) and np.all(np.isnan(line.slope_ci))


def test_a_law_whose_prefactor_is_out_of_range_has_values_in_range():
    x = np.array([1e100, 2e100, 4e100])
    for exponent in (-4, 4):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit = power_law(x, ((x / 1e100) ** exponent)[:, None], resamples=5)
            assert fit.prefactor == (np.inf if exponent < 0 else 0)
            np.testing.assert_allclose(fit(x), (x / 1e100) ** exponent, rtol=1e-9)


def test_a_mean_and_its_error_are_finite_where_their_sums_are_not():
    mean, error = mean_and_error([1e308, 1.2e308, 1.4e308])
    assert float(mean) == pytest.approx(1.2e308)
    assert float(error) == pytest.approx(0.2e308 / np.sqrt(3))
