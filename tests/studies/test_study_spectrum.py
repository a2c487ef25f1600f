"""The study of clusters and the spectrum of the averaged head, and the theory that it tests."""

import numpy as np
import pytest
import xarray as xr
from scripts import script
from twin import symmetric, unit

import wflow
from wflow.heads import OrnsteinUhlenbeck

RNG = np.random.default_rng(0)
D = symmetric(RNG, 5, 4, 4)
C = unit(RNG, 4)


def tangent(c, v):
    return v - (c @ v) * c


@pytest.mark.parametrize(("direction", "sign"), [("ascent", 1.0), ("descent", -1.0)])
def test_one_cluster_sees_the_averaged_head_and_two_a_weighted_average(direction, sign) -> None:
    one = wflow.velocity(np.tile(C, (6, 1)), D, direction=direction)
    np.testing.assert_allclose(one, np.tile(sign * tangent(C, D.mean(0) @ C), (6, 1)), atol=1e-12)
    p, a = 2 / 3, np.einsum("a,hab,b->h", C, D, C)
    up, down = p * np.exp(a), (1 - p) * np.exp(-a)
    weighted = np.einsum("h,hab,b->a", (up - down) / (up + down), D, C) / len(D)
    two = wflow.velocity(np.array([C, C, -C]), D, direction=direction)
    np.testing.assert_allclose(two[0], sign * tangent(C, weighted), atol=1e-12)


def test_a_cluster_is_as_far_from_the_eigenvector_of_the_mean_as_the_theory_says() -> None:
    study = script("spectrum")
    flags = study.Spectrum()
    d, H, paths, times = 4, 8, 64, np.linspace(5, 20, 31)
    for law, rate in zip(("slow", "fast"), flags.rates, strict=True):
        mean = flags.mean(study.CASES["one"], d)
        moves = OrnsteinUhlenbeck(mean, rate, 2 * rate * flags.variance, exact=True)
        run = wflow.solve(
            np.tile(np.eye(d)[0], (2, 1)), moves, heads=[mean] * H, t_final=20.0, dt=0.02,
            paths=paths, direction="ascent",
            save=wflow.SaveAt(snapshots=times, paths=range(paths), budget=False),
        )  # fmt: skip
        off = 1 - run.tokens.values[:, :, 0, 0] ** 2  # (paths, times)
        assert off.mean() == pytest.approx(study.misalignment(flags, law, d, H), rel=0.15)


def test_clusters_are_found_largest_first() -> None:
    x = np.repeat(np.eye(3)[[2, 0]], [1, 3], axis=0)
    c, shares = script("spectrum").centres(x, 0.2)
    np.testing.assert_array_equal(c, np.eye(3)[[0, 2]])
    np.testing.assert_array_equal(shares, [0.75, 0.25])


def numbers(**changes) -> xr.Dataset:
    """Return a table in which everything is as the theory has it."""
    study = script("spectrum")
    flags, cases = study.Spectrum(), list(study.CASES)
    d, H = np.array(flags.dims), np.array(flags.heads)
    dims = ("case", "d", "heads", "start")
    shape = (len(cases), len(d), len(H), flags.starts)
    values = dict.fromkeys(study.NAMES, 1.0) | {"gap": 4.0, "angle": np.nan, "along": 0.01}
    table = xr.Dataset(
        {name: (dims, np.full(shape, value)) for name, value in values.items()},
        {"case": cases, "d": d, "heads": H},
    )
    noise = 1 + 0.02 * np.cos(np.arange(flags.starts))
    for law in ("one", "slow", "fast"):
        off = study.misalignment(flags, law, d[:, None], H)
        table["lasting"].loc[{"case": law}] = 1 - off[..., None] * noise
    table["count"].loc[{"case": "one", "d": [3, 4]}] = 2
    table["share"].loc[{"case": "one", "d": [3, 4]}] = 0.5
    table["lasting"].loc[{"case": "common"}] = 0.3 * noise
    for case, share in (("minus", 0.5), ("all, descent", 0.1)):
        table["count"].loc[{"case": case}] = 2
        table["share"].loc[{"case": case}] = share
    table["angle"].loc[{"case": "minus"}] = -1
    table["top"].loc[{"case": "all, descent"}] = -4
    table["count"].loc[{"case": "none", "start": [0, 1, 2]}] = 2
    table["share"].loc[{"case": "none", "start": [0, 1, 2]}] = 0.5
    table["present"].loc[{"case": "none", "start": [0, 1, 2]}] = 0.5
    table["angle"].loc[{"case": "none", "start": [0, 1, 2]}] = -1
    return table.assign(changes)


def verdicts(table: xr.Dataset) -> list[str]:
    study = script("spectrum")
    flags = study.Spectrum()
    found = [*study.of_clusters(flags, table), *study.of_motion(flags, table)]
    return [f.verdict for f in [*found, *study.of_pairs(flags, table)]]


def test_numbers_of_the_theory_confirm_it() -> None:
    assert verdicts(numbers()) == ["confirmed"] * 12


def test_numbers_against_the_theory_do_not() -> None:
    table = numbers()
    swapped = table["count"].where(table["case"] != "one", 3 - table["count"])
    wrong = table.assign(
        count=swapped.where(swapped["case"] != "minus, descent", 2).where(
            table["case"] != "all, descent", 1
        ),
        lasting=1 - 4 * (1 - table["lasting"]), along=1.0 + 0 * table["along"],
        weighted=0.5 * table["weighted"], plane=0.5 * table["plane"], last=0.5 * table["last"],
        present=xr.where(table["count"] == 2, 0.9, 0.2) + 0 * table["present"],
    )  # fmt: skip
    seen = verdicts(wrong)
    assert seen[:8] == ["not confirmed"] * 8 and seen[10:] == ["not confirmed"] * 2


def test_clusters_that_have_not_come_to_rest_decide_nothing() -> None:
    table = numbers()
    assert verdicts(table.assign(gap=0.01 * table["gap"]))[1] == "inconclusive"
    assert verdicts(table.assign(count=0 * table["count"] + 1))[10] == "inconclusive"


def test_the_study_runs_in_seconds(run_study, sketched) -> None:
    flags = ["--dims", "3", "--heads", "2", "--starts", "2", "--n", "8", "--t-final", "12",
             "--dt", "0.05", "--strength", "5", "--threads", "1"]  # fmt: skip
    done = run_study("spectrum", *flags)
    assert np.all(done.table["count"].sel(case="minus, descent") == 1)
    assert np.all(done.table["present"].sel(case="minus, descent") > 0.99)
    assert np.all(done.table["count"].sel(case="one") <= 2)
    assert np.all(done.table["count"].sel(case="all, descent") > 3)
    assert len(done.findings) == 12 and "eigenvector" in done.said
