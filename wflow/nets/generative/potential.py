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
        s = self._joined(x, t, y)
        u, _ = _log_cosh(self.opening(s))
        for weight, bias in self._residual():
            u = u + _log_cosh(functional.linear(u, weight, bias))[0] / len(self.residual)
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
        s, d = self._joined(x, t, y), self.dim
        residual = self._residual()
        eta = 1 / len(residual)
        k0, b0 = self.opening.weight, self.opening.bias
        # Forwards: sigma' of each layer, and the input of the next.
        u, first = _log_cosh(torch.addmm(b0, s, k0.T))  # (n, m)
        slopes: list[Tensor] = []
        last = len(residual) - 1
        for i, (weight, bias) in enumerate(residual):
            pre = torch.addmm(bias, u, weight.T)
            if i < last:
                grown, slope = _log_cosh(pre)
                u = u + eta * grown
            else:
                slope = pre.tanh()
            slopes.append(slope)
        # Backwards: z_i, the derivative of w^T N by u_i.
        z: list[Tensor] = []
        now: Tensor = self.w
        for (weight, _), slope in zip(reversed(residual), reversed(slopes), strict=True):
            z.append(now)
            now = torch.addmm(now, slope * now, weight, alpha=eta)
        z.reverse()
        inner = first * now
        form = self.A.T @ self.A[:, : d + 1]  # (size, d + 1)
        gradient = torch.addmm(self.b[: d + 1], inner, k0[:, : d + 1]).addmm(s, form)
        at = Derivatives(gradient[:, :d], gradient[:, d], None, None)
        if not (laplacian or hessian):
            return at
        # Forwards again: J_i, of which row j is the derivative of u_i by x_j.
        kx = k0[:, :d].T  # (d, m)
        curvature = now - first * inner  # sigma''_0 z_0
        jacobian = first[:, None] * kx  # (n, d, m)
        total, full = None, None
        if hessian:
            full = (curvature[:, None] * kx) @ kx.T + self.A[:, :d].T @ self.A[:, :d]
        else:
            total = curvature @ kx.square().sum(0) + self.A[:, :d].square().sum()
        for i, ((weight, _), slope) in enumerate(zip(residual, slopes, strict=True)):
            pushed = jacobian.flatten(0, 1) @ weight.T
            pushed = pushed.view(len(s), d, self.width)  # K_i J_{i-1}
            bend = eta * (1 - slope.square()) * z[i]  # (n, m)
            if full is not None:
                full = full + (pushed * bend[:, None]) @ pushed.transpose(1, 2)
            elif total is not None:
                total = total + (pushed.square().sum(1) * bend).sum(1)
            if i < last:
                jacobian = jacobian + eta * slope[:, None] * pushed
        if full is not None:
            total = full.diagonal(dim1=1, dim2=2).sum(1)
        return at._replace(laplacian=total, hessian=full)

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

    def _joined(self, x: Any, t: Any, y: Any) -> Tensor:
        """Join x, t and y to s, (n, dim + 1 + condition), after checks."""
        weight = self.w
        x = points(x, "x", self.dim, weight)
        if isinstance(t, Tensor):
            if t.shape not in ((), x.shape[:1]):
                raise InputError(f"t is of shape {tuple(t.shape)}: expected () or ({len(x)},)")
            column = t.to(x).expand(len(x))[:, None]
        else:
            column = x.new_full((len(x), 1), time(t))
        features = self.features(y, len(x))
        parts = [x, column]
        if features is not None:
            parts.append(features.expand(len(x), -1))
        return torch.cat(parts, 1)


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


class _LogCosh(torch.autograd.Function):
    """sigma(r) = log(2 cosh r) and sigma'(r) = tanh r, with one pass for both backwards."""

    @staticmethod
    def forward(ctx: Any, r: Tensor) -> tuple[Tensor, Tensor]:
        slope = r.tanh()
        size = r.abs()
        # |r| + log(1 + exp(-2|r|)): no large exponential, and exact for large |r|.
        value = size.mul(-2).exp_().log1p_().add_(size)
        ctx.save_for_backward(slope)
        return value, slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        by_value, by_slope = grads
        # by_value tanh + by_slope (1 - tanh^2)
        return torch.addcmul(by_slope, slope, by_value - by_slope * slope)


def _log_cosh(r: Tensor) -> tuple[Tensor, Tensor]:
    value, slope = _LogCosh.apply(r)
    return value, slope
