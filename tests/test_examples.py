"""The gallery: every example has a title and uses public names only, and the quick ones run.

All of them are executed by `make docs`.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wflow

GALLERY = Path(__file__).resolve().parents[1] / "examples"
EXAMPLES = sorted(GALLERY.glob("*/plot_*.py"))
QUICK = ("1_basics/plot_2_which_flow", "1_basics/plot_8_julia_matlab")
LINES = 120  # of code, without text and blank lines


def name(path):
    return path.relative_to(GALLERY).with_suffix("").as_posix()


def attribute(node):
    """Return `a.b.c` for a chain of attributes, else None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def resolve(dotted):
    """The object that a dotted name below `wflow` names, each part in the `__all__` above it."""
    found = wflow
    for part in dotted.split(".")[1:]:
        public = getattr(found, "__all__", None)
        if public is None:  # a class or a value: what it has is its own matter
            return
        assert part in public, f"{part} of {dotted} is not public"
        found = getattr(found, part)


def test_the_gallery_has_at_least_twenty_examples_in_sections_with_a_header():
    assert len(EXAMPLES) >= 20
    for folder in {GALLERY, *(path.parent for path in EXAMPLES)}:
        assert (folder / "GALLERY_HEADER.rst").is_file()
    stems = [path.stem for path in EXAMPLES]
    assert len(set(stems)) == len(stems), "two pages would have one name"


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_an_example_opens_with_a_title_and_is_short(path):
    text = path.read_text()
    tree = ast.parse(text)
    title, line = ast.get_docstring(tree).splitlines()[:2]
    assert set(line) == {"="} and len(line) == len(title)
    code = [row for row in text.splitlines() if row.strip() and not row.startswith("#")]
    assert len(code) - len(ast.get_docstring(tree).splitlines()) <= LINES
    assert "# %%" in text and "plt.savefig" not in text
    assert not re.search(r"\b__file__\b|(?<!['\w])/(tmp|home|work)/", text), (
        "must run as a notebook"
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_an_example_uses_public_names_only(path):
    tree = ast.parse(path.read_text())
    modules = {"wflow"}
    if "torch" in path.read_text():
        pytest.importorskip("torch")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert not alias.name.startswith("wflow."), f"{alias.name}: import it from wflow"
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "wflow":
            for alias in node.names:
                resolve(f"{node.module}.{alias.name}")
                modules.add(alias.asname or alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr == "__init__", node.attr
            dotted = attribute(node)
            if dotted is not None and dotted.split(".")[0] in modules:
                prefix = "" if dotted.startswith("wflow.") else "wflow."
                resolve(prefix + dotted)


@pytest.mark.parametrize("example", QUICK)
def test_a_quick_example_runs_and_leaves_no_file(example, tmp_path, cases):
    if example not in QUICK[: cases(1, len(QUICK))]:
        pytest.skip("runs with --long")
    environment = dict(os.environ, MPLBACKEND="Agg", PYTHONPATH=str(GALLERY.parent))
    done = subprocess.run(
        [sys.executable, str(GALLERY / f"{example}.py")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout and not list(tmp_path.iterdir())
