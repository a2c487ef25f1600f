"""Distance of the weights of a network from the maximum principle."""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wflow._core.checks import positive, whole
from wflow.nets.checks import module
from wflow.nets.control.maximise import Group, alone, groups_of, maximise, of_layer
from wflow.nets.control.principle import Terminal, examined, hamiltonian_along, objective_of
from wflow.nets.control.sweep import body_of


class Violation(NamedTuple):
    """Violation of the maximum principle by weights that have to be chosen together.

    Parameters
    ----------
    label : str
        Which layers.
    residual : float
        Norm of the gradient of the sum of their Hamiltonians.
    violation : float
        By how much the sum can grow; infinite where it grows without bound.
    converged : bool
        Whether the maximisation converged.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.control.Violation("layers 0, 1", 0.5, 0.25, True).violation
    0.25
    """

    label: str
    residual: float
    violation: float
    converged: bool


class Optimality(NamedTuple):
    """Diagnostics of the maximum principle along the layers of a network.

    Parameters
    ----------
    times : Tensor, shape (N + 1,)
        Times of the states, float64.
    hamiltonian : Tensor, shape (N + 1,)
        H(x_l, p_l, u_l), with the control of the last step at the end.
    costate_norms : Tensor, shape (N + 1,)
        Root mean square over the samples of the norms of their costates, times their number m:
        p_l of the loss of a single sample.
    residuals : Tensor, shape (N,)
        Norm of the gradient of the Hamiltonian of each layer by itself in u_l.
    violations : Tensor, shape (N,)
        The violation max_w H(w) - H(u_l) of each layer by itself, the best that L-BFGS found: a
        lower bound. Infinite where H grows without bound.
    converged : Tensor, shape (N,)
        Whether the maximisation converged, bool.
    groups : list of Violation
        The same of all weights that have to be chosen together: layers that share weights are one
        group, and maximise the sum of their Hamiltonians. These are 0 at a minimum of the
        objective. Without shared weights they repeat the layers.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=3, penalty=0.1)
    >>> found = nets.control.optimality(net, torch.ones(4, 2), lambda out: out.square().mean())
    >>> found.violations.shape, bool((found.violations >= 0).all())
    (torch.Size([3]), True)
    """

    times: Tensor
    hamiltonian: Tensor
    costate_norms: Tensor
    residuals: Tensor
    violations: Tensor
    converged: Tensor
    groups: list[Violation]


def optimality(
    network: nn.Module,
    x: Tensor,
    loss: Terminal,
    *,
    weight: float = 1.0,
    iterations: int = 50,
    tolerance: float = 1e-3,
) -> Optimality:
    r"""Measure by how much the layers of a network fail to maximise the Hamiltonian [1]_.

    The network stays as it is.

    Parameters
    ----------
    network : torch.nn.Module
        As for `extremal`.
    x : Tensor
        As for `extremal`.
    loss : callable
        As for `extremal`.
    weight : float, default 1.0
        As for `extremal`.
    iterations : int, default 50
        L-BFGS steps of the maximisation over the weights of a layer.
    tolerance : float, default 1e-3
        Share of the first gradient at which a maximisation has converged.

    Returns
    -------
    Optimality
        Hamiltonian, norms of costates, residuals and violations.

    Raises
    ------
    InputError
        As for `extremal`, and for numbers out of range.
    NonFiniteCostateError
        Where a state, a costate or the Hamiltonian is infinite or NaN.
    NonFiniteLossError
        Where the objective or the gradient of a parameter is.

    Notes
    -----
    The Hamiltonian of a step is that of the discrete problem,

    .. math:: H_l(w) = \sum_i \langle \Lambda_i, f(X_i, w) \rangle - b_i L(X_i, w),

    of which :math:`-h \nabla H_l(u_l)` is the gradient of the objective; for Euler it is
    :math:`H(x_l, p_{l+1}, w)`. That a minimum maximises it, and not only makes its gradient zero,
    holds in continuous time, and in discrete time where the velocities of all weights are convex.
    With weights that layers share it is the sum that counts (`groups`).

    References
    ----------
    .. [1] Li, Chen, Tai and E, "Maximum principle based algorithms for deep learning", J. Mach.
       Learn. Res. 18 (2018), theorem 1.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=3, penalty=0.1)
    >>> found = nets.control.optimality(net, torch.ones(4, 2), lambda out: out.square().mean())
    >>> found.residuals.shape
    torch.Size([3])
    """
    iterations, tolerance = whole(iterations, "iterations"), positive(tolerance, "tolerance")
    body_of(module(network, "network"))
    record, _, _ = examined(network, partial(objective_of, network, x, loss, weight))

    def violated(group: Group) -> Violation:
        if not group.controls:
            return Violation(group.label, 0.0, 0.0, True)
        found = maximise(alone(group), 0.0, iterations, tolerance)
        gain = math.inf if found.unbounded else found.gain
        return Violation(group.label, found.residual, gain, found.converged)

    count = len(record.plan.steps)
    layers = [violated(of_layer(network, record, number)) for number in range(count)]
    by_label = {layer.label: layer for layer in layers}
    groups = [by_label.get(group.label) or violated(group) for group in groups_of(network, record)]
    costates = torch.stack(record.cotangents)
    samples = costates.shape[1]
    norms = torch.linalg.vector_norm(costates.flatten(1).double(), dim=1) * samples**0.5
    times = [*record.times, record.times[-1] + record.lengths[-1]]
    return Optimality(
        torch.tensor(times, dtype=torch.float64),
        hamiltonian_along(record),
        norms,
        torch.tensor([layer.residual for layer in layers], dtype=torch.float64),
        torch.tensor([layer.violation for layer in layers], dtype=torch.float64),
        torch.tensor([layer.converged for layer in layers]),
        groups,
    )
