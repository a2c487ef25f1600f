"""Attention as a minimizing movement: a layer whose energy cannot rise, however long its step.

A gradient flow of the energy of attention by implicit Euler steps, [MHT] sections 3.3 and 7.1. The
minimiser is found by Newton's method, and differentiated by the implicit function theorem: memory
does not grow with the iterations.

[MHT] Massucco et al., "Multi-Headed Transformer Architectures as Time-dependent Wasserstein
Gradient Flows", arXiv 2605.18870.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from wflow._core.checks import check_choice, positive, switch, whole
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow.nets.blocks import at_least_single, check_hidden, share
from wflow.nets.checks import in_memory
from wflow.nets.registry import register

__all__ = ["MinimizingMovement"]

Metric = Literal["weighted", "w2"]
Direction = Literal["ascent", "descent"]
Product = Callable[[Tensor], Tensor]
_SUFFICIENT = 1e-4  # share of the predicted decrease that a step must reach (Armijo)
_HALVINGS, _DIRECTIONS = 30, 200  # of a step, and of conjugate gradients, at most


@register
class MinimizingMovement(nn.Module):
    r"""Attention as an implicit Euler step of the gradient flow of its own energy [1]_.

    Parameters
    ----------
    width : int
        Width d of the hidden states.
    heads : int, default 1
        Number of heads H.
    head_width : int, optional
        Width k of a head, the rank of its matrix at most 2 k; None is width / heads.
    tau : float, default 1.0
        Step :math:`\tau`, in units of the time of the flow.
    steps : int, default 1
        Steps one after another, with the same weights.
    metric : {"weighted", "w2"}
        The weighted distance of [1]_, whose flow is softmax attention for one head, or W₂, whose
        flow is attention that is not normalised; both to first order, each token on its own way.
    direction : {"ascent", "descent"}
        Whether the energy rises, and tokens attract each other where D is positive, or falls.
    causal : bool, default False
        Whether a token sees itself and those before it only.
    tolerance : float, default 1e-4
        Length of the mean step that is left, on the unit sphere, and residual of the system that
        gives derivatives. The inequality of the energies holds at any tolerance.
    iterations : int, default 20
        Newton steps at most. A sample that needs more keeps what it has, with a warning.

    Raises
    ------
    InputError
        For a width that the heads cannot share, and arguments out of range.

    Notes
    -----
    Tokens keep their norms; their directions :math:`u_i` move. With
    :math:`s_{h}(u, v) = d\,\langle A_h u, B_h v\rangle / \sqrt{k}`, symmetrised in u and v, that is
    :math:`\langle u, D_h v\rangle` of a symmetric matrix,

    .. math:: E(u) = \frac{1}{2 H n^2} \sum_{h, i, j} e^{s_h(u_i, u_j)}, \qquad
       J(w) = \mp E(w) + \frac{1}{2 \tau n} \sum_i b_i |w_i - u_i|^2,

    with the minus sign for ascent. :math:`u'` is the minimum of J that Newton's method reaches from
    u, and :math:`b_i` the harmonic mean over heads of :math:`\frac1n \sum_j e^{s_h(u_i, u_j)}`,
    or 1 for W₂. Hence :math:`\mp E(u') \le \mp E(u) - \frac{1}{2 \tau n} \sum_i b_i |u'_i -
    u_i|^2`, for all weights and all :math:`\tau`. For small :math:`\tau` J has one minimum near u;
    for a large one it has several, and u' jumps between them as u moves. A mask has no energy: with
    `causal` each token minimises its own, its context held where it is, and the inequality holds
    for it.

    The derivative is :math:`-J_{ww}^{-1}` times that of the gradient :math:`J_w` by weights and
    hidden states, by conjugate gradients. Second derivatives are refused.

    References
    ----------
    .. [1] Massucco et al., "Multi-Headed Transformer Architectures as Time-dependent Wasserstein
       Gradient Flows", arXiv:2605.18870, sections 3.3 and 7.1, Lemma 3.8.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> _ = torch.manual_seed(0)
    >>> layer = nets.MinimizingMovement(16, heads=2, tau=10.0)
    >>> x = torch.randn(3, 5, 16)
    >>> y = layer(x)
    >>> bool((layer.energy(y) >= layer.energy(x)).all())
    True
    """

    @in_memory
    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        head_width: int | None = None,
        tau: float = 1.0,
        steps: int = 1,
        metric: Metric = "weighted",
        direction: Direction = "ascent",
        causal: bool = False,
        tolerance: float = 1e-4,
        iterations: int = 20,
    ) -> None:
        super().__init__()
        self.width, self.heads = whole(width, "width"), whole(heads, "heads")
        self.head_width = (
            share(width, heads) if head_width is None else whole(head_width, "head_width")
        )
        self.tau, self.steps = positive(tau, "tau"), whole(steps, "steps")
        check_choice("metric", metric, get_args(Metric))
        check_choice("direction", direction, get_args(Direction))
        self.metric, self.direction = metric, direction
        self.causal, self.iterations = switch(causal, "causal"), whole(iterations, "iterations")
        self.tolerance = positive(tolerance, "tolerance")
        inner = self.heads * self.head_width
        self.query = nn.Linear(self.width, inner, bias=False)
        self.key = nn.Linear(self.width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Move the hidden states.

        Parameters
        ----------
        x : Tensor, shape (batch, tokens, width)
            Hidden states.

        Returns
        -------
        Tensor, shape (batch, tokens, width)
            Hidden states of the same norms.

        Raises
        ------
        InputError
            For other shapes or types.

        Warns
        -----
        AccuracyWarning
            Where a minimiser was not reached within `iterations`.
        """
        check_hidden(x, self.width, None, self.query.weight)
        if x.numel() == 0:
            return x
        # Newton's method takes derivatives whatever the caller does.
        with torch.inference_mode(False), torch.autocast(x.device.type, enabled=False):
            wide = (x.clone() if x.is_inference() else x).to(at_least_single(x.dtype))
            size = wide.norm(dim=2, keepdim=True)
            u = _directions(wide, size)
            for _ in range(self.steps):
                u = self._moved(u)
            return (size * u).to(x.dtype)

    def energy(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        r"""Return the energy of hidden states, which the layer moves one way only.

        Parameters
        ----------
        x : Tensor, shape (batch, tokens, width)
            Hidden states.
        context : Tensor, shape (batch, tokens, width), optional
            With `causal`, the hidden states that tokens see; None is `x`.

        Returns
        -------
        Tensor, shape (batch,) or (batch, tokens)
            The energy E of each sample; with `causal` that of each token in its context,
            :math:`\frac{1}{H i} \sum_h \sum_{j \le i} e^{s_h(u_i, u_j)}`.

        Raises
        ------
        InputError
            For other shapes or types, and for a context without `causal`.
        """
        check_hidden(x, self.width, None, self.query.weight)
        if context is not None:
            if not self.causal:
                raise InputError("context is for causal=True: expected None")
            check_hidden(context, self.width, None, self.query.weight)
        u = _directions(x, x.norm(dim=2, keepdim=True))
        v = u if context is None else _directions(context, context.norm(dim=2, keepdim=True))
        scores = self._scores(u, v)
        each = _mean_exp(scores, _seen(scores) if self.causal else None).mean(1)
        return each if self.causal else each.mean(1) / 2

    def extra_repr(self) -> str:
        return (
            f"heads={self.heads}, head_width={self.head_width}, tau={self.tau:g}, "
            f"steps={self.steps}, "
            f"metric={self.metric!r}, direction={self.direction!r}, causal={self.causal}"
        )

    def _scores(self, u: Tensor, v: Tensor) -> Tensor:
        """Return s_h(u_i, v_j): (batch, heads, tokens of u, tokens of v)."""

        def split(linear: nn.Linear, x: Tensor) -> Tensor:
            weight = linear.weight.to(x.dtype)
            return (x @ weight.T).unflatten(2, (self.heads, self.head_width)).transpose(1, 2)

        def pairs(left: Tensor, right: Tensor) -> Tensor:
            return left @ right.transpose(2, 3)

        half = 0.5 * self.width / math.sqrt(self.head_width)
        query, key = split(self.query, u), split(self.key, u)
        return half * (pairs(query, split(self.key, v)) + pairs(key, split(self.query, v)))

    @torch.compiler.disable
    def _moved(self, start: Tensor) -> Tensor:
        """Return the directions that minimise the objective, differentiable."""
        weights, shift = self._weights(start)
        fixed = weights.detach()

        def objective(w: Tensor, start: Tensor, weights: Tensor) -> Tensor:
            """Return n J at directions w / |w|, of every sample, or of every token."""
            w = w / w.norm(dim=2, keepdim=True)
            scores = self._scores(w, start if self.causal else w)
            seen = _seen(scores) if self.causal else None
            energies = _mean_exp(scores - shift, seen).mean(1).unsqueeze(2)  # (batch, tokens, 1)
            energies = energies if self.causal else energies / 2
            moved = weights * (w - start).square().sum(2, keepdim=True) / (2 * self.tau)
            each = moved - energies if self.direction == "ascent" else moved + energies
            return each if self.causal else each.sum(1, keepdim=True)

        dims = (2,) if self.causal else (1, 2)
        found, reached = _minimise(
            lambda w: objective(w, start.detach(), fixed),
            start.detach(), fixed / self.tau, dims, self.tolerance, self.iterations,
        )  # fmt: skip
        if not reached:
            warn(
                f"a minimiser was not reached within {self.iterations} Newton steps, so that "
                "derivatives are less accurate: give more iterations, a larger tolerance or a "
                "smaller tau",
                AccuracyWarning,
            )
        if not torch.is_grad_enabled():
            return found
        w = found.requires_grad_()
        (slope,) = torch.autograd.grad(objective(w, start, weights).sum(), w, create_graph=True)

        def product(vector: Tensor) -> Tensor:
            (result,) = torch.autograd.grad(slope, w, vector, retain_graph=True)
            return result

        return _Implicit.apply(slope, w.detach(), product, fixed / self.tau, dims, self.tolerance)  # type: ignore[no-any-return, no-untyped-call]

    def _weights(self, start: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return b_i (batch, tokens, 1), and what is taken from all scores.

        The same factor in energy and metric leaves the minimiser where it is, so that no
        exponential overflows.
        """
        if self.metric == "w2":
            return start.new_ones(*start.shape[:2], 1), 0.0
        scores = self._scores(start, start)
        if self.causal:
            seen = _seen(scores)
            shift = scores.detach().masked_fill(seen == 0, -math.inf).amax(dim=(1, 3), keepdim=True)
        else:
            seen, shift = None, scores.detach().amax(dim=(1, 2, 3), keepdim=True)
        mobility = _mean_exp(scores - shift, seen)
        mobility = mobility.clamp_min(torch.finfo(start.dtype).tiny ** 0.5)
        return 1 / (1 / mobility).mean(1).unsqueeze(2), shift


def _directions(x: Tensor, size: Tensor) -> Tensor:
    """Return x / |x|, and the first axis for tokens that are zero."""
    axis = torch.zeros_like(x)
    axis[..., 0] = 1
    return torch.where(size > 0, x / size.clamp_min(torch.finfo(x.dtype).tiny), axis)


def _seen(scores: Tensor) -> Tensor:
    """Return 1 where token i sees token j: (tokens, tokens)."""
    return torch.ones(scores.shape[2:], dtype=scores.dtype, device=scores.device).tril()


def _mean_exp(scores: Tensor, seen: Tensor | None) -> Tensor:
    """Return the means of exp of scores over the tokens that are seen: (batch, heads, tokens)."""
    if seen is None:
        return scores.exp().mean(3)
    return scores.masked_fill(seen == 0, -math.inf).exp().sum(3) / seen.sum(1)


class _Implicit(torch.autograd.Function):
    """A minimiser as a function of the slope of its objective: -J_ww^-1 times its derivative."""

    @staticmethod
    def forward(
        ctx: Any, slope: Tensor, w: Tensor, product: Product, scale: Tensor, dims: tuple[int, ...],
        tolerance: float,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(w, scale)
        ctx.product, ctx.dims, ctx.tolerance = product, dims, tolerance
        return w.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        w, scale = ctx.saved_tensors
        with torch.enable_grad():
            solved, left = _conjugate_gradients(
                ctx.product, _tangent(cotangent, w), w, scale, ctx.dims, ctx.tolerance
            )
        if left:
            warn(
                "the derivative of a minimiser was not solved to the tolerance: it lies where the "
                "minimiser nearly jumps; give a smaller tau, or a larger tolerance",
                AccuracyWarning,
            )
        return -solved, None, None, None, None, None


def _minimise(
    objective: Callable[[Tensor], Tensor],
    w: Tensor,
    scale: Tensor,
    dims: tuple[int, ...],
    tolerance: float,
    iterations: int,
) -> tuple[Tensor, bool]:
    """Minimise functions of directions by Newton's method with Armijo's rule.

    Parameters
    ----------
    objective : callable
        Values of w / |w|, of the shape of w with the size 1 along `dims`; all independent.
    w : Tensor, shape (batch, tokens, width)
        Start, of norm 1.
    scale : Tensor, shape (batch, tokens, 1)
        What preconditions the Hessian.
    dims : tuple of int
        Dimensions that one function takes in.
    tolerance : float
        Mean length of a step that is left, on the unit sphere.
    iterations : int
        Steps at most.

    Returns
    -------
    w : Tensor
        Directions where no objective is larger than at the start.
    reached : bool
        Whether all are within the tolerance.
    """
    total = scale.sum(dims, keepdim=True)
    for iteration in range(iterations + 1):
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            value = objective(w)
            (slope,) = torch.autograd.grad(value.sum(), w, create_graph=True)
        slope0, value = _tangent(slope.detach(), w.detach()), value.detach()
        # The mean length of a preconditioned step of steepest descent, on the unit sphere.
        size = ((slope0.square() / scale).sum(dims, keepdim=True) / total).sqrt()
        open_ = size > tolerance
        if not open_.any() or iteration == iterations:
            break

        def product(vector: Tensor, slope: Tensor = slope, w: Tensor = w) -> Tensor:
            (result,) = torch.autograd.grad(slope, w, vector, retain_graph=True)
            return result

        # As exact as is worth while far from the minimiser: quadratic convergence near it.
        forcing = size.clamp(max=0.1)
        step = -_conjugate_gradients(product, slope0, w.detach(), scale, dims, forcing)[0]
        with torch.no_grad():
            shorter = _shortened(objective, w.detach(), step, slope0, value, dims)
            w = torch.where(open_, shorter, w.detach())
    return w.detach(), not bool(open_.any())


def _shortened(
    objective: Callable[[Tensor], Tensor],
    w: Tensor,
    step: Tensor,
    slope: Tensor,
    value: Tensor,
    dims: tuple[int, ...],
) -> Tensor:
    """Return w after the step, halved until the objective falls enough; w where it does not."""
    predicted = (slope * step).sum(dims, keepdim=True)
    rounding = 4 * torch.finfo(value.dtype).eps * value.abs()
    length = torch.ones_like(value)
    reached = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(_HALVINGS):
        trial = w + length * step
        trial = trial / trial.norm(dim=2, keepdim=True)
        # NaN is no decrease.
        reached = objective(trial) <= value + _SUFFICIENT * length * predicted + rounding
        if reached.all():
            break
        length = torch.where(reached, length, length / 2)
    return torch.where(reached, trial, w)


def _conjugate_gradients(
    product: Product,
    target: Tensor,
    w: Tensor,
    scale: Tensor,
    dims: tuple[int, ...],
    tolerance: Tensor | float,
) -> tuple[Tensor, bool]:
    """Solve A v = target in the tangent space at w, for every sample or token; say what is left.

    It ends a direction of negative curvature where it meets it (Steihaug), at the first one with
    the preconditioned target, which is one of descent.
    """
    solution = torch.zeros_like(target)
    residual = target
    direction = preconditioned = residual / scale
    power = (residual * preconditioned).sum(dims, keepdim=True)
    enough = power * torch.as_tensor(tolerance, dtype=power.dtype, device=power.device) ** 2
    going = power > enough
    for _ in range(_DIRECTIONS):
        if not going.any():
            break
        image = _tangent(product(direction), w)
        curvature = (direction * image).sum(dims, keepdim=True)
        bent = going & ~(curvature > 0)
        first = (solution == 0).all(dim=dims[-1], keepdim=True)
        for dim in dims[:-1]:
            first = first.all(dim=dim, keepdim=True)
        solution = torch.where(bent & first, direction, solution)
        going = going & ~bent
        rate = torch.where(going, power / curvature, 0.0)
        solution = solution + rate * direction
        residual = residual - rate * image
        preconditioned = residual / scale
        new = (residual * preconditioned).sum(dims, keepdim=True)
        direction = torch.where(going, preconditioned + new / power * direction, 0.0)
        power = torch.where(going, new, power)
        going = going & (power > enough)
    return solution, bool((power > enough).any())


def _tangent(vectors: Tensor, w: Tensor) -> Tensor:
    """Project vectors on the tangent spaces at unit w."""
    return vectors - (vectors * w).sum(2, keepdim=True) * w
