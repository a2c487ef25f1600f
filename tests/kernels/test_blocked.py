"""The blocked sums for many coordinates against plain NumPy and against the fused sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import by_threads, same, symmetric, unit

from wflow.kernels.blocked import sums
from wflow.kernels.blocked.sums import blocked_sums
from wflow.kernels.evaluate import FLOWS
from wflow.kernels.pairs import fused
from wflow.kernels.pairs.headsums import TERMS

DIMENSIONS = (9, 12, 13, 24, 31, 50, 64, 130)


def arguments(
    rng, paths, n, d, heads, *, size=1.0, flow="softmax", sign=-1.0, tied=True, causal=False,
    drift=True, noise=True, ito=True, dtype="f8",
):  # fmt: skip
    """Return random input of `fused_sums`; `size` bounds the scores."""
    x = unit(rng, paths, n, d)
    D = symmetric(rng, paths, heads, d, d) if tied else rng.normal(size=(paths, heads, d, d))
    D *= size / max(np.linalg.norm(D, 2, (-2, -1)).max(), 1e-300)
    value = D if tied else rng.normal(size=D.shape)
    none = np.empty((paths, 0, d, d))
    f = symmetric(rng, paths, heads, d, d) if drift else none
    B = rng.normal(size=D.shape) if noise else none
    sigma2 = rng.uniform(0, 2, (paths, heads)) if ito else np.empty((paths, 0))
    arrays = [np.ascontiguousarray(a, dtype) for a in (x, D, value, f, B, sigma2)]
    return (*arrays, FLOWS[flow], sign, causal, tied and not causal)


def of_path(args, p):
    """Return the input of one path; heads may be those of all paths."""
    return (*(a[p : p + 1] if len(a) > 1 else a for a in args[:6]), *args[6:])


def at_rest(args, D, promised=False):
    """Return the same input with tied heads at rest."""
    return (args[0], D, D, *args[3:-1], promised)


def assert_same(found, expected, tolerance, energy_scale=1.0):
    (v, terms), (v_expected, terms_expected) = found, expected
    assert v.dtype == v_expected.dtype
    assert np.abs(v - v_expected).max() <= tolerance * max(np.abs(v_expected).max(), 1e-300)
    for k, name in enumerate(TERMS):
        scale = np.abs(terms_expected[:, k]).max()
        if name in ("weight_power", "martingale", "edi_defect", "dissipation"):  # of both signs
            scale = max(scale, energy_scale * np.abs(terms_expected[:, 0]).max())
        difference = np.abs(terms[:, k] - terms_expected[:, k]).max()
        assert difference <= 10 * tolerance * scale, name


@pytest.mark.parametrize(("sums", "d"), [(fused.fused_sums, 3), (blocked_sums, 12)])
@pytest.mark.parametrize("tied", [True, False])
def test_the_layout_of_arrays_in_memory_does_not_change_a_bit(sums, d, tied):
    args = arguments(np.random.default_rng(0), 2, 50, d, 2, tied=tied)
    elsewhere = [np.asfortranarray(array) for array in args[:6]]
    for array in elsewhere:
        array.flags.writeable = False
    assert same(sums(*elsewhere, *args[6:]), sums(*args))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 230), d=st.sampled_from(DIMENSIONS),
    heads=st.integers(1, 4), paths=st.integers(1, 3), size=st.sampled_from([0.0, 1.0, 20.0, 63.0]),
    flow=st.sampled_from(sorted(FLOWS)), tied=st.booleans(), causal=st.booleans(),
    drift=st.booleans(), noise=st.booleans(), ito=st.booleans(),
    dtype=st.sampled_from(["f8", "f4"]),
)  # fmt: skip
def test_every_result_equals_the_fused_sums(seed, n, d, heads, paths, size, dtype, **options):
    if dtype == "f4":
        size = min(size, 20.0)
    rng = np.random.default_rng(seed)
    given_to = arguments(rng, paths, n, d, heads, size=size, dtype=dtype, **options)
    tolerance = (2e-14 if dtype == "f8" else 1e-5) * (1 + size)
    scale = 10.0 + size * size
    assert_same(blocked_sums(*given_to), fused.fused_sums(*given_to), tolerance, scale)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [70.0, 600.0, 1e4])
def test_large_scores_are_as_right_as_in_the_fused_sums(size, causal):
    """Heads of small and large norm side by side, so that only some blocks need a shift."""
    rng = np.random.default_rng(3)
    args = arguments(rng, 1, 45, 13, 3, size=size, causal=causal, tied=not causal)
    args[1][0, 1] *= 1 / size
    args[0][0, 5:9] = args[0][0, 5]  # repeated tokens
    v, terms = blocked_sums(*args)
    expected, terms_expected = fused.fused_sums(*args)
    assert np.abs(v - expected).max() <= 1e-13 * np.abs(expected).max()
    assert np.array_equal(np.isfinite(terms), np.isfinite(terms_expected))
    finite = np.isfinite(terms_expected)
    assert np.allclose(terms[finite], terms_expected[finite], rtol=1e-9)


def test_a_token_that_is_not_a_number_is_never_hidden():
    rng = np.random.default_rng(4)
    args = arguments(rng, 2, 40, 16, 2)
    args[0][1, 7, 3] = np.nan
    v, terms = blocked_sums(*args)
    assert np.isfinite(v[0]).all() and np.isfinite(terms[0]).all()
    assert np.isnan(v[1]).any() and np.isnan(terms[1, TERMS.index("speed_sq")])


def test_a_later_token_leaves_no_trace_under_the_causal_mask():
    rng = np.random.default_rng(5)
    args = arguments(rng, 1, 150, 20, 2, causal=True, tied=False)
    v, _ = blocked_sums(*args)
    args[0][0, 100:] = unit(rng, 50, 20)
    changed, _ = blocked_sums(*args)
    assert np.array_equal(v[0, :100], changed[0, :100])
    assert not np.array_equal(v[0, 100:], changed[0, 100:])


# (1, 333, 70, 6) has more tokens and matrices than stay near, so that tasks share panels.
@pytest.mark.parametrize("shape", [(3, 61, 16, 5), (1, 333, 70, 6)])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_number_of_threads_does_not_change_a_bit(shape, dtype):
    args = arguments(np.random.default_rng(1), *shape, dtype=dtype)
    args[1][0, 1] *= 100  # this head needs a shift
    one, *more = by_threads(lambda: blocked_sums(*args))
    assert all(same(found, one) for found in more)


def test_paths_do_not_influence_each_other():
    """More paths than have their matrices packed at one time."""
    args = arguments(np.random.default_rng(2), 5, 20, 120, 11)
    v, terms = blocked_sums(*args)
    for p in range(5):
        assert same(blocked_sums(*of_path(args, p)), (v[p : p + 1], terms[p : p + 1]))


@pytest.mark.parametrize("flow", sorted(FLOWS))
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize(("n", "d"), [(1, 9), (20, 40), (37, 130), (60, 13)])
def test_symmetric_heads_at_rest_give_the_sums_of_any_heads(n, d, dtype, flow):
    """By the images D x of the tokens up to n = 4 d, whether or not symmetry is promised."""
    rng = np.random.default_rng(n)
    args = arguments(rng, 3, n, d, 2, size=8.0, flow=flow, drift=False, noise=False, dtype=dtype)
    expected = fused.fused_sums(*args)
    for promised in (True, False):
        found = blocked_sums(*at_rest(args, args[1], promised))
        assert_same(found, expected, 2e-13 if dtype == "f8" else 1e-4, 100.0)


def test_what_heads_at_rest_give_does_not_depend_on_the_other_paths():
    """Equal to those of the first path, symmetric, and neither; one head needs a shift."""
    rng = np.random.default_rng(8)
    args = arguments(rng, 5, 20, 24, 2, drift=False, noise=False)
    D = args[1]
    D[2] = D[0]
    D[3] = rng.normal(size=D[3].shape)
    D[4, 1] *= 200
    v, terms = blocked_sums(*at_rest(args, D))
    for p in range(5):
        own = of_path(at_rest(args, D), p)
        own = at_rest(own, np.ascontiguousarray(own[1]))
        assert same(blocked_sums(*own), (v[p : p + 1], terms[p : p + 1]))
        expected, _ = fused.fused_sums(*own)
        assert np.abs(v[p] - expected[0]).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("flow", sorted(FLOWS))
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize(("n", "d"), [(1, 9), (20, 40), (37, 130), (150, 12)])
def test_diagonal_heads_give_the_bits_of_products(n, d, dtype, flow):
    """Values that are not the scores are multiplied as matrices, whatever is in them."""
    rng = np.random.default_rng(n)
    args = arguments(rng, 2, n, d, 3, size=8.0, flow=flow, drift=False, noise=False, dtype=dtype)
    D = args[1]
    D *= np.eye(d, dtype=dtype)
    D[1, 2] *= 75 / np.abs(D[1, 2]).max()  # this head needs a shift
    of_products = blocked_sums(args[0], D, D.copy(), *args[3:-1], False)
    for promised in (False, True):
        assert same(blocked_sums(*at_rest(args, D, promised)), of_products)


@pytest.mark.parametrize("packed", [1, 300_000])
def test_batches_of_paths_do_not_change_a_bit(packed, monkeypatch):
    """Heads of all paths, by batches of one path and of some."""
    args = arguments(np.random.default_rng(4), 24, 20, 24, 2, drift=False, noise=False)
    args = at_rest(args, np.ascontiguousarray(args[1][:1]), True)
    expected = blocked_sums(*args)
    monkeypatch.setattr(sums, "_PACKED", packed)
    sums.plan.cache_clear()
    try:
        assert same(blocked_sums(*args), expected)
    finally:
        sums.plan.cache_clear()


@pytest.mark.parametrize("kind", ["any", "symmetric", "diagonal"])
@pytest.mark.parametrize("shape", [(24, 20, 24, 2), (3, 90, 24, 2), (2, 300, 13, 1)])
def test_heads_of_all_paths_give_the_bits_of_copies(shape, kind):
    """Each path by one thread, or shared by threads."""
    rng = np.random.default_rng(9)
    args = arguments(rng, *shape, drift=False, noise=False)
    D = args[1][:1] if kind == "symmetric" else np.ascontiguousarray(args[1][:1] * np.eye(shape[2]))
    D = rng.normal(size=D.shape) if kind == "any" else D
    v, terms = blocked_sums(*at_rest(args, np.repeat(D, shape[0], axis=0)))
    args = at_rest(args, D)
    assert all(same(found, (v, terms)) for found in by_threads(lambda: blocked_sums(*args)))
    for p in (0, shape[0] - 1):
        assert same(blocked_sums(*of_path(args, p)), (v[p : p + 1], terms[p : p + 1]))


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_rounding_does_not_grow_with_the_number_of_tokens(dtype):
    rng = np.random.default_rng(6)
    args = arguments(rng, 1, 4000, 12, 1, dtype=dtype, drift=False, noise=False, ito=False)
    x, D = args[0][0].astype(float), args[1][0, 0].astype(float)
    _, terms = blocked_sums(*args)
    energy = np.exp(x @ D @ x.T).sum() / (2 * 4000**2)
    assert terms[0, 0] == pytest.approx(energy, rel=4 * float(np.finfo(dtype).eps))
