"""Data for the networks: files are verified by their checksums, and others are refused."""

import dataclasses
import functools
import gzip
import hashlib
import json
import os
import random
import re
import struct
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import fill

from wflow import InputError
from wflow.nets import data
from wflow.nets.data import datasets, download, tokenize
from wflow.nets.data.datasets import TYPES, parse_idx
from wflow.nets.data.download import DataFile

pytestmark = pytest.mark.usefixtures("nothing_at_hand")

RNG = np.random.default_rng(3)
DATA = Path(os.environ.get("WFLOW_DATA", "no folder"))
CODES = {np.dtype(name).newbyteorder("="): code for code, name in TYPES.items()}


def refused(match: str):
    return pytest.raises(InputError, match=match)


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, CODES[array.dtype], array.ndim])
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return header + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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


def test_damaged_and_foreign_idx_files_are_refused_by_name(tmp_path):
    images, path = idx(RNG.integers(0, 256, (4, 5, 6)).astype(np.uint8)), tmp_path / "images"
    packed = gzip.compress(images)
    huge = images[:4] + b"\xff" * 12 + images[16:]  # no array has these sizes
    unknown = images[:2] + b"\x0a" + images[3:]  # no element type
    foreign = [b"", b"\x89PNG\r\n\x1a\n", unknown, images[:11], images[:-1], images + b"\0", huge]
    for content in (*foreign, idx(np.zeros(4, np.uint8)), packed[:-12], packed + b"?"):
        path.write_bytes(content)
        with refused(re.escape(str(path))):
            data.read_idx(path, dims=3)
    with refused("none.idx"):
        data.read_idx(tmp_path / "none.idx")


# MNIST, from small files in the published format


def expect(monkeypatch, name: str, contents: dict[str, bytes]) -> None:
    """Make the loader expect these contents under the published names."""
    files = (
        dataclasses.replace(file, sha256=sha(contents[file.name]))
        for file in getattr(datasets, name)
    )
    monkeypatch.setattr(datasets, name, tuple(files))


@pytest.fixture
def published(monkeypatch) -> dict[str, bytes]:
    """Return contents of all four files by name: 60 and 30 digits."""
    contents = {}
    for names, n in (("_TRAIN", 60), ("_TEST", 30)):
        images, labels = (file.name for file in getattr(datasets, names))
        contents[images] = idx(RNG.integers(0, 256, (n, 28, 28)).astype(np.uint8))
        contents[labels] = idx((np.arange(n) % 10).astype(np.uint8))
        expect(monkeypatch, names, contents)
    return contents


def gzipped(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(data, 1) for name, data in contents.items()}


def test_mnist_holds_the_digits_of_its_files_and_a_part_of_them_in_the_fixed_order(
    tmp_path, published
):
    fill(tmp_path / "mnist", published)
    whole, part = data.mnist(folder=tmp_path), data.mnist(folder=tmp_path, digits=25)
    assert whole.train_images.shape == (60, 28, 28) and whole.test_images.shape == (30, 28, 28)
    assert whole.train_images.dtype == whole.test_labels.dtype == torch.uint8
    expected = parse_idx(published["train-images-idx3-ubyte"], "images")
    assert np.array_equal(whole.train_images.numpy(), expected)
    assert whole.train_labels.tolist() == [k % 10 for k in range(60)]
    assert (whole.mean, whole.std, whole.classes) == (0.1307, 0.3081, 10)
    assert whole.source == "MNIST: 60 training digits, 30 test digits"
    rows = datasets.mnist_order(whole.train_labels.numpy())
    assert torch.equal(part.train_images, whole.train_images[rows[:25]])
    assert torch.equal(part.train_labels, whole.train_labels[rows[:25]])
    assert torch.equal(part.test_images, whole.test_images)
    assert part.source == "MNIST: 25 of the 60 training digits, 30 test digits"
    for wrong in (0, 61):
        with refused(f"digits is {wrong}"):
            data.mnist(folder=tmp_path, digits=wrong)


@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw", "raw"])
def test_mnist_is_read_from_every_mirror_and_from_the_folder_of_torchvision(
    tmp_path, published, place
):
    for number, contents in enumerate((published, gzipped(published))):
        dotted = {name.replace("-idx", ".idx"): part for name, part in contents.items()}
        fill(tmp_path / f"{number}" / place, contents)
        for folder in (tmp_path / f"{number}", fill(tmp_path / f"dots{number}", dotted)):
            assert len(data.mnist(folder=folder).train_images) == 60


def test_the_order_is_a_shuffle_by_numpy_of_the_first_digits_sorted_by_label():
    for n in (0, 1, 1000):
        labels = RNG.integers(0, 10, n).astype(np.uint8)
        shuffle = np.random.default_rng(0).permutation(n)  # its bits are fixed, its method is not
        expected = np.argsort(labels, kind="stable")[shuffle]
        assert np.array_equal(datasets.mnist_order(labels), expected)
    rows = datasets.mnist_order(np.zeros(10_050, np.uint8))
    assert sorted(rows[:10_000]) == list(range(10_000))
    assert rows[10_000:].tolist() == list(range(10_000, 10_050))
    assert rows[:5].tolist() == [3577, 8925, 1634, 485, 4753]


def test_files_are_looked_for_in_the_folder_then_the_variable_then_the_cache(
    tmp_path, published, monkeypatch
):
    cache = fill(tmp_path / "cache" / "mnist", published)
    named, given = (fill(tmp_path / name, published) for name in ("named", "given"))

    def used(folder=None) -> Path:
        return download.locate("MNIST", datasets._TEST, folder)[0].parent

    assert used() == cache
    monkeypatch.setenv("WFLOW_DATA", str(named))
    assert used() == named and used(given) == used(str(given)) == given
    (named / "t10k-labels-idx1-ubyte").unlink()  # a folder that lacks a file is passed over
    assert used() == cache
    for folder, words in ((named, "MNIST.*WFLOW_DATA"), (tmp_path / "nowhere", "nowhere")):
        with refused(words):
            data.mnist(folder=folder)
    monkeypatch.setenv("WFLOW_DATA", str(tmp_path / "gone"))
    with refused("WFLOW_DATA"):
        data.mnist()


def test_a_corrupt_file_is_refused_with_both_checksums_and_not_passed_over(
    tmp_path, published, monkeypatch
):
    fill(tmp_path / "cache", published)
    name = "t10k-labels-idx1-ubyte"
    wrong = published[name][:-1] + b"?"
    folder = fill(tmp_path / "named", published | {name: gzip.compress(wrong)})
    monkeypatch.setenv("WFLOW_DATA", str(folder))
    for given in (folder, None):
        with refused(f"{name}.*{sha(wrong)}, expected {sha(published[name])}"):
            data.mnist(folder=given)


# Downloads, from a server on this machine


@pytest.fixture
def server(tmp_path):
    """Yield a folder and the address under which this machine serves it."""
    pytest.importorskip("pooch")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args) -> None:
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()


@pytest.mark.parametrize("packed", [False, True])
def test_a_download_is_checked_kept_and_not_made_twice(tmp_path, server, packed):
    folder, address = server
    content = gzip.compress(b"content")
    (folder / "file.gz").write_bytes(content)
    addresses = address + "elsewhere.gz", address + "file.gz"
    path = "set/file.gz" if packed else "set/file"  # the checksum of the file, or its contents
    file = DataFile(path, sha(content if packed else b"content"), addresses, packed=packed)
    kept = tmp_path / "cache" / "set" / "file.gz"
    assert download.locate("the set", [file]) == [kept] and kept.read_bytes() == content
    assert len(list(kept.parent.iterdir())) == 1  # and no draft
    (folder / "file.gz").unlink()
    assert download.locate("the set", [file]) == [kept]
    kept.write_bytes(b"damaged")  # a cache is a folder like another: refused, not replaced
    with refused("SHA-256"):
        download.obtain("the set", [file])
    assert kept.read_bytes() == b"damaged"


def test_a_download_with_another_checksum_names_both_and_keeps_nothing(tmp_path, server):
    folder, address = server
    (folder / "file.txt").write_bytes(b"something else")
    file = DataFile("set/file.txt", sha(b"content"), (address + "file.txt",))
    with refused("file.txt") as caught:
        download.obtain("the set", [file])
    assert sha(b"content") in str(caught.value) and sha(b"something else") in str(caught.value)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_download_that_fails_names_every_address_and_the_alternative(server):
    _, address = server
    file = DataFile("set/file.txt", sha(b""), (address + "a", "http://127.0.0.1:9/b"))
    with refused("put set/file.txt .* WFLOW_DATA") as caught:
        download.obtain("the set", [file])
    assert address + "a" in str(caught.value) and "http://127.0.0.1:9/b" in str(caught.value)


def test_mnist_is_downloaded_where_it_is_nowhere_at_hand(published, server, monkeypatch):
    folder, address = server
    fill(folder, gzipped(published))
    for name in ("_TRAIN", "_TEST"):
        files = getattr(datasets, name)
        assert all(a.startswith("https://") for file in files for a in file.addresses)
        moved = (dataclasses.replace(f, addresses=(f"{address}{f.name}.gz",)) for f in files)
        monkeypatch.setattr(datasets, name, tuple(moved))
    assert len(data.mnist().train_images) == 60


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with refused("sklearn"):
        data.digits()


# What needs no file


def test_digits_are_split_once_and_for_all():
    pytest.importorskip("sklearn")
    images = data.digits()
    assert images.train_images.shape == (1437, 8, 8) and images.test_images.shape == (360, 8, 8)
    assert images.train_images.dtype == torch.uint8 and images.train_images.max() == 255
    counts = images.test_labels.to(torch.int64).bincount(minlength=10)
    assert (counts.double() - images.train_labels.to(torch.int64).bincount() / 4).abs().max() <= 1
    assert (images.test_labels[1:] < images.test_labels[:-1]).any()  # in no order of labels
    assert torch.equal(data.digits().test_images, images.test_images)
    from sklearn.datasets import load_digits

    original = load_digits()
    together = torch.cat([images.train_images, images.test_images]).reshape(1797, -1)
    back = torch.round(together.double() * (16 / 255)).to(torch.int64)
    labels = torch.cat([images.train_labels, images.test_labels]).to(torch.int64)
    rows = torch.cat([back, labels[:, None]], 1).tolist()
    expected = np.column_stack([original.data, original.target]).astype(int).tolist()
    assert sorted(rows) == sorted(expected) and rows != expected
    pixels = (data.unit(images.train_images) - images.mean) / images.std
    assert abs(pixels.mean()) < 1e-3 and abs(pixels.std() - 1) < 1e-3


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


PAIRS = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "b"), ("ab", "a")]


def byte_pair_files() -> dict[str, bytes]:
    """Return files in GPT-2's format: 256 bytes, five pairs, and the mark of the end."""
    library = pytest.importorskip("tokenizers")
    letters = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *("".join(pair) for pair in PAIRS), "<|endoftext|>"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in PAIRS)]
    return {
        "encoder.json": json.dumps({token: k for k, token in enumerate(tokens)}).encode(),
        "vocab.bpe": "\n".join(lines).encode() + b"\n",
    }


@pytest.fixture
def pairs() -> data.BytePairs:
    return data.BytePairs(*byte_pair_files().values())


def test_byte_pairs_join_in_the_order_of_the_list(pairs):
    numbers = json.loads(byte_pair_files()["encoder.json"])
    assert pairs.vocabulary == 262
    expected = ["the", "Ġthe", "m", "Ġ", "ab", "ab"]  # "ab a" is behind "a b", so abab is ab ab
    assert pairs.encode("the them abab").tolist() == [*(numbers[token] for token in expected)]
    for text in ("", "the thé\n\n  日本 \U0001f600's", "<|endoftext|>", " the"):
        encoded = pairs.encode(text)
        assert encoded.dtype == torch.int64 and pairs.decode(encoded) == text
        assert not (encoded == 261).any()  # a text cannot call up the mark
    assert pairs.decode([261]) == "<|endoftext|>"
    with refused("expected 0 to 261"):
        pairs.decode([262])


def test_a_long_text_is_encoded_by_pieces_to_the_same_tokens(pairs, monkeypatch):
    letters = [
        *"thebab  \n\n\t'.,:!?012_é½一。，\x1c\u200b\u0301\u00a0\u2028",
        "'s",
        " 're",
        "\r\n",
    ]
    texts = ["".join(random.Random(k).choices(letters, k=60)) for k in range(200)]
    expected = [pairs.encode(text) for text in texts]
    monkeypatch.setattr(tokenize, "_PIECE", 3)
    given, encode = [], pairs._encode
    monkeypatch.setattr(pairs, "_encode", lambda piece: given.append(piece) or encode(piece))
    assert all(map(torch.equal, map(pairs.encode, texts), expected))
    assert "".join(given) == "".join(texts) and len(given) > 5 * len(texts)


def test_a_compact_text_has_the_vocabulary_of_the_tokens_that_occur(pairs):
    train, test = "the them abab", "the the bat"
    found = data.Text(pairs.encode(train), pairs.encode(test), pairs, "a text").compact()
    assert found.vocabulary == 8 and "8 occur" in found.source
    assert {*found.train.tolist(), *found.test.tolist()} == set(range(8))
    assert (found.decode(found.train), found.decode(found.test)) == (train, test)
    assert torch.equal(found.encode(test), found.test) and found.test.dtype == torch.int64
    assert torch.equal(found.compact().train, found.train)
    for call in (lambda: found.encode("them z"), lambda: found.decode([8])):
        with refused("vocabulary|expected 0 to 7"):
            call()
    assert found.encode("").tolist() == [] and found.decode([]) == ""


@pytest.mark.parametrize("encoder", [b"not json", b"[1, 2]", b'{"a": [0]}', b'{"a": 0, "b": 1}'])
def test_byte_pair_files_of_another_form_are_refused(encoder):
    files = byte_pair_files()
    for given in ((encoder, files["vocab.bpe"]), (files["encoder.json"], b"t h e")):
        with refused(r"encoder\.json"):
            data.BytePairs(*given)


PLAY = "First Citizen:\nthe abab, before we proceed.\n\nAll:\nSpeak, speak the word.\n" * 4


@pytest.fixture
def play(tmp_path, monkeypatch) -> Path:
    """Return a folder with a short text, which the loader expects."""
    fill(tmp_path, {"tinyshakespeare.txt": PLAY.encode()})
    expected = dataclasses.replace(datasets._SHAKESPEARE, sha256=sha(PLAY.encode()))
    monkeypatch.setattr(datasets, "_SHAKESPEARE", expected)
    return tmp_path


def test_shakespeare_holds_back_the_last_tenth(play):
    text = data.shakespeare(folder=play)
    cut = 9 * len(PLAY) // 10
    assert text.decode(text.train) == PLAY[:cut] and text.decode(text.test) == PLAY[cut:]
    assert text.vocabulary == len(set(PLAY)) and text.train.dtype == torch.int64
    assert torch.equal(text.encode(PLAY[:cut]), text.train)
    assert f"{cut} training" in text.source and "characters" in text.source
    with refused("'words'"):
        data.shakespeare(tokens="words", folder=play)


def test_shakespeare_as_byte_pairs(play, monkeypatch):
    files = byte_pair_files()
    expect(monkeypatch, "_GPT2", files)
    fill(play / "gpt2-bpe", files)
    text = data.shakespeare(tokens="gpt2", folder=play)
    cut = 9 * len(PLAY) // 10
    assert text.decode(text.train) == PLAY[:cut] and text.decode(text.test) == PLAY[cut:]
    assert text.vocabulary == 262 and len(text.train) < cut


# The published files themselves, where WFLOW_DATA names a folder that holds them


def real(*files: str):
    """Skip a test where one of these files is in no data folder."""
    there = DATA.is_dir() and all((DATA / file).exists() for file in files)
    return pytest.mark.skipif(not there, reason=f"WFLOW_DATA names no folder with {files[0]}")


@real("mnist")
def test_the_mnist_files_are_the_published_ones():
    images = data.mnist(folder=DATA)
    assert images.train_images.shape == (60_000, 28, 28)
    assert images.test_images.shape == (10_000, 28, 28)
    assert images.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert images.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    pixels = images.train_images.double() / 255
    assert abs(pixels.mean() - images.mean) < 5e-5 and abs(pixels.std() - images.std) < 5e-5
    part = data.mnist(folder=DATA, digits=10_000)  # that of the published tables
    assert [sha(a.numpy().tobytes()) for a in (part.train_images, part.train_labels)] == [
        "01a649acf97bc53c9bbc1a378d3087f5a8f67ccf25746dab384bcbe11feed658",
        "e72996c710bf1af21bb8a23cdd1d782224270379d3bccd54d66aa2c07de97e75",
    ]


@real("tinyshakespeare.txt", "gpt2-bpe")
def test_the_text_has_the_known_number_of_tokens():
    text = data.shakespeare(folder=DATA)
    assert (len(text.train), len(text.test), text.vocabulary) == (1_003_854, 111_540, 65)
    pytest.importorskip("tokenizers")
    pairs = data.shakespeare(tokens="gpt2", folder=DATA)
    # 301,966 and 36,059 are the numbers that nanoGPT reports for this split.
    assert (len(pairs.train), len(pairs.test), pairs.vocabulary) == (301_966, 36_059, 50_257)
    assert pairs.encode("Hello world").tolist() == [15496, 995]
    assert pairs.decode(pairs.test) == text.decode(text.test)
    few = pairs.compact()
    assert few.vocabulary == 11_706 and few.decode(few.test) == text.decode(text.test)
