"""`wflow.lyapunov` and `wflow.lipschitz` against closed forms, autograd and the adjoint."""

from functools import partial

import numpy as np
import pytest
from twin import symmetric, torch_velocity, unit

import wflow
from wflow import InputError
from wflow.gradients.tangent import velocity_tangents
from wflow.heads import QKV, Frozen, OrnsteinUhlenbeck

RNG = np.random.default_rng(2)
X = unit(RNG, 4, 3)
IDENTITY = np.eye(3)[None]
AT_REST = {"direction": "ascent", "t_final": 40.0, "dt": 0.1, "transient": 30.0}


def jacobian(x, D, V, **how):
    """Derivatives (n, d, n, d) of the velocities of a twin in torch, in ascent."""
    torch = pytest.importorskip("torch")
    x, D, V = map(torch.tensor, (x, D, V))
    velocity = partial(torch_velocity, D=D, values=V, **how)
    return torch.autograd.functional.jacobian(velocity, x).numpy()


def bases(x):
    """Orthonormal bases (n, d, d - 1) of the tangent spaces."""
    return np.linalg.svd(x[:, :, None] * x[:, None])[0][:, :, 1:]


CASES = [("softmax", False, True), ("softmax", True, False), ("softmax", False, False)]
CASES += [("unnormalised", False, True), ("effective", False, True)]


@pytest.mark.parametrize("d", [3, 10])
@pytest.mark.parametrize(("flow", "causal", "tied"), CASES)
def test_derivatives_and_divergence_equal_autograd(flow, causal, tied, d):
    n, heads = 6, 3
    x, D = unit(RNG, n, d), RNG.normal(size=(heads, d, d))
    V = D if tied else RNG.normal(size=D.shape)
    J, basis = jacobian(x, D, V, flow=flow, causal=causal), bases(x)
    tangents = np.einsum("ikl,ail->aik", basis, RNG.normal(size=(5, n, d - 1)))
    twice = [np.stack([a, b]) for a, b in ((x[::-1], x), (D, D), (tangents[:, ::-1], tangents))]
    how = {"values": None if tied else V, "flow": flow, "causal": causal, "direction": "ascent"}
    found, divergence = (of[1] for of in velocity_tangents(*twice, **how))
    expected = np.einsum("ikjl,ajl->aik", J, tangents)
    assert np.abs(found - expected).max() <= 1e-13 * np.abs(expected).max()
    trace = np.einsum("ikil,ika,ila->", J, basis, basis)
    assert np.isclose(divergence, trace, rtol=1e-12)


PRECISE = wflow.Dopri5(rtol=1e-8, atol=1e-10)
RUNS = [("euler", {}), ("euler", {"kappa": 0.1}), ("sra1", {}), ("rk4", {"law": Frozen()})]
RUNS += [(PRECISE, {"law": Frozen()}), ("rk4", {"law": Frozen(), "causal": True})]


@pytest.mark.parametrize(("scheme", "how"), RUNS)
def test_all_exponents_add_up_to_the_change_of_volume(scheme, how):
    law = how.get("law", OrnsteinUhlenbeck(np.eye(3)))
    run = {"heads": symmetric(RNG, 2, 3, 3) / 2, "t_final": 0.5, "dt": 0.025, "seed": 4}
    run |= {"scheme": scheme, **{k: v for k, v in how.items() if k != "law"}}
    found = wflow.lyapunov(X, law, exponents=8, **run)
    rows = []
    for entry in np.eye(X.size).reshape(-1, *X.shape):
        end = np.stack([np.zeros_like(entry), entry])[None]
        rows.append(wflow.gradient(X, law, loss=lambda x, w=end: (0.0, w), **run).x0)
    J = np.array(rows).reshape(*X.shape, *X.shape)
    end = wflow.solve(X, law, **run).tokens.values[0, -1]
    J = np.einsum("ika,ikjl,jlb->iajb", bases(end), J, bases(X)).reshape(8, 8)
    expected = np.log(np.abs(np.linalg.det(J))) / 0.5
    assert abs(found.exponents.sum() - expected) <= 1e-10 * max(1.0, abs(expected))
    if not {"kappa"} & how.keys():
        assert np.isclose(found.divergence[0], expected, rtol=0.05)
        if scheme is PRECISE:
            assert np.isclose(found.divergence[0], expected, rtol=1e-6)


def test_one_token_separates_by_differences_of_eigenvalues():
    D = np.diag([3.0, 1.0, 2.0])[None]
    found = wflow.lyapunov(unit(RNG, 1, 3), Frozen(), heads=D, exponents=2, scheme="rk4", **AT_REST)
    assert np.allclose(found.mean, [-1, -2], atol=1e-4)
    assert np.isclose(found.divergence[0], -3)
    assert found.errors.max() < 1e-6 and found.interval.shape == (2, 2)


def test_a_cluster_turns_freely_and_contracts():
    """One head I in ascent: the exponents are 0 (d - 1 times) and -1, for Euler log(1 - dt)/dt."""
    for scheme, rate in (("rk4", -1.0), ("euler", np.log(0.9) / 0.1)):
        how = {"heads": IDENTITY, "scheme": scheme} | AT_REST
        found = wflow.lyapunov(X, Frozen(), exponents=8, **how)
        assert np.allclose(found.mean, [0, 0] + 6 * [rate], atol=1e-5)
        assert np.isclose(found.divergence[0], -6)
    largest = wflow.lyapunov(X, Frozen(), exponents=3, **how)
    assert np.allclose(largest.mean, found.mean[:3], atol=1e-12)


def test_brownian_tokens_contract_by_their_diffusion():
    """Nearby Brownian tokens under the same noise approach at the rate kappa (d - 1)."""
    found = wflow.lyapunov(
        X[:1], Frozen(), heads=0 * IDENTITY, exponents=2, kappa=0.2, t_final=50.0, dt=0.1, paths=3
    )
    assert np.all(np.abs(found.mean + 0.4) < 4 * np.sqrt(2 * 0.2 / 150))  # of its martingale


def test_running_averages_end_at_the_exponents():
    found = wflow.lyapunov(
        X, OrnsteinUhlenbeck(np.eye(3)), heads=2, t_final=5.0, dt=0.05, transient=1.0, paths=2
    )
    assert np.array_equal(found.running[:, -1], found.exponents)
    assert found.times[-1] == 5.0 and found.times[0] > 1.0
    assert np.allclose(found.mean, found.exponents.mean(axis=0))
    assert "mean=" in repr(found) and "running" not in repr(found)


GOOD = {"law": Frozen(), "heads": IDENTITY, "t_final": 4.0, "dt": 0.1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exponents": 9}, "n \\(d - 1\\) = 8"),
        ({"exponents": 0}, "exponents is 0"),
        ({"transient": 4.0}, "transient is 4"),
        ({"transient": -1.0}, "transient is -1"),
        ({"transient": 2.5}, "20 steps are left"),
        ({"transient": np.nan}, "transient"),
        ({"x0": np.full((4, 3), np.nan)}, "x0"),
        ({"compute": wflow.Compute(dtype="float32")}, "double precision"),
    ],
)
def test_what_has_no_exponents_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        wflow.lyapunov(**{"x0": X, **GOOD, **change})


def test_steps_too_long_for_the_exponents_are_warned_of():
    with pytest.warns(wflow.AccuracyWarning, match="take dt below"):
        wflow.lyapunov(X, **GOOD | {"dt": 0.5, "t_final": 20.0, "direction": "ascent"}, exponents=8)
    with pytest.raises(wflow.BlowUpError):
        wflow.lyapunov(X, **GOOD | {"dt": 1.0, "t_final": 20.0, "heads": 1e6 * IDENTITY})


@pytest.mark.parametrize("causal", [False, True])
def test_lipschitz_constant_is_the_largest_singular_value(causal):
    x, (Q, K, V) = unit(RNG, 8, 3), RNG.normal(size=(3, 2, 3, 3))
    basis = bases(x)
    J = jacobian(x, np.einsum("hka,hkb->hab", Q, K), V, causal=causal)
    expected = np.linalg.svd(np.einsum("ikjl,jlb->ikjb", J, basis).reshape(24, 16))[1][0]
    found = wflow.lipschitz(x, QKV(Q, K, V), causal=causal)
    assert np.isclose(found.constant, expected, rtol=1e-12)
    assert found.residual <= 1e-8 and np.isclose(np.linalg.norm(found.direction), 1)
    assert np.allclose(np.einsum("ik,ik->i", x, found.direction), 0)


@pytest.mark.parametrize("flow", ["unnormalised", "effective"])
@pytest.mark.parametrize("size", [1.0, -40.0])
def test_lipschitz_constants_of_small_mobilities(flow, size):
    cluster = IDENTITY[0, 0] + 0.1 * np.random.default_rng(0).normal(size=(5, 3))
    x, D = wflow.sphere.as_tokens(cluster), size * IDENTITY
    J = np.einsum("ikjl,jlb->ikjb", jacobian(x, D, D, flow=flow), bases(x)).reshape(15, 10)
    found = wflow.lipschitz(x, D, flow=flow)
    assert np.isclose(found.constant, np.linalg.svd(J)[1][0], rtol=1e-9, atol=0)


def test_lipschitz_constants_stay_below_the_bounds():
    for n, beta in ((5, 3.0), (200, 0.3), (200, 2.0)):
        x, D = unit(RNG, n, 3), beta * symmetric(RNG, 3, 3, 3)
        a = np.linalg.norm(D, 2, axis=(1, 2))
        bound = np.mean(a + a**2 + a * np.hypot(1, a) * np.minimum(np.exp(a), np.sqrt(n)))
        assert wflow.lipschitz(x, D).constant <= bound
        assert bound <= wflow.stability.growth_constant(D, direction="ascent")


def test_lipschitz_constants_of_clusters_and_of_nothing():
    one = np.tile([[1.0, 0, 0]], (30, 1))
    assert np.isclose(wflow.lipschitz(one, 2 * IDENTITY).constant, 2)  # |J| of 2 (mean xi - xi)
    for x, D in ((one, 0 * IDENTITY), (one[:1], IDENTITY)):
        assert wflow.lipschitz(x, D).constant == 0


def test_a_singular_value_that_is_not_found_is_an_error():
    with pytest.raises(wflow.WflowError, match="singular value"):
        wflow.lipschitz(unit(RNG, 300, 3), IDENTITY, tolerance=1e-18, iterations=1)
    for scale, flow in ((1e4, "unnormalised"), (1e200, "softmax")):
        with pytest.raises(wflow.WflowError):
            wflow.lipschitz(X, scale * IDENTITY, flow=flow)
    with pytest.raises(InputError, match="one cloud"):
        wflow.lipschitz(X[None], IDENTITY)
    with pytest.raises(InputError, match="heads is 3"):
        wflow.lipschitz(X, 3)
    for name, value in (("tolerance", 0.0), ("iterations", 0)):
        with pytest.raises(InputError, match=name):
            wflow.lipschitz(X, IDENTITY, **{name: value})
