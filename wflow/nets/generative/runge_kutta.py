"""A step of the classical Runge-Kutta method along a potential, with its backward pass.

The four stages follow each other, but their Laplacians, and the gradients of the weights, do not:
these are computed for all four at a time, in a third of the calls of four single evaluations.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from wflow._core.tableaux import TABLEAUX
from wflow.nets.generative.potential import (
    Gradients,
    Potential,
    Second,
    Weights,
    falling_of,
    first_order_backward,
    log_cosh,
    network_backward,
    no_gradients,
    second_order,
    second_order_backward,
)

NODES, WEIGHTS = TABLEAUX["rk4"].nodes, TABLEAUX["rk4"].weights


class Stages:
    """The potential in the form that a step needs: with given features, for steps of one path.

    Parameters
    ----------
    potential : Potential
        The potential.
    y : Tensor, shape (condition,) or (n, condition), optional
        Features, checked.
    """

    def __init__(self, potential: Potential, y: Tensor | None) -> None:
        d = potential.dim
        weight, quadratic = potential.opening.weight, potential.quadratic()
        self.shift: Tensor = potential.opening.bias  # of the opening layer
        self.linear: Tensor = potential.b[: d + 1]  # of the gradient
        self.k0, self.quadratic = weight[:, : d + 1].contiguous(), quadratic[: d + 1].contiguous()
        if y is not None:
            self.shift = self.shift + y @ weight[:, d + 1 :].T
            self.linear = self.linear + y @ quadratic[d + 1 :]
        self.d, self.w, self.residual = d, potential.w, potential.residual_weights()

    def step(
        self, x: Tensor, t: float, h: float, *, laplacian: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute a step of length h, of either sign, from time t.

        Parameters
        ----------
        x : Tensor, shape (n, d)
            Points.
        t : float
            Time.
        h : float
            Length of the step.
        laplacian : bool
            Whether to compute the Laplacians.

        Returns
        -------
        tuple
            The points after the step; gradients in (x, t) at the stages, (4, n, d + 1); and
            Laplacians at them, (4, n).
        """
        bases = self.k0, self.shift, self.quadratic, self.linear, self.w
        x, gradients, *bent = _Step.apply(t, h, laplacian, x, *bases, *self.residual)
        if not laplacian:
            return x, gradients, None
        return x, gradients, bent[0] + self.quadratic.diagonal()[: self.d].sum()


def integrals(slopes: Tensor, bent: Tensor, h: float) -> tuple[Tensor, Tensor, Tensor]:
    """Integrate along steps, by the weights of the method, the results of `Stages.step`.

    Parameters
    ----------
    slopes : Tensor, shape (4 * steps, n, d + 1)
        Gradients in (x, t) at the stages.
    bent : Tensor, shape (4 * steps, n)
        Laplacians at them.
    h : float
        Length of a step, positive.

    Returns
    -------
    tuple
        Integrals, each (n,), of the Laplacian, of ``|grad phi|^2 / 2`` and of the modulus of
        ``d phi / dt + |grad phi|^2 / 2``.
    """
    weights = slopes.new_tensor(WEIGHTS).mul_(h).repeat(len(slopes) // len(WEIGHTS))
    energy = slopes[:, :, :-1].square().sum(2) / 2
    residual = (slopes[:, :, -1] + energy).abs()
    return weights @ bent, weights @ energy, weights @ residual


class _Step(torch.autograd.Function):
    """A step x + h sum_i weight_i grad phi(x_i, t_i), and derivatives of phi at its stages."""

    @staticmethod
    def forward(
        ctx: Any, t: float, h: float, laplacian: bool, x: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        (k0, shift, quadratic, linear, w), kernels, biases = given[:5], given[5::2], given[6::2]
        n, d, m, count = len(x), x.shape[1], len(w), len(kernels)
        weights = Weights(k0, kernels, w, d)
        s = x.new_empty(4, n, d + 1)
        gradients = torch.empty_like(s)
        slopes, u, z = (
            [x.new_empty(4, n, m) for _ in range(size)] for size in (count + 1, count, count)
        )
        scratch = x.new_empty(n, m)
        for i, node in enumerate(NODES):
            point, gradient = s[i], gradients[i]
            point[:, d] = t + node * h
            if i:
                torch.add(x, gradients[i - 1, :, :d], alpha=node * h, out=point[:, :d])
            else:
                point[:, :d] = x
            torch.addmm(shift, point, k0.T, out=scratch)
            torch.tanh(scratch, out=slopes[0][i])
            log_cosh(scratch, out=u[0][i])
            for j in range(count):
                torch.addmm(biases[j], u[j][i], kernels[j].T, out=scratch)
                torch.tanh(scratch, out=slopes[j + 1][i])
                if j + 1 < count:
                    torch.add(u[j][i], log_cosh(scratch), alpha=weights.eta, out=u[j + 1][i])
            last = w
            for j in range(count - 1, -1, -1):
                torch.mul(slopes[j + 1][i], last, out=scratch)
                last = torch.addmm(last, scratch, kernels[j], alpha=weights.eta, out=z[j][i])
            torch.mul(slopes[0][i], last, out=scratch)
            torch.addmm(linear, point, quadratic, out=gradient).addmm_(scratch, k0)
        moved = torch.addmv(
            x.flatten(), gradients[:, :, :d].reshape(4, -1).T, x.new_tensor(WEIGHTS), alpha=h
        ).view(n, d)
        ctx.t, ctx.h, ctx.laplacian, ctx.count = t, h, laplacian, count
        kept = (s, *given, *slopes, *u, *z)
        if not laplacian:
            ctx.save_for_backward(*kept)
            return moved, gradients
        flat = [slope.view(4 * n, m) for slope in slopes]
        at = second_order(weights, flat, [*(one.view(4 * n, m) for one in z), w], 1)
        ctx.save_for_backward(*kept, *at.pushed, *at.bends)
        return moved, gradients, at.value.view(4, n)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count, h = ctx.count, ctx.h
        s, k0, shift, quadratic, linear, w, *saved = ctx.saved_tensors
        kernels, saved = tuple(saved[: 2 * count : 2]), saved[2 * count :]
        slopes, u, z, pushed = (
            saved[start : start + size]
            for start, size in (
                (0, count + 1),
                (count + 1, count),
                (2 * count + 1, count),
                (3 * count + 1, count),
            )
        )
        _, n, size = s.shape
        d, m = size - 1, len(w)
        weights = Weights(k0, kernels, w, d)
        flat = [slope.view(4 * n, m) for slope in slopes]
        flat_z = [*(one.view(4 * n, m) for one in z), w]
        falling = [falling_of(slope) for slope in flat]
        if ctx.laplacian:
            at = Second(s, pushed, saved[4 * count + 1 :])
            by = second_order_backward(
                weights, flat, flat_z, falling, at, grads[2].reshape(4 * n), 1
            )
        else:
            by = no_gradients(weights, flat)
        # Back through the stages; `slopes` of a stage become gradients by the layers' arguments.
        by_gradients = grads[1].clone()
        by_moved, by_x = grads[0], grads[0].clone()
        later: Tensor | None = None
        for i in range(3, -1, -1):
            rows = slice(i * n, (i + 1) * n)
            by_gradient = by_gradients[i]
            by_gradient[:, :d].add_(by_moved, alpha=h * WEIGHTS[i])
            if later is not None:
                by_gradient[:, :d].add_(later, alpha=h * NODES[i + 1])
            here = Gradients(
                [one[rows] for one in by.slopes], [one[rows] for one in by.z], [], None
            )
            one = [slope[i] for slope in slopes]
            first_order_backward(weights, one, [*(each[i] for each in z), w], here, by_gradient)
            by_a = network_backward(weights, one, [each[rows] for each in falling], here)
            later = torch.mm(by_a[0], k0[:, :d]).addmm_(by_gradient, quadratic[:d].T)
            by_x.add_(later)
        # All stages at a time.
        points, by_all = s.view(4 * n, size), by_gradients.view(4 * n, size)
        by_k0 = by.slopes[0].T @ points
        by_k0.addmm_((flat[0] * flat_z[0]).T, by_all)
        if by.kx is not None:
            by_k0[:, :d] += by.kx.T
        by_shift, by_linear = by.slopes[0].view(4, n, m), by_gradients
        results = [
            by_k0,
            by_shift.sum(0) if shift.ndim == 2 else by_shift.sum((0, 1)),
            points.T @ by_all,
            by_linear.sum(0) if linear.ndim == 2 else by_linear.sum((0, 1)),
            by.z[-1].sum(0),
        ]
        for i in range(1, count + 1):
            product = flat[i] * flat_z[i]
            by_kernel = by.kernels[i - 1].addmm_(product.T, by.z[i - 1], alpha=weights.eta)
            by_kernel.addmm_(by.slopes[i].T, u[i - 1].view(4 * n, m))
            results += [by_kernel, by.slopes[i].sum(0)]
        return None, None, None, by_x, *results
