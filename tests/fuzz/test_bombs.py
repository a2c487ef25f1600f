"""Small files that hold much: refused, or read in part, with little memory."""

import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import wflow
from wflow import InputError
from wflow._core import memory

Cases = Callable[[int, int], int]
MOST = 110  # MB that may be taken: what is always admitted, and the buffers of the libraries
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def little_memory() -> Iterator[None]:
    """Assert that a block takes at most `MOST` MB."""
    if not RESET.exists():
        pytest.skip("the peak of the memory is not known on this system")

    def megabytes(kind: str) -> float:
        found = re.search(rf"{kind}:\s+(\d+) kB", STATUS.read_text())
        assert found
        return float(found[1]) / 1024

    RESET.write_text("5")
    before = megabytes("VmRSS")
    yield
    assert megabytes("VmHWM") - before < MOST


def npz(path: Path, shape: tuple[int, ...], block: bytes = bytes(2**20)) -> Path:
    """Return a packed array of these numbers, again and again."""
    about = {"descr": "<f8", "fortran_order": False, "shape": shape}
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(file, about)
        for _ in range(8 * int(np.prod(shape)) // len(block)):
            file.write(block)
    return path


def parquet(path: Path, size: int) -> Path:
    arrow = pytest.importorskip("pyarrow")
    files = pytest.importorskip("pyarrow.parquet")
    files.write_table(arrow.table({"x": np.zeros(size), "y": np.zeros(size)}), path)
    return path


def test_an_array_that_nobody_asked_for_takes_little_memory(tmp_path: Path, cases: Cases) -> None:
    file = npz(tmp_path / "a.npz", (cases(200, 1500) * 2**17,))
    with little_memory(), pytest.raises(InputError):
        wflow.tokens.load(file)


def test_rows_of_a_packed_array_take_memory_for_themselves(tmp_path: Path, cases: Cases) -> None:
    block = np.random.default_rng(0).standard_normal((4, 8))
    file = npz(tmp_path / "a.npz", (cases(120, 1500) * 2**14, 8), block.tobytes() * 2**12)
    with little_memory():
        found = wflow.tokens.load(file, n=5)
    unit = block / np.linalg.norm(block, axis=1, keepdims=True)
    assert all(np.isclose(unit, token).all(axis=1).any() for token in found)


@pytest.mark.parametrize("name", ["a.npz", "a.parquet"])
def test_what_memory_has_no_room_for_is_refused(name, tmp_path, monkeypatch) -> None:
    file, rows = tmp_path / name, 20 * 2**16
    _ = npz(file, (rows, 2)) if name == "a.npz" else parquet(file, rows)
    monkeypatch.setattr(memory, "free_memory", lambda: 2e6)
    with pytest.raises(InputError):
        wflow.tokens.load(file)
