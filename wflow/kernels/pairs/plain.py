"""The sums over pairs as one plain loop: the reference for all other kernels.

For tokens x_i, sources y_j with weights w_j, and any matrices D_h,

    m_hi = sum_j w_j U_hij,   S_hi = sum_j w_j U_hij y_j,
    q_hi = sum_j w_j U_hij (1 + <x_i, y_j>^2),

U_hij = exp(<x_i, D_h y_j> - shift_hi), where the shift is the largest score of the token: scores of
any size are in range. Cost of a pair: an exponential of the C library and 4 d + 2 multiply-adds,
all of it one number at a time.
"""

import math

import numpy as np

from wflow._core.compiler.functions import kernel


@kernel
def plain_sums(x, D, y, weight):
    """Compute the sums of every head at every token, in double precision.

    Parameters
    ----------
    x : (n, d) tokens; D : (heads, d, d); y : (sources, d); weight : (sources,)

    Returns
    -------
    shift, m : (heads, n); S : (heads, n, d); q : (heads, n)
    """
    (n, d), heads = x.shape, len(D)
    shift = np.full((heads, n), -np.inf)
    m, q = np.zeros((heads, n)), np.zeros((heads, n))
    S = np.zeros((heads, n, d))
    z = np.empty(d)  # D_h^T x_i
    for h in range(heads):
        for i in range(n):
            for k in range(d):
                z[k] = 0.0
                for row in range(d):
                    z[k] += D[h, row, k] * x[i, row]
            for j in range(len(y)):
                score = 0.0
                for k in range(d):
                    score += z[k] * y[j, k]
                shift[h, i] = max(shift[h, i], score)
            for j in range(len(y)):
                score = 0.0
                product = 0.0
                for k in range(d):
                    score += z[k] * y[j, k]
                    product += x[i, k] * y[j, k]
                u = weight[j] * math.exp(score - shift[h, i])
                m[h, i] += u
                q[h, i] += u * (1.0 + product * product)
                for k in range(d):
                    S[h, i, k] += u * y[j, k]
    return shift, m, S, q
