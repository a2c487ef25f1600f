"""The adjoint of the velocities of all paths: cotangents of tokens and heads in two passes.

With lambda_i the cotangent of v_i, mu_i = P_{x_i} lambda_i, p_hij = U_hij/m_hi, M_hi = S_hi/m_hi
and C_hi = sum_j p_hij x_j x_j^T, a head h turns a token i in the direction f_hi V_h M_hi, where
f is s/H for softmax, s m_h/(n H) without the denominator, and s m_h sum_g 1/m_g / H^2 for the
effective flow. With w_hi = f_hi V_h^T mu_i and a_hi = m_hi times the derivative by m_hi,

    c_hij = <w_hi, x_j> + a_hi,   R_hi = sum_j p_hij c_hij x_j = C_hi w_hi + a_hi M_hi,
    T_hi = sum_k p_hki c_hki x_k,   W_hi = sum_k p_hki w_hk,
    dD_h = sum_i x_i R_hi^T,   dV_h = sum_i mu_i (f_hi M_hi)^T,
    dx_i = sum_h (D_h R_hi + D_h^T T_hi + W_hi) - <lambda_i, x_i> A_i - <A_i, x_i> lambda_i.

The first pass has the targets i of the weights in the lanes and sums m, S and C; the second has the
sources, and reads p_hki = exp(<D_h x_i, x_k> - log m_hk). Nothing of size n x n is kept. Cost of a
pair and head in multiply-adds (double precision), both passes: 2 (d + 13) for the weights,
1 + d + d (d + 1)/2 and 3 d + 1 for the sums: 52 at d = 3, against 21 of a velocity whose directions
are computed apart, and 13 of one of tied heads. Tasks are independent and write to separate places:
threads do not change a bit.

From nine coordinates on the same sums are products of matrices, with R formed as a sum: of all but
the effective flow in one pass, as no head needs the sums of another.
"""

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import prange, types

from wflow._core.compiler.adjoints import BOTTOM, adjoint_sweep
from wflow._core.compiler.functions import (
    constant,
    constant_type,
    internal,
    kernel,
    loop_body,
    value_of,
)
from wflow._core.compiler.tasks import address, arrays, call
from wflow._core.compiler.vectors import (
    exp2,
    fma,
    lanes,
    load,
    maximum,
    minimum,
    splat,
    store,
)
from wflow._core.threads import threads_for
from wflow.kernels.pairs.headsums import EFFECTIVE, SOFTMAX, UNNORMALISED
from wflow.kernels.pairs.sweep import (
    CHUNK,
    DIRECT_BOUND_DOUBLE,
    LOG2E,
    block_scores,
    by_lane,
    clear_vectors,
    vectors,
)

_LANES = 8  # tokens of a block
_PAIRS_OF_THREAD = 50_000  # a thread with fewer takes longer to wake than it saves
_TOP = 1000.0  # exponent of 2 above which weights leave the range
_ONE_THREAD = 2**18  # multiply-adds of a product, up to which OpenBLAS takes one thread


# The loop over tokens
# --------------------


@internal
def _sums(dim, back, causal, table, start, own, z, shift, mask, part, acc):
    """Compute the sums of one block over all tokens that it sees, or, back, that see it."""
    width = lanes(acc)
    rows = table.shape[0]
    count = part.shape[0] // width
    low = 0
    high = rows
    if causal and back == 0:
        high = start
    if causal and back == 1:
        low = min(start + width, rows)
    clear_vectors(acc, 0, count)
    for first in range(low, high, CHUNK):
        last = min(first + CHUNK, high)
        clear_vectors(part, 0, count)
        if back == 0:
            adjoint_sweep(dim, 0, False, table, own, 0, z, shift, mask, first, last, part)
        else:
            adjoint_sweep(dim, 1, False, table, own, 0, z, shift, mask, first, last, part)
        for row in range(0, count * width, width):
            store(acc, row, load(acc, row) + load(part, row))
    if causal:
        last = min(start + width, rows)
        if back == 0:
            adjoint_sweep(dim, 0, True, table, own, 0, z, shift, mask, start, last, acc)
        else:
            adjoint_sweep(dim, 1, True, table, own, 0, z, shift, mask, start, last, acc)


@internal
def _highest(table, d, causal, start, z, mask, top):
    """Write the largest <z_i, x_j> of each lane to `top`, for scores beyond the range of exp."""
    width = lanes(z)
    one = splat(1.0)
    hidden = splat(1e30)
    high = splat(-1e30)
    for j in range(min(start + width, table.shape[0]) if causal else table.shape[0]):
        s = splat(0.0)
        for k in range(d):
            s = fma(load(z, k * width), splat(table[j, 1 + k]), s)
        if causal and j >= start:
            s = fma(load(mask, (j - start) * width) - one, hidden, s)
        high = maximum(high, s)
    store(top, 0, high)


# The two passes
# --------------


@loop_body
def _targets(
    dim, task, blocks, n, causal, flow, sign, features, scores, values, cotangents, mus, rs,
    moments, tables, out,
):  # fmt: skip
    """The first pass, for one block of tokens i of one path and all heads.

    features (paths, rows, columns) as `adjoint_sweep` reads them. Written are mus (paths, n, d), rs
    and moments (paths, heads n, d), R_hi and f_hi M_hi; tables (paths heads, rows, 2 d + 2) for the
    second pass; out (paths, n, d), the part of the cotangents of x that is known here.
    """
    d = value_of(dim)
    p = task // blocks
    start = (task - p * blocks) * lanes(out)
    width = lanes(out)
    score = scores[p if scores.shape[0] > 1 else 0]
    value = values[p if values.shape[0] > 1 else 0]
    table = features[p]
    heads = score.shape[0]
    count = 1 + d + d * (d + 1) // 2
    zero = splat(0.0)
    one = splat(1.0)
    own = vectors(d, out)
    lam = vectors(d, out)
    mu = vectors(d, out)
    z = vectors(d, out)
    t = vectors(d, out)
    few = vectors(4, out)
    mask = vectors(width, out)
    part = vectors(count, out)
    kept = vectors(heads * (count + 2), out)  # log2 m, M, C; then f and <V^T mu, M>
    square, top, logs = few[:width], few[width : 2 * width], few[2 * width : 3 * width]
    by_lane(features[p][:, 1 : 1 + d], n, start, own, 0)
    by_lane(cotangents[p], n, start, lam, 0)
    for j in range(width):
        for lane in range(width):
            mask[j * width + lane] = 1.0 if j <= lane else 0.0
    along = zero
    for k in range(0, d * width, width):
        along = fma(load(own, k), load(lam, k), along)
    for k in range(0, d * width, width):
        store(mu, k, load(lam, k) - along * load(own, k))

    lowest = splat(1e30)
    highest = splat(-1e30)
    for h in range(heads):
        acc = kept[h * (count + 2) * width :]
        block_scores(score, h, own, 0, z, 0, d, 1, square, 0)
        moderate = True
        for lane in range(width):
            moderate = moderate and square[lane] <= DIRECT_BOUND_DOUBLE * DIRECT_BOUND_DOUBLE
        store(top, 0, zero)
        if not moderate:
            _highest(table, d, causal, start, z, mask, top)
        _sums(dim, 0, causal, table, start, own, z, top, mask, part, acc)
        inverse = one / load(acc, 0)
        for lane in range(width):
            logs[lane] = math.log2(acc[lane])
        log_m = load(logs, 0) + load(top, 0)
        store(acc, 0, log_m)
        for row in range(width, count * width, width):
            store(acc, row, load(acc, row) * inverse)
        lowest = minimum(lowest, log_m)
        highest = maximum(highest, log_m)

    # The factors f; for the effective flow sum_g 1/m_g, scaled by the least m.
    bottom = splat(BOTTOM)
    limit = splat(_TOP)
    inverses = zero
    for h in range(heads):
        log_m = load(kept, h * (count + 2) * width)
        inverses = inverses + exp2(maximum(bottom, lowest - log_m))
    share = splat(sign / heads)
    weighted = zero  # sum_g m_g <V_g^T mu, M_g>, scaled by the largest m
    for h in range(heads):
        at = h * (count + 2) * width
        log_m = load(kept, at)
        f = share
        if flow == UNNORMALISED:
            f = share * splat(1.0 / n) * exp2(minimum(limit, maximum(bottom, log_m)))
        if flow == EFFECTIVE:
            f = share * splat(1.0 / heads) * inverses * exp2(minimum(limit, log_m - lowest))
        store(kept, at + count * width, f)
        inner = zero
        for k in range(d):
            tk = zero
            for row in range(d):
                tk = fma(splat(value[h, row, k]), load(mu, row * width), tk)
            inner = fma(tk, load(kept, at + (1 + k) * width), inner)
        store(kept, at + (count + 1) * width, inner)
        weighted = fma(inner, exp2(maximum(bottom, log_m - highest)), weighted)

    attention = vectors(d, out)
    gradient = vectors(d, out)
    r = vectors(d, out)
    clear_vectors(attention, 0, d)
    clear_vectors(gradient, 0, d)
    rows = table.shape[0]
    for h in range(heads):
        at = h * (count + 2) * width
        log_m = load(kept, at)
        f = load(kept, at + count * width)
        a = zero
        if flow == SOFTMAX:
            a = zero - f * load(kept, at + (count + 1) * width)
        if flow == EFFECTIVE:
            ratio = exp2(minimum(limit, highest - log_m))
            a = zero - share * splat(1.0 / heads) * ratio * weighted
        for k in range(d):  # w
            tk = zero
            for row in range(d):
                tk = fma(splat(value[h, row, k]), load(mu, row * width), tk)
            store(t, k * width, f * tk)
        for k in range(d):
            total = a * load(kept, at + (1 + k) * width)
            for line in range(d):
                low = min(k, line)
                place = 1 + d + low * d - low * (low - 1) // 2 + max(k, line) - low
                total = fma(load(kept, at + place * width), load(t, line * width), total)
            store(r, k * width, total)
        for k in range(d):
            turned = load(gradient, k * width)
            mean = load(attention, k * width)
            for line in range(d):
                turned = fma(splat(score[h, k, line]), load(r, line * width), turned)
                moment = f * load(kept, at + (1 + line) * width)
                mean = fma(splat(value[h, k, line]), moment, mean)
            store(gradient, k * width, turned)
            store(attention, k * width, mean)
        store(few, 0, f)
        store(few, width, a)
        store(few, 2 * width, log_m)
        lines = tables[p * heads + h]
        for lane in range(min(width, n - start)):
            i = start + lane
            lines[i, d] = -few[2 * width + lane]
            lines[i, d + 1] = few[width + lane]
            for k in range(d):
                lines[i, k] = own[k * width + lane]
                lines[i, d + 2 + k] = t[k * width + lane]
                rs[p, h * n + i, k] = r[k * width + lane]
                moments[p, h * n + i, k] = few[lane] * kept[at + (1 + k) * width + lane]
        for i in range(max(n, start), min(start + width, rows)):
            for k in range(2 * d + 2):
                lines[i, k] = 0.0

    radial = zero
    for k in range(0, d * width, width):
        radial = fma(load(own, k), load(attention, k), radial)
    for k in range(0, d * width, width):
        rest = along * load(attention, k) + radial * load(lam, k)
        store(gradient, k, load(gradient, k) - rest)
    for lane in range(min(width, n - start)):
        for k in range(d):
            out[p, start + lane, k] = gradient[k * width + lane]
            mus[p, start + lane, k] = mu[k * width + lane]


@loop_body
def _sources(dim, task, blocks, n, causal, features, scores, tables, out):
    """The second pass, for one block of tokens of one path and all heads: add to `out`."""
    d = value_of(dim)
    width = lanes(out)
    p = task // blocks
    start = (task - p * blocks) * width
    score = scores[p if scores.shape[0] > 1 else 0]
    heads = score.shape[0]
    zero = splat(0.0)
    log2e = splat(LOG2E)
    own = vectors(d, out)
    y = vectors(d, out)
    total = vectors(d, out)
    part = vectors(2 * d, out)
    acc = vectors(2 * d, out)
    mask = vectors(width, out)
    clear_vectors(total, 0, d)
    by_lane(features[p][:, 1 : 1 + d], n, start, own, 0)
    for j in range(width):
        for lane in range(width):
            mask[j * width + lane] = 1.0 if j >= lane else 0.0
    for h in range(heads):
        for k in range(d):
            yk = zero
            for line in range(d):
                yk = fma(splat(score[h, k, line]), load(own, line * width), yk)
            store(y, k * width, yk * log2e)
        _sums(dim, 1, causal, tables[p * heads + h], start, own, y, y, mask, part, acc)
        for k in range(d):
            tk = load(total, k * width) + load(acc, (d + k) * width)
            for line in range(d):
                tk = fma(splat(score[h, line, k]), load(acc, line * width), tk)
            store(total, k * width, tk)
    for lane in range(min(width, n - start)):
        for k in range(d):
            out[p, start + lane, k] += total[k * width + lane]


@loop_body
def _matrices(task, heads, n, left, right, out):
    """Write sum_i left_i right_hi^T of one head; `right` is (paths, heads n, d)."""
    p = task // heads
    first = (task - p * heads) * n
    d = left.shape[2]
    for k in range(d):
        for line in range(d):
            out[task, k, line] = 0.0
    for i in range(n):
        for k in range(d):
            for line in range(d):
                out[task, k, line] += left[p, i, k] * right[p, first + i, line]


@kernel(parallel=True)
def _both_passes(
    dim, x, score, value, cotangents, flow, sign, causal, workers, tasks, mus, rs, moments,
    tables, features, out, of_scores, of_values,
):  # fmt: skip
    paths, n, d = x.shape
    heads = score.shape[1]
    width = lanes(x)
    blocks = (n + width - 1) // width
    for p in range(paths):
        for i in range(features.shape[1]):
            features[p, i, 0] = 1.0 if i < n else 0.0
            for k in range(d):
                features[p, i, 1 + k] = x[p, i, k] if i < n else 0.0
            column = 1 + d
            for k in range(d):
                for line in range(k, d):
                    features[p, i, column] = features[p, i, 1 + k] * features[p, i, 1 + line]
                    column += 1
    for phase in range(3):
        count = paths * heads if phase == 2 else paths * blocks
        for worker in prange(workers):
            for task in range(worker, count, workers):
                if phase == 0:
                    call(tasks[0], (
                        dim, np.intp(task), blocks, n, causal, flow, sign, features, score, value,
                        cotangents, mus, rs, moments, tables, out,
                    ))  # fmt: skip
                elif phase == 1:
                    call(tasks[1], (
                        dim, np.intp(task), blocks, n, causal, features, score, tables, out,
                    ))  # fmt: skip
                else:
                    call(tasks[2], (np.intp(task), heads, n, x, rs, of_scores))
                    call(tasks[2], (np.intp(task), heads, n, mus, moments, of_values))


@functools.cache
def _tasks(d: int) -> tuple[int, ...]:
    """Return the addresses of the tasks of `_both_passes` for tokens in R^d."""
    _, _, cube, four = arrays(np.float64)
    how = constant_type(d), types.intp, types.intp, types.intp, types.boolean
    return (
        address(_targets, (*how, types.intp, types.float64, cube, four, four, *(cube,) * 6)),
        address(_sources, (*how, cube, four, cube, cube)),
        address(_matrices, (types.intp, types.intp, types.intp, cube, cube, cube)),
    )


def fused_adjoint(x, score, value, cotangents, flow, sign, causal):
    """Compute the cotangents of tokens, scores and values from those of the velocities.

    Parameters
    ----------
    x, cotangents : (paths, n, d) float64, x unit tokens
    score, value : (paths, heads, d, d), or (1, heads, d, d) for all paths
    flow : SOFTMAX, UNNORMALISED or EFFECTIVE; sign : -1.0 descent, 1.0 ascent; causal : bool

    Returns
    -------
    (paths, n, d), (paths, heads, d, d), (paths, heads, d, d)
    """
    paths, n, d = x.shape
    heads = score.shape[1]
    rows = -(-n // _LANES) * _LANES
    features = np.empty((paths, rows, 1 + d + d * (d + 1) // 2))
    tables = np.empty((paths * heads, rows, 2 * d + 2))
    rs, moments = np.empty((2, paths, heads * n, d))
    of_scores, of_values = np.empty((2, paths * heads, d, d))
    mus, out = np.empty((2, *x.shape))
    with threads_for(paths * heads * n * n, _PAIRS_OF_THREAD) as threads:
        _both_passes(
            constant(d), x, score, value, cotangents, flow, sign, causal, threads, _tasks(d), mus,
            rs, moments, tables, features, out, of_scores, of_values,
        )  # fmt: skip
    shape = paths, heads, d, d
    return out, of_scores.reshape(shape), of_values.reshape(shape)


def blocked_adjoint(x, score, value, cotangents, flow, sign, causal):
    """Compute `fused_adjoint` by products of matrices, for any d.

    For a block of tokens i, the weights are formed, and then all that they are transposed to: 6
    products for a pair of tokens and head. The factors of the effective flow need the sums of all
    heads, so that its weights are formed twice: 8 products. Each product is so small that BLAS
    takes one thread for it; heads are on separate threads, and added up in their order.
    """
    paths, n, _ = x.shape
    heads = score.shape[1]
    out = np.empty_like(x)
    of_scores, of_values = (np.empty((paths, *score.shape[1:])) for _ in range(2))
    with (
        threads_for(heads * n * n, _PAIRS_OF_THREAD) as threads,
        ThreadPoolExecutor(threads) as pool,
    ):
        over_heads = pool.map if threads > 1 else map
        for p, (tokens, lam) in enumerate(zip(x, cotangents, strict=True)):
            D, V = (of[p if len(of) > 1 else 0] for of in (score, value))
            along = np.einsum("ik,ik->i", tokens, lam)[:, None]
            head = functools.partial(
                _blocked_head, tokens, lam - along * tokens, flow, sign / heads, causal
            )
            given = [None] * heads
            if flow == EFFECTIVE:
                alone = zip(*over_heads(functools.partial(head, True), D, V, given), strict=True)
                given = list(zip(*effective_factors(*map(np.array, alone), sign), strict=True))
            found = over_heads(functools.partial(head, False), D, V, given)
            out[p], attention = 0.0, np.zeros_like(tokens)
            for h, of_head in enumerate(found):
                of_x, mean, of_scores[p, h], of_values[p, h] = of_head
                out[p] += of_x
                attention += mean
            radial = np.einsum("ik,ik->i", tokens, attention)[:, None]
            out[p] -= along * attention + radial * lam
    return out, of_scores, of_values


def _blocked_head(tokens, mu, flow, share, causal, alone, D, V, factors):
    """Return the part of one head: of x, of A, of D and of V; `alone` log m and <V^T mu, M>.

    factors : f and a (n,) of the effective flow
    """
    n, d = tokens.shape
    features = np.column_stack([tokens, np.ones(n)])  # whose sums are S and m
    of_x, T, attention = np.zeros((3, n, d))
    of_D, of_V = np.zeros((2, d, d))
    log_m, inner = np.empty((2, n))
    block = max(8, math.isqrt(_ONE_THREAD // (d + 1)))
    for first in range(0, n, block):
        rows = slice(first, min(first + block, n))
        columns = [slice(j, min(j + block, n)) for j in range(0, rows.stop if causal else n, block)]
        z, turned = tokens[rows] @ D, mu[rows] @ V  # D^T x, V^T mu
        moderate = np.einsum("ik,ik->i", z, z).max() <= DIRECT_BOUND_DOUBLE**2
        weights = [z @ tokens[at].T for at in columns]
        if causal:
            weights[-1][np.triu_indices(len(weights[-1]), 1)] = -np.inf
        top = np.zeros(len(weights[0]))
        if not moderate:
            top = np.max([scores.max(axis=1) for scores in weights], axis=0)
        sums = np.zeros((len(top), d + 1))
        for at, u in zip(columns, weights, strict=True):
            if not moderate:
                u -= top[:, None]
            np.exp(u, out=u)
            sums += u @ features[at]
        m = sums[:, d]
        M = sums[:, :d] / m[:, None]
        log_m[rows], inner[rows] = top + np.log(m), np.einsum("ik,ik->i", turned, M)
        if alone:
            continue
        if factors is not None:
            f, a = (of[rows] for of in factors)
        elif flow == SOFTMAX:
            f, a = np.full_like(m, share), -share * inner[rows]
        else:
            f, a = share / n * np.exp(log_m[rows]), np.zeros_like(m)
        moments = f[:, None] * M
        attention[rows] = moments @ V.T
        w = np.column_stack([f[:, None] * turned, a]) / m[:, None]
        R = np.zeros_like(M)
        for at, u in zip(columns, weights, strict=True):
            c = w @ features[at].T  # c_hij / m_hi
            of_x[at] += u.T @ w[:, :d]
            c *= u
            R += c @ tokens[at]
            T[at] += c.T @ tokens[rows]
        of_x[rows] += R @ D.T
        of_D += tokens[rows].T @ R
        of_V += mu[rows].T @ moments
    if alone:
        return log_m, inner
    for first in range(0, n, block):
        of_x[first : first + block] += T[first : first + block] @ D
    return of_x, attention, of_D, of_V


def effective_factors(log_m, inner, sign):
    """Return f and a of the effective flow from log m and <V^T mu, M>, all (heads, n)."""
    heads = len(log_m)
    low, high = log_m.min(axis=0), log_m.max(axis=0)
    f = sign / heads**2 * np.exp(log_m - low) * np.exp(low - log_m).sum(axis=0)
    weighted = (np.exp(log_m - high) * inner).sum(axis=0)
    return f, -sign / heads**2 * np.exp(high - log_m) * weighted
