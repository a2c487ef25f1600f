"""The page of all predictions and the table of the README are those of the findings."""

import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_pages_are_made_of_the_findings(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    pages = importlib.import_module("predictions")
    assert pages.PAGE.read_text(encoding="utf-8") == pages.page()
    readme = pages.README.read_text(encoding="utf-8")
    assert readme == pages.readme(readme)
    reproductions = list(pages.REPRODUCTIONS.glob("*.md"))
    for file in reproductions:
        text = file.read_text(encoding="utf-8")
        assert text == pages.reproduction(text)
        tables = text.split("| --- | --- | --- | --- | --- |\n")[1:]
        assert all(table.startswith("| ") for table in tables), f"{file.name}: no findings"
    assert reproductions
    files = {file.stem for file in (pages.RESULTS / "findings").iterdir()}
    assert files == {name for _, _, names in pages.SECTIONS for name in names}


# Their pages have a row for each case, which the findings sum up; sources stand above the tables.
SUMMED_UP = {
    "clustering", "edi_defect", "jko", "long_time", "mean_field_large", "mean_field_limit",
    "metric", "oscillating_heads", "ou_heads", "spectrum", "stability_tokens", "stability_weights",
}  # fmt: skip


def test_findings_are_rows_of_the_page_of_their_study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    pages = importlib.import_module("predictions")
    for name in {name for _, _, names in pages.SECTIONS for name in names} - SUMMED_UP:
        document = pages.read(name)
        lines = (pages.RESULTS / f"{document['study']}.md").read_text(encoding="utf-8").split("\n")
        for finding in document["findings"]:
            start, found = f"| {finding['prediction']} | ", f" | {finding['found']} | "
            rows = [line for line in lines if line.startswith(start) and found in line]
            verdicts = {row.partition(found)[2] for row in rows}
            assert verdicts == {f"{finding['verdict']} |"}, (name, finding["prediction"], rows)


def test_cases_are_folded_whole(monkeypatch):
    """A long result is cut between its cases, never within brackets."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    pages = importlib.import_module("predictions")
    cases = ["one: 1 (of 2; at once)", *["another: 2"] * 20]
    folded = pages.folded("; ".join(cases))
    assert f"<summary>{cases[0]} <i>and 20 more</i></summary>{'; '.join(cases[1:])}" in folded
    assert pages.folded(cases[0]) == cases[0]
