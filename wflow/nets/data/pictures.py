"""Pictures of cats and dogs, read from their archive.

images = cats_and_dogs()
crops = RandomCrops(seed=1, scale=(0.3, 1.0))
batches = ImageBatches(
    images.train_images, images.train_labels, batch=64, seed=1, mean=images.mean,
    std=images.std, augment=crops,
)
"""

import hashlib
import io
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from wflow._core.checks import whole
from wflow._core.errors import InputError
from wflow.nets.data.archives import BROKEN, ArchiveFile, check_lost, files_of, found
from wflow.nets.data.datasets import Images
from wflow.nets.data.download import check_digest

# Where the pictures are
# ----------------------
# The archive that is prepared for this project, whose contents are known, and the published forms.

_PREPARED = "dogs-vs-cats-96.zip"
_SHA256 = "050d3a7a81f5351865b36b31cc4b0e260f3bd18b87176aa7adfe710c87af8ae5"
_CANDIDATES = (
    _PREPARED,
    "dogs-vs-cats.zip",
    "dogs-vs-cats/train.zip",
    "dogs-vs-cats/train",
    "kagglecatsanddogs_5340.zip",
    "PetImages",
    "train.zip",
    "train",
)
_INNER = "train.zip"  # in the archive of the competition
_NAME = re.compile(r"(?:^|[/\\])(cat|dog)[./\\](\d{1,6})\.(?:jpe?g|png|webp)$", re.IGNORECASE)
_EACH = 12_500  # pictures of each animal, numbered from 0
_DAMAGED = (*BROKEN, SyntaxError, Image.DecompressionBombError)  # what Pillow raises, too
Key = tuple[int, int]  # 0 for a cat, 1 for a dog; number of the picture


def cats_and_dogs(*, folder: str | os.PathLike[str] | None = None, pixels: int = 96) -> Images:
    """Load the cats and dogs of Kaggle's competition [1]_: 25,000 labelled pictures.

    A fifth of them is for tests. They are read from their archive in place, one after another, and
    kept as bytes: 0.7 GB at 96 x 96, 3.8 GB at 224 x 224. The label of a cat is 0, that of a dog 1.

    Parameters
    ----------
    folder : str or path-like, optional
        Folder that holds one of

        - `dogs-vs-cats-96.zip`, all pictures as WebP of 96 x 96, whose checksum is verified;
        - `dogs-vs-cats.zip` or `train.zip` of the competition, or the folder `train`, files
          ``cat.N.jpg`` and ``dog.N.jpg``, also in a folder `dogs-vs-cats`;
        - `kagglecatsanddogs_5340.zip` or its folder `PetImages`, files ``Cat/N.jpg`` and
          ``Dog/N.jpg``.

        By default the folder that the environment variable WFLOW_DATA names, then the cache.
    pixels : int, default 96
        Rows and columns; pictures of another size are resized to them, whatever their proportions,
        as [2]_ does, by bilinear interpolation with antialiasing.

    Returns
    -------
    Images
        Pictures (n, 3, pixels, pixels), cats first, by number. Mean and standard deviation are
        those of all training pixels.

    Raises
    ------
    InputError
        Where there is no such archive, for one that is truncated or holds other files, and where
        more than 1 % of the pictures are missing or cannot be read.

    Warns
    -----
    UserWarning
        Names the pictures that cannot be read or are missing, up to 1 %; they are left out.

    Notes
    -----
    The test half of [2]_ is a random fifth of the pictures with known labels. Here it was drawn
    once for all, and its numbers are a file of the package, `cats_and_dogs_test.npz`: the numbers
    0 .. 12,499 of each animal were sorted by random bits of Philox, keyed by (0, animal), and the
    first 2,500 are held back. A picture whose pixels are those of an earlier
    one (cats before dogs, by number) is left out, so that none is in both halves; `source` counts
    them.

    References
    ----------
    .. [1] Elson, Douceur, Howell, Saul, "Asirra: a CAPTCHA that exploits interest-aligned manual
       image categorization", ACM CCS 2007.
    .. [2] Sander, Ablin, Blondel, Peyré, "Sinkformers: transformers with doubly stochastic
       attention", AISTATS 2022, section 5.

    Examples
    --------
    >>> from wflow import nets
    >>> images = nets.data.cats_and_dogs()  # doctest: +SKIP
    >>> images.train_images.shape, images.classes  # doctest: +SKIP
    (torch.Size([19994, 3, 96, 96]), 2)
    """
    pixels = whole(pixels, "pixels", 1)
    if pixels > 1024:
        raise InputError(f"pixels is {pixels}: expected at most 1024, for all pictures are kept")
    with _pictures(folder) as (source, pictures):
        return _loaded(source, pictures, pixels)


def _loaded(source: Path, pictures: dict[Key, ArchiveFile], pixels: int) -> Images:
    held_back = _held_back()
    # Slots of all pictures in the order of their keys: rows of the two halves. What is empty or a
    # repetition is closed up in the end, in place.
    slots = np.where(held_back, held_back.cumsum(), (~held_back).cumsum()) - 1
    halves = [
        np.empty((int(part.sum()), 3, pixels, pixels), np.uint8) for part in (~held_back, held_back)
    ]
    digests: list[bytes | None] = [None] * (2 * _EACH)
    broken: list[str] = []
    for (label, place), (name, _, read) in pictures.items():
        k = label * _EACH + place
        try:
            picture = _decoded(read(), pixels)
        except _DAMAGED as error:
            broken.append(f"{name} ({error or type(error).__name__})")
            continue
        halves[int(held_back[k])][slots[k]] = picture
        digests[k] = hashlib.blake2b(picture.tobytes(), digest_size=16).digest()
    absent = digests.count(None) - len(broken)
    check_lost(source, "pictures", 2 * _EACH, broken, absent)
    kept = np.array([digest is not None for digest in digests])
    first = {digest: k for k, digest in reversed(list(enumerate(digests)))}
    kept &= [first[digest] == k for k, digest in enumerate(digests)]
    repeated = 2 * _EACH - digests.count(None) - int(kept.sum())
    labels = (np.arange(2 * _EACH) >= _EACH).astype(np.uint8)
    parts: list[tuple[Tensor, Tensor]] = []
    for half, part in zip(halves, (~held_back, held_back), strict=True):
        rows = np.flatnonzero(kept[part])
        for new, old in enumerate(rows):
            if new < old:
                half[new] = half[old]
        parts.append((torch.from_numpy(half[: len(rows)]), torch.from_numpy(labels[part][rows])))
    train, test = parts
    mean, std = _moments(train[0].numpy())
    again = f", {repeated} repeated ones left out" if repeated else ""
    return Images(
        *train,
        *test,
        source=f"cats and dogs ({source.name}, {pixels} x {pixels}): {len(train[1]):,} training "
        f"pictures, {len(test[1]):,} test pictures{again}",
        mean=mean,
        std=std,
        classes=2,
    )


def _held_back() -> NDArray[np.bool_]:
    """Return which pictures are for tests, cats before dogs: a fifth of each, (2 * _EACH,)."""
    held = np.zeros((2, _EACH), bool)
    for label, numbers in enumerate(held_back_numbers()):
        held[label, numbers] = True
    return held.ravel()


def held_back_numbers() -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return the numbers of the pictures that are for tests, ascending, of cats and of dogs."""
    content = files("wflow.nets.data").joinpath("cats_and_dogs_test.npz").read_bytes()
    with np.load(io.BytesIO(content)) as stored:
        return stored["cats"], stored["dogs"]


def _decoded(data: bytes, pixels: int) -> NDArray[np.uint8]:
    """Decode a picture of any format that Pillow knows: (3, pixels, pixels)."""
    try:
        image = Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        raise ValueError("of no known format") from None
    with image:
        colours = image.convert("RGB")
    if colours.size != (pixels, pixels):
        colours = colours.resize((pixels, pixels), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(colours).transpose(2, 0, 1))


def _moments(images: NDArray[np.uint8]) -> tuple[float, float]:
    """Return mean and standard deviation of all pixels in [0, 1], to four digits."""
    counts = np.zeros(256, np.int64)
    for image in images:  # picture by picture: NumPy counts in int64
        counts += np.bincount(image.ravel(), minlength=256)
    total, values = max(1, int(counts.sum())), np.arange(256) / 255
    mean = float(counts @ values) / total
    std = math.sqrt(float(counts @ (values - mean) ** 2) / total)
    return round(mean, 4), max(round(std, 4), 1e-4)


# Which files they are
# --------------------


@contextmanager
def _pictures(
    folder: str | os.PathLike[str] | None,
) -> Iterator[tuple[Path, dict[Key, ArchiveFile]]]:
    """Yield the place of the pictures and all pictures, in their stored order."""
    advice = "get train.zip of https://www.kaggle.com/c/dogs-vs-cats"
    for path in found("cats and dogs", _CANDIDATES, folder, advice):
        if path.name == _PREPARED:
            with open(path, "rb") as file:
                check_digest(path, hashlib.file_digest(file, "sha256").hexdigest(), _SHA256)
        with files_of(path, inner=_INNER) as given:
            pictures = _chosen(path, given)
            if pictures:
                yield path, pictures
                return
    raise InputError(f"{path}: holds no pictures of the names cat.N.jpg and dog.N.jpg; {advice}")


def _chosen(path: Path, given: Sequence[ArchiveFile]) -> dict[Key, ArchiveFile]:
    """Select the files that are pictures of cats and dogs, in their order."""
    chosen = {}
    for file in given:
        if match := _NAME.search(file.name):
            number = int(match[2])
            if number >= _EACH:
                raise InputError(f"{path}: holds {file.name}; expected numbers 0 .. {_EACH - 1}")
            chosen[int(match[1].lower() == "dog"), number] = file
    return chosen
