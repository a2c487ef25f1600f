"""Orders of convergence of every method, flow and direction; two clusters, rotations, and steps for
which the free energy falls. A few cases of each; all of them with --long."""

import math
from functools import lru_cache
from typing import Any

import mean_field_references as reference
import numpy as np
import pytest
from mean_field_references import CIRCLE_HEADS, DIRECTIONS, FLOWS, at_centres, last, solve, start
from scipy.integrate import solve_ivp

import wflow
from wflow.heads import HeadLaw, Oscillating
from wflow.meanfield import Circle, Fourier, Sphere

EVERY = [(flow, direction) for flow in FLOWS for direction in DIRECTIONS]
SAVE = wflow.SaveAt(budget=False, every=100)
AXIAL = np.array([[0.5, 1.5], [-0.4, 1.0]])  # diag(a, a, c)


def solved(mesh: Any, t: float, **options: Any) -> np.ndarray:
    return last(solve(mesh, t, save=SAVE, **options))


def errors_of(exact: Any, meshes: Any, t: float, **options: Any) -> list[float]:
    """Return integrals of the error at t; exact: a function of the mesh."""
    return [mesh.integrate(np.abs(solved(mesh, t, **options) - exact(mesh))) for mesh in meshes]


def ratios(errors: list[float], *what: Any) -> np.ndarray:
    found = np.array(errors[:-1]) / np.array(errors[1:])
    print(*what, " ".join(f"{error:.2e}" for error in errors), "orders", np.log2(found).round(2))
    return found


def on_the_circle(flow, direction, kappa, *, t=0.25, sizes=(64, 128), **options):
    exact = fourier_once(flow, direction, kappa, t)
    options |= {"flow": flow, "direction": direction, "kappa": kappa}
    errors = errors_of(lambda mesh: at_centres(exact, mesh), map(Circle, sizes), t, **options)
    return ratios(errors, "circle", options), errors


@lru_cache
def fourier_once(flow: str, direction: str, kappa: float, t: float) -> Any:
    return reference.fourier(flow, direction, kappa, t, lambda t: CIRCLE_HEADS)


@pytest.mark.parametrize(("flow", "direction"), EVERY)
def test_second_order_on_the_circle_with_diffusion(flow: str, direction: str) -> None:
    found, errors = on_the_circle(flow, direction, 0.1, t=0.5, sizes=(32, 64))
    assert errors[1] < 5e-3 and 3.6 < found[0] < 4.4


def test_reconstruction_has_second_order_on_the_circle_and_upwind_fluxes_first(cases: Any) -> None:
    for flow, direction in EVERY[: cases(1, 6)]:
        for kappa in (0.0, 0.005):
            assert on_the_circle(flow, direction, kappa, reconstruct=True)[0][0] > 3.2
        upwind, _ = on_the_circle(flow, direction, 0.0, reconstruct=False)
        assert 1.7 < upwind[0] < 2.4


def on_the_sphere(flow, direction, kappa, sizes, *, t=0.15, **options):
    exact = reference.legendre(flow, direction, kappa, t, AXIAL, np.exp)
    options |= {"flow": flow, "direction": direction, "kappa": kappa}
    errors = errors_of(
        lambda mesh: exact(mesh.centres), map(Sphere, sizes), t, density=lambda x: np.exp(x[:, 2]),
        heads=np.array([np.diag([a, a, c]) for a, c in AXIAL]), **options,
    )  # fmt: skip
    return ratios(errors, "sphere", options), errors


def test_second_order_on_the_sphere(cases: Any) -> None:
    sizes = cases((162, 642), (162, 642, 2562))
    for flow, direction in cases([EVERY[k] for k in (1, 2, 5)], EVERY):
        diffusive, errors = on_the_sphere(flow, direction, 0.1, sizes, t=0.3)
        assert errors[1] < 1e-2 and (diffusive > 3.3).all() and (diffusive < cases(4.6, 4.8)).all()
    for flow, direction in EVERY[: cases(1, 6)]:
        # The middle of a face is not midway between its centres: the order rises to two slowly.
        without, _ = on_the_sphere(flow, direction, 0.0, sizes, reconstruct=True)
        assert without[0] > 2.7
        assert len(without) == 1 or without[1] > max(3.0, 0.98 * without[0])


def test_rotating_heads_turn_the_solution_with_them() -> None:
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    speed = 2.0

    def heads(t: float) -> np.ndarray:
        c, s = math.cos(speed * t), math.sin(speed * t)
        R = np.array([[c, -s], [s, c]])
        return R @ CIRCLE_HEADS @ R.T

    law = HeadLaw(lambda D, t: speed * (turn @ D - D @ turn))
    exact = reference.fourier("softmax", "ascent", 0.1, 0.5, heads)
    meshes, options = (Circle(32), Circle(64)), {"kappa": 0.1, "direction": "ascent"}
    errors = errors_of(lambda mesh: at_centres(exact, mesh), meshes, 0.5, law=law, **options)
    assert 3.4 < errors[0] / errors[1] < 4.6


VOLUMES = [("euler", 1), ("ssp2", 2), ("ssp3", 3), ("imex", 1)]
LAWSON = [("euler", 1), ("heun", 2), ("rk4", 4)]


@pytest.mark.parametrize(
    ("mesh", "kappa", "scheme", "order"),
    [*((Circle(16), 0.05, *of) for of in VOLUMES), *((Fourier(16), 0.5, *of) for of in LAWSON)],
)
def test_the_order_of_every_scheme_in_time(mesh: Any, kappa: float, scheme: Any, order: int):
    def at(steps: int, scheme: Any) -> Any:
        return solve(
            mesh, 0.4, law=Oscillating(2), heads=CIRCLE_HEADS / 2, dt=0.4 / steps, kappa=kappa,
            scheme=scheme,
        )  # fmt: skip

    spectral = isinstance(mesh, Fourier)
    exact = last(at(160, "rk4" if spectral else "ssp3"))
    runs = [at(steps, scheme) for steps in (16, 32)]
    ratio = np.divide(*[np.abs(last(run) - exact).max() for run in runs])
    assert 0.7 * 2**order < ratio < 1.4 * 2**order
    if spectral:  # finite volumes leave the error of their cells
        residuals = [float(abs(run.edi_residual[0, -1])) for run in runs]
        assert residuals[0] / residuals[1] > 0.7 * 2**order


def test_the_order_of_reconstruction_rises_on_fine_spheres(cases: Any) -> None:
    sizes = cases((42, 162), (642, 2562, 10242))
    found, _ = on_the_sphere("softmax", "descent", 0.0, sizes, reconstruct=True)
    assert found[-1] > cases(1.8, 3.3)


BETAS = np.array([3.0, 1.0])


def law_of_two_clusters(flow: str, angle: float, t: float, m: float) -> float:
    """Return the angle at t of two points of masses m and 1 - m, heads beta I, in ascent."""

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
        mesh, t, density=density, heads=BETAS[:, None, None] * np.eye(mesh.dim + 1), flow=flow,
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
                meshes = map(Circle, cases((64, 128), (64, 128, 256, 512)))
                errors = [error_of_clusters(flow, each, ends, m, reconstruct) for each in meshes]
                assert (ratios(errors, "clusters", flow, m, reconstruct) > 1.7).all()
                assert errors[-1] < cases(0.05, 0.03)


def test_clusters_on_the_sphere_follow_their_law_at_first_order(cases: Any) -> None:
    ends = [[1.0, 0.2, 0.1], [0.2, 1.0, 0.1]]
    for flow in FLOWS[: cases(1, 3)]:
        for reconstruct in (True, False)[: cases(1, 2)]:
            meshes = map(Sphere, cases((162, 642), (642, 2562, 10242)))
            errors = [error_of_clusters(flow, each, ends, 0.5, reconstruct) for each in meshes]
            found = ratios(errors, "clusters on the sphere", flow, reconstruct)
            assert found[-1] > cases(1.3, 1.7)


def test_a_turned_problem_has_the_turned_solution_at_the_order_of_the_mesh(cases: Any) -> None:
    R = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    D = Oscillating(3).target(0.3, 2) / 3
    for kappa in (0.05, 0.0)[: cases(1, 2)]:
        errors = []
        for cells in cases((162, 642), (162, 642, 2562)):
            mesh = Sphere(cells)
            plain = solved(mesh, 0.2, heads=D, kappa=kappa)
            given: Any = {"density": lambda x: start(x @ R), "heads": R @ D @ R.T, "kappa": kappa}
            turned = solved(mesh, 0.2, **given)
            back = mesh.centres @ R
            near = mesh.nearest(back)
            slopes = mesh.gradient(plain)[near]
            there = plain[near] + np.einsum("ia,ia->i", slopes, back - mesh.centres[near])
            errors.append(mesh.integrate(np.abs(turned - there)))
        found = ratios(errors, "rotation", kappa)
        assert (found > 3.3).all() and errors[0] < 6e-3


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
    run = solve(mesh, dt, density, heads=D, dt=dt, flow="unnormalised", **options)
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
def test_the_budget_closes_at_the_order_of_the_scheme_from_the_bound_of_positivity(scheme, order):
    mesh, D = Circle(24), CIRCLE_HEADS
    density = start(mesh.centres)
    positive = bounds(mesh, D, density / mesh.integrate(density), 0.1, 1)[0]
    steps = math.ceil(1.2 * 0.3 / positive)  # the bound falls by less
    residuals = []
    for count in (steps, 2 * steps, 4 * steps):
        run = solve(
            mesh, 0.3, density, heads=D, dt=0.3 / count, kappa=0.1, direction="ascent",
            flow="unnormalised", scheme=scheme,
        )  # fmt: skip
        residuals.append(float(run.edi_residual[0, -1]))
    # What is left for short steps is that of the cells.
    falls = np.diff(residuals)
    assert abs(falls[0]) < 0.05 and 0.6 * 2**order < falls[0] / falls[1] < 1.5 * 2**order
