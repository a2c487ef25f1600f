"""Figures of densities: curves over the angle on the circle, coloured spheres on S^2."""

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import InputError
from wflow.plots.figure import (
    COLUMN,
    Style,
    band_note,
    check_one_time,
    check_run,
    config,
    curve,
    facts,
    grid,
    panel,
    require,
    series,
    snapshot_panels,
    snapshots,
    time_axis,
    time_texts,
    width_in,
)
from wflow.plots.style import style as apply
from wflow.plots.tokens import globe, view
from wflow.runs.schema import TAIL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from xarray import Dataset

Floats = NDArray[np.floating]

COLOURS = "magma_r"
_PIXELS = 420  # across a sphere
_WIDE = 20.0  # largest density over its mean on the sphere, above which colours are logarithmic
_DECADES = 3.0


def density_snapshots(
    ds: "Dataset",
    times: Sequence[float] | None = None,
    which: str | int = "mean",
    *,
    style: Style = "screen",
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw densities at several times: curves over the angle (d = 2), or spheres (d = 3).

    Parameters
    ----------
    ds : xarray.Dataset
        Run of `wflow.meanfield.solve`.
    times : sequence of float, optional
        Snapshot times to draw. Default: all, or six spread evenly where there are more; on the
        sphere with `ax` the last.
    which : str or int, default: "mean"
        ``"mean"`` for the mean over the paths, or the number of a path whose densities are stored.
    style : {"screen", "paper"}, default: "screen"
        "screen" is up to 6.9 inches wide, both columns of a journal page; "paper" is 3.3 inches
        wide, one column, with at most three spheres in a row.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw in. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        The new figure, or the one of `ax`.

    Raises
    ------
    InputError
        For a run without densities, a time or a path that is not stored, and for several times on
        the sphere with `ax`.

    See Also
    --------
    animate : The density of a path through all snapshots.

    Notes
    -----
    On the sphere values are interpolated linearly between the centres of the cells, and all panels
    share the colours; they are logarithmic where the density exceeds 20 times its mean.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> from wflow import meanfield
    >>> run = meanfield.solve(
    ...     lambda x: 1 + x[:, 0], wflow.heads.Frozen(), mesh=meanfield.Sphere(162),
    ...     heads=np.eye(3)[None], t_final=0.2, kappa=0.1,
    ... )
    >>> [axis.get_title() for axis in wflow.plots.density_snapshots(run).axes[:2]]
    ['$t$ = 0', '$t$ = 0.2']
    """
    check_run(ds)
    drawn, values, centres = densities(ds, which, times)
    note = facts(ds, paths=which == "mean")
    many = ", mean over the paths" if ds.sizes.get("path", 1) > 1 else ""
    note += many if which == "mean" else f", path {which}"
    if centres.shape[1] == 2:
        with panel(ax, width_in(style, 4.6), 2.8) as (figure, axis):
            _curves(axis, centres, drawn, values)
            if ax is None:
                axis.set_title(textwrap.fill(note, 50), fontsize=8.0, color="0.25", loc="left")
        return figure
    if ax is not None:
        check_one_time(0 if times is None else len(drawn))
        drawn, values = drawn[-1:], values[-1:]
    norm, seen = colours_of(values), pixels_of(centres)
    if ax is not None:
        with panel(ax, width_in(style, COLUMN), COLUMN) as (figure, axis):
            image = ball(axis, seen(values[0]), norm)
            axis.set_title(f"$t$ = {time_texts(drawn)[0]}")
            figure.colorbar(image, ax=axis, shrink=0.7, label=r"$\rho$")
        return figure
    with apply():
        figure, axes = snapshot_panels(drawn, note, style, lambda width, _: 0.93 * width + 0.05)
        for axis, each in zip(axes.flat, values, strict=False):
            image = ball(axis, seen(each), norm)
        figure.colorbar(image, ax=axes, shrink=0.75, aspect=18, label=r"Density $\rho$", pad=0.01)
    return figure


def densities(
    ds: "Dataset", which: Any, times: Sequence[float] | None = None, **limits: int
) -> tuple[Floats, Floats, Floats]:
    """Return times (k,), densities (k, cell) and centres of the cells (cell, d), by `snapshots`."""
    require(ds, ["centres"], "Solve it with wflow.meanfield.solve")
    drawn, values = snapshots(ds, "density", which, times, **limits)
    return drawn, np.asarray(values.values, float), np.asarray(ds["centres"].values, float)


def free_energy_over_time(
    ds: "Dataset", *, style: Style = "screen", ax: "Axes | None" = None
) -> "Figure":
    r"""Draw free energy and entropy of densities over time, and what tells of errors in space.

    Parameters
    ----------
    ds : xarray.Dataset
        Run of `wflow.meanfield.solve`. Curves are means over the paths, bands hold the middle 80 %
        of the paths.
    style : {"screen", "paper"}, default: "screen"
        Size of a new figure: either one is 3.3 inches wide, one column of a journal page.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw the free energy alone in, or the entropy of a run without an energy.
        Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Panels of the free energy (of runs with an energy), of the entropy, and of the numerical
        diffusion beside kappa, or the spectral tail beside its limit; or the figure of `ax`.

    Raises
    ------
    InputError
        For a run that is not one of densities.

    See Also
    --------
    density_snapshots : The densities.
    energy_balance : The terms of the energy.

    Notes
    -----
    With s = -1 in descent and +1 in ascent,

    .. math:: F = -s E - \kappa S, \qquad S = -\int \rho \log \rho \, dx .

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.meanfield.solve(
    ...     lambda x: 1 + 0.5 * x[:, 0], wflow.heads.Frozen(), mesh=wflow.meanfield.Circle(16),
    ...     heads=np.eye(2)[None], t_final=0.1, kappa=0.1,
    ... )
    >>> [axis.get_ylabel() for axis in wflow.plots.free_energy_over_time(run).axes]
    ['Free energy $F$', 'Entropy $S$', 'Numerical diffusion']
    """
    check_run(ds)
    require(ds, ["entropy"], "Solve it with wflow.meanfield.solve")
    panels = [("free_energy", "Free energy $F$"), ("entropy", "Entropy $S$")]
    panels += [
        ("numerical_diffusion", "Numerical diffusion"), ("spectral_tail", "Spectral tail"),
    ]  # fmt: skip
    panels = [(name, label) for name, label in panels if name in ds]
    limits = {"numerical_diffusion": (config(ds).get("kappa"), r"$\kappa$")}
    limits["spectral_tail"] = (TAIL, "not resolved")
    width = width_in(style, COLUMN)
    if ax is not None:
        with panel(ax, width, 2.8) as (figure, axis):
            name, label = panels[0]
            curve(axis, *series(ds, name), color="#000000", linewidth=1.3, band_alpha=0.2)
            axis.set_ylabel(label)
            time_axis(axis)
        return figure
    with apply():
        figure, axes = grid(len(panels), 1, width, 0.7 + 1.35 * len(panels), sharex=True)
        for axis, (name, label) in zip(axes.flat, panels, strict=True):
            time, values = series(ds, name)
            curve(axis, time, values, color="#000000", linewidth=1.3, band_alpha=0.2)
            axis.set_ylabel(label)
            level, words = limits.get(name, (None, ""))
            if level:
                axis.axhline(level, color="#D55E00", linestyle=(0, (6, 1.5)), label=words)
                axis.set_yscale("log" if name == "spectral_tail" else "linear")
                axis.legend(loc="best")
        time_axis(axes[-1, 0])
        title = facts(ds)
        title += band_note("percentiles") if ds.sizes.get("path", 1) > 1 else ""
        axes[0, 0].set_title(title.replace("; ", "\n"))
        figure.align_ylabels()
    return figure


def _curves(axis: "Axes", centres: Floats, times: Floats, values: Floats) -> None:
    """Draw densities on the circle over the angle, early ones lighter."""
    from matplotlib import colormaps

    angle, order = angles_of(centres)
    shades = colormaps["viridis_r"](np.linspace(0.15, 1.0, len(times)))
    for t, each, shade in zip(time_texts(times), values, shades, strict=True):
        axis.plot(angle, each[order], color=shade, linewidth=1.2, label=f"$t$ = {t}")
    angle_axis(axis)
    axis.set_ylim(bottom=min(0.0, float(values.min())))
    axis.legend(frameon=False)


def angles_of(centres: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Return angles from -pi to pi, in order and closed, and the cells that they belong to."""
    angle = np.arctan2(centres[:, 1], centres[:, 0])
    order = np.argsort(angle, kind="stable")
    around = np.concatenate([angle[order], angle[order[:1]] + 2 * np.pi])
    return around, np.concatenate([order, order[:1]])


def angle_axis(axis: "Axes") -> None:
    """Set ticks and labels of an axis of angles, and of the density over it."""
    axis.set(xlim=(-np.pi, np.pi), xlabel=r"Angle $\theta$", ylabel=r"Density $\rho$")
    axis.set_xticks(
        np.pi * np.arange(-2, 3) / 2, [r"$-\pi$", r"$-\pi/2$", "0", r"$\pi/2$", r"$\pi$"]
    )


def colours_of(values: Floats) -> "Normalize":
    """Return the scale of the colours of densities (..., cell) on the sphere."""
    from matplotlib.colors import LogNorm, Normalize

    high = float(np.nanmax(values))
    if high * 4 * np.pi > _WIDE:
        return LogNorm(high * 10**-_DECADES, high, clip=True)
    return Normalize(0.0, high if high > 0 else 1.0)


def pixels_of(centres: Floats, pixels: int = _PIXELS) -> Callable[[Floats], Floats]:
    """Return the function from values over cells (cell,) to what is seen, (pixels, pixels).

    Values are interpolated linearly in the Delaunay triangles of the centres, which a stereographic
    projection carries into the plane; beside the sphere they are those of its rim.
    """
    from scipy.spatial import Delaunay

    turned = centres @ view().T
    front = np.flatnonzero(turned[:, 2] > -0.6)
    if len(front) < 4:
        raise InputError(f"{len(centres)} cells are too few to be drawn")
    plane = Delaunay(turned[front, :2] / (1 + turned[front, 2:]))
    side = (np.arange(pixels) + 0.5) / pixels * 2 - 1
    x, y = np.meshgrid(side, side)
    across = np.stack([x.ravel(), y.ravel()], axis=1)
    across /= np.maximum(1.0, np.hypot(*across.T))[:, None]
    across /= 1 + np.sqrt(np.maximum(0.0, 1 - (across**2).sum(axis=1)))[:, None]
    # At the border of few cells there may be no triangle: take that of a point further in.
    found = plane.find_simplex(across)
    for _ in range(8):
        lost = found < 0
        if not lost.any():
            break
        across[lost] *= 0.93
        found[lost] = plane.find_simplex(across[lost])
    turn = plane.transform[found]
    two = np.einsum("nab,nb->na", turn[:, :2], across - turn[:, 2])
    weights = np.concatenate([two, 1 - two.sum(axis=1, keepdims=True)], axis=1)
    cells = front[plane.simplices[found]]

    def seen(values: Floats) -> Floats:
        return np.asarray((values[cells] * weights).sum(axis=1).reshape(pixels, pixels))

    return seen


def ball(axis: "Axes", picture: Floats, norm: "Normalize") -> "AxesImage":
    """Draw a sphere with what is seen of a density on it; returns the image."""
    from matplotlib.patches import Circle

    globe(axis)
    image = axis.imshow(
        picture, extent=(-1, 1, -1, 1), origin="lower", interpolation="bilinear", cmap=COLOURS,
        norm=norm, zorder=0.9,
    )  # fmt: skip
    image.set_clip_path(Circle((0, 0), 1, transform=axis.transData))
    return image


def moving(
    run: "Dataset", path: Any, frames: int
) -> tuple[Floats, "Callable[[Axes], tuple[list[Any], Callable[[int], None]]]"]:
    """Return the times of the densities of a path, and what draws the first and moves to another.

    Raises
    ------
    InputError
        For densities at fewer than three times.
    """
    from wflow.plots.inline import AnimatedFigure

    time, values, centres = densities(run, path, most=frames, least=3)

    def on_circle(axis: "Axes") -> tuple[list[Any], Callable[[int], None]]:
        angle, order = angles_of(centres)
        (line,) = axis.plot(angle, values[0, order], color="#082860", linewidth=1.4)
        angle_axis(axis)
        axis.set_ylim(0.0, 1.05 * float(values.max()))
        return [line], lambda k: line.set_ydata(values[k, order])

    def on_sphere(axis: "Axes") -> tuple[list[Any], Callable[[int], None]]:
        seen = pixels_of(centres, 300)
        image = ball(axis, seen(values[0]), colours_of(values))
        figure: Any = axis.figure
        figure.colorbar(image, ax=axis, shrink=0.7, label=r"Density $\rho$", pad=0.02)
        if isinstance(figure, AnimatedFigure):
            figure.shows(255 * image.get_cmap()(np.linspace(0, 1, 160))[:, :3])
        # What is drawn over the image is drawn again with it.
        above = sorted([*axis.lines, *axis.texts], key=lambda artist: artist.get_zorder())
        return [image, *above], lambda k: image.set_data(seen(values[k]))

    return time, on_circle if centres.shape[1] == 2 else on_sphere
