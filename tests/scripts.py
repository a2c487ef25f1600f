"""Running the study scripts from tests."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from wflow.study.frame import Verdict

STUDIES = Path(__file__).resolve().parents[1] / "studies"
FILES = {file.stem: file for file in STUDIES.glob("**/*.py")}  # with the parts of studies
NAMES = sorted(name for name in FILES if not name.startswith("_"))
VERDICTS = get_args(Verdict)
OF_NETWORKS = {"cats_dogs", "mnist_vit", "nanogpt_sizes", "point_clouds", "pontryagin_gpt",
               "pontryagin_resnet", "rwpo_benchmarks", "rwpo_digits", "rwpo_inverse", "sentiment",
               "shakespeare_gpt", "shakespeare_words", "trained_heads", "web_text"}  # fmt: skip
sys.path[:0] = sorted({str(file.parent) for file in FILES.values()})  # as Python does for a script


def script(name: str) -> ModuleType:
    """A study script as a module."""
    spec = importlib.util.spec_from_file_location(name, FILES[name])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def call(name: str, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    """Run a study in this process; errors come out as exceptions."""
    monkeypatch.setattr(sys, "argv", [str(FILES[name]), *flags])
    return script(name).main()


def shell(name: str, *flags: str, **options) -> subprocess.CompletedProcess:
    """Run a study as a user does."""
    command = [sys.executable, str(FILES[name]), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
