"""Studies run by tests: what they say, their summary, their table."""

from collections.abc import Callable

import pytest
from scripts import Done, call

from wflow.study import heads


@pytest.fixture
def run_study(tmp_path, monkeypatch, capsys) -> Callable[..., Done]:
    """`run_study(name, *flags, to="out")`: run a study in this process, into a folder of `to`."""

    def run(name: str, *flags: str, to: str = "out") -> Done:
        call(name, monkeypatch, *flags, "--out", str(tmp_path / to))
        return Done(tmp_path / to, capsys.readouterr().out)

    return run


@pytest.fixture
def resumed(run_study, sketched) -> Callable[..., Done]:
    """Return `resumed(name, *flags, only="a", then=("--only", "b"))`: train a model, then resume.

    What is trained and measured stays, and networks that have learnt for seconds decide nothing.
    """

    def run(name: str, *flags: str, only: str, then: tuple[str, ...] = ()) -> Done:
        flags = ("--preset", "smoke", *flags)
        out = run_study(name, *flags, "--only", only).out
        kept = [*out.glob("*/checkpoint.pt"), *out.glob("*/record.json")]
        before = [file.stat().st_mtime_ns for file in kept]
        done = run_study(name, *flags, *then, "--resume")
        assert kept and [file.stat().st_mtime_ns for file in kept] == before
        assert done.findings == []
        assert "published" not in done.said.lower().replace("published code", "")
        return done

    return run


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Leave out the figures of head counts, which take most of the time of a small study."""
    monkeypatch.setattr(heads, "draw", lambda *_: {})


@pytest.fixture
def reported() -> None:
    """Ask for the report of a study."""


@pytest.fixture(autouse=True)
def unreported(request, monkeypatch) -> None:
    """Write no report that is not asked for: it verifies all runs, half the time of a test."""
    if "reported" not in request.fixturenames:
        monkeypatch.setattr("wflow.study.report.write", lambda _: None)
