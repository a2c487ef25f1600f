"""SIMD vectors: the exponential's table and the sums over lanes against plain NumPy and mpmath."""

import os
import re
import subprocess
import sys
import types

import mpmath
import numba
import numpy as np
import pytest

from wflow._core import simd
from wflow._core.compiled import internal
from wflow._core.simd import align_stack, exp2, lane_sums, lanes, load, store


@numba.njit
def exp2_of(s):
    out = np.empty_like(s)
    for start in range(0, len(s), lanes(s)):
        store(out, start, exp2(load(s, start)))
    return out


@pytest.mark.parametrize(("dtype", "low", "units"), [("f8", -1021, 1.0), ("f4", -125, 1.5)])
def test_vector_exponential_is_right_to_a_unit_in_the_last_place(dtype, low, units):
    rng = np.random.default_rng(0)
    s = np.concatenate([rng.uniform(low, -low, 1200), rng.uniform(-1, 1, 400)]).astype(dtype)
    exact = [mpmath.mpf(2) ** mpmath.mpf(float(v)) for v in s]
    error = [
        float(abs(mpmath.mpf(float(u)) / e - 1)) for u, e in zip(exp2_of(s), exact, strict=True)
    ]
    assert max(error) <= units * np.finfo(dtype).eps


def test_vector_exponential_of_zero_is_one():
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
    def compiled():
        @numba.njit
        def run(s):
            out = np.empty_like(s)
            for start in range(0, len(s), lanes(s)):
                store(out, start, exp2(load(s, start)))
            return out

        return run

    s = np.random.default_rng(3).uniform(-120, 120, 1600).astype(dtype)
    with_permutation = compiled()(s)
    look_up = simd._look_up
    without = types.SimpleNamespace(codegen=lambda: None)  # a target of no known features
    monkeypatch.setattr(simd, "_look_up", lambda context, *rest: look_up(without, *rest))
    assert compiled()(s).tobytes() == with_permutation.tobytes()


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_comparisons_of_lanes_are_those_of_numpy(dtype):
    @numba.njit
    def run(a, b, out):
        left, right = load(a, 0), load(b, 0)
        store(out, 0, simd.minimum(left, right))
        store(out, lanes(a), simd.where_less(left, right, right, left))
        store(out, 2 * lanes(a), simd.square_root(left))
        return simd.least_lane(left), simd.first_equal(left, right)

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


def lanes_of(a):
    return lanes(a)


def doubled(a):
    store(a, 0, load(a, 0) + load(a, 0))


inlined = internal(forceinline=True)(doubled)


def by_inlined(a):
    align_stack()
    inlined(a)


def unaligned(code: str) -> list[str]:
    """Functions of LLVM modules that hold 64-byte vectors on a stack aligned to 16 bytes."""
    found = []
    for module in code.split("OPTIMIZED DUMP"):
        attributes = dict(re.findall(r"^attributes (#\d+) = \{(.*)\}$", module, re.M))
        for head, body in re.findall(r"^(define [^\n]*) \{\n(.*?)^\}$", module, re.M | re.S):
            # A wrapper for Python or C into which all of it was inlined: no kernel is called so.
            wraps = "@_ZN7cpython" in head or "@cfunc." in head
            has = "".join(map(attributes.__getitem__, re.findall(r" (#\d+)", head)))
            done = "alignstack=64" in has or "alwaysinline" in has
            own = re.search("<8 x double>|<16 x float>", body) and "vector.body" not in body
            own = own or re.search(r"llvm.fma.v(8f64|16f32)", body)  # LLVM may make some itself
            if own and not (done or wraps):
                found += re.findall("@[^(]*", head)
    return found


@pytest.mark.parametrize("function", [lanes_of, doubled, by_inlined])
def test_functions_with_vectors_align_their_stack(function):
    """A vector without a register would lie across two cache lines in some processes."""
    compiled = numba.njit(function)
    compiled(np.zeros(16))
    code = compiled.inspect_llvm(compiled.signatures[0])
    assert "alignstack=64" in code
    assert not unaligned(code)


def test_a_function_of_inlined_vectors_that_does_not_ask_is_found():
    compiled = numba.njit(lambda a: inlined(a))
    compiled(np.zeros(16))
    assert len(unaligned(compiled.inspect_llvm(compiled.signatures[0]))) == 1


def test_kernels_align_their_stack(cases, tmp_path):
    """Compiled anew: in a process whose compiled functions are printed."""
    if not cases(0, 1):
        pytest.skip("compiles for a minute: with --long")
    run = """if True:
        import numpy as np
        import wflow
        from wflow.kernels.evaluate import Sums, evaluate

        heads = np.diag([1.0, 2.0, 3.0])[None, None]
        for symmetric in (True, False):
            evaluate(np.eye(6, 3)[None], heads, symmetric=symmetric)
        evaluate(wflow.tokens.uniform(3000, 3, seed=0)[None], heads, sums=Sums("fast"))
    """
    env = os.environ | {"NUMBA_DUMP_OPTIMIZED": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    code = subprocess.check_output([sys.executable, "-c", run], text=True, env=env)
    assert code.count("alignstack=64") > 20
    assert not unaligned(code)
