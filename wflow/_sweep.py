"""The inner loop over tokens j: kernel values of one or two blocks of tokens i and their sums.

For the tokens i of a block, one per lane, and the tokens j of a range,

    m_i += sum_j U_ij w_j,   S_i += sum_j U_ij x_j,   q_i += sum_j U_ij c_ij,   U_ij = 2^<z_i, x_j>,

and, where a value serves both directions, into vectors per token j that are summed over lanes later

    M_j += U_ij,   T_j += U_ij x_i.

Cost of a pair, in multiply-adds or instructions of their price (double precision): d for the score,
13 for the exponential, d + 1 for the sums, 1 for q; d + 1 more with both directions: 21 and 25 at
d = 3. The loop is written in LLVM's terms, because the sums must stay in registers from the first j
to the last, which loops over coordinates in Numba do not achieve.
"""

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from wflow._kernel_cache import variant
from wflow._simd import (
    _VECTORS,
    _fma,
    _lane_pointer,
    _splat,
    _vector_ir,
    exp2,
    exp2_together,
    fma,
    lanes,
    load,
    splat,
    store,
)

# Tokens j that go abreast: with two blocks, eight exponentials are under way at a time, enough to
# hide the latency of each; more would not fit into the registers.
ABREAST = 4


def make_sweep(d: int, blocks: int, *, both: bool, ito: bool):
    """Intrinsic of the loop for one d, for `blocks` adjacent blocks of tokens i.

    sweep(x, weight, own, own_at, z, z_at, pair, pair_at, pair_step, columns, column_at, first,
    stop, acc, acc_at), all arrays but x (rows, d) flat, places and steps in elements, stop - first
    a multiple of ABREAST. Block b reads x_i and z_i, d vectors each, at own_at + b d lanes and
    z_at + b d lanes; c_ij, the vector of token j, at pair_at + b pair_step + j lanes. It adds
    (m, S, q), d + 2 vectors, to `acc` at acc_at + b (d + 2) lanes. With `both`, (M_j, T_j), d + 1
    vectors a token from j = first on, are added to `columns` at column_at, and the q of both blocks
    go to the first. `own` and `columns` are not read without `both`, `pair` not without `ito`.
    """

    @intrinsic
    def sweep(
        typingctx, x, weight, own, own_at, z, z_at, pair, pair_at, pair_step, columns, column_at,
        first, stop, acc, acc_at,
    ):  # fmt: skip
        vector = _VECTORS[acc.dtype]
        size = types.intp
        signature = types.none(
            x, weight, own, size, z, size, pair, size, size, columns, size, size, size, acc, size
        )

        def codegen(context, builder, sig, args):
            _emit(context, builder, vector, sig.args, args, d, blocks, both, ito)
            return context.get_dummy_value()

        return signature, codegen

    return sweep


def _emit(context, builder, vector, kinds, args, d, blocks, both, ito):
    (
        x, weight, own, own_at, z, z_at, pair, pair_at, pair_step, columns, column_at, first, stop,
        acc, acc_at,
    ) = args  # fmt: skip
    kind_of = dict(zip(map(id, args), kinds, strict=True))
    index = ir.IntType(types.intp.bitwidth)
    align = vector.dtype.bitwidth // 8

    def whole(number):
        return ir.Constant(index, number)

    def lane_pointer(array, base, count):
        """Pointer to the vector `count` vectors after element `base` of a flat array."""
        offset = builder.add(base, whole(count * vector.lanes))
        return _lane_pointer(context, builder, kind_of[id(array)], array, offset, vector)

    def load(array, base, count):
        return builder.load(lane_pointer(array, base, count), align=align)

    def add_to(array, base, count, value):
        pointer = lane_pointer(array, base, count)
        builder.store(builder.fadd(builder.load(pointer, align=align), value), pointer, align=align)

    def data(array):
        return context.make_array(kind_of[id(array)])(context, builder, array).data

    def everywhere(pointer, place):
        return _splat(builder, vector, builder.load(builder.gep(pointer, [place])))

    tokens, weights = data(x), data(weight)
    # A row of sums: block, and 0 for m, 1..d for S, d + 1 for q.
    rows = [(block, row) for block in range(blocks) for row in range(d + 1)]
    if ito:
        rows += [(block, d + 1) for block in range(1 if both else blocks)]
    zero = ir.Constant(_vector_ir(vector), [0.0] * vector.lanes)
    entry = builder.block
    body, done = (builder.append_basic_block(name) for name in ("sweep", "sweep.done"))
    builder.cbranch(builder.icmp_signed("<", first, stop), body, done)

    builder.position_at_end(body)
    j = builder.phi(index)
    before = {row: builder.phi(_vector_ir(vector)) for row in rows}
    sums = dict(before)
    turn = [builder.add(j, whole(t)) for t in range(ABREAST)]
    places = [builder.mul(token, whole(d)) for token in turn]
    pairs = [(t, block) for t in range(ABREAST) for block in range(blocks)]
    scores = {}
    for k in range(d):
        column = [everywhere(tokens, builder.add(place, whole(k))) for place in places]
        for t, block in pairs:
            zk = load(z, z_at, block * d + k)
            scores[t, block] = (
                _fma(builder, zk, column[t], scores[t, block]) if k else builder.fmul(zk, column[t])
            )
    values = exp2_together(context, builder, vector, [scores[pair] for pair in pairs])
    u = dict(zip(pairs, values, strict=True))
    # The coordinates of x_j are loaded a second time, by a pointer that LLVM cannot recognise:
    # held over the exponentials they would drive the sums out of the registers.
    again = builder.asm(
        ir.FunctionType(tokens.type, [tokens.type]), "", "=r,0", [tokens], side_effect=False
    )
    for t in range(ABREAST):
        factors = [everywhere(weights, turn[t])]
        factors += [everywhere(again, builder.add(places[t], whole(k))) for k in range(d)]
        for row, factor in enumerate(factors):
            for block in range(blocks):
                sums[block, row] = _fma(builder, u[t, block], factor, sums[block, row])
        if ito:
            here = builder.add(pair_at, builder.mul(turn[t], whole(vector.lanes)))
            for block in range(blocks):
                offset = builder.add(here, builder.mul(pair_step, whole(block)))
                row = (0 if both else block), d + 1
                sums[row] = _fma(builder, u[t, block], load(pair, offset, 0), sums[row])
        if both:
            here = builder.mul(builder.sub(turn[t], first), whole((d + 1) * vector.lanes))
            here = builder.add(column_at, here)
            for row in range(d + 1):
                total = load(columns, here, row)
                for block in range(blocks):
                    if row == 0:
                        total = builder.fadd(total, u[t, block])
                    else:
                        mine = load(own, own_at, block * d + row - 1)
                        total = _fma(builder, u[t, block], mine, total)
                builder.store(total, lane_pointer(columns, here, row), align=align)
    following = builder.add(j, whole(ABREAST))
    j.add_incoming(first, entry)
    j.add_incoming(following, body)
    for row in rows:
        before[row].add_incoming(zero, entry)
        before[row].add_incoming(sums[row], body)
    builder.cbranch(builder.icmp_signed("<", following, stop), body, done)

    builder.position_at_end(done)
    totals = {row: builder.phi(_vector_ir(vector)) for row in rows}
    for row, total in totals.items():
        total.add_incoming(zero, entry)
        total.add_incoming(sums[row], body)
    for (block, row), total in totals.items():
        add_to(acc, acc_at, block * (d + 2) + row, total)


# Dimensions with loops of their own.
DIMENSIONS = (2, 3, 4, 5, 6, 7, 8)


@njit(error_model="numpy")
def vectors(count, like):
    """Room for `count` vectors of the element type of `like`, aligned to cache lines.

    A vector that straddles two lines costs two accesses.
    """
    width = lanes(like)
    room = np.empty((count + 1) * width, like.dtype)
    skip = (-room.ctypes.data % 64) * width // 64
    return room[skip : skip + count * width]


@njit(error_model="numpy")
def clear_vectors(array, at, count):
    """Set `count` vectors of a flat array from element `at` on to zero."""
    zero = splat(array.dtype.type(0.0))
    for k in range(count):
        store(array, at + k * lanes(array), zero)


def one_way_loops(d: int):
    """Function that adds (m, S, q) of one or two blocks: the loop for d, or a plain one for d = 0.

    one_way(x, weight, z, at, pair, pair_at, pair_step, ito, blocks, first, stop, acc, acc_at), the
    arguments as for `make_sweep`. Blocks and their order do not change the bits.
    """
    if d == 0:
        return _plain
    single, single_ito, double, double_ito = (
        make_sweep(d, blocks, both=False, ito=ito) for blocks in (1, 2) for ito in (False, True)
    )

    @njit(error_model="numpy", forceinline=True)
    @variant(d)
    def one_way(
        x, weight, z, at, pair, pair_at, pair_step, ito, blocks, first, stop, acc, acc_at
    ):  # fmt: skip
        if blocks == 2 and ito:
            double_ito(x, weight, z, 0, z, at, pair, pair_at, pair_step, z, 0, first, stop, acc,
                       acc_at)  # fmt: skip
        elif blocks == 2:
            double(x, weight, z, 0, z, at, pair, pair_at, pair_step, z, 0, first, stop, acc, acc_at)
        elif ito:
            single_ito(x, weight, z, 0, z, at, pair, pair_at, pair_step, z, 0, first, stop, acc,
                       acc_at)  # fmt: skip
        else:
            single(x, weight, z, 0, z, at, pair, pair_at, pair_step, z, 0, first, stop, acc, acc_at)

    return one_way


@njit(error_model="numpy", forceinline=True)
def _plain(x, weight, z, at, pair, pair_at, pair_step, ito, blocks, first, stop, acc, acc_at):
    """The same for any d, with the sums in memory."""
    d = x.shape[1]
    width = lanes(z)
    for block in range(blocks):
        masked_sums(
            x, weight, z, at + block * d * width, pair, pair_at + block * pair_step, ito, z, -1,
            first, stop, acc, acc_at + block * (d + 2) * width,
        )  # fmt: skip


@njit(error_model="numpy")
def masked_sums(
    x, weight, z, at, pair, pair_at, ito, mask, mask_from, first, stop, acc, acc_at
):  # fmt: skip
    """Add (m, S, q) of one block for any d; from token `mask_from` >= 0 on, U is multiplied by the
    vectors of `mask`, one a token."""
    width = lanes(z)
    d = x.shape[1]
    zero = splat(z.dtype.type(0.0))
    room = vectors(d + 2, acc)
    for row in range(d + 2):
        store(room, row * width, zero)
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
        m = load(room, 0)
        m = fma(u0, splat(weight[j]), m)
        m = fma(u1, splat(weight[j + 1]), m)
        m = fma(u2, splat(weight[j + 2]), m)
        m = fma(u3, splat(weight[j + 3]), m)
        store(room, 0, m)
        for k in range(d):
            row = (1 + k) * width
            a = load(room, row)
            a = fma(u0, splat(x[j, k]), a)
            a = fma(u1, splat(x[j + 1, k]), a)
            a = fma(u2, splat(x[j + 2, k]), a)
            a = fma(u3, splat(x[j + 3, k]), a)
            store(room, row, a)
        if ito:
            row = (d + 1) * width
            place = pair_at + j * width
            q = load(room, row)
            q = fma(u0, load(pair, place), q)
            q = fma(u1, load(pair, place + width), q)
            q = fma(u2, load(pair, place + 2 * width), q)
            q = fma(u3, load(pair, place + 3 * width), q)
            store(room, row, q)
    for row in range(d + 2):
        at_row = acc_at + row * width
        store(acc, at_row, load(acc, at_row) + load(room, row * width))
