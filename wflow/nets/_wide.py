"""Numbers for diagnostics: in double precision, on the device they come from."""

from typing import Any

import torch
from torch import Tensor

from wflow.errors import InputError


def wide(x: Tensor) -> Tensor:
    """A tensor without its graph in double precision; single on devices that have no double."""
    return x.detach().to(torch.float32 if x.device.type == "mps" else torch.float64)


def output_of(value: Any) -> Tensor:
    """The tensor among what a function returned: itself, or the first of a tuple.

    Raises
    ------
    InputError
        Where there is none.
    """
    first = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(first, Tensor):
        raise InputError(
            f"the function returned {type(value).__name__}: expected a tensor, or a tuple that "
            "begins with one, such as Output or Flow"
        )
    return first
