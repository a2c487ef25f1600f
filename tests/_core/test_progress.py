"""Progress: few lines in logs, one output in notebooks, and a word while kernels are compiled."""

import types

import numba
import pytest

from wflow._core import progress as module
from wflow._core.progress import COMPILING, progress


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that moves only when a test advances it."""

    made = types.SimpleNamespace(now=0.0, monotonic=lambda: made.now)
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


class Handle:
    """What IPython gives for an output that can be replaced."""

    def __init__(self) -> None:
        self.states: list[dict[str, str]] = []

    def __call__(self, content, *, raw, display_id):
        assert raw and display_id
        self.states.append(content)
        return self

    def update(self, content, *, raw):
        self.states.append(content)


@pytest.fixture
def notebook(monkeypatch):
    made = Handle()
    monkeypatch.setattr(module, "_notebook", lambda: made)
    return made


def test_a_notebook_has_one_output_that_ends_in_its_last_state(clock, notebook, capsys):
    run(clock, 1000, 100.0, "H = <2>")
    texts = [state["text/plain"] for state in notebook.states]
    assert texts[0] == "H = <2>: 0 %" and texts[-1] == "H = <2>: 100 %, done in 1 min 40 s"
    assert 100 < len(texts) <= 1 + 100.0 / 0.25 + 1
    assert "H = &lt;2&gt;" in notebook.states[-1]["text/html"]
    assert capsys.readouterr() == ("", "")


def test_a_loop_that_fails_leaves_how_far_it_came(clock, notebook):
    with pytest.raises(ZeroDivisionError), progress(4, "H = 2") as advance:
        advance(1)
        advance(1)
        _ = 1 / 0
    assert notebook.states[-1]["text/plain"].startswith("H = 2: 50 %")


def stub(module_name: str = "wflow.stub"):
    """Return a function that was never compiled, of a module of that name."""

    def add(a):
        return a + 1

    add.__module__ = module_name
    return numba.njit(add)


def test_a_log_says_once_that_kernels_of_wflow_are_compiled(capsys):
    known = stub()
    known(1)
    with progress(3, "H = 2") as advance:
        known(1)
        stub("mine")(1)  # a function of the user
        assert capsys.readouterr().err == ""
        for _ in range(3):
            assert stub()(1) == 2
            advance(1)
    assert capsys.readouterr().err == f"H = 2: {COMPILING}\n"


def test_a_notebook_says_that_kernels_are_compiled_and_then_how_far_it_is(notebook):
    with progress(2, "H = 2") as advance:
        stub()(1)
        advance(2)
    texts = [state["text/plain"] for state in notebook.states]
    assert texts[1] == f"H = 2: {COMPILING}" and texts[2].startswith("H = 2: 0 %")
    assert "value=" not in notebook.states[1]["text/html"]
