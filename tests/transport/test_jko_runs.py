"""Run files of minimizing movements: resume, refusal of other settings, verification, report."""

import re
import signal
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr
from run_layouts import same_bits, spoiled
from test_jko import Along

import wflow
from wflow import heads, jko
from wflow.cli import main

X0 = wflow.tokens.uniform(6, 3, seed=1)
OU = heads.OrnsteinUhlenbeck(np.eye(3))
TURNING = heads.Oscillating(3)


def tilted(strength: float) -> Along:
    return Along(np.eye(3)[0], strength)


def movements(law: heads.HeadLaw = OU, **how: Any) -> xr.Dataset:
    options: dict[str, Any] = {"heads": 2, "t_final": 0.3, "tau": 0.05, "seed": 3} | how
    return jko.minimizing_movements(X0, law, **options)


CASES: dict[str, dict[str, Any]] = {
    "noisy heads": {"metric": "weighted", "dt": 0.025, "path": 2},
    "adaptive heads": {"law": TURNING, "scheme": "dopri5"},
    "heads of several stages": {"law": TURNING, "scheme": "rk4", "direction": "ascent"},
    "heads at rest": {"law": heads.Frozen(), "metric": tilted(2.0)},
}


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_resumes_to_the_bit_and_verifies(case, tmp_path, monkeypatch) -> None:
    out, options = tmp_path / "run.h5", CASES[case]
    solve, calls = jko.StepProblem.solve, iter(range(100))

    def interrupted(problem, *args, **how):
        if next(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return solve(problem, *args, **how)

    with monkeypatch.context() as patch, pytest.raises(wflow.Interrupted, match="resume"):
        patch.setattr(jko.StepProblem, "solve", interrupted)
        movements(out=out, **options)
    with pytest.warns(UserWarning, match="not complete"), wflow.open(out) as cut:
        assert cut.sizes["time"] == 3 and not cut.attrs["complete"]
    with movements(out=out, if_exists="resume", **options) as found:
        same_bits(found, movements(**options))
        assert found.attrs["gradient_flow"]
    assert wflow.verify(out).passed and [file.name for file in tmp_path.iterdir()] == ["run.h5"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tau": 0.025}, "tau"),
        ({"metric": "weighted"}, "metric"),
        ({"metric": tilted(3.0)}, "metric"),
        ({"law": heads.OrnsteinUhlenbeck(2 * np.eye(3))}, "law.mean"),
        ({"heads": np.stack([np.eye(3)] * 2)}, "heads"),
        ({"max_iterations": 7}, "max_iterations"),
    ],
)
def test_other_settings_are_refused(change, named, tmp_path) -> None:
    out = tmp_path / "run.h5"
    base = {"metric": tilted(2.0)} if isinstance(change.get("metric"), Along) else {}
    movements(out=out, **base).close()
    for later in (change, {"t_final": 0.4} | change):
        with pytest.raises(wflow.InputError, match=re.escape(named)):
            movements(out=out, if_exists="resume", **base | later)
    with pytest.raises(wflow.RunFileError, match="if_exists"):
        movements(out=out, **base)


def test_a_step_that_fails_leaves_what_was_recorded(tmp_path) -> None:
    grow = heads.HeadLaw(lambda D, t: 1e3 * D)
    with pytest.raises(wflow.InputError, match="scale the heads"):
        movements(law=grow, out=tmp_path / "run.h5")
    with pytest.warns(UserWarning), wflow.open(tmp_path / "run.h5") as cut:
        assert cut.sizes["time"] >= 1


def test_info_and_report_describe_the_run(tmp_path, capsys) -> None:
    out = tmp_path / "run.h5"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two iterations are not enough
        movements(out=out, metric=tilted(2.0), max_iterations=2).close()
    assert main(["info", str(out)]) == 0
    text = capsys.readouterr().out
    assert "custom Along" in text and "6 steps" in text and "minimizing movements" in text
    page = wflow.report(out).read_text("utf-8")
    assert "Energy and distances" in page and "Tokens" in page and "wflow rerun" not in page
    with wflow.open(out) as run:
        assert run["converged"].dtype == bool
        assert "metric Along" in repr(run.wflow) and "energy at the end" in repr(run.wflow)
    with xr.open_dataset(out, engine="h5netcdf") as elsewhere:
        assert not elsewhere["converged"].values[1] and elsewhere["converged"].dtype == bool
    with pytest.raises(wflow.RunFileError, match="minimizing_movements"):
        wflow.rerun(out)
    assert main(["plot", str(out)]) == 2 and "wflow.report" in capsys.readouterr().err
    for kind in (None, "tokens", "speed"):
        with wflow.open(out) as run, pytest.raises(wflow.InputError):
            run.wflow.plot(kind)


def add(name: str, at: Any, value: float):
    def act(file):
        file[name][at] += value

    return act


def config(old: str, new: str):
    def act(file):
        assert old in file.attrs["config"]
        file.attrs["config"] = file.attrs["config"].replace(old, new)

    return act


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run.h5"
    movements(out=out).close()
    return out


@pytest.mark.parametrize(
    ("act", "failed"),
    [
        (add("energy", 2, 1e-6), {"energies", "inequality_gap"}),
        (add("energy_before", 2, 1e-6), {"energies", "inequality_gap"}),
        (add("distance_sq", 2, 1e-7), {"distances", "inequality_gap"}),
        (add("inequality_gap", 2, 1e-6), {"inequality_gap"}),
        (add("tokens", (2, 0), 1e-3), {"tokens", "energies", "distances"}),
        (add("initial_heads", 0, 1e-3), {"the initial tokens and heads"}),
        (config('"tau": 0.05', '"tau": 0.06'), {"the configuration", "inequality_gap"}),
        (config('"rate": 1.0', '"rate": 1.1'), {"energies"}),
        (config('"metric": "w2"', '"metric": "weighted"'), {"distances"}),
        (config('"seed": 3', '"seed": 5'), {"the configuration", "the initial", "energies"}),
    ],
)
def test_a_changed_file_fails(act, failed, whole, tmp_path) -> None:
    checks = wflow.verify(spoiled(whole, tmp_path, act)).checks
    names = [check.name for check in checks if check.passed is False]
    assert all(any(name.startswith(start) for name in names) for start in failed), names


def test_files_that_lack_a_variable_or_have_another_configuration_are_refused(whole, tmp_path):
    for act in (lambda file: file.pop("recouplings"), config('"tau": 0.05', '"dtau": 0.05')):
        with pytest.raises(wflow.RunFileError):
            wflow.open(spoiled(whole, tmp_path, act))
    act = config('"metric":', '"metric_":')
    assert not wflow.verify(spoiled(whole, tmp_path, act)).passed
    assert not wflow.verify(movements().drop_vars("distance_sq")).passed
    (tmp_path / "cut.h5").write_bytes(whole.read_bytes()[:-600])
    with pytest.raises(wflow.RunFileError):
        wflow.open(tmp_path / "cut.h5")


def test_a_run_in_memory_verifies() -> None:
    for options in ({}, {"heads": np.stack([np.eye(3)] * 2)}, {"metric": tilted(1.0)}):
        assert wflow.verify(movements(**options)).passed
