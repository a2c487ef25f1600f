"""Continuous-time transformers: schemes, transport cost, gradients, and when they are discrete."""

import copy
from collections import namedtuple
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from slopes import assert_slopes
from torch import nn

from wflow import InputError
from wflow.nets import ContinuousTransformer, NodeTransformer

ORDERS = {"euler": 1, "heun": 2, "rk4": 4}


class Linear(nn.Module):
    """f(x) = x A^T."""

    def __init__(self, width: int = 3, seed: int = 0) -> None:
        super().__init__()
        values = torch.randn(width, width, generator=torch.Generator().manual_seed(seed))
        self.matrix = nn.Parameter(values.double() / width**0.5)

    def forward(self, x):
        return x @ self.matrix.T


def states(*shape: int, seed: int = 1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def encoder(width: int = 8, layers: int = 3, norm_first: bool = True) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        width, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@pytest.mark.parametrize("scheme", ORDERS)
def test_state_and_cost_converge_at_the_order_of_the_scheme_on_a_linear_block(scheme):
    block, x = Linear(), states(2, 4, 3)
    matrix = block.matrix.detach()
    exact = x @ torch.matrix_exp(matrix).T
    # d/dt of the cost is |A e^{tA} x|^2/2: Gauss-Legendre of high degree is exact to rounding.
    nodes, weights = np.polynomial.legendre.leggauss(30)
    energy = sum(
        w / 2 * (x @ torch.matrix_exp((t + 1) / 2 * matrix).T @ matrix.T).square().sum() / 2
        for t, w in zip(nodes, weights, strict=True)
    )
    errors = []
    for steps in (8, 16, 32):
        model = ContinuousTransformer(block, steps=steps, scheme=scheme, cost="sum")
        with torch.no_grad():
            state, cost = model(x)
        errors.append(((state - exact).norm(), (cost - energy / 2).abs()))
    for coarse, fine in pairwise(errors):
        for one, half in zip(coarse, fine, strict=True):
            assert np.log2((one / half).item()) == pytest.approx(ORDERS[scheme], abs=0.25)


@pytest.mark.parametrize(("cost", "count"), [("sum", 5), ("mean", 5 * 4 * 3)])
def test_costs_are_those_of_the_papers(cost, count):
    block, x = Linear(), states(5, 4, 3)
    found = ContinuousTransformer(block, t_final=2.0, steps=4, cost=cost)(x)
    total = 0.0
    for _ in range(4):
        velocity = block(x)
        x, total = x + 0.5 * velocity, total + velocity.square().sum()
    assert torch.allclose(found.state, x, rtol=1e-14)
    assert found.cost.item() == pytest.approx((0.5 / 2 * total / count).item(), rel=1e-14)


@pytest.mark.parametrize("scheme", ORDERS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradient_of_state_and_cost_equals_finite_differences(scheme, checkpointing):
    options = {"steps": 2, "scheme": scheme, "checkpointing": checkpointing}
    model = ContinuousTransformer(encoder(4, 1).layers, velocity="residual", **options)
    x, valid = states(2, 3, 4).requires_grad_(), torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    assert torch.autograd.gradcheck(lambda y: tuple(model(y, valid=valid)), (x,), fast_mode=True)
    weight = model.blocks.blocks[0].linear1.weight
    assert_slopes(lambda: model(x).cost, [weight], step=1e-5, tolerance=1e-8)


@pytest.mark.parametrize("wrap", [ContinuousTransformer, NodeTransformer])
@pytest.mark.parametrize("norm_first", [True, False])
def test_one_euler_step_of_the_residual_is_the_discrete_network(wrap, norm_first):
    discrete, x = encoder(norm_first=norm_first).eval(), states(2, 5, 8)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    model = wrap(discrete.layers, velocity="residual").eval()
    with torch.no_grad():
        expected = discrete(x, src_key_padding_mask=mask)
        state, cost = model(x, valid=~mask, src_key_padding_mask=mask)
    assert (state - expected).abs().max() < 1e-14
    assert cost > 0


def test_systems_of_an_encoder_of_torch_are_its_layers():
    whole, x = encoder(), states(2, 5, 8)
    there = torch.tensor([[True, True, True, False, False], [True] * 5])
    model = NodeTransformer(whole, steps=2)
    apart = NodeTransformer(list(whole.layers), steps=2)
    assert len(model.systems) == len(whole.layers) == 3
    found, expected = (net(x, valid=there, src_key_padding_mask=~there) for net in (model, apart))
    assert torch.equal(found.state, expected.state) and torch.equal(found.cost, expected.cost)
    whole.norm = nn.LayerNorm(8)
    with pytest.raises(InputError, match="final norm"):
        NodeTransformer(whole)


@pytest.mark.parametrize("wrap", [ContinuousTransformer, NodeTransformer])
def test_checkpointing_changes_neither_state_nor_gradient(wrap):
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True) for _ in range(2)]
    results = []
    for checkpointing in (False, True):
        model = wrap(layers, steps=4, checkpointing=checkpointing).train()
        model.zero_grad()
        torch.manual_seed(7)  # the same dropout, also where the step is computed again
        state, cost = model(states(2, 5, 8).float())
        (state.sum() + cost).backward()
        results.append([state, *(parameter.grad.clone() for parameter in model.parameters())])
    assert all(map(torch.equal, *results))


def test_checkpointing_keeps_only_the_states_between_the_steps():
    def kept(checkpointing):
        model = ContinuousTransformer(encoder().layers, steps=20, checkpointing=checkpointing)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            model(states(4, 5, 8).requires_grad_())
        return sum(sizes)

    assert kept(True) < kept(False) / 10


def test_trajectory_is_the_way_that_forward_goes_also_with_other_steps():
    model = ContinuousTransformer(encoder().layers, t_final=2.0, steps=2, scheme="heun")
    with pytest.raises(InputError, match="steps is 0"):
        model.steps = 0
    assert model.steps == 2
    model.steps, x = 5, states(2, 5, 8)
    state, cost = model(x)
    trajectory = model.trajectory(x)
    assert trajectory.states.shape == (6, 2, 5, 8) and trajectory.velocities.shape == (5, 2, 5, 8)
    assert torch.equal(trajectory.states[0], x) and torch.equal(trajectory.states[-1], state)
    assert torch.allclose(trajectory.times, torch.linspace(0, 2, 6, dtype=torch.float64))
    assert torch.allclose(trajectory.costs.sum(), cost, rtol=1e-14)
    assert torch.equal(trajectory.velocities[2], model.velocity_of(trajectory.states[2]))


def test_systems_in_sequence_add_up_their_costs_and_times():
    layers, x = list(encoder().layers), states(2, 5, 8)
    model = NodeTransformer(layers, t_final=0.5, steps=2)
    expected, total = x, 0.0
    for layer in layers:
        expected, cost = ContinuousTransformer(layer, t_final=0.5, steps=2)(expected)
        total += cost.item()
    state, cost = model(x)
    assert torch.equal(state, expected) and cost.item() == pytest.approx(total)
    trajectory = model.trajectory(x)
    assert torch.allclose(trajectory.times, torch.linspace(0, 1.5, 7, dtype=torch.float64))
    assert torch.equal(trajectory.states[-1], state)
    model.steps = 7
    assert all(system.steps == 7 for system in model.systems) and model.steps == 7


@pytest.mark.parametrize("cost", ["mean", "sum"])
def test_tokens_that_are_not_there_do_not_count_in_the_cost(cost):
    x, valid = states(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    model = ContinuousTransformer(Linear(), steps=3, cost=cost)
    found, parts = model(x, valid=valid), [model(x[:1, :2]).cost, model(x[1:]).cost]
    assert found.cost.item() == pytest.approx(sum(parts).item() / 2, rel=1e-13)
    assert torch.equal(found.state, model(x).state)
    for dim in (1, -2):  # samples along another dimension
        other = ContinuousTransformer(Linear(), steps=3, cost=cost, batch_dim=dim)
        turned = other(x.transpose(0, 1), valid=valid.T).cost
        assert turned.item() == pytest.approx(found.cost.item(), rel=1e-14)
    with pytest.raises(InputError, match="batch_dim = 3"):
        ContinuousTransformer(Linear(), batch_dim=3)(x)


def test_a_velocity_of_zero_has_a_gradient_of_zero():
    block = nn.Linear(3, 3, bias=False)
    nn.init.zeros_(block.weight)
    ContinuousTransformer(block, steps=2)(torch.ones(2, 3)).cost.backward()
    assert not block.weight.grad.any()


def test_autocast_sums_steps_in_single_precision_whatever_the_embedding_gives():
    block = nn.Linear(8, 8)
    nn.init.zeros_(block.weight)
    nn.init.constant_(block.bias, 2.0**-7)
    model, x = ContinuousTransformer(block, steps=64), torch.ones(1, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state, cost = model(x)
        trajectory = model.trajectory(x)
        assert model.velocity_of(x).dtype == torch.bfloat16
    assert state.dtype == cost.dtype == torch.float32
    assert torch.equal(trajectory.states[-1], state)
    assert torch.allclose(state, torch.tensor(1 + 2.0**-7), rtol=1e-6)  # each step rounds to 1


@pytest.mark.parametrize(
    "answer", [lambda x: x, lambda x: (x, None), lambda x: SimpleNamespace(last_hidden_state=x)]
)
def test_outputs_of_other_libraries_are_taken_at_their_hidden_states(answer):
    x, block = states(2, 3), nn.Sequential(Linear(), Returns(answer))
    for many in (1, 2):
        found, plain = (ContinuousTransformer([b] * many, steps=2) for b in (block, Linear()))
        assert torch.equal(found(x).state, plain(x).state)


def test_an_encoder_of_hugging_face_fits_as_it_is():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 9}
    config = transformers.BertConfig(**sizes, num_hidden_layers=2, max_position_embeddings=9)
    encoder = transformers.BertModel(config).encoder.eval()
    x = torch.randn(2, 5, 8)
    residual = ContinuousTransformer(encoder, velocity="residual")
    assert torch.allclose(residual(x).state, encoder(x).last_hidden_state, atol=1e-6)
    several = ContinuousTransformer(encoder, steps=3)
    mask = torch.zeros(2, 1, 1, 5)
    assert torch.allclose(several(x, attention_mask=mask).state, several(x).state, atol=1e-6)


Named = namedtuple("Named", "states weights")


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x,
        lambda x: (x, "weights"),
        lambda x: [x, "weights"],
        lambda x: Named(x, "weights"),
        lambda x: SimpleNamespace(last_hidden_state=x, weights="weights"),
    ],
)
@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_in_the_place_of_a_layer_it_answers_as_the_layer_does(answer, many, checkpointing):
    x, layers = states(2, 3), [nn.Sequential(Linear(), Returns(answer)) for _ in range(many)]
    options = {"steps": 3, "checkpointing": checkpointing}
    want = ContinuousTransformer(layers, **options)(x)
    layer = ContinuousTransformer(nn.ModuleList(layers), returns="layer", **options)
    assert layer.last_cost is None
    found, like = layer(x), answer(x)
    assert type(found) is type(like) and torch.equal(layer.last_cost, want.cost)
    if isinstance(like, SimpleNamespace):
        assert found.weights == "weights"
        found = [found.last_hidden_state]
    elif not isinstance(like, torch.Tensor):
        assert found[1] == "weights"
    assert torch.equal(found if isinstance(found, torch.Tensor) else found[0], want.state)
    again = copy.deepcopy(layer)  # a tensor of a graph could not be copied
    assert again.last_cost is None and layer.last_cost.requires_grad
    layer.last_cost.backward()


@pytest.mark.parametrize("training", [False, True])
def test_layers_of_an_encoder_of_torch_are_replaced_one_by_one(training):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    x, padding = states(2, 5, 8), torch.arange(5).expand(2, 5) > 3
    want = encoder(x, src_key_padding_mask=padding)
    encoder.layers = nn.ModuleList(
        ContinuousTransformer(each, velocity="residual", returns="layer") for each in encoder.layers
    )
    for net in (encoder, copy.deepcopy(encoder)):
        found = net(x, src_key_padding_mask=padding)
        assert torch.allclose(found[~padding], want[~padding], rtol=1e-12, atol=1e-12)


def test_attributes_are_those_of_a_single_layer_and_of_nothing_else():
    layer = Returns(lambda x: x)
    layer.kind, layer.body, layer.steps = "full", nn.Identity(), 7
    inside = ContinuousTransformer(layer, returns="layer")
    assert inside.kind == "full" and inside.steps == 1 and not hasattr(inside, "body")
    several = ContinuousTransformer([layer, layer], returns="layer")
    for other in (several, ContinuousTransformer(layer)):
        assert not hasattr(other, "kind")


class Scaled(nn.Module):
    """x -> a x + b, a by position and b by name, as layers of other libraries are given masks."""

    def forward(self, x, a, *, b=0.0):
        return a * x + b


@pytest.mark.parametrize("wrap", [ContinuousTransformer, NodeTransformer])
def test_arguments_reach_the_blocks_by_position_and_by_name(wrap):
    x, model = states(2, 3, 4), wrap([Scaled()], steps=1)
    assert torch.allclose(model(x, 0.5, b=2.0).state, 1.5 * x + 2, rtol=1e-14)
    assert torch.allclose(model.trajectory(x, 0.5).states[-1], 1.5 * x, rtol=1e-14)
    several = ContinuousTransformer([Scaled(), Scaled()], velocity="residual")
    assert torch.allclose(several(x, 0.5, b=1.0).state, 0.25 * x + 1.5, rtol=1e-14)
    assert torch.allclose(several.velocity_of(x, 0.5), -0.75 * x, rtol=1e-14)


def test_a_cache_is_refused_where_each_evaluation_would_add_to_it():
    cache, x = SimpleNamespace(get_seq_length=lambda: 0), states(2, 3)
    assert ContinuousTransformer(Returns(lambda x: x))(x, cache).cost > 0
    for options in ({"steps": 2}, {"scheme": "heun"}):
        model = ContinuousTransformer(Returns(lambda x: x), **options)
        for call in (model, model.trajectory):
            with pytest.raises(InputError, match="cache"):
                call(x, cache)
            with pytest.raises(InputError, match="cache"):
                call(x, layer_past=cache)


def test_a_system_of_each_block_has_no_other_answers():
    with pytest.raises(InputError, match="returns"):
        NodeTransformer([Linear()], returns="layer")
    with pytest.raises(InputError, match="returns"):
        ContinuousTransformer(Linear(), returns="tuple")


def test_layers_of_gpt_2_with_one_step_make_its_network_with_and_without_a_cache():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 23, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3}
    ids = {"bos_token_id": None, "eos_token_id": None}
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ids)).eval()
    tokens, there = torch.randint(0, 23, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    there[0, :2] = 0  # padding in front
    given = {"attention_mask": there, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    want, text = net(tokens, attention_mask=there).logits, net.generate(tokens, **given)
    options = {"velocity": "residual", "returns": "layer"}
    net.transformer.h = nn.ModuleList(
        ContinuousTransformer(h, **options) for h in net.transformer.h
    )
    assert torch.allclose(net(tokens, attention_mask=there).logits, want, atol=1e-6)
    for use_cache in (False, True):
        assert torch.equal(net.generate(tokens, **given, use_cache=use_cache), text)


class Returns(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x, *_, **__):
        return self.answer(x)


@pytest.mark.parametrize(
    ("answer", "message"),
    [(lambda x: x[:, :2], r"\(2, 3\) into \(2, 2\)"), (lambda x: None, "returned NoneType")],
)
def test_blocks_that_return_no_velocity_are_refused(answer, message):
    with pytest.raises(InputError, match=message):
        ContinuousTransformer(Returns(answer))(torch.randn(2, 3))


def plain(model, x, valid=None):
    """Return the state and cost by the formulas, Euler's scheme, each sample over its entries."""
    weight, cost = torch.ones(x.shape[:2]) if valid is None else valid, 0.0
    weight = weight.to(x.dtype)
    if model.cost == "mean":
        weight = weight / weight.sum(1 - model.batch_dim, keepdim=True) / x.shape[2]
    for _ in range(model.steps):
        f = model.velocity_of(x)
        energy = (weight[..., None] * f.square()).sum() / x.shape[model.batch_dim]
        x, cost = x + model.dt * f, cost + model.dt / 2 * energy
    return x, cost


@pytest.mark.parametrize("velocity", ["block", "residual"])
@pytest.mark.parametrize("cost", ["mean", "sum"])
@pytest.mark.parametrize(("batch_dim", "masked"), [(0, True), (1, True), (1, False)])
def test_gradients_are_those_of_the_plain_formula_to_rounding(velocity, cost, batch_dim, masked):
    options = {"steps": 2, "velocity": velocity, "cost": cost, "batch_dim": batch_dim}
    model = ContinuousTransformer(encoder(4, 1).layers, **options)
    valid = torch.tensor([[True, True, False], [True, True, True]]) if masked else None
    found = []
    for flow in (lambda x: model(x, valid=valid), lambda x: plain(model, x, valid)):
        model.zero_grad()
        x = states(2, 3, 4).requires_grad_()
        state, total = flow(x)
        (state.square().sum() + 3 * total).backward()
        found.append([state, total, x.grad, *(p.grad.clone() for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12 * other.abs().max().item())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_second_derivatives_of_the_cost_are_right(checkpointing):
    model = ContinuousTransformer(Linear(), steps=3, checkpointing=checkpointing)
    x = states(2, 2, 3).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda y: model(y).cost, (x,))


def test_costs_can_be_mapped_and_differentiated_forward():
    model, x = ContinuousTransformer(Linear(), steps=3), states(5, 2, 4, 3)

    def cost(one):
        return model(one).cost

    each, want = torch.func.vmap(cost)(x), torch.stack([cost(one) for one in x])
    torch.testing.assert_close(each, want, rtol=1e-13, atol=0)
    slopes, forward = torch.func.vmap(torch.func.grad(cost))(x), torch.func.jacfwd(cost)(x[0])
    torch.testing.assert_close(forward, slopes[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cost_of_lower_precision_is_summed_in_single(dtype, strided):
    def same(x):
        return x.transpose(0, 1).contiguous().transpose(0, 1) if strided else x * 1

    x = states(40, 50, 30).to(dtype)
    cost = ContinuousTransformer(Returns(same), cost="sum")(x).cost
    assert cost.dtype == torch.float32
    assert cost.item() == pytest.approx(x.double().square().sum().item() / 80, rel=1e-5)
