"""Film reviews: archives in the official form, damaged and foreign ones; batches; byte pairs."""

import functools
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from wflow import InputError
from wflow.nets import data
from wflow.nets.data import reviews, tokenize

pytestmark = pytest.mark.usefixtures("nothing_at_hand")

DATA = Path(os.environ.get("WFLOW_DATA", "no folder"))
REVIEWS = {
    "aclImdb/train/pos/0_9.txt": b"A  superb film.<br /><br />See it!",
    "aclImdb/train/neg/1_2.txt": b"Dull.",
    "aclImdb/train/pos/2_8.txt": "Très bien".encode(),
    "aclImdb/test/neg/0_1.txt": b"A waste of time",
    "aclImdb/test/neg/1_1.txt": b"Dull.",
    "aclImdb/test/pos/2_10.txt": b"Great",
}
OTHERS = {
    "aclImdb/README": b"read me",
    "aclImdb/train/unsup/0_0.txt": b"",
    "aclImdb/imdb.vocab": b"a",
}


def packed(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a data set of six reviews, packed as the official one is."""
    monkeypatch.setattr(reviews, "_DIGEST", reviews.digest_of(REVIEWS))
    monkeypatch.setattr(reviews, "_JOINED", 4)
    packed(tmp_path / "data" / "aclImdb_v1.tar.gz", REVIEWS | OTHERS)
    return tmp_path / "data"


def refused(match: str):
    return pytest.raises(InputError, match=match)


# Loader


def test_a_review_that_stands_in_both_halves_is_left_out_of_training(folder):
    found = data.imdb(folder=folder)
    assert found.repeated == 0 and not set(found.train_texts) & set(found.test_texts)
    assert found.train_texts == ("A superb film. See it!", "Très bien")
    assert found.train_labels.tolist() == [1, 1] and found.train_labels.dtype == torch.int64
    assert found.test_texts == ("A waste of time", "Dull.", "Great")
    assert found.test_labels.tolist() == [0, 0, 1]
    assert "2 training and 3 test reviews; 1 more for training" in found.source
    every = data.imdb(folder=folder, keep_duplicates=True)
    assert every.repeated == 1 and len(every.train_texts) == 3
    assert "the text of 1 for training is in the test part, too" in every.source


def test_the_joined_split_is_random_and_that_of_its_seed(folder):
    options = {"folder": folder, "split": "joined", "keep_duplicates": True}
    splits = [data.imdb(seed=k, **options) for k in range(8)]
    for found in splits:
        assert (len(found.train_texts), len(found.test_texts)) == (4, 2)
        texts = found.train_texts + found.test_texts
        assert texts.count("Dull.") == 2 and len(texts) == 6
        kinds = found.train_labels.tolist() + found.test_labels.tolist()
        labels = dict(zip(texts, kinds, strict=True))
        assert labels["Great"] == 1 and labels["Dull."] == 0
    assert len({found.test_texts for found in splits}) > 3
    assert data.imdb(seed=3, **options).test_texts == splits[3].test_texts
    clean = [data.imdb(folder=folder, split="joined", seed=k) for k in range(8)]
    assert all(found.repeated == 0 for found in clean)
    assert {len(found.train_texts) for found in clean} == {3, 4}


@pytest.mark.parametrize(
    ("name", "mode"), [("aclImdb_labelled.tar.xz", "w:xz"), ("aclImdb_v1.tar", "w")]
)
def test_the_checksum_is_that_of_the_reviews_however_they_are_packed(folder, name, mode):
    want = data.imdb(folder=folder)
    (folder / "aclImdb_v1.tar.gz").unlink()
    backwards = dict(reversed({f"./{key}": value for key, value in REVIEWS.items()}.items()))
    packed(folder / name, backwards, mode)
    found = data.imdb(folder=folder)
    assert found.train_texts == want.train_texts and found.test_texts == want.test_texts


def test_other_truncated_and_foreign_archives_are_refused_by_name(folder):
    path = folder / "aclImdb_v1.tar.gz"
    whole = path.read_bytes()
    changed = packed(path, REVIEWS | {"aclImdb/test/pos/2_10.txt": b"Good"}).read_bytes()
    foreign = packed(path, {"photos/cat.jpg": b"miaow"}).read_bytes()
    for content in (changed, foreign, whole[: len(whole) // 2], b"", b"no archive at all" * 100):
        path.write_bytes(content)
        with refused(r"aclImdb_v1\.tar\.gz: .* get it again"):
            data.imdb(folder=folder)
    path.unlink()
    with refused("aclImdb_v1.tar.gz.*WFLOW_DATA"):
        data.imdb(folder=folder)
    with refused("'half'"):
        data.imdb(folder=folder, split="half")


@pytest.mark.skipif(not (DATA / "aclImdb_labelled.tar.xz").exists(), reason="no data folder")
def test_the_published_reviews_have_the_known_counts(monkeypatch):
    monkeypatch.setattr(reviews, "read_reviews", functools.cache(reviews.read_reviews))
    found, clean = (data.imdb(folder=DATA, keep_duplicates=kept) for kept in (True, False))
    assert (len(found.train_texts), len(found.test_texts), found.repeated) == (25_000, 25_000, 123)
    assert int(found.train_labels.sum()) == int(found.test_labels.sum()) == 12_500
    assert (len(clean.train_texts), len(clean.test_texts), clean.repeated) == (24_877, 25_000, 0)
    assert clean.test_texts == found.test_texts and len(clean.train_labels) == 24_877
    assert (len(set(found.train_texts)), len(set(found.test_texts))) == (24_902, 24_799)


# Batches


def texts(count: int = 23):
    """Return texts of 1 to 9 tokens: text k consists of the token k + 1."""
    lengths = np.random.default_rng(1).integers(1, 10, count)
    return [torch.full((int(n),), k + 1) for k, n in enumerate(lengths)], torch.arange(count)


@pytest.mark.parametrize("bucket", [1, 2, 100])
def test_an_epoch_has_every_text_once_and_whole(bucket):
    tokens, labels = texts()
    batches = data.TextBatches(tokens, labels, batch=4, context=9, bucket=bucket, seed=5)
    assert batches.per_epoch == 5
    orders = []
    for epoch in range(2):
        seen = []
        for step in range(5 * epoch, 5 * epoch + 5):
            rows, kinds = batches(step)
            assert rows.dtype == torch.int64 and len(rows) == 4
            assert rows.shape[1] == max(len(tokens[k]) for k in kinds)
            for row, k in zip(rows, kinds.tolist(), strict=True):
                assert torch.equal(row[row > 0], tokens[k])
                assert not row[len(tokens[k]) :].any()
            seen += kinds.tolist()
        assert len(set(seen)) == 20
        orders.append(seen)
    assert orders[0] != orders[1]


def test_batches_of_one_length_have_less_padding():
    tokens, labels = texts(200)

    def padding(bucket):
        batches = data.TextBatches(tokens, labels, batch=10, context=9, bucket=bucket)
        return sum(int((batches(step)[0] == 0).sum()) for step in range(20))

    assert padding(20) < 0.3 * padding(1)


def test_long_texts_are_cut_at_the_end_or_at_the_beginning():
    tokens, labels = [torch.arange(1, 8), torch.tensor([9])], torch.tensor([1, 0])
    for truncate, want in (("end", [1, 2, 3]), ("beginning", [5, 6, 7])):
        batches = data.TextBatches(tokens, labels, batch=2, context=3, truncate=truncate)
        rows, kinds = next(batches.evaluation())
        assert rows.tolist() == [[9, 0, 0], want] and kinds.tolist() == [0, 1]
    batches = data.TextBatches(tokens, labels, batch=1, context=12, pad_to_context=True)
    assert [rows.shape for rows, _ in batches.evaluation()] == [(1, 12), (1, 12)]


# Byte pairs


@pytest.fixture
def learnt():
    pytest.importorskip("tokenizers")
    words = np.random.default_rng(0).choice(["low", "lower", "newest", "widest", "Héros"], 400)
    return [" ".join(words[k : k + 20]) for k in range(0, 400, 20)]


def test_byte_pairs_are_the_same_every_time_and_encode_everything(learnt):
    pairs = data.TrainedBytePairs(learnt, 276, cached=False)
    other = data.TrainedBytePairs(learnt, 276, cached=False)
    assert pairs.vocabulary == 276
    for text in ("low newest", "zebra & <pad> Σ 🎬", *learnt[:3]):
        tokens = pairs.encode(text)
        assert torch.equal(tokens, other.encode(text)) and int(tokens.min()) > 0
        assert pairs.decode(tokens) == " " + text.lower()
    assert len(pairs.encode("newest")) == 1 < len(pairs.encode("tsewen"))
    assert [row.tolist() for row in pairs.encode_all(["low", "low low"])] == [
        pairs.encode("low").tolist(), 2 * pairs.encode("low").tolist(),
    ]  # fmt: skip
    large = data.TrainedBytePairs(learnt, 276, lowercase=False, cached=False)
    assert large.decode(large.encode("Low")) == " Low"


def test_learnt_byte_pairs_are_kept_under_the_checksum_of_the_texts(learnt, tmp_path, monkeypatch):
    first = data.TrainedBytePairs(learnt, 270)
    (file,) = (tmp_path / "cache" / "byte-pairs").iterdir()
    data.TrainedBytePairs(learnt[:-1], 270)
    data.TrainedBytePairs(learnt, 271)
    assert len(list(file.parent.iterdir())) == 3
    stamp = file.read_bytes()
    learn = tokenize._learnt
    monkeypatch.setattr(tokenize, "_learnt", None)  # nothing is learnt again
    again = data.TrainedBytePairs(learnt, 270)
    text = "the widest <pad> film"
    assert torch.equal(again.encode(text), first.encode(text))
    file.write_bytes(stamp[:100])  # damaged
    monkeypatch.setattr(tokenize, "_learnt", learn)
    data.TrainedBytePairs(learnt, 270)
    assert file.read_bytes() == stamp
