"""Minimising smooth convex functions of many samples at once, in double precision."""

from collections.abc import Callable

import torch
from torch import Tensor

_STEPS = 200
_HALVINGS = 40
_NEAR = 1e-12  # what a step may promise to lower the value by, where only rounding is left to gain


def by_newton(
    value: Callable[[Tensor], Tensor],
    gradient: Callable[[Tensor], Tensor],
    hessian: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    singular: bool = False,
) -> Tensor:
    """Newton's method with halved steps until no sample's gradient gets smaller any more.

    Parameters
    ----------
    value, gradient, hessian : (batch, k) -> (batch,), (batch, k), (batch, k, k); convex in each
    start : (batch, k)
    singular : whether the Hessian may have a kernel; steps then have no part in it

    Returns
    -------
    (batch, k), where the gradient vanishes to rounding if there is such a point
    """
    x = start.clone()
    slope = gradient(x)
    best, least = x, _norm(slope)
    still = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for _ in range(_STEPS):
        step = _newton_step(hessian(x), slope, singular)
        now = value(x)
        near = (slope * step).sum(-1).abs() <= _NEAR * (1 + now.abs())
        x = x + _damping(value, now, x, step, slope) * step
        slope = gradient(x)
        length = _norm(slope)
        # At rounding the gradient wanders: a sample is done after three steps without gain there.
        still = torch.where(near & (length >= 0.5 * least), still + 1, 0)
        best = torch.where((length < least)[:, None], x, best)
        least = torch.minimum(least, length)
        if bool((still >= 3).all()):
            break
    return best


def by_lbfgs(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Minimise by torch's L-BFGS with a strong Wolfe line search, restarted until it stays."""
    x = start.clone().requires_grad_(True)
    for _ in range(3):
        before = x.detach().clone()
        search = torch.optim.LBFGS(
            [x],
            max_iter=500,
            history_size=50,
            tolerance_grad=1e-11,
            tolerance_change=1e-16,
            line_search_fn="strong_wolfe",
        )

        def closure(search: torch.optim.LBFGS = search) -> Tensor:
            search.zero_grad()
            total = objective(x)
            total.backward()
            return total

        search.step(closure)  # type: ignore[no-untyped-call]
        if torch.equal(before, x.detach()):
            break
    return x.detach()


def _newton_step(hessian: Tensor, slope: Tensor, singular: bool) -> Tensor:
    if singular:
        # A regularised step stays in the range of the Hessian, where the gradient lies, and is
        # as good as Newton's once the gradient is small.
        diagonal = torch.diagonal(hessian, dim1=1, dim2=2)
        floor = 1e-9 * diagonal.amax(1).clamp(min=torch.finfo(slope.dtype).tiny)
        eye = torch.eye(slope.shape[1], dtype=slope.dtype, device=slope.device)
        hessian = hessian + (_norm(slope) + floor)[:, None, None] * eye
    return -torch.linalg.solve(hessian, slope[:, :, None])[:, :, 0]


def _damping(
    value: Callable[[Tensor], Tensor], now: Tensor, x: Tensor, step: Tensor, slope: Tensor
) -> Tensor:
    """Largest 2^-k per sample that lowers the value `now` at x enough, (batch, 1)."""
    promised = (slope * step).sum(-1)
    share = torch.ones_like(now)
    # What rounding leaves of the value; at the optimum full steps are taken.
    slack = 16 * torch.finfo(now.dtype).eps * (1 + now.abs())
    for _ in range(_HALVINGS):
        tried = value(x + share[:, None] * step)
        enough = tried <= now + 1e-4 * share * promised + slack
        if bool(enough.all()):
            break
        share = torch.where(enough, share, share / 2)
    return share[:, None]


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)
