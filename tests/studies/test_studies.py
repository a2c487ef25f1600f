"""Study scripts end to end at a size of seconds, and what they do with bad flags."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from scripts import FILES, OF_NETWORKS, call, shell

import wflow
from wflow import InputError, RunFileError
from wflow.study import heads

# One thread: so little work is not worth waking others, least of all on a busy machine.
SMALL = ["--n", "12", "--paths", "3", "--t-final", "0.2", "--dt", "0.01", "--threads", "1"]


def test_study_writes_run_files_summary_figures_and_report(run_study, reported) -> None:
    flags = [*SMALL, "--heads", "4", "1", "2"]
    done = run_study("ou_heads", *flags, to="new/ou")
    assert {"H00001.h5", "H00002.h5", "H00004.h5", "report.html"} <= done.names
    assert done.drawn("gradient_over_time", "gradient_against_heads", "H00004_tokens_path0",
                      "H00004_energy_balance")  # fmt: skip
    summary, table = done.summary, done.table
    assert summary["study"] == "ou_heads"
    assert summary["command"].endswith(" ".join([*flags, "--out", str(done.out)]))
    assert [run["heads"] for run in summary["runs"]] == [1, 2, 4]
    with wflow.open(done.out / "H00002.h5") as run:
        late = run["upper_gradient_sq"].sel(time=slice(0.1 - 1e-9, None)).mean("time")
        final = run["edi_residual"].isel(time=-1).values
    np.testing.assert_allclose(table["upper_gradient_sq"].sel(heads=2), late, rtol=1e-14)
    np.testing.assert_array_equal(table["edi_residual_final"].sel(heads=2), final)
    mean = summary["runs"][1]["edi_residual_final"]["mean"]
    np.testing.assert_allclose(mean, final.mean(), rtol=1e-12)
    means = [run["upper_gradient_sq"]["mean"] for run in summary["runs"]]
    slope = np.polyfit(np.log([1, 2, 4]), np.log(means), 1)[0]
    assert summary["fit"]["exponent"] == pytest.approx(slope, rel=1e-10)
    assert str(done.out) in done.said and "bootstrap interval" in done.said


@pytest.mark.parametrize("name", ["gradient_over_time.png", "H00002_tokens_path0.pdf"])
def test_a_foreign_figure_is_noticed_before_the_runs(tmp_path, monkeypatch, name) -> None:
    (tmp_path / name).write_text("mine")
    flags = [*SMALL, "--heads", "1", "2", "--out", str(tmp_path)]
    for how in ([], ["--resume"], ["--overwrite"]):
        with pytest.raises(InputError, match=f"{name} is there and was not written by wflow"):
            call("ou_heads", monkeypatch, *flags, *how)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def unmark(folder: Path) -> None:
    """Make the figures and the summary of a study those of an early version."""
    for file in folder.iterdir():
        if file.suffix in (".png", ".pdf"):
            Figure().savefig(file)
    summary = json.loads((folder / "summary.json").read_text())
    del summary["figures"], summary["texts"]
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_study_of_an_early_version_is_continued(tmp_path, monkeypatch, sketched) -> None:
    flags = [*SMALL, "--heads", "1", "2", "--out", str(tmp_path)]
    call("ou_heads", monkeypatch, *flags)
    unmark(tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    Figure().savefig(tmp_path / "mine.png")
    call("ou_heads", monkeypatch, *flags, "--resume")
    assert {file.name for file in tmp_path.iterdir()} == names | {"mine.png"}
    for file in tmp_path.glob("*.p*"):
        assert (b"Matplotlib" in file.read_bytes()) == (file.name == "mine.png"), file
    unmark(tmp_path)
    call("ou_heads", monkeypatch, *flags, "--overwrite", "--heads", "2")
    assert not list(tmp_path.glob("gradient_*")), "figures of the comparison are of other runs"


def test_deterministic_study_states_no_interval(run_study, sketched) -> None:
    flags = ["--n", "12", "--t-final", "0.2", "--dt", "0.02", "--heads", "2", "4", "8"]
    done = run_study("oscillating_heads", *flags, "--scheme", "rk4", "--phases", "common")
    fit = done.summary["fit"]
    assert fit["exponent_ci"] == [None, None] and (fit["points"], fit["heads_from"]) == (2, 4)
    assert "One path" in done.said and "interval" not in done.said and "Pearson" not in done.said


def test_file_in_the_way_of_the_folder_is_an_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match="cannot make --out"):
        call("ou_heads", monkeypatch, *SMALL, "--out", str(tmp_path / "taken"))
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_study_takes_names_that_are_not_utf8(
    tmp_path, monkeypatch, undrawn, reported, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    out, table = os.fsdecode(b"res\xff\x1bults"), os.fsdecode(b"tok\xffens.csv")
    Path(table).write_text("1,0,0\n0,1,0\n0,0,1\n")
    flags = [*SMALL, "--n", "3", "--heads", "1", "--tokens", table, "--out", out]
    call("ou_heads", monkeypatch, *flags)
    assert r"res\udcff\x1bults" in capsys.readouterr().out
    with wflow.open(Path(out, "H00001.h5")) as run:
        assert run.attrs["command"].endswith(r"--tokens $'tok\377ens.csv' --out $'res\377\033ults'")
    assert r"--out $&#x27;res\377\033ults&#x27;" in Path(out, "report.html").read_text("utf-8")


def test_the_folder_is_refused_before_the_tokens_are_made(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(wflow.tokens, "make", lambda *_: pytest.fail("tokens were made"))
    (tmp_path / "summary.json").write_text("mine")
    for how in ([], ["--resume"], ["--overwrite"]):
        with pytest.raises(InputError, match=r"summary\.json"):
            call("ou_heads", monkeypatch, *SMALL, "--out", str(tmp_path), *how)
    assert (tmp_path / "summary.json").read_text() == "mine"


def test_user_mistake_exits_with_status_2_and_no_traceback(tmp_path) -> None:
    for flags, said in (
        (["--heads", "-1", "--out", "x"], "--heads is -1"), (["--out", ""], "it is empty"),
    ):  # fmt: skip
        mistake = shell("ou_heads", *SMALL, *flags, cwd=tmp_path)
        assert mistake.returncode == 2 and "Traceback" not in mistake.stderr
        assert said in mistake.stderr
    assert not list(tmp_path.iterdir())


HELP = """
import runpy, sys
sys.argv = [sys.argv[1], "--help"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    heavy = {"numba", "scipy", "xarray", "matplotlib", "torch"} & set(sys.modules)
    assert not heavy, heavy
"""


def test_help_explains_every_flag_with_its_default_and_waits_for_no_compiler() -> None:
    command = [sys.executable, "-c", HELP, str(FILES["ou_heads"])]
    env = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    flags = ("heads", "tokens", "n", "d", "paths", "t-final", "dt", "seed", "flow", "out")
    for flag in (*flags, "sigma2", "resume", "workers", "scheduler", "verbose"):
        assert f"--{flag} " in done.stdout
    assert "(default: )" not in done.stdout and "(default: None)" not in done.stdout
    assert done.stdout.count("(default:") >= 22


@pytest.mark.parametrize("name", ["mnist_vit", "trained_heads"])
def test_a_study_of_networks_names_the_extra_that_it_needs(name, tmp_path) -> None:
    absent = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    (tmp_path / "torch.py").write_text(absent)
    path = os.pathsep.join([str(tmp_path), str(Path(wflow.__file__).parents[1])])
    out = tmp_path / "out"
    env = {**os.environ, "PYTHONPATH": path}
    said = shell(name, "--preset", "smoke", "--out", str(out), env=env)
    assert said.returncode == 2 and not out.exists()
    assert said.stderr.count("\n") == 1 and "pip install 'wflow-transformers[nets]'" in said.stderr


CUT = ["--n", "20", "--paths", "2", "--t-final", "20", "--dt", "0.01", "--heads", "2"]
CUT += ["--threads", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return the run file of a study that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "draw", lambda *_: {})
        call("ou_heads", patch, *CUT, "--out", str(folder))
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
        time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        said = child.stderr.read()
        assert child.wait(30) == 128 + signal.SIGTERM
    assert "--resume" in said and "Traceback" not in said
    assert (tmp_path / "H00002.h5.partial").exists()
    call("ou_heads", monkeypatch, *CUT, "--out", str(tmp_path), "--resume")
    with wflow.open(tmp_path / "H00002.h5") as cut, wflow.open(whole) as other:
        xr.testing.assert_equal(cut, other)


def test_unfinished_run_whose_checkpoint_is_lost_is_never_replaced_by_resume(
    tmp_path, monkeypatch, undrawn
) -> None:
    flags = [*SMALL, "--heads", "2", "4", "--out", str(tmp_path)]
    call("ou_heads", monkeypatch, *flags)
    partial = (tmp_path / "H00004.h5").rename(tmp_path / "H00004.h5.partial")
    (tmp_path / "H00002.h5").unlink()
    before = partial.read_bytes()
    with pytest.raises(RunFileError, match="--overwrite"):
        call("ou_heads", monkeypatch, *flags, "--resume")
    assert partial.read_bytes() == before
    assert not (tmp_path / "H00002.h5").exists()  # said before another run is computed
    call("ou_heads", monkeypatch, *flags, "--overwrite")


def test_tokens_of_a_file_are_all_taken_as_they_are_unless_asked_otherwise(
    tmp_path, monkeypatch, run_study, undrawn
) -> None:
    data = np.random.default_rng(0).standard_normal((9, 5))
    np.savez(tmp_path / "two.npz", emb=data, other=data[:3])
    flags = [*SMALL[2:], "--heads", "2", "--tokens", f"{tmp_path / 'two.npz'}::emb"]
    done = run_study("ou_heads", *flags)
    with wflow.open(done.out / "H00002.h5") as run:
        np.testing.assert_array_equal(run["initial_tokens"], wflow.tokens.as_tokens(data))
    given = done.summary["config"]["flags"]
    assert (given["n"], given["d"]) == (9, 5)
    out = run_study("ou_heads", *flags, "--d", "2", "--n", "4", to="reduced").out
    with wflow.open(out / "H00002.h5") as run:
        assert run["initial_tokens"].shape == (4, 2)
    with pytest.raises(InputError, match="--tokens-seed"):
        call("ou_heads", monkeypatch, *flags, "--out", str(out), "--d", "2", "--resume")


def test_oscillating_heads_take_noise_by_sigma2(monkeypatch, run_study, undrawn) -> None:
    flags, noise = [*SMALL, "--heads", "2"], ["--sigma2", "0.5"]
    for more, noisy in (([], False), (noise, True)):
        done = run_study("oscillating_heads", *flags, *more, to=str(noisy))
        with wflow.open(done.out / "H00002.h5") as run:
            assert (np.ptp(run["energy"].values[:, -1]) > 0) == noisy
            law = json.loads(run.attrs["config"])["law"]
    assert law["name"] == "Oscillating" and law["sigma2"] == 0.5
    with pytest.raises(InputError, match="--scheme rk4 needs"):
        call("oscillating_heads", monkeypatch, *flags, *noise, "--scheme", "rk4", "--out", "x")


def test_runs_left_by_other_calls_stay_and_are_named_and_their_comparison_goes(
    tmp_path, monkeypatch, capsys, sketched
) -> None:
    flags = [*SMALL, "--out", str(tmp_path), "--heads"]
    call("ou_heads", monkeypatch, *flags, "2", "4")
    assert "not in this summary" not in capsys.readouterr().out
    for mine in ("gradient.png", "H4.h5", "H00002_mine.png"):
        (tmp_path / mine).write_text("not the study's")
    assert (tmp_path / "gradient_against_heads.pdf").exists()

    call("ou_heads", monkeypatch, *flags, "2", "--resume")
    assert "not in this summary: H00004.h5" in capsys.readouterr().out
    names = {file.name for file in tmp_path.iterdir()}
    assert not {name for name in names if name.startswith(("gradient_over", "gradient_against"))}
    assert {"H00004.h5", "H00004_energy_balance.png", "H00002_energy_balance.png"} <= names

    call("ou_heads", monkeypatch, *flags, "1", "2", "--overwrite", "--seed", "5")
    assert "H00004.h5" in capsys.readouterr().out
    names = {file.name for file in tmp_path.iterdir()}
    assert {"H00004.h5", "gradient_against_heads.pdf"} <= names
    assert {"gradient.png", "H4.h5", "H00002_mine.png"} <= names

    # The figures of a run that is replaced and not drawn again would show the old one.
    call("ou_heads", monkeypatch, *flags, "2", "8", "--overwrite")
    names = {file.name for file in tmp_path.iterdir()}
    assert "H00002_energy_balance.png" not in names
    assert {"H00002_mine.png", "H00004_energy_balance.png", "H00008_energy_balance.png"} <= names


def test_verbose_logs_on_stderr_and_leaves_the_logger_as_it_was(
    tmp_path, monkeypatch, capsys, undrawn
) -> None:
    logger = logging.getLogger("wflow")
    before = (logger.level, list(logger.handlers))
    flags = [*SMALL, "--heads", "2", "--out", str(tmp_path)]
    call("ou_heads", monkeypatch, *flags)
    assert "INFO" not in capsys.readouterr().err
    call("ou_heads", monkeypatch, *flags, "--overwrite", "--verbose")
    said = capsys.readouterr()
    assert "INFO" in said.err and "H00002.h5" in said.err and "INFO" not in said.out
    assert (logger.level, list(logger.handlers)) == before


def test_dask_missing_is_said_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"\[dask\]"):
        call("ou_heads", monkeypatch, *SMALL, "--workers", "1", "--out", str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())


WITHOUT_PRECISION = {
    "pontryagin_gpt", "pontryagin_resnet", "rwpo_benchmarks", "rwpo_digits", "rwpo_inverse",
}  # fmt: skip
TRAINING = sorted(OF_NETWORKS - {"trained_heads"})


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_has_the_flags_of_its_command_line(name, tmp_path, monkeypatch, no_data):
    """What a study does not do it does not take: no flag is read and left aside."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from wflow.nets import train

    class Begins(BaseException):
        pass

    def begins(model, objective, batches, config, **_):
        raise Begins(config)

    monkeypatch.setattr(train, "train", begins)
    command = ["--preset", "smoke", "--device", "cpu", "--out", str(tmp_path / "out")]
    flags = [["--precision", "bfloat16"], ["--compile"]]
    if name in WITHOUT_PRECISION:
        for refused in flags:
            with pytest.raises(SystemExit):
                call(name, monkeypatch, *command, *refused)
        return
    with pytest.raises(Begins) as caught:
        call(name, monkeypatch, *command, *chain(*flags))
    (config,) = caught.value.args
    assert (config.precision, config.device, config.compile) == ("bfloat16", "cpu", True)
