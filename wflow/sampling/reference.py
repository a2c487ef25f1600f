"""Reference posteriors by long Markov chains, and diagnostics of the chains.

`bayesian_lasso` is the Gibbs sampler of a linear model with a Laplace prior, `pcn` serves priors
that are maps of a Gaussian, `metropolis` any density (with its gradient, if given), `tempered` is
sequential Monte Carlo from the prior, for posteriors with several modes. `r_hat` and `ess` judge
the chains. Every chain has a separate generator, spawned from the seed, and all sums are computed
in a fixed order: the numbers do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import function, number, positive, reals, returned, switch, whole
from wflow._core.compiler.functions import kernel
from wflow._core.errors import InputError
from wflow._core.memory import check_memory

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]

__all__ = [
    "Ranks",
    "bayesian_lasso",
    "climb",
    "ess",
    "laplace_from_normal",
    "metropolis",
    "pcn",
    "r_hat",
    "rank_test",
    "tempered",
]


def __dir__() -> list[str]:
    return __all__


# Diagnostics of chains
# ---------------------


def r_hat(samples: ArrayLike) -> FloatArray:
    r"""Return the potential scale reduction of chains, split and rank-normalised.

    Parameters
    ----------
    samples : array_like, shape (chains, draws, ...)
        Draws of every chain, four or more.

    Returns
    -------
    ndarray, shape (...)
        R-hat of every quantity: 1 for chains that cannot be told apart. Values above 1.01 are
        commonly taken as a sign of chains that are too short. NaN for a constant quantity.

    Raises
    ------
    InputError
        For samples of another shape, or values that are not finite.

    Notes
    -----
    Each chain is cut into halves, the values are replaced by normal scores z of their ranks, and

    .. math:: \hat R = \sqrt{\frac{n - 1}{n} + \frac{B}{n W}},

    with the variance W within and B/n between the m half chains of n draws; the larger one of
    this for x and for ``|x - median|``, which also sees chains of different spread [1]_.

    References
    ----------
    .. [1] Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization, folding, and
       localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 16
       (2021), equations 1 to 4 and section 4.1.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import reference
    >>> draws = np.random.default_rng(0).standard_normal((4, 500))
    >>> bool(reference.r_hat(draws) < 1.01)
    True
    >>> draws[3] += 3  # one chain in another place
    >>> bool(reference.r_hat(draws) > 1.1)
    True
    """
    x = _split(_chains(samples))
    folded = np.abs(x - np.median(x, axis=(0, 1)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.maximum(*(_scale_reduction(_scores(values)) for values in (x, folded)))


def ess(samples: ArrayLike) -> FloatArray:
    r"""Return the effective sample size of chains, split and rank-normalised (bulk).

    Parameters
    ----------
    samples : array_like, shape (chains, draws, ...)
        Draws of every chain, four or more.

    Returns
    -------
    ndarray, shape (...)
        Number of independent draws whose mean has the same error. NaN for a constant quantity.

    Raises
    ------
    InputError
        For samples of another shape, or values that are not finite.

    Notes
    -----
    :math:`S / (1 + 2 \sum_t \rho_t)` for S draws, with the autocorrelations combined over the half
    chains and truncated by Geyer's initial monotone sequence [1]_.

    References
    ----------
    .. [1] Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization, folding, and
       localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 16
       (2021), section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import reference
    >>> draws = np.random.default_rng(0).standard_normal((4, 500))
    >>> bool(1500 < reference.ess(draws) < 2500)
    True
    """
    x = _scores(_split(_chains(samples)))
    m, n = x.shape[:2]
    flat = x.reshape(m, n, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        sizes = np.array([_effective(flat[:, :, k]) for k in range(flat.shape[2])])
    return sizes.reshape(x.shape[2:])


class Ranks(NamedTuple):
    """Ranks of true values among posterior draws.

    Parameters
    ----------
    counts : ndarray, shape (quantities, bins)
        Histogram of the ranks of each quantity.
    p_value : ndarray, shape (quantities,)
        Probability of a histogram at least as uneven, if the posterior is right.
    coverage : ndarray, shape (quantities, 2)
        Share of true values in the central intervals of probability 0.5 and 0.9.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import reference
    >>> x = np.random.default_rng(0).standard_normal((100, 64, 1))
    >>> int(reference.rank_test(x[:, 0], x[:, 1:]).counts.sum())
    100
    """

    counts: NDArray[np.int64]
    p_value: FloatArray
    coverage: FloatArray


def rank_test(truth: ArrayLike, draws: ArrayLike, *, bins: int = 8) -> Ranks:
    r"""Test posteriors by the ranks of the true values among their draws.

    Parameters
    ----------
    truth : array_like, shape (n, k)
        Values of k quantities, from the prior.
    draws : array_like, shape (n, draws, k)
        Draws from the posterior of each of the n data sets that the values gave.
    bins : int, default 8
        Number of bins of the histograms; at most the number of draws plus one.

    Returns
    -------
    Ranks
        Histograms, p-values of a chi-squared test, and coverage of central intervals.

    Raises
    ------
    InputError
        For arrays of other shapes, or not finite, and numbers out of range.

    Notes
    -----
    For the right posterior the rank of the truth among L draws is uniform on 0 .. L, whatever the
    prior and the model [1]_. A histogram with a hump means that posteriors are too wide, one with
    high ends that they are too narrow. Draws that are tied with the truth are counted as half.

    References
    ----------
    .. [1] Talts, Betancourt, Simpson, Vehtari and Gelman, "Validating Bayesian inference algorithms
       with simulation-based calibration", arXiv:1804.06788.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import reference
    >>> rng = np.random.default_rng(0)
    >>> y = rng.standard_normal((500, 1))
    >>> draws = y[:, None] + rng.standard_normal((500, 63, 1))
    >>> bool(reference.rank_test(y + rng.standard_normal((500, 1)), draws).p_value[0] > 0.01)
    True
    >>> bool(reference.rank_test(y, draws).p_value[0] > 0.01)  # too wide
    False
    """
    from scipy.stats import chi2

    x, found = reals(truth, "truth"), reals(draws, "draws")
    if x.ndim != 2 or found.ndim != 3 or found.shape[::2] != x.shape or found.shape[1] < 1:
        raise InputError(
            f"truth has shape {x.shape} and draws {found.shape}: expected (n, k) and (n, draws, k)"
        )
    if min(x.shape) < 1:
        raise InputError(f"truth has shape {x.shape}: expected values")
    count = found.shape[1]
    bins = whole(bins, "bins", 2, most=count + 1)
    rank = (found < x[:, None]).sum(1) + 0.5 * (found == x[:, None]).sum(1)
    share = (rank + 0.5) / (count + 1)
    place = np.minimum((share * bins).astype(int), bins - 1)
    counts = np.stack([np.bincount(column, minlength=bins) for column in place.T])
    sizes = np.bincount(
        ((np.arange(count + 1) + 0.5) / (count + 1) * bins).astype(int), minlength=bins
    )
    expected = len(x) * sizes / (count + 1)
    statistic = ((counts - expected) ** 2 / expected).sum(1)
    inside = [np.abs(share - 0.5) <= level / 2 for level in (0.5, 0.9)]
    return Ranks(counts, chi2.sf(statistic, bins - 1), np.stack([row.mean(0) for row in inside], 1))


def _chains(samples: ArrayLike) -> FloatArray:
    x = reals(samples, "samples")
    if x.ndim < 2 or x.shape[1] < 4 or x.shape[0] < 1:
        raise InputError(
            f"samples have shape {x.shape}: expected (chains, draws, ...) with four draws or more"
        )
    return x


def _split(x: FloatArray) -> FloatArray:
    """Return the halves of chains as chains; the middle draw of an odd number is left out."""
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, -half:]])


def _scores(x: FloatArray) -> FloatArray:
    from scipy.special import ndtri
    from scipy.stats import rankdata

    flat = x.reshape(x.shape[0] * x.shape[1], -1)
    ranks = rankdata(flat, axis=0)
    return ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(x.shape)  # type: ignore[no-any-return]


def _scale_reduction(x: FloatArray) -> FloatArray:
    n = x.shape[1]
    within = x.var(axis=1, ddof=1).mean(axis=0)
    between = x.mean(axis=1).var(axis=0, ddof=1)
    reduction = np.sqrt((n - 1) / n + between / within)
    return np.where(within > 0, reduction, np.nan)


def _effective(x: FloatArray) -> float:
    """Return the effective sample size of chains (m, n) of one quantity."""
    m, n = x.shape
    centred = x - x.mean(axis=1, keepdims=True)
    transform = np.fft.rfft(centred, 2 * n, axis=1)
    covariance = np.fft.irfft(np.abs(transform) ** 2, axis=1)[:, :n].mean(axis=0) / n
    within = covariance[0] * n / (n - 1)
    if within == 0:
        return math.nan
    total = covariance[0] + x.mean(axis=1).var(ddof=1)
    correlation = 1 - (within - covariance * n / (n - 1)) / total
    correlation[0] = 1.0
    pairs = correlation[: 2 * (n // 2)].reshape(-1, 2).sum(axis=1)
    positive_pairs = len(pairs) if np.all(pairs > 0) else int(np.argmin(pairs > 0))
    monotone = np.minimum.accumulate(pairs[: max(positive_pairs, 1)])
    time = max(2 * float(monotone.sum()) - 1, 1 / math.log10(m * n))
    return m * n / time


def _dataset(
    samples: FloatArray, log_density: FloatArray, acceptance: FloatArray, **attrs: Any
) -> Dataset:
    """Return chains as a Dataset, with their diagnostics."""
    import xarray

    return xarray.Dataset(
        {
            "samples": (("chain", "draw", "parameter"), samples, {"long_name": "draws"}),
            "log_density": (
                ("chain", "draw"),
                log_density,
                {"long_name": "log density of the draws, up to a constant"},
            ),
            "acceptance": (("chain",), acceptance, {"long_name": "share of accepted proposals"}),
            "r_hat": (("parameter",), r_hat(samples), {"long_name": "potential scale reduction"}),
            "ess": (("parameter",), ess(samples), {"long_name": "effective sample size"}),
        },
        attrs=attrs,
    )


def _generators(seed: int, chains: int) -> list[np.random.Generator]:
    """Return one generator for each chain."""
    children = np.random.SeedSequence(whole(seed, "seed", 0)).spawn(chains)
    return [np.random.Generator(np.random.Philox(child)) for child in children]


# Linear model with Laplace prior
# -------------------------------


@kernel(nogil=True)
def _gibbs(phi, alpha, rate, x, tau, normals, uniforms, kept):
    """Sweep the Gibbs sampler of the Bayesian lasso, once for each row of `normals`.

    The model is alpha = phi x + N(0, I), x_j | tau_j ~ N(0, tau_j), tau_j ~ Exp(rate^2/2).
    1/tau_j | x is inverse Gaussian with mean rate/|x_j| and shape rate^2; x | tau is Gaussian,
    drawn with a factor of the smaller one of the two matrices I + phi tau phi^T (m, m) and
    I + tau^{1/2} phi^T phi tau^{1/2} (d, d). Some m d min(m, d) / 2 multiply-adds a sweep.
    """
    m, d = phi.shape
    wide = m <= d
    size = m if wide else d
    gram = np.empty((size, size))
    v = np.empty(size)
    scaled = np.empty((m, d))
    for sweep in range(normals.shape[0]):
        z = normals[sweep]
        for j in range(d):
            root = math.sqrt(tau[j])
            for i in range(m):
                scaled[i, j] = phi[i, j] * root
        # The matrix, and its Cholesky factor in the lower half.
        for a in range(size):
            for b in range(a + 1):
                total = 1.0 if a == b else 0.0
                if wide:
                    for j in range(d):
                        total += scaled[a, j] * scaled[b, j]
                else:
                    for i in range(m):
                        total += scaled[i, a] * scaled[i, b]
                gram[a, b] = total
        for a in range(size):
            for b in range(a + 1):
                total = gram[a, b]
                for k in range(b):
                    total -= gram[a, k] * gram[b, k]
                gram[a, b] = math.sqrt(total) if a == b else total / gram[b, b]
        if wide:  # x = u + tau phi^T (I + phi tau phi^T)^{-1} (alpha - phi u - noise)
            for i in range(m):
                total = alpha[i] - z[d + i]
                for j in range(d):
                    total -= scaled[i, j] * z[j]
                v[i] = total
        else:  # x = tau^{1/2} L^{-T} (L^{-1} tau^{1/2} phi^T alpha + z)
            for j in range(d):
                total = 0.0
                for i in range(m):
                    total += scaled[i, j] * alpha[i]
                v[j] = total
        for a in range(size):
            total = v[a]
            for k in range(a):
                total -= gram[a, k] * v[k]
            v[a] = total / gram[a, a]
        if not wide:
            for j in range(d):
                v[j] += z[j]
        for a in range(size - 1, -1, -1):
            total = v[a]
            for k in range(a + 1, size):
                total -= gram[k, a] * v[k]
            v[a] = total / gram[a, a]
        for j in range(d):
            total = v[j]
            if wide:
                total = z[j]
                for i in range(m):
                    total += scaled[i, j] * v[i]
            x[j] = math.sqrt(tau[j]) * total
        # tau_j is the reciprocal of an inverse Gaussian number (Michael, Schucany, Haas). The
        # smaller root is that of q = mean chi / (2 rate^2), without cancellation.
        for j in range(d):
            mean = rate / max(abs(x[j]), 1e-150)
            chi = z[d + m + j] * z[d + m + j]
            q = mean * chi / (2 * rate * rate)
            small = mean / (1 + q + math.sqrt(q * (q + 2)))
            if uniforms[sweep, j] * (mean + small) <= mean:
                tau[j] = 1 / small
            else:
                tau[j] = small / (mean * mean)
        for j in range(d):
            kept[sweep, j] = x[j]


_BLOCK = 64  # sweeps whose random numbers are drawn at once


def bayesian_lasso(
    matrix: ArrayLike,
    data: ArrayLike,
    *,
    lam: float,
    noise: float,
    draws: int = 1500,
    warmup: int = 500,
    chains: int = 2,
    seed: int = 0,
) -> Dataset:
    r"""Sample the posterior of a linear model with Gaussian noise and a Laplace prior.

    Parameters
    ----------
    matrix : array_like, shape (m, d)
        Matrix A of the model.
    data : array_like, shape (m,)
        Observations y.
    lam : float
        Rate lambda > 0 of the prior.
    noise : float
        Standard deviation s > 0 of the noise.
    draws : int, default 1500
        Sweeps of each chain that are kept.
    warmup : int, default 500
        Sweeps of each chain before them.
    chains : int, default 2
        Number of chains. They begin with variances drawn from the prior.
    seed : int, default 0
        Of the random numbers.

    Returns
    -------
    xarray.Dataset
        `samples` (chain, draw, parameter), `log_density`, `r_hat`, `ess`, `acceptance` (1: a Gibbs
        sampler).

    Raises
    ------
    InputError
        For arrays that do not fit together, and numbers out of range.

    Notes
    -----
    .. math:: p(x \mid y) \propto \exp\Bigl(-\frac{|y - A x|^2}{2 s^2} - \lambda |x|_1\Bigr).

    The Laplace prior is a scale mixture, :math:`x_j \mid \tau_j \sim N(0, \tau_j)`,
    :math:`\tau_j \sim \mathrm{Exp}(\lambda^2/2)`. Given the variances x is Gaussian, given x the
    :math:`1/\tau_j` are inverse Gaussian [1]_. For fewer observations than parameters the Gaussian
    is drawn by a factorisation of an m x m matrix [2]_. At another temperature,
    :math:`\exp(-\beta(\cdot))`, take :math:`\beta\lambda` and :math:`s/\sqrt\beta`.

    References
    ----------
    .. [1] Park and Casella, "The Bayesian Lasso", Journal of the American Statistical Association
       103 (2008). There the rate is relative to the noise; here it is not.
    .. [2] Bhattacharya, Chakraborty and Mallick, "Fast sampling with Gaussian scale mixture priors
       in high-dimensional regression", Biometrika 103 (2016).

    Examples
    --------
    >>> from wflow.sampling import reference
    >>> found = reference.bayesian_lasso([[1.0, 0.5]], [1.0], lam=1.0, noise=0.1, draws=200)
    >>> dict(found["samples"].sizes)
    {'chain': 2, 'draw': 200, 'parameter': 2}
    """
    A, y = reals(matrix, "matrix"), reals(data, "data")
    if A.ndim != 2 or min(A.shape) < 1:
        raise InputError(f"matrix has shape {A.shape}: expected (m, d)")
    if y.shape != A.shape[:1]:
        raise InputError(f"data have shape {y.shape}: expected ({len(A)},), one for each row of A")
    lam, noise = positive(lam, "lam"), positive(noise, "noise")
    draws, warmup = whole(draws, "draws", 4), whole(warmup, "warmup", 0)
    chains = whole(chains, "chains")
    m, d = A.shape
    _check_room(chains, warmup + draws, d)
    samples = np.empty((chains, warmup + draws, d))
    for chain, rng in enumerate(_generators(seed, chains)):
        x, tau = np.zeros(d), rng.exponential(2 / lam**2, d)
        for first in range(0, warmup + draws, _BLOCK):
            kept = samples[chain, first : first + _BLOCK]
            normals = rng.standard_normal((len(kept), m + 2 * d))
            with np.errstate(over="ignore"):  # what is not finite is refused below
                parts = A / noise, y / noise
            _gibbs(*parts, lam, x, tau, normals, rng.random((len(kept), d)), kept)
    samples = samples[:, warmup:]
    if not np.all(np.isfinite(samples)):
        raise InputError(
            f"the posterior of a matrix of norm {np.linalg.norm(A):.3g} with noise {noise:g} and "
            f"lam {lam:g} leaves the range of doubles: rescale the model"
        )
    residual = np.einsum("ij,cnj->cni", A, samples) - y
    density = -0.5 * (residual**2).sum(2) / noise**2 - lam * np.abs(samples).sum(2)
    return _dataset(samples, density, np.ones(chains), sampler="gibbs", warmup=warmup)


# Any model
# ---------

LogDensity = Callable[[FloatArray], Any]


def laplace_from_normal(xi: ArrayLike, lam: float) -> tuple[FloatArray, FloatArray]:
    r"""Map standard normal numbers to numbers of the density proportional to exp(-lam ``|x|``).

    Parameters
    ----------
    xi : array_like, shape (...)
        Standard normal numbers.
    lam : float
        Rate > 0.

    Returns
    -------
    x : ndarray, shape (...)
        Numbers of the Laplace law.
    derivative : ndarray, shape (...)
        Derivative dx/dxi > 0.

    Raises
    ------
    InputError
        For values that are not finite, or a rate that is not positive.

    Notes
    -----
    :math:`x = -\operatorname{sign}(\xi) \log(2 \Phi(-|\xi|)) / \lambda`, the quantile function of
    the one law after the distribution function of the other [1]_.

    References
    ----------
    .. [1] Chen, Dunlop, Papaspiliopoulos and Stuart, "Dimension-robust MCMC in Bayesian inverse
       problems", arXiv:1803.03344, section 3.

    Examples
    --------
    >>> from wflow.sampling import reference
    >>> x, derivative = reference.laplace_from_normal([-1.0, 1.0], 2.0)
    >>> x.round(4), derivative.round(4)
    (array([-0.5739,  0.5739]), array([0.7626, 0.7626]))
    """
    from scipy.special import erfcx, log_ndtr

    given, lam = reals(xi, "xi"), positive(lam, "lam")
    with np.errstate(over="ignore"):  # infinite for a lam that small
        x = -np.sign(given) * (math.log(2) + log_ndtr(-np.abs(given))) / lam
        # phi(a)/Phi(-a) without the exponentials of both, which leave the range of numbers.
        return x, math.sqrt(2 / math.pi) / erfcx(np.abs(given) / math.sqrt(2)) / lam


def _values(log_density: LogDensity, x: FloatArray, name: str) -> FloatArray:
    """Return checked log densities (n,) of points (n, d)."""
    values = returned(log_density(x), x.shape[:1], f"{name}, of points {x.shape},", finite=False)
    if np.isnan(values).any() or np.any(values == math.inf):
        raise InputError(
            f"{name} is NaN or +inf at {int((~(values < math.inf)).sum())} of {len(x)} points: "
            "return -inf where the model has no solution"
        )
    return values


def _counts(
    draws: int, warmup: int, thin: int, seed: int, chains: int, dim: int
) -> tuple[int, int, int, list]:
    thin, warmup = whole(thin, "thin", most=1_000_000), whole(warmup, "warmup", 0)
    draws = whole(draws, "draws", 4)
    _check_room(chains, draws, dim)
    return draws, warmup, thin, _generators(seed, chains)


def _check_room(chains: int, draws: int, dim: int) -> None:
    """Refuse chains that do not fit into memory."""
    what = f"{chains} chains of {draws} draws of {dim} numbers"
    check_memory(16.0 * chains * draws * dim + 1000.0 * chains, what, "take fewer")


def _callable(value: Any, name: str) -> LogDensity:
    return function(value, name, "points (n, d)")


_FIRST = 100  # steps before the first change of a covariance; the next ones after twice as many
_CORRELATED = 20.0  # steps of a chain that count as one independent draw in the covariance
_RATE = 0.6  # exponent of the adaptation of step sizes: gains k^{-0.6}


def pcn(
    log_likelihood: LogDensity,
    dim: int,
    *,
    transform: Callable[[FloatArray], FloatArray] | None = None,
    draws: int = 2000,
    warmup: int = 1000,
    thin: int = 1,
    chains: int = 4,
    step: float = 0.2,
    seed: int = 0,
) -> Dataset:
    r"""Sample a posterior whose prior is a map of standard normal numbers, by pCN.

    Parameters
    ----------
    log_likelihood : callable
        Log likelihood (n,) of parameters x (n, d); -inf where there is none.
    dim : int
        Number of parameters.
    transform : callable, optional
        Map from standard normal points (n, dim) to parameters (n, d); None for the identity.
    draws : int, default 2000
        Draws of each chain that are kept.
    warmup : int, default 1000
        Steps of each chain before them, in which the step size is adapted to accept a quarter.
    thin : int, default 1
        Steps between two draws.
    chains : int, default 4
        Number of chains, computed together. They begin with draws from the prior.
    step : float, default 0.2
        First step size, in (0, 1].
    seed : int, default 0
        Of the random numbers.

    Returns
    -------
    xarray.Dataset
        `samples` (chain, draw, parameter) of x, `log_density` (here: the log likelihood),
        `acceptance`, `r_hat`, `ess`; the step size in `attrs`.

    Raises
    ------
    InputError
        For arguments out of range, and a log likelihood that is NaN, of another shape, or -inf at
        all starting points of a chain.

    Notes
    -----
    The proposal :math:`\xi' = \sqrt{1 - s^2}\, \xi + s\, \zeta` keeps the Gaussian, so that the
    acceptance, min(1, likelihood ratio), does not deteriorate with the dimension [1]_.

    References
    ----------
    .. [1] Cotter, Roberts, Stuart and White, "MCMC methods for functions: modifying old algorithms
       to make them faster", Statistical Science 28 (2013).

    Examples
    --------
    >>> from wflow.sampling import reference
    >>> found = reference.pcn(lambda x: -0.5 * ((x - 1) ** 2).sum(1), 1, draws=2000)
    >>> bool(abs(found["samples"].mean() - 0.5) < 0.1)
    True
    """
    log_likelihood = _callable(log_likelihood, "log_likelihood")
    transform = (lambda xi: xi) if transform is None else _callable(transform, "transform")
    dim, chains = whole(dim, "dim"), whole(chains, "chains")
    draws, warmup, thin, rngs = _counts(draws, warmup, thin, seed, chains, dim)
    log_step = math.log(positive(step, "step"))
    if log_step > 0:
        raise InputError(f"step is {step}: expected a number in (0, 1]")
    xi = np.stack([rng.standard_normal(dim) for rng in rngs])
    x = reals(transform(xi), "what transform returned", finite=False)
    if x.ndim != 2 or len(x) != chains:
        raise InputError(
            f"transform returned shape {x.shape} for points {xi.shape}: expected ({chains}, k)"
        )
    shape = x.shape

    def mapped(xi: FloatArray) -> FloatArray:
        return returned(transform(xi), shape, f"transform, of points {xi.shape},", finite=False)

    value = _values(log_likelihood, x, "log_likelihood")
    for _ in range(100):
        lost = np.isinf(value)
        if not lost.any():
            break
        xi[lost] = [rng.standard_normal(dim) for rng, gone in zip(rngs, lost, strict=True) if gone]
        x = mapped(xi)
        value = _values(log_likelihood, x, "log_likelihood")
    else:
        raise InputError("log_likelihood is -inf at 100 draws from the prior of some chain")
    samples = np.empty((chains, draws, x.shape[1]))
    density, accepted = np.empty((chains, draws)), np.zeros(chains)
    for k in range(warmup + draws * thin):
        s = math.exp(log_step)
        noise = np.stack([rng.standard_normal(dim) for rng in rngs])
        uniform = np.array([rng.random() for rng in rngs])
        proposed = math.sqrt(1 - s * s) * xi + s * noise
        x_new = mapped(proposed)
        value_new = _values(log_likelihood, x_new, "log_likelihood")
        ratio = np.exp(np.minimum(value_new - value, 0.0))
        taken = uniform < ratio
        xi[taken], value[taken] = proposed[taken], value_new[taken]
        x = np.where(taken[:, None], x_new, x)
        if k < warmup:
            log_step = min(0.0, log_step + (float(ratio.mean()) - 0.25) * (k + 1) ** -_RATE)
            continue
        accepted += taken
        if (k - warmup) % thin == thin - 1:
            samples[:, (k - warmup) // thin], density[:, (k - warmup) // thin] = x, value
    share = accepted / (draws * thin)
    attrs = {"sampler": "pcn", "warmup": warmup, "thin": thin, "step": math.exp(log_step)}
    return _dataset(samples, density, share, **attrs)


def climb(log_density: LogDensity, start: ArrayLike, *, iterations: int = 200) -> FloatArray:
    """Move points towards local maxima of a density, as starts of `metropolis`.

    Parameters
    ----------
    log_density : callable
        Pair of the log density (n,) of points (n, d) and its gradient (n, d); -inf outside its
        support.
    start : array_like, shape (n, d)
        Points.
    iterations : int, default 200
        Iterations of L-BFGS for each point [1]_; a kink of the density may end them before.

    Returns
    -------
    ndarray, shape (n, d)
        Points of a density that is not smaller.

    Raises
    ------
    InputError
        For arguments out of range, and a density that is NaN or of another shape.

    References
    ----------
    .. [1] Liu and Nocedal, "On the limited memory BFGS method for large scale optimization",
       Mathematical Programming 45 (1989).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import reference
    >>> found = reference.climb(lambda x: (-(x**4).sum(1), -4 * x**3), [[1.0, -1.0]])
    >>> bool(np.abs(found).max() < 0.1)
    True
    """
    from scipy.optimize import minimize

    density = _callable(log_density, "log_density")
    x, iterations = reals(start, "start"), whole(iterations, "iterations")
    if x.ndim != 2 or min(x.shape) < 1:
        raise InputError(f"start has shape {x.shape}: expected (n, d)")

    def descent(point: FloatArray) -> tuple[float, FloatArray]:
        value, slope = _with_slope(density, point[None])
        return (-float(value[0]), -slope[0]) if np.isfinite(value[0]) else (1e300, 0 * slope[0])

    options = {"maxiter": iterations, "maxfun": 2 * iterations}
    return np.stack(
        [minimize(descent, row, jac=True, method="L-BFGS-B", options=options).x for row in x]
    )


def _with_slope(log_density: LogDensity, points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log densities (n,) and gradients (n, d), which are zero where the density is."""
    found = log_density(points)
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError("log_density returns no pair: expected the value and its gradient")
    value = _values(lambda _: found[0], points, "log_density")
    slope = returned(found[1], points.shape, "the gradient of log_density", finite=False)
    return value, np.where(np.isfinite(value)[:, None] & np.isfinite(slope), slope, 0.0)


def metropolis(
    log_density: LogDensity,
    start: ArrayLike,
    *,
    gradient: bool = False,
    covariance: ArrayLike | None = None,
    draws: int = 2000,
    warmup: int = 2000,
    thin: int = 1,
    seed: int = 0,
) -> Dataset:
    r"""Sample a density by parallel adaptive Metropolis chains, with its gradient if there is one.

    Parameters
    ----------
    log_density : callable
        Log density (n,) of points (n, d), up to a constant; -inf outside its support. With
        `gradient` the pair of it and its gradient (n, d).
    start : array_like, shape (chains, d)
        First point of each chain, of positive density.
    gradient : bool, default False
        Propose along the gradient (Langevin) and not only at random.
    covariance : array_like, shape (d, d), optional
        First covariance of the proposals, such as that of a Gaussian approximation; the variances
        of the starts by default.
    draws : int, default 2000
        Draws of each chain that are kept.
    warmup : int, default 2000
        Steps of each chain before them, in which step size and covariance are adapted, the same
        for all chains; both are fixed afterwards.
    thin : int, default 1
        Steps between two draws.
    seed : int, default 0
        Of the random numbers.

    Returns
    -------
    xarray.Dataset
        `samples` (chain, draw, parameter), `log_density`, `acceptance`, `r_hat`, `ess`; the step
        size in `attrs`.

    Raises
    ------
    InputError
        For arguments out of range, and a density that is NaN, of another shape, or zero at a
        start.

    Notes
    -----
    Proposals are :math:`x' = x + (s^2/2)\, C\, \nabla \log p(x) + s\, C^{1/2} \zeta` with the
    covariance C of the warm-up draws of all chains [1]_, without the second term where there is no
    gradient. The step s is adapted to accept 0.57 of them with, 0.25 without.

    References
    ----------
    .. [1] Haario, Saksman and Tamminen, "An adaptive Metropolis algorithm", Bernoulli 7 (2001).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import reference
    >>> start = np.random.default_rng(0).standard_normal((4, 2))
    >>> found = reference.metropolis(lambda x: -0.5 * (x**2).sum(1), start, draws=1000)
    >>> bool(abs(found["samples"].std() - 1) < 0.1)
    True
    """
    log_density = _callable(log_density, "log_density")
    x = reals(start, "start")
    if x.ndim != 2 or min(x.shape) < 1:
        raise InputError(f"start has shape {x.shape}: expected (chains, d)")
    gradient = switch(gradient, "gradient")
    chains, d = x.shape
    draws, warmup, thin, rngs = _counts(draws, warmup, thin, seed, chains, d)

    def evaluate(points: FloatArray) -> tuple[FloatArray, FloatArray]:
        if gradient:
            return _with_slope(log_density, points)
        return _values(log_density, points, "log_density"), np.zeros_like(points)

    value, slope = evaluate(x)
    if np.isinf(value).any():
        raise InputError(f"the density is 0 at {int(np.isinf(value).sum())} of {chains} starts")
    target = 0.57 if gradient else 0.25
    log_step = math.log(1.65 * d ** (-1 / 6) if gradient else 2.38 / math.sqrt(d))
    spread = x.std(axis=0) if chains > 1 else np.ones(d)
    factor = np.diag(np.where(spread > 0, spread, 1.0))  # C = factor factor^T
    if covariance is not None:
        factor = _cholesky(covariance, d)
    samples, density = np.empty((chains, draws, d)), np.empty((chains, draws))
    accepted = np.zeros(chains)
    history: list[FloatArray] = []
    next_update = _FIRST
    for k in range(warmup + draws * thin):
        s = math.exp(log_step)
        z = np.stack([rng.standard_normal(d) for rng in rngs])
        uniform = np.array([rng.random() for rng in rngs])
        drift = 0.5 * s * np.einsum("ji,nj->ni", factor, slope)  # in units of s factor
        proposed = x + s * np.einsum("ij,nj->ni", factor, drift + z)
        value_new, slope_new = evaluate(proposed)
        back = 0.5 * s * np.einsum("ji,nj->ni", factor, slope_new)
        log_ratio = value_new - value + 0.5 * (z**2).sum(1) - 0.5 * ((z + drift + back) ** 2).sum(1)
        ratio = np.exp(np.minimum(log_ratio, 0.0))
        taken = uniform < ratio
        x = np.where(taken[:, None], proposed, x)
        value, slope = np.where(taken, value_new, value), np.where(taken[:, None], slope_new, slope)
        if k < warmup:
            since = k - next_update // 2 if k >= _FIRST else k  # the last change of the covariance
            log_step += (float(ratio.mean()) - target) * (since + 1) ** -_RATE
            history.append(x)
            if k + 1 == next_update and k + 1 < warmup:
                late = np.concatenate(history[len(history) // 2 :])
                factor = _factor(late, factor, correlated=_CORRELATED)
                next_update *= 2
            continue
        accepted += taken
        if (k - warmup) % thin == thin - 1:
            samples[:, (k - warmup) // thin], density[:, (k - warmup) // thin] = x, value
    share = accepted / (draws * thin)
    name = "langevin" if gradient else "metropolis"
    attrs = {"sampler": name, "warmup": warmup, "thin": thin, "step": math.exp(log_step)}
    return _dataset(samples, density, share, **attrs)


def _cholesky(covariance: ArrayLike, d: int) -> FloatArray:
    given = reals(covariance, "covariance")
    if given.shape != (d, d):
        raise InputError(f"covariance has shape {given.shape}: expected ({d}, {d})")
    try:
        return np.asarray(np.linalg.cholesky(0.5 * (given + given.T)), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise InputError("covariance is not positive definite") from None


def _factor(
    points: FloatArray,
    before: FloatArray,
    *,
    weights: FloatArray | None = None,
    correlated: float = 1.0,
) -> FloatArray:
    """Return a Cholesky factor of the covariance of points, shrunk to the previous for few of them.

    correlated : number of points that are worth one independent point
    """
    d = points.shape[1]
    w = np.full(len(points), 1 / len(points)) if weights is None else weights
    centred = points - np.einsum("n,ni->i", w, points)
    covariance = np.einsum("n,ni,nj->ij", w, centred, centred)
    count = 1 / float((w**2).sum()) / correlated
    kept = count / (count + d)
    try:
        return np.linalg.cholesky(kept * covariance + (1 - kept) * before @ before.T)
    except np.linalg.LinAlgError:
        return before


def tempered(
    log_likelihood: LogDensity,
    log_prior: LogDensity,
    start: ArrayLike,
    *,
    moves: int = 20,
    seed: int = 0,
) -> Dataset:
    r"""Sample a posterior by sequential Monte Carlo along powers of the likelihood.

    Parameters
    ----------
    log_likelihood : callable
        Log likelihood (n,) of points (n, d); -inf where there is none.
    log_prior : callable
        Log density (n,) of the prior, up to a constant; -inf outside its support.
    start : array_like, shape (particles, d)
        Independent draws from the prior.
    moves : int, default 20
        Metropolis steps of every particle after each resampling.
    seed : int, default 0
        Of the random numbers.

    Returns
    -------
    xarray.Dataset
        `samples` (draw, parameter), of equal weight; `temperature`, `ess` and `acceptance` of each
        stage; in `attrs` the logarithm of the evidence, the mean likelihood under the prior.

    Raises
    ------
    InputError
        For arguments out of range, functions that return NaN or other shapes, and a likelihood
        that is zero at all particles.

    Notes
    -----
    Stage k samples :math:`p(x)\, p(y \mid x)^{t_k}`; the next power keeps the effective sample
    size of the weights at half of the particles, which are then resampled (systematically) and
    moved by Metropolis steps with their covariance [1]_. Particles that start in different modes
    keep these in the proportion of their mass.

    References
    ----------
    .. [1] Del Moral, Doucet and Jasra, "Sequential Monte Carlo samplers", Journal of the Royal
       Statistical Society B 68 (2006); the choice of powers after Jasra et al., Scandinavian
       Journal of Statistics 38 (2011).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import reference
    >>> start = np.random.default_rng(0).standard_normal((500, 1))
    >>> found = reference.tempered(
    ...     lambda x: -50 * (np.abs(x[:, 0]) - 1) ** 2, lambda x: -0.5 * x[:, 0] ** 2, start
    ... )
    >>> bool(0.3 < (found["samples"] > 0).mean() < 0.7)  # both modes
    True
    """
    import xarray

    log_likelihood = _callable(log_likelihood, "log_likelihood")
    log_prior = _callable(log_prior, "log_prior")
    x = reals(start, "start")
    if x.ndim != 2 or len(x) < 4 or x.shape[1] < 1:
        raise InputError(f"start has shape {x.shape}: expected (particles, d), four or more")
    moves = whole(moves, "moves")
    (rng,) = _generators(seed, 1)
    n, d = x.shape
    prior, likelihood = (
        _values(log_prior, x, "log_prior"),
        _values(log_likelihood, x, "log_likelihood"),
    )
    if np.all(np.isinf(likelihood)):
        raise InputError(f"the likelihood is 0 at all {n} particles: draw more of them")
    if np.isinf(prior).any():
        raise InputError(f"log_prior is -inf at {int(np.isinf(prior).sum())} of the start points")
    power, evidence, log_step = 0.0, 0.0, math.log(2.38 / math.sqrt(d))
    stages: list[tuple[float, float, float]] = []
    factor = np.eye(d)
    while power < 1:
        power, weights, gain = _next_power(likelihood, power)
        evidence += gain
        size = 1 / float((weights**2).sum())
        factor = _factor(x, factor, weights=weights)
        ends = np.cumsum(weights)
        chosen = np.searchsorted(ends / ends[-1], (np.arange(n) + rng.random()) / n)
        x, prior, likelihood = x[chosen], prior[chosen], likelihood[chosen]
        accepted = 0.0
        for k in range(moves):
            step = math.exp(log_step) * np.einsum("ij,nj->ni", factor, rng.standard_normal((n, d)))
            proposed = x + step
            prior_new = _values(log_prior, proposed, "log_prior")
            inside = np.isfinite(prior_new)
            likelihood_new = np.full(n, -math.inf)
            if inside.any():
                likelihood_new[inside] = _values(log_likelihood, proposed[inside], "log_likelihood")
            change = np.where(inside, prior_new, -math.inf) - prior
            with np.errstate(invalid="ignore"):
                change = change + power * (likelihood_new - likelihood)
            ratio = np.exp(np.minimum(np.nan_to_num(change, nan=-math.inf), 0.0))
            taken = rng.random(n) < ratio
            x = np.where(taken[:, None], proposed, x)
            prior = np.where(taken, prior_new, prior)
            likelihood = np.where(taken, likelihood_new, likelihood)
            accepted += float(taken.mean()) / moves
            log_step += (float(ratio.mean()) - 0.25) * (k + 1) ** -_RATE
        stages.append((power, size, accepted))
    stage = np.array(stages)
    return xarray.Dataset(
        {
            "samples": (("draw", "parameter"), x, {"long_name": "draws of equal weight"}),
            "log_likelihood": (("draw",), likelihood, {"long_name": "log likelihood"}),
            "temperature": (("stage",), stage[:, 0], {"long_name": "power of the likelihood"}),
            "ess": (("stage",), stage[:, 1], {"long_name": "effective sample size before moves"}),
            "acceptance": (("stage",), stage[:, 2], {"long_name": "share of accepted proposals"}),
        },
        attrs={"sampler": "tempered", "moves": moves, "log_evidence": number(evidence, "evidence")},
    )


def _next_power(likelihood: FloatArray, power: float) -> tuple[float, FloatArray, float]:
    """Return the next power, the particle weights, and the log of the mean increment."""

    def weighed(to: float) -> tuple[FloatArray, float]:
        with np.errstate(invalid="ignore"):
            log = np.where(np.isinf(likelihood), -math.inf, (to - power) * likelihood)
        top = float(log.max())
        weights = np.exp(log - top)
        return weights / weights.sum(), top + math.log(float(weights.mean()))

    half = 0.5 * np.isfinite(likelihood).sum()

    def enough(to: float) -> bool:
        return float(1 / (weighed(to)[0] ** 2).sum()) >= half

    low, high = power, 1.0
    if not enough(1.0):
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if enough(middle) else (low, middle)
        high = low if low > power else high
    return (high, *weighed(high))
