"""Runs as differentiable functions of other libraries, whose derivatives are `wflow.gradient`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import shown
from wflow._core.errors import InputError
from wflow._core.extras import required
from wflow.gradients.adjoint import Gradient, Trajectory, differentiable_problem
from wflow.heads.laws import HeadLaw
from wflow.heads.process import as_law
from wflow.particles.problem import problem_of
from wflow.sphere.geometry import as_tokens

__all__ = ["jax", "torch"]


def __dir__() -> list[str]:
    return __all__


def _check(law: HeadLaw, arguments: dict[str, Any]) -> None:
    """Refuse anything but a law and the names of arguments of a run, before there are tokens."""
    as_law(law)
    signature(problem_of).bind(None, law, **arguments)


def _run(law: HeadLaw, arguments: dict[str, Any], x0: Any, heads: Any) -> Trajectory:
    """Return the run from these tokens, and from these heads unless they are None.

    Tokens that an optimizer moves leave the sphere, and are put on it without a warning.
    """
    own = {} if heads is None else {"heads": np.asarray(heads, np.float64)}
    return Trajectory(differentiable_problem(as_tokens(x0), law, **arguments, **own))


def _of_heads(found: Gradient, law: HeadLaw) -> NDArray[np.floating]:
    """Return the derivatives by the initial heads, which all paths share."""
    if found.initial_heads is None:
        raise InputError(
            f"the steps of {type(law).__name__} have no adjoint: there are no derivatives by the "
            "initial heads of this law"
        )
    return found.initial_heads.sum(axis=0)


def torch(law: HeadLaw, **arguments: Any) -> Callable[..., Any]:
    """Return a run as a function of tensors, which torch differentiates.

    Parameters
    ----------
    law : wflow.heads.HeadLaw
        How the heads move.
    **arguments
        Further arguments of `wflow.gradient`, such as t_final, dt and save.

    Returns
    -------
    callable
        Function of initial tokens x0 (n, d) or (paths, n, d), and of initial heads (heads, d, d)
        if `heads` is not among the arguments. It returns the tokens at the snapshots, (paths,
        snapshots, n, d) in double precision, and is differentiable by both.

    Raises
    ------
    InputError
        Without torch, and for what `wflow.gradient` does not take; when the function is called for
        anything but tensors, for derivatives by initial heads of a custom law, and for second
        derivatives.
    TypeError
        For names that are not arguments of a run.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.interop.torch(wflow.heads.Frozen(), t_final=1.0, dt=0.1)
    >>> import torch
    >>> x0 = torch.tensor(np.eye(3), requires_grad=True)
    >>> end = run(x0, torch.eye(3, dtype=torch.float64)[None])[0, -1]
    >>> (end @ end.T).sum().backward()
    >>> x0.grad.shape
    torch.Size([3, 3])
    """
    lib: Any = required("torch", "nets", "functions of torch")
    _check(law, arguments)

    class Once(lib.autograd.Function):  # type: ignore[name-defined]
        """First derivatives, which depend on tokens and heads in a way that is not known."""

        @staticmethod
        def forward(ctx: Any, derivatives: Any, *inputs: Any) -> Any:
            return derivatives

        @staticmethod
        def backward(ctx: Any, of_derivatives: Any) -> Any:
            raise InputError("a run has first derivatives alone: second derivatives are not known")

    class Run(lib.autograd.Function):  # type: ignore[name-defined]
        """The run, whose derivatives are its adjoint."""

        @staticmethod
        def forward(ctx: Any, x0: Any, heads: Any) -> Any:
            ctx.x0, start = (
                None if given is None else given.detach().cpu().numpy().astype(np.float64)
                for given in (x0, heads)
            )
            ctx.run, ctx.like = _run(law, arguments, ctx.x0, start), (x0, heads)
            return lib.from_numpy(ctx.run.tokens).to(x0.device)

        @staticmethod
        def backward(ctx: Any, of_tokens: Any) -> Any:
            x0, heads = ctx.like
            cotangents = np.ascontiguousarray(of_tokens.cpu().numpy())
            found = ctx.run.backward(0.0, cotangents, None, ctx.x0)
            of_heads = None
            if ctx.needs_input_grad[1]:
                of_heads = Once.apply(lib.from_numpy(_of_heads(found, law)).to(heads), *ctx.like)
            return Once.apply(lib.from_numpy(found.x0).to(x0), *ctx.like), of_heads

    def run(x0: Any, heads: Any = None) -> Any:
        for name, value in (("x0", x0), ("heads", heads)):
            if not (lib.is_tensor(value) or (value is None and name == "heads")):
                raise InputError(f"{name} is {shown(value)}: expected a tensor of torch")
        return Run.apply(x0, heads)

    return run


def jax(law: HeadLaw, **arguments: Any) -> Callable[..., Any]:
    """Return a run as a function of arrays, which JAX differentiates and compiles around.

    The run itself is a callback on the host; its derivatives, of reverse mode, compute it again.

    Parameters
    ----------
    law : wflow.heads.HeadLaw
        How the heads move.
    **arguments
        Further arguments of `wflow.gradient`, such as t_final, dt and save.

    Returns
    -------
    callable
        Function of initial tokens x0 (n, d) or (paths, n, d), and of initial heads (heads, d, d)
        if `heads` is not among the arguments. It returns the tokens at the snapshots, (paths,
        snapshots, n, d) in the precision of x0, and is differentiable by both.

    Raises
    ------
    InputError
        Without JAX; when the function is called, for tokens that are not floating-point numbers
        and for what `wflow.gradient` does not take. Within the callback JAX raises its own error,
        with the message.
    TypeError
        For names that are not arguments of a run.

    Examples
    --------
    >>> import wflow
    >>> run = wflow.interop.jax(wflow.heads.Frozen(), t_final=1.0, dt=0.1)  # doctest: +SKIP
    >>> jax.grad(lambda x0: run(x0, heads)[0, -1].sum())(x0)  # doctest: +SKIP
    """
    lib: Any = required("jax", "bench", "functions of JAX")
    _check(law, arguments)

    def tokens(x0: Any, heads: Any) -> Any:
        given = np.asarray(x0, np.float64)
        return _run(law, arguments, given, heads).tokens.astype(x0.dtype)

    def derivatives(x0: Any, heads: Any, of_tokens: Any) -> Any:
        given = np.asarray(x0, np.float64)
        run = _run(law, arguments, given, heads)
        found = run.backward(0.0, np.asarray(of_tokens, np.float64), None, given)
        of_heads = None if heads is None else _of_heads(found, law).astype(heads.dtype)
        return found.x0.astype(x0.dtype), of_heads

    @lib.custom_vjp
    def run(x0: Any, heads: Any = None) -> Any:
        if not lib.numpy.issubdtype(x0.dtype, lib.numpy.floating):
            raise InputError(f"x0 is an array of {x0.dtype}: expected floating-point numbers")
        # The shape of the result is that of a run from any tokens and heads of these shapes.
        own = {} if heads is None else {"heads": np.zeros(heads.shape)}
        problem = differentiable_problem(np.ones(x0.shape), law, **arguments, **own)
        shape = (problem.paths, len(problem.snapshot_steps), *x0.shape[-2:])
        result = lib.ShapeDtypeStruct(shape, x0.dtype)
        return lib.pure_callback(tokens, result, x0, heads, vmap_method="sequential")

    def forward(x0: Any, heads: Any = None) -> Any:
        return run(x0, heads), (x0, heads)

    def backward(kept: Any, of_tokens: Any) -> Any:
        like = lib.tree.map(lambda given: lib.ShapeDtypeStruct(given.shape, given.dtype), kept)
        return lib.pure_callback(derivatives, like, *kept, of_tokens, vmap_method="sequential")

    run.defvjp(forward, backward)
    return run
