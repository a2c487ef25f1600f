"""`head_sums` of every implementation against plain NumPy in extended precision."""

import numpy as np
import pytest
from twin import by_threads, same, unit

from wflow import InputError
from wflow.kernels.evaluate import EXACT, Sums, evaluate, head_sums
from wflow.kernels.harmonic.weighted import choose_weighted
from wflow.kernels.pairs.plain import plain_sums

FAST = Sums("fast", 1e-10)
# Pairs up to d = 8, blocks beyond; series for d = 2 and 3; tiles of torch for any.
IMPLEMENTATIONS = [(3, EXACT), (9, EXACT), (3, FAST), (3, "torch"), (10, "torch")]
NAMES = ["pairs", "blocked", "fast", "torch", "torch, d = 10"]
every_implementation = pytest.mark.parametrize(("d", "sums"), IMPLEMENTATIONS, ids=NAMES)
every_exact_implementation = pytest.mark.parametrize(
    ("d", "sums"), [(d, sums) for d, sums in IMPLEMENTATIONS if sums is not FAST],
    ids=[name for name in NAMES if name != "fast"],
)  # fmt: skip


def ask(sums):
    """Return the sums meant by a name; torch runs on the CPU."""
    if sums == "torch":
        pytest.importorskip("torch")
        return Sums("exact", backend="torch", device="cpu")
    return sums


def matrices(rng, heads, d, sizes, paths=2):
    """Any matrices, not symmetric, of these norms."""
    D = rng.normal(size=(paths, heads, d, d))
    return D * (np.asarray(sizes) / np.linalg.norm(D, 2, axis=(2, 3)))[..., None, None]


def assert_right(found, x, D, *, sources=None, weights=None, causal=False, tolerance=5e-14):
    """The sums equal those of NumPy, relative to sum_j |w_j| U_ij; `found` has the dtype of x."""
    assert {a.dtype for a in (found.shift, found.m, found.S)} == {x.dtype}
    x, D = x.astype(np.longdouble), D.astype(np.longdouble)
    y = x if sources is None else sources.astype(np.longdouble)
    n = y.shape[1]
    w = np.full((1, 1, n), 1 / np.longdouble(n)) if weights is None else weights
    w = (w[:, None] if w.ndim == 2 else w)[:, :, None].astype(np.longdouble)
    w = np.broadcast_to(np.where(np.tri(n), w, 0) if causal else w, (*D.shape[:2], x.shape[1], n))
    scores = np.where(w != 0, np.einsum("pia,phab,pjb->phij", x, D, y), -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    U = w * np.exp(scores - top)
    size = np.maximum(np.abs(U).sum(-1), np.finfo(np.longdouble).tiny)
    grow = np.exp(found.shift - top[..., 0])
    assert (np.abs(found.m * grow - U.sum(-1)) / size).max() <= tolerance
    if found.S.size:
        S = np.einsum("phij,pjb->phib", U, y)
        away = np.linalg.norm(found.S * grow[..., None] - S, axis=-1)
        largest = np.linalg.norm(y, axis=-1).max()
        assert (away / size).max() <= tolerance * largest


@every_implementation
@pytest.mark.parametrize(("targets", "n"), [(1, 50), (37, 1), (37, 130), (70, 33)])
@pytest.mark.parametrize("per_head", [False, True])
def test_targets_and_weighted_sources_equal_numpy(d, sums, targets, n, per_head):
    rng = np.random.default_rng(targets + n)
    x, y = unit(rng, 2, targets, d), unit(rng, 2, n, d)
    D = matrices(rng, 3, d, [1.0, 4.0, 8.0])
    w = rng.normal(size=(2, 3, n) if per_head else (2, n))
    found = head_sums(x, D, sources=y, weights=w, sums=ask(sums))
    # A series errs by so much, relative to |m|; targets that would miss it are summed exactly.
    tolerance = 1e-10 if sums is FAST else 5e-14
    assert_right(found, x, D, sources=y, weights=w, tolerance=tolerance)
    assert (found.error > 0).all() if sums is FAST else (found.error == 0).all()
    assert (found.error <= 1e-10).all()
    without = head_sums(x, D, sources=y, weights=w, vectors=False, sums=ask(sums))
    assert_right(without, x, D, sources=y, weights=w, tolerance=tolerance)
    assert without.S.shape == (2, 3, 0, d)


@every_implementation
def test_equal_weights_are_the_default_and_zero_weights_are_absent_sources(d, sums):
    rng = np.random.default_rng(4)
    x, y = unit(rng, 2, 20, d), unit(rng, 2, 44, d)
    D = matrices(rng, 2, d, [2.0, 5.0])
    few, w = y[:, ::2], np.zeros((2, 44))
    w[:, ::2] = 1 / 22
    tolerance = 2e-10 if sums is FAST else 2e-14
    for found in (
        head_sums(x, D, sources=few, sums=ask(sums)),
        head_sums(x, D, sources=y, weights=w, sums=ask(sums)),
    ):
        assert_right(found, x, D, sources=few, tolerance=tolerance)
    nothing = head_sums(x, D, sources=y, weights=0 * w, sums=ask(sums))
    assert not nothing.m.any() and not nothing.S.any() and not nothing.shift.any()


@every_exact_implementation
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", [[63.0, 65.0, 1000.0], [1.0, 1e4, 20.0]])
def test_scores_of_any_size_keep_their_digits(d, sums, weighted, sizes):
    rng = np.random.default_rng(2)
    x, y = unit(rng, 2, 21, d), unit(rng, 2, 50, d)
    w = rng.normal(size=(2, 3, 50)) if weighted else None
    if weighted:
        w[:, :, ::3] = 0.0
        w[:, 0] = 0.0  # a head without sources
    D = matrices(rng, 3, d, sizes)
    found = head_sums(x, D, sources=y, weights=w, sums=ask(sums))
    assert_right(found, x, D, sources=y, weights=w, tolerance=1e-13)
    strongest = int(np.argmax(sizes))
    assert found.shift[:, strongest].all()
    if not weighted:
        largest = np.einsum("pia,phab,pjb->phij", x, D, y).max(-1)
        np.testing.assert_allclose(found.shift[:, strongest], largest[:, strongest], rtol=1e-6)


@every_exact_implementation
def test_weights_and_sources_far_from_one_shift_too(d, sums):
    rng = np.random.default_rng(3)
    x, y = unit(rng, 2, 10, d), 50 * unit(rng, 2, 30, d)
    D = matrices(rng, 2, d, [0.5, 30.0])
    w = np.exp(rng.uniform(-600, 600, (2, 30)))
    found = head_sums(x, D, sources=y, weights=w, sums=ask(sums))
    assert found.shift[:, 1].all()
    # One of the terms lies between 1/2 and 1, and no sum of positive ones is larger than n.
    assert (found.m >= 0.5).all() and (found.m[:, 1] <= 30).all()
    w = rng.uniform(0, 1, (2, 30))
    found = head_sums(x, D, sources=y, weights=1e250 * w, sums=ask(sums))
    scaled = found._replace(shift=found.shift - np.log(1e250))
    assert_right(scaled, x, D, sources=y, weights=w, tolerance=5e-13)


@every_exact_implementation
@pytest.mark.parametrize("n", [1, 24, 77])
@pytest.mark.parametrize("weighted", [False, True])
def test_causal_targets_see_no_later_source(d, sums, n, weighted):
    rng = np.random.default_rng(n)
    x, D = unit(rng, 2, n, d), matrices(rng, 3, d, [1.0, 60.0, 300.0])
    w = rng.normal(size=(2, 3, n)) if weighted else None
    found = head_sums(x, D, weights=w, causal=True, sums=ask(sums))
    assert_right(found, x, D, weights=w, causal=True, tolerance=1e-13)


@every_implementation
@pytest.mark.parametrize("weighted", [False, True])
def test_single_precision_keeps_its_digits(d, sums, weighted):
    rng = np.random.default_rng(7)
    x, y = (unit(rng, 2, n, d).astype("f4") for n in (33, 70))
    D = matrices(rng, 2, d, [3.0, 8.0] if sums is FAST else [3.0, 100.0]).astype("f4")
    w = rng.uniform(0, 1, (2, 70)).astype("f4") if weighted else None
    found = head_sums(x, D, sources=y, weights=w, sums=ask(sums))
    assert_right(found, x, D, sources=y, weights=w, tolerance=2e-5)


@every_exact_implementation
@pytest.mark.parametrize("causal", [False, True])
def test_the_default_sums_give_the_velocity_of_evaluate(d, sums, causal):
    rng = np.random.default_rng(9)
    x, D = unit(rng, 2, 60, d), matrices(rng, 4, d, [1.0, 5.0, 20.0, 200.0])
    found = head_sums(x, D, causal=causal, sums=ask(sums))
    pull = np.einsum("phab,phib->pia", D, found.S / found.m[..., None]) / 4
    velocity = -(pull - np.einsum("pia,pia->pi", pull, x)[..., None] * x)
    expected = evaluate(x, D, causal=causal).velocity
    np.testing.assert_allclose(velocity, expected, rtol=0, atol=1e-13 * 200)


@pytest.mark.parametrize(("d", "sums"), IMPLEMENTATIONS[:3], ids=NAMES[:3])
@pytest.mark.parametrize("weighted", [False, True])
def test_threads_and_other_targets_do_not_change_a_bit(d, sums, weighted):
    rng = np.random.default_rng(11)
    x, y = unit(rng, 3, 2100, d), unit(rng, 3, 2500, d)
    D = matrices(rng, 2, d, [3.0, 9.0], paths=3)
    w = rng.uniform(0, 1, (3, 2500)) if weighted else None
    found, *more = by_threads(lambda: head_sums(x, D, sources=y, weights=w, sums=sums))
    assert all(same(other, found) for other in more)
    first = w if w is None else w[:1]
    one = head_sums(x[:1, :7], D[:1], sources=y[:1], weights=first, sums=sums)
    assert np.array_equal(found.S[:1, :, :7], one.S)


def test_targets_that_a_series_misses_are_summed_exactly():
    rng = np.random.default_rng(1)
    x, D = unit(rng, 1, 400, 3), matrices(rng, 2, 3, [2.0, 70.0], paths=1)
    y = unit(rng, 1, 300, 3)
    w = rng.normal(size=(1, 300))  # m has zeros, near which no series has a small relative error
    fast, exact = (head_sums(x, D, sources=y, weights=w, sums=sums) for sums in (FAST, EXACT))
    assert (np.abs(fast.m - exact.m) <= 2e-10 * np.abs(exact.m)).all()
    assert np.array_equal(fast.m[:, 1], exact.m[:, 1]) and fast.shift[:, 1].any()
    assert 0 < fast.error[0] <= 1e-10


def test_auto_takes_the_series_for_many_pairs_and_the_pairs_for_few():
    rng = np.random.default_rng(0)
    D = matrices(rng, 8, 3, 2.0, paths=1)
    x, y = unit(rng, 1, 4000, 3), unit(rng, 1, 3000, 3)
    w = rng.uniform(0, 1, (1, 1, 3000))
    assert choose_weighted(x, D, y, w, 1e-10).all()
    assert not choose_weighted(x[:, :300], D[:, :1], y[:, :300], w[..., :300], 1e-10).any()
    few = head_sums(x[:, :300], D, sources=y[:, :9], sums=Sums("auto"))
    many = head_sums(x, D, sources=y, weights=w[:, 0], sums=Sums("auto"))
    assert few.error == 0 and 0 < many.error < 1e-10


def test_paths_that_are_not_finite_are_nan_by_series():
    rng = np.random.default_rng(0)
    x, D = unit(rng, 2, 30, 3), matrices(rng, 1, 3, 2.0)
    x[1, 4, 0] = np.nan
    found = head_sums(x, D, sums=FAST)
    assert np.isfinite(found.m[0]).all() and np.isnan(found.m[1]).all()
    assert np.isnan(found.error[1])


def test_sums_that_do_not_exist_are_refused():
    x, D = unit(np.random.default_rng(0), 1, 5, 3), np.zeros((1, 2, 3, 3))
    with pytest.raises(InputError, match="leave out sources, or causal"):
        head_sums(x, D, sources=x.copy(), causal=True)
    with pytest.raises(InputError, match="no causal mask"):
        head_sums(x, D, causal=True, sums=FAST)
    with pytest.raises(InputError, match=r"weights have shape \(1, 4\)"):
        head_sums(x, D, weights=np.ones((1, 4)))


def test_the_plain_sums_are_their_formulas():
    rng = np.random.default_rng(0)
    x, y, w = unit(rng, 7, 3), rng.normal(size=(11, 3)), rng.normal(size=11)
    D = rng.normal(size=(2, 3, 3))
    shift, m, S, q = plain_sums(x, D, y, w)
    U = w * np.exp(np.einsum("ia,hab,jb->hij", x, D, y))
    grow = np.exp(shift)
    close = {"rtol": 1e-13, "atol": 1e-13}
    np.testing.assert_allclose(grow * m, U.sum(-1), **close)
    np.testing.assert_allclose(grow[..., None] * S, U @ y, **close)
    np.testing.assert_allclose(grow * q, (U * (1 + (x @ y.T) ** 2)).sum(-1), **close)
