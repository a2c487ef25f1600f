"""Data for the network studies: MNIST, digits, tiny Shakespeare; batches and perturbations.

Loaders take files from `folder`, from the folder that the environment variable WFLOW_DATA names,
from ../shared/data beside a checkout, or from a download that is kept in the user's cache; every
file is checked against its SHA-256 first. `digits` and `embedded_text` need no file at all.

    text = shakespeare()
    batches = CropBatches(
        text.train, context=256, batch=64, seed=1, vocabulary=text.vocabulary
    )
    inputs, targets = batches(step)
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import check_choice, switch
from wflow._core.errors import InputError
from wflow.nets.data.batches import SPLIT, CropBatches, ImageBatches, permutation, unit, windows
from wflow.nets.data.download import DataFile, obtain, parse_idx, read_idx
from wflow.nets.data.perturb import drop_points, gaussian_noise, replace_tokens, uniform_noise
from wflow.nets.data.tokenize import BytePairs, Characters, Tokenizer
from wflow.sphere.embeddings import optional_module

__all__ = [
    "BytePairs",
    "Characters",
    "CropBatches",
    "ImageBatches",
    "Images",
    "Text",
    "Tokenizer",
    "digits",
    "drop_points",
    "embedded_text",
    "gaussian_noise",
    "mnist",
    "read_idx",
    "replace_tokens",
    "shakespeare",
    "uniform_noise",
    "unit",
    "windows",
]

Folder = str | os.PathLike[str] | None

_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def _mnist_file(name: str, sha256: str, *mirrors: str) -> DataFile:
    return DataFile(f"mnist/{name}", sha256, tuple(mirror + name for mirror in mirrors))


_TEST = (
    _mnist_file(
        "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        *_MNIST,
    ),
    _mnist_file(
        "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        *_MNIST,
    ),
)
_TRAIN = (
    _mnist_file(
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        *_MNIST,
    ),
    _mnist_file(
        "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        *_MNIST,
    ),
)
# A shuffled sixth of the official training digits, part of the shared data of the project.
_TRAIN_10K = (
    _mnist_file(
        "train10k-images-idx3-ubyte.gz",
        "63e6f244548f663ea6c799b7cdd5c1de55d4c7e7b7bdf356199325aa3a1f3214",
    ),
    _mnist_file(
        "train10k-labels-idx1-ubyte.gz",
        "dc0656a76c374f8d3404aed548d2956aaa103bb189b8d129a8fcdb572a625f6b",
    ),
)
_SHAKESPEARE = DataFile(
    "tinyshakespeare.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
)
_BLOB = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
_GPT2 = (
    DataFile(
        "gpt2-bpe/encoder.json",
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
        (_BLOB + "encoder.json",),
    ),
    DataFile(
        "gpt2-bpe/vocab.bpe",
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
        (_BLOB + "vocab.bpe",),
    ),
)
_SONNETS = Path(__file__).with_name("_sonnets.txt")


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images in two parts.

    Attributes
    ----------
    train_images, test_images : uint8 (n, H, W), 0 to 255
    train_labels, test_labels : uint8 (n,), 0 to classes - 1
    source : which data and which files this is, and how many images: for tables and figures
    mean, std : of the training pixels in [0, 1], for `ImageBatches`
    classes : number of different labels
    """

    train_images: Tensor = field(repr=False)
    train_labels: Tensor = field(repr=False)
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    source: str
    mean: float
    std: float
    classes: int = 10


@dataclass(frozen=True, eq=False)
class Text:
    """A text as token numbers, in two parts.

    Attributes
    ----------
    train, test : int64 (n,); the test part is the last tenth of the characters
    tokenizer : maps between text and numbers
    source : which text, which tokens, and how many: for tables and figures
    """

    train: Tensor = field(repr=False)
    test: Tensor = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    source: str

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return self.tokenizer.vocabulary

    def encode(self, text: str) -> Tensor:
        """Token numbers of a text: int64 (n,)."""
        return self.tokenizer.encode(text)

    def decode(self, tokens: Tensor) -> str:
        """The text that token numbers (n,) stand for."""
        return self.tokenizer.decode(tokens)


def mnist(*, folder: Folder = None, full: bool = False) -> Images:
    """Handwritten digits of MNIST: images of 28 x 28, 60,000 for training and 10,000 for tests.

    Where the official training files are found nowhere, `train10k-*` is used in their place: a
    file pair of 10,000 of the training digits. `source` says which it was. Mean and standard
    deviation are those of all 60,000 in both cases: 0.1307 and 0.3081. Source: LeCun, Bottou,
    Bengio, Haffner, "Gradient-based learning applied to document recognition", Proceedings of the
    IEEE 86 (1998).

    Parameters
    ----------
    folder : folder that holds the IDX files (gzip), or a folder `mnist` with them; None looks in
        WFLOW_DATA, ../shared/data, the cache, and downloads (about 12 MB)
    full : never take the 10,000: a download comes before them

    Returns
    -------
    Images

    Raises
    ------
    InputError
        For a missing or corrupt file, or a download that fails; the message says what to do.
    """
    full = switch(full, "full")
    choices = [(*_TRAIN, *_TEST)] if full else [(*_TRAIN, *_TEST), (*_TRAIN_10K, *_TEST)]
    files = obtain("MNIST", choices, folder)
    arrays = [
        parse_idx(data, str(path), dims=3 if "images" in path.name else 1)
        for data, path in zip(files.contents, files.paths, strict=True)
    ]
    for k in (0, 2):
        _check_pair(arrays[k], arrays[k + 1], files.paths[k : k + 2])
    train, test = len(arrays[0]), len(arrays[2])
    which = f"{train:,} of the 60,000" if files.choice else f"{train:,}"
    names = ", ".join(path.name for path in files.paths)
    return _images(
        *arrays,
        source=f"MNIST: {which} training digits, {test:,} test digits; files {names}",
        mean=0.1307,
        std=0.3081,
    )


def _check_pair(images: NDArray[Any], labels: NDArray[Any], paths: tuple[Path, ...]) -> None:
    """Raise InputError unless these are bytes, and one label of a digit for each image."""
    if images.dtype != np.uint8 or labels.dtype != np.uint8:
        raise InputError(
            f"{paths[0]}, {paths[1]}: hold {images.dtype}, {labels.dtype}; expected bytes"
        )
    if len(images) != len(labels):
        raise InputError(f"{paths[0]} holds {len(images)} images, {paths[1]} {len(labels)} labels")
    if labels.size and labels.max() > 9:
        raise InputError(f"{paths[1]}: holds the label {labels.max()}; expected digits 0 to 9")


def digits() -> Images:
    """Handwritten digits of 8 x 8 that ship with scikit-learn: 1,437 for training, 360 for tests.

    Grey values 0 to 16 become 0 to 255. The split is drawn at random once and for all: every fifth
    image of each digit is held back. Source: the optical recognition of handwritten digits data
    set of the UCI repository (Alpaydin, Kaynak, 1998), its test part.

    Returns
    -------
    Images

    Raises
    ------
    InputError
        Where scikit-learn is missing.
    """
    data = optional_module("sklearn.datasets", "the handwritten digits").load_digits()
    order = permutation(len(data.images), 0, SPLIT)
    by_label = order[np.argsort(data.target[order], kind="stable")]
    held_back = np.isin(order, by_label[::5])
    order = np.concatenate([order[~held_back], order[held_back]])
    images = np.rint(data.images[order] * (255 / 16)).astype(np.uint8)
    labels = data.target[order].astype(np.uint8)
    train = int(np.sum(~held_back))
    pixels = images[:train] / 255
    return _images(
        *(images[:train], labels[:train], images[train:], labels[train:]),
        source=f"scikit-learn digits, 8 x 8: {train:,} training digits, {len(images) - train:,} "
        "test digits",
        mean=round(float(pixels.mean()), 4),
        std=round(float(pixels.std()), 4),
    )


def _images(*arrays: NDArray[Any], source: str, mean: float, std: float) -> Images:
    train_images, train_labels, test_images, test_labels = map(torch.from_numpy, arrays)
    return Images(train_images, train_labels, test_images, test_labels, source, mean, std)


def shakespeare(
    *, tokens: Literal["characters", "gpt2"] = "characters", folder: Folder = None
) -> Text:
    """Tiny Shakespeare: 1,115,394 characters of Shakespeare's plays, 65 different ones.

    Source: Karpathy, "The unreasonable effectiveness of recurrent neural networks" (2015).

    Parameters
    ----------
    tokens : "characters", a vocabulary of 65; "gpt2", the byte pairs of GPT-2, a vocabulary of
        50,257, each part encoded for itself; needs the package tokenizers
    folder : folder that holds tinyshakespeare.txt, and for "gpt2" encoder.json and vocab.bpe (or
        a folder `gpt2-bpe` with them); None looks in WFLOW_DATA, ../shared/data, the cache, and
        downloads

    Returns
    -------
    Text

    Raises
    ------
    InputError
        For another word than these two, a missing or corrupt file, a download that fails, or a
        missing package.
    """
    check_choice("tokens", tokens, ("characters", "gpt2"))
    text = obtain("tiny Shakespeare", [[_SHAKESPEARE]], folder).contents[0].decode("utf-8")
    if tokens == "characters":
        return _text(text, Characters(text), "tiny Shakespeare", "characters")
    encoder, merges = obtain("the GPT-2 vocabulary", [_GPT2], folder).contents
    return _text(text, BytePairs(encoder, merges), "tiny Shakespeare", "GPT-2 byte pairs")


def embedded_text() -> Text:
    """32 sonnets of Shakespeare, 19,571 characters, which ship with the package.

    So that every study of text runs without any download. The sonnets (1609, modern spelling) are
    in the public domain; the characters are a subset of the 65 of tiny Shakespeare, numbered
    separately.

    Returns
    -------
    Text, tokens are characters
    """
    text = _SONNETS.read_text(encoding="utf-8")
    return _text(text, Characters(text), "sonnets of Shakespeare", "characters")


def _text(text: str, tokenizer: Tokenizer, name: str, kind: str) -> Text:
    cut = 9 * len(text) // 10
    train, test = tokenizer.encode(text[:cut]), tokenizer.encode(text[cut:])
    return Text(
        train,
        test,
        tokenizer,
        f"{name}: {len(train):,} training and {len(test):,} test tokens, {kind} (vocabulary "
        f"{tokenizer.vocabulary:,})",
    )
