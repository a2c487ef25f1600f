"""The study of samplers, small."""

import json

import numpy as np
import xarray as xr
from scripts import call, script

import wflow

NAME = "rwpo_sampler"


def test_the_study_decides_its_findings_and_resumes(tmp_path, monkeypatch, capsys, sketched):
    sizes = (
        "--targets laplace lasso --tokens 30 --steps 0.1 --budgets 4 8 12 --dims 2 --sweep 30 60 "
    )
    sizes += "--scales 2 6 --decay 150 --betas 1 --until 0.5"
    call(NAME, monkeypatch, *sizes.split(), "--out", str(tmp_path))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary["runs"].values()) == {file.name for file in tmp_path.glob("*_h0.1.h5")}
    verdicts = {one["prediction"]: one["verdict"] for one in summary["findings"]}
    assert len(verdicts) == 11
    shrinks = next(text for text in verdicts if text.startswith("a cloud within"))
    assert verdicts[shrinks] != "not confirmed"
    every = next(text for text in verdicts if "in every dimension" in text)
    assert verdicts[every] != "confirmed"
    assert {file.stem for file in tmp_path.glob("*.png")} == {"gradients", "bias", "absorption"}
    assert wflow.verify(tmp_path / "lasso_d02_brwp_h0.1.h5").passed
    assert "Milliseconds of a step" in capsys.readouterr().out

    def computed(*arguments, **options):
        raise AssertionError("computed again")

    monkeypatch.setattr(wflow.sampling.samplers.SamplerBatch, "advance", computed)
    study = script(NAME)
    flags = study.RwpoSampler(
        targets=("laplace", "lasso"), tokens=30, steps=(0.1,), budgets=(4, 8, 12), dims=(2,),
        out=tmp_path, resume=True,
    )  # fmt: skip
    again = study.compare(flags, {}, "")
    with xr.open_dataset(tmp_path / "summary.h5", engine="h5netcdf") as table:
        assert np.array_equal(again["sliced"], table["sliced"])


def test_bias_of_infinitely_many_tokens_is_of_first_order():
    study = script(NAME)
    steps = np.array([0.1, 0.01, 0.001])
    assert np.allclose([study.mean_field_deficit(h) / h for h in steps], 1, atol=4 * steps, rtol=0)
