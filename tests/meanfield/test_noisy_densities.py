"""Densities under noisy heads on one Brownian path: strong order 1.5 of "sra1", the residual."""

import numpy as np
import pytest
from brownian import Brownian, on

import wflow
from wflow._core.errors import InputError
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck
from wflow.meanfield import Circle, Fourier, solve

PATHS, T, FINE = 24, 0.5, 512


def start(x):
    return 1 + 0.5 * x[:, 0]


def strong_order(mesh, scheme, coarse, exact):
    paths = PATHS // 2
    law = on(Brownian(FINE, paths, 2, 2, T), OrnsteinUhlenbeck)(np.eye(2), exact=exact)

    def density(steps):
        run = solve(
            start, law, mesh=mesh, heads=[np.eye(2) / 2] * 2, t_final=T, dt=T / steps, paths=paths,
            kappa=0.2, scheme=scheme if steps < FINE else "sra1",
            save=wflow.SaveAt(paths=range(paths), every=steps),
        )  # fmt: skip
        return run.density.values[:, -1]

    last = density(FINE)
    errors = [np.sqrt(((density(k) - last) ** 2).mean()) for k in coarse]
    return -np.polyfit(np.log(coarse), np.log(errors), 1)[0], errors


@pytest.mark.parametrize(
    ("mesh", "coarse", "exact"), [(Circle(24), (64, 128), False), (Fourier(12), (16, 32, 64), True)]
)
def test_densities_under_noisy_heads_have_strong_order_three_halves(mesh, coarse, exact):
    order, errors = strong_order(mesh, "sra1", coarse, exact)
    assert order > 1.3
    slow, larger = strong_order(mesh, "euler", coarse, exact)
    assert slow == pytest.approx(1.0, abs=0.2)
    assert errors[-1] < larger[-1] / 8


@pytest.mark.parametrize("scheme", ["euler", "sra1"])
def test_the_residual_of_the_balance_falls_like_the_step(scheme):
    """On a spectral mesh, whose own error is none here."""
    path, sizes, coarse = Brownian(FINE, PATHS, 2, 2, T), [], (64, 128, 256)
    law = on(path, OrnsteinUhlenbeck)(np.eye(2))
    for steps in coarse:
        run = solve(
            start, law, mesh=Fourier(12), heads=[np.eye(2) / 2] * 2, t_final=T, dt=T / steps,
            paths=PATHS, kappa=0.2, scheme=scheme, save=wflow.SaveAt(every=steps),
        )  # fmt: skip
        sizes.append(np.sqrt((run.edi_residual.values[:, -1] ** 2).mean()))
    assert -np.polyfit(np.log(coarse), np.log(sizes), 1)[0] == pytest.approx(1.0, abs=0.15)


def test_densities_stay_positive_and_a_size_that_depends_on_the_heads_is_refused():
    law = OrnsteinUhlenbeck(np.eye(2))
    options = {"mesh": Circle(64), "heads": 2, "t_final": 0.5, "dt": 1 / 256, "scheme": "sra1"}
    run = solve(lambda x: np.exp(4 * x[:, 0]), law, **options)
    assert float(run.density.min()) > 0
    with pytest.raises(InputError, match="depends on the heads"):
        solve(start, HeadLaw(None, lambda D, t: np.abs(D).sum((-1, -2))), **options)


def test_steps_may_be_two_thirds_of_those_of_euler():
    options = {"mesh": Circle(64), "heads": [np.eye(2)], "kappa": 0.5, "reconstruct": False}

    def longest(scheme):
        for dt in 0.2 * 0.9 ** np.arange(60):
            try:
                solve(start, Frozen(), t_final=dt, dt=dt, scheme=scheme, **options)
            except InputError:
                continue
            return dt
        raise AssertionError

    assert longest("sra1") / longest("euler") == pytest.approx(2 / 3, abs=0.08)
