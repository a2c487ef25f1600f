"""Checks of arrays of interaction matrices."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow.errors import InputError

Matrices = NDArray[np.floating]  # (..., heads, d, d)


def finite(array: ArrayLike, name: str) -> NDArray[np.float64]:
    try:
        if np.iscomplexobj(array):
            raise TypeError("they are complex")
        numbers = np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers: {error}") from None
    if not np.all(np.isfinite(numbers)):
        raise InputError(f"{name} holds values that are not finite; remove or repair them")
    return numbers


def fitting(values: Any, shape: tuple[int, ...], kind: Any, name: str) -> NDArray[np.floating]:
    """What a user's function returned, broadcast to the shape it should have."""
    try:
        if np.iscomplexobj(values) or values is None:
            raise TypeError
        fit = np.broadcast_to(np.asarray(values, kind), shape)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} returned a {type(values).__name__} of shape {np.shape(values)}: expected "
            f"real numbers that broadcast to {shape}"
        ) from None
    if not np.isfinite(fit).all():
        raise InputError(f"{name} returned a value that is not finite")
    return fit


def is_symmetric(D: Matrices) -> bool:
    """Whether D = D^T to rounding, (..., d, d)."""
    if np.array_equal(D, np.swapaxes(D, -1, -2)):  # mostly; a fifth of the time
        return True
    tolerance = 16 * np.finfo(D.dtype).eps * max(1.0, float(np.abs(D).max(initial=0.0)))
    return bool(np.all(np.abs(D - np.swapaxes(D, -1, -2)) <= tolerance))


def as_matrices(D: ArrayLike, name: str, *, symmetric: bool = False) -> NDArray[np.float64]:
    """Check an array of square matrices (..., d, d), and that they are symmetric if asked to.

    Raises
    ------
    InputError
        For entries that are not finite, matrices that are not square, or asymmetry.
    """
    matrices = finite(D, name)
    if matrices.ndim < 2 or matrices.shape[-1] != matrices.shape[-2] or matrices.size == 0:
        raise InputError(f"{name} has shape {matrices.shape}, expected square matrices (..., d, d)")
    if symmetric and not is_symmetric(matrices):
        gap = np.abs(matrices - np.swapaxes(matrices, -1, -2)).max()
        raise InputError(
            f"{name} is not symmetric (largest |D - D^T| is {gap:.3g}): the energy and its "
            "gradient flow need D = D^T; pass (D + D^T)/2, or ledger=False to simulate without "
            "an energy"
        )
    return matrices


def check_fits(D: Matrices, heads: int, d: int, name: str) -> None:
    """Raise InputError unless D is (d, d) or (heads, d, d)."""
    if D.shape not in ((d, d), (heads, d, d)):
        raise InputError(
            f"{name} has shape {D.shape}, expected {(d, d)} or {(heads, d, d)} for {heads} heads "
            f"and tokens of dimension {d}"
        )
