"""The parts of the blocked sums that are no products: what is done with one group of tokens.

A group has one or two adjacent vectors of tokens in its rows: `step` is the number of elements from
one row (a coordinate, or a token j) to the next.
"""

from numba import njit

from wflow._headsums import _INVERSE, _LARGEST, _TOTALS, common_scales
from wflow._pairsums import (
    LOG2E,
    TILE,
    by_lane,
    causal_mask,
    is_moderate,
    padded,
    pair_table,
    shifted_sums,
    vectors,
)
from wflow._simd import exp2, fma, lanes, load, maximum, splat, store


@njit(error_model="numpy")
def exponentials(s, at, step, count, masked, diagonal, ito, pair, pair_at, m, q, few_at):
    """u = 2^s in place for `count` tokens j, with their sums added to `m` and `q`.

    `step` is 1 or 2 vectors in elements. From token `masked` on, u is multiplied by the rows of
    `diagonal`.
    """
    width = lanes(s)
    zero = splat(s.dtype.type(0.0))
    plain = min(count, masked) // 4 * 4
    for v in range(0, step, width):
        sum_u = zero
        sum_q = zero
        for j in range(0, plain * step, 4 * step):
            j0 = at + j + v
            j1 = j0 + step
            j2 = j1 + step
            j3 = j2 + step
            u0 = exp2(load(s, j0))
            u1 = exp2(load(s, j1))
            u2 = exp2(load(s, j2))
            u3 = exp2(load(s, j3))
            store(s, j0, u0)
            store(s, j1, u1)
            store(s, j2, u2)
            store(s, j3, u3)
            sum_u = sum_u + ((u0 + u1) + (u2 + u3))
            if ito:
                p = pair_at + j + v
                sum_q = fma(u0, load(pair, p), sum_q)
                sum_q = fma(u1, load(pair, p + step), sum_q)
                sum_q = fma(u2, load(pair, p + 2 * step), sum_q)
                sum_q = fma(u3, load(pair, p + 3 * step), sum_q)
        for row in range(plain, count):
            j = row * step + v
            u = exp2(load(s, at + j))
            if row >= masked:
                u = u * load(diagonal, (row - masked) * 2 * width + v)
            store(s, at + j, u)
            sum_u = sum_u + u
            if ito:
                sum_q = fma(u, load(pair, pair_at + j), sum_q)
        store(m, few_at + v, load(m, few_at + v) + sum_u)
        store(q, few_at + v, load(q, few_at + v) + sum_q)


@njit(error_model="numpy")
def gather(x, first, step, own, at):
    """Coordinates of the tokens from `first` on, `step` lanes wide; zero beyond the last."""
    n, d = x.shape
    for lane in range(step):
        i = first + lane
        for k in range(d):
            own[at + k * step + lane] = x[i, k] if i < n else 0.0


@njit(error_model="numpy")
def scaled_scores(z, at, step, d, square, few_at, shifted, block):
    """Multiply z = D^T x of a group by log2(e), with |z|^2 of before to `square`.

    Says in `shifted`, for each vector from `block` on, whether its scores need a shift.
    """
    width = lanes(z)
    kind = z.dtype.type
    log2e = splat(kind(LOG2E))
    for v in range(0, step, width):
        total = splat(kind(0.0))
        for k in range(at + v, at + v + d * step, step):
            zk = load(z, k)
            total = fma(zk, zk, total)
            store(z, k, zk * log2e)
        store(square, few_at + v, total)
        mine = square[few_at + v : few_at + v + width]
        shifted[block + v // width] = not is_moderate(mine, mine, z)


@njit(error_model="numpy")
def inner(a, a_at, b, b_at, step, d):
    """sum_k a_k b_k of one vector of a group."""
    even = splat(a.dtype.type(0.0))
    odd = even
    for k in range(0, d - 1, 2):
        even = fma(load(a, a_at + k * step), load(b, b_at + k * step), even)
        odd = fma(load(a, a_at + (k + 1) * step), load(b, b_at + (k + 1) * step), odd)
    if d % 2 == 1:
        even = fma(load(a, a_at + (d - 1) * step), load(b, b_at + (d - 1) * step), even)
    return even + odd


@njit(error_model="numpy")
def absorb_products(
    h, shifted, d, ds, ds_at, step, m, q, drift, noise, sigma2, power, increment, shift, square,
    few_at, state, at, factors,
):  # fmt: skip
    """`_headsums.absorb` for one vector of a group, whose products with S are ready in `ds`.

    m, q, power, increment, shift and square are vectors at `few_at`.
    """
    width = lanes(state)
    rest = at + 2 * d * width
    keep_inverse, add_inverse, keep_gradient, add_gradient, grow = common_scales(
        h == 0, shifted, shift, few_at, state, rest, factors
    )
    total = load(m, few_at)
    inverse_m = splat(state.dtype.type(1.0)) / total
    mine = rest + _INVERSE * width
    store(state, mine, fma(add_inverse, inverse_m, load(state, mine) * keep_inverse))
    for k in range(d):
        product_k = load(ds, ds_at + k * step)
        mine = at + k * width
        store(state, mine, fma(product_k, inverse_m, load(state, mine)))
        mine = at + (d + k) * width
        store(state, mine, fma(add_gradient, product_k, load(state, mine) * keep_gradient))
    mine = rest + _TOTALS * width
    store(state, mine, fma(total, grow, load(state, mine)))
    mine += width
    if drift.shape[0] > 0:
        store(state, mine, fma(load(power, few_at), grow, load(state, mine)))
    mine += width
    if sigma2.shape[0] > 0:
        store(state, mine, fma(load(q, few_at) * splat(sigma2[h]), grow, load(state, mine)))
    mine += width
    if noise.shape[0] > 0:
        store(state, mine, fma(load(increment, few_at), grow, load(state, mine)))
    mine = rest + _LARGEST * width
    store(state, mine, maximum(load(state, mine), load(square, few_at)))


@njit(error_model="numpy")
def shifted_block(x, score, h, start, ito, causal, step, S, S_at, m, q, shift, few_at):
    """(m, S, q) exp(-shift) of one vector of a group, for scores of any size."""
    n, d = x.shape
    tokens, _ = padded(x, TILE)
    rows = tokens.shape[0]
    width = lanes(S)
    own = vectors(d, S)
    z = vectors(d, S)
    z_low = vectors(d, S)
    acc = vectors(d + 2, S)
    pair = vectors(rows if ito else 0, S)
    diagonal = vectors(width, S)
    own_shift = vectors(1, S)
    by_lane(tokens, n, start, own, 0)
    causal_mask(diagonal)
    if ito:
        pair_table(tokens, n, own, 0, 0, rows, pair, 0)
    stop = min(start + width, rows) if causal else rows
    shifted_sums(
        tokens, n, score, h, own, 0, z, z_low, pair, ito, diagonal, causal, start, stop, acc,
        own_shift,
    )  # fmt: skip
    store(m, few_at, load(acc, 0))
    store(q, few_at, load(acc, (1 + d) * width))
    store(shift, few_at, load(own_shift, 0))
    for k in range(d):
        store(S, S_at + k * step, load(acc, (1 + k) * width))
