"""Fast sums on the circle and the sphere: velocities and energy terms in time linear in n.

exp<x, D y> is expanded in harmonics of x (`sphere.harmonics`). Many tokens y are first replaced by
a few nodes with weights that have the same moments, so that the coefficients of a head cost the
same for any n; what is left per token are the harmonics, shared by all heads, and one small matrix
product.
Formulas, error bounds and costs: docs/theory/fast_sums.md.
"""

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import prange, types
from numpy.typing import NDArray

from wflow._core.compiler.functions import internal, kernel, loop_body
from wflow._core.compiler.sweeps import SUMS
from wflow._core.compiler.tasks import address, arrays, call
from wflow._core.compiler.vectors import (
    align_stack,
    fma,
    lanes,
    load,
    lowest_lane,
    maximum,
    register_lanes,
    splat,
    store,
)
from wflow.kernels.blocked.products import (
    TILE_COLUMNS,
    tile_product,
    tile_product_4,
    tile_product_8,
)
from wflow.kernels.harmonic import series as passes
from wflow.kernels.harmonic.series import (
    AREA,
    EPSILON,
    LARGEST_DEGREE,
    ROUNDING,
    ROUNDING_NODES,
    ROUNDING_SCORE,
    SPENT,
    Plan,
    check_tolerance,
    ends,
    layout,
    node_count,
    plan,
    shortened,
    sizes_by_degree,
    slopes_by_degree,
    spare,
    task_count,
)
from wflow.kernels.pairs.fused import SYMMETRIC_TOKENS
from wflow.kernels.pairs.headsums import (
    BACKWARD_WORK,
    DISSIPATION,
    E_GRADIENT,
    E_INVERSE,
    EDI_DEFECT,
    ENERGY,
    EXTRA,
    INVERSE,
    ITO_POWER,
    LARGEST,
    MARTINGALE,
    MAX_SCORE,
    MAX_SPEED,
    N_TERMS,
    PAIRS,
    SCALED,
    SECOND_VARIATION,
    SOFTMAX,
    SPEED_SQ,
    TOTALS,
    UNNORMALISED,
    UPPER_GRADIENT_SQ,
    WEIGHT_POWER,
    Heads,
    absorb,
    add_share,
    clear,
    finish_tokens,
    type_of_heads,
)
from wflow.kernels.pairs.sweep import (
    TILE,
    block_sums,
    by_lane,
    head_scores,
    images,
    padded,
    pair_table,
    vectors,
)
from wflow.sphere.harmonics import (
    PAIR,
    count,
    half_quadrature,
    harmonics,
    multiplied,
    recursion_table,
)

# Evaluation of the heads' series at the tokens
# ---------------------------------------------
# The harmonics of a group of tokens stay in cache and are shared by all heads; a panel of
# coefficients serves several heads at once. A block of tokens that misses the tolerance in a head
# is summed exactly in that head. GROUP is the number of vectors of tokens whose harmonics are in
# cache together while panels are used.

GROUP = 8
Floats = NDArray[np.float64]


@internal
def _exactly(
    x, n, weight, score, h, own, at, z, z_low, noisy, pair, ito, mask, start, acc, shift, square
):  # fmt: skip
    """Call `block_sums` over all tokens; compiled once for its two callers."""
    align_stack()
    return block_sums(
        x, n, weight, score, h, own, at, z, z_low, noisy, pair, ito, mask, False, start,
        x.shape[0], acc, shift, square,
    )  # fmt: skip


@internal
def _add(
    h, fresh, shifted, d, own, own_at, acc, acc_at, shift, square, arrays, state, at, factors
):  # fmt: skip
    """Call `absorb`; compiled once for its two callers."""
    align_stack()
    absorb(
        h, fresh, shifted, d, own, own_at, acc, acc_at, shift, square, arrays, state, at, factors
    )  # fmt: skip


@internal
def load_group(x, n, group, blocks, expanded, degree, table, own, basis):
    """Load coordinates of a group of blocks, and if any head is `expanded` the harmonics there."""
    d = x.shape[1]
    width = lanes(x)
    for start in range(0, blocks, PAIR):
        for block in range(start, start + PAIR):
            by_lane(x, n, group + block * width, own, block * d * width)
        if expanded:
            at = start * count(degree, d) * width
            harmonics(own[start * d * width :], d, degree, table, basis, at)


@internal(forceinline=True)
def lowest_sum(tile, at, real, limit):
    """Return the smallest of the first `real` lanes, and whether none is below `limit` or NaN."""
    low = np.inf
    good = True
    for lane in range(real):
        good = good and tile[at + lane] >= limit  # false for NaN
        low = min(low, tile[at + lane])
    return low, good


@internal
def panel_product(basis, at, panel, size, columns, tile):
    """Write the first `columns` columns of a panel at two blocks of harmonics to `tile`."""
    width = lanes(tile)
    two = PAIR * width
    far = TILE_COLUMNS * width
    if columns > 8:
        tile_product(basis, at, two, panel, 0, TILE_COLUMNS, size, tile, 0, width, far, False)
    elif columns > 4:
        tile_product_8(basis, at, two, panel, 0, TILE_COLUMNS, size, tile, 0, width, far, False)
    else:
        tile_product_4(basis, at, two, panel, 0, TILE_COLUMNS, size, tile, 0, width, far, False)


@internal
def _gradients(own, at, by_order, degree, tile):
    """Write m and a gradient of its series at two blocks of the sphere to the tile's columns 0 to
    3.

    With p_lm as in `series._sphere_group`, A_m = sum_l a_lm p_lm(z), B_m alike, w = x + iy,

        m = sum_m A_m Re w^m + B_m Im w^m,    d/dz: the same with A'_m, B'_m,
        d/dx - i d/dy = sum_m m (A_m - i B_m) w^(m-1);

    the series of A'_m and B'_m come from `gradient_table`. Four multiply-adds for two harmonics,
    half of what the panel of m and S takes. No harmonic is stored.

    A block has seven vectors. Where a vector is one register, two blocks run in one loop, so that
    their recursions overlap; where it is several, two would not fit, and one runs at a time.
    """
    if lanes(own) == register_lanes(own):
        _gradients_of_pair(own, at, by_order, degree, tile)
    else:
        width = lanes(own)
        for block in range(PAIR):
            _gradients_of_block(
                own, at + block * 3 * width, by_order, degree, tile, block * TILE_COLUMNS * width
            )


@internal(forceinline=True)
def _next_degree(factors, z, p, before, sums):
    """Return p_(l+1)m, p_lm and the sums A_m, B_m, A'_m, B'_m with their terms of degree l."""
    of_a, of_b, of_da, of_db, back = factors
    a, b, da, db = sums
    grown = fma(of_a, p, a), fma(of_b, p, b), fma(of_da, p, da), fma(of_db, p, db)
    return fma(z, p, back * before), p, grown


@internal(forceinline=True)
def _with_order(found, sums, power, lower):
    """Return m and its gradient with the terms of order m; `power` is w^m, `lower` m w^(m-1)."""
    total, gx, gy, gz = found
    a, b, da, db = sums
    c, s = power
    lower_c, lower_s = lower
    return (
        fma(a, c, fma(b, s, total)),
        fma(a, lower_c, fma(b, lower_s, gx)),
        fma(b, lower_c, fma(splat(0.0) - a, lower_s, gy)),
        fma(da, c, fma(db, s, gz)),
    )


@internal(forceinline=True)
def _keep(tile, to, found):
    """Write m and its gradient into four columns."""
    width = lanes(tile)
    store(tile, to, found[0])
    store(tile, to + width, found[1])
    store(tile, to + 2 * width, found[2])
    store(tile, to + 3 * width, found[3])


@internal
def _gradients_of_block(own, at, by_order, degree, tile, to):
    """Apply `_gradients` to one block."""
    width = lanes(own)
    x, y, z = load(own, at), load(own, at + width), load(own, at + 2 * width)
    zero = splat(0.0)
    one = splat(1.0)
    power = one, zero
    lower = zero, zero
    found = zero, zero, zero, zero
    place = np.uintp(0)  # for a signed index, Numba checks at every use whether it is negative
    for m in range(degree + 1):
        p, before, sums = one, zero, (zero, zero, zero, zero)
        for _ in range(m, degree + 1):
            # A function that takes the array would count references to it, here and below.
            factors = (
                splat(by_order[place]), splat(by_order[place + np.uintp(1)]),
                splat(by_order[place + np.uintp(2)]), splat(by_order[place + np.uintp(3)]),
                splat(by_order[place + np.uintp(4)]),
            )  # fmt: skip
            p, before, sums = _next_degree(factors, z, p, before, sums)
            place += np.uintp(5)
        found = _with_order(found, sums, power, lower)
        after = splat(m + 1.0)
        lower = after * power[0], after * power[1]
        power = multiplied(x, y, power[0], power[1])
    _keep(tile, to, found)


@internal
def _gradients_of_pair(own, at, by_order, degree, tile):
    """Apply `_gradients` to two blocks in one loop."""
    width = lanes(own)
    x0, y0, z0 = load(own, at), load(own, at + width), load(own, at + 2 * width)
    at += 3 * width
    x1, y1, z1 = load(own, at), load(own, at + width), load(own, at + 2 * width)
    zero = splat(0.0)
    one = splat(1.0)
    power0 = power1 = one, zero
    lower0 = lower1 = zero, zero
    found0 = found1 = zero, zero, zero, zero
    place = np.uintp(0)
    for m in range(degree + 1):
        p0, before0, sums0 = one, zero, (zero, zero, zero, zero)
        p1, before1, sums1 = one, zero, (zero, zero, zero, zero)
        for _ in range(m, degree + 1):
            factors = (
                splat(by_order[place]), splat(by_order[place + np.uintp(1)]),
                splat(by_order[place + np.uintp(2)]), splat(by_order[place + np.uintp(3)]),
                splat(by_order[place + np.uintp(4)]),
            )  # fmt: skip
            p0, before0, sums0 = _next_degree(factors, z0, p0, before0, sums0)
            p1, before1, sums1 = _next_degree(factors, z1, p1, before1, sums1)
            place += np.uintp(5)
        found0 = _with_order(found0, sums0, power0, lower0)
        found1 = _with_order(found1, sums1, power1, lower1)
        after = splat(m + 1.0)
        lower0 = after * power0[0], after * power0[1]
        lower1 = after * power1[0], after * power1[1]
        power0 = multiplied(x0, y0, power0[0], power0[1])
        power1 = multiplied(x1, y1, power1[0], power1[1])
    _keep(tile, 0, found0)
    _keep(tile, TILE_COLUMNS * width, found1)


@internal(forceinline=True)
def _absorb_series(
    d, order, first, last, tile, tile_at, own, own_at, arrays, limit, state, at, lowest, left
):  # fmt: skip
    """Add the heads order[first..last] of a panel to the running sums of one whole block.

    `headsums.absorb_blocks` where no scores need a shift, with the check of every value. In one
    loop without calls, since Numba counts references at every call that takes arrays, which costs
    more than the arithmetic of a block; with d a constant of the caller the loops over
    coordinates unroll. Writes to `left` the heads, by place in the panel, that miss their limit,
    and returns their number.
    """
    score, value, drift, noise, _ = arrays
    width = lanes(state)
    zero = splat(0.0)
    one = splat(1.0)
    rest = at + 2 * d * width
    missed = 0
    for s in range(first, last):
        h = order[s]
        mine = tile_at + (s - first) * (d + 1) * width
        m = load(tile, mine)
        low = lowest_lane(m)
        if not low >= limit[h]:
            left[missed] = s - first
            missed += 1
            continue
        lowest[h] = min(lowest[h], low)
        inverse_m = one / m
        row = rest + INVERSE * width
        store(state, row, load(state, row) + inverse_m)
        square = zero
        power = zero
        increment = zero
        work = zero
        for k in range(d):
            ds = zero
            along = zero
            fs = zero
            gs = zero
            ws = zero
            for line in range(d):
                sums = load(tile, mine + (1 + line) * width)
                ds = fma(splat(value[h, k, line]), sums, ds)
                along = fma(splat(score[h, line, k]), load(own, own_at + line * width), along)
                if drift.shape[0] > 0:
                    fs = fma(splat(drift[h, k, line]), sums, fs)
                if noise.shape[0] > 0:
                    gs = fma(splat(noise[h, k, line]), sums, gs)
                if drift.shape[0] > score.shape[0]:
                    ws = fma(splat(drift[score.shape[0] + h, k, line]), sums, ws)
            row = at + k * width
            store(state, row, fma(ds, inverse_m, load(state, row)))
            row += d * width
            store(state, row, load(state, row) + ds)
            square = fma(along, along, square)
            power = fma(load(own, own_at + k * width), fs, power)
            increment = fma(load(own, own_at + k * width), gs, increment)
            work = fma(load(own, own_at + k * width), ws, work)
        row = rest + TOTALS * width
        store(state, row, load(state, row) + m)
        row += width
        store(state, row, load(state, row) + power)
        row += 2 * width
        store(state, row, load(state, row) + increment)
        row += 2 * width
        store(state, row, load(state, row) + work)
        row = rest + LARGEST * width
        store(state, row, maximum(load(state, row), square))
    return missed


@internal
def _absorb_panel(
    d, order, first, last, tile, tile_at, own, own_at, arrays, limit, state, at, lowest, left
):  # fmt: skip
    """Call `_absorb_series` for d = 2 or 3."""
    align_stack()
    if d == 3:
        return _absorb_series(
            3, order, first, last, tile, tile_at, own, own_at, arrays, limit, state, at, lowest,
            left,
        )  # fmt: skip
    return _absorb_series(
        2, order, first, last, tile, tile_at, own, own_at, arrays, limit, state, at, lowest, left
    )  # fmt: skip


@internal(forceinline=True)
def _finish_whole(
    d, n, begin, heads, flow, sign, own, own_at, state, at, sums, line, line_at, v
):  # fmt: skip
    """Compute `headsums.finish_tokens` of a whole block whose sums have no scales, in vectors.

    sums (N_TERMS,) : vectors of the terms, with the squares of the maxima
    line (d,) : memory for a velocity, lane by lane
    """
    width = lanes(state)
    rest = at + 2 * d * width
    per_pair = splat(1.0 / (heads * n))
    inverse = load(state, rest + INVERSE * width)
    mobility = splat(1.0)
    over_mobility = per_pair
    scale = splat(sign) * per_pair
    if flow != UNNORMALISED:
        mobility = splat(heads / n) / inverse
        over_mobility = inverse * splat(1.0 / (heads * heads))
        scale = splat(sign / heads) if flow == SOFTMAX else splat(sign) * over_mobility
    radial_a = splat(0.0)
    radial_g = splat(0.0)
    for k in range(d):
        xk = load(own, own_at + k * width)
        radial_a = fma(load(state, at + k * width), xk, radial_a)
        radial_g = fma(load(state, at + (d + k) * width), xk, radial_g)
    zero = splat(0.0)
    speed_sq = zero
    along = zero
    defect = zero
    for k in range(d):
        minus_x = zero - load(own, own_at + k * width)
        a = fma(radial_a, minus_x, load(state, at + k * width))
        g = fma(radial_g, minus_x, load(state, at + (d + k) * width))
        vk = scale * (a if flow == SOFTMAX else g)
        store(line, line_at + k * width, vk)
        speed_sq = fma(vk, vk, speed_sq)
        along = fma(vk, g, along)
        defect = fma(vk, splat(sign) * vk - over_mobility * g, defect)
    for lane in range(width):
        for k in range(d):
            v[begin + lane, k] = line[line_at + k * width + lane]
    for term in range(DISSIPATION):
        row = term * width
        store(sums, row, load(sums, row) + load(state, rest + TOTALS * width + row))
    row = DISSIPATION * width
    store(sums, row, fma(zero - per_pair, along, load(sums, row)))
    row = UPPER_GRADIENT_SQ * width
    store(sums, row, fma(mobility, speed_sq, load(sums, row)))
    row = EDI_DEFECT * width
    store(sums, row, fma(mobility, defect, load(sums, row)))
    row = SPEED_SQ * width
    store(sums, row, load(sums, row) + speed_sq)
    row = MAX_SPEED * width
    store(sums, row, maximum(load(sums, row), speed_sq))
    row = MAX_SCORE * width
    store(sums, row, maximum(load(sums, row), load(state, rest + LARGEST * width)))


@internal
def _finish(x, n, begin, heads, flow, sign, own, own_at, state, at, sums, line, v, terms):
    """Compute velocities of a block and add its share of the terms to `sums` or to `terms`."""
    width = lanes(state)
    d = x.shape[1]
    if begin + width <= n and state[at + (2 * d + SCALED) * width] == 0.0:
        if d == 3:
            _finish_whole(3, n, begin, heads, flow, sign, own, own_at, state, at, sums, line, 0, v)
        else:
            _finish_whole(2, n, begin, heads, flow, sign, own, own_at, state, at, sums, line, 0, v)
    elif d == 3:
        finish_tokens(x, n, 3, begin, heads, flow, sign, state, at, v, terms)
    else:
        finish_tokens(x, n, 2, begin, heads, flow, sign, state, at, v, terms)


@internal
def _fold_terms(sums, terms):
    """Add the lanes of `_finish_whole` to the terms."""
    width = lanes(sums)
    for term in range(N_TERMS):
        for lane in range(width):
            value = sums[term * width + lane]
            if term < MAX_SPEED:
                terms[term] += value
            else:
                terms[term] = max(terms[term], math.sqrt(value))


@loop_body
def _tokens_task(
    x, n, weight, arrays, flow, sign, order, alone, panels, sizes, limit, degree, table,
    by_order, first, last, v, terms, lowest, redone,
):  # fmt: skip
    """Compute velocities and terms of the tokens first <= i < last, from panels of coefficients.

    order : heads in the order of the panels; alone : heads that are summed exactly
    sizes : harmonics of each panel; limit : sum below which a head's value is summed exactly
    by_order : empty, or from `gradient_table` the series of the single head, evaluated instead
        of its panel
    lowest (heads,) : smallest sum of each head that was taken from the series
    """
    score, value, drift, noise, sigma2 = arrays
    no_ito = Heads(score, value, drift, noise, sigma2[:0])
    rows, d = x.shape
    width = lanes(x)
    ito = sigma2.shape[0] > 0 and alone.shape[0] > 0
    per_state = 2 * d + EXTRA
    number = count(degree, d)
    per_panel = TILE_COLUMNS // (d + 1)
    # The harmonics of a pair of blocks, which one panel reads once, stay in the nearest cache.
    together = PAIR if sizes.shape[0] <= 1 else GROUP
    own = vectors(together * d, x)
    basis = vectors(together * number, x)
    tile = vectors(PAIR * TILE_COLUMNS, x)
    state = vectors(together * per_state, x)
    z = vectors(d, x)
    z_low = vectors(d, x)
    noisy = vectors(d, x)
    again = vectors(d + SUMS, x)
    pair = vectors(rows if ito else 0, x)
    mask = vectors(width, x)
    shift = vectors(1, x)
    square = vectors(1, x)
    factors = vectors(2, x)
    left = np.empty(per_panel, np.int64)
    summed = np.empty(together, np.int64)  # heads in the running sums of a block
    line = vectors(d, x)
    sums = vectors(N_TERMS, x)
    sums[:] = 0.0
    heads = float(score.shape[0])
    lowest[:] = np.inf
    for group in range(first, last, together * width):
        blocks = min(together, (last - group + width - 1) // width)
        clear(state, d, blocks)
        summed[:] = 0
        stored = order.shape[0] > 0 and by_order.shape[0] == 0
        load_group(x, n, group, blocks, stored, degree, table, own, basis)
        for panel in range(sizes.shape[0]):
            begin_head = panel * per_panel
            end_head = min(begin_head + per_panel, order.shape[0])
            for start in range(0, blocks, PAIR):
                if by_order.shape[0] > 0:
                    _gradients(own, start * d * width, by_order, degree, tile)
                else:
                    panel_product(
                        basis, start * number * width, panels[panel], sizes[panel],
                        (end_head - begin_head) * (d + 1), tile,
                    )  # fmt: skip
                for block in range(start, min(start + PAIR, blocks)):
                    begin = group + block * width
                    real = min(width, n - begin)
                    place = (block - start) * TILE_COLUMNS * width
                    mine = block * d * width
                    at = block * per_state * width
                    scales = at + 2 * d * width
                    if real == width and state[scales + SCALED * width] == 0.0:
                        missed = _absorb_panel(
                            d, order, begin_head, end_head, tile, place, own, mine, arrays,
                            limit, state, at, lowest, left,
                        )  # fmt: skip
                        if summed[block] == 0 and missed < end_head - begin_head:
                            state[scales + E_GRADIENT * width :][:width] = 0.0
                            state[scales + E_INVERSE * width :][:width] = 0.0
                        summed[block] += end_head - begin_head - missed
                    else:
                        missed = end_head - begin_head
                        for s in range(missed):
                            left[s] = s
                    for which in range(missed):
                        h = order[begin_head + left[which]]
                        to = place + left[which] * (d + 1) * width
                        low, good = lowest_sum(tile, to, real, limit[h])
                        shifted = False
                        if good:
                            lowest[h] = min(lowest[h], low)
                            head_scores(score, h, own, mine, z, 0, d, square)
                            shift[:] = 0.0
                        else:
                            redone[0] += real
                            shifted = _exactly(
                                x, n, weight, score, h, own, mine, z, z_low, z, pair, False, mask,
                                begin, again, shift, square,
                            )  # fmt: skip
                            tile[to : to + (d + 1) * width] = again[: (d + 1) * width]
                        _add(
                            h, summed[block] == 0, shifted, d, own, mine, tile, to, shift,
                            square, no_ito, state, at, factors,
                        )  # fmt: skip
                        summed[block] += 1
        for block in range(blocks):
            begin = group + block * width
            mine = block * d * width
            if ito:
                pair_table(x, n, own[mine:], 0, 0, rows, pair, 0)
            for s in range(alone.shape[0]):
                h = alone[s]
                redone[0] += min(width, n - begin)
                if ito:
                    images(noise, h, own, mine, noisy, 0, d, 1)
                shifted = _exactly(
                    x, n, weight, score, h, own, mine, z, z_low, noisy, pair, ito, mask, begin,
                    again, shift, square,
                )  # fmt: skip
                _add(
                    h, summed[block] == 0, shifted, d, own, mine, again, 0, shift, square,
                    arrays if ito else no_ito, state, block * per_state * width, factors,
                )  # fmt: skip
                summed[block] += 1
            _finish(
                x, n, begin, heads, flow, sign, own, mine, state, block * per_state * width,
                sums, line, v, terms,
            )  # fmt: skip
    _fold_terms(sums, terms)


@internal(forceinline=True)
def _largest_squares(d, flat, heads, own, most):
    """Raise `most` to |D_h^T x|^2 of two blocks and all heads; d a constant of the caller."""
    width = lanes(own)
    top0 = load(most, 0)
    top1 = top0
    for h in range(heads):
        square0 = splat(0.0)
        square1 = splat(0.0)
        for k in range(d):
            along0 = splat(0.0)
            along1 = splat(0.0)
            for row in range(d):
                factor = splat(flat[(h * d + row) * d + k])
                along0 = fma(factor, load(own, row * width), along0)
                along1 = fma(factor, load(own, (d + row) * width), along1)
            square0 = fma(along0, along0, square0)
            square1 = fma(along1, along1, square1)
        top0 = maximum(square0, top0)
        top1 = maximum(square1, top1)
    store(most, 0, maximum(top0, top1))


@kernel(parallel=True)
def _evaluate_tokens(
    x, n, weight, arrays, flow, sign, order, alone, panels, sizes, limit, degree, table,
    by_order, task_at,
):  # fmt: skip
    """Return velocities (n, d), sums of the terms, smallest series value per head, tokens redone.

    x : (rows, d) padded tokens, weight (rows,); the rest as in `_tokens_task`.
    """
    d = x.shape[1]
    heads = arrays.score.shape[0]
    unit = GROUP * lanes(x)
    units = (n + unit - 1) // unit
    tasks = task_count(units, 1)
    v = np.empty((n, d))
    parts = np.zeros((tasks, N_TERMS))
    lows = np.empty((tasks, heads))
    again = np.zeros((tasks, 1), np.int64)
    for task in prange(tasks):
        call(task_at, (
            x, n, weight, arrays, flow, sign, order, alone, panels, sizes, limit, degree, table,
            by_order, np.intp(task * units // tasks * unit),
            min(np.intp((task + 1) * units // tasks * unit), n), v, parts[task], lows[task],
            again[task],
        ))  # fmt: skip
    terms = np.zeros(N_TERMS)
    lowest = np.full(heads, np.inf)
    redone = 0
    for task in range(tasks):
        add_share(terms, parts[task])
        for h in range(heads):
            lowest[h] = min(lowest[h], lows[task, h])
        redone += again[task, 0]
    return v, terms, lowest, redone


@kernel(parallel=True)
def largest_score(x, score):
    """Return the largest |D_h^T x_i| of tokens (n, d) and heads (heads, d, d)."""
    n, d = x.shape
    width = lanes(x)
    flat = score.reshape(-1)
    heads = score.shape[0]
    blocks = (n + PAIR * width - 1) // (PAIR * width)
    tasks = task_count(blocks, 32)
    largest = np.zeros(tasks)
    for task in prange(tasks):
        align_stack()
        own = vectors(PAIR * d, x)
        most = vectors(1, x)
        most[:] = 0.0
        for block in range(task * blocks // tasks, (task + 1) * blocks // tasks):
            for vector in range(PAIR):
                by_lane(x, n, (PAIR * block + vector) * width, own, vector * d * width)
            if d == 3:
                _largest_squares(3, flat, heads, own, most)
            else:
                _largest_squares(2, flat, heads, own, most)
        largest[task] = math.sqrt(most.max())
    return largest.max()


@kernel
def gradient_table(coefficient, degree, table):
    """Return the five numbers for every m and l >= m that `_gradients` reads, m outermost.

    Those of p_lm in A_m, B_m, A'_m, B'_m, and -b_(l+1)m^2. p_lm is the Gegenbauer polynomial
    C_n, n = l - m, of parameter t = m + 1/2, over its leading coefficient kappa_n, and
    [DLMF 18.9.19, 18.18.16] C_n' = 2 sum_j (n - 1 - 2j + t) C_(n-1-2j).

    coefficient (K,) : of the harmonics on the sphere
    """
    steps = int(table[0])
    out = np.empty((degree + 1) * (degree + 2) // 2 * 5)
    place = 0
    for m in range(degree + 1):
        scale = table[1 + m]
        leading = 1.0
        t = m + 0.5
        number = degree - m + 1
        kappa = np.empty(number)
        for n in range(number):
            l = m + n  # noqa: E741
            if n > 0:
                scale *= table[steps + l * (l + 1) + 2 * m]
                leading *= 2.0 * (n - 1 + t) / n
            kappa[n] = leading
            at = place + 5 * n
            out[at] = scale * coefficient[l * l + l + m]
            out[at + 1] = scale * coefficient[l * l + l - m] if m > 0 else 0.0
            after = steps + (l + 1) * (l + 2) + 2 * m
            ratio = table[after + 1] / table[after] if l < degree else 0.0
            out[at + 4] = -ratio * ratio
        for column in range(2):
            # Sums over n' > n of the other parity, of coefficients of C_n'.
            one = 0.0
            other = 0.0
            for n in range(number - 1, -1, -1):
                at = place + 5 * n + column
                out[at + 2] = 2.0 * (n + t) * kappa[n] * one
                one, other = other + out[at] / kappa[n], one
        place += 5 * number
    return out


@cache
def _task_address() -> int:
    flat, matrix, _, _ = arrays(np.float64)
    size, ints = types.intp, arrays(np.int64)[0]
    heads = type_of_heads(np.float64, paths=False)
    series = ints, ints, matrix, ints, flat, size, flat, flat
    given = matrix, size, flat, heads, size, types.float64, *series
    return address(_tokens_task, (*given, size, size, matrix, flat, flat, ints))


def evaluate_tokens(*arguments: Any) -> tuple[Floats, Floats, Floats, int]:
    """Run the compiled `evaluate_tokens` with its task."""
    return _evaluate_tokens(*arguments, _task_address())


# Times in ns of one core that `choose` compares, chosen so that it takes the fast sums from where
# they are faster in benchmarks/fast_sums.py: a pair of tokens and head of the exact sums, each
# value used for both tokens or for one; the fixed cost of a path; and the cost of about one
# multiply-add of the passes. The evaluation is counted for all degrees of the plan, where two
# thirds of the harmonics are evaluated.
EXACT_BOTH, EXACT = {2: 0.14, 3: 0.21}, {2: 0.20, 3: 0.31}
FIXED, MOMENTS, NODES, COEFFICIENTS, EVALUATION, PER_HEAD = 6e5, 0.055, 0.5, 0.06, 0.018, 4.0
FEWEST_TOKENS = 256  # below, the series is never faster


class Expanded(NamedTuple):
    """The coefficients of the heads of one path that a series serves, and the others.

    order, alone : heads with a series, and heads that are to be summed exactly
    degrees, coefficient, moment : of the heads in order; as in `Expansion`
    error (heads,) : bound of what is missing in a head's mean kernel value, anywhere
    mean (heads,) : mean mobility, the integral of m_h over the tokens
    squares (heads,) : integral over pairs of U <x, y>^2 or U <x, D y>^2, if asked for
    along_noise (heads,) : integral over pairs of U <x, N y>^2 for the noise N of a head, likewise
    """

    order: NDArray[np.int64]
    alone: NDArray[np.int64]
    degrees: NDArray[np.int64]
    coefficient: Floats
    moment: Floats
    error: Floats
    mean: Floats
    squares: Floats
    along_noise: Floats


class Series(NamedTuple):
    """The series of the heads of one path, ready to be evaluated at its tokens.

    order, alone, mean, squares, along_noise : as in `Expanded`, heads in the order of their panels
    error (heads,) : with what is missing beyond the degrees that are evaluated
    panels (panels, K * 12), sizes (panels,) : coefficients, times n, and how many count
    limit (heads,) : sum over tokens below which the tolerance is missed
    degree : highest degree that is evaluated of all heads
    """

    order: NDArray[np.int64]
    alone: NDArray[np.int64]
    panels: Floats
    sizes: NDArray[np.int64]
    error: Floats
    mean: Floats
    squares: Floats
    along_noise: Floats
    limit: Floats
    degree: int


@lru_cache(maxsize=2)
def table_of(d: int) -> Floats:
    """Return the constants of the recursion of the harmonics, up to the highest degree in use."""
    return recursion_table(d, LARGEST_DEGREE[d] + 2)


class Sources(NamedTuple):
    """Points that replace the tokens: the tokens themselves, or fewer nodes and their antipodes.

    points (q, d) : tokens, or one of every two antipodes
    mass (3, q) : w + w', w - w' and |w| + |w'| of the weights of a point and of its antipode, with
        the same moments as the tokens, as far as the heads' sums need them
    factor : 1 + 2 sum |mass| for nodes, 1 for tokens: what a tail is multiplied by
    noise : N of `series.ROUNDING_NODES`
    """

    points: Floats
    mass: Floats
    factor: float
    noise: float


def sources(x: Floats, last: int, mass: Floats | None = None) -> Sources:
    """Return points and weights that replace the tokens (n, d) in integrals of polynomials.

    last : degree up to which the moments are the same
    mass : (n,) of any sign, sum |mass| = 1; None for 1/n
    """
    n, d = x.shape
    if n <= node_count(last, d):
        own = np.full(n, 1 / n) if mass is None else mass
        return Sources(x, np.stack([own, own, np.abs(own)]), 1.0, 0.0)
    if mass is None:
        moment = passes.moments(x, np.full(n, 1.0), last, table_of(d)) / n
    else:
        moment = passes.moments(x, mass, last, table_of(d))
    points, node_mass = nodes_of(moment, last, d)
    first, sizes = layout(len(moment), d)
    # The sum of |mu_l| max_y |Y_l(y)| over all degrees and the whole sphere.
    noise = float(np.sqrt(np.add.reduceat(moment * moment, first)) @ np.sqrt(sizes * AREA[d]))
    if mass is not None:
        # Moments of weights of both signs cancel, their rounding errors do not.
        noise = max(noise, 1.0)
    return Sources(points, node_mass, 1 + 2 * float(node_mass[2].sum()), noise)


def nodes_of(moment: Floats, last: int, d: int) -> tuple[Floats, Floats]:
    """Return nodes (q, d), one of each two antipodes, and masses (3, q) with these moments."""
    points, weights = half_quadrature(d, last)
    _, sizes = layout(len(moment), d)
    odd = np.repeat(np.arange(last + 1) % 2, sizes)
    # The density that has these moments is the sum of an even and an odd function.
    alike = 2 * weights * passes.expand(points, moment * (1 - odd), last, table_of(d))
    other = 2 * weights * passes.expand(points, moment * odd, last, table_of(d))
    # |w| + |w'| for half the sum and half the difference of w and w'
    return points, np.stack([alike, other, np.maximum(np.abs(alike), np.abs(other))])


class Expansion(NamedTuple):
    """Coefficients of some heads of one path and the bounds of their errors.

    coefficient (heads, K, columns) : of 1, the coordinates y_a and their products
    moment (K, columns) : of the sources themselves
    error (heads,) : bound of what is missing in a head's sum with sum |mass| = 1, anywhere
    """

    coefficient: Floats
    moment: Floats
    error: Floats


def expansion(
    x: Floats, D: Floats, chosen: Plan, inside: NDArray[np.int64], products: int,
    mass: Floats | None = None,
) -> Expansion:  # fmt: skip
    """Compute the series of the heads `inside`, in this order, for sources x (n, d) and masses.

    products : 0 for sums of U, 1 for those of U y too, 2 and 3 as in `series.coefficients`
    """
    degrees = chosen.degrees[inside]
    degree = int(degrees.max())
    points, masses, factor, noise = sources(x, degree + min(products, 2), mass)
    coefficient, strength = passes.coefficients(
        points, masses, D[inside], degrees, chosen.tops[inside], table_of(x.shape[1]), products
    )
    error = expansion_error(chosen, inside, factor, noise, strength)
    return Expansion(coefficient[:-1], coefficient[-1], error)


def expansion_error(
    chosen: Plan, inside: NDArray[np.int64], factor: float | Floats, noise: float | Floats,
    strength: Floats,
) -> Floats:  # fmt: skip
    """Bounds of what is missing in the sums of the heads `inside` of one path.

    factor, noise : of the `Sources`, one or one a head; strength : sum |w| exp|D y| of each head
    """
    rho = chosen.rho[inside]
    degree = int(chosen.degrees[inside].max())
    off = max(0.0, chosen.off - 8 * EPSILON)
    rounding = (ROUNDING + ROUNDING_SCORE * rho) * EPSILON + (degree + 3 + rho) * off
    tails = factor * chosen.tails[inside]
    nodes = ROUNDING_NODES * EPSILON * noise
    return np.asarray((tails + nodes) * np.exp(rho) + rounding * strength)


def by_degree(degrees: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort places by falling degree: series of similar degree, which share a panel, are
    adjacent."""
    # Ties are ordered by number, so that the order is unique.
    return np.lexsort((np.arange(len(degrees)), -degrees))


def panels_of(
    coefficient: Floats, degrees: NDArray[np.int64], d: int, scale: Floats
) -> tuple[Floats, NDArray[np.int64], int]:
    """Return panels of coefficients (heads, K, columns) times `scale`, heads by falling degree.

    Returns the panels (panels, K * 12), the harmonics of each that count, and the highest degree.
    """
    heads, _, columns = coefficient.shape
    per_panel = TILE_COLUMNS // columns
    panels = -(-heads // per_panel)
    degree = int(degrees[0]) if heads else 0
    size = count(degree, d)
    table = np.zeros((panels, size, TILE_COLUMNS))
    for place in range(heads):
        at = place % per_panel * columns
        table[place // per_panel, :, at : at + columns] = scale[place] * coefficient[place, :size]
    sizes = np.array([count(int(top), d) for top in degrees[::per_panel]], np.int64)
    return table.reshape(panels, size * TILE_COLUMNS), sizes, degree


def squared_forms(N: Floats) -> Floats:
    """Return <x, N y>^2 as forms (heads, K, K) in the products x_a x_c, y_b y_e, a <= c, b <= e."""
    heads, d, _ = N.shape
    pairs = [(a, c) for a in range(d) for c in range(a, d)]
    folded = np.array([[{a, c} == {*pair} for a in range(d) for c in range(d)] for pair in pairs])
    both = np.einsum("hab,hce->hacbe", N, N).reshape(heads, d * d, d * d)
    return folded @ both @ folded.T


def expanded(
    x: Floats, D: Floats, chosen: Plan, tolerance: float, products: int, noise: Floats | None = None
) -> Expanded:
    """Compute the coefficients of all heads of one path and the bounds of their errors.

    Parameters
    ----------
    x : (n, d); D : (heads, d, d)
    products : 0 for sums of U, 1 for those of U y too, 2 for the integral of U <x, y>^2 too, 3 for
        U <x, D y>^2
    noise : (heads, d, d), for U <x, N y>^2 besides; needs the products 2
    """
    d = x.shape[1]
    heads = len(D)
    inside = np.flatnonzero(chosen.degrees >= 0)
    error, mean, squares, along_noise = (np.zeros(heads) for _ in range(4))
    if not len(inside):
        none = np.empty(0, np.int64)
        return Expanded(
            none, np.arange(heads), none, np.empty((0, 0, 1 + d)), np.empty((0, 0)), error, mean,
            squares, along_noise,
        )  # fmt: skip
    coefficient, moment, error[inside] = expansion(x, D, chosen, inside, products)
    mean[inside] = coefficient[:, :, 0] @ moment[:, 0]
    if products > 1:
        twice = np.array([1.0 if a == b else 2.0 for a in range(d) for b in range(a, d)])
        squares[inside] = np.einsum(
            "hkc,kc,c->h", coefficient[:, :, 1 + d :], moment[:, 1 + d :], twice
        )
    if noise is not None:
        of_pairs = coefficient[:, :, 1 + d :].swapaxes(1, 2) @ moment[:, 1 + d :]
        along_noise[inside] = np.einsum("hyx,hxy->h", of_pairs, squared_forms(noise[inside]))
    # A head whose mean mobility misses the tolerance misses it at most tokens.
    with np.errstate(invalid="ignore"):
        kept = error[inside] * (1 + 1 / tolerance) <= mean[inside]
    order = inside[kept]
    alone = np.setdiff1d(np.arange(heads), order)
    return Expanded(
        order, alone, chosen.degrees[order], coefficient[kept], moment, error, mean, squares,
        along_noise,
    )  # fmt: skip


def expand_heads(
    x: Floats, D: Floats, chosen: Plan, tolerance: float, products: int, noise: Floats | None = None
) -> Series:
    """Compute panels of the series of all heads, truncated where the tolerance allows it."""
    n, d = x.shape
    order, alone, degrees, coefficient, _, error, mean, squares, along_noise = expanded(
        x, D, chosen, tolerance, products, noise
    )
    if len(order):
        degrees, missing = ends(coefficient, d, error[order], chosen.low[order], tolerance)
        error[order] += missing
    ranks = by_degree(degrees)
    order, degrees = order[ranks], degrees[ranks]
    panels, sizes, degree = panels_of(
        coefficient[ranks, :, : 1 + d], degrees, d, np.full(len(order), float(n))
    )
    limit = np.zeros(len(D))
    limit[order] = n * error[order] * (1 + 1 / tolerance)
    return Series(
        order, alone, panels, sizes, error, mean, squares, along_noise, limit, degree
    )  # fmt: skip


def relative_error(series: Series | Expanded, chosen: Plan, lowest: Floats, n: int) -> float:
    """Bound the relative error of the mobilities, from each head's smallest series value."""
    rounding = 8 * EPSILON * (1 + min(float(chosen.rho.max()), 64.0))  # of the exact sums
    worst = rounding
    for h in series.order:
        for least in (lowest[h] / n, series.mean[h]):
            if math.isfinite(least):
                worst = max(worst, float(series.error[h] / (least - series.error[h])))
    return worst


def plain(array: NDArray[np.floating]) -> Floats:
    """Return `array` in the one type of the compiled code: doubles, contiguous, writable."""
    return np.require(array, np.float64, ["C", "W"])


def as_doubles(x: NDArray[np.floating]) -> Floats:
    """Return tokens in double precision; single-precision tokens are put on the sphere first."""
    if x.dtype == np.float64:
        return plain(x)
    tokens = np.array(x, np.float64, order="C")
    with np.errstate(invalid="ignore", divide="ignore"):
        tokens /= np.sqrt(np.einsum("...k,...k->...", tokens, tokens))[..., None]
    return tokens


def fast_sums(
    x: NDArray[np.floating],
    score: NDArray[np.floating],
    value: NDArray[np.floating],
    drift: NDArray[np.floating],
    noise: NDArray[np.floating],
    sigma2: NDArray[np.floating],
    flow: int,
    sign: float,
    tolerance: float,
) -> tuple[NDArray[np.floating], Floats, Floats]:
    """Compute velocities and energy terms of all paths by truncated series, in time linear in n.

    Parameters
    ----------
    x : (paths, n, d) unit tokens, d = 2 or 3
    score, value, drift, noise, sigma2 : as in `headsums.Heads`
    flow : `headsums.SOFTMAX`, ...; sign : -1.0 descent, 1.0 ascent
    tolerance : relative error allowed in the mobility m_h(x_i) of any head at any token; where a
        block of tokens would miss it, the block is summed exactly

    Returns
    -------
    v : (paths, n, d) of the type of x; terms : (paths, N_TERMS) in the order of `headsums.TERMS`
    error : (paths,) bound of the relative error of every m_h(x_i) and of the energy; that of the
        Itô term is within twice as much, that of a softmax velocity within 2 max |V_h| error.
        A path with a token or head that is not finite gives NaN throughout.

    Raises
    ------
    InputError
        For d > 3, and a tolerance out of range.
    """
    tolerance = check_tolerance(tolerance, x.shape[-1])
    paths = len(x)
    v = np.empty_like(x)
    terms = np.empty((paths, N_TERMS))
    error = np.empty(paths)
    tokens = as_doubles(x)
    arrays = [plain(a) for a in (score, value, drift, noise, sigma2)]
    for p in range(paths):
        v[p], terms[p], error[p] = _one_path(
            tokens[p], Heads(*(a[p] for a in arrays)), flow, sign, tolerance
        )
    return v, terms, error


def _one_path(
    x: Floats,
    arrays: Heads,
    flow: int,
    sign: float,
    tolerance: float,
) -> tuple[Floats, Floats, float]:
    n, d = x.shape
    score, sigma2 = plain(arrays.score), plain(arrays.sigma2)
    heads = len(score)
    chosen = plan(x, score, tolerance)
    if not chosen.finite:
        return np.full_like(x, np.nan), np.full(N_TERMS, np.nan), math.nan
    ito = len(sigma2) > 0
    noise = plain(arrays.noise) if ito and len(arrays.noise) else None
    series: Series | Expanded
    found = None
    if flow == UNNORMALISED:
        found = _of_summed_heads(x, arrays, chosen, sign, tolerance)
    if found is None:
        tokens, weight = padded(x, TILE)
        series = expand_heads(x, score, chosen, tolerance, 2 if ito else 1, noise)
        v, total, lowest, _ = evaluate_tokens(
            tokens, n, weight, arrays, flow, sign, series.order, series.alone, series.panels,
            series.sizes, series.limit, series.degree, table_of(d), np.empty(0),
        )  # fmt: skip
    else:
        series, v, total, lowest = found
    pairs = 2.0 * heads * n * n
    if ito:
        for h in series.order:
            total[ITO_POWER] += sigma2[h] * (series.mean[h] + series.squares[h]) * n * n
            total[SECOND_VARIATION] += series.along_noise[h] * n * n
    total[:DISSIPATION] /= pairs * np.array(PAIRS)
    total[DISSIPATION:MAX_SPEED] /= n
    return v, total, relative_error(series, chosen, lowest, n)


def _of_summed_heads(
    x: Floats, arrays: Heads, chosen: Plan, sign: float, tolerance: float
) -> tuple[Expanded, Floats, Floats, Floats] | None:
    """Compute the unnormalised velocity sum_h V_h S_h from one series for any number of heads.

    On the sphere, and if V_h = D_h for all heads, it is the gradient of the series of sum_h m_h,
    one degree longer: docs/theory/fast_sums.md. Returns None unless Jensen's bound says that every
    head meets the tolerance at every token; else the series, v, the sums of the terms and lower
    bounds of the heads' sums, as `evaluate_tokens` does.
    """
    n, d = x.shape
    heads = len(arrays.score)
    if chosen.degrees.min() < 0 or not np.isfinite(arrays.value).all():
        return None
    tied = d == 3 and np.array_equal(arrays.score, arrays.value)
    tied = tied and chosen.degrees.max() < LARGEST_DEGREE[d]
    drift, moved = arrays.drift[:heads], arrays.drift[heads:]
    powers = ((WEIGHT_POWER, drift), (MARTINGALE, arrays.noise), (BACKWARD_WORK, moved))
    products = 1 if not tied or any(len(matrices) for _, matrices in powers) else 0
    longer = chosen._replace(degrees=chosen.degrees + 1) if tied else chosen
    if len(arrays.sigma2):
        products = 2
    noise = plain(arrays.noise) if products == 2 and len(arrays.noise) else None
    series = expanded(x, plain(arrays.score), longer, tolerance, products, noise)
    within = series.error * (1 + 1 / tolerance) <= np.exp(chosen.low)
    if len(series.alone) or not within.all():
        return None
    c = series.coefficient  # of all heads, by number
    summed = np.zeros((1, c.shape[1], d + 1))
    summed[0, :, 0] = c[:, :, 0].sum(axis=0)
    if not tied:
        summed[0, :, 1:] = np.einsum("hkb,hab->ka", c[:, :, 1 : d + 1], arrays.value)
    end, error = _end_of_sum(summed, tied, arrays.value, series.error, chosen.low, tolerance)
    series = series._replace(error=error)
    scale = n / heads
    panels, sizes, degree = panels_of(summed, end, d, np.full(1, scale))
    by_order = gradient_table(scale * summed[0, :, 0], degree, table_of(d)) if tied else np.empty(0)
    none = np.empty((0, d, d))
    strongest = int(chosen.rho.argmax())
    single = Heads(arrays.score[[strongest]], np.eye(d)[None], none, none, np.empty(0))
    v, total, _, _ = evaluate_tokens(
        x, n, np.empty(0), single, UNNORMALISED, sign, np.zeros(1, np.int64),
        np.empty(0, np.int64), panels, sizes, np.full(1, -np.inf), degree, table_of(d), by_order,
    )  # fmt: skip
    total[ENERGY] *= heads
    for place, matrices in powers:
        if len(matrices):
            applied = np.einsum("hkb,hab->ka", c[:, :, 1 : d + 1], matrices)
            total[place] = n * n * np.sum(series.moment[: c.shape[1], 1 : d + 1] * applied)
    # A head whose norm is no larger than the score of the strongest one cannot raise it.
    others = chosen.rho * (1 + chosen.off) > total[MAX_SCORE]
    others[strongest] = False
    if others.any():
        total[MAX_SCORE] = max(total[MAX_SCORE], largest_score(x, plain(arrays.score[others])))
    return series, v, total, n * np.exp(chosen.low)


def _end_of_sum(
    summed: Floats, tied: bool, value: NDArray[np.floating], error: Floats, low: Floats,
    tolerance: float,
) -> tuple[NDArray[np.int64], Floats]:  # fmt: skip
    """Return the degree (1,) at which the series of all heads together may end, and the errors.

    What is missing in sum_h m_h and in sum_h V_h S_h / n is shared out in proportion to what every
    head has to spare, so that the bounds of the heads add up to it.
    """
    d = value.shape[1]
    room = spare(error, low, tolerance)
    rooms = np.array([room.sum(), room @ np.linalg.norm(value, 2, axis=(1, 2))])
    of_vectors = slopes_by_degree(summed[:, :, 0]) if tied else sizes_by_degree(summed[:, :, 1:], d)
    sizes = np.concatenate([sizes_by_degree(summed[:, :, :1], d), of_vectors])
    degrees, _ = shortened(sizes, rooms)
    end = degrees.max(keepdims=True)
    missing = sizes[:, end[0] + 1 :].sum(axis=1)
    return end, error + np.max(missing / np.where(missing > 0, rooms, 1.0)) * room


def choose(
    x: NDArray[np.floating], D: NDArray[np.floating], tolerance: float, symmetric: bool
) -> NDArray[np.bool_]:
    """Return for every path whether the fast sums are predicted to be faster; x (paths, n, d).

    A decision from data and constants alone, so that a run is the same wherever it runs. Where the
    bounds say that tokens may miss the tolerance, the share that will is estimated from a sample.

    Parameters
    ----------
    D : (paths, heads, d, d); symmetric : whether the exact sums may use U_hij = U_hji
    """
    paths, n, d = x.shape
    result = np.zeros(paths, bool)
    if d not in LARGEST_DEGREE or n < FEWEST_TOKENS:
        return result
    exact = exact_cost(n, D.shape[1], d, symmetric)
    if x.dtype == np.float32:  # twice the lanes; the series is always in double precision
        exact /= 2
    if exact <= FIXED:
        return result
    tokens = as_doubles(x)
    matrices = plain(D)
    for p in range(paths):
        chosen = plan(tokens[p], matrices[p], tolerance)
        # Values that are not finite end as NaN at once there.
        result[p] = (
            not chosen.finite or predicted_cost(tokens[p], matrices[p], chosen, tolerance) < exact
        )
    return result


def exact_cost(n: int, heads: int, d: int, symmetric: bool) -> float:
    """Return the predicted time of the exact sums, in ns of one core."""
    both = symmetric and n <= SYMMETRIC_TOKENS
    return heads * n * n * (EXACT_BOTH[d] if both else EXACT[d])


def predicted_cost(
    x: Floats, D: Floats, chosen: Plan, tolerance: float, cloud: Floats | None = None, sets: int = 1
) -> float:
    """Return the predicted time of the fast sums at the targets x, in ns of one core.

    cloud : the sources, by default x; sets : how many sets of weights they have
    """
    d = x.shape[1]
    cloud = x if cloud is None else cloud
    n = len(cloud)
    inside = chosen.degrees >= 0
    degrees = np.sort(chosen.degrees[inside])[::-1]
    exactly = len(x) * n * EXACT[d]
    cost = FIXED + exactly * np.count_nonzero(~inside)
    if not len(degrees):
        return cost
    top = int(degrees[0])
    nodes = node_count(top + 2, d)
    if n > nodes:
        cost += sets * (MOMENTS * n + NODES * nodes) * count(top + 2, d)
    columns = 4 + d + d * (d + 1) // 2
    numbers = [count(int(degree), d) for degree in degrees]
    cost += COEFFICIENTS * columns * min(n, nodes) * sum(numbers)
    panels = sum(numbers[:: TILE_COLUMNS // (1 + d)])
    cost += len(x) * (EVALUATION * TILE_COLUMNS * panels + PER_HEAD * len(degrees))
    rho = chosen.rho[inside]
    error = chosen.tails[inside] + (ROUNDING + ROUNDING_SCORE * rho) * EPSILON
    for place in np.flatnonzero(error > SPENT * tolerance * np.exp(chosen.low[inside] - rho)):
        wanted = math.log(error[place] / tolerance) + float(rho[place])
        cost += exactly * _share_below(x, D[inside][place], wanted, cloud)
    return cost


def _share_below(x: Floats, D: Floats, log_mobility: float, cloud: Floats) -> float:
    """Estimate the share of blocks of tokens with a mobility below a bound, from a sample."""
    some = x[:: max(1, len(x) // 64)][:64]
    many = cloud[:: max(1, len(cloud) // 256)][:256]
    scores = some @ D @ many.T
    highest = scores.max(axis=1)
    found = highest + np.log(np.exp(scores - highest[:, None]).mean(axis=1))
    return float(1 - np.mean(found >= log_mobility) ** 8)
