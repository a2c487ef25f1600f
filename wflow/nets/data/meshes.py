"""Meshes of triangles, their files in the format OFF, and points drawn on their surfaces."""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import path_of, reals, whole
from wflow._core.errors import InputError
from wflow._core.files import read_file
from wflow.nets.data.batches import Purpose, bits

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Mesh(NamedTuple):
    """A surface of triangles.

    Parameters
    ----------
    vertices : ndarray, shape (n, 3)
        Corners.
    faces : ndarray, shape (m, 3)
        Numbers of the corners of each triangle.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import nets
    >>> nets.data.Mesh(np.eye(3), np.array([[0, 1, 2]])).faces.tolist()
    [[0, 1, 2]]
    """

    vertices: FloatArray
    faces: IntArray


def read_off(path: str | os.PathLike[str]) -> Mesh:
    """Read a mesh from an OFF file, of the format of ModelNet [1]_.

    The file holds the word OFF, the numbers of vertices, faces and edges, the coordinates of the
    vertices, then for each face its number of vertices and their numbers, from 0; colours behind
    them are skipped. Some files of ModelNet40 have the numbers on the line of the word, without a
    space: ``OFF490 518 0``. A polygon becomes triangles that share its first vertex.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    Mesh
        Vertices and triangles.

    Raises
    ------
    InputError
        For a file that cannot be read, is of another format, ends too early, or has a face with a
        vertex that is not there; the message names it.

    References
    ----------
    .. [1] Wu, Song, Khosla, Yu, Zhang, Tang, Xiao, "3D ShapeNets: a deep representation for
       volumetric shapes", CVPR 2015.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from wflow import nets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "triangle.off")
    ...     _ = path.write_text("OFF3 1 0\\n0 0 0\\n1 0 0\\n0 1 0\\n3 0 1 2\\n")
    ...     nets.data.read_off(path).faces.tolist()
    [[0, 1, 2]]
    """
    return parse_off(read_file(path_of(path, "path"), "an OFF file"), str(path))


def parse_off(data: bytes, name: str) -> Mesh:
    """Parse the bytes of an OFF file, which messages call `name`, to a mesh: see `read_off`."""
    if data[:3].upper() != b"OFF":
        begin = repr(data[:8].decode("latin1"))
        raise InputError(
            f"{name}: begins with {begin}; expected an OFF file, which begins with OFF"
        )
    parts = (line.partition(b"#")[0] for line in data[3:].splitlines())
    header, *lines = [line for line in parts if line.strip()] or [b""]
    try:
        corners, faces, _ = (int(word) for word in header.split()[:3])
        if not 0 <= corners <= corners + faces <= len(lines):
            raise ValueError(
                f"{corners} vertices and {faces} faces in {len(lines)} lines; is it cut off?"
            )
        words = b" ".join(lines[:corners]).split()
        vertices = np.array(words, dtype="S").astype(np.float64).reshape(corners, 3)
        triangles = _triangles(lines[corners : corners + faces])
        if not np.isfinite(vertices).all():
            raise ValueError("vertices that are not finite")
        if triangles.size and not 0 <= triangles.min() <= triangles.max() < corners:
            raise ValueError(
                f"faces of vertices {triangles.min()} to {triangles.max()}; expected 0 to "
                f"{corners - 1}"
            )
    except ValueError as error:
        raise InputError(f"{name}: cannot be read as an OFF file ({error})") from None
    return Mesh(vertices, triangles)


def _triangles(lines: Sequence[bytes]) -> IntArray:
    """Return triangles (m, 3) from the lines of faces."""
    words = b" ".join(lines).split()
    if len(words) == 4 * len(lines):
        table = np.array(words, dtype="S").astype(np.int64).reshape(-1, 4)
        if (table[:, 0] == 3).all():
            return table[:, 1:]
    found = []
    for line in lines:
        count, *rest = line.split()
        corners = [int(word) for word in rest[: int(count)]]
        if len(corners) < int(count) or int(count) < 1:
            raise ValueError(f"the face {line.decode('latin1').strip()!r}")
        found += [(corners[0], *pair) for pair in pairwise(corners[1:])]
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def sample_surface(vertices: Any, faces: Any, points: int, *, seed: int = 0) -> FloatArray:
    r"""Draw points on a surface of triangles, independent and uniform with respect to area.

    Parameters
    ----------
    vertices : array_like, shape (n, 3)
        Corners, finite.
    faces : array_like, shape (m, 3)
        Numbers of the corners of each triangle, 0 to n - 1.
    points : int
        Number of points, >= 1.
    seed : int, default 0
        Integer >= 0.

    Returns
    -------
    ndarray, shape (points, 3)
        The points; the first ones of a seed are the same however many are drawn.

    Raises
    ------
    InputError
        For arrays of other shapes, corners that are not there, or a surface without area.

    Notes
    -----
    A triangle :math:`(a, b, c)` is drawn with probability proportional to its area
    :math:`|(b - a) \times (c - a)|/2`, then a point [1]_

    .. math:: (1 - \sqrt{u}) \, a + \sqrt{u} \, (1 - v) \, b + \sqrt{u} \, v \, c

    in it, with :math:`u` and :math:`v` uniform in [0, 1).

    References
    ----------
    .. [1] Osada, Funkhouser, Chazelle, Dobkin, "Shape distributions", ACM Transactions on Graphics
       21 (2002), section 4.2.

    Examples
    --------
    >>> from wflow import nets
    >>> square = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]
    >>> nets.data.sample_surface(square, [[0, 1, 2], [0, 2, 3]], 5).shape
    (5, 3)
    """
    vertices = reals(vertices, "vertices")
    reals(faces, "faces")  # a ragged list is none
    faces = np.asarray(faces)
    if faces.dtype.kind not in "iu":
        raise InputError(f"faces are {faces.dtype}: expected integers, numbers of the vertices")
    if vertices.ndim != 2 or faces.ndim != 2 or vertices.shape[1] != 3 or faces.shape[1] != 3:
        raise InputError(
            f"vertices and faces have shapes {vertices.shape} and {faces.shape}; expected (n, 3) "
            "and (m, 3)"
        )
    if faces.size and not 0 <= faces.min() <= faces.max() < len(vertices):
        raise InputError(
            f"faces have vertices {faces.min()} to {faces.max()}; expected 0 to {len(vertices) - 1}"
        )
    u = np.random.Generator(bits(seed, Purpose.SURFACE)).random((whole(points, "points", 1), 3))
    return on_surface(Mesh(vertices, faces), u)


def on_surface(mesh: Mesh, u: FloatArray) -> FloatArray:
    """Map uniform numbers (points, 3) to points of a surface."""
    a, b, c = (mesh.vertices[mesh.faces[:, k]] for k in range(3))
    with np.errstate(over="ignore", invalid="ignore"):
        ends = np.cumsum(np.linalg.norm(np.cross(b - a, c - a), axis=1))
    if not len(ends) or not 0 < ends[-1] < np.inf:
        raise InputError(
            f"the {len(ends)} triangles have no area, or one beyond all numbers; expected a surface"
        )
    face = np.searchsorted(ends, u[:, 0] * ends[-1], side="right").clip(max=len(ends) - 1)
    s, t = np.sqrt(u[:, 1:2]), u[:, 2:]
    return (1 - s) * a[face] + s * (1 - t) * b[face] + s * t * c[face]  # type: ignore[no-any-return]
