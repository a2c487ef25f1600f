r"""Maximisation of the (augmented) Hamiltonian over the weights of a layer, or of a group of them.

With states and costates held fast, a layer l has the Hamiltonian

    H_l(w) = sum_i <Lambda_i, f(X_i, w)> - b_i gamma L(X_i, w)

of its stages, whose gradient at w = u_l is -dJ/du_l / h. The augmented one subtracts

    (rho/2) sum_i |f(X_i, w) - f(X_i, u)|^2 / (s m) + s m |G_i(w) - G_i(u)|^2,

G_i the gradients in X_i of the terms of H_l, s the number of stages and m the number of samples:
f(X_i, u) and -G_i(u) are the difference quotients x' and p' of the iterate. Layers that share
weights maximise the sum. What stands before the layers (the opening) and after them (the closing,
with the loss) is one more layer at either end, of length 1: <p_0, opening> - Phi(x_N).
"""

import copy
import math
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from wflow._core.errors import InputError
from wflow._core.processes import pool, starting_processes
from wflow.nets.blocks import Flow, Stack
from wflow.nets.control.sweep import Generators, Record, replaced
from wflow.nets.dynamics import Step


class Part(Protocol):
    """A summand of the Hamiltonian of a group."""

    def terms(self) -> "list[Term]":
        """Return values at the present weights, with their graphs."""
        ...


class Term(NamedTuple):
    """A stage of a layer, or an end of the network.

    Attributes
    ----------
    value : Tensor
        Its part of the Hamiltonian.
    velocity : Tensor or None
        What the penalty compares with the iterate, f.
    at : Tensor or None
        The state in which the penalty differentiates the value.
    samples : float
        Samples times stages, by which the penalty is divided and multiplied.
    """

    value: Tensor
    velocity: Tensor | None
    at: Tensor | None
    samples: float


@dataclass
class LayerPart:
    """The stages of one step.

    Attributes
    ----------
    number : int
        That of the layer.
    step : Step
        Its velocity and running cost.
    stages : list of tuple
        Point X_i, Lambda_i, b_i gamma, time, and the states of the random numbers or None.
    samples : int
        Number of samples m.
    calls : int
        How often the stages were evaluated.
    """

    number: int
    step: Step
    stages: list[tuple[Tensor, Tensor, float, float | None, tuple[Tensor, ...] | None]]
    samples: int
    calls: int = 0

    def terms(self) -> list[Term]:
        """Return the terms as `Part` does."""
        self.calls += 1
        found = []
        for x, vector, weight, t, random in self.stages:
            x = x.detach().requires_grad_()
            if random is not None:
                Generators(x.device).restore(random)
            f = self.step.velocity(x, t)
            value = (vector * f).sum()
            if self.step.cost is not None and weight:
                value = value - weight * self.step.cost(x, f)
            found.append(Term(value, f, x, float(self.samples * len(self.stages))))
        return found


@dataclass
class EndsPart:
    """The parts before the layers, and after them with the loss.

    Attributes
    ----------
    body : torch.nn.Module
        The layers.
    objective : callable
        The objective of the network on the batch.
    record : Record
        What the sweep saw.
    random : tuple of Tensor
        States of the random numbers before the objective.
    """

    body: nn.Module
    objective: Callable[[], Tensor]
    record: Record
    random: tuple[Tensor, ...]

    def terms(self) -> list[Term]:
        """Return the terms as `Part` does."""
        record, seen = self.record, []
        end = record.states[-1].detach().requires_grad_()
        generators = Generators(end.device)

        def ends(x: Tensor, **context: Any) -> Any:
            seen.append(x)
            generators.restore(record.after)
            return end if isinstance(self.body, Stack) else Flow(end, end.new_zeros(()))

        generators.restore(self.random)
        with replaced(self.body, ends):
            loss = self.objective()
        samples = float(len(end))
        found = [Term(-loss, None, end, samples)]
        if seen[0].requires_grad:
            value = -(record.cotangents[0] * seen[0]).sum()
            found.append(Term(value, seen[0], None, samples))
        return found


@dataclass
class Group:
    """Weights that are maximised together, with all layers that they are in.

    Attributes
    ----------
    names : tuple of str
        Names of the weights.
    controls : list of torch.nn.Parameter
        The weights.
    parts : list of Part
        Layers, and the ends of the network.
    reference : list of tuple
        Velocities and gradients in the states of the iterate, by term.
    """

    names: tuple[str, ...]
    controls: list[nn.Parameter]
    parts: list[Any]
    reference: list[tuple[Tensor | None, Tensor | None]] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Which layers, for messages."""
        numbers = [str(part.number) for part in self.parts if isinstance(part, LayerPart)]
        few = numbers if len(numbers) < 4 else [numbers[0], "...", numbers[-1]]
        layers = f"layer{'s' if len(numbers) > 1 else ''} {', '.join(few)}" if numbers else ""
        ends = "opening and closing" if len(numbers) < len(self.parts) else ""
        return " with ".join(filter(None, (layers, ends)))

    @property
    def inside(self) -> bool:
        """Whether all parts are layers."""
        return all(isinstance(part, LayerPart) for part in self.parts)

    def value(self, rho: float = 0.0, *, note: bool = False) -> Tensor:
        """Return the (augmented) Hamiltonian; `note` sets its iterate to the present weights."""
        total: Tensor | None = None
        terms = [term for part in self.parts for term in part.terms()]
        if note:
            self.reference = []
        for place, term in enumerate(terms):
            part = term.value
            slope = None
            if term.at is not None and (rho or note):
                (slope,) = torch.autograd.grad(
                    term.value, term.at, create_graph=rho > 0, retain_graph=True, allow_unused=True
                )
            if note:
                f = None if term.velocity is None else term.velocity.detach()
                self.reference.append((f, None if slope is None else slope.detach()))
            if rho:
                f, g = self.reference[place]
                if f is not None and term.velocity is not None:
                    away = (term.velocity - f).square().sum()
                    part = part - rho / (2 * term.samples) * away
                if g is not None and slope is not None:
                    part = part - rho * term.samples / 2 * (slope - g).square().sum()
            total = part if total is None else total + part
        assert total is not None
        return total


class Maximised(NamedTuple):
    """Result of a maximisation.

    Attributes
    ----------
    gain : float
        By how much the augmented Hamiltonian grew.
    residual : float
        Norm of the gradient at the beginning.
    converged : bool
        Whether the gradient fell to the tolerance.
    unbounded : str
        Name of a weight along which the Hamiltonian grows without bound, else empty.
    forward : int
        Evaluations of layers, each at all of its stages.
    backward : int
        Vector-Jacobian products of layers; the derivative of one counts as two.
    """

    gain: float
    residual: float
    converged: bool
    unbounded: str
    forward: int
    backward: int


class _NotFinite(Exception):
    """Exception: values are not finite any more."""


def maximise(group: Group, rho: float, iterations: int, tolerance: float) -> Maximised:
    """Maximise the augmented Hamiltonian of a group by L-BFGS, in place.

    The weights end at the best point that was found, which is no worse than the first.

    Parameters
    ----------
    group : Group
        Weights and layers.
    rho : float
        Weight of the penalty.
    iterations : int
        Largest number of L-BFGS steps.
    tolerance : float
        Share of the first gradient's largest entry at which to stop.
    """
    controls = group.controls
    start = [p.detach().clone() for p in controls]
    best = [value.clone() for value in start]
    layers = [part for part in group.parts if isinstance(part, LayerPart)]
    calls = sum(part.calls for part in layers)
    first, reached = -math.inf, -math.inf  # values
    size0, size, products = 0.0, math.inf, 0
    residual = 0.0

    def evaluate() -> Tensor:
        nonlocal first, reached, size0, size, products, residual
        note = not products
        with torch.enable_grad():
            if note and rho:
                group.value(note=True)
                products += 1
            value = group.value(rho)
            found = torch.autograd.grad(-value, controls, allow_unused=True)
        products += 3 if rho else 1
        now = float(value.detach())
        grads = [
            torch.zeros_like(p) if g is None else g for p, g in zip(controls, found, strict=True)
        ]
        largest = max(float(torch.linalg.vector_norm(g, math.inf)) for g in grads)
        if not (math.isfinite(now) and math.isfinite(largest)):
            raise _NotFinite
        if note:
            first, size0 = now, largest
            residual = float(torch.stack([g.square().sum().double() for g in grads]).sum().sqrt())
        # Values that differ by rounding alone do not tell which point is better.
        same = 4 * torch.finfo(value.dtype).eps * abs(now)
        if now > reached + same or (now >= reached - same and largest < size):
            reached, size = now, largest
            for kept, p in zip(best, controls, strict=True):
                kept.copy_(p.detach())
        for p, g in zip(controls, grads, strict=True):
            p.grad = g
        return -value.detach()

    # Only this kernel of attention has second derivatives; random numbers are those of the sweep.
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(Generators(controls[0].device).kept())
        try:
            evaluate()
            goal = tolerance * size0
            if size0 > 0:
                torch.optim.LBFGS(
                    controls,
                    max_iter=iterations,
                    max_eval=3 * iterations,
                    tolerance_grad=goal,
                    tolerance_change=0.0,
                    history_size=20,
                    line_search_fn="strong_wolfe",
                ).step(evaluate)
        except _NotFinite:
            pass
        finally:
            for p in controls:
                p.grad = None
        converged = bool(size <= tolerance * size0)
        unbounded = ""
        if not converged and not rho:
            _put(controls, start)
            unbounded = _unbounded(group)
            products += 1
        _put(controls, best)
    forward = sum(part.calls for part in layers) - calls
    backward = products * len(layers)
    return Maximised(reached - first, residual, converged, unbounded, forward, backward)


@torch.no_grad()
def _put(controls: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for p, value in zip(controls, values, strict=True):
        p.copy_(value)


def _unbounded(group: Group) -> str:
    """Return the name of a weight along whose gradient the Hamiltonian grows without bound."""
    with torch.enable_grad():
        found = torch.autograd.grad(group.value(), group.controls, allow_unused=True)
    for name, p, grad in zip(group.names, group.controls, found, strict=True):
        slope = 0.0 if grad is None else float(torch.linalg.vector_norm(grad))
        if grad is None or slope == 0:
            continue
        start, size = p.detach().clone(), 1 + float(torch.linalg.vector_norm(p.detach()))
        # Not from here: where the dynamics are saturated the slope here is as small as one likes.
        distances = [far * size for far in (1e3, 1e6, 1e9)]
        values = []
        for far in distances:
            _put([p], [start + far / slope * grad])
            values.append(float(group.value().detach()))
        _put([p], [start])
        near, far = (
            (values[k + 1] - values[k]) / (distances[k + 1] - distances[k]) for k in range(2)
        )
        if math.inf in values or (near > 1e-3 * slope and far > near / 2):
            return name
    return ""


# Groups of a network
# -------------------


def layer_parts(record: Record, step: int) -> LayerPart:
    """Return the stages of one step, as a sweep recorded them."""
    plan = record.plan
    stages = []
    for i, (x, mu) in enumerate(zip(record.points[step], record.weights[step], strict=True)):
        if x is None:
            continue
        t = record.times[step] + plan.tableau.nodes[i] * record.lengths[step]
        weight = plan.tableau.weights[i] * record.gamma
        random = record.before.get((step, i))
        stages.append((x.detach(), -mu, weight, t if plan.timed else None, random))
    return LayerPart(step, plan.steps[step], stages, len(record.states[0]))


def groups_of(network: nn.Module, record: Record, ends: EndsPart | None = None) -> list[Group]:
    """Divide the weights into groups that can be maximised independently; the ends come last."""
    names = {id(p): name for name, p in network.named_parameters()}
    steps = record.plan.steps
    inside = {id(each) for step in steps for part in step.modules for each in part.modules()}
    outside = [
        p
        for each in network.modules()
        if ends is not None and id(each) not in inside
        for p in each.parameters(recurse=False)
        if p.requires_grad
    ]
    of_parts: list[tuple[list[nn.Parameter], Any]] = [
        (step.control, layer_parts(record, number)) for number, step in enumerate(steps)
    ]
    found: list[tuple[dict[int, nn.Parameter], list[Any]]] = []
    for weights, part in [*of_parts, (outside, ends)]:
        if not weights:
            continue
        control, parts = {id(p): p for p in weights}, [part]
        for other in [one for one in found if one[0].keys() & control.keys()]:
            found.remove(other)
            control, parts = other[0] | control, other[1] + parts
        found.append((control, parts))
    return [
        Group(tuple(names.get(key, "?") for key in control), list(control.values()), parts)
        for control, parts in found
    ]


def of_layer(network: nn.Module, record: Record, number: int) -> Group:
    """Return the weights of one layer by itself, even if other layers share them."""
    names = {id(p): name for name, p in network.named_parameters()}
    control = record.plan.steps[number].control
    labels = tuple(names.get(id(p), "?") for p in control)
    return Group(labels, control, [layer_parts(record, number)])


def alone(group: Group) -> Group:
    """Return a copy of a group of layers, whose weights nothing else uses."""
    return copy.deepcopy(Group(group.names, group.controls, group.parts))


# Groups in parallel
# ------------------


def _remote(
    pickled: bytes, device: str | None, rho: float, iterations: int, tolerance: float
) -> tuple[Maximised, list[Tensor]]:
    """Maximise a group in another process; the weights come back."""
    # Of this program itself. All tensors move, those of masks and other contexts too.
    group: Group = torch.load(BytesIO(pickled), map_location=device, weights_only=False)
    found = maximise(group, rho, iterations, tolerance)
    return found, [p.detach().cpu() for p in group.controls]


class Workers:
    """Processes that maximise groups.

    Parameters
    ----------
    count : int
        Number of processes; 1 computes here.
    devices : tuple of str
        Devices to which groups are given in turn; none leaves them where they are.
    """

    def __init__(self, count: int, devices: tuple[str, ...] = ()) -> None:
        self.count, self.devices = count, devices
        self.pool: ProcessPoolExecutor | None = None

    def maximise(
        self, groups: list[Group], rho: float, iterations: int, tolerance: float
    ) -> list[Maximised]:
        """Maximise each group; the weights of the network change."""
        layers = [group.inside for group in groups]
        if self.count == 1 or sum(layers) < 2:
            return [maximise(group, rho, iterations, tolerance) for group in groups]
        with starting_processes("maximised layers", "Take fewer workers"):
            return self._apart(groups, layers, rho, iterations, tolerance)

    def _apart(
        self, groups: list[Group], layers: list[bool], rho: float, iterations: int, tolerance: float
    ) -> list[Maximised]:
        """Maximise groups in the processes, those without layers here."""
        if self.pool is None:
            self.pool = pool(self.count, torch.set_num_threads, torch.get_num_threads())
        waiting: list[Any] = []
        for place, (group, apart) in enumerate(zip(groups, layers, strict=True)):
            if not apart:
                waiting.append(None)
                continue
            device = self.devices[place % len(self.devices)] if self.devices else None
            _check_random(group, device)
            job = (_pickled(group), device, rho, iterations, tolerance)
            waiting.append(self.pool.submit(_remote, *job))
        found = []
        for group, future in zip(groups, waiting, strict=True):
            if future is None:
                found.append(maximise(group, rho, iterations, tolerance))
                continue
            result, weights = future.result()
            with torch.no_grad():
                _put(group.controls, weights)
            found.append(result)
        return found

    def close(self) -> None:
        """End the processes."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def _check_random(group: Group, device: str | None) -> None:
    """Raise InputError for random numbers that another kind of device does not draw."""
    here = group.controls[0].device.type
    drawn = any(random is not None for part in group.parts for *_, random in part.stages)
    if drawn and device is not None and torch.device(device).type != here:
        raise InputError(
            f"{group.label} draws random numbers (dropout) on {here}, and {device} draws others: "
            f"expected devices of the kind {here}, or a network without dropout"
        )


def _pickled(group: Group) -> bytes:
    stream = BytesIO()
    try:
        torch.save(Group(group.names, group.controls, group.parts), stream)
        return stream.getvalue()
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise InputError(
            f"{group.label} cannot be sent to another process ({error}): define its class and its "
            "running cost in a module, or give workers=1"
        ) from None
