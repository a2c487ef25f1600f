"""Perturbations of inputs, for the robustness tests of [OTT] (Table 3).

Each function acts on what it is given and is a pure function of it and the seed. One seed at two
levels gives the same noise, scaled (images), or nested sets of what is hit (tokens, points), so
that a curve over levels compares like with like.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499.
"""

import math
from typing import Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import check_choice, number, whole
from wflow._core.errors import InputError
from wflow.nets.checks import tensor
from wflow.nets.data.batches import Purpose, bits


def gaussian_noise(images: Tensor, level: float, seed: int = 0) -> Tensor:
    """Add independent Gaussian noise to every pixel: x + level z, z standard normal.

    Nothing is clipped. The level is in the units of the images. Given images in [0, 1], as from
    `unit`, it is a fraction of the range of grey values (Gonzalez and Woods, Digital Image
    Processing, chapter 5, which [1]_ follows); given normalised ones, a multiple of the data's
    standard deviation, on MNIST 0.3081 of that. [1]_ does not say which its Table 3 means.

    Parameters
    ----------
    images : Tensor
        Images of any shape, floating point.
    level : float
        Standard deviation, >= 0.
    seed : int, default 0
        Integer >= 0.

    Returns
    -------
    Tensor
        Images of the same shape, type and device.

    Raises
    ------
    InputError
        For images of integers (use `unit` first), a level or a seed out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Table 3.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> images = torch.full((1, 2, 2), 0.5)
    >>> nets.data.gaussian_noise(images, 0.1, seed=1).shape
    torch.Size([1, 2, 2])
    """
    shape = _check_images(images)
    z = np.random.Generator(bits(seed, Purpose.GAUSS)).standard_normal(shape)
    return images + number(level, "level", 0) * _like(z, images)


def uniform_noise(images: Tensor, level: float, seed: int = 0) -> Tensor:
    """Add independent uniform noise to every pixel: x + level u, u uniform on [-1, 1].

    Its standard deviation is level / sqrt(3). Nothing is clipped; units as in `gaussian_noise`.

    Parameters
    ----------
    images : Tensor
        Images of any shape, floating point.
    level : float
        Half the width of the noise, >= 0.
    seed : int, default 0
        Integer >= 0.

    Returns
    -------
    Tensor
        Images of the same shape, type and device.

    Raises
    ------
    InputError
        As `gaussian_noise`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> images = torch.full((1, 2, 2), 0.5)
    >>> nets.data.uniform_noise(images, 0.1, seed=1).shape
    torch.Size([1, 2, 2])
    """
    shape = _check_images(images)
    u = 2 * np.random.Generator(bits(seed, Purpose.UNIFORM)).random(shape) - 1
    return images + number(level, "level", 0) * _like(u, images)


def replace_tokens(tokens: Tensor, rate: float, vocabulary: int, seed: int = 0) -> Tensor:
    """Replace each token with probability `rate` by another one, uniform over the others [1]_.

    A replaced token always differs from the original: the rate is that of actual changes.

    Parameters
    ----------
    tokens : Tensor
        Token numbers in 0 .. vocabulary - 1, of any shape.
    rate : float
        Probability, 0 to 1.
    vocabulary : int
        Number of different tokens, >= 2.
    seed : int, default 0
        Integer >= 0.

    Returns
    -------
    Tensor
        Tokens of the same shape, type and device.

    Raises
    ------
    InputError
        For tokens outside the vocabulary, and numbers out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.5, Table 3 (text), where the tokens are the
       characters of the test text.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> tokens = torch.zeros(1000, dtype=torch.int64)
    >>> int((nets.data.replace_tokens(tokens, 0.1, vocabulary=5) > 0).sum())
    110
    """
    vocabulary, rate = whole(vocabulary, "vocabulary", 2), _rate(rate)
    tensor(tokens, "tokens", "whole")
    old = tokens.detach().cpu().numpy().astype(np.int64)
    if old.size and (old.min() < 0 or old.max() >= vocabulary):
        raise InputError(
            f"tokens reach from {old.min()} to {old.max()}; expected 0 to {vocabulary - 1}: give "
            "the vocabulary that the text was encoded with"
        )
    generator = np.random.Generator(bits(seed, Purpose.REPLACE))
    hit = generator.random(old.shape) < rate
    shift = generator.integers(1, vocabulary, old.shape)
    new = np.where(hit, (old + shift) % vocabulary, old)
    return torch.from_numpy(new).to(tokens.device, tokens.dtype)


@overload
def drop_points(clouds: Tensor, rate: float, seed: int = ..., *, mask: None = ...) -> Tensor: ...
@overload
def drop_points(
    clouds: Tensor, rate: float, seed: int = ..., *, mask: Tensor
) -> tuple[Tensor, Tensor]: ...


def drop_points(
    clouds: Tensor, rate: float, seed: int = 0, *, mask: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Remove a fraction of the points of each cloud at random [1]_; the others keep their order.

    Of n points n - round(rate n) stay, at least one. Without a mask n is the same in every cloud.

    Parameters
    ----------
    clouds : Tensor, shape (clouds, points, features)
        Point clouds of at least one point.
    rate : float
        Fraction, 0 to 1.
    seed : int, default 0
        Integer >= 0.
    mask : Tensor, shape (clouds, points), optional
        True where a point is there, at least one of a cloud.

    Returns
    -------
    Tensor, shape (clouds, points that stay, features)
        Clouds of the same type and device; with a mask they are padded behind to the largest of
        them, and the mask of the points that stay is returned, too.

    Raises
    ------
    InputError
        For another shape, an empty cloud, a rate or a seed out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.5, Table 3 (point clouds).

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> nets.data.drop_points(torch.rand(2, 10, 3), 0.3).shape
    torch.Size([2, 7, 3])
    """
    count, points, features = _cloud_shape(clouds)
    rate = _rate(rate)
    there = np.ones((count, points), dtype=bool) if mask is None else _present(mask, clouds)
    sizes = there.sum(1)
    stay = np.maximum(1, sizes - np.rint(rate * sizes).astype(np.int64))
    keys = bits(seed, Purpose.DROP).random_raw(count * points).reshape(count, points)
    drawn = np.lexsort((keys, ~there), axis=1)  # by the keys, absent ones last
    kept = np.zeros((count, points), dtype=bool)
    np.put_along_axis(kept, drawn, np.arange(points) < stay[:, None], 1)
    front = np.argsort(~kept, axis=1, kind="stable")[:, : stay.max(initial=1)]
    rows = torch.from_numpy(front).to(clouds.device)
    left = clouds.gather(1, rows[:, :, None].expand(-1, -1, features))
    if mask is None:
        return left
    return left, torch.from_numpy(np.take_along_axis(kept, front, 1)).to(clouds.device)


def rotate_points(
    clouds: Tensor, angle: float, seed: int = 0, *, about: Literal["random", "third"] = "random"
) -> Tensor:
    """Rotate each cloud by an angle about an axis through the origin.

    Parameters
    ----------
    clouds : Tensor, shape (clouds, points, 3)
        Point clouds, floating point.
    angle : float
        Angle in radians.
    seed : int, default 0
        Integer >= 0.
    about : {"random", "third"}
        An axis for each cloud, uniform on the sphere; or the third one, to the left or to the right
        at random: it turns points of the plane with another feature.

    Returns
    -------
    Tensor, shape (clouds, points, 3)
        Clouds of the same type and device. One seed at two angles has the same axes.

    Raises
    ------
    InputError
        For another shape or type, an angle that is not finite, or a seed out of range.

    Examples
    --------
    >>> import math, torch
    >>> from wflow import nets
    >>> turned = nets.data.rotate_points(torch.eye(3)[None], math.pi, about="third")
    >>> turned[0].round().diagonal().tolist()
    [-1.0, -1.0, 1.0]
    """
    check_choice("about", about, ("random", "third"))
    tensor(clouds, "clouds", "real")
    count, _, features = _cloud_shape(clouds)
    if features != 3:
        raise InputError(f"clouds have {features} features; expected 3 coordinates")
    angle = number(angle, "angle")
    draw = np.random.Generator(bits(seed, Purpose.ROTATE))
    if about == "third":
        axes = np.zeros((count, 3))
        axes[:, 2] = np.where(draw.random(count) < 0.5, -1.0, 1.0)
    else:
        axes = draw.standard_normal((count, 3))
        axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    x, y, z = (torch.from_numpy(axes[:, k, None]).to(clouds.device, clouds.dtype) for k in range(3))
    axis = torch.stack([x, y, z], 2)  # (clouds, 1, 3)
    cross = torch.linalg.cross(axis.expand_as(clouds), clouds, dim=2)
    along = (axis * clouds).sum(2, keepdim=True) * axis
    return along + math.cos(angle) * (clouds - along) + math.sin(angle) * cross


def _cloud_shape(clouds: Tensor) -> tuple[int, int, int]:
    tensor(clouds, "clouds", "number")
    if clouds.dim() != 3 or clouds.shape[1] == 0:
        raise InputError(
            f"clouds have shape {tuple(clouds.shape)}; expected (clouds, points, features)"
        )
    count, points, features = clouds.shape
    return count, points, features


def _present(mask: Tensor, clouds: Tensor) -> NDArray[np.bool_]:
    tensor(mask, "mask", "bool")
    if mask.shape != clouds.shape[:2]:
        raise InputError(
            f"the mask has shape {tuple(mask.shape)}; expected {tuple(clouds.shape[:2])}"
        )
    there: NDArray[np.bool_] = mask.cpu().numpy()
    if not there.any(1).all():
        raise InputError("a cloud has no point that the mask says is there; leave it out")
    return there


def _check_images(images: Tensor) -> tuple[int, ...]:
    if not isinstance(images, Tensor):
        raise InputError(f"images are {type(images).__name__}; expected a tensor")
    if not images.is_floating_point():
        raise InputError(
            f"images are {images.dtype}; expected floating point: use unit(images) first"
        )
    return tuple(tensor(images, "images", "real").shape)


def _like(noise: NDArray[np.float64], images: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(noise)).to(images.device, images.dtype)


def _rate(rate: float) -> float:
    if number(rate, "rate", 0) > 1:
        raise InputError(f"rate is {rate}: expected a number from 0 to 1")
    return float(rate)
