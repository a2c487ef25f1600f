"""Small files that hold much: refused, or read in part, with little memory."""

import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from run_layouts import finished, spoiled
from test_damage import huge

import wflow
from wflow import InputError
from wflow._core import memory

Cases = Callable[[int, int], int]
BLOCK = bytes(2**20)
MOST = 110  # MB that may be taken: what is always admitted, and the buffers of the libraries
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what reads files: modules take memory, too."""
    _ = wflow.report


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


def npz(path: Path, shape: tuple[int, ...], block: bytes = BLOCK) -> None:
    """A packed array of these numbers, again and again."""
    about = {"descr": "<f8", "fortran_order": False, "shape": shape}
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(file, about)
        for _ in range(8 * int(np.prod(shape)) // len(block)):
            file.write(block)


def report_of_histories(folder: Path, size: int) -> None:
    """Columns of a history that claim 10,000,000 numbers each, and have none."""
    (folder / "net-0").mkdir()
    with h5py.File(folder / "net-0" / "metrics.h5", "w") as file:
        for name in ("step", *(f"loss{k}" for k in range(1 + size // 80))):
            file.create_dataset(name, (10**7,), "f8", chunks=(10**6,), fillvalue=1.0)
    wflow.report(folder)


def other_arrays(folder: Path, size: int) -> None:
    """An array that nobody asked for."""
    npz(folder / "a.npz", (size * 2**17,))
    wflow.tokens.load(folder / "a.npz")


def constant_column(folder: Path, size: int) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    half = arrow.table({"x": np.zeros(size * 2**16), "y": np.zeros(size * 2**16)})
    parquet.write_table(half, folder / "a.parquet")
    wflow.tokens.load(folder / "a.parquet")


def run_of_huge_sizes(folder: Path, size: int) -> None:
    """Energies of gigabytes that are not stored."""
    spoiled(finished(folder / "a.h5"), folder, huge)
    wflow.open(folder / "spoiled.h5")


@pytest.mark.parametrize("bomb", [run_of_huge_sizes, report_of_histories, other_arrays])
def test_a_small_file_takes_little_memory(bomb, tmp_path: Path, cases: Cases) -> None:
    with little_memory(), pytest.raises(InputError):
        bomb(tmp_path, cases(200, 1500))


def test_rows_of_a_packed_array_take_memory_for_themselves(tmp_path: Path, cases: Cases) -> None:
    block = np.random.default_rng(0).standard_normal((4, 8))
    npz(tmp_path / "a.npz", (cases(120, 1500) * 2**14, 8), block.tobytes() * 2**12)
    with little_memory():
        found = wflow.tokens.load(tmp_path / "a.npz", n=5)
    unit = block / np.linalg.norm(block, axis=1, keepdims=True)
    assert all(np.isclose(unit, token).all(axis=1).any() for token in found)


@pytest.mark.parametrize("bomb", [other_arrays, constant_column])
def test_what_memory_has_no_room_for_is_refused(bomb, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 2e6)
    with pytest.raises(InputError):
        bomb(tmp_path, 20)
