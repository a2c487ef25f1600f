"""Batches as a pure function of (seed, step), so that a resumed or parallel run sees the same."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import function, number, positive, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import beyond
from wflow.nets.checks import tensor
from wflow.nets.data.token_files import TokenFile

# Purposes of random numbers: equal seeds give independent numbers for different purposes.
ORDER, CROPS, SPLIT, GAUSS, UNIFORM, REPLACE, DROP, TRAIN, VALIDATION, TEST = range(10)
BUCKETS = 32
AUGMENT = 20


def bits(seed: int, purpose: int, place: int = 0) -> np.random.Philox:
    """Random bits keyed by (seed, purpose, place): Philox, the same with every NumPy."""
    return np.random.Philox(np.random.SeedSequence([whole(seed, "seed", 0), purpose, place]))


def permutation(n: int, seed: int, purpose: int, place: int = 0) -> NDArray[np.int64]:
    """A random order of 0 .. n - 1, keyed by (seed, purpose, place).

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
    if not isinstance(images, Tensor):
        raise InputError(f"images are {type(images).__name__}; expected a tensor")
    if images.dtype == torch.uint8:
        return images.to(torch.float32) / 255
    if not images.is_floating_point():
        raise InputError(f"images are {images.dtype}; expected uint8, or floating point in [0, 1]")
    return images


class ImageBatches:
    """Batches of images in a new random order in each epoch; called with a step, it gives one.

    Epoch e visits the images in an order drawn from (seed, e), `per_epoch` batches long. The few
    that are left over at its end, fewer than a batch, are dropped: every step then has the same
    number of images, none of them twice, and another order drops others.

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
        self.batch = whole(batch, "batch", 1)
        if self.batch > len(images):
            raise InputError(f"batch is {batch}: expected at most {len(images)}, all images")
        self.seed = whole(seed, "seed", 0)
        self.mean, self.std = number(mean, "mean"), positive(std, "std")
        self.augment = None if augment is None else function(augment, "augment")
        self._order: tuple[int, NDArray[np.int64]] | None = None  # of the last epoch used

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch: whole batches in the data."""
        return len(self.images) // self.batch

    def rows(self, step: int) -> NDArray[np.int64]:
        """Draw the numbers of the images of a step.

        Parameters
        ----------
        step : int
            Number of the step, from 0.

        Returns
        -------
        ndarray, shape (batch,)
            Numbers of the images.

        Raises
        ------
        InputError
            For a step below 0.
        """
        epoch, place = divmod(whole(step, "step", 0), self.per_epoch)
        kept = self._order
        if kept is None or kept[0] != epoch:
            kept = epoch, permutation(len(self.images), self.seed, ORDER, epoch)
            self._order = kept
        return kept[1][place * self.batch : (place + 1) * self.batch]

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a step.

        Parameters
        ----------
        step : int
            Integer >= 0; step // per_epoch is the epoch.

        Returns
        -------
        tuple of Tensor
            Images (batch, channels, H, W), normalised, float32 if they were bytes; labels (batch,),
            int64.
        """
        return self._take(torch.from_numpy(self.rows(step)), step)

    def evaluation(self, batch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All images once, in their own order.

        Parameters
        ----------
        batch : int, optional
            Images at a time, >= 1; None takes that of training.

        Returns
        -------
        iterator of tuple of Tensor
            Images and labels as from a step; the last ones may be fewer.

        Raises
        ------
        InputError
            For a batch below 1.
        """
        size = self.batch if batch is None else whole(batch, "batch", 1)
        return (self._take(slice(k, k + size)) for k in range(0, len(self.images), size))

    def _take(self, rows: Tensor | slice, step: int | None = None) -> tuple[Tensor, Tensor]:
        images = unit(self.images[rows])
        if images.dim() == 3:
            images = images.unsqueeze(1)  # (batch, 1, H, W)
        if self.augment is not None and step is not None:
            images = self.augment(images, step)
        return (images - self.mean) / self.std, self.labels[rows].to(torch.int64)


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
        """Inputs and targets of a step: crops that begin at places drawn from (seed, step).

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
            self.tokens.expect(self._begin(step + 1), length)
        else:
            crops = self.tokens[begin[:, None] + torch.arange(length)].to(torch.int64)
        return crops[:, :-1], crops[:, 1:]

    def _begin(self, step: int) -> Tensor:
        """Where the crops of a step begin: (batch,)."""
        places = len(self.tokens) - self.context  # where a crop and one more token still fit
        raw = bits(self.seed, CROPS, step).random_raw(self.batch)
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
