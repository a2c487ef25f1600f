"""The study of inverse problems: end to end and small, and what it decides."""

import json

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from scripts import call, script  # noqa: E402

from wflow.study.networks import Results  # noqa: E402

NAME = "rwpo_inverse"


@pytest.mark.filterwarnings("ignore:the published layers fold")
def test_the_study_trains_compares_and_continues(tmp_path, monkeypatch, capsys, sketched, cases):
    out = tmp_path / "inverse"
    problems = cases(["lorenz"], ["elliptic", "lorenz", "impedance"])
    models = ["ot-flow", "sparse", "printed-kl"] if len(problems) == 1 else None
    flags = ["--preset", "smoke", "--out", str(out), "--problem", *problems]
    flags += ["--models", *models] if models else []
    call(NAME, monkeypatch, *flags)
    first = (out / "reference-lorenz.npz").stat().st_mtime_ns
    call(NAME, monkeypatch, *flags, "--resume")
    assert (out / "reference-lorenz.npz").stat().st_mtime_ns == first
    said = capsys.readouterr().out
    assert "lorenz: d = 3, 15 observations" in said and "largest R-hat" in said
    assert json.loads((out / "summary.json").read_text())["findings"] == []
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert np.isfinite(table[["mean_error", "relative_l1", "rank_p"]].to_array()).all()
        assert np.isfinite(table["validation"].sel(model="lorenz ot-flow")).all()
        assert table["reference_l1"].max() < 0.1 < table["relative_l1"].max()


def test_a_gain_within_the_spread_is_inconclusive():
    study = script(NAME)

    def made(errors: dict[str, list[float]]) -> dict[str, str]:
        keys = dict.fromkeys(study.NUMBERS, 0.5)
        records = {
            model: [keys | {"mean_error": value} for value in values]
            for model, values in errors.items()
        }
        found = study.findings("lorenz", Results(records, {}))
        return {f.prediction: f.verdict for f in found}

    claim = "lorenz: the posterior mean is more accurate with the sparse transformer (corrected)"
    assert made({"ot-flow": [2.0, 2.1], "sparse": [1.0, 1.1]})[claim] == "confirmed"
    assert made({"ot-flow": [2.0, 2.5], "sparse": [1.8, 2.4]})[claim] == "inconclusive"
    assert made({"ot-flow": [1.0, 1.1], "sparse": [2.0, 2.1]})[claim] == "not confirmed"
    calibrated = "lorenz: the posterior of sparse is calibrated"
    assert made({"sparse": [1.0, 1.0]})[calibrated] == "confirmed"
