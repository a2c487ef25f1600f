"""Study scripts end to end at a size of seconds, and what they do with bad flags."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import xarray as xr

import wflow
from wflow import _workers, study
from wflow.errors import InputError, RunFileError, WflowError

STUDIES = Path(__file__).resolve().parents[1] / "studies"
# One thread: so little work is not worth waking others, least of all on a busy machine.
SMALL = ["--n", "12", "--paths", "3", "--t-final", "0.2", "--dt", "0.01", "--threads", "1"]


def script(name: str) -> ModuleType:
    """A study script as a module."""
    spec = importlib.util.spec_from_file_location(name, STUDIES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def call(name: str, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    """Run a study in this process; errors come out as exceptions."""
    monkeypatch.setattr(sys, "argv", [f"studies/{name}.py", *flags])
    return script(name).main()


def shell(name: str, *flags: str, **options) -> subprocess.CompletedProcess:
    """Run a study as a user does."""
    command = [sys.executable, str(STUDIES / f"{name}.py"), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_study_writes_run_files_summary_and_figures(tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "new" / "ou"
    flags = [*SMALL, "--heads", "4", "1", "2", "--out", str(out)]
    assert call("ou_heads", monkeypatch, *flags) == 0
    names = {file.name for file in out.iterdir()}
    assert {"H00001.h5", "H00002.h5", "H00004.h5", "summary.h5", "summary.json"} <= names
    for stem in (
        "gradient_over_time",
        "gradient_against_heads",
        "H00004_tokens_mean",
        "H00004_energy_balance",
    ):
        assert {f"{stem}.png", f"{stem}.pdf"} <= names
    assert not [name for name in names if name.endswith((".partial", ".checkpoint", ".new"))]

    summary = json.loads((out / "summary.json").read_text())
    assert summary["study"] == "ou_heads"
    assert summary["command"].endswith(" ".join(flags))
    assert [run["heads"] for run in summary["runs"]] == [1, 2, 4]
    table = xr.open_dataset(out / "summary.h5", engine="h5netcdf")
    with table, wflow.open(out / "H00002.h5") as run:
        late = run["upper_gradient_sq"].sel(time=slice(0.1 - 1e-9, None))
        np.testing.assert_allclose(
            table["upper_gradient_sq"].sel(heads=2), late.mean("time"), rtol=1e-14
        )
        final = run["edi_residual"].isel(time=-1)
        np.testing.assert_array_equal(table["edi_residual_final"].sel(heads=2), final)
        mean = summary["runs"][1]["edi_residual_final"]["mean"]
        np.testing.assert_allclose(mean, final.mean(), rtol=1e-12)
        assert all("long_name" in table[name].attrs for name in table.data_vars)
    means = [run["upper_gradient_sq"]["mean"] for run in summary["runs"]]
    slope = np.polyfit(np.log([1, 2, 4]), np.log(means), 1)[0]
    assert summary["fit"]["exponent"] == pytest.approx(slope, rel=1e-10)
    said = capsys.readouterr().out
    assert str(out) in said and "bootstrap interval" in said


def test_deterministic_study_states_no_interval(tmp_path, monkeypatch, capsys) -> None:
    flags = ["--n", "12", "--t-final", "0.2", "--dt", "0.02", "--heads", "2", "4", "8"]
    flags += ["--scheme", "rk4", "--phases", "common"]
    assert call("oscillating_heads", monkeypatch, *flags, "--out", str(tmp_path / "o")) == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert summary["fit"]["exponent_ci"] == [None, None]
    assert summary["fit"]["points"] == 2 and summary["fit"]["heads_from"] == 4
    said = capsys.readouterr().out
    assert "One path" in said and "interval" not in said and "Pearson" not in said


def test_existing_output_needs_overwrite_or_resume(tmp_path, monkeypatch) -> None:
    flags = [*SMALL, "--heads", "2", "--out", str(tmp_path)]
    assert call("ou_heads", monkeypatch, *flags) == 0
    first = (tmp_path / "H00002.h5").stat().st_mtime_ns
    with pytest.raises(InputError, match=r"--resume .* --overwrite"):
        call("ou_heads", monkeypatch, *flags)
    with pytest.raises(InputError, match="differs in seed"):
        call("ou_heads", monkeypatch, *flags, "--resume", "--seed", "7")
    assert (tmp_path / "H00002.h5").stat().st_mtime_ns == first
    # Resuming keeps finished runs and may add head counts.
    assert call("ou_heads", monkeypatch, *flags[:-3], "2", "4", *flags[-2:], "--resume") == 0
    assert (tmp_path / "H00002.h5").stat().st_mtime_ns == first
    assert (tmp_path / "H00004.h5").exists()
    assert call("ou_heads", monkeypatch, *flags, "--overwrite") == 0
    assert (tmp_path / "H00002.h5").stat().st_mtime_ns != first


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--heads", "0"], "--heads is 0"),
        (["--heads", "4", "4"], "every head count once"),
        (["--n", "0"], "--n is 0"),
        (["--d", "1"], "--d is 1"),
        (["--paths", "0"], "--paths is 0"),
        (["--dt", "-0.01"], "--dt is -0.01"),
        (["--dt", "0.03"], "whole number of steps"),
        (["--t-final", "nan"], "--t-final is nan"),
        (["--sigma2", "-1"], "sigma2 is -1"),
        (["--rate", "0"], "rate is 0"),
        (["--scheme", "rk4"], "rk4"),
        (["--snapshots", "0", "3"], "--snapshots 3"),
        (["--tokens", "missing.npy"], "missing.npy"),
        (["--resume", "--overwrite"], "give one of the two"),
        (["--workers", "1", "--scheduler", "tcp://localhost:1"], "give one of them"),
        (["--threads", "0"], "--threads is 0"),
        (["--threads", "100000"], "threads is 100000"),
    ],
)
def test_bad_flags_are_named_and_leave_nothing_behind(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        call("ou_heads", monkeypatch, *SMALL, "--heads", "2", "--out", "a/b/c", *flags)
    assert not list(tmp_path.iterdir())


def test_file_in_the_way_of_the_folder_is_an_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match="cannot make --out"):
        call("ou_heads", monkeypatch, *SMALL, "--out", str(tmp_path / "taken"))
    assert (tmp_path / "taken").read_text() == "mine"


def test_foreign_file_under_the_name_of_a_run_goes_only_by_overwrite(tmp_path, monkeypatch) -> None:
    flags = [*SMALL, "--heads", "2", "--out", str(tmp_path)]
    file = tmp_path / "H00002.h5"
    file.write_text("not HDF5")
    with pytest.raises(RunFileError, match="not an HDF5 file"):
        call("ou_heads", monkeypatch, *flags, "--resume")
    assert file.read_text() == "not HDF5" and len(list(tmp_path.iterdir())) == 1
    assert call("ou_heads", monkeypatch, *flags, "--overwrite") == 0


def test_user_mistake_exits_with_status_2_and_no_traceback(tmp_path) -> None:
    mistake = shell("ou_heads", *SMALL, "--heads", "-1", "--out", str(tmp_path / "x"))
    assert mistake.returncode == 2 and "Traceback" not in mistake.stderr
    assert "--heads is -1" in mistake.stderr
    unknown = shell("oscillating_heads", "--phase", "round", cwd=tmp_path)
    assert unknown.returncode == 2 and "Traceback" not in unknown.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["ou_heads", "oscillating_heads"])
def test_help_explains_every_flag_with_its_default(name) -> None:
    said = shell(name, "--help", env={**os.environ, "COLUMNS": "100"})
    assert said.returncode == 0
    flags = ("heads", "tokens", "n", "d", "paths", "t-final", "dt", "seed", "flow", "out")
    for flag in (*flags, "resume", "workers", "scheduler"):
        assert f"--{flag} " in said.stdout
    assert said.stdout.count("(default:") >= 22


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_study_resumes_to_the_same_numbers(tmp_path, number) -> None:
    flags = ["--n", "20", "--paths", "2", "--t-final", "100", "--dt", "0.01", "--heads", "2"]
    flags += ["--threads", "1"]
    command = [sys.executable, str(STUDIES / "ou_heads.py"), *flags]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "cut")], stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        child.stderr.readline()  # 10 % are done
        child.send_signal(number)
        said = child.stderr.read()
        assert child.wait(30) == 128 + number
    assert "--resume" in said and "Traceback" not in said
    assert (tmp_path / "cut" / "H00002.h5.partial").exists()
    for folder, more in (("cut", ["--resume"]), ("whole", [])):
        assert shell("ou_heads", *flags, "--out", str(tmp_path / folder), *more).returncode == 0
    with (
        wflow.open(tmp_path / "cut" / "H00002.h5") as cut,
        wflow.open(tmp_path / "whole" / "H00002.h5") as whole,
    ):
        xr.testing.assert_equal(cut, whole)


def test_run_that_blows_up_keeps_what_was_recorded(tmp_path, monkeypatch) -> None:
    flags = [*SMALL, "--heads", "2", "--sigma2", "1e14", "--out", str(tmp_path)]
    with pytest.raises(WflowError, match="blows up"):
        call("ou_heads", monkeypatch, *flags)
    with pytest.warns(UserWarning, match="not complete"), wflow.open(tmp_path / "H00002.h5") as run:
        assert run.attrs["complete"] == 0 and run.sizes["time"] >= 1


def test_run_ended_before_its_first_checkpoint_is_resumed_from_its_start(
    tmp_path, monkeypatch
) -> None:
    flags = [*SMALL, "--heads", "2", "--out", str(tmp_path)]
    assert call("ou_heads", monkeypatch, *flags) == 0
    whole = wflow.open(tmp_path / "H00002.h5").load()
    whole.close()
    (tmp_path / "H00002.h5").rename(tmp_path / "H00002.h5.partial")
    assert call("ou_heads", monkeypatch, *flags, "--resume") == 0
    with wflow.open(tmp_path / "H00002.h5") as again:
        xr.testing.assert_equal(again, whole)


def test_dask_missing_is_said_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'wflow\[dask\]'"):
        call("ou_heads", monkeypatch, *SMALL, "--workers", "1", "--out", str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())


def test_workers_compute_the_same_bits_as_this_process(tmp_path) -> None:
    pytest.importorskip("distributed", reason="the extra wflow[dask] is not installed")
    flags = [*SMALL, "--heads", "1", "3"]
    for folder, more in (("alone", []), ("workers", ["--workers", "2"])):
        done = shell("ou_heads", *flags, "--out", str(tmp_path / folder), *more)
        assert done.returncode == 0, done.stderr
    for name in ("H00001.h5", "H00003.h5"):
        with (
            wflow.open(tmp_path / "alone" / name) as alone,
            wflow.open(tmp_path / "workers" / name) as workers,
        ):
            xr.testing.assert_equal(alone, workers)
            assert workers.attrs["command"].endswith("--workers 2")


def test_scheduler_that_does_not_answer_is_an_input_error(tmp_path, monkeypatch) -> None:
    pytest.importorskip("distributed", reason="the extra wflow[dask] is not installed")
    monkeypatch.setattr(_workers, "CONNECT_SECONDS", 1)
    address = ["--scheduler", "tcp://127.0.0.1:9"]
    with pytest.raises(InputError, match="no dask scheduler at"):
        call("ou_heads", monkeypatch, *SMALL, *address, "--out", str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())


def test_error_in_a_worker_comes_back_as_text() -> None:
    task = {"x0": np.eye(3), "law": wflow.heads.Frozen(), "heads": 1, "t_final": 1.0, "dt": -1.0}
    assert "dt" in _workers.run_task(task, ["command"])


def test_flags_are_immutable_and_defaults_make_a_study() -> None:
    flags = study.StudyFlags()
    study.check_flags(flags)
    with pytest.raises(InputError):
        study.check_flags(replace(flags, heads=()))


def test_progress_prints_a_line_per_tenth_where_there_is_no_terminal(capsys) -> None:
    from wflow.progress import progress

    with progress(1000, "H = 2") as advance:
        for _ in range(1000):
            advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("H = 2: 10 %, ") and lines[0].endswith("left")
    assert lines[-1].startswith("H = 2: 100 %, done in ")


def test_progress_does_not_count_what_a_resumed_run_did_before(capsys) -> None:
    from wflow.progress import progress

    with progress(100) as advance:
        advance(55)
        time.sleep(0.2)
        advance(5)  # 5 steps in 0.2 s: 40 more take 1.6 s
    assert capsys.readouterr().err.strip() == "60 %, 2 s left"


def test_progress_disabled_is_silent(capsys) -> None:
    from wflow.progress import progress

    with progress(10, enabled=False) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_read_as_people_say_them(seconds, words) -> None:
    from wflow.progress import duration

    assert duration(seconds) == words
