"""Adaptive steps: order of the pair, error control, independence of batches, resume, refusals."""

import contextlib
import dataclasses
import warnings

import numpy as np
import pytest
from run_layouts import same_bits, stop_after
from scipy.integrate import quad
from scipy.optimize import brentq
from twin import symmetric, unit

import wflow
from wflow import Dopri5, InputError, tokens
from wflow._core.tableaux import TABLEAUX
from wflow.analysis.verify import verify
from wflow.heads import QKV, Frozen, HeadLaw, Oscillating, Schedule
from wflow.heads.process import HeadStep, head_path
from wflow.kernels.evaluate import evaluate
from wflow.particles.schemes import Stage, advance


def drifting(d, seed=0):
    target = symmetric(np.random.default_rng(seed), d, d)
    return HeadLaw(lambda D, t: np.cos(t) * target - 0.5 * D)


# ---- two tokens, one head D = beta I: theta' = -2 beta sin theta/(1 + e^(beta (1 - cos theta)))


def speed(angle, beta):
    return 2 * beta * np.sin(angle) / (1 + np.exp(beta * (1 - np.cos(angle))))


def time_between(before, after, beta):
    """Time in which two tokens come from one angle to a smaller one, to thirteen digits."""
    options = {"epsabs": 0, "epsrel": 1e-13, "limit": 500}
    middle = min(before, max(after, np.pi - 1))
    near = quad(lambda s: np.exp(s) / speed(np.pi - np.exp(s), beta),
                np.log(np.pi - before), np.log(np.pi - middle), **options)  # fmt: skip
    return near[0] + quad(lambda a: 1 / speed(a, beta), after, middle, **options)[0]


def pair(angle, d=3):
    x = np.zeros((2, d))
    x[:, 0], x[1, 0], x[1, 1] = 1.0, np.cos(angle), np.sin(angle)
    return x


def angle_of(x):
    return 2 * float(np.arcsin(np.linalg.norm(x[0] - x[1]) / 2))


@pytest.mark.parametrize(("weights", "order"), [("weights", 5), ("embedded", 4)])
def test_both_solutions_of_the_pair_keep_their_order_on_the_sphere(weights, order):
    beta, begin, end = 0.5, 2.5, 1.0
    tableau = TABLEAUX["dopri5"]
    tableau = dataclasses.replace(tableau, order=order, weights=getattr(tableau, weights))
    D = beta * np.eye(3)[None, None]

    def still(D, t):
        return None

    def stage_at(node, x, D, drift):
        found = evaluate(x, D, direction="ascent", symmetric=True)
        return Stage(found.velocity, found.terms)

    errors = []
    for steps in (16, 32, 64):
        x, heads, h = pair(begin)[None], D, time_between(begin, end, beta) / steps
        for _ in range(steps):
            move = HeadStep(heads, 0.0, h, still, None)
            x, _ = advance(tableau, x, move, h, stage_at(0, x, heads, None), stage_at)
        errors.append(abs(angle_of(x[0]) - end))
    assert np.log2(errors[1] / errors[2]) == pytest.approx(order, abs=0.2)


def test_two_nearly_antipodal_tokens_merge_in_under_a_thousand_evaluations_to_eight_digits():
    beta, begin, end = 8.0, np.pi - 0.02, 1e-3
    merging = time_between(begin, end, beta)
    assert merging > 1e6  # a metastable state

    def tokens_at(t):
        run = wflow.solve(
            pair(begin), Frozen(), heads=beta * np.eye(3)[None], direction="ascent", t_final=t,
            dt=t, scheme="dopri5",
        )  # fmt: skip
        assert run.evaluations[0, -1] < 1000
        return run.tokens[0, -1].values

    reached = time_between(begin, angle_of(tokens_at(merging)), beta)
    assert abs(reached / merging - 1) < 1e-8
    half = tokens_at(merging / 2)
    exact = brentq(lambda a: time_between(begin, a, beta) - merging / 2, 2.0, begin, xtol=1e-14)
    assert abs(np.pi - 2 * np.arcsin(np.linalg.norm(half[0] + half[1]) / 2) - exact) < 1e-8
    middle = np.array([np.cos(begin / 2), np.sin(begin / 2), 0.0])
    assert np.abs(tokens_at(merging + 2.0) - middle).max() < 1e-8


# ---- error control


@pytest.mark.parametrize("flow", ["softmax", "unnormalised", "effective"])
def test_error_and_residual_follow_the_tolerance_with_moving_heads(flow):
    rng = np.random.default_rng(4)
    x0, D0 = unit(rng, 12, 3), symmetric(rng, 3, 3, 3) / 2
    options = {
        "heads": D0,
        "t_final": 3.0,
        "dt": 1.5,
        "flow": flow,
        "save": wflow.SaveAt(heads=True),
    }
    exact = wflow.solve(x0, drifting(3), **options, scheme=Dopri5(1e-13, 1e-13))
    evaluations = []
    for rtol in (1e-5, 1e-7, 1e-9):
        run = wflow.solve(x0, drifting(3), **options, scheme=Dopri5(rtol, rtol / 100))
        turnover = float(abs(run.dissipated[0, -1]) + abs(run.work_weights[0, -1]))
        assert np.abs(run.tokens - exact.tokens).max() < 20 * rtol
        assert np.abs(run.heads - exact.heads).max() < 20 * rtol
        assert np.abs(run.edi_residual).max() < 20 * rtol * turnover
        evaluations.append(int(run.evaluations[0, -1]))
    assert evaluations[0] < evaluations[1] < evaluations[2] < 20 * evaluations[0]


def test_the_budget_does_not_choose_the_steps():
    x0 = unit(np.random.default_rng(0), 8, 3)
    options = {"heads": 2, "t_final": 2.0, "dt": 1.0, "scheme": "dopri5"}
    kept, left = (
        wflow.solve(x0, Oscillating(3), save=wflow.SaveAt(budget=b), **options)
        for b in (True, False)
    )
    assert np.array_equal(kept.evaluations, left.evaluations)
    assert np.abs(kept.tokens - left.tokens).max() < 1e-13


@pytest.mark.parametrize("begins", [0.0, 0.7])
def test_the_drift_of_the_heads_is_evaluated_once_per_evaluation_of_the_velocity(begins):
    asked = []

    class Counted(HeadLaw):
        def drift(self, D, t):
            asked.append(t)
            return None if t < begins else np.cos(t) - 5 * D

    run = wflow.solve(
        unit(np.random.default_rng(0), 8, 3), Counted(), heads=2, t_final=2.0, dt=0.5,
        scheme="dopri5",
    )  # fmt: skip
    assert len(asked) == run.evaluations[0, -1]
    asked.clear()
    for _ in head_path(Counted(), heads=2, d=3, t_final=0.5, dt=0.5, scheme="dopri5"):
        pass
    assert len(asked) % 6 == 2  # where it starts, the length of the first step, and the attempts


def test_steps_grow_with_dt_alone_as_the_recorded_times_and_snapshots_ask():
    x0 = unit(np.random.default_rng(0), 6, 3)
    options = {"heads": symmetric(np.random.default_rng(1), 2, 3, 3), "t_final": 6.0}
    coarse = wflow.solve(
        x0, Frozen(), dt=2.0, save=wflow.SaveAt(snapshots=[2.0, 6.0]), scheme="dopri5", **options
    )
    fine = wflow.solve(x0, Frozen(), dt=0.01, save=wflow.SaveAt(every=200, snapshots=[2.0, 6.0]),
                       scheme="dopri5", **options)  # fmt: skip
    assert np.allclose(coarse.time, [0, 2, 4, 6]) and np.allclose(fine.time, coarse.time)
    assert np.array_equal(coarse.evaluations, fine.evaluations)
    assert np.abs(coarse.tokens - fine.tokens).max() < 1e-12
    assert (np.diff(coarse.evaluations[0]) > 0).all() and coarse.evaluations[0, 0] == 1


@pytest.mark.parametrize("kind", ["constant", "linear"])
@pytest.mark.parametrize("general", [False, True])
def test_steps_end_where_a_schedule_jumps_or_bends(kind, general):
    rng = np.random.default_rng(3)
    times = [0.0, 0.37, 0.81]  # on no multiple of dt
    table = QKV(*rng.normal(size=(3, 3, 2, 3, 3))) if general else symmetric(rng, 3, 2, 3, 3)
    law, x0 = Schedule(times, table, kind), unit(rng, 8, 3)
    run = wflow.solve(x0, law, t_final=1.0, dt=0.5, scheme="dopri5")
    fine = wflow.solve(x0, law, t_final=1.0, dt=1e-3, scheme="rk4")
    assert np.abs(run.tokens - fine.tokens).max() < 2e-7
    if not general:
        assert np.abs(run.edi_residual).max() < 1e-6
        assert kind == "linear" or abs(run.work_weights[0, -1]) > 0.1
    assert run.evaluations[0, -1] < 1200


def test_tokens_at_rest_take_few_steps():
    x0 = np.repeat(np.eye(3)[:1], 4, axis=0)
    run = wflow.solve(x0, Frozen(), heads=np.eye(3)[None], t_final=1e6, dt=1e6, scheme="dopri5")
    assert run.evaluations[0, -1] < 120 and np.abs(run.tokens[0, -1] - x0).max() < 1e-12


def test_without_dt_a_hundred_units_of_time_are_recorded(tmp_path):
    options = {"heads": 1, "t_final": 3.0, "scheme": "dopri5"}
    x0 = unit(np.random.default_rng(0), 4, 3)
    with wflow.solve(x0, Frozen(), out=tmp_path / "run.h5", **options) as run:
        assert np.allclose(run.time, np.linspace(0, 3, 101))
        same_bits(run, wflow.solve(x0, Frozen(), dt=3 / 100, **options))
    longer = wflow.rerun(tmp_path / "run.h5", t_final=6.0, dt=None)
    assert longer.sizes["time"] == 101 and longer.time[-1] == 6
    coarse = wflow.solve(x0, Frozen(), save=wflow.SaveAt(every=10, snapshots=[1.001]), **options)
    assert coarse.sizes["time"] == 11 and np.allclose(coarse.snapshot, 0.99)
    with pytest.raises(InputError, match="dt is missing"):
        wflow.solve(x0, Frozen(), heads=1, t_final=3.0)


# ---- the same seed, the same bits


def clouds(paths=5):
    return np.stack([wflow.tokens.cross_polytope(9, 3, spread=0.1 * k, seed=k)
                     for k in range(1, paths + 1)])  # fmt: skip


def test_a_run_is_rerun_and_verified_from_its_file(tmp_path):
    path, law = tmp_path / "run.h5", Oscillating(3)
    save = wflow.SaveAt(every=2, snapshots=[0, 0.5, 1.5], paths=[0, 3], heads=True)
    options = {"heads": 2, "t_final": 1.5, "dt": 0.25, "paths": 5, "seed": 7, "save": save}
    run = wflow.solve(clouds(), law, out=path, scheme=Dopri5(rtol=1e-9), **options)
    assert len(np.unique(run.evaluations[:, -1])) > 1  # each path has its own steps
    same_bits(run, wflow.rerun(path))
    report = verify(path)
    assert report.passed, str(report)
    (check,) = (c for c in report.checks if c.name.startswith("the first recorded step"))
    assert check.passed and check.value < 1e-12
    with pytest.raises(InputError, match="differs in scheme"):
        wflow.solve(clouds(), law, out=path, if_exists="resume", scheme="dopri5", **options)


def recorded(out, mode, batch=2):
    """A run with a jump of the heads between its recorded times."""
    rng = np.random.default_rng(0)
    x0 = rng.normal(size=(3, 40, 3))
    table = rng.normal(size=(2, 4, 3, 3))
    law = Schedule([0.0, 1.7], table + np.swapaxes(table, -1, -2), "constant")
    wflow.solve(
        x0, law, t_final=4.0, dt=4.0, paths=3, scheme="dopri5", out=out, if_exists=mode,
        save=wflow.SaveAt(snapshots=[0, 4], heads=True),
        compute=wflow.Compute(batch=batch, checkpoint_every=0.0),
    ).close()  # fmt: skip


def test_a_run_stopped_between_recorded_times_resumes_to_the_same_bits(tmp_path, monkeypatch):
    whole, out = tmp_path / "whole.h5", tmp_path / "run.h5"
    recorded(whole, "error", 3)
    for mode in ("error", *["resume"] * 5):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, 1)  # a checkpoint is written after every step
            recorded(out, mode)
        assert not out.exists()
    recorded(out, "resume")
    with wflow.open(whole) as a, wflow.open(out) as b:
        same_bits(a, b)


# ---- heads without tokens


def test_the_heads_alone_follow_those_of_the_run():
    law, x0 = Oscillating(3), clouds()[0]
    options = {"heads": 2, "t_final": 3.0, "dt": 1.0, "seed": 1, "scheme": Dopri5(1e-10, 1e-12)}
    run = wflow.solve(x0, law, save=wflow.SaveAt(snapshots=[0, 1, 2, 3], heads=True), **options)
    walk = list(head_path(law, d=3, **options))
    assert [t for t, _ in walk] == [0, 1, 2, 3]
    assert np.abs(np.array([D for _, D in walk]) - run.heads[0].values).max() < 1e-8


def test_runs_with_adaptive_steps_have_a_bound_and_are_compared():
    options = {"heads": 2, "t_final": 1.0, "dt": 0.25, "save": wflow.SaveAt(snapshots=[0, 1.0])}
    adaptive, fixed = (
        wflow.solve(clouds()[0], Oscillating(3), scheme=scheme, **options)
        for scheme in ("dopri5", "rk4")
    )
    found, expected = (
        wflow.stability.exponent(run, weights="path").values[..., -1] for run in (adaptive, fixed)
    )
    assert found == pytest.approx(expected, rel=1e-2)
    table = wflow.stability.compare(adaptive, adaptive)
    assert table.attrs["scheme"] == "dopri5" and bool(table["holds_geodesic"].all())


def test_heads_that_blow_up_stop_the_run_near_their_time():
    law = HeadLaw(lambda D, t: D @ D)  # D = I/(1 - t)
    with pytest.raises(wflow.BlowUpError, match="path 0: scores reach") as caught:
        wflow.solve(np.eye(3)[:1], law, heads=np.eye(3)[None], t_final=2.0, dt=2.0,
                    flow="softmax", scheme="dopri5", save=wflow.SaveAt(budget=False))  # fmt: skip
    assert caught.value.time == pytest.approx(1.0, abs=1e-4) and caught.value.run is not None


def test_a_drift_that_no_step_can_follow_stops_the_run():
    rng = np.random.default_rng(0)
    law = HeadLaw(lambda D, t: np.eye(3) * (1e12 * rng.normal() if t > 0.5 else 0.0))
    with pytest.raises(wflow.BlowUpError, match="short enough") as caught:
        wflow.solve(np.eye(3), law, heads=np.eye(3)[None], t_final=1.0, dt=1.0, scheme="dopri5")
    assert caught.value.time == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("scheme", ["dopri5", "euler", "rk4"])
@pytest.mark.parametrize("flow", ["softmax", "unnormalised"])
def test_no_warning_of_numpy_comes_from_energies_and_steps_out_of_range(scheme, flow):
    x0, layers = tokens.uniform(6, 3, seed=0), 1e3 * np.stack([np.eye(3), -np.eye(3)])[:, None]
    for law in (Frozen(), Schedule([0.0, 1e-3], layers, "constant")):
        heads = {} if isinstance(law, Schedule) else {"heads": layers[0]}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "an energy term")  # by wflow, once a run
            with contextlib.suppress(wflow.BlowUpError):
                wflow.solve(
                    x0, law, **heads, t_final=2e-3, dt=1e-3, scheme=scheme, direction="ascent",
                    flow=flow,
                )  # fmt: skip
