"""The code of the tutorials runs as it is printed, each page from top to bottom.

The first one in every suite, the others with --long.
"""

import re
import runpy
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
PAGES = ("first_run", "from_a_question_to_a_study", "reading_run_files", "continuous_transformer")


def text_of(page: str) -> str:
    return (TUTORIALS / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_tutorial_runs(page, tmp_path, monkeypatch, capsys, cases):
    if page not in PAGES[: cases(1, len(PAGES))]:
        pytest.skip("runs with --long")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL))
    if "torch" in code:
        pytest.importorskip("torch")
    script = tmp_path / "tutorial.py"
    script.write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="tutorial")
    assert capsys.readouterr().out.strip()


def test_the_study_of_a_tutorial_runs(tmp_path, monkeypatch, only_long):
    (code,) = re.findall(
        r"```\{code-block\} python\n(.*?)```", text_of("from_a_question_to_a_study"), re.DOTALL
    )
    script = tmp_path / "drawn_heads.py"
    script.write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    flags = ["--heads", "2", "4", "--draws", "2", "--n", "10", "--out", "out"]
    flags += ["--t-final", "0.2", "--dt", "0.1"]
    monkeypatch.setattr(sys, "argv", [str(script), *flags])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert not end.value.code
    assert "W2" in (tmp_path / "out" / "summary.json").read_text(encoding="utf-8")


def test_every_tutorial_is_listed_and_tested():
    listed = re.search(r"maxdepth: 1\n\n(.*?)```", text_of("index"), re.DOTALL)
    assert listed is not None and listed[1].split() == list(PAGES)
    assert sorted(PAGES) == sorted(p.stem for p in TUTORIALS.glob("*.md") if p.stem != "index")
