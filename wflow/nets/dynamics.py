"""Controlled dynamics in torch: x' = f(x, u(t), t) by an explicit Runge-Kutta scheme.

A `Plan` lists the steps of a trajectory: what moves the state, by which scheme, over which lengths,
and at which running cost. `Dynamics` is a body that makes one of any modules. The sweep of costates
(`wflow.nets.control`) reads plans, too, those of `Dynamics` and those that it makes of other
bodies.

[GPTOC] Croizet, De Vos, Hajem, Basso, Guerafi, Wu, "GPT Project Part 1 Report", section 4;
formulas in docs/theory/control.md.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from wflow._core.adaptive import scheme_from_config
from wflow._core.checks import check_choice, function, number, positive, shown, switch, whole
from wflow._core.errors import InputError
from wflow._core.tableaux import TABLEAUX, Tableau
from wflow.nets.blocks import Flow, Stack, at_least_single, hidden_states, present
from wflow.nets.checks import modules, tensor
from wflow.nets.registry import register

__all__ = ["Dynamics", "Plan", "Running", "Step", "as_tableau", "shape_error"]

Running = Callable[[nn.Module, Tensor, Tensor], Tensor]
Velocity = Literal["block", "residual"]


def as_tableau(scheme: Any) -> Tableau:
    """Return the tableau of a scheme: its name, a `wflow.Tableau`, or the configuration of one.

    Raises
    ------
    InputError
        For anything else.
    """
    if isinstance(scheme, Mapping) and {"nodes", "matrix", "weights"} <= scheme.keys():
        scheme = scheme_from_config(scheme)
    if isinstance(scheme, Tableau):
        return scheme
    if not isinstance(scheme, str) or scheme not in TABLEAUX:
        raise InputError(
            f"scheme is {shown(scheme)}: expected {', '.join(TABLEAUX)}, or a wflow.Tableau"
        )
    return TABLEAUX[scheme]


class Step(NamedTuple):
    """One step of a trajectory, at which the control does not change.

    Attributes
    ----------
    layer : torch.nn.Module
        Its trainable parameters are the control u_l.
    velocity : callable
        ``velocity(x, t)``: f(x, u_l, t), of the shape of x.
    cost : callable or None
        ``cost(x, f)``: the running cost L(x, u_l), one number, where there is one.
    image : callable or None
        ``image(x, t)``: f(x, u_l, t) + x, where that is what the layer returns.
    weighs : torch.nn.Module or None
        Module of the running cost, whose parameters belong to the control.
    """

    layer: nn.Module
    velocity: Callable[[Tensor, Any], Tensor]
    cost: Callable[[Tensor, Tensor], Tensor] | None
    image: Callable[[Tensor, Any], Tensor] | None = None
    weighs: nn.Module | None = None

    @property
    def modules(self) -> list[nn.Module]:
        """Modules that hold the weights of the step."""
        return [self.layer] if self.weighs is None else [self.layer, self.weighs]

    @property
    def control(self) -> list[nn.Parameter]:
        """The control u_l."""
        return [p for each in self.modules for p in each.parameters() if p.requires_grad]


@dataclass(frozen=True)
class Plan:
    """The steps of a trajectory.

    Attributes
    ----------
    steps : list of Step
        The steps l = 0 .. N - 1.
    tableau : Tableau
        The scheme.
    lengths : Tensor, shape (N,)
        Lengths of the steps, float64; on the device of the states where they are trained.
    timed : bool
        Whether velocities depend on the time.
    """

    steps: list[Step]
    tableau: Tableau
    lengths: Tensor
    timed: bool = False
    needed: tuple[bool, ...] = field(init=False)  # stages that a step depends on

    def __post_init__(self) -> None:
        matrix, weights = self.tableau.matrix, self.tableau.weights
        needed = [weight != 0 for weight in weights]
        for i in reversed(range(len(weights))):
            later = range(i + 1, len(weights))
            needed[i] = needed[i] or any(needed[j] and matrix[j][i] for j in later)
        object.__setattr__(self, "needed", tuple(needed))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The controls of all steps, each once."""
        return list({id(p): p for step in self.steps for p in step.control}.values())

    def direct(self, step: int) -> bool:
        """Return whether a step of Euler's scheme needs only the image of its layer."""
        now = self.steps[step]
        plain = now.cost is None and not self.lengths.requires_grad
        return plain and now.image is not None and self.tableau.stages == 1

    def evaluated(self, step: int) -> Callable[[Tensor, Any], Tensor]:
        """Return the function that a step evaluates: velocity, or image of a direct step."""
        now = self.steps[step]
        return now.image if self.direct(step) and now.image is not None else now.velocity

    def starts(self, lengths: Tensor) -> Tensor:
        """Return the times at which the steps begin: (N,)."""
        return lengths.cumsum(0) - lengths

    def advance(
        self,
        step: int,
        x: Tensor,
        t: Any,
        h: Any,
        evaluate: Callable[[int, Tensor, Any], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute a step.

        Parameters
        ----------
        step : int
            Its number l.
        x : Tensor
            State at its beginning.
        t, h : float or Tensor
            Time, and length of the step.
        evaluate : callable, optional
            ``evaluate(stage, x, t)`` in place of what the step evaluates (`evaluated`).

        Returns
        -------
        tuple
            The state at its end, and its running cost h sum_i b_i L(X_i, u); None without one.
        """
        now, tableau = self.steps[step], self.tableau
        if evaluate is None:
            called = self.evaluated(step)

            def evaluate(stage: int, point: Tensor, when: Any) -> Tensor:
                return called(point, when)

        if self.direct(step):
            image = evaluate(0, x, t if self.timed else None)
            if image.shape != x.shape:
                raise shape_error(x, image, step)
            return image if h == 1 else torch.lerp(x, image.to(x.dtype), h), None
        slopes: list[Tensor | None] = []
        total: Tensor | None = None
        for i, (node, row, weight) in enumerate(
            zip(tableau.nodes, tableau.matrix, tableau.weights, strict=True)
        ):
            if not self.needed[i]:
                slopes.append(None)
                continue
            point = combined(x, h, row, slopes)
            when = t + node * h if self.timed else None
            slope = evaluate(i, point, when)
            if slope.shape != point.shape:
                raise shape_error(point, slope, step)
            slopes.append(slope)
            if now.cost is not None and weight:
                cost = now.cost(point, slope)
                part = (h * weight * cost).to(cost.dtype)
                total = part if total is None else total + part
        return combined(x, h, tableau.weights, slopes), total

    def run(self, x: Tensor, lengths: Tensor) -> Flow:
        """Compute all steps, for automatic differentiation.

        Parameters
        ----------
        x : Tensor
            State at the beginning.
        lengths : Tensor, shape (N,)
            Lengths of the steps.

        Returns
        -------
        Flow
            State at the end, and the running cost.
        """
        total = x.new_zeros((), dtype=at_least_single(x.dtype))
        starts, hs = self.moments(lengths)
        for step, (t, h) in enumerate(zip(starts, hs, strict=True)):
            x, cost = self.advance(step, x, t, h)
            total = total if cost is None else total + cost
        return Flow(x, total)

    def moments(self, lengths: Tensor) -> tuple[list[Any], list[Any]]:
        """Return starts and lengths of the steps: numbers, or tensors where they are trained."""
        starts = self.starts(lengths)
        if lengths.requires_grad and torch.is_grad_enabled():
            return list(starts.unbind()), list(lengths.unbind())
        return starts.tolist(), lengths.tolist()


def combined(x: Tensor, h: Any, weights: Iterable[float], slopes: list[Tensor | None]) -> Tensor:
    """Return x + h sum_i weights[i] slopes[i]."""
    for weight, slope in zip(weights, slopes, strict=True):
        if not weight or slope is None:
            continue
        if isinstance(h, Tensor):
            x = x + (h * weight).to(x.dtype) * slope
        else:
            x = torch.add(x, slope, alpha=h * weight)
    return x


def shape_error(x: Tensor, image: Tensor, step: int) -> InputError:
    """Return the error for dynamics that change the shape."""
    return InputError(
        f"the dynamics of layer {step} turned states {tuple(x.shape)} into {tuple(image.shape)}: "
        "expected the same shape, for a control problem moves in one space; put what changes the "
        "width before or after the layers"
    )


@register
class Dynamics(nn.Module):
    r"""Body whose states obey x' = f(x, u(t), t), with a running cost [1]_ [2]_.

    Parameters
    ----------
    layers : torch.nn.Module or iterable of torch.nn.Module
        Velocities: each that of one step, separate weights; with `shared` one velocity, in
        sequence where they are several, of all steps.
    t_final : float, default 1.0
        End time T.
    steps : int, optional
        Number of steps N. None is the number of layers, the only one without `shared`.
    shared : bool, default False
        Whether all steps share the layers; several are then applied in sequence at each.
    scheme : str, Tableau or mapping, default "euler"
        Name in the common table of Butcher tableaux (euler, heun, rk4, dopri5; with fixed steps),
        or any explicit `wflow.Tableau`, or its `config()`.
    velocity : {"block", "residual"}
        `block`, f is what a layer returns; `residual`, what it returns minus x, for layers with
        skip connections: then Euler with T = N is the discrete network.
    learn_lengths : bool, default False
        Train the lengths of the steps, on the simplex: h = T softmax(`log_lengths`). Otherwise they
        are T / N.
    timed : bool, default False
        Whether layers are called as ``layer(x, t)``.
    transport : float, default 0.0
        Weight lambda >= 0 of the transport cost.
    penalty : float, default 0.0
        Weight mu >= 0 of the squares of the weights.
    running : callable, optional
        Further running cost, ``running(layer, x, f)``: one number, a mean over samples. Weights of
        its own that are trained are those of a module. Networks with one have no configuration.

    Raises
    ------
    InputError
        For no layers, numbers out of range, and an unknown scheme; later for layers that change the
        shape.

    Notes
    -----
    With stages :math:`X_i = x_l + h_l \sum_{j<i} a_{ij} f(X_j, u_l)`,

    .. math:: x_{l+1} = x_l + h_l \sum_i b_i f(X_i, u_l), \qquad
       \mathrm{cost} = \sum_l h_l \sum_i b_i L(X_i, u_l),

    .. math:: L(x, u) = \frac{\lambda}{2 m} \sum_{k=1}^m |f(x_k, u)|^2 + \frac{\mu}{2} |u|^2

    for m samples, the first dimension of x. The body returns state and cost, so that a loss is
    ``loss(state) + cost``. In the theory: :ref:`the control problem <theory-control-problem>`.

    References
    ----------
    .. [1] Benning, Celledoni, Ehrhardt, Owren and Schönlieb, "Deep learning as optimal control
       problems: models and numerical methods", J. Comput. Dyn. 6 (2019).
    .. [2] Li, Chen, Tai and E, "Maximum principle based algorithms for deep learning", J. Mach.
       Learn. Res. 18 (2018).

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> layers = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()) for _ in range(4)]
    >>> body = nets.control.Dynamics(layers, t_final=1.0, scheme="rk4", transport=0.1)
    >>> state, cost = body(torch.zeros(3, 2))
    >>> state.shape, body.steps
    (torch.Size([3, 2]), 4)
    """

    def __init__(
        self,
        layers: nn.Module | Iterable[nn.Module],
        t_final: float = 1.0,
        steps: int | None = None,
        *,
        shared: bool = False,
        scheme: str | Tableau | Mapping[str, Any] = "euler",
        velocity: Velocity = "block",
        learn_lengths: bool = False,
        timed: bool = False,
        transport: float = 0.0,
        penalty: float = 0.0,
        running: Running | None = None,
    ) -> None:
        super().__init__()
        self.t_final = positive(t_final, "t_final")
        self.tableau = as_tableau(scheme)
        check_choice("velocity", velocity, ("block", "residual"))
        self.velocity, self.timed = velocity, switch(timed, "timed")
        parts = _each(layers)
        if not parts:
            raise InputError("there are no layers: expected at least one")
        self.shared = switch(shared, "shared")
        self._steps = len(parts) if steps is None else whole(steps, "steps")
        if not self.shared and self._steps != len(parts):
            raise InputError(
                f"steps is {steps}, and there are {len(parts)} layers: expected as many, or "
                "shared=True, for steps that share them"
            )
        if self.shared and len(parts) > 1:
            if self.timed:
                raise InputError(
                    f"{len(parts)} layers in sequence are given the time: expected one module "
                    "f(x, t) that is shared, or a layer for each step"
                )
            parts = [Stack(parts)]
        self.layers = nn.ModuleList(parts)
        self.learn_lengths = switch(learn_lengths, "learn_lengths")
        if self.learn_lengths:
            self.log_lengths = nn.Parameter(torch.zeros(self._steps))
        self.transport = number(transport, "transport", 0)
        self.penalty = number(penalty, "penalty", 0)
        self.running = None if running is None else function(running, "running")

    @property
    def steps(self) -> int:
        """Number of steps N; may be changed where layers are shared and lengths are not trained."""
        return self._steps

    @steps.setter
    def steps(self, value: int) -> None:
        value = whole(value, "steps")
        if value != self._steps and (not self.shared or self.learn_lengths):
            raise InputError(
                f"steps is set to {value}, and there are {self._steps} layers or trained lengths: "
                "expected as many, or shared layers"
            )
        self._steps = value

    @property
    def scheme(self) -> str | dict[str, Any]:
        """The scheme: its name, or the coefficients of one that has none here."""
        return self.tableau.config()

    @property
    def lengths(self) -> Tensor:
        """Lengths of the steps, (N,) float64: on the simplex, times T."""
        if self.learn_lengths:
            return self.t_final * self.log_lengths.double().softmax(0)
        return torch.full((self._steps,), self.t_final / self._steps, dtype=torch.float64)

    def forward(self, x: Tensor, *, valid: Tensor | None = None, **context: Any) -> Flow:
        """Integrate states from t = 0 to T.

        Parameters
        ----------
        x : Tensor, shape (samples, ...)
            States x_0.
        valid : Tensor, shape (samples, tokens), optional
            True where a token is there: only those count in the transport cost.
        **context : object
            Handed to the layers at each evaluation, such as a padding mask.

        Returns
        -------
        Flow
            States x_N, and the running cost.

        Raises
        ------
        InputError
            For layers that change the shape, and states that are no real numbers.
        """
        plan = self.plan(x, valid=valid, **context)
        return plan.run(present(x, valid), self.lengths)

    def plan(self, x: Tensor, *, valid: Tensor | None = None, **context: Any) -> Plan:
        """Return the steps for given states.

        Parameters
        ----------
        x : Tensor, shape (samples, ...)
            States x_0.
        valid : Tensor, optional
            As for `forward`.
        **context : object
            As for `forward`.

        Returns
        -------
        Plan
            The steps.

        Raises
        ------
        InputError
            For states that are no real numbers, or `valid` of another shape.
        """
        tensor(x, "states", "real", meta=True)
        if not x.ndim or not x.numel():
            raise InputError(f"states are of shape {tuple(x.shape)}: expected (samples, ...)")
        if valid is not None:
            tensor(valid, "valid", "bool", meta=True)
            if valid.shape != x.shape[: valid.ndim]:
                raise InputError(
                    f"valid is of shape {tuple(valid.shape)}: expected the first dimensions of the "
                    f"states {tuple(x.shape)}"
                )
            valid = valid.reshape(*valid.shape, *[1] * (x.ndim - valid.ndim))
        costly = self.transport or self.penalty or self.running is not None
        weighs = self.running if isinstance(self.running, nn.Module) else None
        steps = []
        for layer in self.layers:
            residual = self.velocity == "residual"
            of = (layer, residual, self.timed, context)
            image = partial(velocity_of, layer, False, self.timed, context) if residual else None
            by = (layer, self.transport, self.penalty, self.running, valid)
            cost = partial(_running_cost, *by) if costly else None
            steps.append(Step(layer, partial(velocity_of, *of), cost, image, weighs))
        if self.shared:
            steps *= self._steps
        return Plan(steps, self.tableau, self.lengths, self.timed)

    def extra_repr(self) -> str:
        return (
            f"t_final={self.t_final}, steps={self.steps}, scheme={self.scheme!r}, "
            f"velocity={self.velocity!r}, shared={self.shared}, "
            f"learn_lengths={self.learn_lengths}, timed={self.timed}, "
            f"transport={self.transport}, penalty={self.penalty}"
        )


def velocity_of(
    layer: nn.Module, residual: bool, timed: bool, context: Mapping[str, Any], x: Tensor, t: Any
) -> Tensor:
    """Return f(x, u, t) of a layer: its output, or the output minus x."""
    given = (x, t) if timed else (x,)
    image = hidden_states(layer(*given, **context))
    if residual and image.shape == x.shape:
        image = image - x
    return image


def _running_cost(
    layer: nn.Module,
    transport: float,
    penalty: float,
    running: Running | None,
    valid: Tensor | None,
    x: Tensor,
    f: Tensor,
) -> Tensor:
    """Return L(x, u), one number, in single precision at least."""
    total: Tensor | None = None
    if transport:
        moved = f if valid is None else f.masked_fill(~valid, 0)
        norm = torch.linalg.vector_norm(moved, dtype=at_least_single(f.dtype))
        total = norm.square() * (transport / (2 * len(x)))
    if penalty:
        squares = [p.square().sum() for p in layer.parameters() if p.requires_grad]
        weights = penalty / 2 * torch.stack(squares).sum() if squares else x.new_zeros(())
        total = weights if total is None else total + weights
    if running is not None:
        further = running(layer, x, f)
        if not isinstance(further, Tensor) or further.ndim:
            raise InputError(
                f"running returned {shown(further)}: expected a tensor of one number, the mean "
                "over the samples"
            )
        total = further if total is None else total + further
    return cast(Tensor, total)


def _each(layers: Any) -> list[nn.Module]:
    if isinstance(layers, Stack):
        return list(layers.blocks)
    if isinstance(layers, nn.Module) and not isinstance(layers, nn.ModuleList):
        return [layers]
    return modules(layers)
