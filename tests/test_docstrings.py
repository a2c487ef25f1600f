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
    if name.startswith("wflow.nets"):
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


def documented(text):
    def function(x, y=1.0):
        return x + y

    function.__doc__ = text
    return public_names.PublicName("wflow.flows", "wflow.flows.register", function, False)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("adds numbers", {"SS02", "SS03", "SS05", "PR01", "RT01", "WF01"}),
        ("Adds numbers.\n\nSource: a book.\n", {"SS05", "PR01", "RT01", "WF01", "WF03"}),
        (
            """Add numbers [1]_.

            Parameters
            ----------
            x : float
                Number |x|
            y : float, default 2.0
                Number.

            Returns
            -------
            float
                The sum.

            References
            ----------
            .. [1] A book.
            .. [2] Another one.

            Examples
            --------
            >>> 1 + 1
            2
            """,
            {"PR09", "WF03", "WF04", "WF05"},
        ),
    ],
)
def test_the_check_of_docstrings_names_what_is_missing(text, codes):
    pytest.importorskip("numpydoc")
    found = public_names.faults(documented(text))
    assert {line.partition(" ")[0] for line in found} == codes


def test_a_check_of_arguments_asks_for_a_raises_section():
    pytest.importorskip("numpydoc")
    public = documented("Read.")._replace(thing=wflow.SaveAt.checked)
    assert public_names._checks_arguments(public.thing)
    assert not public_names._checks_arguments(wflow.SaveAt)
