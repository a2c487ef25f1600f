"""Arguments that wflow.sampling refuses, each with the words of its message that matter."""

import numpy as np
import pytest

from wflow import InputError, sampling
from wflow.sampling import comparison, evolve_density, forward, reference
from wflow.sampling.forward import Elliptic, ForwardModel, Impedance, Lorenz

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


def custom(**members):
    """Apply a layer whose prior has these methods."""
    prior = type("Custom", (sampling.L1,), members)(20.0)
    return sampling.layer(X, h=0.01, beta=1.0, prior=prior)


def brwp(**changes):
    given = {"x0": X, "grad": half, "prior": sampling.L1(0.5), "h": 0.05, "steps": 12}
    return sampling.brwp(**given | changes)


def density(start=np.ones(80), potential=np.abs, **changes):  # noqa: B008
    given = {"edges": np.linspace(-4, 4, 81), "times": [0.5], "dt": 0.1} | changes
    return evolve_density(start, potential, **given)


def pcn(log_likelihood, **options):
    return reference.pcn(log_likelihood, 2, **{"chains": 3, "draws": 8} | options)


def problem(model=Elliptic(4, 3), noise=1.0):  # noqa: B008
    return forward.InverseProblem(model, lam=1.0, noise=noise)


MODELS = [
    ({"outputs": 2}, "dim"),
    ({"dim": 2, "outputs": 0}, "outputs is 0"),
    ({"dim": 2, "outputs": 2, "evaluate": lambda self, x: (x, x)}, "expected a pair"),
    ({"dim": 2, "outputs": 2, "evaluate": lambda self, x: (x[:, :1], lambda w: w)}, "outputs"),
]


REFUSED = [
    # the operator
    (lambda: attention(h=1e-40), "floats"),
    (lambda: attention(kernel="printed"), "kernel is 'printed'"),
    (lambda: attention(context=np.ones((4, 3)), exclude_self=True), "query"),
    (lambda: attention(x=np.ones((2, 12, 3)), context=np.ones((3, 4, 3))), "chains"),
    (lambda: attention(x=X[:1], context=X[:1], exclude_self=True), "two or more"),
    (lambda: sampling.interaction(*[np.zeros((2_000_000, 1))] * 2, h=0.1, beta=1.0,
                                  prior=sampling.NoPrior()), "attention_mean"),
    (lambda: sampling.backward_inverse(X, X, h=0.1, beta=1.5, prior=sampling.L1(2.0),
                                       kernel="published", max_iterations=1), "solved"),
    # priors
    (lambda: sampling.separable(np.sum, np.sign).value(np.ones((3, 2))), "shape"),
    (lambda: sampling.separable(np.abs, lambda x: x / 0 * x).prox([[1.0]], 0.1), "derivative"),
    (lambda: attention(prior=sampling.separable(lambda z: -20 * z**2, lambda z: -40 * z)),
     "derivative"),
    (lambda: custom(prox=lambda self, x, h: x * NAN), "Custom.prox"),
    (lambda: custom(prox=lambda self, x, h: [[1.0], [1.0, 2.0]]), "Custom.prox"),
    (lambda: custom(prox_derivative=lambda self, x, h: 1.0),
     r"prox_derivative returned .*2, 3, 3\)"),
    # samplers
    (lambda: brwp(snapshots=[13]), "snapshots hold step 13"),
    (lambda: brwp(if_exists="resume"), "give out"),
    (lambda: brwp(grad=lambda x: x * NAN), "initial token"),
    (lambda: brwp(grad=lambda x: np.add(x, 1, out=x)), "read-only"),
    (lambda: sampling.myula(X, half, sampling.L1(1.0), h=0.1, steps=2, smoothing=0.01), "half"),
    (lambda: sampling.ula(START, lambda x: x[:1], h=0.1, steps=2), "returned"),
    # the Fokker-Planck equation
    (lambda: density(edges=[0.0, 2.0, 1.0]), "increasing"),
    (lambda: density(times=[1.0, 0.5]), "times .* increasing"),
    (lambda: density(dt=1e-9), "larger"),
    (lambda: density(np.zeros(80)), "the mass 0"),
    (lambda: density(potential=lambda x: np.where(x > 0, np.inf, x)), "finite numbers"),
    (lambda: density(potential=lambda x: 1.0), r"of shape \(80,\)"),
    # forward models
    (lambda: Elliptic(alpha=1e305), r"alpha is 1e\+305"),
    (lambda: problem().prior(2**40), "of memory"),
    (lambda: problem(noise=[0.1, 0.2]), "each of the 3"),
    (lambda: problem().log_likelihood(np.zeros((2, 4)), np.zeros(4)), r"\(3,\) or \(2, 3\)"),
    (lambda: Lorenz(window=0.015), "steps"),
    (lambda: Lorenz(centre=(10, -1, 2)), "numbers > 0"),
    (lambda: Impedance(electrodes=7), "divisor"),
    (lambda: Impedance(basis=lambda s: s[:3]), "basis returns"),
    *((lambda members=members, call=call: call(type("Custom", (ForwardModel,), members)()), words)
      for members, words in MODELS
      for call in (lambda m: m(np.zeros((3, 2))), lambda m: problem(m).simulate(3))),
    # reference samplers, whose functions return one number for each chain
    (lambda: reference.metropolis(lambda x: x[:, 0] * NAN, START), "NaN or"),
    (lambda: reference.metropolis(half, START), r"expected .*shape \(3,\)"),
    (lambda: reference.metropolis(flat, START), "0 at 3 of 3 starts"),
    (lambda: reference.metropolis(row, START, gradient=True), "no pair"),
    (lambda: pcn(flat), "100 draws"),
    (lambda: pcn(lambda x: row(x[:1])), "returned"),
    (lambda: reference.tempered(flat, row, np.zeros((8, 2))), "0 at all"),
    (lambda: reference.bayesian_lasso(np.eye(3), [1.0, 2.0], lam=1.0, noise=0.1), "row"),
    (lambda: reference.r_hat(np.ones((2, 3))), "four draws"),
    (lambda: reference.rank_test(START, START), r"expected \(n, k\)"),
    # distances
    *((lambda name=name, bad=bad: getattr(comparison, name)(X, bad), "one space|1e50|R")
      for name in comparison.__all__ for bad in (X[0], X[:, :2], 1e60 * X)),
    (lambda: comparison.sliced_w2(X, X, projections=10**12), "take fewer"),
    (lambda: comparison.mmd(X, np.ones((4, 3))), "equal: give bandwidths"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:h is .* absorbs")
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
