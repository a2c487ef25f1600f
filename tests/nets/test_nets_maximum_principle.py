"""Training by costates and by the maximum principle: MSA, its closed form, what it guarantees."""

import json
import math
from io import BytesIO

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from trainings import Body, Points, assert_same, crash, run

from wflow import InputError, nets
from wflow.nets import control, train
from wflow.nets.control.maximise import EndsPart, _pickled, groups_of
from wflow.nets.control.principle import recorded

pytestmark = pytest.mark.usefixtures("one_thread")

OBJECTIVE = train.objective(functional.cross_entropy, 1.0)


def fit(network, batch, objective=OBJECTIVE, **settings):
    """Return the history of a training, on one batch or on those of a function of the step."""
    batches = batch if callable(batch) else lambda step: batch
    settings = {"steps": 10, "batch": len(batches(0)[0]), "device": "cpu"} | settings
    return train.train(network, objective, batches, train.TrainConfig(**settings))


def draw(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def donut(seed=0, rows=40):
    x = draw(rows, 2, seed=seed)
    return x, (x.square().sum(1) > 1).long()


def resnet(seed=0, **options):
    torch.manual_seed(seed)
    settings = {"layers": 4, "width": 3} | options
    return nets.ControlledResNet(2, **settings).double()


class Drift(nn.Module):
    """f(x, u) = A x + B u with the control itself as the weight."""

    def __init__(self, a, b):
        super().__init__()
        self.u = nn.Parameter(torch.zeros(b.shape[1], dtype=torch.float64))
        self.a, self.b = a, b

    def forward(self, x):
        return x @ self.a.T + self.u @ self.b.T


A = torch.tensor([[0.0, 1.0], [-1.0, -0.2]], dtype=torch.float64)
B = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
Q = torch.tensor([[2.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
R = torch.tensor([[0.8]], dtype=torch.float64)
S = torch.tensor([[1.0, 0.0], [0.0, 0.5]], dtype=torch.float64)
X0 = torch.tensor([[1.0, -0.5]], dtype=torch.float64)


def quadratic(layer, x, f):
    return 0.5 * ((x @ Q * x).sum() + layer.u @ R @ layer.u)


def riccati(t_final, steps):
    """Return controls, value, by the discrete Riccati equation of Euler's scheme."""
    h = t_final / steps
    step, push = torch.eye(2, dtype=torch.float64) + h * A, h * B
    value, gains = S, []
    for _ in range(steps):
        gains.append(torch.linalg.solve(h * R + push.T @ value @ push, push.T @ value @ step))
        value = h * Q + step.T @ value @ (step - push @ gains[-1])
    x, controls = X0[0], []
    for gain in reversed(gains):
        controls.append(-gain @ x)
        x = step @ x + push @ controls[-1]
    return torch.stack(controls), 0.5 * X0[0] @ value @ X0[0]


def regulator(t_final, steps):
    return control.Dynamics([Drift(A, B) for _ in range(steps)], t_final, running=quadratic)


def terminal(model, x):
    state, cost = model(x)
    return train.Loss(0.5 * (state @ S * state).sum() + cost, {})


def controls_of(body):
    return torch.stack([layer.u.detach() for layer in body.layers])


def test_msa_converges_to_the_riccati_solution():
    body = regulator(0.2, 4)
    method = control.MSA(rho=0, iterations=6, tolerance=1e-6)
    history = fit(body, (X0,), terminal, steps=14, optimizer=method)
    expected, value = riccati(0.2, 4)
    torch.testing.assert_close(controls_of(body), expected, rtol=0, atol=1e-10)
    assert float(history.loss_after[-1]) == pytest.approx(float(value), abs=1e-10)
    # There the weights satisfy the maximum principle, and the gradient is zero.
    found = control.optimality(body, X0, lambda out: 0.5 * (out @ S * out).sum(), iterations=2)
    assert float(found.violations.max()) < 1e-12 and float(found.residuals.max()) < 1e-8


def test_msa_diverges_for_long_times_and_says_so_and_rho_makes_it_converge():
    plain = control.MSA(rho=0, iterations=5)
    with pytest.warns(UserWarning, match="need not converge") as seen:
        history = fit(regulator(3.0, 6), (X0,), terminal, steps=6, optimizer=plain)
    assert len(seen) == 1 and (history.loss_after > history.loss).sum() > 1
    assert float(history.loss_after[-1]) > 1e2 * float(history.loss[0])
    assert not history.failed.any()
    method = control.MSA(rho=0.5, iterations=5, tolerance=1e-3)
    losses = fit(regulator(3.0, 6), (X0,), terminal, steps=15, optimizer=method).loss_after.values
    assert (np.diff(losses) <= 0).all()
    assert losses[-1] == pytest.approx(float(riccati(3.0, 6)[1]), rel=0.01)


def problem(seed):
    """Return a network, a batch and a loss that the seed chooses."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["resnet", "shared", "gpt", "continuous"])
    torch.manual_seed(seed)
    if kind in ("resnet", "shared"):
        options = {
            "layers": int(rng.integers(1, 6)), "t_final": float(rng.uniform(0.5, 4)),
            "scheme": str(rng.choice(["euler", "heun", "rk4"])), "width": int(rng.integers(2, 5)),
            "activation": str(rng.choice(["tanh", "relu", "softplus"])),
            "transport": float(rng.choice([0, 0.1])), "penalty": float(rng.choice([0, 0.01])),
        }  # fmt: skip
        net = nets.ControlledResNet(2, shared=kind == "shared", **options).double()
        return net, donut(seed, 24), OBJECTIVE
    gpt = nets.GPT(vocabulary=7, context=4, width=4, depth=2, heads=2).double()
    if kind == "continuous":
        gpt.body = nets.ContinuousTransformer(gpt.body, steps=2)
    tokens = torch.randint(7, (4, 5))
    return gpt, (tokens[:, :-1], tokens[:, 1:]), train.objective(train.cross_entropy, 1.0)


def test_loss_of_extended_msa_never_rises(cases):
    failures = 0
    for seed in range(cases(3, 50)):
        net, batch, objective = problem(seed)
        rho = float(np.random.default_rng(seed).choice([0.01, 0.1, 1.0]))
        method = control.MSA(rho=rho, iterations=5)
        before = objective(net, *batch).total.item()
        history = fit(net, batch, objective, steps=3, optimizer=method)
        losses = [before, *history.loss_after.values]
        assert (np.diff(losses) <= 0).all(), (seed, losses)
        assert objective(net, *batch).total.item() == pytest.approx(losses[-1], rel=1e-12)
        assert (history.trials <= 21).all()
        failures += int(history.failed.sum())
    assert failures <= cases(0, 5)


@pytest.mark.parametrize(("rho", "scheme", "stages"), [(0.5, "euler", 1), (0.0, "heun", 2)])
def test_evaluations_and_products_of_layers_are_counted(rho, scheme, stages):
    net, calls = resnet(scheme=scheme), []
    for layer in net.body.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    method = control.MSA(rho=rho, iterations=3, tolerance=1e-3 if rho else 0.9)
    found = fit(net, donut(), steps=1, optimizer=method)
    forward, trials = float(found.forward[0]), float(found.trials[0])
    # The sweep keeps the graph of its last evaluation, which it has once.
    assert len(calls) == 4 * stages * forward - 1
    inner = forward - 2 - trials  # without the sweep and the losses after it
    products = 3 * inner - 2 * trials if rho else inner  # the iterate has one, others have three
    assert float(found.backward[0]) == 1 + products > 4


def test_failures_are_counted_and_leave_the_weights():
    body = regulator(3.0, 6)  # for which the plain method, of which this is little more, diverges
    method = control.MSA(rho=1e-9, iterations=5, doublings=1)
    history = fit(body, (X0,), terminal, steps=2, optimizer=method)
    assert (history.failed == 1).all() and (history.gain == 0).all()
    assert (history.loss_after == history.loss[0]).all() and (history.trials == 2).all()
    assert not controls_of(body).any()


def loss_on(labels):
    return lambda out: functional.cross_entropy(out, labels)


def gradient_norm(net, x, loss, part):
    """Return the norm of the gradient of a part, over the length h = 1/4 of a step."""
    grads = control.gradients(net, x, loss)
    own = [g for name, g in grads.items() if name.startswith(part)]
    return math.sqrt(sum(float(g.square().sum()) for g in own)) * 4


def test_hamiltonian_of_a_layer_has_the_gradient_of_the_objective():
    net, (x, labels) = resnet(scheme="rk4", transport=0.1, penalty=0.1), donut()
    loss = loss_on(labels)
    found = control.optimality(net, x, loss, iterations=1)
    for number, residual in enumerate(found.residuals):
        norm = gradient_norm(net, x, loss, f"body.layers.{number}.")
        assert float(residual) == pytest.approx(norm, rel=1e-10)
    assert found.costate_norms[-1] > 0
    torch.testing.assert_close(found.hamiltonian, control.hamiltonian(net, x, loss))


class Turn(nn.Module):
    """f(x, u) = (cos u, sin u): the velocities of all controls are not convex."""

    def __init__(self, u):
        super().__init__()
        self.u = nn.Parameter(torch.tensor(u, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([self.u.cos(), self.u.sin()]).expand_as(x)


def test_in_discrete_time_a_minimum_need_not_maximise_the_hamiltonian():
    body = control.Dynamics([Turn(math.pi)])
    x = torch.zeros(1, 2, dtype=torch.float64)

    def loss(out):  # on the unit circle least at u = pi
        return 2 * out.square().sum() + 0.1 * out[:, 0].sum()

    found = control.optimality(body, x, loss)
    assert float(found.residuals[0]) < 1e-14
    body.layers[0].u.data += 0.1  # the maximisation needs a direction
    found = control.optimality(body, x, loss)
    assert float(found.violations[0]) > 7


def test_shared_weights_violate_the_principle_by_the_sum():
    net, (x, labels) = resnet(shared=True, penalty=0.1), donut()
    loss = loss_on(labels)
    found = control.optimality(net, x, loss)
    (group,) = found.groups
    assert group.residual == pytest.approx(gradient_norm(net, x, loss, "body."), rel=1e-10)
    assert group.label == "layers 0, ..., 3"
    assert 0 < group.violation <= float(found.violations.sum()) * (1 + 1e-9)
    apart = control.optimality(resnet(penalty=0.1), x, loss)
    assert [one.violation for one in apart.groups] == apart.violations.tolist()


def test_weights_that_the_last_layer_shares_with_the_classifier_count_both():
    net, (x, labels) = resnet(), donut()
    weight = net.head.weight = net.body.layers[0][0].weight  # (3, 3): three classes
    net.head.bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def total():
        return OBJECTIVE(net, x, labels).total

    record, _, gradients = recorded(net, total)
    group = groups_of(net, record, EndsPart(net.body, total, record, record.after))[-1]
    assert group.label == "layer 0 with opening and closing"
    (slope,) = torch.autograd.grad(group.value(), [weight])
    of_layer, of_ends = (
        torch.autograd.grad(sum(t.value for t in part.terms()), [weight])[0] for part in group.parts
    )
    torch.testing.assert_close(slope, of_layer + of_ends)
    found = -net.body.lengths[0] * of_layer - of_ends
    torch.testing.assert_close(found, gradients["body.layers.0.0.weight"])


def test_weights_that_layers_share_maximise_the_sum():
    history = fit(resnet(shared=True), donut(), steps=5, optimizer=control.MSA(rho=0.3))
    assert float(history.loss_after[-1]) < float(history.loss[0]) - 0.02
    assert (history.unconverged <= 2).all()  # one group of layers, one of the ends


@pytest.mark.parametrize(
    ("optimizer", "rate", "dropout"), [("sgd", 0.1, 0.0), ("adamw", 1e-2, 0.2)]
)
def test_ten_steps_by_costates_are_those_by_back_propagation(optimizer, rate, dropout):
    tokens = torch.randint(7, (8, 6), generator=torch.Generator().manual_seed(0))
    batch = tokens[:, :-1], tokens[:, 1:]
    objective = train.objective(train.cross_entropy, 0.5)
    settings = {"optimizer": optimizer, "accumulate": 2, "clip": 1.0}

    def trained(objective):
        torch.manual_seed(0)
        gpt = nets.GPT(vocabulary=7, context=5, width=8, depth=2, heads=2, dropout=dropout)
        gpt.body = control.Dynamics(gpt.body, 2.0, velocity="residual", transport=0.1)
        gpt = gpt.double()
        return gpt, fit(gpt, batch, objective, schedule=train.Constant(rate), **settings)

    (one, curve), (other, expected) = trained(control.by_costates(objective)), trained(objective)
    np.testing.assert_allclose(curve.loss, expected.loss, rtol=0, atol=1e-12)
    assert float(abs(expected.loss[-1] - expected.loss[0])) > 1e-3
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert float((p - q).detach().abs().max()) <= 1e-10, name


def noisy():
    """Return a network with dropout in its layers."""
    net = Body()
    for block in net.body.blocks:
        block.append(nn.Dropout(0.2))
    return net


METHODS = {
    "msa": (control.MSA(rho=1.0, iterations=3), OBJECTIVE),
    "adam": ("adam", control.by_costates(OBJECTIVE, "sqrt")),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_interrupted_training_resumes_to_the_bit(tmp_path, name):
    optimizer, objective = METHODS[name]
    settings = {
        "steps": 6, "optimizer": optimizer, "clip": None, "weight_decay": 0.0,
        "checkpoint_every": 2, "evaluate_every": 3,
    }  # fmt: skip
    options = {"config": settings, "objective": objective, "evaluate": None}
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, noisy(), Points(fault=crash, at=3), **options)
    again = run(tmp_path, noisy(), resume=True, **options)
    assert_same(again, run(None, noisy(), **options))
    with pytest.raises(InputError, match="differs in"):
        changed = options | {"config": settings | {"optimizer": control.MSA(rho=3.0)}}
        run(tmp_path, noisy(), resume=True, **changed)


def test_layers_in_processes_have_the_same_weights(only_long):
    def trained(**options):
        net, method = resnet(layers=3), control.MSA(rho=0.1, iterations=3, **options)
        return net, fit(net, donut(), steps=2, optimizer=method)

    assert_same(trained(workers=2, devices=("cpu", "cpu")), trained())


@pytest.mark.parametrize(
    "options", [{"activation": "relu"}, {"activation": "softplus", "shared": True}]
)
def test_plain_msa_without_a_maximum_is_refused_and_leaves_the_network_as_it_was(options):
    net, batch, plain = resnet(**options), donut(rows=10), control.MSA(rho=0)
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(InputError, match=r"layers\.0\.0"):
        fit(net, batch, steps=1, optimizer=plain)
    assert all(map(torch.equal, net.parameters(), before))
    fit(resnet(**options, penalty=0.1), batch, steps=1, optimizer=plain)


@pytest.mark.parametrize(("seed", "scale"), [(2, 300), (3, 3000), (2, 30000)])
def test_saturated_layers_have_a_bounded_hamiltonian_however_small_its_slope(seed, scale):
    net = resnet(seed)
    with torch.no_grad():
        for layer in net.body.layers:
            layer[0].weight.mul_(scale)
    method = control.MSA(rho=0, iterations=3)
    assert fit(net, donut(seed), steps=1, optimizer=method).sizes["step"] == 1


def test_maximisations_that_do_not_converge_are_reported_with_their_layers():
    method = control.MSA(rho=0, iterations=2)  # tanh saturates: the supremum is not attained
    history = fit(resnet(), donut(), steps=2, optimizer=method)
    assert (history.unconverged > 0).all() and (history.gain > 0).all()
    by_layer = json.loads(history.attrs["unconverged"])
    assert sum(by_layer.values()) == history.unconverged.sum() and "layer 0" in by_layer


def test_masks_move_with_the_layers_that_are_given_to_another_device():
    net = nets.TextClassifier(vocabulary=9, context=6, width=4, heads=2, depth=2, classes=2)
    tokens = torch.randint(1, 9, (3, 6)).masked_fill(torch.arange(6) > 3, 0)  # padded by 0
    record, _, _ = recorded(net, lambda: net(tokens).output.square().sum())
    moved = torch.load(BytesIO(_pickled(groups_of(net, record)[0])), "meta", weights_only=False)
    (term,) = moved.parts[0].terms()
    assert term.velocity.device.type == "meta" and moved.controls[0].device.type == "meta"


def test_costates_that_are_not_finite_stop_a_training_with_layer_and_step(tmp_path):
    def batches(step):
        x, labels = donut()
        return (x * math.inf if step == 3 else x), labels

    for optimizer in ("adam", control.MSA(iterations=2)):
        objective = control.by_costates(OBJECTIVE)
        with pytest.raises(control.NonFiniteCostateError, match="layer 4") as seen:
            fit(resnet(activation="relu"), batches, objective, steps=5, optimizer=optimizer)
        assert (seen.value.step, seen.value.layer) == (3, 4)
        assert seen.value.history.sizes["step"] == 3


COSTATES = {"optimizer": "adam", "objective": control.by_costates(OBJECTIVE)}


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        (resnet(learn_lengths=True), {}, "lengths"),
        (nn.Linear(2, 2), {}, "layers"),
        (nn.Linear(2, 2), COSTATES, "layers"),
        (resnet(), {"objective": lambda *_: 1}, "no Loss"),
    ],
)
def test_networks_and_objectives_that_do_not_fit_are_refused(network, settings, message):
    with pytest.raises(InputError, match=message):
        fit(network, donut(rows=8), **{"optimizer": control.MSA()} | settings)
