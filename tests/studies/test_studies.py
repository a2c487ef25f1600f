"""Study scripts end to end at a size of seconds, and what they do with bad flags."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from scripts import FILES, NAMES, call, shell

import wflow
from wflow import Compute, InputError, RunFileError, study
from wflow.study import heads

# One thread: so little work is not worth waking others, least of all on a busy machine.
SMALL = ["--n", "12", "--paths", "3", "--t-final", "0.2", "--dt", "0.01", "--threads", "1"]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of the time of a small study."""
    monkeypatch.setattr(heads, "draw", lambda *_: {})


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


@pytest.mark.parametrize(
    "name", ["gradient_over_time.png", "gradient_against_heads.pdf", "H00002_energy_balance.png",
             "H00002_tokens_mean.pdf", "H00002_tokens_path0.png"]
)  # fmt: skip
def test_a_foreign_figure_is_noticed_before_the_runs(tmp_path, monkeypatch, name) -> None:
    (tmp_path / name).write_text("mine")
    flags = [*SMALL, "--heads", "1", "2", "--out", str(tmp_path)]
    for how in ([], ["--resume"], ["--overwrite"]):
        with pytest.raises(InputError, match=f"{name} is there and was not written by wflow"):
            call("ou_heads", monkeypatch, *flags, *how)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def unmark(folder: Path) -> None:
    """Make the figures and the summary of a study those of version 0.1.0."""
    for file in folder.iterdir():
        if file.suffix in (".png", ".pdf"):
            Figure().savefig(file)
    summary = json.loads((folder / "summary.json").read_text())
    del summary["figures"], summary["texts"]
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_study_of_version_0_1_0_is_continued(tmp_path, monkeypatch, sketched) -> None:
    flags = [*SMALL, "--heads", "1", "2", "--out", str(tmp_path)]
    assert call("ou_heads", monkeypatch, *flags) == 0
    unmark(tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    Figure().savefig(tmp_path / "mine.png")
    assert call("ou_heads", monkeypatch, *flags, "--resume") == 0
    assert {file.name for file in tmp_path.iterdir()} == names | {"mine.png"}
    for file in tmp_path.glob("*.p*"):
        assert (b"Matplotlib" in file.read_bytes()) == (file.name == "mine.png"), file
    unmark(tmp_path)
    assert call("ou_heads", monkeypatch, *flags, "--overwrite", "--heads", "2") == 0
    assert not list(tmp_path.glob("gradient_*")), "figures of the comparison are of other runs"


def test_deterministic_study_states_no_interval(tmp_path, monkeypatch, capsys, sketched) -> None:
    flags = ["--n", "12", "--t-final", "0.2", "--dt", "0.02", "--heads", "2", "4", "8"]
    flags += ["--scheme", "rk4", "--phases", "common"]
    assert call("oscillating_heads", monkeypatch, *flags, "--out", str(tmp_path / "o")) == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert summary["fit"]["exponent_ci"] == [None, None]
    assert summary["fit"]["points"] == 2 and summary["fit"]["heads_from"] == 4
    said = capsys.readouterr().out
    assert "One path" in said and "interval" not in said and "Pearson" not in said


def test_file_in_the_way_of_the_folder_is_an_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match="cannot make --out"):
        call("ou_heads", monkeypatch, *SMALL, "--out", str(tmp_path / "taken"))
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_study_takes_names_that_are_not_utf8(tmp_path, monkeypatch, undrawn, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    out, table = os.fsdecode(b"res\xff\x1bults"), os.fsdecode(b"tok\xffens.csv")
    Path(table).write_text("1,0,0\n0,1,0\n0,0,1\n")
    call(
        "ou_heads",
        monkeypatch,
        *SMALL,
        *["--n", "3", "--heads", "1", "--tokens"],
        table,
        "--out",
        out,
    )
    assert r"res\udcff\x1bults" in capsys.readouterr().out
    with wflow.open(Path(out, "H00001.h5")) as run:
        assert run.attrs["command"].endswith(r"--tokens $'tok\377ens.csv' --out $'res\377\033ults'")
    assert r"--out $&#x27;res\377\033ults&#x27;" in Path(out, "report.html").read_text("utf-8")
    with pytest.raises(InputError, match="udcffults"):
        call("ou_heads", monkeypatch, *SMALL, "--device", os.fsdecode(b"res\xffults"))


def test_a_study_runs_from_a_folder_whose_name_is_not_utf8(tmp_path, monkeypatch, undrawn) -> None:
    script = os.fsdecode(b"fol\xffder/trial.py")
    monkeypatch.setattr(sys, "argv", [script])
    flags = study.command_line(study.StudyFlags, None)
    flags = replace(
        flags,
        heads=(1,),
        n=4,
        paths=1,
        t_final=0.1,
        compute=Compute(threads=1),
        out=tmp_path / "out",
    )
    assert study.run("trial", flags, lambda d: wflow.heads.Frozen()) == 0
    with wflow.open(tmp_path / "out" / "H00001.h5") as run:
        assert run.attrs["command"] == r"$'fol\377der/trial.py'"


def test_the_folder_is_refused_before_the_tokens_are_made(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(wflow.tokens, "make", lambda *_: pytest.fail("tokens were made"))
    (tmp_path / "summary.json").write_text("mine")
    for how in ([], ["--resume"], ["--overwrite"]):
        with pytest.raises(InputError, match=r"summary\.json"):
            call("ou_heads", monkeypatch, *SMALL, "--out", str(tmp_path), *how)
    assert (tmp_path / "summary.json").read_text() == "mine"


def test_user_mistake_exits_with_status_2_and_no_traceback(tmp_path) -> None:
    mistake = shell("ou_heads", *SMALL, "--heads", "-1", "--out", str(tmp_path / "x"))
    assert mistake.returncode == 2 and "Traceback" not in mistake.stderr
    assert "--heads is -1" in mistake.stderr
    unknown = shell("oscillating_heads", "--phase", "round", cwd=tmp_path)
    assert unknown.returncode == 2 and "Traceback" not in unknown.stderr
    nameless = shell("ou_heads", *SMALL, "--heads", "2", "--out", "", cwd=tmp_path)
    assert nameless.returncode == 2 and "Traceback" not in nameless.stderr
    assert "--out" in nameless.stderr and "it is empty" in nameless.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["ou_heads", "oscillating_heads"])
def test_help_explains_every_flag_with_its_default(name) -> None:
    said = shell(name, "--help", env={**os.environ, "COLUMNS": "100"})
    assert said.returncode == 0
    flags = ("heads", "tokens", "n", "d", "paths", "t-final", "dt", "seed", "flow", "out")
    for flag in (*flags, "sigma2", "resume", "workers", "scheduler", "verbose"):
        assert f"--{flag} " in said.stdout
    assert "--save-heads, --no-save-heads" in said.stdout
    assert "(default: )" not in said.stdout and "(default: None)" not in said.stdout
    assert "FILE::KEY" in said.stdout and ".parquet" in said.stdout
    assert said.stdout.count("(default:") >= 22


def test_help_waits_for_no_compiler() -> None:
    code = "import runpy, sys\nsys.argv = [sys.argv[1], '--help']\n"
    code += "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit: pass\n"
    code += "heavy = {'numba', 'scipy', 'xarray', 'matplotlib', 'torch'} & set(sys.modules)\n"
    code += "assert not heavy, heavy"
    command = [sys.executable, "-c", code, str(FILES["ou_heads"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory) -> dict[str, str]:
    """Environment of a process that has no torch."""
    folder = tmp_path_factory.mktemp("absent")
    (folder / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    scripts = sorted({str(file.parent) for file in FILES.values()})
    path = os.pathsep.join([str(folder), str(Path(wflow.__file__).parents[1]), *scripts])
    return {**os.environ, "PYTHONPATH": path}


HELP = """
import contextlib, io, json, runpy, sys
said = {}
for script in sys.argv[1:]:
    sys.argv, out, err, status = [script, "--help"], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            status = end.code
    said[script] = status, out.getvalue(), err.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def helps(without_torch) -> dict[str, list]:
    """What every study says to --help in a process without torch: status, output and errors."""
    scripts = [str(FILES[name]) for name in NAMES]
    done = subprocess.run(
        [sys.executable, "-c", HELP, *scripts],
        env=without_torch, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_every_study_shows_its_flags_without_torch(name, helps) -> None:
    status, said, errors = helps[str(FILES[name])]
    assert status in (0, None) and "--out" in said and not errors


@pytest.mark.parametrize(
    "name", ["mnist_vit", "rwpo_benchmarks", "shakespeare_gpt", "trained_heads"]
)
def test_a_study_of_networks_names_the_extra_that_it_needs(name, without_torch, tmp_path) -> None:
    out = tmp_path / "out"
    said = shell(name, "--preset", "smoke", "--out", str(out), env=without_torch)
    assert said.returncode == 2 and not out.exists()
    assert said.stderr.count("\n") == 1 and "pip install 'wflow-transformers[nets]'" in said.stderr


CUT = ["--n", "20", "--paths", "2", "--t-final", "40", "--dt", "0.01", "--heads", "2"]
CUT += ["--threads", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run file of a study that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "draw", lambda *_: {})
        assert call("ou_heads", patch, *CUT, "--out", str(folder)) == 0
    return folder / "H00002.h5"


def test_interrupted_study_resumes_to_the_same_numbers(
    tmp_path, monkeypatch, undrawn, whole
) -> None:
    command = [sys.executable, str(FILES["ou_heads"]), *CUT, "--out", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        # Written before the first step, when signals are caught already.
        checkpoint = tmp_path / "H00002.h5.checkpoint"
        deadline = time.monotonic() + 60
        while not checkpoint.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        child.send_signal(signal.SIGTERM)
        said = child.stderr.read()
        assert child.wait(30) == 128 + signal.SIGTERM
    assert "--resume" in said and "Traceback" not in said
    assert (tmp_path / "H00002.h5.partial").exists()
    assert call("ou_heads", monkeypatch, *CUT, "--out", str(tmp_path), "--resume") == 0
    with wflow.open(tmp_path / "H00002.h5") as cut, wflow.open(whole) as other:
        xr.testing.assert_equal(cut, other)


def test_unfinished_run_whose_checkpoint_is_lost_is_never_replaced_by_resume(
    tmp_path, monkeypatch, undrawn
) -> None:
    flags = [*SMALL, "--heads", "2", "4", "--out", str(tmp_path)]
    assert call("ou_heads", monkeypatch, *flags) == 0
    partial = (tmp_path / "H00004.h5").rename(tmp_path / "H00004.h5.partial")
    (tmp_path / "H00002.h5").unlink()
    before = partial.read_bytes()
    with pytest.raises(RunFileError, match="--overwrite"):
        call("ou_heads", monkeypatch, *flags, "--resume")
    assert partial.read_bytes() == before
    assert not (tmp_path / "H00002.h5").exists()  # said before another run is computed
    assert call("ou_heads", monkeypatch, *flags, "--overwrite") == 0


def test_tokens_of_a_file_are_all_taken_as_they_are_unless_asked_otherwise(
    tmp_path, monkeypatch, undrawn
) -> None:
    data = np.random.default_rng(0).standard_normal((9, 5))
    np.savez(tmp_path / "two.npz", emb=data, other=data[:3])
    flags = [*SMALL[2:], "--heads", "2", "--tokens", f"{tmp_path / 'two.npz'}::emb"]
    for name in ("ou_heads", "oscillating_heads"):
        assert call(name, monkeypatch, *flags, "--out", str(tmp_path / name)) == 0
        with wflow.open(tmp_path / name / "H00002.h5") as run:
            np.testing.assert_array_equal(run["initial_tokens"], wflow.tokens.as_tokens(data))
    summary = json.loads((tmp_path / "ou_heads" / "summary.json").read_text())
    assert (summary["config"]["flags"]["n"], summary["config"]["flags"]["d"]) == (9, 5)
    out = ["--out", str(tmp_path / "reduced")]
    assert call("ou_heads", monkeypatch, *flags, *out, "--d", "2", "--n", "4") == 0
    with wflow.open(tmp_path / "reduced" / "H00002.h5") as run:
        assert run["initial_tokens"].shape == (4, 2)
    with pytest.raises(InputError, match="--tokens-seed"):
        call("ou_heads", monkeypatch, *flags, *out, "--d", "2", "--resume")


def test_oscillating_heads_take_noise_by_sigma2(tmp_path, monkeypatch, undrawn) -> None:
    flags = [*SMALL, "--heads", "2", "--out"]
    assert call("oscillating_heads", monkeypatch, *flags, str(tmp_path / "still")) == 0
    noise = ["--sigma2", "0.5"]
    assert call("oscillating_heads", monkeypatch, *flags, str(tmp_path / "noisy"), *noise) == 0
    with wflow.open(tmp_path / "still" / "H00002.h5") as run:
        assert np.ptp(run["energy"].values[:, -1]) == 0
    with wflow.open(tmp_path / "noisy" / "H00002.h5") as run:
        assert np.ptp(run["energy"].values[:, -1]) > 0
        law = json.loads(run.attrs["config"])["law"]
    assert law["name"] == "Oscillating" and law["sigma2"] == 0.5
    with pytest.raises(InputError, match="--scheme rk4 needs"):
        call("oscillating_heads", monkeypatch, *flags, "x", *noise, "--scheme", "rk4")


def test_runs_left_by_other_calls_stay_and_are_named_and_their_comparison_goes(
    tmp_path, monkeypatch, capsys, sketched
) -> None:
    flags = [*SMALL, "--out", str(tmp_path), "--heads"]
    assert call("ou_heads", monkeypatch, *flags, "2", "4") == 0
    assert "not in this summary" not in capsys.readouterr().out
    for mine in ("gradient.png", "H4.h5", "H00002_mine.png"):
        (tmp_path / mine).write_text("not the study's")
    assert (tmp_path / "gradient_against_heads.pdf").exists()

    assert call("ou_heads", monkeypatch, *flags, "2", "--resume") == 0
    assert "not in this summary: H00004.h5" in capsys.readouterr().out
    names = {file.name for file in tmp_path.iterdir()}
    assert not {name for name in names if name.startswith(("gradient_over", "gradient_against"))}
    assert {"H00004.h5", "H00004_energy_balance.png", "H00002_energy_balance.png"} <= names

    assert call("ou_heads", monkeypatch, *flags, "1", "2", "--overwrite", "--seed", "5") == 0
    assert "H00004.h5" in capsys.readouterr().out
    names = {file.name for file in tmp_path.iterdir()}
    assert {"H00004.h5", "gradient_against_heads.pdf"} <= names
    assert {"gradient.png", "H4.h5", "H00002_mine.png"} <= names

    # The figures of a run that is replaced and not drawn again would show the old one.
    assert call("ou_heads", monkeypatch, *flags, "2", "8", "--overwrite") == 0
    names = {file.name for file in tmp_path.iterdir()}
    assert "H00002_energy_balance.png" not in names
    assert {"H00002_mine.png", "H00004_energy_balance.png", "H00008_energy_balance.png"} <= names


def test_verbose_logs_on_stderr_and_leaves_the_logger_as_it_was(
    tmp_path, monkeypatch, capsys, undrawn
) -> None:
    logger = logging.getLogger("wflow")
    before = (logger.level, list(logger.handlers))
    flags = [*SMALL, "--heads", "2", "--out", str(tmp_path)]
    assert call("ou_heads", monkeypatch, *flags) == 0
    assert "INFO" not in capsys.readouterr().err
    assert call("ou_heads", monkeypatch, *flags, "--overwrite", "--verbose") == 0
    said = capsys.readouterr()
    assert "INFO" in said.err and "H00002.h5" in said.err and "INFO" not in said.out
    assert (logger.level, list(logger.handlers)) == before


def test_dask_missing_is_said_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"\[dask\]"):
        call("ou_heads", monkeypatch, *SMALL, "--workers", "1", "--out", str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())
