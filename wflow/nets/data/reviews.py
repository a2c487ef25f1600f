"""Film reviews of the Large Movie Review Dataset (IMDb).

The archive is read in a stream, nothing is unpacked onto the disk, and what was read is compared
with one checksum of all 50,000 labelled reviews: it is the same for the official archive and for
one packed otherwise.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499.
"""

import hashlib
import os
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import check_choice, switch, whole
from wflow._core.errors import InputError
from wflow.nets.data.archives import BROKEN
from wflow.nets.data.batches import Purpose, permutation
from wflow.nets.data.download import DataFile, locate

Split = Literal["official", "joined"]

_OFFICIAL = DataFile(
    "aclImdb_v1.tar.gz",
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
    ("aclImdb_labelled.tar.xz", "aclImdb_v1.tar"),
    packed=True,
)
_HALF = 25_000  # reviews of the official training part, and of the test part
_JOINED = 40_000  # reviews for training in the split of [OTT]
# Of all labelled reviews in the order of their names: name, a zero byte, SHA-256 of the contents.
_DIGEST = "7bf14c2d84905806f8d6e3029790c1018f3bcc7aa5a9f336c90232848c194f59"
_MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
_BREAK = re.compile(r"<br\s*/?>")


@dataclass(frozen=True, eq=False)
class Reviews:
    """Labelled texts in two parts.

    Parameters
    ----------
    train_texts : tuple of str
        Texts for training.
    train_labels : Tensor, shape (n,)
        Their labels: 0 for a negative review, 1 for a positive one, int64.
    test_texts : tuple of str
        Texts for tests.
    test_labels : Tensor, shape (m,)
        Their labels.
    source : str
        Which data this is, and how many reviews: for tables and figures.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> labels = torch.tensor([0, 1])
    >>> few = nets.data.Reviews(("dull", "great"), labels, ("great fun",), labels[1:], "invented")
    >>> few.repeated
    0
    """

    train_texts: tuple[str, ...] = field(repr=False)
    train_labels: Tensor = field(repr=False)
    test_texts: tuple[str, ...] = field(repr=False)
    test_labels: Tensor = field(repr=False)
    source: str

    @property
    def repeated(self) -> int:
        """How many texts of the training part are in the test part, too."""
        test = set(self.test_texts)
        return sum(one in test for one in self.train_texts)


def imdb(
    *, folder: str | os.PathLike[str] | None = None, split: Split = "official", seed: int = 0,
    keep_duplicates: bool = False,
) -> Reviews:  # fmt: skip
    """Load film reviews of the Large Movie Review Dataset v1.0 [1]_, negative or positive.

    Parameters
    ----------
    folder : str or path-like, optional
        Folder that holds aclImdb_v1.tar.gz, or aclImdb_labelled.tar.xz, the same without the
        unlabelled reviews. By default the folder that the environment variable WFLOW_DATA names,
        the cache, then a download of 84 MB.
    split : {"official", "joined"}
        `official`, 25,000 reviews for training and 25,000 for tests, of other films; `joined`, a
        random 40,000 and 10,000 of all of them, as in the experiment of [2]_.
    seed : int, default 0
        Of the random split.
    keep_duplicates : bool, default False
        Some reviews are in the data more than once. Those for training whose text is also in the
        test part are left out, 123 of the official split; True keeps them, as [2]_ does. The test
        part is whole in any case.

    Returns
    -------
    Reviews
        The texts without their HTML line breaks, in the order of their names in the archive, or in
        a random order if joined.

    Raises
    ------
    InputError
        For a missing, truncated or foreign archive, other reviews than the published ones, and a
        download that fails.

    References
    ----------
    .. [1] Maas, Daly, Pham, Huang, Ng, Potts, "Learning word vectors for sentiment analysis", ACL
       2011.
    .. [2] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.3 and Appendix I.

    Examples
    --------
    >>> from wflow import nets
    >>> reviews = nets.data.imdb()  # doctest: +SKIP
    >>> len(reviews.train_texts), len(reviews.test_texts), reviews.repeated  # doctest: +SKIP
    (24877, 25000, 0)
    """
    check_choice("split", split, ("official", "joined"))
    seed, kept = whole(seed, "seed", 0), switch(keep_duplicates, "keep_duplicates")
    (path,) = locate("IMDb (the Large Movie Review Dataset)", [_OFFICIAL], folder)
    found = read_reviews(path)
    digest = digest_of(found)
    if digest != _DIGEST:
        raise InputError(
            f"{path}: holds {len(found):,} reviews with the SHA-256 {digest}, expected "
            f"{2 * _HALF:,} with {_DIGEST}: the archive is damaged or another one; get it again"
        )
    names = sorted(found)
    order: NDArray[np.int64] = np.arange(len(names))
    held_back = np.array([name.startswith("aclImdb/test") for name in names])
    if split == "joined":
        order = permutation(len(names), seed, Purpose.SPLIT)
        held_back = np.arange(len(names)) >= _JOINED
    return parted(
        [found[names[k]].decode() for k in order],
        [int("/pos/" in names[k]) for k in order],
        held_back,
        f"IMDb, {split} split" + (f" (seed {seed})" if split == "joined" else ""),
        keep_duplicates=kept,
    )


def read_reviews(path: Path) -> dict[str, bytes]:
    """Read the labelled reviews of an archive by their names; skip other members.

    Raises
    ------
    InputError
        For what is no tar archive or is cut off.
    """
    found = {}
    try:
        with tarfile.open(path) as members:
            for member in members:
                name = member.name.removeprefix("./")
                if _MEMBER.fullmatch(name) and (contents := members.extractfile(member)):
                    found[name] = contents.read()
    except BROKEN as error:
        raise InputError(
            f"{path}: cannot be read as a tar archive ({error}); it is cut off, damaged or "
            "another file: get it again"
        ) from None
    return found


def digest_of(reviews: dict[str, bytes]) -> str:
    """Return the SHA-256 of reviews by name, in whatever order an archive holds them."""
    total = hashlib.sha256()
    for name in sorted(reviews):
        total.update(name.encode() + b"\0" + hashlib.sha256(reviews[name]).digest())
    return total.hexdigest()


def parted(
    texts: Sequence[str],
    labels: Sequence[int],
    held_back: NDArray[np.bool_],
    name: str,
    *,
    keep_duplicates: bool = False,
) -> Reviews:
    """Divide reviews into two parts; remove or count training texts that are also test texts."""
    clean = [" ".join(_BREAK.sub(" ", one).split()) for one in texts]
    test = [k for k in range(len(clean)) if held_back[k]]
    known = {clean[k] for k in test}
    train = [k for k in range(len(clean)) if not held_back[k]]
    fresh = [k for k in train if clean[k] not in known]
    twice = len(train) - len(fresh)
    kept = train if keep_duplicates else fresh
    source = (
        f"{name}: {len(kept):,} training and {len(test):,} test reviews; {twice:,} more for "
        "training, whose text is in the test part, are left out"
    )
    if keep_duplicates:
        source = (
            f"{name}: {len(kept):,} training and {len(test):,} test reviews; the text of {twice:,} "
            "for training is in the test part, too"
        )

    def part(rows: list[int]) -> tuple[tuple[str, ...], Tensor]:
        return tuple(clean[k] for k in rows), torch.tensor([labels[k] for k in rows])

    return Reviews(*part(kept), *part(test), source)
