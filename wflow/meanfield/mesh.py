"""Meshes of the circle and the sphere for finite volumes: Voronoi cells, their faces and operators.

The face between the cells i and j has the length l_ij, and the two centres the geodesic distance
d_ij. The face is perpendicular to the geodesic between the centres and lies midway between them:
this is what makes two-point fluxes consistent. In the theory: docs/theory/mean_field.md.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.spatial import ConvexHull, QhullError, cKDTree

from wflow._core.checks import read_only, reals, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow.sphere.geometry import as_tokens, normalise_unchecked, project_unchecked

Floats = NDArray[np.floating]
Places = NDArray[np.integer]

_FEWEST = 4  # cells of a circle: fewer have no gradient that means anything
_NEAREST = 1e-7  # centres closer than this are one point that was given twice
_BYTES = 1500  # of a cell with its faces and operators


class Quadrature:
    """Points (cell, axis) on the circle or the sphere with weights `areas` (cell,), of sum 2 pi or
    4 pi: what densities are values at. `dim` is 1 for the circle, 2 for the sphere.
    """

    def __init__(self, centres: Floats, areas: Floats) -> None:
        self.centres, self.areas = read_only(centres), read_only(areas)
        self.dim = centres.shape[1] - 1

    @property
    def cells(self) -> int:
        """The number of cells.

        Returns
        -------
        int
            Number of cells.
        """
        return len(self.areas)

    def integrate(self, values: ArrayLike) -> Any:
        r"""Return the integral of values over the cells.

        Parameters
        ----------
        values : array_like, shape (..., cell)
            Values.

        Returns
        -------
        float or ndarray, shape (...)
            Integrals.

        Raises
        ------
        InputError
            For another number of cells, and values that are not finite.

        Notes
        -----
        The integral is :math:`\sum_i a_i v_i`.

        Examples
        --------
        >>> import numpy as np
        >>> from wflow import meanfield
        >>> bool(np.isclose(meanfield.Circle(8).integrate(np.ones(8)), 2 * np.pi))
        True
        """
        return over_cells(self, values) @ self.areas


class Mesh(Quadrature):
    r"""Voronoi cells of points on the circle or the sphere, which `Circle` and `Sphere` make.

    Parameters
    ----------
    centres : ndarray, shape (cell, axis)
        Points on the unit sphere, one for each cell.
    areas : ndarray, shape (cell,)
        Areas of the cells; on the circle their lengths.
    faces : ndarray of int, shape (face, 2)
        The two cells of every face.
    lengths : ndarray, shape (face,)
        Lengths of the faces; on the circle, where a face is a point, one.
    distances : ndarray, shape (face,)
        Geodesic distances of the two centres.

    Attributes
    ----------
    dim : int
        Dimension of the mesh: 1 for a circle, 2 for a sphere.

    Notes
    -----
    A density over the cells has unit mass with respect to the areas,

    .. math:: \sum_i a_i \rho_i = 1 .

    In the theory: :ref:`finite volumes <theory-finite-volumes>`.

    Examples
    --------
    >>> from wflow import meanfield
    >>> mesh = meanfield.Sphere(42)
    >>> mesh.centres.shape, mesh.faces.shape, mesh.dim
    ((42, 3), (120, 2), 2)
    """

    def __init__(
        self, centres: Floats, areas: Floats, faces: Places, lengths: Floats, distances: Floats
    ) -> None:
        super().__init__(centres, areas)
        self.faces, self.lengths = read_only(faces), read_only(lengths)
        self.distances = read_only(distances)

    @property
    def width(self) -> float:
        """The largest distance between the centres of neighbours.

        Returns
        -------
        float
            Distance in radians.
        """
        return float(self.distances.max())

    def gradient(self, values: ArrayLike) -> Floats:
        r"""Return the gradients of values over the cells.

        Parameters
        ----------
        values : array_like, shape (..., cell)
            Values.

        Returns
        -------
        ndarray, shape (..., cell, axis)
            Tangential vectors at the centres.

        Raises
        ------
        InputError
            For another number of cells, and values that are not finite.

        Notes
        -----
        The gradient at a centre fits the differences with the neighbours best,

        .. math:: \min_g \sum_j \frac{l_{ij}}{d_{ij}}
            \bigl(v_j - v_i - \langle g, u_{ij} \rangle\bigr)^2 ,

        where :math:`u_{ij}` is the initial vector of the geodesic from centre i to centre j, of
        length :math:`d_{ij}`.

        Examples
        --------
        >>> import numpy as np
        >>> from wflow import meanfield
        >>> mesh = meanfield.Circle(100)
        >>> slope = mesh.gradient(mesh.centres[:, 1])[0]
        >>> bool(np.allclose(slope, [0, 1], atol=1e-3))
        True
        """
        given = over_cells(self, values)
        flat = given.reshape(-1, self.cells).T
        return np.stack([(axis @ flat).T.reshape(given.shape) for axis in self.slopes], axis=-1)

    def laplacian(self) -> sparse.csr_matrix:
        r"""Return the Laplacian of values over the cells.

        Returns
        -------
        scipy.sparse.csr_matrix, shape (cell, cell)
            Matrix of the two-point differences.

        Notes
        -----
        It is [1]_

        .. math:: (L v)_i = \frac{1}{a_i} \sum_j \frac{l_{ij}}{d_{ij}} (v_j - v_i) .

        Its eigenvalues approximate those of the Laplacian, -l (l + dim - 1), with errors of second
        order in the widths of the cells.

        References
        ----------
        .. [1] Eymard, Gallouët and Herbin, *Finite volume methods*, Handbook of Numerical Analysis
           VII (2000), section 9.

        Examples
        --------
        >>> import numpy as np
        >>> from wflow import meanfield
        >>> mesh = meanfield.Circle(100)
        >>> second = mesh.laplacian() @ mesh.centres[:, 0]
        >>> bool(np.allclose(second, -mesh.centres[:, 0], atol=1e-3))
        True
        """
        sides = np.tile([1.0, -1.0], len(self.faces)), self.faces.reshape(-1)
        rows = np.repeat(np.arange(len(self.faces)), 2)
        differences = sparse.csr_matrix((sides[0], (rows, sides[1])), shape=self.net.shape[::-1])
        return (self.net @ sparse.diags(-1 / self.distances) @ differences).tocsr()

    def nearest(self, points: ArrayLike) -> Any:
        """Return the cells in which points lie.

        Parameters
        ----------
        points : array_like, shape (..., axis)
            Points, which are put on the unit sphere.

        Returns
        -------
        int or ndarray of int, shape (...)
            Numbers of the cells.

        Raises
        ------
        InputError
            For points of another dimension, that are not finite, or that have no direction.

        Examples
        --------
        >>> from wflow import meanfield
        >>> int(meanfield.Circle(4).nearest([0.1, 1.0]))
        1
        """
        unit = points_of(self, points, "points")
        return self._tree.query(unit)[1]

    @cached_property
    def net(self) -> sparse.csr_matrix:
        """Rates (cell, face): (1/a_i) times +-l_ij, positive for the first cell of a face."""
        count = len(self.faces)
        both = np.concatenate([self.lengths, -self.lengths])
        cells = self.faces.T.reshape(-1)
        return sparse.csr_matrix(
            (both / self.areas[cells], (cells, np.tile(np.arange(count), 2))),
            shape=(self.cells, count),
        )

    @cached_property
    def gross(self) -> sparse.csr_matrix:
        """Rates (cell, 2 face): (1/a_i) l_ij, for the first cells and then for the second ones."""
        count = len(self.faces)
        cells = self.faces.T.reshape(-1)
        rates = np.tile(self.lengths, 2) / self.areas[cells]
        return sparse.csr_matrix(
            (rates, (cells, np.arange(2 * count))), shape=(self.cells, 2 * count)
        )

    def normals(self) -> Floats:
        """Return the normals of the faces, midway between the centres.

        Returns
        -------
        ndarray, shape (face, axis)
            Unit vectors from the first cell of a face to the second, tangential to the sphere.

        Examples
        --------
        >>> from wflow import meanfield
        >>> meanfield.Circle(4).normals()[0].round(3)
        array([-0.707,  0.707])
        """
        first, second = self.centres[self.faces[:, 0]], self.centres[self.faces[:, 1]]
        return normalise_unchecked(second - first)

    def _scatter(self, masses: Floats, n: int, generator: np.random.Generator) -> Floats:
        """Points (n, axis), independent, from cells of these masses; uniform within a cell."""
        raise NotImplementedError

    def refined(self) -> Mesh:
        """Return a mesh of half the width.

        Returns
        -------
        Mesh
            Mesh whose centres are those of this one and the middles between neighbours.

        Examples
        --------
        >>> from wflow import meanfield
        >>> meanfield.Sphere(42).refined().cells
        162
        """
        raise NotImplementedError

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.centres)

    @cached_property
    def slopes(self) -> list[sparse.csr_matrix]:
        """Matrices (cell, cell) of the components of the gradient."""
        first, second = self.faces.T
        here, there = np.concatenate([first, second]), np.concatenate([second, first])
        away = project_unchecked(self.centres[here], self.centres[there])
        steps = normalise_unchecked(away) * np.tile(self.distances, 2)[:, None]
        weights = np.tile(self.lengths / self.distances, 2)
        axes = self.centres.shape[1]
        # x x^T fills the direction that no tangential vector has.
        normal = np.einsum("ia,ib->iab", self.centres, self.centres)
        for a in range(axes):
            for b in range(axes):
                products = weights * steps[:, a] * steps[:, b]
                normal[:, a, b] += np.bincount(here, products, self.cells)
        rows = np.einsum("eab,eb->ea", np.linalg.inv(normal)[here], steps) * weights[:, None]
        shape = (self.cells, self.cells)
        matrices = [sparse.csr_matrix((rows[:, a], (here, there)), shape) for a in range(axes)]
        return [each - sparse.diags(np.asarray(each.sum(axis=1)).ravel()) for each in matrices]


class Circle(Mesh):
    """The circle in equal arcs.

    Parameters
    ----------
    cells : int
        Number of arcs, at least 4. The centre of the first has the angle 0.

    Raises
    ------
    InputError
        For fewer cells, or more than fit into memory.

    See Also
    --------
    Sphere : Voronoi cells on the sphere.

    Examples
    --------
    >>> from wflow import meanfield
    >>> mesh = meanfield.Circle(4)
    >>> mesh.centres.round(12) + 0.0
    array([[ 1.,  0.],
           [ 0.,  1.],
           [-1.,  0.],
           [ 0., -1.]])
    """

    def __init__(self, cells: int) -> None:
        count = whole(cells, "cells", _FEWEST)
        check_memory(_BYTES * count, f"a circle of {count} cells", "take fewer")
        angles = 2 * math.pi * np.arange(count) / count
        places = np.arange(count)
        super().__init__(
            np.stack([np.cos(angles), np.sin(angles)], axis=1),
            np.full(count, 2 * math.pi / count),
            np.stack([places, np.roll(places, -1)], axis=1),
            np.ones(count),
            np.full(count, 2 * math.pi / count),
        )

    def __repr__(self) -> str:
        return f"Circle({self.cells})"

    def refined(self) -> Circle:
        return Circle(2 * self.cells)

    def _along(self, angles: Floats) -> Floats:
        return np.stack([np.cos(angles), np.sin(angles)], axis=-1)

    def _scatter(self, masses: Floats, n: int, generator: np.random.Generator) -> Floats:
        cells = generator.choice(self.cells, n, p=masses / masses.sum())
        return self._along((cells + generator.random(n) - 0.5) * 2 * math.pi / self.cells)


class Sphere(Mesh):
    r"""The sphere in Voronoi cells, of an icosahedral grid or of any points.

    Parameters
    ----------
    cells : int or array_like, shape (cell, 3)
        Number of cells of an icosahedral grid, 10 f^2 + 2 with a whole number f, such as 12, 42,
        162, 642, 2562 and 10242; or the points themselves, which are put on the unit sphere.

    Raises
    ------
    InputError
        For another number, points that are given twice, and points that leave a hemisphere empty.

    See Also
    --------
    Circle : Equal arcs.

    Notes
    -----
    The corners of the cells are the centres of the circles through three neighbours [1]_; with them
    the cell is made of triangles with the corner at its centre, whose areas are

    .. math:: \tan\frac{A}{2} = \frac{|\det(a, b, c)|}
        {1 + \langle a, b \rangle + \langle b, c \rangle + \langle c, a \rangle} .

    References
    ----------
    .. [1] Du, Gunzburger and Ju, *Voronoi-based finite volume methods, optimal Voronoi meshes, and
       PDEs on the sphere*, Comput. Methods Appl. Mech. Engrg. 192 (2003).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import meanfield
    >>> mesh = meanfield.Sphere(162)
    >>> bool(np.isclose(mesh.areas.sum(), 4 * np.pi))
    True
    """

    def __init__(self, cells: int | ArrayLike) -> None:
        self.icosahedral = reals(cells, "cells").ndim == 0
        if self.icosahedral:
            points, triangles = _icosahedral(whole(cells, "cells", 12))
        else:
            points = _generators(cells)
            triangles = _delaunay(points)
        corners = _circumcentres(points, triangles)
        faces, sides = _edges(triangles, len(points))
        ends = corners[sides]  # (face, 2, axis)
        lengths = _arc(ends[:, 0], ends[:, 1])
        # The triangles on both sides of a face are mirror images.
        halves = _triangle_areas(points[faces[:, 0]], ends[:, 0], ends[:, 1])
        areas = np.bincount(faces.reshape(-1), np.repeat(halves, 2), len(points)).astype(float)
        kept = lengths > 1e-9 * math.sqrt(4 * math.pi / len(points))  # four cells meet in a corner
        distances = _arc(points[faces[:, 0]], points[faces[:, 1]])
        super().__init__(points, areas, faces[kept], lengths[kept], distances[kept])
        self._ends, self._halves = ends[kept], halves[kept]

    def __repr__(self) -> str:
        return f"Sphere({self.cells})" if self.icosahedral else f"Sphere(array({self.cells}, 3))"

    def refined(self) -> Sphere:
        if self.icosahedral:
            return Sphere(4 * (self.cells - 2) + 2)
        first, second = self.centres[self.faces[:, 0]], self.centres[self.faces[:, 1]]
        return Sphere(np.concatenate([self.centres, normalise_unchecked(first + second)]))

    def _triangles(self) -> tuple[Floats, Places, Floats]:
        """Corners (2 face, 3, axis) of all triangles, their cells and their areas."""
        cells = self.faces.T.reshape(-1)
        corners = np.concatenate([self.centres[cells][:, None], np.tile(self._ends, (2, 1, 1))], 1)
        return corners, cells, np.tile(self._halves, 2)

    def _scatter(self, masses: Floats, n: int, generator: np.random.Generator) -> Floats:
        corners, cells, areas = self._triangles()
        shares = (masses / self.areas)[cells] * areas
        chosen = corners[generator.choice(len(cells), n, p=shares / shares.sum())]
        return _in_triangles(chosen, generator.random(n), generator.random(n))


def points_of(mesh: Quadrature, points: ArrayLike, name: str) -> Floats:
    """Points (..., axis) on the unit sphere of a mesh, checked.

    Raises
    ------
    InputError
        For another dimension, and vectors that are not finite or zero.
    """
    given = reals(points, name, finite=False)
    axes = mesh.dim + 1
    if given.ndim < 1 or given.shape[-1] != axes or not given.size:
        raise InputError(
            f"{name} have shape {given.shape}: expected points of the mesh, (..., {axes})"
        )
    return as_tokens(given.reshape(-1, axes), name).reshape(given.shape)


def over_cells(mesh: Quadrature, values: ArrayLike) -> Floats:
    """Values (..., cell), checked to be real and finite.

    Raises
    ------
    InputError
        For another number of cells, and values that are not finite.
    """
    given = reals(values, "values")
    if given.ndim < 1 or given.shape[-1] != mesh.cells:
        raise InputError(
            f"values have shape {given.shape}: expected values over the {mesh.cells} cells of the "
            f"mesh, (..., {mesh.cells})"
        )
    return given


def _icosahedral(cells: int) -> tuple[Floats, Places]:
    """Points and triangles of the icosahedral grid with this number of cells.

    Every face of the icosahedron is divided by a plane lattice of odd frequency; halving the edges
    gives the factors of two, and triangles of more equal sizes than a finer lattice.
    """
    frequency = math.isqrt((cells - 2) // 10)
    if 10 * frequency**2 + 2 != cells:
        near = [10 * f**2 + 2 for f in (frequency, frequency + 1)]
        raise InputError(
            f"cells is {cells}: an icosahedral grid has 10 f^2 + 2 of them, such as {near[0]} and "
            f"{near[1]}; give one of these, or the points themselves, (cell, 3)"
        )
    check_memory(_BYTES * cells, f"a sphere of {cells} cells", "take fewer")
    golden = (1 + math.sqrt(5)) / 2
    corners = [[0.0, s, t * golden] for s in (1, -1) for t in (1, -1)]
    points = normalise_unchecked(np.array([np.roll(c, k) for k in range(3) for c in corners]))
    triangles = _delaunay(points)
    odd = frequency
    while odd % 2 == 0:
        odd //= 2
    points, triangles = _divided(points, triangles, odd)
    while odd < frequency:
        points, triangles = _halved(points, triangles)
        odd *= 2
    return points, triangles


def _halved(points: Floats, triangles: Places) -> tuple[Floats, Places]:
    """Every triangle in four, by the middles of its edges."""
    pairs, _ = _edges(triangles, len(points))
    middles = normalise_unchecked(points[pairs[:, 0]] + points[pairs[:, 1]])
    codes = pairs[:, 0] * len(points) + pairs[:, 1]  # increasing
    a, b, c = triangles.T
    ab, bc, ca = (
        len(points) + np.searchsorted(codes, np.minimum(p, q) * len(points) + np.maximum(p, q))
        for p, q in ((a, b), (b, c), (c, a))
    )
    parts = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
    return (
        np.concatenate([points, middles]),
        np.concatenate([np.stack(part, axis=1) for part in parts]),
    )


def _divided(points: Floats, triangles: Places, parts: int) -> tuple[Floats, Places]:
    """Every triangle of a coarse mesh in parts^2 of them, by a lattice on its plane."""
    if parts == 1:
        return points, triangles
    lattice = [(i, j) for i in range(parts + 1) for j in range(parts + 1 - i)]
    place = {ij: k for k, ij in enumerate(lattice)}
    up = [(i, j) for i, j in lattice if i + j < parts]
    down = [(i, j) for i, j in up if i + j < parts - 1]
    small = [(place[i, j], place[i + 1, j], place[i, j + 1]) for i, j in up]
    small += [(place[i + 1, j], place[i + 1, j + 1], place[i, j + 1]) for i, j in down]
    weights = np.array([[parts - i - j, i, j] for i, j in lattice])
    # A node is known by its corners with their weights, whichever triangle it is seen from.
    size = len(points) * (parts + 1)
    marks = np.where(weights > 0, triangles[:, None] * (parts + 1) + weights, 0)
    marks = np.sort(marks.reshape(-1, 3), axis=1)
    codes = (marks[:, 0] * size + marks[:, 1]) * size + marks[:, 2]
    _, first, number = np.unique(codes, return_index=True, return_inverse=True)
    nodes = np.einsum("qk,tka->tqa", weights / parts, points[triangles]).reshape(-1, 3)
    numbers = number.reshape(len(triangles), -1)
    return normalise_unchecked(nodes[first]), numbers[:, np.array(small)].reshape(-1, 3)


def _generators(given: ArrayLike) -> Floats:
    points = as_tokens(given, "points")
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(
            f"points have shape {points.shape}: meshes exist on the circle, by their number of "
            "cells, and on the sphere, of points (cell, 3)"
        )
    check_memory(_BYTES * len(points), f"a sphere of {len(points)} cells", "take fewer")
    close, other = cKDTree(points).query(points, k=min(2, len(points)))
    if close.ndim == 2 and close[:, 1].min() < _NEAREST:
        twice = int(np.argmin(close[:, 1]))
        raise InputError(
            f"points {twice} and {int(other[twice].max())} are {close[twice, 1]:.3g} apart: a mesh "
            "has every point once; remove one of them"
        )
    return points


def _delaunay(points: Floats) -> Places:
    """Triangles (t, 3) of the convex hull: those whose circle holds no other point."""
    hole = (
        f"the {len(points)} points leave a hemisphere of the sphere empty: their cells would have "
        "a hole; add points there"
    )
    if len(points) < 4:
        raise InputError(hole)
    try:
        hull = ConvexHull(points)
    except QhullError:
        raise InputError(hole) from None
    if hull.equations[:, 3].max() > -1e-9:
        raise InputError(hole)
    if len(hull.vertices) < len(points):
        lost = np.setdiff1d(np.arange(len(points)), hull.vertices)
        raise InputError(f"point {lost[0]} is too close to others to have a cell; remove it")
    return np.asarray(hull.simplices, np.int64)


def _circumcentres(points: Floats, triangles: Places) -> Floats:
    a, b, c = (points[triangles[:, k]] for k in range(3))
    normal = np.cross(b - a, c - a)
    outward = np.where(np.einsum("ta,ta->t", normal, a) < 0, -1.0, 1.0)
    return normalise_unchecked(normal * outward[:, None])


def _edges(triangles: Places, count: int) -> tuple[Places, Places]:
    """Edges (face, 2) of a triangulation, and the two triangles of each, (face, 2)."""
    pairs = np.sort(np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, ::2]]))
    owner = np.tile(np.arange(len(triangles)), 3)
    order = np.argsort(pairs[:, 0] * count + pairs[:, 1], kind="stable")
    return pairs[order][::2], owner[order].reshape(-1, 2)


def _arc(a: Floats, b: Floats) -> Floats:
    """Geodesic distances, accurate for points that are close."""
    return 2 * np.arctan2(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))


def _triangle_areas(a: Floats, b: Floats, c: Floats) -> Floats:
    # Of differences, so that small triangles keep their digits.
    volume = np.abs(np.einsum("ta,ta->t", a, np.cross(b - a, c - a)))
    sides = sum(np.einsum("ta,ta->t", p, q) for p, q in ((a, b), (b, c), (c, a)))
    return 2 * np.arctan2(volume, 1 + sides)


def _in_triangles(corners: Floats, u: Floats, v: Floats) -> Floats:
    """Points of spherical triangles (n, 3, axis), uniform for uniform u and v.

    Source: J. Arvo, Stratified sampling of spherical triangles, SIGGRAPH 1995.
    """
    a, b, c = (corners[:, k] for k in range(3))
    to_b = normalise_unchecked(project_unchecked(a, b - a))
    to_c = normalise_unchecked(project_unchecked(a, c - a))
    alpha = np.arctan2(
        np.linalg.norm(np.cross(to_b, to_c), axis=1), np.einsum("na,na->n", to_b, to_c)
    )
    area = u * _triangle_areas(a, b, c)
    cos_c = np.einsum("na,na->n", a, b)
    s, t = np.sin(area - alpha), np.cos(area - alpha)
    p = t - np.cos(alpha)
    q = s + np.sin(alpha) * cos_c
    top = (q * t - p * s) * np.cos(alpha) - q
    bottom = (q * s + p * t) * np.sin(alpha)
    z = np.clip(np.divide(top, bottom, out=np.ones_like(top), where=bottom != 0), -1.0, 1.0)
    third = z[:, None] * a + np.sqrt(1 - z * z)[:, None] * to_c
    height = 1 - v * (1 - np.einsum("na,na->n", third, b))
    along = normalise_unchecked(project_unchecked(b, third - b))
    return normalise_unchecked(
        height[:, None] * b + np.sqrt(np.maximum(1 - height**2, 0))[:, None] * along
    )
