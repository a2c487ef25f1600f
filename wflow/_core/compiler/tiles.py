"""The register tile: a small matrix product with all its sums in registers, in LLVM's terms.

Vectors by columns of a tile: 24 sums, 2 operands and a broadcast value fill the 32 registers of
AVX-512; each broadcast value is used twice. Elsewhere a vector is several registers, and a tile
is computed in parts, one after the other, whose sums fit: with AVX2, 4 registers by 3 columns.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wflow._core.compiler.vectors import (
    VECTORS,
    float_ir,
    fma_ir,
    lane_pointer,
    native_lanes,
    native_registers,
    splat_ir,
)

TILE_VECTORS, TILE_COLUMNS = 2, 12


def _parts(columns: int, pieces: int, registers: int) -> list[tuple[range, range]]:
    """Columns and pieces of rows (registers) of the parts of a tile, in their order.

    The most sums that fit, and of those with as many the one with the fewest loads.
    """
    *_, wide, high = max(
        (wide * high, -wide - high, wide, high)
        for wide in range(1, columns + 1)
        for high in range(1, pieces + 1)
        if columns % wide == 0 and pieces % high == 0 and wide * high + high + 1 <= registers
    )
    return [
        (range(c, c + wide), range(r, r + high))
        for c in range(0, columns, wide)
        for r in range(0, pieces, high)
    ]


def make_tile(columns: int, vectors: int = TILE_VECTORS):
    """Intrinsic of one tile: out[c, v] = sum_k a[k, v] b[k, c]; where `add`, added to `out`.

    a[k] are `vectors` adjacent vectors, `a_step` elements from one k to the next; b[k] are
    `columns` adjacent numbers; out[c, v] is the vector at out_at + c out_column + v out_vector.
    All arrays are flat; places and steps count elements. The sum over k is formed first and then
    added to `out`, so that a long sum in several calls rounds like one in blocks.
    """

    @intrinsic
    def product(
        typingctx, a, a_at, a_step, b, b_at, b_step, count, out, out_at, out_column, out_vector, add
    ):
        vector = VECTORS[a.dtype]
        index = ir.IntType(types.intp.bitwidth)

        def codegen(context, builder, sig, args):
            a, a_at, a_step, b, b_at, b_step, count, out, out_at, out_column, out_vector, add = args
            types_of = sig.args
            piece = native_lanes(context, vector.dtype)
            _, registers = native_registers(context)
            kind = ir.VectorType(float_ir(vector.dtype), piece)
            per_vector = vector.lanes // piece
            b_data = context.make_array(types_of[3])(context, builder, b).data
            align = vector.dtype.bitwidth // 8
            zero = ir.Constant(kind, [0.0] * piece)
            positive = builder.icmp_signed(">", count, ir.Constant(index, 0))

            def whole(number):
                return ir.Constant(index, number)

            def of_a(offset):
                pointer = lane_pointer(context, builder, types_of[0], a, offset, kind)
                return builder.load(pointer, align=align)

            def place(c, row):
                offset = builder.add(out_at, builder.mul(out_column, whole(c)))
                v, inside = divmod(row, per_vector)
                offset = builder.add(offset, builder.mul(out_vector, whole(v)))
                offset = builder.add(offset, whole(inside * piece))
                return lane_pointer(context, builder, types_of[7], out, offset, kind)

            for at_columns, at_rows in _parts(columns, vectors * per_vector, registers):
                cells = [(c, row) for c in at_columns for row in at_rows]
                entry = builder.block
                body = builder.append_basic_block("tile")
                done = builder.append_basic_block("tile.done")
                builder.cbranch(positive, body, done)

                builder.position_at_end(body)
                k = builder.phi(index)
                sums = [builder.phi(kind) for _ in cells]
                a_now = builder.add(a_at, builder.mul(k, a_step))
                b_now = builder.add(b_at, builder.mul(k, b_step))
                left = {row: of_a(builder.add(a_now, whole(row * piece))) for row in at_rows}
                after = []
                for c in at_columns:
                    value = builder.load(builder.gep(b_data, [builder.add(b_now, whole(c))]))
                    right = splat_ir(builder, kind, value)
                    for row in at_rows:
                        after.append(fma_ir(builder, left[row], right, sums[len(after)]))
                following = builder.add(k, whole(1))
                k.add_incoming(whole(0), entry)
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
                adding, storing, after_part = (
                    builder.append_basic_block(name)
                    for name in ("tile.add", "tile.store", "tile.next")
                )
                builder.cbranch(add, adding, storing)
                for block in (adding, storing):
                    builder.position_at_end(block)
                    for (c, row), result in zip(cells, results, strict=True):
                        target = place(c, row)
                        if block is adding:
                            result = builder.fadd(builder.load(target, align=align), result)
                        builder.store(result, target, align=align)
                    builder.branch(after_part)
                builder.position_at_end(after_part)
            return context.get_dummy_value()

        size = types.intp
        return (
            types.none(a, size, size, b, size, size, size, out, size, size, size, types.boolean),
            codegen,
        )

    return product


tile_product, tile_product_8, tile_product_4 = (
    make_tile(columns) for columns in (TILE_COLUMNS, 8, 4)
)
tile_product_one, tile_product_one_8, tile_product_one_4 = (
    make_tile(columns, 1) for columns in (TILE_COLUMNS, 8, 4)
)


@intrinsic
def copy_columns(typingctx, source, source_at, out, out_at):
    """Copy TILE_COLUMNS adjacent numbers from one flat array to another as one vector."""

    def codegen(context, builder, sig, args):
        dtype = sig.args[0].dtype
        kind = ir.VectorType(float_ir(dtype), TILE_COLUMNS).as_pointer()
        places = []
        for at in (0, 2):
            data = context.make_array(sig.args[at])(context, builder, args[at]).data
            places.append(builder.bitcast(builder.gep(data, [args[at + 1]]), kind))
        align = dtype.bitwidth // 8
        builder.store(builder.load(places[0], align=align), places[1], align=align)
        return context.get_dummy_value()

    return types.none(source, types.intp, out, types.intp), codegen
