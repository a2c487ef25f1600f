"""Velocities and ledger terms of all paths, in one parallel pass over all pairs of tokens.

Nothing is stored per head and nothing of size heads x n x n exists: a task is one block of tokens
of one path, which goes through all heads with its running sums in cache, so memory is
O(paths (n d + heads d^2)). Tasks are independent and their order of summation is fixed: threads do
not change a bit.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
from numba import njit, prange

from wflow import _pairsums, _simd
from wflow._pairsums import FLOOR, LOG2E, head_sums, padded, prepare_block, vectors
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


@njit(error_model="numpy", forceinline=True)
def _rescale(reference, exponent, old, new):
    """Bring a running sum scaled by exp(-reference) and a summand scaled by exp(-exponent) to one
    scale, the larger: factors for both go to `old` and `new`, the scale to `reference`."""
    kind = reference.dtype.type
    log2e = splat(kind(LOG2E))
    bottom = splat(kind(FLOOR))
    before = load(reference, 0)
    after = maximum(before, exponent)
    store(old, 0, exp2(maximum((before - after) * log2e, bottom)))
    store(new, 0, exp2(maximum((exponent - after) * log2e, bottom)))
    store(reference, 0, after)


@njit(error_model="numpy")
def _finish_token(
    i, lane, width, x, heads, flow, sign,
    attention, gradient, inverse, e_gradient, e_inverse, v, out,
):  # fmt: skip
    """Velocity of token i and its share of the terms that are sums over tokens."""
    n, d = v.shape
    # exp(e_gradient) gradient / (heads n) is D S summed over heads; likewise for 1/m.
    mean_inverse = inverse * n / heads * math.exp(e_inverse)
    mobility = heads / (inverse * n) * math.exp(-e_inverse)
    radial_a = 0.0
    radial_g = 0.0
    for k in range(d):
        radial_a += attention[k * width + lane] * x[i, k]
        radial_g += gradient[k * width + lane] * x[i, k]
    if flow == SOFTMAX:
        scale = sign / heads
    elif flow == UNNORMALISED:
        scale = sign * math.exp(e_gradient) / (heads * n)
        mobility = 1.0
        mean_inverse = 1.0
    else:
        scale = sign * inverse / heads / heads * math.exp(e_gradient + e_inverse)
    to_gradient = math.exp(e_gradient) / (heads * n)
    speed_sq = 0.0
    along = 0.0
    defect = 0.0
    for k in range(d):
        a = attention[k * width + lane] - radial_a * x[i, k]
        g = gradient[k * width + lane] - radial_g * x[i, k]
        vk = scale * (a if flow == SOFTMAX else g)
        v[i, k] = vk
        speed_sq += vk * vk
        along += vk * (to_gradient * g)
        defect += vk * (sign * vk - to_gradient * g * mean_inverse)
    out[4] -= along
    out[5] += mobility * speed_sq
    out[6] += mobility * defect
    out[7] += speed_sq
    speed = math.sqrt(speed_sq)
    if not speed <= out[8]:
        out[8] = speed


@njit(error_model="numpy")
def _block(x, n, weight, score, value, drift, noise, sigma2, flow, sign, causal, start, v, out):
    """All heads for the tokens start <= i < start + lanes of one path."""
    heads = score.shape[0]
    rows, d = x.shape
    width = lanes(x)
    kind = x.dtype.type
    zero = splat(kind(0.0))
    one = splat(kind(1.0))
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
    largest = vectors(1, x)
    growth = vectors(1, x)
    old = vectors(1, x)
    new = vectors(1, x)
    attention = vectors(d, x)
    gradient = vectors(d, x)
    inverse = vectors(1, x)
    # Scales of the two sums over heads whose summands may differ by more than the range of floats:
    # they stay at zero until a head comes whose scores need a shift.
    scaled = False
    e_gradient = vectors(1, x)
    e_inverse = vectors(1, x)
    total = vectors(4, x)  # energy, weight power, Ito, martingale
    attention[:] = 0.0
    gradient[:] = 0.0
    inverse[:] = 0.0
    largest[:] = 0.0
    total[:] = 0.0
    e_gradient[:] = -1e30
    e_inverse[:] = -1e30

    prepare_block(x, n, start, ito, own, pair, diagonal)
    for h in range(heads):
        shifted = head_sums(
            x, n, weight, score, h, own, z, z_low, pair, ito, diagonal, causal, start, stop,
            acc, part, shift, largest,
        )  # fmt: skip
        m = load(acc, 0)
        keep_inverse = one
        add_inverse = one
        keep_gradient = one
        add_gradient = one
        grow = one
        scaled = scaled or shifted
        if scaled:
            _rescale(e_inverse, zero - load(shift, 0), old, new)
            keep_inverse = load(old, 0)
            add_inverse = load(new, 0)
            _rescale(e_gradient, load(shift, 0), old, new)
            keep_gradient = load(old, 0)
            add_gradient = load(new, 0)
            for lane in range(width):
                growth[lane] = math.exp(shift[lane])
            grow = load(growth, 0)
        elif h == 0:
            store(e_inverse, 0, zero)
            store(e_gradient, 0, zero)
        inverse_m = one / m
        store(inverse, 0, fma(add_inverse, inverse_m, load(inverse, 0) * keep_inverse))
        power = zero
        increment = zero
        for k in range(d):
            ds = zero
            fs = zero
            bs = zero
            for row in range(d):
                s = load(acc, (1 + row) * width)
                ds = fma(splat(value[h, k, row]), s, ds)
                if drift.shape[0] > 0:
                    fs = fma(splat(drift[h, k, row]), s, fs)
                if noise.shape[0] > 0:
                    bs = fma(splat(noise[h, k, row]), s, bs)
            at = k * width
            store(attention, at, fma(ds, inverse_m, load(attention, at)))
            store(gradient, at, fma(add_gradient, ds, load(gradient, at) * keep_gradient))
            power = fma(load(own, at), fs, power)
            increment = fma(load(own, at), bs, increment)
        store(total, 0, fma(m, grow, load(total, 0)))
        store(total, width, fma(power, grow, load(total, width)))
        if ito:
            q = load(acc, (1 + d) * width) * splat(sigma2[h])
            store(total, 2 * width, fma(q, grow, load(total, 2 * width)))
        store(total, 3 * width, fma(increment, grow, load(total, 3 * width)))

    for lane in range(min(width, n - start)):
        for term in range(4):
            out[term] += total[term * width + lane]
        out[9] = max(out[9], math.sqrt(largest[lane]))
        _finish_token(
            start + lane, lane, width, x, float(heads), flow, sign, attention, gradient,
            float(inverse[lane]), float(e_gradient[lane]), float(e_inverse[lane]), v, out,
        )  # fmt: skip


def _entry_points(source):
    """The two compiled functions that Python calls.

    Numba's cache on disk notices a change in the file of the cached function, not in what that
    function calls. `source`, a digest of all kernel files, is part of the cache key instead.
    """

    @njit(cache=True, parallel=True, error_model="numpy")
    def fused_sums(x, score, value, drift, noise, sigma2, flow, sign, causal):
        """Velocities and ledger terms of all paths in one pass over all pairs.

        Parameters
        ----------
        x : (paths, n, d) unit tokens
        score, value : (paths, heads, d, d) D_h of <x, D_h y>, and the matrix applied
            to S_h (tied heads pass the same array twice)
        drift, noise : (paths, heads, d, d) f_h and sigma dW_h, or (paths, 0, d, d) where absent
        sigma2 : (paths, heads), or (paths, 0) for no Ito term
        flow : SOFTMAX, UNNORMALISED or EFFECTIVE; sign : -1.0 descent, 1.0 ascent; causal : bool

        Returns
        -------
        v : (paths, n, d), terms : (paths, N_TERMS) float64 in the order of TERMS
        """
        _ = source  # part of the cache key
        paths, n, _d = x.shape
        heads = score.shape[1]
        width = lanes(x)
        blocks = (n + width - 1) // width
        v = np.empty_like(x)
        part = np.zeros((paths, blocks, N_TERMS))
        for task in prange(paths * blocks):
            p = task // blocks
            b = task - p * blocks
            tokens, weight = padded(x[p])
            _block(
                tokens, n, weight, score[p], value[p], drift[p], noise[p], sigma2[p], flow, sign,
                causal, b * width, v[p], part[p, b],
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
            tokens, weight = padded(x)
            start = b * width
            own = vectors(d, x)
            z = vectors(d, x)
            z_low = vectors(d, x)
            acc = vectors(d + 2, x)
            part = vectors(d + 2, x)
            pair = vectors(0, x)
            diagonal = vectors(width, x)
            shift = vectors(1, x)
            largest = vectors(1, x)
            largest[:] = 0.0
            prepare_block(tokens, n, start, False, own, pair, diagonal)
            for h in range(heads):
                head_sums(
                    tokens, n, weight, score, h, own, z, z_low, pair, False, diagonal, False, start,
                    tokens.shape[0], acc, part, shift, largest,
                )  # fmt: skip
                for lane in range(min(width, n - start)):
                    shifts[h, start + lane] = shift[lane]
                    totals[h, start + lane] = acc[lane]
        return shifts, totals

    return fused_sums, head_mobilities


_SOURCES = (__file__, _pairsums.__file__, _simd.__file__)
fused_sums, head_mobilities = _entry_points(
    hashlib.sha256(b"".join(Path(file).read_bytes() for file in _SOURCES)).hexdigest()
)
