"""The studies of the weighted metric and of minimizing movements, end to end and small."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scripts import VERDICTS, call

FLOWS = ["--n", "8", "--heads", "2", "--paths", "2", "--threads", "1"]
METRIC = [*FLOWS, "--times", "0", "0.2", "--deltas", "0.02", "0.01", "--t-final", "0.22",
          "--dt", "0.01", "--pairs", "6", "--segments", "4"]  # fmt: skip
JKO = [*FLOWS, "--taus", "0.03125", "0.015625", "--t-final", "0.25", "--dt", "0.0078125"]


def document(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())


def test_metric_study_writes_its_files_and_numbers_that_fit_the_theory(
    tmp_path, monkeypatch, capsys
):
    out = tmp_path / "metric"
    assert call("metric", monkeypatch, *METRIC, "--out", str(out)) == 0
    names = {file.name for file in out.iterdir()}
    runs = {f"{flow}.h5" for flow in ("softmax", "effective", "unnormalised")}
    figures = {f"{stem}.{kind}" for stem in ("derivative", "bounds") for kind in ("png", "pdf")}
    assert names == runs | figures | {"summary.h5", "summary.json", "summary.md", "report.html"}
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table["quotient"].sizes == {"flow": 3, "metric": 2, "time": 2, "delta": 2, "path": 2}
        assert all("long_name" in table[name].attrs for name in table.data_vars)
        assert table["quotient_converged"].all() and table["pair_converged"].all()
        ratio = table["relative_error"].sel(delta=0.02) / table["relative_error"].sel(delta=0.01)
        assert np.median(ratio) == pytest.approx(2, abs=0.2)
        assert (table["pair_lower"] <= table["pair_wb"]).all()
        assert (table["pair_wb"] <= table["pair_upper"]).all()
    found = document(out)["findings"]
    assert [one["source"].split(",")[0] for one in found[:3]] == [
        "[MHT] Lemma 3.8", "[MHT] Lemma 3.8", "[MHT] Prop. 3.7"
    ]  # fmt: skip
    assert all(one["verdict"] in VERDICTS for one in found)
    assert "0 violations in 6 pairs" in found[2]["found"] and found[2]["verdict"] == "confirmed"
    assert "| flow" in capsys.readouterr().out


def test_jko_study_finds_first_order_and_the_flow_that_is_followed(tmp_path, monkeypatch, request):
    out = tmp_path / "jko"
    assert call("jko", monkeypatch, *JKO, "--out", str(out)) == 0
    assert {"distance.png", "distance.pdf", "summary.h5"} <= {file.name for file in out.iterdir()}
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        distance = table["distance"].mean("path")
        for case, flow in (("W_2, H heads", "unnormalised"), ("W_b, H heads", "effective"),
                           ("W_b, one head", "softmax")):  # fmt: skip
            here = distance.sel(case=case, flow=flow)
            assert float(here[0] / here[1]) == pytest.approx(2, abs=0.2)
        assert int(table["not_converged"].sum()) == 0
        assert float(table["inequality_gap"].min()) > 0
        assert float(abs(table["identity_gap"]).max()) < 1e-8
        assert np.isnan(table["between"].sel(case="W_b, one head")).all()
    verdicts = {one["prediction"]: one["verdict"] for one in document(out)["findings"]}
    assert sum("first order" in text and v == "confirmed" for text, v in verdicts.items()) >= 3
    assert any("softmax" in text and v == "not confirmed" for text, v in verdicts.items())
    first = document(out)
    request.getfixturevalue("sketched")
    assert call("jko", monkeypatch, *JKO, "--out", str(out), "--resume") == 0
    assert document(out)["findings"] == first["findings"]
