"""Attention as a minimizing movement: energies, derivatives and the flow of small steps."""

import math
import warnings

import numpy as np
import pytest
import torch

import wflow
from wflow import nets

FORMS = [("weighted", "ascent"), ("weighted", "descent"), ("w2", "ascent"), ("w2", "descent")]


def layer(width=6, heads=2, **options):
    torch.manual_seed(0)
    return nets.MinimizingMovement(width, heads, **options).double()


def directions(x):
    return torch.nn.functional.normalize(x, dim=2)


def matrices(movement):
    """Return the symmetric matrices D_h with s_h(u, v) = <u, D_h v>, (H, d, d)."""
    heads, width = movement.heads, movement.width
    query = movement.query.weight.unflatten(0, (heads, movement.head_width))
    key = movement.key.weight.unflatten(0, (heads, movement.head_width))
    both = torch.einsum("hka,hkb->hab", query, key) * width / math.sqrt(movement.head_width)
    return (0.5 * (both + both.transpose(1, 2))).detach().numpy()


@pytest.mark.parametrize(("metric", "direction"), FORMS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tau", [0.1, 10.0])
@pytest.mark.filterwarnings("ignore::wflow.AccuracyWarning")
def test_the_energy_moves_one_way_whatever_the_step(metric, direction, causal, tau):
    movement = layer(metric=metric, direction=direction, causal=causal, tau=tau)
    with torch.no_grad():
        movement.query.weight *= 2.0
        movement.key.weight *= 2.0
    x = 2.0 * torch.randn(8, 5, 6).double()
    y = movement(x).detach()
    before, after = movement.energy(x), movement.energy(y, x if causal else None)
    change = (after - before) * (-1 if direction == "ascent" else 1)
    assert (change < 0).all()
    assert torch.allclose(y.norm(dim=2), x.norm(dim=2), rtol=1e-12)
    if metric == "w2" and not causal:  # the inequality of minimizing movements
        moved = (directions(y) - directions(x)).square().sum(2).mean(1) / (2 * tau)
        assert (change + moved <= 1e-12).all()


@pytest.mark.parametrize(
    ("metric", "heads", "flow"),
    [("weighted", 1, "softmax"), ("weighted", 2, "effective"), ("w2", 2, "unnormalised")],
)
@pytest.mark.parametrize("direction", ["ascent", "descent"])
def test_small_steps_are_those_of_the_particles(metric, heads, flow, direction):
    x = directions(torch.randn(1, 7, 6).double())
    errors = []
    for tau in (1e-2, 5e-3):
        movement = layer(heads=heads, metric=metric, direction=direction, tau=tau, tolerance=1e-12)
        rate = ((movement(x) - x)[0] / tau).detach().numpy()
        expected = wflow.velocity(x[0].numpy(), matrices(movement), flow=flow, direction=direction)
        errors.append(np.abs(rate - expected).max())
    assert errors[0] < 0.05
    assert errors[1] < 0.6 * errors[0]  # of first order


@pytest.mark.parametrize(("metric", "direction"), FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_derivatives_are_those_of_the_minimiser(metric, direction, causal):
    options = {"metric": metric, "direction": direction, "causal": causal, "tau": 0.3}
    movement = layer(4, 2, tolerance=1e-12, **options)
    at = (torch.randn(2, 3, 4).double(), movement.query.weight, movement.key.weight)
    at = [each.detach().requires_grad_() for each in at]
    along = [torch.randn_like(each) for each in at]
    cotangent = torch.randn(2, 3, 4).double()

    def value(shift):
        x, query, key = (a + shift * b for a, b in zip(at, along, strict=True))
        weights = {"query.weight": query, "key.weight": key}
        return (torch.func.functional_call(movement, weights, (x,)) * cotangent).sum()

    slopes = torch.autograd.grad(value(0.0), at, create_graph=True)
    slope = sum((a * b).sum() for a, b in zip(slopes, along, strict=True))
    with torch.no_grad():
        difference = (value(1e-5) - value(-1e-5)) / 2e-5
    assert slope.item() == pytest.approx(float(difference), rel=1e-7, abs=1e-8)
    with pytest.raises(RuntimeError):  # second derivatives are refused
        slope.backward()


def test_a_token_sees_those_before_it_only():
    movement = layer(causal=True)
    x = torch.randn(2, 5, 6).double()
    changed = x.clone()
    changed[:, 3:] += 1.0
    assert torch.allclose(movement(x)[:, :3], movement(changed)[:, :3], rtol=0, atol=1e-12)


def test_modes_types_and_zeros():
    movement = layer()
    x = torch.randn(2, 5, 6).double()
    x[0, 0] = 0
    with torch.inference_mode():
        inferred = movement(x)
    with torch.no_grad():
        plain = movement(x)
    assert torch.equal(inferred.clone(), plain)
    assert not plain.requires_grad
    assert torch.equal(movement(inferred), movement(plain))
    assert not inferred[0, 0].any()
    movement(x).sum().backward()
    assert movement.query.weight.grad.isfinite().all()
    half = movement.to(torch.bfloat16)(x.to(torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()
    assert movement(x[:, :0].to(torch.bfloat16)).shape == (2, 0, 6)


def test_a_network_of_movements_is_built_again_and_trains():
    net = nets.ViT(image=(1, 8, 8), patch=4, width=8)
    net.body = nets.MinimizingMovement(8, heads=2, tau=0.5)
    again = nets.build(nets.config(net))
    again.load_state_dict(net.state_dict())
    images = torch.randn(3, 1, 8, 8)
    logits = net(images).output
    assert torch.equal(logits, again(images).output)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_a_minimiser_out_of_reach_is_said():
    movement = layer(tau=50.0, iterations=1)
    with pytest.warns(wflow.AccuracyWarning):
        movement(torch.randn(2, 9, 6).double())


@pytest.mark.parametrize(
    "options", [{"tau": 0}, {"metric": "l2"}, {"direction": "up"}, {"tolerance": -1}, {"heads": 4}]
)
def test_bad_arguments(options):
    with pytest.raises(wflow.InputError):
        nets.MinimizingMovement(6, **options)


def test_bad_hidden_states():
    movement = layer()
    for x in (torch.zeros(2, 5, 7).double(), torch.zeros(2, 5, 6), torch.zeros(5, 6).double()):
        with pytest.raises(wflow.InputError):
            movement(x)
    with pytest.raises(wflow.InputError):
        movement.energy(torch.ones(2, 5, 6).double(), torch.ones(2, 5, 6).double())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert movement(torch.full((1, 2, 6), math.nan).double()).isnan().all()
