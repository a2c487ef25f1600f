"""`wflow.control.steer`: tokens reach their target, and the Hamiltonian is constant."""

import numpy as np
import pytest

import wflow
from wflow import InputError

steer = wflow.control.steer
X = wflow.tokens.uniform(8, 3, seed=0)
RUN = {"t_final": 1.0, "dt": 0.125}


def test_the_law_carries_the_tokens_to_a_cloud():
    target = wflow.tokens.clusters(8, 3, clusters=2, seed=1)
    found = steer(X, target, heads=2, pieces=2, iterations=20, **RUN)
    run = wflow.solve(X, found.law, scheme="rk4", save=wflow.SaveAt(budget=False), **RUN)
    assert np.array_equal(run.tokens.values[0, -1], found.tokens)
    assert found.terminal == pytest.approx(wflow.losses.W2(target)(found.tokens[None, None])[0])
    assert found.terminal + found.effort == pytest.approx(found.cost[-1])
    assert np.all(np.diff(found.cost) <= 0) and found.cost[-1] < 0.7 * found.cost[0]


def test_the_hamiltonian_is_constant_at_an_optimum_up_to_the_length_of_the_pieces():
    spread = []
    for pieces in (2, 4):
        found = steer(
            X, wflow.losses.MeanCosine(), pieces=pieces, penalty=0.1, tolerance=1e-7, **RUN
        )
        assert found.converged and found.slope < 1e-6
        spread.append(np.ptp(found.hamiltonian) / np.abs(found.hamiltonian).mean())
    assert spread[1] < 1e-3 and spread[1] < spread[0] / 2


def test_symmetric_heads_stay_symmetric_and_away_from_collapse():
    start = np.eye(3)[None]
    found = steer(X, wflow.losses.MeanCosine(), heads=start, pieces=2, symmetric=True,
                  iterations=5, direction="ascent", **RUN)  # fmt: skip
    D = found.law.initial()[0]
    assert np.allclose(D, D.swapaxes(1, 2), rtol=0, atol=1e-15)
    assert found.terminal < wflow.losses.MeanCosine()(X[None, None])[0]


def test_a_run_that_leaves_the_finite_numbers_shortens_the_step_and_does_not_end_the_search():
    D = np.random.default_rng(2).standard_normal((1, 3, 3))
    found = steer(X, wflow.losses.MeanCosine(), heads=D, pieces=2, flow="unnormalised", penalty=0.0,
                  iterations=30, **RUN)  # fmt: skip
    assert len(found.cost) > 10 and np.all(np.diff(found.cost) <= 0) and found.cost[-1] < 0.01
    assert found.converged == (found.slope <= 1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x0": X[None]}, "expected \\(n, d\\)"),
        ({"target": np.eye(2)}, "dimension"),
        ({"target": wflow.losses.Energy()}, "MeanCosine"),
        ({"pieces": 3}, "pieces"),
        ({"heads": np.eye(3)}, "heads have shape"),
        ({"heads": np.ones((3, 1, 3, 3))}, "heads have shape"),
        ({"heads": np.triu(np.ones((1, 3, 3))), "symmetric": True}, "not symmetric"),
        ({"penalty": -1.0}, "penalty"),
        ({"scheme": "dopri5"}, "equal length"),
        ({"iterations": 0}, "iterations"),
        ({"dt": 0.3}, "dt"),
    ],
)
def test_what_cannot_be_steered_is_refused(given, message):
    call = {"x0": X, "target": X, "pieces": 2, **RUN} | given
    with pytest.raises(InputError, match=message):
        steer(call.pop("x0"), call.pop("target"), **call)
