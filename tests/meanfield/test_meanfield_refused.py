"""What meshes and the mean-field equation refuse, with the words of the message that matter."""

import mean_field_references as reference
import numpy as np
import pytest
from mean_field_references import CIRCLE_HEADS

import wflow
from wflow import meanfield
from wflow.heads import OrnsteinUhlenbeck
from wflow.meanfield import Circle, Fourier, Harmonics, Sphere

NOISY, MODES = OrnsteinUhlenbeck(np.eye(2)), {"mesh": Fourier(16), "kappa": 0.1}


def solve(**changes):
    return reference.solve(**({"mesh": Circle(16), "t_final": 0.1} | changes))


REFUSED = [
    (lambda: Sphere(13), "such as 12 and 42"),
    (lambda: Sphere(3), "whole number >= 12"),
    (lambda: Sphere(np.eye(4)), "sphere"),
    (lambda: Sphere(np.eye(3)), "hemisphere"),
    (lambda: Sphere(np.abs(Sphere(42).centres)), "apart"),
    (lambda: Sphere([[0.0, 0.0, 0.0]] * 5), "norm zero"),
    (lambda: Circle(3), "whole number >= 4"),
    (lambda: Circle(8).integrate(np.ones(7)), "8 cells"),
    (lambda: Circle(8).nearest(np.eye(3)), "points"),
    (lambda: Fourier(3), "whole number >= 4"),
    (lambda: Fourier(4).at(np.ones(13), np.eye(3)), "points"),
    (lambda: Harmonics(10**6), "take fewer"),
    (lambda: meanfield.density_of(wflow.tokens.uniform(9, 2), Fourier(8)), "has no cells"),
    (lambda: solve(density=-np.ones(16)), "negative"),
    (lambda: solve(density=np.zeros(16)), "mass"),
    (lambda: solve(density=np.full(16, 1e308)), "mass"),
    (lambda: solve(density=lambda x: x[:, 0] / 0), "expected finite numbers"),
    (lambda: solve(density=lambda x: x), "expected .*of shape"),
    (lambda: solve(density=np.ones(15)), "function"),
    (lambda: solve(density=wflow.tokens.uniform(9, 5)), "meshes"),
    (lambda: solve(mesh=16), "d > 3"),
    (lambda: solve(kappa=-0.1), "kappa"),
    (lambda: solve(dt=0.1, kappa=10.0), "bound"),
    (lambda: solve(dt=0.1, heads=20 * CIRCLE_HEADS), "dt=None"),
    (lambda: solve(t_final=1e6, heads=40 * CIRCLE_HEADS, flow="unnormalised"), "bound on steps"),
    (lambda: solve(t_final=0.0), "t_final is 0.0: expected"),
    (lambda: solve(reconstruct=True, scheme="imex", dt=0.1), "with explicit schemes"),
    (lambda: solve(scheme="rk4"), "'rk4'"),
    (lambda: solve(scheme="imex"), "dt is missing"),
    (lambda: solve(law=NOISY), "dt is missing"),
    (lambda: solve(law=NOISY, dt=0.01, scheme="ssp2"), "'ssp2'"),
    (lambda: solve(heads=np.eye(3)[None]), r"expected \(heads, 2, 2\)"),
    (lambda: solve(compute=wflow.Compute(backend="torch", device="cuda:99")), "is absent"),
    (lambda: solve(compute=wflow.Compute(dtype="float32")), "compute.dtype"),
    (lambda: solve(if_exists="resume"), "give out"),
    (lambda: solve(**MODES, density=lambda x: (x[:, 0] > 0) * 1.0), "resolved"),
    (lambda: solve(**MODES, density=lambda x: np.exp(30 * x[:, 0])), "share"),
    (lambda: solve(**MODES, density=wflow.tokens.uniform(9, 2)), "density"),
    (lambda: solve(**MODES, density=np.ones(16)), "cells"),
    (lambda: solve(**MODES, dt=0.1, heads=9 * CIRCLE_HEADS), "bound"),
    (lambda: solve(mesh=Fourier(16), scheme="euler"), "bound on steps"),
    (lambda: solve(**MODES, scheme="ssp2"), "'ssp2'"),
    (lambda: solve(**MODES, reconstruct=True), "Fourier"),
    (lambda: solve(mesh=Fourier(16), law=NOISY, dt=0.01), "Fourier"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_used_is_refused(call, words):
    with pytest.raises(wflow.InputError, match=words), np.errstate(all="ignore"):
        call()
