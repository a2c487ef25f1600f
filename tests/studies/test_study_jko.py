"""The studies of the weighted metric and of minimizing movements, end to end and small."""

import numpy as np
import pytest
from scripts import VERDICTS

FLOWS = ["--n", "8", "--heads", "2", "--paths", "2", "--threads", "1"]
METRIC = [*FLOWS, "--times", "0", "0.2", "--deltas", "0.02", "0.01", "--t-final", "0.22",
          "--dt", "0.01", "--pairs", "6", "--segments", "4"]  # fmt: skip
JKO = [*FLOWS, "--taus", "0.03125", "0.015625", "--t-final", "0.25", "--dt", "0.0078125"]


def test_metric_study_writes_its_files_and_numbers_that_fit_the_theory(run_study, reported):
    done = run_study("metric", *METRIC)
    table, found = done.table, done.findings
    files = {f"{flow}.h5" for flow in ("softmax", "effective", "unnormalised")}
    assert files | {"report.html"} < done.names
    assert done.drawn("derivative", "bounds") and "| flow" in done.said
    assert table["quotient"].sizes == {"flow": 3, "metric": 2, "time": 2, "delta": 2, "path": 2}
    assert table["quotient_converged"].all() and table["pair_converged"].all()
    ratio = table["relative_error"].sel(delta=0.02) / table["relative_error"].sel(delta=0.01)
    assert np.median(ratio) == pytest.approx(2, abs=0.2)
    assert (table["pair_lower"] <= table["pair_wb"]).all()
    assert (table["pair_wb"] <= table["pair_upper"]).all()
    assert all(one["verdict"] in VERDICTS for one in found)
    assert "0 violations in 6 pairs" in found[2]["found"] and found[2]["verdict"] == "consistent"


def test_jko_study_finds_first_order_and_the_flow_that_is_followed(run_study, request):
    done = run_study("jko", *JKO)
    table = done.table
    assert done.drawn("distance")
    distance = table["distance"].mean("path")
    for case, flow in (("W_2, H heads", "unnormalised"), ("W_b, H heads", "effective"),
                       ("W_b, one head", "softmax")):  # fmt: skip
        here = distance.sel(case=case, flow=flow)
        assert float(here[0] / here[1]) == pytest.approx(2, abs=0.2)
    assert int(table["not_converged"].sum()) == 0
    assert float(table["inequality_gap"].min()) > 0
    assert float(abs(table["identity_gap"]).max()) < 1e-8
    assert np.isnan(table["between"].sel(case="W_b, one head")).all()
    assert done.verdicts("first order").count("consistent") >= 3
    assert "not confirmed" in done.verdicts("softmax")
    request.getfixturevalue("sketched")
    movements = {file: file.stat().st_mtime_ns for file in done.out.glob("movements/*.h5")}
    assert len(movements) == 20
    assert run_study("jko", *JKO, "--resume").findings == done.findings
    assert all(file.stat().st_mtime_ns == time for file, time in movements.items())
