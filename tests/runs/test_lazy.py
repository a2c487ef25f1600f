"""Datasets of run files equal those that xarray makes by h5netcdf, but for what wflow adds."""

import gc
import os
import pickle
import shutil
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from run_layouts import finished

from wflow import SaveAt, heads, meanfield, sampling, solve, tokens
from wflow.runs import lazy
from wflow.runs.read import open_run
from wflow.runs.store import RunWriter

OLD = Path(__file__).parent / "files" / "run_0.1.0.h5"


@pytest.fixture
def path(tmp_path):
    return finished(tmp_path / "run.h5")


def by_h5netcdf(path) -> xr.Dataset:
    with xr.open_dataset(path, engine="h5netcdf", decode_times=False) as dataset:
        for name in ("digests", "groups"):
            dataset.attrs.pop(name, None)
        return dataset.load()


def assert_same(one: xr.Dataset, other: xr.Dataset) -> None:
    """Variables and sizes are in the same order, of the same types, with the same attributes."""
    assert list(one.variables) == list(other.variables)
    assert list(one.sizes.items()) == list(other.sizes.items())
    for name, variable in other.variables.items():
        assert one[name].dtype == variable.dtype
        assert list(one[name].attrs.items()) == list(variable.attrs.items())


@pytest.mark.parametrize("old", [False, True])
def test_dataset_is_that_of_h5netcdf(path, old):
    path = OLD if old else path
    expected = by_h5netcdf(path)
    with open_run(path) as found:
        assert {**expected.attrs, "config": found.attrs["config"]} == found.attrs
        assert found.encoding["source"] == expected.encoding["source"]
        assert_same(found, expected)
        found.attrs = expected.attrs
        xr.testing.assert_identical(found.load(), expected)


def particles(out, **save):
    law = heads.OrnsteinUhlenbeck(mean=np.eye(3))
    how = {"heads": 2, "paths": 3, "t_final": 0.3, "dt": 0.1, "save": SaveAt(**save)}
    return solve(tokens.uniform(n=5, d=3, seed=0), law, out=out, **how)


def densities(out):
    how = {"heads": np.eye(2)[None], "mesh": meanfield.Circle(16), "t_final": 0.1}
    save = SaveAt(snapshots=(0.0, 0.1))
    return meanfield.solve(lambda x: 1 + 0 * x[:, 0], heads.Frozen(), out=out, save=save, **how)


def samples(out):
    return sampling.ula(np.zeros((4, 2)), lambda x: x, h=0.1, beta=1.0, steps=3, out=out)


@pytest.mark.parametrize(
    "run_to",
    [
        particles, partial(particles, snapshots=(0.0, 0.2), heads=True, paths=(1, 2)),
        partial(particles, budget=False), densities, samples,
    ],
)  # fmt: skip
def test_a_run_that_was_just_written_is_what_its_file_holds(tmp_path, monkeypatch, run_to):
    out = tmp_path / "run.h5"
    with monkeypatch.context() as patched:
        patched.delattr(lazy, "of_file")  # nothing reads the file
        run = run_to(out)
    with run:
        again = pickle.loads(pickle.dumps(run))
        with open_run(out) as read:
            assert_same(run, read)
            assert run.attrs == read.attrs and run.encoding == read.encoding
            assert all(type(run.attrs[name]) is type(read.attrs[name]) for name in read.attrs)
            assert all(run[name].encoding == read[name].encoding for name in read.variables)
            xr.testing.assert_identical(run.load(), read.load())
    with again:
        xr.testing.assert_identical(again.load(), run)


def test_a_run_that_another_process_replaced_at_once_is_read_from_its_file(tmp_path, monkeypatch):
    other, finish = finished(tmp_path / "other.h5"), RunWriter.finish
    monkeypatch.setattr(RunWriter, "finish", lambda writer: os.replace(other, finish(writer)))
    with particles(tmp_path / "run.h5") as run, open_run(tmp_path / "run.h5") as read:
        xr.testing.assert_identical(run.load(), read.load())


@pytest.mark.parametrize(
    "place",
    [(1, -1, slice(None, None, -2), [2, 0, 1]), ([1, 1, 0],), (slice(0, 0),), (slice(None), [], 3),
     (0, 0, 0, 0)],
)  # fmt: skip
def test_parts_of_a_variable_are_those_of_the_whole(path, place):
    expected = by_h5netcdf(path)["tokens"]
    with open_run(path) as run:
        part = run["tokens"][place]
        assert not part.variable._in_memory
        xr.testing.assert_identical(part.load(), expected[place])


def test_variables_that_another_program_added_are_shown(path):
    with h5py.File(path, "r+") as file:
        file.create_dataset("mine", data=np.arange(3)).make_scale("mine")
        file.create_dataset("scalar", data=2.5)
        file.create_dataset("words", data="hello")
        file.create_group("more").create_dataset("inner", data=[1.0])
        file["energy"].attrs["valid_min"] = -1.0
        file.attrs["fixed"], file.attrs["weight"] = np.bytes_("bytes"), np.array([0.5])
    with open_run(path) as run:
        np.testing.assert_array_equal(run["mine"], np.arange(3))
        assert run["scalar"] == 2.5 and "inner" not in run
        assert run["energy"].attrs["valid_min"] == -1.0
        assert (run.attrs["fixed"], run.attrs["weight"]) == ("bytes", 0.5)
        assert run["energy"].dims == ("path", "time")


def test_a_closed_dataset_leaves_the_file_to_others(path):
    run = open_run(path)
    run["energy"].load()
    run.close()
    with h5py.File(path, "r+"):  # HDF5 refuses a file that is open for reading
        pass
    with open_run(path):
        pass
    gc.collect()


def test_a_dataset_that_is_open_reads_the_file_that_it_opened(path, tmp_path):
    expected = by_h5netcdf(path)
    with open_run(path) as run:
        shutil.copy(OLD, tmp_path / "other.h5")
        (tmp_path / "other.h5").replace(path)
        xr.testing.assert_identical(run["tokens"].load(), expected["tokens"])
