"""Compiled sums over all tokens for one head and one block of tokens: the inner loops.

With U_hij = exp(<x_i, D_h x_j>) (docs/mathematics.md sections 1 and 4), for the tokens i of a block

    m_hi = sum_j U_hij,   S_hi = sum_j U_hij x_j,   q_hi = sum_j U_hij (1 + <x_i, x_j>^2).

A block is 8 tokens in double and 16 in single precision, one per lane of a SIMD vector; the loop
runs over the tokens j. Cost of a pair, in multiply-adds or instructions of the same price (double
precision, with q): d for the score, 16 for the exponential, d + 2 for the sums: 24 at d = 3.

Nothing here is cached on disk by itself: `_fused` holds the entry points, and its cache follows
the text of this file.
"""

import math

import numpy as np
from numba import njit

from wflow._simd import exp2, fma, lanes, load, maximum, splat, store

# Up to these bounds on |D^T x| the exponential needs no shift, and the rounding of a score
# (bound times machine epsilon) stays below the accuracy asked of a sum. Beyond them scores are
# formed in twice the precision and shifted by the true maximum.
DIRECT_BOUND_DOUBLE, DIRECT_BOUND_SINGLE = 64.0, 24.0
# Sums are closed every _CHUNK tokens, so that rounding does not grow with n.
TILE, _CHUNK = 4, 2048
LOG2E = math.log2(math.e)
# Exponents of 2 below this are lost against sums as small as exp(-bound); 2 to it is in range.
FLOOR_DOUBLE, FLOOR_SINGLE = -1000.0, -120.0


def _make_sweep(dim, both):
    """Add to the sums of a block those over the tokens first <= j < stop, scores being moderate.

    `z` holds log2(e) D^T x_i, `acc` gathers (m, S_1..S_d) and q in row `q_row`, one vector each.
    With `both`, the same kernel values also serve the tokens j: `columns` gathers (m, S) of theirs,
    lane by lane, from `column_at` for j = first on. `dim` fixes d when compiled, so that the loops
    over coordinates unroll; 0 leaves it to run time. Four tokens j go abreast, so that the sums are
    in registers for three quarters of their updates.
    """

    @njit(error_model="numpy", forceinline=True)
    def sweep(
        x, weight, own, z, at, pair, pair_at, ito, q_row, diagonal, causal, start, first, stop,
        acc, columns, column_at,
    ):  # fmt: skip
        width = lanes(z)
        d = dim if dim > 0 else x.shape[1]
        zero = splat(z.dtype.type(0.0))
        step = (d + 1) * width
        at0 = column_at
        for j in range(first, stop, 4):
            s0 = zero
            s1 = zero
            s2 = zero
            s3 = zero
            for k in range(d):
                zk = load(z, at + k * width)
                s0 = fma(zk, splat(x[j, k]), s0)
                s1 = fma(zk, splat(x[j + 1, k]), s1)
                s2 = fma(zk, splat(x[j + 2, k]), s2)
                s3 = fma(zk, splat(x[j + 3, k]), s3)
            u0 = exp2(s0)
            u1 = exp2(s1)
            u2 = exp2(s2)
            u3 = exp2(s3)
            if causal and j >= start:
                u0 = u0 * load(diagonal, (j - start) * width)
                u1 = u1 * load(diagonal, (j + 1 - start) * width)
                u2 = u2 * load(diagonal, (j + 2 - start) * width)
                u3 = u3 * load(diagonal, (j + 3 - start) * width)
            at1 = at0 + step
            at2 = at1 + step
            at3 = at2 + step
            m = load(acc, 0)
            m = fma(u0, splat(weight[j]), m)
            m = fma(u1, splat(weight[j + 1]), m)
            m = fma(u2, splat(weight[j + 2]), m)
            m = fma(u3, splat(weight[j + 3]), m)
            store(acc, 0, m)
            if both:
                store(columns, at0, load(columns, at0) + u0)
                store(columns, at1, load(columns, at1) + u1)
                store(columns, at2, load(columns, at2) + u2)
                store(columns, at3, load(columns, at3) + u3)
            for k in range(d):
                row = (1 + k) * width
                a = load(acc, row)
                a = fma(u0, splat(x[j, k]), a)
                a = fma(u1, splat(x[j + 1, k]), a)
                a = fma(u2, splat(x[j + 2, k]), a)
                a = fma(u3, splat(x[j + 3, k]), a)
                store(acc, row, a)
                if both:
                    xk = load(own, at + k * width)
                    store(columns, at0 + row, fma(u0, xk, load(columns, at0 + row)))
                    store(columns, at1 + row, fma(u1, xk, load(columns, at1 + row)))
                    store(columns, at2 + row, fma(u2, xk, load(columns, at2 + row)))
                    store(columns, at3 + row, fma(u3, xk, load(columns, at3 + row)))
            if ito:
                q = load(acc, q_row * width)
                q = fma(u0, load(pair, pair_at + j * width), q)
                q = fma(u1, load(pair, pair_at + (j + 1) * width), q)
                q = fma(u2, load(pair, pair_at + (j + 2) * width), q)
                q = fma(u3, load(pair, pair_at + (j + 3) * width), q)
                store(acc, q_row * width, q)
            at0 = at3 + step

    return sweep


_sweep_2, _sweep_3, _sweep_4 = (_make_sweep(d, False) for d in (2, 3, 4))
_sweep_8, _sweep_any = _make_sweep(8, False), _make_sweep(0, False)
_both_2, _both_3, _both_4, _both_any = (_make_sweep(d, True) for d in (2, 3, 4, 0))


@njit(error_model="numpy", forceinline=True)
def one_way(x, weight, z, at, pair, pair_at, ito, diagonal, causal, start, first, stop, acc):
    """(m, S, q) of one head over the tokens first <= j < stop for one block, into `acc`."""
    d = x.shape[1]
    q = d + 1
    for row in range(d + 2):
        store(acc, row * lanes(z), splat(z.dtype.type(0.0)))
    if d == 2:
        _sweep_2(x, weight, z, z, at, pair, pair_at, ito, q, diagonal, causal, start, first, stop,
                 acc, acc, 0)  # fmt: skip
    elif d == 3:
        _sweep_3(x, weight, z, z, at, pair, pair_at, ito, q, diagonal, causal, start, first, stop,
                 acc, acc, 0)  # fmt: skip
    elif d == 4:
        _sweep_4(x, weight, z, z, at, pair, pair_at, ito, q, diagonal, causal, start, first, stop,
                 acc, acc, 0)  # fmt: skip
    elif d == 8:
        _sweep_8(x, weight, z, z, at, pair, pair_at, ito, q, diagonal, causal, start, first, stop,
                 acc, acc, 0)  # fmt: skip
    else:
        _sweep_any(x, weight, z, z, at, pair, pair_at, ito, q, diagonal, causal, start, first, stop,
                   acc, acc, 0)  # fmt: skip


@njit(error_model="numpy", forceinline=True)
def both_ways(x, weight, own, z, at, pair, pair_at, ito, first, stop, acc, columns, column_at):
    """Add the sums between a block and the tokens first <= j < stop outside it, for both sides.

    The q of these pairs goes to row d + 2 of `acc`.
    """
    d = x.shape[1]
    q = d + 2
    if d == 2:
        _both_2(x, weight, own, z, at, pair, pair_at, ito, q, acc, False, 0, first, stop, acc,
                columns, column_at)  # fmt: skip
    elif d == 3:
        _both_3(x, weight, own, z, at, pair, pair_at, ito, q, acc, False, 0, first, stop, acc,
                columns, column_at)  # fmt: skip
    elif d == 4:
        _both_4(x, weight, own, z, at, pair, pair_at, ito, q, acc, False, 0, first, stop, acc,
                columns, column_at)  # fmt: skip
    else:
        _both_any(x, weight, own, z, at, pair, pair_at, ito, q, acc, False, 0, first, stop, acc,
                  columns, column_at)  # fmt: skip


@njit(error_model="numpy", forceinline=True)
def _moderate(x, weight, z, pair, ito, diagonal, causal, start, stop, acc, part):
    """(m, S, q) of one head for one block without a shift, chunk by chunk."""
    width = lanes(z)
    for first in range(0, stop, _CHUNK):
        last = min(first + _CHUNK, stop)
        into = acc if first == 0 else part
        one_way(x, weight, z, 0, pair, 0, ito, diagonal, causal, start, first, last, into)
        if first == 0:
            continue
        for row in range(x.shape[1] + 2):
            at = row * width
            store(acc, at, load(acc, at) + load(part, at))


@njit(error_model="numpy", forceinline=True)
def _add_product(high, low, a, b):
    """(high + low) + a b, carried in twice the working precision (Dekker, Knuth)."""
    zero = a - a
    product = a * b
    error = fma(a, b, zero - product)
    total = high + product
    back = total - high
    return total, low + (((high - (total - back)) + (product - back)) + error)


@njit(error_model="numpy", forceinline=True)
def _score(x, j, z, z_low):
    """<z + z_low, x_j> in twice the working precision, as (high, low)."""
    width = lanes(z)
    high = splat(z.dtype.type(0.0))
    low = high
    for k in range(x.shape[1]):
        xk = splat(x[j, k])
        high, low = _add_product(high, low, load(z, k * width), xk)
        low = fma(load(z_low, k * width), xk, low)
    return high, low


@njit(error_model="numpy")
def _shifted(x, z, z_low, pair, ito, diagonal, causal, start, stop, acc, shift):
    """(m, S, q) exp(-shift) of one head for one block, with shift = max_j <x_i, D x_j>.

    For scores of any size: two passes, the first for the maximum, both with scores in twice the
    working precision, since rounding in a score is relative error in its exponential.
    """
    width = lanes(z)
    d = x.shape[1]
    kind = z.dtype.type
    zero = splat(kind(0.0))
    one = splat(kind(1.0))
    log2e = splat(kind(LOG2E))
    bottom = splat(kind(exponent_floor(x)))
    hidden = splat(kind(1e30))
    top = zero - hidden
    for j in range(stop):
        high, low = _score(x, j, z, z_low)
        if causal and j >= start:
            high = fma(load(diagonal, (j - start) * width) - one, hidden, high)
        top = maximum(top, high)
    store(shift, 0, top)
    for row in range(d + 2):
        store(acc, row * width, zero)
    for j in range(stop):
        high, low = _score(x, j, z, z_low)
        if causal and j >= start:
            high = fma(load(diagonal, (j - start) * width) - one, hidden, high)
        u = exp2(maximum(((high - top) + low) * log2e, bottom))
        if causal and j >= start:
            u = u * load(diagonal, (j - start) * width)
        store(acc, 0, load(acc, 0) + u)
        for k in range(d):
            row = (1 + k) * width
            store(acc, row, fma(u, splat(x[j, k]), load(acc, row)))
        if ito:
            row = (1 + d) * width
            store(acc, row, fma(u, load(pair, j * width), load(acc, row)))


@njit(error_model="numpy", forceinline=True)
def direct_bound(x):
    """Largest |D^T x| for which sums of this precision need no shift."""
    return DIRECT_BOUND_DOUBLE if lanes(x) == 8 else DIRECT_BOUND_SINGLE


@njit(error_model="numpy", forceinline=True)
def exponent_floor(x):
    """Smallest exponent of 2 worth computing in this precision."""
    return FLOOR_DOUBLE if lanes(x) == 8 else FLOOR_SINGLE


@njit(error_model="numpy", forceinline=True)
def head_scores(score, h, own, own_at, z, z_at, d, square):
    """log2(e) D^T x_i of a block into `z`, |D^T x_i|^2 into `square`."""
    width = lanes(z)
    kind = z.dtype.type
    log2e = splat(kind(LOG2E))
    total = splat(kind(0.0))
    for k in range(d):
        zk = splat(kind(0.0))
        for row in range(d):
            zk = fma(splat(score[h, row, k]), load(own, own_at + row * width), zk)
        store(z, z_at + k * width, zk * log2e)
        total = fma(zk, zk, total)
    store(square, 0, total)


@njit(error_model="numpy", forceinline=True)
def head_sums(
    x, n, weight, score, h, own, own_at, z, z_low, pair, ito, diagonal, causal, start, stop,
    acc, part, shift, square,
):  # fmt: skip
    """(m, S, q) exp(-shift) of head h for one block of tokens; returns whether it shifted.

    `square` receives |D^T x_i|^2.
    """
    width = lanes(z)
    d = x.shape[1]
    zero = splat(z.dtype.type(0.0))
    head_scores(score, h, own, own_at, z, 0, d, square)
    limit = direct_bound(x)
    moderate = True
    for lane in range(width):
        moderate = moderate and square[lane] <= limit * limit  # false for NaN
    if moderate:
        _moderate(x, weight, z, pair, ito, diagonal, causal, start, stop, acc, part)
        store(shift, 0, zero)
        return False
    for k in range(d):
        high = zero
        low = zero
        for row in range(d):
            high, low = _add_product(
                high, low, splat(score[h, row, k]), load(own, own_at + row * width)
            )
        store(z, k * width, high)
        store(z_low, k * width, low)
    _shifted(x, z, z_low, pair, ito, diagonal, causal, start, min(stop, n), acc, shift)
    return True


@njit(error_model="numpy")
def vectors(count, like):
    """Room for `count` vectors of the element type of `like`, aligned to cache lines.

    A vector that straddles two lines costs two accesses.
    """
    width = lanes(like)
    room = np.empty((count + 1) * width, like.dtype)
    skip = (-room.ctypes.data % 64) * width // 64
    return room[skip : skip + count * width]


@njit(error_model="numpy")
def padded(x, unit):
    """Tokens (n, d) with zero rows up to a multiple of `unit`, and weights 1 or 0."""
    n, d = x.shape
    rows = (n + unit - 1) // unit * unit
    tokens = np.zeros((rows, d), x.dtype)
    tokens[:n] = x
    weight = np.zeros(rows, x.dtype)
    weight[:n] = 1.0
    return tokens, weight


@njit(error_model="numpy")
def by_lane(x, n, start, own, own_at):
    """Coordinates of the tokens of the block at `start`, one vector per coordinate."""
    width = lanes(own)
    for lane in range(width):
        for k in range(x.shape[1]):
            own[own_at + k * width + lane] = x[start + lane, k] if start + lane < n else 0.0


@njit(error_model="numpy")
def causal_mask(diagonal):
    """1 where the token j of a block comes no later than the token of the lane, else 0."""
    width = lanes(diagonal)
    for j in range(width):
        for lane in range(width):
            diagonal[j * width + lane] = 1.0 if j <= lane else 0.0


@njit(error_model="numpy", forceinline=True)
def pair_table(x, n, own, own_at, first, last, pair, pair_at):
    """1 + <x_i, x_j>^2 of one block with the tokens first <= j < last, 0 for padding."""
    width = lanes(own)
    one = splat(own.dtype.type(1.0))
    zero = one - one
    for j in range(first, last, 4):
        c0 = zero
        c1 = zero
        c2 = zero
        c3 = zero
        for k in range(x.shape[1]):
            xk = load(own, own_at + k * width)
            c0 = fma(xk, splat(x[j, k]), c0)
            c1 = fma(xk, splat(x[j + 1, k]), c1)
            c2 = fma(xk, splat(x[j + 2, k]), c2)
            c3 = fma(xk, splat(x[j + 3, k]), c3)
        at = pair_at + j * width
        store(pair, at, fma(c0, c0, one))
        store(pair, at + width, fma(c1, c1, one))
        store(pair, at + 2 * width, fma(c2, c2, one))
        store(pair, at + 3 * width, fma(c3, c3, one))
    for j in range(max(first, n), last):
        store(pair, pair_at + j * width, zero)
