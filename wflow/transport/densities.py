"""Wasserstein distances between densities over the cells of a mesh, and between these and tokens.

A density is the weighted cloud of the centres of its cells. Up to the pairs of `EXACT_POINTS` cells
and as many tokens, and on the circle, the distance between the clouds is exact, beyond that
entropic with both bounds.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import number, positive, reals, shown
from wflow._core.errors import InputError
from wflow.sphere.geometry import as_tokens
from wflow.transport.distances import Entropic, entropic, wasserstein

EXACT_POINTS = 4_000  # cells, and as many tokens, up to whose pairs the distance is exact


class Cells(Protocol):
    """Interface of a mesh: centres (cell, axis) and areas (cell,)."""

    centres: NDArray[np.floating]
    areas: NDArray[np.floating]


def density_distance(
    density: ArrayLike,
    other: ArrayLike,
    mesh: Cells,
    *,
    p: float = 2.0,
    tolerance: float = 0.05,
) -> Entropic:
    r"""Return the Wasserstein distance W_p of two densities, or of a density and tokens.

    Parameters
    ----------
    density : array_like, shape (cell,)
        Values over the cells of the mesh, of any positive mass.
    other : array_like, shape (cell,) or (n, d)
        Another density over the same mesh, or tokens.
    mesh : wflow.meanfield.Mesh
        Mesh of the densities.
    p : float, default 2.0
        Exponent of the cost, 1 to 20; the cost is the geodesic distance.
    tolerance : float, default 0.05
        Wanted relative distance of the bounds where the distance is not exact.

    Returns
    -------
    Entropic
        Its `value` is the distance, or an upper bound; `lower` is a lower bound, equal to `value`
        where it is exact.

    Raises
    ------
    InputError
        For values that are negative, not finite or without mass, tokens of another dimension, and p
        outside of 1 to 20.

    See Also
    --------
    wasserstein : The distance of two clouds.

    Notes
    -----
    The masses of the cells are put at their centres, which changes a distance by at most the
    largest radius r of a cell for either density,

    .. math:: |W_p(\rho, \sigma) - W_p(\rho_h, \sigma_h)| \le 2r, \qquad
        \rho_h = \sum_i a_i \rho_i\, \delta_{x_i} .

    On the circle, and for at most 4000 cells of positive mass and as many tokens, or as many pairs
    of other numbers, the distance of these is exact; beyond that by entropic transport [1]_.

    In the theory: :ref:`Wasserstein distances <theory-wasserstein>`.

    References
    ----------
    .. [1] Peyré and Cuturi, *Computational optimal transport*, Foundations and Trends in Machine
       Learning 11 (2019).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> from wflow import meanfield
    >>> mesh = meanfield.Circle(100)
    >>> rho = np.exp(mesh.centres[:, 0])
    >>> found = wflow.transport.density_distance(rho, np.roll(rho, 5), mesh)
    >>> found.value == found.lower, bool(found.value < 5 * 2 * np.pi / 100)
    (True, True)
    """
    p, tolerance = number(p, "p", least=1.0), positive(tolerance, "tolerance")
    if not (hasattr(mesh, "centres") and hasattr(mesh, "areas")):
        raise InputError(
            f"mesh is {shown(mesh)}: expected a mesh such as wflow.meanfield.Circle(100)"
        )
    x, weights_x = _points_of(density, mesh, "density")
    given = reals(other, "other")
    y: NDArray[np.floating]
    weights_y: NDArray[np.floating] | None
    if given.ndim == 2:
        y, weights_y = as_tokens(given, "other"), None
        if y.shape[1] != x.shape[1]:
            raise InputError(
                f"other has shape {y.shape}: expected tokens (n, {x.shape[1]}), or a density over "
                f"the {len(mesh.areas)} cells of the mesh"
            )
    else:
        y, weights_y = _points_of(given, mesh, "other")
    weights: dict[str, Any] = {"weights_x": weights_x, "weights_y": weights_y}
    if x.shape[1] == 2 or len(x) * len(y) <= EXACT_POINTS**2:
        value = wasserstein(x, y, p, **weights)
        return Entropic(value, value, 0, True)
    return entropic(x, y, p, tolerance=tolerance, **weights)


def _points_of(
    density: ArrayLike, mesh: Cells, name: str
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return the centres of the cells that have mass, and their masses, of sum one."""
    values = reals(density, name)
    if values.shape != mesh.areas.shape:
        raise InputError(
            f"{name} has shape {values.shape}: expected values over the cells of the mesh, "
            f"{mesh.areas.shape}"
        )
    with np.errstate(over="ignore"):
        masses = values * mesh.areas
        total = float(masses.sum())
    if values.min() < 0 or not (math.isfinite(total) and total > 0):
        raise InputError(
            f"{name} has values from {values.min():.4g} and the mass {total:.4g}: expected none "
            "below zero, and a positive, finite mass"
        )
    kept = masses / total > 0
    share = masses[kept] / total
    return mesh.centres[kept], share / share.sum()
