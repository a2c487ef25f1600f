"""The examples of docs/extending.md: each section is one short script that runs as it stands."""

import re
import runpy
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
LINES = 80  # of an example
SECTIONS = dict(
    section.split("\n", 1) for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]
)


def example(section: str) -> str:
    return "".join(re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL))


@pytest.mark.parametrize("section", SECTIONS)
def test_the_example_of_a_section_is_short_and_runs(section, tmp_path, monkeypatch):
    code = example(section)
    assert 0 < len(code.splitlines()) <= LINES
    if "torch" in code:
        pytest.importorskip("torch")
    if "digits" in code:
        pytest.importorskip("sklearn")
    script = tmp_path / "example.py"
    script.write_text(code)
    monkeypatch.chdir(tmp_path)
    quick = ["--preset", "smoke"] if "study.command_line" in code else []
    monkeypatch.setattr(sys, "argv", [str(script), *quick])
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        assert not end.code


def test_the_page_has_a_section_for_each_thing_that_can_be_added():
    things = ("head law", "flow", "metric", "scheme", "study", "study of networks", "network")
    assert [f"A {thing}" for thing in things] == list(SECTIONS)
