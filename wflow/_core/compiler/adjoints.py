"""The inner loop of the adjoint sums over tokens j, in LLVM's terms, as that of `sweeps`."""

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

BOTTOM = -1000.0  # exponent of 2 below which a weight is lost
# Tokens of an iteration: as many exponentials as hide the latency of each and fit the registers.
_TOGETHER, _TOGETHER_NARROW = 8, 4


@intrinsic(prefer_literal=True)
def adjoint_sweep(
    typingctx, dim, back, masked, table, own, own_at, z, shift, mask, first, stop, acc
):  # fmt: skip
    """Sum the tokens first <= j < stop, some at a time, for one block of tokens i in the lanes.

    dim : a `constant`; back, masked : literals. u_ij = 2^(<z_i, x_j> - shift), times the vector of
    token j - first in `mask` if masked. Added to `acc` are

    back = 0 : table (rows, 1 + d + d (d + 1)/2) of 1, x_j and the products x_jk x_jl, k <= l; shift
        is the vector in `shift`; sum_j u_ij times each column
    back = 1 : table (rows, 2 d + 2) of x_j, -shift_j, a_j, w_j; with c = <x_i, w_j> + a_j,
        sum_j u_ij c x_j and sum_j u_ij w_j
    """
    vector = VECTORS[acc.dtype]
    size = types.intp
    signature = types.none(
        dim, back, masked, table, own, size, z, shift, mask, size, size, acc
    )  # fmt: skip

    def codegen(context, builder, sig, args):
        d = sig.args[0].count - 1
        turned, hides = (sig.args[at].literal_value for at in (1, 2))
        piece = native_lanes(context, vector.dtype)
        for lane in range(0, vector.lanes, piece):
            _emit(context, builder, vector, sig.args[3:], args[3:], d, turned, hides, lane, piece)
        return context.get_dummy_value()

    return signature, codegen


def _emit(context, builder, vector, kinds, args, d, back, masked, lane, piece):
    """The loop of `adjoint_sweep` for the lanes lane <= i < lane + piece."""
    table, own, own_at, z, shift, mask, first, stop, acc = args
    kind_of = dict(zip(map(id, args), kinds, strict=True))
    index = ir.IntType(types.intp.bitwidth)
    kind = ir.VectorType(float_ir(vector.dtype), piece)
    align = vector.dtype.bitwidth // 8

    def whole(number):
        return ir.Constant(index, number)

    def place(array, count, base=None):
        offset = whole(count * vector.lanes + lane)
        offset = offset if base is None else builder.add(base, offset)
        return lane_pointer(context, builder, kind_of[id(array)], array, offset, kind)

    def vector_of(array, count, base=None):
        return builder.load(place(array, count, base), align=align)

    together = _TOGETHER if piece == vector.lanes else _TOGETHER_NARROW
    columns = 2 * d + 2 if back else 1 + d + d * (d + 1) // 2
    data = context.make_array(kind_of[id(table)])(context, builder, table).data
    count = 2 * d if back else columns
    scores = [vector_of(z, k) for k in range(d)]
    mine = [vector_of(own, k, own_at) for k in range(d)] if back else []
    lift = None if back else builder.fsub(
        ir.Constant(kind, [0.0] * piece), vector_of(shift, 0)
    )  # fmt: skip
    before = [vector_of(acc, row) for row in range(count)]
    bottom = ir.Constant(kind, [BOTTOM] * piece)
    entry = builder.block
    body, done = (builder.append_basic_block(name) for name in ("adjoint", "adjoint.done"))
    builder.cbranch(builder.icmp_signed("<", first, stop), body, done)

    builder.position_at_end(body)
    j = builder.phi(index)
    running = [builder.phi(kind) for _ in range(count)]
    sums = list(running)
    # As in the sweep of the velocities: what a token is multiplied by is loaded again for the sums,
    # by a pointer that LLVM cannot recognise, so that it takes no register over the exponentials.
    again = builder.asm(
        ir.FunctionType(data.type, [data.type]), "", "=r,0", [data], side_effect=False
    )

    def everywhere(pointer, token, column):
        at = builder.add(builder.mul(token, whole(columns)), whole(column))
        return splat_ir(builder, kind, builder.load(builder.gep(pointer, [at])))

    turn = [builder.add(j, whole(t)) for t in range(together)]
    exponents = []
    for token in turn:
        s = everywhere(data, token, d) if back else lift
        for k in range(d):
            s = fma_ir(builder, scores[k], everywhere(data, token, k if back else 1 + k), s)
        inside = builder.fcmp_ordered(">", s, bottom)
        exponents.append(builder.select(inside, s, bottom))
    weights = exp2_together(context, builder, vector.dtype, exponents)
    for t, token in enumerate(turn):
        u = weights[t]
        if masked:
            base = builder.mul(builder.sub(token, first), whole(vector.lanes))
            u = builder.fmul(u, vector_of(mask, 0, base))
        if not back:
            for row in range(count):
                sums[row] = fma_ir(builder, u, everywhere(again, token, row), sums[row])
            continue
        w = [everywhere(again, token, d + 2 + k) for k in range(d)]
        c = everywhere(again, token, d + 1)
        for k in range(d):
            c = fma_ir(builder, mine[k], w[k], c)
        e = builder.fmul(u, c)
        for k in range(d):
            sums[k] = fma_ir(builder, e, everywhere(again, token, k), sums[k])
            sums[d + k] = fma_ir(builder, u, w[k], sums[d + k])
    following = builder.add(j, whole(together))
    j.add_incoming(first, entry)
    j.add_incoming(following, builder.block)
    for row in range(count):
        running[row].add_incoming(before[row], entry)
        running[row].add_incoming(sums[row], builder.block)
    builder.cbranch(builder.icmp_signed("<", following, stop), body, done)
    end = builder.block

    builder.position_at_end(done)
    for row in range(count):
        total = builder.phi(kind)
        total.add_incoming(before[row], entry)
        total.add_incoming(sums[row], end)
        sums[row] = total
    for row in range(count):
        builder.store(sums[row], place(acc, row), align=align)
