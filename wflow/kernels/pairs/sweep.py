"""Compiled sums over all tokens for one head and one block of tokens.

With U_hij = exp(<x_i, D_h x_j>) (docs/theory/energy.md), for the tokens i of a block

    m_hi = sum_j U_hij,   S_hi = sum_j U_hij x_j,   q_hi = sum_j U_hij (1 + <x_i, x_j>^2),
    r_hi = sum_j U_hij <x_i, N_h x_j>^2, N_h the noise of the head in a step.

A block is 8 tokens in double and 16 in single precision, one per lane of a SIMD vector; the loop
over the tokens j comes first.
"""

import math

import numpy as np
from numba import njit

from wflow._core.compiler.functions import constant, internal
from wflow._core.compiler.sweeps import SUMS, sweep
from wflow._core.compiler.vectors import (
    align_stack,
    exp2,
    fma,
    lanes,
    load,
    maximum,
    splat,
    store,
)

# Dimensions for which the loops are unrolled.
DIMENSIONS = (2, 3, 4, 5, 6, 7, 8)


@internal
def vectors(count, like):
    """Allocate `count` vectors of the element type of `like`, aligned to cache lines.

    A vector that straddles two lines costs two accesses.
    """
    width = lanes(like)
    memory = np.empty((count + 1) * width, like.dtype)
    skip = (-memory.ctypes.data % 64) * width // 64
    return memory[skip : skip + count * width]


@internal
def clear_vectors(array, at, count):
    """Set `count` vectors of a flat array from element `at` on to zero."""
    zero = splat(array.dtype.type(0.0))
    for k in range(count):
        store(array, at + k * lanes(array), zero)


@internal(forceinline=True)
def one_way(
    dim, x, weight, z, at, noisy, pair, pair_at, pair_step, ito, blocks, first, stop, acc, acc_at
):  # fmt: skip
    """Add (m, S, q, r) of one or two blocks for d = `dim`, a `constant`; the rest as for `sweep`.

    Blocks and their order do not change the bits.
    """
    if blocks == 2 and ito:
        sweep(dim, 2, False, 1, False, True, x, weight, z, 0, z, at, noisy, pair, pair_at,
              pair_step, z, 0, first, stop, acc, acc_at)  # fmt: skip
    elif blocks == 2:
        sweep(dim, 2, False, 0, False, True, x, weight, z, 0, z, at, noisy, pair, pair_at,
              pair_step, z, 0, first, stop, acc, acc_at)  # fmt: skip
    elif ito:
        sweep(dim, 1, False, 1, False, True, x, weight, z, 0, z, at, noisy, pair, pair_at,
              pair_step, z, 0, first, stop, acc, acc_at)  # fmt: skip
    else:
        sweep(dim, 1, False, 0, False, True, x, weight, z, 0, z, at, noisy, pair, pair_at,
              pair_step, z, 0, first, stop, acc, acc_at)  # fmt: skip


@internal
def masked_sums(
    x, weight, z, at, noisy, pair, pair_at, ito, mask, mask_from, first, stop, acc, acc_at
):  # fmt: skip
    """Add (m, S, q, r) of one block for any d; from token `mask_from` >= 0 on, multiply U by the
    vectors of `mask`, one per token."""
    width = lanes(z)
    d = x.shape[1]
    zero = splat(z.dtype.type(0.0))
    part = vectors(d + SUMS, acc)
    for row in range(d + SUMS):
        store(part, row * width, zero)
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
        if 0 <= mask_from <= j:
            mask_at = (j - mask_from) * width
            u0 = u0 * load(mask, mask_at)
            u1 = u1 * load(mask, mask_at + width)
            u2 = u2 * load(mask, mask_at + 2 * width)
            u3 = u3 * load(mask, mask_at + 3 * width)
        m = load(part, 0)
        m = fma(u0, splat(weight[j]), m)
        m = fma(u1, splat(weight[j + 1]), m)
        m = fma(u2, splat(weight[j + 2]), m)
        m = fma(u3, splat(weight[j + 3]), m)
        store(part, 0, m)
        for k in range(d):
            row = (1 + k) * width
            a = load(part, row)
            a = fma(u0, splat(x[j, k]), a)
            a = fma(u1, splat(x[j + 1, k]), a)
            a = fma(u2, splat(x[j + 2, k]), a)
            a = fma(u3, splat(x[j + 3, k]), a)
            store(part, row, a)
        if ito:
            row = (d + 1) * width
            place = pair_at + j * width
            q = load(part, row)
            q = fma(u0, load(pair, place), q)
            q = fma(u1, load(pair, place + width), q)
            q = fma(u2, load(pair, place + 2 * width), q)
            q = fma(u3, load(pair, place + 3 * width), q)
            store(part, row, q)
            s0 = zero
            s1 = zero
            s2 = zero
            s3 = zero
            for k in range(d):
                bk = load(noisy, at + k * width)
                s0 = fma(bk, splat(x[j, k]), s0)
                s1 = fma(bk, splat(x[j + 1, k]), s1)
                s2 = fma(bk, splat(x[j + 2, k]), s2)
                s3 = fma(bk, splat(x[j + 3, k]), s3)
            row += width
            r = load(part, row)
            r = fma(u0 * s0, s0, r)
            r = fma(u1 * s1, s1, r)
            r = fma(u2 * s2, s2, r)
            r = fma(u3 * s3, s3, r)
            store(part, row, r)
    for row in range(d + SUMS):
        at_row = acc_at + row * width
        store(acc, at_row, load(acc, at_row) + load(part, row * width))


# Up to these bounds on |D^T x| the exponential needs no shift, and the rounding of a score
# (bound times machine epsilon) stays below the accuracy asked of a sum. Beyond them scores are
# formed in twice the precision and shifted by the true maximum.
DIRECT_BOUND_DOUBLE, DIRECT_BOUND_SINGLE = 64.0, 24.0
# Sums are closed every CHUNK tokens, so that rounding does not grow with n.
TILE, CHUNK = 4, 2048
LOG2E = math.log2(math.e)
# Exponents of 2 below this are lost against sums as small as exp(-bound); 2 to this power is in
# range.
FLOOR_DOUBLE, FLOOR_SINGLE = -1000.0, -120.0

_TWO, _THREE = map(constant, (2, 3))


@internal(forceinline=True)
def _add_product(high, low, a, b):
    """Return (high + low) + a b, computed in twice the working precision (Dekker, Knuth)."""
    zero = a - a
    product = a * b
    error = fma(a, b, zero - product)
    total = high + product
    back = total - high
    return total, low + (((high - (total - back)) + (product - back)) + error)


@internal(forceinline=True)
def _score(x, j, z, z_low):
    """Return <z + z_low, x_j> in twice the working precision, as (high, low)."""
    width = lanes(z)
    high = splat(z.dtype.type(0.0))
    low = high
    for k in range(x.shape[1]):
        xk = splat(x[j, k])
        high, low = _add_product(high, low, load(z, k * width), xk)
        low = fma(load(z_low, k * width), xk, low)
    return high, low


@internal
def _shifted(x, z, z_low, noisy, pair, ito, diagonal, causal, start, stop, acc, shift, weight):
    """Compute (m, S, q, r) exp(-shift) of one head for one block, shift = max_j <x_i, D x_j>.

    For scores of any size: two passes, the first for the maximum, both with scores in twice the
    working precision, since rounding in a score is relative error in its exponential. `weight` is
    empty, or one number w_j = f_j 2^e_j with 1/2 <= |f_j| < 1 a token: then the maximum is that of
    <x_i, D x_j> + e_j log 2 over the tokens with w_j != 0, and the others are left out.
    """
    width = lanes(z)
    d = x.shape[1]
    kind = z.dtype.type
    zero = splat(kind(0.0))
    one = splat(kind(1.0))
    log2e = splat(kind(LOG2E))
    bottom = splat(kind(exponent_floor(x)))
    hidden = splat(kind(1e30))
    weighted = weight.shape[0] > 0
    top = zero - hidden
    for j in range(stop):
        high, low = _score(x, j, z, z_low)
        if causal and j >= start:
            high = fma(load(diagonal, (j - start) * width) - one, hidden, high)
        if weighted:
            if weight[j] == 0.0:
                continue
            high = high + splat(kind(math.frexp(weight[j])[1] / LOG2E))
        top = maximum(top, high)
    store(shift, 0, top)
    part = vectors(d + SUMS, acc)
    for row in range(d + SUMS):
        store(acc, row * width, zero)
        store(part, row * width, zero)
    for first in range(0, stop, CHUNK):
        for j in range(first, min(first + CHUNK, stop)):
            if weighted and weight[j] == 0.0:
                continue
            high, low = _score(x, j, z, z_low)
            if causal and j >= start:
                high = fma(load(diagonal, (j - start) * width) - one, hidden, high)
            s = ((high - top) + low) * log2e
            if weighted:
                fraction, exponent = math.frexp(weight[j])
                u = exp2(maximum(bottom, s + splat(kind(exponent)))) * splat(kind(fraction))
            else:
                u = exp2(maximum(bottom, s))
            if causal and j >= start:
                u = u * load(diagonal, (j - start) * width)
            store(part, 0, load(part, 0) + u)
            for k in range(d):
                row = (1 + k) * width
                store(part, row, fma(u, splat(x[j, k]), load(part, row)))
            if ito:
                row = (1 + d) * width
                store(part, row, fma(u, load(pair, j * width), load(part, row)))
                along = zero
                for k in range(d):
                    along = fma(load(noisy, k * width), splat(x[j, k]), along)
                row += width
                store(part, row, fma(u * along, along, load(part, row)))
        for row in range(d + SUMS):
            store(acc, row * width, load(acc, row * width) + load(part, row * width))
            store(part, row * width, zero)


@internal(forceinline=True)
def direct_bound(x):
    """Return the largest |D^T x| for which sums of this precision need no shift."""
    return DIRECT_BOUND_DOUBLE if lanes(x) == 8 else DIRECT_BOUND_SINGLE


@internal(forceinline=True)
def exponent_floor(x):
    """Return the smallest exponent of 2 worth computing in this precision."""
    return FLOOR_DOUBLE if lanes(x) == 8 else FLOOR_SINGLE


@internal(forceinline=True)
def block_scores(score, h, own, own_at, z, z_at, d, blocks, squares, squares_at):
    """Write log2(e) D^T x_i of adjacent blocks to `z` and |D^T x_i|^2 to `squares`."""
    width = lanes(z)
    kind = z.dtype.type
    log2e = splat(kind(LOG2E))
    for block in range(blocks):
        mine = block * d * width
        total = splat(kind(0.0))
        for k in range(d):
            zk = splat(kind(0.0))
            for row in range(d):
                zk = fma(splat(score[h, row, k]), load(own, own_at + mine + row * width), zk)
            store(z, z_at + mine + k * width, zk * log2e)
            total = fma(zk, zk, total)
        store(squares, squares_at + block * width, total)


@internal(forceinline=True)
def images(matrix, h, own, own_at, out, out_at, d, blocks):
    """Write N^T x_i of adjacent blocks, with N = matrix[h]; zero where there is no matrix."""
    width = lanes(out)
    for block in range(blocks):
        mine = block * d * width
        for k in range(d):
            total = splat(out.dtype.type(0.0))
            for row in range(d if matrix.shape[0] > 0 else 0):
                total = fma(splat(matrix[h, row, k]), load(own, own_at + mine + row * width), total)
            store(out, out_at + mine + k * width, total)


@internal(forceinline=True)
def head_scores(score, h, own, own_at, z, z_at, d, square):
    """Apply `block_scores` to one block."""
    block_scores(score, h, own, own_at, z, z_at, d, 1, square, 0)


@internal(forceinline=True)
def is_moderate(largest, total, like):
    """Return whether the lanes of `largest`, the largest |D^T x_i|^2, need no shift.

    `total`, their sum, is NaN where one is, which a maximum may lose.
    """
    limit = direct_bound(like)
    moderate = True
    for lane in range(lanes(like)):
        moderate = moderate and largest[lane] <= limit * limit and total[lane] >= 0.0
    return moderate


@internal
def weighted_shifted_sums(
    x, n, score, h, own, own_at, z, z_low, noisy, pair, ito, diagonal, causal, start, stop, acc,
    shift, weight,
):  # fmt: skip
    """Compute `shifted_sums` with the weights (rows,) of the tokens j, or without weights."""
    width = lanes(z)
    d = x.shape[1]
    zero = splat(z.dtype.type(0.0))
    for k in range(d):
        high = zero
        low = zero
        for row in range(d):
            high, low = _add_product(
                high, low, splat(score[h, row, k]), load(own, own_at + row * width)
            )
        store(z, k * width, high)
        store(z_low, k * width, low)
    _shifted(
        x, z, z_low, noisy, pair, ito, diagonal, causal, start, min(stop, n), acc, shift, weight
    )


@internal
def shifted_sums(
    x, n, score, h, own, own_at, z, z_low, noisy, pair, ito, diagonal, causal, start, stop, acc,
    shift,
):  # fmt: skip
    """Compute (m, S, q, r) exp(-shift) of head h for one block, with scores of any size."""
    align_stack()
    weighted_shifted_sums(
        x, n, score, h, own, own_at, z, z_low, noisy, pair, ito, diagonal, causal, start, stop, acc,
        shift, acc[:0],
    )  # fmt: skip


@internal(forceinline=True)
def block_sums(
    x, n, weight, score, h, own, own_at, z, z_low, noisy, pair, ito, diagonal, causal, start, stop,
    acc, shift, square,
):  # fmt: skip
    """Compute (m, S, q, r) exp(-shift) of head h for one block, d = 2 or 3; return if it shifted.

    `square` receives |D^T x_i|^2.
    """
    width = lanes(z)
    d = x.shape[1]
    zero = splat(z.dtype.type(0.0))
    head_scores(score, h, own, own_at, z, 0, d, square)
    if not is_moderate(square, square, x):
        shifted_sums(
            x, n, score, h, own, own_at, z, z_low, noisy, pair, ito, diagonal, causal, start, stop,
            acc, shift,
        )  # fmt: skip
        return True
    for row in range(d + SUMS):
        store(acc, row * width, zero)
    free = start if causal else stop
    for first in range(0, free, CHUNK):
        last = min(first + CHUNK, free)
        if d == 2:
            one_way(_TWO, x, weight, z, 0, noisy, pair, 0, 0, ito, 1, first, last, acc, 0)
        else:
            one_way(_THREE, x, weight, z, 0, noisy, pair, 0, 0, ito, 1, first, last, acc, 0)
    if causal:
        masked_sums(x, weight, z, 0, noisy, pair, 0, ito, diagonal, start, start, stop, acc, 0)
    store(shift, 0, zero)
    return False


@njit(error_model="numpy")
def padded(x, unit):
    """Return tokens (n, d) with zero rows up to a multiple of `unit`, and weights 1 or 0."""
    n, d = x.shape
    rows = (n + unit - 1) // unit * unit
    tokens = np.zeros((rows, d), x.dtype)
    weight = np.zeros(rows, x.dtype)
    for i in range(n):  # assigning to slices adds code for messages: seconds of compilation
        weight[i] = 1.0
        for k in range(d):
            tokens[i, k] = x[i, k]
    return tokens, weight


@internal
def by_lane(x, n, start, own, own_at):
    """Load the coordinates of the tokens of the block at `start`, one vector per coordinate."""
    width = lanes(own)
    for lane in range(width):
        for k in range(x.shape[1]):
            own[own_at + k * width + lane] = x[start + lane, k] if start + lane < n else 0.0


@internal
def causal_mask(diagonal):
    """Write 1 where the token j of a block comes no later than the token of the lane, else 0."""
    width = lanes(diagonal)
    for j in range(width):
        for lane in range(width):
            diagonal[j * width + lane] = 1.0 if j <= lane else 0.0


@internal(forceinline=True)
def pair_rows(x, n, d, own, own_at, first, last, pair, pair_at):
    """Write 1 + <x_i, x_j>^2 of one block with the tokens first <= j < last, 0 for padding.

    With d a constant of the caller the loop over coordinates unrolls.
    """
    width = lanes(own)
    one = splat(own.dtype.type(1.0))
    zero = one - one
    for j in range(first, last, 4):
        c0 = zero
        c1 = zero
        c2 = zero
        c3 = zero
        for k in range(d):
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


@internal
def pair_table(x, n, own, own_at, first, last, pair, pair_at):
    """Compute `pair_rows` for any d."""
    align_stack()
    pair_rows(x, n, x.shape[1], own, own_at, first, last, pair, pair_at)
