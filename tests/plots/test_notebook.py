"""Figures in a notebook are shown once; those asked of a run that lacks its data say what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from notebooks import executed

import wflow
from wflow import InputError, plots

SETUP = """
import numpy as np, wflow
save = wflow.SaveAt(snapshots=np.linspace(0, 0.4, 5), heads=True)
x0 = wflow.tokens.uniform(n=12, d=3, seed=0)
run = wflow.solve(x0, wflow.heads.Oscillating(d=3), heads=2, t_final=0.4, dt=0.1, save=save)
mesh = wflow.meanfield.Circle(16)
limit = wflow.meanfield.solve(np.ones(16), wflow.heads.Frozen(), mesh=mesh, heads=1, t_final=0.1)
nodes = wflow.stationary.Nodes.axial(2, 24)
kappas = wflow.sweep(
    {"kappa": [0.0, 0.1]}, x0, wflow.heads.Frozen(), heads=1, t_final=0.1, dt=0.1
)
branch = wflow.stationary.branch(np.eye(2), nodes, 1, kappa=(0.3, 1.0), step=0.3)
from wflow.plots import figure
figure.STYLE.update({"savefig.dpi": 40, "figure.dpi": 40})
"""
LIGHT = "import sys; assert 'matplotlib.pyplot' not in sys.modules"
CELLS = {
    "token_snapshots": "wflow.plots.token_snapshots(run)",
    "gradient_over_time": "wflow.plots.gradient_over_time(run)",
    "gradient_against_heads": "wflow.plots.gradient_against_heads([1, 2], [[1.0], [0.5]])",
    "energy_balance": "wflow.plots.energy_balance(run)",
    "clusters_over_time": "wflow.plots.clusters_over_time(run, 0.3)",
    "heads_over_time": "wflow.plots.heads_over_time(run)",
    "density_snapshots": "wflow.plots.density_snapshots(limit)",
    "free_energy_over_time": "wflow.plots.free_energy_over_time(limit)",
    "bifurcation": "wflow.plots.bifurcation(branch)",
    "sweep": "wflow.plots.sweep(kappas, 'energy')",
}


@pytest.fixture(scope="module")
def run() -> xr.Dataset:
    save = wflow.SaveAt(snapshots=np.linspace(0, 0.4, 5), heads=True)
    x0 = wflow.tokens.uniform(n=12, d=3, seed=0)
    law = wflow.heads.Oscillating(d=3)
    return wflow.solve(x0, law, heads=2, t_final=0.4, dt=0.1, paths=2, save=save)


def test_every_function_that_returns_a_figure_has_a_cell() -> None:
    assert set(CELLS) == set(plots.__all__) - {"animate", "plot_run"}


def test_notebook_shows_each_figure_once_without_pyplot_and_with_the_inline_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    animation = "wflow.plots.animate(run, frames=3, dpi=30)"
    shown = [*CELLS.values(), animation]
    again = ["%matplotlib inline", *CELLS.values()]
    mine = "import matplotlib.pyplot as plt\nwflow.plots.energy_balance(run)"
    drawn = "f, ax = plt.subplots()\nwflow.plots.gradient_over_time(run, ax=ax);"
    cells = executed([SETUP, *shown, LIGHT, *again, mine, drawn], tmp_path, monkeypatch)

    def kinds(cell: Any) -> list[str]:
        data = [output.get("data", {}) for output in cell.outputs]
        return [kind for one in data for kind in ("image/png", "text/html") if kind in one]

    found = {cell.source: kinds(cell) for cell in cells}
    for cell in cells[1:]:
        expected = {animation: ["text/html"], "%matplotlib inline": [], LIGHT: []}
        assert kinds(cell) == expected.get(cell.source, ["image/png"]), cell.source
    assert found[SETUP] == []


DENSITIES = ("density_snapshots", "free_energy_over_time")
OTHERS: dict[str, Callable[[], tuple[Any, ...]]] = {  # arguments of those that draw no run
    "gradient_against_heads": lambda: ([1, 2], [[1.0], [0.5]]),
    "sweep": lambda: (
        wflow.sweep(
            {"kappa": [0.0, 0.1]},
            wflow.tokens.uniform(n=12, d=3),
            wflow.heads.Frozen(),
            heads=1,
            t_final=0.1,
            dt=0.1,
        ),
        "energy",
    ),
    "bifurcation": lambda: (
        wflow.stationary.branch(
            np.eye(2), wflow.stationary.Nodes.axial(2, 24), 1, kappa=(0.3, 1.0), step=0.3
        ),
    ),
}
ACCESSED = ("energy_balance", "gradient_over_time", "tokens", "density", "free_energy")


@pytest.fixture(scope="module")
def limit() -> xr.Dataset:
    mesh = wflow.meanfield.Circle(16)
    law = wflow.heads.Frozen()
    return wflow.meanfield.solve(np.ones(16), law, mesh=mesh, heads=1, t_final=0.1)


def drawn(name: str, run: xr.Dataset, limit: xr.Dataset, **options: Any) -> Any:
    """Draw the figure of a function of `wflow.plots`."""
    given = OTHERS[name]() if name in OTHERS else (limit if name in DENSITIES else run,)
    given += (0.3,) if name == "clusters_over_time" else ()
    return getattr(plots, name)(*given, **options)


@pytest.mark.parametrize("name", CELLS)
def test_every_figure_fits_one_column_of_a_page(name: str, run, limit) -> None:
    figure = drawn(name, run, limit, style="paper")
    assert figure.get_figwidth() == 3.3
    figure.draw_without_rendering()
    assert drawn(name, run, limit).get_figwidth() >= 3.3
    with pytest.raises(InputError, match="paper"):
        drawn(name, run, limit, style="poster", ax=Figure().subplots())


@pytest.mark.parametrize("name", [*CELLS, *(f"run.wflow.plot {kind}" for kind in ACCESSED)])
def test_given_axes_are_drawn_in_and_nothing_else_is(name: str, run, limit) -> None:
    owner = Figure()
    left, right = owner.subplots(1, 2)
    size = left.xaxis.label.get_size()
    if name in CELLS:
        figure = drawn(name, run, limit, ax=left)
    else:
        kind = name.split()[-1]
        figure = (limit if kind in ("density", "free_energy") else run).wflow.plot(kind, ax=left)
    assert figure is owner
    assert left.has_data() and not right.has_data()
    assert owner.axes == [left, right] and not owner.legends and not owner.texts
    assert left.xaxis.label.get_size() == size, "the style is that of the owner"


def test_what_is_no_axes_is_refused(run: xr.Dataset) -> None:
    for given in ("left", Figure(), [Figure().subplots()]):
        with pytest.raises(InputError, match="expected one Axes of Matplotlib"):
            plots.gradient_over_time(run, ax=given)
    with pytest.raises(InputError, match="2 times to draw"):
        plots.token_snapshots(run, times=[0.0, 0.4], ax=Figure().subplots())


TOKENS = ("tokens", "tokens_mean")
LACKING: list[tuple[Callable[[xr.Dataset], Any], tuple[str, ...], str]] = [
    (plots.token_snapshots, TOKENS, "snapshots="),
    (lambda run: plots.token_snapshots(run, which=0), TOKENS, "paths="),
    (lambda run: plots.token_snapshots(run, times=[0.33]), (), "0.33.*snapshots="),
    (plots.gradient_over_time, ("upper_gradient_sq",), "budget=True"),
    (plots.energy_balance, ("martingale",), "budget=True"),
    (lambda run: plots.clusters_over_time(run, 0.3), TOKENS, "snapshots="),
    (plots.heads_over_time, ("heads",), "heads=True"),
    (lambda run: plots.heads_over_time(run.isel(snapshot=[0])), (), "heads=True"),
    (plots.animate, TOKENS, "linspace"),
    (lambda run: plots.animate(run.isel(snapshot=[0, -1])), (), "linspace"),
    (lambda run: plots.animate(run, path=1), (), "path 1.*paths="),
]


@pytest.mark.parametrize(("draw", "dropped", "option"), LACKING)
def test_error_of_a_run_that_lacks_the_data_names_the_option(draw, dropped, option, run):
    with pytest.raises(InputError, match=rf"(?s){option}") as caught:
        draw(run.drop_vars(dropped))
    assert "save=wflow.SaveAt(" in str(caught.value)


def test_clusters_of_several_paths_are_drawn_with_their_mean() -> None:
    x0 = wflow.tokens.uniform(n=24, d=2, seed=0)
    save = wflow.SaveAt(snapshots=np.linspace(0, 0.4, 5), paths=[0, 1, 2])
    law = wflow.heads.OrnsteinUhlenbeck(mean=np.eye(2), rate=1.0, sigma2=2.0)
    run = wflow.solve(x0, law, heads=2, t_final=0.4, dt=0.1, paths=3, save=save)
    axis = plots.clusters_over_time(run, 0.1).axes[0]
    counts = wflow.clusters.over_time(run, 0.1, quantities=["count"])["count"]
    mean = next(line for line in axis.lines if line.get_label() == "mean of 3 paths")
    np.testing.assert_allclose(mean.get_ydata(), counts.mean("snapshot_path"))


def test_heads_are_drawn_by_the_eigenvalues_of_their_symmetric_part(run: xr.Dataset) -> None:
    lines = plots.heads_over_time(run).axes[0].lines
    heads = run["heads"].values[0]
    values = np.linalg.eigvalsh((heads + heads.swapaxes(-1, -2)) / 2).mean(axis=1)
    for line, value in zip(lines, values.T[::-1], strict=True):
        np.testing.assert_allclose(line.get_ydata(), value)
