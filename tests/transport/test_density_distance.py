"""Distances between densities over a mesh, and between densities and tokens."""

import numpy as np
import pytest

import wflow
from wflow.meanfield import Circle, Sphere, sample
from wflow.transport import density_distance


def test_a_turned_density_on_the_circle() -> None:
    mesh = Circle(400)
    rho = np.exp(4 * mesh.centres[:, 0])
    found = density_distance(rho, np.roll(rho, 10), mesh)
    assert found.lower == found.value
    # A narrow bump is carried over; the angle itself is the distance of such a shift.
    assert found.value == pytest.approx(10 * 2 * np.pi / 400, rel=0.05)
    assert density_distance(rho, 7 * rho, mesh).value == 0


def test_samples_come_closer_with_their_number() -> None:
    mesh = Sphere(162)
    rho = np.exp(mesh.centres[:, 2])
    distances = [density_distance(rho, sample(rho, mesh, n, seed=1), mesh).value for n in (50, 800)]
    assert distances[1] < 0.6 * distances[0]
    x, masses = sample(rho, mesh, 50, seed=1), rho * mesh.areas / (rho @ mesh.areas)
    exact = wflow.transport.w2(x, mesh.centres, weights_y=masses)
    assert distances[0] == pytest.approx(exact, rel=1e-12)


def test_few_tokens_and_many_cells_have_an_exact_distance() -> None:
    mesh = Sphere(10242)
    rho = np.exp(mesh.centres[:, 2])
    x = sample(rho, mesh, 20, seed=1)
    found = density_distance(rho, x, mesh)
    masses = rho * mesh.areas / (rho @ mesh.areas)
    assert found.value == found.lower
    assert found.value == pytest.approx(wflow.transport.w2(x, mesh.centres, weights_y=masses))
