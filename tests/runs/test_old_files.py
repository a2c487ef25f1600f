"""Files of schema wflow-run/1, which have no digests, open, verify and run again."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import wflow
from wflow.analysis.verify import verify
from wflow.heads import OrnsteinUhlenbeck

FILES = Path(__file__).parent / "files"
# These variables had the first order in the noise alone.
FIRST_ORDER = {"martingale", "edi_residual", "edi_residual_upper_gradient"}


def solve(out: Path, **changes):
    x0 = wflow.tokens.cross_polytope(n=6, d=3, spread=0.05, seed=42)
    options = {"heads": 2, "t_final": 0.1, "dt": 0.01, "paths": 2, "seed": 1, "out": out}
    options |= {"save": wflow.SaveAt(heads=True), "compute": wflow.Compute(method="exact")}
    return wflow.solve(x0, OrnsteinUhlenbeck(np.eye(3)), **options | changes)


def test_a_run_of_schema_1_opens_verifies_and_runs_again() -> None:
    path = FILES / "run_0.1.0.h5"
    report = verify(path)
    assert report.passed
    assert any(check.passed is None and "wflow-run/1" in check.note for check in report.checks)
    with wflow.open(path) as ds, wflow.rerun(path) as again:
        for name in set(ds.variables) - FIRST_ORDER:
            np.testing.assert_allclose(ds[name], again[name], 1e-12, 1e-14, err_msg=name)
        config = json.loads(ds.attrs["config"])  # its options were not objects then
    assert config["save"]["paths"] == [0] and config["save"]["budget"]
    assert config["compute"] == {"dtype": "float64"} and "ledger" not in config


def test_an_unfinished_run_of_schema_1_is_read_and_not_resumed(tmp_path) -> None:
    for kind in ("partial", "checkpoint"):
        shutil.copy(FILES / f"stopped_0.1.0.h5.{kind}", tmp_path / f"run.h5.{kind}")
    out = tmp_path / "run.h5"
    with pytest.warns(UserWarning, match="not complete"), wflow.open(out) as ds:
        assert ds.sizes["time"] > 1
    with pytest.raises(wflow.RunFileError, match=r"earlier version.*--overwrite"):
        solve(out, if_exists="resume")
    solve(out, if_exists="overwrite").close()
    assert verify(out).passed


def test_a_run_of_schema_1_is_not_extended(tmp_path) -> None:
    out = Path(shutil.copy(FILES / "run_0.1.0.h5", tmp_path / "run.h5"))
    before = out.read_bytes()
    with pytest.raises(wflow.InputError):
        solve(out, t_final=0.2, if_exists="resume")
    assert out.read_bytes() == before


def test_a_file_that_lost_its_digests_does_not_pass_for_an_old_one(tmp_path) -> None:
    out = tmp_path / "run.h5"
    solve(out).close()
    with h5py.File(out, "r+") as file:
        del file.attrs["digests"]
    assert not verify(out).passed
    with pytest.raises(wflow.RunFileError, match="damaged"):
        wflow.rerun(out)
