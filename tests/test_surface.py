"""The public surface: what `dir` shows, and names that do not exist."""

import importlib

import public_names
import pytest

import wflow


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


def test_verify_is_a_function_and_has_the_names_of_its_module():
    module = importlib.import_module("wflow.analysis.verify")
    assert wflow.verify is module.verify
    for name in ("Check", "Report", "TOLERANCE"):
        assert getattr(wflow.verify, name) is getattr(module, name)
