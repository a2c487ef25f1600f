"""Identity of a training: configuration, objective and batches as JSON, compared at a resume."""

import hashlib
from collections.abc import Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wflow.nets.checks import dense

# Settings that may change when a training is continued: they do not affect its results.
_FREE = ("device", "checkpoint_every")
_DEPTH = 4  # of objects within objects, whose attributes count


def identity(config: Mapping[str, Any], objective: Any, batches: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that identify a training and its continuation, for JSON.

    Parameters
    ----------
    config : mapping
        `TrainConfig.as_dict`.
    objective : object
        Named by what it is, with its public attributes (`named`).
    batches : dict
        What identifies the source of the batches (`Source.identity`).

    Returns
    -------
    dict
        Settings by name.
    """
    kept = {key: value for key, value in config.items() if key not in _FREE}
    return kept | {"objective": named(objective), "batches": batches}


def named(thing: Any, depth: int = 0) -> dict[str, Any]:
    """Return name and public attributes of a function or an object, for JSON.

    Attributes are numbers, text, digests of arrays, and objects in the same way; functions have
    their name alone, with what `functools.partial` has given them.
    """
    if isinstance(thing, partial):
        inside = {"of": thing.func, "arguments": thing.args, "keywords": thing.keywords}
        return {"kind": "partial"} | {k: _attribute(v, depth) for k, v in inside.items()}
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    public = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("_")}
    if isinstance(thing, nn.Module):  # weights of classes and the like are kept apart by torch
        public |= thing.named_buffers(recurse=False)
    return {"kind": name} | {k: _attribute(v, depth) for k, v in public.items()}


def _attribute(value: Any, depth: int) -> Any:
    """Return an attribute for JSON; its type, where it cannot be compared by its contents."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcSU":
        kind = f"torch.{value.dtype}" if value.dtype.kind in "biuf" else str(value.dtype)
        return _digest(kind, value.shape, value.tobytes())
    if isinstance(value, Tensor) and not dense(value):
        value = value.to_dense()
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return _digest(str(value.dtype), tuple(value.shape), flat.numpy().tobytes())
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == _DEPTH:
        return type(value).__qualname__
    if isinstance(value, list | tuple):
        return [_attribute(entry, depth + 1) for entry in value]
    if isinstance(value, dict):
        return {str(k): _attribute(entry, depth + 1) for k, entry in value.items()}
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return value.__qualname__
    return named(value, depth + 1)


def _digest(kind: str, shape: tuple[int, ...], data: bytes) -> str:
    """Return what identifies an array: its type, shape and contents."""
    return f"{kind} {shape} sha256 {hashlib.sha256(data).hexdigest()[:16]}"
