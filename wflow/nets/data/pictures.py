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
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from wflow._core.checks import whole
from wflow._core.errors import InputError
from wflow._core.files import opened
from wflow.nets.data.batches import Purpose, permutation
from wflow.nets.data.datasets import Images
from wflow.nets.data.download import VARIABLE, places

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
_LOST = 0.01  # largest share of them that may be missing or broken
_BYTES, _PIXELS = 1 << 26, 1 << 26  # bounds of one picture; the largest published one has 0.8 MB
_BROKEN = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, SyntaxError),
    *(struct.error, zlib.error, zipfile.BadZipFile, Image.DecompressionBombError),
)  # what Pillow and zipfile raise of a damaged picture
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
    The test half of [2]_ is a random fifth of the pictures with known labels. Here it is drawn once
    for all: the numbers 0 .. 12,499 of each animal are sorted by random bits of Philox, keyed by
    (0, animal), and the first 2,500 are held back. A picture whose pixels are those of an earlier
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
    with _pictures(folder) as (source, found):
        return _loaded(source, found, pixels)


class Found(NamedTuple):
    """A picture of an archive."""

    key: Key
    name: str
    read: Callable[[], bytes]


def _loaded(source: Path, found: list[Found], pixels: int) -> Images:
    held_back = _held_back()
    # Slots of all pictures in the order of their keys: rows of the two halves. What is empty or a
    # repetition is closed up in the end, in place.
    slots = np.where(held_back, held_back.cumsum(), (~held_back).cumsum()) - 1
    halves = [
        np.empty((int(part.sum()), 3, pixels, pixels), np.uint8) for part in (~held_back, held_back)
    ]
    digests: list[bytes | None] = [None] * (2 * _EACH)
    broken: list[str] = []
    for (label, place), name, read in found:
        k = label * _EACH + place
        try:
            picture = _decoded(read(), pixels)
        except _BROKEN as error:
            broken.append(f"{name} ({error or type(error).__name__})")
            continue
        halves[int(held_back[k])][slots[k]] = picture
        digests[k] = hashlib.blake2b(picture.tobytes(), digest_size=16).digest()
    _check_lost(source, broken, missing=digests.count(None) - len(broken))
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
    """Which pictures are for tests, cats before dogs: a fifth of each, (2 * _EACH,)."""
    held = np.zeros((2, _EACH), bool)
    for label in range(2):
        held[label, permutation(_EACH, 0, Purpose.SPLIT, label)[: _EACH // 5]] = True
    return held.ravel()


def _decoded(data: bytes, pixels: int) -> NDArray[np.uint8]:
    """A picture of any format that Pillow knows: (3, pixels, pixels)."""
    with Image.open(io.BytesIO(data)) as image:
        if image.width * image.height > _PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels")
        colours = image.convert("RGB")
    if colours.size != (pixels, pixels):
        colours = colours.resize((pixels, pixels), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(colours).transpose(2, 0, 1))


def _moments(images: NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and standard deviation of all pixels in [0, 1], to four digits, from their histogram."""
    counts = np.zeros(256, np.int64)
    for image in images:  # picture by picture: NumPy counts in int64
        counts += np.bincount(image.ravel(), minlength=256)
    total, values = max(1, int(counts.sum())), np.arange(256) / 255
    mean = float(counts @ values) / total
    std = math.sqrt(float(counts @ (values - mean) ** 2) / total)
    return round(mean, 4), max(round(std, 4), 1e-4)


def _check_lost(source: Path, broken: list[str], missing: int) -> None:
    """Refuse pictures of which too many are missing or broken, and warn of a few."""
    if not broken and not missing:
        return
    every = 2 * _EACH
    problems = [f"{missing:,} are missing"] * (missing > 0)
    if broken:
        more = f" and {len(broken) - 5:,} more" if len(broken) > 5 else ""
        problems.append(f"{len(broken):,} cannot be read: {', '.join(broken[:5])}{more}")
    text = f"{source}: of {every:,} pictures {'; '.join(problems)}"
    if len(broken) + missing > _LOST * every:
        raise InputError(f"{text}; expected at most {100 * _LOST:g} % of them: get it again")
    warnings.warn(f"{text}; they are left out", stacklevel=4)


# Archives
# --------


@contextmanager
def _pictures(folder: str | os.PathLike[str] | None) -> Iterator[tuple[Path, list[Found]]]:
    """Where the pictures are, and all of them, in the order in which they lie there."""
    searched = places(folder)
    for place in searched:
        for path in (place / name for name in _CANDIDATES):
            if path.is_dir():
                found = _found(path, {str(file): partial(_contents, file) for file in _below(path)})
                if found:  # else a folder of that name with other things
                    yield path, found
                    return
            elif path.is_file():
                with ExitStack() as stack:
                    archive = _archive(path, stack)
                    members = {
                        info.filename: partial(_member, archive, info)
                        for info in archive.infolist()
                    }
                    found = _found(path, members)
                    if not found:
                        raise InputError(
                            f"{path}: holds no pictures of the names cat.N.jpg and dog.N.jpg"
                        )
                    yield path, found
                return
    raise InputError(
        f"cats and dogs are in no local folder ({', '.join(map(str, searched)) or 'none given'}); "
        f"get train.zip of https://www.kaggle.com/c/dogs-vs-cats, put it into a folder and set "
        f"{VARIABLE} to that folder; expected one of {', '.join(_CANDIDATES)}"
    )


def _below(folder: Path) -> list[Path]:
    """Files of a folder and of the folders in it, in the order of their names."""
    return [path for path in sorted((*folder.glob("*"), *folder.glob("*/*"))) if path.is_file()]


def _archive(path: Path, stack: ExitStack) -> zipfile.ZipFile:
    """Open a zip archive, or the one of the training pictures inside it."""
    expected = "a zip archive of pictures"
    file = stack.enter_context(opened(path, expected))
    if path.name == _PREPARED:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != _SHA256:
            raise InputError(
                f"{path}: its SHA-256 is {digest}, expected {_SHA256}; the file is damaged or "
                "another one, and was left as it is: move it away and get it again"
            )
        file.seek(0)
    try:
        archive = stack.enter_context(zipfile.ZipFile(file))
        if _INNER in archive.namelist():
            inner = stack.enter_context(archive.open(_INNER))
            archive = stack.enter_context(zipfile.ZipFile(inner))
    except _BROKEN as error:
        raise InputError(
            f"{path}: is no whole zip archive ({error}); expected {expected}: get it again"
        ) from None
    return archive


def _found(path: Path, files: Mapping[str, Callable[[], bytes]]) -> list[Found]:
    """Those of the files of an archive that are pictures of cats and dogs, in their order."""
    found: dict[Key, Found] = {}
    for name, read in files.items():
        match = _NAME.search(name)
        if match is None or "__MACOSX" in name:
            continue
        key = int(match[1].lower() == "dog"), int(match[2])
        if key[1] >= _EACH:
            raise InputError(f"{path}: holds {name}; expected the numbers 0 .. {_EACH - 1}")
        if key in found:
            raise InputError(
                f"{path}: holds {found[key].name} and {name}; expected one picture of each number"
            )
        found[key] = Found(key, name, read)
    return list(found.values())


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A file of an archive; its length and checksum are those of the directory."""
    if info.file_size > _BYTES:
        raise ValueError(f"{info.file_size} bytes")
    return archive.read(info)


def _contents(path: Path) -> bytes:
    with opened(path, "a picture") as file:
        data = file.read(_BYTES + 1)
    if len(data) > _BYTES:
        raise ValueError(f"more than {_BYTES} bytes")
    return data
