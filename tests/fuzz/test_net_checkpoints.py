"""Damaged checkpoints and files of weights: refused with one message, or loaded bit by bit."""

import contextlib
import copy
import hashlib
import json
import random
import sys
import warnings
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainings import Points, crash, network, run  # noqa: E402

from wflow import InputError, nets  # noqa: E402
from wflow.nets import train  # noqa: E402
from wflow.nets.data import preparing, token_files  # noqa: E402
from wflow.nets.training import checkpoint as checkpoints  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def bits(value):
    """What a file holds, with types and bits, to be compared; written apart from the package."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), raw
    if isinstance(value, dict):
        return {(type(key), key): bits(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [bits(entry) for entry in value]
    return type(value), repr(value)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A checkpoint in the middle of a training, and a file of weights."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.raises(RuntimeError, match="power cut"):
        run(folder, batches=Points(fault=crash, at=9))
    train.save_model(folder / "weights.pt", network(3), {"width": 16})
    return {name: (folder / name).read_bytes() for name in (train.CHECKPOINT, "weights.pt")}


def loaded(path):
    """Bits of what is loaded; None where the file is refused with one message in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "no digests" is not what a damaged file may pass with
        try:
            return bits(checkpoints.read(path))
        except InputError as error:
            assert str(path) in str(error) and len(str(error).splitlines()) == 1
            return None


@pytest.mark.parametrize("name", [train.CHECKPOINT, "weights.pt"])
def test_a_flipped_bit_is_refused_or_changes_nothing(name, files, tmp_path, cases):
    whole, path, rng = files[name], tmp_path / name, random.Random(13)
    path.write_bytes(whole)
    before = loaded(path)
    assert before is not None
    refused = 0
    count = cases(60, 400)
    for case in range(count):
        place = rng.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        found = loaded(path)
        assert found in (None, before), f"case {case}: bit {place} passed"
        refused += found is None
    assert refused > count / 3  # the others are padding and fields that nobody reads


def test_every_flipped_bit_of_a_record_is_refused(files, tmp_path, cases):
    """Not in the padding between them: in tensors, and in the words and numbers beside them."""
    whole, path, rng = files[train.CHECKPOINT], tmp_path / train.CHECKPOINT, random.Random(7)
    path.write_bytes(whole)
    before = loaded(path)
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    tensors = {name: raw for name, raw in records.items() if "/data/" in name}
    pickled = {name: raw for name, raw in records.items() if name.endswith("data.pkl")}
    for number in range(cases(60, 400)):
        name, raw = rng.choice(list((tensors if number % 2 else pickled).items()))
        place = rng.randrange(8 * len(raw))
        flipped = bytearray(whole)
        flipped[whole.index(raw) + place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        # Memo numbers of the pickle that nobody asks for may change; values may not.
        found = loaded(path)
        assert found is None or (found == before and not number % 2), (name, place)


def test_a_resumed_training_takes_a_flipped_file_bit_by_bit_or_not_at_all(files, tmp_path, cases):
    whole, rng = files[train.CHECKPOINT], random.Random(5)
    curve = run()[1]["loss"].values.tobytes()
    refused, count = 0, cases(12, 60)
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
    assert refused


@pytest.mark.parametrize("name", [train.CHECKPOINT, "weights.pt"])
def test_a_truncated_file_is_refused(name, files, tmp_path, cases):
    whole, path, rng = files[name], tmp_path / name, random.Random(1)
    for _ in range(cases(20, 100)):
        path.write_bytes(whole[: rng.randrange(len(whole))])
        assert loaded(path) is None


VALUES = [
    None, True, False, 0, 1, 2, 8, 12, -1, 2**40, 10**9, 10**30, 0.5, 1e308, "", "GPT", "block",
    "12", [], [8], {}, {"network": "GPT"}, {"network": "ViT", "arguments": {}}, [[1, 2], 3],
]  # fmt: skip


def places(tree, above=()):
    """Paths of all entries of a configuration."""
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


def test_an_edited_configuration_gives_a_network_of_these_weights_or_one_message(tmp_path, cases):
    torch.manual_seed(0)
    gpt = nets.GPT(vocabulary=9, context=8, width=12, depth=2, heads=3)
    gpt.body = nets.ContinuousTransformer(gpt.body, steps=3)
    path, rng = tmp_path / "gpt.pt", random.Random(11)
    train.save_model(path, gpt)
    whole = torch.load(path, weights_only=True)
    whole.pop("digests")
    restored = 0
    for case in range(cases(80, 600)):
        config = json.loads(whole["network"])
        for _ in range(rng.choice((1, 1, 2))):
            *above, last = rng.choice([*places(config), ("network",)])
            inside = config
            for key in above:
                inside = inside[key]
            act = rng.randrange(4)
            if act == 0:
                inside.pop(last, None)
            elif act == 1:
                inside[rng.choice(("extra", "self", "blocks", "body"))] = rng.choice(VALUES)
            else:
                inside[last] = copy.deepcopy(rng.choice(VALUES))
        torch.save(checkpoints.sealed(whole | {"network": json.dumps(config)}), path)
        try:
            found = train.restore(path)
        except InputError as error:
            assert str(path) in str(error) and len(str(error).splitlines()) == 1
        else:
            restored += 1
            assert bits(dict(found.state_dict())) == bits(whole["model"]), f"case {case}: {config}"
    assert restored  # steps, dropout and the like may be others


# Fields of JSON files
# --------------------

STRANGE = [
    None, True, -1, 0, 2**62, 10**30, 0.5, float("inf"), "", "x", "..", "/", "\0", "\ud800",
    "a" * 5000, [], [None], [[1], 2], {}, {"x": 1},
]  # fmt: skip


def everywhere(tree, above=()):
    """Paths of all entries of a JSON document, of its lists too."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from everywhere(value, (*above, key))


def written(path, document):
    path.write_text(json.dumps(document))


def resealed(path, document):
    written(path, document | {"sha256": token_files.digest_of(document)})


def of_gpt2(folder):
    """Configuration of a published GPT-2, beside its weights."""
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
    return folder / "config.json", config, written, lambda: nets.GPT.from_pretrained(folder)


def of_tokens(folder):
    """Index of token files; what a command prints and a training reads is asked of it."""
    part = {"tokens": 4, "documents": 1, "sha256": hashlib.sha256(bytes(8)).hexdigest()}
    for name in ("train.bin", "val.bin", "encoder.json", "vocab.bpe"):
        (folder / name).write_bytes(bytes(8))
    index = {
        "schema": token_files.SCHEMA, "name": "trial", "vocabulary": 7, "end_of_text": 6,
        "tokenizer": {name: part["sha256"] for name in token_files.PAIRS},
        "documents": 2, "empty": 0, "repaired": 0, "files": {"train": part, "validation": part},
    }  # fmt: skip

    def read():
        text = nets.data.TokenFiles(folder)
        text.verify()
        assert text.source and text.train[:2].tolist() == [0, 0]
        assert all(f"{text.description[key]:,}" for key in ("documents", "empty", "repaired"))
        with contextlib.suppress(InputError):  # these are no byte pairs
            text.tokenizer()

    return folder / "tokens.json", index, resealed, read


def of_saved(folder):
    """The files of a data set that the library `datasets` saved."""
    (folder / "part.arrow").write_bytes(b"")
    document = {"_data_files": [{"filename": "part.arrow"}]}
    return folder / "state.json", document, written, lambda: preparing.find(folder)


@pytest.mark.parametrize("make", [of_gpt2, of_tokens, of_saved])
def test_a_field_of_a_json_file_that_is_something_else_is_read_or_refused(make, tmp_path, cases):
    path, whole, write, read = make(tmp_path)
    write(path, whole)
    read()
    changes = [(place, value) for place in everywhere(whole) for value in [*STRANGE, "removed"]]
    random.Random(3).shuffle(changes)
    refused = 0
    for (*above, last), value in changes[: cases(60, len(changes))]:
        document = copy.deepcopy(whole)
        inside = document
        for key in above:
            inside = inside[key]
        if value == "removed":
            del inside[last]
        else:
            inside[last] = value
        write(path, document)
        try:
            read()
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            refused += 1
    assert refused
