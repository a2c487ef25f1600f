"""Densities in the plane on which flows are compared: samples, and fresh batches for the trainer.

A density is a function of uniform numbers u (n, 4) and normal numbers z (n, 2), one row for each
point: the first points of a seed are the same however many are drawn. Scales are those of the toy
data of FFJORD, which OT-Flow and later flows use, in a box of about [-4, 4]^2.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core import memory
from wflow._core.checks import check_choice, whole
from wflow.nets.data.batches import Purpose, bits

FloatArray = NDArray[np.float64]
Density = Callable[[FloatArray, FloatArray], FloatArray]


def _polar(radius: FloatArray, angle: FloatArray) -> FloatArray:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _one_of(u: FloatArray, count: int) -> FloatArray:
    """Return random numbers 0 .. count - 1 with equal probabilities, from uniform u."""
    return np.floor(count * u)


def _moons(u: FloatArray, z: FloatArray) -> FloatArray:
    x = _polar(np.ones(len(u)), np.pi * u[:, 1])
    upper = u[:, :1] < 0.5
    x = np.where(upper, x, [1.0, 0.5] - x)
    return 2 * (x + 0.1 * z) + [-1.0, -0.2]


def _rings(u: FloatArray, z: FloatArray) -> FloatArray:
    radius = (1 + _one_of(u[:, 0], 4)) / 4
    return 3 * _polar(radius, 2 * np.pi * u[:, 1]) + 0.08 * z


def _two_spirals(u: FloatArray, z: FloatArray) -> FloatArray:
    angle = 3 * np.pi * np.sqrt(u[:, 1])
    x = _polar(angle, np.pi - angle) + 0.5 * u[:, 2:4]
    sign = np.where(u[:, :1] < 0.5, 1.0, -1.0)
    return sign * x / 3 + 0.1 * z


def _eight_gaussians(u: FloatArray, z: FloatArray) -> FloatArray:
    centres = _polar(np.full(len(u), 4.0), np.pi / 4 * _one_of(u[:, 0], 8))
    return (centres + 0.5 * z) / np.sqrt(2)


def _checkerboard(u: FloatArray, z: FloatArray) -> FloatArray:
    first = 4 * u[:, 0] - 2
    second = u[:, 1] - 2 * _one_of(u[:, 2], 2) + np.floor(first) % 2
    return 2 * np.stack([first, second], axis=1)


def _swiss_roll(u: FloatArray, z: FloatArray) -> FloatArray:
    angle = 1.5 * np.pi * (1 + 2 * u[:, 0])
    return (_polar(angle, angle) + z) / 5


def _pinwheel(u: FloatArray, z: FloatArray) -> FloatArray:
    along, across = 1 + 0.3 * z[:, 0], 0.1 * z[:, 1]
    angle = 2 * np.pi / 5 * _one_of(u[:, 0], 5) + 0.25 * np.exp(along)
    cos, sin = np.cos(angle), np.sin(angle)
    return 2 * np.stack([along * cos - across * sin, along * sin + across * cos], axis=1)


def _cross(u: FloatArray, z: FloatArray) -> FloatArray:
    length = -np.log1p(-u[:, 1]) * np.where(u[:, 2] < 0.5, -1.0, 1.0)
    along = np.stack([u[:, 0] < 0.5, u[:, 0] >= 0.5], axis=1)
    return length[:, None] * along + 0.05 * z


PLANAR: dict[str, Density] = {
    "moons": _moons,
    "rings": _rings,
    "two_spirals": _two_spirals,
    "eight_gaussians": _eight_gaussians,
    "checkerboard": _checkerboard,
    "swiss_roll": _swiss_roll,
    "pinwheel": _pinwheel,
    "cross": _cross,
}
_PARTS = {"train": Purpose.TRAIN, "validation": Purpose.VALIDATION, "test": Purpose.TEST}
_LARGEST = 10**9  # points of a draw


def planar(name: str, n: int, seed: int = 0, part: str = "test") -> Tensor:
    r"""Draw points of a density in the plane.

    With independent u uniform on [0, 1] and z normal, s a sign and k a number, each equally likely:

    ================= =========================================================================
    name              x
    ================= =========================================================================
    moons             half circles of radius 2 about (-1, -0.2) and (1, 0.8), standard deviation
                      0.2
    rings             circles of radius 0.75, 1.5, 2.25 and 3, standard deviation 0.08
    two_spirals       :math:`s \big(t(-\cos t, \sin t) + u / 2\big) / 3`, where
                      :math:`t = 3 \pi \sqrt{u_0}`, standard deviation 0.1
    eight_gaussians   centres on the circle of radius :math:`2 \sqrt 2`, standard deviation
                      :math:`1 / \sqrt 8`
    checkerboard      uniform on eight squares of side 2 in [-4, 4]^2
    swiss_roll        :math:`t (\cos t, \sin t) / 5`, t uniform on
                      :math:`[3\pi/2, 9\pi/2]`, standard deviation 0.2
    pinwheel          :math:`2 R(2 \pi k / 5 + e^{r} / 4)\, (r, z / 10)`, where r is normal about 1
                      with standard deviation 0.3 and R a rotation
    cross             one of the coordinates has the law of Laplace with scale 1, the other is 0,
                      standard deviation 0.05: sparse points
    ================= =========================================================================

    But for the last one, formulas and scales are those of the toy data of [1]_, where points of
    moons and rings have equidistant angles instead of independent ones.

    Parameters
    ----------
    name : str
        The density, one of the table.
    n : int
        Number of points, >= 1.
    seed : int, default 0
        Integer >= 0.
    part : {"train", "validation", "test"}
        Which of three independent sets of this seed; all are independent of `PlanarBatches`.

    Returns
    -------
    Tensor, shape (n, 2)
        Points, float32. The first ones do not depend on n.

    Raises
    ------
    InputError
        For an unknown name or part, and numbers out of range.

    References
    ----------
    .. [1] Grathwohl, Chen, Bettencourt, Sutskever, Duvenaud, "FFJORD: Free-form Continuous Dynamics
       for Scalable Reversible Generative Models", ICLR 2019, arXiv:1810.01367, figure 2.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.data.planar("moons", 3, seed=1).shape
    torch.Size([3, 2])
    """
    check_choice("name", name, PLANAR)
    check_choice("part", part, _PARTS)
    return _points(name, whole(n, "n", most=_LARGEST), seed, _PARTS[part], 0)


def _points(name: str, n: int, seed: int, purpose: Purpose, place: int) -> Tensor:
    memory.check_memory(150 * n, f"a draw of {n} points", "draw fewer")
    uniform, normal = (
        np.random.Generator(bits(seed, purpose, 2 * place + stream)) for stream in (0, 1)
    )
    x = PLANAR[name](uniform.random((n, 4)), normal.standard_normal((n, 2)))
    return torch.from_numpy(x.astype(np.float32))


class PlanarBatches:
    """Fresh points of a density in the plane for each step; called with a step, it gives a batch.

    No point comes twice, so that there is no overfitting to look for: a training of `steps` steps
    sees steps times batch points.

    Parameters
    ----------
    name : str
        The density, as for `planar`.
    batch : int
        Points per step, >= 1.
    seed : int, default 0
        Integer >= 0.

    Raises
    ------
    InputError
        For an unknown name, and numbers out of range.

    Examples
    --------
    >>> from wflow import nets
    >>> (points,) = nets.data.PlanarBatches("rings", batch=4, seed=1)(0)
    >>> points.shape
    torch.Size([4, 2])
    """

    def __init__(self, name: str, *, batch: int, seed: int = 0) -> None:
        check_choice("name", name, PLANAR)
        self.name = name
        self.batch = whole(batch, "batch", most=_LARGEST)
        self.seed = whole(seed, "seed", 0)

    def __call__(self, step: int) -> tuple[Tensor]:
        """Return points of a step, drawn from (seed, step).

        Parameters
        ----------
        step : int
            Integer >= 0.

        Returns
        -------
        tuple of one Tensor
            Points (batch, 2), float32.
        """
        place = whole(step, "step", 0, most=2**60) + 1  # 0 is the fixed set of the seed
        return (_points(self.name, self.batch, self.seed, Purpose.TRAIN, place),)
