"""Compiled functions: constants in their types, their code on disk, the environment."""

import importlib
import re
from pathlib import Path

import numba
import pytest
from interpreters import python
from numba.extending import is_jitted

import wflow
from wflow._core.compiler import cache

HOME = Path(wflow.__file__).parent
USERS = [
    ".".join(("wflow", *file.relative_to(HOME).with_suffix("").parts))
    for file in sorted(HOME.rglob("*.py"))
    if re.search(r"^@(kernel|loop_body)", file.read_text(), re.M)
]


@pytest.mark.parametrize("name", USERS)
def test_kept_code_depends_on_shared_files_and_its_own_alone(name: str) -> None:
    """An edit of any other file would leave code on disk that is out of date."""
    shared = [HOME / folder for folder in cache._SHARED]
    without = [HOME / other for other in cache._WITHOUT]
    for value in vars(importlib.import_module(name)).values():
        if is_jitted(value) and value.py_func.__module__ != name:
            file = Path(value.py_func.__code__.co_filename)
            assert any(folder in file.parents for folder in shared), file
            assert not any(file.is_relative_to(other) for other in without), file


def test_the_folder_of_compiled_code_follows_the_text_of_shared_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(processor: str) -> str:
        cache._digest_of_file.cache_clear()
        return cache._digest_of_shared.__wrapped__((processor,))

    source = tmp_path / "kernels" / "sums.py"
    source.parent.mkdir()
    source.write_text("one = 1\n")
    monkeypatch.setattr(cache, "_PACKAGE", tmp_path)
    before = digest("a")
    assert digest("a") == before != digest("b")
    source.write_text("two = 2\n")
    after = digest("a")
    assert after != before
    for other in cache._WITHOUT:
        file = tmp_path / other / "plain.py" if not other.endswith(".py") else tmp_path / other
        file.parent.mkdir(exist_ok=True)
        file.write_text("three = 3\n")
    assert digest("a") == after


def test_code_lies_in_the_folder_that_the_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/given")
    monkeypatch.setenv("XDG_CACHE_HOME", "/home")
    named, beside, user = cache.places()
    assert (named, beside, user) == (Path("/given"), HOME / "__pycache__", Path("/home/wflow"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert cache.places() == [beside, user]


DIMENSIONS = """
import sys
import numpy as np
from wflow._core.compiler.functions import constant, internal, kernel, value_of

@internal
def total(dim, values):
    found = 0.0
    for k in range(value_of(dim)):
        found += values[k]
    return found

@kernel
def run(dim, values):
    return total(dim, values)

for d in map(int, sys.argv[1:]):
    print(run(constant(d), np.ones(9)), sum(run.stats.cache_hits.values()))
"""


def test_code_for_two_constants_that_two_processes_kept_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "small.py"
    file.write_text(DIMENSIONS)
    folders = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(HOME.parent)}
    said = [
        python(file, *dimensions, **folders).stdout.split()
        for dimensions in (["2"], ["3"], ["2", "3"])
    ]
    assert said == [["2.0", "0"], ["3.0", "0"], ["2.0", "1", "3.0", "2"]]


def test_the_environment_is_left_as_it_was_and_threads_hardly_wait_awake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = (
        "import os; before = dict(os.environ)\n"
        "import numba\n"
        "import wflow; wflow.energy; assert dict(os.environ) == before\n"
        "seen, get_num_threads = [], numba.get_num_threads\n"
        "def asked():\n"
        "    seen.append(os.environ.get('GOMP_SPINCOUNT'))\n"
        "    return get_num_threads()\n"
        "numba.get_num_threads = asked\n"
        "wflow.energy(wflow.tokens.uniform(1000, 2, seed=0), [[[1.0, 0.0], [0.0, 1.0]]])\n"
        "print(seen[0]); assert dict(os.environ) == before\n"
    )
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert python("-c", code, NUMBA_NUM_THREADS="2").stdout.strip() == "10000"
