"""What `wflow.solve` refuses, with the words of the message that matter."""

import numpy as np
import pytest

import wflow
from wflow import Compute, Dopri5, InputError, SaveAt
from wflow._core.tableaux import TABLEAUX
from wflow.heads import QKV, Frozen, HeadLaw, OrnsteinUhlenbeck

OU = OrnsteinUhlenbeck(np.eye(3))
GENERAL = QKV(*np.random.default_rng(0).normal(size=(3, 1, 3, 3)))
SIZED = HeadLaw(None, lambda D, t: np.abs(D).sum((-1, -2)))  # noise that depends on the heads


class Turning(HeadLaw):
    """Says that it is symmetric, and is not."""

    def drift(self, D, t):
        return np.broadcast_to([[0, 2.0, 0], [-2.0, 0, 0], [0, 0, 0]], D.shape)


REFUSED = [
    ({"x0": np.zeros((2, 3))}, "norm zero"),
    ({"x0": np.full((2, 3), np.inf)}, "not finite"),
    ({"x0": np.ones((4, 1))}, "d >= 2"),
    ({"x0": np.ones((0, 3))}, "one token"),
    ({"x0": np.ones((2, 4, 3))}, "paths"),
    ({"x0": Frozen(), "law": np.eye(3)}, "swapped: give"),
    ({"law": Frozen}, "make a law of it"),
    ({"law": HeadLaw(lambda D, t: 0 * D, symmetric=False)}, "symmetric"),
    ({"law": Turning()}, "asymmetric"),
    ({"heads": 0}, "heads is 0"),
    ({"heads": None}, "heads is missing"),
    ({"heads": np.eye(4)[None]}, "dimension 3"),
    ({"heads": np.triu(np.ones((1, 3, 3)))}, "not symmetric"),
    ({"heads": GENERAL, "save": SaveAt(budget=True)}, "energy"),
    ({"causal": True, "save": SaveAt(budget=True)}, "energy"),
    ({"causal": True, "flow": "effective"}, "causal"),
    ({"dt": -0.1}, "dt is -0.1"),
    ({"dt": 0.3}, "steps"),
    ({"t_final": 0.0}, "t_final"),
    ({"t_final": 1e300, "dt": 1e-300}, "too many"),
    ({"t_final": 1e9, "dt": 1e-3, "paths": 1000}, "memory"),
    ({"paths": 0}, "paths"),
    ({"seed": -1}, "seed"),
    ({"flow": "soft"}, "flow"),
    ({"direction": "up"}, "direction"),
    ({"out": 3}, "out is 3"),
    ({"save": {"every": 5}}, "wflow.SaveAt"),
    ({"save": SaveAt}, "expected a wflow.SaveAt"),
    ({"save": SaveAt(every=0)}, "save.every"),
    ({"save": SaveAt(snapshots=[3.0])}, "save.snapshots"),
    ({"save": SaveAt(paths=[2])}, "save.paths"),
    ({"compute": SaveAt()}, "wflow.Compute"),
    ({"compute": Compute(dtype="float16")}, "compute.dtype"),
    ({"compute": Compute(method="best")}, "compute.method"),
    ({"compute": Compute(backend="cupy")}, "compute.backend is 'cupy'"),
    ({"compute": Compute(device="cuda")}, "backend='torch'"),
    ({"compute": Compute(method="fast", tolerance=1e-17)}, "1e-13 <= tolerance"),
    ({"compute": Compute(method="fast", tolerance=0.5)}, "tolerance is 0.5"),
    ({"compute": Compute(method="fast"), "causal": True}, "no causal"),
    ({"compute": Compute(method="fast"), "x0": np.eye(5)}, "d = 2 and 3"),
    ({"compute": Compute(threads=10**6)}, "compute.threads"),
    ({"compute": Compute(batch=0)}, "compute.batch is 0"),
    ({"compute": Compute(checkpoint_every=-1)}, "compute.checkpoint_every"),
    ({"if_exists": "replace"}, "if_exists"),
    ({"if_exists": "resume"}, "if_exists"),
    ({"kappa": -0.1}, "kappa"),
    ({"kappa": 0.1, "scheme": "rk4"}, "use scheme='euler'"),
    ({"kappa": 100.0}, "dt <= 0.0"),
    ({"scheme": "rk5"}, "scheme"),
    ({"scheme": TABLEAUX["dopri5"]}, "leave out embedded for steps of dt"),
    ({"law": OU, "scheme": "rk4"}, "deterministic"),
    ({"law": OU, "scheme": "dopri5"}, "deterministic"),
    ({"law": OrnsteinUhlenbeck(np.eye(3), sigma2=0.0, exact=True), "scheme": "dopri5"}, "'euler'"),
    ({"law": OrnsteinUhlenbeck(np.eye(3), sigma2=0, exact=True), "scheme": "heun"}, "exact=True"),
    ({"scheme": "dopri5", "kappa": 0.1}, "noise"),
    ({"scheme": "dopri5", "compute": Compute(dtype="float32")}, "float32"),
    ({"scheme": "dopri5", "compute": Compute(method="fast", tolerance=1e-8)}, "series"),
    ({"scheme": Dopri5}, "expected one of"),
    ({"scheme": "sra1", "law": SIZED}, "depends on the heads"),
    ({"scheme": "sra1", "kappa": 0.1}, "kappa"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_used_is_refused(changes, words):
    options = {"x0": np.eye(3), "law": Frozen(), "heads": 2, "t_final": 1.0, "dt": 0.1}
    with pytest.raises(InputError, match=words):
        wflow.solve(**(options | changes))


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [0.0, -1e-3])
def test_tolerances_are_positive(name, value):
    with pytest.raises(InputError, match=f"{name} of Dopri5"):
        Dopri5(**{name: value})
