"""The adjoint of the velocities against automatic differentiation of a plain twin in torch."""

import numpy as np
import pytest
from twin import by_threads, same, symmetric, torch_velocity, unit

from wflow.kernels.evaluate import DIRECTIONS, Sums, evaluate, velocity_adjoint

CASES = [("softmax", False), ("softmax", True), ("unnormalised", False), ("effective", False)]


@pytest.mark.parametrize("d", [2, 3, 5, 16])
@pytest.mark.parametrize(("flow", "causal"), CASES)
@pytest.mark.parametrize("direction", ["descent", "ascent", "values"])
def test_it_equals_automatic_differentiation(d, flow, causal, direction):
    torch = pytest.importorskip("torch")
    if direction == "values" and flow != "softmax":
        pytest.skip("the flow has no values")
    rng = np.random.default_rng(d)
    for n, heads, size in ((1, 2, 1.0), (21, 3, 1.0), (9, 2, 30.0 if flow == "softmax" else 2.0)):
        x, lam = unit(rng, n, d), rng.standard_normal((n, d))
        D, V = size * rng.standard_normal((2, heads, d, d))
        own = direction == "values"
        sign = 1.0 if own else DIRECTIONS[direction]
        given = [
            torch.tensor(a, dtype=torch.float64, requires_grad=True)
            for a in ((x, D, V) if own else (x, D))
        ]
        v = torch_velocity(*given[:2], values=given[-1], flow=flow, sign=sign, causal=causal)
        expected = torch.autograd.grad(v, given, torch.tensor(lam))
        found = velocity_adjoint(
            x[None], D[None], lam[None], values=V if own else None, flow=flow, causal=causal,
            direction="ascent" if own else direction,
        )  # fmt: skip
        for exact, mine in zip(expected, (found.x, found.D, found.values), strict=False):
            scale = max(float(exact.abs().max()), 1e-3 * size)
            assert np.abs(exact.numpy() - mine[0]).max() <= 1e-11 * scale


@pytest.mark.parametrize(("d", "size"), [(3, 400.0), (12, 100.0), (3, 1.0)])
@pytest.mark.parametrize("causal", [False, True])
def test_central_differences_of_the_velocities(d, size, causal):
    rng, n = np.random.default_rng(0), 30 if d == 3 else 150  # more than a block
    x, D, e = unit(rng, 1, n, d), symmetric(rng, 1, 4, d, d), rng.standard_normal((1, n, d))
    D *= size / np.abs(np.linalg.eigvalsh(D)).max()
    lam, e = rng.standard_normal(x.shape), e - np.einsum("pik,pik->pi", e, x)[..., None] * x

    def along(step):
        y = x + step * e
        y /= np.linalg.norm(y, axis=-1, keepdims=True)
        return float(np.sum(lam * evaluate(y, D, causal=causal).velocity))

    h = 1e-5 / size
    difference = (8 * (along(h) - along(-h)) - along(2 * h) + along(-2 * h)) / (12 * h)
    found = velocity_adjoint(x, D, lam, causal=causal)
    assert abs(np.sum(found.x * e) - difference) <= 1e-7 * np.sum(np.abs(found.x * e))


@pytest.mark.parametrize("d", [3, 16])
@pytest.mark.parametrize(("flow", "causal"), CASES)
def test_threads_paths_and_shared_heads_do_not_change_a_bit(d, flow, causal):
    rng = np.random.default_rng(1)
    x, D, lam = unit(rng, 3, 201, d), symmetric(rng, 4, d, d), rng.standard_normal((3, 201, d))
    shared, how = np.broadcast_to(D, (3, *D.shape)), {"flow": flow, "causal": causal}
    results = by_threads(lambda: velocity_adjoint(x, shared, lam, **how))
    for other in results[1:]:
        assert all(same(a, b) for a, b in zip(results[0][:2], other[:2], strict=True))
    alone = velocity_adjoint(x[1:2], D[None], lam[1:2], **how)
    assert same(results[0].x[1:2], alone.x)
    assert same(results[0].D[1:2], alone.D)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("flow", ["softmax", "unnormalised", "effective"])
@pytest.mark.parametrize(("size", "tied"), [(1.0, True), (1.0, False), (30.0, True)])
def test_the_fast_sums_keep_their_tolerance(d, flow, size, tied):
    """Large heads have some tokens, or all of them, whose series would miss it."""
    rng, n, heads = np.random.default_rng(d), 500, 3
    x, lam = unit(rng, 2, n, d), rng.standard_normal((2, n, d))
    D = size / 3 * symmetric(rng, 2, heads, d, d)
    values = None
    if not tied:
        D, values = rng.standard_normal((2, 2, heads, d, d))
    exact = velocity_adjoint(x, D, lam, values=values, flow=flow)
    for tolerance in (1e-5, 1e-10):
        found = velocity_adjoint(x, D, lam, values=values, flow=flow, sums=Sums("fast", tolerance))
        assert 0 < found.error.max() <= tolerance
        for mine, wanted in zip(found[:3], exact[:3], strict=True):
            if wanted is not None:
                assert np.abs(mine - wanted).max() <= 10 * tolerance * np.abs(wanted).max()


def test_threads_and_paths_do_not_change_a_bit_of_the_fast_sums():
    rng = np.random.default_rng(2)
    x, D, lam = unit(rng, 2, 600, 3), symmetric(rng, 2, 3, 3, 3), rng.standard_normal((2, 600, 3))
    results = by_threads(lambda: velocity_adjoint(x, D, lam, sums=Sums("fast")))
    alone = velocity_adjoint(x[1:], D[1:], lam[1:], sums=Sums("fast"))
    for one in results:
        assert all(same(a, b) for a, b in zip(results[0][:2], one[:2], strict=True))
        assert same(one.x[1:], alone.x)
        assert same(one.D[1:], alone.D)


def test_auto_takes_the_fast_sums_where_they_pay_for_that_path():
    rng = np.random.default_rng(0)
    few, many = unit(rng, 1, 300, 3), unit(rng, 2, 20_000, 3)
    D = np.stack([np.eye(3)[None], 1e4 * np.eye(3)[None]])
    lam, auto = rng.standard_normal(many.shape), Sums("auto")
    exact = velocity_adjoint(few, D[:1], lam[:1, :300])
    assert same(velocity_adjoint(few, D[:1], lam[:1, :300], sums=auto).x, exact.x)
    exact, found = velocity_adjoint(many, D, lam), velocity_adjoint(many, D, lam, sums=auto)
    assert same(found.x[1], exact.x[1])
    assert not same(found.x[0], exact.x[0])
    assert np.abs(found.x[0] - exact.x[0]).max() <= 1e-9 * np.abs(exact.x[0]).max()
