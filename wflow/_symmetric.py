"""Sums of one head over all pairs of one path, each kernel value computed once: for D = D^T.

U_hij = U_hji, so a value serves the sums of token i, which sit in the lanes of a block, and those
of token j, whose partial sums over lanes are folded at the end of a chunk of tokens j. Cost of a
pair of tokens, both directions, in multiply-adds: d for the score, 16 for the exponential,
2 (d + 1) for the sums, 1 for the Ito sum: 28 at d = 3, against 48 when each direction is computed.
"""

from numba import njit

from wflow._pairsums import direct_sums, pair_table
from wflow._simd import exp2, fma, fold, lanes, load, splat, store

# Tokens j per chunk: their partial sums, 4 vectors each at d = 3, stay in the nearest cache.
_CHUNK = 128


def _make_mutual(dim):
    """Sums between a block and the tokens first <= j < last outside it, in both directions.

    `acc` gathers (m, S, -, q) of the block, `columns` (m, S) of the tokens j by lane, from
    `column_at` for j = first. `dim` fixes d when compiled, 0 leaves it to run time.
    """

    @njit(error_model="numpy", forceinline=True)
    def mutual(x, weight, z, own, own_at, pair, pair_at, ito, first, last, acc, columns, column_at):
        width = lanes(z)
        d = dim if dim > 0 else x.shape[1]
        step = (d + 1) * width
        at0 = column_at
        for j in range(first, last, 4):
            s0 = splat(z.dtype.type(0.0))
            s1 = s0
            s2 = s0
            s3 = s0
            for k in range(d):
                zk = load(z, own_at + k * width)
                s0 = fma(zk, splat(x[j, k]), s0)
                s1 = fma(zk, splat(x[j + 1, k]), s1)
                s2 = fma(zk, splat(x[j + 2, k]), s2)
                s3 = fma(zk, splat(x[j + 3, k]), s3)
            u0 = exp2(s0)
            u1 = exp2(s1)
            u2 = exp2(s2)
            u3 = exp2(s3)
            at1 = at0 + step
            at2 = at1 + step
            at3 = at2 + step
            m = load(acc, 0)
            m = fma(u0, splat(weight[j]), m)
            m = fma(u1, splat(weight[j + 1]), m)
            m = fma(u2, splat(weight[j + 2]), m)
            m = fma(u3, splat(weight[j + 3]), m)
            store(acc, 0, m)
            store(columns, at0, load(columns, at0) + u0)
            store(columns, at1, load(columns, at1) + u1)
            store(columns, at2, load(columns, at2) + u2)
            store(columns, at3, load(columns, at3) + u3)
            for k in range(d):
                row = (1 + k) * width
                a = load(acc, row)
                a = fma(u0, splat(x[j, k]), a)
                a = fma(u1, splat(x[j + 1, k]), a)
                a = fma(u2, splat(x[j + 2, k]), a)
                a = fma(u3, splat(x[j + 3, k]), a)
                store(acc, row, a)
                xk = load(own, own_at + k * width)
                store(columns, at0 + row, fma(u0, xk, load(columns, at0 + row)))
                store(columns, at1 + row, fma(u1, xk, load(columns, at1 + row)))
                store(columns, at2 + row, fma(u2, xk, load(columns, at2 + row)))
                store(columns, at3 + row, fma(u3, xk, load(columns, at3 + row)))
            if ito:
                row = (2 + d) * width
                q = load(acc, row)
                q = fma(u0, load(pair, pair_at + j * width), q)
                q = fma(u1, load(pair, pair_at + (j + 1) * width), q)
                q = fma(u2, load(pair, pair_at + (j + 2) * width), q)
                q = fma(u3, load(pair, pair_at + (j + 3) * width), q)
                store(acc, row, q)
            at0 = at3 + step

    return mutual


_mutual_2, _mutual_3, _mutual_4 = _make_mutual(2), _make_mutual(3), _make_mutual(4)
_mutual_any = _make_mutual(0)


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
                direct_sums(
                    x, weight, z, own_at, pair, pair_at, ito, part, False, 0, start, begin, part
                )
            else:
                for row in range(d + 2):
                    store(part, row * width, zero)
            store(part, (d + 2) * width, zero)
            column_at = (begin - first) * (d + 1) * width
            if d == 2:
                _mutual_2(x, weight, z, own, own_at, pair, pair_at, ito, begin, last, part,
                          columns, column_at)  # fmt: skip
            elif d == 3:
                _mutual_3(x, weight, z, own, own_at, pair, pair_at, ito, begin, last, part,
                          columns, column_at)  # fmt: skip
            elif d == 4:
                _mutual_4(x, weight, z, own, own_at, pair, pair_at, ito, begin, last, part,
                          columns, column_at)  # fmt: skip
            else:
                _mutual_any(x, weight, z, own, own_at, pair, pair_at, ito, begin, last, part,
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
