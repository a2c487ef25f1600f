"""The studies of clusters and long times, end to end at a size of seconds."""

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scripts import script

import wflow
from wflow import clusters

study = script("clustering")

CLUSTERING = [
    "--betas", "1", "9", "--dims", "2", "16", "--n", "8", "--paths", "4", "--t-final", "20",
    "--dt", "0.25", "--series-betas", "1", "2", "--series-n", "8", "--series-paths", "2",
    "--series-t", "60", "--threads", "1",
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
def test_clustering_counts_what_its_run_files_hold(request, run_study, causal):
    if causal:
        request.getfixturevalue("sketched")
    done = run_study("clustering", *CLUSTERING, *["--causal"] * causal)
    assert done.drawn("phase_diagram", "series")
    assert "| beta \\ d |" in done.said and "plateaus of start 0" in done.said
    table = done.table
    assert table["share"].sizes == {"beta": 2, "d": 2, "when": 3}
    np.testing.assert_allclose(table["when"], [5, 10, 20])
    with wflow.open(done.out / "beta_9_d_016.h5") as run:
        np.testing.assert_allclose(run["snapshot"] * 9, [5, 10, 20])
        x = wflow.sphere.as_tokens(run["tokens"][3, 1].values)
    assert table["count"].sel(beta=9, d=16).isel(when=1, start=3) == clusters.count(x, 0.0447)
    assert np.all(table["share"].sel(beta=1, d=16).isel(when=-1) == 1)
    assert np.all(table["share"].sel(beta=9, d=16) == 0)
    assert 1 < table["frontier"].sel(d=16).isel(when=-1) < 9
    if causal:
        assert table["first_token_moved"] < 1e-12 and table["first_token_distance"] < 0.5
    (one,) = done.verdicts("one cluster for beta small (beta <= 1), any d")
    assert one in ("consistent", "confirmed in part")
    assert bool(done.verdicts("the one cluster is at the first token, which stays")) == causal


def test_same_starts_are_used_for_every_beta_and_time_is_that_of_the_paper():
    runs = study.tasks(study.Clustering(dims=(3,), betas=(1.0, 4.0), paths=2, n=5))
    one, four = runs["beta_1_d_003"], runs["beta_4_d_003"]
    np.testing.assert_array_equal(one["x0"], four["x0"])
    assert one["t_final"] == 4 * four["t_final"] == 30.0
    assert one["save"].budget is False and np.array_equal(four["heads"], 4 * np.eye(3)[None])


def test_meeting_time_of_orthogonal_tokens_is_that_of_their_angle_equation():
    beta, n, scale = 3.0, 12, 0.1

    def angle(t, g):
        return (
            2 * np.exp(beta * g) * (1 - g) * ((n - 1) * g + 1)
            / (math.exp(beta) + (n - 1) * np.exp(beta * g))
        )  # fmt: skip

    def met(t, g):
        return g[0] - math.cos(scale)

    met.terminal = True  # type: ignore[attr-defined]
    path = solve_ivp(angle, (0, 100), [0.0], events=met, rtol=1e-10, atol=1e-12)
    time = study.meeting_time(beta, n, scale)
    assert time == pytest.approx(path.t_events[0][0], rel=1e-7)
    assert study.meeting_beta(time, n, scale) == pytest.approx(beta, rel=1e-9)
    assert math.isnan(study.meeting_beta(0.1, n, scale))
    x0, steps = np.eye(n), 400
    run = wflow.solve(
        x0,
        wflow.heads.Frozen(),
        heads=beta * np.eye(n)[None],
        t_final=2 * time / beta,
        dt=2 * time / beta / steps,
        direction="ascent",
        scheme="rk4",
        save=wflow.SaveAt(budget=False, snapshots=[time / beta], every=steps),
    )
    x = wflow.sphere.as_tokens(run["tokens"][0, 0].values)
    assert x[0] @ x[1] == pytest.approx(math.cos(scale), abs=1e-7)


def test_frontier_is_the_last_crossing_of_one_half():
    betas = [1.0, 2.0, 4.0, 6.0]
    assert study.frontier(betas, np.array([1, 1, 0.75, 0.25])) == 5
    assert study.frontier([4.0, 1.0], np.array([0.0, 1.0])) == 2.5
    assert math.isnan(study.frontier(betas, np.zeros(4)))
    assert math.isinf(study.frontier(betas, np.ones(4)))


def test_orthogonal_tokens_within_the_scale_have_met_for_every_beta():
    assert study.meeting_time(3.0, 12, 2.0) == 0
    assert math.isinf(study.meeting_beta(5.0, 12, 2.0))
    assert math.isinf(study.meeting_beta(1e30, 12, 0.1))


def test_growth_tells_an_exponential_from_a_power_of_beta():
    beta = np.array([1.0, 2.0, 3.0, 4.0])
    scatter = np.exp(0.01 * np.random.default_rng(0).standard_normal((4, 6)))
    grown = study.growth(beta, np.exp(1.5 * beta)[:, None] * scatter)
    assert grown is not None and grown.exponential
    low, high = grown.law.slope_ci
    assert low < 1.5 < high and grown.law.slope == pytest.approx(1.5, abs=0.02)
    power = study.growth(beta, beta[:, None] ** 3 * scatter)
    assert power is not None and power.law.slope_ci[0] > 0 and not power.exponential
    never = np.where(beta[:, None] > 2, np.nan, scatter)
    assert study.growth(beta, never) is None


def test_causal_study_in_which_no_start_meets_says_so(run_study, sketched):
    flags = ["--causal", "--betas", "12", "--dims", "16", "--n", "8", "--paths", "2"]
    flags += ["--t-final", "2", "--series-betas", "12", "--series-n", "8", "--series-d", "2"]
    flags += ["--series-paths", "2", "--series-t", "4", "--threads", "1"]
    done = run_study("clustering", *flags)
    (first,) = [f for f in done.findings if "first token" in f["prediction"]]
    assert first["verdict"] == "inconclusive" and "no start is in one cluster" in first["found"]
    assert not done.verdicts("beta small")  # not in the grid: not judged
    assert "nan" not in (done.out / "summary.md").read_text()


LONG = [
    "--n", "10", "--t-final", "24", "--dt", "0.1", "--noisy-dt", "0.1", "--noisy-heads", "2", "8",
    "--spread-heads", "2", "--heads", "2", "--paths", "4", "--threads", "1",
]  # fmt: skip


def test_long_time_tells_frozen_heads_from_oscillating_ones(run_study):
    done = run_study("long_time", *LONG)
    table = done.table
    assert done.drawn("long_time") and "| frozen, H = 2, effective" in done.said
    row = table.sel(run="common")
    with wflow.open(done.out / "common.h5") as run:
        power = np.abs((run["weight_power"] + run["ito_power"]).values[0])
        whole = np.sum(np.diff(run["time"]) * (power[1:] + power[:-1]) / 2)
        x = [wflow.sphere.as_tokens(run["tokens"][0, k].values) for k in (-2, -1)]
        elapsed = np.diff(run["snapshot"].values[-2:])[0]
    assert float(row["power_integral"]) == pytest.approx(whole, rel=1e-12)
    assert float(table["power_integral"].sel(run="frozen")) == 0
    assert float(row["w2_speed"][-1]) * elapsed == pytest.approx(wflow.transport.w2(*x), rel=1e-9)
    assert np.isnan(table["gradient_late"].sel(run="frozen")[1:]).all()
    assert np.isfinite(table["gradient_late"].sel(run="noisy_00008")).all()
    assert len(done.findings) == 4
    (noisy,) = done.verdicts("in expectation for heads with noise, and the tokens")
    assert noisy in ("inconclusive", "confirmed in part"), "the runs are short"
