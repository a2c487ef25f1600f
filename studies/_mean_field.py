"""Types of flags and clouds of the studies of the mean-field limit."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from wflow import InputError, study

FloatArray = NDArray[np.float64]


def _rising(values: Sequence[int], name: str, least: int = 1) -> None:
    if len(values) < least or list(values) != sorted(set(values)):
        raise InputError(
            f"{name} is {' '.join(map(str, values))}: expected rising numbers, {least} or more"
        )


def _meshed(values: Sequence[int], name: str) -> None:
    study.distinct(values, name)
    if not set(values) <= {2, 3}:
        raise InputError(
            f"{name} is {' '.join(map(str, values))}: expected 2, 3 or both, where there are meshes"
        )


Sizes = Annotated[
    tuple[study.TwoOrMore, ...], study.Checked(partial(_rising, least=2), together=True)
]
"""Type of a flag of numbers of tokens, two or more for a rate, from the least."""
Dimensions = Annotated[tuple[study.Dimension, ...], study.Checked(_rising, together=True)]
"""Type of a flag of dimensions, from the least."""
Meshed = Annotated[tuple[int, ...], study.Checked(_meshed, together=True)]
"""Type of a flag of dimensions that have a mesh."""


def clouds(draw: Callable[..., FloatArray], seed: int, n: int, d: int, paths: int) -> FloatArray:
    """Return the draws (paths, n, d): independent between paths, sizes and dimensions."""
    return np.array([draw(n, d, seed=study.seed_of(seed, d, n, path)) for path in range(paths)])


def evenly_spread(n: int, d: int) -> FloatArray:
    """Return n points (n, d) on the circle at equal angles, or on the sphere along a golden spiral.

    On the spiral z goes up in equal steps and the longitude turns by the golden angle each time.
    """
    i = np.arange(n) + 0.5
    if d == 2:
        return np.column_stack((np.cos(2 * np.pi * i / n), np.sin(2 * np.pi * i / n)))
    z = 1 - 2 * i / n
    turn = np.pi * (3 - np.sqrt(5)) * i
    r = np.sqrt(1 - z * z)
    return np.column_stack((r * np.cos(turn), r * np.sin(turn), z))
