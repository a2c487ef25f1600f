"""Energy, mobilities and velocities of one cloud of tokens (docs/theory/setting.md and energy.md).

Every function takes tokens x (n, d) of norm one and heads D (heads, d, d) and returns float64, or
float32 where x is float32. Cost: heads n^2 (3 d + 14) multiply-adds or so, and by series (d = 2, 3;
docs/theory/fast_sums.md) linear in n. Memory: the result.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import Direction, FlowName, Method, check_choice, reals
from wflow._core.errors import InputError
from wflow.attention.flows import Flow, as_flow, evaluate, log_harmonic_mean
from wflow.heads.laws import QKV
from wflow.heads.matrices import as_matrices, check_scores, is_symmetric
from wflow.kernels.evaluate import DIRECTIONS, Evaluation, Sums, head_sums


def as_unit_tokens(x: ArrayLike, name: str = "x") -> NDArray[np.floating]:
    """Tokens (n, d) as a floating array, checked to lie on the unit sphere.

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


def warn_overflow(where: str, beta: float) -> None:
    """Say that an energy term left the range of floats, and how large the scores are."""
    warnings.warn(
        f"{where} leaves the range of floats and is reported as inf: scores reach "
        f"beta = {beta:.6g} (exp overflows at 709, in single precision at 88); velocities of "
        "softmax attention stay right",
        RuntimeWarning,
        stacklevel=3,
    )


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
    """Interaction energy E = 1/(2 H n^2) sum_{h,i,j} exp(<x_i, D_h x_j>).

    Parameters
    ----------
    x : (n, d) unit tokens
    D : (heads, d, d) symmetric
    method, tolerance : how the sums are formed, as in `wflow.solve`

    Returns
    -------
    float; inf, with a warning, beyond the range of doubles

    Raises
    ------
    InputError
        For wrong shapes, tokens off the sphere, asymmetric D, or a method that does not exist.

    Source: [MHT] eq. 4 and 21.
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
    """Velocity of every token: s (1/H) sum_h g_h/m_h, s gbar or s gbar/b, by `flow`.

    Parameters
    ----------
    x : (n, d) unit tokens
    D : (heads, d, d); need not be symmetric for `softmax` and other flows with general heads
    flow : "softmax", "unnormalised", "effective", or a `wflow.Flow`
    direction : "descent" (s = -1) or "ascent" (s = +1)
    method, tolerance : how the sums are formed, as in `wflow.solve`

    Returns
    -------
    (n, d), tangential: <x_i, v_i> = 0; per unit time; for flows other than `softmax` with entries
    inf, and a warning, beyond the range of floats

    Raises
    ------
    InputError
        For wrong shapes or names, tokens off the sphere, asymmetric D where a gradient is meant, or
        norms of D beyond 1/eps (4.5e15; 8.4e6 in single precision), whose scores are rounded by one
        or more.

    Source: [MHT] eq. 1 and 13; docs/theory/setting.md.
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
    """Squared upper gradient G^2 = (1/n) sum_i b(x_i) |v_i|^2, b of the metric of the flow.

    b is the effective mobility, and 1 for `unnormalised` and other flows in W₂.

    Parameters and errors as for `velocity`, with D symmetric; inf, with a warning, beyond the range
    of floats. Source: [MHT] eq. 113.
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
    """Rate at which the tokens' motion lowers the energy: -(1/n) sum_i <gbar(x_i), v_i>.

    Parameters and errors as for `velocity`, with D symmetric. Negative for `ascent`; inf, with a
    warning, beyond the range of floats.
    Source: chain rule; docs/theory/energy.md.
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
    """dissipation - G^2 (ascent: +), as (1/n) sum_i b <v_i, s v_i - gbar (1/H) sum_h 1/m_h>.

    For `softmax`, s v = (1/H) sum_h g_h/m_h, so that it is b times the covariance over the heads of
    gradient and inverse mobility, along v. Zero for one head, heads of equal mobility, `effective`
    and `unnormalised`. Parameters and errors as for `velocity`, with D symmetric.
    Source: docs/theory/energy.md.
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
    """Mobility of each head at each token: m_h(x_i) = (1/n) sum_j exp(<x_i, D_h x_j>).

    Parameters
    ----------
    x : (n, d) unit tokens; D : (heads, d, d)

    Returns
    -------
    (heads, n); inf, with a warning, beyond the range of floats

    Raises
    ------
    InputError
        For wrong shapes, values that are not finite, or tokens off the sphere.

    Source: [MHT] eq. 37 and the text before it.
    """
    log = _log_mobility(x, D)
    return _exp_in_range(log, float(log.max()), "mobility")


def effective_mobility(x: ArrayLike, D: ArrayLike) -> NDArray[np.floating]:
    """Effective mobility b(x_i) = [(1/H) sum_h 1/m_h(x_i)]^{-1}, the harmonic mean over heads.

    Parameters
    ----------
    x : (n, d) unit tokens; D : (heads, d, d)

    Returns
    -------
    (n,); between the smallest and the largest m_h

    Raises
    ------
    InputError
        For wrong shapes, values that are not finite, or tokens off the sphere.

    Source: [MHT] eq. 37.
    """
    log = _log_mobility(x, D)
    return _exp_in_range(log_harmonic_mean(log, axis=0), float(log.max()), "effective_mobility")
