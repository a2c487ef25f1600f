"""The layout of the package: imports point down, from floor to floor, and never in a circle."""

import ast
import functools
from pathlib import Path

import pytest

import wflow

ROOT = Path(wflow.__file__).parent
# A package imports from itself and from those before it.
FLOORS = [
    "_core", "sphere", "kernels", "runs", "heads", "attention", "particles", "transport",
    "gradients", "meanfield", "analysis", "sampling", "distributed", "nets", "plots", "study",
    "cli",
]  # fmt: skip
FACADE = {"wflow", "wflow.__main__"}  # hands names on, and is imported by no module


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(file): file for file in sorted(ROOT.rglob("*.py"))}


@functools.cache
def imports(module: str) -> frozenset[str]:
    """Modules of wflow that a module imports anywhere: in functions and for types alone, too."""
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "wflow"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wflow":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else str(node.module) for name in names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
    return frozenset(found - {module})


def functions(package: str) -> list[str]:
    """Return what an `__init__` imports and hands on, modules aside."""
    return [
        alias.asname or alias.name
        for node in ast.parse(FILES[package].read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.{alias.name}" not in FILES
    ]


def floor(module: str) -> int:
    return FLOORS.index(module.split(".")[1])


def test_the_package_is_a_table_of_contents() -> None:
    files = {file.name for file in ROOT.iterdir() if file.is_file()}
    assert files == {"__init__.py", "__main__.py", "_version.py", "py.typed"}
    assert {file.name for file in ROOT.iterdir() if file.is_dir()} - {"__pycache__"} == set(FLOORS)


@pytest.mark.parametrize("package", [name for name in FILES if FILES[name].name == "__init__.py"])
def test_no_name_of_a_package_hides_a_module(package: str) -> None:
    modules = {name.rpartition(".")[2] for name in FILES if name.rpartition(".")[0] == package}
    assert package in FACADE or not modules & set(functions(package))


@pytest.mark.parametrize("module", [name for name in FILES if name not in FACADE])
def test_imports_point_down(module: str) -> None:
    if module == "wflow._version":
        assert not imports(module)
        return
    for other in imports(module) - {"wflow._version"}:
        assert other not in FACADE, f"{module} imports {other}"
        assert floor(other) <= floor(module), f"{module} imports {other}, which is above it"


def test_no_module_imports_itself_by_way_of_others() -> None:
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above[above.index(module) :], module))
        if module not in done:
            for other in imports(module):
                visit(other, (*above, module))
            done.add(module)

    for module in FILES:
        visit(module, ())


def test_private_names_are_used_by_the_tests_of_their_package_alone() -> None:
    tests = Path(__file__).parent
    for file in sorted(tests.rglob("*.py")):
        package = file.relative_to(tests).parts[0]
        homes: dict[str, str] = {}  # of what the file imports, by its name there
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wflow."):
                home = str(node.module).split(".")[1]
                for alias in node.names:
                    homes[alias.asname or alias.name] = home
                    assert home == package or not alias.name.startswith("_"), (
                        f"{file}: {alias.name}"
                    )
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                private = node.attr.startswith("_") and not node.attr.startswith("__")
                assert not private or homes.get(node.value.id, package) == package, (
                    f"{file}: {node.value.id}.{node.attr}"
                )
