"""Lipschitz constants: lower bounds for any map, exact values for linear layers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wflow._core.checks import function as given_function
from wflow._core.checks import positive, whole
from wflow._core.errors import InputError
from wflow.nets.blocks import evaluating, output_of, wide
from wflow.nets.checks import module, tensor

# Layers that do not change a difference of two inputs, whatever their parameters.
_NEUTRAL = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten)


class Lipschitz(NamedTuple):
    """Lower bounds of a Lipschitz constant: each is a ratio that two points of the map attain.

    Parameters
    ----------
    constant : float
        The largest ratio of all.
    random : float
        The largest over random directions.
    iterated : float
        The largest over the directions of the power iteration.
    per_sample : Tensor, shape (batch,)
        The largest ratio at each sample.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> found = nets.diagnostics.lipschitz(lambda x: 3 * x, torch.rand(2, 4, dtype=torch.float64))
    >>> round(found.constant, 6)
    3.0
    """

    constant: float
    random: float
    iterated: float
    per_sample: Tensor


def lipschitz(
    function: Callable[[Tensor], Any],
    x: Tensor,
    *,
    perturbation: float = 1e-3,
    seed: int = 0,
    samples: int = 8,
    iterations: int = 16,
) -> Lipschitz:
    """Estimate the Lipschitz constant of a map: the largest stretch of a perturbation found.

    It is the largest ``|F(x + e) - F(x)| / |e|`` with e of the length `perturbation`.

    It is a lower bound of the true constant, never more: only the neighbourhoods of the given
    samples are seen, and only some directions there. Directions are random ones, and those of a
    power iteration on J^T J (J the Jacobian), which tends to the direction of most stretch: each
    step takes the difference in place of J v and reverse-mode differentiation for J^T. Norms are
    Euclidean over all entries of a sample. Rounding of F enters as its size times eps /
    perturbation: take double precision where that matters.

    Parameters
    ----------
    function : callable
        Map (batch, ...) -> (batch, ...), each sample by itself; a tuple is taken at its first
        tensor. A module runs in evaluation mode, without dropout, and is put back.
    x : Tensor, shape (batch, ...)
        Points, real.
    perturbation : float, default 0.001
        Euclidean length of the perturbation of each sample.
    seed : int, default 0
        Seed of the directions.
    samples : int, default 8
        Number of random directions; the best of them starts the power iteration.
    iterations : int, default 16
        Steps of the power iteration; 0 leaves it out.

    Returns
    -------
    Lipschitz
        The bounds; `iterated` is NaN without iterations.

    Raises
    ------
    InputError
        For numbers out of range, inputs without a batch, or outputs that are not finite.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> layer = torch.nn.Linear(4, 4).double()
    >>> found = nets.diagnostics.lipschitz(layer, torch.rand(2, 4, dtype=torch.float64))
    >>> found.constant <= nets.diagnostics.operator_norm(layer) * (1 + 1e-9)
    True
    """
    size = positive(perturbation, "perturbation")
    whole(samples, "samples")
    whole(iterations, "iterations", 0)
    called = given_function(function, "function")
    weights = function.parameters() if isinstance(function, nn.Module) else iter(())
    tensor(x, "x", "real", next(weights, None))
    if x.ndim < 2 or not x.numel():
        raise InputError(
            f"x is {x.dtype} of shape {tuple(x.shape)}: expected real numbers (batch, ...)"
        )
    x = x.detach()
    generator = torch.Generator().manual_seed(whole(seed, "seed", 0))
    with evaluating(function), _frozen(function):
        with torch.no_grad():
            base = _finite(_output(called, x))

        def stretch(direction: Tensor) -> tuple[Tensor, Tensor]:
            """Return F(x + e) - F(x), and the ratio per sample, for e along the direction."""
            moved = x + size * direction
            with torch.no_grad():
                change = wide(_finite(_output(called, moved))) - wide(base)
            # The perturbation after rounding: in single precision it differs from the requested
            # one.
            length = _norm(wide(moved) - wide(x))
            if not bool((length > 0).all()):
                raise InputError(
                    f"a perturbation of {size:g} is lost in the rounding of x, {x.dtype}: take a "
                    "larger one, or double precision"
                )
            return change, _norm(change) / length

        random = wide(x).new_full((len(x),), -1.0)
        direction = torch.zeros_like(x)
        for _ in range(samples):
            tried = _unit(torch.randn(x.shape, generator=generator, dtype=torch.float64)).to(x)
            ratio = stretch(tried)[1]
            better = ratio > random
            direction = torch.where(_like(better, x), tried, direction)
            random = torch.where(better, ratio, random)
        iterated = torch.zeros_like(random)
        for _ in range(iterations):
            change, ratio = stretch(direction)
            iterated = torch.maximum(iterated, ratio)
            direction = _pulled_back(function, x, change, direction)
        if iterations:
            iterated = torch.maximum(iterated, stretch(direction)[1])
    best = torch.maximum(random, iterated)
    return Lipschitz(
        float(best.max()),
        float(random.max()),
        float(iterated.max()) if iterations else float("nan"),
        best,
    )


def operator_norm(layer: Tensor | nn.Module) -> float:
    """Return the largest singular value of a linear map: the Lipschitz constant L of [1]_.

    Parameters
    ----------
    layer : Tensor or torch.nn.Module
        A matrix, an `nn.Linear` (its bias moves no difference), or a module with one `nn.Linear`
        and else only layers that change no difference, such as dropout in evaluation. A linear map
        that acts on every token, or on one of them, has the norm of its matrix; one that acts on
        the mean of n tokens has that over sqrt(n), which is for the caller to divide.

    Returns
    -------
    float
        The norm, by a singular value decomposition in double precision.

    Raises
    ------
    InputError
        For a module with other layers. A layer norm is one: it has no Lipschitz constant of use,
        and the theorem has a linear output layer; pass the linear layer after it to say that it is
        the linear part alone that is measured.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, eq. 33.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> nets.diagnostics.operator_norm(torch.diag(torch.tensor([1.0, -3.0])))
    3.0
    """
    matrix = layer if isinstance(layer, Tensor) else _only_matrix(module(layer, "layer"))
    tensor(matrix, "layer", "number")
    if matrix.ndim != 2 or not matrix.numel():
        raise InputError(f"the layer has shape {tuple(matrix.shape)}: expected a matrix")
    values = wide(_finite(matrix.detach()))
    return float(torch.linalg.matrix_norm(values, 2))


def _only_matrix(module: nn.Module) -> Tensor:
    if isinstance(module, nn.Linear):
        return module.weight
    parts = [part for part in module.modules() if not list(part.children())]
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    others = [part for part in parts if not isinstance(part, (nn.Linear, *_NEUTRAL))]
    # Parameters outside of all layers belong to an operation that is unknown here.
    own = [name for part in module.modules() if list(part.children())
           for name, _ in part.named_parameters(recurse=False)]  # fmt: skip
    if len(linear) != 1 or others or own:
        names = ", ".join(type(part).__name__ for part in parts) or "nothing"
        raise InputError(
            f"{type(module).__name__} holds {names}: expected one linear layer alone; pass the "
            "linear layer of the output itself"
        )
    return linear[0].weight


def _pulled_back(
    function: Callable[[Tensor], Any], x: Tensor, change: Tensor, before: Tensor
) -> Tensor:
    """Return the direction J^T change of each sample; where it vanishes, the previous direction."""
    with torch.enable_grad():
        point = x.clone().requires_grad_(True)
        value = _output(function, point)
        if not value.requires_grad:
            raise InputError(
                "the function gives no gradient with respect to its input: run it without "
                "no_grad, or take iterations=0"
            )
        (gradient,) = torch.autograd.grad(value, point, change.to(value))
    nonzero = _norm(wide(gradient)) > 0
    return torch.where(_like(nonzero, x), _unit(wide(gradient)).to(x), before)


@contextmanager
def _frozen(function: Any) -> Iterator[None]:
    """Disable the gradients of the parameters of a module: only that of x is needed."""
    parameters = [p for p in function.parameters() if p.requires_grad] if isinstance(
        function, nn.Module
    ) else []  # fmt: skip
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _output(function: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """Return the result of a function at x, checked to have one row for each sample."""
    output = tensor(output_of(function(x)), "the output of the function", "real")
    if output.ndim < 1 or len(output) != len(x):
        raise InputError(
            f"the function turned inputs {tuple(x.shape)} into {tuple(output.shape)}: expected as "
            "many samples"
        )
    return output


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.reshape(len(x), -1), dim=1)


def _unit(x: Tensor) -> Tensor:
    return x / _like(_norm(x).clamp(min=torch.finfo(x.dtype).tiny), x)


def _like(per_sample: Tensor, x: Tensor) -> Tensor:
    return per_sample.reshape(-1, *[1] * (x.ndim - 1)).to(x.device)


def _finite(value: Tensor) -> Tensor:
    if not torch.isfinite(value).all():
        raise InputError("there are values that are not finite; check the input and the weights")
    return value
