"""Energy, mobilities and velocities of one cloud of tokens (docs/mathematics.md sections 1 and 4).

Every function takes tokens x (n, d) of norm one and heads D (heads, d, d) and returns float64, or
float32 where x is float32. Cost: heads n^2 (3 d + 14) multiply-adds or so; memory: the result.
"""

import warnings
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow import _fused, _headsums
from wflow._matrices import as_matrices, is_symmetric
from wflow.errors import InputError
from wflow.heads import QKV

FLOWS = {
    "softmax": _headsums.SOFTMAX,
    "unnormalised": _headsums.UNNORMALISED,
    "effective": _headsums.EFFECTIVE,
}
# Scores beyond which exp leaves the range of the type.
RANGE = {np.float64: 700.0, np.float32: 85.0}
DIRECTIONS = {"descent": -1.0, "ascent": 1.0}


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise InputError unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} is {value!r}: expected one of {', '.join(choices)}")


class Evaluation(NamedTuple):
    """Velocities and ledger terms of several paths at one time.

    velocity : (paths, n, d)
    terms : name of docs/mathematics.md section 4 -> (paths,), float64
    """

    velocity: NDArray[np.floating]
    terms: dict[str, NDArray[np.float64]]


def evaluate(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    *,
    values: NDArray[np.floating] | None = None,
    drift: NDArray[np.floating] | None = None,
    noise: NDArray[np.floating] | None = None,
    sigma2: NDArray[np.floating] | None = None,
    flow: str = "softmax",
    direction: str = "descent",
    causal: bool = False,
    symmetric: bool = False,
) -> Evaluation:
    """Velocities and all ledger terms in one pass; x (paths, n, d), D (paths, heads, d, d).

    The shapes are taken as they are: this is the solver's inner call. `symmetric` promises
    D_h = D_h^T, which halves the work.
    """
    paths, heads = D.shape[:2]
    kind = x.dtype
    none = np.empty((paths, 0, *D.shape[2:]), kind)

    def matrices(array: NDArray[np.floating] | None) -> NDArray[np.floating]:
        return none if array is None else _dense(array, D.shape, kind)

    score = matrices(D)
    variance = (
        np.empty((paths, 0), kind) if sigma2 is None else _dense(sigma2, (paths, heads), kind)
    )
    velocity, table = _fused.fused_sums(
        _dense(x, x.shape, kind),
        score,
        score if values is None else matrices(values),
        matrices(drift),
        matrices(noise),
        variance,
        FLOWS[flow],
        1.0 if values is not None else DIRECTIONS[direction],
        causal,
        symmetric and values is None and not causal,
    )
    terms = dict(zip(_headsums.TERMS, table.T, strict=True))
    mark_overflow(terms, _headsums.TERMS[:7], kind)
    return Evaluation(velocity, terms)


def mark_overflow(
    terms: dict[str, NDArray[np.float64]], names: Collection[str], kind: np.dtype
) -> None:
    """Turn NaN into inf where scores leave the range of exp in this precision.

    A sum can come out there as inf - inf: it is out of range too.
    """
    beyond = terms["max_score"] > RANGE[kind.type]
    if beyond.any():
        for name in names:
            terms[name] = np.where(beyond & np.isnan(terms[name]), np.inf, terms[name])


def _dense(array: NDArray, shape: tuple[int, ...], kind: np.dtype) -> NDArray:
    """`array` broadcast to `shape`, contiguous and writable: one type for the compiled code."""
    if array.shape != shape or not array.flags.writeable:
        array = np.array(np.broadcast_to(array, shape), kind)
    return np.ascontiguousarray(array, kind)


def as_unit_tokens(x: ArrayLike) -> NDArray[np.floating]:
    """Tokens (n, d) as a floating array, checked to lie on the unit sphere.

    Raises
    ------
    InputError
        For a wrong shape, d < 2, values that are not finite, or norms away from one.
    """
    try:
        tokens = np.asarray(x)
        if np.iscomplexobj(tokens):
            raise TypeError("they are complex")
        if tokens.dtype != np.float32:
            tokens = np.asarray(tokens, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"x must hold real numbers, one row per token: {error}") from None
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise InputError(f"x has shape {tokens.shape}, expected (n, d) with n >= 1 and d >= 2")
    finite = np.isfinite(tokens).all(axis=1)
    if not finite.all():
        raise InputError(f"token {int(np.argmin(finite))} is not finite; remove or repair it")
    away = np.abs(np.sqrt(np.einsum("ik,ik->i", tokens, tokens)) - 1)
    worst = int(np.argmax(away))
    if away[worst] > (1e-5 if tokens.dtype == np.float32 else 1e-9):
        raise InputError(
            f"token {worst} is {away[worst]:.3g} away from the unit sphere; normalise with "
            "wflow.sphere.as_tokens(x)"
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
    return tokens, heads.astype(tokens.dtype)


def _evaluate_one(
    x: ArrayLike, D: ArrayLike, flow: str, direction: str, *, symmetric: bool = True
) -> Evaluation:
    check_choice("flow", flow, FLOWS)
    check_choice("direction", direction, DIRECTIONS)
    tokens, heads = _one_cloud(x, D, symmetric=symmetric)
    return evaluate(
        tokens[None], heads[None], flow=flow, direction=direction, symmetric=is_symmetric(heads)
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


def _term(name: str, x: ArrayLike, D: ArrayLike, flow: str, direction: str) -> float:
    terms = _evaluate_one(x, D, flow, direction).terms
    value = float(terms[name][0])
    if not np.isfinite(value):
        warn_overflow(name, float(terms["max_score"][0]))
    return value


def energy(x: ArrayLike, D: ArrayLike) -> float:
    """Interaction energy E = 1/(2 H n^2) sum_{h,i,j} exp(<x_i, D_h x_j>).

    Parameters
    ----------
    x : (n, d) unit tokens
    D : (heads, d, d) symmetric

    Returns
    -------
    float; inf, with a warning, beyond the range of doubles

    Raises
    ------
    InputError
        For wrong shapes, tokens off the sphere, or asymmetric D.

    Source: [MHT] eq. 4 and 21.
    """
    return _term("energy", x, D, "softmax", "descent")


def velocity(
    x: ArrayLike, D: ArrayLike, *, flow: str = "softmax", direction: str = "descent"
) -> NDArray[np.floating]:
    """Velocity of every token: s (1/H) sum_h g_h/m_h, s gbar or s gbar/b, by `flow`.

    Parameters
    ----------
    x : (n, d) unit tokens
    D : (heads, d, d); need not be symmetric for `softmax`
    flow : "softmax", "unnormalised" or "effective"
    direction : "descent" (s = -1) or "ascent" (s = +1)

    Returns
    -------
    (n, d), tangential: <x_i, v_i> = 0; per unit time

    Raises
    ------
    InputError
        For wrong shapes or names, tokens off the sphere, or asymmetric D where a gradient is meant.

    Source: [MHT] eq. 1 and 13; docs/mathematics.md section 1.
    """
    return _evaluate_one(x, D, flow, direction, symmetric=flow != "softmax").velocity[0]


def upper_gradient_sq(
    x: ArrayLike, D: ArrayLike, *, flow: str = "softmax", direction: str = "descent"
) -> float:
    """Squared upper gradient G^2 = (1/n) sum_i b(x_i) |v_i|^2 (b = 1 for `unnormalised`).

    Parameters and errors as for `velocity`, with D symmetric; inf, with a warning, beyond the range
    of floats. Source: [MHT] eq. 113.
    """
    return _term("upper_gradient_sq", x, D, flow, direction)


def dissipation(
    x: ArrayLike, D: ArrayLike, *, flow: str = "softmax", direction: str = "descent"
) -> float:
    """Rate at which the tokens' motion lowers the energy: -(1/n) sum_i <gbar(x_i), v_i>.

    Parameters and errors as for `velocity`, with D symmetric. Negative for `ascent`; inf, with a
    warning, beyond the range of floats.
    Source: chain rule; docs/mathematics.md section 4.
    """
    return _term("dissipation", x, D, flow, direction)


def edi_defect(
    x: ArrayLike, D: ArrayLike, *, flow: str = "softmax", direction: str = "descent"
) -> float:
    """dissipation - G^2 (ascent: +), as (1/n) sum_i b <v_i, s v_i - gbar (1/H) sum_h 1/m_h>.

    For `softmax`, s v = (1/H) sum_h g_h/m_h, so that it is b times the covariance over the heads of
    gradient and inverse mobility, along v. Zero for one head, heads of equal mobility, `effective`
    and `unnormalised`. Parameters and errors as for `velocity`, with D symmetric.
    Source: docs/mathematics.md section 4.
    """
    return _term("edi_defect", x, D, flow, direction)


def _log_mobility(x: ArrayLike, D: ArrayLike) -> NDArray[np.floating]:
    tokens, heads = _one_cloud(x, D, symmetric=False)
    shift, total = _fused.head_mobilities(tokens, heads)
    return shift + np.log(total / tokens.dtype.type(len(tokens)))


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
    low = log.min(axis=0)
    harmonic = low - np.log(np.mean(np.exp(low - log), axis=0))
    return _exp_in_range(harmonic, float(log.max()), "effective_mobility")
