"""The code of Start and of the user guide runs as it is printed, each page from top to bottom."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["start", "guide/flows", "guide/laws", "guide/schemes", "guide/budget", "guide/sums"]
PAGES += ["guide/transport", "guide/run_files"]


def blocks(page: str) -> list[str]:
    """The Python code of a page, but for blocks after a comment that says they are not run."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- not run -->\n```python\n.*?```", "", text, flags=re.DOTALL)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    codes = blocks(page)
    assert codes
    for code in codes:
        exec(compile(code, page, "exec"), names)
    assert capsys.readouterr().out.strip()


def test_every_page_of_the_guide_is_listed_and_has_code():
    index = (DOCS / "guide" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\((\w+)\.md\)", index)
    assert sorted(listed) == sorted(page.stem for page in (DOCS / "guide").glob("[!i]*.md"))
    assert all(
        re.search(r"```python\n", (DOCS / f"guide/{page}.md").read_text()) for page in listed
    )
