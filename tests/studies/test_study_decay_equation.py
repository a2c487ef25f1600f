"""The study of decay at n = infinity: what it compares, and what it decides."""

import json

import numpy as np
import pytest
import xarray as xr
from scripts import call, script

import wflow
from wflow import InputError

SMALL = ["--preset", "smoke", "--threads", "1"]


def test_tokens_and_densities_move_under_the_same_heads(
    tmp_path, monkeypatch, capsys, sketched_study
) -> None:
    small = [*SMALL, "--d", "3"]
    assert call("decay_equation", monkeypatch, *small, "--out", str(tmp_path)) == 0
    assert "Pearson" in capsys.readouterr().out
    with (
        wflow.open(tmp_path / "d3_equation_H00004.h5") as limit,
        wflow.open(tmp_path / "d3_n12_H00004.h5") as tokens,
    ):
        assert np.array_equal(limit["initial_heads"], tokens["initial_heads"])
        late = limit["time"].values >= 0.1
        gradient = limit["upper_gradient_sq"].values[:, late].mean(axis=1)
    table = xr.load_dataset(tmp_path / "summary.h5", engine="h5netcdf")
    assert np.allclose(table["gradient"].sel(d=3, source="equation", heads=4), gradient)
    findings = json.loads((tmp_path / "summary.json").read_text())["findings"]
    # Heads that were left alone for a fifth of their time have no law yet.
    assert [f["verdict"] for f in findings[:3]] == ["not confirmed", "confirmed", "not confirmed"]
    assert findings[4]["verdict"] == "not confirmed"
    # A second call with --resume computes nothing again.
    before = (tmp_path / "d3_equation_H00001.h5").stat().st_mtime_ns
    assert call("decay_equation", monkeypatch, *small, "--resume", "--out", str(tmp_path)) == 0
    assert (tmp_path / "d3_equation_H00001.h5").stat().st_mtime_ns == before


def _table(exponents: dict[str, float], gaps: dict[str, float]) -> xr.Dataset:
    heads, rng = np.array([1.0, 2, 4, 8]), np.random.default_rng(0)
    noise = np.exp(0.02 * rng.standard_normal((4, 6)))
    values = [
        (1 + gaps[name]) * heads[:, None] ** power * noise for name, power in exponents.items()
    ]
    values[1][:, 3:] = np.nan  # finer cells: three paths
    return xr.Dataset(
        {"gradient": (("source", "heads", "path"), values)},
        {"source": list(exponents), "heads": heads},
    ).expand_dims(d=[2])


def test_what_is_not_the_law_of_the_heads_is_not_confirmed() -> None:
    study = script("decay_equation")
    flags = study.DecayEquation(d=(2,), n=(50, 200))
    names = ("equation", "finer cells", "n = 50", "n = 200")
    gaps = dict(zip(names, (0, 0.001, 0.2, 0.05), strict=True))
    fine = study.findings(flags, _table(dict.fromkeys(names, -1.0), gaps))
    assert [f.verdict for f in fine] == ["confirmed"] * 5
    other = dict.fromkeys(names, -1.0) | {"n = 50": -0.7}
    assert study.findings(flags, _table(other, gaps))[2].verdict == "confirmed in part"
    grows = gaps | {"n = 200": 0.4}
    fine = study.findings(flags, _table(dict.fromkeys(names, -1.0), grows))
    assert fine[3].verdict == "not confirmed"
    coarse = study.findings(flags, _table(dict.fromkeys(names, -1.0) | {"finer cells": -0.9}, gaps))
    assert coarse[4].verdict == "not confirmed"


def test_noise_confirms_nothing() -> None:
    study = script("decay_equation")
    flags = study.DecayEquation(d=(2,), n=(50, 200))
    names = ("equation", "finer cells", "n = 50", "n = 200")
    table = _table(
        dict.fromkeys(names, -1.0), dict(zip(names, (0, 0.001, 0.02, 0.01), strict=True))
    )
    rough = np.random.default_rng(1).lognormal(0, 0.5, table["gradient"].shape)
    alone, vanishes, cells = study.findings(
        flags, table.assign(gradient=table["gradient"] * rough)
    )[2:]
    assert alone.verdict == vanishes.verdict == "inconclusive"
    assert cells.verdict == "not confirmed"  # G^2 of the cells is far off, whatever the interval


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--d", "4"], "where there are meshes"),
        (["--n", "50", "20"], "expected rising numbers"),
        (["--n", "50"], "compared with a smaller n"),
        (["--finer-paths", "17"], "--finer-paths is 17"),
        ([*SMALL, "--dt", "0.2"], "above the bound"),
    ],
)
def test_flags_that_cannot_be_used_are_refused(tmp_path, monkeypatch, flags, message) -> None:
    with pytest.raises(InputError, match=message):
        call("decay_equation", monkeypatch, *flags, "--out", str(tmp_path / "new"))
