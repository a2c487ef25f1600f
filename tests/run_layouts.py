"""Small run files for the tests of what writes and reads them."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from wflow.io import disk
from wflow.io.runfile import RunLayout, RunWriter, dataset_attrs
from wflow.io.schema import VARIABLES

CONFIG = {"law": {"name": "Frozen", "rate": 1.0}, "heads": 2, "seed": 3}
ROOT = Path(__file__).parents[1]


def a_layout(**changes) -> RunLayout:
    sizes = {
        "paths": 3,
        "times": np.arange(6) * 0.5,
        "snapshots": [0.0, 2.5],
        "snapshot_paths": [0, 2],
        "tokens": 4,
        "axes": 3,
        "heads": 2,
        "save_heads": True,
    }
    return RunLayout(**(sizes | changes))


def attrs() -> dict:
    return dataset_attrs(CONFIG, seed=3, command="python study.py --heads 2")


def fill(store, layout: RunLayout, columns: int | None = None) -> None:
    rng = np.random.default_rng(0)
    for name in layout.names:
        values = rng.normal(size=layout.shape(name))
        if columns is None or "time" not in VARIABLES[name].dims:
            store.write(name, (), values)
        else:
            store.write(name, (slice(None), slice(columns)), values[:, :columns])


def finished(path: Path, **changes) -> Path:
    layout = a_layout(**changes)
    writer = RunWriter.create(path, layout, attrs())
    fill(writer, layout)
    return writer.finish()


def spoiled(path: Path, folder: Path, act: Callable[[h5py.File], None]) -> Path:
    """A changed copy of a finished file, of version 1: without the digests that would tell."""
    copy = Path(shutil.copy(path, folder / "spoiled.h5"))
    disk.unseal(copy)
    with h5py.File(copy, "r+") as file:
        file.attrs.update({"schema": "wflow-run/1", "complete": np.array([1])})
        act(file)
    return copy


def in_child(code: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        timeout=120,
    )
