"""Studies that are killed at random moments and resumed."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xarray as xr
from run_layouts import same_bits

import wflow

STUDY = """
import sys
from dataclasses import dataclass

import numpy as np
import xarray
from matplotlib.figure import Figure

import wflow
from wflow import study
from wflow.cli import guarded
from wflow.heads import OrnsteinUhlenbeck

x0 = wflow.tokens.cross_polytope(12, 3, spread=0.05, seed=1)


def main():
    flags = study.command_line(study.Flags, "A study of two runs and a figure.")
    with study.session("trial", flags) as session:
        files = session.solve({
            f"heads_{count}": {
                "x0": x0, "law": OrnsteinUhlenbeck(np.eye(3)), "heads": count, "t_final": 5.0,
                "dt": 0.01, "paths": 4, "seed": 5,
                "save": wflow.SaveAt(snapshots=[0, 3, 5], heads=True),
            }
            for count in (1, 3)
        })
        energy = []
        for file in files.values():
            with wflow.open(file) as run:
                energy.append(run["energy"].values)
        figure = Figure()
        figure.subplots().plot(energy[-1].T)
        table = xarray.Dataset({"energy": (("run", "path", "time"), np.array(energy))})
        session.finish(table, "a report", [], {"last": figure})
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
"""
RUNS = ("heads_1.h5", "heads_3.h5")
DRAWN = ("last.png", "last.pdf")
FILES = {*RUNS, *DRAWN, "summary.h5", "summary.json", "summary.md", "report.html"}


def start(out: Path, resume: bool = False) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STUDY, "--threads", "1", "--out", str(out)]
    command += ["--resume"] if resume else []
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(out: Path, resume: bool = False) -> None:
    process = start(out, resume)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return the study, not disturbed, and the seconds that it took."""
    out = tmp_path_factory.mktemp("whole") / "study"
    begun = time.monotonic()
    finish(out)
    assert {file.name for file in out.iterdir()} == FILES
    return out, time.monotonic() - begun


def check_same(out: Path, whole: Path) -> None:
    """Run files, numbers and figures are those of the study that was not disturbed."""
    assert {file.name for file in out.iterdir()} == FILES
    for name in RUNS:
        with wflow.open(out / name) as one, wflow.open(whole / name) as other:
            same_bits(one, other)
            assert one.attrs["config"] == other.attrs["config"] and one.attrs["complete"] == 1
    with (
        xr.open_dataset(out / "summary.h5", engine="h5netcdf") as one,
        xr.open_dataset(whole / "summary.h5", engine="h5netcdf") as other,
    ):
        xr.testing.assert_equal(one, other)
    for name in DRAWN:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def check_summary(out: Path) -> None:
    """A summary.json that is there names files that are, all of one call."""
    if (out / "summary.json").exists():
        document = json.loads((out / "summary.json").read_text())
        with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
            assert table.attrs["created"] == document["created"]
        # The report, which reads the summary, comes after it.
        assert {file.name for file in out.iterdir()} >= FILES - {"report.html"}


def cut_short(out: Path, number: signal.Signals, after: float, resume: bool) -> bool:
    """Start the study and send it a signal after some seconds; whether it had ended before."""
    process = start(out, resume)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert "Traceback" not in said, said
    if process.returncode == 128 + number:
        assert number.name in said and "\n" not in said.strip().rpartition("wflow: ")[2], said
    else:  # not caught before main() is there, and too late at the end
        assert process.returncode in (0, -number), said
    return process.returncode == 0


def kill_and_resume(out: Path, whole: tuple[Path, float], seed: int) -> None:
    rng = random.Random(seed)
    done, seconds = False, whole[1]
    for count in range(rng.randint(1, 3) if seed >= 3 else 1):
        number = rng.choice([signal.SIGKILL, signal.SIGTERM])
        done = cut_short(out, number, rng.uniform(0.05, 1.1 * seconds), resume=count > 0)
        if out.exists():
            check_summary(out)
        if done:
            break
    if not done:
        finish(out, resume=True)
    check_same(out, whole[0])


def test_a_study_killed_at_random_moments_resumes_to_the_same_bits(tmp_path, whole, cases) -> None:
    for seed in range(cases(1, 14)):
        kill_and_resume(tmp_path / f"study{seed}", whole, seed)
