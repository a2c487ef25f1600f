"""What an installation says of itself: extras that are missing, the command that was typed."""

import sys
import types
from pathlib import Path

import pytest

import wflow
from wflow._core.extras import install, missing
from wflow._core.fingerprint import installed
from wflow._core.invocation import command_text, program, started_as


def test_a_missing_package_is_named_with_its_extra() -> None:
    assert missing({"json": "nets"}) == []
    (said,) = missing({"json": "nets", "no_such_package": "dask"})
    assert said.startswith("no_such_package is not installed here; the extra dask brings it: ")
    assert said.endswith(install("dask")) and install("dask") == (
        "pip install 'wflow-transformers[dask]'"
    )


def test_the_command_is_what_was_typed(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/ou_heads.py", "--out", "a b"])
    with pytest.raises(RuntimeError), started_as("wflow", "study", "ou_heads"):
        assert command_text() == "wflow study ou_heads --out 'a b'"
        assert program() == "wflow study ou_heads"
        raise RuntimeError
    assert command_text() == "/somewhere/ou_heads.py --out 'a b'" and program() is None


@pytest.mark.parametrize(("folder", "of_a_package"), [("_studies", False), ("heads", True)])
def test_code_of_a_study_counts_although_it_lies_in_a_wheel(folder, of_a_package, monkeypatch):
    module = types.ModuleType(f"_found_in{folder}")
    module.__file__ = str(Path(wflow.__file__).parent / folder / "_found.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert installed(module.__name__) is of_a_package
