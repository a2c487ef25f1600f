"""Sums over heads for one block of tokens, and what follows from them: velocities and terms.

The sums live in a flat array of vectors, one vector per row, so that blocks, paths and groups of
heads can be laid side by side.
"""

import math

from numba import njit

from wflow._pairsums import LOG2E, exponent_floor
from wflow._simd import exp2, fma, lanes, load, maximum, splat, store

# Columns of the table of terms that `fused_sums` returns for each path.
TERMS = (
    "energy",
    "weight_power",
    "ito_power",
    "martingale",
    "dissipation",
    "upper_gradient_sq",
    "edi_defect",
    "speed_sq",
    "max_speed",
    "max_score",
)
N_TERMS = len(TERMS)
SOFTMAX, UNNORMALISED, EFFECTIVE = 0, 1, 2


# Running sums over heads of one block of tokens, in vectors: attention (d), gradient (d), and
_INVERSE, _E_GRADIENT, _E_INVERSE = 0, 1, 2  # sum of 1/m; scales of the gradient and of that sum
_TOTALS, _LARGEST, _SCALED = 3, 7, 8  # energy, weight power, Ito, martingale; |D^T x|^2; a flag
EXTRA = 9


@njit(error_model="numpy")
def clear(state, d, blocks):
    """Running sums before the first head."""
    width = lanes(state)
    state[:] = 0.0
    for block in range(blocks):
        at = (block * (2 * d + EXTRA) + 2 * d) * width
        state[at + _E_GRADIENT * width : at + (_E_INVERSE + 1) * width] = -1e30


@njit(error_model="numpy", forceinline=True)
def _rescale(state, at, exponent, factors):
    """Bring a running sum of scale exp(state[at]) and a summand of scale exp(exponent) to one
    scale, the larger: factors for both go to `factors`, the scale to the state."""
    width = lanes(state)
    kind = state.dtype.type
    log2e = splat(kind(LOG2E))
    bottom = splat(kind(exponent_floor(state)))
    before = load(state, at)
    after = maximum(before, exponent)
    store(factors, 0, exp2(maximum((before - after) * log2e, bottom)))
    store(factors, width, exp2(maximum((exponent - after) * log2e, bottom)))
    store(state, at, after)


@njit(error_model="numpy", forceinline=True)
def absorb(
    h, fresh, shifted, d, own, own_at, acc, acc_at, shift, square, value, drift, noise, sigma2,
    state, at, factors,
):  # fmt: skip
    """Add (m, S, q) exp(-shift) of head h to the running sums of a block.

    The sums of S and of 1/m have scales of their own, since their summands may differ by more than
    the range of floats; the scales stay at zero until a head comes whose scores need a shift.
    """
    width = lanes(state)
    kind = state.dtype.type
    zero = splat(kind(0.0))
    one = splat(kind(1.0))
    rest = at + 2 * d * width
    m = load(acc, acc_at)
    keep_inverse = one
    add_inverse = one
    keep_gradient = one
    add_gradient = one
    grow = one
    if shifted:
        state[rest + _SCALED * width] = 1.0
    if state[rest + _SCALED * width] != 0.0:
        _rescale(state, rest + _E_INVERSE * width, zero - load(shift, 0), factors)
        keep_inverse = load(factors, 0)
        add_inverse = load(factors, width)
        _rescale(state, rest + _E_GRADIENT * width, load(shift, 0), factors)
        keep_gradient = load(factors, 0)
        add_gradient = load(factors, width)
        for lane in range(width):
            factors[lane] = math.exp(shift[lane])
        grow = load(factors, 0)
    elif fresh:
        store(state, rest + _E_INVERSE * width, zero)
        store(state, rest + _E_GRADIENT * width, zero)
    inverse_m = one / m
    at_inverse = rest + _INVERSE * width
    store(state, at_inverse, fma(add_inverse, inverse_m, load(state, at_inverse) * keep_inverse))
    power = zero
    increment = zero
    for k in range(d):
        ds = zero
        fs = zero
        bs = zero
        for row in range(d):
            s = load(acc, acc_at + (1 + row) * width)
            ds = fma(splat(value[h, k, row]), s, ds)
            if drift.shape[0] > 0:
                fs = fma(splat(drift[h, k, row]), s, fs)
            if noise.shape[0] > 0:
                bs = fma(splat(noise[h, k, row]), s, bs)
        mine = at + k * width
        store(state, mine, fma(ds, inverse_m, load(state, mine)))
        mine = at + (d + k) * width
        store(state, mine, fma(add_gradient, ds, load(state, mine) * keep_gradient))
        power = fma(load(own, own_at + k * width), fs, power)
        increment = fma(load(own, own_at + k * width), bs, increment)
    mine = rest + _TOTALS * width
    store(state, mine, fma(m, grow, load(state, mine)))
    mine += width
    store(state, mine, fma(power, grow, load(state, mine)))
    mine += width
    if sigma2.shape[0] > 0:
        q = load(acc, acc_at + (1 + d) * width) * splat(sigma2[h])
        store(state, mine, fma(q, grow, load(state, mine)))
    mine += width
    store(state, mine, fma(increment, grow, load(state, mine)))
    mine = rest + _LARGEST * width
    store(state, mine, maximum(load(state, mine), load(square, 0)))


@njit(error_model="numpy")
def merge(state, other, at, d, factors):
    """Add the running sums that another group of heads left for the same block."""
    width = lanes(state)
    rest = at + 2 * d * width
    _rescale(state, rest + _E_INVERSE * width, load(other, rest + _E_INVERSE * width), factors)
    mine = rest + _INVERSE * width
    kept = load(state, mine) * load(factors, 0)
    store(state, mine, fma(load(factors, width), load(other, mine), kept))
    _rescale(state, rest + _E_GRADIENT * width, load(other, rest + _E_GRADIENT * width), factors)
    for k in range(d):
        mine = at + k * width
        store(state, mine, load(state, mine) + load(other, mine))
        mine = at + (d + k) * width
        kept = load(state, mine) * load(factors, 0)
        store(state, mine, fma(load(factors, width), load(other, mine), kept))
    for term in range(4):
        mine = rest + (_TOTALS + term) * width
        store(state, mine, load(state, mine) + load(other, mine))
    mine = rest + _LARGEST * width
    store(state, mine, maximum(load(state, mine), load(other, mine)))


@njit(error_model="numpy")
def finish_block(x, n, start, heads, flow, sign, state, at, v, out):
    """Velocities of a block's tokens and their share of the terms, from the sums over heads."""
    d = x.shape[1]
    width = lanes(state)
    rest = at + 2 * d * width
    for lane in range(min(width, n - start)):
        i = start + lane
        inverse = float(state[rest + _INVERSE * width + lane])
        e_gradient = float(state[rest + _E_GRADIENT * width + lane])
        e_inverse = float(state[rest + _E_INVERSE * width + lane])
        # exp(e_gradient) gradient / (heads n) is D S summed over heads; likewise for 1/m.
        mobility = heads / (inverse * n) * math.exp(-e_inverse)
        to_gradient = math.exp(e_gradient) / (heads * n)
        over_mobility = inverse / heads / heads * math.exp(e_gradient + e_inverse)  # gbar / b
        if flow == SOFTMAX:
            scale = sign / heads
        elif flow == UNNORMALISED:
            mobility = 1.0
            over_mobility = to_gradient
            scale = sign * to_gradient
        else:
            scale = sign * over_mobility
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
        for term in range(4):
            out[term] += state[rest + (_TOTALS + term) * width + lane]
        if along != 0.0:  # 0 inf is 0 here: the token rests
            out[4] -= to_gradient * along
        if speed_sq != 0.0:
            out[5] += gradient_sq
            out[6] += defect
        out[7] += speed_sq
        out[8] = max(out[8], math.sqrt(speed_sq))
        out[9] = max(out[9], math.sqrt(state[rest + _LARGEST * width + lane]))
