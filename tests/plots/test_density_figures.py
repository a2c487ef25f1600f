"""Figures, animations, reports and descriptions of runs of densities."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from test_animation import pictures

import wflow
from wflow import InputError, meanfield, plots
from wflow.analysis.description import describe
from wflow.plots.densities import pixels_of
from wflow.plots.tokens import view
from wflow.study import report

pytestmark = pytest.mark.filterwarnings("ignore:Animation was deleted")


def solved(mesh: Any, **options: Any) -> xr.Dataset:
    d = mesh.dim + 1
    options.setdefault("save", wflow.SaveAt(snapshots=[0.0, 0.1, 0.2]))
    return meanfield.solve(
        lambda x: 1 + 0.9 * x[:, 0], wflow.heads.Frozen(), mesh=mesh, heads=np.eye(d)[None],
        t_final=0.2, dt=0.01, kappa=0.1, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sphere() -> xr.Dataset:
    return solved(meanfield.Sphere(42))


@pytest.fixture(scope="module")
def circle() -> xr.Dataset:
    return solved(meanfield.Circle(16), paths=2)


@pytest.mark.parametrize("mesh", [meanfield.Sphere(642), meanfield.Harmonics(12)])
def test_what_is_seen_of_a_sphere_is_the_density_there(mesh: Any) -> None:
    # A function of the direction of the viewer alone: its values are heights over the picture.
    height = mesh.centres @ view()[2]
    picture = pixels_of(mesh.centres, 64)(height)
    side = (np.arange(64) + 0.5) / 32 - 1
    x, y = np.meshgrid(side, side)
    inside = np.hypot(x, y) < 0.97
    exact = np.sqrt(np.clip(1 - x**2 - y**2, 0, None))
    assert np.abs(picture - exact)[inside].max() < 0.02
    across = pixels_of(mesh.centres, 64)(mesh.centres @ view()[0])
    assert np.abs(across - x)[inside].max() < 0.02


def test_spheres_share_their_colours_and_a_colour_bar(sphere: xr.Dataset) -> None:
    figure = plots.density_snapshots(sphere, which=0)
    images = [axis.images[-1] for axis in figure.axes[:3]]
    assert [axis.get_title() for axis in figure.axes[:3]] == ["$t$ = 0", "$t$ = 0.1", "$t$ = 0.2"]
    assert len({id(image.norm) for image in images}) == 1
    assert images[0].norm.vmax == float(sphere.density.max())
    assert figure.axes[-1].get_ylabel() == r"Density $\rho$"
    one = plots.density_snapshots(sphere, times=[0.1], which=0, ax=figure.axes[0])
    assert one is figure


def test_curves_on_the_circle_are_the_densities_over_the_angle(circle: xr.Dataset) -> None:
    figure = plots.density_snapshots(circle, times=[0.2])
    angle, values = figure.axes[0].lines[0].get_data()
    place = int(np.argmin(np.abs(np.asarray(angle))))
    assert abs(angle[place]) < 1e-12
    assert values[place] == float(circle.density_mean[-1, 0])
    assert len(values) == 17 and values[0] == values[-1]  # closed
    assert circle.wflow.plot("density").axes[0].get_xlabel() == r"Angle $\theta$"


def test_animations_of_densities_are_written(sphere, circle, tmp_path):
    for name, run in (("sphere", sphere), ("circle", circle)):
        file = tmp_path / f"{name}.gif"
        plots.animate(run, file, dpi=40)
        frames = pictures(file)
        assert len(frames) == 3
        assert np.abs(frames[0] - frames[2]).max() > 20


def test_a_run_of_densities_has_its_figures_report_and_description(tmp_path: Path) -> None:
    file = tmp_path / "run.h5"
    solved(meanfield.Circle(16), out=file, paths=2).close()
    page = report.write(file, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page and ">Density</h" in page
    with wflow.open(file) as run:
        said = dict(describe(run))
        assert said["density"] == "Circle, 16 cells, d = 2"
        assert said["snapshots"].endswith("of density, density_mean")
        names = [each.name for each in plots.plot_run(run, tmp_path / "figures")]
    assert "run_density_mean.png" in names
    assert "degree 12, 37 nodes" in dict(describe(solved(meanfield.Fourier(12))))["density"]


def test_densities_that_are_not_there_are_named(sphere: xr.Dataset) -> None:
    with pytest.raises(InputError, match=r"no snapshot at t = 0\.15: stored are 0, 0\.1, 0\.2"):
        plots.density_snapshots(sphere, times=[0.15])
    with pytest.raises(InputError, match="no densities of path 1 in the run"):
        plots.density_snapshots(sphere, which=1)
    with pytest.raises(InputError, match="2 times"):
        figure = plots.density_snapshots(sphere)
        plots.density_snapshots(sphere, times=[0.0, 0.1], ax=figure.axes[0])
    with pytest.raises(InputError, match="3 or more"):
        plots.animate(sphere.isel(snapshot=slice(0, 2)))
    tokens = wflow.solve(np.eye(3), wflow.heads.Frozen(), heads=1, t_final=0.1, dt=0.1)
    with pytest.raises(InputError, match="no centres"):
        plots.density_snapshots(tokens)
