"""Checks of tensors and networks; those of numbers and paths are in `wflow._core.checks`."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import IO, Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from wflow._core.errors import InputError
from wflow._core.extras import install

Kind = Literal["real", "whole", "bool", "number"]
P = ParamSpec("P")
R = TypeVar("R")

_KINDS = {
    "real": "floating point",
    "whole": "integers",
    "bool": "torch.bool",
    "number": "real numbers",
}
# Types with which torch computes; those of 8 bits and fewer that it only stores are not among them.
_REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_WHOLE = {torch.int8, torch.int16, torch.int32, torch.int64}
_WHOLE |= {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
_TYPES = {"real": _REAL, "whole": _WHOLE, "bool": {torch.bool}, "number": _REAL | _WHOLE}


def tensor(
    value: Any, name: str, kind: Kind, like: Tensor | None = None, *, meta: bool = False
) -> Tensor:
    """Check that a value is a dense tensor, in eager mode: a check would break a compiled graph.

    Parameters
    ----------
    value : object
        What was given.
    name : str
        What the message calls it.
    kind : Kind
        Real, floating point; whole, integers; bool; number, one of the first two.
    like : Tensor, optional
        Weight that it meets: on the same device and, for real, of the same type.
    meta : bool, default False
        Whether a tensor on torch's device meta is accepted, which has a shape and no values.

    Raises
    ------
    InputError
        For anything else.
    """
    if torch.compiler.is_compiling():
        return value  # type: ignore[no-any-return]
    named, expected = _named(name), f"expected {_KINDS[kind]}, as a dense tensor"
    check_dense(value, name, kind)
    if value.dtype not in _TYPES[kind]:
        raise InputError(f"{named} {value.dtype}: {expected}")
    device = like.device if like is not None else None
    if value.device != device and (like is not None or (value.is_meta and not meta)):
        where = f"expected {device}, where the network is" if like is not None else expected
        raise InputError(f"{named} on the device {value.device}: {where}")
    same = kind != "real" or like is None or value.dtype == like.dtype
    if not same and like is not None and like.is_floating_point() and not autocast(value):
        raise InputError(
            f"{named} {value.dtype}: expected {like.dtype}, the type of the weights; convert one "
            "of them, or use torch.autocast"
        )
    # NumPy and torch.func know no negative view.
    return value.resolve_neg() if value.is_neg() else value


def check_dense(value: Any, name: str, kind: Kind) -> None:
    """Raise InputError for what is no dense tensor; only of one may sizes be asked."""
    expected = f"expected {_KINDS[kind]}, as a dense tensor"
    if not isinstance(value, Tensor):
        raise InputError(f"{_named(name)} {type(value).__name__}: {expected}")
    if not dense(value):
        form = "nested" if value.is_nested else f"stored as {value.layout}"
        raise InputError(f"{_named(name)} {form}, {value.dtype}: {expected}")


def _named(name: str) -> str:
    plural = name.endswith("s") and not name.endswith("bias")
    return f"{name} {'are' if plural else 'is'}"


def dense(value: Tensor) -> bool:
    """Return whether a tensor has one number for each index: not sparse, nested or quantised."""
    return not value.is_nested and value.layout == torch.strided and not value.is_quantized


def autocast(x: Tensor) -> bool:
    """Return whether autocast is on for the device of a tensor."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def module(value: Any, name: str) -> nn.Module:
    """Check that a value is a network."""
    if not isinstance(value, nn.Module):
        raise InputError(f"{name} is {type(value).__name__}: expected a torch.nn.Module")
    return value


def modules(values: Any) -> list[nn.Module]:
    """Check that a value holds networks, and return them as a list."""
    expected = (
        "expected a torch.nn.Module, or a list of them, each of which maps hidden states to hidden "
        "states of the same shape; give [nets.blocks.Block(width, heads) for _ in range(depth)], "
        "or the body of a network, net.body"
    )
    try:
        blocks = list(iter(values))
    except TypeError:
        raise InputError(f"blocks is {type(values).__name__}: {expected}") from None
    for block in blocks:
        if not isinstance(block, nn.Module):
            raise InputError(f"a block is {type(block).__name__}: {expected}")
    return blocks


def listed(values: Any, name: str) -> list[Any]:
    """Check that a value is iterable, and return its entries as a list."""
    try:
        iterator = iter(values)
    except TypeError:
        raise InputError(f"{name} is {type(values).__name__}: expected a list or tuple") from None
    return list(iterator)


def text(value: Any, name: str) -> str:
    """Check that a value is text."""
    if not isinstance(value, str):
        raise InputError(f"{name} is {type(value).__name__}: expected text")
    return value


SAFE_TORCH = "2.10"
"""First version in which a file that is read as tensors alone runs no code (CVE-2026-24747)."""


def check_torch() -> None:
    """Raise InputError for a version of torch in which a crafted file of weights could run code."""
    if torch.__version__ < SAFE_TORCH:  # compared as versions, not as text
        raise InputError(
            f"torch {torch.__version__} may run code that a file of weights holds "
            f"(CVE-2026-24747): expected {SAFE_TORCH} or newer; update it "
            f"with: {install('nets')}"
        )


def load_tensors(file: IO[bytes]) -> Any:
    """Read on the CPU what `torch.save` wrote, as tensors and plain values; nothing is executed.

    Raises
    ------
    InputError
        As from `check_torch`.
    Exception
        Of any kind, for a file that is damaged or holds other things.
    """
    check_torch()
    return torch.load(file, map_location="cpu", weights_only=True)


def in_memory(make: Callable[P, R]) -> Callable[P, R]:
    """Decorate a constructor whose sizes are checked: what torch then refuses are sizes."""

    form = signature(make)

    @wraps(make)
    def making(*arguments: P.args, **options: P.kwargs) -> R:
        form.bind(*arguments, **options)  # a missing argument is Python's to report
        try:
            return make(*arguments, **options)
        except (MemoryError, OverflowError, RuntimeError, TypeError) as error:
            raise InputError(
                f"the network cannot be made ({str(error).splitlines()[0]}): expected sizes that "
                "fit into the memory"
            ) from None

    return making
