"""Damaged checkpoints, files of weights and configurations: refused with one message, or read."""

import json
import random
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainings import Points, crash, network, run  # noqa: E402

from wflow import InputError, nets  # noqa: E402
from wflow.nets import train  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A checkpoint in the middle of a training, and a file of weights."""
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


def test_a_flipped_bit_in_a_file_of_an_earlier_version_is_refused_or_changes_nothing(
    files, tmp_path, cases
):
    path, rng = tmp_path / train.CHECKPOINT, random.Random(5)
    path.write_bytes(files[train.CHECKPOINT])
    content = torch.load(path, weights_only=True)
    torch.save(content | {"format": "wflow-training/3"}, path)
    whole, refused, count = path.read_bytes(), 0, cases(12, 60)
    curve = run()[1]["loss"].values.tobytes()
    for case in range(count):
        folder = tmp_path / str(case)
        folder.mkdir()
        place = rng.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        (folder / train.CHECKPOINT).write_bytes(flipped)
        try:
            found = run(folder, model=network(9), resume=True)[1]["loss"].values.tobytes()
        except InputError:
            refused += 1
        else:
            assert found == curve, f"bit {place} changed the curve"
    assert refused > count / 2  # the others are padding and fields that nobody reads


# Fields of JSON files
# --------------------

STRANGE = [
    None, True, -1, 0, 2**62, 10**30, 0.5, float("inf"), "", "x", "..", "/", "\0", "\ud800",
    "a" * 5000, [], [None], [[1], 2], {}, {"x": 1},
]  # fmt: skip


def of_gpt2(folder):
    """A published GPT-2: where its configuration is, and what it holds."""
    sizes = {"wte": (7, 2), "wpe": (5, 2), "ln_f": (2,)} | {
        f"h.0.{part}": shape
        for part, shape in {
            "ln_1": (2,), "ln_2": (2,), "attn.c_attn": (2, 6), "attn.c_proj": (2, 2),
            "mlp.c_fc": (2, 8), "mlp.c_proj": (8, 2),
        }.items()
    }  # fmt: skip
    state = {f"{name}.weight": torch.zeros(shape) for name, shape in sizes.items()}
    state |= {f"{k}.bias": torch.zeros(v[-1]) for k, v in sizes.items() if k not in ("wte", "wpe")}
    torch.save(state, folder / "pytorch_model.bin")
    config = {
        "model_type": "gpt2", "n_head": 1, "n_embd": 2, "n_layer": 1, "n_positions": 5,
        "vocab_size": 7, "n_inner": None, "activation_function": "gelu", "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True, "tie_word_embeddings": True,
    }  # fmt: skip
    return folder / "config.json", config


def test_a_field_of_a_gpt_2_that_is_something_else_is_read_or_refused(tmp_path, cases):
    path, whole = of_gpt2(tmp_path)
    path.write_text(json.dumps(whole))
    nets.GPT.from_pretrained(tmp_path)
    changes = [(name, value) for name in whole for value in [*STRANGE, "removed"]]
    random.Random(3).shuffle(changes)
    refused = 0
    for name, value in changes[: cases(60, len(changes))]:
        document = {**whole, name: value}
        if value == "removed":
            del document[name]
        path.write_text(json.dumps(document))
        try:
            nets.GPT.from_pretrained(tmp_path)
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            refused += 1
    assert refused
