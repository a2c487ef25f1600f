"""Stationary laws of one head D = beta I with tokens that diffuse: where clouds cluster and melt.

Tokens in `ascent` with diffusion kappa follow dmu/dt = -div(mu v) + kappa Laplacian mu. With the
potential u(x) = int exp(beta <x, y>) mu(dy) the velocity is grad u for `unnormalised` and grad
log u for `softmax` and `effective`, so that a stationary law solves

    mu ~ exp(u / kappa)   or   mu ~ u^(1 / kappa),

and the uniform law does so for every kappa. Source: docs/mathematics.md section 6; [MHT] section 7
names the equation.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wflow._checks import positive, whole
from wflow.attention import FLOWS, check_choice
from wflow.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_NODES = 200  # of the quadrature over the height z = <x, axis>
_ROUNDS, _TOLERANCE = 20000, 1e-11


def kernel_eigenvalue(beta: float, d: int, degree: int) -> float:
    """Eigenvalue of mu -> int exp(beta <x, y>) mu(dy) on spherical harmonics of a degree.

    a_l = Gamma(d/2) (2/beta)^{d/2 - 1} I_{d/2 - 1 + l}(beta), by the Funk-Hecke formula, against
    the uniform probability measure of S^{d-1}.

    Parameters
    ----------
    beta : > 0
    d : dimension, >= 2
    degree : l >= 0

    Returns
    -------
    float; inf beyond the range of doubles

    Raises
    ------
    InputError
        For beta <= 0, d < 2 or a negative degree.
    """
    from scipy.special import gammaln, ive

    positive(beta, "beta")
    order = whole(d, "d", least=2) / 2 - 1
    scaled = float(ive(order + whole(degree, "degree", least=0), beta))  # exp(-beta) I(beta)
    if scaled == 0.0:
        return 0.0
    log = float(gammaln(d / 2)) + order * math.log(2 / beta) + beta + math.log(scaled)
    return math.exp(log) if log < 709 else math.inf


def critical_diffusion(beta: float, d: int, flow: str = "softmax") -> float:
    """Diffusion below which the uniform law is unstable: a_1, for softmax a_1 / a_0.

    A perturbation of degree l of the uniform law grows at the rate l (l + d - 2)(a_l - kappa), for
    `softmax` and `effective` with a_l / a_0 in the place of a_l; a_l falls with l.

    Parameters
    ----------
    beta : > 0, of the head D = beta I, in `ascent`
    d : dimension, >= 2
    flow : "softmax", "effective" or "unnormalised"

    Raises
    ------
    InputError
        For beta <= 0, d < 2 or an unknown flow.

    Source: docs/mathematics.md section 6.
    """
    from scipy.special import ive

    check_choice("flow", flow, FLOWS)
    first = kernel_eigenvalue(beta, d, 1)
    if flow == "unnormalised":
        return first
    order = d / 2 - 1
    return float(ive(order + 1, beta) / ive(order, beta))


def stationary_order(beta: float, d: int, kappa: float, flow: str = "softmax") -> float:
    """Order parameter |int x mu(dx)| of the most concentrated stationary law.

    The fixed point of mu -> exp(u/kappa) (or u^{1/kappa}), normalised, from a Dirac: axially
    symmetric, on Gauss-Gegenbauer nodes in the height z = <x, axis>. Zero: only the uniform law.

    Parameters
    ----------
    beta : > 0, of the head D = beta I, in `ascent`
    d : dimension, >= 2
    kappa : > 0
    flow : "softmax", "effective" or "unnormalised"

    Returns
    -------
    float in [0, 1)

    Raises
    ------
    InputError
        For arguments out of range, or a law too narrow for the quadrature.
    """
    check_choice("flow", flow, FLOWS)
    positive(kappa, "kappa")
    z, weight, kernel = _heights(positive(beta, "beta"), whole(d, "d", least=2))
    narrow = kappa / beta if flow != "unnormalised" else kappa / (beta * math.exp(beta))
    if narrow < 30 / _NODES**2:
        raise InputError(
            f"kappa = {kappa:g} makes the stationary law too narrow to resolve; take kappa >= "
            f"{kappa * 30 / _NODES**2 / narrow:.3g}"
        )
    law = np.zeros(_NODES)
    law[-1] = 1.0  # probability at the nodes, from a Dirac at the pole
    potential: Callable[[NDArray], NDArray] = np.log if flow != "unnormalised" else np.asarray
    order = 1.0
    for _ in range(_ROUNDS):
        exponent = potential(kernel @ law) / kappa
        law = weight * np.exp(exponent - exponent.max())
        law /= law.sum()
        last, order = order, float(z @ law)
        if abs(order - last) <= _TOLERANCE:
            break
    # At the critical diffusion the iteration creeps: what is left of it there counts as zero.
    return order if order > 1e-4 else 0.0


def _heights(beta: float, d: int) -> tuple[NDArray, NDArray, NDArray]:
    """Nodes z, their uniform probabilities, and the kernel averaged around the axis (z, z')."""
    from scipy.special import gammaln, ive, roots_chebyt, roots_gegenbauer

    z, weight = roots_chebyt(_NODES) if d == 2 else roots_gegenbauer(_NODES, d / 2 - 1)
    order = (d - 3) / 2
    around = beta * np.sqrt(np.outer(1 - z**2, 1 - z**2))
    if d == 2:  # the two tokens at a height: the average of two exponentials
        mean = (np.exp(around) + np.exp(-around)) / 2
    else:
        # Gamma(nu + 1) (2/t)^nu I_nu(t): the average of exp(t cos) over the sphere around the axis.
        scale = np.exp(float(gammaln(order + 1)) + order * np.log(2 / around) + around)
        mean = scale * ive(order, around)
    return z, weight / weight.sum(), np.exp(beta * np.outer(z, z)) * mean
