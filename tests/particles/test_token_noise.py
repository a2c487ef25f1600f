"""Noise on the tokens: its law, its place in the energy budget, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_layouts import spoiled
from scipy import stats
from twin import symmetric, unit

import wflow
from wflow.analysis.fits import mean_and_error
from wflow.analysis.verify import verify
from wflow.heads import QKV, Frozen, OrnsteinUhlenbeck
from wflow.kernels.pairs.diffusion import energy_laplacian

LEVEL = 1e-3  # of the tests of a law: with fixed seeds they either hold for good or not at all


def laplacian(x, D):
    """Sum over the tokens of the Laplacian of the energy, from its formula per pair of tokens."""
    n, d = x.shape
    z = np.einsum("hab,ib->hia", D, x)
    s = np.einsum("ia,hja->hij", x, z)
    size = np.einsum("hja,hja->hj", z, z)[:, None, :]
    apart = (size - s**2 - (d - 1) * s) * np.exp(s)
    own = np.einsum("hii->hi", s)
    trace = np.trace(D, axis1=1, axis2=2)[:, None]
    itself = (4 * (size[:, 0] - own**2) + 2 * trace - 2 * d * own) * np.exp(own) / 2
    off = ~np.eye(n, dtype=bool)
    return (apart[:, off].sum() + itself.sum()) / (len(D) * n**2)


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 40), d=st.sampled_from([2, 3, 5]), heads=st.integers(1, 4),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_compiled_laplacian_equals_its_formula(n, d, heads, seed) -> None:
    rng = np.random.default_rng(seed)
    x, D = unit(rng, n, d), symmetric(rng, heads, d, d)
    total = energy_laplacian(x[None], D[None])
    assert total[0] == pytest.approx(laplacian(x, D), rel=1e-11, abs=1e-11)


def test_laplacian_is_the_second_derivative_of_the_energy() -> None:
    rng = np.random.default_rng(5)
    x, D = unit(rng, 6, 3), symmetric(rng, 2, 3, 3)
    step, total = 1e-3, 0.0
    for i in range(6):
        frame, _ = np.linalg.qr(np.column_stack([x[i], rng.normal(size=(3, 2))]))
        for u in frame[:, 1:].T:
            energies = []
            for angle in step * np.arange(-2, 3):
                moved = x.copy()
                moved[i] = np.cos(angle) * x[i] + np.sin(angle) * u
                energies.append(wflow.energy(moved, D))
            total += np.dot([-1, 16, -30, 16, -1], energies) / (12 * step**2)
    assert energy_laplacian(x[None], D[None])[0] == pytest.approx(total, rel=1e-7)


def test_large_scores_keep_the_laplacian_and_overflow_is_infinite() -> None:
    rng = np.random.default_rng(1)
    x, D = unit(rng, 12, 3), 100 * symmetric(rng, 1, 3, 3)
    assert np.abs(D).max() > 64  # beyond the bound on scores that need no shift
    assert energy_laplacian(x[None], D[None])[0] == pytest.approx(laplacian(x, D), rel=1e-9)
    with pytest.warns(RuntimeWarning, match="range of floats"):
        run = wflow.solve(
            x, Frozen(), heads=20 * D, t_final=1e-6, dt=1e-6, kappa=1.0, flow="softmax"
        )
    for name in ("diffusion_power", "work_diffusion", "edi_residual"):
        assert not np.isnan(run[name].values).any()


@pytest.mark.parametrize("d", [2, 3, 5])
def test_without_interaction_the_stationary_law_is_uniform(d) -> None:
    # All tokens start at one point; D = 0 leaves Brownian motion, of which exp(-10) is left at the
    # end in the slowest mode.
    x0, paths = np.tile(np.eye(d)[0], (20, 1)), 100
    dt = 0.08 / (d - 1)
    run = wflow.solve(
        x0, Frozen(), heads=np.zeros((1, d, d)), t_final=125 * dt, dt=dt, kappa=1.0, seed=4,
        paths=paths, save=wflow.SaveAt(paths=range(paths)),
    )  # fmt: skip
    tokens = run["tokens"].values[:, -1].reshape(-1, d)
    assert np.allclose(np.linalg.norm(tokens, axis=1), 1.0, atol=1e-12)
    half = stats.beta((d - 1) / 2, (d - 1) / 2)  # law of (1 + x_k) / 2 for a uniform token
    for k in range(d):
        assert stats.kstest((1 + tokens[:, k]) / 2, half.cdf).pvalue > LEVEL


def test_brownian_motion_forgets_its_start_at_the_rate_of_the_laplacian() -> None:
    # E<x_t, x_0> = exp(-kappa (d - 1) t): the first eigenvalue of the Laplacian on the sphere.
    d, kappa, t, paths = 5, 0.3, 0.8, 1000
    x0 = np.tile(np.eye(d)[0], (20, 1))
    errors = []
    for dt in (0.05, 0.025):
        run = wflow.solve(
            x0, Frozen(), heads=np.zeros((1, d, d)), t_final=t, dt=dt, kappa=kappa,
            paths=paths, save=wflow.SaveAt(paths=range(paths)),
        )  # fmt: skip
        mean, error = mean_and_error(run["tokens"].values[:, -1, :, 0].ravel())
        errors.append(float(error))
        assert abs(mean - np.exp(-kappa * (d - 1) * t)) < 4 * error + 0.05 * dt
    assert max(errors) < 0.005


def test_energy_balance_closes_in_expectation_at_first_order() -> None:
    x0 = wflow.tokens.uniform(20, 3, seed=1)
    means = []
    for dt in (8e-3, 4e-3):
        run = wflow.solve(
            x0, OrnsteinUhlenbeck(np.eye(3)), heads=3, t_final=0.4, dt=dt, paths=300, kappa=0.5,
            seed=3, save=wflow.SaveAt(every=10),
        )  # fmt: skip
        last = run.isel(time=-1)
        mean, error = mean_and_error(last["edi_residual"].values)
        means.append(float(mean))
        # Without the diffusion's share the balance would miss by far more than its error.
        missing = float((last["edi_residual"] + last["work_diffusion"]).mean())
        assert abs(mean) < 0.15 and abs(missing) > 5 * error
        martingale, spread = mean_and_error(last["martingale_tokens"].values)
        assert abs(martingale) < 4 * spread
    assert means[1] / means[0] == pytest.approx(0.5, abs=0.25)


def test_noise_of_tokens_and_of_heads_are_independent_draws() -> None:
    x0 = wflow.tokens.uniform(9, 3, seed=0)
    common = {"heads": 2, "t_final": 0.1, "dt": 0.01, "save": wflow.SaveAt(heads=True)}
    law = OrnsteinUhlenbeck(np.eye(3))
    still, noisy = (wflow.solve(x0, law, kappa=k, **common) for k in (0.0, 0.3))
    assert np.array_equal(still["heads"].values, noisy["heads"].values)
    assert "diffusion_power" not in still and "diffusion_power" in noisy


def test_verify_checks_the_budget_of_a_run_whose_tokens_diffuse(tmp_path) -> None:
    x0, out = wflow.tokens.uniform(20, 3, seed=1), tmp_path / "run.h5"
    options = {"heads": np.eye(3)[None], "t_final": 0.2, "dt": 2e-3, "paths": 8, "kappa": 0.3}
    wflow.solve(x0, Frozen(), out=out, **options).close()
    assert verify(out).passed

    def act(file):
        file["work_diffusion"][2, 5] += 0.01

    report = verify(spoiled(out, tmp_path, act))
    failed = [check.name for check in report.checks if check.passed is False]
    assert "edi_residual is what its terms leave" in failed
    assert "running integrals are the sums of their rates" in failed


def test_general_and_causal_heads_may_diffuse_without_an_energy() -> None:
    rng = np.random.default_rng(0)
    x0 = wflow.tokens.uniform(9, 3, seed=0)
    heads = QKV(*(rng.normal(size=(2, 3, 3)) for _ in range(3)))
    for options in ({"heads": heads}, {"heads": 2, "causal": True}):
        runs = [
            wflow.solve(x0, Frozen(), t_final=0.1, dt=0.01, kappa=k, **options) for k in (0.0, 0.1)
        ]
        assert not np.allclose(runs[0]["tokens"].values, runs[1]["tokens"].values)
        assert "diffusion_power" not in runs[1]
