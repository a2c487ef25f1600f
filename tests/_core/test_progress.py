"""Progress in logs: few lines, none for short runs, an estimate of the time left."""

import pytest

from wflow._core import progress as module
from wflow._core.progress import duration, progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when a test advances it."""

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def run(clock, total: int, seconds: float, label: str = "") -> None:
    with progress(total, label) as advance:
        for _ in range(total):
            clock.now += seconds / total
            advance(1)


def test_long_run_prints_a_line_per_tenth_where_there_is_no_terminal(clock, capsys):
    run(clock, 1000, 100.0, "H = 2")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "H = 2: 10 %, 1 min 30 s left"
    assert lines[-1] == "H = 2: 100 %, done in 1 min 40 s"


def test_run_of_less_than_two_seconds_per_tenth_prints_nothing(clock, capsys):
    run(clock, 1000, 19.0)
    assert capsys.readouterr().err == ""


def test_what_a_resumed_run_did_before_does_not_count(clock, capsys):
    with progress(100) as advance:
        advance(55)
        clock.now += 2.0
        advance(5)  # 5 steps in 2 s: 40 more take 16 s
    assert capsys.readouterr().err.strip() == "60 %, 16 s left"


def test_long_first_step_is_not_taken_for_the_pace(clock, capsys):
    with progress(1000) as advance:
        clock.now += 30.0  # compilation
        for _ in range(1000):
            clock.now += 0.001
            advance(1)
    assert capsys.readouterr().err == ""


def test_disabled_progress_is_silent(capsys):
    with progress(10, enabled=False) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_read_as_people_say_them(seconds, words):
    assert duration(seconds) == words
