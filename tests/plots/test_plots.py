"""Figures of runs: they draw what the data says, and leave no state behind."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
import xarray as xr

import wflow
from wflow import InputError, fits, plots
from wflow.plots import tokens
from wflow.plots.figure import rectangle, rounded, save
from wflow.runs.results import OF_ONE_RUN


def a_run(*, heads=4, n=24, d=3, paths=3, records=41, law=None, **options) -> xr.Dataset:
    x0 = wflow.tokens.clusters(n, d, clusters=3, spread=0.2, seed=0)
    save = wflow.SaveAt(snapshots=[0.0, 0.1, 0.5, 1.0, 2.0])
    law = law or wflow.heads.OrnsteinUhlenbeck(np.eye(d))
    options |= {"heads": heads, "paths": paths, "dt": 2 / (records - 1)}
    return wflow.solve(x0, law, t_final=2.0, save=save, **options)


def without_energy() -> xr.Dataset:
    heads = wflow.heads.QKV(*np.random.default_rng(0).normal(size=(3, 4, 3, 3)))
    return a_run(heads=heads, paths=1, law=wflow.heads.Frozen())


def texts(figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))


@pytest.mark.parametrize("d", [2, 3, 5])
def test_snapshots_have_a_panel_per_time(d: int) -> None:
    run = a_run(d=d)
    figure = plots.token_snapshots(run)
    assert len(figure.axes) == 5
    assert ("Principal axis 1" in texts(figure)) == (d > 3)
    run["tokens_mean"][3:] = np.nan  # of a run that was killed
    assert len(plots.token_snapshots(run, which="mean").axes) == 3


@pytest.mark.parametrize(
    ("count", "most", "shape"),
    [
        (6, 5, (2, 3)),
        (5, 5, (1, 5)),
        (8, 5, (2, 4)),
        (7, 5, (2, 4)),
        (4, 3, (2, 2)),
        (6, 3, (2, 3)),
    ],
)
def test_snapshots_fill_a_rectangle(count, most, shape) -> None:
    assert rectangle(count, most) == shape


def test_times_are_rounded_and_stay_apart() -> None:
    assert rounded([0, 1 / 3, 2 / 3, 1]) == [0, 0.33, 0.67, 1]
    assert rounded([9.999, 10.0]) == [9.999, 10.0]


@pytest.mark.parametrize("d", [2, 3, 5])
def test_tokens_of_a_cluster_have_one_colour_and_places_have_their_own(d: int) -> None:
    run = a_run(d=d, paths=1)
    labels = wflow.clusters.labels(run["tokens"].values[0, -1], 0.2)
    colours = tokens.cluster_colours(labels)
    assert len({tuple(row) for row in colours}) == min(labels.max() + 1, 10)
    for color, most in (("start", run.sizes["token"]), ("cluster", min(labels.max() + 1, 10))):
        panel = plots.token_snapshots(run, color=color).axes[0].collections[0]
        faces = np.unique(panel.get_facecolors()[:, :3], axis=0)
        assert len(faces) == most or d == 3  # on the sphere the far side is paler
    with pytest.raises(InputError, match="cluster"):
        plots.token_snapshots(run, color="depth")


def test_figures_of_several_panels_or_runs_fit_the_columns_of_a_page() -> None:
    run = a_run()
    several = {4: run, 8: a_run(heads=8)}
    for style, width in (("screen", 6.9), ("paper", 3.3)):
        for figure in (
            plots.energy_balance(run, style=style),
            plots.token_snapshots(run, style=style),
            plots.gradient_over_time(several, style=style),
            wflow.compare(*several.values()).plot(style=style),
        ):
            assert figure.get_figwidth() == width


def test_small_terms_of_the_energy_balance_are_named_and_left_out() -> None:
    run = a_run()
    (martingale,) = [line for line in plots.energy_balance(run).axes[0].lines
                     if line.get_label() == "martingale"]  # fmt: skip
    assert np.abs(martingale.get_ydata()).max() > 0
    run["martingale"] = run["martingale"] * 1e-4
    axis = plots.energy_balance(run).axes[0]
    assert "martingale" not in [line.get_label() for line in axis.lines]
    assert "martingale" in axis.get_title(loc="left")
    run["energy"] = run["energy"].isel(time=0).broadcast_like(run["energy"])  # it does not move
    assert "E(t) − E(0)" in [line.get_label() for line in plots.energy_balance(run).axes[0].lines]


@pytest.mark.parametrize(
    ("scheme", "law", "said"),
    [
        ("euler", None, "order dt (euler with noise)"),
        ("sra1", None, "order dt (sra1 with noise)"),
        ("sra1", wflow.heads.Frozen(), "order dt² (sra1)"),
        ("euler", wflow.heads.Frozen(), "order dt (euler)"),
        ("heun", wflow.heads.Frozen(), "order dt² (heun)"),
        ("rk4", wflow.heads.Frozen(), "order dt⁴ (rk4)"),
        ("dopri5", wflow.heads.Frozen(), "lower its tolerances"),
    ],
)
def test_the_energy_balance_says_what_its_residual_is(scheme, law, said) -> None:
    figure = plots.energy_balance(a_run(scheme=scheme, law=law, records=11, paths=1))
    assert said in texts(figure)


def test_projection_keeps_the_sphere_in_the_unit_disc_and_its_axes_orthonormal() -> None:
    points = a_run(d=5)["tokens"].values[0, 0]
    basis, share = tokens.principal_axes(points)
    np.testing.assert_allclose(basis @ basis.T, np.eye(2), atol=1e-14)
    assert share[0] >= share[1] > 0 and share.sum() <= 1
    assert np.linalg.norm(points @ basis.T, axis=1).max() <= 1 + 1e-14


def test_gradient_curves_are_means_over_paths_on_a_log_scale() -> None:
    runs = {heads: a_run(heads=heads) for heads in (16, 1, 4)}
    figure = plots.gradient_over_time(runs)
    axis = figure.axes[0]
    assert axis.get_yscale() == "log"
    assert [line.get_label() for line in axis.lines] == ["1", "4", "16"]
    mean = runs[1]["upper_gradient_sq"].mean("path")
    np.testing.assert_allclose(axis.lines[0].get_ydata(), mean, rtol=1e-14)
    styles = {(str(line.get_linestyle()), line.get_marker()) for line in axis.lines}
    assert len(styles) == 3, "curves must differ without colour"


def test_weight_drift_and_ito_which_nearly_cancel_are_summed_above_and_shown_below() -> None:
    run = a_run()
    top, weights, _ = plots.energy_balance(run).axes
    drawn = {line.get_label(): line.get_ydata() for line in top.lines}
    parts = {line.get_label(): line.get_ydata() for line in weights.lines[1:]}
    np.testing.assert_allclose(drawn["drift + Itô"], sum(parts.values()), atol=1e-14)
    np.testing.assert_allclose(parts["Itô correction"], run["work_ito"].mean("path"), atol=1e-14)
    assert not set(drawn) & set(parts)


def test_terms_that_are_zero_are_named_and_not_drawn() -> None:
    figure = plots.energy_balance(a_run(law=wflow.heads.Frozen(), paths=1))
    assert "Zero throughout: weight drift, Itô correction, martingale" in texts(figure)
    labels = {line.get_label() for line in figure.axes[0].lines[1:]}
    assert labels == {"E(t) − E(0)", "−∫ dissipation", "−∫ G²"}


@pytest.mark.parametrize("direction", ["descent", "ascent"])
def test_terms_of_the_figure_add_up_to_the_energy_change(direction: str) -> None:
    run = a_run(direction=direction)
    top = plots.energy_balance(run).axes[0]
    drawn = {line.get_label(): line.get_ydata() for line in top.lines}
    change = drawn.pop("E(t) − E(0)")
    twin = next(label for label in drawn if "G²" in label)
    drawn.pop(twin)
    terms = sum(v for name, v in drawn.items() if not name.startswith("_"))
    assert np.abs(change - terms - run["edi_residual"].mean("path").values).max() < 1e-12
    assert twin.startswith("∫" if direction == "ascent" else "−")


def test_infinite_energy_is_left_out_of_the_curve() -> None:
    run = a_run()
    run["energy"][:, 20:] = np.inf
    lines = plots.energy_balance(run).axes[0].lines
    (line,) = (line for line in lines if "E(t)" in str(line.get_label()))
    assert len(line.get_xdata()) == 20


def test_long_runs_are_thinned_but_keep_their_end() -> None:
    run = a_run(records=10_001, paths=1, n=4)
    line = plots.gradient_over_time({4: run}).axes[0].lines[0]
    assert len(line.get_xdata()) <= 2002
    assert line.get_xdata()[-1] == run["time"].values[-1]


def test_plot_run_writes_png_and_pdf_of_every_figure(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    files = plots.plot_run(a_run(), tmp_path / "figures")
    assert dict(matplotlib.rcParams) == before, "a figure must not change matplotlib's settings"
    assert {file.name for file in files} == {
        f"run_{stem}.{kind}"
        for stem in ("tokens_path0", "gradient_over_time", "energy_balance")
        for kind in ("png", "pdf")
    }
    for file in files:
        assert OF_ONE_RUN.fullmatch(file.stem), "a study would not know it as one of its figures"
        start = b"%PDF" if file.suffix == ".pdf" else b"\x89PNG"
        assert file.read_bytes().startswith(start)


def test_run_without_an_energy_gets_tokens_and_speed(tmp_path: Path) -> None:
    run = without_energy()
    stems = {file.stem for file in plots.plot_run(run, tmp_path)}
    assert stems == {"run_tokens_path0", "run_speed"}
    assert all(OF_ONE_RUN.fullmatch(stem) for stem in stems)
    with pytest.raises(InputError, match="holds no energy"):
        plots.energy_balance(run)


def test_figures_of_runs_whose_names_hold_dots_do_not_overwrite_each_other(tmp_path, sketched):
    run = without_energy()
    stems = {"dt0.01.h5": "dt0.01", "x/dt0.02.h5.partial": "dt0.02", "dt0.1": "dt0.1"}
    for name, stem in stems.items():
        run.encoding["source"] = name
        assert f"{stem}_speed" in {file.stem for file in plots.plot_run(run, tmp_path)}


def test_mean_and_path_are_drawn_on_the_same_principal_axes(tmp_path: Path) -> None:
    run = a_run(d=5, paths=6)
    basis = {}
    for which in ("mean", 0):
        figure = plots.token_snapshots(run, which=which, times=[0.0])
        points = figure.axes[0].collections[0].get_offsets()
        cloud = run["tokens_mean"] if which == "mean" else run["tokens"][0]
        basis[which] = np.linalg.lstsq(cloud.values[0], np.asarray(points), rcond=None)[0]
        assert "principal axes of the mean" in texts(figure).replace("\n", " ")
    np.testing.assert_allclose(basis["mean"], basis[0], atol=1e-10)


def test_energy_that_is_never_finite_is_left_out_with_a_warning(tmp_path, sketched):
    run = a_run()
    for name in ("energy", "edi_residual", "edi_residual_upper_gradient"):
        run[name][:] = np.inf
    assert "not finite" in texts(plots.energy_balance(run))
    for name in ("work_weights", "work_ito", "martingale", "dissipated"):
        run[name][:] = np.nan
    run["dissipated_upper_gradient"][:] = np.inf
    run["upper_gradient_sq"][:] = np.inf
    with pytest.warns(UserWarning, match=r"energy balance.*finite"):
        written = {file.stem for file in plots.plot_run(run, tmp_path)}
    assert "run_energy_balance" not in written and "run_tokens_path0" in written


def test_full_disk_leaves_neither_half_a_figure_nor_harm_to_an_old_one(tmp_path, monkeypatch):
    figure = plots.gradient_over_time({4: a_run()})
    save(figure, tmp_path, "g")
    (tmp_path / "g.pdf").unlink()
    old = (tmp_path / "g.png").read_bytes()

    def full(self, data):
        with self.open("wb") as file:
            file.write(data[:4])
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left"):
        save(figure, tmp_path, "g")
    assert [file.name for file in tmp_path.iterdir()] == ["g.png"]
    assert (tmp_path / "g.png").read_bytes() == old
    with pytest.raises(InputError, match="No space left"):
        save(figure, tmp_path / "new" / "folder", "g")
    assert not (tmp_path / "new").exists()


def test_scaling_figure_claims_no_interval_from_one_path_and_no_pearson_from_two_points() -> None:
    values = np.array([[0.3], [0.2]])
    fit = fits.power_law([4, 8], values)
    shown = texts(plots.gradient_against_heads([4, 8], values, fit))
    assert "95 %" not in shown and "Pearson" not in shown
