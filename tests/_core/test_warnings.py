"""Warnings of the package: their categories, and the line that they name."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import wflow

X = wflow.tokens.uniform(n=10, d=3, seed=0)
STEEP = 800 * np.eye(3)[None]


@pytest.mark.parametrize(
    "call",
    [
        lambda: wflow.energy(X, STEEP),
        lambda: wflow.solve(X, wflow.heads.Frozen(), heads=STEEP, t_final=0.1, dt=0.1),
        lambda: wflow.transport.w2(X, -X, method="entropic", reg=0.5),
    ],
)
def test_a_warning_has_a_category_and_names_the_line_of_the_caller(call):
    with pytest.warns(wflow.AccuracyWarning) as caught:
        call()
    assert {Path(one.filename) for one in caught} == {Path(__file__)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=wflow.AccuracyWarning)
        call()


def test_a_warning_from_within_torch_names_the_line_of_the_caller():
    torch = pytest.importorskip("torch")

    class Outer(torch.nn.Module):
        """A module whose `forward` is wflow's."""

        forward = staticmethod(wflow.energy)

    with pytest.warns(wflow.AccuracyWarning) as caught:
        Outer()(X, STEEP)
    assert {Path(one.filename) for one in caught} == {Path(__file__)}


def test_categories_are_those_that_filters_know():
    assert issubclass(wflow.WflowWarning, UserWarning)
    assert issubclass(wflow.AccuracyWarning, RuntimeWarning)
    assert issubclass(wflow.AccuracyWarning, wflow.WflowWarning)
    assert issubclass(wflow.CacheWarning, wflow.WflowWarning)
