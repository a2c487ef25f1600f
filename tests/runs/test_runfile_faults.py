"""Run files under kills, full disks, damage and foreign files."""

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from run_layouts import CONFIG, a_layout, attrs, fill, finished

from wflow import RunFileError
from wflow.runs import read
from wflow.runs.read import open_run
from wflow.runs.store import RunWriter


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
    elif damage == "other run":
        with open(path, "wb") as file:
            np.savez(file, __created__=np.array("yesterday"))
    else:
        end = b"" if damage == "cut" else bytes([raw[4000] ^ 255]) + raw[4001:]
        path.write_bytes(raw[:4000] + end)


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


def truncated(share: float) -> Callable[[Path], object]:
    return lambda path: os.truncate(finished(path), int(share * path.stat().st_size))


def changed(act: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with h5py.File(finished(path), "r+") as file:
            act(file)

    return make


def foreign(path: Path) -> None:
    xr.Dataset({"a": ("b", [1.0])}).to_netcdf(path, engine="h5netcdf")


REFUSED = {
    "missing": (lambda path: None, "does not exist"),
    "text": (lambda path: path.write_text("hello"), "not an HDF5 file"),
    "empty": (truncated(0.0), "empty"),
    "half": (truncated(0.5), "truncated|damaged"),
    "end": (truncated(0.99), "truncated|damaged"),
    "foreign": (foreign, "not written by wflow"),
    "schema": (changed(lambda file: file.attrs.update(schema="wflow-run/9")), "run/9"),
    "attribute": (changed(lambda file: file.attrs.__delitem__("created")), "created"),
    "variable": (changed(lambda file: file.__delitem__("energy")), "lacks energy"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_is_no_whole_run_is_refused_and_not_resumed(tmp_path, kind):
    path, (make, said) = tmp_path / "run.h5", REFUSED[kind]
    make(path)
    with pytest.raises(RunFileError, match=said):
        open_run(path)
    if kind in ("empty", "half", "end", "foreign"):
        os.rename(path, tmp_path / "run.h5.partial")
        with pytest.raises(RunFileError, match=r"run\.h5"):
            RunWriter.resume(path, CONFIG)


def test_run_larger_than_the_free_disk_is_refused_at_once(tmp_path):
    with pytest.raises(RunFileError, match=r"needs .* MB and the disk has"):
        RunWriter.create(tmp_path / "run.h5", a_layout(tokens=10**15), attrs())
    assert os.listdir(tmp_path) == []


def test_missing_or_read_only_directory_is_refused(tmp_path):
    for path, said in ((tmp_path / "no" / "run.h5", "does not exist"), (tmp_path, "is a dir")):
        with pytest.raises(RunFileError, match=said):
            RunWriter.create(path, a_layout(), attrs())
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
