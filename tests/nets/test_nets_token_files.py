"""Token files stand for tensors of tokens: the same batches, in constant memory, to the bit."""

import hashlib
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wflow import InputError, nets  # noqa: E402
from wflow.nets import train  # noqa: E402

VOCABULARY = 300


def written(path, tokens=5000, vocabulary=VOCABULARY, seed=0):
    """Return a file of random tokens, and the tensor of them."""
    found = np.random.default_rng(seed).integers(0, vocabulary, tokens).astype("<u2")
    path.write_bytes(found.tobytes())
    digest = hashlib.sha256(found.tobytes()).hexdigest()
    file = nets.data.TokenFile(path, tokens=tokens, vocabulary=vocabulary, sha256=digest)
    return file, torch.from_numpy(found.astype(np.int64))


@pytest.fixture
def pair(tmp_path):
    return written(tmp_path / "text.bin")


def crops(tokens):
    batches = nets.data.CropBatches(tokens, context=16, batch=8, seed=3, vocabulary=VOCABULARY)
    return [batches(step) for step in (0, 7, 1, 10**9)]


def windows(tokens):
    return list(nets.data.windows(tokens, context=64, batch=3, vocabulary=VOCABULARY))


@pytest.mark.parametrize("read", [crops, windows])
def test_batches_of_a_file_are_those_of_its_tensor(pair, read):
    for one, other in zip(*map(read, pair), strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype == torch.int64 and torch.equal(a, b)


def test_slices_are_those_of_the_tensor(pair):
    file, tensor = pair
    for part in (slice(None), slice(3, 9), slice(-5, None), slice(9, 3), slice(4990, 9000)):
        assert torch.equal(file[part], tensor[part])
    with pytest.raises(InputError, match="expected a slice"):
        file[3]
    assert torch.equal(pickle.loads(pickle.dumps(file))[10:20], tensor[10:20])


def test_the_beginning_of_a_file_is_a_file_that_reads_no_more(pair, monkeypatch):
    file, tensor = pair
    monkeypatch.setattr(nets.data.TokenFile, "_read", None)  # nothing is read for it
    part = pickle.loads(pickle.dumps(file.first(1000)))
    monkeypatch.undo()
    assert len(part) == 1000 and torch.equal(part[:], tensor[:1000])
    assert part.sha256 == file.sha256 and len(file) == 5000
    options = {"context": 16, "batch": 8, "seed": 3}
    one, other = (nets.data.CropBatches(t, **options) for t in (part, tensor[:1000]))
    assert torch.equal(one(3)[0], other(3)[0])
    part.verify()  # of the whole file
    with pytest.raises(InputError, match="tokens is 5001"):
        file.first(5001)


def test_long_stretches_are_read_in_pieces(pair, monkeypatch):
    """A system gives at most 2 GiB at a time."""
    file, tensor = pair
    monkeypatch.setattr("wflow.nets.data.token_files._MOST", 64)
    assert torch.equal(file[7:4999], tensor[7:4999])


def test_a_file_of_another_vocabulary_or_of_few_tokens_is_refused(pair):
    file, _ = pair
    for vocabulary in (VOCABULARY - 1, VOCABULARY + 1):
        with pytest.raises(InputError, match="300"):
            nets.data.CropBatches(file, context=4, batch=2, vocabulary=vocabulary)
        with pytest.raises(InputError, match="vocabulary of 300"):
            nets.data.windows(file, context=4, vocabulary=vocabulary)
    nets.data.CropBatches(file, context=4, batch=2, vocabulary=VOCABULARY)
    with pytest.raises(InputError, match="context"):
        nets.data.CropBatches(file.first(8), context=8, batch=1)


def test_truncated_damaged_and_missing_files_are_refused(tmp_path, pair):
    file, _ = pair
    path = tmp_path / "text.bin"
    data = path.read_bytes()
    file.verify()
    batches = nets.data.CropBatches(file, context=16, batch=8, vocabulary=VOCABULARY)
    path.write_bytes(data[:100] + b"\xff\xff" + data[102:])
    with pytest.raises(InputError, match="SHA-256"):
        file.verify()
    with pytest.raises(InputError, match=r"holds token 65535 .* damaged"):
        file[40:60]
    with open(path, "r+b") as raw:
        raw.truncate(1000)
    with pytest.raises(InputError, match="cut off"):
        batches(0)
    again = {"tokens": 5000, "vocabulary": VOCABULARY, "sha256": file.sha256}
    with pytest.raises(InputError, match=r"has 1,000 bytes: expected 10,000"):
        nets.data.TokenFile(path, **again)
    with pytest.raises(InputError, match="does not exist"):
        nets.data.TokenFile(tmp_path / "none.bin", **again)


class Losses(torch.nn.Module):
    """A table of logits for each token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, tokens):
        return self.table(tokens)


def trained(tokens, out=None, steps=6, resume=False):
    model = Losses()
    batches = nets.data.CropBatches(tokens, context=8, batch=4, seed=1, vocabulary=VOCABULARY)
    config = train.TrainConfig(steps=steps, batch=4, checkpoint_every=2, device="cpu")
    history = train.train(
        model, train.objective(train.cross_entropy), batches, config, out=out, resume=resume
    )
    return model.table.weight.detach(), history["loss"].values


def test_a_training_from_a_file_has_the_bits_of_one_from_memory_also_resumed(
    tmp_path, pair, monkeypatch
):
    file, tensor = pair
    weights, losses = trained(tensor)
    real = nets.data.CropBatches.__call__

    def until_4(self, step):
        if step == 4:
            raise RuntimeError("power cut")
        return real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(nets.data.CropBatches, "__call__", until_4)
        with pytest.raises(RuntimeError):
            trained(file, out=tmp_path / "run")
    moved = tmp_path / "moved.bin"
    (tmp_path / "text.bin").rename(moved)  # the same text in another place
    again = nets.data.TokenFile(moved, tokens=5000, vocabulary=VOCABULARY, sha256=file.sha256)
    found = trained(again, out=tmp_path / "run", resume=True)
    assert torch.equal(found[0], weights) and np.array_equal(found[1], losses)


def test_a_training_is_not_resumed_with_another_text(tmp_path, pair):
    file, _ = pair
    trained(file, out=tmp_path / "run")
    other, _ = written(tmp_path / "other.bin", seed=1)
    with pytest.raises(InputError, match="tokens"):
        trained(other, out=tmp_path / "run", resume=True)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is not known here")
def test_memory_does_not_grow_with_what_was_read(tmp_path):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    file, _ = written(tmp_path / "large.bin", tokens=1 << 23)
    batches = nets.data.CropBatches(file, context=4096, batch=64, vocabulary=VOCABULARY)
    for step in range(3):
        batches(step)
    before = resident()
    for step in range(3, 60):  # all of the file, of 16 MiB, and more
        batches(step)
    assert resident() - before < 8 << 20
