r"""OT-Flow's potential, with its derivatives in closed form.

.. math::

    \phi(s) = w^T N(s) + \tfrac12 s^T A^T A s + b^T s + c, \qquad s = (x, t, y),

N is a residual network of width m with sigma(r) = log(2 cosh r),

    u_0 = sigma(K_0 s + b_0),    u_i = u_{i-1} + eta sigma(K_i u_{i-1} + b_i),    N = u_{L-1},

and eta = 1/(L-1). Backwards, z_{L-1} = w, z_{i-1} = z_i + eta K_i^T (sigma'_i z_i), so that

    grad_s phi = K_0^T (sigma'_0 z_0) + A^T A s + b,

and with the Jacobians J_i of u_i with respect to x, carried forwards,

    Hess_x phi = K_0^T diag(sigma''_0 z_0) K_0 + eta sum_i (K_i J_{i-1})^T diag(sigma''_i z_i)
    (K_i J_{i-1}) + A^T A,

whose trace takes O(m^2 d) operations for a point and a layer: [OTF] eqs. 12 to 14. All of it is a
plain composition of torch's operations, so that a backward pass differentiates it once more.

[OTF] Onken, Fung, Li, Ruthotto, "OT-Flow: Fast and Accurate Continuous Normalizing Flows via
Optimal Transport", AAAI 2021.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from wflow._core.checks import whole
from wflow._core.errors import InputError
from wflow.nets.checks import in_memory, tensor
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register

__all__ = ["Derivatives", "Potential"]


class Derivatives(NamedTuple):
    """Derivatives of a potential at points (x, t).

    Parameters
    ----------
    gradient : Tensor, shape (n, d)
        In x.
    time : Tensor, shape (n,)
        In t.
    laplacian : Tensor, shape (n,) or None
        Trace of the Hessian in x.
    hessian : Tensor, shape (n, d, d) or None
        Second derivatives in x, where they were asked for.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> phi = generative.Potential(2, width=8)
    >>> at = phi.derivatives(torch.randn(5, 2), 0.5)
    >>> at.gradient.shape, at.laplacian.shape
    (torch.Size([5, 2]), torch.Size([5]))
    """

    gradient: Tensor
    time: Tensor
    laplacian: Tensor | None
    hessian: Tensor | None


@register
class Potential(Pretrained):
    r"""Potential of OT-Flow [1]_: a residual network and a quadratic form of s = (x, t, y).

    .. math::

        \phi(x, t, y) = w^T N(s) + \tfrac12 s^T A^T A s + b^T s + c

    Parameters
    ----------
    dim : int
        Length d of x.
    width : int, default 48
        Width m of the residual network.
    layers : int, default 2
        Number L of its layers, the opening one included; >= 2.
    rank : int, default 10
        Largest rank of A^T A; min(rank, d + 1) rows are kept.
    condition : int, default 0
        Length of the vector y of features; 0 for a potential of (x, t).

    Raises
    ------
    InputError
        For sizes below 1, a negative condition or fewer than two layers.

    References
    ----------
    .. [1] Onken, Fung, Li, Ruthotto, "OT-Flow: Fast and Accurate Continuous Normalizing Flows via
       Optimal Transport", AAAI 2021, eqs. 11 to 14.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> phi = generative.Potential(2, width=8)
    >>> phi(torch.randn(5, 2), 0.5).shape
    torch.Size([5])
    """

    @in_memory
    def __init__(
        self, dim: int, *, width: int = 48, layers: int = 2, rank: int = 10, condition: int = 0
    ) -> None:
        super().__init__()
        self.dim = whole(dim, "dim")
        self.width = whole(width, "width")
        self.layers = whole(layers, "layers", 2, "the opening one and one or more residual ones")
        self.rank = whole(rank, "rank")
        self.condition = whole(condition, "condition", 0)
        size = self.dim + 1 + self.condition
        self.opening = nn.Linear(size, self.width)
        inner = (nn.Linear(self.width, self.width) for _ in range(self.layers - 1))
        self.residual = nn.ModuleList(inner)
        self.w = nn.Parameter(torch.ones(self.width))
        self.A = nn.Parameter(torch.empty(min(self.rank, self.dim + 1), size))
        self.b = nn.Parameter(torch.zeros(size))
        self.c = nn.Parameter(torch.zeros(()))
        nn.init.xavier_uniform_(self.A)

    def forward(self, x: Tensor, t: Tensor | float, y: Tensor | None = None) -> Tensor:
        """Compute phi(x, t, y).

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Points.
        t : float or Tensor, shape () or (n,)
            Time, of all points or of each.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.

        Returns
        -------
        Tensor, shape (n,)
            The potential.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> phi = generative.Potential(2, width=8, condition=3)
        >>> phi(torch.randn(5, 2), 0.5, torch.randn(3)).shape
        torch.Size([5])
        """
        s = self._checked(x, t, y)
        u = log_cosh(self.opening(s))
        for weight, bias in self._residual():
            u = u + log_cosh(functional.linear(u, weight, bias)) / len(self.residual)
        quadratic = (s @ self.A.T).square().sum(1) / 2
        return u @ self.w + quadratic + s @ self.b + self.c

    def derivatives(
        self,
        x: Tensor,
        t: Tensor | float,
        y: Tensor | None = None,
        *,
        laplacian: bool = True,
        hessian: bool = False,
    ) -> Derivatives:
        """Compute gradient, time derivative, Laplacian and Hessian in closed form.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Points.
        t : float or Tensor, shape () or (n,)
            Time, of all points or of each.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.
        laplacian : bool, default True
            Whether to compute the Laplacian; it costs dim times as much as the gradient.
        hessian : bool, default False
            Whether to compute the Hessian, and the Laplacian as its trace.

        Returns
        -------
        Derivatives
            The derivatives; a backward pass goes through each of them.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> phi = generative.Potential(2, width=8)
        >>> at = phi.derivatives(torch.randn(5, 2), 0.5, hessian=True)
        >>> at.hessian.shape
        torch.Size([5, 2, 2])
        """
        order = 2 if hessian else int(laplacian)
        return self.evaluate(self._checked(x, t, y), self.quadratic(), order)

    def quadratic(self) -> Tensor:
        """The part of A^T A that the gradient in (x, t) needs, (size, dim + 1)."""
        return self.A.T @ self.A[:, : self.dim + 1]

    def evaluate(self, s: Tensor, quadratic: Tensor, order: int) -> Derivatives:
        """Compute what `derivatives` does, without checks.

        Parameters
        ----------
        s : Tensor, shape (n, dim + 1 + condition)
            Points, times and features.
        quadratic : Tensor
            `quadratic()`, which is the same for all points.
        order : int
            0 for the gradient alone, 1 with the Laplacian, 2 with the Hessian.

        Returns
        -------
        Derivatives
            The derivatives.
        """
        d = self.dim
        residual = [value for pair in self._residual() for value in pair]
        opening = self.opening.weight, self.opening.bias
        found = _Network.apply(order, d, s, self.w, *opening, *residual)
        gradient, *second = found if order else (found,)
        gradient = torch.addmm(self.b[: d + 1], s, quadratic) + gradient
        at = Derivatives(gradient[:, :d], gradient[:, d], None, None)
        if order == 2:
            hessian = second[0] + quadratic[:d, :d]
            return at._replace(laplacian=hessian.diagonal(dim1=1, dim2=2).sum(1), hessian=hessian)
        if order == 1:
            return at._replace(laplacian=second[0] + quadratic.diagonal()[:d].sum())
        return at

    def operations(self, *, laplacian: bool = True) -> int:
        """Count the multiplications and additions of the matrix products for one point.

        Parameters
        ----------
        laplacian : bool, default True
            Whether the Laplacian is computed, too.

        Returns
        -------
        int
            Floating-point operations of `derivatives`, without those of a backward pass, which are
            twice as many.

        Examples
        --------
        >>> from wflow.nets import generative
        >>> generative.Potential(2, width=8).operations()
        624
        """
        m, size, d = self.width, self.dim + 1 + self.condition, self.dim
        inner = (2 + (d if laplacian else 0)) * m * m * (self.layers - 1)
        return 2 * (inner + m * size + m * (d + 1))

    def extra_repr(self) -> str:
        """Describe the sizes, for printing."""
        return f"dim={self.dim}, width={self.width}, layers={self.layers}, rank={self.rank}" + (
            f", condition={self.condition}" if self.condition else ""
        )

    def features(self, y: Any, n: int) -> Tensor | None:
        """Check features for n points; None where the potential has no condition."""
        if not self.condition:
            if y is not None:
                raise InputError("y is given, and the potential has no condition: leave it out")
            return None
        if y is None:
            raise InputError(f"y is missing: expected features of shape (n, {self.condition})")
        tensor(y, "y", "real", self.w)
        if y.shape not in ((self.condition,), (n, self.condition)):
            raise InputError(
                f"y is of shape {tuple(y.shape)}: expected ({self.condition},) or "
                f"({n}, {self.condition})"
            )
        return y  # type: ignore[no-any-return]

    def _residual(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each residual layer."""
        return [(layer.weight, layer.bias) for layer in self.residual]  # type: ignore[misc]

    def _checked(self, x: Any, t: Any, y: Any) -> Tensor:
        """Join x, t and y to s, after checks."""
        x = points(x, "x", self.dim, self.w)
        if isinstance(t, Tensor) and t.shape not in ((), x.shape[:1]):
            raise InputError(f"t is of shape {tuple(t.shape)}: expected () or ({len(x)},)")
        return self.joined(x, t if isinstance(t, Tensor) else time(t), self.features(y, len(x)))

    def joined(self, x: Tensor, t: Tensor | float, y: Tensor | None) -> Tensor:
        """Join points, times and features to s, (n, dim + 1 + condition), without checks."""
        if isinstance(t, Tensor):
            parts = [x, t.to(x).expand(len(x))[:, None]]
        else:
            parts = [x, x.new_full((len(x), 1), t)]
        return torch.cat(parts if y is None else [*parts, y.expand(len(x), -1)], 1)


def points(value: Any, name: str, dim: int, weight: Tensor) -> Tensor:
    """Check points: a tensor (n, dim) of the type and device of a weight."""
    x = tensor(value, name, "real", weight)
    if x.ndim != 2 or x.shape[1] != dim or not len(x):
        raise InputError(f"{name} is of shape {tuple(x.shape)}: expected (n, {dim}) with n >= 1")
    return x


def time(value: Any) -> float:
    """Check a time: a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"t is {value!r:.40}: expected a finite number or a tensor of them")
    return float(value)


class _Network(torch.autograd.Function):
    """Derivatives of w^T N(s): gradient in (x, t), then nothing, the Laplacian or the Hessian in x.

    A composition of torch's own operations gives the same numbers in three times the time.
    Symbols are those of the module; P_i = K_i J_{i-1}, arrays (d, n, m).
    """

    @staticmethod
    def forward(
        ctx: Any, order: int, d: int, s: Tensor, w: Tensor, *weights: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        (k0, b0), residual = weights[:2], list(zip(weights[2::2], weights[3::2], strict=True))
        eta = 1 / len(residual)
        a = torch.addmm(b0, s, k0.T)  # (n, m)
        slopes, u = [a.tanh()], [log_cosh(a)]
        for i, (k, b) in enumerate(residual, 1):
            a = torch.addmm(b, u[-1], k.T)
            if i < len(residual):
                u.append(u[-1].add(log_cosh(a), alpha=eta))
            slopes.append(a.tanh_() if i == len(residual) else a.tanh())
        z = [w]  # from the last to the first
        for (k, _), slope in zip(reversed(residual), reversed(slopes), strict=False):
            z.append(torch.addmm(z[-1], slope * z[-1], k, alpha=eta))
        z.reverse()
        gradient = (slopes[0] * z[0]) @ k0[:, : d + 1]
        ctx.order, ctx.d, ctx.layers = order, d, len(residual)
        if not order:
            ctx.save_for_backward(s, *weights, *slopes, *u, *z)
            return gradient
        kx = k0[:, :d].T.contiguous()  # (d, m)
        bend = z[0] * _falling(slopes[0])  # sigma'' z
        if order == 1:
            second = bend @ (kx * kx).sum(0)
        else:
            outer = (kx[:, None] * kx).view(d * d, -1)  # products of two columns
            second = (bend @ outer.T).view(-1, d, d)
        pushed, bends = [], [bend]  # P_i (d, n, m)
        jacobian = slopes[0] * kx[:, None]
        for i, ((k, _), slope) in enumerate(zip(residual, slopes[1:], strict=True), 1):
            pushed.append((jacobian.view(-1, k.shape[1]) @ k.T).view_as(jacobian))
            bends.append(_falling(slope).mul_(z[i]).mul_(eta))
            second = second + _contracted(pushed[-1], bends[-1], order)
            if i < len(residual):
                jacobian = jacobian.addcmul(slope, pushed[-1], value=eta)
        ctx.save_for_backward(s, *weights, *slopes, *u, *z, *pushed, *bends)
        return gradient, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        order, d, layers = ctx.order, ctx.d, ctx.layers
        s, *saved = ctx.saved_tensors
        sizes = (2 * layers + 2, layers + 1, layers, layers + 1, layers, layers + 1)
        parts = iter(saved)
        weights, slopes, u, z, pushed, bends = (
            [next(parts) for _ in range(size)] for size in (sizes if order else (*sizes[:4], 0, 0))
        )
        k0, kernels, eta = weights[0], weights[2::2], 1 / layers
        by_kernels: list[Any] = [None] * layers
        by_slopes: list[Any] = [None] * (layers + 1)
        by_bends: list[Tensor] = []
        by_k0 = torch.empty_like(k0)
        falling = [_falling(slope) for slope in slopes]
        if order:
            kx = k0[:, :d].T.contiguous()
            jacobians = [slopes[0] * kx[:, None]]
            for i in range(1, layers):
                jacobians.append(jacobians[-1].addcmul(slopes[i], pushed[i - 1], value=eta))
            # Down the Jacobians: of P_i, J_{i-1}, and of the slopes and bends they meet.
            by_jacobian = None
            for i in range(layers, 0, -1):
                turned = _turned(pushed[i - 1], grads[1], order)
                by_bends.append(_met(pushed[i - 1], turned))
                by_pushed = turned.mul_(bends[i]).mul_(2)
                if by_jacobian is not None:
                    by_slopes[i] = _met(pushed[i - 1], by_jacobian).mul_(eta)
                    by_pushed.addcmul_(by_jacobian, slopes[i], value=eta)
                flat = by_pushed.view(-1, by_pushed.shape[2])
                by_kernels[i - 1] = flat.T @ jacobians[i - 1].view(flat.shape)
                down = (flat @ kernels[i - 1]).view_as(by_pushed)
                by_jacobian = down if by_jacobian is None else down.add_(by_jacobian)
            assert by_jacobian is not None
            by_kx = torch.stack([(one * slopes[0]).sum(0) for one in by_jacobian])  # (d, m)
            by_slopes[0] = by_jacobian.mul_(kx[:, None]).sum(0)
            if order == 1:
                by_bends.append(torch.outer(grads[1], (kx * kx).sum(0)))
                by_kx.addcmul_(kx, grads[1] @ bends[0], value=2)
            else:
                both = grads[1].flatten(1)  # (n, d d)
                by_bends.append(both @ (kx[:, None] * kx).view(d * d, -1))
                weighted = (both.T @ bends[0]).view(d, d, -1)
                by_kx += ((weighted + weighted.transpose(0, 1)) * kx).sum(1)
            by_bends.reverse()
        # Up the chain of z.
        by_inner = grads[0] @ k0[:, : d + 1].T
        by_columns = (slopes[0] * z[0]).T @ grads[0]
        by_slopes[0] = _added(by_slopes[0], by_inner, z[0])
        by_z = by_inner.mul_(slopes[0])
        if order:
            _unbent(by_bends[0], slopes[0], falling[0], z[0], by_z, by_slopes[0], 1.0)
        for i, kernel in enumerate(kernels, 1):
            product = (slopes[i] * z[i]).T @ by_z
            by_kernels[i - 1] = _sum(by_kernels[i - 1], product, eta)
            by_product = (by_z @ kernel.T).mul_(eta)
            by_slopes[i] = by_slope = _added(by_slopes[i], by_product, z[i])
            by_z.addcmul_(by_product, slopes[i])
            if order:
                _unbent(by_bends[i], slopes[i], falling[i], z[i], by_z, by_slope, eta)
        # Down the network.
        results: list[Tensor] = []
        by_u: Any = None
        for i in range(layers, 0, -1):
            by_a = falling[i].mul_(by_slopes[i])
            if by_u is not None:
                by_a.addcmul_(by_u, slopes[i], value=eta)
            results += [by_a.sum(0), by_kernels[i - 1].addmm_(by_a.T, u[i - 1])]
            by_u = by_a @ kernels[i - 1] if by_u is None else by_u.addmm_(by_a, kernels[i - 1])
        by_a = falling[0].mul_(by_slopes[0]).addcmul_(by_u, slopes[0])
        torch.mm(by_a.T, s, out=by_k0)
        by_k0[:, : d + 1] += by_columns
        if order:
            by_k0[:, :d] += by_kx.T
        results += [by_a.sum(0), by_k0]
        return None, None, by_a @ k0, by_z.sum(0), *reversed(results)


_FEW = 4  # dimensions up to which a loop over pairs is faster than a product of small matrices


def _contracted(pushed: Tensor, bend: Tensor, order: int) -> Tensor:
    """P^T diag(bend) P for each point, or its trace."""
    if order == 1:
        return (pushed.square().sum(0) * bend).sum(1)
    bent, d = pushed * bend, len(pushed)
    if d > _FEW:
        return torch.bmm(bent.transpose(0, 1), pushed.permute(1, 2, 0))
    upper = {(j, k): (bent[j] * pushed[k]).sum(1) for j in range(d) for k in range(j, d)}
    rows = [upper[min(j, k), max(j, k)] for j in range(d) for k in range(d)]
    return torch.stack(rows, 1).view(-1, d, d)


def _turned(pushed: Tensor, grad: Tensor, order: int) -> Tensor:
    """The symmetric part of a gradient (n, d, d) times P, or a gradient (n,) times P."""
    if order == 1:
        return pushed * grad[:, None]
    even, d = (grad + grad.transpose(1, 2)) / 2, len(pushed)
    if d > _FEW:
        return torch.bmm(even, pushed.transpose(0, 1)).transpose(0, 1).contiguous()
    turned = torch.empty_like(pushed)
    for j in range(d):
        torch.mul(pushed[0], even[:, j, 0, None], out=turned[j])
        for k in range(1, d):
            turned[j].addcmul_(pushed[k], even[:, j, k, None])
    return turned


def _met(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(0)


def _falling(slope: Tensor) -> Tensor:
    """sigma'' = 1 - sigma'^2."""
    return (slope * slope).neg_().add_(1)


def _added(total: Tensor | None, one: Tensor, other: Tensor) -> Tensor:
    return one * other if total is None else total.addcmul_(one, other)


def _sum(total: Tensor | None, more: Tensor, share: float) -> Tensor:
    return more.mul_(share) if total is None else total.add_(more, alpha=share)


def _unbent(
    by_bend: Tensor,
    slope: Tensor,
    falling: Tensor,
    z: Tensor,
    by_z: Tensor,
    by_slope: Tensor,
    eta: float,
) -> None:
    """Add the gradients of bend = eta (1 - slope^2) z to those of z and the slope."""
    by_z.addcmul_(by_bend, falling, value=eta)
    by_slope.addcmul_(by_bend.mul_(slope), z.expand_as(slope), value=-2 * eta)


def log_cosh(r: Tensor) -> Tensor:
    """log(2 cosh r) as ``|r| + log(1 + exp(-2|r|))``: no large exponential."""
    size = r.abs()
    return (size * -2).exp_().add_(1).log_().add_(size)
