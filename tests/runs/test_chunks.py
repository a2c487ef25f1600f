"""Run files in chunks of Dask."""

import sys

import numpy as np
import pytest

import wflow


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("chunks") / "run.h5"
    x0 = wflow.tokens.uniform(5, 3, seed=0)
    wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=1.0, dt=0.1, out=path).close()
    return path


@pytest.mark.parametrize("chunks", [4, -1, "auto", {}, {"time": np.int64(4)}])
def test_chunks_hold_the_same_numbers(path, chunks):
    pytest.importorskip("dask")
    with wflow.open(path) as whole, wflow.open(path, chunks=chunks) as parts:
        assert whole.energy.chunks is None and parts.energy.chunks is not None
        assert whole.identical(parts.compute())
        if chunks not in (-1, "auto", {}):
            assert parts.energy.chunks[1] == (4, 4, 3)


@pytest.mark.parametrize(
    "chunks", [0, -2, 10**30, 1.5, True, "x", [1], {"nope": 1}, {"time": 0}, {1: 2}]
)
def test_chunks_that_are_no_sizes_are_refused(path, chunks):
    with pytest.raises(wflow.InputError, match="chunks"):
        wflow.open(path, chunks=chunks)


def test_without_dask_chunks_name_its_extra(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with pytest.raises(wflow.InputError, match=r"wflow-transformers\[dask\]"):
        wflow.open(path, chunks=2)
