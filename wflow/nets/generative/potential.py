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

whose trace takes O(m^2 d) operations for a point and a layer: [OTF] eqs. 12 to 14. The backward
pass through these derivatives is written by hand, and can be taken once.

[OTF] Onken, Fung, Li, Ruthotto, "OT-Flow: Fast and Accurate Continuous Normalizing Flows via
Optimal Transport", AAAI 2021.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from wflow._core.checks import number, positive, shown, switch, whole
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
    start : float, default 1.0
        Factor > 0 of the initial w and A^T A. With 1 they are those of OT-Flow, under which h times
        the Hessian of phi may exceed 1; with 0.1 the flow begins near the identity.

    Raises
    ------
    InputError
        For sizes below 1, a negative condition, fewer than two layers, or a start that is not
        positive.

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
        self,
        dim: int,
        *,
        width: int = 48,
        layers: int = 2,
        rank: int = 10,
        condition: int = 0,
        start: float = 1.0,
    ) -> None:
        super().__init__()
        self.dim = whole(dim, "dim")
        self.width = whole(width, "width")
        self.layers = whole(layers, "layers", 2, "the opening one and one or more residual ones")
        self.rank = whole(rank, "rank")
        self.condition = whole(condition, "condition", 0)
        self.start = positive(start, "start")
        size = self.dim + 1 + self.condition
        self.opening = nn.Linear(size, self.width)
        inner = (nn.Linear(self.width, self.width) for _ in range(self.layers - 1))
        self.residual = nn.ModuleList(inner)
        self.w = nn.Parameter(torch.full((self.width,), self.start))
        self.A = nn.Parameter(torch.empty(min(self.rank, self.dim + 1), size))
        self.b = nn.Parameter(torch.zeros(size))
        self.c = nn.Parameter(torch.zeros(()))
        nn.init.xavier_uniform_(self.A, gain=self.start**0.5)

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
        for layer in self.residual:
            u = u + log_cosh(layer(u)) / len(self.residual)
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
            Whether to compute the Laplacian; for wide networks it costs about dim / 2 times as much
            as the gradient (`operations`).
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
        laplacian, hessian = switch(laplacian, "laplacian"), switch(hessian, "hessian")
        order = 2 if hessian else int(laplacian)
        return self.evaluate(self._checked(x, t, y), self.quadratic(), order)

    def quadratic(self) -> Tensor:
        """Compute the part of A^T A that the gradient in (x, t) needs.

        Returns
        -------
        Tensor, shape (dim + 1 + condition, dim + 1)
            Columns of A^T A.

        Examples
        --------
        >>> from wflow.nets import generative
        >>> generative.Potential(2, width=8).quadratic().shape
        torch.Size([3, 3])
        """
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
        layers = self.opening.weight, self.opening.bias, *self.residual_weights()
        found = _Network.apply(order, d, s, self.w, *layers)
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

        Raises
        ------
        InputError
            For a laplacian that is neither True nor False.

        Examples
        --------
        >>> from wflow.nets import generative
        >>> generative.Potential(2, width=8).operations()
        608
        """
        m, size, d = self.width, self.dim + 1 + self.condition, self.dim
        inner = (2 + (d if switch(laplacian, "laplacian") else 0)) * m * m * (self.layers - 1)
        return 2 * (inner + m * size + m * (d + 1))

    def extra_repr(self) -> str:
        """Describe the sizes, for printing.

        Returns
        -------
        str
            Sizes by name.
        """
        return f"dim={self.dim}, width={self.width}, layers={self.layers}, rank={self.rank}" + (
            f", condition={self.condition}" if self.condition else ""
        )

    def features(self, y: Any, n: int) -> Tensor | None:
        """Check features for n points.

        Parameters
        ----------
        y : Tensor, shape (condition,) or (n, condition), or None
            Features, of all points or of each.
        n : int
            Number of points.

        Returns
        -------
        Tensor or None
            The features; None where the potential has no condition.

        Raises
        ------
        InputError
            For features that are missing, of another shape or type, or without a condition.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> generative.Potential(2, width=8, condition=3).features(torch.zeros(3), 5).shape
        torch.Size([3])
        """
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

    def residual_weights(self) -> list[Tensor]:
        """Return weight and bias of the residual layers, one after the other.

        Returns
        -------
        list of Tensor
            Weight and bias of the first, weight and bias of the second, and so on.

        Examples
        --------
        >>> from wflow.nets import generative
        >>> len(generative.Potential(2, width=8, layers=3).residual_weights())
        4
        """
        return [value for layer in self.residual for value in (layer.weight, layer.bias)]  # type: ignore[misc]

    def _checked(self, x: Any, t: Any, y: Any) -> Tensor:
        """Join x, t and y to s, after checks."""
        x = points(x, "x", self.dim, self.w)
        if isinstance(t, Tensor) and tensor(t, "t", "number").shape not in ((), x.shape[:1]):
            raise InputError(f"t is of shape {tuple(t.shape)}: expected () or ({len(x)},)")
        return self.joined(
            x, t if isinstance(t, Tensor) else time(t, x.dtype), self.features(y, len(x))
        )

    def joined(self, x: Tensor, t: Tensor | float, y: Tensor | None) -> Tensor:
        """Join points, times and features to s, without checks.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Points.
        t : float or Tensor, shape () or (n,)
            Time.
        y : Tensor, shape (condition,) or (n, condition), or None
            Features.

        Returns
        -------
        Tensor, shape (n, dim + 1 + condition)
            The points s.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> generative.Potential(2, width=8).joined(torch.zeros(5, 2), 0.5, None)[0]
        tensor([0.0000, 0.0000, 0.5000])
        """
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


def time(value: Any, dtype: torch.dtype) -> float:
    """Check a time: a number that is finite in the type of the points."""
    try:
        checked = number(value, "t")
    except InputError:
        checked = math.inf
    if not abs(checked) <= torch.finfo(dtype).max:
        raise InputError(f"t is {shown(value)}: expected a finite number or a tensor of them")
    return checked


class Weights(NamedTuple):
    """Weights of the network in (x, t): of the opening layer, of the others, and w."""

    k0: Tensor  # (m, d + 1)
    kernels: tuple[Tensor, ...]  # (m, m)
    w: Tensor  # (m,)
    d: int

    @property
    def kx(self) -> Tensor:
        """Columns of x of the opening layer, as rows, (d, m)."""
        return self.k0[:, : self.d].T.contiguous()

    @property
    def eta(self) -> float:
        """Step of the residual layers."""
        return 1 / len(self.kernels)


class Second(NamedTuple):
    """Second derivatives, with what their backward pass needs."""

    value: Tensor  # (n,) the Laplacian, or (n, d, d) the Hessian
    pushed: list[Tensor]  # P_i = K_i J_{i-1}, (d, n, m)
    bends: list[Tensor]  # eta sigma''_i z_i, (n, m)


def second_order(weights: Weights, slopes: list[Tensor], z: list[Tensor], order: int) -> Second:
    """Return the Laplacian (order 1) or Hessian (order 2) of w^T N in x, from slopes and z."""
    kx, d, eta = weights.kx, weights.d, weights.eta
    bends = [falling_of(slopes[0]).mul_(z[0])]
    if order == 1:
        value = bends[0] @ (kx * kx).sum(0)
    else:
        value = (bends[0] @ (kx[:, None] * kx).view(d * d, -1).T).view(-1, d, d)
    pushed: list[Tensor] = []
    for jacobian, kernel, slope, last in zip(
        _jacobians(weights, slopes, pushed), weights.kernels, slopes[1:], z[1:], strict=True
    ):
        pushed.append((jacobian.view(-1, len(kernel)) @ kernel.T).view_as(jacobian))
        bends.append(falling_of(slope).mul_(last).mul_(eta))
        value = value + _contracted(pushed[-1], bends[-1], order)
    return Second(value, pushed, bends)


def _jacobians(weights: Weights, slopes: list[Tensor], pushed: list[Tensor]) -> Iterator[Tensor]:
    """Yield J_0, ..., J_{L-2}, each computed from those of `pushed` before it."""
    jacobian = slopes[0] * weights.kx[:, None]
    yield jacobian
    for i in range(1, len(weights.kernels)):
        jacobian = jacobian.addcmul(slopes[i], pushed[i - 1], value=weights.eta)
        yield jacobian


class Gradients(NamedTuple):
    """Gradients of a loss by slopes, z and weights, to which the backward passes add."""

    slopes: list[Tensor]
    z: list[Tensor]
    kernels: list[Tensor]
    kx: Tensor | None  # (d, m)


def no_gradients(weights: Weights, slopes: list[Tensor]) -> Gradients:
    """Return zeros, where there are no second derivatives."""
    by_slopes, by_z = ([torch.zeros_like(slope) for slope in slopes] for _ in range(2))
    return Gradients(by_slopes, by_z, [torch.zeros_like(one) for one in weights.kernels], None)


def second_order_backward(
    weights: Weights,
    slopes: list[Tensor],
    z: list[Tensor],
    falling: list[Tensor],
    at: Second,
    grad: Tensor,
    order: int,
) -> Gradients:
    """Return gradients from the gradient by the second derivatives; `falling` is 1 - slope^2."""
    kx, d, eta, layers = weights.kx, weights.d, weights.eta, len(weights.kernels)
    jacobians = list(_jacobians(weights, slopes, at.pushed))
    by_slopes: list[Any] = [None] * (layers + 1)
    by_bends: list[Any] = [None] * (layers + 1)
    by_kernels: list[Any] = [None] * layers
    by_jacobian: Any = None
    for i in range(layers, 0, -1):
        pushed = at.pushed[i - 1]
        if order == 1:
            by_bends[i] = _met(pushed, pushed).mul_(grad[:, None])
            by_pushed = pushed * (at.bends[i] * (2 * grad[:, None]))
        else:
            turned = _symmetric_product(pushed, grad)
            by_bends[i] = _met(pushed, turned)
            by_pushed = turned.mul_(2 * at.bends[i])
        if by_jacobian is not None:
            by_slopes[i] = _met(pushed, by_jacobian).mul_(eta)
            by_pushed.addcmul_(by_jacobian, slopes[i], value=eta)
        flat = by_pushed.view(-1, by_pushed.shape[2])
        by_kernels[i - 1] = flat.T @ jacobians[i - 1].view(flat.shape)
        down = (flat @ weights.kernels[i - 1]).view_as(by_pushed)
        by_jacobian = down if by_jacobian is None else down.add_(by_jacobian)
    by_kx = torch.stack([(one * slopes[0]).sum(0) for one in by_jacobian])  # (d, m)
    by_slopes[0] = _met(by_jacobian, kx)
    if order == 1:
        by_bends[0] = torch.outer(grad, (kx * kx).sum(0))
        by_kx.addcmul_(kx, grad @ at.bends[0], value=2)
    else:
        both = grad.flatten(1)  # (n, d d)
        by_bends[0] = both @ (kx[:, None] * kx).view(d * d, -1)
        weighted = (both.T @ at.bends[0]).view(d, d, -1)
        by_kx += ((weighted + weighted.transpose(0, 1)) * kx).sum(1)
    # bend = eta (1 - slope^2) z, without eta in the opening layer
    by_z = []
    for i, by_bend in enumerate(by_bends):
        if i and eta != 1:
            by_bend.mul_(eta)
        by_z.append(by_bend * falling[i])
        turned = by_bend.mul_(slopes[i])
        if by_slopes[i] is None:
            by_slopes[i] = turned.mul_(-2 * z[i])
        else:
            by_slopes[i].addcmul_(turned, z[i].expand_as(turned), value=-2)
    return Gradients(by_slopes, by_z, by_kernels, by_kx)


class _Network(torch.autograd.Function):
    """Derivatives of w^T N(s): gradient in (x, t), then nothing, the Laplacian or the Hessian in x.

    A composition of torch's own operations gives the same numbers in more time.
    """

    @staticmethod
    def forward(
        ctx: Any, order: int, d: int, s: Tensor, w: Tensor, *layers: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        (k0, b0), kernels, biases = layers[:2], layers[2::2], layers[3::2]
        weights = Weights(k0[:, : d + 1], kernels, w, d)
        a = torch.addmm(b0, s, k0.T)  # (n, m)
        slopes, u = [a.tanh()], [log_cosh(a)]
        for i, (kernel, bias) in enumerate(zip(kernels, biases, strict=True), 1):
            a = torch.addmm(bias, u[-1], kernel.T)
            slopes.append(a.tanh())
            if i < len(kernels):
                u.append(u[-1].add(log_cosh(a), alpha=weights.eta))
        z = [w]  # from the last to the first
        for kernel, slope in zip(reversed(kernels), reversed(slopes), strict=False):
            z.append(torch.addmm(z[-1], slope * z[-1], kernel, alpha=weights.eta))
        z.reverse()
        gradient = (slopes[0] * z[0]) @ weights.k0
        ctx.order, ctx.d, ctx.layers = order, d, len(kernels)
        if not order:
            ctx.save_for_backward(s, *layers, *slopes, *u, *z)
            return gradient
        at = second_order(weights, slopes, z, order)
        ctx.save_for_backward(s, *layers, *slopes, *u, *z, *at.pushed, *at.bends)
        return gradient, at.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        order, d, count = ctx.order, ctx.d, ctx.layers
        s, *saved = ctx.saved_tensors
        parts = iter(saved)
        layers, slopes, u, z, pushed, bends = (
            list(itertools.islice(parts, size))
            for size in (2 * count + 2, count + 1, count, count + 1, count, count + 1)
        )
        k0, kernels = layers[0], layers[2::2]
        weights = Weights(k0[:, : d + 1], tuple(kernels), z[-1], d)
        falling = [falling_of(slope) for slope in slopes]
        if order:
            at = Second(s, pushed, bends)
            by = second_order_backward(weights, slopes, z, falling, at, grads[1], order)
        else:
            by = no_gradients(weights, slopes)
        first_order_backward(weights, slopes, z, by, grads[0])
        by_a = network_backward(weights, slopes, falling, by)
        by_k0 = by_a[0].T @ s
        by_k0[:, : d + 1].addmm_((slopes[0] * z[0]).T, grads[0])
        if by.kx is not None:
            by_k0[:, :d] += by.kx.T
        results = [by_k0, by_a[0].sum(0)]
        for i in range(1, count + 1):
            product = slopes[i] * z[i]
            by_kernel = by.kernels[i - 1].addmm_(product.T, by.z[i - 1], alpha=weights.eta)
            results += [by_kernel.addmm_(by_a[i].T, u[i - 1]), by_a[i].sum(0)]
        return None, None, by_a[0] @ k0, by.z[-1].sum(0), *results


def first_order_backward(
    weights: Weights, slopes: list[Tensor], z: list[Tensor], by: Gradients, grad: Tensor
) -> None:
    """Add to the gradients by slopes and z those from the gradient in (x, t)."""
    by_inner = grad @ weights.k0.T
    by.slopes[0].addcmul_(by_inner, z[0])
    by.z[0].addcmul_(by_inner, slopes[0])
    for i, kernel in enumerate(weights.kernels, 1):
        by_product = by.z[i - 1] @ kernel.T
        by.slopes[i].addcmul_(by_product, z[i].expand_as(by_product), value=weights.eta)
        by.z[i].add_(by.z[i - 1]).addcmul_(by_product, slopes[i], value=weights.eta)


def network_backward(
    weights: Weights, slopes: list[Tensor], falling: list[Tensor], by: Gradients
) -> list[Tensor]:
    """Replace gradients by slopes with gradients by the layers' arguments."""
    by_u: Any = None
    for i in range(len(weights.kernels), 0, -1):
        by_a = by.slopes[i].mul_(falling[i])
        if by_u is not None:
            by_a.addcmul_(by_u, slopes[i], value=weights.eta)
        kernel = weights.kernels[i - 1]
        by_u = by_a @ kernel if by_u is None else by_u.addmm_(by_a, kernel)
    by.slopes[0].mul_(falling[0]).addcmul_(by_u, slopes[0])
    return by.slopes


_FEW = 4  # dimensions up to which a loop over pairs is faster than a product of small matrices


def _contracted(pushed: Tensor, bend: Tensor, order: int) -> Tensor:
    """Return P^T diag(bend) P for each point, or its trace."""
    if order == 1:
        return _met(pushed, pushed).mul_(bend).sum(1)
    bent, d = pushed * bend, len(pushed)
    if d > _FEW:
        return torch.bmm(bent.transpose(0, 1), pushed.permute(1, 2, 0))
    upper = {(j, k): (bent[j] * pushed[k]).sum(1) for j in range(d) for k in range(j, d)}
    rows = [upper[min(j, k), max(j, k)] for j in range(d) for k in range(d)]
    return torch.stack(rows, 1).view(-1, d, d)


def _symmetric_product(pushed: Tensor, grad: Tensor) -> Tensor:
    """Return the symmetric part of a gradient (n, d, d) times P."""
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
    """Sum products over the first axis, one plane at a time, so that each stays in the cache."""
    total = one[0] * other[0]
    for j in range(1, len(one)):
        total.addcmul_(one[j], other[j])
    return total


def falling_of(slope: Tensor) -> Tensor:
    """Return sigma'' = 1 - sigma'^2."""
    return torch.addcmul(slope.new_ones(()), slope, slope, value=-1)


def log_cosh(r: Tensor, out: Tensor | None = None) -> Tensor:
    """Return log(2 cosh r) as ``|r| + log(1 + exp(-2|r|))``, without a large exponential."""
    size = r.abs()
    if r.requires_grad:
        return size + torch.log1p(torch.exp(-2 * size))
    return torch.mul(size, -2, out=out).exp_().add_(1).log_().add_(size)
