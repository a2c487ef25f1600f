"""Independent solvers of the mean-field equation: Fourier and axisymmetric Legendre, by SciPy."""

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import ive

from wflow import meanfield
from wflow.heads import Frozen
from wflow.meanfield.mesh import Quadrature

FLOWS = ("softmax", "unnormalised", "effective")
DIRECTIONS = {"descent": -1.0, "ascent": 1.0}
CIRCLE_HEADS = np.array([[[1.0, 0.3], [0.3, -0.5]], [[0.2, -0.6], [-0.6, 1.5]]])


def start(x: np.ndarray) -> np.ndarray:
    return np.exp(x[:, 0] + 0.5 * x[:, 1])


def solve(mesh: Any, t_final: float, density: Any = start, law: Any = None, **options: Any) -> Any:
    """Return a run of densities, of `start` under CIRCLE_HEADS at rest unless others are given."""
    law = Frozen() if law is None else law
    options = {"heads": CIRCLE_HEADS} | options
    return meanfield.solve(density, law, mesh=mesh, t_final=t_final, **options)


def last(run: Any) -> np.ndarray:
    return run.density[0, -1].values


def velocity_factor(flow: str, s: float, m: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return s V from mobilities and their derivatives, (heads, n)."""
    if flow == "softmax":
        return s * (slopes / m).mean(axis=0)
    mean = s * slopes.mean(axis=0)
    return mean if flow == "unnormalised" else mean * (1 / m).mean(axis=0)


def fourier(flow: str, direction: str, kappa: float, t: float, heads: Any, n: int = 64) -> Any:
    """Fourier coefficients of the density on the circle at t; heads: a function of time."""
    theta = 2 * np.pi * np.arange(n) / n
    x = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    turned = np.stack([-np.sin(theta), np.cos(theta)], axis=1)
    k = np.fft.fftfreq(n, 1 / n)

    def rate(time: float, rho: np.ndarray) -> np.ndarray:
        D = heads(time)
        U = np.exp(np.einsum("ia,hab,jb->hij", x, D, x)) * (2 * np.pi / n)
        m = U @ rho
        slopes = np.einsum("hij,ia,hab,jb,j->hi", U, turned, D, x, rho, optimize=True)
        flux = rho * velocity_factor(flow, DIRECTIONS[direction], m, slopes)
        return np.fft.ifft(-1j * k * np.fft.fft(flux) - kappa * k**2 * np.fft.fft(rho)).real

    rho = start(x)
    rho /= rho.mean() * 2 * np.pi
    found = solve_ivp(rate, (0, t), rho, rtol=1e-12, atol=1e-13, method="DOP853").y[:, -1]
    return np.fft.fft(found) / n, k


def at_centres(coefficients: Any, mesh: Quadrature) -> np.ndarray:
    """Return the Fourier series at the centres of the cells."""
    c, k = coefficients
    theta = np.arctan2(mesh.centres[:, 1], mesh.centres[:, 0])
    return (np.exp(1j * np.outer(theta, k)) @ c).real


def legendre(
    flow: str, direction: str, kappa: float, t: float, heads: np.ndarray, density: Any, n: int = 24
) -> Any:
    """Return a function z -> density at t of an axisymmetric problem, heads diag(a, a, c).

    Galerkin in Legendre polynomials of z; the kernel over circles of latitude is
    2 pi I_0(a s s') e^(c z z') with s = sqrt(1 - z^2).
    """
    z, weight = np.polynomial.legendre.leggauss(2 * n)
    P = np.polynomial.legendre.legvander(z, n)
    dP = np.stack(
        [
            np.polynomial.legendre.legval(z, np.polynomial.legendre.legder(row))
            for row in np.eye(n + 1)
        ],
        axis=1,
    )
    degrees = np.arange(n + 1)
    root = np.sqrt(1 - z**2)
    kernels, slopes = [], []
    for a, c in heads:
        argument = a * np.outer(root, root)
        exponent = np.exp(np.abs(argument) + c * np.outer(z, z)) * 2 * np.pi * weight
        kernels.append(ive(0, argument) * exponent)
        # d/dz of I_0(a s s') e^(c z z'), with s' the other root: s has the derivative -z/s.
        inner = np.outer(-z / root, root) * a
        slopes.append((ive(1, argument) * inner + ive(0, argument) * c * z) * exponent)
    K, dK = np.array(kernels), np.array(slopes)

    def rate(_: float, c: np.ndarray) -> np.ndarray:
        rho = P @ c
        v = velocity_factor(flow, DIRECTIONS[direction], K @ rho, dK @ rho)
        flux = (1 - z**2) * (rho * v - kappa * (dP @ c))
        return (2 * degrees + 1) / 2 * (dP.T @ (weight * flux))

    values = density(z)
    values = values / (2 * np.pi * weight @ values)
    c0 = (2 * degrees + 1) / 2 * (P.T @ (weight * values))
    found = solve_ivp(rate, (0, t), c0, rtol=1e-9, atol=1e-11, method="DOP853").y[:, -1]
    return lambda x: np.polynomial.legendre.legval(x[:, 2], found)
