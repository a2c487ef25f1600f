"""Data for the network studies: MNIST, digits, tiny Shakespeare; batches and perturbations.

Loaders take files from `folder`, from the folder that the environment variable WFLOW_DATA names,
or from a download that is kept in the user's cache; the contents of every file are checked against
their SHA-256 first. `digits` and `embedded_text` need no file at all.

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

from wflow._core.checks import check_choice, path_of, whole
from wflow._core.errors import InputError
from wflow._core.files import read_file
from wflow.nets.data.batches import CropBatches, ImageBatches, Purpose, permutation, unit, windows
from wflow.nets.data.download import DataFile, obtain, unpacked
from wflow.nets.data.perturb import drop_points, gaussian_noise, replace_tokens, uniform_noise
from wflow.nets.data.tokenize import BytePairs, Characters, Occurring, Tokenizer
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


def _mnist_file(name: str, sha256: str) -> DataFile:
    """Return a file by its published name, by torchvision's, and with the dot of some mirrors."""
    dotted = name.replace("-idx", ".idx")
    others = (f"MNIST/raw/{name}", f"raw/{name}", f"mnist/{dotted}", dotted)
    return DataFile(f"mnist/{name}", sha256, tuple(f"{m}{name}.gz" for m in _MNIST), others)


_TRAIN = (
    _mnist_file(
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _mnist_file(
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
)
_TEST = (
    _mnist_file(
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _mnist_file(
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
# Third byte of the header of an IDX file -> element type, the highest byte first.
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_SHUFFLED = 10_000  # training digits at the beginning of the file that `mnist_order` shuffles
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

    Parameters
    ----------
    train_images : Tensor, shape (n, H, W) or (n, 3, H, W)
        Values 0 to 255 of the training images, grey or red, green and blue, uint8.
    train_labels : Tensor, shape (n,)
        Labels 0 to ``classes - 1``, uint8.
    test_images : Tensor, shape (m, H, W) or (m, 3, H, W)
        Test images likewise.
    test_labels : Tensor, shape (m,)
        Their labels.
    source : str
        Which data this is, and how many images: for tables and figures.
    mean, std : float
        Mean and standard deviation of the training pixels in [0, 1], for `ImageBatches`.
    classes : int, default 10
        Number of different labels.

    Examples
    --------
    >>> from wflow import nets
    >>> images = nets.data.digits()
    >>> images.train_images.shape, images.classes
    (torch.Size([1437, 8, 8]), 10)
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

    Parameters
    ----------
    train, test : Tensor, shape (n,)
        Token numbers, int64; the test part is the last tenth of the characters.
    tokenizer : Tokenizer
        Maps between text and numbers.
    source : str
        Which text, which tokens, and how many: for tables and figures.

    Examples
    --------
    >>> from wflow import nets
    >>> text = nets.data.embedded_text()
    >>> text.decode(text.train[:23])
    'From fairest creatures '
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
        """Return the token numbers of a text.

        Parameters
        ----------
        text : str
            Text of the vocabulary.

        Returns
        -------
        Tensor, shape (n,)
            Token numbers, int64.
        """
        return self.tokenizer.encode(text)

    def decode(self, tokens: Tensor) -> str:
        """Return the text of token numbers.

        Parameters
        ----------
        tokens : Tensor, shape (n,)
            Token numbers.

        Returns
        -------
        str
            The text.
        """
        return self.tokenizer.decode(tokens)

    def compact(self) -> "Text":
        """Return the text with the vocabulary of the tokens that occur in its two parts.

        The tokens get new numbers, in their order. A network with fewer classes is smaller and
        faster; texts with other tokens cannot be encoded then.

        Returns
        -------
        Text
            The same text with a smaller vocabulary.
        """
        tokenizer = Occurring(self.tokenizer, torch.cat([self.train, self.test]))
        return Text(
            tokenizer.renumber(self.train),
            tokenizer.renumber(self.test),
            tokenizer,
            f"{self.source}, of which {tokenizer.vocabulary:,} occur",
        )


def mnist(*, folder: Folder = None, digits: int | None = None) -> Images:
    """Load handwritten digits of MNIST [1]_: 28 x 28, 60,000 for training and 10,000 for tests.

    Parameters
    ----------
    folder : str or path-like, optional
        Folder that holds the four IDX files, compressed by gzip or not, or a folder `mnist` or
        `MNIST/raw` (torchvision's) with them. By default the folder that the environment variable
        WFLOW_DATA names, the cache, then a download of about 12 MB.
    digits : int, optional
        Number of training digits, at most 60,000: the first of them in the order of `mnist_order`.
        By default all of them, in the order of the file.

    Returns
    -------
    Images
        Mean and standard deviation are those of all 60,000 training digits: 0.1307 and 0.3081.

    Raises
    ------
    InputError
        For a missing or corrupt file, a download that fails, or a number out of range; the message
        says what to do.

    References
    ----------
    .. [1] LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document
       recognition", Proceedings of the IEEE 86 (1998).

    Examples
    --------
    >>> from wflow import nets
    >>> images = nets.data.mnist(digits=10_000)  # doctest: +SKIP
    >>> images.train_images.shape  # doctest: +SKIP
    torch.Size([10000, 28, 28])
    """
    wanted = None if digits is None else whole(digits, "digits", 1)
    files = (*_TRAIN, *_TEST)
    contents = obtain("MNIST", files, folder)
    arrays = [parse_idx(data, file.name) for data, file in zip(contents, files, strict=True)]
    every, test = len(arrays[0]), len(arrays[2])
    which = f"{every:,}"
    if wanted is not None:
        if wanted > every:
            raise InputError(f"digits is {digits}: expected at most {every:,}, all of them")
        rows = mnist_order(arrays[1])[:wanted]
        arrays[:2] = arrays[0][rows], arrays[1][rows]
        which = f"{wanted:,} of the {every:,}"
    return _images(
        *arrays,
        source=f"MNIST: {which} training digits, {test:,} test digits",
        mean=0.1307,
        std=0.3081,
    )


def mnist_order(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the order in which `mnist` takes a part of the training digits.

    The first 10,000 digits of the file, sorted by label, are shuffled; the others follow in the
    order of the file. The shuffle is that of ``numpy.random.default_rng(0).permutation(10_000)``,
    written out here: NumPy promises the same random bits for every version, and not the same
    permutations.

    Parameters
    ----------
    labels : ndarray, shape (n,)
        Labels of the training digits, in the order of the file.

    Returns
    -------
    ndarray, shape (n,)
        Their numbers in the file.
    """
    head = np.argsort(labels[:_SHUFFLED], kind="stable")
    raw = np.random.PCG64(0).random_raw(2 * len(head) + 64)  # about three times what is needed
    words = iter(raw.astype("<u8").view("<u4").tolist())
    for last in range(len(head) - 1, 0, -1):  # Fisher and Yates, each place drawn by rejection
        mask = (1 << last.bit_length()) - 1
        place = next(word & mask for word in words if word & mask <= last)
        head[[last, place]] = head[[place, last]]
    return np.concatenate([head, np.arange(len(head), len(labels))])


def read_idx(path: str | os.PathLike[str], *, dims: int | None = None) -> NDArray[Any]:
    """Read an array from an IDX file, gzip-compressed or not.

    The file holds two zero bytes, one byte for the type of the elements, one byte for the number k
    of dimensions, k sizes as unsigned 32-bit numbers, then the elements in C order; the highest
    byte of every number comes first [1]_.

    Parameters
    ----------
    path : str or path-like
        The file.
    dims : int, optional
        Number of dimensions that is expected; by default any.

    Returns
    -------
    ndarray
        Array of the sizes and the type that the header names, in the byte order of this machine.

    Raises
    ------
    InputError
        For a file that cannot be read, another format, an unknown element type, another number of
        dimensions, or elements that are too few or too many; the message names the file.

    References
    ----------
    .. [1] LeCun, Cortes, Burges, "The MNIST database of handwritten digits" (1998), section "File
       formats".

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from wflow import nets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "pair")
    ...     _ = path.write_bytes(bytes([0, 0, 0x08, 1, 0, 0, 0, 2, 3, 255]))
    ...     nets.data.read_idx(path).tolist()
    [3, 255]
    """
    dims = None if dims is None else whole(dims, "dims", 1)
    data = read_file(path_of(path, "path"), "an IDX file")
    array = parse_idx(unpacked(data, str(path)), str(path))
    if dims is not None and array.ndim != dims:
        raise InputError(f"{path}: has {array.ndim} dimensions; expected {dims}")
    return array


def parse_idx(data: bytes, name: str) -> NDArray[Any]:
    """Convert the uncompressed bytes of an IDX file to an array; messages call it `name`."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES or not data[3]:
        raise InputError(
            f"{name}: begins with the bytes {data[:4].hex(' ') or 'of an empty file'}; expected an "
            "IDX file, which begins with 00 00, the code of a type and a number of dimensions"
        )
    dtype, begin = np.dtype(TYPES[data[2]]), 4 + 4 * data[3]
    shape = [int.from_bytes(data[k : k + 4], "big") for k in range(4, begin, 4)]
    try:
        elements = np.frombuffer(data, dtype, offset=begin)
        return elements.astype(dtype.newbyteorder("=")).reshape(shape)
    except ValueError:
        raise InputError(
            f"{name}: the header names an array of shape {tuple(shape)}, {dtype.itemsize} bytes "
            f"each, and {len(data) - begin} bytes follow it; the file is cut off or damaged: get "
            "it again"
        ) from None


def digits() -> Images:
    """Load the 8 x 8 digits that ship with scikit-learn: 1,437 for training, 360 for tests.

    Grey values 0 to 16 become 0 to 255. The split is drawn at random once and for all: every fifth
    image of each digit is held back.

    Returns
    -------
    Images
        The digits [1]_.

    Raises
    ------
    InputError
        Where scikit-learn is missing.

    References
    ----------
    .. [1] Alpaydin, Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning
       Repository (1998), test part.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.data.digits().source
    'scikit-learn digits, 8 x 8: 1,437 training digits, 360 test digits'
    """
    data = optional_module("sklearn.datasets", "the handwritten digits").load_digits()
    order = permutation(len(data.images), 0, Purpose.SPLIT)
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
    """Load tiny Shakespeare: 1,115,394 characters of Shakespeare's plays, 65 different ones.

    Parameters
    ----------
    tokens : {"characters", "gpt2"}
        Characters, a vocabulary of 65; or the byte pairs of GPT-2, a vocabulary of 50,257, each
        part encoded for itself, which needs the package tokenizers.
    folder : str or path-like, optional
        Folder that holds tinyshakespeare.txt, and for "gpt2" encoder.json and vocab.bpe (or a
        folder `gpt2-bpe` with them). By default the folder that the environment variable
        WFLOW_DATA names, the cache, then a download.

    Returns
    -------
    Text
        The text [1]_.

    Raises
    ------
    InputError
        For another word than these two, a missing or corrupt file, a download that fails, or a
        missing package.

    References
    ----------
    .. [1] Karpathy, "The unreasonable effectiveness of recurrent neural networks" (2015).

    Examples
    --------
    >>> from wflow import nets
    >>> nets.data.shakespeare().vocabulary  # doctest: +SKIP
    65
    """
    check_choice("tokens", tokens, ("characters", "gpt2"))
    text = obtain("tiny Shakespeare", [_SHAKESPEARE], folder)[0].decode("utf-8")
    if tokens == "characters":
        return _text(text, Characters(text), "tiny Shakespeare", "characters")
    return _text(text, BytePairs(*gpt2_pairs(folder)), "tiny Shakespeare", "GPT-2 byte pairs")


def gpt2_pairs(folder: Folder = None) -> tuple[bytes, bytes]:
    """Return contents of encoder.json and vocab.bpe of GPT-2; `folder` as for `shakespeare`."""
    encoder, merges = obtain("the GPT-2 vocabulary", _GPT2, folder)
    return encoder, merges


def embedded_text() -> Text:
    """Return 32 sonnets of Shakespeare, 19,571 characters, which ship with the package.

    They let every study of text run without a download. The sonnets (1609, modern spelling) are in
    the public domain; the characters are a subset of the 65 of tiny Shakespeare, numbered
    separately.

    Returns
    -------
    Text
        Its tokens are characters.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.data.embedded_text().vocabulary
    59
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
