"""Stationary laws of one head D = beta I with tokens that diffuse; critical diffusion.

Tokens in `ascent` with diffusion kappa follow dmu/dt = -div(mu v) + kappa Laplacian mu. With the
potential u(x) = int exp(beta <x, y>) mu(dy) the velocity is grad u for `unnormalised` and grad
log u for `softmax` and `effective`, so that a stationary law solves

    mu ~ exp(u / kappa)   or   mu ~ u^(1 / kappa),

and the uniform law does so for every kappa. Source: docs/theory/stationary.md; [MHT] section 7
names the equation.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import positive, whole
from wflow._core.errors import InputError
from wflow.attention.flows import Flow, FlowName, as_flow

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["critical_diffusion", "kernel_eigenvalue", "stationary_order"]

_NODES = 200  # of the quadrature over the height z = <x, axis>
_ROUNDS, _TOLERANCE = 20000, 1e-11
_SMALLEST = 1e-290  # Bessel functions below it have lost digits
_LARGEST = 2**31  # dimension and degree; beyond it log Gamma rounds away what is asked for
_LARGEST_D = 400  # beyond it the nodes leave the heights at which clusters stand


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
    from scipy.special import gammaln, hyp0f1, ive

    beta = positive(beta, "beta")
    d, degree = whole(d, "d", least=2, most=_LARGEST), whole(degree, "degree", 0, most=_LARGEST)
    order = d / 2 - 1
    scaled = float(ive(order + degree, beta))  # exp(-beta) I(beta)
    if scaled >= _SMALLEST and beta >= _SMALLEST:
        log = float(gammaln(d / 2)) + order * math.log(2 / beta) + beta + math.log(scaled)
        return _exp(log)
    series = math.nan  # of I, where I alone leaves the range of doubles
    if not math.isnan(scaled):
        series = float(hyp0f1(order + 1 + degree, beta * beta / 4))
    if math.isfinite(series):
        log = float(gammaln(d / 2) - gammaln(d / 2 + degree))
        log += degree * math.log(max(beta / 2, 5e-324))
        return _exp(log + math.log(series))
    # Debye's expansion, whose error is below 1 / beta: beyond beta of 2^30 SciPy has no I.
    root = math.hypot(order + degree, beta)
    log = root + (order + degree) * math.log(beta / (order + degree + root))
    log -= (math.log(2 * math.pi) + math.log(root)) / 2
    return _exp(float(gammaln(d / 2)) + order * math.log(2 / beta) + log)


def critical_diffusion(beta: float, d: int, flow: FlowName | Flow = "softmax") -> float:
    """Diffusion below which the uniform law is unstable: a_1, for softmax a_1 / a_0.

    A perturbation of degree l of the uniform law grows at the rate l (l + d - 2)(a_l - kappa), for
    `softmax` and `effective` with a_l / a_0 in the place of a_l; a_l falls with l.

    Parameters
    ----------
    beta : > 0, of the head D = beta I, in `ascent`
    d : dimension, >= 2
    flow : "softmax", "effective", "unnormalised", or a `wflow.Flow` that states its `potential`

    Raises
    ------
    InputError
        For beta <= 0, d < 2, an unknown flow or one without a known potential.

    Source: docs/theory/stationary.md; D. E. Amos, *Computation of modified Bessel functions and
    their ratios*, Math. Comp. 28 (1974).
    """
    from scipy.special import ive

    linear = _potential(flow) == "m"
    first = kernel_eigenvalue(beta, d, 1)
    if linear:
        return first
    order, beta = whole(d, "d") / 2 - 1, positive(beta, "beta")
    above, below = float(ive(order + 1, beta)), float(ive(order, beta))
    if above >= _SMALLEST and below >= _SMALLEST:
        return above / below
    zeroth = kernel_eigenvalue(beta, d, 0)
    if math.isfinite(zeroth):
        return first / zeroth  # order >> beta
    # Between Amos' bounds, which agree to (order + 1) / beta^2, and with the same first terms in
    # 1 / beta as the ratio itself.
    center = math.hypot(beta, math.sqrt((order + 0.5) * (order + 1.5)))
    return beta / (order + 0.5 + center)


def stationary_order(beta: float, d: int, kappa: float, flow: FlowName | Flow = "softmax") -> float:
    """Order parameter |int x mu(dx)| of the most concentrated stationary law.

    The fixed point of mu -> exp(u/kappa) (or u^{1/kappa}), normalised, from a Dirac: axially
    symmetric, on Gauss-Gegenbauer nodes in the height z = <x, axis>. Zero: only the uniform law.

    Parameters
    ----------
    beta : > 0, of the head D = beta I, in `ascent`
    d : dimension, >= 2
    kappa : > 0
    flow : "softmax", "effective", "unnormalised", or a `wflow.Flow` that states its `potential`

    Returns
    -------
    float in [0, 1)

    Raises
    ------
    InputError
        For arguments out of range, a d above 400, or a law too narrow for the quadrature.
    """
    linear = _potential(flow) == "m"
    kappa = positive(kappa, "kappa")
    beta = positive(beta, "beta")
    d = whole(d, "d", least=2)
    if d > _LARGEST_D:
        raise InputError(f"d is {d}: the quadrature resolves laws up to d = {_LARGEST_D}")
    if beta > _NODES**2 / 30:
        raise InputError(
            f"beta = {beta:g} makes the kernel too narrow to resolve; take beta <= "
            f"{_NODES**2 / 30:.3g}"
        )
    # Everything relative to e^beta, the largest value of the kernel.
    strength = _exp(math.log(kappa) - beta) if linear else kappa
    least = 30 / _NODES**2 * beta
    if strength < least:
        least = _exp(math.log(least) + beta) if linear else least
        remedy = f"kappa >= {least:.3g}" if math.isfinite(least) else "a smaller beta"
        raise InputError(
            f"kappa = {kappa:g} makes the stationary law too narrow to resolve; take {remedy}"
        )
    z, weight, kernel = _heights(beta, d)
    law = np.zeros(_NODES)
    law[-1] = 1.0  # probability at the nodes, from a Dirac at the pole
    potential: Callable[[NDArray], NDArray] = np.asarray if linear else np.log
    order = 1.0
    for _ in range(_ROUNDS):
        with np.errstate(divide="ignore"):  # log 0: no mass ends there
            exponent = potential(kernel @ law) / strength
        law = weight * np.exp(exponent - exponent.max())
        law /= law.sum()
        last, order = order, float(z @ law)
        if abs(order - last) <= _TOLERANCE:
            break
    # At the critical diffusion the iteration converges slowly: what is left there counts as zero.
    return order if order > 1e-4 else 0.0


def _potential(flow: FlowName | Flow) -> str:
    """The function of the mobility whose gradient is the velocity with one head."""
    flow = as_flow(flow)
    if flow.potential is None:
        raise InputError(
            f"the flow {flow.name} does not say of which function of the mobility its velocity is "
            'the gradient: set the attribute potential of its class to "m" or "log m"'
        )
    return flow.potential


def _heights(beta: float, d: int) -> tuple[NDArray, NDArray, NDArray]:
    """Nodes z, their uniform probabilities, and the kernel averaged around the axis (z, z').

    The kernel is that of exp(beta (<x, y> - 1)), at most 1.
    """
    from scipy.special import gammaln, hyp0f1, ive, roots_chebyt, roots_gegenbauer

    z, weight = roots_chebyt(_NODES) if d == 2 else roots_gegenbauer(_NODES, d / 2 - 1)
    order = (d - 3) / 2
    around = beta * np.sqrt(np.outer(1 - z**2, 1 - z**2))
    if d == 2:  # the two tokens at a height: the average of two exponentials
        log = np.logaddexp(around, -around) - math.log(2)
    else:
        # Gamma(nu + 1) (2/t)^nu I_nu(t): the average of exp(t cos) over the sphere around the axis.
        bessel = ive(order, around)
        small = bessel < _SMALLEST
        log = float(gammaln(order + 1)) + order * np.log(2 / around) + around
        log = log + np.log(np.where(small, 1.0, bessel))
        log[small] = np.log(hyp0f1(order + 1, around[small] ** 2 / 4))
    return z, weight / weight.sum(), np.exp(beta * (np.outer(z, z) - 1) + log)


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf
