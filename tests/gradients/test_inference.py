"""`wflow.inference.fit`: known parameters come back, with intervals; the rest is reported."""

from warnings import catch_warnings, simplefilter

import numpy as np
import pytest

import wflow
from wflow import InputError
from wflow.heads import QKV, Frozen, OrnsteinUhlenbeck, Oscillating, Schedule

fit = wflow.inference.fit

RNG = np.random.default_rng(7)
HEADS = RNG.standard_normal((2, 3, 3))
MEAN = np.diag([1.0, 0.5, -0.5])
TIMES = np.linspace(0.0, 1.0, 6)
X = wflow.tokens.uniform(36, 3, seed=0).reshape(3, 12, 3)
TABLE = RNG.standard_normal((3, 1, 3, 3))


def observe(x0, law, heads, noise=0.0, seed=0, **how):
    """Tokens of a run at TIMES, with noise."""
    paths = len(x0) if x0.ndim == 3 else 1
    save = wflow.SaveAt(snapshots=TIMES, paths=range(paths), budget=False)
    how = {"t_final": 1.0, "dt": 0.1, "scheme": "rk4"} | how
    run = wflow.solve(x0, law, heads=heads, paths=paths, save=save, **how)
    x = run.tokens.values
    x = x + noise * np.random.default_rng(seed).standard_normal(x.shape)
    return wflow.sphere.as_tokens(x)


def deviation(found, name, truth):
    return np.abs(found.parameters[name] - truth).max()


@pytest.mark.parametrize("given", [True, False])
def test_heads_come_back_within_their_errors(given):
    y = observe(X, Frozen(), HEADS, noise=0.01)
    found = fit(
        y, TIMES, Frozen(), heads=HEADS + 0.1, x0=X if given else None,
        noise=0.01 if given else None, starts=1, dt=0.1,
    )  # fmt: skip
    low, high = np.moveaxis(found.intervals["heads"], -1, 0)
    errors = (high - low) / 4
    assert found.converged and not found.undecided
    assert np.all(np.abs(found.heads - HEADS) < 5 * errors) and errors.max() < 0.2
    assert np.array_equal(found.heads, found.parameters["heads"])
    assert abs(found.noise - 0.01) < 1e-3 and abs(found.misfit - 1) < 0.2
    assert np.abs(wflow.sphere.as_tokens(found.x0) - X).max() < (1e-15 if given else 0.05)
    value, low, high = found.combination({"heads": np.ones((2, 3, 3))})
    assert abs(value - HEADS.sum()) < high - low < 1.0


def test_heads_are_found_from_their_number_alone():
    y = observe(X, Frozen(), HEADS[:1])
    found = fit(y, TIMES, Frozen(), heads=1, x0=X, noise=1e-3, dt=0.1)
    assert deviation(found, "heads", HEADS[:1]) < 1e-5


def test_a_local_minimum_that_nearly_fits_is_not_taken():
    """The first search ends at a misfit of 1.14, the second at 1.04."""
    x0 = wflow.tokens.uniform(30, 3, seed=0)
    y = observe(x0, Frozen(), MEAN[None], noise=0.01)[:, 1:]
    found = fit(y, TIMES[1:], Frozen(), heads=1, x0=x0, noise=0.01, dt=0.1)
    assert deviation(found, "heads", MEAN) < 0.1


@pytest.mark.parametrize("exact", [False, True])
def test_mean_and_rate_of_ornstein_uhlenbeck(exact):
    law, scheme = OrnsteinUhlenbeck(MEAN, 1.5, 0.0, exact=exact), "euler" if exact else "rk4"
    y = observe(X, law, HEADS, scheme=scheme)
    guess = OrnsteinUhlenbeck(MEAN + 0.1, 1.2, 0.0, exact=exact)
    found = fit(y, TIMES, guess, heads=HEADS, estimate=["mean", "rate"], x0=X, starts=1, dt=0.1,
                scheme=scheme)  # fmt: skip
    assert deviation(found, "mean", MEAN) < 1e-6 and deviation(found, "rate", 1.5) < 1e-6
    assert found.law.exact is exact and found.intervals["rate"].shape == (2,)
    assert np.array_equal(found.law.mean, found.law.mean.T)


@pytest.mark.parametrize("interpolation", ["constant", "linear"])
def test_a_schedule_and_the_pieces_that_nothing_depends_on(interpolation):
    times = [0.0, 0.5, 1.0]
    y = observe(X, Schedule(times, TABLE, interpolation), None)
    guess = Schedule(times, TABLE + 0.1, interpolation)
    found = fit(y, TIMES, guess, x0=X, starts=1, dt=0.1)
    last = 2 if interpolation == "constant" else 3
    assert deviation(found, "scores", TABLE) < 1e-5 if last == 3 else found.undecided[0].count == 9
    assert np.abs(found.parameters["scores"] - TABLE)[:last].max() < 1e-5
    assert np.isnan(found.parameters["scores"][last:]).all()
    run = observe(X, found.law, None)
    assert np.abs(run - y).max() < 1e-6


def test_a_piece_that_nothing_depends_on_does_not_count_against_the_noise():
    y = observe(X, Frozen(), HEADS[:1], noise=0.02)[:, 1:]
    both = [
        fit(y, TIMES[1:], Schedule(times, np.stack([HEADS[:1]] * len(times)), "constant"), x0=X,
            starts=1, dt=0.1)
        for times in ([0.0], [0.0, 2.0])
    ]  # fmt: skip
    assert [one.freedom for one in both] == [3 * 5 * 12 * 2 - 9] * 2
    assert both[0].noise == pytest.approx(both[1].noise, rel=1e-6)


def test_a_coarse_step_is_warned_of():
    y = observe(X, Frozen(), HEADS[:1], noise=0.01, dt=0.01)
    call = {"heads": HEADS[:1], "x0": X, "noise": 0.01, "starts": 1, "dt": 0.1}
    with pytest.warns(wflow.AccuracyWarning, match="half the time step"):
        fit(y, TIMES, Frozen(), scheme="euler", **call)
    with catch_warnings():
        simplefilter("error", wflow.AccuracyWarning)
        fit(y, TIMES, Frozen(), **call)


def test_a_chaotic_run_is_warned_of():
    x0 = np.tile([[0.0, 0.0, 1.0]], (6, 1))  # an unstable equilibrium
    y = wflow.sphere.as_tokens(x0 + 1e-6 * np.random.default_rng(0).standard_normal(x0.shape))
    with pytest.warns(wflow.AccuracyWarning, match="chaotic"):
        fit(y[None], [20.0], Frozen(), heads=MEAN[None], x0=x0, noise=0.01, starts=1, dt=0.1,
            direction="ascent")  # fmt: skip


def test_symmetric_heads_are_symmetric():
    D = HEADS + HEADS.swapaxes(1, 2)
    found = fit(
        observe(X, Frozen(), D), TIMES, Frozen(), heads=D + 0.1, symmetric=True, x0=X, starts=1,
        dt=0.1,
    )  # fmt: skip
    assert np.array_equal(found.heads, found.heads.swapaxes(1, 2))
    assert deviation(found, "heads", D) < 1e-6


def test_directions_off_the_span_of_the_tokens_are_named():
    x0 = np.zeros((12, 3))
    x0[:, :2] = wflow.tokens.uniform(12, 2, seed=0)
    D = np.diag([1.0, -1.0, 0.0])[None]
    found = fit(
        observe(x0, Frozen(), D), TIMES, Frozen(), heads=0.9 * D, x0=x0, noise=0.01, starts=1,
        dt=0.1,
    )  # fmt: skip
    assert [(each.name, each.count) for each in found.undecided] == [
        ("parts of heads off the span of the tokens", 3)
    ]
    assert np.isnan(found.parameters["heads"][0, :, 2]).all()
    assert np.isfinite(found.intervals["heads"][0, :, :2]).all()
    assert np.isnan(found.combination({"heads": np.ones((1, 3, 3))})).all()
    assert found.combination({"heads": D})[0] == pytest.approx(2.0, abs=1e-4)


def test_names_and_errors_do_not_depend_on_the_axes():
    x0, errors = np.zeros((12, 3)), []
    x0[:, :2] = wflow.tokens.uniform(12, 2, seed=0)
    for Q in (np.eye(3), np.linalg.qr(RNG.standard_normal((3, 3)))[0]):
        D, x = (Q @ np.diag([1.0, -1.0, 0.0]) @ Q.T)[None], wflow.sphere.as_tokens(x0 @ Q.T)
        D = (D + D.swapaxes(1, 2)) / 2
        found = fit(
            observe(x, Frozen(), D), TIMES, Frozen(), heads=D, symmetric=True, x0=x, noise=0.01,
            starts=1, dt=0.1,
        )  # fmt: skip
        assert [(each.name, each.count) for each in found.undecided] == [
            ("parts of heads off the span of the tokens", 1)
        ]
        (E,) = found.undecided[0].directions["heads"]
        assert np.linalg.norm(E) == pytest.approx(1.0)
        value, low, high = found.combination({"heads": (Q @ np.diag([1.0, 1.0, 0.0]) @ Q.T)[None]})
        errors.append((high - low, value))
    assert errors[0] == pytest.approx(errors[1], rel=1e-3, abs=1e-6)


def test_heads_that_are_equal_enter_by_their_average():
    """Also with noise, which makes the information at the estimate regular."""
    D = np.stack([MEAN, MEAN])
    for noise, near in ((0.0, 0.0), (0.01, 0.1)):
        y = observe(X, Frozen(), D, noise=noise)
        start = D + near * np.random.default_rng(1).standard_normal(D.shape)
        found = fit(y, TIMES, Frozen(), heads=start, x0=X, noise=0.01, starts=1, dt=0.1)
        (undecided,) = found.undecided
        assert undecided.name == "differences of heads 0 and 1" and undecided.count == 9
        assert np.isnan(found.parameters["heads"]).all()
        weights = np.zeros((2, 3, 3))
        weights[:, 0, 0] = 0.5
        value, low, high = found.combination({"heads": weights})
        assert low < value < high < low + 0.1 and value == pytest.approx(1.0, abs=0.05)


def test_a_rate_without_motion_is_undecided():
    law = OrnsteinUhlenbeck(MEAN, 1.5, 0.0)
    found = fit(
        observe(X, law, MEAN[None]), TIMES, law, heads=MEAN[None], estimate=["mean", "rate"], x0=X,
        noise=0.01, starts=1, dt=0.1,
    )  # fmt: skip
    assert [each.name for each in found.undecided] == ["rate"]
    assert np.isnan(found.parameters["rate"]) and deviation(found, "mean", MEAN) < 1e-6


def test_residuals_beyond_the_noise_are_warned_of():
    y = observe(X, Frozen(), HEADS, noise=0.01)
    with pytest.warns(wflow.AccuracyWarning, match="the model is another one"):
        fit(y, TIMES, Frozen(), heads=HEADS[:1], x0=X, noise=0.01, starts=1, dt=0.1)


def test_a_bootstrap_agrees_where_the_run_is_nearly_linear(cases):
    """Of symmetric heads with a given noise; --long: more, also with tokens estimated."""
    D = MEAN[None]
    some = cases([(12, True, 20)], [(12, True, 100), (12, False, 100), (5, True, 100)])
    for n, given, count in some:  # five tokens leave few degrees of freedom
        y = observe(X[:1, :n], Frozen(), D, noise=0.005, dt=0.2)
        call = {"heads": D, "symmetric": True, "x0": X[0, :n] if given else None}
        both = [
            fit(y, TIMES, Frozen(), resamples=b, level=0.8, starts=1, dt=0.2, **call)
            for b in (0, count)
        ]
        assert np.array_equal(both[0].heads, both[1].heads)
        first, second = (np.diff(one.intervals["heads"], axis=-1) for one in both)
        assert 0.5 < np.mean(second / first) < 1.5
        value, low, high = both[1].combination({"heads": np.eye(3)[None]})
        assert low < value < high


OFF, NAN = 1.1 * X[:, None], np.full((3, 1, 12, 3), np.nan)
OU = OrnsteinUhlenbeck(MEAN)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"observed": X[0]}, "expected one of|observed has shape"),
        ({"times": [0.5, 1.0]}, "one for each snapshot"),
        ({"times": [0.55]}, "whole number of steps"),
        ({"observed": np.stack([X, X], 1), "times": [0.25, 0.5]}, "not a time of a step"),
        ({"times": [-0.5]}, "increasing"),
        ({"observed": NAN}, "not finite"),
        ({"observed": OFF}, "divide each by its norm"),
        ({"x0": None}, "observations at time 0"),
        ({"x0": X[:, :5]}, "x0 has shape"),
        ({"law": Oscillating(3)}, "expected Frozen"),
        ({"law": OU}, "sigma2=0"),
        ({"heads": None}, "expected a number of heads"),
        ({"heads": QKV(HEADS, HEADS, HEADS)}, "tied heads"),
        ({"heads": np.ones((1, 2, 2))}, "heads"),
        ({"law": Schedule([0.0], TABLE[:1])}, "heads is None"),
        ({"estimate": ["rate"]}, "what Frozen has"),
        ({"estimate": []}, "empty"),
        ({"estimate": 1.5}, "what Frozen has"),
        ({"estimate": np.ones((1, 2))}, "what Frozen has"),
        ({"heads": HEADS, "symmetric": True}, "not symmetric"),
        ({"noise": 0.0}, "noise"),
        ({"level": 1.0}, "level"),
        ({"resamples": 39}, "resamples is 39"),
        ({"resamples": 10**12}, "memory"),
        ({"resamples": -1}, "resamples"),
        ({"scheme": "dopri5"}, "steps of equal length"),
        ({"heads": 100}, "do not decide"),
        ({"observed": X[:1, None, :3], "x0": X[:1, :3], "symmetric": True}, "and the noise"),
        ({"dt": 0.3}, "dt"),
    ],
)
def test_what_cannot_be_fitted_is_refused(given, message):
    call = {"observed": X[:, None], "times": [0.5], "law": Frozen(), "heads": 1, "x0": X, "dt": 0.1}
    with pytest.raises(InputError, match=message):
        fit(**(call | given))


def test_weights_of_a_combination_are_checked():
    found = fit(
        observe(X, Frozen(), HEADS[:1]), TIMES, Frozen(), heads=HEADS[:1], x0=X, starts=1, dt=0.1
    )
    for weights in ({"mean": MEAN}, {"heads": MEAN}, MEAN):
        with pytest.raises(InputError):
            found.combination(weights)


def test_intervals_cover_the_truth(cases):
    """Of 95 % intervals 90 to 98 of 100 hold the truth; a few fits show gross errors only."""
    held, law = [], OrnsteinUhlenbeck(MEAN, 1.5, 0.0)
    for seed in range(cases(2, 100)):
        x0 = wflow.tokens.uniform(36, 3, seed=seed).reshape(3, 12, 3)
        for model, truth in ((Frozen(), {}), (law, {"mean": MEAN, "rate": 1.5})):
            y = observe(x0, model, HEADS[:1], noise=0.02, seed=seed)
            found = fit(
                y, TIMES, model, heads=HEADS[:1], x0=None if seed % 2 else x0, starts=1, dt=0.1,
                noise=0.02 if seed % 3 else None,
            )  # fmt: skip
            for name, interval in found.intervals.items():
                value = {"heads": HEADS[:1], **truth}[name]
                low, high = interval[..., 0], interval[..., 1]
                known = ~np.isnan(low)
                held.extend(((low <= value) & (value <= high))[known])
    few = cases(True, False)
    assert (0.8 if few else 0.9) <= np.mean(held) <= (1.0 if few else 0.98)
