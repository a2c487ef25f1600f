"""Parts of networks: equal to torch's own modules, masks that hide, clear errors."""

import math

import pytest
import torch
from torch import nn

from wflow import InputError, nets
from wflow.nets import control
from wflow.nets.blocks import Attention, Block, FeedForward, Stack, TokenEmbedding, check_tokens
from wflow.nets.models.set_transformer import CrossBlock
from wflow.nets.models.text import EncoderBlock, PooledHead

DOUBLE = torch.float64
CAUSAL = pytest.mark.parametrize("causal", [False, True])


def states(batch=3, tokens=5, width=8, dtype=DOUBLE):
    return torch.randn(batch, tokens, width, dtype=dtype)


def lengths_mask(*lengths, tokens=5):
    return torch.arange(tokens) < torch.tensor(lengths)[:, None]


def twin_of(attention: Attention) -> nn.MultiheadAttention:
    """Return torch's module with the same weights."""
    width = attention.qkv.in_features
    twin = nn.MultiheadAttention(width, attention.heads, batch_first=True, dtype=DOUBLE)
    twin.in_proj_weight.data = attention.qkv.weight.data
    twin.in_proj_bias.data = attention.qkv.bias.data
    twin.out_proj.load_state_dict(attention.out.state_dict())
    return twin


@CAUSAL
@pytest.mark.parametrize("mask", [None, lengths_mask(5, 5, 5), lengths_mask(5, 2, 1)])
def test_attention_equals_torchs_multihead_attention_where_tokens_are(causal, mask):
    attention, x = Attention(8, 2, causal=causal).to(DOUBLE), states()
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    padding = None if mask is None else ~mask
    want, _ = twin_of(attention)(x, x, x, key_padding_mask=padding, attn_mask=hidden)
    there = slice(None) if mask is None else mask
    assert torch.allclose(attention(x, mask=mask)[there], want[there], atol=1e-13)


def test_attention_is_the_sum_over_heads_of_equation_3():
    attention, x = Attention(6, 2, head_width=5, qkv_bias=False).to(DOUBLE), states(1, 4, 6)
    weight, points = attention.qkv.weight, x[0].T  # (30, 6), (6, 4): tokens are columns
    want = attention.out.bias[:, None].expand(6, 4)
    for h in range(2):
        rows = slice(5 * h, 5 * h + 5)
        query, key, value = weight[:10][rows], weight[10:20][rows], weight[20:][rows]
        scores = (key @ points).T @ (query @ points) / 5**0.5
        want = want + attention.out.weight[:, rows] @ value @ points @ torch.softmax(scores, dim=0)
    assert attention.qkv.bias is None
    assert torch.allclose(attention(x)[0], want.T, atol=1e-13)


def test_attention_without_projection_gives_its_heads_side_by_side():
    plain = Attention(8, 2, project=False).to(DOUBLE)
    full = Attention(8, 2).to(DOUBLE)
    full.qkv.load_state_dict(plain.qkv.state_dict())
    x = states()
    assert torch.allclose(full(x), full.out(plain(x)), atol=1e-13)


@CAUSAL
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE, torch.bfloat16])
def test_rows_without_any_token_are_finite_and_so_are_their_gradients(causal, dtype):
    attention = Attention(8, 2, causal=causal).to(dtype)
    x = states(dtype=dtype).requires_grad_()
    mask = lengths_mask(5, 2, 0)
    mask[1] = mask[1].flip(0)  # tokens behind the padding: the first rows see nothing, if causal
    y = attention(x, mask=mask)
    y.square().sum().backward()
    assert y.dtype == dtype
    assert y.isfinite().all() and x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


def test_padding_sees_the_tokens_that_are_there_and_in_empty_texts_all():
    attention, x = Attention(8, 2).to(DOUBLE), states()
    got = attention(x, mask=lengths_mask(3, 0, 5))
    other = x.clone()
    other[0, 4] = 7.0  # padding does not see other padding
    assert torch.equal(attention(other, mask=lengths_mask(3, 0, 5))[0, 3], got[0, 3])
    assert torch.allclose(got[1], attention(x)[1], atol=1e-13)
    causal = Attention(8, 2, causal=True).to(DOUBLE)  # tokens that see none before them
    alone = causal.out(causal.qkv(x)[..., 16:])  # see themselves: their own values
    assert torch.allclose(causal(x, mask=lengths_mask(0, 0, 0)), alone, atol=1e-13)


@pytest.mark.parametrize("mask", [None, lengths_mask(5, 3, 2)])
@pytest.mark.parametrize("kind", [Block, EncoderBlock])
def test_blocks_equal_torchs_encoder_layer_with_norms_first_or_last(kind, mask):
    block, x = kind(8, 2, hidden=12).to(DOUBLE), states()
    first = kind is Block
    twin = nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, "gelu" if first else "relu", batch_first=True, norm_first=first, dtype=DOUBLE
    )
    for module in block.modules():  # norms of other than ones and zeros
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    layers = block.feed_forward if first else block
    twin.self_attn = twin_of(block.attention)
    twin.linear1.load_state_dict(layers.up.state_dict())
    twin.linear2.load_state_dict(layers.down.state_dict())
    twin.norm1.load_state_dict(block.norm_attention.state_dict())
    twin.norm2.load_state_dict(block.norm_feed_forward.state_dict())
    want = twin(x, src_key_padding_mask=None if mask is None else ~mask)
    there = slice(None) if mask is None else mask
    assert torch.allclose(block(x, mask=mask)[there], want[there], atol=1e-12)


def test_blocks_without_skip_give_the_feed_forward_layer_alone():
    block, x = Block(8, 2, hidden=12, skip=False).to(DOUBLE), states()
    u = x + block.attention(block.norm_attention(x))
    ff = block.feed_forward(block.norm_feed_forward(u))
    assert torch.equal(block(x), ff)
    block.skip = True
    assert torch.equal(block(x), u + ff)
    block = EncoderBlock(8, 2, hidden=12, skip=False).to(DOUBLE)
    ff = block.down(block.up(block.norm_attention(x + block.attention(x))).relu())
    assert torch.equal(block(x), block.norm_feed_forward(ff))


@pytest.mark.parametrize("skip", [False, True])
def test_block_has_the_parts_that_are_asked_for(skip):
    block, x = Block(8, 2, skip=skip).to(DOUBLE), states()
    assert torch.equal(block(x), x + block.attention(block.norm_attention(x)))
    names = {name.split(".")[0] for name, _ in block.named_parameters()}
    assert names == {"norm_attention", "attention"}
    plain = Block(8, 2, hidden=12, norm=False, bias=False)
    assert [p.ndim for p in plain.parameters()] == [2] * 4
    with_norm = dict(Block(8, 2, hidden=12, bias=False).named_parameters())
    extra = with_norm.keys() - dict(plain.named_parameters()).keys()
    assert extra == {"norm_attention.weight", "norm_feed_forward.weight"}


def test_gelu_is_the_function_or_its_approximation():
    x = states()
    layer = FeedForward(8, 12).to(DOUBLE)
    exact = layer.up(x) * 0.5 * (1 + torch.erf(layer.up(x) / 2**0.5))
    assert torch.allclose(layer(x), layer.down(exact), atol=1e-13)
    rough = FeedForward(8, 12, gelu="tanh").to(DOUBLE)
    rough.load_state_dict(layer.state_dict())
    assert 1e-8 < (rough(x) - layer(x)).abs().max() < 1e-2


def test_stack_is_the_composition_and_hands_the_context_to_each_block():
    blocks = [Block(8, 2, hidden=12), Block(8, 2)]
    stack, x, mask = Stack(blocks).to(DOUBLE), states(), lengths_mask(5, 3, 2)
    want = blocks[1](blocks[0](x, mask=mask), mask=mask)
    assert torch.equal(stack(x, mask=mask), want)
    assert torch.equal(stack(x, valid=mask, mask=mask), want)
    assert not torch.allclose(stack(x)[mask], want[mask])
    assert len(stack) == 2 and stack[1] is blocks[1] and list(stack) == blocks


def test_embedding_adds_tokens_and_positions():
    embedding, tokens = TokenEmbedding(7, 5, 8), torch.tensor([[6, 0, 6], [1, 1, 2]])
    want = embedding.token.weight[tokens] + embedding.position.weight[:3]
    assert torch.equal(embedding(tokens), want) and torch.equal(embedding(tokens.int()), want)


def test_ids_on_a_device_are_not_waited_for():
    # A tensor without values stands for one on a GPU: reading it would fail here, and wait there.
    check_tokens(torch.zeros(2, 3, dtype=torch.long, device="meta"), 7)
    with pytest.raises(InputError, match="texts of 6 tokens"):
        check_tokens(torch.zeros(2, 6, dtype=torch.long, device="meta"), 7, 5)


def test_an_empty_batch_and_any_length_pass_where_they_may():
    assert TokenEmbedding(7, 5, 8)(torch.zeros(0, 3, dtype=torch.long)).shape == (0, 3, 8)
    assert Block(8, 2, hidden=12)(torch.zeros(0, 3, 8)).shape == (0, 3, 8)


# Tokens that are not there

WIDTH = 8
SETS = {"features": WIDTH, "classes": 3, "width": WIDTH, "heads": 2, "inducing": 3}


def layer(**options):
    return Block(WIDTH, 2, hidden=16, **options)


def in_time(net):
    net.body = nets.ContinuousTransformer(net.body, steps=2)
    return net


class Seen(CrossBlock):
    """A block whose two queries see the tokens."""

    def forward(self, y, *, mask):
        return super().forward(torch.ones(len(y), 2, WIDTH), y, mask=mask)


BOTH = ("valid", "mask")
MASKED = {  # networks with the arguments that take a mask
    "attention": (lambda: Attention(WIDTH, 2, causal=True), ["mask"]),
    "block": (layer, ["mask"]),
    "block without norms": (lambda: layer(norm=False, causal=True), ["mask"]),
    "encoder block": (lambda: EncoderBlock(WIDTH, 2, hidden=16), ["mask"]),
    "pooling": (lambda: PooledHead(WIDTH, 3, pooling="max"), ["mask"]),
    "stack": (lambda: Stack([layer(), layer()]), BOTH),
    "continuous": (
        lambda: nets.ContinuousTransformer([layer()], steps=2, velocity="residual"), BOTH
    ),
    "node": (lambda: nets.NodeTransformer([layer(), layer()], steps=2), BOTH),
    "dynamics": (lambda: control.Dynamics([layer()], transport=0.1), BOTH),
    "set": (lambda: nets.SetTransformer(**SETS, norm=True), ["mask"]),
    "set in time": (lambda: in_time(nets.SetTransformer(**SETS)), ["mask"]),
    "published set": (
        lambda: nets.SetTransformer(**SETS, form="published", embedding="block"), ["mask"]
    ),
    "seen": (lambda: Seen(WIDTH, 2), ["mask"]),
}  # fmt: skip


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", MASKED)
def test_what_tokens_hold_that_are_not_there_reaches_neither_result_nor_gradient(name, gradient):
    make, names = MASKED[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(3, 5, WIDTH)
    there = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]], dtype=torch.bool)

    def measured(held):
        net.zero_grad()
        given = torch.where(there[:, :, None], x, held).requires_grad_(gradient)
        found = net(given, **dict.fromkeys(names, there))
        parts = found if isinstance(found, tuple) else (found,)
        parts = [part[there] if part.shape[:2] == there.shape else part for part in parts]
        torch.stack([part.sin().sum() for part in parts]).sum().backward()
        slopes = [given.grad[there]] if gradient else []
        return [*(part.detach() for part in parts), *(p.grad for p in net.parameters()), *slopes]

    want = measured(0.0)
    for held in (math.nan, math.inf, 1e30):
        torch.testing.assert_close(measured(held), want)
