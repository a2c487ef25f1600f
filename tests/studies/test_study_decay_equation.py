"""The study of decay at n = infinity: what it compares, and what it decides."""

import numpy as np
import pytest
import xarray as xr
from scripts import script

import wflow
from wflow import InputError

SMALL = ["--preset", "smoke", "--d", "3", "--threads", "1"]


def test_tokens_and_densities_move_under_the_same_heads(run_study, sketched) -> None:
    done = run_study("decay_equation", *SMALL)
    assert "Pearson" in done.said
    with (
        wflow.open(done.out / "d3_characteristics_H00004.h5") as limit,
        wflow.open(done.out / "d3_cells_H00004.h5") as cells,
        wflow.open(done.out / "d3_n12_H00004.h5") as tokens,
    ):
        for other in (cells, tokens):
            assert np.array_equal(limit["initial_heads"], other["initial_heads"])
        # Two methods for one equation, on 40 points and on 42 cells.
        assert np.allclose(cells["energy"], limit["energy"], rtol=0.05)
        late = limit["time"].values >= 0.1
        gradient = limit["upper_gradient_sq"].values[:, late].mean(axis=1)
    found = done.table["gradient"].sel(d=3, source="characteristics", heads=4)
    assert np.allclose(found, gradient)
    # Heads that were left alone for a fifth of their time have no law yet, and ten points are few.
    assert done.verdicts() == [
        "inconclusive", "confirmed", "inconclusive", "inconclusive", "inconclusive",
        "not confirmed", "confirmed",
    ]  # fmt: skip
    # A second call with --resume computes nothing again.
    first = done.out / "d3_characteristics_H00001.h5"
    before = first.stat().st_mtime_ns
    run_study("decay_equation", *SMALL, "--resume")
    assert first.stat().st_mtime_ns == before


def test_a_step_above_the_bound_of_the_cells_is_refused(run_study) -> None:
    with pytest.raises(InputError, match="above the bound"):
        run_study("decay_equation", *SMALL, "--dt", "0.2")


NAMES = (
    "characteristics", "fewer characteristics", "cells", "finer cells", "n = 50", "n = 200",
    "n = 200 in antipodal pairs",
)  # fmt: skip
GAPS = dict(zip(NAMES, (0, 0.001, 0.2, 0.05, 0.2, 0.05, 0.01), strict=True))


def _table(exponents: dict[str, float], gaps: dict[str, float], noise: float = 0.0) -> xr.Dataset:
    """Return G^2 of six paths, times a noise that all sources share and one of their own."""
    heads, rng = np.array([1.0, 2, 4, 8]), np.random.default_rng(0)
    paths = np.exp(0.02 * rng.standard_normal((4, 6)))
    values = np.array([
        (1 + gaps[name]) * heads[:, None] ** power * paths for name, power in exponents.items()
    ])  # fmt: skip
    values *= rng.lognormal(0, noise, values.shape)
    values[NAMES.index("finer cells"), :, 3:] = np.nan  # three paths
    return xr.Dataset(
        {"gradient": (("source", "heads", "path"), values)},
        {"source": list(exponents), "heads": heads},
    ).expand_dims(d=[2])


def test_what_is_not_the_law_of_the_heads_is_not_confirmed() -> None:
    study = script("decay_equation")
    flags = study.DecayEquation(d=(2,), n=(50, 200))

    def verdicts(gaps: dict[str, float] = GAPS, **other: float) -> list[str]:
        powers = dict.fromkeys(NAMES, -1.0) | {k.replace("_", " "): v for k, v in other.items()}
        return [f.verdict for f in study.findings(flags, _table(powers, gaps))]

    assert verdicts() == ["confirmed"] * 7
    assert verdicts(**{"n = 50": -0.7})[2] == "confirmed in part"
    assert verdicts(GAPS | {"n = 200": 0.4})[3] == "not confirmed"
    paired = GAPS | {"n = 200 in antipodal pairs": 0.3}
    assert verdicts(paired)[4] == "not confirmed"
    assert verdicts(fewer_characteristics=-0.9)[5] == "not confirmed"
    assert verdicts(GAPS | {"finer cells": 0.3})[6] == "not confirmed"
    assert verdicts(GAPS | {"cells": 0.001, "finer cells": 0.002})[6] == "confirmed"  # both close
    assert verdicts(finer_cells=-0.8)[6] == "confirmed in part"


def test_noise_confirms_nothing() -> None:
    study = script("decay_equation")
    flags = study.DecayEquation(d=(2,), n=(50, 200))
    table = _table(dict.fromkeys(NAMES, -1.0), GAPS | {"n = 50": 0.02, "n = 200": 0.01}, noise=0.5)
    alone, vanishes, paired, points, cells = study.findings(flags, table)[2:]
    for finding in (alone, vanishes, paired, cells):
        assert finding.verdict == "inconclusive"
    assert points.verdict == "not confirmed"  # some G^2 is far off, whatever the interval
