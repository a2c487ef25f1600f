"""Film reviews of the Large Movie Review Dataset (IMDb), and batches of texts of any length.

The archive is read in a stream, nothing is unpacked onto the disk, and what was read is compared
with one checksum of all 50,000 labelled reviews: it is the same for the official archive and for
one packed otherwise.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499.
"""

import hashlib
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import check_choice, switch, whole
from wflow._core.errors import InputError
from wflow.nets.checks import listed, tensor
from wflow.nets.data.batches import BUCKETS, ORDER, SPLIT, permutation
from wflow.nets.data.download import DataFile, archive

__all__ = ["Reviews", "TextBatches", "imdb"]

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
_MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
_LONGEST = 1 << 17  # bytes of a review; the longest of the data set has 13,704 characters
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
        """How many texts for training stand in the test part, too."""
        test = set(self.test_texts)
        return sum(one in test for one in self.train_texts)


def imdb(
    *, folder: str | os.PathLike[str] | None = None, split: Split = "official", seed: int = 0,
    repeated: bool = False,
) -> Reviews:  # fmt: skip
    """Film reviews of the Large Movie Review Dataset v1.0 [1]_, negative or positive.

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
    repeated : bool, default False
        Some reviews stand in the data more than once. Those for training whose text stands in the
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
        For a missing, truncated or foreign archive, an empty review, one that is not UTF-8 or too
        long (it is named), other reviews than the published ones, and a download that fails.

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
    seed, repeated = whole(seed, "seed", 0), switch(repeated, "repeated")
    path = archive("IMDb (the Large Movie Review Dataset)", _OFFICIAL, folder)
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
        order = permutation(len(names), seed, SPLIT)
        held_back = np.arange(len(names)) >= _JOINED
    return parted(
        [found[names[k]].decode() for k in order],
        [int("/pos/" in names[k]) for k in order],
        held_back,
        f"IMDb, {split} split" + (f" (seed {seed})" if split == "joined" else ""),
        repeated=repeated,
    )


def read_reviews(path: Path) -> dict[str, bytes]:
    """The labelled reviews of an archive by their names; other members are passed over.

    Raises
    ------
    InputError
        For what is no tar archive or is cut off, a review that is there twice, empty, too long or
        not UTF-8, and an archive without any.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|*") as members:
            for member in members:
                name = member.name.removeprefix("./")
                if not (member.isfile() and _MEMBER.fullmatch(name)):
                    continue
                if name in found or member.size > _LONGEST:
                    what = "is there twice" if name in found else f"has {member.size:,} bytes"
                    raise InputError(
                        f"{path}: the review {name} {what}; expected each once, of at most "
                        f"{_LONGEST:,} bytes: get the archive again"
                    )
                stream = members.extractfile(member)
                assert stream is not None  # a regular file
                found[name] = _checked(stream.read(), f"{path}: the review {name}")
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise InputError(
            f"{path}: cannot be read as a tar archive ({error}); it is cut off, damaged or another "
            "file: get it again"
        ) from None
    if not found:
        raise InputError(
            f"{path}: holds no review; expected members such as aclImdb/train/pos/0_9.txt"
        )
    return found


def _checked(data: bytes, name: str) -> bytes:
    try:
        readable = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 ({error}); get the archive again") from None
    if not _BREAK.sub(" ", readable).strip():
        raise InputError(f"{name} is empty; expected a text: get the archive again")
    return data


def digest_of(reviews: dict[str, bytes]) -> str:
    """SHA-256 of reviews by name, in whatever order an archive holds them."""
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
    repeated: bool = False,
) -> Reviews:
    """Reviews in two parts; texts for training that stand in the test part go, or are counted."""
    clean = [" ".join(_BREAK.sub(" ", one).split()) for one in texts]
    test = [k for k in range(len(clean)) if held_back[k]]
    known = {clean[k] for k in test}
    train = [k for k in range(len(clean)) if not held_back[k]]
    fresh = [k for k in train if clean[k] not in known]
    twice = len(train) - len(fresh)
    kept = train if repeated else fresh
    source = (
        f"{name}: {len(kept):,} training and {len(test):,} test reviews; {twice:,} more for "
        "training, whose text is in the test part, are left out"
    )
    if repeated:
        source = (
            f"{name}: {len(kept):,} training and {len(test):,} test reviews; the text of {twice:,} "
            "for training is in the test part, too"
        )

    def part(rows: list[int]) -> tuple[tuple[str, ...], Tensor]:
        return tuple(clean[k] for k in rows), torch.tensor([labels[k] for k in rows])

    return Reviews(*part(kept), *part(test), source)


class TextBatches:
    """Batches of texts of any length, filled up to the longest of a batch; called with a step.

    Epoch e visits the texts in an order drawn from (seed, e), `per_epoch` batches long; the few
    that are left over at its end are dropped, as by `ImageBatches`. Of this order `pool` batches at
    a time are sorted by length and cut into batches anew, so that a batch has texts of about one
    length and little padding; the batches of an epoch come in a random order. A batch is a
    function of the seed and the step alone.

    Parameters
    ----------
    tokens : sequence of Tensor, shapes (n_i,)
        Token ids of each text, integers, none of which is `pad`.
    labels : Tensor, shape (n,)
        Labels, integers.
    batch : int
        Texts per step, 1 to n.
    context : int
        Most tokens of a text; longer ones are cut.
    keep : {"beginning", "end"}
        Which tokens of a longer text are kept.
    pool : int, default 1
        Batches that are sorted by length together; 1 sorts nothing.
    pad : int, default 0
        Token id that fills short texts.
    whole_context : bool, default False
        Fill every batch up to `context`, as the published code of [1]_ does.
    seed : int, default 0
        Integer >= 0.

    Raises
    ------
    InputError
        For a text without tokens (its number is named) or with the id `pad`, shapes or types that
        do not fit, and numbers out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Appendix I.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> texts = [torch.tensor([3, 1, 4]), torch.tensor([1]), torch.tensor([5, 9, 2, 6])]
    >>> batches = nets.data.TextBatches(texts, torch.tensor([1, 0, 1]), batch=3, context=3)
    >>> tokens, labels = next(batches.evaluation())
    >>> tokens.tolist()
    [[1, 0, 0], [3, 1, 4], [5, 9, 2]]
    """

    def __init__(
        self,
        tokens: Sequence[Tensor],
        labels: Tensor,
        *,
        batch: int,
        context: int,
        keep: Literal["beginning", "end"] = "beginning",
        pool: int = 1,
        pad: int = 0,
        whole_context: bool = False,
        seed: int = 0,
    ) -> None:
        check_choice("keep", keep, ("beginning", "end"))
        self.context, self.pad = whole(context, "context"), whole(pad, "pad", 0)
        rows = [_row(one, k, self.pad) for k, one in enumerate(listed(tokens, "tokens"))]
        tensor(labels, "labels", "whole")
        if not rows or labels.shape != (len(rows),):
            raise InputError(
                f"labels are of shape {tuple(labels.shape)}: expected ({len(rows)},), one for each "
                "text, and at least one text"
            )
        rows = [
            one[: self.context] if keep == "beginning" else one[-self.context :] for one in rows
        ]
        self.labels = labels.to(torch.int64)
        self.lengths = torch.tensor([len(one) for one in rows])
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.tokens = torch.cat(rows).to(torch.int32)
        self.batch = whole(batch, "batch")
        if self.batch > len(rows):
            raise InputError(f"batch is {batch}: expected at most {len(rows)}, all texts")
        self.pool, self.seed = whole(pool, "pool"), whole(seed, "seed", 0)
        self.whole_context = switch(whole_context, "whole_context")
        self._order: tuple[int, NDArray[np.int64]] | None = None  # of the last epoch used

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch: whole batches in the data."""
        return len(self.labels) // self.batch

    def rows(self, step: int) -> NDArray[np.int64]:
        """Draw the numbers of the texts of a step.

        Parameters
        ----------
        step : int
            Number of the step, from 0.

        Returns
        -------
        ndarray, shape (batch,)
            Numbers of the texts.

        Raises
        ------
        InputError
            For a step below 0.
        """
        epoch, place = divmod(whole(step, "step", 0), self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self._batches(epoch)
        return self._order[1][place]

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Token ids and labels of a step.

        Parameters
        ----------
        step : int
            Integer >= 0; step // per_epoch is the epoch.

        Returns
        -------
        tuple of Tensor
            Token ids (batch, longest), labels (batch,), int64.
        """
        return self._take(torch.from_numpy(self.rows(step)))

    def evaluation(self, batch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All texts once, the shortest first.

        Parameters
        ----------
        batch : int, optional
            Texts at a time, >= 1; None takes that of training.

        Returns
        -------
        iterator of tuple of Tensor
            Token ids and labels as from a step; the last ones may be fewer.

        Raises
        ------
        InputError
            For a batch below 1.
        """
        size = self.batch if batch is None else whole(batch, "batch")
        order = self.lengths.argsort(stable=True)
        return (self._take(rows) for rows in order.split(size))

    def _batches(self, epoch: int) -> NDArray[np.int64]:
        """Numbers of the texts of an epoch, (per_epoch, batch)."""
        count = self.per_epoch * self.batch
        order = permutation(len(self.labels), self.seed, ORDER, epoch)[:count]
        if self.pool == 1:
            return order.reshape(-1, self.batch)
        lengths, size = self.lengths.numpy(), self.pool * self.batch
        pools = [order[k : k + size] for k in range(0, count, size)]
        pools = [part[np.argsort(lengths[part], kind="stable")] for part in pools]
        batches = np.concatenate(pools).reshape(-1, self.batch)
        return batches[permutation(len(batches), self.seed, BUCKETS, epoch)]

    def _take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        lengths = self.lengths[rows]
        longest = self.context if self.whole_context else int(lengths.max())
        place = torch.arange(longest)
        there = place < lengths[:, None]  # (batch, longest)
        index = (self.starts[rows][:, None] + place).clamp(max=len(self.tokens) - 1)
        tokens = self.tokens[index].to(torch.int64).masked_fill(~there, self.pad)
        return tokens, self.labels[rows]


def _row(tokens: Tensor, number: int, pad: int) -> Tensor:
    """Token ids of one text, checked."""
    tensor(tokens, f"text {number}", "whole")
    if tokens.ndim != 1 or not len(tokens):
        raise InputError(
            f"text {number} has token ids of shape {tuple(tokens.shape)}: expected (n,), with at "
            "least one token; leave empty texts out"
        )
    if (tokens == pad).any():
        raise InputError(f"text {number} has the token id {pad}, which fills short texts")
    return tokens
