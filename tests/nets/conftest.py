"""Fixtures of the tests of networks, which are left out where there is no torch."""

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data folder, no earlier download, and no address outside this machine."""
    from wflow.nets.data import download, modelnet, tokenize

    monkeypatch.delenv("WFLOW_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    for module in (download, modelnet, tokenize):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
