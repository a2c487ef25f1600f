"""The code in docs/guide/networks.md runs as it is printed."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[1]


def blocks(page: str) -> list[str]:
    """The Python code of a page that is about networks."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [code for code in found if "nets" in code or "vit" in code or "body" in code]


def test_code_of_the_page_runs(tmp_path, monkeypatch):
    page = "docs/guide/networks.md"
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    codes = blocks(page)
    assert codes
    for code in codes:
        exec(compile(code, page, "exec"), names)
    assert torch.isfinite(names["cost"])
    if "history" in names:
        loss = names["history"]["loss"]
        assert float(loss[-20:].mean()) < float(loss[:20].mean())
        assert (tmp_path / "results/digits/metrics.h5").exists()
