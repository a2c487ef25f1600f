"""Velocities and ledger terms of all paths, in one parallel pass over all pairs of tokens.

Nothing is stored per head and nothing of size heads x n x n exists: a task is one block of tokens
of one path, which goes through all heads with its running sums in cache, so memory is
O(paths (n d + heads d^2)). Tasks are independent and their order of summation is fixed: threads do
not change a bit.
"""

import hashlib
import math
import os
from pathlib import Path

import numpy as np
from numba import njit, prange

from wflow import _pairsums, _simd, _symmetric
from wflow._pairsums import (
    LOG2E,
    TILE,
    by_lane,
    causal_mask,
    direct_bound,
    exponent_floor,
    head_scores,
    head_sums,
    padded,
    pair_table,
    vectors,
)
from wflow._simd import exp2, fma, lanes, load, maximum, splat, store
from wflow._symmetric import chunk_vectors, symmetric_sums

# A thread of GNU OpenMP that waits spins for milliseconds before it sleeps; where other programs
# share the cores, the spinning takes the time of the thread it waits for: beside one busy process
# a step took up to 50 times longer. Read when the first parallel function starts.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

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
_EXTRA = 9

# Groups of heads that are summed apart, so that one path has work for several threads, and up to
# which n and d a kernel value is worth using in both directions.
_GROUPS, _SYMMETRIC_TOKENS, _SYMMETRIC_DIMENSION, _TABLED_TOKENS = 8, 4096, 8, 320


@njit(error_model="numpy")
def _clear(state, d, blocks):
    """Running sums before the first head."""
    width = lanes(state)
    state[:] = 0.0
    for block in range(blocks):
        at = (block * (2 * d + _EXTRA) + 2 * d) * width
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
def _absorb(
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
def _merge(state, other, at, d, factors):
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
def _finish_block(x, n, start, heads, flow, sign, state, at, v, out):
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


@njit(error_model="numpy")
def _block(x, n, weight, score, value, drift, noise, sigma2, flow, sign, causal, start, v, out):
    """All heads for the tokens start <= i < start + lanes of one path."""
    rows, d = x.shape
    width = lanes(x)
    ito = sigma2.shape[0] > 0
    stop = min(start + width, rows) if causal else rows
    own = vectors(d, x)
    z = vectors(d, x)
    z_low = vectors(d, x)
    acc = vectors(d + 2, x)
    part = vectors(d + 2, x)
    pair = vectors(rows if ito else 0, x)
    diagonal = vectors(width, x)
    shift = vectors(1, x)
    square = vectors(1, x)
    factors = vectors(2, x)
    state = vectors(2 * d + _EXTRA, x)
    by_lane(x, n, start, own, 0)
    causal_mask(diagonal)
    if ito:
        pair_table(x, n, own, 0, 0, rows, pair, 0)
    _clear(state, d, 1)
    for h in range(score.shape[0]):
        shifted = head_sums(
            x, n, weight, score, h, own, 0, z, z_low, pair, ito, diagonal, causal, start, stop,
            acc, part, shift, square,
        )  # fmt: skip
        _absorb(
            h, h == 0, shifted, d, own, 0, acc, 0, shift, square, value, drift, noise, sigma2,
            state, 0, factors,
        )  # fmt: skip
    _finish_block(x, n, start, float(score.shape[0]), flow, sign, state, 0, v, out)


@njit(error_model="numpy")
def _group(x, n, weight, score, drift, noise, sigma2, first, last, state):
    """Heads first <= h < last with D = D^T for all tokens of one path."""
    rows, d = x.shape
    width = lanes(x)
    blocks = rows // width
    ito = sigma2.shape[0] > 0
    tabled = n <= _TABLED_TOKENS
    own = vectors(blocks * d, x)
    z = vectors(blocks * d, x)
    z_low = vectors(d, x)
    squares = vectors(blocks, x)
    square = vectors(1, x)
    sums = vectors(blocks * (d + 2), x)
    columns = vectors(chunk_vectors(d), x)
    room = vectors(width, x)
    acc = vectors(d + 2, x)
    part = vectors(d + 3, x)
    pair = vectors((rows * blocks if tabled else rows) if ito else 0, x)
    shift = vectors(1, x)
    factors = vectors(2, x)
    for block in range(blocks):
        by_lane(x, n, block * width, own, block * d * width)
        if ito and tabled:
            pair_table(
                x, n, own, block * d * width, block * width, rows, pair, block * rows * width
            )
    _clear(state, d, blocks)
    zero = splat(x.dtype.type(0.0))
    limit = direct_bound(x)
    for h in range(first, last):
        top = zero
        finite = zero
        for block in range(blocks):
            at = block * d * width
            head_scores(score, h, own, at, z, at, d, square)
            s = load(square, 0)
            store(squares, block * width, s)
            top = maximum(top, s)
            finite = finite + s  # NaN if any is
        store(square, 0, top)
        moderate = True
        for lane in range(width):
            moderate = moderate and square[lane] <= limit * limit
        store(square, 0, finite)
        for lane in range(width):
            moderate = moderate and not math.isnan(square[lane])
        if moderate:
            symmetric_sums(x, n, weight, own, z, pair, tabled, ito, columns, room, part, sums)
            shift[:] = 0.0
        for block in range(blocks):
            at = block * d * width
            state_at = block * (2 * d + _EXTRA) * width
            if moderate:
                store(square, 0, load(squares, block * width))
                _absorb(
                    h, h == first, False, d, own, at, sums, block * (d + 2) * width, shift, square,
                    score, drift, noise, sigma2, state, state_at, factors,
                )  # fmt: skip
                continue
            table = pair[: rows * width]
            if ito:
                table = vectors(rows, x)
                pair_table(x, n, own, at, 0, rows, table, 0)
            shifted = head_sums(
                x, n, weight, score, h, own, at, room, z_low, table, ito, room, False, 0, rows,
                acc, part, shift, square,
            )  # fmt: skip
            _absorb(
                h, h == first, shifted, d, own, at, acc, 0, shift, square, score, drift, noise,
                sigma2, state, state_at, factors,
            )  # fmt: skip


def _entry_points(source):
    """The two compiled functions that Python calls.

    Numba's cache on disk notices a change in the file of the cached function, not in what that
    function calls. `source`, a digest of all kernel files, is part of the cache key instead.
    """

    @njit(cache=True, parallel=True, error_model="numpy")
    def fused_sums(x, score, value, drift, noise, sigma2, flow, sign, causal, symmetric):
        """Velocities and ledger terms of all paths in one pass over all pairs.

        Parameters
        ----------
        x : (paths, n, d) unit tokens
        score, value : (paths, heads, d, d) D_h of <x, D_h y>, and the matrix applied
            to S_h (tied heads pass the same array twice)
        drift, noise : (paths, heads, d, d) f_h and sigma dW_h, or (paths, 0, d, d) where absent
        sigma2 : (paths, heads), or (paths, 0) for no Ito term
        flow : SOFTMAX, UNNORMALISED or EFFECTIVE; sign : -1.0 descent, 1.0 ascent; causal : bool
        symmetric : whether value is score and D_h = D_h^T for all, so that U_hij = U_hji

        Returns
        -------
        v : (paths, n, d), terms : (paths, N_TERMS) float64 in the order of TERMS
        """
        _ = source  # part of the cache key
        paths, n, d = x.shape
        heads = score.shape[1]
        width = lanes(x)
        blocks = (n + width - 1) // width
        v = np.empty_like(x)
        part = np.zeros((paths, blocks, N_TERMS))
        if symmetric and n <= _SYMMETRIC_TOKENS and d <= _SYMMETRIC_DIMENSION:
            groups = min(heads, _GROUPS)
            state = np.empty((paths, groups, blocks * (2 * d + _EXTRA) * width), x.dtype)
            for task in prange(paths * groups):
                p = task // groups
                g = task - p * groups
                tokens, weight = padded(x[p], width)
                _group(
                    tokens, n, weight, score[p], drift[p], noise[p], sigma2[p],
                    g * heads // groups, (g + 1) * heads // groups, state[p, g],
                )  # fmt: skip
            for task in prange(paths * blocks):
                p = task // blocks
                b = task - p * blocks
                at = b * (2 * d + _EXTRA) * width
                factors = vectors(2, x)
                for g in range(1, groups):
                    _merge(state[p, 0], state[p, g], at, d, factors)
                _finish_block(
                    x[p], n, b * width, float(heads), flow, sign, state[p, 0], at, v[p], part[p, b]
                )
        else:
            for task in prange(paths * blocks):
                p = task // blocks
                b = task - p * blocks
                tokens, weight = padded(x[p], TILE)
                _block(
                    tokens, n, weight, score[p], value[p], drift[p], noise[p], sigma2[p], flow,
                    sign, causal, b * width, v[p], part[p, b],
                )  # fmt: skip
        terms = np.zeros((paths, N_TERMS))
        for p in range(paths):
            for b in range(blocks):
                for term in range(8):
                    terms[p, term] += part[p, b, term]
                for term in range(8, N_TERMS):
                    terms[p, term] = max(terms[p, term], part[p, b, term])
            pairs = 2.0 * heads * n * n
            terms[p, 0] /= pairs
            terms[p, 1] /= pairs
            terms[p, 2] /= 4.0 * pairs
            terms[p, 3] /= pairs
            for term in range(4, 8):
                terms[p, term] /= n
        return v, terms

    @njit(cache=True, parallel=True, error_model="numpy")
    def head_mobilities(x, score):
        """Row sums of every head: m_h(x_i) = exp(shift) total / n.

        x (n, d), score (heads, d, d); returns shift and total, both (heads, n).
        """
        _ = source  # part of the cache key
        n, d = x.shape
        heads = score.shape[0]
        width = lanes(x)
        blocks = (n + width - 1) // width
        shifts = np.empty((heads, n), x.dtype)
        totals = np.empty((heads, n), x.dtype)
        for b in prange(blocks):
            tokens, weight = padded(x, TILE)
            start = b * width
            own = vectors(d, x)
            z = vectors(d, x)
            z_low = vectors(d, x)
            acc = vectors(d + 2, x)
            part = vectors(d + 2, x)
            none = vectors(0, x)
            shift = vectors(1, x)
            square = vectors(1, x)
            by_lane(tokens, n, start, own, 0)
            for h in range(heads):
                head_sums(
                    tokens, n, weight, score, h, own, 0, z, z_low, none, False, none, False, start,
                    tokens.shape[0], acc, part, shift, square,
                )  # fmt: skip
                for lane in range(min(width, n - start)):
                    shifts[h, start + lane] = shift[lane]
                    totals[h, start + lane] = acc[lane]
        return shifts, totals

    return fused_sums, head_mobilities


_SOURCES = (__file__, _pairsums.__file__, _symmetric.__file__, _simd.__file__)
fused_sums, head_mobilities = _entry_points(
    hashlib.sha256(b"".join(Path(file).read_bytes() for file in _SOURCES)).hexdigest()
)
