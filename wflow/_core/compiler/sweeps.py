"""The inner loop of the exact sums over tokens j, in LLVM's terms.

For the tokens i of a block, one per lane, and the tokens j of a range,

    m_i += sum_j U_ij w_j,  S_i += sum_j U_ij x_j,  q_i += sum_j U_ij c_ij,
    r_i += sum_j U_ij <b_i, x_j>^2,  U_ij = 2^<z_i, x_j>,

and, where a value serves both directions, into vectors per token j that are summed over lanes
later

    M_j += U_ij,   T_j += U_ij x_i.

Cost of a pair, in multiply-adds or instructions of their price (double precision): d for the
score, 13 for the exponential, d + 1 for the sums, 1 for q, d + 2 for r; d + 1 more with both
directions: 21 and 25 at d = 3 without r. The loop is written in LLVM's terms, because the sums must
stay in registers from the first j to the last, which loops over coordinates in Numba do not
achieve. UNROLL tokens j are treated per iteration: with two blocks, eight exponentials are computed
at a time, enough to hide the latency of each; more would not fit into the registers.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wflow._core.compiler.vectors import (
    VECTORS,
    exp2_together,
    float_ir,
    fma_ir,
    lane_pointer,
    native_lanes,
    splat_ir,
)

SUMS = 3  # of a head and token beside S: m, q and r
UNROLL = 4
# Where a vector is several registers, the loop runs for one register of each block after another,
# with so many exponentials at a time: four, or eight for those d, both and bits that are faster so
# with AVX2, by about a tenth in double precision and a quarter in single.
_UNROLL_NARROW = 4
_TWICE = {(3, True, 64), (3, False, 64), (3, True, 32), (8, True, 64), (8, False, 64)}


@intrinsic(prefer_literal=True)
def sweep(
    typingctx, dim, blocks, both, ito, weighted, vectors, x, weight, own, own_at, z, z_at, noisy,
    pair, pair_at, pair_step, columns, column_at, first, stop, acc, acc_at,
):  # fmt: skip
    """The loop for `blocks` adjacent blocks of tokens i.

    The first six are known when it is compiled: literals, or numbers made by `constant`. All arrays
    but x (rows, dim) are flat, places and steps are in elements, stop - first is a multiple of
    UNROLL. Block b reads x_i, and z_i and b_i (in `noisy`), dim vectors each, at own_at + b dim
    lanes and z_at + b dim lanes; c_ij, the vector of token j, at pair_at + b pair_step + j lanes.
    It adds (m, S, q, r), dim + SUMS vectors, to `acc` at acc_at + b (dim + SUMS) lanes. With
    `both`, (M_j, T_j), dim + 1 vectors a token from j = first on, are added to `columns` at
    column_at, and the q and r of both blocks go to the first. `ito` is 0 without q and r, or the
    number of times that a pair is met in r, 1 or 2, by which r is divided. `own` and `columns` are
    not read without `both`, `pair` and `noisy` not without `ito`.

    The weights w_j multiply m alone and are 1, or 0 for padding. With `weighted` (not with `both`)
    they are any numbers and multiply S and q too. Without `vectors` S is left as it is. For dim = 0
    there is no loop: the caller has another one.
    """
    known = dim, blocks, both, ito, weighted, vectors
    vector = VECTORS[acc.dtype]
    size = types.intp
    signature = types.none(
        *known, x, weight, own, size, z, size, noisy, pair, size, size, columns, size, size, size,
        acc, size,
    )  # fmt: skip

    def codegen(context, builder, sig, args):
        numbers = [_known(number) for number in known]
        if numbers[0] > 0:
            _emit(context, builder, vector, sig.args[6:], args[6:], *numbers)
        return context.get_dummy_value()

    return signature, codegen


def _known(number: types.UniTuple | types.Literal) -> Any:
    """The value of a literal, or of a `constant`."""
    return number.count - 1 if isinstance(number, types.UniTuple) else number.literal_value


def _emit(
    context, builder, vector, kinds, args, d, blocks, both, ito, weighted, vectors
):  # fmt: skip
    """The loop, for as many lanes at a time as a register of the processor has."""
    lanes, piece = vector.lanes, native_lanes(context, vector.dtype)
    index = ir.IntType(types.intp.bitwidth)
    start = ir.Constant(index, 0)
    rest = context, builder, vector, kinds, args, d, blocks, both, ito, weighted, vectors
    if piece == lanes:
        _emit_lanes(*rest, start, lanes, UNROLL)
        return
    entry, body = builder.block, builder.append_basic_block("lanes")
    builder.branch(body)
    builder.position_at_end(body)
    lane = builder.phi(index)
    # Tokens j per iteration, so that the exponentials and the sums fit into the registers.
    together = _UNROLL_NARROW * (2 if (d, both, vector.dtype.bitwidth) in _TWICE else 1)
    _emit_lanes(*rest, lane, piece, min(together // blocks, UNROLL))
    following = builder.add(lane, ir.Constant(index, piece))
    lane.add_incoming(start, entry)
    lane.add_incoming(following, builder.block)
    done = builder.append_basic_block("lanes.done")
    builder.cbranch(builder.icmp_signed("<", following, ir.Constant(index, lanes)), body, done)
    builder.position_at_end(done)


def _emit_lanes(
    context, builder, vector, kinds, args, d, blocks, both, ito, weighted, vectors, lane, piece,
    unroll,
):  # fmt: skip
    """The loop for the lanes lane <= i < lane + piece of each block."""
    (
        x, weight, own, own_at, z, z_at, noisy, pair, pair_at, pair_step, columns, column_at, first,
        stop, acc, acc_at,
    ) = args  # fmt: skip
    kind_of = dict(zip(map(id, args), kinds, strict=True))
    index = ir.IntType(types.intp.bitwidth)
    kind = ir.VectorType(float_ir(vector.dtype), piece)
    align = vector.dtype.bitwidth // 8

    def whole(number):
        return ir.Constant(index, number)

    def data(array):
        return context.make_array(kind_of[id(array)])(context, builder, array).data

    def pointer_to(array, base, count):
        """Pointer to these lanes of the vector `count` vectors after element `base` of an array."""
        offset = builder.add(builder.add(base, lane), whole(count * vector.lanes))
        return lane_pointer(context, builder, kind_of[id(array)], array, offset, kind)

    def load(array, base, count):
        return builder.load(pointer_to(array, base, count), align=align)

    def add_to(array, base, count, value):
        pointer = pointer_to(array, base, count)
        builder.store(builder.fadd(builder.load(pointer, align=align), value), pointer, align=align)

    def everywhere(pointer, place):
        return splat_ir(builder, kind, builder.load(builder.gep(pointer, [place])))

    tokens, weights = data(x), data(weight)
    # A row of sums: block, and 0 for m, 1..d for S, d + 1 for q, d + 2 for r.
    of_block = d + 1 if vectors else 1
    rows = [(block, row) for block in range(blocks) for row in range(of_block)]
    if ito:
        rows += [(block, d + more) for block in range(1 if both else blocks) for more in (1, 2)]
    zero = ir.Constant(kind, [0.0] * piece)
    entry = builder.block
    body, done = (builder.append_basic_block(name) for name in ("sweep", "sweep.done"))
    builder.cbranch(builder.icmp_signed("<", first, stop), body, done)

    builder.position_at_end(body)
    j = builder.phi(index)
    before = {row: builder.phi(kind) for row in rows}
    sums = dict(before)
    turn = [builder.add(j, whole(t)) for t in range(unroll)]
    places = [builder.mul(token, whole(d)) for token in turn]
    pairs = [(t, block) for t in range(unroll) for block in range(blocks)]
    scores = {}
    for k in range(d):
        column = [everywhere(tokens, builder.add(place, whole(k))) for place in places]
        for t, block in pairs:
            zk = load(z, z_at, block * d + k)
            scores[t, block] = (
                fma_ir(builder, zk, column[t], scores[t, block])
                if k
                else builder.fmul(zk, column[t])
            )
    values = exp2_together(context, builder, vector.dtype, [scores[pair] for pair in pairs])
    u = dict(zip(pairs, values, strict=True))
    # The coordinates of x_j are loaded a second time, by a pointer that LLVM cannot recognise:
    # held over the exponentials they would drive the sums out of the registers.
    again = builder.asm(
        ir.FunctionType(tokens.type, [tokens.type]), "", "=r,0", [tokens], side_effect=False
    )
    for t in range(unroll):
        factors = [everywhere(weights, turn[t])]
        factors += [
            everywhere(again, builder.add(places[t], whole(k))) for k in range(of_block - 1)
        ]
        for row, factor in enumerate(factors):
            for block in range(blocks):
                if weighted and row == 0:
                    u[t, block] = builder.fmul(u[t, block], factor)
                    sums[block, 0] = builder.fadd(sums[block, 0], u[t, block])
                else:
                    sums[block, row] = fma_ir(builder, u[t, block], factor, sums[block, row])
        if ito:
            here = builder.add(pair_at, builder.mul(turn[t], whole(vector.lanes)))
            for block in range(blocks):
                offset = builder.add(here, builder.mul(pair_step, whole(block)))
                row = (0 if both else block), d + 1
                sums[row] = fma_ir(builder, u[t, block], load(pair, offset, 0), sums[row])
                along = builder.fmul(load(noisy, z_at, block * d), factors[1])
                for k in range(1, d):
                    along = fma_ir(builder, load(noisy, z_at, block * d + k), factors[1 + k], along)
                row = row[0], d + 2
                sums[row] = fma_ir(builder, builder.fmul(u[t, block], along), along, sums[row])
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
                        total = fma_ir(builder, u[t, block], mine, total)
                builder.store(total, pointer_to(columns, here, row), align=align)
    following = builder.add(j, whole(unroll))
    j.add_incoming(first, entry)
    j.add_incoming(following, body)
    for row in rows:
        before[row].add_incoming(zero, entry)
        before[row].add_incoming(sums[row], body)
    builder.cbranch(builder.icmp_signed("<", following, stop), body, done)

    builder.position_at_end(done)
    totals = {row: builder.phi(kind) for row in rows}
    for row, total in totals.items():
        total.add_incoming(zero, entry)
        total.add_incoming(sums[row], body)
    for (block, row), total in totals.items():
        if row == d + 2 and ito == 2:
            total = builder.fmul(total, ir.Constant(kind, [0.5] * piece))
        add_to(acc, acc_at, block * (d + SUMS) + row, total)
