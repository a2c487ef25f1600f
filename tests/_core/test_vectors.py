"""SIMD vectors: the exponential's table and the sums over lanes against plain NumPy and mpmath."""

import types

import mpmath
import numba
import numpy as np
import pytest

from wflow._core.compiler import vectors
from wflow._core.compiler.vectors import exp2, lane_sums, lanes, load, store


def compiled():
    @numba.njit
    def run(s):
        out = np.empty_like(s)
        for start in range(0, len(s), lanes(s)):
            store(out, start, exp2(load(s, start)))
        return out

    return run


exp2_of = compiled()


@pytest.mark.parametrize(("dtype", "low", "units"), [("f8", -1021, 1.0), ("f4", -125, 1.5)])
def test_vector_exponential_is_right_to_a_unit_in_the_last_place(dtype, low, units):
    rng = np.random.default_rng(0)
    s = np.concatenate([rng.uniform(low, -low, 1200), rng.uniform(-1, 1, 400)]).astype(dtype)
    exact = [mpmath.mpf(2) ** mpmath.mpf(float(v)) for v in s]
    ratios = [mpmath.mpf(float(u)) / e for u, e in zip(exp2_of(s), exact, strict=True)]
    assert max(abs(ratio - 1) for ratio in ratios) <= units * np.finfo(dtype).eps
    assert np.all(exp2_of(np.zeros(8)) == 1.0)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_sums_over_lanes_are_in_the_order_of_their_vectors(dtype):
    @numba.njit
    def run(table, out):
        store(out, 0, lane_sums(table, 0, lanes(table)))

    count = 64 // np.dtype(dtype).itemsize
    table = np.arange(count * count, dtype=dtype) ** 2
    out = np.empty(count, dtype)
    run(table, out)
    assert np.array_equal(out, table.reshape(count, count).sum(1))


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_exponential_has_the_same_bits_without_the_processors_permutation(dtype, monkeypatch):
    s = np.random.default_rng(3).uniform(-120, 120, 1600).astype(dtype)
    with_permutation = exp2_of(s)
    look_up = vectors._look_up
    generic = types.SimpleNamespace(magic_tuple=lambda: ("", "generic", ""))
    without = types.SimpleNamespace(codegen=lambda: generic)
    monkeypatch.setattr(vectors, "_look_up", lambda context, *rest: look_up(without, *rest))
    assert compiled()(s).tobytes() == with_permutation.tobytes()


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_comparisons_of_lanes_are_those_of_numpy(dtype):
    @numba.njit
    def run(a, b, out):
        left, right = load(a, 0), load(b, 0)
        store(out, 0, vectors.minimum(left, right))
        store(out, lanes(a), vectors.where_less(left, right, right, left))
        store(out, 2 * lanes(a), vectors.square_root(left))
        return vectors.least_lane(left), vectors.first_equal(left, right)

    count = 64 // np.dtype(dtype).itemsize
    rng = np.random.default_rng(0)
    for place in (*range(count), count):
        a, b = (rng.uniform(1, 2, count).astype(dtype) for _ in range(2))
        b[place:] = a[place:]
        b[place + 1 :] += 1
        out = np.empty(3 * count, dtype)
        least, first = run(a, b, out)
        want = np.minimum(a, b), np.where(a < b, b, a), np.sqrt(a)
        assert np.array_equal(out, np.concatenate(want))
        assert (least, first) == (a.min(), place)
