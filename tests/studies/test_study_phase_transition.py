"""The study of the phase transition: what it decides, and what it refuses."""

import numpy as np
import pytest
import xarray as xr
from scripts import script

import wflow
from wflow import Compute

SMALL = ["--preset", "smoke", "--n", "20", "--betas", "1", "3", "--threads", "1"]


def test_the_study_finds_where_the_transition_jumps(run_study, sketched) -> None:
    done = run_study("phase_transition", *SMALL)
    table, findings = done.table, done.findings
    assert findings[1]["found"] == "softmax: no folds; unnormalised: folds for $\\beta = 3$"
    assert r"for $\beta = 1, 3$:" in findings[2]["prediction"]
    # Twenty tokens do not resolve their critical diffusion, nor do 42 cells; a jump they show.
    assert done.verdicts()[1:] == [
        "confirmed", "confirmed", "inconclusive", "confirmed in part", "confirmed",
        "confirmed in part", "inconclusive",
    ]  # fmt: skip
    fold = table["fold"].sel(flow="unnormalised", beta=3).item()
    assert fold == pytest.approx(1.1069, abs=1e-3)
    assert np.allclose(table["critical_equation"], 1, atol=2e-3)
    assert (table["critical_error"] > 0).all()
    # Far above the critical diffusion order is gone, below it there is some, from either start.
    order = table["equation"]
    assert (order.sel(ratio=2.0) < 0.05).all() and (order.sel(ratio=0.8) > 0.3).all()
    with wflow.open(done.out / "equation_softmax_0.8_from_cluster.h5") as run:
        masses = run["areas"].values * run["density"].values[0, -1]
        last = np.linalg.norm(masses @ run["centres"].values)
    assert float(order.sel(flow="softmax", start="cluster", ratio=0.8)) == pytest.approx(last)
    assert "fold in units of kappa_c" in done.said
    assert done.drawn("branches", "hysteresis", "density")


def test_the_equation_loses_its_stability_on_the_circle_too(tmp_path, only_long) -> None:
    study, files = script("phase_transition"), {}
    flags = study.PhaseTransition(d=2, cells=16)
    for name, task in study.growth_runs(flags).items():
        files[name] = tmp_path / f"{name}.h5"
        wflow.meanfield.solve(**task, compute=Compute(threads=1), out=files[name]).close()
    found = study.criticals(flags, files)
    assert (abs(found["critical_equation"] - 1) < found["critical_error"] + 0.01).all()


@pytest.mark.parametrize(
    ("zero", "error", "verdict"),
    [(1.001, 0.002, "confirmed"), (1.001, 0.02, "inconclusive"), (1.05, 0.001, "not confirmed"),
     (np.nan, np.nan, "inconclusive")],
)  # fmt: skip
def test_a_mesh_that_is_too_coarse_decides_nothing(zero, error, verdict) -> None:
    study = script("phase_transition")
    table = xr.Dataset(
        {"critical_equation": ("flow", [zero, zero]), "critical_error": ("flow", [error, error])},
        {"flow": list(study.FLOWS)},
    )
    assert study.of_growth(table).verdict == verdict


def _table(order, theory) -> xr.Dataset:
    """Orders (flow, start) at one diffusion between kappa_c and the fold, and far above it."""
    square = np.zeros((2, 2, 2, 2))
    square[..., 0, :] = np.square(order)[..., None]
    square[..., 1, :] = 1 / (1000 * (2.0 - 1))
    known = np.zeros((2, 2, 2))
    known[..., 0] = theory
    return xr.Dataset(
        {
            "order_sq": (("flow", "start", "ratio", "path"), square),
            "theory": (("flow", "start", "ratio"), known),
            "equation": (("flow", "start", "ratio"), np.full((2, 2, 2), np.nan)),
        },
        {"flow": ["softmax", "unnormalised"], "start": ["uniform", "cluster"], "ratio": [1.2, 2.0]},
    )


def test_hysteresis_that_is_not_there_is_not_confirmed() -> None:
    study = script("phase_transition")
    flags, theory = study.PhaseTransition(), [[0.0, 0.0], [0.0, 0.8]]
    seen = [f.verdict for f in study.of_runs(flags, _table(theory, theory))]
    assert seen == ["confirmed", "confirmed", "confirmed"]
    lost = [f.verdict for f in study.of_runs(flags, _table([[0.0, 0.0], [0.0, 0.1]], theory))]
    assert lost == ["confirmed", "confirmed in part", "confirmed in part"]


def test_an_equation_that_has_not_come_to_rest_decides_nothing() -> None:
    study = script("phase_transition")
    flags, theory = study.PhaseTransition(), [[0.0, 0.0], [0.0, 0.8]]
    table = _table(theory, theory)
    still = xr.zeros_like(table["theory"])
    table = table.assign(equation=table["theory"], equation_change=still)
    assert study.of_runs(flags, table)[3].verdict == "confirmed"
    moving = still.copy()
    moving[0, 0, 0] = 0.1
    table = table.assign(equation_change=moving)
    assert study.of_runs(flags, table)[3].verdict == "inconclusive"
    off = table["theory"].copy()
    off[1, 1, 0] = 0.5
    wrong = study.of_runs(flags, table.assign(equation=off))[3]
    assert wrong.verdict == "confirmed in part"
