"""Studies run by tests: what they say, their summary, their table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from scripts import call


class Done:
    """What a study has left in its folder, all of it as the frame promises."""

    def __init__(self, out: Path, said: str) -> None:
        self.out, self.said = out, said
        self.names = {file.name for file in out.iterdir()}
        assert {"summary.h5", "summary.json", "summary.md"} <= self.names
        assert not [n for n in self.names if n.endswith((".partial", ".checkpoint", ".new"))]
        self.summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        self.findings: list[dict[str, str]] = self.summary.get("findings", [])
        self.table = xr.load_dataset(out / "summary.h5", engine="h5netcdf")
        assert all(values.attrs.get("long_name") for values in self.table.data_vars.values())

    def verdicts(self, part: str = "") -> list[str]:
        """The verdicts on predictions that hold these words."""
        return [f["verdict"] for f in self.findings if part in f["prediction"]]

    def drawn(self, *stems: str) -> bool:
        """Whether figures of these names are there, as PNG and as PDF."""
        return {f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")} <= self.names


@pytest.fixture
def run_study(tmp_path, monkeypatch, capsys) -> Callable[..., Done]:
    """`run_study(name, *flags, to="out")`: run a study in this process, into a folder of `to`."""

    def run(name: str, *flags: str, to: str = "out") -> Done:
        assert call(name, monkeypatch, *flags, "--out", str(tmp_path / to)) == 0
        return Done(tmp_path / to, capsys.readouterr().out)

    return run


@pytest.fixture
def resumed(run_study, sketched) -> Callable[..., Done]:
    """`resumed(name, *flags, only="a", then=("--only", "b"))`: train a model, then resume.

    What is trained and measured stays, and networks that have learnt for seconds decide nothing.
    """

    def run(name: str, *flags: str, only: str, then: tuple[str, ...] = ()) -> Done:
        flags = ("--preset", "smoke", *flags)
        out = run_study(name, *flags, "--only", only).out
        kept = [*out.glob("*/checkpoint.pt"), *out.glob("*/record.json")]
        before = [file.stat().st_mtime_ns for file in kept]
        done = run_study(name, *flags, *then, "--resume")
        assert kept and [file.stat().st_mtime_ns for file in kept] == before
        assert done.findings == []
        assert "published" not in done.said.lower().replace("published code", "")
        return done

    return run
