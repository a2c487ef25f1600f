"""The study of local Lipschitz constants, end to end at a size of seconds."""

import pytest

from wflow import InputError

FLAGS = [
    "--n",
    "64",
    "8",
    "16",
    "--betas",
    "1",
    "2",
    "--heads",
    "1",
    "8",
    "--t-final",
    "0.1",
    "--paths",
    "2",
]


def test_study_compares_constants_with_closed_form_and_bounds(run_study):
    done = run_study("lipschitz", *FLAGS, "--tokens", "6", "--times", "100")
    assert done.verdicts("tokens opposite") == ["consistent"]
    assert done.verdicts("at most of order") == ["inconclusive"]  # no moderate n for these heads
    assert done.verdicts("for large n") == ["consistent"]
    assert done.verdicts("along a run") == ["consistent"]
    assert done.verdicts("more random heads") == ["confirmed"]
    assert done.drawn("constants")


def test_workers_are_refused(run_study):
    with pytest.raises(InputError, match="this process"):
        run_study("lipschitz", "--workers", "2")
