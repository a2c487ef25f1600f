"""What the compiled code on disk is kept for: the text of every file that it was made of."""

import ast
import importlib
import re
import types
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest
from numba.core.extending import _Intrinsic

import wflow
from wflow._fused import _make_both_ways, _make_one_way

HOME = Path(wflow.__file__).parent
KEEPERS = sorted(
    path.stem
    for path in HOME.glob("_*.py")
    if re.search(r"(=|return) compiled\(", path.read_text())
)


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


def files_behind(name: str) -> set[str]:
    """Files of everything that the entry points of a module reach, by the names in their code."""
    module = importlib.import_module(f"wflow.{name}")
    tree = ast.parse(Path(module.__file__).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    entries = [node.args[0].id for node in calls if getattr(node.func, "id", None) == "compiled"]
    found, todo = set[types.CodeType](), []
    for code in nested(compile(tree, module.__file__, "exec")):
        todo += [(code, vars(module))] if code.co_name in entries else []
    while todo:
        code, names = todo.pop()
        if code in found:
            continue
        found.add(code)
        for part in nested(code):
            for called in part.co_names:
                its = code_of(names.get(called))
                if its is not None:
                    home = importlib.import_module(f"wflow.{Path(its.co_filename).stem}")
                    todo.append((its, vars(home)))
    return {Path(code.co_filename).stem for code in found}


def files_of_the_key(name: str) -> list[set[str]]:
    """Files named by every call of `compiled` in a module."""
    module = importlib.import_module(f"wflow.{name}")
    found = []
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "compiled":
            key = {name}
            for argument in node.args[1:]:
                if isinstance(argument, ast.Starred):
                    key |= {
                        m.__name__.rpartition(".")[2] for m in getattr(module, argument.value.id)
                    }
                else:
                    key.add(argument.id)
            found.append(key)
    return found


@pytest.mark.parametrize("name", KEEPERS)
def test_the_key_of_compiled_code_names_every_file_behind_it(name):
    behind = files_behind(name) - {"_kernel_cache"}  # names functions, and is not compiled
    assert name in behind
    for key in files_of_the_key(name):
        assert behind <= key


def variants_within(function: numba.core.registry.CPUDispatcher) -> set[str]:
    """Names of a compiled function and of those that it closes over, which have variants."""
    found = {function.py_func.__qualname__}
    for cell in function.py_func.__closure__ or ():
        if isinstance(cell.cell_contents, numba.core.registry.CPUDispatcher):
            found |= variants_within(cell.cell_contents)
    return found


@pytest.mark.parametrize("make", [_make_one_way, _make_both_ways])
def test_variants_of_compiled_code_have_names_of_their_own(make):
    # Under one name, code kept by two processes was linked as one: NaN for one of the dimensions.
    two, three = variants_within(make(2)), variants_within(make(3))
    assert len(two) == len(three) > 1
    assert not two & three
