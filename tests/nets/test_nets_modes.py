"""Modes of a network are restored module by module."""

import pytest
import torch
from torch import nn

from wflow.nets import diagnostics, particles
from wflow.nets.blocks import evaluating, kept_modes
from wflow.nets.models.gpt import GPT


def network():
    """A network in training, with a frozen part that is not."""
    torch.manual_seed(0)
    net = GPT(vocabulary=7, context=5, width=8, depth=2, heads=2, dropout=0.3)
    net.body[0].eval()
    return net


def modes(net):
    return [part.training for part in net.modules()]


def test_evaluation_ends_with_the_modes_that_were():
    net = network()
    before = modes(net)
    with evaluating(net):
        assert not any(modes(net))
    assert modes(net) == before and len(set(before)) == 2
    with pytest.raises(RuntimeError), evaluating(net):
        raise RuntimeError
    assert modes(net) == before
    with kept_modes(net):
        assert modes(net) == before
        net.train()
    assert modes(net) == before
    with evaluating(torch.sin), kept_modes(None):  # what is no module has no modes
        pass


@pytest.mark.parametrize(
    "look",
    [
        lambda net: net.generate(torch.zeros(1, 2, dtype=torch.long), 2),
        lambda net: particles.clouds_of(net, torch.arange(5)[None]),
        lambda net: particles.motion_of(net, torch.arange(5)[None]),
        lambda net: diagnostics.lipschitz(net.body, torch.randn(2, 3, 8), perturbation=1e-2),
    ],
)
def test_who_looks_at_a_network_leaves_its_modes(look):
    net = network()
    before = modes(net)
    look(net)
    assert modes(net) == before


def test_a_module_without_dropout_inside_an_own_mode_is_seen_at_rest():
    class Frozen(nn.Dropout):
        def train(self, mode=True):
            return super().train(False)

    net = nn.Sequential(Frozen(0.5), nn.Dropout(0.5))
    before = modes(net)
    with evaluating(net):
        assert torch.equal(net(torch.ones(9)), torch.ones(9))
    assert modes(net) == before
