"""The energy budget under noisy heads: order of its residual, mean of its martingale, weak errors.

Steps of different lengths are compared on one Brownian path of the heads.
"""

import numpy as np
import pytest
from brownian import Brownian, on

import wflow
from wflow.heads import HeadLaw, OrnsteinUhlenbeck

D, HEADS, TOKENS, PATHS, T, FINE = 3, 2, 12, 100, 1.0, 256
COARSE = (32, 64, 128)

PATH = Brownian(FINE, PATHS, HEADS, D, T)
OU = on(PATH, OrnsteinUhlenbeck)
PLAIN = on(PATH, HeadLaw)


def run(law, steps, scheme, **options):
    return wflow.solve(
        wflow.tokens.uniform(TOKENS, D, seed=1), law, heads=HEADS * [np.eye(D) / 2], t_final=T,
        dt=T / steps, paths=PATHS, seed=2, scheme=scheme, save=wflow.SaveAt(every=steps),
        compute=wflow.Compute(batch=PATHS), **options,
    )  # fmt: skip


def tamed(D, t):
    """A size of the noise between 1 and 2 that depends on the heads."""
    return 1.5 + 0.5 * np.tanh(2 * np.trace(D, axis1=-2, axis2=-1) - 2)


def order(errors, steps=COARSE):
    return -np.polyfit(np.log(steps), np.log(np.abs(errors)), 1)[0]


@pytest.mark.parametrize("flow", ["softmax", "effective"])
@pytest.mark.parametrize(
    ("law", "schemes"),
    [
        (OU(np.eye(D), rate=1.0, sigma2=2.0), ("euler", "sra1")),
        (OU(np.eye(D), rate=1.0, sigma2=2.0, exact=True), ("euler", "sra1")),
        (PLAIN(lambda D, t: np.sin(t) - D, lambda D, t: 1 + np.sin(t)), ("euler", "sra1")),
        (PLAIN(lambda D, t: -D, tamed), ("euler",)),
    ],
    ids=["ou", "exact", "time", "multiplicative"],
)
def test_the_residual_falls_like_the_step_under_noise(law, schemes, flow):
    last = []
    for scheme in schemes:
        residuals = [run(law, k, scheme, flow=flow).edi_residual.values[:, -1] for k in COARSE]
        sizes = [np.sqrt((values**2).mean()) for values in residuals]
        assert order(sizes) == pytest.approx(1.0, abs=0.15), scheme
        last.append(sizes[-1])
    assert last[-1] <= last[0]


@pytest.mark.parametrize(("scheme", "expected"), [("euler", 1.0), ("sra1", 2.0)])
def test_weak_errors_of_energy_and_squared_upper_gradient(scheme, expected):
    law = OU(np.eye(D))
    fine = run(law, FINE, "sra1")
    coarse = [run(law, k, scheme) for k in (16, 32, 64)]
    for name in ("energy", "upper_gradient_sq"):
        errors = [(ds[name] - fine[name]).values[:, -1].mean() for ds in coarse]
        assert order(errors, (16, 32, 64)) == pytest.approx(expected, abs=0.3), name


@pytest.mark.parametrize(
    ("law", "scheme"),
    [
        (OrnsteinUhlenbeck(np.eye(D)), "sra1"),
        (HeadLaw(lambda D, t: -D, tamed), "euler"),
    ],
)
def test_the_martingale_has_mean_zero(law, scheme, cases):
    paths = cases(20_000, 100_000)
    ds = wflow.solve(
        wflow.tokens.uniform(3, D, seed=1), law, heads=[np.eye(D) / 2], t_final=1.0, dt=0.25,
        paths=paths, seed=2, scheme=scheme, save=wflow.SaveAt(every=4, paths=[0]),
    )  # fmt: skip
    values = ds.martingale.values[:, -1]
    assert abs(values.mean()) < 4 * values.std() / np.sqrt(paths)
    assert values.std() > 0.1
