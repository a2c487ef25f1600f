"""Random changes of the inputs of a training, each a function of (seed, step) alone.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from wflow._core.checks import number, whole
from wflow._core.errors import InputError
from wflow.nets.checks import listed, tensor
from wflow.nets.data.batches import Purpose, bits

_TRIES = 10  # as in torchvision


@dataclass(frozen=True)
class RandomCrops:
    r"""Random parts of pictures, resized to the whole, and mirrored at random [1]_.

    A function of (seed, step) alone: the same step has the same crops in a resumed training.

    Parameters
    ----------
    seed : int, default 0
        Integer >= 0.
    scale : tuple of float, default (0.08, 1.0)
        Least and largest area of a crop, as shares of the picture.
    ratio : tuple of float, default (0.75, 4 / 3)
        Least and largest ratio of its width to its height.
    flip : float, default 0.5
        Probability with which a crop is mirrored, left to right; below 1.

    Raises
    ------
    InputError
        For shares, ratios and numbers out of range.

    Notes
    -----
    With :math:`a` uniform on `scale` and :math:`\log r` uniform on the logarithms of `ratio`, a
    crop of a picture of width :math:`W` and height :math:`H` has

    .. math:: w = \sqrt{a r W H}, \qquad h = \sqrt{a W H / r}.

    The first of ten draws that fits is taken, at a place uniform over those where it fits; if none
    does, the largest crop in the middle whose ratio is allowed. The crop is resized by bilinear
    interpolation. All this is as in torchvision, whose crops begin and end at whole pixels; these
    do not.

    References
    ----------
    .. [1] Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> crops = nets.data.RandomCrops(seed=1)
    >>> crops(torch.rand(4, 3, 8, 8), 0).shape
    torch.Size([4, 3, 8, 8])
    """

    seed: int = 0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole(self.seed, "seed", 0))
        object.__setattr__(self, "scale", _range(self.scale, "scale", "two shares", 1))
        object.__setattr__(self, "ratio", _range(self.ratio, "ratio", "two ratios"))
        if not 0 <= number(self.flip, "flip") <= 1:
            raise InputError(f"flip is {self.flip}: expected a probability, 0 to 1")

    def boxes(self, n: int, step: int, size: tuple[int, int]) -> NDArray[np.float64]:
        """Draw the crops of a step.

        Parameters
        ----------
        n : int
            Number of pictures.
        step : int
            Number of the step, from 0.
        size : tuple of int
            Rows and columns of the pictures.

        Returns
        -------
        ndarray, shape (n, 4)
            Left, top, right and bottom of each, as shares of width and height; left exceeds right
            where the crop is mirrored.

        Raises
        ------
        InputError
            For numbers out of range.
        """
        generator = np.random.Generator(bits(self.seed, Purpose.AUGMENT, whole(step, "step", 0)))
        u = generator.random((whole(n, "n", 0), 2 * _TRIES + 3))
        low, high = self.scale
        area = low + (high - low) * u[:, :_TRIES]
        least, most = np.log(self.ratio)
        shape = np.exp(least + (most - least) * u[:, _TRIES : 2 * _TRIES])  # (n, tries)
        sides = [whole(side, "a side of size") for side in listed(size, "size")]
        if len(sides) != 2:
            raise InputError(f"size has {len(sides)} entries: expected (rows, columns)")
        whole_ratio = sides[1] / sides[0]
        width = np.sqrt(area * shape / whole_ratio)  # shares of the width
        height = np.sqrt(area / shape * whole_ratio)
        fits = (width <= 1) & (height <= 1)
        first = np.arange(len(u)), fits.argmax(1)
        allowed = float(np.clip(whole_ratio, *self.ratio))
        none = ~fits.any(1)
        w = np.where(none, min(1.0, allowed / whole_ratio), width[first])
        h = np.where(none, min(1.0, whole_ratio / allowed), height[first])
        left, top = (1 - w) * np.where(none, 0.5, u[:, -3]), (1 - h) * np.where(none, 0.5, u[:, -2])
        mirrored = u[:, -1] < self.flip
        ends = np.where(mirrored, left + w, left), np.where(mirrored, left, left + w)
        return np.stack([ends[0], top, ends[1], top + h], axis=1)

    def __call__(self, images: Tensor, step: int) -> Tensor:
        """Crop and mirror pictures.

        Parameters
        ----------
        images : Tensor, shape (n, channels, rows, columns)
            Pictures, floating point.
        step : int
            Number of the step, from 0.

        Returns
        -------
        Tensor, shape (n, channels, rows, columns)
            A crop of each, resized to its picture.

        Raises
        ------
        InputError
            For another shape, integers, or a step below 0.
        """
        tensor(images, "images", "real")
        if images.dim() != 4:
            raise InputError(
                f"images have shape {tuple(images.shape)}; expected (n, channels, rows, columns)"
            )
        rows, columns = images.shape[2:]
        left, top, right, bottom = self.boxes(len(images), step, (rows, columns)).T
        # x of a pixel at s in [-1, 1] of the crop is (right - left) s + (left + right - 1).
        zero = np.zeros_like(left)
        maps = np.stack(
            [right - left, zero, left + right - 1, zero, bottom - top, top + bottom - 1], axis=1
        ).reshape(-1, 2, 3)
        matrices = torch.from_numpy(maps).to(images.device, images.dtype)
        grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


@dataclass(frozen=True)
class RandomPoses:
    r"""Clouds of points, turned about the third axis and stretched along each axis at random.

    The augmentation of the code on which the experiment of [1]_ builds. A function of (seed, step)
    alone: the same step has the same poses in a resumed training.

    Parameters
    ----------
    seed : int, default 0
        Integer >= 0.
    turn : float, default 0.1
        Largest angle in units of pi, 0 to 1, to either side.
    stretch : tuple of float, default (0.8, 1.25)
        Least and largest factor, above 0.

    Raises
    ------
    InputError
        For numbers out of range.

    Notes
    -----
    A row :math:`x` of the cloud becomes :math:`x R(\pi a) \mathrm{diag}(s_1, s_2, s_3)` with
    :math:`R` the rotation by an angle, :math:`a` uniform in [-turn, turn], and :math:`s_k` uniform
    on `stretch`.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.1.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> nets.data.RandomPoses(seed=1)(torch.rand(4, 10, 3), 0).shape
    torch.Size([4, 10, 3])
    """

    seed: int = 0
    turn: float = 0.1
    stretch: tuple[float, float] = (0.8, 1.25)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole(self.seed, "seed", 0))
        if not 0 <= number(self.turn, "turn") <= 1:
            raise InputError(f"turn is {self.turn}: expected an angle in units of pi, 0 to 1")
        object.__setattr__(self, "stretch", _range(self.stretch, "stretch", "two factors"))

    def __call__(self, points: Tensor, step: int) -> Tensor:
        """Turn and stretch clouds.

        Parameters
        ----------
        points : Tensor, shape (n, points, 3)
            Clouds, floating point; zeros, which fill small clouds, stay zeros.
        step : int
            Number of the step, from 0.

        Returns
        -------
        Tensor, shape (n, points, 3)
            Each cloud in another pose.

        Raises
        ------
        InputError
            For another shape or type, or a step below 0.
        """
        tensor(points, "points", "real")
        if points.dim() != 3 or points.shape[2] != 3:
            raise InputError(f"points have shape {tuple(points.shape)}; expected (n, points, 3)")
        generator = np.random.Generator(bits(self.seed, Purpose.POSES, whole(step, "step", 0)))
        u = generator.random((len(points), 4))
        angle = self.turn * np.pi * (2 * u[:, 0] - 1)
        c, s, zero, one = np.cos(angle), np.sin(angle), np.zeros_like(angle), np.ones_like(angle)
        turns = np.stack([c, s, zero, -s, c, zero, zero, zero, one], 1).reshape(-1, 3, 3)
        low, high = self.stretch
        factors = low + (high - low) * u[:, None, 1:]
        turned = points @ torch.from_numpy(turns).to(points.device, points.dtype)
        return turned * torch.from_numpy(factors).to(points.device, points.dtype)


def _range(ends: object, name: str, expected: str, most: float = math.inf) -> tuple[float, ...]:
    """Check two numbers above 0 in increasing order."""
    given = tuple(number(value, name) for value in listed(ends, name))
    if len(given) != 2 or not 0 < given[0] <= given[1] <= most:
        bound = f" and at most {most:g}" if most < math.inf else ""
        raise InputError(
            f"{name} is {ends}: expected {expected}, the smaller one first, above 0{bound}"
        )
    return given
