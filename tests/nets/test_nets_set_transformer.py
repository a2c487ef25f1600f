"""Set Transformer: published sizes, a NumPy twin of its two forms, clouds of different sizes."""

import numpy as np
import pytest
import torch
from torch import nn

from wflow.nets.continuous import ContinuousTransformer, NodeTransformer
from wflow.nets.models.set_transformer import InducedBlock, SetTransformer

DOUBLE = torch.float64
SMALL = {"features": 3, "classes": 4, "width": 8, "heads": 2, "inducing": 3}
FORMS = [("equations", "linear"), ("published", "linear"), ("published", "block")]


def network(form="published", embedding="linear", **options):
    net = SetTransformer(**SMALL | {"form": form, "embedding": embedding} | options)
    return net.to(DOUBLE).eval()


def weights(part):
    return {key: p.detach().numpy() for key, p in part.named_parameters()}


def padded(*sizes, most=7):
    """Clouds of these sizes, with large numbers where no point is, and their mask."""
    mask = torch.arange(most) < torch.tensor(sizes)[:, None]
    points = torch.randn(len(sizes), most, 3, dtype=DOUBLE)
    return torch.where(mask[:, :, None], points, 1e3), mask


# The twin: one cloud of any size, row by row, with no part of torch.


def twin_attention(p, x, y, heads, form):
    """One token of x after the other sees those of y; both forms of the block."""
    width = len(p["query.bias"])
    k = width // heads
    rows = []
    for token in x:
        query = p["query.weight"] @ token + p["query.bias"]
        pairs = y @ p["key_value.weight"].T + p["key_value.bias"]
        seen = np.empty(width)
        for head in range(heads):
            own = slice(head * k, (head + 1) * k)
            root = np.sqrt(width if form == "published" else k)
            scores = pairs[:, :width][:, own] @ query[own] / root
            chances = np.exp(scores - scores.max())
            seen[own] = chances / chances.sum() @ pairs[:, width:][:, own]
        h = (query if form == "published" else token) + seen
        rows.append(h + np.maximum(p["feed_forward.weight"] @ h + p["feed_forward.bias"], 0))
    return np.array(rows)


def inside(p, name):
    return {key[len(name) + 1 :]: value for key, value in p.items() if key.startswith(name + ".")}


def twin_block(p, x, heads, form):
    summary = twin_attention(inside(p, "gather"), p["inducing"], x, heads, form)
    return twin_attention(inside(p, "spread"), x, summary, heads, form)


def twin(net, x, form, steps):
    """Logits and the sum of squares of the velocities of one cloud (points, features)."""
    p = weights(net)
    if isinstance(net.embed, nn.Linear):
        x = x @ p["embed.weight"].T + p["embed.bias"]
    else:
        x = twin_block(inside(p, "embed"), x, 2, form)
    path = "body.blocks.blocks" if steps else "body.blocks"
    blocks = sorted({key.split(path)[1].split(".")[1] for key in p if key.startswith(path)})

    def f(x):
        for k in blocks:
            x = twin_block(inside(p, f"{path}.{k}"), x, 2, form)
        return x

    squares = 0.0
    for _ in range(steps):
        velocity = f(x)
        squares += np.sum(velocity**2) / steps
        x = x + velocity / steps
    if not steps:
        x = f(x)
    if form == "equations":
        x = np.maximum(x @ p["head.feed_forward.weight"].T + p["head.feed_forward.bias"], 0)
    pooled = twin_attention(inside(p, "head.pool"), p["head.seeds"], x, 2, form).reshape(-1)
    return p["head.linear.weight"] @ pooled + p["head.linear.bias"], squares


@pytest.mark.parametrize(("form", "embedding"), FORMS)
@pytest.mark.parametrize("steps", [0, 3])
def test_network_is_its_numpy_twin_for_every_cloud_of_a_padded_batch(form, embedding, steps):
    net = network(form, embedding)
    if steps:
        net.body = ContinuousTransformer(net.body, steps=steps)
    sizes = (4, 1, 7)
    points, mask = padded(*sizes)
    output, cost = net(points, mask)
    want = [
        twin(net, cloud[:n].numpy(), form, steps) for cloud, n in zip(points, sizes, strict=True)
    ]
    np.testing.assert_allclose(
        output.detach().numpy(), [logits for logits, _ in want], rtol=1e-11, atol=1e-12
    )
    each = [squares / (8 * n) / 2 for (_, squares), n in zip(want, sizes, strict=True)]
    assert float(cost.detach()) == pytest.approx(np.mean(each), rel=1e-11)


@pytest.mark.parametrize(("form", "embedding"), FORMS)
def test_a_mask_that_hides_nothing_changes_nothing(form, embedding):
    net = network(form, embedding)
    net.body = NodeTransformer(net.body, steps=2)
    points, _ = padded(7, 7, 7)
    for got, want in zip(net(points, torch.ones(3, 7) > 0), net(points), strict=True):
        assert torch.allclose(got, want, rtol=1e-12)


# Published sizes: weights and inducing points of the induced blocks, biases not counted.


@pytest.mark.parametrize(
    ("width", "embedding", "weights", "every", "printed"),
    [
        (256, "block", 862_464, 866_560, "0.86M"),
        (200, "linear", 646_400, 649_600, "0.65M"),
    ],
)
def test_blocks_have_the_published_numbers_of_weights(width, embedding, weights, every, printed):
    with torch.device("meta"):
        net = SetTransformer(
            features=3,
            classes=40,
            width=width,
            heads=4,
            inducing=16,
            form="published",
            embedding=embedding,
        )
    blocks = [net.body, *([net.embed] if embedding == "block" else [])]
    sizes = [(key, p.numel()) for block in blocks for key, p in block.named_parameters()]
    counted = sum(n for key, n in sizes if not key.endswith("bias"))
    assert (counted, sum(n for _, n in sizes)) == (weights, every)
    assert f"{counted / 1e6:.2f}M" == printed
    assert sum(isinstance(part, InducedBlock) for part in net.modules()) == 2
