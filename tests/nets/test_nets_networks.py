"""Reference networks: published sizes, symmetries, and equality with their continuous forms."""

import numpy as np
import pytest
import torch
from net_calls import ARGUMENTS, call_of
from torch import nn
from torch.nn import functional

from wflow.nets.continuous import ContinuousTransformer, NodeTransformer, Output
from wflow.nets.models.gpt import GPT
from wflow.nets.models.set_transformer import CrossBlock, SetTransformer
from wflow.nets.models.text import PooledHead, SinusoidalEmbedding, TextClassifier
from wflow.nets.models.vit import PatchEmbedding, ViT

DOUBLE = torch.float64
TEXTS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 0, 0, 0]])
BLOCKS = {"width": 8, "heads": 2}
WORDS = BLOCKS | {"vocabulary": 11, "context": 7, "depth": 2}
PICTURES = BLOCKS | {"image": (2, 4, 6), "patch": 2, "classes": 3, "depth": 2, "hidden": 12}
SETS = BLOCKS | {"features": 3, "classes": 4, "inducing": 3}
NETWORKS = {
    "vit": (ViT, PICTURES, (3, 2, 4, 6)),
    "gpt": (GPT, WORDS, None),
    "text": (TextClassifier, WORDS | {"classes": 3}, None),
    "sets": (SetTransformer, SETS, (3, 9, 3)),
    "published text": (TextClassifier, WORDS | {"classes": 3, "form": "published"}, None),
    "published sets": (SetTransformer, SETS | {"form": "published"}, (3, 9, 3)),
    "embedded sets": (
        SetTransformer, SETS | {"form": "published", "embedding": "block"}, (3, 9, 3)
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", ["vit", "gpt", "text", "sets"])
OF_SETS = pytest.mark.parametrize("name", [name for name in NETWORKS if "sets" in name])
BODIES = pytest.mark.parametrize("form", [None, ContinuousTransformer, NodeTransformer])


def network(name, dtype=DOUBLE, **options):
    """Return a small network, and inputs for it."""
    make, sizes, shape = NETWORKS[name]
    net = make(**sizes | options).to(dtype)
    return net, TEXTS if shape is None else torch.randn(shape, dtype=dtype)


def in_time(net, form=ContinuousTransformer, **options):
    """Return the network with a body in continuous time; None is its own."""
    if form is not None:
        net.body = form(net.body, **{"steps": 2} | options)
    return net


# Published sizes.

VIT = {"image": (3, 32, 32), "patch": 16, "classes": 2, "heads": 8, "head_width": 64, "hidden": 128}
TEXT = {"vocabulary": 16_000, "context": 512, "classes": 2, "width": 256, "heads": 8}
CLOUDS = {"features": 3, "classes": 40, "heads": 4, "inducing": 16, "form": "published"}
SIZES = [  # a network, what is counted of it, and its size
    (lambda: ViT(width=128), "", 59_658),
    (lambda: ViT(width=64), "", 17_546),
    (lambda: ViT(**VIT, depth=6), "body", 1_774_848),  # 1.77 million
    (lambda: ViT(**VIT, depth=5), "body", 1_479_040),  # 1.48 million
    (lambda: TextClassifier(**TEXT, depth=6, form="published"), "body", 4_738_560),  # 4.74 million
    (lambda: TextClassifier(**TEXT, depth=3, form="published"), "body", 2_369_280),  # 2.37 million
    # Of sets the weights of the blocks are printed, without biases: 0.86 and 0.65 million.
    (lambda: SetTransformer(**CLOUDS, width=256, embedding="block"), "blocks", 862_464),
    (lambda: SetTransformer(**CLOUDS, width=200), "blocks", 646_400),
]


@pytest.mark.parametrize(("make", "part", "size"), SIZES)
def test_networks_have_the_sizes_of_the_experiments(make, part, size):
    with torch.device("meta"):  # sizes without memory
        found = make()
    named = list(found.named_parameters())
    if part == "blocks":
        part = ("embed.gather", "embed.spread", "embed.inducing", "body")
        named = [(name, p) for name, p in named if not name.endswith("bias")]
    assert sum(p.numel() for name, p in named if name.startswith(part)) == size


# What all have in common.


@EACH
@pytest.mark.parametrize("form", [ContinuousTransformer, NodeTransformer])
def test_residual_form_in_one_step_is_the_discrete_network(name, form):
    net, inputs = network(name)
    want = net(inputs)
    assert isinstance(want, Output) and want.cost == 0
    got = in_time(net, form, steps=1, velocity="residual")(inputs)
    assert torch.allclose(got.output, want.output, rtol=1e-12, atol=1e-13)
    assert got.cost > 0
    net.body.steps = 3
    assert not torch.allclose(net(inputs).output, want.output, rtol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("skip", [True, False])
def test_every_parameter_learns_and_the_parts_are_what_the_network_computes(name, skip):
    # Two processes that train together wait for gradients of all parameters.
    net, inputs = network(name, skip=skip)
    context = {"mask": inputs != 0} if "text" in name else {}
    state = net.body(net.embed(inputs), **context)
    assert torch.equal(net.head(state, **context), net(inputs).output)
    output, cost = in_time(net)(inputs)
    (output.square().mean() + cost).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())


@EACH
def test_networks_compile_to_one_graph(name):
    net, inputs = network(name)
    torch._dynamo.reset()
    compiled = torch.compile(in_time(net), fullgraph=True, backend="eager")
    for got, want in zip(compiled(inputs), net(inputs), strict=True):
        assert torch.allclose(got, want, rtol=1e-13)


@EACH
def test_networks_run_under_bfloat16_autocast(name):
    net, inputs = network(name, torch.float32)
    in_time(net)
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
def test_dropout_is_off_in_evaluation_and_skip_reaches_the_blocks(name):
    net, inputs = network(name, dropout=0.4)
    assert not torch.equal(net(inputs).output, net(inputs).output)
    net.eval()
    plain, bare = network(name)[0], network(name, skip=False)[0]
    for other in (plain, bare):
        other.load_state_dict(net.state_dict())
    assert torch.equal(net(inputs).output, plain(inputs).output)
    assert not torch.allclose(net(inputs).output, bare(inputs).output, rtol=1e-3)


OPTIONS = {  # options that change no weight, with two values
    "heads": (2, 4), "causal": (False, True), "dropout": (0.0, 0.1), "skip": (True, False),
    "norm": (True, False), "gelu": ("none", "tanh"), "image": ((1, 4, 8), (1, 8, 4)),
    "pad": (0, 1), "pooling": ("mean", "first"), "t_final": (1.0, 2.0), "steps": (2, 3),
    "scheme": ("euler", "heun"), "cost": ("mean", "sum"), "velocity": ("block", "residual"),
    "checkpointing": (False, True), "batch_dim": (0, 1),
}  # fmt: skip
CALLS = (
    "ViT GPT TextClassifier SetTransformer ContinuousTransformer NodeTransformer blocks.Attention "
    "blocks.FeedForward blocks.Block blocks.TokenEmbedding"
)


@pytest.mark.parametrize("call", CALLS.split())
def test_options_that_weights_do_not_show_are_in_the_words_of_a_network(call):
    # By these a checkpoint is known to be of another network.
    for option in OPTIONS.keys() & ARGUMENTS[call]().keys():
        both = (call_of(call, **{option: value}) for value in OPTIONS[option])
        one, other = (make(**given) for make, given in both)
        assert str(one) != str(other), option


# Vision transformer.


@pytest.mark.parametrize(
    ("options", "project"),
    [
        ({"head_width": 8}, False),
        ({"heads": 2}, True),
        ({"head_width": 5}, True),
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
@BODIES
@pytest.mark.parametrize("cost", ["mean", "sum"])
def test_a_text_has_the_same_logits_however_it_is_padded(pooling, form, cost):
    net = in_time(network("text", pooling=pooling)[0], form, steps=3, cost=cost)
    long, short = torch.tensor([[3, 1, 4, 1, 5, 9, 2]]), torch.tensor([[6, 5, 3]])
    padded = functional.pad(short, (0, 4))
    alone, batch = net(short), net(torch.cat([long, padded]))
    assert torch.allclose(batch.output[1], alone.output[0], rtol=1e-11, atol=1e-13)
    assert torch.allclose(net(padded).cost, alone.cost, rtol=1e-12)
    assert torch.allclose(batch.cost, (net(long).cost + alone.cost) / 2, rtol=1e-12)
    assert (batch.cost > 0) == (form is not None)


def test_pooling_is_over_the_tokens_that_are_there():
    hidden = torch.randn(3, 4, 8, dtype=DOUBLE)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()
    pooled = {
        "mean": [hidden[0, :2].mean(0), hidden[1, 1:].mean(0)],
        "max": [hidden[0, :2].amax(0), hidden[1, 1:].amax(0)],
        "max with padding": list(hidden.amax(1)),
        "first": [hidden[0, 0], hidden[1, 1]],
    }
    for pooling, rows in pooled.items():
        head = PooledHead(8, 3, pooling=pooling, norm=False).to(DOUBLE)
        want = head.linear(torch.stack([*rows, torch.zeros(8, dtype=DOUBLE)][:3]))
        assert torch.allclose(head(hidden, mask=mask), want, atol=1e-13), pooling
        assert torch.equal(head(hidden), head(hidden, mask=torch.ones_like(mask)))


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_an_empty_text_has_finite_logits_and_gradients(pooling):
    net, _ = network("text", pooling=pooling)
    output, _ = net(torch.tensor([[0, 0], [3, 0]]))
    output.square().sum().backward()
    assert torch.equal(output[0], net.head.linear.bias)
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


def test_positions_are_waves_that_start_at_one_and_of_padding_at_zero():
    embed = SinusoidalEmbedding(11, 6, 8, std=0.1).to(DOUBLE)
    hidden = (embed(TEXTS) - embed.token(TEXTS)).detach().numpy()
    for tokens, rows in zip(TEXTS.tolist(), hidden, strict=True):
        for place, token in enumerate(tokens):
            angles = (place + 1 if token else 0) / 10_000 ** (np.arange(0, 8, 2) / 8)
            waves = np.stack([np.sin(angles), np.cos(angles)], axis=1).reshape(-1)
            assert np.allclose(rows[place], 0.1 * waves, atol=1e-7)  # a table of single precision


@pytest.mark.parametrize(
    ("options", "std"),
    [({}, 0.02), ({"form": "published"}, 1.0), ({"embedding_std": 0.5}, 0.5)],
)
def test_the_two_forms_start_from_different_embeddings(options, std):
    net = TextClassifier(vocabulary=500, context=3, classes=2, depth=1, **BLOCKS, **options)
    assert abs(net.embed.token.weight.detach().std() / std - 1) < 0.05


# Set Transformer.


@pytest.mark.parametrize("points", [1, 9, 40])
@pytest.mark.parametrize("norm", [False, True])
def test_logits_do_not_depend_on_the_order_of_the_points(points, norm):
    net = in_time(network("sets", norm=norm, seeds=2)[0])
    cloud, order = torch.randn(3, points, 3, dtype=DOUBLE), torch.randperm(points)
    a, b = net(cloud), net(cloud[:, order])
    assert a.output.shape == (3, 4)
    assert torch.allclose(a.output, b.output, rtol=1e-11, atol=1e-12)
    assert torch.allclose(a.cost, b.cost, rtol=1e-12)


@OF_SETS
@BODIES
def test_a_cloud_has_the_same_logits_however_it_is_padded(name, form):
    net = in_time(network(name)[0], form)
    mask = torch.arange(7) < torch.tensor([4, 1, 7])[:, None]
    points = torch.where(mask[:, :, None], torch.randn(3, 7, 3, dtype=DOUBLE), 1e3)
    output, cost = net(points, mask)
    alone = [net(cloud[there][None]) for cloud, there in zip(points, mask, strict=True)]
    assert torch.allclose(output, torch.cat([one.output for one in alone]), rtol=1e-11, atol=1e-12)
    assert torch.allclose(cost, sum(one.cost for one in alone) / 3, rtol=1e-11)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("form", ["equations", "published"])
def test_attention_block_of_two_sets_is_that_of_lee(norm, skip, form):
    block = CrossBlock(8, 2, norm=norm, skip=skip, form=form).to(DOUBLE)
    x, y = torch.randn(2, 5, 8, dtype=DOUBLE), torch.randn(2, 3, 8, dtype=DOUBLE)
    before, root = (block.query(x), (4 / 8) ** 0.5) if form == "published" else (x, 1)
    twin = nn.MultiheadAttention(8, 2, batch_first=True, dtype=DOUBLE)
    for kind in ("weight", "bias"):
        query, pair = getattr(block.query, kind), getattr(block.key_value, kind)
        getattr(twin, f"in_proj_{kind}").data = torch.cat([root * query, pair]).detach()
    nn.init.eye_(twin.out_proj.weight), nn.init.zeros_(twin.out_proj.bias)

    def normed(z):
        return functional.layer_norm(z, (8,)) if norm else z

    h = normed(before + twin(x, y, y)[0])
    change = (h @ block.feed_forward.weight.T + block.feed_forward.bias).clamp(min=0)
    assert torch.allclose(block(x, y), normed(h + change if skip else change), atol=1e-12)


@OF_SETS
def test_networks_of_sets_are_made_of_these_blocks(name):
    net, points = network(name)

    def induced(block, x):  # equations 9 and 10
        return block.spread(x, block.gather(block.inducing.expand(len(x), -1, -1), x))

    x = induced(net.embed, points) if name == "embedded sets" else net.embed(points)
    for block in net.body:
        x = induced(block, x)
    if name == "sets":  # equation 11; not in the published code
        x = functional.relu(net.head.feed_forward(x))
    pooled = net.head.pool(net.head.seeds.expand(len(x), -1, -1), x)
    assert torch.allclose(net(points).output, net.head.linear(pooled[:, 0]), rtol=1e-12)
