"""Linear assignment: optimal by its own potentials."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import wflow
from wflow import tokens, transport
from wflow.transport import linear_assignment as own


def clusters(n: int, width: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = tokens.uniform(5, 3, seed=99)[rng.integers(0, 5, n)]
    return wflow.sphere.as_tokens(centres + width * rng.standard_normal((n, 3)))


def shaken(x: np.ndarray, step: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    moved = wflow.sphere.as_tokens(x + step * rng.standard_normal(x.shape))
    return moved[rng.permutation(len(x))]


def squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return transport.distance(x, y) ** 2


def apart(n: int) -> tuple[np.ndarray, np.ndarray]:
    x = tokens.uniform(n, 3, seed=0)
    return x, shaken(x, 1e-8, 1)


COSTS = {
    "uniform": lambda n, rng: squares(*(tokens.uniform(n, 3, seed=s) for s in (0, 1))),
    "d = 8, chords": lambda n, rng: transport.distance(
        *(tokens.uniform(n, 8, seed=s) for s in (0, 1)), "chordal"
    ),
    "clusters": lambda n, rng: squares(clusters(n, 1e-2, 0), clusters(n, 1e-2, 1)),
    "points": lambda n, rng: squares(clusters(n, 1e-9, 0), clusters(n, 0.0, 1)),
    "to clusters": lambda n, rng: squares(tokens.uniform(n, 3, seed=0), clusters(n, 1e-4, 1)),
    "1e-8 apart": lambda n, rng: squares(*apart(n)),
    "ties": lambda n, rng: rng.integers(0, 3, (n, n)).astype(float),
    "all equal": lambda n, rng: np.ones((n, n)),
    "both signs": lambda n, rng: rng.standard_normal((n, n)),
    "large and small": lambda n, rng: 10.0 ** rng.uniform(-12, 12, (n, n)),
}


def cost_of(kind: str, n: int) -> np.ndarray:
    return COSTS[kind](n, np.random.default_rng(n))


SIZES = (1, 2, 31, 32, 33, 100, 257, own.WHOLE, own.WHOLE + 1, 700)


def assert_optimal(costs: np.ndarray) -> None:
    """Permutation and potentials prove each other: u_i + v_j <= C_ij, equal on the permutation."""
    n = len(costs)
    filled = np.full((n, -(-n // own.BLOCK) * own.BLOCK), np.inf)
    filled[:, :n] = costs
    columns, v = own.solve_arranged(filled)
    assert sorted(columns) == list(range(n))
    u = costs[np.arange(n), columns] - v[columns]
    rounding = 1e-14 * max(np.abs(costs).max(), np.abs(v).max())
    assert (costs - u[:, None] - v).min() >= -rounding
    # The duality gap is the same to rounding, against a solver of another kind.
    rows, others = linear_sum_assignment(costs)
    want = costs[rows, others].sum()
    assert costs[np.arange(n), columns].sum() == pytest.approx(want, rel=1e-11, abs=rounding)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", COSTS)
def test_potentials_prove_the_permutation_optimal(kind, n):
    assert_optimal(cost_of(kind, n))


@pytest.mark.parametrize("width", [1e-2, 0.0])
def test_tokens_against_tight_clusters(width):
    """Most rows lack their best column, so that every fourth row is solved first."""
    assert_optimal(squares(tokens.uniform(800, 3, seed=0), clusters(800, width, 1)))


def test_a_start_from_a_part_does_not_cost_the_precision_of_small_costs(monkeypatch):
    """Potentials of the size of the sphere would leave nothing of costs of 1e-16."""
    costs = squares(*apart(700))
    rows, columns = linear_sum_assignment(costs)
    plain = own._from_part
    monkeypatch.setattr(own, "_MANY", -1.0)
    monkeypatch.setattr(own, "_from_part", lambda given: plain(given) + 1e3)
    want = costs[rows, columns].sum()
    assert costs[rows, own.assign(costs)].sum() == pytest.approx(want, rel=1e-13)


def test_columns_in_any_order_have_the_same_optimum():
    costs, rows = cost_of("clusters", 700), np.arange(700)
    turned = rows[::-1]
    found = (own.assign(costs), own.assign(costs.T).argsort(), turned[own.assign(costs[:, turned])])
    paid = [costs[rows, labels].sum() for labels in found]
    assert paid[1:] == pytest.approx(paid[:2], rel=1e-13)


def test_near_columns_follow_each_other():
    n = 1024
    y = clusters(n, 1e-3, 1)
    order = own.near_order(y)
    assert sorted(order) == list(range(n))
    blocks = y[order].reshape(-1, own.BLOCK, 3)
    spread = [np.linalg.norm(block - block[0], axis=1).max() for block in blocks]
    assert np.mean(np.array(spread) > 0.1) < 0.4  # without the order all blocks are as wide


def test_costs_of_single_precision_and_of_another_layout_are_taken():
    costs = cost_of("uniform", 60)
    want = own.assign(costs.astype(np.float32).astype(float))
    assert np.array_equal(own.assign(costs.astype(np.float32)), want)
    assert np.array_equal(own.assign(np.asfortranarray(costs)), own.assign(costs))


def test_distances_of_pairs_are_accurate_for_every_power_and_size():
    for n, m, d in ((5, 1, 2), (20, 13, 3), (9, 40, 8)):
        x, y = tokens.uniform(n, d, seed=0), tokens.uniform(m, d, seed=1)
        y[: min(n, m) // 3] = x[: min(n, m) // 3]
        y[-(min(n, m) // 3) - 1 :] = -x[-(min(n, m) // 3) - 1 :]
        chord = np.sqrt(((x[:, None] - y) ** 2).sum(-1))
        angle = 2 * np.arctan2(chord, np.sqrt(((x[:, None] + y) ** 2).sum(-1)))
        for cost, want in (("geodesic", angle), ("chordal", chord)):
            assert np.allclose(transport.distance(x, y, cost), want, rtol=4e-15, atol=0)
            for p in (1.0, 2.0, 3.5):
                found = wflow.sphere.geodesics.pair_costs(x, y, p, cost == "chordal")
                assert found.shape == (n, m)
                assert np.allclose(found, want**p, rtol=4e-15, atol=0)
