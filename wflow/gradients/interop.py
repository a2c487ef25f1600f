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
from wflow.heads.laws import HeadLaw, law_config, law_from_config
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


def _with(law: HeadLaw, parameters: dict[str, Any]) -> HeadLaw:
    """Return the law with other values of some of its parameters."""
    if not parameters:
        return law
    config = law_config(law)
    for name in parameters:
        if name not in config or "fingerprint" in config:
            raise InputError(
                f"{type(law).__name__} has no parameter {name!r} of which a run is a function: "
                "expected parameters in `law` of wflow.gradient"
            )
    values = {name: np.asarray(of, np.float64).tolist() for name, of in parameters.items()}
    return law_from_config(config | values)


def _run(
    law: HeadLaw, arguments: dict[str, Any], x0: Any, heads: Any, parameters: dict[str, Any]
) -> Trajectory:
    """Return the run from these tokens, from these heads unless they are None, under this law.

    Tokens that an optimizer moves leave the sphere, and are put on it without a warning.
    """
    own = {} if heads is None else {"heads": np.asarray(heads, np.float64)}
    law = _with(law, parameters)
    return Trajectory(differentiable_problem(as_tokens(x0), law, **arguments, **own))


def _of_heads(found: Gradient, law: HeadLaw) -> NDArray[np.floating]:
    """Return the derivatives by the initial heads, which all paths share."""
    if found.initial_heads is None:
        raise InputError(
            f"the steps of {type(law).__name__} have no adjoint: there are no derivatives by the "
            "initial heads of this law"
        )
    return found.initial_heads.sum(axis=0)


def _of_parameter(found: Gradient, name: str) -> NDArray[np.floating]:
    if name not in found.law:
        raise InputError(
            f"there are no derivatives by {name}: those known for this law are by "
            f"{', '.join(found.law) or 'no parameter'}"
        )
    return np.asarray(found.law[name])


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
        Function of initial tokens x0 (n, d) or (paths, n, d), of initial heads (heads, d, d) if
        `heads` is not among the arguments, and by keyword of parameters of the law that
        `wflow.gradient` has in `law`, such as ``mean=``, in the place of those of `law`. It returns
        the tokens at the snapshots, (paths, snapshots, n, d) in double precision, and is
        differentiable by all of them. A mean is symmetric, its derivatives are those of free
        entries: write it as A + A^T of the matrix A that an optimizer moves.

    Raises
    ------
    InputError
        Without torch, and for what `wflow.gradient` does not take; when the function is called for
        anything but tensors, for parameters that the law does not have, for derivatives by initial
        heads of a custom law, and for second derivatives.
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
        def forward(ctx: Any, names: Any, *like: Any) -> Any:
            ctx.x0, heads, *values = (
                None if given is None else given.detach().cpu().numpy().astype(np.float64)
                for given in like
            )
            ctx.names, ctx.like = names, like
            ctx.run = _run(law, arguments, ctx.x0, heads, dict(zip(names, values, strict=True)))
            return lib.from_numpy(ctx.run.tokens).to(like[0].device)

        @staticmethod
        def backward(ctx: Any, of_tokens: Any) -> Any:
            cotangents = np.ascontiguousarray(of_tokens.cpu().numpy())
            found = ctx.run.backward(0.0, cotangents, None, ctx.x0)
            known = {"x0": lambda: found.x0, "heads": lambda: _of_heads(found, law)}

            def derivatives(name: str, like: Any) -> Any:
                of = known.get(name, lambda: _of_parameter(found, name))()
                return Once.apply(lib.from_numpy(of).to(like), *ctx.like)

            return None, *(
                derivatives(name, like) if needed else None
                for name, like, needed in zip(
                    ("x0", "heads", *ctx.names), ctx.like, ctx.needs_input_grad[1:], strict=True
                )
            )

    def run(x0: Any, heads: Any = None, **parameters: Any) -> Any:
        for name, value in {"x0": x0, "heads": heads, **parameters}.items():
            if not (lib.is_tensor(value) or (value is None and name == "heads")):
                raise InputError(f"{name} is {shown(value)}: expected a tensor of torch")
        return Run.apply(tuple(parameters), x0, heads, *parameters.values())

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
        Function of initial tokens x0 (n, d) or (paths, n, d), of initial heads (heads, d, d) if
        `heads` is not among the arguments, and by keyword of parameters of the law that
        `wflow.gradient` has in `law`, such as ``mean=``, in the place of those of `law`. It returns
        the tokens at the snapshots, (paths, snapshots, n, d) in the precision of x0, and is
        differentiable by all of them; derivatives that `wflow.gradient` does not have, as by
        ``sigma2=0``, are NaN. A mean is symmetric, its derivatives are those of free
        entries: write it as A + A^T of the matrix A that an optimizer moves.

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

    def tokens(x0: Any, heads: Any, parameters: Any) -> Any:
        given = np.asarray(x0, np.float64)
        return _run(law, arguments, given, heads, parameters).tokens.astype(x0.dtype)

    def derivatives(x0: Any, heads: Any, parameters: Any, of_tokens: Any) -> Any:
        given = np.asarray(x0, np.float64)
        run = _run(law, arguments, given, heads, parameters)
        found = run.backward(0.0, np.asarray(of_tokens, np.float64), None, given)
        of_heads = None if heads is None else _of_heads(found, law).astype(heads.dtype)
        of_law = {
            name: np.asarray(found.law.get(name, np.full(like.shape, np.nan)), like.dtype)
            for name, like in parameters.items()
        }
        return found.x0.astype(x0.dtype), of_heads, of_law

    @lib.custom_vjp
    def compute(x0: Any, heads: Any, parameters: Any) -> Any:
        if not lib.numpy.issubdtype(x0.dtype, lib.numpy.floating):
            raise InputError(f"x0 is an array of {x0.dtype}: expected floating-point numbers")
        # The shape of the result is that of a run from any tokens and heads of these shapes.
        own = {} if heads is None else {"heads": np.zeros(heads.shape)}
        unit = np.full(x0.shape, 1 / np.sqrt(x0.shape[-1]))
        problem = differentiable_problem(unit, law, **arguments, **own)
        shape = (problem.paths, len(problem.snapshot_steps), *x0.shape[-2:])
        result = lib.ShapeDtypeStruct(shape, x0.dtype)
        return lib.pure_callback(tokens, result, x0, heads, parameters, vmap_method="sequential")

    def forward(*given: Any) -> Any:
        return compute(*given), given

    def backward(kept: Any, of_tokens: Any) -> Any:
        like = lib.tree.map(lambda given: lib.ShapeDtypeStruct(given.shape, given.dtype), kept)
        return lib.pure_callback(derivatives, like, *kept, of_tokens, vmap_method="sequential")

    compute.defvjp(forward, backward)

    def run(x0: Any, heads: Any = None, **parameters: Any) -> Any:
        return compute(x0, heads, lib.tree.map(lib.numpy.asarray, parameters))

    return run
