"""What head laws refuse, with the words of the message that matter."""

import numpy as np
import pytest

import wflow
from wflow import Dopri5, InputError
from wflow.heads import QKV, CompoundPoisson, Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating, laws
from wflow.heads.laws import Schedule, law_config, law_from_config, register
from wflow.heads.process import head_path

EYE, ONE = np.eye(3), np.zeros((1, 2, 2))
OU = law_config(OrnsteinUhlenbeck(np.eye(2)))
NOISY = CompoundPoisson(OrnsteinUhlenbeck(EYE), rate=4.0, size=0.5)


def run(law, **options):
    options = {"heads": np.stack([EYE, 2 * EYE]), "t_final": 0.5, "dt": 0.02, "seed": 5} | options
    return wflow.solve(EYE, law, **options)


def density(**options):
    mesh, law = wflow.meanfield.Circle(32), CompoundPoisson(OrnsteinUhlenbeck(np.eye(2)), 4.0, 0.5)
    return wflow.meanfield.solve(np.ones(32), law, mesh=mesh, heads=1, t_final=1.0, **options)


def of_all(*functions):
    """Run a law of functions with several paths and heads."""
    return run(HeadLaw(*functions, symmetric=False), paths=3, save=wflow.SaveAt(budget=False))


def in_advance(law, **options):
    return head_path(law, heads=EYE[None], d=3, t_final=1.0, dt=0.1, **options)


def jumps(size):
    return run(CompoundPoisson(Frozen(), 20.0, size))


REFUSED = [
    # parameters
    (lambda: OrnsteinUhlenbeck(EYE, sigma2=-1), "sigma2"),
    (lambda: OrnsteinUhlenbeck(EYE, rate=0), "rate"),
    (lambda: OrnsteinUhlenbeck(np.triu(np.ones((3, 3)))), "not symmetric"),
    (lambda: OrnsteinUhlenbeck(np.ones((2, 3))), "square"),
    (lambda: Oscillating(1), "d is 1"), (lambda: Oscillating(3, "wild"), "spread"),
    (lambda: Oscillating(3, sigma2=-1.0), "sigma2"),
    (lambda: Schedule([1.0, 0.0], [ONE, ONE]), "increasing"),
    (lambda: Schedule([0.0, 1.0], [ONE, ONE, ONE]), "2 times"),
    (lambda: Schedule([0.0], [ONE], "cubic"), "linear"),
    (lambda: HeadLaw(None, -1.0), "diffusion"),
    (lambda: HeadLaw(None, np.ones(2)), "expected a number"),
    (lambda: HeadLaw(EYE), "expected a function"),
    (lambda: CompoundPoisson(Frozen, 1.0), "law is"),
    (lambda: CompoundPoisson(Frozen(), -1.0), "rate"),
    (lambda: CompoundPoisson(Frozen(), 1e9), "rate"),
    (lambda: CompoundPoisson(Frozen(), 1.0, -1.0), "size"),
    (lambda: CompoundPoisson(Frozen(), 1.0, EYE), "size"),
    (lambda: QKV(np.ones((1, 2, 3)), *np.ones((2, 1, 3, 3))).matrices(), "quer"),
    (lambda: wflow.heads.isotropic(EYE, 3), "one for each head"),
    (lambda: wflow.heads.isotropic(np.inf, 3), "finite"),
    (lambda: wflow.heads.isotropic(1.0, 1), "d is 1"),
    # classes and configurations
    *((lambda wrong=wrong: register(wrong), "HeadLaw") for wrong in (Frozen(), dict, "Frozen")),
    (lambda: register(type("Frozen", (Frozen,), {})), "'Frozen'"),
    (lambda: law_from_config(law_config(HeadLaw(lambda D, t: D))), "Python functions"),
    *((lambda bad=bad: law_from_config(bad), "")
      for bad in (OU | {"speed": 1}, {"name": "OrnsteinUhlenbeck"}, OU | {"rate": "a"},
                  {"name": "Schedule", "times": [0.0]}, {}, {"name": ["Frozen"]})),
    # what is returned for one path or head, and is not taken for all
    (lambda: of_all(lambda D, t: -D[0]), "real numbers"),
    (lambda: of_all(lambda D, t: -D[:, :1]), "real numbers"),
    (lambda: of_all(None, lambda D, t: np.ones(D.shape[1])), "real numbers"),
    (lambda: of_all(None, lambda D, t: abs(D[:1, :, 0, 0])), "real numbers"),
    # heads in advance, as wflow.solve refuses them
    (lambda: in_advance(Frozen(), scheme=Dopri5(1e-16)), "float64"),
    (lambda: in_advance(OrnsteinUhlenbeck(EYE), scheme="dopri5"), "'dopri5'"),
    (lambda: in_advance(Frozen), "Frozen"),
    # jumps
    *((lambda scheme=scheme: run(NOISY, scheme=scheme), "random jumps")
      for scheme in ("sra1", "heun", "rk4", "dopri5")),
    (lambda: density(dt=0.1, scheme="sra1"), "random jumps"),
    (density, "dt is missing"),
    (lambda: jumps(lambda Z: Z[0]), "real numbers"),
    (lambda: jumps(lambda Z: np.nan * Z), "not finite"),
    (lambda: jumps(lambda Z: Z), "asymmetric"),
    (lambda: run(CompoundPoisson(OrnsteinUhlenbeck(np.eye(2)), 1.0)), "mean of OrnsteinUhlenbeck"),
    (lambda: run(CompoundPoisson(Schedule([0.0, 1.0], [[EYE] * 2] * 2), 1.0)),
     "prescribes its 2 heads"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
    assert laws.LAWS.classes["Frozen"] is Frozen


def test_frozen_heads_take_no_drift_that_their_configuration_would_not_show():
    with pytest.raises(TypeError):
        Frozen(lambda D, t: -D)
