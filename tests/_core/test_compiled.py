"""The disk cache of compiled code depends on every file that it was compiled from."""

import ast
import importlib
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest
from numba.core.extending import _Intrinsic

import wflow
from wflow._core import compiled
from wflow._core.compiled import _SHARED

_SPIN = "GOMP_SPINCOUNT"
HOME = Path(wflow.__file__).parent
KEEPERS = {
    ".".join(("wflow", *path.relative_to(HOME).with_suffix("").parts)): path
    for path in sorted(HOME.rglob("*.py"))
    if re.search(r"(=|return) compiled\(", path.read_text())
}


def code_of(thing: object) -> types.CodeType | None:
    """The code of what compiled functions may call, if `thing` is that and belongs to wflow."""
    if isinstance(thing, numba.core.registry.CPUDispatcher):
        thing = thing.py_func
    if isinstance(thing, _Intrinsic):
        thing = thing._defn
    if isinstance(thing, types.FunctionType) and thing.__module__.startswith("wflow."):
        return thing.__code__
    return None


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def files_behind(name: str) -> set[Path]:
    """Files of everything that the entry points of a module reach, by the names in their code."""
    module = importlib.import_module(name)
    tree = ast.parse(KEEPERS[name].read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    entries = [node.args[0].id for node in calls if getattr(node.func, "id", None) == "compiled"]
    found, todo = set[types.CodeType](), []
    for code in nested(compile(tree, str(KEEPERS[name]), "exec")):
        todo += [(code, vars(module))] if code.co_name in entries else []
    modules = {getattr(m, "__file__", None): m for m in sys.modules.copy().values()}
    while todo:
        code, names = todo.pop()
        if code in found:
            continue
        found.add(code)
        for part in nested(code):
            for called in part.co_names:
                its = code_of(names.get(called))
                if its is not None:
                    todo.append((its, vars(modules[its.co_filename])))
    return {Path(code.co_filename) for code in found}


def keys(name: str) -> list[set[Path]]:
    """Files that every call of `compiled` in a module makes part of its key."""
    module = importlib.import_module(name)
    return [
        {KEEPERS[name], *_SHARED, *(Path(getattr(module, m.id).__file__) for m in node.args[1:])}
        for node in ast.walk(ast.parse(KEEPERS[name].read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "compiled"
    ]


@pytest.mark.parametrize("name", KEEPERS)
def test_the_key_of_compiled_code_names_every_file_behind_it(name):
    behind = files_behind(name) - {HOME / "_core" / "compiled.py"}  # names functions
    assert KEEPERS[name] in behind
    for key in keys(name):
        assert behind <= key


def test_the_key_of_compiled_code_covers_the_whole_folder_of_kernels():
    assert set((HOME / "kernels").rglob("*.py")) < set(_SHARED)
    assert all(file.is_file() for file in _SHARED)


def test_a_warning_of_the_cache_points_at_the_line_that_called_wflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "warned", set())
    monkeypatch.setattr(
        compiled._Cache, "_names", lambda self: compiled._warn_not_kept("a folder") or {}
    )
    with pytest.warns(UserWarning, match="a folder") as said:
        compiled.compiled(_one_function)(1.0)
    assert {warning.filename for warning in said} == {__file__}


def _one_function(source, cache):
    @numba.njit(cache=cache)
    def function(x):
        _ = source
        return x

    return function


def test_the_environment_is_left_as_it_was_and_threads_hardly_wait_awake():
    code = (
        "import os; before = dict(os.environ)\n"
        "import wflow; wflow.energy; assert dict(os.environ) == before\n"
        "from numba.np.ufunc import parallel\n"
        "seen, launch = [], parallel._launch_threads\n"
        "def launched():\n"
        "    seen.append(os.environ.get('GOMP_SPINCOUNT'))\n"
        "    return launch()\n"
        "parallel._launch_threads = launched\n"
        "wflow.energy(wflow.tokens.uniform(1000, 2, seed=0), [[[1.0, 0.0], [0.0, 1.0]]])\n"
        "print(seen[0]); assert dict(os.environ) == before\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", _SPIN)}
    environment["NUMBA_NUM_THREADS"] = "2"
    for given, expected in ({}, "10000"), ({_SPIN: "7"}, "7"), ({"OMP_WAIT_POLICY": "a"}, "None"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment | given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == expected, done.stderr
