"""Orders of convergence of every method, flow and direction; two clusters, rotations, and steps for
which the free energy falls. A few cases of each; all of them with --long."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from mean_field_references import (
    CIRCLE_HEADS,
    DIRECTIONS,
    FLOWS,
    at_centres,
    fourier,
    legendre,
    start,
)
from scipy.integrate import solve_ivp

import wflow
from wflow import meanfield
from wflow.heads import Frozen, Oscillating
from wflow.meanfield import Circle, Sphere

EVERY = [(flow, direction) for flow in FLOWS for direction in DIRECTIONS]
SAVE = wflow.SaveAt(budget=False, every=100)
AXIAL = np.array([[0.5, 1.5], [-0.4, 1.0]])  # diag(a, a, c)


def solved(density: Any, mesh: Any, D: np.ndarray, t: float, **options: Any) -> np.ndarray:
    run = meanfield.solve(density, Frozen(), mesh=mesh, heads=D, t_final=t, save=SAVE, **options)
    return run.density[0, -1].values


def ratios(errors: list[float], *what: Any) -> np.ndarray:
    found = np.array(errors[:-1]) / np.array(errors[1:])
    print(*what, " ".join(f"{error:.2e}" for error in errors), "orders", np.log2(found).round(2))
    return found


# Smooth densities
# ----------------


@lru_cache
def exact_on_the_circle(flow: str, direction: str, kappa: float) -> Any:
    return fourier(flow, direction, kappa, 0.25, lambda t: CIRCLE_HEADS)


def on_the_circle(flow: Any, direction: Any, kappa: float, reconstruct: bool) -> np.ndarray:
    exact = exact_on_the_circle(flow, direction, kappa)
    errors = []
    for cells in (64, 128):
        mesh = Circle(cells)
        found = solved(
            start, mesh, CIRCLE_HEADS, 0.25, flow=flow, direction=direction, kappa=kappa,
            reconstruct=reconstruct,
        )  # fmt: skip
        errors.append(mesh.integrate(np.abs(found - at_centres(exact, mesh))))
    return ratios(errors, "circle", flow, direction, kappa, reconstruct)


def test_reconstruction_has_second_order_on_the_circle_and_upwind_fluxes_first(cases: Any) -> None:
    for flow, direction in EVERY[: cases(1, 6)]:
        for kappa in (0.0, 0.005):
            assert on_the_circle(flow, direction, kappa, True)[0] > 3.2
        assert 1.7 < on_the_circle(flow, direction, 0.0, False)[0] < 2.4


def on_the_sphere(flow: Any, direction: Any, kappa: float, sizes: Any, reconstruct: Any) -> Any:
    exact = legendre(flow, direction, kappa, 0.15, AXIAL, np.exp)
    D = np.array([np.diag([a, a, c]) for a, c in AXIAL])
    errors = []
    for cells in sizes:
        mesh = Sphere(cells)
        found = solved(
            lambda x: np.exp(x[:, 2]), mesh, D, 0.15, flow=flow, direction=direction, kappa=kappa,
            reconstruct=reconstruct,
        )  # fmt: skip
        errors.append(mesh.integrate(np.abs(found - exact(mesh.centres))))
    return ratios(errors, "sphere", flow, direction, kappa, reconstruct)


def test_second_order_on_the_sphere(cases: Any) -> None:
    sizes = cases((162, 642), (162, 642, 2562))
    for flow, direction in EVERY[: cases(1, 6)]:
        if len(sizes) > 2:  # three flows in test_mean_field.py
            diffusive = on_the_sphere(flow, direction, 0.1, sizes, None)
            assert (diffusive > 3.3).all() and (diffusive < 4.8).all()
        # The middle of a face is not midway between its centres: the order rises to two slowly.
        without = on_the_sphere(flow, direction, 0.0, sizes, True)
        assert without[0] > 2.7
        assert len(without) == 1 or without[1] > max(3.0, 0.98 * without[0])


def test_the_order_of_reconstruction_rises_on_fine_spheres(cases: Any) -> None:
    sizes = cases((42, 162), (642, 2562, 10242))
    found = on_the_sphere("softmax", "descent", 0.0, sizes, True)
    assert found[-1] > cases(1.8, 3.3)


# Two clusters
# ------------

BETAS = np.array([3.0, 1.0])


def law_of_two_clusters(flow: str, angle: float, t: float, m: float) -> float:
    """The angle at t of two points of masses m and 1 - m, heads beta I, in ascent."""

    def speed(a: float, own: float) -> float:
        other = np.exp(BETAS * math.cos(a))
        mobility = own * np.exp(BETAS) + (1 - own) * other
        slope = (1 - own) * BETAS * math.sin(a) * other
        if flow == "softmax":
            return float((slope / mobility).mean())
        factor = 1.0 if flow == "unnormalised" else float((1 / mobility).mean())
        return float(slope.mean()) * factor

    def rate(_: float, a: np.ndarray) -> list[float]:
        return [-speed(a[0], m) - speed(a[0], 1 - m)]

    return float(solve_ivp(rate, (0, t), [angle], rtol=1e-10, atol=1e-12).y[0, -1])


def error_of_clusters(flow: Any, mesh: Any, ends: Any, m: float, reconstruct: bool) -> float:
    """Of the angle between the centres of mass of two clusters that begin in one cell each."""
    t = 0.06 if flow == "unnormalised" else 0.3
    cells = mesh.nearest(ends)
    first, second = mesh.centres[cells]
    angle = math.acos(first @ second)
    density = np.zeros(mesh.cells)
    density[cells] = np.array([m, 1 - m]) / mesh.areas[cells]
    found = solved(
        density, mesh, BETAS[:, None, None] * np.eye(mesh.dim + 1), t, flow=flow,
        direction="ascent", reconstruct=reconstruct,
    )  # fmt: skip
    masses = found * mesh.areas
    order = np.argsort(mesh.centres @ (second - first))
    cut = np.minimum(np.cumsum(masses[order]), m)  # the cell between them is shared
    own = np.diff(cut, prepend=0.0)
    a, b = own @ mesh.centres[order], (masses[order] - own) @ mesh.centres[order]
    after = math.acos(a @ b / math.sqrt(a @ a * (b @ b)))
    return abs(after - law_of_two_clusters(flow, angle, t, m))


def test_densities_of_two_clusters_follow_their_law_at_first_order(cases: Any) -> None:
    turn = 2 * math.pi * 3 / 16
    ends = [[1.0, 0.0], [math.cos(turn), math.sin(turn)]]
    for flow in FLOWS[: cases(1, 3)]:
        for m in (0.5, 0.3)[: cases(1, 2)]:
            for reconstruct in (True, False):
                errors = [
                    error_of_clusters(flow, Circle(cells), ends, m, reconstruct)
                    for cells in cases((64, 128), (64, 128, 256, 512))
                ]
                assert (ratios(errors, "clusters", flow, m, reconstruct) > 1.7).all()
                assert errors[-1] < cases(0.05, 0.03)


def test_clusters_on_the_sphere_follow_their_law_at_first_order(cases: Any) -> None:
    ends = [[1.0, 0.2, 0.1], [0.2, 1.0, 0.1]]
    for flow in FLOWS[: cases(1, 3)]:
        for reconstruct in (True, False)[: cases(1, 2)]:
            sizes = cases((162, 642), (642, 2562, 10242))
            errors = [
                error_of_clusters(flow, Sphere(cells), ends, 0.5, reconstruct) for cells in sizes
            ]
            found = ratios(errors, "clusters on the sphere", flow, reconstruct)
            assert found[-1] > cases(1.3, 1.7)


# Rotations
# ---------


def test_a_turned_problem_has_the_turned_solution_at_the_order_of_the_mesh(cases: Any) -> None:
    R = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    D = Oscillating(3).target(0.3, 2) / 3
    for kappa in (0.05, 0.0)[: cases(1, 2)]:
        errors = []
        for cells in cases((162, 642), (162, 642, 2562)):
            mesh = Sphere(cells)
            plain = solved(start, mesh, D, 0.2, kappa=kappa)
            turned = solved(lambda x: start(x @ R), mesh, R @ D @ R.T, 0.2, kappa=kappa)
            back = mesh.centres @ R
            near = mesh.nearest(back)
            slopes = mesh.gradient(plain)[near]
            there = plain[near] + np.einsum("ia,ia->i", slopes, back - mesh.centres[near])
            errors.append(mesh.integrate(np.abs(turned - there)))
        found = ratios(errors, "rotation", kappa)
        assert (found > 3.3).all() and errors[0] < 6e-3


# Steps for which the free energy falls
# -------------------------------------


def bounds(mesh: Any, D: np.ndarray, density: np.ndarray, kappa: float, sign: int) -> Any:
    """Bounds of steps by positivity, of pure diffusion, and k = mean sinh |D_h|, independently."""
    kernel = np.exp(np.einsum("ia,hab,jb->hij", mesh.centres, D, mesh.centres)).mean(axis=0)
    phi = kernel @ (mesh.areas * density)
    (i, j), l, d = mesh.faces.T, mesh.lengths, mesh.distances  # noqa: E741
    v = sign * (phi[j] - phi[i]) / d
    out, back = np.maximum(v, 0), np.maximum(-v, 0)
    if kappa:  # what leaves one cell, and the other: kappa/d B(-+v d/kappa)
        z = np.clip(v * d / kappa, -600, 600) + 1e-9
        out, back = (np.maximum(x, kappa / d * y / np.expm1(y)) for x, y in ((out, -z), (back, z)))
    leaves = np.bincount(i, l * out, mesh.cells) + np.bincount(j, l * back, mesh.cells)
    spreads = np.bincount(i, l / d, mesh.cells) + np.bincount(j, l / d, mesh.cells)
    k = np.sinh(np.linalg.norm(D, 2, axis=(1, 2))).mean()
    with np.errstate(divide="ignore"):
        return (mesh.areas / leaves).min(), (mesh.areas / spreads).min(), k


def change(mesh: Any, D: np.ndarray, density: np.ndarray, dt: float, **options: Any) -> float:
    """Of the free energy in one step."""
    run = meanfield.solve(
        density, Frozen(), mesh=mesh, heads=D, t_final=dt, dt=dt, flow="unnormalised", **options
    )
    return float(run.free_energy[0, -1] - run.free_energy[0, 0])


def test_the_free_energy_falls_at_the_bound_of_the_steps(cases: Any) -> None:
    rng = np.random.default_rng(7)
    meshes = [Circle(8), Circle(32), Sphere(12), Sphere(42)]
    for _ in range(cases(12, 1000)):
        mesh: Any = meshes[rng.integers(4)]
        d = mesh.dim + 1
        Z = rng.normal(size=(2, d, d)) * rng.choice([0.1, 0.5, 1.0])
        D = Z + np.swapaxes(Z, 1, 2)
        direction = str(rng.choice([*DIRECTIONS]))
        sign = int(DIRECTIONS[direction])
        density = rng.random(mesh.cells) * (rng.random(mesh.cells) < 0.7) + 1e-9
        density[rng.integers(mesh.cells)] += 3.0
        density /= density @ mesh.areas
        kappa = float(rng.choice([0.0, 0.02, 0.5, 5.0]))
        positive, spread, k = bounds(mesh, D, density, kappa, sign)
        given: Any = {"direction": direction, "kappa": kappa}
        rounding = 1e-14 * (math.exp(np.linalg.norm(D, 2, axis=(1, 2)).max()) + 10)
        if kappa:
            first, second = (positive * kappa / (k + each) for each in (kappa, max(k, kappa)))
            assert change(mesh, D, density, first, scheme="euler", **given) < 1e-13
            # The bound by positivity of the second stage may be shorter by then.
            assert change(mesh, D, density, 0.9 * second, scheme="ssp2", **given) < rounding
        else:
            for reconstruct, share in ((False, 2), (True, 4)):
                dt = min(positive / (1 + reconstruct), spread / (share * k)) * 0.999
                given |= {"reconstruct": reconstruct}
                assert change(mesh, D, density, dt, scheme="euler", **given) < 1e-13
        # Kernels of one sign need no bound but that of positivity, and implicit steps none at all.
        squares = Z @ np.swapaxes(Z, 1, 2)
        positive, _, _ = bounds(mesh, squares, density, kappa, 1)
        given = {"direction": "ascent", "kappa": kappa, "reconstruct": False}
        dt = min(0.999 * positive, 3.0)
        limit = 1e-13 * np.exp(np.linalg.norm(squares, 2, axis=(1, 2)).max())
        assert change(mesh, squares, density, dt, scheme="euler", **given) < limit
        assert change(mesh, squares, density, 3.0, scheme="imex", **given) < limit


def test_the_free_energy_may_rise_for_longer_steps() -> None:
    # Tokens that repel each other, close to uniform: the bound of positivity is that of diffusion.
    mesh, D = Circle(32), 2 * np.eye(2)[None]
    density = (1 + 0.01 * mesh.centres[:, 0]) / (2 * math.pi)
    kappa = 0.01
    positive, _, k = bounds(mesh, D, density, kappa, -1)
    given: Any = {"direction": "descent", "kappa": kappa, "scheme": "euler"}
    assert change(mesh, D, density, 0.99 * positive, **given) > 1e-6
    assert change(mesh, D, density, positive * kappa / (k + kappa), **given) < 0


@pytest.mark.parametrize(("scheme", "order"), [("euler", 1), ("ssp2", 2), ("ssp3", 3)])
def test_the_budget_closes_at_the_order_of_the_scheme_from_the_bound_of_positivity(
    scheme: Any, order: int
) -> None:
    mesh, D = Circle(24), CIRCLE_HEADS
    density = start(mesh.centres)
    positive = bounds(mesh, D, density / mesh.integrate(density), 0.1, 1)[0]
    steps = math.ceil(1.2 * 0.3 / positive)  # the bound falls by less
    residuals = []
    for count in (steps, 2 * steps, 4 * steps):
        run = meanfield.solve(
            density, Frozen(), mesh=mesh, heads=D, t_final=0.3, dt=0.3 / count, kappa=0.1,
            direction="ascent", flow="unnormalised", scheme=scheme,
        )  # fmt: skip
        residuals.append(float(run.edi_residual[0, -1]))
    # What is left for short steps is that of the cells.
    falls = np.diff(residuals)
    assert abs(falls[0]) < 0.05 and 0.6 * 2**order < falls[0] / falls[1] < 1.5 * 2**order
