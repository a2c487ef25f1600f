"""`wflow.open_study`: folders of studies as trees; unfinished, damaged and foreign ones."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray
from run_layouts import a_layout, attrs, fill, finished

import wflow
from wflow import RunFileError
from wflow.runs.store import RunWriter

DOCUMENT = {
    "schema": "wflow-study/1", "study": "trial", "command": "wflow study trial",
    "created": "2026-01-01T00:00:00+00:00", "versions": {"wflow": "0.1.0"},
    "config": {"flags": {"heads": [2, 4]}},
    "runs": {"H00002": "H00002.h5", "H00004": "H00004.h5"},
    "findings": [{"prediction": "it holds", "verdict": "confirmed"}],
}  # fmt: skip


def summary(folder: Path, **changes) -> None:
    document = DOCUMENT | changes
    (folder / "summary.json").write_text(json.dumps(document))
    own = {key: document[key] for key in ("schema", "study", "command", "created")}
    table = xarray.Dataset({"mean": ("path", [1.0, 2.0])}, {"path": [7, 8]}, own)
    table.to_netcdf(folder / "summary.h5", engine="h5netcdf")


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "trial"
    folder.mkdir()
    finished(folder / "H00002.h5")
    finished(folder / "H00004.h5", paths=5, snapshot_paths=[4])
    summary(folder)
    return folder


def opened(folder: Path) -> xarray.DataTree:
    """Return a study that has something missing, and is opened with one warning."""
    with pytest.warns(UserWarning, match="is not complete") as told:
        tree = wflow.open_study(folder)
    assert len(told) == 1
    return tree


def open_files() -> set[Path]:
    """Return files that this process has open."""
    links = Path("/proc/self/fd")
    if not links.exists():
        pytest.skip("this system does not say which files are open")
    return {link.readlink() for link in links.iterdir() if link.is_symlink()}


def test_a_study_is_a_tree_of_its_summary_and_its_runs(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = wflow.open_study(folder)
    with tree:
        assert tree.name == "trial" and tree.attrs["study"] == "trial"
        assert tree.attrs["complete"] == 1
        assert json.loads(tree.attrs["findings"]) == DOCUMENT["findings"]
        assert list(tree.children) == ["summary", "H00002", "H00004"]
        assert tree["summary/mean"].values.tolist() == [1.0, 2.0]
        with wflow.open(folder / "H00004.h5") as run:
            xarray.testing.assert_identical(tree["H00004"].to_dataset(), run)


def test_runs_are_read_when_they_are_used_and_closed_with_the_tree(folder):
    with wflow.open_study(folder) as tree:
        data = tree["H00002"].to_dataset().variables["energy"]._data
        assert not isinstance(data, np.ndarray)
        tree["H00002/energy"].load()
        assert folder / "H00002.h5" in open_files()
    assert not [file for file in open_files() if file.parent == folder]


def test_trainings_are_nodes_by_the_names_of_their_folders(tmp_path):
    summary(tmp_path, runs={"vit_0": "metrics.h5"})
    (tmp_path / "vit_0").mkdir()
    history = xarray.Dataset({"loss": ("step", [2.0, 1.0])}, attrs={"config": "{}"})
    history.to_netcdf(tmp_path / "vit_0" / "metrics.h5", engine="h5netcdf")
    with wflow.open_study(tmp_path) as tree:
        assert tree["vit_0/loss"].values.tolist() == [2.0, 1.0]
        assert tree.attrs["complete"] == 1


def test_an_unfinished_study_is_opened_as_far_as_it_got(folder):
    for name in ("summary.h5", "summary.json"):
        (folder / name).unlink()
    layout = a_layout()
    writer = RunWriter.create(folder / "H00008.h5", layout, attrs())
    fill(writer, layout, columns=3)
    writer.abandon()
    with opened(folder) as tree:
        assert tree.attrs["complete"] == 0
        assert tree["H00008"].sizes["time"] == 3 and tree["H00008"].attrs["complete"] == 0


def test_a_damaged_and_a_missing_run_are_left_out_and_named(folder):
    raw = (folder / "H00002.h5").read_bytes()
    (folder / "H00002.h5").write_bytes(raw[: len(raw) // 3])
    (folder / "H00004.h5").unlink()
    with opened(folder) as tree:
        assert list(tree.children) == ["summary"] and tree.attrs["complete"] == 0
        assert "H00002.h5 (" in tree.attrs["left_out"]
        assert "H00004.h5 (the file is missing)" in tree.attrs["left_out"]


def test_a_summary_of_another_time_or_program_is_left_out(folder):
    summary(folder, created="2025-01-01T00:00:00+00:00")
    (folder / "summary.json").write_text(json.dumps(DOCUMENT))
    with opened(folder) as tree:
        assert "summary" not in tree.children and "another time" in tree.attrs["left_out"]
    xarray.Dataset({"a": 1.0}).to_netcdf(folder / "summary.h5", engine="h5netcdf")
    with opened(folder) as tree:
        assert "no summary of wflow" in tree.attrs["left_out"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "does not exist; give the --out"), ("file", "wflow.open opens a run"),
        ("empty", "is empty: give the --out"), ("foreign", "no folder of a study"),
        ("damaged", "nothing in .* can be read"),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_study_is_refused_and_the_message_says_what_to_do(
    tmp_path, kind, words
):
    place = tmp_path / "out"
    if kind == "file":
        finished(place)
    elif kind != "missing":
        place.mkdir()
    if kind == "foreign":
        (place / "notes.txt").write_text("mine")
    if kind == "damaged":
        (place / "run.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(RunFileError, match=words):
        wflow.open_study(place)
