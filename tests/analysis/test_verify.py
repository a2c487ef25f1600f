"""`wflow.verify`: changed runs fail and unchanged ones pass, on runs of the solver with noise."""

from pathlib import Path

import numpy as np
import pytest
from run_layouts import spoiled

import wflow
from wflow.analysis.verify import verify
from wflow.cli import main

BALANCE = "the energy balance closes"
ORDER = "the residual falls at the order of the scheme"
SUMS = "running integrals are the sums of their rates"


def solved(path: Path, *, law=None, n: int = 16, **options) -> Path:
    x0 = wflow.tokens.cross_polytope(n=n, d=3, spread=0.05, seed=42)
    law = wflow.heads.OrnsteinUhlenbeck(np.eye(3)) if law is None else law
    shared = {
        "heads": 3, "t_final": 4.0, "dt": 1e-2, "save": wflow.SaveAt(every=5),
        "compute": wflow.Compute(threads=1),
    }  # fmt: skip
    wflow.solve(x0, law, out=path, **(shared | options)).close()
    return path


@pytest.fixture(scope="module")
def ou(tmp_path_factory) -> Path:
    return solved(tmp_path_factory.mktemp("ou") / "ou.h5", paths=4)


def scaled(name: str, factor: float, sign: float):
    """Multiply a running integral and hide it in the residuals, so that the columns agree."""

    def act(file):
        change = (factor - 1) * file[name][:]
        file[name][:] += change
        file["edi_residual"][:] += sign * change
        if name != "dissipated":
            file["edi_residual_upper_gradient"][:] += sign * change

    return act


def found(path: Path, **options) -> dict:
    return {check.name: check for check in verify(path, **options).checks}


@pytest.mark.parametrize(
    ("name", "factor", "sign"),
    [("dissipated", 0.8, 1.0), ("dissipated", 1.2, 1.0), ("work_weights", 0.8, -1.0),
     ("work_ito", 1.1, -1.0)],
)  # fmt: skip
def test_a_wrong_integral_fails_though_the_columns_agree(ou, tmp_path, name, factor, sign):
    assert found(spoiled(ou, tmp_path, scaled(name, factor, sign)))[SUMS].passed is False


TABLE = np.stack([np.eye(3), 2 * np.eye(3)])[:, None]


def jump_twice(self, D, t, dt, generator):
    return (2 - t) * np.eye(3) if round((t + dt) / dt) % 50 == 0 else None


Jumping = type("Jumping", (wflow.heads.HeadLaw,), {"jump": jump_twice})


@pytest.mark.parametrize(
    "law",
    [Jumping(), wflow.heads.Schedule([0.0, 0.4, 0.8], [*TABLE, TABLE[0]], "constant")],
    ids=["custom", "schedule"],
)
def test_energy_of_jumps_is_not_missed_in_the_rates(tmp_path, law):
    heads = None if law.initial() else TABLE[0]
    path = solved(tmp_path / "run.h5", law=law, heads=heads, t_final=1.0, save=wflow.SaveAt())
    with wflow.open(path) as run:
        assert np.abs(run["work_weights"]).max() > 0.1
    assert verify(path).passed


def test_wrong_work_of_a_schedule_that_does_not_jump_fails(tmp_path):
    law = wflow.heads.Schedule([0.0, 1.0], TABLE, "linear")
    path = solved(tmp_path / "run.h5", law=law, heads=None, t_final=1.0, save=wflow.SaveAt())
    assert verify(path).passed
    wrong = spoiled(path, tmp_path, scaled("work_weights", 0.8, -1.0))
    assert found(wrong)[SUMS].passed is False


def test_balance_without_the_dissipation_fails_where_drift_and_ito_nearly_cancel(ou, tmp_path):
    checks = found(spoiled(ou, tmp_path, scaled("dissipated", 0.0, 1.0)))
    assert checks[BALANCE].passed is False, str(checks[BALANCE])
    assert checks[SUMS].passed is False


def test_energy_turned_over_does_not_count_what_drift_and_ito_cancel(ou, tmp_path):
    def inflate(file):  # as a longer run would: both grow, their sum stays
        ramp = 1e3 * file["time"][:]
        file["work_weights"][:] -= ramp
        file["work_ito"][:] += ramp

    limit = found(ou)[BALANCE].limit
    assert found(spoiled(ou, tmp_path, inflate))[BALANCE].limit == pytest.approx(limit, rel=1e-6)


@pytest.mark.parametrize(
    ("heads", "paths", "every"), [(1, 1, 1), (1, 3, 40), (1, 1, 40), (8, 1, 5), (8, 1, 40)]
)
def test_honest_runs_with_noise_pass(tmp_path, heads, paths, every):
    options = {"heads": heads, "paths": paths, "save": wflow.SaveAt(every=every), "seed": 5}
    report = verify(solved(tmp_path / "run.h5", **options))
    assert report.passed, str(report)


@pytest.mark.parametrize("scheme", ["euler", "heun", "rk4"])
def test_honest_runs_of_every_scheme_pass_with_few_records(tmp_path, scheme):
    law = wflow.heads.Oscillating(3, phases="spread")
    report = verify(solved(tmp_path / "run.h5", law=law, scheme=scheme, save=wflow.SaveAt(every=8)))
    assert report.passed, str(report)
    assert {check.name: check.passed for check in report.checks}[SUMS] is True


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("euler", {}), ("heun", {}), ("rk4", {}), ("euler", {"kappa": 0.05})]
    + [(scheme, {"law": wflow.heads.OrnsteinUhlenbeck(np.eye(3))}) for scheme in ("euler", "sra1")],
)
def test_the_residual_falls_at_the_order_of_the_scheme(tmp_path, scheme, options):
    given = {"law": wflow.heads.Oscillating(3, phases="spread"), "t_final": 0.1, "paths": 2}
    check = found(solved(tmp_path / "run.h5", scheme=scheme, **(given | options)))[ORDER]
    assert check.passed and abs(check.value) < 0.3, str(check)


@wflow.heads.register
class Singular(wflow.heads.HeadLaw):
    """Heads whose drift is infinite within the first step."""

    def drift(self, D, t):
        return np.broadcast_to(0.1 * np.eye(3) * abs(t - 1e-2 / 3) ** -0.9, D.shape)


def test_a_residual_that_falls_too_slowly_fails(tmp_path):
    check = found(solved(tmp_path / "run.h5", law=Singular(), scheme="heun", t_final=0.1))[ORDER]
    assert check.passed is False, str(check)


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "dopri5"},
        {"law": wflow.heads.Schedule([0, 0.005, 1], TABLE[[0, 0, 1]], "linear"), "heads": None},
        {"law": Jumping()},
    ],
    ids=["adaptive", "bend", "jumps"],
)
def test_the_order_is_not_asked_of_steps_that_have_none(tmp_path, options):
    options = {"law": wflow.heads.Frozen(), "t_final": 0.1} | options
    report = verify(solved(tmp_path / "run.h5", **options))
    assert report.passed and ORDER not in {c.name for c in report.checks if c.passed is not None}


def test_one_path_says_what_its_limit_is_made_of(tmp_path):
    note = found(solved(tmp_path / "run.h5", paths=1))[BALANCE].note
    assert "standard error" not in note and "noise" in note


def test_too_few_records_to_sum_are_skipped_and_said(tmp_path):
    check = found(solved(tmp_path / "run.h5", t_final=0.4, save=wflow.SaveAt(every=20)))[SUMS]
    assert check.passed is None and "record" in check.note


def test_part_of_a_budget_fails_and_names_what_is_missing(ou, tmp_path, capsys):
    def drop(file):
        del file["edi_defect"], file["work_ito"]

    path = spoiled(ou, tmp_path, drop)
    check = found(path)["the budget is complete"]
    assert check.passed is False and "edi_defect" in check.note and "work_ito" in check.note
    assert [main([command, str(path)]) for command in ("verify", "info")] == [1, 0]
    assert main(["plot", str(path), "--out", str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert "energy balance" in err and "work_ito" in err


def test_infinite_energies_are_not_called_finite(ou, tmp_path):
    def grow(file):
        for name in ("energy", "edi_residual", "edi_residual_upper_gradient"):
            file[name][1, 10:30] = np.inf

    report = verify(spoiled(ou, tmp_path, grow))
    assert report.passed, str(report)
    (check,) = (check for check in report.checks if "inf" in check.note)
    assert "finite" not in check.name


def in_memory(**options):
    x0 = wflow.tokens.cross_polytope(n=8, d=3, spread=0.05, seed=42)
    given = {"heads": 2, "t_final": 0.5, "dt": 1e-2, "compute": wflow.Compute(threads=1)}
    return wflow.solve(x0, wflow.heads.OrnsteinUhlenbeck(np.eye(3)), **(given | options))


def test_a_run_in_memory_passes_and_the_report_says_that_it_has_no_digests():
    report = verify(in_memory(save=wflow.SaveAt(heads=True)))
    checks = {check.name: check for check in report.checks}
    assert report.passed and report.path == "run in memory"
    digests = checks["every byte is as written"]
    assert digests.passed is None and "a Dataset has no digests" in digests.note
    assert checks["the first recorded step follows from the configuration"].passed
    assert checks["energy follows from the stored tokens and heads"].passed


def test_a_changed_run_in_memory_fails():
    run = in_memory()
    run["energy"][:, -1] += 1.0
    report = verify(run)
    assert not report.passed and "FAILED" in repr(report) and "edi_residual" in repr(report)


def test_a_run_in_memory_without_an_energy_is_checked_as_far_as_it_goes():
    report = verify(in_memory(save=wflow.SaveAt(budget=False)))
    assert report.passed and repr(report).startswith("Report('run in memory': passed, ")
