"""Small run files for the tests of what writes and reads them."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from wflow.runs import digests
from wflow.runs.schema import VARIABLES, RunLayout, dataset_attrs
from wflow.runs.store import RunWriter

CONFIG = {"law": {"name": "Frozen", "rate": 1.0}, "heads": 2, "seed": 3}


def a_layout(**changes) -> RunLayout:
    sizes = {
        "paths": 3, "times": np.arange(6) * 0.5, "snapshots": [0.0, 2.5], "snapshot_paths": [0, 2],
        "tokens": 4, "axes": 3, "heads": 2, "save_heads": True,
    }  # fmt: skip
    return RunLayout(**(sizes | changes))


def attrs() -> dict:
    return dataset_attrs(CONFIG, seed=3, command="python study.py --heads 2")


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """End a run as a kill would, at the checkpoint of that number."""
    checkpoint, calls = RunWriter.checkpoint, iter(range(1000))

    def save(writer: RunWriter, state: Any) -> None:
        checkpoint(writer, state)
        if next(calls) == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunWriter, "checkpoint", save)


def same_bits(one: xr.Dataset, other: xr.Dataset) -> None:
    """Assert that two runs have the same variables, to the bit."""
    assert set(one.variables) == set(other.variables)
    for name in other.variables:
        np.testing.assert_array_equal(one[name].values, other[name].values, err_msg=name)


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
    """Return a changed copy of a finished file, whose digests are those of what it now holds."""
    copy = Path(shutil.copy(path, folder / "spoiled.h5"))
    with h5py.File(copy, "r+") as file:
        act(file)
        stamp(file)
    return copy


def stamp(file: h5py.File) -> None:
    """Give a file the digests of what it holds, so that no other check is hidden by them."""
    found = {
        name: digests.Running.read(order, order.size, file[name].__getitem__, lambda count: None)
        for name, order in digests.orders_of(file).items()
    }
    history = digests.plain(file.attrs.get("history", ""))
    own = {"": digests.of_attributes(digests.description(file), history)}
    own |= {name: running.hexdigest() for name, running in found.items()}
    file.attrs["digests"] = json.dumps(own)


STEERING = "\x1b]0;x\x07\x1b[2J\x9b31m\r\b\x7f\u202etxt\u2066\u200f\u061c\u200b\ufeff\u2028\xad"
"""Characters that steer a terminal, reverse text or are invisible."""
_STEERING = re.compile(
    r"[^\n\t -\ud7ff\ue000-\U0010ffff]"
    r"|[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


def steers(text: str) -> list[str]:
    """Return the characters of a text that none of wflow may print."""
    return _STEERING.findall(text)


def escapes(file: h5py.File) -> None:
    """Write such characters into every text of a run file: attributes, names, configuration."""
    config = json.loads(file.attrs["config"])
    for key in ("flow", "direction"):
        config[key] = f"{config.get(key, '')}{STEERING}\nforged"
    config["law"]["name"] = f"Law{STEERING}\nstatus  complete"
    config["law"][f"rate{STEERING}"] = STEERING
    for name in ("title", "history", "command", "source", "references", "created", "platform"):
        file.attrs[name] = f"{name}{STEERING}\n$(x)"
    file.attrs[f"mine{STEERING}\nforged"] = STEERING
    file.attrs["config"] = json.dumps(config)
    for name in list(file):
        file[name].attrs["units"] = STEERING
        file[name].attrs[f"mine{STEERING}"] = STEERING
    file.create_dataset(f"mine{STEERING}\nforged", data=3.0).attrs["long_name"] = STEERING
