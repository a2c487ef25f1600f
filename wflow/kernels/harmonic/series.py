"""Compiled passes of the fast sums before the evaluation: survey, moments, coefficients of heads.

The algorithm, bounds on its error and their proofs are in docs/theory/fast_sums.md; `fast`
puts the passes together. Every pass cuts its work into tasks that do not depend on the number of
threads, and adds up what tasks leave in their order: threads do not change a bit. The loops
repeat the recursion of `sphere.harmonics`, in a form that stores no harmonic: they add up each one
when it is formed.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import njit, prange, types
from numpy.typing import NDArray

from wflow._core.checks import number
from wflow._core.compiler.functions import internal, kernel, loop_body
from wflow._core.compiler.tasks import address, arrays, call
from wflow._core.compiler.vectors import align_stack, fma, lanes, load, minimum, splat, store
from wflow._core.errors import InputError
from wflow.kernels.harmonic import series
from wflow.kernels.pairs.sweep import DIRECT_BOUND_DOUBLE, by_lane, vectors
from wflow.sphere.harmonics import (
    DEGREE_CIRCLE,
    DEGREE_SPHERE,
    PAIR,
    count,
    harmonics,
    multiplied,
    radial_factors,
)

# Vectors of points whose harmonics are in cache together while they are summed.
_GATHER = 4
# Number of tasks of a pass: enough for any machine, and few enough that their results are small.
_TASKS = 256


@njit(error_model="numpy")
def task_count(points, unit):
    """Return the number of tasks for so many points, which are processed `unit` at a time."""
    return min((points + unit - 1) // unit, _TASKS)


@internal(forceinline=True)
def _gather(basis, radial, weights, columns, degree, d, sums):
    """Add radial_l Y_k weight_c, summed over the points, to sums[k, c], lane by lane.

    Four vectors of points: basis (2 pairs, K, PAIR), radial (degree + 1, 4), weights (2, columns,
    4), for even and odd l, sums (K, columns), all in vectors. Cost: columns + 1 products per
    harmonic and vector.
    """
    width = lanes(basis)
    other = count(degree, d) * PAIR * width
    k = 0
    for l in range(degree + 1):  # noqa: E741
        at = l * _GATHER * width
        r0 = load(radial, at)
        r1 = load(radial, at + width)
        r2 = load(radial, at + 2 * width)
        r3 = load(radial, at + 3 * width)
        for _ in range(k, count(l, d)):
            here = k * PAIR * width
            y0 = load(basis, here) * r0
            y1 = load(basis, here + width) * r1
            y2 = load(basis, other + here) * r2
            y3 = load(basis, other + here + width) * r3
            for c in range(columns):
                w = ((l & 1) * columns + c) * _GATHER * width
                place = (k * columns + c) * width
                total = fma(y0, load(weights, w), load(sums, place))
                total = fma(y1, load(weights, w + width), total)
                total = fma(y2, load(weights, w + 2 * width), total)
                total = fma(y3, load(weights, w + 3 * width), total)
                store(sums, place, total)
            k += 1


@internal
def _fold_lanes(sums, number, out):
    """Write the sum of the lanes of `number` vectors to `out`."""
    width = lanes(sums)
    for place in range(number):
        total = 0.0
        for lane in range(width):
            total += sums[place * width + lane]
        out[place] = total


@internal
def _place(points, mass, matrix, last, start, own, zhat, r, growth, weights, products):
    """Compute z = D y, |z|, exp|z| and the weights of four vectors of sources from `start` on.

    mass (3, q) : sum and difference of the weights of a source and of its antipode, and the sum of
        their absolute values
    weights (2, columns, 4) : for even l and odd l, w; with `products` > 0 also w y_a, and w y_a y_b
        (2) or w z_a z_b (3), a <= b. A harmonic of odd l, and an odd product, change their sign at
        the antipode.

    Returns sum |w| exp|z|.
    """
    d = points.shape[1]
    width = lanes(points)
    columns = column_count(d, products)
    z = np.empty(d)
    strength = 0.0
    for vector in range(_GATHER):
        block = start + vector * width
        by_lane(points, last, block, own, vector * d * width)
        for lane in range(width):
            at = vector * width + lane
            inside = block + lane < last
            square = 0.0
            for a in range(d):
                total = 0.0
                for b in range(d):
                    total += matrix[a, b] * own[(vector * d + b) * width + lane]
                z[a] = total
                square += total * total
            norm = math.sqrt(square)
            r[at] = norm
            growth[at] = math.exp(norm)
            strength += mass[2, block + lane] * growth[at] if inside else 0.0
            for a in range(d):
                # Where z vanishes only degree 0 counts, and any direction will do.
                unit = z[a] / norm if norm > 1e-150 else (1.0 if a == 0 else 0.0)
                zhat[(vector * d + a) * width + lane] = unit
            for parity in range(2):
                alike = mass[parity, block + lane] if inside else 0.0
                other = mass[1 - parity, block + lane] if inside else 0.0
                place = parity * columns * _GATHER * width + at
                weights[place] = alike
                if products > 0:
                    for a in range(d):
                        place += _GATHER * width
                        weights[place] = other * own[(vector * d + a) * width + lane]
                if products > 1:
                    for a in range(d):
                        for b in range(a, d):
                            if products == 2:
                                left = own[(vector * d + a) * width + lane]
                                right = own[(vector * d + b) * width + lane]
                            else:
                                left = z[a]
                                right = z[b]
                            place += _GATHER * width
                            weights[place] = alike * left * right
    return strength


@njit(error_model="numpy")
def column_count(d, products):
    """Return the weights per source: 1, its coordinates, and their products if asked for."""
    if products == 0:
        return 1
    return 1 + d + (d * (d + 1) // 2 if products > 1 else 0)


@loop_body
def _project(points, mass, matrix, bare, degree, top, table, products, out, strength):
    """Sum weight_c kappa i_l(|D y|) Y_k(D y / |D y|) over sources, into out (K columns,).

    mass (3, q) : as for `_place`
    bare : without the radial factor, matrix being the identity: moments of the sources
    strength (1,) : becomes sum |w| exp|D y|
    """
    last, d = points.shape
    width = lanes(points)
    columns = column_count(d, products)
    number = count(degree, d)
    basis = vectors(_GATHER * number, points)
    sums = vectors(number * columns, points)
    radial = vectors((degree + 1) * _GATHER, points)
    weights = vectors(2 * columns * _GATHER, points)
    single = d == 3 and columns == 1 and not bare
    squares, scales = _steps(degree if single else 0, table)
    own = vectors(d * _GATHER, points)
    zhat = vectors(d * _GATHER, points)
    r = vectors(_GATHER, points)
    growth = vectors(_GATHER, points)
    sums[:] = 0.0
    radial[:] = 1.0
    total = 0.0
    for start in range(0, last, _GATHER * width):
        total += _place(points, mass, matrix, last, start, own, zhat, r, growth, weights, products)
        if not bare:
            for vector in range(_GATHER):
                at = vector * width
                radial_factors(r, at, growth, d, degree, top, radial, _GATHER, vector)
        if single:
            for l in range(degree + 1):  # noqa: E741
                for vector in range(_GATHER):
                    at = (l * _GATHER + vector) * width
                    weight = load(weights, ((l & 1) * _GATHER + vector) * width)
                    store(radial, at, weight * load(radial, at))
            _sphere_group(zhat, radial, degree, squares, sums)
            continue
        for pair in range(_GATHER // PAIR):
            at = pair * PAIR * d * width
            chosen = own[at:] if bare else zhat[at:]
            harmonics(chosen, d, degree, table, basis, pair * number * PAIR * width)
        _gather(basis, radial, weights, columns, degree, d, sums)
    _fold_lanes(sums, number * columns, out)
    if single:
        for k in range(number):
            out[k] *= scales[k]
    strength[0] = total


@internal(forceinline=True)
def _weighted_group(x, mass, last, start, own, weights):
    """Load coordinates and masses of four vectors of points from `start`; no mass beyond `last`."""
    d = x.shape[1]
    width = lanes(x)
    for vector in range(_GATHER):
        block = start + vector * width
        by_lane(x, last, block, own, vector * d * width)
        for lane in range(width):
            inside = block + lane < last
            weights[vector * width + lane] = mass[block + lane] if inside else 0.0


@internal(forceinline=True)
def _sphere_group(own, radial, degree, squares, sums):
    """Add radial_l s_lm^-1 Y_k, summed over four vectors of points, to sums_k, lane by lane.

    The recursion of `harmonics` with q_lm = s_lm p_lm and p_mm = 1,

        p_lm = z p_(l-1)m - b_lm^2 p_(l-2)m,   s_lm = a_lm s_(l-1)m,   s_mm = start_m,

    so that a step is one product and one multiply-add. No harmonic is stored.

    radial (degree + 1, 4) : with the weights of the points
    Cost per point: two multiply-adds and half a product for each of the K harmonics.
    """
    width = lanes(own)
    zero = splat(0.0)
    one = splat(1.0)
    x0 = load(own, 0)
    y0 = load(own, width)
    z0 = load(own, 2 * width)
    x1 = load(own, 3 * width)
    y1 = load(own, 4 * width)
    z1 = load(own, 5 * width)
    x2 = load(own, 6 * width)
    y2 = load(own, 7 * width)
    z2 = load(own, 8 * width)
    x3 = load(own, 9 * width)
    y3 = load(own, 10 * width)
    z3 = load(own, 11 * width)
    c0 = one
    c1 = one
    c2 = one
    c3 = one
    s0 = zero
    s1 = zero
    s2 = zero
    s3 = zero
    for m in range(degree + 1):
        p0 = one
        p1 = one
        p2 = one
        p3 = one
        before0 = zero
        before1 = zero
        before2 = zero
        before3 = zero
        for l in range(m, degree + 1):  # noqa: E741
            at = l * _GATHER * width
            u0 = p0 * load(radial, at)
            u1 = p1 * load(radial, at + width)
            u2 = p2 * load(radial, at + 2 * width)
            u3 = p3 * load(radial, at + 3 * width)
            middle = l * l + l
            place = (middle + m) * width
            total = fma(u0, c0, load(sums, place))
            total = fma(u1, c1, total)
            total = fma(u2, c2, total)
            store(sums, place, fma(u3, c3, total))
            if m > 0:
                place = (middle - m) * width
                total = fma(u0, s0, load(sums, place))
                total = fma(u1, s1, total)
                total = fma(u2, s2, total)
                store(sums, place, fma(u3, s3, total))
            if l < degree:
                back = splat(squares[middle + 2 * l + 2 + m])
                next0 = fma(z0, p0, back * before0)
                next1 = fma(z1, p1, back * before1)
                next2 = fma(z2, p2, back * before2)
                next3 = fma(z3, p3, back * before3)
                before0 = p0
                before1 = p1
                before2 = p2
                before3 = p3
                p0 = next0
                p1 = next1
                p2 = next2
                p3 = next3
        c0, s0 = multiplied(x0, y0, c0, s0)
        c1, s1 = multiplied(x1, y1, c1, s1)
        c2, s2 = multiplied(x2, y2, c2, s2)
        c3, s3 = multiplied(x3, y3, c3, s3)


@internal
def _moment_group(own, weights, degree, steps, sums):
    """Add four vectors of points to the sums from which `_moments_of_sums` computes moments.

    Two degrees at a time, by the recursion for Q_k in docs/theory/fast_sums.md, with Q_k = s_k R_k
    so that R_(k-1) enters with the factor one.

    sums : for every m and k, m outermost, those of weight R_k (1, z) times Re w^m and Im w^m
    Cost per point: one and a half multiply-adds for each harmonic.
    """
    align_stack()
    width = lanes(own)
    zero = splat(0.0)
    one = splat(1.0)
    x0 = load(own, 0)
    y0 = load(own, width)
    z0 = load(own, 2 * width)
    x1 = load(own, 3 * width)
    y1 = load(own, 4 * width)
    z1 = load(own, 5 * width)
    x2 = load(own, 6 * width)
    y2 = load(own, 7 * width)
    z2 = load(own, 8 * width)
    x3 = load(own, 9 * width)
    y3 = load(own, 10 * width)
    z3 = load(own, 11 * width)
    square0 = z0 * z0
    square1 = z1 * z1
    square2 = z2 * z2
    square3 = z3 * z3
    c0 = load(weights, 0)
    c1 = load(weights, width)
    c2 = load(weights, 2 * width)
    c3 = load(weights, 3 * width)
    s0 = zero
    s1 = zero
    s2 = zero
    s3 = zero
    place = np.uintp(0)
    at = np.uintp(0)
    step = np.uintp(width)
    for m in range(degree + 1):
        p0 = one
        p1 = one
        p2 = one
        p3 = one
        before0 = zero
        before1 = zero
        before2 = zero
        before3 = zero
        zc0 = z0 * c0
        zc1 = z1 * c1
        zc2 = z2 * c2
        zc3 = z3 * c3
        zs0 = z0 * s0
        zs1 = z1 * s1
        zs2 = z2 * s2
        zs3 = z3 * s3
        for _ in range((degree - m) // 2 + 1):
            total = fma(p0, c0, load(sums, place))
            total = fma(p1, c1, total)
            total = fma(p2, c2, total)
            store(sums, place, fma(p3, c3, total))
            place += step
            total = fma(p0, zc0, load(sums, place))
            total = fma(p1, zc1, total)
            total = fma(p2, zc2, total)
            store(sums, place, fma(p3, zc3, total))
            place += step
            total = fma(p0, s0, load(sums, place))
            total = fma(p1, s1, total)
            total = fma(p2, s2, total)
            store(sums, place, fma(p3, s3, total))
            place += step
            total = fma(p0, zs0, load(sums, place))
            total = fma(p1, zs1, total)
            total = fma(p2, zs2, total)
            store(sums, place, fma(p3, zs3, total))
            place += step
            slope = splat(steps[at])
            offset = splat(steps[at + np.uintp(1)])
            at += np.uintp(2)
            next0 = fma(fma(slope, square0, offset), p0, before0)
            next1 = fma(fma(slope, square1, offset), p1, before1)
            next2 = fma(fma(slope, square2, offset), p2, before2)
            next3 = fma(fma(slope, square3, offset), p3, before3)
            before0 = p0
            before1 = p1
            before2 = p2
            before3 = p3
            p0 = next0
            p1 = next1
            p2 = next2
            p3 = next3
        c0, s0 = multiplied(x0, y0, c0, s0)
        c1, s1 = multiplied(x1, y1, c1, s1)
        c2, s2 = multiplied(x2, y2, c2, s2)
        c3, s3 = multiplied(x3, y3, c3, s3)


@internal
def _squared(l, m):  # noqa: E741
    """Return b_lm^2 of `_sphere_group`, which is 0 for l = m + 1."""
    below = (l - 1.0) * (l - 1.0)
    return (below - m * m) / (4.0 * below - 1.0)


@internal
def _pairs_of_degrees(degree):
    """Return the two numbers of a step for every m and k of `_moment_group`, and the scales s_k."""
    number = 0
    for m in range(degree + 1):
        number += (degree - m) // 2 + 1
    steps = np.empty(2 * number)
    scales = np.empty(number)
    at = 0
    for m in range(degree + 1):
        scale = 1.0
        before = 0.0
        for l in range(m, degree + 1, 2):  # noqa: E741
            off = _squared(l + 2, m) + _squared(l + 3, m)
            after = -_squared(l + 2, m) * _squared(l + 1, m) * before if l > m else off
            scales[at] = scale
            steps[2 * at] = scale / after
            steps[2 * at + 1] = -off * steps[2 * at]
            at += 1
            scale, before = after, scale
    return steps, scales


@internal
def _moments_of_sums(folded, scales, degree, normal, out):
    """Compute moments (K,) from the sums of `_moment_group`, lanes folded (4 for every m and k).

    normal (K,) : s_lm of `_sphere_group` at the places of the harmonics
    """
    at = 0
    for m in range(degree + 1):
        scale = 0.0
        cosine = 0.0
        sine = 0.0
        for l in range(m, degree + 1, 2):  # noqa: E741
            back = _squared(l + 1, m) * scale if l > m else 0.0
            scale = scales[at]
            middle = l * l + l
            out[middle - m] = scale * folded[4 * at + 2] + back * sine
            out[middle + m] = scale * folded[4 * at] + back * cosine
            cosine = folded[4 * at]
            sine = folded[4 * at + 2]
            if l < degree:
                middle += 2 * l + 2
                out[middle - m] = scale * folded[4 * at + 3]
                out[middle + m] = scale * folded[4 * at + 1]
            at += 1
    for k in range(count(degree, 3)):
        out[k] *= normal[k]


@internal
def _steps(degree, table):
    """Return -b_lm^2 of `_sphere_group` and s_lm at the places of the harmonics."""
    steps = int(table[0])
    squares = np.zeros(count(degree, 3))
    scales = np.empty(count(degree, 3))
    for m in range(degree + 1):
        scale = table[1 + m]
        for l in range(m, degree + 1):  # noqa: E741
            at = steps + l * (l + 1) + 2 * m
            if l > m:
                scale *= table[at]
                ratio = table[at + 1] / table[at]
                squares[l * l + l + m] = -ratio * ratio
            scales[l * l + l + m] = scale
            scales[l * l + l - m] = scale
    return squares, scales


@loop_body
def _sphere_moments(x, mass, first, last, degree, table, out):
    """Sum mass_j Y_k(x_j) over points first <= j < last of the sphere, into out (K,)."""
    width = lanes(x)
    steps, scales = _pairs_of_degrees(degree)
    _, normal = _steps(degree, table)
    number = 4 * scales.shape[0]
    sums = vectors(number, x)
    own = vectors(3 * _GATHER, x)
    weights = vectors(_GATHER, x)
    folded = np.empty(number)
    sums[:] = 0.0
    for start in range(first, last, _GATHER * width):
        _weighted_group(x, mass, last, start, own, weights)
        _moment_group(own, weights, degree, steps, sums)
    _fold_lanes(sums, number, folded)
    _moments_of_sums(folded, scales, degree, normal, out)


@loop_body
def _circle_moments(x, mass, first, last, degree, table, out):
    """Sum mass_j Y_k(x_j) over points first <= j < last of the circle, into out (K,).

    The recursion of `harmonics`, started with mass_j: six operations a point and degree.
    """
    width = lanes(x)
    number = count(degree, 2)
    sums = vectors(number, x)
    own = vectors(2 * _GATHER, x)
    weights = vectors(_GATHER, x)
    sums[:] = 0.0
    zero = splat(0.0)
    for start in range(first, last, _GATHER * width):
        _weighted_group(x, mass, last, start, own, weights)
        x0 = load(own, 0)
        y0 = load(own, width)
        x1 = load(own, 2 * width)
        y1 = load(own, 3 * width)
        x2 = load(own, 4 * width)
        y2 = load(own, 5 * width)
        x3 = load(own, 6 * width)
        y3 = load(own, 7 * width)
        c0 = load(weights, 0)
        c1 = load(weights, width)
        c2 = load(weights, 2 * width)
        c3 = load(weights, 3 * width)
        s0 = zero
        s1 = zero
        s2 = zero
        s3 = zero
        store(sums, 0, load(sums, 0) + ((c0 + c1) + (c2 + c3)))
        for k in range(1, degree + 1):
            c0, s0 = multiplied(x0, y0, c0, s0)
            c1, s1 = multiplied(x1, y1, c1, s1)
            c2, s2 = multiplied(x2, y2, c2, s2)
            c3, s3 = multiplied(x3, y3, c3, s3)
            place = (2 * k - 1) * width
            store(sums, place, load(sums, place) + ((c0 + c1) + (c2 + c3)))
            place += width
            store(sums, place, load(sums, place) + ((s0 + s1) + (s2 + s3)))
    _fold_lanes(sums, number, out)
    out[0] *= table[0]
    for k in range(1, number):
        out[k] *= table[1]


@kernel(parallel=True)
def survey(x):
    """Return the mean of the tokens (n, d) and the largest | |x|^2 - 1 | (NaN if a token is
    NaN)."""
    n, d = x.shape
    tasks = task_count(n, 256)
    sums = np.zeros((tasks, d))
    far = np.zeros(tasks)
    lost = np.zeros(tasks)
    for task in prange(tasks):
        off = 0.0
        bad = 0.0
        for i in range(task * n // tasks, (task + 1) * n // tasks):
            square = 0.0
            for k in range(d):
                sums[task, k] += x[i, k]
                square += x[i, k] * x[i, k]
            bad += square * 0.0  # NaN where a token is not finite
            off = max(off, abs(square - 1.0))
        far[task] = off
        lost[task] = bad
    mean = np.zeros(d)
    off = 0.0
    for task in range(tasks):
        for k in range(d):
            mean[k] += sums[task, k] / n
        off = max(off, far[task])
    return mean, off + lost.sum()


@kernel(parallel=True)
def lowest_along(x, directions):
    """Return the smallest <x_i, b_h> over the tokens (n, d), for directions (heads, d)."""
    n, d = x.shape
    heads = directions.shape[0]
    width = lanes(x)
    unit = PAIR * width
    blocks = (n + unit - 1) // unit
    tasks = task_count(blocks, 32)
    low = np.empty((tasks, heads))
    flat = directions.reshape(-1)
    for task in prange(tasks):
        own = vectors(PAIR * d, x)
        least = vectors(heads, x)
        least[:] = np.inf
        for block in range(task * blocks // tasks, (task + 1) * blocks // tasks):
            for vector in range(PAIR):
                begin = block * unit + vector * width
                by_lane(x, n, begin, own, vector * d * width)
                for lane in range(max(0, n - begin), width):  # the first token in their place
                    for k in range(d):
                        own[(vector * d + k) * width + lane] = x[0, k]
            for h in range(heads):
                along0 = splat(0.0)
                along1 = splat(0.0)
                for k in range(d):
                    factor = splat(flat[h * d + k])
                    along0 = fma(factor, load(own, k * width), along0)
                    along1 = fma(factor, load(own, (d + k) * width), along1)
                along0 = minimum(along0, load(least, h * width))
                store(least, h * width, minimum(along1, along0))
        for h in range(heads):
            low[task, h] = least[h * width : (h + 1) * width].min()
    result = low[0].copy()
    for task in range(1, tasks):
        for h in range(heads):
            result[h] = min(result[h], low[task, h])
    return result


@kernel(parallel=True)
def _moments(x, mass, degree, table, task_at):
    """Return sum_j mass_j Y_k(x_j) for all harmonics up to `degree`; x (n, d), mass (n,)."""
    n, d = x.shape
    unit = _GATHER * lanes(x)
    tasks = task_count(n, 16 * unit)
    units = (n + unit - 1) // unit
    number = count(degree, d)
    parts = np.empty((tasks, number))
    for task in prange(tasks):
        first = task * units // tasks * unit
        last = min((task + 1) * units // tasks * unit, n)
        call(task_at, (x, mass, np.intp(first), np.intp(last), degree, table, parts[task]))
    total = np.zeros(number)
    for task in range(tasks):
        for k in range(number):
            total[k] += parts[task, k]
    return total


@kernel(parallel=True)
def expand(points, moment, degree, table):
    """Return sum_k moment_k Y_k at the points (q, d): the density that has these moments."""
    q, d = points.shape
    width = lanes(points)
    number = count(degree, d)
    blocks = (q + PAIR * width - 1) // (PAIR * width)
    tasks = task_count(blocks, 8)
    out = np.empty(q)
    for task in prange(tasks):
        own = vectors(PAIR * d, points)
        basis = vectors(PAIR * number, points)
        for block in range(task * blocks // tasks, (task + 1) * blocks // tasks):
            start = block * PAIR * width
            for vector in range(PAIR):
                by_lane(points, q, start + vector * width, own, vector * d * width)
            harmonics(own, d, degree, table, basis, 0)
            total0 = splat(0.0)
            total1 = splat(0.0)
            for k in range(number):
                factor = splat(moment[k])
                total0 = fma(load(basis, k * PAIR * width), factor, total0)
                total1 = fma(load(basis, (k * PAIR + 1) * width), factor, total1)
            result = basis
            store(result, 0, total0)
            store(result, width, total1)
            for lane in range(min(PAIR * width, q - start)):
                out[start + lane] = result[lane]
    return out


@kernel(parallel=True)
def _coefficients(points, mass, score, degrees, tops, table, products, task_at):
    """Compute coefficients in the harmonics of sum_q w_q g(y_q) exp<x, D_h y_q>, for every head.

    Parameters
    ----------
    points (q, d), mass (3, q) : sources, as for `_place`; score (heads, d, d)
    degrees, tops (heads,) : degree of each head, and where its radial recursion starts
    products : 0 for g = 1; 1 adds y_a; 2 and 3 add y_a y_b, or (D y)_a (D y)_b, for a <= b

    Returns
    -------
    out : (heads + 1, K, columns), zero beyond a head's degree; the last are the moments of the
        sources themselves, with g = y_a y_b
    strength : (heads,) sum_q |w_q| exp|D_h y_q|
    """
    d = points.shape[1]
    heads = score.shape[0]
    highest = degrees.max()
    columns = column_count(d, products)
    out = np.zeros((heads + 1, count(highest, d), columns))
    strength = np.zeros(heads)
    identity, none = np.eye(d), np.zeros(1)
    for task in prange(heads + 1):
        flat = out[task].reshape(count(highest, d) * columns)
        if task == heads:
            call(task_at, (
                points, mass, identity, True, highest, 0, table, min(products, 2), flat,
                none,
            ))  # fmt: skip
        else:
            call(task_at, (
                points, mass, score[task], False, degrees[task], tops[task], table, products,
                flat, strength[task : task + 1],
            ))  # fmt: skip
    return out, strength


@cache
def _project_address() -> int:
    flat, matrix, _, _ = arrays(np.float64)
    size = types.intp
    given = matrix, matrix, matrix, types.boolean, size, size, flat, size, flat, flat
    return address(_project, given)


@cache
def _moments_address(d: int) -> int:
    flat, matrix, _, _ = arrays(np.float64)
    size = types.intp
    task = {2: _circle_moments, 3: _sphere_moments}[d]
    return address(task, (matrix, flat, size, size, size, flat, flat))


def moments(
    x: NDArray[np.float64], mass: NDArray[np.float64], degree: int, table: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Run the compiled `moments` with its task."""
    return _moments(x, mass, degree, table, _moments_address(x.shape[1]))


def coefficients(
    points: NDArray[np.float64], mass: NDArray[np.float64], score: NDArray[np.float64],
    degrees: NDArray[np.int64], tops: NDArray[np.int64], table: NDArray[np.float64], products: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Run the compiled `coefficients` with its task."""
    return _coefficients(points, mass, score, degrees, tops, table, products, _project_address())


# Degree: how many terms a head needs, what they cost, what error is left
# -----------------------------------------------------------------------

Floats = NDArray[np.float64]

# Below the first, rounding alone (about 1e-14 for weak heads) exceeds the error allowed to the
# series; above the second, the error of the velocity would be visible.
SMALLEST_TOLERANCE, LARGEST_TOLERANCE = 1e-13, 1e-2
LARGEST_DEGREE = {2: DEGREE_CIRCLE, 3: DEGREE_SPHERE}
# Rounding of a sum of the series is taken to be below
#   ε [(ROUNDING + ROUNDING_SCORE rho) sum_q |w_q| exp|z_q| + ROUNDING_NODES N e^rho],
# N = sum_q W_q sum_k |mu_k Y_k(y_q)| for nodes and 0 for tokens. The factors were measured, against
# sums in extended precision, and doubled at least: benchmarks/fast_sums.py --check repeats that.
ROUNDING, ROUNDING_SCORE, ROUNDING_NODES = 40.0, 8.0, 6.0
EPSILON = 2.0**-53
# Where |D_h mean(x)| is at most this, minus it is the lower bound of log m_h, without a pass over
# the tokens.
_NEAR = 0.05
# Share of the tolerance that the error of a series may use in all.
SPENT = 0.9
AREA = {2: 2 * math.pi, 3: 4 * math.pi}
# Tails are computed up to this degree: at |z| = 64 nothing of the series is left beyond.
_TOP = 200


def check_tolerance(tolerance: float, d: int) -> float:
    """Check the relative error asked of the fast sums, and that they exist for this d.

    Parameters
    ----------
    tolerance : relative error allowed in the mobility of any head at any token
    d : dimension of the tokens

    Returns
    -------
    tolerance as float

    Raises
    ------
    InputError
        For d > 3, a tolerance that is no number, below 1e-13 (rounding) or not below 1e-2.
    """
    if d not in LARGEST_DEGREE:
        raise InputError(
            "the fast sums exist on the circle and the sphere, d = 2 and 3: these tokens have "
            f"d = {d}; use method='exact'"
        )
    value = number(tolerance, "tolerance")
    if not SMALLEST_TOLERANCE <= value < LARGEST_TOLERANCE:
        why = "doubles allow no less" if value < SMALLEST_TOLERANCE else "the sums would be wrong"
        raise InputError(
            f"tolerance is {value:g}: expected {SMALLEST_TOLERANCE:g} <= tolerance < "
            f"{LARGEST_TOLERANCE:g} ({why}); for sums without truncation use method='exact'"
        )
    return value


@njit(error_model="numpy")
def relative_tails(r, d):
    """Return e^-r T_l(r), l = 0.._TOP - 1, T_l = sum_(k > l) (2k + 1) i_k(r) (d = 2: 2 sum I_k)."""
    ratio = np.zeros(_TOP + 2)
    odd = 1.0 if d == 3 else 0.0
    for l in range(_TOP + 1, 0, -1):  # noqa: E741
        after = ratio[l + 1] if l <= _TOP else 0.0
        ratio[l] = r / (2.0 * l + odd + r * after)
    terms = np.empty(_TOP + 2)
    factor = 1.0
    total = 0.0
    for l in range(_TOP + 2):  # noqa: E741
        factor *= ratio[l] if l > 0 else 1.0
        weight = 2.0 * l + 1.0 if d == 3 else (2.0 if l > 0 else 1.0)
        terms[l] = weight * factor
    for l in range(_TOP + 1, -1, -1):  # noqa: E741
        total += terms[l]
    tails = np.zeros(_TOP)
    rest = terms[_TOP + 1]
    for l in range(_TOP, 0, -1):  # noqa: E741
        rest += terms[l]
        tails[l - 1] = rest / total
    return tails


@njit(error_model="numpy")
def source_factor(degree, d):
    """Return 1 + 2 A with the bound A <= sqrt(number of harmonics of the sources)."""
    last = degree + 2
    return 1.0 + 2.0 * (last + 1.0 if d == 3 else math.sqrt(2.0 * last + 1.0))


@kernel
def choose_degrees(rho, low, tolerance, d, largest):
    """Return the degree of each head (-1: no series suffices), start of its recursion, relative
    tail.

    rho (heads,) : norms |D_h|; low (heads,) : lower bounds of log m_h over the tokens
    """
    heads = rho.shape[0]
    degrees = np.full(heads, -1, np.int64)
    tops = np.zeros(heads, np.int64)
    tails = np.zeros(heads)
    for h in range(heads):
        if not rho[h] <= DIRECT_BOUND_DOUBLE:
            continue
        tail = relative_tails(rho[h], d)
        # The target is the mobilities times tolerance/2, but no less than the rounding error.
        target = max(
            0.5 * tolerance * math.exp(low[h] - rho[h]),
            (ROUNDING + ROUNDING_SCORE * rho[h]) * EPSILON,
        )
        degree = 0
        while degree < largest and source_factor(degree, d) * tail[degree] > target:
            degree += 1
        if source_factor(degree, d) * tail[degree] > tolerance:
            continue
        top = degree
        while top < _TOP - 1 and tail[top] > 1e-18:
            top += 1
        degrees[h] = degree
        tops[h] = top + 2
        tails[h] = tail[degree]
    return degrees, tops, tails


class Plan(NamedTuple):
    """Norms, bounds and degrees that the fast sums of one path need beforehand.

    finite : whether all tokens and heads are
    off : largest | |x|^2 - 1 | over the tokens
    rho (heads,) : norms |D_h|, rounded up
    low (heads,) : lower bounds of log m_h over the tokens: min_i <x_i, D_h mean(x)> (Jensen), or
        -|D_h mean(x)| where that is not much less
    degrees, tops, tails (heads,) : as from `choose_degrees`
    """

    finite: bool
    off: float
    rho: Floats
    low: Floats
    degrees: NDArray[np.int64]
    tops: NDArray[np.int64]
    tails: Floats


def plan(x: Floats, D: Floats, tolerance: float) -> Plan:
    """Compute norms, bounds and degrees of one path; x (n, d) and D (heads, d, d) in doubles.

    Cost: n heads d multiply-adds at most.
    """
    mean, off = series.survey(x)
    return plan_heads(x, D, tolerance, mean, off)


def plan_heads(
    x: Floats, D: Floats, tolerance: float, mean: Floats, off: float,
    signed: NDArray[np.bool_] | None = None,
) -> Plan:  # fmt: skip
    """Compute the `plan` for targets x and other sources.

    Parameters
    ----------
    mean : (d,) or (heads, d) mean source; off : of all points, NaN if one is not finite
    signed : (heads,) whose sources have weights of both signs, so that Jensen's bound is none: the
        smallest value of the kernel takes its place
    """
    heads, d = D.shape[:2]
    nothing = np.zeros(heads)
    if not (math.isfinite(off) and np.isfinite(D).all()):
        whole = np.zeros(heads, np.int64)
        return Plan(False, off, nothing, nothing, whole - 1, whole, nothing)
    with np.errstate(over="ignore", invalid="ignore"):
        rho = np.linalg.norm(D, 2, axis=(1, 2)) * (1 + 1e-14)
        along = D @ mean if mean.ndim == 1 else np.einsum("hab,hb->ha", D, mean)
    low = -np.linalg.norm(along, axis=1) * (1 + off)
    far = low < -_NEAR
    if signed is not None:
        low = np.where(signed, -rho, low)
        far &= ~signed
    if far.any():
        low[far] = series.lowest_along(x, along[far])
    found = choose_degrees(rho, low, tolerance, d, LARGEST_DEGREE[d])
    return Plan(True, off, rho, low, *found)


def sizes_by_degree(coefficient: Floats, d: int) -> Floats:
    """Bound |sum_m c_lm Y_lm(x)|, anywhere, of series (heads, K, columns): (heads, L + 1).

    |c_l| sqrt(dim_l / |sphere|), by Cauchy-Schwarz and the addition theorem; c_lm is a vector.
    """
    squares, dim = _squares_by_degree(coefficient, d)
    return np.asarray(np.sqrt(squares * dim / AREA[d]))


def slopes_by_degree(coefficient: Floats) -> Floats:
    """Bound |grad sum_m c_lm Y_lm(x)|, anywhere on the sphere, of series (heads, K).

    |c_l| sqrt(l (l + 1) dim_l / (2 |sphere|)): the sum over m of squares of a derivative along a
    unit tangent is half of that of |grad Y_lm|^2.
    """
    squares, dim = _squares_by_degree(coefficient[:, :, None], 3)
    l = np.arange(len(dim))  # noqa: E741
    return np.asarray(np.sqrt(squares * dim * l * (l + 1) / (2 * AREA[3])))


def _squares_by_degree(coefficient: Floats, d: int) -> tuple[Floats, Floats]:
    """Return |c_l|^2 (heads, L + 1) of all columns, and the number of harmonics (L + 1,)."""
    squares = np.einsum("hkc,hkc->hk", coefficient, coefficient)
    first, dim = layout(coefficient.shape[1], d)
    return np.add.reduceat(squares, first, axis=1), dim.astype(float)


def layout(number: int, d: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of the first of `number` harmonics of every degree, and their counts."""
    last = math.isqrt(number) - 1 if d == 3 else (number - 1) // 2
    first = np.array([0] + [count(degree, d) for degree in range(last)])
    return first, np.diff(first, append=number)


def shortened(sizes: Floats, room: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return degrees at which series may end, and bounds of what is then missing.

    sizes (heads, L + 1) : bounds of the terms of every degree
    room (heads,) : what may be missing, not below zero
    """
    missing = np.cumsum(sizes[:, ::-1], axis=1)[:, ::-1]  # from a degree on
    missing = np.concatenate([missing[:, 1:], np.zeros((len(sizes), 1))], axis=1)
    degrees = np.argmin(missing > room[:, None], axis=1)
    return degrees, missing[np.arange(len(sizes)), degrees]


def spare(error: Floats, low: Floats, tolerance: float) -> Floats:
    """Return what a head's series may miss beyond its error; low : lower bounds of log m_h."""
    return np.asarray(np.maximum(SPENT * tolerance * np.exp(low) - error, 0.0))


def ends(
    coefficient: Floats, d: int, error: Floats, low: Floats, tolerance: float
) -> tuple[NDArray[np.int64], Floats]:
    """Return degrees at which the series of heads may end, and what is then missing in m and S / n.

    coefficient (heads, K, columns) : of 1, and the coordinates if any; others do not count
    error, low (heads,) : as for `spare`
    """
    sizes = sizes_by_degree(coefficient[:, :, :1], d)
    sizes = np.maximum(sizes, sizes_by_degree(coefficient[:, :, 1 : 1 + d], d))
    return shortened(sizes, spare(error, low, tolerance))


def node_count(last: int, d: int) -> int:
    """Return the number of antipodal pairs of nodes that match any tokens' moments up to `last`."""
    return last + 1 if d == 2 else (last + 1) * (last + 1)
