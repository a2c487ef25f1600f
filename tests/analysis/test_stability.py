"""The bound on W₂ between clouds under the same heads, and the rate at which they part."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wflow
from wflow import InputError
from wflow.analysis import stability
from wflow.analysis.stability import bound, compare, exponent, growth_constant, growth_rate
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck, Schedule
from wflow.heads.process import head_path
from wflow.sphere import normalise

FLOWS = ("softmax", "unnormalised", "effective")
QUICK = settings(max_examples=40, deadline=None)
LAW = OrnsteinUhlenbeck(0.3 * np.eye(3), rate=1.0, sigma2=0.2)


def symmetric(rng: np.random.Generator, heads: int, d: int, size: float) -> np.ndarray:
    z = rng.standard_normal((heads, d, d))
    return size * (z + z.swapaxes(-1, -2)) / 2


def pair(seed: int, n: int, d: int, distance: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = normalise(rng.standard_normal((n, d)))
    return x, normalise(x + distance * rng.standard_normal((n, d)))


def assert_held(table) -> None:
    assert table["holds_chordal"].all() and table["holds_geodesic"].all()


@given(
    seed=st.integers(0, 10_000), flow=st.sampled_from(FLOWS),
    direction=st.sampled_from(["ascent", "descent"]), n=st.integers(1, 9),
    d=st.sampled_from([2, 3, 5]), heads=st.integers(1, 4),
    size=st.sampled_from([0.01, 0.1, 0.5, 1.0, 2.0]), distance=st.sampled_from([1e-4, 0.1, 3.0]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_velocities_part_no_faster_than_the_constant_says(
    seed, flow, direction, n, d, heads, size, distance
):
    x, y = pair(seed, n, d, distance)
    D = symmetric(np.random.default_rng(seed + 1), heads, d, size)
    v, w = (wflow.velocity(z, D, flow=flow, direction=direction) for z in (x, y))
    gap = np.sum((x - y) ** 2)
    limit = growth_constant(D, flow=flow, direction=direction)
    assert np.sum((x - y) * (v - w)) <= (limit * (1 + 1e-9) + 1e-8) * gap
    steep = growth_constant(D, flow=flow, direction="ascent")
    assert np.linalg.norm(v - w) <= (steep * (1 + 1e-9) + 1e-8) * np.sqrt(gap)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("direction", ["ascent", "descent"])
def test_constant_of_small_heads_is_reached(flow, direction):
    # One token on the circle moves by -+a sin 2p: neighbours part at the rate 2a next to an axis.
    D = 1e-6 * np.diag([1.0, -1.0])[None]
    found = 0.0
    for seed in range(200):
        x, y = pair(seed, 1, 2, 1e-4)
        v, w = (wflow.velocity(z, D, flow=flow, direction=direction) for z in (x, y))
        found = max(found, np.sum((x - y) * (v - w)) / np.sum((x - y) ** 2))
    constant = growth_constant(D, flow=flow, direction=direction)
    assert constant == pytest.approx(2e-6, rel=1e-5)
    assert 0.95 * constant < found <= constant * (1 + 1e-6)


@given(
    seed=st.integers(0, 10_000), flow=st.sampled_from(FLOWS),
    direction=st.sampled_from(["ascent", "descent"]), heads=st.integers(1, 3),
    size=st.sampled_from([0.1, 0.4, 1.0]), noisy=st.booleans(),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_bound_holds_along_runs_with_steps_of_any_size(seed, flow, direction, heads, size, noisy):
    x, y = pair(seed, 8, 3, 0.2)
    D = symmetric(np.random.default_rng(seed + 1), heads, 3, size)
    law = LAW if noisy else Frozen()
    options = {
        "heads": D, "t_final": 1.0, "dt": 0.1, "seed": seed, "flow": flow,
        "direction": direction, "save": wflow.SaveAt(snapshots=np.linspace(0, 1, 6), budget=False),
    }  # fmt: skip
    table = compare(wflow.solve(x, law, **options), wflow.solve(y, law, **options))
    assert_held(table)
    assert np.all(table["w2_chordal"] <= table["w2_geodesic"] + 1e-12)
    assert np.all(table["w2_geodesic"] <= np.pi / 2 * table["w2_chordal"] + 1e-12)


@given(seed=st.integers(0, 1000), flow=st.sampled_from(FLOWS), size=st.floats(1e-3, 2))
@QUICK
def test_constant_grows_with_the_size_of_the_heads_and_vanishes_with_it(seed, flow, size):
    D = symmetric(np.random.default_rng(seed), 3, 4, 1.0)
    for direction in ("ascent", "descent"):
        at = [growth_constant(s * D, flow=flow, direction=direction) for s in (size, 1.1 * size)]
        assert at[0] < at[1]
        assert growth_constant(0 * D, flow=flow, direction=direction) == 0
        tiny = growth_constant(1e-9 * D, flow=flow, direction=direction)
        norms = np.linalg.norm(D, 2, axis=(1, 2))
        assert tiny == pytest.approx(2e-9 * norms.mean(), rel=1e-6)


@given(seed=st.integers(0, 1000), flow=st.sampled_from(FLOWS))
@QUICK
def test_constant_is_that_of_its_formula_and_of_rotated_and_permuted_heads(seed, flow):
    rng = np.random.default_rng(seed)
    D = symmetric(rng, 3, 3, 0.7)
    a = np.linalg.norm(D, 2, axis=(1, 2))
    for direction, up in (("ascent", 1.0), ("descent", 0.0)):
        own = a + up * a**2 + a * np.sqrt(1 + a**2) * np.exp(a)
        if flow == "softmax":
            expected = own.mean()
        elif flow == "unnormalised":
            expected = np.mean(np.exp(a) * (a + up * a**2 + a * (1 + a)))
        else:
            h, k = np.meshgrid(a, a, indexing="ij")
            both = np.exp(h + k) * (h + up * h**2 + h * k + h * (1 + h) + h * k * np.exp(k))
            expected = np.mean(np.where(np.eye(3), own, both))
        assert growth_constant(D, flow=flow, direction=direction) == pytest.approx(expected)
        q = np.linalg.qr(rng.standard_normal((3, 3)))[0]
        turned = (q @ D @ q.T)[[2, 0, 1]]
        assert growth_constant(turned, flow=flow, direction=direction) == pytest.approx(expected)


@pytest.mark.parametrize("flow", FLOWS)
def test_constant_of_enormous_heads_is_infinite_and_never_nan(flow):
    D = np.stack([1e4 * np.eye(3), np.zeros((3, 3)), np.eye(3)])
    for direction in ("ascent", "descent"):
        assert growth_constant(D, flow=flow, direction=direction) == np.inf
    assert np.isfinite(growth_constant(np.zeros((3, 2, 2)), flow=flow))


def test_pairs_with_a_head_of_norm_zero_take_part_in_the_effective_flow():
    # The effective flow mixes heads: the zero head changes how the other one is weighted.
    a = 0.8
    D = np.stack([a * np.eye(3), np.zeros((3, 3))])
    single = a + a * np.sqrt(1 + a**2) * np.exp(a)
    mixed = np.exp(a) * (a + a * (1 + a))  # h = the first, k = the zero head; the other way 0
    assert growth_constant(D, flow="effective") == pytest.approx((single + mixed) / 4)


def test_exponent_of_frozen_heads_grows_by_the_same_at_every_step():
    D = symmetric(np.random.default_rng(2), 2, 3, 0.4)
    x, _ = pair(0, 5, 3, 0.1)
    L, M = growth_constant(D), growth_constant(D, direction="ascent")
    times, steps = np.array([0.0, 0.5, 2.0]), np.array([0, 5, 20])
    options = {"heads": D, "t_final": 2.0, "dt": 0.1}
    options["save"] = wflow.SaveAt(snapshots=times, heads=True)
    euler, up = (
        wflow.solve(x, Frozen(), direction=direction, **options)
        for direction in ("descent", "ascent")
    )
    np.testing.assert_allclose(exponent(euler)[0], np.log(1 + 0.2 * L + 0.01 * M**2) / 2 * steps)
    np.testing.assert_allclose(exponent(up)[0], np.log(1 + 0.1 * M) * steps)
    rk4 = wflow.solve(x, Frozen(), scheme="rk4", **options)
    for table in (exponent(rk4), exponent(rk4, weights="snapshots")):
        np.testing.assert_allclose(table[0], L * times)


def test_exponent_follows_the_heads_of_each_path_and_tends_to_the_integral_of_the_constant():
    x, _ = pair(0, 4, 3, 0.1)
    start = symmetric(np.random.default_rng(1), 3, 3, 0.3)
    options = {"heads": start, "t_final": 1.0, "paths": 3, "seed": 5}
    times = np.linspace(0, 1, 101)
    save = wflow.SaveAt(snapshots=times, paths=[0, 2], heads=True, budget=False)
    run = wflow.solve(x, LAW, dt=0.01, save=save, **options)
    table = exponent(run)
    assert table.dims == ("snapshot_path", "snapshot") and table.shape == (2, 101)
    assert not np.allclose(table[0], table[1])
    for row, path in enumerate((0, 2)):
        walk = head_path(LAW, heads=start, d=3, t_final=1.0, dt=0.01, seed=5, path=path)
        norms = np.array([stability.spectral_norms(D) for _, D in walk])
        np.testing.assert_array_equal(norms, stability.spectral_norms(run["heads"][row].values))
        L, M = (
            growth_constant(run["heads"][row].values, direction=s) for s in ("descent", "ascent")
        )
        steps = np.log(1 + 0.02 * L + 1e-4 * M**2)[:-1] / 2
        np.testing.assert_allclose(table[row, 1:], np.cumsum(steps))
    rough = exponent(run, weights="snapshots")
    np.testing.assert_allclose(table[:, -1], rough[:, -1], rtol=0.1)


def test_exponent_knows_jumps_of_the_heads_and_laws_of_functions():
    x, _ = pair(0, 4, 3, 0.1)
    values = np.stack([0.2 * np.eye(3)[None], 0.6 * np.eye(3)[None]])
    run = wflow.solve(x, Schedule([0.0, 0.5], values, "constant"), t_final=1.0, dt=0.05,
                      scheme="rk4")  # fmt: skip
    low, high = growth_constant(values[0]), growth_constant(values[1])
    # The larger end counts: the step up to the jump counts as one after it.
    assert float(exponent(run)[0, -1]) == pytest.approx(0.45 * low + 0.55 * high)
    law = HeadLaw(drift=lambda D, t: -D)
    own = wflow.solve(x, law, heads=values[1], t_final=1.0, dt=0.05)
    with pytest.raises(InputError, match="Python functions"):
        exponent(own)
    assert 0 < float(exponent(own, law=law)[0, -1]) < high


def test_growth_of_one_token_on_the_circle_is_exact():
    # D = diag(a, -a), one token at angle p: dp/dt = -+a sin 2p, away from p = 0 in descent.
    a = 0.3
    for direction, at in (("descent", 0.0), ("ascent", np.pi / 2)):
        runs = [
            wflow.solve([[np.cos(at + p), np.sin(at + p)]], Frozen(), heads=[[[a, 0], [0, -a]]],
                        t_final=2.0, dt=0.01, scheme="rk4", direction=direction,
                        save=wflow.SaveAt(snapshots=np.linspace(0, 2, 9)))
            for p in (0.0, 1e-6)
        ]  # fmt: skip
        table = compare(*runs)
        fit = growth_rate(table.snapshot, table.w2_geodesic)
        assert fit.rate == pytest.approx(2 * a, rel=1e-6)
        assert fit.rate <= growth_constant([[[a, 0], [0, -a]]], direction=direction)
        assert fit.prefactor == pytest.approx(1, rel=1e-6)
        assert_held(table)


@given(
    rate=st.floats(-3, 3), start=st.floats(1e-8, 1), replicates=st.integers(1, 5),
    first=st.floats(0, 3),
)  # fmt: skip
@QUICK
def test_exponential_growth_is_recovered_with_an_interval_of_no_width(
    rate, start, replicates, first
):
    t = first + np.linspace(0, 2, 7)
    fit = growth_rate(t, np.tile(start * np.exp(rate * (t - first)), (replicates, 1)), resamples=20)
    assert fit.rate == pytest.approx(rate, abs=1e-9)
    assert fit.largest == pytest.approx(rate, abs=1e-9)
    assert fit.prefactor == pytest.approx(1, abs=1e-9)
    assert fit(2.0) == pytest.approx(np.exp(2 * rate), rel=1e-8)
    if replicates > 1:
        assert fit.ci == pytest.approx((rate, rate), abs=1e-9)
    else:
        assert np.isnan(fit.ci).all()


def test_interval_covers_the_rate_of_noisy_replicates():
    t = np.linspace(0, 3, 16)
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        slopes = 0.7 + 0.2 * rng.standard_normal((30, 1))
        noise = 0.1 * rng.standard_normal((30, 16))
        fit = growth_rate(t, 1e-3 * np.exp(slopes * t + noise), resamples=400)
        covered += fit.ci[0] <= 0.7 <= fit.ci[1]
        assert fit.largest > fit.rate
    assert 33 <= covered <= 40


def test_largest_rate_names_its_time():
    fit = growth_rate([0, 1, 2, 4], [[1, 1, np.exp(3), np.exp(2)], [1, 1, 1, 1]])
    assert fit.largest == pytest.approx(1.5) and fit.largest_at == 2
    assert fit.replicates == 2 and fit.points == 4


def test_bound_is_chordal_or_geodesic_and_safe():
    assert bound(0.1, 2.0) == pytest.approx(0.1 * np.exp(2))
    assert bound(0.1, 2.0, cost="geodesic") == pytest.approx(np.pi / 2 * 0.1 * np.exp(2))
    np.testing.assert_array_equal(bound([0.0, 1e-3], np.inf), [0.0, np.inf])
    assert bound(1e-300, 800.0) == pytest.approx(np.exp(800 - 300 * np.log(10)))


def test_equal_clouds_stay_equal_under_any_heads():
    x, _ = pair(3, 6, 3, 0.1)
    options = {"heads": 50 * np.eye(3)[None], "t_final": 0.05, "dt": 0.01}
    table = compare(*(wflow.solve(z, Frozen(), **options) for z in (x, x[::-1])))
    assert_held(table)
    assert np.all(table["w2_chordal"] < 1e-12)


def test_runs_that_differ_in_how_their_sums_are_formed_are_compared():
    options = {"heads": 2, "t_final": 0.2, "dt": 0.05, "direction": "ascent", "seed": 1}
    law = OrnsteinUhlenbeck(0.3 * np.eye(3), rate=1.0, sigma2=0.0)
    few, many = (wflow.tokens.uniform(n, 3, seed=n) for n in (100, 300))
    small, large = (wflow.solve(x, law, **options) for x in (few, many))
    assert "sum_error" in large and "sum_error" not in small  # "auto" is exact for few tokens
    table = compare(small, large)
    assert_held(table)
    # Equal clouds part by the error of the series, and the bound is zero.
    rough = wflow.solve(many, law, compute=wflow.Compute(method="fast", tolerance=5e-3), **options)
    table = compare(wflow.solve(many, law, compute=wflow.Compute(method="exact"), **options), rough)
    assert table["w2_chordal"].values[0, -1] > 1e-12
    assert table["bound_chordal"].values[0, -1] == 0
    assert_held(table)


def test_runs_in_single_precision_are_compared_up_to_its_rounding():
    options = {
        "heads": 1e-9 * np.eye(3)[None], "t_final": 1.0, "dt": 0.1,
        "compute": wflow.Compute(dtype="float32"),
        "save": wflow.SaveAt(snapshots=np.linspace(0, 1, 6)),
    }  # fmt: skip
    assert_held(compare(*(wflow.solve(z, Frozen(), **options) for z in pair(3, 6, 3, 0.1))))


def test_runs_in_files_are_compared_at_the_snapshots_and_paths_they_share(tmp_path):
    x, y = pair(3, 6, 3, 0.1)
    options = {"heads": 2, "dt": 0.1, "paths": 3, "seed": 1}
    wflow.solve(x, LAW, t_final=1.0, save=wflow.SaveAt(snapshots=[0, 0.2, 0.4, 1], paths=[0, 1]),
                out=tmp_path / "a.h5", **options).close()  # fmt: skip
    wflow.solve(y[:4], LAW, t_final=0.4, save=wflow.SaveAt(snapshots=[0.2, 0.3, 0.4], paths=[2, 1]),
                out=tmp_path / "b.h5", **options).close()  # fmt: skip
    table = compare(tmp_path / "a.h5", str(tmp_path / "b.h5"), costs=("chordal",))
    np.testing.assert_allclose(table.snapshot, [0.2, 0.4])
    assert table.snapshot_path.values.tolist() == [1]
    assert table.exponent[0, 0] == 0 and table.exponent[0, 1] > 0
    np.testing.assert_array_equal(table.bound_chordal[:, 0], table.w2_chordal[:, 0])
    assert "w2_geodesic" not in table
    assert all("long_name" in table[name].attrs for name in table.data_vars)


def test_replicates_of_heads_given_as_an_array_need_no_common_seed():
    options = {"heads": symmetric(np.random.default_rng(0), 2, 3, 0.3), "t_final": 0.2, "dt": 0.1}
    runs = [wflow.solve(z, Frozen(), seed=s, **options) for s, z in enumerate(pair(3, 6, 3, 0.1))]
    assert_held(compare(*runs))


def test_bound_of_a_step_covers_heads_between_its_ends():
    # One head grows as another shrinks: L of `effective` is largest between the ends.
    def heads(s: float) -> np.ndarray:
        return np.stack([s * np.eye(2), (1 - s) * np.eye(2)])

    middle = growth_constant(heads(0.5), flow="effective")
    assert middle > growth_constant(heads(0.0), flow="effective")
    law = Schedule([0.0, 1.0], np.stack([heads(0.0), heads(1.0)]), "linear")
    x, _ = pair(0, 4, 2, 0.1)
    run = wflow.solve(x, law, t_final=1.0, dt=1.0, scheme="heun", flow="effective")
    assert float(exponent(run)[0, -1]) >= middle


def test_a_growth_factor_is_finite_where_its_parts_are_not():
    t = np.arange(5.0)
    peak = growth_rate(t, [1e-300, 1e300, 1e300, 1e300, 1e-300], resamples=5)
    assert peak.prefactor == np.inf and peak.rate == pytest.approx(0, abs=1e-9)
    assert float(peak(0.0)) == np.inf
    falling = growth_rate(t, [1e-300, 1e308, 1e300, 1e100, 1e-300], resamples=5)
    assert falling.prefactor == np.inf
    assert np.log10(falling(4.0)) == pytest.approx(280)  # of the decades 363.2 - 20.8 t
    steep = growth_rate(1e4 + t, np.exp(300.0 * t - 600), resamples=5)
    assert float(steep(2.0)) == pytest.approx(np.exp(600.0))
    low = dataclasses.replace(steep, log_prefactor=-300 * np.log(10), rate=400.0)
    assert float(low(2.0)) == pytest.approx(np.exp(800 - 300 * np.log(10)))
