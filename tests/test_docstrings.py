"""Examples in the docstrings of the package."""

import doctest
import importlib
import inspect
from pathlib import Path

import public_names
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
    if name.startswith(("wflow.nets", "wflow.gradients.interop")):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed


def test_every_example_of_a_public_name_runs_with_those_of_its_module():
    finder = doctest.DocTestFinder(recurse=False)
    for _, name, thing, _ in public_names.public_names():
        if ">>> " in (thing.__doc__ or ""):
            module = importlib.import_module(inspect.getmodule(thing).__name__)
            assert module.__name__ in MODULES, name
            assert finder.find(thing, module=module)[0].examples, name
