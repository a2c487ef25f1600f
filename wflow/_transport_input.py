"""What `wflow.transport` is given: clouds, weights and powers, checked."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow.attention import as_unit_tokens
from wflow.errors import InputError
from wflow.sphere import as_tokens

FloatArray = NDArray[np.float64]


class Pair(NamedTuple):
    """Two clouds of one dimension and their weights; weights None are uniform."""

    x: FloatArray
    y: FloatArray
    wx: FloatArray | None
    wy: FloatArray | None

    @property
    def pairs(self) -> int:
        return len(self.x) * len(self.y)

    @property
    def assigned(self) -> bool:
        """Whether the best plan is a permutation."""
        return self.wx is None and self.wy is None and len(self.x) == len(self.y)

    def masses(self) -> tuple[FloatArray, FloatArray]:
        n, m = len(self.x), len(self.y)
        return (
            np.full(n, 1 / n) if self.wx is None else self.wx,
            np.full(m, 1 / m) if self.wy is None else self.wy,
        )


def pair(
    x: ArrayLike, y: ArrayLike, weights_x: ArrayLike | None, weights_y: ArrayLike | None
) -> Pair:
    clouds = []
    for name, cloud in (("x", x), ("y", y)):
        try:
            # Norms that are one within the tolerance become one: c(x, x) is then zero to rounding.
            clouds.append(as_tokens(as_unit_tokens(cloud)))
        except InputError as error:
            raise InputError(f"cloud {name}: {error}") from None
    if clouds[0].shape[1] != clouds[1].shape[1]:
        raise InputError(
            f"x has d = {clouds[0].shape[1]} and y has d = {clouds[1].shape[1]}: distances need "
            "clouds on one sphere; reduce both to one dimension"
        )
    return Pair(
        clouds[0],
        clouds[1],
        _weights(weights_x, len(clouds[0]), "weights_x"),
        _weights(weights_y, len(clouds[1]), "weights_y"),
    )


def _weights(weights: ArrayLike | None, count: int, name: str) -> FloatArray | None:
    """Weights that are not all equal, as (count,) of sum one; None for uniform ones."""
    if weights is None:
        return None
    try:
        if np.iscomplexobj(weights):
            raise TypeError("they are complex")
        given = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be real numbers, one per token: {error}") from None
    if given.shape != (count,):
        raise InputError(
            f"{name} has shape {given.shape}, expected ({count},): one weight per token"
        )
    if not np.isfinite(given).all() or (given < 0).any():
        bad = int(np.argmin(np.isfinite(given) & (given >= 0)))
        raise InputError(f"{name}[{bad}] is {given[bad]}: expected finite weights >= 0")
    total = math.fsum(given)
    if abs(total - 1) > 1e-8:
        raise InputError(f"{name} sum to {total:.10g}, expected 1: divide by their sum")
    return None if np.all(given == given[0]) else given / total
