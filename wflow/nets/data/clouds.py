"""Clouds of points with labels: ModelNet40, MNIST as sets of pixels, solids; their batches.

Meshes become clouds by sampling their surfaces with respect to area. Clouds of different sizes are
padded to one, and batches carry a mask that says which points are there.

    clouds = solids(train=2000, test=500, points=128)
    batches = CloudBatches(clouds.train_points, clouds.train_counts, clouds.train_labels, batch=50)
    points, labels = batches(step)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import ConvexHull
from torch import Tensor

from wflow._core.checks import number, reals, whole, wholes
from wflow._core.errors import InputError
from wflow.nets.checks import tensor
from wflow.nets.data.batches import ORDER, TEST, TRAIN, bits, permutation
from wflow.nets.data.datasets import Folder, mnist

FloatArray = NDArray[np.float64]
Mesh = tuple[FloatArray, NDArray[np.int64]]

# Purposes of random numbers, beyond those of `batches`.
SURFACE, SUBSET, SOLID = range(40, 43)


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


class CloudBatches:
    """Batches of clouds in a new random order in each epoch; called with a step, it gives one.

    Epochs are those of `ImageBatches`. A cloud of more points than `points` gives a random subset
    of them, a new one at each step; one of fewer is padded with zeros.

    Parameters
    ----------
    clouds : Tensor, shape (n, most, features)
        Points, floating point.
    counts : Tensor, shape (n,)
        Number of points of each cloud, 1 to most.
    labels : Tensor, shape (n,)
        Labels, integers.
    batch : int
        Clouds per step, 1 to n.
    points : int, optional
        Number of points that are taken of a cloud; None takes all of them.
    seed : int, default 0
        Integer >= 0.
    fixed : bool, default False
        Take the same places of every cloud at every step, drawn once from the seed, as the code
        does on which the experiment of [1]_ builds.
    augment : callable, optional
        Function ``augment(points, generator)`` of the points (batch, points, features) of a step
        and a `numpy.random.Generator` of that step, which returns others of this shape.

    Raises
    ------
    InputError
        For shapes or types that do not fit, a cloud without points, and numbers out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, section 5.1.

    Examples
    --------
    >>> from wflow import nets
    >>> clouds = nets.data.solids(train=24, test=12, points=32)
    >>> batches = nets.data.CloudBatches(
    ...     clouds.train_points, clouds.train_counts, clouds.train_labels, batch=8, points=20
    ... )
    >>> points, labels = batches(0)
    >>> points.shape, batches.per_epoch
    (torch.Size([8, 20, 3]), 3)
    """

    def __init__(
        self,
        clouds: Tensor,
        counts: Tensor,
        labels: Tensor,
        *,
        batch: int,
        points: int | None = None,
        seed: int = 0,
        fixed: bool = False,
        augment: Callable[[Tensor, np.random.Generator], Tensor] | None = None,
    ) -> None:
        self.clouds, self.counts, self.labels = clouds, counts, labels
        self.batch = batch
        most = clouds.shape[1]
        self.points = most if points is None else min(points, most)
        self.seed, self.fixed, self.augment = seed, fixed, augment
        self.padded = bool((counts < self.points).any())
        self._order: tuple[int, NDArray[np.int64]] | None = None  # of the last epoch used

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch: whole batches in the data."""
        return len(self.clouds) // self.batch

    def rows(self, step: int) -> NDArray[np.int64]:
        epoch, place = divmod(whole(step, "step", 0), self.per_epoch)
        kept = self._order
        if kept is None or kept[0] != epoch:
            kept = epoch, permutation(len(self.clouds), self.seed, ORDER, epoch)
            self._order = kept
        return kept[1][place * self.batch : (place + 1) * self.batch]

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        rows = torch.from_numpy(self.rows(step))
        points, counts = self.clouds[rows], self.counts[rows]
        points, there = self._subset(points, counts, bits(self.seed, SUBSET, 0 if self.fixed else step))
        labels = self.labels[rows]
        return (points, there, labels) if self.padded else (points, labels)

    def evaluation(self, batch: int | None = None) -> Iterator[tuple[Tensor, ...]]:
        size = self.batch if batch is None else batch
        for k in range(0, len(self.clouds), size):
            points, counts = self.clouds[k:k+size], self.counts[k:k+size]
            points, there = self._subset(points, counts, bits(self.seed, SUBSET, k))
            labels = self.labels[k:k+size]
            yield (points, there, labels) if self.padded else (points, labels)

    def _subset(self, points, counts, raw):
        n, most, features = points.shape
        place = torch.arange(self.points)
        there = place < counts[:, None]
        if self.points < most:
            keys = raw.random_raw(n * most).reshape(n, most) >> np.uint64(1)
            keys[np.arange(most) >= counts.numpy()[:, None]] = np.iinfo(np.uint64).max
            kept = np.sort(np.argpartition(keys, self.points - 1, axis=1)[:, : self.points], axis=1)
            points = points.gather(1, torch.from_numpy(kept)[:, :, None].expand(-1, -1, features))
        return points, there


def mnist_clouds(*, folder: Folder = None, digits: int | None = None) -> PointClouds:
    images = mnist(folder=folder, digits=digits)
    parts = [_pixels(x) for x in (images.train_images, images.test_images)]
    return PointClouds(*parts[0], images.train_labels.long(), *parts[1], images.test_labels.long(),
        tuple("0123456789"), images.source)


def _pixels(images: Tensor):
    n, rows, columns = images.shape
    flat = images.flatten(1)
    counts = (flat > 0).sum(1)
    most = int(counts.max())
    order = (flat == 0).long().argsort(dim=1, stable=True)[:, :most]
    there = torch.arange(most) < counts[:, None]
    x = (order % columns - (columns - 1) / 2) / 7
    y = ((rows - 1) / 2 - order // columns) / 7
    grey = flat.gather(1, order) / 255
    return torch.stack([x, y, grey], 2).float() * there[:, :, None], counts


def sample_surface(vertices, faces, points: int, seed: int = 0) -> FloatArray:
    return _sampled(vertices, faces, np.random.Generator(bits(seed, SURFACE)).random((points, 3)))


def _sampled(vertices, faces, u):
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    areas = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    ends = np.cumsum(areas)
    which = np.searchsorted(ends, u[:, 0] * ends[-1], side="right").clip(max=len(faces) - 1)
    s = np.sqrt(u[:, 1:2])
    t = u[:, 2:]
    return (1 - s) * a[which] + s * (1 - t) * b[which] + s * t * c[which]


def _revolved(radius, height, around=32) -> Mesh:
    """Mesh of a curve (radius, height) turned around the vertical axis."""
    angle = 2 * np.pi * np.arange(around) / around
    r, z = np.asarray(radius, float)[:, None], np.asarray(height, float)[:, None]
    vertices = np.stack([r * np.cos(angle), r * np.sin(angle), z + 0 * angle], 2).reshape(-1, 3)
    ring = np.arange(len(radius) - 1)[:, None] * around
    here, there = np.arange(around), (np.arange(around) + 1) % around
    low, next_ = ring + here, ring + there
    faces = np.concatenate([
        np.stack([low, next_, next_ + around], 2).reshape(-1, 3),
        np.stack([low, next_ + around, low + around], 2).reshape(-1, 3),
    ])
    return vertices, faces


def _hull(vertices) -> Mesh:
    vertices = np.asarray(vertices, float)
    return vertices, ConvexHull(vertices).simplices.astype(np.int64)


def _meshes() -> dict[str, Mesh]:
    half = np.linspace(-np.pi / 2, np.pi / 2, 17)
    turn = np.linspace(0, 2 * np.pi, 33)
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    square = [[-1, -1, -0.8], [-1, 1, -0.8], [1, -1, -0.8], [1, 1, -0.8]]
    triangle = [[np.cos(t), np.sin(t)] for t in 2 * np.pi * np.arange(3) / 3]
    return {
        "ball": _revolved(np.cos(half), np.sin(half)),
        "box": _hull(0.8 * corners),
        "cylinder": _revolved([0, 0.8, 0.8, 0], [-1, -1, 1, 1]),
        "cone": _revolved([0, 1, 0], [-0.8, -0.8, 1]),
        "torus": _revolved(1 + 0.4 * np.cos(turn), 0.4 * np.sin(turn)),
        "tetrahedron": _hull(corners[[0, 3, 5, 6]]),
        "octahedron": _hull(1.3 * np.concatenate([np.eye(3), -np.eye(3)])),
        "pyramid": _hull([*square, [0, 0, 1]]),
        "prism": _hull([[1.1 * x, 1.1 * y, z] for x, y in triangle for z in (-0.9, 0.9)]),
        "tube": _revolved([0.5, 0.9, 0.9, 0.5, 0.5], [-1, -1, 1, 1, -1]),
        "bicone": _revolved([0, 1, 0], [-1.2, 0, 1.2]),
        "capsule": _revolved(0.7 * np.concatenate([np.cos(half[:9]), np.cos(half[8:])]),
            np.concatenate([0.7 * np.sin(half[:9]) - 0.6, 0.7 * np.sin(half[8:]) + 0.6])),
    }


def solids(*, train: int = 2400, test: int = 600, points: int = 128, noise: float = 0.05, seed: int = 0):
    meshes = list(_meshes().values())
    def part(n, purpose):
        clouds = np.empty((n, points, 3), np.float32)
        for k in range(n):
            gen = np.random.Generator(bits(seed, SOLID + 10 * purpose, k))
            vertices, faces = meshes[k % len(meshes)]
            size = np.exp(0.35 * (2 * gen.random(3) - 1))
            x = _sampled(vertices * size, faces, gen.random((points, 3)))
            turn, where, tilt = 2 * np.pi * gen.random(), 2 * np.pi * gen.random(), 0.3 * gen.random()
            x = x @ _rotation([0, 0, 1], turn) @ _rotation([np.cos(where), np.sin(where), 0], tilt)
            clouds[k] = x + noise * gen.standard_normal((points, 3))
        return torch.from_numpy(clouds), torch.full((n,), points), torch.arange(n) % len(meshes)
    return PointClouds(*part(train, 0), *part(test, 1), tuple(_meshes()), "solids")


def _rotation(axis, angle):
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
