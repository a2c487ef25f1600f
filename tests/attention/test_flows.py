"""Flows: the contract of a custom one against the kernels of the three of wflow, and its runs."""

import json

import numpy as np
import pytest
from run_layouts import same_bits
from twin import symmetric, unit

import wflow
from wflow import Compute, InputError, SaveAt, flows, stability, stationary
from wflow.analysis.verify import verify
from wflow.attention.flows import FLOWS, Flow, evaluate, flow_config, flow_from_config, register
from wflow.heads import QKV, Frozen, HeadLaw, OrnsteinUhlenbeck
from wflow.kernels.evaluate import FLOWS as KERNELS


class MySoftmax(Flow):
    general_heads = True

    def velocity(self, cloud):
        return cloud.attention()

    def log_metric(self, cloud):
        return -np.log(np.mean(np.exp(-cloud.log_mobility()), axis=1))


class MyUnnormalised(Flow):
    def velocity(self, cloud):
        return cloud.attention(log_factors=cloud.log_mobility())

    def gradient_flow(self, heads):
        return True


class MyEffective(MySoftmax):
    def velocity(self, cloud):
        log_m = cloud.log_mobility()
        return cloud.attention(log_factors=log_m - self.log_metric(cloud)[:, None])


class Balanced(Flow):
    """Doubly stochastic attention (Sander, Ablin, Blondel, Peyre 2022), D symmetric."""

    def __init__(self, rounds=60):
        self.rounds = rounds

    def potential_of(self, cloud):
        """Return f with (1/n) sum_j e^{f_i + f_j} exp(<x_i, D x_j>) = 1, (paths, heads, n)."""
        f = -cloud.log_mobility() / 2
        for _ in range(self.rounds):
            f = (f - cloud.log_mobility(f)) / 2
        return f

    def velocity(self, cloud):
        return cloud.attention(log_weights=self.potential_of(cloud))

    def to_config(self):
        return {"rounds": self.rounds}


OWN = {"softmax": MySoftmax(), "unnormalised": MyUnnormalised(), "effective": MyEffective()}


def cloud_of(n, d, paths=1, heads=1, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return flows.Cloud(unit(rng, paths, n, d), scale * symmetric(rng, paths, heads, d, d))


@pytest.mark.parametrize("direction", ["descent", "ascent"])
@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("d", [2, 3, 12])
@pytest.mark.parametrize("name", KERNELS)
def test_a_flow_written_as_a_class_has_velocities_and_terms_of_the_kernel(name, d, kind, direction):
    rng = np.random.default_rng(d)
    paths, heads, n = 2, 3, 17
    x = unit(rng, paths, n, d).astype(kind)
    D, drift, noise = (symmetric(rng, paths, heads, d, d).astype(kind) / 2 for _ in range(3))
    how = {"drift": drift, "noise": noise, "sigma2": rng.random((paths, heads)).astype(kind)}
    how |= {"direction": direction, "symmetric": True}
    kernel = evaluate(x, D, flow=name, **how)
    own = evaluate(x, D, flow=OWN[name], **how)
    rounding = 1e-13 if kind == "float64" else 1e-5
    assert own.velocity.dtype == kernel.velocity.dtype
    assert np.abs(own.velocity - kernel.velocity).max() <= rounding * np.abs(kernel.velocity).max()
    assert list(own.terms) == list(kernel.terms)
    for term, values in kernel.terms.items():
        scale = np.abs(values) + (term == "edi_defect") * np.abs(kernel.terms["dissipation"])
        assert np.all(np.abs(own.terms[term] - values) <= rounding * scale), term


@pytest.mark.parametrize("direction", ["descent", "ascent"])
@pytest.mark.parametrize("flow", [flows.Softmax, flows.Unnormalised, flows.Effective])
def test_terms_of_a_class_are_those_of_the_kernel_where_scores_leave_the_range(flow, direction):
    """Scores up to about 5000: energies are inf, velocities of softmax attention are right."""
    cloud = cloud_of(9, 3, heads=2, scale=2000.0)
    own = type("Own", (flow,), {})()
    assert FLOWS.is_custom(own)
    found = evaluate(cloud.x, cloud.D, flow=own, direction=direction)
    kernel = evaluate(cloud.x, cloud.D, flow=flow.name, direction=direction)
    assert np.isinf(kernel.terms["energy"]).all()
    assert np.isfinite(found.velocity).all() == (flow is flows.Softmax)
    assert np.allclose(found.velocity, kernel.velocity, rtol=1e-10, equal_nan=True)
    for term, values in kernel.terms.items():
        assert np.allclose(found.terms[term], values, rtol=1e-10), term


def test_general_heads_and_a_causal_mask_reach_a_flow_that_admits_them():
    rng = np.random.default_rng(4)
    x0 = unit(rng, 12, 3)
    heads = QKV(*rng.normal(size=(3, 2, 3, 3)))
    how = {"heads": heads, "t_final": 0.2, "dt": 0.05, "causal": True}
    kernel = wflow.solve(x0, Frozen(), **how)["tokens"].values
    own = wflow.solve(x0, Frozen(), flow=MySoftmax(), **how)["tokens"].values
    assert np.abs(own - kernel).max() < 1e-14
    for options in (how | {"causal": False}, how | {"heads": np.eye(3)[None]}):
        with pytest.raises(InputError, match="general_heads"):
            wflow.solve(x0, Frozen(), flow=Balanced(), **options)


def test_the_part_of_a_velocity_along_the_token_is_left_out():
    class Outwards(MySoftmax):
        def velocity(self, cloud):
            return super().velocity(cloud) + 3.0 * cloud.x

    cloud = cloud_of(7, 3)
    x, D = cloud.x[0], cloud.D[0]
    assert np.allclose(wflow.velocity(x, D, flow=Outwards()), wflow.velocity(x, D), atol=1e-14)


def test_rows_and_columns_of_sinkhorn_attention_sum_to_one():
    cloud, flow = cloud_of(40, 3, paths=2, heads=2, scale=0.7), Balanced(rounds=300)
    f = flow.potential_of(cloud)
    scores = np.einsum("pia,phab,pjb->phij", cloud.x, cloud.D, cloud.x)
    plan = np.exp(f[..., :, None] + scores + f[..., None, :]) / 40
    assert np.abs(plan.sum(axis=3) - 1).max() < 1e-12
    assert np.abs(plan.sum(axis=2) - 1).max() < 1e-12
    attended = np.einsum("phij,pjb->phib", plan, cloud.x)
    assert np.allclose(attended.mean(axis=2), cloud.x.mean(axis=1)[:, None], atol=1e-13)
    v = np.einsum("phab,phib->pia", cloud.D, attended) / 2
    v -= np.einsum("pia,pia->pi", v, cloud.x)[..., None] * cloud.x
    assert np.abs(flow.velocity(cloud) - v).max() < 1e-11


def test_sinkhorn_attention_is_a_gradient_flow_in_w2():
    """v_i is n times the tangential gradient of F = -(1/(H n)) sum_hi f_hi, by differences."""
    x, D = cloud_of(11, 3, heads=2).x[0], cloud_of(11, 3, heads=2).D[0]
    flow, step = Balanced(rounds=200), 1e-5

    def energy(tokens):
        return -flow.potential_of(flows.Cloud(tokens[None], D[None])).mean()

    v = wflow.velocity(x, D, flow=flow, direction="ascent")
    for i, direction in ((0, 1), (4, 0), (7, 2)):
        tangent = np.eye(3)[direction] - x[i, direction] * x[i]
        ends = [x.copy(), x.copy()]
        for end, sign in zip(ends, (-1, 1), strict=True):
            end[i] += sign * step * tangent
            end[i] /= np.linalg.norm(end[i])
        slope = (energy(ends[1]) - energy(ends[0])) / (2 * step)
        assert 11 * slope == pytest.approx(v[i] @ tangent, rel=1e-6)


@pytest.mark.parametrize(("direction", "sign"), [("descent", -1), ("ascent", 1)])
def test_the_potential_of_sinkhorn_attention_changes_by_the_integral_of_the_speed(direction, sign):
    cloud = cloud_of(20, 3, scale=0.5)
    x, D, flow = cloud.x[0], cloud.D[0], Balanced(rounds=200)
    run = wflow.solve(
        x, Frozen(), heads=D, t_final=0.6, dt=0.02, scheme="rk4", flow=flow, direction=direction
    )
    ends = [run["tokens"].values[0, at] for at in (0, -1)]
    before, after = (-flow.potential_of(flows.Cloud(y[None], D[None])).mean() for y in ends)
    gained = sign * float(run["dissipated_upper_gradient"][0, -1])  # of b = 1
    assert abs(gained) > 0.1
    assert after - before == pytest.approx(gained, rel=1e-7)
    assert float(np.abs(run["edi_residual"]).max()) < 1e-7


OPTIONS = {"heads": 3, "t_final": 0.5, "dt": 0.02, "paths": 3, "seed": 2}
OPTIONS |= {"save": SaveAt(heads=True)}
TWO = Compute(batch=2)


def test_a_run_of_a_custom_flow_is_verified_run_again_and_resumed(tmp_path):
    register(Balanced)
    x0, law = unit(np.random.default_rng(0), 15, 3), OrnsteinUhlenbeck(np.eye(3))
    out = tmp_path / "run.h5"
    whole = wflow.solve(x0, law, flow=Balanced(20), out=out, compute=TWO, **OPTIONS)
    config = json.loads(whole.attrs["config"])["flow"]
    assert config == flow_config(Balanced(20)) and config["rounds"] == 20
    report = verify(out)
    assert report.passed, str(report)
    notes = {check.name: check for check in report.checks}
    assert notes["the first recorded step follows from the configuration"].passed
    same = notes["dissipation and upper_gradient_sq coincide"]
    assert same.passed is None and "flow = Balanced" in same.note
    same_bits(wflow.rerun(out), whole)
    same_bits(wflow.solve(x0, law, flow=Balanced(20), compute=Compute(batch=1), **OPTIONS), whole)
    again = OPTIONS | {"out": out, "if_exists": "resume", "compute": TWO}
    wflow.solve(x0, law, flow=Balanced(20), **again).close()
    for other in (Balanced(19), "softmax"):
        with pytest.raises(InputError, match="differs in flow"):
            wflow.solve(x0, law, flow=other, **again)
    other = wflow.rerun(out, flow="softmax")
    assert json.loads(other.attrs["config"])["flow"] == "softmax"
    whole.close()


def test_adaptive_steps_and_noisy_tokens_take_a_custom_flow():
    cloud = cloud_of(10, 3, scale=0.3)
    x, D = cloud.x[0], cloud.D[0]
    ends = {}
    how = {"heads": D, "t_final": 1.0, "dt": 0.05, "flow": Balanced(20)}
    for scheme in ("dopri5", "rk4"):
        run = wflow.solve(x, Frozen(), scheme=scheme, **how)
        ends[scheme] = run["tokens"].values[0, -1]
        assert float(np.abs(run["edi_residual"]).max()) < 1e-6
    assert np.abs(ends["dopri5"] - ends["rk4"]).max() < 1e-6
    how |= {"t_final": 0.5, "dt": 0.01, "flow": Balanced(5)}
    noisy = wflow.solve(x, Frozen(), kappa=0.1, paths=20, **how)
    residual = noisy["edi_residual"].values[:, -1]
    assert abs(residual.mean()) < 5 * residual.std() / np.sqrt(20)


def test_a_flow_comes_back_from_its_configuration():
    register(Balanced)
    for name in KERNELS:
        assert flow_config(name) == name == flow_config(flow_from_config(name))
    config = flow_config(Balanced(7))
    again = flow_from_config(config)
    assert isinstance(again, Balanced) and again.rounds == 7
    with pytest.raises(InputError, match="fingerprint"):
        flow_from_config(config | {"rounds": 8})
    with pytest.raises(InputError, match="'Other'"):
        flow_from_config({"name": "Other"})


def test_a_flow_that_is_not_registered_is_asked_for(tmp_path):
    x0, out = np.eye(3), tmp_path / "run.h5"
    how = {"heads": 1, "t_final": 0.1, "dt": 0.05}
    wflow.solve(x0, Frozen(), flow=Balanced(3), out=out, **how).close()
    with pytest.raises(InputError, match="'Balanced'"):
        wflow.rerun(out)
    replay = "the first recorded step follows from the configuration"
    check = next(check for check in verify(out).checks if check.name == replay)
    assert check.passed is None and "'Balanced' is custom" in check.note
    assert wflow.rerun(out, flow=Balanced(3)).attrs["complete"]


class Wrong(Flow):
    def __init__(self, found):
        self.found = found

    def velocity(self, cloud):
        return self.found(cloud)


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        ("sofmax", "'sofmax'"), (Balanced, "Balanced"), (Flow(), "velocity"),
        (Wrong(lambda cloud: cloud.x[0]), r"Wrong.velocity\(cloud\)"),
        (Wrong(lambda cloud: None), r"Wrong.velocity\(cloud\)"),
        (Wrong(lambda cloud: cloud.x.__imul__(2.0)), "write"),
        (Wrong(lambda cloud: cloud.log_mobility().__imul__(2.0)), "write"),
    ],
)  # fmt: skip
def test_what_is_no_flow_is_refused(flow, said):
    with pytest.raises(InputError, match=said):
        wflow.velocity(np.eye(3), np.eye(3)[None], flow=flow)
    with pytest.raises(InputError, match=said):
        wflow.solve(np.eye(3), Frozen(), heads=1, t_final=0.1, dt=0.1, flow=flow)


def test_verify_finds_a_flow_that_claims_a_balance_that_it_does_not_have():
    class Claims(MySoftmax):
        def gradient_flow(self, heads):
            return True

    register(Claims)
    checks = []
    for heads in (1, 4):
        x0, how = unit(np.random.default_rng(0), 9, 3), {"t_final": 0.2, "dt": 0.01}
        run = wflow.solve(x0, Frozen(), heads=heads, flow=Claims(), **how)
        name = "dissipation and upper_gradient_sq coincide"
        checks += [check.passed for check in verify(run).checks if check.name == name]
    assert checks == [True, False]


def test_bounds_and_stationary_laws_are_those_that_a_flow_states():
    class Known(MySoftmax):
        potential = "log m"

        def growth(self, norms):
            return flows.softmax.growth(norms)

    D = cloud_of(3, 3, heads=2).D[0]
    with pytest.raises(InputError, match="Balanced"):
        stability.growth_constant(D, flow=Balanced())
    assert stability.growth_constant(D, flow=Known()) == stability.growth_constant(D)
    with pytest.raises(InputError, match="Balanced"):
        stationary.critical_diffusion(1.0, 3, Balanced())
    with pytest.raises(InputError, match="Balanced"):
        stationary.stationary_order(1.0, 3, 0.5, Balanced())
    assert stationary.critical_diffusion(1.0, 3, Known()) == stationary.critical_diffusion(1.0, 3)


def test_the_exponent_of_a_run_asks_its_flow_for_the_growth():
    x0, law = unit(np.random.default_rng(0), 9, 3), HeadLaw(lambda D, t: -D)
    how = {"heads": 2, "t_final": 0.2, "dt": 0.05, "save": SaveAt(snapshots=[0.0, 0.1, 0.2])}
    register(MySoftmax)
    with pytest.raises(InputError, match="growth"):
        stability.exponent(wflow.solve(x0, law, flow=MySoftmax(), **how), law=law)
    assert float(stability.exponent(wflow.solve(x0, law, **how), law=law)[0, -1]) > 0
