"""Decorators of compiled functions.

A `kernel` is called from Python, a `loop_body` by address from the parallel loop of a kernel
(`compiler.tasks`); the code of both is kept on disk. An `internal` function is called by compiled
ones alone. All are ordinary functions of a module: where a loop is to know a number when it is
compiled, such as the dimension that it unrolls, the number is passed as a `constant`.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from wflow._core.compiler.cache import keep
from wflow._core.threads import on_threads

# Without wrappers for Python and C, a tenth of what there is to compile.
INTERNAL: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def kernel(function: Callable | None = None, **options: Any) -> Any:
    """Decorator of a compiled function that Python calls, whose code is kept on disk.

    With `parallel=True` it is compiled twice, each when it is first needed: with parallel loops,
    and without for where one thread is to compute (`wflow._core.threads`).
    """
    if function is None:
        return lambda function: kernel(function, **options)
    compiled = keep(njit(error_model="numpy", **options)(function), function)
    if not options.get("parallel"):
        return compiled
    assert isinstance(function, FunctionType)
    # Numba links code by names: the two must differ.
    copy = FunctionType(function.__code__, function.__globals__, f"{function.__name__}_sequential")
    copy.__qualname__ = f"{function.__qualname__}_sequential"
    copy.__module__ = function.__module__
    sequential = keep(njit(error_model="numpy", nogil=True)(copy), copy)
    return on_threads(compiled, sequential)


def internal(function: Callable | None = None, **options: Any) -> Any:
    """Decorator of a compiled function that compiled functions call, and never Python.

    A call from Python would end the process: there are no wrappers for it.
    """
    decorate = njit(**(INTERNAL | options))
    return decorate if function is None else decorate(function)


def loop_body(function: Callable) -> Any:
    """Decorator of a compiled function without a result that parallel loops call by address."""
    return keep(internal(function), function)


def constant(value: int) -> tuple[int, ...]:
    """A whole number >= 0 as an argument whose type carries it: compiled code knows it.

    It is a tuple of so many zeros and one more, since parallel loops take no empty tuples.
    """
    return (0,) * (value + 1)


def constant_type(value: int) -> types.Type:
    """The type of `constant(value)` in compiled code."""
    return types.UniTuple(types.intp, value + 1)


@intrinsic
def value_of(typingctx, number):
    """The whole number that a `constant` stands for."""
    value = number.count - 1

    def codegen(context, builder, sig, args):
        return ir.Constant(ir.IntType(types.intp.bitwidth), value)

    return types.intp(number), codegen
