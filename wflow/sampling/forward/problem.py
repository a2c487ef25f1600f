"""A Bayesian inverse problem: a forward model, Gaussian noise, a Laplace prior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import positive, reals, shown, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow.sampling.forward.model import ForwardModel

FloatArray = NDArray[np.float64]


class Pairs(NamedTuple):
    """Draws from the joint law of parameters and data.

    Parameters
    ----------
    x : ndarray, shape (n, dim)
        Parameters, from the prior.
    y : ndarray, shape (n, outputs)
        Data of each.
    clean : ndarray, shape (n, outputs)
        Data without noise, F(x).

    Examples
    --------
    >>> from wflow.sampling import forward
    >>> problem = forward.InverseProblem(forward.Elliptic(8, 4), lam=2.0, noise=0.1)
    >>> problem.simulate(5).y.shape
    (5, 4)
    """

    x: FloatArray
    y: FloatArray
    clean: FloatArray


class Summary:
    r"""Linear summaries of data, uncorrelated and of unit variance under the prior.

    Parameters
    ----------
    mean : array_like, shape (outputs,)
        Mean of the data.
    matrix : array_like, shape (size, outputs)
        Rows that are applied to data minus the mean.

    Attributes
    ----------
    size : int
        Number of summaries.

    Raises
    ------
    InputError
        For arrays that do not fit together.

    Notes
    -----
    Made by `InverseProblem.summary`: principal components of the data in units of their noise [1]_.
    Components in which the noise hides what the prior allows carry no information, and are left
    out.

    References
    ----------
    .. [1] Spantini, Solonen, Cui, Martin, Tenorio and Marzouk, "Optimal low-rank approximations of
       Bayesian linear inverse problems", SIAM Journal on Scientific Computing 37 (2015).

    Examples
    --------
    >>> from wflow.sampling import forward
    >>> summary = forward.Summary([1.0, 1.0], [[0.5, 0.5]])
    >>> summary([[2.0, 2.0]])
    array([[1.]])
    """

    def __init__(self, mean: ArrayLike, matrix: ArrayLike) -> None:
        self.mean, self.matrix = reals(mean, "mean"), reals(matrix, "matrix")
        if self.matrix.ndim != 2 or self.mean.shape != self.matrix.shape[1:]:
            raise InputError(
                f"mean and matrix have shapes {self.mean.shape} and {self.matrix.shape}: expected "
                "(outputs,) and (size, outputs)"
            )

    @property
    def size(self) -> int:
        """Number of summaries."""
        return len(self.matrix)

    def __call__(self, y: ArrayLike) -> FloatArray:
        """Return the summaries of data.

        Parameters
        ----------
        y : array_like, shape (n, outputs)
            Data.

        Returns
        -------
        ndarray, shape (n, size)
            Summaries.

        Raises
        ------
        InputError
            For data of another shape, or not finite.
        """
        given = reals(y, "y")
        if given.ndim != 2 or given.shape[1:] != self.mean.shape:
            raise InputError(f"y has shape {given.shape}: expected (n, {len(self.mean)})")
        return (given - self.mean) @ self.matrix.T


class InverseProblem:
    r"""Posterior of the parameters of a forward model under Gaussian noise and a Laplace prior.

    Parameters
    ----------
    model : ForwardModel
        Forward model F.
    lam : float
        Rate lambda > 0 of the prior.
    noise : float or array_like, shape (outputs,)
        Standard deviation sigma > 0 of the noise, of all outputs or of each.

    Attributes
    ----------
    model : ForwardModel
        Forward model.
    lam : float
        Rate of the prior.
    noise : ndarray, shape (outputs,)
        Standard deviations of the noise.

    Raises
    ------
    InputError
        For anything but a forward model, and numbers out of range.

    Notes
    -----
    .. math::
        p(x \mid y) \propto \exp\Bigl(-\tfrac12 \bigl|\sigma^{-1}(y - F(x))\bigr|^2
        - \lambda |x|_1\Bigr)

    as in [1]_, section 4.2.

    References
    ----------
    .. [1] Han, Osher and Li, "Sparse Transformer Architectures via Regularized Wasserstein
       Proximal Operator with L1 Prior".

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import forward
    >>> problem = forward.InverseProblem(forward.Elliptic(8, 4), lam=2.0, noise=0.1)
    >>> pairs = problem.simulate(3, seed=1)
    >>> value, slope = problem.log_posterior(pairs.x, pairs.y)
    >>> value.shape, slope.shape
    ((3,), (3, 8))
    """

    def __init__(self, model: ForwardModel, *, lam: float, noise: ArrayLike) -> None:
        if not isinstance(model, ForwardModel):
            raise InputError(f"model is {shown(model)}: expected a forward.ForwardModel")
        model._sizes()
        self.model, self.lam = model, positive(lam, "lam")
        given = reals(noise, "noise")
        if given.shape not in ((), (model.outputs,)) or not np.all(given > 0):
            raise InputError(
                f"noise is {shown(noise)}: expected a number > 0, or one for each of the "
                f"{model.outputs} outputs"
            )
        self.noise = np.broadcast_to(given, (model.outputs,)).copy()

    def prior(self, n: int, seed: int = 0) -> FloatArray:
        """Draw parameters from the prior.

        Parameters
        ----------
        n : int
            Number of draws.
        seed : int, default 0
            Of the random numbers.

        Returns
        -------
        ndarray, shape (n, dim)
            Parameters.

        Raises
        ------
        InputError
            For numbers out of range.
        """
        n, dim = whole(n, "n"), self.model.dim
        check_memory(16.0 * n * dim, f"{n} draws of {dim} parameters", "take fewer")
        return np.random.default_rng([whole(seed, "seed", 0), 0]).laplace(
            scale=1 / self.lam, size=(n, dim)
        )

    def simulate(self, n: int, seed: int = 0) -> Pairs:
        """Draw parameters from the prior, and data of each.

        Parameters
        ----------
        n : int
            Number of pairs.
        seed : int, default 0
            Of the random numbers.

        Returns
        -------
        Pairs
            Parameters, data, and data without noise.

        Raises
        ------
        InputError
            For numbers out of range, and where the model has no finite output.
        """
        x = self.prior(n, seed)
        rng = np.random.default_rng([seed, 1])
        clean = self.model(x)
        return Pairs(x, clean + self.noise * rng.standard_normal(clean.shape), clean)

    def summary(self, n: int = 2000, *, most: int | None = None, seed: int = 0) -> Summary:
        r"""Return the principal components of the data that the noise does not hide.

        Parameters
        ----------
        n : int, default 2000
            Number of draws from the prior that they are found from.
        most : int, optional
            Largest number of components.
        seed : int, default 0
            Of the random numbers.

        Returns
        -------
        Summary
            Components of :math:`\sigma^{-1} F(x)` whose standard deviation is above 1/2, or the
            first one, each divided by the deviation of the data in it.

        Raises
        ------
        InputError
            For numbers out of range, and where the model has no finite output.

        Examples
        --------
        >>> from wflow.sampling import forward
        >>> problem = forward.InverseProblem(forward.Elliptic(8, 4), lam=2.0, noise=0.1)
        >>> problem.summary(200, most=3).size
        3
        """
        clean = self.simulate(whole(n, "n", 2), seed).clean
        limit = len(self.noise) if most is None else whole(most, "most")
        mean = clean.mean(0)
        _, scales, rows = np.linalg.svd((clean - mean) / self.noise, full_matrices=False)
        scales = scales / np.sqrt(n - 1)
        kept = min(limit, max(1, int((scales > 0.5).sum())))
        return Summary(mean, rows[:kept] / np.sqrt(scales[:kept, None] ** 2 + 1) / self.noise)

    def log_likelihood(self, x: ArrayLike, y: ArrayLike) -> FloatArray:
        """Return the log likelihood of parameters, up to a constant.

        Parameters
        ----------
        x : array_like, shape (n, dim)
            Parameters.
        y : array_like, shape (outputs,) or (n, outputs)
            Data, of all parameters or of each.

        Returns
        -------
        ndarray, shape (n,)
            Log likelihoods; -inf where the model has no finite output.

        Raises
        ------
        InputError
            For arrays of other shapes, or not finite.
        """
        return self._residuals(x, y)[0]

    def log_posterior(self, x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the log density of the posterior, up to a constant, and its gradient.

        Parameters
        ----------
        x : array_like, shape (n, dim)
            Parameters.
        y : array_like, shape (outputs,) or (n, outputs)
            Data, of all parameters or of each.

        Returns
        -------
        value : ndarray, shape (n,)
            Log densities; -inf where the model has no finite output.
        slope : ndarray, shape (n, dim)
            Gradients; at a zero entry of x that of the likelihood alone, and that of the prior
            alone where the likelihood has none.

        Raises
        ------
        InputError
            For arrays of other shapes, or not finite.
        """
        likelihood, residual, pull, at = self._residuals(x, y)
        known = np.isfinite(likelihood)
        with np.errstate(all="ignore"):
            slope = np.where(known[:, None], pull(residual / self.noise), 0.0)
        slope[~np.isfinite(slope).all(axis=1)] = 0.0
        return likelihood - self.lam * np.abs(at).sum(1), slope - self.lam * np.sign(at)

    def gaussian_covariance(self, x: ArrayLike) -> FloatArray:
        r"""Return the covariance of the Gaussian approximation of the posterior at a point.

        Parameters
        ----------
        x : array_like, shape (dim,)
            Point, best one of large density.

        Returns
        -------
        ndarray, shape (dim, dim)
            :math:`(DF^T \sigma^{-2} DF + \tfrac{\lambda^2}{2} I)^{-1}` (Gauss-Newton), with the
            variance :math:`2/\lambda^2` of the prior.

        Raises
        ------
        InputError
            For a point of another shape, or where the model has no finite output.
        """
        at, d, m = reals(x, "x"), self.model.dim, self.model.outputs
        if at.shape != (d,):
            raise InputError(f"x has shape {at.shape}: expected ({d},)")
        rows = np.diag(1 / self.noise)
        slope = np.concatenate(
            [
                self.model.vjp(np.tile(at, (len(part), 1)), part)
                for part in np.array_split(rows, -(-m // 64))
            ]
        )
        precision = np.einsum("mi,mj->ij", slope, slope) + 0.5 * self.lam**2 * np.eye(d)
        inverse = np.linalg.inv(precision)
        return 0.5 * (inverse + inverse.T)

    def _residuals(
        self, x: ArrayLike, y: ArrayLike
    ) -> tuple[FloatArray, FloatArray, Any, FloatArray]:
        """Log likelihood, (y - F(x))/sigma, the adjoint of DF(x), and x as an array."""
        at, given = reals(x, "x"), reals(y, "y")
        d, m = self.model.dim, self.model.outputs
        if at.ndim != 2 or at.shape[1] != d:
            raise InputError(f"x has shape {at.shape}: expected (n, {d})")
        if given.shape not in ((m,), (len(at), m)):
            raise InputError(f"y has shape {given.shape}: expected ({m},) or ({len(at)}, {m})")
        with np.errstate(all="ignore"):
            values, pull = self.model._evaluated(at)
            residual = (given - values) / self.noise
            likelihood = -0.5 * (residual**2).sum(1)
        known = np.isfinite(likelihood)
        return (
            np.where(known, likelihood, -np.inf),
            np.where(known[:, None], residual, 0.0),
            pull,
            at,
        )
