"""Figures of the studies of networks: learning curves, and quantities against a setting."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wflow.plots.figure import PAGE, curve, grid, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import Dataset

LINES = ("-", "--", ":")
COLOURS = ("#6b6b6b", "#c1440e", "#0b3c5d", "#5c8a3a", "#8c5fa8", "#b8860b")
MARKERS = "osD^vP"
SMOOTHED = 200  # points of a curve over all training steps


class Line(NamedTuple):
    """One quantity against a setting (m,), for every seed: (seeds, m)."""

    label: str
    x: Sequence[float]
    y: Sequence[Sequence[float]]


def learning_curves(
    curves: "Mapping[str, Sequence[Dataset]]", names: Mapping[str, str]
) -> "Figure":
    """Draw one panel for each quantity of the histories: mean and range over the seeds.

    Parameters
    ----------
    curves : dict of str to sequence of xarray.Dataset
        Histories of the seeds of each model, as `wflow.nets.train.train` returns them.
    names : dict of str to str
        Labels of the variables of the histories that are drawn.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, with a panel for each variable.
    """
    with style():
        figure, axes = grid(1, len(names), PAGE, 3.1)
        for axis, (key, label) in zip(axes[0], names.items(), strict=True):
            draw_histories(axis, curves, key, dict(zip(curves, cycle(COLOURS), strict=False)))
            places = {model: place for place, model in enumerate(curves)}
            for line in axis.lines:  # colours that come again have other lines
                again = places[str(line.get_label())] // len(COLOURS)
                line.set_linestyle(LINES[again % len(LINES)])
            axis.set_xlabel("Training step")
            axis.set_ylabel(label[:1].upper() + label[1:])
        seeds = max(len(histories) for histories in curves.values())
        _legend(figure, axes[0, 0], seeds)
    return figure


def draw_histories(
    axis: "Axes",
    curves: "Mapping[str, Sequence[Dataset]]",
    key: str,
    colours: Mapping[str, str],
    *,
    log: bool = False,
) -> None:
    """Draw one quantity of the histories on an axis: mean and range over the seeds that ended.

    Where no seed of a model came to an end its curves are drawn as far as the shortest goes.

    Parameters
    ----------
    axis : matplotlib.axes.Axes
        Where to draw.
    curves : dict of str to sequence of xarray.Dataset
        Histories of the seeds of each model, by its label; models without any are left out.
    key : str
        The variable.
    colours : dict of str to str
        Colour of each model.
    log : bool, default False
        Scale the ordinate logarithmically, and take geometric means.
    """
    for model, histories in curves.items():
        shown = [run for run in histories if run.attrs.get("complete", True)] or histories
        if not shown:
            continue
        dim = shown[0][key].dims[0]
        shortest = min(history.sizes[dim] for history in shown)
        values = np.array([history[key].values[:shortest] for history in shown])
        x, values = thinned(shown[0][dim].values[:shortest], values)
        curve(axis, x, values, band="logarithms" if log else "range", label=model,
              color=colours[model], band_alpha=0.18)  # fmt: skip
    if log:
        axis.set_yscale("log")


def lines(panels: Mapping[str, tuple[str, Sequence[Line]]], ylabel: str) -> "Figure":
    """Draw panels of lines: title -> (label of the axis, lines).

    Settings that span a factor of eight or more have a log axis, linear below the smallest positive
    one where zero is among them.

    Parameters
    ----------
    panels : dict of str to tuple of str and sequence of Line
        Panels by their titles.
    ylabel : str
        Label of the axis that all panels share.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.
    """
    with style():
        figure, axes = grid(1, len(panels), PAGE, 3.1, sharey=True)
        first = next(iter(panels.values()))[1]
        place_of = {line.label: k for k, line in enumerate(first)}
        for axis, (title, (xlabel, drawn)) in zip(axes[0], panels.items(), strict=True):
            at = np.asarray(drawn[0].x, dtype=float)
            _uneven(axis, at)
            for line in drawn:
                place = place_of[line.label]
                colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
                curve(axis, at, np.asarray(line.y), band="range", label=line.label, color=colour,
                      marker=marker, band_alpha=0.18)  # fmt: skip
            axis.set_xticks(at, _tick_labels(axis, at))
            axis.set_xlabel(xlabel[:1].upper() + xlabel[1:])
            axis.set_title(title[:1].upper() + title[1:])
        seeds = max(len(line.y) for line in first)
        _legend(figure, axes[0, 0], seeds)
        axes[0, 0].set_ylabel(ylabel)
    return figure


def _legend(figure: "Figure", axis: "Axes", seeds: int) -> None:
    """Name the models above the panels, which leaves the curves free."""
    handles, labels = axis.get_legend_handles_labels()
    columns = 115 // (8 + max(map(len, labels), default=0))  # the width of the page
    figure.legend(
        handles,
        labels,
        title=f"Mean and range of {seeds} seeds" if seeds > 1 else None,
        loc="outside upper left",
        ncols=max(1, min(len(labels), columns)),
        alignment="left",
    )


def _uneven(axis: "Axes", at: np.ndarray) -> None:
    """Choose a scale on which the distances of the settings can be seen, without minor ticks."""
    from matplotlib.ticker import NullLocator

    positive = at[at > 0]
    if len(positive) and not (at < 0).any() and positive.max() >= 8 * positive.min():
        if len(positive) < len(at):
            axis.set_xscale("symlog", linthresh=float(positive.min()), linscale=0.6)
        else:
            axis.set_xscale("log", base=2)
        axis.xaxis.set_minor_locator(NullLocator())


def _tick_labels(axis: "Axes", at: np.ndarray) -> list[str]:
    """Return labels of settings in order, without those that the next would touch."""
    places = axis.xaxis.get_transform().transform(at)
    near = np.append(np.diff(places) < 0.09 * np.ptp(places), False)
    return ["" if hidden else f"{value:g}" for value, hidden in zip(at, near, strict=True)]


def thinned(
    x: np.ndarray, values: np.ndarray, most: int = SMOOTHED
) -> tuple[np.ndarray, np.ndarray]:
    """Return means over groups of neighbouring steps, at most so many of them."""
    group = -(-len(x) // most)
    if group == 1:
        return x, values
    whole = len(x) // group * group
    return (
        x[:whole].reshape(-1, group).mean(axis=1),
        values[:, :whole].reshape(len(values), -1, group).mean(axis=2),
    )
