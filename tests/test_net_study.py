"""What the studies of networks say about runs that diverged."""

import numpy as np
import pytest

pytest.importorskip("torch")
import xarray

from wflow import _net_study

NAN = float("nan")


def words(values):
    return _net_study.mean_and_spread(values, lambda value: f"{value:.2f}")


def test_means_are_over_the_runs_that_came_to_an_end_and_say_so():
    assert words([1.0, 2.0]) == "1.50 ± 0.71"
    assert words([1.0]) == "1.00"
    assert words([1.0, NAN, 2.0]) == "1.50 ± 0.71 (2 of 3)"
    assert words([NAN, 4.0]) == "4.00 (1 of 2)"
    assert words([NAN, NAN]) == "–"


def history(devices):
    return xarray.Dataset({"seconds": ("step", np.ones(2))}, attrs={"devices": devices})


def test_a_run_that_diverged_at_once_was_on_no_device_and_leaves_the_difference_of_the_others():
    results = _net_study.Results(
        {"a": [{"loss": 2.0, "diverged": False}, {"loss": NAN, "diverged": True}]},
        {"a": [history("1 x CPU"), history("")]},
    )
    assert results.devices == "1 x CPU"
    assert results.diverged() == "a diverged in 1 of 2 runs"
    assert _net_study.differences(results, "loss", {"a": 1.5}, "+.1f") == ["+0.5"]
    text, verdict = _net_study.compared([2.0, NAN], [1.0, 1.0])
    assert "diverged" in text and verdict == "not held"
