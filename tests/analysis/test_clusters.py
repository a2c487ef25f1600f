"""Clusters: known numbers of them, closed forms of entropy and order, series and limits of runs."""

import math
from itertools import product

import numpy as np
import pytest
import xarray
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from scipy.special import gammaln, ive
from scipy.stats import special_ortho_group
from twin import unit as uniform

import wflow
from wflow import clusters
from wflow.analysis import linkage as compiled
from wflow.heads import Frozen, OrnsteinUhlenbeck, Oscillating

QUICK = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 10_000)


def caps(
    rng: np.random.Generator, k: int, d: int, radius: float, *, largest: int = 6
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens in k caps of a radius around vertices of the cross-polytope, shuffled and rotated."""
    numbers = rng.integers(2, largest + 1, size=k)
    of = np.repeat(np.arange(k), numbers)
    centres = np.concatenate([np.eye(d), -np.eye(d)])[:k][of]
    away = rng.standard_normal(centres.shape)
    away -= np.sum(away * centres, axis=1)[:, None] * centres
    away *= radius * rng.uniform(0.1, 1, len(of))[:, None] / np.linalg.norm(away, axis=1)[:, None]
    x = wflow.sphere.exponential(centres, away)
    order = rng.permutation(len(x))
    return (x @ special_ortho_group.rvs(d, random_state=rng))[order], of[order]


def same_partition(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a[:, None] == a, b[:, None] == b)


def geodesic(x: np.ndarray) -> np.ndarray:
    return 2 * np.arcsin(np.minimum(pdist(x) / 2, 1))


@given(seed=SEEDS, d=st.integers(2, 6), share=st.floats(0.1, 1), radius=st.floats(1e-9, 0.1))
@QUICK
def test_separated_caps_are_the_clusters_with_and_without_a_scale(seed, d, share, radius):
    rng = np.random.default_rng(seed)
    k = max(1, round(share * 2 * d))
    x, of = caps(rng, k, d, radius)
    assert same_partition(clusters.labels(x, 2.5 * radius), of)
    assert clusters.count(x, 2.5 * radius) == k
    np.testing.assert_array_equal(clusters.sizes(x, 2.5 * radius), np.sort(np.bincount(of))[::-1])
    assert clusters.count(x, math.pi) == 1
    found = clusters.persistent_count(x, level=0.9)
    if radius < 1e-3:
        # A pair in a cap may be closer by chance than the rest, but never by that much.
        assert found.count == k
        assert found.scale_low <= 2 * radius < found.scale_high
        assert clusters.count(x, (found.scale_low + found.scale_high) / 2) == k


@given(seed=SEEDS, n=st.integers(2, 30), d=st.integers(2, 5), scale=st.floats(0.01, 3))
@QUICK
def test_labels_are_those_of_hierarchical_single_linkage(seed, n, d, scale):
    x = uniform(np.random.default_rng(seed), n, d)
    tree = linkage(geodesic(x), "single")
    assert same_partition(clusters.labels(x, scale), fcluster(tree, scale, "distance"))
    np.testing.assert_allclose(compiled.merge_heights(x), tree[:, 2], rtol=1e-10)


@given(seed=SEEDS, n=st.integers(3, 40), d=st.integers(2, 8), clustered=st.booleans())
@QUICK
def test_persistent_count_is_the_widest_gap_of_hierarchical_single_linkage(seed, n, d, clustered):
    rng = np.random.default_rng(seed)
    x = caps(rng, min(d, 4), d, 1e-3)[0] if clustered else uniform(rng, n, d)
    n = len(x)
    heights = linkage(geodesic(x), "single")[:, 2]
    ratio = heights[1:] / heights[:-1]
    merges = np.arange(1, n - 1)
    ratio[ratio < np.maximum(3, (n / 0.01) ** (1 / (merges * (d - 1))))] = 0
    found = clusters.persistent_count(x)
    if clustered:
        best = int(np.argmax(ratio))
        assert found.count == n - 1 - best
        assert found.persistence == pytest.approx(ratio[best], rel=1e-9)
        assert (found.scale_low, found.scale_high) == pytest.approx(tuple(heights[best : best + 2]))
    elif not ratio.any() and found.count > 1:
        assert (found.count, found.persistence) == (n, 1.0)


@given(seed=SEEDS, scale=st.floats(0.01, 2), d=st.integers(2, 5))
@QUICK
def test_clusters_do_not_depend_on_order_or_rotation(seed, scale, d):
    rng = np.random.default_rng(seed)
    x = uniform(rng, 40, d)
    labels = clusters.labels(x, scale)
    assert labels[0] == 0 and set(labels) == set(range(labels.max() + 1))
    assert np.all(np.diff(np.unique(labels, return_index=True)[1]) > 0)  # numbered by first token
    order = rng.permutation(40)
    assert same_partition(clusters.labels(x[order], scale), labels[order])
    rotated = x @ special_ortho_group.rvs(d, random_state=rng)
    assert same_partition(clusters.labels(rotated, scale), labels)
    one, two = clusters.persistent_count(x), clusters.persistent_count(rotated[order])
    assert one.count == two.count and one.persistence == pytest.approx(two.persistence, rel=1e-6)
    for order_of in (clusters.order_parameter, clusters.nematic_order):
        assert order_of(rotated[order]) == pytest.approx(order_of(x), abs=1e-12)


@pytest.mark.parametrize("d", [2, 3, 10])
def test_uniform_clouds_are_not_reported_as_clusters(d):
    rng = np.random.default_rng(0)
    reported = [clusters.persistent_count(uniform(rng, n, d)).count < n for n in [20, 60, 200] * 30]
    assert np.mean(reported) <= 0.05
    assert clusters.persistent_count(uniform(rng, 200, d)).persistence == 1.0


def angle_by_chord(x: np.ndarray, y: np.ndarray) -> float:
    return float(2 * np.arcsin(min(np.linalg.norm(x - y) / 2, 1)))


def angle_by_transport(x: np.ndarray, y: np.ndarray) -> float:
    return float(wflow.transport.distance(x[None], y[None])[0, 0])


@pytest.mark.parametrize("d", [2, 3, 20, 300])
@pytest.mark.parametrize(("dtype", "below"), [(np.float64, 1e-9), (np.float32, 1e-3)])
def test_a_pair_is_joined_at_its_distance_and_not_below(d, dtype, below):
    rng = np.random.default_rng(d)
    for distance in (*rng.uniform(0.1, 3, 10), 0.03):
        x, v = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
        pair = np.stack([x, math.cos(distance) * x + math.sin(distance) * v]).astype(dtype)
        for angle in (angle_by_transport, angle_by_chord):
            assert clusters.count(pair, angle(*pair)) == 1
            assert clusters.count(pair, angle(*pair) * (1 - below)) == 2


def ring(n: int) -> np.ndarray:
    angles = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def simplex(d: int) -> np.ndarray:
    centred = np.eye(d + 1) - 1 / (d + 1)
    basis = np.linalg.svd(centred)[2][:d]
    return wflow.sphere.as_tokens(centred @ basis.T)


POLYTOPES = {
    **{f"{n} vertices": (ring(n), 2 * math.pi / n) for n in (3, 5, 12, 29, 40)},
    **{f"simplex {d}": (simplex(d), math.acos(-1 / d)) for d in (2, 4, 9)},
    **{f"cube {d}": (np.array(list(product((1, -1), repeat=d))) / math.sqrt(d),
                     math.acos(1 - 2 / d)) for d in (2, 3, 5)},
    **{f"cross {d}": (np.concatenate([np.eye(d), -np.eye(d)]), math.pi / 2) for d in (2, 3, 7)},
}  # fmt: skip


@pytest.mark.parametrize("name", POLYTOPES)
def test_a_regular_polytope_is_one_cluster_at_its_gap_however_it_is_turned(name):
    x, gap = POLYTOPES[name]
    d = x.shape[1]
    for seed in range(4):
        turned = x @ special_ortho_group.rvs(d, random_state=seed) if seed else x
        heights = compiled.merge_heights(turned)
        assert len(turned) == len(x) and heights == pytest.approx(gap, rel=1e-12)
        for scale in (gap, heights[0], heights[-1]):
            assert clusters.count(turned, scale) == 1
        assert clusters.count(turned, gap * (1 - 1e-9)) == len(x)
        assert clusters.sizes(turned.astype(np.float32), gap).tolist() == [len(x)]


@given(seed=SEEDS, n=st.integers(2, 25), d=st.integers(2, 5), clustered=st.booleans())
@QUICK
def test_partitions_change_at_the_merge_heights_and_at_the_scales_of_the_persistent_count(
    seed, n, d, clustered
):
    rng = np.random.default_rng(seed)
    x = caps(rng, min(d, 4), d, 1e-3)[0] if clustered else uniform(rng, n, d)
    heights = compiled.merge_heights(x)
    assume(heights[0] > 1e-5)  # below it, ties are wider than 1e-9
    left = [clusters.count(x, height) for height in heights]
    assert left == list(range(len(x) - 1, 0, -1))
    assert [clusters.count(x, height * (1 - 1e-9)) for height in heights] == [k + 1 for k in left]
    found = clusters.persistent_count(x)
    assert clusters.count(x, found.scale_low) == found.count
    assert clusters.count(x, found.scale_high * (1 - 1e-9)) == found.count
    assert clusters.count(x, found.scale_high) < max(found.count, 2)


def test_all_ways_to_find_components_agree_and_join_ties(monkeypatch):
    rng = np.random.default_rng(1)
    x = np.concatenate([uniform(rng, 2500, 3), caps(rng, 5, 3, 0.05, largest=200)[0]])
    by_pairs = clusters.labels(x, 0.04)
    assert 20 < by_pairs.max() < len(x) - 200
    turned, gap = ring(2500) @ special_ortho_group.rvs(2, random_state=0), 2 * math.pi / 2500
    for pairs in (20_000_000, 0):
        monkeypatch.setattr(compiled, "_PAIRS", pairs)
        np.testing.assert_array_equal(clusters.labels(x, 0.04), by_pairs)
        assert clusters.count(turned, gap) == 1
        assert clusters.count(turned, gap * (1 - 1e-9)) == 2500


def test_distances_are_those_of_directions_where_norms_are_off():
    x = uniform(np.random.default_rng(0), 2, 3) * [[1 + 8e-10], [1 - 5e-10]]
    assert clusters.count(x, angle_by_transport(*x)) == 1
    assert clusters.count(x, angle_by_transport(*x) * (1 - 1e-9)) == 2


def test_single_precision_tokens_that_agree_to_rounding_are_one():
    rng = np.random.default_rng(0)
    x = np.repeat(uniform(rng, 2, 3), 6, axis=0)
    x = wflow.sphere.as_tokens(x + 3e-8 * rng.standard_normal(x.shape)).astype(np.float32)
    found = clusters.persistent_count(x)
    assert found.count == 2 and found.persistence <= math.pi / 8e-7


def test_many_tokens_need_no_matrix_of_pairs():
    sparse = uniform(np.random.default_rng(2), 60_000, 3)  # whose matrix has 29 GB
    assert clusters.count(sparse, 1e-4) > 55_000
    assert clusters.count(sparse, 0.1) == 1
    piles = np.repeat(np.eye(3), 20_000, axis=0)
    np.testing.assert_array_equal(clusters.sizes(piles, 0.01), [20_000] * 3)


def test_one_token_and_tokens_that_coincide():
    one = np.eye(3)[:1]
    assert clusters.count(one, 0) == 1 and clusters.persistent_count(one).count == 1
    assert clusters.order_parameter(one) == 1 == clusters.nematic_order(one)
    same = np.repeat(uniform(np.random.default_rng(0), 3, 4), 5, axis=0)
    assert clusters.count(same, 0) == 3 == clusters.persistent_count(same).count
    tight = wflow.sphere.as_tokens(one + 1e-12 * np.random.default_rng(0).normal(size=(9, 3)))
    found = clusters.persistent_count(tight)
    assert found.count == 1 and found.persistence == pytest.approx(math.pi / 1e-8)
    far = np.eye(3)[:2]
    assert clusters.persistent_count(far).count == 2


def test_order_parameters_of_pairs_and_of_the_cross_polytope():
    pair = np.array([[1.0, 0, 0], [-1.0, 0, 0]])
    assert clusters.order_parameter(pair) == 0 and clusters.nematic_order(pair) == 1
    polytope = np.concatenate([np.eye(4), -np.eye(4)])
    assert clusters.order_parameter(polytope) == 0
    assert clusters.nematic_order(polytope) == pytest.approx(1 / 4)
    angle = 0.8
    two = np.array([[1.0, 0], [math.cos(angle), math.sin(angle)]])
    assert clusters.order_parameter(two) == pytest.approx(math.cos(angle / 2), rel=1e-14)


@pytest.mark.parametrize("d", [2, 3, 50])
@pytest.mark.parametrize("bandwidth", [0.01, 1.0, 3.0])
def test_entropy_of_a_dirac_is_that_of_the_kernel(d, bandwidth):
    kappa, order = bandwidth**-2, d / 2 - 1
    bessel = ive(order, kappa)  # e^-kappa I
    log_constant = -(gammaln(d / 2) + order * np.log(2 / kappa) + np.log(bessel)) - kappa
    want = -(log_constant + kappa * ive(order + 1, kappa) / bessel)
    dirac = np.repeat(np.eye(d)[:1], 4, axis=0)
    assert clusters.entropy(dirac, bandwidth) == pytest.approx(want, rel=1e-6, abs=1e-8)


def test_entropy_of_uniform_tokens_vanishes_like_its_bias():
    assert clusters.entropy(ring(64)) == pytest.approx(0, abs=1e-12)
    rng = np.random.default_rng(0)
    n, kappa = 400, 16.0
    fifty = np.mean([clusters.entropy(uniform(rng, n, 3)) for _ in range(30)])
    log_mean = np.log(np.sinh(kappa) / kappa)  # of e^{kappa t}, and of its square, on S^2
    square = np.exp(np.log(np.sinh(2 * kappa) / (2 * kappa)) - 2 * log_mean)
    assert fifty == pytest.approx(-(square - 1) / (2 * n), rel=0.1)


def test_entropy_of_two_far_points_is_log_2_above_one_and_rotation_changes_little():
    pair = np.array([[1.0, 0, 0], [-1.0, 0, 0]])
    one = clusters.entropy(pair[:1], 0.1)
    assert clusters.entropy(pair, 0.1) - one == pytest.approx(math.log(2), abs=1e-12)
    rng = np.random.default_rng(0)
    x = wflow.tokens.clusters(150, 3, seed=1)
    turned = x @ special_ortho_group.rvs(3, random_state=rng)
    assert clusters.entropy(turned) == pytest.approx(clusters.entropy(x), abs=0.02)
    assert clusters.entropy(x) < clusters.entropy(uniform(rng, 150, 3)) < 0


def test_stationarity_vanishes_at_eigenvectors_and_is_the_speed_elsewhere():
    D = np.diag([1.0, 2.0, 3.0])[None]
    rest = clusters.stationarity(np.eye(3)[[2]], D)
    assert rest.rms == 0 == rest.largest
    x = uniform(np.random.default_rng(0), 20, 3)
    speed = np.linalg.norm(wflow.velocity(x, D, direction="ascent"), axis=1)
    moving = clusters.stationarity(x, D, direction="ascent")
    assert moving.rms == pytest.approx(math.sqrt(np.mean(speed**2)), rel=1e-14)
    assert moving.largest == pytest.approx(speed.max(), rel=1e-14)


def test_plateaus_are_long_in_the_log_of_time():
    times = np.array([0, 1, 2, 3, 10, 20, 100, 200, 1000.0])
    counts = np.array([9, 9, 9, 5, 5, 5, 2, 2, 1])
    found = clusters.plateaus(times, counts, below=9)
    assert found == [
        clusters.Plateau(3.0, 100.0, 5, True),
        clusters.Plateau(100.0, 1000.0, 2, True),
    ]
    assert clusters.plateaus(times, counts)[0] == clusters.Plateau(1.0, 3.0, 9, True)
    assert [p.count for p in clusters.plateaus(times, counts, min_length=0.4)] == [5]
    unended = clusters.plateaus(times[:-1], counts[:-1], below=9)[-1]
    assert unended == clusters.Plateau(100.0, 200.0, 2, False)
    cut = clusters.plateaus(times, np.where(times > 100, np.nan, counts), below=9)
    assert cut == [clusters.Plateau(3.0, 100.0, 5, True)]
    assert clusters.plateaus(times, np.ones(9)) == []
    assert clusters.plateaus([0.0, 1.0], [3, 3]) == []


@pytest.fixture(scope="module")
def merging(tmp_path_factory) -> str:
    """Return a run in which two paths of four tight groups become one cluster."""
    file = tmp_path_factory.mktemp("clusters") / "run.h5"
    x0 = np.stack([wflow.tokens.clusters(24, 3, clusters=4, spread=0.1, seed=s) for s in (1, 2)])
    wflow.solve(
        x0, Frozen(), heads=2 * np.eye(3)[None], t_final=12.0, dt=0.05, paths=2, scheme="rk4",
        direction="ascent",
        save=wflow.SaveAt(snapshots=np.linspace(0, 12, 25), paths=(0, 1), every=4), out=file,
    ).close()  # fmt: skip
    return str(file)


def test_series_of_a_run_file_are_those_of_its_clouds(merging):
    table = clusters.over_time(merging, 0.05)
    assert set(table.data_vars) == set(clusters.QUANTITIES)
    assert table["count"].dims == ("snapshot_path", "snapshot")
    assert all(table[name].attrs["long_name"] for name in table.data_vars)
    with wflow.open(merging) as run:
        for p in range(2):
            for k in (0, 3, 24):
                x = wflow.sphere.as_tokens(run["tokens"][p, k].values)
                here = table.isel(snapshot_path=p, snapshot=k)
                assert here["count"] == clusters.count(x, 0.05)
                assert here["largest_share"] == clusters.sizes(x, 0.05)[0] / 24
                assert here["persistent_count"] == clusters.persistent_count(x).count
                assert here["order_parameter"] == clusters.order_parameter(x)
                assert here["entropy"] == clusters.entropy(x)
        again = clusters.over_time(run, 0.05, quantities=["count"])
        assert list(again.data_vars) == ["count"] and again["count"].equals(table["count"])
    np.testing.assert_array_equal(table["count"][:, -1], 1)
    assert np.all(table["count"][:, 0] > 4) and np.all(table["persistent_count"][:, -1] == 1)
    assert np.all(np.diff(table["order_parameter"].values[:, -5:]) > -1e-12)


def test_ties_along_a_run_in_single_precision_are_joined():
    x0, gap = np.pad(ring(24), ((0, 0), (0, 1))), math.pi / 12
    still = wflow.solve(
        x0, Frozen(), heads=np.zeros((1, 3, 3)), t_final=1.0, dt=0.5,
        save=wflow.SaveAt(snapshots=[0.0, 1.0]), compute=wflow.Compute(dtype="float32"),
    )  # fmt: skip
    table = still.wflow.clusters(gap, quantities=["count", "largest_share"])
    assert (table["count"] == 1).all() and (table["largest_share"] == 1).all()
    assert (clusters.time_to_one_cluster(still, gap) == 0).all()
    assert (clusters.time_to_first_cluster(still, gap, share=1.0) == 0).all()


def test_times_of_clusters_are_first_snapshots_and_nan_for_never(merging):
    counts = clusters.over_time(merging, 0.05, quantities=["count", "largest_share"])
    times = counts["snapshot"].values
    one = clusters.time_to_one_cluster(merging, 0.05)
    first = clusters.time_to_first_cluster(merging, 0.05, share=0.5)
    for p in range(2):
        assert one[p] == times[np.flatnonzero(counts["count"][p] == 1)[0]]
        assert first[p] == times[np.flatnonzero(counts["largest_share"][p] >= 0.5)[0]]
    assert np.all(clusters.time_to_first_cluster(merging, 0.05, share=1e-6) <= first)
    assert np.isnan(clusters.time_to_one_cluster(merging, 0)).all()
    assert one.attrs["long_name"]


def test_snapshots_that_were_not_recorded_are_nan(merging):
    with wflow.open(merging) as run:
        cut = run.load().copy(deep=True)
    cut["tokens"][1, 5:] = np.nan
    table = clusters.over_time(cut, 0.05, quantities=["count", "entropy"])
    assert np.isnan(table["count"][1, 5:]).all() and np.isfinite(table["entropy"][1, :5]).all()
    assert np.isnan(clusters.time_to_one_cluster(cut, 0.05)[1])


def solved(law, *, heads=3, t_final=40.0, paths=1, budget=None, **more):
    x0 = wflow.tokens.uniform(16, 3, seed=3)
    return wflow.solve(
        x0, law, heads=heads, t_final=t_final, dt=0.05, paths=paths,
        save=wflow.SaveAt(every=4, snapshots=(0.0, t_final - 1, t_final), budget=budget), **more,
    )  # fmt: skip


def test_frozen_heads_come_to_rest_and_the_rate_is_found():
    run = solved(Frozen(), heads=np.eye(3)[None], direction="ascent", scheme="rk4")
    limit = clusters.omega_limit(run)
    assert limit.verdict == "stationary" and limit.integrable == "yes"
    assert limit.quantity == "upper_gradient_sq" and limit.tail == (20.0, 40.0)
    assert limit.power_integral == (0, 0) and limit.w2_last < 1e-6
    early = clusters.omega_limit(run.sel(time=slice(0, 15)), tail=0.3, tolerance=0)
    assert early.verdict == "stationary" and early.decay.law == "exponential"
    # Around one cluster v = -(x - mean), so that G^2, which squares it, decays like e^{-2 t}.
    assert early.decay.rate == pytest.approx(2, abs=0.02)


def test_oscillating_heads_do_not_come_to_rest():
    run = solved(Oscillating(3, phases="common"), heads=2, t_final=80.0, scheme="heun")
    limit = clusters.omega_limit(run)
    assert limit.verdict == "not stationary" and limit.integrable == "no"
    assert any("does not vanish" in reason for reason in limit.reasons)
    assert abs(limit.decay.exponent) < 0.5 and limit.ratio > 1e-4
    assert limit.power_integral[0] > limit.power_integral[1] > 1


def test_noise_on_the_heads_feeds_what_the_tokens_dissipate():
    law = OrnsteinUhlenbeck(np.eye(3), rate=1.0, sigma2=2.0)
    run = solved(law, heads=4, t_final=40.0, paths=24, seed=1)
    limit = clusters.omega_limit(run)
    assert limit.verdict == "not stationary" and limit.integrable == "no"
    power, error = limit.power_tail
    late = run.sel(time=slice(30, 40))["dissipation"].values.mean()
    assert power > 3 * error and power == pytest.approx(late, abs=4 * error)
    assert limit.power_integral_paths[1] > limit.power_integral[1]
    few = clusters.omega_limit(run.isel(path=[0, 1], time=slice(0, 40)), windows=4)
    assert few.integrable in ("in expectation", "undecided", "no")


@pytest.mark.parametrize("t_final", [0.25, 2.0])
def test_a_short_run_with_noise_on_the_heads_is_never_stationary(t_final):
    law = OrnsteinUhlenbeck(np.eye(3), rate=1.0, sigma2=2.0)
    for seed in range(5):
        x0 = wflow.tokens.cross_polytope(60, 3, spread=0.05, seed=seed)
        run = wflow.solve(
            x0, law, heads=4, t_final=t_final, dt=5e-3, seed=seed,
            save=wflow.SaveAt(snapshots=(0.0,)),
        )  # fmt: skip
        assert clusters.omega_limit(run).verdict != "stationary"


def test_a_tail_in_which_tokens_hardly_move_is_undecided():
    run = solved(Frozen(), heads=np.eye(3)[None], direction="ascent", t_final=2.0)
    limit = clusters.omega_limit(run.sel(time=slice(0, 0.8)), windows=4, tail=0.9)
    assert limit.verdict == "undecided" and "too short" in limit.reasons[0]


def test_heads_that_relax_bring_the_tokens_to_rest():
    quiet = clusters.omega_limit(
        solved(OrnsteinUhlenbeck(np.eye(3), rate=1.0, sigma2=0.0), t_final=20.0, scheme="rk4")
    )
    assert quiet.integrable == "yes" and quiet.power_decay is not None
    assert quiet.power_decay.rate == pytest.approx(1, abs=0.3)


@given(p=st.floats(-1, 4), seed=SEEDS)
@QUICK
def test_verdict_follows_the_exponent_of_the_decay(p, seed):
    time = np.linspace(0, 100, 401)
    rng = np.random.default_rng(seed)
    values = (1 + time) ** -p * np.exp(0.05 * rng.standard_normal((5, 401)))
    run = xarray.Dataset(
        {"speed_sq": (("path", "time"), values)}, {"time": time, "path": np.arange(5)}
    )
    limit = clusters.omega_limit(run)
    assert limit.decay.exponent == pytest.approx(p * 0.986, abs=0.1)
    assert limit.decay.exponent_ci[0] < limit.decay.exponent < limit.decay.exponent_ci[1]
    if p > 1.25:
        assert limit.verdict == "stationary"
    elif p < 0.35:
        assert limit.verdict == "not stationary"
    elif 0.7 < p < 0.9:
        assert limit.verdict == "undecided"
    assert limit.integrable == "unknown" and math.isnan(limit.w2_last)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("angle", [1e-3, 0.1, 1.0, 2.0, 3.0])
def test_ties_are_as_wide_as_stated(angle, dtype):
    x = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype)
    chord, unit = pdist(x)[0], np.finfo(dtype).eps
    tie = min(16 * unit / chord, chord * math.sqrt(unit) / 32) + 2 * unit
    for share, expected in ((0.7, 1), (1.3, 2)):
        assert clusters.count(x, 2 * math.asin((chord - share * tie) / 2)) == expected


@given(seed=SEEDS, scale=st.floats(0, math.pi), unit=st.sampled_from([2.0**-52, 2.0**-23]))
@QUICK
def test_the_number_of_clusters_falls_as_the_scale_grows(seed, scale, unit):
    rng = np.random.default_rng(seed)
    scales = np.sort(
        scale * (1 + rng.uniform(-1e-5, 1e-5, 200) * rng.choice([1, 1e-5, 1e-10], 200))
    )
    reached = [compiled.reach(s, unit) for s in np.minimum(scales, math.pi)]
    assert np.all(np.diff(reached) >= -1e-15)
    x = ring(int(rng.integers(3, 30)))
    counts = [clusters.count(x, s) for s in np.sort(np.append(rng.uniform(0, 3, 20), 0))]
    assert np.all(np.diff(counts) <= 0)
