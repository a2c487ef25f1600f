"""Runs that are killed, interrupted or refused, in separate processes."""

import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from run_layouts import same_bits

import wflow
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck


def run(out, mode="error", batch=3):
    """Return the run of these tests."""
    wflow.solve(
        wflow.tokens.cross_polytope(40, 3, seed=1), OrnsteinUhlenbeck(np.eye(3)), heads=4,
        t_final=8.0, dt=0.002, paths=3, seed=5, out=out, if_exists=mode,
        save=wflow.SaveAt(snapshots=[0, 3, 8], heads=True),
        compute=wflow.Compute(batch=int(batch), checkpoint_every=0.05),
    ).close()  # fmt: skip
    return 0


SCRIPT = f"""
import sys
import numpy as np
import wflow
from wflow.cli import guarded
from wflow.heads import OrnsteinUhlenbeck

{inspect.getsource(run)}
sys.exit(guarded(lambda: run(*sys.argv[1:])))
"""


def start(out: Path, mode: str = "error", batch: int = 3) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out), mode, str(batch)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_checkpoint(out: Path, after: float = 0.0) -> None:
    checkpoint = Path(f"{out}.checkpoint")
    limit = time.monotonic() + 120
    while not checkpoint.exists() or checkpoint.stat().st_mtime <= after:
        assert time.monotonic() < limit, "no checkpoint was written"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the same run, not disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run.h5"
    run(out)
    with wflow.open(out) as ds:
        return ds.load()


def check_same(path: Path, whole) -> None:
    with wflow.open(path) as ds:
        same_bits(ds, whole)
        assert ds.attrs["complete"] == 1


def test_a_run_killed_twice_resumes_to_the_same_bits(tmp_path, whole):
    out = tmp_path / "run.h5"
    for mode in ("error", "resume"):
        began = time.time()
        process = start(out, mode, batch=2)
        wait_for_checkpoint(out, began)
        time.sleep(0.15)
        process.kill()
        process.wait()
        assert not out.exists()
        with pytest.warns(UserWarning, match="not complete"), wflow.open(out) as ds:
            assert ds.attrs["complete"] == 0
    run(out, "resume", 2)
    check_same(out, whole)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5"]


def test_a_signal_ends_the_step_says_how_to_go_on_and_nothing_is_lost(tmp_path, whole):
    out = tmp_path / "run.h5"
    process = start(out)
    wait_for_checkpoint(out)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "--resume" in errors and "Traceback" not in errors
    assert not out.exists() and Path(f"{out}.partial").exists()
    run(out, "resume")
    check_same(out, whole)


def test_an_existing_output_is_refused_and_left_alone(tmp_path):
    out = tmp_path / "run.h5"
    options = {"heads": 1, "t_final": 0.1, "dt": 0.01, "out": out}
    law = OrnsteinUhlenbeck(np.eye(3))
    wflow.solve(np.eye(3), law, **options).close()
    before = out.read_bytes()
    with pytest.raises(wflow.InputError, match="--overwrite"):
        wflow.solve(np.eye(3), law, **options)
    with pytest.raises(wflow.InputError, match="seed"):
        wflow.solve(np.eye(3), law, **options, if_exists="resume", seed=3)
    assert out.read_bytes() == before
    wflow.solve(np.eye(3), law, **options, if_exists="resume").close()
    assert out.read_bytes() == before
    wflow.solve(np.eye(3), law, **options, if_exists="overwrite", seed=3).close()
    assert out.read_bytes() != before


def test_bad_arguments_leave_nothing_behind(tmp_path):
    with pytest.raises(wflow.InputError):
        wflow.solve(np.zeros((2, 3)), OrnsteinUhlenbeck(np.eye(3)), heads=1, t_final=1.0, dt=0.1,
                    out=tmp_path / "run.h5")  # fmt: skip
    assert not any(tmp_path.iterdir())


def test_a_later_path_that_blows_up_leaves_the_earlier_ones_readable(tmp_path):
    out = tmp_path / "run.h5"
    x0 = [[[1.0, 0.0], [-1.0, 0.01]], [[1.0, 0.0], [0.9, 0.43]]]
    options = {"heads": [10 * np.eye(2)], "t_final": 1.0, "dt": 0.1, "flow": "unnormalised"}
    with pytest.raises(wflow.BlowUpError) as caught:
        wflow.solve(
            x0, Frozen(), paths=2, compute=wflow.Compute(batch=1, stop_at_blow_up=True), out=out,
            **options,
        )  # fmt: skip
    assert caught.value.path == 1 and caught.value.time == 0
    with pytest.warns(UserWarning, match="not complete"), wflow.open(out) as ds:
        assert np.isfinite(ds.energy[0]).all()


@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("scheme", ["euler", "rk4"])
def test_a_path_that_blows_up_is_nan_from_there_on_and_ends_no_other(tmp_path, scheme, batch):
    x0 = np.array([[[1.0, 0.0], [-1.0, 0.001 * path]] for path in range(1, 7)])
    x0[2] = [[1.0, 0.0], [0.9, 0.43]]
    options = {"heads": [10 * np.eye(2)], "t_final": 0.4, "dt": 0.1, "flow": "unnormalised",
               "scheme": scheme, "compute": wflow.Compute(batch=batch)}  # fmt: skip
    lost = np.arange(6) == 2
    alone = wflow.solve(x0[~lost], Frozen(), paths=5, **options)
    with pytest.warns(RuntimeWarning, match="path 2"):
        run = wflow.solve(x0, Frozen(), paths=6, out=tmp_path / "run.h5", **options)
    for name in ("energy", "edi_residual"):
        np.testing.assert_array_equal(run[name][~lost], alone[name])
    assert np.isnan(run["energy"][2]).all() and np.isnan(run["tokens_mean"][-1]).all()
    assert wflow.verify(tmp_path / "run.h5").passed


def test_paths_that_blow_up_one_after_the_other_resume_and_extend_to_the_same_bits(tmp_path):
    law = OrnsteinUhlenbeck(np.eye(3), rate=22.0, sigma2=1.0)
    options = {"heads": 1, "dt": 0.1, "paths": 6, "seed": 2}
    with pytest.warns(RuntimeWarning, match="path"):
        whole = wflow.solve(np.eye(3), law, t_final=2.2, **options)
    counts = np.isfinite(whole["energy"]).sum("time").values
    assert 1 < counts.min() < counts.max() and len(set(counts.tolist())) > 2
    out = tmp_path / "run.h5"
    with pytest.warns(RuntimeWarning):
        wflow.solve(np.eye(3), law, t_final=1.9, out=out, **options).close()
        longer = wflow.solve(np.eye(3), law, t_final=2.2, out=out, if_exists="resume", **options)
    np.testing.assert_array_equal(longer["energy"], whole["energy"])


def test_a_path_of_chosen_steps_that_blows_up_changes_no_other_in_any_batch():
    x0 = np.random.default_rng(0).normal(size=(3, 6, 3))
    x0[[0, 2], :, 0] = 0.0  # orthogonal to the large entry
    options = {"heads": np.diag([1e7, 1.0, 2.0])[None], "t_final": 2.0, "dt": 0.5}
    found = []
    for batch in (1, 2, 3):
        with pytest.warns(RuntimeWarning, match="path 1"):
            run = wflow.solve(x0, Frozen(), paths=3, scheme="dopri5",
                              compute=wflow.Compute(batch=batch), **options)  # fmt: skip
        assert np.isnan(run["energy"][1]).all()
        found.append(run)
    same_bits(found[1], found[0])
    same_bits(found[2], found[0])


def test_a_signal_in_the_last_step_finishes_the_file_and_is_not_swallowed(tmp_path):
    def drift(D, t):
        if t > 0.95:
            os.kill(os.getpid(), signal.SIGTERM)
        return -D

    out = tmp_path / "run.h5"
    with pytest.raises(wflow.Interrupted, match="whole"):
        wflow.solve(np.eye(3), HeadLaw(drift), heads=1, t_final=1.0, dt=0.1, out=out)
    with wflow.open(out) as ds:
        assert ds.attrs["complete"] == 1


def test_resume_removes_what_a_process_left_that_was_killed_at_its_end(tmp_path, monkeypatch):
    out = tmp_path / "run.h5"
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *_, **__: None)  # it deletes nothing any more
        run(out)
    left = {file.name for file in tmp_path.iterdir()}
    assert {"run.h5.checkpoint", "run.h5.lock"} < left
    made = out.stat().st_mtime_ns
    (tmp_path / "run.h5.checkpoint.old").write_text("of another program")
    run(out, "resume")  # nothing is deleted beside a file that wflow did not write
    assert {file.name for file in tmp_path.iterdir()} >= {"run.h5.checkpoint"}
    (tmp_path / "run.h5.checkpoint.old").unlink()
    run(out, "resume")
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]
    assert out.stat().st_mtime_ns == made


def test_a_run_whose_file_is_removed_ends_at_the_next_checkpoint(tmp_path):
    out, times = tmp_path / "run.h5", []

    def drift(D, t):
        times.append(t)
        if t > 0.5:
            Path(f"{out}.partial").unlink(missing_ok=True)
        return -D

    options = {
        "heads": 1, "t_final": 9.0, "dt": 0.1, "out": out,
        "compute": wflow.Compute(checkpoint_every=0.0),
    }  # fmt: skip
    with pytest.raises(wflow.RunFileError, match="removed"):
        wflow.solve(np.eye(3), HeadLaw(drift), **options)
    assert max(times) < 1.0 and not list(tmp_path.iterdir())
