"""Entropy of a token cloud that a von Mises-Fisher kernel has smoothed."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_FINE = 600  # nodes in the height, from which the rules of few nodes are made
_BYTES = 2**25


def smoothed_entropy(
    x: FloatArray, concentration: float, nodes: int, directions: int, seed: int
) -> float:
    """-int f log f over the uniform probability law, f = (1/n) sum_j C exp(kappa <., x_j>).

    The integral is a mean over the tokens of integrals against their own kernel: Gauss quadrature
    in the height t = <y, x_i>, exact for polynomials of degree 2 nodes - 1, and pairs of opposite
    random directions around x_i (both directions there are for d = 2).
    """
    n, d = x.shape
    falls, weights, log_constant = height_rule(concentration, d, nodes)
    along, aside = 1 - falls, np.sqrt(falls * (2 - falls))
    rng = np.random.Generator(np.random.Philox(seed))
    turns = 1 if d == 2 else directions
    block = max(1, _BYTES // (8 * n * nodes * 2))
    total = 0.0
    for _ in range(turns):
        across = _directions(x, rng)
        for start in range(0, n, block):
            part = slice(start, start + block)
            for sign in (1.0, -1.0):
                y = along[:, None, None] * x[part] + (
                    sign * aside[:, None, None] * across[part]
                )  # (nodes, block, d)
                score = concentration * (y.reshape(-1, d) @ x.T - 1)  # <= 0: in range
                density = np.exp(score).mean(axis=1).reshape(len(falls), -1)
                total += float(weights @ np.log(density).sum(axis=1))
    return -(total / (2 * turns * n) + log_constant)


def _directions(x: FloatArray, rng: np.random.Generator) -> FloatArray:
    """A unit tangent vector at every token, uniformly distributed."""
    if x.shape[1] == 2:
        return np.stack([-x[:, 1], x[:, 0]], axis=1)
    z = rng.standard_normal(x.shape)
    z -= np.einsum("ik,ik->i", x, z)[:, None] * x
    return z / np.linalg.norm(z, axis=1)[:, None]


@lru_cache(maxsize=32)
def height_rule(kappa: float, d: int, nodes: int) -> tuple[FloatArray, FloatArray, float]:
    """Gauss rule for the fall u = 1 - t of the height of a von Mises-Fisher law around its centre.

    The law e^{-kappa u} sin^{d-2}(a) da, u = 1 - cos a, is discretised by a fine rule in log a,
    which follows it wherever it sits; Lanczos on those nodes gives the recurrence, and the
    eigenvectors of its Jacobi matrix the rule of few nodes (Golub and Welsch).

    Returns
    -------
    nodes u, their weights (of sum one), and log C: the density against the uniform probability law
    is C e^{-kappa u}
    """
    from scipy.special import gammaln, roots_legendre

    s, w = roots_legendre(_FINE)
    low, high = math.log(1e-16), math.log(math.pi)
    angle = np.exp(low + (high - low) * (s + 1) / 2)
    fall = 2 * np.sin(angle / 2) ** 2
    log_weight = np.log(w * (high - low) / 2 * angle) - kappa * fall
    log_weight += (d - 2) * np.log(np.sin(angle))
    peak = float(log_weight.max())
    weight = np.exp(log_weight - peak)
    area = float(gammaln(0.5) + gammaln((d - 1) / 2) - gammaln(d / 2))  # over all heights
    log_constant = area - peak - math.log(weight.sum())
    basis = [np.sqrt(weight / weight.sum())]
    diagonal: list[float] = []
    off: list[float] = []
    for k in range(nodes):
        v = fall * basis[k]
        diagonal.append(float(basis[k] @ v))
        for known in basis * 2:  # twice: orthogonal to rounding
            v = v - (known @ v) * known
        norm = float(np.linalg.norm(v))
        if k + 1 == nodes or norm < 1e-13 * diagonal[0]:
            break
        off.append(norm)
        basis.append(v / norm)
    matrix = np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)
    falls, vectors = np.linalg.eigh(matrix)
    return np.clip(falls, 0.0, 2.0), vectors[0] ** 2, log_constant
