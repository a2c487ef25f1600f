"""Animations: what moves, what is said, and which files are written."""

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from PIL import Image

import wflow
from wflow import InputError, plots
from wflow.plots import animation

pytestmark = pytest.mark.filterwarnings("ignore:Animation was deleted")


def solved(d: int = 3, n: int = 12, frames: int = 5, **options: Any) -> xr.Dataset:
    x0 = wflow.tokens.uniform(n=n, d=d, seed=0)
    options.setdefault("save", wflow.SaveAt(snapshots=np.linspace(0, 0.4, frames)))
    law = wflow.heads.Frozen()
    return wflow.solve(x0, law, heads=1, t_final=0.4, dt=0.4 / (frames - 1), **options)


def pictures(file: Path) -> list[np.ndarray]:
    with Image.open(file) as image:
        found = []
        for k in range(image.n_frames):
            image.seek(k)
            found.append(np.asarray(image.convert("RGB"), dtype=int))
        return found


def words(playing: Any) -> str:
    figure = playing._fig
    return "\n".join([figure.get_suptitle(), *(t.get_text() for t in figure.axes[0].texts)])


@pytest.mark.parametrize("d", [2, 3, 5])
def test_gif_has_a_frame_for_every_snapshot_and_tokens_and_marker_move(d, tmp_path):
    playing = plots.animate(solved(d), tmp_path / "a.gif", dpi=40, fps=10)
    frames = pictures(tmp_path / "a.gif")
    assert len(frames) == 5
    wide = frames[0].shape[1]
    for one, two in pairwise(frames):
        moved = np.abs(one - two).sum(axis=2)
        assert moved[:, : wide // 3].any() and moved[:, wide // 2 :].any()
    assert ("first three principal axes" in words(playing)) == (d == 5)
    assert [file.name for file in tmp_path.iterdir()] == ["a.gif"]
    with Image.open(tmp_path / "a.gif") as image:
        assert image.info["duration"] == 100 and image.info["loop"] == 0
        image.seek(image.n_frames - 1)
        assert image.info["duration"] > 1000, "the end is seen before it begins again"


def test_frames_are_those_of_a_figure_drawn_as_a_whole(tmp_path: Path) -> None:
    playing = plots.animate(solved(), dpi=50)
    figure = playing._fig
    playing._func(3)
    fast = np.asarray(figure._frame(50.0), dtype=int)[..., :3]
    figure.savefig(tmp_path / "whole", format="png", metadata=None, dpi="figure")
    with Image.open(tmp_path / "whole") as image:
        whole = np.asarray(image.convert("RGB"), dtype=int)
    # The names of the axes, which stand before the tokens in one and behind them in the other.
    assert np.mean(np.abs(fast - whole).max(axis=2) > 40) < 0.002


@pytest.mark.parametrize("d", [2, 3, 5, "density"])
def test_given_axes_show_what_moves_alone(d: Any, tmp_path: Path) -> None:
    if d == "density":
        save = wflow.SaveAt(snapshots=np.linspace(0, 0.1, 5))
        run = wflow.meanfield.solve(
            lambda x: 1 + x[:, 0], wflow.heads.Frozen(), mesh=wflow.meanfield.Sphere(162),
            heads=[np.eye(3)], t_final=0.1, dt=0.025, save=save,
        )  # fmt: skip
    else:
        run = solved(d)
    left, right = Figure(dpi=40).subplots(1, 2)
    right.plot([0, 1])
    playing = plots.animate(run, tmp_path / "a.gif", ax=left, dpi=40, fps=10)
    assert playing._fig is left.figure and not left.figure.get_suptitle()
    assert len(right.lines) == 1 and left.get_title().endswith(f"= {run.snapshot.values[-1]:g}")
    assert ("first three principal axes" in left.get_title()) == (d == 5)
    frames = pictures(tmp_path / "a.gif")
    half = frames[0].shape[1] // 2
    assert len(frames) == 5
    assert all((one != two)[:, :half].any() for one, two in pairwise(frames))
    assert playing._repr_html_().count("data:image/png") == 5
    with pytest.raises(InputError, match="expected one Axes"):
        plots.animate(run, tmp_path / "b.gif", ax=left.figure)
    assert not (tmp_path / "b.gif").exists()


def test_tokens_behind_the_sphere_are_paler() -> None:
    playing = plots.animate(solved(n=40), color="black")
    dots = playing._fig.axes[0].collections[0]
    playing._func(0)
    shade = dots.get_facecolors()[:, 0]
    assert shade[0] > 0.3 and shade[-1] < 0.05, "drawn from far to near"
    assert np.all(np.diff(shade) <= 0) and np.all(np.diff(dots.get_sizes()) >= 0)


def test_every_token_may_have_its_colour() -> None:
    run = solved(d=2)
    colours = [f"#{20 * k:02x}0000" for k in range(12)]
    dots = plots.animate(run, color=colours)._fig.axes[0].collections[0]
    np.testing.assert_allclose(dots.get_facecolors()[:, 0], np.arange(12) * 20 / 255)
    by_cluster = plots.animate(run, color="cluster")._fig.axes[0].collections[0]
    count = wflow.clusters.labels(run.tokens.values[0, -1], scale=0.2).max() + 1
    assert len(np.unique(by_cluster.get_facecolor()[:, :3], axis=0)) == min(count, 10)
    for given in ("no colour", colours[:5], None):
        with pytest.raises(InputError, match="12 colours"):
            plots.animate(run, color=given)


def test_tokens_and_snapshots_left_out_are_counted_in_the_title(monkeypatch):
    run = solved(n=30, frames=9)
    monkeypatch.setattr(animation, "MAX_TOKENS", 20)
    playing = plots.animate(run, frames=4)
    assert "20 of 30 tokens shown" in words(playing)
    assert "4 of 9 snapshots shown" in words(playing)
    assert len(playing._fig.axes[0].collections[0].get_offsets()) == 20
    monkeypatch.setattr(animation, "MAX_FRAMES", 5)
    assert "5 of 9 snapshots shown" in words(plots.animate(run))
    with pytest.raises(InputError, match="at most 5"):
        plots.animate(run, frames=6)


def test_marker_lies_on_the_energy_at_the_time_shown() -> None:
    run = solved()
    playing = plots.animate(run)
    tokens, energy = playing._fig.axes
    playing._func(2)
    curve, marker = energy.lines
    assert marker.get_xdata()[0] == run["snapshot"].values[2]
    np.testing.assert_allclose(marker.get_ydata()[0], run["energy"].values[0, 2])
    assert "0.2" in tokens.texts[-1].get_text()
    np.testing.assert_allclose(curve.get_ydata(), run["energy"].values[0])


def test_player_of_a_notebook_holds_every_frame_once() -> None:
    playing = plots.animate(solved(), dpi=30)
    page = playing._repr_html_()
    assert len(re.findall(r"frames\[\d+\] = ", page)) == 5
    assert playing._repr_html_() is page
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
def test_mp4_is_written_with_ffmpeg(tmp_path: Path) -> None:
    plots.animate(solved(), tmp_path / "a.mp4", dpi=30)
    assert (tmp_path / "a.mp4").read_bytes()[4:8] == b"ftyp"
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


def test_files_that_cannot_be_written_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = solved()
    (tmp_path / "a.gif").mkdir()
    refused = {"a.mp4": "ffmpeg", "a.avi": "gif", "none/a.gif": "make it first", "a.gif": "folder"}
    for name, word in refused.items():
        with pytest.raises(InputError, match=word):
            plots.animate(run, tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["a.gif"]
