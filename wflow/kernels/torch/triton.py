"""The particle sums as one Triton kernel, for CUDA and small d.

A program is one warp: 32 consecutive rows of the list of all (path, token) pairs, one row per lane,
and one group of heads. It walks through all tokens j of the lane's path with (m, S, q) of a few
heads in registers, and folds each head into the running sums of its row as `headsums.absorb` does:
no array of size heads x n exists. Per pair and head, in multiply-adds of double precision, d for
the score, 14 for the exponential, d + 2 for the sums, d + 2 for r under noise; the d + 1 for
1 + <x_i, x_j>^2 are shared by the heads of a group: 24 at d = 3 without r. A row's sums are formed
by one lane in a fixed order, so they depend neither on the rows beside it nor on the card's load.

All constants are made by `tl.full`: elsewhere Triton takes a Python float for single precision.
"""
# Triton joins tuples by + only, and a name may hold tuples of several lengths.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc"

import math

import torch
import triton
import triton.language as tl

# Rows per program. With one row per lane each lane reads back only what it wrote itself, so the
# running sums may live in global memory without a barrier.
_ROWS = 32
# Groups of heads that are summed apart, so that few tokens fill a card; tokens j per partial sum,
# so that rounding does not grow with n. Constants, since the order of summation follows them.
_GROUPS, _CHUNK = 4, 2048
LOG2E = tl.constexpr(math.log2(math.e))
# Bounds on |D^T x| and floors of exponents as in wflow.kernels.pairs.sweep.
_BOUND_DOUBLE, _BOUND_SINGLE = tl.constexpr(64.0), tl.constexpr(24.0)
_FLOOR_DOUBLE, _FLOOR_SINGLE = tl.constexpr(-1000.0), tl.constexpr(-120.0)
_LOWEST = tl.constexpr(-1e30)


@triton.jit
def _number(value: tl.constexpr, like):
    return tl.full(like.shape, value, like.dtype)


@triton.jit
def exp2(s):
    """Return 2^s for s in the range of normal numbers: in double precision as `simd.exp2`."""
    if s.dtype == tl.float32:
        power = tl.exp2(s)  # an instruction of the card, right to 2 units in the last place
    else:
        magic = _number(
            6755399441055744.0, s
        )  # 1.5 * 2^52: leaves the integer part in the low bits
        shifted = s + magic
        r = s - (shifted - magic)
        power = _number(4.4549605981865186e-10, s)
        power = tl.fma(power, r, _number(7.072585949269223e-09, s))
        power = tl.fma(power, r, _number(1.0178062445845774e-07, s))
        power = tl.fma(power, r, _number(1.321544258792169e-06, s))
        power = tl.fma(power, r, _number(1.525273382983612e-05, s))
        power = tl.fma(power, r, _number(0.0001540353044173605, s))
        power = tl.fma(power, r, _number(0.0013333558146416936, s))
        power = tl.fma(power, r, _number(0.009618129107606888, s))
        power = tl.fma(power, r, _number(0.0555041086648216, s))
        power = tl.fma(power, r, _number(0.24022650695910097, s))
        power = tl.fma(power, r, _number(0.6931471805599453, s))
        power = tl.fma(power, r, _number(1.0, s))
        exponent = shifted.to(tl.int64, bitcast=True) << 52
        power = (power.to(tl.int64, bitcast=True) + exponent).to(tl.float64, bitcast=True)
    return power


@triton.jit
def _larger(a, b):
    """Return the larger of a and b; no number where either is none."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _exp(s):
    """Return e^s rounded in double precision, whatever the working precision."""
    return tl.exp(s.to(tl.float64)).to(s.dtype)


@triton.jit
def _sweep(
    cloud, own, z, noisy, i, first, stop,
    d: tl.constexpr, together: tl.constexpr, ito: tl.constexpr, noise: tl.constexpr,
    causal: tl.constexpr, unroll: tl.constexpr,
):  # fmt: skip
    """Return (m, S_1..S_d, q, r) of `together` heads over first <= j < stop, without a shift.

    z and noisy hold log2(e) D^T x_i and N^T x_i of each head.
    """
    width: tl.constexpr = d + 1 + ito + noise
    zero = own[0] - own[0]
    one = _number(1.0, zero)
    sums = ()
    for _ in tl.static_range(together * width):
        sums = sums + (_number(0.0, zero),)
    token = cloud + first * d
    for j in tl.range(first, stop, loop_unroll_factor=unroll):
        y = ()
        for k in tl.static_range(d):
            y = y + (tl.load(token + k),)
        token = token + d
        pair = one
        if ito:
            c = own[0] * y[0]
            for k in tl.static_range(1, d):
                c = tl.fma(own[k], y[k], c)
            pair = tl.fma(c, c, one)
        fresh = ()
        for a in tl.static_range(together):
            s = z[a * d] * y[0]
            for k in tl.static_range(1, d):
                s = tl.fma(z[a * d + k], y[k], s)
            u = exp2(s)
            if causal:
                u = tl.where(j <= i, u, _number(0.0, u))
            fresh = fresh + (sums[a * width] + u,)
            for k in tl.static_range(d):
                fresh = fresh + (tl.fma(u, y[k], sums[a * width + 1 + k]),)
            if ito:
                fresh = fresh + (tl.fma(u, pair, sums[a * width + 1 + d]),)
            if noise:
                b = noisy[a * d] * y[0]
                for k in tl.static_range(1, d):
                    b = tl.fma(noisy[a * d + k], y[k], b)
                fresh = fresh + (tl.fma(u * b, b, sums[a * width + 2 + d]),)
        sums = fresh
    return sums


@triton.jit
def _moderate(
    cloud, own, z, noisy, i, stop, d: tl.constexpr, together: tl.constexpr, ito: tl.constexpr,
    noise: tl.constexpr, causal: tl.constexpr, unroll: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Return the sweep over the tokens 0 <= j < stop, chunk by chunk."""
    sums = _sweep(
        cloud, own, z, noisy, i, 0, tl.minimum(chunk, stop), d, together, ito, noise, causal, unroll
    )
    for first in range(chunk, stop, chunk):
        last = tl.minimum(first + chunk, stop)
        part = _sweep(cloud, own, z, noisy, i, first, last, d, together, ito, noise, causal, unroll)
        fresh = ()
        for k in tl.static_range(together * (d + 1 + ito + noise)):
            fresh = fresh + (sums[k] + part[k],)
        sums = fresh
    return sums


@triton.jit
def _images(cloud, own, matrix, i, d: tl.constexpr):
    """Return M^T x_i of the matrix M at a pointer."""
    z = ()
    for _ in tl.static_range(d):
        z = z + (_number(0.0, own[0]),)
    for r in range(d):
        xr = tl.load(cloud + (i * d + r))
        fresh = ()
        for k in tl.static_range(d):
            fresh = fresh + (tl.fma(tl.load(matrix + (r * d + k)), xr, z[k]),)
        z = fresh
    return z


@triton.jit
def _head_scores(cloud, own, matrix, i, d: tl.constexpr):
    """Return log2(e) D^T x_i of one head, and |D^T x_i|^2."""
    zero = _number(0.0, own[0])
    z = _images(cloud, own, matrix, i, d)
    square = zero
    scaled = ()
    for k in tl.static_range(d):
        square = tl.fma(z[k], z[k], square)
        scaled = scaled + (z[k] * _number(LOG2E, zero),)
    return scaled, square


@triton.jit
def _take(values, first: tl.constexpr, count: tl.constexpr):
    """Return the `count` entries of a tuple from `first` on."""
    taken = ()
    for k in tl.static_range(count):
        taken = taken + (values[first + k],)
    return taken


@triton.jit
def _choose(condition, values, others, count: tl.constexpr):
    """Return entries of the first tuple where the condition holds, of the second elsewhere."""
    chosen = ()
    for k in tl.static_range(count):
        chosen = chosen + (tl.where(condition, values[k], others[k]),)
    return chosen


@triton.jit
def _add_product(high, low, a, b):
    """Return (high + low) + a b, carried in twice the working precision (Dekker, Knuth)."""
    product = a * b
    error = tl.fma(a, b, _number(0.0, product) - product)
    total = high + product
    back = total - high
    return total, low + (((high - (total - back)) + (product - back)) + error)


@triton.jit
def _score(cloud, j, z, z_low, d: tl.constexpr):
    """Return <z + z_low, x_j> in twice the working precision, as (high, low)."""
    high = _number(0.0, z[0])
    low = _number(0.0, z[0])
    for k in tl.static_range(d):
        y = tl.load(cloud + (j * d + k))
        high, low = _add_product(high, low, z[k], y)
        low = tl.fma(z_low[k], y, low)
    return high, low


@triton.jit
def _shifted(
    cloud, own, matrix, noisy, i, stop, d: tl.constexpr, ito: tl.constexpr, noise: tl.constexpr,
    causal: tl.constexpr,
):  # fmt: skip
    """Return (m, S_1..S_d, q, r) exp(-shift) of one head, and shift = max_j <x_i, D x_j>.

    As `sweep._shifted`: two passes with scores in twice the working precision.
    """
    zero = _number(0.0, own[0])
    log2e = _number(LOG2E, zero)
    bottom = _number(_FLOOR_SINGLE if zero.dtype == tl.float32 else _FLOOR_DOUBLE, zero)
    z = ()
    z_low = ()
    for _ in tl.static_range(d):
        z = z + (zero,)
        z_low = z_low + (zero,)
    for r in range(d):
        xr = tl.load(cloud + (i * d + r))
        highs = ()
        lows = ()
        for k in tl.static_range(d):
            high, low = _add_product(z[k], z_low[k], tl.load(matrix + (r * d + k)), xr)
            highs = highs + (high,)
            lows = lows + (low,)
        z = highs
        z_low = lows
    top = _number(_LOWEST, zero)
    for j in range(stop):
        high, low = _score(cloud, j, z, z_low, d)
        if causal:
            high = tl.where(j <= i, high, _number(_LOWEST, zero))
        top = _larger(top, high)
    sums = ()
    for _ in tl.static_range(d + 1 + ito + noise):
        sums = sums + (zero,)
    for j in range(stop):
        high, low = _score(cloud, j, z, z_low, d)
        s = ((high - top) + low) * log2e
        u = tl.where(s != s, s, exp2(_larger(s, bottom)))  # `exp2` need not keep what is no number
        if causal:
            u = tl.where(j <= i, u, zero)
        fresh = (sums[0] + u,)
        c = zero
        b = zero
        for k in tl.static_range(d):
            y = tl.load(cloud + (j * d + k))
            c = tl.fma(own[k], y, c)
            if noise:
                b = tl.fma(noisy[k], y, b)
            fresh = fresh + (tl.fma(u, y, sums[1 + k]),)
        if ito:
            fresh = fresh + (tl.fma(u, tl.fma(c, c, _number(1.0, zero)), sums[1 + d]),)
        if noise:
            fresh = fresh + (tl.fma(u * b, b, sums[2 + d]),)
        sums = fresh
    return sums, top


@triton.jit
def _times(matrices, at, sums, d: tl.constexpr):
    """Return <row of a matrix, S>; the row starts at element `at`."""
    total = tl.load(matrices + at) * sums[1]
    for r in tl.static_range(1, d):
        total = tl.fma(tl.load(matrices + (at + r)), sums[1 + r], total)
    return total


@triton.jit(do_not_specialize=["rows", "n", "heads"])
def _group_sums(
    x, score, value, drift, moved, noise, sigma2, state, rows, n, heads,
    d: tl.constexpr, together: tl.constexpr, unroll: tl.constexpr, has_drift: tl.constexpr,
    has_moved: tl.constexpr, has_noise: tl.constexpr, ito: tl.constexpr, causal: tl.constexpr,
    any_size: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Write the running sums of one block of rows over one group of heads into `state`.

    state (groups, fields, rows): attention (d), gradient (d) and `tiles.SCALARS`.
    Without `any_size` every |D^T x| must lie within the bound, and no scale is kept.
    """
    second: tl.constexpr = ito and has_noise
    width: tl.constexpr = d + 1 + ito + second
    fields: tl.constexpr = 2 * d + 10
    row = tl.program_id(0) * block + tl.arange(0, block)
    inside = row < rows
    row = tl.minimum(row, rows - 1)
    path = row // n
    i = row - path * n
    cloud = x + path.to(tl.int64) * n * d
    mine = state + tl.program_id(1).to(tl.int64) * fields * rows + row
    stop = n
    if causal:
        stop = tl.max(i, axis=0) + 1

    own = ()
    for k in tl.static_range(d):
        own = own + (tl.load(cloud + (i * d + k)),)
    zero = _number(0.0, own[0])
    one = _number(1.0, zero)
    bound = _number(_BOUND_SINGLE if zero.dtype == tl.float32 else _BOUND_DOUBLE, zero)
    for field in range(2 * d):
        tl.store(mine + field * rows.to(tl.int64), zero, mask=inside)
    inverse = zero
    e_gradient = zero
    e_inverse = zero
    if any_size:
        e_gradient = _number(_LOWEST, zero)
        e_inverse = e_gradient
    energy = zero
    power = zero
    q_total = zero
    increment = zero
    variation = zero
    work = zero
    largest = zero

    turns = (heads + together - 1) // together
    groups = tl.num_programs(1)
    begin = tl.program_id(1) * turns // groups * together
    end = (tl.program_id(1) + 1) * turns // groups * together
    for head in range(begin, end, together):
        z = ()
        noisy = ()
        squares = ()
        for a in tl.static_range(together):
            place = (path.to(tl.int64) * heads + tl.minimum(head + a, heads - 1)) * d * d
            scaled, square = _head_scores(cloud, own, score + place, i, d)
            z = z + scaled
            squares = squares + (square,)
            if second:
                noisy = noisy + _images(cloud, own, noise + place, i, d)
        sums = _moderate(
            cloud, own, z, noisy, i, stop, d, together, ito, second, causal, unroll, chunk
        )

        for a in tl.static_range(together):
            if head + a < heads:
                matrix = (path.to(tl.int64) * heads + (head + a)) * d * d
                acc = _take(sums, a * width, width)
                keep_inverse = one
                add_inverse = one
                keep_gradient = one
                add_gradient = one
                grow = one
                if any_size:
                    shift = zero
                    moderate = squares[a] <= bound * bound  # false where it is no number
                    if tl.min(moderate.to(tl.int32), axis=0) == 0:
                        mine_noisy = ()
                        if second:
                            mine_noisy = _take(noisy, a * d, d)
                        other, top = _shifted(
                            cloud, own, score + matrix, mine_noisy, i, stop, d, ito, second, causal
                        )
                        acc = _choose(moderate, acc, other, width)
                        shift = tl.where(moderate, zero, top)
                    after = _larger(e_inverse, zero - shift)
                    keep_inverse = _exp(e_inverse - after)
                    add_inverse = _exp((zero - shift) - after)
                    e_inverse = after
                    after = _larger(e_gradient, shift)
                    keep_gradient = _exp(e_gradient - after)
                    add_gradient = _exp(shift - after)
                    e_gradient = after
                    grow = _exp(shift)
                over_m = one / acc[0]
                inverse = tl.fma(add_inverse, over_m, inverse * keep_inverse)
                head_power = zero
                head_increment = zero
                head_work = zero
                for axis in range(d):
                    at = matrix + axis * d
                    ds = _times(value, at, acc, d)
                    xk = tl.load(cloud + (i * d + axis))
                    total = mine + axis * rows.to(tl.int64)
                    before = tl.load(total, mask=inside, other=0.0)
                    tl.store(total, tl.fma(ds, over_m, before), mask=inside)
                    total = mine + (d + axis) * rows.to(tl.int64)
                    before = tl.load(total, mask=inside, other=0.0)
                    if any_size:
                        before = before * keep_gradient
                    tl.store(total, tl.fma(add_gradient, ds, before), mask=inside)
                    if has_drift:
                        head_power = tl.fma(xk, _times(drift, at, acc, d), head_power)
                    if has_noise:
                        head_increment = tl.fma(xk, _times(noise, at, acc, d), head_increment)
                    if has_moved:
                        head_work = tl.fma(xk, _times(moved, at, acc, d), head_work)
                energy = tl.fma(acc[0], grow, energy)
                if has_drift:  # 0 grow is no number where grow is infinite
                    power = tl.fma(head_power, grow, power)
                if has_noise:
                    increment = tl.fma(head_increment, grow, increment)
                if has_moved:
                    work = tl.fma(head_work, grow, work)
                if ito:
                    size = tl.load(sigma2 + (path.to(tl.int64) * heads + (head + a)))
                    q_total = tl.fma(acc[d + 1] * size, grow, q_total)
                if second:
                    variation = tl.fma(acc[d + 2], grow, variation)
                largest = _larger(largest, squares[a])

    rest = mine + 2 * d * rows.to(tl.int64)
    tl.store(rest, inverse, mask=inside)
    tl.store(rest + rows.to(tl.int64), e_gradient, mask=inside)
    tl.store(rest + 2 * rows.to(tl.int64), e_inverse, mask=inside)
    tl.store(rest + 3 * rows.to(tl.int64), energy, mask=inside)
    tl.store(rest + 4 * rows.to(tl.int64), power, mask=inside)
    tl.store(rest + 5 * rows.to(tl.int64), q_total, mask=inside)
    tl.store(rest + 6 * rows.to(tl.int64), increment, mask=inside)
    tl.store(rest + 7 * rows.to(tl.int64), variation, mask=inside)
    tl.store(rest + 8 * rows.to(tl.int64), work, mask=inside)
    tl.store(rest + 9 * rows.to(tl.int64), largest, mask=inside)


def heads_and_unroll(d: int, heads: int, double: bool) -> tuple[int, int]:
    """Return heads that share the loads of a token j, and tokens j per turn of the inner loop.

    As many as registers allow: at d = 3 a lane takes 128 of its 255, so that 16 warps fit on a
    multiprocessor, each with 8 (double) or 16 (single precision) exponentials in flight.
    """
    if double:
        together, unroll = (2, 4) if d <= 4 else (1, 2 if d <= 8 else 1)
    else:
        together, unroll = (4, 4) if d <= 4 else (2, 2 if d <= 8 else 1)
    while together > heads:
        together //= 2
    return together, unroll


def signature(kind: str) -> dict[str, str]:
    """Return types of the kernel's run-time arguments for the element type "fp64" or "fp32"."""
    arrays = ("x", "score", "value", "drift", "moved", "noise", "sigma2", "state")
    return dict.fromkeys(arrays, f"*{kind}") | dict.fromkeys(("rows", "n", "heads"), "i32")


def options(
    d: int, heads: int, double: bool, *, ledger: tuple[bool, bool, bool, bool], causal: bool,
    any_size: bool,
) -> dict[str, int | bool]:  # fmt: skip
    """Return compile-time arguments; `ledger`: drift, moved, noise, sigma2 are given."""
    together, unroll = heads_and_unroll(d, heads, double)
    names = ("has_drift", "has_moved", "has_noise", "ito")
    return {"d": d, "together": together, "unroll": unroll, "causal": causal, "any_size": any_size,
            "block": _ROWS, "chunk": _CHUNK} | dict(zip(names, ledger, strict=True))  # fmt: skip


# Every multiply-add is asked for by name, so that a bit does not depend on the compiler's choice
# and the sums of twice the precision are what they say.
LAUNCH = {"num_warps": _ROWS // 32, "enable_fp_fusion": False}


def group_sums(
    x: torch.Tensor, score: torch.Tensor, value: torch.Tensor, drift: torch.Tensor,
    noise: torch.Tensor, sigma2: torch.Tensor, causal: bool, any_size: bool,
) -> torch.Tensor:  # fmt: skip
    """Return running sums over heads of every token, group by group of heads.

    Parameters
    ----------
    x : (paths, n, d), d <= 16; the others as in `sums.device_sums`, contiguous
    any_size : whether a score may leave the bounds of `pairs.sweep`

    Returns
    -------
    (groups, 2 d + 10, paths, n), the fields of `tiles`
    """
    paths, n, d = x.shape
    heads = score.shape[1]
    rows = paths * n
    drift, moved = (part.contiguous() for part in (drift[:, :heads], drift[:, heads:]))
    of_drift, of_move, of_noise, ito = (a.shape[1] > 0 for a in (drift, moved, noise, sigma2))
    chosen = options(
        d,
        heads,
        x.dtype == torch.float64,
        ledger=(of_drift, of_move, of_noise, ito),
        causal=causal,
        any_size=any_size,
    )
    groups = min(_GROUPS, -(-heads // chosen["together"]))
    state = torch.empty((groups, 2 * d + 10, rows), dtype=x.dtype, device=x.device)
    _group_sums[(-(-rows // _ROWS), groups)](
        x, score, value, drift, moved, noise, sigma2, state, rows, n, heads, **chosen, **LAUNCH
    )
    return state.view(groups, 2 * d + 10, paths, n)
