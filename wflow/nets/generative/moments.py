r"""Attention of the regularised Wasserstein proximal operator, in torch, with its moments.

All three kernels have the form U(x, y) = q(x) . y + b(y) up to a function of x:

    exact       q = beta x / (2h)             b = -beta |y|^2 / (4h) - log Z(y)
    laplace     q = beta x / (2h)             b = -beta (|y|^2 - |y - S(y)|^2) / (4h)
                                                  + beta lambda |S(y)|_1 / 2
    published   q = beta (x - S(x)) / (2h)    b = beta lambda |S(y)|_1 / 2

so that the weights over a context are a softmax of scaled dot products with a bias for each token.
Its first two moments are sums over the context; they are accumulated for a part of the queries at a
time and computed again in the backward pass, so that the memory is linear in the number of tokens.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from wflow._core.checks import check_choice, number, positive, switch
from wflow._core.errors import InputError
from wflow.nets.checks import tensor

__all__ = ["Attended", "attention", "log_normaliser"]

Kernel = Literal["exact", "laplace", "published"]
Prox = Literal["soft", "smooth"]
Moments = Literal["mean", "variance", "covariance"]

KERNELS = ("exact", "laplace", "published")
PROXES = ("soft", "smooth")
_MOMENTS = ("mean", "variance", "covariance")
_PAIRS = 2**20  # scores that are held at a time
_LARGEST = 1e12  # of lambda and beta


class Attended(NamedTuple):
    """Moments of a context under the weights of attention.

    Parameters
    ----------
    mean : Tensor, shape (n, d)
        Weighted mean M(x; C).
    covariance : Tensor, shape (n, d), (n, d, d) or None
        Weighted variances of the coordinates, or the covariance, where they were asked for.
    log_sum : Tensor, shape (n,)
        Logarithm of the sum of exp(q . c + b) over the context.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> x = torch.randn(6, 2)
    >>> generative.attention(x, x, h=0.1, lam=1.0).mean.shape
    torch.Size([6, 2])
    """

    mean: Tensor
    covariance: Tensor | None
    log_sum: Tensor


class Scores(NamedTuple):
    """Attention before the softmax: scores q(x) . c + b(c), with data for the Jacobian.

    slope : the diagonal of dq/dx, (n, d) or one number
    """

    query: Tensor  # (n, d)
    bias: Tensor  # (m,)
    slope: Tensor | float


def attention(
    x: Tensor,
    context: Tensor,
    *,
    h: float,
    lam: float | Tensor,
    beta: float | Tensor = 1.0,
    kernel: Kernel = "exact",
    prox: Prox = "soft",
    moments: Moments = "mean",
    exclude_self: bool = False,
) -> Attended:
    r"""Compute moments of a context under the kernel of the proximal operator [1]_, L1 prior.

    .. math::

        M(x; C) = \sum_l w_l c_l, \qquad w = \mathrm{softmax}_l\, U(x, c_l)

    Parameters
    ----------
    x : Tensor, shape (n, d)
        Queries.
    context : Tensor, shape (m, d)
        Context C.
    h : float
        Step size > 0.
    lam : float or Tensor, shape ()
        Weight lambda >= 0 of the prior ``lambda |x|_1``.
    beta : float or Tensor, shape (), default 1.0
        Inverse temperature > 0.
    kernel : {"exact", "laplace", "published"}
        `exact`, with the closed normaliser; `laplace`, its approximation at small h; `published`,
        as printed in [1]_, with the proximal map of x where that of y belongs.
    prox : {"soft", "smooth"}
        Proximal map S in the kernels `laplace` and `published`: soft thresholding, or
        x - lambda h tanh(x / (lambda h)).
    moments : {"mean", "variance", "covariance"}
        What to compute beside the mean.
    exclude_self : bool, default False
        Leave token i out of the context of query i; x and the context have the same length then.

    Returns
    -------
    Attended
        The moments; a backward pass goes through them once, to x, context, lambda and beta.

    Raises
    ------
    InputError
        For tensors of other shapes or types and numbers out of range.

    References
    ----------
    .. [1] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior", 2025, Proposition 2.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> x = torch.tensor([[0.0], [1.0]])
    >>> generative.attention(x, x, h=0.1, lam=0.0, exclude_self=True).mean.flatten()
    tensor([1., 0.])
    """
    check_choice("kernel", kernel, KERNELS)
    check_choice("prox", prox, PROXES)
    check_choice("moments", moments, _MOMENTS)
    h = weight(h, "h", bound=1e30)
    alone = switch(exclude_self, "exclude_self")
    x = tensor(x, "x", "real")
    context = tensor(context, "context", "real", x)
    if x.ndim != 2 or context.ndim != 2 or x.shape[1] != context.shape[1] or not len(context):
        raise InputError(
            f"x is of shape {tuple(x.shape)} and context {tuple(context.shape)}: expected (n, d) "
            "and (m, d) with m >= 1"
        )
    if alone and (len(x) != len(context) or len(x) < 2):
        raise InputError(
            f"there are {len(x)} queries and {len(context)} tokens of context: with exclude_self "
            "expected the same two or more tokens"
        )
    lam = _parameter(lam, "lam", x, zero=True)
    beta = _parameter(beta, "beta", x)
    scores = interaction(x, context, h, lam, beta, kernel, prox)
    return attend(scores, context, moments, alone)


def log_normaliser(y: Tensor, *, h: float, lam: float | Tensor, beta: float | Tensor) -> Tensor:
    r"""Log normaliser of the exact kernel for the prior ``lambda |x|_1``, summed over coordinates.

    .. math::

        \log Z(y) = \log\int \exp\Big(-\frac\beta2\Big(\lambda|z|_1 +
        \frac{|z - y|^2}{2h}\Big)\Big)\,dz

    Parameters
    ----------
    y : Tensor, shape (n, d)
        Points.
    h : float
        Step size > 0.
    lam : float or Tensor, shape ()
        Weight lambda >= 0.
    beta : float or Tensor, shape ()
        Inverse temperature > 0.

    Returns
    -------
    Tensor, shape (n,)
        Values; stable gradients with respect to y, lambda and beta.

    Raises
    ------
    InputError
        For tensors of other shapes or types and numbers out of range.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> value = generative.log_normaliser(torch.zeros(1, 1), h=0.5, lam=0.0, beta=2.0)
    >>> torch.allclose(value, torch.tensor([torch.pi]).log() / 2)
    True
    """
    h = weight(h, "h", bound=1e30)
    y = tensor(y, "y", "real")
    if y.ndim != 2:
        raise InputError(f"y is of shape {tuple(y.shape)}: expected (n, d)")
    lam, beta = _parameter(lam, "lam", y, zero=True), _parameter(beta, "beta", y)
    a, c = beta / (4 * h), beta * lam / 2
    shift = y.new_tensor(math.pi) / a
    return (_log_normaliser(y, a, c) + c * c / (4 * a) + shift.log() / 2).sum(1)


def interaction(
    x: Tensor,
    context: Tensor,
    h: float,
    lam: float | Tensor,
    beta: float | Tensor,
    kernel: Kernel,
    prox: Prox,
) -> Scores:
    """Return query and bias of a kernel, without checks."""
    kappa = beta / (2 * h)
    if kernel == "exact":
        squares = context.square().sum(1)
        normaliser = _log_normaliser(context, kappa / 2, beta * lam / 2).sum(1)
        return Scores(kappa * x, -kappa / 2 * squares - normaliser, kappa)
    shrunk = proximal(context, lam * h, prox)[0]
    prior = (beta * lam / 2) * shrunk.abs().sum(1)
    if kernel == "laplace":
        squares = ((2 * context - shrunk) * shrunk).sum(1)  # |y|^2 - |y - S|^2
        return Scores(kappa * x, -kappa / 2 * squares + prior, kappa)
    near, slope = proximal(x, lam * h, prox)
    return Scores(kappa * (x - near), prior, kappa * (1 - slope))


def attend(scores: Scores, context: Tensor, moments: Moments, exclude_self: bool) -> Attended:
    """Return moments of a context under given scores, without checks."""
    # The weights do not change with the origin, and near the mean the second moments cancel less.
    origin = context.detach().mean(0)
    centred = context - origin
    d = context.shape[1]
    values = centred
    rows, columns = torch.triu_indices(d, d, device=context.device)
    if moments == "variance":
        values = torch.cat([centred, centred.square()], 1)
    elif moments == "covariance":
        values = torch.cat([centred, centred[:, rows] * centred[:, columns]], 1)
    mean, log_sum = averages(scores, centred, values, exclude_self)
    covariance = None
    first = mean[:, :d]
    if moments == "variance":
        covariance = mean[:, d:] - first.square()
    elif moments == "covariance":
        spread = mean[:, d:] - first[:, rows] * first[:, columns]
        places = torch.empty(d, d, dtype=torch.int64, device=context.device)
        order = torch.arange(len(rows), device=context.device)
        places[rows, columns] = places[columns, rows] = order
        covariance = spread[:, places.flatten()].view(-1, d, d)
    return Attended(first + origin, covariance, log_sum + scores.query @ origin)


def with_itself(
    at: Attended, scores: Scores, x: Tensor, context: Tensor
) -> tuple[Attended, Tensor]:
    """Return moments over a context and the query itself, and the weight (n,) of the latter.

    The query counts as a token at its place with the mean of b + kappa |c|^2 / 2 over the context;
    U is kappa x . y + b(y) here, as for the kernels `exact` and `laplace`.
    """
    half = scores.slope / 2
    own = half * x.square().sum(1) + (scores.bias + half * context.square().sum(1)).mean()
    log_sum = torch.logaddexp(at.log_sum, own)
    share = (own - log_sum).exp()
    rest, away = (1 - share)[:, None], at.mean - x
    covariance = at.covariance
    if covariance is not None:
        between = share[:, None, None] * away[:, :, None] * away[:, None, :]
        covariance = rest[:, :, None] * (covariance + between)
    return Attended(x + rest * away, covariance, log_sum), share


def averages(
    scores: Scores, keys: Tensor, values: Tensor, exclude_self: bool
) -> tuple[Tensor, Tensor]:
    """Average values under the weights of the scores, (n, k), and return the log of their sum."""
    found: tuple[Tensor, Tensor] = _Average.apply(
        scores.query, keys, scores.bias, values, exclude_self
    )
    return found


@torch.no_grad()
def effective_size(scores: Scores, context: Tensor, exclude_self: bool) -> Tensor:
    """Return the effective sample size 1 / sum_l w_l^2 of the weights of each query."""
    centred = context - context.mean(0)
    sizes = []
    for _, weights, total, _ in parts(scores.query, centred, scores.bias, exclude_self):
        sizes.append(total.square() / weights.square().sum(1))
    return torch.cat(sizes)


def proximal(x: Tensor, width: float | Tensor, kind: Prox) -> tuple[Tensor, Tensor]:
    """Return the proximal map of width |x|_1, soft or smooth, and its derivative."""
    if not isinstance(width, Tensor):
        if width == 0:
            return x, torch.ones_like(x)
        width = x.new_tensor(width)
    if kind == "soft":
        return x - torch.clamp(x, -width, width), (x.abs() > width).to(x)
    bend = torch.tanh(x / width)
    return x - width * bend, bend.square()


def _log_normaliser(y: Tensor, a: float | Tensor, c: float | Tensor) -> Tensor:
    """Return log[e^{-cy} Phi(r y - s) + e^{cy} Phi(-r y - s)], r = sqrt(2a), s = c / sqrt(2a)."""
    if not isinstance(c, Tensor) and c == 0:
        return torch.zeros_like(y)
    a, c = (value if isinstance(value, Tensor) else y.new_tensor(value) for value in (a, c))
    rate = (2 * a).sqrt()
    shift, scaled, tilt = c / rate, rate * y, c * y
    return torch.logaddexp(
        torch.special.log_ndtr(scaled - shift) - tilt,
        torch.special.log_ndtr(-scaled - shift) + tilt,
    )


def parts(
    query: Tensor, keys: Tensor, bias: Tensor, exclude_self: bool
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield rows, exp(scores - largest), its sums and the largest, for some queries at a time."""
    for rows in _rows(len(query), len(keys)):
        scores = _scores(query, keys, bias, rows, exclude_self)
        largest = scores.amax(1)
        _exponentials(scores, largest)
        yield rows, scores, scores.sum(1), largest


def _rows(queries: int, keys: int) -> Iterator[slice]:
    size = max(1, _PAIRS // keys)
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))


def _scores(query: Tensor, keys: Tensor, bias: Tensor, rows: slice, exclude_self: bool) -> Tensor:
    scores = torch.addmm(bias, query[rows], keys.T)
    if exclude_self:
        scores.diagonal(rows.start).fill_(-math.inf)
    return scores


def _exponentials(scores: Tensor, largest: Tensor) -> None:
    """Replace scores by exp(scores - largest), and by 0 what no sum of them can show.

    Subnormal numbers, which come of products with such weights, make arithmetic slow.
    """
    scores.sub_(largest[:, None]).exp_()
    torch.threshold_(scores, torch.finfo(scores.dtype).tiny ** 0.5, 0.0)


class _Average(torch.autograd.Function):
    """Averages of values under softmax(query . keys + bias), and the log of the sum.

    The backward pass computes the weights again from the log of their sum: memory O((n + m) d).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, bias: Tensor, values: Tensor, exclude_self: bool
    ) -> tuple[Tensor, Tensor]:
        means, sums = [], []
        for _, weights, total, largest in parts(query, keys, bias, exclude_self):
            means.append((weights @ values).div_(total[:, None]))
            sums.append(total.log_().add_(largest))
        mean, log_sum = torch.cat(means), torch.cat(sums)
        ctx.save_for_backward(query, keys, bias, values, mean, log_sum)
        ctx.exclude_self = exclude_self
        return mean, log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, bias, values, mean, log_sum = ctx.saved_tensors
        by_mean, by_sum = grads
        offset = by_sum - (by_mean * mean).sum(1)
        by_query = torch.empty_like(query)
        by_keys, by_bias, by_values = map(torch.zeros_like, (keys, bias, values))
        for rows in _rows(len(query), len(keys)):
            weights = _scores(query, keys, bias, rows, ctx.exclude_self)
            _exponentials(weights, log_sum[rows])
            by_values.addmm_(weights.T, by_mean[rows])
            slopes = torch.addmm(offset[rows, None], by_mean[rows], values.T).mul_(weights)
            torch.mm(slopes, keys, out=by_query[rows])
            by_keys.addmm_(slopes.T, query[rows])
            by_bias.add_(slopes.sum(0))
        return by_query, by_keys, by_bias, by_values, None


def weight(value: Any, name: str, *, zero: bool = False, bound: float = _LARGEST) -> float:
    """Check lambda, beta or a step: a number whose kernel is in the range of single precision."""
    found = number(value, name, 0) if zero else positive(value, name)
    if found > bound or 0 < found < 1 / bound:
        raise InputError(
            f"{name} is {found:.3g}: expected a number from {1 / bound:g} to {bound:g}"
            + (", or 0" if zero else "")
        )
    return found


def _parameter(value: Any, name: str, like: Tensor, *, zero: bool = False) -> float | Tensor:
    """Check lambda or beta: a number, or a tensor of one."""
    if not isinstance(value, Tensor):
        return weight(value, name, zero=zero)
    tensor(value, name, "real", like)
    least = float(value.detach()) if value.numel() == 1 else math.nan
    if value.ndim or not math.isfinite(least) or least < 0 or (least == 0 and not zero):
        bound = ">= 0" if zero else "> 0"
        raise InputError(f"{name} is {value!r:.60}: expected a number {bound}, or a tensor of one")
    return value
