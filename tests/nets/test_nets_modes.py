"""Who looks at a network leaves the modes of its modules."""

import pytest
import torch

from wflow.nets import diagnostics, particles
from wflow.nets.models.gpt import GPT


@pytest.mark.parametrize(
    "look",
    [
        lambda net: net.generate(torch.zeros(1, 2, dtype=torch.long), 2, temperature=0),
        lambda net: particles.tokens_of(net, torch.arange(5)[None]),
        lambda net: particles.clouds_of(net, torch.arange(5)[None]).tokens,
        lambda net: particles.motion_of(net, torch.arange(5)[None]).attention,
        lambda net: diagnostics.lipschitz(net.body, torch.ones(2, 3, 8), perturbation=1e-2).random,
    ],
)
def test_a_network_is_seen_without_dropout_and_keeps_its_modes(look):
    torch.manual_seed(0)
    net = GPT(vocabulary=7, context=5, width=8, depth=2, heads=2, dropout=0.3)
    net.body[0].eval()  # a part that is frozen stays so
    before = [part.training for part in net.modules()]
    one, two = (torch.as_tensor(look(net)) for _ in range(2))
    assert torch.equal(one, two)
    assert [part.training for part in net.modules()] == before and len(set(before)) == 2
