"""Minimizing movements: the functional falls, De Giorgi's identity, the flows they follow."""

import json
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import special_ortho_group
from test_metric import numeric_gradient
from twin import symmetric, unit

import wflow
from wflow import BlowUpError, heads, jko
from wflow.heads.process import head_path
from wflow.sphere import normalise
from wflow.transport import W2, Metric, Weighted
from wflow.transport.jko import StepProblem

QUICK = settings(max_examples=12, deadline=None)
SEEDS = st.integers(0, 10_000)
METRICS = pytest.mark.parametrize("metric", ["w2", "weighted"])
BOTH_WAYS = pytest.mark.parametrize("direction", ["descent", "ascent"])
FLOW = {"w2": "unnormalised", "weighted": "effective"}
E = np.eye(3)[2]
SIGN = {"descent": 1.0, "ascent": -1.0}


class Along(Metric):
    """b(x) = 1 + strength <x, axis>^2: tokens near both poles are slow."""

    def __init__(self, axis: np.ndarray, strength: float, segments: int = 1) -> None:
        self.axis, self.strength, self.segments = axis, strength, segments

    def mobility_and_gradient(self, clouds, D, weights):
        height = clouds @ self.axis
        gradient = 2 * self.strength * (weights * height)[..., None] * self.axis
        return 1 + self.strength * height**2, gradient

    def to_config(self):
        return {"axis": self.axis, "strength": self.strength}


class Masses(Metric):
    """W^2 = (1/n) sum_i mass_i |x_i, y_i|^2: tokens with masses, which cannot be exchanged."""

    def __init__(self, masses: np.ndarray) -> None:
        self.masses = masses

    def mobility_and_gradient(self, clouds, D, weights):
        return np.broadcast_to(self.masses, clouds.shape[:2]), np.zeros(clouds.shape)

    def reassign(self, curve, b):
        return curve, False


class Chordal(Metric):
    """W^2 = (1/n) sum_i |x_i - y_i|^2, the chord in place of the angle."""

    def mobility_and_gradient(self, clouds, D, weights):
        return np.ones(clouds.shape[:2]), np.zeros(clouds.shape)

    def cost(self, curve, D, b):
        move = curve[1:] - curve[:1]
        return float((move**2).sum()) / 2, move

    def reassign(self, curve, b):
        labels = wflow.transport.assignment(*curve, cost="chordal")
        improved = not np.array_equal(labels, np.arange(len(labels)))
        return np.stack([curve[0], curve[1][labels]]), improved


def problem(seed: int, n: int = 10, d: int = 3, count: int = 3, size: float = 0.5):
    rng = np.random.default_rng(seed)
    return unit(rng, n, d), size * symmetric(rng, count, d, d)


@pytest.mark.parametrize(
    "metric",
    [W2(), Weighted(3), Along(E, 2.0, 3), Chordal(), Masses(np.arange(1.0, 5.0))],
    ids=lambda metric: type(metric).__name__,
)
@BOTH_WAYS
def test_gradient_of_the_functional_is_that_of_finite_differences(metric, direction) -> None:
    x, D = problem(1, n=4)
    functional = StepProblem(x, D, metric, SIGN[direction])._objective(0.2)
    y = normalise(x + 0.2 * np.random.default_rng(0).normal(size=x.shape))
    path = np.stack([normalise(2 * x + y), normalise(x + y), y])
    nodes = path[3 - metric.segments :]
    gradient = functional(nodes)[1]
    tangential = gradient - (gradient * nodes).sum(axis=-1, keepdims=True) * nodes
    numeric = numeric_gradient(lambda p: functional(p)[0], nodes)
    assert np.abs(tangential - numeric).max() < 1e-8


@METRICS
@given(
    seed=SEEDS, tau=st.sampled_from([1e-3, 0.03, 0.3, 2.0]), count=st.integers(1, 4),
    d=st.integers(2, 4), direction=st.sampled_from(["descent", "ascent"]),
)  # fmt: skip
@QUICK
def test_energy_never_moves_the_wrong_way(metric, seed, tau, count, d, direction) -> None:
    x, D = problem(seed, n=7, d=d, count=count)
    found = jko.step(x, D, tau, metric=metric, direction=direction)
    assert found.converged and found.coupling_optimal
    sign = SIGN[direction]
    fall = sign * (wflow.energy(x, D) - wflow.energy(found.tokens, D))
    assert found.energy_before == pytest.approx(wflow.energy(x, D), rel=1e-13)
    assert fall >= found.distance_sq / (2 * tau) - 1e-13
    assert found.inequality_gap == pytest.approx(fall - found.distance_sq / (2 * tau), abs=1e-13)
    assert np.abs(np.linalg.norm(found.tokens, axis=1) - 1).max() < 1e-14


@METRICS
@BOTH_WAYS
def test_step_solves_its_euler_lagrange_equation(metric, direction) -> None:
    # W₂: log_y(x) = s tau gbar(y). W_b: the same functional, minimised by another program.
    x, D = problem(2, n=6)
    tau = 0.1
    found = jko.step(x, D, tau, metric=metric, direction=direction)
    assert found.gradient_norm < 1e-9
    y, sign = found.tokens, SIGN[direction]
    if metric == "w2":
        gbar = wflow.velocity(y, D, flow="unnormalised", direction="ascent")
        cosine = (x * y).sum(axis=1, keepdims=True)
        log = np.arccos(cosine) / np.sqrt(1 - cosine**2) * (x - cosine * y)
        assert np.abs(log - sign * tau * gbar).max() < 1e-8

    def plain(p: np.ndarray) -> float:
        y = normalise(p.reshape(x.shape))
        square = np.arccos(np.clip((x * y).sum(axis=1), -1, 1)) ** 2
        if metric == "weighted":
            square *= (wflow.effective_mobility(x, D) + wflow.effective_mobility(y, D)) / 2
        return sign * wflow.energy(y, D) + square.mean() / (2 * tau)

    other = minimize(plain, y.ravel() + 1e-3, method="BFGS", options={"gtol": 1e-9})
    assert plain(y.ravel()) <= other.fun + 1e-12
    assert np.abs(normalise(other.x.reshape(x.shape)) - y).max() < 1e-5


@METRICS
@BOTH_WAYS
def test_one_step_agrees_with_the_explicit_flow_to_second_order(metric, direction) -> None:
    x, D = problem(3, n=12)
    v = wflow.velocity(x, D, flow=FLOW[metric], direction=direction)
    errors = []
    for tau in (2e-3, 1e-3):
        y = jko.step(x, D, tau, metric=metric, direction=direction).tokens
        errors.append(np.abs(y - normalise(x + tau * v)).max())
    assert errors[0] / errors[1] == pytest.approx(4, abs=0.15)


@METRICS
@given(seed=SEEDS)
@QUICK
def test_step_turns_with_its_cloud_and_heads_and_permutes_with_its_tokens(metric, seed) -> None:
    x, D = problem(seed, n=6)
    y = jko.step(x, D, 0.1, metric=metric).tokens
    R = special_ortho_group.rvs(3, random_state=seed)
    turned = jko.step(normalise(x @ R.T), R @ D @ R.T, 0.1, metric=metric).tokens
    assert np.abs(turned - y @ R.T).max() < 1e-7
    order = np.random.default_rng(seed).permutation(6)
    assert np.abs(jko.step(x[order], D, 0.1, metric=metric).tokens - y[order]).max() < 1e-7


def test_one_token_on_the_circle_minimises_a_function_of_one_angle() -> None:
    D = np.diag([1.0, -0.5])[None]
    x = np.array([[np.cos(0.4), np.sin(0.4)]])
    tau = 0.3

    def root_of_b(angle: np.ndarray) -> np.ndarray:
        return np.exp((np.cos(angle) ** 2 - 0.5 * np.sin(angle) ** 2) / 2)

    angle = np.linspace(-0.5, 2.5, 600_001)
    energy = np.exp(np.cos(angle) ** 2 - 0.5 * np.sin(angle) ** 2) / 2
    along = np.concatenate([[0.0], np.cumsum((root_of_b(angle)[1:] + root_of_b(angle)[:-1]) / 2)])
    along *= angle[1] - angle[0]
    arc = along - np.interp(0.4, angle, along)
    for metric, distance in (("w2", angle - 0.4), ("weighted", arc)):
        best = angle[np.argmin(energy + distance**2 / (2 * tau))]
        found = jko.step(x, D, tau, metric=metric, segments=32)
        assert np.arctan2(found.tokens[0, 1], found.tokens[0, 0]) == pytest.approx(best, abs=2e-4)


def test_more_segments_change_a_weighted_step_at_second_order() -> None:
    x, D = problem(6)
    y = [jko.step(x, D, 0.2, metric="weighted", segments=k).tokens for k in (2, 4, 8, 16)]
    gaps = [np.abs(a - b).max() for a, b in pairwise(y)]
    assert gaps[0] / gaps[1] == pytest.approx(4, abs=0.4)
    assert gaps[1] / gaps[2] == pytest.approx(4, abs=0.4)


@METRICS
def test_stationary_cloud_stays(metric) -> None:
    x = np.repeat(np.eye(3)[:1], 5, axis=0)  # a Dirac at an eigenvector
    found = jko.step(x, np.diag([1.0, 0.5, -1])[None], 0.1, metric=metric)
    assert found.converged and np.abs(found.tokens - x).max() < 1e-12


def test_step_cut_short_warns_and_is_recorded() -> None:
    x, D = problem(7, size=1.0)
    with pytest.warns(RuntimeWarning, match="did not converge"):
        found = jko.step(x, D, 0.3, max_iterations=2)
    assert not found.converged and found.gradient_norm > 1e-6
    with pytest.warns(RuntimeWarning, match="did not converge"):
        run = jko.minimizing_movements(
            x, heads.Frozen(), heads=D, t_final=0.6, tau=0.3, max_iterations=2
        )
    assert run["converged"].values.tolist()[0] and not run["converged"].values[1]


def test_step_that_leaves_a_steep_start_is_judged_by_its_end() -> None:
    # Scores of 100: the energy falls by nine orders of magnitude, the gradient with it.
    rng = np.random.default_rng(1)
    D = symmetric(rng, 2, 3, 3)
    D *= 100 / np.abs(np.linalg.eigvalsh(D)).max()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = jko.step(unit(rng, 20, 3), D, 0.1)
    assert found.converged is not bool(caught)
    assert not found.converged or found.gradient_norm < 1e-8 * np.sqrt(found.distance_sq) / 0.1


def test_tokens_are_exchanged_where_the_metric_allows_it() -> None:
    # From the solution with two tokens exchanged the metric comes back to optimal labels.
    x, D = problem(11, n=8)
    swapped, b = [1, 0, *range(2, 8)], np.ones((2, 8))
    y = StepProblem(x, D, W2(), 1.0).solve(0.1, tolerance=1e-9, max_iterations=100).tokens
    curve, improved = W2().reassign(np.stack([x, y[swapped]]), b)
    assert improved and np.array_equal(curve[1], y)
    assert not W2().reassign(np.stack([x, y]), b)[1]
    masses = Masses(np.arange(1.0, 9.0))
    assert not masses.reassign(np.stack([x, y[swapped]]), b * masses.masses)[1]


CUSTOM = [Along(E, 3.0), Along(E, 3.0, segments=4), Chordal(), Masses(np.linspace(1.0, 3.0, 8))]


@pytest.mark.parametrize("metric", ["w2", "weighted", *CUSTOM])
@BOTH_WAYS
def test_de_giorgi_identity_closes_to_the_quadrature(metric, direction) -> None:
    x, D = problem(8, n=8)
    terms = jko.energy_inequality(x, D, 0.05, metric=metric, direction=direction, nodes=6)
    assert terms.converged
    total = terms.distance_term + terms.interpolation_term
    assert abs(terms.gap) < 1e-9 * total
    fall = terms.energy_before - terms.energy_after
    assert fall == pytest.approx(total + terms.gap, abs=1e-13)
    assert terms.plain_gap == pytest.approx(terms.interpolation_term, rel=1e-7)
    assert terms.slope_term == pytest.approx(terms.interpolation_term, rel=5e-3)


@METRICS
def test_slope_of_the_interpolation_is_its_speed_in_w2_and_to_first_order_in_wb(metric) -> None:
    x, D = problem(9, n=8)
    gaps = []
    for tau in (0.02, 0.01):
        terms = jko.energy_inequality(x, D, tau, metric=metric, nodes=5)
        gaps.append(abs(terms.slope_term / terms.interpolation_term - 1))
    assert max(gaps) < 1e-8 if metric == "w2" else 1e-9 < gaps[1] < 1e-3
    assert metric == "w2" or gaps[0] / gaps[1] > 1.8


@METRICS
def test_variational_interpolation_ends_at_the_step_and_begins_at_the_start(metric) -> None:
    x, D = problem(10)
    end = jko.variational_interpolation(x, D, 0.1, 0.1, metric=metric)
    assert np.array_equal(end.tokens, jko.step(x, D, 0.1, metric=metric).tokens)
    path = [jko.variational_interpolation(x, D, 0.1, r, metric=metric) for r in (1e-4, 0.02, 0.05)]
    distances = [at.distance_sq for at in (*path, end)]
    assert np.all(np.diff(distances) > 0)  # [AGS] Lemma 3.1.2
    assert np.all(np.diff([at.energy_after for at in (*path, end)]) < 0)
    assert np.sqrt(distances[0]) < 1e-3


@pytest.mark.parametrize(
    ("metric", "count"),
    [("w2", 1), ("w2", 4), ("weighted", 1), ("weighted", 4), (Along(E, 3.0), 3)],
)
@BOTH_WAYS
def test_minimizing_movements_converge_to_their_flow_at_first_order(metric, count, direction):
    x, D = problem(12, n=8, count=count)
    flow, steps = FLOW.get(metric, "unnormalised"), 400
    options = {"heads": D, "t_final": 0.4, "metric": metric, "direction": direction}

    def velocity(x: np.ndarray) -> np.ndarray:
        v = wflow.velocity(x, D, flow=flow, direction=direction)
        return v if metric in FLOW else v / (1 + 3 * (x @ E) ** 2)[:, None]

    y, h = x, 0.4 / steps
    for _ in range(steps):
        y = normalise(y + h * velocity(normalise(y + h / 2 * velocity(y))))
    errors = []
    for tau in (0.02, 0.01):
        run = jko.minimizing_movements(x, heads.Frozen(), tau=tau, **options)
        assert run["converged"].all() and run.attrs["gradient_flow"] == FLOW.get(metric, "s gbar/b")
        assert np.all(SIGN[direction] * np.diff(run["energy"]) <= 0)
        assert (run["inequality_gap"] >= -1e-14).all()
        errors.append(np.sqrt(((run["tokens"].values[-1] - y) ** 2).sum(axis=1).mean()))
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize(
    ("name", "metric", "segments"), [("w2", W2(), 1), ("weighted", Weighted(segments=2), 2)]
)
def test_names_of_metrics_are_their_objects(name, metric, segments) -> None:
    x, D = problem(16, n=6)
    options = {"heads": D, "t_final": 0.2, "tau": 0.1}
    named = jko.minimizing_movements(x, heads.Frozen(), **options, metric=name, segments=segments)
    given = jko.minimizing_movements(x, heads.Frozen(), **options, metric=metric)
    assert given.equals(named)
    config = json.loads(given.attrs["config"])
    assert config["metric"] == given.attrs["metric"] == name and config["segments"] == segments


def test_configuration_identifies_a_custom_metric_by_its_code_and_data() -> None:
    x, D = problem(21, n=5)

    def config(metric: Metric) -> dict:
        options = {"heads": D, "t_final": 0.1, "tau": 0.1, "metric": metric}
        run = jko.minimizing_movements(x, heads.Frozen(), **options)
        assert run.attrs["metric"] == type(metric).__name__
        assert run.attrs["gradient_flow"] == "s gbar/b"
        return json.loads(run.attrs["config"])["metric"]

    found = config(Along(E, 2.0))
    assert found["name"] == "Along" and found["strength"] == 2.0 and found["axis"] == [0, 0, 1]
    assert found == config(Along(E, 2.0)) and found["fingerprint"]
    assert found["fingerprint"] != config(Along(E, 2.5))["fingerprint"]


SYMMETRIC_TABLE = 0.3 * symmetric(np.random.default_rng(0), 3, 2, 3, 3)
LAWS = {
    "ou": (heads.OrnsteinUhlenbeck(np.eye(3)), 3, "euler"),
    "ou exact": (heads.OrnsteinUhlenbeck(np.eye(3), exact=True), 3, "euler"),
    "oscillating rk4": (heads.Oscillating(3, "common"), 2, "rk4"),
    "constant": (heads.Schedule([0, 0.1, 0.2], SYMMETRIC_TABLE, "constant"), None, "euler"),
    "linear": (heads.Schedule([0, 0.1, 0.2], SYMMETRIC_TABLE), None, "heun"),
    "own": (heads.HeadLaw(lambda D, t: -D, 0.5), 2, "euler"),
}


@pytest.mark.parametrize("name", LAWS)
def test_head_path_is_that_of_solve_bit_for_bit(name) -> None:
    law, count, scheme = LAWS[name]
    x, _ = problem(0, n=5)
    run = wflow.solve(
        x, law, heads=count, t_final=0.4, dt=0.05, paths=3, seed=7, scheme=scheme,
        save=wflow.SaveAt(heads=True, snapshots=[0, 0.1, 0.2, 0.3, 0.4], paths=[2]),
    )  # fmt: skip
    path = list(head_path(law, heads=count, d=3, t_final=0.4, dt=0.05, seed=7, path=2,
                          scheme=scheme, every=2))  # fmt: skip
    assert [t for t, _ in path] == run["snapshot"].values.tolist()
    assert np.array_equal(np.stack([D for _, D in path]), run["heads"].values[0])


@METRICS
@pytest.mark.parametrize("name", LAWS)
def test_all_head_laws_run_and_use_the_heads_at_the_end_of_each_step(metric, name) -> None:
    law, count, scheme = LAWS[name]
    x, _ = problem(13, n=6)
    run = jko.minimizing_movements(x, law, heads=count, t_final=0.3, tau=0.1, dt=0.025, seed=3,
                                   path=1, metric=metric, scheme=scheme)  # fmt: skip
    assert run["converged"].all() and (run["inequality_gap"] >= -1e-14).all()
    assert run["tokens"].shape == (4, 6, 3) and np.allclose(run["time"], [0, 0.1, 0.2, 0.3])
    path = list(head_path(law, heads=count, d=3, t_final=0.3, dt=0.025, seed=3, path=1,
                          scheme=scheme, every=4))  # fmt: skip
    for k in range(4):
        D = path[k][1]
        clouds = run["tokens"].values
        assert run["energy"].values[k] == pytest.approx(wflow.energy(clouds[k], D), rel=1e-12)
        if k:
            before = wflow.energy(clouds[k - 1], D)
            assert run["energy_before"].values[k] == pytest.approx(before, rel=1e-12)
            again = jko.step(clouds[k - 1], D, 0.1, metric=metric).tokens
            assert np.abs(again - clouds[k]).max() < 1e-12


def test_noisy_heads_give_the_same_path_as_an_explicit_run_to_first_order() -> None:
    x, _ = problem(14)
    law = heads.OrnsteinUhlenbeck(np.eye(3))
    dt, gaps = 1 / 1024, []
    options = {"heads": 4, "t_final": 0.25, "seed": 5}
    fine = wflow.solve(
        x, law, dt=dt, flow="effective", paths=2, save=wflow.SaveAt(paths=[1]), **options
    )
    for tau in (1 / 32, 1 / 64):
        run = jko.minimizing_movements(x, law, tau=tau, dt=dt, metric="weighted", path=1, **options)
        gap = run["tokens"].values[-1] - fine["tokens"].values[0, -1]
        gaps.append(np.sqrt((gap**2).sum(axis=1).mean()))
    assert gaps[1] < 0.7 * gaps[0] < 0.05, gaps


def test_law_that_runs_away_is_found_out() -> None:
    grow = heads.HeadLaw(lambda D, t: np.minimum(1e300 * np.abs(D) + 1e300, 1e308))
    path = head_path(grow, heads=np.eye(3)[None], d=3, t_final=100.0, dt=10.0)
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(BlowUpError, match="finite"):
        list(path)
