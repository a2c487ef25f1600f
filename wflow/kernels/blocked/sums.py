"""The exact sums for many coordinates, as blocked matrix products: the results of `fused_sums`.

For a group of tokens i in the lanes (two vectors: 16 tokens in double precision) and one head,

    z = D^T x_i,   u_j = exp(<z, x_j>),   m = sum_j u_j,   S = sum_j u_j x_j,
    q = sum_j u_j (1 + <x_i, x_j>^2),   r = sum_j u_j <B^T x_i, x_j>^2,
    then D S, <f^T x_i, S>, <B^T x_i, S>;

for symmetric heads at rest D S = sum_j u_j D x_j, from the D x_j that the scores have anyway.

All of these but the exponentials are products, made of register tiles; the scores of a block of
tokens j never leave the nearest cache. Cost of a pair, in multiply-adds: 2 d for the products, d
for the noise B in r, and the exponential with its sums; of a token and head: d^2 for each of D, its
values, f and B. The Gram matrix behind q is the same for all heads: d per pair, once a step, kept
for the groups of one task, rows of n vectors, which costs one load and one multiply-add per pair
and head. Memory: the tokens twice and the matrices once more, in panels, for a few paths at a time,
and a workspace for each thread; nothing of size n x n or heads x n.

Tasks are independent and every group of tokens has its own fixed order of summation: neither the
threads nor the groups that share a task change a bit.
"""

from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul

import numpy as np
from numba import prange, types
from numpy.typing import NDArray

from wflow._core.compiler.functions import internal, kernel, loop_body
from wflow._core.compiler.sweeps import SUMS
from wflow._core.compiler.tasks import address, arrays, call
from wflow._core.compiler.vectors import exp2, fma, lanes, load, maximum, splat, store
from wflow._core.threads import threads_for
from wflow.kernels.blocked.products import (
    COLUMN_UNIT,
    TILE_COLUMNS,
    pack,
    pack_transposed,
    panels,
    product,
)
from wflow.kernels.pairs.fused import PAIRS_OF_THREAD, scratch
from wflow.kernels.pairs.headsums import (
    EXTRA,
    INVERSE,
    LARGEST,
    N_TERMS,
    TOTALS,
    clear,
    common_scales,
    finish_block,
    of_path,
    path_terms,
    prepared,
    type_of_heads,
)
from wflow.kernels.pairs.sweep import (
    LOG2E,
    TILE,
    by_lane,
    causal_mask,
    images,
    is_moderate,
    padded,
    pair_table,
    shifted_sums,
    vectors,
)

# Operations on one group of tokens between the products
# ------------------------------------------------------
# A group has one or two adjacent vectors of tokens in its rows: `step` is the number of elements
# from one row (a coordinate, or a token j) to the next.


@internal
def exponentials(s, at, step, count, masked, mask, ito, pair, pair_at, along, m, q, r, few_at):
    """Compute u = 2^s in place for `count` tokens j, and add their sums to `m`, `q` and `r`.

    `along` holds <B^T x_i, x_j>, as s the scores, or nothing without noise; `step` is 1 or 2
    vectors in elements. From token `masked` on, u is multiplied by the rows of `mask`.
    """
    width = lanes(s)
    zero = splat(s.dtype.type(0.0))
    plain = min(count, masked) // 4 * 4
    for v in range(0, step, width):
        sum_u = zero
        sum_q = zero
        sum_r = zero
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
            if along.shape[0] > 0:
                a0 = load(along, j0)
                a1 = load(along, j1)
                a2 = load(along, j2)
                a3 = load(along, j3)
                sum_r = fma(u0 * a0, a0, sum_r)
                sum_r = fma(u1 * a1, a1, sum_r)
                sum_r = fma(u2 * a2, a2, sum_r)
                sum_r = fma(u3 * a3, a3, sum_r)
        for row in range(plain, count):
            j = row * step + v
            u = exp2(load(s, at + j))
            if row >= masked:
                u = u * load(mask, (row - masked) * 2 * width + v)
            store(s, at + j, u)
            sum_u = sum_u + u
            if ito:
                sum_q = fma(u, load(pair, pair_at + j), sum_q)
            if along.shape[0] > 0:
                a0 = load(along, at + j)
                sum_r = fma(u * a0, a0, sum_r)
        store(m, few_at + v, load(m, few_at + v) + sum_u)
        store(q, few_at + v, load(q, few_at + v) + sum_q)
        store(r, few_at + v, load(r, few_at + v) + sum_r)


@internal
def gather(x, first, step, own, at):
    """Load coordinates of the tokens from `first` on, `step` lanes wide; zero beyond the last."""
    n, d = x.shape
    for lane in range(step):
        i = first + lane
        for k in range(d):
            own[at + k * step + lane] = x[i, k] if i < n else 0.0


@internal
def scaled_scores(z, at, step, d, square, few_at, shifted, block):
    """Multiply z = D^T x of a group by log2(e), and write the previous |z|^2 to `square`.

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


@internal
def inner(a, a_at, b, b_at, step, d):
    """Return sum_k a_k b_k of one vector of a group."""
    even = splat(a.dtype.type(0.0))
    odd = even
    for k in range(0, d - 1, 2):
        even = fma(load(a, a_at + k * step), load(b, b_at + k * step), even)
        odd = fma(load(a, a_at + (k + 1) * step), load(b, b_at + (k + 1) * step), odd)
    if d % 2 == 1:
        even = fma(load(a, a_at + (d - 1) * step), load(b, b_at + (d - 1) * step), even)
    return even + odd


@internal
def absorb_products(
    h, shifted, d, ds, ds_at, step, m, q, r, arrays, power, increment, work, shift, square, few_at,
    state, at, factors,
):  # fmt: skip
    """Apply `headsums.absorb` to one vector of a group whose products with S are ready in `ds`.

    m, q, r, power, increment, work, shift and square are vectors at `few_at`.
    """
    score, _, drift, noise, sigma2 = arrays
    width = lanes(state)
    rest = at + 2 * d * width
    keep_inverse, add_inverse, keep_gradient, add_gradient, grow = common_scales(
        h == 0, shifted, shift, few_at, state, rest, factors
    )
    total = load(m, few_at)
    inverse_m = splat(state.dtype.type(1.0)) / total
    mine = rest + INVERSE * width
    store(state, mine, fma(add_inverse, inverse_m, load(state, mine) * keep_inverse))
    for k in range(d):
        product_k = load(ds, ds_at + k * step)
        mine = at + k * width
        store(state, mine, fma(product_k, inverse_m, load(state, mine)))
        mine = at + (d + k) * width
        store(state, mine, fma(add_gradient, product_k, load(state, mine) * keep_gradient))
    mine = rest + TOTALS * width
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
    mine += width
    if sigma2.shape[0] > 0 and noise.shape[0] > 0:
        store(state, mine, fma(load(r, few_at), grow, load(state, mine)))
    mine += width
    if drift.shape[0] > score.shape[0]:
        store(state, mine, fma(load(work, few_at), grow, load(state, mine)))
    mine = rest + LARGEST * width
    store(state, mine, maximum(load(state, mine), load(square, few_at)))


@internal
def shifted_block(x, score, noise, h, start, ito, causal, step, S, S_at, m, q, r, shift, few_at):
    """Compute (m, S, q, r) exp(-shift) of one vector of a group, for scores of any size."""
    n, d = x.shape
    tokens, _ = padded(x, TILE)
    rows = tokens.shape[0]
    width = lanes(S)
    own = vectors(d, S)
    z = vectors(d, S)
    z_low = vectors(d, S)
    noisy = vectors(d, S)
    acc = vectors(d + SUMS, S)
    pair = vectors(rows if ito else 0, S)
    diagonal = vectors(width, S)
    own_shift = vectors(1, S)
    by_lane(tokens, n, start, own, 0)
    causal_mask(diagonal)
    if ito:
        pair_table(tokens, n, own, 0, 0, rows, pair, 0)
        images(noise, h, own, 0, noisy, 0, d, 1)
    stop = min(start + width, rows) if causal else rows
    shifted_sums(
        tokens, n, score, h, own, 0, z, z_low, noisy, pair, ito, diagonal, causal, start, stop, acc,
        own_shift,
    )  # fmt: skip
    store(m, few_at, load(acc, 0))
    store(q, few_at, load(acc, (1 + d) * width))
    store(r, few_at, load(acc, (2 + d) * width))
    store(shift, few_at, load(own_shift, 0))
    for k in range(d):
        store(S, S_at + k * step, load(acc, (1 + k) * width))


# From this d on these sums are faster than `fused_sums`, whose loops over coordinates are unrolled
# up to d = 8: at n = 50 to 1000, `fused_sums` takes 0.9 to 1.4 times as long at d = 9, and 0.6 to
# 0.9 times at d = 8.
BLOCKED_FROM = 9

# Tokens j per block: their scores (12 KB) and a panel of their coordinates (9 KB) share the nearest
# cache. A multiple of TILE_COLUMNS.
BLOCK = 96
# So many multiply-adds of a product take the time of one pair of tokens in few dimensions.
MULTIPLY_ADDS_OF_PAIR = 5
# Number of groups in one task: they share each panel of tokens and of matrices that does not fit in
# the second cache (_NEAR bytes).
_GROUPS, _NEAR = 4, 600_000
# From so many paths per thread on, each path is treated by one thread.
_PATHS_OF_THREAD = 4
# Bytes of packed matrices that are held for several paths at a time, and of memory that is kept
# between calls: a fresh page costs several times what it costs to fill.
_PACKED, _KEPT = 24_000_000, 256_000_000


@internal(forceinline=True)
def rounded(count):
    return (count + COLUMN_UNIT - 1) // COLUMN_UNIT * COLUMN_UNIT


@internal
def _workspace(groups, n, d, ito, noise, like):
    """Allocate the workspace of a task: one or two vectors per group and coordinate or token."""
    most = groups * 2
    by_coordinate = most * rounded(d)
    own = vectors(by_coordinate, like)
    z = vectors(by_coordinate, like)
    S = vectors(by_coordinate, like)
    products = vectors(by_coordinate, like)
    scores = vectors(most * BLOCK, like)
    noisy = vectors(by_coordinate if noise else 0, like)
    along = vectors(most * BLOCK if noise else 0, like)
    pair = vectors(most * rounded(n) if ito else 0, like)
    state = vectors(most * (2 * d + EXTRA), like)
    mask = vectors(4 * lanes(like), like)
    group_mask(mask)
    few = (
        vectors(most, like), vectors(most, like), vectors(most, like), vectors(most, like),
        vectors(most, like), vectors(most, like), vectors(most, like), vectors(most, like),
        vectors(2, like),
    )  # fmt: skip
    last = np.empty(5 * 8), np.empty(d * 8)
    return own, z, S, products, scores, noisy, along, pair, state, mask, few, last


@internal
def group_mask(mask):
    """Write 1 where the token j of a group comes no later than that of the lane, else 0."""
    step = 2 * lanes(mask)
    for j in range(step):
        for lane in range(step):
            mask[j * step + lane] = 1.0 if j <= lane else 0.0


@internal
def along_rows(matrix, h, S, at, step, out):
    """Compute A_h S for one vector of a group."""
    d = matrix.shape[1]
    for k in range(d):
        total = splat(S.dtype.type(0.0))
        for line in range(d):
            total = fma(splat(matrix[h, k, line]), load(S, at + line * step), total)
        store(out, at + k * step, total)


# If D = D^T without drift and noise, D S_i = sum_j u_ij D x_j, and the scores have formed D x_j
# already. One of the two products of d^2 per token is saved, which pays where there are not many
# more tokens than coordinates.
IMAGES_TO = 4


def size_of_images(n: int, d: int, width: int) -> int:
    """Return the number of elements of the images D x_i of one head: in lanes and in panels."""
    groups = -(-n // (2 * width))
    size = groups * rounded.py_func(d) * 2 * width + panels.py_func(d) * TILE_COLUMNS * n
    return -(-size // width) * width


@internal
def _to_panels(n, d, z, at, step, start, at_panels):
    """Copy the rows D x_i of a group from the lanes to their places in panels of (n, d)."""
    panel_n = n * TILE_COLUMNS
    for lane in range(min(step, n - start)):
        row = at_panels + (start + lane) * TILE_COLUMNS
        for first in range(0, d, TILE_COLUMNS):
            for c in range(min(TILE_COLUMNS, d - first)):
                z[row + c] = z[at + (first + c) * step + lane]
            row += panel_n


# The forms of the matrices of a path, by what can be left out.
GENERAL, SYMMETRIC, DIAGONAL = 0, 1, 2


@internal
def _form(matrix, promised):
    """Classify as GENERAL, SYMMETRIC or DIAGONAL; a matrix `promised` symmetric is not GENERAL."""
    d = len(matrix)
    off = False
    for row in range(d):  # a general matrix is mostly recognised in its first row
        for column in range(d):
            off = off or (column != row and matrix[row, column] != 0.0)  # NaN counts as nonzero
        if off:
            break
    if not off:
        return DIAGONAL
    if promised:
        return SYMMETRIC
    for row in range(0, d, 8):  # in squares, of which both sides lie in the nearest cache
        for column in range(0, row + 1, 8):
            for k in range(row, min(row + 8, d)):
                for line in range(column, min(column + 8, k)):
                    if matrix[k, line] != matrix[line, k]:
                        return GENERAL
    return SYMMETRIC


@internal
def _image(
    diagonal, matrix, groups, full, a, packed, at, of_d, out, out_at
):  # fmt: skip
    """Write the product of a matrix, packed from `at` on, and of d rows of each group to `out`.

    diagonal : whether to multiply by the diagonal of `matrix` alone, which gives the same bits
    """
    d = matrix.shape[0]
    width = lanes(a)
    zero = np.intp(0)
    if not diagonal:
        product(
            groups, full, a, zero, of_d, packed, at, d * TILE_COLUMNS, d, d, out, out_at, of_d,
            np.bool_(False),
        )  # fmt: skip
        return
    for g in range(groups):
        step = 2 * width if g < full else width
        for k in range(d):
            scale = splat(matrix[k, k])
            mine = g * of_d + k * step
            for v in range(mine, mine + step, width):
                store(out, out_at + v, scale * load(a, v))


@loop_body
def _some_groups(
    begin, end, x, packed_tokens, matrices, images, arrays, flow, sign, causal, tied, diagonal,
    first, groups, space, v, out,
):  # fmt: skip
    """Process all heads for `groups` groups of tokens of one path, starting at group `first`.

    begin, end : phases, 0 the images, (heads, elements of `size_of_images`), 1 all else; images
        without elements where D S is a product of D and S
    """
    n, d = x.shape
    score, value, drift, noise, sigma2 = arrays
    heads = score.shape[0]
    own, z_of_task, S, products, scores, noisy, along, pair, state, mask, few, last = space
    m, q, r, shift, square, power, increment, work, factors = few
    width = lanes(own)
    two = 2 * width
    of_d = rounded(d) * two
    of_scores = BLOCK * two
    of_pair = rounded(n) * two
    of_state = (2 * d + EXTRA) * width
    panel_d = d * TILE_COLUMNS
    panel_n = n * TILE_COLUMNS
    of_matrix = panels(d) * panel_d
    of_images = ((n + width - 1) // width + 1) // 2 * of_d
    ito = sigma2.shape[0] > 0
    start = first * two
    full = min(groups, (n - start + width - 1) // two)
    stop = min(start + groups * two, n) if causal else n
    one = splat(x.dtype.type(1.0))
    shifted = np.zeros(2 * groups, np.bool_)

    for g in range(groups):
        gather(x, start + g * two, two if g < full else width, own, g * of_d)
    imaged = images.shape[1] > 0
    by_coordinate = of_images if imaged else panels(n) * panel_d
    # These are numbers, not constants of the program: `product` would be compiled for each.
    zero, fresh = np.intp(0), np.bool_(False)
    for h in range(heads if imaged and begin == 0 else 0):
        z_at = first * of_d
        _image(False, score[h], groups, full, own, matrices[h], zero, of_d, images[h], z_at)
        for g in range(groups):
            step = two if g < full else width
            _to_panels(n, d, images[h], z_at + g * of_d, step, start + g * two, of_images)
    if end == 1:
        return
    if ito:
        product(
            groups, full, own, zero, of_d, packed_tokens, zero, panel_d, d, stop, pair, zero,
            of_pair, fresh,
        )  # fmt: skip
        for g in range(groups):
            at = g * of_pair
            for k in range(at, at + stop * (two if g < full else width), width):
                c = load(pair, k)
                store(pair, k, fma(c, c, one))
    clear(state, d, 2 * groups)
    power[:] = 0.0
    increment[:] = 0.0
    work[:] = 0.0
    moving = drift.shape[0] // max(heads, 1)  # matrices of a head: none, its drift, its last move
    for h in range(heads):
        z = images[h] if imaged else z_of_task
        z_at = first * of_d if imaged else 0
        if not imaged:
            _image(diagonal, score[h], groups, full, own, matrices[h], zero, of_d, z, zero)
        some = False
        for g in range(groups):
            step = two if g < full else width
            scaled_scores(z, z_at + g * of_d, step, d, square, g * two, shifted, 2 * g)
            some = some or not (shifted[2 * g] and shifted[2 * g + step // two])
        kind = (1 if tied else 2) + moving
        if noise.shape[0] > 0:
            product(
                groups, full, own, zero, of_d, matrices[h], kind * of_matrix, panel_d, d, d,
                noisy, zero, of_d, fresh,
            )  # fmt: skip
        m[:] = 0.0
        q[:] = 0.0
        r[:] = 0.0
        shift[:] = 0.0
        for j in range(0, stop if some else 0, BLOCK):
            count = min(BLOCK, stop - j)
            product(
                groups, full, z, z_at, of_d, packed_tokens, j // TILE_COLUMNS * panel_d,
                panel_d, d, count, scores, zero, of_scores, fresh,
            )  # fmt: skip
            if along.shape[0] > 0:
                product(
                    groups, full, noisy, zero, of_d, packed_tokens, j // TILE_COLUMNS * panel_d,
                    panel_d, d, count, along, zero, of_scores, fresh,
                )  # fmt: skip
            for g in range(groups):
                step = two if g < full else width
                masked = start - j if causal else count
                exponentials(
                    scores, g * of_scores, step, count, masked, mask, ito, pair,
                    g * of_pair + j * step, along, m, q, r, g * two,
                )  # fmt: skip
            product(
                groups, full, scores, zero, of_scores, images[h] if imaged else packed_tokens,
                by_coordinate + j * TILE_COLUMNS, panel_n, count, d, products if imaged else S,
                zero, of_d, j > 0,
            )  # fmt: skip
        for g in range(groups):
            step = two if g < full else width
            for k in range(0, step, width):
                if shifted[2 * g + k // width]:
                    shifted_block(
                        x, score, noise, h, start + g * two + k, ito, causal, step, S,
                        g * of_d + k, m, q, r, shift, g * two + k,
                    )  # fmt: skip
                    if imaged:
                        along_rows(score, h, S, g * of_d + k, step, products)
        for turn in range(moving):
            product(
                groups, full, own, zero, of_d, matrices[h], (kind - moving + turn) * of_matrix,
                panel_d, d, d, products, zero, of_d, fresh,
            )  # fmt: skip
            into = power if turn == 0 else work
            for g in range(groups):
                step = two if g < full else width
                for k in range(0, step, width):
                    at = g * of_d + k
                    store(into, g * two + k, inner(products, at, S, at, step, d))
        for g in range(groups if noise.shape[0] > 0 else 0):
            step = two if g < full else width
            for k in range(0, step, width):
                at = g * of_d + k
                store(increment, g * two + k, inner(noisy, at, S, at, step, d))
        if not imaged:
            at = zero if tied else of_matrix
            _image(diagonal, value[h], groups, full, S, matrices[h], at, of_d, products, zero)
        for g in range(groups):
            step = two if g < full else width
            for k in range(0, step, width):
                block = 2 * g + k // width
                absorb_products(
                    h, shifted[block], d, products, g * of_d + k, step, m, q, r, arrays, power,
                    increment, work, shift, square, g * two + k, state, block * of_state, factors,
                )  # fmt: skip
    for g in range(groups):
        for k in range(0, two if g < full else width, width):
            block = 2 * g + k // width
            finish_block(
                own, g * of_d + k, two if g < full else width, n, d, start + g * two + k,
                float(heads), flow, sign, state, block * of_state, last[0], last[1], v,
                out[2 * first + block],
            )  # fmt: skip


@loop_body
def _pack_factors(
    place, of_matrices, first, tied, imaged, x, score, value, drift, noise, matrices, tokens
):  # fmt: skip
    """Pack the matrices of one head of a path, or from place `of_matrices` on the tokens of a path.

    Those of the tokens are X^T for scores, then X for S unless images give it.
    """
    _, n, d = x.shape
    if place >= of_matrices:
        p = place - of_matrices
        pack_transposed(x[first + p], tokens[p], 0)
        if not imaged:
            pack(x[first + p], tokens[p], panels(n) * TILE_COLUMNS * d)
        return
    of_matrix = panels(d) * TILE_COLUMNS * d
    p = place // score.shape[1]
    h = place - p * score.shape[1]
    packed = matrices[p, h]
    pack(score[first + p, h], packed, 0)
    at = of_matrix
    if not tied:
        pack_transposed(value[first + p, h], packed, at)
        at += of_matrix
    for other in range(h, drift.shape[1], score.shape[1]):
        pack(drift[first + p, other], packed, at)
        at += of_matrix
    if noise.shape[1] > 0:
        pack(noise[first + p, h], packed, at)


@kernel(parallel=True)
def _sums(
    x, arrays, flow, sign, causal, tied, diagonal, slots, matrices, images, tokens, v, part,
    tasks_at,
):  # fmt: skip
    """Compute the results of `blocked_sums`; tied: symmetric; diagonal: their form; slots: loops to
    share; matrices, images, tokens: workspace of a batch of paths, or of one, in which the matrices
    of diagonal heads and the images of the tokens are empty where they are not wanted."""
    paths, n, d = x.shape
    score, value, drift, noise, sigma2 = arrays
    heads = score.shape[1]
    shared = len(score) < paths
    width = lanes(x)
    blocks = (n + width - 1) // width
    groups = (blocks + 1) // 2
    ito = sigma2.shape[1] > 0
    of_matrix = panels(d) * TILE_COLUMNS * d
    kinds = matrices.shape[2] // of_matrix
    imaged = images.shape[2] > 0
    batch = len(tokens)
    # A thread that has several paths to itself keeps each in its own cache.
    at_once = min(batch, paths)
    whole = not causal and groups <= _GROUPS and at_once >= _PATHS_OF_THREAD * slots
    tasks = 1 if whole else groups
    if not causal and (2 * n + heads * kinds * d) * d * x.itemsize > _NEAR:
        # Each loop has the same number of groups, as few as _GROUPS allows.
        share = max(1, slots // max(1, at_once))
        tasks = min(tasks, (groups + _GROUPS * share - 1) // (_GROUPS * share) * share)
    for first in range(0, paths, batch):
        count = min(batch, paths - first)
        of_matrices = 0
        if kinds > 0 and not (shared and first > 0):
            of_matrices = heads * (1 if shared else count)
        for job in prange(of_matrices + (0 if whole else count)):
            call(tasks_at[0], (
                np.intp(job), of_matrices, first, tied, imaged, x, score, value, drift, noise,
                matrices, tokens,
            ))  # fmt: skip
        for phase in range(0 if imaged and not whole else 1, 2):
            for slot in prange(slots):
                space = _workspace(
                    (groups + tasks - 1) // tasks, n, d, ito, noise.shape[1] > 0, x
                )  # fmt: skip
                for task in range(slot, count * tasks, slots):
                    p = task // tasks
                    begin = (task - p * tasks) * groups // tasks
                    end = (task - p * tasks + 1) * groups // tasks
                    room = np.intp(slot) if whole else np.intp(p)
                    if whole:
                        call(tasks_at[0], (
                            0, 0, first + p, tied, imaged, x, score, value, drift, noise,
                            matrices, tokens[room : room + 1],
                        ))  # fmt: skip
                    call(tasks_at[1], (
                        0 if whole else phase, phase + 1, x[first + p], tokens[room],
                        matrices[0 if shared else p], images[room],
                        of_path(arrays, first + p), flow, sign, causal, tied, diagonal, begin,
                        end - begin, space, v[first + p], part[first + p],
                    ))  # fmt: skip
    return path_terms(part, heads, n)


@kernel(parallel=True)
def _forms(score, promised):
    """Return the form of the matrices of each path (paths,): GENERAL, SYMMETRIC or DIAGONAL."""
    paths, heads = score.shape[:2]
    of_head = np.empty((paths, heads), np.int64)
    for job in prange(paths * heads):
        p = job // heads
        of_head[p, job - p * heads] = _form(score[p, job - p * heads], promised)
    least = np.empty(paths, np.int64)
    for p in range(paths):
        least[p] = of_head[p].min()
    return least


@lru_cache(maxsize=2)
def _addresses(dtype: np.dtype) -> tuple[int, ...]:
    """Return the addresses of the compiled tasks for tokens of that type."""
    flat, matrix, cube, matrices = arrays(dtype)
    numbers, terms, _, _ = arrays(np.float64)
    size, yes = types.intp, types.boolean
    packing = *(size,) * 3, yes, yes, cube, *(matrices,) * 4, cube, matrix
    space = types.Tuple((flat,) * 10 + (types.UniTuple(flat, 9), types.UniTuple(numbers, 2)))
    heads = type_of_heads(dtype, paths=False)
    given = size, size, matrix, flat, matrix, matrix, heads, size, types.float64, yes, yes, yes
    return (
        address(_pack_factors, packing),
        address(_some_groups, (*given, size, size, space, matrix, terms)),
    )


def _worth_images(heads: int, n: int, d: int, itemsize: int) -> bool:
    """Return whether D S of symmetric heads at rest is formed from the images of the tokens."""
    size = heads * size_of_images(n, d, 64 // itemsize) * itemsize
    return n <= IMAGES_TO * d and size <= _KEPT


@lru_cache(maxsize=64)
def plan(
    paths: int, shared: bool, heads: int, kinds: int, imaged: bool, n: int, d: int, itemsize: int
) -> tuple[int, tuple[slice, ...], tuple[tuple[int, ...], ...]]:
    """Lay out the workspace of the paths that are treated together.

    Parameters
    ----------
    shared : whether one path has the matrices of all
    kinds : packed matrices of a head
    imaged : whether there are images of the tokens

    Returns
    -------
    vectors of workspace; places of the matrices, the images and the tokens (twice), and the shapes
    """
    width = 64 // itemsize
    columns = TILE_COLUMNS * panels.py_func(d)
    sizes = (
        (heads, kinds * columns * d),
        (heads, size_of_images(n, d, width) if imaged else 0),
        (TILE_COLUMNS * panels.py_func(n) * d + columns * n,),
    )
    one = [-(-prod(shape) // width) for shape in sizes]
    batch = max(1, min(paths, _PACKED // (sum(one) * width * itemsize)))
    counts = (1 if shared else batch, batch, batch)
    ends = [0, *accumulate(map(mul, counts, one))]
    shapes = tuple((count, *shape) for count, shape in zip(counts, sizes, strict=True))
    places = tuple(
        slice(first * width, first * width + prod(shape))
        for first, shape in zip(ends, shapes, strict=False)
    )
    return ends[-1], places, shapes


def blocked_sums(
    x: NDArray[np.floating],
    score: NDArray[np.floating],
    value: NDArray[np.floating],
    drift: NDArray[np.floating],
    noise: NDArray[np.floating],
    sigma2: NDArray[np.floating],
    flow: int,
    sign: float,
    causal: bool,
    symmetric: bool,
) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Compute velocities and energy terms of all paths, as `fused.fused_sums`, for large d.

    Parameters
    ----------
    x : (paths, n, d) unit tokens
    score, value, drift, noise, sigma2 : as in `headsums.Heads`; a score (1, heads, d, d) that is
        the value, of heads at rest, belongs to all paths
    flow : SOFTMAX, UNNORMALISED or EFFECTIVE; sign : -1.0 descent, 1.0 ascent; causal : bool
    symmetric : whether value is score and D_h = D_h^T for all

    Returns
    -------
    v : (paths, n, d), terms : (paths, N_TERMS) float64 in the order of TERMS
    """
    (paths, n, d), heads = x.shape, score.shape[1]
    shared = len(score) < paths
    tied, diagonal, imaged = symmetric, False, False
    alone = (symmetric or value is score) and drift.shape[1] == 0 and noise.shape[1] == 0
    if alone and not causal and paths > 0:
        found = _forms(score, symmetric)  # such heads mostly do not move
        form = int(found[0])
        if paths > 1 and (found != form).any():  # a path's sums do not depend on the others
            v, terms = np.empty_like(x), np.empty((paths, N_TERMS))
            for which in (found == kind for kind in np.unique(found)):
                same, none = score[which], drift[which]
                v[which], terms[which] = blocked_sums(
                    x[which], same, same, none, none, sigma2[which], flow, sign, causal, symmetric
                )
            return v, terms
        tied, diagonal = form != GENERAL, form == DIAGONAL
        imaged = form == SYMMETRIC and _worth_images(heads, n, d, x.itemsize)
    kinds = 0 if diagonal else 2 - tied + drift.shape[1] // max(heads, 1) + (noise.shape[1] > 0)
    size, places, shapes = plan(paths, shared, heads, kinds, imaged, n, d, x.itemsize)
    space = scratch(size, x.dtype, _KEPT)
    matrices, images, tokens = (
        space[place].reshape(shape) for place, shape in zip(places, shapes, strict=True)
    )
    # The number of threads is read here: compiled code that reads it cannot be kept on disk.
    products = 0 if diagonal else kinds + 1 - imaged
    x, of_heads, v, part = prepared(x, score, value, drift, noise, sigma2)
    pairs = paths * heads * n * d * (2 * n + products * d) // MULTIPLY_ADDS_OF_PAIR
    with threads_for(pairs, PAIRS_OF_THREAD) as slots:
        return v, _sums(
            x, of_heads, flow, sign, causal, tied, diagonal, slots, matrices, images, tokens, v,
            part, _addresses(x.dtype),
        )  # fmt: skip
