"""How sums over pairs are formed: the choice in `wflow.solve` and in the functions of a cloud."""

import json

import numpy as np
import pytest
import xarray as xr

import wflow
from wflow import InputError, heads, tokens
from wflow.analysis.description import describe
from wflow.analysis.verify import verify
from wflow.attention.cloud import mobility
from wflow.kernels import evaluate as evaluation
from wflow.kernels.evaluate import Sums, energy_laplacian, evaluate

OU = heads.OrnsteinUhlenbeck(np.eye(3), sigma2=2.0)
SHORT = {"heads": 2, "t_final": 0.1, "dt": 0.05}


def clouds(n: int, d: int, paths: int = 1) -> np.ndarray:
    return np.array([tokens.uniform(n, d, seed=7 + p) for p in range(paths)])


def matrices(count: int, d: int, paths: int = 1) -> np.ndarray:
    z = np.random.default_rng(3).normal(size=(paths, count, d, d)) / 2
    return z + z.swapaxes(-1, -2)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        lambda d: {"law": heads.OrnsteinUhlenbeck(np.eye(d), sigma2=2.0)},
        lambda d: {"law": heads.OrnsteinUhlenbeck(np.eye(d), sigma2=1.0), "kappa": 0.2},
        lambda d: {"law": heads.Oscillating(d), "scheme": "rk4", "flow": "effective"},
        lambda d: {"law": heads.Frozen(), "flow": "unnormalised", "direction": "ascent"},
        lambda d: {"law": heads.Frozen(), "heads": heads.QKV(*matrices(2, d, 3))},
    ],
)
def test_a_fast_run_keeps_every_number_of_the_exact_one_within_the_tolerance(d, options):
    given = SHORT | {"x0": tokens.uniform(300, d, seed=1)} | options(d)
    exact, fast = (
        wflow.solve(**given, compute=wflow.Compute(method=method)) for method in ("exact", "fast")
    )
    assert "sum_error" not in exact
    error = fast["sum_error"]
    assert error.dims == ("path", "time") and ((error > 0) & (error <= 1e-10)).all()
    for name in exact.data_vars:
        np.testing.assert_allclose(
            fast[name].values, exact[name].values, rtol=1e-9, atol=1e-9, err_msg=name
        )


def test_auto_is_exact_for_few_tokens_and_the_file_is_that_of_exact_sums():
    x0 = tokens.uniform(60, 3, seed=1)
    auto, exact = (
        wflow.solve(x0, OU, **SHORT, compute=wflow.Compute(method=m)) for m in ("auto", "exact")
    )
    xr.testing.assert_identical(auto.drop_attrs(), exact.drop_attrs())
    assert auto.attrs["config"] == exact.attrs["config"]


def test_auto_takes_the_fast_sums_for_many_tokens():
    x0 = tokens.uniform(20_000, 3, seed=1)
    run = wflow.solve(x0, OU, **SHORT | {"t_final": 0.05})
    assert (run["sum_error"] > 0).all()
    assert json.loads(run.attrs["config"])["compute"]["method"] == "auto"


def test_paths_choose_for_themselves_and_results_stand_in_their_order():
    x, D = clouds(4000, 3, 3), matrices(2, 3, 3)
    D[1] *= 20  # scores that only exact sums can do
    together = evaluate(x, D, sums=Sums(), symmetric=True)
    assert together.terms["sum_error"][1] == 0
    assert (together.terms["sum_error"][[0, 2]] > 0).all()
    for p in range(3):
        alone = evaluate(x[p : p + 1], D[p : p + 1], sums=Sums(), symmetric=True)
        assert np.array_equal(together.velocity[p], alone.velocity[0])
        for name, values in alone.terms.items():
            assert together.terms[name][p] == values[0]


def test_the_diffusion_of_tokens_has_fast_sums_too():
    x, D = clouds(500, 3, 2), matrices(3, 3, 2)
    fast, error = energy_laplacian(x, D, Sums("fast"))
    exact, none = energy_laplacian(x, D, Sums("exact"))
    assert ((error > 0) & (error <= 1e-10)).all()
    assert not none.any()
    np.testing.assert_allclose(fast, exact, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("function", ["energy", "dissipation", "upper_gradient_sq", "velocity"])
def test_functions_of_a_cloud_take_the_method(function, monkeypatch):
    x, D = clouds(400, 2)[0], matrices(2, 2)[0]
    calls, kernels = [], evaluation.VELOCITIES  # by bits alone the two may be equal

    def fast_sums(*arguments, **options):
        calls.append(1)
        return kernels.fast(*arguments, **options)

    monkeypatch.setattr(evaluation, "VELOCITIES", kernels._replace(fast=fast_sums))
    exact = getattr(wflow, function)(x, D, method="exact")
    assert not calls
    fast = getattr(wflow, function)(x, D, method="fast")
    assert calls
    np.testing.assert_allclose(fast, exact, rtol=1e-9, atol=1e-10)


def test_a_fast_run_resumes_only_as_what_it_was(tmp_path):
    options = SHORT | {"x0": tokens.uniform(300, 3, seed=1), "law": OU, "out": tmp_path / "run.h5"}
    fast = wflow.Compute(method="fast")
    with wflow.solve(**options, compute=fast) as run:
        xr.testing.assert_identical(
            wflow.rerun(options["out"]).drop_attrs(), run.load().drop_attrs()
        )
    wflow.solve(**options, compute=fast, if_exists="resume").close()
    for changed, name in (
        (wflow.Compute(method="exact"), "compute.method"),
        (wflow.Compute(method="fast", tolerance=1e-8), "compute.tolerance"),
    ):
        with pytest.raises(InputError, match=name):
            wflow.solve(**options, compute=changed, if_exists="resume")


def test_a_coarse_tolerance_is_no_failure_of_the_run_that_asked_for_it(tmp_path):
    file, x0 = tmp_path / "run.h5", tokens.uniform(300, 3, seed=1)
    options = SHORT | {"compute": wflow.Compute(method="fast", tolerance=np.float32(1e-3))}
    with wflow.solve(x0, heads.Frozen(), **options, save=wflow.SaveAt(heads=True), out=file) as run:
        assert json.loads(run.attrs["config"])["compute"]["tolerance"] == np.float32(1e-3)
        shown = dict(describe(run))
    assert shown["sums"].startswith("fast, tolerance 0.001")
    assert float(shown["sum_error"].split()[0]) < 1e-3
    follows = [check for check in verify(file).checks if "follows" in check.name]
    assert [check.passed for check in follows] == [True, True, True], follows


@pytest.mark.parametrize(("dtype", "size"), [("f8", 698.0), ("f4", 84.0)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_terms_that_overflow_are_infinite_and_never_nan(dtype, size, symmetric):
    x = np.zeros((1, 200, 3), dtype)
    x[0, :100, 0] = x[0, 100:, 1] = 1.0
    D = size * np.eye(3, dtype=dtype)[None, None]
    balance = np.diag([size, -size, 0.0]).astype(dtype)[None, None]  # inf - inf
    given = {"drift": balance, "noise": balance, "sigma2": np.ones((1, 1), dtype)}
    terms = evaluate(x, D, **given, symmetric=symmetric).terms
    assert not any(np.isnan(values).any() for values in terms.values())
    assert terms["weight_power"] == np.inf
    assert terms["martingale"] == terms["second_variation"] == np.inf


@pytest.mark.parametrize(("dtype", "size"), [("f8", 1e200), ("f4", 1e30)])
@pytest.mark.parametrize("d", [3, 10])
def test_scores_whose_squares_overflow_raise_no_floating_point_error(d, dtype, size):
    x = np.zeros((1, 30, d), dtype)  # of equal tokens, which attend to all alike
    x[..., 0] = 1.0
    D = matrices(2, d).astype(dtype)
    with np.errstate(all="raise"):
        found = evaluate(x, size * D, values=D).velocity
    expected = D.mean((0, 1)) @ x[0, 0]
    assert np.allclose(found[..., 1:], expected[1:], rtol=1e-5)


@pytest.mark.parametrize("d", [3, 10])
def test_terms_that_are_not_asked_for_are_zero_beyond_the_range_of_floats(d):
    x = clouds(50, d)
    terms = evaluate(x, 800.0 * np.eye(d)[None, None], symmetric=True).terms
    assert terms["energy"] == np.inf
    assert terms["weight_power"] == terms["ito_power"] == terms["martingale"] == 0.0


@pytest.mark.parametrize("d", [3, 10])
@pytest.mark.parametrize("causal", [False, True])
def test_a_score_that_is_not_a_number_is_never_hidden_by_finite_values(d, causal):
    x = clouds(30, d)
    D, values = matrices(2, d), matrices(2, d)
    D[0, 1, 0, 0] = np.nan
    assert np.isnan(evaluate(x, D, values=values, causal=causal).velocity).any()


def test_sums_of_shifted_scores_keep_their_digits_in_single_precision():
    angle = np.arccos(1 + np.log(0.5) / 30)  # the others' kernel value is half of the largest
    x = np.tile(np.array([np.cos(angle), np.sin(angle)], np.float32), (10_000, 1))
    x[0] = 1.0, 0.0
    D = 30.0 * np.eye(2)[None]
    single, double = mobility(x, D.astype(np.float32)), mobility(x.astype(float), D)
    assert np.abs(single / double - 1).max() < 2e-5
