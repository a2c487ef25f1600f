"""The plain loop against NumPy, and the other kernels against the plain loop."""

import numpy as np
import pytest
from twin import unit

from wflow.kernels.evaluate import head_sums
from wflow.kernels.pairs.plain import plain_sums


def test_the_plain_sums_are_their_formulas() -> None:
    rng = np.random.default_rng(0)
    x, y, w = unit(rng, 7, 3), rng.normal(size=(11, 3)), rng.normal(size=11)
    D = rng.normal(size=(2, 3, 3))
    shift, m, S, q = plain_sums(x, D, y, w)
    U = w * np.exp(np.einsum("ia,hab,jb->hij", x, D, y))
    grow = np.exp(shift)
    np.testing.assert_allclose(grow * m, U.sum(-1), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(grow[..., None] * S, U @ y, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(grow * q, (U * (1 + (x @ y.T) ** 2)).sum(-1), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("size", [3.0, 500.0])
@pytest.mark.parametrize("d", [2, 3, 8, 12])
def test_the_sums_of_heads_equal_the_plain_ones(d: int, size: float) -> None:
    rng = np.random.default_rng(d)
    x, y, w = unit(rng, 37, d), unit(rng, 50, d), rng.uniform(0.5, 2.0, 50)
    D = rng.normal(size=(3, d, d))
    D *= size / np.linalg.norm(D, 2, axis=(1, 2), keepdims=True)
    shift, m, S, _ = plain_sums(x, D, y, w)
    found = head_sums(x[None], D[None], sources=y[None], weights=w[None])
    grow = np.exp(found.shift[0] - shift)
    tolerance = 1e-13 * (1 + size)
    np.testing.assert_allclose(grow * found.m[0], m, rtol=tolerance)
    assert np.abs(grow[..., None] * found.S[0] - S).max() <= tolerance * m.max()
