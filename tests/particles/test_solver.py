"""`wflow.solve`: energy balance, order, closed forms, reproducibility, and what it refuses."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_layouts import same_bits
from scipy.integrate import simpson, solve_ivp
from twin import symmetric, unit

import wflow
from wflow._core.tableaux import TABLEAUX
from wflow.heads import QKV, Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating, Schedule


def order_seen(x0, law, steps, **options):
    """Return the order of the largest residual over time, which cannot pass through zero."""
    save = wflow.SaveAt(snapshots=[0])
    runs = [wflow.solve(x0, law, dt=dt, save=save, **options) for dt in steps[-2:]]
    largest = [float(np.abs(run.edi_residual).max()) for run in runs]
    return np.log2(largest[0] / largest[1])


def drifting(d):
    """Return a user law whose heads move smoothly and stay symmetric."""
    target = symmetric(np.random.default_rng(d), d, d)
    return HeadLaw(lambda D, t: np.cos(t) * target - 0.5 * D)


# ---- the energy balance, docs/theory/energy.md ----


@pytest.mark.parametrize(("scheme", "order"), [("euler", 1), ("heun", 2), ("rk4", 4)])
@pytest.mark.parametrize("flow", ["softmax", "unnormalised", "effective"])
@pytest.mark.parametrize("heads", [1, 4])
def test_balance_closes_at_the_order_of_the_scheme(scheme, order, flow, heads):
    x0 = wflow.tokens.cross_polytope(20, 3, spread=0.2, seed=1)
    D0 = symmetric(np.random.default_rng(heads), heads, 3, 3) / 2
    law = drifting(3)
    steps = (0.005, 0.0025) if order < 4 else (0.025, 0.0125)
    seen = order_seen(x0, law, steps, heads=D0, t_final=1.0, flow=flow, scheme=scheme)
    assert abs(seen - order) <= 0.2


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(2, 15), d=st.integers(2, 4),
    heads=st.integers(1, 4), law_name=st.sampled_from(["frozen", "oscillating", "user"]),
    flow=st.sampled_from(["softmax", "unnormalised", "effective"]),
    direction=st.sampled_from(["descent", "ascent"]),
)  # fmt: skip
def test_balance_closes_for_random_problems(seed, n, d, heads, law_name, flow, direction):
    """The fourth-order residual is small and falls about sixteenfold when dt is halved.

    By more than eightfold for every draw at these steps; at dt = 0.05 clouds that collapse fast
    (unnormalised ascent) are still far from the limit: a factor of 5.6 then 12.0 then 14.3.
    """
    rng = np.random.default_rng(seed)
    law = {"frozen": Frozen(), "oscillating": Oscillating(d), "user": drifting(d)}[law_name]
    options = {
        "heads": symmetric(rng, heads, d, d) / 4, "t_final": 0.5, "scheme": "rk4", "flow": flow,
        "direction": direction, "save": wflow.SaveAt(snapshots=[0]),
    }  # fmt: skip
    x0 = unit(rng, n, d)
    coarse, fine = (wflow.solve(x0, law, dt=dt, **options) for dt in (0.025, 0.0125))
    largest = [float(np.abs(run.edi_residual).max()) for run in (coarse, fine)]
    assert largest[1] <= max(largest[0] / 8, 1e-9)
    if heads == 1 or flow != "softmax":
        assert abs(fine.edi_residual_upper_gradient[0, -1] - fine.edi_residual[0, -1]) <= 1e-12


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    heads=st.integers(2, 5),
    direction=st.sampled_from(["descent", "ascent"]),
    scheme=st.sampled_from(["euler", "heun", "rk4"]),
)
def test_the_two_residuals_of_softmax_differ_by_the_integrated_defect(
    seed, heads, direction, scheme
):
    rng = np.random.default_rng(seed)
    run = wflow.solve(
        unit(rng, 12, 3), Frozen(), heads=symmetric(rng, heads, 3, 3), t_final=0.5, dt=0.01,
        direction=direction, scheme=scheme,
    )  # fmt: skip
    gap = float((run.edi_residual - run.edi_residual_upper_gradient)[0, -1])
    if TABLEAUX[scheme].stages == 1:  # there the integral is the sum of what is recorded
        assert gap == pytest.approx(0.01 * float(run.edi_defect[0, :-1].sum()), abs=1e-13)
    else:
        tolerance = {"heun": 2e-2, "rk4": 1e-5}[scheme] * (1 + float(np.abs(run.edi_defect).max()))
        assert gap == pytest.approx(simpson(run.edi_defect[0], x=run.time), abs=tolerance)


def test_upper_gradient_balance_fails_for_unequal_heads_by_a_gap_that_dt_does_not_close():
    x0 = wflow.tokens.cross_polytope(60, 3, seed=1)
    D0 = symmetric(np.random.default_rng(0), 5, 3, 3)
    runs = [
        wflow.solve(x0, Frozen(), heads=D0, t_final=2.0, dt=dt, save=wflow.SaveAt(snapshots=[0]))
        for dt in (0.005, 0.0025)
    ]
    gaps = [float(run.edi_residual_upper_gradient[0, -1]) for run in runs]
    closing = [float(run.edi_residual[0, -1]) for run in runs]
    assert abs(gaps[1]) > 20 * abs(closing[1]) and abs(gaps[1] / gaps[0] - 1) < 0.05
    assert closing[1] == pytest.approx(closing[0] / 2, rel=0.1)


@pytest.mark.parametrize(("scheme", "order"), [("heun", 2), ("rk4", 4)])
def test_a_schedule_of_general_heads_keeps_the_order_of_the_scheme(scheme, order):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 3, 2, 3, 3))
    law = Schedule([0.0, 0.4, 0.8], QKV(q, k, v), "constant")
    x0 = unit(rng, 8, 3)
    ends = [
        wflow.solve(x0, law, t_final=1.2, dt=dt, scheme=scheme).tokens[0, -1].values
        for dt in (0.04, 0.02, 0.01, 0.0025)
    ]
    errors = [np.abs(end - ends[-1]).max() for end in ends[:-1]]
    assert np.log2(errors[1] / errors[2]) > order - 0.3


def test_a_jump_of_the_heads_is_booked_as_work_of_the_weights():
    rng = np.random.default_rng(3)
    values = symmetric(rng, 3, 2, 3, 3)
    law = Schedule([0.0, 0.5, 1.0], values, "constant")
    run = wflow.solve(unit(rng, 10, 3), law, t_final=1.5, dt=0.01, scheme="rk4")
    assert np.abs(run.edi_residual).max() < 1e-5
    assert abs(run.work_weights[0, -1]) > 0.1
    jumps = np.flatnonzero(np.diff(run.work_weights[0]))
    assert np.allclose(run.time[jumps + 1], [0.5, 1.0])


def test_a_linear_schedule_closes_the_balance_at_fourth_order():
    rng = np.random.default_rng(3)
    law = Schedule([0.0, 0.5, 1.0], symmetric(rng, 3, 2, 3, 3) / 2)
    seen = order_seen(unit(rng, 10, 3), law, (0.05, 0.025), t_final=1.0, scheme="rk4")
    assert abs(seen - 4) <= 0.2


# ---- the flow itself ----


@pytest.mark.parametrize("direction", ["ascent", "descent"])
@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_two_tokens_follow_their_closed_form(direction, beta):
    """dc/dt = 2 s beta (1 - c^2) e^{beta c} / (e^beta + e^{beta c}) for c = <x_1, x_2>."""
    sign = {"ascent": 1, "descent": -1}[direction]
    x0 = np.array([[1.0, 0.0, 0.0], [0.4, np.sqrt(1 - 0.16), 0.0]])

    def slope(t, c):
        return 2 * sign * beta * (1 - c**2) / (np.exp(beta * (1 - c)) + 1)

    exact = solve_ivp(slope, (0, 2), [0.4], method="DOP853", rtol=1e-13, atol=1e-14).y[0, -1]
    run = wflow.solve(
        x0, Frozen(), heads=beta * np.eye(3)[None], t_final=2.0, dt=2e-3, scheme="rk4",
        direction=direction,
    )  # fmt: skip
    x = run.tokens.isel(snapshot_path=0, snapshot=-1).values
    assert x[0] @ x[1] == pytest.approx(exact, abs=2e-12)


def test_tokens_stay_on_the_sphere_over_many_steps(cases):
    t_final = cases(4.0, 50.0)  # of 200 steps a unit of time
    run = wflow.solve(
        unit(np.random.default_rng(0), 6, 4), Oscillating(4), heads=2, t_final=t_final, dt=5e-3,
        scheme="rk4", save=wflow.SaveAt(snapshots=np.linspace(0, t_final, 21), every=1000),
    )  # fmt: skip
    assert np.abs(np.linalg.norm(run.tokens, axis=-1) - 1).max() <= 1e-14


def test_energy_falls_in_descent_and_rises_in_ascent_for_frozen_heads():
    x0 = wflow.tokens.uniform(30, 3, seed=0)
    for flow in ("effective", "unnormalised"):
        for direction, sign in (("descent", -1), ("ascent", 1)):
            run = wflow.solve(
                x0, Frozen(), heads=3, t_final=1.0, dt=1e-3, flow=flow, direction=direction
            )
            assert np.all(sign * np.diff(run.energy[0]) >= -1e-12)


def test_causal_tokens_ignore_those_that_come_later():
    rng = np.random.default_rng(0)
    x0, D0 = unit(rng, 20, 3), symmetric(rng, 2, 3, 3)
    options = {"heads": D0, "t_final": 0.5, "dt": 0.01, "causal": True}
    whole = wflow.solve(x0, Frozen(), **options)
    part = wflow.solve(x0[:9], Frozen(), **options)
    assert np.abs(whole.tokens[0, -1, :9].values - part.tokens[0, -1].values).max() <= 1e-13
    assert "speed_sq" in whole and "energy" not in whole


def test_general_heads_with_tied_values_follow_the_tied_flow():
    rng = np.random.default_rng(0)
    x0, D0 = unit(rng, 20, 3), symmetric(rng, 2, 3, 3)
    options = {"t_final": 0.5, "dt": 0.01}
    tied = wflow.solve(x0, Frozen(), heads=D0, direction="ascent", **options)
    heads = QKV(np.broadcast_to(np.eye(3), (2, 3, 3)), D0, D0)
    general = wflow.solve(x0, Frozen(), heads=heads, **options)
    assert np.abs(tied.tokens - general.tokens).max() <= 1e-12
    scheduled = Schedule([0.0], QKV(*(np.asarray(a)[None] for a in (heads.query, D0, D0))))
    assert np.abs(wflow.solve(x0, scheduled, **options).tokens - general.tokens).max() <= 1e-12


@pytest.mark.parametrize("schemes", [("heun", "heun"), ("dopri5", wflow.Dopri5(1e-5, 1e-6))])
def test_single_precision_run_stays_near_the_double_one(schemes):
    x0, single = wflow.tokens.cross_polytope(50, 3, seed=0), wflow.Compute(dtype="float32")
    options = {"heads": 4, "t_final": 0.5, "dt": 5e-3}
    double = wflow.solve(x0, Oscillating(3), scheme=schemes[0], **options)
    single = wflow.solve(x0, Oscillating(3), scheme=schemes[1], compute=single, **options)
    assert single.energy[0, -1] == pytest.approx(float(double.energy[0, -1]), rel=1e-5)
    assert np.abs(single.tokens - double.tokens).max() <= 1e-5


# ---- the same seed, the same bits ----


OPTIONS = {
    "heads": 3, "t_final": 0.5, "dt": 0.01, "paths": 5, "seed": 7,
    "save": wflow.SaveAt(snapshots=[0, 0.2, 0.5], paths=[0, 3], heads=True, every=7),
}  # fmt: skip


@pytest.mark.parametrize(
    ("law", "options"),
    [
        (OrnsteinUhlenbeck(np.eye(3)), {}),
        (OrnsteinUhlenbeck(np.eye(3)), {"kappa": 0.2}),
        (OrnsteinUhlenbeck(np.eye(3)), {"scheme": "sra1"}),
        (Oscillating(3), {"scheme": "dopri5", "dt": 0.1, "save": wflow.SaveAt(heads=True)}),
    ],
)
def test_threads_and_batches_do_not_change_a_bit(law, options):
    x0 = wflow.tokens.cross_polytope(21, 3, seed=1)
    whole = wflow.solve(x0, law, **OPTIONS | options)
    for compute in ({"batch": 1}, {"batch": 2}, {"threads": 1}):
        other = wflow.solve(x0, law, **OPTIONS | options, compute=wflow.Compute(**compute))
        same_bits(whole, other)


def test_seed_and_path_key_the_noise():
    x0 = wflow.tokens.cross_polytope(21, 3, seed=1)
    law = OrnsteinUhlenbeck(np.eye(3))
    run = wflow.solve(x0, law, **OPTIONS)
    other = wflow.solve(x0, law, **(OPTIONS | {"seed": 8}))
    fewer = wflow.solve(x0, law, **(OPTIONS | {"paths": 4}))
    assert not np.array_equal(run.energy, other.energy)
    assert len(np.unique(run.energy[:, -1])) == 5
    assert np.array_equal(run.energy[:4], fewer.energy)


def test_a_run_is_rerun_from_its_file(tmp_path):
    x0 = 3 * wflow.tokens.cross_polytope(21, 3, seed=1)
    path = tmp_path / "run.h5"
    run = wflow.solve(x0, OrnsteinUhlenbeck(np.eye(3)), out=path, **OPTIONS)
    same_bits(run, wflow.rerun(path))
    schedule = Schedule([0.0, 1.0], symmetric(np.random.default_rng(0), 2, 1, 3, 3))
    given = OPTIONS | {"heads": None}
    run = wflow.solve(x0, schedule, out=tmp_path / "schedule.h5", **given)
    same_bits(run, wflow.rerun(tmp_path / "schedule.h5"))


def test_records_and_snapshots_are_where_they_were_asked_for():
    run = wflow.solve(
        np.eye(3), Frozen(), heads=1, t_final=1.0, dt=0.01,
        save=wflow.SaveAt(every=30, snapshots=[0.5, 1.0], paths=[]),
    )  # fmt: skip
    assert np.allclose(run.time, [0, 0.3, 0.6, 0.9, 1.0])
    assert np.allclose(run.snapshot, [0.5, 1.0])
    assert "tokens" not in run and run.tokens_mean.shape == (2, 3, 3)
    assert json.loads(run.attrs["config"])["save"]["every"] == 30


def test_a_step_that_blows_up_stops_with_time_path_and_score():
    law = OrnsteinUhlenbeck(np.eye(3), rate=50.0, sigma2=1.0)
    with (
        warnings.catch_warnings(),
        pytest.raises(wflow.BlowUpError, match="smaller dt") as caught,
    ):
        warnings.simplefilter("ignore")
        wflow.solve(unit(np.random.default_rng(0), 8, 3), law, heads=2, t_final=50.0, dt=0.1)
    assert caught.value.time > 0 and caught.value.score > 10 and caught.value.path == 0
    assert np.isfinite(caught.value.run.energy[0, 0])


@pytest.mark.parametrize("direction", ["descent", "ascent"])
def test_energies_beyond_doubles_are_inf_with_their_sign_and_warned_once(direction):
    x0 = unit(np.random.default_rng(0), 8, 3)
    sign = {"descent": 1, "ascent": -1}[direction]
    with pytest.warns(RuntimeWarning, match="beta = ") as caught:
        run = wflow.solve(x0, Frozen(), heads=[1e3 * np.eye(3)], t_final=2e-3, dt=1e-4,
                          direction=direction, paths=2, compute=wflow.Compute(batch=1))  # fmt: skip
    assert len(caught) == 1
    assert np.all(run.energy == np.inf)
    assert np.all(run.upper_gradient_sq == np.inf)
    assert np.all(run.dissipation == sign * np.inf)
    for name in run.data_vars:
        assert not np.isnan(run[name]).any(), name
