r"""The regularised Wasserstein proximal operator of a cloud: interaction, attention, score, layer.

The operator of step h and inverse temperature beta with prior :math:`\psi` maps a law rho to

.. math::

    K\rho(x) = \int \exp\Big(-\frac{\beta}{2}\psi(x) + U(x, y)\Big)\,\rho(dy), \qquad
    U(x, y) = -\frac{\beta}{4h}|x - y|^2 - \log Z(y),

with the normaliser Z of the prior [1]_. Of a cloud, its score is attention: the softmax of U over
the tokens y of a context averages them. There are three kernels:

- "exact": U as above, with the normaliser of the prior (in closed form for the L1 norm);
- "laplace": its Laplace approximation, :math:`\log Z(y) \approx -\frac{\beta}{2} e_h(y)` with the
  Moreau envelope :math:`e_h(y) = \psi(S(y)) + |y - S(y)|^2/(2h)`;
- "published": as printed, with S(x) in place of S(y) in the quadratic term [1]_, equation (3),

  .. math:: U(x, y) = -\frac{\beta}{2}\Big(\frac{|x - y|^2 - |S(x) - y|^2}{2h} - \psi(S(y))\Big).

All are :math:`U(x, y) = \langle q(x), y\rangle + b(y) + c(x)`: a scaled product, a bias of each
token of the context, and a term that the softmax does not see.

References
----------
.. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
   Operator with L1 Prior*, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import check_choice, positive, reals, switch, whole
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow._core.memory import check_memory
from wflow._core.reprs import ShortResult
from wflow.sampling.priors import Prior, as_prior, step_of, too_long, warn_of_absorption
from wflow.sampling.softmax_sums import SoftmaxMeans, softmax_means

__all__ = [
    "AttentionMean",
    "attention_mean",
    "backward",
    "backward_inverse",
    "folded",
    "interaction",
    "layer",
    "score",
]

Kernel = Literal["exact", "laplace", "published"]
Floats = NDArray[np.floating]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class AttentionMean(ShortResult):
    r"""Averages of a context under the softmax of the interaction, at every query.

    Attributes
    ----------
    mean : ndarray, shape (..., n, d)
        Attention :math:`M(x; C) = \sum_l w_l(x) c_l`.
    trace : ndarray, shape (..., n)
        Trace of its Jacobian DM.
    ess : ndarray, shape (..., n)
        Effective sample size of the weights, :math:`1/\sum_l w_l^2`.
    log_sum : ndarray, shape (..., n)
        :math:`\log\sum_l \exp U(x, c_l)`.
    covariance : ndarray, shape (..., n, d, d), or None
        Covariance :math:`\operatorname{Cov}_w(c)` of the context under the weights, where asked.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> context = np.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> found = sampling.attention_mean(
    ...     [[0.0, 0.0]], context, h=0.5, beta=1.0, prior=sampling.NoPrior()
    ... )
    >>> found.ess, found.trace
    (array([2.]), array([1.]))
    """

    mean: Floats
    trace: Floats
    ess: Floats
    log_sum: Floats
    covariance: Floats | None = field(default=None, repr=False)


# The interaction as a product and a bias
# ---------------------------------------


# Scores beyond this are infinite in single precision, or below those of pairs that are left out.
_LARGEST_SCORE = 1e29
# Shortest step of a line search, and the residual that rounding may leave, relative to 1 + |y|.
_SHORTEST, _ROUNDING = 1e-9, 1e-9
# Columns of second moments that are averaged at one time: at least _COLUMNS, at most _VALUES
# numbers.
_COLUMNS, _VALUES = 256, 2**22


class _Setting(NamedTuple):
    """Checked arguments: clouds (chains, n, d), and the leading shape that results have."""

    x: Floats
    context: Floats
    lead: tuple[int, ...]
    h: float
    beta: float
    prior: Prior
    kernel: Kernel
    left_out: NDArray[np.int64] | None

    @property
    def scale(self) -> float:
        """beta/(2h), the slope of q where it is linear."""
        return self.beta / (2 * self.h)


class _Keys(NamedTuple):
    """Arguments of the kernel from the context: keys y - centre, biases relative to the largest.

    Points are taken relative to the centre of the context, so that rounding is that of the cloud
    and not of its place.
    """

    keys: FloatArray
    bias: FloatArray
    top: FloatArray
    centre: FloatArray


class _Queries(NamedTuple):
    """Arguments of the kernel from x: q(x), U(x, y) - <q, y - centre> - bias(y), and Dq."""

    queries: FloatArray
    constant: FloatArray
    slope: FloatArray | None


def _setting(
    x: ArrayLike,
    context: ArrayLike,
    h: float,
    beta: float,
    prior: Prior,
    kernel: str,
    exclude_self: bool = False,
) -> _Setting:
    h, beta = step_of(h, beta)
    prior = as_prior(prior)
    check_choice("kernel", kernel, get_args(Kernel))
    points, tokens = _cloud(x, "x"), _cloud(context, "context")
    if points.shape[-1] != tokens.shape[-1]:
        raise InputError(
            f"context has points of {tokens.shape[-1]} coordinates, x of {points.shape[-1]}: "
            "expected clouds of one dimension"
        )
    try:
        lead = np.broadcast_shapes(points.shape[:-2], tokens.shape[:-2])
    except ValueError:
        raise InputError(
            f"x has the leading shape {points.shape[:-2]}, context {tokens.shape[:-2]}: expected "
            "one number of chains, or a single cloud"
        ) from None
    alone = switch(exclude_self, "exclude_self")
    if alone and points.shape[-2] != tokens.shape[-2]:
        raise InputError(
            f"exclude_self needs a context with a token for each query: x has {points.shape[-2]} "
            f"tokens, context {tokens.shape[-2]}"
        )
    if alone and tokens.shape[-2] < 2:
        raise InputError("exclude_self leaves no token of a context of one: give two or more")
    dtype = np.float32 if points.dtype == tokens.dtype == np.float32 else np.float64

    def chains(cloud: Floats) -> Floats:
        whole = np.broadcast_to(cloud, (*lead, *cloud.shape[-2:]))
        return np.ascontiguousarray(whole.reshape(-1, *cloud.shape[-2:]), dtype)

    own = np.arange(points.shape[-2]) if alone else None
    return _Setting(chains(points), chains(tokens), lead, h, beta, prior, kernel, own)  # type: ignore[arg-type]


def _cloud(value: ArrayLike, name: str) -> Floats:
    cloud = reals(value, name, single=True)
    if cloud.ndim < 2 or 0 in cloud.shape:
        raise InputError(
            f"{name} has shape {cloud.shape}: expected a cloud (n, d), or chains of clouds "
            "(chains, n, d), without an empty axis"
        )
    return cloud


@np.errstate(over="ignore", invalid="ignore")  # _queries checks the scores
def _keys(setting: _Setting) -> _Keys:
    y = setting.context.astype(np.float64, copy=False)
    h, beta, prior, scale = setting.h, setting.beta, setting.prior, setting.scale
    centre = y.mean(axis=1, keepdims=True)
    keys = y - centre
    if setting.kernel == "published":
        bias = 0.5 * beta * prior.envelope(y, h) - 0.5 * scale * _square(y - prior.prox(y, h))
    elif setting.kernel == "laplace":
        bias = 0.5 * beta * prior.envelope(y, h) - 0.5 * scale * _square(keys)
    else:
        bias = -prior.log_normaliser(y, h=h, beta=beta) - 0.5 * scale * _square(keys)
    top = bias.max(axis=-1, keepdims=True)
    return _Keys(keys, bias - top, top, centre)


@np.errstate(over="ignore", invalid="ignore")
def _queries(setting: _Setting, keys: _Keys, x: FloatArray) -> _Queries:
    scale = setting.scale
    slope = None
    if setting.kernel == "published":
        image = setting.prior.prox(x, setting.h)
        queries = scale * (x - image)
        constant = 0.5 * scale * (_square(image) - _square(x)) + _dot(queries, keys.centre)
        derivative = setting.prior.prox_derivative(x, setting.h)
        identity = np.eye(x.shape[-1]) if derivative.ndim > x.ndim else 1.0
        slope = scale * (identity - derivative)
    else:
        queries = scale * (x - keys.centre)
        constant = -0.5 * scale * _square(x - keys.centre)
    largest = math.sqrt(float(np.max(_square(queries))) * float(np.max(_square(keys.keys))))
    if not largest + float(np.max(-keys.bias)) < _LARGEST_SCORE:
        raise InputError(
            f"the scores of the attention leave the range of floats: h = {setting.h:.3g} is too "
            f"small, or beta = {setting.beta:.3g} or the clouds are too large"
        )
    return _Queries(queries, constant + keys.top, slope)


def _square(x: Floats) -> FloatArray:
    return _dot(x, x)


def _dot(x: Floats, y: Floats) -> FloatArray:
    return np.einsum("...i,...i->...", x, y)


def interaction(
    x: ArrayLike,
    y: ArrayLike,
    *,
    h: float,
    beta: float,
    prior: Prior,
    kernel: Kernel = "exact",
) -> Floats:
    r"""Return the interaction U(x, y) of all pairs of two clouds [1]_, as a matrix.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Queries.
    y : array_like, shape (..., m, d)
        Tokens of the context.
    h : float
        Step, > 0.
    beta : float
        Inverse temperature, > 0.
    prior : Prior
        Prior :math:`\psi`, such as ``sampling.L1(2.0)``.
    kernel : {"exact", "laplace", "published"}, default "exact"
        Form of U.

    Returns
    -------
    ndarray, shape (..., n, m)
        Values of U. With the kernel "exact", :math:`\exp(U(x, y) - \beta\psi(x)/2)` is a
        probability density in x.

    Raises
    ------
    InputError
        For h or beta that is not positive, clouds of different dimensions or that are not finite,
        what is no prior, and an unknown kernel.

    Notes
    -----
    .. math::

        U(x, y) = -\frac{\beta}{4h}|x - y|^2 - \log Z(y), \qquad
        Z(y) = \int \exp\Big(-\frac{\beta}{2}\Big(\psi(z) + \frac{|z - y|^2}{2h}\Big)\Big)\,dz;

    the other kernels are those of the module's formulas: "laplace" leaves out the factor
    :math:`(4\pi h/\beta)^{d/2}` of Z.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, equations (3) and (13).

    Examples
    --------
    >>> from wflow import sampling
    >>> sampling.interaction(
    ...     [[0.5]], [[0.0], [1.0]], h=0.1, beta=1.0, prior=sampling.L1(2.0), kernel="laplace"
    ... ).round(6)
    array([[-0.625,  0.275]])
    """
    setting = _setting(x, y, h, beta, prior, kernel)
    n, m = setting.x.shape[1], setting.context.shape[1]
    check_memory(
        16.0 * setting.x.shape[0] * n * m,
        f"the interaction of {n} by {m} tokens",
        "take fewer, or attention_mean, which forms no matrix",
    )
    keys = _keys(setting)
    form = _queries(setting, keys, setting.x.astype(np.float64, copy=False))
    result = form.queries @ np.swapaxes(keys.keys, 1, 2)
    result += keys.bias[:, None, :]
    result += form.constant[..., None]
    return result.reshape(*setting.lead, n, m).astype(setting.x.dtype)


# Attention
# ---------


def attention_mean(
    x: ArrayLike,
    context: ArrayLike,
    *,
    h: float,
    beta: float,
    prior: Prior,
    kernel: Kernel = "exact",
    exclude_self: bool = False,
    covariance: bool = False,
) -> AttentionMean:
    r"""Compute attention M(x; C) of queries x over a context C, with the trace of its Jacobian.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Queries; leading axes are chains.
    context : array_like, shape (..., m, d)
        Tokens that are averaged.
    h : float
        Step, > 0.
    beta : float
        Inverse temperature, > 0.
    prior : Prior
        Prior :math:`\psi`, such as ``sampling.L1(2.0)``.
    kernel : {"exact", "laplace", "published"}, default "exact"
        Form of the interaction U.
    exclude_self : bool, default False
        Leave token i of the context out for query i.
    covariance : bool, default False
        Also return the covariance of the context under the weights: n d x d matrices.

    Returns
    -------
    AttentionMean
        Mean, trace of the Jacobian, effective sample size, and logarithm of the sum. In single
        precision where both clouds are.

    Raises
    ------
    InputError
        For h or beta that is not positive, clouds of different dimensions or that are not finite,
        what is no prior, an unknown kernel, and `exclude_self` for a context of another length.

    Notes
    -----
    With :math:`w_l = \operatorname{softmax}_l U(x, c_l)`,

    .. math::

        M(x; C) = \sum_l w_l c_l, \qquad DM = \operatorname{Cov}_w(c)\, Dq(x),

    where :math:`Dq = \beta/(2h)` for the kernels "exact" and "laplace" and
    :math:`\frac{\beta}{2h}(1 - DS(x))` for "published" [1]_. The sums over the pairs are fused:
    memory grows as n + m. Results are bitwise identical for any number of threads.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, equations (3), (13) and (15).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> found = sampling.attention_mean(x, x, h=0.1, beta=1.0, prior=sampling.L1(2.0))
    >>> found.mean.shape, found.trace.shape
    ((100, 2), (100,))
    """
    setting = _setting(x, context, h, beta, prior, kernel, exclude_self)
    if switch(covariance, "covariance"):
        check_memory(
            20.0 * setting.x.size * setting.x.shape[-1],
            f"a covariance for each of {setting.x[..., 0].size} queries",
            "take fewer queries",
        )
    found = _attention(setting, covariance=bool(covariance))

    return AttentionMean(
        _as_given(setting, found.mean),
        _as_given(setting, found.trace),
        _as_given(setting, found.ess),
        _as_given(setting, found.log_sum),
        None if found.covariance is None else _as_given(setting, found.covariance),
    )


def _attention(
    setting: _Setting,
    keys: _Keys | None = None,
    x: FloatArray | None = None,
    left_out: NDArray[np.int64] | None = None,
    covariance: bool = False,
) -> AttentionMean:
    """Compute the attention of all queries in double precision, or of `x`, from given `keys`."""
    keys = _keys(setting) if keys is None else keys
    if x is None:
        x, left_out = setting.x.astype(np.float64, copy=False), setting.left_out
    form = _queries(setting, keys, x)
    k, slope, d = keys.keys, form.slope, x.shape[-1]
    coupled = slope is not None and slope.ndim > x.ndim
    matrices: FloatArray | None = None
    spread: FloatArray
    if covariance or coupled:
        rows, columns = np.triu_indices(d)
        found, first, second = _moments(setting, keys, form.queries, left_out, rows, columns)
        matrices = np.empty((*x.shape, d))
        matrices[..., rows, columns] = matrices[..., columns, rows] = second
        matrices -= first[..., :, None] * first[..., None, :]
        spread = np.diagonal(matrices, axis1=-2, axis2=-1)
    elif slope is not None:
        each = np.arange(d)
        found, first, second = _moments(setting, keys, form.queries, left_out, each, each)
        spread = second - first * first
    else:
        values = np.concatenate([k, _square(k)[..., None]], axis=-1)
        found = _means(setting, keys, form.queries, left_out, values)
        first = found.mean[..., :d].astype(np.float64, copy=False)
        spread = found.mean[..., d:] - _square(first)[..., None]
    if coupled and matrices is not None and slope is not None:
        trace = np.sum(matrices * np.swapaxes(slope, -1, -2), axis=(-2, -1))
    else:
        factor = setting.scale if slope is None else slope
        trace = np.sum(np.maximum(spread, 0.0) * factor, axis=-1)
    return AttentionMean(
        first + keys.centre,
        trace,
        found.ess.astype(np.float64, copy=False),
        found.log_sum + form.constant,
        matrices if covariance else None,
    )


def _moments(
    setting: _Setting,
    keys: _Keys,
    queries: FloatArray,
    left_out: NDArray[np.int64] | None,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
) -> tuple[SoftmaxMeans, FloatArray, FloatArray]:
    """Average the keys, and the products of their coordinates `rows` and `columns`."""
    k = keys.keys
    share = max(_COLUMNS, _VALUES // k[..., 0].size)
    parts: list[SoftmaxMeans] = []
    for at in range(0, len(rows), share):  # repeats the exponentials, but keeps memory small
        second = k[..., rows[at : at + share]] * k[..., columns[at : at + share]]
        values = second if parts else np.concatenate([k, second], axis=-1)
        parts.append(_means(setting, keys, queries, left_out, values))
    moments = np.concatenate([part.mean for part in parts], axis=-1, dtype=np.float64)
    return parts[0], moments[..., : k.shape[-1]], moments[..., k.shape[-1] :]


def _means(
    setting: _Setting,
    keys: _Keys,
    queries: FloatArray,
    left_out: NDArray[np.int64] | None,
    values: FloatArray,
) -> SoftmaxMeans:
    """Average values, in the precision of the clouds."""
    q, k, b, v = (
        part.astype(setting.x.dtype, copy=False) for part in (queries, keys.keys, keys.bias, values)
    )
    return softmax_means(q, k, b, v, left_out)


# Score, layer and backward map
# -----------------------------


def score(
    x: ArrayLike,
    context: ArrayLike,
    *,
    h: float,
    beta: float,
    prior: Prior,
    kernel: Kernel = "exact",
    exclude_self: bool = False,
) -> Floats:
    r"""Return the score of the operator's law at x, as attention (Proposition 2 [1]_).

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Points.
    context : array_like, shape (..., m, d)
        Tokens: the law is their empirical measure.
    h : float
        Step, > 0.
    beta : float
        Inverse temperature, > 0.
    prior : Prior
        Prior :math:`\psi`, such as ``sampling.L1(2.0)``.
    kernel : {"exact", "laplace", "published"}, default "exact"
        Form of the interaction U.
    exclude_self : bool, default False
        Leave token i of the context out for query i.

    Returns
    -------
    ndarray, shape (..., n, d)
        Score.

    Raises
    ------
    InputError
        For h or beta that is not positive, clouds of different dimensions or that are not finite,
        what is no prior, an unknown kernel, and `exclude_self` for a context of another length.

    Notes
    -----
    .. math::

        \nabla\log K\rho(x) \approx
            -\frac{\beta}{2}\Big(\frac{x - S(x)}{h} + \frac{x - M(x; C)}{h}\Big).

    The second term is exact for the kernel "exact". The first one is a subgradient of the prior at
    S(x), within O(h) of its gradient at x where that exists.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, equation (14).

    Examples
    --------
    >>> from wflow import sampling
    >>> sampling.score([[0.5]], [[0.0]], h=0.1, beta=1.0, prior=sampling.NoPrior())
    array([[-2.5]])
    """
    setting = _setting(x, context, h, beta, prior, kernel, exclude_self)
    points = setting.x.astype(np.float64, copy=False)
    image = setting.prior.prox(points, setting.h)
    result = setting.scale * (image + _attention(setting).mean - 2 * points)
    return _as_given(setting, result)


def layer(
    x: ArrayLike,
    *,
    h: float,
    beta: float,
    prior: Prior,
    kernel: Kernel = "exact",
    context: ArrayLike | None = None,
    exclude_self: bool = False,
) -> Floats:
    r"""Apply one sparse transformer layer, the proximal half of a step of the operator [1]_.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Tokens.
    h : float
        Step, > 0.
    beta : float
        Inverse temperature, > 0.
    prior : Prior
        Prior :math:`\psi`, such as ``sampling.L1(2.0)``.
    kernel : {"exact", "laplace", "published"}, default "exact"
        Form of the interaction U.
    context : array_like, shape (..., m, d), optional
        Tokens that are averaged; None for x itself.
    exclude_self : bool, default False
        Leave token i of the context out for query i.

    Returns
    -------
    ndarray, shape (..., n, d)
        Tokens after the layer.

    Raises
    ------
    InputError
        For h or beta that is not positive, clouds of different dimensions or that are not finite,
        what is no prior, an unknown kernel, and `exclude_self` for a context of another length.

    Warns
    -----
    RuntimeWarning
        Where the map of a token is not orientation preserving (`folded`), with the share of these
        tokens.
    UserWarning
        Where coordinates are absorbed by the proximal map and h is larger than
        `Prior.largest_step`, with their share.

    Notes
    -----
    .. math:: G(x) = x + \frac{1}{2}\big[S(x) - M(x; C)\big]
                  = S(x) - \frac{h}{\beta}\nabla\log K\rho(x).

    A cloud inside ``|x_i| <= lambda h`` shrinks to 0 in the coordinate i, for which reason
    :math:`\beta\lambda^2 h \le 0.05` is advised for the L1 norm.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, equations (15) and (22).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> sampling.layer(x, h=0.01, beta=1.0, prior=sampling.L1(2.0)).shape
    (100, 2)
    """
    setting = _setting(x, x if context is None else context, h, beta, prior, kernel, exclude_self)
    keys = _keys(setting)
    points = setting.x.astype(np.float64, copy=False)
    found = _attention(setting, keys, points, setting.left_out)
    share = np.mean(_folded(setting, keys, found.trace))
    if share > 0:
        warn(
            f"the layer folds {100 * share:.3g} % of the tokens: its map has an eigenvalue <= 0 "
            "there, so that it has no inverse and no density; take a smaller beta or a larger h, "
            "or the backward map, which has an inverse",
            AccuracyWarning,
        )
    if too_long(setting.prior, h=setting.h, beta=setting.beta):
        absorbed = _share_absorbed(points, setting.prior, setting.h)
        if absorbed > 0:
            warn_of_absorption(setting.prior, h=setting.h, beta=setting.beta, share=absorbed)
    image = setting.prior.prox(points, setting.h)
    return _as_given(setting, points + 0.5 * (image - found.mean))


def _share_absorbed(x: FloatArray, prior: Prior, h: float) -> float:
    """Return the share of coordinates, or directions, whose spread the proximal map removes."""
    derivative = prior.prox_derivative(x, h)
    coupled = derivative.ndim > x.ndim
    return float(np.mean((np.linalg.eigvalsh(derivative) if coupled else derivative) < 0.5))


def folded(
    x: ArrayLike,
    context: ArrayLike,
    *,
    h: float,
    beta: float,
    prior: Prior,
    kernel: Kernel = "exact",
    exclude_self: bool = False,
) -> NDArray[np.bool_]:
    r"""Return whether a layer folds the cloud at each token: a Jacobian eigenvalue is <= 0.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Tokens.
    context : array_like, shape (..., m, d)
        Tokens that are averaged.
    h : float
        Step, > 0.
    beta : float
        Inverse temperature, > 0.
    prior : Prior
        Prior :math:`\psi`, such as ``sampling.L1(2.0)``.
    kernel : {"exact", "laplace", "published"}, default "exact"
        Form of the interaction U.
    exclude_self : bool, default False
        Leave token i of the context out for query i.

    Returns
    -------
    ndarray of bool, shape (..., n)
        True where the layer `layer` is not locally invertible, or reverses the orientation.

    Raises
    ------
    InputError
        For h or beta that is not positive, clouds of different dimensions or that are not finite,
        what is no prior, an unknown kernel, and `exclude_self` for a context of another length.

    Notes
    -----
    The Jacobian of the layer [1]_ for a context that does not move is
    :math:`DG = 1 + \frac{1}{2} DS - \frac{1}{2} DM`. It is formed only where the trace of DM is 2
    or more, without which all eigenvalues are positive.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, equation (22).

    Examples
    --------
    >>> from wflow import sampling
    >>> far = [[-3.0], [3.0]]
    >>> sampling.folded([[0.0], [3.0]], far, h=0.5, beta=1.0, prior=sampling.NoPrior())
    array([ True, False])
    """
    setting = _setting(x, context, h, beta, prior, kernel, exclude_self)
    keys = _keys(setting)
    points = setting.x.astype(np.float64, copy=False)
    trace = _attention(setting, keys, points, setting.left_out).trace
    return _folded(setting, keys, trace).reshape(*setting.lead, -1)


def _folded(setting: _Setting, keys: _Keys, trace: Floats) -> NDArray[np.bool_]:
    found = np.zeros(trace.shape, dtype=bool)
    for chain, place in _batches(setting, trace >= 2.0):
        x = setting.x[chain, place].astype(np.float64, copy=False)
        jacobian = np.eye(x.shape[-1]) + _half(setting, keys, chain, place, x)
        found[chain, place] = np.linalg.eigvals(jacobian).real.min(axis=-1) <= 0
    return found


def backward(
    x: ArrayLike,
    context: ArrayLike,
    *,
    h: float,
    beta: float,
    prior: Prior,
    kernel: Kernel = "exact",
    exclude_self: bool = False,
) -> Floats:
    r"""Apply the backward map B, the inverse of a layer of the flow whose density is exact.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Tokens.
    context : array_like, shape (..., m, d)
        Tokens that are averaged; they must not move with x.
    h : float
        Step, > 0.
    beta : float
        Inverse temperature, > 0.
    prior : Prior
        Prior :math:`\psi`, such as ``sampling.L1(2.0)``.
    kernel : {"exact", "laplace", "published"}, default "exact"
        Form of the interaction U.
    exclude_self : bool, default False
        Leave token i of the context out for query i.

    Returns
    -------
    ndarray, shape (..., n, d)
        Images B(x).

    Raises
    ------
    InputError
        For h or beta that is not positive, clouds of different dimensions or that are not finite,
        what is no prior, an unknown kernel, and `exclude_self` for a context of another length.

    Notes
    -----
    .. math:: B(x) = x - \frac{1}{2}\big[S(x) - M(x; C)\big],

    the layer of the paper [1]_ with the opposite sign. For a convex prior and the kernels "exact"
    and "laplace" it is the gradient of the strongly convex function

    .. math::

        F(x) = \frac{|x|^2}{2} + \frac{h}{2} e_h(x)
             + \frac{h}{\beta}\log\sum_l \exp U(x, c_l), \qquad D^2 F \ge \frac{1}{2},

    and so has an inverse, `backward_inverse`, whatever the step.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, equation (22).

    Examples
    --------
    >>> from wflow import sampling
    >>> sampling.backward([[1.0]], [[0.0]], h=0.1, beta=1.0, prior=sampling.L1(2.0))
    array([[0.6]])
    """
    setting = _setting(x, context, h, beta, prior, kernel, exclude_self)
    points = setting.x.astype(np.float64, copy=False)
    image = setting.prior.prox(points, setting.h)
    return _as_given(setting, points - 0.5 * (image - _attention(setting).mean))


def backward_inverse(
    y: ArrayLike,
    context: ArrayLike,
    *,
    h: float,
    beta: float,
    prior: Prior,
    kernel: Kernel = "exact",
    exclude_self: bool = False,
    tolerance: float = 1e-14,
    max_iterations: int = 100,
) -> Floats:
    r"""Invert the backward map: return the x with B(x) = y.

    Parameters
    ----------
    y : array_like, shape (..., n, d)
        Images.
    context : array_like, shape (..., m, d)
        Tokens that are averaged, those of `backward`.
    h : float
        Step, > 0.
    beta : float
        Inverse temperature, > 0.
    prior : Prior
        Prior :math:`\psi`, such as ``sampling.L1(2.0)``.
    kernel : {"exact", "laplace", "published"}, default "exact"
        Form of the interaction U.
    exclude_self : bool, default False
        Leave token i of the context out for query i.
    tolerance : float, default 1e-14
        Largest ``|B(x) - y|``, relative to ``1 + |y|``, where rounding allows it.
    max_iterations : int, default 100
        Newton steps.

    Returns
    -------
    ndarray, shape (..., n, d)
        Tokens x.

    Raises
    ------
    InputError
        For arguments that `backward` refuses, a tolerance that is not positive, and where the
        iteration does not converge, which is possible only for the kernel "published" or a prior
        that is not convex.

    Notes
    -----
    A damped Newton method for the minimum of :math:`F(x) - \langle x, y\rangle` with the strongly
    convex F of `backward` [1]_; at the kinks of the prior it is semismooth. For the kernel
    "published", where there is no F, the squared residual takes its place. It forms a d x d matrix
    for each token, some at a time, and computes in double precision.

    References
    ----------
    .. [1] Han, Osher and Li, *Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior*, equation (22).

    Examples
    --------
    >>> import numpy as np
    >>> from wflow import sampling
    >>> x, context = np.random.default_rng(0).normal(size=(2, 50, 3))
    >>> given = dict(h=0.1, beta=1.0, prior=sampling.L1(2.0))
    >>> y = sampling.backward(x, context, **given)
    >>> bool(np.allclose(sampling.backward_inverse(y, context, **given), x, rtol=0, atol=1e-12))
    True
    """
    tolerance = positive(tolerance, "tolerance")
    max_iterations = whole(max_iterations, "max_iterations")
    given = _setting(y, context, h, beta, prior, kernel, exclude_self)
    goal = given.x.astype(np.float64, copy=False)
    setting = given._replace(x=goal, context=given.context.astype(np.float64, copy=False))
    keys = _keys(setting)
    result = np.empty_like(goal)
    failed = 0
    for chain, place in _batches(setting, np.ones(goal.shape[:2], dtype=bool)):
        result[chain, place], solved = _newton(
            setting, keys, chain, place, goal[chain, place], tolerance, max_iterations
        )
        failed += int(np.sum(~solved))
    if failed:
        raise InputError(
            f"B(x) = y was not solved for {failed} of {goal[..., 0].size} tokens in "
            f"{max_iterations} Newton steps: an inverse is certain for a convex prior and the "
            "kernels exact and laplace; take one of these, or allow more max_iterations"
        )
    return _as_given(given, result)


def _newton(
    setting: _Setting,
    keys: _Keys,
    chain: int,
    place: NDArray[np.intp],
    goal: FloatArray,
    tolerance: float,
    max_iterations: int,
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Solve B(x) = goal (n, d) for the tokens `place` of a chain; return x, and what was found."""
    convex = setting.kernel != "published"

    def evaluate(x: FloatArray, some: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Return objective and gradient B(x) - goal; for "published" half of its square."""
        at = _local(setting, keys, chain, place[some], x)
        residual = x - 0.5 * (at.image - at.mean) - goal[some]
        if not convex:
            return 0.5 * _square(residual), residual
        objective = 0.5 * _square(x) + 0.5 * setting.h * setting.prior.envelope(x, setting.h)
        return objective + setting.h / setting.beta * at.log_sum - _dot(x, goal[some]), residual

    at = _local(setting, keys, chain, place, goal)
    x = goal + 0.5 * (at.image - at.mean)
    objective, residual = evaluate(x, np.arange(len(x)))
    unit = 1 + np.sqrt(_square(goal))
    size = np.sqrt(_square(residual))
    active = np.flatnonzero(size > tolerance * unit)
    for _ in range(max_iterations):
        if not active.size:
            break
        half = _half(setting, keys, chain, place[active], x[active])
        step = np.linalg.solve(half - np.eye(x.shape[-1]), residual[active][..., None])[..., 0]
        descent = _dot(residual[active], step) if convex else -2 * objective[active]
        before = size[active]
        rounding = 1e-14 * (unit[active] ** 2 + _square(x[active])) if convex else 0.0 * before
        waiting = np.arange(active.size)
        length = 1.0
        while waiting.size and length > _SHORTEST:
            some = active[waiting]
            trial = x[some] + length * step[waiting]
            new, slope = evaluate(trial, some)
            fine = new <= objective[some] + 1e-4 * length * descent[waiting] + rounding[waiting]
            moved = some[fine]
            x[moved], objective[moved], residual[moved] = trial[fine], new[fine], slope[fine]
            waiting = waiting[~fine]
            length /= 2
        size[active] = np.sqrt(_square(residual[active]))
        # At the level of rounding the residual falls no further.
        ended = (size[active] > 0.5 * before) & (size[active] <= _ROUNDING * unit[active])
        stuck = np.isin(np.arange(active.size), waiting)
        active = active[(size[active] > tolerance * unit[active]) & ~ended & ~stuck]
    return x, size <= _ROUNDING * unit


class _Local(NamedTuple):
    """The proximal map, the attention and its log sum at some tokens of one chain."""

    image: FloatArray
    mean: FloatArray
    log_sum: FloatArray


def _local(
    setting: _Setting, keys: _Keys, chain: int, place: NDArray[np.intp], x: FloatArray
) -> _Local:
    found = _of_chain(setting, keys, chain, place, x, covariance=False)
    return _Local(setting.prior.prox(x, setting.h), found.mean[0], found.log_sum[0])


def _half(
    setting: _Setting, keys: _Keys, chain: int, place: NDArray[np.intp], x: FloatArray
) -> FloatArray:
    """Return (DS - DM)/2 at some tokens of one chain."""
    found = _of_chain(setting, keys, chain, place, x, covariance=True)
    derivative = _matrix(setting.prior.prox_derivative(x, setting.h), x)
    slope = np.asarray(found.covariance)[0] * setting.scale
    if setting.kernel == "published":
        slope = slope @ (np.eye(x.shape[-1]) - derivative)
    return 0.5 * (derivative - slope)


def _of_chain(
    setting: _Setting,
    keys: _Keys,
    chain: int,
    place: NDArray[np.intp],
    x: FloatArray,
    covariance: bool,
) -> AttentionMean:
    left = None if setting.left_out is None else setting.left_out[place]
    mine = _Keys(*(part[chain : chain + 1] for part in keys))
    return _attention(setting, mine, x[None], left, covariance)


def _matrix(derivative: FloatArray, x: FloatArray) -> FloatArray:
    """Return a derivative as matrices, also where only the diagonal is given."""
    if derivative.ndim > x.ndim:
        return derivative
    return derivative[..., None] * np.eye(x.shape[-1])


def _batches(
    setting: _Setting, chosen: NDArray[np.bool_]
) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield chains and places of the chosen tokens, as many at a time as have room for matrices."""
    most = max(1, _VALUES // setting.x.shape[-1] ** 2)
    for chain, row in enumerate(chosen):
        places = np.flatnonzero(row)
        for at in range(0, len(places), most):
            yield chain, places[at : at + most]


def _as_given(setting: _Setting, result: Floats) -> Floats:
    """Return a result (chains, n, d) with the precision and leading axes of the arguments."""
    return result.astype(setting.x.dtype, copy=False).reshape(*setting.lead, *result.shape[1:])
