"""`wflow.gradient` against finite differences of runs, a twin in torch, and itself."""

import tracemalloc

import numpy as np
import pytest
from twin import by_threads, same, torch_velocity

import wflow
from wflow import BlowUpError, InputError
from wflow.gradients import adjoint
from wflow.heads import (
    QKV,
    CompoundPoisson,
    Frozen,
    HeadLaw,
    OrnsteinUhlenbeck,
    Oscillating,
    Schedule,
)

# Derivatives by directions: x0 leaves the sphere.
pytestmark = pytest.mark.filterwarnings("ignore:x0.*unit sphere:wflow.WflowWarning")

RNG = np.random.default_rng(5)
N, D_, H, PATHS = 6, 3, 2, 2
X = RNG.standard_normal((N, D_))
START = 0.5 * RNG.standard_normal((H, D_, D_))
KNOTS = 0.5 * RNG.standard_normal((3, H, D_, D_))
QUERY, KEY, VALUE = RNG.standard_normal((3, H, D_, D_))
TARGET = RNG.standard_normal((PATHS, 3, N, D_))
LOSS = wflow.losses.Tokens(TARGET)
SAVE = wflow.SaveAt(snapshots=[0, 0.3, 0.6], paths=range(PATHS), budget=False)
RUN = {"t_final": 0.6, "dt": 0.1, "paths": PATHS, "seed": 3, "save": SAVE}
PRECISE = wflow.Dopri5(rtol=1e-11, atol=1e-13)
RALSTON = wflow.Tableau("ralston", 2, (0, 2 / 3), ((), (2 / 3,)), (1 / 4, 3 / 4))


def loss_of(x0, law, **given):
    return LOSS(wflow.solve(x0, law, **{**RUN, **given}).tokens.values)[0]


def slope(function, h=1e-3):
    """Derivative at 0 of a function of a number, of order 4."""
    return (8 * (function(h) - function(-h)) - function(2 * h) + function(-2 * h)) / (12 * h)


def close(found, expected):
    assert abs(found - expected) <= 1e-7 * max(1.0, abs(expected))


IDENTITY = np.eye(3)


def ou(mean=IDENTITY, rate=1.3, sigma2=0.5, exact=False):
    return OrnsteinUhlenbeck(mean, rate, sigma2, exact=exact)


LAWS = {
    "frozen": lambda: Frozen(),
    "ou": ou,
    "exact": lambda: ou(exact=True),
    "oscillating": lambda: Oscillating(3),
    "noisy oscillating": lambda: Oscillating(3, sigma2=0.3),
    "linear": lambda: Schedule([0, 0.2, 0.6], KNOTS),
    "constant": lambda: Schedule([0, 0.2, 0.5], KNOTS, "constant"),
}
DETERMINISTIC = ("frozen", "oscillating", "linear", "constant")
CASES = [(law, scheme, {}) for law in DETERMINISTIC for scheme in ("rk4", PRECISE)]
CASES += [(law, "euler", {}) for law in LAWS]
CASES += [("ou", "sra1", {}), ("noisy oscillating", "sra1", {}), ("oscillating", "sra1", {})]
CASES += [("ou", "euler", {"kappa": 0.05}), ("frozen", "rk4", {"causal": True})]
CASES += [("ou", "sra1", {"flow": flow}) for flow in ("unnormalised", "effective")]
CASES += [("frozen", "heun", {"flow": "effective", "direction": "ascent"})]


@pytest.mark.parametrize(("name", "scheme", "how"), CASES)
def test_tokens_and_initial_heads_against_differences(name, scheme, how):
    law, how = LAWS[name](), {"scheme": scheme, **how}
    if not isinstance(law, Schedule):
        how["heads"] = START
    found = wflow.gradient(X, law, loss=LOSS, **RUN, **how)
    assert found.value == loss_of(X, law, **how)
    e = RNG.standard_normal(X.shape)
    close(np.sum(found.x0 * e), slope(lambda h: loss_of(X + h * e, law, **how)))
    if "heads" in how:
        e = RNG.standard_normal(START.shape)
        expected = slope(lambda h: loss_of(X, law, **{**how, "heads": START + h * e}))
        close(np.sum(found.initial_heads * e), expected)


@pytest.mark.parametrize(("scheme", "exact"), [("euler", False), ("euler", True), ("sra1", False)])
def test_parameters_of_ornstein_uhlenbeck(scheme, exact):
    how = {"heads": START, "scheme": scheme}
    for mean in (np.eye(3), np.stack([np.eye(3), np.diag([1.0, 2.0, 3.0])])):
        law = wflow.gradient(X, ou(mean, exact=exact), loss=LOSS, **RUN, **how).law
        e = RNG.standard_normal(mean.shape)
        e = e + e.swapaxes(-1, -2)
        laws = {
            "mean": lambda h, m=mean, e=e: ou(m + h * e, exact=exact),
            "rate": lambda h, m=mean: ou(m, rate=1.3 + h, exact=exact),
            "sigma2": lambda h, m=mean: ou(m, sigma2=0.5 + h, exact=exact),
        }
        assert law.keys() == laws.keys()
        for name, made in laws.items():
            expected = slope(lambda h, made=made: loss_of(X, made(h), **how))
            close(np.sum(law[name] * (e if name == "mean" else 1.0)), expected)


@pytest.mark.parametrize("interpolation", ["linear", "constant"])
@pytest.mark.parametrize("scheme", ["euler", "rk4", PRECISE])
def test_tables_of_a_schedule(interpolation, scheme):
    times, values = [0, 0.2, 0.5], RNG.standard_normal((3, H, D_, D_))
    keys = np.broadcast_to(np.eye(3), KNOTS.shape)
    law = Schedule(times, QKV(KNOTS.swapaxes(-1, -2), keys, values), interpolation)
    found = wflow.gradient(X, law, loss=LOSS, scheme=scheme, **RUN).law
    e, f = RNG.standard_normal((2, *KNOTS.shape))

    def changed(h):
        scores = (KNOTS + h * e).swapaxes(-1, -2)
        return loss_of(
            X, Schedule(times, QKV(scores, keys, values + h * f), interpolation), scheme=scheme
        )

    close(np.sum(found["scores"] * e) + np.sum(found["values"] * f), slope(changed))


def test_oscillating_noise_and_values_of_general_heads():
    law = wflow.gradient(X, Oscillating(3, sigma2=0.3), heads=START, loss=LOSS, **RUN).law
    expected = slope(lambda h: loss_of(X, Oscillating(3, sigma2=0.3 + h), heads=START))
    close(law["sigma2"], expected)
    how = {"scheme": "rk4", "causal": True}
    found = wflow.gradient(X, Frozen(), heads=QKV(QUERY, KEY, VALUE), loss=LOSS, **RUN, **how)
    e = RNG.standard_normal(VALUE.shape)
    expected = slope(lambda h: loss_of(X, Frozen(), heads=QKV(QUERY, KEY, VALUE + h * e), **how))
    close(np.sum(found.initial_values * e), expected)


TWINS = [("euler", "effective", {}), ("heun", "unnormalised", {}), ("rk4", "softmax", {}),
         (RALSTON, "effective", {"direction": "ascent"}), ("sra1", "softmax", {"causal": True}),
         (wflow.Dopri5(rtol=1e-4), "unnormalised", {})]  # fmt: skip


@pytest.mark.parametrize(("scheme", "flow", "how"), TWINS)
def test_derivatives_are_those_of_a_twin_by_automatic_differentiation(scheme, flow, how):
    """Ornstein-Uhlenbeck heads, noise held fast, and the steps that the run took."""
    torch = pytest.importorskip("torch")
    noisy = scheme in ("euler", "sra1")
    law, loss = ou(sigma2=0.5 * noisy), wflow.losses.Tokens(TARGET[0])
    save = wflow.SaveAt(snapshots=[0, 0.3, 0.6], budget=False)
    run = RUN | {"paths": 1, "heads": START, "scheme": scheme, "flow": flow, "save": save} | how
    taken = adjoint.Trajectory(adjoint.differentiable_problem(X, law, **run))
    (steps,) = taken._batches[0].segments()
    physical = {"flow": flow, "causal": how.get("causal", False)}
    physical["sign"] = 1.0 if how.get("direction") == "ascent" else -1.0
    tableau = taken.problem.scheme
    inputs = [torch.tensor(a, dtype=torch.float64, requires_grad=True)
              for a in (X, START, IDENTITY, 1.3)]  # fmt: skip
    start, D, mean, rate = inputs

    def on_sphere(y):
        return y / y.norm(dim=-1, keepdim=True)

    def added(slopes, row, dt):
        return sum(dt * weight * slope for weight, slope in zip(row, slopes, strict=True))

    x, seen = on_sphere(start), []
    for k, step in enumerate(steps):
        if k in taken._batches[0].sink.places:
            seen.append(x)
        dt, move = step.dt, step.move
        noise, area = (torch.tensor(0.0 if of is None else of[0]) for of in
                       (move.noise, move.mean_noise))  # fmt: skip
        slopes, drifts = [], []
        for at in range(tableau.stages):
            _, row, share = tableau.row(at)
            inner = D + added(drifts, row, dt) + share * area
            drifts.append(rate * (mean - inner))
            y = on_sphere(x + added(slopes, row, dt))
            slopes.append(torch_velocity(y, inner, **physical))
        x = on_sphere(x + added(slopes, tableau.weights, dt))
        D = D + added(drifts, tableau.weights, dt) + noise
    value = ((torch.stack([*seen, x]) - torch.tensor(TARGET[0])) ** 2).sum() / N
    expected = torch.autograd.grad(value, inputs)
    found = wflow.gradient(X, law, loss=loss, **run)
    mine = found.x0, found.initial_heads[0], found.law["mean"], found.law["rate"]
    for a, b in zip(expected, mine, strict=True):
        assert np.abs(a.numpy() - b).max() <= 1e-11 * float(a.abs().max())


@pytest.mark.parametrize("loss", ["W2", "chordal", "MeanCosine", "Energy"])
def test_losses_against_differences(loss):
    loss = {
        "W2": wflow.losses.W2(wflow.tokens.uniform(4, 3, seed=1)),
        "chordal": wflow.losses.W2(wflow.tokens.uniform(N, 3, seed=1), cost="chordal"),
        "MeanCosine": wflow.losses.MeanCosine(),
        "Energy": wflow.losses.Energy(),
    }[loss]
    symmetric, e = START + START.swapaxes(-1, -2), RNG.standard_normal(START.shape)
    e = e + e.swapaxes(-1, -2)
    how = {**RUN, "scheme": "sra1", "loss": loss}

    def value(h, of):
        law = ou(np.eye(3) + of * h * e[0])
        return wflow.gradient(X, law, heads=symmetric + h * e, **how).value

    found = wflow.gradient(X, ou(), heads=symmetric, **how)
    at_start = np.sum(found.initial_heads * e)
    close(at_start, slope(lambda h: value(h, 0)))
    close(at_start + np.sum(found.law["mean"] * e[0]), slope(lambda h: value(h, 1)))


def test_taylor_remainders_are_of_second_order():
    found = wflow.gradient(X, ou(), heads=START, loss=LOSS, **RUN)
    e = RNG.standard_normal(X.shape)
    rest = [
        abs(loss_of(X + h * e, ou(), heads=START) - found.value - h * np.sum(found.x0 * e))
        for h in (1e-2, 1e-3, 1e-4)
    ]
    assert np.allclose(np.log10(np.array(rest[:-1]) / rest[1:]), 2, atol=0.1)


def test_threads_batches_and_checkpoints_do_not_change_a_bit(monkeypatch):
    x0 = wflow.tokens.uniform(150, 3, seed=0)
    run = RUN | {"save": wflow.SaveAt(snapshots=[0.3, 0.6]), "kappa": 0.02, "heads": 3}

    def found(**more):
        g = wflow.gradient(x0, ou(), loss=wflow.losses.MeanCosine(), **run, **more)
        return g.x0, g.initial_heads, g.law["mean"], np.array([g.law["rate"], g.law["sigma2"]])

    results = by_threads(found)
    results.append(found(compute=wflow.Compute(batch=1)))
    monkeypatch.setattr(adjoint, "_BYTES", 1)
    results.append(found())
    for other in results[1:]:
        assert all(same(a, b) for a, b in zip(results[0], other, strict=True))


def test_memory_grows_with_the_root_of_the_steps(monkeypatch):
    monkeypatch.setattr(adjoint, "_BYTES", 1)
    x0, peaks = wflow.tokens.uniform(300, 3, seed=0), []
    for steps in (16, 16, 256):
        tracemalloc.start()
        wflow.gradient(
            x0, Frozen(), heads=1, loss=wflow.losses.MeanCosine(), t_final=steps * 1e-3, dt=1e-3
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 6 * peaks[1]


def test_memory_does_not_grow_with_paths_beyond_their_tokens(monkeypatch):
    monkeypatch.setattr(adjoint, "_BYTES", 1)
    x0, peaks = wflow.tokens.uniform(300, 3, seed=0), []
    for paths in (2, 2, 16):
        tracemalloc.start()
        wflow.gradient(
            x0, Frozen(), heads=1, loss=wflow.losses.MeanCosine(), t_final=0.03, dt=1e-3,
            paths=paths, save=wflow.SaveAt(snapshots=[0.03]),
        )  # fmt: skip
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] - peaks[1] < 14 * 12 * x0.nbytes


@pytest.mark.parametrize("scheme", ["heun", PRECISE])
def test_heads_of_all_evaluations_add_up_to_the_heads_at_rest(scheme):
    how = RUN | {"scheme": scheme, "heads": START}
    found = wflow.gradient(X, Frozen(), loss=LOSS, every_evaluation=True, **how)
    assert np.allclose(found.heads.sum(axis=1), found.initial_heads, rtol=1e-12, atol=1e-15)


def test_a_custom_law_has_derivatives_of_tokens_and_evaluations():
    law, how = HeadLaw(lambda D, t: -D, diffusion=0.2, symmetric=False), {"heads": START}
    found = wflow.gradient(X, law, loss=LOSS, every_evaluation=True, **RUN, **how)
    assert found.initial_heads is None and found.law == {}
    assert found.heads.shape == (PATHS, 6, H, D_, D_)
    e = RNG.standard_normal(X.shape)
    close(np.sum(found.x0 * e), slope(lambda h: loss_of(X + h * e, law, **how)))
    jumps = CompoundPoisson(Frozen(), rate=2.0)
    found = wflow.gradient(X, jumps, loss=LOSS, **RUN, **how)
    close(np.sum(found.x0 * e), slope(lambda h: loss_of(X + h * e, jumps, **how)))
    how["scheme"] = PRECISE
    found = wflow.gradient(X, Leaping(), loss=LOSS, **RUN, **how)
    assert found.value == loss_of(X, Leaping(), **how)
    close(np.sum(found.x0 * e), slope(lambda h: loss_of(X + h * e, Leaping(), **how)))


class Leaping(HeadLaw):
    """A law that jumps at the end of each step, or leg of adaptive steps."""

    deterministic = jumps = True

    def drift(self, D, t):
        return -D

    def jump(self, D, t, dt, generator):
        return D + np.sqrt(dt)


def test_derivatives_that_grow_without_bound_are_warned_of():
    antipodes = np.array([[1.0, 0, 0], [-1.0, 0, 0]])  # an unstable equilibrium
    with pytest.warns(wflow.AccuracyWarning, match="chaotic"):
        wflow.gradient(
            antipodes, Frozen(), heads=np.eye(3)[None], direction="ascent", t_final=100.0, dt=0.2,
            loss=wflow.losses.Tokens(np.eye(3)[:2]),
        )  # fmt: skip


def test_heads_that_act_before_tokens_contract_are_warned_of():
    law = Schedule([0, 30], np.stack([np.diag([1.0, 0, 0]), np.diag([0, 1.0, 0])])[:, None],
                   interpolation="constant")  # fmt: skip
    x0 = np.array([[1.0, 0.3, 0.2], [1.0, -0.1, 0.3]])
    with pytest.warns(wflow.AccuracyWarning, match="chaotic"):
        wflow.gradient(
            wflow.sphere.as_tokens(x0), law, direction="ascent", scheme="rk4", t_final=60.0,
            dt=0.05, loss=lambda x: (x[:, -1].sum(), np.ones_like(x)),
        )  # fmt: skip


def test_derivatives_beyond_the_range_of_floats_are_no_result():
    with pytest.raises(wflow.BlowUpError, match="derivatives"):
        wflow.gradient(
            np.eye(3)[[0, 0]], Frozen(), heads=60 * np.eye(3)[None], t_final=100.0, dt=0.2,
            loss=wflow.losses.Tokens(np.eye(3)[:2]),
        )  # fmt: skip


@pytest.mark.parametrize("scheme", ["euler", "dopri5"])
def test_runs_that_solve_refuses_or_gives_up_have_no_gradient(scheme):
    turned = HeadLaw(lambda D, t: np.triu(np.ones((3, 3))))  # says that it keeps heads symmetric
    steep = Schedule([0, 0.5], 1e7 * np.stack([0 * IDENTITY, IDENTITY])[:, None])
    run = {"t_final": 0.5, "dt": 0.1, "scheme": scheme}
    for law, heads, error in ((turned, IDENTITY[None], InputError), (steep, None, BlowUpError)):
        given = (IDENTITY[[0, 0]], law), run | {"heads": heads}
        with pytest.raises(error):
            wflow.solve(*given[0], **given[1])
        with pytest.raises(error):
            wflow.gradient(*given[0], **given[1], loss=wflow.losses.MeanCosine())


@pytest.mark.parametrize("rate", [1e-14, 1e-3, 0.3, 5000.0])
def test_any_rate_of_exact_steps(rate):
    law, how = ou(rate=rate, exact=True), {"heads": START}
    found = wflow.gradient(X, law, loss=LOSS, **RUN, **how).law["rate"]
    if rate > 1e-6:
        expected = slope(lambda h: loss_of(X, ou(rate=rate * (1 + h), exact=True), **how))
        close(found * rate, expected)
    else:  # the derivative at rate 0, by forward differences
        value = [loss_of(X, ou(rate=h, exact=True), **how) for h in (rate, 1e-4, 2e-4)]
        assert found == pytest.approx((4 * value[1] - 3 * value[0] - value[2]) / 2e-4, rel=1e-4)


def test_a_cloud_of_antipodes_is_at_the_distance_pi():
    x = IDENTITY[:1]
    value, derivatives = wflow.losses.W2(-x)(x[None, None])
    assert value == pytest.approx(np.pi**2) and not derivatives.any()


def test_values_that_a_law_prescribes_are_no_initial_values():
    table = np.broadcast_to(VALUE, KNOTS.shape)
    law = Schedule([0, 0.2, 0.6], QKV(KNOTS, KNOTS, table))
    found = wflow.gradient(X, law, loss=LOSS, **RUN)
    assert found.initial_values is None and found.law["values"].any()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": 3.0}, "loss"),
        ({"loss": wflow.losses.Energy(), "causal": True}, "no energy"),
        ({"loss": wflow.losses.Energy()}, "not symmetric"),
        (
            {
                "loss": wflow.losses.Energy(),
                "heads": 800 * IDENTITY[None],
                "dt": 1e-3,
                "t_final": 1e-3,
                "save": wflow.SaveAt(),
            },
            "range",
        ),
        ({"save": wflow.SaveAt(snapshots=[0.3, 0.1], budget=False)}, "increasing"),
        ({"save": wflow.SaveAt(snapshots=[0.3, 0.3], budget=False)}, "once"),
        ({"loss": wflow.losses.Energy}, "loss"),
        ({"loss": lambda x: (np.nan, x)}, "value of the loss"),
        ({"t_final": 1e9, "dt": 1e-3}, "memory"),
        ({"loss": lambda x: 1.0}, "value, derivatives"),
        ({"loss": lambda x: (1.0, x[0])}, "shape"),
        ({"loss": lambda x: (x, x)}, "expected a number"),
        ({"loss": lambda x: (1.0, np.full_like(x, np.nan))}, "derivatives of the loss"),
        ({"loss": wflow.losses.Tokens(np.eye(3))}, "target"),
        ({"loss": wflow.losses.W2(np.eye(2))}, "dimension"),
        ({"loss": wflow.losses.Energy(), "heads": QKV(QUERY, KEY, VALUE)}, "no energy"),
        ({"save": wflow.SaveAt(snapshots=[0.25], budget=False)}, "not a time of a step"),
        ({"compute": wflow.Compute(dtype="float32")}, "double precision"),
        ({"compute": wflow.Compute(backend="torch")}, "numba"),
        ({"law": ou(exact=True), "scheme": "sra1"}, "sra1"),
        ({"dt": 0.7}, "dt"),
    ],
)
def test_what_has_no_gradient_is_refused(given, words):
    run = {"x0": X, "law": Frozen(), "heads": START, "loss": wflow.losses.MeanCosine(), **RUN}
    with pytest.raises(InputError, match=words):
        wflow.gradient(**run | given)


@pytest.mark.parametrize("method", ["fast", "auto"])
def test_many_tokens_take_the_fast_sums_of_the_run(method):
    """The value is that of `wflow.solve`; the derivatives keep the tolerance of the sums."""
    x, save = wflow.tokens.uniform(n=1200, d=3, seed=0), wflow.SaveAt(budget=False)
    run = {"heads": START, "t_final": 0.1, "dt": 0.1, "save": save, "seed": 2}
    found, exact = (
        wflow.gradient(
            x, ou(), loss=wflow.losses.MeanCosine(), compute=wflow.Compute(method=one), **run
        )
        for one in (method, "exact")
    )
    tokens = wflow.solve(x, ou(), compute=wflow.Compute(method=method), **run).tokens
    end = np.asarray(tokens[0, -1])
    assert found.value == wflow.losses.MeanCosine()(end[None, None])[0]
    assert (0 < found.sum_error < 1e-9) == (method == "fast")
    for name in ("x0", "initial_heads"):
        wanted = getattr(exact, name)
        assert np.abs(getattr(found, name) - wanted).max() <= 1e-8 * np.abs(wanted).max()
    assert abs(found.law["rate"] - exact.law["rate"]) <= 1e-8 * abs(exact.law["rate"])


def test_custom_flows_and_runs_that_blow_up_are_refused():
    class Still(wflow.Flow):
        def velocity(self, cloud):
            return cloud.attention()

    run = {"heads": START, "loss": LOSS, **RUN}
    with pytest.raises(InputError, match="no adjoint"):
        wflow.gradient(X, Frozen(), flow=Still(), **run)
    with pytest.raises(wflow.BlowUpError):
        wflow.gradient(X, Frozen(), **run | {"heads": 1e3 * START})


def test_a_run_is_a_function_of_torch():
    torch = pytest.importorskip("torch")
    run = wflow.interop.torch(ou(), **RUN)
    x0, heads = (torch.tensor(a, requires_grad=True) for a in (X, START))
    value = ((run(x0, heads) - torch.tensor(TARGET)) ** 2).sum() / (PATHS * N)
    (2 * value).backward(retain_graph=True)
    found = wflow.gradient(X, ou(), heads=START, loss=LOSS, **RUN)
    assert np.allclose(x0.grad.numpy(), 2 * found.x0, rtol=1e-12)
    assert np.allclose(heads.grad.numpy(), 2 * found.initial_heads.sum(axis=0), rtol=1e-12)
    (again,) = torch.autograd.grad(value, x0)
    assert same(2 * again.numpy(), x0.grad.numpy())
    with pytest.raises(InputError, match="tensor"):
        run(X)
    with pytest.raises(TypeError, match="depth"):
        wflow.interop.torch(ou(), **RUN, depth=3)
    (once,) = torch.autograd.grad(run(x0, heads).sum(), x0, create_graph=True)
    with pytest.raises(InputError, match="second derivatives"):
        once.sum().backward()


@pytest.mark.parametrize("exact", [False, True])
def test_a_run_is_a_function_of_the_parameters_of_its_law(exact):
    torch = pytest.importorskip("torch")
    law, run = ou(exact=exact), wflow.interop.torch(OrnsteinUhlenbeck(np.eye(D_)), **RUN)
    if exact:
        run = wflow.interop.torch(OrnsteinUhlenbeck(np.eye(D_), exact=True), **RUN)
    given = {
        name: torch.tensor(getattr(law, name), requires_grad=True, dtype=torch.float64)
        for name in ("mean", "rate", "sigma2")
    }
    tokens = run(torch.tensor(X), torch.tensor(START), **given)
    (((tokens - torch.tensor(TARGET)) ** 2).sum() / (PATHS * N)).backward()
    found = wflow.gradient(X, law, heads=START, loss=LOSS, **RUN)
    for name, of in given.items():
        assert np.allclose(of.grad.numpy(), found.law[name], rtol=1e-12)


def test_a_run_is_a_function_of_the_tables_of_a_schedule():
    torch = pytest.importorskip("torch")
    table = np.stack([START, 2 * START])
    law = Schedule([0.0, 0.5], table)
    run = wflow.interop.torch(Schedule([0.0, 0.5], 0 * table), **RUN)
    scores = torch.tensor(table, requires_grad=True)
    (
        ((run(torch.tensor(X), scores=scores) - torch.tensor(TARGET)) ** 2).sum() / (PATHS * N)
    ).backward()
    assert np.allclose(
        scores.grad, wflow.gradient(X, law, loss=LOSS, **RUN).law["scores"], rtol=1e-12
    )


def test_parameters_that_a_law_does_not_have_are_refused():
    torch = pytest.importorskip("torch")
    x0, heads, one = torch.tensor(X), torch.tensor(START), torch.tensor(1.0, requires_grad=True)
    run = wflow.interop.torch(ou(), **RUN)
    for name, value in (("amplitude", one), ("name", one), ("rate", -one), ("mean", one)):
        with pytest.raises(InputError):
            run(x0, heads, **{name: value})
    with pytest.raises(InputError, match="tensor"):
        run(x0, heads, rate=1.0)
    still = run(x0, heads, sigma2=0 * one)
    with pytest.raises(InputError, match="no derivatives by sigma2"):
        still.sum().backward()
    with pytest.raises(InputError, match="no parameter"):
        wflow.interop.torch(Frozen(), **RUN)(x0, heads, rate=one)


def test_a_run_is_a_function_of_jax():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        run = jax.jit(wflow.interop.jax(ou(), **RUN))

        def value(x0, heads, **law):
            return ((run(x0, heads, **law) - TARGET) ** 2).sum() / (PATHS * N)

        of_x0, of_heads = jax.grad(value, (0, 1))(jax.numpy.array(X), jax.numpy.array(START))
        found = wflow.gradient(X, ou(), heads=START, loss=LOSS, **RUN)
        assert np.allclose(of_x0, found.x0, rtol=1e-12)
        assert np.allclose(of_heads, found.initial_heads.sum(axis=0), rtol=1e-12)
        of_law = jax.grad(lambda law: value(X, START, **law))(
            {"mean": ou().mean, "rate": ou().rate}
        )
        assert np.allclose(of_law["mean"], found.law["mean"], rtol=1e-12)
        assert np.allclose(of_law["rate"], found.law["rate"], rtol=1e-12)
        fixed = wflow.interop.jax(ou(), heads=START, **RUN)
        (of_x0,) = jax.vjp(fixed, jax.numpy.array(X))[1](2 / (PATHS * N) * (fixed(X) - TARGET))
        assert np.allclose(of_x0, found.x0, rtol=1e-12)
        with pytest.raises(InputError, match="int64"):
            fixed(jax.numpy.ones((N, D_), int))
