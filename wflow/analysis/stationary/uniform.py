r"""The uniform law of heads D_h = beta_h I: growth of its modes, and the branch that leaves it.

For the kernel exp(beta <x, y>) every spherical harmonic of degree l is an eigenfunction, with the
eigenvalue a_l of `kernel_eigenvalue`; the rest is algebra of these numbers. In the theory:
:ref:`stationary laws <theory-stationary>`.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import Direction, FlowName, check_choice, number, reals, whole
from wflow._core.errors import InputError
from wflow.analysis.stationary.nodes import (
    LARGEST_D,
    SMALLEST,
    heights,
)
from wflow.attention.cloud import safe_exp, warn_overflow
from wflow.attention.flows import Flow, as_flow, effective, softmax, unnormalised
from wflow.sphere.polynomials import gegenbauer, gegenbauer_slopes

Floats = NDArray[np.float64]
Kind = Literal["m", "log m", "b"]

SIGNS: dict[str, float] = {"descent": -1.0, "ascent": 1.0}
_LARGEST = 2**31  # dimension and degree; beyond it log Gamma rounds away what is asked for
_DEGREES = 4096  # the first mode to grow in descent is looked for among these


def kernel_eigenvalue(beta: float, d: int, degree: int) -> float:
    r"""Return the eigenvalue of mu -> int exp(beta <x, y>) mu(dy) on harmonics of a degree.

    Parameters
    ----------
    beta : float
        Factor of the head.
    d : int
        Dimension, >= 2.
    degree : int
        Degree l >= 0.

    Returns
    -------
    float
        Eigenvalue a_l; infinite, with a warning, beyond the range of doubles.

    Raises
    ------
    InputError
        For a beta that is not finite, d < 2 or a negative degree.

    Notes
    -----
    By the Funk-Hecke formula, against the uniform probability measure of the sphere,

    .. math:: a_l(\beta) = \Gamma(d/2) \Bigl(\frac{2}{\beta}\Bigr)^{d/2 - 1} I_{d/2 - 1 + l}(\beta),
        \qquad a_l(-\beta) = (-1)^l a_l(\beta) .

    In the theory: :ref:`the Funk-Hecke formula <theory-funk-hecke>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> bool(np.isclose(wflow.stationary.kernel_eigenvalue(2.0, 3, 0), np.sinh(2.0) / 2.0))
    True
    """
    beta = number(beta, "beta")
    d, degree = whole(d, "d", least=2, most=_LARGEST), whole(degree, "degree", 0, most=_LARGEST)
    value = _eigenvalue(beta, d, degree)
    if math.isinf(value):
        warn_overflow("the eigenvalue", abs(beta), value, closed=True)
    return value


def growth_rate(
    beta: ArrayLike,
    d: int,
    degree: int,
    kappa: float = 0.0,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "ascent",
) -> float:
    r"""Return the rate at which modes of a degree grow on the uniform law, for D_h = beta_h I.

    Parameters
    ----------
    beta : float or array_like, shape (H,)
        Factors of the heads.
    d : int
        Dimension, >= 2.
    degree : int
        Degree l >= 1 of the spherical harmonics.
    kappa : float, default 0.0
        Diffusion of the tokens per unit time, >= 0.
    flow : {"softmax", "effective", "unnormalised"} or wflow.Flow, default "softmax"
        Flow; one that is custom states its `potential`, for one head.
    direction : {"ascent", "descent"}, default "ascent"
        Sign s of the velocity: +1 or -1.

    Returns
    -------
    float
        Rate per unit time; negative where the modes decay.

    Raises
    ------
    InputError
        For arguments out of range, and for a flow of which no potential is known.

    Notes
    -----
    With the eigenvalues a_l of `kernel_eigenvalue` and means over the heads, the rate is

    .. math:: l\,(l + d - 2)\,(s\,c_l - \kappa), \qquad
        c_l = \langle a_l \rangle, \quad \langle a_l/a_0 \rangle, \quad
        \langle a_l \rangle \langle 1/a_0 \rangle

    for "unnormalised", "softmax" and "effective".

    In the theory: :ref:`growth of modes <theory-critical-diffusion>`.

    Examples
    --------
    Two heads that repel and attract: the second degree grows first.

    >>> import wflow
    >>> rates = [wflow.stationary.growth_rate([4.0, -4.0], 3, degree) for degree in (1, 2)]
    >>> [round(rate, 3) for rate in rates]
    [0.0, 2.622]
    """
    betas = _factors(beta)
    d, degree = whole(d, "d", least=2, most=_LARGEST), whole(degree, "degree", 1, most=_LARGEST)
    kappa = number(kappa, "kappa", 0.0)
    check_choice("direction", direction, SIGNS)
    found = SIGNS[direction] * _coefficient(betas, d, degree, kind_of(flow, len(betas)))
    return degree * (degree + d - 2) * (found - kappa)


def critical_diffusion(
    beta: ArrayLike,
    d: int,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "ascent",
) -> float:
    r"""Return the diffusion below which the uniform law is unstable, for heads D_h = beta_h I.

    Parameters
    ----------
    beta : float or array_like, shape (H,)
        Factors of the heads.
    d : int
        Dimension, >= 2.
    flow : {"softmax", "effective", "unnormalised"} or wflow.Flow, default "softmax"
        Flow; one that is custom states its `potential`, for one head.
    direction : {"ascent", "descent"}, default "ascent"
        Sign s of the velocity: +1 or -1.

    Returns
    -------
    float
        Diffusion kappa per unit time; zero where the uniform law is stable without diffusion.

    Raises
    ------
    InputError
        For arguments out of range, and for a flow of which no potential is known.

    Notes
    -----
    With c_l of `growth_rate`, which take ratios of Bessel functions [1]_,

    .. math:: \kappa_c = \max\bigl(0, \max_{l \geq 1} s\,c_l\bigr) .

    For one head with beta > 0 in ascent it is c_1: a_1 for "unnormalised", a_1 / a_0 for
    "softmax" and "effective".

    In the theory: :ref:`the critical diffusion <theory-critical-diffusion>`.

    References
    ----------
    .. [1] Amos, *Computation of modified Bessel functions and their ratios*, Math. Comp. 28 (1974).

    Examples
    --------
    >>> import numpy as np, wflow
    >>> found = wflow.stationary.critical_diffusion(1.0, 3)
    >>> bool(np.isclose(found, 1 / np.tanh(1.0) - 1.0))
    True
    """
    betas = _factors(beta)
    d = whole(d, "d", least=2, most=_LARGEST)
    check_choice("direction", direction, SIGNS)
    return _first(betas, d, kind_of(flow, len(betas)), SIGNS[direction])[1]


class Transition(NamedTuple):
    r"""The loss of stability of the uniform law, and the stationary laws that branch off there.

    The axially symmetric branch is mu = 1 + A P_l + O(A^2) against the uniform law, with the
    Gegenbauer polynomial P_l of the height, P_l(1) = 1, at kappa = kappa_c (1 - quadratic A -
    cubic A^2 + ...).

    Parameters
    ----------
    kappa : float
        Critical diffusion; zero where the uniform law is stable without diffusion.
    degree : int
        Degree l of the modes that grow first; zero where none does.
    quadratic : float
        Coefficient of A: zero unless l is even and d >= 3.
    cubic : float
        Coefficient of A^2; NaN where `quadratic` is not zero.
    order : {"continuous", "discontinuous", "none"}
        "continuous" where the branch lies below the critical diffusion on both sides, so that
        order grows from zero; "none" where nothing grows.

    Examples
    --------
    >>> import wflow
    >>> wflow.stationary.transition(1.0, 3, "unnormalised").order
    'continuous'
    >>> wflow.stationary.transition(6.0, 3, "unnormalised").order
    'discontinuous'
    """

    kappa: float
    degree: int
    quadratic: float
    cubic: float
    order: Literal["continuous", "discontinuous", "none"]


def transition(
    beta: ArrayLike,
    d: int,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "ascent",
) -> Transition:
    r"""Return the critical diffusion with the amplitude equation there, for heads D_h = beta_h I.

    Parameters
    ----------
    beta : float or array_like, shape (H,)
        Factors of the heads.
    d : int
        Dimension, from 2 to 400.
    flow : {"softmax", "effective", "unnormalised"} or wflow.Flow, default "softmax"
        Flow; one that is custom states its `potential`, for one head.
    direction : {"ascent", "descent"}, default "ascent"
        Sign s of the velocity: +1 or -1.

    Returns
    -------
    Transition
        Critical diffusion, degree, coefficients and order.

    Raises
    ------
    InputError
        For arguments out of range, and for a flow of which no potential is known.

    Notes
    -----
    For l = 1 and one head in ascent the cubic coefficient is

    .. math::

        \frac{1}{d + 2} \Bigl[1 - \frac{d - 1}{d}\,\frac{1}{1 - a_2/a_1}\Bigr], \qquad
        \frac{1}{d + 2} \Bigl[1 - \alpha_1^2
            - \frac{d - 1}{d}\,\frac{(1 - \alpha_1)(1 - \alpha_2)}{1 - \alpha_2/\alpha_1}\Bigr],
        \quad \alpha_l = a_l/a_0,

    for "unnormalised" and "softmax": the first changes its sign at a_2/a_1 = 1/d. What is said of
    the order holds near the uniform law: a branch far from it may be reached at a larger
    diffusion, by a jump, all the same (`branch` follows it).

    In the theory: :ref:`the amplitude equation <theory-amplitude>`.

    Examples
    --------
    >>> import wflow
    >>> found = wflow.stationary.transition(2.0, 2)
    >>> found.degree, found.order, round(found.cubic, 4)
    (1, 'continuous', 0.0818)
    """
    betas = _factors(beta)
    d = whole(d, "d", least=2, most=LARGEST_D)
    check_choice("direction", direction, SIGNS)
    kind, sign = kind_of(flow, len(betas)), SIGNS[direction]
    degree, kappa = _first(betas, d, kind, sign)
    if not degree:
        return Transition(0.0, 0, 0.0, 0.0, "none")
    quadratic, cubic = amplitude(betas, d, kind, sign, degree)
    continuous = quadratic == 0 and cubic > 0
    order: Literal["continuous", "discontinuous"] = "continuous" if continuous else "discontinuous"
    return Transition(kappa, degree, quadratic, cubic, order)


def amplitude(betas: Floats, d: int, kind: Kind, sign: float, degree: int) -> tuple[float, float]:
    """Return first, second of the branch of a degree, kappa = kappa_l (1 - first A - second A^2).

    Stationary laws solve grad log mu = V / kappa. With mu = 1 + A p + A^2 q and p the polynomial of
    the degree, the terms of V of order A^2 and A^3 are products of p and q, whose projections on p
    are integrals of polynomials: exact by quadrature.
    """
    degrees = np.arange(2 * degree + 1)
    z, weight = heights(d, 2 * degree + 1)
    values, slopes = gegenbauer(z, d, 2 * degree), gegenbauer_slopes(z, d, degrees)
    p, dp = values[:, degree], slopes[:, degree]
    a = _scaled(betas, d, degrees)
    share = a / a[:, :1]
    one_over = 1 / a[:, 0] / np.sum(1 / a[:, 0])  # weights of the heads in the mean of 1/m
    first = share[:, degree]
    # c_j / c_l, and the term of V / kappa of order A^2, -second grad p^2 / 2.
    if kind == "log m":
        c, second = share.mean(axis=0), float(np.mean(first**2) / first.mean())
    else:
        c, second = a.mean(axis=0), float(one_over @ first) if kind == "b" else 0.0
    c = c / c[degree]

    def mean(values: Floats) -> float:
        return float(weight @ values)

    size = mean(p * p)
    if degree % 2 == 0 and d > 2:
        return -mean(p**3) * (1 - second) / (2 * size), math.nan
    others = (degrees > 0) & (degrees != degree)
    q = np.zeros(len(degrees))  # coefficients
    q[others] = (values.T @ (weight * p * p) / (values**2).T.dot(weight))[others]
    with np.errstate(divide="ignore", invalid="ignore"):  # degrees that cannot be told apart
        q[others] *= (1 - second) / 2 / (1 - c[others])
        left = mean(p**4) / 3 - mean(p * p * (values @ q))
    right = 0.0
    if kind == "log m":
        cross = np.mean(first[:, None] * share, axis=0) / first.mean()
        cube = float(np.mean(first**3) / first.mean())
        right = cube * mean(p**4) / 3 - mean(p * p * (values @ (cross * q)))
    elif kind == "b":
        b, square = one_over @ share, float(one_over @ first**2)
        field = square * p * p * dp - second * p * (slopes @ (c * q)) - dp * (values @ (b * q))
        right = mean((1 - z * z) * dp * field) / (degree * (degree + d - 2))
    return 0.0, (left - right) / size


def kind_of(flow: FlowName | Flow, heads: int) -> Kind:
    """Return what generates the velocity: the gradient of the mean of m or log m, or gbar/b."""
    flow = as_flow(flow)
    if flow is effective and heads > 1:
        return "b"
    if flow.potential is None:
        raise InputError(
            f"the flow {flow.name} does not say of which function of the mobility its velocity is "
            'the gradient: set the attribute potential of its class to "m" or "log m"'
        )
    if heads > 1 and flow not in (softmax, unnormalised):
        raise InputError(
            f"the flow {flow.name} states its potential for one head, and there are {heads}"
        )
    return flow.potential


def _factors(beta: ArrayLike) -> Floats:
    """Return factors of the heads (H,)."""
    single = not isinstance(beta, list | tuple) and np.ndim(beta) == 0  # np.ndim fails on ragged
    betas = np.atleast_1d(np.asarray(number(beta, "beta") if single else reals(beta, "beta")))
    if betas.ndim != 1 or not betas.size:
        raise InputError(f"beta has shape {betas.shape}: expected a number or (H,)")
    return betas


def _first(betas: Floats, d: int, kind: Kind, sign: float) -> tuple[int, float]:
    """Return degree and critical diffusion of the modes that grow first; (0, 0.0) for none."""
    best = 0, 0.0
    size = np.abs(betas)
    # In ascent no degree beyond 2 comes first: even ones fall with the degree, and an odd one is at
    # most what all heads of one sign would give. In descent the odd degrees of beta < 0 grow.
    for degree in (1, 2) if sign > 0 else range(1, _DEGREES, 2):
        if sign < 0:
            bound = _coefficient(np.where(betas < 0, size, 0.0), d, degree, kind, size)
            if bound <= best[1]:
                break
        value = sign * _coefficient(betas, d, degree, kind)
        if value > best[1]:
            best = degree, value
    return best


def _coefficient(
    betas: Floats, d: int, degree: int, kind: Kind, zeroth: Floats | None = None
) -> float:
    """Return the coefficient c_l; `zeroth` are the factors of a_0 where these differ."""
    if kind == "log m":
        terms = [_share(float(b), d, degree) for b in betas]
        return math.fsum(terms) / len(betas)
    if kind == "m":
        terms = [_eigenvalue(float(b), d, degree) for b in betas]
        return math.inf if math.inf in terms else math.fsum(terms) / len(betas)
    # In b the common scale of the eigenvalues cancels.
    own = betas if zeroth is None else zeroth
    below = [_log_eigenvalue(abs(float(b)), d, 0) for b in own]
    top = max(below)
    above = [
        _signed(float(b), degree, _log_eigenvalue(abs(float(b)), d, degree) - top) for b in betas
    ]
    return (
        math.fsum(above)
        / len(betas)
        * safe_exp(math.log(sum(safe_exp(top - b) for b in below) / len(own)))
    )


def _eigenvalue(beta: float, d: int, degree: int) -> float:
    return _signed(beta, degree, _log_eigenvalue(abs(beta), d, degree))


def _signed(beta: float, degree: int, log: float) -> float:
    return -safe_exp(log) if beta < 0 and degree % 2 else safe_exp(log)


def _share(beta: float, d: int, degree: int) -> float:
    """Return the ratio a_l / a_0 of one head."""
    from scipy.special import ive

    if beta == 0:
        return 0.0
    sign, beta = -1.0 if beta < 0 and degree % 2 else 1.0, abs(beta)
    order = d / 2 - 1
    above, below = float(ive(order + degree, beta)), float(ive(order, beta))
    if above >= SMALLEST and below >= SMALLEST:
        return sign * above / below
    zeroth = _eigenvalue(beta, d, 0)
    if math.isfinite(zeroth):
        return sign * _eigenvalue(beta, d, degree) / zeroth  # order >> beta
    if degree == 1:
        # Between Amos' bounds, which agree to (order + 1) / beta^2, and with the same first terms
        # in 1 / beta as the ratio itself.
        center = math.hypot(beta, math.sqrt((order + 0.5) * (order + 1.5)))
        return sign * beta / (order + 0.5 + center)
    if order + degree < 1e-3 * beta:  # log I falls with the order by (order^2 - 1/4) / (2 beta)
        return sign * math.exp(-degree * (degree + d - 2) / (2 * beta))
    logs = _log_eigenvalue(beta, d, degree) - _log_eigenvalue(beta, d, 0)
    return sign * safe_exp(min(logs, 0.0))


def _scaled(betas: Floats, d: int, degrees: NDArray[np.intp]) -> Floats:
    """Return eigenvalues (H, degrees), relative to the largest a_0 of the heads."""
    logs = [[_log_eigenvalue(abs(float(b)), d, int(k)) for k in degrees] for b in betas]
    sign = np.where((betas[:, None] < 0) & (degrees % 2 == 1), -1.0, 1.0)
    array = np.array(logs)
    return np.asarray(sign * np.exp(array - array.max()))


def _log_eigenvalue(beta: float, d: int, degree: int) -> float:
    """Return the logarithm of a_l for beta >= 0."""
    from scipy.special import gammaln, hyp0f1, ive

    if beta == 0:
        return 0.0 if degree == 0 else -math.inf
    order = d / 2 - 1
    scaled = float(ive(order + degree, beta))  # exp(-beta) I(beta)
    if scaled >= SMALLEST and beta >= SMALLEST:
        return float(gammaln(d / 2)) + order * math.log(2 / beta) + beta + math.log(scaled)
    series = math.nan  # of I, where I alone leaves the range of doubles
    if not math.isnan(scaled):
        series = float(hyp0f1(order + 1 + degree, beta * beta / 4))
    if math.isfinite(series):
        log = float(gammaln(d / 2) - gammaln(d / 2 + degree))
        log += degree * math.log(max(beta / 2, 5e-324))
        return log + math.log(series)
    # Debye's expansion, whose error is below 1 / beta: beyond beta of 2^30 SciPy has no I.
    root = math.hypot(order + degree, beta)
    log = root + (order + degree) * math.log(beta / (order + degree + root))
    log -= (math.log(2 * math.pi) + math.log(root)) / 2
    return float(gammaln(d / 2)) + order * math.log(2 / beta) + log
