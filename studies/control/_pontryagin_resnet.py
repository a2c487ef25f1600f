"""Figures of the study `pontryagin_resnet`: curves, decision regions and trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow import study
from wflow.plots.figure import PAGE, grid, style
from wflow.study.networks import Record, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0b3c5d", "#c1440e")  # of the two classes
LOOKS: dict[str, dict[str, Any]] = {
    "classic": {"label": "classic ResNet", "color": "0.1", "linestyle": "--", "zorder": 3},
    "gradient": {"label": "gradient", "color": "#b8860b"},
    "adam": {"label": "Adam", "color": "#0b3c5d"},
    "msa": {"label": "MSA", "color": "#8c5fa8"},
    "emsa": {"label": "extended MSA", "color": "#c1440e"},
}
Models = Mapping[str, Any]  # name -> scheme and method
Courses = Mapping[str, Sequence[Any]]  # name -> losses and passes of each training


def drawn(models: Models, results: Results, courses: Courses) -> dict[str, study.Figure]:
    """Figures of the networks of one data set; the results and courses are those of all."""
    found = {"curves": curves(models, results, courses)}
    shown = [name for name in models if "region" in results.records[name][0]]
    if shown:
        found["regions"] = panels(models, results, shown, region)
        figure = panels(models, results, shown, trajectories)
        figure.supxlabel("Distance from the boundary of the classifier", fontsize=8)
        found["trajectories"] = figure
    return found


@style()
def curves(models: Models, results: Results, courses: Courses) -> study.Figure:
    """Training loss by iterations and by passes, test accuracy by passes; a row for each scheme."""
    from matplotlib.ticker import LogLocator, NullFormatter

    schemes = list(dict.fromkeys(model.scheme for model in models.values()))
    figure, axes = grid(len(schemes), 3, PAGE, 0.6 + 1.9 * len(schemes), sharex="col")
    for row, scheme in zip(axes, schemes, strict=True):
        for name, model in models.items():
            if model.scheme == scheme:
                _curve(row, results, name, courses, LOOKS[model.method])
        row[0].set_ylabel(f"{scheme}\nTraining loss")
        row[2].set_ylabel("Test accuracy")
        for axis in row[:2]:
            axis.set_yscale("log")
            axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
                formatter("{x:g}")
        for axis in row:
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(NullFormatter())
    titles = ("Iterations", "Passes through the layers", "Passes through the layers")
    for axis, title in zip(axes[-1], titles, strict=True):
        axis.set_xlabel(title)
    found: dict[str, Any] = {}
    for axis in axes[:, 0]:
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(text, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=len(found))
    return figure


def _curve(
    row: Sequence[Axes], results: Results, name: str, courses: Courses, look: Mapping[str, Any]
) -> None:
    """Geometric mean and range of the losses, mean and range of the accuracy, over the seeds."""
    every = zip(results.histories[name], results.records[name], courses[name], strict=True)
    runs = [(history, course) for history, record, course in every if not record["diverged"]]
    if not runs:
        return
    loss = np.array([course.loss for _, course in runs])
    passed = np.mean([course.passed for _, course in runs], axis=0)
    accuracy = np.array([history["accuracy"].values for history, _ in runs])
    at = runs[0][0]["evaluation"].values.astype(int)
    for axis, x, values in ((row[0], np.arange(loss.shape[1]), loss), (row[1], passed, loss),
                            (row[2], passed[at], accuracy)):  # fmt: skip
        middle = values.mean(0) if axis is row[2] else np.exp(np.log(values).mean(0))
        axis.plot(x[1:], middle[1:], linewidth=1.0, **look)
        if len(values) > 1:
            low, high = values.min(0)[1:], values.max(0)[1:]
            axis.fill_between(x[1:], low, high, color=look["color"], alpha=0.15, linewidth=0)


@style()
def panels(
    models: Models, results: Results, names: Sequence[str], draw: Callable[[Axes, Record], None]
) -> study.Figure:
    """What is drawn of seed 0 of each network: a row for each scheme, a column for each method."""
    schemes = list(dict.fromkeys(models[name].scheme for name in names))
    methods = list(dict.fromkeys(models[name].method for name in names))
    side = PAGE / len(methods)
    figure, axes = grid(len(schemes), len(methods), PAGE, 0.3 + side * len(schemes))
    for axis in axes.flat:
        axis.set_axis_off()
    for name in names:
        model, record = models[name], results.records[name][0]
        axis = axes[schemes.index(model.scheme), methods.index(model.method)]
        axis.set_axis_on()
        draw(axis, record)
        method = LOOKS[model.method]["label"]
        text = "classic" if model.method == "classic" else f"{model.scheme}, {method}"
        axis.set_title(f"{text}\n{100 * record['accuracy']:.1f} %", fontsize=7)
    return figure


def region(axis: Axes, record: Record) -> None:
    """Probability of the second class on a square, and training points."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("classes", ["#8fb0c6", "#ffffff", "#e6a98d"])
    square: dict[str, Any] = {"origin": "lower", "extent": (-1.1, 1.1, -1.1, 1.1)}
    found = np.transpose(record["region"])
    axis.imshow(found, vmin=0, vmax=1, cmap=shades, **square)
    axis.contour(found, [0.5], colors="0.1", linewidths=0.8, **square)
    colours = [COLOURS[k] for k in record["classes"]]
    x, y = np.transpose(record["points"])
    axis.scatter(x, y, c=colours, s=1.5, linewidths=0)
    axis.set(xticks=[], yticks=[])


def trajectories(axis: Axes, record: Record) -> None:
    """Paths of training points to the classifier, in a plane across its boundary."""
    states = np.array(record["states"])
    colours = [COLOURS[k] for k in record["classes"][: states.shape[1]]]
    for path, colour in zip(states.swapaxes(0, 1), colours, strict=True):
        axis.plot(*path.T, color=colour, linewidth=0.3, alpha=0.35)
    x, y = states[-1].T
    axis.scatter(x, y, c=colours, s=2.5, linewidths=0, zorder=3)
    axis.axvline(0.0, color="0.1", linewidth=0.8)
    axis.tick_params(labelsize=5)
