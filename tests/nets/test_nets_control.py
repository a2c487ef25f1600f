"""Networks as control problems: gradients by costates, the Hamiltonian, what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import wflow
from wflow import InputError, nets
from wflow.nets import control, train

pytestmark = pytest.mark.usefixtures("one_thread")

MIDPOINT = wflow.Tableau("midpoint", 2, (0, 1 / 2), ((), (1 / 2,)), (0, 1))  # b_1 = 0
RALSTON = wflow.Tableau("ralston", 2, (0, 2 / 3), ((), (2 / 3,)), (1 / 4, 3 / 4))
KUTTA = wflow.Tableau("kutta", 3, (0, 0.5, 1), ((), (0.5,), (-1, 2)), (1 / 6, 2 / 3, 1 / 6))
SCHEMES = ["euler", "heun", "rk4", "dopri5", MIDPOINT, RALSTON, KUTTA]


class Timed(nn.Module):
    """Dense layer whose velocity depends on the time."""

    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x, t):
        return torch.tanh(self.map(x) * (1 + t**2))


def dense(width, dropout=0.0):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout))


def squares(layer, x, f):
    """Return a running cost of the states."""
    return x.square().mean() + (x * f).mean()


def mean_square(out):
    return out.square().mean()


def double(network, seed=0):
    """Return weights of order one in double precision, so that no gradient is small by itself."""
    generator = torch.Generator().manual_seed(seed)
    network = network.double()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return network


def draw(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def assert_gradients(network, x, loss, tolerance=1e-12, weight=1.0, **options):
    """Gradients by costates are those of back propagation, and draw the same random numbers."""
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    torch.manual_seed(5)
    found = network(x)
    output, cost = found if isinstance(found, tuple) else (found, 0.0)
    total = loss(output) + weight * cost
    expected = torch.autograd.grad(total, named.values(), materialize_grads=True)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    found = control.gradients(network, x, loss, weight=weight, **options)
    assert torch.equal(torch.get_rng_state(), state)  # what is drawn next is the same
    assert list(found) == list(named)
    size = max(float(g.abs().max()) for g in expected)
    assert size > 1e-6
    for name, grad in zip(named, expected, strict=True):
        assert float((found[name] - grad).abs().max()) <= tolerance * size, name


KINDS = {
    "dense": dense,
    "timed": Timed,
    "noisy": lambda width: dense(width, 0.3),
    "block": lambda width: nets.blocks.Block(width, heads=2, hidden=8, dropout=0.2),
}


def test_gradients_are_those_of_back_propagation(cases):
    options = {
        "scheme": st.sampled_from(SCHEMES),
        "shared": st.booleans(),
        "velocity": st.sampled_from(["block", "residual"]),
        "learn_lengths": st.booleans(),
        "transport": st.sampled_from([0.0, 0.7]),
        "penalty": st.sampled_from([0.0, 0.3]),
        "running": st.sampled_from([None, squares]),
    }
    drawn = given(
        kind=st.sampled_from(list(KINDS)),
        steps=st.integers(1, 5),
        keep=st.sampled_from([1, 2, 3, "sqrt"]),
        seed=st.integers(0, 99),
        options=st.fixed_dictionaries(options),
    )
    settings(max_examples=cases(15, 1000), deadline=None)(drawn(assert_gradients_of))()


def assert_gradients_of(kind, steps, keep, seed, options):
    layers = [KINDS[kind](4) for _ in range(steps)]
    layers = layers[0] if options["shared"] else layers
    body = double(control.Dynamics(layers, 1.3, steps, timed=kind == "timed", **options), seed)
    x = draw(*((3, 5, 4) if kind == "block" else (6, 4)), seed=seed)
    weights = draw(*x.shape, seed=seed + 1)
    assert_gradients(body, x, lambda out: (weights * out.sin()).sum(), keep=keep)


@pytest.mark.parametrize("scheme", ["euler", KUTTA])
@pytest.mark.parametrize("shared", [False, True])
def test_resnet_has_the_gradients_of_back_propagation(scheme, shared):
    options = {"layers": 7, "width": 4, "transport": 0.1, "penalty": 0.01}
    x, labels = draw(9, 2), torch.arange(9) % 2
    net = double(nets.ControlledResNet(2, scheme=scheme, shared=shared, **options))
    for weight in (0.0, 2.5):
        assert_gradients(net, x, lambda out: functional.cross_entropy(out, labels), weight=weight)


BODIES = [
    lambda body: body,
    lambda body: nets.ContinuousTransformer(
        body, 0.8, 3, scheme="rk4", velocity="residual", cost="sum"
    ),
    lambda body: nets.NodeTransformer(body, steps=2, scheme="heun"),
    lambda body: control.Dynamics(body, 2.0, scheme=MIDPOINT, velocity="residual", transport=0.1),
]


@pytest.mark.parametrize(("dropout", "keep"), [(0.0, "sqrt"), (0.2, 1)])
@pytest.mark.parametrize("wrap", BODIES)
def test_gpt_has_the_gradients_of_back_propagation_whatever_its_body(wrap, dropout, keep):
    gpt = nets.GPT(vocabulary=11, context=6, width=8, depth=2, heads=2, dropout=dropout)
    gpt.body = wrap(gpt.body)
    tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(0))

    def loss(out):
        return functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())

    assert_gradients(double(gpt), tokens[:, :-1], loss, keep=keep, weight=0.4)


def test_padded_texts_keep_their_masks():
    net = nets.TextClassifier(vocabulary=7, context=6, width=8, depth=2, heads=2, classes=3, pad=0)
    net.body = nets.ContinuousTransformer(net.body, steps=3, scheme="heun")
    tokens = torch.tensor([[3, 1, 4, 0, 0, 0], [2, 6, 5, 3, 0, 0]])
    assert_gradients(double(net), tokens, mean_square)


def test_gradients_under_autocast_are_those_of_back_propagation():
    gpt = nets.GPT(vocabulary=11, context=6, width=8, depth=3, heads=2)
    tokens = torch.arange(12).reshape(2, 6) % 11
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_gradients(gpt, tokens, lambda out: out.float().square().mean(), 0.02)


def test_frozen_layers_pass_costates_on():
    net = double(nets.ControlledResNet(2, layers=4, width=3))
    for p in net.body.layers[1].parameters():
        p.requires_grad_(False)
    assert_gradients(net, draw(5, 2), mean_square)


def test_an_extremal_has_no_graph():
    gpt = nets.GPT(vocabulary=7, context=4, width=4, depth=1, heads=1)
    found = control.extremal(gpt, torch.tensor([[1, 2, 3]]), mean_square)
    tensors = [found.times, found.states, found.costates, found.hamiltonian]
    assert not any(tensor.requires_grad for tensor in [*tensors, *found.gradients.values()])


class Weighed(nn.Module):
    """A running cost with a weight of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, layer, x, f):
        return self.weight * f.square().mean()


def test_weights_of_the_running_cost_are_controls_and_those_of_nobody_are_refused():
    def body(running):
        layers = [dense(2) for _ in range(3)]
        return double(control.Dynamics(layers, scheme="heun", running=running))

    x, loose = draw(5, 2), Weighed()
    assert_gradients(body(Weighed()), x, mean_square)
    with pytest.raises(InputError, match="parameters"):
        control.gradients(body(lambda *given: loose(*given)), x, mean_square)


def test_a_body_that_runs_twice_has_gradients_and_no_states():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = control.Dynamics([dense(2) for _ in range(3)]).double()

        def forward(self, x):
            return self.body(self.body(x).state).state

    net, x = Twice(), draw(5, 2)
    assert_gradients(net, x, lambda out: out.square().sum())
    with pytest.raises(InputError, match="more than once"):
        control.states(net, x)


def test_costates_are_minus_the_gradients_in_the_states():
    net = double(nets.ControlledResNet(3, layers=4, scheme="rk4", transport=0.2))
    x = draw(5, 3)

    loss = mean_square
    found = control.extremal(net, x, loss)
    lengths, plan = net.body.lengths, net.body.plan(x)
    torch.testing.assert_close(found.times, torch.linspace(0, 1, 5, dtype=torch.float64))
    for start in range(5):
        state = found.states[start].detach().requires_grad_()
        z, total = state, 0.0
        for step in range(start, 4):
            z, cost = plan.advance(step, z, 0.0, float(lengths[step]))
            total = total + cost
        total = loss(net.head(z)) + total
        (grad,) = torch.autograd.grad(total, state)
        torch.testing.assert_close(found.costates[start], -grad, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(control.states(net, x), found.states, rtol=0, atol=0)
    torch.testing.assert_close(control.costates(net, x, loss), found.costates, rtol=0, atol=0)
    assert found.objective == pytest.approx(float(loss(net(x).output) + net(x).cost), rel=1e-14)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_hamiltonian_of_shared_weights_is_constant_to_the_order_of_the_scheme(scheme):
    options = {"scheme": scheme, "shared": True, "width": 4, "t_final": 2.0, "transport": 0.3}

    def variation(steps):
        net = double(nets.ControlledResNet(3, layers=steps, **options), seed=3)
        found = control.hamiltonian(net, draw(5, 3), lambda out: out.sin().square().sum())
        return float((found - found[0]).abs().max() / found.abs().max())

    order = nets.ControlledResNet(3, layers=1, scheme=scheme).body.tableau.order
    coarse = 16 if order == 5 else 32
    errors = variation(coarse), variation(2 * coarse)
    assert order - 0.35 < math.log2(errors[0] / errors[1]) < order + 1.35, errors


def test_hamiltonian_of_separate_weights_is_not_constant():
    net = double(nets.ControlledResNet(3, layers=8, scheme="rk4"))
    found = control.hamiltonian(net, draw(5, 3), lambda out: out.square().sum())
    assert float((found - found[0]).abs().max() / found.abs().max()) > 0.1


def test_euler_with_steps_of_length_one_is_the_classic_residual_network():
    net = double(nets.ControlledResNet(3, layers=4, t_final=4.0, activation="relu"))
    x, state = draw(5, 3), draw(5, 3)
    for layer in net.body.layers:
        state = state + torch.relu(layer[0](state))
    torch.testing.assert_close(net(x).output, net.head(state), rtol=1e-14, atol=1e-14)


def test_lengths_are_on_the_simplex():
    body = control.Dynamics([dense(2) for _ in range(3)], 2.0, learn_lengths=True)
    torch.nn.init.normal_(body.log_lengths)
    assert body.lengths.sum().item() == pytest.approx(2.0) and (body.lengths > 0).all()


def test_resnet_is_saved_and_made_again(tmp_path):
    for scheme in ("heun", MIDPOINT):
        net = nets.ControlledResNet(2, layers=3, scheme=scheme, learn_lengths=True, penalty=0.1)
        net.save_pretrained(tmp_path)
        again = nets.ControlledResNet.from_pretrained(tmp_path)
        assert again.body.tableau == net.body.tableau
        x = torch.randn(4, 2)
        assert torch.equal(again(x).output, net(x).output)
    gpt = nets.GPT(vocabulary=5, context=4, width=4, depth=2, heads=2)
    gpt.body = control.Dynamics(gpt.body, 2.0, scheme=MIDPOINT, velocity="residual")
    assert nets.build(nets.config(gpt)).body.tableau == MIDPOINT


class Wider(nn.Module):
    def forward(self, x):
        return torch.cat([x, x], dim=-1)


def test_layers_that_change_the_shape_are_refused():
    for body in (control.Dynamics([Wider()]), nets.blocks.Stack([Wider()])):
        with pytest.raises(InputError, match="layer 0"):
            control.gradients(nn.Sequential(nn.Linear(2, 2), body), torch.ones(3, 2), torch.sum)


def relu_net():
    return nets.ControlledResNet(2, layers=3, activation="relu"), torch.ones(4, 2)


@pytest.mark.parametrize("name", ["states", "costates", "hamiltonian", "extremal", "optimality"])
def test_no_state_that_is_not_finite_is_returned(name):
    net, x = relu_net()
    with torch.no_grad():
        net.body.layers[1][0].bias.fill_(torch.inf)
    for start in (x.new_full((4, 2), torch.nan), x):
        with pytest.raises(control.NonFiniteCostateError, match="not finite") as caught:
            getattr(control, name)(net, start, *[mean_square] * (name != "states"))
    assert name != "states" or caught.value.layer == 2


def test_costates_that_are_not_finite_name_their_layer():
    class Burst(nn.Module):
        def forward(self, x):
            return x.sqrt()  # infinite slope at 0

    net = control.Dynamics([dense(2), Burst(), dense(2)], running=lambda m, x, f: 0 * f.sum())
    nn.init.zeros_(net.layers[0][0].weight), nn.init.zeros_(net.layers[0][0].bias)
    with pytest.raises(control.NonFiniteCostateError, match="layer 1") as caught:
        control.gradients(net, torch.zeros(3, 2), torch.sum)
    assert caught.value.layer == 1 and caught.value.step == -1


@pytest.mark.parametrize("call", [control.extremal, control.gradients, control.costates])
def test_an_objective_or_a_gradient_out_of_range_is_refused(call):
    net, x = relu_net()
    with pytest.raises(train.NonFiniteLossError, match="objective"):
        call(net, x, lambda out: mean_square(out) + torch.inf)
    with pytest.raises(train.NonFiniteLossError, match=r"gradient of .*weight"):
        call(net, 1e30 * x, lambda out: 1e15 * out.mean())
