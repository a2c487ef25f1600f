"""Meshes: areas and faces, operators against harmonics, samples, and what is refused."""

import itertools
import math

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import eigsh

from wflow import meanfield
from wflow.meanfield import Circle, Sphere


def eigenvalues(mesh: meanfield.Mesh, count: int) -> np.ndarray:
    """The smallest eigenvalues of minus the Laplacian, symmetric with the areas as weights."""
    root = np.sqrt(mesh.areas)
    matrix = sparse.diags(-root) @ mesh.laplacian() @ sparse.diags(1 / root)
    return eigsh(((matrix + matrix.T) / 2).tocsc(), count, sigma=-0.1, return_eigenvectors=False)


@pytest.mark.parametrize("mesh", [Circle(7), Sphere(12), Sphere(92), Sphere(362), Sphere(642)])
def test_areas_add_up_and_every_cell_is_closed(mesh: meanfield.Mesh) -> None:
    whole = 2 * math.pi if mesh.dim == 1 else 4 * math.pi
    assert abs(mesh.areas.sum() - whole) < 1e-12
    assert np.allclose(np.linalg.norm(mesh.centres, axis=1), 1, atol=1e-15)
    # Every cell of the sphere has five or six faces, and Euler's formula fixes their number.
    counts = np.bincount(mesh.faces.ravel(), minlength=mesh.cells)
    assert len(mesh.faces) == (mesh.cells if mesh.dim == 1 else 3 * mesh.cells - 6)
    assert set(counts) <= ({2} if mesh.dim == 1 else {5, 6})


def test_the_laplacian_has_the_eigenvalues_of_the_sphere_to_second_order() -> None:
    errors = []
    for cells in (162, 642, 2562):
        found = np.sort(eigenvalues(Sphere(cells), 9))
        assert abs(found[0]) < 1e-10
        errors.append(np.abs(found[1:] - np.repeat([2.0, 6.0], [3, 5])).max())
    # Figures of the trial in the design: 5.9508 and 5.98765 for 642 and 2562 cells.
    assert errors[1] == pytest.approx(6 - 5.9508, abs=1e-4)
    assert all(3.8 < a / b < 4.2 for a, b in itertools.pairwise(errors))


def test_any_points_give_the_same_cells_as_the_icosahedral_grid() -> None:
    mesh = Sphere(362)
    order = np.random.default_rng(0).permutation(mesh.cells)
    other = Sphere(mesh.centres[order])
    assert np.allclose(other.areas, mesh.areas[order], rtol=0, atol=1e-14)
    assert len(other.faces) == len(mesh.faces)
    assert abs(other.distances.sum() - mesh.distances.sum()) < 1e-12


def test_corners_where_four_cells_meet_are_no_faces() -> None:
    cube = Sphere([[x, y, z] for x in (1, -1) for y in (1, -1) for z in (1, -1)])
    assert len(cube.faces) == 12 and np.allclose(cube.areas, math.pi / 2)


def test_gradients_converge() -> None:
    errors = []
    for mesh in (Sphere(162), Sphere(642)):
        x = mesh.centres
        exact = np.array([0.0, 0.0, 1.0]) - x[:, 2:] * x
        errors.append(np.abs(mesh.gradient(x[:, 2]) - exact).max())
    assert errors[0] / errors[1] > 1.8
    assert abs(mesh.integrate(np.exp(x[:, 0])) - 4 * math.pi * math.sinh(1)) < 1e-4


@pytest.mark.parametrize("mesh", [Circle(16), Sphere(162)])
def test_samples_have_the_density_and_give_it_back(mesh: meanfield.Mesh) -> None:
    n = 40_000
    density = 1 + 0.9 * mesh.centres[:, 0]
    density /= mesh.integrate(density)
    x = meanfield.sample(density, mesh, n, seed=3)
    assert np.array_equal(x, meanfield.sample(density, mesh, n, seed=3))
    again = meanfield.density_of(x, mesh)
    assert abs(mesh.integrate(again) - 1) < 1e-14
    chi2 = n * mesh.integrate((again - density) ** 2 / density) / mesh.cells
    assert 0.3 < chi2 < 2.0
    # Within a cell, too: the mean over the sphere of x^2 is 1/d for the uniform density.
    y = meanfield.sample(lambda x: np.ones(len(x)), mesh, n, seed=4)
    assert np.allclose(y.T @ y / n, np.eye(mesh.dim + 1) / (mesh.dim + 1), atol=0.01)


def test_refinement_keeps_the_centres() -> None:
    assert Circle(8).refined().cells == 16
    fine = Sphere(42).refined()
    assert fine.cells == 162 and fine.icosahedral
    given = Sphere(Sphere(42).centres).refined()
    assert given.cells == 162 and given.width < 0.6 * Sphere(42).width
