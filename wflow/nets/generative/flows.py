r"""Flows between a standard Gaussian and data along a potential, and their training.

Time runs from the base at t = 0 to the data at t = T: samples follow x' = grad phi(x, t), densities
are found by following it back. `OTFlow` integrates both by the classical Runge-Kutta method; the
flow with sparse attention is in `sparse`. `Likelihood` is what both are trained with::

    flow = generative.OTFlow(generative.Potential(2))
    history = nets.train.train(flow, generative.Likelihood(), batches, config)
    x = flow.sample(1000)

[OTF] Onken, Fung, Li, Ruthotto, "OT-Flow: Fast and Accurate Continuous Normalizing Flows via
Optimal Transport", AAAI 2021. [RWPO] Han, Osher, Li, "Sparse Transformer
Architectures via Regularized Wasserstein Proximal Operator with L1 Prior", 2025.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wflow._core.checks import number, positive, switch, whole
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow.nets.checks import listed, tensor
from wflow.nets.generative.potential import Potential, points
from wflow.nets.generative.runge_kutta import Stages, integrals
from wflow.nets.pretrained import Pretrained
from wflow.nets.registry import register
from wflow.nets.training.train import Loss

__all__ = ["Generated", "Likelihood", "OTFlow", "ToBase", "log_normal"]


class ToBase(NamedTuple):
    r"""Points at the base of a flow, with integrals along the path to it.

    Parameters
    ----------
    z : Tensor, shape (n, dim)
        Points at the base.
    log_det : Tensor, shape (n,)
        Logarithm of the determinant of dz/dx: log rho(x) = log rho_0(z) + log_det.
    transport : Tensor, shape (n,)
        Kinetic energy, the integral of ``|grad phi|^2 / 2``.
    hjb : Tensor, shape (n,)
        Integral of the residual of the Hamilton-Jacobi-Bellman equation.
    folded : Tensor, shape ()
        Share of tokens at which a layer of the flow has a determinant <= 0, so that it cannot be
        inverted; 0 for flows whose layers are counted by no such test.
    log_det_error : Tensor, shape (n,)
        Standard error of log_det; 0 where no determinant is estimated.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> flow = generative.OTFlow(generative.Potential(2, width=8), steps=2)
    >>> flow.to_base(torch.randn(5, 2)).log_det.shape
    torch.Size([5])
    """

    z: Tensor
    log_det: Tensor
    transport: Tensor
    hjb: Tensor
    folded: Tensor
    log_det_error: Tensor

    @property
    def log_density(self) -> Tensor:
        """Log density of the flow at the points that it followed, (n,)."""
        return log_normal(self.z) + self.log_det


class Generated(NamedTuple):
    r"""Samples of a flow, with integrals along the path from the base.

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
    >>> flow.generate(torch.randn(5, 2)).log_density.shape
    torch.Size([5])
    """

    x: Tensor
    log_density: Tensor
    transport: Tensor
    hjb: Tensor


def log_normal(z: Tensor) -> Tensor:
    r"""Return the log density of the standard Gaussian, ``-|z|^2 / 2 - (d/2) log(2 pi)``.

    Parameters
    ----------
    z : Tensor, shape (n, d)
        Points.

    Returns
    -------
    Tensor, shape (n,)
        Log density at each.

    Raises
    ------
    InputError
        For anything but a floating-point tensor of two dimensions.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> round(float(generative.log_normal(torch.zeros(1, 2))), 4)
    -1.8379
    """
    tensor(z, "z", "real")
    if z.ndim != 2:
        raise InputError(f"z is of shape {tuple(z.shape)}: expected (n, d)")
    return -z.square().sum(1) / 2 - z.shape[1] / 2 * math.log(2 * math.pi)


class GradientFlow(Pretrained):
    """Base class of the flows along a potential: densities and samples from the two maps.

    A derived class has `to_base` and `from_base`, and `steps` and `t_final`.
    """

    PARTS = ("potential",)  # networks among the arguments
    steps: int
    t_final: float
    to_base: Callable[..., ToBase]
    from_base: Callable[..., Tensor]

    def __init__(self, potential: Potential, steps: int, t_final: float) -> None:
        super().__init__()
        if not isinstance(potential, Potential):
            raise InputError(
                f"potential is {type(potential).__name__}: expected a generative.Potential"
            )
        self.potential = potential
        self.steps = whole(steps, "steps")
        self.t_final = positive(t_final, "t_final")

    @property
    def dim(self) -> int:
        """Length of the points."""
        return self.potential.dim

    def _stages(self, n: int, y: Tensor | None) -> Stages:
        """Prepare the potential for Runge-Kutta steps of n points with features y."""
        return Stages(self.potential, self.potential.features(y, n))

    def draws(self, n: int, seed: int) -> Tensor:
        """Draw points of the base, the same numbers for any precision of the weights.

        Parameters
        ----------
        n : int
            Number of points.
        seed : int
            Of the numbers.

        Returns
        -------
        Tensor, shape (n, dim)
            Points of a standard Gaussian.

        Raises
        ------
        InputError
            For numbers out of range.

        Examples
        --------
        >>> from wflow.nets import generative
        >>> generative.OTFlow(generative.Potential(2, width=8)).draws(5, seed=0).shape
        torch.Size([5, 2])
        """
        count, weight = whole(n, "n"), self.potential.w
        generator = torch.Generator().manual_seed(whole(seed, "seed", 0))
        try:
            z = torch.randn(count, self.dim, dtype=torch.float64, generator=generator)
        except RuntimeError:  # of torch's allocator
            raise InputError(
                f"{count:,} points of {self.dim} numbers do not fit into the memory: draw fewer"
            ) from None
        return z.to(weight)

    def log_density(self, x: Tensor, y: Tensor | None = None, **given: Any) -> Tensor:
        """Compute the log density of the flow at points, ``log rho_0(z) + log det dz/dx``.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Points.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.
        **given : Any
            As in `to_base`: the `context` of a `SparseTransformerFlow`, whose convention
            `published` gives what (24) sums in place of a log density.

        Returns
        -------
        Tensor, shape (n,)
            Log density at each.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices, and a context that is missing.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.OTFlow(generative.Potential(2, width=8), steps=2)
        >>> flow.log_density(torch.zeros(3, 2)).shape
        torch.Size([3])
        """
        return self.to_base(x, y, **given).log_density

    @torch.no_grad()
    def sample(self, n: int, seed: int = 0, y: Tensor | None = None, **given: Any) -> Tensor:
        """Draw samples.

        Parameters
        ----------
        n : int
            Number of samples.
        seed : int, default 0
            Of the points of the base.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all samples or of each.
        **given : Any
            As in `from_base`: `exact` of an `OTFlow`, `context` of a `SparseTransformerFlow`.

        Returns
        -------
        Tensor, shape (n, dim)
            Samples.

        Raises
        ------
        InputError
            For numbers out of range, features of another shape, and a context that is missing.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.SparseTransformerFlow(generative.Potential(2, width=8), steps=2)
        >>> flow.sample(5, context=torch.randn(32, 2)).shape
        torch.Size([5, 2])
        """
        return self.from_base(self.draws(n, seed), y, **given)

    def extra_repr(self) -> str:
        """Describe the discretisation, for printing.

        Returns
        -------
        str
            Steps and final time.
        """
        return f"steps={self.steps}, t_final={self.t_final:g}"


@register
class OTFlow(GradientFlow):
    r"""OT-Flow [1]_: a continuous normalising flow along the gradient of a potential.

    .. math::

        \dot x = \nabla\phi(x, t), \quad x(0) \sim N(0, I), \qquad
        \log\rho(x(T)) = \log\rho_0(x(0)) - \int_0^T \Delta\phi(x, t)\,dt,

    by `steps` steps of the classical Runge-Kutta method from the data back to the base. Time runs
    the other way in [1]_, and there the velocity is -grad phi: the same flow.

    Parameters
    ----------
    potential : Potential
        The potential phi; its condition makes the flow a conditional one.
    steps : int, default 8
        Number of steps.
    t_final : float, default 1.0
        Time T of the data.

    Raises
    ------
    InputError
        For anything but a `Potential`, steps below 1 and T <= 0.

    References
    ----------
    .. [1] Onken, Fung, Li, Ruthotto, "OT-Flow: Fast and Accurate Continuous Normalizing Flows via
       Optimal Transport", AAAI 2021, eqs. 1 to 10.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> flow = generative.OTFlow(generative.Potential(2, width=8), steps=4)
    >>> flow.log_density(flow.sample(5, seed=1)).shape
    torch.Size([5])
    """

    def __init__(self, potential: Potential, *, steps: int = 8, t_final: float = 1.0) -> None:
        super().__init__(potential, steps, t_final)

    def forward(self, x: Tensor, y: Tensor | None = None) -> ToBase:
        """Follow data to the base, as `to_base` does.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Data.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.

        Returns
        -------
        ToBase
            As of `to_base`.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices.
        """
        return self.to_base(x, y)

    def to_base(self, x: Tensor, y: Tensor | None = None) -> ToBase:
        r"""Follow data to the base, with log determinant and penalties.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Data.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.

        Returns
        -------
        ToBase
            Points, log determinant, the transport cost ``int |grad phi|^2 / 2 dt`` and the penalty
            ``int |d phi/dt + |grad phi|^2 / 2| dt`` along the path, by the weights of the scheme.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.OTFlow(generative.Potential(2, width=8), steps=2)
        >>> flow.to_base(torch.zeros(3, 2)).z.shape
        torch.Size([3, 2])
        """
        x = points(x, "x", self.dim, self.potential.w)
        x, bent, transport, hjb = self._along(x, y, forwards=False)
        log_det = -bent
        return ToBase(x, log_det, transport, hjb, x.new_zeros(()), torch.zeros_like(log_det))

    def from_base(self, z: Tensor, y: Tensor | None = None, *, exact: bool = True) -> Tensor:
        r"""Follow points of the base to the data.

        Parameters
        ----------
        z : Tensor, shape (n, dim)
            Points at the base.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.
        exact : bool, default True
            Whether to invert each step of `to_base` to rounding, so that the samples have the
            density that `log_density` gives; otherwise the steps forwards, whose error is that of
            the scheme. An inverse takes the step forwards G of the backward one F, and corrects it
            by ``x <- x + G(z) - G(F(x))``.

        Returns
        -------
        Tensor, shape (n, dim)
            Data.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices.

        Warns
        -----
        UserWarning
            Where a step could not be inverted: it is too long for the potential.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.OTFlow(generative.Potential(2, width=8)).double()
        >>> z = flow.draws(3, seed=0)
        >>> bool((flow.to_base(flow.from_base(z)).z - z).abs().max() < 1e-12)
        True
        """
        x = points(z, "z", self.dim, self.potential.w)
        exact = switch(exact, "exact")
        h = self.t_final / self.steps
        lost = 0
        stages = self._stages(len(x), y)
        for k in range(self.steps):

            def forwards(at: Tensor, t: float = k * h) -> Tensor:
                return stages.step(at, t, h, laplacian=False)[0]

            def backwards(at: Tensor, t: float = (k + 1) * h) -> Tensor:
                return stages.step(at, t, -h, laplacian=False)[0]

            start = forwards(x)
            x = start
            if exact:
                x, failed = corrected(start, forwards, backwards)
                lost = max(lost, int(failed.sum()))
        if lost:
            warn(
                f"a step of the flow could not be inverted for {lost} of {len(x)} points: raise "
                "steps, or train with a larger weight of the transport",
                AccuracyWarning,
            )
        return x

    def generate(self, z: Tensor, y: Tensor | None = None) -> Generated:
        r"""Follow points of the base to samples, with their density, for a backward pass.

        Parameters
        ----------
        z : Tensor, shape (n, dim)
            Points at the base.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.

        Returns
        -------
        Generated
            Samples and log densities; a backward pass goes through both, to the weights of the
            flow. The scheme runs forwards: the density is `log_density` up to its error.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.OTFlow(generative.Potential(2, width=8), steps=2)
        >>> flow.generate(torch.randn(5, 2)).x.requires_grad
        True
        """
        z = points(z, "z", self.dim, self.potential.w)
        x, bent, transport, hjb = self._along(z, y, forwards=True)
        return Generated(x, log_normal(z) - bent, transport, hjb)

    def _along(
        self, x: Tensor, y: Tensor | None, *, forwards: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Follow points by the scheme, to the data or to the base.

        Beside them the integrals of the Laplacian, of the kinetic energy, and of the residual of
        the HJB equation over time, from 0 to T in both directions.
        """
        h = self.t_final / self.steps
        stages = self._stages(len(x), y)
        slopes: list[Tensor] = []
        bends: list[Tensor] = []
        for k in range(self.steps):
            t, way = (k * h, h) if forwards else ((self.steps - k) * h, -h)
            x, slope, bend = stages.step(x, t, way, laplacian=True)
            assert bend is not None
            slopes.append(slope)
            bends.append(bend)
        return x, *integrals(torch.cat(slopes), torch.cat(bends), h)


_CORRECTIONS = 50


def corrected(
    start: Tensor, forwards: Callable[[Tensor], Tensor], backwards: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Solve backwards(x) = z from start = forwards(z); and the rows without a solution."""
    x, least = start, start.new_full(start.shape[:1], math.inf)
    floor = 16 * torch.finfo(x.dtype).eps * (1 + start.abs().amax(1))
    for _ in range(_CORRECTIONS):
        change = start - forwards(backwards(x))
        size = change.abs().amax(1)
        closer = size < least  # a row whose corrections grow stays where it is
        x = torch.where(closer[:, None], x + change, x)
        if bool(((size <= floor) | ~closer).all()):
            break
        least = torch.minimum(least, size)
    return x, ~(size <= 1e3 * floor)


@dataclass(frozen=True)
class Likelihood:
    r"""Objective of a flow: negative log likelihood, transport cost and HJB penalty [1]_ [2]_.

    .. math::

        \alpha_1\,\mathrm{mean}(-\log\rho(x)) + \alpha_2\,\mathrm{mean}(\text{transport})
        + \alpha_3\,\mathrm{mean}(\text{HJB})

    Parameters
    ----------
    alpha : tuple of float, default (1.0, 1.0, 0.1)
        Weights >= 0 of the three, in this order; the default is that of [2]_.

    Raises
    ------
    InputError
        For anything but three numbers >= 0.

    References
    ----------
    .. [1] Onken, Fung, Li, Ruthotto, "OT-Flow: Fast and Accurate Continuous Normalizing Flows via
       Optimal Transport", AAAI 2021, eq. 6.
    .. [2] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior", 2025, eqs. 16 to 21.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> flow = generative.OTFlow(generative.Potential(2, width=8), steps=2)
    >>> sorted(generative.Likelihood()(flow, torch.randn(5, 2)).parts)
    ['folded', 'hjb', 'nll', 'transport']
    """

    alpha: tuple[float, float, float] = (1.0, 1.0, 0.1)

    def __post_init__(self) -> None:
        weights = tuple(
            number(value, "a weight of alpha", 0) for value in listed(self.alpha, "alpha")
        )
        if len(weights) != 3:
            raise InputError(
                f"alpha has {len(weights)} entries: expected three, of likelihood, transport, HJB"
            )
        object.__setattr__(self, "alpha", weights)

    def __call__(self, model: nn.Module, /, *batch: Tensor) -> Loss:
        """Compute the loss of a flow on data x, or on pairs (x, y)."""
        base: Any = model(*batch)
        if not isinstance(base, ToBase):
            raise InputError(
                f"the network returns {type(base).__name__}: expected a flow, whose forward "
                "returns a generative.ToBase"
            )
        nll = -base.log_density.mean()
        transport, hjb = base.transport.mean(), base.hjb.mean()
        a, b, c = self.alpha
        parts = {"nll": nll, "transport": transport, "hjb": hjb, "folded": base.folded}
        return Loss(a * nll + b * transport + c * hjb, parts)
