"""Linear assignment: optimal by its own potentials, whatever it is started from."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import wflow
from wflow import InputError, tokens, transport
from wflow.transport import linear_assignment as own
from wflow.transport.distances import Before, match, pair


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


def cost_of(kind: str, n: int) -> np.ndarray:
    x, rng = tokens.uniform(n, 3, seed=0), np.random.default_rng(n)
    return {
        "uniform": lambda: squares(x, tokens.uniform(n, 3, seed=1)),
        "d = 8, chords": lambda: transport.distance(
            tokens.uniform(n, 8, seed=0), tokens.uniform(n, 8, seed=1), "chordal"
        ),
        "clusters": lambda: squares(clusters(n, 1e-2, 0), clusters(n, 1e-2, 1)),
        "points": lambda: squares(clusters(n, 1e-9, 0), clusters(n, 0.0, 1)),
        "uniform to clusters": lambda: squares(x, clusters(n, 1e-4, 1)),
        "1e-8 apart": lambda: squares(x, shaken(x, 1e-8, 1)),
        "itself": lambda: squares(x, x[rng.permutation(n)]),
        "ties": lambda: rng.integers(0, 3, (n, n)).astype(float),
        "all equal": lambda: np.ones((n, n)),
        "both signs": lambda: rng.standard_normal((n, n)),
        "large and small": lambda: 10.0 ** rng.uniform(-12, 12, (n, n)),
    }[kind]()


KINDS = (
    "uniform", "d = 8, chords", "clusters", "points", "uniform to clusters", "1e-8 apart",
    "itself", "ties", "all equal", "both signs", "large and small",
)  # fmt: skip
SIZES = (1, 2, 31, 32, 33, 100, 257, own.WHOLE, own.WHOLE + 1, 700)


def solved(costs: np.ndarray, start=None) -> own.Solution:
    """The solution, for columns in the order in which they are given."""
    n = len(costs)
    filled = np.full((n, -(-n // own.BLOCK) * own.BLOCK), np.inf)
    filled[:, :n] = costs
    return own.solve(filled, start)


def assert_optimal(costs: np.ndarray, found: own.Solution) -> None:
    """Permutation and potentials prove each other: u_i + v_j <= C_ij, equal on the permutation."""
    n = len(costs)
    assert sorted(found.columns) == list(range(n))
    u = costs[np.arange(n), found.columns] - found.v[found.columns]
    rounding = 1e-14 * max(np.abs(costs).max(), np.abs(found.v).max())
    assert (costs - u[:, None] - found.v).min() >= -rounding
    # The duality gap is the same to rounding, against a solver of another kind.
    rows, columns = linear_sum_assignment(costs)
    want = costs[rows, columns].sum()
    assert costs[np.arange(n), found.columns].sum() == pytest.approx(want, rel=1e-11, abs=rounding)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_potentials_prove_the_permutation_optimal(kind, n):
    costs = cost_of(kind, n)
    assert_optimal(costs, solved(costs))


def parts_of(n: int) -> list[int]:
    """The problems that are begun by a part, where each is."""
    return [n, *parts_of(-(-n // 4))] if n > own.WHOLE else []


@pytest.mark.parametrize("width", [1e-2, 1e-4, 0.0])
@pytest.mark.parametrize("n", [own.WHOLE + 1, 1500, 2300])
def test_rows_that_lack_their_best_column_start_from_a_part(n, width, monkeypatch):
    begun, plain = [], own._from_part

    def watched(costs):
        begun.append(len(costs))
        return plain(costs)

    monkeypatch.setattr(own, "_from_part", watched)
    costs = squares(tokens.uniform(n, 3, seed=0), clusters(n, width, 1))
    assert_optimal(costs, solved(costs))
    assert begun == parts_of(n)


def test_a_part_does_not_cost_the_precision_of_small_costs(monkeypatch):
    """Potentials of the size of the sphere would leave nothing of costs of 1e-16."""
    n = 700
    x = tokens.uniform(n, 3, seed=0)
    order = np.argsort(x[:, 0])
    costs = squares(x[order], shaken(x, 1e-8, 1))
    costs = costs[:, linear_sum_assignment(costs)[1]]
    want = np.trace(costs)
    monkeypatch.setattr(own, "_MANY", -1.0)
    begun, plain = [], own._from_part

    def watched(given):
        begun.append(len(given))
        return plain(given) + 1e3

    monkeypatch.setattr(own, "_from_part", watched)
    found = solved(costs)
    assert begun == parts_of(n)
    assert costs[np.arange(n), found.columns].sum() == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("n", [40, 700])
@pytest.mark.parametrize("kind", KINDS)
def test_any_start_leads_to_the_optimum(kind, n):
    costs, rng = cost_of(kind, n), np.random.default_rng(1)
    cold = solved(costs)
    size = np.abs(costs).max()
    for start in (
        cold,
        solved(cost_of("uniform", n)),
        own.Solution(rng.permutation(n), size * rng.standard_normal(n)),
        own.Solution(np.arange(n), np.zeros(n)),
    ):
        assert_optimal(costs, solved(costs, start))


@pytest.mark.parametrize(("moved", "kept"), [(1e-3, True), (1.0, False)])
def test_a_start_that_lies_far_is_left(moved, kept, monkeypatch):
    n, begun, plain = 700, [], own._least_by_column
    x, y = tokens.uniform(n, 3, seed=0), tokens.uniform(n, 3, seed=1)
    start = solved(squares(x, y))

    def watched(*given):
        begun.append(1)
        return plain(*given)

    monkeypatch.setattr(own, "_least_by_column", watched)
    steps = moved * np.random.default_rng(2).standard_normal(x.shape)
    costs = squares(wflow.sphere.as_tokens(x + steps), y)
    assert_optimal(costs, solved(costs, start))
    assert bool(begun) is not kept


def test_columns_in_any_order_have_the_same_optimum():
    costs = cost_of("clusters", 700)
    paid = [
        costs[np.arange(700), labels].sum()
        for labels in (own.assign(costs), own.assign(costs.T).argsort(), solved(costs).columns)
    ]
    assert paid[1:] == pytest.approx(paid[:2], rel=1e-13)


def test_near_columns_follow_each_other():
    n = 1024
    x, y = clusters(n, 1e-3, 0), clusters(n, 1e-3, 1)
    order = own.near_order(n, lambda rows: squares(x[rows], y))
    assert sorted(order) == list(range(n))
    blocks = y[order].reshape(-1, own.BLOCK, 3)
    spread = [np.linalg.norm(block - block[0], axis=1).max() for block in blocks]
    assert np.mean(np.array(spread) > 0.1) < 0.4  # without the order all blocks are as wide


@pytest.mark.parametrize("n", [100, 700])
def test_searches_in_batches_are_the_searches_at_once(n, monkeypatch):
    costs = cost_of("clusters", n)
    want = solved(costs)
    batches, plain = [], own._augment

    def counted(*given):
        batches.append(plain(*given))
        return batches[-1]

    monkeypatch.setattr(own, "_BATCH", 1)
    monkeypatch.setattr(own, "_augment", counted)
    found = solved(costs)
    assert len(batches) > 10
    assert set(batches) == {1}
    assert np.array_equal(found.columns, want.columns)
    assert np.array_equal(found.v, want.v)


def test_potentials_stay_of_the_size_of_the_costs_along_a_series():
    x, found = clusters(200, 1e-2, 0), None
    for seed in range(30):
        costs = squares(x, tokens.uniform(200, 3, seed=seed))
        found = solved(costs, found)
        assert np.ptp(found.v) <= 2 * costs.max()
        assert np.abs(found.v).max() <= 4 * costs.max()
    assert_optimal(costs, found)


def test_start_from_far_away_leaves_no_rounding_in_small_distances():
    points = clusters(300, 3e-9, 0)  # so near that roundings of potentials could choose among them
    y = shaken(points, 1e-11, 1)
    before = Before()
    match(pair(tokens.uniform(300, 3, seed=3), y, None, None), 2.0, "geodesic", before)
    given = pair(points, y, None, None)
    warm = match(given, 2.0, "geodesic", before)[1].mean()
    cold = match(given, 2.0, "geodesic")[1].mean()
    assert cold < 1e-20
    assert warm == pytest.approx(cold, rel=1e-9, abs=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e301])
def test_costs_that_are_not_finite_are_refused(bad):
    for n, row, column in ((5, 2, 3), (5, 0, 0), (600, 599, 599)):
        costs = np.random.default_rng(0).uniform(size=(n, n))
        costs[row, column] = bad
        with pytest.raises(InputError, match=r"largest cost .* scale the costs"):
            own.assign(costs)


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
        for p in (1.0, 2.0, 3.5):
            for chordal, want in ((False, angle), (True, chord)):
                found = wflow.sphere.geodesics.pair_costs(x, y, p, chordal)
                assert found.shape == (n, m)
                assert np.allclose(found, want**p, rtol=4e-15, atol=0)
