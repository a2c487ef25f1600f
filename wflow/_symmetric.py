"""Sums of one head over all pairs of one path, each kernel value computed once: for D = D^T.

U_hij = U_hji, so a value serves the sums of token i, which sit in the lanes of a block, and those
of token j, whose partial sums over lanes are folded at the end of a chunk of tokens j. Cost of a
pair of tokens, both directions, in multiply-adds: d for the score, 16 for the exponential,
2 (d + 1) for the sums, 1 for the Ito sum: 28 at d = 3, against 48 when each direction is computed.
"""

from numba import njit

from wflow._pairsums import both_ways, one_way, pair_table
from wflow._simd import fold, lanes, load, splat, store

# Tokens j per chunk: their partial sums, 4 vectors each at d = 3, stay in the nearest cache.
_CHUNK = 128


@njit(error_model="numpy")
def _fold_columns(columns, d, blocks, buffer, sums, sums_at):
    """Add the column sums of the tokens of some blocks, lane sums of `columns`, to `sums`."""
    width = lanes(columns)
    for block in range(blocks):
        for term in range(d + 1):
            count = width // 2
            for k in range(count):
                at = ((block * width + 2 * k) * (d + 1) + term) * width
                store(buffer, k * width, fold(load(columns, at),
                                              load(columns, at + (d + 1) * width)))  # fmt: skip
            while count > 1:
                count //= 2
                for k in range(count):
                    at = 2 * k * width
                    store(buffer, k * width, fold(load(buffer, at), load(buffer, at + width)))
            at = sums_at + (block * (d + 2) + term) * width
            store(sums, at, load(sums, at) + load(buffer, 0))


@njit(error_model="numpy")
def symmetric_sums(
    x, n, weight, own, z, pair, tabled, ito, columns, buffer, part, sums
):  # fmt: skip
    """(m, S, q) of one head with D = D^T and moderate scores for all blocks of tokens of a path.

    own : (blocks, d) vectors, coordinates by lane; z : (blocks, d) vectors, log2(e) D^T x_i
    pair : with `tabled` the (blocks, tokens) vectors of `pair_table`, else room for one chunk
    columns, buffer, part : room; sums : (blocks, d + 2) vectors, the result
    """
    width = lanes(x)
    rows, d = x.shape
    sums[:] = 0.0
    zero = splat(x.dtype.type(0.0))
    for first in range(0, rows, _CHUNK):
        last = min(first + _CHUNK, rows)
        columns[: (last - first) * (d + 1) * width] = 0.0
        for block in range(last // width):
            start = block * width
            own_at = start * d
            pair_at = start * rows if tabled else -first * width
            if ito and not tabled:
                pair_table(x, n, own, own_at, max(first, start), last, pair, pair_at)
            mine = start >= first
            begin = start + width if mine else first
            if mine:
                one_way(
                    x, weight, z, own_at, pair, pair_at, ito, part, False, 0, start, begin, part
                )
            else:
                for row in range(d + 2):
                    store(part, row * width, zero)
            store(part, (d + 2) * width, zero)
            column_at = (begin - first) * (d + 1) * width
            both_ways(x, weight, own, z, own_at, pair, pair_at, ito, begin, last, part,
                      columns, column_at)  # fmt: skip
            at = block * (d + 2) * width
            for row in range(d + 1):
                store(sums, at + row * width,
                      load(sums, at + row * width) + load(part, row * width))  # fmt: skip
            if ito:
                # Both directions of a pair outside the block have the same Ito term.
                twice = load(part, (d + 2) * width) + load(part, (d + 2) * width)
                row = (d + 1) * width
                store(sums, at + row, load(sums, at + row) + (load(part, row) + twice))
        _fold_columns(columns, d, (last - first) // width, buffer, sums,
                      first * (d + 2))  # fmt: skip


@njit(error_model="numpy")
def chunk_vectors(d):
    """Vectors of room that `columns` needs."""
    return _CHUNK * (d + 1)
