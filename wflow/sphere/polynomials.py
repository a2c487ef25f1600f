"""Legendre and Gegenbauer polynomials for spherical harmonics, on NumPy arrays.

A harmonic is a polynomial in the height z times a harmonic of degree m around the axis. On S^2 it
is Re or Im (x + iy)^m q_lm(z), by the recursion of `harmonics`, whose compiled loops form the same
numbers. On S^{d-1} the polynomial of degree l - m is that of Gegenbauer for d + 2 m.

Source: DLMF 14.30, 18.9.
"""

import numpy as np
from numpy.typing import NDArray

from wflow.sphere.harmonics import recursion_table

Floats = NDArray[np.float64]


def legendre(z: Floats, degree: int) -> tuple[Floats, Floats]:
    """Return q_lm and their derivatives, (order, point, degree), zero for l < m.

    Re and Im (x + iy)^m q_lm(z) are orthonormal on S^2.
    """
    table = recursion_table(3, degree)
    first = int(table[0])
    q = np.zeros((degree + 1, len(z), degree + 1))
    slopes = np.zeros_like(q)
    for m in range(degree + 1):
        q[m, :, m] = table[1 + m]
        for l in range(m + 1, degree + 1):  # noqa: E741 the letter of every book
            up, back = table[first + l * (l + 1) + 2 * m :][:2]
            q[m, :, l] = up * z * q[m, :, l - 1]
            slopes[m, :, l] = up * (q[m, :, l - 1] + z * slopes[m, :, l - 1])
            if l > m + 1:
                q[m, :, l] += back * q[m, :, l - 2]
                slopes[m, :, l] += back * slopes[m, :, l - 2]
    return q, slopes


def gegenbauer(z: Floats, d: int, degree: int) -> Floats:
    """Return the polynomials P_0 to P_degree (point, degree + 1) of S^{d-1}, with P_l(1) = 1."""
    found = np.ones((len(z), degree + 1))
    if degree:
        found[:, 1] = z
    for l in range(1, degree):  # noqa: E741
        step = (2 * l + d - 2) * z * found[:, l] - l * found[:, l - 1]
        found[:, l + 1] = step / (l + d - 2)
    return found


def gegenbauer_slopes(z: Floats, d: int, degrees: NDArray[np.intp]) -> Floats:
    """Return derivatives of `gegenbauer` for increasing degrees.

    P_l' = l (l + d - 2)/(d - 1) P_{l-1}, the latter of dimension d + 2.
    """
    below = gegenbauer(z, d + 2, max(int(degrees[-1]) - 1, 0))
    factor = degrees * (degrees + d - 2) / (d - 1)
    return np.asarray(below[:, np.maximum(degrees - 1, 0)] * factor)
