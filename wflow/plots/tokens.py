"""Figures of tokens at several times, with a projection to a plane for d > 3."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import reals, shown, whole
from wflow._core.errors import InputError
from wflow.plots.figure import COLUMN, MAX_PANELS, PAGE, check_run, facts, grid, require, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset


# Panels: a circle, a sphere seen from outside, a disc of projections
# -------------------------------------------------------------------

AZIMUTH, ELEVATION = np.radians(32.0), np.radians(24.0)  # all three axes +x_k face the viewer
NEAR, FAR = np.array([8, 40, 96]) / 255, np.array([168, 187, 212]) / 255
WIDTH, HEIGHT = 1.22, 1.36  # of a sphere's panel: space for the names of the axes


def principal_axes(points: NDArray[np.floating]) -> tuple[NDArray, NDArray]:
    """First two principal axes (2, d) of points (m, d) about the origin, and their shares (2,)."""
    moment = points.T @ points
    size, axes = np.linalg.eigh(moment)
    first = axes[:, ::-1][:, :2].T
    # The sign of an eigenvector is arbitrary: the largest entry is made positive.
    largest = np.abs(first).argmax(axis=1)
    first = first * np.sign(first[np.arange(2), largest])[:, None]
    return first, size[::-1][:2] / size.sum()


def disc(axis: "Axes", points: NDArray[np.floating], names: tuple[str, ...], first: bool) -> None:
    """Draw points (n, 2) and the unit circle; the first panel of a row carries the axes."""
    from matplotlib.patches import Circle

    axis.add_patch(Circle((0, 0), 1, facecolor="0.975", edgecolor="0.55", linewidth=0.7))
    for line in (axis.axhline, axis.axvline):
        line(0, color="0.85", linewidth=0.4, zorder=1.1)
    axis.scatter(
        points[:, 0],
        points[:, 1],
        s=_size(len(points)),
        color=NEAR,
        alpha=0.6,
        linewidths=0,
        zorder=3,
        clip_on=False,
        rasterized=len(points) > 2000,
    )
    axis.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12), aspect="equal", xticks=(-1, 0, 1))
    axis.set_yticks((-1, 0, 1), labels=None if first else ())
    axis.tick_params(length=2, pad=2)
    axis.set_xlabel(names[0], labelpad=1)
    if first:
        axis.set_ylabel(names[1], labelpad=1)


def sphere(axis: "Axes", points: NDArray[np.floating]) -> None:
    """Draw points (n, 3) of the unit ball in orthographic projection: the far side is lighter."""
    view = _view()
    _globe(axis, view)
    seen = points @ view.T
    depth = np.clip(seen[:, 2], -1, 1)
    order = np.argsort(depth)
    near = ((depth + 1) / 2)[order, None]
    # The step at depth 0 tells the two sides apart where a plain ramp would not.
    near = 0.55 * near + 0.45 * (near > 0.5)
    axis.scatter(
        seen[order, 0],
        seen[order, 1],
        s=_size(len(points)) * (0.6 + 0.4 * near[:, 0]),
        c=FAR + (NEAR - FAR) * near,
        linewidths=0.25 if len(points) <= 1000 else 0,
        edgecolors="white",
        zorder=3,
        rasterized=len(points) > 2000,
    )
    axis.set(xlim=(-WIDTH, WIDTH), ylim=(-1.05, HEIGHT), aspect="equal")
    axis.set_anchor("S")  # remaining space goes above the title, not between sphere and note
    axis.set_axis_off()


def _size(n: int) -> float:
    return float(np.clip(2400 / max(n, 1), 2, 12))


def _view() -> NDArray:
    """Rows: right, up, and towards the viewer."""
    ca, sa, ce, se = np.cos(AZIMUTH), np.sin(AZIMUTH), np.cos(ELEVATION), np.sin(ELEVATION)
    return np.array([[-sa, ca, 0.0], [-se * ca, -se * sa, ce], [ce * ca, ce * sa, se]])


def _globe(axis: "Axes", view: NDArray) -> None:
    """Shaded ball with parallels and meridians every 30 degrees and stubs of the axes."""
    from matplotlib.patheffects import withStroke

    halo: list[Any] = [
        withStroke(linewidth=1.6, foreground="white")
    ]  # tokens may lie beneath the names
    grid = np.linspace(-1, 1, 161)
    x, y = np.meshgrid(grid, grid)
    height = np.sqrt(np.clip(1 - x**2 - y**2, 0, None))
    light = 0.87 + 0.115 * np.clip(-0.35 * x + 0.45 * y + 0.82 * height, 0, 1)
    edge = np.clip((1 - np.hypot(x, y)) * 80, 0, 1)  # soft, against stairs along the rim
    shade = np.stack([light, light, light, edge], axis=-1)
    axis.imshow(shade, extent=(-1, 1, -1, 1), origin="lower", interpolation="bilinear", zorder=0.5)
    angle = np.linspace(0, 2 * np.pi, 181)
    for latitude in np.radians((-60, -30, 0, 30, 60)):
        ring = np.cos(latitude) * np.array([np.cos(angle), np.sin(angle), 0 * angle])
        _grid_line(axis, view @ (ring + np.array([[0], [0], [np.sin(latitude)]])))
    for longitude in np.radians(np.arange(0, 180, 30)):
        across = np.array([[np.cos(longitude)], [np.sin(longitude)], [0.0]])
        up = np.array([[0.0], [0.0], [1.0]])
        _grid_line(axis, view @ (np.cos(angle) * across + np.sin(angle) * up))
    axis.plot(np.cos(angle), np.sin(angle), color="0.55", linewidth=0.6, zorder=1)
    for k in range(3):
        tip = view[:, k]
        stub = np.outer(tip, (1.0, 1.22))
        axis.plot(stub[0], stub[1], color="0.15", linewidth=0.8, zorder=4, path_effects=halo)
        name = axis.text(
            1.4 * tip[0],
            1.38 * tip[1],
            f"$x_{k + 1}$",
            ha="center",
            va="center",
            color="0.15",
            fontsize=7,
            zorder=5,
        )
        name.set_path_effects(halo)


def _grid_line(axis: "Axes", curve: NDArray) -> None:
    front = np.where(curve[2] >= 0, 1.0, np.nan)
    axis.plot(curve[0] * front, curve[1] * front, color="0.74", linewidth=0.35, zorder=1)
    back = np.where(curve[2] <= 0, 1.0, np.nan)
    axis.plot(
        curve[0] * back, curve[1] * back, color="0.83", linewidth=0.3, linestyle=":", zorder=0.8
    )


def token_snapshots(
    ds: "Dataset", times: Sequence[float] | None = None, which: str | int = "mean"
) -> "Figure":
    """Draw the tokens at several times: a row of circles (d = 2) or spheres (d = 3).

    For d > 3 the tokens are projected on the first two principal axes (those of the second moment
    about the origin, so that the image of the sphere is the unit disc) of the mean over the paths
    at all snapshots: figures of the mean and of single paths show the same plane.

    Parameters
    ----------
    ds : run with `tokens_mean` (snapshot, token, axis), or `tokens` for a path
    times : snapshot times to draw; None: all, or five spread evenly where there are more
    which : "mean" for the mean over all paths, which lies inside the ball where the paths differ,
        or the number of a path whose tokens are stored

    Raises
    ------
    InputError
        For a time or a path that is not stored.

    Source: [MHT] figure 1.
    """
    check_run(ds)
    drawn, cloud = _snapshots(ds, times, which)
    d = cloud.shape[-1]
    note = facts(ds, paths=which == "mean")
    note += ", mean position over the paths" if which == "mean" else f", path {which}"
    names = ("$x_1$", "$x_2$")
    if d == 3:
        note += "; dark: near side, light: far side"
    elif d > 3:
        basis, owner = _principal_axes(ds, cloud)
        whole = np.sum(cloud**2)
        cloud = cloud @ basis.T
        share = 100 * np.sum(cloud**2, axis=(0, 1)) / whole
        names = ("principal axis 1", "principal axis 2")
        note += f"; principal axes of {owner}, {share[0]:.0f}\N{NO-BREAK SPACE}% and "
        note += f"{share[1]:.0f}\N{NO-BREAK SPACE}% of the second"
        note += " moment shown"
    columns = min(len(drawn), MAX_PANELS)
    rows = math.ceil(len(drawn) / columns)
    width = PAGE if columns > 2 else COLUMN
    note = textwrap.fill(note, int(17 * width))
    # For titles and labels of axes; spheres have none, and less than their share of the page.
    margin = 0.05 if d == 3 else 0.25 + 0.25 * (rows > 1)
    height = rows * (width / columns + margin) + 0.25 + 0.14 * note.count("\n")
    with style():
        figure, axes = grid(rows, columns, width, height)
        for k, (t, points) in enumerate(zip(drawn, cloud, strict=True)):
            panel = axes.flat[k]
            if d == 3:
                sphere(panel, points)
            else:
                disc(panel, points, names=names, first=k % columns == 0)
            panel.set_title(f"$t$ = {t:.4g}", loc="center", pad=2)
        for panel in axes.flat[len(drawn) :]:
            panel.set_axis_off()
        figure.supxlabel(note, fontsize=8.0, color="0.25")
    return figure


def _snapshots(
    ds: "Dataset", times: Sequence[float] | None, which: str | int
) -> tuple[NDArray, NDArray]:
    """Times (k,) and tokens (k, n, d) to draw; snapshots that were never reached are left out."""
    mean = isinstance(which, str) and which == "mean"
    require(ds, ["snapshot", "tokens_mean"] if mean else ["snapshot", "snapshot_path", "tokens"])
    if mean:
        tokens = ds["tokens_mean"].transpose("snapshot", "token", "axis")
    else:
        stored = [int(p) for p in np.atleast_1d(ds["snapshot_path"].values)]
        if isinstance(which, str) or whole(which, "which", 0) not in stored:
            raise InputError(
                f"no tokens of path {shown(which)} in the run: stored are paths {stored}"
            )
        tokens = ds["tokens"].isel(snapshot_path=stored.index(int(which)))
        tokens = tokens.transpose("snapshot", "token", "axis")
    at = np.asarray(ds["snapshot"].values, dtype=float)
    if not tokens.size:
        raise InputError("the run holds no snapshot of the tokens: solve it again with snapshots")
    if times is None:
        count = min(len(at), MAX_PANELS)
        chosen = np.unique(np.round(np.linspace(0, len(at) - 1, count)).astype(int))
    else:
        wanted = reals(times, "times")
        if wanted.ndim != 1 or not wanted.size:
            raise InputError(f"times are {shown(times)}: expected a list of snapshot times")
        chosen = np.array([int(np.abs(at - t).argmin()) for t in wanted])
        slack = 1e-6 * max(1.0, float(np.abs(at).max()))
        for t, k in zip(wanted, chosen, strict=True):
            if abs(at[k] - t) > slack:
                raise InputError(
                    f"no snapshot at t = {t:g}: stored are {', '.join(f'{s:g}' for s in at)}"
                )
    cloud = np.asarray(tokens.isel(snapshot=chosen).values, dtype=float)
    reached = np.isfinite(cloud).all(axis=(1, 2))
    if not reached.any():
        raise InputError("the run holds no snapshot of the tokens yet; continue it with --resume")
    return at[chosen][reached], cloud[reached]


def _principal_axes(ds: "Dataset", cloud: NDArray) -> tuple[NDArray, str]:
    """First two principal axes (2, d) of the mean tokens at all snapshots, and whose they are."""
    if "tokens_mean" in ds:
        points = ds["tokens_mean"].transpose("snapshot", "token", "axis").values
        points = points[np.isfinite(points).all(axis=(1, 2))]
        if points.any():
            basis, _ = principal_axes(points.reshape(-1, points.shape[-1]))
            return basis, "the mean over the paths"
    return principal_axes(cloud.reshape(-1, cloud.shape[-1]))[0], "what is shown"
