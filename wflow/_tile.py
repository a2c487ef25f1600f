"""The small matrix product under the blocked kernels, with all its sums in registers."""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from wflow._simd import _VECTORS, _float_ir, _fma, _lane_pointer, _vector_ir

# Vectors by columns of a tile: 24 sums, 2 operands and a broadcast value fill the 32 registers of
# AVX-512; each broadcast value is used twice.
TILE_VECTORS, TILE_COLUMNS = 2, 12


def make_tile(columns: int, add: bool, vectors: int = TILE_VECTORS):
    """Intrinsic of one tile: out[c, v] = sum_k a[k, v] b[k, c]; with `add`, added to `out`.

    a[k] are `vectors` adjacent vectors, `a_step` elements from one k to the next; b[k] are
    `columns` adjacent numbers; out[c, v] is the vector at out_at + c out_column + v out_vector.
    All arrays are flat; places and steps count elements. The sum over k is formed first and then
    added to `out`, so that a long sum in several calls rounds like one in blocks.
    """

    @intrinsic
    def product(
        typingctx, a, a_at, a_step, b, b_at, b_step, count, out, out_at, out_column, out_vector
    ):
        vector = _VECTORS[a.dtype]
        kind = _vector_ir(vector)
        index = ir.IntType(types.intp.bitwidth)

        def codegen(context, builder, sig, args):
            a, a_at, a_step, b, b_at, b_step, count, out, out_at, out_column, out_vector = args
            types_of = sig.args
            b_data = context.make_array(types_of[3])(context, builder, b).data
            cells = [(c, v) for c in range(columns) for v in range(vectors)]

            def place(c, v):
                offset = builder.add(out_at, builder.mul(out_column, ir.Constant(index, c)))
                offset = builder.add(offset, builder.mul(out_vector, ir.Constant(index, v)))
                return _lane_pointer(context, builder, types_of[7], out, offset, vector)

            align = vector.dtype.bitwidth // 8
            zero = ir.Constant(kind, [0.0] * vector.lanes)
            entry = builder.block
            body = builder.append_basic_block("tile")
            done = builder.append_basic_block("tile.done")
            positive = builder.icmp_signed(">", count, ir.Constant(index, 0))
            builder.cbranch(positive, body, done)

            builder.position_at_end(body)
            k = builder.phi(index)
            sums = [builder.phi(kind) for _ in cells]
            a_now = builder.add(a_at, builder.mul(k, a_step))
            b_now = builder.add(b_at, builder.mul(k, b_step))
            left = []
            for v in range(vectors):
                offset = builder.add(a_now, ir.Constant(index, v * vector.lanes))
                pointer = _lane_pointer(context, builder, types_of[0], a, offset, vector)
                left.append(builder.load(pointer, align=align))
            after = []
            mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), [0] * vector.lanes)
            empty = ir.Constant(kind, ir.Undefined)
            for c in range(columns):
                offset = builder.add(b_now, ir.Constant(index, c))
                value = builder.load(builder.gep(b_data, [offset]))
                single = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
                right = builder.shuffle_vector(single, empty, mask)
                for v in range(vectors):
                    after.append(_fma(builder, left[v], right, sums[len(after)]))
            following = builder.add(k, ir.Constant(index, 1))
            k.add_incoming(ir.Constant(index, 0), entry)
            k.add_incoming(following, body)
            for total, updated in zip(sums, after, strict=True):
                total.add_incoming(zero, entry)
                total.add_incoming(updated, body)
            builder.cbranch(builder.icmp_signed("<", following, count), body, done)

            builder.position_at_end(done)
            results = [builder.phi(kind) for _ in cells]
            for result, updated in zip(results, after, strict=True):
                result.add_incoming(zero, entry)
                result.add_incoming(updated, body)
            for (c, v), result in zip(cells, results, strict=True):
                pointer = place(c, v)
                if add:
                    result = builder.fadd(builder.load(pointer, align=align), result)
                builder.store(result, pointer, align=align)
            return context.get_dummy_value()

        size = types.intp
        return (
            types.none(a, size, size, b, size, size, size, out, size, size, size),
            codegen,
        )

    return product


tile_product, tile_add = make_tile(TILE_COLUMNS, False), make_tile(TILE_COLUMNS, True)


@intrinsic
def copy_columns(typingctx, source, source_at, out, out_at):
    """Copy TILE_COLUMNS adjacent numbers from one flat array to another as one vector."""

    def codegen(context, builder, sig, args):
        dtype = sig.args[0].dtype
        kind = ir.VectorType(_float_ir(dtype), TILE_COLUMNS).as_pointer()
        places = []
        for at in (0, 2):
            data = context.make_array(sig.args[at])(context, builder, args[at]).data
            places.append(builder.bitcast(builder.gep(data, [args[at + 1]]), kind))
        align = dtype.bitwidth // 8
        builder.store(builder.load(places[0], align=align), places[1], align=align)
        return context.get_dummy_value()

    return types.none(source, types.intp, out, types.intp), codegen
