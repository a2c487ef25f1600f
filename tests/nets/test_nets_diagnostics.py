"""Diagnostics of hidden trajectories, Lipschitz constants and hidden clouds."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from wflow import InputError, transport
from wflow.nets import ContinuousTransformer, Trajectory
from wflow.nets import diagnostics as diag


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trajectory(states, times=None):
    """Return a trajectory through given states (M + 1, batch, tokens, width)."""
    steps = len(states) - 1
    if times is None:
        times = torch.arange(steps + 1, dtype=torch.float64)
    velocities = states.diff(dim=0) / times.diff().reshape(-1, *[1] * (states.ndim - 1))
    costs = 0.5 * times.diff() * velocities.flatten(1).square().sum(1) / states.shape[1]
    return Trajectory(states, times, costs, velocities)


TIMES = torch.tensor([0.0, 0.1, 0.5, 2.0], dtype=torch.float64)


def circle(angle, steps=400):
    """Return a token that goes along an arc of the unit circle, at constant speed."""
    a = torch.linspace(0, angle, steps + 1, dtype=torch.float64)
    return torch.stack([a.cos(), a.sin()], -1)[:, None, None, :]


def test_straightness_of_a_line_is_one_and_of_an_arc_its_length_over_its_chord():
    line = normal(1, 3, 4, 2) + TIMES[:, None, None, None] * normal(1, 3, 4, 2, seed=1)
    assert (diag.straightness(trajectory(line, TIMES)) - 1).abs().max() <= 1e-14
    assert diag.straightness(trajectory(line, TIMES), per="token").shape == (3, 4)
    for angle in (math.pi, 1.0):
        found = float(diag.straightness(trajectory(circle(angle))))
        assert found == pytest.approx(angle / (2 * math.sin(angle / 2)), rel=1e-5)


def test_what_is_measured_by_a_chord_or_a_cost_of_zero_is_nan():
    there_and_back = torch.tensor([0.0, 1.0, 0.0]).reshape(3, 1, 1, 1).expand(3, 2, 3, 2)
    assert torch.isnan(diag.straightness(trajectory(there_and_back))).all()
    rest = trajectory(torch.zeros(3, 2, 3, 2))
    for found in (
        diag.straightness(rest), diag.speed_variation(rest), diag.step_costs(rest, share=True)
    ):  # fmt: skip
        assert torch.isnan(found).all()


def test_speed_variation_is_that_of_the_speeds_whatever_the_steps():
    line = TIMES[:, None, None, None] * normal(1, 3, 4, 2)
    assert diag.speed_variation(trajectory(line, TIMES)).abs().max() < 1e-14
    # Speeds 1 and 3: mean 2, deviation 1.
    jump = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64).reshape(3, 1, 1, 1)
    assert float(diag.speed_variation(trajectory(jump))) == pytest.approx(0.5, abs=1e-15)


def test_tokens_that_are_not_there_do_not_count_whatever_they_hold():
    states = circle(2.0).expand(-1, 1, 2, 2).clone()
    states[:, 0, 1] = torch.linspace(0, 5, len(states), dtype=torch.float64)[:, None]
    valid = torch.tensor([[True, False]])
    gone = torch.where(valid[..., None], states, math.nan)
    for measure in (diag.straightness, diag.speed_variation):
        alone = float(measure(trajectory(circle(2.0))))
        for held in (states, gone):
            found = float(measure(trajectory(held), valid=valid))
            assert found == pytest.approx(alone, rel=1e-14, abs=1e-13)
    per_token = diag.straightness(trajectory(states), per="token")
    assert per_token[0].tolist() == pytest.approx([1 / math.sin(1), 1], rel=1e-5)
    assert float(diag.straightness(trajectory(states))) < 0.9 / math.sin(1)


def test_step_costs_are_the_transport_cost_step_by_step():
    model = ContinuousTransformer(nn.Linear(4, 4).double(), steps=5, cost="sum")
    x = normal(3, 2, 4)
    path = model.trajectory(x)
    costs = diag.step_costs(path)
    assert float(costs.sum()) == pytest.approx(float(model(x).cost.detach()), rel=1e-12)
    assert not costs.requires_grad
    assert float(diag.step_costs(path, share=True).sum()) == pytest.approx(1, abs=1e-14)
    speed = path.velocities.detach().flatten(2).norm(dim=2)
    assert torch.allclose(costs, 0.1 * speed.square().mean(1), rtol=1e-12)


def test_what_is_no_trajectory_is_refused():
    path = trajectory(normal(4, 2, 3, 2))
    for states, words in ((path.states[:, 0, 0], "shape"), (path.states[:, :, 0], "tokens")):
        with pytest.raises(InputError, match=words):
            diag.straightness(path._replace(states=states), per="token")
    with pytest.raises(InputError, match="shape"):
        diag.speed_variation(path._replace(states=path.states[:1]))


def test_lipschitz_constant_of_a_linear_map_is_its_operator_norm():
    layer = nn.Linear(6, 4).double()
    exact = diag.operator_norm(layer)
    singular = torch.linalg.svdvals(layer.weight.detach())
    assert exact == pytest.approx(float(singular.max()), rel=1e-14)
    # In whatever it is given: the weight, or a head with one linear layer.
    for head in (layer.weight, nn.Sequential(nn.Dropout(0.1), layer)):
        assert diag.operator_norm(head) == exact
    found = diag.lipschitz(layer, normal(3, 6), samples=4, iterations=60)
    assert found.constant == pytest.approx(exact, rel=1e-8)
    assert found.iterated == found.constant
    assert found.random < exact
    assert found.per_sample.shape == (3,)
    assert float(found.per_sample.max()) == found.constant
    assert all(parameter.requires_grad for parameter in layer.parameters())


def test_lipschitz_constant_is_a_ratio_of_two_points_hence_never_too_large():
    def wave(x):
        return torch.sin(3 * x)

    x = torch.tensor([[0.0, 0.1], [0.5, 0.5]], dtype=torch.float64)
    found = diag.lipschitz(wave, x, perturbation=1e-2, iterations=20)
    assert 2.99 < found.constant < 3
    # Within 0.01 of 0.5 the slope goes up to 3 cos 1.47; chords that begin at 0.5 have half of it.
    assert 3 * math.cos(1.5) < float(found.per_sample[1]) < 3 * math.cos(1.47)
    # Without iterations no gradient is needed.
    random = diag.lipschitz(lambda x: wave(x.detach()), x, perturbation=1e-2, iterations=0)
    assert random.constant == random.random <= found.constant
    assert math.isnan(random.iterated)


def test_lipschitz_takes_the_first_of_a_tuple_in_any_precision():
    model, x = ContinuousTransformer(nn.Linear(4, 4), steps=3).double(), normal(2, 3, 4)
    one, two = (diag.lipschitz(model, x, seed=3) for _ in range(2))
    assert one.constant == two.constant > 1
    assert math.isfinite(diag.lipschitz(model.float(), x.float(), perturbation=1e-2).constant)


def test_stability_bound_is_that_of_the_theorem_in_every_normalisation():
    found = diag.stability_bound(2.0, 0.5, 4.0)  # T L^2 / lambda = 1/8
    assert found == pytest.approx((0.5 / (1 - 1 / 8), (1 / 8) / (7 / 8)))
    mean = {"cost": "mean", "entries": 60}
    assert diag.stability_bound(2.0, 0.5, 4.0 * 60, **mean) == pytest.approx(found)
    # A language model: mean over 10 tokens of the loss, mean over 60 entries of the cost.
    tokens = diag.stability_bound(2.0, 0.5, 4.0 * 6, **mean, loss_weight=1 / 10)
    assert tokens == pytest.approx(found)


def test_check_stability_compares_pairs_with_the_bound():
    x1, x2 = normal(5, 2, 3), normal(5, 2, 3, seed=1)
    y = normal(5, 4, seed=2)
    matrix = 0.5 * torch.linalg.qr(normal(6, 6, seed=3))[0][:4]  # norm 1/2
    outputs = [x.flatten(1) @ matrix.T for x in (x1, x2)]
    terms = {"t_final": 1.0, "L": 0.5, "lam": 1.0}
    found = diag.check_stability(*outputs, x1, x2, y, y, **terms)
    gap = (x1 - x2).flatten(1).norm(dim=1)
    assert torch.allclose(found.bound, 0.5 / 0.75 * gap)
    assert found.holds and torch.allclose(found.tightness, found.change / found.bound)
    large = diag.check_stability(4 * outputs[0], 4 * outputs[1], x1, x2, y, y, **terms)
    assert not large.holds and large.tightness.max() > 1
    same = diag.check_stability(outputs[0], outputs[0], x1, x1, y, y, **terms)
    assert same.holds and torch.isnan(same.tightness).all()


def test_classes_stand_for_unit_vectors():
    p1, p2 = torch.softmax(normal(3, 4), -1), torch.softmax(normal(3, 4, seed=1), -1)
    x = normal(3, 5)
    classes = torch.tensor([0, 1, 3]), torch.tensor([0, 2, 3])
    found = diag.check_stability(p1, p2, x, x, *classes, t_final=1.0, L=0.5, lam=1.0)
    expected = (0.25 / 0.75) * torch.tensor([0.0, 2**0.5, 0.0], dtype=torch.float64)
    assert torch.allclose(found.bound, expected)
    with pytest.raises(InputError, match="targets"):
        diag.check_stability(p1, p2, x, x, x, x, t_final=1.0, L=0.5, lam=1.0)


@pytest.mark.parametrize("p", [1, 2, 3.5])
def test_hidden_transport_of_a_shifted_cloud_is_the_shift(p):
    x, shift = normal(30, 2, 5), 0.3 * normal(2, 5, seed=1)
    for ground, size in (("euclidean", shift.norm()), ("p-norm", shift.flatten().norm(p))):
        found = diag.hidden_transport(x, x + shift, p, ground=ground)
        assert found == pytest.approx(float(size), rel=1e-12)
    assert diag.hidden_transport(x, x[torch.randperm(30)], p) == pytest.approx(0, abs=1e-14)


def test_hidden_transport_of_clouds_of_different_size_is_exact():
    x = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    y = torch.tensor([[0.0, 3.0], [0.0, 0.0], [4.0, 0.0], [4.0, 3.0]])
    assert diag.hidden_transport(x, y, 2) == pytest.approx(math.sqrt(9 / 2), rel=1e-12)
    assert diag.hidden_transport(x, y, 1) == pytest.approx(1.5, rel=1e-12)


def test_hidden_transport_by_direction_is_that_of_wflow_transport():
    x, y = normal(20, 4), normal(20, 4, seed=1)
    unit = [c / c.norm(dim=1, keepdim=True) for c in (x, y)]
    for cost in ("geodesic", "chordal"):
        expected = transport.w2(*(c.numpy() for c in unit), cost=cost)
        found = diag.hidden_transport(3 * x, y / 7, ground=cost)
        assert found == pytest.approx(expected, rel=1e-12)
    # The two solvers agree: chords are Euclidean distances of the directions.
    assert diag.hidden_transport(*unit) == pytest.approx(expected, rel=1e-12)


def test_a_linear_network_carries_a_shift_on_by_its_matrix():
    matrix, x = normal(3, 5, seed=4), normal(25, 5)
    shift = normal(5, seed=5)
    found = diag.transport_ratio(x, x + shift, x @ matrix.T, (x + shift) @ matrix.T)
    assert found.ratio == pytest.approx(float((matrix @ shift).norm() / shift.norm()), rel=1e-10)
    assert found.ratio <= diag.operator_norm(matrix)
    assert math.isnan(diag.transport_ratio(x, x, x, x).ratio)


def test_transport_along_two_trajectories_begins_with_the_perturbation():
    model, x = ContinuousTransformer(nn.Linear(3, 3).double(), steps=4), normal(12, 2, 3)
    path = model.trajectory(x)
    along = diag.transport_along(path, model.trajectory(x + 0.1))
    assert along.shape == (5,) and np.isfinite(along.numpy()).all()
    assert float(along[0]) == pytest.approx(0.1 * math.sqrt(6), rel=1e-10)
    model.steps = 3
    with pytest.raises(InputError, match="as many"):
        diag.transport_along(path, model.trajectory(x))


def test_diagnostics_leave_no_graph_and_take_half_precision():
    path = ContinuousTransformer(nn.Linear(4, 4), steps=3).trajectory(torch.randn(2, 3, 4))
    assert path.states.requires_grad
    half = path._replace(states=path.states.bfloat16())
    for measure in (diag.straightness, diag.speed_variation, diag.step_costs):
        value = measure(path)
        assert not value.requires_grad and value.dtype == torch.float64
        assert torch.isfinite(measure(half)).all()
