"""`ds.wflow`: what a run shows of itself, its figures, checks and distances."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import xarray
from matplotlib.figure import Figure
from run_layouts import a_layout, attrs

import wflow
from wflow import InputError, plots
from wflow.plots.accessor import RunAccessor
from wflow.runs.store import RunWriter


def solved(law=None, **options) -> xarray.Dataset:
    x0 = wflow.tokens.cross_polytope(n=8, d=3, spread=0.05, seed=42)
    law = wflow.heads.OrnsteinUhlenbeck(np.eye(3)) if law is None else law
    given = {
        "heads": 2,
        "t_final": 0.4,
        "dt": 2e-2,
        "paths": 2,
        "compute": wflow.Compute(threads=1),
    }
    return wflow.solve(x0, law, **(given | options))


@pytest.fixture(scope="module")
def run() -> xarray.Dataset:
    return solved()


@pytest.fixture(scope="module")
def general() -> xarray.Dataset:
    rng = np.random.default_rng(0)
    heads = wflow.heads.QKV(*rng.normal(size=(3, 2, 3, 3)))
    return solved(wflow.heads.Frozen(), heads=heads, paths=1)


def test_import_wflow_loads_no_xarray_and_solve_registers_the_accessor():
    code = (
        "import sys, wflow\n"
        "heavy = {'xarray', 'numba', 'h5py', 'scipy', 'matplotlib', 'torch', 'ot'}\n"
        "assert not heavy & set(sys.modules)\n"
        "wflow.heads, wflow.tokens; assert 'xarray' not in sys.modules\n"
        "wflow.open; import xarray; assert hasattr(xarray.Dataset, 'wflow')\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_terms_of_the_budget_add_up(run):
    terms = run.wflow.budget()["mean"]
    gained = terms.sel(term="energy_end") - terms.sel(term="energy_start")
    parts = ["work_weights", "work_ito", "martingale", "dissipated", "edi_residual"]
    assert float(terms.sel(term=parts).sum()) == pytest.approx(float(gained), abs=1e-12)
    assert float(terms.sel(term="dissipated")) == -float(run["dissipated"][:, -1].mean())


def test_the_html_shows_energy_budget_and_curves_and_is_well_formed(run):
    page = ET.fromstring(run.wflow._repr_html_())
    text = " ".join(page.itertext())
    for words in ("OrnsteinUhlenbeck", "energy at the end", "minus dissipation", "residual"):
        assert words in text
    curves = page.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(curves) == 2 and len(curves[0].get("points").split()) == run.sizes["time"]


def test_what_a_custom_law_is_called_is_escaped():
    law = type("<b>", (wflow.heads.HeadLaw,), {})()
    assert "custom &lt;b&gt; heads" in solved(law, paths=1).wflow._repr_html_()


def test_a_run_without_an_energy_shows_its_speed(general):
    assert "mean squared speed at the end" in repr(general.wflow)
    assert ET.fromstring(general.wflow._repr_html_()).findall(".//{*}polyline")
    assert isinstance(general.wflow.plot(), Figure)


def test_an_unfinished_run_says_so(tmp_path):
    writer = RunWriter.create(tmp_path / "run.h5", a_layout(), attrs())
    writer.abandon()
    with pytest.warns(UserWarning, match="not complete"), wflow.open(tmp_path / "run.h5") as ds:
        assert "NOT COMPLETE" in repr(ds.wflow) and "NOT COMPLETE" in ds.wflow._repr_html_()
        with pytest.raises(InputError, match="--resume"):
            ds.wflow.plot()


def test_verify_w2_and_clusters_are_those_of_the_package(run):
    limits = [run.wflow.verify(tolerance).checks[-1].limit for tolerance in (None, 0.05, 0.01)]
    assert limits[0] == limits[1] > limits[2]
    expected = wflow.transport.over_time(run, to="initial")
    xarray.testing.assert_identical(run.wflow.w2("initial"), expected)
    expected = wflow.clusters.over_time(run, 0.3, quantities=["count"])
    xarray.testing.assert_identical(run.wflow.clusters(0.3, quantities=["count"]), expected)


def test_a_figure_of_what_was_not_recorded_names_the_option_that_records_it(run, general):
    silent = solved(save=wflow.SaveAt(budget=False))
    asked = [
        (r"budget=True", silent.wflow.budget),
        (r'budget=True.*"speed_sq"', lambda: plots.energy_balance(silent)),
        (r'budget=True.*"speed_sq"', lambda: plots.gradient_over_time(silent)),
        (r"causal", lambda: general.wflow.plot("gradient_over_time")),
        (r"budget=False", lambda: run.wflow.plot("speed")),
        (r"gradient_over_time", lambda: run.wflow.plot("energy")),
    ]
    for option, ask in asked:
        with pytest.raises(InputError, match=option):
            ask()
    assert plots.gradient_over_time(silent, "speed_sq").axes[0].has_data()


def test_runs_of_a_study_have_it_too(tmp_path):
    solved(out=tmp_path / "H00002.h5").close()
    with pytest.warns(UserWarning, match="not complete"):
        study = wflow.open_study(tmp_path)
    with study:
        assert isinstance(study["H00002"].wflow, RunAccessor)
        assert "2 heads" in repr(study["H00002"].wflow)
