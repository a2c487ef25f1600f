"""Geometry of the unit sphere S^{d-1}: projection, retraction, exponential map."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import reals
from wflow._core.errors import InputError

__all__ = ["as_tokens", "exponential", "normalise", "project"]

FloatArray = NDArray[np.floating]


def normalise(x: ArrayLike) -> FloatArray:
    """Divide vectors by their norm: the retraction ``R(x) = x / |x|`` of the schemes.

    Parameters
    ----------
    x : array_like, shape (..., d)
        Vectors that are not zero.

    Returns
    -------
    ndarray, shape (..., d)
        Vectors of norm one; in single precision where x is.

    Raises
    ------
    InputError
        For anything but finite real numbers, and for a vector of norm zero.

    Examples
    --------
    >>> import wflow
    >>> wflow.sphere.normalise([3.0, 4.0])
    array([0.6, 0.8])
    """
    vectors = _vectors(x, "x")
    size = np.einsum("...k,...k->...", vectors, vectors)
    if not np.all((size >= np.finfo(size.dtype).tiny) & np.isfinite(size)):
        vectors = vectors / _largest_entries(vectors, "x")
    return normalise_unchecked(vectors)


def project(x: ArrayLike, v: ArrayLike) -> FloatArray:
    """Project vectors on the tangent space: P_x v = v - <x, v> x.

    Parameters
    ----------
    x : array_like, shape (..., d)
        Unit vectors.
    v : array_like, shape (..., d)
        Vectors.

    Returns
    -------
    ndarray, shape (..., d)
        Tangent vectors.

    Raises
    ------
    InputError
        For anything but finite real numbers, and for shapes that do not broadcast.

    Examples
    --------
    >>> import wflow
    >>> wflow.sphere.project([1.0, 0.0], [2.0, 3.0])
    array([0., 3.])
    """
    points, vectors = _beside(x, v, "v")
    with np.errstate(over="ignore", invalid="ignore"):
        return _finite(project_unchecked(points, vectors))


def exponential(x: ArrayLike, u: ArrayLike) -> FloatArray:
    r"""Move along the geodesic from x in the direction u.

    Parameters
    ----------
    x : array_like, shape (..., d)
        Unit vectors.
    u : array_like, shape (..., d)
        Tangent vectors, ``<x, u> = 0``; ``|u|`` is the length of the geodesic.

    Returns
    -------
    ndarray, shape (..., d)
        End points, of norm one to rounding.

    Raises
    ------
    InputError
        For anything but finite real numbers, and for shapes that do not broadcast.

    Notes
    -----
    The exponential map of the sphere is

    .. math:: \exp_x(u) = \cos|u|\; x + \sin|u|\; \frac{u}{|u|} .

    Examples
    --------
    >>> import numpy as np, wflow
    >>> wflow.sphere.exponential([1.0, 0.0], [0.0, np.pi / 2]).round(12)
    array([0., 1.])
    """
    points, vectors = _beside(x, u, "u")
    with np.errstate(over="ignore", invalid="ignore"):
        return _finite(exponential_unchecked(points, vectors))


def as_tokens(x: ArrayLike, name: str = "x0") -> NDArray[np.float64]:
    """Check an array of tokens and put it on the sphere.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Real finite vectors, none of them zero, d >= 2.
    name : str, default "x0"
        What messages call it.

    Returns
    -------
    ndarray of float64, shape (..., n, d)
        Contiguous array of tokens of norm one.

    Raises
    ------
    InputError
        For a wrong shape, a value that is not finite, or a token of norm zero.

    Examples
    --------
    >>> import wflow
    >>> wflow.sphere.as_tokens([[3, 4], [0, 2]])
    array([[0.6, 0.8],
           [0. , 1. ]])
    """
    tokens = reals(x, name, finite=False)
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
    largest = _largest_entries(tokens, name)
    # Tokens of norm one to rounding stay as they are: the tokens of a run file are read back
    # bitwise identical.
    with np.errstate(over="ignore"):
        norm_sq = np.einsum("...k,...k->...", tokens, tokens)[..., None]
    unit = np.abs(norm_sq - 1) <= (8 + d) * np.finfo(np.float64).eps
    return np.where(unit, tokens, normalise_unchecked(tokens / largest))


def _largest_entries(vectors: FloatArray, name: str) -> FloatArray:
    """Return the largest absolute entry of every vector, (..., 1); refuse zero vectors."""
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    zero = np.argwhere(largest[..., 0] == 0)
    if zero.size:
        where = [int(i) for i in zero[0]]
        raise InputError(
            f"{name}{where} has norm zero and no direction on the sphere; remove it or shift the "
            "data"
        )
    return largest


def _vectors(values: ArrayLike, name: str) -> FloatArray:
    vectors = reals(values, name, single=True)
    if vectors.ndim < 1 or vectors.shape[-1] < 1:
        raise InputError(f"{name} has shape {vectors.shape}, expected vectors (..., d)")
    return vectors


def _beside(x: ArrayLike, v: ArrayLike, name: str) -> tuple[FloatArray, FloatArray]:
    """Check points of the sphere and vectors at them, and return both in shapes that broadcast."""
    points, vectors = _vectors(x, "x"), _vectors(v, name)
    try:
        np.broadcast_shapes(points.shape, vectors.shape)
    except ValueError:
        fits = False
    else:
        fits = points.shape[-1] == vectors.shape[-1]
    if not fits:
        raise InputError(
            f"x has shape {points.shape} and {name} {vectors.shape}: expected vectors (..., d) of "
            "one dimension whose shapes broadcast"
        )
    return points, vectors


def _finite(result: FloatArray) -> FloatArray:
    if not np.isfinite(result).all():
        raise InputError(
            "the vectors are too large: their products leave the range of floats; scale them down"
        )
    return result


def normalise_unchecked(x: FloatArray) -> FloatArray:
    """Compute `normalise` for an array of floats (..., d) without checks."""
    with np.errstate(over="ignore", invalid="ignore"):  # the run looks for what is not finite
        return x / np.sqrt(np.einsum("...k,...k->...", x, x))[..., None]


def project_unchecked(x: FloatArray, v: FloatArray) -> FloatArray:
    """Compute `project` for arrays of floats (..., d) without checks."""
    return v - np.einsum("...k,...k->...", x, v)[..., None] * x


def exponential_unchecked(x: FloatArray, u: FloatArray) -> FloatArray:
    """Compute `exponential` for arrays of floats (..., d) without checks."""
    length = np.sqrt(np.einsum("...k,...k->...", u, u))[..., None]
    return np.cos(length) * x + np.sinc(length / np.pi).astype(u.dtype) * u
