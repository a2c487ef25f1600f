"""Clouds of points with labels: ModelNet40, MNIST as sets of pixels, solids.

Meshes become clouds by points drawn on their surfaces with respect to area. Clouds of different
sizes are padded to one, and batches carry a mask that says which points are there.

    clouds = mnist_clouds(digits=10_000)
    batches = CloudBatches(
        clouds.train_points, clouds.train_counts, clouds.train_labels, batch=64, points=128, seed=1
    )
    points, mask, labels = batches(step)
"""

import hashlib
import io
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import check_choice, number, path_of, reals, switch, whole
from wflow._core.errors import InputError, RunFileError
from wflow._core.files import check_stored, open_hdf5, opened, replace_file
from wflow._core.progress import progress
from wflow.nets.checks import tensor
from wflow.nets.data.batches import Purpose, bits
from wflow.nets.data.datasets import Folder, mnist
from wflow.nets.data.download import VARIABLE, cache_folder, places

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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
    """Points (n, most, 3) and counts (n,) of the pixels of images (n, H, W), uint8, that are > 0.

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


# Meshes
# ------

_OFF_BYTES = 1 << 29  # bound of one file; the largest of ModelNet40 have some ten MB


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
    return parse_off(_file_bytes(path_of(path, "path")), str(path))


def _file_bytes(path: Path) -> bytes:
    with opened(path, "an OFF file") as file:
        try:
            data = file.read(_OFF_BYTES + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error}); expected an OFF file") from None
    if len(data) > _OFF_BYTES:
        raise InputError(f"{path}: has more than {_OFF_BYTES} bytes; expected an OFF file")
    return data


def parse_off(data: bytes, name: str) -> Mesh:
    """Make a mesh of the bytes of an OFF file: `read_off` for what is in memory already.

    Parameters
    ----------
    data : bytes
        The whole file.
    name : str
        What messages call the file.

    Returns
    -------
    Mesh
        As from `read_off`.

    Raises
    ------
    InputError
        As `read_off`.
    """
    if data[:3].upper() != b"OFF":
        begin = repr(data[:8].decode("latin1"))
        raise InputError(
            f"{name}: begins with {begin}; expected an OFF file, which begins with OFF"
        )
    lines = [
        line for line in (part.split(b"#")[0] for part in data[3:].splitlines()) if line.strip()
    ]
    try:
        corners, faces, _ = (int(word) for word in lines[0].split()[:3])
        if corners < 0 or faces < 0:
            raise ValueError("a number below 0")
    except (IndexError, ValueError) as error:
        raise InputError(
            f"{name}: its header does not name the numbers of vertices, faces and edges ({error})"
        ) from None
    if len(lines) < 1 + corners + faces:
        raise InputError(
            f"{name}: names {corners} vertices and {faces} faces, and {len(lines) - 1} lines "
            "follow; the file is cut off or damaged: get it again"
        )
    try:
        words = b" ".join(lines[1 : 1 + corners]).split()
        vertices = np.array(words, dtype="S").astype(np.float64).reshape(corners, 3)
        triangles = _triangles(lines[1 + corners : 1 + corners + faces])
    except ValueError as error:
        raise InputError(f"{name}: a vertex or a face cannot be read ({error})") from None
    if not np.isfinite(vertices).all():
        raise InputError(f"{name}: has vertices that are not finite")
    if triangles.size and not 0 <= triangles.min() <= triangles.max() < corners:
        raise InputError(
            f"{name}: faces have vertices {triangles.min()} to {triangles.max()}; expected 0 to "
            f"{corners - 1}"
        )
    return Mesh(vertices, triangles)


def _triangles(lines: Sequence[bytes]) -> IntArray:
    """Triangles (m, 3) of the lines of faces."""
    words = b" ".join(lines).split()
    if len(words) == 4 * len(lines):
        table = np.array(words or [b"0"], dtype="S").astype(np.int64)[: len(words)].reshape(-1, 4)
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
    vertices, faces = reals(vertices, "vertices"), np.asarray(faces)
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
    return _on_surface(Mesh(vertices, faces), u)


def _on_surface(mesh: Mesh, u: FloatArray) -> FloatArray:
    """Points of a surface for uniform numbers (points, 3)."""
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


# ModelNet40
# ----------

_MESHES, _POINTS = (
    ("ModelNet40.zip", "ModelNet40"),
    (
        "modelnet40_ply_hdf5_2048.zip",
        "modelnet40_ply_hdf5_2048",
    ),
)
_CLASSES = 40
_OFFICIAL = (9843, 2468)  # meshes for training and tests
_IN_HDF5 = (9840, 2468)  # three fewer in the files of points
_LOST = 0.01  # largest share of the meshes that may be broken
_HDF5_BYTES = 1 << 30  # bound of one file of points; the published ones have some 60 MB
_BROKEN = (OSError, KeyError, ValueError, RuntimeError, TypeError, EOFError, zlib.error)


def modelnet40(
    *, folder: Folder = None, points: int = 10_000, seed: int = 0, partial: bool = False
) -> PointClouds:
    """ModelNet40 [1]_: clouds of points on the surfaces of 12,311 models of 40 kinds of objects.

    Parameters
    ----------
    folder : str or path-like, optional
        Folder that holds one of

        - `ModelNet40.zip` or the folder `ModelNet40`, files ``CLASS/train/NAME.off`` and
          ``CLASS/test/NAME.off``: 9,843 and 2,468 meshes, of which points are drawn;
        - `modelnet40_ply_hdf5_2048.zip` or the folder of that name, HDF5 files of 2,048 points of
          each of 9,840 and 2,468 models.

        The first of these that is there is taken. By default the folder that the environment
        variable WFLOW_DATA names, then the cache. Nothing is downloaded.
    points : int, default 10000
        Number of points of each cloud; of the HDF5 files the first ones, at most 2,048.
    seed : int, default 0
        Integer >= 0, of the points that are drawn.
    partial : bool, default False
        Take the classes and models that are there. By default the numbers above are demanded.

    Returns
    -------
    PointClouds
        The official halves, each in the order of the classes, then of the names. Coordinates are
        those of the files: `standardised` brings them to one scale.

    Raises
    ------
    InputError
        Where there is no such file, for an archive that is truncated or holds other files, for
        numbers other than the official ones, and where more than 1 % of the meshes are broken or
        have no area.

    Warns
    -----
    UserWarning
        Names the meshes that are left out because they are broken or have no area, up to 1 %.

    Notes
    -----
    Archives are read in place. Points drawn of meshes are kept in the cache, where there is one,
    under a digest of the names, sizes and checksums (of a folder: times) of the files, of `points`
    and of `seed`.

    References
    ----------
    .. [1] Wu, Song, Khosla, Yu, Zhang, Tang, Xiao, "3D ShapeNets: a deep representation for
       volumetric shapes", CVPR 2015; the HDF5 files are of Qi, Su, Mo, Guibas, "PointNet", CVPR
       2017.

    Examples
    --------
    >>> from wflow import nets
    >>> clouds = nets.data.modelnet40(points=2048)  # doctest: +SKIP
    >>> clouds.train_points.shape, clouds.names[0]  # doctest: +SKIP
    (torch.Size([9843, 2048, 3]), 'airplane')
    """
    points, seed, partial = (
        whole(points, "points", 1),
        whole(seed, "seed", 0),
        switch(partial, "partial"),
    )
    for place in places(folder):
        for name in (*_MESHES, *_POINTS):
            if (source := place / name).exists():
                read = _of_meshes if name in _MESHES else _of_points
                return read(source, points, seed, partial)
    where = "there is no ModelNet40 in " + (str(folder) if folder is not None else "a local folder")
    raise InputError(
        f"{where}: get ModelNet40.zip of https://modelnet.cs.princeton.edu, or "
        "modelnet40_ply_hdf5_2048.zip, put it into a folder and set "
        f"{VARIABLE} to that folder"
    )


class _Files(NamedTuple):
    """Files of a folder or a zip archive, by their paths with slashes."""

    read: dict[str, Callable[[int], bytes]]  # at most so many bytes
    digest: str  # of names, sizes and checksums or times


@contextmanager
def _listed(source: Path, suffixes: tuple[str, ...]) -> Iterator[_Files]:
    """The files with these endings below a folder, or in an archive, ordered by their names."""

    def within(name: str, size: int, most: int) -> None:
        if size > most:
            raise InputError(f"{name}: has {size} bytes; expected at most {most}")

    read: dict[str, Callable[[int], bytes]] = {}
    marks = []
    with ExitStack() as stack:
        if source.is_dir():
            for path in sorted(source.rglob("*")):
                name = path.relative_to(source.parent).as_posix()
                if name.endswith(suffixes) and _wanted(name):
                    state = path.stat()
                    marks.append((name, state.st_size, state.st_mtime_ns))

                    def of_folder(most: int, path: Path = path) -> bytes:
                        within(str(path), path.stat().st_size, most)
                        with opened(path, "a file of ModelNet40") as file:
                            return file.read()

                    read[name] = of_folder
        else:
            file = stack.enter_context(opened(source, "a zip archive"))
            try:
                archive = stack.enter_context(zipfile.ZipFile(file))
            except (*_BROKEN, zipfile.BadZipFile) as error:
                raise InputError(
                    f"{source}: is no whole zip archive ({error}); get it again"
                ) from None
            for info in sorted(archive.infolist(), key=lambda info: info.filename):
                if info.filename.endswith(suffixes) and _wanted(info.filename):
                    marks.append((info.filename, info.file_size, info.CRC))

                    def of_archive(most: int, info: zipfile.ZipInfo = info) -> bytes:
                        name = f"{source}: {info.filename}"
                        within(name, info.file_size, most)
                        try:
                            return archive.read(info)
                        except (*_BROKEN, zipfile.BadZipFile) as error:
                            raise InputError(f"{name} is damaged ({error}); get it again") from None

                    read[info.filename] = of_archive
        yield _Files(read, hashlib.sha256(json.dumps(marks).encode()).hexdigest())


def _wanted(name: str) -> bool:
    """Not what macOS adds to archives."""
    return "__MACOSX" not in name and not name.rsplit("/", 1)[-1].startswith(".")


def _halves(
    source: Path, names: Sequence[str]
) -> tuple[tuple[str, ...], list[list[tuple[str, int]]]]:
    """Names of the classes, and (file, label) of the two halves."""
    halves: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for name in names:
        parts = name.split("/")
        if len(parts) >= 3 and parts[-2] in halves:
            halves[parts[-2]].append((name, parts[-3]))
    classes = tuple(sorted({kind for half in halves.values() for _, kind in half}))
    if not all(halves.values()):
        raise InputError(
            f"{source}: holds {len(halves['train'])} meshes for training and {len(halves['test'])} "
            "for tests; expected files CLASS/train/NAME.off and CLASS/test/NAME.off"
        )
    label = {kind: k for k, kind in enumerate(classes)}
    return classes, [[(name, label[kind]) for name, kind in half] for half in halves.values()]


def _check_counts(
    source: Path, classes: int, counts: Sequence[int], expected: Sequence[int], partial: bool
) -> None:
    if not partial and (classes, *counts) != (_CLASSES, *expected):
        raise InputError(
            f"{source}: holds {classes} classes with {counts[0]} models for training and "
            f"{counts[1]} for tests; expected {_CLASSES}, {expected[0]} and {expected[1]}: get it "
            "again, or use partial=True for what is there"
        )


def _of_meshes(source: Path, points: int, seed: int, partial: bool) -> PointClouds:
    with _listed(source, (".off",)) as files:
        classes, halves = _halves(source, list(files.read))
        counts = [len(half) for half in halves]
        _check_counts(source, len(classes), counts, _OFFICIAL, partial)
        drawn = _cached(files, halves, points, seed)
    arrays, kept = [], []
    for half, clouds in zip(halves, drawn, strict=True):
        there = np.isfinite(clouds[:, 0, 0])
        kept.append(int(there.sum()))
        clouds = clouds if there.all() else clouds[there]
        labels = np.array([label for _, label in half])[there]
        arrays += [clouds, np.full(len(clouds), points), labels]
    text = f"{kept[0]:,} training and {kept[1]:,} test clouds of {points:,} points"
    return _clouds(arrays, classes, f"ModelNet40, {text} drawn of meshes by area (seed {seed})")


def _cached(
    files: _Files, halves: list[list[tuple[str, int]]], points: int, seed: int
) -> list[NDArray[np.float32]]:
    """Points of all meshes of the two halves, from the cache or drawn; NaN for broken ones."""
    cache, key = cache_folder(), f"{files.digest[:32]}-{points}-{seed}"
    path = None if cache is None else cache / "modelnet40" / f"{key}.h5"
    shapes = [(len(half), points, 3) for half in halves]
    if path is not None and path.is_file():
        try:
            with open_hdf5(path) as file:
                for name in ("train", "test"):
                    check_stored(file, name, path)
                found = [file["train"][:], file["test"][:]]
            if [array.shape for array in found] == shapes:
                return found
        except (RunFileError, *_BROKEN):
            pass  # it is drawn again
    drawn = _drawn(files, halves, points, seed)
    if path is not None:
        import h5py

        def write(draft: Path) -> None:
            with h5py.File(draft, "w") as file:
                for name, array in zip(("train", "test"), drawn, strict=True):
                    file[name] = array

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, write)
        except OSError as error:
            warnings.warn(
                f"the points cannot be kept in {path} ({error}); they are drawn again next time",
                stacklevel=4,
            )
    return drawn


def _drawn(
    files: _Files, halves: list[list[tuple[str, int]]], points: int, seed: int
) -> list[NDArray[np.float32]]:
    total = sum(len(half) for half in halves)
    drawn, faults = [], []
    with progress(total, "points of ModelNet40") as advance:
        for half in halves:
            clouds = np.full((len(half), points, 3), np.nan, np.float32)
            for k, (name, _) in enumerate(half):
                own = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
                u = np.random.Generator(bits(seed, Purpose.SURFACE, own)).random((points, 3))
                try:
                    clouds[k] = _on_surface(parse_off(files.read[name](_OFF_BYTES), name), u)
                except InputError as error:
                    faults.append(f"{name} ({error})")
                advance(1)
            drawn.append(clouds)
    if faults:
        text = f"{len(faults)} of {total} meshes cannot be used: " + "; ".join(faults[:5])
        if len(faults) > _LOST * total:
            raise InputError(f"{text}; expected at most 1 %: get the archive again")
        warnings.warn(f"{text}; they are left out", stacklevel=5)
    return drawn


def _of_points(source: Path, points: int, seed: int, partial: bool) -> PointClouds:
    """Points of the HDF5 files, which text files name."""
    with _listed(source, (".h5", ".txt")) as files:
        by_name = {name.rsplit("/", 1)[-1]: name for name in files.read}

        def lines(name: str) -> list[str]:
            if name not in by_name:
                raise InputError(f"{source}: holds no {name}; expected the files of PointNet")
            text = files.read[by_name[name]](1 << 20).decode("utf-8", "replace")
            return [line.strip() for line in text.splitlines() if line.strip()]

        classes = tuple(lines("shape_names.txt"))
        arrays: list[NDArray[Any]] = []
        for half in ("train", "test"):
            parts = []
            for line in lines(f"{half}_files.txt"):
                name = line.rsplit("/", 1)[-1]
                if name not in by_name:
                    raise InputError(f"{source}: holds no {name}, which {half}_files.txt names")
                parts.append(
                    _hdf5_part(files.read[by_name[name]](_HDF5_BYTES), name, points, len(classes))
                )
            if not parts:
                raise InputError(f"{source}: {half}_files.txt names no file")
            clouds, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
            order = np.argsort(labels, kind="stable")
            arrays += [clouds[order], np.full(len(clouds), points), labels[order]]
    counts = [len(arrays[0]), len(arrays[3])]
    _check_counts(source, len(classes), counts, _IN_HDF5, partial)
    return _clouds(
        arrays,
        classes,
        f"ModelNet40, {counts[0]:,} training and {counts[1]:,} test clouds, the first {points:,} "
        "of the 2,048 points of PointNet",
    )


def _hdf5_part(
    data: bytes, name: str, points: int, classes: int
) -> tuple[NDArray[np.float32], IntArray]:
    import h5py

    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            for key in ("data", "label"):
                check_stored(file, key, Path(name))
            clouds, labels = file["data"][:], file["label"][:].astype(np.int64).reshape(-1)
    except (RunFileError, *_BROKEN) as error:
        raise InputError(
            f"{name}: is no whole HDF5 file of points ({error}); get it again"
        ) from None
    if clouds.ndim != 3 or clouds.shape[2] != 3 or len(labels) != len(clouds) or not len(clouds):
        raise InputError(
            f"{name}: holds points {clouds.shape} and labels {labels.shape}; expected (n, points, "
            "3) and n labels"
        )
    if not 0 <= labels.min() <= labels.max() < classes:
        raise InputError(
            f"{name}: labels reach from {labels.min()} to {labels.max()}; expected 0 to "
            f"{classes - 1}"
        )
    if clouds.shape[1] < points:
        raise InputError(f"points is {points}: expected at most {clouds.shape[1]}, those of {name}")
    clouds = clouds[:, :points].astype(np.float32)
    if not np.isfinite(clouds).all():
        raise InputError(f"{name}: holds coordinates that are not finite; get it again")
    return clouds, labels


def _clouds(arrays: Sequence[NDArray[Any]], names: tuple[str, ...], source: str) -> PointClouds:
    a, b, c, d, e, f = (torch.from_numpy(array) for array in arrays)
    return PointClouds(a, b, c, d, e, f, names, source)


# Solids
# ------


def solids(
    *, train: int = 2400, test: int = 600, points: int = 256, noise: float = 0.03, seed: int = 0
) -> PointClouds:
    """Draw points on twelve solids of random sizes and poses: a task without a download.

    Ball, box, cylinder, cone, torus, tetrahedron, octahedron, pyramid, prism, tube, double cone and
    capsule, each a class. A solid is stretched along each of its axes by a factor exp(0.35 a), a
    uniform in [-1, 1], turned about the third axis by any angle, and tilted by at most 0.3 about
    a horizontal one. Points are uniform with respect to area, with Gaussian noise added.

    Parameters
    ----------
    train, test : int
        Number of clouds of the two parts, >= 12, in which the classes take turns.
    points : int, default 256
        Number of points of each cloud.
    noise : float, default 0.03
        Standard deviation of the noise, >= 0; the solids reach to about 1.
    seed : int, default 0
        Integer >= 0.

    Returns
    -------
    PointClouds
        The first clouds of a seed are the same however many there are.

    Raises
    ------
    InputError
        For numbers out of range.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.data.solids(train=12, test=12, points=8).names[:4]
    ('ball', 'box', 'cylinder', 'cone')
    """
    points, noise = whole(points, "points", 1), number(noise, "noise", 0)
    meshes = solid_meshes()
    arrays: list[NDArray[Any]] = []
    for name, count, purpose in (
        ("train", train, Purpose.SOLIDS),
        ("test", test, Purpose.TEST_SOLIDS),
    ):
        count = whole(count, name, len(meshes))
        labels = np.arange(count) % len(meshes)
        clouds = np.empty((count, points, 3), np.float32)
        for k, mesh in enumerate(list(meshes.values())[label] for label in labels):
            clouds[k] = _solid(mesh, points, noise, np.random.Generator(bits(seed, purpose, k)))
        arrays += [clouds, np.full(count, points), labels]
    text = f"solids: {train:,} training and {test:,} test clouds of {points:,} points"
    return _clouds(arrays, tuple(meshes), f"{text}, noise {noise:g} (seed {seed})")


def _solid(mesh: Mesh, points: int, noise: float, draw: np.random.Generator) -> FloatArray:
    """One cloud on a stretched, turned and tilted mesh."""
    factors = np.exp(0.35 * (2 * draw.random(3) - 1))
    turn, about, tilt = 2 * np.pi * draw.random(), 2 * np.pi * draw.random(), 0.3 * draw.random()
    x = _on_surface(Mesh(mesh.vertices * factors, mesh.faces), draw.random((points, 3)))
    x = x @ rotation([0, 0, 1], turn) @ rotation([np.cos(about), np.sin(about), 0], tilt)
    return x + noise * draw.standard_normal((points, 3))  # type: ignore[no-any-return]


def rotation(axis: Sequence[float], angle: float) -> FloatArray:
    """Matrix (3, 3) of the rotation about a unit vector: Rodrigues' formula."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def solid_meshes() -> dict[str, Mesh]:
    """The twelve solids as meshes; round ones by 32 steps around."""
    half, turn = np.linspace(-np.pi / 2, np.pi / 2, 17), np.linspace(0, 2 * np.pi, 33)
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    base = [[x, y, -0.8] for x in (-1, 1) for y in (-1, 1)]
    thirds = 2 * np.pi * np.arange(3) / 3
    rim = 1.1 * np.stack([np.cos(thirds), np.sin(thirds)], 1)
    cap_r = 0.7 * np.cos(np.concatenate([half[:9], half[8:]]))
    cap_z = 0.7 * np.sin(np.concatenate([half[:9], half[8:]])) + np.repeat([-0.6, 0.6], 9)
    return {
        "ball": _revolved(np.cos(half), np.sin(half)),
        "box": _hull(0.8 * corners),
        "cylinder": _revolved([0, 0.8, 0.8, 0], [-1, -1, 1, 1]),
        "cone": _revolved([0, 1, 0], [-0.8, -0.8, 1]),
        "torus": _revolved(1 + 0.4 * np.cos(turn), 0.4 * np.sin(turn)),
        "tetrahedron": _hull(corners[[0, 3, 5, 6]]),
        "octahedron": _hull(1.3 * np.concatenate([np.eye(3), -np.eye(3)])),
        "pyramid": _hull([*base, [0, 0, 1]]),
        "prism": _hull([[x, y, z] for x, y in rim for z in (-0.9, 0.9)]),
        "tube": _revolved([0.5, 0.9, 0.9, 0.5, 0.5], [-1, -1, 1, 1, -1]),
        "double cone": _revolved([0, 1, 0], [-1.2, 0, 1.2]),
        "capsule": _revolved(cap_r, cap_z),
    }


def _revolved(radius: Any, height: Any, around: int = 32) -> Mesh:
    """Mesh of a curve (radius, height) that turns about the third axis."""
    angle = 2 * np.pi * np.arange(around) / around
    r, z = (np.asarray(values, float)[:, None] for values in (radius, height))
    vertices = np.stack([r * np.cos(angle), r * np.sin(angle), z + 0 * angle], 2).reshape(-1, 3)
    ring = around * np.arange(len(r) - 1)[:, None]
    a, b = ring + np.arange(around), ring + (np.arange(around) + 1) % around
    pair = [(a, b, b + around), (a, b + around, a + around)]
    return Mesh(vertices, np.concatenate([np.stack(ends, 2).reshape(-1, 3) for ends in pair]))


def _hull(vertices: Any) -> Mesh:
    """Mesh of a convex polyhedron."""
    from scipy.spatial import ConvexHull

    corners = np.asarray(vertices, float)
    return Mesh(corners, ConvexHull(corners).simplices.astype(np.int64))
