"""Figures of the table of a sweep: curves over one axis, phase diagrams over two and three."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import did_you_mean, shown
from wflow._core.errors import InputError
from wflow.analysis.fits import mean_and_error
from wflow.distributed.sweep import AXES
from wflow.plots.figure import Style, curve, grid, panel, rectangle, width_in
from wflow.plots.style import style as settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

_PANELS = 12  # more cannot be read
_FAILED = "0.85"  # colour of points without a value


def sweep(
    table: Dataset,
    name: str | None = None,
    *,
    style: Style = "screen",
    ax: Axes | None = None,
) -> Figure:
    """Draw a quantity of a sweep: a curve over one axis, a phase diagram over two, panels of three.

    The first axis of the grid goes along x, the second along y, the third from panel to panel. Axes
    of one value are left out. Paths, and seeds beside another axis, are averaged; about a curve the
    band is the standard error. Points without a value are grey.

    Parameters
    ----------
    table : xarray.Dataset
        The table of `wflow.sweep`.
    name : str, optional
        Variable to draw; by default the energy or, without one, the mean squared speed.
    style : {"screen", "paper"}, default: "screen"
        Size of a new figure: "screen" is 4.6 inches wide, or 2.8 and up to 9.4 for panels, and
        "paper" 3.3 inches, one column of a journal page.
    ax : matplotlib.axes.Axes, optional
        Existing Axes to draw in, in its own style, for one or two axes. Default: a new figure in
        the style of wflow.

    Returns
    -------
    matplotlib.figure.Figure
        The new figure, or the one of `ax`.

    Raises
    ------
    InputError
        For what is no table of a sweep, a variable that it lacks or that is text, and more than
        three axes.

    See Also
    --------
    wflow.sweep : The table.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> table = wflow.sweep(
    ...     {"beta": [1.0, 2.0, 4.0]}, wflow.tokens.uniform(n=20, d=3, seed=0),
    ...     wflow.heads.Frozen(), heads=lambda beta: [beta * np.eye(3)], t_final=0.5, dt=0.05,
    ... )
    >>> wflow.plots.sweep(table, "mean_cosine").axes[0].get_xlabel()
    'beta'
    """
    values, axes = _chosen(table, name)
    if len(axes) == 3:
        return _panels(values, axes, style, ax)
    with panel(ax, width_in(style, 4.6), 3.2) as (figure, axis):
        if len(axes) == 2:
            mesh = _phase(axis, values.mean("sample"), axes)
            figure.colorbar(mesh, ax=axis, label=_label(values))
        else:
            x = _placed(axis, values[axes[0]], "x")
            samples = values.transpose("sample", axes[0]).values
            line = "-" if values[axes[0]].dtype.kind in "iuf" else "none"  # names have no order
            look: dict[str, Any] = {"color": "#0072B2", "marker": "o", "linestyle": line}
            if line == "none" and len(samples) > 1:
                mean, error = mean_and_error(samples, axis=0, finite=False)
                axis.errorbar(x, mean, error, capsize=2, **look)
            else:
                curve(axis, x, samples, band="error", band_alpha=0.25, **look)
            axis.set_ylabel(_label(values))
            if len(samples) > 1:
                axis.set_title(f"mean and standard error of {len(samples)}")
    return figure


def _chosen(table: Any, name: Any) -> tuple[DataArray, list[str]]:
    """Return a variable over its axes and `sample`, and the axes of more than one value."""
    if not hasattr(table, "data_vars") or not isinstance(table.attrs.get(AXES), str):
        raise InputError(
            f"table is {shown(table) if not hasattr(table, 'data_vars') else 'another Dataset'}: "
            "expected the table of wflow.sweep, with its attributes"
        )
    names = table.attrs[AXES].split()
    if name is None:
        name = next((each for each in ("energy", "speed_sq") if each in table), None)
    numbers = [str(each) for each in table.data_vars if table[each].dtype.kind in "biuf"]
    if not isinstance(name, str) or name not in numbers:
        raise InputError(
            f"name is {shown(name)}: expected one of {', '.join(numbers)}"
            + (did_you_mean(name, numbers) if isinstance(name, str) else "")
        )
    values = table[name].astype(float)
    axes = [each for each in names if each in values.dims and values.sizes[each] > 1]
    if "seed" in axes and len(axes) > 1:
        axes.remove("seed")
    if not 1 <= len(axes) <= 3:
        raise InputError(
            f"{name} varies along {len(axes)} axes ({', '.join(axes)}): expected one to three; "
            "select with table.sel(...), or average with table.mean(..., keep_attrs=True)"
        )
    for each in axes:
        if values[each].dtype.kind in "iuf":
            values = values.sortby(each)
    others = [dim for dim in values.dims if dim not in axes]
    attrs = values.attrs
    values = values.stack(sample=others, create_index=False)
    return values.assign_attrs(attrs), axes


def _panels(values: DataArray, axes: list[str], style: Style, ax: Axes | None) -> Figure:
    """Draw a phase diagram for each value of the third axis, with one scale of colours."""
    count = values.sizes[axes[2]]
    if ax is not None or count > _PANELS:
        raise InputError(
            f"{count} panels, one for each {axes[2]}, do not fit "
            + ("into ax" if ax is not None else f"a figure of at most {_PANELS}")
            + f": select some with table.sel({axes[2]}=...)"
        )
    means = values.mean("sample")
    with settings():
        rows, columns = rectangle(count, 4 if style == "screen" else 2)
        width = width_in(style, 0.6 + 2.2 * columns)
        height = 0.4 + 0.91 * (width - 0.6) / columns * rows
        figure, panels = grid(rows, columns, width, height, sharex=True, sharey=True)
        finite = means.values[np.isfinite(means.values)]
        ends = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        for axis in panels.flat[count:]:
            axis.set_visible(False)
        for place, axis in enumerate(panels.flat[:count]):
            chosen = means.isel({axes[2]: place})
            mesh = _phase(axis, chosen, axes[:2], *ends)
            axis.label_outer()
            label = chosen[axes[2]].item()
            text = f"{label:g}" if isinstance(label, float) else str(label)
            axis.set_title(f"{axes[2]} = {text}")
        figure.colorbar(mesh, ax=panels, label=_label(values))
    return figure


def _phase(
    axis: Axes, values: DataArray, axes: list[str], low: float | None = None, high: Any = None
) -> Any:
    """Draw one phase diagram."""
    x, y = (_placed(axis, values[name], which) for name, which in zip(axes, "xy", strict=True))
    logs = (axis.get_xscale() == "log", axis.get_yscale() == "log")
    edges = [_edges(each, log) for each, log in zip((x, y), logs, strict=True)]
    axis.set_facecolor(_FAILED)
    masked = np.ma.masked_invalid(values.transpose(axes[1], axes[0]).values)
    return axis.pcolormesh(*edges, masked, vmin=low, vmax=high, cmap="viridis", rasterized=True)


def _placed(axis: Axes, labels: DataArray, which: str) -> NDArray[np.float64]:
    """Return the places of labels on an axis, which is labelled."""
    getattr(axis, f"set_{which}label")(labels.attrs.get("long_name", labels.name))
    values = labels.values
    if values.dtype.kind not in "iuf":
        places = np.arange(len(values), dtype=float)
        getattr(axis, f"set_{which}ticks")(places, [str(each) for each in values])
        return places
    places = values.astype(float)
    if len(places) > 2 and places[0] > 0 and places[-1] > 4 * places[0]:
        steps = np.diff(np.log(places))
        if np.ptp(steps) < 0.25 * steps.mean():  # values that were chosen on a logarithmic scale
            getattr(axis, f"set_{which}scale")("log")
            getattr(axis, f"set_{which}ticks")(places, [f"{each:g}" for each in places])
            getattr(axis, f"set_{which}ticks")([], minor=True)
    return places


def _edges(places: NDArray[np.float64], log: bool) -> NDArray[np.float64]:
    """Return the edges of cells around places."""
    if log:
        return np.exp(_edges(np.log(places), False))
    middle = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - middle[0]], middle, [2 * places[-1] - middle[-1]]])


def _label(values: DataArray) -> str:
    text = str(values.attrs.get("long_name", values.name))
    return textwrap.fill(text[:1].upper() + text[1:], 36)
