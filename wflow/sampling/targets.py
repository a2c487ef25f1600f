r"""Targets of samplers: densities exp(-beta (f + psi)) with a prior psi and known samples.

Each has the smooth part f (`potential`, `grad`), the `prior`, the temperature `beta`, and either
exact samples and moments (`GaussianLaplace`, `GaussianMixture`) or a long reference chain
(`BayesianLasso`). They serve to measure the error of a sampler.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from wflow._core.checks import number, positive, reals, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow.sampling.priors import L1, NoPrior, Prior

if TYPE_CHECKING:
    from xarray import Dataset

__all__ = ["BayesianLasso", "GaussianLaplace", "GaussianMixture", "Target"]


def __dir__() -> list[str]:
    return __all__


Array = NDArray[np.float64]


class Target:
    r"""A density :math:`\propto\exp(-\beta(f+\psi))` on R^d; the base of the others.

    Attributes
    ----------
    dim : int
        Dimension d.
    beta : float
        Inverse temperature.
    prior : wflow.sampling.Prior
        The prior psi.

    Examples
    --------
    >>> from wflow.sampling import targets
    >>> isinstance(targets.GaussianMixture([[0.0]], scale=1.0), targets.Target)
    True
    """

    dim: int
    beta: float
    prior: Prior

    def potential(self, x: ArrayLike) -> Array:
        """Return the smooth part f of the potential.

        Parameters
        ----------
        x : array_like, shape (n, d)
            Points.

        Returns
        -------
        ndarray, shape (n,)
            Values.
        """
        raise NotImplementedError

    def grad(self, x: ArrayLike) -> Array:
        """Return the gradient of the smooth part.

        Parameters
        ----------
        x : array_like, shape (n, d)
            Points.

        Returns
        -------
        ndarray, shape (n, d)
            Gradients.
        """
        raise NotImplementedError

    def subgradient(self, x: ArrayLike) -> Array:
        r"""Return a subgradient of the whole potential, for `wflow.sampling.ula`.

        Parameters
        ----------
        x : array_like, shape (n, d)
            Points.

        Returns
        -------
        ndarray, shape (n, d)
            :math:`\nabla f(x) + \lambda\operatorname{sign}(x)`.

        Raises
        ------
        InputError
            For points of another dimension.
        """
        return self.grad(x) + getattr(self.prior, "lam", 0.0) * np.sign(reals(x, "x"))

    def log_density(self, x: ArrayLike) -> Array:
        r"""Return the logarithm of the density, without its constant: :math:`-\beta(f + \psi)`.

        Parameters
        ----------
        x : array_like, shape (n, d)
            Points.

        Returns
        -------
        ndarray, shape (n,)
            Values.
        """
        return -self.beta * (self.potential(x) + self.prior.value(x))

    def sample(self, n: int, seed: int = 0) -> Array:
        """Draw independent samples.

        Parameters
        ----------
        n : int
            Their number.
        seed : int, default 0
            Of the random numbers.

        Returns
        -------
        ndarray, shape (n, d)
            Samples.
        """
        raise NotImplementedError

    def _points(self, x: ArrayLike) -> Array:
        points = reals(x, "x")
        if points.ndim < 1 or points.shape[-1] != self.dim:
            raise InputError(f"x has shape {points.shape}: expected (n, {self.dim})")
        return points


class GaussianMixture(Target):
    r"""A mixture of Gaussians of one width, with or without an L1 prior.

    Parameters
    ----------
    means : array_like, shape (k, d)
        Centres m of the components.
    scale : float
        Standard deviation s of each coordinate within a component.
    weights : array_like, shape (k,), optional
        Weights of the components, which need not sum to one. By default they are equal.
    lam : float, default 0.0
        Weight of the prior :math:`\lambda|x|_1`.
    beta : float, default 1.0
        Inverse temperature. The mixture without prior does not depend on it.

    Raises
    ------
    InputError
        For arrays that do not fit together, and numbers out of range.

    Notes
    -----
    .. math::

       \exp(-\beta f(x)) = \sum_k w_k\,\mathcal N(x; m_k, s^2 I), \qquad \psi = \lambda|x|_1.

    A component times :math:`\exp(-\beta\lambda|x|_1)` is a product over the coordinates. Each
    factor is a normal density :math:`\mathcal N(\mu \mp cs^2, s^2)`, :math:`c = \beta\lambda`, cut
    off at zero on either side, so that samples and moments are exact.

    Examples
    --------
    >>> from wflow.sampling import targets
    >>> target = targets.GaussianMixture([[-2.0, 0.0], [2.0, 0.0]], scale=0.5, lam=1.0)
    >>> target.sample(1000, seed=1).shape
    (1000, 2)
    >>> target.mean().round(12) + 0.0, target.covariance().shape
    (array([0., 0.]), (2, 2))
    """

    def __init__(
        self,
        means: ArrayLike,
        *,
        scale: float,
        weights: ArrayLike | None = None,
        lam: float = 0.0,
        beta: float = 1.0,
    ) -> None:
        self.means = reals(means, "means")
        if self.means.ndim != 2 or 0 in self.means.shape:
            raise InputError(f"means have shape {self.means.shape}: expected (k, d)")
        self.scale, self.beta = positive(scale, "scale"), positive(beta, "beta")
        if not 1e-100 < self.scale < 1e100:
            raise InputError(
                f"a component has the width {self.scale:.3g}, whose square leaves the range of "
                "doubles: rescale the target"
            )
        self.weights = np.ones(len(self.means)) if weights is None else reals(weights, "weights")
        if self.weights.shape != self.means.shape[:1] or not (self.weights > 0).all():
            raise InputError(
                f"weights are {self.weights}: expected {len(self.means)} numbers > 0, one for each "
                "component"
            )
        self.weights = self.weights / self.weights.sum()
        self.dim = self.means.shape[1]
        strength = number(lam, "lam", least=0.0)
        self.prior: Prior = L1(strength) if strength > 0 else NoPrior()
        self._parts = _tilted(self.means, self.scale, self.beta * strength)
        logs = np.log(self.weights) + self._parts.log_mass.sum(axis=1)
        self._shares = special.softmax(logs)

    def _exponents(self, x: ArrayLike) -> tuple[Array, Array]:
        x = self._points(x)
        away = x[..., None, :] - self.means
        square = np.einsum("...kd,...kd->...k", away, away)
        return away, np.log(self.weights) - square / (2 * self.scale**2)

    def potential(self, x: ArrayLike) -> Array:
        _, logs = self._exponents(x)
        width = 0.5 * self.dim * math.log(2 * math.pi * self.scale**2)
        return (width - special.logsumexp(logs, axis=-1)) / self.beta

    def grad(self, x: ArrayLike) -> Array:
        away, logs = self._exponents(x)
        shares = special.softmax(logs, axis=-1)
        pull = np.einsum("...k,...kd->...d", shares, away)
        return pull / (self.beta * self.scale**2)

    def sample(self, n: int, seed: int = 0) -> Array:
        n, rng = whole(n, "n"), np.random.default_rng(whole(seed, "seed", 0))
        check_memory(40.0 * n * self.dim, f"{n} samples", "take fewer")
        of = rng.choice(len(self._shares), n, p=self._shares)
        right = rng.random((n, self.dim)) < self._parts.right[of]
        sign = np.where(right, 1.0, -1.0)
        # On its side, |x| is a normal number cut off below zero.
        centre = sign * self.means[of] - self._parts.shift
        log_above = special.log_ndtr(centre / self.scale)
        uniform = 1.0 - rng.random((n, self.dim))
        away = centre - self.scale * special.ndtri_exp(log_above + np.log(uniform))
        return sign * np.maximum(away, 0.0)

    def mean(self) -> Array:
        """Return the mean of the target.

        Returns
        -------
        ndarray, shape (d,)
            The mean.
        """
        return self._shares @ self._parts.first

    def covariance(self) -> Array:
        """Return the covariance of the target.

        Returns
        -------
        ndarray, shape (d, d)
            The covariance.
        """
        first, mean = self._parts.first, self.mean()
        inner = np.diag(self._shares @ (self._parts.second - first**2))
        away = first - mean
        return inner + np.einsum("k,ki,kj->ij", self._shares, away, away)


class GaussianLaplace(GaussianMixture):
    r"""A Gaussian likelihood times a Laplace prior, coordinate by coordinate.

    Parameters
    ----------
    mean : array_like, shape (d,)
        Centre m of the Gaussian.
    scale : float, default 1.0
        Width s of the Gaussian at ``beta = 1``.
    lam : float, default 1.0
        Weight of the prior :math:`\lambda|x|_1`.
    beta : float, default 1.0
        Inverse temperature.

    Raises
    ------
    InputError
        For a mean that is no vector, and numbers out of range.

    Notes
    -----
    .. math:: f(x) = \frac{|x - m|^2}{2s^2}, \qquad \psi = \lambda|x|_1,

    a `GaussianMixture` of one component of width :math:`s/\sqrt\beta`, up to a constant in f.

    Examples
    --------
    >>> from wflow.sampling import targets
    >>> target = targets.GaussianLaplace([0.0, 3.0], lam=1.0)
    >>> target.mean().round(4) + 0.0
    array([0.    , 2.0258])
    >>> target.grad([[1.0, 1.0]])
    array([[ 1., -2.]])
    """

    def __init__(
        self, mean: ArrayLike, *, scale: float = 1.0, lam: float = 1.0, beta: float = 1.0
    ) -> None:
        centre = reals(mean, "mean")
        if centre.ndim != 1 or centre.size < 1:
            raise InputError(f"mean has shape {centre.shape}: expected (d,)")
        width = positive(scale, "scale") / math.sqrt(positive(beta, "beta"))
        super().__init__(centre[None], scale=width, lam=lam, beta=beta)


class BayesianLasso(Target):
    r"""The posterior of a linear model with Gaussian noise and a Laplace prior.

    Parameters
    ----------
    matrix : array_like, shape (m, d)
        Matrix A of the model.
    data : array_like, shape (m,)
        Observations y.
    noise : float
        Standard deviation sigma of the noise.
    lam : float
        Weight of the prior :math:`\lambda|x|_1`.
    beta : float, default 1.0
        Inverse temperature.

    Raises
    ------
    InputError
        For arrays that do not fit together, and numbers out of range.

    See Also
    --------
    wflow.sampling.reference.bayesian_lasso : The reference chains.

    Notes
    -----
    .. math:: f(x) = \frac{|Ax - y|^2}{2\sigma^2}, \qquad \psi = \lambda|x|_1 .

    Examples
    --------
    >>> from wflow.sampling import targets
    >>> target = targets.BayesianLasso.drawn(5, observations=10, seed=1)
    >>> target.dim, target.potential([[0.0] * 5]).shape
    (5, (1,))
    """

    def __init__(
        self, matrix: ArrayLike, data: ArrayLike, *, noise: float, lam: float, beta: float = 1.0
    ) -> None:
        self.matrix, self.data = reals(matrix, "matrix"), reals(data, "data")
        if self.matrix.ndim != 2 or 0 in self.matrix.shape:
            raise InputError(f"matrix has shape {self.matrix.shape}: expected (m, d)")
        if self.data.shape != self.matrix.shape[:1]:
            raise InputError(
                f"data have shape {self.data.shape}: expected ({len(self.matrix)},), a number for "
                "each row of the matrix"
            )
        self.noise, self.beta = positive(noise, "noise"), positive(beta, "beta")
        self.prior = L1(positive(lam, "lam"))
        self.dim = self.matrix.shape[1]
        self._gram = np.einsum("ki,kj->ij", self.matrix, self.matrix) / self.noise**2
        self._pull = np.einsum("ki,k->i", self.matrix, self.data) / self.noise**2

    @classmethod
    def drawn(
        cls,
        dim: int,
        *,
        observations: int | None = None,
        noise: float = 0.5,
        lam: float = 1.0,
        beta: float = 1.0,
        seed: int = 0,
    ) -> BayesianLasso:
        r"""Draw a model: a normalised Gaussian matrix, and data of a sparse vector.

        Parameters
        ----------
        dim : int
            Dimension d.
        observations : int, optional
            Number m of observations, 2 d by default.
        noise, lam, beta : float
            As of the class.
        seed : int, default 0
            Of the random numbers.

        Returns
        -------
        BayesianLasso
            With entries of A of variance 1/m, and a truth with one coordinate in five equal to
            2 or -2, at least one.

        Raises
        ------
        InputError
            For numbers out of range.
        """
        d, rng = whole(dim, "dim"), np.random.default_rng(whole(seed, "seed", 0))
        m = 2 * d if observations is None else whole(observations, "observations")
        matrix = rng.standard_normal((m, d)) / math.sqrt(m)
        truth = np.zeros(d)
        support = rng.permutation(d)[: -(-d // 5)]
        truth[support] = 2.0 * rng.choice([-1.0, 1.0], support.size)
        data = np.einsum("ki,i->k", matrix, truth)
        data += positive(noise, "noise") * rng.standard_normal(m)
        return cls(matrix, data, noise=noise, lam=lam, beta=beta)

    def potential(self, x: ArrayLike) -> Array:
        residual = np.einsum("ki,...i->...k", self.matrix, self._points(x)) - self.data
        return np.einsum("...k,...k->...", residual, residual) / (2 * self.noise**2)

    def grad(self, x: ArrayLike) -> Array:
        # No BLAS, whose sums depend on the number of its threads.
        return np.einsum("...i,ij->...j", self._points(x), self._gram) - self._pull

    def smoothness(self) -> float:
        r"""Return the largest eigenvalue L of the Hessian of f: steps need :math:`h < 2/L`.

        Returns
        -------
        float
            The eigenvalue.
        """
        return float(np.linalg.eigvalsh(self._gram)[-1])

    def reference(
        self, n: int, seed: int = 0, *, thin: int = 5, chains: int = 4, warmup: int = 500
    ) -> Dataset:
        r"""Draw samples by Gibbs sampling of the Bayesian lasso.

        Parameters
        ----------
        n : int
            Number of samples.
        seed : int, default 0
            Of the random numbers.
        thin : int, default 5
            Sweeps between two samples.
        chains : int, default 4
            Independent chains.
        warmup : int, default 500
            Sweeps of each chain before the first sample.

        Returns
        -------
        xarray.Dataset
            As from `wflow.sampling.reference.bayesian_lasso`, all sweeps, with ``r_hat`` and
            ``ess``; `sample` thins them.

        Raises
        ------
        InputError
            For numbers out of range.
        """
        from wflow.sampling.reference import bayesian_lasso

        return bayesian_lasso(
            self.matrix,
            self.data,
            lam=self.beta * self.prior.lam,  # type: ignore[attr-defined]
            noise=self.noise / math.sqrt(self.beta),
            draws=max(4, -(-whole(n, "n") // whole(chains, "chains")) * whole(thin, "thin")),
            warmup=warmup,
            chains=chains,
            seed=seed,
        )

    def sample(self, n: int, seed: int = 0) -> Array:
        """Draw samples by Gibbs sampling, almost independent: every fifth sweep of four chains.

        Parameters
        ----------
        n : int
            Their number.
        seed : int, default 0
            Of the random numbers.

        Returns
        -------
        ndarray, shape (n, d)
            Samples.
        """
        draws = self.reference(n, seed)["samples"].values[:, ::5]
        return np.ascontiguousarray(draws.reshape(-1, self.dim)[:n])


class _Tilted(NamedTuple):
    """Normal densities N(m, s^2) times exp(-c |x|), one for each entry of m.

    log_mass : log of the integral
    right : share of x > 0
    first, second : moments
    shift : c s^2
    """

    log_mass: Array
    right: Array
    first: Array
    second: Array
    shift: float


def _tilted(means: Array, scale: float, c: float) -> _Tilted:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        shift = c * scale**2
        centres = np.stack([means - shift, -means - shift])  # of |x| on the right and on the left
        z = centres / scale
        logs = special.log_ndtr(z) - c * np.stack([means, -means]) + c * shift / 2
        log_mass = np.logaddexp(*logs)
        shares = np.exp(logs - log_mass)
        # Moments of a normal number cut off below zero, by the ratio phi/Phi.
        hazard = math.sqrt(2 / math.pi) / special.erfcx(-z / math.sqrt(2))
        first = np.maximum(centres + scale * hazard, 0.0)
        second = np.maximum(scale**2 + centres * first, first**2)
    if not (np.isfinite(log_mass).all() and np.isfinite(second).all()):
        raise InputError(
            f"the density of means up to {np.abs(means).max():.3g}, width {scale:.3g} and beta lam "
            f"= {c:.3g} leaves the range of doubles: rescale the target"
        )
    return _Tilted(
        log_mass,
        shares[0],
        shares[0] * first[0] - shares[1] * first[1],
        np.einsum("skd,skd->kd", shares, second),
        shift,
    )
