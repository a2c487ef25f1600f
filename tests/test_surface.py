"""The public surface: what `dir` shows, and names that have moved."""

import importlib
import re
from pathlib import Path
from pkgutil import resolve_name

import public_names
import pytest

import wflow
from wflow._core.moves import MOVES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guide" / "moves.md"


@pytest.mark.parametrize("room", public_names.rooms())
def test_a_public_module_shows_its_public_names_alone(room):
    module = public_names.rooms()[room]
    extra = ["__version__"] if room == "wflow" else []
    assert dir(module) == sorted([*module.__all__, *extra])
    assert all(not name.startswith("_") for name in module.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    for room in (wflow, wflow.study):
        with pytest.raises(AttributeError, match="nonsense"):
            _ = room.nonsense


@pytest.mark.parametrize("old", MOVES)
def test_a_name_that_moved_is_found_with_a_warning_and_is_on_the_page(old):
    module, _, name = old.rpartition(".")
    with pytest.warns(DeprecationWarning, match=re.escape(MOVES[old])) as caught:
        value = getattr(resolve_name(module), name)
    assert value is resolve_name(MOVES[old])
    assert caught[0].filename == __file__
    assert name not in dir(resolve_name(module))
    assert f"| `{old}` | `{MOVES[old]}` |" in PAGE.read_text(encoding="utf-8")


def test_verify_is_a_function_and_has_the_names_of_its_module():
    module = importlib.import_module("wflow.analysis.verify")
    assert wflow.verify is module.verify
    for name in ("verify", "Check", "Report", "TOLERANCE"):
        assert getattr(wflow.verify, name) is getattr(module, name)
