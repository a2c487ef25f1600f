"""Energy, mobilities and velocities of one cloud of tokens (docs/theory/setting.md, energy.md).

Every function takes tokens x (n, d) of norm one and heads D (heads, d, d) and returns float64, or
float32 where x is float32. Cost: heads n^2 (3 d + 14) multiply-adds or so, and by series (d = 2, 3;
docs/theory/fast_sums.md) linear in n. Memory: the result.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import Direction, FlowName, Method, check_choice, reals
from wflow._core.errors import AccuracyWarning, InputError, WflowWarning, warn
from wflow.attention.flows import Flow, as_flow, evaluate
from wflow.attention.pairs import log_harmonic_mean
from wflow.heads.laws import QKV
from wflow.heads.matrices import as_matrices, check_scores, is_symmetric
from wflow.kernels.evaluate import DIRECTIONS, Evaluation, Sums, head_sums
from wflow.sphere.geometry import as_tokens


def as_unit_tokens(x: ArrayLike, name: str = "x") -> NDArray[np.floating]:
    """Return tokens (n, d) as a floating array, checked to lie on the unit sphere.

    name : what messages call it

    Raises
    ------
    InputError
        For a wrong shape, d < 2, values that are not finite, or norms away from one.
    """
    tokens = reals(x, name, finite=False, single=True)
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise InputError(f"{name} has shape {tokens.shape}, expected (n, d) with n >= 1 and d >= 2")
    finite = np.isfinite(tokens).all(axis=1)
    if not finite.all():
        raise InputError(
            f"token {int(np.argmin(finite))} of {name} is not finite; remove or repair it"
        )
    with np.errstate(over="ignore"):
        away = np.abs(np.sqrt(np.einsum("ik,ik->i", tokens, tokens)) - 1)
    worst = int(np.argmax(away))
    if away[worst] > (1e-5 if tokens.dtype == np.float32 else 1e-9):
        raise InputError(
            f"token {worst} of {name} is {away[worst]:.3g} away from the unit sphere; normalise "
            "with wflow.sphere.as_tokens"
        )
    return tokens


def on_sphere(x: ArrayLike, name: str = "x0") -> NDArray[np.float64]:
    """Put tokens (..., n, d) on the sphere as `as_tokens` does, and warn where they were not there.

    Functions of one cloud refuse such tokens; where tokens only start, directions can be meant.
    """
    given = reals(x, name, finite=False)
    tokens = as_tokens(given, name)
    half = str(getattr(x, "dtype", "")).endswith("float16")  # whose rounding is 1e-3
    with np.errstate(over="ignore"):
        away = np.abs(np.sqrt(np.einsum("...k,...k->...", given, given)) - 1)
    if (far := away > (8e-3 if half else 1e-6)).any():
        warn(
            f"{name}: {far.sum()} of {far.size} tokens are up to {away.max():.3g} away from the "
            "unit sphere, and only their directions are used; where that is meant, give "
            "wflow.sphere.as_tokens of them",
            WflowWarning,
        )
    return tokens


def _one_cloud(x: ArrayLike, D: ArrayLike, *, symmetric: bool) -> tuple[NDArray, NDArray]:
    tokens = as_unit_tokens(x)
    if isinstance(D, QKV):
        raise InputError(
            "general (Q, K, V) heads are no gradient: they have no energy, mobility or upper "
            "gradient; simulate them by wflow.solve(x0, Frozen(), heads=...)"
        )
    heads = as_matrices(D, "D", symmetric=symmetric)
    if heads.ndim != 3 or heads.shape[-1] != tokens.shape[1]:
        raise InputError(
            f"D has shape {heads.shape}, expected (heads, {tokens.shape[1]}, {tokens.shape[1]}) "
            f"for tokens of shape {tokens.shape}"
        )
    check_scores(heads, tokens.dtype, "D")
    return tokens, heads.astype(tokens.dtype)


def _evaluate_one(
    x: ArrayLike,
    D: ArrayLike,
    flow: FlowName | Flow,
    direction: Direction,
    method: Method,
    tolerance: float,
    *,
    symmetric: bool = True,
) -> Evaluation:
    flow = as_flow(flow)
    check_choice("direction", direction, DIRECTIONS)
    tokens, heads = _one_cloud(x, D, symmetric=symmetric)
    n, d = tokens.shape
    sums = Sums(method, tolerance).resolved(n, d, causal=False)
    return evaluate(
        tokens[None],
        heads[None],
        flow=flow,
        direction=direction,
        symmetric=is_symmetric(heads),
        sums=sums,
    )


def warn_overflow(where: str, beta: float, value: float = np.inf, *, closed: bool = False) -> None:
    """Warn that a value left the range of floats, and report how large the scores are.

    Parameters
    ----------
    where : the value
    beta : largest score
    value : what is reported
    closed : whether it is a closed form, and not of tokens that a flow moves
    """
    text = (
        f"{where} leaves the range of floats and is reported as {value}: scores reach "
        f"beta = {beta:.6g}, and exp overflows at 709"
    )
    if not closed:
        text += ", in single precision at 88; velocities of softmax attention stay right"
    warn(text, AccuracyWarning)


LARGEST_LOG = math.log(np.finfo(np.float64).max)
"""Largest number whose exponential is in the range of doubles."""


def safe_exp(value: float) -> float:
    """Return exp(value); inf beyond the range of doubles."""
    return math.exp(value) if value <= LARGEST_LOG else math.inf


def _term(
    name: str,
    x: ArrayLike,
    D: ArrayLike,
    flow: FlowName | Flow,
    direction: Direction,
    method: Method,
    tolerance: float,
) -> float:
    terms = _evaluate_one(x, D, flow, direction, method, tolerance).terms
    value = float(terms[name][0])
    if not np.isfinite(value):
        warn_overflow(name, float(terms["max_score"][0]))
    return value


def energy(
    x: ArrayLike, D: ArrayLike, *, method: Method = "auto", tolerance: float = 1e-10
) -> float:
    r"""Return the interaction energy of a token cloud.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices.
    method : {"auto", "exact", "fast"}, default "auto"
        How the sums over pairs are formed, as in `wflow.Compute`.
    tolerance : float, default 1e-10
        Relative error that fast sums keep below.

    Returns
    -------
    float
        Energy E, dimensionless; inf, with a warning, beyond the range of doubles.

    Raises
    ------
    InputError
        For wrong shapes, tokens off the sphere, asymmetric D, or a method that does not exist.

    Notes
    -----
    The energy [1]_ is

    .. math:: E = \frac{1}{2 H n^2} \sum_{h,i,j} e^{\langle x_i, D_h x_j \rangle} .

    In the theory: :ref:`energy <theory-energy>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 4 and 21.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> round(wflow.energy(x, np.eye(2)[None]), 6)  # (2 e + 2) / 8
    0.92957
    """
    return _term("energy", x, D, "softmax", "descent", method, tolerance)


def velocity(
    x: ArrayLike,
    D: ArrayLike,
    *,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    method: Method = "auto",
    tolerance: float = 1e-10,
) -> NDArray[np.floating]:
    r"""Return the velocity of every token of a cloud.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Interaction matrices; they need not be symmetric for "softmax" and other flows with general
        heads.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Sign s of the velocity: -1 or +1.
    method : {"auto", "exact", "fast"}, default "auto"
        How the sums over pairs are formed, as in `wflow.Compute`.
    tolerance : float, default 1e-10
        Relative error that fast sums keep below.

    Returns
    -------
    ndarray, shape (n, d)
        Tangential velocities, <x_i, v_i> = 0, per unit time. For flows other than "softmax" with
        entries inf, and a warning, beyond the range of floats.

    Raises
    ------
    InputError
        For wrong shapes or names, tokens off the sphere, asymmetric D where a gradient is meant, or
        norms of D beyond 1/eps (4.5e15; 8.4e6 in single precision), whose scores are rounded by one
        or more.

    Notes
    -----
    With the mobilities m_h, the gradients g_h of the heads and the effective mobility b [1]_,

    .. math::

        v = \frac{s}{H} \sum_h \frac{g_h}{m_h} \;(\text{softmax}), \quad
        v = s \bar g \;(\text{unnormalised}), \quad
        v = s \frac{\bar g}{b} \;(\text{effective}),

    .. math::

        g_h(x_i) = P_{x_i} D_h \frac{1}{n} \sum_j e^{\langle x_i, D_h x_j \rangle} x_j .

    In the theory: :ref:`flows <theory-flows>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 1, 13 and
       37.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> wflow.velocity(x, np.eye(2)[None], direction="ascent").round(4)
    array([[0.    , 0.2689],
           [0.2689, 0.    ]])
    """
    flow = as_flow(flow)
    evaluation = _evaluate_one(
        x, D, flow, direction, method, tolerance, symmetric=not flow.general_heads
    )
    found = evaluation.velocity[0]
    if not np.isfinite(found).all():
        warn_overflow("velocity", float(evaluation.terms["max_score"][0]))
        found[np.isnan(found)] = 0.0  # zero times a factor out of range: the token rests
    return found


def upper_gradient_sq(
    x: ArrayLike,
    D: ArrayLike,
    *,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    method: Method = "auto",
    tolerance: float = 1e-10,
) -> float:
    r"""Return the squared upper gradient G^2 of a cloud, in the metric of the flow.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it.
    method : {"auto", "exact", "fast"}, default "auto"
        How the sums over pairs are formed, as in `wflow.Compute`.
    tolerance : float, default 1e-10
        Relative error that fast sums keep below.

    Returns
    -------
    float
        G^2, energy per unit time; inf, with a warning, beyond the range of floats.

    Raises
    ------
    InputError
        For wrong shapes or names, tokens off the sphere, or asymmetric D.

    Notes
    -----
    With the velocities v of the flow and its weight b [1]_,

    .. math:: G^2 = \frac1n \sum_i b(x_i)\, |v_i|^2 .

    b is the effective mobility, and 1 for "unnormalised" and other flows in W₂.

    In the theory: :ref:`the upper gradient <theory-upper-gradient>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 113.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(n=5, d=3, seed=0), np.eye(3)[None]
    >>> b, v = wflow.effective_mobility(x, D), wflow.velocity(x, D)
    >>> bool(np.isclose(wflow.upper_gradient_sq(x, D), np.mean(b * np.sum(v**2, axis=1))))
    True
    """
    return _term("upper_gradient_sq", x, D, flow, direction, method, tolerance)


def dissipation(
    x: ArrayLike,
    D: ArrayLike,
    *,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    method: Method = "auto",
    tolerance: float = 1e-10,
) -> float:
    r"""Return the rate at which the motion of the tokens lowers the energy.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it.
    method : {"auto", "exact", "fast"}, default "auto"
        How the sums over pairs are formed, as in `wflow.Compute`.
    tolerance : float, default 1e-10
        Relative error that fast sums keep below.

    Returns
    -------
    float
        Energy per unit time, negative for "ascent"; inf, with a warning, beyond the range of
        floats.

    Raises
    ------
    InputError
        For wrong shapes or names, tokens off the sphere, or asymmetric D.

    Notes
    -----
    By the chain rule, with the mean gradient :math:`\bar g = (1/H) \sum_h g_h` of `wflow.velocity`,

    .. math:: -\frac{dE}{dt} = -\frac1n \sum_i \langle \bar g(x_i), v_i \rangle .

    In the theory: :ref:`the dissipation <theory-dissipation>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(n=5, d=3, seed=0), np.eye(3)[None]
    >>> bool(np.isclose(wflow.dissipation(x, D), wflow.upper_gradient_sq(x, D)))  # one head
    True
    """
    return _term("dissipation", x, D, flow, direction, method, tolerance)


def edi_defect(
    x: ArrayLike,
    D: ArrayLike,
    *,
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    method: Method = "auto",
    tolerance: float = 1e-10,
) -> float:
    r"""Return the difference between dissipation and squared upper gradient.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Symmetric interaction matrices.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it.
    method : {"auto", "exact", "fast"}, default "auto"
        How the sums over pairs are formed, as in `wflow.Compute`.
    tolerance : float, default 1e-10
        Relative error that fast sums keep below.

    Returns
    -------
    float
        Dissipation - G^2 for "descent", dissipation + G^2 for "ascent"; energy per unit time.

    Raises
    ------
    InputError
        For wrong shapes or names, tokens off the sphere, or asymmetric D.

    Notes
    -----
    With the sign s of the direction, it is formed without cancellation as

    .. math::

        \frac1n \sum_i b(x_i) \Bigl\langle v_i,\;
        s v_i - \bar g(x_i)\, \frac1H \sum_h \frac{1}{m_h(x_i)} \Bigr\rangle .

    For "softmax" s v = (1/H) sum_h g_h/m_h, so that it is b times the covariance over the heads of
    gradient and inverse mobility, along v. It is zero for one head, heads of equal mobility,
    "effective" and "unnormalised". The energy dissipation inequality of [1]_ holds with equality
    only where it vanishes.

    In the theory: :ref:`the defect <theory-defect>`, :ref:`the energy balance
    <theory-energy-balance>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Theorem 4.13.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = wflow.tokens.uniform(n=5, d=3, seed=0)
    >>> D = np.stack([np.eye(3), np.diag([1.0, 2.0, 3.0])])
    >>> defect = wflow.dissipation(x, D) - wflow.upper_gradient_sq(x, D)
    >>> bool(np.isclose(wflow.edi_defect(x, D), defect))
    True
    """
    return _term("edi_defect", x, D, flow, direction, method, tolerance)


def _log_mobility(x: ArrayLike, D: ArrayLike) -> NDArray[np.floating]:
    tokens, heads = _one_cloud(x, D, symmetric=False)
    sums = head_sums(tokens[None], heads[None], vectors=False)
    return sums.shift[0] + np.log(sums.m[0])


def _exp_in_range(log: NDArray[np.floating], beta: float, where: str) -> NDArray[np.floating]:
    with np.errstate(over="ignore"):
        value = np.exp(log)
    if np.any(np.isinf(value)):
        warn_overflow(where, beta)
    return value


def mobility(x: ArrayLike, D: ArrayLike) -> NDArray[np.floating]:
    r"""Return the mobility of each head at each token, the softmax normaliser divided by n.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Interaction matrices.

    Returns
    -------
    ndarray, shape (heads, n)
        Mobilities, dimensionless; inf, with a warning, beyond the range of floats.

    Raises
    ------
    InputError
        For wrong shapes, values that are not finite, or tokens off the sphere.

    Notes
    -----
    The mobility of head h [1]_ is

    .. math:: m_h(x_i) = \frac1n \sum_j e^{\langle x_i, D_h x_j \rangle} .

    In the theory: :ref:`mobility <theory-mobility>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 37 and the
       text before it.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> wflow.mobility(x, np.eye(2)[None]).round(4)  # (e + 1) / 2
    array([[1.8591, 1.8591]])
    """
    log = _log_mobility(x, D)
    return _exp_in_range(log, float(log.max()), "mobility")


def effective_mobility(x: ArrayLike, D: ArrayLike) -> NDArray[np.floating]:
    r"""Return the effective mobility at each token, the harmonic mean of the mobilities over heads.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens on the unit sphere.
    D : array_like, shape (heads, d, d)
        Interaction matrices.

    Returns
    -------
    ndarray, shape (n,)
        Effective mobilities, between the smallest and the largest m_h; inf, with a warning, beyond
        the range of floats.

    Raises
    ------
    InputError
        For wrong shapes, values that are not finite, or tokens off the sphere.

    Notes
    -----
    The effective mobility [1]_ is

    .. math:: b(x_i) = \Bigl[ \frac1H \sum_h \frac{1}{m_h(x_i)} \Bigr]^{-1} .

    In the theory: :ref:`effective mobility <theory-effective-mobility>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 37.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = wflow.tokens.uniform(n=5, d=3, seed=0)
    >>> D = np.stack([np.eye(3), np.diag([1.0, 2.0, 3.0])])
    >>> b, m = wflow.effective_mobility(x, D), wflow.mobility(x, D)
    >>> bool(np.allclose(b, 1 / np.mean(1 / m, axis=0)))
    True
    """
    log = _log_mobility(x, D)
    return _exp_in_range(log_harmonic_mean(log, axis=0), float(log.max()), "effective_mobility")
