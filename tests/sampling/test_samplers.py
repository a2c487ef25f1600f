"""Samplers: stationary moments, bits for any threads, kill and resume, run files, bad input."""

import numpy as np
import pytest
from run_layouts import same_bits, spoiled

import wflow
from wflow import InputError, sampling
from wflow._core.threads import available
from wflow.analysis.description import describe
from wflow.runs.store import RunWriter
from wflow.sampling import samplers, targets

X0 = np.random.default_rng(0).standard_normal((40, 2)) * 2
TARGET = targets.GaussianLaplace([0.0, 1.0], lam=1.0)
QUICK = {"h": 0.05, "steps": 12, "save_every": 5}


def half(x):
    return 0.5 * x


def sampler(name, x0=X0, **changes):
    """Return a short run of a sampler of TARGET."""
    options = QUICK | changes
    if name == "ula":
        return sampling.ula(x0, TARGET.subgradient, **options)
    return getattr(sampling, name)(x0, TARGET.grad, TARGET.prior, **options)


def test_ula_has_the_stationary_variance_of_its_recursion():
    h, beta = 0.2, 2.0
    x0 = np.zeros((4000, 1))
    run = sampling.ula(x0, lambda x: x, h=h, beta=beta, steps=60, save_every=20)
    expected = 2 * h / beta / (1 - (1 - h) ** 2)
    error = expected * np.sqrt(2 / 4000)
    assert abs(float(run.sample_variance[0, -1, 0]) - expected) < 4 * error
    assert abs(float(run.sample_mean[0, -1, 0])) < 4 * np.sqrt(expected / 4000)


@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_myula_has_the_moments_of_gaussian_times_laplace(beta):
    target = targets.GaussianLaplace([0.0, 1.5], lam=0.7, beta=beta)
    x0 = target.sample(4000, seed=1)
    options = {"h": 0.01, "beta": beta, "steps": 150, "save_every": 150}
    run = sampling.myula(x0, target.grad, target.prior, **options)
    mean, variance = (run[f"sample_{name}"][0, -1].values for name in ("mean", "variance"))
    exact = np.diag(target.covariance())
    assert np.all(np.abs(mean - target.mean()) < 4 * np.sqrt(exact / 4000) + 0.01)
    assert np.all(np.abs(variance - exact) < 6 * exact * np.sqrt(3 / 4000) + 0.03 * exact)


def test_brwp_has_the_stationary_variance_of_a_gaussian_to_first_order_in_h():
    # With y = (1 - h) x ~ N(0, t) the attention is the mean k y, k = t/(t + 2h/beta), and the cloud
    # is at rest where (1 - h)(3 - k)/2 = 1.
    for h in (0.1, 0.05):
        beta = 2.0
        x0 = np.sqrt(1 / beta) * np.random.default_rng(2).standard_normal((400, 1))
        run = sampling.brwp(x0, lambda x: x, sampling.NoPrior(), h=h, beta=beta, steps=150)
        k = 3 - 2 / (1 - h)
        expected = 2 * h / beta * k / (1 - k) / (1 - h) ** 2
        assert abs(expected - 1 / beta) < 2 * h / beta
        assert abs(float(run.sample_variance[0, -1, 0]) - expected) < 0.06 * expected


@pytest.mark.parametrize("name", ["brwp", "myula", "ula"])
def test_temperature_scales_lengths(name):
    # In u = sqrt(beta) x the target exp(-beta (|x|^2/2 + lam |x|)) has the weight sqrt(beta) lam.
    beta = 4.0
    cold = targets.GaussianLaplace([0.0, 1.0], lam=0.5, beta=beta)
    warm = targets.GaussianLaplace([0.0, 2.0], lam=1.0)
    runs = []
    for target, x0 in ((cold, X0 / 2), (warm, X0)):
        grads = (target.subgradient,) if name == "ula" else (target.grad, target.prior)
        runs.append(getattr(sampling, name)(x0, *grads, beta=target.beta, h=0.04, steps=10))
    assert np.allclose(2 * runs[0].samples, runs[1].samples, rtol=1e-9, atol=1e-9)


def test_brwp_without_attention_of_others_collapses_with_a_warning():
    x0 = 10 * np.random.default_rng(0).standard_normal((8, 8))
    with pytest.warns(UserWarning, match="no interaction"):
        run = sampling.brwp(x0, lambda x: x, sampling.NoPrior(), h=1e-3, steps=3)
    assert float(run.ess[0, -1]) < 1.01


def test_a_cloud_within_the_threshold_is_absorbed():
    # All of S is zero, and x -> x - M/2 with M = beta/(2h) Cov x: 1/variance grows by beta/(2h).
    h, beta, steps = 0.5, 1.0, 200
    x0 = 0.05 * np.random.default_rng(0).standard_normal((100, 1))
    options = {"h": h, "beta": beta, "steps": steps, "kernel": "laplace"}
    with pytest.warns(UserWarning, match=r"beta lambda\^2 h <= 0.05"):
        run = sampling.brwp(x0, np.zeros_like, sampling.L1(2.0), **options)
    assert float(run.absorbed[0, -1]) == 1.0
    first, last = run.sample_variance[0, [0, -1], 0].values
    assert 1 / last == pytest.approx(1 / first + beta * steps / (2 * h), rel=0.02)


MIXTURE = {"means": [[-2, 0.0], [2, 1.0]], "scale": 0.5}


@pytest.mark.parametrize(
    "target",
    [
        targets.GaussianLaplace([0.7, -30.0], lam=2.0, beta=3.0, scale=0.7),
        targets.GaussianMixture(**MIXTURE, lam=1.5, weights=[1, 3]),
        targets.GaussianMixture(**MIXTURE),
    ],
)
def test_exact_moments_of_targets_are_those_of_their_samples(target):
    x, exact = target.sample(20_000, seed=3), target.covariance()
    spread = np.sqrt(np.diag(exact))
    assert np.all(np.abs(x.mean(axis=0) - target.mean()) < 4 * spread / np.sqrt(20_000))
    gap = np.abs(np.cov(x.T) - exact) / np.outer(spread, spread)
    assert gap.max() < 5 * np.sqrt(3 / 20_000)


def test_gradients_of_targets_are_those_of_their_potentials():
    x = np.random.default_rng(0).standard_normal((5, 3))
    for target in (
        targets.GaussianLaplace([0.0, 1.0, -2.0], scale=0.5, beta=2.0),
        targets.GaussianMixture(np.eye(3), scale=0.5, beta=2.0),
        targets.BayesianLasso.drawn(3, seed=1),
    ):
        for axis, step in enumerate(1e-6 * np.eye(3)):
            slope = (target.potential(x + step) - target.potential(x - step)) / 2e-6
            assert np.allclose(slope, target.grad(x)[:, axis], rtol=1e-6, atol=1e-6)


def test_density_of_a_target_is_that_of_its_moments():
    target = targets.GaussianMixture([[-1.0], [2.0]], scale=0.6, lam=0.8, beta=1.7)
    x = np.linspace(-9, 9, 20_001)
    density = np.exp(target.log_density(x[:, None]))
    density /= density.sum()
    mean = density @ x
    assert mean == pytest.approx(target.mean()[0], abs=1e-5)
    assert density @ x**2 - mean**2 == pytest.approx(target.covariance()[0, 0], abs=1e-5)


def test_reference_of_the_lasso_is_that_of_one_coordinate():
    target = targets.BayesianLasso([[1.0]], [1.2], noise=0.8, lam=1.0, beta=2.0)
    same = targets.GaussianLaplace([1.2], scale=0.8, lam=1.0, beta=2.0)
    x = target.sample(3000, seed=0)
    assert abs(x.mean() - same.mean()[0]) < 5 * np.sqrt(same.covariance()[0, 0] / 3000)


def test_several_clouds_are_those_of_their_own_runs():
    both = sampler("brwp", np.stack([X0, X0[::-1] + 1]))
    for path, x0 in enumerate((X0, X0[::-1] + 1)):
        assert np.array_equal(both.samples[path], sampler("brwp", x0).samples[0])


def test_same_seed_gives_the_same_bits_for_any_number_of_threads():
    x0 = TARGET.sample(1500, seed=1)
    options = {"steps": 2, "save_every": 1}
    one, all_threads = (sampler("brwp", x0, threads=n, **options) for n in (1, available()))
    assert np.array_equal(one.samples, all_threads.samples)
    for name in ("myula", "ula"):
        one, same, other = (sampler(name, seed=seed).samples.values for seed in (0, 0, 1))
        assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize("name", ["brwp", "myula", "ula"])
def test_a_file_holds_the_run_in_memory_and_verifies(name, tmp_path):
    options = {"snapshots": [0, 5, 12]}
    memory = sampler(name, **options)
    options |= {"out": tmp_path / "run.h5", "if_exists": "resume"}
    for _ in range(2):  # written, and read
        with sampler(name, **options) as stored:
            same_bits(stored, memory)
    assert all(np.isfinite(memory[key]).all() for key in memory.variables)
    assert wflow.verify(tmp_path / "run.h5").passed
    with pytest.raises(InputError, match="differs in h"):
        sampler(name, **options, h=0.04)
    with pytest.raises(InputError, match=r"wflow\.sampling"):
        wflow.rerun(tmp_path / "run.h5")


def test_verify_finds_samples_that_do_not_fit(tmp_path):
    def shift(content):
        content["samples"][...] += 0.5

    sampler("ula", out=tmp_path / "run.h5").close()
    file = spoiled(tmp_path / "run.h5", tmp_path, shift)
    failed = [check.name for check in wflow.verify(file).checks if check.passed is False]
    assert failed == ["moments follow from the stored tokens"]


class Killed(BaseException):
    """Stands for SIGKILL: no sampler handles it, and no state is saved."""


@pytest.mark.parametrize("name", ["brwp", "myula", "ula"])
def test_a_killed_run_continues_to_the_bit(name, tmp_path, monkeypatch):
    file, x0 = tmp_path / "run.h5", np.stack([X0, X0 + 1])
    options = {"snapshots": [0, 6, 12]} | ({} if name == "brwp" else {"seed": 3})
    whole = sampler(name, x0, **options)
    advance, checkpoint = sampling.samplers.SamplerBatch.advance, RunWriter.checkpoint
    done = []

    def until(cloud, step):
        following = advance(cloud, step)
        done.append(step)
        if len(done) in (4, 9):
            raise Killed
        return following

    def every_third(writer, state):
        if state["step"] % 3 == 0:
            checkpoint(writer, state)

    monkeypatch.setattr(sampling.samplers.SamplerBatch, "advance", until)
    monkeypatch.setattr(RunWriter, "checkpoint", every_third)
    options |= {"out": file, "if_exists": "resume", "checkpoint_every": 0.0}
    for _ in range(2):
        with pytest.raises(Killed):
            sampler(name, x0, **options)
        report = wflow.verify(f"{file}.partial")
        wrong = [check.name for check in report.checks if check.passed is False]
        assert wrong == ["the run is complete"]
    with sampler(name, x0, **options) as other:
        same_bits(whole, other)
    assert done == [0, 1, 2, 3, *range(3, 8), *range(6, 13)]
    assert wflow.verify(file).passed


def test_another_gradient_is_not_resumed(tmp_path):
    file = tmp_path / "run.h5"
    sampling.ula(X0, half, **QUICK, out=file).close()
    with pytest.raises(InputError, match="grad"):
        sampling.ula(X0, lambda x: 0.25 * x, **QUICK, out=file, if_exists="resume")


def test_info_names_the_sampler():
    run = sampler("brwp")
    lines = dict(describe(run))
    assert lines["sampler"].startswith("brwp(h = 0.05, beta = 1.0, kernel = exact")
    assert lines["prior"] == "L1(lam = 1.0)" and "ess(T)" in lines
    assert "sampler brwp" in str(run.wflow)


def test_a_report_draws_the_diagnostics_and_speaks_of_no_heads(tmp_path):
    file = tmp_path / "run.h5"
    sampler("brwp", out=file).close()
    page = wflow.report(file).read_text()
    assert "Diagnostics" in page and "effective tokens, smallest" in page
    assert "Head law" not in page and "rerun" not in page.partition("<main")[2]


def test_a_step_too_large_blows_up_with_what_was_recorded(tmp_path):
    file = tmp_path / "run.h5"
    with pytest.raises(wflow.BlowUpError, match="take a smaller h") as caught:
        sampling.ula(X0, lambda x: x, h=100.0, steps=400, out=file)
    error = caught.value
    assert error.time > 0 and error.path == 0 and 1e13 < error.score < 1e17
    with pytest.warns(UserWarning, match="not complete"), wflow.open(file) as part:
        assert 0 < part.sizes["time"] < 401


@pytest.mark.filterwarnings("ignore:at the end a token attends")
@pytest.mark.parametrize("centre", [0.0, 1e6])
@pytest.mark.parametrize("name", ["ula", "myula", "brwp"])
def test_no_sampler_returns_diverged_moments_in_silence(name, centre):
    # h L = 5: distances grow by four in every step, or by more.
    others = () if name == "ula" else (sampling.NoPrior(),)

    def run(steps):
        given = X0 + centre, lambda x: 5 * (x - centre), *others
        return getattr(sampling, name)(*given, h=1.0, steps=steps, save_every=steps)

    with pytest.warns(UserWarning, match="diverges"):
        mean = run(8 if centre == 0 else 6).sample_mean
    assert np.abs(mean[0, -1] - centre).max() > 100
    if centre == 0:
        with pytest.raises(wflow.BlowUpError, match="take a smaller h") as caught:
            run(200)
        assert caught.value.score < 1e17


def test_far_starts_steps_near_the_bound_and_climbs_do_not_count_as_divergence():
    far = np.full((20, 1), 1e9)
    sampling.ula(far, lambda x: x, h=0.1, steps=5)
    sampling.ula(0 * far, lambda x: x - 1e9, h=0.1, steps=300)
    sampling.ula(far, lambda x: x, h=0.1, beta=1e30, steps=20)
    run = sampling.ula(far / 1e9, lambda x: 1.95 * x, h=1.0, steps=200)
    assert float(run.sample_variance[0, -1, 0]) < 200
    small = 1e-6 * X0
    sampling.ula(small, lambda x: x**3 - x, h=0.1, beta=1e12, steps=60)


def test_tokens_and_gradients_that_cease_to_be_finite_are_a_blow_up():
    with pytest.raises(wflow.BlowUpError, match="smaller h"):
        sampling.brwp(X0, np.copy, sampling.NoPrior(), h=100.0, steps=400)
    shifts = iter([0.0, 0.0, np.nan])
    with pytest.raises(wflow.BlowUpError, match=r"grad.*step 2|step 2.*grad"):
        sampling.ula(np.ones((5, 2)), lambda x: x + next(shifts), h=0.1, steps=9)


def test_a_wrong_first_gradient_leaves_no_file(tmp_path):
    with pytest.raises(InputError, match="initial token"):
        sampling.ula(X0, lambda x: x * np.inf, **QUICK, out=tmp_path / "run.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("steps", "size", "kept"),
    [(7, 8, range(8)), (200, 8, range(2, 201, 2)), (150, 8, range(0, 151, 2)), (9, 2**25, (4, 9)),
     (9, 2**40, (9,)), (1, 2**40, (1,))],
)  # fmt: skip
def test_snapshots_by_default_are_the_end_and_what_fits_before_it(steps, size, kept):
    found = samplers._default_snapshots(steps, size)
    assert found.tolist() == list(kept) and len(found) <= 100


def test_samples_as_chains_and_draws():
    x0 = np.stack([X0[:8], 2 * X0[:8]])
    options = {"h": 0.1, "steps": 20}
    run = sampling.ula(x0, lambda x: x, **options, snapshots=range(1, 21))
    draws = sampling.to_arviz(run, burn_in=0.25)["posterior"]["samples"]
    assert draws.dims == ("chain", "draw", "axis") and draws.shape == (16, 15, X0.shape[1])
    assert np.array_equal(draws[9], run.samples[1, 5:, 1])
    cloud = sampling.brwp(x0, lambda x: x, sampling.NoPrior(), **options)
    assert np.array_equal(sampling.to_arviz(cloud)["posterior"]["samples"], cloud.samples[:, -1])
    chains = sampling.reference.metropolis(
        lambda x: -0.5 * np.sum(x**2, axis=-1), np.zeros((4, 2)), draws=300, warmup=50, seed=0
    )
    tree = sampling.to_arviz(chains)
    assert tree["posterior"]["samples"].identical(chains["samples"])
    assert tree["sample_stats"]["lp"].dims == ("chain", "draw")
    arviz_stats = pytest.importorskip("arviz_stats")
    pytest.importorskip("arviz_base")
    assert np.allclose(arviz_stats.rhat(tree)["samples"], chains["r_hat"], rtol=1e-6)
    assert np.allclose(arviz_stats.ess(tree)["samples"], chains["ess"], rtol=0.02)


def test_what_has_no_samples_is_refused_by_to_arviz():
    run = sampling.ula(X0[:4], lambda x: x, h=0.1, steps=4, snapshots=[])
    for bad in (run, None, 3, X0, run.to_array()):
        with pytest.raises(wflow.InputError, match="samples"):
            sampling.to_arviz(bad)
    run = sampling.ula(X0[:4], lambda x: x, h=0.1, steps=4)
    for share in (1, -0.1, 2, np.nan, "x", None):
        with pytest.raises(wflow.InputError, match="burn_in"):
            sampling.to_arviz(run, burn_in=share)
    with pytest.raises(wflow.InputError, match="blew up"):
        sampling.to_arviz(run.assign(samples=run.samples * np.nan))
