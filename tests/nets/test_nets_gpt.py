"""GPT: published sizes, generation, and the weights of a published GPT-2."""

import math

import pytest
import torch
from net_calls import gpt2_state
from torch import nn

from wflow import InputError
from wflow.nets.continuous import ContinuousTransformer
from wflow.nets.models import gpt
from wflow.nets.models.gpt import GPT

TEXTS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 0, 0, 0]])


def small(**options) -> GPT:
    size = {"vocabulary": 11, "context": 7, "width": 8, "depth": 2, "heads": 2}
    return GPT(**{**size, **options}).to(torch.float64)


@pytest.mark.parametrize(
    ("width", "depth", "norm", "million"), [(384, 6, True, 10.65), (320, 5, False, 6.16)]
)
def test_gpt_has_the_size_of_the_character_experiment(width, depth, norm, million):
    with torch.device("meta"):  # sizes without memory
        net = GPT(vocabulary=65, context=256, width=width, depth=depth, heads=depth, norm=norm)
    block = 12 * width**2 + 2 * width * norm
    assert net.count() == 65 * width + depth * block + width * norm
    assert round(net.count() / 1e6, 2) == million
    every = net.count(positions=True)
    assert every == net.count() + 256 * width == sum(p.numel() for p in net.parameters())


def test_gpt_has_the_size_of_the_published_gpt_2():
    with torch.device("meta"):
        net = GPT(vocabulary=50257, context=1024, width=768, depth=12, heads=12, bias=True)
    assert net.count(positions=True) == 124_439_808


def test_gpt_shares_its_weights_between_embedding_and_output():
    net, tokens = small(), TEXTS
    assert net.head.weight is net.embed.token.weight
    net(tokens).output.sum().backward()
    with torch.no_grad():
        net.embed.token.weight.zero_()
    assert not net(tokens).output.any()


def test_gpt_starts_with_the_deviations_of_gpt_2():
    net = GPT(vocabulary=500, context=100, width=128, depth=8, heads=4, bias=True)
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            added = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
            want = 0.02 / math.sqrt(16) if added else 0.02
            assert parameter.std().item() == pytest.approx(want, rel=0.04), name
            assert abs(parameter.mean().item()) < 0.02 * want * 5, name


def test_generated_text_is_the_likeliest_at_temperature_zero_and_crops_to_the_context():
    net, tokens = small(dropout=0.3), TEXTS
    for parameter in net.parameters():  # far from the start, where a text repeats its last token
        nn.init.normal_(parameter)
    got = net.generate(tokens, 6, temperature=0)
    assert got.shape == (2, 11) and torch.equal(got[:, :5], tokens)
    assert len(set(got[0, 5:].tolist())) > 2
    net.eval()
    for j in range(5, 11):
        seen = got[:, max(0, j - 7) : j]
        assert torch.equal(got[:, j], net(seen).output[:, -1].argmax(-1))
    long = net.generate(torch.tensor([[1, 2, 3] * 5]), 1, temperature=0)
    assert long.shape == (1, 16)


def test_generated_text_follows_the_softmax_of_the_logits():
    net, n = small(), 20_000
    with torch.no_grad():
        net.embed.token.weight.mul_(40)
    start, generator = torch.full((n, 1), 3), torch.Generator().manual_seed(1)
    drawn = net.generate(start, 1, temperature=1.7, generator=generator)[:, 1]
    logits = net(start[:1]).output[0, -1]
    want = torch.softmax(logits / 1.7, dim=-1)
    error = (want * (1 - want) / n).sqrt()
    assert want.max() < 0.9
    assert ((drawn.bincount(minlength=11) / n - want).abs() < 5 * error + 1e-4).all()
    best = logits.topk(2).indices
    few = net.generate(start[:2000], 1, temperature=1.7, top_k=2, generator=generator)[:, 1]
    assert set(few.tolist()) == set(best.tolist())
    assert (net.generate(start[:9], 1, top_k=1)[:, 1] == best[0]).all()
    for temperature in (1e-30, 7e-46, 5e-324):  # the last two are 0 in single precision
        cold = net.generate(start[:9], 1, temperature=temperature)[:, 1]
        assert (cold == best[0]).all()


def test_a_network_whose_logits_are_not_finite_generates_nothing():
    net = small()
    nn.init.constant_(net.head.norm.weight, math.nan)
    for temperature in (0, 1.0):
        with pytest.raises(InputError, match="logits"):
            net.generate(TEXTS, 1, temperature=temperature)


def test_generated_text_repeats_with_its_generator():
    net = small(dropout=0.3)
    texts = [
        net.generate(TEXTS, 5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    ]
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])
    assert not texts[0].requires_grad
    net.body = ContinuousTransformer(net.body, steps=2)
    assert net.generate(TEXTS.int(), 2).dtype == torch.int64


# Weights of a published GPT-2.


def test_weights_of_gpt_2_may_be_those_of_its_published_form():
    state = gpt2_state()
    given = {f"transformer.{name}": value for name, value in state.items()}
    given["transformer.h.0.attn.bias"] = torch.ones(1, 1, 7, 7).tril()  # their causal mask
    given["lm_head.weight"] = state["wte.weight"]
    net, plain = GPT.from_gpt2(given, heads=3), GPT.from_gpt2(state, heads=3)
    text = torch.tensor([[3, 10, 0, 0, 7, 2, 5]])
    assert torch.equal(net(text).output, plain(text).output)
    assert net.head.weight is net.embed.token.weight
    assert (net.vocabulary, net.context, len(net.body)) == (11, 7, 2)


def test_weights_of_gpt_2_have_heads_of_width_64():
    state = {name: value.half() for name, value in gpt2_state(width=128, depth=1).items()}
    net = GPT.from_gpt2(state, dropout=0.1)
    assert net.body[0].attention.heads == 2 and net.embed.token.weight.dtype == torch.float32
    assert torch.equal(net.body[0].attention.qkv.weight.half(), state["h.0.attn.c_attn.weight"].T)
    with pytest.raises(InputError, match="multiple of 64"):
        GPT.from_gpt2(gpt2_state())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wte.weight", None),
        ("wpe.weight", torch.zeros(7)),
        ("h.1.ln_2.bias", None),
        ("h.0.attn.c_attn.weight", torch.zeros(18, 6)),
        ("h.0.mlp.c_fc.bias", "text"),
        ("h.9.ln_1.weight", torch.zeros(6)),
        ("wte.weight", torch.zeros(11, 6).to_sparse()),
        ("lm_head.weight", torch.zeros(11, 6)),
    ],
)
def test_weights_that_do_not_fit_gpt_2_are_refused_by_name(name, value):
    state = {key: held for key, held in (gpt2_state() | {name: value}).items() if held is not None}
    with pytest.raises(InputError, match=name):
        GPT.from_gpt2(state, heads=2)


@pytest.mark.parametrize("tokens", [1, 3, 1 << 20])
def test_losses_in_parts_are_those_of_all_logits(tokens, monkeypatch):
    monkeypatch.setattr(gpt, "_LOGITS", 11 * tokens)
    net, targets, seen = small(), TEXTS.roll(-1, 1), []
    weights = torch.rand(2, 5, dtype=torch.float64)
    logits = net(TEXTS).output
    want = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    gradients = torch.autograd.grad((weights * want).sum(), list(net.parameters()))
    net.head.register_forward_hook(lambda head, given, logits: seen.append(logits.numel() // 11))
    found, cost = net(TEXTS, targets)
    assert found.shape == (2, 5) and torch.allclose(found, want, rtol=1e-13) and not cost
    same = torch.autograd.grad((weights * found).sum(), list(net.parameters()))
    for a, b in zip(gradients, same, strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-13)
    assert max(seen) <= tokens and sum(seen) >= 10  # ten tokens


def test_losses_of_a_continuous_body_come_with_its_cost():
    net = small()
    net.body = ContinuousTransformer(net.body, steps=2)
    assert torch.equal(net(TEXTS, TEXTS).cost, net(TEXTS).cost) and net(TEXTS).cost > 0
