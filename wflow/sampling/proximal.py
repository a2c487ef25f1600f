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

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import check_choice, positive, reals, switch
from wflow._core.errors import InputError
from wflow._core.reprs import ShortResult
from wflow.sampling.priors import Prior, as_prior
from wflow.sampling.softmax_sums import SoftmaxMeans, softmax_means

__all__ = [
    "AttentionMean",
    "attention_mean",
    "interaction",
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


class _Setting(NamedTuple):
    """Checked arguments: clouds (chains, n, d), and the leading shape that results have."""

    x: Floats
    context: Floats
    lead: tuple[int, ...]
    h: float
    beta: float
    prior: Prior
    kernel: Kernel
    exclude_self: bool

    @property
    def scale(self) -> float:
        """beta/(2h), the slope of q where it is linear."""
        return self.beta / (2 * self.h)


class _Product(NamedTuple):
    """U(x, y) = <q, y - centre> + bias(y) + constant(x), and the slope of q, where not beta/(2h).

    Points are taken relative to the centre of the context, so that rounding is that of the cloud
    and not of its place.
    """

    queries: Floats
    keys: Floats
    bias: Floats
    constant: Floats
    centre: Floats
    slope: Floats | None


def _setting(
    x: ArrayLike,
    context: ArrayLike,
    h: float,
    beta: float,
    prior: Prior,
    kernel: str,
    exclude_self: bool = False,
) -> _Setting:
    h, beta = positive(h, "h"), positive(beta, "beta")
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

    return _Setting(chains(points), chains(tokens), lead, h, beta, prior, kernel, alone)  # type: ignore[arg-type]


def _cloud(value: ArrayLike, name: str) -> Floats:
    cloud = reals(value, name, single=True)
    if cloud.ndim < 2 or 0 in cloud.shape:
        raise InputError(
            f"{name} has shape {cloud.shape}: expected a cloud (n, d), or chains of clouds "
            "(chains, n, d), without an empty axis"
        )
    return cloud


def _product_form(setting: _Setting) -> _Product:
    """Queries, keys and biases of the kernel; in double precision, then in that of the clouds."""
    x, y = (np.asarray(c, np.float64) for c in (setting.x, setting.context))
    h, beta, prior, scale = setting.h, setting.beta, setting.prior, setting.scale
    centre = y.mean(axis=1, keepdims=True)
    keys = y - centre
    slope = None
    if setting.kernel == "published":
        image = prior.prox(x, h)
        queries = scale * (x - image)
        near = prior.prox(y, h)
        bias = 0.5 * beta * prior.envelope(y, h) - 0.5 * scale * _square(y - near)
        constant = 0.5 * scale * (_square(image) - _square(x)) + np.sum(queries * centre, axis=-1)
        derivative = prior.prox_derivative(x, h)
        identity = np.eye(x.shape[-1]) if derivative.ndim > x.ndim else 1.0
        slope = scale * (identity - derivative)
    else:
        away = x - centre
        queries = scale * away
        if setting.kernel == "exact":
            bias = -prior.log_normaliser(y, h=h, beta=beta)
        else:
            bias = 0.5 * beta * prior.envelope(y, h)
        bias = bias - 0.5 * scale * _square(keys)
        constant = -0.5 * scale * _square(away)
    top = bias.max(axis=-1, keepdims=True)
    constant, bias = constant + top, bias - top
    dtype = setting.x.dtype
    return _Product(
        queries.astype(dtype), keys.astype(dtype), bias.astype(dtype), constant, centre, slope
    )


def _square(x: Floats) -> Floats:
    return np.einsum("...i,...i->...", x, x)


def interaction(
    x: ArrayLike,
    y: ArrayLike,
    *,
    h: float,
    beta: float,
    prior: Prior,
    kernel: Kernel = "exact",
) -> Floats:
    r"""Interaction U(x, y) of all pairs of two clouds [1]_, as a matrix.

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
    form = _product_form(setting)
    queries, keys, bias = (np.asarray(part, np.float64) for part in form[:3])
    result = queries @ np.swapaxes(keys, 1, 2) + bias[:, None, :] + form.constant[..., None]
    n, m = setting.x.shape[1], setting.context.shape[1]
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
    r"""Attention M(x; C) of queries x over a context C, with the trace of its Jacobian.

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
    return _attention(setting, switch(covariance, "covariance"))


def _attention(setting: _Setting, covariance: bool = False) -> AttentionMean:
    form = _product_form(setting)
    chains, n, d = setting.x.shape
    dtype, lead = setting.x.dtype, setting.lead
    keys, slope = form.keys, form.slope
    matrices: Floats | None = None
    if covariance or (slope is not None and slope.ndim > 3):
        rows, columns = np.triu_indices(d)
        away, found, second = _moments(form, keys[..., rows] * keys[..., columns], setting)
        matrices = np.empty((chains, n, d, d))
        matrices[..., rows, columns] = matrices[..., columns, rows] = second
        matrices -= away[..., :, None] * away[..., None, :]
        spread = np.einsum("...ii->...i", matrices)
    elif slope is not None:
        away, found, second = _moments(form, keys * keys, setting)
        spread = second - away * away
    else:
        away, found, second = _moments(form, _square(keys)[..., None], setting)
        spread = second - _square(away)[..., None]
    if slope is not None and slope.ndim > 3 and matrices is not None:
        trace = np.einsum("...ij,...ji->...", matrices, slope)
    else:
        factor = setting.scale if slope is None else slope
        trace = np.sum(np.maximum(spread, 0.0) * factor, axis=-1)
    return AttentionMean(
        (away + form.centre).astype(dtype).reshape(*lead, n, d),
        trace.astype(dtype).reshape(*lead, n),
        found.ess.reshape(*lead, n),
        (found.log_sum + form.constant).astype(dtype).reshape(*lead, n),
        matrices.astype(dtype).reshape(*lead, n, d, d)
        if covariance and matrices is not None
        else None,
    )


def _moments(
    form: _Product, second: Floats, setting: _Setting
) -> tuple[FloatArray, SoftmaxMeans, FloatArray]:
    """Averages of the keys and of their second moments, in double precision."""
    values = np.concatenate([form.keys, second], axis=-1)
    found = softmax_means(form.queries, form.keys, form.bias, values, setting.exclude_self)
    first, last = np.split(found.mean.astype(np.float64), [form.keys.shape[-1]], axis=-1)
    return first, found, last
