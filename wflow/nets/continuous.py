"""Continuous-time transformers: the blocks of a network as the velocity of a dynamical system.

dX/dt = f(X), f = f_D o ... o f_1, from t = 0 to T in M steps of dt = T/M, with the transport cost
(1/2) int_0^T ||f(X(t))||_F^2 dt that a loss adds to its own: [OTT] eqs. 7 to 9. `NodeTransformer`
makes one system of each block instead: [OTT] eq. 13.

[OTT] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer Architectures",
arXiv 2505.13499; [OTT1] its first version, "OT-Transformer".
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wflow._core.checks import check_choice, positive, switch, whole
from wflow._core.errors import InputError
from wflow._core.tableaux import TABLEAUX
from wflow.nets.blocks import (
    Flow,
    Output,
    Stack,
    as_flow,
    at_least_single,
    hidden_states,
    present,
)
from wflow.nets.checks import autocast, modules, tensor
from wflow.nets.registry import register

__all__ = [
    "SCHEMES",
    "ContinuousTransformer",
    "Flow",
    "NodeTransformer",
    "Output",
    "Trajectory",
    "as_flow",
]

Scheme = Literal["euler", "heun", "rk4"]
Velocity = Literal["block", "residual"]
Cost = Literal["mean", "sum"]
Returns = Literal["flow", "layer"]


class Trajectory(NamedTuple):
    """Trajectory of the hidden states through M steps.

    Parameters
    ----------
    states : Tensor, shape (M + 1, ...)
        Hidden states X_0 .. X_M.
    times : Tensor, shape (M + 1,)
        Their times, in double precision, on the CPU.
    costs : Tensor, shape (M,)
        What each step adds to the transport cost.
    velocities : Tensor, shape (M, ...)
        The velocity f(X_m) at the beginning of each step.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> body = nets.ContinuousTransformer(torch.nn.Linear(4, 4), steps=2)
    >>> body.trajectory(torch.zeros(3, 5, 4)).times.tolist()
    [0.0, 0.5, 1.0]
    """

    states: Tensor  # X_0 .. X_M: (M + 1, *shape of X)
    times: Tensor  # (M + 1,), in double precision, on the CPU
    costs: Tensor  # (M,): what each step adds to the transport cost
    velocities: Tensor  # f(X_m) at the beginning of each step: (M, *shape of X)


SCHEMES = {name: TABLEAUX[name] for name in get_args(Scheme)}


_Step = tuple[Tensor, list[Tensor]]  # the next state, and the squared norm of each stage


@register
class ContinuousTransformer(nn.Module):
    r"""Transformer in continuous time: blocks as the velocity of hidden states [1]_ [2]_.

    Parameters
    ----------
    blocks : torch.nn.Module or iterable of torch.nn.Module
        A module, or several in sequence, in any form: list, `nn.Sequential`, `nn.ModuleList`,
        `Stack`. A module that answers with a tuple or with `.last_hidden_state` is taken at its
        hidden states, so that layers and encoders of other libraries fit.
    t_final : float, default 1.0
        End time T.
    steps : int, default 1
        Number of steps M; may be changed at any time, as `t_final` may.
    scheme : {"euler", "heun", "rk4"}
        `euler` (the published one), `heun`, `rk4`.
    velocity : {"block", "residual"}
        `block`, f is what the blocks return, with their own skip connections: the published model;
        `residual`, f(x) = blocks(x) - x: then T = 1 in one Euler step is the discrete network.
    cost : {"mean", "sum"}
        `mean` or `sum`.
    checkpointing : bool, default False
        Keep only the states between steps for the gradient and compute the inside of each step
        again: memory of one step instead of M, for a second forward pass.
    batch_dim : int, default 0
        Dimension of X that counts the samples; negative ones count from the last.
    returns : {"flow", "layer"}
        `flow`, a `Flow` of hidden states and cost; `layer`, what the last block returns, with X(T)
        in the place of its hidden states, so that it fits where a network of another library has a
        layer; the cost is then `last_cost`. What else a block returns, such as attention weights,
        is that of its last evaluation. Attributes of a single block are read through the wrapper.

    Raises
    ------
    InputError
        For steps < 1, T <= 0, an unknown choice, no blocks; later, for blocks that change the
        shape of what they are given, hidden states without the dimension `batch_dim`, and a cache
        of keys and values where the blocks are evaluated more than once.

    Notes
    -----
    With :math:`f = f_D \circ \dots \circ f_1` and :math:`\Delta t = T/M`, ``euler`` takes the steps

    .. math:: X_{m+1} = X_m + \Delta t \, f(X_m), \qquad m = 0, \dots, M-1,

    and the transport cost, a mean over the samples, is

    .. math:: \mathrm{sum:} \quad \frac{\Delta t}{2} \sum_m \|f(X_m)\|_F^2, \qquad
       \mathrm{mean:} \quad \text{that over the number of entries of } X,

    eq. 8 of [1]_ and of [2]_, so that a loss is ``loss(state) + lam * cost``. ``heun`` and ``rk4``
    are of order 2 and 4, and the cost is then the quadrature of the same order. Under autocast the
    states move, and the cost is computed, in single precision.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eqs. 7 to 9.
    .. [2] Kan, Li, Osher, "OT-Transformer", the first version of [1]_, eq. 8.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> block = nets.blocks.Block(8, heads=2, hidden=32)
    >>> body = nets.ContinuousTransformer(block, t_final=1.0, steps=10)
    >>> state, cost = body(torch.zeros(3, 5, 8))
    >>> body.steps = 4  # at inference
    >>> body.dt
    0.25
    """

    def __init__(
        self,
        blocks: nn.Module | Iterable[nn.Module],
        t_final: float = 1.0,
        steps: int = 1,
        *,
        scheme: Scheme = "euler",
        velocity: Velocity = "block",
        cost: Cost = "mean",
        checkpointing: bool = False,
        batch_dim: int = 0,
        returns: Returns = "flow",
    ) -> None:
        super().__init__()
        check_choice("returns", returns, ("flow", "layer"))
        check_choice("scheme", scheme, SCHEMES)
        check_choice("velocity", velocity, ("block", "residual"))
        check_choice("cost", cost, ("mean", "sum"))
        self.blocks = _one_module(blocks, _Layers if returns == "layer" else Stack)
        self.returns = returns
        self._last_cost: Tensor | None = None
        self.t_final = t_final
        self.steps = steps
        self.scheme, self.velocity, self.cost = scheme, velocity, cost
        self.checkpointing = switch(checkpointing, "checkpointing")
        self.batch_dim = whole(batch_dim, "batch_dim", -64)

    @property
    def steps(self) -> int:
        """Number of steps M from 0 to T."""
        return self._steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._steps = whole(value, "steps")

    @property
    def t_final(self) -> float:
        """End time T."""
        return self._t_final

    @t_final.setter
    def t_final(self, value: float) -> None:
        self._t_final = positive(value, "t_final")

    @property
    def last_cost(self) -> Tensor | None:
        """Transport cost of the last `forward` with ``returns="layer"``; None in copies."""
        return self._last_cost

    @property
    def dt(self) -> float:
        """Length T/M of a step."""
        return self.t_final / self.steps

    def forward(
        self, x: Tensor, *arguments: Any, valid: Tensor | None = None, **context: Any
    ) -> Any:
        """Integrate hidden states from t = 0 to T.

        Parameters
        ----------
        x : Tensor
            Hidden states X(0), such as (batch, tokens, width).
        *arguments : object
            As `context`, for blocks that are given them by position.
        valid : Tensor, shape (batch, tokens), optional
            True where a token is there: only those count in the cost (in any order in which `x` has
            these dimensions first).
        **context : object
            Handed to the blocks at each evaluation, such as a padding mask.

        Returns
        -------
        Flow or object
            Hidden states X(T), and the transport cost; or what a layer returns (`returns`).

        Raises
        ------
        InputError
            For blocks that change the shape, and a cache that several evaluations would fill.
        """
        given = self._given(arguments, context)
        size = self._size(x, valid)
        x = unrounded(present(x, valid))
        step: Callable[..., _Step] = self._step
        if self.checkpointing and torch.is_grad_enabled():
            step = _recomputed(self._step)
        squares = []
        for _ in range(self.steps):
            x, of_stages = step(x, size, given)
            squares.append(of_stages)
        cost = self._costs(squares, size).sum()
        if self.returns == "flow":
            return Flow(x, cost)
        self._last_cost = cost
        return _with_states(given.answer[0], x)

    def trajectory(
        self, x: Tensor, *arguments: Any, valid: Tensor | None = None, **context: Any
    ) -> Trajectory:
        """Return the trajectory of hidden states from 0 to T.

        Parameters
        ----------
        x : Tensor
            Hidden states X(0), such as (batch, tokens, width).
        *arguments : object
            As for `forward`.
        valid : Tensor, shape (batch, tokens), optional
            As for `forward`.
        **context : object
            As for `forward`.

        Returns
        -------
        Trajectory
            States, times, cost and velocity of each step.
        """
        given = self._given(arguments, context)
        size = self._size(x, valid)
        x = unrounded(present(x, valid))
        states, squares, velocities = [x], [], []
        for _ in range(self.steps):
            velocities.append(self._velocity(x, given))
            x, of_stages = self._advance(x, velocities[-1], size, given)
            states.append(x)
            squares.append(of_stages)
        times = torch.linspace(0, self.t_final, self.steps + 1, dtype=torch.float64)
        return Trajectory(
            torch.stack(states), times, self._costs(squares, size), torch.stack(velocities)
        )

    def velocity_of(self, x: Tensor, *arguments: Any, **context: Any) -> Tensor:
        """Return the velocity f(x) of hidden states.

        Parameters
        ----------
        x : Tensor
            Hidden states.
        *arguments : object
            As for `forward`.
        **context : object
            As for `forward`.

        Returns
        -------
        Tensor
            Velocities, of the shape of `x`.

        Raises
        ------
        InputError
            For blocks that change the shape, and hidden states that are no real numbers.
        """
        tensor(x, "hidden states", "real", meta=True)
        return self._velocity(x, _Given(arguments, context, []))

    def __getattr__(self, name: str) -> Any:
        # nn.TransformerEncoder, for one, reads settings of its first layer. The body of a network
        # is no setting.
        try:
            return super().__getattr__(name)
        except AttributeError:
            block = self.__dict__.get("_modules", {}).get("blocks")
            layer = self.__dict__.get("returns") == "layer" and not isinstance(block, Stack)
            if block is None or not layer or name.startswith("_") or name == "body":
                raise
            return getattr(block, name)

    def __getstate__(self) -> dict[str, Any]:
        # A tensor within a graph can be neither copied nor pickled.
        return self.__dict__ | {"_last_cost": None}

    def extra_repr(self) -> str:
        # Files of trainings hold this text: the default stays out of it.
        returns = "" if self.returns == "flow" else f", returns={self.returns!r}"
        return (
            f"t_final={self.t_final}, steps={self.steps}, scheme={self.scheme!r}, "
            f"velocity={self.velocity!r}, cost={self.cost!r}, "
            f"checkpointing={self.checkpointing}, batch_dim={self.batch_dim}"
            f"{returns}"
        )

    def _given(self, arguments: tuple[Any, ...], context: dict[str, Any]) -> "_Given":
        evaluations = self.steps * len(SCHEMES[self.scheme].weights)
        # A cache of transformers, by what all of them have.
        caches = [a for a in (*arguments, *context.values()) if hasattr(a, "get_seq_length")]
        if caches and evaluations > 1:
            raise InputError(
                f"the blocks are evaluated {evaluations} times and are given a cache of keys and "
                f"values ({type(caches[0]).__name__}), to which each evaluation would add its own: "
                "expected none; give use_cache=False, to the call or to the configuration"
            )
        return _Given(arguments, context, [])

    def _velocity(self, x: Tensor, given: "_Given") -> Tensor:
        """Compute the velocity of valid states: `forward` checks the first, each makes the next."""
        answer = self.blocks(x, *given.arguments, **given.context)
        if self.returns == "layer":
            given.answer[:] = [answer]
        image = hidden_states(answer)
        if not image.is_floating_point():
            tensor(image, "what the blocks return", "real", meta=True)
        if image.shape != x.shape:
            raise InputError(
                f"the blocks turned hidden states {tuple(x.shape)} into {tuple(image.shape)}: "
                "expected the same shape, for a dynamical system moves in one space; put what "
                "changes the width before or after it"
            )
        return image - x if self.velocity == "residual" else image

    def _step(self, x: Tensor, size: "_Size", given: "_Given") -> _Step:
        return self._advance(x, self._velocity(x, given), size, given)

    def _advance(self, x: Tensor, first: Tensor, size: "_Size", given: "_Given") -> _Step:
        """Compute one step from x with velocity `first`: next state, |k_i|^2 of each stage."""
        tableau, dt = SCHEMES[self.scheme], self.dt
        slopes = [first]
        for row in tableau.matrix[1:]:
            slopes.append(self._velocity(_combined(x, dt, row, slopes), given))
        return _combined(x, dt, tableau.weights, slopes), [size.squared(k) for k in slopes]

    def _costs(self, squares: list[list[Tensor]], size: "_Size") -> Tensor:
        """Return the cost of each step (M,): (dt/2) sum_i weights[i] |k_i|^2, scaled.

        All steps at once: their numbers one by one would take as long as a small block.
        """
        of_stage = [torch.stack(of_steps) for of_steps in zip(*squares, strict=True)]
        weights = SCHEMES[self.scheme].weights
        pairs = zip(weights, of_stage, strict=True)
        total = torch.stack([weight * squares for weight, squares in pairs]).sum(0)
        return self.dt / 2 * size.scale * total

    def _size(self, x: Tensor, valid: Tensor | None) -> "_Size":
        tensor(x, "hidden states", "real", meta=True)
        if not x.numel():
            raise InputError(f"hidden states are of shape {tuple(x.shape)}: expected some")
        if not -x.ndim <= self.batch_dim < x.ndim:
            raise InputError(
                f"hidden states are of shape {tuple(x.shape)}: expected one with the dimension "
                f"batch_dim = {self.batch_dim} for the samples"
            )
        samples = x.shape[self.batch_dim]
        if valid is None:
            return _Size(1 / (x.numel() if self.cost == "mean" else samples), None)
        tensor(valid, "valid", "bool", meta=True)
        if valid.shape != x.shape[: valid.ndim] or valid.ndim < 2:
            raise InputError(
                f"valid is of shape {tuple(valid.shape)}: expected {tuple(x.shape[:2])}, the "
                f"samples and tokens of the hidden states {tuple(x.shape)}"
            )
        weight = valid.to(at_least_single(x.dtype))
        if self.cost == "mean":  # each sample over the entries that it has
            others = [axis for axis in range(valid.ndim) if axis != self.batch_dim % x.ndim]
            entries = weight.sum(others, keepdim=True) * (x.numel() // valid.numel())
            weight = weight / entries.clamp(min=1)
        weight = weight / samples
        return _Size(1.0, weight.sqrt().reshape(*valid.shape, *[1] * (x.ndim - valid.ndim)))


@register
class NodeTransformer(nn.Module):
    r"""One dynamical system per block, in sequence: an N-ODE transformer [1]_.

    Parameters
    ----------
    blocks : torch.nn.Module or iterable of torch.nn.Module
        The blocks, as for `ContinuousTransformer`. An `nn.TransformerEncoder` without a final norm
        is taken as its layers, whose context has their names (`src_mask`, not `mask`); any other
        single module is one block and makes one system: give a list of what is inside it.
    t_final : float, default 1.0
        End time T of each system.
    steps : int, default 1
        Number of steps M of each system.
    **options : object
        Other options of `ContinuousTransformer`, the same for each block.

    Raises
    ------
    InputError
        As `ContinuousTransformer` does, and for an `nn.TransformerEncoder` with a final norm.

    Notes
    -----
    .. math:: X_i(0) = X_{i-1}(T), \qquad \frac{dX_i}{dt} = f_i(X_i).

    The cost is the sum over the systems, each of which goes from 0 to T in M steps. In the
    published model the feed-forward layer of a block has no skip connection: ``blocks.Block(...,
    skip=False)``.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eq. 13 (there after Baier-Reinio and De Sterck).

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> blocks = [nets.blocks.Block(8, heads=2, hidden=32, skip=False) for _ in range(2)]
    >>> body = nets.NodeTransformer(blocks, steps=5)
    >>> body.trajectory(torch.zeros(3, 5, 8)).states.shape
    torch.Size([11, 3, 5, 8])
    """

    def __init__(
        self,
        blocks: nn.Module | Iterable[nn.Module],
        t_final: float = 1.0,
        steps: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        if "returns" in options:
            raise InputError(
                "NodeTransformer returns a Flow: expected no `returns`; in the place of a layer of "
                'another library, put a ContinuousTransformer(layer, returns="layer")'
            )
        systems = [ContinuousTransformer(b, t_final, steps, **options) for b in _each(blocks)]
        if not systems:
            raise InputError("there are no blocks: expected at least one")
        self.systems = nn.ModuleList(systems)

    @property
    def steps(self) -> int:
        """Number of steps M of each system."""
        return self._first.steps

    @steps.setter
    def steps(self, value: int) -> None:
        for system in self._each_system():
            system.steps = value

    @property
    def t_final(self) -> float:
        """End time T of each system."""
        return self._first.t_final

    @t_final.setter
    def t_final(self, value: float) -> None:
        for system in self._each_system():
            system.t_final = value

    def forward(
        self, x: Tensor, *arguments: Any, valid: Tensor | None = None, **context: Any
    ) -> Flow:
        """Integrate hidden states through all systems.

        Parameters
        ----------
        x : Tensor
            Hidden states, as for one system.
        *arguments : object
            As for one system.
        valid : Tensor, shape (batch, tokens), optional
            As for one system.
        **context : object
            As for one system.

        Returns
        -------
        Flow
            Hidden states after the last system, and the sum of the costs.
        """
        tensor(x, "hidden states", "real", meta=True)
        total = x.new_zeros((), dtype=at_least_single(x.dtype))
        for system in self._each_system():
            x, cost = system(x, *arguments, valid=valid, **context)
            total = total + cost
        return Flow(x, total)

    def trajectory(
        self, x: Tensor, *arguments: Any, valid: Tensor | None = None, **context: Any
    ) -> Trajectory:
        """Return the trajectory through all systems, with continuous times up to D T.

        Parameters
        ----------
        x : Tensor
            Hidden states, as for one system.
        *arguments : object
            As for one system.
        valid : Tensor, shape (batch, tokens), optional
            As for one system.
        **context : object
            As for one system.

        Returns
        -------
        Trajectory
            States, times, cost and velocity of each step of all systems.
        """
        parts: list[Trajectory] = []
        for system in self._each_system():
            part = system.trajectory(x, *arguments, valid=valid, **context)
            parts.append(part._replace(times=part.times + len(parts) * system.t_final))
            x = part.states[-1]
        return Trajectory(
            torch.cat([parts[0].states[:1], *(part.states[1:] for part in parts)]),
            torch.cat([parts[0].times[:1], *(part.times[1:] for part in parts)]),
            torch.cat([part.costs for part in parts]),
            torch.cat([part.velocities for part in parts]),
        )

    @property
    def _first(self) -> ContinuousTransformer:
        return self._each_system()[0]

    def _each_system(self) -> list[ContinuousTransformer]:
        return list(self.systems)  # type: ignore[arg-type]


class _Size(NamedTuple):
    """Weights of the squared norm of a velocity: scale * |root * f|^2."""

    scale: float
    root: Tensor | None  # square roots of weights, to be broadcast against f

    def squared(self, velocity: Tensor) -> Tensor:
        """Return |root * f|^2, in single precision at least."""
        if self.root is not None:
            velocity = velocity * self.root
        wide = at_least_single(velocity.dtype)
        if velocity.dtype != wide:  # in one pass: a product would need a copy in single precision
            return torch.linalg.vector_norm(velocity, dtype=wide).square()
        # The gradient of a product takes two plain passes; that of a norm takes three, one of them
        # a mask for the norm 0, and is the slowest part of the cost.
        flat = velocity.flatten()
        return torch.dot(flat, flat)


class _Given(NamedTuple):
    """What blocks are given beside the hidden states, and what they answered last."""

    arguments: tuple[Any, ...]
    context: dict[str, Any]
    answer: list[Any]  # one, where it is needed


class _Layers(Stack):
    """Layers of another library, which return what the last of them returns."""

    def forward(self, x: Tensor, *arguments: Any, **context: Any) -> Any:
        answer: Any = x
        for layer in self.blocks:
            answer = layer(hidden_states(answer), *arguments, **context)
        return answer


def _with_states(answer: Any, states: Tensor) -> Any:
    """Return what a layer returned, with other hidden states; all the rest is kept."""
    if isinstance(answer, Tensor):
        return states
    if isinstance(answer, tuple | list):
        make = getattr(type(answer), "_make", type(answer))  # of a named tuple
        return make([states, *answer[1:]])
    answer = copy.copy(answer)
    answer.last_hidden_state = states
    return answer


def unrounded(x: Tensor) -> Tensor:
    """Return hidden states in single precision at least under autocast, for sums of steps."""
    if autocast(x):
        x = x.to(at_least_single(x.dtype))
    return x


def _combined(x: Tensor, dt: float, weights: Iterable[float], slopes: list[Tensor]) -> Tensor:
    """Return x + dt sum_i weights[i] slopes[i]."""
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            x = torch.add(x, slope, alpha=dt * weight)
    return x


def _recomputed(step: Callable[..., _Step]) -> Callable[..., _Step]:
    def again(*arguments: Any) -> _Step:
        return checkpoint(step, *arguments, use_reentrant=False)  # type: ignore[no-any-return]

    return again


def _each(blocks: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
    if isinstance(blocks, Stack):
        return list(blocks.blocks)
    if isinstance(blocks, nn.TransformerEncoder):
        if blocks.norm is not None:
            raise InputError(
                "the nn.TransformerEncoder has a final norm, which belongs to none of its layers: "
                "give its `.layers`, and apply the norm to what comes out"
            )
        return list(blocks.layers)
    if isinstance(blocks, nn.Module) and not isinstance(blocks, nn.Sequential | nn.ModuleList):
        return [blocks]
    return modules(blocks)


def _one_module(blocks: nn.Module | Iterable[nn.Module], form: type[Stack]) -> nn.Module:
    """Return the blocks as one module, of that form if several, that passes its context to each."""
    several = nn.Sequential | nn.ModuleList
    if isinstance(blocks, nn.Module) and not isinstance(blocks, several):
        return form(blocks) if type(blocks) is Stack and form is not Stack else blocks
    parts = _each(blocks)
    if not parts:
        raise InputError("there are no blocks: expected at least one")
    return form(parts)
