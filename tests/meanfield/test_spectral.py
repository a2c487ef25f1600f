"""The spectral method: transforms, orders, agreement with finite volumes, what is not resolved."""

import math
from typing import Any

import mean_field_references as reference
import numpy as np
import pytest
from mean_field_references import CIRCLE_HEADS, FLOWS, at_centres, last, solve, start
from scipy.special import sph_harm_y

import wflow
from wflow import meanfield
from wflow.heads import HeadLaw, OrnsteinUhlenbeck, Oscillating
from wflow.meanfield import Circle, Fourier, Harmonics, Sphere


def tilted(x: np.ndarray) -> np.ndarray:
    return np.exp(x[:, 2] + 0.5 * x[:, 0] - 0.3 * x[:, 0] * x[:, 1])


@pytest.mark.parametrize("modes", [Fourier(7), Harmonics(6)])
def test_transforms_are_inverse_and_keep_the_norm(modes: meanfield.Modes) -> None:
    c = modes._analyse(np.random.default_rng(0).normal(size=(2, modes.cells)))
    values = modes._synthesise(c)
    assert np.abs(modes._analyse(values) - c).max() < 1e-14
    assert np.allclose(modes._scalar(c, c), values**2 @ modes.areas, rtol=1e-13)
    # The quadrature is exact for products of two: degree 3 L and no further.
    assert np.abs(modes.at(values, modes.centres) - values).max() < 1e-13


def test_coefficients_are_those_of_scipys_harmonics() -> None:
    modes = Harmonics(5)
    x = modes.centres
    theta, phi = np.arccos(x[:, 2]), np.arctan2(x[:, 1], x[:, 0])
    for degree, order in ((0, 0), (3, 0), (4, 2), (5, 5)):
        Y = sph_harm_y(degree, order, theta, phi)
        found = modes._analyse(np.stack([Y.real, Y.imag]))
        exact = np.zeros((6, 6))
        exact[order, degree] = 1.0
        # Condon and Shortley's sign, and half of the real part for m > 0.
        sign = (-1) ** order
        assert np.allclose(sign * (found[0] + 1j * found[1]), exact, atol=1e-13)


@pytest.mark.parametrize("modes", [Fourier(6), Harmonics(6)])
def test_minus_the_divergence_of_gradients_has_the_eigenvalues(modes: meanfield.Modes) -> None:
    x, d = modes.centres, modes.dim + 1
    gradient = np.zeros_like(x)
    gradient[:, 0], gradient[:, 1] = x[:, 1], x[:, 0]  # of x y, of degree 2
    gradient -= np.einsum("ia,ia->i", gradient, x)[:, None] * x
    found = modes._synthesise(modes._against_gradients(gradient[None]))[0]
    assert np.allclose(found, 2 * d * x[:, 0] * x[:, 1], atol=1e-13)


CASES = [*((flow, "ascent") for flow in FLOWS), ("softmax", "descent")]


@pytest.mark.parametrize(("flow", "direction"), CASES)
def test_errors_fall_like_a_geometric_series_on_the_circle(flow: Any, direction: Any) -> None:
    exact = reference.fourier(flow, direction, 0.1, 0.3, lambda t: CIRCLE_HEADS)
    mesh, errors = Circle(64), []
    for degree in (12, 16, 20):
        modes = Fourier(degree)
        run = solve(modes, 0.3, dt=0.01, kappa=0.1, flow=flow, direction=direction)
        errors.append(np.abs(modes.at(last(run), mesh.centres) - at_centres(exact, mesh)).max())
    # The reference is accurate to 1e-10.
    assert errors[0] < 1e-5 and errors[1] < 0.05 * errors[0] + 1e-10
    assert errors[2] < 0.05 * errors[1] + 1e-10


@pytest.mark.parametrize(("flow", "direction"), CASES)
def test_errors_fall_like_a_geometric_series_on_the_sphere(flow: Any, direction: Any) -> None:
    heads = np.array([[0.5, 1.5], [-0.4, 1.0]])
    exact = reference.legendre(flow, direction, 0.1, 0.1, heads, np.exp)
    D = np.array([np.diag([a, a, c]) for a, c in heads])
    # Turned, so that the problem is not aligned with the grid.
    R = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    errors = []
    for degree in (10, 14):
        modes = Harmonics(degree)
        run = solve(
            modes, 0.1, lambda x: np.exp((x @ R)[:, 2]), heads=R @ D @ R.T, dt=0.02, kappa=0.1,
            flow=flow, direction=direction,
        )  # fmt: skip
        errors.append(np.abs(last(run) - exact(modes.centres @ R)).max())
    # The reference is accurate to 1e-9.
    assert errors[0] < 1e-3 and errors[1] < 0.05 * errors[0] + 5e-9


@pytest.mark.parametrize(
    ("modes", "meshes"),
    [(Fourier(24), (Circle(48), Circle(96))), (Harmonics(12), (Sphere(162), Sphere(642)))],
)
def test_finite_volumes_agree_at_their_order(modes: Any, meshes: Any) -> None:
    d = modes.dim + 1
    kwargs: Any = {"heads": Oscillating(d).target(0.3, 2) / 3, "t_final": 0.2, "kappa": 0.1}
    density = start if d == 2 else tilted
    exact = last(solve(modes, density=density, **kwargs))
    errors = []
    for mesh in meshes:
        found = last(solve(mesh, density=density, **kwargs))
        errors.append(mesh.integrate(np.abs(found - modes.at(exact, mesh.centres))))
    assert errors[1] < 1e-2 and 3.3 < errors[0] / errors[1] < 4.6


def test_rotating_heads_carry_a_travelling_solution() -> None:
    # Heads that turn at a constant speed end in a density that turns with them.
    speed, D = 1.0, np.array([[[1.5, 0.0], [0.0, -0.5]]])
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    law = HeadLaw(lambda D, t: speed * (turn @ D - D @ turn))
    modes = Fourier(20)
    shift = 2 * math.pi * 20 / modes.cells / speed  # the time of 20 nodes
    run = solve(
        modes, 8 * shift, lambda x: 1 + 0.5 * x[:, 0] ** 2, law=law, heads=D, dt=shift / 30,
        save=wflow.SaveAt(snapshots=[7 * shift, 8 * shift], every=60), kappa=0.5,
        direction="ascent",
    )  # fmt: skip
    before, after = run.density[0].values
    assert np.ptp(after) > 0.02  # not uniform
    assert np.abs(after - np.roll(before, 20)).max() < 1e-6


def test_a_turned_problem_has_the_turned_solution() -> None:
    R = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    D = Oscillating(3).target(0.3, 2) / 3
    modes = Harmonics(12)
    kwargs: Any = {"mesh": modes, "t_final": 0.1, "dt": 0.01, "kappa": 0.2}
    plain = solve(density=tilted, heads=D, **kwargs)
    turned = solve(density=lambda x: tilted(x @ R), heads=R @ D @ R.T, **kwargs)
    assert np.abs(modes.at(last(plain), modes.centres @ R) - last(turned)).max() < 1e-6


@pytest.mark.parametrize("modes", [Fourier(24), Harmonics(10)])
def test_the_budget_of_noisy_heads_and_the_heads_are_those_of_finite_volumes(modes: Any) -> None:
    d = modes.dim + 1
    mesh: Any = Circle(256) if d == 2 else Sphere(2562)
    law = OrnsteinUhlenbeck(np.eye(d), sigma2=0.5)
    kwargs: Any = {
        "heads": np.eye(d)[None] / 2, "t_final": 0.02, "dt": 0.002, "paths": 2, "seed": 3,
        "kappa": 0.1, "save": wflow.SaveAt(every=10, heads=True, paths=(0, 1)),
    }  # fmt: skip
    a, b = (solve(m, density=lambda x: 2 + x[:, 0], law=law, **kwargs) for m in (modes, mesh))
    assert np.array_equal(a.heads, b.heads)
    for name in ("energy", "dissipation", "upper_gradient_sq", "weight_power", "ito_power",
                 "diffusion_power", "martingale", "entropy", "free_energy"):  # fmt: skip
        size = float(np.abs(b[name]).max())
        assert np.abs(a[name] - b[name]).max() < 5e-3 * size, name


def test_a_density_that_outgrows_its_modes_is_refused_where_it_does() -> None:
    given: Any = {"heads": 4 * CIRCLE_HEADS, "direction": "ascent", "t_final": 2.0, "kappa": 0.1}
    with pytest.raises(wflow.BlowUpError, match="resolved") as caught:
        solve(Fourier(16), **given)
    assert 0 < caught.value.time < 2 and float(caught.value.run.spectral_tail[0, 0]) < 1e-5
