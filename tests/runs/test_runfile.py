"""Run files: values are read back as they were written, also after interruptions."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from run_layouts import CONFIG, a_layout, attrs, fill, finished

from wflow import RunFileError
from wflow._core.errors import Interrupted
from wflow._core.signals import signals_as_errors
from wflow.runs import store
from wflow.runs.read import open_run, run_status
from wflow.runs.schema import BUDGET_RATES, BUDGET_RUNNING, SCHEMA, dataset_attrs
from wflow.runs.store import MemoryStore, RunWriter


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"save_heads": False}, {"budget": False, "initial_heads": False}, {"per_path_x0": True},
        {"snapshots": []}, {"snapshot_paths": []},
        {"paths": 1, "snapshot_paths": [0], "times": [0.0], "snapshots": [0.0]},
    ],
)  # fmt: skip
def test_file_and_memory_give_the_same_dataset(tmp_path, changes):
    layout, provenance = a_layout(**changes), attrs()
    writer = RunWriter.create(tmp_path / "run.h5", layout, provenance)
    memory = MemoryStore(layout)
    fill(writer, layout)
    fill(memory, layout)
    path = writer.finish()
    for opened in (open_run(path), writer.dataset()):
        with opened as ds:
            xr.testing.assert_identical(ds.load(), memory.dataset(provenance))
    assert os.listdir(tmp_path) == ["run.h5"]


def test_dataset_holds_the_names_words_and_provenance_of_the_contract(tmp_path):
    with open_run(finished(tmp_path / "run.h5")) as ds:
        assert {*BUDGET_RATES, *BUDGET_RUNNING, "tokens", "tokens_mean", "heads"} <= set(ds)
        assert ds["heads"].dims == ("snapshot_path", "snapshot", "head", "axis", "axis_out")
        for name in [*ds.data_vars, *ds.coords]:
            assert ds[name].attrs["long_name"] and ds[name].attrs["units"] == "1"
        assert "eq. 113" in ds["upper_gradient_sq"].attrs["source"]
        assert ds.attrs["schema"] == SCHEMA and ds.attrs["complete"] == 1
        assert json.loads(ds.attrs["config"]) == CONFIG and ds.attrs["seed"] == 3
        assert ds.attrs["command"] == "python study.py --heads 2"
        assert ds.attrs["created"].endswith("+00:00") and ds.attrs["wflow_version"]


@pytest.mark.parametrize("program", [["ncdump", "-h"], ["h5dump", "-H"]])
def test_file_opens_with_the_system_tools(tmp_path, program):
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed (netcdf-bin, hdf5-tools)")
    path = finished(tmp_path / "run.h5")
    shown = subprocess.run([*program, str(path)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    if program[0] == "ncdump":
        for text in ("energy(path, time)", "tokens(snapshot_path, snapshot, token, axis)"):
            assert f"double {text}" in shown.stdout
        assert 'energy:units = "1"' in shown.stdout and "token = 4" in shown.stdout
        assert "Schönlieb" in shown.stdout and "Itô correction" in shown.stdout


def one_index(size: int):
    bounds = st.integers(-size, size)
    return st.one_of(
        st.integers(-size, size - 1), st.builds(slice, st.none() | bounds, st.none() | bounds)
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_place_of_an_index_agrees_with_numpy(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    index = [data.draw(one_index(size)) for size in shape[: data.draw(st.integers(0, len(shape)))]]
    expected = np.arange(np.prod(shape)).reshape(shape)[tuple(index)]
    starts, result = store.spans(shape, tuple(index))
    assert result == expected.shape
    size = expected.size // len(starts) if starts else 0
    found = [start + k for start in starts for k in range(size)]
    assert found == expected.reshape(-1).tolist()


def test_write_and_read_back_parts(tmp_path):
    layout = a_layout()
    writer, memory = RunWriter.create(tmp_path / "run.h5", layout, attrs()), MemoryStore(layout)
    for place in (writer, memory):
        place.write("energy", (slice(1, 3), slice(2, 5)), np.arange(6.0).reshape(2, 3))
        place.write("tokens", (1, 0), np.ones((4, 3)))
        place.write("tokens_mean", (1,), 2.0)
    for name in ("energy", "tokens", "tokens_mean"):
        np.testing.assert_array_equal(writer.read(name), memory.read(name))
    np.testing.assert_array_equal(writer.read("energy", (1, slice(2, 4))), [0.0, 1.0])
    writer.discard()
    assert os.listdir(tmp_path) == []


def test_nothing_but_values_changes_in_the_file_while_a_run_goes(tmp_path):
    layout = a_layout()
    writer = RunWriter.create(tmp_path / "run.h5", layout, attrs())
    partial = tmp_path / "run.h5.partial"
    before = np.frombuffer(partial.read_bytes(), dtype=np.uint8)
    fill(writer, layout)
    writer.checkpoint({"step": np.array(7)})
    after = np.frombuffer(partial.read_bytes(), dtype=np.uint8)
    values = np.zeros(before.size, dtype=bool)
    with h5py.File(partial) as file:
        for name in layout.names:
            offset = file[name].id.get_offset()
            values[offset : offset + file[name].nbytes] = True
    assert before.size == after.size
    assert not np.any((before != after) & ~values)
    writer.abandon()


def test_unfinished_run_is_cut_to_what_was_recorded_and_says_so(tmp_path):
    path, layout = tmp_path / "run.h5", a_layout()
    writer = RunWriter.create(path, layout, attrs())
    fill(writer, layout, columns=4)
    writer.write("tokens", (slice(None), 1), np.nan)
    writer.write("tokens_mean", (1,), np.nan)
    writer.write("heads", (slice(None), 1), np.nan)
    assert run_status(path) == "partial"
    for name in (path, tmp_path / "run.h5.partial"):
        with pytest.warns(UserWarning, match=r"up to t = 1.5 \(4 of 6 times\).*--resume"):
            ds = open_run(name)
        with ds:
            assert ds.attrs["complete"] == 0
            assert ds.sizes["time"] == 4 and ds.sizes["snapshot"] == 1
            assert np.isfinite(ds["energy"].values).all()
            assert ds.encoding["source"] == str(tmp_path / "run.h5.partial")
    writer.abandon()


def test_a_signal_waits_until_the_file_is_open(tmp_path, monkeypatch):
    """In the middle of h5netcdf's opening it left an object whose finalizer fails aloud."""
    path = finished(tmp_path / "run.h5")
    opening, opened = xr.open_dataset, []

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGTERM)
        opened.append(opening(*arguments, **options))
        return opened[0]

    monkeypatch.setattr(xr, "open_dataset", interrupted)
    with pytest.raises(Interrupted, match="SIGTERM"), signals_as_errors("ended the test"):
        open_run(path)
    assert opened
    opened[0].close()


def test_an_unfinished_run_is_empty_without_a_record_and_nan_where_no_path_has_begun(tmp_path):
    writer = RunWriter.create(tmp_path / "run.h5", a_layout(budget=False), attrs())
    with pytest.warns(UserWarning, match="its start"), open_run(tmp_path / "run.h5") as ds:
        assert ds.sizes["time"] == 0
    writer.write("speed_sq", (slice(0, 2),), 1.0)
    with pytest.warns(UserWarning), open_run(tmp_path / "run.h5") as ds:
        assert ds.sizes["time"] == 6 and np.isnan(ds["speed_sq"][2]).all()
    writer.abandon()


def test_half_written_file_under_the_final_name_is_not_taken_for_whole(tmp_path):
    path = tmp_path / "run.h5"
    RunWriter.create(path, a_layout(), attrs()).abandon()
    os.rename(tmp_path / "run.h5.partial", path)
    with pytest.raises(RunFileError, match="unfinished"):
        run_status(path)
    with pytest.warns(UserWarning, match="not complete"), open_run(path) as ds:
        assert ds.attrs["complete"] == 0


def test_readers_here_and_in_a_process_with_hdf5_locks_disturb_no_writer_nor_the_end(tmp_path):
    path, layout = tmp_path / "run.h5", a_layout()
    writer = RunWriter.create(path, layout, attrs())
    fill(writer, layout, columns=2)
    code = "import sys, h5py\nf = h5py.File(sys.argv[1])\nprint('open', flush=True)\ninput()"
    command = [sys.executable, "-c", code, str(tmp_path / "run.h5.partial")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    reader = subprocess.Popen(command, text=True, **pipes)
    assert reader.stdout.readline() == "open\n"
    with pytest.warns(UserWarning):
        early = open_run(path)
    with early:
        fill(writer, layout)
        writer.finish()
        with open_run(path) as ds:
            assert ds.attrs["complete"] == 1 and ds.sizes["time"] == 6
        assert early["energy"].shape == (3, 2)
    reader.communicate("\n")
    assert run_status(path) == "complete"


@pytest.mark.parametrize("seed", [2**63, 2**64])
def test_large_configuration_fits(tmp_path, seed):
    path = tmp_path / "run.h5"
    provenance = dataset_attrs(CONFIG | {"values": np.zeros((200, 200))}, seed=seed)
    writer = RunWriter.create(path, a_layout(), provenance)
    writer.add_history("and a line more")
    writer.finish()
    with open_run(path) as ds, writer.dataset() as same:
        assert len(ds.attrs["config"]) > 100_000 and int(ds.attrs["seed"]) == seed
        assert same.attrs == ds.attrs
        assert np.asarray(same.attrs["seed"]).dtype == np.asarray(ds.attrs["seed"]).dtype


def test_digests_are_those_that_the_documentation_describes(tmp_path):
    """By hashlib and h5py alone, as docs/guide/run_files.md says."""
    layout = a_layout(snapshot_paths=[0, 1, 2])
    writer = RunWriter.create(tmp_path / "run.h5", layout, attrs(), groups=(0, 2))
    fill(writer, layout)
    with h5py.File(writer.finish()) as file:
        found = json.loads(file.attrs["digests"])
        assert file.attrs["groups"].tolist() == [0, 2]
        assert found.keys() == {"", *layout.names, *layout.coordinates()}
        for name in layout.names:
            values = file[name][...]
            if layout.dims(name)[1:2] in (("time",), ("snapshot",)):
                values = [np.swapaxes(group, 0, 1) for group in (values[:2], values[2:])]
            expected = hashlib.sha256(b"".join(part.tobytes() for part in values))
            assert found[name] == expected.hexdigest(), name
