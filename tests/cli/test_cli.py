"""The command `wflow`, and what `wflow.verify` accepts and refuses."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from interpreters import python
from matplotlib.figure import Figure
from run_layouts import STEERING, escapes, spoiled, steers

import wflow
from wflow import InputError, Interrupted, RunFileError
from wflow.analysis.verify import verify
from wflow.cli import guarded, main
from wflow.runs.schema import RunLayout, dataset_attrs
from wflow.runs.store import RunWriter

ROOT = Path(__file__).parents[2]
RECORDED = "every value is recorded"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Return the small real runs, one of a kind."""
    folder = tmp_path_factory.mktemp("runs")
    x0 = wflow.tokens.cross_polytope(n=12, d=3, spread=0.05, seed=1)
    ou = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(3), rate=1.0, sigma2=2.0)
    shared = {"t_final": 0.4, "dt": 5e-3, "seed": 0}
    kept = {"save": wflow.SaveAt(snapshots=[0.0, 0.2, 0.4], paths=(0, 1), heads=True)}
    rng = np.random.default_rng(0)
    heads = wflow.heads.QKV(*rng.normal(size=(3, 2, 3, 3)))
    ascent = {"flow": "effective", "direction": "ascent", "scheme": "rk4"}
    plans = {
        "ou": (ou, {"paths": 2} | kept),
        "single": (ou, {"paths": 2, "compute": wflow.Compute(dtype="float32")} | kept),
        "bare": (ou, {"save": wflow.SaveAt(every=3)}),
        "effective": (wflow.heads.Frozen(), ascent),
        "general": (wflow.heads.Frozen(), {"heads": heads}),
    }
    for name, (law, more) in plans.items():
        wflow.solve(x0, law, out=folder / f"{name}.h5", **{"heads": 3} | shared | more).close()
    return {name: folder / f"{name}.h5" for name in plans}


def checks(path: Path, **options) -> dict[str, bool | None]:
    return {check.name: check.passed for check in verify(path, **options).checks}


@pytest.mark.parametrize("name", ["ou", "single", "bare", "effective", "general"])
def test_a_run_of_the_solver_verifies(runs, name, capsys):
    assert main(["verify", str(runs[name])]) == 0
    out = capsys.readouterr().out
    assert "PASSED" in out and "FAIL" not in out


def test_verify_says_what_it_could_not_check(runs):
    found = checks(runs["bare"])
    assert found["energy follows from the stored tokens and heads"] is None
    assert found["running integrals are the sums of their rates"] is True
    assert found["dissipation and upper_gradient_sq coincide"] is None
    assert checks(runs["general"])["energy and its balance"] is None
    assert checks(runs["effective"])["dissipation and upper_gradient_sq coincide"] is True


ENERGY = "energy follows from the stored tokens and heads"
SUMS = "running integrals are the sums of their rates"
CHANGES = [
    ("energy", (1, 40), 1e-6, ENERGY),
    ("energy", (0, 0), 1e-6, "energy at time 0 follows from the initial tokens and heads"),
    ("tokens", (0, 1, 2, 0), 1e-3, "tokens lie on the sphere"),
    ("tokens_mean", (1, 0, 0), 1e-3, "tokens_mean is the mean of the tokens"),
    ("heads", (0, 1, 0, 0, 0), 1e-3, ENERGY),
    ("edi_residual", (1, 7), 1e-9, "edi_residual is what its terms leave"),
    ("edi_residual_upper_gradient", (1, 7), 1e-9,
     "edi_residual_upper_gradient is what its terms leave"),
    ("edi_defect", (1, 7), 1e-6, "edi_defect is dissipation minus upper_gradient_sq"),
    ("work_ito", (1, slice(None)), 1e-6, "the budget starts at zero"),
    ("work_ito", (1, slice(5, None)), 1e-6, SUMS),
    ("dissipation", (0, 3), np.nan, RECORDED),
    ("tokens", (0, 1, 2, 0), np.inf, "no token and no head is infinite"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "place", "amount", "check"), CHANGES)
def test_a_changed_number_fails_the_check_that_guards_it(
    runs, tmp_path, capsys, name, place, amount, check
):
    def act(file):
        file[name][place] += amount

    wrong = spoiled(runs["ou"], tmp_path, act)
    assert main(["verify", str(wrong)]) == 1 and "FAILED" in capsys.readouterr().out
    assert checks(wrong)[check] is False


def test_unfinished_run_fails_for_that_alone(runs, tmp_path):
    with wflow.open(runs["ou"]) as ds:
        layout = RunLayout(
            2, ds["time"], ds["snapshot"], [0, 1], 12, 3, 3, save_heads=True, noisy=True
        )
        writer = RunWriter.create(tmp_path / "run.h5", layout, dict(ds.attrs))
        for name in map(str, ds.data_vars):
            values = ds[name].values
            if "time" in ds[name].dims:
                writer.write(name, (0, slice(0, 50)), values[0, :50])  # path 1 has not begun
            elif ds[name].dims[0] == "snapshot_path":
                writer.write(name, (0, slice(0, 2)), values[0, :2])
            elif name != "tokens_mean":
                writer.write(name, (), values)
    writer.abandon()
    failed = {name for name, passed in checks(tmp_path / "run.h5").items() if passed is False}
    assert failed == {"the run is complete", RECORDED}


def test_run_that_recorded_nothing_is_reported_and_not_crashed_on(tmp_path):
    layout = RunLayout(2, [0.0, 1.0], [0.0], [0], 12, 3, 3)
    attrs = dataset_attrs({"law": {"name": "Frozen"}}, seed=0)
    RunWriter.create(tmp_path / "run.h5", layout, attrs).abandon()
    assert not verify(tmp_path / "run.h5").passed
    assert main(["info", str(tmp_path / "run.h5")]) == 0


def test_info_tells_run_provenance_and_numbers(runs, capsys):
    assert main(["info", str(runs["ou"])]) == 0
    out = capsys.readouterr().out
    for text in (
        "complete", "OrnsteinUhlenbeck", "n = 12, d = 3", "softmax, descent, euler", "seed",
        "81 times up to 0.4", "command", "edi_residual(T)", "upper_gradient_sq",
    ):  # fmt: skip
        assert text in out
    assert main(["info", str(runs["general"])]) == 0
    out = capsys.readouterr().out
    assert "speed_sq" in out and re.search(r"heads +2\n", out)


@pytest.mark.parametrize("name", ["general", "effective", "single"])
def test_plot_draws_every_kind_of_run_of_the_solver(runs, tmp_path, name, capsys, sketched):
    assert main(["plot", str(runs[name]), "--out", str(tmp_path)]) == 0
    assert f"{name}_tokens_path0.pdf" in capsys.readouterr().out


def test_an_unfinished_run_is_told_in_one_line_and_its_figures_bear_its_name(
    runs, tmp_path, capsys, sketched
):
    copy = Path(shutil.copy(runs["ou"], tmp_path / "dt0.01.h5.partial"))
    with h5py.File(copy, "r+") as file:
        file.attrs.modify("complete", np.array([0]))
    assert main(["plot", str(tmp_path / "dt0.01.h5")]) == 0
    written = capsys.readouterr().out.split()
    assert written and all(Path(name).name.startswith("dt0.01_") for name in written)
    assert main(["info", str(tmp_path / "dt0.01.h5")]) == 0
    shown = capsys.readouterr()
    assert "NOT COMPLETE" in shown.out
    assert shown.err.startswith("wflow: warning: ") and shown.err.count("\n") == 1


@pytest.mark.parametrize("command", ["info", "plot", "verify"])
def test_missing_and_foreign_files_are_a_message_and_status_2(tmp_path, command, capsys):
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    for path in (tmp_path / "absent.h5", text, tmp_path):
        assert main([command, str(path)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("wflow: error: ") and str(path) in err and "Traceback" not in err


def test_no_command_is_the_help_and_status_2(capsys):
    assert main([]) == 2
    out, said = capsys.readouterr()
    assert not out and said.startswith("usage: wflow") and "Write one page of HTML" in said
    assert "Missing subcommand" not in said


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("dt is -1"), 2, "wflow: error: dt is -1"),
        (RunFileError("run.h5 is cut"), 2, "wflow: error: run.h5 is cut"),
        (Interrupted("stopped", signal.SIGTERM), 128 + signal.SIGTERM, "wflow: stopped"),
        (Interrupted("stopped"), 130, "wflow: stopped"), (MemoryError(), 2, "memory"),
        (KeyboardInterrupt(), 130, "wflow: interrupted"),
        (PermissionError(13, "Permission denied", "a.png"), 2, "a.png: Permission denied"),
    ],
)  # fmt: skip
def test_guard_turns_errors_into_message_and_status(error, status, message, capsys):
    assert guarded(Mock(side_effect=error)) == status
    assert message in capsys.readouterr().err


def test_guard_passes_the_status_on_and_keeps_the_traceback_of_a_fault():
    assert guarded(lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: 1 // 0)


def child(code: str) -> subprocess.Popen:
    code = f"import sys\nfrom wflow.cli import guarded\n{code}\nsys.exit(guarded(main))"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], env=env, **pipes)


def test_closed_pipe_ends_quietly():
    process = child("def main():\n    for _ in range(100000): print('line')\n    return 0\n")
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


def test_no_text_of_a_file_steers_the_terminal(runs, tmp_path, capsys):
    evil = spoiled(runs["bare"], tmp_path, escapes)
    evil = evil.rename(tmp_path / f"run{STEERING}\nforged.h5")
    for command in ("info", "verify", "report", "cite"):
        assert main([command, str(evil)]) in (0, 1)
        said = capsys.readouterr()
        assert not steers(said.out + said.err) and "\nforged" not in said.out + said.err
        if command == "info":
            assert all(line.startswith("  ") for line in said.out.splitlines()[1:])
            assert "\nstatus" not in said.out
    page = (tmp_path / f"run{STEERING}\nforged.html").read_text(encoding="utf-8")
    assert not steers(page[: page.index("<script")])
    with wflow.open(evil) as run:
        shown = [repr(run), str(run.wflow), run.wflow._repr_html_(), run._repr_html_()]
    assert not steers("".join(shown)) and "\nforged" not in shown[0] + shown[1]
    for words in (
        ["info", str(evil), "more"], ["info", f"-{STEERING}\nforged"], ["plot", STEERING],
        ["info", str(tmp_path / "no\nforged.h5")], ["study", "no\nforged"],
    ):  # fmt: skip
        try:
            assert main(words) == 2
        except SystemExit as stop:
            assert stop.code == 2
        said = capsys.readouterr().err
        assert said and not steers(said) and "\nforged" not in said


def test_commands_work_in_an_ascii_locale(runs, tmp_path):
    file = os.fsdecode(b"gr\xc3\xb6\xc3\x9fe.h5")
    shutil.copy(runs["bare"], tmp_path / file)
    code = f"import os\nfrom wflow.cli import main\nos.chdir({str(tmp_path)!r})\n"
    code += "(file,) = os.listdir()\n"
    code += (
        "for name in ('info', 'verify', 'report', 'cite'): assert main([name, file]) == 0, name\n"
    )
    code += "assert main(['study', 'list']) == 0"
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ascii_locale |= {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    said = python("-c", code, **ascii_locale).stdout
    assert r"gr\xf6\xdfe.h5" in said and said.isascii()
    assert "größe.h5" in (tmp_path / file).with_suffix(".html").read_text(encoding="utf-8")


def test_a_summary_is_refused_with_the_name_of_a_run_that_is_there(runs, tmp_path, capsys):
    with h5py.File(tmp_path / "summary.h5", "w") as file:
        file.attrs["schema"] = "wflow-study/1"
    assert main(["info", str(tmp_path / "summary.h5")]) == 2
    assert "run files" in capsys.readouterr().err
    shutil.copy(runs["bare"], tmp_path / "trial.h5")
    (tmp_path / "foreign.h5").write_text("mine")
    assert main(["info", str(tmp_path / "summary.h5")]) == 2
    assert str(tmp_path / "trial.h5") in capsys.readouterr().err


@pytest.mark.parametrize("words", [["info", ""], ["plot", "run.h5", "--out", ""]])
def test_an_empty_name_is_not_the_current_folder(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2 and "it is empty" in capsys.readouterr().err


def test_a_signal_outside_a_run_is_a_message_and_a_status():
    code = "def main():\n    print('begun', flush=True)\n    import time; time.sleep(60)\n"
    process = child(code)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert err == "wflow: SIGTERM ended the command; what it had written before is kept\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_a_second_signal_ends_a_command_that_does_not_heed_the_first():
    code = "import time\ndef main():\n    try:\n        print('begun', flush=True)\n"
    code += "        time.sleep(60)\n    finally:\n        print('first', flush=True)\n"
    process = child(code + "        time.sleep(60)\n")
    for word in ("begun\n", "first\n"):
        assert process.stdout.readline() == word
        process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    process.communicate()


def test_plot_replaces_no_foreign_file(runs, tmp_path, capsys, sketched):
    figure = tmp_path / "bare_energy_balance.pdf"
    figure.write_text("mine")
    command = ["plot", str(runs["bare"]), "--out", str(tmp_path)]
    assert main(command) == 2
    assert "was not written by wflow" in capsys.readouterr().err
    assert figure.read_text() == "mine"
    assert not list(tmp_path.glob(".*")), "a draft is left"
    figure.unlink()
    assert main(command) == 0 == main(command)  # its own figures are replaced


def test_plot_replaces_the_figures_of_an_early_version_beside_their_run(
    runs, tmp_path, capsys, sketched
):
    run, figure = tmp_path / "a.run.h5", tmp_path / "a.run_energy_balance.png"
    shutil.copy(runs["bare"], run)
    Figure().savefig(figure)
    assert main(["plot", str(run)]) == 0
    assert b"Software\0wflow" in figure.read_bytes()
    Figure().savefig(figure)
    (tmp_path / "out").mkdir()
    figure.rename(tmp_path / "out" / figure.name)  # nothing there says what it is
    capsys.readouterr()
    assert main(["plot", str(run), "--out", str(tmp_path / "out")]) == 2
    assert str(tmp_path / "out" / figure.name) in capsys.readouterr().err
