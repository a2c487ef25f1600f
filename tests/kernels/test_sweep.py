"""The register loops against plain NumPy."""

import numba
import numpy as np
import pytest
from twin import symmetric, unit

from wflow._core.compiler.functions import constant
from wflow._core.compiler.sweeps import SUMS, UNROLL, sweep
from wflow._core.compiler.vectors import lanes
from wflow.attention import cloud
from wflow.kernels.pairs.sweep import DIMENSIONS, masked_sums


def vectors_of(rng, count, dtype):
    """Random numbers for so many vectors, flat."""
    return rng.uniform(-1, 1, count * 64 // np.dtype(dtype).itemsize).astype(dtype)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize(("blocks", "both", "dtype"), [(2, True, "f8"), (2, False, "f8"),
                                                       (1, True, "f4")])  # fmt: skip
def test_loops_over_tokens_equal_numpy(d, blocks, both, dtype, cases):
    if d not in (2, 3, 8) and not cases(0, 1):
        pytest.skip("with --long: compiled for each d")

    @numba.njit
    def run(dim, blocks, both, x, weight, own, z, noisy, pair, columns, first, stop, acc):
        step = x.shape[0] * lanes(x)
        sweep(
            dim, blocks, both, 2, False, True, x, weight, own, 0, z, 0, noisy, pair, 0, step,
            columns, 0, first, stop, acc, 0,
        )  # fmt: skip

    rng = np.random.default_rng(d)
    n, first, stop = 5 * UNROLL, UNROLL, 4 * UNROLL
    x = rng.uniform(-1, 1, (n, d)).astype(dtype)
    weight = rng.uniform(0, 1, n).astype(dtype)
    own, z, noisy = (vectors_of(rng, blocks * d, dtype) for _ in range(3))
    pair = vectors_of(rng, blocks * n, dtype)
    columns = vectors_of(rng, (stop - first) * (d + 1), dtype)
    acc = vectors_of(rng, blocks * (d + SUMS), dtype)
    by_block = acc.reshape(blocks, d + SUMS, -1).astype(float)
    by_token = columns.reshape(stop - first, d + 1, -1).astype(float)
    U = np.exp2(np.einsum("bkl,jk->jbl", z.reshape(blocks, d, -1).astype(float), x[first:stop]))
    by_block[:, 0] += np.einsum("jbl,j->bl", U, weight[first:stop])
    by_block[:, 1 : d + 1] += np.einsum("jbl,jk->bkl", U, x[first:stop])
    q = np.einsum("jbl,bjl->bl", U, pair.reshape(blocks, n, -1)[:, first:stop])
    along = np.einsum("bkl,jk->jbl", noisy.reshape(blocks, d, -1).astype(float), x[first:stop])
    r = (U * along**2).sum(0) / 2  # each pair is met twice
    if both:
        by_block[0, -2:] += q.sum(0), r.sum(0)
        by_token[:, 0] += U.sum(1)
        by_token[:, 1:] += np.einsum("jbl,bkl->jkl", U, own.reshape(blocks, d, -1))
    else:
        by_block[:, -2] += q
        by_block[:, -1] += r
    known = map(constant, (d, blocks, both))
    run(*known, x, weight, own, z, noisy, pair, columns, first, stop, acc)
    close = {"rtol": 0, "atol": 200 * np.finfo(dtype).eps}
    np.testing.assert_allclose(acc.reshape(by_block.shape), by_block, **close)
    np.testing.assert_allclose(columns.reshape(by_token.shape), by_token, **close)


def test_one_and_two_blocks_give_the_same_bits_as_the_plain_loop():
    @numba.njit
    def run(x, weight, z, noisy, pair, kind, acc):
        step = x.shape[0] * lanes(x)
        stop = x.shape[0]
        if kind == 2:
            sweep(3, 2, False, 1, False, True, x, weight, z, 0, z, 0, noisy, pair, 0, step, z, 0,
                  0, stop, acc, 0)  # fmt: skip
            return
        for block in range(2):
            at, acc_at = block * 3 * lanes(x), block * (3 + SUMS) * lanes(x)
            if kind == 1:
                sweep(3, 1, False, 1, False, True, x, weight, z, 0, z, at, noisy, pair,
                      block * step, 0, z, 0, 0, stop, acc, acc_at)  # fmt: skip
            else:
                masked_sums(x, weight, z, at, noisy, pair, block * step, True, z, -1, 0, stop, acc,
                            acc_at)  # fmt: skip

    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(24, 3)), np.ones(24)
    z, noisy, pair = (vectors_of(rng, count, "f8") for count in (6, 6, 48))
    bits = []
    for kind in (0, 1, 2):
        acc = np.zeros(2 * (3 + SUMS) * 8)
        run(x, weight, z, noisy, pair, kind, acc)
        bits.append(acc.tobytes())
    assert bits[0] == bits[1] == bits[2]


def test_heads_in_several_batches_and_pairs_in_strips_change_nothing():
    """9,000 tokens make eight strips, whose sums of 26 heads are more than is kept at a time."""
    rng = np.random.default_rng(1)
    x, D = unit(rng, 1, 9000, 3), symmetric(rng, 1, 26, 3, 3)
    D[0, 3] *= 100 / np.abs(np.linalg.eigvalsh(D[0, 3])).max()  # needs a shift
    options = {"drift": D, "sigma2": np.ones((1, 26))}
    one_way, terms = cloud.evaluate(x, D, **options)
    both_ways, same = cloud.evaluate(x, D, **options, symmetric=True)
    assert np.abs(both_ways - one_way).max() <= 1e-13 * np.abs(one_way).max()
    for name in ("energy", "ito_power", "weight_power", "upper_gradient_sq", "max_score"):
        assert same[name][0] == pytest.approx(terms[name][0], rel=1e-12), name
