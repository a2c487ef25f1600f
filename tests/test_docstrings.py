"""Examples in the docstrings of the package."""

import doctest
import importlib
from pathlib import Path

import pytest

import wflow

ROOT = Path(wflow.__file__).parent
MODULES = [
    ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
    for file in sorted(ROOT.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_show(name, tmp_path, monkeypatch):
    if name.startswith("wflow.nets"):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed
