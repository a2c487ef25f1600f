"""Every call that changes the disk fails in turn, and the power fails after every one of them.

All calls that wflow makes go through `Disk`, which counts and records them. A call that fails must
end in an error of wflow, from which the run continues to the same bits. The record tells what may
be on the disk after a power failure: of what was not flushed any pages may be there without the
rest, and any of the names that were made, moved or removed.
"""

import builtins
import errno
import io
import os
import random
import warnings
from collections import defaultdict
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from run_layouts import same_bits

import wflow
from wflow.analysis.verify import verify
from wflow.heads import OrnsteinUhlenbeck
from wflow.runs import store

Cases = Callable[[int, int], int]
PAGE = 4096


def particles(end: float, seed: int = 4, **how: Any) -> xr.Dataset:
    x0 = wflow.tokens.cross_polytope(n=5, d=3, spread=0.05, seed=1)
    often = wflow.Compute(batch=2, checkpoint_every=0.0, threads=1)
    save = wflow.SaveAt(snapshots=[0.0, 0.02], paths=[0, 2], heads=True)
    return wflow.solve(
        x0, OrnsteinUhlenbeck(np.eye(3)), heads=2, t_final=end, dt=0.01, paths=3, seed=seed,
        save=save, compute=often, **how,
    )  # fmt: skip


class Trial:
    """A run, `if_exists` of it, and the bytes of the file that stands under its name before it."""

    def __init__(self, how: str, folder: Path, **before: Any) -> None:
        self.how, self.old = how, None
        self.expected = particles(0.04)
        if before:
            particles(**before, out=folder / "old.h5").close()
            self.old = (folder / "old.h5").read_bytes()

    def prepare(self, folder: Path) -> Path:
        """Return a new folder with what is there before the run; the name of the run."""
        folder.mkdir()
        if self.old is not None:
            (folder / "run.h5").write_bytes(self.old)
        return folder / "run.h5"

    def run(self, out: Path, how: str) -> None:
        particles(0.04, out=out, if_exists=how).close()

    def check_continues(self, out: Path) -> None:
        """The run can be continued, or begun again where it had not begun, to the same bits."""
        finished = out.exists() and not out.with_name("run.h5.partial").exists()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*resumed from the checkpoint before")
            self.run(out, "overwrite" if self.how == "overwrite" else "resume")
        with wflow.open(out) as found:
            same_bits(found, self.expected)
        assert verify(out).passed
        left = {file.name.removeprefix("run.h5") for file in out.parent.iterdir()}
        if finished:  # what could not be removed stays until the next run of that name
            left = {name for name in left if not name.endswith((".checkpoint", ".old", ".new"))}
        assert left <= {"", ".lock"}


@pytest.fixture(params=["new", "extension", "overwrite"])
def trial(request: pytest.FixtureRequest, tmp_path: Path, cases: Cases) -> Trial:
    if request.param == "new":
        if not cases(0, 1):
            pytest.skip("with --long: to overwrite is to begin anew")
        return Trial("error", tmp_path)
    if request.param == "extension":
        return Trial("resume", tmp_path, end=0.02)
    return Trial("overwrite", tmp_path, end=0.04, seed=5)


class Disk:
    """Calls that change the disk, or open a file, in one folder.

    Attributes
    ----------
    calls : the calls so far, (name, arguments); files by a number, names by their last part
    fails : whether the call of that number fails
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.calls: list[tuple[Any, ...]] = []
        self.fails: Callable[[int], bool] = lambda number: False
        self._numbers: dict[int, int] = {}  # of files by inode
        if (folder / "run.h5").exists():
            self._numbers[os.stat(folder / "run.h5").st_ino] = 0
        self._patch(patch)

    def call(self, *call: Any) -> None:
        """Note a call before it is made, which may fail."""
        self.calls.append(call)
        if self.fails(len(self.calls) - 1):
            code = (errno.ENOSPC, errno.EIO)[len(self.calls) % 2]
            raise OSError(code, os.strerror(code))

    def number(self, file: int | Path) -> int:
        return self._numbers.get(os.stat(file).st_ino, -1)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        here, real = self, {name: getattr(os, name) for name in ("fsync", "replace", "link")}
        real |= {"unlink": os.unlink, "open": os.open, "file": builtins.open}

        class Noted(FileIO):
            def __init__(self, name: Any, mode: str = "r") -> None:
                super().__init__(name, mode)
                self.note = isinstance(name, str | Path) and Path(name).parent == here.folder
                if self.note and "x" in mode:
                    here._numbers[os.fstat(self.fileno()).st_ino] = len(here.calls)
                    here.call("create", here.number(self.fileno()), Path(name).name)

            def write(self, data: Any) -> int:
                if self.note:
                    value = bytes(data)
                    here.call("write", here.number(self.fileno()), self.tell(), value)
                return super().write(data)

            def truncate(self, size: int | None = None) -> int:
                if self.note:
                    here.call("truncate", here.number(self.fileno()), size)
                return super().truncate(size)

        class Guarded(store._Guarded, Noted):
            pass

        def open_file(name: Any, mode: str = "r", buffering: int = -1, **more: Any) -> Any:
            if Path(str(name)).parent != here.folder or mode not in ("xb", "r+b"):
                return real["file"](name, mode, buffering, **more)
            here.call("open", Path(name).name)
            raw = Noted(name, mode)
            return raw if buffering == 0 else io.BufferedWriter(raw)

        def open_number(name: Any, flags: int, *more: Any, **rest: Any) -> int:
            if here.folder in (Path(str(name)).parent, Path(str(name))):
                here.call("open", Path(name).name)
            return real["open"](name, flags, *more, **rest)

        def fsync(number: int) -> None:
            folder = os.path.samestat(os.fstat(number), os.stat(here.folder))
            here.call(*(("flush folder",) if folder else ("flush", here.number(number))))
            real["fsync"](number)

        def replace(one: Any, other: Any) -> None:
            here.call("rename", here.number(one), Path(one).name, Path(other).name)
            real["replace"](one, other)

        def link(one: Any, other: Any) -> None:
            here.call("link", here.number(one), Path(other).name)
            real["link"](one, other)

        def unlink(name: Any, **more: Any) -> None:
            if os.path.exists(name):
                here.call("unlink", Path(name).name)
            real["unlink"](name, **more)

        for name, put in (("fsync", fsync), ("replace", replace), ("link", link)):
            patch.setattr(os, name, put)
        patch.setattr(os, "unlink", unlink)
        patch.setattr(os, "open", open_number)
        patch.setattr(builtins, "open", open_file)
        patch.setattr(store, "_Guarded", Guarded)

    def after_power_failure(self, count: int, rng: random.Random, old: bytes | None) -> dict:
        """Files by their names, as the disk may hold them when the power fails after some calls."""
        files: dict[int, bytearray] = defaultdict(bytearray)
        names: dict[str, int] = {}
        if old is not None:
            files[0], names["run.h5"] = bytearray(old), 0
        pages: dict[int, dict[int, list]] = defaultdict(lambda: defaultdict(list))
        moves: list[tuple[Any, ...]] = []
        for kind, *rest in self.calls[:count]:
            if kind in ("write", "truncate"):
                for page, act in _by_page(kind, *rest[1:]):
                    pages[rest[0]][page].append(act)
            elif kind == "flush":
                for acts in pages.pop(rest[0], {}).values():
                    _apply(files[rest[0]], acts)
            elif kind == "flush folder":
                for move in moves:
                    _move(names, *move)
                moves = []
            elif kind in ("create", "link", "rename", "unlink"):
                moves.append((kind, *rest))
        for number, held in pages.items():
            for acts in held.values():
                _apply(files[number], acts[: rng.randint(0, len(acts))])
        share = rng.choice([0.0, 0.5, 1.0])
        for move in moves:
            if rng.random() < share:
                _move(names, *move)
        return {name: bytes(files[number]) for name, number in names.items()}


def _by_page(kind: str, *rest: Any) -> list[tuple[int, tuple[int, bytes]]]:
    """Return the part of a write in each page: (page, (place, bytes)); None are bytes to cut."""
    if kind == "truncate":
        return [(-1, (rest[0], b""))]
    place, data = rest
    cuts = range(place // PAGE * PAGE, place + len(data), PAGE)
    found = []
    for cut in cuts:
        first, last = max(place, cut), min(place + len(data), cut + PAGE)
        found.append((cut, (first, data[first - place : last - place])))
    return found


def _apply(content: bytearray, acts: list[tuple[int, bytes]]) -> None:
    for place, data in acts:
        size = place + len(data)
        content.extend(bytes(max(0, size - len(content))))
        content[place:size] = data


def _move(names: dict[str, int], kind: str, *rest: Any) -> None:
    if kind == "unlink":
        names.pop(rest[0], None)
    elif kind == "rename":
        number, old, new = rest
        if names.get(old) == number:
            del names[old]
        names[new] = number
    else:
        names[rest[1]] = rest[0]


def chosen(calls: Disk, rng: random.Random, most: int) -> list[int]:
    """Return numbers of some calls of each kind."""
    kinds = defaultdict(list)
    for number, call in enumerate(calls.calls):
        kinds[call[0]].append(number)
    assert kinds.keys() >= {"open", "create", "write", "truncate", "flush", "rename", "unlink"}
    return [n for held in kinds.values() for n in rng.sample(held, min(most, len(held)))]


def recorded(trial: Trial, folder: Path) -> tuple[Disk, Path]:
    """Return the calls of a run that is not disturbed, and its file."""
    out = trial.prepare(folder)
    with pytest.MonkeyPatch.context() as patch:
        calls = Disk(out.parent, patch)
        trial.run(out, trial.how)
    return calls, out


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_every_call_that_fails_ends_in_an_error_and_the_run_continues(
    tmp_path: Path, trial: Trial, lasting: bool, cases: Cases
) -> None:
    if lasting != (trial.how == "overwrite") and not cases(0, 1):
        pytest.skip("with --long")
    calls, _ = recorded(trial, tmp_path / "whole")
    numbers, failed = chosen(calls, random.Random(trial.how), cases(1, 12)), 0
    for number in numbers:
        out = trial.prepare(tmp_path / f"{number}")
        with pytest.MonkeyPatch.context() as patch:
            calls = Disk(out.parent, patch)
            calls.fails = number.__le__ if lasting else number.__eq__
            try:
                trial.run(out, trial.how)
            except wflow.RunFileError:
                failed += 1
        if out.exists() and trial.how != "overwrite":
            assert verify(out).passed, number
        trial.check_continues(out)
    assert failed > len(numbers) // 2


def test_a_power_failure_after_any_call_leaves_a_run_that_continues(
    tmp_path: Path, trial: Trial, cases: Cases
) -> None:
    calls, out = recorded(trial, tmp_path / "whole")
    rng = random.Random(trial.how)
    whole = calls.after_power_failure(len(calls.calls), random.Random(1), trial.old)
    assert whole["run.h5"] == out.read_bytes()  # the record is complete
    for case, number in enumerate(chosen(calls, rng, cases(1, 30))):
        folder = tmp_path / f"{case}"
        folder.mkdir()
        for file, content in calls.after_power_failure(number, rng, trial.old).items():
            (folder / file).write_bytes(content)
        trial.check_continues(folder / "run.h5")
