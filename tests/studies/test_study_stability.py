"""The studies of stability, equilibria and the defect, end to end at a size of seconds."""

import numpy as np
import pytest
import xarray as xr
from scripts import script

import wflow
from wflow import equilibria, stability
from wflow.transport import w2

ONE = ["--threads", "1"]
EDI = [*ONE, "--n", "12", "--t-final", "0.8", "--dt", "0.01", "--halvings", "1", "--heads", "3",
       "--noisy-heads", "1", "4", "--paths", "8"]  # fmt: skip


def test_defect_study_finds_where_the_balance_holds(run_study):
    done = run_study("edi_defect", *EDI)
    table = done.table
    assert done.drawn("residuals", "noise")
    for part, verdict in (
        ("softmax, one head", "confirmed"), ("softmax, equal heads", "confirmed"),
        ("softmax, unequal heads", "not confirmed"), ("effective", "confirmed"),
        ("`edi_defect`", "consistent"),
    ):  # fmt: skip
        assert done.verdicts(part) == [verdict]
    unequal = table.sel(problem="softmax, unequal heads", scheme="rk4").isel(step=-1)
    gap = unequal["edi_residual"] - unequal["edi_residual_upper_gradient"]
    assert float(gap) == pytest.approx(float(unequal["defect"]), abs=1e-12)
    assert abs(float(gap)) > 1e-3
    names = f"problem=softmax,_unequal_heads,scheme=euler,step={float(table.step[1])}-*.h5"
    with wflow.open(next(done.out.glob(names))) as run:
        at = table.sel(problem="softmax, unequal heads", scheme="euler").isel(step=1)
        assert float(at["edi_residual"]) == float(run["edi_residual"][0, -1])
        assert len(run["time"]) == 161


def test_limit_of_noisy_residuals_is_that_of_a_line_in_the_step():
    intercept = script("edi_defect").intercept
    rng = np.random.default_rng(0)
    steps = [0.04, 0.02, 0.01]
    samples = np.array([0.3 + 5 * dt + 0.01 * rng.standard_normal(400) for dt in steps])
    value, error = intercept(steps, samples)
    assert abs(value - 0.3) < 4 * error and error < 0.002


def test_order_counts_residuals_above_rounding_only():
    order = script("edi_defect").order
    steps = [0.04, 0.02, 0.01, 0.005]
    assert order(steps, np.array([256e-9, 16e-9, 1e-9, 1e-14])) == pytest.approx(4)
    assert order(steps, np.array([1e-9, 1e-14, 1e-15, 0.0])) == np.inf


@pytest.mark.parametrize(
    ("orders", "verdict"),
    [
        ([1.0, 2.0, 4.0], "confirmed"),
        ([1.0, 2.0, np.inf], "confirmed"),  # rk4 at rounding
        ([1.02, 1.94, 3.79], "confirmed in part"),  # vanishes, steps too large for the order
        ([0.0, 0.0, 0.0], "not confirmed"),
        ([1.0, 2.0, 0.0], "not confirmed"),
    ],
)
def test_residual_that_vanishes_is_never_called_one_that_does_not(orders, verdict):
    study = script("edi_defect")
    table = xr.Dataset({"order_edi_residual": (("problem", "scheme"), [orders])})
    table = table.assign_coords(problem=["p"], scheme=list(study.SCHEMES))
    assert study.closes(table, "edi_residual", "p") == verdict
    assert "inf" not in study.orders_text(table, "edi_residual", "p")


EQUILIBRIA = [*ONE, "--n", "8", "--paths", "4", "--t-final", "60", "--sizes", "4", "6", "9"]


def test_equilibria_study_reaches_the_closed_forms(run_study):
    done = run_study("equilibria", *EQUILIBRIA, "--beta", "1.5")
    table = done.table
    assert done.drawn("energies", "sizes", "limit_clouds")
    for part in ("D negative, descent", "D isotropic, ascent", "D indefinite +, descent",
                 "points or antipodal pairs", "n = 4, 6 tokens"):  # fmt: skip
        proved = part.startswith("D ")
        assert done.verdicts(part) == ["consistent" if proved else "confirmed"]
    lowest = table["energy"].sel(problem="negative", direction="descent").min()
    assert float(lowest) == pytest.approx(np.exp(-1.5) / 2, rel=1e-9)
    assert float(table["size_limit_energy"].sel(size=6).min()) == pytest.approx(
        equilibria.minimal_cloud_energy(6, 1.5, 3), rel=1e-9
    )
    bound = float(table["lower_bound"].sel(problem="isotropic"))
    assert bound <= equilibria.uniform_energy(1.5, 3) * (1 + 1e-12)
    highest = table["energy"].sel(direction="ascent").max(["start", "path"])
    assert np.all(highest <= table["extremum"].sel(direction="ascent") * (1 + 1e-9))


def test_equilibria_study_runs_on_the_circle_without_a_picture_in_space(run_study, sketched):
    circle = [*ONE, "--d", "2", "--n", "4", "--paths", "2", "--t-final", "20", "--sizes", "3", "5"]
    done = run_study("equilibria", *circle, "--flow", "unnormalised", "--scheme", "euler")
    assert done.drawn("energies", "sizes") and not done.drawn("limit_clouds")
    # Nothing has gathered yet: no verdict on points and pairs.
    short = [*ONE, "--paths", "2", "--sizes", "2", "--t-final", "1", "--n", "4"]
    findings = run_study("equilibria", *short, to="short").findings
    assert not [f for f in findings if "nan" in f["found"]]


def test_forms_of_limit_clouds():
    form_of = script("equilibria").form_of
    v = np.array([0.6, 0.0, 0.8])
    assert form_of(np.tile(-v, (5, 1)))[0] == "one point"
    kind, found, share = form_of(np.stack([v, -v, -v, -v]))
    assert kind == "antipodal pair" and share == 0.75
    np.testing.assert_allclose(found, -v)
    assert form_of(np.eye(3))[0] == "spread out"


TOKENS = [*ONE, "--n", "10", "--heads", "2", "--sizes", "0.1", "0.3", "--eps", "0.01", "--paths",
          "2", "--t-final", "0.4", "--dt", "0.1", "--times", "2"]  # fmt: skip


def test_token_study_compares_every_pair_of_runs_with_the_bound(run_study):
    done = run_study("stability_tokens", *TOKENS)
    out, table = done.out, done.table
    assert done.drawn("growth", "rates") and done.verdicts("chordal W₂") == ["consistent"]
    assert table["holds_chordal"].all() and table["holds_geodesic"].all()
    pair = stability.compare(
        out / "ornstein_descent_size1_reference.h5", out / "ornstein_descent_size1_eps0.h5"
    )
    at = table.sel(weights="ornstein-uhlenbeck", direction="descent", size=0.3, eps=0.01)
    np.testing.assert_array_equal(at["w2_chordal"], pair["w2_chordal"])
    np.testing.assert_array_equal(at["exponent"], pair["exponent"])
    assert float(at["w2_chordal"][:, 0].max()) < 0.0101
    # The same noise, scaled: so are the heads, and all of their constants.
    with (
        wflow.open(out / "ornstein_ascent_size0_reference.h5") as small,
        wflow.open(out / "ornstein_ascent_size1_reference.h5") as large,
    ):
        ratio = large["initial_heads"].values / small["initial_heads"].values
    np.testing.assert_allclose(ratio, 3)


def test_sizes_in_any_order_give_the_same_verdicts(run_study, sketched):
    small = [*ONE, "--n", "4", "--paths", "2", "--eps", "0.01", "--heads", "2", "--t-final", "0.2"]
    up, down = (
        run_study("stability_tokens", *small, "--times", "2", "--sizes", *sizes, to=sizes[0])
        for sizes in (("0.1", "0.2"), ("0.2", "0.1"))
    )
    assert up.findings == down.findings


def test_perturbed_clouds_have_the_size_asked_for():
    module = script("stability_tokens")
    x = wflow.tokens.uniform(30, 4, seed=1)
    flags = module.StabilityTokens(paths=4)
    clouds = module.perturbed(x, flags, 1e-4)
    moved = np.sqrt(np.mean(np.sum((clouds - x) ** 2, axis=2), axis=1))
    np.testing.assert_allclose(moved, 1e-4, rtol=1e-6)
    # Odd ones turn the cloud: inner products stay, to first order.
    for path in (1, 3):
        np.testing.assert_allclose(clouds[path] @ clouds[path].T, x @ x.T, atol=1e-7)
    assert np.abs(clouds[0] @ clouds[0].T - x @ x.T).max() > 1e-5


WEIGHTS = [*ONE, "--n", "10", "--law-heads", "64", "--heads", "2", "8", "--base-heads", "2",
           "--eps", "0.01", "0.04", "--paths", "3", "--t-final", "0.2", "--dt", "0.05", "--times",
           "2", "--size", "0.3"]  # fmt: skip


def test_weight_study_measures_the_distance_to_the_reference(run_study):
    done = run_study("stability_weights", *WEIGHTS)
    out, table = done.out, done.table
    assert np.all(table["w2_sampled"][..., 0] == 0) and np.all(table["w2_sampled"][..., 1:] > 0)
    assert done.drawn("rates") and done.verdicts("Ornstein-Uhlenbeck") == ["consistent"]
    assert done.verdicts("ε Z_h, frozen") == ["consistent"]
    with wflow.open(out / "law.h5") as law, wflow.open(out / "sampled_H00008_002.h5") as run:
        direct = w2(law["tokens"][0, -1], run["tokens"][0, -1], cost="chordal")
        assert float(table["w2_sampled"].sel(heads=8)[2, -1]) == pytest.approx(direct)
        members = law["initial_heads"].values
        drawn = run["initial_heads"].values
        assert all((members == head).all(axis=(1, 2)).any() for head in drawn)
    with wflow.open(out / "ou.h5") as base, wflow.open(out / "ou_eps1.h5") as run:
        change = run["initial_heads"].values - base["initial_heads"].values
        assert 0.001 < np.abs(change).max() < 0.4
