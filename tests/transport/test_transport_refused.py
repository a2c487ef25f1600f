"""What distances and minimizing movements refuse, with the words of the message that matter."""

import functools

import numpy as np
import pytest
import xarray

import wflow
from wflow import InputError, heads, jko, metric, tokens, transport
from wflow.heads.process import head_path
from wflow.meanfield import Circle
from wflow.transport import W2, Metric, Weighted
from wflow.transport.linear_assignment import assign

X, Y = (tokens.uniform(4, 3, seed=seed) for seed in (0, 1))
EYE, TWO = np.eye(3)[None], np.stack([0.3 * np.eye(3), np.diag([0.5, 0.1, -0.2])])
LOPSIDED = np.triu(np.ones((2, 3, 3)))
QKV, FROZEN = heads.QKV(EYE, EYE, EYE), heads.Frozen()
NOISY = heads.OrnsteinUhlenbeck(np.eye(3))
LIE = heads.HeadLaw(lambda D, t: LOPSIDED[0])
CLOSE = np.full(4, 0.25 * (1 + 3e-8))  # weights that no rounding of doubles explains


class Wrong(Metric):
    """A metric that returns what it is given."""

    def __init__(self, b, gradient, segments=1) -> None:
        self.found, self.segments = (b, gradient), segments

    def mobility_and_gradient(self, clouds, D, weights):
        return self.found


def movements(x0=X, law=FROZEN, **change):
    return jko.minimizing_movements(x0, law, **{"heads": TWO, "t_final": 0.2, "tau": 0.1} | change)


def step(x=X, D=TWO, tau=0.1, **options):
    return jko.step(x, D, tau, **options)


def distance(*clouds, **options):
    return metric.weighted_distance(*clouds, **options)


@functools.cache
def run(**options) -> xarray.Dataset:
    return wflow.solve(X, FROZEN, heads=1, t_final=0.2, dt=0.1, **options)


def weighted(*weights):
    return transport.w2(Y, X[:3], weights_y=list(weights))


REFUSED = [
    (lambda: transport.transport_map([[1.0, 0.0]], Y), "x has d = 2 and y has d = 3"),
    (lambda: transport.transport_map([[1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]), "token 0 of x"),
    (lambda: weighted(0.5, 0.6, 0.5), "sum to 1.6"),
    (lambda: weighted(1.5, -0.5, 0.0), r"weights_y\[1\] is -0.5"),
    (lambda: transport.wasserstein(X, Y, method="circle"), "d = 3"),
    (lambda: transport.wasserstein(X, Y, method="sliced", cost="chordal"), "'exact'"),
    (lambda: transport.wasserstein(X, Y, method="exact", reg=0.1), "reg belongs"),
    (lambda: assign(np.array([[1.0, np.nan], [0.0, 1.0]])), "largest cost"),
    (lambda: transport.over_time(run(save=wflow.SaveAt(paths=()))), "holds no tokens.*SaveAt"),
    (lambda: transport.over_time(run(), paths=[[0], [2]]), r"paths are \[\[0\], \[2\]\]"),
    (lambda: transport.over_time(run(), to=run(save=wflow.SaveAt(snapshots=(0,)))), "snapshots"),
    (lambda: transport.density_distance(np.ones(8), np.zeros(8), Circle(8)), "the mass 0"),
    (lambda: distance(X, Y[:3], TWO), "4 tokens and y 3"),
    (lambda: distance(2 * X, Y, TWO), "token . of x"),
    (lambda: distance(X, Y, LOPSIDED), "not symmetric"),
    (lambda: distance(X, Y, 65 * EYE), "norm 65"),
    (lambda: metric.metric_derivative(X, Y, QKV), "no gradient"),
    (lambda: metric.action([X, Y], [1.0, 0.0]), "2 increasing numbers"),
    (lambda: metric.action([X, Y], [0.0, 1.0], np.zeros((3, 2, 3, 3))), r"\(2, heads, d, d\)"),
    (lambda: step(D=QKV), "no gradient"),
    (lambda: step(metric=W2), "metric is .* or an object"),
    (lambda: step(metric=Metric()), "define it"),
    (lambda: step(metric=Wrong(np.zeros((1, 4)), X[None])), "of 0: expected"),
    (lambda: step(metric=Weighted(), segments=2), "segments is 2, beside"),
    (lambda: step(D=100 * EYE, metric="weighted"), "norm 100"),
    (lambda: step(D=800 * EYE), "energy leaves the range"),
    (lambda: jko.variational_interpolation(X, TWO, 0.1, 0.2), "expected 0 < r <= tau"),
    (lambda: movements(tau=0.07), "tau = 0.07"),
    (lambda: movements(heads=QKV), "general"),
    (lambda: movements(law=heads.HeadLaw(symmetric=False)), "symmetric"),
    (lambda: movements(x0=np.stack([X, X])), "of one path"),
    (lambda: movements(scheme="rk4", law=NOISY), "deterministic"),
    (lambda: list(head_path(FROZEN, heads=2, d=3, t_final=1, dt=0.1, every=3)), "divisor"),
    (lambda: list(head_path(LIE, heads=EYE, d=3, t_final=1.0, dt=0.1)), "asymmetric"),
    (lambda: transport.w2(X, Y, weights_x=CLOSE), "in double precision"),
    (lambda: transport.w2(X, Y, weights_x=CLOSE.tolist()), "in double precision"),
    (lambda: transport.w2(X, Y, weights_x=np.longdouble(CLOSE) + 0.1), "in double precision"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_used_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
