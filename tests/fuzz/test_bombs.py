"""Small files that claim to hold much: refused, or read in part, with little memory."""

import io
import operator
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from run_layouts import finished, spoiled
from test_damage import huge

import wflow
from wflow import InputError
from wflow._core import memory
from wflow.runs.read import MARK, read_checkpoint

Cases = Callable[[int, int], int]
BLOCK = 2**20  # bytes of a piece of what is packed
MOST = 110  # MB that may be taken: what is always admitted, and the buffers of the libraries
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what reads files: modules take memory, too."""
    for name in ("report", "nets.GPT", "nets.data.mnist"):
        with suppress(ImportError, AttributeError, InputError):
            operator.attrgetter(name)(wflow)


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


def deflated(head: bytes, size: int, block: bytes = bytes(BLOCK)) -> tuple[bytes, int]:
    """A stream of deflate of a head and at least `size` megabytes of a block, and its length."""

    def piece(data: bytes) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)

    count = size * 2**20 // len(block)
    return piece(head) + piece(block) * count + b"\x03\0", len(head) + len(block) * count


def gzipped(head: bytes, size: int) -> bytes:
    packed, length = deflated(head, size)
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + packed + struct.pack("<II", 0, length % 2**32)


def zipped(**members: tuple[bytes, int] | tuple[bytes, int, int]) -> bytes:
    """A zip archive of packed files: bytes, length (which may be wrong) and checksum of each."""
    body, entries = b"", b""
    for name, (packed, length, *crc) in members.items():
        fields = struct.pack("<HHHHH", 20, 0, 8, 0, 33)
        sizes = struct.pack("<IIIHH", crc[0] if crc else 0, len(packed), length, len(name), 0)
        place = bytes(10) + struct.pack("<I", len(body))
        entries += b"PK\x01\x02" + b"\x14\0" + fields + sizes + place + name.encode()
        body += b"PK\x03\x04" + fields + sizes + name.encode() + packed
    count = len(members)
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(entries), len(body), 0)
    return body + entries + b"PK\x05\x06" + end


def npy(shape: tuple[int, ...]) -> bytes:
    head = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


def report_of_histories(folder: Path, size: int) -> None:
    """Columns of a history that claim 10,000,000 numbers each, and have none."""
    (folder / "net-0").mkdir()
    with h5py.File(folder / "net-0" / "metrics.h5", "w") as file:
        for name in ("step", *(f"loss{k}" for k in range(1 + size // 80))):
            file.create_dataset(name, (10**7,), "f8", chunks=(10**6,), fillvalue=1.0)
    wflow.report(folder)


def idx(folder: Path, size: int) -> None:
    nets = pytest.importorskip("wflow.nets.data")
    head = b"\0\0\x08\1" + struct.pack(">I", size * 2**20)
    (folder / "a.gz").write_bytes(gzipped(head, size))
    nets.read_idx(folder / "a.gz")


def gpt2(folder: Path, weights: bytes) -> None:
    nets = pytest.importorskip("wflow.nets")
    text = '{"model_type": "gpt2", "n_head": 1, "n_embd": 8000}'
    (folder / "config.json").write_text(text)
    (folder / "pytorch_model.bin").write_bytes(weights)
    nets.GPT.from_pretrained(folder)


def packed_weights(folder: Path, size: int) -> None:
    torch = pytest.importorskip("torch")
    file, count = io.BytesIO(), 70_001
    torch.save({"wte.weight": torch.zeros(count)}, file)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    packed = {}
    for name, data in members.items():
        if name.endswith("data.pkl"):
            data = data.replace(struct.pack("<I", count), struct.pack("<I", size * 2**18))
        whole = (deflated(data, 0), zlib.crc32(data))
        packed[name] = (*whole[0], whole[1])
        if name.endswith("data/0"):
            packed[name] = deflated(b"", size)
    gpt2(folder, zipped(**packed))


def header_of_spaces(folder: Path, size: int) -> None:
    head = b"\x93NUMPY\2\0" + struct.pack("<I", size * 2**20)
    (folder / "a.npz").write_bytes(zipped(**{"x.npy": deflated(head, size, b" " * BLOCK)}))
    wflow.tokens.load(folder / "a.npz")


def other_arrays(folder: Path, size: int) -> None:
    """An array that nobody asked for."""
    packed = deflated(npy((size * 2**17,)), size)
    (folder / "a.npz").write_bytes(zipped(**{"x.npy": packed}))
    wflow.tokens.load(folder / "a.npz")


def checkpoint(folder: Path, size: int) -> None:
    packed = deflated(npy((size * 2**17,)), size)
    (folder / "a.checkpoint").write_bytes(zipped(**{f"{MARK}.npy": packed}))
    read_checkpoint(folder / "a.checkpoint")


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


BOMBS = [
    run_of_huge_sizes, report_of_histories, idx, packed_weights, header_of_spaces, other_arrays,
    checkpoint,
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__qualname__.partition(".")[0])
def test_a_small_file_takes_little_memory(bomb, tmp_path: Path, cases: Cases) -> None:
    with little_memory(), pytest.raises(InputError):
        bomb(tmp_path, cases(200, 1500))
    size = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file())
    assert size < 8e6


def test_rows_of_a_packed_array_take_memory_for_themselves(tmp_path: Path, cases: Cases) -> None:
    size = cases(120, 1500)
    block = np.random.default_rng(0).standard_normal((4, 8))
    head, piece = npy((size * 2**14, 8)), block.tobytes() * 2**12
    packed, length = deflated(head, size, piece)
    crc = zlib.crc32(head)
    for _ in range(size * 2**20 // len(piece)):
        crc = zlib.crc32(piece, crc)
    (tmp_path / "a.npz").write_bytes(zipped(**{"x.npy": (packed, length, crc)}))
    with little_memory():
        found = wflow.tokens.load(tmp_path / "a.npz", n=5)
    unit = block / np.linalg.norm(block, axis=1, keepdims=True)
    assert all(np.isclose(unit, token).all(axis=1).any() for token in found)


@pytest.mark.parametrize("bomb", [other_arrays, constant_column])
def test_what_memory_has_no_room_for_is_refused(bomb, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 2e6)
    with pytest.raises(InputError):
        bomb(tmp_path, 20)
