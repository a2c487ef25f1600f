"""The study of the formulas of the sparse transformer, small."""

import json

import xarray as xr
from scripts import VERDICTS, call, script

# Verdicts that do not depend on the size of grids and clouds.
EXPECTED = {
    "kernels": ["confirmed", "consistent", "confirmed"],
    "proximal_map": ["not confirmed", "confirmed", "not confirmed"],
    "inverse": ["not confirmed", "not confirmed", "confirmed"],
    "determinant": ["not confirmed"] * 2,
    "likelihood": ["consistent"],
    "families": [*["confirmed"] * 3, "not confirmed"],
    "convergence": ["confirmed in part", "consistent", "not confirmed"],
    "optimality": ["confirmed", "not confirmed", "confirmed"],
    "blow_up": ["not confirmed", "confirmed", "confirmed in part"],
    "supervised": ["not confirmed"],
}


def test_formulas_that_fail_are_told_from_those_that_hold(cases):
    study = script("rwpo_operator")
    for name in list(EXPECTED)[: cases(8, len(EXPECTED))]:
        part = study.PARTS[name](study.RwpoOperator.of("smoke"))
        assert [finding.verdict for finding in part.findings] == EXPECTED[name], name


def test_the_study_writes_tables_and_figures(tmp_path, monkeypatch, capsys, sketched, cases):
    every = cases(0, 1)
    parts = [] if every else ["--only", "convergence", "families", "supervised"]
    flags = ["--preset", "smoke", *parts, "--out", str(tmp_path)]
    call("rwpo_operator", monkeypatch, *flags)
    drawn = {"convergence", "operator", "layer"} if every else {"convergence"}
    assert {file.stem for file in tmp_path.glob("*.png")} == drawn
    with xr.open_dataset(tmp_path / "summary.h5", engine="h5netcdf") as table:
        final = table["kl"].isel(case=0, time=-1)
        assert (
            final.sel(curve="printed")
            < final.sel(curve="KL")
            <= 1.01 * final.sel(curve="corrected")
        )
    found = json.loads((tmp_path / "summary.json").read_text())["findings"]
    assert not found or all(one["verdict"] in VERDICTS for one in found)
    assert "Proposition 4, rho* = N(0, 1)" in capsys.readouterr().out
