r"""Flows as posteriors: conditional on data y, trained without posterior samples.

A flow whose potential has a condition is amortised: one network gives the posterior of every y.
`Likelihood` trains it on pairs (x, features of y) from the joint law, whose expectation

    E -log rho(x | y) = E KL(p(. | y) | rho(. | y)) + const

is least at the posterior. `ReverseKL` trains it on y alone, by samples of the flow and the gradient
of the forward model: [RWPO] section 4.2. `generate` is the differentiable way to the samples.

[RWPO] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior", 2025.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from wflow._core.checks import number
from wflow._core.errors import InputError
from wflow.nets.checks import listed, tensor
from wflow.nets.generative.flows import OTFlow, log_normal
from wflow.nets.generative.potential import points
from wflow.nets.generative.runge_kutta import Stages, integrals
from wflow.nets.generative.sparse import (
    SparseTransformerFlow,
    drift_jacobian,
    identity,
    log_abs_det,
)
from wflow.nets.training.train import Loss
from wflow.sampling.forward import InverseProblem

__all__ = ["Generated", "ReverseKL", "generate"]


class Generated(NamedTuple):
    r"""Samples of a flow, with what was summed on the path from the base.

    Parameters
    ----------
    x : Tensor, shape (n, dim)
        Samples.
    log_density : Tensor, shape (n,)
        Logarithm of the density of the flow at them.
    transport : Tensor, shape (n,)
        Kinetic energy, the integral of ``|grad phi|^2 / 2``.
    hjb : Tensor, shape (n,)
        Integral of the residual of the Hamilton-Jacobi-Bellman equation.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> flow = generative.OTFlow(generative.Potential(2, width=8), steps=2)
    >>> generative.generate(flow, torch.randn(5, 2)).log_density.shape
    torch.Size([5])
    """

    x: Tensor
    log_density: Tensor
    transport: Tensor
    hjb: Tensor


def generate(
    flow: OTFlow | SparseTransformerFlow,
    z: Tensor,
    y: Tensor | None = None,
    *,
    context: Tensor | tuple[Tensor, Tensor | None] | None = None,
) -> Generated:
    r"""Follow points of the base to samples, with their density, for a backward pass.

    Parameters
    ----------
    flow : OTFlow or SparseTransformerFlow
        The flow.
    z : Tensor, shape (n, dim)
        Points at the base.
    y : Tensor, shape (condition,) or (n, condition), optional
        Features, of all points or of each.
    context : Tensor, shape (m, dim), or a pair of it and its features, optional
        As in `SparseTransformerFlow.from_base`.

    Returns
    -------
    Generated
        Samples and log densities; a backward pass goes through both, to the weights of the flow.

    Raises
    ------
    InputError
        For other flows, tensors of other shapes, types or devices, and a context that is missing.

    Warns
    -----
    UserWarning
        Where a layer of `published` folds, or an Euler step has no inverse, with the share of the
        tokens; in training once.

    Notes
    -----
    `OTFlow`, and a sparse flow with ``drift="rk4"`` between its layers, integrate the equation
    forwards; the density is that of `log_density` up to the error of the scheme. The layers of the
    convention `inverse`, and the steps of ``drift="euler"``, are solved as f(x) = z by Newton's
    method, without a graph, and one more step

    .. math:: x = x_* + Df(x_*)^{-1} (z - f_\theta(x_*))

    with the derivative held fixed has the gradient of the implicit function. Layers of the
    convention `attracting` are maps forwards. With `published` it is
    (22) with the traces of (24), forwards, as in [1]_, section 4.2: what it sums is no log density.

    References
    ----------
    .. [1] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior", 2025, Algorithm 1.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> flow = generative.SparseTransformerFlow(generative.Potential(2, width=8), steps=2)
    >>> found = generative.generate(flow, torch.randn(5, 2), context=torch.randn(32, 2))
    >>> found.x.requires_grad
    True
    """
    if not isinstance(flow, OTFlow | SparseTransformerFlow):
        raise InputError(
            f"flow is {type(flow).__name__}: expected an OTFlow or a SparseTransformerFlow"
        )
    x = points(z, "z", flow.dim, flow.potential.w)
    y = flow.potential.features(y, len(x))
    if isinstance(flow, OTFlow):
        if context is not None:
            raise InputError("context is given, and an OTFlow has no attention: leave it out")
        return _along_the_equation(flow, x, y)
    path = flow._path_of(context, own=False)
    if path is None:
        return _as_published(flow, x, y)
    return _by_inverses(flow, x, y, path)


def _along_the_equation(flow: OTFlow, x: Tensor, y: Tensor | None) -> Generated:
    """Runge-Kutta steps forwards."""
    end, bent, transport, hjb = flow.along(x, y, forwards=True)
    return Generated(end, log_normal(x) - bent, transport, hjb)


def _by_inverses(
    flow: SparseTransformerFlow, x: Tensor, y: Tensor | None, path: list[Tensor]
) -> Generated:
    """Drift and layer of each step; what is defined by its inverse has an implicit derivative."""
    log_density = log_normal(x)
    transport = hjb = x.new_zeros(len(x))
    lost = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for k in range(1, flow.steps + 1):
        context = path[k - 1]
        drift = _runge_kutta if flow.drift == "rk4" else _implicit_euler
        x, change, kinetic, residual, turned = drift(flow, x, y, k)
        lost = lost | turned
        log_density = log_density + change
        transport, hjb = transport + kinetic, hjb + residual
        if not flow._attends(k):
            continue
        if flow.convention == "attracting":
            x, jacobian = flow._attracted(x, context)
            log_density = log_density - log_abs_det(jacobian)[0]
        else:
            x = flow._released(x, context)
            log_density = log_density + log_abs_det(flow._attracted(x, context)[1])[0]
    flow._warn(float(lost.to(x).mean()))
    return Generated(x, log_density, transport, hjb)


def _runge_kutta(
    flow: SparseTransformerFlow, x: Tensor, y: Tensor | None, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Step k of the equation, forwards: points, and what it adds to log density and penalties.

    Last, where it has no inverse: nowhere, up to the error of the scheme.
    """
    h = flow._h
    x, slopes, bent = Stages(flow.potential, y).step(x, (k - 1) * h, h, laplacian=True)
    assert bent is not None
    laplacian, energy, residual = integrals(slopes, bent, h)
    nowhere = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    return x, -laplacian, energy, residual, nowhere


def _implicit_euler(
    flow: SparseTransformerFlow, x: Tensor, y: Tensor | None, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The inverse of the Euler step k to the base; returns what `_runge_kutta` does."""
    h = flow._h
    with torch.no_grad():
        found, failed = flow._drifted(x, y, k)
    value, jacobian = flow._euler(found, y, k)
    # A step of Newton's method with a fixed Jacobian: its value is zero, its gradient is not.
    step, _ = torch.linalg.solve_ex(jacobian.detach(), x - value)
    x = found + step
    at = flow.potential.derivatives(x, (k - 1) * h, y, hessian=True)
    assert at.hessian is not None
    energy = at.gradient.square().sum(1) / 2
    change, turned = log_abs_det(drift_jacobian(at.hessian, h))
    return x, change, h * energy, h * (at.time + energy).abs(), failed | turned


def _as_published(flow: SparseTransformerFlow, x: Tensor, y: Tensor | None) -> Generated:
    """Steps (22) with the traces of (24) forwards, the tokens being their own context."""
    h = flow.t_final / flow.steps
    log_density = log_normal(x)
    transport = hjb = x.new_zeros(len(x))
    folded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for k in range(flow.steps):
        at = flow.potential.derivatives(x, k * h, y)
        assert at.laplacian is not None
        energy, residual = flow._printed_costs(x, at)
        transport, hjb = transport + h * energy, hjb + h * residual
        x = x + h * at.gradient
        log_density = log_density - h * at.laplacian
        if flow._attends(k + 1):
            layer = flow._layer(x, x, alone=flow.context == "masked", jacobian=True)
            assert layer.attention is not None
            x = x + layer.change / 2
            trace = layer.slope.sum(1) - layer.attention.diagonal(dim1=1, dim2=2).sum(1)
            log_density = log_density - trace / 2
            with torch.no_grad():
                folded |= log_abs_det(identity(layer.attention, layer.slope, 0.5))[1]
    flow._warn(float(folded.to(x).mean()))
    return Generated(x, log_density, transport, hjb)


class _LogPosterior(torch.autograd.Function):
    """Log posterior density at x, computed by NumPy in double precision, with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, problem: InverseProblem) -> Tensor:
        value, slope = problem.log_posterior(*(t.detach().cpu().double().numpy() for t in (x, y)))
        ctx.save_for_backward(torch.as_tensor(slope).to(x))
        return torch.as_tensor(value).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return grads[0][:, None] * slope, None, None


@dataclass(frozen=True)
class ReverseKL:
    r"""Objective of a conditional flow: the divergence of its samples from the posterior [1]_.

    .. math::

        \alpha_1\,\mathrm{mean}\Big(\log\rho(x \mid y) + \tfrac12 |\sigma^{-1}(y - F(x))|^2
        + \lambda |x|_1\Big) + \alpha_2\,\mathrm{mean}(\text{transport})
        + \alpha_3\,\mathrm{mean}(\text{HJB}) + \gamma\,\mathrm{mean}|x - x_\mathrm{true}|^2

    over samples x of the flow, one for each y of a batch.

    Parameters
    ----------
    problem : wflow.sampling.forward.InverseProblem
        The posterior; its forward model is differentiated by its adjoint.
    alpha : tuple of float, default (1.0, 1.0, 0.1)
        Weights >= 0, in this order.
    supervised : float, default 0.0
        Weight gamma >= 0 of the squared distance of samples from the parameters that the data came
        from, as in [1]_. Its least value is at the posterior mean: it pulls samples there, and the
        flow is then no posterior.

    Raises
    ------
    InputError
        For anything but an inverse problem and numbers >= 0; when called: for batches of other
        shapes, and where the forward model has no finite output for any sample.

    Notes
    -----
    A batch is (x, features of y, y), the first two as for `Likelihood`. The first `tokens` rows of
    a flow with independent contexts are its context. Samples at which the forward model has no
    finite output are left out; their share is recorded as `lost`. The divergence is that up to
    log p(y) and constants of the noise and the prior.

    References
    ----------
    .. [1] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior", 2025, section 4.2.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> from wflow.sampling import forward
    >>> problem = forward.InverseProblem(forward.Elliptic(2, 3), lam=2.0, noise=0.1)
    >>> flow = generative.OTFlow(generative.Potential(2, width=8, condition=3), steps=2)
    >>> x, y = (torch.as_tensor(a, dtype=torch.float32) for a in problem.simulate(5)[:2])
    >>> sorted(generative.ReverseKL(problem)(flow, x, y, y).parts)
    ['hjb', 'kl', 'lost', 'supervised', 'transport']
    """

    problem: InverseProblem
    alpha: tuple[float, float, float] = (1.0, 1.0, 0.1)
    supervised: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.problem, InverseProblem):
            raise InputError(
                f"problem is {type(self.problem).__name__}: expected a forward.InverseProblem"
            )
        weights = tuple(
            number(value, "a weight of alpha", 0) for value in listed(self.alpha, "alpha")
        )
        if len(weights) != 3:
            raise InputError(
                f"alpha has {len(weights)} entries: expected three, of divergence, transport, HJB"
            )
        object.__setattr__(self, "alpha", weights)
        object.__setattr__(self, "supervised", number(self.supervised, "supervised", 0))

    def __call__(self, model: nn.Module, /, *batch: Tensor) -> Loss:
        """Compute the loss of a flow on a batch (x, features, y)."""
        if len(batch) != 3:
            raise InputError(f"a batch has {len(batch)} tensors: expected x, features of y, and y")
        x, features, y = batch
        flow: Any = model
        context = None
        if isinstance(flow, SparseTransformerFlow) and flow.convention != "published":
            if len(x) <= flow.tokens:
                raise InputError(
                    f"the batch has {len(x)} rows, and the first {flow.tokens} are the context: "
                    "expected more of them, or fewer tokens"
                )
            context = x[: flow.tokens], features[: flow.tokens]
            x, features, y = (given[flow.tokens :] for given in batch)
        found = generate(flow, torch.randn_like(x), features, context=context)
        if not bool(torch.isfinite(found.x).all()):
            raise InputError(
                "samples of the flow are not finite: lower the rate, clip the gradient, or begin "
                "with the likelihood of joint pairs"
            )
        log_posterior = _LogPosterior.apply(found.x, tensor(y, "y", "real"), self.problem)
        known = torch.isfinite(log_posterior)
        if not bool(known.any()):
            raise InputError(
                "the forward model has no finite output for any sample of the flow: lower the "
                "rate, clip the gradient, or begin with the likelihood of joint pairs"
            )
        kl = (found.log_density - log_posterior)[known].mean()
        transport, hjb = found.transport.mean(), found.hjb.mean()
        gap = (found.x - x).square().sum(1).mean()
        a, b, c = self.alpha
        total = a * kl + b * transport + c * hjb
        if self.supervised:
            total = total + self.supervised * gap
        parts = {"kl": kl, "transport": transport, "hjb": hjb, "supervised": gap}
        return Loss(total, parts | {"lost": 1 - known.to(kl).mean()})
