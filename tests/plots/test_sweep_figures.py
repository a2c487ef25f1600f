"""Figures of sweeps: curves, phase diagrams and their panels."""

import numpy as np
import pytest
import xarray
from matplotlib import pyplot

from wflow import InputError, plots
from wflow.plots.accessor import RunAccessor

AXES = {"beta": [4.0, 1.0, 2.0], "law": ["rest", "noise"], "d": [2, 3], "seed": [0, 1]}


def table(*names: str, **attrs: str) -> xarray.Dataset:
    shape = [len(AXES[name]) for name in names]
    values = np.arange(3.0 * np.prod(shape)).reshape(*shape, 3)
    values[(0,) * len(names)] = np.nan
    variables = {"energy": ((*names, "path"), values, {"long_name": "energy E at the end"})}
    variables["failure"] = ((), "")
    coords = {name: AXES[name] for name in names}
    return xarray.Dataset(variables, coords, {"sweep": " ".join(names)})


def test_one_axis_is_a_curve_with_the_spread_of_paths_and_seeds():
    figure = plots.sweep(table("beta", "seed"))
    axis = figure.axes[0]
    x, y = axis.lines[0].get_data()
    assert x.tolist() == [1.0, 2.0, 4.0] and y.tolist() == [8.5, 14.5, 4.0]
    assert axis.get_xlabel() == "beta" and axis.get_ylabel() == "Energy E at the end"
    assert axis.get_title(loc="left").endswith("of 6") and axis.collections
    named = plots.sweep(table("law")).axes[0]
    assert [text.get_text() for text in named.get_xticklabels()] == ["rest", "noise"]


def test_two_axes_are_a_phase_diagram_and_three_are_panels():
    figure = RunAccessor(table("beta", "law", "seed")).plot("energy")
    drawn = figure.axes[0].collections[0].get_array()
    assert drawn.shape == (2, 3) and drawn[0, 2] == 4.0  # the mean of the seed that is there
    figure, axis = pyplot.subplots()
    assert plots.sweep(table("beta", "law"), ax=axis) is figure
    pyplot.close(figure)
    panels = plots.sweep(table("beta", "law", "d")).axes
    assert [axis.get_title(loc="left") for axis in panels[:2]] == ["d = 2", "d = 3"]
    assert panels[0].collections[0].get_array().mask.sum() == 1


def test_what_cannot_be_drawn_is_refused():
    four = table("beta", "law", "d").expand_dims(kappa=[0, 1])
    three = table("beta", "law", "d")
    figure, axis = pyplot.subplots()
    for match, call in {
        "table of wflow.sweep": lambda: plots.sweep(three.drop_attrs()),
        "did you mean energy": lambda: plots.sweep(three, "enrgy"),
        "failure": lambda: plots.sweep(three, "failure"),
        "0 axes": lambda: plots.sweep(table("beta").isel(beta=0)),
        "4 axes": lambda: plots.sweep(four.assign_attrs(sweep="kappa beta law d")),
        "into ax": lambda: plots.sweep(three, ax=axis),
    }.items():
        with pytest.raises(InputError, match=match):
            call()
    pyplot.close(figure)
