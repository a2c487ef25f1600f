"""The study of particles against the mean-field equation."""

import math

import numpy as np
import pytest
import xarray as xr
from scripts import script

import wflow
from wflow import fits, meanfield, transport


def test_tokens_are_compared_with_the_density(run_study, sketched) -> None:
    done = run_study("mean_field_equation", "--preset", "smoke", "--threads", "1")
    table = done.table
    assert "error of the equation" in done.said
    with (
        wflow.open(done.out / "d2_equation.h5") as limit,
        wflow.open(done.out / "d2_n0000016.h5") as tokens,
    ):
        assert np.array_equal(limit["initial_heads"], tokens["initial_heads"])
        x, areas = tokens["tokens"].values[1, -1], limit["areas"].values
        mass = areas * limit["density"].values[0, -1]
        off = np.sum((x.mean(axis=0) - mass @ limit["centres"].values) ** 2)
        w2 = transport.density_distance(limit["density"].values[0, -1], x, meanfield.Circle(64))
    at = table.sel(d=2, n=16).isel(path=1)
    assert float(at["mean_sq"]) == pytest.approx(float(off), rel=1e-12)
    assert float(at["w2"]) == pytest.approx(w2.value, rel=1e-9)
    assert np.isnan(table["w2"].sel(d=2, n=32)).all() and (table["energy_error"] > 0).all()
    assert float(table["w2_cells"].sel(d=2)) == pytest.approx(areas[0] / math.sqrt(12))
    assert len(done.findings) == 7 and done.verdicts()[6] == "consistent"
    assert done.verdicts()[:6] != ["consistent"] * 6, "two draws of 32 tokens"


def test_masses_at_centres_are_as_far_off_as_the_cells_are_wide() -> None:
    parts = script("mean_field_equation")
    coarse, fine = meanfield.Sphere(42), meanfield.Sphere(10242)
    nearest = np.argmax(fine.centres @ coarse.centres.T, axis=1)
    off = np.arccos(np.clip(np.sum(fine.centres * coarse.centres[nearest], axis=1), -1, 1))
    run = xr.Dataset(
        {"areas": ("cell", coarse.areas),
         "density": (("path", "snapshot", "cell"), np.full((1, 1, 42), 1 / (4 * math.pi))),
         "centres": (("cell", "axis"), coarse.centres)}
    )  # fmt: skip
    exact = math.sqrt(fine.areas @ off**2 / (4 * math.pi))
    assert parts.quantisation(run) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("d", [2, 3])
def test_tokens_have_the_moments_of_the_initial_density(d) -> None:
    parts = script("mean_field_equation")
    x = parts.draw(20000, d, seed=3)
    assert np.allclose(np.linalg.norm(x, axis=1), 1)
    mesh = meanfield.Circle(256) if d == 2 else meanfield.Sphere(2562)
    mass = parts.bump(mesh.centres) * mesh.areas
    mass /= mass.sum()
    assert np.allclose(x.mean(axis=0), mass @ mesh.centres, atol=4 / math.sqrt(len(x)))
    second = (mesh.centres * mass[:, None]).T @ mesh.centres
    assert np.allclose(x.T @ x / len(x), second, atol=4 / math.sqrt(len(x)))


def test_a_fit_leaves_out_what_the_equation_does_not_resolve() -> None:
    parts = script("mean_field_equation")
    n = np.array([100, 1000, 10000, 100000])
    root = n**-0.5
    root[-1] = 0.02  # the error of the equation itself
    table = xr.Dataset(
        {
            "energy_sq": (("n", "path"), np.repeat(root[:, None] ** 2, 3, axis=1)),
            "energy_error": ((), 0.003),
        },
        {"n": n},
    ).expand_dims(d=[2])
    assert parts.fit(table, 2, "energy").exponent / 2 > -0.4
    resolved = table.assign(energy_error=table["energy_error"] * 3)
    assert parts.fit(resolved, 2, "energy").exponent / 2 == pytest.approx(-0.5)
    assert isinstance(parts.fit(resolved, 2, "energy"), fits.PowerLaw)
    assert parts.fit(table.assign(energy_error=table["energy_error"] * 20), 2, "energy") is None
