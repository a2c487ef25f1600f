r"""Flows as posteriors: conditional on data y, trained without posterior samples.

A flow whose potential has a condition is amortised: one network gives the posterior of every y.
`Likelihood` trains it on pairs (x, features of y) from the joint law, whose expectation

    E -log rho(x | y) = E KL(p(. | y) | rho(. | y)) + const

is least at the posterior. `ReverseKL` trains it on y alone, by samples of the flow and the gradient
of the forward model: [RWPO] section 4.2; the method `generate` of the flows is the differentiable
way to them.

[RWPO] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior", 2025.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from wflow._core.checks import number
from wflow._core.errors import InputError
from wflow.nets.checks import listed, tensor
from wflow.nets.generative.flows import OTFlow
from wflow.nets.generative.sparse import SparseTransformerFlow, check_rows
from wflow.nets.training.train import Loss
from wflow.sampling.forward import InverseProblem

__all__ = ["ReverseKL"]


class _LogPosterior(torch.autograd.Function):
    """Log posterior density at x, as `InverseProblem.log_posterior`: in double precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, problem: InverseProblem) -> Tensor:
        at = x.detach().double()
        values, pull = problem.model.evaluate_torch(at)
        if values.shape != y.shape:
            raise InputError(
                f"{type(problem.model).__name__}: evaluate_torch returns outputs of shape "
                f"{tuple(values.shape)}: expected {tuple(y.shape)}"
            )
        noise = at.new_tensor(problem.noise)
        residual = (y.to(at) - values) / noise
        likelihood = -0.5 * residual.square().sum(1)
        known = torch.isfinite(likelihood)
        slope = pull(torch.where(known[:, None], residual, 0) / noise)
        smooth = known & torch.isfinite(slope).all(1)
        slope = torch.where(smooth[:, None], slope, 0) - problem.lam * at.sign()
        ctx.save_for_backward(slope.to(x))
        return (torch.where(known, likelihood, -torch.inf) - problem.lam * at.abs().sum(1)).to(x)

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
        The posterior; its forward model is differentiated by its adjoint, on the device of the
        flow where it overrides `evaluate_torch`, and in double precision.
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
        x, features, y = (
            tensor(given, name, "real")
            for given, name in zip(batch, ("x", "features of y", "y"), strict=True)
        )
        if not isinstance(model, OTFlow | SparseTransformerFlow):
            raise InputError(
                f"flow is {type(model).__name__}: expected an OTFlow or a SparseTransformerFlow"
            )
        options = {}
        if isinstance(model, SparseTransformerFlow) and model.convention != "published":
            check_rows(len(x), model.tokens)
            options["context"] = x[: model.tokens], features[: model.tokens]
            x, features, y = (given[model.tokens :] for given in (x, features, y))
        rows, forward = x.shape[:1], self.problem.model
        for name, given, columns in (("x", x, forward.dim), ("y", y, forward.outputs)):
            if given.shape != (*rows, columns):
                raise InputError(
                    f"{name} has shape {tuple(given.shape)}: expected (n, {columns}), with one n"
                )
        found = model.generate(torch.randn_like(x), features, **options)
        both = torch.stack([torch.isfinite(each).all() for each in (y, found.x)])
        given, made = both.tolist()  # the device is waited for once
        if not given:
            raise InputError("y is not finite: expected finite data")
        if not made:
            raise InputError(
                "samples of the flow are not finite: lower the rate, clip the gradient, or begin "
                "with the likelihood of joint pairs"
            )
        log_posterior = _LogPosterior.apply(found.x, y, self.problem)
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
