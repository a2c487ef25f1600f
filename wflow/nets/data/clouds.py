"""Clouds of points with labels in two parts, and MNIST as sets of pixels.

Clouds of different sizes are padded to one, and batches carry a mask that says which points are
there.

    clouds = mnist_clouds(digits=10_000)
    batches = CloudBatches(
        clouds.train_points, clouds.train_counts, clouds.train_labels, batch=64, points=128, seed=1
    )
    points, mask, labels = batches(step)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import check_choice
from wflow._core.errors import InputError
from wflow.nets.checks import tensor
from wflow.nets.data.datasets import Folder, mnist


@dataclass(frozen=True, eq=False)
class PointClouds:
    """Labelled clouds of points in two parts.

    Parameters
    ----------
    train_points : Tensor, shape (n, most, features)
        Points of the training clouds, float32; those beyond the count of a cloud are zeros.
    train_counts : Tensor, shape (n,)
        Number of points of each cloud, 1 to most, int64.
    train_labels : Tensor, shape (n,)
        Labels 0 to ``len(names) - 1``, int64.
    test_points, test_counts, test_labels : Tensor
        Test clouds likewise.
    names : tuple of str
        Names of the classes.
    source : str
        Which data this is, and how many clouds: for tables and figures.

    Examples
    --------
    >>> from wflow import nets
    >>> clouds = nets.data.solids(train=24, test=12, points=32)
    >>> clouds.train_points.shape, len(clouds.names)
    (torch.Size([24, 32, 3]), 12)
    """

    train_points: Tensor = field(repr=False)
    train_counts: Tensor = field(repr=False)
    train_labels: Tensor = field(repr=False)
    test_points: Tensor = field(repr=False)
    test_counts: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    names: tuple[str, ...]
    source: str


def standardised(clouds: Tensor, *, centre: Literal["centroid", "scalar"] = "centroid") -> Tensor:
    r"""Move and scale each cloud to mean zero and standard deviation one.

    Parameters
    ----------
    clouds : Tensor, shape (n, points, features)
        Clouds of which all points are there.
    centre : {"centroid", "scalar"}
        What is subtracted: the mean of the points; or one number, the mean of all coordinates. The
        code on which the experiment of [1]_ builds does the latter, which leaves a part of the
        place of a cloud.

    Returns
    -------
    Tensor, shape (n, points, features)
        :math:`(x - m) / s` with the centre :math:`m`, and the root :math:`s` of the mean square of
        all coordinates of :math:`x - m`. A cloud of one place becomes zeros.

    Raises
    ------
    InputError
        For another shape or type, or coordinates that are not finite.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.1.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> nets.data.standardised(torch.tensor([[[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]]])).squeeze()
    tensor([[-1.7321,  0.0000],
            [ 0.0000,  0.0000],
            [ 1.7321,  0.0000]])
    """
    check_choice("centre", centre, ("centroid", "scalar"))
    tensor(clouds, "clouds", "real")
    if clouds.dim() != 3 or not clouds.numel():
        raise InputError(f"clouds have shape {tuple(clouds.shape)}; expected (n, points, features)")
    if not clouds.isfinite().all():
        raise InputError("clouds hold coordinates that are not finite; leave such clouds out")
    moved = clouds - clouds.mean(1 if centre == "centroid" else (1, 2), keepdim=True)
    scale = moved.square().mean((1, 2), keepdim=True).sqrt()
    return torch.where(scale > 0, moved / scale, torch.zeros_like(moved))


# Digits as sets
# --------------


def mnist_clouds(*, folder: Folder = None, digits: int | None = None) -> PointClouds:
    """Load the digits of MNIST as sets of points: the pixels that are not zero.

    Parameters
    ----------
    folder : str or path-like, optional
        As for `mnist`.
    digits : int, optional
        As for `mnist`.

    Returns
    -------
    PointClouds
        A point is (x, y, grey): x = (column - 13.5)/7 to the right and y = (13.5 - row)/7 up, which
        reach from -1.93 to 1.93, and the grey value in (0, 1].

    Raises
    ------
    InputError
        As `mnist`.

    Examples
    --------
    >>> from wflow import nets
    >>> clouds = nets.data.mnist_clouds(digits=1000)  # doctest: +SKIP
    >>> clouds.train_points.shape[2], int(clouds.train_counts.min())  # doctest: +SKIP
    (3, 55)
    """
    images = mnist(folder=folder, digits=digits)
    return PointClouds(
        *pixel_sets(images.train_images),
        images.train_labels.long(),
        *pixel_sets(images.test_images),
        images.test_labels.long(),
        tuple("0123456789"),
        f"{images.source}, as sets of pixels",
    )


def pixel_sets(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return points (n, most, 3) and counts (n,) of the pixels of images (n, H, W) that are > 0.

    Raises
    ------
    InputError
        For an image without such a pixel.
    """
    rows, columns = images.shape[1:]
    flat = images.flatten(1)
    counts = (flat > 0).sum(1)
    if not counts.all():
        raise InputError(f"image {int((counts == 0).nonzero()[0])} is empty: expected some pixels")
    most = int(counts.max())
    place = (flat == 0).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    x = (place % columns - (columns - 1) / 2) / 7
    y = ((rows - 1) / 2 - place // columns) / 7
    points = torch.stack([x, y, flat.gather(1, place) / 255], 2).to(torch.float32)
    return points * (torch.arange(most) < counts[:, None])[:, :, None], counts


def of_arrays(arrays: Sequence[NDArray[Any]], names: tuple[str, ...], source: str) -> PointClouds:
    """Return the clouds of the six arrays of `PointClouds`, in their order."""
    a, b, c, d, e, f = (torch.from_numpy(array) for array in arrays)
    return PointClouds(a, b, c, d, e, f, names, source)
