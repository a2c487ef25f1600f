"""The study over head counts: its published configuration, and the two parts of G^2."""

import numpy as np
import pytest
from scripts import call, script

import wflow
from wflow import InputError, study
from wflow.study import heads

KINDS = {"ou_heads": "OUHeads", "oscillating_heads": "OscillatingHeads"}
TINY = ["--preset", "published", "--heads", "1", "2", "4", "--n", "12", "--t-final", "0.1"]
TINY += ["--compute.threads", "1"]


def flags_of(name: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> study.StudyFlags:
    """Read the flags of a study from its command line."""
    monkeypatch.setattr("sys.argv", [f"studies/{name}.py", *words])
    return study.command_line(getattr(script(name), KINDS[name]), None)


@pytest.mark.parametrize(("name", "paths"), [("ou_heads", 100), ("oscillating_heads", 1)])
def test_the_preset_is_the_published_configuration(name, paths, monkeypatch) -> None:
    flags = flags_of(name, monkeypatch, "--preset", "published", "--d", "2")
    assert (flags.heads, flags.n, flags.d, flags.paths) == ((1, 10, 100), 200, 2, paths)
    assert (flags.t_final, flags.dt, flags.scheme, flags.save.every) == (20.0, 5e-3, "euler", 5)
    assert (flags.tokens, flags.tokens_seed, flags.fit_from) == ("cross-polytope", 42, 1)
    assert flags.sigma2 == (2.0 if name == "ou_heads" else 0.0)


def test_other_flags_override_the_preset(monkeypatch) -> None:
    words = ["--d", "5", "--paths", "20", "--preset", "published", "--heads", "3"]
    flags = flags_of("ou_heads", monkeypatch, *words)
    assert (flags.d, flags.paths, flags.heads, flags.n) == (5, 20, (3,), 200)


@pytest.mark.parametrize("name", KINDS)
def test_the_parts_of_the_published_study_add_up(name, run_study, undrawn) -> None:
    done = run_study(name, *TINY, "--paths", "17")
    table, summary = done.table, done.summary
    assert f"{summary['question']}." in (script(name).__doc__ or "").splitlines()
    assert table["snapshot_path"].size == 17, "the parts are averages over all paths"
    parts = table["head_variance"] + table["mean_velocity"]
    assert np.isnan(parts.sel(heads=1)).all()
    many = parts.sel(heads=[2, 4]).values
    np.testing.assert_allclose(many, table["upper_gradient_sq"].sel(heads=[2, 4]), rtol=1e-13)
    variances = table["head_variance"].sel(heads=[2, 4]).values
    with wflow.open(done.out / "H00004.h5") as run:
        late = np.flatnonzero(run["snapshot"].values >= 0.05)
        weights = np.gradient(run["snapshot"].values[late])
        x, D = run["tokens"].values, run["heads"].values
    by_hand = [
        np.average([heads.head_variance(x[p, k], D[p, k]) for k in late], weights=weights)
        for p in range(17)
    ]
    np.testing.assert_allclose(variances[1], by_hand, rtol=1e-10)
    fit = wflow.fits.power_law([2, 4], variances)
    assert summary["fit_head_variance"]["exponent"] == pytest.approx(fit.exponent)
    assert summary["fit_head_variance"]["heads_from"] == 2
    assert summary["runs"][0]["head_variance"] == {"mean": None, "standard_error": None}


def test_the_published_figures_are_made_of_both_folders(
    tmp_path, monkeypatch, run_study, undrawn
) -> None:
    folders = [str(run_study(name, *TINY, "--paths", "2", to=name).out) for name in KINDS]
    call("published_heads", monkeypatch, *folders, "--out", str(tmp_path / "made"))
    files = sorted((tmp_path / "made").iterdir())
    assert len(files) == 4 and all(file.read_bytes()[1:4] == b"PNG" for file in files)
    with pytest.raises(InputError, match="made: expected the folder"):
        call("published_heads", monkeypatch, folders[0], str(tmp_path / "made"), "--out", "more")


def test_without_stored_heads_there_are_no_parts(run_study, undrawn) -> None:
    done = run_study("ou_heads", *TINY, "--paths", "2", "--no-save-heads")
    assert "mean velocity" not in done.said and done.summary["fit_head_variance"] is None


@pytest.mark.parametrize("flow", ["softmax", "unnormalised", "effective"])
@pytest.mark.parametrize("direction", ["descent", "ascent"])
def test_what_the_variance_leaves_of_g2_are_products_of_different_heads(flow, direction) -> None:
    rng = np.random.default_rng(3)
    x, count = wflow.tokens.uniform(n=9, d=3, seed=0), 4
    D = rng.standard_normal((count, 3, 3))
    D = D + D.swapaxes(1, 2)
    score = np.einsum("ia,hab,jb->hij", x, D, x)
    m = np.exp(score).mean(axis=2)  # (heads, n)
    g = np.einsum("hij,hab,jb->hia", np.exp(score), D, x) / len(x)
    g -= np.einsum("hia,ia->hi", g, x)[..., None] * x
    b = {"unnormalised": np.ones(len(x))}.get(flow, 1 / np.mean(1 / m, axis=0))
    v = {"softmax": g / m[..., None], "unnormalised": g, "effective": g / b[:, None]}[flow]
    pairs = np.einsum("i,hia,kia->hk", b, v, v) / len(x)
    rest = (pairs.sum() - np.trace(pairs)) / (count * (count - 1))
    whole = wflow.upper_gradient_sq(x, D, flow=flow, direction=direction)
    assert heads.head_variance(x, D, flow) == pytest.approx(whole - rest, rel=1e-10)


def test_the_variance_of_opposite_velocities_is_known() -> None:
    # Two tokens at a right angle: D = I moves them with 1/(e + 1), D = -I with -1/(1/e + 1).
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    D = np.stack([np.eye(2), -np.eye(2)])
    speeds = np.array([1 / (np.e + 1), -1 / (1 / np.e + 1)])
    b = 2 / (2 / (np.e + 1) + 2 / (1 / np.e + 1))
    assert heads.head_variance(x, D) == pytest.approx(b * speeds.var(ddof=1) / 2, rel=1e-12)
