"""Data for the networks: what is read is what was published, and nothing else is let in."""

import dataclasses
import functools
import gzip
import hashlib
import json
import struct
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wflow.errors import InputError  # noqa: E402
from wflow.nets import _download, data  # noqa: E402
from wflow.nets._download import DataFile  # noqa: E402
from wflow.nets._idx import TYPES, parse_idx  # noqa: E402

RNG = np.random.default_rng(3)
CODES = {np.dtype(name).newbyteorder("="): code for code, name in TYPES.items()}


def refused(match: str):
    return pytest.raises(InputError, match=match)


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, CODES[array.dtype], array.ndim])
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return header + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch, tmp_path):
    """No data folder, no earlier download, and no address outside this machine."""
    monkeypatch.delenv("WFLOW_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(_download, "shared_folder", lambda: None)
    monkeypatch.setattr(_download, "cache_folder", lambda: tmp_path / "cache")


# The IDX format


@pytest.mark.parametrize("compress", [gzip.compress, bytes], ids=["gzip", "plain"])
@pytest.mark.parametrize("dtype", list(CODES), ids=str)
def test_idx_gives_back_every_element_type_and_shape(tmp_path, dtype, compress):
    for shape in ((7,), (3, 4), (2, 3, 5), (0, 3)):
        array = (RNG.standard_normal(shape) * 50).astype(dtype)
        path = tmp_path / "array"
        path.write_bytes(compress(idx(array)))
        read = data.read_idx(path, dims=len(shape))
        assert read.dtype == dtype and read.dtype.isnative and read.flags.writeable
        assert read.shape == shape and np.array_equal(read, array)


def test_idx_reads_numbers_with_the_highest_byte_first():
    content = bytes([0, 0, 0x0B, 1, 0, 0, 0, 2, 0x01, 0x02, 0xFF, 0xFE])
    assert parse_idx(content, "two").tolist() == [0x0102, -2]


IMAGES = idx(RNG.integers(0, 256, (4, 5, 6)).astype(np.uint8))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "begins with the bytes of an empty file"),
        (b"\x89PNG\r\n\x1a\n", "begins with the bytes 89 50 4e 47"),
        (IMAGES[:2] + b"\x0a" + IMAGES[3:], "element type 0x0a"),
        (IMAGES[:3] + b"\0" + IMAGES[4:], "has 0 dimensions; expected 3"),
        (idx(np.zeros(4, np.uint8)), "has 1 dimensions; expected 3"),
        (IMAGES[:11], "ends within its header"),
        (IMAGES[:-1], "120 bytes, and only 119 follow"),
        (IMAGES + b"\0", "120 bytes, and more follow"),
        (IMAGES[:4] + b"\xff" * 12 + IMAGES[16:], "only 120 follow"),
        (bytes([0, 0, 8, 3]) + struct.pack(">3I", 0, 2**32 - 1, 2**32 - 1), "no array can"),
        (gzip.compress(IMAGES)[:-12], "gzip stream is broken"),
        (gzip.compress(IMAGES)[:-6] + b"\0" * 6, "gzip stream is broken"),
        (gzip.compress(IMAGES)[:20] + b"\xff" * 20, "gzip stream is broken"),
        (gzip.compress(IMAGES) + b"garbage", "gzip stream is broken"),
        (gzip.compress(IMAGES[:-1]), "only 119 follow"),
        (gzip.compress(IMAGES + b"\0"), "more follow"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # gzip writes the time: no fit name
)
def test_damaged_idx_is_refused_by_name(tmp_path, content, match):
    path = tmp_path / "images.idx"
    path.write_bytes(content)
    with refused(match) as caught:
        data.read_idx(path, dims=3)
    assert str(path) in str(caught.value)


def test_idx_says_that_a_file_is_missing(tmp_path):
    with refused("none.idx: cannot be read"):
        data.read_idx(tmp_path / "none.idx")


# MNIST, from small files in the published format


def digits_like(n: int) -> tuple[bytes, bytes]:
    images = RNG.integers(0, 256, (n, 28, 28)).astype(np.uint8)
    return gzip.compress(idx(images)), gzip.compress(idx((np.arange(n) % 10).astype(np.uint8)))


def expect(monkeypatch, name: str, contents: dict[str, bytes]) -> None:
    """Make the loader expect these contents under the published names."""
    files = getattr(data, name)
    monkeypatch.setattr(
        data,
        name,
        tuple(dataclasses.replace(file, sha256=sha(contents[file.name])) for file in files),
    )


@pytest.fixture
def published(monkeypatch) -> dict[str, bytes]:
    """Contents of all six files by name: 60, 20 and 30 digits."""
    contents = {}
    for names, n in (("_TRAIN", 60), ("_TRAIN_10K", 20), ("_TEST", 30)):
        files = dict(zip([f.name for f in getattr(data, names)], digits_like(n), strict=True))
        expect(monkeypatch, names, files)
        contents |= files
    return contents


def fill(folder: Path, contents: dict[str, bytes], *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if name.startswith(names):
            (folder / name).write_bytes(content)
    return folder


def test_mnist_takes_the_full_set_before_the_subset(tmp_path, published):
    folder = fill(tmp_path / "mnist", published, "train-", "train10k-", "t10k-")
    images = data.mnist(folder=tmp_path)
    assert images.train_images.shape == (60, 28, 28) and images.test_images.shape == (30, 28, 28)
    assert images.train_images.dtype == images.test_labels.dtype == torch.uint8
    expected = data.read_idx(folder / "train-images-idx3-ubyte.gz")
    assert np.array_equal(images.train_images.numpy(), expected)
    assert images.train_labels.tolist() == [k % 10 for k in range(60)]
    assert (images.mean, images.std, images.classes) == (0.1307, 0.3081, 10)
    assert "MNIST: 60 training digits" in images.source
    assert "train-images-idx3-ubyte.gz" in images.source


def test_mnist_takes_the_subset_where_the_full_set_is_absent_and_says_so(tmp_path, published):
    fill(tmp_path, published, "train10k-", "t10k-")
    images = data.mnist(folder=tmp_path)
    assert len(images.train_images) == 20 and len(images.test_labels) == 30
    assert "20 of the 60,000 training digits" in images.source
    assert "train10k-images" in images.source
    with refused("does not hold MNIST; expected mnist/train-images"):
        data.mnist(folder=tmp_path, full=True)


def test_mnist_looks_in_the_folder_then_the_variable_then_shared_then_the_cache(
    tmp_path, published, monkeypatch
):
    cache = fill(tmp_path / "cache" / "mnist", published, "train10k-", "t10k-").parent
    shared = fill(tmp_path / "shared" / "mnist", published, "train10k-", "t10k-").parent
    named = fill(tmp_path / "named", published, "train10k-", "t10k-")
    given = fill(tmp_path / "given", published, "train10k-", "t10k-")
    seen: list[Path] = []
    read = _download.checked
    monkeypatch.setattr(
        _download, "checked", lambda path, digest: (seen.append(path), read(path, digest))[1]
    )

    def used(**keywords) -> Path:
        seen.clear()
        data.mnist(**keywords)
        return next(p for p in (cache, shared, named, given) if seen[0].is_relative_to(p))

    assert used() == cache
    monkeypatch.setattr(_download, "shared_folder", lambda: shared)
    assert used() == shared
    monkeypatch.setenv("WFLOW_DATA", str(named))
    assert used() == named
    assert used(folder=given) == given
    fill(cache / "mnist", published, "train-")  # now all digits are at hand, in the last place
    assert used() == cache
    assert used(folder=str(given)) == given


def test_a_corrupt_file_is_refused_with_both_checksums_and_left_alone(tmp_path, published):
    folder = fill(tmp_path, published, "train10k-", "t10k-")
    path = folder / "t10k-labels-idx1-ubyte.gz"
    wrong = published[path.name][:-1] + b"?"
    path.write_bytes(wrong)
    with refused(f"{path.name}: its SHA-256 is {sha(wrong)}, expected {sha(published[path.name])}"):
        data.mnist(folder=folder)
    assert path.read_bytes() == wrong


def test_a_corrupt_file_is_not_passed_over_for_a_good_one(tmp_path, published, monkeypatch):
    fill(tmp_path / "cache", published, "train", "t10k-")
    named = fill(tmp_path / "named", published, "train-", "t10k-")
    (named / "train-labels-idx1-ubyte.gz").write_bytes(b"other")
    monkeypatch.setenv("WFLOW_DATA", str(named))
    with refused("its SHA-256 is"):
        data.mnist()


def test_a_folder_that_is_missing_is_named(tmp_path, monkeypatch):
    with refused("nowhere: no such folder"):
        data.mnist(folder=tmp_path / "nowhere")
    monkeypatch.setenv("WFLOW_DATA", str(tmp_path / "gone"))
    with refused("environment variable WFLOW_DATA is .*gone"):
        data.mnist()


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (np.zeros((30, 28, 28), np.uint8), np.zeros(29, np.uint8), "holds 30 images, .* 29 labels"),
        (np.zeros((30, 28, 28), np.uint8), np.full(30, 11, np.uint8), "holds the label 11"),
        (np.zeros((30, 28, 28), np.int16), np.zeros(30, np.uint8), "hold int16, uint8"),
        (np.zeros((30, 784), np.uint8), np.zeros(30, np.uint8), "has 2 dimensions; expected 3"),
    ],
)
def test_mnist_files_that_do_not_fit_together_are_refused(
    tmp_path, published, monkeypatch, images, labels, match
):
    names = [file.name for file in data._TEST]
    other = dict(zip(names, map(gzip.compress, map(idx, (images, labels))), strict=True))
    expect(monkeypatch, "_TEST", other)
    with refused(match):
        data.mnist(folder=fill(tmp_path, published | other, "train-", "t10k-"))


# Downloads, from a server on this machine


@pytest.fixture
def server(tmp_path):
    """A folder and the address under which this machine serves it."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args) -> None:
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{http.server_port}/"
    http.shutdown()
    http.server_close()
    thread.join()


def test_a_download_is_checked_kept_and_not_made_twice(tmp_path, server):
    pytest.importorskip("pooch")
    folder, address = server
    (folder / "file.txt").write_bytes(b"content")
    missing, right = address + "elsewhere.txt", address + "file.txt"
    file = DataFile("set/file.txt", sha(b"content"), (missing, right))
    found = _download.obtain("the set", [[file]])
    kept = tmp_path / "cache" / "set" / "file.txt"
    assert found.contents == (b"content",) and found.paths == (kept,)
    (folder / "file.txt").unlink()
    assert _download.obtain("the set", [[file]]).contents == (b"content",)
    kept.write_bytes(b"damaged")  # a cache is a folder like another: refused, not replaced
    with refused("its SHA-256 is"):
        _download.obtain("the set", [[file]])
    with refused("its SHA-256 is"):
        _download.checked(_download.download(file), file.sha256)
    assert kept.read_bytes() == b"damaged"


def test_a_download_with_another_checksum_names_both_and_keeps_nothing(tmp_path, server):
    pytest.importorskip("pooch")
    folder, address = server
    (folder / "file.txt").write_bytes(b"something else")
    file = DataFile("set/file.txt", sha(b"content"), (address + "file.txt",))
    with refused("cannot download file.txt") as caught:
        _download.obtain("the set", [[file]])
    assert sha(b"content") in str(caught.value) and sha(b"something else") in str(caught.value)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_download_that_fails_names_every_address_and_the_way_round(server):
    pytest.importorskip("pooch")
    _, address = server
    file = DataFile("set/file.txt", sha(b""), (address + "a", "http://127.0.0.1:9/b"))
    other = DataFile("set/other", sha(b""), (address + "c",))
    way = "put set/file.txt and set/other into a folder and set WFLOW_DATA"
    with refused(way) as caught:
        _download.obtain("the set", [[file, other]])
    assert address + "a" in str(caught.value) and "http://127.0.0.1:9/b" in str(caught.value)
    with refused("nowhere at hand and cannot be downloaded"):
        _download.obtain("the set", [[DataFile("set/file.txt", sha(b""))]])


def test_mnist_is_downloaded_where_it_is_nowhere_at_hand(published, server, monkeypatch):
    pytest.importorskip("pooch")
    folder, address = server
    fill(folder, published, "train-", "t10k-")
    for name in ("_TRAIN", "_TEST"):
        files = getattr(data, name)
        assert all(a.endswith(f.name) and a[:8] == "https://" for f in files for a in f.addresses)
        moved = (dataclasses.replace(file, addresses=(address + file.name,)) for file in files)
        monkeypatch.setattr(data, name, tuple(moved))
    assert len(data.mnist().train_images) == 60


def hide(monkeypatch, name: str) -> None:
    """Make `import name` fail."""
    monkeypatch.setitem(sys.modules, name, None)


def test_without_pooch_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.undo()  # the real cache_folder, which needs pooch
    monkeypatch.delenv("WFLOW_DATA", raising=False)
    monkeypatch.setattr(_download, "shared_folder", lambda: None)
    hide(monkeypatch, "pooch")
    with refused("needs pooch.*pip install 'wflow\\[nets\\]'.*set WFLOW_DATA"):
        data.mnist()


def test_the_shared_folder_is_the_one_beside_the_checkout(monkeypatch, tmp_path):
    monkeypatch.undo()
    package = tmp_path / "checkout" / "wflow" / "nets"
    package.mkdir(parents=True)
    monkeypatch.setattr(_download, "__file__", str(package / "_download.py"))
    shared = tmp_path / "shared" / "data"
    assert _download.shared_folder() is None
    shared.mkdir(parents=True)
    assert _download.shared_folder() is None  # an installed package has no checkout around it
    (tmp_path / "checkout" / "pyproject.toml").touch()
    assert _download.shared_folder() == shared


# What needs no file


def test_digits_are_split_once_and_for_all():
    pytest.importorskip("sklearn")
    images = data.digits()
    assert images.train_images.shape == (1437, 8, 8) and images.test_images.shape == (360, 8, 8)
    assert images.train_images.dtype == torch.uint8 and images.train_images.max() == 255
    counts = images.test_labels.to(torch.int64).bincount(minlength=10)
    assert (counts.double() - images.train_labels.to(torch.int64).bincount() / 4).abs().max() <= 1
    assert (images.test_labels[1:] < images.test_labels[:-1]).any()  # in no order of labels
    together = torch.cat([images.train_images, images.test_images]).reshape(1797, -1)
    assert torch.equal(data.digits().test_images, images.test_images)
    from sklearn.datasets import load_digits

    original = load_digits()
    back = torch.round(together.double() * (16 / 255)).to(torch.int64)
    labels = torch.cat([images.train_labels, images.test_labels]).to(torch.int64)
    rows = torch.cat([back, labels[:, None]], 1).tolist()
    expected = np.column_stack([original.data, original.target]).astype(int).tolist()
    assert sorted(rows) == sorted(expected) and rows != expected
    batches = data.ImageBatches(
        images.train_images, images.train_labels, batch=1437, mean=images.mean, std=images.std
    )
    pixels, _ = batches(0)
    assert abs(pixels.mean()) < 1e-3 and abs(pixels.std() - 1) < 1e-3


def test_digits_without_scikit_learn_say_how_to_install_it(monkeypatch):
    hide(monkeypatch, "sklearn.datasets")
    with refused("digits need a package.*pip install"):
        data.digits()


def test_the_text_in_the_package_is_whole_sonnets_and_needs_no_file():
    text = data.embedded_text()
    whole = text.decode(torch.cat([text.train, text.test]))
    sonnets = whole.rstrip("\n").split("\n\n")
    assert len(sonnets) == 32 and all(len(sonnet.split("\n")) == 14 for sonnet in sonnets)
    assert whole.startswith("From fairest creatures") and len(whole) == 19_571
    assert len(text.test) == 1_958 and text.train.dtype == torch.int64
    assert set(whole) <= set("\n !$&',-.3:;?") | {chr(c) for c in range(65, 123)}  # the plays' 65
    assert text.vocabulary == len(set(whole)) and int(text.train.max()) < text.vocabulary


# Tokens


def test_characters_are_numbered_in_order_and_come_back():
    tokenizer = data.Characters("hello\n\U0001f600é")
    assert tokenizer.vocabulary == 7
    assert tokenizer.encode("\nehloé\U0001f600").tolist() == list(range(7))
    assert tokenizer.decode(tokenizer.encode("hole")) == "hole"
    assert tokenizer.decode([1, 0]) == "e\n" and tokenizer.decode([]) == ""
    assert tokenizer.encode("").shape == (0,)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: data.Characters(""), "the text is empty"),
        (lambda: data.Characters("abc").encode("abz!"), "'!z'"),
        (lambda: data.Characters("abc").decode([0, 3]), "from 0 to 3; expected 0 to 2"),
        (lambda: data.Characters("abc").decode(torch.tensor([-1])), "from -1 to -1"),
        (lambda: data.Characters("abc").decode(torch.zeros(2, 2, dtype=torch.int64)), "shape"),
        (lambda: data.Characters("abc").decode([0.5]), "whole numbers"),
    ],
)
def test_what_is_not_in_the_vocabulary_is_named(call, match):
    with refused(match):
        call()


PAIRS = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "b"), ("ab", "a")]


def byte_pair_files() -> dict[str, bytes]:
    """Files in GPT-2's format: 256 bytes, five pairs, and the mark of the end."""
    library = pytest.importorskip("tokenizers")
    letters = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *("".join(pair) for pair in PAIRS), "<|endoftext|>"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in PAIRS)]
    return {
        "encoder.json": json.dumps({token: k for k, token in enumerate(tokens)}).encode(),
        "vocab.bpe": "\n".join(lines).encode() + b"\n",
    }


def test_byte_pairs_join_in_the_order_of_the_list():
    files = byte_pair_files()
    numbers = json.loads(files["encoder.json"])
    tokenizer = data.BytePairs(files["encoder.json"], files["vocab.bpe"])
    assert tokenizer.vocabulary == 262
    expected = ["the", "Ġthe", "m", "Ġ", "ab", "ab"]  # "ab a" is behind "a b", so abab is ab ab
    assert tokenizer.encode("the them abab").tolist() == [*(numbers[token] for token in expected)]
    for text in ("", "the thé\n\n  日本 \U0001f600's", "<|endoftext|>", " the"):
        encoded = tokenizer.encode(text)
        assert encoded.dtype == torch.int64 and tokenizer.decode(encoded) == text
        assert not (encoded == 261).any()  # a text cannot call up the mark
    assert tokenizer.decode([261]) == "<|endoftext|>"
    with refused("expected 0 to 261"):
        tokenizer.decode([262])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"encoder.json": b"not json"}, "expected the files of GPT-2"),
        ({"encoder.json": b"[1, 2]"}, "not numbered"),
        ({"encoder.json": b'{"a": 1, "b": 1}'}, "not numbered"),
        ({"encoder.json": b'{"a": [0]}'}, "not numbered"),
        ({"encoder.json": b'{"a": 0, "b": 1}'}, "254 of the 256 bytes"),
        ({"vocab.bpe": b"b a"}, "'b a' is no pair of tokens whose join"),
        ({"vocab.bpe": b"t h e"}, "'t h e' is no pair"),
        ({"vocab.bpe": b"\xff"}, "utf-8"),
    ],
)
def test_byte_pair_files_of_another_form_are_refused(changes, match):
    files = byte_pair_files() | changes
    with refused(match):
        data.BytePairs(files["encoder.json"], files["vocab.bpe"])


def test_byte_pairs_without_the_library_say_how_to_install_it(monkeypatch):
    hide(monkeypatch, "tokenizers")
    with refused("need the package tokenizers.*pip install 'wflow"):
        data.BytePairs(b"{}", b"")


PLAY = "First Citizen:\nthe abab, before we proceed.\n\nAll:\nSpeak, speak the word.\n" * 4


@pytest.fixture
def play(tmp_path, monkeypatch) -> Path:
    """A folder with a short text, which the loader expects."""
    content = PLAY.encode()
    (tmp_path / "tinyshakespeare.txt").write_bytes(content)
    expected = dataclasses.replace(data._SHAKESPEARE, sha256=sha(content))
    monkeypatch.setattr(data, "_SHAKESPEARE", expected)
    return tmp_path


def test_shakespeare_holds_back_the_last_tenth(play):
    text = data.shakespeare(folder=play)
    cut = 9 * len(PLAY) // 10
    assert text.decode(text.train) == PLAY[:cut] and text.decode(text.test) == PLAY[cut:]
    assert text.vocabulary == len(set(PLAY)) and text.train.dtype == torch.int64
    assert torch.equal(text.encode(PLAY[:cut]), text.train)
    assert f"{cut} training" in text.source and "characters" in text.source


def test_shakespeare_as_byte_pairs(play, monkeypatch):
    files = byte_pair_files()
    expect(monkeypatch, "_GPT2", files)
    with refused("does not hold the GPT-2 vocabulary; expected gpt2-bpe/encoder.json and"):
        data.shakespeare(tokens="gpt2", folder=play)
    fill(play / "gpt2-bpe", files, "encoder", "vocab")
    text = data.shakespeare(tokens="gpt2", folder=play)
    cut = 9 * len(PLAY) // 10
    assert text.decode(text.train) == PLAY[:cut] and text.decode(text.test) == PLAY[cut:]
    assert text.vocabulary == 262 and len(text.train) < cut


def test_shakespeare_refuses_other_words_and_files(play):
    with refused("tokens is 'words': expected one of characters, gpt2"):
        data.shakespeare(tokens="words", folder=play)
    (play / "tinyshakespeare.txt").write_text("to be")
    with refused("tinyshakespeare.txt: its SHA-256 is"):
        data.shakespeare(folder=play)


# Batches


def numbered(n: int = 10) -> tuple:
    """Images of 2 x 3 pixels whose value is their number; labels the same."""
    values = torch.arange(n, dtype=torch.uint8)
    return values[:, None, None].expand(n, 2, 3).clone(), values


def test_image_batches_are_a_pure_function_of_seed_and_step():
    images, labels = numbered(100)
    one, two = (data.ImageBatches(images, labels, batch=7, seed=4) for _ in range(2))
    steps = [0, 33, 5, 5, 1000, 1, 0]
    forwards = {step: one.rows(step).tolist() for step in steps}
    assert all(two.rows(step).tolist() == forwards[step] for step in reversed(steps))
    other = data.ImageBatches(images, labels, batch=7, seed=5)
    assert other.rows(0).tolist() != forwards[0]


def test_an_epoch_has_no_image_twice_and_drops_what_is_left_over():
    images, labels = numbered(10)
    batches = data.ImageBatches(images, labels, batch=3, seed=1)
    assert batches.per_epoch == 3
    epochs = [
        [row for k in range(3) for row in batches.rows(3 * epoch + k).tolist()]
        for epoch in range(40)
    ]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 40
    left = {(set(range(10)) - set(epoch)).pop() for epoch in epochs}
    assert left == set(range(10))  # every image is dropped in some epoch, none in all


def test_image_batches_normalise_pixels_in_the_unit_interval():
    images, labels = numbered(10)
    batches = data.ImageBatches(images, labels, batch=4, mean=0.1307, std=0.3081)
    pixels, targets = batches(0)
    assert pixels.shape == (4, 1, 2, 3) and pixels.dtype == torch.float32
    assert targets.dtype == torch.int64 and targets.tolist() == batches.rows(0).tolist()
    expected = (targets.double() / 255 - 0.1307) / 0.3081
    assert torch.allclose(pixels[:, 0, 1, 2].double(), expected, rtol=1e-6)
    colour = data.ImageBatches(torch.rand(10, 3, 4, 4), labels, batch=2)(1)[0]
    assert colour.shape == (2, 3, 4, 4)
    assert torch.equal(data.unit(images).double(), images.to(torch.float32).div(255).double())


def test_evaluation_visits_every_image_once_in_order():
    images, labels = numbered(10)
    batches = data.ImageBatches(images, labels, batch=4)
    parts = list(batches.evaluation(3))
    assert [len(part[1]) for part in parts] == [3, 3, 3, 1]
    assert torch.cat([part[1] for part in parts]).tolist() == list(range(10))
    assert torch.equal(torch.cat([part[0] for part in parts])[:, 0] * 255, images.float())
    assert len(list(batches.evaluation())) == 3


def test_crops_are_shifted_by_one_and_a_pure_function_of_seed_and_step():
    tokens = torch.arange(50, dtype=torch.uint8)
    batches = data.CropBatches(tokens, context=8, batch=5, seed=2)
    inputs, targets = batches(7)
    assert inputs.shape == targets.shape == (5, 8) and inputs.dtype == torch.int64
    assert torch.equal(targets, inputs + 1) and torch.equal(inputs[:, 1:], targets[:, :-1])
    again = data.CropBatches(tokens, context=8, batch=5, seed=2)
    assert torch.equal(again(7)[0], inputs) and not torch.equal(again(8)[0], inputs)
    other = data.CropBatches(tokens, context=8, batch=5, seed=3)
    assert not torch.equal(other(7)[0], inputs)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.int64])
def test_crops_of_a_text_within_its_vocabulary_are_those_without_the_check(dtype):
    text, checked = torch.arange(50).to(dtype), {"vocabulary": 50}
    plain = data.CropBatches(text, context=8, batch=5)
    same = data.CropBatches(text, context=8, batch=5, **checked)
    assert torch.equal(plain(3)[0], same(3)[0]) and vars(plain).keys() == vars(same).keys()
    assert len(list(data.windows(text, context=8, **checked))) == 7


def test_crops_begin_everywhere_alike():
    batches = data.CropBatches(torch.arange(12), context=8, batch=1000, seed=0)
    begins = torch.cat([batches(step)[0][:, 0] for step in range(4)])
    counts = begins.bincount()
    assert len(counts) == 4 and (counts - 1000).abs().max() < 5 * 1000**0.5
    only = data.CropBatches(torch.arange(9), context=8, batch=2)(0)
    assert only[1][:, -1].tolist() == [8, 8]


@pytest.mark.parametrize("n", [2, 5, 8, 9, 10, 16, 17, 50])
@pytest.mark.parametrize("batch", [1, 3])
def test_windows_make_every_token_a_target_once(n, batch):
    tokens = torch.arange(n)
    parts = list(data.windows(tokens, context=8, batch=batch))
    assert torch.cat([targets.flatten() for _, targets in parts]).tolist() == list(range(1, n))
    for inputs, targets in parts:
        assert torch.equal(targets, inputs + 1) and inputs.shape[1] <= 8 and len(inputs) <= batch
    assert all(inputs.shape[1] == 8 for inputs, _ in parts[:-1])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda i, t: data.ImageBatches(i, t, batch=11), "batch is 11: expected at most 10"),
        (lambda i, t: data.ImageBatches(i, t, batch=0), "batch is 0"),
        (lambda i, t: data.ImageBatches(i[0], t, batch=1), "images have shape"),
        (lambda i, t: data.ImageBatches(i[:0], t[:0], batch=1), "images have shape"),
        (lambda i, t: data.ImageBatches(i.int(), t, batch=1), "images are torch.int32"),
        (lambda i, t: data.ImageBatches(i, t[:9], batch=1), "labels are"),
        (lambda i, t: data.ImageBatches(i, t.float(), batch=1), "labels are torch.float32"),
        (lambda i, t: data.ImageBatches(i, t, batch=1, std=0), "std is 0"),
        (lambda i, t: data.ImageBatches(i, t, batch=1, seed=-1), "seed is -1"),
        (lambda i, t: data.ImageBatches(i, t, batch=1)(-1), "step is -1"),
        (lambda i, t: data.CropBatches(t, context=10, batch=1), "more than the context, 10"),
        (lambda i, t: data.CropBatches(i, context=1, batch=1), "tokens are torch.uint8 .10, 2"),
        (lambda i, t: data.CropBatches(t.float(), context=1, batch=1), "tokens are torch.float32"),
        (lambda i, t: data.CropBatches(t, context=0, batch=1), "context is 0"),
        (
            lambda i, t: data.CropBatches(t, context=1, batch=1, vocabulary=9),
            "token 9: expected 0 .. 8",
        ),
        (
            lambda i, t: data.CropBatches(t.long() - 1, context=1, batch=1, vocabulary=10),
            "token -1: expected 0 .. 9",
        ),
        (lambda i, t: data.CropBatches(t, context=1, batch=1, vocabulary=0), "vocabulary is 0"),
        (lambda i, t: data.windows(t, context=4, vocabulary=5), "token 9: expected 0 .. 4"),
        (lambda i, t: data.windows(t[:1], context=4), "more than the context, 1"),
        (lambda i, t: data.windows(t, context=4, batch=0), "batch is 0"),
    ],
)
def test_batches_refuse_what_does_not_fit(call, match):
    with refused(match):
        call(*numbered(10))


# Perturbations


@pytest.mark.parametrize(
    ("noise", "spread"), [(data.gaussian_noise, 1.0), (data.uniform_noise, 3**-0.5)]
)
def test_noise_has_its_level_and_is_scaled_by_it(noise, spread):
    images = torch.full((40, 1, 28, 28), 0.5)
    shift = noise(images, 0.2, seed=3) - images
    n = shift.numel()
    assert abs(shift.mean()) < 5 * 0.2 * spread / n**0.5
    assert abs(shift.std() / (0.2 * spread) - 1) < 5 / n**0.5
    assert torch.equal(noise(images, 0.0, seed=3), images)
    assert torch.allclose(noise(images, 0.4, seed=3) - images, 2 * shift, atol=1e-6)
    assert not torch.equal(noise(images, 0.2, seed=4) - images, shift)
    assert noise(images.double(), 0.2, seed=3).dtype == torch.float64
    if noise is data.uniform_noise:
        assert shift.abs().max() <= 0.2 + 1e-6 and shift.abs().max() > 0.199
    with refused("use unit"):
        noise(images.to(torch.uint8), 0.2)
    with refused("level is -1"):
        noise(images, -1)


def test_replaced_tokens_differ_at_the_rate_and_a_higher_rate_hits_the_same_ones():
    tokens = torch.from_numpy(RNG.integers(0, 65, 100_000))
    low, high = (data.replace_tokens(tokens, rate, 65, seed=1) for rate in (0.05, 0.1))
    for new, rate in ((low, 0.05), (high, 0.1)):
        changed = (new != tokens).double().mean()
        assert abs(changed - rate) < 5 * (rate * (1 - rate) / 100_000) ** 0.5
        assert new.min() >= 0 and new.max() <= 64 and new.dtype == tokens.dtype
    hit = low != tokens
    assert torch.equal(low[hit], high[hit])
    shift = (low[hit] - tokens[hit]) % 65  # uniform on 1 .. 64
    counts = shift.bincount(minlength=65)
    assert counts[0] == 0 and counts[1:].min() > 78 - 5 * 9 and counts.max() < 78 + 5 * 9
    assert torch.equal(data.replace_tokens(tokens, 0, 65), tokens)
    assert (
        data.replace_tokens(tokens[:2000].view(20, 100).to(torch.uint8), 1, 65)
        != tokens[:2000].view(20, 100)
    ).all()


def test_dropped_points_leave_the_others_in_order():
    clouds = torch.arange(40).repeat(6, 1)[:, :, None].expand(6, 40, 3).double()
    kept = data.drop_points(clouds, 0.25, seed=2)
    assert kept.shape == (6, 30, 3) and kept.dtype == torch.float64
    assert (kept[:, 1:, 0] > kept[:, :-1, 0]).all()
    assert len({tuple(row) for row in kept[:, :, 0].tolist()}) == 6  # each cloud loses its own
    fewer = data.drop_points(clouds, 0.5, seed=2)
    assert all(
        set(few) <= set(many)
        for few, many in zip(fewer[:, :, 1].tolist(), kept[:, :, 1].tolist(), strict=True)
    )
    assert torch.equal(data.drop_points(clouds, 0, seed=2), clouds)
    assert data.drop_points(clouds, 1.0).shape == (6, 1, 3)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: data.replace_tokens(torch.tensor([5]), 0.1, 5), "expected 0 to 4"),
        (lambda: data.replace_tokens(torch.tensor([-1]), 0.1, 5), "from -1"),
        (lambda: data.replace_tokens(torch.tensor([0.5]), 0.1, 5), "expected integers"),
        (lambda: data.replace_tokens(torch.tensor([1]), 1.5, 5), "rate is 1.5"),
        (lambda: data.replace_tokens(torch.tensor([0]), 0.5, 1), "vocabulary is 1"),
        (lambda: data.drop_points(torch.zeros(3, 2), 0.5), "expected \\(clouds, points"),
        (lambda: data.drop_points(torch.zeros(3, 0, 2), 0.5), "expected \\(clouds, points"),
        (lambda: data.drop_points(torch.zeros(3, 4, 2), -0.5), "rate is -0.5"),
    ],
)
def test_perturbations_refuse_what_does_not_fit(call, match):
    with refused(match):
        call()


# The published files themselves, where the project's shared data is at hand

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data here")


@real
def test_the_shared_mnist_files_are_the_published_ones():
    images = data.mnist(folder=SHARED)
    assert images.test_images.shape == (10_000, 28, 28)
    assert images.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    counts = images.train_labels.to(torch.int64).bincount()
    assert counts.min() >= 863 and counts.sum() == len(images.train_images)
    pixels = images.train_images.double() / 255
    assert abs(pixels.mean() - 0.1307) < 0.002 and abs(pixels.std() - 0.3081) < 0.002


@real
def test_the_shared_text_has_the_known_number_of_tokens():
    text = data.shakespeare(folder=SHARED)
    assert (len(text.train), len(text.test), text.vocabulary) == (1_003_854, 111_540, 65)
    pytest.importorskip("tokenizers")
    pairs = data.shakespeare(tokens="gpt2", folder=SHARED)
    # 301,966 and 36,059 are the numbers that nanoGPT reports for this split.
    assert (len(pairs.train), len(pairs.test), pairs.vocabulary) == (301_966, 36_059, 50_257)
    assert pairs.encode("Hello world").tolist() == [15496, 995]
    assert pairs.decode(pairs.test) == text.decode(text.test)
