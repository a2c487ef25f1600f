"""Head laws: drift, noise, stationary law, and what they refuse."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from twin import symmetric

import wflow
from wflow import InputError
from wflow._core.rng import CounterNormals
from wflow.heads import QKV, CompoundPoisson, Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating
from wflow.heads.laws import Schedule, Step, law_config, law_from_config, register
from wflow.heads.process import head_path
from wflow.kernels.evaluate import evaluate

HEADS, D = 20_000, 3
DIAGONAL = np.eye(D, dtype=bool)


def heads_after(law, dt, steps, seed=0):
    """Return a large sample of heads after some steps, all of one path."""
    normals = CounterNormals(seed)
    heads = np.broadcast_to(law.mean, (1, HEADS, D, D)).copy()
    for step in range(steps):
        move = law.step(heads, step * dt, dt, normals.draw(heads.shape, path=0, step=step))
        heads = heads + dt * move.drift + move.noise
    return heads[0]


@pytest.mark.parametrize("exact", [True, False])
def test_stationary_law_of_ornstein_uhlenbeck_within_monte_carlo_error(exact):
    """Mean and variance of 20 000 heads at t = 12.5 against the law of the scheme itself.

    Standard errors: sqrt(var / N) for the mean, var sqrt(2 / N) for the variance; the bound is
    five of them for 9 entries (chance of a false alarm below 1e-5 each).
    """
    rate, sigma2, dt = 1.0, 2.0, 0.05
    mean = symmetric(np.random.default_rng(1), D, D)
    heads = heads_after(OrnsteinUhlenbeck(mean, rate, sigma2, exact=exact), dt, 250)
    variance = sigma2 / (2 * rate) if exact else sigma2 / (rate * (2 - rate * dt))
    variances = np.where(DIAGONAL, variance, variance / 2)
    assert np.all(np.abs(heads.mean(0) - mean) <= 5 * np.sqrt(variances / HEADS))
    assert np.all(np.abs(heads.var(0) - variances) <= 5 * variances * np.sqrt(2 / HEADS))
    assert np.array_equal(heads, heads.swapaxes(-1, -2))


def test_euler_maruyama_approaches_the_exact_transition_at_first_order():
    """Same normal numbers: the gap after one step falls like dt^{3/2}, so over t = 1 like dt."""
    gaps = []
    for dt in (0.1, 0.05, 0.025):
        pair = [
            heads_after(OrnsteinUhlenbeck(np.eye(D), exact=exact), dt, round(1 / dt))
            for exact in (True, False)
        ]
        gaps.append(np.sqrt(np.mean((pair[0] - pair[1]) ** 2)))
    slopes = np.log2(np.array(gaps[:-1]) / gaps[1:])
    assert np.all(np.abs(slopes - 1) < 0.15)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), dt=st.floats(1e-4, 0.5))
def test_symmetric_noise_has_the_variance_of_its_ito_term(seed, dt):
    """E[(x^T dW y)^2] = (|x|^2 |y|^2 + <x,y>^2) dt / 2, within five standard errors."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, D))
    law = HeadLaw(None, 1.0)
    heads = np.zeros((1, 4000, D, D))
    noise = law.step(heads, 0.0, dt, rng.normal(size=heads.shape)).noise[0]
    samples = np.einsum("a,hab,b->h", x, noise, y) ** 2
    expected = (x @ x * (y @ y) + (x @ y) ** 2) * dt / 2
    assert abs(samples.mean() - expected) <= 5 * expected * np.sqrt(2 / 4000)


def test_oscillating_target_in_three_dimensions_is_the_published_one():
    target = Oscillating(3, "common").target(0.7, 2)
    a = 0.7
    expected = [
        [2 + 1.5 * np.cos(a), np.sin(2 * a), np.sin(a)],
        [np.sin(2 * a), 2 + 1.5 * np.sin(a), np.cos(2 * a)],
        [np.sin(a), np.cos(2 * a), 2 + 1.5 * np.cos(a + np.pi / 4)],
    ]
    assert np.allclose(target, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("d", [2, 3, 4, 6])
def test_oscillating_targets_are_symmetric_periodic_and_spread_over_the_phases(d):
    spread = Oscillating(d, "spread").target(0.3, 4)
    assert np.array_equal(spread, spread.swapaxes(-1, -2))
    assert np.allclose(Oscillating(d, "spread").target(0.3 + 2 * np.pi, 4), spread, atol=1e-14)
    shifted = Oscillating(d, "common").target(0.3 + np.pi / 2, 1)
    assert np.allclose(spread[1], shifted[0], atol=1e-14)
    if d == 2:
        assert spread[0] == pytest.approx(
            np.array([[2 + 1.5 * np.cos(0.3), np.sin(0.6)], [np.sin(0.6), 2 - 1.5 * np.cos(0.3)]])
        )


def test_linear_schedule_passes_through_its_values_and_constant_one_jumps():
    rng = np.random.default_rng(0)
    values = np.rint(9 * symmetric(rng, 3, 2, 2, 2))  # differences are exact
    linear = Schedule([0.0, 1.0, 3.0], values)
    start = linear.initial()[0]
    slope = linear.step(start[None], 0.25, 0.5, None).drift[0]
    assert np.array_equal(start, values[0])
    assert np.array_equal(slope, values[1] - values[0])
    assert linear.step(start[None], 3.0, 0.5, None).drift == pytest.approx(0.0)
    constant = Schedule([0.0, 1.0, 3.0], values, "constant")
    assert constant.jump(start, 0.0, 0.5, None) is None
    assert np.array_equal(constant.jump(start, 0.75, 0.25, None), values[1])


def test_a_custom_law_is_two_callables():
    law = HeadLaw(lambda D, t: -t * D, lambda D, t: 0.5)
    heads = np.ones((2, 3, 2, 2))
    move = law.step(heads, 2.0, 0.01, np.ones_like(heads))
    assert np.array_equal(move.drift, -2 * heads)
    assert move.noise == pytest.approx(0.5 * 0.1)
    assert move.sigma2.shape == (2, 3) and np.all(move.sigma2 == 0.25)
    assert not law.deterministic and HeadLaw().deterministic


def law_with(base=HeadLaw, *arguments, **methods):
    """Return an instance of a subclass `Mine` with these methods."""
    return type("Mine", (base,), methods)(*arguments)


def no_step(step):
    return lambda self, D, t, dt, normals: step


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"drift": lambda self, D, t: np.ones((4, 4))}, r"Mine\.drift\(D, 0\) .* broadcast"),
        ({"drift": lambda self, D, t: np.nan * D}, r"Mine\.drift.* not finite"),
        ({"drift": lambda self, D, t: np.ma.masked_less(D, 2.0)}, "masked entries"),
        ({"drift": lambda self, D, t: D.fill(0)}, r"Mine\.drift"),
        ({"diffusion": lambda self, D, t: np.ones(7)}, r"Mine\.diffusion\(D, 0\) .* broadcast"),
        ({"diffusion": lambda self, D, t: -1.0}, r"Mine\.diffusion"),
        ({"diffusion": lambda self, D, t: 0.5}, None),
        ({"drift": lambda self, D, t: None}, None),
        ({"diffusion": lambda self, D, t: None, "deterministic": False}, None),
        ({"step": no_step(None)}, r"Mine\.step"),
        ({"step": no_step(Step(None, np.ones((4, 4)), None))}, r"\.noise .* broadcast"),
        ({"step": no_step(Step(None, 0.0, -1.0))}, "a variance is >= 0"),
        ({"drift_within": lambda self, t, dt: None}, r"Mine\.drift_within"),
        ({"drift_within": lambda self, t, dt: lambda D, s: "a"}, r"Mine\.drift_within"),
        ({"jump": lambda self, D, t, dt, g: np.ones((4, 4))}, r"Mine\.jump\(D, 0, .* broadcast"),
        ({"values": lambda self, t: np.ones(7)}, r"Mine\.values_within\(0\)"),
        ({"values_within": lambda self, t: 3}, r"Mine\.values_within\(0\)"),
        ({"initial": lambda self: np.eye(3)}, r"Mine\.initial\(\)"),
        ({"initial": lambda self: (np.eye(3), None)}, r"Mine\.initial\(\) .*\(heads, d, d\)"),
        ({"initial": lambda self: (np.ones((1, 2, 2)), None)}, r"prescribes .*\(1, 2, 2\)"),
        ({"to_config": lambda self: {"name": "x"}}, r"Mine\.to_config\(\)"),
    ],
)
def test_what_a_subclass_returns_is_checked_where_it_is_used(methods, message):
    law = law_with(**methods)
    options: dict = {"t_final": 0.1, "dt": 0.05}
    options["heads"] = None if "initial" in methods else [np.eye(3)]
    if "drift_within" in methods:
        options["scheme"] = "heun"
    with nullcontext() if message is None else pytest.raises(InputError, match=message):
        wflow.solve(np.eye(3), law, **options)
    if not methods.keys() & {"values", "values_within", "to_config"}:  # for which it does not ask
        with nullcontext() if message is None else pytest.raises(InputError, match=message):
            list(head_path(law, d=3, **options))


def test_a_subclass_without_the_constructor_of_its_base_is_a_law():
    class Mine(HeadLaw):
        def __init__(self):
            self.rate = 2.0

        def drift(self, D, t):
            return -self.rate * D

    run = wflow.solve(np.eye(3), Mine(), heads=2, t_final=0.1, dt=0.05)
    same = wflow.solve(np.eye(3), HeadLaw(lambda D, t: -2.0 * D), heads=2, t_final=0.1, dt=0.05)
    assert np.array_equal(run.energy, same.energy)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_checks_of_a_custom_law_leave_its_numbers_as_they_are(dtype):
    """A subclass that changes nothing has the bits of the law of wflow, which is not checked."""
    table = np.stack([np.eye(3), 2 * np.eye(3)])[:, None]
    cases = [
        (OrnsteinUhlenbeck, (np.eye(3),), 2, "euler"),
        (Oscillating, (3, "spread", 0.3), 2, "euler"),
        (Oscillating, (3,), 2, "rk4"),
        (Schedule, ([0.0, 0.1], table, "constant"), None, "euler"),
        (Schedule, ([0.0, 0.1], table, "linear"), None, "heun"),
        (Schedule, ([0.0, 0.1], QKV(table, table, table)), None, "heun"),
    ]
    for base, arguments, heads, scheme in cases:
        options = {"heads": heads, "t_final": 0.2, "dt": 0.05, "paths": 2, "scheme": scheme}
        runs = [
            wflow.solve(np.eye(3), law, compute=wflow.Compute(dtype=dtype), **options)
            for law in (base(*arguments), law_with(base, *arguments))
        ]
        assert all(np.array_equal(runs[0][name], runs[1][name]) for name in runs[0].data_vars)


def test_general_heads_form_the_score_matrix_from_query_and_key():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 3, 3))
    score, value = QKV(q, k, v, scale=None).matrices()
    x, y = rng.normal(size=(2, 3))
    assert x @ score[1] @ y == pytest.approx((q[1] @ x) @ (k[1] @ y) / np.sqrt(5))
    assert np.array_equal(value, v)


@pytest.mark.parametrize(
    "law",
    [
        Frozen(), OrnsteinUhlenbeck(np.eye(2), 0.7, 1.3, exact=True), Oscillating(2, "common"),
        Schedule([0.0, 1.0], np.zeros((2, 1, 2, 2)), "constant"),
        CompoundPoisson(Oscillating(2, "common"), 2.0, 0.3),
    ],
    ids=lambda law: type(law).__name__,
)  # fmt: skip
def test_a_law_comes_back_from_its_configuration(law):
    assert law_config(law_from_config(law_config(law))) == law_config(law)


def test_a_subclass_has_a_fingerprint_and_its_own_name_whatever_its_config_says():
    for base, arguments in ((OrnsteinUhlenbeck, (np.eye(2),)), (Oscillating, (2,)), (Frozen, ())):
        config = law_config(law_with(base, *arguments))
        assert config["name"] == "Mine" and config["fingerprint"]
        assert config.items() >= base(*arguments).to_config().items()
    named = type("Frozen", (Frozen,), {})()
    with pytest.raises(InputError, match="custom"):
        law_from_config(law_config(named))


class Decay(HeadLaw):
    """A law of a user, with a parameter."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def drift(self, D, t):
        return -self.rate * D

    def to_config(self):
        return {"rate": self.rate}


def test_a_registered_law_comes_back_from_its_configuration():
    config = law_config(Decay(np.array([[1.0, 2.0], [2.0, 3.0]])))
    with pytest.raises(InputError, match=r"wflow\.heads\.register"):
        law_from_config(config)
    assert register(Decay) is Decay
    plain = law_config(Decay(0.5))
    assert law_from_config(plain).rate == 0.5
    for changed, said in (
        (plain | {"rate": 2.0}, "fingerprint"), ({"name": "Decay", "rate": 2.0}, "fingerprint"),
        (plain | {"speed": 2.0}, "parameters"), (plain | {"fingerprint": None}, "cannot tell"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            law_from_config(changed)


def test_a_law_jumps_where_it_has_a_jump():
    table = np.zeros((2, 1, 2, 2))
    assert Schedule([0.0, 1.0], table, "constant").jumps
    assert not Schedule([0.0, 1.0], table).jumps and not Frozen().jumps
    jumping = law_with(jump=lambda self, D, t, dt, generator: np.eye(2))
    assert jumping.jumps and law_config(jumping)["jumps"] and "jumps" not in law_config(HeadLaw())
    replaced = HeadLaw()
    replaced.jump = lambda D, t, dt, generator: np.eye(2)
    assert replaced.jumps


def test_a_subclass_that_only_adds_noise_is_not_taken_for_deterministic():
    class Noisy(HeadLaw):
        def diffusion(self, D, t):
            return np.ones(D.shape[:2])

    assert not Noisy().deterministic
    assert Noisy().step(np.zeros((1, 2, 2, 2)), 0.0, 0.1, np.ones((1, 2, 2, 2))).noise.all()


@pytest.mark.parametrize(
    "drift",
    [lambda D, t: -1.0, lambda D, t: -np.ones((3, 3)), lambda D, t: np.full(D.shape, -1, "f4")],
)
def test_one_number_or_matrix_is_repeated(drift):
    options = {"heads": 2, "t_final": 0.2, "dt": 0.1, "paths": 3}
    same = wflow.solve(np.eye(3), HeadLaw(lambda D, t: np.full(D.shape, -1.0)), **options)
    assert wflow.solve(np.eye(3), HeadLaw(drift), **options).energy.equals(same.energy)


def test_times_of_isotropic_heads_are_those_of_values_i_over_beta():
    """Against x' = P_x sum_j a_j x_j, the attention of [GLPR], by SciPy."""
    beta, dt, steps = 3.0, 0.05, 20
    x0 = wflow.tokens.uniform(n=8, d=3, seed=0)
    heads = wflow.heads.isotropic(beta, d=3)
    run = wflow.solve(x0, Frozen(), heads=heads, direction="ascent", scheme="rk4",
                      t_final=steps * dt / beta, dt=dt / beta)  # fmt: skip

    def velocity(t, x):
        x = x.reshape(x0.shape)
        weights = np.exp(beta * x @ x.T)
        pull = weights @ x / weights.sum(1, keepdims=True)
        return (pull - (pull * x).sum(1, keepdims=True) * x / (x * x).sum(1, keepdims=True)).ravel()

    known = solve_ivp(velocity, (0, steps * dt), np.ravel(x0), rtol=1e-10, atol=1e-12).y[:, -1]
    assert np.abs(run.tokens.values[0, -1].ravel() - known).max() < 1e-5
    np.testing.assert_array_equal(wflow.heads.isotropic([1, -2], 2)[1], [[-2, 0], [0, -2]])


def mha(width=6, heads=3, **options):
    torch = pytest.importorskip("torch")
    dtype = options.pop("dtype", torch.float64)
    torch.manual_seed(0)
    return torch.nn.MultiheadAttention(width, heads, dtype=dtype, **options).eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"batch_first": True, "dropout": 0.3}])
def test_heads_of_an_attention_of_torch_move_tokens_by_what_it_returns(
    options, dtype, tolerance, causal
):
    torch = pytest.importorskip("torch")
    attention = mha(**options, dtype=getattr(torch, dtype))
    if attention.in_proj_bias is not None:
        torch.nn.init.normal_(attention.in_proj_bias[6:12])  # that of the keys changes no softmax
    x = wflow.tokens.uniform(n=7, d=6, seed=0)
    given, hidden = torch.from_numpy(x).to(attention.out_proj.weight.dtype), None
    if causal:
        hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    with torch.no_grad():
        out = attention(given, given, given, attn_mask=hidden)[0].double().numpy()
    heads = QKV.from_torch(attention)
    scores, values = heads.matrices()
    found = evaluate(x[None], scores[None], values=values, causal=causal).velocity[0]
    assert np.abs(found - wflow.sphere.project(x, out)).max() <= tolerance
    run = wflow.solve(x, Frozen(), heads=heads, t_final=1e-5, dt=1e-5, causal=causal)
    assert np.abs((run.tokens.values[0, -1] - x) / 1e-5 - found).max() < 1e-4


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kdim": 4}, "kdim = 4"),
        ({"vdim": 4}, "vdim = 4"),
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ("in_proj_bias", "in_proj_bias"),
        ("out_proj.bias", 'out_proj.bias.*biases="drop"'),
        ({"device": "meta"}, "meta"),
        ("out_proj.weight", "finite"),
    ],
)
def test_attention_of_torch_that_is_no_law_of_heads_is_refused_by_name(change, match):
    attention = mha(**(change if isinstance(change, dict) else {}))
    if isinstance(change, str):
        value = np.nan if change.endswith("weight") else 0.1
        attention.get_parameter(change).data.fill_(value)
    for wrong, words in ((attention, match), (attention.out_proj, "MultiheadAttention")):
        with pytest.raises(InputError, match=words):
            QKV.from_torch(wrong)


def test_biases_of_an_attention_are_dropped_where_that_is_asked_for():
    torch, attention = pytest.importorskip("torch"), mha()
    want = QKV.from_torch(attention)
    for bias in (attention.in_proj_bias, attention.out_proj.bias):
        torch.nn.init.normal_(bias)
    found = QKV.from_torch(attention, biases="drop")
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name))
    with pytest.raises(InputError, match="biases"):
        QKV.from_torch(attention, biases="keep")


def test_an_attention_is_a_module_of_torch():
    for wrong in (None, "attention", np.eye(3)):
        with pytest.raises(InputError, match="MultiheadAttention"):
            QKV.from_torch(wrong)
