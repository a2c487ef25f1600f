"""Inputs of a flow: tokens and heads, and sums over the pairs of tokens."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import read_only
from wflow.kernels.evaluate import EXACT, Sums, head_sums
from wflow.sphere.geometry import project_unchecked

Array = NDArray[np.floating]
Doubles = NDArray[np.float64]
_Float = TypeVar("_Float", bound=np.floating)


class Cloud:
    r"""Tokens and heads of several paths at one time, and sums over the pairs of tokens.

    What a flow is handed. Its arguments are taken as they are, without checks.

    Parameters
    ----------
    x : ndarray, shape (paths, n, d)
        Tokens on the unit sphere; read-only as an attribute.
    D : ndarray, shape (paths, heads, d, d)
        Interaction matrices; read-only as an attribute.
    values : ndarray, shape (paths, heads, d, d), optional
        Value matrices V_h. Those of tied heads are D.
    causal : bool, default False
        Whether token i sees tokens j <= i only.
    sums : wflow.kernels.evaluate.Sums, default EXACT
        How the sums over pairs are formed.
    masses : ndarray, shape (paths, n), optional
        Masses of the tokens, as those of the cells of a mesh. None means 1/n.

    Attributes
    ----------
    error : ndarray, shape (paths,)
        Largest relative error of the sums so far, zero where they are exact.

    Notes
    -----
    Every sum that it forms is one of the mobilities and of

    .. math:: S_h(x) = \frac1n \sum_j e^{\langle x, D_h x_j \rangle} x_j ,

    where the masses take the place of 1/n if they are given.

    In the theory: :ref:`the setting <theory-setting>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(n=5, d=3, seed=0), np.eye(3)[None]
    >>> cloud = wflow.flows.Cloud(x[None], D[None])
    >>> cloud.log_mobility().shape, cloud.attention().shape
    ((1, 1, 5), (1, 5, 3))
    >>> bool(np.allclose(np.exp(cloud.log_mobility()[0]), wflow.mobility(x, D)))
    True
    """

    def __init__(
        self,
        x: Array,
        D: Array,
        *,
        values: Array | None = None,
        causal: bool = False,
        sums: Sums = EXACT,
        masses: Array | None = None,
    ) -> None:
        self._masses = masses
        self.x, self.D = read_only(x), read_only(D)
        self.values = self.D if values is None else read_only(np.broadcast_to(values, D.shape))
        self.causal, self._sums = causal, sums
        self._writable = x, D  # one type for compiled code
        self.error = np.zeros(len(x))
        self._plain: tuple[Doubles, Array] | None = None

    def log_mobility(self, log_weights: Array | None = None) -> Doubles:
        r"""Return the logarithms of the mobilities, with weights of the tokens if they are given.

        Parameters
        ----------
        log_weights : ndarray, of a shape that broadcasts to (paths, heads, n), optional
            Logarithms f of the weights. None means zero.

        Returns
        -------
        ndarray of float64, shape (paths, heads, n)
            Values log m_h(x_i), in range however large the scores are.

        Notes
        -----
        The weighted mobility is

        .. math:: m_h(x_i) = \frac1n \sum_j e^{f_{hj}} e^{\langle x_i, D_h x_j \rangle} .
        """
        return self._averages(log_weights, vectors=log_weights is None)[0]

    def log_effective_mobility(self) -> Doubles:
        """Return the logarithms of b, the harmonic mean of the mobilities over the heads.

        Returns
        -------
        ndarray of float64, shape (paths, n)
            Values log b(x_i).
        """
        return log_harmonic_mean(self.log_mobility(), axis=1)

    def attention(
        self, log_factors: Array | None = None, log_weights: Array | None = None
    ) -> Array:
        r"""Return a sum over the heads of their softmax averages, in the tangent spaces.

        Parameters
        ----------
        log_factors : ndarray, of a shape that broadcasts to (paths, heads, n), optional
            Logarithms l of the factors of the heads. None means zero.
        log_weights : ndarray, of a shape that broadcasts to (paths, heads, n), optional
            Logarithms f of the weights of the tokens. None means zero.

        Returns
        -------
        ndarray, shape (paths, n, d)
            Tangential vectors; entries inf where e^l leaves the range of floats.

        Notes
        -----
        The sum is

        .. math::

            P_{x_i} \frac1H \sum_h e^{l_{hi}} V_h \sum_j p_{hij} x_j, \qquad
            p_{hij} = \frac{e^{f_{hj}} e^{\langle x_i, D_h x_j \rangle}}
                           {\sum_k e^{f_{hk}} e^{\langle x_i, D_h x_k \rangle}} .

        Without factors and weights this is multi-head attention; the factors l_h = log m_h give the
        mean gradient.
        """
        scale, vectors = self._combined(log_factors, log_weights)
        with np.errstate(over="ignore"):
            return scaled(np.exp(scale)[..., None], vectors).astype(self.x.dtype)

    def mean_gradient(self) -> tuple[Doubles, Doubles]:
        """Return the mean gradient over the heads, as a scale and vectors that stay in range.

        Returns
        -------
        scale : ndarray of float64, shape (paths, n)
            Logarithms of the scales.
        vectors : ndarray of float64, shape (paths, n, d)
            Tangential vectors: gbar(x_i) = e^scale vector.
        """
        return self._combined(self.log_mobility(), None)

    def _combined(
        self, log_factors: Array | None, log_weights: Array | None
    ) -> tuple[Doubles, Doubles]:
        """Return `attention` relative to the scale e^l of the largest factor."""
        log, averages = self._averages(log_weights)
        factors = np.broadcast_to(0.0 if log_factors is None else log_factors, log.shape)
        scale = np.asarray(factors.max(axis=1), np.float64)
        vectors = np.einsum("phab,phib->phia", self.values, averages)
        share = np.exp(factors - scale[:, None])
        mean = np.einsum("phi,phia->pia", share, vectors) / log.shape[1]
        return scale, np.asarray(project_unchecked(self.x.astype(np.float64), mean), np.float64)

    def _averages(self, log_weights: Array | None, vectors: bool = True) -> tuple[Doubles, Array]:
        """Return log m_h (paths, heads, n), and with vectors the averages (paths, heads, n, d)."""
        if log_weights is None:
            if self._plain is None:
                log, averages = self._pair_sums(None, True)
                self._plain = read_only(log), read_only(averages)
            return self._plain
        shape = (*self.D.shape[:2], self.x.shape[1])
        f = np.broadcast_to(np.asarray(log_weights, np.float64), shape)
        top = f.max(axis=2, keepdims=True)
        weights = (np.exp(f - top) / shape[2]).astype(self.x.dtype)
        log, averages = self._pair_sums(weights, vectors)
        return log + top, averages

    def _pair_sums(self, weights: Array | None, vectors: bool) -> tuple[Doubles, Array]:
        x, D = self._writable
        if self._masses is not None:
            n = x.shape[1]
            weights = self._masses if weights is None else weights * (n * self._masses)[:, None]
        found = head_sums(
            x, D, weights=weights, causal=self.causal, vectors=vectors, sums=self._sums
        )
        self.error = np.maximum(self.error, found.error)
        log = found.shift.astype(np.float64) + np.log(found.m.astype(np.float64))
        return log, found.S / found.m[..., None] if vectors else found.S


def log_harmonic_mean(log: NDArray[_Float], axis: int) -> NDArray[_Float]:
    """Return the log of the harmonic mean of e^log along an axis, in range for any log."""
    low = log.min(axis=axis, keepdims=True)
    means = np.log(np.mean(np.exp(low - log), axis=axis, keepdims=True))
    return np.asarray((low - means).squeeze(axis), log.dtype)


def scaled(factor: Doubles, values: Doubles) -> Doubles:
    """Return factor values, where 0 inf is 0: a token at rest stays there at any scale."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(values == 0, 0.0, factor * values)
