"""Sweeps: a grid of runs, their table, files that are continued, and grids that cannot be used."""

import numpy as np
import pytest
import xarray

import wflow
from wflow import BlowUpError, InputError
from wflow.distributed.sweep import points
from wflow.heads import Frozen, OrnsteinUhlenbeck

X = wflow.tokens.uniform(8, 3, seed=0)
FIXED = {"t_final": 0.2, "dt": 0.05, "compute": wflow.Compute(threads=1)}
GRID = {"beta": [1.0, 4.0], "seed": range(2)}


def heads(beta: float) -> list:
    return [beta * np.eye(3)] * 2


def law(beta: float) -> OrnsteinUhlenbeck:
    return OrnsteinUhlenbeck(beta * np.eye(3), sigma2=0.1)


def swept(grid=GRID, **options) -> xarray.Dataset:
    return wflow.sweep(grid, **({"x0": X, "law": law, "heads": heads, **FIXED} | options))


def test_every_point_is_the_run_of_its_arguments():
    def reduce(run, beta):
        return {"rescaled": run.energy.isel(time=-1) / beta, "records": run.sizes["time"]}

    table = swept(reduce=reduce, paths=2)
    as_dataset = swept(reduce=lambda run, beta: xarray.Dataset(reduce(run, beta)), paths=2)
    assert as_dataset.drop_attrs().identical(table.drop_attrs())
    assert table.rescaled.dims == ("beta", "seed", "path")
    assert table.records.dims == ("beta", "seed") and (table.records == 5).all()
    run = wflow.solve(X, law(4.0), heads=heads(4.0), seed=1, paths=2, **FIXED)
    here, end = table.sel(beta=4.0, seed=1), run.isel(time=-1)
    assert np.array_equal(here.energy, end.energy)
    assert np.array_equal(here.energy_change, end.energy - run.energy.isel(time=0))
    assert np.array_equal(here.rescaled, end.energy / 4.0)
    assert np.array_equal(here.edi_residual, abs(run.edi_residual).max("time"))
    products = np.triu(run.tokens[0, -1].values @ run.tokens[0, -1].values.T, 1)
    assert here.mean_cosine.values[0] == pytest.approx(products.sum() / (8 * 7 / 2), abs=1e-12)
    assert np.isnan(here.mean_cosine.values[1])  # whose tokens are not kept
    frame = table.to_dataframe().reset_index()
    assert "beta (2), seed (2)" in repr(table.wflow) and "seed" in table.wflow._repr_html_()
    assert len(frame) == 8 and {"beta", "seed", "path", "energy"} <= set(frame)


def test_objects_are_axes_under_their_repr_place_or_name(tmp_path):
    clouds = [X, wflow.tokens.uniform(8, 3, seed=1)]
    laws = {"rest": Frozen(), "noise": OrnsteinUhlenbeck(np.eye(3))}
    schemes = ["euler", wflow.Dopri5(), wflow.Dopri5(rtol=1e-6)]
    given = {"x0": None, "law": None, "heads": 2, "out": tmp_path}
    table = swept({"x0": clouds, "law": laws}, **given)
    assert (tmp_path / "x0=1,law=rest.h5").exists()
    assert table.x0.values.tolist() == [0, 1] and table.law.values.tolist() == ["rest", "noise"]
    table = swept({"scheme": schemes, "heads": [1, 2]}, law=Frozen(), heads=lambda heads: heads)
    assert table.scheme.values[1].startswith("Dopri5(")
    _, found = points({"scheme": schemes, "dt": np.float32([0.5, 1e9]), "seed": [7]}, {})
    names = [point.name for point in found[:3]]  # of files: no repr that may change
    assert names == [
        "scheme=0,dt=0.5,seed=7",
        "scheme=0,dt=1000000000,seed=7",
        "scheme=1,dt=0.5,seed=7",
    ]
    assert table.heads.values.tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["Series", "Index", "DataArray"])
def test_what_numpy_reads_as_a_row_is_an_axis(kind):
    module = xarray if kind == "DataArray" else pytest.importorskip("pandas")
    labels, found = points({"dt": getattr(module, kind)([0.1, 0.2])}, {})
    assert labels["dt"].tolist() == [0.1, 0.2]
    assert [point.task()["dt"] for point in found] == [0.1, 0.2]


def test_a_sweep_is_continued_and_extended_without_computing_anything_twice(tmp_path):
    def killed(run, beta, seed):
        if (beta, seed) == (4.0, 0):
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        swept(out=tmp_path / "s", reduce=killed)
    held = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "s").iterdir()}
    assert sorted(held) == ["beta=1,seed=0.h5", "beta=1,seed=1.h5", "beta=4,seed=0.h5"]
    table = swept({"beta": [1, 4.0], "seed": range(3)}, out=tmp_path / "s")
    assert len(list((tmp_path / "s").iterdir())) == 6
    assert all((tmp_path / "s" / name).stat().st_mtime_ns == time for name, time in held.items())
    assert table.drop_attrs().isel(seed=slice(2)).identical(swept().drop_attrs())
    table.to_netcdf(tmp_path / "table.nc")
    assert xarray.load_dataset(tmp_path / "table.nc").equals(table)
    longer = swept(out=tmp_path / "s", t_final=0.4)
    assert longer.drop_attrs().identical(swept(t_final=0.4).drop_attrs())
    files = tmp_path / "s"
    new = {"beta": [9.0, 1.0], "seed": [0]}  # nothing is computed where the second is refused
    for changed in ({"dt": 0.1}, {"t_final": 0.1}, {"t_final": 1.0, "workers": 2}):
        with pytest.raises(InputError, match=next(reversed(changed))) as refused:
            swept(new, out=files, **changed)
        assert "overwrite" not in str(refused.value)
    assert not (files / "beta=9,seed=0.h5").exists()
    with pytest.raises(InputError, match="another sweep writes"):
        swept(out=files, t_final=0.4, reduce=lambda run: swept(out=files, t_final=0.4))


@pytest.mark.parametrize("filed", [False, True])
def test_points_that_blow_up_are_nan_with_their_message(filed, tmp_path):
    given = {"law": Frozen(), "out": tmp_path / "s" if filed else None, "paths": 2}
    for _ in range(2 if filed else 1):
        with pytest.warns(RuntimeWarning, match="1 of 2 points"):
            table = swept({"beta": [1e9, 1.0]}, reduce=lambda run: {"even": True}, **given)
        assert table.failure.values[0] and not table.failure.values[1]
        assert np.isnan(table.energy[0]).all() and np.isfinite(table.energy[1]).all()
        assert table.blew_up.values.tolist() == [[True, True], [False, False]]
        assert np.isnan(table.even.values[0]) and table.even.values[1] == 1
    with pytest.warns(RuntimeWarning, match="1 of 1 points"):
        assert swept({"beta": [1e9]}, law=Frozen()).failure.values[0]
    with pytest.raises(BlowUpError, match="beta = 1000000000"):
        swept({"beta": [1.0, 1e9]}, on_error="raise", **given)


def test_runs_of_other_numbers_of_paths_are_aligned():
    table = swept({"paths": [1, 3], "beta": [1.0]})
    assert np.isnan(table.energy[0, 0]).values.tolist() == [False, True, True]
    assert np.isfinite(table.energy[1]).all()


def test_what_a_run_lacks_is_nan():
    table = swept(
        {"causal": [True, False], "seed": [0, 1]},
        reduce=lambda run, seed: {"odd": 1.0} if seed else {},
        law=Frozen(), heads=2, workers=None,
    )  # fmt: skip
    assert np.isnan(table.energy).values.ravel().tolist() == [True, True, False, False]
    assert np.isnan(table.odd).values.tolist() == [[True, False], [True, False]]
    assert np.isfinite(table.mean_cosine).all()


def test_series_of_other_steps_are_aligned_at_common_times():
    table = swept(
        {"dt": [0.3, 0.1]}, law=Frozen(), heads=2, t_final=0.9, dt=lambda dt: dt,
        reduce=lambda run: {"series": run.energy},
    )  # fmt: skip
    assert table.sizes["time"] == 10  # 3 * 0.1 is 0.30000000000000004
    assert np.isfinite(table.series.isel(time=slice(None, None, 3))).all()


def test_workers_give_the_same_bits(tmp_path):
    pytest.importorskip("distributed")
    grid = {"beta": [1e9, 1.0, 2.0]}
    with pytest.warns(RuntimeWarning, match="1 of 3 points"):
        given = {"law": Frozen(), "paths": 2}
        table = swept(grid, out=tmp_path / "s", workers=2, **given)
        again = swept(grid, out=tmp_path / "s", **given)  # finds what the workers made
        alone = swept(grid, **given)
    for other in (again, alone):
        assert (
            table.drop_vars("failure")
            .drop_attrs()
            .identical(other.drop_vars("failure").drop_attrs())
        )


BAD = {
    "expected axis": {"grid": {}},
    "beta is empty": {"grid": {"beta": []}},
    "expected a list of": {"grid": {"beta": np.array(1.0)}},
    "repeats": {"grid": {"beta": [1, 1.0]}},
    "expected a list": {"grid": {"beta": "12"}},
    "did you mean kappa": {"grid": {"beta": [1.0], "kapa": [0.1]}},
    "did you mean beat": {"grid": {"beat": [1.0]}},
    "did you mean direction": {"directon": "ascent"},
    "dt is an axis": {"grid": {"beta": [1.0], "dt": [0.1]}},
    "gives it": {"if_exists": "resume"},
    "GB": {"grid": {"beta": range(10**6), "seed": range(10**6)}},
    "beta = 1, n = 2: ": {"grid": {"beta": [1.0], "n": [2]}, "x0": lambda n: np.eye(n)},
    "beta = 2.*scheme": {"grid": {"beta": [2.0]}, "scheme": "eulr"},
    "give out": {"workers": 2},
    "on_error": {"on_error": "ignore"},
    "x0 is missing": {"x0": None},
    "expected a dict": {"reduce": lambda run: 1.0},
    "takes no run": {"reduce": lambda: {}},
    "no dimensions": {"reduce": lambda run: {"values": [1.0, 2.0]}},
    "beta = 1, seed = 0: .*path": {"reduce": lambda run: {"q": ("path", [1.0, 2.0])}},
    "seed = 1 ends": {"reduce": lambda run, seed: {"ends": ("place", np.ones(1 + seed))}},
    "beta is an axis of the grid, and": {"reduce": lambda run: {"beta": 1.0}},
    "reduce returns failure": {"reduce": lambda run: {"failure": 1.0}},
    "failure cannot be an axis": {"grid": {"failure": [1.0]}},
    "path is an axis": {"grid": {"path": [1.0]}, "law": Frozen(), "heads": lambda path: 2},
    "x is an axis": {"grid": {"x": [2]}, "law": None, "heads": lambda x: x, "reduce": lambda x: {}},
    "of 'bta', which.*did you mean beta": {"reduce": lambda run, bta: {}},
    "a table of": {"reduce": lambda run: {"much": (("a", "b"), np.broadcast_to(0.0, (10**9, 99)))}},
}  # fmt: skip


@pytest.mark.parametrize("match", BAD)
def test_what_cannot_be_used_is_refused(match):
    with pytest.raises(InputError, match=match):
        swept(**BAD[match])
