"""Products of matrices for the blocked kernels: operands packed for the register tile, and loops.

A product has tokens in the lanes: out[c] = sum_k a[k] b[k, c], where a[k] and out[c] are the
vectors of a group of tokens (one or two vectors, so 8 or 16 tokens in double precision), and b is
a plain matrix, packed in panels of 12 columns: panel c // 12 holds row after row of 12 numbers.
"""

from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from wflow._core.simd import (
    _VECTORS,
    _float_ir,
    _fma,
    _lane_pointer,
    _splat,
    lanes,
    native_lanes,
    native_registers,
)

# The register tile: a small matrix product with all its sums in registers
# ------------------------------------------------------------------------
# Vectors by columns of a tile: 24 sums, 2 operands and a broadcast value fill the 32 registers of
# AVX-512; each broadcast value is used twice. Elsewhere a vector is several registers, and a tile
# is computed in parts, one after the other, whose sums fit: with AVX2, 4 registers by 3 columns.

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
        vector = _VECTORS[a.dtype]
        index = ir.IntType(types.intp.bitwidth)

        def codegen(context, builder, sig, args):
            a, a_at, a_step, b, b_at, b_step, count, out, out_at, out_column, out_vector, add = args
            types_of = sig.args
            piece = native_lanes(context, vector.dtype)
            _, registers = native_registers(context)
            kind = ir.VectorType(_float_ir(vector.dtype), piece)
            per_vector = vector.lanes // piece
            b_data = context.make_array(types_of[3])(context, builder, b).data
            align = vector.dtype.bitwidth // 8
            zero = ir.Constant(kind, [0.0] * piece)
            positive = builder.icmp_signed(">", count, ir.Constant(index, 0))

            def whole(number):
                return ir.Constant(index, number)

            def of_a(offset):
                pointer = _lane_pointer(context, builder, types_of[0], a, offset, kind)
                return builder.load(pointer, align=align)

            def place(c, row):
                offset = builder.add(out_at, builder.mul(out_column, whole(c)))
                v, inside = divmod(row, per_vector)
                offset = builder.add(offset, builder.mul(out_vector, whole(v)))
                offset = builder.add(offset, whole(inside * piece))
                return _lane_pointer(context, builder, types_of[7], out, offset, kind)

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
                    right = _splat(builder, kind, value)
                    for row in at_rows:
                        after.append(_fma(builder, left[row], right, sums[len(after)]))
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
_one_12, _one_8, _one_4 = (make_tile(columns, 1) for columns in (TILE_COLUMNS, 8, 4))


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


# Rows of b in one tile: 128 rows of a panel (12 KB) and of two vectors (16 KB) fit in the nearest
# cache, and the sums go through memory once in 128 updates.
_ROWS = 128
# Columns packed together: whole cache lines of every row are read, in few streams.
_PACKED = 24
# What is left of the last panel is rounded up to a multiple of this.
COLUMN_UNIT = 4


@njit(error_model="numpy")
def product(
    groups, full, a, a_at, a_group, b, b_at, b_panel, count, columns, out, out_at, out_group, add
):
    """out[c] = sum_k a[k] b[k, c] for k < count, c < columns; with `add`, added to `out`.

    groups : number of groups of tokens; those from `full` on have one vector, the others two
    a_group, out_group : elements from one group to the next; b_panel : from one panel to the next
    columns : rounded up to a multiple of COLUMN_UNIT, which `out` must hold

    Groups are the innermost loop: a panel of b is fetched once for all of them.
    """
    width = lanes(out)
    two = 2 * width
    for k in range(0, count, _ROWS):
        rows = min(_ROWS, count - k)
        adding = add or k > 0
        for c in range(0, columns, TILE_COLUMNS):
            left = columns - c
            at = b_at + c // TILE_COLUMNS * b_panel + k * TILE_COLUMNS
            for g in range(groups):
                if g < full:
                    mine = a_at + g * a_group + k * two
                    to = out_at + g * out_group + c * two
                    if left > 8:
                        tile_product(
                            a, mine, two, b, at, TILE_COLUMNS, rows, out, to, two, width, adding
                        )
                    elif left > 4:
                        tile_product_8(
                            a, mine, two, b, at, TILE_COLUMNS, rows, out, to, two, width, adding
                        )
                    else:
                        tile_product_4(
                            a, mine, two, b, at, TILE_COLUMNS, rows, out, to, two, width, adding
                        )
                else:
                    mine = a_at + g * a_group + k * width
                    to = out_at + g * out_group + c * width
                    if left > 8:
                        _one_12(
                            a, mine, width, b, at, TILE_COLUMNS, rows, out, to, width, width, adding
                        )
                    elif left > 4:
                        _one_8(
                            a, mine, width, b, at, TILE_COLUMNS, rows, out, to, width, width, adding
                        )
                    else:
                        _one_4(
                            a, mine, width, b, at, TILE_COLUMNS, rows, out, to, width, width, adding
                        )


@njit(error_model="numpy", forceinline=True)
def panels(columns):
    """Panels that hold `columns` columns."""
    return (columns + TILE_COLUMNS - 1) // TILE_COLUMNS


@njit(error_model="numpy")
def pack(matrix, out, at):
    """Panels of a matrix (rows, columns), with zeros to the right, to `out` from `at` on."""
    rows, columns = matrix.shape
    flat = matrix.reshape(-1)
    whole = columns // TILE_COLUMNS * TILE_COLUMNS
    for begin in range(0, whole, _PACKED):
        for row in range(rows):
            mine = at + begin * rows + row * TILE_COLUMNS
            for first in range(begin, min(begin + _PACKED, whole), TILE_COLUMNS):
                copy_columns(flat, row * columns + first, out, mine)
                mine += rows * TILE_COLUMNS
    at += whole * rows
    if whole < columns:
        out[at : at + rows * TILE_COLUMNS] = 0.0
        for row in range(rows):
            for c in range(columns - whole):
                out[at + c] = matrix[row, whole + c]
            at += TILE_COLUMNS


@njit(error_model="numpy")
def pack_transposed(matrix, out, at):
    """The same for the transpose of a matrix (columns, rows)."""
    columns, rows = matrix.shape
    whole = columns // TILE_COLUMNS * TILE_COLUMNS
    for first in range(0, whole, TILE_COLUMNS):
        for row in range(rows):
            for c in range(TILE_COLUMNS):
                out[at + c] = matrix[first + c, row]
            at += TILE_COLUMNS
    if whole < columns:
        out[at : at + rows * TILE_COLUMNS] = 0.0
        for c in range(columns - whole):
            for row in range(rows):
                out[at + row * TILE_COLUMNS + c] = matrix[whole + c, row]
