"""Heads that jump: the law of the jumps, their energy in the budget, and what they refuse."""

import numpy as np
import pytest
from run_layouts import same_bits
from twin import symmetric, unit

import wflow
from wflow import InputError
from wflow._core.tableaux import TABLEAUX
from wflow.heads import CompoundPoisson, Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating, Schedule
from wflow.heads.process import HeadProcess

RNG = np.random.default_rng(0)
X0 = unit(RNG, 8, 3)
START = symmetric(RNG, 2, 3, 3) / 4
TABLE = np.stack([START, -START])
NOISY = CompoundPoisson(OrnsteinUhlenbeck(np.eye(3)), rate=4.0, size=0.5)


class Still(wflow.Flow):
    """Tokens at rest."""

    def velocity(self, cloud):
        return np.zeros_like(cloud.x)


def ones(Z):
    return np.ones_like(Z)


def solve(law, **options):
    options = {"heads": START, "t_final": 0.5, "dt": 0.02, "paths": 3, "seed": 5} | options
    return wflow.solve(X0, law, **options)


@pytest.mark.parametrize(
    "law",
    [
        OrnsteinUhlenbeck(np.eye(3), exact=True), Oscillating(3), Frozen(),
        Schedule([0.0, 0.3], TABLE, "constant"),
        HeadLaw(lambda D, t: -D, lambda D, t: abs(D[..., 0, 0])),
    ],
    ids=lambda law: type(law).__name__,
)  # fmt: skip
def test_at_rate_zero_it_is_the_law_within(law):
    heads = None if law.initial() else START
    run, other = (solve(each, heads=heads) for each in (law, CompoundPoisson(law, 0.0)))
    same_bits(run, other[list(run.data_vars)])


def test_jumps_are_kept_where_the_heads_of_a_table_jump():
    table = [np.zeros((1, 2, 2)), np.eye(2)[None]]
    law = CompoundPoisson(Schedule([0.0, 0.5], table, "constant"), 3.0, ones)
    apart = after(law, 1, 10, 0.1)[0] - np.eye(2)
    assert apart[0, 0] == apart[0, 1] >= 1  # whole jumps, before the knot and after it
    without = after(CompoundPoisson(Frozen(), 3.0, ones), 1, 10, 0.1)[0]
    np.testing.assert_allclose(apart, without, atol=1e-12)


def after(law, heads, steps, dt):
    """Return heads (heads, d, d) of one path that start at zero."""
    process = HeadProcess(law, np.zeros((heads, 2, 2)), seed=3, paths=(7,))
    for step in range(steps):
        process.advance(step, step * dt, dt, TABLEAUX["euler"])
    return process.D[0]


def test_heads_jump_as_often_as_a_poisson_process():
    count, mean = 20_000, 2.5 * 1.2
    jumps = after(CompoundPoisson(Frozen(), 2.5, ones), count, 6, 0.2)[:, 0, 0]
    assert np.array_equal(jumps, np.rint(jumps))
    assert abs(jumps.mean() - mean) < 5 * np.sqrt(mean / count)
    assert abs(jumps.var() - mean) < 5 * np.sqrt((mean + 2 * mean**2) / count)
    none = np.exp(-mean)
    assert abs((jumps == 0).mean() - none) < 5 * np.sqrt(none / count)
    assert abs(np.corrcoef(jumps[::2], jumps[1::2])[0, 1]) < 5 / np.sqrt(count / 2)


def test_jumps_add_up_to_the_moments_of_a_compound_poisson_process():
    """Variance rate t s^2 and fourth moment 3 rate t s^4 + 3 (rate t s^2)^2 on the diagonal."""
    count, mean, size = 40_000, 0.8, 0.7
    D = after(CompoundPoisson(Frozen(), 1.6, size), count, 5, 0.1)
    assert np.array_equal(D, D.swapaxes(-1, -2))
    a, b = D[:, 0, 0], D[:, 0, 1]
    fourth = 3 * mean * size**4 + 3 * (mean * size**2) ** 2
    second = mean * size**2
    for values, power, expected in (
        (a, 2, second), (a, 4, fourth), (b, 2, second / 2), (b, 4, fourth / 4),
    ):  # fmt: skip
        sample = values**power
        assert abs(sample.mean() - expected) < 5 * sample.std() / np.sqrt(count)
    free = CompoundPoisson(HeadLaw(symmetric=False), 1.6, size)
    assert np.var(after(free, count, 5, 0.1)[:, 0, 1]) == pytest.approx(second, rel=0.05)


def test_the_budget_holds_the_energy_of_every_jump_exactly():
    run = solve(CompoundPoisson(Frozen(), 4.0, 0.5), flow=Still(), paths=20)
    change = run.energy.values - run.energy.values[:, :1]
    assert (change != 0).mean() > 0.5
    np.testing.assert_allclose(run.work_weights, change, rtol=0, atol=1e-12)
    assert np.abs(run.edi_residual).max() < 1e-12


def test_the_mean_energy_of_the_jumps_is_that_of_the_theory():
    """Check E exp(<x, S y>) = exp(rate t (exp(size^2 c/2) - 1)), S the sum of the jumps.

    Here c = (1 + <x, y>^2)/2. Tokens rest, so that the mean of E(t) is known; five standard errors.
    """
    rate, size, paths = 1.5, 0.4, 4000
    law = CompoundPoisson(Frozen(), rate, size)
    run = solve(law, flow=Still(), paths=paths, dt=0.1, seed=1)
    scores = np.einsum("ia,hab,jb->hij", X0, START, X0)
    c = (1 + (X0 @ X0.T) ** 2) / 2
    rates = rate * np.expm1(size**2 * c / 2)
    for place, t in ((1, 0.1), (-1, 0.5)):
        expected = (np.exp(scores) * np.expm1(rates * t)).mean() / 2
        found = run.work_weights.values[:, place]
        assert abs(found.mean() - expected) < 5 * found.std() / np.sqrt(paths)
        assert expected > 10 * found.std() / np.sqrt(paths)


def test_the_residual_falls_like_the_step_though_heads_jump():
    steps = np.array([0.08, 0.04, 0.02, 0.01])
    runs = [solve(NOISY, t_final=1.6, dt=dt, paths=64) for dt in steps]
    residuals = [float(np.sqrt((run.edi_residual[:, -1] ** 2).mean())) for run in runs]
    assert np.polyfit(np.log(steps), np.log(residuals), 1)[0] == pytest.approx(1, abs=0.15)


class Once(OrnsteinUhlenbeck):
    """A jump at the time 1/3, which no step meets."""

    def jump(self, D, t, dt, generator):
        return D - 2 * START if t <= 1 / 3 < t + dt else None


def test_tokens_have_order_one_across_a_jump():
    law = Once(np.eye(3), sigma2=0.0)
    ends = [
        solve(law, paths=1, dt=0.5 / k, heads=2 * START).tokens.values[0, -1]
        for k in (16, 64, 256, 2**12)
    ]
    errors = [np.abs(end - ends[-1]).max() for end in ends[:-1]]
    slope = -np.polyfit(np.log([16, 64, 256]), np.log(errors), 1)[0]
    assert slope == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    "compute",
    [wflow.Compute(batch=2), wflow.Compute(threads=1), wflow.Compute(dtype="float32", batch=1)],
)
def test_jumps_depend_on_seed_path_and_step_alone(compute):
    save = wflow.SaveAt(heads=True, paths=range(5))
    law = CompoundPoisson(Frozen(), 4.0, 0.5)
    whole = wflow.Compute(dtype=compute.dtype)
    runs = [solve(law, paths=5, save=save, compute=each) for each in (whole, compute)]
    same_bits(*runs)
    ends = runs[0].heads.values[:, -1]
    assert len({each.tobytes() for each in ends.reshape(-1, 9)}) > 8
    assert not np.array_equal(solve(law, paths=5, save=save, seed=6).heads, runs[0].heads)


def test_a_run_is_checked_and_run_again_from_its_file(tmp_path):
    path = tmp_path / "run.h5"
    with solve(NOISY, out=path, save=wflow.SaveAt(heads=True)) as run:
        same_bits(wflow.rerun(path), run)
        assert np.isfinite(wflow.stability.exponent(run)).all()
    assert wflow.verify(path).passed


def test_sizes_by_a_function_and_laws_of_functions_are_known_by_fingerprint(tmp_path):
    within = CompoundPoisson(HeadLaw(lambda D, t: -D), 4.0, 0.5)
    for number, law in enumerate((CompoundPoisson(Frozen(), 4.0, ones), within)):
        path = tmp_path / f"{number}.h5"
        solve(law, out=path).close()
        with pytest.raises(InputError, match="CompoundPoisson"):
            wflow.rerun(path)
        with pytest.raises(InputError, match="fingerprint"):
            wflow.rerun(path, law=CompoundPoisson(Frozen(), 4.0, lambda Z: 2 * np.ones_like(Z)))
        with wflow.open(path) as run:
            same_bits(wflow.rerun(path, law=law), run)
        assert wflow.verify(path).passed


def test_densities_jump_with_their_heads():
    law = CompoundPoisson(Frozen(), 6.0, 0.3)
    residuals = []
    for steps in (64, 128):
        run = wflow.meanfield.solve(
            lambda x: 1 + 0.5 * x[:, 0], law, mesh=wflow.meanfield.Fourier(24), paths=16,
            heads=[np.eye(2) / 2] * 2, t_final=0.5, dt=0.5 / steps, kappa=0.2,
        )  # fmt: skip
        assert np.abs(run.work_weights.values[:, -1]).max() > 0.05
        residuals.append(float(np.sqrt((run.edi_residual[:, -1] ** 2).mean())))
    assert residuals[1] < 0.01 and residuals[1] < 0.6 * residuals[0]


def test_torch_computes_the_same_jumps():
    pytest.importorskip("torch")
    torch = wflow.Compute(backend="torch", device="cpu")
    runs = [solve(NOISY, compute=compute) for compute in (wflow.Compute(), torch)]
    for name in ("energy", "work_weights", "edi_residual"):
        np.testing.assert_allclose(runs[0][name], runs[1][name], rtol=0, atol=1e-10)
