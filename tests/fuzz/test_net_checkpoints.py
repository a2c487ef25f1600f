"""Damaged checkpoints and files of weights: refused with one message that names the file."""

import random
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainings import Points, crash, network, run  # noqa: E402

from wflow import InputError  # noqa: E402
from wflow.nets import train  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a checkpoint in the middle of a training, and a file of weights."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.raises(RuntimeError, match="power cut"):
        run(folder, batches=Points(fault=crash, at=9))
    train.save_model(folder / "weights.pt", network(3), {"width": 16})
    return {name: (folder / name).read_bytes() for name in (train.CHECKPOINT, "weights.pt")}


@pytest.mark.parametrize("name", [train.CHECKPOINT, "weights.pt"])
def test_a_file_with_a_flipped_bit_or_a_missing_end_is_refused(name, files, tmp_path, cases):
    whole, path, rng = files[name], tmp_path / name, random.Random(13)
    for number in range(cases(80, 600)):
        place = rng.randrange(8 * len(whole))
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged if number % 4 else whole[: place // 8])
        with pytest.raises(InputError) as error:
            train.load_model(path, network())
        assert str(path) in str(error.value) and len(str(error.value).splitlines()) == 1
    path.write_bytes(whole)
    train.load_model(path, network())
