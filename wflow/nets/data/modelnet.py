"""ModelNet40: clouds of points on the surfaces of meshes, or those of PointNet in HDF5 files."""

import functools
import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import switch, whole
from wflow._core.errors import CacheWarning, InputError, warn
from wflow._core.files import replace_file
from wflow._core.progress import progress
from wflow.nets.data.archives import BROKEN, ArchiveFile, check_lost, files_of, found
from wflow.nets.data.batches import Purpose, bits
from wflow.nets.data.clouds import PointClouds, of_arrays
from wflow.nets.data.datasets import Folder
from wflow.nets.data.download import cache_folder
from wflow.nets.data.meshes import IntArray, on_surface, parse_off

_MESHES = ("ModelNet40.zip", "ModelNet40")
_POINTS = ("modelnet40_ply_hdf5_2048.zip", "modelnet40_ply_hdf5_2048")
_CLASSES = 40
_OFFICIAL = (9843, 2468)  # meshes for training and tests
_IN_HDF5 = (9840, 2468)  # three fewer in the files of points
_DRAWN = 10_000  # points of a mesh, by default


def modelnet40(
    *, folder: Folder = None, points: int | None = None, seed: int = 0, partial: bool = False
) -> PointClouds:
    """Load ModelNet40 [1]_: clouds on the surfaces of 12,311 models of 40 kinds of objects.

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
    points : int, optional
        Number of points of each cloud; of the HDF5 files the first ones, at most 2,048. By default
        10,000 are drawn of meshes, and all 2,048 are taken of the HDF5 files.
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
    points = None if points is None else whole(points, "points", 1)
    seed, partial = whole(seed, "seed", 0), switch(partial, "partial")
    advice = (
        "get ModelNet40.zip of https://modelnet.cs.princeton.edu, or modelnet40_ply_hdf5_2048.zip"
    )
    source = found("ModelNet40", (*_MESHES, *_POINTS), folder, advice)[0]
    if source.name in _POINTS:
        return _of_points(source, points, partial)
    return _of_meshes(source, _DRAWN if points is None else points, seed, partial)


# Meshes
# ------


def _halves(
    source: Path, names: Sequence[str]
) -> tuple[tuple[str, ...], list[list[tuple[str, int]]]]:
    """Return names of the classes, and (file, label) of the two halves."""
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
    with files_of(source) as every:
        every.sort(key=lambda file: file.name)
        files = {file.name: file for file in every if file.name.endswith(".off")}
        classes, halves = _halves(source, list(files))
        counts = [len(half) for half in halves]
        _check_counts(source, len(classes), counts, _OFFICIAL, partial)
        drawn = _cached(files, halves, points, seed)
    check_lost(source, "meshes", sum(counts), drawn.faults)
    arrays, kept = [], []
    for half, clouds in zip(halves, drawn.clouds, strict=True):
        there = np.isfinite(clouds[:, 0, 0])
        kept.append(int(there.sum()))
        clouds = clouds if there.all() else clouds[there]
        labels = np.array([label for _, label in half])[there]
        arrays += [clouds, np.full(len(clouds), points), labels]
    text = f"{kept[0]:,} training and {kept[1]:,} test clouds of {points:,} points"
    return of_arrays(arrays, classes, f"ModelNet40, {text} drawn of meshes by area (seed {seed})")


class _Drawn(NamedTuple):
    """Points of the meshes of the two halves, NaN for those that cannot be used; their names."""

    clouds: list[NDArray[np.float32]]
    faults: list[str]


def _cached(
    files: dict[str, ArchiveFile], halves: list[list[tuple[str, int]]], points: int, seed: int
) -> _Drawn:
    """Return points from the cache, or draw them."""
    marks = json.dumps([(file.name, *file.mark) for file in files.values()])
    digest = hashlib.sha256(marks.encode()).hexdigest()[:32]
    cache = cache_folder()
    if cache is None:
        return _drawn(files, halves, points, seed)
    path = cache / "modelnet40" / f"{digest}-{points}-{seed}.npz"
    try:
        with np.load(path) as kept:
            drawn = _Drawn([kept["train"], kept["test"]], kept["faults"].tolist())
        if [one.shape for one in drawn.clouds] == [(len(half), points, 3) for half in halves]:
            return drawn
    except BROKEN:
        pass  # there is none, or it is damaged
    drawn = _drawn(files, halves, points, seed)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, functools.partial(_keep, drawn))
    except OSError as error:
        warn(
            f"the points cannot be kept in {path} ({error}); they are drawn again next time",
            CacheWarning,
        )
    return drawn


def _keep(drawn: _Drawn, draft: Path) -> None:
    train, test = drawn.clouds
    with open(draft, "wb") as file:  # by its name alone NumPy would append .npz
        np.savez(file, train=train, test=test, faults=np.array(drawn.faults, dtype=np.str_))


def _drawn(
    files: dict[str, ArchiveFile], halves: list[list[tuple[str, int]]], points: int, seed: int
) -> _Drawn:
    drawn = _Drawn([], [])
    with progress(sum(map(len, halves)), "points of ModelNet40") as advance:
        for half in halves:
            clouds = np.full((len(half), points, 3), np.nan, np.float32)
            for k, (name, _) in enumerate(half):
                own = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
                u = np.random.Generator(bits(seed, Purpose.SURFACE, own)).random((points, 3))
                try:
                    clouds[k] = on_surface(parse_off(files[name].read(), name), u)
                except BROKEN as error:
                    drawn.faults.append(f"{name} ({str(error).removeprefix(f'{name}: ')})")
                advance(1)
            drawn.clouds.append(clouds)
    return drawn


# Points
# ------


def _of_points(source: Path, points: int | None, partial: bool) -> PointClouds:
    """Load the points of the HDF5 files that text files name."""
    with files_of(source) as every:
        files = {file.name.rsplit("/", 1)[-1]: file for file in every}

        def content(name: str) -> bytes:
            if name not in files:
                raise InputError(f"{source}: holds no {name}; expected the files of PointNet")
            try:
                return files[name].read()
            except BROKEN as error:
                raise InputError(f"{source}: {name} is damaged ({error}); get it again") from None

        def lines(name: str) -> list[str]:
            if text := content(name).decode("utf-8", "replace").split():
                return text
            raise InputError(f"{source}: {name} is empty; expected the files of PointNet")

        classes = tuple(lines("shape_names.txt"))
        arrays: list[NDArray[Any]] = []
        for half in ("train", "test"):
            names = [line.rsplit("/", 1)[-1] for line in lines(f"{half}_files.txt")]
            parts = [_hdf5_part(content(name), name, len(classes)) for name in names]
            clouds, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
            there = clouds.shape[1]
            points = there if points is None else points
            if points > there:
                raise InputError(f"points is {points}: expected at most {there}, those of {source}")
            order = np.argsort(labels, kind="stable")
            arrays += [clouds[order, :points], np.full(len(clouds), points), labels[order]]
    counts = [len(arrays[0]), len(arrays[3])]
    _check_counts(source, len(classes), counts, _IN_HDF5, partial)
    return of_arrays(
        arrays,
        classes,
        f"ModelNet40, {counts[0]:,} training and {counts[1]:,} test clouds, the first {points:,} "
        "of the 2,048 points of PointNet",
    )


def _hdf5_part(data: bytes, name: str, classes: int) -> tuple[NDArray[np.float32], IntArray]:
    import h5py

    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            clouds = file["data"][()].astype(np.float32)
            labels = file["label"][()].astype(np.int64).reshape(-1)
    except (AttributeError, *BROKEN) as error:  # a group has no values
        raise InputError(
            f"{name}: is no whole HDF5 file of points ({error}); get it again"
        ) from None
    if (
        (clouds.ndim != 3 or clouds.shape[2] != 3 or not len(clouds) == len(labels) > 0)
        or not 0 <= labels.min() <= labels.max() < classes
        or not np.isfinite(clouds).all()
    ):
        raise InputError(
            f"{name}: holds points {clouds.shape} and labels {labels.shape}; expected finite "
            f"coordinates (n, points, 3) and n labels from 0 to {classes - 1}"
        )
    return clouds, labels
