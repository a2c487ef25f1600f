"""The convex test problem: straight lines, constant speed, uniqueness, and the bound of Thm 2."""

import itertools

import pytest
import torch

from wflow import InputError
from wflow.nets import diagnostics as diag
from wflow.nets.convex import ConvexProblem

LOSSES = ("squared", "cross-entropy")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(loss, lam=0.7, *, c=3, d=5, steps=6, t_final=1.5, seed=0):
    """Return a problem and data of four samples."""
    made = ConvexProblem(normal(c, d, seed=seed), loss, t_final=t_final, steps=steps, lam=lam)
    x0, y = normal(4, d, seed=1), normal(4, c, seed=2)
    return made, x0, y if loss == "squared" else torch.softmax(2 * y, -1)


def priced(loss, over):
    """Return a problem with lambda above T L^2 by a factor."""
    made, _, _ = problem(loss)
    return problem(loss, over * made.t_final * made.L**2)[0]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("lam", [0.01, 0.7, 40.0])
def test_terminal_state_solves_the_optimality_condition_to_rounding(loss, lam):
    made, x0, y = problem(loss, lam)
    x = made.terminal_state(x0, y)
    slope = torch.func.grad(lambda state: made.value(state, y).sum())(x)
    size = 1 + float((made.t_final / lam * slope).abs().max())
    assert (x - x0 + made.t_final / lam * slope).abs().max() <= 1e-12 * size
    assert torch.allclose(made.gradient(x, y), slope, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
def test_minimising_over_velocities_finds_the_optimum_from_every_start(loss):
    made, x0, y = problem(loss)
    known = made.velocities(x0, y)
    for start in (0, 1, 30 * normal(*known.shape, seed=9)):
        found = made.minimise(x0, y, start)
        assert (found - known).abs().max() <= 1e-11
    assert (made.minimise(x0, y, 5, method="lbfgs") - known).abs().max() <= 1e-6
    # The optimum goes in straight lines at constant speed.
    assert (found - found[0]).abs().max() <= 1e-11
    path = made.trajectory(x0, found)
    assert (diag.straightness(path) - 1).abs().max() <= 1e-12
    assert diag.speed_variation(path).abs().max() <= 1e-11
    costs = diag.step_costs(path)
    assert (costs / costs.mean() - 1).abs().max() <= 1e-11
    whole = made.objective(found, x0, y).mean()
    ends = made.value(path.states[-1], y).mean()
    assert float(whole - ends) == pytest.approx(made.lam * float(costs.sum()), rel=1e-10)
    assert (path.states[-1] - made.terminal_state(x0, y)).abs().max() <= 1e-11


@pytest.mark.parametrize("loss", LOSSES)
def test_no_other_velocities_cost_less(loss):
    made, x0, y = problem(loss)
    known = made.velocities(x0, y)
    least = made.objective(known, x0, y)
    for seed, size in itertools.product(range(5), (1e-3, 1.0)):
        change = size * normal(*known.shape, seed=seed)
        # The objective is strongly convex: above its minimum by lambda dt/2 |difference|^2.
        gap = made.lam * made.dt / 2 * change.square().sum((0, 2))
        assert (made.objective(known + change, x0, y) - least >= 0.999 * gap - 1e-12).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_without_transport_cost_different_starts_find_different_optima(loss):
    made, x0, y = problem(loss, lam=0.0)
    found = [made.minimise(x0, y, start) for start in range(2)]
    one, two = (made.objective(f, x0, y) for f in found)
    assert (one - two).abs().max() <= 1e-12
    assert ((found[0] - found[1]).flatten(2).norm(dim=2).sum(0) > 0.5).all()
    for f in found:
        path = made.trajectory(x0, f)
        assert (diag.straightness(path) > 1.05).all() and (diag.speed_variation(path) > 0.05).all()
        assert made.gradient(path.states[-1], y).abs().max() <= 1e-10
    with pytest.raises(InputError, match="not unique"):
        made.terminal_state(x0, y)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("over", [1.01, 2.0, 100.0])
def test_outputs_of_optimal_pairs_keep_the_bound_of_theorem_2(loss, over):
    made = priced(loss, over)
    x1, x2 = normal(200, 5), normal(200, 5, seed=1)
    y1, y2 = normal(200, 3, seed=2), normal(200, 3, seed=3)
    if loss == "cross-entropy":
        y1, y2 = torch.softmax(3 * y1, -1), torch.softmax(3 * y2, -1)
    x2[:50] = x1[:50]  # pairs that differ in the target alone, and in the input alone
    y2[50:100] = y1[50:100]
    found = made.stability(x1, y1, x2, y2)
    assert found.holds and 0 < found.tightness.max() < 1


@pytest.mark.parametrize("over", [1.1, 3.0, 1e3])
def test_the_bound_is_off_by_exactly_the_factor_of_the_sharp_one_for_a_squared_loss(over):
    """Along the singular vector of L the output moves by L / (1 + s), the bound is L / (1 - s)."""
    made, (_, _, y) = priced("squared", over), problem("squared")
    x = normal(4, 5)
    found = made.stability(x, y, x + torch.linalg.svd(made.output)[2][0], y)
    assert (found.tightness - (1 - 1 / over) / (1 + 1 / over)).abs().max() <= 1e-10


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("lam", [1e-2, 1.0])
def test_terminal_states_are_never_further_apart_than_inputs_whatever_lambda(loss, lam):
    """The proximal map is nonexpansive: sharper than Theorem 2, and without lambda > T L^2."""
    made, _, y = problem(loss, lam)
    assert lam < made.t_final * made.L**2
    x1, x2 = normal(4, 5, seed=5), normal(4, 5, seed=6)
    ends = [made.terminal_state(x, y) for x in (x1, x2)]
    assert ((ends[0] - ends[1]).norm(dim=1) <= (x1 - x2).norm(dim=1) + 1e-12).all()
    other = torch.roll(y, 1, 0)
    moved = (made.terminal_state(x1, other) - ends[0]).norm(dim=1)
    bound = made.t_final * made.L / lam * (other - y).norm(dim=1)
    assert (moved <= bound + 1e-12).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("p", [1, 2, 4])
def test_clouds_of_outputs_keep_the_bound_of_theorem_3(loss, p):
    made, (_, _, y) = priced(loss, 1.5), problem(loss)
    clouds = normal(40, 5), 0.8 * normal(40, 5, seed=1) + 0.3
    one = y[:1].expand(40, 3)
    outputs = [made.prediction(made.terminal_state(x, one)) for x in clouds]
    found = diag.transport_ratio(*clouds, *outputs, p)
    assert 0 < found.ratio <= diag.stability_bound(made.t_final, made.L, made.lam).inputs


def test_targets_may_be_hard_or_a_softmax_in_any_precision():
    made, x0, _ = problem("cross-entropy", lam=0.1)
    hard = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]]
    assert (made.minimise(x0, hard, 0) - made.velocities(x0, hard)).abs().max() <= 1e-11
    still = torch.zeros(made.steps, *x0.shape).double()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        y = torch.softmax(normal(len(x0), 3, seed=9), 1).to(dtype)
        double = y.double() / y.double().sum(1, keepdim=True)
        assert torch.equal(made.objective(still, x0, y), made.objective(still, x0, double))
    with pytest.raises(InputError, match="sum one"):
        made.objective(still, x0, (1.1 * double).float())


def test_trajectories_of_one_target_do_not_meet():
    made, _, _ = problem("cross-entropy", lam=0.05)
    x0, y = normal(40, 5, seed=7), torch.tensor([[0.25, 0.5, 0.25]]).double().expand(40, 3)
    states = made.trajectory(x0, made.velocities(x0, y)).states
    gaps = torch.stack([torch.pdist(state).min() for state in states])
    assert (gaps > 1e-3).all()
