"""The energy budget under noisy heads: order of its residuals, mean of its martingale, weak errors.

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
    """Return a size of the noise between 1 and 2 that depends on the heads."""
    return 1.5 + 0.5 * np.tanh(2 * np.trace(D, axis1=-2, axis2=-1) - 2)


def order(errors, steps=COARSE):
    return -np.polyfit(np.log(steps), np.log(np.abs(errors)), 1)[0]


def check_order_one(law, scheme, *names, **options):
    runs = [run(law, k, scheme, **options) for k in COARSE]
    for name in names:
        sizes = [np.sqrt((ds[name].values[:, -1] ** 2).mean()) for ds in runs]
        assert order(sizes) == pytest.approx(1.0, abs=0.15), (name, scheme)


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
    for scheme in schemes:
        check_order_one(law, scheme, "edi_residual", "edi_residual_stratonovich", flow=flow)


@pytest.mark.parametrize("law", [OU(np.eye(D)), wflow.heads.Frozen()])
def test_the_residual_falls_like_the_step_where_tokens_have_noise(law):
    check_order_one(law, "euler", "edi_residual", kappa=0.3)


def test_the_stratonovich_work_of_euler_is_the_trapezoidal_sum():
    x0 = wflow.tokens.uniform(7, D, seed=0)
    steps, dt, law = 10, 0.05, OrnsteinUhlenbeck(np.eye(D))
    ds = wflow.solve(
        x0, law, heads=2, t_final=steps * dt, dt=dt,
        save=wflow.SaveAt(heads=True, snapshots=np.arange(steps + 1) * dt),
    )  # fmt: skip
    x, heads = ds.tokens.values[0], ds.heads.values[0]

    def slope(k):
        U = np.exp(np.einsum("ia,hab,jb->hij", x[k], heads[k], x[k]))
        return np.einsum("hij,ia,jb->hab", U, x[k], x[k]) / (2 * 2 * 7**2)

    work = [((slope(k) + slope(k + 1)) / 2 * (heads[k + 1] - heads[k])).sum() for k in range(steps)]
    found = ds.work_stratonovich.values[0]
    np.testing.assert_allclose(found, np.cumsum([0.0, *work]), rtol=0, atol=1e-12)
    left = ds.energy.values[0] - ds.energy.values[0, 0] - found + ds.dissipated.values[0]
    np.testing.assert_allclose(ds.edi_residual_stratonovich.values[0], left, rtol=0, atol=1e-12)


def test_jumps_of_the_heads_leave_the_stratonovich_residual_small():
    law = wflow.heads.CompoundPoisson(OrnsteinUhlenbeck(np.eye(D), sigma2=0.5), rate=3.0, size=0.5)
    sizes = []
    for dt in (0.02, 0.005):
        ds = wflow.solve(
            wflow.tokens.uniform(TOKENS, D, seed=1), law, heads=2, t_final=1.0, dt=dt, paths=50
        )
        sizes.append(np.sqrt((ds.edi_residual_stratonovich.values[:, -1] ** 2).mean()))
    assert sizes[1] < sizes[0] / 2.5


def test_verify_tells_a_residual_of_order_dt_from_one_of_its_root():
    x0, law = wflow.tokens.uniform(TOKENS, D, seed=1), OrnsteinUhlenbeck(np.eye(D))
    ds = wflow.solve(x0, law, heads=2, t_final=1.0, dt=1 / 256)
    assert wflow.verify(ds).passed
    first_order = ds.assign(edi_residual=ds.edi_residual + np.sqrt(1 / 256))  # what it was
    first_order["martingale"] = ds.martingale - np.sqrt(1 / 256)
    failed = [check.name for check in wflow.verify(first_order).checks if check.passed is False]
    assert "the energy balance closes" in failed


def test_weak_errors_of_energy_and_squared_upper_gradient():
    law = OU(np.eye(D))
    fine = run(law, FINE, "sra1")
    for scheme, expected in (("euler", 1.0), ("sra1", 2.0)):
        coarse = [run(law, k, scheme) for k in (16, 32, 64)]
        for name in ("energy", "upper_gradient_sq"):
            errors = [(ds[name] - fine[name]).values[:, -1].mean() for ds in coarse]
            assert order(errors, (16, 32, 64)) == pytest.approx(expected, abs=0.3), (scheme, name)


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
