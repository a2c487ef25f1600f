"""Runs as differentiable functions of other libraries, whose derivatives are `wflow.gradient`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wflow._core.checks import shown
from wflow._core.errors import InputError
from wflow._core.extras import required
from wflow.gradients.adjoint import Trajectory, differentiable_problem
from wflow.heads.laws import HeadLaw
from wflow.heads.process import as_law

__all__ = ["torch"]


def __dir__() -> list[str]:
    return __all__


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
        anything but tensors, and for derivatives by initial heads of a custom law.

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
    as_law(law)

    class Run(lib.autograd.Function):  # type: ignore[name-defined]
        """The run, whose derivatives are its adjoint."""

        @staticmethod
        def forward(ctx: Any, x0: Any, heads: Any) -> Any:
            given = dict(arguments)
            if heads is not None:
                given["heads"] = heads.detach().cpu().numpy().astype(np.float64)
            ctx.x0 = x0.detach().cpu().numpy().astype(np.float64)
            ctx.run = Trajectory(differentiable_problem(ctx.x0, law, **given))
            ctx.like = x0, heads
            return lib.from_numpy(ctx.run.tokens).to(x0.device)

        @staticmethod
        def backward(ctx: Any, of_tokens: Any) -> Any:
            x0, heads = ctx.like
            cotangents = np.ascontiguousarray(of_tokens.cpu().numpy())
            found = ctx.run.backward(0.0, cotangents, None, ctx.x0)
            of_heads = None
            if heads is not None and ctx.needs_input_grad[1]:
                if found.initial_heads is None:
                    raise InputError(
                        f"the steps of {type(law).__name__} have no adjoint: initial heads of a "
                        "custom law have no derivatives"
                    )
                of_heads = lib.from_numpy(found.initial_heads.sum(axis=0)).to(heads)
            return lib.from_numpy(found.x0).to(x0), of_heads

    def run(x0: Any, heads: Any = None) -> Any:
        for name, value in (("x0", x0), ("heads", heads)):
            if not (lib.is_tensor(value) or (value is None and name == "heads")):
                raise InputError(f"{name} is {shown(value)}: expected a tensor of torch")
        return Run.apply(x0, heads)

    return run
