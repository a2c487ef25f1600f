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
NAMES = sorted(file.stem for file in STUDIES.glob("[a-z]*.py"))
VERDICTS = get_args(Verdict)
OF_NETWORKS = {"cats_dogs", "mnist_vit", "nanogpt_sizes", "point_clouds", "pontryagin_gpt",
               "pontryagin_resnet", "rwpo_benchmarks", "rwpo_digits", "rwpo_inverse", "sentiment",
               "shakespeare_gpt", "shakespeare_words", "trained_heads", "web_text"}  # fmt: skip
sys.path.insert(0, str(STUDIES))  # as Python does for a script


def script(name: str) -> ModuleType:
    """A study script as a module."""
    spec = importlib.util.spec_from_file_location(name, STUDIES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def call(name: str, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    """Run a study in this process; errors come out as exceptions."""
    monkeypatch.setattr(sys, "argv", [f"studies/{name}.py", *flags])
    return script(name).main()


def shell(name: str, *flags: str, **options) -> subprocess.CompletedProcess:
    """Run a study as a user does."""
    command = [sys.executable, str(STUDIES / f"{name}.py"), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
