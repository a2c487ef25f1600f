"""CF attributes of runs: source, references and a history to which a resume and a rerun add."""

import re

import h5py
import numpy as np
import xarray
from run_layouts import a_layout, attrs, fill, finished

import wflow
from wflow.analysis.verify import verify
from wflow.runs.read import open_run
from wflow.runs.schema import HISTORY_BYTES, history_line, history_text
from wflow.runs.store import RunWriter

LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00: wflow \S+: "
SMALL = {"heads": 2, "t_final": 0.02, "dt": 1e-2, "compute": wflow.Compute(threads=1)}


def solved(**options) -> xarray.Dataset:
    x0 = wflow.tokens.cross_polytope(n=6, d=3, seed=0)
    return wflow.solve(x0, wflow.heads.Frozen(), **(SMALL | options))


def test_a_run_names_its_conventions_source_references_and_history():
    run = solved(direction="ascent", scheme="dopri5")
    assert run.attrs["Conventions"] == "CF-1.10"
    assert run.attrs["source"].startswith(f"wflow {wflow.__version__}")
    cited = run.attrs["references"].split("; ")
    assert [text.split(",")[0] for text in cited] == ["Massucco", "Geshkovski", "Hairer"]
    assert re.fullmatch(LINE + ".+", run.attrs["history"])


def test_a_rerun_adds_a_line_with_what_was_changed(tmp_path):
    first = tmp_path / "first.h5"
    solved(out=first).close()
    again = wflow.rerun(first, dt=2e-2)
    lines = again.attrs["history"].splitlines()
    with open_run(first) as ds:
        assert lines[0] == ds.attrs["history"]
    assert len(lines) == 2 and "first.h5 run again with other dt by " in lines[1]


def test_a_resume_adds_a_line_and_the_finished_file_has_its_digests(tmp_path):
    path, layout = tmp_path / "run.h5", a_layout()
    writer = RunWriter.create(path, layout, attrs())
    for _ in range(3):  # three resumes, the first two of which end early as well
        fill(writer, layout, columns=3)
        writer.checkpoint({"step": np.array(3)})
        writer.abandon()
        writer, _ = RunWriter.resume(path, attrs()["config"])
    fill(writer, layout)
    writer.finish()
    with open_run(path) as ds:
        lines = ds.attrs["history"].splitlines()
    assert len(lines) == 4 and "python study.py --heads 2" in lines[0]
    assert all("resumed by " in line for line in lines[1:])
    assert all(check.passed for check in verify(path).checks if "as written" in check.name)


def test_long_histories_keep_the_first_line_and_the_last_ones():
    lines = [history_line(f"number {k} " + "x" * 900) for k in range(20)]
    assert all(len(line.encode()) <= 480 for line in lines)
    kept = history_text(lines).split("\n")
    assert len("\n".join(kept).encode()) < HISTORY_BYTES
    assert kept[0] == lines[0] and kept[1] == "..." and kept[-1] == lines[-1]


def test_netcdf_tools_read_the_history_as_a_text(tmp_path):
    path = finished(tmp_path / "run.h5")
    with xarray.open_dataset(path, engine="h5netcdf", decode_times=False) as ds:
        assert isinstance(ds.attrs["history"], str) and "\0" not in ds.attrs["history"]
    with h5py.File(path) as file:
        assert file.attrs["history"].decode().endswith("python study.py --heads 2")
