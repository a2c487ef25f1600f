"""One step of the heads: for one path and many, at any time within a step of any length."""

import numpy as np
import pytest
from twin import symmetric

import wflow
from wflow._core.adaptive import AdaptiveSteps, Dopri5
from wflow._core.tableaux import TABLEAUX
from wflow.heads import HeadLaw, OrnsteinUhlenbeck, Oscillating, Schedule
from wflow.heads.process import HeadProcess, head_path

START = symmetric(np.random.default_rng(0), 2, 3, 3)
TABLE = np.stack([START, 2 * START, -START])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("law", "scheme"),
    [
        (OrnsteinUhlenbeck(np.eye(3)), "euler"),
        (HeadLaw(lambda D, t: -t * D, lambda D, t: 0.1 + t), "euler"),
        (Oscillating(3), "rk4"),
        (Schedule([0.0, 0.1, 0.2], TABLE, "constant"), "heun"),
    ],
)
def test_a_path_moves_alone_as_in_a_batch(law, scheme, dtype):
    def moved(paths):
        process = HeadProcess(law, START, seed=3, paths=paths, dtype=dtype)
        for step in range(5):
            process.advance(step, step * 0.05, 0.05, TABLEAUX[scheme])
        return process.D

    batch = moved(range(2, 6))
    assert batch.dtype == dtype and not np.array_equal(batch[0], START.astype(dtype))
    for place in range(4):
        assert np.array_equal(batch[place], moved((2 + place,))[0])


@pytest.mark.parametrize("scheme", ["rk4", "dopri5"])
def test_a_drift_that_is_none_at_some_stages_is_zero_there(scheme):
    class Late(HeadLaw):
        def drift(self, D, t):
            return None if t < 0.12 else -D

    class Zero(HeadLaw):
        def drift(self, D, t):
            return 0 * D if t < 0.12 else -D

    options = {"heads": START, "t_final": 0.2, "dt": 0.1, "scheme": scheme}
    save = wflow.SaveAt(heads=True)
    runs = [wflow.solve(np.eye(3), law, save=save, **options) for law in (Late(), Zero())]
    assert all(np.array_equal(runs[0][name], runs[1][name]) for name in runs[0].data_vars)
    paths = [list(head_path(law, d=3, **options)) for law in (Late(), Zero())]
    assert np.array_equal(paths[0][-1][1], paths[1][-1][1])
    along = runs[0]["heads"].values[0, -1]
    allowed = 0.0 if scheme == "rk4" else 1e-5  # adaptive steps depend on the tokens
    assert np.allclose(paths[0][-1][1], along, rtol=0, atol=allowed)


def test_adaptive_heads_are_those_of_an_exact_solution_and_of_any_batch():
    def moved(starts):
        process = HeadProcess(HeadLaw(lambda D, t: -D), START, seed=0, paths=range(len(starts)))
        process.D *= np.reshape(starts, (-1, 1, 1, 1))
        steps = AdaptiveSteps(Dopri5(1e-10, 1e-12), len(starts))
        for start, end in ((0.0, 0.5), (0.5, 2.0)):
            process.advance_adaptively(steps, start, end)
        assert np.all(steps.time == 2.0)
        return process.D

    both = moved([1.0, 1e-9])
    assert np.allclose(both[0], np.exp(-2) * START, rtol=0, atol=1e-8)
    assert np.array_equal(both[1], moved([1e-9])[0]) and np.array_equal(both[0], moved([1.0])[0])


def test_a_jump_of_a_subclass_of_a_linear_schedule_is_made():
    class Jumping(Schedule):
        def jump(self, D, t, dt, generator):
            return np.zeros((2, 3, 3)) if t > 0 else None

    law = Jumping([0.0, 1.0], TABLE[:2])
    assert law.jumps
    *_, (_, last) = head_path(law, d=3, t_final=0.2, dt=0.1)
    assert np.all(last == 0)
