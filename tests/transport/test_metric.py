"""The weighted metric: kernel and gradients, closed forms, axioms of a metric, two-sided bounds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import special_ortho_group
from twin import symmetric, unit

import wflow
from wflow import metric
from wflow.sphere import normalise
from wflow.sphere.geodesics import angles, geodesics, logarithm, refined, spring_solver
from wflow.transport import Weighted
from wflow.transport.minimise import minimise
from wflow.transport.mobility import weighted_sums

QUICK = settings(max_examples=15, deadline=None)
SEEDS = st.integers(0, 10_000)


def problem(seed: int, n: int = 8, d: int = 3, heads: int = 3, size: float = 0.5):
    rng = np.random.default_rng(seed)
    return unit(rng, n, d), unit(rng, n, d), size * symmetric(rng, heads, d, d)


def twin_sums(x: np.ndarray, D: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return b and the gradient of sum_i c_i b_i for one cloud, in extended precision."""
    x, D, c = (np.asarray(a, np.longdouble) for a in (x, D, c))
    U = np.exp(np.einsum("ia,hab,jb->hij", x, D, x))
    m = U.mean(axis=2)
    b = 1 / np.mean(1 / m, axis=0)
    w = c * b**2 / (len(D) * m**2)
    both = w[:, :, None] + w[:, None, :]
    return b, np.einsum("hij,hij,hab,jb->ia", both, U, D, x) / len(x)


def numeric_gradient(f, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Return the tangential gradient of f at points x on the sphere by central differences."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[place] += step
        behind[place] -= step
        gradient[place] = (f(normalise(ahead)) - f(normalise(behind))) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    ("clouds", "n", "d", "heads", "norm"),
    [(1, 1, 2, 1, 1), (3, 7, 3, 2, 2), (2, 20, 4, 5, 4), (1, 40, 3, 2, 63)],
)
def test_weighted_sums_equal_the_plain_ones_up_to_the_largest_scores(clouds, n, d, heads, norm):
    rng, error = np.random.default_rng(n), 1e-12 if norm == 63 else 1e-13
    x, D, c = unit(rng, clouds, n, d), symmetric(rng, clouds, heads, d, d), rng.random((clouds, n))
    D *= norm / np.abs(np.linalg.eigvalsh(D)).max()
    b, gradient = weighted_sums(x, D, c, True)
    for p in range(clouds):
        b_twin, gradient_twin = twin_sums(x[p], D[p], c[p])
        assert np.abs(b[p] / b_twin - 1).max() < error
        assert np.abs(gradient[p] - gradient_twin).max() < error * np.abs(gradient_twin).max()
        assert np.allclose(b[p], wflow.effective_mobility(x[p], D[p]), rtol=error)
    assert weighted_sums(x, D, c, False)[1].shape == (0, n, d)
    shared = weighted_sums(x, D[:1], c, True)
    own = weighted_sums(x, np.repeat(D[:1], clouds, axis=0), c, True)
    assert all(np.array_equal(a, b) for a, b in zip(shared, own, strict=True))


@pytest.mark.parametrize("free", [False, True])
def test_gradient_of_the_action_is_that_of_finite_differences(free) -> None:
    x, y, D = problem(5, n=4)
    curve = geodesics(x, y, 4)
    weighted = Weighted()
    ends = (curve[:1], curve[:0] if free else curve[-1:])
    b_ends = weighted.mobility(np.concatenate(ends), D)

    def action(nodes: np.ndarray) -> tuple[float, np.ndarray]:
        path = np.concatenate([ends[0], nodes, ends[1]])
        return metric.action_and_gradient(weighted, path, D, b_ends)

    nodes = curve[1:] if free else curve[1:-1]
    nodes = normalise(nodes + 0.1 * np.random.default_rng(0).normal(size=nodes.shape))
    value, gradient = action(nodes)
    path = np.concatenate([ends[0], nodes, ends[1]])
    b = metric.mobilities(weighted, nodes, D, b_ends)
    assert value == pytest.approx(metric.discrete_action(path, b), rel=1e-13)
    tangential = gradient - (gradient * nodes).sum(axis=-1, keepdims=True) * nodes
    numeric = numeric_gradient(lambda p: action(p)[0], nodes)
    assert np.abs(tangential - numeric).max() < 1e-8 * np.abs(numeric).max()


@QUICK
@given(seed=SEEDS, angle=st.floats(1e-7, math.pi - 1e-4), d=st.integers(2, 5))
def test_logarithm_and_geodesics_measure_the_angle(seed, angle, d) -> None:
    x = unit(np.random.default_rng(seed), 1, d)
    axis = unit(np.random.default_rng(seed + 1), 1, d)
    tangent = normalise(axis - (axis * x).sum() * x)
    y = math.cos(angle) * x + math.sin(angle) * tangent
    assert angles(x, y)[0] == pytest.approx(angle, rel=1e-8, abs=1e-15)
    log = logarithm(x, y)
    assert np.abs(log - angle * tangent).max() < 1e-8
    points = geodesics(x, y, 5)
    assert np.allclose(angles(points[:-1], points[1:]), angle / 5, rtol=1e-8)
    assert np.array_equal(points[0], x) and np.array_equal(points[-1], y)


def test_geodesics_between_antipodal_tokens_are_half_circles() -> None:
    x = unit(np.random.default_rng(0), 6, 3)
    points = geodesics(x, -x, 4)
    assert np.allclose(angles(points[:-1], points[1:]), math.pi / 4, rtol=1e-6)
    assert np.array_equal(geodesics(x, -x, 4), points)
    fine = refined(points)
    assert fine.shape == (9, 6, 3) and np.array_equal(fine[::2], points)


@pytest.mark.parametrize("free", [False, True])
def test_spring_solver_inverts_the_hessian_of_the_springs(free) -> None:
    rng = np.random.default_rng(1)
    stiffness = rng.uniform(0.1, 3, (5, 2))
    nodes = 5 if free else 4
    g = rng.normal(size=(nodes, 2, 3))
    u = spring_solver(stiffness, free_end=free)(g)
    for token in range(2):
        k = stiffness[:, token]
        ends = np.append(k, 0.0)[1 : nodes + 1]
        matrix = np.diag(k[:nodes] + ends) - np.diag(k[1:nodes], 1) - np.diag(k[1:nodes], -1)
        assert np.allclose(matrix @ u[:, token], g[:, token])


def test_minimiser_reaches_gradients_of_rounding_size() -> None:
    # f = sum <x, A x>, A = diag(1, 2, 5): minimal at the first axis. Its values would stop a line
    # search that compares them at a gradient of about 1e-8.
    A = np.diag([1.0, 2.0, 5.0])
    x = unit(np.random.default_rng(2), 10, 3)

    def f(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float(np.einsum("ik,kl,il->", x, A, x)), 2 * x @ A

    found = minimise(f, x, tolerance=1e-14, rounding=1e-14)
    assert found.converged and found.value == pytest.approx(10.0, abs=1e-14)
    assert np.abs(np.abs(found.x[:, 0]) - 1).max() < 1e-14


def circle(angle: float) -> np.ndarray:
    return np.array([[math.cos(angle), math.sin(angle)]])


def circle_distance(D: np.ndarray, start: float, end: float) -> float:
    """Return W_b of one token on the circle: int sqrt(b), b the harmonic mean of exp<x, D_h x>."""

    def root(angle: float) -> float:
        x = circle(angle)[0]
        return 1 / math.sqrt(np.mean(np.exp(-np.einsum("a,hab,b->h", x, D, x))))

    return quad(root, start, end, epsabs=1e-13)[0]


def test_distance_of_one_token_is_the_integral_of_the_root_of_b_at_second_order() -> None:
    D = np.array([[[1.5, 0.0], [0.0, -1.0]], [[0.3, 0.8], [0.8, -0.5]]])
    exact = circle_distance(D, 0.3, 2.2)
    found = [metric.weighted_distance(circle(0.3), circle(2.2), D, segments=K) for K in (16, 32)]
    errors = [abs(one.value - exact) for one in found]
    assert 3.5 < errors[0] / errors[1] < 4.5
    assert abs(found[1].extrapolated - exact) < 2e-5 * exact
    assert all(one.converged for one in found)


def test_a_distance_is_extrapolated_from_two_numbers_of_segments_or_not_at_all():
    D = np.array([[[1.5, 0.0], [0.0, -1.0]]])
    x, y = circle(0.3), circle(1.2)
    *some, four = (metric.weighted_distance(x, y, D, segments=K) for K in (1, 2, 3, 4))
    assert all(found.extrapolated is None and np.isfinite(found.value) for found in some)
    exact = circle_distance(D, 0.3, 1.2)
    assert abs(four.extrapolated - exact) < abs(four.value - exact) / 4


def test_distance_for_zero_heads_is_w2() -> None:
    x, y, _ = problem(1, n=12)
    found = metric.weighted_distance(x, y, np.zeros((2, 3, 3)), segments=6)
    w2, labels = wflow.transport.w2(x, y), wflow.transport.assignment(x, y)
    assert found.value == pytest.approx(w2, rel=1e-10)
    assert np.array_equal(found.coupling, labels)
    assert found.bounds[:3] == pytest.approx((w2, w2, w2), rel=1e-10)


def test_distance_of_tight_clouds_is_w2_times_the_root_of_the_local_mobility() -> None:
    # All tokens within 1e-3 of a point p: b is exp<p, D p> to first order in the spread.
    rng = np.random.default_rng(7)
    p, D = unit(rng, 1, 3), 0.5 * symmetric(rng, 1, 3, 3)
    x, y = (normalise(p + 1e-3 * rng.normal(size=(10, 3))) for _ in range(2))
    found = wflow.transport.weighted_distance(x, y, D, segments=2)
    b = math.exp(float(np.einsum("ia,hab,ib->", p, D, p)))
    assert found.value == pytest.approx(math.sqrt(b) * found.bounds.w2, rel=2e-3)


def test_action_of_a_rotation_at_constant_mobility_is_the_square_of_its_length() -> None:
    # D = c J with <x, J x> the same all along the rotated axis: b does not move.
    rng = np.random.default_rng(3)
    x = unit(rng, 6, 3)
    times = np.linspace(0, 2, 9)
    D = 0.7 * np.eye(3)[None]  # isotropic: a rotation of the cloud leaves b alone

    def turn(angle: float) -> np.ndarray:
        c, s = math.cos(angle), math.sin(angle)
        return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]])

    curve = np.stack([x @ turn(0.4 * t).T for t in times])
    b = wflow.effective_mobility(x, D)
    chords = 2 * np.arcsin(np.hypot(x[:, 0], x[:, 1]) * math.sin(0.4 * 0.25 / 2))
    want = 8 * (b * chords**2).mean() / 0.25
    assert metric.action(curve, times, D) == pytest.approx(want, rel=1e-12)
    classical = metric.action(curve, times)
    assert classical == pytest.approx(8 * (chords**2).mean() / 0.25, rel=1e-12)
    moving = np.repeat(D[None], 9, axis=0)
    assert metric.action(curve, times, moving) == metric.action(curve, times, D)


def test_metric_derivative_is_the_speed_weighted_by_b() -> None:
    x, _, D = problem(2, n=9)
    v = wflow.velocity(x, D, flow="effective")
    want = wflow.upper_gradient_sq(x, D, flow="effective")
    assert metric.metric_derivative(x, v, D) ** 2 == pytest.approx(want, rel=1e-12)
    assert metric.metric_derivative(x, v + 3 * x, D) ** 2 == pytest.approx(want, rel=1e-12)
    assert metric.metric_derivative(x, v) ** 2 == pytest.approx((v**2).sum(axis=1).mean())


@pytest.mark.parametrize("flow", ["softmax", "effective"])
def test_difference_quotients_converge_to_the_metric_derivative(flow) -> None:
    x, _, D = problem(6, n=10)
    v = wflow.velocity(x, D, flow=flow)
    speed = metric.metric_derivative(x, v, D)
    errors = []
    for delta in (4e-3, 2e-3):
        ahead = wflow.solve(x, wflow.heads.Frozen(), heads=D, t_final=delta, dt=delta / 4,
                            flow=flow, scheme="rk4")["tokens"].values[0, -1]  # fmt: skip
        errors.append(metric.weighted_distance(x, ahead, D, segments=2).value / delta / speed - 1)
    assert abs(errors[1]) < 0.02 and errors[0] / errors[1] == pytest.approx(2, abs=0.1)


@QUICK
@given(seed=SEEDS, n=st.integers(1, 9), d=st.integers(2, 4), heads=st.integers(1, 4))
def test_distance_is_symmetric_and_lies_between_its_bounds(seed, n, d, heads) -> None:
    x, y, D = problem(seed, n, d, heads)
    there = metric.weighted_distance(x, y, D, segments=4)
    back = metric.weighted_distance(y, x, D, segments=4)
    assert there.converged and back.converged
    assert there.value == pytest.approx(back.value, rel=1e-6)
    lower, upper, w2, c1, c2 = there.bounds
    assert 0 < lower <= there.value <= upper
    assert lower == pytest.approx(c1 * w2) and upper == pytest.approx(c2 * w2)
    assert there.value <= there.path_upper * (1 + 1e-12) <= upper * (1 + 1e-12)
    assert there.value >= there.path_lower * (1 - 1e-12) >= lower * (1 - 1e-12)
    assert there.bounds == metric.bounds(x, y, D)
    b = there.mobility
    assert c1**2 <= b.min() and b.max() <= c2**2


@QUICK
@given(seed=SEEDS)
def test_distance_obeys_the_triangle_inequality(seed) -> None:
    x, y, D = problem(seed, n=6)
    z = unit(np.random.default_rng(seed + 77), 6, 3)
    pairs = ((x, y), (y, z), (x, z))
    xy, yz, xz = (metric.weighted_distance(*p, D, segments=16).extrapolated for p in pairs)
    assert xz <= (xy + yz) * (1 + 1e-3)  # what discretisation and local minima leave


@QUICK
@given(seed=SEEDS)
def test_distance_vanishes_for_the_same_cloud_in_any_order_and_for_no_other(seed) -> None:
    x, _, D = problem(seed)
    order = np.random.default_rng(seed).permutation(len(x))
    same = metric.weighted_distance(x, x[order], D, segments=4)
    assert same.value < 1e-12 and same.converged
    assert np.array_equal(order[same.coupling], np.arange(len(x)))
    moved = normalise(x + 1e-3)
    assert metric.weighted_distance(x, moved, D, segments=4).value > 1e-5


@QUICK
@given(seed=SEEDS, d=st.integers(2, 4))
def test_distance_does_not_change_under_rotations_and_permutations(seed, d) -> None:
    x, y, D = problem(seed, n=7, d=d)
    R, rng = special_ortho_group.rvs(d, random_state=seed), np.random.default_rng(seed)
    given = (
        (x, y, D),
        (normalise(x @ R.T), normalise(y @ R.T), R @ D @ R.T),
        (rng.permutation(x), rng.permutation(y), rng.permutation(D)),
    )
    value, *others = (metric.weighted_distance(*each, segments=4).value for each in given)
    assert others == pytest.approx([value, value], rel=1e-6)


def test_curve_joins_the_clouds_and_its_action_is_the_square_of_the_distance() -> None:
    x, y, D = problem(8, n=10)
    found = metric.weighted_distance(x, y, D, segments=8)
    assert np.array_equal(found.curve[0], x)
    assert np.array_equal(found.curve[-1], y[found.coupling])
    assert np.abs(np.linalg.norm(found.curve, axis=-1) - 1).max() < 1e-14
    again = metric.action(found.curve, np.linspace(0, 1, 9), D)
    assert again == pytest.approx(found.action, rel=1e-12)
    assert found.value == pytest.approx(math.sqrt(found.action))
    straight = metric.action(geodesics(x, y[found.coupling], 8), np.linspace(0, 1, 9), D)
    assert found.action < straight


def test_matching_again_undoes_a_bad_labelling_and_never_costs() -> None:
    x, y, D = problem(9, n=12)
    bad = geodesics(x, y[np.random.default_rng(0).permutation(12)], 4)
    b = Weighted().mobility(bad, D)
    curve, b_new, labels = metric.recouple(bad, b)
    assert labels is not None and np.array_equal(curve[-1], bad[-1][labels])
    assert metric.discrete_action(curve, b_new) < metric.discrete_action(bad, b)
    assert np.allclose(b_new, Weighted().mobility(curve, D), rtol=1e-13)
    assert metric.recouple(curve, b_new)[2] is None


def test_antipodal_clouds_have_a_finite_distance_within_the_bounds() -> None:
    x = np.eye(3)
    found = metric.weighted_distance(x, -x, 0.3 * np.eye(3)[None], segments=8)
    assert found.converged and found.bounds.lower <= found.value <= found.bounds.upper
    one = metric.weighted_distance(x[:1], -x[:1], np.diag([1.0, -1, -1])[None], segments=32)
    exact = circle_distance(np.diag([1.0, -1])[None], 0, math.pi)
    assert one.value == pytest.approx(exact, rel=5e-3)


def test_bounds_of_heads_beyond_the_range_of_doubles_hold_and_are_no_nan() -> None:
    x, y, D = problem(3, n=4)
    far = metric.bounds(x, y, 2000 * np.eye(3)[None])
    assert far.lower == 0 and far.upper == math.inf
    high = metric.bounds(x, y, 1000 * np.eye(3)[None])  # e^500 is a double, e^1000 is none
    assert high.c2 == pytest.approx(math.exp(500), rel=1e-12)
    assert metric.bounds(x, x, 2000 * np.eye(3)[None]).upper == 0
    found, norms = metric.bounds(x, y, D), np.abs(np.linalg.eigvalsh(D)).max(axis=1)
    assert found.c2 == pytest.approx(np.exp(-norms).mean() ** -0.5, rel=1e-13)


def test_distance_cut_short_warns_and_says_so() -> None:
    x, y, D = problem(3, n=10, size=1.5)
    with pytest.warns(RuntimeWarning, match="did not converge"):
        found = metric.weighted_distance(x, y, D, tolerance=1e-9, max_iterations=1)
    assert not found.converged and found.gradient_norm > 1e-9
    assert found.value <= found.bounds.upper
