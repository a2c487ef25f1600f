"""Products of matrices for the blocked kernels: operands packed for the register tile, and loops.

A product has tokens in the lanes: out[c] = sum_k a[k] b[k, c], where a[k] and out[c] are the
vectors of a group of tokens (one or two vectors, so 8 or 16 tokens in double precision), and b is
a plain matrix, packed in panels of 12 columns: panel c // 12 holds row after row of 12 numbers.
"""

from numba import njit

from wflow._core.compiler.tiles import (
    TILE_COLUMNS,
    copy_columns,
    tile_product,
    tile_product_4,
    tile_product_8,
    tile_product_one,
    tile_product_one_4,
    tile_product_one_8,
)
from wflow._core.compiler.vectors import lanes

# The rows of b in one tile: 128 rows of a panel (12 KB) and of two vectors (16 KB) fit in the
# nearest cache, and the sums go through memory once in 128 updates.
_ROWS = 128
# So many columns are packed together: whole cache lines of every row are read, in few streams.
_PACKED = 24
# The number of columns of the last panel is rounded up to a multiple of this.
COLUMN_UNIT = 4


@njit(error_model="numpy")
def product(
    groups, full, a, a_at, a_group, b, b_at, b_panel, count, columns, out, out_at, out_group, add
):
    """Compute out[c] = sum_k a[k] b[k, c], k < count, c < columns; with `add`, add it to `out`.

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
                        tile_product_one(
                            a, mine, width, b, at, TILE_COLUMNS, rows, out, to, width, width, adding
                        )
                    elif left > 4:
                        tile_product_one_8(
                            a, mine, width, b, at, TILE_COLUMNS, rows, out, to, width, width, adding
                        )
                    else:
                        tile_product_one_4(
                            a, mine, width, b, at, TILE_COLUMNS, rows, out, to, width, width, adding
                        )


@njit(error_model="numpy", forceinline=True)
def panels(columns):
    """Return the number of panels that hold `columns` columns."""
    return (columns + TILE_COLUMNS - 1) // TILE_COLUMNS


@njit(error_model="numpy")
def pack(matrix, out, at):
    """Write the panels of a matrix (rows, columns), padded with zeros, to `out` from `at` on."""
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
    """Write the panels of the transpose of a matrix (columns, rows), as `pack` does."""
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
