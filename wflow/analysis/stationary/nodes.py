r"""Nodes on the sphere, with harmonics and their gradients, which represent densities.

Internally a density p is relative to the uniform law and weights w sum to one. Harmonics are
polynomials in the coordinates (`wflow.sphere.polynomials`): one in the height, times a harmonic
around the axis.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import read_only, reals, shown, whole
from wflow._core.errors import InputError
from wflow.sphere.polynomials import gegenbauer, gegenbauer_slopes, legendre

Floats = NDArray[np.float64]

LARGEST_D = 400  # beyond it the nodes leave the heights at which clusters stand
SMALLEST = 1e-290  # Bessel functions below it have lost digits
MOST_CELLS = 6000  # whose kernel is a dense matrix
_SECTORS = 4  # orders of harmonics around the axis that stability is asked for
_DEGREE = 24  # largest degree of harmonics on meshes of the sphere


class Sector(NamedTuple):
    """Orthonormal harmonics at the nodes; of an axis, those of one order around it.

    values : (cell, k); gradient : (component, cell, k); eigenvalue : (k,), of minus the Laplacian.
    """

    values: Floats
    gradient: Floats
    eigenvalue: Floats
    project: Floats  # (k, cell): coefficients of a function from its values

    def derivative(self, values: Floats) -> Floats:
        """Return the gradient (component, cell, ...) of functions (cell, ...)."""
        return np.asarray(self.gradient @ (self.project @ values))


class Nodes:
    r"""Nodes of a quadrature on the sphere, for stationary densities.

    Made by `axial`, `circle` and `sphere`. Functions of `wflow.stationary` take these, and any mesh
    on the circle or the sphere with `centres` (cell, axis) and `areas` (cell,).

    Parameters
    ----------
    centres : array_like, shape (cell, axis)
        Unit vectors.
    areas : array_like, shape (cell,)
        Weights > 0 whose sum is the area of the sphere.

    Attributes
    ----------
    has_axis : bool
        Whether a node is the circle of all points of its height along the last axis.

    Raises
    ------
    InputError
        For centres that are no unit vectors, weights that are not positive, or that do not sum up
        to the area of the sphere within 2 %.

    Notes
    -----
    Integrals are the sums

    .. math:: \int f(x)\,dx \approx \sum_i a_i f(x_i) .

    In the theory: :ref:`stationary laws <theory-stationary>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> nodes = wflow.stationary.Nodes.axial(3, 20)
    >>> bool(np.isclose(nodes.areas @ nodes.centres[:, -1] ** 2, 4 * np.pi / 3))
    True
    """

    has_axis: bool = False

    def __init__(self, centres: ArrayLike, areas: ArrayLike) -> None:
        x, weights = reals(centres, "centres"), reals(areas, "areas")
        if x.ndim != 2 or x.shape[1] < 2 or weights.shape != x.shape[:1]:
            raise InputError(
                f"centres have shape {x.shape} and areas {weights.shape}: expected (cell, axis) "
                "and (cell,), as meshes have them"
            )
        if len(x) < 4 or not np.allclose(np.linalg.norm(x, axis=1), 1, atol=1e-8):
            raise InputError("centres must be at least four unit vectors")
        total = sphere_area(x.shape[1])
        if not (weights > 0).all() or abs(weights.sum() / total - 1) > 0.02:
            raise InputError(
                f"areas must be > 0 with the sum {total:.6g}, the area of the sphere in dimension "
                f"{x.shape[1]}; the sum is {weights.sum():.6g}"
            )
        if x.shape[1] > 3:
            raise InputError(
                f"centres have {x.shape[1]} axes: densities without symmetry are on the circle and "
                "the sphere, d = 2, 3; for other d take Nodes.axial(d)"
            )
        if len(x) > MOST_CELLS:
            raise InputError(
                f"the mesh has {len(x)} cells, and their kernel is a dense matrix: take up to "
                f"{MOST_CELLS}, or Nodes.sphere(degree), and State.at(mesh.centres) there"
            )
        self.centres, self.areas = read_only(x), read_only(weights)

    def __repr__(self) -> str:
        kind = "axial" if self.has_axis else "all"
        return f"Nodes({len(self.areas)} cells, d={self.d}, {kind})"

    @classmethod
    def axial(cls, d: int, count: int = 96) -> Nodes:
        """Return Gauss-Gegenbauer nodes in the height on the last axis, for axially symmetric laws.

        Parameters
        ----------
        d : int
            Dimension, from 2 to 400. For d = 2, laws that are symmetric about the axis.
        count : int, default 96
            Number of nodes, from 8 to 1000.

        Returns
        -------
        Nodes
            Nodes and weights, exact for polynomials of degree 2 count - 1.

        Raises
        ------
        InputError
            For arguments out of range.
        """
        d, count = whole(d, "d", 2, most=LARGEST_D), whole(count, "count", 8, most=1000)
        z, weight = heights(d, count)
        x = np.zeros((count, d))
        x[:, -1], x[:, 0] = z, np.sqrt(1 - z * z)
        found = cls.__new__(cls)
        found.centres, found.areas = read_only(x), read_only(weight * sphere_area(d))
        found.has_axis = True
        return found

    @classmethod
    def circle(cls, count: int = 128) -> Nodes:
        """Return equidistant nodes on the circle.

        Parameters
        ----------
        count : int, default 128
            Number of nodes, from 8 to 2000.

        Returns
        -------
        Nodes
            Nodes and equal weights, exact for trigonometric polynomials of degree count - 1.

        Raises
        ------
        InputError
            For a count out of range.
        """
        count = whole(count, "count", 8, most=2000)
        angle = 2 * np.pi * np.arange(count) / count
        x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return cls(x, np.full(count, 2 * np.pi / count))

    @classmethod
    def sphere(cls, degree: int = 16) -> Nodes:
        """Return Gauss-Legendre nodes in height times equidistant ones around the axis, for d = 3.

        Parameters
        ----------
        degree : int, default 16
            Degree L, from 3 to 50: 2 (L + 1)^2 nodes.

        Returns
        -------
        Nodes
            Nodes and weights, exact for harmonics of degree 2 L + 1.

        Raises
        ------
        InputError
            For a degree out of range.
        """
        degree = whole(degree, "degree", 3, most=50)
        z, weight = heights(3, degree + 1)
        angle = np.pi * np.arange(2 * degree + 2) / (degree + 1)
        radius = np.sqrt(1 - z * z)[:, None]
        third = np.repeat(z, len(angle))[:, None]
        ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(-1, 2)
        areas = np.repeat(weight, len(angle)) * 4 * np.pi / len(angle)
        return cls(np.concatenate([ring, third], axis=1), areas)

    @property
    def d(self) -> int:
        """Dimension of the space around the sphere."""
        return int(self.centres.shape[1])

    @cached_property
    def weights(self) -> Floats:
        """Weights against the uniform probability measure, with the sum one."""
        return self.areas / self.areas.sum()

    @property
    def degree(self) -> int:
        """Largest degree of harmonics that the nodes tell apart."""
        return len(self.areas) - 1 if self.has_axis else self._all[0]

    @cached_property
    def sectors(self) -> list[Sector]:
        """Harmonics at the nodes: all of them in one sector, or of an axis one for each order."""
        if not self.has_axis:
            return [self._all[1]]
        orders = 2 if self.d == 2 else _SECTORS  # around an axis of the plane: even and odd
        return [self._around(order) for order in range(orders)]

    def _around(self, order: int) -> Sector:
        """Return harmonics of one order around the axis: r^order P(z), of dimension d + 2 order."""
        z, r = self.centres[:, -1], self.centres[:, 0]
        degrees = np.arange(1 if order == 0 else 0, len(z) - order)
        p = gegenbauer(z, self.d + 2 * order, int(degrees[-1]))[:, degrees]
        values = r[:, None] ** order * p
        along = r[:, None] ** (order + 1) * gegenbauer_slopes(z, self.d + 2 * order, degrees)
        across = np.zeros_like(p)
        if order:
            along = along - order * (z * r ** (order - 1))[:, None] * p
            across = math.sqrt(order * (order + self.d - 3)) * r[:, None] ** (order - 1) * p
        scale = 1 / np.sqrt(self.weights @ values**2)
        degrees = degrees + order
        values = values * scale
        return Sector(
            values,
            np.stack([along, across]) * scale,
            (degrees * (degrees + self.d - 2)).astype(float),
            values.T * self.weights,
        )

    @cached_property
    def _all(self) -> tuple[int, Sector]:
        """The largest degree of harmonics that the nodes tell apart, and the harmonics."""
        count, x = len(self.areas), self.centres
        degree = (count - 1) // 2 if self.d == 2 else min(round(math.sqrt(count / 2)) - 1, _DEGREE)
        while degree > 0:
            values, ambient, eigenvalue = harmonic_basis(x, degree)
            gram = values.T @ (values * self.weights[:, None])
            if np.linalg.cond(gram) < 100:  # 1 for a quadrature
                tangent = ambient - x[:, :, None] * np.einsum("ia,iak->ik", x, ambient)[:, None]
                gradient = np.ascontiguousarray(np.moveaxis(tangent, 1, 0))
                project = np.asarray(np.linalg.solve(gram, values.T * self.weights))
                return degree, Sector(values, gradient, eigenvalue, project)
            degree = degree * 3 // 4
        raise InputError(
            "the centres and areas of the mesh are no quadrature: sums over them do not tell x, y "
            "and z apart"
        )


def kernel_matrices(nodes: Nodes, D: Floats, sector: int = 0) -> Floats:
    """Return kernels (H, cell, cell) of exp(<x, D y>), averaged around the axis if there is one."""
    if not nodes.has_axis:
        return np.exp(np.einsum("ia,hab,jb->hij", nodes.centres, D, nodes.centres))
    z = nodes.centres[:, -1]
    found = []
    for head in D:
        log, sign = axial_log_kernel(z, z, head[-1, -1], head[0, 0], nodes.d, sector)
        found.append(sign * np.exp(log))
    return np.stack(found)


def check_heads(nodes: Nodes, D: Floats) -> None:
    """Raise InputError for heads of another dimension, too large ones, or without the axis."""
    if D.shape[-1] != nodes.d:
        raise InputError(
            f"D are heads in dimension {D.shape[-1]} and the mesh is in dimension {nodes.d}"
        )
    norm = float(np.abs(np.linalg.eigvalsh(D)).max())
    most = min(len(nodes.areas) ** (2 if nodes.has_axis or nodes.d == 2 else 1) / 30, 300.0)
    if norm > most:
        raise InputError(
            f"the largest |D| is {norm:.3g}: the nodes resolve kernels up to {most:.3g}"
            + (", take more of them" if most < 300 else "")
        )
    if nodes.has_axis:
        axis = np.array([np.diag([*[head[0, 0]] * (nodes.d - 1), head[-1, -1]]) for head in D])
        if not np.allclose(D, axis, atol=1e-12 * max(norm, 1.0)):
            raise InputError(
                "axial nodes need heads with an axis, D = diag(q, ..., q, p); take "
                "Nodes.circle() or Nodes.sphere() for others"
            )


def harmonics_at(nodes: Nodes, points: Floats) -> Floats:
    """Return values (point, k) of the harmonics of the first sector at other points."""
    if not nodes.has_axis:
        return harmonic_basis(points, nodes.degree)[0]
    degrees = np.arange(1, len(nodes.areas))
    p = gegenbauer(points[:, -1], nodes.d, int(degrees[-1]))[:, degrees]
    own = gegenbauer(nodes.centres[:, -1], nodes.d, int(degrees[-1]))[:, degrees]
    return np.asarray(p / np.sqrt(nodes.weights @ own**2))


def harmonic_basis(x: Floats, degree: int) -> tuple[Floats, Floats, Floats]:
    """Return the harmonics of degree 1 to `degree` on the circle or the sphere.

    Returns
    -------
    values : (point, k), polynomials Re and Im (x + iy)^m q(z) of root mean square one
    gradient : (point, axis, k), of these polynomials, not yet tangential
    eigenvalue : (k,), of minus the Laplacian
    """
    d = x.shape[1]
    values, gradient, eigenvalue = [], [], []
    around = x[:, 0] + 1j * x[:, 1]
    if d == 3:
        q, slopes = (math.sqrt(4 * math.pi) * part for part in legendre(x[:, 2], degree))
    for order in range(degree + 1):
        power, below = around**order, order * around ** max(order - 1, 0)
        for l in range(max(order, 1), (degree if d == 3 else order) + 1):  # noqa: E741
            p = q[order, :, l] if d == 3 else math.sqrt(2)
            for turn in (1, -1j)[: 1 if order == 0 else 2]:
                ring = (turn * power).real
                parts = [(turn * below).real * p, (1j * turn * below).real * p]
                if d == 3:
                    parts.append(ring * slopes[order, :, l])
                values.append(ring * p)
                gradient.append(np.stack(parts, axis=1))
                eigenvalue.append(l * (l + d - 2))
    return np.stack(values, axis=1), np.stack(gradient, axis=2), np.array(eigenvalue, float)


def as_nodes(mesh: Any) -> Nodes:
    """Return given nodes unchanged, or the nodes of a mesh, from its centres and areas."""
    if isinstance(mesh, Nodes):
        return mesh
    if not (hasattr(mesh, "centres") and hasattr(mesh, "areas")):
        raise InputError(
            f"mesh is {shown(mesh)}: expected wflow.stationary.Nodes, or a mesh with centres "
            "(cell, axis) and areas (cell,)"
        )
    return Nodes(mesh.centres, mesh.areas)


def sphere_area(d: int) -> float:
    """Return the area of the unit sphere in d dimensions."""
    return 2 * math.exp(d / 2 * math.log(math.pi) - math.lgamma(d / 2))


def heights(d: int, count: int) -> tuple[Floats, Floats]:
    """Return nodes of the height z = <x, axis> and their uniform probabilities."""
    from scipy.special import roots_chebyt, roots_gegenbauer

    z, weight = roots_chebyt(count) if d == 2 else roots_gegenbauer(count, d / 2 - 1)
    return z, weight / weight.sum()


def axial_log_kernel(
    z: Floats, y: Floats, p: float, q: float, d: int, order: int = 0
) -> tuple[Floats, Floats]:
    """Return logs, signs (z, y) of exp(p z y + q r r' cos) averaged with a harmonic of an axis.

    The average of exp(t cos) against harmonics of an order m on the sphere around the axis is
    Gamma(nu + 1) (2/t)^nu I_{nu + m}(t), nu = (d - 3)/2.
    """
    from scipy.special import gammaln, hyp0f1, ive

    t = q * np.sqrt(np.outer(1 - z**2, 1 - y**2))
    sign = np.sign(t) ** order if order else np.ones_like(t)
    t = np.abs(t)
    nu = (d - 3) / 2
    if d == 2:
        log = np.logaddexp(t, -t) - math.log(2)
        if order:
            log = t + np.log(-np.expm1(-2 * np.maximum(t, 1e-300))) - math.log(2)
    else:
        bessel = ive(nu + order, t)
        small = (bessel < SMALLEST) | (t < 1)  # there by the series
        safe = np.where(small, 1.0, t)
        log = float(gammaln(nu + 1)) + nu * np.log(2 / safe) + t
        log = log + np.log(np.where(small, 1.0, bessel))
        few = t[small]
        series = float(gammaln(nu + 1) - gammaln(nu + order + 1)) + np.log(
            hyp0f1(nu + order + 1, few**2 / 4)
        )
        if order:
            series = series + order * np.log(np.maximum(few / 2, 1e-300))
        log[small] = series
    return p * np.outer(z, y) + log, sign
