"""Sums over heads for one block of tokens, and the velocities and terms computed from them.

The sums live in a flat array of vectors, one vector per row, so that blocks, paths and groups of
heads can be laid side by side.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from wflow._core.compiler.functions import internal
from wflow._core.compiler.sweeps import SUMS
from wflow._core.compiler.tasks import arrays
from wflow._core.compiler.vectors import exp2, fma, lanes, load, load_wide, maximum, splat, store
from wflow.kernels.pairs.sweep import LOG2E, exponent_floor

# Columns of the table of terms that `fused_sums` returns for each path, and their places. Those
# before SPEED_SQ grow like the kernel; the first six are sums over pairs, those before MAX_SPEED
# are means over tokens, the last two maxima.
TERMS = (
    "energy",
    "weight_power",
    "ito_power",
    "martingale",
    "second_variation",
    "backward_work",
    "dissipation",
    "upper_gradient_sq",
    "edi_defect",
    "speed_sq",
    "max_speed",
    "max_score",
)
N_TERMS = len(TERMS)
ENERGY, WEIGHT_POWER, ITO_POWER, MARTINGALE, SECOND_VARIATION, BACKWARD_WORK = range(6)
DISSIPATION, UPPER_GRADIENT_SQ, EDI_DEFECT, SPEED_SQ, MAX_SPEED, MAX_SCORE = range(6, N_TERMS)
ENERGY_TERMS = TERMS[:SPEED_SQ]
PAIRS = (1.0, 1.0, 4.0, 1.0, 2.0, 1.0)  # divisors of sums over pairs, besides 2 heads n^2
SOFTMAX, UNNORMALISED, EFFECTIVE = 0, 1, 2


class Heads(NamedTuple):
    """Arrays of the heads, of all paths or of one; an axis of length 0 where there is none.

    score, value : (paths, heads, d, d) D_h of <x, D_h y>, and the matrix applied to S_h (tied
        heads have the same array twice)
    drift : (paths, heads, d, d) f_h, and in (paths, 2 heads, d, d) after these what the heads moved
        in the step before; or (paths, 0, d, d)
    noise : (paths, heads, d, d) sigma dW_h, or (paths, 0, d, d)
    sigma2 : (paths, heads), or (paths, 0) for no Itô term
    """

    score: NDArray[np.floating]
    value: NDArray[np.floating]
    drift: NDArray[np.floating]
    noise: NDArray[np.floating]
    sigma2: NDArray[np.floating]


def type_of_heads(dtype: np.typing.DTypeLike, paths: bool) -> types.NamedTuple:
    """Return the type of `Heads` of all `paths`, or of one, in compiled code."""
    numbers, matrices = arrays(dtype)[1::2] if paths else arrays(dtype)[:3:2]
    return types.NamedTuple((matrices,) * 4 + (numbers,), Heads)


def prepared(x, *heads):
    """Return the arguments of compiled sums: x, its `Heads`, room for velocities and term shares.

    x and the heads are in C order and of one type, copies where they were not.
    """
    x = np.ascontiguousarray(x)
    paths, n, _ = x.shape
    same = Heads(*(np.ascontiguousarray(array, x.dtype) for array in heads))
    blocks = -(-n // (64 // x.itemsize))
    return x, same, np.empty_like(x), np.zeros((paths, blocks, N_TERMS))


@internal
def of_path(arrays, p):
    """Return the heads of one path, whose scores and values all paths may share."""
    own = p if len(arrays.score) == len(arrays.sigma2) else 0
    return Heads(
        arrays.score[own], arrays.value[own], arrays.drift[p], arrays.noise[p], arrays.sigma2[p]
    )


# Running sums over heads of one block of tokens, in vectors: attention (d), gradient (d), and
INVERSE, E_GRADIENT, E_INVERSE = 0, 1, 2  # sum of 1/m; scales of the gradient and of that sum
TOTALS, LARGEST, SCALED = 3, 9, 10  # the terms that are sums over pairs; |D^T x|^2; a flag
EXTRA = 11


@internal
def clear(state, d, blocks):
    """Set the running sums to their values before the first head."""
    width = lanes(state)
    rows = 2 * d + EXTRA
    zero = splat(state.dtype.type(0.0))
    low = splat(state.dtype.type(-1e30))
    for block in range(blocks):
        for row in range(rows):
            store(state, (block * rows + row) * width, zero)
        at = (block * rows + 2 * d) * width
        store(state, at + E_GRADIENT * width, low)
        store(state, at + E_INVERSE * width, low)


@internal(forceinline=True)
def _rescale(state, at, exponent, factors):
    """Bring a running sum of scale exp(state[at]) and a summand of scale exp(exponent) to the
    larger scale: write the factors of both to `factors`, the scale to the state."""
    width = lanes(state)
    kind = state.dtype.type
    log2e = splat(kind(LOG2E))
    bottom = splat(kind(exponent_floor(state)))
    before = load(state, at)
    after = maximum(before, exponent)
    store(factors, 0, exp2(maximum(bottom, (before - after) * log2e)))
    store(factors, width, exp2(maximum(bottom, (exponent - after) * log2e)))
    store(state, at, after)


@internal(forceinline=True)
def common_scales(fresh, shifted, shift, shift_at, state, rest, factors):
    """Return factors that bring the sums of a head and the running sums of a block to common
    scales.

    The sums of the head are exp(-shift) times the true ones. Factors for the sum of 1/m: of what
    is there and of what comes; likewise for that of D S; and exp(shift). The scales of a block stay
    at zero until a head comes whose scores need a shift.
    """
    width = lanes(state)
    kind = state.dtype.type
    zero = splat(kind(0.0))
    one = splat(kind(1.0))
    keep_inverse = one
    add_inverse = one
    keep_gradient = one
    add_gradient = one
    grow = one
    if shifted:
        state[rest + SCALED * width] = 1.0
    if state[rest + SCALED * width] != 0.0:
        _rescale(state, rest + E_INVERSE * width, zero - load(shift, shift_at), factors)
        keep_inverse = load(factors, 0)
        add_inverse = load(factors, width)
        _rescale(state, rest + E_GRADIENT * width, load(shift, shift_at), factors)
        keep_gradient = load(factors, 0)
        add_gradient = load(factors, width)
        for lane in range(width):
            factors[lane] = math.exp(shift[shift_at + lane])
        grow = load(factors, 0)
    elif fresh:
        store(state, rest + E_INVERSE * width, zero)
        store(state, rest + E_GRADIENT * width, zero)
    return keep_inverse, add_inverse, keep_gradient, add_gradient, grow


@internal(forceinline=True)
def _along(matrix, h, d, own, own_at, acc, acc_at):
    """Return <x_i, A_h S_i> of a block."""
    width = lanes(acc)
    total = splat(acc.dtype.type(0.0))
    for k in range(d):
        product = splat(acc.dtype.type(0.0))
        for line in range(d):
            product = fma(
                splat(matrix[h, k, line]), load(acc, acc_at + (1 + line) * width), product
            )
        total = fma(load(own, own_at + k * width), product, total)
    return total


@internal(forceinline=True)
def absorb_blocks(
    h, fresh, shifts, shifted, d, blocks, own, own_at, acc, acc_at, shift, square, square_at,
    arrays, state, state_at, factors,
):  # fmt: skip
    """Add (m, S, q, r) exp(-shift) of head h to the running sums of adjacent blocks.

    The sums of S and of 1/m have separate scales, since their summands may differ by more than
    the range of floats; the scales stay at zero until a head comes whose scores need a shift, which
    is then the shift of all these blocks. Without `shifts`, a constant, none does. The loop over
    blocks is in here because Numba counts references at every call that takes arrays, which costs
    more than the arithmetic of a block.
    """
    _, value, drift, noise, sigma2 = arrays
    width = lanes(state)
    kind = state.dtype.type
    zero = splat(kind(0.0))
    one = splat(kind(1.0))
    for block in range(blocks):
        mine = acc_at + block * (d + SUMS) * width
        coordinates = own_at + block * d * width
        at = state_at + block * (2 * d + EXTRA) * width
        rest = at + 2 * d * width
        m = load(acc, mine)
        keep_inverse = one
        add_inverse = one
        keep_gradient = one
        add_gradient = one
        grow = one
        if shifts:
            keep_inverse, add_inverse, keep_gradient, add_gradient, grow = common_scales(
                fresh, shifted, shift, 0, state, rest, factors
            )
        elif fresh:
            store(state, rest + E_INVERSE * width, zero)
            store(state, rest + E_GRADIENT * width, zero)
        inverse_m = one / m
        row = rest + INVERSE * width
        store(state, row, fma(add_inverse, inverse_m, load(state, row) * keep_inverse))
        for k in range(d):
            ds = zero
            for line in range(d):
                ds = fma(splat(value[h, k, line]), load(acc, mine + (1 + line) * width), ds)
            row = at + k * width
            store(state, row, fma(ds, inverse_m, load(state, row)))
            row = at + (d + k) * width
            store(state, row, fma(add_gradient, ds, load(state, row) * keep_gradient))
        row = rest + TOTALS * width
        store(state, row, fma(m, grow, load(state, row)))
        row += width
        if drift.shape[0] > 0:
            power = _along(drift, h, d, own, coordinates, acc, mine)
            store(state, row, fma(power, grow, load(state, row)))
        row += width
        if sigma2.shape[0] > 0:
            q = load(acc, mine + (1 + d) * width) * splat(sigma2[h])
            store(state, row, fma(q, grow, load(state, row)))
        row += width
        if noise.shape[0] > 0:
            increment = _along(noise, h, d, own, coordinates, acc, mine)
            store(state, row, fma(increment, grow, load(state, row)))
        row += width
        if sigma2.shape[0] > 0 and noise.shape[0] > 0:
            r = load(acc, mine + (2 + d) * width)
            store(state, row, fma(r, grow, load(state, row)))
        row += width
        heads = value.shape[0]
        if drift.shape[0] > heads:
            work = _along(drift, heads + h, d, own, coordinates, acc, mine)
            store(state, row, fma(work, grow, load(state, row)))
        row = rest + LARGEST * width
        largest = maximum(load(state, row), load(square, square_at + block * width))
        store(state, row, largest)


@internal(forceinline=True)
def absorb(
    h, fresh, shifted, d, own, own_at, acc, acc_at, shift, square, arrays, state, at, factors
):  # fmt: skip
    """Apply `absorb_blocks` to one block."""
    absorb_blocks(
        h, fresh, True, shifted, d, 1, own, own_at, acc, acc_at, shift, square, 0, arrays, state,
        at, factors,
    )  # fmt: skip


@internal(forceinline=True)
def _add_totals(state, rest, count, out):
    """Add the sums over pairs of `count` tokens of a block to the terms."""
    width = lanes(state)
    for term in range(DISSIPATION):
        total = 0.0
        for lane in range(count):
            total += state[rest + (TOTALS + term) * width + lane]
        out[term] += total


@internal(forceinline=True)
def _factors(n, heads, flow, sign, state, rest, lane):
    """Return mobility, scale of the gradient, 1/b times it, and scale of the velocity of one
    token."""
    width = lanes(state)
    per_head = 1.0 / heads
    inverse = float(state[rest + INVERSE * width + lane])
    e_gradient = float(state[rest + E_GRADIENT * width + lane])
    e_inverse = float(state[rest + E_INVERSE * width + lane])
    # exp(e_gradient) gradient / (heads n) is D S summed over heads; likewise for 1/m.
    mobility = heads / (inverse * n)
    to_gradient = 1.0 / (heads * n)
    over_mobility = inverse * per_head * per_head  # gbar / b
    if e_gradient != 0.0 or e_inverse != 0.0:
        mobility *= math.exp(-e_inverse)
        to_gradient *= math.exp(e_gradient)
        over_mobility *= math.exp(e_gradient + e_inverse)
    if flow == SOFTMAX:
        scale = sign * per_head
    elif flow == UNNORMALISED:
        mobility = 1.0
        over_mobility = to_gradient
        scale = sign * to_gradient
    else:
        scale = sign * over_mobility
    return mobility, to_gradient, over_mobility, scale


@internal(forceinline=True)
def _add_means(
    dissipation, upper_gradient_sq, defects, speeds_sq, largest_speed_sq, largest_score_sq, out
):  # fmt: skip
    """Add the contributions of the tokens of a block to the terms."""
    out[DISSIPATION] += dissipation
    out[UPPER_GRADIENT_SQ] += upper_gradient_sq
    out[EDI_DEFECT] += defects
    out[SPEED_SQ] += speeds_sq
    out[MAX_SPEED] = max(out[MAX_SPEED], math.sqrt(largest_speed_sq))
    out[MAX_SCORE] = max(out[MAX_SCORE], math.sqrt(largest_score_sq))


@internal(forceinline=True)
def finish_tokens(x, n, d, start, heads, flow, sign, state, at, v, out):
    """Compute velocities of a block's tokens and their share of the terms, from sums over heads.

    With d a constant of the caller the loops over coordinates unroll.
    """
    width = lanes(state)
    rest = at + 2 * d * width
    count = min(width, n - start)
    _add_totals(state, rest, count, out)
    dissipation = 0.0
    upper_gradient_sq = 0.0
    defects = 0.0
    speeds_sq = 0.0
    largest_speed_sq = 0.0
    largest_score_sq = 0.0
    for lane in range(count):
        i = start + lane
        mobility, to_gradient, over_mobility, scale = _factors(
            n, heads, flow, sign, state, rest, lane
        )
        radial_a = 0.0
        radial_g = 0.0
        for k in range(d):
            radial_a += state[at + k * width + lane] * x[i, k]
            radial_g += state[at + (d + k) * width + lane] * x[i, k]
        # b |v|^2 is in range where |v|^2 is not, and the factors of <gbar, v> may be infinite.
        root = math.sqrt(mobility)
        speed_sq = 0.0
        gradient_sq = 0.0
        along = 0.0
        defect = 0.0
        for k in range(d):
            a = state[at + k * width + lane] - radial_a * x[i, k]
            g = state[at + (d + k) * width + lane] - radial_g * x[i, k]
            vk = scale * (a if flow == SOFTMAX else g)
            v[i, k] = vk
            speed_sq += vk * vk
            gradient_sq += (root * vk) * (root * vk)
            along += vk * g
            defect += (root * vk) * (root * (sign * vk - over_mobility * g))
        if along != 0.0:  # 0 inf is 0 here: the token rests
            dissipation -= to_gradient * along
        if speed_sq != 0.0:
            upper_gradient_sq += gradient_sq
            defects += defect
        speeds_sq += speed_sq
        largest_speed_sq = max(largest_speed_sq, speed_sq)
        largest_score_sq = max(largest_score_sq, state[rest + LARGEST * width + lane])
    _add_means(
        dissipation, upper_gradient_sq, defects, speeds_sq, largest_speed_sq, largest_score_sq, out
    )  # fmt: skip


@internal
def finish_block(
    own, own_at, step, n, d, start, heads, flow, sign, state, at, few, turned, v, out
):  # fmt: skip
    """Compute `finish_tokens` for any d, in vectors of 8 doubles with coordinates in the lanes.

    step : elements of `own` from one coordinate to the next; few (5 * 8) and turned (d * 8) are
    workspace, float64
    """
    width = lanes(state)
    wide = lanes(few)
    rest = at + 2 * d * width
    some = min(width, n - start)
    _add_totals(state, rest, some, out)
    zero = splat(0.0)
    sign_of_all = splat(sign)
    dissipation = 0.0
    upper_gradient_sq = 0.0
    defects = 0.0
    speeds_sq = 0.0
    largest_speed_sq = 0.0
    largest_score_sq = 0.0
    for part in range(0, some, wide):
        count = min(wide, some - part)
        for lane in range(wide):
            mobility, to_gradient, over_mobility, scale = _factors(
                n, heads, flow, sign, state, rest, part + lane
            )
            few[lane] = math.sqrt(mobility)
            few[wide + lane] = over_mobility
            few[2 * wide + lane] = scale
            few[3 * wide + lane] = to_gradient
        root = load(few, 0)
        over = load(few, wide)
        scale_of = load(few, 2 * wide)
        radial_a = zero
        radial_g = zero
        for k in range(d):
            xk = load_wide(own, own_at + k * step + part)
            radial_a = radial_a + load_wide(state, at + k * width + part) * xk
            radial_g = radial_g + load_wide(state, at + (d + k) * width + part) * xk
        speed_sq = zero
        gradient_sq = zero
        along = zero
        defect = zero
        for k in range(d):
            xk = load_wide(own, own_at + k * step + part)
            a = load_wide(state, at + k * width + part) - radial_a * xk
            g = load_wide(state, at + (d + k) * width + part) - radial_g * xk
            vk = scale_of * (a if flow == SOFTMAX else g)
            store(turned, k * wide, vk)
            speed_sq = speed_sq + vk * vk
            scaled = root * vk
            gradient_sq = gradient_sq + scaled * scaled
            along = along + vk * g
            defect = defect + scaled * (root * (sign_of_all * vk - over * g))
        store(few, 0, speed_sq)
        store(few, wide, gradient_sq)
        store(few, 2 * wide, defect)
        store(few, 4 * wide, along)
        for lane in range(count):
            i = start + part + lane
            for k in range(d):
                v[i, k] = turned[k * wide + lane]
            if few[4 * wide + lane] != 0.0:  # as in `finish_tokens`
                dissipation -= few[3 * wide + lane] * few[4 * wide + lane]
            if few[lane] != 0.0:
                upper_gradient_sq += few[wide + lane]
                defects += few[2 * wide + lane]
            speeds_sq += few[lane]
            largest_speed_sq = max(largest_speed_sq, few[lane])
            score_sq = state[rest + LARGEST * width + part + lane]
            largest_score_sq = max(largest_score_sq, score_sq)
    _add_means(
        dissipation, upper_gradient_sq, defects, speeds_sq, largest_speed_sq, largest_score_sq, out
    )  # fmt: skip


@internal
def add_share(terms, share):
    """Add the share of some tokens to the terms of a path, (N_TERMS,) both."""
    for term in range(MAX_SPEED):
        terms[term] += share[term]
    for term in range(MAX_SPEED, N_TERMS):
        terms[term] = max(terms[term], share[term])


@internal
def path_terms(part, heads, n):
    """Return the terms (paths, N_TERMS) from the shares (paths, blocks, N_TERMS) of blocks."""
    paths, blocks, _ = part.shape
    terms = np.zeros((paths, N_TERMS))
    pairs = 2.0 * heads * n * n
    for p in range(paths):
        for b in range(blocks):
            add_share(terms[p], part[p, b])
        for term in range(DISSIPATION):
            terms[p, term] /= PAIRS[term] * pairs
        for term in range(DISSIPATION, MAX_SPEED):
            terms[p, term] /= n
    return terms
