"""Densities over the cells of a mesh: from functions, arrays and tokens, and samples of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import reals, returned, shown, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow.attention.cloud import on_sphere
from wflow.meanfield.mesh import Mesh, Quadrature

Floats = NDArray[np.floating]


def as_quadrature(mesh: Any) -> Quadrature:
    """Check that an argument is what densities are values over: a mesh, or modes.

    Raises
    ------
    InputError
        For anything else, with the dimensions in which meshes exist.
    """
    if not isinstance(mesh, Quadrature):
        raise InputError(
            f"mesh is {shown(mesh)}: expected wflow.meanfield.Circle(cells) or Fourier(degree) for "
            "d = 2, wflow.meanfield.Sphere(cells) or Harmonics(degree) for d = 3; there are none "
            "for d > 3, where wflow.solve simulates particles"
        )
    return mesh


def as_mesh(mesh: Any) -> Mesh:
    """Check that an argument is a mesh with cells.

    Raises
    ------
    InputError
        For anything else.
    """
    nodes = as_quadrature(mesh)
    if not isinstance(nodes, Mesh):
        raise InputError(
            f"mesh is {shown(mesh)}, which has no cells: expected wflow.meanfield.Circle(cells) or "
            "Sphere(cells)"
        )
    return nodes


def as_density(density: Any, mesh: Quadrature, paths: int = 1) -> Floats:
    """Densities (cell,), or (paths, cell) where they differ, of mass one.

    Parameters
    ----------
    density : function of points, array over the cells, or token cloud
    mesh : the mesh
    paths : number of paths, each of which may have a density

    Raises
    ------
    InputError
        For densities that are negative, not finite, without mass, or of another shape.
    """
    if callable(density):
        return _normalised(_at_centres(density, mesh), mesh)
    given = reals(density, "density")
    axes = mesh.dim + 1
    if given.ndim in (2, 3) and given.shape[-1] == axes:
        clouds = given[None] if given.ndim == 2 else given
        if given.ndim == 2 or len(given) == paths:
            if not isinstance(mesh, Mesh):
                raise InputError(
                    f"tokens have no smooth density, which {shown(mesh)} needs: give a function or "
                    "values, or take finite volumes (Circle, Sphere)"
                )
            found = np.stack([density_of(cloud, mesh) for cloud in clouds])
            return found if given.ndim == 3 else found[0]
    if given.shape not in ((mesh.cells,), (paths, mesh.cells)):
        if given.ndim == 2 and given.shape[-1] > 3 and given.shape[-1] != mesh.cells:
            raise InputError(
                f"density has shape {given.shape}: tokens in R^{given.shape[-1]} have no mesh; "
                "meshes exist for d = 2 and 3, beyond that wflow.solve simulates particles"
            )
        raise InputError(
            f"density has shape {given.shape}: expected a function of points, values over the "
            f"cells {(mesh.cells,)} or {(paths, mesh.cells)}, or tokens (n, {axes})"
        )
    return _normalised(given, mesh)


def _at_centres(density: Callable[[Floats], Any], mesh: Quadrature) -> Floats:
    """Values of a function of points at the centres.

    Finite volumes converge with second order to these, and to means over the cells on the circle
    alone: centres of Voronoi cells are not their centres of mass.
    """
    found = density(mesh.centres.copy())
    name = f"density, of points {mesh.centres.shape},"
    values = returned(found, (mesh.cells,), name, finite=False)
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        place = int(np.argmax(bad))
        raise InputError(
            f"density(points) is {values[place]:.4g} at {mesh.centres[place]}: expected finite "
            "numbers that are not negative"
        )
    return values


def _normalised(values: Floats, mesh: Quadrature) -> Floats:
    if values.min() < 0:
        cell = int(np.argmin(values)) % mesh.cells
        raise InputError(
            f"density is {values.min():.4g} in cell {cell}: expected no negative value"
        )
    with np.errstate(over="ignore"):
        mass = values @ mesh.areas
    if not (np.all(mass > 0) and np.all(np.isfinite(mass))):
        raise InputError(
            f"density has the mass {float(np.min(mass)):g}: expected a positive, finite one"
        )
    scaled: Floats = values / mass[..., None]
    return scaled / (scaled @ mesh.areas)[..., None]


def density_of(tokens: ArrayLike, mesh: Mesh) -> Floats:
    r"""Return the density of a token cloud over the cells of a mesh.

    Parameters
    ----------
    tokens : array_like, shape (n, d)
        Tokens. They are put on the unit sphere, with a warning where they are further than 1e-6
        away from it.
    mesh : Mesh
        Mesh of the circle for d = 2, or of the sphere for d = 3.

    Returns
    -------
    ndarray, shape (cell,)
        Density of mass one.

    Raises
    ------
    InputError
        For tokens of another dimension, or that are not finite or zero.

    See Also
    --------
    sample : Tokens from a density.

    Notes
    -----
    Every token gives its mass to the cell in which it lies,

    .. math:: \rho_i = \frac{1}{n\,a_i} \#\{k : x_k \in C_i\} .

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import meanfield
    >>> mesh = meanfield.Circle(4)
    >>> density = meanfield.density_of([[0.8, 0.6], [0.0, 1.0]], mesh)
    >>> (density * mesh.areas).round(12)
    array([0.5, 0.5, 0. , 0. ])
    """
    mesh = as_mesh(mesh)
    cloud = on_sphere(tokens, "tokens")
    if cloud.ndim != 2 or cloud.shape[1] != mesh.dim + 1:
        raise InputError(f"tokens have shape {cloud.shape}: expected (n, {mesh.dim + 1})")
    counts = np.bincount(mesh.nearest(cloud), minlength=mesh.cells)
    return np.asarray(counts / (len(cloud) * mesh.areas))


def sample(density: Callable[[Floats], Any] | ArrayLike, mesh: Mesh, n: int, *, seed: int = 0):
    r"""Draw independent tokens from a density.

    Parameters
    ----------
    density : callable or array_like, shape (cell,)
        Values over the cells, or a function of points (m, axis).
    mesh : Mesh
        The mesh of the density.
    n : int
        Number of tokens.
    seed : int, default 0
        Seed of the random numbers.

    Returns
    -------
    ndarray, shape (n, d)
        Tokens on the unit sphere.

    Raises
    ------
    InputError
        For a density that is negative, not finite or without mass, and more tokens than fit into
        memory.

    See Also
    --------
    density_of : The density of a token cloud.

    Notes
    -----
    The cell is drawn by its mass, the place within it uniformly: the tokens have the density

    .. math:: \rho(x) = \sum_i \rho_i 1_{C_i}(x) .

    Examples
    --------
    >>> from wflow import meanfield
    >>> mesh = meanfield.Sphere(162)
    >>> x = meanfield.sample(lambda x: 1 + x[:, 2], mesh, 2000, seed=0)
    >>> bool(abs(x[:, 2].mean() - 1 / 3) < 0.05)
    True
    """
    mesh = as_mesh(mesh)
    count = whole(n, "n")
    generator = np.random.Generator(np.random.Philox(whole(seed, "seed", 0, most=np.inf)))
    values = as_density(density, mesh)
    if values.ndim != 1:
        raise InputError(f"density has shape {values.shape}: expected one density, (cell,)")
    check_memory(300.0 * count, f"{count} tokens", "take fewer")
    return mesh._scatter(values * mesh.areas, count, generator)


def entropy(density: Floats, areas: Floats) -> Floats:
    """-int rho log rho, (...,), of densities (..., cell) over cells of these areas."""
    logs = np.log(np.where(density > 0, density, 1.0))
    return np.asarray(-(density * logs) @ areas)
