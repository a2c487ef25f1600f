"""The adjoint of the velocities by the fast sums: cotangents of tokens and heads for many tokens.

The sums of `pairs.adjoint` are sums over weighted sources. With one call of `fast_head_sums` for
each row of weights, 1 and 1 + x_jl give m_hi, M_hi and C_hi, and over the targets of the weights,

    sum_k U_hki g_hk x_k,   g_hk = max(|w_hk|, |a_hk|)/m_hk,

with g_hk + w_hkl/m_hk and g_hk + a_hk/m_hk in place of g_hk, give W_hi and T_hi as differences. No
weight is negative, so that no sum cancels: errors are a small share of these sums, though not of R,
a covariance that vanishes where the attention sees one cluster.
Cost: 2 d + 3 sums of all heads, of which d + 2 have other weights for each head.
"""

import numpy as np
from numpy.typing import NDArray

from wflow.kernels.harmonic.fast import (
    EXACT,
    FEWEST_TOKENS,
    as_doubles,
    plain,
    plan,
    predicted_cost,
)
from wflow.kernels.harmonic.series import LARGEST_DEGREE
from wflow.kernels.harmonic.weighted import fast_head_sums
from wflow.kernels.pairs.adjoint import effective_factors
from wflow.kernels.pairs.headsums import EFFECTIVE, SOFTMAX, UNNORMALISED

_ADJOINT = 3.0  # velocities that the exact adjoint costs
_BETWEEN = 2.0  # measured time over that of the sums, for what is done between them
# Scores up to which sums, their inverses and the factors stay in the range of double precision.
_LARGEST_SCORE = {SOFTMAX: 300.0, UNNORMALISED: 300.0, EFFECTIVE: 200.0}


def choose_adjoint(
    x: NDArray, D: NDArray, flow: int, method: str, tolerance: float
) -> NDArray[np.bool_]:
    """Return for every path whether its adjoint takes the fast sums; x (paths, n, d).

    Heads of very large norms, whose series would be sums over pairs, never do.
    """
    paths, n, d = x.shape
    result = np.zeros(paths, bool)
    if d not in LARGEST_DEGREE or (method == "auto" and n < FEWEST_TOKENS):
        return result
    D = np.broadcast_to(D, (paths, *D.shape[1:]))
    result[:] = np.sqrt(np.einsum("phkl,phkl->ph", D, D)).max(axis=1) < _LARGEST_SCORE[flow]
    if method == "fast":
        return result
    exact = _ADJOINT * EXACT[d] * D.shape[1] * n * n
    for p in np.flatnonzero(result):
        result[p] = exact > _predicted(x[p], D[p], tolerance)
    return result


def _predicted(x: NDArray, D: NDArray, tolerance: float) -> float:
    """Return the predicted time of one path, in ns of one core."""
    tokens, matrices = as_doubles(x), plain(D)
    chosen = plan(tokens, matrices, tolerance)
    if not chosen.finite:
        return np.inf
    alone, each = (
        predicted_cost(tokens, matrices, chosen, tolerance, sets=sets) for sets in (1, len(D))
    )
    d = x.shape[1]
    return _BETWEEN * ((d + 1) * alone + (d + 2) * each)


def fast_adjoint(
    x: NDArray, score: NDArray, value: NDArray, cotangents: NDArray, flow: int, sign: float,
    tolerance: float,
) -> tuple[NDArray, NDArray, NDArray, NDArray]:  # fmt: skip
    """Compute what `pairs.adjoint.fused_adjoint` does, with sums to this relative tolerance.

    The fourth result is the largest estimated error of the sums of each path, relative to them.
    """
    found = [
        _one_path(*of_path, flow, sign, tolerance)
        for of_path in zip(x, score, value, cotangents, strict=True)
    ]
    of_x, of_score, of_value, error = (np.array(of) for of in zip(*found, strict=True))
    return of_x, of_score, of_value, error


def _one_path(x, D, V, lam, flow, sign, tolerance):
    """Return the cotangents of the tokens, D and V of one path, and the error of the sums."""
    (n, d), heads = x.shape, len(D)
    errors = []

    def sums(matrices, weights):
        """Return sum_j w_hj exp(<x_i, D_h x_j>), (heads, n), and the same of w_hj x_j."""
        shift, m, S, error = fast_head_sums(
            x[None], matrices[None], x[None], weights[None], True, tolerance
        )
        errors.append(error[0])
        size = np.exp(shift[0])
        return size * m[0], size[..., None] * S[0]

    along = np.einsum("ik,ik->i", x, lam)[:, None]
    mu = lam - along * x
    m, S = sums(D, np.ones((1, n)))
    inverse = 1 / m
    M = S * inverse[..., None]
    C = np.stack([(sums(D, 1 + x[None, :, k])[1] - S) * inverse[..., None] for k in range(d)], -2)
    turned = np.einsum("hkl,ik->hil", V, mu)  # V^T mu
    inner = np.einsum("hil,hil->hi", turned, M)
    f, a = np.full_like(m, sign / heads), np.zeros_like(m)
    if flow == SOFTMAX:
        a = -f * inner
    elif flow == EFFECTIVE:
        f, a = effective_factors(np.log(m), inner, sign)
    else:
        f *= m / n
    w = f[..., None] * turned
    R = np.einsum("hikl,hil->hik", C, w) + a[..., None] * M

    back = D.swapaxes(1, 2)
    shares = np.concatenate([w, a[..., None]], -1) * inverse[..., None]
    g = np.abs(shares).max(axis=-1)
    base, of_base = sums(back, g)
    features = np.column_stack([x, np.ones(n)])
    T, W = np.zeros_like(w), np.empty_like(shares)
    for k in range(d + 1):
        of_one, of_tokens = sums(back, g + shares[..., k])
        T += features[:, k, None] * (of_tokens - of_base)
        W[..., k] = of_one - base

    moments = f[..., None] * M
    attention = np.einsum("hkl,hil->ik", V, moments)
    radial = np.einsum("ik,ik->i", x, attention)[:, None]
    of_x = np.einsum("hkl,hil->ik", D, R) + np.einsum("hlk,hil->ik", D, T)
    of_x += W[..., :d].sum(axis=0)
    of_x -= along * attention + radial * lam
    of_D, of_V = (np.einsum("ik,hil->hkl", *of) for of in ((x, R), (mu, moments)))
    return of_x, of_D, of_V, max(errors)
