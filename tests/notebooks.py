"""Notebooks that tests execute."""

from pathlib import Path
from typing import Any

import pytest

import wflow


def executed(cells: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cells after a run in a kernel of this Python, whose settings and files stay in a folder.

    The test is skipped where the packages for it are missing.
    """
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(wflow.__file__).parents[1]))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    return nbclient.NotebookClient(book, timeout=120).execute(cwd=str(folder)).cells
