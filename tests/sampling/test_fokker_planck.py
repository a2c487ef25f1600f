"""The Fokker-Planck equation in one dimension against exact solutions."""

import numpy as np
import pytest
from scipy.special import erfc

from wflow.sampling import evolve_density

RESOLUTIONS = [(100, 0.1), (200, 0.05), (400, 0.025), (800, 0.0125)]


def gaussian(x, mean, variance):
    return np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)


def two_valued(z, t, theta):
    """Density of dX = -theta sign(X) dt + dW from 0 (Karatzas, Shreve, Ann. Probab. 12, 1984)."""
    z = np.abs(z)
    free = np.exp(-((z + theta * t) ** 2) / (2 * t)) / np.sqrt(2 * np.pi * t)
    tail = erfc((z - theta * t) / np.sqrt(2 * t)) / 2
    return free + theta * np.exp(-2 * theta * z) * tail


def orders(errors):
    return np.log2(np.divide(errors[:-1], errors[1:]))


def test_ornstein_uhlenbeck_is_reached_at_second_order():
    errors = []
    for cells, dt in RESOLUTIONS:
        run = evolve_density(
            lambda x: gaussian(x, 1.0, 0.3), lambda x: x**2 / 2, beta=2.0, times=[0.4, 1.0], dt=dt,
            edges=np.linspace(-7, 7, cells + 1),
        )  # fmt: skip
        decay = np.exp(-run.time)
        exact = gaussian(run.x, decay, 0.3 * decay**2 + (1 - decay**2) / 2).T
        errors.append(float(abs(run.density - exact).max()))
    assert errors[-1] < 4e-5
    np.testing.assert_allclose(orders(errors), 2, atol=0.05)


@pytest.mark.parametrize("shift", [0.0, 0.5], ids=["kink on an edge", "kink at a centre"])
def test_a_kink_of_the_potential_keeps_second_order(shift):
    errors = []
    for cells, dt in RESOLUTIONS:
        edges = np.linspace(-10, 10, cells + 1) + shift * 20 / cells
        run = evolve_density(
            lambda x: two_valued(x, 0.5, 1.5), lambda x: 1.5 * abs(x), beta=2.0, times=[1.0],
            edges=edges, dt=dt,
        )  # fmt: skip
        exact = two_valued(run.x.values, 1.5, 1.5)
        errors.append(np.sum(run.width.values * abs(run.density.values[0] - exact)))
    assert errors[-1] < 1e-3
    np.testing.assert_allclose(orders(errors)[1:], 2, atol=0.15)


def test_a_potential_in_motion_moves_gaussians_at_second_order():
    # V = k(t) (x - t)^2 / 2: mean and variance by their own equations, solved finely.
    from scipy.integrate import solve_ivp

    def stiffness(t):
        return 1 + np.sin(3 * t)

    flow = solve_ivp(
        lambda t, y: [-stiffness(t) * (y[0] - t), -2 * stiffness(t) * y[1] + 2 / 3],
        (0, 1), [0.5, 0.2], rtol=1e-10, atol=1e-12,
    )  # fmt: skip
    errors = []
    for cells, dt in RESOLUTIONS:
        run = evolve_density(
            lambda x: gaussian(x, 0.5, 0.2), lambda x, t: stiffness(t) * (x - t) ** 2 / 2,
            beta=3.0, times=[1.0], dt=dt, edges=np.linspace(-5, 6, cells + 1), time_dependent=True,
        )  # fmt: skip
        errors.append(float(abs(run.density[0] - gaussian(run.x, *flow.y[:, -1])).max()))
    assert errors[-1] < 1e-4
    np.testing.assert_allclose(orders(errors)[1:], 2, atol=0.1)


@pytest.mark.parametrize(
    "potential", [np.abs, lambda x: (x**2 - 1) ** 2, lambda x: 40 * abs(x) + np.sin(9 * x)]
)
def test_the_equilibrium_is_stationary_to_rounding_and_is_approached(potential):
    rng = np.random.default_rng(0)
    edges = np.sort(np.append(rng.uniform(-3, 3, 99), [-3, 3]))  # cells of any sizes
    centres = (edges[1:] + edges[:-1]) / 2
    equilibrium = np.exp(-2.5 * potential(centres))
    equilibrium /= equilibrium @ np.diff(edges)
    options = {"edges": edges, "times": [0, 5.0, 400.0], "dt": 0.5, "beta": 2.5}
    still = evolve_density(equilibrium, potential, **options)
    np.testing.assert_allclose(still.density, np.tile(equilibrium, (3, 1)), rtol=1e-9, atol=1e-15)
    moved = evolve_density(lambda x: 1 + 0 * x, potential, **options)
    np.testing.assert_allclose(moved.density[-1], equilibrium, rtol=1e-6, atol=1e-15)
    assert np.all(np.diff(moved.free_energy) < 0)


@pytest.mark.parametrize("dt", [1e-4, 0.1, 10.0])
def test_densities_are_nonnegative_and_keep_their_mass(dt):
    edges = np.linspace(-6, 6, 301)
    start = np.zeros(300)
    start[40], start[280] = 1.0, 3.0  # rougher than any step
    run = evolve_density(start, lambda x: 3 * abs(x), edges=edges, times=dt * np.arange(6), dt=dt)
    assert run.density.min() >= 0
    np.testing.assert_allclose(run.density @ run.width, 1, rtol=1e-12)
    assert np.all(np.diff(run.free_energy) < 0)
    # Short steps stay nonnegative by themselves.
    assert (run.attrs["euler_steps"] > 0) == (dt > 1e-3)


def test_cells_of_any_size_give_the_same_solution():
    fine = np.linspace(-7, 7, 1201)
    graded = np.sinh(np.linspace(-2, 2, 1201)) * 7 / np.sinh(2)
    options = {"times": [0.7], "dt": 0.005}
    one, other = (
        evolve_density(lambda x: gaussian(x, 1.0, 0.5), np.abs, edges=edges, **options)
        for edges in (fine, graded)
    )
    found = np.interp(one.x, other.x, other.density[0])
    np.testing.assert_allclose(found, one.density[0], atol=2e-4)
