"""What bodies and networks return, and the hidden states among what other modules do."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from wflow.errors import InputError


class Flow(NamedTuple):
    """Where the hidden states went, and what it cost."""

    state: Tensor  # X(T), of the shape of X(0)
    cost: Tensor  # transport cost, one number


class Output(NamedTuple):
    """What a network answers: its output, and the transport cost of its body (0 if discrete)."""

    output: Tensor
    cost: Tensor


def as_flow(value: Any) -> Flow:
    """What a body returned, as Flow: hidden states of a discrete network cost nothing."""
    if isinstance(value, Flow):
        return value
    state = hidden_states(value)
    return Flow(state, state.new_zeros((), dtype=at_least_single(state.dtype)))


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums are taken: float32 for half precision, else the type itself."""
    return torch.promote_types(dtype, torch.float32)


def hidden_states(value: Any) -> Tensor:
    """The hidden states among what a module returned."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Flow):
        raise InputError(
            "the blocks are a continuous-time transformer themselves: expected the blocks inside"
        )
    found = getattr(value, "last_hidden_state", None)
    if found is None and isinstance(value, tuple | list) and value:
        found = value[0]
    if not isinstance(found, Tensor):
        raise InputError(
            f"the blocks returned {type(value).__name__}: expected a tensor, a tuple that begins "
            "with one, or an object with .last_hidden_state"
        )
    return found
