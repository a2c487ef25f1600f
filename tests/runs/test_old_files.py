"""Files of version 0.1.0, which have no digests, stay usable."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import wflow
from wflow.analysis.verify import verify
from wflow.heads import OrnsteinUhlenbeck

FILES = Path(__file__).parent / "files"
OPTIONS = {
    "heads": 2,
    "t_final": 0.1,
    "dt": 0.01,
    "paths": 2,
    "seed": 1,
    "save": wflow.SaveAt(heads=True),
}


def same(one, other) -> None:
    for name in one.variables:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12, atol=1e-14, err_msg=name)


def test_a_run_of_version_0_1_0_opens_verifies_and_runs_again() -> None:
    path = FILES / "run_0.1.0.h5"
    report = verify(path)
    assert report.passed
    assert "no digests: the file was written by wflow 0.1.0" in str(report)
    with wflow.open(path) as ds, wflow.rerun(path) as again:
        same(ds, again)


def test_an_unfinished_run_of_version_0_1_0_is_resumed(tmp_path) -> None:
    for kind in ("partial", "checkpoint"):
        shutil.copy(FILES / f"stopped_0.1.0.h5.{kind}", tmp_path / f"run.h5.{kind}")
    x0 = wflow.tokens.cross_polytope(n=6, d=3, spread=0.05, seed=42)
    law, out = OrnsteinUhlenbeck(np.eye(3)), tmp_path / "run.h5"
    options = {
        **OPTIONS,
        "compute": wflow.Compute(method="exact"),
        "out": out,
        "if_exists": "resume",
    }
    with wflow.solve(x0, law, **options) as ds, wflow.open(FILES / "run_0.1.0.h5") as whole:
        same(whole, ds)
    assert "no digests" in str(verify(out))


def test_a_file_that_lost_its_digests_does_not_pass_for_an_old_one(tmp_path) -> None:
    from wflow.runs import digests

    x0 = wflow.tokens.cross_polytope(n=6, d=3, spread=0.05, seed=42)
    out = tmp_path / "run.h5"
    wflow.solve(x0, OrnsteinUhlenbeck(np.eye(3)), **OPTIONS, out=out).close()
    stored = digests.find(out)
    assert stored is not None
    with open(out, "r+b") as file:
        file.truncate(stored.end)
    (check,) = (check for check in verify(out).checks if check.passed is False)
    assert "no digests" in check.note
    with pytest.raises(wflow.InputError):
        verify(out, tolerance="much")
