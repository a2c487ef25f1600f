"""Distances along the snapshots of a run: `wflow.transport.over_time`."""

import threading

import numpy as np
import pytest

import wflow
from wflow import tokens, transport
from wflow._core.threads import numba_threads
from wflow.heads import OrnsteinUhlenbeck
from wflow.runs import snapshots as reader
from wflow.transport import distances


def cloud(n: int, d: int, seed: int) -> np.ndarray:
    return tokens.uniform(n, d, seed=seed)


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("run") / "run.h5"
    wflow.solve(
        np.stack([cloud(12, 3, seed) for seed in range(3)]), OrnsteinUhlenbeck(np.eye(3)), heads=2,
        t_final=0.5, dt=0.05, paths=3,
        save=wflow.SaveAt(snapshots=(0, 0.1, 0.3, 0.5), paths=(0, 2)), out=file,
        compute=wflow.Compute(threads=1),
    ).close()  # fmt: skip
    return file


def test_over_time_is_the_loop_over_the_snapshots(run_file):
    with wflow.open(run_file) as run:
        held = run["tokens"].values
        final = transport.over_time(run, p=1)
    assert final.dims == ("snapshot_path", "snapshot")
    assert final["snapshot_path"].values.tolist() == [0, 2]
    assert final["snapshot"].values == pytest.approx([0, 0.1, 0.3, 0.5])
    want = [[transport.w1(at, path[-1]) for at in path] for path in held]
    assert np.array_equal(final.values, want)
    assert (final.values[:, -1] == 0).all() and (final.values[:, :-1] > 0).all()
    first = transport.over_time(run_file, to="initial", cost="chordal", paths=[2])
    want = [transport.w2(at, held[1, 0], cost="chordal") for at in held[1]]
    assert np.array_equal(first.values, [want])
    steps = transport.over_time(run_file, to="previous")
    assert steps["snapshot"].values == pytest.approx([0.1, 0.3, 0.5])
    assert steps["elapsed"].values == pytest.approx([0.1, 0.2, 0.2])
    want = [[transport.w2(a, b) for a, b in zip(p[1:], p[:-1], strict=True)] for p in held]
    assert np.array_equal(steps.values, want)


@pytest.fixture(scope="module")
def long_series():
    """Return 40 snapshots of 520 tokens that move by a fraction of their spacing."""
    return wflow.solve(
        cloud(520, 3, 0), OrnsteinUhlenbeck(np.eye(3)), heads=2, t_final=2.0, dt=0.05,
        save=wflow.SaveAt(snapshots=np.linspace(0, 2, 40)), compute=wflow.Compute(threads=1),
    )  # fmt: skip


@pytest.mark.parametrize("to", ["final", "previous"])
def test_threads_give_the_same_bits(long_series, to, monkeypatch):
    threads = set()
    plain = distances.match

    def watched(*given):
        threads.add(threading.get_ident())
        return plain(*given)

    monkeypatch.setattr(distances, "match", watched)
    with numba_threads(1):
        alone = transport.over_time(long_series, to=to)
    assert threads == {threading.get_ident()}
    monkeypatch.setattr(distances, "current", lambda: 3)
    found = transport.over_time(long_series, to=to)
    assert len(threads) > 1
    assert np.array_equal(alone, found)
    clouds = long_series["tokens"].values[0]
    others = [clouds[-1]] * 40 if to == "final" else clouds[:-1]
    want = [transport.w2(x, y) for x, y in zip(clouds[40 - len(others) :], others, strict=True)]
    assert found.values[0] == pytest.approx(want, rel=1e-14)


def test_an_error_in_one_distance_ends_the_others(long_series, monkeypatch):
    calls = []

    def failing(*given):
        calls.append(1)
        raise ZeroDivisionError("as if by Ctrl-C")

    monkeypatch.setattr(distances, "match", failing)
    monkeypatch.setattr(distances, "current", lambda: 2)
    with pytest.raises(ZeroDivisionError):
        transport.over_time(long_series)
    assert len(calls) < 10


def test_over_time_to_a_cloud_and_to_another_run(run_file, tmp_path):
    target = cloud(5, 3, 9)
    with wflow.open(run_file) as run:
        held = run["tokens"].values
    found = transport.over_time(run_file, to=target)
    assert np.array_equal(found, [[transport.w2(at, target) for at in path] for path in held])
    other = tmp_path / "other.h5"
    wflow.rerun(run_file, out=other, flow="unnormalised", compute=wflow.Compute(threads=1)).close()
    with wflow.open(other) as run:
        theirs = run["tokens"].values
        found = transport.over_time(run_file, to=run)
    pairs = zip(held.reshape(-1, 12, 3), theirs.reshape(-1, 12, 3), strict=True)
    assert found.values.ravel().tolist() == [transport.w2(x, y) for x, y in pairs]
    assert np.array_equal(transport.over_time(run_file, to=other), found)
    assert "another run" in found.attrs["long_name"]


def test_over_time_holds_no_more_than_its_block_of_snapshots(run_file, monkeypatch):
    from wflow.runs import lazy

    want = transport.over_time(run_file)
    read = []
    plain = lazy.Values.read

    def watched(self, key):
        out = plain(self, key)
        if self.name == "tokens":
            read.append(np.size(out))
        return out

    monkeypatch.setattr(lazy.Values, "read", watched)
    for snapshots in (1, 3):
        read.clear()
        monkeypatch.setattr(reader, "BLOCK_BYTES", snapshots * 8 * 12 * 3)
        assert np.array_equal(transport.over_time(run_file), want)
        assert max(read) == snapshots * 12 * 3
