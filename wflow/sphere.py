"""Geometry of the unit sphere S^{d-1}: where tokens live."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow.errors import InputError

FloatArray = NDArray[np.floating]


def normalise(x: FloatArray) -> FloatArray:
    """Divide vectors by their norm: the retraction R(x) = x / |x| of docs/mathematics.md section 3.

    Parameters
    ----------
    x : array (..., d)

    Returns
    -------
    array (..., d), each vector of norm one
    """
    return x / np.sqrt(np.einsum("...k,...k->...", x, x))[..., None]


def project(x: FloatArray, v: FloatArray) -> FloatArray:
    """Project vectors on the tangent space: P_x v = v - <x, v> x.

    Parameters
    ----------
    x : array (..., d), unit vectors
    v : array (..., d)

    Returns
    -------
    array (..., d)
    """
    return v - np.einsum("...k,...k->...", x, v)[..., None] * x


def exponential(x: FloatArray, u: FloatArray) -> FloatArray:
    """Go along the geodesic from x in the direction u: cos|u| x + sin|u| u/|u|.

    Parameters
    ----------
    x : array (..., d), unit vectors
    u : array (..., d), tangent vectors: <x, u> = 0, |u| the length of the way

    Returns
    -------
    array (..., d), of norm one to rounding
    """
    length = np.sqrt(np.einsum("...k,...k->...", u, u))[..., None]
    return np.cos(length) * x + np.sinc(length / np.pi).astype(u.dtype) * u


def as_tokens(x: ArrayLike, name: str = "x0") -> NDArray[np.float64]:
    """Check an array of tokens and put it on the sphere.

    Parameters
    ----------
    x : array (..., n, d), real, finite, no zero vector, d >= 2
    name : what messages call it

    Returns
    -------
    float64 array of the same shape, contiguous, every token of norm one

    Raises
    ------
    InputError
        For a wrong shape, a value that is not finite, or a token of norm zero.
    """
    try:
        if np.iscomplexobj(x):
            raise TypeError("complex numbers have no place on the sphere")
        tokens = np.array(x, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers (n, d): {error}") from None
    if tokens.ndim < 2:
        raise InputError(f"{name} has shape {tokens.shape}, expected (n, d): one row per token")
    n, d = tokens.shape[-2:]
    if d < 2:
        raise InputError(f"{name} has d = {d}: tokens on S^(d-1) need d >= 2; add a coordinate")
    if n < 1 or tokens.size == 0:
        raise InputError(f"{name} has shape {tokens.shape}: at least one token is needed")
    bad = np.argwhere(~np.isfinite(tokens))
    if bad.size:
        where = tuple(int(i) for i in bad[0])
        raise InputError(
            f"{name}{list(where)} is {tokens[where]}: {len(bad)} of {tokens.size} values are not "
            "finite; remove or repair those tokens"
        )
    # Scaling by the largest entry first keeps the norm of huge or tiny vectors in range.
    largest = np.abs(tokens).max(axis=-1, keepdims=True)
    zero = np.argwhere(largest[..., 0] == 0)
    if zero.size:
        raise InputError(
            f"{name}{[int(i) for i in zero[0]]} has norm zero and no direction on the sphere; "
            "remove it or shift the data"
        )
    # Tokens of norm one to rounding stay as they are: a run read from its file gives the same bits.
    norm_sq = np.einsum("...k,...k->...", tokens, tokens)[..., None]
    unit = np.abs(norm_sq - 1) <= (8 + d) * np.finfo(np.float64).eps
    return np.where(unit, tokens, normalise(tokens / largest))
