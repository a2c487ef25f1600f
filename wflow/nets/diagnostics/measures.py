"""Diagnostics of trajectories: straightness, variation of speed, transport cost of each step.

Paths: `straightness`, `speed_variation`, `step_costs` of a `Trajectory`. Maps: `lipschitz`,
`operator_norm`, and the stability of [OTT] Theorem 2 in `stability_bound` and `check_stability`.
Clouds: `hidden_transport`, `transport_ratio`, `transport_along`, for [OTT] Theorem 3.

Results are in double precision, on the device of the trajectory.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from wflow._core.checks import check_choice, switch
from wflow._core.errors import InputError
from wflow.nets.blocks import wide
from wflow.nets.checks import tensor
from wflow.nets.continuous import Trajectory
from wflow.nets.diagnostics.clouds import (
    Transport,
    hidden_transport,
    transport_along,
    transport_ratio,
)
from wflow.nets.diagnostics.constants import Lipschitz, lipschitz, operator_norm
from wflow.nets.diagnostics.stability import Bound, Stability, check_stability, stability_bound

__all__ = [
    "Bound",
    "Lipschitz",
    "Stability",
    "Transport",
    "check_stability",
    "hidden_transport",
    "lipschitz",
    "operator_norm",
    "speed_variation",
    "stability_bound",
    "step_costs",
    "straightness",
    "transport_along",
    "transport_ratio",
]


Per = Literal["sample", "token"]


@torch.no_grad()
def straightness(
    trajectory: Trajectory, *, per: Per = "sample", valid: Tensor | None = None
) -> Tensor:
    r"""Return arc length over chord of hidden trajectories; 1 is a straight line [1]_.

    Parameters
    ----------
    trajectory : Trajectory
        Trajectory of states (M + 1, batch, ...).
    per : {"sample", "token"}
        "sample", norms over all that belongs to a sample; "token", over the last dimension.
    valid : Tensor, shape (batch, tokens), optional
        True where a token is there: the others do not count.

    Returns
    -------
    Tensor, shape (batch,)
        The quotients, (batch, tokens) per token; NaN where the chord is zero: a closed path, or a
        state at rest, is neither straight nor not.

    Raises
    ------
    InputError
        For an unknown choice, tokens asked of states that have none, or `valid` of another shape.

    Notes
    -----
    .. math:: \frac{\sum_m |X_{m+1} - X_m|}{|X_M - X_0|} \ge 1.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Proposition 1 (straight lines at constant speed).

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> body = nets.ContinuousTransformer(torch.nn.Identity(), steps=4)
    >>> path = body.trajectory(torch.ones(2, 3, 5))  # dX/dt = X along a line

    >>> nets.diagnostics.straightness(path).round(decimals=6).tolist()
    [1.0, 1.0]
    """
    moves = _moves(trajectory, per, valid)
    chord = _length(moves.sum(0), per)
    arc = _length(moves, per, steps=True).sum(0)
    return torch.where(chord > 0, arc / chord, torch.nan).clamp(min=1)  # rounding: 1 - 1e-16


@torch.no_grad()
def speed_variation(
    trajectory: Trajectory, *, per: Per = "sample", valid: Tensor | None = None
) -> Tensor:
    """Return the variation of the speed along hidden trajectories; 0 is constant [1]_.

    It is the standard deviation over the mean of the speeds ``|X_{m+1} - X_m| / dt``. The deviation
    is that of the M speeds themselves (divided by M). Times are those of the trajectory, whose
    rounding shows: 1e-7 or so where they are in single precision.

    Parameters
    ----------
    trajectory : Trajectory
        As for `straightness`.
    per : {"sample", "token"}
        As for `straightness`.
    valid : Tensor, shape (batch, tokens), optional
        As for `straightness`.

    Returns
    -------
    Tensor, shape (batch,)
        The quotients, (batch, tokens) per token; NaN for a state at rest.

    Raises
    ------
    InputError
        As for `straightness`.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Proposition 1.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> body = nets.ContinuousTransformer(torch.nn.Identity(), steps=4)
    >>> path = body.trajectory(torch.ones(2, 3, 5))  # dX/dt = X along a line

    >>> nets.diagnostics.speed_variation(path).round(decimals=3).tolist()
    [0.247, 0.247]
    """
    moves = _moves(trajectory, per, valid)
    speed = _length(moves, per, steps=True)
    elapsed = wide(trajectory.times).diff().to(speed.device)
    speed = speed / elapsed.reshape(-1, *[1] * (speed.ndim - 1))
    mean = speed.mean(0)
    return torch.where(mean > 0, speed.std(0, correction=0) / mean, torch.nan)


@torch.no_grad()
def step_costs(trajectory: Trajectory, *, share: bool = False) -> Tensor:
    """Return the transport cost of each step of a trajectory [1]_.

    For a path at constant speed all are equal.

    Parameters
    ----------
    trajectory : Trajectory
        Trajectory of M steps.
    share : bool, default False
        Whether to divide by the whole cost.

    Returns
    -------
    Tensor, shape (M,)
        What each step adds to the cost, or its part of it; parts are NaN where the cost is zero.

    Raises
    ------
    InputError
        For what is no trajectory.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eq. 8.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> body = nets.ContinuousTransformer(torch.nn.Identity(), steps=4)
    >>> path = body.trajectory(torch.ones(2, 3, 5))  # dX/dt = X along a line
    >>> round(nets.diagnostics.step_costs(path, share=True).sum().item(), 6)
    1.0
    """
    costs = wide(_checked(trajectory).costs)
    if not switch(share, "share"):
        return costs
    total = costs.sum()
    return torch.where(total > 0, costs / total, torch.nan)


def _moves(trajectory: Trajectory, per: Per, valid: Tensor | None) -> Tensor:
    """Return X_{m+1} - X_m, (M, batch, ...), zero for absent tokens."""
    check_choice("per", per, ("sample", "token"))
    states = wide(_checked(trajectory).states)
    if states.ndim < 3 or states.shape[0] < 2:
        raise InputError(
            f"the states have shape {tuple(states.shape)}: expected (steps + 1, batch, ...)"
        )
    if per == "token" and states.ndim < 4:
        raise InputError(
            f"the states have shape {tuple(states.shape)}, without a dimension of tokens: take "
            "per='sample'"
        )
    moves = states.diff(dim=0)
    if valid is None:
        return moves
    tensor(valid, "valid", "bool")
    if valid.ndim < 1 or valid.shape != states.shape[1 : 1 + valid.ndim]:
        raise InputError(
            f"valid has shape {tuple(valid.shape)}: expected {tuple(states.shape[1:3])}, the "
            f"samples and tokens of states {tuple(states.shape)}"
        )
    mask = valid.to(moves.device, torch.bool)
    there = mask.reshape(1, *mask.shape, *[1] * (moves.ndim - 1 - mask.ndim))
    return moves.masked_fill(~there, 0)


def _checked(trajectory: Any) -> Trajectory:
    """Check a trajectory and its tensors."""
    if not isinstance(trajectory, Trajectory):
        raise InputError(f"trajectory is {type(trajectory).__name__}: expected a Trajectory")
    for name, value in trajectory._asdict().items():
        tensor(value, f"trajectory.{name}", "real")
    return trajectory


def _length(x: Tensor, per: Per, *, steps: bool = False) -> Tensor:
    """Return norms of (batch, ...), or with `steps` of (M, batch, ...), over the other axes."""
    begin = x.ndim - 1 if per == "token" else 1 + steps
    return torch.linalg.vector_norm(x.flatten(begin), dim=-1)
