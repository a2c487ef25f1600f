"""Real orthonormal harmonics on the circle and the sphere, and the radial factors of exp<x, z>.

With |x| = 1, z = r zhat and kappa = 2 pi (d = 2) or 4 pi (d = 3) (docs/theory/fast_sums.md),

    exp<x, z> = kappa sum_l i_l(r) sum_m Y_lm(x) Y_lm(zhat),

i_l the modified Bessel function I_l (d = 2) or the modified spherical one (d = 3). Order of the
harmonics: by degree, so that a smaller degree is a prefix: d = 2: 1, cos a, sin a, cos 2a, ...;
d = 3: place l^2 + l + m, cosines at m > 0, sines at m < 0.

The harmonics are polynomials in the coordinates, Re and Im (x + iy)^m times a Legendre recursion in
z: no angle is formed and the poles are points like others. scipy.special.sph_harm_y gives the same
numbers as an array (harmonics, n), 3.5 GB at degree 20 and a million tokens: it is the reference of
the tests. `polynomials` has them for arrays of NumPy.

Source: DLMF 10.35.2, 10.60.7, 14.30; W. Gautschi, Computational aspects of three-term recurrence
relations, SIAM Review 9 (1967), for the ratios of Bessel functions by backward recursion.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wflow._core.compiler.functions import internal
from wflow._core.compiler.vectors import align_stack, fma, lanes, load, splat, store

# Number of vectors of points in a block of harmonics, as the tile wants them.
PAIR = 2
# Degrees of the longest series of a head; its sources need two more.
DEGREE_CIRCLE, DEGREE_SPHERE = 96, 40


@njit(error_model="numpy", forceinline=True)
def count(degree, d):
    """Return the number of harmonics up to a degree."""
    return (degree + 1) * (degree + 1) if d == 3 else 2 * degree + 1


def recursion_table(d: int, degree: int) -> NDArray[np.float64]:
    """Return the constants of the recursion, flat.

    d = 2: the two norms. d = 3: the place `first` of the steps; start_m; from `first` on two
    numbers for every (l, m), at l (l + 1) + 2 m: a_lm and -a_lm b_lm of
    q_lm = a_lm (z q_(l-1)m - b_lm q_(l-2)m), with q_mm = start_m,
    a = sqrt((4 l^2 - 1)/(l^2 - m^2)), b = sqrt(((l - 1)^2 - m^2)/(4 (l - 1)^2 - 1)).
    """
    if d == 2:
        return np.array([math.sqrt(0.5 / math.pi), math.sqrt(1 / math.pi)])
    start = np.empty(degree + 1)
    square = 1 / (4 * math.pi)
    for m in range(degree + 1):
        if m:
            square *= (2 * m + 1) / (2 * m)
        start[m] = math.sqrt(square * (2 if m else 1))
    steps = np.zeros((degree + 1) * (degree + 2))
    for l in range(1, degree + 1):  # noqa: E741 the letter of every book
        for m in range(l):
            up = math.sqrt((4 * l * l - 1) / (l * l - m * m))
            back = math.sqrt(((l - 1) ** 2 - m * m) / (4 * (l - 1) ** 2 - 1)) if m < l - 1 else 0.0
            at = l * (l + 1) + 2 * m
            steps[at : at + 2] = up, -up * back
    return np.concatenate([[degree + 2.0], start, steps])


@internal(forceinline=True)
def multiplied(x, y, c, s):
    """Return real and imaginary part of (x + iy)(c + is)."""
    return fma(x, c, splat(0.0) - y * s), fma(x, s, y * c)


@internal
def _sphere(own, degree, table, out, at):
    width = lanes(own)
    step = PAIR * width
    first = int(table[0])
    x0 = load(own, 0)
    y0 = load(own, width)
    z0 = load(own, 2 * width)
    x1 = load(own, 3 * width)
    y1 = load(own, 4 * width)
    z1 = load(own, 5 * width)
    zero = splat(0.0)
    c0 = splat(1.0)
    s0 = zero
    c1 = c0
    s1 = zero
    for m in range(degree + 1):
        before0 = zero
        before1 = zero
        q0 = splat(table[1 + m])
        q1 = q0
        for l in range(m, degree + 1):  # noqa: E741
            if l > m:
                place = first + l * (l + 1) + 2 * m
                up = splat(table[place])
                back = splat(table[place + 1])
                next0 = fma(up * z0, q0, back * before0)
                next1 = fma(up * z1, q1, back * before1)
                before0 = q0
                before1 = q1
                q0 = next0
                q1 = next1
            here = at + (l * l + l + m) * step
            store(out, here, q0 * c0)
            store(out, here + width, q1 * c1)
            if m > 0:
                here -= 2 * m * step
                store(out, here, q0 * s0)
                store(out, here + width, q1 * s1)
        c0, s0 = multiplied(x0, y0, c0, s0)
        c1, s1 = multiplied(x1, y1, c1, s1)


@internal
def _circle(own, degree, table, out, at):
    width = lanes(own)
    step = PAIR * width
    x0 = load(own, 0)
    y0 = load(own, width)
    x1 = load(own, 2 * width)
    y1 = load(own, 3 * width)
    zero = splat(0.0)
    store(out, at, splat(table[0]))
    store(out, at + width, splat(table[0]))
    norm = splat(table[1])
    c0 = norm
    s0 = zero
    c1 = norm
    s1 = zero
    for k in range(1, degree + 1):
        c0, s0 = multiplied(x0, y0, c0, s0)
        c1, s1 = multiplied(x1, y1, c1, s1)
        here = at + (2 * k - 1) * step
        store(out, here, c0)
        store(out, here + width, c1)
        store(out, here + step, s0)
        store(out, here + step + width, s1)


@njit(error_model="numpy")
def harmonics(own, d, degree, table, out, at):
    """Compute all harmonics up to `degree` of two blocks of points, two vectors per harmonic.

    own : (2, d) vectors of coordinates; out : `count` x 2 vectors, written from `at` on
    Cost: three multiply-adds and two products per two harmonics and vector.
    """
    align_stack()
    if d == 3:
        _sphere(own, degree, table, out, at)
    else:
        _circle(own, degree, table, out, at)


@njit(error_model="numpy")
def radial_factors(r, r_at, growth, d, degree, top, out, vectors_per_degree, place):
    """Write kappa i_l(r), l <= degree, to out[(l vectors_per_degree + place)].

    The ratios i_l/i_(l-1) come from the backward recursion r/(2l + 1 + r ratio_(l+1)) (d = 2:
    r/(2l + ...)), which is stable and regular at r = 0; the scale from sum_l (2l + 1) i_l = e^r
    (d = 2: I_0 + 2 sum I_l), taken up to `top`, beyond which nothing is left of it.

    growth : e^r, a vector like r
    """
    width = lanes(r)
    odd = 1 if d == 3 else 0
    value = load(r, r_at)
    ratio = splat(0.0)
    rest = splat(2.0 * top + 1.0 if d == 3 else 2.0)
    for l in range(top, 0, -1):  # noqa: E741
        ratio = value / fma(value, ratio, splat(2.0 * l + odd))
        weight = 2.0 * l - 1.0 if d == 3 else (2.0 if l > 1 else 1.0)
        rest = fma(ratio, rest, splat(weight))
        if l <= degree:
            store(out, (l * vectors_per_degree + place) * width, ratio)
    factor = splat((4.0 if d == 3 else 2.0) * math.pi) * load(growth, r_at) / rest
    store(out, place * width, factor)
    for l in range(1, degree + 1):  # noqa: E741
        at = (l * vectors_per_degree + place) * width
        factor = factor * load(out, at)
        store(out, at, factor)


def quadrature(d: int, degree: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes (q, d) and weights (q,) on the sphere, exact for polynomials up to 2 degree.

    d = 2: 2 degree + 1 equal angles. d = 3: Gauss-Legendre in z times equal angles,
    (degree + 1)(2 degree + 1) nodes.
    """
    return _product_rule(d, degree, 2 * degree + 1, 2 * degree + 1)


def half_quadrature(d: int, degree: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes (q, d) and weights (q,), exact up to 2 degree together with the antipodes.

    As `quadrature` with 2 degree + 2 angles, of which the first half is returned; an antipode has
    the weight of its node.
    """
    return _product_rule(d, degree, 2 * degree + 2, degree + 1)


def _product_rule(
    d: int, degree: int, number: int, kept: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return equal angles, the first `kept` of `number`, times Gauss-Legendre nodes where d = 3."""
    angles = 2 * math.pi * np.arange(kept) / number
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    share = 2 * math.pi / number
    if d == 2:
        return around, np.full(len(angles), share)
    z, weight = np.polynomial.legendre.leggauss(degree + 1)
    nodes = np.empty((len(z), len(angles), 3))
    nodes[..., :2] = np.sqrt((1 - z) * (1 + z))[:, None, None] * around
    nodes[..., 2] = z[:, None]
    return nodes.reshape(-1, 3), np.repeat(weight * share, len(angles))
