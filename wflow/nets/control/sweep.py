r"""Costates: gradients of a network by sweeps over its layers, one at a time.

A body of layers is a discrete control problem (`wflow.nets.dynamics.Plan`). Forward, its states are
kept, or every k-th of them; no graph is made. Backward, the costates follow from the symplectic
partner of the scheme. With the cotangents a_{l+1} = -p_{l+1} and, at the stages X_i,

    mu_i = b_i a_{l+1} + sum_j a_ji g_j,
    (g_i, du_i) = gradients in (x, u) of h <mu_i, f(X_i, u)> + h b_i gamma L(X_i, u),
    a_l = a_{l+1} + sum_i g_i,    dJ/du_l = sum_i du_i,

each a vector-Jacobian product of a single layer; gamma = dJ/dcost. Weights b_i = 0 need no care. A
body so becomes a single operation of torch's graph, and what stands before and after it, the
objective, accumulation and several processes stay as they are.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge

from wflow._core.checks import whole
from wflow._core.errors import InputError
from wflow.nets.blocks import Flow, Stack, at_least_single, present
from wflow.nets.checks import tensor
from wflow.nets.continuous import ContinuousTransformer, NodeTransformer, unrounded
from wflow.nets.dynamics import Dynamics, Plan, Step, as_tableau, velocity_of
from wflow.nets.training.train import NonFiniteLossError

Keep = int | Literal["sqrt"]


class NonFiniteCostateError(NonFiniteLossError):
    """Error: a state or a costate was infinite or NaN, and the sweep stopped at this layer.

    Attributes
    ----------
    layer : int
        Number of the layer, from 0; the number of layers where the terminal gradient is not finite.
    step : int
        Number of the training step, -1 outside of a training.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.ControlledResNet(2, layers=3)
    >>> try:
    ...     nets.control.gradients(net, torch.ones(4, 2), lambda out: out.sum() * float("nan"))
    ... except nets.control.NonFiniteCostateError as error:
    ...     error.layer
    3
    """

    def __init__(
        self,
        message: str,
        *,
        layer: int,
        step: int = -1,
        loss: float = math.nan,
        gradient_norm: float = math.nan,
    ) -> None:
        super().__init__(message, step=step, loss=loss, gradient_norm=gradient_norm)
        self.layer = layer

    def __reduce__(self) -> tuple:
        return partial(type(self), self.args[0], layer=self.layer, step=self.step), ()


# Bodies as plans
# ---------------


def plan_of(body: nn.Module, x: Tensor, valid: Tensor | None, context: dict[str, Any]) -> Plan:
    """Return the steps of a body for given states.

    A discrete stack is Euler's scheme with steps of length 1 and f(x) = block(x) - x.
    """
    for name, value in {"valid": valid, **context}.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise InputError(
                f"{name} is handed to the layers and requires a gradient, which the sweep of "
                "costates does not compute: detach it, or train by back-propagation"
            )
    if isinstance(body, Stack):
        steps = [
            Step(
                block,
                partial(velocity_of, block, True, False, context),
                None,
                partial(velocity_of, block, False, False, context),
            )
            for block in body.blocks
        ]
        return Plan(steps, as_tableau("euler"), torch.ones(len(steps), dtype=torch.float64))
    if isinstance(body, Dynamics):
        return body.plan(x, valid=valid, **context)
    assert isinstance(body, ContinuousTransformer | NodeTransformer)
    systems = list(body.systems) if isinstance(body, NodeTransformer) else [body]
    steps, lengths = [], []
    for system in systems:
        assert isinstance(system, ContinuousTransformer)
        norm = partial(_squared, system._size(x, valid))
        step = Step(system.blocks, partial(_autonomous, system, context), norm)
        steps += [step] * system.steps
        lengths += [system.dt] * system.steps
    tableau = as_tableau(systems[0].scheme)  # type: ignore[arg-type]
    return Plan(steps, tableau, torch.tensor(lengths, dtype=torch.float64))


def _autonomous(
    system: ContinuousTransformer, context: dict[str, Any], x: Tensor, t: Any
) -> Tensor:
    return system.velocity_of(x, **context)


def _squared(size: Any, x: Tensor, f: Tensor) -> Tensor:
    """Return half the squared norm of a velocity, as the transport cost counts it."""
    half: Tensor = size.squared(f) * (size.scale / 2)
    return half


_BODIES = (Stack, Dynamics, ContinuousTransformer, NodeTransformer)


def bodies_of(network: nn.Module) -> list[nn.Module]:
    """Return the bodies of a network whose gradients costates can give, the outermost ones."""
    if isinstance(network, _BODIES):
        return [network]
    return [body for part in network.children() for body in bodies_of(part)]


def body_of(network: nn.Module) -> nn.Module:
    """Return the only body of a network.

    Raises
    ------
    InputError
        For a network with none, or with several.
    """
    found = bodies_of(network)
    if len(found) != 1:
        what = "no body" if not found else f"{len(found)} bodies"
        raise InputError(
            f"{type(network).__name__} has {what} of layers: expected one, a control.Dynamics, "
            "ContinuousTransformer, NodeTransformer or blocks.Stack, such as the body of "
            "ControlledResNet or GPT; wrap layers of another network in one of these"
        )
    return found[0]


# Random numbers
# --------------


class Generators:
    """States of the random generators of a device.

    Parameters
    ----------
    device : torch.device
        Where the layers compute.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device if device.type == "cuda" else None

    def state(self) -> tuple[Tensor, ...]:
        """Return the states now."""
        own = torch.get_rng_state()
        if self.device is None:
            return (own,)
        return own, torch.cuda.get_rng_state(self.device)

    def restore(self, state: tuple[Tensor, ...]) -> None:
        """Restore the states."""
        torch.set_rng_state(state[0].cpu())  # states have moved with what a worker was given
        if self.device is not None:
            torch.cuda.set_rng_state(state[1].cpu(), self.device)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the states at the end."""
        before = self.state()
        try:
            yield
        finally:
            self.restore(before)


def same_states(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Return whether two states are the same."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# The sweep
# ---------


@dataclass
class Record:
    """Record of a sweep, where it is asked for.

    Attributes
    ----------
    plan : Plan
        The steps.
    lengths, times : list of float
        Their lengths, and the times at which they begin.
    start : Tensor
        x_0 with its graph: the backward pass of the sweep runs where its gradient is asked for.
    states, cotangents : list of Tensor
        x_0 .. x_N, and dJ/dx_0 .. dJ/dx_N; costates are minus these.
    points, weights : list of list of Tensor
        Points X_i of the stages of each step, and the cotangents mu_i of their velocities; None for
        stages that are not needed.
    before, after : dict, tuple of Tensor
        States of the random numbers before the evaluations that used some, by (step, stage), and
        after the body.
    gamma : float
        dJ/dcost.
    """

    plan: Plan = field(init=False)
    lengths: list[float] = field(init=False)
    times: list[float] = field(init=False)
    start: Tensor = field(init=False)
    states: list[Tensor] = field(default_factory=list)
    cotangents: list[Tensor] = field(default_factory=list)
    points: list[list[Any]] = field(default_factory=list)
    weights: list[list[Any]] = field(default_factory=list)
    before: dict[tuple[int, int], tuple[Tensor, ...]] = field(default_factory=dict)
    after: tuple[Tensor, ...] = ()
    gamma: float = 0.0


class _Forward:
    """The forward pass of a sweep, whole or a part of it that is computed again.

    Parameters
    ----------
    plan : Plan
        The steps.
    starts, lengths : list of float
        When they begin, and their lengths.
    device : torch.device
        Where the layers compute.
    """

    def __init__(
        self, plan: Plan, starts: list[float], lengths: list[float], device: torch.device
    ) -> None:
        self.plan, self.starts, self.lengths, self.timed = plan, starts, lengths, plan.timed
        self.generators = Generators(device)
        self.state = self.generators.state()
        self.drawn: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        # The last evaluation is the first that the way back needs: its graph is kept.
        self.last = len(plan.steps) - 1, max(i for i, needed in enumerate(plan.needed) if needed)
        self.tail: tuple[Tensor, Tensor | GradientEdge] | None = None
        self.autocast = partial(
            torch.autocast,
            device.type,
            enabled=torch.is_autocast_enabled(device.type),
            dtype=torch.get_autocast_dtype(device.type),
            cache_enabled=False,  # casts of weights made without a graph would be found later
        )

    def advance(
        self, step: int, x: Tensor, *, again: bool = False
    ) -> tuple[Tensor, Tensor | None, list[Tensor | None]]:
        """Compute a step: the next state, its cost, and the points of the stages."""
        called = self.plan.evaluated(step)
        points: list[Tensor | None] = [None] * self.plan.tableau.stages

        def evaluate(stage: int, point: Tensor, t: Any) -> Tensor:
            points[stage] = point
            if again:
                self.repeat(step, stage)
                return called(point, t)
            if (step, stage) == self.last and not self.timed:
                with torch.enable_grad():
                    point = point.detach().requires_grad_()
                    slope = called(point, t)
                edge = self.plan.direct(step) and slope.requires_grad
                self.tail = point, get_gradient_edge(slope) if edge else slope
                slope = slope.detach()
            else:
                slope = called(point, t)
            state = self.generators.state()
            if not same_states(self.state, state):  # dropout, or other random numbers
                self.drawn[step, stage] = self.state
                self.state = state
            return slope

        with self.autocast():
            x, cost = self.plan.advance(step, x, self.starts[step], self.lengths[step], evaluate)
        return x, cost, points

    def repeat(self, step: int, stage: int) -> None:
        """Restore the random numbers to their state before an evaluation."""
        state = self.drawn.get((step, stage))
        if state is not None:
            self.generators.restore(state)


class _Sweep(torch.autograd.Function):
    """x_0, lengths and controls to x_N and the running cost; gradients by costates."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        every: int,
        record: Record | None,
        x: Tensor,
        lengths: Tensor,
        *controls: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ahead = _Forward(plan, *plan.moments(lengths), x.device)
        total = x.new_zeros((), dtype=at_least_single(x.dtype))
        kept: list[Tensor] = []  # points of all stages, or every `every`-th state
        start = x
        for step in range(len(plan.steps)):
            if every > 1 and step % every == 0:
                kept.append(x)
            if record is not None:
                record.states.append(x)
            x, cost, points = ahead.advance(step, x)
            total = total if cost is None else total + cost
            if every == 1:
                kept += [point for point in points if point is not None]
        if record is not None:
            record.states.append(x)
            record.plan, record.lengths, record.times = plan, ahead.lengths, ahead.starts
            record.before, record.after = ahead.drawn, ahead.state
        # States are no saved tensors of torch's, which it frees at the end: here one after another.
        ctx.ahead, ctx.every, ctx.record, ctx.kept = ahead, every, record, kept
        ctx.save_for_backward(start, *controls)
        # An output that is an input would be a view of it for torch.
        return x if x is not start else x.clone(), total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor, gamma: Tensor) -> tuple[Tensor | None, ...]:
        ahead, every, record = ctx.ahead, ctx.every, ctx.record
        plan: Plan = ahead.plan
        _ = ctx.saved_tensors  # torch checks that nobody has changed them
        kept, ctx.kept = ctx.kept, None
        if kept is None:
            raise RuntimeError(
                "a sweep of costates goes back once, for it frees the states on its way: compute "
                "the loss again, or go without retain_graph"
            )
        back = _Backward(ahead, gamma, record)
        back.costate(a)
        with ahead.generators.kept():
            stages = sum(plan.needed)
            segment: list[list[Tensor | None]] = []
            for step in reversed(range(len(plan.steps))):
                if every == 1:
                    rows = kept[step * stages :][::-1]
                    del kept[step * stages :]
                    points = [rows.pop() if needed else None for needed in plan.needed]
                elif (step, 0) == ahead.last and ahead.tail is not None:
                    points = [ahead.tail[0]]  # nothing is computed again beside this graph
                    if step % every == 0:
                        kept.pop()
                else:
                    if not segment:
                        segment = _points(ahead, step - step % every, step, kept.pop())
                    points = segment.pop()
                a = back.step(step, points, a)
        back.check()
        if record is not None:
            record.gamma = float(gamma)
            record.cotangents.reverse()
            record.points.reverse()
            record.weights.reverse()
        return None, None, None, a, back.by_lengths(), *back.by_controls


def _points(ahead: _Forward, first: int, last: int, x: Tensor) -> list[list[Tensor | None]]:
    """Return the points of the stages of steps first .. last, from the state before them."""
    found = []
    for step in range(first, last):
        x, _, points = ahead.advance(step, x, again=True)
        found.append(points)
    if ahead.plan.tableau.stages == 1:
        return [*found, [x]]
    return [*found, ahead.advance(last, x, again=True)[2]]


class _Backward:
    """The backward pass of a sweep: vector-Jacobian products of one layer after another."""

    def __init__(self, ahead: _Forward, gamma: Tensor, record: Record | None) -> None:
        self.ahead, self.gamma, self.record = ahead, gamma, record
        self.plan = ahead.plan
        self.controls = self.plan.parameters
        self.places = {id(p): k for k, p in enumerate(self.controls)}
        self.by_controls: list[Tensor | None] = [None] * len(self.controls)
        self.own = [False] * len(self.controls)  # sums that nothing else refers to
        self.learned = self.plan.lengths.requires_grad
        self.of_lengths = [gamma.new_zeros((), dtype=torch.float64) for _ in ahead.lengths]
        self.of_times = [*self.of_lengths]  # dJ/dt of the beginning of a step
        self.sizes: list[Tensor] = []  # norms of the costates, from the last to the first
        self.looked = False  # whether weights that no layer has were looked for

    def step(self, step: int, points: list[Tensor | None], a: Tensor) -> Tensor:
        """Map dJ/dx_{l+1} to dJ/dx_l."""
        tableau, h = self.plan.tableau, self.ahead.lengths[step]
        if self.plan.direct(step):
            weights: list[Tensor | None] = [a]
            image = self.product(step, 0, points[0], a, h)
            image = torch.zeros_like(a) if image is None else image
            a = image if h == 1 else torch.add(image, a, alpha=1 - h)
            return self.noted(points, weights, a)
        g: list[Tensor | None] = [None] * tableau.stages
        weights = [None] * tableau.stages
        for i in reversed(range(tableau.stages)):
            point, weight = points[i], tableau.weights[i]
            if point is None:
                continue
            mu = a * weight if weight not in (0, 1) else (a if weight else None)
            for j in range(i + 1, tableau.stages):
                later, factor = g[j], tableau.matrix[j][i]
                if later is not None and factor:
                    mu = later * factor if mu is None else torch.add(mu, later, alpha=factor)
            weights[i] = mu = torch.zeros_like(a) if mu is None else mu
            g[i] = self.product(step, i, point, mu, h)
        for each in g:
            a = a if each is None else a + each
        return self.noted(points, weights, a)

    def noted(self, points: list[Tensor | None], weights: list[Tensor | None], a: Tensor) -> Tensor:
        """Return dJ/dx_l, after recording it with the points and weights of the step after it."""
        if self.record is not None:
            self.record.points.append(points)
            self.record.weights.append(weights)
        self.costate(a)
        return a

    def product(self, step: int, stage: int, x: Any, mu: Tensor, h: float) -> Tensor | None:
        """Return the gradient in x of h <mu, f(x, u)> + h b gamma L(x, u); add those in u, h, t."""
        now, tableau = self.plan.steps[step], self.plan.tableau
        weight, node = tableau.weights[stage], tableau.nodes[stage]
        t: Any = self.ahead.starts[step] + node * h if self.plan.timed else None
        control, tail = now.control, None
        if (step, stage) == self.ahead.last:
            tail, self.ahead.tail = self.ahead.tail, None
        x = x.detach().requires_grad_() if tail is None else tail[0]
        inputs: list[Tensor] = [x, *control]
        if t is not None and self.learned:
            t = torch.tensor(t, dtype=torch.float64, device=x.device, requires_grad=True)
            inputs.append(t)
        f: Tensor | GradientEdge | None
        with torch.enable_grad(), self.ahead.autocast():
            if tail is None:
                self.ahead.repeat(step, stage)
                f = self.plan.evaluated(step)(x, t)
            else:
                f = tail[1]
            cost = None
            if now.cost is not None and weight:
                assert isinstance(f, Tensor)
                cost = now.cost(x, f)
        outputs: list[GradientEdge] = []
        vectors: list[Tensor] = []
        for output, vector in ((f, mu), (cost, weight * self.gamma)):
            if isinstance(output, Tensor):
                vector = vector.to(output.dtype)
                if self.learned:
                    along = (vector * output.detach()).sum().double()
                    self.of_lengths[step] = self.of_lengths[step] + along
            if output is not None and (not isinstance(output, Tensor) or output.requires_grad):
                edge = get_gradient_edge(output) if isinstance(output, Tensor) else output
                outputs.append(edge)
                vectors.append(vector if h == 1 else h * vector)
        if not self.looked:
            self.looked = True
            _check_leaves(outputs, inputs)
        f = output = cost = tail = None  # velocities need not be in memory any more
        if not outputs:
            return None
        grads = torch.autograd.grad(outputs, inputs, vectors, allow_unused=True)
        if t is not None and self.learned and grads[-1] is not None:
            self.of_times[step] = self.of_times[step] + grads[-1]
            self.of_lengths[step] = self.of_lengths[step] + node * grads[-1]
        for parameter, grad in zip(control, grads[1:], strict=False):
            if grad is not None:
                self.add(self.places[id(parameter)], grad)
        return grads[0]

    def add(self, place: int, grad: Tensor) -> None:
        """Add to the gradient of a control."""
        total = self.by_controls[place]
        if total is None:
            self.by_controls[place] = grad
        elif self.own[place]:
            total.add_(grad)
        else:
            self.by_controls[place], self.own[place] = total + grad, True

    def costate(self, a: Tensor) -> None:
        """Record a costate."""
        self.sizes.append(torch.linalg.vector_norm(a.detach()))
        if self.record is not None:
            self.record.cotangents.append(a.detach())

    def by_lengths(self) -> Tensor | None:
        """Return dJ/dh of all steps, which includes the later start of the steps after each."""
        if not self.learned:
            return None
        later = torch.stack(self.of_times).flip(0).cumsum(0).flip(0)  # from this step on
        found = torch.stack(self.of_lengths) + later - torch.stack(self.of_times)
        return found.to(self.plan.lengths)

    def check(self) -> None:
        """Raise NonFiniteCostateError for costates that are not finite."""
        finite = torch.stack(self.sizes).isfinite().tolist()
        if all(finite):
            return
        count = len(self.ahead.lengths)
        layer = count - finite.index(False)
        what = "the gradient of the terminal cost is" if layer == count else "costates are"
        raise NonFiniteCostateError(
            f"{what} not finite at layer {layer} of {count}: lower the rate or t_final, raise rho, "
            "or start from smaller weights",
            layer=layer,
        )


def _check_leaves(outputs: list[GradientEdge], inputs: list[Tensor]) -> None:
    """Raise InputError for weights that no layer has, whose gradients would be missing."""
    known, seen = {id(each) for each in inputs}, set()
    nodes = [edge.node for edge in outputs]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            raise InputError(
                f"a layer or its running cost uses trained weights {tuple(leaf.shape)} that are no "
                "parameters of it, whose gradients a sweep of costates would miss: make them "
                "parameters of the layer, or of a module that is the running cost"
            )
        nodes += [further for further, _ in node.next_functions if further is not None]


def _swept(
    body: nn.Module,
    keep: Keep,
    record: Record | None,
    x: Tensor,
    *,
    valid: Tensor | None = None,
    **context: Any,
) -> Flow | Tensor:
    """Compute the forward pass of a body, as one operation of the graph."""
    tensor(x, "states", "real")
    if not torch.is_grad_enabled():
        return type(body).forward(body, x, valid=valid, **context)  # type: ignore[no-any-return]
    x = present(x, valid)
    if isinstance(body, ContinuousTransformer | NodeTransformer):
        x = unrounded(x)
    if record is not None:
        if record.states:
            raise InputError(
                f"{type(body).__name__} runs more than once in a pass: expected a network, and an "
                "objective, that runs its layers once, for they have one state and one costate"
            )
        record.start = x = x if x.requires_grad else x.detach().requires_grad_()
    plan = plan_of(body, x, valid, context)
    every = math.isqrt(len(plan.steps) - 1) + 1 if keep == "sqrt" else keep
    state, cost = _Sweep.apply(plan, every, record, x, plan.lengths, *plan.parameters)
    return state if isinstance(body, Stack) else Flow(state, cost)


def check_keep(keep: Any) -> Keep:
    """Check which states are kept: a number from 1, or "sqrt"."""
    if isinstance(keep, str) and keep == "sqrt":
        return "sqrt"
    return whole(keep, "keep", why="or 'sqrt'")


@contextmanager
def replaced(body: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the forward pass of a body in the block."""
    before = vars(body).get("forward")
    vars(body)["forward"] = forward
    try:
        yield
    finally:
        del vars(body)["forward"]
        if before is not None:
            vars(body)["forward"] = before


@contextmanager
def swept(network: nn.Module, keep: Keep = 1, record: Record | None = None) -> Iterator[None]:
    """Replace back-propagation through the bodies of a network by sweeps of costates.

    Parameters
    ----------
    network : torch.nn.Module
        Network with one or several bodies.
    keep : int or "sqrt"
        Keep every `keep`-th state, and compute the others again.
    record : Record, optional
        Where to note what the sweep sees, for a network with one body.
    """
    keep = check_keep(keep)
    with ExitStack() as stack:
        for body in bodies_of(network):
            stack.enter_context(replaced(body, partial(_swept, body, keep, record)))
        yield
