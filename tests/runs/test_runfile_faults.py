"""Run files under kills, full disks, damage and foreign files."""

import itertools
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from run_layouts import CONFIG, a_layout, attrs, fill, finished, in_child

from wflow import RunFileError
from wflow.analysis.verify import verify
from wflow.runs import read, store
from wflow.runs.read import open_run, run_status
from wflow.runs.schema import history_line, history_text
from wflow.runs.store import MemoryStore, RunWriter


def test_resume_restores_the_last_state_and_continues_the_file(tmp_path):
    path, layout = tmp_path / "run.h5", a_layout()
    writer = RunWriter.create(path, layout, attrs())
    writer.write("energy", (slice(None), slice(0, 2)), 1.0)
    writer.checkpoint({"step": np.array(1), "x": np.zeros((2, 3))})
    writer.checkpoint({"step": np.array(2), "x": np.full((2, 3), np.pi)})
    writer.abandon()
    writer, state = RunWriter.resume(path, json.dumps(CONFIG))
    assert set(state) == {"step", "x"} and state["step"] == 2
    np.testing.assert_array_equal(state["x"], np.full((2, 3), np.pi))
    assert (writer.read("energy", (slice(None), slice(0, 2))) == 1).all()
    fill(writer, layout)
    writer.finish()
    memory = MemoryStore(layout)
    fill(memory, layout)
    with open_run(path) as ds:
        np.testing.assert_array_equal(ds["energy"].values, memory.read("energy"))
    assert os.listdir(tmp_path) == ["run.h5"]


@pytest.mark.parametrize(
    ("held", "asked", "named"),
    [
        ({"law": {"a": 1, "b": 1}}, {"law": {"a": 1, "b": 2}}, ["law.b"]),
        ({"x0": {"sha256": "a"}}, {"x0": {"sha256": "b"}}, ["x0 (the initial tokens)"]),
        ({"heads": {"sha256": "a"}}, {"heads": {"sha256": "b"}}, ["heads (the initial matrices)"]),
        ({"heads": 2}, {"heads": {"sha256": "b"}}, ["heads"]),
        ({"dt": 0.1, "old": 1}, {"dt": 0.1, "new": None}, ["old", "new"]),
        ({"dt": 0.1, "seed": 1}, {"seed": 1, "dt": 0.1}, []),
    ],
)
def test_settings_that_differ_are_named_as_people_know_them(held, asked, named):
    assert read.differences(held, asked) == named


def test_resume_without_a_partial_file_or_after_the_end_says_so(tmp_path):
    with pytest.raises(RunFileError, match="start without --resume"):
        RunWriter.resume(tmp_path / "run.h5", CONFIG)
    finished(tmp_path / "run.h5")
    with pytest.raises(RunFileError, match="complete"):
        RunWriter.resume(tmp_path / "run.h5", CONFIG)


def spoil(path: Path, damage: str) -> None:
    raw = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "flipped":
        path.write_bytes(raw[:4000] + bytes([raw[4000] ^ 255]) + raw[4001:])
    else:
        with open(path, "wb") as file:
            np.savez(file, __created__=np.array("yesterday"))


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "other run"])
def test_a_bad_checkpoint_falls_back_to_the_one_before_it(tmp_path, damage):
    path, last = tmp_path / "run.h5", tmp_path / "run.h5.checkpoint"
    writer = RunWriter.create(path, a_layout(), attrs())
    for step in range(3):
        writer.write("energy", (slice(None), step), float(step))
        writer.checkpoint({"step": np.array(step), "x": np.arange(1000.0)})
    writer.abandon()
    spoil(last, damage)
    with pytest.warns(UserWarning, match=r"run\.h5\.checkpoint.*resumed from"):
        writer, state = RunWriter.resume(path, CONFIG)
    assert state["step"] == 1
    fill(writer, a_layout())
    writer.abandon()
    spoil(tmp_path / "run.h5.checkpoint.old", damage)
    with pytest.raises(RunFileError, match="--overwrite"):
        RunWriter.resume(path, CONFIG)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_truncated_file_is_refused(tmp_path, share):
    path = finished(tmp_path / "run.h5")
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(RunFileError, match=r"empty|truncated|damaged"):
        open_run(path)
    os.rename(path, tmp_path / "run.h5.partial")
    with pytest.raises(RunFileError, match=r"empty|truncated|damaged"):
        RunWriter.resume(path, CONFIG)


def test_foreign_and_missing_files_are_refused(tmp_path):
    path = tmp_path / "run.h5"
    with pytest.raises(RunFileError, match="does not exist"):
        open_run(path)
    path.write_text("hello, this is no run file")
    with pytest.raises(RunFileError, match="not an HDF5 file"):
        open_run(path)


def test_files_of_other_programs_are_refused(tmp_path):
    other = tmp_path / "other.h5"
    xr.Dataset({"a": ("b", [1.0])}).to_netcdf(other, engine="h5netcdf")
    for refuse in (open_run, run_status):
        with pytest.raises(RunFileError, match="not written by wflow"):
            refuse(other)
    os.rename(other, tmp_path / "other.h5.partial")
    with pytest.raises(RunFileError, match="not written by wflow"):
        RunWriter.resume(tmp_path / "other.h5", CONFIG)


def change(path: Path, act) -> Path:
    with h5py.File(path, "r+") as file:
        act(file)
    return path


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda f: f.attrs.__setitem__("schema", "wflow-run/99"), "wflow-run/99"),
        (lambda f: f.attrs.__delitem__("created"), "created"),
        (lambda f: f.__delitem__("energy"), "lacks energy"),
    ],
)
def test_file_that_departs_from_the_schema_is_refused(tmp_path, act, message):
    with pytest.raises(RunFileError, match=message):
        open_run(change(finished(tmp_path / "run.h5"), act))


@pytest.mark.parametrize("limit", [100, 20_000])
def test_file_that_the_system_does_not_let_grow_leaves_nothing_behind(tmp_path, limit):
    pytest.importorskip("resource")
    done = in_child(
        """
        import resource, sys
        import numpy as np
        import run_layouts as t
        from wflow import RunFileError
        from wflow.runs.store import RunWriter
        layout = t.a_layout(times=np.arange(20000.0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
        try:
            RunWriter.create(sys.argv[1], layout, t.attrs())
        except RunFileError as error:
            print(error)
        """,
        str(tmp_path / "run.h5"),
        str(limit),
    )
    assert done.returncode == 0, done.stderr
    assert "cannot create" in done.stdout
    assert os.listdir(tmp_path) == []


def test_run_larger_than_the_free_disk_is_refused_at_once(tmp_path):
    with pytest.raises(RunFileError, match=r"needs .* MB and the disk has"):
        RunWriter.create(tmp_path / "run.h5", a_layout(tokens=10**15), attrs())
    assert os.listdir(tmp_path) == []


def test_missing_or_read_only_directory_is_refused(tmp_path):
    with pytest.raises(RunFileError, match="does not exist; make it"):
        RunWriter.create(tmp_path / "no" / "run.h5", a_layout(), attrs())
    with pytest.raises(RunFileError, match="is a directory"):
        RunWriter.create(tmp_path, a_layout(), attrs())
    if os.geteuid() == 0:
        pytest.skip("the administrator may write to read-only directories")
    tmp_path.chmod(0o500)
    with pytest.raises(RunFileError, match="that you may write to"):
        RunWriter.create(tmp_path / "run.h5", a_layout(), attrs())


def test_a_file_that_another_program_made_meanwhile_is_not_replaced(tmp_path):
    path, layout = tmp_path / "run.h5", a_layout()
    writer = RunWriter.create(path, layout, attrs())
    fill(writer, layout)
    path.write_text("mine")
    with pytest.raises(RunFileError, match="another program"):
        writer.finish()
    assert path.read_text() == "mine" and (tmp_path / "run.h5.partial").exists()
    writer.abandon()


def test_a_power_failure_within_the_last_writes_leaves_a_run_that_resumes(tmp_path):
    # Nothing orders the last writes on the disk: any of their pages may be there without the rest.
    path, unfinished = tmp_path / "run.h5", tmp_path / "run.h5.partial"
    writer = RunWriter.create(path, a_layout(), attrs())
    writer.checkpoint({"step": np.array(2)})
    writer.abandon()
    before, state = unfinished.read_bytes(), (tmp_path / "run.h5.checkpoint").read_bytes()
    history = history_text([attrs()["history"], history_line("resumed")])
    store.set_late(unfinished, 1, history, {"": "0" * 64, "energy": "1" * 64})
    after = unfinished.read_bytes()
    pages = [slice(k, k + 4096) for k in range(0, len(before), 4096)]
    pages = [page for page in pages if before[page] != after[page]]
    assert pages and len(before) == len(after)
    for there in itertools.product((False, True), repeat=len(pages)):
        torn = bytearray(before)
        for page in itertools.compress(pages, there):
            torn[page] = after[page]
        unfinished.write_bytes(torn)
        assert run_status(path) == "partial"
        writer, _ = RunWriter.resume(path, CONFIG)
        fill(writer, a_layout())
        writer.finish()
        assert verify(path).checks[0].passed and not unfinished.exists()
        with open_run(path) as ds:
            assert "resumed by" in ds.attrs["history"] and ds.attrs["complete"] == 1
        path.unlink()
        (tmp_path / "run.h5.checkpoint").write_bytes(state)
