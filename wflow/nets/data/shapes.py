"""Twelve solids as clouds of points on their surfaces: a task of shapes without a download."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import number, whole
from wflow.nets.data.batches import Purpose, bits
from wflow.nets.data.clouds import PointClouds, of_arrays
from wflow.nets.data.meshes import FloatArray, Mesh, on_surface


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
    return of_arrays(arrays, tuple(meshes), f"{text}, noise {noise:g} (seed {seed})")


def _solid(mesh: Mesh, points: int, noise: float, draw: np.random.Generator) -> FloatArray:
    """Draw one cloud on a stretched, turned and tilted mesh."""
    factors = np.exp(0.35 * (2 * draw.random(3) - 1))
    turn, about, tilt = 2 * np.pi * draw.random(), 2 * np.pi * draw.random(), 0.3 * draw.random()
    x = on_surface(Mesh(mesh.vertices * factors, mesh.faces), draw.random((points, 3)))
    x = x @ rotation([0, 0, 1], turn) @ rotation([np.cos(about), np.sin(about), 0], tilt)
    return x + noise * draw.standard_normal((points, 3))  # type: ignore[no-any-return]


def rotation(axis: Sequence[float], angle: float) -> FloatArray:
    """Return the matrix (3, 3) of the rotation about a unit vector, by Rodrigues' formula."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def solid_meshes() -> dict[str, Mesh]:
    """Return the twelve solids as meshes; round ones by 32 steps around."""
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
    """Return the mesh of a curve (radius, height) that turns about the third axis."""
    angle = 2 * np.pi * np.arange(around) / around
    r, z = (np.asarray(values, float)[:, None] for values in (radius, height))
    vertices = np.stack([r * np.cos(angle), r * np.sin(angle), z + 0 * angle], 2).reshape(-1, 3)
    ring = around * np.arange(len(r) - 1)[:, None]
    a, b = ring + np.arange(around), ring + (np.arange(around) + 1) % around
    pair = [(a, b, b + around), (a, b + around, a + around)]
    return Mesh(vertices, np.concatenate([np.stack(ends, 2).reshape(-1, 3) for ends in pair]))


def _hull(vertices: Any) -> Mesh:
    """Return the mesh of a convex polyhedron."""
    from scipy.spatial import ConvexHull

    corners = np.asarray(vertices, float)
    return Mesh(corners, ConvexHull(corners).simplices.astype(np.int64))
