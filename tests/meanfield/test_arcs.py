"""Sums between equal arcs, against sums over all pairs."""

import numpy as np
import pytest

from wflow.heads import Frozen
from wflow.kernels.evaluate import head_sums
from wflow.meanfield import Circle, solve
from wflow.meanfield.arcs import ArcSums


@pytest.mark.parametrize("cells", [64, 301])
@pytest.mark.parametrize("size", [0.0, 0.3, 2.0])
def test_sums_between_arcs_are_those_over_all_pairs(cells: int, size: float) -> None:
    rng = np.random.default_rng(1)
    D = rng.normal(size=(2, 3, 2, 2)) * size
    masses = rng.random((2, cells)) * (rng.random((2, cells)) < 0.1)
    masses /= masses.sum(axis=1)[:, None]
    found = ArcSums(cells, 1e-10)(D, masses, True)
    assert found is not None and (found.error <= 1e-10).all()
    x = np.array(np.broadcast_to(Circle(cells).centres, (2, cells, 2)))
    exact = head_sums(x, D, weights=masses)
    scale = np.exp(exact.shift)
    m, S = exact.m * scale, exact.S * scale[..., None]
    errors = np.abs(found.m / m - 1), np.abs(found.S - S) / m[..., None]
    assert all((e.max(axis=tuple(range(1, e.ndim))) <= found.error).all() for e in errors)


def test_heads_that_are_too_large_for_the_cells_are_left_to_the_other_sums() -> None:
    uniform = np.full((1, 64), 1 / 64)
    assert ArcSums(64, 1e-10)(np.full((1, 1, 2, 2), 30.0), uniform, False) is None
    assert ArcSums(16, 1e-10)(np.eye(2)[None, None], np.full((1, 16), 1 / 16), False) is None
    # The tolerance is relative to a mobility that is small opposite a narrow bump.
    spike = np.eye(64)[:1]
    assert ArcSums(64, 1e-13)(5 * np.eye(2)[None, None], spike, False) is None


@pytest.mark.parametrize("beta", [16.0, 18.0, 24.0, 40.0])
def test_rounding_opposite_a_cluster_is_no_accuracy(beta: float) -> None:
    spike = np.eye(256)[:1]
    D = beta * np.eye(2)[None, None]
    found = ArcSums(256, 1e-10)(D, spike, False)
    assert found is None or (found.m > 0).all()
    run = solve(
        spike[0], Frozen(), mesh=Circle(256), heads=D[0], t_final=1e-4, direction="ascent"
    )  # fmt: skip
    assert np.isfinite(run["energy"]).all() and float(run["density"].min()) >= 0
