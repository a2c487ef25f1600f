"""The figure of the tokens at several times, and the plane in which those of d > 3 are seen."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wflow import _panels
from wflow._figure import COLUMN, MAX_PANELS, PAGE, facts, grid, style
from wflow.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset


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
    shown, cloud = _snapshots(ds, times, which)
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
    columns = min(len(shown), MAX_PANELS)
    rows = math.ceil(len(shown) / columns)
    width = PAGE if columns > 2 else COLUMN
    note = textwrap.fill(note, int(17 * width))
    # For titles and labels of axes; spheres have none, and less than their share of the page.
    room = 0.05 if d == 3 else 0.25 + 0.25 * (rows > 1)
    height = rows * (width / columns + room) + 0.25 + 0.14 * note.count("\n")
    with style():
        figure, axes = grid(rows, columns, width, height)
        for k, (t, points) in enumerate(zip(shown, cloud, strict=True)):
            panel = axes.flat[k]
            if d == 3:
                _panels.sphere(panel, points)
            else:
                _panels.disc(panel, points, names=names, first=k % columns == 0)
            panel.set_title(f"$t$ = {t:.4g}", loc="center", pad=2)
        for panel in axes.flat[len(shown) :]:
            panel.set_axis_off()
        figure.supxlabel(note, fontsize=8.0, color="0.25")
    return figure


def _snapshots(
    ds: "Dataset", times: Sequence[float] | None, which: str | int
) -> tuple[NDArray, NDArray]:
    """Times (k,) and tokens (k, n, d) to draw; snapshots that were never reached are left out."""
    if which == "mean":
        tokens = ds["tokens_mean"].transpose("snapshot", "token", "axis")
    else:
        stored = [int(p) for p in np.atleast_1d(ds["snapshot_path"].values)]
        if which not in stored:
            raise InputError(f"no tokens of path {which!r} in the run: stored are paths {stored}")
        tokens = ds["tokens"].isel(snapshot_path=stored.index(int(which)))
        tokens = tokens.transpose("snapshot", "token", "axis")
    at = np.asarray(ds["snapshot"].values, dtype=float)
    if times is None:
        count = min(len(at), MAX_PANELS)
        chosen = np.unique(np.round(np.linspace(0, len(at) - 1, count)).astype(int))
    else:
        chosen = np.array([int(np.abs(at - t).argmin()) for t in times])
        slack = 1e-6 * max(1.0, float(np.abs(at).max()))
        for t, k in zip(times, chosen, strict=True):
            if abs(at[k] - t) > slack:
                raise InputError(
                    f"no snapshot at t = {t:g}: stored are {', '.join(f'{s:g}' for s in at)}"
                )
    cloud = np.asarray(tokens.isel(snapshot=chosen).values, dtype=float)
    reached = np.isfinite(cloud).all(axis=(1, 2))
    if not reached.any():
        raise InputError("the run holds no snapshot of the tokens yet; let it go on (--resume)")
    return at[chosen][reached], cloud[reached]


def _principal_axes(ds: "Dataset", cloud: NDArray) -> tuple[NDArray, str]:
    """First two principal axes (2, d) of the mean tokens at all snapshots, and whose they are."""
    if "tokens_mean" in ds:
        points = ds["tokens_mean"].transpose("snapshot", "token", "axis").values
        points = points[np.isfinite(points).all(axis=(1, 2))]
        if points.any():
            basis, _ = _panels.principal_axes(points.reshape(-1, points.shape[-1]))
            return basis, "the mean over the paths"
    return _panels.principal_axes(cloud.reshape(-1, cloud.shape[-1]))[0], "what is shown"
