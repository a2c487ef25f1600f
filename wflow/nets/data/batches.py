"""Batches as a pure function of (seed, step), so that a resumed or parallel run sees the same."""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum, unique
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import check_choice, function, number, positive, switch, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import beyond
from wflow.nets.checks import listed, tensor
from wflow.nets.data.token_files import TokenFile

# Random numbers
# --------------


@unique
class Purpose(IntEnum):
    """Purpose of random numbers: equal seeds give independent numbers for different purposes.

    The numbers are part of every draw: a new purpose gets a new one, and none is changed.
    """

    ORDER = 0  # of the rows of an epoch
    CROPS = 1  # places in a text
    SPLIT = 2  # into training and test part
    GAUSS = 3  # noise
    UNIFORM = 4
    REPLACE = 5  # tokens
    DROP = 6  # points
    TRAIN = 7  # draws from a density
    VALIDATION = 8
    TEST = 9
    AUGMENT = 20  # crops and flips of pictures
    BUCKETS = 32  # order of batches of about one length
    SURFACE = 40  # points on a surface
    SUBSET = 41  # points of a cloud in a training
    POSES = 42  # turns and stretches of clouds
    SOLIDS = 43
    TEST_SOLIDS = 44
    ROTATE = 45  # axes
    TEST_SUBSET = 46  # points of a cloud in an evaluation


def bits(seed: int, purpose: Purpose, place: int = 0) -> np.random.Philox:
    """Return random bits keyed by (seed, purpose, place): Philox, the same with every NumPy."""
    return np.random.Philox(np.random.SeedSequence([whole(seed, "seed", 0), int(purpose), place]))


def permutation(n: int, seed: int, purpose: Purpose, place: int = 0) -> NDArray[np.int64]:
    """Return a random order of 0 .. n - 1, keyed by (seed, purpose, place).

    It sorts random bits: unlike NumPy's own shuffling these are the same with every version.
    """
    return np.argsort(bits(seed, purpose, place).random_raw(n), kind="stable")


def unit(images: Tensor) -> Tensor:
    """Convert images to float32 in [0, 1]: bytes are divided by 255.

    Floating-point images stay as they are.

    Parameters
    ----------
    images : Tensor
        Images of any shape, uint8 or floating point.

    Returns
    -------
    Tensor
        Images of the same shape.

    Raises
    ------
    InputError
        For any other type.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> nets.data.unit(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    if tensor(images, "images", "number").dtype == torch.uint8:
        return images.to(torch.float32) / 255
    if not images.is_floating_point():
        raise InputError(f"images are {images.dtype}; expected uint8, or floating point in [0, 1]")
    return images


# Rows in epochs
# --------------

Batch = TypeVar("Batch", bound=tuple[Tensor, ...])


class EpochBatches(Generic[Batch]):
    """Batches of the rows of a data set in a new random order in each epoch.

    Epoch e visits the rows in an order drawn from (seed, e), `per_epoch` batches long. The few
    that are left over at its end, fewer than a batch, are dropped: every step then has the same
    number of rows, none of them twice, and another order drops others.

    Parameters
    ----------
    count : int
        Number of rows.
    name : str
        What messages call them.
    batch : int
        Rows per step, 1 to `count`.
    seed : int
        Integer >= 0.
    """

    def __init__(self, count: int, name: str, batch: int, seed: int) -> None:
        self.batch = whole(batch, "batch", 1)
        if self.batch > count:
            raise InputError(f"batch is {batch}: expected at most {count}, all {name}")
        self.seed = whole(seed, "seed", 0)
        self._count = count
        self._order: tuple[int, NDArray[np.int64]] | None = None  # of the last epoch used

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch: whole batches in the data."""
        return self._count // self.batch

    def rows(self, step: int) -> NDArray[np.int64]:
        """Draw the numbers of the rows of a step.

        Parameters
        ----------
        step : int
            Number of the step, from 0; ``step // per_epoch`` is the epoch.

        Returns
        -------
        ndarray, shape (batch,)
            Numbers of the rows: of images, clouds or texts.

        Raises
        ------
        InputError
            For a step below 0.
        """
        epoch, place = divmod(whole(step, "step", 0), self.per_epoch)
        kept = self._order
        if kept is None or kept[0] != epoch:
            kept = self._order = epoch, self._epoch(epoch)
        return kept[1][place]

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step.

        Parameters
        ----------
        step : int
            Integer >= 0.

        Returns
        -------
        tuple of Tensor
            What the class says of a batch, the labels last.
        """
        return self._take(torch.from_numpy(self.rows(step)), step)

    def evaluation(self, batch: int | None = None) -> Iterator[Batch]:
        """Visit all rows once.

        Parameters
        ----------
        batch : int, optional
            Rows at a time, >= 1; None takes that of training.

        Returns
        -------
        iterator of tuple of Tensor
            Batches as from a step, without augmentation: images and clouds in their own order, the
            shortest texts first. The last one may be smaller.

        Raises
        ------
        InputError
            For a batch below 1.
        """
        size = self.batch if batch is None else whole(batch, "batch", 1)
        return (self._take(rows, None) for rows in self._every().split(size))

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return the numbers of the rows of an epoch: (per_epoch, batch)."""
        order = permutation(self._count, self.seed, Purpose.ORDER, epoch)
        return order[: self.per_epoch * self.batch].reshape(-1, self.batch)

    def _every(self) -> Tensor:
        """Return the numbers of all rows in the order of the evaluation."""
        return torch.arange(self._count)

    def _take(self, rows: Tensor, step: int | None) -> Batch:
        """Return tensors of rows; step None is the evaluation."""
        raise NotImplementedError


class ImageBatches(EpochBatches[tuple[Tensor, Tensor]]):
    """Batches of images in a new random order in each epoch; called with a step, it gives one.

    Epoch e visits the images in an order drawn from (seed, e), `per_epoch` batches long. The few
    that are left over at its end, fewer than a batch, are dropped: every step then has the same
    number of images, none of them twice, and another order drops others. A batch is images
    (batch, channels, H, W), normalised, float32 if they were bytes, and labels (batch,), int64.

    Parameters
    ----------
    images : Tensor, shape (n, H, W) or (n, channels, H, W)
        Images, uint8 or floating point in [0, 1].
    labels : Tensor, shape (n,)
        Labels, integers.
    batch : int
        Images per step, 1 to n.
    seed : int, default 0
        Integer >= 0.
    mean, std : float
        Numbers of which (pixel - mean) / std is what a network sees, pixels in [0, 1]; std > 0.
    augment : callable, optional
        Function (images, step) -> images of the same shape, applied to the batches of a training,
        pixels in [0, 1], and not in `evaluation`: a pure function, such as `RandomCrops`.

    Raises
    ------
    InputError
        For shapes or types that do not fit, and numbers out of range.

    Examples
    --------
    >>> from wflow import nets
    >>> images = nets.data.digits()
    >>> batches = nets.data.ImageBatches(
    ...     images.train_images, images.train_labels, batch=50, mean=images.mean, std=images.std
    ... )
    >>> pixels, labels = batches(0)
    >>> pixels.shape, batches.per_epoch
    (torch.Size([50, 1, 8, 8]), 28)
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        batch: int,
        seed: int = 0,
        mean: float = 0.0,
        std: float = 1.0,
        augment: Callable[[Tensor, int], Tensor] | None = None,
    ) -> None:
        tensor(images, "images", "number")
        tensor(labels, "labels", "number")
        if images.dim() not in (3, 4) or len(images) == 0:
            raise InputError(
                f"images have shape {tuple(images.shape)}; expected (n, H, W) or (n, C, H, W)"
            )
        unit(images[:1])
        if labels.shape != images.shape[:1] or not _whole_numbers(labels):
            raise InputError(
                f"labels are {labels.dtype} {tuple(labels.shape)}; expected integers "
                f"({len(images)},), one for each image"
            )
        self.images, self.labels = images, labels
        super().__init__(len(images), "images", batch, seed)
        self.mean, self.std = number(mean, "mean"), positive(std, "std")
        self.augment = None if augment is None else function(augment, "augment")

    def _take(self, rows: Tensor, step: int | None) -> tuple[Tensor, Tensor]:
        images = unit(self.images[rows])
        if images.dim() == 3:
            images = images.unsqueeze(1)  # (batch, 1, H, W)
        if self.augment is not None and step is not None:
            images = self.augment(images, step)
        return (images - self.mean) / self.std, self.labels[rows].to(torch.int64)


class CloudBatches(EpochBatches[tuple[Tensor, ...]]):
    """Batches of clouds in a new random order in each epoch; called with a step, it gives one.

    Epochs are those of `ImageBatches`. Of a cloud with more than `points` points a random subset
    is taken, another one at each step; one with fewer is padded with zeros. A batch is points
    (batch, points, features); where clouds are `padded`, a mask (batch, points), True where a point
    is there; labels (batch,), int64. Which points an evaluation takes depends on the seed and the
    cloud, not on the size of its batches.

    Parameters
    ----------
    clouds : Tensor, shape (n, most, features)
        Points, floating point.
    counts : Tensor, shape (n,)
        Number of points of each cloud, 1 to most, integers.
    labels : Tensor, shape (n,)
        Labels, integers.
    batch : int
        Clouds per step, 1 to n.
    points : int, optional
        Number of points that are taken of a cloud; None takes all of them.
    seed : int, default 0
        Integer >= 0.
    fixed_subset : bool, default False
        Take the same places in all clouds, at every step and in evaluations. The code does so on
        which the experiment of [1]_ builds.
    augment : callable, optional
        Function (points, step) -> points of the same shape, applied to the batches of a training
        and not in `evaluation`: a pure function, such as `RandomPoses`.

    Raises
    ------
    InputError
        For shapes or types that do not fit, a cloud without points, and numbers out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.1.

    Examples
    --------
    >>> from wflow import nets
    >>> clouds = nets.data.solids(train=24, test=12, points=32)
    >>> batches = nets.data.CloudBatches(
    ...     clouds.train_points, clouds.train_counts, clouds.train_labels, batch=8, points=20
    ... )
    >>> points, labels = batches(0)
    >>> points.shape, batches.per_epoch
    (torch.Size([8, 20, 3]), 3)
    """

    def __init__(
        self,
        clouds: Tensor,
        counts: Tensor,
        labels: Tensor,
        *,
        batch: int,
        points: int | None = None,
        seed: int = 0,
        fixed_subset: bool = False,
        augment: Callable[[Tensor, int], Tensor] | None = None,
    ) -> None:
        tensor(clouds, "clouds", "real")
        if clouds.dim() != 3 or not clouds.numel():
            raise InputError(
                f"clouds have shape {tuple(clouds.shape)}; expected (n, points, features)"
            )
        most = clouds.shape[1]
        for name, values in (("counts", counts), ("labels", labels)):
            tensor(values, name, "whole")
            if values.shape != clouds.shape[:1]:
                raise InputError(
                    f"{name} have shape {tuple(values.shape)}; expected ({len(clouds)},), one for "
                    "each cloud"
                )
        least, largest = (int(end) for end in counts.aminmax())
        if least < 1 or largest > most:
            raise InputError(
                f"counts reach from {least} to {largest}; expected 1 to {most}, the points that "
                "are stored: leave empty clouds out"
            )
        self.clouds, self.counts, self.labels = clouds, counts, labels
        super().__init__(len(clouds), "clouds", batch, seed)
        self.points = most if points is None else min(whole(points, "points", 1), most)
        self.fixed_subset = switch(fixed_subset, "fixed_subset")
        self.augment = None if augment is None else function(augment, "augment")

    @property
    def padded(self) -> bool:
        """Whether some cloud has too few points, so that batches have masks."""
        return bool((self.counts < self.points).any())

    def _take(self, rows: Tensor, step: int | None) -> tuple[Tensor, ...]:
        points, counts = self.clouds[rows], self.counts[rows]
        if self.points < points.shape[1]:
            places = self._places(rows, counts, step)[:, :, None]
            points = points.gather(1, places.expand(-1, -1, points.shape[2]))
        if self.augment is not None and step is not None:
            points = self.augment(points, step)
        labels = self.labels[rows].to(torch.int64)
        if not self.padded:
            return points, labels
        return points, torch.arange(self.points) < counts[:, None], labels

    def _places(self, rows: Tensor, counts: Tensor, step: int | None) -> Tensor:
        """Return the places of the points that are taken of clouds: (rows, points), ascending."""
        most = self.clouds.shape[1]
        if self.fixed_subset:
            keys = np.tile(self._keys(Purpose.SUBSET, 0, most), (len(rows), 1))
        elif step is None:
            own = [self._keys(Purpose.TEST_SUBSET, int(row), most) for row in rows]
            keys = np.stack(own)
        else:
            keys = self._keys(Purpose.SUBSET, step, len(rows) * most).reshape(-1, most)
        keys[np.arange(most) >= counts.numpy()[:, None]] = np.iinfo(np.uint64).max
        # Partitions may differ between versions of NumPy, what lies left of them does not.
        kept = np.argpartition(keys, self.points - 1, axis=1)[:, : self.points]
        return torch.from_numpy(np.sort(kept, axis=1))

    def _keys(self, purpose: Purpose, place: int, count: int) -> NDArray[np.uint64]:
        """Return random numbers below the largest one, which absent points have."""
        return bits(self.seed, purpose, place).random_raw(count) >> np.uint64(1)


class TextBatches(EpochBatches[tuple[Tensor, Tensor]]):
    """Batches of texts of any length, filled up to the longest of a batch; called with a step.

    Epochs are those of `ImageBatches`. Of the order of an epoch `bucket` batches at a time are
    sorted by length and cut into batches again, so that a batch has texts of about one length and
    little padding; the batches of an epoch come in a random order. A batch is token ids
    (batch, longest) and labels (batch,), int64, a function of the seed and the step alone.

    Parameters
    ----------
    tokens : sequence of Tensor, shapes (n_i,)
        Token ids of each text, integers, none of which is `pad`.
    labels : Tensor, shape (n,)
        Labels, integers.
    batch : int
        Texts per step, 1 to n.
    context : int
        Most tokens of a text.
    truncate : {"end", "beginning"}
        Where a longer text is cut off.
    bucket : int, default 1
        Batches that are sorted by length together; 1 sorts nothing.
    pad : int, default 0
        Token id that fills short texts.
    pad_to_context : bool, default False
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
        truncate: Literal["end", "beginning"] = "end",
        bucket: int = 1,
        pad: int = 0,
        pad_to_context: bool = False,
        seed: int = 0,
    ) -> None:
        check_choice("truncate", truncate, ("end", "beginning"))
        self.context, self.pad = whole(context, "context"), whole(pad, "pad", 0)
        rows = [_row(one, k, self.pad) for k, one in enumerate(listed(tokens, "tokens"))]
        tensor(labels, "labels", "whole")
        if not rows or labels.shape != (len(rows),):
            raise InputError(
                f"labels are of shape {tuple(labels.shape)}: expected ({len(rows)},), one for each "
                "text, and at least one text"
            )
        kept = slice(self.context) if truncate == "end" else slice(-self.context, None)
        rows = [one[kept] for one in rows]
        self.labels = labels.to(torch.int64)
        self.lengths = torch.tensor([len(one) for one in rows])
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.tokens = torch.cat(rows).to(torch.int32)
        super().__init__(len(rows), "texts", batch, seed)
        self.bucket = whole(bucket, "bucket")
        self.pad_to_context = switch(pad_to_context, "pad_to_context")

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        order = super()._epoch(epoch)
        if self.bucket == 1:
            return order
        lengths, flat, size = self.lengths.numpy(), order.ravel(), self.bucket * self.batch
        parts = [flat[k : k + size] for k in range(0, len(flat), size)]
        sorted_ = [part[np.argsort(lengths[part], kind="stable")] for part in parts]
        batches = np.concatenate(sorted_).reshape(order.shape)
        return batches[permutation(len(batches), self.seed, Purpose.BUCKETS, epoch)]

    def _every(self) -> Tensor:
        return self.lengths.argsort(stable=True)

    def _take(self, rows: Tensor, step: int | None) -> tuple[Tensor, Tensor]:
        lengths = self.lengths[rows]
        longest = self.context if self.pad_to_context else int(lengths.max())
        place = torch.arange(longest)
        there = place < lengths[:, None]  # (batch, longest)
        index = (self.starts[rows][:, None] + place).clamp(max=len(self.tokens) - 1)
        tokens = self.tokens[index].to(torch.int64).masked_fill(~there, self.pad)
        return tokens, self.labels[rows]


def _row(tokens: Tensor, number: int, pad: int) -> Tensor:
    """Check the token ids of one text."""
    tensor(tokens, f"text {number}", "whole")
    if tokens.ndim != 1 or not len(tokens):
        raise InputError(
            f"text {number} has token ids of shape {tuple(tokens.shape)}: expected (n,), with at "
            "least one token; leave empty texts out"
        )
    if (tokens == pad).any():
        raise InputError(f"text {number} has the token id {pad}, which fills short texts")
    return tokens


# Texts
# -----


class CropBatches:
    """Random crops of a text with the same crops moved on by one token; called with a step.

    Parameters
    ----------
    tokens : Tensor, shape (n,), or TokenFile
        The text, integers, n > context; of a file only the crops are read, and the disk fetches
        those of the next step meanwhile.
    context : int
        Tokens in a crop, >= 1.
    batch : int
        Crops per step, >= 1.
    seed : int, default 0
        Integer >= 0.
    vocabulary : int, optional
        Tokens must lie in 0 .. vocabulary - 1, which is checked here, once: on a GPU no network
        looks at them, and one beyond its vocabulary ends the process. None checks nothing.

    Raises
    ------
    InputError
        For tokens of another shape or type or beyond the vocabulary, a text that is too short,
        numbers out of range.

    Examples
    --------
    >>> from wflow import nets
    >>> text = nets.data.embedded_text()
    >>> batches = nets.data.CropBatches(text.train, context=16, batch=4, vocabulary=text.vocabulary)
    >>> inputs, targets = batches(0)
    >>> inputs.shape, bool((inputs[:, 1:] == targets[:, :-1]).all())
    (torch.Size([4, 16]), True)
    """

    def __init__(
        self,
        tokens: Tensor | TokenFile,
        *,
        context: int,
        batch: int,
        seed: int = 0,
        vocabulary: int | None = None,
    ) -> None:
        self.tokens, self.context = _text(tokens, context, vocabulary)
        self.batch, self.seed = whole(batch, "batch", 1), whole(seed, "seed", 0)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step: crops at places drawn from (seed, step).

        Parameters
        ----------
        step : int
            Integer >= 0.

        Returns
        -------
        tuple of Tensor
            Inputs (batch, context), targets (batch, context), int64; targets[:, i] is the token
            that follows inputs[:, i] in the text.
        """
        begin, length = self._begin(whole(step, "step", 0)), self.context + 1
        if isinstance(self.tokens, TokenFile):
            crops = self.tokens.crops(begin, length)
            self.tokens.prefetch(self._begin(step + 1), length)
        else:
            crops = self.tokens[begin[:, None] + torch.arange(length)].to(torch.int64)
        return crops[:, :-1], crops[:, 1:]

    def _begin(self, step: int) -> Tensor:
        """Return where the crops of a step begin: (batch,)."""
        places = len(self.tokens) - self.context  # where a crop and one more token still fit
        raw = bits(self.seed, Purpose.CROPS, step).random_raw(self.batch)
        return torch.from_numpy((raw % np.uint64(places)).astype(np.int64))


def windows(
    tokens: Tensor | TokenFile, *, context: int, batch: int = 1, vocabulary: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cover a text by windows that do not overlap, in order: the evaluation of a language model.

    Tokens 1 to n - 1 are each a target exactly once. A mean over the text weighs each pair by the
    number of its targets, since the last window is shorter.

    Parameters
    ----------
    tokens : Tensor, shape (n,), or TokenFile
        The text, integers, n >= 2; a file is read as the windows are asked for.
    context : int
        Tokens in a window, >= 1; a shorter text is one shorter window.
    batch : int, default 1
        Windows at a time, >= 1.
    vocabulary : int, optional
        As for `CropBatches`.

    Returns
    -------
    iterator of tuple of Tensor
        Inputs and targets, int64 (b, context) with b <= batch; at the end (1, r) with r < context
        for what is left over.

    Raises
    ------
    InputError
        For tokens of another shape or type or beyond the vocabulary, a text of fewer than two
        tokens, numbers out of range.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> [targets.tolist() for _, targets in nets.data.windows(torch.arange(6), context=3)]
    [[[1, 2, 3]], [[4, 5]]]
    """
    context = whole(context, "context", 1)
    tokens, _ = _text(tokens, 1, vocabulary)
    return _windows(tokens, context, whole(batch, "batch", 1))


def _windows(
    tokens: Tensor | TokenFile, context: int, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    full = (len(tokens) - 1) // context  # whole windows
    for first in range(0, full, batch):
        last = min(first + batch, full)
        part = tokens[first * context : last * context + 1].to(torch.int64)
        yield part[:-1].view(-1, context), part[1:].view(-1, context)
    rest = tokens[full * context :].to(torch.int64)
    if len(rest) > 1:
        yield rest[None, :-1], rest[None, 1:]


def _text(
    tokens: Tensor | TokenFile, context: int, vocabulary: int | None
) -> tuple[Tensor | TokenFile, int]:
    context = whole(context, "context", 1)
    if not isinstance(tokens, TokenFile):
        tensor(tokens, "tokens", "number")
        if tokens.dim() != 1 or not _whole_numbers(tokens):
            raise InputError(
                f"tokens are {tokens.dtype} {tuple(tokens.shape)}; expected integers (n,)"
            )
    if len(tokens) <= context:
        raise InputError(
            f"the text has {len(tokens)} tokens; expected more than the context, {context}: take a "
            "longer text or a smaller context"
        )
    if vocabulary is not None and isinstance(tokens, TokenFile):
        if whole(vocabulary, "vocabulary") != tokens.vocabulary:
            raise InputError(
                f"the file holds tokens of a vocabulary of {tokens.vocabulary:,}: expected "
                f"{vocabulary:,}; was it prepared for another network?"
            )
    elif vocabulary is not None and isinstance(tokens, Tensor):
        wrong = beyond(tokens, whole(vocabulary, "vocabulary"))
        if wrong is not None:
            raise InputError(
                f"the text holds token {wrong}: expected 0 .. {vocabulary - 1}; was it encoded for "
                "another network?"
            )
    return tokens, context


def _whole_numbers(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
