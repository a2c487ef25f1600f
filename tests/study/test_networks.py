"""Studies of networks: means over runs of which some diverged, and metrics read from files."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import xarray

from wflow import InputError
from wflow.study import networks

NAN = float("nan")


def words(values):
    return networks.mean_and_spread(values, lambda value: f"{value:.2f}")


def test_means_are_over_the_runs_that_came_to_an_end_and_say_so():
    assert words([1.0, 2.0]) == "1.50 ± 0.71"
    assert words([1.0]) == "1.00"
    assert words([1.0, NAN, 2.0]) == "1.50 ± 0.71 (2 of 3)"
    assert words([NAN, 4.0]) == "4.00 (1 of 2)"
    assert words([NAN, NAN]) == "–"


def history(devices):
    return xarray.Dataset({"seconds": ("step", np.ones(2))}, attrs={"devices": devices})


def test_a_run_that_diverged_at_once_was_on_no_device_and_leaves_the_difference_of_the_others():
    results = networks.Results(
        {"a": [{"loss": 2.0, "diverged": False}, {"loss": NAN, "diverged": True}]},
        {"a": [history("1 x CPU"), history("")]},
    )
    assert results.devices == "1 x CPU"
    assert results.diverged() == "a diverged in 1 of 2 runs"
    assert networks.differences(results, "loss", {"a": 1.5}, "+.1f") == ["+0.5"]
    text, verdict = networks.compared([2.0, NAN], [1.0, 1.0])
    assert text == "the model diverged in 1 of 2 runs" and verdict == "not confirmed"
    text, verdict = networks.compared([2.0, 3.0], [NAN, NAN])
    assert text == "the model compared with diverged in 2 of 2 runs" and verdict == "inconclusive"
    assert networks.compared([2.0, 3.0], [1.0]) == (
        "+1.5, one seed, spread unknown",
        "inconclusive",
    )


def test_paired_differences_are_decided_by_their_interval():
    better, worse = np.array([1.0, 2.0, 3.0]), np.array([0.9, 1.8, 2.9])
    gaps = better - worse
    half = 4.302652729911275 * gaps.std(ddof=1) / 3**0.5  # Student's t, two degrees of freedom
    text, verdict = networks.paired(better, worse, "+.6f")
    low, high = gaps.mean() - half, gaps.mean() + half
    assert text == f"{gaps.mean():+.6f} (95 % {low:+.6f} to {high:+.6f})"
    assert low < 0 < high and verdict == "inconclusive"
    assert networks.compared(better, worse)[1] == "inconclusive"
    shifted = np.array([0.9, 1.9, 2.91])  # the same for every seed, far below the spread over seeds
    assert networks.paired(better, shifted)[1] == "confirmed"
    assert networks.paired(shifted, better)[1] == "not confirmed"
    assert networks.paired([2.0], [1.0]) == ("+1, one seed, spread unknown", "inconclusive")
    for ratio in (False, True):
        found = networks.paired([NAN, 2.0], [1.0, 1.0], ratio=ratio)
        assert found == ("a model diverged", "not confirmed")
    text, verdict = networks.paired([2.0, 4.0], [1.0, 2.0], ratio=True)
    assert text == "2 (95 % 2 to 2)" and verdict == "confirmed"
    assert networks.paired([1.0, 0.0], [1.0, 1.0], ratio=True)[1] == "not confirmed"


def test_verdicts_of_several_cases_are_joined():
    assert networks.joint(["confirmed", "confirmed"]) == "confirmed"
    assert networks.joint(["confirmed", "not confirmed"]) == "confirmed in part"
    assert networks.joint(["inconclusive", "not confirmed"]) == "not confirmed"
    assert networks.joint(["inconclusive", "inconclusive"]) == "inconclusive"


def test_a_training_is_measured_once(tmp_path):
    def run(losses):
        history = xarray.Dataset({"loss": ("step", losses)}, attrs={"config": "{}"})
        return networks.Trained(None, history, None, False)

    calls = []

    def examine():
        calls.append(1)
        return {"error": 0.5, "missing": NAN, "curve": [1.0, 2.0], "count": len(calls)}

    first = networks.cached_record(tmp_path, {"width": 3}, run([1.0, 2.0]), examine)
    again = networks.cached_record(tmp_path, {"width": 3}, run([1.0, 2.0]), examine)
    assert again["count"] == 1 and again["curve"] == [1.0, 2.0] and np.isnan(again["missing"])
    assert first.keys() == again.keys()
    assert networks.cached_record(tmp_path, {"width": 4}, run([1.0, 2.0]), examine)["count"] == 2
    assert networks.cached_record(tmp_path, {"width": 4}, run([1.0, 3.0]), examine)["count"] == 3
    assert networks.cached_record(tmp_path / "none", {}, run([]), examine)["count"] == 4
    again = networks.cached_record(tmp_path, {"width": 4}, run([1.0, 3.0]), examine, resume=False)
    assert again["count"] == 5
    (tmp_path / networks.RECORD).write_text("words")
    assert networks.cached_record(tmp_path, {"width": 4}, run([1.0, 3.0]), examine)["count"] == 6


def test_a_record_holds_the_numbers_of_numpy_and_torch_and_names_what_it_cannot(tmp_path):
    history = xarray.Dataset({"loss": ("step", [1.0])}, attrs={"config": "{}"})
    run = networks.Trained(None, history, None, False)
    given = {"a": np.float32(0.5), "b": torch.tensor([1.0, 2.0])}
    assert networks.cached_record(tmp_path, 0, run, lambda: given) == {"a": 0.5, "b": [1.0, 2.0]}
    with pytest.raises(InputError, match="it holds set"):
        networks.cached_record(tmp_path, 1, run, lambda: {"a": {1}})
    with pytest.raises(TypeError, match="len"):  # of the study, with its traceback
        networks.cached_record(tmp_path, 1, run, lambda: {"a": len(3)})


def test_another_measurement_is_another_record_and_a_study_without_presets_has_no_claims():
    def one():
        return {"a": 1.0}

    def two():
        return {"a": 2.0}

    assert networks.code_of(one) == networks.code_of(one) != networks.code_of(two)
    assert not networks.is_published(networks.NetFlags())
