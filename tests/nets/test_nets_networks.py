"""Reference networks: published sizes, symmetries, and equality with their continuous forms."""

import pytest
import torch
from net_calls import call_of
from torch import nn
from torch.nn import functional

from wflow.nets.continuous import ContinuousTransformer, NodeTransformer, Output
from wflow.nets.models.gpt import GPT
from wflow.nets.models.set_transformer import CrossBlock, SetTransformer
from wflow.nets.models.text import PooledHead, TextClassifier
from wflow.nets.models.vit import PatchEmbedding, ViT

DOUBLE = torch.float64
SMALL_GPT = {"vocabulary": 11, "context": 7, "width": 8, "depth": 2, "heads": 2}
SMALL_TEXT = {**SMALL_GPT, "classes": 3}
SMALL_SETS = {"features": 3, "classes": 4, "width": 8, "heads": 2, "inducing": 3}
TEXTS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 0, 0, 0]])
EACH = pytest.mark.parametrize("name", ["vit", "gpt", "text", "sets"])


def network(name, dtype=DOUBLE, **options):
    """A small network, and inputs for it."""
    if name == "vit":
        size = {"image": (2, 4, 6), "patch": 2, "classes": 3, "width": 8, "depth": 2, "heads": 2}
        return ViT(**size | {"hidden": 12} | options).to(dtype), torch.randn(
            3, 2, 4, 6, dtype=dtype
        )
    if name == "gpt":
        return GPT(**SMALL_GPT | options).to(dtype), TEXTS
    if name == "text":
        return TextClassifier(**SMALL_TEXT | options).to(dtype), TEXTS
    if name == "published sets":
        options |= {"form": "published", "embedding": "block"}
    return SetTransformer(**SMALL_SETS | options).to(dtype), torch.randn(3, 9, 3, dtype=dtype)


def numbers(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


# What all have in common.


@EACH
@pytest.mark.parametrize("form", [ContinuousTransformer, NodeTransformer])
def test_residual_form_in_one_step_is_the_discrete_network(name, form):
    net, inputs = network(name)
    want = net(inputs)
    assert isinstance(want, Output) and want.cost == 0
    net.body = form(net.body, t_final=1, steps=1, velocity="residual")
    got = net(inputs)
    assert torch.allclose(got.output, want.output, rtol=1e-12, atol=1e-13)
    assert got.cost > 0
    net.body.steps = 3
    assert not torch.allclose(net(inputs).output, want.output, rtol=1e-6)


@EACH
def test_parts_are_what_the_network_computes(name):
    net, inputs = network(name)
    context = {"mask": inputs != 0} if name == "text" else {}
    hidden = net.embed(inputs)
    state = net.body(hidden, **context)
    assert hidden.ndim == 3 and hidden.shape == state.shape
    assert torch.equal(net.head(state, **context), net(inputs).output)


@pytest.mark.parametrize("name", ["vit", "gpt", "text", "sets", "published sets"])
@pytest.mark.parametrize("skip", [True, False])
def test_every_parameter_learns(name, skip):
    # Two processes that train together wait for gradients of all parameters.
    net, inputs = network(name, skip=skip)
    net.body = ContinuousTransformer(net.body, steps=2)
    output, cost = net(inputs)
    (output.square().mean() + cost).backward()
    still = [key for key, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still
    assert all(p.grad.isfinite().all() for p in net.parameters())


@EACH
def test_networks_compile_to_one_graph(name):
    net, inputs = network(name)
    net.body = ContinuousTransformer(net.body, steps=2)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    for got, want in zip(compiled(inputs), net(inputs), strict=True):
        assert torch.allclose(got, want, rtol=1e-13)


@EACH
def test_networks_run_under_bfloat16_autocast(name):
    net, inputs = network(name, torch.float32)
    net.body = ContinuousTransformer(net.body, steps=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, cost = net(inputs)
        if inputs.is_floating_point():
            assert net(inputs.bfloat16()).output.isfinite().all()
    want = net(inputs)
    assert cost.dtype == torch.float32 and output.isfinite().all()
    assert (output - want.output).abs().max() < 0.05 * want.output.abs().max()
    (output.float().square().mean() + cost).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@EACH
def test_dropout_is_off_in_evaluation(name):
    net, inputs = network(name, dropout=0.4)
    assert not torch.equal(net(inputs).output, net(inputs).output)
    net.eval()
    assert torch.equal(net(inputs).output, net(inputs).output)
    plain, _ = network(name)
    plain.load_state_dict(net.state_dict())
    assert torch.equal(net(inputs).output, plain(inputs).output)


@EACH
def test_skip_reaches_the_blocks(name):
    net, inputs = network(name, skip=False)
    full, _ = network(name)
    full.load_state_dict(net.state_dict())
    assert not torch.allclose(net(inputs).output, full(inputs).output, rtol=1e-3)


IN_TIME = {
    "t_final": (1.0, 2.0), "steps": (2, 3), "scheme": ("euler", "heun"), "cost": ("mean", "sum"),
    "velocity": ("block", "residual"), "checkpointing": (False, True), "batch_dim": (0, 1),
}  # fmt: skip
OPTIONS = {  # call -> options that change no weight, with two values
    "blocks.Attention": {"heads": (2, 4), "causal": (False, True), "dropout": (0.0, 0.1)},
    "blocks.FeedForward": {"gelu": ("none", "tanh"), "dropout": (0.0, 0.1)},
    "blocks.Block": {"skip": (True, False), "norm": (True, False), "dropout": (0.0, 0.1)},
    "blocks.TokenEmbedding": {"dropout": (0.0, 0.1)},
    "ViT": {"skip": (True, False), "dropout": (0.0, 0.1), "image": ((1, 4, 8), (1, 8, 4))},
    "GPT": {"skip": (True, False), "heads": (2, 4), "gelu": ("none", "tanh"),
            "dropout": (0.0, 0.1)},
    "TextClassifier": {"skip": (True, False), "heads": (2, 4), "pad": (0, 1),
                       "pooling": ("mean", "first"), "dropout": (0.0, 0.1)},
    "SetTransformer": {"skip": (True, False), "dropout": (0.0, 0.1), "heads": (2, 4)},
    "ContinuousTransformer": IN_TIME,
    "NodeTransformer": IN_TIME,
}  # fmt: skip


@pytest.mark.parametrize("call", OPTIONS)
def test_options_that_weights_do_not_show_are_in_the_words_of_a_network(call):
    # By these a checkpoint is known to be of another network.
    for option, values in OPTIONS[call].items():
        both = (call_of(call, **{option: value}) for value in values)
        one, other = (make(**given) for make, given in both)
        assert str(one) != str(other), option


# Vision transformer.


@pytest.mark.parametrize(("width", "count"), [(128, 59_658), (64, 17_546)])
def test_vit_has_the_size_of_the_mnist_experiment(width, count):
    net = ViT(width=width)
    embedding = 49 * width + width + width + 17 * width
    assert count == embedding + 2 * width + 3 * width**2 + 2 * width + 10 * width + 10
    assert numbers(net) == count
    output, cost = net(torch.randn(2, 1, 28, 28))
    assert output.shape == (2, 10) and cost.shape == ()


@pytest.mark.parametrize(("depth", "million"), [(6, 1.77), (5, 1.48)])
def test_vit_has_the_size_of_the_cats_and_dogs_experiment(depth, million):
    net = ViT(
        image=(3, 32, 32), patch=16, classes=2, depth=depth, heads=8, head_width=64, hidden=128
    )
    assert round(numbers(net.body) / 1e6, 2) == million


@pytest.mark.parametrize(
    ("options", "project"),
    [
        ({}, False),
        ({"heads": 2}, True),
        ({"head_width": 5}, True),
        ({"head_width": 8}, False),
        ({"project": True}, True),
        ({"heads": 2, "project": False}, False),
    ],
)
def test_vit_projects_unless_one_head_has_the_full_width(options, project):
    net = ViT(image=(1, 4, 4), patch=2, width=8, **options)
    assert isinstance(net.body[0].attention.out, nn.Linear) == project
    assert net(torch.randn(1, 1, 4, 4)).output.shape == (1, 10)


def test_patch_embedding_is_a_convolution_with_a_stride_of_its_size():
    embed = PatchEmbedding((2, 4, 6), 2, 8).to(DOUBLE)
    images = torch.randn(3, 2, 4, 6, dtype=DOUBLE)
    kernel = embed.linear.weight.reshape(8, 2, 2, 2)
    patches = functional.conv2d(images, kernel, embed.linear.bias, stride=2)  # (3, 8, 2, 3)
    want = patches.flatten(2).transpose(1, 2) + embed.positions[1:]
    got = embed(images)
    assert torch.allclose(got[:, 1:], want, atol=1e-13)
    assert torch.equal(got[:, 0], (embed.class_token + embed.positions[0]).expand(3, 8))


def test_vit_reads_the_class_token_only():
    net, images = network("vit")
    state = net.body(net.embed(images))
    other = torch.cat([state[:, :1], torch.randn_like(state[:, 1:])], dim=1)
    assert torch.equal(net.head(state), net.head(other))


# Text classifier.


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
@pytest.mark.parametrize("form", [None, ContinuousTransformer, NodeTransformer])
@pytest.mark.parametrize("cost", ["mean", "sum"])
def test_a_text_has_the_same_logits_however_it_is_padded(pooling, form, cost):
    net, _ = network("text", pooling=pooling)
    if form is not None:
        net.body = form(net.body, steps=3, cost=cost)
    long, short = torch.tensor([[3, 1, 4, 1, 5, 9, 2]]), torch.tensor([[6, 5, 3]])
    padded = functional.pad(short, (0, 4))
    alone, batch = net(short), net(torch.cat([long, padded]))
    assert torch.allclose(batch.output[1], alone.output[0], rtol=1e-11, atol=1e-13)
    assert torch.allclose(net(padded).cost, alone.cost, rtol=1e-12)
    mean_cost = (net(long).cost + alone.cost) / 2
    assert torch.allclose(batch.cost, mean_cost, rtol=1e-12)
    assert (batch.cost > 0) == (form is not None)


def test_pooling_is_over_the_tokens_that_are_there():
    hidden = torch.randn(3, 4, 8, dtype=DOUBLE)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()
    pooled = {
        "mean": [hidden[0, :2].mean(0), hidden[1, 1:].mean(0)],
        "max": [hidden[0, :2].amax(0), hidden[1, 1:].amax(0)],
        "first": [hidden[0, 0], hidden[1, 1]],
    }
    for pooling, rows in pooled.items():
        head = PooledHead(8, 3, pooling=pooling, norm=False).to(DOUBLE)
        want = head.linear(torch.stack([*rows, torch.zeros(8, dtype=DOUBLE)]))
        assert torch.allclose(head(hidden, mask=mask), want, atol=1e-13), pooling
        full = head(hidden, mask=torch.ones(3, 4, dtype=torch.bool))
        assert torch.equal(head(hidden), full)


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_an_empty_text_has_finite_logits_and_gradients(pooling):
    net, _ = network("text", pooling=pooling)
    output, _ = net(torch.tensor([[0, 0], [3, 0]]))
    output.square().sum().backward()
    assert torch.equal(output[0], net.head.linear.bias)
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


# Set Transformer.


@pytest.mark.parametrize("points", [1, 2, 9, 40])
@pytest.mark.parametrize("norm", [False, True])
def test_logits_do_not_depend_on_the_order_of_the_points(points, norm):
    net, _ = network("sets", norm=norm, seeds=2)
    net.body = ContinuousTransformer(net.body, steps=2)
    cloud, order = torch.randn(3, points, 3, dtype=DOUBLE), torch.randperm(points)
    a, b = net(cloud), net(cloud[:, order])
    assert a.output.shape == (3, 4)
    assert torch.allclose(a.output, b.output, rtol=1e-11, atol=1e-12)
    assert torch.allclose(a.cost, b.cost, rtol=1e-12)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_attention_block_of_two_sets_is_that_of_lee(norm, skip):
    block = CrossBlock(8, 2, norm=norm, skip=skip).to(DOUBLE)
    x, y = torch.randn(2, 5, 8, dtype=DOUBLE), torch.randn(2, 3, 8, dtype=DOUBLE)
    twin = nn.MultiheadAttention(8, 2, batch_first=True, dtype=DOUBLE)
    twin.in_proj_weight.data = torch.cat([block.query.weight, block.key_value.weight]).detach()
    twin.in_proj_bias.data = torch.cat([block.query.bias, block.key_value.bias]).detach()
    nn.init.eye_(twin.out_proj.weight), nn.init.zeros_(twin.out_proj.bias)

    def normed(z):
        return functional.layer_norm(z, (8,)) if norm else z

    h = normed(x + twin(x, y, y)[0])
    change = (h @ block.feed_forward.weight.T + block.feed_forward.bias).clamp(min=0)
    assert torch.allclose(block(x, y), normed(h + change if skip else change), atol=1e-12)


# Bad input.
