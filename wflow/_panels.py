"""Drawing of tokens in one panel: a circle, a sphere seen from outside, a disc of projections."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AZIMUTH, ELEVATION = np.radians(32.0), np.radians(24.0)  # all three axes +x_k face the viewer
NEAR, FAR = np.array([8, 40, 96]) / 255, np.array([168, 187, 212]) / 255
WIDTH, HEIGHT = 1.22, 1.36  # of a sphere's panel: room for the names of the axes


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
    axis.set_anchor("S")  # room left over goes above the title, not between sphere and note
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
