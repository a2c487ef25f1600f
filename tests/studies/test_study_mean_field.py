"""The study of the mean-field limit, end to end at a size of seconds."""

import numpy as np
import pytest
import xarray as xr
from scripts import VERDICTS, script

import wflow
from wflow import tokens, transport

SMALL = ["--t-final", "0.2", "--dt", "0.05", "--threads", "1", "--heads", "2"]


def test_study_compares_n_and_2n_tokens_under_the_same_heads(run_study) -> None:
    flags = [*SMALL, "--n", "6", "12", "24", "--d", "2", "3", "--paths", "3"]
    done = run_study("mean_field_limit", *flags)
    table = done.table
    assert {f"d{d}_n{n:05d}.h5" for d in (2, 3) for n in (6, 12, 24, 48)} < done.names
    assert done.drawn("convergence")
    assert dict(table["w2"].sizes) == {"d": 2, "n": 3, "path": 3, "time": 2}
    with (
        wflow.open(done.out / "d3_n00012.h5") as few,
        wflow.open(done.out / "d3_n00024.h5") as many,
    ):
        x, y = (run["tokens"].sel(snapshot_path=2).isel(snapshot=-1).values for run in (few, many))
        gap = abs(few["energy"][2, -1] - many["energy"][2, -1])
        assert not np.allclose(few["tokens"][0, 0, 0], many["tokens"][0, 0, 0])  # other draws
    at = table.isel(d=1, n=1, path=2, time=1)
    assert float(at["w2"]) == pytest.approx(transport.w2(x, y), rel=1e-12)
    assert float(at["energy_gap"]) == pytest.approx(float(gap), rel=1e-12)
    assert (table["w2"].isel(time=1) <= table["w2_bound"].isel(time=1)).all()
    assert len(done.findings) == 5 and {*done.verdicts()} <= {*VERDICTS}
    assert f"{float(table['w2_slope'][0, 0]):.3f}" in done.said


def test_both_clouds_of_a_path_move_under_the_same_heads() -> None:
    law = wflow.heads.OrnsteinUhlenbeck(np.eye(3), sigma2=2.0)
    runs = [
        wflow.solve(
            tokens.uniform(n, 3, seed=n), law, heads=2, t_final=0.2, dt=0.05, paths=2,
            save=wflow.SaveAt(paths=(0, 1), heads=True), compute=wflow.Compute(threads=1),
        )
        for n in (5, 10)
    ]  # fmt: skip
    heads = [run["heads"].values for run in runs]
    assert np.array_equal(heads[0], heads[1])
    assert not np.array_equal(heads[0][0, -1], heads[0][1, -1])


def test_known_rates_have_their_slopes_and_a_cloud_law_decides_the_verdict() -> None:
    module = script("mean_field_limit")
    flags = module.MeanFieldLimit(n=(100, 200, 400), d=(2, 3, 4, 6), paths=4)
    slopes = [module.expected_slope(flags, d) for d in flags.d]
    assert slopes[0] == pytest.approx(-0.5)
    assert -0.5 < slopes[1] < -0.38
    assert slopes[2:] == pytest.approx([-1 / 3, -1 / 5])
    rng = np.random.default_rng(0)
    shape = (len(flags.d), 3, 4, 2)
    n = np.array(flags.n, float)
    known = np.array([module.rate_of("uniform", d)[1](n) for d in flags.d])[:, :, None, None]
    noise = np.exp(0.01 * rng.standard_normal(shape))
    dims = ("d", "n", "path", "time")
    exact = xr.Dataset(
        {
            "w2": (dims, known * noise),
            "energy_gap": (dims, n[:, None, None] ** -0.5 * noise),
            "w2_bound": (dims, 2 * known * noise),
        },
        coords={"n": list(flags.n)},
    )
    verdicts = [f.verdict for f in module.findings(flags, exact, module.fit(exact))]
    assert verdicts == ["confirmed"] * 5
    late = xr.DataArray([0.0, 1.0], dims="time")
    growing = exact.assign(w2=exact["w2"] * (exact["n"] / 100.0) ** (0.8 * late))
    verdicts = [f.verdict for f in module.findings(flags, growing, module.fit(growing))]
    assert verdicts == ["confirmed", "not confirmed", "not confirmed", "not confirmed", "confirmed"]


def test_study_of_many_tokens_compares_every_n_with_the_limit(run_study):
    flags = ["--n", "100", "200", "--reference", "300", "--paths", "3", "--method", "fast"]
    flags += ["--t-final", "0.2", "--dt", "0.1", "--heads", "2", "--threads", "1"]
    done = run_study("mean_field_large", *flags)
    with (
        wflow.open(done.out / "n=200.h5") as run,
        wflow.open(done.out / "reference.h5") as limit,
    ):
        x, y = (ds["tokens"].isel(snapshot_path=-1, snapshot=-1).values for ds in (run, limit))
        gap = float(run["energy"][2, -1] - limit["energy"][0, -1])
    at = done.table.isel(n=1, path=2)
    assert float(at["energy_deviation_sq"]) == pytest.approx(gap**2, rel=1e-9)
    squared = np.sum((x.mean(0) - y.mean(0)) ** 2)
    assert float(at["mean_deviation_sq"]) == pytest.approx(squared, rel=1e-9)
    assert f"{float(done.table['energy_slope']):.3f}" in done.said
    assert "fast sums keep their tolerance" in done.said


@pytest.mark.parametrize("d", [2, 3])
def test_evenly_spread_points_have_the_moments_of_the_uniform_law(d) -> None:
    module = script("mean_field_large")
    x = module.evenly_spread(4000, d)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(x.T @ x / len(x), np.eye(d) / d, atol=1e-3)
