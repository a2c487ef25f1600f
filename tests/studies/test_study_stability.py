"""The studies of stability, equilibria and the defect, end to end at a size of seconds."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scripts import script

import wflow
from wflow import InputError, equilibria, stability
from wflow.transport import w2


def call(name: str, monkeypatch: pytest.MonkeyPatch, out: Path, *flags: str) -> dict:
    """Run a study in this process; its summary."""
    flags = (*flags, "--threads", "1", "--out", str(out))
    monkeypatch.setattr(sys, "argv", [f"studies/{name}.py", *flags])
    assert script(name).main() == 0
    return json.loads((out / "summary.json").read_text())


def written(out: Path, *figures: str) -> xr.Dataset:
    """The table of a study, whose files are all there."""
    names = {file.name for file in out.iterdir()}
    assert {"summary.h5", "summary.json", "summary.md", "report.html"} <= names
    assert {f"{figure}.{kind}" for figure in figures for kind in ("png", "pdf")} <= names
    assert not [name for name in names if name.endswith((".partial", ".checkpoint", ".new"))]
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert all("long_name" in table[name].attrs for name in table.data_vars)
        return table.load()


def verdicts(summary: dict, part: str) -> list[str]:
    found = [f["verdict"] for f in summary["findings"] if part in f["prediction"]]
    assert found
    return found


EDI = ["--n", "12", "--t-final", "0.8", "--dt", "0.01", "--halvings", "1", "--heads", "3",
       "--noisy-heads", "1", "4", "--paths", "8"]  # fmt: skip


def test_defect_study_finds_where_the_balance_holds(tmp_path, monkeypatch):
    out = tmp_path / "edi"
    summary = call("edi_defect", monkeypatch, out, *EDI)
    table = written(out, "residuals", "noise")
    assert verdicts(summary, "softmax, one head") == ["confirmed"]
    assert verdicts(summary, "softmax, equal heads") == ["confirmed"]
    assert verdicts(summary, "softmax, unequal heads") == ["not confirmed"]
    assert verdicts(summary, "effective") == ["confirmed"]
    assert verdicts(summary, "`edi_defect`") == ["confirmed"]
    unequal = table.sel(problem="softmax, unequal heads", scheme="rk4").isel(step=-1)
    gap = unequal["edi_residual"] - unequal["edi_residual_upper_gradient"]
    assert float(gap) == pytest.approx(float(unequal["defect"]), abs=1e-12)
    assert abs(float(gap)) > 1e-3
    with wflow.open(out / "frozen2_euler_step1.h5") as run:
        at = table.sel(problem="softmax, unequal heads", scheme="euler").isel(step=1)
        assert float(at["edi_residual"]) == float(run["edi_residual"][0, -1])
        assert len(run["time"]) == 161
    with pytest.raises(InputError, match="exists"):
        call("edi_defect", monkeypatch, out, *EDI)


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


EQUILIBRIA = ["--n", "8", "--paths", "4", "--t-final", "60", "--sizes", "4", "6", "9"]


def test_equilibria_study_reaches_the_closed_forms(tmp_path, monkeypatch):
    out = tmp_path / "equilibria"
    summary = call("equilibria", monkeypatch, out, *EQUILIBRIA, "--beta", "1.5")
    table = written(out, "energies", "sizes", "limit_clouds")
    assert verdicts(summary, "D negative, descent") == ["confirmed"]
    assert verdicts(summary, "D isotropic, ascent") == ["confirmed"]
    assert verdicts(summary, "D indefinite +, descent") == ["confirmed"]
    assert verdicts(summary, "points or antipodal pairs") == ["confirmed"]
    assert verdicts(summary, "n = 4, 6 tokens") == ["confirmed"]
    lowest = table["energy"].sel(problem="negative", direction="descent").min()
    assert float(lowest) == pytest.approx(np.exp(-1.5) / 2, rel=1e-9)
    assert float(table["size_limit_energy"].sel(size=6).min()) == pytest.approx(
        equilibria.minimal_cloud_energy(6, 1.5, 3), rel=1e-9
    )
    bound = float(table["lower_bound"].sel(problem="isotropic"))
    assert bound <= equilibria.uniform_energy(1.5, 3) * (1 + 1e-12)
    highest = table["energy"].sel(direction="ascent").max(["start", "path"])
    assert np.all(highest <= table["extremum"].sel(direction="ascent") * (1 + 1e-9))


def test_equilibria_study_runs_on_the_circle_without_a_picture_in_space(
    tmp_path, monkeypatch, sketched
):
    out = tmp_path / "circle"
    call("equilibria", monkeypatch, out, "--d", "2", "--n", "4", "--paths", "2", "--t-final", "20",
         "--sizes", "3", "5", "--flow", "unnormalised", "--scheme", "euler")  # fmt: skip
    written(out, "energies", "sizes")
    assert not (out / "limit_clouds.png").exists()


def test_forms_of_limit_clouds():
    form_of = script("equilibria").form_of
    v = np.array([0.6, 0.0, 0.8])
    assert form_of(np.tile(-v, (5, 1)))[0] == "one point"
    kind, found, share = form_of(np.stack([v, -v, -v, -v]))
    assert kind == "antipodal pair" and share == 0.75
    np.testing.assert_allclose(found, -v)
    assert form_of(np.eye(3))[0] == "spread out"


TOKENS = ["--n", "10", "--heads", "2", "--sizes", "0.1", "0.3", "--eps", "0.01", "--paths", "2",
          "--t-final", "0.4", "--dt", "0.1", "--times", "2"]  # fmt: skip


def test_token_study_compares_every_pair_of_runs_with_the_bound(tmp_path, monkeypatch):
    out = tmp_path / "tokens"
    summary = call("stability_tokens", monkeypatch, out, *TOKENS)
    table = written(out, "growth", "rates")
    assert table["holds_chordal"].all() and table["holds_geodesic"].all()
    assert verdicts(summary, "chordal W₂") == ["confirmed"]
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


WEIGHTS = ["--n", "10", "--law-heads", "64", "--heads", "2", "8", "--base-heads", "2", "--eps",
           "0.01", "0.04", "--paths", "3", "--t-final", "0.2", "--dt", "0.05", "--times", "2",
           "--size", "0.3"]  # fmt: skip


def test_weight_study_measures_the_distance_to_the_reference(tmp_path, monkeypatch):
    out = tmp_path / "weights"
    summary = call("stability_weights", monkeypatch, out, *WEIGHTS)
    table = written(out, "rates")
    assert np.all(table["w2_sampled"][..., 0] == 0) and np.all(table["w2_sampled"][..., 1:] > 0)
    assert verdicts(summary, "Ornstein-Uhlenbeck") == ["confirmed"]
    assert verdicts(summary, "ε Z_h, frozen") == ["confirmed"]
    with wflow.open(out / "law.h5") as law, wflow.open(out / "sampled_H00008_002.h5") as run:
        direct = w2(law["tokens"][0, -1], run["tokens"][0, -1], cost="chordal")
        assert float(table["w2_sampled"].sel(heads=8)[2, -1]) == pytest.approx(direct)
        members = law["initial_heads"].values
        drawn = run["initial_heads"].values
        assert all((members == head).all(axis=(1, 2)).any() for head in drawn)
    with wflow.open(out / "ou.h5") as base, wflow.open(out / "ou_eps1.h5") as run:
        change = run["initial_heads"].values - base["initial_heads"].values
        assert 0.001 < np.abs(change).max() < 0.4


def test_sizes_in_any_order_give_the_same_verdicts(tmp_path, monkeypatch, sketched):
    small = ["--n", "4", "--paths", "2", "--eps", "0.01", "--heads", "2", "--t-final", "0.2"]
    found = []
    for name, sizes in (("up", ("0.1", "0.2")), ("down", ("0.2", "0.1"))):
        flags = [*small, "--times", "3", "--sizes", *sizes]
        found.append(call("stability_tokens", monkeypatch, tmp_path / name, *flags)["findings"])
    assert found[0] == found[1]


def test_message_on_other_tokens_names_flags_that_the_study_has(tmp_path, monkeypatch, sketched):
    small = ["--paths", "2", "--sizes", "2", "--t-final", "1"]
    out = tmp_path / "equilibria"
    summary = call("equilibria", monkeypatch, out, *small, "--n", "4")
    # Nothing has gathered yet: no verdict on points and pairs.
    assert not [f for f in summary["findings"] if "nan" in f["found"]]
    with pytest.raises(InputError, match="--paths"):
        call("equilibria", monkeypatch, out, *small, "--n", "5", "--resume")
