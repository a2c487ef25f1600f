"""Damaged, full and read-only folders of compiled code cost time and one warning, never a call."""

import importlib.util
import os
import random
import resource
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numba
import numpy as np
import pytest
from numba.core import event

from wflow._core.compiler import cache as disk

KERNELS = """
import numpy as np
from numba import prange
from wflow._core.compiler.functions import kernel, loop_body
from wflow._core.compiler.tasks import address, arrays, call


@kernel
def total(values):
    found = 0.0
    for value in values:
        found += value
    return found


@kernel(parallel=True)
def squares(values, out, task_at):
    for task in prange(len(values)):
        call(task_at, (np.intp(task), values, out))


@loop_body
def put_square(task, values, out):
    out[task] = values[task] ** 2
"""
SERIAL = {"total", "put_square"}
EVERY = SERIAL | {"squares"}


class CodeCache:
    """Kernels of the three kinds in `source`, whose compiled code lies in `folder`."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder

    def files(self, pattern: str) -> list[Path]:
        return sorted(file for file in self.folder.rglob(pattern) if file.is_file())

    def start(self, dtype: str = "float64", *, parallel: bool = False) -> tuple[list[str], set]:
        """Run as a new process does and check the results; returns warnings and what compiled."""
        disk.warned.clear()
        spec = importlib.util.spec_from_file_location("small_kernels", self.source)
        assert spec is not None and spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        values, out = np.arange(5, dtype=dtype), np.zeros(5, dtype)
        with (
            pytest.MonkeyPatch.context() as patch,
            event.install_recorder("numba:compile") as seen,
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            patch.setitem(sys.modules, spec.name, module)
            spec.loader.exec_module(module)
            flat = module.arrays(dtype)[0]
            place = module.address(module.put_square, (numba.types.intp, flat, flat))
            assert module.total(values) == 10.0
            if parallel:
                module.squares(values, out, place)
                np.testing.assert_array_equal(out, values**2)
        functions = [moment.data["dispatcher"].py_func for _, moment in seen.buffer]
        names = {one.__name__ for one in functions if one.__module__ == "small_kernels"}
        return [str(one.message) for one in said], names


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> CodeCache:
    """Return the kernels and their code in double precision, which stay as they are."""
    folder = tmp_path_factory.mktemp("whole")
    source = folder / "small_kernels.py"
    source.write_text(KERNELS)
    made = CodeCache(source, folder / "code")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "places", lambda: [made.folder])
        assert made.start(parallel=True) == ([], EVERY)
        assert made.start(parallel=True) == ([], set())
    return made


@pytest.fixture
def cache(whole: CodeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeCache:
    shutil.copytree(whole.folder, tmp_path / "code")
    monkeypatch.setattr(disk, "places", lambda: [tmp_path / "code"])
    return CodeCache(whole.source, tmp_path / "code")


def spoil(files: list[Path], rng: random.Random) -> str:
    """Damage one of the files in a random manner; returns which and how."""
    file = rng.choice(files)
    content, kind = file.read_bytes(), rng.choice(("cut", "garbage", "bit", "other", "folder"))
    place = rng.randrange(len(content))
    flipped = bytes([content[place] ^ 1 << rng.randrange(8)])
    damaged = {
        "cut": content[:place], "garbage": rng.randbytes(1000),
        "bit": content[:place] + flipped + content[place + 1 :],
        "other": rng.choice(files).read_bytes(),
    }  # fmt: skip
    file.unlink()
    if kind == "folder":
        file.mkdir()
    else:
        file.write_bytes(damaged[kind])
    return f"{file.name}: {kind} at {place}"


def test_however_files_are_damaged_results_are_right(
    cache: CodeCache, whole: CodeCache, cases: Callable[[int, int], int]
) -> None:
    rng, parallel = random.Random(1), bool(cases(0, 1))
    for _ in range(cases(5, 120)):
        shutil.rmtree(cache.folder)
        shutil.copytree(whole.folder, cache.folder)
        files = [file for file in cache.files("*.code") if parallel or "squares" not in file.name]
        what = spoil(files, rng)
        said, _ = cache.start(parallel=parallel)
        assert len(said) <= 1, what
        if "folder" not in what:  # a folder stays, for wflow did not make it
            assert cache.start(parallel=parallel) == ([], set()), what


def test_code_that_does_not_link_is_compiled_again(
    cache: CodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk, "rebuild", Mock(side_effect=RuntimeError("a symbol is missing")))
        (said,), made = cache.start()
    assert made == SERIAL and "a symbol is missing" in said
    assert cache.start() == ([], set())


def test_a_full_disk_is_warned_of_once_and_code_is_kept_when_there_is_room(
    cache: CodeCache,
) -> None:
    shutil.rmtree(cache.folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        (said,), made = cache.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert made == SERIAL and str(cache.folder) in said
    assert cache.files("*.tmp") == []
    assert cache.start() == ([], SERIAL)
    assert cache.start() == ([], set())


def test_code_in_a_folder_that_cannot_be_written_is_used(
    whole: CodeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text("")  # no folder, which root could write
    monkeypatch.setattr(disk, "places", lambda: [tmp_path / "own", whole.folder])
    assert CodeCache(whole.source, whole.folder).start(parallel=True) == ([], set())
    monkeypatch.setattr(disk, "places", lambda: [tmp_path / "own"])
    (said,), made = CodeCache(whole.source, tmp_path).start()
    assert made == SERIAL and str(tmp_path / "own") in said


def test_of_folders_of_other_sources_the_newest_are_kept(cache: CodeCache) -> None:
    shutil.rmtree(cache.folder)
    old = [cache.folder / f"wflow-{number}" for number in range(12)]
    for number, folder in enumerate(old):
        folder.mkdir(parents=True)
        os.utime(folder, (number, number))
    (cache.folder / "of the user").mkdir()
    cache.start()
    left = set(cache.folder.iterdir()) & set(old)
    assert left and left == set(old[-len(left) :])
    assert len(left) < len(old) and (cache.folder / "of the user").exists()
