"""Running the study scripts from tests."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import xarray as xr

from wflow.study.frame import Verdict

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(ROOT.glob("studies/**/*.py"))  # with the parts of studies
NAMES = sorted(file.stem for file in SCRIPTS if not file.stem.startswith("_"))
FILES = {file.stem: file for file in (*SCRIPTS, *ROOT.glob("docs/_ext/*.py"))}
VERDICTS = get_args(Verdict)
OF_NETWORKS = {"cats_dogs", "energy_stable_gpt", "energy_stable_layers", "mnist_vit",
               "nanogpt_sizes", "point_clouds", "pontryagin_gpt", "pontryagin_resnet",
               "rwpo_benchmarks", "rwpo_digits", "rwpo_inverse", "sentiment", "shakespeare_gpt",
               "shakespeare_words", "trained_heads", "web_text"}  # fmt: skip
sys.path[:0] = sorted({str(file.parent) for file in SCRIPTS})  # as Python does for a script


def script(name: str) -> ModuleType:
    """Return a study script as a module."""
    spec = importlib.util.spec_from_file_location(name, FILES[name])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def call(name: str, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """Run a study in this process; errors come out as exceptions."""
    monkeypatch.setattr(sys, "argv", [str(FILES[name]), *flags])
    script(name).main()


def shell(name: str, *flags: str, **options) -> subprocess.CompletedProcess:
    """Run a study as a user does."""
    command = [sys.executable, str(FILES[name]), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class Done:
    """What a study has left in its folder, all of it as the frame promises."""

    def __init__(self, out: Path, said: str) -> None:
        self.out, self.said = out, said
        self.names = {file.name for file in out.iterdir()}
        assert {"summary.h5", "summary.json"} <= self.names
        assert not [n for n in self.names if n.endswith((".partial", ".checkpoint", ".new"))]
        self.summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        self.findings: list[dict[str, str]] = self.summary.get("findings", [])
        self.table = xr.load_dataset(out / "summary.h5", engine="h5netcdf")
        assert all(values.attrs.get("long_name") for values in self.table.data_vars.values())

    def verdicts(self, part: str = "") -> list[str]:
        """Return the verdicts on predictions that hold these words."""
        return [f["verdict"] for f in self.findings if part in f["prediction"]]

    def drawn(self, *stems: str) -> bool:
        """Return whether figures of these names are there, as PNG and as PDF."""
        return {f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")} <= self.names
