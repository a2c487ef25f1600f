"""Pictures of cats and dogs from their archives, their two halves, and random crops."""

import hashlib
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import fill, zipped
from PIL import Image

from wflow import InputError
from wflow.nets import data
from wflow.nets.data import archives, pictures
from wflow.nets.data.batches import Purpose, permutation

pytestmark = pytest.mark.usefixtures("nothing_at_hand")

EACH = 10  # pictures of each animal in these tests
DATA = Path(os.environ.get("WFLOW_DATA", "no folder"))


def refused(match: str):
    return pytest.raises(InputError, match=match)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(pictures, "_EACH", EACH)
    monkeypatch.setattr(pictures, "held_back_numbers", lambda: by_rule(EACH))


def by_rule(count: int) -> list[np.ndarray]:
    """Return numbers of the test pictures of cats and of dogs."""
    return [np.sort(permutation(count, 0, Purpose.SPLIT, k)[: count // 5]) for k in range(2)]


def colour(label: int, number: int) -> tuple[int, int, int]:
    return (10 * number, 200 * label, 7)


def encoded(colours, size=(6, 4), kind="PNG") -> bytes:
    """Return a picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, colours).save(file, kind)
    return file.getvalue()


def files(name="{animal}.{number}.png") -> dict[str, bytes]:
    """Return all pictures by their names, each of its own colour, the dogs first."""
    return {
        name.format(animal=animal, number=number): encoded(colour(label, number))
        for label, animal in ((1, "dog"), (0, "cat"))
        for number in reversed(range(EACH))
    }


def expected() -> dict[bool, list[tuple[int, int]]]:
    """Return labels and numbers of the pictures of both halves, by whether they are for tests."""
    held = pictures._held_back()
    keys = [(label, number) for label in range(2) for number in range(EACH)]
    return {half: [k for k, test in zip(keys, held, strict=True) if test == half]
            for half in (False, True)}  # fmt: skip


def check(images) -> None:
    """That every picture is in its half, in order, with its label and its colour."""
    for half, (values, labels) in {
        False: (images.train_images, images.train_labels),
        True: (images.test_images, images.test_labels),
    }.items():
        keys = expected()[half]
        assert labels.tolist() == [label for label, _ in keys]
        assert values.dtype == torch.uint8 and values.shape == (len(keys), 3, 8, 8)
        assert torch.equal(values[:, :, 3, 3], torch.tensor([colour(*k) for k in keys]).byte())
        assert torch.equal(values, values[:, :, :1, :1].expand_as(values))


TRAIN = "train/{animal}.{number}.png"
PETS = "PetImages/{animal}/{number}.png"
LAYOUTS = {
    "competition": lambda: {
        "dogs-vs-cats.zip": zipped({"test1.zip": b"", "train.zip": zipped(files(TRAIN), 8)}, 8)
    },
    "train.zip": lambda: {"train.zip": zipped({"train/": b""} | files(TRAIN))},
    "below": lambda: files("dogs-vs-cats/" + TRAIN) | {"dogs-vs-cats/train/notes.txt": b""},
    "PetImages": lambda: files(PETS) | {"PetImages/cat/Thumbs.db": b""},
    "download": lambda: {
        "kagglecatsanddogs_5340.zip": zipped(files(PETS) | {"__MACOSX/cat.1.png": b""})
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_are_read_from_every_published_layout(few, tmp_path, layout, monkeypatch):
    fill(tmp_path, LAYOUTS[layout]())
    images = data.cats_and_dogs(folder=tmp_path, pixels=8)
    check(images)
    assert images.classes == 2 and "16 training pictures, 4 test pictures" in images.source
    pixels = images.train_images.double() / 255
    assert images.mean == pytest.approx(float(pixels.mean()), abs=1e-4)
    assert images.std == pytest.approx(float(pixels.std(correction=0)), abs=1e-4)
    monkeypatch.setenv("WFLOW_DATA", str(tmp_path))
    assert torch.equal(data.cats_and_dogs(pixels=8).test_images, images.test_images)


def test_the_prepared_archive_is_checked_by_its_checksum(few, tmp_path, monkeypatch):
    content = zipped(files(TRAIN))
    fill(tmp_path, {"dogs-vs-cats-96.zip": content})
    with refused("050d3a7a"):
        data.cats_and_dogs(folder=tmp_path, pixels=8)
    monkeypatch.setattr(pictures, "_SHA256", hashlib.sha256(content).hexdigest())
    check(data.cats_and_dogs(folder=tmp_path, pixels=8))


def test_the_split_is_the_published_one():
    held = pictures._held_back()
    assert held.reshape(2, -1).sum(1).tolist() == [2500, 2500]
    numbers = np.flatnonzero(held).astype("<i8").tobytes()
    assert hashlib.sha256(numbers).hexdigest() == SPLIT
    assert all(map(np.array_equal, pictures.held_back_numbers(), by_rule(12_500)))


SPLIT = "d8bd45f1d92bd0dfd60be071571a25f830460b9fe4f1f573321d6e1e6da16891"


def test_no_picture_is_in_both_halves(few, tmp_path):
    half = expected()
    copies = {  # a test picture among those of training, one of training twice, and of both labels
        half[False][2]: half[True][0],
        half[False][5]: half[False][3],
        half[True][3]: half[False][3],
    }
    keys = [(label, number) for label in range(2) for number in range(EACH)]
    of = {key: copies.get(key, key) for key in keys}
    names = {key: f"train/{('cat', 'dog')[key[0]]}.{key[1]}.png" for key in keys}
    fill(tmp_path, {names[key]: encoded(colour(*of[key])) for key in keys})
    images = data.cats_and_dogs(folder=tmp_path, pixels=8)
    # The first one, cats before dogs and by number, is the one that stays.
    stays = [key for key in keys if key == min(other for other in keys if of[other] == of[key])]
    assert len(stays) == 2 * EACH - len(copies)
    for test, part in ((False, images.train_images), (True, images.test_images)):
        want = [colour(*of[key]) for key in half[test] if key in stays]
        assert [tuple(image[:, 0, 0].tolist()) for image in part] == want
    assert images.source.endswith("3 repeated ones left out")


@pytest.mark.parametrize("kind", ["WEBP", "JPEG"])
def test_pictures_are_resized_without_regard_to_their_proportions(few, tmp_path, kind):
    contents = files(TRAIN)
    wide = Image.new("L", (40, 10), 255)
    wide.paste(0, (0, 0, 20, 10))  # the left half is black
    file = io.BytesIO()
    wide.save(file, kind, quality=100)
    label, number = expected()[True][0]
    name = f"train/{('cat', 'dog')[label]}.{number}.png"  # Pillow looks at the contents
    fill(tmp_path, contents | {name: file.getvalue()})
    picture = data.cats_and_dogs(folder=tmp_path, pixels=8).test_images[0]
    assert picture[:, :, :3].max() < 30 and picture[:, :, 5:].min() > 225


@pytest.mark.parametrize("broken", [b"", encoded((1, 2, 3), (64, 64), "JPEG")[:-200]])
def test_pictures_that_cannot_be_read_are_named_counted_and_refused(
    few, tmp_path, monkeypatch, broken
):
    contents = files(TRAIN) | {"train/cat.3.png": broken}
    del contents["train/dog.8.png"]
    fill(tmp_path, {"train.zip": zipped(contents)})
    with refused(r"of 20 pictures 1 are missing; 1 cannot be used: train/cat.3.png \(.*1 %"):
        data.cats_and_dogs(folder=tmp_path, pixels=8)
    monkeypatch.setattr(archives, "LOST", 0.1)
    with pytest.warns(UserWarning, match=r"cat\.3\.png"):
        images = data.cats_and_dogs(folder=tmp_path, pixels=8)
    keys = [key for half in expected().values() for key in half if key not in ((0, 3), (1, 8))]
    parts = [images.train_images, images.test_images]
    colours = [tuple(image[:, 0, 0].tolist()) for part in parts for image in part]
    assert colours == [colour(*key) for key in keys]


def test_damaged_archives_are_refused_by_name(few, tmp_path):
    whole = zipped(files(TRAIN))
    place = whole.index(b"IDAT") + 6  # in the first picture, whose checksum no longer fits
    flipped = whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :]
    for content in (whole[: len(whole) // 2], b"", flipped, zipped({"train.zip": whole[:-30]})):
        fill(tmp_path, {"train.zip": content})
        with refused(re.escape(str(tmp_path / "train.zip"))):
            data.cats_and_dogs(folder=tmp_path, pixels=8)


def test_a_missing_archive_is_said_with_where_to_get_it(tmp_path):
    for folder in (tmp_path, None):
        with refused("kaggle.*WFLOW_DATA"):
            data.cats_and_dogs(folder=folder)
    fill(tmp_path / "train", {"other.txt": b""})  # a folder of that name with other things
    with refused("no pictures"):
        data.cats_and_dogs(folder=tmp_path)


@pytest.mark.skipif(not (DATA / "dogs-vs-cats-96.zip").is_file(), reason="no data folder")
def test_the_archive_at_hand_has_its_counts_and_no_picture_in_both_halves(cases):
    if cases(False, True) is False:
        pytest.skip("reads 25,000 pictures: with --long")
    images = data.cats_and_dogs(folder=DATA)
    assert images.source.endswith("test pictures, 6 repeated ones left out")
    assert (images.mean, images.std) == (0.4537, 0.2551)
    train, test = (
        {hashlib.sha256(image.numpy().tobytes()).digest() for image in part}
        for part in (images.train_images, images.test_images)
    )
    assert (len(train), len(test)) == (19_994, 5_000) and not train & test


# Random crops


@pytest.mark.parametrize("size", [(96, 96), (60, 120), (30, 300)])
def test_crops_have_the_requested_areas_and_ratios(size):
    crops = data.RandomCrops(seed=1, scale=(0.2, 0.9), ratio=(0.5, 2.0), flip=0.25)
    boxes = crops.boxes(20_000, 0, size)
    assert np.array_equal(boxes[:3], crops.boxes(3, 0, size))  # the same in a larger batch
    left, top, right, bottom = boxes.T
    mirrored = left > right
    assert np.mean(mirrored) == pytest.approx(0.25, abs=0.012)
    left, right = np.minimum(left, right), np.maximum(left, right)
    assert min(left.min(), top.min()) >= 0 and max(right.max(), bottom.max()) <= 1 + 1e-12
    area, ratio = (right - left) * (bottom - top), (right - left) / (bottom - top)
    ratio *= size[1] / size[0]
    assert ratio.min() >= 0.5 - 1e-9 and ratio.max() <= 2 + 1e-9
    # Where ten draws do not fit: the largest crop of an allowed ratio, in the middle.
    largest = {(96, 96): 1.0, (60, 120): 1.0, (30, 300): 0.2}[size]
    middle = np.isclose(area, largest, atol=1e-9)
    assert np.allclose((left + right)[middle], 1) and np.allclose((top + bottom)[middle], 1)
    assert np.mean(middle) == pytest.approx({1: 0.0, 2: 0.0, 10: 1.0}[size[1] // size[0]], abs=5e-3)
    area, left, right = area[~middle], left[~middle], right[~middle]
    if not len(area):
        return
    assert area.min() >= 0.2 - 1e-9 and area.max() <= 0.9 + 1e-9
    places = left[right - left < 0.999] / (1 - (right - left))[right - left < 0.999]
    assert np.quantile(places, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.02)


def test_a_crop_of_everything_is_the_picture_and_a_flip_its_mirror_image():
    images = torch.rand(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    for flip, want in ((0.0, images), (1.0, images.flip(-1))):
        crops = data.RandomCrops(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=flip)
        assert torch.allclose(crops(images, 0), want, atol=1e-6)


def test_crops_are_resized_as_pillow_does():
    images = torch.rand(20, 1, 16, 24, generator=torch.Generator().manual_seed(0))
    crops = data.RandomCrops(seed=2, scale=(0.1, 0.6), flip=0.5)
    found = crops(images, 7)
    for image, box, crop in zip(images, crops.boxes(20, 7, (16, 24)), found, strict=True):
        left, top, right, bottom = box * [24, 16, 24, 16]
        ends = min(left, right), top, max(left, right), bottom
        pillow = Image.fromarray(image[0].numpy()).resize((24, 16), Image.BILINEAR, box=ends)
        resized = torch.from_numpy(np.array(pillow))
        assert torch.allclose(crop[0], resized.flip(-1) if left > right else resized, atol=1e-3)


def test_batches_are_augmented_in_training_alone():
    images, labels = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8), torch.arange(10)
    settings = {"batch": 4, "seed": 5, "mean": 0.4, "std": 0.2}
    plain, crops = data.ImageBatches(images, labels, **settings), data.RandomCrops(seed=6)
    augmented = data.ImageBatches(images, labels, **settings, augment=crops)
    pixels, found = augmented(3)
    rows = torch.from_numpy(plain.rows(3))
    assert torch.equal(found, labels[rows])
    assert torch.allclose(pixels, (crops(data.unit(images[rows]), 3) - 0.4) / 0.2)
    for a, b in zip(plain.evaluation(), augmented.evaluation(), strict=True):
        assert torch.equal(a[0], b[0])
