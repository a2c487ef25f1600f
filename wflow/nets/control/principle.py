"""States, costates, Hamiltonian and gradients of a network that is read as a control problem."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wflow._core.checks import function, number, shown
from wflow._core.errors import InputError
from wflow.nets.blocks import Flow, Output, output_of
from wflow.nets.checks import module
from wflow.nets.control.sweep import (
    Generators,
    Keep,
    NonFiniteCostateError,
    Record,
    bodies_of,
    body_of,
    swept,
)
from wflow.nets.training.train import NonFiniteLossError

Terminal = Callable[[Tensor], Tensor]


class Extremal(NamedTuple):
    """States and costates of a network, and quantities derived from them.

    Parameters
    ----------
    times : Tensor, shape (N + 1,)
        Times of the states, float64; a discrete stack has T = N.
    states : Tensor, shape (N + 1, ...)
        States x_0 .. x_N.
    costates : Tensor, shape (N + 1, ...)
        Costates p_0 .. p_N, p_N = -grad Phi(x_N).
    hamiltonian : Tensor, shape (N + 1,)
        H(x_l, p_l, u_l), with the control of the last step at the end.
    gradients : dict
        Gradient of the objective by the name of each trainable parameter.
    objective : float
        J, the loss and the running cost.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=3)
    >>> found = nets.control.extremal(net, torch.ones(4, 2), lambda out: out.square().mean())
    >>> found.costates.shape, found.hamiltonian.shape
    (torch.Size([4, 4, 2]), torch.Size([4]))
    """

    times: Tensor
    states: Tensor
    costates: Tensor
    hamiltonian: Tensor
    gradients: dict[str, Tensor]
    objective: float


def extremal(network: nn.Module, x: Tensor, loss: Terminal, *, weight: float = 1.0) -> Extremal:
    r"""Compute states and costates of a network, with Hamiltonian and gradients [1]_ [2]_.

    Parameters
    ----------
    network : torch.nn.Module
        A body of layers, or a network with one: `control.Dynamics`, `ContinuousTransformer`,
        `NodeTransformer` or `blocks.Stack`, such as `ControlledResNet` and `GPT`.
    x : Tensor
        What the network is given: a batch.
    loss : callable
        ``loss(output)``: one number, the terminal cost of the output of the network.
    weight : float, default 1.0
        Weight >= 0 of the running cost that the network returns beside its output.

    Returns
    -------
    Extremal
        States, costates, Hamiltonian and gradients of J = loss + weight * cost.

    Raises
    ------
    InputError
        For a network with no body or with several, layers that change the shape, and a loss that
        is no number.
    NonFiniteCostateError
        Where a state, a costate or the Hamiltonian is infinite or NaN.
    NonFiniteLossError
        Where the objective or the gradient of a parameter is.

    Notes
    -----
    .. math:: H(x, p, u) = \langle p, f(x, u) \rangle - L(x, u), \qquad p_N = -\nabla \Phi(x_N),

    .. math:: p_l = p_{l+1} + h \sum_i G_i, \qquad
       G_i = \nabla_x \bigl( \langle \Lambda_i, f(X_i, u_l) \rangle - b_i L(X_i, u_l) \bigr), \qquad
       \Lambda_i = b_i p_{l+1} + h \sum_j a_{ji} G_j,

    the symplectic partner of the scheme, in a form that serves :math:`b_i = 0` too; then
    :math:`dJ/du_l = -h \sum_i \nabla_u (\langle \Lambda_i, f(X_i, u_l) \rangle - b_i L(X_i, u_l))`
    is the gradient of back-propagation to rounding. A discrete stack is Euler's scheme with
    :math:`h = 1` and f = block - identity. Dropout is that of one forward pass. In the theory:
    :ref:`costates <theory-costates>`.

    References
    ----------
    .. [1] Benning, Celledoni, Ehrhardt, Owren and Schönlieb, "Deep learning as optimal control
       problems: models and numerical methods", J. Comput. Dyn. 6 (2019).
    .. [2] Croizet et al., "GPT Project Part 1 Report" (2025), section 4, eqs. 32 to 45, with
       corrections.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=8, scheme="rk4", shared=True)
    >>> found = nets.control.extremal(net, torch.ones(4, 2), lambda out: out.square().mean())
    >>> float(found.hamiltonian.std() / found.hamiltonian.abs().mean()) < 1e-3
    True
    """
    body_of(module(network, "network"))
    record, total, gradients = examined(network, partial(objective_of, network, x, loss, weight))
    times = torch.tensor([*record.times, record.times[-1] + record.lengths[-1]])
    return Extremal(
        times.double(),
        torch.stack(record.states).detach(),
        -torch.stack(record.cotangents),
        hamiltonian_along(record),
        gradients,
        total,
    )


def states(network: nn.Module, x: Tensor) -> Tensor:
    """Compute the states of a network along its layers.

    Parameters
    ----------
    network : torch.nn.Module
        As for `extremal`.
    x : Tensor
        As for `extremal`.

    Returns
    -------
    Tensor, shape (N + 1, ...)
        States x_0 .. x_N, without a graph.

    Raises
    ------
    InputError
        For a network with no body or with several, and layers that change the shape.
    NonFiniteCostateError
        Where a state is infinite or NaN.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> gpt = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> nets.control.states(gpt, torch.tensor([[3, 1, 4]])).shape
    torch.Size([3, 1, 3, 6])
    """
    body_of(module(network, "network"))
    record = Record()
    with torch.enable_grad(), swept(network, 1, record):
        network(x)
    _check_finite("states are", record.states)
    return torch.stack([state.detach() for state in record.states])


def costates(network: nn.Module, x: Tensor, loss: Terminal, *, weight: float = 1.0) -> Tensor:
    """Compute the costates of a network along its layers.

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

    Returns
    -------
    Tensor, shape (N + 1, ...)
        Costates p_0 .. p_N: minus the gradients of the objective in the states.

    Raises
    ------
    InputError
        As for `extremal`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=3)
    >>> nets.control.costates(net, torch.ones(4, 2), lambda out: out.sum()).shape
    torch.Size([4, 4, 2])
    """
    return extremal(network, x, loss, weight=weight).costates


def hamiltonian(network: nn.Module, x: Tensor, loss: Terminal, *, weight: float = 1.0) -> Tensor:
    r"""Compute the Hamiltonian of a network along its layers.

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

    Returns
    -------
    Tensor, shape (N + 1,)
        :math:`H(x_l, p_l, u_l)`, with the control of the last step at the end. With weights shared
        by all steps it is constant up to the order of the scheme.

    Raises
    ------
    InputError
        As for `extremal`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=3)
    >>> nets.control.hamiltonian(net, torch.ones(4, 2), lambda out: out.sum()).shape
    torch.Size([4])
    """
    return extremal(network, x, loss, weight=weight).hamiltonian


def gradients(
    network: nn.Module, x: Tensor, loss: Terminal, *, weight: float = 1.0, keep: Keep = 1
) -> dict[str, Tensor]:
    """Compute gradients by costates: those of back-propagation, with less memory.

    Parameters
    ----------
    network : torch.nn.Module
        As for `extremal`; it may have several bodies.
    x : Tensor
        As for `extremal`.
    loss : callable
        As for `extremal`.
    weight : float, default 1.0
        As for `extremal`.
    keep : int or "sqrt", default 1
        Keep every `keep`-th state and compute the others again, for memory; "sqrt" is the square
        root of the number of steps.

    Returns
    -------
    dict
        Gradient of loss + weight * cost by the name of each trainable parameter; zeros where it
        has no influence.

    Raises
    ------
    InputError
        For layers that change the shape, a loss that is no number, and `keep` < 1.
    NonFiniteCostateError
        Where a costate is infinite or NaN.
    NonFiniteLossError
        Where the objective or the gradient of a parameter is.

    Notes
    -----
    The states at all stages of a scheme are kept, and the internals of one layer at a time. The
    layers are computed again for it, so that layers with a state, such as batch normalisation,
    update it twice. The formulas
    are those of `extremal`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> gpt = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> tokens = torch.tensor([[3, 1, 4]])
    >>> found = nets.control.gradients(gpt, tokens, lambda out: out.square().mean())
    >>> found["body.blocks.0.attention.qkv.weight"].shape
    torch.Size([18, 6])
    """
    named = _trainable(module(network, "network"))
    if not bodies_of(network):
        body_of(network)  # raises
    with torch.enable_grad():
        with swept(network, keep):
            total = objective_of(network, x, loss, weight)
        found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return _finite(_filled(named, found), float(total.detach()))


def objective_of(network: nn.Module, x: Tensor, loss: Terminal, weight: float) -> Tensor:
    """Return J = loss(output) + weight * cost."""
    function(loss, "loss")
    weight = number(weight, "weight", 0)
    if torch.is_inference_mode_enabled():
        raise InputError(
            "torch.inference_mode() is on, in which no gradients exist: expected the call outside "
            "of it"
        )
    result = network(x)
    output = output_of(result)
    try:
        total = loss(output)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"loss failed on the output {tuple(output.shape)} of the network "
            f"({type(error).__name__}: {error}): expected a function of it that returns one number"
        ) from error
    if not isinstance(total, Tensor) or total.ndim or not total.is_floating_point():
        raise InputError(
            f"loss returned {shown(total)}: expected a tensor of one real number, such as a mean "
            "over the batch"
        )
    if isinstance(result, Flow | Output) and weight:
        total = total + weight * result.cost
    if not total.requires_grad:
        raise InputError(
            "the loss does not depend on any trainable parameter: expected a function of the "
            "output, and parameters that require gradients"
        )
    return total


def recorded(
    network: nn.Module, objective: Callable[[], Tensor]
) -> tuple[Record, float, dict[str, Tensor]]:
    """Return record of a sweep, objective and gradients, for a network with one body."""
    record, named = Record(), _trainable(network)
    with torch.enable_grad():
        with swept(network, 1, record):
            total = objective()
        inputs = [*named.values(), record.start]
        *found, _ = torch.autograd.grad(total, inputs, allow_unused=True)
    if not record.cotangents:
        raise InputError("the loss does not depend on the states: expected one of the output")
    return record, float(total.detach()), _filled(named, tuple(found))


def examined(
    network: nn.Module, objective: Callable[[], Tensor]
) -> tuple[Record, float, dict[str, Tensor]]:
    """Return the results of `recorded`, checked to be finite."""
    record, total, gradients = recorded(network, objective)
    _check_finite("states are", record.states)
    return record, total, _finite(gradients, total)


def _trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def _filled(named: dict[str, nn.Parameter], found: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    pairs = zip(named.items(), found, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def _finite(gradients: dict[str, Tensor], objective: float) -> dict[str, Tensor]:
    """Return gradients, checked like the objective to be finite."""
    lost = [name for name, gradient in gradients.items() if _lost(gradient)]
    if lost or not math.isfinite(objective):
        what = f"the gradient of {lost[0]}" if lost else f"the objective, {objective},"
        raise NonFiniteLossError(
            f"{what} is not finite: start from smaller weights, or scale the loss",
            step=-1,
            loss=objective,
            gradient_norm=math.nan,
        )
    return gradients


def _lost(values: Tensor) -> bool:
    return not bool(values.detach().isfinite().all())


def _check_finite(what: str, along: Sequence[Tensor]) -> None:
    """Raise NonFiniteCostateError for the first layer at which values along a network are lost."""
    for layer, values in enumerate(along):
        if _lost(values):
            raise NonFiniteCostateError(
                f"{what} not finite at layer {layer} of {len(along) - 1}: see that the input is "
                "finite, lower t_final, or start from smaller weights",
                layer=layer,
            )


@torch.no_grad()
def hamiltonian_along(record: Record) -> Tensor:
    """Return H(x_l, p_l, u_l) at all states; at the end with the control of the last step."""
    plan, count = record.plan, len(record.lengths)
    generators = Generators(record.start.device)
    values: list[Any] = []
    with generators.kept():
        for place, (x, a) in enumerate(zip(record.states, record.cotangents, strict=True)):
            step = min(place, count - 1)
            t = record.times[step] + (record.lengths[step] if place == count else 0.0)
            if (step, 0) in record.before:
                generators.restore(record.before[step, 0])
            now = plan.steps[step]
            f = now.velocity(x, t if plan.timed else None)
            value = -(a * f).sum()
            if now.cost is not None:
                value = value - record.gamma * now.cost(x, f)
            values.append(value)
    _check_finite("the Hamiltonian is", values)
    return torch.stack(values)
