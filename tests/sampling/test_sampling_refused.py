"""Arguments that wflow.sampling refuses, each with the words of its message that matter."""

import numpy as np
import pytest

from wflow import InputError, sampling
from wflow.sampling import comparison, evolve_density, forward, reference
from wflow.sampling.forward import Elliptic, Impedance, Lorenz

X = np.random.default_rng(0).standard_normal((12, 3))
START = np.zeros((3, 2))
NAN = np.nan


def half(x):
    return 0.5 * x


def flat(x):
    return np.full(len(x), -np.inf)


def row(x):
    return -x.sum(1)


def attention(**changes):
    given = {"x": X, "context": X, "h": 0.1, "beta": 1.5, "prior": sampling.L1(2.0)}
    return sampling.attention_mean(**given | changes)


def brwp(**changes):
    given = {"x0": X, "grad": half, "prior": sampling.L1(0.5), "h": 0.05, "steps": 12}
    return sampling.brwp(**given | changes)


def density(start=np.ones(80), potential=np.abs, **changes):  # noqa: B008
    given = {"edges": np.linspace(-4, 4, 81), "times": [0.5], "dt": 0.1} | changes
    return evolve_density(start, potential, **given)


def pcn(log_likelihood, **options):
    return reference.pcn(log_likelihood, 2, **{"chains": 3, "draws": 8} | options)


def problem(noise=1.0):
    return forward.InverseProblem(Elliptic(4, 3), lam=1.0, noise=noise)


REFUSED = [
    # the operator
    (lambda: attention(h=0.0), "h is 0"),
    (lambda: attention(h=np.inf), "h is inf"),
    (lambda: attention(h=1e-40), "floats"),
    (lambda: attention(beta=-1.0), "beta is -1"),
    (lambda: attention(prior=2.0), "expected a prior"),
    (lambda: attention(kernel="printed"), "kernel is 'printed'"),
    (lambda: attention(context=np.ones((4, 2))), "coordinates"),
    (lambda: attention(context=np.ones((0, 3))), "context has shape"),
    (lambda: attention(context=np.full((4, 3), NAN)), "not finite"),
    (lambda: attention(context=np.ones((4, 3)), exclude_self=True), "query"),
    (lambda: attention(x=np.ones((2, 12, 3)), context=np.ones((3, 4, 3))), "chains"),
    (lambda: attention(x=X[:1], context=X[:1], exclude_self=True), "two or more"),
    (lambda: attention(x=np.ones(3)), "expected a cloud"),
    (lambda: sampling.interaction(*[np.zeros((2_000_000, 1))] * 2, h=0.1, beta=1.0,
                                  prior=sampling.NoPrior()), "attention_mean"),
    # priors
    *((lambda prior=prior, lam=lam: prior(lam), "lam is")
      for prior in (sampling.L1, sampling.SmoothL1) for lam in (-1.0, NAN, "two", None)),
    (lambda: sampling.separable(np.sum, np.sign).value(np.ones((3, 2))), "shape"),
    (lambda: sampling.separable(np.abs, lambda x: x / 0 * x).prox([[1.0]], 0.1), "derivative"),
    (lambda: sampling.separable(np.abs, np.sign, normaliser="gauss"), "normaliser is 'gauss'"),
    (lambda: attention(prior=sampling.separable(lambda z: -20 * z**2, lambda z: -40 * z)),
     "derivative"),
    # samplers
    (lambda: brwp(h=0.0), "h is 0.0"),
    (lambda: brwp(h=NAN), "h is nan"),
    (lambda: brwp(beta=-1.0), "beta is -1.0"),
    (lambda: brwp(steps=0), "steps is 0"),
    (lambda: brwp(save_every=0), "save_every is 0"),
    (lambda: brwp(snapshots=[13]), "snapshots hold step 13"),
    (lambda: brwp(x0=np.zeros(3)), "x0 has shape"),
    (lambda: brwp(x0=np.full((3, 2), NAN)), "x0"),
    (lambda: brwp(kernel="gauss"), "kernel is 'gauss'"),
    (lambda: brwp(if_exists="resume"), "give out"),
    (lambda: brwp(prior=2.0), "prior is 2.0"),
    (lambda: brwp(grad=3.0), "grad is 3.0"),
    (lambda: brwp(grad=lambda x: x[:, :1]), "of shape"),
    (lambda: brwp(grad=lambda x: x * NAN), "initial token"),
    (lambda: brwp(grad=lambda x: np.add(x, 1, out=x)), "read-only"),
    (lambda: sampling.myula(X, half, sampling.L1(1.0), h=0.1, steps=2, smoothing=0.01), "half"),
    (lambda: sampling.ula(START, lambda x: x[:1], h=0.1, steps=2), "returned"),
    (lambda: sampling.ula(START, lambda x: x[0], h=0.1, steps=2), "returned"),
    # the Fokker-Planck equation
    (lambda: density(edges=[0.0, 1.0]), "increasing"),
    (lambda: density(edges=[0.0, 2.0, 1.0]), "increasing"),
    (lambda: density(times=[-1.0, 1.0]), "times begin with -1"),
    (lambda: density(times=[1.0, 0.5]), "times .* increasing"),
    (lambda: density(dt=0.0), "dt is 0"),
    (lambda: density(dt=1e-9), "larger"),
    (lambda: density(beta=-1.0), "beta is -1"),
    (lambda: density(np.ones(7)), r"shape \(7,\): expected \(80,\)"),
    (lambda: density(lambda x: x), "smallest value -3.95"),
    (lambda: density(np.zeros(80)), "the mass 0"),
    (lambda: density(potential=lambda x: np.where(x > 0, np.inf, x)), "finite numbers"),
    (lambda: density(potential=lambda x: 1.0), r"of shape \(80,\)"),
    (lambda: density(time_dependent="yes"), "True or False"),
    # forward models
    (lambda: Elliptic(alpha=0), "alpha is 0"),
    (lambda: Elliptic(alpha=1e305), r"alpha is 1e\+305"),
    (lambda: Elliptic(width=1e-200), "width is 1e-200"),
    (lambda: Elliptic(cells=1), "cells is 1"),
    (lambda: problem().prior(2**40), "of memory"),
    (lambda: problem(noise=[0.1, 0.2]), "each of the 3"),
    (lambda: problem().log_likelihood(np.zeros((2, 4)), np.zeros(4)), r"\(3,\) or \(2, 3\)"),
    (lambda: Lorenz(window=0.015), "steps"),
    (lambda: Lorenz(window=0.0), "window is 0"),
    (lambda: Lorenz(centre=(10, -1, 2)), "numbers > 0"),
    (lambda: Lorenz(start=(1, 2)), "three numbers"),
    (lambda: Impedance(electrodes=7), "divisor"),
    (lambda: Impedance(bumps=4), "two whole numbers"),
    (lambda: Impedance(basis=lambda s: s[:3]), "basis returns"),
    (lambda: Impedance(voltages=lambda s: s), "number of patterns"),
    # reference samplers, whose functions return one number for each chain
    (lambda: reference.metropolis(lambda x: x[:, 0] * NAN, START), "NaN or"),
    (lambda: reference.metropolis(half, START), r"expected .*shape \(3,\)"),
    (lambda: reference.metropolis(flat, START), "0 at 3 of 3 starts"),
    (lambda: reference.metropolis(row, START, gradient=True), "no pair"),
    (lambda: reference.metropolis(lambda x: -x[0].sum(), START, draws=8), "returned"),
    (lambda: reference.metropolis(lambda x: (row(x), -x[0]), START, gradient=True), "returned"),
    (lambda: pcn(flat), "100 draws"),
    (lambda: pcn(lambda x: row(x[:1])), "returned"),
    (lambda: pcn(row, transform=lambda x: x[:1]), "returned"),
    (lambda: pcn(row, transform=lambda x: x[0]), "returned"),
    (lambda: pcn(row, transform=lambda x: [[1], [1, 2]]), "returned"),
    (lambda: reference.tempered(flat, row, np.zeros((8, 2))), "0 at all"),
    (lambda: reference.bayesian_lasso(np.eye(3), [1.0, 2.0], lam=1.0, noise=0.1), "row"),
    (lambda: reference.r_hat(np.ones((2, 3))), "four draws"),
    (lambda: reference.rank_test(START, START), r"expected \(n, k\)"),
    # distances
    *((lambda name=name, bad=bad, turn=turn: getattr(comparison, name)(*[X, bad][::turn]),
       "R|finite|real numbers|one space|1e50")
      for name in comparison.__all__ for turn in (1, -1)
      for bad in (X[0], X[:, :0], X[:0], [[NAN, 1.0, 0.0]] * 5, "points", X[:, :2], 1e60 * X)),
    (lambda: comparison.sliced_w2(X, X, projections=0), "projections is 0"),
    (lambda: comparison.sliced_w2(X, X, projections=10**12), "take fewer"),
    *((lambda bad=bad: comparison.mmd(X, X, bad), "bandwidths")
      for bad in ([], [0.0], [1.0, -1.0], [[1.0]], "wide")),
    (lambda: comparison.mmd(X, np.ones((4, 3))), "equal: give bandwidths"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
