"""Figures of tokens at several times, with a projection to a plane for d > 3."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import check_choice
from wflow._core.errors import InputError
from wflow.plots.figure import (
    COLUMN,
    Style,
    check_one_time,
    check_run,
    facts,
    panel,
    snapshot_panels,
    snapshots,
    time_texts,
    width_in,
)
from wflow.plots.style import style as apply

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure
    from xarray import Dataset


# Panels: a circle, a sphere seen from outside, a disc of projections
# -------------------------------------------------------------------

AZIMUTH, ELEVATION = np.radians(32.0), np.radians(24.0)  # all three axes +x_k face the viewer
NEAR, FAR = np.array([8, 40, 96]) / 255, np.array([168, 187, 212]) / 255
WIDTH, HEIGHT = 1.22, 1.36  # of a sphere's panel: space for the names of the axes


def principal_axes(points: NDArray[np.floating], count: int = 2) -> tuple[NDArray, NDArray]:
    """Return the first principal axes (count, d) of points (m, d), and their shares."""
    moment = points.T @ points
    size, axes = np.linalg.eigh(moment)
    first = axes[:, ::-1][:, :count].T
    # The sign of an eigenvector is arbitrary: the largest entry is made positive.
    largest = np.abs(first).argmax(axis=1)
    first = first * np.sign(first[np.arange(count), largest])[:, None]
    return first, size[::-1][:count] / size.sum()


def disc(
    axis: "Axes",
    points: NDArray[np.floating],
    names: tuple[str, ...],
    first: bool,
    colours: NDArray[np.floating] = NEAR,
) -> "PathCollection":
    """Draw points (n, 2) and the unit circle; the first panel of a row carries the axes."""
    from matplotlib.patches import Circle

    axis.add_patch(Circle((0, 0), 1, facecolor="0.975", edgecolor="0.55", linewidth=0.7))
    for line in (axis.axhline, axis.axvline):
        line(0, color="0.85", linewidth=0.4, zorder=1.1)
    dots = axis.scatter(
        points[:, 0],
        points[:, 1],
        s=_size(len(points)),
        color=colours,
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
    return dots


_AXES = ("$x_1$", "$x_2$", "$x_3$")


def sphere(
    axis: "Axes",
    points: NDArray[np.floating],
    names: Sequence[str] = _AXES,
    colours: NDArray[np.floating] | None = None,
) -> None:
    """Draw points (n, 3) of the unit ball in orthographic projection: the far side is lighter."""
    globe(axis, names)
    seen = points @ view().T
    order, near = by_depth(seen[:, 2])
    axis.scatter(
        seen[order, 0],
        seen[order, 1],
        s=_size(len(points)) * (0.6 + 0.4 * near),
        c=FAR + (NEAR - FAR) * near[:, None] if colours is None else paler(colours[order], near),
        linewidths=0.25 if len(points) <= 1000 else 0,
        edgecolors="white",
        zorder=4.5,  # above the stubs of the axes, below their names
        rasterized=len(points) > 2000,
    )


def by_depth(depth: NDArray[np.floating]) -> tuple[NDArray[np.intp], NDArray[np.floating]]:
    """Return the order of points from far to near, and how near each is, from 0 to 1."""
    order = np.argsort(depth)
    near = (np.clip(depth[order], -1, 1) + 1) / 2
    # The step at depth 0 tells the two sides apart where a plain ramp would not.
    return order, 0.55 * near + 0.45 * (near > 0.5)


def paler(colours: NDArray[np.floating], near: NDArray[np.floating]) -> Any:
    """Return colours (n, 3) of points that are so near, from 0 to 1: the far side is pale."""
    return 1 - (1 - colours) * (1 - 0.72 * (1 - near[:, None]))


def _size(n: int) -> float:
    return float(np.clip(2400 / max(n, 1), 2, 12))


def view() -> NDArray:
    """Return the directions to the right, up, and towards the viewer."""
    ca, sa, ce, se = np.cos(AZIMUTH), np.sin(AZIMUTH), np.cos(ELEVATION), np.sin(ELEVATION)
    return np.array([[-sa, ca, 0.0], [-se * ca, -se * sa, ce], [ce * ca, ce * sa, se]])


def globe(axis: "Axes", names: Sequence[str] = _AXES) -> None:
    """Draw a shaded ball with parallels and meridians every 30 degrees and the axes by name."""
    from matplotlib.patheffects import withStroke

    turn = view()
    halo: list[Any] = [withStroke(linewidth=1.6, foreground="white")]  # tokens lie beneath names
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
        _grid_line(axis, turn @ (ring + np.array([[0], [0], [np.sin(latitude)]])))
    for longitude in np.radians(np.arange(0, 180, 30)):
        across = np.array([[np.cos(longitude)], [np.sin(longitude)], [0.0]])
        up = np.array([[0.0], [0.0], [1.0]])
        _grid_line(axis, turn @ (np.cos(angle) * across + np.sin(angle) * up))
    axis.plot(np.cos(angle), np.sin(angle), color="0.55", linewidth=0.6, zorder=1)
    for k, text in enumerate(names):
        if not text:
            continue
        tip = turn[:, k]
        stub = np.outer(tip, (1.0, 1.22))
        axis.plot(stub[0], stub[1], color="0.15", linewidth=0.8, zorder=4, path_effects=halo)
        name = axis.text(
            1.4 * tip[0],
            1.38 * tip[1],
            text,
            ha="center",
            va="center",
            color="0.15",
            fontsize=7,
            zorder=5,
        )
        name.set_path_effects(halo)
    axis.set(xlim=(-WIDTH, WIDTH), ylim=(-1.05, HEIGHT), aspect="equal")
    axis.set_anchor("S")  # remaining space goes above the title, not between sphere and note
    axis.set_axis_off()


def _grid_line(axis: "Axes", curve: NDArray) -> None:
    front = np.where(curve[2] >= 0, 1.0, np.nan)
    axis.plot(curve[0] * front, curve[1] * front, color="0.74", linewidth=0.35, zorder=1)
    back = np.where(curve[2] <= 0, 1.0, np.nan)
    axis.plot(
        curve[0] * back, curve[1] * back, color="0.83", linewidth=0.3, linestyle=":", zorder=0.8
    )


def token_snapshots(
    ds: "Dataset",
    times: Sequence[float] | None = None,
    which: str | int | None = None,
    *,
    color: Literal["cluster", "start"] | None = None,
    style: Style = "screen",
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw the tokens at several times: a panel of circles (d = 2) or spheres (d = 3) each [1]_.

    For d > 3 the tokens are projected on the first two principal axes (those of the second moment
    about the origin, so that the image of the sphere is the unit disc) of the mean over the paths
    at all snapshots: figures of the mean and of single paths show the same plane.

    Parameters
    ----------
    ds : xarray.Dataset
        Run with `tokens` of a path, or with `tokens_mean` (snapshot, token, axis).
    times : sequence of float, optional
        Snapshot times to draw. Default: all, or six spread evenly where there are more; with `ax`
        the last. The times in the titles are rounded to about a hundredth of the last.
    which : str or int, optional
        Number of a path whose tokens are stored, or ``"mean"`` for the mean over all paths, which
        lies inside the ball where the paths differ. Default: the first path that is stored.
    color : {"cluster", "start"}, optional
        Colour of the tokens: of the clusters at the last time drawn, by single linkage at 0.2 rad,
        or of where they are at the first time stored. Default: one colour for all.
    style : {"screen", "paper"}, default: "screen"
        "screen" is up to 6.9 inches wide, both columns of a journal page; "paper" is 3.3 inches
        wide, one column, with at most three panels in a row.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw the tokens at one time in. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        The new figure, or the one of `ax`.

    Raises
    ------
    InputError
        For a time or a path that is not stored, ``save=wflow.SaveAt(snapshots=[...],
        paths=[...])``, for clusters of a mean, and for several times with `ax`.

    See Also
    --------
    animate : The tokens of a path moving through all snapshots.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv 2605.18870, figure 1.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(n=20, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.2, dt=0.05)
    >>> [axis.get_title() for axis in wflow.plots.token_snapshots(run).axes]
    ['$t$ = 0', '$t$ = 0.2']
    """
    check_run(ds)
    if color is not None:
        check_choice("color", color, ("cluster", "start"))
    if which is None:
        kept = ds["snapshot_path"].values if "tokens" in ds and ds["tokens"].size else ()
        which = int(np.atleast_1d(kept)[0]) if np.size(kept) else "mean"
    if which == "mean" and color == "cluster":
        raise InputError("color='cluster' needs the tokens of one path: give its number as `which`")
    drawn, stored = snapshots(ds, "tokens", which, times)
    cloud = np.asarray(stored.values, dtype=float)
    if ax is not None:
        check_one_time(0 if times is None else len(drawn))
        drawn, cloud = drawn[-1:], cloud[-1:]
    d = cloud.shape[-1]
    last = cloud[-1]
    note = facts(ds, paths=which == "mean")
    note += ", mean position over the paths" if which == "mean" else f", path {which}"
    names = ("$x_1$", "$x_2$")
    colours, words = None, ""
    if color is not None:
        shown = snapshots(ds, "tokens", which)[1][0].values if color == "start" else last
        colours, words = colours_by(color, np.asarray(shown, dtype=float))
    if d == 3:
        note += "; dark: near side, light: far side"
    elif d > 3:
        basis, owner = _principal_axes(ds, cloud)
        whole = np.sum(cloud**2)
        cloud = cloud @ basis.T
        share = 100 * np.sum(cloud**2, axis=(0, 1)) / whole
        names = ("Principal axis 1", "Principal axis 2")
        note += f"; principal axes of {owner}, {share[0]:.0f}\N{NO-BREAK SPACE}% and "
        note += f"{share[1]:.0f}\N{NO-BREAK SPACE}% of the second moment shown"
    note += words

    def draw(axis: "Axes", points: NDArray, first: bool) -> None:
        if d == 3:
            sphere(axis, points, colours=colours)
        else:
            disc(axis, points, names, first, NEAR if colours is None else colours)

    if ax is not None:
        with panel(ax, width_in(style, COLUMN), COLUMN) as (figure, axis):
            draw(axis, cloud[0], True)
            axis.set_title(f"$t$ = {time_texts(drawn)[0]}")
        return figure
    with apply():
        # Space for titles and labels of axes; spheres have none, and fill less than their width.
        figure, axes = snapshot_panels(
            drawn,
            note,
            style,
            lambda width, rows: width + (0.05 if d == 3 else 0.25 + 0.25 * (rows > 1)),
        )
        panels: Any = list(axes.flat)
        for k, points in enumerate(cloud):
            draw(panels[k], points, k % axes.shape[1] == 0)
    return figure


LINKED = 0.2  # radians up to which two tokens are of one cluster


def colours_by(color: str, points: NDArray[np.floating]) -> tuple[NDArray[np.floating], str]:
    """Return colours (n, 3) of tokens, and words for a title.

    They are by "cluster" of the tokens (n, d) at the last time, or by "start" at the first.
    """
    if color == "cluster":
        from wflow.analysis.clusters import labels

        found = labels(points / np.linalg.norm(points, axis=-1, keepdims=True), LINKED)
        return cluster_colours(found), f"; {found.max() + 1} clusters at {LINKED:g} rad"
    d = points.shape[-1]
    axes = principal_axes(points, 3)[0] if d > 3 else np.eye(d)
    return place_colours(points @ axes.T), "; coloured by the first place"


def cluster_colours(labels: NDArray[np.integer]) -> NDArray[np.floating]:
    """Return colours (n, 3) of tokens by their clusters, the largest first."""
    from matplotlib import colormaps

    order = np.argsort(-np.bincount(labels), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    palette = np.array(colormaps["tab10"].colors)  # type: ignore[attr-defined]
    return np.asarray(palette[place[labels] % len(palette)])


def place_colours(points: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return colours (n, 3) of points (n, 2 or 3): hue by the angle, lightness by the height."""
    from matplotlib.colors import hsv_to_rgb

    height = points[:, 2] if points.shape[1] > 2 else np.zeros(len(points))
    hue = np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi) % 1
    tone = np.stack([hue, 0.85 - 0.35 * np.clip(height, 0, 1), 0.85 + 0.3 * np.clip(height, -1, 0)])
    return np.asarray(hsv_to_rgb(tone.T))


def _principal_axes(ds: "Dataset", cloud: NDArray) -> tuple[NDArray, str]:
    """Return the principal axes (2, d) of the mean tokens at all snapshots, and whose they are."""
    if "tokens_mean" in ds:
        points = ds["tokens_mean"].transpose("snapshot", "token", "axis").values
        points = points[np.isfinite(points).all(axis=(1, 2))]
        if points.any():
            basis, _ = principal_axes(points.reshape(-1, points.shape[-1]))
            return basis, "the mean over the paths"
    return principal_axes(cloud.reshape(-1, cloud.shape[-1]))[0], "what is shown"
