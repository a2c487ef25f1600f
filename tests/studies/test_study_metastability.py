"""The study of metastability: the law of two clusters, and lifetimes of runs."""

import math

import numpy as np
import pytest
import xarray as xr
from scripts import script

import wflow
from wflow.heads import Frozen


@pytest.mark.parametrize("mass", [0.5, 0.25])
def test_two_clusters_close_at_the_speed_of_their_law(mass) -> None:
    parts = script("metastability")
    beta, angle = 3.0, 1.7
    x = np.repeat(parts.arc(angle, 3), [round(8 * mass), round(8 * (1 - mass))], axis=0)
    short = 1e-4
    run = wflow.solve(
        x, Frozen(), heads=beta * np.eye(3)[None], t_final=short / beta, dt=short / beta,
        direction="ascent", scheme="rk4",
    )  # fmt: skip
    first, last = run["tokens"].values[0, -1, [0, -1]]
    speed = (angle - math.acos(first @ last)) / short
    assert speed == pytest.approx(parts.closing_speed(angle, beta, mass), rel=1e-4)


def test_the_lifetime_grows_at_the_rate_of_its_angle() -> None:
    parts = script("metastability")
    times = np.array([beta * parts.lifetime(2.0, beta) for beta in (30.0, 31.0)])
    assert np.log(times[1] / times[0]) == pytest.approx(1 - math.cos(2.0), abs=2e-3)
    # Half of the energy has risen at the angle where the lifetime ends.
    end = parts.meeting_angle(5.0)
    assert math.exp(5 * (math.cos(end) - 1)) == pytest.approx(0.5)
    assert parts.lifetime(end / 2, 5.0) == 0.0


@pytest.mark.parametrize("angle", [1.0, 2.0])
def test_the_lifetime_is_that_of_the_theory_for_large_beta(angle) -> None:
    parts = script("metastability")
    beta, square = 80.0, math.sin(angle) ** 2
    first = math.exp(beta * (1 - math.cos(angle))) / (2 * beta * square)
    second = 1 + 2 * math.cos(angle) / (beta * square)
    assert parts.lifetime(angle, beta) / first == pytest.approx(
        second, abs=20 / (beta * square) ** 2
    )


def test_nearly_opposite_clusters_live_as_long_as_the_theory_says() -> None:
    parts, beta = script("metastability"), 10.0
    longer = parts.lifetime(math.pi - 1e-6, beta) - parts.lifetime(math.pi - 1e-4, beta)
    assert longer == pytest.approx(math.exp(2 * beta) / 2 * math.log(100), rel=1e-4)


def lifetimes(**changes) -> xr.Dataset:
    """Return a table in which everything is as the theory has it."""
    parts, start = script("metastability"), np.arange(6)
    betas, kappas = np.array([4.0, 6, 8, 10]), np.array([0.004, 0.002])
    known = np.array([parts.lifetime(2.0, beta) for beta in betas])
    one = np.exp(1.4 * betas)[:, None] * (1 + 0.1 * start)
    both = ("start_beta", "start")
    values = {
        "pair": ("beta", known), "pair_known": ("beta", known), "one": (both, one),
        "one_known": (both, one), "begun": (both, 0.1 * one), "spacing": ("start_beta", 0 * betas),
        "equation": (("kappa", "equation_beta"), known * np.array([[0.9], [0.95]])),
        "equation_known": ("equation_beta", known),
        "equation_spacing": ("equation_beta", 0.01 * known),
        "numerical_diffusion": (("kappa", "equation_beta"), np.full((2, 4), 1e-5)),
    }  # fmt: skip
    labels = {"beta": betas, "start_beta": betas, "equation_beta": betas, "kappa": kappas}
    return xr.Dataset(values, labels).assign(changes)


def verdicts(table: xr.Dataset) -> list[str]:
    study = script("metastability")
    flags = study.Metastability(betas=tuple(table["beta"].values))
    found = [*study.of_pairs(flags, table), *study.of_starts(table)]
    return [f.verdict for f in [*found, *study.of_equation(flags, table)]]


def test_lifetimes_of_the_theory_confirm_it() -> None:
    assert verdicts(lifetimes()) == ["confirmed"] * 9


@pytest.mark.filterwarnings("error")
def test_lifetimes_that_were_not_reached_decide_nothing() -> None:
    table = lifetimes()
    missing = {name: table[name] * np.nan for name in ("pair", "one", "one_known", "equation")}
    missing["numerical_diffusion"] = table["numerical_diffusion"] * np.nan
    assert verdicts(table.assign(missing)) == ["inconclusive"] * 9


def test_lifetimes_against_the_theory_are_not_confirmed() -> None:
    table = lifetimes()
    power = (table["start_beta"] ** 5 * (1 + 0.1 * table["start"])).transpose(*table["one"].dims)
    wrong = table.assign(
        pair=table["beta"] ** 2, one=power, one_known=2 * power,
        equation=table["equation"].isel(kappa=[1, 0]).assign_coords(kappa=table["kappa"])
        * np.exp(0.5 * table["equation_beta"]),
        numerical_diffusion=table["numerical_diffusion"] + 0.001,
    )  # fmt: skip
    seen = verdicts(wrong)
    assert seen[:6] == ["not confirmed"] * 6
    assert seen[7] == "not confirmed"


def test_lifetimes_within_the_spacing_of_the_records_are_the_same() -> None:
    table = lifetimes()
    close = table.assign(equation_spacing=table["equation_spacing"] * 10)
    assert verdicts(close)[8] == "inconclusive"


def test_a_level_is_crossed_where_values_stay_above_it() -> None:
    parts = script("metastability")
    times = np.arange(5.0)
    assert parts.crossing(times, np.array([0.0, 2, 0, 1, 2]), 0.5) == 2.5
    assert math.isnan(parts.crossing(times, np.zeros(5), 0.5))
    assert parts.crossing(times, np.ones(5), 0.5) == 0.0


def test_the_study_measures_the_lifetimes_of_the_law(run_study, sketched) -> None:
    done = run_study("metastability", "--preset", "smoke", "--threads", "1")
    assert np.allclose(done.table["pair"], done.table["pair_known"], rtol=0.01)
    assert np.isfinite(done.table["one"]).all()
    # Two starts say nothing of an exponential law, small betas nothing of long lifetimes, and 32
    # cells have too much diffusion of their own.
    assert done.verdicts()[:7] == [
        "confirmed", "confirmed", "inconclusive", "inconclusive", "confirmed", "not confirmed",
        "inconclusive",
    ]  # fmt: skip
    assert "two points" in done.said
