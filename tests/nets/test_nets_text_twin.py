"""The text classifier of [OTT] against a small twin in NumPy, written from Vaswani et al."""

import numpy as np
import pytest
import torch

from wflow import nets
from wflow.nets.models.text import EncoderBlock, SinusoidalEmbedding

HEADS, WIDTH, CONTEXT = 2, 8, 6
TEXTS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 0, 0, 0]])


@pytest.fixture
def double():
    """Networks in double precision, their tables too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def network(**options):
    net = nets.TextClassifier(
        vocabulary=11, context=CONTEXT, classes=3, width=WIDTH, depth=2, heads=HEADS,
        form="published", **{"pooling": "max", **options},
    )  # fmt: skip
    for parameter in net.parameters():  # layer norms with weights, too
        torch.nn.init.normal_(parameter, std=0.5)
    return net


class Twin:
    """Classifier of texts, one at a time, token by token."""

    def __init__(self, net, *, skip=True):
        self.weights = {name: value.detach().numpy() for name, value in net.state_dict().items()}
        self.skip = skip

    def linear(self, name, x):
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        centred = x - x.mean()
        scaled = centred / np.sqrt((centred**2).mean() + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def embed(self, tokens):
        rows = []
        for place, token in enumerate(tokens):
            j = place + 1 if token else 0
            angles = [j / 10_000 ** (2 * (i // 2) / WIDTH) for i in range(WIDTH)]
            waves = [np.cos(a) if i % 2 else np.sin(a) for i, a in enumerate(angles)]
            rows.append(self.weights["embed.token.weight"][token] + waves)
        return np.array(rows)

    def block(self, name, x, there):
        qkv = np.array([self.linear(f"{name}.attention.qkv", row) for row in x])
        query, key, value = np.split(qkv, 3, axis=1)
        out = []
        for j in range(len(x)):
            parts, size = [], WIDTH // HEADS
            for h in range(HEADS):
                part = slice(h * size, (h + 1) * size)
                scores = key[there, part] @ query[j, part] / np.sqrt(size)
                share = np.exp(scores - scores.max())
                parts.append(share @ value[there, part] / share.sum())
            seen = self.linear(f"{name}.attention.out", np.concatenate(parts))
            u = self.norm(f"{name}.norm_attention", x[j] + seen)
            change = self.linear(f"{name}.down", np.maximum(self.linear(f"{name}.up", u), 0))
            out.append(self.norm(f"{name}.norm_feed_forward", u + change if self.skip else change))
        return np.array(out)

    def logits(self, tokens, move, *, padded=False):
        there = np.array([token != 0 for token in tokens])
        x = move(self, self.embed(tokens), there)
        return self.linear("head.linear", (x if padded else x[there]).max(0))


def discrete(twin, x, there):
    for name in ("body.blocks.0", "body.blocks.1"):
        x = twin.block(name, x, there)
    return x


def system(twin, x, there, steps=4):
    for _ in range(steps):
        velocity = x
        for name in ("body.blocks.blocks.0", "body.blocks.blocks.1"):
            velocity = twin.block(name, velocity, there)
        x = x + velocity / steps
    return x


def systems(twin, x, there, steps=4):
    for name in ("body.systems.0.blocks", "body.systems.1.blocks"):
        for _ in range(steps):
            x = x + twin.block(name, x, there) / steps
    return x


@pytest.mark.parametrize(
    ("form", "move"),
    [
        (None, discrete),
        (nets.ContinuousTransformer, system),
        (nets.NodeTransformer, systems),
    ],
)
@pytest.mark.parametrize("skip", [True, False])
def test_the_published_form_is_that_of_its_twin(double, form, move, skip):
    net = network(skip=skip)
    if form is not None:
        net.body = form(net.body, steps=4)
    twin = Twin(net, skip=skip)
    want = [twin.logits(tokens.tolist(), move) for tokens in TEXTS]
    assert np.allclose(net(TEXTS).output.detach(), want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("form", "move"), [(None, discrete), (nets.NodeTransformer, systems)])
def test_the_published_maximum_is_over_padding_too(double, form, move):
    net = network(pooling="max with padding")
    if form is not None:
        net.body = form(net.body, steps=4)
    twin, text = Twin(net), TEXTS[1].tolist()
    got = net(TEXTS[1:]).output[0].detach()
    assert np.allclose(got, twin.logits(text, move, padded=True), rtol=1e-11, atol=1e-12)
    assert not np.allclose(got, twin.logits(text, move), atol=1e-3)


@pytest.mark.parametrize(("depth", "printed"), [(6, "4.74M"), (3, "2.37M")])
def test_the_published_form_has_the_published_size(depth, printed):
    # Table 9 counts the blocks alone, with biases and layer norms, without embedding and head.
    with torch.device("meta"):
        net = nets.TextClassifier(
            vocabulary=16_000, context=512, classes=2, width=256, depth=depth, heads=8,
            pooling="max", dropout=0.1, form="published",
        )  # fmt: skip
    count = sum(p.numel() for p in net.body.parameters())
    layers = 4 * (256 * 256 + 256) + (256 * 1024 + 1024) + (1024 * 256 + 256) + 2 * 2 * 256
    assert count == depth * layers and f"{count / 1e6:.2f}M" == printed


def test_dropout_is_of_what_the_layers_return():
    block, x = EncoderBlock(8, 2, hidden=16, dropout=0.5), torch.randn(2, 5, 8)
    assert block.attention.dropout == 0.0
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_positions_start_at_one_and_are_zero_for_padding(double):
    embed = SinusoidalEmbedding(11, CONTEXT, WIDTH, std=0.1)
    token = embed.token.weight
    hidden = embed(TEXTS[1:])[0]
    assert torch.allclose(hidden[0, :2], token[9, :2] + 0.1 * torch.tensor([np.sin(1), np.cos(1)]))
    assert torch.allclose(hidden[2], token[0] + 0.1 * torch.tensor([0.0, 1.0] * 4))
    assert abs(token.detach().std() - 0.1) < 0.03


def test_the_two_forms_start_from_different_embeddings():
    sizes = {"vocabulary": 500, "context": 3, "classes": 2, "width": 8, "depth": 1, "heads": 2}
    for form, std in (("pre-norm", 0.02), ("published", 1.0)):
        net = nets.TextClassifier(**sizes, form=form)
        assert abs(net.embed.token.weight.detach().std() / std - 1) < 0.05
    net = nets.TextClassifier(**sizes, form="pre-norm", embedding_std=0.5)
    assert abs(net.embed.token.weight.detach().std() / 0.5 - 1) < 0.05


def test_a_network_of_the_published_form_is_built_from_its_configuration(tmp_path):
    net = network(dropout=0.1)
    net.body = nets.ContinuousTransformer(net.body, steps=2)
    other = nets.build(nets.config(net))
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.eval()(TEXTS).output, net.eval()(TEXTS).output)
