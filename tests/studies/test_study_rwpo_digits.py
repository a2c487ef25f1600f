"""The study rwpo_digits, end to end and small, and what it measures of an attention."""

import json

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from scripts import call, script  # noqa: E402

from wflow import InputError  # noqa: E402


def test_it_writes_its_tables_and_resumes(tmp_path, monkeypatch, capsys, sketched):
    monkeypatch.setenv("WFLOW_DATA", str(tmp_path / "nothing"))
    out = tmp_path / "digits"
    flags = ["--preset", "smoke", "--seeds", "1", "--device", "cpu", "--out", str(out)]
    call("rwpo_digits", monkeypatch, *flags, "--only", "late layer d3")
    record = (out / "late-layer-d3-0" / "record.json").stat().st_mtime_ns
    trained = (out / "autoencoder-d3-0" / "checkpoint.pt").stat().st_mtime_ns
    capsys.readouterr()
    call("rwpo_digits", monkeypatch, *flags, "--only", "OT-Flow d3", "--resume")
    assert (out / "late-layer-d3-0" / "record.json").stat().st_mtime_ns == record
    assert (out / "autoencoder-d3-0" / "checkpoint.pt").stat().st_mtime_ns == trained
    said = capsys.readouterr().out
    assert "scikit-learn digits" in said and "variance explained" in said
    assert {"samples_d3.png", "attention.pdf"} <= {file.name for file in out.iterdir()}
    assert json.loads((out / "summary.json").read_text())["findings"] == []
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert sorted(table["model"].values) == ["OT-Flow d3", "late layer d3"]
        assert np.isfinite(table[["nll", "nll_train", "frechet"]].to_array()).all()
        assert np.isfinite(table["ess"].sel(model="late layer d3")).all()
    with pytest.raises(InputError, match="--iterations is 0"):
        call("rwpo_digits", monkeypatch, *flags, "--iterations", "0")


def test_attention_goes_from_the_token_itself_to_the_mean_of_all():
    study = script("rwpo_digits")
    x = np.random.default_rng(0).standard_normal((200, 6))
    sharp, flat = (study.attention_at(x, 0.1, beta, 0.0) for beta in (1e3, 1e-6))
    assert sharp.self_weight > 0.999 and sharp.ess < 1.5
    assert flat.self_weight == pytest.approx(1 / 200, rel=1e-3)
    assert flat.ess == pytest.approx(199, rel=1e-3)
    assert abs(flat.explained) < 0.02
    beta = study.beta_for(30.0, x, None, 0.1, study.sampling.L1(1.0))
    near = [study.attention_at(x, 0.1, share * beta, 1.0).ess for share in (0.99, 1.01)]
    assert near[0] >= 30 > near[1]
    clusters = x * 0.01 + 5 * np.repeat(np.eye(6)[:4], 50, axis=0)
    assert study.attention_at(clusters, 0.1, 0.1, 0.0).explained > 0.99


def test_iterations_of_a_seed_that_never_gets_there():
    assert script("rwpo_digits").shown(np.array([25.0, np.inf])) == "25, never"


def test_the_paper_preset_has_the_settings_of_table_1():
    paper = script("rwpo_digits").RwpoDigits.of("paper")
    assert (paper.dims, paper.steps, paper.width, paper.batch) == ((64,), 48, 128, 1024)
    assert (paper.iterations, paper.rates, paper.alpha[2]) == (12_001, (1e-3, 1e-6), 5.0)
