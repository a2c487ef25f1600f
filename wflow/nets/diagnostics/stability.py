"""Stable forward propagation: how far outputs move when inputs and targets do ([OTT] Thm 2)."""

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
    """The constants of |y~_1 - y~_2| <= inputs |X_1(0) - X_2(0)|_F + targets |y_1 - y_2|_2.

    inputs : L / (1 - T L^2 / lambda)
    targets : (T L^2 / lambda) / (1 - T L^2 / lambda)
    """

    inputs: float
    targets: float


class Stability(NamedTuple):
    """How pairs of outputs compare with the bound.

    change : (batch,), |y~_1 - y~_2|_2
    bound : (batch,), inputs |X_1(0) - X_2(0)|_F + targets |y_1 - y_2|_2
    tightness : (batch,), change / bound; NaN where the bound is zero
    holds : whether no change exceeds its bound by more than rounding
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
    """The two constants of the bound of [OTT] Theorem 2, for lambda > T L^2.

    The theorem minimises G + (lambda/2) int |f|_F^2 dt. A training that weighs the two otherwise
    minimises the same with another lambda, and that one must exceed T L^2:

        lambda = lam                        cost="sum", [OTT] eq. 8
        lambda = lam / entries              cost="mean", [OTT1] eq. 8
        divided by loss_weight              where the data loss is loss_weight G

    So for a language model whose loss is the mean over n tokens, loss_weight = 1/n: with the `mean`
    cost over n d entries, lambda = lam / d. Published text-generation runs use the mean cost
    without its factor 1/2: lam here is twice the lambda stated there.

    Parameters
    ----------
    t_final : float
        T.
    L : float
        Operator norm of the output layer (`operator_norm`).
    lam : float
        Weight of the transport cost in the loss.
    cost : {"mean", "sum"}
        That of the `ContinuousTransformer`.
    entries : int, optional
        Number of entries of the hidden state of one sample, tokens times width; for "mean".
    loss_weight : float, default 1.0
        Factor of G in the loss, where G is the sum of [OTT] F.1 over the outputs of a sample.

    Returns
    -------
    Bound
        Bound(inputs, targets).

    Raises
    ------
    InputError
        Unless lambda > T L^2; and for numbers out of range.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Theorem 2, eq. 11; proof in F.7.
    """
    positive(t_final, "t_final")
    number(L, "L", least=0.0)
    check_choice("cost", cost, ("sum", "mean"))
    effective = positive(lam, "lam") / positive(loss_weight, "loss_weight")
    if cost == "mean":
        if entries is None:
            raise InputError("cost='mean' needs entries: tokens times width of a hidden state")
        effective /= whole(entries, "entries")
    elif entries is not None:
        raise InputError("entries belongs to cost='mean': leave it out")
    share = t_final * L**2 / effective
    if not share < 1:
        raise InputError(
            f"the bound needs lambda > T L^2, and lambda = {effective:.6g} (as the theorem counts "
            f"it), T L^2 = {t_final * L**2:.6g}: take a larger lam, or an output layer of smaller "
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
    """Hold pairs of outputs against the bound of [OTT] Theorem 2.

    The theorem is about the optimal velocity of [OTT] eq. 10. A trained network may exceed the
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
    t_final, L, lam, cost, entries, loss_weight : float or {"mean", "sum"} or int
        As for `stability_bound`.

    Returns
    -------
    Stability
        Stability(change, bound, tightness, holds).

    Raises
    ------
    InputError
        As `stability_bound`, and for tensors that do not fit each other.
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
    """Targets as what the outputs approach: classes become unit vectors."""
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
