"""Curves of trainings show the seeds that ended, as mean and range."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from wflow.plots.networks import COLOURS, draw_histories, learning_curves


def history(values: list[float], complete: bool = True) -> xr.Dataset:
    steps = 10 * np.arange(len(values))
    loss, of = {"loss": ("evaluation", values)}, {"evaluation": steps}
    return xr.Dataset(loss, of, {"complete": int(complete)})


@pytest.mark.parametrize(("log", "mean"), [(False, [2.5, 5.0]), (True, [2.0, 4.0])])
def test_the_line_is_the_mean_of_the_seeds_that_ended(log, mean):
    axis = Figure().subplots()
    ended = [history([1.0, 2.0]), history([4.0, 8.0]), history([9.0], complete=False)]
    draw_histories(axis, {"a": ended, "b": []}, "loss", {"a": "red", "b": "blue"}, log=log)
    (line,) = axis.lines
    np.testing.assert_allclose(line.get_xdata(), [0, 10])
    np.testing.assert_allclose(line.get_ydata(), mean)
    assert axis.get_yscale() == ("log" if log else "linear")
    assert len(axis.collections) == 1  # the range


def test_a_model_of_which_no_seed_ended_is_drawn_as_far_as_the_shortest_goes():
    axis = Figure().subplots()
    runs = {"a": [history([1.0, 2.0, 9.0], complete=False), history([3.0, 4.0], complete=False)]}
    draw_histories(axis, runs, "loss", {"a": "red"})
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [2.0, 3.0])


def test_no_two_of_many_models_look_alike():
    models = [f"model {place}" for place in range(2 * len(COLOURS) + 1)]
    figure = learning_curves({model: [history([1.0, 2.0])] for model in models}, {"loss": "loss"})
    looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(looks) == len(models)
