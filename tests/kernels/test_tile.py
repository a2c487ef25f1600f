"""The register tile and the products made of it against NumPy."""

import numpy as np
import pytest
from numba import njit

from wflow._core.compiler.tiles import TILE_COLUMNS, TILE_VECTORS, tile_product
from wflow._core.compiler.vectors import lanes
from wflow.kernels.blocked.products import pack, pack_transposed, panels, product

LANES = {"f8": 8, "f4": 16}


@njit
def one_tile(a, b, count, out, add):
    width = lanes(a)
    step = TILE_VECTORS * width
    tile_product(a, 0, step, b, 0, TILE_COLUMNS, count, out, 0, step, width, add)


@njit
def products(groups, full, a, a_group, b, transposed, columns, out, out_group, add):
    count = b.shape[1] if transposed else b.shape[0]
    packed = np.full(panels(columns) * TILE_COLUMNS * count, np.nan, a.dtype)
    if transposed:
        pack_transposed(b, packed, 0)
    else:
        pack(b, packed, 0)
    product(
        groups, full, a, 0, a_group, packed, 0, count * TILE_COLUMNS, count, columns, out, 0,
        out_group, add,
    )  # fmt: skip


def whole_numbers(rng, *shape, dtype):
    """Small integers: their sums of products are exact in either precision."""
    return rng.integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("count", [0, 1, 7, 128])
def test_tile_is_a_matrix_product(dtype, count):
    rng = np.random.default_rng(count)
    width = LANES[dtype]
    a = whole_numbers(rng, count, TILE_VECTORS * width, dtype=dtype)
    b = whole_numbers(rng, count, TILE_COLUMNS, dtype=dtype)
    out = np.ones((TILE_COLUMNS, TILE_VECTORS * width), dtype)
    one_tile(a.reshape(-1), b.reshape(-1), count, out.reshape(-1), True)
    assert np.array_equal(out, 1 + b.T @ a)
    one_tile(a.reshape(-1), b.reshape(-1), count, out.reshape(-1), False)
    assert np.array_equal(out, b.T @ a)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("count", "columns"), [(1, 1), (5, 4), (13, 8), (64, 12), (129, 13), (300, 31), (7, 60)]
)
def test_product_covers_every_column_and_group(dtype, transposed, count, columns):
    """Three groups of two, the last of one vector; rests of 1 to 12 columns; several chunks."""
    rng = np.random.default_rng(columns)
    width = LANES[dtype]
    groups, full = 3, 2
    room = (columns + 3) // 4 * 4
    a = np.full((groups, count * 2 * width), np.nan, dtype)
    out = np.full((groups, room * 2 * width), np.nan, dtype)
    b = whole_numbers(rng, count, columns, dtype=dtype)
    parts = []
    for g in range(groups):
        step = (2 if g < full else 1) * width
        mine = whole_numbers(rng, count, step, dtype=dtype)
        a[g, : mine.size] = mine.reshape(-1)
        parts.append(b.T @ mine)
    given = np.ascontiguousarray(b.T) if transposed else b
    for turn, add in enumerate((False, True), start=1):
        products(
            groups, full, a.reshape(-1), a.shape[1], given, transposed, columns, out.reshape(-1),
            out.shape[1], add,
        )  # fmt: skip
        for g, part in enumerate(parts):
            assert np.array_equal(out[g, : part.size].reshape(part.shape), turn * part)
