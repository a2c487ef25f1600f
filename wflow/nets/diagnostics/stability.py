"""Stable forward propagation: the change of outputs with inputs and targets ([OTT] Thm 2)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from wflow._core.checks import check_choice, number, positive, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import wide
from wflow.nets.checks import tensor
from wflow.nets.continuous import Cost


class Bound(NamedTuple):
    """Constants of the bound of `stability_bound`.

    Parameters
    ----------
    inputs : float
        Factor of the change of the inputs, L / (1 - T L^2 / lambda).
    targets : float
        Factor of the change of the targets, (T L^2 / lambda) / (1 - T L^2 / lambda).

    Examples
    --------
    >>> from wflow import nets
    >>> nets.diagnostics.stability_bound(t_final=1.0, L=1.0, lam=2.0)
    Bound(inputs=2.0, targets=1.0)
    """

    inputs: float
    targets: float


class Stability(NamedTuple):
    """Comparison of pairs of outputs with the bound of `stability_bound`.

    Parameters
    ----------
    change : Tensor, shape (batch,)
        Distances of the outputs.
    bound : Tensor, shape (batch,)
        What the bound allows.
    tightness : Tensor, shape (batch,)
        ``change / bound``; NaN where the bound is zero.
    holds : bool
        Whether no change exceeds its bound by more than rounding.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> problem = nets.convex.ConvexProblem(torch.eye(2), lam=4.0)
    >>> x, y = torch.zeros(3, 2), torch.ones(3, 2)
    >>> problem.stability(x, y, x + 1, y).holds
    True
    """

    change: Tensor
    bound: Tensor
    tightness: Tensor
    holds: bool


def stability_bound(
    t_final: float,
    L: float,
    lam: float,
    *,
    cost: Cost = "sum",
    entries: int | None = None,
    loss_weight: float = 1.0,
) -> Bound:
    r"""Return the constants of the bound of theorem 2 of [1]_ on the change of outputs.

    .. math:: |\tilde y_1 - \tilde y_2| \le \frac{L}{1 - T L^2/\lambda} \|X_1(0) - X_2(0)\|_F
       + \frac{T L^2/\lambda}{1 - T L^2/\lambda} |y_1 - y_2|, \qquad \lambda > T L^2.

    The theorem minimises ``G + (lambda/2) int |f|_F^2 dt``. A training that weighs the two
    otherwise minimises the same with another lambda, and that one must exceed T L^2:

    - lambda = lam for ``cost="sum"``, eq. 8 of [1]_;
    - lambda = lam / entries for ``cost="mean"``, eq. 8 of the first version of [1]_;
    - divided by `loss_weight` where the data loss is loss_weight G.

    So for a language model whose loss is the mean over n tokens, loss_weight = 1/n: with the `mean`
    cost over n d entries, lambda = lam / d. Published text-generation runs use the mean cost
    without its factor 1/2: lam here is twice the lambda stated there.

    Parameters
    ----------
    t_final : float
        End time T.
    L : float
        Operator norm of the output layer (`operator_norm`).
    lam : float
        Weight of the transport cost in the loss.
    cost : {"mean", "sum"}
        That of the `ContinuousTransformer`.
    entries : int, optional
        Number of entries of the hidden state of one sample, tokens times width; for "mean".
    loss_weight : float, default 1.0
        Factor of G in the loss, where G is the sum of F.1 of [1]_ over the outputs of a sample.

    Returns
    -------
    Bound
        The two constants.

    Raises
    ------
    InputError
        Unless lambda > T L^2; and for numbers out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Theorem 2, eq. 11; proof in F.7.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.diagnostics.stability_bound(t_final=1.0, L=0.5, lam=1.0).inputs
    0.6666666666666666
    """
    t_final, L = positive(t_final, "t_final"), number(L, "L", least=0.0)
    check_choice("cost", cost, ("sum", "mean"))
    effective = positive(lam, "lam") / positive(loss_weight, "loss_weight")
    if cost == "mean":
        if entries is None:
            raise InputError("cost='mean' needs entries: tokens times width of a hidden state")
        effective /= whole(entries, "entries")
    elif entries is not None:
        raise InputError("entries belongs to cost='mean': leave it out")
    least = t_final * L**2 if L < 1e150 else math.inf
    share = least / effective if effective else math.inf
    if not share < 1:
        raise InputError(
            f"the bound needs lambda > T L^2, and lambda = {effective:.6g} (as the theorem counts "
            f"it), T L^2 = {least:.6g}: take a larger lam, or an output layer of smaller "
            "norm (weight decay)"
        )
    return Bound(L / (1 - share), share / (1 - share))


@torch.no_grad()
def check_stability(
    outputs1: Tensor,
    outputs2: Tensor,
    x1: Tensor,
    x2: Tensor,
    y1: Tensor,
    y2: Tensor,
    *,
    t_final: float,
    L: float,
    lam: float,
    cost: Cost = "sum",
    entries: int | None = None,
    loss_weight: float = 1.0,
) -> Stability:
    """Compare pairs of outputs with the bound of theorem 2 of [1]_.

    The theorem is about the optimal velocity of eq. 10 there. A trained network may exceed the
    bound: this says whether it does.

    Parameters
    ----------
    outputs1, outputs2 : Tensor, shape (batch, ...)
        Model outputs: linear ones for a squared loss, the softmax of them for cross-entropy.
    x1, x2 : Tensor, shape (batch, ...)
        Embedded inputs X(0).
    y1, y2 : Tensor
        Targets of the shape of the outputs, or whole numbers of classes of their shape without the
        last dimension.
    t_final, L, lam : float
        As for `stability_bound`.
    cost : {"sum", "mean"}
        As for `stability_bound`.
    entries : int, optional
        As for `stability_bound`.
    loss_weight : float, default 1.0
        As for `stability_bound`.

    Returns
    -------
    Stability
        Changes, bounds, and whether they hold.

    Raises
    ------
    InputError
        As `stability_bound`, and for tensors that do not fit each other.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Theorem 2.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> x, y = torch.zeros(3, 2), torch.ones(3, 2)
    >>> found = nets.diagnostics.check_stability(
    ...     0.5 * x, 0.5 * (x + 1), x, x + 1, y, y, t_final=1.0, L=0.5, lam=1.0
    ... )
    >>> found.holds
    True
    """
    given = {"outputs1": outputs1, "outputs2": outputs2, "x1": x1, "x2": x2}
    for name, value in given.items():
        tensor(value, name, "real")
    for name, value in {"y1": y1, "y2": y2}.items():
        tensor(value, name, "number")
    for name, one, two in (("outputs", outputs1, outputs2), ("x", x1, x2), ("y", y1, y2)):
        if one.shape != two.shape or one.ndim < 1 or len(one) != len(x1) or not len(one):
            raise InputError(
                f"{name}1 has shape {tuple(one.shape)} and {name}2 {tuple(two.shape)}: expected "
                "the same, with as many samples as x1"
            )
    bound = stability_bound(t_final, L, lam, cost=cost, entries=entries, loss_weight=loss_weight)
    change = _distance(outputs1, outputs2)
    moved = _distance(x1, x2).to(change)
    retargeted = _distance(_targets(y1, outputs1), _targets(y2, outputs2)).to(change)
    allowed = bound.inputs * moved + bound.targets * retargeted
    tightness = torch.where(allowed > 0, change / allowed, torch.nan)
    size = wide(outputs1).abs().max().clamp(min=torch.finfo(change.dtype).tiny)
    rounding = 64 * torch.finfo(outputs1.dtype).eps * size * outputs1[0].numel()
    return Stability(change, allowed, tightness, bool((change <= allowed + rounding).all()))


def _distance(one: Tensor, two: Tensor) -> Tensor:
    return torch.linalg.vector_norm((wide(one) - wide(two)).reshape(len(one), -1), dim=1)


def _targets(y: Tensor, outputs: Tensor) -> Tensor:
    """Return targets in the space of the outputs: classes become unit vectors."""
    if y.shape == outputs.shape and y.is_floating_point():
        return y
    whole_numbers = not y.is_floating_point() and not y.is_complex()
    if not whole_numbers or y.shape != outputs.shape[:-1]:
        raise InputError(
            f"the targets have shape {tuple(y.shape)} and type {y.dtype}: expected real numbers "
            f"{tuple(outputs.shape)}, or classes {tuple(outputs.shape[:-1])}"
        )
    classes = outputs.shape[-1]
    if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(f"the targets name classes outside of 0 to {classes - 1}")
    return functional.one_hot(y.long(), classes).to(torch.float64)
