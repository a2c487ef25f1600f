"""Tokens or densities in motion, the energy beside them: in a notebook, as GIF or as MP4."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import number, path_of, shown, whole
from wflow._core.errors import InputError
from wflow.plots.densities import moving
from wflow.plots.figure import (
    MAX_FRAMES,
    MAX_TOKENS,
    check_run,
    evenly,
    facts,
    log_axis,
    panel,
    series,
    snapshots,
    style,
    time_axis,
    time_texts,
)
from wflow.plots.tokens import by_depth, colours_by, disc, globe, paler, principal_axes, view
from wflow.runs.results import DRAFT

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure
    from xarray import Dataset

SIZE = (7.2, 3.7)  # inches; even numbers of pixels at any dpi that divides by ten, as MP4 needs
_NEAR = "#082860"


def animate(
    run: "Dataset",
    file: str | Path | None = None,
    *,
    path: int = 0,
    frames: int | None = None,
    fps: float = 20.0,
    dpi: float = 100.0,
    color: Any = _NEAR,
    ax: "Axes | None" = None,
) -> "FuncAnimation":
    """Animate tokens, or the density, of one path through the snapshots, the energy beside them.

    The tokens are on the circle (d = 2) or the sphere (d = 3), those on the far side paler. For
    d > 3 they are projected on their first three principal axes, into the unit ball, and the title
    says so. Every frame is a snapshot: nothing is interpolated between snapshots. A marker moves
    along the energy, or along the mean squared speed where the heads have no energy. The density of
    a run of `wflow.meanfield.solve` is a curve over the angle, or the colour of the sphere.

    Parameters
    ----------
    run : xarray.Dataset
        Run with the tokens, or densities, of the path at three snapshots or more.
    file : str or pathlib.Path, optional
        File to write: GIF by the ending ``.gif`` (Pillow) or MP4 by ``.mp4`` (ffmpeg). An existing
        file is replaced when the new one is complete.
    path : int, default: 0
        Number of the path.
    frames : int, optional
        Number of frames, at most 150, spread evenly over the snapshots. Default: all snapshots, or
        150 of them where there are more.
    fps : float, default: 20.0
        Frames per second.
    dpi : float, default: 100.0
        Pixels per inch of a frame of 7.2 by 3.7 inches.
    color : {"cluster", "start"}, color or sequence of color, default: "#082860"
        Colour of the tokens: of their clusters at the last snapshot, by single linkage at 0.2 rad;
        of where they are at the first; or a colour of Matplotlib for all tokens, or one for each
        of the n tokens.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw the tokens or the density in, without the energy; the other artists of
        its figure stay as they are. Default: a new figure in the style of wflow.

    Returns
    -------
    matplotlib.animation.FuncAnimation
        The animation, which plays in a notebook; its `save` writes other formats.

    Raises
    ------
    InputError
        For a run without snapshots, ``save=wflow.SaveAt(snapshots=[...], paths=[...])``, for
        another ending of `file`, for MP4 on a machine without ffmpeg, and for `ax` that is no Axes.

    See Also
    --------
    token_snapshots : A figure with a panel for each of several times.
    density_snapshots : The same for densities.

    Notes
    -----
    At most 2,000 tokens are drawn, spread evenly over their numbers. The title says how many of how
    many tokens and snapshots are shown where some are left out.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x0 = wflow.tokens.uniform(n=20, d=3, seed=0)
    >>> save = wflow.SaveAt(snapshots=np.linspace(0.0, 1.0, 5))
    >>> law = wflow.heads.Frozen()
    >>> run = wflow.solve(
    ...     x0, law, heads=[4.0 * np.eye(3)], t_final=1.0, dt=0.25, direction="ascent", save=save
    ... )
    >>> animation = wflow.plots.animate(run, "ascent.gif", frames=3)
    """
    check_run(run, "run")
    if frames is not None and whole(frames, "frames", 2) > MAX_FRAMES:
        raise InputError(f"frames is {shown(frames)}: expected at most {MAX_FRAMES}")
    fps, dpi = number(fps, "fps"), number(dpi, "dpi")
    if not 0.1 <= fps <= 100:
        raise InputError(f"fps is {shown(fps)}: expected frames per second from 0.1 to 100")
    if not 20 <= dpi <= 600:
        raise InputError(f"dpi is {shown(dpi)}: expected pixels per inch from 20 to 600")
    place = None if file is None else path_of(file, "file")
    if place is not None:
        _check_writer(place)
    note = ""
    start: Callable[[Axes], tuple[list[Any], Callable[[int], None]]]
    if "density" in run and "tokens" not in run:
        time, start = moving(run, path, frames or MAX_FRAMES)
    else:
        time, clouds, note = _chosen(run, path, frames or MAX_FRAMES)
        n = run.sizes["token"]
        if isinstance(color, str) and color in ("cluster", "start"):
            stored = snapshots(run, "tokens", path)[1]
            colours = colours_by(color, stored[0 if color == "start" else -1].values)[0]
        else:
            colours = _colours(color, n)
        colours = colours[evenly(n, MAX_TOKENS)]

        def start(axis: "Axes") -> tuple[list[Any], Callable[[int], None]]:
            dots, move = _tokens(axis, clouds[0], colours, run.sizes["axis"])
            return [dots], lambda k: move(clouds[k])

    playing = _animation(run, int(path), time, start, note, fps, dpi, ax)
    if place is not None:
        _write(playing, place, fps, dpi)
    return playing


def _chosen(run: "Dataset", path: Any, frames: int) -> tuple[NDArray, NDArray, str]:
    """Return times (k,), tokens (k, n, 2 or 3) in the axes shown, and a note for the title."""
    time, stored = snapshots(run, "tokens", path, most=frames, least=3)
    n, d = stored.sizes["token"], stored.sizes["axis"]
    few = evenly(n, MAX_TOKENS)
    clouds = np.asarray(stored.isel(token=few).values, dtype=float)
    note = []
    if d > 3:
        basis, share = principal_axes(clouds.reshape(-1, d), 3)
        clouds = clouds @ basis.T
        note.append(
            f"first three principal axes, {100 * share.sum():.0f}\N{NO-BREAK SPACE}% of the second "
            "moment"
        )
    if len(few) < n:
        note.append(f"{len(few)} of {n} tokens shown")
    if len(time) < run.sizes["snapshot"]:
        note.append(f"{len(time)} of {run.sizes['snapshot']} snapshots shown")
    return time, clouds, "; ".join(note)


def _colours(color: Any, n: int) -> NDArray:
    """Return colours (n, 3) of the tokens on the near side."""
    from matplotlib.colors import to_rgba_array

    try:
        given = to_rgba_array(color)[:, :3]
    except (TypeError, ValueError):
        given = np.empty((0, 3))
    if len(given) not in (1, n) or not len(given):
        raise InputError(
            f"color is {shown(color)}: expected 'cluster', 'start', a colour of Matplotlib, such "
            f"as '#082860', or a list of {n} colours, one for each token"
        )
    return np.broadcast_to(given, (n, 3))


def _curve(run: "Dataset", path: int) -> tuple[str, NDArray, NDArray, bool] | None:
    """Return label, times and values of the curve beside the tokens, and whether it is log."""
    numbers = np.asarray(run["path"].values if "path" in run else (), dtype=int)
    places = np.flatnonzero(numbers == path)
    names = {
        "energy": ("Energy $E$", False),
        "speed_sq": (r"Mean squared speed $\Sigma_i |v_i|^2 / n$", True),
    }
    for name, (label, log) in names.items():
        if len(places) and name in run and run[name].size:
            time, values = series(run.isel(path=[int(places[0])]), name)
            known = np.isfinite(values[0]) & ((values[0] > 0) | (not log))
            if known.any():
                return label, time[known], values[0, known], log
    return None


def _animation(
    run: "Dataset",
    path: int,
    time: NDArray,
    start: "Callable[[Axes], tuple[list[Any], Callable[[int], None]]]",
    note: str,
    fps: float,
    dpi: float,
    ax: "Axes | None",
) -> "FuncAnimation":
    """Return the animation, of artists that are updated in place."""
    from wflow.plots.inline import AnimatedFigure

    shown_times = time_texts(time)
    if ax is not None:
        with panel(ax, *SIZE) as (owner, alone):
            _, move = start(alone)
            title = alone.set_title(note, loc="center")

        def show_alone(k: int) -> list[Any]:
            move(k)
            title.set_text(f"{note}\n$t$ = {shown_times[k]}".lstrip())
            return []

        return _playing(owner, show_alone, len(time), fps, dpi)
    beside = _curve(run, path)
    with style():
        width, height = SIZE
        ratios = [1.0] if beside is None else [1.0, 1.25]
        if beside is None:
            width *= 0.6
        figure = AnimatedFigure(figsize=(width, height), dpi=dpi, layout="constrained")
        axes = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)
        left: Axes = axes[0, 0]
        moved, move = start(left)
        clock = left.text(0.5, 1.0, "$t$ = 0", transform=left.transAxes, ha="center", va="bottom")
        figure.suptitle(
            f"{facts(run, paths=False)}, path {path}" + (f"\n{note}" if note else ""),
            fontsize=8.5, x=0.01, ha="left",
        )  # fmt: skip
        marker = None
        if beside is not None:
            label, at, values, log = beside
            axis: Axes = axes[0, 1]
            axis.plot(at, values, color="0.35", linewidth=1.2)
            axis.set_ylabel(label)
            if log:
                axis.set_yscale("log")
                log_axis(axis)
            time_axis(axis)
            where = np.interp(time, at, values)
            # The curve may begin after the first snapshot or end before the last: no marker there.
            where[(time < at[0] - 1e-9) | (time > at[-1] + 1e-9)] = np.nan
            (marker,) = axis.plot(time[:1], where[:1], "o", color="#D55E00", markersize=6, zorder=4)
        figure.moves(*moved, clock, *([] if marker is None else [marker]))
        figure.draw_without_rendering()  # the layout of the first frame is kept in all of them
        figure.set_layout_engine("none")

    def show(k: int) -> list[Any]:
        move(k)
        clock.set_text(f"$t$ = {shown_times[k]}")
        if marker is not None:
            marker.set_data(time[k : k + 1], where[k : k + 1])
        return []

    return _playing(figure, show, len(time), fps, dpi)


def _playing(
    figure: "Figure", show: Callable[[int], list[Any]], frames: int, fps: float, dpi: float
) -> "FuncAnimation":
    from wflow.plots.inline import Animation

    playing = Animation(figure, show, frames=frames, interval=1000 / fps, blit=False)
    playing.dpi = dpi
    return playing


def _tokens(
    axis: "Axes", points: NDArray, colours: NDArray, d: int
) -> "tuple[PathCollection, Callable[[NDArray], None]]":
    """Draw the tokens of the first frame; returns them and the function that moves them."""
    if points.shape[1] == 2:
        dots = disc(axis, points, ("$x_1$", "$x_2$"), True, colours)
        return dots, dots.set_offsets
    n = len(points)
    size = float(np.clip(3600 / n, 3, 20))
    names = [rf"${'x' if d == 3 else 'p'}_{k}$" for k in (1, 2, 3)]
    globe(axis, names)
    dots = axis.scatter(
        points[:, 0], points[:, 1], s=size, c=colours, linewidths=0.25 if n <= 1000 else 0,
        edgecolors="white", zorder=3,
    )  # fmt: skip
    turn = view().T

    def move(points: NDArray) -> None:
        seen = points @ turn
        order, near = by_depth(seen[:, 2])
        dots.set_offsets(seen[order, :2])
        dots.set_facecolor(paler(colours[order], near))
        dots.set_sizes(size * (0.6 + 0.4 * near))

    move(points)
    return dots, move


def _check_writer(file: Path) -> None:
    """Raise InputError for an ending that is not known, and where ffmpeg is missing."""
    import matplotlib

    suffix = file.suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise InputError(f"file is {file}: expected a name that ends in .gif or .mp4")
    if not file.parent.is_dir():
        raise InputError(f"file is {file}: there is no folder {file.parent}; make it first")
    if file.is_dir():
        raise InputError(f"file is {file}, a folder: expected the name of a file")
    program = matplotlib.rcParams["animation.ffmpeg_path"]
    if suffix == ".mp4" and shutil.which(program) is None:
        raise InputError(
            f"MP4 needs the program ffmpeg, and {program!r} was not found: install ffmpeg, or give "
            f"a name that ends in .gif"
        )


def _write(playing: "FuncAnimation", file: Path, fps: float, dpi: float) -> None:
    """Write the animation under a draft's name, then put it in place."""
    from matplotlib.animation import FFMpegWriter

    from wflow.plots.inline import GifWriter

    kind = file.suffix.lower()
    rate: Any = fps  # Matplotlib takes any number
    writer = GifWriter(fps=rate) if kind == ".gif" else FFMpegWriter(fps=rate)
    try:
        # Both tell the format by the ending, which a draft beside the file would have to keep.
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=DRAFT) as folder, style():
            draft = Path(folder) / f"draft{kind}"
            playing.save(draft, writer=writer, dpi=dpi)
            os.replace(draft, file)
    except subprocess.CalledProcessError as error:
        raise InputError(
            f"cannot write the animation {file}: ffmpeg failed with exit status "
            f"{error.returncode}; give a name that ends in .gif"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot write the animation {file}: {error.strerror or error}; free space on the "
            "disk, or give another folder"
        ) from None
