"""Attention as a minimizing movement: a layer whose energy cannot rise, however long its step.

A gradient flow of the energy of attention by implicit Euler steps, [MHT] sections 3.3 and 7.1. The
minimiser is found by Newton's method, and differentiated by the implicit function theorem: memory
does not grow with the iterations.

[MHT] Massucco et al., "Multi-Headed Transformer Architectures as Time-dependent Wasserstein
Gradient Flows", arXiv 2605.18870.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
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
_SUFFICIENT = 1e-4  # share of the predicted decrease that a step must reach (Armijo)
_HALVINGS, _DIRECTIONS = 30, 200  # of a step, and of conjugate gradients, at most
_RADIUS = 1.0  # mean length of a step along negative curvature, on the unit sphere


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
        with torch.autocast(x.device.type, enabled=False):
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
        scores = self._features(u) @ _partners(self._features(v)).mT
        each = _mean_exp(scores, self.causal).sum(3).mean(1)
        return each if self.causal else each.mean(1) / 2

    def extra_repr(self) -> str:
        return (
            f"heads={self.heads}, head_width={self.head_width}, tau={self.tau:g}, "
            f"steps={self.steps}, "
            f"metric={self.metric!r}, direction={self.direction!r}, causal={self.causal}"
        )

    def _features(self, x: Tensor) -> Tensor:
        """Return A_h x and B_h x, scaled: (batch, heads, tokens, 2 k)."""
        return _split(x @ self._rows(x).T, self.heads)

    def _rows(self, x: Tensor) -> Tensor:
        """Return the rows of A_h and B_h of every head, scaled: (heads * 2 k, width)."""
        both = [w.weight.unflatten(0, (self.heads, -1)) for w in (self.query, self.key)]
        half = 0.5 * self.width / math.sqrt(self.head_width)
        return math.sqrt(half) * torch.cat(both, 1).flatten(0, 1).to(x.dtype)

    @torch.compiler.disable
    def _moved(self, start: Tensor) -> Tensor:
        """Return the directions that minimise the objective, differentiable."""
        weights, shift = self._weights(start)
        objective = _Objective(
            start, weights / self.tau, shift, self._rows(start), self.heads, self.causal,
            -1 if self.direction == "ascent" else 1,
        )  # fmt: skip
        with torch.no_grad():
            found, reached = _minimise(objective, self.tolerance, self.iterations)
        if not reached:
            warn(
                f"a minimiser was not reached within {self.iterations} Newton steps, so that "
                "derivatives are less accurate: give more iterations, a larger tolerance or a "
                "smaller tau",
                AccuracyWarning,
            )
        if not torch.is_grad_enabled():
            return found
        point = _Point(objective, found)
        return _Implicit.apply(point.slope, point, self.tolerance)  # type: ignore[no-any-return, no-untyped-call]

    def _weights(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return b_i (batch, tokens, 1), and what is taken from all scores, or those of a token.

        The same factor in energy and metric leaves the minimiser where it is, so that no
        exponential overflows.
        """
        if self.metric == "w2":
            return start.new_ones(*start.shape[:2], 1), start.new_zeros(len(start), 1, 1, 1)
        features = self._features(start)
        scores = features @ _partners(features).mT
        seen = scores.detach()
        if self.causal:
            seen = seen.masked_fill(_hidden(seen), -math.inf)
        shift = seen.amax(dim=(1, 3) if self.causal else (1, 2, 3), keepdim=True)
        mobility = _mean_exp(scores - shift, self.causal).sum(3)
        mobility = mobility.clamp_min(torch.finfo(start.dtype).tiny ** 0.5)
        return 1 / (1 / mobility).mean(1).unsqueeze(2), shift


def _directions(x: Tensor, size: Tensor) -> Tensor:
    """Return x / |x|, and the first axis for tokens that are zero."""
    axis = torch.zeros_like(x)
    axis[..., 0] = 1
    return torch.where(size > 0, x / size.clamp_min(torch.finfo(x.dtype).tiny), axis)


def _split(x: Tensor, heads: int) -> Tensor:
    """Return (batch, heads, tokens, 2 k) of (batch, tokens, heads * 2 k)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _partners(features: Tensor) -> Tensor:
    """Exchange queries and keys: s_h(u, v) is the product of features of u and partners of v."""
    return features.roll(features.shape[3] // 2, 3)


def _hidden(scores: Tensor) -> Tensor:
    """Return whether token j is after token i: (tokens, tokens)."""
    return torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)


def _mean_exp(scores: Tensor, causal: bool) -> Tensor:
    """Return exp of scores, 0 where hidden, over the number of tokens that token i sees."""
    if not causal:
        return scores.exp() / scores.shape[3]
    hidden = _hidden(scores)
    return scores.masked_fill(hidden, -math.inf).exp() / (~hidden).sum(1, keepdim=True)


@dataclass(frozen=True)
class _Objective:
    """n J of every sample, or of every token where each has its own."""

    start: Tensor  # directions u (batch, tokens, width)
    scale: Tensor  # b / tau, what preconditions the Hessian (batch, tokens, 1)
    shift: Tensor  # taken from scores
    rows: Tensor  # of queries and keys (heads * 2 k, width)
    heads: int
    causal: bool
    sign: int  # of the energy

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the dimensions that one objective takes in."""
        return (2,) if self.causal else (1, 2)

    def of(self, samples: Tensor) -> "_Objective":
        """Return the objectives of some samples."""
        start, scale, shift = (each[samples] for each in (self.start, self.scale, self.shift))
        return replace(self, start=start, scale=scale, shift=shift)


class _Point:
    """Objectives at directions w: values, slopes on the sphere, products with the Hessian.

    With features f = R w and partners g, scores are s_hij = <f_hi, g_hj> and n E has the gradient
    sum_h R_h^T sum_j p_hij g_hj, p = exp(s) / (n H); on the sphere the Hessian has the further term
    -<gradient, w>.
    """

    def __init__(self, objective: _Objective, w: Tensor) -> None:
        self.objective, self.w, self.dims = objective, w, objective.dims
        features = self._split(w)  # (batch, heads, tokens, 2 k)
        self.partners = _partners(self._split(objective.start) if objective.causal else features)
        scores = features @ self.partners.mT - objective.shift  # (batch, heads, tokens, tokens)
        self.pairs = _mean_exp(scores, objective.causal) / objective.heads

    def _split(self, x: Tensor) -> Tensor:
        return _split(x @ self.objective.rows.T, self.objective.heads)

    def _back(self, x: Tensor) -> Tensor:
        return self.objective.sign * x.transpose(1, 2).flatten(2) @ self.objective.rows

    @cached_property
    def value(self) -> Tensor:
        """Return the values, of the shape of w with the size 1 along `dims`."""
        of = self.objective
        energies = self.pairs.sum((1, 3)).unsqueeze(2)
        moved = of.scale * (self.w - of.start).square().sum(2, keepdim=True) / 2
        if of.causal:
            return moved + of.sign * energies
        return (moved + of.sign * energies / 2).sum(1, keepdim=True)

    @cached_property
    def _gradient(self) -> Tensor:
        return self._back(self.pairs @ self.partners) - self.objective.scale * self.objective.start

    @cached_property
    def slope(self) -> Tensor:
        """Return the gradients on the spheres."""
        return _tangent(self._gradient, self.w)

    @cached_property
    def _radial(self) -> Tensor:
        return (self._gradient * self.w).sum(2, keepdim=True)

    def product(self, vector: Tensor) -> Tensor:
        """Return the Hessian on the spheres times tangent vectors."""
        features = self._split(vector)
        change = features @ self.partners.mT
        if self.objective.causal:
            image = (self.pairs * change) @ self.partners
        else:
            change = change + change.mT
            image = (self.pairs * change) @ self.partners + self.pairs @ _partners(features)
        return _tangent(self._back(image) - self._radial * vector, self.w)


class _Implicit(torch.autograd.Function):
    """A minimiser as a function of the slope of its objective: -J_ww^-1 times its derivative."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, point: _Point, tolerance: float) -> Tensor:
        ctx.point, ctx.tolerance = point, tolerance
        return point.w.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        solved, left = _conjugate_gradients(
            ctx.point, _tangent(cotangent, ctx.point.w), ctx.tolerance
        )
        if left:
            warn(
                "the derivative of a minimiser was not solved to the tolerance: it lies where the "
                "minimiser nearly jumps; give a smaller tau, or a larger tolerance",
                AccuracyWarning,
            )
        return -solved, None, None


def _minimise(objective: _Objective, tolerance: float, iterations: int) -> tuple[Tensor, bool]:
    """Minimise functions of directions by Newton's method with Armijo's rule, from their start.

    Parameters
    ----------
    objective : _Objective
        The functions, all independent.
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
    part, found = objective, objective.start.detach().clone()
    samples = torch.arange(len(found), device=found.device)
    for iteration in range(iterations + 1):
        point = _Point(part, found[samples])
        size, open_ = _left(point, tolerance)
        kept = open_.flatten(1).any(1)
        if not kept.any() or iteration == iterations:
            break
        if not kept.all():  # the others are done
            samples, part = samples[kept], part.of(kept)
            point, size, open_ = _Point(part, point.w[kept]), size[kept], open_[kept]
        # As exact as is worth while far from the minimiser: quadratic convergence near it.
        step = -_conjugate_gradients(point, point.slope, size.clamp(max=0.1), _RADIUS)[0]
        found[samples] = torch.where(open_, _shortened(point, step), point.w)
    return found, not bool(kept.any())


def _left(point: _Point, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the mean length of a preconditioned step of steepest descent; and if it is large."""
    scale, dims = point.objective.scale, point.dims
    total = scale.sum(dims, keepdim=True)
    size = ((point.slope.square() / scale).sum(dims, keepdim=True) / total).sqrt()
    return size, size > tolerance


def _shortened(point: _Point, step: Tensor) -> Tensor:
    """Return w after the step, halved until the objective falls enough; w where it does not."""
    w, value = point.w, point.value
    predicted = (point.slope * step).sum(point.dims, keepdim=True)
    rounding = 4 * torch.finfo(value.dtype).eps * value.abs()
    length = torch.ones_like(value)
    for _ in range(_HALVINGS):
        trial = w + length * step
        trial = trial / trial.norm(dim=2, keepdim=True)
        # NaN is no decrease.
        after = _Point(point.objective, trial).value
        reached = after <= value + _SUFFICIENT * length * predicted + rounding
        if reached.all():
            break
        length = torch.where(reached, length, length / 2)
    return torch.where(reached, trial, w)


def _conjugate_gradients(
    point: _Point, target: Tensor, tolerance: Tensor | float, radius: float = 0.0
) -> tuple[Tensor, bool]:
    """Solve A v = target in the tangent space at w, for every sample or token; say what is left.

    Where it meets a direction of negative curvature it goes along it by the mean length `radius`,
    and ends (Steihaug).
    """
    scale, dims = point.objective.scale, point.dims
    total = scale.sum(dims, keepdim=True)
    solution = torch.zeros_like(target)
    residual = target
    direction = preconditioned = residual / scale
    power = (residual * preconditioned).sum(dims, keepdim=True)
    enough = power * torch.as_tensor(tolerance, dtype=power.dtype, device=power.device) ** 2
    going = power > enough
    for _ in range(_DIRECTIONS):
        if not going.any():
            break
        image = point.product(direction)
        curvature = (direction * image).sum(dims, keepdim=True)
        bent = going & ~(curvature > 0)
        going = going & ~bent
        length = ((scale * direction.square()).sum(dims, keepdim=True) / total).sqrt()
        rate = torch.where(going, power / curvature, torch.where(bent, radius / length, 0.0))
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
